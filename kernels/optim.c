/* SPDX-License-Identifier: Apache-2.0 */
/* optim.c: optimiser steps over flat buffers, clipping, schedules; the equations stand in optim.h.
 */
#include <math.h>

#include "kernels/backend-internal.h"
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
    else if (opt->kind == HTH_OPTIM_ADAM || opt->kind == HTH_OPTIM_ADAMW)
        good = good && within(opt->beta1, 0, 1) && within(opt->beta2, 0, 1) &&
               within(opt->eps, 0, INFINITY);
    else
        good = false;
    return good ? HTH_OK : HTH_E_CONFIG;
}

/* base^n by squaring: exact order of operations, whatever the C library. */
static double power(double base, uint64_t n)
{
    double result = 1.0;
    for (; n > 0; n >>= 1, base *= base) {
        if (n & 1)
            result *= base;
    }
    return result;
}

static enum hth_err step_adam(struct hth_exec *ex, struct hth_params *p,
                              const struct hth_optim *opt, float grad_scale)
{
    struct hth_adam_args args = {
        .grad_scale = grad_scale,
        .lr = opt->lr,
        .beta1 = opt->beta1,
        .beta2 = opt->beta2,
        .eps = opt->eps,
        .bias1 = (float)(1.0 - power((double)opt->beta1, p->steps)),
        .bias2_sqrt = (float)sqrt(1.0 - power((double)opt->beta2, p->steps)),
        .decoupled = opt->kind == HTH_OPTIM_ADAMW,
    };
    for (uint32_t i = 0; i < p->count; i++) {
        const struct hth_weight *w = p->weights[i];
        args.w = w->value;
        args.g = w->grad;
        args.m = p->state[0] + w->offset;
        args.v = p->state[1] + w->offset;
        args.count = (size_t)w->rows * w->cols;
        args.decay = w->no_decay ? 0 : opt->weight_decay;
        HTH_TRY(ex->be->adam(ex, &args));
    }
    return HTH_OK;
}

static enum hth_err step_sgd(struct hth_exec *ex, struct hth_params *p, const struct hth_optim *opt,
                             float grad_scale)
{
    struct hth_sgd_args args = {.grad_scale = grad_scale, .lr = opt->lr, .momentum = opt->momentum};
    for (uint32_t i = 0; i < p->count; i++) {
        const struct hth_weight *w = p->weights[i];
        args.w = w->value;
        args.g = w->grad;
        args.m = opt->momentum != 0 ? p->state[0] + w->offset : NULL;
        args.count = (size_t)w->rows * w->cols;
        args.decay = w->no_decay ? 0 : opt->weight_decay;
        HTH_TRY(ex->be->sgd(ex, &args));
    }
    return HTH_OK;
}

enum hth_err hth_optim_step(struct hth_exec *ex, struct hth_params *p, const struct hth_optim *opt,
                            float grad_scale)
{
    HTH_TRY(hth_optim_check(opt));
    if (p->grad == NULL || p->slots < hth_optim_slots(opt) || ex->be != p->be)
        return HTH_E_UNSUPPORTED;
    HTH_TRY(hth_params_grads_ready(p));
    HTH_TRY(hth_params_states_ready(p));
    p->steps++;
    hth_params_touched(p);
    return opt->kind == HTH_OPTIM_SGD ? step_sgd(ex, p, opt, grad_scale)
                                      : step_adam(ex, p, opt, grad_scale);
}

/* Columns of a view are 32 bits wide. */
#define NORM_CHUNK ((size_t)1 << 24)

enum hth_err hth_grad_norm(struct hth_exec *ex, struct hth_params *p, double *norm, bool *finite)
{
    if (p->grad == NULL)
        return HTH_E_UNSUPPORTED;
    HTH_TRY(hth_params_grads_ready(p));
    double sum = 0;
    for (size_t at = 0; at < p->flat_len; at += NORM_CHUNK) {
        uint32_t n = (uint32_t)HTH_MIN(p->flat_len - at, NORM_CHUNK);
        struct hth_sumsq_result part = {0};
        HTH_TRY(ex->be->sumsq(ex, hth_view_f32(p->grad + at, 1, n, n), &part));
        HTH_TRY(hth_exec_sync(ex));
        sum += part.sum;
    }
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
    double keep = 1.0 - t; /* the share of the way from final to top */
    if (s->kind == HTH_SCHEDULE_COSINE) {
        double sine, cosine;
        hth_sincos64(3.14159265358979324 * t, &sine, &cosine);
        keep = 0.5 * (1.0 + cosine);
    }
    return (float)((double)s->lr_final + ((double)s->lr - (double)s->lr_final) * keep);
}
