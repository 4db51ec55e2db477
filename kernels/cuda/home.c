/* SPDX-License-Identifier: Apache-2.0 */
/*
 * home.c: the parts of a parameter set as items of resident.h: values with their bf16 images behind
 * them, gradients, and each state of the optimiser are an item each.
 *
 *   values   [ w1 | b1 | w2 | ... ][ the same as bf16 ]     images are not copied: a cast rebuilds
 *   grads    [ w1 | b1 | w2 | ... ]                         them
 *
 * A context holds the parts that its operations use until its next sync, so that an operation only
 * searches a short list. Without room for a part, the context waits for its own work, releases all
 * its parts and retries with all parts of this set at once, as long as other contexts hold items. A
 * context that waits holds nothing, so there is no deadlock.
 */
#include "kernels/cuda/device.h"

#include <stdlib.h>
#include <string.h>

#define TRIES 200000u /* waits for the card, each for the work that others launched */

struct hth_cu_home {
    struct hth_params *p;
    struct hth_cu_device *dev;
    struct hth_item part[HTH_PARTS];
    uint32_t parts;      /* those that exist */
    atomic_uint refs;    /* the set, and contexts that hold parts of it */
    atomic_bool is_gone; /* the set was freed */
};

static float *floats_at(const struct hth_item *item)
{
    return (float *)(void *)item->at;
}

/* ---- callbacks of resident.h --------------------------------------------------------------- */

bool hth_cu_home_matters(const struct hth_item *item)
{
    const struct hth_params *p = ((const struct hth_cu_home *)item->owner)->p;
    if (item->part == HTH_PART_STATE0 || item->part == HTH_PART_STATE1)
        return !p->state_zero;
    for (uint32_t i = 0; item->part == HTH_PART_GRAD && i < p->count; i++) {
        if (!p->weights[i]->grad_zero)
            return true;
    }
    return item->part == HTH_PART_VALUE;
}

static void values_moved(struct hth_params *p, const struct hth_item *item)
{
    bool images = p->be->compute == HTH_MATMUL_BF16 && item->at != NULL;
    uint16_t *image = images ? (uint16_t *)(void *)(item->at + item->travel) : NULL;
    p->value = floats_at(item);
    for (uint32_t i = 0; i < p->count; i++) {
        struct hth_weight *w = p->weights[i];
        w->value = p->value != NULL ? p->value + w->offset : NULL;
        w->image[0].data = image != NULL ? image + w->offset : NULL;
        atomic_store_explicit(&w->image[0].version, 0, memory_order_relaxed);
    }
}

void hth_cu_home_moved(struct hth_item *item)
{
    struct hth_params *p = ((struct hth_cu_home *)item->owner)->p;
    if (item->part == HTH_PART_VALUE) {
        values_moved(p, item);
    } else if (item->part == HTH_PART_GRAD) {
        p->grad = floats_at(item);
        for (uint32_t i = 0; i < p->count; i++) {
            struct hth_weight *w = p->weights[i];
            w->grad = p->grad != NULL ? p->grad + w->offset : NULL;
        }
    } else {
        p->state[item->part - HTH_PART_STATE0] = floats_at(item);
    }
}

/* ---- sets ---------------------------------------------------------------------------------- */

static void unref(struct hth_cu_home *home)
{
    if (atomic_fetch_sub(&home->refs, 1) == 1)
        free(home);
}

/* The items of these parts. */
static uint32_t items_of(struct hth_cu_home *home, uint32_t parts, struct hth_item **out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < HTH_PARTS; i++) {
        if (parts & 1u << i)
            out[count++] = &home->part[i];
    }
    return count;
}

enum hth_err hth_cu_params_open(struct hth_params *p)
{
    struct hth_cu_device *dev = hth_cu_device_of(p->be);
    size_t travel = p->flat_len * sizeof(float);
    size_t images = p->be->compute == HTH_MATMUL_BF16 ? p->flat_len * sizeof(uint16_t) : 0;
    struct hth_cu_home *home = calloc(1, sizeof(*home));
    if (home == NULL || dev->gpu->use(dev->index) != 0) {
        free(home);
        return home == NULL ? HTH_E_NO_MEMORY : HTH_E_DEVICE;
    }
    home->p = p;
    home->dev = dev;
    atomic_store(&home->refs, 1);
    p->home = home;
    uint32_t parts = p->has_grads ? 2 + p->slots : 1;
    for (uint32_t i = 0; i < parts; i++) {
        struct hth_item *item = &home->part[i];
        item->owner = home;
        item->part = i;
        HTH_TRY(hth_resident_add(&dev->resident, item, travel + (i == 0 ? images : 0), travel));
        home->parts |= 1u << i; /* the set frees the others */
    }
    return HTH_OK;
}

