/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.c: hearth bench profile: measures a profile of this machine for simulated devices
 * (sim/profile.h): microseconds of one worker for a batch of an ffn expert, by width and rows.
 *
 * Each figure is the processor time of the fastest of a few bursts, because other load can only add
 * time. Cases are verified before they are timed. One worker is measured at a time: the profile
 * does not contain the effect of caches and memory that several workers share.
 */
#include "benchmarks/bench.h"
#include "benchmarks/kernels/bench.h"
#include "core/mem.h"
#include "net/net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIST_MAX      16
#define BUDGET_US     (120 * HTH_US_PER_MS) /* of one figure */
#define SAMPLE_NS     INT64_C(200000)
#define MOVED_DIM     1024 /* layer norms of this width stand for all work that moves memory */
#define MOVED_ROWS    1024
#define RATE_ROWS     64 /* products of this many rows stand for all other arithmetic */
#define OVERHEAD_JOBS 2000

struct profile {
    struct hth_bench bench;
    const char *out, *name;
    uint32_t dim[LIST_MAX], rows[LIST_MAX];
    uint32_t dims, counts;
    bool tty;
    FILE *to;
    /* For the overhead of a job. */
    struct hth_env *env;
    struct hth_job job;
    uint32_t jobs_left;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_OUT = 0x5b00, KEY_NAME, KEY_DIMS, KEY_ROWS };

static const struct argp_option options[] = {
    {"out", KEY_OUT, "FILE", 0, "Write the profile to FILE (default: standard output)", 0},
    {"name", KEY_NAME, "NAME", 0, "Name of the profile (default: this-machine)", 0},
    {"dims", KEY_DIMS, "LIST", 0, "Widths of experts (default 128,256,512,1024)", 0},
    {"rows", KEY_ROWS, "LIST", 0, "Rows of batches (default 1,4,16,64,256,1024,2048)", 0},
    {0},
};

