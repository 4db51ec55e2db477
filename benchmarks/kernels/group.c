/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.c: measures many small blocks, forward and backward, one by one and as a group, for the
 * device's table.
 *
 * Rows and output gradients are random. Before the timing a few blocks are compared, the first and
 * the last among them: each block alone with the same block on the CPU, then the block in the group
 * with the block alone, by y, dx and all gradients.
 */
#include "benchmarks/kernels/kernels_int.h"

#include <math.h>

#include "core/mem.h"

#define BLOCKS_MAX 256u
#define CHECKED    4u

struct bench_group {
    const struct hth_backend *be;
    struct hth_exec *ex;
    uint32_t count, rows, dim;
    struct hth_params *p[BLOCKS_MAX];
    struct hth_ffn ffn[BLOCKS_MAX];
    struct hth_ffn_entry entry[BLOCKS_MAX];
    float *memory;
};

/* -- running ------------------------------------------------------------------------------- */

static enum hth_err run_block(struct bench_group *g, uint32_t i)
{
    const struct hth_ffn_entry *e = &g->entry[i];
    hth_params_zero_grads(g->p[i]);
    HTH_TRY(hth_ffn_forward(g->ex, e->ffn, e->x, e->y, e->saved));
    return hth_ffn_backward(g->ex, e->ffn, e->x, e->saved, e->dy, e->dx);
}

static enum hth_err run_one_by_one(void *arg)
{
    struct bench_group *g = arg;
    for (uint32_t i = 0; i < g->count; i++)
        HTH_TRY(run_block(g, i));
    return HTH_OK;
}

static enum hth_err run_together(void *arg)
{
    struct bench_group *g = arg;
    for (uint32_t i = 0; i < g->count; i++)
        hth_params_zero_grads(g->p[i]);
    HTH_TRY(hth_ffn_forward_many(g->ex, g->entry, g->count));
    return hth_ffn_backward_many(g->ex, g->entry, g->count);
}

/* -- making -------------------------------------------------------------------------------- */

static struct hth_view next(float **at, uint32_t rows, uint32_t cols)
{
    struct hth_view v = hth_view_f32(*at, rows, cols, hth_ld_f32(cols));
    *at += (size_t)rows * v.ld;
    return v;
}

/* Makes weights and rows of block number `stream`, in the memory at `at`. */
static enum hth_err make_rows(struct bench_group *g, uint32_t i, uint32_t stream, float *at)
{
    struct hth_ffn_entry *e = &g->entry[i];
    size_t count = 2 * (size_t)g->rows * hth_ld_f32(g->dim), bytes = count * sizeof(float);
    float *host = hth_try_aligned(bytes), *first = at;
    if (host == NULL)
        return HTH_E_NO_MEMORY;
    hth_bench_numbers(host, count, stream);
    e->ffn = &g->ffn[i];
    e->x = next(&at, g->rows, g->dim);
    e->dy = next(&at, g->rows, g->dim);
    e->y = next(&at, g->rows, g->dim);
    e->dx = next(&at, g->rows, g->dim);
    e->saved = at;
    enum hth_err err = hth_exec_upload(g->ex, first, host, bytes);
    hth_aligned_free(host);
    return err;
}

/* Makes blocks `stream`, `stream` + 1, ... Free them also after an error. */
static enum hth_err make(struct bench_group *g, uint32_t stream)
{
    const struct hth_ffn_options shape = {.dim = g->dim};
    struct hth_seal_options seal = {.state_slots = 0};
    for (uint32_t i = 0; i < g->count; i++) {
        seal.stream = stream + i;
        HTH_TRY(hth_params_new(g->be, &g->p[i]));
        HTH_TRY(hth_ffn_declare(g->p[i], &shape, &g->ffn[i]));
        HTH_TRY(hth_params_seal(g->p[i], &seal));
    }
    size_t saved = hth_ffn_saved_bytes(&g->ffn[0], g->rows) / sizeof(float);
    size_t floats = 4 * (size_t)g->rows * hth_ld_f32(g->dim) + saved;
    HTH_TRY(hth_exec_new(g->be, hth_ffn_scratch_bytes(g->be, &g->ffn[0], g->rows), &g->ex));
    HTH_TRY(
        hth_exec_reserve(g->ex, hth_ffn_many_scratch_bytes(g->ex, &g->ffn[0], g->rows, g->count)));
    g->memory = hth_backend_alloc(g->be, g->count * floats * sizeof(float));
    if (g->memory == NULL)
        return HTH_E_NO_MEMORY;
    for (uint32_t i = 0; i < g->count; i++)
        HTH_TRY(make_rows(g, i, stream + i, g->memory + i * floats));
    return hth_exec_sync(g->ex);
}

static struct bench_group *group_new(const struct hth_backend *be, uint32_t count, uint32_t rows,
                                     uint32_t dim)
{
    struct bench_group *g = hth_new(struct bench_group);
    g->be = be;
    g->count = count;
    g->rows = rows;
    g->dim = dim;
    return g;
}

