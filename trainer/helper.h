/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.h: somebody with a good line and neither data nor experts, who reduces for a run's
 * trainers.
 *
 * A helper is in the groups of the trainers, brings no values, and computes as large a part of each
 * average as its line allows; theirs become smaller by that (averaging/shares.h). It holds its part
 * of a vector while a round lasts, and no state of the run. When it dies, that part keeps its local
 * values for one round.
 *
 * It goes where the trainers go. Where they step by themselves it looks in each round of the
 * parameters. Where they share batches it follows the step that the middle one of them is at, looks
 * when the batch is about to be full (the gradients), and once more in steps whose parameters are
 * averaged. It is nobody's reason to wait longer than for a trainer: the population, the grid and
 * the quorum are counted without it.
 *
 * Loop thread. Averager and roster are borrowed; the averager's mode and the roster's flags say
 * that this is a helper. The table's callback is taken.
 */
#ifndef HTH_TRAINER_HELPER_H
#define HTH_TRAINER_HELPER_H

#include "averaging/averager.h"
#include "core/env.h"
#include "trainer/model.h"
#include "trainer/share.h"
#include "trainer/trainer.h"

struct hth_backend;
struct hth_helper;

struct hth_helper_opts {
    const struct hth_backend *backend; /* NULL: the reference back end; it computes nothing */
    struct hth_model_opts model;       /* of the run: what is averaged has its shapes */
    struct hth_train_optim optim;      /* of the run's trunk: trainers with another are not its */
    struct hth_share_opts share;       /* of the run; with the roster */
    struct hth_averager *averager;
};

/* Errors: E_CONFIG (no roster, no averager), those of hth_model_new. */
enum hth_err hth_helper_new(struct hth_env *env, const struct hth_helper_opts *opts,
                            struct hth_helper **out) HTH_MUST;
/* Leaves rounds that are under way. NULL is fine. */
void hth_helper_free(struct hth_helper *helper);
/* The roster has changed: looks at once. */
void hth_helper_nudge(struct hth_helper *helper);

/* Looks for nothing any more, and lets what is under way end: before it leaves. */
void hth_helper_quiesce(struct hth_helper *helper);

struct hth_helper_stats {
    uint64_t step;                 /* of the trainers; shared batches only */
    uint64_t rounds, rounds_missed; /* offers that ended in a group, and those in vain */
};
void hth_helper_stats(const struct hth_helper *helper, struct hth_helper_stats *out);

#endif
