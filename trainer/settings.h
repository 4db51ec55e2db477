/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings.h: what trainers of one run must have alike, and who has it otherwise.
 *
 * A *setting* is a hash of settings that belong together. All settings of a trainer, hashed once
 * more with what is averaged, are the *schema* of its offers (averaging/averager.h): who differs in
 * one setting never averages with the others, fetches no state from them and does not count as one
 * of them. The settings themselves go along in its roster note, so that each side can say what
 * differs.
 *
 *   term        settings                                                         in
 *   MODEL       what hth_model_schema covers (kind, widths, grid, names and      both modes
 *               shapes of all weights), and the seed they are drawn from
 *   MODE        local or batch; whether the optimiser's states are averaged      both
 *   OPTIMIZER   kind                                                             both
 *               its numbers, schedule (total included), clipping                 BATCH
 *   BATCH       target, quorum, every, delayed                                   BATCH
 *   GRID        a fixed grid, members of a group, bound of shares: `meeting` of  both
 *               the options
 *
 * In a BATCH run everybody takes the same step on the same gradient: with another rate, or another
 * idea of when a batch is whole, trunks part at once and for good. Trainers that step by themselves
 * come together with each average whatever their steps were, so a LOCAL run leaves rate and pace to
 * each; only states of another kind of optimiser would be no use to a newcomer.
 *
 * What may differ in both: rows, flights, how long a trainer goes on (its number of updates is not
 * the schedule's `total`), the types it computes in, formats on the wire (each sender's choice),
 * its data. Loop thread; pure but for hth_settings_set.
 */
#ifndef HTH_TRAINER_SETTINGS_H
#define HTH_TRAINER_SETTINGS_H

#include "averaging/roster.h"
#include "trainer/trainer.h"

struct hth_model;

enum hth_setting {
    HTH_SETTING_MODEL,
    HTH_SETTING_MODE,
    HTH_SETTING_OPTIMIZER,
    HTH_SETTING_BATCH,
    HTH_SETTING_GRID,
};
_Static_assert(HTH_SETTING_GRID + 1 == HTH_ROSTER_SETTINGS, "a note has room for each");

struct hth_settings {
    uint64_t hash[HTH_ROSTER_SETTINGS];
};

void hth_settings_of(const struct hth_model *model, const struct hth_train_optim *optim,
                     const struct hth_share_opts *share, struct hth_settings *out);
/* The schema of offers with that ticket. */
uint64_t hth_settings_schema(const struct hth_settings *settings, uint32_t ticket);
/* This peer's, of which it tells the others: the schema is that of `ticket`. */
void hth_settings_set(struct hth_roster *roster, const struct hth_settings *settings,
                      uint32_t ticket);

/* Trainers under the run's name that have a state and other settings than this peer. Not those
 * without a schema: who has none has made no model yet, and says nothing of its settings. */
struct hth_other_settings {
    uint32_t trainers;
    char differ[128]; /* what the most alike of them has otherwise, by the run file's keys */
};
void hth_settings_others(const struct hth_roster *roster, struct hth_other_settings *out);

#endif
