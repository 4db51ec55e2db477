/* SPDX-License-Identifier: Apache-2.0 */
/* link.c: the delay between two nodes, and whether bytes arrive at all. */
#include "sim/sim_int.h"

#include <string.h>

/* The link from a node to itself. */
static const struct hth_link loopback = {.latency_us = 20};

static uint64_t ordered(const struct hth_node *from, const struct hth_node *to)
{
    return (uint64_t)from->index << 32 | to->index;
}

static uint64_t unordered(uint32_t a, uint32_t b)
{
    return (uint64_t)HTH_MIN(a, b) << 32 | HTH_MAX(a, b);
}

const struct hth_link *hth_sim_link_between(struct hth_world *w, const struct hth_node *a,
                                            const struct hth_node *b)
{
    if (a == b)
        return &loopback;
    const struct hth_link *link = NULL;
    if (hth_map_count(w->pair_links) > 0)
        link = hth_map_get_u64(w->pair_links, unordered(a->index, b->index));
    if (link == NULL && hth_map_count(w->zone_links) > 0)
        link = hth_map_get_u64(w->zone_links, unordered(a->zone, b->zone));
    return link != NULL ? link : &w->opts.link;
}

static int64_t draw_jitter(struct hth_rng *rng, const struct hth_link *link)
{
    double mean = (double)link->jitter_us;
    switch (link->jitter) {
    case HTH_JITTER_UNIFORM:
        return (int64_t)(2.0 * mean * hth_rng_unit(rng));
    case HTH_JITTER_EXPONENTIAL:
        return (int64_t)hth_rng_exponential(rng, mean);
    case HTH_JITTER_NORMAL: {
        double x = mean * hth_rng_normal(rng);
        return x > 0.0 ? (int64_t)x : 0;
    }
    default:
        return 0;
    }
}

int64_t hth_link_delay_us(const struct hth_link *link, struct hth_rng *rng)
{
    return link->latency_us + (link->jitter_us > 0 ? draw_jitter(rng, link) : 0);
}

int64_t hth_sim_delay(struct hth_world *w, const struct hth_node *a, const struct hth_node *b)
{
    const struct hth_link *link = hth_sim_link_between(w, a, b);
    int64_t us = hth_link_delay_us(link, &w->link_rng);
    if (hth_map_count(w->clogs) == 0)
        return us;
    const int64_t *until_us = hth_map_get_u64(w->clogs, ordered(a, b));
    return until_us != NULL ? HTH_MAX(us, *until_us - w->now_us) : us;
}

bool hth_sim_reachable(const struct hth_world *w, const struct hth_node *from,
                       const struct hth_node *to)
{
    if (w->sided && from->side != to->side)
        return false;
    if (hth_map_count(w->blocked) == 0)
        return true;
    return hth_map_get_u64(w->blocked, ordered(from, to)) == NULL;
}

void hth_world_set_link(struct hth_world *w, const struct hth_link *link)
{
    w->opts.link = *link;
}

static void set_link(struct hth_map *map, uint64_t key, const struct hth_link *link)
{
    struct hth_link *copy = hth_new(struct hth_link);
    *copy = *link;
    hth_free(hth_map_put_u64(map, key, copy));
}

void hth_world_link(struct hth_world *w, struct hth_node *a, struct hth_node *b,
                    const struct hth_link *link)
{
    set_link(w->pair_links, unordered(a->index, b->index), link);
}

void hth_world_zone_link(struct hth_world *w, uint32_t zone_a, uint32_t zone_b,
                         const struct hth_link *link)
{
    set_link(w->zone_links, unordered(zone_a, zone_b), link);
}

void hth_node_set_side(struct hth_node *node, uint32_t side)
{
    struct hth_world *w = node->world;
    node->side = side;
    w->sided = false;
    for (size_t i = 0; i < w->node_count; i++)
        w->sided = w->sided || w->nodes[i]->side != 0;
}

void hth_world_block(struct hth_world *w, struct hth_node *from, struct hth_node *to, bool blocked)
{
    uint64_t key = ordered(from, to);
    if (blocked)
        hth_map_put_u64(w->blocked, key, w);
    else
        hth_map_del_u64(w->blocked, key);
}

void hth_world_clog(struct hth_world *w, struct hth_node *from, struct hth_node *to,
                    int64_t until_us)
{
    int64_t *copy = hth_new(int64_t);
    *copy = until_us;
    hth_free(hth_map_put_u64(w->clogs, ordered(from, to), copy));
}

static void free_values(struct hth_map *map)
{
    void *value;
    for (size_t it = 0; (value = hth_map_next(map, &it, NULL, NULL)) != NULL;)
        hth_free(value);
    hth_map_free(map);
}

void hth_world_heal(struct hth_world *w)
{
    for (size_t i = 0; i < w->node_count; i++)
        w->nodes[i]->side = 0;
    w->sided = false;
    hth_map_free(w->blocked);
    w->blocked = hth_map_new();
    free_values(w->clogs);
    w->clogs = hth_map_new();
}

/* The address is 10.x.y.z of the node's number + 1, so that 10.0.0.0 stays free. */
struct hth_addr hth_node_addr(const struct hth_node *node, uint16_t port)
{
    uint32_t number = node->index + 1;
    struct hth_addr addr = {.family = 4, .port = port};
    addr.ip[0] = 10;
    addr.ip[1] = (uint8_t)(number >> 16);
    addr.ip[2] = (uint8_t)(number >> 8);
    addr.ip[3] = (uint8_t)number;
    return addr;
}

struct hth_node *hth_sim_node_by_addr(struct hth_world *w, const struct hth_addr *addr)
{
    if (addr->family != 4 || addr->ip[0] != 10)
        return NULL;
    uint32_t number = (uint32_t)addr->ip[1] << 16 | (uint32_t)addr->ip[2] << 8 | addr->ip[3];
    return number >= 1 && number <= w->node_count ? w->nodes[number - 1] : NULL;
}

void hth_sim_links_free(struct hth_world *w)
{
    free_values(w->pair_links);
    free_values(w->zone_links);
    free_values(w->clogs);
    hth_map_free(w->blocked);
}
