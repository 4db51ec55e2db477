/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pure.c: the runner of pure.h: coins, errors, targets, statistics; and the mixing of random
 * groups.
 */
#include "scenarios/pure_int.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

#define COLUMNS HTH_PURE_COLUMNS

static const double targets[2] = {1e-4, 1e-9};

/* ---- names --------------------------------------------------------------------------------- */

const char *hth_pure_method_name(enum hth_pure_method method)
{
    static const char *const names[] = {
#define HTH_PURE_NAME(name, text) text,
        HTH_PURE_METHOD_MAP(HTH_PURE_NAME)
#undef HTH_PURE_NAME
    };
    return (unsigned)method < HTH_PURE_METHODS ? names[method] : "unknown";
}

enum hth_err hth_pure_method_find(const char *name, enum hth_pure_method *out)
{
    for (int m = 0; m < HTH_PURE_METHODS; m++) {
        if (strcmp(name, hth_pure_method_name((enum hth_pure_method)m)) == 0) {
            *out = (enum hth_pure_method)m;
            return HTH_OK;
        }
    }
    return HTH_E_NOT_FOUND;
}

const char *hth_pure_failure_name(enum hth_pure_failure failure)
{
    static const char *const names[] = {
#define HTH_PURE_NAME(name, text) text,
        HTH_PURE_FAILURE_MAP(HTH_PURE_NAME)
#undef HTH_PURE_NAME
    };
    return (unsigned)failure < HTH_PURE_FAILURES ? names[failure] : "unknown";
}

enum hth_err hth_pure_failure_find(const char *name, enum hth_pure_failure *out)
{
    for (int f = 0; f < HTH_PURE_FAILURES; f++) {
        if (strcmp(name, hth_pure_failure_name((enum hth_pure_failure)f)) == 0) {
            *out = (enum hth_pure_failure)f;
            return HTH_OK;
        }
    }
    return HTH_E_NOT_FOUND;
}

/* ---- life ---------------------------------------------------------------------------------- */

enum hth_err hth_pure_check(const struct hth_pure_opts *o)
{
    if ((unsigned)o->method >= HTH_PURE_METHODS || o->peers == 0 || o->peers > HTH_PURE_PEERS_MAX ||
        o->rounds == 0 || o->rounds > HTH_PURE_ROUNDS_MAX || o->cap == 0 ||
        o->cap > HTH_PURE_ROUNDS_MAX || (unsigned)o->failure >= HTH_PURE_FAILURES || o->hold == 0 ||
        !(o->p_fail >= 0 && o->p_fail < 1))
        return HTH_E_CONFIG;
    if (hth_avg_shape_check(&o->shape) != HTH_OK || hth_avg_cells(&o->shape) > HTH_PURE_CELLS_MAX)
        return HTH_E_CONFIG;
    if (hth_pure_steps[o->method].cells && o->peers > hth_avg_cells(&o->shape))
        return HTH_E_CONFIG;
    return HTH_OK;
}

enum hth_err hth_pure_new(const struct hth_pure_opts *opts, struct hth_pure **out)
{
    *out = NULL;
    HTH_TRY(hth_pure_check(opts));
    struct hth_pure *p = hth_new(struct hth_pure);
    p->opts = *opts;
    p->step = &hth_pure_steps[opts->method];
    p->cells = hth_avg_cells(&opts->shape);
    p->x = hth_new_array(hth_pure_vec, opts->peers);
    p->y = hth_new_array(hth_pure_vec, opts->peers);
    p->fate = hth_new_array(uint8_t, opts->peers);
    if (opts->method == HTH_PURE_PUSHSUM) {
        p->weight = hth_new_array(double, opts->peers);
        p->next = hth_new_array(double, opts->peers);
    }
    p->shuffled = hth_new_array(uint32_t, HTH_MAX(p->cells, opts->peers));
    if (p->step->cells) {
        p->order = hth_new_array(uint32_t, (size_t)opts->shape.dims * opts->peers);
        p->begin = hth_new_array(uint32_t, (size_t)opts->shape.dims * (p->cells + 2));
        p->cell = hth_new_array(struct hth_avg_cell, opts->peers);
    }
    *out = p;
    return HTH_OK;
}

void hth_pure_free(struct hth_pure *p)
{
    if (p == NULL)
        return;
    hth_free(p->x);
    hth_free(p->y);
    hth_free(p->weight);
    hth_free(p->next);
    hth_free(p->fate);
    hth_free(p->order);
    hth_free(p->shuffled);
    hth_free(p->begin);
    hth_free(p->cell);
    hth_free(p);
}

size_t hth_pure_row_len(const struct hth_pure_opts *opts)
{
    return 3 * (size_t)opts->rounds + 4;
}

size_t hth_pure_at(const struct hth_pure_opts *opts, int what)
{
    return 3 * (size_t)opts->rounds + (size_t)what;
}

/* ---- one seed ------------------------------------------------------------------------------ */

/* Draw the number of failures before the first success: geometric, by inversion. log_fail is the
 * logarithm of the chance of a failure. */
