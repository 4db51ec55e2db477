/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dht.c: the shared table as its users see it. There is one table, not N nodes that route: what a
 * user can observe of a Kademlia network (how long things take, what is missing, what is stale,
 * what lingers) is drawn from the numbers of struct hth_dht_params.
 *
 * A value stays as long as its publisher lives and holds the put, and then until the last
 * announcement is life_us old; so a withdrawn value lingers, as in the real network.
 */
#include "sim/sim_int.h"

#include "core/limits.h"

#include <math.h>
#include <string.h>

#define ANY_SIDE       UINT32_MAX
#define SWEEP_US       (60 * HTH_US_PER_S)
#define DATAGRAM_BYTES 1200u

struct sim_value {
    struct sim_list in_key;
    uint32_t refs;
    uint32_t len;
    uint32_t side; /* only this side of a partition sees the value */
    bool stored;
    int64_t stored_us;
    int64_t expires_us;
    uint8_t data[];
};

struct sim_key {
    struct hth_dht_key key;
    struct sim_list values;
    struct sim_list watches;
};

struct hth_dht_put {
    struct sim_event event;
    struct sim_list in_node;
    struct hth_dht_key key;
    struct sim_value *value;
    hth_dht_done_fn *done;
    void *arg;
    enum hth_err err; /* result for done */
};

struct hth_dht_get {
    struct sim_event event;
    struct sim_list in_node;
    struct hth_dht_key key;
    hth_dht_value_fn *value;
    hth_dht_done_fn *done;
    void *arg;
    enum hth_err err;
    struct sim_value **found;
    size_t found_count, found_next;
    int64_t done_us;
    bool asked;    /* the table was read */
    bool busy;     /* inside a callback */
    bool canceled; /* inside that callback */
};

struct hth_dht_watch {
    struct sim_event event;
    struct sim_list in_node;
    struct sim_list in_key;
    struct sim_list pushes;
    struct hth_dht_key key;
    hth_dht_value_fn *value;
    void *arg;
    bool primed; /* the first answer arrived */
    bool busy, canceled;
};

struct sim_push {
    struct sim_event event;
    struct sim_list in_watch;
    struct hth_dht_watch *watch;
    struct sim_value *value;
};

/* ---- values and keys ----------------------------------------------------------------------- */

static void value_unref(struct sim_value *v)
{
    if (--v->refs > 0)
        return;
    HTH_ASSERT(!v->stored);
    hth_free(v);
}

static void value_remove(struct hth_world *w, struct sim_value *v)
{
    sim_list_remove(&v->in_key);
    v->stored = false;
    w->stats.dht_values--;
    value_unref(v);
}

static struct sim_key *key_find(struct hth_world *w, const struct hth_dht_key *key)
{
    return hth_map_get(w->table, key->b, sizeof(key->b));
}

static struct sim_key *key_make(struct hth_world *w, const struct hth_dht_key *key)
{
    struct sim_key *k = key_find(w, key);
    if (k != NULL)
        return k;
    k = hth_new(struct sim_key);
    k->key = *key;
    sim_list_init(&k->values);
    sim_list_init(&k->watches);
    hth_map_put(w->table, key->b, sizeof(key->b), k);
    if (w->sweep.index == 0)
        hth_sim_schedule(w, &w->sweep, w->now_us + SWEEP_US);
    return k;
}

static bool visible(const struct hth_world *w, const struct sim_value *v,
                    const struct hth_node *node)
{
    return v->stored && v->expires_us > w->now_us &&
           (!w->sided || v->side == ANY_SIDE || v->side == node->side);
}

void hth_sim_dht_sweep(struct hth_world *w)
{
    struct sim_key *k;
    for (size_t it = 0; (k = hth_map_next(w->table, &it, NULL, NULL)) != NULL;) {
        struct sim_list *next;
        for (struct sim_list *l = k->values.next; l != &k->values; l = next) {
            next = l->next;
            struct sim_value *v = HTH_CONTAINER(l, struct sim_value, in_key);
            if (v->expires_us <= w->now_us)
                value_remove(w, v);
        }
        if (sim_list_empty(&k->values) && sim_list_empty(&k->watches)) {
            hth_map_del(w->table, k->key.b, sizeof(k->key.b));
            hth_free(k);
        }
    }
    if (hth_map_count(w->table) > 0)
        hth_sim_schedule(w, &w->sweep, w->now_us + SWEEP_US);
}

