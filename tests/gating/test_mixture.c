/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mixture over survivors: outputs against a double twin, gradients against central differences,
 * and outputs and scores that are missing, huge or not finite.
 */
#include "core/limits.h"
#include "core/rng.h"
#include "gating/mixture.h"
#include "support/suite.h"

#include <float.h>

enum { ROWS = 7, K = 5, D = 37 }; /* D is no multiple of the lanes */

struct fixture {
    float scores[ROWS * K];
    float values[ROWS * K * D];
    const float *y[ROWS * K];
    float weights[ROWS * K];
    float out[ROWS * D];
    struct hth_mixture m;
};

static void fill(struct fixture *f, struct hth_rng *rng, double missing)
{
    for (int i = 0; i < ROWS * K; i++) {
        f->scores[i] = (float)(3.0 * hth_rng_normal(rng));
        f->y[i] = hth_rng_chance(rng, missing) ? NULL : f->values + i * D;
    }
    for (int i = 0; i < ROWS * K * D; i++)
        f->values[i] = (float)hth_rng_normal(rng);
    f->m = (struct hth_mixture){
        .rows = ROWS, .k = K, .d = D, .k_min = 2, .scores = f->scores, .y = f->y};
}

/* out[d] in double; an empty row gives zeros. */
static void twin(const double *z, const float *const *y, const double *values, double *out)
{
    double max = -INFINITY, sum = 0.0;
    for (int j = 0; j < K; j++)
        max = y[j] != NULL && z[j] > max ? z[j] : max;
    memset(out, 0, D * sizeof(*out));
    for (int j = 0; j < K; j++)
        sum += y[j] != NULL ? exp(z[j] - max) : 0.0;
    for (int j = 0; j < K; j++) {
        for (int i = 0; i < D && y[j] != NULL; i++)
            out[i] += exp(z[j] - max) / sum * values[j * D + i];
    }
}

TEST(forward_matches_twin_for_random_masks)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 1);
    for (int round = 0; round < 200; round++) {
        struct fixture f;
        struct hth_mixture_stats stats;
        fill(&f, &rng, (double)round / 200.0);
        hth_mixture_forward(&f.m, f.weights, f.out, &stats);
        uint64_t answers = 0, empty = 0, below = 0, fewer = 0;
        for (int b = 0; b < ROWS; b++) {
            double z[K], values[K * D], want[D], sum = 0.0;
            int have = 0;
            for (int j = 0; j < K; j++) {
                have += f.y[b * K + j] != NULL;
                z[j] = f.scores[b * K + j];
                sum += f.weights[b * K + j];
                assert_true(f.weights[b * K + j] >= 0.0f);
                assert_true(f.y[b * K + j] != NULL || f.weights[b * K + j] == 0.0f);
            }
            for (int i = 0; i < K * D; i++)
                values[i] = f.values[b * K * D + i];
            twin(z, f.y + b * K, values, want);
            assert_true(hth_test_rel_l2(f.out + b * D, want, D) < 1e-6);
            assert_close(sum, have > 0 ? 1.0 : 0.0, 1e-6, 0);
            answers += (uint64_t)have;
            empty += have == 0;
            below += have < 2;
            fewer += have < K;
        }
        assert_int_equal(stats.answers, answers);
        assert_int_equal(stats.rows_empty, empty);
        assert_int_equal(stats.rows_below_k_min, below);
        assert_int_equal(stats.rows_short, fewer);
    }
}

static double row_loss(const double *z, const float *const *y, const double *values, const float *g)
{
    double out[D], loss = 0.0;
    twin(z, y, values, out);
    for (int i = 0; i < D; i++)
        loss += (double)g[i] * out[i];
    return loss;
}

