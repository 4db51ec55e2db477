/* SPDX-License-Identifier: Apache-2.0 */
/* node.c: hearth node: a DHT node, a beacon, and nothing else: a place where others meet. */
#include "app/cli.h"
#include "app/peer.h"
#include "core/mem.h"

#include <stdio.h>

struct node {
    struct hth_cli_net net;
    struct hth_cli_log log;
    struct hth_peer peer;
    struct hth_announcer *announcer;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct node *n = state->input;
    (void)arg;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = &n->net;
    state->child_inputs[1] = &n->log;
    return 0;
}

static const struct argp_child children[] = {
    {&hth_cli_net_argp, 0, NULL, 0}, {&hth_cli_log_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .parser = parse,
    .children = children,
    .doc = "Help others find each other. Any peer does; this one does nothing else.",
};

static void withdrawn(void *arg)
{
    struct node *n = arg;
    hth_peer_stop(&n->peer, HTH_EXIT_OK);
}

static void on_drain(void *arg)
{
    struct node *n = arg;
    if (n->announcer != NULL)
        hth_announcer_withdraw(n->announcer, withdrawn, n);
    else
        withdrawn(n);
}

static char *status_json(void *arg)
{
    struct node *n = arg;
    return hth_metrics_json(n->peer.env->metrics);
}

int hth_verb_node(int argc, char **argv)
{
    struct node n = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &n) != 0)
        return HTH_EXIT_USAGE;
    const struct hth_peer_opts peer_opts = {
        .verb = "node",
        .net = &n.net,
        .log = &n.log,
        .network = n.net.network != NULL ? n.net.network : "",
        .rpc_listens = true,
        .may_be_first = true,
    };
    int code = hth_peer_open(&peer_opts, &n.peer);
    if (code != HTH_EXIT_OK)
        return code;
    n.peer.on_drain = on_drain;
    n.peer.status_json = status_json;
    n.peer.arg = &n;
    if (n.net.network != NULL) {
        struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
        opts.network = n.peer.network;
        opts.role = HTH_ROLE_NODE;
        opts.info.addr[0] = n.peer.announce;
        opts.info.addr_count = 1;
        snprintf(opts.info.version, sizeof(opts.info.version), "%s", HTH_VERSION);
        enum hth_err err = hth_announcer_new(n.peer.env, n.peer.dht, &opts, &n.announcer);
        if (err != HTH_OK)
            hth_cli_say_error("beacon: %s", hth_err_text(err));
    }
    code = hth_peer_run(&n.peer);
    hth_announcer_free(n.announcer);
    hth_peer_close(&n.peer);
    return code;
}
