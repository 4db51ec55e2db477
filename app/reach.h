/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reach.h: learns whether others can dial this peer at the address that it announces, and dials
 * back those who ask the same (rpc/dialback.h).
 *
 *   a few seconds after joining: a round
 *   a round: ask up to 3 peers, one after the other: those joined through, then any of the census
 *            one is reached -> YES, ask again in 10 minutes
 *            some say no, and no other yes -> NO, again in a minute
 *            else -> as before, again in 5 s, at last each minute
 *
 * An address that only beacons name may be a third party's: a machine is dialled for them three
 * times in a minute at most.
 *
 * A peer on this machine that reaches this one proves nothing about others, so its yes does not
 * count. A single liar can cause a wrong line of text until the next round, and nothing else.
 *
 * Loop thread only.
 */
#ifndef HTH_APP_REACH_H
#define HTH_APP_REACH_H

#include "core/base.h"
#include "core/env.h"
#include "monitor/about.h"

struct hth_census;
struct hth_reacher;
struct hth_rpc;

struct hth_reach_opts {
    struct hth_rpc *rpc;            /* must outlive it, and so must the census */
    struct hth_census *census;      /* of the peers to ask */
    const struct hth_addr *through; /* addresses to ask besides; copied */
    size_t through_count;           /* the first HTH_REACH_THROUGH_MAX are used */
    struct hth_addr announce;       /* family 0: this peer can't be dialled, and only answers */
    /* The verdict, and when it is NO the address from which this peer was seen to come (family 0:
     * unknown). Called when the verdict changes, from the loop. */
    void (*on_change)(void *arg, enum hth_reach reach, const struct hth_addr *from);
    void *arg;
};
#define HTH_REACH_THROUGH_MAX 8

struct hth_reacher *hth_reacher_new(struct hth_env *env, const struct hth_reach_opts *opts);
/* NULL is fine. */
void hth_reacher_free(struct hth_reacher *r);

#endif
