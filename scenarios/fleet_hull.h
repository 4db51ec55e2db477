/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fleet_hull.h (internal): checks the averages of parameters (LOCAL).
 *
 * A mean of vectors lies, element by element, between the least and the greatest of them. So a
 * *hull* keeps the recent offers of all peers, and compares each average with the offers that can
 * be in it: those of its kind and schema that were made within the time of a sweep. A wrapper
 * around the averager's table sees both. Ghosts have no elements and are not checked.
 */
#ifndef HTH_SCENARIOS_FLEET_HULL_H
#define HTH_SCENARIOS_FLEET_HULL_H

#include "averaging/averager.h"
#include "scenarios/fleet.h"

struct hth_hull;

/* Make a hull. broken(arg, text) gets each value that lies outside. */
struct hth_hull *hth_hull_new(struct hth_world *world, void (*broken)(void *arg, const char *text),
                              void *arg);
void hth_hull_free(struct hth_hull *hull);
/* Wrap `inner`, which is borrowed and stays its owner's; the result borrows the hull and need not
 * be freed. `slot` identifies the peer: a later watch of a slot replaces an earlier one. */
void hth_hull_watch(struct hth_hull *hull, uint32_t slot, struct hth_averager *inner,
                    struct hth_averager *out);
/* Number of averages that were checked against their hull. */
uint64_t hth_hull_checked(const struct hth_hull *hull);

#endif
