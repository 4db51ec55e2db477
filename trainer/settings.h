/* SPDX-License-Identifier: Apache-2.0 */
/*
 * settings.h: the settings that all trainers of a run must share, and the trainers that differ.
 *
 * Options that belong together are hashed to one *setting*. All settings of a trainer, hashed again
 * with the kind of offer, are the *schema* of its offers (averaging/averager.h). A trainer that
 * differs in one setting never averages with the others, fetches no state from them and is not
 * counted with them. Its roster record carries the settings, so that both sides can name the
 * difference.
 *
 *   setting     options                                                          mode
 *   MODEL       all that hth_model_schema covers (kind, widths, grid, names and  both modes
 *               shapes of all weights), and the seed they are drawn from
 *   MODE        local or batch; whether the optimiser's states are averaged      both
 *   OPTIMIZER   kind                                                             both
 *               its numbers, schedule (total included), clipping                 BATCH
 *   BATCH       target, delayed, majority, format, clip                          BATCH
 *   GRID        a fixed grid, members of a group, bound of shares: `meeting` of  both
 *               the options
 *
 * In a BATCH run all trainers take the same step on the same gradient: with another rate, or
 * another target, trunks would fork at once and for good. In a LOCAL run each average brings the
 * trunks together, whatever their steps are, so that each trainer may choose rate and pace; but a
 * newcomer could not use the states of another kind of optimiser.
 *
 * In both modes trainers may differ in rows, flights, number of updates (which is not the
 * schedule's `total`), compute types, wire formats (each sender's choice) and data. Loop thread;
 * pure except for hth_settings_set.
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
_Static_assert(HTH_SETTING_GRID + 1 == HTH_ROSTER_SETTINGS, "a record has room for each");

struct hth_settings {
    uint64_t hash[HTH_ROSTER_SETTINGS];
};

void hth_settings_of(const struct hth_model *model, const struct hth_train_optim *optim,
                     const struct hth_share_opts *share, struct hth_settings *out);
/* Kinds of what is averaged. */
enum { HTH_TICKET_PARAMS, HTH_TICKET_GRADIENT };
/* The schema of offers of the kind `ticket`. */
uint64_t hth_settings_schema(const struct hth_settings *settings, uint32_t ticket);
/* Publishes this peer's settings and its schema for `ticket` in the roster. */
void hth_settings_set(struct hth_roster *roster, const struct hth_settings *settings,
                      uint32_t ticket);

/* Trainers of the run that have a state and other settings than this peer. Records without a schema
 * are not counted: such a peer has made no model yet, and its settings are unknown. */
struct hth_other_settings {
    uint32_t trainers;
    char differ[128]; /* the run file's keys in which the most similar of them differs */
};
void hth_settings_others(const struct hth_roster *roster, struct hth_other_settings *out);

#endif
