/* SPDX-License-Identifier: Apache-2.0 */
/* canary.c: see canary.h. */
#include "experts/canary.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"

#define SENDER_ROWS 4
#define STEPS       16 /* between the two looks */
#define CHECKS_MIN  8  /* from which on the usual size is known */
#define USUAL_KEEP  0.9
#define MEAN_KEEP   0.8
#define CHANGE_MAX  6 /* of one change, in usual sizes: a jump takes several */

struct hth_canary {
    uint32_t d, rows, steps;
    uint32_t checks;
    double usual; /* mean of |change| */
    double mean;  /* of the last changes */
    struct hth_sender_id sender[HTH_CANARY_ROWS];
    float *x, *dy, *before, *after;
};

struct hth_canary *hth_canary_new(uint32_t d)
{
    struct hth_canary *c = hth_new(struct hth_canary);
    float **all[] = {&c->x, &c->dy, &c->before, &c->after};

    c->d = d;
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        *all[i] = hth_new_array(float, (size_t)HTH_CANARY_ROWS *d);
    return c;
}

void hth_canary_free(struct hth_canary *canary)
{
    if (canary == NULL)
        return;
    hth_free(canary->x);
    hth_free(canary->dy);
    hth_free(canary->before);
    hth_free(canary->after);
    hth_free(canary);
}

static uint32_t rows_of(const struct hth_canary *c, struct hth_sender_id id)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->rows; i++)
        n += c->sender[i].number == id.number && c->sender[i].probation == id.probation;
    return n;
}

void hth_canary_keep(struct hth_canary *canary, struct hth_sender_id sender, uint32_t rows,
                     const float *x, const float *dy)
{
    struct hth_canary *c = canary;
    uint32_t had = c->rows < HTH_CANARY_ROWS ? rows_of(c, sender) : SENDER_ROWS;

    for (uint32_t i = 0; i < rows && had < SENDER_ROWS && c->rows < HTH_CANARY_ROWS; i++) {
        float *to = c->dy + (size_t)c->rows * c->d;
        double sumsq = 0;
        for (uint32_t k = 0; k < c->d; k++)
            sumsq += (double)dy[i * c->d + k] * dy[i * c->d + k];
        if (!(sumsq > 0))
            continue;
        for (uint32_t k = 0; k < c->d; k++)
            to[k] = (float)(dy[i * c->d + k] / sqrt(sumsq));
        memcpy(c->x + (size_t)c->rows * c->d, x + (size_t)i * c->d, c->d * sizeof(float));
        c->sender[c->rows++] = sender;
        had++;
    }
}

static enum hth_err forward(struct hth_canary *c, const struct hth_expert *expert,
                            struct hth_exec *ex, float *y)
{
    HTH_TRY(hth_expert_forward(expert, ex, hth_view_f32(c->x, HTH_CANARY_ROWS, c->d, c->d),
                               hth_view_f32(y, HTH_CANARY_ROWS, c->d, c->d)));
    return hth_exec_sync(ex);
}

static void begin(struct hth_canary *c)
{
    c->rows = c->steps = 0;
}

/* True if the changes rise. The usual size grows slowly: the first changes of an attack may go
 * anywhere. */
static bool judge(struct hth_canary *c)
{
    double change = 0, size, most = 2 * c->usual;

    for (size_t i = 0; i < (size_t)HTH_CANARY_ROWS * c->d; i++)
        change += (double)c->dy[i] * ((double)c->after[i] - c->before[i]) / HTH_CANARY_ROWS;
    if (!isfinite(change))
        return true;
    size = c->checks < CHECKS_MIN ? fabs(change) : fmin(fabs(change), most);
    c->usual = c->checks > 0 ? USUAL_KEEP * c->usual + (1 - USUAL_KEEP) * size : size;
    c->mean = MEAN_KEEP * c->mean + (1 - MEAN_KEEP) * fmin(change, CHANGE_MAX * c->usual);
    c->checks += c->checks < CHECKS_MIN;
    return c->checks == CHECKS_MIN && c->mean > HTH_CANARY_FACTOR * c->usual;
}

bool hth_canary_stepped(struct hth_canary *canary, const struct hth_expert *expert,
                        struct hth_exec *ex)
{
    struct hth_canary *c = canary;
    bool jump = false;

    if (c->rows < HTH_CANARY_ROWS)
        return false;
    if (c->steps == 0 && forward(c, expert, ex, c->before) != HTH_OK)
        begin(c);
    else if (c->steps++ == STEPS) {
        jump = forward(c, expert, ex, c->after) == HTH_OK && judge(c);
        c->mean = jump ? 0 : c->mean;
        begin(c);
    }
    return jump;
}
