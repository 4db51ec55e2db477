/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c: hearth status: collects a run's records and its peers' answers for a second (gather.h)
 * and prints them: peers with what they do, the served part of each layer's grid, trainers.
 *
 * Without a name it shows a single run whole, and lists several. Without --join it asks through the
 * hearth processes of this machine, or through the peers that they met (local.h).
 */
#include "monitor/gather.h"
#include "app/onlooker.h"
#include "monitor/status_json.h"
#include "monitor/status_trainers.h"
#include "cli/cli.h"
#include "cli/json.h"
#include "core/log.h"
#include "core/mem.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* People wait this long without wondering; and most answers of a swarm take less. */
#define WAIT_US HTH_US_PER_S
/* The table lists this many hosts with other layers; --json lists all. */
#define OTHERS_SHOWN 20

struct status {
    struct hth_onlooker at;
    bool json;
    int64_t wait_us;
    struct hth_gather *gather;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_JSON = 0x4000, KEY_WAIT };

static const struct argp_option options[] = {
    {"json", KEY_JSON, NULL, 0, "Print one JSON object instead of tables", 0},
    {"wait", KEY_WAIT, "TIME", 0, "Wait for answers at most this long (default 1s)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct status *s = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &s->at;
        break;
    case KEY_JSON:
        s->json = true;
        break;
    case KEY_WAIT:
        if (hth_cli_parse_time(arg, &s->wait_us) != HTH_OK)
            argp_error(state, "--wait '%s': expected a time such as 500ms or 5s", arg);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_child children[] = {{&hth_onlooker_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .children = children,
    .doc =
        "List a swarm's hosts, experts and load. Without --run and --network it shows the run "
        "of the swarm, or lists the runs if there are several. Without --join it asks the hearth "
        "processes of this machine.",
};

/* ---- printing ------------------------------------------------------------------------------ */

static void print_peer(const struct status *s, const struct hth_gather_peer *p)
{
    struct hth_status_peer f;
    char id[HTH_PEER_SHORT_LEN], addr[HTH_ADDR_TEXT_MAX];
    char up[16] = "-", seen[16] = "now", rows[32] = "-";
    hth_status_peer(s->gather, p, &f);
    if (f.up_us >= 0) {
        hth_cli_span_text(f.up_us, up);
        snprintf(rows, sizeof(rows), "%llu", (unsigned long long)f.rows);
    }
    if (p->state != HTH_ANSWERED)
        hth_cli_span_text(f.seen_us, seen);
    hth_peer_id_short(&p->id, id);
    printf("%s%-*s %-8s %-22s %-9s %9s %8s ", id, (int)(11 - strlen(id)), p->own ? "*" : "", f.role,
           p->addr.family != 0 ? hth_addr_text(&p->addr, addr) : "-", f.reach, seen, up);
    if (p->role == HTH_ROLE_HOST)
        printf("%7u %10s %8u %6u ms %-5s ", p->experts, rows, f.rows_per_s, f.queue_ms,
               hth_compute_name((enum hth_compute)f.compute));
    else
        printf("%7s %10s %8s %9s %-5s ", "-", "-", "-", "-", "-");
    printf("%s\n", f.version[0] != '\0' ? f.version : "-");
}

/* Says below the table what its marks mean, and what somebody should look at. */
static void print_remarks(const struct status *s)
{
    char id[HTH_PEER_SHORT_LEN], span[16], since[HTH_UTC_TEXT_MAX];
    struct hth_status_peer f;
    uint32_t silent = 0, own = 0, closed = 0;
    enum hth_err why = HTH_OK;
    for (size_t i = 0; i < s->gather->peer_count; i++) {
        const struct hth_gather_peer *p = s->gather->peer[i];
        hth_status_peer(s->gather, p, &f);
        hth_peer_id_short(&p->id, id);
        own += p->own;
        closed += p->turned_away != HTH_OK;
        why = p->turned_away != HTH_OK ? p->turned_away : why;
        silent += p->state == HTH_SILENT && p->turned_away == HTH_OK;
        if (f.unsaved_us > 0)
            printf("%s is not saving since %s (%s): its log says why\n", id,
                   hth_utc_text(p->about->unsaved_since_us, since),
                   hth_cli_span_text(f.unsaved_us, span));
        if (p->about != NULL && p->about->reach == HTH_REACH_NO)
            printf("%s can't be reached by others: forward its port, TCP and UDP\n", id);
    }
    if (own > 0)
        puts("* runs on this machine");
    if (closed > 0 && s->at.net.invited)
        printf("%u turn this one away: %s\n", closed, hth_err_text(why));
    else if (closed > 0)
        printf("%u tell only members how they are: the run is closed; give --invite\n", closed);
    if (silent > 0)
        printf("%u silent: dead, or can't be reached from here\n", silent);
    else if (!s->gather->complete)
        printf("not all answered within %s: --wait 5s waits longer\n",
               hth_cli_span_text(s->wait_us, span));
}

static void print_peers(const struct status *s)
{
    printf("%-11s %-8s %-22s %-9s %9s %8s %7s %10s %8s %9s %-5s %s\n", "peer", "role", "address",
           "reachable", "last seen", "up", "experts", "served", "rows/s", "wait", "type",
           "version");
    for (size_t i = 0; i < s->gather->peer_count; i++)
        print_peer(s, s->gather->peer[i]);
    print_remarks(s);
}

/* "4x4 of ffn, width 128" */
static const char *meaning(const struct hth_beacon_layer *layer, char *text, size_t size)
{
    char grid[48] = "";
    size_t len = 0;
    for (uint32_t i = 0; i < layer->grid.ndim; i++)
        len += (size_t)snprintf(grid + len, sizeof(grid) - len, "%s%u", i > 0 ? "x" : "",
                                layer->grid.dim[i]);
    snprintf(text, size, "%s of %s, width %u", grid, layer->shape.kind, layer->shape.d);
    return text;
}

static void print_others(const struct status *s)
{
    struct hth_census_node node;
    const struct hth_beacon_layer *layer;
    uint32_t i = 0, number, others = 0;
    size_t l = 0;
    char id[HTH_PEER_SHORT_LEN], theirs[128], shown[128];
    for (; hth_gather_other(s->gather, &i, &l, &node, &layer, &number); others++) {
        if (others == 0)
            printf("\nhosts with another run file, not counted:\n");
        if (others < OTHERS_SHOWN)
            printf("  %-10s has %s as %s, not %s\n", hth_peer_id_short(&node.id, id),
                   layer->grid.name, meaning(layer, theirs, sizeof(theirs)),
                   meaning(&s->gather->layer[number], shown, sizeof(shown)));
    }
    if (others > OTHERS_SHOWN)
        printf("  and %u more\n", others - OTHERS_SHOWN);
}

/* A reader of the list may want to join. */
static void print_join(const struct status *s)
{
    char ask[HTH_CERT_NAME_MAX + 16];
    char *join = hth_admit_join(&s->at.peer.admit, &s->at.net, ask);
    if (join != NULL && ask[0] == '\0')
        printf("\nanybody may join: hearth serve --experts 8 %s\n", join);
    else if (join != NULL)
        printf("\nto join, ask %s for an invite\n", ask);
    hth_free(join);
}

/* ---- who may take part --------------------------------------------------------------------- */

#define REVOKED_SHOWN 64

static void print_members(const struct status *s)
{
    char id[HTH_PEER_SHORT_LEN], roles[48];
    struct hth_status_peer f;
    uint64_t entry[REVOKED_SHOWN];
    if (s->at.peer.admit.gate == NULL)
        return;
    printf("\n%-11s %-16s %-10s %s\n", "peer", "invite of", "class", "may");
    for (size_t i = 0; i < s->gather->peer_count; i++) {
        hth_status_peer(s->gather, s->gather->peer[i], &f);
        hth_peer_id_short(&s->gather->peer[i]->id, id);
        if (f.grant.roles == 0)
            printf("%-11s its pass is not known here\n", id);
        else
            printf("%-11s %-16s %-10s %s\n", id, f.grant.name,
                   f.grant.class == HTH_PROBATION ? "probation" : "member",
                   hth_roles_text(f.grant.roles, roles));
    }
    size_t count = hth_revoked_set_entries(s->at.peer.admit.revoked, entry, REVOKED_SHOWN);
    for (size_t i = 0; i < count; i++)
        printf("%s%llu", i > 0 ? ", " : "revoked: ", (unsigned long long)entry[i]);
    if (count > 0)
        putchar('\n');
}

/* The peers' refusals since their start. */
static void print_refusals(const struct status *s)
{
    char id[HTH_PEER_SHORT_LEN];
    for (size_t i = 0; i < s->gather->peer_count; i++) {
        const struct hth_about *a = s->gather->peer[i]->about;
        if (a == NULL || a->refusal_count == 0)
            continue;
        hth_peer_id_short(&s->gather->peer[i]->id, id);
        printf("%s refused ", id);
        for (uint32_t k = 0; k < a->refusal_count; k++)
            printf("%s%s %u", k > 0 ? ", " : "", a->refusal[k].reason, a->refusal[k].count);
        putchar('\n');
        if (hth_about_refuses_values(a))
            printf("WARNING: %s refused claims, means or states: a member is broken, or lies; its "
                   "log says which\n",
                   id);
    }
}

static void print_table(struct status *s)
{
    struct hth_census_stats seen;
    char name[HTH_NAME_LEN_MAX + 1];
    hth_census_stats(s->at.peer.census, &seen);
    printf("run '%s': %zu peer%s\n\n", hth_gather_name(s->gather, name), s->gather->peer_count,
           s->gather->peer_count == 1 ? "" : "s");
    print_peers(s);
    print_members(s);
    print_refusals(s);
    if (s->gather->layer_count > 0)
        printf("\n%-16s %-18s %10s %10s %10s %6s\n", "layer", "grid", "places", "served", "twice",
               "cover");
    for (uint32_t l = 0; l < s->gather->layer_count; l++) {
        const struct hth_grid *grid = &s->gather->layer[l].grid;
        char text[HTH_UID_TEXT_MAX];
        uint32_t served, twice, size = hth_grid_size(grid);
        hth_gather_count(s->gather, l, &served, &twice);
        printf("%-16s %-18s %10u %10u %10u %5.0f%%\n", grid->name,
               hth_grid_text(grid, text) + strlen(grid->name) + 1, size, served, twice,
               100.0 * served / size);
    }
    print_others(s);
    hth_status_trainers_print(s->gather->roster);
    print_join(s);
    if (seen.clock_ahead + seen.version + seen.damaged > 0)
        printf("\n%u records refused, the last one: %s\n",
               seen.clock_ahead + seen.version + seen.damaged, seen.refusal);
}

static void print_object_take(json_t *object)
{
    hth_json_print_take(stdout, object);
    putchar('\n');
}

static void print_json(struct status *s)
{
    json_t *all = hth_status_json(s->gather);
    hth_json_take(all, "revoked", hth_status_revoked_json(s->at.peer.admit.revoked));
    print_object_take(all);
}

static void print_runs(const struct status *s, const struct hth_census_network *run, size_t count)
{
    json_t *runs = json_array(), *all;
    for (size_t i = 0; s->json && i < count; i++) {
        json_t *o = json_object();
        hth_json_text(o, "run", run[i].name);
        hth_json_count(o, "nodes", run[i].nodes);
        hth_json_count(o, "hosts", run[i].hosts);
        hth_json_count(o, "trainers", run[i].trainers);
        json_array_append_new(runs, o);
    }
    if (s->json) {
        all = json_object();
        hth_json_take(all, "runs", runs);
        print_object_take(all);
        return;
    }
    json_decref(runs);
    printf("%-32s %8s %8s %8s\n", "run", "peers", "hosts", "trainers");
    for (size_t i = 0; i < count; i++)
        printf("%-32s %8u %8u %8u\n", run[i].name, run[i].nodes, run[i].hosts, run[i].trainers);
}

static void say_nobody(const struct status *s, bool named)
{
    char span[16];
    hth_cli_say_error(
        "the swarm answers, but no peer of %s%s was found in %s: nobody %s in it, its "
        "run is private and --invite shows it, or this machine's clock is wrong (--wait 5s looks "
        "longer)",
        named ? "run " : "any run", s->gather->network, hth_cli_span_text(s->wait_us, span),
        named ? "takes part" : "serves or trains");
}

static void on_gathered(void *arg)
{
    struct status *s = arg;
    size_t count;
    if (s->gather->err != HTH_OK) {
        hth_cli_say_error("status: %s", hth_err_text(s->gather->err));
        hth_peer_stop(&s->at.peer, hth_exit_of(s->gather->err));
        return;
    }
    struct hth_census_network *run = hth_gather_runs(s->gather, &count);
    bool named = s->at.network != NULL;
    if (count > 1) {
        print_runs(s, run, count);
        hth_cli_say_error("the swarm has %zu runs; pick one with --network NAME", count);
    } else if (s->json && (named || count == 1)) {
        print_json(s);
    } else if (count == 1) {
        print_table(s);
    }
    if (count == 0)
        say_nobody(s, named);
    hth_free(run);
    hth_peer_stop(&s->at.peer, count > 0 ? HTH_EXIT_OK : HTH_EXIT_NETWORK);
}

/* ---- asking -------------------------------------------------------------------------------- */

static int ask(struct status *s)
{
    const struct hth_gather_opts opts = {.census = s->at.peer.census,
                                         .network = s->at.network,
                                         .name = s->at.name,
                                         .members = s->at.peer.members,
                                         .layers = s->at.layers,
                                         .layer_count = s->at.layer_count,
                                         .own = s->at.own,
                                         .own_count = s->at.own_count,
                                         .admission = hth_admit_rpc(&s->at.peer.admit),
                                         .wait_us = s->wait_us,
                                         .done = on_gathered,
                                         .arg = s};
    s->at.peer.arg = s;
    enum hth_err err = hth_gather_new(s->at.peer.env, s->at.peer.dht, &opts, &s->gather);
    int code = err == HTH_OK ? hth_peer_run(&s->at.peer) : hth_exit_of(err);
    if (err != HTH_OK)
        hth_cli_say_error("status: %s", hth_err_text(err));
    hth_peer_jobs_end(&s->at.peer);
    hth_gather_free(s->gather);
    return code;
}

int hth_verb_status(int argc, char **argv)
{
    struct status s = {.wait_us = WAIT_US};
    if (argp_parse(&argp, argc, argv, 0, NULL, &s) != 0)
        return HTH_EXIT_USAGE;
    const struct hth_peer_opts opts = {
        .verb = "status", .quiet = true, .ephemeral = true, .patience_us = s.wait_us};
    int code = hth_onlooker_open(&s.at, &opts);
    if (code == HTH_EXIT_OK)
        code = ask(&s);
    hth_onlooker_close(&s.at);
    return code;
}
