/* SPDX-License-Identifier: Apache-2.0 */
/*
 * directory_claims.c: applies records and their ends to hosts, branches and postings.
 */
#include <string.h>

#include "core/map.h"
#include "core/mem.h"
#include "dht/directory_int.h"

void hth_dir_notify(struct hth_directory *dir)
{
    if (dir->change == NULL || dir->notify_set)
        return;
    dir->notify_set = true;
    hth_timer_set(dir->env, dir->notify, 0);
}

void hth_dir_on_notify(void *arg)
{
    struct hth_directory *dir = arg;
    dir->notify_set = false;
    if (dir->change != NULL)
        dir->change(dir->change_arg);
}

/* ---- hosts --------------------------------------------------------------------------------- */

struct hth_dir_host *hth_dir_host_get(const struct hth_directory *dir, const struct hth_peer_id *id)
{
    return hth_map_get(dir->by_id, id->b, sizeof(id->b));
}

enum hth_err hth_dir_host_need(struct hth_directory *dir, const struct hth_peer_id *id,
                               struct hth_dir_host **out)
{
    struct hth_dir_host *h = hth_dir_host_get(dir, id);
    *out = h;
    if (h != NULL)
        return HTH_OK;
    if (dir->host_count == HTH_DIR_HOSTS_MAX)
        return HTH_E_BUDGET;
    if (dir->host_count == dir->host_capacity) {
        uint32_t old = dir->host_capacity;
        dir->host_capacity = old > 0 ? 2 * old : 16;
        dir->order = hth_realloc(dir->order, dir->host_capacity, sizeof(*dir->order));
        dir->slots = hth_realloc(dir->slots, dir->host_capacity, sizeof(*dir->slots));
        for (uint32_t i = old; i < dir->host_capacity; i++)
            dir->slots[i] = NULL;
    }
    h = hth_new(struct hth_dir_host);
    h->id = *id;
    h->dead = dir->opts.prove;
    dir->dead_count += h->dead;
    while (dir->slots[h->slot] != NULL)
        h->slot++;
    dir->slots[h->slot] = h;
    dir->order[dir->host_count++] = h;
    hth_map_put(dir->by_id, h->id.b, sizeof(h->id.b), h);
    *out = h;
    return HTH_OK;
}

static void free_host_if_unused(struct hth_directory *dir, struct hth_dir_host *h)
{
    uint32_t i = 0;
    if (h->claims != NULL)
        return;
    while (dir->order[i] != h)
        i++;
    dir->host_count--;
    memmove(&dir->order[i], &dir->order[i + 1], (dir->host_count - i) * sizeof(*dir->order));
    dir->slots[h->slot] = NULL;
    dir->dead_count -= h->dead;
    hth_map_del(dir->by_id, h->id.b, sizeof(h->id.b));
    hth_free(h);
    hth_dir_notify(dir);
}

static void settle_dead(struct hth_directory *dir, struct hth_dir_host *h)
{
    bool dead = h->marked || (dir->opts.prove && !h->proved);
    if (h->dead == dead)
        return;
    h->dead = dead;
    dir->dead_count += dead ? 1 : UINT32_MAX; /* minus one */
    for (struct hth_dir_claim *c = h->claims; c != NULL; c = c->next) {
        c->dead = dead;
        if (c->posted != NULL)
            hth_postings_owner_moved(c->layer->postings, c->posted);
    }
    hth_dir_notify(dir);
}

void hth_dir_host_mark(struct hth_directory *dir, struct hth_dir_host *h, bool marked)
{
    h->marked = marked;
    settle_dead(dir, h);
}

void hth_dir_host_set_proved(struct hth_directory *dir, struct hth_dir_host *h, bool proved)
{
    h->proved = proved;
    settle_dead(dir, h);
}

void hth_dir_arm_dead_timer(struct hth_directory *dir)
{
    int64_t first_us = INT64_MAX;
    for (uint32_t i = 0; i < dir->host_count; i++)
        if (dir->order[i]->marked)
            first_us = HTH_MIN(first_us, dir->order[i]->dead_until_us);
    if (first_us != INT64_MAX)
        hth_timer_set(dir->env, dir->dead_timer, HTH_MAX(first_us - hth_now_us(dir->env), 0));
}

void hth_dir_on_dead_timer(void *arg)
{
    struct hth_directory *dir = arg;
    for (uint32_t i = 0; i < dir->host_count; i++)
        if (dir->order[i]->marked && dir->order[i]->dead_until_us <= hth_now_us(dir->env))
            hth_dir_host_mark(dir, dir->order[i], false);
    hth_dir_arm_dead_timer(dir);
}

