/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * beam.c: two passes over the view's tree per row; beam.h has the contract and the reason why the
 * cut between them is exact.
 *
 *   row tables --prepare--> maxima, lower bounds --narrow pass (k prefixes a level)--> k best, tau
 *                                                --wide pass (width, cut by tau)-----> the result
 *
 * Candidates are 64-bit keys whose integer order is the total order of the search: the score's bits
 * made monotonic above the complement of the node's place in its level. Places ascend with the grid
 * index, so equal scores go to the lower index.
 */
/* clang-format on */
#include "gating/beam.h"

#include "core/limits.h"
#include "core/mem.h"
#include "core/rng.h"
#include "gating/simd.h"

#include <float.h>

/* The best `cap` keys seen, as a binary heap with the worst at its root. */
struct top {
    uint64_t *keys;
    uint32_t count;
    uint32_t cap;
};

struct hth_beam {
    struct hth_grid grid;
    struct hth_beam_opts opts;
    uint32_t table_width;
    struct top best;      /* experts found: k */
    struct top narrow[2]; /* prefixes of level 0 and 1 in the narrow pass: k */
    struct top wide[2];   /* the same in the wide pass: width */
    float *noisy;         /* one row's tables with noise; NULL without */
    uint64_t *arena;      /* holds all keys */
    /* State of the current row. */
    const struct hth_grid_view *view;
    const float *table[HTH_GRID_DIMS_MAX];
    float max[HTH_GRID_DIMS_MAX];     /* of each table */
    float kth_low[HTH_GRID_DIMS_MAX]; /* at least k entries of the table are >= this */
    uint64_t prefixes;
};

/* ---- keys ---------------------------------------------------------------------------------- */

/* Monotonic: a < b as floats gives a smaller number; -0 and +0 give the same. */
static inline uint32_t order_of(float score)
{
    uint32_t bits;
    float positive_zero = score + 0.0f;
    memcpy(&bits, &positive_zero, sizeof(bits));
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

static inline uint64_t key_of(float score, uint32_t node)
{
    return (uint64_t)order_of(score) << 32 | (UINT32_MAX - node);
}

static inline uint32_t key_node(uint64_t key)
{
    return UINT32_MAX - (uint32_t)key;
}

static inline float key_score(uint64_t key)
{
    uint32_t order = (uint32_t)(key >> 32);
    uint32_t bits = (order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order;
    float score;
    memcpy(&score, &bits, sizeof(score));
    return score;
}

static void sift_down(uint64_t *keys, uint32_t count, uint64_t key)
{
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && keys[child + 1] < keys[child])
            child++;
        if (key <= keys[child])
            break;
        keys[at] = keys[child];
        at = child;
    }
    keys[at] = key;
}

