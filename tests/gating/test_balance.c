/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The balance loss: values of known cases, gradients against central differences of a double twin,
 * and the direction of the gradient.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "gating/balance.h"
#include "support/suite.h"

enum { ROWS = 6, K = 3, WIDTH_MAX = 64 };

static struct hth_grid grid_of(uint32_t ndim, uint32_t a, uint32_t b, uint32_t c)
{
    struct hth_grid grid;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {a, b, c};
    assert_ok(hth_grid_init(&grid, "ffn0", ndim, dim));
    return grid;
}

struct fixture {
    struct hth_grid grid;
    uint32_t width;
    uint32_t index[ROWS * K];
    float tables[ROWS * WIDTH_MAX];
    float dtables[ROWS * WIDTH_MAX];
    float work[(ROWS + 3) * WIDTH_MAX];
    struct hth_gate_batch batch;
    struct hth_balance_result result;
};

static void setup(struct fixture *f, struct hth_grid grid, struct hth_rng *rng)
{
    memset(f, 0, sizeof(*f));
    f->grid = grid;
    f->width = hth_gate_width(&f->grid);
    assert_true(f->width <= WIDTH_MAX);
    assert_true(hth_balance_work_floats(&f->grid, ROWS) <= HTH_ARRAY_LEN(f->work));
    f->batch = (struct hth_gate_batch){.grid = &f->grid, .rows = ROWS, .k = K, .index = f->index};
    for (uint32_t i = 0; i < ROWS * f->width; i++)
        f->tables[i] = (float)hth_rng_normal(rng);
    for (int i = 0; i < ROWS * K; i++) {
        bool none = hth_rng_chance(rng, 0.1);
        f->index[i] = none ? HTH_GATE_NONE : (uint32_t)hth_rng_below(rng, hth_grid_size(&grid));
    }
}

static void run(struct fixture *f, const struct hth_balance_opts *opts)
{
    memset(f->dtables, 0, sizeof(f->dtables));
    hth_balance(&f->batch, opts, f->tables, f->dtables, f->work, &f->result);
}

/* One axis of the loss in double. */
static double twin_axis(const struct fixture *f, const struct hth_balance_opts *opts,
                        const double *tables, uint32_t axis)
{
    uint32_t offset = hth_gate_offset(&f->grid, axis), dim = f->grid.dim[axis];
    double mean[WIDTH_MAX] = {0}, count[WIDTH_MAX] = {0}, total = 0, n = 0, loss = 0;
    for (int i = 0; i < ROWS * K; i++) {
        uint32_t coord[HTH_GRID_DIMS_MAX];
        if (f->index[i] == HTH_GATE_NONE)
            continue;
        hth_grid_coords(&f->grid, f->index[i], coord);
        count[coord[axis]] += 1;
        total += 1;
    }
    for (int b = 0; b < ROWS; b++) {
        const double *s = tables + (uint32_t)b * f->width + offset;
        double sum = 0;
        for (uint32_t c = 0; c < dim; c++)
            sum += opts->live == NULL || opts->live[offset + c] ? exp(s[c]) : 0;
        for (uint32_t c = 0; c < dim; c++) {
            if (opts->live == NULL || opts->live[offset + c])
                mean[c] += exp(s[c]) / sum / ROWS;
        }
    }
    for (uint32_t c = 0; c < dim; c++)
        n += opts->live == NULL || opts->live[offset + c];
    for (uint32_t c = 0; c < dim; c++) {
        loss += (double)opts->switch_weight * n * count[c] / total * mean[c];
        loss += (double)opts->cv_weight * n * mean[c] * mean[c];
    }
    return loss - (double)opts->cv_weight;
}

static double twin_loss(const struct fixture *f, const struct hth_balance_opts *opts,
                        const double *tables)
{
    double loss = 0;
    for (uint32_t axis = 0; axis < f->grid.ndim; axis++)
        loss += twin_axis(f, opts, tables, axis);
    return loss;
}

static void check_gradient(struct fixture *f, const struct hth_balance_opts *opts)
{
    double tables[ROWS * WIDTH_MAX], norm = 0;
    run(f, opts);
    for (uint32_t i = 0; i < ROWS * f->width; i++)
        tables[i] = f->tables[i];
    assert_close(f->result.loss, twin_loss(f, opts, tables), 1e-5, 1e-6);
    for (uint32_t i = 0; i < ROWS * f->width; i++) {
        double keep = tables[i];
        tables[i] = keep + 1e-4;
        double up = twin_loss(f, opts, tables);
        tables[i] = keep - 1e-4;
        double down = twin_loss(f, opts, tables);
        tables[i] = keep;
        assert_close(f->dtables[i], (up - down) / 2e-4, 1e-4, 1e-6);
        norm += fabs((double)f->dtables[i]);
    }
    assert_true(norm > 1e-2); /* imbalance must give a gradient */
}