/* Updates the host from the claim's record, if that is the newest; info NULL: unchanged. A record
 * issued after the mark proves that the host lives. */
void hth_dir_host_update(struct hth_directory *dir, struct hth_dir_claim *c,
                         const struct hth_host_info *info, int64_t issued_us)
{
    struct hth_dir_host *h = c->host;
    if (issued_us < hth_dir_host_issued_us(h))
        return;
    if (h->source != NULL)
        h->source->is_source = false;
    h->source = c;
    c->is_source = true;
    c->issued_us = issued_us;
    /* The proof is that its key answers at that address. */
    if (info != NULL && h->proved &&
        (info->addr_count == 0 || !hth_addr_eq(&info->addr[0], &h->info.addr[0])))
        hth_dir_host_set_proved(dir, h, false);
    if (info != NULL)
        h->info = *info;
    if (h->marked && issued_us > h->dead_wall_us)
        hth_dir_host_mark(dir, h, false);
}

/* ---- branches ------------------------------------------------------------------------------ */

static const struct hth_board_ops BRANCH_OPS;
static bool on_renewed(void *arg, const struct hth_record *rec, int64_t now_us, void *user);

enum hth_err hth_dir_board_open(struct hth_dir_layer *layer, enum hth_record_kind kind, uint32_t c0,
                                const struct hth_board_ops *ops, void *arg, struct hth_board **out)
{
    struct hth_directory *dir = layer->dir;
    struct hth_board_opts opts = HTH_BOARD_OPTS_INIT;
    struct hth_uid prefix = {.ncoord = kind == HTH_RECORD_PREFIX, .coord = {c0}};
    char text[HTH_UID_TEXT_MAX];
    struct hth_topic topic;
    memcpy(prefix.name, layer->grid.name, sizeof(prefix.name));
    hth_prefix_text(&prefix, text);
    hth_topic_init(&topic, dir->env->crypto, dir->network, kind, text, strlen(text));
    opts.cache = dir->cache;
    opts.on_renewed = on_renewed;
    opts.negative_us = dir->opts.negative_us;
    return hth_board_new(dir->env, dir->dht, &topic, &opts, ops, arg, out);
}

/* Adds the board's counters to the directory's sums before freeing it. */
static void board_close(struct hth_directory *dir, struct hth_board *board)
{
    struct hth_board_stats s;
    hth_board_stats(board, &s);
    dir->stats.dht_requests += s.watches + s.gets;
    dir->stats.records_accepted += s.accepted;
    dir->stats.records_ignored += s.known + s.stale + s.refused;
    dir->stats.negative_hits += s.negative_hits;
    hth_board_free(board);
}

static enum hth_err branch_ref(struct hth_dir_layer *layer, uint32_t c0)
{
    struct hth_dir_branch *b = hth_map_get_u64(layer->branches, c0);
    if (b == NULL) {
        if (hth_map_count(layer->branches) == HTH_DIR_BRANCHES_MAX)
            return HTH_E_BUDGET;
        b = hth_new(struct hth_dir_branch);
        b->layer = layer;
        b->c0 = c0;
        enum hth_err err =
            hth_dir_board_open(layer, HTH_RECORD_PREFIX, c0, &BRANCH_OPS, b, &b->board);
        if (err != HTH_OK) {
            hth_free(b);
            return err;
        }
        hth_map_put_u64(layer->branches, c0, b);
    }
    b->refs++;
    return HTH_OK;
}

static void branch_unref(struct hth_dir_layer *layer, uint32_t c0)
{
    struct hth_dir_branch *b = hth_map_get_u64(layer->branches, c0);
    if (b == NULL || --b->refs > 0)
        return;
    hth_map_del_u64(layer->branches, c0);
    board_close(layer->dir, b->board);
    hth_free(b);
}

/* Drops references on the first `count` first coordinates of the runs. */
static void branches_unref(struct hth_dir_layer *layer, const struct hth_run *runs,
                           size_t run_count, uint32_t count)
{
    for (size_t r = 0; r < run_count && count > 0; r++)
        for (uint32_t i = 0; i < runs[r].count && count > 0; i++, count--)
            branch_unref(layer, runs[r].first + i);
}

