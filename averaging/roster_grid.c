/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roster_grid.c: which grid the peers stand in, and where this one stands.
 *
 * A shape is taken from others: the one that most hold of those that suit the population as it is
 * counted here; of as many the one with the larger text, so that two never swap. A peer that holds
 * none that suits, and sees none, proposes one after PATIENCE_US and a random part of it.
 */
#include <string.h>

#include "averaging/roster_int.h"

#define SHAPES_MAX  8 /* looked at beside the own one */
#define PATIENCE_US (3 * HTH_US_PER_S)

struct tally {
    const struct hth_avg_shape *shape;
    uint32_t holders;
};

/* A grid that a peer might have proposed for about as many as are counted here. */
static bool suits(const struct hth_roster *r, const struct hth_avg_shape *shape)
{
    uint32_t population = hth_roster_population(r, NULL), longest = r->opts.group_max;
    struct hth_avg_shape own = hth_avg_shape_for(population, r->opts.group_max), next;

    if (population < 2 || shape->dims == 0 || shape->dims > own.dims + 1)
        return false;
    longest = HTH_MAX(longest, own.size[0]);
    for (uint32_t i = 0; i < shape->dims; i++)
        if (shape->size[i] > longest)
            return false;
    return !hth_avg_shape_review(shape, population, r->opts.group_max, &next);
}

static bool is_better(const struct tally *a, const struct tally *b)
{
    char x[HTH_AVG_SHAPE_TEXT_MAX], y[HTH_AVG_SHAPE_TEXT_MAX];

    if (a->holders != b->holders)
        return a->holders > b->holders;
    return strcmp(hth_avg_shape_text(a->shape, x), hth_avg_shape_text(b->shape, y)) > 0;
}

/* NULL: nobody holds one that suits. */
static const struct hth_avg_shape *most_held(const struct hth_roster *r)
{
    struct tally t[1 + SHAPES_MAX] = {{&r->self.shape, hth_roster_takes_part(r, &r->self)}};
    const struct tally *best = NULL;
    uint32_t shapes = 1;

    for (uint32_t i = 0; i < r->count; i++) {
        const struct hth_roster_note *note = &r->peers[i]->note;
        uint32_t k = 0;

        if (!hth_roster_takes_part(r, note) || note->shape.dims == 0)
            continue;
        while (k < shapes && !hth_avg_shape_eq(t[k].shape, &note->shape))
            k++;
        if (k == shapes && shapes <= SHAPES_MAX)
            t[shapes++] = (struct tally){&note->shape, 0};
        if (k < shapes)
            t[k].holders++;
    }
    for (uint32_t k = 0; k < shapes; k++)
        if (suits(r, t[k].shape) && (best == NULL || is_better(&t[k], best)))
            best = &t[k];
    return best != NULL ? best->shape : NULL;
}

static struct hth_avg_shape shape_of(struct hth_roster *r)
{
    const struct hth_avg_shape *held = most_held(r);
    int64_t us = PATIENCE_US;

    if (held != NULL || !r->speaking || hth_roster_population(r, NULL) < 2) {
        r->review_us = 0;
        return held != NULL ? *held : r->self.shape;
    }
    if (r->self.shape.dims == 0) /* a peer without any grid loses nothing by a hasty one */
        us /= 3;
    if (r->review_us == 0)
        r->review_us = hth_now_us(r->env) + us + (int64_t)(hth_rng_unit(&r->env->rng) * (double)us);
    if (!hth_roster_is_over(r, r->review_us))
        return r->self.shape;
    r->review_us = 0;
    return hth_avg_shape_for(hth_roster_population(r, NULL), r->opts.group_max);
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

        if (!hth_roster_takes_part(r, &p->note))
            continue;
        clients += other;
        rank += other != client ? client : hth_peer_id_cmp(&p->id, &r->env->self) < 0;
    }
    if (clients == 0)
        return hth_avg_cell_of_rank(&r->self.shape, rank);
    return hth_avg_cell_across(&r->self.shape, rank);
}

void hth_roster_place(struct hth_roster *r)
{
    char text[HTH_AVG_SHAPE_TEXT_MAX];
    struct hth_avg_shape shape = r->opts.shape.dims > 0 ? r->opts.shape : shape_of(r);
    bool other = !hth_avg_shape_eq(&shape, &r->self.shape), exact;

    if (other)
        HTH_LOG(r->env, HTH_DEBUG, HTH_SUB_AVG, "grid %s", hth_avg_shape_text(&shape, text));
    r->self.shape = shape;
    (void)hth_roster_population(r, &exact);
    if (r->opts.has_cell)
        r->self.cell = r->opts.cell;
    else if (exact && shape.dims > 0)
        r->self.cell = cell_among_all(r);
    else if (other || r->ranked)
        r->self.cell = hth_avg_cell_drawn(&shape, &r->env->self);
    r->ranked = exact;
}
