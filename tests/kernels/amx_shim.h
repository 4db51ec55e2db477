/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amx_shim.h: the tiles of AMX in software, for tests on processors without them. The table of
 * kernels is compiled a second time, with these functions for intrinsics (kernels/packed_amxbf16.c,
 * HTH_AMX_SHIM), and a test that links hth_amx_shim has it in place of the real one, as if this
 * processor had tiles.
 *
 * They compute as Intel's manual says: for each element, pairs in rising order, lower and upper
 * halves summed apart from zero in fp32, then both added to C; denormals count as zero and become
 * zero. Each thread has its own tiles. A use that the processor would refuse with a signal ends the
 * test: a tile that is not configured, shapes that do not fit.
 */
#ifndef HTH_TESTS_KERNELS_AMX_SHIM_H
#define HTH_TESTS_KERNELS_AMX_SHIM_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/amx.h"

#define _tile_loadconfig(config)            amx_shim_load_config(config)
#define _tile_release()                     amx_shim_release()
#define _tile_zero(tile)                    amx_shim_zero(tile)
#define _tile_loadd(tile, at, bytes)        amx_shim_load(tile, at, bytes)
#define _tile_stream_loadd(tile, at, bytes) amx_shim_load(tile, at, bytes)
#define _tile_stored(tile, at, bytes)       amx_shim_store(tile, at, bytes)
#define _tile_dpbf16ps(c, a, b)             amx_shim_dot(c, a, b)

void amx_shim_load_config(const void *config);
void amx_shim_release(void);
void amx_shim_zero(int tile);
void amx_shim_load(int tile, const void *at, size_t row_bytes);
void amx_shim_store(int tile, void *at, size_t row_bytes);
void amx_shim_dot(int c, int a, int b);

/* The answer of hth_amx_ask, in place of the processor's and the kernel's. */
void amx_shim_answer(enum hth_amx answer);
/* True while this thread's tiles are configured: the kernel would save them. */
bool amx_shim_is_configured(void);
/* Products of tiles of this thread so far. */
size_t amx_shim_dots(void);

#endif
