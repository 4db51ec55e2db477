/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reason.h: every way in which a group does not come about, or a round ends without an average.
 *
 * enum hth_err says what a program should do; a reason says to people, and to other peers, what
 * went wrong in averaging. The first block is what a peer answers to a JOIN (match.h), the second
 * what a round ends with. `hearth status` shows them. Numbers travel on the wire: append, never
 * renumber. Pure functions, any thread.
 */
#ifndef HTH_AVERAGING_REASON_H
#define HTH_AVERAGING_REASON_H

#include "core/base.h"

/* X(number, NAME, text) */
#define HTH_AVG_REASON_MAP(X)                                                                      \
    X(0, OK, "averaged")                                                                           \
    X(6, FULL, "the group is full")                                                                \
    X(12, DRAINING, "the peer is shutting down")                                                   \
    X(13, MALFORMED, "the message can't be read")                                                  \
    X(14, RANGE, "a number of the message is outside its range")                                   \
    X(18, OTHER_VERSION, "the peer has a program that averages otherwise: update")                 \
    X(32, NOBODY, "no other trainer takes part in this run")                                       \
    X(33, ALONE, "nobody else of the line came in time")                                           \
    X(34, TOO_FEW, "too few came in time")                                                         \
    X(35, NO_HOST, "the host was lost, or silent")                                                 \
    X(36, LEFT_OUT, "the group was begun without this peer")                                       \
    X(38, NO_PARTS, "none of the parts could be averaged")                                         \
    X(43, FAILED, "a local error; see the error's code")

enum hth_avg_reason {
#define HTH_AVG_REASON_ENUM(num, name, text) HTH_AVG_##name = num,
    HTH_AVG_REASON_MAP(HTH_AVG_REASON_ENUM)
#undef HTH_AVG_REASON_ENUM
};

/* "NOT_LOOKING", for logs, JSON and metrics; "UNKNOWN" for a newer peer's number. Never NULL. */
const char *hth_avg_reason_name(enum hth_avg_reason reason);
/* The sentence of the table. Never NULL. */
const char *hth_avg_reason_text(enum hth_avg_reason reason);

#endif
