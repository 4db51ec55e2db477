/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial.h: trains a run for a second in this process, to guess how fast it will train.
 *
 * A real trainer with real data, all experts included; nothing is saved. It is timed from its first
 * update for a second, or until the update after that, at most a minute in all.
 *
 * Main thread; it blocks.
 */
#ifndef HTH_APP_TRIAL_H
#define HTH_APP_TRIAL_H

#include "cli/runfile.h"

/* Errors: those of hth_trainer_new, E_NO_DEVICE and its like (logged), E_TIMEOUT: no update came
 * in that minute. */
enum hth_err hth_trial(const struct hth_runfile *run, double *samples_per_s) HTH_MUST;

#endif
