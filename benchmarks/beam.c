/* SPDX-License-Identifier: Apache-2.0 */
/* beam.c: compares the beam search with brute force, then times it. */
#include "benchmarks/beam.h"

#include "core/limits.h"
#include "core/mem.h"
#include "core/rng.h"
#include "gating/beam.h"

#include <math.h>

struct bench {
    const struct hth_bench_gate_opts *opts;
    struct hth_beam *beam;
    size_t width; /* columns of the tables */
    float *tables;
    uint32_t *index;
    float *score;
    double *ms;
};

/* Draws new normal scores for a batch, a function of (seed, round, column). */
static void draw_tables(struct bench *b, uint32_t round)
{
    uint32_t key[2] = {(uint32_t)b->opts->seed, (uint32_t)(b->opts->seed >> 32)};
    size_t count = (size_t)b->opts->rows * b->width;
    for (size_t i = 0; i < count; i += 4) {
        uint32_t counter[4] = {(uint32_t)(i / 4), round, 0, 0x6265u};
        float normal[4];
        hth_philox_normal(counter, key, normal);
        for (size_t j = 0; j < 4 && i + j < count; j++)
            b->tables[i + j] = normal[j];
    }
}

/* Finds the k best live experts of a row by reading every score: higher first, then lower index. */
static void brute_force(const struct bench *b, const float *row, uint32_t *index, float *score)
{
    uint32_t k = b->opts->k, found = 0;
    for (uint32_t j = 0; j < k; j++) {
        index[j] = HTH_GATE_NONE;
        score[j] = -INFINITY;
    }
    for (uint32_t i = 0; i < b->opts->view->live_count; i++) {
        uint32_t expert =
            b->opts->view->expert[i]; /* ascending, so a tie goes to the lower index */
        float s = hth_gate_score(b->opts->grid, row, expert);
        if (found == k && !(s > score[k - 1]))
            continue;
        uint32_t at = found < k ? found++ : k - 1;
        for (; at > 0 && s > score[at - 1]; at--) {
            score[at] = score[at - 1];
            index[at] = index[at - 1];
        }
        score[at] = s;
        index[at] = expert;
    }
}

/* The width of the widest level: with it the search must equal brute force on any view. */
static uint32_t exact_width(const struct hth_bench_gate_opts *opts)
{
    uint32_t width = opts->k;
    if (opts->view->live_count == hth_grid_size(opts->grid))
        return opts->width; /* on a full grid every width is exact */
    for (uint32_t level = 0; level + 1 < opts->view->ndim; level++)
        width = HTH_MAX(width, opts->view->count[level]);
    return HTH_MIN(width, (uint32_t)HTH_BEAM_WIDTH_MAX);
}

static enum hth_err verify(struct bench *b, uint32_t rows)
{
    struct hth_beam_opts opts = {.k = b->opts->k, .width = exact_width(b->opts)};
    struct hth_beam *beam = NULL;
    uint32_t index[HTH_TOP_K_MAX];
    float score[HTH_TOP_K_MAX];
    enum hth_err err;
    HTH_GOTO(out, hth_beam_new(b->opts->grid, &opts, &beam));
    struct hth_beam_batch batch = {.view = b->opts->view, .tables = b->tables, .rows = rows};
    struct hth_beam_result result = {.index = b->index, .score = b->score};
    HTH_GOTO(out, hth_beam_search(beam, &batch, &result, NULL));
    for (uint32_t r = 0; r < rows; r++) {
        brute_force(b, b->tables + r * b->width, index, score);
        for (uint32_t j = 0; j < opts.k; j++) {
            size_t at = (size_t)r * opts.k + j;
            if (b->index[at] != index[j] || b->score[at] != score[j])
                err = HTH_E_BUG;
        }
    }
out:
    hth_beam_free(beam);
    return err;
}

static enum hth_err time_rounds(struct bench *b, struct hth_bench_gate_result *result)
{
    struct hth_beam_stats stats = {0};
    struct hth_beam_result out = {.index = b->index, .score = b->score};
    uint32_t rounds = b->opts->rounds;
    for (uint32_t r = 0; r < rounds; r++) {
        draw_tables(b, r + 1);
        struct hth_beam_batch batch = {
            .view = b->opts->view, .tables = b->tables, .rows = b->opts->rows, .step = r};
        int64_t begin = b->opts->now_ns(b->opts->arg);
        HTH_TRY(hth_beam_search(b->beam, &batch, &out, &stats));
        double ms = (double)(b->opts->now_ns(b->opts->arg) - begin) / 1e6;
        uint32_t at = r; /* kept sorted */
        for (; at > 0 && b->ms[at - 1] > ms; at--)
            b->ms[at] = b->ms[at - 1];
        b->ms[at] = ms;
    }
    result->ms_median = b->ms[rounds / 2];
    result->ms_best = b->ms[0];
    result->ms_worst = b->ms[rounds - 1];
    result->prefixes_per_row = (double)stats.prefixes / (double)stats.rows;
    return HTH_OK;
}

enum hth_err hth_bench_gate(const struct hth_bench_gate_opts *opts,
                            struct hth_bench_gate_result *result)
{
    struct bench b = {.opts = opts, .width = hth_gate_width(opts->grid)};
    struct hth_beam_opts beam_opts = {
        .k = opts->k, .width = opts->width, .noise_std = opts->noise_std, .seed = opts->seed};
    enum hth_err err;
    *result = (struct hth_bench_gate_result){.experts = opts->view->live_count};
    if (opts->rows == 0 || opts->rows > HTH_BENCH_GATE_ROWS_MAX || opts->rounds == 0 ||
        opts->rounds > HTH_BENCH_GATE_ROUNDS_MAX || opts->verify_rows > opts->rows ||
        opts->now_ns == NULL)
        return HTH_E_RANGE;
    HTH_TRY(hth_beam_new(opts->grid, &beam_opts, &b.beam));
    size_t choices = (size_t)opts->rows * opts->k;
    b.tables = hth_try_calloc((size_t)opts->rows * b.width, sizeof(*b.tables));
    b.index = hth_try_calloc(choices, sizeof(*b.index));
    b.score = hth_try_calloc(choices, sizeof(*b.score));
    b.ms = hth_try_calloc(opts->rounds, sizeof(*b.ms));
    err = HTH_E_NO_MEMORY;
    if (b.tables == NULL || b.index == NULL || b.score == NULL || b.ms == NULL)
        goto out;
    draw_tables(&b, 0);
    HTH_GOTO(out, verify(&b, opts->verify_rows));
    result->verified_rows = opts->verify_rows;
    err = time_rounds(&b, result);
out:
    hth_free(b.ms);
    hth_free(b.score);
    hth_free(b.index);
    hth_free(b.tables);
    hth_beam_free(b.beam);
    return err;
}
