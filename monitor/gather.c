/* SPDX-License-Identifier: Apache-2.0 */
/* gather.c: a timer that looks what came, asks for more, and decides when it is enough. */
#include "monitor/gather.h"

#include "monitor/status_trainers.h"
#include "averaging/roster.h"
#include "core/bytes.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/name.h"
#include "experts/client.h"
#include "rpc/rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_US (50 * HTH_US_PER_MS)
/* Peers name each other, so that the first answers bring the others. */
#define SETTLE_US (300 * HTH_US_PER_MS)
/* A watch may lose a datagram, so beacons are looked up, too. */
#define LOOKUP_US   (300 * HTH_US_PER_MS)
#define AT_ONCE_MAX 64
#define MINUTE_US   (60 * HTH_US_PER_S)
#define EACH_MAX    3 /* dials of an address in a minute */

/* ---- peers --------------------------------------------------------------------------------- */

static const struct hth_gather_own *own_of(const struct hth_gather *g, const struct hth_peer_id *id)
{
    for (size_t i = 0; i < g->opts.own_count; i++)
        if (hth_peer_id_eq(&g->opts.own[i].id, id))
            return &g->opts.own[i];
    return NULL;
}

/* A record that a peer has of another, or the DHT's. */
static void learn(struct hth_gather *g, const struct hth_about_peer *from, int64_t seen_us)
{
    struct hth_gather_peer *p = hth_map_get(g->by_id, from->id.b, sizeof(from->id.b));
    if (p == NULL && g->peer_count < HTH_GATHER_PEERS_MAX &&
        !hth_peer_id_eq(&from->id, &g->env->self)) {
        p = hth_new(struct hth_gather_peer);
        p->of = g;
        p->id = from->id;
        p->own = own_of(g, &from->id) != NULL;
        g->peer[g->peer_count++] = p;
        hth_map_put(g->by_id, p->id.b, sizeof(p->id.b), p);
        g->changed_us = hth_now_us(g->env);
    }
    if (p == NULL || seen_us <= p->seen_us)
        return;
    p->seen_us = seen_us;
    p->role = from->role;
    if (p->state == HTH_NOT_ASKED)
        p->addr = from->addr;
}

static void learn_beacons(struct hth_gather *g)
{
    struct hth_census_node node;
    for (uint32_t i = 0; hth_census_at(g->opts.census, i, &node); i++) {
        struct hth_about_peer peer = {.id = node.id, .role = (uint8_t)node.role};
        if (strcmp(node.network, g->network) != 0)
            continue;
        if (node.info.addr_count > 0)
            peer.addr = node.info.addr[0];
        learn(g, &peer, node.issued_us);
    }
}

bool hth_gather_beacon(const struct hth_gather *g, const struct hth_peer_id *id,
                       struct hth_census_node *out)
{
    for (uint32_t i = 0; hth_census_at(g->opts.census, i, out); i++)
        if (hth_peer_id_eq(&out->id, id))
            return true;
    return false;
}

static void drop_experts(struct hth_gather_peer *p)
{
    p->of->expert_count -= p->expert_count;
    p->expert_count = 0;
    p->next_expert = 0;
}

/* ---- layers -------------------------------------------------------------------------------- */

/* Finds the number of the layer that is shown under this name. */
static bool find_layer(const struct hth_gather *g, const char *name, uint32_t *number)
{
    for (*number = 0; *number < g->layer_count; ++*number)
        if (strcmp(g->layer[*number].grid.name, name) == 0)
            return true;
    return false;
}

static bool show(struct hth_gather *g, const struct hth_beacon_layer *layer)
{
    uint32_t number;
    bool known = find_layer(g, layer->grid.name, &number);
    if (known && hth_status_layer_eq(&g->layer[number], layer))
        return false;
    if (!known && g->layer_count == HTH_DIR_LAYERS_MAX)
        return false; /* a stranger's: only the first ones are shown */
    if (!known)
        number = (uint32_t)g->layer_count++;
    g->layer[number] = *layer;
    return true;
}

/* Without a run file, shows the layers of the beacons: of each name, the one with most hosts. When
 * they change, experts are counted anew. */
