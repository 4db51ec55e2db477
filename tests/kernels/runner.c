/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runner.c: the table of cases without cmocka, for machines that have a card and none of our
 * libraries; and tests for a card alone: a training curve beside the CPU's, and two runs with the
 * same bits.
 *
 *   runner [--seed N] [--plugins FOLDER] [--memory MIB] [--quick yes|cases] [BACKEND[/TYPE] ...]
 *
 * TYPE: fp32 (default), tf32, bf16. --memory: limit of a card's memory, under which experts are
 * evicted and fetched. --quick: two shapes of each case and no curve, for slow tools; 'cases'
 * leaves out the many experts as well. Without a back end: all of this CPU. "cuda/bf16",
 * "cuda:1/tf32" name a card and a type. Ends with "N passed, N failed, N skipped, seed N"; the exit
 * code is 77 when all was skipped.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/blocks.h"
#include "kernels/cases.h"
#include "kernels/plugin.h"
#include "kernels/runner_crowd.h"

#define STEPS    200
#define ROWS     64
#define DIM      64
#define SKIPPED  77
#define SEED_GAP 100

static struct {
    uint32_t passed, failed, skipped;
    uint64_t seed;
    bool quick, cases_only;
} run = {.seed = 1};

static void verdict(bool good, const char *what, const char *text)
{
    run.passed += good;
    run.failed += !good;
    if (!good)
        printf("FAILED %s: %s\n", what, text);
}

static double tolerance_of(const struct hth_backend *be)
{
    switch (hth_backend_compute(be)) {
    case HTH_MATMUL_BF16:
        return 1e-2;
    case HTH_MATMUL_TF32:
        return 1e-3;
    default:
        return 1e-5;
    }
}

static void run_cases(const struct hth_backend *be)
{
    uint64_t seed = run.seed;
    for (size_t i = 0; i < kernel_case_count; i++) {
        size_t shapes = kernel_cases[i].shape_count;
        for (size_t s = 0; s < (run.quick ? HTH_MIN(shapes, (size_t)2) : shapes); s++) {
            const char *error = kernel_case_run(&kernel_cases[i], kernel_cases[i].shapes[s], be,
                                                tolerance_of(be), seed += SEED_GAP);
            verdict(error == NULL, kernel_cases[i].name, error != NULL ? error : "");
        }
    }
}

/* The limit after many steps. A trainer's curve in bf16 has the same
 * (tests/trainer/test_cuda.c). */
static double curve_limit(const struct hth_backend *be)
{
    switch (hth_backend_compute(be)) {
    case HTH_MATMUL_BF16:
        return 3e-2;
    case HTH_MATMUL_TF32:
        return 1e-3;
    default:
        return 1e-4;
    }
}

/* -- a training curve ---------------------------------------------------------------------- */

struct curve {
    double loss[STEPS];
    float *values; /* of all tensors, after the last step */
    size_t count;
};

