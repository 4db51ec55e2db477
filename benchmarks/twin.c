/* SPDX-License-Identifier: Apache-2.0 */
/* twin.c: the table of twin cases and the verb's part of them. */
#include "benchmarks/twin.h"

#include "cli/json.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct args {
    struct hth_bench bench;
    const char *only;
    size_t floats;
};

/* hivemind: the best column of its measurements on two cores of a Zen 4 server
 * (docs/benchmarks.md). A: the caller count is the client count, each client is a connection of its
 * own. */
static const struct hth_bench_twin_case cases[] = {
    {.name = "A1",
     .run = hth_bench_twin_calls,
     .unit = "samples/s",
     .hivemind = 1492,
     .aim = 4,
     .kind = "ffn",
     .d = 1024,
     .experts = 16,
     .clients = 4,
     .batches = 3,
     .rows = 2048,
     .backward = true},
    {.name = "A2",
     .run = hth_bench_twin_calls,
     .unit = "samples/s",
     .hivemind = 6444,
     .aim = 3,
     .kind = "ffn",
     .d = 1024,
     .experts = 16,
     .clients = 4,
     .batches = 6,
     .rows = 2048},
    {.name = "A5",
     .run = hth_bench_twin_calls,
     .unit = "samples/s",
     .hivemind = 2650,
     .aim = 8,
     .kind = "ffn",
     .d = 1024,
     .experts = 4,
     .clients = 8,
     .batches = 64,
     .rows = 32},
    {.name = "A6",
     .run = hth_bench_twin_calls,
     .unit = "samples/s",
     .hivemind = 47919,
     .aim = 5,
     .kind = "nop",
     .d = 1024,
     .experts = 16,
     .clients = 4,
     .batches = 16,
     .rows = 2048},
    {.name = "A7",
     .run = hth_bench_twin_calls,
     .unit = "samples/s",
     .hivemind = 128,
     .aim = 50,
     .kind = "ffn",
     .d = 1024,
     .experts = 1,
     .clients = 64,
     .batches = 16,
     .rows = 1,
     .backward = true},
#ifdef HTH_BENCH_AVERAGERS
    {.name = "C",
     .run = hth_bench_twin_averagers,
     .unit = "s",
     .hivemind = 36.5,
     .aim = 20,
     .less_is_better = true,
     .floats = 2373888}, /* 3 (12 h^2 + 19 h) with h = 256 */
#endif
    {.name = "D",
     .run = hth_bench_twin_codec,
     .unit = "ms",
     .hivemind = 15.5,
     .less_is_better = true},
    {.name = "E",
     .run = hth_bench_twin_layer,
     .unit = "steps/s",
     .hivemind = 0.57,
     .aim = 15,
     .kind = "ffn",
     .d = 1024,
     .experts = 16,
     .hosts = 2,
     .rows = 64,
     .k = 4},
    {.name = "E-512",
     .run = hth_bench_twin_layer,
     .unit = "steps/s",
     .hivemind = 0.93,
     .aim = 8,
     .kind = "ffn",
     .d = 512,
     .experts = 16,
     .hosts = 2,
     .rows = 64,
     .k = 4},
    {.name = "E-nop",
     .run = hth_bench_twin_layer,
     .unit = "steps/s",
     .hivemind = 1.63,
     .aim = 50,
     .kind = "nop",
     .d = 1024,
     .experts = 16,
     .hosts = 2,
     .rows = 64,
     .k = 4},
    {.name = "beam",
     .run = hth_bench_twin_beam,
     .unit = "ms",
     .hivemind = 187,
     .aim = 300,
     .less_is_better = true,
     .experts = 4096,
     .rows = 64,
     .k = 4},
    {.name = "start",
     .run = hth_bench_twin_start,
     .unit = "s",
     .hivemind = 0.72,
     .aim = 2.4, /* 0.3 s */
     .less_is_better = true,
     .kind = "ffn",
     .d = 1024,
     .experts = 16},
};

enum { KEY_CASE = 0x5400, KEY_FLOATS };

static const struct argp_option options[] = {
    {"case", KEY_CASE, "NAME", 0,
     "A1, A2, A5, A6, A7, C, D, E, beam, start or all (default: all). E also runs E-512 and E-nop",
     0},
    {"floats", KEY_FLOATS, "N", 0, "Of case C's vectors; others than hivemind's have no ratio", 0},
    {0},
};

/* "E" names all that begin with it. */
static bool chosen(const char *only, const char *name)
{
    size_t len = strlen(only);
    return strcasecmp(only, "all") == 0 || strcasecmp(only, name) == 0 ||
           (strncasecmp(only, name, len) == 0 && name[len] == '-');
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;
    bool found = false;
    if (key == KEY_FLOATS) {
        a->floats = (size_t)hth_cli_number(state, "--floats", arg, 1, 1u << 28);
        return 0;
    }
    if (key != KEY_CASE)
        return ARGP_ERR_UNKNOWN;
    a->only = arg;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        found = found || chosen(arg, cases[i].name);
    if (!found)
        argp_error(state, "--case '%s': see --help for the names", arg);
    return 0;
}

static const struct argp argp = {.options = options, .parser = parse};

void hth_bench_twin_emit(struct hth_bench *b, const struct hth_bench_twin_case *c,
                         const char *variant, const struct hth_bench_samples *samples)
{
    double value = hth_bench_median(samples);
    double ratio = c->hivemind > 0 && value > 0
                       ? (c->less_is_better ? c->hivemind / value : value / c->hivemind)
                       : 0;
    char name[64];
    snprintf(name, sizeof(name), "%s%s%s", c->name, variant != NULL ? "-" : "",
             variant != NULL ? variant : "");
    json_t *row = json_object();
    hth_json_text(row, "case", name);
    hth_json_real(row, "value", hth_bench_round(value));
    hth_json_text(row, "unit", c->unit);
    json_object_set_new(row, "hivemind",
                        c->hivemind > 0 ? hth_json_number(c->hivemind) : json_null());
    json_object_set_new(row, "ratio",
                        ratio > 0 ? hth_json_number(hth_bench_round(ratio)) : json_null());
    json_object_set_new(row, "aim", c->aim > 0 ? hth_json_number(c->aim) : json_null());
    json_object_set_new(row, "repeats", json_integer(samples->count));
    hth_json_real(row, "spread", hth_bench_spread(samples));
    json_object_set_new(row, "tls", json_boolean(!b->plain));
    json_object_set_new(row, "wire", /* of C and D no rows travel */
                        c->experts > 0 ? json_string(hth_bench_wire_name(b)) : json_null());
    hth_bench_row_take(b, row);
}

int hth_bench_twin_main(int argc, char **argv)
{
    struct args a = {.only = "all", .bench.wire = HTH_F32}; /* as hivemind's rows */
    int code =
        hth_bench_open(&a.bench, argc, argv,
                       "The work of hivemind's benchmarks, its figure beside ours.", &argp, &a);
    if (code != HTH_EXIT_OK)
        return code;
    enum hth_err err = HTH_OK;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases) && err == HTH_OK; i++) {
        struct hth_bench_twin_case c = cases[i];
        if (c.floats > 0 && a.floats > 0 && a.floats != c.floats) {
            c.floats = a.floats;
            c.hivemind = c.aim = 0; /* it was another amount of work */
        }
        if (chosen(a.only, c.name))
            err = c.run(&a.bench, &c);
        if (err != HTH_OK)
            hth_cli_say_error("case %s: %s", cases[i].name, hth_err_text(err));
    }
    return hth_bench_finish(&a.bench, "measuring twins", err);
}
