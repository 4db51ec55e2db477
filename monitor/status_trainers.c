/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/status_trainers.h"

#include "averaging/averager.h"
#include "averaging/roster.h"
#include "cli/cli.h"
#include "cli/json.h"
#include "core/bytes.h"

#include <stdio.h>

enum hth_err hth_status_trainers_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                                     struct hth_roster **out)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;
    o.network = network;
    o.silent = true;
    return hth_roster_new(env, dht, &o, out);
}

/* ---- members of a group -------------------------------------------------------------------- */

/* Finds the next other member of this peer's last group, from *i on; NULL: no more. A member that
 * has averaged in another group since is not found: its record names only its last group. */
static const struct hth_roster_peer *next_mate(const struct hth_roster *roster,
                                               const struct hth_roster_peer *of, uint32_t *i)
{
    const struct hth_roster_peer *p;
    while (of->note.last.group != 0 && (p = hth_roster_at(roster, (*i)++)) != NULL)
        if (p != of && p->note.last.group == of->note.last.group)
            return p;
    return NULL;
}

static void print_mates(const struct hth_roster *roster, const struct hth_roster_peer *p)
{
    const struct hth_roster_peer *mate;
    char id[HTH_PEER_SHORT_LEN];
    uint32_t said = 0;
    for (uint32_t i = 0; said < HTH_AVG_STATUS_MEMBERS && (mate = next_mate(roster, p, &i));)
        printf("%s%s", said++ == 0 ? " with " : " ", hth_peer_id_short(&mate->id, id));
}

static json_t *mates_json(const struct hth_roster *roster, const struct hth_roster_peer *p)
{
    const struct hth_roster_peer *mate;
    json_t *all = json_array();
    char id[HTH_PEER_SHORT_LEN];
    uint32_t said = 0;
    for (uint32_t i = 0; said < HTH_AVG_STATUS_MEMBERS && (mate = next_mate(roster, p, &i)); said++)
        json_array_append_new(all, json_string(hth_peer_id_short(&mate->id, id)));
    return all;
}

/* ---- the table ----------------------------------------------------------------------------- */

static void print_one(const struct hth_roster *roster, const struct hth_roster_peer *p)
{
    const struct hth_roster_note *n = &p->note;
    const struct hth_roster_last *l = &n->last;
    char id[HTH_PEER_SHORT_LEN], cell[HTH_AVG_SHAPE_TEXT_MAX], bytes[16];
    const char *what = n->flags & HTH_ROSTER_HELPER          ? "helper"
                       : n->flags & HTH_ROSTER_BOOTSTRAPPING ? "fetching"
                       : n->flags & HTH_ROSTER_CLIENT        ? "client"
                                                             : "training";
    printf("%-10s %-9s %8llu %11.0f %-9s ", hth_peer_id_short(&p->id, id), what,
           (unsigned long long)n->step, n->samples_per_s,
           n->shape.dims > 0 ? hth_avg_cell_text(&n->shape, &n->cell, cell) : "-");
    if (l->members == 0 && l->reason == HTH_AVG_OK) {
        printf("none yet\n");
        return;
    }
    printf("%08x %u members", l->group, l->members);
    print_mates(roster, p);
    printf(", %u dropped, %.4g %% of the weight, waited %u ms, reduced %u ms, %s, "
           "change %.3g, distance "
           "%.3g %%  %s\n",
           l->drops, 100 * l->weight_fraction, l->wait_ms, l->reduce_ms,
           hth_cli_bytes_text((double)l->bytes, bytes), l->change,
           l->norm > 0 ? 100 * l->change / l->norm : 0,
           hth_avg_reason_name((enum hth_avg_reason)l->reason));
}

static uint32_t count_helpers(const struct hth_roster *roster)
{
    const struct hth_roster_peer *p;
    uint32_t n = 0;
    for (uint32_t i = 0; (p = hth_roster_at(roster, i)) != NULL; i++)
        n += (p->note.flags & HTH_ROSTER_HELPER) != 0;
    return n;
}

void hth_status_trainers_print(const struct hth_roster *roster)
{
    const struct hth_roster_peer *p;
    char shape[HTH_AVG_SHAPE_TEXT_MAX];
    struct hth_roster_stats stats;
    if (roster == NULL || (p = hth_roster_at(roster, 0)) == NULL)
        return;
    hth_roster_stats(roster, &stats);
    uint32_t helpers = count_helpers(roster);
    printf("\ntrainers: %u", stats.seen - helpers);
    if (helpers > 0)
        printf(", helpers: %u", helpers);
    if (stats.level > 0)
        printf(", a sample of them");
    if (p->note.shape.dims > 0)
        printf("; grid %s", hth_avg_shape_text(&p->note.shape, shape));
    printf("\n%-10s %-9s %8s %11s %-9s %s\n", "peer", "does", "step", "samples/s", "cell",
           "last round");
    for (uint32_t i = 0; (p = hth_roster_at(roster, i)) != NULL; i++)
        print_one(roster, p);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static json_t *last_json(const struct hth_roster *roster, const struct hth_roster_peer *p)
{
    const struct hth_roster_last *l = &p->note.last;
    char group[9] = "";
    if (l->group != 0)
        snprintf(group, sizeof(group), "%08x", l->group);
    json_t *o = json_object();
    hth_json_text(o, "group", group);
    hth_json_count(o, "members", l->members);
    hth_json_take(o, "peers", mates_json(roster, p));
    hth_json_count(o, "drops", l->drops);
    hth_json_text(o, "reason", hth_avg_reason_name((enum hth_avg_reason)l->reason));
    hth_json_count(o, "wait_ms", l->wait_ms);
    hth_json_count(o, "reduce_ms", l->reduce_ms);
    hth_json_count(o, "bytes", l->bytes);
    hth_json_real(o, "change", l->change);
    hth_json_real(o, "norm", l->norm);
    hth_json_real(o, "weight_fraction", l->weight_fraction);
    return o;
}

static json_t *peer_json(const struct hth_roster *roster, const struct hth_roster_peer *p)
{
    const struct hth_roster_note *n = &p->note;
    char id[2 * HTH_HASH_LEN + 1], shape[HTH_AVG_SHAPE_TEXT_MAX], cell[HTH_AVG_SHAPE_TEXT_MAX];
    hth_hex(p->id.b, HTH_HASH_LEN, id);
    json_t *o = json_object();
    hth_json_text(o, "id", id);
    hth_json_flag(o, "has_state", (n->flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0);
    hth_json_flag(o, "helper", (n->flags & HTH_ROSTER_HELPER) != 0);
    hth_json_flag(o, "client", (n->flags & HTH_ROSTER_CLIENT) != 0);
    hth_json_count(o, "step", n->step);
    hth_json_count(o, "samples", n->samples);
    hth_json_real(o, "samples_per_s", n->samples_per_s);
    hth_json_text(o, "grid", n->shape.dims > 0 ? hth_avg_shape_text(&n->shape, shape) : "");
    hth_json_text(o, "cell", n->shape.dims > 0 ? hth_avg_cell_text(&n->shape, &n->cell, cell) : "");
    hth_json_take(o, "last", last_json(roster, p));
    return o;
}

json_t *hth_status_trainers_json(const struct hth_roster *roster)
{
    json_t *all = json_array();
    const struct hth_roster_peer *p;
    for (uint32_t i = 0; roster != NULL && (p = hth_roster_at(roster, i)) != NULL; i++)
        json_array_append_new(all, peer_json(roster, p));
    return all;
}
