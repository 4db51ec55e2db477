/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_twin.c: the float64 twin's gradients against central differences of its forward functions.
 * All other tests rely on the twin, so it needs a test of its own.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "kernels/twin64.h"
#include "support/suite.h"

/* A scalar function of a vector: L(x) = sum(weight * f(x)). */
struct problem {
    size_t n, outs;
    double *x, *weight, *y;
    void (*forward)(struct problem *p, const double *x, double *y);
    size_t rows, a, b;
    double *aux; /* fixed second input */
    int labels[8];
    struct twin_attention att;
};

static struct hth_rng rng;

static double *random_vector(size_t n)
{
    double *x = hth_calloc(n, sizeof(double));
    for (size_t i = 0; i < n; i++)
        x[i] = 2 * hth_rng_unit(&rng) - 1;
    return x;
}

static struct problem problem_new(size_t n, size_t outs, size_t aux)
{
    struct problem p = {.n = n, .outs = outs};
    hth_rng_init(&rng, n + 1000 * outs);
    p.x = random_vector(n);
    p.weight = random_vector(outs);
    p.y = hth_calloc(outs, sizeof(double));
    p.aux = random_vector(aux + 1);
    return p;
}

static double value(struct problem *p, const double *x)
{
    double sum = 0;
    p->forward(p, x, p->y);
    for (size_t i = 0; i < p->outs; i++)
        sum += p->weight[i] * p->y[i];
    return sum;
}

/* Checks the analytic gradient of all elements against central differences. */
static void check(struct problem *p, const double *grad)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < p->n; i++) {
        double at = p->x[i], h = 1e-5 * fmax(1, fabs(at));
        p->x[i] = at + h;
        double up = value(p, p->x);
        p->x[i] = at - h;
        double down = value(p, p->x);
        p->x[i] = at;
        double slope = (up - down) / (2 * h);
        diff += (slope - grad[i]) * (slope - grad[i]);
        norm += slope * slope;
    }
    assert_true(norm > 1e-6);
    if (!(sqrt(diff / norm) < 1e-7))
        fail_msg("gradient of %zu inputs is off by %.3e", p->n, sqrt(diff / norm));
    hth_free(p->x);
    hth_free(p->weight);
    hth_free(p->y);
    hth_free(p->aux);
}

static void gelu_forward(struct problem *p, const double *x, double *y)
{
    for (size_t i = 0; i < p->n; i++)
        y[i] = twin_act(HTH_ACT_GELU, 5 * x[i]);
}

TEST(gelu_gradient_matches_differences)
{
    (void)state;
    struct problem p = problem_new(40, 40, 0);
    double grad[40];
    p.forward = gelu_forward;
    for (size_t i = 0; i < 40; i++)
        grad[i] = p.weight[i] * 5 * twin_act_slope(HTH_ACT_GELU, 5 * p.x[i]);
    check(&p, grad);
}

static void geglu_forward(struct problem *p, const double *x, double *y)
{
    twin_geglu(p->rows, p->a, x, y);
}

TEST(geglu_gradient_matches_differences)
{
    (void)state;
    enum { M = 3, H = 5 };
    struct problem p = problem_new(M * 2 * H, M * H, 0);
    double grad[M * 2 * H];
    p.rows = M;
    p.a = H;
    p.forward = geglu_forward;
    twin_geglu_back(M, H, p.x, p.weight, grad);
    check(&p, grad);
}

/* x holds the input and the scale. */
static void scale_forward(struct problem *p, const double *x, double *y)
{
    twin_scale(p->rows, p->a, x, x + p->rows * p->a, y);
}

TEST(scale_gradient_matches_differences)
{
    (void)state;
    enum { M = 4, D = 5 };
    struct problem p = problem_new((M + 1) * D, M * D, 0);
    double grad[(M + 1) * D] = {0};
    p.rows = M;
    p.a = D;
    p.forward = scale_forward;
    const struct twin_scale_back t = {p.x, p.x + M * D, p.weight, grad, grad + M * D};
    twin_scale_back(M, D, &t);
    check(&p, grad);
}

