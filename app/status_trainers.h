/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_trainers.h: the part of hearth status that shows a run's trainers: how far each is, where
 * it stands in the averaging grid, and how its last round went, as they say in the roster.
 */
#ifndef HTH_APP_STATUS_TRAINERS_H
#define HTH_APP_STATUS_TRAINERS_H

#include "core/env.h"

#include <jansson.h>

struct hth_dht;
struct hth_roster;

/* An onlooker's roster. Errors: those of hth_roster_new. */
enum hth_err hth_status_trainers_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                                     struct hth_roster **out) HTH_MUST;
/* Nothing where nobody says anything. */
void hth_status_trainers_print(const struct hth_roster *roster);
/* As an array. At most HTH_AVG_STATUS_MEMBERS of a trainer's last group are named. */
json_t *hth_status_trainers_json(const struct hth_roster *roster);

#endif
