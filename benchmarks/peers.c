/* SPDX-License-Identifier: Apache-2.0 */
/* peers.c: hearth bench peers: the table of cases, and their runs in turns. */
#include "benchmarks/peers.h"

#include "cli/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define RUNS     3
#define LIMIT_US (300 * HTH_US_PER_S)

static const struct hth_bench_peers_case cases[] = {
    {.name = "A1",
     .unit = "samples/s",
     .ours = &hth_bench_peers_calls,
     .module = "calls",
     .kind = "ffn",
     .d = 1024,
     .experts = 16,
     .clients = 4,
     .handlers = 2,
     .batches = 2,
     .rows = 2048,
     .backward = true},
    {.name = "A2",
     .unit = "samples/s",
     .ours = &hth_bench_peers_calls,
     .module = "calls",
     .kind = "ffn",
     .d = 1024,
     .experts = 16,
     .clients = 4,
     .handlers = 2,
     .batches = 4,
     .rows = 2048},
    {.name = "A5",
     .unit = "samples/s",
     .ours = &hth_bench_peers_calls,
     .module = "calls",
     .kind = "ffn",
     .d = 1024,
     .experts = 4,
     .clients = 8,
     .handlers = 4,
     .batches = 32,
     .rows = 32},
    {.name = "A6",
     .unit = "samples/s",
     .ours = &hth_bench_peers_calls,
     .module = "calls",
     .kind = "nop",
     .d = 1024,
     .experts = 16,
     .clients = 4,
     .handlers = 2,
     .batches = 16,
     .rows = 2048},
    {.name = "A7",
     .unit = "samples/s",
     .ours = &hth_bench_peers_calls,
     .module = "calls",
     .kind = "ffn",
     .d = 1024,
     .experts = 1,
     .clients = 64,
     .handlers = 4,
     .batches = 4,
     .rows = 1,
     .backward = true},
#ifdef HTH_BENCH_AVERAGERS
    {.name = "C",
     .unit = "s",
     .less_is_better = true,
     .ours = &hth_bench_peers_averagers,
     .module = "averaging",
     .nodes = 16,
     .width = 256,
     .group = 4,
     .rounds = 5},
#endif
    {.name = "E",
     .unit = "steps/s",
     .ours = &hth_bench_peers_layer,
     .module = "layer",
     .kind = "ffn",
     .d = 1024,
     .experts = 16,
     .hosts = 2,
     .handlers = 2,
     .rows = 64,
     .k = 4,
     .steps = 4},
    {.name = "E-nop",
     .unit = "steps/s",
     .ours = &hth_bench_peers_layer,
     .module = "layer",
     .kind = "nop",
     .d = 1024,
     .experts = 16,
     .hosts = 2,
     .handlers = 2,
     .rows = 64,
     .k = 4,
     .steps = 4},
    {.name = "beam",
     .unit = "ms",
     .less_is_better = true,
     .ours = &hth_bench_peers_beam,
     .module = "beam",
     .experts = 4096,
     .rows = 64,
     .k = 4,
     .steps = 5},
};

struct peers_args {
    struct hth_bench bench;
    struct hth_bench_peers_python python;
    int64_t limit_us;
    bool some, chosen[HTH_ARRAY_LEN(cases)]; /* some: --case was given */
};

enum { KEY_CASE = 0x5400, KEY_PYTHON, KEY_VENV, KEY_SYSTEM_TORCH, KEY_TIMEOUT };

static const struct argp_option options[] = {
    {"case", KEY_CASE, "NAME", 0,
     "A1, A2, A5, A6, A7, C, E, E-nop or beam (repeatable; default: all)", 0},
    {"venv", KEY_VENV, "DIR", 0,
     "Virtual environment with hivemind, made if it is missing (default: in ~/.cache/hearth)", 0},
    {"system-torch", KEY_SYSTEM_TORCH, NULL, 0,
     "Use Debian's python3-torch instead of PyPI's: a smaller download, an older PyTorch", 0},
    {"python", KEY_PYTHON, "PROGRAM", 0, "Use this Python, which has hivemind; make none", 0},
    {"timeout", KEY_TIMEOUT, "TIME", 0,
     "Give up on hivemind's next answer after this "
     "(default 5min)",
     0},
    {0},
};

