/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_factors.c: gradients that stay products until a step uses them. Each layer that may keep
 * them has a twin that may not; after all operations the two agree bit for bit (and their norms to
 * rounding).
 */
#include "support/test.h"

#include <math.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/backend_int.h" /* to see if a gradient is a product */
#include "kernels/tables.h"
#include "support/team.h"

static const struct hth_backend *backends[HTH_PACKED_MAX];
static size_t backend_count;

static int setup(void **state)
{
    (void)state;
    backend_count = test_tables(backends);
    return 0;
}

#define ROWS 100 /* of the longest batch */

struct layer {
    struct hth_params *p;
    struct hth_weight *w, *b;
    struct hth_exec *ex;
    uint32_t in, out;
    float *x, *dy; /* [ROWS, in], [ROWS, out] */
};

static struct layer layer_new(const struct hth_backend *be, uint32_t in, uint32_t out,
                              bool factored)
{
    struct layer l = {.in = in, .out = out};
    struct hth_param_spec b = {.name = "b", .rows = 1, .cols = out, .init = HTH_INIT_UNIFORM};
    struct hth_param_spec w = {.name = "w", .rows = in, .cols = out, .init = HTH_INIT_UNIFORM};
    struct hth_param_spec last = {.name = "last", .rows = 3, .cols = 5, .init = HTH_INIT_ONES};
    struct hth_seal_options seal = {.seed = 5, .state_slots = 2, .factored_grads = factored};
    struct hth_weight *unused;
    assert_ok(hth_params_new(be, &l.p));
    assert_ok(hth_params_add(l.p, &b, &l.b));
    assert_ok(hth_params_add(l.p, &w, &l.w));
    assert_ok(hth_params_add(l.p, &last, &unused));
    assert_ok(hth_params_seal(l.p, &seal));
    assert_ok(hth_exec_new(be, hth_linear_scratch(be, in, out), &l.ex));
    l.x = hth_calloc((size_t)ROWS * (in + out), sizeof(float));
    l.dy = l.x + (size_t)ROWS * in;
    for (size_t i = 0; i < (size_t)ROWS * (in + out); i++)
        l.x[i] = (float)(int32_t)(hth_mix64(i + 77) >> 40) * 0x1p-23f - 1.0f;
    return l;
}

static void layer_free(struct layer *l)
{
    hth_free(l->x);
    hth_exec_free(l->ex);
    hth_params_free(l->p);
}

struct pair {
    struct layer l[2]; /* a product; a matrix */
};

static struct pair pair_new(const struct hth_backend *be, uint32_t in, uint32_t out)
{
    return (struct pair){{layer_new(be, in, out, true), layer_new(be, in, out, false)}};
}

static void pair_free(struct pair *q)
{
    layer_free(&q->l[0]);
    layer_free(&q->l[1]);
}

/* `rows` rows from `first` on. */
static void batch(struct pair *q, uint32_t first, uint32_t rows)
{
    for (int i = 0; i < 2; i++) {
        struct layer *l = &q->l[i];
        assert_ok(hth_linear_backward_weight(
            l->ex, l->w, l->b, hth_view_f32(l->x + (size_t)first * l->in, rows, l->in, l->in),
            hth_view_f32(l->dy + (size_t)first * l->out, rows, l->out, l->out)));
    }
}

static bool is_product(const struct pair *q)
{
    assert_false(hth_weight_is_product(q->l[1].w));
    return hth_weight_is_product(q->l[0].w);
}

static void assert_same(struct pair *q, enum hth_part part)
{
    size_t bytes = hth_params_flat_len(q->l[0].p) * sizeof(float);
    assert_memory_equal(hth_params_flat(q->l[0].p, part), hth_params_flat(q->l[1].p, part), bytes);
}

static void assert_norms(struct pair *q, double tolerance)
{
    double norm[2];
    bool finite[2];
    for (int i = 0; i < 2; i++)
        assert_ok(hth_grad_norm(q->l[i].ex, q->l[i].p, &norm[i], &finite[i]));
    assert_true(finite[0] && finite[1]);
    assert_true(fabs(norm[0] - norm[1]) <= tolerance * norm[1]);
}

/* Gradients of all but the last may stay products. */
static const uint32_t shapes[][2] = {{64, 64}, {131, 77}, {40, 4100}, {200, 257}, {24, 16}};

static uint32_t room(uint32_t in, uint32_t out)
{
    uint32_t rows = in * out / (4 * (in + out));
    return rows < 4 ? 0 : rows > 64 ? 64 : rows / 2 * 2;
}

