/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roster_grid.c: which grid the peers stand in, and where this one stands.
 *
 * A shape is taken from others: the one that most peers hold of those that suit the population as
 * it is counted here; of as many the one with the larger text, so that two never swap. A peer that
 * holds none that suits, and sees none, proposes one after `patience_us` and a random part of it.
 * Counts differ a little where peers are sampled: a peer that finds itself with its own shape
 * beside more than half that hold another goes back to that after `patience_us`, and proposes no
 * other for LONE_US. So what a single key says moves no peer into a grid that does not suit.
 */
#include <string.h>

#include "averaging/roster_int.h"

#define SHAPES_MAX 8 /* looked at beside the own one */
#define LONE_US    (30 * HTH_US_PER_S)

struct tally {
    const struct hth_avg_shape *shape;
    uint32_t holders;
};

static bool is_fixed(const struct hth_roster *r)
{
    return r->opts.shape.dims > 0;
}

static void take(struct hth_roster *r, const struct hth_avg_shape *shape)
{
    char text[HTH_AVG_SHAPE_TEXT_MAX];
    bool first = r->self.shape.dims == 0;

    r->self.shape = *shape;
    memset(&r->self.cell, 0, sizeof(r->self.cell));
    r->placed = false;
    r->other_shapes = true;
    r->review_at_us = r->follow_at_us = 0;
    HTH_LOG(r->env, HTH_DEBUG, HTH_SUB_AVG, "grid %s", hth_avg_shape_text(shape, text));
    if (first)
        hth_roster_say_now(r);
    else
        hth_roster_say(r);
    hth_roster_tell_change(r);
}

/* A grid that a peer might have proposed for about as many as are counted here. */
static bool suits(const struct hth_roster *r, const struct hth_avg_shape *shape)
{
    uint32_t population = hth_roster_population(r, NULL), longest = r->opts.group_max;
    struct hth_avg_shape own = hth_avg_shape_for(population, r->opts.group_max), next;

    if (is_fixed(r))
        return hth_avg_shape_eq(shape, &r->opts.shape);
    if (hth_avg_shape_eq(shape, &own))
        return true;
    if (population < 2 || shape->dims == 0 || shape->dims > own.dims + 1)
        return false;
    for (uint32_t i = 0; i < own.dims; i++)
        longest = HTH_MAX(longest, own.size[i]);
    for (uint32_t i = 0; i < shape->dims; i++)
        if (shape->size[i] > longest)
            return false;
    return !hth_avg_shape_review(shape, population, r->opts.group_max, &next);
}

/* Counts the holders of each shape, of the own one first; returns how many shapes there are. */
static uint32_t count_shapes(const struct hth_roster *r, struct tally *out, uint32_t *all)
{
    uint32_t shapes = 1;

    out[0] = (struct tally){&r->self.shape, hth_roster_self_counts(r)};
    *all = out[0].holders;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct hth_avg_shape *shape = &r->peers[i]->note.shape;
        uint32_t k = 0;

        if (!hth_roster_counts(r, r->peers[i]) || shape->dims == 0)
            continue;
        (*all)++;
        while (k < shapes && !hth_avg_shape_eq(out[k].shape, shape))
            k++;
        if (k == shapes && shapes <= SHAPES_MAX)
            out[shapes++] = (struct tally){shape, 0};
        if (k < shapes)
            out[k].holders++;
    }
    return shapes;
}

static bool is_better(const struct tally *a, const struct tally *b)
{
    char x[HTH_AVG_SHAPE_TEXT_MAX], y[HTH_AVG_SHAPE_TEXT_MAX];

    if (a->holders != b->holders)
        return a->holders > b->holders;
    return strcmp(hth_avg_shape_text(a->shape, x), hth_avg_shape_text(b->shape, y)) > 0;
}

static bool is_over(struct hth_roster *r, int64_t at_us)
{
    if (hth_now_us(r->env) >= at_us)
        return true;
    hth_roster_tick_at(r, at_us);
    return false;
}

