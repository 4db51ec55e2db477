/* SPDX-License-Identifier: Apache-2.0 */
/* runner_crowd.c: many experts on one device; see runner_crowd.h. */
#include "kernels/runner_crowd.h"

#include <math.h>

#include "core/mem.h"
#include "kernels/blocks.h"
#include "kernels/optim.h"

#define EXPERTS 12
#define DIM     256
#define ROWS    32
#define ROUNDS  4

struct crowd {
    const struct hth_backend *be;
    struct hth_exec *ex;
    struct hth_params *p[EXPERTS];
    struct hth_ffn ffn[EXPERTS];
    struct hth_ffn_entry entry[EXPERTS];
    float *rows;
    uint8_t *saved;
};

static enum hth_err crowd_open(struct crowd *c, const struct hth_backend *be)
{
    const struct hth_ffn_options shape = {.dim = DIM, .eps = 1e-5f};
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    size_t one = (size_t)ROWS * DIM, all = 4 * EXPERTS * one;
    *c = (struct crowd){.be = be};
    for (uint32_t i = 0; i < EXPERTS; i++) {
        seal.stream = i;
        HTH_TRY(hth_params_new(be, &c->p[i]));
        HTH_TRY(hth_ffn_declare(c->p[i], &shape, &c->ffn[i]));
        HTH_TRY(hth_params_seal(c->p[i], &seal));
    }
    size_t saved = hth_ffn_saved_bytes(&c->ffn[0], ROWS);
    HTH_TRY(hth_exec_new(be, 0, &c->ex));
    HTH_TRY(hth_exec_reserve(c->ex, hth_ffn_many_scratch_bytes(c->ex, &c->ffn[0], ROWS, EXPERTS)));
    c->rows = hth_backend_alloc(be, all * sizeof(float));
    c->saved = hth_backend_alloc(be, EXPERTS * saved);
    float *host = hth_try_aligned(all * sizeof(float));
    HTH_ASSERT(c->rows != NULL && c->saved != NULL && host != NULL);
    for (size_t i = 0; i < all; i++)
        host[i] = (float)((i * 2654435761u >> 9) % 4001) / 2000.0f - 1.0f;
    enum hth_err err = hth_exec_upload(c->ex, c->rows, host, all * sizeof(float));
    hth_aligned_free(host);
    for (uint32_t i = 0; i < EXPERTS; i++) {
        float *at = c->rows + 4 * i * one;
        c->entry[i] = (struct hth_ffn_entry){.ffn = &c->ffn[i],
                                             .x = hth_view_f32(at, ROWS - i, DIM, DIM),
                                             .y = hth_view_f32(at + one, ROWS - i, DIM, DIM),
                                             .dy = hth_view_f32(at + 2 * one, ROWS - i, DIM, DIM),
                                             .dx = hth_view_f32(at + 3 * one, ROWS - i, DIM, DIM),
                                             .saved = c->saved + i * saved};
    }
    return err;
}

static void crowd_close(struct crowd *c)
{
    hth_exec_free(c->ex);
    hth_backend_free(c->be, c->rows);
    hth_backend_free(c->be, c->saved);
    for (uint32_t i = 0; i < EXPERTS; i++)
        hth_params_free(c->p[i]);
}

static enum hth_err pass(struct crowd *c, bool together, uint32_t i)
{
    const struct hth_ffn_entry *e = &c->entry[i];
    if (together && i > 0)
        return HTH_OK; /* the first call computed all */
    if (together) {
        HTH_TRY(hth_ffn_forward_many(c->ex, c->entry, EXPERTS));
        return hth_ffn_backward_many(c->ex, c->entry, EXPERTS);
    }
    HTH_TRY(hth_ffn_forward(c->ex, e->ffn, e->x, e->y, e->saved));
    return hth_ffn_backward(c->ex, e->ffn, e->x, e->saved, e->dy, e->dx);
}

static enum hth_err train(struct crowd *c, bool together)
{
    struct hth_optim optim = HTH_OPTIM_INIT;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < EXPERTS; i++) {
            HTH_TRY(pass(c, together, i));
            HTH_TRY(hth_exec_sync(c->ex));
        }
        for (uint32_t i = 0; i < EXPERTS && round % 2 == 1;
             i++) { /* after two rounds, which add up */
            HTH_TRY(hth_optim_step(c->ex, c->p[i], &optim, 1.0f / ROWS));
            hth_params_zero_grads(c->p[i]);
            HTH_TRY(hth_exec_sync(c->ex));
        }
    }
    return HTH_OK;
}

