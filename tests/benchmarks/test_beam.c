/* SPDX-License-Identifier: Apache-2.0 */
/* test_beam.c: the benchmark of the beam search verifies before it times, and counts its work. */
#include "benchmarks/beam.h"
#include "core/limits.h"
#include "core/mem.h"
#include "support/suite.h"

/* A clock that advances by 1, 2, 3 ... milliseconds per pair of readings. */
struct ticks {
    int64_t now_ns;
    int64_t readings;
};

static int64_t tick(void *arg)
{
    struct ticks *t = arg;
    if (t->readings++ % 2 == 1)
        t->now_ns += t->readings / 2 * 1000000;
    return t->now_ns;
}

TEST(beam_is_verified_and_counted)
{
    (void)state;
    struct hth_grid grid;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {16, 24, 1}, experts[16 * 24];
    assert_ok(hth_grid_init(&grid, "ffn0", 2, dim));
    for (uint32_t i = 0; i < 16 * 24; i++)
        experts[i] = i;
    for (int sparse = 0; sparse < 2; sparse++) {
        struct hth_grid_view *view;
        struct ticks ticks = {0};
        assert_ok(hth_grid_view_new(&grid, experts, sparse ? 101 : 16 * 24, &view));
        struct hth_bench_gate_opts opts = {.grid = &grid,
                                           .view = view,
                                           .rows = 32,
                                           .k = 4,
                                           .rounds = 5,
                                           .verify_rows = 32,
                                           .seed = 3,
                                           .now_ns = tick,
                                           .arg = &ticks};
        struct hth_bench_gate_result r;
        assert_ok(hth_bench_gate(&opts, &r));
        assert_int_equal(r.experts, sparse ? 101 : 16 * 24);
        assert_int_equal(r.verified_rows, 32);
        assert_close(r.ms_median, 3.0, 1e-12, 0);
        assert_close(r.ms_best, 1.0, 1e-12, 0);
        assert_close(r.ms_worst, 5.0, 1e-12, 0);
        assert_true(r.prefixes_per_row > 0.9);
        opts.rows = 0;
        assert_err(HTH_E_RANGE, hth_bench_gate(&opts, &r));
        opts.rows = 32;
        opts.verify_rows = 33;
        assert_err(HTH_E_RANGE, hth_bench_gate(&opts, &r));
        opts.verify_rows = 1;
        opts.rounds = 0;
        assert_err(HTH_E_RANGE, hth_bench_gate(&opts, &r));
        opts.rounds = HTH_BENCH_GATE_ROUNDS_MAX + 1;
        assert_err(HTH_E_RANGE, hth_bench_gate(&opts, &r));
        opts.rounds = 1;
        opts.rows = HTH_BENCH_GATE_ROWS_MAX + 1;
        assert_err(HTH_E_RANGE, hth_bench_gate(&opts, &r));
        opts.rows = 32;
        for (long n = 1; n <= 6; n++) {
            hth_mem_fail_at(n);
            assert_err(HTH_E_NO_MEMORY, hth_bench_gate(&opts, &r));
        }
        hth_mem_fail_at(0);
        hth_grid_view_unref(view);
    }
}
