/* SPDX-License-Identifier: Apache-2.0 */
/* canary.c: see canary.h. */
#include "experts/canary.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/order.h"

#define VOICES     8  /* that a full batch has at least */
#define VOICES_MIN 4  /* of a batch that says something */
#define RISES      3  /* changes in a row that a jump takes: noise goes both ways */
#define ROWS       32 /* of a batch, where rows stand alone */
#define STEPS      16 /* at least, between the two looks, and of collecting */
#define WORK       16 /* rows of backwards meanwhile, in rows of the batch */
#define CHECKS_MIN 8  /* from which on the usual size is known */
#define USUAL_KEEP 0.9
#define MEAN_KEEP  0.8
#define CHANGE_MAX 6 /* of one change, in usual sizes: a jump takes several */

/* A unit is a sequence, or a row that stands alone. */
struct hth_canary {
    uint32_t d, unit_rows, units_max;
    uint32_t units;
    uint32_t steps; /* since it collects, then since the first look */
    uint64_t work;  /* rows of backwards, likewise */
    bool looked;
    uint32_t checks;
    uint32_t rises;                    /* changes in a row, up to now */
    double usual;                      /* mean of |change| */
    double mean;                       /* of the last changes */
    struct hth_sender_id sender[ROWS]; /* of each unit */
    double before[ROWS];               /* the sum of dy . y of each unit at the first look */
    float *x, *dy;
};

struct hth_canary *hth_canary_new(const struct hth_expert_shape *shape)
{
    struct hth_canary *c = hth_new(struct hth_canary);
    size_t floats;

    c->d = shape->d;
    c->unit_rows = shape->block_rows;
    c->units_max = shape->block_rows == 1 ? ROWS : VOICES;
    floats = (size_t)c->units_max * c->unit_rows * c->d;
    c->x = hth_new_array(float, floats);
    c->dy = hth_new_array(float, floats);
    return c;
}

void hth_canary_free(struct hth_canary *canary)
{
    if (canary == NULL)
        return;
    hth_free(canary->x);
    hth_free(canary->dy);
    hth_free(canary);
}

static bool is_of(const struct hth_canary *c, uint32_t unit, struct hth_sender_id id)
{
    return c->sender[unit].number == id.number && c->sender[unit].probation == id.probation;
}

static uint32_t units_of(const struct hth_canary *c, struct hth_sender_id id)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->units; i++)
        n += is_of(c, i, id);
    return n;
}

/* Writes the directions of a unit's rows. False: none has a gradient. */
static bool put_directions(const struct hth_canary *c, const float *dy, float *to)
{
    bool any = false;

    for (uint32_t row = 0; row < c->unit_rows; row++, dy += c->d, to += c->d) {
        double sumsq = 0;
        for (uint32_t k = 0; k < c->d; k++)
            sumsq += (double)dy[k] * dy[k];
        for (uint32_t k = 0; k < c->d; k++)
            to[k] = sumsq > 0 ? (float)(dy[k] / sqrt(sumsq)) : 0;
        any |= sumsq > 0;
    }
    return any;
}

void hth_canary_keep(struct hth_canary *canary, struct hth_sender_id sender, uint32_t rows,
                     const float *x, const float *dy)
{
    struct hth_canary *c = canary;
    size_t floats = (size_t)c->unit_rows * c->d;
    uint32_t most = c->units_max / VOICES;

    c->work += rows;
    if (c->looked || c->units == c->units_max)
        return;
    for (uint32_t had = units_of(c, sender);
         rows >= c->unit_rows && had < most && c->units < c->units_max;
         rows -= c->unit_rows, x += floats, dy += floats) {
        if (!put_directions(c, dy, c->dy + c->units * floats))
            continue;
        memcpy(c->x + c->units * floats, x, floats * sizeof(float));
        c->sender[c->units++] = sender;
        had++;
    }
}

static uint32_t rows_of(const struct hth_canary *c, uint32_t units)
{
    return units * c->unit_rows;
}

size_t hth_canary_scratch_bytes(const struct hth_canary *canary, const struct hth_expert *expert)
{
    uint32_t rows = rows_of(canary, canary->units_max);

    return hth_expert_scratch_bytes(expert, rows, false) +
           2 * hth_exec_cost((size_t)rows * canary->d * sizeof(float));
}

/* Computes y of the batch into `y`, which is this process's memory. */
static enum hth_err forward(const struct hth_canary *c, const struct hth_expert *expert,
                            struct hth_exec *ex, float *y)
{
    uint32_t rows = rows_of(c, c->units);
    size_t bytes = (size_t)rows * c->d * sizeof(float);
    float *in = hth_exec_take(ex, bytes), *out = hth_exec_take(ex, bytes);

