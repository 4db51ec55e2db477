/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit_stand.c: standing in for cells that nobody is in.
 *
 * On a full grid the lines along the second axis each hold one member of every group of the first,
 * and so everybody's values. Where a cell is empty, because the population does not fill the grid
 * or somebody has died, its line would lack a whole group's mean, and end with another result:
 *
 *        axis 1 ->                 B died. Column 1 has the mean of E and H. Row 0 needs it too:
 *      +---+---+---+
 *      | A | . | C |               {A C}  and, in B's place, E or H:   {A C E'}
 *      | D | E | F |               {D E F}
 *      | G | H | I |               {G H I}   all three have the mean of all eight
 *      +---+---+---+
 *
 * So one of the group that has the values goes there with them, besides its own line. Which one,
 * its members agree on without a word: they all know who stands where in the group, and the
 * smallest of them by hash(key of the line to stand in, id) goes. When two go, or the one that was
 * missed comes late, nothing is counted twice, for they bring the same values and say so (the
 * origin, match.h).
 *
 * The stand-in is a sweep of its own from there to the last axis. It is a client: it reduces
 * nothing there, and leads nobody.
 */
#include <string.h>

#include "averaging/moshpit_int.h"
#include "core/mem.h"

#define CELLS_EACH 4 /* a grid with more of them per peer is not worth it, nor the work bounded */

/* Who acts for a cell is found by looking at up to all cells: of a bounded grid only, because the
 * population is an estimate that some hundred peers with chosen ids can drive up. */
static bool is_standing(const struct sweep *s)
{
    uint32_t cells = hth_avg_cells(&s->shape);

    if (s->moves || s->offer.rounds != HTH_AVG_ALL_AXES || s->mp->opts.mode == HTH_AVG_HELPER)
        return false;
    return cells <= HTH_AVG_STAND_CELLS_MAX &&
           cells / CELLS_EACH <= hth_roster_population(s->mp->roster, NULL);
}

/* ---- by the roster --------------------------------------------------------------------------- */

static bool same_cell(const struct hth_avg_cell *a, const struct hth_avg_cell *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static bool is_in(const struct sweep *s, const struct hth_roster_peer *p,
                  const struct hth_avg_cell *cell)
{
    return p->note.schema == hth_roster_self(s->mp->roster)->schema &&
           p->note.generation == s->generation && hth_avg_shape_eq(&p->note.shape, &s->shape) &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0 &&
           same_cell(&p->note.cell, cell);
}

/* A peer that is in this cell and can be expected to bring values; this one counts where it stands.
 */
static const struct hth_peer_id *who_is_in(const struct sweep *s, const struct hth_avg_cell *cell)
{
    const struct hth_roster_peer *p;

    if (!s->stands_in && same_cell(&s->cell, cell))
        return &s->env->self;
    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++)
        if (is_in(s, p, cell) && !hth_moshpit_suspected(s->mp, p))
            return &p->id;
    return NULL;
}

/* One of ours whose note does not say yet where it stands in this grid. */
static bool is_unplaced(const struct sweep *s, const struct hth_roster_peer *p)
{
    return p->note.schema == hth_roster_self(s->mp->roster)->schema &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0 &&
           hth_roster_is_later(s->generation, p->note.generation);
}

/* Somebody who may lead there. Who is missed here may be alive there: to look for nobody costs
 * little, and to be missing costs a line its mean. */
static bool is_anybody_in_line(const struct sweep *s, const struct hth_avg_cell *cell,
                               uint32_t axis)
{
    const struct hth_roster_peer *p;

    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++) {
        struct hth_avg_cell other = *cell;

        other.at[axis] = p->note.cell.at[axis];
        if (is_unplaced(s, p) || (other.at[axis] != cell->at[axis] && is_in(s, p, &other)))
            return true;
    }
    return false;
}

static size_t line_key(const struct sweep *s, const struct hth_avg_cell *cell, uint64_t round,
                       uint8_t key[HTH_AVG_LINE_KEY_MAX])
{
    struct hth_avg_line line = hth_sweep_line(s);

    line.cell = *cell;
    line.round = round;
    return hth_avg_line_key(&line, key);
}

/* Keeps the smaller by mark. */
struct smallest {
    const struct hth_peer_id *id;
    struct hth_hash mark;
};

static void take_smaller(const struct sweep *s, struct smallest *best, const uint8_t *key,
                         size_t key_len, const struct hth_peer_id *id)
{
    struct hth_hash mark;
    int c;

    hth_avg_mark(s->env->crypto, key, key_len, id, &mark);
    c = best->id != NULL ? memcmp(mark.b, best->mark.b, sizeof(mark.b)) : -1;
    if (c > 0 || (c == 0 && hth_peer_id_cmp(id, best->id) >= 0))
        return;
    best->id = id;
    best->mark = mark;
}

static const struct hth_peer_id *who_acts(const struct sweep *s, const struct hth_avg_cell *cell,
                                          uint64_t round);

