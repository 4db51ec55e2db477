/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_device.c: the arithmetic of a device's table (benchmarks/kernels/device.h) with the
 * test's own clock, on the CPU and on the CUDA back end whose kernels the shim runs.
 */
#include <string.h>

#include "kernels/backend_int.h"
#include "benchmarks/kernels/device.h"
#include "benchmarks/kernels/kernels_int.h"
#include "kernels/cuda/device.h"
#include "kernels/shim_control.h"
#include "support/suite.h"

#define DIM    16
#define ROWS   24
#define BLOCKS 3
#define SMALL  4
#define COPY   4096

TEST(floor_is_the_slower_of_bytes_and_work)
{
    const struct hth_bench_rates rates = {.bytes_per_s = 2e12, .flops_per_s = 5e14};
    const struct hth_bench_rates none = {0};
    struct hth_bench_line l = {.us = 4.0, .floor_us = 3.0};
    (void)state;
    assert_true(hth_bench_floor_us(0, 4e9, &rates) == 2000.0); /* 4 GB at 2 TB/s */
    assert_true(hth_bench_floor_us(1e12, 0, &rates) == 2000.0);
    assert_true(hth_bench_floor_us(1e12, 4e9, &rates) == 2000.0); /* products are counted by work */
    assert_true(hth_bench_floor_us(1e12, 0, &none) == 0);
    assert_true(hth_bench_floor_us(0, 1e9, &none) == 0);
    assert_true(hth_bench_fraction(&l) == 0.75);
    l.us = 0;
    assert_true(hth_bench_fraction(&l) == 0);
}

TEST(median_of_any_count)
{
    double odd[] = {9, 1, 5}, even[] = {4, 100, 1, 2}, one[] = {7};
    (void)state;
    assert_true(hth_bench_middle(odd, 3) == 5);
    assert_true(hth_bench_middle(even, 4) == 3);
    assert_true(hth_bench_middle(one, 1) == 7);
    assert_true(hth_bench_middle(NULL, 0) == 0);
}

/* ---- a whole table ------------------------------------------------------------------------- */

static int64_t ticks(void *arg)
{
    return *(int64_t *)arg += 10; /* every measured operation takes 10 us */
}

struct seen {
    struct hth_bench_rates rates;
    uint32_t rates_count, lines, flat, failed;
    double us, one_by_one, together; /* us: expected time of every line, or 0 */
};

static void on_rates(void *arg, const struct hth_bench_rates *rates)
{
    struct seen *s = arg;
    s->rates = *rates;
    s->rates_count++;
}

/* Work of a line, from the shapes alone. */
static double work_of(const struct hth_bench_line *l)
{
    double d = l->dim, elements = d * l->rows, block = 8 * d * d;
    if (strcmp(l->op, "adamw") == 0)
        return l->bytes / 28 >= block ? l->bytes : 0; /* padded to whole lines */
    if (strcmp(l->op, "ffn_forward") == 0 || strncmp(l->op, "linear", 6) == 0)
        return 2 * elements * 8 * d;
    if (strncmp(l->op, "ffn", 3) == 0)
        return 6 * elements * 8 * d;
    if (strcmp(l->op, "attention") == 0)
        return 2 * elements * l->rows; /* one sequence: QK and PV, half of each */
    if (strcmp(l->op, "layernorm_back") == 0)
        return 12 * elements;
    if (strcmp(l->op, "softmax") == 0 || strcmp(l->op, "copy") == 0)
        return 8 * elements;
    return l->flops + l->bytes;
}

static void on_line(void *arg, const struct hth_bench_line *l)
{
    struct seen *s = arg;
    s->lines++;
    if (l->err != HTH_OK)
        fail_msg("%s: %s, off by %g", l->op, hth_err_text(l->err), l->check_error);
    assert_true((l->flops > 0) != (l->bytes > 0));
    assert_close(l->flops + l->bytes, work_of(l), 1e-12, 0);
    assert_close(l->floor_us, hth_bench_floor_us(l->flops, l->bytes, &s->rates), 1e-12, 0);
    assert_true(l->check_error >= 0 && l->check_error < 1e-4);
    if (s->us > 0)
        assert_true(l->us == s->us);
    else
        assert_in_range(l->us, 1, 3);
    s->flat += l->rows == 0;
    if (strcmp(l->op, "ffn_many_one_by_one") == 0)
        s->one_by_one = l->flops;
    if (strcmp(l->op, "ffn_many_together") == 0)
        s->together = l->flops;
}

