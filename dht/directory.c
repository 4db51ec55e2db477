/* SPDX-License-Identifier: Apache-2.0 */
/*
 * directory.c: records come in through boards, claims go into postings, views come out.
 *
 *   root board of a layer --- record ---> root_claim --- names all experts -------> postings
 *                                             \--- names first coordinates only -> branches
 *   branch (layer.c0.) board - record ---> claim of the experts below c0 ---------> postings
 *
 * A host exists while it has claims. What it says about itself is taken from its newest record.
 */
#include "dht/directory.h"

#include <stdlib.h>
#include <string.h>

#include "core/map.h"
#include "core/mem.h"
#include "dht/board.h"
#include "dht/listing.h"
#include "dht/postings.h"
#include "dht/view.h"

struct host {
    struct hth_peer_id id;
    struct hth_host_info info;
    uint32_t slot;
    int64_t issued_us; /* wall clock of its newest record */
    bool down;         /* marked dead */
    int64_t down_wall_us;
    int64_t down_until_us;
    struct claim *claims; /* list */
};

/* One believed record. */
struct claim {
    struct host *host;
    struct layer *layer;
    struct claim *next, **link; /* in host->claims */
    bool firsts;                /* the runs are first coordinates, held here; else in `posted` */
    struct hth_run *runs;
    size_t run_count;
    struct hth_claim *posted;
    int64_t until_us;
    struct hth_timer *timer; /* of a claim that hth_directory_load made */
};

/* A prefix whose records are read besides the root's, while a root record names it. */
struct branch {
    struct layer *layer;
    uint32_t c0;
    uint32_t refs;
    struct hth_board *board;
};

struct layer {
    struct hth_directory *dir;
    struct hth_grid grid;
    struct hth_layer_shape shape;
    bool wanted; /* the shape is ours: others are refused */
    bool shaped; /* the shape is known */
    struct hth_board *board;
    struct hth_map *branches; /* c0 -> branch */
    struct hth_postings *postings;
    uint64_t seen_version; /* of the postings, when the view was made */
    struct hth_grid_view *view;
};

struct hth_directory {
    struct hth_env *env;
    struct hth_dht *dht;
    char network[HTH_NAME_LEN_MAX + 1];
    struct hth_directory_opts opts;
    struct hth_record_cache *cache;
    struct layer *layers[HTH_DIR_LAYERS_MAX];
    uint32_t layer_count;
    struct hth_map *by_id; /* peer id -> host */
    struct host **order;   /* in order of arrival */
    struct host **slots;   /* by slot number; NULL: free */
    uint32_t host_count, host_capacity;
    uint32_t down_count;
    struct hth_timer *down_timer;
    struct hth_timer *notify;
    bool notify_set;
    hth_fn *change;
    void *change_arg;
    struct hth_directory_stats stats;
};

static void notify(struct hth_directory *dir)
{
    if (dir->change == NULL || dir->notify_set)
        return;
    dir->notify_set = true;
    hth_timer_set(dir->env, dir->notify, 0);
}

static void on_notify(void *arg)
{
    struct hth_directory *dir = arg;
    dir->notify_set = false;
    if (dir->change != NULL)
        dir->change(dir->change_arg);
}

/* ---- hosts --------------------------------------------------------------------------------- */

static struct host *host_get(const struct hth_directory *dir, const struct hth_peer_id *id)
{
    return hth_map_get(dir->by_id, id->b, sizeof(id->b));
}

static enum hth_err host_need(struct hth_directory *dir, const struct hth_peer_id *id,
                              struct host **out)
{
    struct host *h = host_get(dir, id);
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
    h = hth_new(struct host);
    h->id = *id;
    while (dir->slots[h->slot] != NULL)
        h->slot++;
    dir->slots[h->slot] = h;
    dir->order[dir->host_count++] = h;
    hth_map_put(dir->by_id, h->id.b, sizeof(h->id.b), h);
    *out = h;
    return HTH_OK;
}

