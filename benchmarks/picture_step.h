/* SPDX-License-Identifier: Apache-2.0 */
/*
 * picture_step.h: one training step of a picture model, the run of runs/emoji-dense.yaml, beside
 * the same model in PyTorch: forward, loss, backward, clipping and AdamW on a micro-batch, on one
 * thread each, in turns. PyTorch may use fp32 or bf16; the faster one counts.
 */
#ifndef HTH_BENCHMARKS_PICTURE_STEP_H
#define HTH_BENCHMARKS_PICTURE_STEP_H

#include "benchmarks/bench.h"

/* Prints the row "samples/s": value ours, peer PyTorch's (0: there is none), ratio value / peer.
 * Errors: those of the run file and of the model. */
enum hth_err hth_bench_picture_step(struct hth_bench *b) HTH_MUST;

#endif
