/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expert.c: hearth bench expert: measures the part of the kernels' speed that a hosted expert keeps
 * behind the network.
 *
 * One host has one expert, and callers in closed loops share one client. Beside each figure stands
 * the bare kernel in the same process, doing the host's work for such requests: on one thread, and
 * on as many threads as the host has, each with weights of its own. Then follow one request for
 * many experts with few rows each, and one for as many rows of one expert. The last row is
 * requests/s of the kind that computes nothing.
 */
#include "benchmarks/kernels/bench.h"
#include "benchmarks/swarm.h"
#include "cli/json.h"
#include "core/mem.h"
#include "kernels/ops.h"

#include <pthread.h>
#include <string.h>

#define BUDGET_US    (8 * HTH_US_PER_S)
#define BARE_US      (300 * HTH_US_PER_MS) /* one burst of the bare kernel */
#define WAVE_EXPERTS 64
#define WAVE_ROWS    8 /* per expert */

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
    {"rows", KEY_ROWS, "N", 0, "Rows in a request (default: 1, 32 and 2048)", 0},
    {"callers", KEY_CALLERS, "N", 0, "Requests in flight (default: by rows)", 0},
    {"clients", KEY_CLIENTS, "N", 0, "Connections that the callers share (default 1)", 0},
    {"forward", KEY_FORWARD, NULL, 0, "Measure forwards only, no backwards", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct expert *e = state->input;
    switch (key) {
    case KEY_KIND:
        e->kind = arg;
        if (strcmp(arg, "ffn") != 0 && strcmp(arg, "wave") != 0 && strcmp(arg, "nop") != 0)
            argp_error(state, "--kind '%s': expected ffn, wave or nop", arg);
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

/* The work of a request. A host runs the forward again in a backward, because it keeps nothing
 * between a trainer's two calls; here it also steps after each backward. */
enum direction { FORWARD, BACKWARD, BOTH };

static const char *const direction_name[] = {"forward", "backward", "forward_backward"};

/* One thread with the work of a host for one batch of requests. */
struct expert_bare {
    struct hth_bench_case *work[2];
    uint32_t rows;
    double rows_per_s;
    pthread_t thread;
    enum hth_err err;
};

static enum hth_err bare_run(struct expert_bare *b)
{
    for (int i = 0; i < 2; i++) {
        if (b->work[i] != NULL)
            HTH_TRY(hth_bench_case_run(b->work[i]));
    }
    return HTH_OK;
}

static void *bare_main(void *arg)
{
    struct expert_bare *b = arg;
    int64_t start = hth_bench_now_us(NULL), spent = 0;
    uint32_t runs = 0;
    for (b->err = HTH_OK; b->err == HTH_OK && spent < BARE_US; runs++) {
        b->err = bare_run(b);
        spent = hth_bench_now_us(NULL) - start;
    }
    b->rows_per_s = (double)b->rows * runs * 1e6 / (double)HTH_MAX(spent, INT64_C(1));
    return NULL;
}

static enum hth_err bare_open(const struct expert *e, uint32_t rows, enum direction direction,
                              struct expert_bare *b)
{
    struct hth_bench_options o = {.backend = e->bench.backend, .dim = e->d, .rows = rows};
    b->rows = rows;
    o.kind = HTH_BENCH_FFN_FORWARD;
    if (direction != BACKWARD)
        HTH_TRY(hth_bench_case_new(&o, &b->work[0]));
    o.kind = HTH_BENCH_FFN_TRAIN_STEP;
    if (direction != FORWARD)
        HTH_TRY(hth_bench_case_new(&o, &b->work[1]));
    return bare_run(b); /* warms up */
}

static void bare_close(struct expert_bare *b)
{
    hth_bench_case_free(b->work[0]);
    hth_bench_case_free(b->work[1]);
}

/* Rows/s of all threads together, each with weights of its own. */
static enum hth_err bare_rate(struct expert_bare *all, uint32_t threads, double *rows_per_s)
{
    enum hth_err err = HTH_OK;
    *rows_per_s = 0;
    for (uint32_t i = 0; i < threads; i++)
        HTH_ASSERT(pthread_create(&all[i].thread, NULL, bare_main, &all[i]) == 0);
    for (uint32_t i = 0; i < threads; i++) {
        pthread_join(all[i].thread, NULL);
        err = err == HTH_OK ? all[i].err : err;
        *rows_per_s += all[i].rows_per_s;
    }
    return err;
}

/* ---- through the network ------------------------------------------------------------------- */

struct expert_figure {
    const char *kind;
    uint32_t rows, callers;
    enum direction direction;
};

struct rates {
    struct hth_bench_samples rows, requests, bare, bare_1;
};

static uint32_t usual_callers(uint32_t rows)
{
    return rows < 8 ? 64 : rows < 512 ? 16 : 4;
}

/* Finds by a short run, which also warms up, the batches that take a second, or the budget. */
static enum hth_err calibrate(const struct hth_bench *b, struct hth_bench_swarm *swarm,
                              struct hth_bench_load *load)
{
    struct hth_bench_load_result result;
    double aim_s = b->budget_us > 0 ? HTH_MIN(1.0, (double)b->budget_us / 1e6) : 1.0;
    load->batches = 1;
    HTH_TRY(hth_bench_drive(swarm, load, &result));
    double per_batch = result.seconds / load->batches;
    load->batches = (uint32_t)HTH_MAX(2.0, HTH_MIN(100000.0, aim_s / per_batch));
    return HTH_OK;
}

static json_t *bare_or_null(const struct hth_bench_samples *s)
{
    return s->count > 0 ? hth_json_number(hth_bench_round(hth_bench_median(s))) : json_null();
}

static void emit(struct expert *e, const struct expert_figure *f, const struct rates *r)
{
    double rate = hth_bench_median(&r->rows), bare = hth_bench_median(&r->bare);
    json_t *row = json_object();
    hth_json_text(row, "kind", f->kind);
    hth_json_count(row, "d", e->d);
    hth_json_count(row, "rows", f->rows);
    hth_json_count(row, "callers", f->callers);
    hth_json_text(row, "direction", direction_name[f->direction]);
    hth_json_real(row, "rows_per_s", hth_bench_round(rate));
    hth_json_real(row, "requests_per_s", hth_bench_round(hth_bench_median(&r->requests)));
    json_object_set_new(row, "bare_rows_per_s", bare_or_null(&r->bare));
    json_object_set_new(row, "bare_1_thread", bare_or_null(&r->bare_1));
    json_object_set_new(row, "of_bare",
                        bare > 0 ? hth_json_number(hth_bench_round(rate / bare)) : json_null());
    json_object_set_new(row, "threads", json_integer(hth_bench_threads(&e->bench)));
    hth_json_real(row, "spread", hth_bench_spread(&r->rows));
    json_object_set_new(row, "tls", json_boolean(!e->bench.plain));
    json_object_set_new(row, "wire", json_string(hth_bench_wire_name(&e->bench)));
    hth_bench_row_take(&e->bench, row);
}

/* Runs over the network and bare kernels alternate, so that a disturbance of the machine meets all
 * of them. */
static enum hth_err measure_in_turns(struct expert *e, struct hth_bench_swarm *swarm,
                                     const struct hth_bench_load *load, struct expert_bare *bare,
                                     struct rates *r)
{
    uint32_t threads = hth_bench_threads(&e->bench);
    hth_bench_begin(&r->rows);
    hth_bench_begin(&r->requests);
    hth_bench_begin(&r->bare);
    hth_bench_begin(&r->bare_1);
    while (hth_bench_more(&e->bench, &r->rows, 5)) {
        struct hth_bench_load_result result;
        double rate;
        HTH_TRY(hth_bench_drive(swarm, load, &result));
        hth_bench_add(&r->rows, result.rows_per_s);
        hth_bench_add(&r->requests, result.requests_per_s);
        if (bare == NULL)
            continue;
        HTH_TRY(bare_rate(bare, threads, &rate));
        hth_bench_add(&r->bare, rate);
        HTH_TRY(bare_rate(bare, 1, &rate));
        hth_bench_add(&r->bare_1, rate);
    }
    return HTH_OK;
}

static enum hth_err measure(struct expert *e, struct hth_bench_swarm *swarm,
                            const struct expert_figure *f)
{
    uint32_t threads = hth_bench_threads(&e->bench);
    bool nop = strcmp(f->kind, "nop") == 0;
    struct expert_bare *bare = hth_new_array(struct expert_bare, threads);
    struct rates rates;
    struct hth_bench_load load = {.callers = f->callers,
                                  .rows = f->rows,
                                  .forward = f->direction != BACKWARD,
                                  .backward = f->direction != FORWARD,
                                  .seed = e->bench.seed};
    enum hth_err err = HTH_OK;
    for (uint32_t i = 0; i < threads && err == HTH_OK && !nop; i++)
        err = bare_open(e, f->rows, f->direction, &bare[i]);
    if (err == HTH_OK)
        err = calibrate(&e->bench, swarm, &load);
    if (err == HTH_OK)
        err = measure_in_turns(e, swarm, &load, nop ? NULL : bare, &rates);
    if (err == HTH_OK)
        emit(e, f, &rates);
    for (uint32_t i = 0; i < threads; i++)
        bare_close(&bare[i]);
    hth_free(bare);
    return err;
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
        struct expert_figure f = {kind, e->rows > 0 ? e->rows : usual[i], 0, FORWARD};
        if (i > 0 && (nop || e->rows > 0))
            break;
        f.callers = e->callers > 0 ? e->callers : usual_callers(f.rows);
        for (int d = FORWARD; d <= (nop || e->forward_only ? FORWARD : BOTH) && err == HTH_OK;
             d++) {
            f.direction = (enum direction)d;
            err = measure(e, swarm, &f);
        }
    }
    hth_bench_swarm_free(swarm);
    return err;
}

/* ---- many experts in one request ----------------------------------------------------------- */

/* The floor of a wave: its weights come from memory, so it takes at least the time in which the
 * host's threads read that many bytes side by side. */
#define READ_FLOATS ((size_t)16 << 20) /* per thread: more than caches hold */
#define READ_COLS   ((uint32_t)1 << 16)
#define READ_TURNS  4

struct reader {
    struct hth_exec *ex;
    float *data;
    double gb_per_s;
    pthread_t thread;
    enum hth_err err;
};

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    uint32_t rows = (uint32_t)(READ_FLOATS / READ_COLS);
    struct hth_view all = hth_view_f32(r->data, rows, READ_COLS, READ_COLS);
    struct hth_sumsq_result sum;
    int64_t start = hth_bench_now_ns(NULL);
    for (int i = 0; i < READ_TURNS && r->err == HTH_OK; i++)
        r->err = hth_sumsq(r->ex, all, &sum);
    double ns = (double)HTH_MAX(hth_bench_now_ns(NULL) - start, INT64_C(1));
    r->gb_per_s = READ_TURNS * (double)(READ_FLOATS * sizeof(float)) / ns;
    return NULL;
}