/* Batches that fit, that don't fit beside others, and that never fit; read only at the end. */
static void product_gradient_equals_stored_one(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            struct pair q = pair_new(backends[k], shapes[s][0], shapes[s][1]);
            uint32_t most = room(shapes[s][0], shapes[s][1]);
            for (int round = 0; round < 2; round++) {
                hth_params_zero_grads(q.l[0].p);
                hth_params_zero_grads(q.l[1].p);
                assert_false(is_product(&q));
                batch(&q, 0, 3);
                assert_true(is_product(&q) == (most >= 4));
                batch(&q, 3, 1);
                assert_norms(&q, 1e-5);
                if (round == 1) { /* read, then add */
                    assert_same(&q, HTH_PART_GRAD);
                    assert_false(is_product(&q));
                }
                if (most > 0)
                    batch(&q, 5, most); /* the earlier ones are added to memory */
                batch(&q, 1, 2);
                batch(&q, 0, ROWS);
                assert_false(is_product(&q));
                batch(&q, 7, 1);
                assert_norms(&q, 1e-5);
                assert_same(&q, HTH_PART_GRAD);
            }
            pair_free(&q);
        }
    }
}

/* Factors filled to the last row, one row at a time and at once, of sizes whose panels are no whole
 * cache lines: the memory behind them (walls, where memory is checked) is not touched. */
static void full_factors_write_nothing_beyond(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (uint32_t in = 40; in <= 72; in += 4) {
            for (uint32_t out = 40; out <= 72; out += 8) {
                struct pair q = pair_new(backends[k], in, out);
                uint32_t most = in * out / (4 * (in + out));
                if (hth_backend_compute(backends[k]) == HTH_MATMUL_BF16)
                    most -= most % 2;
                batch(&q, 0, most);
                assert_true(is_product(&q));
                assert_same(&q, HTH_PART_GRAD);
                pair_free(&q);
            }
        }
    }
}

/* Without memory for factors the gradient is written, and the next batch tries again. */
static void gradient_is_written_without_memory_for_factors(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct pair q = pair_new(backends[k], 64, 64);
        hth_mem_fail_at(1);
        batch(&q, 0, 3);
        hth_mem_fail_at(0);
        assert_false(is_product(&q));
        batch(&q, 3, 2);
        assert_same(&q, HTH_PART_GRAD);
        hth_params_zero_grads(q.l[0].p);
        hth_params_zero_grads(q.l[1].p);
        batch(&q, 5, 2);
        assert_true(is_product(&q));
        assert_same(&q, HTH_PART_GRAD);
        pair_free(&q);
    }
}

static void products_can_be_scaled_and_zeroed(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct pair q = pair_new(backends[k], 131, 77);
        batch(&q, 0, 5);
        for (int i = 0; i < 2; i++)
            assert_ok(hth_params_scale(q.l[i].ex, q.l[i].p, HTH_PART_GRAD, 0.3f));
        batch(&q, 5, 4);
        assert_same(&q, HTH_PART_GRAD);
        batch(&q, 9, 4);
        hth_params_zero_grads(q.l[0].p);
        hth_params_zero_grads(q.l[1].p);
        batch(&q, 20, 6);
        assert_true(is_product(&q));
        assert_same(&q, HTH_PART_GRAD);
        pair_free(&q);
    }
}

/* Compares the outputs of both images. */
static void assert_same_images(struct pair *q)
{
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        struct layer *l = &q->l[i];
        float *y = hth_calloc((size_t)ROWS * (l->in + l->out), sizeof(float));
        float *dx = y + (size_t)ROWS * l->out;
        struct hth_linear lin = {.w = l->w, .bias = l->b};
        struct hth_linear_back back = {.w = l->w};
        assert_ok(hth_linear_forward(l->ex, &lin, hth_view_f32(l->x, ROWS, l->in, l->in),
                                     hth_view_f32(y, ROWS, l->out, l->out)));
        assert_ok(hth_linear_backward_data(l->ex, &back, hth_view_f32(l->dy, ROWS, l->out, l->out),
                                           hth_view_f32(dx, ROWS, l->in, l->in)));
        hash[i] = hth_hash64(y, (size_t)ROWS * (l->in + l->out) * sizeof(float), 0);
        hth_free(y);
    }
    assert_true(hash[0] == hash[1]);
}