static void show_announced(struct hth_gather *g)
{
    struct hth_census_node node;
    bool changed = false;
    g->claims.count = 0;
    for (uint32_t i = 0; hth_census_at(g->opts.census, i, &node); i++)
        for (size_t l = 0; l < node.layer_count && strcmp(node.network, g->network) == 0; l++)
            hth_status_layers_add(&g->claims, &node.layers[l]);
    for (uint32_t i = 0; i < g->claims.count; i++) {
        const struct hth_beacon_layer *layer = &g->claims.claim[i].layer;
        if (hth_status_layers_best(&g->claims, layer->grid.name) == layer)
            changed = show(g, layer) || changed;
    }
    if (!changed)
        return;
    g->layers_version++;
    g->changed_us = hth_now_us(g->env);
    for (size_t i = 0; i < g->peer_count; i++) {
        g->peer[i]->listed = false;
        drop_experts(g->peer[i]);
    }
}

bool hth_gather_other(const struct hth_gather *g, uint32_t *i, size_t *l,
                      struct hth_census_node *node, const struct hth_beacon_layer **layer,
                      uint32_t *number)
{
    for (; hth_census_at(g->opts.census, *i, node); ++*i, *l = 0)
        while (*l < node->layer_count && strcmp(node->network, g->network) == 0) {
            *layer = &node->layers[(*l)++];
            if (find_layer(g, (*layer)->grid.name, number) &&
                !hth_status_layer_eq(&g->layer[*number], *layer))
                return true;
        }
    return false;
}

/* ---- experts ------------------------------------------------------------------------------- */

/* Keeps an expert that a host has, unless it belongs to another layer of the same name. */
static void keep_expert(struct hth_gather_peer *p, const struct hth_expert_info *info)
{
    struct hth_gather *g = p->of;
    struct hth_uid uid;
    uint32_t number, index;
    if (g->expert_count == HTH_GATHER_EXPERTS_MAX ||
        hth_uid_parse(info->uid, strlen(info->uid), &uid) != HTH_OK ||
        !find_layer(g, uid.name, &number) ||
        hth_grid_find(&g->layer[number].grid, &uid, &index) != HTH_OK)
        return;
    const struct hth_layer_shape *shape = &g->layer[number].shape;
    if (shape->d != info->d || strcmp(shape->kind, info->kind) != 0)
        return;
    if (p->expert_count == p->expert_room) {
        p->expert_room = HTH_MAX(2 * p->expert_room, 16u);
        p->expert = hth_realloc(p->expert, p->expert_room, sizeof(*p->expert));
    }
    p->expert[p->expert_count++] = (struct hth_gather_expert){number, index};
    g->expert_count++;
}

