/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c: hearth bench gate: times the choice of experts for a batch from a warm directory.
 *
 * The row contains the directory's counter of DHT requests, because choosing sends none.
 */
#include "benchmarks/gate.h"

#include "benchmarks/beam.h"
#include "benchmarks/nodht.h"
#include "cli/json.h"

/* A host must not announce more than fits a record. */
#define EXPERTS_PER_HOST 32768

struct gate {
    struct hth_bench bench;
    uint32_t experts, rows, k, width;
};

enum { KEY_EXPERTS = 0x5200, KEY_ROWS, KEY_K, KEY_WIDTH };

static const struct argp_option options[] = {
    {"experts", KEY_EXPERTS, "N", 0,
     "Experts in the grid, a square number (default: 4096, then 1048576)", 0},
    {"rows", KEY_ROWS, "N", 0, "Rows in a batch (default 256)", 0},
    {"k", KEY_K, "N", 0, "Experts per row (default 4)", 0},
    {"width", KEY_WIDTH, "N", 0, "Width of the beam (default 64)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct gate *g = state->input;
    switch (key) {
    case KEY_EXPERTS:
        g->experts = (uint32_t)hth_cli_number(state, "--experts", arg, 1, HTH_GRID_EXPERTS_MAX);
        break;
    case KEY_ROWS:
        g->rows = (uint32_t)hth_cli_number(state, "--rows", arg, 1, HTH_BENCH_GATE_ROWS_MAX);
        break;
    case KEY_K:
        g->k = (uint32_t)hth_cli_number(state, "--k", arg, 1, HTH_TOP_K_MAX);
        break;
    case KEY_WIDTH:
        g->width = (uint32_t)hth_cli_number(state, "--width", arg, 1, HTH_BEAM_WIDTH_MAX);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp argp = {.options = options, .parser = parse};

enum hth_err hth_bench_gate_measure(const struct hth_bench_gate_case *c,
                                    struct hth_bench_gate_figure *out)
{
    struct hth_bench_nodht known;
    struct hth_grid grid;
    uint32_t side = 1;
    while ((uint64_t)(side + 1) * (side + 1) <= c->experts)
        side++;
    const uint32_t dims[2] = {side, side};
    HTH_TRY(hth_grid_init(&grid, "bench", 2, dims));
    HTH_TRY(hth_bench_nodht_open(&known, &grid,
                                 (hth_grid_size(&grid) + EXPERTS_PER_HOST - 1) / EXPERTS_PER_HOST));
    struct hth_bench_gate_result result;
    struct hth_bench_gate_opts opts = {
        .grid = &grid,
        .view = hth_directory_view(known.directory, 0),
        .rows = c->rows,
        .k = c->k,
        .width = c->width,
        .rounds = c->rounds,
        .verify_rows = 4,
        .seed = c->seed,
        .now_ns = hth_bench_now_ns,
    };
    uint64_t before = hth_bench_nodht_requests(&known);
    enum hth_err err = hth_bench_gate(&opts, &result);
    *out = (struct hth_bench_gate_figure){
        .experts = result.experts,
        .ms_median = result.ms_median,
        .ms_best = result.ms_best,
        .ms_worst = result.ms_worst,
        .dht_requests = hth_bench_nodht_requests(&known) - before,
    };
    hth_bench_nodht_close(&known);
    return err;
}

static enum hth_err measure(struct gate *g, uint32_t experts)
{
    const struct hth_bench_gate_case c = {
        .experts = experts,
        .rows = g->rows,
        .k = g->k,
        .width = g->width,
        .rounds = g->bench.repeats > 0 ? g->bench.repeats : 101,
        .seed = g->bench.seed,
    };
    struct hth_bench_gate_figure f;
    HTH_TRY(hth_bench_gate_measure(&c, &f));
    json_t *row = json_object();
    hth_json_count(row, "experts", f.experts);
    hth_json_count(row, "rows", g->rows);
    hth_json_count(row, "k", g->k);
    hth_json_real(row, "ms_per_batch", hth_bench_round(f.ms_median));
    hth_json_count(row, "dht_requests", f.dht_requests);
    hth_json_real(row, "ms_best", hth_bench_round(f.ms_best));
    hth_json_real(row, "ms_worst", hth_bench_round(f.ms_worst));
    hth_bench_row_take(&g->bench, row);
    return HTH_OK;
}

int hth_bench_gate_main(int argc, char **argv)
{
    struct gate g = {.rows = 256, .k = 4};
    int code = hth_bench_open(&g.bench, argc, argv, "Time the beam search over a warm directory.",
                              &argp, &g);
    if (code != HTH_EXIT_OK)
        return code;
    enum hth_err err = measure(&g, g.experts > 0 ? g.experts : 4096);
    if (err == HTH_OK && g.experts == 0)
        err = measure(&g, 1048576);
    return hth_bench_finish(&g.bench, "measuring the gate", err);
}
