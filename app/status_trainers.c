/* SPDX-License-Identifier: Apache-2.0 */
#include "app/status_trainers.h"

#include "app/cli.h"
#include "app/together.h"
#include "averaging/reason.h"
#include "averaging/roster.h"

#include <stdio.h>

enum hth_err hth_status_trainers_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                                     struct hth_roster **out)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;
    o.network = network;
    o.watch_only = true;
    return hth_roster_new(env, dht, &o, out);
}

static void print_one(const struct hth_roster_peer *p)
{
    const struct hth_roster_note *n = &p->note;
    const struct hth_roster_last *l = &n->last;
    char id[HTH_PEER_SHORT_LEN], cell[HTH_AVG_SHAPE_TEXT_MAX], bytes[16];
    const char *what = n->flags & HTH_ROSTER_HELPER          ? "helper"
                       : n->flags & HTH_ROSTER_BOOTSTRAPPING ? "fetching"
                                                             : "training";
    printf("%-10s %-9s %8llu %11.0f %-9s ", hth_peer_id_short(&p->id, id), what,
           (unsigned long long)n->step, n->samples_per_s,
           n->generation > 0 ? hth_avg_cell_text(&n->shape, &n->cell, cell) : "-");
    if (l->members == 0 && l->reason == HTH_AVG_OK) {
        printf("none yet\n");
        return;
    }
    printf("%08x %u members, %u dropped, waited %u ms, reduced %u ms, %s, distance %.3g %%  %s\n",
           l->group, l->members, l->drops, l->wait_ms, l->reduce_ms,
           hth_cli_bytes_text((double)l->bytes, bytes), l->norm > 0 ? 100 * l->change / l->norm : 0,
           hth_avg_reason_name((enum hth_avg_reason)l->reason));
}

void hth_status_trainers_print(const struct hth_roster *roster)
{
    const struct hth_roster_peer *p;
    char shape[HTH_AVG_SHAPE_TEXT_MAX];
    struct hth_roster_stats stats;
    if (roster == NULL || (p = hth_roster_at(roster, 0)) == NULL)
        return;
    hth_roster_stats(roster, &stats);
    printf("\ntrainers: %u%s", stats.seen, stats.level > 0 ? ", a sample of them" : "");
    if (p->note.generation > 0)
        printf("; grid %s, generation %u", hth_avg_shape_text(&p->note.shape, shape),
               p->note.generation);
    printf("\n%-10s %-9s %8s %11s %-9s %s\n", "peer", "does", "step", "samples/s", "cell",
           "last round");
    for (uint32_t i = 0; (p = hth_roster_at(roster, i)) != NULL; i++)
        print_one(p);
}

json_t *hth_status_trainers_json(const struct hth_roster *roster)
{
    json_t *all = json_array();
    const struct hth_roster_peer *p;
    for (uint32_t i = 0; roster != NULL && (p = hth_roster_at(roster, i)) != NULL; i++)
        json_array_append_new(all, hth_together_peer_json(p));
    return all;
}