static void propose(struct hth_roster *r)
{
    /* A peer without any grid loses nothing by a hasty one. */
    int64_t us = r->opts.patience_us / (r->self.shape.dims == 0 ? 3 : 1);
    struct hth_avg_shape next;

    if (!r->speaking || (hth_roster_population(r, NULL) < 2 && r->self.shape.dims == 0))
        return;
    if (r->review_at_us == 0)
        r->review_at_us =
            hth_now_us(r->env) + us + (int64_t)(hth_rng_unit(&r->env->rng) * (double)us);
    if (!is_over(r, r->review_at_us))
        return;
    next = is_fixed(r) ? r->opts.shape
                       : hth_avg_shape_for(hth_roster_population(r, NULL), r->opts.group_max);
    r->stats.proposed++;
    take(r, &next);
}

void hth_roster_review(struct hth_roster *r)
{
    struct tally t[1 + SHAPES_MAX], *best = NULL, *most = NULL;
    uint32_t all, shapes;
    bool own;

    if (r->opts.has_cell)
        return;
    own = suits(r, &r->self.shape);
    if (own && !r->other_shapes) {
        r->review_at_us = 0;
        return;
    }
    shapes = count_shapes(r, t, &all);
    r->other_shapes = shapes > 1;
    for (uint32_t i = 1; i < shapes; i++) {
        if (suits(r, t[i].shape) && (best == NULL || is_better(&t[i], best)))
            best = &t[i];
        if (!is_fixed(r) && 2 * t[i].holders > all)
            most = &t[i];
    }
    if (own || best != NULL)
        r->review_at_us = 0;
    if (most == NULL)
        r->follow_at_us = 0;
    if (best != NULL && (!own || is_better(best, &t[0]))) {
        take(r, best->shape);
    } else if (most != NULL) {
        if (r->follow_at_us == 0)
            r->follow_at_us = hth_now_us(r->env) + r->opts.patience_us;
        if (is_over(r, r->follow_at_us)) {
            take(r, most->shape);
            r->review_at_us = hth_now_us(r->env) + LONE_US;
        }
    } else if (!own) {
        propose(r);
    }
}

/* By rank. Clients can't be dialled, so a line of them alone never meets: who can be comes first,
 * into all lines if there are enough. */
static struct hth_avg_cell cell_among_all(const struct hth_roster *r)
{
    bool client = r->self.addr.family == 0;
    uint32_t rank = 0, clients = client;

    for (uint32_t i = 0; i < r->count; i++) {
        const struct hth_roster_peer *p = r->peers[i];
        bool other = p->note.addr.family == 0;

        if (!hth_roster_counts(r, p))
            continue;
        clients += other;
        rank += other != client ? client : hth_peer_id_cmp(&p->id, &r->env->self) < 0;
    }
    if (clients == 0)
        return hth_avg_cell_of_rank(&r->self.shape, rank);
    return hth_avg_cell_across(&r->self.shape, rank);
}

static void place(struct hth_roster *r)
{
    if (r->placed)
        return;
    if (r->opts.has_cell)
        r->self.cell = r->opts.cell;
    else if (r->counted_level == 0)
        r->self.cell = cell_among_all(r);
    else
        r->self.cell = hth_avg_cell_of_id(&r->self.shape, &r->env->self);
    r->placed = true;
}

void hth_roster_place(struct hth_roster *r)
{
    if (r->self.shape.dims > 0)
        place(r);
}

enum hth_err hth_roster_cell(struct hth_roster *r, struct hth_avg_cell *out)
{
    memset(out, 0, sizeof(*out));
    if (r->self.shape.dims == 0)
        return HTH_E_NOT_FOUND;
    place(r);
    *out = r->self.cell;
    return HTH_OK;
}

enum hth_err hth_roster_set_cell(struct hth_roster *r, const struct hth_avg_shape *shape,
                                 const struct hth_avg_cell *cell)
{
    if (!hth_avg_shape_eq(shape, &r->self.shape) || shape->dims == 0 ||
        hth_avg_cell_check(&r->self.shape, cell) != HTH_OK)
        return HTH_E_STALE;
    r->self.cell = *cell;
    r->placed = true;
    hth_roster_say(r);
    return HTH_OK;
}

const struct hth_avg_shape *hth_roster_shape(const struct hth_roster *r)
{
    return &r->self.shape;
}
