/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c: hearth node: a DHT node that publishes a beacon, so that peers find each other through
 * it. With --reduce it also computes averages for a run's trainers (trainer/helper.h): that needs a
 * fast link, and neither data nor a GPU.
 */
#include "app/peer.h"
#include "app/run_file.h"
#include "app/together.h"
#include "averaging/roster.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "core/mem.h"
#include "trainer/helper.h"
#include "trainer/settings.h"

#include <stdio.h>
#include <string.h>

#define REFRESH_US HTH_US_PER_S

struct node_verb {
    struct hth_cli_net net;
    struct hth_cli_log log;
    const char *run_path; /* NULL: none was given */
    bool reduces;
    double up_mbit;

    struct hth_runfile *run;
    struct hth_peer peer;
    struct hth_announcer *announcer;
    struct hth_together together;
    struct hth_helper *helper;
    struct hth_timer *timer;
    uint32_t trainers;                /* as last printed */
    struct hth_other_settings others; /* as last printed */
    bool helped;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_REDUCE = 0x3300, KEY_UP };

static const struct argp_option options[] = {
    {"run", 'r', "FILE", 0, "The run file, which names the run and is given to others", 0},
    {"reduce", KEY_REDUCE, NULL, 0,
     "Also compute averages for the run's trainers; without --run it asks the peers of the "
     "--invite's run for the file",
     0},
    {"up", KEY_UP, "MBIT", 0,
     "Upload bandwidth in Mbit/s: sets its share of an average (default: not known)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct node_verb *n = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &n->net;
        state->child_inputs[1] = &n->log;
        break;
    case 'r':
        n->run_path = arg;
        break;
    case KEY_REDUCE:
        n->reduces = true;
        break;
    case KEY_UP:
        n->up_mbit = (double)hth_cli_number(state, "--up", arg, 1, 1000000);
        break;
    case ARGP_KEY_END:
        if (n->up_mbit > 0 && !n->reduces)
            argp_error(state, "--up sets a helper's share of an average: add --reduce");
        if (n->reduces || n->net.own)
            hth_run_file_need(state, n->run_path, &n->net);
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
    .doc = "Help peers find each other, as any peer does. With --reduce, also compute averages for "
           "a run's trainers: that needs a fast link, and neither data nor a GPU.",
};

/* ---- reducing ------------------------------------------------------------------------------ */

/* Prints changes, so that the owner of the machine sees whether it helps. */
static void on_timer(void *arg)
{
    struct node_verb *n = arg;
    struct hth_averager_stats s;
    struct hth_other_settings others;
    uint32_t trainers = hth_roster_population(n->together.avg.roster, NULL);
    hth_helper_rounds(n->helper, &s);
    hth_settings_others(n->together.avg.roster, &others);
    if (trainers != n->trainers)
        hth_say_note("%u trainer%s of run '%s'%s", trainers, trainers == 1 ? "" : "s", n->peer.name,
                     trainers < 2 ? ": there is nothing to average" : "");
    if (others.trainers > 0 && strcmp(others.differ, n->others.differ) != 0)
        hth_say_note("trainers of run '%s' with another %s: %u; this helper can't reduce for them: "
                     "compare run files and flags",
                     n->peer.name, others.differ, others.trainers);
    n->others = others;
    if (s.rounds > 0 && !n->helped)
        hth_say_note("reduced its share of a first average");
    n->trainers = trainers;
    n->helped = s.rounds > 0;
    hth_timer_set(n->peer.env, n->timer, REFRESH_US);
}

static void on_joined(void *arg)
{
    struct node_verb *n = arg;
    if (n->helper != NULL)
        hth_together_join(&n->together);
}

static enum hth_err open_helper(struct node_verb *n)
{
    struct hth_helper_opts opts = {.model = HTH_MODEL_OPTS_INIT, .share = HTH_SHARE_OPTS_INIT};
    hth_config_model(n->run, &opts.model);
    hth_config_optim(&n->run->optimizer, &opts.optim);
    HTH_TRY(
        hth_together_open(&n->together, &n->peer, &n->run->averaging, HTH_AVG_HELPER, n->up_mbit));
    hth_together_share(&n->together, &n->run->averaging, &opts.share);
    opts.averager = &n->together.avg.averager;
    opts.rpc = n->peer.rpc;
    HTH_TRY(hth_helper_new(n->peer.env, &opts, &n->helper));
    n->together.helper = n->helper;
    n->timer = hth_timer_new(n->peer.env, on_timer, n);
    n->trainers = UINT32_MAX;
    hth_timer_set(n->peer.env, n->timer, REFRESH_US);
    return HTH_OK;
}

static int load_run(struct node_verb *n)
{
    if (n->run_path == NULL && !n->reduces)
        return HTH_EXIT_OK;
    int code = hth_run_file_open(n->run_path, &n->net, &n->log, &n->run);
    if (code != HTH_EXIT_OK || !n->reduces || n->run->averaging.mode != HTH_RUN_OFF)
        return code;
    hth_cli_say_error("run '%s': averaging.mode is off, so there is nothing to reduce",
                      n->run->run);
    return HTH_EXIT_CONFIG;
}

/* ---- life ---------------------------------------------------------------------------------- */

static void withdrawn(void *arg)
{
    struct node_verb *n = arg;
    hth_peer_stop(&n->peer, HTH_EXIT_OK);
}

static void left(void *arg)
{
    struct node_verb *n = arg;
    if (n->announcer != NULL)
        hth_announcer_withdraw(n->announcer, withdrawn, n);
    else
        withdrawn(n);
}

static void on_drain(void *arg)
{
    struct node_verb *n = arg;
    if (n->helper != NULL)
        hth_helper_quiesce(n->helper);
    hth_together_leave(&n->together, left, n);
}

static char *status_json(void *arg)
{
    const struct node_verb *n = arg;
    return n->helper == NULL ? hth_metrics_json(n->peer.env->metrics)
                             : hth_together_page(&n->together, n->peer.env->metrics, NULL);
}

static void announce(struct node_verb *n)
{
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    opts.network = n->peer.network;
    opts.role = HTH_ROLE_NODE;
    opts.info.addr[0] = n->peer.announce;
    opts.info.addr_count = 1;
    snprintf(opts.info.version, sizeof(opts.info.version), "%s", HTH_VERSION);
    enum hth_err err = hth_announcer_new(n->peer.env, n->peer.dht, &opts, &n->announcer);
    if (err != HTH_OK)
        hth_cli_say_error("beacon: %s", hth_err_text(err));
}

static int run_node(struct node_verb *n)
{
    const struct hth_peer_opts peer_opts = {
        .verb = "node",
        .net = &n->net,
        .log = &n->log,
        .run = n->run,
        .roles = n->reduces ? HTH_MAY_REDUCE : 0,
        .rpc_listens = true,
        .may_be_first = true,
    };
    int code = hth_peer_open(&peer_opts, &n->peer);
    if (code != HTH_EXIT_OK)
        return code;
    n->peer.on_joined = on_joined;
    n->peer.on_drain = on_drain;
    n->peer.status_json = status_json;
    n->peer.arg = n;
    if (n->peer.network[0] != '\0')
        announce(n);
    enum hth_err err = n->reduces ? open_helper(n) : HTH_OK;
    if (err != HTH_OK)
        hth_cli_say_error("can't reduce for run '%s': %s", n->run->run, hth_err_text(err));
    code = err == HTH_OK ? hth_peer_run(&n->peer) : hth_exit_of(err);
    hth_peer_jobs_end(&n->peer);
    n->together.helper = NULL;
    hth_helper_free(n->helper);
    hth_together_close(&n->together);
    if (n->timer != NULL)
        hth_timer_free(n->peer.env, n->timer);
    hth_announcer_free(n->announcer);
    hth_peer_close(&n->peer);
    return code;
}

int hth_verb_node(int argc, char **argv)
{
    struct node_verb n = {.run = NULL};
    if (argp_parse(&argp, argc, argv, 0, NULL, &n) != 0)
        return HTH_EXIT_USAGE;
    int code = load_run(&n);
    if (code == HTH_EXIT_OK)
        code = run_node(&n);
    hth_runfile_free(n.run);
    return code;
}
