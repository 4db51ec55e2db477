/* SPDX-License-Identifier: Apache-2.0 */
/*
 * picture.c: hearth bench picture: times the attention masks of picture models beside a causal mask
 * over as many positions, in turns on one thread: forward and backward of one head. Then a training
 * step of runs/emoji-dense.yaml beside PyTorch (picture_step.h).
 */
#include "benchmarks/bench.h"
#include "benchmarks/picture_step.h"
#include "benchmarks/timing.h"
#include "cli/json.h"
#include "core/mem.h"
#include "kernels/ops.h"

#include <math.h>

/* The sizes of the model of "Training Transformers Together". */
#define TEXT      257
#define SIDE      32
#define WINDOW    5
#define SEQ       (TEXT + SIDE * SIDE)
#define HEAD      64
#define ROUNDS    30
#define BUDGET_US (20 * HTH_US_PER_S)
#define CHECKED   12    /* queries */
#define TOLERANCE 1e-2f /* of a bf16 product; a wrong key moves a number by more */

struct picture {
    struct hth_bench bench;
    bool only_masks;
    struct hth_exec *ex;
    float *qkv, *out, *lse, *dout, *dqkv;
};

static const struct hth_mask masks[] = {
    {HTH_MASK_FULL, TEXT, SIDE, SIDE, WINDOW}, /* the peer */
    {HTH_MASK_ROW, TEXT, SIDE, SIDE, WINDOW},
    {HTH_MASK_COLUMN, TEXT, SIDE, SIDE, WINDOW},
    {HTH_MASK_CONV, TEXT, SIDE, SIDE, WINDOW},
};
#define MASKS HTH_ARRAY_LEN(masks)

static enum hth_err run_mask(struct picture *p, const struct hth_mask *mask)
{
    const struct hth_attention att = {.seq = SEQ, .heads = 1, .mask = mask};
    const struct hth_attention_saved saved = {hth_view_f32(p->qkv, SEQ, 3 * HEAD, 3 * HEAD),
                                              hth_view_f32(p->out, SEQ, HEAD, HEAD),
                                              hth_view_f32(p->lse, SEQ, 1, 1)};
    HTH_TRY(hth_attention_forward(p->ex, &att, saved.qkv, saved.out, saved.lse));
    HTH_TRY(hth_attention_backward(p->ex, &att, &saved, hth_view_f32(p->dout, SEQ, HEAD, HEAD),
                                   hth_view_f32(p->dqkv, SEQ, 3 * HEAD, 3 * HEAD)));
    return hth_exec_sync(p->ex);
}

/* -- the check ----------------------------------------------------------------------------- */

static bool sees(const struct hth_mask *m, int q, int k)
{
    int down = (q - TEXT) / SIDE - (k - TEXT) / SIDE, right = (q - TEXT) % SIDE - (k - TEXT) % SIDE;
    if (k > q || k < TEXT || m->kind == HTH_MASK_FULL)
        return k <= q;
    if (m->kind == HTH_MASK_CONV)
        return down <= WINDOW / 2 && abs(right) <= WINDOW / 2;
    return m->kind == HTH_MASK_ROW ? down == 0 : right == 0;
}

/* The distance of a query's output from the computation in double. */
static double query_error(const struct picture *p, const struct hth_mask *m, int q)
{
    double sum = 0, mix[HEAD] = {0}, diff = 0, norm = 0;
    for (int k = 0; k <= q; k++) {
        double score = 0;
        const float *key = p->qkv + (size_t)k * 3 * HEAD + HEAD;
        for (int c = 0; c < HEAD; c++)
            score += (double)p->qkv[(size_t)q * 3 * HEAD + c] * (double)key[c] / sqrt(HEAD);
        double weight = sees(m, q, k) ? exp(score) : 0;
        sum += weight;
        for (int c = 0; c < HEAD; c++)
            mix[c] += weight * (double)key[HEAD + c];
    }
    for (int c = 0; c < HEAD; c++) {
        diff += pow((double)p->out[(size_t)q * HEAD + c] - mix[c] / sum, 2);
        norm += pow(mix[c] / sum, 2);
    }
    return sqrt(diff / norm);
}

