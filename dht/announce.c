/* SPDX-License-Identifier: Apache-2.0 */
#include "dht/announce.h"

#include <string.h>

#include "core/map.h"
#include "core/mem.h"
#include "core/name.h"
#include "dht/board.h"
#include "dht/listing.h"

/* One record of a layer: a range of its numbers. */
struct announce_part {
    struct hth_announcer *ann;
    struct announce_layer *layer;
    uint8_t key[8]; /* depth, c0, part: the map's key */
    uint8_t depth;
    uint32_t c0;
    size_t at, count; /* in layer->firsts for the root of a cut layer, else in layer->number */
    bool keep;        /* in the plan being made */
    bool leaving;
    struct hth_publisher *publisher;
};

struct announce_layer {
    struct hth_grid grid;
    struct hth_layer_shape shape;
    /* experts as the records number them: inside the grid, or below c0 when cut */
    uint32_t *number;
    uint32_t *firsts; /* of a cut layer: first coordinates in use */
    size_t count, first_count;
    bool cut;
    struct hth_map *parts; /* key -> part */
};

struct hth_announcer {
    struct hth_env *env;
    struct hth_dht *dht;
    char network[HTH_NAME_LEN_MAX + 1];
    struct hth_announcer_opts opts;
    uint32_t queue_ms_published; /* the wait in the newest records */
    struct announce_layer **layers;
    size_t layer_count;
    struct hth_publisher *beacon;
    struct hth_announcer_stats gone; /* sums over publishers that were freed */
    uint64_t gone_seq;               /* their highest sequence: that of their goodbyes */
    struct hth_timer *timer;         /* ends a withdrawal */
    bool leaving;
    size_t goodbyes; /* under way */
    hth_fn *done;
    void *done_arg;
};

const char *hth_compute_name(enum hth_compute compute)
{
    switch (compute) {
    case HTH_COMPUTE_FP32:
        return "fp32";
    case HTH_COMPUTE_BF16:
        return "bf16";
    case HTH_COMPUTE_TF32:
        return "tf32";
    case HTH_COMPUTE_FP16:
        return "fp16";
    }
    return "?";
}

/* ---- payloads ------------------------------------------------------------------------------ */

static bool is_root(const struct announce_part *p)
{
    return p->depth == 0;
}

static void listing_of(const struct announce_part *p, struct hth_listing *out)
{
    memset(out, 0, sizeof(*out));
    out->flags = is_root(p) && p->layer->cut ? HTH_LISTING_FIRSTS : 0;
    out->info = p->ann->opts.info;
    out->grid = p->layer->grid;
    out->shape = p->layer->shape;
    out->depth = p->depth;
    out->c0 = p->c0;
}

static enum hth_err fill_part(void *arg, struct hth_writer *w)
{
    const struct announce_part *p = arg;
    const uint32_t *number = is_root(p) && p->layer->cut ? p->layer->firsts : p->layer->number;
    struct hth_listing listing;
    size_t taken;
    listing_of(p, &listing);
    HTH_TRY(hth_listing_write_head(w, &listing));
    HTH_TRY(hth_listing_write_set(w, number + p->at, p->count, w->capacity - w->pos, &taken));
    p->ann->queue_ms_published = p->ann->opts.info.queue_ms;
    return taken == p->count ? HTH_OK : HTH_E_TOO_LARGE;
}

static enum hth_err fill_beacon(void *arg, struct hth_writer *w)
{
    struct hth_announcer *ann = arg;
    struct hth_beacon beacon = {.protocol_min = HTH_PROTOCOL_MIN,
                                .protocol_max = HTH_PROTOCOL_MAX,
                                .role = ann->opts.role,
                                .info = ann->opts.info};
    if (!hth_network_is_private(ann->network))
        memcpy(beacon.network, ann->network, sizeof(beacon.network));
    beacon.layers = hth_new_array(struct hth_beacon_layer, ann->layer_count + 1);
    for (size_t i = 0; i < ann->layer_count; i++) {
        struct hth_beacon_layer *l = &beacon.layers[beacon.layer_count];
        if (ann->layers[i]->count == 0)
            continue;
        l->grid = ann->layers[i]->grid;
        l->shape = ann->layers[i]->shape;
        l->experts = (uint32_t)ann->layers[i]->count;
        beacon.layer_count++;
    }
    enum hth_err err =
        hth_beacon_write(w, &beacon, HTH_RECORD_AIM_BYTES - HTH_RECORD_OVERHEAD_BYTES);
    hth_beacon_clear(&beacon);
    return err;
}

