/* SPDX-License-Identifier: Apache-2.0 */
/* pure_methods.c: one round of each method of pure.h. */
#include "scenarios/pure_int.h"

#include <string.h>

#define COLUMNS HTH_PURE_COLUMNS

static uint32_t shape_lines(const struct hth_pure *p, uint32_t axis)
{
    return p->cells / p->opts.shape.size[axis];
}

/* The number of a cell's line along `axis`, row-major over the other axes. */
static uint32_t line_of(const struct hth_avg_shape *shape, const struct hth_avg_cell *cell,
                        uint32_t axis)
{
    uint32_t line = 0;
    for (uint32_t i = 0; i < shape->dims; i++)
        if (i != axis)
            line = line * shape->size[i] + cell->at[i];
    return line;
}

/* Sort the peers by their lines along `axis`. begin[l] .. begin[l + 1] is line l. */
static void sort_lines(const struct hth_pure *p, uint32_t axis, uint32_t *order, uint32_t *begin)
{
    uint32_t lines = shape_lines(p, axis), peers = p->opts.peers;
    memset(begin, 0, ((size_t)lines + 2) * sizeof(*begin));
    for (uint32_t i = 0; i < peers; i++)
        begin[line_of(&p->opts.shape, &p->cell[i], axis) + 2]++;
    for (uint32_t l = 0; l < lines; l++)
        begin[l + 2] += begin[l + 1];
    for (uint32_t i = 0; i < peers; i++)
        order[begin[line_of(&p->opts.shape, &p->cell[i], axis) + 1]++] = i;
}

/* ---- groups -------------------------------------------------------------------------------- */

static bool dies(enum hth_pure_fate fate)
{
    return fate == HTH_PURE_DIES_EARLY || fate == HTH_PURE_DIES_LATE;
}

/* Whether its values enter the sums of others. */
static bool gives(enum hth_pure_fate fate)
{
    return fate == HTH_PURE_HERE || fate == HTH_PURE_CUT || fate == HTH_PURE_DIES_LATE;
}

/* Whether it has the result in the end. */
static bool takes(enum hth_pure_fate fate)
{
    return fate == HTH_PURE_HERE || fate == HTH_PURE_CUT || fate == HTH_PURE_LATE;
}

/* Whether it is in the group on that side of the partition. */
static bool joins(enum hth_pure_fate fate, bool side)
{
    return fate != HTH_PURE_AWAY && (fate == HTH_PURE_CUT) == side;
}

/* Give the mean to the members that join on that side; returns how many joined. */
static uint32_t average(struct hth_pure *p, const uint32_t *members, uint32_t count, bool side)
{
    hth_pure_vec sum = {0};
    bool lost[COLUMNS] = {false}; /* its reducer crashed */
    uint32_t joined = 0, given = 0, dead = 0;
    for (uint32_t i = 0; i < count; i++) {
        enum hth_pure_fate fate = p->fate[members[i]];
        if (!joins(fate, side))
            continue;
        joined++;
        dead += dies(fate);
        if (!gives(fate))
            continue;
        given++;
        for (int c = 0; c < COLUMNS; c++)
            sum[c] += p->x[members[i]][c];
    }
    p->sent += joined > 0 ? 2.0 * (joined - 1) : 0;
    if (given == 0)
        return joined;
    for (int c = 0; c < COLUMNS; c++) {
        sum[c] /= given;
        /* members are interchangeable: any `dead` of the `joined` places are theirs */
        lost[c] = dead > 0 && hth_rng_below(&p->rng, joined) < dead;
    }
    for (uint32_t i = 0; i < count; i++) {
        enum hth_pure_fate fate = p->fate[members[i]];
        for (int c = 0; c < COLUMNS && joins(fate, side) && takes(fate); c++)
            if (!lost[c])
                p->x[members[i]][c] = sum[c];
    }
    return joined;
}

static void average_sides(struct hth_pure *p, const uint32_t *members, uint32_t count)
{
    average(p, members, count, false);
    if (p->opts.failure == HTH_PURE_PARTITION)
        average(p, members, count, true);
}

/* ---- moshpit, random ----------------------------------------------------------------------- */

/* Place each peer in its own cell. */
static void place(struct hth_pure *p)
{
    uint32_t *cells = p->shuffled; /* room for all cells */
    for (uint32_t i = 0; i < p->cells; i++)
        cells[i] = i;
    hth_rng_shuffle(&p->rng, cells, p->cells, sizeof(*cells));
    for (uint32_t i = 0; i < p->opts.peers; i++)
        p->cell[i] = hth_avg_cell_of_rank(&p->opts.shape, cells[i]);
}

static uint32_t *axis_order(const struct hth_pure *p, uint32_t axis)
{
    return p->order + (size_t)axis * p->opts.peers;
}

static uint32_t *axis_begin(const struct hth_pure *p, uint32_t axis)
{
    return p->begin + (size_t)axis * (p->cells + 2);
}

