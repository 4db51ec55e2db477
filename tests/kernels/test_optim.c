/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_optim.c: optimisers on every back end of this machine: LAMB against a twin in double and
 * independent numbers, the same bits for any team and any images, the norm of gradients.
 */
#include "support/test.h"

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/blocks.h"
#include "kernels/optim.h"
#include "kernels/tables.h"
#include "support/team.h"

static const struct hth_backend *backends[4 + HTH_PACKED_MAX];
static size_t backend_count;

static void add_backend(const struct hth_backend *be)
{
    for (size_t i = 0; i < backend_count; i++) {
        if (backends[i] == be)
            return;
    }
    backends[backend_count++] = be;
}

/* All back ends of this machine, the packed ones of each instruction set. */
static int setup(void **state)
{
    struct hth_backend_info info[8];
    const struct hth_backend *be, *packed[HTH_PACKED_MAX];
    (void)state;
    size_t n = hth_backend_list(info, HTH_ARRAY_LEN(info));
    for (size_t i = 0; i < n; i++) {
        if (info[i].usable && hth_backend_by_name(info[i].name, &be) == HTH_OK)
            add_backend(be);
    }
    n = test_tables(packed);
    for (size_t i = 0; i < n; i++)
        add_backend(packed[i]);
    return backend_count > 0 ? 0 : -1;
}

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(int32_t)(hth_mix64(seed * 1000003 + i) >> 40) * 0x1p-23f - 1.0f;
}

/* -- one tensor and its context ------------------------------------------------------------ */

struct box {
    struct hth_params *p;
    struct hth_weight *w;
    struct hth_exec *ex;
    size_t n;
};

static struct box box_new(const struct hth_backend *be, uint32_t rows, uint32_t cols, bool no_decay)
{
    struct box b = {.n = (size_t)rows * cols};
    struct hth_param_spec spec = {.name = "w", .rows = rows, .cols = cols, .no_decay = no_decay};
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    assert_ok(hth_params_new(be, &b.p));
    assert_ok(hth_params_add(b.p, &spec, &b.w));
    assert_ok(hth_params_seal(b.p, &seal));
    assert_ok(hth_exec_new(be, hth_linear_scratch(be, rows, cols), &b.ex));
    return b;
}

static void box_free(struct box *b)
{
    hth_exec_free(b->ex);
    hth_params_free(b->p);
}

static void step(struct box *b, const struct hth_optim *o, const float *g, float scale)
{
    assert_ok(hth_weight_import(b->ex, b->w, HTH_PART_GRAD, g));
    assert_ok(hth_optim_step(b->ex, b->p, o, scale));
}

/* -- LAMB ---------------------------------------------------------------------------------- */

static const struct hth_optim lamb = {.kind = HTH_OPTIM_LAMB,
                                      .lr = 0.05f,
                                      .beta1 = 0.9f,
                                      .beta2 = 0.999f,
                                      .eps = 1e-6f,
                                      .weight_decay = 0.1f};

/* The numbers are from a few lines of Python, independent of this code. */
static void lamb_matches_independent_numbers(void **state)
{
    static const float start[6] = {0.5f, -1.0f, 0.25f, 2.0f, -0.125f, 0.75f};
    static const float grads[3][6] = {{0.1f, -0.2f, 0.3f, 0.05f, -0.5f, 0},
                                      {-0.3f, 0.1f, 0.2f, 0.4f, 0.25f, 1},
                                      {0.6f, 0.6f, -0.1f, -0.2f, 0.15f, -2}};
    static const double want[2][6] = {
        {0.427655795, -0.970200133, 0.0684219481, 1.81855244, -0.0515323162, 0.719697917},
        {0.474029322, -0.974172476, 0.185259315, 1.93255903, -0.0917195028, 0.733689313}};
    float got[6];
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (int bounded = 0; bounded < 2; bounded++) {
            struct box b = box_new(backends[k], 2, 3, false);
            struct hth_optim o = lamb;
            o.trust_max = bounded ? 0.5f : 0;
            assert_ok(hth_weight_import(b.ex, b.w, HTH_PART_VALUE, start));
            for (int t = 0; t < 3; t++)
                step(&b, &o, grads[t], 1);
            assert_ok(hth_weight_export(b.ex, b.w, HTH_PART_VALUE, got));
            for (int i = 0; i < 6; i++)
                assert_close(got[i], want[bounded][i], 2e-6, 1e-7);
            box_free(&b);
        }
    }
}

struct lamb_twin {
    double *w, *m, *v;
    size_t n;
    bool adapt;
};

