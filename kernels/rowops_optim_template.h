/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rowops_optim_template.h: the optimisers of rowops_template.h, which includes this; the equations
 * stand in optim.h.
 */

static inline struct hth_el_adam adam_of(const struct hth_step *s)
{
    bool decoupled = s->kind == HTH_OPTIM_ADAMW;
    return (struct hth_el_adam){
        .scale = s->grad_scale,
        .b1 = 1.0f - s->beta1,
        .beta2 = s->beta2,
        .b2 = 1.0f - s->beta2,
        .eps = s->eps,
        .rate = s->lr / s->bias1,
        .root = 1.0f / s->bias2_sqrt,
        .l2 = decoupled ? 0.0f : s->decay,
        .shrink = decoupled ? 1.0f - s->lr * s->decay : 1.0f,
    };
}

static void row_adam(const struct hth_step *s, const struct hth_row_step *r)
{
    float *w = r->w, *m = r->m, *v = r->v;
    const float *g = r->g;
    const struct hth_el_adam c = adam_of(s);
    VECTOR_LOOP
    for (size_t i = 0; i < r->count; i++) {
        float mean = m[i], square = v[i];
        w[i] = hth_el_adam(&c, w[i], g[i], &mean, &square);
        m[i] = mean;
        v[i] = square;
    }
}

static void row_sgd(const struct hth_step *s, const struct hth_row_step *r)
{
    float *w = r->w, *m = r->m;
    const float *g = r->g;
    float scale = s->grad_scale, lr = s->lr, momentum = s->momentum, decay = s->decay;
    if (momentum == 0) {
        VECTOR_LOOP
        for (size_t i = 0; i < r->count; i++)
            w[i] -= lr * (g[i] * scale + decay * w[i]);
        return;
    }
    VECTOR_LOOP
    for (size_t i = 0; i < r->count; i++) {
        float x = w[i], moved = momentum * m[i] + (g[i] * scale + decay * x);
        m[i] = moved;
        w[i] = x - lr * moved;
    }
}

static inline struct hth_el_lamb lamb_of(const struct hth_step *s)
{
    return (struct hth_el_lamb){1.0f / s->bias1, 1.0f / s->bias2_sqrt, s->eps, s->decay};
}

#define LAMB_STRETCH 512 /* floats whose updates are then squared */

static void row_lamb_moments(const struct hth_step *s, const struct hth_row_step *r, double sums[2])
{
    float update[LAMB_STRETCH], scale = s->grad_scale, b1 = 1.0f - s->beta1, beta2 = s->beta2;
    float b2 = 1.0f - beta2;
    const struct hth_el_lamb c = lamb_of(s);
    sums[0] = sums[1] = 0;
    for (size_t at = 0; at < r->count; at += LAMB_STRETCH) {
        size_t n = r->count - at < LAMB_STRETCH ? r->count - at : LAMB_STRETCH;
        float *m = r->m + at, *v = r->v + at;
        const float *g = r->g + at, *w = r->w + at;
        VECTOR_LOOP
        for (size_t i = 0; i < n; i++) {
            float grad = g[i] * scale;
            float mean = m[i] + b1 * (grad - m[i]);
            float square = beta2 * v[i] + b2 * (grad * grad);
            m[i] = mean;
            v[i] = square;
            update[i] = hth_el_lamb(&c, w[i], mean, square);
        }
        sums[0] += row_sumsq(n, w);
        sums[1] += row_sumsq(n, update);
    }
}

static void row_lamb_apply(const struct hth_step *s, const struct hth_row_step *r, float rate)
{
    const struct hth_el_lamb c = lamb_of(s);
    float *w = r->w;
    const float *m = r->m, *v = r->v;
    VECTOR_LOOP
    for (size_t i = 0; i < r->count; i++)
        w[i] -= rate * hth_el_lamb(&c, w[i], m[i], v[i]);
}
