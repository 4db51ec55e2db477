/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idx.h: the heads of idx files, as trainer/data.h reads them, for pictures that a scenario makes
 * up. A world of ghosts reads no more than the heads, but the length must be what they say.
 */
#ifndef HTH_SCENARIOS_IDX_H
#define HTH_SCENARIOS_IDX_H

#include "core/base.h"

#define HTH_IDX_IMAGES_HEAD 16 /* then items * side * side bytes */
#define HTH_IDX_LABELS_HEAD 8  /* then items bytes */

/* Of so many square pictures and their labels. */
void hth_sim_idx_heads(uint8_t *images, uint8_t *labels, uint32_t items, uint32_t side);

#endif