/* GB/s of all threads together; 0 if the weights are not in this process's memory. */
static enum hth_err read_rate(struct expert *e, double *gb_per_s)
{
    uint32_t threads = hth_bench_threads(&e->bench);
    struct reader *all = hth_new_array(struct reader, threads);
    enum hth_err err = HTH_OK;
    *gb_per_s = 0;
    if (!(hth_backend_caps(e->bench.backend) & HTH_CAP_HOST_MEMORY))
        threads = 0;
    for (uint32_t i = 0; i < threads; i++) {
        HTH_GOTO(out, hth_exec_new(e->bench.backend, 0, &all[i].ex));
        all[i].data = hth_try_aligned(READ_FLOATS * sizeof(float));
        err = all[i].data != NULL ? HTH_OK : HTH_E_NO_MEMORY;
        if (err != HTH_OK)
            goto out;
        for (size_t j = 0; j < READ_FLOATS; j++)
            all[i].data[j] = 1;
    }
    for (uint32_t i = 0; i < threads; i++)
        HTH_ASSERT(pthread_create(&all[i].thread, NULL, reader_main, &all[i]) == 0);
    for (uint32_t i = 0; i < threads; i++) {
        pthread_join(all[i].thread, NULL);
        err = err == HTH_OK ? all[i].err : err;
        *gb_per_s += all[i].gb_per_s;
    }
out:
    for (uint32_t i = 0; i < threads; i++) {
        hth_exec_free(all[i].ex);
        hth_aligned_free(all[i].data);
    }
    hth_free(all);
    return err;
}

