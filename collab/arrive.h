/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arrive.h: how a member gets from the head that it holds, or from none, to another head.
 *
 *     held                                  wanted
 *      o--mean-->o--mean-->o--mean-->o--mean-->o      it missed steps: their means, in order
 *
 *      x            snapshot                 wanted
 *              o==state==>o--mean-->o--mean-->o       a newcomer, or on another branch: a state
 *                                                     from which means lead on, then these
 *
 * Each mean is checked against its link's digest, so that the member holds the link bit for bit
 * once its owner has stepped; the next two means are fetched meanwhile. Where a mean is nowhere to
 * be had, a state is fetched instead (averaging/state.h). Holders keep the means since the
 * snapshots that they hand out, so whoever gave the state is asked for them first. Two geneses
 * with one digest are one state: their runs began from the same seed, and nothing is moved.
 *
 * A state names its head: the first HTH_HASH_LEN bytes of its meta. Donors write it
 * (hth_state_donor_give). A state whose head is not in the chain can't be judged before its links
 * have come: `unknown` says whose to fetch meanwhile.
 *
 * The chain may grow meanwhile. Where it grows so far that the wanted link is not kept any more,
 * the arrival ends with E_NOT_FOUND.
 *
 * Trust: a state is believed from the holder that says its head, as averaging/state.h has it. A
 * holder whose state the owner refuses is not asked again in this arrival, and it ends
 * (E_NOT_FOUND) if no other holder has one: the head may be one that liars alone hold.
 *
 * The owner (trainer) steps and adopts; it hears through hth_arrive_ops and answers with the
 * functions below. Meanwhile it neither steps nor takes part in rounds.
 *
 * Loop thread. No callback runs inside a call of this header. Ghost worlds: as in
 * averaging/state.h.
 */
#ifndef HTH_COLLAB_ARRIVE_H
#define HTH_COLLAB_ARRIVE_H

#include "collab/collab.h"

struct hth_arrive;

struct hth_arrive_ops {
    /* Take the step with this mean, and hold that link. Reference the mean and its hashes to keep
     * them (hth_state_donor_keep). Answer with hth_arrive_stepped. */
    void (*step)(void *arg, uint32_t link, struct hth_blob *mean, struct hth_blob *hashes);
    /* Adopt this state, which is that link's; valid until the return. Answer with
     * hth_arrive_adopted. */
    void (*adopt)(void *arg, uint32_t link, const struct hth_state_result *state);
    /* This head is not in the chain, and that peer holds its state and links. */
    void (*unknown)(void *arg, const struct hth_hash *head, const struct hth_rpc_target *holder);
    /* `link` is held now: the wanted one or one after it (HTH_OK), or as far as it came, which the
     * chain may not keep any more. May free the object. */
    void (*done)(void *arg, enum hth_err err, uint32_t link);
};

/* All are borrowed, the options, too. Their budget is of a state, and of the at most three means
 * that are fetched or stepped on. */
struct hth_arrive *hth_arrive_new(struct hth_env *env, struct hth_rpc *rpc,
                                  const struct hth_chain *chain, const struct hth_collab_opts *opts,
                                  const struct hth_arrive_ops *ops, void *arg);
/* Without a callback. NULL is fine. */
void hth_arrive_free(struct hth_arrive *arrive);

/* From `held` (or HTH_LINK_NONE) to `wanted`, which is in the chain; holders of it, or of states
 * before it, at least one, are copied. One at a time. Errors of `done`: E_BUDGET,
 * E_NOT_FOUND (no holder has a mean or a state that leads there, or the chain grew past it),
 * E_TIMEOUT (none moved for long), the owner's own. */
void hth_arrive_go(struct hth_arrive *arrive, uint32_t held, uint32_t wanted,
                   const struct hth_holders *holders);
bool hth_arrive_is_going(const struct hth_arrive *arrive);
/* Of the state that it fetches; all 0 and "" without one. */
void hth_arrive_progress(const struct hth_arrive *arrive, struct hth_state_progress *out);
/* Or another step was taken, when it asked for none. */
void hth_arrive_stepped(struct hth_arrive *arrive);
/* Errors of class PEER leave those out that said they have it; others end it. */
void hth_arrive_adopted(struct hth_arrive *arrive, enum hth_err err);

#endif
