/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.c: hearth watch: shows a run (monitor/monitor.h) on the terminal, new every period: the
 * loss, who takes part, which experts are served, what happened (monitor/screen.h).
 *
 * Where standard output is no terminal, a line is printed every period.
 */
#include "app/onlooker.h"
#include "app/terminal.h"
#include "cli/cli.h"
#include "core/mem.h"
#include "monitor/monitor.h"
#include "monitor/screen.h"

#include <stdio.h>
#include <string.h>

/* Keys and a new size are looked for so often: quicker than people notice. */
#define LOOK_US (50 * HTH_US_PER_MS)

struct watch {
    struct hth_onlooker at;
    struct hth_monitor *monitor;
    struct hth_timer *timer; /* NULL: lines */
    struct hth_screen screen;
    json_t *shown; /* run.json */
};

/* ---- flags --------------------------------------------------------------------------------- */

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct watch *w = state->input;
    (void)arg;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = &w->at;
    return 0;
}

static const struct argp_child children[] = {{&hth_onlooker_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
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
            hth_peer_stop(&w->at.peer, HTH_EXIT_OK);
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
        hth_peer_stop(&w->at.peer, HTH_EXIT_OK);
        return;
    }
    if (changed)
        draw(w);
    hth_timer_set(w->at.peer.env, w->timer, LOOK_US);
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
    const struct hth_monitor_opts opts = {.census = w->at.peer.census,
                                          .admission = hth_admit_rpc(&w->at.peer.admit),
                                          .network = w->at.network,
                                          .name = w->at.name,
                                          .layers = w->at.layers,
                                          .layer_count = w->at.layer_count,
                                          .version = HTH_VERSION,
                                          .join_command = "",
                                          .join_ask = "",
                                          .on_new = on_new,
                                          .arg = w};
    HTH_TRY(hth_monitor_new(w->at.peer.env, w->at.peer.dht, &opts, &w->monitor));
    if (w->screen.columns > 0) {
        w->timer = hth_timer_new(w->at.peer.env, look, w);
        hth_terminal_begin();
        hth_timer_set(w->at.peer.env, w->timer, LOOK_US);
    }
    on_new(w); /* something to see from the first moment */
    return HTH_OK;
}

static void on_drain(void *arg)
{
    struct watch *w = arg;
    hth_peer_stop(&w->at.peer, HTH_EXIT_OK);
}

static int watch(struct watch *w)
{
    w->at.peer.on_drain = on_drain;
    w->at.peer.arg = w;
    enum hth_err err = build(w);
    int code = err == HTH_OK ? hth_peer_run(&w->at.peer) : hth_exit_of(err);
    hth_terminal_end();
    if (err != HTH_OK)
        hth_cli_say_error("watch: %s", hth_err_text(err));
    hth_peer_jobs_end(&w->at.peer);
    hth_timer_free(w->at.peer.env, w->timer);
    hth_monitor_free(w->monitor);
    json_decref(w->shown);
    return code;
}

int hth_verb_watch(int argc, char **argv)
{
    static const struct hth_peer_opts opts = {
        .verb = "watch", .dials_only = true, .quiet = true, .ephemeral = true};
    struct watch w = {.monitor = NULL};
    if (argp_parse(&argp, argc, argv, 0, NULL, &w) != 0)
        return HTH_EXIT_USAGE;
    if (!find_screen(&w))
        return HTH_EXIT_FAILURE;
    int code = hth_onlooker_open(&w.at, &opts);
    if (code == HTH_EXIT_OK)
        code = watch(&w);
    hth_onlooker_close(&w.at);
    return code;
}