/* ---- parts --------------------------------------------------------------------------------- */

static void part_free(struct announce_part *p)
{
    struct hth_publisher_stats s;
    hth_publisher_stats(p->publisher, &s);
    p->ann->gone.puts += s.puts;
    p->ann->gone.put_errors += s.put_errors;
    p->ann->gone_seq = HTH_MAX(p->ann->gone_seq, s.seq);
    hth_map_del(p->layer->parts, p->key, sizeof(p->key));
    hth_publisher_free(p->publisher);
    hth_free(p);
}

/* A withdrawal ends when the DHT has accepted the last goodbye. */
static void goodbye_done(struct hth_announcer *ann)
{
    ann->goodbyes--;
    if (ann->leaving && ann->goodbyes == 0)
        hth_timer_set(ann->env, ann->timer, 0);
}

static void on_part_left(void *arg, enum hth_err err)
{
    struct announce_part *p = arg;
    struct hth_announcer *ann = p->ann;
    (void)err;
    part_free(p);
    goodbye_done(ann);
}

static void part_leave(struct announce_part *p)
{
    if (p->leaving)
        return;
    p->leaving = true;
    p->ann->goodbyes++;
    hth_publisher_goodbye(p->publisher, on_part_left, p);
}

static enum hth_err part_new(struct hth_announcer *ann, struct announce_layer *layer,
                             const uint8_t key[8], struct announce_part **out)
{
    struct hth_publisher_opts opts = {
        .part = key[1], .life_us = ann->opts.life_us, .after_seq = ann->gone_seq};
    struct announce_part *p = hth_new(struct announce_part);
    struct hth_topic topic;
    char text[HTH_UID_TEXT_MAX];
    struct hth_uid prefix = {.ncoord = key[0]};
    memcpy(p->key, key, sizeof(p->key));
    p->ann = ann;
    p->layer = layer;
    p->depth = key[0];
    p->c0 = hth_load_u32le(key + 4);
    memcpy(prefix.name, layer->grid.name, sizeof(prefix.name));
    prefix.coord[0] = p->c0;
    hth_prefix_text(&prefix, text);
    hth_topic_init(&topic, ann->env->crypto, ann->network,
                   p->depth == 0 ? HTH_RECORD_ROOT : HTH_RECORD_PREFIX, text, strlen(text));
    enum hth_err err =
        hth_publisher_new(ann->env, ann->dht, &topic, &opts, fill_part, p, &p->publisher);
    if (err != HTH_OK) {
        hth_free(p);
        return err;
    }
    hth_map_put(layer->parts, p->key, sizeof(p->key), p);
    *out = p;
    return HTH_OK;
}

/* Makes the part of this key cover these numbers, and publishes it. */
static enum hth_err part_set(struct hth_announcer *ann, struct announce_layer *layer,
                             uint8_t key[8], size_t at, size_t count)
{
    struct announce_part *p = hth_map_get(layer->parts, key, 8);
    if (p == NULL) {
        HTH_TRY(part_new(ann, layer, key, &p));
    } else if (p->leaving) {
        p->leaving = false;
        ann->goodbyes--;
        hth_publisher_resume(p->publisher);
    } else {
        hth_publisher_update(p->publisher, 0);
    }
    p->at = at;
    p->count = count;
    p->keep = true;
    return HTH_OK;
}

/* ---- the plan: which numbers go into which record -------------------------------------------- */

static size_t parts_needed(const uint32_t *number, size_t count, size_t bytes_max)
{
    size_t parts = 0, taken;
    for (size_t at = 0; at < count; at += taken, parts++) {
        enum hth_err err = hth_listing_write_set(NULL, number + at, count - at, bytes_max, &taken);
        HTH_ASSERT(err == HTH_OK && taken > 0);
    }
    return parts;
}