static void choose(struct peers_args *a, const char *name, struct argp_state *state)
{
    bool found = false;
    a->some = a->some || strcasecmp(name, "all") != 0;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        bool is = strcasecmp(name, cases[i].name) == 0;
        a->chosen[i] = a->chosen[i] || is;
        found = found || is;
    }
    if (!found && strcasecmp(name, "all") != 0)
        argp_error(state, "--case '%s': expected A1, A2, A5, A6, A7, C, E, E-nop, beam or all",
                   name);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct peers_args *a = state->input;
    switch (key) {
    case KEY_CASE:
        choose(a, arg, state);
        break;
    case KEY_PYTHON:
        a->python.program = arg;
        break;
    case KEY_VENV:
        a->python.folder = arg;
        break;
    case KEY_SYSTEM_TORCH:
        a->python.system_torch = true;
        break;
    case KEY_TIMEOUT:
        if (hth_cli_parse_time(arg, &a->limit_us) != HTH_OK || a->limit_us <= 0)
            argp_error(state, "--timeout '%s': expected a time such as 90s or 10m", arg);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp argp = {.options = options, .parser = parse};

/* ---- figures -------------------------------------------------------------------------------- */

struct hth_bench_peers_figure hth_bench_peers_figure(const struct hth_bench_peers_pairs *p,
                                                     bool less_is_better)
{
    struct hth_bench_samples ours = {.count = 0}, peer = ours, ratios = ours;
    for (uint32_t i = 0; i < p->count; i++) {
        hth_bench_add(&ours, p->ours[i]);
        hth_bench_add(&peer, p->peer[i]);
        hth_bench_add(&ratios, less_is_better ? p->peer[i] / p->ours[i] : p->ours[i] / p->peer[i]);
    }
    struct hth_bench_peers_figure f = {.ours = hth_bench_median(&ours),
                                       .peer = hth_bench_median(&peer),
                                       .spread = hth_bench_spread(&ratios)};
    f.ratio = less_is_better ? f.peer / f.ours : f.ours / f.peer;
    return f;
}

/* The fewest successful steps of a run, on each side. */
struct good {
    uint32_t ours, peer;
};

static void emit(struct hth_bench_peers_opts *opts, const struct hth_bench_peers_case *c,
                 const struct hth_bench_peers_pairs *pairs, const struct good *good)
{
    struct hth_bench *b = opts->bench;
    const struct hth_bench_peers_figure f = hth_bench_peers_figure(pairs, c->less_is_better);
    char cpu[128];
    json_t *row = json_object();
    hth_json_text(row, "case", c->name);
    hth_json_real(row, "ours", hth_bench_round(f.ours));
    hth_json_real(row, "peer", hth_bench_round(f.peer));
    hth_json_text(row, "unit", c->unit);
    hth_json_real(row, "ratio", hth_bench_round(f.ratio));
    hth_json_real(row, "spread", f.spread);
    json_object_set_new(row, "runs", json_integer(pairs->count));
    if (c->rounds > 0) {
        json_object_set_new(row, "ours_steps", json_integer(good->ours));
        json_object_set_new(row, "peer_steps", json_integer(good->peer));
    }
    if (b->json) { /* above a table these two are printed once */
        hth_bench_cpu(cpu, sizeof(cpu));
        hth_json_text(row, "peer_version", opts->version);
        hth_json_text(row, "cpu", cpu);
    }
    hth_bench_row_take(b, row);
}

/* One run of hearth, from nothing. Its clients' loops run only while they work, so connections that
 * stayed open through hivemind's turn would time out. */
static enum hth_err run_ours(struct hth_bench *b, const struct hth_bench_peers_case *c,
                             struct hth_bench_peers_run *out)
{
    void *state = NULL;
    enum hth_err err = c->ours->open(b, c, &state);
    if (err == HTH_OK)
        err = c->ours->run(state, out);
    c->ours->close(state);
    return err;
}

/* Runs hearth, hivemind, hearth, hivemind and so on. */
static enum hth_err take_turns(struct hth_bench_peers_opts *opts,
                               const struct hth_bench_peers_case *c,
                               struct hth_bench_peers_peer *peer)
{
    const uint32_t runs = opts->bench->repeats > 0 ? opts->bench->repeats : RUNS;
    struct hth_bench_peers_pairs pairs = {.count = 0};
    struct good good = {UINT32_MAX, UINT32_MAX};
    while (pairs.count < runs) {
        struct hth_bench_peers_run mine = {0}, theirs = {0};
        HTH_TRY(run_ours(opts->bench, c, &mine));
        HTH_TRY(hth_bench_peers_peer_run(peer, &theirs));
        fprintf(stderr, "case %s, run %u of %u: hearth %.4g, hivemind %.4g %s\n", c->name,
                pairs.count + 1, runs, mine.value, theirs.value, c->unit);
        pairs.ours[pairs.count] = mine.value;
        pairs.peer[pairs.count++] = theirs.value;
        good.ours = HTH_MIN(good.ours, mine.good);
        good.peer = HTH_MIN(good.peer, theirs.good);
    }
    emit(opts, c, &pairs, &good);
    return HTH_OK;
}

static enum hth_err measure(struct hth_bench_peers_opts *opts, const struct hth_bench_peers_case *c)
{
    struct hth_bench_peers_peer *peer = NULL;
    enum hth_err err = hth_bench_peers_peer_open(opts, c, &peer);
    if (err == HTH_OK)
        err = take_turns(opts, c, peer);
    hth_bench_peers_peer_close(peer);
    if (err != HTH_OK)
        hth_cli_say_error("case %s: %s", c->name, hth_err_text(err));
    return err;
}

int hth_bench_peers_main(int argc, char **argv)
{
    struct peers_args a = {.limit_us = LIMIT_US, .bench.wire = HTH_F32}; /* as hivemind's rows */
    struct hth_bench_peers_opts opts = {.bench = &a.bench};
    int code = hth_bench_open(&a.bench, argc, argv,
                              "The same work by hearth and by hivemind 1.1.12, in turns on this "
                              "machine. Runs count, not --budget.",
                              &argp, &a);
    if (code != HTH_EXIT_OK)
        return code;
    opts.limit_us = a.limit_us;
    enum hth_err err = hth_bench_peers_python(&a.python, &opts.python);
    bool ready = err == HTH_OK;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases) && ready; i++) {
        /* Other cases are still measured after one has failed. */
        enum hth_err one = a.some && !a.chosen[i] ? HTH_OK : measure(&opts, &cases[i]);
        err = err == HTH_OK ? one : err;
    }
    hth_free(opts.version);
    hth_free(opts.python);
    return hth_bench_finish(&a.bench, "comparing with hivemind", err);
}
