/* SPDX-License-Identifier: Apache-2.0 */
/* senders.c: see senders.h. */
#include "experts/senders.h"

#include <math.h>
#include <string.h>

#define SHARE_MAX      0.25
#define PROBATION_MAX  0.25
#define NORM_MAX       1.5
#define OWN_NORM_MAX   4.0
#define MAJORITY_MIN   3  /* senders from which on the median is trusted */
#define PARTS_MIN      16 /* parts from which on the expert's own mean is trusted */
#define POOL_KEEP      0.75
#define SENDER_KEEP    0.875
#define EXPERT_KEEP    (1 - 1.0 / 64)
#define ROWS_FORGOTTEN 0.02 /* a mean below this: the sender has left */

static struct sender *sender_of(struct hth_senders *s, struct hth_sender_id id)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->sender[i].id.number == id.number && s->sender[i].id.probation == id.probation)
            return &s->sender[i];
    if (s->count == HTH_SENDERS_MAX) /* all that come now share the last place */
        return &s->sender[HTH_SENDERS_MAX - 1];
    s->sender[s->count] = (struct sender){.id = id};
    return &s->sender[s->count++];
}

static bool is_active(const struct sender *x)
{
    return x->rows > 0 || x->rows_mean > ROWS_FORGOTTEN;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* The rows of the pool that are not this sender's; or the members', where me is NULL. */
static double others(const struct hth_senders *s, const struct sender *me)
{
    double now = 0, mean = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        const struct sender *x = &s->sender[i];
        if (x == me || (me == NULL && x->id.probation))
            continue;
        now += x->rows;
        mean += x->rows_mean;
    }
    return fmax(now, mean);
}

/* So many rows are a share of `most` beside those of others. */
static double rows_within(double most, double beside)
{
    return most >= 1 ? INFINITY : beside * most / (1 - most);
}

static double rows_left(const struct hth_senders *s, const struct sender *me)
{
    double senders = 0, probation = 0, members = others(s, NULL), left;

    for (uint32_t i = 0; i < s->count; i++) {
        senders += is_active(&s->sender[i]) || &s->sender[i] == me;
        probation += s->sender[i].id.probation ? s->sender[i].rows : 0;
    }
    left = rows_within(fmax(SHARE_MAX, 2 / senders), others(s, me)) - me->rows;
    if (me->id.probation && members > 0)
        left = fmin(left, rows_within(PROBATION_MAX, members) - probation);
    return left;
}

/* ---- norms ---------------------------------------------------------------------------------- */

/* The lower median of the norms of members, or of all where members are too few; 0: too few. */
static double median(const struct hth_senders *s, bool members)
{
    double norm[HTH_SENDERS_MAX];
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        const struct sender *x = &s->sender[i];
        if (x->norm <= 0 || !is_active(x) || (members && x->id.probation))
            continue;
        uint32_t at = n++;
        for (; at > 0 && norm[at - 1] > x->norm; at--)
            norm[at] = norm[at - 1];
        norm[at] = x->norm;
    }
    return n >= MAJORITY_MIN ? norm[(n - 1) / 2] : 0;
}

static double norm_bound(const struct hth_senders *s)
{
    double middle = median(s, true);

    if (middle <= 0)
        middle = median(s, false);
    if (middle > 0)
        return NORM_MAX * middle;
    return s->parts >= PARTS_MIN ? OWN_NORM_MAX * s->norm : 0;
}

/* ---- a pool --------------------------------------------------------------------------------- */

uint32_t hth_senders_take(struct hth_senders *s, struct hth_sender_id id, uint32_t rows,
                          double *norm_max)
{
    struct sender *me = sender_of(s, id);
    double left = rows_left(s, me);
    uint32_t counted = left >= rows ? rows : (uint32_t)fmax(left, 0);

    me->rows += counted;
    *norm_max = norm_bound(s);
    return counted;
}

void hth_senders_give_back(struct hth_senders *s, struct hth_sender_id id, uint32_t counted)
{
    struct sender *me = sender_of(s, id);

    me->rows = fmax(me->rows - counted, 0);
}

void hth_senders_saw(struct hth_senders *s, struct hth_sender_id id, double norm, double norm_max)
{
    struct sender *me = sender_of(s, id);
    double accepted = norm_max > 0 ? fmin(norm, norm_max) : norm;

    if (!(norm > 0) || !isfinite(norm))
        return; /* zeros say nothing of what is usual */
    me->norm = me->norm > 0 ? SENDER_KEEP * me->norm + (1 - SENDER_KEEP) * norm : norm;
    s->norm = s->parts > 0 ? EXPERT_KEEP * s->norm + (1 - EXPERT_KEEP) * accepted : accepted;
    s->parts = s->parts < PARTS_MIN ? s->parts + 1 : PARTS_MIN;
}

void hth_senders_next_pool(struct hth_senders *s)
{
    uint32_t stay = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        struct sender x = s->sender[i];
        x.rows_mean = x.known ? POOL_KEEP * x.rows_mean + (1 - POOL_KEEP) * x.rows : x.rows;
        x.known = true;
        x.rows = 0;
        if (is_active(&x))
            s->sender[stay++] = x;
    }
    s->count = stay;
}