static void group_free(struct bench_group *g)
{
    hth_exec_free(g->ex);
    hth_backend_free(g->be, g->memory);
    for (uint32_t i = 0; i < g->count; i++)
        hth_params_free(g->p[i]);
    hth_free(g);
}

/* -- the check ----------------------------------------------------------------------------- */

/* Size of a block's results: y and dx, which are adjacent, and its gradients. */
static size_t left_floats(const struct bench_group *g)
{
    return 2 * (size_t)g->rows * hth_ld_f32(g->dim) + hth_params_flat_len(g->p[0]);
}

static enum hth_err take(struct bench_group *g, uint32_t i, float *out)
{
    size_t rows = 2 * (size_t)g->rows * hth_ld_f32(g->dim), flat = hth_params_flat_len(g->p[i]);
    HTH_TRY(hth_exec_download(g->ex, out, g->entry[i].y.data, rows * sizeof(float)));
    HTH_TRY(hth_exec_sync(g->ex));
    return hth_params_export(g->ex, g->p[i], HTH_PART_GRAD, 0, flat, out + rows);
}

/* The larger distance of rows and of gradients; columns beyond the width are padding. */
static double distance(const struct bench_group *g, const float *got, const float *want)
{
    uint32_t ld = hth_ld_f32(g->dim);
    size_t rows = 2 * (size_t)g->rows, start = rows * ld;
    double diff[2] = {0, 0}, norm[2] = {0, 0};
    for (size_t i = 0; i < left_floats(g); i++) {
        int part = i >= start;
        double off = (double)got[i] - (double)want[i];
        if (!part && i % ld >= g->dim)
            continue;
        diff[part] += off * off;
        norm[part] += (double)want[i] * (double)want[i];
    }
    double r = fmax(diff[0] / norm[0], diff[1] / norm[1]);
    return isfinite(diff[0] + diff[1]) && isfinite(r) ? sqrt(r) : INFINITY;
}

struct errors {
    double alone, together;
};

/* Compares block i of the group with the block alone, and that with the CPU. Call run_together
 * first. */
static enum hth_err check_block(struct bench_group *g, uint32_t i, struct errors *e)
{
    const struct hth_backend *cpu;
    size_t bytes = left_floats(g) * sizeof(float);
    float *group = hth_try_aligned(bytes), *alone = hth_try_aligned(bytes);
    float *here = hth_try_aligned(bytes);
    struct bench_group *twin = NULL;
    enum hth_err err = HTH_E_NO_MEMORY;
    if (group == NULL || alone == NULL || here == NULL)
        goto out;
    HTH_GOTO(out, hth_backend_by_name("auto", &cpu));
    twin = group_new(cpu, 1, g->rows, g->dim);
    HTH_GOTO(out, make(twin, i));
    HTH_GOTO(out, run_block(twin, 0));
    HTH_GOTO(out, take(twin, 0, here));
    HTH_GOTO(out, take(g, i, group));
    HTH_GOTO(out, run_block(g, i));
    HTH_GOTO(out, take(g, i, alone));
    e->alone = fmax(e->alone, distance(g, alone, here));
    e->together = fmax(e->together, distance(g, group, alone));
out:
    if (twin != NULL)
        group_free(twin);
    hth_aligned_free(group);
    hth_aligned_free(alone);
    hth_aligned_free(here);
    return err;
}

static enum hth_err check(struct bench_group *g, struct errors *e)
{
    uint32_t checked = HTH_MIN(g->count, CHECKED);
    HTH_TRY(run_together(g));
    HTH_TRY(hth_exec_sync(g->ex));
    for (uint32_t i = 0; i < checked; i++)
        HTH_TRY(check_block(g, checked > 1 ? i * (g->count - 1) / (checked - 1) : 0, e));
    return HTH_OK;
}

/* -- the lines ----------------------------------------------------------------------------- */

void hth_bench_group(const struct hth_bench_timer *t, const struct hth_bench_device_options *o,
                     const struct hth_bench_rates *rates, uint32_t dim)
{
    uint32_t count = HTH_MIN(o->blocks > 0 ? o->blocks : 64u, BLOCKS_MAX);
    struct bench_group *g =
        group_new(o->backend, count, o->block_rows > 0 ? o->block_rows : 32, dim);
    struct errors errors = {0, 0};
    enum hth_err err = make(g, 0);
    if (err == HTH_OK)
        err = check(g, &errors);
    for (int together = 0; together < 2; together++) {
        struct hth_bench_line l = {.op = together ? "ffn_many_together" : "ffn_many_one_by_one",
                                   .dim = dim,
                                   .rows = g->count * g->rows,
                                   .err = err,
                                   .check_error = together ? errors.together : errors.alone};
        l.flops = 48.0 * l.rows * (double)dim * dim; /* six products of rows x d x 4 d */
        if (l.err == HTH_OK && !(l.check_error < hth_bench_away_tolerance(o->backend)))
            l.err = HTH_E_BUG;
        if (l.err == HTH_OK)
            l.err =
                hth_bench_median_us(t, g->ex, together ? run_together : run_one_by_one, g, &l.us);
        l.floor_us = hth_bench_floor_us(l.flops, 0, rates);
        o->on_line(o->arg, &l);
    }
    group_free(g);
}