static void host_unless_used(struct hth_directory *dir, struct host *h)
{
    uint32_t i = 0;
    if (h->claims != NULL)
        return;
    while (dir->order[i] != h)
        i++;
    dir->host_count--;
    memmove(&dir->order[i], &dir->order[i + 1], (dir->host_count - i) * sizeof(*dir->order));
    dir->slots[h->slot] = NULL;
    dir->down_count -= h->down;
    hth_map_del(dir->by_id, h->id.b, sizeof(h->id.b));
    hth_free(h);
    notify(dir);
}

static void host_set_down(struct hth_directory *dir, struct host *h, bool down)
{
    if (h->down == down)
        return;
    h->down = down;
    dir->down_count += down ? 1 : UINT32_MAX; /* minus one */
    for (struct claim *c = h->claims; c != NULL; c = c->next)
        if (c->posted != NULL)
            hth_postings_owner_moved(c->layer->postings, c->posted);
    notify(dir);
}

static void arm_down_timer(struct hth_directory *dir)
{
    int64_t first_us = INT64_MAX;
    for (uint32_t i = 0; i < dir->host_count; i++)
        if (dir->order[i]->down)
            first_us = HTH_MIN(first_us, dir->order[i]->down_until_us);
    if (first_us != INT64_MAX)
        hth_timer_set(dir->env, dir->down_timer, HTH_MAX(first_us - hth_now_us(dir->env), 0));
}

static void on_down_timer(void *arg)
{
    struct hth_directory *dir = arg;
    for (uint32_t i = 0; i < dir->host_count; i++)
        if (dir->order[i]->down && dir->order[i]->down_until_us <= hth_now_us(dir->env))
            host_set_down(dir, dir->order[i], false);
    arm_down_timer(dir);
}

/* News about the host itself. A record issued after the mark proves that it lives. */
static void host_hear(struct hth_directory *dir, struct host *h, const struct hth_host_info *info,
                      int64_t issued_us)
{
    if (issued_us < h->issued_us)
        return;
    h->issued_us = issued_us;
    h->info = *info;
    if (h->down && issued_us > h->down_wall_us)
        host_set_down(dir, h, false);
}

/* ---- branches ------------------------------------------------------------------------------ */

static const struct hth_board_ops BRANCH_OPS;

static enum hth_err board_open(struct layer *layer, enum hth_record_kind kind, uint32_t c0,
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
    opts.negative_us = dir->opts.negative_us;
    return hth_board_new(dir->env, dir->dht, &topic, &opts, ops, arg, out);
}

/* What a board that goes away has cost stays in the sums. */
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

static enum hth_err branch_ref(struct layer *layer, uint32_t c0)
{
    struct branch *b = hth_map_get_u64(layer->branches, c0);
    if (b == NULL) {
        if (hth_map_count(layer->branches) == HTH_DIR_BRANCHES_MAX)
            return HTH_E_BUDGET;
        b = hth_new(struct branch);
        b->layer = layer;
        b->c0 = c0;
        enum hth_err err = board_open(layer, HTH_RECORD_PREFIX, c0, &BRANCH_OPS, b, &b->board);
        if (err != HTH_OK) {
            hth_free(b);
            return err;
        }
        hth_map_put_u64(layer->branches, c0, b);
    }
    b->refs++;
    return HTH_OK;
}

static void branch_unref(struct layer *layer, uint32_t c0)
{
    struct branch *b = hth_map_get_u64(layer->branches, c0);
    if (b == NULL || --b->refs > 0)
        return;
    hth_map_del_u64(layer->branches, c0);
    board_close(layer->dir, b->board);
    hth_free(b);
}

/* The first `count` first coordinates of the runs. */
static void branches_unref(struct layer *layer, const struct hth_run *runs, size_t run_count,
                           uint32_t count)
{
    for (size_t r = 0; r < run_count && count > 0; r++)
        for (uint32_t i = 0; i < runs[r].count && count > 0; i++, count--)
            branch_unref(layer, runs[r].first + i);
}

static enum hth_err branches_ref(struct layer *layer, const struct hth_run *runs, size_t run_count)
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

/* Lets go of what the claim names; the claim itself stays. */
static void claim_release(struct claim *c)
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

static void claim_free(struct claim *c)
{
    struct hth_directory *dir = c->layer->dir;
    struct host *h = c->host;
    claim_release(c);
    hth_timer_free(dir->env, c->timer);
    *c->link = c->next;
    if (c->next != NULL)
        c->next->link = c->link;
    hth_free(c);
    notify(dir);
    host_unless_used(dir, h);
}

