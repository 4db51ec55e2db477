/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beam search against brute force over random sparse grids of 1 to 3 axes, against the textbook
 * beam search when the beam is narrow, and on degenerate input: ties, no live expert, tables that
 * aren't finite.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "gating/beam.h"
#include "support/suite.h"

#include <float.h>
#include <stdlib.h>

enum { ROWS_MAX = 8, K_MAX = 64 };

struct fixture {
    struct hth_grid grid;
    uint32_t cells;
    uint32_t width; /* of the tables */
    struct hth_grid_view *view;
    float *tables; /* [ROWS_MAX, width] */
    uint32_t index[ROWS_MAX * K_MAX];
    float score[ROWS_MAX * K_MAX];
    uint32_t found[ROWS_MAX];
    uint32_t coord[ROWS_MAX * K_MAX * HTH_GRID_DIMS_MAX];
    struct hth_beam_stats stats;
};

/* A grid in which each expert is live with the given probability. */
static void setup(struct fixture *f, uint32_t ndim, const uint32_t *dim, double live,
                  struct hth_rng *rng)
{
    memset(f, 0, sizeof(*f));
    assert_ok(hth_grid_init(&f->grid, "ffn0", ndim, dim));
    f->cells = hth_grid_size(&f->grid);
    f->width = hth_gate_width(&f->grid);
    uint32_t *experts = hth_new_array(uint32_t, f->cells);
    size_t count = 0;
    for (uint32_t i = 0; i < f->cells; i++) {
        if (hth_rng_chance(rng, live))
            experts[count++] = i;
    }
    assert_ok(hth_grid_view_new(&f->grid, experts, count, &f->view));
    hth_free(experts);
    f->tables = hth_new_array(float, ROWS_MAX *(size_t)f->width);
}

static void teardown(struct fixture *f)
{
    hth_grid_view_unref(f->view);
    hth_free(f->tables);
}

/* levels > 0: scores are small whole numbers, so that sums are exact and ties common. */
static void draw(struct fixture *f, struct hth_rng *rng, uint32_t levels)
{
    for (size_t i = 0; i < ROWS_MAX * (size_t)f->width; i++) {
        f->tables[i] =
            levels > 0 ? (float)hth_rng_below(rng, levels) - 1.0f : (float)hth_rng_normal(rng);
    }
}

static void search(struct fixture *f, const struct hth_beam_opts *opts, size_t rows)
{
    struct hth_beam *beam;
    assert_ok(hth_beam_new(&f->grid, opts, &beam));
    struct hth_beam_batch batch = {.view = f->view, .tables = f->tables, .rows = rows};
    struct hth_beam_result result = {
        .index = f->index, .score = f->score, .found = f->found, .coord = f->coord};
    assert_ok(hth_beam_search(beam, &batch, &result, &f->stats));
    hth_beam_free(beam);
}

struct scored {
    float score;
    uint32_t index;
};