static enum hth_err branches_ref(struct hth_dir_layer *layer, const struct hth_run *runs,
                                 size_t run_count)
{
    uint32_t done = 0;
    for (size_t r = 0; r < run_count; r++) {
        for (uint32_t i = 0; i < runs[r].count; i++) {
            enum hth_err err = branch_ref(layer, runs[r].first + i);
            if (err != HTH_OK) {
                branches_unref(layer, runs, run_count, done);
                return err;
            }
            done++;
        }
    }
    return HTH_OK;
}

/* ---- claims -------------------------------------------------------------------------------- */

/* Releases the claim's experts or branches; the claim itself stays. */
static void claim_release(struct hth_dir_claim *c)
{
    if (c->posted != NULL)
        hth_postings_remove(c->layer->postings, c->posted);
    c->posted = NULL;
    if (c->firsts)
        branches_unref(c->layer, c->runs, c->run_count, UINT32_MAX);
    hth_free(c->runs);
    c->runs = NULL;
    c->firsts = false;
}

void hth_dir_claim_free(struct hth_dir_claim *c)
{
    struct hth_directory *dir = c->layer->dir;
    struct hth_dir_host *h = c->host;
    claim_release(c);
    if (h->source == c) {
        h->issued_us = c->issued_us;
        h->source = NULL;
    }
    hth_timer_free(dir->env, c->timer);
    *c->link = c->next;
    if (c->next != NULL)
        c->next->link = c->link;
    hth_free(c);
    hth_dir_notify(dir);
    free_host_if_unused(dir, h);
}

struct hth_dir_claim *hth_dir_claim_new(struct hth_dir_host *h, struct hth_dir_layer *layer)
{
    struct hth_dir_claim *c = hth_new(struct hth_dir_claim);
    c->host = h;
    c->layer = layer;
    c->dead = h->dead;
    c->next = h->claims;
    c->link = &h->claims;
    if (c->next != NULL)
        c->next->link = &c->next;
    h->claims = c;
    return c;
}

static bool same_runs(const struct hth_run *a, size_t a_count, const struct hth_run *b,
                      size_t b_count)
{
    return a_count == b_count && (a_count == 0 || memcmp(a, b, a_count * sizeof(*a)) == 0);
}

enum hth_err hth_dir_claim_set(struct hth_dir_claim *c, struct hth_listing *l)
{
    bool firsts = (l->flags & HTH_LISTING_FIRSTS) != 0;
    struct hth_claim *posted = NULL;
    if (c->posted != NULL && !firsts &&
        same_runs(c->posted->runs, c->posted->run_count, l->runs, l->run_count))
        return HTH_OK;
    if (c->firsts && firsts && same_runs(c->runs, c->run_count, l->runs, l->run_count))
        return HTH_OK;
    if (firsts) {
        HTH_TRY(branches_ref(c->layer, l->runs, l->run_count));
    } else {
        struct hth_claim want = {.owner = c->host,
                                 .dead = &c->host->dead,
                                 .runs = l->runs,
                                 .run_count = l->run_count,
                                 .count = l->count};
        HTH_TRY(hth_postings_add(c->layer->postings, &want, &posted));
    }
    claim_release(c);
    c->refuted = false;
    c->posted = posted;
    c->firsts = firsts;
    if (firsts) {
        c->runs = l->runs;
        c->run_count = (uint32_t)l->run_count;
    }
    l->runs = NULL;
    hth_dir_notify(c->layer->dir);
    return HTH_OK;
}

/* Copies the runs without one number to out, which has room for one more run. Returns how many. */
static size_t runs_without(const struct hth_claim *posted, uint32_t number, struct hth_run *out)
{
    size_t n = 0;
    for (size_t r = 0; r < posted->run_count; r++) {
        struct hth_run run = posted->runs[r];
        if (number < run.first || number - run.first >= run.count) {
            out[n++] = run;
            continue;
        }
        uint32_t before = number - run.first, after = run.count - before - 1;
        if (before > 0)
            out[n++] = (struct hth_run){run.first, before};
        if (after > 0)
            out[n++] = (struct hth_run){number + 1, after};
    }
    return n;
}

enum hth_err hth_dir_claim_refute(struct hth_dir_claim *c, uint32_t expert)
{
    if (c->posted == NULL)
        return HTH_E_NOT_FOUND;
    const struct hth_claim *posted = c->posted;
    struct hth_listing l = {.count = posted->count - 1};
    l.runs = hth_new_array(struct hth_run, posted->run_count + 1);
    l.run_count = runs_without(posted, expert, l.runs);
    enum hth_err err = HTH_E_NOT_FOUND;
    if (!same_runs(posted->runs, posted->run_count, l.runs, l.run_count))
        err = hth_dir_claim_set(c, &l);
    c->refuted = c->refuted || err == HTH_OK;
    hth_listing_clear(&l);
    return err;
}