static void lamb_twin_step(struct lamb_twin *t, const struct hth_optim *o, int step_number,
                           const float *g, double scale)
{
    double b1 = (double)o->beta1, b2 = (double)o->beta2, ww = 0, rr = 0;
    double *r = hth_new_array(double, t->n);
    for (size_t i = 0; i < t->n; i++) {
        double grad = (double)g[i] * scale;
        t->m[i] = b1 * t->m[i] + (1 - b1) * grad;
        t->v[i] = b2 * t->v[i] + (1 - b2) * grad * grad;
        double mean = t->m[i] / (1 - pow(b1, step_number));
        double square = t->v[i] / (1 - pow(b2, step_number));
        r[i] = mean / (sqrt(square) + (double)o->eps);
        if (t->adapt)
            r[i] += (double)o->weight_decay * t->w[i];
        ww += t->w[i] * t->w[i];
        rr += r[i] * r[i];
    }
    double ratio = t->adapt && ww > 0 && rr > 0 ? sqrt(ww / rr) : 1;
    for (size_t i = 0; i < t->n; i++)
        t->w[i] -= (double)o->lr * ratio * r[i];
    hth_free(r);
}

static void lamb_against_twin(const struct hth_backend *be, uint32_t rows, uint32_t cols,
                              bool no_decay)
{
    struct box b = box_new(be, rows, cols, no_decay);
    float *x = hth_new_array(float, b.n), *g = hth_new_array(float, b.n);
    double *d = hth_new_array(double, 3 * b.n);
    struct lamb_twin t = {d, d + b.n, d + 2 * b.n, b.n, !no_decay};
    fill(x, b.n, 3);
    for (size_t i = 0; i < b.n; i++)
        t.w[i] = (double)x[i];
    assert_ok(hth_weight_import(b.ex, b.w, HTH_PART_VALUE, x));
    for (int s = 1; s <= 4; s++) {
        fill(g, b.n, 10 + (uint64_t)s);
        lamb_twin_step(&t, &lamb, s, g, 0.25);
        step(&b, &lamb, g, 0.25f);
        assert_ok(hth_weight_export(b.ex, b.w, HTH_PART_VALUE, x));
        double off = hth_test_rel_l2(x, t.w, b.n);
        if (!(off < 2e-6))
            fail_msg("%s, [%u, %u], step %d: off by %.2e", hth_backend_name(be), rows, cols, s,
                     off);
    }
    box_free(&b);
    hth_free(x);
    hth_free(g);
    hth_free(d);
}

static void lamb_matches_its_twin(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1},   {1, 37},    {3, 511},
                                         {64, 64}, {129, 514}, {300, 700}};
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            lamb_against_twin(backends[k], shapes[s][0], shapes[s][1], false);
            lamb_against_twin(backends[k], shapes[s][0], shapes[s][1], true);
        }
    }
}

/* A norm of 0 makes the ratio 1, not NaN. */
static void lamb_ratio_is_one_for_zero_norms(void **state)
{
    static const float zeros[3], ones[3] = {1, 2, 3}, g[3] = {0.1f, -0.2f, 0.3f};
    float got[3];
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct hth_optim o = lamb;
        struct box b = box_new(backends[k], 1, 3, false);
        assert_ok(hth_weight_import(b.ex, b.w, HTH_PART_VALUE, zeros));
        step(&b, &o, g, 1);
        assert_ok(hth_weight_export(b.ex, b.w, HTH_PART_VALUE, got));
        for (int i = 0; i < 3; i++) /* the first step of any Adam: the gradient's sign */
            assert_close(got[i], g[i] > 0 ? -0.05 : 0.05, 2e-5, 0);
        box_free(&b);
        b = box_new(backends[k], 1, 3, false);
        o.weight_decay = 0;
        assert_ok(hth_weight_import(b.ex, b.w, HTH_PART_VALUE, ones));
        step(&b, &o, zeros, 1);
        assert_ok(hth_weight_export(b.ex, b.w, HTH_PART_VALUE, got));
        assert_memory_equal(got, ones, sizeof(got));
        box_free(&b);
    }
}

static void invalid_lamb_numbers_are_refused(void **state)
{
    (void)state;
    struct hth_optim o = lamb;
    assert_ok(hth_optim_check(&o));
    assert_int_equal(hth_optim_slots(&o), 2);
    o.trust_max = -1;
    assert_err(HTH_E_CONFIG, hth_optim_check(&o));
    o.trust_max = NAN;
    assert_err(HTH_E_CONFIG, hth_optim_check(&o));
    o = lamb;
    o.beta2 = 1;
    assert_err(HTH_E_CONFIG, hth_optim_check(&o));
    o = lamb;
    o.kind = (enum hth_optim_kind)4;
    assert_err(HTH_E_CONFIG, hth_optim_check(&o));
}

