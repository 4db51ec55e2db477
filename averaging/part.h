/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part.h: the messages of method 66 between their bytes and checked structs (reduce.proto has what
 * they mean). What comes from a peer is checked for grammar and ranges here; whether it fits the
 * round is for the reducer to see.
 */
#ifndef HTH_AVERAGING_PART_H
#define HTH_AVERAGING_PART_H

#include "averaging/codec.h"
#include "core/ident.h"
#include "core/tensor.h"

/* Segments of 7 + 6 + 6 bytes with their heads, and the rest. */
#define HTH_PART_BYTES_MAX (HTH_AVG_SEGMENTS_MAX * 24 + 128)

#define HTH_PART_NONE      UINT32_MAX /* asks: a round that is known has no such part */

struct hth_part_head {
    struct hth_hash group;
    uint32_t part;
    uint32_t floats; /* of all segments; not packed */
    uint32_t segment_count;
    struct hth_segment segments[HTH_AVG_SEGMENTS_MAX];
};

struct hth_part_reply {
    uint8_t missing[HTH_AVG_MEMBERS_MAX / 8]; /* bits, by the place in the list */
    uint32_t floats;                          /* as above */
    uint32_t segment_count;
    struct hth_segment segments[HTH_AVG_SEGMENTS_MAX];
};

/* The bytes of the one tensor of such a message, 0 where it has none. Errors: E_BAD_SHAPE. */
enum hth_err hth_part_tensor(const struct hth_tensor *tensors, size_t count,
                             uint64_t *bytes) HTH_MUST;

/* Return the length. */
size_t hth_part_pack(const struct hth_part_head *part, uint8_t out[HTH_PART_BYTES_MAX]);
size_t hth_part_reply_pack(const struct hth_part_reply *reply, uint8_t out[HTH_PART_BYTES_MAX]);

/* `bytes` is the tensor's length. Errors: E_MALFORMED (grammar, the length of the group, or of what
 * is missing), and those of hth_codec_check. */
enum hth_err hth_part_open(const uint8_t *payload, size_t len, uint64_t bytes,
                           struct hth_part_head *out) HTH_MUST;
enum hth_err hth_part_reply_open(const uint8_t *payload, size_t len, uint64_t bytes,
                                 struct hth_part_reply *out) HTH_MUST;

#endif
