/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step.c: hearth bench step: measures requests, bytes and time of one mixture-of-experts layer. For
 * any number of rows and experts, a host gets one request forward and one backward.
 */
#include "benchmarks/layer.h"
#include "cli/json.h"

struct step_args {
    struct hth_bench bench;
    uint32_t rows, k, experts, hosts, d;
};

enum { KEY_ROWS = 0x5300, KEY_K, KEY_EXPERTS, KEY_HOSTS, KEY_DIM };

static const struct argp_option options[] = {
    {"rows", KEY_ROWS, "N", 0, "Rows in the batch (default 256)", 0},
    {"k", KEY_K, "N", 0, "Experts per row (default 4)", 0},
    {"experts", KEY_EXPERTS, "N", 0, "Experts in the grid, a square number (default 1024)", 0},
    {"hosts", KEY_HOSTS, "N", 0, "Hosts (default 8)", 0},
    {"dim", KEY_DIM, "N", 0, "Width of a row (default 256)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct step_args *a = state->input;
    switch (key) {
    case KEY_ROWS:
        a->rows = (uint32_t)hth_cli_number(state, "--rows", arg, 1, 65536);
        break;
    case KEY_K:
        a->k = (uint32_t)hth_cli_number(state, "--k", arg, 1, HTH_TOP_K_MAX);
        break;
    case KEY_EXPERTS:
        a->experts = (uint32_t)hth_cli_number(state, "--experts", arg, 1, 4096);
        break;
    case KEY_HOSTS:
        a->hosts = (uint32_t)hth_cli_number(state, "--hosts", arg, 1, 64);
        break;
    case KEY_DIM:
        a->d = (uint32_t)hth_cli_number(state, "--dim", arg, 1, 4096);
        break;
    case ARGP_KEY_END:
        if (a->k > a->experts || a->hosts > a->experts)
            argp_error(state, "--k and --hosts can't exceed --experts");
        for (uint32_t side = 1; side * side != a->experts; side++) {
            if (side * side > a->experts)
                argp_error(state, "--experts %u: expected a square number", a->experts);
        }
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp argp = {.options = options, .parser = parse};

static enum hth_err measure(struct step_args *a, struct hth_bench_layer *layer)
{
    struct hth_bench_samples ms;
    struct hth_bench_layer_step step, middle = {0};
    for (int warm = 0; warm < 2; warm++)
        HTH_TRY(hth_bench_layer_step(layer, &step));
    hth_bench_begin(&ms);
    while (hth_bench_more(&a->bench, &ms, 5)) {
        HTH_TRY(hth_bench_layer_step(layer, &step));
        hth_bench_add(&ms, step.ms);
        if (step.ms <= hth_bench_median(&ms))
            middle = step;
    }
    json_t *row = json_object();
    hth_json_count(row, "rows", a->rows);
    hth_json_count(row, "k", a->k);
    hth_json_count(row, "experts", a->experts);
    hth_json_count(row, "d", a->d);
    hth_json_count(row, "hosts", a->hosts);
    hth_json_count(row, "forward_requests", step.requests_forward);
    hth_json_count(row, "backward_requests", step.requests_backward);
    hth_json_count(row, "bytes", step.bytes);
    hth_json_real(row, "ms", hth_bench_round(hth_bench_median(&ms)));
    hth_json_real(row, "ms_forward", hth_bench_round(middle.ms_forward));
    hth_json_real(row, "ms_backward", hth_bench_round(middle.ms_backward));
    hth_json_real(row, "spread", hth_bench_spread(&ms));
    hth_json_flag(row, "tls", !a->bench.plain);
    hth_json_text(row, "wire", hth_bench_wire_name(&a->bench));
    hth_bench_row_take(&a->bench, row);
    return HTH_OK;
}

static enum hth_err run(struct step_args *a)
{
    uint32_t threads = hth_bench_threads(&a->bench);
    const struct hth_bench_swarm_opts opts = {
        .bench = &a->bench,
        .kind = "ffn",
        .d = a->d,
        .experts = a->experts,
        .hosts = a->hosts,
        .clients = 1,
        .host_threads = HTH_MAX(1u, threads / a->hosts),
        .batch_rows_max = 8192,
        .step_rows = 1,
    };
    struct hth_bench_swarm *swarm;
    struct hth_bench_layer *layer = NULL;
    enum hth_err err;
    HTH_TRY(hth_bench_swarm_new(&opts, &swarm));
    HTH_GOTO(out, hth_bench_swarm_verify(swarm, 8, true));
    HTH_GOTO(out, hth_bench_layer_new(swarm, a->rows, a->k, &layer));
    err = measure(a, layer);
out:
    hth_bench_layer_free(layer);
    hth_bench_swarm_free(swarm);
    return err;
}

int hth_bench_step_main(int argc, char **argv)
{
    struct step_args a = {.rows = 256, .k = 4, .experts = 1024, .hosts = 8, .d = 256};
    int code = hth_bench_open(&a.bench, argc, argv,
                              "Measure a step of one mixture-of-experts layer.", &argp, &a);
    if (code != HTH_EXIT_OK)
        return code;
    return hth_bench_finish(&a.bench, "measuring a layer's step", run(&a));
}
