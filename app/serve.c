/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c: hearth serve: hosts experts of a run.
 *
 *   start: key, loop, rpc, DHT
 *          -> the keeper of places (experts/places.h) hosts the experts of --experts PATTERN, or
 *             N at free places; it moves on, fills holes and announces until the end
 *   end:   goodbye records -> server drains and saves -> rpc drains -> exit
 */
#include "app/back.h"
#include "app/news.h"
#include "app/peer.h"
#include "app/run_file.h"
#include "benchmarks/kernels/bench.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "cli/device.h"
#include "core/mem.h"
#include "dht/announce.h"
#include "experts/places.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define SPECS_MAX      64
#define LOAD_PERIOD_US (2 * HTH_US_PER_S)
#define DRAIN_RPC_US   (5 * HTH_US_PER_S)
#define EXPERTS_DIR    "%s/experts"
#define FILE_SUFFIX    ".safetensors"
#define RECENT_S       60 /* as long as records live */

struct serve {
    struct hth_cli_net net;
    struct hth_cli_log log;
    const char *run_path;
    const char *specs[SPECS_MAX]; /* --experts PATTERN */
    size_t spec_count;
    uint32_t want; /* --experts N */
    bool or_quit;  /* end when no place is free */
    struct hth_device_flags device;
    struct hth_back_flags back;

    struct hth_runfile *run;
    struct hth_device_set cards; /* without a usable card, the CPU */
    struct hth_peer peer;
    struct hth_server *server;
    struct hth_announcer *announcer;
    struct hth_places *places;
    struct hth_timer *load_timer;
    uint32_t added;        /* to the server, for the next device in rotation */
    uint32_t said, lacked; /* places served and missing, as last printed */
    bool has_said;
    struct hth_news news;
    struct hth_metric *m_experts, *m_trainers, *m_saved;
    float rows_per_s;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_OR_QUIT = 0x5000 };

