/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.h: the measured speed of a machine, as tables. With it a simulated node takes as long for
 * small and large batches as that machine did.
 *
 * `hearth bench --profile` measures and writes one; people may write or edit them:
 *
 *     name: desktop
 *     workers: 2               # compute threads beside each other
 *     gflops: 41               # of work that no table knows, each worker
 *     gbytes_per_s: 9.5        # rows and vectors that are only moved, each worker
 *     overhead_us: 15          # of handing over one job
 *     forward:                 # an ffn expert of width d, one batch of so many rows: microseconds
 *       - { d: 256, rows: 1, us: 30 }
 *       - { d: 256, rows: 64, us: 410 }
 *     backward:                # the forward again, then input and weight gradients
 *       - { d: 256, rows: 64, us: 1300 }
 *     step:                    # one step of its optimiser
 *       - { d: 256, us: 380 }
 *
 * In each table d rises, and for equal d rows rise. The lookup uses a job's counts (struct
 * hth_job_work): operations per row stand for the width (16 d^2 forward, 48 d^2 backward; 12 for
 * each of the 8 d^2 + 7 d weights of a step), so that experts of other kinds and widths find a
 * place, too. Between rows the time follows a power law through both neighbours; between widths the
 * time per operation does. Beyond the largest number of rows the time per row stays; below the
 * smallest the time of the whole batch, as its weights are read all the same; beyond the widths the
 * time per operation.
 *
 * A profile is constant after it was made: any thread may read it.
 */
#ifndef HTH_SIM_PROFILE_H
#define HTH_SIM_PROFILE_H

#include "core/env.h"
#include "sim/params.h"

#define HTH_PROFILE_ERROR_MAX 512
#define HTH_PROFILE_NAME_MAX  127
#define HTH_PROFILE_D_MAX     65536
#define HTH_PROFILE_ROWS_MAX  1048576

struct hth_profile_point {
    uint32_t d;
    uint32_t rows; /* 1 for a step */
    double us;
};

struct hth_profile_table {
    struct hth_profile_point *points;
    uint32_t count; /* 0: this kind was not measured */
};

struct hth_profile {
    char *name;
    uint32_t workers;
    double gflops, gbytes_per_s, overhead_us;
    struct hth_profile_table forward, backward, step;
};

/* Check all values. Errors: E_RANGE; `error` names the value and its limits. */
enum hth_err hth_profile_check(const struct hth_profile *profile, char *error,
                               size_t error_max) HTH_MUST;
/* Seconds of the work on one worker; 0 for no work. A kind that was not measured takes its
 * operations at `gflops`. */
double hth_profile_s(const struct hth_profile *profile, enum hth_work_kind kind,
                     const struct hth_job_work *work);
/* Give a device these processors; its links and disk stay. The profile is borrowed. */
void hth_profile_apply(const struct hth_profile *profile, struct hth_device *device);

/* Parse the text above (profile_file.c, in hth_scenarios), strictly: unknown keys, values of the
 * wrong kind and out of range are errors whose text has file, line and key. The bytes may be
 * hostile. Errors: E_CONFIG, E_TOO_LARGE (HTH_PROFILE_BYTES_MAX). */
enum hth_err hth_profile_parse(const char *name, const uint8_t *data, size_t len,
                               struct hth_profile **out,
                               char error[HTH_PROFILE_ERROR_MAX]) HTH_MUST;
/* Free a profile of hth_profile_parse. NULL is fine. */
void hth_profile_free(struct hth_profile *profile);

#endif