static enum hth_err check(struct picture *p, const struct hth_mask *mask)
{
    HTH_TRY(run_mask(p, mask));
    for (int i = 0; i < CHECKED; i++) {
        double error = query_error(p, mask, (i + 1) * (SEQ / CHECKED) - 1 - i);
        if (!(error < TOLERANCE)) {
            hth_cli_say_error("mask %s differs from the computation in double by %.2g",
                              hth_mask_name(mask->kind), error);
            return HTH_E_BUG;
        }
    }
    return HTH_OK;
}

/* -- the figures --------------------------------------------------------------------------- */

static void print_rows(struct picture *p, const struct hth_bench_fastest *fastest)
{
    for (size_t i = 1; i < MASKS; i++) {
        char name[32];
        json_t *row = json_object();
        snprintf(name, sizeof(name), "mask %s, ms", hth_mask_name(masks[i].kind));
        json_object_set_new(row, "case", json_string(name));
        hth_json_real(row, "value", hth_bench_round(fastest[i].s * 1e3));
        hth_json_real(row, "peer", hth_bench_round(fastest[0].s * 1e3));
        hth_json_real(row, "ratio", hth_bench_round(fastest[i].s / fastest[0].s));
        hth_bench_row_take(&p->bench, row);
    }
}

static enum hth_err measure(struct picture *p)
{
    struct hth_bench_fastest fastest[MASKS] = {0};
    struct hth_bench_samples rounds;
    for (size_t i = 0; i < MASKS; i++)
        HTH_TRY(check(p, &masks[i]));
    for (hth_bench_begin(&rounds); hth_bench_more(&p->bench, &rounds, ROUNDS);
         hth_bench_add(&rounds, 0)) {
        for (size_t i = 0; i < MASKS; i++) {
            struct hth_bench_watch watch;
            hth_bench_watch_start(&watch);
            HTH_TRY(run_mask(p, &masks[i]));
            hth_bench_watch_stop(&watch, false, 1, &fastest[i]);
        }
    }
    print_rows(p, fastest);
    return HTH_OK;
}

static enum hth_err run(struct picture *p)
{
    const struct hth_backend *be = p->bench.backend;
    float *numbers = hth_try_aligned(SEQ * (8 * HEAD + 1) * sizeof(float));
    enum hth_err err = HTH_E_NO_MEMORY;
    if (numbers == NULL)
        return err;
    p->qkv = numbers;
    p->dout = p->qkv + (size_t)SEQ * 3 * HEAD;
    p->out = p->dout + (size_t)SEQ * HEAD;
    p->dqkv = p->out + (size_t)SEQ * HEAD;
    p->lse = p->dqkv + (size_t)SEQ * 3 * HEAD;
    hth_bench_normals(p->bench.seed, 0, p->qkv, (size_t)SEQ * 4 * HEAD);
    HTH_GOTO(out, hth_exec_new(be, hth_attention_scratch(be, SEQ, HEAD), &p->ex));
    err = measure(p);
    if (err == HTH_OK && !p->only_masks)
        err = hth_bench_picture_step(&p->bench);
out:
    hth_exec_free(p->ex);
    hth_aligned_free(numbers);
    return err;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct picture *p = state->input;
    (void)arg;
    if (key != 'm')
        return ARGP_ERR_UNKNOWN;
    p->only_masks = true;
    return 0;
}

static const struct argp_option options[] = {
    {"masks", 'm', NULL, 0, "Leave out the training step, which takes half a minute", 0}, {0}};
static const struct argp argp = {.options = options, .parser = parse};

int hth_bench_picture_main(int argc, char **argv)
{
    struct picture p = {0};
    int code = hth_bench_open(&p.bench, argc, argv,
                              "Time attention masks of picture models beside a causal mask, and a "
                              "training step of emoji-dense beside PyTorch.",
                              &argp, &p);
    if (code != HTH_EXIT_OK)
        return code;
    if (p.bench.budget_us == 0)
        p.bench.budget_us = BUDGET_US;
    return hth_bench_finish(&p.bench, "measuring masks", run(&p));
}
