/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.h: PyTorch as a child process, for figures beside ours taken in turns with them.
 *
 * The child is benchmarks/torch_ffn.py; its first comment is the protocol. It works only while it
 * is asked to, so the two sides never share a core.
 */
#ifndef HTH_BENCHMARKS_TORCH_H
#define HTH_BENCHMARKS_TORCH_H

#include "core/base.h"

struct hth_bench_torch;

/* Starts the script under `python` (NULL: python3 of the path, then /usr/bin/python3). NULL when
 * there is no PyTorch; `why` then holds a line for people, else the version. */
struct hth_bench_torch *hth_bench_torch_open(const char *python, char why[160]);
/* NULL is fine. */
void hth_bench_torch_close(struct hth_bench_torch *t);
/* What the next runs do; false: it does not know the operation, or died. */
bool hth_bench_torch_case(struct hth_bench_torch *t, const char *op, uint64_t width, uint32_t rows);
/* The fastest of so many runs, in seconds; 0 when the child died. */
double hth_bench_torch_go(struct hth_bench_torch *t, uint32_t runs);

#endif
