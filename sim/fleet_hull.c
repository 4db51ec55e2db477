/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/fleet_hull.h"

#include <math.h>
#include <stdio.h>

#include "core/mem.h"

#define OFFERS_MAX 512
/* Longer than any sweep of a run: what is older cannot be in an average any more. */
#define OLDEST_US (120 * HTH_US_PER_S)
/* Sums of fp32 in another order. */
#define TOLERANCE 1e-4

struct offer {
    struct hth_blob *values;
    size_t count;
    uint64_t schema;
    uint32_t kind;
    int64_t at_us;
};

struct watch {
    struct hth_hull *hull;
    struct hth_averager inner;
    hth_avg_round_fn *fn;
    void *arg;
};

struct hth_hull {
    struct hth_world *world;
    void (*broken)(void *arg, const char *text);
    void *arg;
    struct offer offers[OFFERS_MAX]; /* a ring */
    uint32_t next;
    uint64_t checked;
    struct watch watches[HTH_FLEET_TRAINERS_MAX];
};

static void keep(struct hth_hull *h, const struct hth_avg_offer *o)
{
    struct offer *place = &h->offers[h->next++ % OFFERS_MAX];

    if (o->values == NULL || o->values->data == NULL)
        return;
    hth_blob_unref(place->values);
    *place = (struct offer){.values = hth_blob_ref(o->values),
                            .count = o->count,
                            .schema = o->schema,
                            .kind = o->kind,
                            .at_us = hth_world_now_us(h->world)};
}

static void widen(float *low, float *high, const struct offer *o)
{
    const float *v = (const float *)(const void *)o->values->data;

    for (size_t i = 0; i < o->count; i++) {
        low[i] = fminf(low[i], v[i]);
        high[i] = fmaxf(high[i], v[i]);
    }
}

/* Whether the average is in the hull of what was offered in the lines of this one. */
static bool is_inside(const struct hth_hull *h, const struct offer *own, const float *average,
                      char *text, size_t text_max)
{
    float *low = hth_new_array(float, own->count), *high = hth_new_array(float, own->count);
    int64_t now_us = hth_world_now_us(h->world);
    bool inside = true;

    for (size_t i = 0; i < own->count; i++) {
        low[i] = INFINITY;
        high[i] = -INFINITY;
    }
    for (uint32_t i = 0; i < OFFERS_MAX; i++) {
        const struct offer *o = &h->offers[i];
        if (o->values != NULL && o->kind == own->kind && o->schema == own->schema &&
            o->count == own->count && now_us - o->at_us <= OLDEST_US)
            widen(low, high, o);
    }
    for (size_t i = 0; i < own->count && inside; i++) {
        float slack = (float)TOLERANCE * fmaxf(fmaxf(fabsf(low[i]), fabsf(high[i])), 1e-6f);
        inside = average[i] >= low[i] - slack && average[i] <= high[i] + slack;
        if (!inside)
            snprintf(text, text_max, "element %zu of an average is %g, offered was %g to %g", i,
                     (double)average[i], (double)low[i], (double)high[i]);
    }
    hth_free(low);
    hth_free(high);
    return inside;
}

/* The same values may have been offered twice, first in the lines of one kind and then in
 * another's, and a result does not say whose it is: of one of them, not a mixture. */
static void judge(struct hth_hull *h, const struct hth_blob *values, const float *average)
{
    bool known = false, inside = false;
    char text[120];

    for (uint32_t i = 0; i < OFFERS_MAX && !inside; i++) {
        const struct offer *own = &h->offers[i];
        if (own->values != values)
            continue;
        known = true;
        inside = is_inside(h, own, average, text, sizeof(text));
    }
    h->checked += known;
    if (known && !inside)
        h->broken(h->arg, text);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void on_round(void *arg, const struct hth_avg_result *r)
{
    struct watch *w = arg;

    if (r->err == HTH_OK && r->values != NULL && r->average != NULL && r->average->data != NULL)
        judge(w->hull, r->values, (const float *)(const void *)r->average->data);
    w->fn(w->arg, r);
}

static enum hth_err w_start(void *self, hth_avg_round_fn *fn, void *arg)
{
    struct watch *w = self;

    w->fn = fn;
    w->arg = arg;
    return hth_averager_start(&w->inner, on_round, w);
}

static enum hth_err w_ready(void *self, enum hth_avg_reason *reason)
{
    return hth_averager_ready(&((struct watch *)self)->inner, reason);
}

static enum hth_err w_offer(void *self, const struct hth_avg_offer *offer)
{
    struct watch *w = self;

    HTH_TRY(hth_averager_offer(&w->inner, offer));
    keep(w->hull, offer);
    return HTH_OK;
}

static enum hth_err w_prepare(void *self, const struct hth_avg_offer *offer, int64_t ready_in_us)
{
    return hth_averager_prepare(&((struct watch *)self)->inner, offer, ready_in_us);
}

static void w_stop(void *self)
{
    hth_averager_stop(&((struct watch *)self)->inner);
}

static void w_stats(const void *self, struct hth_averager_stats *out)
{
    hth_averager_stats(&((const struct watch *)self)->inner, out);
}

static void w_free(void *self)
{
    (void)self; /* its owner frees the inner one */
}

static const struct hth_averager_ops WATCH_OPS = {
    .name = "watched",
    .start = w_start,
    .ready = w_ready,
    .offer = w_offer,
    .prepare = w_prepare,
    .stop = w_stop,
    .stats = w_stats,
    .free = w_free,
};

/* ---- life ------------------------------------------------------------------------------------ */

struct hth_hull *hth_hull_new(struct hth_world *world, void (*broken)(void *arg, const char *text),
                              void *arg)
{
    struct hth_hull *h = hth_new(struct hth_hull);

    h->world = world;
    h->broken = broken;
    h->arg = arg;
    return h;
}

void hth_hull_free(struct hth_hull *h)
{
    if (h == NULL)
        return;
    for (uint32_t i = 0; i < OFFERS_MAX; i++)
        hth_blob_unref(h->offers[i].values);
    hth_free(h);
}

void hth_hull_watch(struct hth_hull *h, uint32_t slot, struct hth_averager *inner,
                    struct hth_averager *out)
{
    HTH_ASSERT(slot < HTH_FLEET_TRAINERS_MAX);
    h->watches[slot] = (struct watch){.hull = h, .inner = *inner};
    *out = (struct hth_averager){.ops = &WATCH_OPS, .self = &h->watches[slot]};
}

uint64_t hth_hull_checked(const struct hth_hull *h)
{
    return h->checked;
}