static struct claim *claim_new(struct host *h, struct layer *layer)
{
    struct claim *c = hth_new(struct claim);
    c->host = h;
    c->layer = layer;
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

/* Takes over the listing's runs: the new ones are in place before the old ones go, so that an
 * expert named by both never blinks. Nothing changes on an error. */
static enum hth_err claim_set(struct claim *c, struct hth_listing *l)
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
                                 .down = &c->host->down,
                                 .runs = l->runs,
                                 .run_count = l->run_count,
                                 .count = l->count};
        HTH_TRY(hth_postings_add(c->layer->postings, &want, &posted));
    }
    claim_release(c);
    c->posted = posted;
    c->firsts = firsts;
    if (firsts) {
        c->runs = l->runs;
        c->run_count = l->run_count;
    }
    l->runs = NULL;
    notify(c->layer->dir);
    return HTH_OK;
}

/* ---- records ------------------------------------------------------------------------------- */

static enum hth_err check_listing(struct layer *layer, const struct hth_listing *l)
{
    if (!hth_grid_eq(&l->grid, &layer->grid))
        return strcmp(l->grid.name, layer->grid.name) == 0 ? HTH_E_BAD_SHAPE : HTH_E_MALFORMED;
    if (layer->wanted && !hth_layer_shape_eq(&l->shape, &layer->shape))
        return HTH_E_BAD_SHAPE;
    return HTH_OK;
}

static void log_bad_shape(struct layer *layer, const struct hth_record *rec,
                          const struct hth_listing *l)
{
    char who[HTH_PEER_SHORT_LEN], theirs[HTH_UID_TEXT_MAX], ours[HTH_UID_TEXT_MAX];
    HTH_LOG(layer->dir->env, HTH_WARN, HTH_SUB_DHT,
            "host %s is left out (E_BAD_SHAPE): it serves %s of %s, d %u; we need %s of %s, d %u",
            hth_peer_id_short(&rec->owner_id, who), hth_grid_text(&l->grid, theirs), l->shape.kind,
            l->shape.d, hth_grid_text(&layer->grid, ours), layer->shape.kind, layer->shape.d);
}

static enum hth_err take_listing(struct layer *layer, const struct hth_record *rec,
                                 struct hth_listing *l, void **user)
{
    struct hth_directory *dir = layer->dir;
    struct claim *c = *user;
    struct host *h;
    enum hth_err err = check_listing(layer, l);
    if (err == HTH_E_BAD_SHAPE) {
        dir->stats.records_bad_shape++;
        log_bad_shape(layer, rec, l);
    }
    HTH_TRY(err);
    HTH_TRY(host_need(dir, &rec->owner_id, &h));
    if (c == NULL)
        c = claim_new(h, layer);
    err = claim_set(c, l);
    if (err != HTH_OK) {
        if (*user == NULL)
            claim_free(c);
        return err;
    }
    if (!layer->wanted) {
        layer->shape = l->shape;
        layer->shaped = true;
    }
    c->until_us = hth_now_us(dir->env) + (int64_t)rec->life_ms * HTH_US_PER_MS;
    host_hear(dir, h, &l->info, rec->issued_us);
    *user = c;
    return HTH_OK;
}

static enum hth_err on_root_record(void *arg, const struct hth_record *rec, void **user)
{
    struct layer *layer = arg;
    struct hth_listing l;
    HTH_TRY(hth_listing_read(rec->payload, rec->payload_len, &l));
    enum hth_err err = l.depth == 0 ? take_listing(layer, rec, &l, user) : HTH_E_MALFORMED;
    hth_listing_clear(&l);
    return err;
}

static enum hth_err on_branch_record(void *arg, const struct hth_record *rec, void **user)
{
    struct branch *b = arg;
    struct hth_listing l;
    HTH_TRY(hth_listing_read(rec->payload, rec->payload_len, &l));
    enum hth_err err =
        l.depth == 1 && l.c0 == b->c0 ? check_listing(b->layer, &l) : HTH_E_MALFORMED;
    if (err == HTH_OK) {
        /* Numbers below the prefix become indices in the grid. */
        uint32_t base = l.c0 * hth_listing_universe(&l);
        for (size_t i = 0; i < l.run_count; i++)
            l.runs[i].first += base;
        err = take_listing(b->layer, rec, &l, user);
    }
    hth_listing_clear(&l);
    return err;
}