void hth_sim_dht_free(struct hth_world *w)
{
    struct sim_key *k;
    for (size_t it = 0; (k = hth_map_next(w->table, &it, NULL, NULL)) != NULL;) {
        while (!sim_list_empty(&k->values))
            value_remove(w, HTH_CONTAINER(k->values.next, struct sim_value, in_key));
        hth_free(k);
    }
    hth_map_free(w->table);
}

/* ---- how long ------------------------------------------------------------------------------ */

static bool chance(struct hth_world *w, double p)
{
    return p > 0.0 && hth_rng_chance(&w->dht_rng, p);
}

/* The time of one round trip to some node. */
static int64_t round_trip(struct hth_world *w, const struct hth_node *node)
{
    size_t i = (size_t)hth_rng_below(&w->dht_rng, w->node_count);
    if (i == node->index)
        i = (i + 1) % w->node_count;
    int64_t there_us = hth_sim_delay(w, node, w->nodes[i]);
    return there_us + hth_sim_delay(w, w->nodes[i], node);
}

/* fixed + per_log * log2(N) round trips. */
static int64_t rounds(struct hth_world *w, const struct hth_node *node, double fixed,
                      double per_log)
{
    double left = fixed + per_log * log2((double)HTH_MAX(w->up_count, (size_t)1));
    int64_t sum = 0;
    for (; left >= 1.0; left -= 1.0)
        sum += round_trip(w, node);
    return sum + (int64_t)(left * (double)round_trip(w, node));
}

/* Count nodes up to `enough`; a larger number changes nothing. */
static size_t others_in_reach(const struct hth_world *w, const struct hth_node *node, size_t enough)
{
    if (!w->sided)
        return w->up_count - (node->live ? 1 : 0);
    size_t count = 0;
    for (size_t i = 0; i < w->node_count && count < enough; i++)
        count += w->nodes[i] != node && w->nodes[i]->live && w->nodes[i]->side == node->side;
    return count;
}

/* True when the node is cut off from the rest of a swarm. A lone first node serves itself. */
static bool isolated(const struct hth_world *w, const struct hth_node *node)
{
    return w->sided && w->up_count > 1 && others_in_reach(w, node, 1) == 0;
}

/* ---- put ----------------------------------------------------------------------------------- */

struct hth_dht_put *hth_sim_put_of(struct sim_event *event)
{
    return HTH_CONTAINER(event, struct hth_dht_put, event);
}