static int by_rank(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* The partial score of the first `n` coordinates. */
static float partial(const struct fixture *f, const float *row, uint32_t index, uint32_t n)
{
    uint32_t coord[HTH_GRID_DIMS_MAX];
    float score = 0.0f;
    hth_grid_coords(&f->grid, index, coord);
    for (uint32_t i = 0; i < n; i++)
        score += row[hth_gate_offset(&f->grid, i) + coord[i]];
    return score;
}

/* All live experts, best first; returns their number. */
static size_t brute(const struct fixture *f, const float *row, struct scored *out)
{
    size_t count = 0;
    for (uint32_t i = 0; i < f->cells; i++) {
        if (hth_grid_view_is_live(f->view, i))
            out[count++] = (struct scored){partial(f, row, i, f->grid.ndim), i};
    }
    qsort(out, count, sizeof(*out), by_rank);
    return count;
}

/* The textbook search: of each level it keeps the best `width` prefixes among the children of those
 * kept above. */
static size_t textbook(const struct fixture *f, const float *row, uint32_t width,
                       struct scored *kept)
{
    uint32_t below[HTH_GRID_DIMS_MAX + 1] = {f->cells};
    for (uint32_t i = 0; i < f->grid.ndim; i++)
        below[i + 1] = below[i] / f->grid.dim[i];
    struct scored *next = hth_new_array(struct scored, f->cells);
    size_t count = 1;
    kept[0] = (struct scored){0.0f, 0};
    for (uint32_t level = 0; level < f->grid.ndim; level++) {
        size_t n = 0;
        for (uint32_t i = 0; i < f->cells; i++) {
            if (!hth_grid_view_is_live(f->view, i))
                continue;
            uint32_t prefix = i / below[level + 1] * below[level + 1];
            bool parent_kept = false;
            for (size_t j = 0; j < count; j++)
                parent_kept |= kept[j].index == i / below[level] * below[level];
            if (parent_kept && (n == 0 || next[n - 1].index != prefix))
                next[n++] = (struct scored){partial(f, row, i, level + 1), prefix};
        }
        qsort(next, n, sizeof(*next), by_rank);
        count = level + 1 < f->grid.ndim ? HTH_MIN(n, (size_t)width) : n;
        memcpy(kept, next, count * sizeof(*kept));
    }
    hth_free(next);
    return count;
}

static void check_row_equals_brute(const struct fixture *f, size_t b, uint32_t k)
{
    struct scored *all = hth_new_array(struct scored, f->cells);
    size_t count = brute(f, f->tables + b * f->width, all);
    assert_int_equal(f->found[b], HTH_MIN(count, (size_t)k));
    for (uint32_t j = 0; j < k; j++) {
        size_t at = b * k + j;
        if (j >= count) {
            assert_true(f->index[at] == HTH_GATE_NONE);
            assert_true(isinf(f->score[at]) && f->score[at] < 0);
            continue;
        }
        assert_int_equal(f->index[at], all[j].index);
        assert_true(f->score[at] == all[j].score);
        uint32_t coord[HTH_GRID_DIMS_MAX];
        hth_grid_coords(&f->grid, all[j].index, coord);
        assert_memory_equal(coord, f->coord + at * HTH_GRID_DIMS_MAX, sizeof(coord));
    }
    hth_free(all);
}

/* On any grid, at any sparsity, with and without ties, a beam as wide as the grid finds the exact
 * top k. */
TEST(wide_beam_equals_brute_force)
{
    (void)state;
    static const double live[] = {0.0, 0.02, 0.2, 0.5, 0.9, 1.0};
    struct hth_rng rng;
    hth_rng_init(&rng, 21);
    for (int round = 0; round < 600; round++) {
        struct fixture f;
        uint32_t ndim = 1 + (uint32_t)hth_rng_below(&rng, 3);
        uint32_t most = ndim == 1 ? 300 : ndim == 2 ? 40 : 12;
        uint32_t dim[HTH_GRID_DIMS_MAX];
        for (int i = 0; i < HTH_GRID_DIMS_MAX; i++)
            dim[i] = 1 + (uint32_t)hth_rng_below(&rng, most);
        setup(&f, ndim, dim, live[hth_rng_below(&rng, HTH_ARRAY_LEN(live))], &rng);
        draw(&f, &rng, round % 3 == 0 ? 3 : 0);
        uint32_t k = 1 + (uint32_t)hth_rng_below(&rng, round % 5 == 0 ? K_MAX : 8);
        struct hth_beam_opts opts = {.k = k, .width = HTH_MAX(f.cells, k)};
        search(&f, &opts, 4);
        for (size_t b = 0; b < 4; b++)
            check_row_equals_brute(&f, b, k);
        teardown(&f);
    }
}

/* On a full grid the default width, and even a width of k, is exact. */
TEST(full_grid_is_exact_at_width_k)
{
    (void)state;
    static const uint32_t dims[][HTH_GRID_DIMS_MAX] = {{50, 33, 1}, {7, 100, 1}, {16, 16, 1}};
    struct hth_rng rng;
    hth_rng_init(&rng, 22);
    for (int round = 0; round < 60; round++) {
        struct fixture f;
        static const uint32_t cube[HTH_GRID_DIMS_MAX] = {9, 10, 17};
        bool three = round % 4 == 3;
        setup(&f, three ? 3 : 2, three ? cube : dims[round % 4], 1.0, &rng);
        draw(&f, &rng, 0);
        uint32_t k = 1 + (uint32_t)hth_rng_below(&rng, 6);
        struct hth_beam_opts opts = {.k = k, .width = round % 2 == 0 ? 0 : k};
        search(&f, &opts, ROWS_MAX);
        for (size_t b = 0; b < ROWS_MAX; b++)
            check_row_equals_brute(&f, b, k);
        teardown(&f);
    }
}

/* On a sparse grid a narrow beam may miss experts, but its scores are never below the
 * textbook's. */
TEST(narrow_beam_is_not_below_textbook)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 23);
    for (int round = 0; round < 200; round++) {
        struct fixture f;
        uint32_t ndim = 2 + (uint32_t)(round % 2);
        uint32_t dim[HTH_GRID_DIMS_MAX] = {4 + (uint32_t)hth_rng_below(&rng, 12),
                                           4 + (uint32_t)hth_rng_below(&rng, 12),
                                           2 + (uint32_t)hth_rng_below(&rng, 5)};
        setup(&f, ndim, dim, 0.05 + 0.5 * hth_rng_unit(&rng), &rng);
        draw(&f, &rng, 0);
        struct hth_beam_opts opts = {.k = 3, .width = 3 + (uint32_t)hth_rng_below(&rng, 4)};
        search(&f, &opts, 2);
        struct scored *want = hth_new_array(struct scored, f.cells);
        for (size_t b = 0; b < 2; b++) {
            size_t count = textbook(&f, f.tables + b * f.width, opts.width, want);
            assert_true(f.found[b] >= HTH_MIN(count, (size_t)3));
            for (size_t j = 0; j < f.found[b]; j++) {
                size_t at = b * 3 + j;
                assert_true(hth_grid_view_is_live(f.view, f.index[at]));
                assert_true(j >= count || f.score[at] >= want[j].score);
                assert_true(j == 0 || f.score[at] < f.score[at - 1] ||
                            (f.score[at] == f.score[at - 1] && f.index[at] > f.index[at - 1]));
            }
        }
        hth_free(want);
        teardown(&f);
    }
}