static void on_record_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    (void)arg;
    (void)owner;
    (void)part;
    claim_free(user);
}

static void on_root_refused(void *arg, enum hth_err err, const struct hth_record *rec)
{
    struct layer *layer = arg;
    char why[200];
    int64_t wall_us = hth_wall_us(layer->dir->env);
    HTH_LOG(layer->dir->env, err == HTH_E_CLOCK_SKEW ? HTH_WARN : HTH_DEBUG, HTH_SUB_DHT,
            "a record of layer %s is refused (%s): %s", layer->grid.name, hth_err_name(err),
            hth_record_explain(err, rec, wall_us, why));
}

static const struct hth_board_ops ROOT_OPS = {on_root_record, on_record_gone, on_root_refused};
static const struct hth_board_ops BRANCH_OPS = {on_branch_record, on_record_gone, NULL};

/* ---- life ---------------------------------------------------------------------------------- */

enum hth_err hth_directory_new(struct hth_env *env, struct hth_dht *dht,
                               const struct hth_directory_opts *opts, struct hth_directory **out)
{
    *out = NULL;
    if (opts->network == NULL ||
        hth_name_check(opts->network, strnlen(opts->network, HTH_NAME_LEN_MAX + 1)) != HTH_OK)
        return HTH_E_CONFIG;
    struct hth_directory *dir = hth_new(struct hth_directory);
    dir->env = env;
    dir->dht = dht;
    dir->opts = *opts;
    memcpy(dir->network, opts->network, strlen(opts->network) + 1);
    dir->opts.network = dir->network;
    dir->cache = hth_record_cache_new();
    dir->by_id = hth_map_new();
    dir->down_timer = hth_timer_new(env, on_down_timer, dir);
    dir->notify = hth_timer_new(env, on_notify, dir);
    *out = dir;
    return HTH_OK;
}

static void layer_free(struct layer *layer)
{
    /* Claims of records go with their boards; the root's claims close the branches. */
    hth_board_free(layer->board);
    HTH_ASSERT(hth_map_count(layer->branches) == 0);
    hth_map_free(layer->branches);
    hth_postings_free(layer->postings);
    hth_grid_view_unref(layer->view);
    hth_free(layer);
}

/* The youngest first: its nodes are at the front of the postings' lists. */
static struct claim *any_loaded(const struct hth_directory *dir)
{
    for (uint32_t i = dir->host_count; i-- > 0;)
        for (struct claim *c = dir->order[i]->claims; c != NULL; c = c->next)
            if (c->timer != NULL)
                return c;
    return NULL;
}

void hth_directory_free(struct hth_directory *dir)
{
    if (dir == NULL)
        return;
    for (struct claim *c; (c = any_loaded(dir)) != NULL;)
        claim_free(c);
    for (uint32_t i = 0; i < dir->layer_count; i++)
        layer_free(dir->layers[i]);
    HTH_ASSERT(dir->host_count == 0);
    hth_timer_free(dir->env, dir->down_timer);
    hth_timer_free(dir->env, dir->notify);
    hth_record_cache_free(dir->cache);
    hth_map_free(dir->by_id);
    hth_free(dir->order);
    hth_free(dir->slots);
    hth_free(dir);
}

void hth_directory_on_change(struct hth_directory *dir, hth_fn *fn, void *arg)
{
    dir->change = fn;
    dir->change_arg = arg;
}

/* ---- layers -------------------------------------------------------------------------------- */

static enum hth_err layer_init(struct layer *layer)
{
    HTH_TRY(hth_postings_new(&layer->grid, &layer->postings));
    HTH_TRY(hth_view_make(&layer->view, &layer->grid, hth_postings_live(layer->postings), 0));
    return board_open(layer, HTH_RECORD_ROOT, 0, &ROOT_OPS, layer, &layer->board);
}