static const struct argp_option options[] = {
    {"run", 'r', "FILE", 0, "The run file (default: asks the peers of the --invite's run)", 0},
    {"experts", 'e', "N|PATTERN", 0,
     "Host N experts at free places of the grid, or the experts of a pattern such as "
     "'ffn0.[0:4].[0:16]' (repeatable)",
     0},
    {"or-quit", KEY_OR_QUIT, NULL, 0,
     "End with code 75 when no place is free; without it this host waits as a spare", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct serve *s = state->input;
    struct hth_pattern pattern;
    uint64_t n;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &s->net;
        state->child_inputs[1] = &s->log;
        state->child_inputs[2] = &s->device;
        state->child_inputs[3] = &s->back;
        return 0;
    case 'r':
        s->run_path = arg;
        return 0;
    case 'e':
        if (hth_cli_parse_u64(arg, 1, HTH_SERVER_EXPERTS_MAX, &n) == HTH_OK)
            s->want = (uint32_t)n;
        else if (hth_pattern_parse(arg, strlen(arg), &pattern) != HTH_OK)
            argp_error(state,
                       "--experts '%s': expected a number from 1 to %d, such as 8, or a pattern, "
                       "such as 'ffn0.[0:4].3'",
                       arg, HTH_SERVER_EXPERTS_MAX);
        else if (s->spec_count < SPECS_MAX)
            s->specs[s->spec_count++] = arg;
        else
            argp_error(state, "--experts: at most %d patterns", SPECS_MAX);
        return 0;
    case KEY_OR_QUIT:
        s->or_quit = true;
        return 0;
    case ARGP_KEY_END:
        hth_run_file_need(state, s->run_path, &s->net);
        if (s->want == 0 && s->spec_count == 0)
            argp_error(state, "--experts N or --experts PATTERN is required");
        if (s->want > 0 && s->spec_count > 0)
            argp_error(state, "--experts takes either one number or patterns, not both");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&hth_cli_net_argp, 0, NULL, 0},
                                             {&hth_cli_log_argp, 0, NULL, 0},
                                             {&hth_device_argp, 0, NULL, 0},
                                             {&hth_back_argp, 0, NULL, 0},
                                             {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .children = children,
    .doc = "Host experts for a run: trainers find them and send them rows.",
};

/* ---- what this host serves ----------------------------------------------------------------- */

/* Prints what changed. A host that hosts nothing of what its owner named ends; so does one without
 * a place that was told to. */
static void say_places(void *arg)
{
    struct serve *s = arg;
    struct hth_places_stats now;
    hth_places_stats(s->places, &now);
    uint32_t lacks = now.looked && now.loading == 0 ? now.want - now.served : 0;
    if (now.loading > 0 || (s->has_said && s->said == now.served && s->lacked == lacks))
        return;
    if (now.served == 0 && now.failed > 0) {
        hth_cli_say_error("none of %u experts could be loaded; the lines above say why",
                          now.failed);
        hth_peer_stop(&s->peer, HTH_EXIT_FAILURE);
    } else if (now.served > 0) {
        char more[48] = "";
        if (lacks > 0)
            snprintf(more, sizeof(more), "; %u more when places fall free", lacks);
        hth_say("serving %u experts (%u from checkpoints)%s", now.served, now.restored, more);
    } else if (s->or_quit) {
        hth_cli_say_error("every place of the grid is taken; --experts PATTERN hosts a second "
                          "replica of some experts, which learns by itself");
        hth_peer_stop(&s->peer, HTH_EXIT_AGAIN);
    } else {
        hth_say("spare: every place of the grid is taken; this host takes the first that falls "
                "free (--or-quit ends instead)");
    }
    s->has_said = true;
    s->said = now.served;
    s->lacked = lacks;
}

/* The fault of an expert's file, in words for its owner; NULL: the file is not the cause. */
static const char *file_trouble(enum hth_err err)
{
    switch (err) {
    case HTH_E_WRONG_RUN:
        return "it belongs to another expert or run";
    case HTH_E_BAD_SHAPE:
        return "its kind or size differs from the run file's experts";
    case HTH_E_CONFIG:
        return "its optimizer differs from the run file's";
    case HTH_E_CORRUPT:
    case HTH_E_NOT_FINITE:
    case HTH_E_RANGE:
    case HTH_E_TOO_LARGE:
    case HTH_E_PERMISSION:
    case HTH_E_IO:
        return hth_err_text(err);
    default:
        return NULL;
    }
}

static void say_failed(const struct serve *s, const struct hth_uid *uid, enum hth_err err)
{
    char text[HTH_UID_TEXT_MAX];
    const char *trouble = file_trouble(err);
    if (trouble != NULL)
        hth_cli_say_error("expert %s is not hosted: " EXPERTS_DIR
                          "/%s.safetensors: %s; the file is left as it is: put a good copy in its "
                          "place, or move it away to start this expert from its seed",
                          hth_uid_text(uid, text), s->peer.dir, text, trouble);
    else
        hth_cli_say_error("expert %s is not hosted: %s", hth_uid_text(uid, text),
                          hth_err_text(err));
}

static void on_expert(void *arg, const struct hth_uid *uid, enum hth_err err, bool restored)
{
    struct serve *s = arg;
    if (err != HTH_OK)
        say_failed(s, uid, err);
    hth_places_loaded(s->places, uid, err, restored);
}

/* ---- saying how it goes ---------------------------------------------------------------------- */

static void say_news(struct serve *s,
                     const char *(*tell)(struct hth_news *, const struct hth_news_now *, char *))
{
    char text[HTH_NEWS_TEXT_MAX], address[HTH_ADDR_TEXT_MAX];
    struct hth_news_now now = {.now_us = hth_now_us(s->peer.env),
                               .wall_us = hth_wall_us(s->peer.env),
                               .address = hth_addr_text(&s->peer.announce, address),
                               .unreachable = s->peer.reachable == HTH_REACH_NO};
    struct hth_rpc_stats moved;
    hth_server_stats(s->server, &now.stats);
    hth_rpc_stats(s->peer.rpc, &moved);
    now.bytes = moved.bytes_in + moved.bytes_out;
    const char *said = tell(&s->news, &now, text);
    if (said != NULL)
        hth_say("%s", said);
}

static void refresh(void *arg)
{
    struct serve *s = arg;
    struct hth_server_stats stats;
    hth_server_stats(s->server, &stats);
    hth_metric_set(s->m_experts, s->said);
    hth_metric_set(s->m_trainers, stats.callers_now);
    hth_metric_set(s->m_saved, (double)stats.saved_us / 1e6);
}

/* The coarsest type in use. */
static enum hth_compute compute_of(const struct hth_device_set *cards)
{
    enum hth_compute coarsest = HTH_COMPUTE_FP32;
    for (size_t i = 0; i < cards->count; i++) {
        enum hth_matmul type = hth_backend_compute(cards->backend[i]);
        if (type == HTH_MATMUL_BF16)
            coarsest = HTH_COMPUTE_BF16;
        else if (type == HTH_MATMUL_TF32 && coarsest == HTH_COMPUTE_FP32)
            coarsest = HTH_COMPUTE_TF32;
    }
    return coarsest;
}

static void tell(void *arg, struct hth_about *out)
{
    struct serve *s = arg;
    struct hth_server_stats stats;
    hth_server_stats(s->server, &stats);
    out->rows = stats.rows_forward + stats.rows_backward;
    out->trainers = stats.callers_now;
    out->compute = (uint8_t)compute_of(&s->cards);
    out->queue_ms =
        (uint32_t)HTH_MIN(hth_server_queue_us(s->server) / HTH_US_PER_MS, INT64_C(1) << 30);
    out->rows_per_s = (uint32_t)s->rows_per_s;
    out->unsaved_since_us = stats.unsaved_since_us;
}

/* Why no trainer can work with this host, or why its work may be lost. */
static char *trouble(void *arg)
{
    struct serve *s = arg;
    struct hth_server_stats stats;
    char span[16];
    hth_server_stats(s->server, &stats);
    if (s->said == 0)
        return hth_strdup(s->has_said ? "a spare: no place is free" : "no expert is served yet");
    if (stats.unsaved_since_us == 0)
        return NULL;
    return hth_asprintf("experts can't be saved for %s: the log says why",
                        hth_cli_span_text(hth_wall_us(s->peer.env) - stats.unsaved_since_us, span));
}

static void on_load_timer(void *arg)
{
    struct serve *s = arg;
    int64_t queue_ms = hth_server_queue_us(s->server) / HTH_US_PER_MS;
    struct hth_server_stats stats;
    hth_server_stats(s->server, &stats);
    if (stats.us_per_row > 0)
        s->rows_per_s = (float)(1e6 / stats.us_per_row);
    hth_announcer_set_load(s->announcer, (uint32_t)HTH_MIN(queue_ms, INT64_C(1) << 30),
                           s->rows_per_s);
    if (s->said > 0)
        say_news(s, hth_news_turn);
    hth_timer_set(s->peer.env, s->load_timer, LOAD_PERIOD_US);
}

/* ---- choosing experts ---------------------------------------------------------------------- */

static void expert_opts(void *arg, const struct hth_uid *uid, struct hth_expert_opts *opts)
{
    struct serve *s = arg;
    (void)uid;
    hth_config_expert(s->run, opts);
    opts->backend = s->cards.backend[s->added++ % s->cards.count]; /* round robin */
}

/* Finds the layer of a pattern; prints an error if the run has no such places. */
static enum hth_err find_pattern(const struct hth_runfile *run, const char *text,
                                 struct hth_pattern *out)
{
    enum hth_err err = hth_pattern_parse(text, strlen(text), out);
    if (err != HTH_OK)
        return err;
    for (uint32_t l = 0; l < hth_config_grids(run); l++) {
        struct hth_grid grid;
        HTH_TRY(hth_config_grid(run, l, &grid));
        if (strcmp(grid.name, out->name) != 0)
            continue;
        for (uint32_t i = 0; i < hth_pattern_count(out); i++) {
            char grid_text[HTH_UID_TEXT_MAX];
            struct hth_uid uid;
            uint32_t index;
            hth_pattern_at(out, i, &uid);
            if (hth_grid_find(&grid, &uid, &index) == HTH_OK)
                continue;
            hth_cli_say_error("--experts '%s' %s the run's grid %s", text,
                              uid.ncoord == grid.ndim ? "reaches beyond"
                                                      : "has not as many axes as",
                              hth_grid_text(&grid, grid_text));
            return HTH_E_USAGE;
        }
        return HTH_OK;
    }
    hth_cli_say_error("--experts '%s': the run has %u layers, named " HTH_LAYER_PREFIX
                      "0 to " HTH_LAYER_PREFIX "%u",
                      text, hth_config_grids(run), hth_config_grids(run) - 1);
    return HTH_E_USAGE;
}

/* Run before a key is made or a port opened. */
static enum hth_err check_patterns(const struct serve *s)
{
    struct hth_pattern pattern;
    if (hth_config_grids(s->run) == 0) {
        hth_cli_say_error("run '%s': model.expert is 'none', so this run has no experts to serve; "
                          "join it with hearth train",
                          s->run->run);
        return HTH_E_CONFIG;
    }
    for (size_t i = 0; i < s->spec_count; i++)
        HTH_TRY(find_pattern(s->run, s->specs[i], &pattern));
    return HTH_OK;
}

static enum hth_err add_pattern(struct serve *s, const char *text)
{
    struct hth_pattern pattern;
    struct hth_uid uid;
    HTH_TRY(find_pattern(s->run, text, &pattern));
    for (uint32_t i = 0; i < hth_pattern_count(&pattern); i++) {
        hth_pattern_at(&pattern, i, &uid);
        enum hth_err err = hth_places_pin(s->places, &uid);
        if (err != HTH_OK) {
            hth_cli_say_error("--experts '%s': %s", text, hth_err_text(err));
            return err;
        }
    }
    return HTH_OK;
}

/* Tells the keeper which experts have a file here. Blocks for a moment, at the start. */
static void add_files(struct serve *s)
{
    char *path = hth_asprintf(EXPERTS_DIR, s->peer.dir);
    const size_t suffix = strlen(FILE_SUFFIX);
    DIR *dir = opendir(path);
    const struct dirent *entry;
    time_t now = time(NULL);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        size_t len = strlen(entry->d_name);
        struct hth_uid uid;
        struct stat st;
        if (len > suffix && strcmp(entry->d_name + len - suffix, FILE_SUFFIX) == 0 &&
            hth_uid_parse(entry->d_name, len - suffix, &uid) == HTH_OK)
            hth_places_had(s->places, &uid,
                           fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 &&
                               now - st.st_mtime < RECENT_S);
    }
    if (dir != NULL)
        closedir(dir);
    hth_free(path);
}