/* A gate that starts from zeros: the lowest indices win, and the search expands few prefixes. */
TEST(equal_scores_go_to_lowest_index)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 24);
    struct fixture f;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {256, 256, 1};
    setup(&f, 2, dim, 1.0, &rng);
    f.tables[3] = -0.0f; /* equal to +0 */
    f.tables[256] = -0.0f;
    struct hth_beam_opts opts = HTH_BEAM_OPTS_INIT;
    search(&f, &opts, 1);
    for (uint32_t j = 0; j < 4; j++)
        assert_int_equal(f.index[j], j);
    assert_true(f.stats.prefixes <= 8);
    teardown(&f);
}

/* An expert whose hosts are dead isn't in the grid view, so the search can't return it. */
TEST(experts_outside_the_view_are_not_found)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 25);
    struct fixture f;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {8, 8, 1};
    struct hth_beam_opts opts = HTH_BEAM_OPTS_INIT;
    setup(&f, 2, dim, 1.0, &rng);
    draw(&f, &rng, 0);
    search(&f, &opts, 1);
    uint32_t gone = f.index[1], experts[64], count = 0;
    uint32_t want[3] = {f.index[0], f.index[2], f.index[3]};
    for (uint32_t i = 0; i < 64; i++) {
        if (i != gone)
            experts[count++] = i;
    }
    hth_grid_view_unref(f.view);
    assert_ok(hth_grid_view_new(&f.grid, experts, count, &f.view));
    search(&f, &opts, 1);
    assert_memory_equal(f.index, want, sizeof(want));
    check_row_equals_brute(&f, 0, 4);
    teardown(&f);
}

TEST(rows_short_counts_missing_experts)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 26);
    struct fixture f;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {30, 30, 30};
    struct hth_beam_opts opts = HTH_BEAM_OPTS_INIT;
    setup(&f, 3, dim, 0.0, &rng); /* no live expert */
    draw(&f, &rng, 0);
    search(&f, &opts, ROWS_MAX);
    assert_int_equal(f.stats.rows, ROWS_MAX);
    assert_int_equal(f.stats.rows_empty, ROWS_MAX);
    assert_int_equal(f.stats.rows_short, ROWS_MAX);
    check_row_equals_brute(&f, 0, 4);
    uint32_t two[2] = {26999, 17};
    hth_grid_view_unref(f.view);
    assert_ok(hth_grid_view_new(&f.grid, two, 2, &f.view));
    memset(&f.stats, 0, sizeof(f.stats));
    search(&f, &opts, ROWS_MAX);
    assert_int_equal(f.stats.rows_empty, 0);
    assert_int_equal(f.stats.rows_short, ROWS_MAX);
    for (size_t b = 0; b < ROWS_MAX; b++)
        check_row_equals_brute(&f, b, 4);
    teardown(&f);
}