static int by_place(const void *a, const void *b)
{
    const struct hth_gather_expert *x = a, *y = b;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* A host may list an expert twice; it counts once. */
static void sort_experts(struct hth_gather_peer *p)
{
    uint32_t n = 0;
    if (p->expert_count > 0)
        qsort(p->expert, p->expert_count, sizeof(*p->expert), by_place);
    for (uint32_t i = 0; i < p->expert_count; i++)
        if (n == 0 || by_place(&p->expert[n - 1], &p->expert[i]) != 0)
            p->expert[n++] = p->expert[i];
    p->of->expert_count -= p->expert_count - n;
    p->expert_count = n;
}

bool hth_gather_serves(const struct hth_gather_peer *p)
{
    return p->state == HTH_ANSWERED && (p->about == NULL || p->about->reach != HTH_REACH_NO);
}

void hth_gather_count(const struct hth_gather *g, uint32_t layer, uint32_t *served, uint32_t *twice)
{
    uint8_t *copies = hth_new_array(uint8_t, hth_grid_size(&g->layer[layer].grid));
    *served = *twice = 0;
    for (size_t i = 0; i < g->peer_count; i++) {
        const struct hth_gather_peer *p = g->peer[i];
        for (uint32_t e = 0; e < p->expert_count && hth_gather_serves(p); e++) {
            if (p->expert[e].layer != layer || copies[p->expert[e].index] == 2)
                continue;
            uint8_t n = ++copies[p->expert[e].index];
            *served += n == 1;
            *twice += n == 2;
        }
    }
    hth_free(copies);
}

/* ---- dialling ------------------------------------------------------------------------------ */

struct dialled {
    char addr[HTH_ADDR_TEXT_MAX];
    int64_t at_us[EACH_MAX]; /* from `oldest` on in turn; 0: never */
    uint32_t oldest;
};

static bool may_dial(struct hth_gather *g, const struct hth_gather_peer *p)
{
    struct hth_rpc_peer_info info;
    char text[HTH_ADDR_TEXT_MAX];
    int64_t now_us = hth_now_us(g->env);
    if (p->own || (hth_rpc_peer_info(g->rpc, &p->id, &info) == HTH_OK && info.connected))
        return true;
    hth_addr_text(&p->addr, text);
    struct dialled *d = hth_map_get(g->dialled, text, strlen(text));
    if (d == NULL && hth_map_count(g->dialled) == HTH_GATHER_DIALLED_MAX)
        return false;
    if (d == NULL) {
        d = hth_new(struct dialled);
        memcpy(d->addr, text, sizeof(text));
        hth_map_put(g->dialled, text, strlen(text), d);
    }
    int64_t *at_us = &d->at_us[d->oldest];
    if (*at_us != 0 && now_us - *at_us < MINUTE_US)
        return false;
    *at_us = now_us;
    d->oldest = (d->oldest + 1) % EACH_MAX;
    return true;
}

/* Forgets those whose last dial is a minute ago. */
static void forget_dialled(struct hth_gather *g, int64_t now_us)
{
    struct dialled *d;
    for (size_t it = 0; (d = hth_map_next(g->dialled, &it, NULL, NULL)) != NULL;)
        if (now_us - d->at_us[(d->oldest + EACH_MAX - 1) % EACH_MAX] >= MINUTE_US)
            hth_free(hth_map_del(g->dialled, d->addr, strlen(d->addr)));
}

/* ---- asking -------------------------------------------------------------------------------- */

static void answered(struct hth_gather_peer *p, bool lives)
{
    p->of->waits--;
    p->of->changed_us = hth_now_us(p->of->env);
    if (lives)
        p->state = HTH_ANSWERED;
}

static void on_info(void *arg, enum hth_err err, const struct hth_expert_info *infos,
                    uint32_t count, uint32_t total)
{
    struct hth_gather_peer *p = arg;
    p->asked_info = false;
    answered(p, err == HTH_OK);
    if (err != HTH_OK || p->layers_seen != p->of->layers_version) {
        p->listed = err != HTH_OK;
        drop_experts(p);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        keep_expert(p, &infos[i]);
    p->experts = total;
    p->next_expert += count;
    p->listed = count == 0 || p->next_expert >= total;
}

static void on_about(void *arg, const struct hth_rpc_result *r)
{
    struct hth_gather_peer *p = arg;
    struct hth_about *about = hth_new(struct hth_about);
    int64_t wall_us = hth_wall_us(p->of->env);
    p->call = NULL;
    p->state = HTH_SILENT;
    bool closed = r->err >= HTH_E_NOT_ADMITTED && r->err <= HTH_E_PASS_FORGED;
    p->turned_away = closed ? r->err : HTH_OK;
    answered(p, r->err == HTH_OK || r->remote); /* a refusal comes from a living peer, too */
    if (r->err != HTH_OK || hth_about_read(r->payload, r->payload_len, about) != HTH_OK) {
        hth_free(about);
        return;
    }
    p->about = about;
    for (uint32_t i = 0; i < about->peer_count; i++)
        learn(p->of, &about->peer[i], wall_us - (int64_t)about->peer[i].age_s * HTH_US_PER_S);
}

static void on_recall(void *arg, const struct hth_rpc_result *r)
{
    struct hth_gather_peer *p = arg;
    struct hth_recall_told *told = hth_new(struct hth_recall_told);
    p->recall_call = NULL;
    answered(p, r->err == HTH_OK || r->remote);
    if (r->err == HTH_OK && hth_recall_read(r->payload, r->payload_len, told) == HTH_OK)
        p->recall = told;
    else
        hth_free(told);
}

static void ask_recall(struct hth_gather_peer *p, const struct hth_rpc_target *to,
                       int64_t timeout_us)
{
    uint8_t after[4];
    const struct hth_rpc_call_opts call = {
        .method = HTH_METHOD_RECALL,
        .timeout_us = timeout_us,
        .body = {.payload = after, .payload_len = sizeof(after)}};
    hth_store_u32le(after, p->of->recall_after_s);
    p->asked_recall = true;
    if (hth_rpc_call(p->of->rpc, to, &call, on_recall, p, &p->recall_call) == HTH_OK)
        p->of->waits++;
}

static void ask(struct hth_gather_peer *p)
{
    struct hth_gather *g = p->of;
    const struct hth_gather_own *own = own_of(g, &p->id);
    const struct hth_rpc_target to = {p->id, own != NULL ? own->addr : p->addr};
    const struct hth_rpc_call_opts call = {.method = HTH_METHOD_ABOUT,
                                           .timeout_us = g->opts.wait_us + LOOK_US};
    if (to.addr.family == 0)
        return;
    if (p->state == HTH_NOT_ASKED) {
        p->state = HTH_SILENT;
        if (may_dial(g, p) && hth_rpc_call(g->rpc, &to, &call, on_about, p, &p->call) == HTH_OK) {
            p->state = HTH_ASKED;
            g->waits++;
        }
    }
    if (g->opts.recall && p->role == HTH_ROLE_TRAINER && p->state == HTH_ANSWERED &&
        !p->asked_recall)
        ask_recall(p, &to, call.timeout_us);
    if (p->role != HTH_ROLE_HOST || p->listed || p->asked_info || p->state != HTH_ANSWERED)
        return;
    p->layers_seen = g->layers_version;
    p->asked_info = hth_expert_client_info(g->client, &to, p->next_expert, call.timeout_us, on_info,
                                           p) == HTH_OK;
    g->waits += p->asked_info;
}

static void ask_peers(struct hth_gather *g)
{
    for (size_t i = 0; g->rpc != NULL && i < g->peer_count && g->waits < AT_ONCE_MAX; i++)
        ask(g->peer[i]);
}

static void forget_peer(struct hth_gather_peer *p)
{
    if (p->call != NULL)
        hth_rpc_cancel(p->call);
    if (p->recall_call != NULL)
        hth_rpc_cancel(p->recall_call);
    drop_experts(p);
    hth_map_del(p->of->by_id, p->id.b, sizeof(p->id.b));
    hth_free(p->about);
    hth_free(p->recall);
    hth_free(p->expert);
    hth_free(p);
}

static void forget_peers(struct hth_gather *g)
{
    hth_expert_client_free(g->client);
    g->client = NULL;
    for (size_t i = 0; i < g->peer_count; i++)
        forget_peer(g->peer[i]);
    g->peer_count = 0;
    g->waits = 0;
}

static enum hth_err make_client(struct hth_gather *g)
{
    const struct hth_expert_client_opts opts = HTH_EXPERT_CLIENT_OPTS_INIT;
    return hth_expert_client_new(g->env, g->rpc, &opts, &g->client);
}

/* ---- choosing a run ------------------------------------------------------------------------ */

/* Follows this run, in place of another one. */
static enum hth_err follow(struct hth_gather *g, const char *network)
{
    struct hth_rpc_opts rpc_opts = HTH_RPC_OPTS_INIT;
    if (g->rpc != NULL && strcmp(g->network, network) == 0)
        return HTH_OK;
    forget_peers(g);
    hth_rpc_free(g->rpc);
    g->rpc = NULL;
    hth_roster_free(g->roster);
    g->roster = NULL;
    snprintf(g->network, sizeof(g->network), "%s", network);
    rpc_opts.network = g->network;
    rpc_opts.admission = g->opts.admission;
    HTH_TRY(hth_rpc_new(g->env, &rpc_opts, &g->rpc));
    HTH_TRY(make_client(g));
    return hth_status_trainers_new(g->env, g->dht, g->network, &g->roster);
}

const char *hth_gather_name(const struct hth_gather *g, char out[HTH_NAME_LEN_MAX + 1])
{
    return hth_network_name(g->opts.name != NULL ? g->opts.name : g->network, out);
}

struct hth_census_network *hth_gather_runs(const struct hth_gather *g, size_t *count)
{
    struct hth_census_stats seen;
    hth_census_stats(g->opts.census, &seen);
    struct hth_census_network *run = hth_new_array(struct hth_census_network, seen.nodes + 1);
    size_t n = hth_census_networks(g->opts.census, run, seen.nodes), busy = 0;
    for (size_t i = 0; i < n; i++)
        if (run[i].hosts + run[i].trainers > 0)
            run[busy++] = run[i];
    *count = busy > 0 ? busy : n;
    return run;
}

/* Without a name: follows the run while there is exactly one. */
static enum hth_err choose_run(struct hth_gather *g)
{
    size_t count;
    struct hth_census_network *run = hth_gather_runs(g, &count);
    enum hth_err err = count == 1 ? follow(g, run[0].name) : HTH_OK;
    hth_free(run);
    return err;
}

/* ---- the end ------------------------------------------------------------------------------- */

static bool is_answered(struct hth_gather *g, int64_t now)
{
    struct hth_census_stats seen;
    struct hth_dht_stats dht;
    hth_census_stats(g->opts.census, &seen);
    hth_dht_stats(g->dht, &dht);
    if (g->answered_us == 0 && (seen.nodes > 0 || dht.nodes_good > 0))
        g->answered_us = g->changed_us = now;
    return g->answered_us != 0;
}

/* Whether peers were found, all that can be asked have answered, and nothing came for a moment. */
static bool is_settled(const struct hth_gather *g, int64_t now)
{
    struct hth_census_stats seen;
    hth_census_stats(g->opts.census, &seen);
    for (size_t i = 0; i < g->peer_count; i++) {
        const struct hth_gather_peer *p = g->peer[i];
        if (p->state == HTH_NOT_ASKED && (p->own || p->addr.family != 0))
            return false;
        if (p->role == HTH_ROLE_HOST && p->state == HTH_ANSWERED && !p->listed)
            return false;
    }
    return seen.nodes > 0 && g->waits == 0 && now - g->changed_us >= SETTLE_US;
}

/* A refusal to look up twice within a moment is no failure. */
static enum hth_err look(struct hth_gather *g, int64_t now)
{
    if (now - g->lookup_us >= LOOKUP_US) {
        g->lookup_us = now;
        (void)!hth_census_ask(g->opts.census);
    }
    if (g->opts.network == NULL)
        HTH_TRY(choose_run(g));
    if (g->opts.layer_count == 0)
        show_announced(g);
    learn_beacons(g);
    ask_peers(g);
    return HTH_OK;
}

static void on_timer(void *arg)
{
    struct hth_gather *g = arg;
    int64_t now = hth_now_us(g->env);
    if (!is_answered(g, now)) {
        hth_timer_set(g->env, g->timer, LOOK_US);
        return;
    }
    g->err = look(g, now);
    g->complete = is_settled(g, now);
    int64_t left_us = g->answered_us + g->opts.wait_us - now;
    if (g->err == HTH_OK && !g->complete && left_us > 0) {
        hth_timer_set(g->env, g->timer, HTH_MIN(LOOK_US, left_us));
        return;
    }
    for (size_t i = 0; i < g->peer_count; i++) {
        if (g->peer[i]->state == HTH_ASKED)
            g->peer[i]->state = HTH_SILENT;
        sort_experts(g->peer[i]);
    }
    g->opts.done(g->opts.arg);
}

enum hth_err hth_gather_new(struct hth_env *env, struct hth_dht *dht,
                            const struct hth_gather_opts *opts, struct hth_gather **out)
{
    struct hth_gather *g = hth_new(struct hth_gather);
    *out = g;
    g->env = env;
    g->dht = dht;
    g->opts = *opts;
    g->by_id = hth_map_new_held(offsetof(struct hth_gather_peer, id), sizeof(struct hth_peer_id));
    g->dialled = hth_map_new();
    g->timer = hth_timer_new(env, on_timer, g);
    for (size_t l = 0; l < opts->layer_count; l++)
        (void)show(g, &opts->layers[l]);
    enum hth_err err = opts->network != NULL ? follow(g, opts->network) : HTH_OK;
    if (err != HTH_OK) {
        hth_gather_free(g);
        *out = NULL;
        return err;
    }
    hth_timer_set(env, g->timer, 0);
    return HTH_OK;
}

enum hth_err hth_gather_again(struct hth_gather *g, uint32_t recall_after_s)
{
    g->recall_after_s = recall_after_s;
    g->answered_us = g->lookup_us = 0;
    g->complete = false;
    forget_peers(g);
    forget_dialled(g, hth_now_us(g->env));
    if (g->opts.layer_count == 0)
        g->layer_count = 0;
    if (g->rpc != NULL)
        HTH_TRY(make_client(g));
    hth_timer_set(g->env, g->timer, 0);
    return HTH_OK;
}

void hth_gather_free(struct hth_gather *g)
{
    if (g == NULL)
        return;
    forget_peers(g);
    hth_rpc_free(g->rpc);
    hth_map_free(g->by_id);
    forget_dialled(g, INT64_MAX);
    hth_map_free(g->dialled);
    hth_timer_free(g->env, g->timer);
    hth_roster_free(g->roster);
    hth_free(g);
}
