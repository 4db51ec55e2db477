/* SPDX-License-Identifier: Apache-2.0 */
/*
 * directory_query.c: queries answered from memory, and marks set by callers.
 */
#include "dht/directory.h"

#include <stdlib.h>
#include <string.h>

#include "core/map.h"
#include "core/mem.h"
#include "dht/directory_int.h"

/* ---- queries ------------------------------------------------------------------------------- */

static void ref_of(const struct hth_dir_host *h, struct hth_host_ref *out)
{
    memset(out, 0, sizeof(*out));
    out->slot = h->slot;
    out->id = h->id;
    if (h->info.addr_count > 0)
        out->addr = h->info.addr[0];
    out->compute = h->info.compute;
    out->queue_ms = h->info.queue_ms;
    out->rows_per_s = h->info.rows_per_s;
}

struct hosts_found {
    struct hth_host_ref *out;
    size_t max, count;
};

static bool better(const struct hth_host_ref *a, const struct hth_host_ref *b)
{
    if (a->queue_ms != b->queue_ms)
        return a->queue_ms < b->queue_ms;
    return hth_peer_id_cmp(&a->id, &b->id) < 0;
}

/* Inserts the host into the best `max`, in order. */
static void add_host(void *arg, void *owner)
{
    struct hosts_found *f = arg;
    struct hth_host_ref ref;
    size_t i = f->count;
    ref_of(owner, &ref);
    if (i == f->max) {
        if (f->max == 0 || !better(&ref, &f->out[i - 1]))
            return;
        i--;
    } else {
        f->count++;
    }
    for (; i > 0 && better(&ref, &f->out[i - 1]); i--)
        f->out[i] = f->out[i - 1];
    f->out[i] = ref;
}

size_t hth_directory_hosts_of(const struct hth_directory *dir, uint32_t layer, uint32_t expert,
                              struct hth_host_ref *out, size_t max)
{
    struct hosts_found found = {out, max, 0};
    if (expert < hth_grid_size(&dir->layers[layer]->grid))
        hth_postings_owners(dir->layers[layer]->postings, expert, add_host, &found);
    return found.count;
}

void hth_directory_fetch(const struct hth_directory *dir, uint32_t layer, uint32_t step)
{
    const struct hth_dir_layer *l = dir->layers[layer];
    if (step == 0) {
        __builtin_prefetch(l);
    } else if (step == 1) {
        __builtin_prefetch(l->postings);
        __builtin_prefetch(l->view);
        __builtin_prefetch(&l->view->live_count);
    } else {
        hth_postings_fetch(l->postings);
        for (size_t i = 0; i < HTH_MIN(l->view->live_count, 64u); i += 16)
            __builtin_prefetch(&l->view->expert[i]);
    }
}

void hth_directory_mark_dead(struct hth_directory *dir, const struct hth_peer_id *id,
                             int64_t retry_us)
{
    struct hth_dir_host *h = hth_dir_host_get(dir, id);
    if (h == NULL)
        return;
    h->dead_wall_us = hth_wall_us(dir->env);
    h->dead_until_us = hth_now_us(dir->env) + (retry_us > 0 ? retry_us : dir->opts.dead_retry_us);
    hth_dir_host_mark(dir, h, true);
    hth_dir_arm_dead_timer(dir);
}

void hth_directory_mark_alive(struct hth_directory *dir, const struct hth_peer_id *id)
{
    if (dir->dead_count == 0)
        return; /* a shortcut: this is called after every call */
    struct hth_dir_host *h = hth_dir_host_get(dir, id);
    if (h != NULL)
        hth_dir_host_mark(dir, h, false);
}

void hth_directory_prove(struct hth_directory *dir, const struct hth_peer_id *id,
                         const struct hth_addr *addr)
{
    struct hth_dir_host *h = hth_dir_host_get(dir, id);
    if (h != NULL && h->info.addr_count > 0 && hth_addr_eq(&h->info.addr[0], addr))
        hth_dir_host_set_proved(dir, h, true);
}

bool hth_directory_needs(const struct hth_directory *dir, const struct hth_peer_id *id)
{
    const struct hth_dir_host *h = hth_dir_host_get(dir, id);
    if (h == NULL || h->proved || !dir->opts.prove)
        return false;
    for (const struct hth_dir_claim *c = h->claims; c != NULL; c = c->next)
        if (c->posted != NULL && hth_postings_need(c->layer->postings, c->posted))
            return true;
    return false;
}

bool hth_directory_refute(struct hth_directory *dir, const struct hth_peer_id *id, uint32_t layer,
                          uint32_t expert)
{
    const struct hth_dir_host *h = hth_dir_host_get(dir, id);
    bool any = false;
    for (struct hth_dir_claim *c = h != NULL ? h->claims : NULL; c != NULL; c = c->next)
        if (c->layer == dir->layers[layer] && hth_dir_claim_refute(c, expert) == HTH_OK)
            any = true;
    return any;
}