static double draw_failures(struct hth_rng *rng, double log_fail)
{
    double u = 1 - hth_rng_unit(rng); /* in (0, 1] */
    return log_fail < 0 ? HTH_MIN(floor(log(u) / log_fail), 1e15) : 1e15;
}

static enum hth_pure_fate draw_fate(struct hth_pure *p)
{
    switch (p->opts.failure) {
    case HTH_PURE_CRASH:
        return hth_rng_chance(&p->coins, 0.5) ? HTH_PURE_DIES_EARLY : HTH_PURE_DIES_LATE;
    case HTH_PURE_SLOW:
        return HTH_PURE_LATE;
    case HTH_PURE_PARTITION:
        return HTH_PURE_CUT;
    default:
        return HTH_PURE_AWAY;
    }
}

/* Draw the peers that fail. The gaps between them are geometric, so only failures cost a draw. */
static void draw_fates(struct hth_pure *p)
{
    double log_there = log1p(-p->opts.p_fail);
    memset(p->fate, HTH_PURE_HERE, p->opts.peers * sizeof(*p->fate));
    if (p->opts.p_fail == 0)
        return;
    for (double at = draw_failures(&p->coins, log_there); at < p->opts.peers;
         at += 1 + draw_failures(&p->coins, log_there))
        p->fate[(size_t)at] = (uint8_t)draw_fate(p);
}

static void draw_values(struct hth_pure *p)
{
    memset(p->mean, 0, sizeof(p->mean));
    for (uint32_t i = 0; i < p->opts.peers; i++)
        for (int c = 0; c < COLUMNS; c++) {
            p->x[i][c] = hth_rng_normal(&p->rng);
            p->mean[c] += p->x[i][c];
        }
    for (int c = 0; c < COLUMNS; c++)
        p->mean[c] /= p->opts.peers;
}

/* Compute the present squared errors of each column: to the first mean, and to the present mean. */
static void measure(const struct hth_pure *p, hth_pure_vec mse, hth_pure_vec variance)
{
    hth_pure_vec sum = {0}, square = {0};
    for (uint32_t i = 0; i < p->opts.peers; i++) {
        double scale = p->weight != NULL ? 1 / p->weight[i] : 1;
        for (int c = 0; c < COLUMNS; c++) {
            double off = p->x[i][c] * scale - p->mean[c];
            sum[c] += off;
            square[c] += off * off;
        }
    }
    for (int c = 0; c < COLUMNS; c++) {
        double shift = sum[c] / p->opts.peers;
        mse[c] = square[c] / p->opts.peers;
        variance[c] = HTH_MAX(0.0, mse[c] - shift * shift);
    }
}

static double mean_of(const hth_pure_vec v)
{
    double sum = 0;
    for (int c = 0; c < COLUMNS; c++)
        sum += v[c];
    return sum / COLUMNS;
}

/* Draw the number of rounds until no peer fails: nothing happens in earlier rounds. */
static void run_allreduce(struct hth_pure *p, double *row)
{
    const struct hth_pure_opts *o = &p->opts;
    double log_fail = log1p(-1 / hth_pure_allreduce_rounds(o)), total = 0;
    hth_pure_vec start, unused;
    measure(p, unused, start);
    for (int c = 0; c < COLUMNS; c++) {
        double before = o->p_fail == 0 ? 0 : o->hold * draw_failures(&p->coins, log_fail);
        for (uint32_t t = 0; t < o->rounds && t < before; t++) {
            row[t] += start[c] / COLUMNS;
            row[o->rounds + t] += start[c] / COLUMNS;
        }
        for (uint32_t t = 0; t < o->rounds && t <= before; t++)
            row[2 * o->rounds + t] += 2.0 * (o->peers - 1) / o->peers / COLUMNS;
        total += before + 1;
    }
    row[hth_pure_at(o, HTH_PURE_REACHED)] = total / COLUMNS;
    row[hth_pure_at(o, HTH_PURE_REACHED_1E9)] = total / COLUMNS;
}

/* Count one more round for every column that has not reached its target; returns how many there
 * are. */
static int count_round(const struct hth_pure *p, const hth_pure_vec variance, uint32_t round,
                       bool arrived[2][COLUMNS], double *row)
{
    int left = 0;
    for (int k = 0; k < 2; k++) {
        double *reached = row + hth_pure_at(&p->opts, HTH_PURE_REACHED + k);
        for (int c = 0; c < COLUMNS; c++) {
            if (arrived[k][c])
                continue;
            *reached += 1.0 / COLUMNS;
            arrived[k][c] = variance[c] < targets[k];
            left += !arrived[k][c];
            if (!arrived[k][c] && round + 1 == p->opts.cap)
                row[hth_pure_at(&p->opts, HTH_PURE_UNREACHED + k)] += 1.0 / COLUMNS;
        }
    }
    return left;
}

