/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_expert.c: how much of the kernels' speed a hosted expert keeps behind the network.
 *
 * One expert on one host, callers in closed loops on one client. Beside each figure stands the bare
 * kernel in the same process: on one thread, and on as many threads as the host has (each with
 * weights of its own). Then one request for many experts with few rows each, beside one for as many
 * rows of one expert. The last row asks for requests/s of the kind that computes nothing.
 */
#include "app/bench_swarm.h"

#include "core/mem.h"
#include "kernels/bench.h"

#include <pthread.h>
#include <string.h>

#define BUDGET_US    (3 * HTH_US_PER_S)
#define WAVE_EXPERTS 64
#define WAVE_ROWS    8 /* of each expert */

struct expert {
    struct hth_bench bench;
    const char *kind; /* NULL: all */
    uint32_t d, rows, callers, clients;
    bool forward_only;
};

enum { KEY_KIND = 0x5100, KEY_DIM, KEY_ROWS, KEY_CALLERS, KEY_CLIENTS, KEY_FORWARD };

static const struct argp_option options[] = {
    {"kind", KEY_KIND, "NAME", 0, "ffn, wave or nop (default: all)", 0},
    {"dim", KEY_DIM, "N", 0, "Width of a row (default 1024)", 0},
    {"rows", KEY_ROWS, "N", 0, "Rows of a request (default: 1, 32 and 2048)", 0},
    {"callers", KEY_CALLERS, "N", 0, "Requests in flight (default: by rows)", 0},
    {"clients", KEY_CLIENTS, "N", 0, "Connections they share (default 1)", 0},
    {"forward", KEY_FORWARD, NULL, 0, "No backward", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct expert *e = state->input;
    switch (key) {
    case KEY_KIND:
        e->kind = arg;
        if (strcmp(arg, "ffn") != 0 && strcmp(arg, "wave") != 0 && strcmp(arg, "nop") != 0)
            argp_error(state, "--kind '%s': ffn, wave or nop", arg);
        break;
    case KEY_DIM:
        e->d = (uint32_t)hth_cli_number(state, "--dim", arg, 1, 8192);
        break;
    case KEY_ROWS:
        e->rows = (uint32_t)hth_cli_number(state, "--rows", arg, 1, 8192);
        break;
    case KEY_CALLERS:
        e->callers = (uint32_t)hth_cli_number(state, "--callers", arg, 1, 4096);
        break;
    case KEY_CLIENTS:
        e->clients = (uint32_t)hth_cli_number(state, "--clients", arg, 1, 128);
        break;
    case KEY_FORWARD:
        e->forward_only = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp argp = {.options = options, .parser = parse};

/* ---- the bare kernel ----------------------------------------------------------------------- */

struct bare {
    struct hth_bench_options opts;
    struct hth_bench_result result;
    pthread_t thread;
    enum hth_err err;
};

static void *bare_main(void *arg)
{
    struct bare *b = arg;
    b->err = hth_bench_run(&b->opts, &b->result);
    return NULL;
}

/* The sum over threads that run side by side. */
static enum hth_err bare_rate(const struct expert *e, uint32_t rows, bool backward,
                              uint32_t threads, double *rows_per_s)
{
    struct bare *all = hth_new_array(struct bare, threads);
    enum hth_err err = HTH_OK;
    *rows_per_s = 0;
    for (uint32_t i = 0; i < threads; i++) {
        all[i].opts = (struct hth_bench_options){
            .backend = e->bench.backend,
            .kind = backward ? HTH_BENCH_FFN_TRAIN_STEP : HTH_BENCH_FFN_FORWARD,
            .dim = e->d,
            .rows = rows,
            .repeats = rows > 256 ? 3 : 31,
            .clock_us = hth_bench_now_us,
        };
        HTH_ASSERT(pthread_create(&all[i].thread, NULL, bare_main, &all[i]) == 0);
    }
    for (uint32_t i = 0; i < threads; i++) {
        pthread_join(all[i].thread, NULL);
        err = err == HTH_OK ? all[i].err : err;
        *rows_per_s += all[i].result.rows_per_s;
    }
    hth_free(all);
    return err;
}

/* ---- through the network ------------------------------------------------------------------- */

struct figure {
    const char *kind;
    uint32_t rows, callers;
    bool backward;
};

static uint32_t usual_callers(uint32_t rows)
{
    return rows < 8 ? 64 : rows < 512 ? 16 : 4;
}

/* Rounds that take about a second, from a short run that also warms up. */
static enum hth_err calibrate(struct hth_bench_swarm *swarm, struct hth_bench_load *load)
{
    struct hth_bench_load_result result;
    load->batches = 1;
    HTH_TRY(hth_bench_drive(swarm, load, &result));
    double per_batch = result.seconds / load->batches;
    load->batches = (uint32_t)HTH_MAX(2.0, HTH_MIN(100000.0, 1.0 / per_batch));
    return HTH_OK;
}

static void emit(struct expert *e, const struct figure *f, const struct hth_bench_samples *rows,
                 const struct hth_bench_samples *requests, const double bare[2])
{
    double rate = hth_bench_median(rows);
    bool nop = strcmp(f->kind, "nop") == 0;
    json_t *row =
        json_pack("{s:s, s:i, s:i, s:i, s:s, s:f, s:f}", "kind", f->kind, "d", (int)e->d, "rows",
                  (int)f->rows, "callers", (int)f->callers, "direction",
                  f->backward ? "forward_backward" : "forward", "rows_per_s", hth_bench_round(rate),
                  "requests_per_s", hth_bench_round(hth_bench_median(requests)));
    json_object_set_new(row, "bare_rows_per_s",
                        nop ? json_null() : json_real(hth_bench_round(bare[1])));
    json_object_set_new(row, "bare_1_thread",
                        nop ? json_null() : json_real(hth_bench_round(bare[0])));
    json_object_set_new(row, "of_bare",
                        nop ? json_null() : json_real(hth_bench_round(rate / bare[1])));
    json_object_set_new(row, "threads", json_integer(hth_bench_threads(&e->bench)));
    json_object_set_new(row, "spread", json_real(hth_bench_spread(rows)));
    json_object_set_new(row, "tls", json_boolean(!e->bench.plain));
    hth_bench_row_take(&e->bench, row);
}

static enum hth_err measure(struct expert *e, struct hth_bench_swarm *swarm, const struct figure *f)
{
    struct hth_bench_samples rows, requests;
    struct hth_bench_load load = {
        .callers = f->callers, .rows = f->rows, .backward = f->backward, .seed = e->bench.seed};
    double bare[2] = {0, 0};
    HTH_TRY(calibrate(swarm, &load));
    hth_bench_begin(&rows);
    hth_bench_begin(&requests);
    while (hth_bench_more(&e->bench, &rows, 3)) {
        struct hth_bench_load_result result;
        HTH_TRY(hth_bench_drive(swarm, &load, &result));
        hth_bench_add(&rows, result.rows_per_s);
        hth_bench_add(&requests, result.requests_per_s);
    }
    if (strcmp(f->kind, "nop") != 0) {
        HTH_TRY(bare_rate(e, f->rows, f->backward, 1, &bare[0]));
        HTH_TRY(bare_rate(e, f->rows, f->backward, hth_bench_threads(&e->bench), &bare[1]));
    }
    emit(e, f, &rows, &requests, bare);
    return HTH_OK;
}

static enum hth_err measure_kind(struct expert *e, const char *kind)
{
    static const uint32_t usual[] = {1, 32, 2048};
    bool nop = strcmp(kind, "nop") == 0;
    const struct hth_bench_swarm_opts opts = {
        .bench = &e->bench,
        .kind = kind,
        .d = e->d,
        .experts = 1,
        .hosts = 1,
        .clients = e->clients,
        .host_threads = hth_bench_threads(&e->bench),
        .batch_rows_max = 8192,
        .step_rows = 1,
    };
    struct hth_bench_swarm *swarm;
    HTH_TRY(hth_bench_swarm_new(&opts, &swarm));
    enum hth_err err = hth_bench_swarm_verify(swarm, 16, true);
    for (size_t i = 0; i < HTH_ARRAY_LEN(usual) && err == HTH_OK; i++) {
        struct figure f = {kind, e->rows > 0 ? e->rows : usual[i], 0, false};
        if (i > 0 && (nop || e->rows > 0))
            break;
        f.callers = e->callers > 0 ? e->callers : usual_callers(f.rows);
        err = measure(e, swarm, &f);
        f.backward = true;
        if (err == HTH_OK && !nop && !e->forward_only)
            err = measure(e, swarm, &f);
    }
    hth_bench_swarm_free(swarm);
    return err;
}

/* ---- many experts in one request ----------------------------------------------------------- */

static void emit_wave(struct expert *e, const struct hth_bench_samples *wave,
                      const struct hth_bench_samples *one)
{
    double many = hth_bench_median(wave), single = hth_bench_median(one);
    hth_bench_row_take(&e->bench,
                       json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:i, s:f, s:b}", "kind",
                                 "wave", "d", (int)e->d, "experts", WAVE_EXPERTS, "rows", WAVE_ROWS,
                                 "callers", (int)HTH_MAX(e->callers, 1u), "rows_per_s",
                                 hth_bench_round(many), "one_expert", hth_bench_round(single),
                                 "of_one", hth_bench_round(many / single), "threads",
                                 (int)hth_bench_threads(&e->bench), "spread",
                                 hth_bench_spread(wave), "tls", !e->bench.plain));
}

/* Forward only: the states of so many experts would fill the memory of a small machine. */
static enum hth_err measure_wave(struct expert *e)
{
    const struct hth_bench_swarm_opts opts = {
        .bench = &e->bench,
        .kind = "ffn",
        .d = e->d,
        .experts = WAVE_EXPERTS,
        .hosts = 1,
        .clients = 1,
        .host_threads = hth_bench_threads(&e->bench),
        .batch_rows_max = 8192,
        .step_rows = 1,
    };
    struct hth_bench_load wave = {.callers = HTH_MAX(e->callers, 1u),
                                  .rows = WAVE_EXPERTS * WAVE_ROWS,
                                  .spread = WAVE_EXPERTS,
                                  .seed = e->bench.seed};
    struct hth_bench_load one = wave;
    struct hth_bench_samples waves, ones;
    struct hth_bench_swarm *swarm;
    one.spread = 1;
    HTH_TRY(hth_bench_swarm_new(&opts, &swarm));
    enum hth_err err = hth_bench_swarm_verify(swarm, WAVE_ROWS, false);
    HTH_GOTO(out, err);
    HTH_GOTO(out, calibrate(swarm, &wave));
    HTH_GOTO(out, calibrate(swarm, &one));
    wave.batches = HTH_MAX(wave.batches / 2, 1u); /* they take turns: half a second each */
    one.batches = HTH_MAX(one.batches / 2, 1u);
    hth_bench_begin(&waves);
    hth_bench_begin(&ones);
    while (hth_bench_more(&e->bench, &waves, 5)) {
        struct hth_bench_load_result result;
        HTH_GOTO(out, hth_bench_drive(swarm, &wave, &result));
        hth_bench_add(&waves, result.rows_per_s);
        HTH_GOTO(out, hth_bench_drive(swarm, &one, &result));
        hth_bench_add(&ones, result.rows_per_s);
    }
    emit_wave(e, &waves, &ones);
out:
    hth_bench_swarm_free(swarm);
    return err;
}

static bool wanted(const struct expert *e, const char *kind)
{
    return e->kind == NULL || strcmp(e->kind, kind) == 0;
}

int hth_bench_expert_main(int argc, char **argv)
{
    struct expert e = {.d = 1024, .clients = 1};
    int code = hth_bench_open(&e.bench, argc, argv, "Rows/s of one hosted expert.", &argp, &e);
    if (code != HTH_EXIT_OK)
        return code;
    if (e.bench.budget_us == 0)
        e.bench.budget_us = BUDGET_US; /* there are seven figures */
    enum hth_err err = HTH_OK;
    if (wanted(&e, "ffn"))
        err = measure_kind(&e, "ffn");
    if (err == HTH_OK && wanted(&e, "wave"))
        err = measure_wave(&e);
    if (err == HTH_OK && wanted(&e, "nop"))
        err = measure_kind(&e, "nop");
    return hth_bench_finish(&e.bench, "measuring experts", err);
}
