/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match_msg.h: between match.proto's bytes, a declaration's bytes, and checked structs.
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

/* A JOIN's bytes: a line of HTH_AVG_DIMS_MAX axes and all else at its longest. */
#define HTH_JOIN_BYTES_MAX 512

struct hth_join_msg {
    struct hth_avg_line line;
    uint64_t schema;
    struct hth_avg_member self; /* its id is zero */
    int64_t wall_us;
    uint32_t left_ms;
};

/* Returns the number of bytes. */
size_t hth_join_msg_pack(const struct hth_join_msg *join, uint8_t out[HTH_JOIN_BYTES_MAX]);
/* Errors: E_MALFORMED, E_RANGE (a number), E_TOO_LARGE (axes). */
enum hth_err hth_join_msg_open(const uint8_t *data, size_t len, struct hth_join_msg *out) HTH_MUST;

/* A TELL. */
struct hth_tell {
    struct hth_avg_line line;
    uint64_t schema;
    const uint8_t *record; /* borrowed by pack */
    size_t record_len;
    void *message; /* private to open */
};

#define HTH_TELL_BYTES_MAX (HTH_JOIN_BYTES_MAX + HTH_DHT_VALUE_BYTES_MAX)
size_t hth_tell_pack(const struct hth_tell *tell, uint8_t out[HTH_TELL_BYTES_MAX]);
/* Close what was opened, with HTH_OK or not. Errors: E_MALFORMED, E_RANGE, E_TOO_LARGE. */
enum hth_err hth_tell_open(const uint8_t *data, size_t len, struct hth_tell *out) HTH_MUST;
void hth_tell_close(struct hth_tell *tell);

struct hth_join_reply {
    enum hth_avg_reason reason;
    const uint8_t *record; /* borrowed by pack; into the bytes given to open's caller's copy */
    size_t record_len;
    struct hth_avg_member *members;
    uint32_t count;
    int64_t match_us;
    void *message; /* private to open */
};

/* *bytes is freed with hth_free. Errors: E_TOO_LARGE (beyond a frame's payload). */
enum hth_err hth_join_reply_pack(const struct hth_join_reply *reply, uint8_t **bytes,
                                 size_t *len) HTH_MUST;
/* Close what was opened, with HTH_OK or not. An unknown reason is kept as it is. Errors:
 * E_MALFORMED, E_RANGE, E_TOO_LARGE (members beyond HTH_AVG_MEMBERS_MAX, a record beyond a
 * value's size), E_DUPLICATE (a member is named twice). */
enum hth_err hth_join_reply_open(const uint8_t *data, size_t len,
                                 struct hth_join_reply *out) HTH_MUST;
void hth_join_reply_close(struct hth_join_reply *reply);

/* The payload of a DECLARE record. */
struct hth_declare {
    struct hth_addr addr; /* family 0 of a client */
    enum hth_avg_mode mode;
    uint64_t schema;
};

void hth_declare_write(const struct hth_declare *declare, struct hth_writer *w);
/* Errors: E_VERSION, E_TRUNCATED, E_MALFORMED (bytes left over, an address that is none),
 * E_RANGE. */
enum hth_err hth_declare_read(const uint8_t *data, size_t len, struct hth_declare *out) HTH_MUST;

#endif