static void step_from_products_gives_the_same_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            for (int kind = HTH_OPTIM_SGD; kind <= HTH_OPTIM_LAMB; kind++) {
                struct pair q = pair_new(backends[k], shapes[s][0], shapes[s][1]);
                struct hth_optim o = HTH_OPTIM_INIT;
                o.kind = (enum hth_optim_kind)kind;
                o.weight_decay = 0.1f;
                for (uint32_t step = 0; step < 3; step++) {
                    hth_params_zero_grads(q.l[0].p);
                    hth_params_zero_grads(q.l[1].p);
                    batch(&q, 11 * step, 2);
                    batch(&q, 11 * step + 2, 2);
                    for (int i = 0; i < 2; i++)
                        assert_ok(hth_optim_step(q.l[i].ex, q.l[i].p, &o, 0.7f));
                    if (step > 0) /* without images in the first step */
                        assert_same_images(&q);
                    if (step == 1)
                        assert_same(&q, HTH_PART_GRAD); /* a step does not change gradients */
                }
                assert_same(&q, HTH_PART_VALUE);
                assert_same(&q, HTH_PART_STATE0);
                assert_same(&q, HTH_PART_STATE1);
                pair_free(&q);
            }
        }
    }
}

/* One bad number in a batch, or finite ones whose products are not. */
static void not_finite_products_are_found(void **state)
{
    (void)state;
    static const float bad[][2] = {{NAN, 1}, {INFINITY, 0}, {1e20f, 1e20f}, {1e20f, -1e20f}};
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
            struct pair q = pair_new(backends[k], 64, 96);
            double norm;
            bool finite;
            q.l[0].x[64 + 9] = bad[i][0];
            q.l[0].dy[96 + 40] = bad[i][1];
            memcpy(q.l[1].x, q.l[0].x, ROWS * (64 + 96) * sizeof(float));
            batch(&q, 0, 3);
            assert_true(is_product(&q));
            for (int j = 0; j < 2; j++) {
                assert_ok(hth_grad_norm(q.l[j].ex, q.l[j].p, &norm, &finite));
                assert_false(finite);
            }
            pair_free(&q);
        }
        /* Large, but without overflow. */
        struct pair q = pair_new(backends[k], 64, 96);
        for (int j = 0; j < 2; j++) {
            q.l[j].x[9] = 1e15f;
            q.l[j].dy[40] = 1e15f;
        }
        batch(&q, 0, 3);
        assert_norms(&q, 1e-5);
        pair_free(&q);
    }
}

/* Rows that cancel leave nothing, not the root of a negative number. */
static void cancelled_rows_have_norm_zero(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct layer l = layer_new(backends[k], 64, 96, true);
        double norm;
        bool finite;
        memcpy(l.x + 64, l.x, 64 * sizeof(float));
        for (size_t i = 0; i < 96; i++)
            l.dy[96 + i] = -l.dy[i];
        assert_ok(hth_linear_backward_weight(l.ex, l.w, NULL, hth_view_f32(l.x, 2, 64, 64),
                                             hth_view_f32(l.dy, 2, 96, 96)));
        assert_ok(hth_grad_norm(l.ex, l.p, &norm, &finite));
        assert_true(finite && norm >= 0 && norm < 1e-2);
        layer_free(&l);
    }
}

static void team_changes_no_bit(void **state)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct pair q = pair_new(backends[k], 300, 530);
        struct test_team team = TEST_TEAM(3);
        struct hth_optim o = HTH_OPTIM_INIT;
        hth_exec_set_team(q.l[0].ex, &team.team);
        for (int step = 0; step < 2; step++) {
            hth_params_zero_grads(q.l[0].p);
            hth_params_zero_grads(q.l[1].p);
            for (uint32_t i = 0; i < 5; i++)
                batch(&q, 10 * i, 10); /* more rows than the factors hold */
            if (step == 1) {
                hth_params_zero_grads(q.l[0].p);
                hth_params_zero_grads(q.l[1].p);
                batch(&q, 3, 7);
                assert_true(is_product(&q));
            }
            for (int i = 0; i < 2; i++)
                assert_ok(hth_optim_step(q.l[i].ex, q.l[i].p, &o, 1));
        }
        assert_same(&q, HTH_PART_VALUE);
        assert_same(&q, HTH_PART_GRAD);
        pair_free(&q);
    }
}

int main(void)
{
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(product_gradient_equals_stored_one),
        cmocka_unit_test(full_factors_write_nothing_beyond),
        cmocka_unit_test(gradient_is_written_without_memory_for_factors),
        cmocka_unit_test(products_can_be_scaled_and_zeroed),
        cmocka_unit_test(step_from_products_gives_the_same_bits),
        cmocka_unit_test(not_finite_products_are_found),
        cmocka_unit_test(cancelled_rows_have_norm_zero),
    };
    const struct CMUnitTest threads[] = {
        cmocka_unit_test(team_changes_no_bit),
    };
    int failed = cmocka_run_group_tests(threads, setup, NULL);

    if (!HTH_TEST_ONLY_THREADS)
        failed += cmocka_run_group_tests(alone, setup, NULL);
    return failed;
}