/* Who acts for a cell in a round if nobody is in it: who did before; else one of those who met in
 * the round before, if any of them was there. NULL: nobody has values for it. */
static const struct hth_peer_id *who_stands_in(const struct sweep *s,
                                               const struct hth_avg_cell *cell, uint64_t round)
{
    uint32_t axis = hth_avg_axis(&s->shape, round);
    const struct hth_peer_id *id;
    struct smallest best = {.id = NULL};
    struct hth_avg_cell other = *cell;
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    size_t key_len;

    if (axis == 0)
        return NULL;
    id = who_stands_in(s, cell, round - 1);
    if (id != NULL)
        return id;
    key_len = line_key(s, cell, round, key);
    axis--;
    for (other.at[axis] = 0; other.at[axis] < s->shape.size[axis]; other.at[axis]++) {
        if (same_cell(&other, cell))
            continue;
        id = who_acts(s, &other, round - 1);
        if (id != NULL)
            take_smaller(s, &best, key, key_len, id);
    }
    return best.id;
}

static const struct hth_peer_id *who_acts(const struct sweep *s, const struct hth_avg_cell *cell,
                                          uint64_t round)
{
    const struct hth_peer_id *id = who_is_in(s, cell);

    return id != NULL ? id : who_stands_in(s, cell, round);
}

/* Not only perhaps. */
static bool is_due(const struct hth_match_due *due, uint32_t count, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < count; i++)
        if (hth_peer_id_eq(&due[i].id, id))
            return !due[i].maybe;
    return false;
}

/* Since when it is known to be past this round; INT64_MAX: it is not. */
static int64_t past_since_us(const struct sweep *s, const struct hth_peer_id *id)
{
    const struct hth_roster_peer *p = hth_roster_find(s->mp->roster, id);
    bool fixed = s->offer.sweep != HTH_AVG_SWEEP_AUTO;

    if (p == NULL || p->note.generation != s->generation ||
        (fixed ? p->note.step <= s->offer.sweep : p->note.round <= s->round))
        return INT64_MAX;
    return HTH_MIN(p->issued_us - hth_wall_us(s->env), (int64_t)0) + hth_now_us(s->env);
}

/* Who stands in comes when its own line has met, and that one may wait for somebody as long as its
 * window is open. It looks everywhere in the same moment: who was heard in this round, or says that
 * it is past it, and is not here soon does not come. */
static int64_t comes_until_us(const struct sweep *s, const struct hth_peer_id *id)
{
    int64_t at_us, patience_us = s->mp->opts.match.patience_us;
    int64_t end_us = s->look_us + hth_sweep_window_us(s);
    int64_t past_us = past_since_us(s, id);
    const struct hth_avg_line *line = hth_match_heard(s->mp->match, id, s->offer.schema, &at_us);

    if (past_us != INT64_MAX)
        return HTH_MIN(HTH_MAX(past_us, s->look_us) + patience_us, end_us);
    /* The same round of another try has lines of its own, and tells nothing. */
    if (line == NULL || line->run != hth_sweep_line(s).run || line->generation != s->generation ||
        line->round < s->round)
        return end_us;
    return HTH_MIN(HTH_MAX(at_us, s->look_us) + 2 * patience_us, end_us);
}

uint32_t hth_stand_in_due(const struct sweep *s, struct hth_match_due *out, uint32_t count,
                          uint32_t max)
{
    uint32_t axis = hth_avg_axis(&s->shape, s->round);
    struct hth_avg_cell cell = s->cell;

    if (!is_standing(s) || s->stands_in || axis == 0 || s->look == NULL)
        return count;
    for (uint32_t at = 0; at < s->shape.size[axis] && count < max; at++) {
        const struct hth_peer_id *id;
        int64_t until_us;

        cell.at[axis] = at;
        if (at == s->cell.at[axis] || hth_look_covers(s->look, at))
            continue;
        id = who_is_in(s, &cell);
        if (id != NULL && is_due(out, count, id))
            continue;
        id = who_stands_in(s, &cell, s->round);
        if (id == NULL || hth_peer_id_eq(id, &s->env->self))
            continue;
        until_us = comes_until_us(s, id);
        if (until_us > hth_now_us(s->env))
            out[count++] = (struct hth_match_due){.id = *id, .until_us = until_us};
    }
    return count;
}

/* ---- going there ----------------------------------------------------------------------------- */