TEST(gradients_match_central_differences)
{
    (void)state;
    static const struct hth_balance_opts all[] = {
        {.switch_weight = 1.0f, .cv_weight = 0.0f},
        {.switch_weight = 0.0f, .cv_weight = 1.0f},
        {.switch_weight = 0.7f, .cv_weight = 0.3f},
    };
    struct hth_rng rng;
    struct fixture f;
    hth_rng_init(&rng, 11);
    for (size_t o = 0; o < HTH_ARRAY_LEN(all); o++) {
        setup(&f, grid_of(1, 20, 1, 1), &rng);
        check_gradient(&f, &all[o]);
        setup(&f, grid_of(2, 17, 33, 1), &rng);
        check_gradient(&f, &all[o]);
        setup(&f, grid_of(3, 3, 16, 5), &rng);
        check_gradient(&f, &all[o]);
        uint8_t live[24];
        for (uint32_t i = 0; i < 24; i++)
            live[i] = i % 3 != 0; /* every axis keeps some */
        struct hth_balance_opts masked = all[o];
        masked.live = live;
        check_gradient(&f, &masked);
        for (uint32_t i = 0; i < ROWS * f.width; i++)
            assert_true(live[i % f.width] || f.dtables[i] == 0.0f);
    }
}

/* Even tables give both terms their smallest value; all rows on one coordinate give n and n - 1. */
TEST(terms_have_their_known_extremes)
{
    (void)state;
    struct hth_rng rng;
    struct fixture f;
    struct hth_balance_opts opts = {.switch_weight = 1.0f, .cv_weight = 1.0f};
    hth_rng_init(&rng, 12);
    setup(&f, grid_of(2, 4, 8, 1), &rng);
    memset(f.tables, 0, sizeof(f.tables));
    run(&f, &opts);
    for (int axis = 0; axis < 2; axis++) {
        assert_close(f.result.switch_term[axis], 1.0, 1e-6, 0);
        assert_close(f.result.cv_term[axis], 0.0, 0, 1e-6);
    }
    for (int b = 0; b < ROWS; b++) {
        f.tables[b * 12 + 3] = 50.0f;     /* c_0 = 3 */
        f.tables[b * 12 + 4 + 5] = 50.0f; /* c_1 = 5 */
    }
    for (int i = 0; i < ROWS * K; i++)
        f.index[i] = 3 * 8 + 5;
    run(&f, &opts);
    assert_close(f.result.switch_term[0], 4.0, 1e-6, 0);
    assert_close(f.result.switch_term[1], 8.0, 1e-6, 0);
    assert_close(f.result.cv_term[0], 3.0, 1e-6, 0);
    assert_close(f.result.cv_term[1], 7.0, 1e-6, 0);
    assert_close(f.result.load_max[0], 4.0, 1e-6, 0);
    assert_close(f.result.load_max[1], 8.0, 1e-6, 0);
    assert_close(f.result.loss, 22.0, 1e-6, 0);
}

/* Gradient descent spreads a gate whose rows prefer one coordinate. */
TEST(descent_spreads_the_load)
{
    (void)state;
    struct hth_rng rng;
    struct fixture f;
    struct hth_balance_opts opts = {.switch_weight = 1.0f};
    hth_rng_init(&rng, 13);
    setup(&f, grid_of(1, 8, 1, 1), &rng);
    for (int b = 0; b < ROWS; b++)
        f.tables[b * 8 + 2] += 6.0f;
    double first = 0;
    for (int step = 0; step < 200; step++) {
        for (int b = 0; b < ROWS; b++) { /* each row goes to its best coordinate */
            uint32_t best = 0;
            for (uint32_t c = 1; c < 8; c++)
                best = f.tables[b * 8 + (int)c] > f.tables[b * 8 + (int)best] ? c : best;
            for (int j = 0; j < K; j++)
                f.index[b * K + j] = best;
        }
        run(&f, &opts);
        first = step == 0 ? f.result.load_max[0] : first;
        for (int i = 0; i < ROWS * 8; i++)
            f.tables[i] -= 0.5f * f.dtables[i];
    }
    assert_close(first, 8.0, 1e-6, 0);
    assert_true(f.result.load_max[0] < 5.0);
}

TEST(rows_not_finite_are_skipped)
{
    (void)state;
    struct hth_rng rng;
    struct fixture f;
    struct hth_balance_opts opts = {.switch_weight = 1.0f, .cv_weight = 1.0f};
    hth_rng_init(&rng, 14);
    setup(&f, grid_of(2, 5, 6, 1), &rng);
    f.tables[2 * 11 + 7] = NAN;
    f.tables[4 * 11 + 1] = INFINITY;
    f.tables[0] = 3e38f;
    f.tables[1] = -3e38f;
    run(&f, &opts);
    assert_int_equal(f.result.rows_skipped, 2);
    assert_true(isfinite(f.result.loss));
    for (int i = 0; i < ROWS * 11; i++) {
        assert_true(isfinite(f.dtables[i]));
        assert_true((i / 11 != 2 && i / 11 != 4) || f.dtables[i] == 0.0f);
    }
    for (int b = 0; b < ROWS; b++)
        f.tables[b * 11] = NAN;
    run(&f, &opts);
    assert_int_equal(f.result.rows_skipped, ROWS);
    assert_true(f.result.loss == 0.0);
    /* No choice and no live coordinate: a loss of 0, no division by zero. */
    uint8_t live[11] = {0};
    setup(&f, grid_of(2, 5, 6, 1), &rng);
    for (int i = 0; i < ROWS * K; i++)
        f.index[i] = HTH_GATE_NONE;
    opts.live = live;
    run(&f, &opts);
    assert_true(f.result.loss == 0.0);
    opts.live = NULL;
    opts.cv_weight = 0.0f;
    run(&f, &opts);
    assert_true(f.result.loss == 0.0);
    hth_balance(&f.batch, &opts, f.tables, NULL, f.work, &f.result); /* the loss alone */
}