#define NEED(expr)                                                                                 \
    do {                                                                                           \
        enum hth_err need_err = (expr);                                                            \
        if (need_err != HTH_OK) {                                                                  \
            printf("FAILED %s: %s\n", #expr, hth_err_text(need_err));                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* An FFN block learns to return half of its input: loss = sum of squares of the difference. */
static void train(const struct hth_backend *be, struct curve *c)
{
    struct hth_params *p;
    struct hth_exec *ex;
    struct hth_ffn f;
    struct hth_ffn_options options = {.dim = DIM, .eps = 1e-5f};
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    struct hth_optim optim = HTH_OPTIM_INIT;
    float host[ROWS * DIM];
    seal.seed = run.seed;
    NEED(hth_params_new(be, &p));
    NEED(hth_ffn_declare(p, &options, &f));
    NEED(hth_params_seal(p, &seal));
    NEED(hth_exec_new(be, hth_ffn_scratch_bytes(be, &f, ROWS), &ex));
    float *x = hth_backend_alloc(be, sizeof(host)), *y = hth_backend_alloc(be, sizeof(host));
    void *saved = hth_backend_alloc(be, hth_ffn_saved_bytes(&f, ROWS));
    HTH_ASSERT(x != NULL && y != NULL && saved != NULL);
    for (size_t i = 0; i < ROWS * DIM; i++)
        host[i] = (float)((i * 2654435761u >> 9) % 4001) / 2000.0f - 1.0f;
    NEED(hth_exec_upload(ex, x, host, sizeof(host)));
    struct hth_view xv = hth_view_f32(x, ROWS, DIM, DIM), yv = hth_view_f32(y, ROWS, DIM, DIM);
    for (int step = 0; step < STEPS; step++) {
        struct hth_sumsq_result loss;
        hth_params_zero_grads(p);
        NEED(hth_ffn_forward(ex, &f, xv, yv, saved));
        NEED(hth_combine(ex, 1, yv, -0.5f, xv, yv));
        NEED(hth_sumsq(ex, yv, &loss));
        NEED(hth_ffn_backward(ex, &f, xv, saved, yv, yv));
        NEED(hth_optim_step(ex, p, &optim, 2.0f / ROWS));
        NEED(hth_exec_sync(ex));
        c->loss[step] = loss.sum;
    }
    c->count = hth_params_flat_len(p);
    c->values = hth_calloc(c->count, sizeof(float));
    NEED(hth_params_export(ex, p, HTH_PART_VALUE, 0, c->count, c->values));
    hth_backend_free(be, x);
    hth_backend_free(be, y);
    hth_backend_free(be, saved);
    hth_exec_free(ex);
    hth_params_free(p);
}

static void run_curve(const struct hth_backend *be)
{
    static struct curve cpu, one, two;
    char text[120];
    double worst = 0, allowed = curve_limit(be);
    train(hth_backend_ref(), &cpu);
    train(be, &one);
    train(be, &two);
    for (int i = 0; i < STEPS; i++)
        worst = hth_worse(worst, fabs(one.loss[i] - cpu.loss[i]) / cpu.loss[0]);
    snprintf(text, sizeof(text), "off the CPU's by %.2e of the first loss; %.2e is allowed", worst,
             allowed);
    verdict(worst < allowed, "training curve", text);
    verdict(cpu.loss[STEPS - 1] < 0.5 * cpu.loss[0], "training curve", "the loss does not fall");
    verdict(memcmp(one.loss, two.loss, sizeof(one.loss)) == 0 &&
                memcmp(one.values, two.values, one.count * sizeof(float)) == 0,
            "two runs", "their bits differ");
    hth_free(cpu.values);
    hth_free(one.values);
    hth_free(two.values);
}

/* -- many experts -------------------------------------------------------------------------- */

static void limited(const char *what, double off, double allowed)
{
    char text[80];
    snprintf(text, sizeof(text), "off by %.2e; %.2e is allowed", off, allowed);
    verdict(off < allowed, what, text);
}

/* Adam's first steps divide gradients by themselves, so rounding moves weights; by little, since
 * the rate is small. */
static void run_many(const struct hth_backend *be)
{
    limited("many experts", runner_crowd(be), curve_limit(be));
    limited("together", runner_together(be), curve_limit(be));
    limited("again and again", runner_again(be), 1e-30);
}

/* -- back ends ----------------------------------------------------------------------------- */

static void run_backend(const struct hth_backend *be)
{
    uint32_t failed = run.failed, passed = run.passed;
    run_cases(be);
    if (!run.quick)
        run_curve(be);
    if (!run.cases_only)
        run_many(be);
    printf("%s %s %s: %u passed, %u failed\n", hth_backend_name(be),
           hth_matmul_name(hth_backend_compute(be)), hth_backend_isa(be), run.passed - passed,
           run.failed - failed);
}

static enum hth_matmul type_of(const char *text)
{
    static const enum hth_matmul types[] = {HTH_MATMUL_AUTO, HTH_MATMUL_BF16, HTH_MATMUL_TF32};
    for (size_t i = 0; text != NULL && i < HTH_ARRAY_LEN(types); i++) {
        if (strcmp(text, hth_matmul_name(types[i])) == 0)
            return types[i];
    }
    return HTH_MATMUL_F32;
}

static void run_named(char *name)
{
    const struct hth_backend *be;
    char why[200] = "", *type = strchr(name, '/');
    enum hth_err err;
    if (type != NULL)
        *type++ = '\0';
    struct hth_backend_choice choice = {.name = name, .compute = type_of(type)};
    if (hth_plugin_knows(name))
        err = hth_plugin_backend(name, choice.compute, &be, why, sizeof(why));
    else
        err = hth_backend_choose(&choice, &be);
    if (err == HTH_OK) {
        run_backend(be);
        return;
    }
    printf("skipped %s: %s\n", name, why[0] != '\0' ? why : hth_err_text(err));
    run.skipped++;
}

int main(int argc, char **argv)
{
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        const char *folder = argv[at + 1];
        if (strcmp(argv[at], "--seed") == 0)
            run.seed = strtoull(argv[at + 1], NULL, 10);
        else if (strcmp(argv[at], "--plugins") == 0)
            hth_plugins_search(&folder, 1);
        else if (strcmp(argv[at], "--memory") == 0)
            hth_plugins_limit(strtoull(argv[at + 1], NULL, 10) << 20);
        else if (strcmp(argv[at], "--quick") == 0) {
            run.quick = true;
            run.cases_only = strcmp(argv[at + 1], "cases") == 0;
        }
    }
    char cpu[3][8] = {"ref", "packed", "blas"};
    for (size_t i = 0; at == argc && i < HTH_ARRAY_LEN(cpu); i++)
        run_named(cpu[i]);
    for (; at < argc; at++)
        run_named(argv[at]);
    printf("%u passed, %u failed, %u skipped, seed %llu\n", run.passed, run.failed, run.skipped,
           (unsigned long long)run.seed);
    return run.failed > 0 ? 1 : run.passed == 0 ? SKIPPED : 0;
}
