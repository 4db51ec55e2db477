/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c: hearth status: joins a swarm for a few seconds, collects the records of its hosts and
 * trainers and prints them: hosts with their load, the served part of each layer's grid, trainers.
 *
 * Without a name it collects the beacons of all runs: it shows a single run whole, and lists
 * several. Hosts with another layer of the same name (status_layers.h) are listed apart and not
 * counted.
 *
 * It ends when the records are complete: every expert that a beacon counts is in its host's
 * records, and no new beacon has come for SETTLE_US. --wait bounds the time.
 */
#include "app/peer.h"
#include "app/status_layers.h"
#include "app/status_trainers.h"
#include "averaging/roster.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/json.h"
#include "core/mem.h"
#include "dht/directory.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define WAIT_US    (10 * HTH_US_PER_S)
#define REFRESH_US (100 * HTH_US_PER_MS)
/* The DHT repeats a lookup after one second; what is stored has arrived by then. */
#define SETTLE_US (2 * HTH_US_PER_S)
/* A watch may lose a datagram, so missing records are looked up again this often. */
#define ASK_US HTH_US_PER_S
/* The table lists this many hosts with other layers; --json lists all. */
#define OTHERS_SHOWN 20

struct status {
    struct hth_cli_net net;
    struct hth_cli_log log;
    const char *run_path;
    bool json;
    int64_t wait_us;

    struct hth_runfile *run;
    struct hth_peer peer;
    struct hth_directory *directory;
    struct hth_beacon_layer shown[HTH_DIR_LAYERS_MAX]; /* the directory's layers, in its order */
    struct hth_status_layers claims; /* of the run's hosts, at the last refresh; not with --run */
    struct hth_roster *roster;       /* records of the trainers */
    struct hth_timer *timer;
    char network[HTH_NAME_LEN_MAX + 1]; /* the run that is shown; empty: none is chosen */
    int64_t end_us, asked_us, changed_us;
    uint32_t nodes, layers; /* known at changed_us */
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_JSON = 0x4000, KEY_WAIT };

