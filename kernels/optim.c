/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.c: optimiser steps over flat buffers, clipping, schedules; the equations stand in optim.h.
 */
#include <math.h>

#include "kernels/backend_int.h"
#include "kernels/math64.h"

uint32_t hth_optim_slots(const struct hth_optim *opt)
{
    if (opt->kind == HTH_OPTIM_SGD)
        return opt->momentum != 0 ? 1 : 0;
    return 2;
}

static bool within(float x, float low, float below)
{
    return x >= low && x < below; /* false for NaN */
}

enum hth_err hth_optim_check(const struct hth_optim *opt)
{
    bool good = within(opt->lr, 0, INFINITY) && within(opt->weight_decay, 0, INFINITY);
    if (opt->kind == HTH_OPTIM_SGD)
        good = good && within(opt->momentum, 0, 1);
    else if (opt->kind == HTH_OPTIM_ADAM || opt->kind == HTH_OPTIM_ADAMW ||
             opt->kind == HTH_OPTIM_LAMB)
        good = good && within(opt->trust_max, 0, INFINITY) && within(opt->beta1, 0, 1) &&
               within(opt->beta2, 0, 1) && within(opt->eps, 0, INFINITY);
    else
        good = false;
    return good ? HTH_OK : HTH_E_CONFIG;
}

/* base^n by squaring: a fixed order of operations with any C library. */
static double power(double base, uint64_t n)
{
    double result = 1.0;
    for (; n > 0; n >>= 1, base *= base) {
        if (n & 1)
            result *= base;
    }
    return result;
}

static struct hth_step step_of(const struct hth_optim *opt, uint64_t steps, float grad_scale)
{
    struct hth_step s = {.kind = opt->kind, .grad_scale = grad_scale, .lr = opt->lr};
    if (opt->kind == HTH_OPTIM_SGD) {
        s.momentum = opt->momentum;
        return s;
    }
    s.beta1 = opt->beta1;
    s.beta2 = opt->beta2;
    s.eps = opt->eps;
    s.bias1 = (float)(1.0 - power((double)opt->beta1, steps));
    s.bias2_sqrt = (float)sqrt(1.0 - power((double)opt->beta2, steps));
    s.trust_max = opt->trust_max;
    return s;
}

enum hth_err hth_optim_step(struct hth_exec *ex, struct hth_params *p, const struct hth_optim *opt,
                            float grad_scale)
{
    HTH_TRY(hth_optim_check(opt));
    if (!p->has_grads || p->slots < hth_optim_slots(opt) || ex->be != p->be)
        return HTH_E_UNSUPPORTED;
    uint32_t states = HTH_HOLD_STATES & ((HTH_HOLD_GRAD << 1 << p->slots) - 1);
    HTH_TRY(hth_params_hold(ex, p, 0, HTH_HOLD_VALUE | HTH_HOLD_GRAD | states));
    HTH_TRY(hth_params_grads_ready(p, opt->kind != HTH_OPTIM_LAMB));
    HTH_TRY(hth_params_states_ready(p));
    p->steps++;
    hth_params_touched(p);
    struct hth_step s = step_of(opt, p->steps, grad_scale);
    if (ex->be->step_all != NULL)
        return ex->be->step_all(ex, p, &s, opt->weight_decay);
    for (uint32_t i = 0; i < p->count; i++) {
        struct hth_weight *w = p->weights[i];
        s.decay = w->no_decay ? 0 : opt->weight_decay;
        s.adapt = !w->no_decay;
        HTH_TRY(ex->be->step(ex, w, &s));
    }
    return HTH_OK;
}

/* Columns of a view for the norm: a team shares its rows, whose sums are added in order. */
#define NORM_COLS ((size_t)1 << 18)
#define NORM_ROWS ((size_t)64)

/* Adds the squares of the gradients from `at` to `end`. */
static enum hth_err add_squares(struct hth_exec *ex, struct hth_params *p, size_t at, size_t end,
                                double *sum)
{
    while (at < end) {
        size_t left = end - at, rows = HTH_MIN(left / NORM_COLS, NORM_ROWS);
        uint32_t cols = (uint32_t)(rows > 0 ? NORM_COLS : left);
        HTH_TRY(hth_params_hold(ex, p, 0, HTH_HOLD_GRAD)); /* held until the sync below */
        HTH_TRY(hth_params_grads_ready(p, true));
        struct hth_view v = hth_view_f32(p->grad + at, rows > 0 ? (uint32_t)rows : 1, cols, cols);
        struct hth_sumsq_result part = {0};
        HTH_TRY(ex->be->sumsq(ex, v, &part));
        HTH_TRY(hth_exec_sync(ex));
        *sum += part.sum;
        at += (size_t)v.rows * cols;
    }
    return HTH_OK;
}

enum hth_err hth_grad_norm(struct hth_exec *ex, struct hth_params *p, double *norm, bool *finite)
{
    if (!p->has_grads)
        return HTH_E_UNSUPPORTED;
    double sum = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct hth_weight *w = p->weights[i];
        if (!hth_weight_is_product(w))
            continue;
        HTH_TRY(add_squares(ex, p, at, w->offset, &sum));
        sum += p->be->factors_sumsq(w);
        at = w->offset + (size_t)w->rows * w->cols;
    }
    HTH_TRY(add_squares(ex, p, at, p->flat_len, &sum));
    *norm = sqrt(sum);
    *finite = isfinite(sum);
    return HTH_OK;
}

float hth_clip_scale(double norm, double max_norm)
{
    if (!(max_norm > 0))
        return 1.0f;
    double scale = max_norm / (norm + 1e-6);
    return scale < 1.0 ? (float)scale : 1.0f;
}

float hth_schedule_lr(const struct hth_schedule *s, uint64_t step)
{
    if (step < s->warmup_steps)
        return (float)((double)s->lr * (double)(step + 1) / (double)s->warmup_steps);
    if (s->kind == HTH_SCHEDULE_CONSTANT || s->total_steps <= s->warmup_steps)
        return s->lr;
    if (step >= s->total_steps)
        return s->lr_final;
    double t = (double)(step - s->warmup_steps) / (double)(s->total_steps - s->warmup_steps);
    double keep = 1.0 - t; /* 1 at the top, 0 at lr_final */
    if (s->kind == HTH_SCHEDULE_COSINE) {
        double sine, cosine;
        hth_sincos64(3.14159265358979324 * t, &sine, &cosine);
        keep = 0.5 * (1.0 + cosine);
    }
    return (float)((double)s->lr_final + ((double)s->lr - (double)s->lr_final) * keep);
}
