/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed.h: weights in the order in which the kernels read them. docs/kernels.md explains it.
 *
 * A weight W [K, N] of the `packed` back ends has up to two *images*, copies in panels, fp32 or
 * bf16: the forward image serves y = x W, the transposed one dx = dy W^T. An image is made when it
 * first pays and belongs to one version of the values, which hth_params_touched changes. When
 * several passes find it missing, one builds it and the others wait. The transposed image pays from
 * the second block of rows between two steps on; the first block transposes panels of the forward
 * image, with the same bits.
 *
 * An optimiser that has just computed new values can put them into the images while they lie in a
 * cache, so that they need no second pass over memory:
 *
 *     hth_params_touched(p);
 *     for each weight:
 *         if (hth_packed_emit_begin(w)) {
 *             for each tile of HTH_PACKED_TILE x HTH_PACKED_TILE values (less at the edges only):
 *                 hth_packed_emit_tile(w, row0, rows, col0, cols, tile's values, ld);
 *             hth_packed_emit_end(w);
 *         }
 *
 * Thread: emit_begin and emit_end while no other thread uses the set (an optimiser step runs
 * alone); between them, tiles from any threads at once. A begin without an end leaves the images
 * stale, and the next use rebuilds them from the values: correct, only slower.
 */
#ifndef HTH_KERNELS_PACKED_H
#define HTH_KERNELS_PACKED_H

#include "kernels/params.h"

/* Side of the optimiser's tiles: row0 and col0 are multiples of it. */
#define HTH_PACKED_TILE 64

/* False: the weight has no images (none was needed, or another back end): nothing to emit. */
bool hth_packed_emit_begin(struct hth_weight *w);
/* values[r * ld + c] is the value of W at (row0 + r, col0 + c). */
void hth_packed_emit_tile(struct hth_weight *w, uint32_t row0, uint32_t rows, uint32_t col0,
                          uint32_t cols, const float *values, size_t ld);
/* All tiles are emitted: the images belong to the current version of the values. */
void hth_packed_emit_end(struct hth_weight *w);

/* Bytes of the set's images: 0 before the first use, then 2 or 4 bytes per value for each of up to
 * two images (one where every step has a single pass of few rows). */
size_t hth_packed_image_bytes(const struct hth_params *p);

#endif
