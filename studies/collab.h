/* SPDX-License-Identifier: Apache-2.0 */
/* collab.h: the two parts of the verb `sim collab`: one seed (collab.c) and many. */
#ifndef HTH_STUDIES_COLLAB_H
#define HTH_STUDIES_COLLAB_H

#include "scenarios/collab.h"
#include "studies/study.h"
#include "studies/tools.h"

/* Run flags->seeds seeds, calm and with churn; opts->seed, order and case are not used. Returns an
 * exit code: HTH_EXIT_FAILURE when the aim is not shown to be met. */
int hth_sim_collab_study(const struct hth_sim_collab_opts *opts,
                         const struct hth_study_flags *flags);

#endif