static enum hth_err make_places(struct serve *s)
{
    uint32_t layers = hth_config_grids(s->run), places = 0;
    struct hth_grid *grids = hth_new_array(struct hth_grid, layers);
    struct hth_places_opts opts = {.network = s->peer.network,
                                   .grids = grids,
                                   .layers = layers,
                                   .shape = hth_config_shape(s->run),
                                   .rpc = s->peer.rpc,
                                   .server = s->server,
                                   .announcer = s->announcer,
                                   .expert = expert_opts,
                                   .on_change = say_places,
                                   .arg = s};
    enum hth_err err = HTH_OK;
    for (uint32_t l = 0; l < layers && err == HTH_OK; l++) {
        err = hth_config_grid(s->run, l, &grids[l]);
        places += err == HTH_OK ? hth_grid_size(&grids[l]) : 0;
    }
    if (s->want > places)
        hth_say("--experts %u: the run has %u in all", s->want, places);
    opts.want = HTH_MIN(s->want, places);
    if (err == HTH_OK)
        err = hth_places_new(s->peer.env, s->peer.dht, &opts, &s->places);
    hth_free(grids);
    return err;
}

static void on_joined(void *arg)
{
    struct serve *s = arg;
    hth_places_start(s->places);
}

/* ---- the end ------------------------------------------------------------------------------- */