static void emit_wave(struct expert *e, const struct hth_bench_samples *wave,
                      const struct hth_bench_samples *one, const struct hth_bench_samples *read)
{
    double many = hth_bench_median(wave), single = hth_bench_median(one);
    bool bf16 = hth_backend_compute(e->bench.backend) == HTH_MATMUL_BF16;
    double bytes = (double)WAVE_EXPERTS * 8.0 * e->d * e->d * (bf16 ? 2 : 4); /* weights read */
    double floor = WAVE_EXPERTS * WAVE_ROWS * hth_bench_median(read) * 1e9 / bytes;
    json_t *row = json_object();
    hth_json_text(row, "kind", "wave");
    hth_json_count(row, "d", e->d);
    hth_json_count(row, "experts", WAVE_EXPERTS);
    hth_json_count(row, "rows", WAVE_ROWS);
    hth_json_count(row, "callers", HTH_MAX(e->callers, 1u));
    hth_json_real(row, "rows_per_s", hth_bench_round(many));
    hth_json_real(row, "one_expert", hth_bench_round(single));
    hth_json_real(row, "of_one", hth_bench_round(many / single));
    hth_json_count(row, "threads", hth_bench_threads(&e->bench));
    hth_json_real(row, "spread", hth_bench_spread(wave));
    hth_json_flag(row, "tls", !e->bench.plain);
    json_object_set_new(row, "wire", json_string(hth_bench_wire_name(&e->bench)));
    hth_json_real(row, "read_gb_per_s", hth_bench_round(hth_bench_median(read)));
    json_object_set_new(row, "floor_rows_per_s",
                        floor > 0 ? hth_json_number(hth_bench_round(floor)) : json_null());
    json_object_set_new(row, "of_floor",
                        floor > 0 ? hth_json_number(hth_bench_round(many / floor)) : json_null());
    hth_bench_row_take(&e->bench, row);
}

