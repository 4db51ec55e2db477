/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_judge.c: unpacks the answers and judges their numbers (client.h has the equations). A job
 * reads the rows; the loop then reports each host's and each part's verdict.
 */
#include "core/order.h"
#include "experts/client_int.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Gains sampled of a batch, evenly apart, for its usual gain. */
#define SAMPLE_MAX 256
#define F16_MAX    65504.0f

/* ---- numbers ------------------------------------------------------------------------------- */

static const float *rows_of(const struct hth_tensor *t, size_t first)
{
    return (const float *)(const void *)(t->blob->data + t->offset) + first;
}

/* The sum of squares that pair i's answer is compared with; n numbers. A unit's sum of x is the
 * same for all its pairs: `units` caches it, or holds 0. */
static double asked(const struct hth_expert_batch *b, uint32_t i, size_t n, double *units)
{
    if (b->backward)
        return hth_rows_sumsq(rows_of(&b->dy, i * n), n);
    double *sum = &units[b->pairs[i].unit];
    if (*sum == 0)
        *sum = fmax(hth_rows_sumsq(rows_of(&b->x, b->pairs[i].unit * n), n), (double)n);
    return *sum;
}

/* The root of the ratio; 0 where `out` is 0. */
static double gain_of(double out, double in)
{
    return out > 0 ? sqrt(out / in) : 0;
}

/* The lower quartile. A host with less than three quarters of the pairs can't raise it above the
 * others' gains. */
static double usual(const float *gains, uint32_t count)
{
    double sample[SAMPLE_MAX];
    uint32_t n = 0, step = count / SAMPLE_MAX + 1;

    for (uint32_t i = 0; i < count; i += step)
        if (gains[i] >= 0)
            sample[n++] = (double)gains[i];
    if (n == 0)
        return 0;
    return hth_kth(sample, n, (n - 1) / 4);
}

/* True if a host may refuse the pair's rows as this client sent them. On the wire fp16 makes
 * numbers beyond its range infinite. */
static bool are_ours_bad(const struct hth_expert_batch *b, uint32_t i, size_t n)
{
    float most = b->wire == HTH_F16 ? F16_MAX : HTH_EXPERT_NUMBER_MAX;

    return !hth_rows_below(rows_of(&b->x, b->pairs[i].unit * n), n, most) ||
           (b->backward && !hth_rows_below(rows_of(&b->dy, i * n), n, most));
}

/* Writes the answer's rows to `to`. Returns their gain, or -1 if they are not finite or beyond
 * HTH_EXPERT_NUMBER_MAX. */
static float take(struct hth_expert_batch *b, uint32_t i, size_t n, double *units, float *to)
{
    const double most = (double)HTH_EXPERT_NUMBER_MAX * (double)HTH_EXPERT_NUMBER_MAX;
    const struct cl_place *at = &b->places[i];
    struct cl_group *g = b->groups[at->group];
    const uint8_t *from =
        g->reply.blob->data + g->reply.offset + at->row * hth_rows_bytes(b->wire, b->d);
    double out, gain;

    hth_rows_to_f32(from, b->wire, b->block_rows, b->d, to);
    out = hth_rows_sumsq(to, n);
    if (!isfinite(out)) {
        g->status[at->part] = HTH_E_NOT_FINITE;
        return -1;
    }
    gain = fmin(gain_of(out, asked(b, i, n, units)), FLT_MAX);
    g->gain[at->part] = fmaxf(g->gain[at->part], (float)gain);
    if (out <= most)
        return (float)gain;
    g->status[at->part] = HTH_E_RANGE;
    return -1;
}

/* ---- a job --------------------------------------------------------------------------------- */

