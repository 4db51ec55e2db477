/* SPDX-License-Identifier: Apache-2.0 */
/*
 * directory.c: creation and end, layers and their views; directory_int.h has the picture.
 */
#include "dht/directory.h"

#include <string.h>

#include "core/map.h"
#include "core/mem.h"
#include "dht/directory_int.h"

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
    dir->layers = dir->few;
    dir->layer_capacity = HTH_ARRAY_LEN(dir->few);
    dir->cache = hth_record_cache_new();
    dir->by_id = hth_map_new_held(offsetof(struct hth_dir_host, id), sizeof(struct hth_peer_id));
    dir->dead_timer = hth_timer_new(env, hth_dir_on_dead_timer, dir);
    dir->notify = hth_timer_new(env, hth_dir_on_notify, dir);
    *out = dir;
    return HTH_OK;
}

static void layer_free(struct hth_dir_layer *layer)
{
    /* Freeing a board frees its claims; the root's claims close the branches. */
    hth_board_free(layer->board);
    HTH_ASSERT(hth_map_count(layer->branches) == 0);
    hth_map_free(layer->branches);
    hth_postings_free(layer->postings);
    hth_grid_view_unref(layer->view);
    hth_free(layer);
}

/* The youngest first, because its postings are at the front of their lists. */
static struct hth_dir_claim *any_loaded(const struct hth_directory *dir)
{
    for (uint32_t i = dir->host_count; i-- > 0;)
        for (struct hth_dir_claim *c = dir->order[i]->claims; c != NULL; c = c->next)
            if (c->timer != NULL)
                return c;
    return NULL;
}

void hth_directory_free(struct hth_directory *dir)
{
    if (dir == NULL)
        return;
    for (struct hth_dir_claim *c; (c = any_loaded(dir)) != NULL;)
        hth_dir_claim_free(c);
    for (uint32_t i = 0; i < dir->layer_count; i++)
        layer_free(dir->layers[i]);
    HTH_ASSERT(dir->host_count == 0);
    hth_timer_free(dir->env, dir->dead_timer);
    hth_timer_free(dir->env, dir->notify);
    hth_dir_others_free(dir->others);
    hth_record_cache_free(dir->cache);
    hth_map_free(dir->by_id);
    if (dir->layers != dir->few)
        hth_free(dir->layers);
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

static enum hth_err layer_init(struct hth_dir_layer *layer)
{
    HTH_TRY(hth_postings_new(&layer->grid, &layer->postings));
    HTH_TRY(hth_view_make(&layer->view, &layer->grid, hth_postings_live(layer->postings), 0));
    return hth_dir_board_open(layer, HTH_RECORD_ROOT, 0, &HTH_DIR_ROOT_OPS, layer, &layer->board);
}

/* Makes room for one more layer. */
static void layers_reserve(struct hth_directory *dir)
{
    if (dir->layer_count < dir->layer_capacity)
        return;
    bool moves = dir->layers == dir->few;
    dir->layer_capacity *= 2;
    dir->layers = hth_realloc(moves ? NULL : dir->layers, dir->layer_capacity, sizeof(dir->few[0]));
    if (moves)
        memcpy(dir->layers, dir->few, sizeof(dir->few));
}

enum hth_err hth_directory_open_layer(struct hth_directory *dir, const struct hth_grid *grid,
                                      const struct hth_layer_shape *want, uint32_t *layer)
{
    for (uint32_t i = 0; i < dir->layer_count; i++) {
        const struct hth_dir_layer *l = dir->layers[i];
        if (strcmp(l->grid.name, grid->name) != 0)
            continue;
        *layer = i;
        bool same = hth_grid_eq(&l->grid, grid) &&
                    (want == NULL || (l->wanted && hth_layer_shape_eq(&l->shape, want)));
        return same ? HTH_OK : HTH_E_CONFIG;
    }
    if (dir->layer_count == HTH_DIR_LAYERS_MAX)
        return HTH_E_BUDGET;
    struct hth_dir_layer *l = hth_new(struct hth_dir_layer);
    l->dir = dir;
    l->grid = *grid;
    l->branches = hth_map_new();
    if (want != NULL) {
        l->shape = *want;
        l->wanted = true;
    }
    enum hth_err err = layer_init(l);
    if (err != HTH_OK) {
        layer_free(l);
        return err;
    }
    *layer = dir->layer_count;
    layers_reserve(dir);
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

struct hth_grid_view *hth_directory_view(struct hth_directory *dir, uint32_t layer)
{
    struct hth_dir_layer *l = dir->layers[layer];
    uint64_t version = hth_postings_version(l->postings);
    if (version != l->seen_version) {
        enum hth_err err = hth_view_make(&l->view, &l->grid, hth_postings_live(l->postings),
                                         hth_postings_live_count(l->postings));
        if (err == HTH_OK)
            l->seen_version = version;
        else /* keep the old view; calls to hosts that left fail at the call */
            HTH_LOG(dir->env, HTH_ERROR, HTH_SUB_DHT,
                    "no memory for a new view of layer %s; the old one stays in use", l->grid.name);
    }
    return l->view;
}

uint64_t hth_directory_generation(const struct hth_directory *dir, uint32_t layer)
{
    const struct hth_dir_layer *l = dir->layers[layer];
    return l->view->generation + (hth_postings_version(l->postings) != l->seen_version);
}

enum hth_err hth_directory_ask(struct hth_directory *dir, uint32_t layer)
{
    return hth_board_ask(dir->layers[layer]->board);
}

/* ---- loaded hosts -------------------------------------------------------------------------- */

static void on_loaded_end(void *arg)
{
    hth_dir_claim_free(arg);
}

/* Converts strictly ascending indices to runs. */
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
    struct hth_dir_host *h;
    enum hth_err err;
    if (experts->count > HTH_ANNOUNCE_EXPERTS_MAX)
        return HTH_E_BUDGET;
    HTH_GOTO(out, runs_of(&dir->layers[layer]->grid, experts, &l));
    HTH_GOTO(out, hth_dir_host_need(dir, id, &h));
    struct hth_dir_claim *c = hth_dir_claim_new(h, dir->layers[layer]);
    err = hth_dir_claim_set(c, &l);
    if (err != HTH_OK) {
        hth_dir_claim_free(c);
        goto out;
    }
    hth_dir_host_update(dir, c, info, hth_wall_us(dir->env));
    c->until_us = hth_now_us(dir->env) + life_us;
    c->timer = hth_timer_new(dir->env, on_loaded_end, c);
    hth_timer_set(dir->env, c->timer, life_us);
out:
    hth_listing_clear(&l);
    return err;
}