/* Measures forwards only: the states of that many experts would fill a small machine's memory. */
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
                                  .forward = true,
                                  .seed = e->bench.seed};
    struct hth_bench_load one = wave;
    struct hth_bench_samples waves, ones, reads;
    struct hth_bench_swarm *swarm;
    one.spread = 1;
    HTH_TRY(hth_bench_swarm_new(&opts, &swarm));
    enum hth_err err = hth_bench_swarm_verify(swarm, WAVE_ROWS, false);
    HTH_GOTO(out, err);
    HTH_GOTO(out, calibrate(&e->bench, swarm, &wave));
    HTH_GOTO(out, calibrate(&e->bench, swarm, &one));
    wave.batches = HTH_MAX(wave.batches / 2, 1u); /* two cases alternate: half a second each */
    one.batches = HTH_MAX(one.batches / 2, 1u);
    hth_bench_begin(&waves);
    hth_bench_begin(&ones);
    hth_bench_begin(&reads);
    while (hth_bench_more(&e->bench, &waves, 5)) {
        struct hth_bench_load_result result;
        double gb_per_s;
        HTH_GOTO(out, read_rate(e, &gb_per_s));
        hth_bench_add(&reads, gb_per_s);
        HTH_GOTO(out, hth_bench_drive(swarm, &wave, &result));
        hth_bench_add(&waves, result.rows_per_s);
        HTH_GOTO(out, hth_bench_drive(swarm, &one, &result));
        hth_bench_add(&ones, result.rows_per_s);
    }
    emit_wave(e, &waves, &ones, &reads);
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
    int code =
        hth_bench_open(&e.bench, argc, argv, "Measure rows/s of one hosted expert.", &argp, &e);
    if (code != HTH_EXIT_OK)
        return code;
    if (e.bench.budget_us == 0)
        e.bench.budget_us = BUDGET_US;
    enum hth_err err = HTH_OK;
    if (wanted(&e, "ffn"))
        err = measure_kind(&e, "ffn");
    if (err == HTH_OK && wanted(&e, "wave"))
        err = measure_wave(&e);
    if (err == HTH_OK && wanted(&e, "nop"))
        err = measure_kind(&e, "nop");
    return hth_bench_finish(&e.bench, "measuring experts", err);
}
