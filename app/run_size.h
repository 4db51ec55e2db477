/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_size.h: how large the experts and the trunk of a run are, without making them.
 *
 * In memory: weights, gradients, moments, and at most two copies of the weights in the kernels'
 * order. On the disk: weights and moments.
 *
 * Any thread.
 */
#ifndef HTH_APP_RUN_SIZE_H
#define HTH_APP_RUN_SIZE_H

#include "cli/runfile.h"

struct hth_run_size {
    uint64_t parameters, memory, disk; /* the last two in bytes */
};

struct hth_run_sizes {
    struct hth_run_size expert, trunk;
    uint64_t experts; /* of all grids; 0: the run has none */
};

/* `path` is the run file's name in messages. Errors, printed: E_CONFIG (sizes that no expert or
 * trunk can have). */
enum hth_err hth_run_sizes(const char *path, const struct hth_runfile *run,
                           struct hth_run_sizes *out) HTH_MUST;

#endif