    if (in == NULL || out == NULL)
        return HTH_E_NO_MEMORY;
    HTH_TRY(hth_exec_upload(ex, in, c->x, bytes));
    HTH_TRY(hth_expert_forward(expert, ex, hth_view_f32(in, rows, c->d, c->d),
                               hth_view_f32(out, rows, c->d, c->d)));
    return hth_exec_download(ex, y, out, bytes);
}

/* The sum of dy . y of each unit. */
static enum hth_err look(const struct hth_canary *c, const struct hth_expert *expert,
                         struct hth_exec *ex, double sum[ROWS])
{
    size_t floats = (size_t)c->unit_rows * c->d;
    float *y = hth_new_array(float, c->units *floats);
    enum hth_err err = forward(c, expert, ex, y);
    enum hth_err synced = hth_exec_sync(ex); /* after a failure, too: the memory is freed next */

    for (uint32_t u = 0; u < c->units; u++) {
        sum[u] = 0;
        for (size_t i = u * floats; i < (u + 1) * floats; i++)
            sum[u] += (double)c->dy[i] * y[i];
    }
    hth_free(y);
    return err != HTH_OK ? err : synced;
}

/* Whether the unit is the first of its sender. */
static bool is_first(const struct hth_canary *c, uint32_t unit)
{
    uint32_t first = 0;

    while (!is_of(c, first, c->sender[unit]))
        first++;
    return first == unit;
}

static uint32_t senders_of(const struct hth_canary *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->units; i++)
        n += is_first(c, i);
    return n;
}

/* The lower median of the senders' mean changes. Not finite if one of them is. */
static double middle_change(const struct hth_canary *c, const double after[ROWS])
{
    double change[ROWS], mean;
    uint32_t senders = 0;

    for (uint32_t i = 0; i < c->units; i++) {
        uint32_t n = units_of(c, c->sender[i]);
        if (!is_first(c, i))
            continue;
        mean = 0;
        for (uint32_t u = i; u < c->units; u++)
            mean += is_of(c, u, c->sender[i]) ? (after[u] - c->before[u]) / n / c->unit_rows : 0;
        if (!isfinite(mean))
            return mean;
        change[senders++] = mean;
    }
    return hth_kth(change, senders, (senders - 1) / 2);
}

static void begin(struct hth_canary *c)
{
    c->units = c->steps = 0;
    c->work = 0;
    c->looked = false;
}

/* True if the changes rise. The usual size grows slowly: the first changes of an attack may go
 * anywhere. */
static bool judge(struct hth_canary *c, double change)
{
    double size, most = 2 * c->usual;

    if (!isfinite(change))
        return true;
    size = c->checks < CHECKS_MIN ? fabs(change) : fmin(fabs(change), most);
    c->usual = c->checks > 0 ? USUAL_KEEP * c->usual + (1 - USUAL_KEEP) * size : size;
    c->mean = MEAN_KEEP * c->mean + (1 - MEAN_KEEP) * fmin(change, CHANGE_MAX * c->usual);
    c->checks += c->checks < CHECKS_MIN;
    c->rises = change > 0 ? c->rises + 1 : 0;
    return c->checks == CHECKS_MIN && c->rises >= RISES && c->mean > HTH_CANARY_FACTOR * c->usual;
}

/* The second look. */
static bool finish(struct hth_canary *c, const struct hth_expert *expert, struct hth_exec *ex)
{
    double after[ROWS];
    bool jump = look(c, expert, ex, after) == HTH_OK && judge(c, middle_change(c, after));

    c->mean = jump ? 0 : c->mean;
    begin(c);
    return jump;
}

bool hth_canary_stepped(struct hth_canary *canary, const struct hth_expert *expert,
                        struct hth_exec *ex)
{
    struct hth_canary *c = canary;
    bool due;

    c->steps++;
    due = c->steps >= STEPS && c->work >= WORK * (uint64_t)rows_of(c, c->units);
    if (c->units == 0 || !(due || (!c->looked && c->units == c->units_max)))
        return false;
    if (c->looked)
        return finish(c, expert, ex);
    c->looked = senders_of(c) >= VOICES_MIN && look(c, expert, ex, c->before) == HTH_OK;
    if (!c->looked)
        begin(c);
    c->steps = 0;
    c->work = 0;
    return false;
}
