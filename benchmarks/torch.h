/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.h: runs PyTorch in a child process, for figures in turns with ours.
 *
 * The child is benchmarks/torch_ffn.py, whose first comment is the protocol. It works only on
 * request, so the two sides never share a core.
 */
#ifndef HTH_BENCHMARKS_TORCH_H
#define HTH_BENCHMARKS_TORCH_H

#include "core/base.h"

struct hth_bench_torch;

/* Starts the script under `python` (NULL: the Python of `hearth bench peers` if that has made one,
 * then python3 of the path, then /usr/bin/python3). NULL: there is no PyTorch, and `why` holds a
 * line for people; else `why` holds the version. */
struct hth_bench_torch *hth_bench_torch_open(const char *python, char why[160]);
/* NULL is fine. */
void hth_bench_torch_close(struct hth_bench_torch *t);
/* Sets the operation of the next runs of that type, "fp32" or "bf16"; each type has its own. False:
 * PyTorch's side does not know it, or is dead. */
bool hth_bench_torch_case(struct hth_bench_torch *t, const char *op, const char *type,
                          uint64_t width, uint32_t rows);
/* Seconds of the fastest of `runs` runs; 0: the child is dead, or the type has no operation. */
double hth_bench_torch_go(struct hth_bench_torch *t, const char *type, uint32_t runs);

#endif
