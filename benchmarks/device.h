/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h: hearth bench kernels --device cuda: measures every kernel of a card beside its floor,
 * and PyTorch's block on the same card if it is installed. A card that can't be used is an error
 * with its reason; the CPU does not replace it, since its figures would answer another question.
 */
#ifndef HTH_BENCHMARKS_DEVICE_H
#define HTH_BENCHMARKS_DEVICE_H

#include "benchmarks/bench.h"

struct hth_bench_card {
    const uint32_t *dims, *rows;
    size_t dim_count, row_count;
    const char *type;   /* fp32, tf32, bf16; NULL: the card's best */
    const char *python; /* NULL: python3; "no": without PyTorch */
};
/* Whether --device names a card. */
bool hth_bench_on_card(const struct hth_bench *b);
/* Returns an exit code. */
int hth_bench_card_run(struct hth_bench *b, const struct hth_bench_card *card);

#endif
