/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.h: a peer with a good link and neither data nor experts, which reduces for a run's
 * trainers.
 *
 * A helper is a member of the trainers' groups, has no values, and reduces as large a share of each
 * vector as its link allows, so that the trainers' shares become smaller (averaging/shares.h). It
 * holds its share while a round lasts, and no state of the run. When it dies, the members keep
 * their own values of that share for one round.
 *
 * It follows the trainers. If they step by themselves, it takes part in each round of the
 * parameters. If they share batches, it asks one after the other of those who say that they call
 * (collab/heads.h), and is READY there, with the flag HELPS. The caller holds that as it holds its
 * members' READYs; its GO lists the helpers behind the members, and is the answer:
 *
 *     helper                             caller
 *        | --- READY {helps, up} -----------> |   held; at most HTH_ROLL_HELPERS_MAX
 *        | <-- WAIT ------------------------- |   "still here"
 *        | <-- MOVE {the caller} ------------ |   from a member that does not call
 *        | <-- GO {list, helpers} ----------- |
 *        | <====== its shares, reduced =====> |   with all of the list
 *
 * It is in no roll, has no vote, and nobody waits for it: population, grid and quorum are counted
 * without it. One that is lost in a round costs what a member costs that is: the round is made
 * again. Members that saw it list no helpers then for twenty times as long as the round took, so
 * that helpers that fail cost little.
 *
 * Loop thread. Averager and roster are borrowed; the averager's mode and the roster's flags say
 * that this is a helper. The helper sets the averager's callback.
 */
#ifndef HTH_TRAINER_HELPER_H
#define HTH_TRAINER_HELPER_H

#include "averaging/averager.h"
#include "core/env.h"
#include "trainer/model.h"
#include "trainer/share.h"
#include "trainer/trainer.h"

struct hth_helper;
struct hth_rpc;

struct hth_helper_opts {
    struct hth_model_opts model;  /* of the run: it gives the shapes of averages */
    struct hth_train_optim optim; /* of the run's trunk: it helps only trainers with this one */
    struct hth_share_opts share;  /* of the run, with the roster */
    struct hth_averager *averager;
    struct hth_rpc *rpc; /* of shared batches */
};

/* Errors: E_CONFIG (no address, of shared batches), those of hth_model_new and of its parts. */
enum hth_err hth_helper_new(struct hth_env *env, const struct hth_helper_opts *opts,
                            struct hth_helper **out) HTH_MUST;
/* Leaves rounds that are under way. NULL is allowed. */
void hth_helper_free(struct hth_helper *helper);

/* Takes part in no further rounds and lets those that are under way end. Call it before the helper
 * leaves. */
void hth_helper_quiesce(struct hth_helper *helper);

/* Of the rounds that it reduced in. */
void hth_helper_rounds(const struct hth_helper *helper, struct hth_averager_stats *out);

#endif
