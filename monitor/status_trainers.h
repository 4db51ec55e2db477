/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_trainers.h: shows a run's trainers in hearth status: progress, cell in the averaging grid,
 * and last round of each, by its own record in the roster.
 *
 * Loop thread.
 */
#ifndef HTH_MONITOR_STATUS_TRAINERS_H
#define HTH_MONITOR_STATUS_TRAINERS_H

#include "core/env.h"

#include <jansson.h>

struct hth_dht;
struct hth_roster;

/* A roster that watches and publishes nothing; free it with hth_roster_free. Errors: those of
 * hth_roster_new. */
enum hth_err hth_status_trainers_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                                     struct hth_roster **out) HTH_MUST;
/* Prints nothing if the roster is NULL or empty. */
void hth_status_trainers_print(const struct hth_roster *roster);
/* The same as an array; at most HTH_AVG_STATUS_MEMBERS of a trainer's last group are named. */
json_t *hth_status_trainers_json(const struct hth_roster *roster);

#endif