static void check_row_gradient(const struct fixture *f, int b, const float *dout,
                               const float *dscores, float *const *dy)
{
    double z[K], values[K * D];
    const float *const *y = f->y + b * K;
    const float *g = dout + b * D;
    for (int j = 0; j < K; j++)
        z[j] = f->scores[b * K + j];
    for (int i = 0; i < K * D; i++)
        values[i] = f->values[b * K * D + i];
    for (int j = 0; j < K; j++) {
        double keep = z[j];
        z[j] = keep + 1e-4;
        double up = row_loss(z, y, values, g);
        z[j] = keep - 1e-4;
        double down = row_loss(z, y, values, g);
        z[j] = keep;
        assert_close(dscores[b * K + j], (up - down) / 2e-4, 1e-4, 2e-5);
        if (y[j] == NULL)
            assert_true(dscores[b * K + j] == 0.0f);
        for (int i = 0; i < D; i += 9) {
            double v = values[j * D + i];
            values[j * D + i] = v + 1e-3;
            up = row_loss(z, y, values, g);
            values[j * D + i] = v - 1e-3;
            down = row_loss(z, y, values, g);
            values[j * D + i] = v;
            assert_close(dy[b * K + j][i], (up - down) / 2e-3, 1e-5, 1e-6);
        }
    }
}

TEST(gradient_matches_central_differences)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 2);
    for (int round = 0; round < 20; round++) {
        struct fixture f;
        float dout[ROWS * D], dscores[ROWS * K], grads[ROWS * K * D];
        float *dy[ROWS * K];
        fill(&f, &rng, 0.3);
        hth_mixture_forward(&f.m, f.weights, f.out, NULL);
        for (int i = 0; i < ROWS * D; i++)
            dout[i] = (float)hth_rng_normal(&rng);
        for (int i = 0; i < ROWS * K; i++)
            dy[i] = grads + i * D;
        memset(grads, 0xff, sizeof(grads)); /* NaN: backward must write all */
        hth_mixture_backward(&f.m, f.weights, dout, dscores, dy);
        for (int b = 0; b < ROWS; b++)
            check_row_gradient(&f, b, dout, dscores, dy);
        /* A call without dy gives the same dscores. */
        float again[ROWS * K];
        hth_mixture_backward(&f.m, f.weights, dout, again, NULL);
        assert_memory_equal(again, dscores, sizeof(again));
    }
}

/* A softmax over no survivor is 0/0: the row must get zeros instead. */
TEST(row_without_survivor_gives_zeros)
{
    (void)state;
    struct hth_rng rng;
    struct fixture f;
    struct hth_mixture_stats stats;
    float dout[ROWS * D], dscores[ROWS * K];
    hth_rng_init(&rng, 3);
    fill(&f, &rng, 0.0);
    for (int j = 0; j < K; j++)
        f.y[2 * K + j] = NULL;
    memset(f.out, 0xff, sizeof(f.out));
    hth_mixture_forward(&f.m, f.weights, f.out, &stats);
    assert_int_equal(stats.rows_empty, 1);
    for (int i = 0; i < D; i++) {
        assert_true(f.out[2 * D + i] == 0.0f);
        assert_true(f.out[1 * D + i] != 0.0f);
    }
    for (int i = 0; i < ROWS * D; i++)
        dout[i] = 1.0f;
    hth_mixture_backward(&f.m, f.weights, dout, dscores, NULL);
    for (int j = 0; j < K; j++)
        assert_true(dscores[2 * K + j] == 0.0f);
}

