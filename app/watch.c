/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c: hearth watch: shows a run (monitor/monitor.h) on the terminal, new every period: the
 * loss, who takes part, which experts are served, what happened (monitor/screen.h).
 *
 * Where standard output is no terminal, a line is printed every period.
 */
#include "app/local.h"
#include "app/peer.h"
#include "app/terminal.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "core/mem.h"
#include "monitor/monitor.h"
#include "monitor/screen.h"

#include <stdio.h>
#include <string.h>

/* Keys and a new size are looked for so often: quicker than people notice. */
#define LOOK_US (50 * HTH_US_PER_MS)

struct watch {
    struct hth_cli_net net;
    struct hth_cli_log log;
    const char *run_path;

    struct hth_runfile *run;
    struct hth_beacon_layer layers[HTH_DIR_LAYERS_MAX]; /* of the run file */
    struct hth_peer peer;
    struct hth_monitor *monitor;
    struct hth_timer *timer; /* NULL: lines */
    struct hth_screen screen;
    json_t *shown; /* run.json */
};

/* ---- flags --------------------------------------------------------------------------------- */

static const struct argp_option options[] = {
    {"run", 'r', "FILE", 0, "The run file, which names the run and its grids (default: ask)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct watch *w = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &w->net;
        state->child_inputs[1] = &w->log;
        break;
    case 'r':
        w->run_path = arg;
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
    .doc = "Watch a run on this terminal: the loss, the peers, the experts that are served, what "
           "happened. The key ? lists the others, q ends. Into a file or a pipe it prints a line "
           "every 10 s. NO_COLOR in the environment turns colours off. Without --join it asks the "
           "hearth processes of this machine.",
};

/* ---- showing ------------------------------------------------------------------------------- */

static void draw(struct watch *w)
{
    char *frame = hth_screen_frame(w->shown, &w->screen);
    hth_terminal_show(frame);
    hth_free(frame);
}

static void on_new(void *arg)
{
    struct watch *w = arg;
    struct hth_run_now now;
    hth_monitor_now(w->monitor, &now);
    json_decref(w->shown);
    w->shown = hth_run_json(&now, true);
    if (w->timer != NULL) {
        draw(w);
    } else if (now.view != NULL) {
        char *line = hth_screen_line(w->shown);
        hth_say("%s", line);
        hth_free(line);
        if (ferror(stdout) != 0) /* nobody reads any more */
            hth_peer_stop(&w->peer, HTH_EXIT_OK);
    }
}

/* Follows the keys and the terminal's size. */
static void look(void *arg)
{
    struct watch *w = arg;
    unsigned columns, rows;
    bool changed = hth_terminal_size(&columns, &rows) &&
                   (columns != w->screen.columns || rows != w->screen.rows);
    char key;
    bool escape, goes_on = true;
    if (changed) {
        w->screen.columns = columns;
        w->screen.rows = rows;
    }
    while (goes_on && hth_terminal_key(&key, &escape)) {
        goes_on = hth_screen_key(&w->screen, key, escape);
        changed = true;
    }
    if (!goes_on) {
        hth_peer_stop(&w->peer, HTH_EXIT_OK);
        return;
    }
    if (changed)
        draw(w);
    hth_timer_set(w->peer.env, w->timer, LOOK_US);
}

/* ---- life ---------------------------------------------------------------------------------- */

/* False: the terminal is too small, and its owner was told. */
static bool find_screen(struct watch *w)
{
    struct hth_screen *s = &w->screen;
    if (!hth_terminal_there())
        return true;
    if (!hth_terminal_size(&s->columns, &s->rows)) {
        s->columns = 80;
        s->rows = 24;
    }
    s->color = hth_terminal_colors();
    s->utf8 = hth_terminal_utf8();
    if (s->columns >= HTH_SCREEN_COLUMNS_MIN && s->rows >= HTH_SCREEN_ROWS_MIN)
        return true;
    hth_cli_say_error("this terminal has %u columns and %u rows, and %d and %d are needed; "
                      "`hearth watch | cat` prints lines",
                      s->columns, s->rows, HTH_SCREEN_COLUMNS_MIN, HTH_SCREEN_ROWS_MIN);
    return false;
}

static enum hth_err build(struct watch *w)
{
    struct hth_monitor_opts opts = HTH_MONITOR_OPTS_INIT;
    for (uint32_t l = 0; w->run != NULL && l < w->run->model.layers; l++) {
        struct hth_beacon_layer *layer = &w->layers[opts.layer_count++];
        layer->shape = hth_config_shape(w->run);
        HTH_TRY(hth_config_grid(w->run, l, &layer->grid));
    }
    opts.census = w->peer.census;
    opts.network = w->peer.network[0] != '\0' ? w->peer.network : NULL;
    opts.layers = opts.layer_count > 0 ? w->layers : NULL;
    opts.version = HTH_VERSION;
    opts.join_command = "";
    opts.on_new = on_new;
    opts.arg = w;
    HTH_TRY(hth_monitor_new(w->peer.env, w->peer.dht, &opts, &w->monitor));
    if (w->screen.columns > 0) {
        w->timer = hth_timer_new(w->peer.env, look, w);
        hth_terminal_begin();
        hth_timer_set(w->peer.env, w->timer, LOOK_US);
    }
    on_new(w); /* something to see from the first moment */
    return HTH_OK;
}

static void on_drain(void *arg)
{
    struct watch *w = arg;
    hth_peer_stop(&w->peer, HTH_EXIT_OK);
}

static int watch(struct watch *w)
{
    struct hth_gather_own own[HTH_LOCAL_MAX];
    struct hth_addr also[HTH_LOCAL_MAX];
    struct hth_peer_opts opts = {
        .verb = "watch",
        .net = &w->net,
        .log = &w->log,
        .network = w->net.network != NULL || w->run == NULL ? w->net.network : w->run->run,
        .dials_only = true,
        .quiet = true,
        .ephemeral = true,
        .also = also,
    };
    size_t count = w->net.join_count == 0 ? hth_local_find(w->net.dir, own) : 0;
    for (; opts.also_count < count; opts.also_count++)
        also[opts.also_count] = own[opts.also_count].addr;
    int code = hth_peer_open(&opts, &w->peer);
    if (code != HTH_EXIT_OK)
        return code;
    w->peer.on_drain = on_drain;
    w->peer.arg = w;
    enum hth_err err = build(w);
    code = err == HTH_OK ? hth_peer_run(&w->peer) : hth_exit_of(err);
    hth_terminal_end();
    if (err != HTH_OK)
        hth_cli_say_error("watch: %s", hth_err_text(err));
    hth_peer_jobs_end(&w->peer);
    hth_timer_free(w->peer.env, w->timer);
    hth_monitor_free(w->monitor);
    hth_peer_close(&w->peer);
    json_decref(w->shown);
    return code;
}

int hth_verb_watch(int argc, char **argv)
{
    struct watch w = {.run = NULL};
    if (argp_parse(&argp, argc, argv, 0, NULL, &w) != 0)
        return HTH_EXIT_USAGE;
    if (!find_screen(&w))
        return HTH_EXIT_FAILURE;
    enum hth_err err = w.run_path != NULL ? hth_config_load(w.run_path, &w.run) : HTH_OK;
    int code = err == HTH_OK ? watch(&w) : hth_exit_of(err == HTH_E_NO_FILE ? HTH_E_CONFIG : err);
    hth_runfile_free(w.run);
    return code;
}
