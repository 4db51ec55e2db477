/* SPDX-License-Identifier: Apache-2.0 */
/*
 * members.h: the passes of a closed run's members, as records in the DHT.
 *
 * Each member publishes its credentials (admission/pass.h) under one topic of the run, and watches
 * those of the others. While a member's pass is known and good, boards on the same DHT believe its
 * records of the kinds that its roles allow:
 *
 *   root, prefix                     serve
 *   declare, progress, state, head   train or reduce
 *   beacon, pass                     anybody; a pass is judged by itself
 *
 * Make it before the boards and publishers of the run, and free it after them. A member that stops
 * publishing is forgotten within LIFE_US.
 *
 * Loop thread.
 */
#ifndef HTH_DHT_MEMBERS_H
#define HTH_DHT_MEMBERS_H

#include "admission/pass.h"
#include "dht/board.h"

struct hth_members;

/* Sets dht->admits. own: what rpc uses, too; must outlive it. `publishes` false: of a peer that
 * only reads. Errors: those of hth_dht_watch. */
enum hth_err hth_members_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                             const struct hth_admission *own, bool publishes,
                             struct hth_members **out) HTH_MUST;
/* NULL is fine. */
void hth_members_free(struct hth_members *members);
/* The members whose passes are known. */
size_t hth_members_count(const struct hth_members *members);

#endif
