/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match_msg.h: members and groups, and the bytes of a JOIN and its answer.
 *
 * What these functions let through is bounded and in range: enums are known, counts are below the
 * limits, numbers are finite, shapes and cells make sense. Pure functions, any thread.
 */
#ifndef HTH_AVERAGING_MATCH_MSG_H
#define HTH_AVERAGING_MATCH_MSG_H

#include "averaging/grid.h"
#include "averaging/reason.h"
#include "core/bytes.h"
#include "core/limits.h"

/* On the wire; in the order in which they have their places in a group. */
enum hth_avg_mode {
    HTH_AVG_TRAINER = 0,
    HTH_AVG_HELPER = 1, /* has no values: only reduces */
    HTH_AVG_CLIENT = 2  /* can't be dialled: reduces nothing */
};

/* Trainers and clients bring values; trainers and helpers reduce, and can be dialled. */
static inline bool hth_avg_mode_brings(uint32_t mode)
{
    return mode == HTH_AVG_TRAINER || mode == HTH_AVG_CLIENT;
}
static inline bool hth_avg_mode_reduces(uint32_t mode)
{
    return mode == HTH_AVG_TRAINER || mode == HTH_AVG_HELPER;
}

struct hth_avg_member {
    struct hth_peer_id id;
    struct hth_addr addr; /* family 0 of a client */
    enum hth_avg_mode mode;
    double bandwidth; /* 0 of a client, or not known */
    double weight;    /* 0 of a helper */
    uint64_t nonce;   /* drawn for each look, so that no two groups have the same id */
};

/* The members of one average; each of them has the same, but for `self`. */
struct hth_avg_group {
    struct hth_hash id;
    uint32_t count, self;
    struct hth_avg_member member[]; /* by their marks (grid.h) under the group's id */
};

/* The first byte of a JOIN. Raise it when members are to read each other's bytes, here or in
 * reduce.proto, in another way: programs of two versions form no group (OTHER_VERSION). */
#define HTH_MATCH_VERSION        6

#define HTH_JOIN_BYTES_MAX       256
#define HTH_JOIN_REPLY_BYTES_MAX (9 + 76 * HTH_AVG_MEMBERS_MAX)

/* Method 64, JOIN, to the host of the line. */
struct hth_join_msg {
    struct hth_avg_line line;
    uint64_t schema;
    uint32_t left_ms;           /* of its window */
    struct hth_avg_member self; /* without id: the connection says who it is */
};

/* Its answer, when the group begins, or with why there is none. */
struct hth_join_reply {
    enum hth_avg_reason reason;
    uint32_t match_us; /* of OK: since the last of them had come */
    uint32_t count;
    struct hth_avg_member member[HTH_AVG_MEMBERS_MAX]; /* of OK: everybody in the group */
};

/* `out` has HTH_JOIN_BYTES_MAX and HTH_JOIN_REPLY_BYTES_MAX; they return the number of bytes. An
 * unknown reason is kept as it is. Errors: E_MALFORMED, E_RANGE (a number), E_TOO_LARGE (axes, or
 * members beyond HTH_AVG_MEMBERS_MAX), E_TRUNCATED, E_VERSION. */
size_t hth_join_write(const struct hth_join_msg *m, uint8_t *out);
enum hth_err hth_join_read(const uint8_t *data, size_t len, struct hth_join_msg *out) HTH_MUST;
size_t hth_join_reply_write(const struct hth_join_reply *m, uint8_t *out);
enum hth_err hth_join_reply_read(const uint8_t *data, size_t len,
                                 struct hth_join_reply *out) HTH_MUST;

/* Of an answer with OK, its members in the group's order. The id is derived from line, schema and
 * the answer's bytes; `self` is count when that peer is not in it. Free it with hth_free. Errors:
 * E_RANGE (more that only reduce than average), E_DUPLICATE (a peer is named twice). */
enum hth_err hth_avg_group_new(const struct hth_crypto *crypto, const struct hth_peer_id *self,
                               const struct hth_avg_line *line, uint64_t schema,
                               const uint8_t *data, size_t len, const struct hth_join_reply *reply,
                               struct hth_avg_group **out) HTH_MUST;

#endif
