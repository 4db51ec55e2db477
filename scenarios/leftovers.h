/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftovers.h: what every scenario asks of its nodes: who died freed all it had, and who is down
 * holds nothing.
 */
#ifndef HTH_SCENARIOS_LEFTOVERS_H
#define HTH_SCENARIOS_LEFTOVERS_H

#include "sim/world.h"

#define HTH_LEFTOVERS_TEXT_MAX 160

/* False, and a sentence in why, when something was left behind by a halt so far or is held by a
 * node that is down. */
bool hth_world_is_tidy(struct hth_world *world, char why[HTH_LEFTOVERS_TEXT_MAX]);

#endif
