/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/status_json.h"

#include "admission/revoke.h"
#include "cli/json.h"
#include "core/bytes.h"
#include "dht/members.h"
#include "monitor/status_trainers.h"

#include <stdio.h>
#include <string.h>

static const char *role_name(uint8_t role)
{
    static const char *const names[] = {"node", "host", "trainer"};
    return role < HTH_ARRAY_LEN(names) ? names[role] : "?";
}

/* A peer that answers from here may know that others can't reach it; and that this machine's own
 * answer proves nothing about others. */
static const char *reach_text(const struct hth_gather_peer *p)
{
    enum hth_reach reach = p->about != NULL ? p->about->reach : HTH_REACH_UNKNOWN;
    if (p->state == HTH_SILENT)
        return "silent";
    if (p->state != HTH_ANSWERED)
        return p->addr.family == 0 ? "-" : "?";
    if (reach == HTH_REACH_NO)
        return "no";
    return p->own && reach == HTH_REACH_UNKNOWN ? "here" : "yes";
}

/* Figures of a peer that did not tell any, from its beacon. */
static void take_beacon(const struct hth_gather *g, const struct hth_gather_peer *p,
                        struct hth_status_peer *out)
{
    struct hth_census_node beacon;
    if (!hth_gather_beacon(g, &p->id, &beacon))
        return;
    out->queue_ms = beacon.info.queue_ms;
    out->rows_per_s = (uint32_t)beacon.info.rows_per_s;
    out->compute = (uint8_t)beacon.info.compute;
    snprintf(out->version, sizeof(out->version), "%s", beacon.info.version);
}

static void take_about(const struct hth_about *about, int64_t wall_us, struct hth_status_peer *out)
{
    out->up_us = wall_us - about->started_us;
    if (about->unsaved_since_us != 0)
        out->unsaved_us = HTH_MAX(wall_us - about->unsaved_since_us, INT64_C(1));
    out->rows = about->rows;
    out->trainers = about->trainers;
    out->queue_ms = about->queue_ms;
    out->rows_per_s = about->rows_per_s;
    out->compute = about->compute;
    memcpy(out->version, about->version, sizeof(out->version));
}

