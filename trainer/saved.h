/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saved.h: checkpoints that stay when newer ones are written: the last N, and the best by its
 * test loss.
 *
 *   DIR/trunk.safetensors, DIR/experts/     the last one (trained.h)
 *   DIR/kept/<step>/...                     the same two of that step
 *   DIR/kept/kept.safetensors               no tensors; its metadata says which steps there are
 *                                           (hearth.steps, rising) and which is the best
 *                                           (hearth.best, hearth.best_loss)
 *
 * A step is written before the list names it, and leaves the list before its files go, so that a
 * list never names what is not there. The best is the one with the lowest loss of all evaluations,
 * whatever their number of samples.
 *
 * Files are hostile input. In jobs of the io lane, one at a time; or at the start of a program.
 */
#ifndef HTH_TRAINER_SAVED_H
#define HTH_TRAINER_SAVED_H

#include "core/env.h"
#include "core/limits.h"
#include "data/why.h"

struct hth_saved {
    uint32_t count;
    uint64_t step[HTH_KEPT_MAX + 1]; /* rising; the best may come on top of the last ones */
    uint64_t best;                   /* 0: none was evaluated */
    double loss;                     /* of the best */
};

/* Reads the list; an empty one where there is none. Errors: E_CORRUPT, those of reading a file. */
enum hth_err hth_saved_read(struct hth_env *env, const char *dir, struct hth_saved *out) HTH_MUST;
/* Adds a step, whose files are in kept/<step>, and drops what is more than `keep`. `experts` are
 * the names of the files beside the trunk. Errors: those of writing files. */
enum hth_err hth_saved_add(struct hth_env *env, const char *dir, struct hth_saved *kept,
                           uint64_t step, uint32_t keep, const char *const *experts,
                           uint32_t count) HTH_MUST;
/* A step was evaluated: it is the best if no other has a lower loss. Nothing for steps that are not
 * there. Errors: those of writing files. */
enum hth_err hth_saved_judge(struct hth_env *env, const char *dir, struct hth_saved *kept,
                             uint64_t step, double loss) HTH_MUST;

/* The folder of a checkpoint: `which` is "last", "best" or a step, as a number. `last` is the step
 * of DIR itself. `why` says what there is instead. Errors: E_USAGE (no
 * such word), E_NOT_FOUND, and those of the list. */
enum hth_err hth_saved_find(struct hth_env *env, const char *dir, const char *which, uint64_t last,
                            struct hth_why *why, char **out) HTH_MUST;

#endif
