/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which grid the peers stand in, and where this one stands: agreed on by the highest generation.
 *
 * Keys cost nothing, and a generation is but a number: were the highest always followed, one key
 * with a grid that suits nobody would end all averaging. So another shape is taken
 *
 *   newer, most hold it                               at once
 *   newer, suits what is counted here, ours does not  at once
 *   newer, both do                                    three times, then one every LONE_US
 *   older, most hold it                               at once if ours does not suit, else after
 *                                                     `patience_us`: nobody followed us
 *
 * and looked at again while somebody holds it. "Most" are more than half of those seen that take
 * part and have a shape; to go back, this peer, which holds another, among them.
 */
#include <string.h>

#include "averaging/roster_int.h"

#define HALF_WAY   (UINT32_C(1) << 31)
#define LONE_US    (30 * HTH_US_PER_S)
#define LONE_AHEAD 3

static bool is_fixed(const struct hth_roster *r)
{
    return r->opts.shape.dims > 0;
}

static void take(struct hth_roster *r, uint32_t generation, const struct hth_avg_shape *shape)
{
    char text[HTH_AVG_SHAPE_TEXT_MAX];
    bool first = r->self.generation == 0;

    r->self.generation = generation;
    r->self.shape = *shape;
    memset(&r->self.cell, 0, sizeof(r->self.cell));
    r->placed = false;
    r->review_at_us = r->few_since_us = 0;
    r->stats.generation = generation;
    HTH_LOG(r->env, HTH_DEBUG, HTH_SUB_AVG, "grid %s, generation %u",
            hth_avg_shape_text(shape, text), generation);
    if (first)
        hth_roster_say_now(r);
    else
        hth_roster_say(r);
}

bool hth_roster_is_later(uint32_t a, uint32_t b)
{
    if (a == 0 || b == 0)
        return a > b;
    return a - b != HALF_WAY ? a - b - 1 < HALF_WAY - 1 : a > b;
}

static bool is_newer(const struct hth_roster *r, const struct hth_roster_note *note)
{
    char theirs[HTH_AVG_SHAPE_TEXT_MAX], ours[HTH_AVG_SHAPE_TEXT_MAX];

    if (note->generation != r->self.generation)
        return hth_roster_is_later(note->generation, r->self.generation);
    return note->generation > 0 && strcmp(hth_avg_shape_text(&note->shape, theirs),
                                          hth_avg_shape_text(&r->self.shape, ours)) > 0;
}

static bool is_same(const struct hth_roster_note *a, const struct hth_roster_note *b)
{
    return a->generation == b->generation && hth_avg_shape_eq(&a->shape, &b->shape);
}

static bool is_other(const struct hth_roster *r, const struct hth_roster_note *note)
{
    return note->schema == r->opts.schema && note->generation > 0 && !is_same(note, &r->self);
}

/* Whoever would go back has a say: two halves would swap their grids again and again else. */
static bool do_most_hold(const struct hth_roster *r, const struct hth_roster_note *note, bool back)
{
    uint32_t all = back && hth_roster_self_counts(r), hold = 0;

    for (uint32_t i = 0; i < r->count; i++) {
        const struct hth_roster_note *n = &r->peers[i]->note;

        if (!hth_roster_counts(r, r->peers[i]) || n->generation == 0)
            continue;
        all++;
        hold += is_same(n, note);
    }
    return 2 * hold > all;
}

/* A grid that somebody might have proposed for about as many as are counted here. */
static bool suits(const struct hth_roster *r, const struct hth_avg_shape *shape)
{
    uint32_t population = hth_roster_population(r, NULL);
    struct hth_avg_shape own = hth_avg_shape_for(population, r->opts.group_max), next;
    uint32_t longest = r->opts.group_max;

    if (is_fixed(r))
        return shape != &r->self.shape || r->self.generation > 0;
    if (population < 2 || shape->dims == 0 || shape->dims > own.dims + 1)
        return false;
    for (uint32_t i = 0; i < own.dims; i++)
        longest = HTH_MAX(longest, own.size[i]);
    for (uint32_t i = 0; i < shape->dims; i++)
        if (shape->size[i] > longest)
            return false;
    return !hth_avg_shape_review(shape, population, r->opts.group_max, &next);
}

/* A single one proposes it, and ours would do. */
static bool is_not_too_often(struct hth_roster *r)
{
    int64_t now = hth_now_us(r->env);

    if (r->lone_at_us > now + (LONE_AHEAD - 1) * LONE_US)
        return false;
    r->lone_at_us = HTH_MAX(r->lone_at_us, now) + LONE_US;
    return true;
}

