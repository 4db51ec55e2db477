/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toy.h: a small task for crews (crew.h) whose steps count, not what they learn: pictures of noise
 * in a few classes, and trainers that share batches on a tiny model with real arithmetic. The
 * experts' learning rate is 0, so that they are equal everywhere and stay so.
 */
#ifndef HTH_SCENARIOS_TOY_H
#define HTH_SCENARIOS_TOY_H

#include "scenarios/crew.h"

#define HTH_TOY_SIDE 4 /* of a picture, where the size of the model does not matter */

struct hth_toy;

/* Draw pictures of side x side pixels and mount them as "images" and "labels". */
struct hth_toy *hth_toy_new(struct hth_world *world, uint32_t side);
/* After the world. */
void hth_toy_free(struct hth_toy *toy);
/* Set up a crew that learns them: one micro-batch of 6 at a time, no evaluation, no last step. The
 * caller adds the sharing's target and the number of members. Each trainer has its own order of the
 * pictures; the trunk has about side * side * model.d parameters. */
void hth_toy_crew(uint32_t side, struct hth_crew_opts *crew);

#endif
