/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_msg.h (internal): what is said when a state or a mean is handed out (state.proto), as plain
 * structs, checked. Private to averaging/, its tests and its fuzzer.
 */
#ifndef HTH_AVERAGING_STATE_MSG_H
#define HTH_AVERAGING_STATE_MSG_H

#include "core/blob.h"
#include "core/bytes.h"
#include "core/crypto.h"
#include "core/limits.h"

/* A state or a mean without its bytes. */
struct hth_state_desc {
    uint64_t schema, step;
    uint64_t bytes, part_bytes; /* which follow from bytes */
    uint32_t parts;
    uint32_t meta_len;
    uint8_t meta[HTH_STATE_META_MAX];
    struct hth_blob *hashes; /* one per part, no ghost; NULL: nothing is described */
    struct hth_hash name;    /* a state's root, or the head of a mean's link */
};

/* A power of two with which so many bytes have about 256 parts, within the limits. */
uint64_t hth_state_part_bytes(uint64_t bytes);
/* Bytes of part `index`. */
uint64_t hth_state_part_len(const struct hth_state_desc *d, uint32_t index);
struct hth_hash *hth_state_part_hash(const struct hth_state_desc *d, uint32_t index);
/* Sizes and parts for that many bytes; hashes are referenced, or zero where NULL. Errors: E_RANGE
 * (0 bytes), E_TOO_LARGE, E_MALFORMED (not a hash per part). */
enum hth_err hth_state_desc_init(struct hth_state_desc *d, uint64_t schema, uint64_t step,
                                 const void *meta, size_t meta_len, uint64_t bytes,
                                 struct hth_blob *hashes) HTH_MUST;
/* One more, which is cleared by itself. */
struct hth_state_desc hth_state_desc_ref(const struct hth_state_desc *d);
void hth_state_desc_clear(struct hth_state_desc *d);
/* Makes the name a state's root, from everything else. */
void hth_state_desc_seal(struct hth_state_desc *d, const struct hth_crypto *crypto);

/* Heap bytes. */
void hth_state_desc_pack(const struct hth_state_desc *d, uint8_t **out, size_t *len);
/* Of that schema, as the asker's. It has no name yet. Errors: E_MALFORMED, E_RANGE (sizes that do
 * not agree), E_TOO_LARGE. */
enum hth_err hth_state_desc_open(const uint8_t *data, size_t len, uint64_t schema,
                                 struct hth_state_desc *out) HTH_MUST;

struct hth_state_ask {
    uint64_t schema, step_min;
    bool named; /* else a state is meant, of that step or a later one */
    struct hth_hash name;
    uint32_t part;
};

#define HTH_STATE_ASK_MAX 80
size_t hth_state_ask_pack(const struct hth_state_ask *ask, uint8_t out[HTH_STATE_ASK_MAX]);
/* Errors: E_MALFORMED. */
enum hth_err hth_state_ask_open(const uint8_t *data, size_t len,
                                struct hth_state_ask *out) HTH_MUST;

#endif
