/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quicker.h: chooses the type of products where nothing but `auto` says it: the one whose
 * instruction is quicker on this processor (kernels/peak.h). Twice as many numbers in a register do
 * not make it so: on some processors the instruction for bf16 starts half or a quarter as often.
 *
 * Any thread; the first call belongs to the start of the program, before threads, because it asks
 * for the tiles of AMX (kernels/amx.h). It keeps one core busy for about 4 ms, always less than 20.
 */
#ifndef HTH_CLI_QUICKER_H
#define HTH_CLI_QUICKER_H

#include "kernels/backend.h"

struct hth_quicker_type {
    const char *isa; /* its best table here, static; NULL: there is none */
    double gflops;   /* the peak of one core, from registers */
};

struct hth_quicker {
    struct hth_quicker_type fp32, bf16;
    enum hth_matmul chosen; /* fp32 or bf16 */
};

/* Measures both types in turns; the median of three counts. Processor time, not the wall's, so that
 * a busy machine chooses as an idle one. */
void hth_quicker_measure(struct hth_quicker *q);
#define HTH_QUICKER_TEXT 160
/* "bf16: one core multiplies 234 GFLOP/s (avx512bf16), in fp32 117 (avx512)". Returns `out`. */
const char *hth_quicker_text(const struct hth_quicker *q, char out[HTH_QUICKER_TEXT]);
/* One sentence on the tiles of AMX: whether they are offered, or why not. Static. */
const char *hth_quicker_tiles(void);

#endif