static void rpc_drained(void *arg)
{
    struct serve *s = arg;
    struct hth_server_stats stats;
    hth_server_stats(s->server, &stats);
    say_news(s, hth_news_end);
    if (stats.experts_unsaved > 0)
        hth_cli_say_error("%u of %u experts could not be saved: their training since the last "
                          "checkpoint is lost",
                          stats.experts_unsaved, stats.experts);
    hth_peer_stop(&s->peer, stats.experts_unsaved > 0 ? HTH_EXIT_FAILURE : HTH_EXIT_OK);
}

static void server_drained(void *arg)
{
    struct serve *s = arg;
    hth_rpc_drain(s->peer.rpc, DRAIN_RPC_US, rpc_drained, s);
}

static void withdrawn(void *arg)
{
    struct serve *s = arg;
    hth_server_drain(s->server, server_drained, s);
}

static void on_drain(void *arg)
{
    struct serve *s = arg;
    hth_say("draining: saying goodbye to the swarm, finishing requests, saving (Ctrl-C again quits "
            "at once)");
    hth_timer_cancel(s->peer.env, s->load_timer);
    hth_places_stop(s->places);
    hth_announcer_withdraw(s->announcer, withdrawn, s);
}

static char *status_json(void *arg)
{
    struct serve *s = arg;
    return hth_metrics_json(s->peer.env->metrics);
}

