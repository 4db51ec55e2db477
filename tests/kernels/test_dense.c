/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dense.c: bits of GEGLU, layer scale and tied outputs: the same with helpers, and of a row in
 * any batch. The table of cases has their numbers.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "kernels/blas.h"
#include "kernels/ops.h"
#include "support/suite.h"
#include "support/team.h"

enum { ROWS = 301, D = 262, CLASSES = 517 };

/* Inputs x [rows, 2 D], dy [rows, CLASSES], and every output: y, dx, logits, dh. */
struct world {
    struct hth_params *p;
    struct hth_weight *table, *bias, *scale;
    struct hth_exec *ex;
    float *x, *dy, *y, *dx, *logits, *dh;
    size_t floats; /* of all outputs of a row */
};

static struct world world_new(const struct hth_backend *be, struct hth_team *team)
{
    struct world w = {.floats = 4 * D + CLASSES};
    const struct hth_param_spec specs[] = {
        {.name = "table", .rows = CLASSES, .cols = D, .init = HTH_INIT_NORMAL},
        {.name = "bias", .rows = 1, .cols = CLASSES, .init = HTH_INIT_NORMAL},
        {.name = "scale", .rows = 1, .cols = D, .init = HTH_INIT_NORMAL},
    };
    struct hth_weight **weights[] = {&w.table, &w.bias, &w.scale};
    const struct hth_seal_options seal = {.seed = 3};
    assert_ok(hth_params_new(be, &w.p));
    for (size_t i = 0; i < HTH_ARRAY_LEN(specs); i++)
        assert_ok(hth_params_add(w.p, &specs[i], weights[i]));
    assert_ok(hth_params_seal(w.p, &seal));
    assert_ok(hth_exec_new(be, hth_linear_scratch(be, CLASSES, D), &w.ex));
    hth_exec_set_team(w.ex, team);
    w.x = hth_calloc((size_t)ROWS * (2 * D + CLASSES + w.floats), sizeof(float));
    for (size_t i = 0; i < (size_t)ROWS * (2 * D + CLASSES); i++)
        w.x[i] = (float)(int32_t)(hth_mix64(i + 1) >> 40) * 0x1p-23f - 1.0f;
    w.dy = w.x + (size_t)ROWS * 2 * D;
    w.y = w.dy + (size_t)ROWS * CLASSES;
    w.dx = w.y + (size_t)ROWS * D;
    w.dh = w.dx + (size_t)ROWS * 2 * D;
    w.logits = w.dh + (size_t)ROWS * D;
    return w;
}

static void world_free(struct world *w)
{
    hth_free(w->x);
    hth_exec_free(w->ex);
    hth_params_free(w->p);
}

/* Rows first .. first + rows through all of them, forward and backward. */
static void pass(struct world *w, uint32_t first, uint32_t rows)
{
    struct hth_view x = hth_view_f32(w->x + (size_t)first * 2 * D, rows, 2 * D, 2 * D);
    struct hth_view dy = hth_view_f32(w->dy + (size_t)first * CLASSES, rows, CLASSES, CLASSES);
    struct hth_view y = hth_view_f32(w->y + (size_t)first * D, rows, D, D);
    struct hth_view dx = hth_view_f32(w->dx + (size_t)first * 2 * D, rows, 2 * D, 2 * D);
    struct hth_view dh = hth_view_f32(w->dh + (size_t)first * D, rows, D, D);
    struct hth_view logits =
        hth_view_f32(w->logits + (size_t)first * CLASSES, rows, CLASSES, CLASSES);
    const struct hth_tied tied = {w->table, w->bias};
    assert_ok(hth_geglu_forward(w->ex, x, y));
    assert_ok(hth_scale_forward(w->ex, w->scale, y, HTH_VIEW_NONE, y));
    assert_ok(hth_tied_forward(w->ex, &tied, y, logits));
    assert_ok(hth_tied_backward(w->ex, &tied, y, dy, dh));
    assert_ok(hth_scale_backward(w->ex, w->scale, y, dh, dh));
    assert_ok(hth_geglu_backward(w->ex, x, dh, dx));
}

static uint64_t pass_hash(const struct hth_backend *be, struct hth_team *team)
{
    struct world w = world_new(be, team);
    pass(&w, 0, ROWS);
    uint64_t hash = hth_hash64(w.y, ROWS * w.floats * sizeof(float), 0);
    hash = hth_hash64(hth_params_flat(w.p, HTH_PART_GRAD), hth_params_flat_len(w.p) * sizeof(float),
                      hash);
    world_free(&w);
    return hash;
}

static const struct hth_backend *backends[HTH_PACKED_MAX + 2];
static size_t backend_count;

static int setup(void **state)
{
    (void)state;
    backend_count = hth_backend_packed_all(backends);
    backends[backend_count++] = hth_backend_ref();
    return hth_test_blas(&backends[backend_count++]) == HTH_OK ? 0 : -1;
}

TEST(threads_change_no_bit)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct test_team two = TEST_TEAM(2), three = TEST_TEAM(3);
        uint64_t want = pass_hash(backends[k], NULL);
        assert_true(pass_hash(backends[k], &two.team) == want);
        assert_true(pass_hash(backends[k], &three.team) == want);
        assert_true(two.runs > 0 && three.runs > 0);
    }
}

TEST(row_bits_do_not_depend_on_the_batch)
{
    static const uint32_t batches[][2] = {{0, 1}, {7, 5}, {100, 64}, {150, 151}};
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct world all = world_new(backends[k], NULL), some = world_new(backends[k], NULL);
        pass(&all, 0, ROWS);
        for (size_t i = 0; i < HTH_ARRAY_LEN(batches); i++) {
            size_t first = batches[i][0], rows = batches[i][1] * sizeof(float);
            pass(&some, batches[i][0], batches[i][1]);
            assert_memory_equal(some.y + first * D, all.y + first * D, rows * D);
            assert_memory_equal(some.dx + first * 2 * D, all.dx + first * 2 * D, rows * 2 * D);
            assert_memory_equal(some.dh + first * D, all.dh + first * D, rows * D);
            assert_memory_equal(some.logits + first * CLASSES, all.logits + first * CLASSES,
                                rows * CLASSES);
        }
        world_free(&all);
        world_free(&some);
    }
}

SUITE_WITH(setup, NULL)