static void status_of(const struct hth_directory *dir, const struct hth_dir_host *h,
                      struct hth_host_status *out)
{
    uint64_t seen[HTH_DIR_LAYERS_MAX / 64] = {0};
    memset(out, 0, sizeof(*out));
    ref_of(h, &out->ref);
    out->info = h->info;
    out->dead = h->dead;
    out->age_us = HTH_MAX(hth_wall_us(dir->env) - hth_dir_host_issued_us(h), 0);
    out->left_us = INT64_MAX;
    for (const struct hth_dir_claim *c = h->claims; c != NULL; c = c->next) {
        out->left_us = HTH_MIN(out->left_us, c->until_us - hth_now_us(dir->env));
        out->experts += c->posted != NULL ? c->posted->count : 0;
        for (uint32_t i = 0; i < dir->layer_count; i++)
            if (dir->layers[i] == c->layer && (seen[i / 64] >> (i % 64) & 1) == 0) {
                seen[i / 64] |= UINT64_C(1) << (i % 64);
                out->layers++;
            }
    }
}

bool hth_directory_host_at(const struct hth_directory *dir, uint32_t i, struct hth_host_status *out)
{
    if (i >= dir->host_count)
        return false;
    status_of(dir, dir->order[i], out);
    return true;
}

bool hth_directory_host_find(const struct hth_directory *dir, const struct hth_peer_id *id,
                             struct hth_host_status *out)
{
    const struct hth_dir_host *h = hth_dir_host_get(dir, id);
    if (h != NULL)
        status_of(dir, h, out);
    return h != NULL;
}

static int run_cmp(const void *a, const void *b)
{
    const struct hth_run *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}

size_t hth_directory_host_experts(const struct hth_directory *dir, const struct hth_peer_id *id,
                                  uint32_t layer, uint32_t *out, size_t max)
{
    const struct hth_dir_host *h = hth_dir_host_get(dir, id);
    struct hth_run *runs = NULL;
    size_t count = 0, n = 0;
    for (const struct hth_dir_claim *c = h != NULL ? h->claims : NULL; c != NULL; c = c->next) {
        if (c->layer != dir->layers[layer] || c->posted == NULL)
            continue;
        runs = hth_realloc(runs, count + c->posted->run_count, sizeof(*runs));
        memcpy(runs + count, c->posted->runs, c->posted->run_count * sizeof(*runs));
        count += c->posted->run_count;
    }
    if (count > 1)
        qsort(runs, count, sizeof(*runs), run_cmp);
    uint32_t next = 0; /* an expert in two records is counted once */
    for (size_t r = 0; r < count; r++) {
        uint32_t end = runs[r].first + runs[r].count;
        for (uint32_t e = HTH_MAX(runs[r].first, next); e < end; e++, n++)
            if (n < max)
                out[n] = e;
        next = HTH_MAX(next, end);
    }
    hth_free(runs);
    return n;
}

static bool is_live(const struct hth_dir_layer *l, uint32_t e)
{
    return (hth_postings_live(l->postings)[e >> 6] >> (e & 63) & 1) != 0;
}

size_t hth_directory_pick_free(struct hth_directory *dir, uint32_t layer, uint32_t want,
                               uint32_t *out)
{
    struct hth_dir_layer *l = dir->layers[layer];
    uint32_t size = hth_grid_size(&l->grid), run = 0;
    uint32_t start = (uint32_t)hth_rng_below(&dir->env->rng, size), first = start;
    size_t n = 0;
    /* Find the first gap after `start` that is wide enough, without wrapping inside it. */
    for (uint32_t i = 0; i < size && run < want; i++) {
        uint32_t e = (start + i) % size;
        if (e == 0)
            run = 0;
        run = is_live(l, e) ? 0 : run + 1;
        if (run == want)
            first = e - want + 1;
    }
    /* Without such a gap take any free experts. Wrapped ones come first, so that the order is
     * ascending. */
    uint32_t *found = hth_new_array(uint32_t, (size_t)want + 1);
    for (uint32_t i = 0; i < size && n < want; i++) {
        uint32_t e = (first + i) % size;
        if (!is_live(l, e))
            found[n++] = e;
    }
    size_t wrapped = 0;
    while (wrapped < n && found[wrapped] >= first)
        wrapped++;
    for (size_t i = 0; i < n; i++)
        out[i] = found[(wrapped + i) % n];
    hth_free(found);
    return n;
}

void hth_directory_stats(const struct hth_directory *dir, struct hth_directory_stats *out)
{
    *out = dir->stats;
    out->hosts = dir->host_count;
    out->hosts_dead = dir->dead_count;
    for (uint32_t i = 0; i < dir->layer_count; i++) {
        const struct hth_dir_layer *l = dir->layers[i];
        const struct hth_dir_branch *b;
        struct hth_board_stats s;
        size_t it = 0;
        for (const struct hth_board *board = l->board; board != NULL;) {
            hth_board_stats(board, &s);
            out->boards++;
            out->dht_requests += s.watches + s.gets;
            out->records_accepted += s.accepted;
            out->records_ignored += s.known + s.stale + s.refused;
            out->negative_hits += s.negative_hits;
            b = hth_map_next(l->branches, &it, NULL, NULL);
            board = b != NULL ? b->board : NULL;
        }
    }
}
