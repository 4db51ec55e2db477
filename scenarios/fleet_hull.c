/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/fleet_hull.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"

#define OFFERS_MAX 1024 /* offers whose results may still come */
/* Longer than any sweep of a run: older offers cannot be in an average. */
#define OLDEST_US (120 * HTH_US_PER_S)
#define BOX_US    (10 * HTH_US_PER_S)
/* For sums of fp32 in another order. */
#define TOLERANCE 1e-4

/* The group of offers that may average with each other. */
struct lines {
    uint64_t schema;
    size_t count;
};

struct offer {
    struct hth_blob *values;
    struct lines lines;
};

/* The least and greatest values offered in these lines within BOX_US from `from_us` on. */
struct box {
    struct lines lines;
    int64_t from_us;
    float *low, *high;
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
    /* a ring: a result whose offer was overwritten is not checked */
    struct offer offers[OFFERS_MAX];
    uint32_t next;
    struct box *boxes; /* by age */
    size_t box_count, boxes_max;
    uint64_t checked;
    struct watch watches[HTH_FLEET_TRAINERS_MAX];
};

static bool same_lines(const struct lines *a, const struct lines *b)
{
    return a->schema == b->schema && a->count == b->count;
}

static struct box box_new(const struct lines *lines, int64_t from_us)
{
    struct box box = {.lines = *lines,
                      .from_us = from_us,
                      .low = hth_new_array(float, lines->count),
                      .high = hth_new_array(float, lines->count)};

    for (size_t i = 0; i < lines->count; i++) {
        box.low[i] = INFINITY;
        box.high[i] = -INFINITY;
    }
    return box;
}

static void box_clear(struct box *box)
{
    hth_free(box->low);
    hth_free(box->high);
}

static void forget_old(struct hth_hull *h)
{
    int64_t oldest_us = hth_world_now_us(h->world) - OLDEST_US - BOX_US;
    size_t old = 0;

    while (old < h->box_count && h->boxes[old].from_us < oldest_us)
        box_clear(&h->boxes[old++]);
    if (old == 0)
        return;
    h->box_count -= old;
    memmove(h->boxes, h->boxes + old, h->box_count * sizeof(*h->boxes));
}

/* The box that is open at this time. */
static struct box *box_of(struct hth_hull *h, const struct lines *lines)
{
    int64_t now_us = hth_world_now_us(h->world);

    for (size_t i = h->box_count; i-- > 0 && now_us - h->boxes[i].from_us < BOX_US;)
        if (same_lines(&h->boxes[i].lines, lines))
            return &h->boxes[i];
    forget_old(h);
    if (h->box_count == h->boxes_max) {
        h->boxes_max = 2 * h->boxes_max + 16;
        h->boxes = hth_realloc(h->boxes, h->boxes_max, sizeof(*h->boxes));
    }
    h->boxes[h->box_count] = box_new(lines, now_us);
    return &h->boxes[h->box_count++];
}

static void widen(const struct box *box, const float *low, const float *high)
{
    for (size_t i = 0; i < box->lines.count; i++) {
        box->low[i] = fminf(box->low[i], low[i]);
        box->high[i] = fmaxf(box->high[i], high[i]);
    }
}

static void keep(struct hth_hull *h, const struct hth_avg_offer *o)
{
    struct offer *place = &h->offers[h->next++ % OFFERS_MAX];
    const float *v;

    if (o->values == NULL || o->values->data == NULL)
        return;
    v = (const float *)(const void *)o->values->data;
    hth_blob_unref(place->values);
    *place = (struct offer){.values = hth_blob_ref(o->values), .lines = {o->schema, o->count}};
    widen(box_of(h, &place->lines), v, v);
}

/* Whether the average lies in the hull of the offers in the lines of this offer. */
static bool is_inside(const struct hth_hull *h, const struct offer *own, const float *average,
                      char *text, size_t text_max)
{
    int64_t oldest_us = hth_world_now_us(h->world) - OLDEST_US - BOX_US;
    struct box all = box_new(&own->lines, 0);
    bool inside = true;

    for (size_t b = 0; b < h->box_count; b++)
        if (same_lines(&h->boxes[b].lines, &own->lines) && h->boxes[b].from_us >= oldest_us)
            widen(&all, h->boxes[b].low, h->boxes[b].high);
    for (size_t i = 0; i < own->lines.count && inside; i++) {
        float low = all.low[i], high = all.high[i];
        float slack = (float)TOLERANCE * fmaxf(fmaxf(fabsf(low), fabsf(high)), 1e-6f);

        inside = average[i] >= low - slack && average[i] <= high + slack;
        if (!inside)
            snprintf(text, text_max,
                     "element %zu of an average is %g; the offers are from %g to %g", i,
                     (double)average[i], (double)low, (double)high);
    }
    box_clear(&all);
    return inside;
}

/* The same values may be offered twice, and a result does not say to which offer it belongs. It
 * must fit one of them, not a mixture. */
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

static enum hth_err w_ready(const void *self)
{
    return hth_averager_ready(&((const struct watch *)self)->inner);
}

static enum hth_err w_offer(void *self, const struct hth_avg_offer *offer)
{
    struct watch *w = self;

    HTH_TRY(hth_averager_offer(&w->inner, offer));
    keep(w->hull, offer);
    return HTH_OK;
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
    (void)self; /* the owner of the inner averager frees it */
}

static const struct hth_averager_ops WATCH_OPS = {
    .start = w_start,
    .ready = w_ready,
    .offer = w_offer,
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
    for (size_t i = 0; i < h->box_count; i++)
        box_clear(&h->boxes[i]);
    hth_free(h->boxes);
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
