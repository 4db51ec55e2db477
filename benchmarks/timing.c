/* SPDX-License-Identifier: Apache-2.0 */
/* timing.c: times short runs in turns with the core's peak. */
#include "benchmarks/timing.h"

#include "benchmarks/bench.h"

#include <time.h>

#define BURST_NS     INT64_C(4000000)
#define PEAK_BURST_S 0.001
#define COUNT_RUNS   5
#define COUNT_ROUNDS (1u << 16)
#define SAMPLE_NS    INT64_C(50000) /* short runs are timed several at once */
#define AGREE        50             /* clocks agree if they differ by less than a 50th */

/* -- the fastest of several runs ------------------------------------------------------------ */

static int64_t clock_ns(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

void hth_bench_watch_start(struct hth_bench_watch *w)
{
    w->own_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    w->wall_ns = clock_ns(CLOCK_MONOTONIC);
}

void hth_bench_fastest_add(struct hth_bench_fastest *f, struct hth_bench_fastest run)
{
    if (f->s == 0 || (run.sure && !f->sure) || (run.sure == f->sure && run.s < f->s))
        *f = run;
}

double hth_bench_watch_stop(const struct hth_bench_watch *w, bool many, uint32_t runs,
                            struct hth_bench_fastest *f)
{
    int64_t wall = HTH_MAX(clock_ns(CLOCK_MONOTONIC) - w->wall_ns, INT64_C(1));
    int64_t own = HTH_MAX(clock_ns(CLOCK_THREAD_CPUTIME_ID) - w->own_ns, INT64_C(1));
    bool sure = many || wall - own <= wall / AGREE;
    double s = (double)(sure ? wall : own) * 1e-9;
    hth_bench_fastest_add(f, (struct hth_bench_fastest){.s = s / runs, .sure = sure});
    return s;
}

/* -- the peak ------------------------------------------------------------------------------- */

void hth_bench_peaks_init(struct hth_bench_peaks *p, struct hth_team *team)
{
    *p = (struct hth_bench_peaks){.team = team};
    for (int kind = 0; kind < HTH_PEAKS; kind++) {
        struct hth_bench_fastest run = {0};
        double flops = 0;
        p->rounds[kind] = 4096;
        if (!hth_peak_usable((enum hth_peak)kind))
            continue;
        for (int i = 0; i < COUNT_RUNS; i++) {
            struct hth_bench_watch watch;
            hth_bench_watch_start(&watch);
            flops = hth_peak_run((enum hth_peak)kind, COUNT_ROUNDS);
            hth_bench_watch_stop(&watch, false, 1, &run);
        }
        p->rate[kind] = flops / run.s;
        p->rounds[kind] = (uint32_t)(COUNT_ROUNDS * HTH_MIN(PEAK_BURST_S / run.s, 1000.0)) + 1;
    }
}

enum hth_peak hth_bench_peaks_best(const struct hth_bench_peaks *p, enum hth_matmul compute)
{
    int best = HTH_PEAK_PLAIN;
    for (int kind = 0; kind < HTH_PEAKS; kind++) {
        bool fits = compute == HTH_MATMUL_BF16 || kind < HTH_PEAK_BF16;
        if (fits && p->rate[kind] > p->rate[best])
            best = kind;
    }
    return (enum hth_peak)best;
}

struct peak_burst {
    enum hth_peak kind;
    uint32_t rounds;
    double flops[64];
};

static void peak_part(void *arg, uint32_t part)
{
    struct peak_burst *b = arg;
    b->flops[part] = hth_peak_run(b->kind, b->rounds);
}

static void peak_burst(const struct hth_bench_peaks *p, enum hth_peak kind, bool many,
                       struct hth_bench_fastest *operation)
{
    struct peak_burst b = {.kind = kind, .rounds = p->rounds[kind]};
    struct hth_bench_fastest run = {0};
    struct hth_bench_watch watch;
    uint32_t threads =
        many ? HTH_MIN(hth_team_width(p->team), (uint32_t)HTH_ARRAY_LEN(b.flops)) : 1;
    double flops = 0;
    hth_bench_watch_start(&watch);
    hth_team_run(many ? p->team : NULL, threads, peak_part, &b);
    hth_bench_watch_stop(&watch, many, 1, &run);
    for (uint32_t i = 0; i < threads; i++)
        flops += b.flops[i];
    run.s /= flops;
    hth_bench_fastest_add(operation, run);
}

/* -- turns ---------------------------------------------------------------------------------- */

static enum hth_err burst(struct hth_bench_case *work, uint32_t part, bool many,
                          struct hth_bench_fastest *best)
{
    struct hth_bench_fastest first = {0};
    struct hth_bench_watch watch;
    int64_t start = hth_bench_now_ns(NULL);
    hth_bench_watch_start(&watch);
    HTH_TRY(hth_bench_case_run_part(work, part));
    double first_s = hth_bench_watch_stop(&watch, many, 1, &first);
    uint32_t runs = (uint32_t)HTH_MAX((double)SAMPLE_NS * 1e-9 / first_s, 1.0);
    do {
        hth_bench_watch_start(&watch);
        for (uint32_t i = 0; i < runs; i++)
            HTH_TRY(hth_bench_case_run_part(work, part));
        hth_bench_watch_stop(&watch, many, runs, best);
    } while (hth_bench_now_ns(NULL) - start < BURST_NS);
    return HTH_OK;
}

enum hth_err hth_bench_turn(const struct hth_bench_peaks *p, enum hth_peak kind,
                            struct hth_bench_timing *t)
{
    uint32_t parts = hth_bench_case_parts(t->work);
    HTH_ASSERT(parts <= HTH_BENCH_PARTS_MAX);
    for (int many = 0; many < (p->team != NULL ? 2 : 1); many++) {
        hth_bench_case_set_team(t->work, many ? p->team : NULL);
        peak_burst(p, kind, many != 0, &t->peak[many]);
        for (uint32_t part = 0; part < parts; part++)
            HTH_TRY(burst(t->work, part, many != 0, &t->part[many][part]));
        peak_burst(p, kind, many != 0, &t->peak[many]);
    }
    return HTH_OK;
}

double hth_bench_timing_best(const struct hth_bench_timing *t, bool many)
{
    double s = 0;
    for (uint32_t part = 0; part < hth_bench_case_parts(t->work); part++)
        s += t->part[many][part].s;
    return s;
}

double hth_bench_timing_peak(const struct hth_bench_timing *t, bool many)
{
    return t->peak[many].s > 0 ? 1 / t->peak[many].s : 0;
}