/* Distance of all weights after training. */
static enum hth_err compare(struct crowd *a, struct crowd *b, double *out)
{
    size_t len = hth_params_flat_len(a->p[0]);
    float *x = hth_try_aligned(len * sizeof(float)), *y = hth_try_aligned(len * sizeof(float));
    double diff = 0, norm = 0;
    HTH_ASSERT(x != NULL && y != NULL);
    enum hth_err err = HTH_OK;
    for (uint32_t i = 0; i < EXPERTS && err == HTH_OK; i++) {
        err = hth_params_export(a->ex, a->p[i], HTH_PART_VALUE, 0, len, x);
        if (err == HTH_OK)
            err = hth_params_export(b->ex, b->p[i], HTH_PART_VALUE, 0, len, y);
        for (size_t k = 0; k < len && err == HTH_OK; k++) {
            double d = (double)x[k] - (double)y[k];
            diff += d * d;
            norm += (double)y[k] * (double)y[k];
        }
    }
    *out = sqrt(diff / norm);
    hth_aligned_free(x);
    hth_aligned_free(y);
    return err;
}

static double apart(const struct hth_backend *one, bool together_one,
                    const struct hth_backend *other, bool together_other)
{
    struct crowd a, b = {0};
    double out = INFINITY;
    enum hth_err err;
    HTH_GOTO(out, crowd_open(&a, one));
    HTH_GOTO(out, crowd_open(&b, other));
    HTH_GOTO(out, train(&a, together_one));
    HTH_GOTO(out, train(&b, together_other));
    HTH_GOTO(out, compare(&a, &b, &out));
out:
    crowd_close(&a);
    if (b.be != NULL)
        crowd_close(&b);
    return err == HTH_OK && isfinite(out) ? out : INFINITY;
}

double runner_crowd(const struct hth_backend *be)
{
    return apart(be, false, hth_backend_ref(), false);
}

double runner_together(const struct hth_backend *be)
{
    return apart(be, true, be, false);
}

/* ---- again and again ----------------------------------------------------------------------- */

/* The largest difference; infinite for numbers that are not finite. */
static double farthest(const float *a, const float *b, size_t count)
{
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!isfinite(d))
            return INFINITY;
        if (d > worst)
            worst = d;
    }
    return worst;
}

double runner_again(const struct hth_backend *be)
{
    enum { TURNS = 6 };
    struct crowd c;
    size_t count = (size_t)ROWS * DIM;
    float *moved = NULL, *host = hth_try_aligned(2 * count * sizeof(float));
    double worst = INFINITY;
    enum hth_err err;
    HTH_ASSERT(host != NULL);
    HTH_GOTO(out, crowd_open(&c, be));
    moved = hth_backend_alloc(be, TURNS * count * sizeof(float));
    err = HTH_E_NO_MEMORY;
    if (moved == NULL)
        goto out;
    worst = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        const struct hth_ffn_entry *e = &c.entry[0];
        struct hth_view other = hth_view_f32(moved + turn * count, ROWS, DIM, DIM);
        HTH_GOTO(out, hth_combine(c.ex, 0.9f, e->x, 0.1f, e->dy, e->x)); /* other numbers */
        HTH_GOTO(out, hth_ffn_forward(c.ex, e->ffn, e->x, e->y, e->saved));
        HTH_GOTO(out, hth_ffn_forward(c.ex, e->ffn, e->x, other, e->saved));
        HTH_GOTO(out, hth_exec_download(c.ex, host, e->y.data, count * sizeof(float)));
        HTH_GOTO(out, hth_exec_download(c.ex, host + count, other.data, count * sizeof(float)));
        HTH_GOTO(out, hth_exec_sync(c.ex));
        worst = fmax(worst, farthest(host, host + count, count));
    }
out:
    hth_backend_free(be, moved);
    crowd_close(&c);
    hth_aligned_free(host);
    return err == HTH_OK ? worst : INFINITY;
}
