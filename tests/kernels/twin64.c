/* SPDX-License-Identifier: Apache-2.0 */
/* twin64.c: see twin64.h. */
#include "kernels/twin64.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/optim.h"

double twin_act(enum hth_act act, double x)
{
    if (act == HTH_ACT_GELU)
        return 0.5 * x * (1 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
    return act == HTH_ACT_RELU && x < 0 ? 0 : x;
}

double twin_act_slope(enum hth_act act, double x)
{
    if (act == HTH_ACT_GELU) {
        double t = tanh(0.7978845608 * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608 * (1 + 3 * 0.044715 * x * x);
    }
    return act == HTH_ACT_RELU && x <= 0 ? 0 : 1;
}

void twin_linear(struct twin_dims d, const double *x, const double *w, const double *b, double *y)
{
    size_t m = d.m, k = d.k, n = d.n;
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++)
            y[i * n + j] = b != NULL ? b[j] : 0;
        for (size_t l = 0; l < k; l++)
            for (size_t j = 0; j < n; j++)
                y[i * n + j] += x[i * k + l] * w[l * n + j];
    }
}

void twin_linear_back(struct twin_dims d, const struct twin_linear_back *t)
{
    size_t m = d.m, k = d.k, n = d.n;
    for (size_t i = 0; i < m && t->dx != NULL; i++) {
        for (size_t l = 0; l < k; l++) {
            double sum = 0;
            for (size_t j = 0; j < n; j++)
                sum += t->dy[i * n + j] * t->w[l * n + j];
            t->dx[i * k + l] = sum;
        }
    }
    for (size_t i = 0; i < m; i++) {
        const double *dy = t->dy + i * n;
        for (size_t j = 0; j < n && t->db != NULL; j++)
            t->db[j] += dy[j];
        for (size_t l = 0; l < k && t->dw != NULL; l++)
            for (size_t j = 0; j < n; j++)
                t->dw[l * n + j] += t->x[i * k + l] * dy[j];
    }
}

void twin_geglu(size_t m, size_t h, const double *x, double *y)
{
    for (size_t i = 0; i < m * h; i++) {
        const double *a = x + i / h * 2 * h + i % h;
        y[i] = twin_act(HTH_ACT_GELU, a[0]) * a[h];
    }
}

void twin_geglu_back(size_t m, size_t h, const double *x, const double *dy, double *dx)
{
    for (size_t i = 0; i < m * h; i++) {
        size_t at = i / h * 2 * h + i % h;
        dx[at] = dy[i] * x[at + h] * twin_act_slope(HTH_ACT_GELU, x[at]);
        dx[at + h] = dy[i] * twin_act(HTH_ACT_GELU, x[at]);
    }
}

void twin_scale(size_t m, size_t d, const double *x, const double *scale, double *y)
{
    for (size_t i = 0; i < m * d; i++)
        y[i] = x[i] * scale[i % d];
}

void twin_scale_back(size_t m, size_t d, const struct twin_scale_back *t)
{
    for (size_t i = 0; i < m * d; i++) {
        t->dscale[i % d] += t->dy[i] * t->x[i];
        t->dx[i] = t->dy[i] * t->scale[i % d];
    }
}

static void moments(size_t d, const double *x, double eps, double *mean, double *rstd)
{
    double sum = 0, square = 0;
    for (size_t j = 0; j < d; j++)
        sum += x[j];
    *mean = sum / (double)d;
    for (size_t j = 0; j < d; j++)
        square += (x[j] - *mean) * (x[j] - *mean);
    *rstd = 1 / sqrt(square / (double)d + eps);
}

void twin_layernorm(size_t m, size_t d, const struct twin_norm *t, double *y)
{
    for (size_t i = 0; i < m; i++) {
        double mean, rstd;
        moments(d, t->x + i * d, t->eps, &mean, &rstd);
        for (size_t j = 0; j < d; j++)
            y[i * d + j] = (t->x[i * d + j] - mean) * rstd * t->gamma[j] + t->beta[j];
    }
}

void twin_layernorm_back(size_t m, size_t d, const struct twin_norm *t, const double *dy,
                         double *dx)
{
    for (size_t i = 0; i < m; i++) {
        double mean, rstd, g = 0, gh = 0;
        moments(d, t->x + i * d, t->eps, &mean, &rstd);
        for (size_t j = 0; j < d; j++) {
            double h = (t->x[i * d + j] - mean) * rstd;
            g += dy[i * d + j] * t->gamma[j] / (double)d;
            gh += dy[i * d + j] * t->gamma[j] * h / (double)d;
        }
        for (size_t j = 0; j < d; j++) {
            double h = (t->x[i * d + j] - mean) * rstd, dyj = dy[i * d + j];
            t->dgamma[j] += dyj * h;
            t->dbeta[j] += dyj;
            dx[i * d + j] = rstd * (dyj * t->gamma[j] - g - h * gh);
        }
    }
}