enum hth_err hth_directory_open_layer(struct hth_directory *dir, const struct hth_grid *grid,
                                      const struct hth_layer_shape *want, uint32_t *layer)
{
    for (uint32_t i = 0; i < dir->layer_count; i++) {
        const struct layer *l = dir->layers[i];
        if (strcmp(l->grid.name, grid->name) != 0)
            continue;
        *layer = i;
        bool same = hth_grid_eq(&l->grid, grid) &&
                    (want == NULL || (l->wanted && hth_layer_shape_eq(&l->shape, want)));
        return same ? HTH_OK : HTH_E_CONFIG;
    }
    if (dir->layer_count == HTH_DIR_LAYERS_MAX)
        return HTH_E_BUDGET;
    struct layer *l = hth_new(struct layer);
    l->dir = dir;
    l->grid = *grid;
    l->branches = hth_map_new();
    if (want != NULL) {
        l->shape = *want;
        l->wanted = true;
        l->shaped = true;
    }
    enum hth_err err = layer_init(l);
    if (err != HTH_OK) {
        layer_free(l);
        return err;
    }
    *layer = dir->layer_count;
    dir->layers[dir->layer_count++] = l;
    return HTH_OK;
}

uint32_t hth_directory_layer_count(const struct hth_directory *dir)
{
    return dir->layer_count;
}

const struct hth_grid *hth_directory_grid(const struct hth_directory *dir, uint32_t layer)
{
    return &dir->layers[layer]->grid;
}

enum hth_err hth_directory_shape(const struct hth_directory *dir, uint32_t layer,
                                 struct hth_layer_shape *out)
{
    *out = dir->layers[layer]->shape;
    return dir->layers[layer]->shaped ? HTH_OK : HTH_E_NOT_FOUND;
}

struct hth_grid_view *hth_directory_view(struct hth_directory *dir, uint32_t layer)
{
    struct layer *l = dir->layers[layer];
    uint64_t version = hth_postings_version(l->postings);
    if (version != l->seen_version) {
        enum hth_err err = hth_view_make(&l->view, &l->grid, hth_postings_live(l->postings),
                                         hth_postings_live_count(l->postings));
        if (err == HTH_OK)
            l->seen_version = version;
        else /* the old view serves on; calls to hosts that left fail by themselves */
            HTH_LOG(dir->env, HTH_ERROR, HTH_SUB_DHT, "no memory for a new view of layer %s",
                    l->grid.name);
    }
    return l->view;
}

uint64_t hth_directory_generation(const struct hth_directory *dir, uint32_t layer)
{
    const struct layer *l = dir->layers[layer];
    return l->view->generation + (hth_postings_version(l->postings) != l->seen_version);
}

enum hth_err hth_directory_ask(struct hth_directory *dir, uint32_t layer)
{
    return hth_board_ask(dir->layers[layer]->board);
}

/* ---- questions ----------------------------------------------------------------------------- */

static void ref_of(const struct host *h, struct hth_host_ref *out)
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

/* Insertion into the best `max` so far. */
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

void hth_directory_mark_dead(struct hth_directory *dir, const struct hth_peer_id *id,
                             int64_t retry_us)
{
    struct host *h = host_get(dir, id);
    if (h == NULL)
        return;
    h->down_wall_us = hth_wall_us(dir->env);
    h->down_until_us = hth_now_us(dir->env) + (retry_us > 0 ? retry_us : dir->opts.dead_retry_us);
    host_set_down(dir, h, true);
    arm_down_timer(dir);
}

void hth_directory_mark_alive(struct hth_directory *dir, const struct hth_peer_id *id)
{
    struct host *h = host_get(dir, id);
    if (h != NULL)
        host_set_down(dir, h, false);
}

