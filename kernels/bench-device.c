/* SPDX-License-Identifier: Apache-2.0 */
/* bench-device.c: the lines of a device's table; see bench-device.h. The small operations are in
 * bench-ops.c, the blocks are those of bench.c. */
#include "kernels/bench-device.h"

#include <stdlib.h>

#include "core/mem.h"
#include "kernels/bench-internal.h"

#define REPEATS_MAX 101
#define COPY_BYTES  ((size_t)256 << 20)
#define BLOCKS_MAX  256u

double hth_bench_floor_us(double flops, double bytes, const struct hth_bench_rates *rates)
{
    if (flops > 0)
        return rates->flops_per_s > 0 ? flops / rates->flops_per_s * 1e6 : 0;
    return rates->bytes_per_s > 0 ? bytes / rates->bytes_per_s * 1e6 : 0;
}

double hth_bench_fraction(const struct hth_bench_line *line)
{
    return line->us > 0 ? line->floor_us / line->us : 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double hth_bench_middle(double *us, uint32_t count)
{
    if (count == 0)
        return 0;
    qsort(us, count, sizeof(us[0]), by_value);
    return count % 2 == 1 ? us[count / 2] : (us[count / 2 - 1] + us[count / 2]) / 2;
}

/* -- timing -------------------------------------------------------------------------------- */

enum hth_err hth_bench_once_us(const struct hth_bench_timer *t, struct hth_exec *ex,
                               hth_bench_fn *fn, void *arg, double *us)
{
    int64_t start = t->clock_us(t->clock_arg);
    bool stamped = hth_exec_stamp(ex, false) == HTH_OK;
    HTH_TRY(fn(arg));
    if (stamped)
        HTH_TRY(hth_exec_stamp(ex, true));
    HTH_TRY(hth_exec_sync(ex));
    if (stamped)
        return hth_exec_stamped_us(ex, us);
    int64_t spent = t->clock_us(t->clock_arg) - start;
    *us = (double)HTH_MAX(spent, 1);
    return HTH_OK;
}

enum hth_err hth_bench_median_us(const struct hth_bench_timer *t, struct hth_exec *ex,
                                 hth_bench_fn *fn, void *arg, double *us)
{
    double sample[REPEATS_MAX];
    uint32_t repeats = HTH_MIN(t->repeats > 0 ? t->repeats : 11u, (uint32_t)REPEATS_MAX);
    HTH_TRY(hth_bench_once_us(t, ex, fn, arg, us)); /* warms up */
    for (uint32_t i = 0; i < repeats; i++)
        HTH_TRY(hth_bench_once_us(t, ex, fn, arg, &sample[i]));
    *us = hth_bench_middle(sample, repeats);
    return HTH_OK;
}

/* -- rates --------------------------------------------------------------------------------- */

struct copy {
    struct hth_exec *ex;
    struct hth_view from, to;
};

static enum hth_err run_copy(void *arg)
{
    struct copy *c = arg;
    return hth_cast(c->ex, c->from, c->to);
}

static enum hth_err copy_rate(const struct hth_bench_timer *t,
                              const struct hth_bench_device_options *o, double *bytes_per_s)
{
    const struct hth_backend *be = o->backend;
    size_t bytes = o->copy_bytes > 0 ? o->copy_bytes : COPY_BYTES;
    uint32_t cols = (uint32_t)(bytes / sizeof(float));
    float *a = hth_backend_alloc(be, bytes), *b = hth_backend_alloc(be, bytes);
    struct copy c = {NULL, hth_view_f32(a, 1, cols, cols), hth_view_f32(b, 1, cols, cols)};
    double us = 0;
    enum hth_err err = HTH_E_NO_MEMORY;
    if (a == NULL || b == NULL)
        goto out;
    HTH_GOTO(out, hth_exec_new(be, 0, &c.ex));
    HTH_GOTO(out, hth_fill(c.ex, c.from, 1));
    HTH_GOTO(out, hth_fill(c.ex, c.to, 2));
    HTH_GOTO(out, hth_bench_median_us(t, c.ex, run_copy, &c, &us));
    *bytes_per_s = 2.0 * (double)bytes * 1e6 / us;
out:
    hth_exec_free(c.ex);
    hth_backend_free(be, a);
    hth_backend_free(be, b);
    return err;
}

static enum hth_err run_case(void *arg)
{
    return hth_bench_case_launch(arg);
}

/* One case of bench.c. */
static void measure_case(const struct hth_bench_timer *t, const struct hth_bench_options *o,
                         struct hth_bench_line *l)
{
    struct hth_bench_case *c = NULL;
    l->err = hth_bench_case_new(o, &c);
    if (l->err != HTH_OK)
        return;
    l->flops = hth_bench_case_flops(c);
    l->bytes = l->flops > 0 ? 0 : hth_bench_case_bytes(c);
    l->check_error = c->error;
    l->err = hth_bench_median_us(t, c->ex, run_case, c, &l->us);
    hth_bench_case_free(c);
}

static struct hth_bench_options case_of(const struct hth_bench_device_options *o,
                                        enum hth_bench_kind kind, uint32_t dim, uint32_t rows)
{
    return (struct hth_bench_options){.backend = o->backend,
                                      .kind = kind,
                                      .dim = dim,
                                      .rows = HTH_MAX(rows, 1u),
                                      .clock_us = o->clock_us,
                                      .clock_arg = o->clock_arg};
}

/* The best of the widest blocks' products. */
static enum hth_err product_rate(const struct hth_bench_timer *t,
                                 const struct hth_bench_device_options *o, double *flops_per_s)
{
    uint32_t dim = 0, rows = 0;
    enum hth_err err = HTH_OK;
    for (size_t i = 0; i < o->dim_count; i++)
        dim = HTH_MAX(dim, o->dims[i]);
    for (size_t i = 0; i < o->row_count; i++)
        rows = HTH_MAX(rows, o->rows[i]);
    for (int kind = HTH_BENCH_LINEAR_FORWARD; kind <= HTH_BENCH_LINEAR_BACKWARD_WEIGHT; kind++) {
        const struct hth_bench_options c = case_of(o, (enum hth_bench_kind)kind, dim, rows);
        struct hth_bench_line l = {0};
        measure_case(t, &c, &l);
        if (l.err == HTH_OK)
            *flops_per_s = HTH_MAX(*flops_per_s, l.flops * 1e6 / l.us);
        else
            err = l.err;
    }
    return *flops_per_s > 0 ? HTH_OK : err;
}

/* -- many small blocks --------------------------------------------------------------------- */

struct group {
    struct hth_exec *ex;
    uint32_t count, rows, dim;
    struct hth_params *p[BLOCKS_MAX];
    struct hth_ffn ffn[BLOCKS_MAX];
    struct hth_ffn_entry entry[BLOCKS_MAX];
    float *memory;
    bool together;
};

static enum hth_err run_group(void *arg)
{
    struct group *g = arg;
    for (uint32_t i = 0; i < g->count; i++)
        hth_params_zero_grads(g->p[i]);
    if (g->together) {
        HTH_TRY(hth_ffn_forward_many(g->ex, g->entry, g->count));
        return hth_ffn_backward_many(g->ex, g->entry, g->count);
    }
    for (uint32_t i = 0; i < g->count; i++) {
        const struct hth_ffn_entry *e = &g->entry[i];
        HTH_TRY(hth_ffn_forward(g->ex, e->ffn, e->x, e->y, e->saved));
        HTH_TRY(hth_ffn_backward(g->ex, e->ffn, e->x, e->saved, e->dy, e->dx));
    }
    return HTH_OK;
}

static enum hth_err make_group(const struct hth_backend *be, struct group *g)
{
    const struct hth_ffn_options shape = {.dim = g->dim};
    struct hth_seal_options seal = {.state_slots = 0};
    for (uint32_t i = 0; i < g->count; i++) {
        seal.stream = i;
        HTH_TRY(hth_params_new(be, &g->p[i]));
        HTH_TRY(hth_ffn_declare(g->p[i], &shape, &g->ffn[i]));
        HTH_TRY(hth_params_seal(g->p[i], &seal));
    }
    uint32_t ld = hth_ld_f32(g->dim);
    size_t one = (size_t)g->rows * ld, saved = hth_ffn_saved_bytes(&g->ffn[0], g->rows);
    size_t floats = 4 * one + saved / sizeof(float);
    size_t scratch = hth_ffn_scratch_bytes(be, &g->ffn[0], g->rows);
    HTH_TRY(hth_exec_new(be, scratch, &g->ex));
    HTH_TRY(
        hth_exec_reserve(g->ex, hth_ffn_many_scratch_bytes(g->ex, &g->ffn[0], g->rows, g->count)));
    g->memory = hth_backend_alloc(be, g->count * floats * sizeof(float));
    if (g->memory == NULL)
        return HTH_E_NO_MEMORY;
    for (uint32_t i = 0; i < g->count; i++) {
        float *at = g->memory + i * floats;
        g->entry[i] = (struct hth_ffn_entry){
            .ffn = &g->ffn[i],
            .x = hth_view_f32(at, g->rows, g->dim, ld),
            .y = hth_view_f32(at + one, g->rows, g->dim, ld),
            .dy = hth_view_f32(at + 2 * one, g->rows, g->dim, ld),
            .dx = hth_view_f32(at + 3 * one, g->rows, g->dim, ld),
            .saved = at + 4 * one,
        };
        HTH_TRY(hth_fill(g->ex, g->entry[i].x, 0.5f));
        HTH_TRY(hth_fill(g->ex, g->entry[i].dy, 0.25f));
    }
    return HTH_OK;
}

static void free_group(const struct hth_backend *be, struct group *g)
{
    hth_exec_free(g->ex);
    hth_backend_free(be, g->memory);
    for (uint32_t i = 0; i < g->count; i++)
        hth_params_free(g->p[i]);
    hth_free(g);
}

/* Forward and backward of all blocks: one by one, and together. */
static void measure_group(const struct hth_bench_timer *t, const struct hth_bench_device_options *o,
                          const struct hth_bench_rates *rates, uint32_t dim)
{
    struct group *g = hth_new(struct group);
    g->count = HTH_MIN(o->blocks > 0 ? o->blocks : 64u, BLOCKS_MAX);
    g->rows = o->block_rows > 0 ? o->block_rows : 32;
    g->dim = dim;
    enum hth_err err = make_group(o->backend, g);
    for (int together = 0; together < 2; together++) {
        struct hth_bench_line l = {.op = together ? "ffn_many_together" : "ffn_many_one_by_one",
                                   .dim = dim,
                                   .rows = g->count * g->rows,
                                   .err = err,
                                   .check_error = -1};
        g->together = together != 0;
        l.flops = 48.0 * l.rows * (double)dim * dim; /* six products of rows x d x 4 d */
        if (err == HTH_OK)
            l.err = hth_bench_median_us(t, g->ex, run_group, g, &l.us);
        l.floor_us = hth_bench_floor_us(l.flops, 0, rates);
        o->on_line(o->arg, &l);
    }
    free_group(o->backend, g);
}

/* -- the table ----------------------------------------------------------------------------- */

static void measure_blocks(const struct hth_bench_timer *t,
                           const struct hth_bench_device_options *o,
                           const struct hth_bench_rates *rates, uint32_t dim)
{
    for (int kind = 0; kind <= HTH_BENCH_ADAMW; kind++) {
        bool flat = hth_bench_kind_is_flat((enum hth_bench_kind)kind);
        if (!hth_bench_kind_multiplies((enum hth_bench_kind)kind) && !flat)
            continue; /* bench-ops.c has those */
        for (size_t r = 0; r < (flat ? 1 : o->row_count); r++) {
            const struct hth_bench_options c =
                case_of(o, (enum hth_bench_kind)kind, dim, flat ? 1 : o->rows[r]);
            struct hth_bench_line l = {
                .op = hth_bench_kind_name(c.kind), .dim = dim, .rows = flat ? 0 : c.rows};
            measure_case(t, &c, &l);
            l.floor_us = hth_bench_floor_us(l.flops, l.bytes, rates);
            o->on_line(o->arg, &l);
        }
    }
}

enum hth_err hth_bench_device(const struct hth_bench_device_options *o)
{
    const struct hth_bench_timer timer = {o->repeats, o->clock_us, o->clock_arg};
    struct hth_bench_rates rates = {0};
    if (o->clock_us == NULL || o->dim_count == 0 || o->row_count == 0 || o->on_line == NULL)
        return HTH_E_CONFIG;
    HTH_TRY(copy_rate(&timer, o, &rates.bytes_per_s));
    HTH_TRY(product_rate(&timer, o, &rates.flops_per_s));
    if (o->on_rates != NULL)
        o->on_rates(o->arg, &rates);
    for (size_t d = 0; d < o->dim_count; d++) {
        for (size_t r = 0; r < o->row_count; r++)
            hth_bench_ops(&timer, o, &rates, o->dims[d], o->rows[r]);
        measure_blocks(&timer, o, &rates, o->dims[d]);
        measure_group(&timer, o, &rates, o->dims[d]);
    }
    return HTH_OK;
}
