/* SPDX-License-Identifier: Apache-2.0 */
/*
 * division.c: computes the largest possible speed-up of two threads from the division of the work.
 *
 * One thread runs all parts that an operation gives to its team, and each part is timed by the
 * thread's own processor time, so a busy machine will do. Then the parts are assigned in order to
 * two threads, each to the thread that is idle first. `alone` is the fraction of the work outside
 * all parts, `uneven` the fraction idle during the last part of each run, and `bound` the speed of
 * two threads against one with those two losses only: memory and wake-ups come on top. Each case is
 * checked before it is timed (benchmarks/kernels/bench.h).
 */
#include "benchmarks/kernels/bench.h"
#include "core/team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUNS_MAX  512
#define PARTS_MAX 128
#define REPS      9

/* A team of two threads in which one does all parts. */
static struct {
    struct hth_team team;
    uint32_t run, rep;
    uint32_t parts[RUNS_MAX];
    double us[RUNS_MAX][PARTS_MAX][REPS], inside_us;
} work;

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void team_run(struct hth_team *team, uint32_t parts, hth_team_fn *fn, void *arg)
{
    double start = now_us();
    (void)team;
    HTH_ASSERT(parts <= PARTS_MAX && work.run < RUNS_MAX);
    for (uint32_t part = 0; part < parts; part++) {
        double before = now_us();
        fn(arg, part);
        work.us[work.run][part][work.rep] = now_us() - before;
    }
    work.parts[work.run++] = parts;
    work.inside_us += now_us() - start;
}

static uint32_t team_width(const struct hth_team *team)
{
    (void)team;
    return 2;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, REPS, sizeof(*values), by_value);
    return values[REPS / 2];
}

/* Sums the parts of all runs, and the end times of the later of two threads. */
static void deal_out(double *parts_us, double *end_us)
{
    for (uint32_t run = 0; run < work.run; run++) {
        double busy[2] = {0, 0};
        for (uint32_t part = 0; part < work.parts[run]; part++) {
            double us = median(work.us[run][part]);
            *parts_us += us;
            busy[busy[1] < busy[0]] += us;
        }
        *end_us += HTH_MAX(busy[0], busy[1]);
    }
}

static enum hth_err measure(struct hth_bench_case *c, const char *name)
{
    static const struct hth_team_ops ops = {.run = team_run, .width = team_width};
    double alone[REPS], parts_us = 0, end_us = 0;
    work.team.ops = &ops;
    hth_bench_case_set_team(c, &work.team);
    for (uint32_t rep = 0; rep <= REPS; rep++) { /* the first warms up */
        work.rep = rep % REPS;
        work.run = 0;
        work.inside_us = 0;
        double start = now_us();
        HTH_TRY(hth_bench_case_run(c));
        alone[work.rep] = now_us() - start - work.inside_us;
    }
    deal_out(&parts_us, &end_us);
    double out_us = median(alone), all_us = parts_us + out_us;
    printf("%s %9.0f %6u %7.2f %% %7.2f %% %8.3f\n", name, all_us, (unsigned)work.run,
           100 * out_us / all_us, 100 * (2 * end_us - parts_us) / parts_us,
           all_us / (out_us + end_us));
    return HTH_OK;
}

int main(void)
{
    static const uint32_t rows[] = {32, 128, 512, 2048};
    const struct hth_backend *packed[HTH_PACKED_MAX];
    size_t count = hth_backend_packed_all(packed);
    printf("%-23s %-11s %-5s %5s %9s %6s %9s %9s %8s\n", "op", "isa", "type", "rows", "us", "runs",
           "alone", "uneven", "bound");
    for (size_t i = 0; i < count * HTH_ARRAY_LEN(rows) * HTH_BENCH_LAYERNORM; i++) {
        const struct hth_backend *be =
            packed[count - 1 - i / HTH_ARRAY_LEN(rows) / HTH_BENCH_LAYERNORM];
        struct hth_bench_options o = {.backend = be, .dim = 1024};
        struct hth_bench_case *c;
        char name[80];
        o.kind = (enum hth_bench_kind)(i / HTH_ARRAY_LEN(rows) % HTH_BENCH_LAYERNORM);
        o.rows = rows[i % HTH_ARRAY_LEN(rows)];
        if (strcmp(hth_backend_isa(be), "generic") == 0)
            continue; /* slow, and divided like the others */
        snprintf(name, sizeof(name), "%-23s %-11s %-5s %5u", hth_bench_kind_name(o.kind),
                 hth_backend_isa(be), hth_matmul_name(hth_backend_compute(be)), (unsigned)o.rows);
        enum hth_err err = hth_bench_case_new(&o, &c);
        if (err == HTH_OK)
            err = measure(c, name);
        if (err != HTH_OK) {
            fprintf(stderr, "%s: %s\n", name, hth_err_text(err));
            return 1;
        }
        hth_bench_case_free(c);
        fflush(stdout);
    }
    return 0;
}
