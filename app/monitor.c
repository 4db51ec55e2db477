/* SPDX-License-Identifier: Apache-2.0 */
/*
 * monitor.c: hearth monitor: watches a run (monitor/monitor.h) and shows it: on a page, in a
 * folder, to Prometheus, to TensorBoard.
 */
#include "app/onlooker.h"
#include "app/page.h"
#include "app/prompts.h"
#include "app/tensorboard.h"
#include "cli/cli.h"
#include "core/mem.h"
#include "monitor/monitor.h"
#include "monitor/publish.h"
#include "monitor/run_metrics.h"
#include "net/http.h"
#include "net/net.h"

#include <stdio.h>
#include <string.h>

/* Where the page is if nothing else is said. */
#define PAGE "127.0.0.1:8080"

struct monitor_verb {
    struct hth_onlooker at;
    const char *public_listen, *export_dir, *tensorboard_dir, *join_at, *model_dir;

    char *join_command, *history;
    bool join_complete;
    char join_ask[HTH_CERT_NAME_MAX + 16]; /* "": nobody has to be asked for an invite */
    struct hth_http *public;
    struct hth_publish *publish;
    struct hth_monitor *monitor;
    struct hth_prompts *prompts; /* NULL: no model was given */
    struct hth_tensorboard *tensorboard;
    struct hth_run_metrics metrics;
    const char *state;           /* as last printed */
    struct hth_recall_test test; /* the newest that TensorBoard has */
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_PUBLIC = 0x4800, KEY_EXPORT, KEY_TENSORBOARD, KEY_JOIN_AT, KEY_MODEL };