TEST(extreme_scores_give_finite_weights)
{
    (void)state;
    static const struct {
        float z[K];
        float want[K];
        unsigned empty;
    } cases[] = {
        {{1e30f, 1e30f, -1e30f, 0, -INFINITY}, {0.5f, 0.5f, 0, 0, 0}, 0},
        {{FLT_MAX, -FLT_MAX, -FLT_MAX, 0, 1}, {1, 0, 0, 0, 0}, 0},
        {{-FLT_MAX, -FLT_MAX, -INFINITY, NAN, -INFINITY}, {0.5f, 0.5f, 0, 0, 0}, 0},
        {{INFINITY, 3, INFINITY, 0, 0}, {0.5f, 0, 0.5f, 0, 0}, 0},
        {{NAN, 1, NAN, -INFINITY, 1}, {0, 0.5f, 0, 0, 0.5f}, 0},
        {{NAN, NAN, -INFINITY, -INFINITY, NAN}, {0, 0, 0, 0, 0}, 1},
        {{-200, -200, -200, -200, -500}, {0.25f, 0.25f, 0.25f, 0.25f, 0}, 0},
    };
    struct hth_rng rng;
    hth_rng_init(&rng, 4);
    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        struct fixture f;
        struct hth_mixture_stats stats;
        float dout[D], dscores[K];
        fill(&f, &rng, 0.0);
        f.m.rows = 1;
        memcpy(f.scores, cases[c].z, sizeof(cases[c].z));
        hth_mixture_forward(&f.m, f.weights, f.out, &stats);
        assert_int_equal(stats.rows_empty, cases[c].empty);
        for (int i = 0; i < D; i++)
            dout[i] = 1.0f;
        hth_mixture_backward(&f.m, f.weights, dout, dscores, NULL);
        for (int j = 0; j < K; j++) {
            assert_close(f.weights[j], cases[c].want[j], 1e-6, 0);
            assert_true(isfinite(dscores[j]));
        }
        for (int i = 0; i < D; i++)
            assert_true(isfinite(f.out[i]));
    }
}

TEST(outputs_not_finite_are_dropped)
{
    (void)state;
    struct hth_rng rng;
    struct fixture f;
    struct hth_mixture_stats stats;
    hth_rng_init(&rng, 5);
    fill(&f, &rng, 0.0);
    f.values[(0 * K + 1) * D + D - 1] = NAN;
    f.values[(3 * K + 0) * D] = INFINITY;
    f.values[(3 * K + 4) * D + 17] = -INFINITY;
    f.y[5 * K] = NULL;
    assert_int_equal(hth_mixture_drop_not_finite(f.y, ROWS * K, D), 3);
    assert_null(f.y[0 * K + 1]);
    assert_null(f.y[3 * K + 0]);
    assert_null(f.y[3 * K + 4]);
    assert_int_equal(hth_mixture_drop_not_finite(f.y, ROWS * K, D), 0);
    hth_mixture_forward(&f.m, f.weights, f.out, &stats);
    assert_int_equal(stats.answers, ROWS * K - 4);
    for (int i = 0; i < ROWS * D; i++)
        assert_true(isfinite(f.out[i]));
}

/* k_min applies to each row: one row with too few answers keeps the batch from being ready. */
TEST(ready_needs_k_min_in_each_row)
{
    (void)state;
    static const float some[1] = {0};
    const float *y[3 * 4] = {
        some, some, some, some, NULL, some, NULL, some, NULL, NULL, NULL, some,
    };
    uint32_t asked[3] = {4, 4, 1};
    assert_true(hth_mixture_ready(y, NULL, 3, 4, 1));
    assert_false(hth_mixture_ready(y, NULL, 3, 4, 2));
    assert_true(hth_mixture_ready(y, asked, 3, 4, 2)); /* row 2 asked for one expert only */
    assert_false(hth_mixture_ready(y, asked, 3, 4, 3));
    assert_true(hth_mixture_ready(y, NULL, 3, 4, 0));
    assert_true(hth_mixture_ready(y, NULL, 2, 4, 2));
    assert_true(hth_mixture_ready(y, NULL, 1, 4, 9)); /* more than k: all k suffice */
}

/* A row gives the same bits in any batch. */
TEST(bits_do_not_depend_on_the_batch)
{
    (void)state;
    struct hth_rng rng;
    struct fixture f;
    hth_rng_init(&rng, 6);
    fill(&f, &rng, 0.2);
    hth_mixture_forward(&f.m, f.weights, f.out, NULL);
    for (int b = 0; b < ROWS; b++) {
        float weights[K], out[D];
        struct hth_mixture one = f.m;
        one.rows = 1;
        one.scores += b * K;
        one.y += b * K;
        hth_mixture_forward(&one, weights, out, NULL);
        assert_memory_equal(out, f.out + b * D, sizeof(out));
        assert_memory_equal(weights, f.weights + b * K, sizeof(weights));
    }
}
