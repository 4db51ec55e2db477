/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.h: the messages of expert.proto as plain structs, checked.
 *
 * protobuf-c unpacks a peer's bytes and this file checks them once, so that server and client see
 * only counts that agree and numbers within limits.h. Private to experts/, its tests, its fuzzer
 * and the simulated attackers of scenarios/malice.c.
 */
#ifndef HTH_EXPERTS_MESSAGE_H
#define HTH_EXPERTS_MESSAGE_H

#include "core/base.h"
#include "core/limits.h"
#include "dht/uid.h"
#include "experts/client.h"

/* Bytes of a key that names one expert: layer, a zero, coordinates. */
#define HTH_EXPERT_KEY_MAX (HTH_NAME_LEN_MAX + 1 + 4 * HTH_GRID_DIMS_MAX)

size_t hth_expert_key(const char *layer, uint32_t ndim, const uint32_t *coord,
                      uint8_t out[HTH_EXPERT_KEY_MAX]);

struct hth_expert_msg {
    const char *layer;
    uint32_t ndim;
    uint32_t parts;
    const uint32_t *coord; /* parts * ndim */
    const uint32_t *rows;  /* parts; each at least 1 */
    uint32_t rows_total;
    uint32_t rows_in_microbatch;
    struct hth_rpc_idem forward; /* of a backward without x; 0: none */
    void *message; /* owns what the pointers refer to */
};

/* Errors: E_MALFORMED (not the message, counts that disagree, bad name), E_RANGE (a coordinate, no
 * rows, no parts), E_TOO_LARGE (parts, total rows over `rows_max`). */
enum hth_err hth_expert_msg_open(const uint8_t *payload, size_t len, uint32_t rows_max,
                                 struct hth_expert_msg *out) HTH_MUST;
void hth_expert_msg_close(struct hth_expert_msg *work);
/* The bytes to send; heap. Errors: E_TOO_LARGE (beyond a frame's meta). */
enum hth_err hth_expert_msg_pack(const struct hth_expert_msg *work, uint8_t **out,
                                 size_t *len) HTH_MUST;
/* True if it names a forward instead of carrying x. */
bool hth_expert_msg_names(const struct hth_expert_msg *work);
/* A hash of the list of experts and rows: a forward and its backward have the same. */
uint64_t hth_expert_msg_list_hash(const struct hth_expert_msg *work);

/* Statuses of `parts` parts into out. `kept` may be NULL. Errors: E_MALFORMED (another number of
 * statuses). */
enum hth_err hth_expert_msg_reply_open(const uint8_t *payload, size_t len, uint32_t parts,
                                       enum hth_err *out, bool *kept) HTH_MUST;
/* Heap bytes; *len 0 and NULL when every status is HTH_OK and nothing is kept. */
void hth_expert_msg_reply_pack(const enum hth_err *status, uint32_t parts, bool kept, uint8_t **out,
                               size_t *len);

/* Errors: E_MALFORMED. */
/* The uid of a WEIGHTS request. Errors: E_MALFORMED. */
enum hth_err hth_weights_request_open(const uint8_t *payload, size_t len,
                                      struct hth_uid *out) HTH_MUST;
void hth_weights_request_pack(const struct hth_uid *uid, uint8_t out[HTH_UID_TEXT_MAX + 4],
                              size_t *len);
enum hth_err hth_info_request_open(const uint8_t *payload, size_t len, uint32_t *first) HTH_MUST;
void hth_info_request_pack(uint32_t first, uint8_t out[8], size_t *len);
/* At most HTH_EXPERT_INFO_PAGE_MAX infos; heap array. Errors: E_MALFORMED, E_TOO_LARGE. */
enum hth_err hth_info_reply_open(const uint8_t *payload, size_t len, struct hth_expert_info **out,
                                 uint32_t *count, uint32_t *total) HTH_MUST;
void hth_info_reply_pack(const struct hth_expert_info *infos, uint32_t count, uint32_t total,
                         uint8_t **out, size_t *len);

#endif
