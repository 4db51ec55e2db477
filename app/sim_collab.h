/* SPDX-License-Identifier: Apache-2.0 */
/* sim_collab.h: the two halves of the verb `sim collab`: one seed (sim_collab.c) and many. */
#ifndef HTH_APP_SIM_COLLAB_H
#define HTH_APP_SIM_COLLAB_H

#include "app/sim.h"
#include "app/study.h"
#include "sim/scenario_collab.h"

/* Calm and churned runs of flags->seeds seeds; opts->seed, order and what are not used. Returns an
 * exit code: HTH_EXIT_FAILURE where the aim is not shown to be met. */
int hth_sim_collab_study(const struct hth_collab_opts *opts, const struct hth_study_flags *flags);

#endif
