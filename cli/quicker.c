/* SPDX-License-Identifier: Apache-2.0 */
/* quicker.c: measures the peaks of fp32 and bf16 and says which type is chosen. */
#define _GNU_SOURCE /* CLOCK_THREAD_CPUTIME_ID */
#include "cli/quicker.h"

#include <stdio.h>
#include <time.h>

#include "kernels/isa.h"
#include "kernels/peak.h"

#define RUNS 3
/* Half a millisecond: of AVX-512 at 100 GFLOP/s of a core, and of AMX, whose round is eight times
 * as long, at 3000. */
#define ROUNDS     (1u << 16)
#define ROUNDS_AMX (1u << 14)

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* GFLOP/s of one run; 0 without a table. */
static double run(const struct hth_quicker_type *t, enum hth_matmul compute)
{
    if (t->isa == NULL)
        return 0;
    enum hth_peak kind = hth_peak_of(t->isa, compute);
    double start = seconds();
    double flops = hth_peak_run(kind, kind == HTH_PEAK_AMX ? ROUNDS_AMX : ROUNDS);
    return flops / HTH_MAX(seconds() - start, 1e-9) * 1e-9;
}

static double median(const double of[RUNS])
{
    double low = HTH_MIN(of[0], of[1]), high = HTH_MAX(of[0], of[1]);
    return HTH_MAX(low, HTH_MIN(high, of[2]));
}

static struct hth_quicker_type best_of(enum hth_matmul compute)
{
    const struct hth_packed_options options = {.compute = compute};
    const struct hth_backend *be;
    bool any = hth_backend_packed(&options, &be) == HTH_OK;
    return (struct hth_quicker_type){.isa = any ? hth_backend_isa(be) : NULL};
}

void hth_quicker_measure(struct hth_quicker *q)
{
    double fp32[RUNS], bf16[RUNS];
    *q = (struct hth_quicker){best_of(HTH_MATMUL_F32), best_of(HTH_MATMUL_BF16), HTH_MATMUL_F32};
    for (int i = -1; i < RUNS; i++) { /* the first raises the core's clock */
        fp32[HTH_MAX(i, 0)] = run(&q->fp32, HTH_MATMUL_F32);
        bf16[HTH_MAX(i, 0)] = run(&q->bf16, HTH_MATMUL_BF16);
    }
    q->fp32.gflops = median(fp32);
    q->bf16.gflops = median(bf16);
    q->chosen = hth_peak_quicker(q->fp32.gflops, q->bf16.gflops);
}

const char *hth_quicker_text(const struct hth_quicker *q, char out[HTH_QUICKER_TEXT])
{
    bool bf16 = q->chosen == HTH_MATMUL_BF16;
    const struct hth_quicker_type *is = bf16 ? &q->bf16 : &q->fp32,
                                  *not = bf16 ? &q->fp32 : &q->bf16;
    if (q->bf16.isa == NULL)
        snprintf(out, HTH_QUICKER_TEXT,
                 "fp32: this processor has no instruction for bf16 (%s, %.0f GFLOP/s of "
                 "one core)",
                 is->isa, is->gflops);
    else
        snprintf(out, HTH_QUICKER_TEXT,
                 "%s: one core multiplies %.0f GFLOP/s (%s), in %s %.0f (%s)",
                 hth_matmul_name(q->chosen), is->gflops, is->isa, bf16 ? "fp32" : "bf16",
                 not ->gflops, not ->isa);
    return out;
}

const char *hth_quicker_tiles(void)
{
    const char *why = hth_isa_why_not("amxbf16");
    return why != NULL ? why : "offered: products in bf16 use them";
}
