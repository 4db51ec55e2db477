/* SPDX-License-Identifier: Apache-2.0 */
/*
 * away.c: checks a case in a card's memory against the same case on the CPU.
 *
 * Both start from the same numbers, so their outputs and gradients must agree. The CPU computes
 * only a few rows: a small case of the same width stands for a large one.
 */
#include "benchmarks/kernels/kernels_int.h"

#include <math.h>

#include "core/mem.h"

#define TOLERANCE      1e-4
#define TOLERANCE_TF32 3e-3
#define TOLERANCE_BF16 2e-2

/* ||got - want|| / ||want||; infinite for NaN. */
static double distance(const float *got, const float *want, size_t count)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)got[i] - (double)want[i];
        diff += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    double r = sqrt(diff / (norm > 0 ? norm : 1));
    return isfinite(r) ? r : INFINITY;
}

/* Compares floats of the card's memory with the same floats of the CPU's. */
static enum hth_err compare(struct hth_bench_case *c, const float *there, const float *here,
                            size_t count)
{
    float *copy = hth_try_aligned(count * sizeof(float));
    if (copy == NULL)
        return HTH_E_NO_MEMORY;
    enum hth_err err = hth_exec_download(c->ex, copy, there, count * sizeof(float));
    if (err == HTH_OK)
        err = hth_exec_sync(c->ex);
    if (err == HTH_OK)
        c->error = fmax(c->error, distance(copy, here, count));
    hth_aligned_free(copy);
    return err;
}

static enum hth_err compare_part(struct hth_bench_case *c, struct hth_bench_case *twin,
                                 enum hth_part part)
{
    size_t count = hth_params_flat_len(c->params);
    float *copy = hth_try_aligned(count * sizeof(float));
    if (copy == NULL)
        return HTH_E_NO_MEMORY;
    enum hth_err err = hth_params_export(c->ex, c->params, part, 0, count, copy);
    if (err == HTH_OK)
        c->error = fmax(c->error, distance(copy, hth_params_flat(twin->params, part), count));
    hth_aligned_free(copy);
    return err;
}

double hth_bench_away_tolerance(const struct hth_backend *be)
{
    switch (hth_backend_compute(be)) {
    case HTH_MATMUL_BF16:
        return TOLERANCE_BF16;
    case HTH_MATMUL_TF32:
        return TOLERANCE_TF32;
    default:
        return TOLERANCE;
    }
}

/* Adam's first step divides a gradient by itself, so a gradient that is only rounding may step in
 * different directions. So a training step is compared by its gradients, Adam alone by its
 * values. */
static enum hth_err compare_all(struct hth_bench_case *c, struct hth_bench_case *twin)
{
    HTH_TRY(hth_bench_case_run(c));
    HTH_TRY(hth_bench_case_run(twin));
    if (hth_bench_kind_is_flat(c->options.kind))
        return compare_part(c, twin, HTH_PART_VALUE);
    HTH_TRY(compare(c, c->y.data, twin->y.data, (size_t)c->y.rows * c->y.ld));
    HTH_TRY(compare(c, c->hidden.data, twin->hidden.data, (size_t)c->hidden.rows * c->hidden.ld));
    return compare_part(c, twin, HTH_PART_GRAD);
}

enum hth_err hth_bench_check_away(struct hth_bench_case *c)
{
    struct hth_bench_options options = c->options;
    struct hth_bench_case *twin = NULL;
    enum hth_err err;
    if (c->options.rows > HTH_BENCH_AWAY_ROWS) {
        struct hth_bench_case *small = NULL;
        options.rows = HTH_BENCH_AWAY_ROWS;
        HTH_TRY(hth_bench_case_new(&options, &small));
        c->error = small->error;
        hth_bench_case_free(small);
        return HTH_OK;
    }
    options.team = NULL;
    HTH_TRY(hth_backend_by_name("auto", &options.backend));
    HTH_TRY(hth_bench_case_make(&options, &twin));
    err = compare_all(c, twin);
    hth_bench_case_free(twin);
    HTH_TRY(err);
    double tolerance = c->options.tolerance > 0 ? c->options.tolerance
                                                : hth_bench_away_tolerance(c->options.backend);
    return c->error < tolerance ? HTH_OK : HTH_E_BUG;
}