void hth_status_peer(const struct hth_gather *g, const struct hth_gather_peer *p,
                     struct hth_status_peer *out)
{
    int64_t wall_us = hth_wall_us(g->env);
    int64_t age_us = p->state == HTH_ANSWERED ? 0 : wall_us - p->seen_us;
    *out = (struct hth_status_peer){.role = role_name(p->role),
                                    .reach = reach_text(p),
                                    .seen_us = HTH_MAX(age_us, INT64_C(0)),
                                    .up_us = -1};
    out->grant = (struct hth_grant)HTH_GRANT_IMPLICIT;
    if (g->opts.members != NULL && !hth_members_find(g->opts.members, &p->id, &out->grant))
        out->grant = (struct hth_grant){.roles = 0};
    if (p->about != NULL)
        take_about(p->about, wall_us, out);
    else
        take_beacon(g, p, out);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

json_t *hth_status_grid_json(const struct hth_grid *grid)
{
    json_t *dims = json_array();
    for (uint32_t i = 0; i < grid->ndim; i++)
        json_array_append_new(dims, json_integer(grid->dim[i]));
    return dims;
}

static json_t *others_json(const struct hth_gather *g)
{
    struct hth_census_node node;
    const struct hth_beacon_layer *layer;
    uint32_t i = 0, number;
    size_t l = 0;
    char id[2 * HTH_HASH_LEN + 1];
    json_t *all = json_array();
    while (hth_gather_other(g, &i, &l, &node, &layer, &number)) {
        json_t *o = json_object();
        hth_hex(node.id.b, HTH_HASH_LEN, id);
        hth_json_text(o, "id", id);
        hth_json_text(o, "layer", layer->grid.name);
        hth_json_take(o, "grid", hth_status_grid_json(&layer->grid));
        hth_json_text(o, "kind", layer->shape.kind);
        hth_json_count(o, "d", layer->shape.d);
        json_array_append_new(all, o);
    }
    return all;
}

/* null: nobody knows. */
static json_t *reach_json(const char *text)
{
    if (strcmp(text, "yes") == 0)
        return json_true();
    return strcmp(text, "no") == 0 || strcmp(text, "silent") == 0 ? json_false() : json_null();
}

json_t *hth_status_refused_json(const struct hth_about *about)
{
    json_t *o = json_object();
    for (uint32_t i = 0; about != NULL && i < about->refusal_count; i++)
        hth_json_count(o, about->refusal[i].reason, about->refusal[i].count);
    return o;
}

json_t *hth_status_revoked_json(const struct hth_revoked_set *set)
{
    uint64_t entry[HTH_REVOKED_MAX];
    char text[24];
    json_t *list = json_array();
    size_t count = set != NULL ? hth_revoked_set_entries(set, entry, HTH_REVOKED_MAX) : 0;
    for (size_t i = 0; i < count; i++) {
        snprintf(text, sizeof(text), "%llu", (unsigned long long)entry[i]);
        json_array_append_new(list, json_string(text));
    }
    return list;
}

static json_t *peer_json(const struct hth_gather *g, const struct hth_gather_peer *p)
{
    char id[2 * HTH_HASH_LEN + 1], addr[HTH_ADDR_TEXT_MAX];
    char roles[48];
    struct hth_status_peer f;
    bool host = p->role == HTH_ROLE_HOST;
    hth_status_peer(g, p, &f);
    hth_hex(p->id.b, HTH_HASH_LEN, id);
    json_t *o = json_object();
    hth_json_text(o, "id", id);
    hth_json_text(o, "role", f.role);
    hth_json_text(o, "address", p->addr.family != 0 ? hth_addr_text(&p->addr, addr) : "");
    hth_json_take(o, "own", json_boolean(p->own));
    hth_json_take(o, "reachable", reach_json(f.reach));
    hth_json_take(o, "silent", json_boolean(p->state == HTH_SILENT));
    hth_json_real(o, "seen_s", (double)f.seen_us / 1e6);
    if (f.up_us >= 0)
        hth_json_real(o, "up_s", (double)f.up_us / 1e6);
    hth_json_count(o, "experts", p->experts);
    hth_json_count(o, "served", f.rows);
    hth_json_count(o, "trainers", f.trainers);
    hth_json_count(o, "queue_ms", f.queue_ms);
    hth_json_real(o, "rows_per_s", f.rows_per_s);
    hth_json_real(o, "unsaved_s", (double)f.unsaved_us / 1e6);
    hth_json_text(o, "compute", host ? hth_compute_name((enum hth_compute)f.compute) : "");
    hth_json_text(o, "version", f.version);
    hth_json_text(o, "name", f.grant.name);
    hth_json_count(o, "class", f.grant.class);
    hth_json_text(o, "may", hth_roles_text(f.grant.roles, roles));
    hth_json_take(o, "refused", hth_status_refused_json(p->about));
    return o;
}

static json_t *layer_json(const struct hth_gather *g, uint32_t layer)
{
    const struct hth_grid *grid = &g->layer[layer].grid;
    uint32_t served, twice;
    hth_gather_count(g, layer, &served, &twice);
    json_t *o = json_object();
    hth_json_text(o, "name", grid->name);
    hth_json_take(o, "grid", hth_status_grid_json(grid));
    hth_json_count(o, "places", hth_grid_size(grid));
    hth_json_count(o, "served", served);
    hth_json_count(o, "twice", twice);
    hth_json_real(o, "coverage", (double)served / hth_grid_size(grid));
    return o;
}

json_t *hth_status_json(const struct hth_gather *g)
{
    json_t *nodes = json_array(), *layers = json_array(), *all = json_object();
    for (size_t i = 0; i < g->peer_count; i++)
        json_array_append_new(nodes, peer_json(g, g->peer[i]));
    for (uint32_t l = 0; l < g->layer_count; l++)
        json_array_append_new(layers, layer_json(g, l));
    char name[HTH_NAME_LEN_MAX + 1];
    hth_json_text(all, "run", hth_gather_name(g, name));
    hth_json_take(all, "nodes", nodes);
    hth_json_take(all, "layers", layers);
    hth_json_take(all, "others", others_json(g));
    hth_json_take(all, "trainers", hth_status_trainers_json(g->roster));
    return all;
}
