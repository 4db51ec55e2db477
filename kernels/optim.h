/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim.h: optimisers, clipping and learning-rate schedules.
 *
 * A step makes one pass over the flat buffers of a parameter set: it reads value, gradient and
 * state and writes value and state (28 bytes a parameter for Adam). It scales the gradient in the
 * same pass, so that accumulation counts and clipping need no pass of their own.
 *
 * The equations are PyTorch's (torch.optim.SGD, Adam, AdamW), t counting from 1:
 *   g = grad * grad_scale
 *   SGD:    g += weight_decay * w;  m = momentum * m + g (m = g at t = 1);  w -= lr * m
 *   Adam:   g += weight_decay * w;  AdamW: w *= 1 - lr * weight_decay
 *           m += (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g^2
 *           w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *
 * LAMB (You et al. 2020, algorithm 2), for batches so large that one rate does not fit all tensors:
 *   m, v as Adam's, without weight decay
 *   r = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + weight_decay * w
 *   w -= lr * ratio * r,   ratio = ||w|| / ||r|| over the tensor (2-norms), at most trust_max;
 *                          1 where a norm is 0, and for tensors without weight decay (biases,
 *                          norms), as in the authors' code
 * It reads and writes 40 bytes a parameter, because it needs the norms first. They are sums in
 * double of parts in fixed order.
 *
 * The context's team (core/team.h) shares the work; the bits do not depend on it.
 */
#ifndef HTH_KERNELS_OPTIM_H
#define HTH_KERNELS_OPTIM_H

#include "core/base.h"
#include "kernels/params.h"

enum hth_optim_kind { HTH_OPTIM_SGD, HTH_OPTIM_ADAM, HTH_OPTIM_ADAMW, HTH_OPTIM_LAMB };

struct hth_optim {
    enum hth_optim_kind kind;
    float lr;
    float momentum; /* SGD */
    float beta1, beta2, eps;
    float weight_decay;
    float trust_max; /* LAMB: bound of the trust ratio; 0: none */
};
#define HTH_OPTIM_INIT                                                                             \
    ((struct hth_optim){.kind = HTH_OPTIM_ADAM,                                                    \
                        .lr = 1e-3f,                                                               \
                        .momentum = 0.9f,                                                          \
                        .beta1 = 0.9f,                                                             \
                        .beta2 = 0.999f,                                                           \
                        .eps = 1e-8f})

/* States the optimiser keeps per parameter: 0, 1 or 2. */
uint32_t hth_optim_slots(const struct hth_optim *opt);
/* Errors: E_CONFIG (a number out of range: negative rate, beta outside [0, 1), NaN). */
enum hth_err hth_optim_check(const struct hth_optim *opt) HTH_MUST;

/* One step with gradients * grad_scale; counts the step; does not change the gradients.
 * Errors: E_CONFIG (see check), E_UNSUPPORTED (the set lacks gradients or state slots). */
enum hth_err hth_optim_step(struct hth_exec *ex, struct hth_params *p, const struct hth_optim *opt,
                            float grad_scale) HTH_MUST;

/* The 2-norm of all gradients together; *finite is false when one is NaN or infinite, and the norm
 * then is, too. Waits for the context. Errors: E_UNSUPPORTED (no gradients). */
enum hth_err hth_grad_norm(struct hth_exec *ex, struct hth_params *p, double *norm,
                           bool *finite) HTH_MUST;

/* The factor that brings a norm down to max_norm: PyTorch's min(1, max_norm / (norm + 1e-6)); 1
 * when max_norm <= 0 (no clipping). Pass factor * scale as grad_scale. */
float hth_clip_scale(double norm, double max_norm);

enum hth_schedule_kind { HTH_SCHEDULE_CONSTANT, HTH_SCHEDULE_LINEAR, HTH_SCHEDULE_COSINE };

struct hth_schedule {
    enum hth_schedule_kind kind;
    float lr;              /* at the top */
    float lr_final;        /* after total_steps, where the kind decays */
    uint64_t warmup_steps; /* linear from lr / warmup_steps up to lr */
    uint64_t total_steps;  /* warm-up included; 0: never decays */
};

/* The rate for step 0, 1, 2, ...: a pure function with the same bits on every machine. */
float hth_schedule_lr(const struct hth_schedule *s, uint64_t step);

#endif
