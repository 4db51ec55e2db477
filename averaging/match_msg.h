/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match_msg.h: between match.proto's bytes and checked structs.
 *
 * What these functions let through is bounded and in range: enums are known, counts are below the
 * limits, numbers are finite, shapes and cells make sense. Pure functions, any thread.
 */
#ifndef HTH_AVERAGING_MATCH_MSG_H
#define HTH_AVERAGING_MATCH_MSG_H

#include "averaging/match.h"
#include "core/bytes.h"

/* Trainers and clients bring values; trainers and helpers reduce, can be dialled, and may lead. */
static inline bool hth_avg_mode_brings(uint32_t mode)
{
    return mode == HTH_AVG_TRAINER || mode == HTH_AVG_CLIENT;
}
static inline bool hth_avg_mode_reduces(uint32_t mode)
{
    return mode == HTH_AVG_TRAINER || mode == HTH_AVG_HELPER;
}

/* Raise it when members are to read each other's bytes, here or in reduce.proto, in another way:
 * programs of two versions form no group (OTHER_VERSION). */
#define HTH_MATCH_VERSION 5

/* A JOIN's bytes: a line of HTH_AVG_DIMS_MAX axes, all at its longest. */
#define HTH_JOIN_BYTES_MAX 512

struct hth_join_msg {
    struct hth_avg_line line;
    uint64_t schema;
    struct hth_avg_member self; /* its id is zero */
    int64_t wall_us;
    uint32_t left_ms;
    uint32_t version;
    bool follows;
};

/* Returns the number of bytes. */
size_t hth_join_msg_pack(const struct hth_join_msg *join, uint8_t out[HTH_JOIN_BYTES_MAX]);
/* Errors: E_MALFORMED, E_RANGE (a number), E_TOO_LARGE (axes). */
enum hth_err hth_join_msg_open(const uint8_t *data, size_t len, struct hth_join_msg *out) HTH_MUST;

struct hth_join_reply {
    enum hth_avg_reason reason;
    const struct hth_avg_member *members; /* borrowed by pack */
    uint32_t count;                       /* 1 with WAIT and NOT_LEADER, 0 with refusals */
    int64_t match_us;
    struct hth_avg_member *opened; /* private to open */
};

/* Free it with hth_free. */
uint8_t *hth_join_reply_pack(const struct hth_join_reply *reply, size_t *len) HTH_MUST;
/* Close what was opened, with HTH_OK or not. An unknown reason is kept as it is. Errors:
 * E_MALFORMED, E_RANGE, E_TOO_LARGE (members beyond HTH_AVG_MEMBERS_MAX), E_DUPLICATE (a member is
 * named twice). */
enum hth_err hth_join_reply_open(const uint8_t *data, size_t len,
                                 struct hth_join_reply *out) HTH_MUST;
void hth_join_reply_close(struct hth_join_reply *reply);

#endif