/* Writes all rows, and the gain of each pair or -1. Returns how many answers it refused. */
static uint32_t take_all(struct hth_expert_batch *b, float *out, size_t stride, uint8_t *ok,
                         float *gains)
{
    size_t n = (size_t)b->block_rows * b->d;
    double *units = hth_new_array(double, b->units);
    uint32_t refused = 0;

    for (uint32_t i = 0; i < b->pairs_count; i++) {
        const struct cl_place *at = &b->places[i];
        enum hth_err *status = &b->groups[at->group]->status[at->part];

        gains[i] = -1;
        if (b->verdicts[i] == HTH_OK) {
            gains[i] = take(b, i, n, units, out + i * stride);
            refused += gains[i] < 0;
        } else if ((*status == HTH_E_NOT_FINITE || *status == HTH_E_RANGE) &&
                   are_ours_bad(b, i, n)) {
            *status = HTH_E_CANCELED; /* our rows were bad: no verdict on the host */
        }
        ok[i] = gains[i] >= 0;
        if (!ok[i])
            memset(out + i * stride, 0, n * sizeof(float));
    }
    hth_free(units);
    return refused;
}

uint32_t hth_expert_batch_unpack(struct hth_expert_batch *batch, float *out, size_t stride,
                                 uint8_t *ok)
{
    size_t n = (size_t)batch->block_rows * batch->d;
    float *gains = hth_new_array(float, batch->pairs_count);
    uint32_t refused = take_all(batch, out, stride, ok, gains);
    double most = batch->gain_max;

    batch->gain_usual = usual(gains, batch->pairs_count);
    if (most <= 0)
        most = HTH_EXPERT_GAIN_FACTOR * fmin(fmax(batch->gain_usual, 1), HTH_EXPERT_GAIN_FIRST_MAX);
    for (uint32_t i = 0; i < batch->pairs_count; i++) {
        const struct cl_place *at = &batch->places[i];

        if (!(gains[i] > most))
            continue;
        batch->groups[at->group]->status[at->part] = HTH_E_RANGE;
        memset(out + i * stride, 0, n * sizeof(float));
        ok[i] = 0;
        refused++;
    }
    hth_free(gains);
    return refused;
}

double hth_expert_batch_gain(const struct hth_expert_batch *batch)
{
    return batch->gain_usual;
}

/* ---- the loop ------------------------------------------------------------------------------ */

static void judge_group(struct cl_group *g, hth_expert_host_fn *on_host,
                        hth_expert_part_fn *on_part, void *arg)
{
    const struct hth_expert_batch *b = g->batch;
    enum hth_err worst = HTH_OK;
    uint32_t bad = 0;

    for (uint32_t i = 0; i < g->parts; i++) {
        enum hth_err status = g->status[i];

        if (status == HTH_E_CANCELED) /* no verdict on the host */
            continue;
        /* No faults of the host: its rule for gradients, and a record older than its experts. */
        if (status != HTH_OK && status != HTH_E_NO_SUCH_EXPERT &&
            !(status == HTH_E_NORM && b->backward)) {
            bad++;
            worst = status;
        }
        if (on_part != NULL)
            on_part(arg, &g->to.peer, g->coord + (size_t)i * b->ndim, status, (double)g->gain[i]);
    }
    if (on_host != NULL)
        on_host(arg, &g->to.peer, 2 * bad > g->parts ? worst : HTH_OK, g->rtt_us);
}

/* The host refused the request to the end. on_part gets E_BUSY whatever the refusal said, because
 * breakers take some other errors as faults of this machine. */
static void tell_refused(const struct cl_group *g, hth_expert_part_fn *on_part, void *arg)
{
    const struct hth_expert_batch *b = g->batch;

    for (uint32_t i = 0; i < g->parts; i++)
        on_part(arg, &g->to.peer, g->coord + (size_t)i * b->ndim, HTH_E_BUSY, 0);
}

void hth_expert_batch_judge(struct hth_expert_batch *batch, hth_expert_host_fn *on_host,
                            hth_expert_part_fn *on_part, void *arg)
{
    for (uint32_t i = 0; batch->finished && i < batch->groups_count; i++) {
        struct cl_group *g = batch->groups[i];

        if (g->answered)
            judge_group(g, on_host, on_part, arg);
        else if (g->refused && on_part != NULL)
            tell_refused(g, on_part, arg);
        g->answered = g->refused = false;
    }
}
