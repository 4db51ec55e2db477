/* SPDX-License-Identifier: Apache-2.0 */
/*
 * census.c: the beacons' board, as a list of nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/name.h"
#include "dht/board.h"
#include "dht/census_int.h"
#include "dht/peers.h"

/* A newcomer receives the records and the goodbye of a peer that has left, one right after the
 * other: people are told of those that are there a moment later. */
#define TELL_US (50 * HTH_US_PER_MS)

struct census_entry {
    struct hth_peer_id id;
    struct hth_beacon beacon;
    int64_t issued_us;
    bool told; /* people know that it is there */
};

struct hth_census {
    struct hth_env *env;
    struct hth_board *board;
    struct hth_record_cache *cache;
    char network[HTH_NAME_LEN_MAX + 1]; /* "": of all */
    struct census_entry **nodes;        /* in order of arrival */
    uint32_t count, capacity;
    struct hth_census_stats stats;
    struct hth_timer *tell_timer; /* NULL: nobody is told */
};

/* Tells people who is in the swarm: "host 4f3a9c0d12 at 10.0.0.7:4700 has joined". */
static void log_node(const struct hth_census *census, const struct census_entry *node,
                     const char *what)
{
    static const char *const roles[] = {"node", "host", "trainer"};
    const struct hth_host_info *info = &node->beacon.info;
    char id[HTH_PEER_SHORT_LEN], addr[HTH_ADDR_TEXT_MAX];
    if (hth_peer_id_eq(&node->id, &census->env->self))
        return;
    HTH_LOG(census->env, HTH_INFO, HTH_SUB_DHT, "%s %s%s%s %s",
            (unsigned)node->beacon.role < HTH_ARRAY_LEN(roles) ? roles[node->beacon.role] : "peer",
            hth_peer_id_short(&node->id, id), info->addr_count > 0 ? " at " : "",
            info->addr_count > 0 ? hth_addr_text(&info->addr[0], addr) : "", what);
}

static void on_tell(void *arg)
{
    struct hth_census *census = arg;
    for (uint32_t i = 0; i < census->count; i++) {
        if (!census->nodes[i]->told)
            log_node(census, census->nodes[i], "has joined");
        census->nodes[i]->told = true;
    }
}

static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_census *census = arg;
    struct hth_beacon beacon;
    struct census_entry *node = *user;
    HTH_TRY(hth_beacon_read(rec->payload, rec->payload_len, &beacon));
    if (beacon.network[0] == '\0' && hth_network_is_private(census->network))
        memcpy(beacon.network, census->network, sizeof(beacon.network));
    /* The board compared the record's tag only; a name that does not match the tag must not be
     * shown. */
    if (hth_network_tag(census->env->crypto, beacon.network) != rec->network) {
        hth_beacon_clear(&beacon);
        return HTH_E_MALFORMED;
    }
    if (beacon.protocol_min > HTH_PROTOCOL_MAX) {
        hth_beacon_clear(&beacon);
        return HTH_E_VERSION;
    }
    bool new = node == NULL;
    if (new) {
        if (census->count == census->capacity) {
            census->capacity = census->capacity > 0 ? 2 * census->capacity : 16;
            census->nodes =
                hth_realloc(census->nodes, census->capacity, sizeof(struct census_entry *));
        }
        node = hth_new(struct census_entry);
        node->id = rec->owner_id;
        census->nodes[census->count++] = node;
        *user = node;
    }
    hth_beacon_clear(&node->beacon);
    node->beacon = beacon;
    node->issued_us = rec->issued_us;
    if (new && census->tell_timer != NULL)
        hth_timer_set(census->env, census->tell_timer, TELL_US);
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    struct hth_census *census = arg;
    struct census_entry *node = user;
    uint32_t i = 0;
    (void)owner;
    (void)part;
    while (census->nodes[i] != node)
        i++;
    census->count--;
    memmove(&census->nodes[i], &census->nodes[i + 1],
            (census->count - i) * sizeof(struct census_entry *));
    if (node->told && census->tell_timer != NULL)
        log_node(census, node, "is gone");
    hth_beacon_clear(&node->beacon);
    hth_free(node);
}

void hth_census_count_expired(struct hth_census_stats *s, const struct hth_crypto *crypto,
                              const struct hth_record *rec)
{
    struct hth_beacon beacon;
    s->expired++;
    if (rec->issued_us <= s->expired_issued_us ||
        hth_beacon_read(rec->payload, rec->payload_len, &beacon) != HTH_OK)
        return;
    if (beacon.info.addr_count > 0) {
        s->expired_issued_us = rec->issued_us;
        s->expired_id = hth_peer_id_of(crypto, &rec->owner);
        s->expired_addr = beacon.info.addr[0];
    }
    hth_beacon_clear(&beacon);
}

/* A network of the same name differs in its run file or its owner: people are told which. */
static void note_namesake(struct hth_census *census, const struct hth_record *rec)
{
    struct hth_beacon beacon;
    char run[HTH_NAME_LEN_MAX + 1], ours[HTH_NAME_LEN_MAX + 1];
    if (census->stats.namesake[0] != '\0' ||
        hth_beacon_read(rec->payload, rec->payload_len, &beacon) != HTH_OK)
        return;
    if (strcmp(hth_network_name(beacon.network, run), hth_network_name(census->network, ours)) == 0)
        memcpy(census->stats.namesake, beacon.network, sizeof(beacon.network));
    hth_beacon_clear(&beacon);
}