/* -- bits ---------------------------------------------------------------------------------- */

/* The kinds, and SGD without momentum. */
static struct hth_optim kind_of(int i)
{
    struct hth_optim o = HTH_OPTIM_INIT;
    o.kind = i < 4 ? (enum hth_optim_kind)i : HTH_OPTIM_SGD;
    o.momentum = i < 4 ? 0.9f : 0;
    o.weight_decay = 0.01f;
    o.lr = 0.01f;
    return o;
}

/* Makes three steps; returns values and states, 3 n floats. */
static float *three_steps(const struct hth_backend *be, uint32_t rows, uint32_t cols, int kind,
                          struct hth_team *team, bool with_images)
{
    struct box b = box_new(be, rows, cols, false);
    struct hth_optim o = kind_of(kind);
    float *out = hth_new_array(float, 3 * b.n), *g = hth_new_array(float, b.n);
    float *x = hth_new_array(float, 3 * (size_t)rows + 3 * (size_t)cols);
    struct hth_view in = hth_view_f32(x, 3, rows, rows);
    struct hth_view y = hth_view_f32(x + 3 * (size_t)rows, 3, cols, cols);
    struct hth_linear lin = {.w = b.w};
    hth_exec_set_team(b.ex, team);
    fill(out, b.n, 1);
    fill(x, 3 * (size_t)rows, 2);
    assert_ok(hth_weight_import(b.ex, b.w, HTH_PART_VALUE, out));
    for (int s = 0; s < 3; s++) {
        if (with_images) /* the forward pass needs one, the backward pass the other */
            assert_ok(hth_linear_forward(b.ex, &lin, in, y));
        struct hth_linear_back back = {.w = b.w};
        if (with_images && s > 0)
            assert_ok(hth_linear_backward_data(b.ex, &back, y, in));
        fill(g, b.n, 5 + (uint64_t)s);
        step(&b, &o, g, 0.5f);
        fill(x, 3 * (size_t)rows, 2);
    }
    assert_ok(hth_weight_export(b.ex, b.w, HTH_PART_VALUE, out));
    for (uint32_t i = 0; i < hth_optim_slots(&o); i++)
        assert_ok(hth_weight_export(b.ex, b.w, HTH_PART_STATE0 + i, out + (i + 1) * b.n));
    box_free(&b);
    hth_free(g);
    hth_free(x);
    return out;
}

/* Neither a team nor images of the weights change a bit. */
static void team_and_images_change_no_bit(void **state)
{
    static const uint32_t shapes[][2] = {{5, 9}, {131, 521}, {130, 66}};
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (int kind = 0; kind < 5; kind++) {
            for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
                uint32_t rows = shapes[s][0], cols = shapes[s][1];
                size_t bytes = 3 * (size_t)rows * cols * sizeof(float);
                float *want = three_steps(backends[k], rows, cols, kind, NULL, false);
                for (uint32_t width = 1; width <= 4; width++) {
                    struct test_team team = TEST_TEAM(width);
                    float *got = three_steps(backends[k], rows, cols, kind, &team.team, width > 2);
                    if (memcmp(got, want, bytes) != 0)
                        fail_msg("%s, kind %d, [%u, %u], %u threads: bits differ",
                                 hth_backend_name(backends[k]), kind, rows, cols, width);
                    assert_true(team.runs > 0 || (size_t)rows * cols < 65536);
                    hth_free(got);
                }
                float *got = three_steps(backends[k], rows, cols, kind, NULL, true);
                assert_memory_equal(got, want, bytes);
                hth_free(got);
                hth_free(want);
            }
        }
    }
}

