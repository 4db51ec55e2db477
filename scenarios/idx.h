/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idx.h: the headers of idx files, as trainer/data.h reads them, for pictures that a scenario
 * draws. A world of ghosts reads only the headers, but the length must match them.
 */
#ifndef HTH_SCENARIOS_IDX_H
#define HTH_SCENARIOS_IDX_H

#include "core/base.h"

#define HTH_IDX_IMAGES_HEAD 16 /* then items * side * side bytes */
#define HTH_IDX_LABELS_HEAD 8  /* then items bytes */

/* Write the headers of `items` square pictures and of their labels. */
void hth_sim_idx_heads(uint8_t *images, uint8_t *labels, uint32_t items, uint32_t side);

#endif