TEST(rows_not_finite_get_no_expert)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct hth_rng rng;
    hth_rng_init(&rng, 27);
    struct fixture f;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {20, 37, 1};
    struct hth_beam_opts opts = HTH_BEAM_OPTS_INIT;
    setup(&f, 2, dim, 1.0, &rng);
    for (uint32_t column = 0; column < f.width; column++) {
        draw(&f, &rng, 0);
        f.tables[1 * f.width + column] = bad[column % 3];
        memset(&f.stats, 0, sizeof(f.stats));
        search(&f, &opts, 3);
        assert_int_equal(f.stats.rows_not_finite, 1);
        assert_int_equal(f.stats.rows_empty, 1);
        assert_int_equal(f.found[1], 0);
        assert_true(f.index[4] == HTH_GATE_NONE);
        check_row_equals_brute(&f, 0, 4);
        check_row_equals_brute(&f, 2, 4);
    }
    teardown(&f);
}

/* Sums that overflow are ordered like any others. */
TEST(overflowing_sums_keep_their_order)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 28);
    for (int round = 0; round < 50; round++) {
        struct fixture f;
        uint32_t dim[HTH_GRID_DIMS_MAX] = {9, 17, 5};
        setup(&f, 3, dim, round % 2 == 0 ? 1.0 : 0.4, &rng);
        static const float huge[] = {FLT_MAX, -FLT_MAX, 3e38f, -3e38f, 1.0f, 0.0f};
        for (size_t i = 0; i < ROWS_MAX * (size_t)f.width; i++)
            f.tables[i] = huge[hth_rng_below(&rng, HTH_ARRAY_LEN(huge))];
        struct hth_beam_opts opts = {.k = round % 3 == 0 ? 20 : 4, .width = f.cells};
        search(&f, &opts, ROWS_MAX);
        for (size_t b = 0; b < ROWS_MAX; b++)
            check_row_equals_brute(&f, b, opts.k);
        teardown(&f);
    }
}

/* ---- noise --------------------------------------------------------------------------------- */

static void noisy_search(struct fixture *f, struct hth_beam *beam, uint64_t step, size_t first,
                         size_t rows, uint32_t *index)
{
    struct hth_beam_batch batch = {.view = f->view,
                                   .tables = f->tables + first * f->width,
                                   .rows = rows,
                                   .step = step,
                                   .first_row = first};
    struct hth_beam_result result = {.index = index, .score = f->score};
    assert_ok(hth_beam_search(beam, &batch, &result, NULL));
}

/* Noise depends on (seed, step, row) alone; the scores that come back are without noise. */
TEST(noise_depends_on_seed_step_and_row)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 29);
    struct fixture f;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {15, 18, 1};
    setup(&f, 2, dim, 1.0, &rng);
    draw(&f, &rng, 0);
    struct hth_beam_opts opts = {.k = 4, .noise_std = 2.0f, .seed = 99};
    struct hth_beam *beam;
    uint32_t whole[ROWS_MAX * 4], parts[ROWS_MAX * 4], other[ROWS_MAX * 4];
    assert_ok(hth_beam_new(&f.grid, &opts, &beam));
    noisy_search(&f, beam, 5, 0, ROWS_MAX, whole);
    for (size_t b = 0; b < ROWS_MAX; b++) {
        noisy_search(&f, beam, 5, b, 1, parts + b * 4);
        for (size_t j = 0; j < 4; j++) {
            float clean = partial(&f, f.tables + b * f.width, parts[b * 4 + j], 2);
            assert_true(f.score[j] == clean);
        }
    }
    assert_memory_equal(whole, parts, sizeof(whole));
    noisy_search(&f, beam, 6, 0, ROWS_MAX, other);
    assert_memory_not_equal(whole, other, sizeof(whole));
    hth_beam_free(beam);
    opts.seed = 100;
    assert_ok(hth_beam_new(&f.grid, &opts, &beam));
    noisy_search(&f, beam, 5, 0, ROWS_MAX, other);
    assert_memory_not_equal(whole, other, sizeof(whole));
    hth_beam_free(beam);
    teardown(&f);
}

