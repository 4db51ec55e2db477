/* SPDX-License-Identifier: Apache-2.0 */
/*
 * senders.h: how much of one expert's pooled gradient each sender may be.
 *
 * A sender is an invite, whose keys share it; in an open run, a key. Its part of a pooled gradient
 * (store.h) is bounded twice:
 *
 *   rows   At most its share of the rows, and at most max(1/4, 2 / senders) of the pool. All
 *          senders on probation together are at most 1/4 beside members. Rows beyond that are
 *          computed and answered, and weigh nothing.
 *   norm   The root mean square of ||M dy|| over the rows of a part is at most 1.5 lower medians of
 *          the senders' own. A part beyond that is scaled down to it, and one of more than 4 times
 *          that weighs nothing. With one or two senders no majority is honest by count: then the
 *          bound is 4 times the expert's own mean, once that is known by 16 parts.
 *
 * The pool ends after these decisions, so the rows of the others are a forecast: those that are in
 * the pool already, or their mean over the last pools where that is more.
 *
 * Not prevented: a liar with gradients of the usual size is one voice of many, and no more than
 * a quarter of all with eight senders or more. Where honest gradients are mostly noise, that pulls
 * an expert away from its best point by up to half of that noise (`hearth sim hostile`: creep).
 *
 * Pure state of one expert, no clock. All zero: no sender yet. The owner's thread.
 */
#ifndef HTH_EXPERTS_SENDERS_H
#define HTH_EXPERTS_SENDERS_H

#include "core/base.h"

/* Senders beyond this count are one. */
#define HTH_SENDERS_MAX 64
/* A part of more than so many times the bound of its norm weighs nothing. */
#define HTH_SENDERS_OUTLYING 4

struct hth_sender_id {
    uint64_t number; /* an invite (hth_rpc_invite), or a hash of a peer's id */
    bool probation;
};

struct hth_senders {
    uint32_t count, parts; /* parts: good ones of all senders, up to 16 */
    double norm;           /* the expert's mean of accepted parts */
    struct sender {
        struct hth_sender_id id;
        double rows;      /* in this pool */
        double rows_mean; /* per pool, of the last ones */
        double norm;      /* mean over the last parts; 0: none yet */
        bool known;       /* since a pool before this one */
    } sender[HTH_SENDERS_MAX];
};

/* Takes a part of so many rows into the pool, in place of *norm_max the bound of its norm (0: no
 * bound). Returns how many of its rows count. */
uint32_t hth_senders_take(struct hth_senders *s, struct hth_sender_id id, uint32_t rows,
                          double *norm_max);
/* Rows of a part that was taken do not count: it failed, or was outlying. */
void hth_senders_give_back(struct hth_senders *s, struct hth_sender_id id, uint32_t counted);
/* A part was computed; `norm` is that of what it sent, before it was scaled down to norm_max. */
void hth_senders_saw(struct hth_senders *s, struct hth_sender_id id, double norm, double norm_max);
/* The pooled gradient was used, or dropped: the next one begins. */
void hth_senders_next_pool(struct hth_senders *s);

#endif
