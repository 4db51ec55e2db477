/* SPDX-License-Identifier: Apache-2.0 */
#include "dht/postings.h"

#include <string.h>

#include "core/mem.h"
#include "dht/view.h"

#define NONE UINT32_MAX

struct posting {
    struct hth_claim *claim;
    void *owner;      /* copies of the claim's fields: choosing an owner reads no claim */
    const bool *down; /* of one claim: an owner that moves may have two of this expert */
    uint32_t next;    /* in the expert's list, or in the free list */
};

struct hth_postings {
    uint32_t *head; /* per expert: its first posting */
    struct posting *postings;
    uint64_t version;
    uint64_t *live;
    size_t live_count;
    size_t capacity, used, free_count;
    uint32_t first_free;
    struct hth_grid grid;
};

enum hth_err hth_postings_new(const struct hth_grid *grid, struct hth_postings **out)
{
    size_t size = hth_grid_size(grid);
    struct hth_postings *p = hth_new(struct hth_postings);
    *out = NULL;
    p->grid = *grid;
    p->first_free = NONE;
    p->head = hth_try_calloc(size, sizeof(*p->head));
    p->live = hth_try_calloc(hth_view_words(grid), sizeof(*p->live));
    if (p->head == NULL || p->live == NULL) {
        hth_postings_free(p);
        return HTH_E_NO_MEMORY;
    }
    memset(p->head, 0xFF, size * sizeof(*p->head));
    *out = p;
    return HTH_OK;
}

void hth_postings_free(struct hth_postings *p)
{
    if (p == NULL)
        return;
    hth_free(p->head);
    hth_free(p->live);
    hth_free(p->postings);
    hth_free(p);
}

static bool is_live(const struct hth_postings *p, uint32_t e)
{
    return (p->live[e >> 6] >> (e & 63) & 1) != 0;
}

static void set_live(struct hth_postings *p, uint32_t e, bool live)
{
    if (is_live(p, e) == live)
        return;
    p->live[e >> 6] ^= UINT64_C(1) << (e & 63);
    p->live_count += live ? 1 : SIZE_MAX; /* minus one */
    p->version++;
}

static bool any_up(const struct hth_postings *p, uint32_t e)
{
    return p->head[e] != NONE && !*p->postings[p->head[e]].down;
}

/* In front where it is up, else behind all that are up. */
static void link_posting(struct hth_postings *p, uint32_t e, uint32_t n)
{
    uint32_t *link = &p->head[e];
    while (*p->postings[n].down && *link != NONE && !*p->postings[*link].down)
        link = &p->postings[*link].next;
    p->postings[n].next = *link;
    *link = n;
}

/* Makes room, so that taking `count` postings cannot fail. */
static enum hth_err reserve(struct hth_postings *p, size_t count)
{
    size_t need = p->used - p->free_count + count;
    if (need > HTH_DIR_POSTINGS_MAX)
        return HTH_E_BUDGET;
    if (count <= p->free_count + (p->capacity - p->used))
        return HTH_OK;
    size_t capacity = HTH_MAX(need, 2 * p->capacity);
    struct posting *postings = hth_try_realloc(p->postings, capacity, sizeof(*postings));
    if (postings == NULL)
        return HTH_E_NO_MEMORY;
    p->postings = postings;
    p->capacity = capacity;
    return HTH_OK;
}

static uint32_t take_posting(struct hth_postings *p)
{
    if (p->first_free == NONE)
        return (uint32_t)p->used++;
    uint32_t n = p->first_free;
    p->first_free = p->postings[n].next;
    p->free_count--;
    return n;
}

enum hth_err hth_postings_add(struct hth_postings *p, const struct hth_claim *claim,
                              struct hth_claim **out)
{
    *out = NULL;
    HTH_TRY(reserve(p, claim->count));
    struct hth_claim *c = hth_new(struct hth_claim);
    *c = *claim;
    c->down = *c->dead;
    for (size_t r = 0; r < c->run_count; r++) {
        for (uint32_t i = 0; i < c->runs[r].count; i++) {
            uint32_t e = c->runs[r].first + i, n = take_posting(p);
            p->postings[n] = (struct posting){c, c->owner, &c->down, NONE};
            link_posting(p, e, n);
            if (!c->down)
                set_live(p, e, true);
        }
    }
    *out = c;
    return HTH_OK;
}

static uint32_t unlink_posting(struct hth_postings *p, uint32_t e, const struct hth_claim *claim)
{
    uint32_t *link = &p->head[e];
    while (p->postings[*link].claim != claim)
        link = &p->postings[*link].next;
    uint32_t n = *link;
    *link = p->postings[n].next;
    return n;
}

void hth_postings_remove(struct hth_postings *p, struct hth_claim *c)
{
    for (size_t r = 0; r < c->run_count; r++) {
        for (uint32_t i = 0; i < c->runs[r].count; i++) {
            uint32_t e = c->runs[r].first + i, n = unlink_posting(p, e, c);
            p->postings[n].next = p->first_free;
            p->first_free = n;
            p->free_count++;
            if (is_live(p, e) && !any_up(p, e))
                set_live(p, e, false);
        }
    }
    hth_free(c->runs);
    hth_free(c);
}

void hth_postings_owner_moved(struct hth_postings *p, struct hth_claim *c)
{
    bool down = *c->dead;
    for (size_t r = 0; r < c->run_count; r++)
        for (uint32_t i = 0; i < c->runs[r].count; i++) {
            uint32_t e = c->runs[r].first + i, n = unlink_posting(p, e, c);
            c->down = down; /* it stands wrong in the lists that follow, until their turn */
            link_posting(p, e, n);
            set_live(p, e, any_up(p, e));
        }
}

bool hth_postings_need(const struct hth_postings *p, const struct hth_claim *c)
{
    for (size_t r = 0; r < c->run_count; r++)
        for (uint32_t i = 0; i < c->runs[r].count; i++) {
            uint32_t n = p->head[c->runs[r].first + i], up = 0;
            for (; n != NONE && !*p->postings[n].down; n = p->postings[n].next)
                up++;
            if (up < HTH_DIR_PROVED_MAX)
                return true;
        }
    return false;
}

void hth_postings_owners(const struct hth_postings *p, uint32_t expert,
                         void (*fn)(void *arg, void *owner), void *arg)
{
    uint32_t left = HTH_DIR_REPLICAS_MAX;
    for (uint32_t n = p->head[expert]; n != NONE && !*p->postings[n].down && left > 0;
         n = p->postings[n].next, left--) {
        void *owner = p->postings[n].owner;
        bool seen = false;
        /* An owner may name an expert in two records while it replaces them. */
        for (uint32_t m = p->head[expert]; m != n && !seen; m = p->postings[m].next)
            seen = p->postings[m].owner == owner;
        if (!seen)
            fn(arg, owner);
    }
}

void hth_postings_fetch(const struct hth_postings *p)
{
    for (size_t e = 0; e < 64 && e < hth_grid_size(&p->grid); e += 16)
        __builtin_prefetch(&p->head[e]);
}

const uint64_t *hth_postings_live(const struct hth_postings *p)
{
    return p->live;
}

size_t hth_postings_live_count(const struct hth_postings *p)
{
    return p->live_count;
}

uint64_t hth_postings_version(const struct hth_postings *p)
{
    return p->version;
}