static enum hth_err dht_put(void *self, const struct hth_dht_key *key, const void *data, size_t len,
                            hth_dht_done_fn *done, void *arg, struct hth_dht_put **out)
{
    struct hth_node *node = self;
    struct hth_world *w = node->world;
    *out = NULL;
    if (len > HTH_DHT_VALUE_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    if (!node->live)
        return HTH_E_CANCELED;
    struct hth_dht_put *put = hth_new(struct hth_dht_put);
    struct sim_value *v = hth_calloc(1, sizeof(*v) + len);
    v->refs = 1;
    v->len = (uint32_t)len;
    v->expires_us = INT64_MAX;
    sim_list_init(&v->in_key);
    if (len > 0)
        memcpy(v->data, data, len);
    sim_event_init(&put->event, SIM_PUT, node);
    put->key = *key;
    put->value = v;
    put->done = done;
    put->arg = arg;
    sim_list_append(&node->puts, &put->in_node);
    node->dht_stats.puts++;
    int64_t delay_us = rounds(w, node, 1.0 + (double)(len / (DATAGRAM_BYTES + 1)), 0.5);
    if (chance(w, w->opts.dht.lost_put)) {
        put->err = HTH_E_TIMEOUT;
        delay_us = w->opts.dht.get_timeout_us;
    }
    hth_sim_schedule(w, &put->event, w->now_us + delay_us);
    *out = put;
    return HTH_OK;
}

static void push_later(struct hth_dht_watch *watch, struct sim_value *v, int64_t delay_us)
{
    struct hth_world *w = watch->event.node->world;
    struct sim_push *push = hth_new(struct sim_push);
    sim_event_init(&push->event, SIM_PUSH, watch->event.node);
    push->watch = watch;
    push->value = v;
    v->refs++;
    sim_list_append(&watch->pushes, &push->in_watch);
    hth_sim_schedule(w, &push->event, w->now_us + delay_us);
}

/* Draw a time within one refresh interval: the phase of a node's refreshes is not modelled. */
static int64_t refresh_us(struct hth_world *w)
{
    return (int64_t)(hth_rng_unit(&w->dht_rng) * (double)w->opts.dht.watch_refresh_us);
}

static void store(struct hth_dht_put *put)
{
    struct hth_node *node = put->event.node;
    struct hth_world *w = node->world;
    struct sim_value *v = put->value;
    struct sim_key *k = key_make(w, &put->key);
    v->stored = true;
    v->stored_us = w->now_us;
    v->side = w->sided ? node->side : ANY_SIDE;
    v->refs++;
    sim_list_append(&k->values, &v->in_key);
    w->stats.dht_values++;
    for (struct sim_list *l = k->watches.next; l != &k->watches; l = l->next) {
        struct hth_dht_watch *watch = HTH_CONTAINER(l, struct hth_dht_watch, in_key);
        if (!watch->primed)
            continue; /* the watch's first answer will contain this value */
        if (chance(w, w->opts.dht.partial))
            push_later(watch, v, refresh_us(w));
        else
            push_later(watch, v, hth_sim_delay(w, node, watch->event.node) / 2);
    }
}

void hth_sim_dht_put_event(struct hth_dht_put *put)
{
    struct hth_node *node = put->event.node;
    struct hth_world *w = node->world;
    enum hth_err err = put->err;
    bool first = put->done != NULL;
    if (err == HTH_OK && isolated(w, node))
        err = HTH_E_UNREACHABLE;
    hth_sim_trace(w, node, SIM_PUT, (uint64_t)err);
    put->err = HTH_OK;
    if (err == HTH_OK)
        store(put);
    else /* the next round announces it again after a failure */
        hth_sim_schedule(w, &put->event, w->now_us + w->opts.dht.announce_us);
    hth_dht_done_fn *done = put->done;
    put->done = NULL;
    if (first)
        done(put->arg, err);
}

/* Mark a value that has no publisher; it stays until life_us after its last announcement. */
static void retire(struct hth_dht_put *put)
{
    struct hth_world *w = put->event.node->world;
    struct sim_value *v = put->value;
    hth_sim_unschedule(w, &put->event);
    if (v == NULL)
        return;
    put->value = NULL;
    if (v->stored) {
        int64_t age_us = w->now_us - v->stored_us;
        int64_t announced_us =
            v->stored_us + age_us / w->opts.dht.announce_us * w->opts.dht.announce_us;
        v->expires_us = announced_us + w->opts.dht.life_us;
    }
    value_unref(v);
}

static void dht_withdraw(void *self, struct hth_dht_put *put)
{
    (void)self;
    retire(put);
    sim_list_remove(&put->in_node);
    hth_free(put);
}

/* ---- answers ------------------------------------------------------------------------------- */

/* Return the values of an answer in a seeded order, with a reference to each: those that had been
 * stored by then. */
static struct sim_value **lookup(struct hth_node *node, const struct hth_dht_key *key,
                                 int64_t until_us, size_t *count)
{
    struct hth_world *w = node->world;
    struct sim_key *k = key_find(w, key);
    size_t room = 0;
    *count = 0;
    if (k == NULL || isolated(w, node))
        return NULL;
    for (struct sim_list *l = k->values.next; l != &k->values; l = l->next)
        room += 2;
    if (room == 0)
        return NULL;
    struct sim_value **found = hth_new_array(struct sim_value *, room);
    for (struct sim_list *l = k->values.next; l != &k->values; l = l->next) {
        struct sim_value *v = HTH_CONTAINER(l, struct sim_value, in_key);
        if (!visible(w, v, node) || v->stored_us > until_us)
            continue;
        int copies = chance(w, w->opts.dht.repeat) ? 2 : 1;
        for (; copies > 0; copies--) {
            v->refs++;
            found[(*count)++] = v;
        }
    }
    hth_rng_shuffle(&w->dht_rng, found, *count, sizeof(struct sim_value *));
    return found;
}

static void found_free(struct sim_value **found, size_t count)
{
    for (size_t i = 0; i < count; i++)
        value_unref(found[i]);
    hth_free(found);
}

/* ---- get ----------------------------------------------------------------------------------- */

struct hth_dht_get *hth_sim_get_of(struct sim_event *event)
{
    return HTH_CONTAINER(event, struct hth_dht_get, event);
}

static enum hth_err dht_get(void *self, const struct hth_dht_key *key, hth_dht_value_fn *value,
                            hth_dht_done_fn *done, void *arg, struct hth_dht_get **out)
{
    struct hth_node *node = self;
    struct hth_world *w = node->world;
    *out = NULL;
    if (!node->live)
        return HTH_E_CANCELED;
    struct hth_dht_get *get = hth_new(struct hth_dht_get);
    sim_event_init(&get->event, SIM_GET, node);
    get->key = *key;
    get->value = value;
    get->done = done;
    get->arg = arg;
    sim_list_append(&node->gets, &get->in_node);
    node->dht_stats.gets++;
    int64_t first_us = rounds(w, node, 0.5, 0.25);
    int64_t rest_us = rounds(w, node, 1.1, 0.25);
    get->done_us = w->now_us + first_us + rest_us;
    if (isolated(w, node))
        get->err = HTH_E_UNREACHABLE;
    else if (chance(w, w->opts.dht.lost_get))
        get->err = HTH_E_TIMEOUT;
    if (get->err != HTH_OK)
        first_us = w->opts.dht.get_timeout_us;
    hth_sim_schedule(w, &get->event, w->now_us + first_us);
    *out = get;
    return HTH_OK;
}

static void get_free(struct hth_dht_get *get)
{
    struct hth_world *w = get->event.node->world;
    hth_sim_unschedule(w, &get->event);
    sim_list_remove(&get->in_node);
    for (size_t i = get->found_next; i < get->found_count; i++)
        value_unref(get->found[i]);
    hth_free(get->found);
    hth_free(get);
}

/* Gives n values; false when the get was canceled or wants no more. */
static bool give_values(struct hth_dht_get *get, size_t n)
{
    struct hth_node *node = get->event.node;
    struct hth_world *w = node->world;
    bool more = true;
    get->busy = true;
    for (; n > 0 && more && !get->canceled; n--) {
        struct sim_value *v = get->found[get->found_next++];
        if (!chance(w, w->opts.dht.partial)) {
            node->dht_stats.values_seen++;
            more = get->value == NULL || get->value(get->arg, v->data, v->len);
        }
        value_unref(v);
    }
    get->busy = false;
    return more && !get->canceled;
}

void hth_sim_dht_get_event(struct hth_dht_get *get)
{
    struct hth_node *node = get->event.node;
    struct hth_world *w = node->world;
    hth_sim_trace(w, node, SIM_GET, (uint64_t)get->err);
    bool last = get->err != HTH_OK || w->now_us >= get->done_us;
    bool more = true;
    if (get->err == HTH_OK) {
        if (!get->asked) {
            int64_t lag_us = chance(w, w->opts.dht.stale) ? w->opts.dht.stale_us : 0;
            get->found = lookup(node, &get->key, w->now_us - lag_us, &get->found_count);
        }
        get->asked = true;
        size_t left = get->found_count - get->found_next;
        if (!last && left > 0)
            left = 1 + (size_t)hth_rng_below(&w->dht_rng, left);
        more = give_values(get, left);
    }
    if (get->canceled) {
        get_free(get);
        return;
    }
    if (more && !last) {
        bool all = get->found_next == get->found_count;
        double part = all ? 1.0 : hth_rng_unit(&w->dht_rng);
        double rest_us = part * (double)(get->done_us - w->now_us);
        hth_sim_schedule(w, &get->event, w->now_us + (int64_t)rest_us);
        return;
    }
    hth_dht_done_fn *done = get->done;
    void *arg = get->arg;
    enum hth_err err = get->err;
    get_free(get);
    if (done != NULL)
        done(arg, err);
}

static void dht_get_cancel(void *self, struct hth_dht_get *get)
{
    (void)self;
    if (get->busy)
        get->canceled = true;
    else
        get_free(get);
}

/* ---- watch --------------------------------------------------------------------------------- */

struct hth_dht_watch *hth_sim_watch_of(struct sim_event *event)
{
    return HTH_CONTAINER(event, struct hth_dht_watch, event);
}

static enum hth_err dht_watch(void *self, const struct hth_dht_key *key, hth_dht_value_fn *value,
                              void *arg, struct hth_dht_watch **out)
{
    struct hth_node *node = self;
    struct hth_world *w = node->world;
    *out = NULL;
    if (!node->live)
        return HTH_E_CANCELED;
    struct hth_dht_watch *watch = hth_new(struct hth_dht_watch);
    sim_event_init(&watch->event, SIM_WATCH, node);
    sim_list_init(&watch->pushes);
    watch->key = *key;
    watch->value = value;
    watch->arg = arg;
    sim_list_append(&node->watches, &watch->in_node);
    sim_list_append(&key_make(w, key)->watches, &watch->in_key);
    node->dht_stats.watches++;
    hth_sim_schedule(w, &watch->event, w->now_us + rounds(w, node, 0.5, 0.25));
    *out = watch;
    return HTH_OK;
}

static void push_free(struct sim_push *push)
{
    struct hth_world *w = push->event.node->world;
    hth_sim_unschedule(w, &push->event);
    sim_list_remove(&push->in_watch);
    value_unref(push->value);
    hth_free(push);
}

/* Cancel all pushes of this watch. */
static void mute(struct hth_dht_watch *watch)
{
    hth_sim_unschedule(watch->event.node->world, &watch->event);
    sim_list_remove(&watch->in_key);
    while (!sim_list_empty(&watch->pushes))
        push_free(HTH_CONTAINER(watch->pushes.next, struct sim_push, in_watch));
}

static void watch_free(struct hth_dht_watch *watch)
{
    mute(watch);
    sim_list_remove(&watch->in_node);
    hth_free(watch);
}

static void dht_unwatch(void *self, struct hth_dht_watch *watch)
{
    (void)self;
    if (watch->busy) {
        watch->canceled = true;
        mute(watch);
    } else {
        watch_free(watch);
    }
}

/* Give a value to the watch's callback. Returns false when the callback freed the watch. */
static bool tell(struct hth_dht_watch *watch, const struct sim_value *v)
{
    watch->busy = true;
    watch->event.node->dht_stats.values_seen++;
    watch->value(watch->arg, v->data, v->len);
    watch->busy = false;
    if (!watch->canceled)
        return true;
    watch_free(watch);
    return false;
}

/* Deliver the first answer. */
void hth_sim_dht_watch_event(struct hth_dht_watch *watch)
{
    struct hth_node *node = watch->event.node;
    struct hth_world *w = node->world;
    hth_sim_trace(w, node, SIM_WATCH, 0);
    if (isolated(w, node)) {
        hth_sim_schedule(w, &watch->event, w->now_us + w->opts.dht.watch_refresh_us);
        return;
    }
    size_t count;
    struct sim_value **found = lookup(node, &watch->key, w->now_us, &count);
    watch->primed = true;
    for (size_t i = 0; i < count; i++) {
        if (chance(w, w->opts.dht.partial))
            push_later(watch, found[i], refresh_us(w));
        else if (!tell(watch, found[i]))
            break;
    }
    found_free(found, count);
}

void hth_sim_dht_push_ahead(const struct sim_event *event)
{
    const struct sim_push *push = HTH_CONTAINER(event, const struct sim_push, event);
    __builtin_prefetch(push->watch);
    __builtin_prefetch(&push->watch->value);
    for (size_t i = 0; i < 5; i++)
        __builtin_prefetch((const char *)push->value + 64 * i);
}

void hth_sim_dht_push_next(const struct hth_world *w, const struct sim_event *event, uint32_t step)
{
    const struct sim_push *push = HTH_CONTAINER(event, const struct sim_push, event);
    const char *arg = push->watch->arg;
    for (size_t i = 0; step == 0 && i < 4; i++)
        __builtin_prefetch(arg + 64 * i);
    if (step > 0 && push->watch->value == w->value_ahead_of)
        w->value_ahead(arg, push->value->data, push->value->len, step - 1);
}

void hth_sim_dht_push_event(struct sim_event *event)
{
    struct sim_push *push = HTH_CONTAINER(event, struct sim_push, event);
    struct hth_dht_watch *watch = push->watch;
    struct hth_node *node = event->node;
    struct hth_world *w = node->world;
    struct sim_value *v = push->value;
    hth_sim_trace(w, node, SIM_PUSH, v->len);
    if (v->stored && v->expires_us > w->now_us && !visible(w, v, node)) {
        hth_sim_schedule(w, event, w->now_us + w->opts.dht.watch_refresh_us);
        return; /* the other side of a partition has it: ask again at the next refresh */
    }
    v->refs++;
    push_free(push);
    if (visible(w, v, node))
        (void)tell(watch, v);
    value_unref(v);
}

/* ---- the rest ------------------------------------------------------------------------------ */

static void dht_stats(void *self, struct hth_dht_stats *out)
{
    struct hth_node *node = self;
    *out = node->dht_stats;
    out->nodes_good = (uint32_t)others_in_reach(node->world, node, SIZE_MAX);
}

const struct hth_dht_ops hth_sim_dht_ops = {
    .put = dht_put,
    .withdraw = dht_withdraw,
    .get = dht_get,
    .get_cancel = dht_get_cancel,
    .watch = dht_watch,
    .unwatch = dht_unwatch,
    .stats = dht_stats,
};

void hth_sim_dht_disconnect(struct hth_node *node)
{
    struct hth_world *w = node->world;
    for (struct sim_list *l = node->puts.next; l != &node->puts; l = l->next)
        retire(HTH_CONTAINER(l, struct hth_dht_put, in_node));
    for (struct sim_list *l = node->gets.next; l != &node->gets; l = l->next)
        hth_sim_unschedule(w, &HTH_CONTAINER(l, struct hth_dht_get, in_node)->event);
    for (struct sim_list *l = node->watches.next; l != &node->watches; l = l->next)
        mute(HTH_CONTAINER(l, struct hth_dht_watch, in_node));
    node->dht_stats = (struct hth_dht_stats){.puts = 0};
}

static uint64_t list_count(const struct sim_list *head)
{
    uint64_t count = 0;
    for (const struct sim_list *l = head->next; l != head; l = l->next)
        count++;
    return count;
}

void hth_sim_dht_open(const struct hth_node *node, struct hth_open_counts *out)
{
    out->puts = list_count(&node->puts);
    out->gets = list_count(&node->gets);
    out->watches = list_count(&node->watches);
}

void hth_sim_dht_sweep_handles(struct hth_node *node)
{
    while (!sim_list_empty(&node->puts))
        dht_withdraw(node, HTH_CONTAINER(node->puts.next, struct hth_dht_put, in_node));
    while (!sim_list_empty(&node->gets))
        get_free(HTH_CONTAINER(node->gets.next, struct hth_dht_get, in_node));
    while (!sim_list_empty(&node->watches))
        watch_free(HTH_CONTAINER(node->watches.next, struct hth_dht_watch, in_node));
}
