/* SPDX-License-Identifier: Apache-2.0 */
/*
 * members.h: the passes of a closed run's members, and its revoked invites, as records in the DHT.
 *
 * Each member publishes its credentials (admission/pass.h) under one topic of the run, and watches
 * those of the others. While a member's pass is known and good, boards on the same DHT believe its
 * records of the kinds that its roles allow:
 *
 *   root, prefix                     serve
 *   declare, progress, state, head   train or reduce
 *   beacon, pass                     anybody; a pass is judged by itself
 *
 * The owner's list of revoked serials (admission/revoke.h) is a record under a topic of its own,
 * which every member that has the list publishes: so it outlives its owner's process. The newest
 * list that the owner signed holds; on_revoked tells of it.
 *
 * Make it before the boards and publishers of the run, and free it after them. A member that stops
 * publishing is forgotten within LIFE_US.
 *
 * Loop thread.
 */
#ifndef HTH_DHT_MEMBERS_H
#define HTH_DHT_MEMBERS_H

#include "admission/revoke.h"
#include "dht/board.h"

struct hth_members;

/* A newer list; the bytes are those that the owner signed. All are valid until the next one. */
typedef void hth_revoked_fn(void *arg, const struct hth_revoked *list, const uint8_t *data,
                            size_t len);

struct hth_members_opts {
    const char *network;
    const struct hth_closed_run *run;
    const struct hth_admission *own; /* as rpc has it; must outlive the members */
    bool publishes;                  /* false: a peer that only reads */
    hth_revoked_fn *on_revoked;      /* may be NULL; not called for hth_members_revoke */
    void *arg;
};

/* Sets dht->admits. Errors: those of hth_dht_watch. */
enum hth_err hth_members_new(struct hth_env *env, struct hth_dht *dht,
                             const struct hth_members_opts *opts,
                             struct hth_members **out) HTH_MUST;
/* Takes a list from another source, such as a file. Errors: those of hth_revoked_read, E_STALE. */
enum hth_err hth_members_revoke(struct hth_members *members, const uint8_t *data,
                                size_t len) HTH_MUST;
/* NULL is fine. */
void hth_members_free(struct hth_members *members);
/* The members whose passes are known. */
size_t hth_members_count(const struct hth_members *members);

#endif