/* After a step, products use the new values, as with images built from them. */
static void images_follow_a_step(void **state)
{
    /* The last shape's images are written past the caches. */
    static const uint32_t shapes[][2] = {{64, 64}, {70, 200}, {257, 131}, {1030, 2050}};
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            uint32_t rows = shapes[s][0], cols = shapes[s][1], m = 5;
            struct box a = box_new(backends[k], rows, cols, false);
            struct box fresh = box_new(backends[k], rows, cols, false);
            float *v = hth_new_array(float, a.n), *g = hth_new_array(float, a.n);
            float *x = hth_new_array(float, 3 * (size_t)m * (rows + cols)), *y = x + m * rows;
            float *y2 = y + m * cols, *dx = y2 + m * cols, *dx2 = dx + m * rows;
            struct hth_view in = hth_view_f32(x, m, rows, rows),
                            out = hth_view_f32(y, m, cols, cols);
            struct hth_view out2 = hth_view_f32(y2, m, cols, cols);
            struct hth_linear lin = {.w = a.w}, lin2 = {.w = fresh.w};
            struct hth_linear_back back = {.w = a.w}, back2 = {.w = fresh.w};
            struct hth_optim o = kind_of((int)s);
            fill(v, a.n, 1);
            fill(g, a.n, 2);
            fill(x, (size_t)m * rows, 3);
            assert_ok(hth_weight_import(a.ex, a.w, HTH_PART_VALUE, v));
            assert_ok(hth_linear_forward(a.ex, &lin, in, out)); /* makes the images */
            assert_ok(hth_linear_backward_data(a.ex, &back, out, hth_view_f32(dx, m, rows, rows)));
            for (int t = 0; t < 2; t++) {
                step(&a, &o, g, 1);
                assert_ok(hth_weight_export(a.ex, a.w, HTH_PART_VALUE, v));
                assert_ok(hth_weight_import(fresh.ex, fresh.w, HTH_PART_VALUE, v));
                assert_ok(hth_linear_forward(a.ex, &lin, in, out));
                assert_ok(hth_linear_forward(fresh.ex, &lin2, in, out2));
                assert_memory_equal(y, y2, (size_t)m * cols * sizeof(float));
                assert_ok(
                    hth_linear_backward_data(a.ex, &back, out, hth_view_f32(dx, m, rows, rows)));
                assert_ok(hth_linear_backward_data(fresh.ex, &back2, out2,
                                                   hth_view_f32(dx2, m, rows, rows)));
                assert_memory_equal(dx, dx2, (size_t)m * rows * sizeof(float));
            }
            box_free(&a);
            box_free(&fresh);
            hth_free(v);
            hth_free(g);
            hth_free(x);
        }
    }
}

/* -- the norm of gradients ----------------------------------------------------------------- */

static void grad_norm_is_right_and_bounded(void **state)
{
    static const uint32_t shapes[][2] = {{1, 5}, {512, 512}, {513, 1025}};
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            struct box b = box_new(backends[k], shapes[s][0], shapes[s][1], false);
            struct test_team team = TEST_TEAM(3);
            float *g = hth_new_array(float, b.n);
            double want = 0, norm = 0, shared = 0;
            bool finite = false;
            fill(g, b.n, 4);
            for (size_t i = 0; i < b.n; i++)
                want += (double)g[i] * (double)g[i];
            assert_ok(hth_weight_import(b.ex, b.w, HTH_PART_GRAD, g));
            assert_ok(hth_grad_norm(b.ex, b.p, &norm, &finite));
            assert_close(norm, sqrt(want), 1e-12, 0);
            assert_true(finite);
            hth_exec_set_team(b.ex, &team.team);
            assert_ok(hth_grad_norm(b.ex, b.p, &shared, &finite));
            assert_true(shared == norm && finite);
            static const float bad[] = {NAN, INFINITY, -INFINITY};
            for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
                size_t at = b.n - 1 - i % b.n;
                float kept = g[at];
                g[at] = bad[i];
                assert_ok(hth_weight_import(b.ex, b.w, HTH_PART_GRAD, g));
                assert_ok(hth_grad_norm(b.ex, b.p, &norm, &finite));
                assert_false(finite);
                g[at] = kept;
            }
            for (size_t i = 0; i < b.n; i++)
                g[i] = 3e38f; /* the sum of squares is beyond a float */
            assert_ok(hth_weight_import(b.ex, b.w, HTH_PART_GRAD, g));
            assert_ok(hth_grad_norm(b.ex, b.p, &norm, &finite));
            assert_true(finite);
            assert_close(norm, 3e38 * sqrt((double)b.n), 1e-6, 0);
            box_free(&b);
            hth_free(g);
        }
    }
}

int main(void)
{
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(lamb_matches_independent_numbers),
        cmocka_unit_test(lamb_matches_its_twin),
        cmocka_unit_test(lamb_ratio_is_one_for_zero_norms),
        cmocka_unit_test(invalid_lamb_numbers_are_refused),
        cmocka_unit_test(images_follow_a_step),
    };
    const struct CMUnitTest threads[] = {
        cmocka_unit_test(team_and_images_change_no_bit),
        cmocka_unit_test(grad_norm_is_right_and_bounded),
    };
    int failed = cmocka_run_group_tests(threads, setup, NULL);

    if (!HTH_TEST_ONLY_THREADS)
        failed += cmocka_run_group_tests(alone, setup, NULL);
    return failed;
}