static void on_refused(void *arg, enum hth_err err, const struct hth_record *rec)
{
    struct hth_census *census = arg;
    struct hth_census_stats *s = &census->stats;
    /* Our own records, from before a restart, tell nothing about other nodes. */
    const struct hth_peer_id owner = hth_peer_id_of(census->env->crypto, &rec->owner);
    if (hth_peer_id_eq(&owner, &census->env->self))
        return;
    switch (err) {
    case HTH_E_WRONG_RUN:
        s->wrong_network++;
        note_namesake(census, rec);
        break;
    case HTH_E_CLOCK_SKEW:
        s->clock_ahead++;
        break;
    case HTH_E_EXPIRED:
        hth_census_count_expired(s, census->env->crypto, rec);
        break;
    case HTH_E_VERSION:
        s->version++;
        break;
    default:
        s->damaged++;
        break;
    }
    hth_record_explain(err, rec, hth_wall_us(census->env), s->refusal);
}

static const struct hth_board_ops OPS = {on_record, on_gone, on_refused};

enum hth_err hth_census_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                            struct hth_census **out)
{
    struct hth_board_opts opts = HTH_BOARD_OPTS_INIT;
    struct hth_topic topic;
    *out = NULL;
    if (network != NULL &&
        hth_name_check(network, strnlen(network, HTH_NAME_LEN_MAX + 1)) != HTH_OK)
        return HTH_E_CONFIG;
    struct hth_census *census = hth_new(struct hth_census);
    census->env = env;
    census->cache = hth_record_cache_new();
    if (network != NULL)
        memcpy(census->network, network, strlen(network) + 1);
    opts.cache = census->cache;
    opts.any_network = network == NULL;
    /* All networks share the beacons' topic, so without a network its name is not used. */
    hth_topic_init(&topic, env->crypto, network != NULL ? network : "", HTH_RECORD_BEACON, "", 0);
    enum hth_err err = hth_board_new(env, dht, &topic, &opts, &OPS, census, &census->board);
    if (err != HTH_OK) {
        hth_census_free(census);
        return err;
    }
    *out = census;
    return HTH_OK;
}

void hth_census_log(struct hth_census *census)
{
    census->tell_timer = hth_timer_new(census->env, on_tell, census);
}

void hth_census_free(struct hth_census *census)
{
    if (census == NULL)
        return;
    hth_timer_free(census->env, census->tell_timer);
    census->tell_timer = NULL; /* this process leaves, not they */
    hth_board_free(census->board);
    hth_record_cache_free(census->cache);
    hth_free(census->nodes);
    hth_free(census);
}

static bool is_self(const struct hth_census *census, const struct census_entry *node)
{
    return hth_peer_id_eq(&node->id, &census->env->self);
}

bool hth_census_at(const struct hth_census *census, uint32_t i, struct hth_census_node *out)
{
    if (i >= census->count)
        return false;
    const struct census_entry *node = census->nodes[i];
    out->id = node->id;
    out->role = node->beacon.role;
    out->network = node->beacon.network;
    out->info = node->beacon.info;
    out->layers = node->beacon.layers;
    out->layer_count = node->beacon.layer_count;
    out->issued_us = node->issued_us;
    return true;
}

void hth_census_stats(const struct hth_census *census, struct hth_census_stats *out)
{
    *out = census->stats;
    out->nodes = 0;
    for (uint32_t i = 0; i < census->count; i++)
        out->nodes += !is_self(census, census->nodes[i]);
}

static int by_network(const void *a, const void *b)
{
    const struct census_entry *const *x = a, *const *y = b;
    int order = strcmp((*x)->beacon.network, (*y)->beacon.network);
    return order != 0 ? order : memcmp((*x)->id.b, (*y)->id.b, sizeof((*x)->id.b));
}

size_t hth_census_networks(const struct hth_census *census, struct hth_census_network *out,
                           size_t max)
{
    size_t n = 0, count = 0;
    struct census_entry **nodes = hth_new_array(struct census_entry *, census->count + 1);
    for (uint32_t i = 0; i < census->count; i++)
        if (!is_self(census, census->nodes[i]))
            nodes[n++] = census->nodes[i];
    qsort(nodes, n, sizeof(struct census_entry *), by_network);
    for (size_t i = 0; i < n; i++) {
        const struct hth_beacon *b = &nodes[i]->beacon;
        if (i == 0 || strcmp(nodes[i - 1]->beacon.network, b->network) != 0) {
            if (count++ < max) {
                memset(&out[count - 1], 0, sizeof(*out));
                memcpy(out[count - 1].name, b->network, sizeof(out->name));
            }
        }
        if (count > max)
            continue;
        out[count - 1].nodes++;
        out[count - 1].hosts += b->role == HTH_ROLE_HOST;
        out[count - 1].trainers += b->role == HTH_ROLE_TRAINER;
    }
    hth_free(nodes);
    return count;
}

enum hth_err hth_census_ask(struct hth_census *census)
{
    return hth_board_ask(census->board);
}

size_t hth_census_peers(const struct hth_census *census, struct hth_peer_entry *out, size_t max)
{
    size_t n = 0;
    for (uint32_t i = 0; i < census->count && n < max; i++) {
        const struct census_entry *node = census->nodes[i];
        if (is_self(census, node) || node->beacon.info.addr_count == 0)
            continue;
        out[n].addr = node->beacon.info.addr[0];
        out[n].id = node->id;
        out[n++].seen_us = node->issued_us;
    }
    return n;
}