/* Two experts whose scores differ by delta: the worse one is chosen with the probability that a
 * normal of standard deviation std * sqrt(2) exceeds delta. */
TEST(noise_swaps_experts_at_its_probability)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 30);
    struct fixture f;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {2, 1, 1};
    setup(&f, 1, dim, 1.0, &rng);
    f.tables[0] = 1.0f; /* row 0: delta 1 */
    struct hth_beam_opts opts = {.k = 1, .noise_std = 1.0f, .seed = 7};
    struct hth_beam *beam;
    assert_ok(hth_beam_new(&f.grid, &opts, &beam));
    double trials = 20000, worse = 0;
    for (uint64_t step = 0; step < (uint64_t)trials; step++) {
        uint32_t index;
        noisy_search(&f, beam, step, 0, 1, &index);
        worse += index == 1;
    }
    double p = 0.5 * erfc(1.0 / sqrt(2.0) / sqrt(2.0)); /* 0.2398 */
    assert_close(worse / trials, p, 0, 4 * sqrt(p * (1 - p) / trials));
    hth_beam_free(beam);
    teardown(&f);
}

/* ---- limits and memory --------------------------------------------------------------------- */

TEST(options_and_grids_beyond_limits_are_refused)
{
    (void)state;
    struct hth_grid grid, other;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {4, 4, 1}, wide[HTH_GRID_DIMS_MAX] = {4, 5, 1};
    assert_ok(hth_grid_init(&grid, "ffn0", 2, dim));
    assert_ok(hth_grid_init(&other, "ffn0", 2, wide));
    struct hth_beam *beam;
    static const struct hth_beam_opts bad[] = {
        {.k = 0},
        {.k = HTH_TOP_K_MAX + 1},
        {.k = 4, .width = 3},
        {.k = 4, .width = HTH_BEAM_WIDTH_MAX + 1},
        {.k = 4, .noise_std = -1.0f},
        {.k = 4, .noise_std = NAN},
        {.k = 4, .noise_std = INFINITY},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        assert_err(HTH_E_RANGE, hth_beam_new(&grid, &bad[i], &beam));
        assert_null(beam);
    }
    struct hth_beam_opts most = {.k = HTH_TOP_K_MAX, .width = HTH_BEAM_WIDTH_MAX};
    assert_ok(hth_beam_new(&grid, &most, &beam));
    struct hth_grid_view *view;
    uint32_t experts[1] = {3}, index[HTH_TOP_K_MAX];
    float tables[9] = {0}, score[HTH_TOP_K_MAX];
    assert_ok(hth_grid_view_new(&other, experts, 1, &view));
    struct hth_beam_batch batch = {.view = view, .tables = tables, .rows = 1};
    struct hth_beam_result result = {.index = index, .score = score};
    assert_err(HTH_E_BAD_SHAPE, hth_beam_search(beam, &batch, &result, NULL));
    hth_grid_view_unref(view);
    hth_beam_free(beam);
    hth_beam_free(NULL);
}

TEST(search_allocates_nothing)
{
    (void)state;
    struct hth_rng rng;
    hth_rng_init(&rng, 31);
    struct fixture f;
    uint32_t dim[HTH_GRID_DIMS_MAX] = {20, 20, 1};
    setup(&f, 2, dim, 0.5, &rng);
    draw(&f, &rng, 0);
    struct hth_beam_opts opts = {.k = 4, .noise_std = 0.1f};
    struct hth_beam *beam;
    for (long n = 1; n <= 2; n++) {
        hth_mem_fail_at(n);
        assert_err(HTH_E_NO_MEMORY, hth_beam_new(&f.grid, &opts, &beam));
        assert_null(beam);
    }
    hth_mem_fail_at(0);
    assert_ok(hth_beam_new(&f.grid, &opts, &beam));
    hth_mem_fail_at(1); /* an allocation in a search would fail */
    noisy_search(&f, beam, 1, 0, ROWS_MAX, f.index);
    assert_int_equal(hth_mem_try_count(), 0);
    hth_mem_fail_at(0);
    hth_beam_free(beam);
    teardown(&f);
}
