/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.h: a peer that holds no state of the run and reduces for its trainers.
 *
 * A helper asks one after the other of those who say that they call (heads.h), and is READY there,
 * with the flag HELPS. The caller holds that as it holds its members' READYs; its GO lists the
 * helpers behind the members, and is the answer. They reduce shares of the round's values by their
 * bandwidth (line.h), so that the members' shares become smaller.
 *
 *     helper                             caller
 *        | --- READY {helps, up} -----------> |   held; at most HTH_ROLL_HELPERS_MAX
 *        | <-- WAIT ------------------------- |   "still here"
 *        | <-- MOVE {the caller} ------------ |   from a member that does not call
 *        | <-- GO {list, helpers} ----------- |
 *        | <====== its shares, reduced =====> |   with all of the list
 *
 * A helper is in no roll, has no vote, and nobody waits for it. One that is lost in a round costs
 * what a member costs that is: the round is made again. Members that saw it list no helpers then
 * for twenty times as long as the round took, so that helpers that fail cost little.
 *
 * Loop thread. All options are borrowed.
 */
#ifndef HTH_COLLAB_HELPER_H
#define HTH_COLLAB_HELPER_H

#include "collab/collab.h"

struct hth_roll_helper;

/* Options as the trainers' have them, as far as a helper needs them. `on_round`: one has ended.
 * Errors: E_CONFIG (no address, no floats), those of a board. */
enum hth_err hth_roll_helper_new(struct hth_env *env, struct hth_rpc *rpc,
                                 const struct hth_collab_opts *opts, hth_fn *on_round, void *arg,
                                 struct hth_roll_helper **out) HTH_MUST;
/* Leaves rounds that are under way. NULL is fine. */
void hth_roll_helper_free(struct hth_roll_helper *helper);
/* Is READY no more; rounds that are under way end. */
void hth_roll_helper_rest(struct hth_roll_helper *helper);

struct hth_roll_helper_stats {
    uint64_t step;                      /* of the latest record of a caller */
    struct hth_averager_stats averages; /* of rounds that it reduced in */
};
void hth_roll_helper_stats(const struct hth_roll_helper *helper, struct hth_roll_helper_stats *out);

#endif
