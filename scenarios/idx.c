/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/idx.h"

static void be32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (24 - 8 * i));
}

void hth_sim_idx_heads(uint8_t *images, uint8_t *labels, uint32_t items, uint32_t side)
{
    be32(images, 0x803);
    be32(images + 4, items);
    be32(images + 8, side);
    be32(images + 12, side);
    be32(labels, 0x801);
    be32(labels + 4, items);
}
