/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c: makes the lines of a device's table. The small operations are in ops.c, groups of small
 * blocks in group.c, and the blocks are the cases of bench.c.
 */
#include "benchmarks/kernels/device.h"

#include <stdlib.h>

#include "core/mem.h"
#include "kernels/backend_int.h"
#include "benchmarks/kernels/kernels_int.h"

#define REPEATS_MAX 101
#define COPY_BYTES  ((size_t)256 << 20)

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

static enum hth_err run_bare_copy(void *arg)
{
    struct copy *c = arg;
    return c->ex->be->bare_copy(c->ex, c->to.data, c->from.data,
                                (size_t)c->from.cols * sizeof(float));
}

/* The rate of our own copy or the driver's, whichever is faster. */
static enum hth_err copy_rate(const struct hth_bench_timer *t,
                              const struct hth_bench_device_options *o, double *bytes_per_s)
{
    const struct hth_backend *be = o->backend;
    size_t bytes = o->copy_bytes > 0 ? o->copy_bytes : COPY_BYTES;
    uint32_t cols = (uint32_t)(bytes / sizeof(float));
    float *a = hth_backend_alloc(be, bytes), *b = hth_backend_alloc(be, bytes);
    struct copy c = {NULL, hth_view_f32(a, 1, cols, cols), hth_view_f32(b, 1, cols, cols)};
    double us = 0, bare_us = 0;
    enum hth_err err = HTH_E_NO_MEMORY;
    if (a == NULL || b == NULL)
        goto out;
    HTH_GOTO(out, hth_exec_new(be, 0, &c.ex));
    HTH_GOTO(out, hth_fill(c.ex, c.from, 1));
    HTH_GOTO(out, hth_fill(c.ex, c.to, 2));
    HTH_GOTO(out, hth_bench_median_us(t, c.ex, run_copy, &c, &us));
    if (be->bare_copy != NULL) {
        HTH_GOTO(out, hth_bench_median_us(t, c.ex, run_bare_copy, &c, &bare_us));
        us = HTH_MIN(us, bare_us);
    }
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

/* Measures one case of bench.c. */
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

/* A product of the library alone, of operands that are already rounded. */
struct bench_bare {
    struct hth_exec *ex;
    void *memory[3];
    struct hth_view a, b, c;
};

static enum hth_err run_bare(void *arg)
{
    struct bench_bare *p = arg;
    return p->ex->be->bare_product(p->ex, p->a, p->b, p->c);
}

/* Makes a matrix of random numbers in [-1, 1): a card's time for a product depends on the
 * values. */
static enum hth_err make_operand(struct bench_bare *p, int i, struct hth_view *v)
{
    size_t count = (size_t)v->rows * v->ld, bytes = count * sizeof(float);
    float *host = hth_try_aligned(bytes), *room = hth_backend_alloc(p->ex->be, bytes);
    enum hth_err err = HTH_E_NO_MEMORY;
    v->data = p->memory[i] = hth_backend_alloc(p->ex->be, bytes);
    if (host == NULL || room == NULL || v->data == NULL)
        goto out;
    hth_bench_numbers(host, count, (uint64_t)i);
    HTH_GOTO(out, hth_exec_upload(p->ex, room, host, bytes));
    HTH_GOTO(out, hth_cast(p->ex, hth_view_f32(room, v->rows, v->cols, v->ld), *v));
    HTH_GOTO(out, hth_exec_sync(p->ex));
out:
    hth_backend_free(p->ex->be, room);
    hth_aligned_free(host);
    return err;
}

/* [rows, k] x [k, n] */
static enum hth_err bare_rate(const struct hth_bench_timer *t, const struct hth_backend *be,
                              uint32_t rows, uint32_t k, uint32_t n, double *flops_per_s)
{
    enum hth_dtype type = hth_backend_compute(be) == HTH_MATMUL_BF16 ? HTH_BF16 : HTH_F32;
    struct bench_bare p = {.a = {NULL, type, rows, k, (k + 7) / 8 * 8},
                           .b = {NULL, type, k, n, (n + 7) / 8 * 8},
                           .c = {NULL, HTH_F32, rows, n, (n + 7) / 8 * 8}};
    double us = 0;
    enum hth_err err;
    HTH_GOTO(out, hth_exec_new(be, 0, &p.ex));
    HTH_GOTO(out, make_operand(&p, 0, &p.a));
    HTH_GOTO(out, make_operand(&p, 1, &p.b));
    HTH_GOTO(out, make_operand(&p, 2, &p.c));
    HTH_GOTO(out, hth_bench_median_us(t, p.ex, run_bare, &p, &us));
    *flops_per_s = HTH_MAX(*flops_per_s, 2.0 * rows * k * n * 1e6 / us);
out:
    hth_exec_free(p.ex);
    for (size_t i = 0; i < HTH_ARRAY_LEN(p.memory); i++)
        hth_backend_free(be, p.memory[i]);
    return err;
}

/* The best rate of the widest blocks' products: bare ones, and linear layers for other forms. */
static enum hth_err product_rate(const struct hth_bench_timer *t,
                                 const struct hth_bench_device_options *o, double *flops_per_s)
{
    uint32_t dim = 0, rows = 0;
    enum hth_err err = HTH_OK;
    for (size_t i = 0; i < o->dim_count; i++)
        dim = HTH_MAX(dim, o->dims[i]);
    for (size_t i = 0; i < o->row_count; i++)
        rows = HTH_MAX(rows, o->rows[i]);
    if (o->backend->bare_product != NULL) {
        HTH_TRY(bare_rate(t, o->backend, rows, dim, 4 * dim, flops_per_s));
        HTH_TRY(bare_rate(t, o->backend, rows, 4 * dim, dim, flops_per_s));
    }
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

/* -- the table ----------------------------------------------------------------------------- */

static void measure_blocks(const struct hth_bench_timer *t,
                           const struct hth_bench_device_options *o,
                           const struct hth_bench_rates *rates, uint32_t dim)
{
    for (int kind = 0; kind <= HTH_BENCH_ADAMW; kind++) {
        bool flat = hth_bench_kind_is_flat((enum hth_bench_kind)kind);
        if (!hth_bench_kind_multiplies((enum hth_bench_kind)kind) && !flat)
            continue; /* ops.c measures these */
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
        hth_bench_group(&timer, o, &rates, o->dims[d]);
    }
    return HTH_OK;
}