static void table_of(const struct hth_backend *be, double us)
{
    static const uint32_t dims[] = {DIM}, rows[] = {ROWS};
    struct seen seen = {.us = us};
    int64_t clock = 0;
    const struct hth_bench_device_options options = {.backend = be,
                                                     .dims = dims,
                                                     .dim_count = 1,
                                                     .rows = rows,
                                                     .row_count = 1,
                                                     .blocks = BLOCKS,
                                                     .block_rows = SMALL,
                                                     .repeats = 3,
                                                     .copy_bytes = COPY,
                                                     .clock_us = ticks,
                                                     .clock_arg = &clock,
                                                     .on_rates = on_rates,
                                                     .on_line = on_line,
                                                     .arg = &seen};
    assert_ok(hth_bench_device(&options));
    assert_int_equal(seen.rates_count, 1);
    assert_int_equal(seen.lines, 26 + 6 + 1 + 2);
    assert_int_equal(seen.flat, 1);
    assert_true(seen.one_by_one == 48.0 * DIM * DIM * BLOCKS * SMALL);
    assert_true(seen.one_by_one == seen.together);
    if (us > 0) {
        assert_close(seen.rates.bytes_per_s, 2.0 * COPY / (us * 1e-6), 1e-12, 0);
        assert_close(seen.rates.flops_per_s, 2.0 * ROWS * DIM * 8 * DIM / (us * 1e-6), 1e-12, 0);
    }
}

TEST(cpu_table_is_complete)
{
    const struct hth_backend *be;
    (void)state;
    table_of(hth_backend_ref(), 10);
    assert_ok(hth_backend_by_name("auto", &be));
    table_of(be, 10);
}

/* The device's own events: the shim's read 1, 2, 3, 1, ... us, so the median of three is 2. */
TEST(card_table_uses_device_events)
{
    struct hth_cu_device device;
    char why[200];
    (void)state;
    assert_ok(hth_cu_device_open(&device, &hth_gpu_shim, 0, (size_t)256 << 20, why, sizeof(why)));
    hth_shim_batch(true);
    table_of(&device.tables[HTH_GPU_F32], 2);
    hth_shim_batch(false);
    assert_int_equal(device.pool.used, 0);
    hth_cu_device_close(&device);
}

/* ---- the test's own table ------------------------------------------------------------------ */

static struct hth_backend odd;
static int64_t odd_clock;
static uint32_t bare_products, bare_copies;

static enum hth_err quick_copy(struct hth_exec *ex, void *to, const void *from, size_t bytes)
{
    (void)ex;
    memcpy(to, from, bytes);
    bare_copies++;
    odd_clock -= 5; /* half the time of all others */
    return HTH_OK;
}

static enum hth_err quick_product(struct hth_exec *ex, struct hth_view a, struct hth_view b,
                                  struct hth_view c)
{
    const float *x = a.data;
    (void)ex;
    assert_true(a.dtype == HTH_F32 && b.dtype == HTH_F32 && c.dtype == HTH_F32);
    assert_true(a.cols == b.rows && a.rows == c.rows && b.cols == c.cols && a.rows == ROWS);
    assert_true(x[0] != x[1] && x[0] >= -1 && x[0] < 1);
    bare_products++;
    odd_clock -= 8;
    return HTH_OK;
}

struct floors {
    struct hth_bench_rates rates;
    const char *const *bad; /* lines that must be E_BUG */
    uint32_t bad_seen, good_seen;
};

static void take_rates(void *arg, const struct hth_bench_rates *rates)
{
    ((struct floors *)arg)->rates = *rates;
}

static void take_line(void *arg, const struct hth_bench_line *l)
{
    struct floors *f = arg;
    for (const char *const *name = f->bad; name != NULL && *name != NULL; name++) {
        if (strcmp(*name, l->op) != 0)
            continue;
        assert_err(HTH_E_BUG, l->err);
        assert_true(l->us == 0);
        f->bad_seen++;
    }
    f->good_seen += l->err == HTH_OK;
}