static const struct argp_option options[] = {
    {"public", KEY_PUBLIC, "ADDR:PORT", 0,
     "Serve the page, and nothing else, at this address to anybody (default: off)", 0},
    {"export", KEY_EXPORT, "DIR", 0,
     "Write the page and its data to this folder every 30 s, for a web server", 0},
    {"tensorboard", KEY_TENSORBOARD, "DIR", 0, "Write event files for TensorBoard", 0},
    {"join-at", KEY_JOIN_AT, "HOST:PORT", 0,
     "Name this address in the page's command to join; a peer's address is never shown by itself",
     0},
    {"model", KEY_MODEL, "DIR", 0,
     "Show drawings or sentences of the model in this folder, a trainer's --dir, for the lines of "
     "its " HTH_PROMPTS_FILE " or for eight of the data held out",
     0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct monitor_verb *m = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &m->at;
        break;
    case KEY_PUBLIC:
        hth_cli_check_host(state, "--public", arg, 0, "0.0.0.0:80");
        m->public_listen = arg;
        break;
    case KEY_EXPORT:
        hth_cli_check_folder(state, "--export", arg, "/var/www/run");
        m->export_dir = arg;
        break;
    case KEY_TENSORBOARD:
        hth_cli_check_folder(state, "--tensorboard", arg, "runs/1");
        m->tensorboard_dir = arg;
        break;
    case KEY_MODEL:
        hth_cli_check_folder(state, "--model", arg, "~/.local/state/hearth/emoji/train");
        m->model_dir = arg;
        break;
    case KEY_JOIN_AT:
        hth_cli_check_host(state, "--join-at", arg, 1, "example.org:4700");
        m->join_at = arg;
        break;
    case ARGP_KEY_END:
        if (m->at.net.status_listen == NULL && m->public_listen == NULL && m->export_dir == NULL &&
            m->tensorboard_dir == NULL)
            m->at.net.status_listen = PAGE;
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
        "Watch a run and show it on a page: loss, speed, who takes part, which experts are "
        "served. Without --model it computes nothing; the run never depends on it. Without "
        "--status, "
        "--public, --export and --tensorboard the page is at http://" PAGE "/. Without --join it "
        "asks the hearth processes of this machine.",
};

/* ---- showing ------------------------------------------------------------------------------- */

/* Prints when the run changes its state, so that the log tells the story. */
static void say_state(struct monitor_verb *m, const struct hth_run_now *now)
{
    if (m->state != NULL && strcmp(m->state, now->state) == 0)
        return;
    m->state = now->state;
    if (now->view == NULL || now->name == NULL)
        return;
    hth_say_note("run '%s' is %s: step %llu, %u trainer%s, %u host%s, %llu of %llu experts served",
                 now->name, now->state, (unsigned long long)now->view->step, now->view->trainers,
                 now->view->trainers == 1 ? "" : "s", now->view->hosts,
                 now->view->hosts == 1 ? "" : "s", (unsigned long long)now->view->served,
                 (unsigned long long)now->view->places);
}

static void write_scalars(struct monitor_verb *m, const struct hth_run_now *now)
{
    const struct hth_run_view *v = now->view;
    if (v == NULL || v->trainers == 0)
        return;
    const struct hth_tfevents_scalar run[] = {{"run/loss", v->loss},
                                              {"run/samples_per_s", v->samples_per_s},
                                              {"run/samples", (double)now->samples},
                                              {"run/trainers", v->trainers},
                                              {"run/hosts", v->hosts},
                                              {"run/experts_served", (double)v->served}};
    hth_tensorboard_add(m->tensorboard, v->step, run, HTH_ARRAY_LEN(run));
    for (uint32_t i = 0; i < now->test_count; i++) {
        const struct hth_recall_test *t = &now->test[i];
        if (t->t <= m->test.t || t->step == m->test.step)
            continue;
        m->test = *t;
        const struct hth_tfevents_scalar test[] = {
            {"test/loss", (double)t->loss},
            {"test/accuracy", (double)t->accuracy},
            {"test/bits_per_byte", (double)t->bits_per_byte}};
        hth_tensorboard_add(m->tensorboard, t->step, test, HTH_ARRAY_LEN(test));
    }
}

static void show(void *arg)
{
    struct monitor_verb *m = arg;
    struct hth_run_now now;
    hth_monitor_now(m->monitor, &now);
    now.gallery = hth_prompts_gallery(m->prompts);
    hth_publish_show(m->publish, &now);
}

static void on_new(void *arg)
{
    struct monitor_verb *m = arg;
    struct hth_run_now now;
    hth_monitor_now(m->monitor, &now);
    say_state(m, &now);
    hth_run_metrics_watch(&m->metrics, &now);
    write_scalars(m, &now);
    hth_prompts_look(m->prompts);
    show(m);
}

static char *trouble(void *arg)
{
    const struct monitor_verb *m = arg;
    struct hth_run_now now;
    hth_monitor_now(m->monitor, &now);
    if (now.trouble != NULL)
        return hth_strdup(now.trouble);
    enum hth_err err = hth_publish_err(m->publish);
    return err != HTH_OK ? hth_asprintf("can't write to %s: %s", m->export_dir, hth_err_text(err))
                         : NULL;
}

static char *status_json(void *arg)
{
    const struct monitor_verb *m = arg;
    return hth_metrics_json(m->at.peer.env->metrics);
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum hth_err open_public(struct monitor_verb *m)
{
    struct hth_addr addr;
    size_t count;
    char text[HTH_ADDR_TEXT_MAX];
    if (m->public_listen == NULL)
        return HTH_OK;
    enum hth_err err = hth_net_resolve(m->public_listen, &addr, 1, &count);
    if (err != HTH_OK) {
        hth_cli_say_unresolved("--public", m->public_listen, err);
        return HTH_E_USAGE;
    }
    err = hth_http_new_public(m->at.peer.env, &addr, &m->public);
    if (err != HTH_OK) {
        hth_cli_say_error("--public '%s': %s", m->public_listen, hth_err_text(err));
        return err;
    }
    hth_http_addr(m->public, &addr);
    hth_say("  public     http://%s/", hth_addr_text(&addr, text));
    return HTH_OK;
}

static void say_page(const struct monitor_verb *m)
{
    struct hth_addr addr;
    char text[HTH_ADDR_TEXT_MAX];
    if (m->at.peer.page == NULL)
        return;
    hth_http_addr(hth_page_http(m->at.peer.page), &addr);
    hth_say("  page       http://%s/", hth_addr_text(&addr, text));
}

/* The command that joins as a host. */
static char *join_command(struct monitor_verb *m)
{
    const char *run = m->at.run_path != NULL ? m->at.run_path : "FILE", *file = strrchr(run, '/');
    char *invite = hth_admit_join(&m->at.peer.admit, &m->at.net, m->join_ask), *command;
    if (invite != NULL) /* it has addresses, and its peers have the run file */
        command = hth_asprintf("hearth serve --experts 8 %s", invite);
    else
        command = hth_asprintf("hearth serve --run %s --join %s", file != NULL ? file + 1 : run,
                               m->join_at != NULL ? m->join_at : "ADDR:PORT");
    m->join_complete =
        invite != NULL ? m->join_ask[0] == '\0' : m->at.run_path != NULL && m->join_at != NULL;
    hth_free(invite);
    return command;
}

static enum hth_err build(struct monitor_verb *m)
{
    struct hth_monitor_opts opts = {.version = HTH_VERSION, .on_new = on_new, .arg = m};
    struct hth_publish_opts publish = {.dir = m->export_dir};
    say_page(m);
    HTH_TRY(open_public(m));
    if (m->tensorboard_dir != NULL)
        HTH_TRY(hth_tensorboard_open(m->at.peer.env, m->tensorboard_dir, &m->tensorboard));
    m->history = hth_asprintf("%s/history", m->at.peer.dir);
    m->join_command = join_command(m);
    hth_run_metrics_init(&m->metrics, m->at.peer.env->metrics, true);
    publish.http[0] = m->at.peer.page != NULL ? hth_page_http(m->at.peer.page) : NULL;
    publish.http[1] = m->public;
    m->publish = hth_publish_new(m->at.peer.env, &publish);
    opts.census = m->at.peer.census;
    opts.network = m->at.network;
    opts.name = m->at.name;
    opts.members = m->at.peer.members;
    opts.layers = m->at.layers;
    opts.layer_count = m->at.layer_count;
    opts.dir = m->history;
    opts.join_command = m->join_command;
    opts.join_complete = m->join_complete;
    opts.join_ask = m->join_ask;
    opts.admission = hth_admit_rpc(&m->at.peer.admit);
    HTH_TRY(hth_monitor_new(m->at.peer.env, m->at.peer.dht, &opts, &m->monitor));
    if (m->model_dir != NULL)
        m->prompts = hth_prompts_new(m->at.peer.env, m->model_dir, show, m);
    on_new(m); /* a page from the first moment */
    return HTH_OK;
}

static void destroy(struct monitor_verb *m)
{
    hth_peer_jobs_end(&m->at.peer);
    hth_prompts_free(m->prompts);
    hth_monitor_free(m->monitor);
    hth_publish_free(m->publish);
    hth_http_free(m->public);
    hth_tensorboard_close(m->tensorboard);
    hth_free(m->history);
    hth_free(m->join_command);
}

static void on_drain(void *arg)
{
    struct monitor_verb *m = arg;
    hth_peer_stop(&m->at.peer, HTH_EXIT_OK);
}

int hth_verb_monitor(int argc, char **argv)
{
    static const struct hth_peer_opts opts = {.verb = "monitor", .dials_only = true};
    struct monitor_verb m = {.public = NULL};
    if (argp_parse(&argp, argc, argv, 0, NULL, &m) != 0)
        return HTH_EXIT_USAGE;
    int code = hth_onlooker_open(&m.at, &opts);
    if (code == HTH_EXIT_OK) {
        m.at.peer.on_drain = on_drain;
        m.at.peer.status_json = status_json;
        m.at.peer.arg = &m;
        enum hth_err err = build(&m);
        m.at.peer.trouble = err == HTH_OK ? trouble : NULL;
        code = err == HTH_OK ? hth_peer_run(&m.at.peer) : hth_exit_of(err);
        destroy(&m);
    }
    hth_onlooker_close(&m.at);
    return code;
}