static enum hth_err plan_prefix(struct hth_announcer *ann, struct announce_layer *layer,
                                uint8_t depth, uint32_t c0, size_t at, size_t count,
                                size_t bytes_max)
{
    const uint32_t *number = depth == 0 && layer->cut ? layer->firsts : layer->number;
    size_t end = at + count;
    uint8_t key[8] = {depth};
    size_t parts = parts_needed(number + at, count, bytes_max);
    if (parts > HTH_BOARD_RECORDS_PER_OWNER_MAX)
        return HTH_E_BUDGET;
    hth_store_u32le(key + 4, c0);
    for (size_t taken; at < end; at += taken, key[1]++) {
        HTH_TRY(hth_listing_write_set(NULL, number + at, end - at, bytes_max, &taken));
        HTH_TRY(part_set(ann, layer, key, at, taken));
    }
    return HTH_OK;
}

/* Fills layer->firsts and turns the numbers into offsets below their first coordinate. */
static void cut_layer(struct announce_layer *layer, uint32_t stride)
{
    uint32_t last = UINT32_MAX;
    layer->cut = true;
    layer->firsts = hth_new_array(uint32_t, layer->count);
    for (size_t i = 0; i < layer->count; i++) {
        uint32_t c0 = layer->number[i] / stride;
        if (c0 != last)
            layer->firsts[layer->first_count++] = c0;
        last = c0;
        layer->number[i] -= c0 * stride;
    }
}

/* Plans the prefixes of a cut layer. The experts below each first coordinate are neighbours in the
 * original list, so one walk over it finds their ranges. */
static enum hth_err plan_cut(struct hth_announcer *ann, struct announce_layer *layer,
                             const uint32_t *experts, uint32_t stride, size_t bytes_max)
{
    HTH_TRY(plan_prefix(ann, layer, 0, 0, 0, layer->first_count, bytes_max));
    for (size_t at = 0, end; at < layer->count; at = end) {
        uint32_t c0 = experts[at] / stride;
        for (end = at; end < layer->count && experts[end] / stride == c0;)
            end++;
        HTH_TRY(plan_prefix(ann, layer, 1, c0, at, end - at, bytes_max));
    }
    return HTH_OK;
}

static size_t count_firsts(const uint32_t *experts, size_t count, uint32_t stride)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += i == 0 || experts[i] / stride != experts[i - 1] / stride;
    return n;
}

static enum hth_err make_plan(struct hth_announcer *ann, struct announce_layer *layer,
                              const struct hth_expert_list *list)
{
    struct announce_part probe = {
        .ann = ann, .layer = layer, .depth = 1, .c0 = layer->grid.dim[0] - 1};
    struct hth_listing listing;
    uint8_t buf[HTH_RECORD_PAYLOAD_MAX];
    struct hth_writer w;
    uint32_t stride = hth_grid_size(&layer->grid) / layer->grid.dim[0];
    listing_of(&probe, &listing);
    hth_writer_init(&w, buf, sizeof(buf));
    HTH_TRY(hth_listing_write_head(&w, &listing));
    /* Later addresses may make the head longer: large records leave room for the longest. */
    size_t large = HTH_RECORD_PAYLOAD_MAX - 512;
    size_t aim = HTH_RECORD_AIM_BYTES - HTH_RECORD_OVERHEAD_BYTES;
    aim = aim > w.pos + 64 ? aim - w.pos : 64;
    size_t roots = parts_needed(list->index, list->count, aim);
    if (roots <= HTH_ANNOUNCE_ROOT_PARTS_MAX)
        return plan_prefix(ann, layer, 0, 0, 0, list->count, aim);
    if (layer->grid.ndim > 1 && count_firsts(list->index, list->count, stride) <= roots) {
        cut_layer(layer, stride);
        return plan_cut(ann, layer, list->index, stride, aim);
    }
    return plan_prefix(ann, layer, 0, 0, 0, list->count,
                       roots <= HTH_BOARD_RECORDS_PER_OWNER_MAX ? aim : large);
}

/* ---- calls --------------------------------------------------------------------------------- */

static enum hth_err check_opts(const struct hth_announcer_opts *opts)
{
    if (opts->network == NULL ||
        hth_name_check(opts->network, strnlen(opts->network, HTH_NAME_LEN_MAX + 1)) != HTH_OK)
        return HTH_E_CONFIG;
    if (opts->life_us < HTH_RECORD_LIFE_MIN_US || opts->life_us > HTH_RECORD_LIFE_MAX_US)
        return HTH_E_CONFIG;
    return hth_host_info_check(&opts->info) == HTH_OK ? HTH_OK : HTH_E_CONFIG;
}