static bool may_follow(struct hth_roster *r, const struct hth_roster_note *note)
{
    bool newer = is_newer(r, note), most = do_most_hold(r, note, !newer);
    int64_t now = hth_now_us(r->env);

    if (newer)
        return most ||
               (suits(r, &note->shape) && (!suits(r, &r->self.shape) || is_not_too_often(r)));
    if (!most)
        return false;
    if (r->few_since_us == 0)
        r->few_since_us = now;
    return !suits(r, &r->self.shape) || now - r->few_since_us >= r->opts.patience_us;
}

void hth_roster_follow(struct hth_roster *r, const struct hth_roster_note *note)
{
    int64_t again_us = hth_now_us(r->env) + r->opts.patience_us / 4 + 1;

    if (!is_other(r, note))
        return;
    if (is_fixed(r) && (r->opts.has_cell || !hth_avg_shape_eq(&note->shape, &r->opts.shape)))
        return;
    if (may_follow(r, note))
        take(r, note->generation, &note->shape);
    if (r->stray_at_us == 0) {
        r->stray_at_us = again_us;
        hth_roster_tick_at(r, again_us);
    }
}

void hth_roster_follow_strays(struct hth_roster *r)
{
    if (r->stray_at_us == 0)
        return;
    if (hth_now_us(r->env) < r->stray_at_us) {
        hth_roster_tick_at(r, r->stray_at_us);
        return;
    }
    r->stray_at_us = 0;
    for (uint32_t i = 0; i < r->count; i++)
        if (hth_roster_counts(r, r->peers[i]))
            hth_roster_follow(r, &r->peers[i]->note);
    if (r->stray_at_us == 0)
        r->few_since_us = 0;
}

static bool fits(const struct hth_roster *r, uint32_t population, struct hth_avg_shape *next)
{
    *next = is_fixed(r) ? r->opts.shape : hth_avg_shape_for(population, r->opts.group_max);
    if (r->self.generation == 0)
        return population < 2;
    if (is_fixed(r))
        return true;
    return !hth_avg_shape_review(&r->self.shape, population, r->opts.group_max, next);
}

void hth_roster_review(struct hth_roster *r)
{
    int64_t now = hth_now_us(r->env), patience;
    struct hth_avg_shape next;

    if (!r->speaking)
        return;
    if (fits(r, hth_roster_population(r, NULL), &next)) {
        r->review_at_us = 0;
        return;
    }
    if (r->review_at_us == 0) {
        /* Who has no grid at all loses nothing by a hasty one. */
        patience = r->self.generation == 0 ? r->opts.patience_us / 3 : r->opts.patience_us;
        r->review_at_us = now + patience + (int64_t)(hth_rng_unit(&r->env->rng) * (double)patience);
    }
    if (now < r->review_at_us) {
        hth_roster_tick_at(r, r->review_at_us);
        return;
    }
    r->stats.proposed++;
    take(r, r->self.generation == UINT32_MAX ? 1 : r->self.generation + 1, &next);
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
    else if (r->placed_shape.dims > 0)
        r->self.cell = hth_avg_cell_move(&r->placed_shape, &r->placed_cell, &r->self.shape);
    else
        r->self.cell = hth_avg_cell_of_id(&r->self.shape, &r->env->self);
    r->placed = true;
    r->placed_shape = r->self.shape;
    r->placed_cell = r->self.cell;
}

void hth_roster_place(struct hth_roster *r)
{
    if (r->self.generation > 0)
        place(r);
}

enum hth_err hth_roster_cell(struct hth_roster *r, struct hth_avg_cell *out)
{
    memset(out, 0, sizeof(*out));
    if (r->self.generation == 0)
        return HTH_E_NOT_FOUND;
    place(r);
    *out = r->self.cell;
    return HTH_OK;
}

enum hth_err hth_roster_set_cell(struct hth_roster *r, uint32_t generation,
                                 const struct hth_avg_cell *cell)
{
    if (generation != r->self.generation || generation == 0 ||
        hth_avg_cell_check(&r->self.shape, cell) != HTH_OK)
        return HTH_E_STALE;
    r->self.cell = *cell;
    r->placed = true;
    r->placed_shape = r->self.shape;
    r->placed_cell = *cell;
    hth_roster_say(r);
    return HTH_OK;
}

const struct hth_avg_shape *hth_roster_shape(const struct hth_roster *r, uint32_t *generation)
{
    if (generation != NULL)
        *generation = r->self.generation;
    return &r->self.shape;
}