/* Begins in `round`, in the line of `cell`. */
static void go(struct sweep *s, const struct hth_avg_cell *cell, uint64_t round, bool ready)
{
    struct moshpit *mp = s->mp;
    struct sweep *in;
    uint64_t base = round - hth_avg_axis(&s->shape, round);
    uint32_t slot = HTH_AVG_STAND_INS_MAX;

    for (uint32_t i = 0; i < HTH_AVG_STAND_INS_MAX; i++) {
        in = mp->stand_ins[i];
        if (in == NULL)
            slot = HTH_MIN(slot, i);
        else if (in->base == base && in->offer.kind == s->offer.kind &&
                 in->offer.schema == s->offer.schema && same_cell(&in->cell, cell))
            return; /* we are there */
    }
    if (slot == HTH_AVG_STAND_INS_MAX)
        return;
    in = hth_sweep_alloc(mp, &s->offer);
    if (in == NULL)
        return;
    in->stands_in = true;
    in->offered = true;
    in->generation = s->generation;
    in->shape = s->shape;
    in->cell = *cell;
    in->base = base;
    in->round = round;
    in->rounds = s->shape.dims - hth_avg_axis(&s->shape, round);
    in->source = ready ? NULL : s;
    hth_blob_unref(in->values); /* those of the offer */
    in->values = ready ? hth_blob_ref(s->values) : NULL;
    in->weight = s->weight;
    in->origin = s->origin;
    if (hth_sweep_look(in, ready, mp->opts.round_us) !=
        HTH_OK) { /* it is our own line, or there is no room */
        hth_sweep_cancel(in);
        return;
    }
    hth_timer_set(in->env, in->timer, hth_sweep_time_us(in) + mp->opts.round_us);
    mp->stand_ins[slot] = in;
    mp->stats.stood_in++;
}

void hth_stand_in_begin(const struct sweep *s)
{
    for (uint32_t i = 0; i < HTH_AVG_STAND_INS_MAX; i++) {
        struct sweep *in = s->mp->stand_ins[i];

        if (in != NULL && in->base == s->round && in->offer.kind == s->offer.kind &&
            in->offer.schema == s->offer.schema)
            hth_sweep_cancel(in);
    }
}

/* Whether a member that brings values, and is alive as far as we know, is there. */
static bool is_covered(struct moshpit *mp, const struct hth_avg_group *g, uint32_t at)
{
    for (uint32_t i = 0; i < g->count; i++) {
        const struct hth_avg_member *m = &g->member[i];
        const struct hth_roster_peer *p = hth_roster_find(mp->roster, &m->id);

        if (m->weight > 0 && m->at == at && (p == NULL || !hth_moshpit_suspected(mp, p)))
            return true;
    }
    return false;
}

static bool is_ours(const struct sweep *s, const struct hth_avg_group *g,
                    const struct hth_avg_cell *cell, uint64_t round)
{
    struct smallest best = {.id = NULL};
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    size_t key_len = line_key(s, cell, round, key);

    for (uint32_t i = 0; i < g->count; i++) {
        const struct hth_avg_member *m = &g->member[i];
        const struct hth_roster_peer *p = hth_roster_find(s->mp->roster, &m->id);

        if (m->weight > 0 && (p == NULL || !hth_moshpit_suspected(s->mp, p)))
            take_smaller(s, &best, key, key_len, &m->id);
    }
    return best.id != NULL && hth_peer_id_eq(best.id, &s->env->self);
}

void hth_stand_in(struct sweep *s, const struct hth_avg_group *g, uint64_t round, bool ready)
{
    uint32_t axis = hth_avg_axis(&s->shape, round);
    struct hth_avg_cell cell = s->cell;
    bool exact;

    if (!is_standing(s) || axis + 1 == s->shape.dims || s->values == NULL)
        return;
    (void)hth_roster_population(s->mp->roster, &exact);
    for (uint32_t at = 0; at < s->shape.size[axis]; at++) {
        cell.at[axis] = at;
        if (at == s->cell.at[axis])
            continue;
        if (g != NULL && (is_covered(s->mp, g, at) || !is_ours(s, g, &cell, round + 1)))
            continue;
        /* Who met nobody goes only where nobody can be: others may have met without us. */
        if (g == NULL && (!exact || who_is_in(s, &cell) != NULL))
            continue;
        if (!exact || is_anybody_in_line(s, &cell, axis + 1))
            go(s, &cell, round + 1, ready);
    }
}

void hth_stand_in_late(struct sweep *s)
{
    if (s->ending || !is_standing(s))
        return;
    if (s->met != NULL)
        hth_stand_in(s, s->met, s->met->line.round, true);
    if (s->group != NULL)
        hth_stand_in(s, s->group, s->group->line.round, false);
}

void hth_stand_in_values(struct sweep *s, bool there)
{
    for (uint32_t i = 0; i < HTH_AVG_STAND_INS_MAX; i++) {
        struct sweep *in = s->mp->stand_ins[i];

        if (in == NULL || in->source != s)
            continue;
        in->source = NULL;
        if (!there) {
            hth_sweep_cancel(in);
            continue;
        }
        in->values = hth_blob_ref(s->values);
        in->weight = s->weight;
        in->origin = s->origin;
        in->look_us = hth_now_us(in->env);
        if (in->look != NULL)
            hth_look_ready(in->look, in->weight, in->origin);
    }
}
