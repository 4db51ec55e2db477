/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fleet_hull.h (internal): watches what averagers give.
 *
 * A mean of vectors lies, element by element, between the least and the greatest of them. So a
 * *hull* keeps what was offered lately, by everybody, and each average is held against the offers
 * that could have been in it: those of its kind and schema that were made within the time a sweep
 * may take. A wrapper around the averager's table sees both. Ghosts have no elements: nothing is
 * looked at.
 */
#ifndef HTH_SCENARIOS_FLEET_HULL_H
#define HTH_SCENARIOS_FLEET_HULL_H

#include "averaging/averager.h"
#include "scenarios/fleet.h"

struct hth_hull;

/* broken(arg, text) is told what was outside. */
struct hth_hull *hth_hull_new(struct hth_world *world, void (*broken)(void *arg, const char *text),
                              void *arg);
void hth_hull_free(struct hth_hull *hull);
/* Puts a watch before `inner`, which is borrowed and stays its owner's; the result borrows the hull
 * and may be dropped without being freed. `slot` says whose it is: a later watch replaces it. */
void hth_hull_watch(struct hth_hull *hull, uint32_t slot, struct hth_averager *inner,
                    struct hth_averager *out);
/* Averages that were held against their hull. */
uint64_t hth_hull_checked(const struct hth_hull *hull);

#endif
