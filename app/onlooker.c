/* SPDX-License-Identifier: Apache-2.0 */
/* onlooker.c: a run file, the processes of this machine, a peer. */
#include "app/onlooker.h"

#include "app/own.h"
#include "cli/config.h"

static const struct argp_option options[] = {
    {"run", 'r', "FILE", 0, "The run file, which names the run and its grids (default: ask)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_onlooker *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->net;
        state->child_inputs[1] = &o->log;
        break;
    case 'r':
        o->run_path = arg;
        break;
    case ARGP_KEY_END:
        if (o->net.own)
            argp_error(state, "--own begins a run: give it to node, serve or train");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_child children[] = {
    {&hth_cli_net_argp, 0, NULL, 0}, {&hth_cli_log_argp, 0, NULL, 0}, {0}};
const struct argp hth_onlooker_argp = {.options = options, .parser = parse, .children = children};

static enum hth_err read_run(struct hth_onlooker *o)
{
    if (o->run_path == NULL)
        return HTH_OK;
    enum hth_err err = hth_config_load(o->run_path, &o->run);
    if (err == HTH_OK)
        err = hth_own_enter(o->run_path, o->run, &o->net);
    if (err != HTH_OK)
        return err == HTH_E_NO_FILE ? HTH_E_CONFIG : err;
    for (uint32_t i = 0; i < hth_config_grids(o->run); i++) {
        struct hth_beacon_layer *layer = &o->layers[o->layer_count++];
        layer->shape = hth_config_shape(o->run);
        HTH_TRY(hth_config_grid(o->run, i, &layer->grid));
    }
    return HTH_OK;
}

int hth_onlooker_open(struct hth_onlooker *o, const struct hth_peer_opts *opts)
{
    struct hth_peer_opts peer = *opts;
    struct hth_addr also[HTH_LOCAL_MAX];
    enum hth_err err = read_run(o);
    if (err != HTH_OK)
        return hth_exit_of(err);
    o->own_count = hth_local_find(o->net.dir, o->own);
    for (size_t i = 0; i < o->own_count; i++)
        also[i] = o->own[i].addr;
    peer.net = &o->net;
    peer.log = &o->log;
    peer.run = o->run;
    peer.also = also;
    peer.also_count = o->net.join_count == 0 ? o->own_count : 0;
    int code = hth_peer_open(&peer, &o->peer);
    if (code == HTH_EXIT_OK && o->peer.network[0] != '\0') {
        o->network = o->peer.network;
        o->name = o->peer.name;
    }
    return code;
}

void hth_onlooker_close(struct hth_onlooker *o)
{
    hth_peer_close(&o->peer);
    hth_runfile_free(o->run);
}