void hth_cu_params_opened(struct hth_params *p)
{
    struct hth_cu_home *home = p->home;
    struct hth_item *items[HTH_PARTS];
    uint32_t count = items_of(home, home->parts, items);
    for (uint32_t i = 0; i < count; i++)
        hth_resident_release(&home->dev->resident, items[i], true);
}

void hth_cu_params_close(struct hth_params *p)
{
    struct hth_cu_home *home = p->home;
    struct hth_item *items[HTH_PARTS];
    if (home == NULL)
        return;
    (void)home->dev->gpu->use(home->dev->index);
    (void)hth_cu_quiet(home->dev);
    uint32_t count = items_of(home, home->parts, items);
    for (uint32_t i = 0; i < count; i++)
        hth_resident_remove(&home->dev->resident, items[i]);
    atomic_store(&home->is_gone, true);
    p->home = NULL;
    unref(home);
}

/* ---- held parts of a context --------------------------------------------------------------- */

void hth_cu_release_all(struct hth_cu_stream *s)
{
    for (uint32_t i = 0; i < s->held_count; i++) {
        struct hth_cu_held *h = &s->held[i];
        struct hth_item *items[HTH_PARTS];
        uint32_t count = atomic_load(&h->home->is_gone) ? 0 : items_of(h->home, h->parts, items);
        for (uint32_t k = 0; k < count; k++)
            hth_resident_release(&s->dev->resident, items[k], (h->wrote & 1u << items[k]->part));
        unref(h->home);
    }
    s->held_count = 0;
}

static struct hth_cu_held *find_held(struct hth_cu_stream *s, const struct hth_cu_home *home)
{
    for (uint32_t i = s->held_count; i > 0; i--) { /* the last is the most likely */
        if (s->held[i - 1].home == home)
            return &s->held[i - 1];
    }
    return NULL;
}

/* Holds those of `parts` that the context does not hold. */
static enum hth_err take(struct hth_cu_stream *s, struct hth_cu_home *home, uint32_t parts)
{
    struct hth_item *items[HTH_PARTS];
    struct hth_cu_held *h = find_held(s, home);
    uint32_t count = items_of(home, parts, items);
    HTH_TRY(hth_resident_hold(&s->dev->resident, items, count, s->queue));
    if (h == NULL) {
        h = &s->held[s->held_count++];
        *h = (struct hth_cu_held){.home = home};
        atomic_fetch_add(&home->refs, 1);
    }
    h->parts |= parts;
    return HTH_OK;
}

/* Retries with nothing held: parts that other contexts hold are released in time. */
static enum hth_err take_patiently(struct hth_cu_stream *s, struct hth_cu_home *home,
                                   uint32_t parts)
{
    enum hth_err err = HTH_E_NO_MEMORY;
    hth_cu_settle(s);
    hth_cu_release_all(s);
    for (uint32_t i = 0; i < TRIES && err == HTH_E_NO_MEMORY; i++) {
        bool others = hth_resident_is_held(&s->dev->resident);
        err = take(s, home, parts);
        if (!others)
            break;
        if (err == HTH_E_NO_MEMORY)
            (void)hth_cu_quiet(s->dev);
    }
    return err;
}

static enum hth_err hold(struct hth_exec *ex, struct hth_params *p, uint32_t reads, uint32_t writes,
                         bool patient)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    struct hth_cu_home *home = p->home;
    uint32_t want = reads | writes;
    struct hth_cu_held *h = find_held(s, home);
    uint32_t has = h != NULL ? h->parts : 0;
    if (want & ~home->parts)
        return HTH_E_UNSUPPORTED;
    if (want & ~has) {
        enum hth_err err = HTH_E_NO_MEMORY;
        if (h != NULL || s->held_count < HTH_CU_HELD)
            err = take(s, home, want & ~has);
        if (err == HTH_E_NO_MEMORY && patient)
            err = take_patiently(s, home, want | has);
        HTH_TRY(err);
        h = find_held(s, home);
    }
    h->wrote |= writes;
    return HTH_OK;
}

enum hth_err hth_cu_params_hold(struct hth_exec *ex, struct hth_params *p, uint32_t reads,
                                uint32_t writes)
{
    return hold(ex, p, reads, writes, true);
}

enum hth_err hth_cu_params_try(struct hth_exec *ex, struct hth_params *p, uint32_t reads,
                               uint32_t writes)
{
    return hold(ex, p, reads, writes, false);
}

void hth_cu_params_ahead(struct hth_exec *ex, struct hth_params *p, uint32_t parts)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    struct hth_cu_home *home = p->home;
    struct hth_item *items[HTH_PARTS];
    uint32_t count = items_of(home, parts & home->parts, items);
    hth_resident_ahead(&s->dev->resident, items, count);
}
