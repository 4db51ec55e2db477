/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amx.h: whether this process may use the tiles of AMX.
 *
 * Tiles are 8 KiB of a thread's state, which Linux saves only for processes that asked: once, for
 * all threads, those that exist and those to come. The first call asks. It belongs to the start of
 * the program, before threads: Linux refuses if a thread's signal stack is too small for the state.
 */
#ifndef HTH_KERNELS_AMX_H
#define HTH_KERNELS_AMX_H

enum hth_amx {
    HTH_AMX_RUNS,
    HTH_AMX_NO_HARDWARE,   /* the processor lacks AMX_TILE, AMX_BF16 or AVX512_BF16 */
    HTH_AMX_NO_PERMISSION, /* the kernel does not save tiles, or refused */
};

/* Any thread; the answer never changes. */
enum hth_amx hth_amx_ask(void);

#endif