static void moshpit_start(struct hth_pure *p)
{
    place(p);
    for (uint32_t axis = 0; axis < p->opts.shape.dims; axis++)
        sort_lines(p, axis, axis_order(p, axis), axis_begin(p, axis));
}

static void moshpit_round(struct hth_pure *p, uint32_t round)
{
    uint32_t axis = hth_avg_axis(&p->opts.shape, round), lines = shape_lines(p, axis);
    const uint32_t *order = axis_order(p, axis), *begin = axis_begin(p, axis);
    for (uint32_t l = 0; l < lines; l++)
        average_sides(p, order + begin[l], begin[l + 1] - begin[l]);
}

static void reset_order(struct hth_pure *p)
{
    for (uint32_t i = 0; i < p->opts.peers; i++)
        p->shuffled[i] = i;
}

static void random_round(struct hth_pure *p, uint32_t round)
{
    uint32_t peers = p->opts.peers, groups = hth_pure_groups(peers, p->opts.shape.size[0]);
    const uint32_t *members = p->shuffled;
    (void)round;
    hth_rng_shuffle(&p->rng, p->shuffled, peers, sizeof(*p->shuffled));
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t size = hth_pure_group_size(peers, groups, g);
        average_sides(p, members, size);
        members += size;
    }
}

/* ---- gossip, pushsum ----------------------------------------------------------------------- */

static void swap_values(struct hth_pure *p)
{
    hth_pure_vec *x = p->x;
    double *weight = p->weight;
    p->x = p->y;
    p->y = x;
    p->weight = p->next;
    p->next = weight;
}

/* Whether the values that `from` sends in this round count at `to`. */
static bool reaches(const struct hth_pure *p, uint32_t from, uint32_t to)
{
    return gives(p->fate[from]) && p->fate[to] != HTH_PURE_AWAY &&
           p->fate[to] != HTH_PURE_DIES_EARLY &&
           (p->fate[from] == HTH_PURE_CUT) == (p->fate[to] == HTH_PURE_CUT);
}

static void gossip_round(struct hth_pure *p, uint32_t round)
{
    uint32_t n = p->opts.peers;
    (void)round;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t near[3] = {(i + n - 1) % n, i, (i + 1) % n}, present = 0;
        hth_pure_vec sum = {0};
        if (!takes(p->fate[i])) {
            memcpy(p->y[i], p->x[i], sizeof(sum));
            continue;
        }
        for (int k = 0; k < 3; k++) {
            if (near[k] != i && !reaches(p, near[k], i))
                continue;
            present++;
            for (int c = 0; c < COLUMNS; c++)
                sum[c] += p->x[near[k]][c];
        }
        for (int c = 0; c < COLUMNS; c++)
            p->y[i][c] = sum[c] / present;
        p->sent += present - 1;
    }
    swap_values(p);
}

static void pushsum_start(struct hth_pure *p)
{
    for (uint32_t i = 0; i < p->opts.peers; i++)
        p->weight[i] = 1;
}

/* Move a third of the value of `from` to `to`, or back to itself where `to` is absent. */
static void push_third(struct hth_pure *p, uint32_t from, uint32_t to)
{
    uint32_t taker = from == to || !reaches(p, from, to) ? from : to;
    p->sent += taker != from;
    for (int c = 0; c < COLUMNS; c++)
        p->y[taker][c] += p->x[from][c] / 3;
    p->next[taker] += p->weight[from] / 3;
}

static void pushsum_round(struct hth_pure *p, uint32_t round)
{
    uint32_t n = p->opts.peers, powers = 1;
    while ((UINT64_C(1) << powers) < n)
        powers++;
    uint32_t a = 1u << (2 * round % powers), b = 1u << ((2 * round + 1) % powers);
    memset(p->y, 0, n * sizeof(*p->y));
    memset(p->next, 0, n * sizeof(*p->next));
    for (uint32_t i = 0; i < n; i++) {
        if (p->fate[i] == HTH_PURE_AWAY) {
            memcpy(p->y[i], p->x[i], sizeof(p->x[i]));
            p->next[i] = p->weight[i];
            continue;
        }
        push_third(p, i, i);
        push_third(p, i, (i + a) % n);
        push_third(p, i, (i + b) % n);
    }
    /* A crashed peer is back with its earlier value. */
    for (uint32_t i = 0; i < n; i++)
        if (dies(p->fate[i])) {
            memcpy(p->y[i], p->x[i], sizeof(p->x[i]));
            p->next[i] = p->weight[i];
        }
    swap_values(p);
}

const struct hth_pure_step hth_pure_steps[HTH_PURE_METHODS] = {
    [HTH_PURE_ALLREDUCE] = {0}, /* drawn, not played */
    [HTH_PURE_GOSSIP] = {.round = gossip_round},
    [HTH_PURE_PUSHSUM] = {.start = pushsum_start, .round = pushsum_round},
    [HTH_PURE_RANDOM] = {.start = reset_order, .round = random_round},
    [HTH_PURE_MOSHPIT] = {.cells = true, .start = moshpit_start, .round = moshpit_round},
};