static void status_of(const struct hth_directory *dir, const struct host *h,
                      struct hth_host_status *out)
{
    uint64_t seen[HTH_DIR_LAYERS_MAX / 64] = {0};
    memset(out, 0, sizeof(*out));
    ref_of(h, &out->ref);
    out->info = h->info;
    out->dead = h->down;
    out->age_us = HTH_MAX(hth_wall_us(dir->env) - h->issued_us, 0);
    out->left_us = INT64_MAX;
    for (const struct claim *c = h->claims; c != NULL; c = c->next) {
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
    const struct host *h = host_get(dir, id);
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
    const struct host *h = host_get(dir, id);
    struct hth_run *runs = NULL;
    size_t count = 0, n = 0;
    for (const struct claim *c = h != NULL ? h->claims : NULL; c != NULL; c = c->next) {
        if (c->layer != dir->layers[layer] || c->posted == NULL)
            continue;
        runs = hth_realloc(runs, count + c->posted->run_count, sizeof(*runs));
        memcpy(runs + count, c->posted->runs, c->posted->run_count * sizeof(*runs));
        count += c->posted->run_count;
    }
    if (count > 1)
        qsort(runs, count, sizeof(*runs), run_cmp);
    uint32_t next = 0; /* what two records both name is counted once */
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

size_t hth_directory_pick_free(struct hth_directory *dir, uint32_t layer, uint32_t want,
                               uint32_t *out)
{
    struct layer *l = dir->layers[layer];
    uint32_t size = hth_grid_size(&l->grid), run = 0;
    uint32_t start = (uint32_t)hth_rng_below(&dir->env->rng, size), first = start;
    size_t n = 0;
    /* The first gap behind `start` that is wide enough, without wrapping inside the gap... */
    for (uint32_t i = 0; i < size && run < want; i++) {
        uint32_t e = (start + i) % size;
        if (e == 0)
            run = 0;
        run = hth_postings_any(l->postings, e) ? 0 : run + 1;
        if (run == want)
            first = e - want + 1;
    }
    /* ... or else whatever is free. The order is ascending: first what wrapped around. */
    uint32_t *found = hth_new_array(uint32_t, (size_t)want + 1);
    for (uint32_t i = 0; i < size && n < want; i++) {
        uint32_t e = (first + i) % size;
        if (!hth_postings_any(l->postings, e))
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
    out->hosts_dead = dir->down_count;
    for (uint32_t i = 0; i < dir->layer_count; i++) {
        const struct layer *l = dir->layers[i];
        const struct branch *b;
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

/* ---- hosts by hand ------------------------------------------------------------------------- */

static void on_loaded_end(void *arg)
{
    claim_free(arg);
}

/* Strictly ascending indices as runs. */
static enum hth_err runs_of(const struct hth_grid *grid, const struct hth_expert_list *experts,
                            struct hth_listing *l)
{
    l->runs = hth_try_calloc(experts->count, sizeof(*l->runs));
    if (l->runs == NULL)
        return HTH_E_NO_MEMORY;
    for (size_t i = 0; i < experts->count; i++) {
        uint32_t e = experts->index[i];
        struct hth_run *last = l->run_count > 0 ? &l->runs[l->run_count - 1] : NULL;
        if (e >= hth_grid_size(grid) || (last != NULL && e < last->first + last->count))
            return HTH_E_RANGE;
        if (last != NULL && e == last->first + last->count)
            last->count++;
        else
            l->runs[l->run_count++] = (struct hth_run){e, 1};
    }
    l->count = (uint32_t)experts->count;
    return HTH_OK;
}

enum hth_err hth_directory_load(struct hth_directory *dir, uint32_t layer,
                                const struct hth_peer_id *id, const struct hth_host_info *info,
                                const struct hth_expert_list *experts, int64_t life_us)
{
    struct hth_listing l = {0};
    struct host *h;
    enum hth_err err;
    if (experts->count > HTH_ANNOUNCE_EXPERTS_MAX)
        return HTH_E_BUDGET;
    HTH_GOTO(out, runs_of(&dir->layers[layer]->grid, experts, &l));
    HTH_GOTO(out, host_need(dir, id, &h));
    struct claim *c = claim_new(h, dir->layers[layer]);
    err = claim_set(c, &l);
    if (err != HTH_OK) {
        claim_free(c);
        goto out;
    }
    host_hear(dir, h, info, hth_wall_us(dir->env));
    c->until_us = hth_now_us(dir->env) + life_us;
    c->timer = hth_timer_new(dir->env, on_loaded_end, c);
    hth_timer_set(dir->env, c->timer, life_us);
out:
    hth_listing_clear(&l);
    return err;
}
