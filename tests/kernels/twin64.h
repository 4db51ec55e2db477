/* SPDX-License-Identifier: Apache-2.0 */
/*
 * twin64.h: every operation in double and in the simplest code: the standard for the reference
 * kernels. Matrices are dense and row-major. Backward functions add to weight gradients and
 * overwrite the others. test_twin.c checks them against central differences.
 */
#ifndef HTH_TESTS_KERNELS_TWIN64_H
#define HTH_TESTS_KERNELS_TWIN64_H

#include <stddef.h>

#include "kernels/ops.h"

double twin_act(enum hth_act act, double x);
double twin_act_slope(enum hth_act act, double x);

/* y [m, h] = gelu(a) b with x [m, 2 h] = [a b]. */
void twin_geglu(size_t m, size_t h, const double *x, double *y);
void twin_geglu_back(size_t m, size_t h, const double *x, const double *dy, double *dx);
/* y [m, d] = x * scale [d]. */
void twin_scale(size_t m, size_t d, const double *x, const double *scale, double *y);
struct twin_scale_back {
    const double *x, *scale, *dy;
    double *dx, *dscale;
};
void twin_scale_back(size_t m, size_t d, const struct twin_scale_back *t);

/* y [m, n] = x [m, k] w [k, n] + b (b may be NULL). */
struct twin_dims {
    size_t m, k, n;
};
void twin_linear(struct twin_dims d, const double *x, const double *w, const double *b, double *y);
/* dx, dw, db may be NULL. */
struct twin_linear_back {
    const double *x, *w, *dy;
    double *dx, *dw, *db;
};
void twin_linear_back(struct twin_dims d, const struct twin_linear_back *t);

struct twin_norm {
    const double *x, *gamma, *beta;
    double eps;
    double *dgamma, *dbeta; /* of the backward pass */
};
void twin_layernorm(size_t m, size_t d, const struct twin_norm *t, double *y);
void twin_layernorm_back(size_t m, size_t d, const struct twin_norm *t, const double *dy,
                         double *dx);

void twin_softmax(size_t m, size_t n, const double *x, double *y);
void twin_softmax_back(size_t m, size_t n, const double *y, const double *dy, double *dx);
/* Sum of the losses; dx = softmax - onehot (zero for rows labelled -1). dx may be NULL. */
double twin_xent(size_t m, size_t n, const double *x, const int *labels, double *dx);

struct twin_attention {
    size_t batch, seq, heads, dim; /* dim: of all heads together */
    double rope_base;              /* 0: no rotation */
    const double *angle;           /* [seq, head / 2] in place of a base; or NULL */
    const unsigned char *sees;     /* [batch, query, key]; NULL: causal */
};
void twin_attention(const struct twin_attention *t, const double *qkv, double *out);
void twin_attention_back(const struct twin_attention *t, const double *qkv, const double *dout,
                         double *dqkv);

struct twin_optim {
    int kind; /* enum hth_optim_kind */
    double lr, momentum, beta1, beta2, eps, decay;
};
/* Step number `t` (from 1) on one parameter. */
void twin_optim(const struct twin_optim *o, int t, double g, double *w, double *m, double *v);

/* LAMB's step number `t` on a tensor of n (optim.h has the equations). */
struct twin_lamb {
    double lr, beta1, beta2, eps, decay;
    bool adapt;       /* the tensor has a ratio */
    double trust_max; /* 0: no bound */
};
void twin_lamb(const struct twin_lamb *o, int t, size_t n, const double *g, double *w, double *m,
               double *v);

#endif