void hth_pure_run(struct hth_pure *p, uint64_t index, double *row)
{
    const struct hth_pure_opts *o = &p->opts;
    struct hth_rng root;
    bool arrived[2][COLUMNS] = {{false}};
    int left = 2 * COLUMNS;
    hth_rng_init(&root, o->seed);
    p->rng = hth_rng_split(&root, "pure", index);
    p->coins = hth_rng_split(&root, "coins", index);
    memset(row, 0, hth_pure_row_len(o) * sizeof(*row));
    draw_values(p);
    if (o->method == HTH_PURE_ALLREDUCE) {
        run_allreduce(p, row);
        return;
    }
    if (p->step->start != NULL)
        p->step->start(p);
    for (uint32_t t = 0; t < o->rounds || (t < o->cap && left > 0); t++) {
        hth_pure_vec mse, variance;
        if (t % o->hold == 0)
            draw_fates(p);
        p->sent = 0;
        p->step->round(p, t);
        measure(p, mse, variance);
        if (t < o->rounds) {
            row[t] = mean_of(mse);
            row[o->rounds + t] = mean_of(variance);
            row[2 * o->rounds + t] = p->sent / o->peers;
        }
        if (t < o->cap)
            left = count_round(p, variance, t, arrived, row);
    }
}

/* ---- all-reduce ---------------------------------------------------------------------------- */

double hth_pure_allreduce_rounds(const struct hth_pure_opts *o)
{
    double none = (double)o->peers * log1p(-o->p_fail);
    if (o->failure == HTH_PURE_PARTITION && o->p_fail > 0)
        return 1 / (exp(none) + pow(o->p_fail, o->peers));
    return exp(-none);
}

/* ---- mixing -------------------------------------------------------------------------------- */

/* Mix once: split the peers into random groups of near-equal size; each group takes its mean. */
static void mix(const struct hth_mixing_opts *o, struct hth_rng *rng, uint32_t *order,
                hth_pure_vec *x)
{
    const uint32_t *member = order;
    hth_rng_shuffle(rng, order, o->peers, sizeof(*order));
    for (uint32_t g = 0; g < o->groups; g++) {
        uint32_t size = hth_pure_group_size(o->peers, o->groups, g);
        hth_pure_vec sum = {0};
        for (uint32_t i = 0; i < size; i++)
            for (int c = 0; c < COLUMNS; c++)
                sum[c] += x[member[i]][c];
        for (uint32_t i = 0; i < size; i++)
            for (int c = 0; c < COLUMNS; c++)
                x[member[i]][c] = sum[c] / size;
        member += size;
    }
}

/* Sum the squares of each column; the columns' means are 0. */
static void squares_of(const hth_pure_vec *x, uint32_t peers, hth_pure_vec out)
{
    memset(out, 0, sizeof(hth_pure_vec));
    for (uint32_t i = 0; i < peers; i++)
        for (int c = 0; c < COLUMNS; c++)
            out[c] += x[i][c] * x[i][c];
}

static void draw_centred(struct hth_rng *rng, hth_pure_vec *x, uint32_t peers)
{
    hth_pure_vec sum = {0};
    for (uint32_t i = 0; i < peers; i++)
        for (int c = 0; c < COLUMNS; c++) {
            x[i][c] = hth_rng_normal(rng);
            sum[c] += x[i][c];
        }
    for (uint32_t i = 0; i < peers; i++)
        for (int c = 0; c < COLUMNS; c++)
            x[i][c] -= sum[c] / peers;
}

enum hth_err hth_mixing_block(const struct hth_mixing_opts *o, uint64_t index, uint64_t trials,
                              double *sums, double *squares)
{
    struct hth_rng root, rng;
    if (o->peers < 2 || o->peers > HTH_PURE_PEERS_MAX || o->groups == 0 || o->groups > o->peers ||
        o->rounds == 0 || o->rounds > HTH_PURE_ROUNDS_MAX)
        return HTH_E_CONFIG;
    hth_pure_vec *x = hth_new_array(hth_pure_vec, o->peers);
    uint32_t *order = hth_new_array(uint32_t, o->peers);
    hth_rng_init(&root, o->seed);
    rng = hth_rng_split(&root, "mixing", index);
    for (uint32_t i = 0; i < o->peers; i++)
        order[i] = i;
    for (uint64_t trial = 0; trial < trials; trial++) {
        hth_pure_vec first, now;
        draw_centred(&rng, x, o->peers);
        squares_of(x, o->peers, first);
        for (uint32_t t = 0; t < o->rounds; t++) {
            double factor = 0;
            mix(o, &rng, order, x);
            squares_of(x, o->peers, now);
            for (int c = 0; c < COLUMNS; c++)
                factor += now[c] / first[c] / COLUMNS;
            sums[t] += factor;
            squares[t] += factor * factor;
        }
    }
    hth_free(x);
    hth_free(order);
    return HTH_OK;
}

double hth_mixing_exact(const struct hth_mixing_opts *o, uint32_t rounds)
{
    return pow(((double)o->groups - 1) / ((double)o->peers - 1), rounds);
}

double hth_mixing_printed(const struct hth_mixing_opts *o, uint32_t rounds)
{
    double n = o->peers, r = o->groups;
    return pow((r - 1) / n + r / (n * n), rounds);
}