static const struct argp_option options[] = {
    {"run", 'r', "FILE", 0, "The run file, which names the run and its grids (default: ask)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object instead of tables", 0},
    {"wait", KEY_WAIT, "TIME", 0, "Wait for records at most this long (default 10s)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct status *s = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &s->net;
        state->child_inputs[1] = &s->log;
        break;
    case 'r':
        s->run_path = arg;
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

static const struct argp_child children[] = {
    {&hth_cli_net_argp, 0, NULL, 0}, {&hth_cli_log_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .children = children,
    .doc = "List a swarm's hosts, experts and load. Without --run and --network it shows the run "
           "of the swarm, or lists the runs if there are several.",
};

/* ---- collecting ---------------------------------------------------------------------------- */

/* A stranger may announce more layers than a directory follows: only the first ones are shown. */
static void open_layer(struct status *s, const struct hth_beacon_layer *layer)
{
    uint32_t number;
    enum hth_err err = hth_directory_open_layer(s->directory, &layer->grid, &layer->shape, &number);
    if (err == HTH_OK)
        s->shown[number] = *layer;
    else if (err != HTH_E_BUDGET)
        hth_cli_say_error("layer %s: %s", layer->grid.name, hth_err_text(err));
}

/* Finds the next node of the shown run, from *i on. */
static bool next_node(const struct status *s, uint32_t *i, struct hth_census_node *node)
{
    while (hth_census_at(s->peer.census, (*i)++, node))
        if (strcmp(node->network, s->network) == 0)
            return true;
    return false;
}

static enum hth_err new_directory(struct status *s)
{
    struct hth_directory_opts opts = HTH_DIRECTORY_OPTS_INIT;
    opts.network = s->network;
    opts.negative_us = ASK_US;
    hth_directory_free(s->directory);
    s->directory = NULL;
    return hth_directory_new(s->peer.env, s->peer.dht, &opts, &s->directory);
}

/* Whether another layer has more hosts than the shown one of the same name. */
static bool is_outdated(const struct status *s)
{
    for (uint32_t l = 0; l < hth_directory_layer_count(s->directory); l++) {
        const struct hth_beacon_layer *best =
            hth_status_layers_best(&s->claims, s->shown[l].grid.name);
        if (best != NULL && !hth_status_layer_eq(best, &s->shown[l]))
            return true;
    }
    return false;
}

/* Without a run file, shows the layers of the beacons: of each name, the one with most hosts. */
static enum hth_err open_announced_layers(struct status *s)
{
    struct hth_census_node node;
    s->claims.count = 0;
    for (uint32_t i = 0; next_node(s, &i, &node);)
        for (size_t l = 0; l < node.layer_count; l++)
            hth_status_layers_add(&s->claims, &node.layers[l]);
    if (is_outdated(s)) {
        HTH_TRY(new_directory(s));
        s->changed_us = hth_now_us(s->peer.env);
    }
    for (uint32_t i = 0; i < s->claims.count; i++) {
        const struct hth_beacon_layer *layer = &s->claims.claim[i].layer;
        if (hth_status_layers_best(&s->claims, layer->grid.name) == layer)
            open_layer(s, layer);
    }
    return HTH_OK;
}

/* Finds the number of the layer that is shown under this name. */
static bool find_shown(const struct status *s, const char *name, uint32_t *number)
{
    uint32_t count = s->directory != NULL ? hth_directory_layer_count(s->directory) : 0;
    for (*number = 0; *number < count; ++*number)
        if (strcmp(s->shown[*number].grid.name, name) == 0)
            return true;
    return false;
}

/* Finds the next layer, from *i and *l on, that differs from the shown one of the same name. */
static bool next_other(const struct status *s, uint32_t *i, size_t *l, struct hth_census_node *node,
                       const struct hth_beacon_layer **layer, uint32_t *number)
{
    for (uint32_t at = *i; next_node(s, &at, node); *i = at, *l = 0)
        while (*l < node->layer_count) {
            *layer = &node->layers[(*l)++];
            if (find_shown(s, (*layer)->grid.name, number) &&
                !hth_status_layer_eq(&s->shown[*number], *layer))
                return true;
        }
    return false;
}

/* Whether all the records of this layer that the host's beacon promises have arrived. A layer that
 * is not shown is not waited for. */
static bool layer_has_come(const struct status *s, const struct hth_peer_id *host,
                           const struct hth_beacon_layer *layer)
{
    uint32_t l;
    if (!find_shown(s, layer->grid.name, &l) || !hth_status_layer_eq(&s->shown[l], layer))
        return true;
    return hth_directory_host_experts(s->directory, host, l, NULL, 0) >= layer->experts;
}

static bool all_has_come(const struct status *s)
{
    struct hth_census_node node;
    for (uint32_t i = 0; s->directory != NULL && next_node(s, &i, &node);)
        for (size_t l = 0; l < node.layer_count; l++)
            if (!layer_has_come(s, &node.id, &node.layers[l]))
                return false;
    return true;
}

/* Repeats the lookups. Records arrive through the watches, and a refusal to look up twice within a
 * moment is no failure. */
static void ask_again(struct status *s, int64_t now)
{
    if (now - s->asked_us < ASK_US)
        return;
    s->asked_us = now;
    (void)!hth_census_ask(s->peer.census);
    for (uint32_t l = 0; s->directory != NULL && l < hth_directory_layer_count(s->directory); l++)
        (void)!hth_directory_ask(s->directory, l);
}

/* ---- choosing a run ------------------------------------------------------------------------ */

/* Follows the records of this run, in place of another run's. */
static enum hth_err follow(struct status *s, const char *network)
{
    if (s->directory != NULL && strcmp(s->network, network) == 0)
        return HTH_OK;
    hth_roster_free(s->roster);
    s->roster = NULL;
    snprintf(s->network, sizeof(s->network), "%s", network);
    HTH_TRY(hth_status_trainers_new(s->peer.env, s->peer.dht, s->network, &s->roster));
    return new_directory(s);
}

/* The networks seen with a host or a trainer; if there is none, those with plain nodes only. The
 * caller frees the array, whose first *count elements are valid. */
static struct hth_census_network *runs_seen(const struct status *s, size_t *count)
{
    struct hth_census_stats seen;
    hth_census_stats(s->peer.census, &seen);
    struct hth_census_network *run = hth_new_array(struct hth_census_network, seen.nodes + 1);
    size_t n = hth_census_networks(s->peer.census, run, seen.nodes), busy = 0;
    for (size_t i = 0; i < n; i++)
        if (run[i].hosts + run[i].trainers > 0)
            run[busy++] = run[i];
    *count = busy > 0 ? busy : n;
    return run;
}

/* ---- printing ------------------------------------------------------------------------------ */

static const char *const role_names[] = {"node", "host", "trainer"};

static const char *role_name(enum hth_role role)
{
    return (unsigned)role < HTH_ARRAY_LEN(role_names) ? role_names[role] : "?";
}

static void print_nodes(struct status *s)
{
    struct hth_census_node node;
    struct hth_host_status host;
    char id[HTH_PEER_SHORT_LEN], addr[HTH_ADDR_TEXT_MAX];
    printf("%-10s %-8s %-22s %8s %9s %10s %-6s %s\n", "peer", "role", "address", "experts", "wait",
           "rows/s", "type", "version");
    for (uint32_t i = 0; next_node(s, &i, &node);) {
        bool found = hth_directory_host_find(s->directory, &node.id, &host);
        const struct hth_host_info *info = found ? &host.info : &node.info;
        printf("%-10s %-8s %-22s ", hth_peer_id_short(&node.id, id), role_name(node.role),
               info->addr_count > 0 ? hth_addr_text(&info->addr[0], addr) : "-");
        if (node.role == HTH_ROLE_HOST)
            printf("%8u %6u ms %10.0f %-6s ", found ? host.experts : 0, info->queue_ms,
                   (double)info->rows_per_s, hth_compute_name(info->compute));
        else
            printf("%8s %9s %10s %-6s ", "-", "-", "-", "-");
        printf("%s\n", info->version);
    }
}

/* Counts experts with at least one replica, and with at least two. */
static void count_replicas(struct status *s, uint32_t layer, uint32_t *served, uint32_t *twice)
{
    struct hth_host_ref hosts[2];
    const struct hth_grid_view *view = hth_directory_view(s->directory, layer);
    *served = view->live_count;
    *twice = 0;
    for (uint32_t i = 0; i < view->live_count; i++)
        *twice += hth_directory_hosts_of(s->directory, layer, view->expert[i], hosts, 2) == 2;
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
    for (; next_other(s, &i, &l, &node, &layer, &number); others++) {
        if (others == 0)
            printf("\nhosts with another run file, not counted:\n");
        if (others < OTHERS_SHOWN)
            printf("  %-10s has %s as %s, not %s\n", hth_peer_id_short(&node.id, id),
                   layer->grid.name, meaning(layer, theirs, sizeof(theirs)),
                   meaning(&s->shown[number], shown, sizeof(shown)));
    }
    if (others > OTHERS_SHOWN)
        printf("  and %u more\n", others - OTHERS_SHOWN);
}

static void print_table(struct status *s)
{
    struct hth_census_stats seen;
    struct hth_census_node node;
    uint32_t nodes = 0;
    hth_census_stats(s->peer.census, &seen);
    for (uint32_t i = 0; next_node(s, &i, &node);)
        nodes++;
    printf("run '%s': %u nodes\n\n", s->network, nodes);
    print_nodes(s);
    printf("\n%-16s %-18s %10s %10s %10s %6s\n", "layer", "grid", "places", "served", "twice",
           "cover");
    for (uint32_t l = 0; l < hth_directory_layer_count(s->directory); l++) {
        const struct hth_grid *grid = hth_directory_grid(s->directory, l);
        char text[HTH_UID_TEXT_MAX];
        uint32_t served, twice, size = hth_grid_size(grid);
        count_replicas(s, l, &served, &twice);
        printf("%-16s %-18s %10u %10u %10u %5.0f%%\n", grid->name,
               hth_grid_text(grid, text) + strlen(grid->name) + 1, size, served, twice,
               100.0 * served / size);
    }
    print_others(s);
    hth_status_trainers_print(s->roster);
    if (seen.clock_ahead + seen.version + seen.damaged > 0)
        printf("\n%u records refused, the last one: %s\n",
               seen.clock_ahead + seen.version + seen.damaged, seen.refusal);
}

static json_t *grid_json(const struct hth_grid *grid)
{
    json_t *dims = json_array();
    for (uint32_t i = 0; i < grid->ndim; i++)
        json_array_append_new(dims, json_integer(grid->dim[i]));
    return dims;
}

static void id_text(const struct hth_peer_id *peer, char id[2 * HTH_HASH_LEN + 1])
{
    for (size_t i = 0; i < HTH_HASH_LEN; i++)
        snprintf(id + 2 * i, 3, "%02x", peer->b[i]);
}

static json_t *others_json(const struct status *s)
{
    struct hth_census_node node;
    const struct hth_beacon_layer *layer;
    uint32_t i = 0, number;
    size_t l = 0;
    char id[2 * HTH_HASH_LEN + 1];
    json_t *all = json_array();
    while (next_other(s, &i, &l, &node, &layer, &number)) {
        json_t *o = json_object();
        id_text(&node.id, id);
        hth_json_text(o, "id", id);
        hth_json_text(o, "layer", layer->grid.name);
        hth_json_take(o, "grid", grid_json(&layer->grid));
        hth_json_text(o, "kind", layer->shape.kind);
        hth_json_count(o, "d", layer->shape.d);
        json_array_append_new(all, o);
    }
    return all;
}

static json_t *node_json(struct status *s, const struct hth_census_node *node)
{
    struct hth_host_status host;
    char id[2 * HTH_HASH_LEN + 1], addr[HTH_ADDR_TEXT_MAX];
    bool found = hth_directory_host_find(s->directory, &node->id, &host);
    const struct hth_host_info *info = found ? &host.info : &node->info;
    bool serves = node->role == HTH_ROLE_HOST;
    id_text(&node->id, id);
    json_t *o = json_object();
    hth_json_text(o, "id", id);
    hth_json_text(o, "role", role_name(node->role));
    hth_json_text(o, "address", info->addr_count > 0 ? hth_addr_text(&info->addr[0], addr) : "");
    hth_json_count(o, "experts", found ? host.experts : 0);
    hth_json_count(o, "queue_ms", info->queue_ms);
    hth_json_real(o, "rows_per_s", (double)info->rows_per_s);
    hth_json_text(o, "compute", serves ? hth_compute_name(info->compute) : "");
    hth_json_text(o, "version", info->version);
    return o;
}

static json_t *layer_json(struct status *s, uint32_t layer)
{
    const struct hth_grid *grid = hth_directory_grid(s->directory, layer);
    uint32_t served, twice;
    count_replicas(s, layer, &served, &twice);
    json_t *o = json_object();
    hth_json_text(o, "name", grid->name);
    hth_json_take(o, "grid", grid_json(grid));
    hth_json_count(o, "places", hth_grid_size(grid));
    hth_json_count(o, "served", served);
    hth_json_count(o, "twice", twice);
    hth_json_real(o, "coverage", (double)served / hth_grid_size(grid));
    return o;
}

static void print_object_take(json_t *object)
{
    hth_json_print_take(stdout, object);
    putchar('\n');
}

static void print_json(struct status *s)
{
    struct hth_census_node node;
    json_t *nodes = json_array(), *layers = json_array();
    for (uint32_t i = 0; next_node(s, &i, &node);)
        json_array_append_new(nodes, node_json(s, &node));
    for (uint32_t l = 0; l < hth_directory_layer_count(s->directory); l++)
        json_array_append_new(layers, layer_json(s, l));
    json_t *all = json_object();
    hth_json_text(all, "run", s->network);
    hth_json_take(all, "nodes", nodes);
    hth_json_take(all, "layers", layers);
    hth_json_take(all, "others", others_json(s));
    hth_json_take(all, "trainers", hth_status_trainers_json(s->roster));
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
    printf("%-32s %8s %8s %8s\n", "run", "nodes", "hosts", "trainers");
    for (size_t i = 0; i < count; i++)
        printf("%-32s %8u %8u %8u\n", run[i].name, run[i].nodes, run[i].hosts, run[i].trainers);
}

static void on_collected(struct status *s)
{
    size_t count;
    struct hth_census_network *run = runs_seen(s, &count);
    bool named = s->run != NULL || s->net.network != NULL;
    if (count > 1) {
        print_runs(s, run, count);
        hth_cli_say_error("the swarm has %zu runs; pick one with --network NAME", count);
    } else if (named || count == 1) {
        if (s->json)
            print_json(s);
        else
            print_table(s);
    }
    if (count == 0)
        hth_cli_say_error("the DHT answers, but no node of %s%s was found",
                          named ? "run " : "any run", s->network);
    hth_free(run);
    hth_peer_stop(&s->peer, count > 0 ? HTH_EXIT_OK : HTH_EXIT_NETWORK);
}

/* Whether no new node or layer has come for SETTLE_US. */
static bool is_settled(struct status *s, int64_t now)
{
    struct hth_census_stats seen;
    hth_census_stats(s->peer.census, &seen);
    uint32_t layers = s->directory != NULL ? hth_directory_layer_count(s->directory) : 0;
    if (seen.nodes != s->nodes || layers != s->layers) {
        s->nodes = seen.nodes;
        s->layers = layers;
        s->changed_us = now;
    }
    return now - s->changed_us >= SETTLE_US;
}

/* Without a name: follows the run while there is exactly one. */
static enum hth_err choose_run(struct status *s)
{
    size_t count;
    struct hth_census_network *run = runs_seen(s, &count);
    enum hth_err err = count == 1 ? follow(s, run[0].name) : HTH_OK;
    hth_free(run);
    return err;
}

static void on_refresh(void *arg)
{
    struct status *s = arg;
    int64_t now = hth_now_us(s->peer.env);
    enum hth_err err = HTH_OK;
    if (s->run == NULL && s->net.network == NULL)
        err = choose_run(s);
    if (err == HTH_OK && s->run == NULL && s->directory != NULL)
        err = open_announced_layers(s);
    if (err != HTH_OK) {
        hth_cli_say_error("status: %s", hth_err_text(err));
        hth_peer_stop(&s->peer, hth_exit_of(err));
        return;
    }
    bool settled = is_settled(s, now) && all_has_come(s);
    if (now >= s->end_us || settled) {
        on_collected(s);
        return;
    }
    ask_again(s, now);
    hth_timer_set(s->peer.env, s->timer, HTH_MIN(REFRESH_US, s->end_us - now));
}

static void on_joined(void *arg)
{
    struct status *s = arg;
    s->asked_us = s->changed_us = hth_now_us(s->peer.env);
    s->end_us = s->changed_us + s->wait_us;
    on_refresh(s);
}

static enum hth_err build(struct status *s)
{
    s->timer = hth_timer_new(s->peer.env, on_refresh, s);
    if (s->run == NULL && s->net.network == NULL)
        return HTH_OK;
    HTH_TRY(follow(s, s->peer.network));
    for (uint32_t l = 0; s->run != NULL && l < s->run->model.layers; l++) {
        struct hth_beacon_layer layer = {.shape = hth_config_shape(s->run)};
        HTH_TRY(hth_config_grid(s->run, l, &layer.grid));
        open_layer(s, &layer);
    }
    return HTH_OK;
}

static int ask(struct status *s)
{
    const struct hth_peer_opts peer_opts = {
        .verb = "status",
        .net = &s->net,
        .log = &s->log,
        .network = s->net.network != NULL || s->run == NULL ? s->net.network : s->run->run,
        .quiet = true,
        .ephemeral = true,
    };
    int code = hth_peer_open(&peer_opts, &s->peer);
    if (code != HTH_EXIT_OK)
        return code;
    s->peer.on_joined = on_joined;
    s->peer.arg = s;
    enum hth_err err = build(s);
    if (err == HTH_OK) {
        code = hth_peer_run(&s->peer);
    } else {
        hth_cli_say_error("status: %s", hth_err_text(err));
        code = hth_exit_of(err);
    }
    hth_peer_jobs_end(&s->peer);
    hth_timer_free(s->peer.env, s->timer);
    hth_directory_free(s->directory);
    hth_roster_free(s->roster);
    hth_peer_close(&s->peer);
    return code;
}

int hth_verb_status(int argc, char **argv)
{
    struct status s = {.wait_us = WAIT_US};
    if (argp_parse(&argp, argc, argv, 0, NULL, &s) != 0)
        return HTH_EXIT_USAGE;
    if (s.run_path != NULL) {
        enum hth_err err = hth_config_load(s.run_path, &s.run);
        if (err != HTH_OK)
            return hth_exit_of(err == HTH_E_NO_FILE ? HTH_E_CONFIG : err);
    }
    int code = ask(&s);
    hth_runfile_free(s.run);
    return code;
}
