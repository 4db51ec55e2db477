/* SPDX-License-Identifier: Apache-2.0 */
/*
 * back.h: the options --roll-back and --disk of hosts and trainers, and what a program does to its
 * checkpoints before it reads them: experts/ring.h has the copies.
 *
 * Main thread, at the start.
 */
#ifndef HTH_APP_BACK_H
#define HTH_APP_BACK_H

#include "core/env.h"

#include <argp.h>

struct hth_back_flags {
    int64_t back_us; /* 0: --roll-back was not given */
    uint64_t disk_bytes;
};

/* Its input is a struct hth_back_flags. */
extern const struct argp hth_back_argp;

/* Removes the temporary files that killed processes left in that folder, its `experts` and its
 * `kept`. The caller has the folder's lock. */
void hth_back_sweep(const char *dir);

/* Does what --roll-back says, in DIR/trunk.safetensors (`trunk`) and DIR/experts (`experts`), and
 * prints it. Files without a copy that is old enough stay, but a trunk that stays is an error, and
 * so is it when all stay. Errors: E_USAGE for these, and those of hth_ring_back, printed. */
enum hth_err hth_back(const struct hth_back_flags *flags, struct hth_env *env, const char *dir,
                      bool trunk, bool experts) HTH_MUST;

#endif
