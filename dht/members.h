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
 * Each list of revoked invites (admission/revoke.h) is a record under a topic of their own, which
 * some of the members that have it publish: so it outlives its signer's process. In each half a
 * minute a member begins to where there are fewer than HTH_LIST_COPIES_MIN copies, and ends, by
 * chance, where there are more than HTH_LIST_COPIES_MAX.
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

struct hth_members_opts {
    const char *network;
    const struct hth_closed_run *run;
    struct hth_revoked_set *revoked; /* newer lists are put into it; must outlive the members */
    const struct hth_admission *own; /* as rpc has it; must outlive the members */
    bool publishes;                  /* false: a peer that only reads */
    hth_fn *on_revoked;              /* the set has a newer list from the DHT; may be NULL */
    void *arg;
};

/* Sets dht->admits. Errors: those of hth_dht_watch. */
enum hth_err hth_members_new(struct hth_env *env, struct hth_dht *dht,
                             const struct hth_members_opts *opts,
                             struct hth_members **out) HTH_MUST;
/* The set has a newer list from another source: publishes it in place of the older one. */
void hth_members_revoked(struct hth_members *members);
/* Our own credentials have changed: publishes them. */
void hth_members_show_again(struct hth_members *members);
/* NULL is fine. */
void hth_members_free(struct hth_members *members);
/* The next member; *it begins at 0. False past the last. In no order. */
bool hth_members_next(const struct hth_members *members, size_t *it, struct hth_peer_id *peer,
                      struct hth_grant *out);
/* Finds a member by its peer id. */
bool hth_members_find(const struct hth_members *members, const struct hth_peer_id *peer,
                      struct hth_grant *out);
/* The members whose passes are known. */
size_t hth_members_count(const struct hth_members *members);

#endif