void twin_softmax(size_t m, size_t n, const double *x, double *y)
{
    for (size_t i = 0; i < m; i++) {
        double top = x[i * n], sum = 0;
        for (size_t j = 1; j < n; j++)
            top = fmax(top, x[i * n + j]);
        for (size_t j = 0; j < n; j++)
            sum += y[i * n + j] = exp(x[i * n + j] - top);
        for (size_t j = 0; j < n; j++)
            y[i * n + j] /= sum;
    }
}

void twin_softmax_back(size_t m, size_t n, const double *y, const double *dy, double *dx)
{
    for (size_t i = 0; i < m; i++) {
        double sum = 0;
        for (size_t j = 0; j < n; j++)
            sum += y[i * n + j] * dy[i * n + j];
        for (size_t j = 0; j < n; j++)
            dx[i * n + j] = y[i * n + j] * (dy[i * n + j] - sum);
    }
}

double twin_xent(size_t m, size_t n, const double *x, const int *labels, double *dx)
{
    double loss = 0;
    double *p = hth_calloc(n, sizeof(double));
    for (size_t i = 0; i < m; i++) {
        twin_softmax(1, n, x + i * n, p);
        if (labels[i] >= 0)
            loss -= log(p[labels[i]]);
        for (size_t j = 0; j < n && dx != NULL; j++)
            dx[i * n + j] = labels[i] < 0 ? 0 : p[j] - ((size_t)labels[i] == j);
    }
    hth_free(p);
    return loss;
}

/* Element c of the head at `x` after (or, sign -1, before) the rotation of position t. */
static double rotated(const struct twin_attention *a, const double *x, size_t t, size_t c,
                      double sign)
{
    if (a->rope_base == 0 && a->angle == NULL)
        return x[c];
    size_t dh = a->dim / a->heads, half = dh / 2, i = c % half;
    double angle = a->angle != NULL ? a->angle[t * half + i]
                                    : (double)t * pow(a->rope_base, -2.0 * (double)i / (double)dh);
    if (c < half)
        return x[i] * cos(angle) - sign * x[i + half] * sin(angle);
    return sign * x[i] * sin(angle) + x[i + half] * cos(angle);
}

static bool sees(const struct twin_attention *a, size_t b, size_t t, size_t s)
{
    return a->sees != NULL ? a->sees[(b * a->seq + t) * a->seq + s] : s <= t;
}

/* One head of one sequence, rotated: q, k, v [seq, dh] and the probabilities p [seq, seq]. */
struct twin_head {
    double *q, *k, *v, *p;
};

static struct twin_head head_new(const struct twin_attention *a, const double *qkv, size_t b,
                                 size_t head)
{
    size_t T = a->seq, dh = a->dim / a->heads;
    struct twin_head h;
    h.q = hth_calloc(T * dh, sizeof(double));
    h.k = hth_calloc(T * dh, sizeof(double));
    h.v = hth_calloc(T * dh, sizeof(double));
    h.p = hth_calloc(T * T, sizeof(double));
    for (size_t t = 0; t < T; t++) {
        const double *row = qkv + (b * T + t) * 3 * a->dim + head * dh;
        for (size_t c = 0; c < dh; c++) {
            h.q[t * dh + c] = rotated(a, row, t, c, 1);
            h.k[t * dh + c] = rotated(a, row + a->dim, t, c, 1);
            h.v[t * dh + c] = row[2 * a->dim + c];
        }
    }
    for (size_t t = 0; t < T; t++) {
        for (size_t s = 0; s < T; s++) {
            double sum = 0;
            for (size_t c = 0; c < dh && sees(a, b, t, s); c++)
                sum += h.q[t * dh + c] * h.k[s * dh + c];
            h.p[t * T + s] = sees(a, b, t, s) ? sum / sqrt((double)dh) : -INFINITY;
        }
        twin_softmax(1, T, h.p + t * T, h.p + t * T);
    }
    return h;
}

static void head_free(struct twin_head *h)
{
    hth_free(h->q);
    hth_free(h->k);
    hth_free(h->v);
    hth_free(h->p);
}