/* ---- records ------------------------------------------------------------------------------- */

static enum hth_err check_listing(struct hth_dir_layer *layer, const struct hth_listing *l)
{
    if (!hth_grid_eq(&l->grid, &layer->grid))
        return strcmp(l->grid.name, layer->grid.name) == 0 ? HTH_E_BAD_SHAPE : HTH_E_MALFORMED;
    if (layer->wanted && !hth_layer_shape_eq(&l->shape, &layer->shape))
        return HTH_E_BAD_SHAPE;
    return HTH_OK;
}

static enum hth_err take_listing(struct hth_dir_layer *layer, const struct hth_record *rec,
                                 struct hth_listing *l, void **user)
{
    struct hth_directory *dir = layer->dir;
    struct hth_dir_claim *c = *user;
    struct hth_dir_host *h;
    enum hth_err err = check_listing(layer, l);
    if (err == HTH_E_BAD_SHAPE) {
        dir->stats.records_bad_shape++;
        hth_dir_other_seen(layer, rec, l);
    }
    HTH_TRY(err);
    if (c == NULL) {
        HTH_TRY(hth_dir_host_need(dir, &rec->owner_id, &h));
        c = hth_dir_claim_new(h, layer);
    }
    err = hth_dir_claim_set(c, l);
    if (err != HTH_OK) {
        if (*user == NULL)
            hth_dir_claim_free(c);
        return err;
    }
    c->until_us = hth_now_us(dir->env) + (int64_t)rec->life_ms * HTH_US_PER_MS;
    hth_dir_host_update(dir, c, &l->info, rec->issued_us);
    *user = c;
    return HTH_OK;
}

static enum hth_err on_root_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_dir_layer *layer = arg;
    struct hth_listing l;
    HTH_TRY(hth_listing_read(rec->payload, rec->payload_len, &l));
    enum hth_err err = l.depth == 0 ? take_listing(layer, rec, &l, user) : HTH_E_MALFORMED;
    hth_listing_clear(&l);
    return err;
}

static enum hth_err on_branch_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_dir_branch *b = arg;
    struct hth_listing l;
    HTH_TRY(hth_listing_read(rec->payload, rec->payload_len, &l));
    enum hth_err err =
        l.depth == 1 && l.c0 == b->c0 ? check_listing(b->layer, &l) : HTH_E_MALFORMED;
    if (err == HTH_OK) {
        /* Convert numbers below the prefix to indices in the grid. */
        uint32_t base = l.c0 * hth_listing_universe(&l);
        for (size_t i = 0; i < l.run_count; i++)
            l.runs[i].first += base;
        err = take_listing(b->layer, rec, &l, user);
    }
    hth_listing_clear(&l);
    return err;
}

/* The same as on_record with an equal listing, but it parses nothing and reads the claim alone:
 * most records are renewals, and in a large swarm the host is cold in memory. */
static bool on_renewed(void *arg, const struct hth_record *rec, int64_t now_us, void *user)
{
    struct hth_dir_claim *c = user;
    (void)arg;
    if (!c->is_source || rec->issued_us < c->issued_us || c->refuted)
        return false;
    c->until_us = now_us + (int64_t)rec->life_ms * HTH_US_PER_MS;
    if (c->dead)
        hth_dir_host_update(c->layer->dir, c, NULL, rec->issued_us);
    else
        c->issued_us = rec->issued_us;
    return true;
}

static void on_record_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    (void)arg;
    (void)owner;
    (void)part;
    hth_dir_claim_free(user);
}

static void on_root_refused(void *arg, enum hth_err err, const struct hth_record *rec)
{
    struct hth_dir_layer *layer = arg;
    char why[200];
    int64_t wall_us = hth_wall_us(layer->dir->env);
    HTH_LOG(layer->dir->env, err == HTH_E_CLOCK_SKEW ? HTH_WARN : HTH_DEBUG, HTH_SUB_DHT,
            "a record of layer %s is refused (%s): %s", layer->grid.name, hth_err_name(err),
            hth_record_explain(err, rec, wall_us, why));
}

const struct hth_board_ops HTH_DIR_ROOT_OPS = {on_root_record, on_record_gone, on_root_refused};
static const struct hth_board_ops BRANCH_OPS = {on_branch_record, on_record_gone, NULL};