/* Parses a list of rising numbers. */
static uint32_t parse_list(struct argp_state *state, const char *flag, const char *arg,
                           uint32_t max, uint32_t out[LIST_MAX])
{
    char *list = hth_strdup(arg), *rest = list, *word;
    uint32_t count = 0;
    while ((word = strtok_r(rest, ",", &rest)) != NULL) {
        uint32_t value = (uint32_t)hth_cli_number(state, flag, word, 1, max);
        if (count == LIST_MAX || (count > 0 && value <= out[count - 1]))
            argp_error(state, "%s '%s': expected at most %d numbers in rising order", flag, arg,
                       LIST_MAX);
        else
            out[count++] = value;
    }
    hth_free(list);
    if (count == 0)
        argp_error(state, "%s '%s': expected numbers in rising order, such as 16,64", flag, arg);
    return count;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct profile *p = state->input;
    switch (key) {
    case KEY_OUT:
        p->out = arg;
        break;
    case KEY_NAME:
        p->name = arg;
        if (strpbrk(arg, "\"\\\n") != NULL || strlen(arg) > 100)
            argp_error(state, "--name: expected at most 100 characters, without quotes");
        break;
    case KEY_DIMS:
        p->dims = parse_list(state, "--dims", arg, 8192, p->dim);
        break;
    case KEY_ROWS:
        p->counts = parse_list(state, "--rows", arg, 65536, p->rows);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp argp = {.options = options, .parser = parse};

/* ---- timing -------------------------------------------------------------------------------- */

static int64_t own_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Seconds of one run: the fastest of as many samples as fit the budget, at least two after one that
 * warms up. Short runs are timed several at once. */
static enum hth_err fastest(const struct profile *p, struct hth_bench_case *work, double *best_s)
{
    int64_t begin_us = hth_bench_now_us(NULL), first = own_ns();
    HTH_TRY(hth_bench_case_run(work));
    first = HTH_MAX(own_ns() - first, INT64_C(1));
    uint32_t runs = (uint32_t)HTH_MAX(SAMPLE_NS / first, INT64_C(1));
    *best_s = 0;
    for (int sample = 0; sample < 2 || hth_bench_now_us(NULL) - begin_us < p->bench.budget_us;
         sample++) {
        int64_t before = own_ns();
        for (uint32_t i = 0; i < runs; i++)
            HTH_TRY(hth_bench_case_run(work));
        double s = (double)HTH_MAX(own_ns() - before, INT64_C(1)) * 1e-9 / runs;
        if (sample == 0 || s < *best_s)
            *best_s = s;
    }
    return HTH_OK;
}

static enum hth_err time_case(struct profile *p, enum hth_bench_kind kind, uint32_t dim,
                              uint32_t rows, double *s, double *flops, double *bytes)
{
    struct hth_bench_options o = {
        .backend = p->bench.backend, .kind = kind, .dim = dim, .rows = rows};
    struct hth_bench_case *work;
    if (p->tty)
        fprintf(stderr, "\r\033[K%s, width %u, %u rows", hth_bench_kind_name(kind), dim, rows);
    HTH_TRY(hth_bench_case_new(&o, &work));
    *flops = hth_bench_case_flops(work);
    *bytes = hth_bench_case_bytes(work);
    enum hth_err err = fastest(p, work, s);
    hth_bench_case_free(work);
    return err;
}

/* ---- handing over a job -------------------------------------------------------------------- */

static void empty_run(struct hth_job *job)
{
    (void)job;
}

static void empty_done(struct hth_job *job, enum hth_err err)
{
    struct profile *p = HTH_CONTAINER(job, struct profile, job);
    if (err != HTH_OK || --p->jobs_left == 0 || hth_job_submit(p->env, job) != HTH_OK)
        hth_net_stop(p->env);
}

/* Time of a job without work, from its submission to the next one's: the fastest of some rounds. */
static enum hth_err measure_overhead(struct profile *p, double *us)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    opts.compute_threads = 1;
    HTH_TRY(hth_net_new(&opts, &p->env));
    enum hth_err err = HTH_OK;
    *us = 0;
    for (int round = 0; round < 5 && err == HTH_OK; round++) {
        int64_t begin_ns = hth_bench_now_ns(NULL);
        p->jobs_left = OVERHEAD_JOBS / 5;
        p->job = (struct hth_job){.lane = HTH_LANE_COMPUTE, .run = empty_run, .done = empty_done};
        err = hth_job_submit(p->env, &p->job);
        if (err == HTH_OK)
            err = hth_net_run(p->env);
        double here = (double)(hth_bench_now_ns(NULL) - begin_ns) / 1e3 / (OVERHEAD_JOBS / 5.0);
        if (round == 0 || here < *us)
            *us = here;
    }
    hth_net_free(p->env);
    return err;
}

/* ---- the file ------------------------------------------------------------------------------ */

/* Decimals of a time in microseconds that give about three significant digits. */
static int decimals(double us)
{
    return us < 10 ? 3 : us < 100 ? 2 : us < 1000 ? 1 : 0;
}

static enum hth_err measure_head(struct profile *p)
{
    double s, flops, bytes, overhead_us;
    uint32_t dim = p->dim[0];
    fprintf(p->to,
            "# Measured by hearth bench --profile; sim/profile.h says how it is read.\n"
            "name: \"%s\"\nworkers: %u\n",
            p->name, hth_bench_threads(&p->bench));
    HTH_TRY(time_case(p, HTH_BENCH_FFN_FORWARD, dim, RATE_ROWS, &s, &flops, &bytes));
    fprintf(p->to, "gflops: %.4g\n", flops / s * 1e-9);
    HTH_TRY(time_case(p, HTH_BENCH_LAYERNORM, MOVED_DIM, MOVED_ROWS, &s, &flops, &bytes));
    fprintf(p->to, "gbytes_per_s: %.4g\n", bytes / s * 1e-9);
    HTH_TRY(measure_overhead(p, &overhead_us));
    fprintf(p->to, "overhead_us: %.3g\n", overhead_us);
    return HTH_OK;
}

static enum hth_err measure_table(struct profile *p, const char *name, enum hth_bench_kind kind)
{
    double s, flops, bytes;
    fprintf(p->to, "%s:\n", name);
    for (uint32_t d = 0; d < p->dims; d++) {
        for (uint32_t r = 0; r < p->counts; r++) {
            HTH_TRY(time_case(p, kind, p->dim[d], p->rows[r], &s, &flops, &bytes));
            fprintf(p->to, "  - { d: %u, rows: %u, us: %.*f }\n", p->dim[d], p->rows[r],
                    decimals(s * 1e6), s * 1e6);
        }
    }
    return HTH_OK;
}

static enum hth_err measure_steps(struct profile *p)
{
    double s, flops, bytes;
    fprintf(p->to, "step:\n");
    for (uint32_t d = 0; d < p->dims; d++) {
        HTH_TRY(time_case(p, HTH_BENCH_ADAMW, p->dim[d], 1, &s, &flops, &bytes));
        fprintf(p->to, "  - { d: %u, us: %.*f }\n", p->dim[d], decimals(s * 1e6), s * 1e6);
    }
    return HTH_OK;
}

static enum hth_err measure(struct profile *p)
{
    HTH_TRY(measure_head(p));
    HTH_TRY(measure_table(p, "forward", HTH_BENCH_FFN_FORWARD));
    HTH_TRY(measure_table(p, "backward", HTH_BENCH_FFN_FORWARD_BACKWARD));
    HTH_TRY(measure_steps(p));
    return ferror(p->to) != 0 ? HTH_E_IO : HTH_OK;
}

int hth_bench_profile_main(int argc, char **argv)
{
    struct profile p = {.name = "this-machine",
                        .dim = {128, 256, 512, 1024},
                        .dims = 4,
                        .rows = {1, 4, 16, 64, 256, 1024, 2048},
                        .counts = 7,
                        .to = stdout,
                        .tty = isatty(STDERR_FILENO) == 1};
    int code =
        hth_bench_open(&p.bench, argc, argv,
                       "Measure a profile of this machine for simulated devices.", &argp, &p);
    if (code != HTH_EXIT_OK)
        return code;
    if (p.bench.budget_us == 0)
        p.bench.budget_us = BUDGET_US;
    if (p.out != NULL)
        p.to = fopen(p.out, "w");
    if (p.to == NULL) {
        hth_cli_say_error("--out %s: %s", p.out, strerror(errno));
        hth_bench_close(&p.bench);
        return hth_exit_of(HTH_E_IO);
    }
    enum hth_err err = measure(&p);
    if (p.tty)
        fputs("\r\033[K", stderr);
    if (p.out != NULL && fclose(p.to) != 0 && err == HTH_OK)
        err = HTH_E_IO;
    return hth_bench_finish(&p.bench, "measuring this machine", err);
}
