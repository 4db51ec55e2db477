/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftovers.h: the check that every scenario makes of its nodes: a crashed node freed all its
 * objects, and a node that is down holds none.
 */
#ifndef HTH_SCENARIOS_LEFTOVERS_H
#define HTH_SCENARIOS_LEFTOVERS_H

#include "sim/world.h"

#define HTH_LEFTOVERS_TEXT_MAX 160

/* Return false, with a sentence in why, when a halt has left objects behind or a node that is down
 * holds some. */
bool hth_world_is_tidy(struct hth_world *world, char why[HTH_LEFTOVERS_TEXT_MAX]);

#endif