/* ---- the start ----------------------------------------------------------------------------- */

static int64_t clock_us(void *arg)
{
    struct timespec now;
    (void)arg;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * HTH_US_PER_S + now.tv_nsec / 1000;
}

/* Checks the kernels against double arithmetic and measures rows per second; takes a few ms. */
static enum hth_err self_test(struct serve *s, const struct hth_backend *backend)
{
    const struct hth_bench_options opts = {
        .backend = backend,
        .kind = HTH_BENCH_FFN_FORWARD,
        .dim = HTH_MIN(s->run->model.dim, 256u),
        .rows = 32,
        .repeats = 3,
        .clock_us = clock_us,
    };
    struct hth_bench_result result;
    enum hth_err err = hth_bench_run(&opts, &result);
    if (err != HTH_OK) {
        hth_cli_say_error("the self-test of back end '%s' failed: %s; try --backend ref",
                          hth_backend_name(backend), hth_err_text(err));
        return HTH_E_NO_DEVICE;
    }
    double scale = (double)opts.dim / s->run->model.dim;
    s->rows_per_s += (float)(result.rows_per_s * scale * scale);
    return HTH_OK;
}

static enum hth_err make_announcer(struct serve *s)
{
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    opts.network = s->peer.network;
    opts.role = HTH_ROLE_HOST;
    opts.info.addr[0] = s->peer.announce;
    opts.info.addr_count = 1;
    opts.info.compute = compute_of(&s->cards);
    opts.info.rows_per_s = s->rows_per_s;
    snprintf(opts.info.version, sizeof(opts.info.version), "%s", HTH_VERSION);
    return hth_announcer_new(s->peer.env, s->peer.dht, &opts, &s->announcer);
}

