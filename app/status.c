/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c: hearth status: joins a swarm for a few seconds, collects what its hosts say of
 * themselves and prints it: hosts with their load, and how much of each layer's grid is served.
 */
#include "app/cli.h"
#include "app/config.h"
#include "app/peer.h"
#include "core/mem.h"
#include "dht/directory.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* The DHT asks a second time after a second; by then what is stored has come. */
#define COLLECT_US (3 * HTH_US_PER_S)
#define LOOK_US    (100 * HTH_US_PER_MS)
/* A layer that a late beacon named still gets this long. */
#define LAYER_US (2 * HTH_US_PER_S)

struct status {
    struct hth_cli_net net;
    struct hth_cli_log log;
    const char *run_path;
    bool json;
    int64_t wait_us;

    struct hth_runfile *run;
    struct hth_peer peer;
    struct hth_directory *directory;
    struct hth_timer *timer;
    int64_t end_us;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_JSON = 0x4000, KEY_WAIT };

static const struct argp_option options[] = {
    {"run", 'r', "FILE", 0, "The run file: names the swarm and its grids (or --network NAME)", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object", 0},
    {"wait", KEY_WAIT, "TIME", 0, "How long to collect answers (default 3s)", 0},
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
            argp_error(state, "--wait '%s': a time such as 500ms or 5s", arg);
        break;
    case ARGP_KEY_END:
        if (s->run_path == NULL && s->net.network == NULL)
            argp_error(state, "--run FILE or --network NAME is required");
        if (s->net.join_count == 0)
            argp_error(state, "--join HOST:PORT is required");
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
    .doc = "List a swarm's hosts, experts and load.",
};

/* ---- collecting ---------------------------------------------------------------------------- */

static void open_layer(struct status *s, const struct hth_grid *grid)
{
    uint32_t number;
    enum hth_err err = hth_directory_open_layer(s->directory, grid, NULL, &number);
    if (err != HTH_OK && err != HTH_E_CONFIG)
        hth_cli_say_error("layer %s: %s", grid->name, hth_err_text(err));
}

/* Without a run file the layers are those that the beacons name. */
static void open_announced_layers(struct status *s)
{
    struct hth_census_node node;
    for (uint32_t i = 0; hth_census_at(s->peer.census, i, &node); i++) {
        for (size_t l = 0; l < node.layer_count; l++)
            open_layer(s, &node.layers[l].grid);
    }
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
    for (uint32_t i = 0; hth_census_at(s->peer.census, i, &node); i++) {
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

/* Experts with at least one host, and with two. */
static void count_replicas(struct status *s, uint32_t layer, uint32_t *served, uint32_t *twice)
{
    struct hth_host_ref hosts[2];
    const struct hth_grid_view *view = hth_directory_view(s->directory, layer);
    *served = view->live_count;
    *twice = 0;
    for (uint32_t i = 0; i < view->live_count; i++)
        *twice += hth_directory_hosts_of(s->directory, layer, view->expert[i], hosts, 2) == 2;
}

static void print_table(struct status *s)
{
    struct hth_census_stats seen;
    hth_census_stats(s->peer.census, &seen);
    printf("run '%s': %u nodes\n\n", s->peer.network, seen.nodes);
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
    if (seen.clock_ahead + seen.version + seen.damaged > 0)
        printf("\n%u records refused, the last one: %s\n",
               seen.clock_ahead + seen.version + seen.damaged, seen.refusal);
}

static json_t *node_json(struct status *s, const struct hth_census_node *node)
{
    struct hth_host_status host;
    char id[2 * HTH_HASH_LEN + 1], addr[HTH_ADDR_TEXT_MAX];
    bool found = hth_directory_host_find(s->directory, &node->id, &host);
    const struct hth_host_info *info = found ? &host.info : &node->info;
    for (size_t i = 0; i < HTH_HASH_LEN; i++)
        snprintf(id + 2 * i, 3, "%02x", node->id.b[i]);
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:s, s:s}", "id", id, "role",
                     role_name(node->role), "address",
                     info->addr_count > 0 ? hth_addr_text(&info->addr[0], addr) : "", "experts",
                     found ? (int)host.experts : 0, "queue_ms", (int)info->queue_ms, "rows_per_s",
                     (double)info->rows_per_s, "compute", hth_compute_name(info->compute),
                     "version", info->version);
}

static json_t *layer_json(struct status *s, uint32_t layer)
{
    const struct hth_grid *grid = hth_directory_grid(s->directory, layer);
    uint32_t served, twice;
    json_t *dims = json_array();
    count_replicas(s, layer, &served, &twice);
    for (uint32_t i = 0; i < grid->ndim; i++)
        json_array_append_new(dims, json_integer(grid->dim[i]));
    return json_pack("{s:s, s:o, s:i, s:i, s:i, s:f}", "name", grid->name, "grid", dims, "places",
                     (int)hth_grid_size(grid), "served", (int)served, "twice", (int)twice,
                     "coverage", (double)served / hth_grid_size(grid));
}

static void print_json(struct status *s)
{
    struct hth_census_node node;
    json_t *nodes = json_array(), *layers = json_array();
    for (uint32_t i = 0; hth_census_at(s->peer.census, i, &node); i++)
        json_array_append_new(nodes, node_json(s, &node));
    for (uint32_t l = 0; l < hth_directory_layer_count(s->directory); l++)
        json_array_append_new(layers, layer_json(s, l));
    json_t *all =
        json_pack("{s:s, s:o, s:o}", "run", s->peer.network, "nodes", nodes, "layers", layers);
    json_dumpf(all, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(all);
}

static void on_collected(struct status *s)
{
    struct hth_census_stats seen;
    hth_census_stats(s->peer.census, &seen);
    if (s->json)
        print_json(s);
    else
        print_table(s);
    hth_peer_stop(&s->peer, seen.nodes > 0 ? HTH_EXIT_OK : HTH_EXIT_NETWORK);
}

static void on_look(void *arg)
{
    struct status *s = arg;
    int64_t now = hth_now_us(s->peer.env);
    uint32_t layers = hth_directory_layer_count(s->directory);
    if (s->run == NULL)
        open_announced_layers(s);
    if (hth_directory_layer_count(s->directory) > layers)
        s->end_us = HTH_MAX(s->end_us, now + LAYER_US);
    if (now >= s->end_us)
        on_collected(s);
    else
        hth_timer_set(s->peer.env, s->timer, HTH_MIN(LOOK_US, s->end_us - now));
}

static void on_joined(void *arg)
{
    struct status *s = arg;
    s->end_us = hth_now_us(s->peer.env) + s->wait_us;
    on_look(s);
}

static enum hth_err build(struct status *s)
{
    struct hth_directory_opts opts = HTH_DIRECTORY_OPTS_INIT;
    opts.network = s->peer.network;
    HTH_TRY(hth_directory_new(s->peer.env, s->peer.dht, &opts, &s->directory));
    s->timer = hth_timer_new(s->peer.env, on_look, s);
    for (uint32_t l = 0; s->run != NULL && l < s->run->model.layers; l++) {
        struct hth_grid grid;
        HTH_TRY(hth_config_grid(s->run, l, &grid));
        open_layer(s, &grid);
    }
    return HTH_OK;
}

static int ask(struct status *s)
{
    const struct hth_peer_opts peer_opts = {
        .verb = "status",
        .net = &s->net,
        .log = &s->log,
        .network = s->net.network != NULL ? s->net.network : s->run->run,
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
    hth_peer_close(&s->peer);
    return code;
}

int hth_verb_status(int argc, char **argv)
{
    struct status s = {.wait_us = COLLECT_US};
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