static void on_withdraw_end(void *arg)
{
    struct hth_announcer *ann = arg;
    hth_fn *done = ann->done;
    ann->done = NULL;
    if (done != NULL)
        done(ann->done_arg);
}

enum hth_err hth_announcer_new(struct hth_env *env, struct hth_dht *dht,
                               const struct hth_announcer_opts *opts, struct hth_announcer **out)
{
    *out = NULL;
    HTH_TRY(check_opts(opts));
    struct hth_announcer *ann = hth_new(struct hth_announcer);
    ann->env = env;
    ann->dht = dht;
    ann->opts = *opts;
    memcpy(ann->network, opts->network, strlen(opts->network) + 1);
    ann->opts.network = ann->network;
    ann->timer = hth_timer_new(env, on_withdraw_end, ann);
    if (opts->beacon) {
        struct hth_publisher_opts popts = {.life_us = opts->life_us};
        struct hth_topic topic;
        hth_topic_init(&topic, env->crypto, ann->network, HTH_RECORD_BEACON, "", 0);
        enum hth_err err =
            hth_publisher_new(env, dht, &topic, &popts, fill_beacon, ann, &ann->beacon);
        if (err != HTH_OK) {
            hth_announcer_free(ann);
            return err;
        }
    }
    *out = ann;
    return HTH_OK;
}

static void layer_free(struct announce_layer *layer)
{
    struct announce_part *p;
    for (size_t it = 0; (p = hth_map_next(layer->parts, &it, NULL, NULL)) != NULL;) {
        hth_publisher_free(p->publisher);
        hth_free(p);
    }
    hth_map_free(layer->parts);
    hth_free(layer->number);
    hth_free(layer->firsts);
    hth_free(layer);
}

void hth_announcer_free(struct hth_announcer *ann)
{
    if (ann == NULL)
        return;
    for (size_t i = 0; i < ann->layer_count; i++)
        layer_free(ann->layers[i]);
    hth_publisher_free(ann->beacon);
    hth_timer_free(ann->env, ann->timer);
    hth_free(ann->layers);
    hth_free(ann);
}

static enum hth_err check_list(const struct hth_grid *grid, const struct hth_expert_list *experts)
{
    if (experts->count > HTH_ANNOUNCE_EXPERTS_MAX)
        return HTH_E_BUDGET;
    for (size_t i = 0; i < experts->count; i++)
        if (experts->index[i] >= hth_grid_size(grid) ||
            (i > 0 && experts->index[i] <= experts->index[i - 1]))
            return HTH_E_CONFIG;
    return HTH_OK;
}

static enum hth_err layer_for(struct hth_announcer *ann, const struct hth_grid *grid,
                              struct announce_layer **out)
{
    for (size_t i = 0; i < ann->layer_count; i++) {
        struct announce_layer *l = ann->layers[i];
        if (strcmp(l->grid.name, grid->name) != 0)
            continue;
        *out = l;
        return l->count == 0 || hth_grid_eq(&l->grid, grid) ? HTH_OK : HTH_E_CONFIG;
    }
    if (ann->layer_count == HTH_ANNOUNCE_LAYERS_MAX)
        return HTH_E_BUDGET;
    ann->layers = hth_realloc(ann->layers, ann->layer_count + 1, sizeof(*ann->layers));
    *out = hth_new(struct announce_layer);
    (*out)->parts = hth_map_new();
    ann->layers[ann->layer_count++] = *out;
    return HTH_OK;
}