static enum hth_err make_server(struct serve *s)
{
    struct hth_server_opts opts;
    char *dir = hth_asprintf(EXPERTS_DIR, s->peer.dir);
    hth_config_server(s->run, &opts);
    opts.checkpoint_dir = dir;
    opts.checkpoint_period_us = 5 * HTH_US_PER_S;
    opts.disk_bytes_max = s->back.disk_bytes;
    opts.on_expert = on_expert;
    opts.arg = s;
    enum hth_err err = hth_server_new(s->peer.env, s->peer.rpc, &opts, &s->server);
    hth_free(dir);
    return err;
}

static enum hth_err build(struct serve *s)
{
    struct hth_env *env = s->peer.env;
    if (s->run->experts.optimizer.clip == 0)
        HTH_LOG(env, HTH_WARN, HTH_SUB_APP,
                "the run file sets experts.optimizer.clip to 0: one large gradient from a stranger "
                "can stop these experts from learning for good; leave clip out to get 1.0");
    s->load_timer = hth_timer_new(env, on_load_timer, s);
    s->m_experts = hth_gauge(env->metrics, "hearth_experts", "Experts hosted");
    s->m_trainers =
        hth_gauge(env->metrics, "hearth_trainers", "Trainers served in the last minute");
    s->m_saved = hth_gauge(env->metrics, "hearth_checkpoint_time_seconds",
                           "Unix time of the last good checkpoint; 0: none yet");
    HTH_TRY(make_announcer(s));
    HTH_TRY(make_server(s));
    HTH_TRY(make_places(s));
    if (s->want > 0)
        add_files(s);
    for (size_t i = 0; i < s->spec_count; i++)
        HTH_TRY(add_pattern(s, s->specs[i]));
    hth_timer_set(env, s->load_timer, LOAD_PERIOD_US);
    return HTH_OK;
}

static void destroy(struct serve *s)
{
    hth_peer_jobs_end(&s->peer);
    hth_timer_free(s->peer.env, s->load_timer);
    hth_places_free(s->places);
    hth_announcer_free(s->announcer);
    hth_server_free(s->server);
    hth_peer_close(&s->peer);
}

static int run_host(struct serve *s)
{
    const struct hth_peer_opts peer_opts = {
        .verb = "serve",
        .net = &s->net,
        .log = &s->log,
        .run = s->run,
        .roles = HTH_MAY_SERVE,
        .rpc_listens = true,
        .may_be_first = true,
    };
    enum hth_err err = hth_device_choose_all(&s->device, hth_config_compute(s->run), &s->cards);
    if (err != HTH_OK)
        return HTH_EXIT_DEVICE;
    for (size_t i = 0; i < s->cards.count; i++) {
        err = self_test(s, s->cards.backend[i]);
        if (err != HTH_OK)
            return hth_exit_of(err);
    }
    int code = hth_peer_open(&peer_opts, &s->peer);
    if (code != HTH_EXIT_OK)
        return code;
    s->peer.on_joined = on_joined;
    s->peer.on_drain = on_drain;
    s->peer.status_json = status_json;
    s->peer.trouble = trouble;
    s->peer.refresh = refresh;
    s->peer.tell = tell;
    s->peer.arg = s;
    err = hth_back(&s->back, s->peer.env, s->peer.dir, false, true);
    code = hth_exit_of(err);
    if (err == HTH_OK) {
        err = build(s);
        if (err != HTH_OK && err != HTH_E_USAGE)
            hth_cli_say_error("serve: %s", hth_err_text(err));
        code = err == HTH_OK ? hth_peer_run(&s->peer) : hth_exit_of(err);
    }
    destroy(s);
    return code;
}

int hth_verb_serve(int argc, char **argv)
{
    struct serve s = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &s) != 0)
        return HTH_EXIT_USAGE;
    int code = hth_run_file_open(s.run_path, &s.net, &s.log, &s.run);
    if (code == HTH_EXIT_OK)
        code = hth_exit_of(check_patterns(&s));
    if (code == HTH_EXIT_OK)
        code = run_host(&s);
    hth_runfile_free(s.run);
    return code;
}
