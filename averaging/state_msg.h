/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_msg.h (internal): what is said when a state is handed out (state.proto), as plain structs,
 * checked. Private to averaging/, its tests and its fuzzer.
 */
#ifndef HTH_AVERAGING_STATE_MSG_H
#define HTH_AVERAGING_STATE_MSG_H

#include "core/bytes.h"
#include "core/crypto.h"
#include "core/limits.h"

/* A snapshot without its bytes. */
struct hth_state_desc {
    uint64_t schema, step;
    uint64_t bytes, part_bytes;
    uint32_t parts;
    uint32_t meta_len;
    uint8_t meta[HTH_STATE_META_MAX];
    struct hth_hash *hashes; /* heap; one per part */
    struct hth_hash root;
};

/* A power of two with which the state has about 256 parts, within the limits. */
uint64_t hth_state_part_bytes(uint64_t bytes);
/* Bytes of part `index`. */
uint64_t hth_state_part_len(const struct hth_state_desc *d, uint32_t index);
/* Sizes and parts for that many bytes, hashes zero. Errors: E_RANGE (0 bytes), E_TOO_LARGE. */
enum hth_err hth_state_desc_init(struct hth_state_desc *d, uint64_t schema, uint64_t step,
                                 const void *meta, size_t meta_len, uint64_t bytes) HTH_MUST;
void hth_state_desc_clear(struct hth_state_desc *d);
/* Fills the root from everything else. */
void hth_state_desc_seal(struct hth_state_desc *d, const struct hth_crypto *crypto);

/* Heap bytes. */
void hth_state_desc_pack(const struct hth_state_desc *d, uint8_t **out, size_t *len);
/* The root is computed, not read. Errors: E_MALFORMED, E_RANGE (sizes that do not agree),
 * E_TOO_LARGE. */
enum hth_err hth_state_desc_open(const uint8_t *data, size_t len, const struct hth_crypto *crypto,
                                 struct hth_state_desc *out) HTH_MUST;

/* Requests are short: `out` is big enough for both. */
#define HTH_STATE_REQUEST_MAX 80
size_t hth_state_describe_pack(uint64_t schema, uint64_t step_min,
                               uint8_t out[HTH_STATE_REQUEST_MAX]);
/* Errors: E_MALFORMED, here and below. */
enum hth_err hth_state_describe_open(const uint8_t *data, size_t len, uint64_t *schema,
                                     uint64_t *step_min) HTH_MUST;
size_t hth_state_part_pack(const struct hth_hash *root, uint32_t index,
                           uint8_t out[HTH_STATE_REQUEST_MAX]);
enum hth_err hth_state_part_open(const uint8_t *data, size_t len, struct hth_hash *root,
                                 uint32_t *index) HTH_MUST;

#endif