static struct floors odd_table(const char *const *bad)
{
    static const uint32_t dims[] = {DIM}, rows[] = {ROWS};
    struct floors f = {.bad = bad};
    const struct hth_bench_device_options options = {.backend = &odd,
                                                     .dims = dims,
                                                     .dim_count = 1,
                                                     .rows = rows,
                                                     .row_count = 1,
                                                     .blocks = BLOCKS,
                                                     .block_rows = SMALL,
                                                     .repeats = 3,
                                                     .copy_bytes = COPY,
                                                     .clock_us = ticks,
                                                     .clock_arg = &odd_clock,
                                                     .on_rates = take_rates,
                                                     .on_line = take_line,
                                                     .arg = &f};
    odd_clock = 1000;
    assert_ok(hth_bench_device(&options));
    return f;
}

/* Floors use the better copy and the better product. */
TEST(floors_use_the_better_bare_speed)
{
    (void)state;
    odd = *hth_backend_ref();
    odd.bare_copy = quick_copy;
    odd.bare_product = quick_product;
    bare_products = bare_copies = 0;
    struct floors f = odd_table(NULL);
    assert_int_equal(bare_copies, 4);
    assert_int_equal(bare_products, 8);
    assert_close(f.rates.bytes_per_s, 2.0 * COPY / 5e-6, 1e-12, 0);
    assert_close(f.rates.flops_per_s, 2.0 * ROWS * DIM * 4 * DIM / 2e-6, 1e-12, 0);
}

/* -- kernels with wrong results -- */

static enum hth_err no_gather(struct hth_exec *ex, struct hth_view src, struct hth_view index,
                              struct hth_view dst)
{
    (void)index;
    return hth_cast(ex, hth_view_f32(src.data, dst.rows, dst.cols, src.ld), dst);
}

static enum hth_err no_scatter(struct hth_exec *ex, struct hth_view src, struct hth_view index,
                               struct hth_view weight, struct hth_view dst)
{
    (void)ex, (void)src, (void)index, (void)weight, (void)dst;
    return HTH_OK;
}

static enum hth_err no_step(struct hth_exec *ex, struct hth_weight *w, const struct hth_step *step)
{
    (void)ex, (void)w, (void)step;
    return HTH_OK;
}

/* Computes the first block of a group twice, the others never. */
static enum hth_err one_of_many(struct hth_exec *ex, const struct hth_ffn_member *members,
                                uint32_t count, bool backward, hth_exec_fn *alone, void *arg)
{
    (void)ex, (void)backward;
    for (uint32_t i = 0; i < count; i++)
        alone(ex, arg, members[0].index);
    return HTH_OK;
}

TEST(wrong_results_are_reported)
{
    static const char *const gather[] = {"gather_rows", "embed", NULL};
    static const char *const scatter[] = {"scatter_add_rows", "embed_back", NULL};
    static const char *const steps[] = {"sgd", "lamb", "adamw", NULL};
    static const char *const many[] = {"ffn_many_together", NULL};
    (void)state;
    odd = *hth_backend_ref();
    odd.gather_rows = no_gather;
    assert_int_equal(odd_table(gather).bad_seen, 2);
    odd = *hth_backend_ref();
    odd.scatter_add_rows = no_scatter;
    assert_int_equal(odd_table(scatter).bad_seen, 2);
    odd = *hth_backend_ref();
    odd.step = no_step;
    assert_int_equal(odd_table(steps).bad_seen, 3);
    odd = *hth_backend_ref();
    odd.ffn_many = one_of_many;
    struct floors f = odd_table(many);
    assert_int_equal(f.bad_seen, 1);
    assert_int_equal(f.good_seen, 26 + 6 + 1 + 1);
}

TEST(invalid_options_are_refused)
{
    static const uint32_t one[] = {1};
    int64_t clock = 0;
    struct hth_bench_device_options options = {.backend = hth_backend_ref(),
                                               .dims = one,
                                               .rows = one,
                                               .dim_count = 1,
                                               .row_count = 1,
                                               .clock_arg = &clock,
                                               .on_line = on_line};
    (void)state;
    assert_err(HTH_E_CONFIG, hth_bench_device(&options)); /* no clock */
    options.clock_us = ticks;
    options.dim_count = 0;
    assert_err(HTH_E_CONFIG, hth_bench_device(&options));
}