/* x holds the input, the weight and the bias, one after the other. */
static void linear_forward(struct problem *p, const double *x, double *y)
{
    const double *w = x + p->rows * p->a, *b = w + p->a * p->b;
    twin_linear((struct twin_dims){p->rows, p->a, p->b}, x, w, b, y);
}

TEST(linear_gradient_matches_differences)
{
    (void)state;
    enum { M = 3, K = 4, N = 5 };
    struct problem p = problem_new(M * K + K * N + N, M * N, 0);
    double grad[M * K + K * N + N] = {0};
    p.rows = M;
    p.a = K;
    p.b = N;
    p.forward = linear_forward;
    struct twin_linear_back t = {p.x,  p.x + M * K,  p.weight,
                                 grad, grad + M * K, grad + M * K + K * N};
    twin_linear_back((struct twin_dims){M, K, N}, &t);
    check(&p, grad);
}

static void norm_forward(struct problem *p, const double *x, double *y)
{
    struct twin_norm t = {x, x + p->rows * p->a, x + (p->rows + 1) * p->a, 1e-3, NULL, NULL};
    twin_layernorm(p->rows, p->a, &t, y);
}

TEST(layernorm_gradient_matches_differences)
{
    (void)state;
    enum { M = 3, D = 7 };
    struct problem p = problem_new((M + 2) * D, M * D, 0);
    double grad[(M + 2) * D] = {0};
    p.rows = M;
    p.a = D;
    p.forward = norm_forward;
    struct twin_norm t = {p.x,  p.x + M * D,  p.x + (M + 1) * D,
                          1e-3, grad + M * D, grad + (M + 1) * D};
    twin_layernorm_back(M, D, &t, p.weight, grad);
    check(&p, grad);
}

static void softmax_forward(struct problem *p, const double *x, double *y)
{
    twin_softmax(p->rows, p->a, x, y);
}

TEST(softmax_gradient_matches_differences)
{
    (void)state;
    enum { M = 3, N = 6 };
    struct problem p = problem_new(M * N, M * N, 0);
    double grad[M * N], y[M * N];
    p.rows = M;
    p.a = N;
    p.forward = softmax_forward;
    twin_softmax(M, N, p.x, y);
    twin_softmax_back(M, N, y, p.weight, grad);
    check(&p, grad);
}

static void xent_forward(struct problem *p, const double *x, double *y)
{
    y[0] = twin_xent(p->rows, p->a, x, p->labels, NULL);
}

TEST(xent_gradient_matches_differences)
{
    (void)state;
    enum { M = 4, N = 6 };
    struct problem p = problem_new(M * N, 1, 0);
    double grad[M * N];
    p.rows = M;
    p.a = N;
    p.forward = xent_forward;
    p.weight[0] = 1;
    int labels[] = {5, 0, -1, 3};
    memcpy(p.labels, labels, sizeof(labels));
    twin_xent(M, N, p.x, p.labels, grad);
    check(&p, grad);
}

static void attention_forward(struct problem *p, const double *x, double *y)
{
    twin_attention(&p->att, x, y);
}

TEST(attention_gradient_matches_differences)
{
    (void)state;
    enum { B = 2, T = 5, D = 8 };
    const unsigned char sees[B * T * T] = {
        1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1,
        1, 1, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 1,
    };
    for (int rotary = 0; rotary < 3; rotary++) {
        struct problem p = problem_new(B * T * 3 * D, B * T * D, 0);
        double grad[B * T * 3 * D];
        p.att = (struct twin_attention){B, T, 2, D, rotary ? 100 : 0, NULL, NULL};
        if (rotary == 2)
            p.att.sees = sees;
        p.forward = attention_forward;
        twin_attention_back(&p.att, p.x, p.weight, grad);
        check(&p, grad);
    }
}