static void top_push(struct top *top, uint64_t key)
{
    if (top->count == top->cap) {
        if (key > top->keys[0])
            sift_down(top->keys, top->count, key);
        return;
    }
    uint32_t at = top->count++;
    while (at > 0 && key < top->keys[(at - 1) / 2]) {
        top->keys[at] = top->keys[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    top->keys[at] = key;
}

/* The least score that can enter. A node of equal score enters if its index is lower. */
static inline float top_floor(const struct top *top)
{
    return top->count == top->cap ? key_score(top->keys[0]) : -INFINITY;
}

/* Heap sort, best first. The result is not a heap: nothing may be pushed until the next reset. */
static void top_sort(struct top *top)
{
    for (uint32_t left = top->count; left > 1; left--) {
        uint64_t worst = top->keys[0];
        uint64_t last = top->keys[left - 1];
        sift_down(top->keys, left - 1, last);
        top->keys[left - 1] = worst;
    }
}

/* ---- scans --------------------------------------------------------------------------------- */

/* Vectors of eight numbers, for the two loops that the compiler doesn't vectorise by itself.
 * Without AVX each takes two registers. */
typedef float hth_f32x8 __attribute__((vector_size(32)));
typedef int32_t hth_i32x8 __attribute__((vector_size(32)));
typedef int64_t hth_i64x4 __attribute__((vector_size(32)));
_Static_assert(HTH_LANES == 16, "a block is two vectors");

/* Returns the start of the next block of HTH_LANES entries from `i` on that holds base + s >= low,
 * or else the start of the last, incomplete block. */
HTH_CLONES static size_t hth_gating_skip_dense(const float *s, size_t i, size_t n, float base,
                                               float low)
{
    for (; i + HTH_LANES <= n; i += HTH_LANES) {
        hth_f32x8 x, y;
        memcpy(&x, s + i, sizeof(x));
        memcpy(&y, s + i + 8, sizeof(y));
        hth_i64x4 any = (hth_i64x4)(x + base >= low) | (hth_i64x4)(y + base >= low);
        if ((any[0] | any[1] | any[2] | any[3]) != 0)
            break;
    }
    return i;
}

/* The limits of a scan, besides the floor of its target: nodes outside them are not pushed. */
struct cut {
    float tau;     /* least score + tail[0] + tail[1] */
    float low;     /* least score */
    float tail[2]; /* most that each level below can add */
};

/* A lower bound of the scores that pass the cut: cut_passes() is exact. 4 ulp of each term more
 * than cover the rounding of the sums. */
static float cut_low(const struct cut *cut)
{
    float slack =
        4.0f * FLT_EPSILON * (fabsf(cut->tau) + fabsf(cut->tail[0]) + fabsf(cut->tail[1]));
    if (!(slack < FLT_MAX))
        return cut->low;
    float low = cut->tau - cut->tail[0] - cut->tail[1] - slack;
    return HTH_MAX(low, cut->low);
}

static inline bool cut_passes(const struct cut *cut, float score)
{
    return (score + cut->tail[0]) + cut->tail[1] >= cut->tau;
}

/* Pushes the nodes [begin, end) of a level, siblings below a prefix with score `base`. */
static void scan(const struct hth_beam *beam, uint32_t level, float base, uint32_t begin,
                 uint32_t end, const struct cut *cut, struct top *into)
{
    const float *s = beam->table[level];
    uint32_t n = end - begin;
    float low = cut_low(cut);
    float floor = HTH_MAX(low, top_floor(into));
    if (n < beam->grid.dim[level]) {
        const uint32_t *coord = beam->view->coord[level] + begin;
        for (uint32_t i = 0; i < n; i++) {
            float score = base + s[coord[i]];
            if (score >= floor && cut_passes(cut, score)) {
                top_push(into, key_of(score, begin + i));
                floor = HTH_MAX(low, top_floor(into));
            }
        }
        return;
    }
    /* All coordinates are live: node i is coordinate i, and whole blocks can be skipped. */
    for (uint32_t i = 0; (i = (uint32_t)hth_gating_skip_dense(s, i, n, base, floor)) < n;) {
        for (uint32_t stop = HTH_MIN(i + HTH_LANES, n); i < stop; i++) {
            float score = base + s[i];
            if (score >= floor && cut_passes(cut, score)) {
                top_push(into, key_of(score, begin + i));
                floor = HTH_MAX(low, top_floor(into));
            }
        }
    }
}

/* ---- one row ------------------------------------------------------------------------------- */

/* lane[l] = maximum of s[l], s[l + HTH_LANES], ...; returns non-zero when an entry is NaN or
 * infinite; the maxima are not valid then. */
HTH_CLONES static uint32_t hth_gating_lane_maxima(const float *s, size_t n, float *lane)
{
    const uint32_t exponent = 0x7f800000u;
    hth_f32x8 max[2];
    hth_i32x8 bad = {0};
    for (size_t l = 0; l < HTH_LANES; l++)
        lane[l] = -INFINITY;
    memcpy(max, lane, sizeof(max));
    size_t i = 0;
    for (; i + HTH_LANES <= n; i += HTH_LANES) {
        for (size_t half = 0; half < 2; half++) {
            hth_i32x8 bits, old, more;
            hth_f32x8 x;
            memcpy(&x, s + i + 8 * half, sizeof(x));
            memcpy(&bits, &x, sizeof(bits));
            memcpy(&old, &max[half], sizeof(old));
            bad |= (bits & (int32_t)exponent) == (int32_t)exponent;
            more = x > max[half];
            bits = (bits & more) | (old & ~more);
            memcpy(&max[half], &bits, sizeof(bits));
        }
    }
    memcpy(lane, max, sizeof(max));
    uint32_t any = 0;
    for (size_t l = 0; l < 8; l++)
        any |= (uint32_t)bad[l];
    for (size_t l = 0; i < n; i++, l++) {
        any |= hth_not_finite(s[i]);
        lane[l] = s[i] > lane[l] ? s[i] : lane[l];
    }
    return any;
}

/* Computes a table's maximum, and a bound that at least k of its entries reach: the k-th largest of
 * the maxima of HTH_LANES disjoint subsets. False when an entry is not finite. */
static bool prepare_table(struct hth_beam *beam, uint32_t dim)
{
    float lane[HTH_LANES];
    if (hth_gating_lane_maxima(beam->table[dim], beam->grid.dim[dim], lane) != 0)
        return false;
    uint32_t k = beam->opts.k;
    uint32_t sorted = HTH_MIN(k, (uint32_t)HTH_LANES);
    for (uint32_t i = 0; i < sorted; i++) {
        uint32_t at = i;
        for (uint32_t l = i + 1; l < HTH_LANES; l++)
            at = lane[l] > lane[at] ? l : at;
        float swap = lane[i];
        lane[i] = lane[at];
        lane[at] = swap;
    }
    beam->max[dim] = lane[0];
    beam->kth_low[dim] = k <= HTH_LANES ? lane[k - 1] : -INFINITY;
    return true;
}

/* Sets the most that each of the levels below `level` can add to a score. */
static void set_tails(const struct hth_beam *beam, uint32_t level, struct cut *cut)
{
    uint32_t n = beam->grid.ndim;
    cut->tail[0] = level + 1 < n ? beam->max[level + 1] : 0.0f;
    cut->tail[1] = level + 2 < n ? beam->max[level + 2] : 0.0f;
}

/* A floor for the first scan into an empty target of `cap` <= k: at least k entries reach it. */
static float first_low(const struct hth_beam *beam, uint32_t level, float base, uint32_t n,
                       const struct top *into)
{
    bool known = into->count == 0 && into->cap <= beam->opts.k && n == beam->grid.dim[level];
    return known ? base + beam->kth_low[level] : -INFINITY;
}

static bool contains_node(const struct top *top, uint32_t node)
{
    for (uint32_t i = 0; i < top->count; i++) {
        if (key_node(top->keys[i]) == node)
            return true;
    }
    return false;
}

/* Scans the children of each parent, best parent first, until no parent left can have a child in
 * the result. `done` holds parents whose children were already scanned; NULL: none. */
static void expand(struct hth_beam *beam, uint32_t level, const struct top *parents,
                   const struct top *done, struct top *into)
{
    const uint32_t *start = beam->view->start[level - 1];
    struct cut cut = {.tau = -INFINITY};
    set_tails(beam, level, &cut);
    for (uint32_t i = 0; i < parents->count; i++) {
        float base = key_score(parents->keys[i]);
        uint32_t node = key_node(parents->keys[i]);
        float bound = base + beam->max[level];
        cut.tau = top_floor(&beam->best);
        if (bound < top_floor(into) || !cut_passes(&cut, bound))
            break;
        /* Ties go to the lower index: where all scores are equal, as at the start of a training,
         * the first parents win and the others need no scan. */
        bool late = into->count == into->cap && key_of(bound, start[node]) <= into->keys[0];
        if (late || (done != NULL && contains_node(done, node)))
            continue;
        cut.low = first_low(beam, level, base, start[node + 1] - start[node], into);
        scan(beam, level, base, start[node], start[node + 1], &cut, into);
        beam->prefixes++;
    }
}

/* One pass down the tree with the given beams per level; it leaves the experts in beam->best. */
static void walk(struct hth_beam *beam, struct top *levels, const struct top *done)
{
    uint32_t last = beam->grid.ndim - 1;
    struct cut cut = {.tau = top_floor(&beam->best)};
    set_tails(beam, 0, &cut);
    struct top *into = last == 0 ? &beam->best : &levels[0];
    cut.low = first_low(beam, 0, 0.0f, beam->view->count[0], into);
    scan(beam, 0, 0.0f, 0, beam->view->count[0], &cut, into);
    for (uint32_t level = 1; level <= last; level++) {
        struct top *parents = &levels[level - 1];
        top_sort(parents);
        into = level == last ? &beam->best : &levels[level];
        expand(beam, level, parents, level == last ? done : NULL, into);
    }
}

/* Leaves the row's experts in beam->best, sorted. False when the tables aren't finite. */
static bool search_row(struct hth_beam *beam, const float *tables)
{
    uint32_t last = beam->grid.ndim - 1;
    beam->best.count = 0;
    for (uint32_t dim = 0; dim <= last; dim++) {
        beam->table[dim] = tables;
        tables += beam->grid.dim[dim];
        if (!prepare_table(beam, dim))
            return false;
    }
    for (uint32_t i = 0; i < 2; i++)
        beam->narrow[i].count = beam->wide[i].count = 0;
    walk(beam, beam->narrow, NULL);
    if (last > 0)
        walk(beam, beam->wide, &beam->narrow[last - 1]);
    top_sort(&beam->best);
    return true;
}

/* ---- the batch ----------------------------------------------------------------------------- */

/* noisy = row + noise_std * normal(seed, step, row, column); four columns per Philox call. */
static const float *add_noise(struct hth_beam *beam, const struct hth_beam_batch *batch, size_t b,
                              const float *row)
{
    uint64_t number = batch->first_row + b;
    uint64_t mixed = hth_mix64(beam->opts.seed ^ hth_mix64(batch->step));
    uint32_t key[2] = {(uint32_t)mixed, (uint32_t)(mixed >> 32)};
    for (uint32_t c = 0; c < beam->table_width; c += 4) {
        uint32_t counter[4] = {c / 4, (uint32_t)number, (uint32_t)(number >> 32), 0x6761u};
        float normal[4];
        hth_philox_normal(counter, key, normal);
        for (uint32_t i = 0; i < 4 && c + i < beam->table_width; i++)
            beam->noisy[c + i] = row[c + i] + beam->opts.noise_std * normal[i];
    }
    return beam->noisy;
}

static void write_row(const struct hth_beam *beam, const struct hth_beam_result *result, size_t b,
                      const float *row)
{
    uint32_t k = beam->opts.k;
    for (uint32_t j = 0; j < k; j++) {
        size_t at = b * k + j;
        uint32_t coord[HTH_GRID_DIMS_MAX] = {0};
        result->index[at] = HTH_GATE_NONE;
        result->score[at] = -INFINITY;
        if (j < beam->best.count) {
            uint32_t expert = beam->view->expert[key_node(beam->best.keys[j])];
            result->index[at] = expert;
            result->score[at] = hth_gate_score(&beam->grid, row, expert);
            if (result->coord != NULL)
                hth_grid_coords(&beam->grid, expert, coord);
        }
        if (result->coord != NULL)
            memcpy(result->coord + at * HTH_GRID_DIMS_MAX, coord, sizeof(coord));
    }
    if (result->found != NULL)
        result->found[b] = beam->best.count;
}

static bool same_grid(const struct hth_grid *grid, const struct hth_grid_view *view)
{
    if (grid->ndim != view->ndim)
        return false;
    for (uint32_t i = 0; i < grid->ndim; i++) {
        if (grid->dim[i] != view->dim[i])
            return false;
    }
    return true;
}

enum hth_err hth_beam_search(struct hth_beam *beam, const struct hth_beam_batch *batch,
                             const struct hth_beam_result *result, struct hth_beam_stats *stats)
{
    if (!same_grid(&beam->grid, batch->view))
        return HTH_E_BAD_SHAPE;
    struct hth_beam_stats sum = {.rows = batch->rows};
    beam->view = batch->view;
    beam->prefixes = 0;
    for (size_t b = 0; b < batch->rows; b++) {
        const float *row = batch->tables + b * beam->table_width;
        const float *tables = beam->noisy != NULL ? add_noise(beam, batch, b, row) : row;
        sum.rows_not_finite += !search_row(beam, tables);
        sum.rows_short += beam->best.count < beam->opts.k;
        sum.rows_empty += beam->best.count == 0;
        write_row(beam, result, b, row);
    }
    beam->view = NULL;
    if (stats != NULL) {
        stats->rows += sum.rows;
        stats->rows_short += sum.rows_short;
        stats->rows_empty += sum.rows_empty;
        stats->rows_not_finite += sum.rows_not_finite;
        stats->prefixes += beam->prefixes;
    }
    return HTH_OK;
}

enum hth_err hth_beam_new(const struct hth_grid *grid, const struct hth_beam_opts *opts,
                          struct hth_beam **out)
{
    *out = NULL;
    uint32_t k = opts->k;
    uint32_t width = opts->width;
    if (width == 0)
        width = HTH_MAX(k, (uint32_t)HTH_BEAM_WIDTH_DEFAULT);
    bool good = k >= 1 && k <= HTH_TOP_K_MAX && width >= k && width <= HTH_BEAM_WIDTH_MAX &&
                opts->noise_std >= 0.0f && opts->noise_std <= FLT_MAX;
    if (!good)
        return HTH_E_RANGE;
    struct hth_beam *beam = hth_new(struct hth_beam);
    beam->grid = *grid;
    beam->opts = *opts;
    beam->table_width = hth_gate_width(grid);
    beam->arena = hth_try_calloc(3 * (size_t)k + 2 * (size_t)width, sizeof(uint64_t));
    if (opts->noise_std > 0.0f)
        beam->noisy = hth_try_calloc(beam->table_width, sizeof(float));
    if (beam->arena == NULL || (opts->noise_std > 0.0f && beam->noisy == NULL)) {
        hth_beam_free(beam);
        return HTH_E_NO_MEMORY;
    }
    beam->best = (struct top){.keys = beam->arena, .cap = k};
    for (uint32_t i = 0; i < 2; i++) {
        beam->narrow[i] = (struct top){.keys = beam->arena + (i + 1) * (size_t)k, .cap = k};
        beam->wide[i] =
            (struct top){.keys = beam->arena + 3 * (size_t)k + i * (size_t)width, .cap = width};
    }
    *out = beam;
    return HTH_OK;
}

void hth_beam_free(struct hth_beam *beam)
{
    if (beam == NULL)
        return;
    hth_free(beam->noisy);
    hth_free(beam->arena);
    hth_free(beam);
}