enum hth_err hth_announcer_set_layer(struct hth_announcer *ann, const struct hth_grid *grid,
                                     const struct hth_layer_shape *shape,
                                     const struct hth_expert_list *experts)
{
    struct announce_layer *layer;
    struct announce_part *p;
    HTH_TRY(check_list(grid, experts));
    HTH_TRY(layer_for(ann, grid, &layer));
    hth_free(layer->number);
    hth_free(layer->firsts);
    layer->grid = *grid;
    layer->shape = *shape;
    layer->firsts = NULL;
    layer->first_count = 0;
    layer->cut = false;
    layer->count = experts->count;
    layer->number = hth_new_array(uint32_t, experts->count + 1);
    if (experts->count > 0)
        memcpy(layer->number, experts->index, experts->count * sizeof(uint32_t));
    for (size_t it = 0; (p = hth_map_next(layer->parts, &it, NULL, NULL)) != NULL;)
        p->keep = false;
    enum hth_err err = experts->count > 0 ? make_plan(ann, layer, experts) : HTH_OK;
    for (size_t it = 0; (p = hth_map_next(layer->parts, &it, NULL, NULL)) != NULL;)
        if (!p->keep)
            part_leave(p);
    if (ann->beacon != NULL)
        hth_publisher_update(ann->beacon, 0);
    return err;
}

/* Updates the first record of each layer's root, which carries the host's own figures and
 * addresses. */
static void update_roots(struct hth_announcer *ann, int64_t delay_us)
{
    static const uint8_t key[8] = {0};
    for (size_t i = 0; i < ann->layer_count; i++) {
        struct announce_part *p = hth_map_get(ann->layers[i]->parts, key, sizeof(key));
        if (p != NULL)
            hth_publisher_update(p->publisher, delay_us);
    }
}

void hth_announcer_set_load(struct hth_announcer *ann, uint32_t queue_ms, float rows_per_s)
{
    uint32_t published = ann->queue_ms_published;
    uint32_t apart = queue_ms > published ? queue_ms - published : published - queue_ms;
    ann->opts.info.queue_ms = queue_ms;
    if (rows_per_s >= 0 && rows_per_s < 4e9f)
        ann->opts.info.rows_per_s = rows_per_s;
    if (apart > HTH_ANNOUNCE_LOAD_STEP_MS &&
        (queue_ms / 2 >= published || queue_ms <= published / 2))
        update_roots(ann, HTH_US_PER_S);
}

enum hth_err hth_announcer_set_addrs(struct hth_announcer *ann, const struct hth_addr *addr,
                                     uint32_t count)
{
    struct hth_host_info info = ann->opts.info;
    if (count > HTH_HOST_ADDRS_MAX)
        return HTH_E_CONFIG;
    memset(info.addr, 0, sizeof(info.addr));
    for (uint32_t i = 0; i < count; i++)
        info.addr[i] = addr[i];
    info.addr_count = count;
    if (hth_host_info_check(&info) != HTH_OK)
        return HTH_E_CONFIG;
    ann->opts.info = info;
    update_roots(ann, 0);
    if (ann->beacon != NULL)
        hth_publisher_update(ann->beacon, 0);
    return HTH_OK;
}

static void on_beacon_left(void *arg, enum hth_err err)
{
    (void)err;
    goodbye_done(arg);
}

void hth_announcer_withdraw(struct hth_announcer *ann, hth_fn *done, void *arg)
{
    struct announce_part *p;
    ann->leaving = true;
    ann->done = done;
    ann->done_arg = arg;
    for (size_t i = 0; i < ann->layer_count; i++)
        for (size_t it = 0; (p = hth_map_next(ann->layers[i]->parts, &it, NULL, NULL)) != NULL;)
            part_leave(p);
    if (ann->beacon != NULL) {
        ann->goodbyes++;
        hth_publisher_goodbye(ann->beacon, on_beacon_left, ann);
    }
    hth_timer_set(ann->env, ann->timer, ann->goodbyes > 0 ? HTH_ANNOUNCE_GOODBYE_US : 0);
}

static void add_stats(struct hth_announcer_stats *sum, const struct hth_publisher *publisher)
{
    struct hth_publisher_stats s;
    hth_publisher_stats(publisher, &s);
    sum->records++;
    sum->bytes_max = HTH_MAX(sum->bytes_max, s.bytes);
    sum->puts += s.puts;
    sum->put_errors += s.put_errors;
}

void hth_announcer_stats(const struct hth_announcer *ann, struct hth_announcer_stats *out)
{
    const struct announce_part *p;
    *out = ann->gone;
    for (size_t i = 0; i < ann->layer_count; i++)
        for (size_t it = 0; (p = hth_map_next(ann->layers[i]->parts, &it, NULL, NULL)) != NULL;)
            add_stats(out, p->publisher);
    if (ann->beacon != NULL)
        add_stats(out, ann->beacon);
}
