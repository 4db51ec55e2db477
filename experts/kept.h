/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept.h: the rows of forwards, kept for the backwards that follow them.
 *
 * A trainer that will send a backward gives its forward a key. The server keeps that forward's
 * input under (peer, key), and the backward may name the key instead of carrying the input again.
 *
 *   forward answered --put--> each peer's rows, oldest first --find, drop--> the backward's input
 *                                   |  too old, or no room
 *                                   v
 *                             freed; the backward is told so and carries its rows
 *
 * Bounds: all rows fit in bytes_max, and a peer holds at most as many bytes as all peers together
 * leave free (Choudhury and Hahne 1998): k peers that put without end hold bytes_max / (k + 1)
 * each. A peer's new rows push out its own oldest, never another peer's. Rows are freed age_us
 * after they were put. Rows have one owner: a second find of a dropped key finds nothing, and no
 * peer finds another's.
 *
 * Loop thread. Private to experts/.
 */
#ifndef HTH_EXPERTS_KEPT_H
#define HTH_EXPERTS_KEPT_H

#include "core/base.h"
#include "core/env.h"
#include "core/tensor.h"
#include "rpc/rpc.h"

struct hth_kept;
struct hth_kept_entry;

struct hth_kept_rows {
    struct hth_tensor x; /* the entry references its blob */
    uint64_t list_hash;  /* of the experts and their rows (experts/message.h) */
};

struct hth_kept *hth_kept_new(struct hth_env *env, int64_t bytes_max, int64_t age_us);
/* NULL is fine. */
void hth_kept_free(struct hth_kept *kept);
/* Keeps the rows under this key; rows that the peer put under it before are freed. False when there
 * is no room. */
bool hth_kept_put(struct hth_kept *kept, const struct hth_peer_id *peer, struct hth_rpc_idem key,
                  const struct hth_kept_rows *rows);
/* NULL when there are none. */
struct hth_kept_entry *hth_kept_find(struct hth_kept *kept, const struct hth_peer_id *peer,
                                     struct hth_rpc_idem key);
const struct hth_kept_rows *hth_kept_rows(const struct hth_kept_entry *entry);
/* NULL is fine. */
void hth_kept_drop(struct hth_kept_entry *entry);
int64_t hth_kept_bytes(const struct hth_kept *kept);

#endif