void twin_attention(const struct twin_attention *a, const double *qkv, double *out)
{
    size_t T = a->seq, dh = a->dim / a->heads;
    for (size_t i = 0; i < a->batch * a->heads; i++) {
        size_t b = i / a->heads, head = i % a->heads;
        struct twin_head h = head_new(a, qkv, b, head);
        for (size_t t = 0; t < T; t++) {
            for (size_t c = 0; c < dh; c++) {
                double sum = 0;
                for (size_t s = 0; s < T; s++)
                    sum += h.p[t * T + s] * h.v[s * dh + c];
                out[(b * T + t) * a->dim + head * dh + c] = sum;
            }
        }
        head_free(&h);
    }
}

static void head_back(const struct twin_attention *a, const struct twin_head *h, const double *dout,
                      double *dq, double *dk, double *dv)
{
    size_t T = a->seq, dh = a->dim / a->heads;
    double *dp = hth_calloc(T, sizeof(double)), *ds = hth_calloc(T, sizeof(double));
    for (size_t t = 0; t < T; t++) {
        const double *g = dout + t * a->dim;
        for (size_t s = 0; s < T; s++) {
            dp[s] = 0;
            for (size_t c = 0; c < dh && h->p[t * T + s] != 0; c++) {
                dp[s] += g[c] * h->v[s * dh + c];
                dv[s * dh + c] += h->p[t * T + s] * g[c];
            }
        }
        twin_softmax_back(1, T, h->p + t * T, dp, ds);
        for (size_t s = 0; s < T; s++) {
            double slope = ds[s] / sqrt((double)dh);
            for (size_t c = 0; c < dh && h->p[t * T + s] != 0; c++) {
                dq[t * dh + c] += slope * h->k[s * dh + c];
                dk[s * dh + c] += slope * h->q[t * dh + c];
            }
        }
    }
    hth_free(dp);
    hth_free(ds);
}

void twin_attention_back(const struct twin_attention *a, const double *qkv, const double *dout,
                         double *dqkv)
{
    size_t T = a->seq, dh = a->dim / a->heads;
    for (size_t i = 0; i < a->batch * a->heads; i++) {
        size_t b = i / a->heads, head = i % a->heads;
        struct twin_head h = head_new(a, qkv, b, head);
        double *d = hth_calloc(3 * T * dh, sizeof(double));
        head_back(a, &h, dout + b * T * a->dim + head * dh, d, d + T * dh, d + 2 * T * dh);
        for (size_t t = 0; t < T; t++) {
            double *row = dqkv + (b * T + t) * 3 * a->dim + head * dh;
            for (size_t c = 0; c < dh; c++) {
                row[c] = rotated(a, d + t * dh, t, c, -1);
                row[a->dim + c] = rotated(a, d + (T + t) * dh, t, c, -1);
                row[2 * a->dim + c] = d[(2 * T + t) * dh + c];
            }
        }
        hth_free(d);
        head_free(&h);
    }
}

void twin_optim(const struct twin_optim *o, int t, double g, double *w, double *m, double *v)
{
    if (o->kind == HTH_OPTIM_SGD) {
        g += o->decay * *w;
        *m = o->momentum * *m + g;
        *w -= o->lr * *m;
        return;
    }
    if (o->kind == HTH_OPTIM_ADAM)
        g += o->decay * *w;
    else
        *w *= 1 - o->lr * o->decay;
    *m = o->beta1 * *m + (1 - o->beta1) * g;
    *v = o->beta2 * *v + (1 - o->beta2) * g * g;
    *w -= o->lr / (1 - pow(o->beta1, t)) * *m / (sqrt(*v) / sqrt(1 - pow(o->beta2, t)) + o->eps);
}

void twin_lamb(const struct twin_lamb *o, int t, size_t n, const double *g, double *w, double *m,
               double *v)
{
    double *r = hth_calloc(n, sizeof(double)), values = 0, moves = 0, ratio = 1;
    for (size_t i = 0; i < n; i++) {
        m[i] = o->beta1 * m[i] + (1 - o->beta1) * g[i];
        v[i] = o->beta2 * v[i] + (1 - o->beta2) * g[i] * g[i];
        r[i] = m[i] / (1 - pow(o->beta1, t)) / (sqrt(v[i] / (1 - pow(o->beta2, t))) + o->eps) +
               o->decay * w[i];
        values += w[i] * w[i];
        moves += r[i] * r[i];
    }
    if (o->adapt && values > 0 && moves > 0) {
        ratio = sqrt(values / moves);
        ratio = o->trust_max > 0 && ratio > o->trust_max ? o->trust_max : ratio;
    }
    for (size_t i = 0; i < n; i++)
        w[i] -= o->lr * ratio * r[i];
    hth_free(r);
}
