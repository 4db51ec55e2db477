/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit_proxy.c: standing in for cells that nobody is in.
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
 * The proxy is a sweep of its own from there to the last axis. It is a client: it reduces
 * nothing there, and leads nobody.
 */
#include <string.h>

#include "averaging/moshpit_int.h"
#include "core/mem.h"

#define CELLS_EACH 4 /* a grid with more of them per peer is not worth it, nor the work bounded */

/* Who acts for a cell is found by looking at up to all cells: of a bounded grid only, because the
 * population is an estimate that some hundred peers with chosen ids can drive up. */
static bool is_standing(const struct moshpit_sweep *s)
{
    uint32_t cells = hth_avg_cells(&s->shape);

    if (s->moves || s->observes || s->offer.rounds != HTH_AVG_ALL_AXES ||
        s->mp->opts.mode == HTH_AVG_HELPER)
        return false;
    return cells <= HTH_AVG_PROXY_CELLS_MAX &&
           cells / CELLS_EACH <= hth_roster_population(s->mp->roster, NULL);
}

/* ---- by the roster --------------------------------------------------------------------------- */

static bool same_cell(const struct hth_avg_cell *a, const struct hth_avg_cell *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static bool is_in(const struct moshpit_sweep *s, const struct hth_roster_peer *p,
                  const struct hth_avg_cell *cell)
{
    return p->note.schema == hth_roster_self(s->mp->roster)->schema &&
           p->note.generation == s->generation && hth_avg_shape_eq(&p->note.shape, &s->shape) &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0 &&
           same_cell(&p->note.cell, cell);
}

bool hth_proxy_replaces(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    return s->is_proxy && is_in(s, p, &s->cell);
}

/* A peer that is in this cell and can be expected to bring values; this one counts where it
 * stands. */
static const struct hth_peer_id *who_is_in(const struct moshpit_sweep *s,
                                           const struct hth_avg_cell *cell)
{
    const struct hth_roster_peer *p;

    if (!s->is_proxy && same_cell(&s->cell, cell))
        return &s->env->self;
    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++)
        if (is_in(s, p, cell) && !hth_moshpit_suspected(s->mp, p))
            return &p->id;
    return NULL;
}

/* One of ours whose note does not say yet where it stands in this grid. */
static bool is_unplaced(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    return p->note.schema == hth_roster_self(s->mp->roster)->schema &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0 &&
           hth_roster_is_later(s->generation, p->note.generation);
}

/* Somebody who may lead there. Who is missed here may be alive there: to look for nobody costs
 * little, and to be missing costs a line its mean. */
static bool is_anybody_in_line(const struct moshpit_sweep *s, const struct hth_avg_cell *cell,
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

bool hth_proxy_follows(const struct moshpit_sweep *s)
{
    uint32_t axis = hth_avg_axis(&s->shape, s->round);

    return axis + 1 == s->shape.dims || is_anybody_in_line(s, &s->cell, axis);
}

static size_t line_key(const struct moshpit_sweep *s, const struct hth_avg_cell *cell,
                       uint64_t round, uint8_t key[HTH_AVG_LINE_KEY_MAX])
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

static void take_smaller(const struct moshpit_sweep *s, struct smallest *best, const uint8_t *key,
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

/* A place in our present line that nobody is in. Who was called for it and has no values for it
 * does not come; `soon`: nor does who can't yet. */
struct hole {
    uint32_t at;
    bool soon;
};

static bool can_come(const struct moshpit_sweep *s, const struct hth_peer_id *id,
                     const struct hole *hole)
{
    const struct hth_roster_peer *p = hth_roster_find(s->mp->roster, id);
    enum hth_avg_reason said = hth_look_proxy_answer(s->look, id, hole->at);

    if (p != NULL && hth_moshpit_has_passed(s, p))
        return false;
    return said != HTH_AVG_NO_VALUES && (!hole->soon || said == HTH_AVG_OK || said == HTH_AVG_WAIT);
}

static const struct hth_peer_id *who_acts(const struct moshpit_sweep *s,
                                          const struct hth_avg_cell *cell, uint64_t round,
                                          const struct hole *hole);

/* Who acts for a cell in a round if nobody is in it: who did before; else one of those who met in
 * the round before, if any of them was there. NULL: nobody has values for it. */
static const struct hth_peer_id *find_proxy(const struct moshpit_sweep *s,
                                            const struct hth_avg_cell *cell, uint64_t round,
                                            const struct hole *hole)
{
    uint32_t axis = hth_avg_axis(&s->shape, round);
    const struct hth_peer_id *id;
    struct smallest best = {.id = NULL};
    struct hth_avg_cell other = *cell;
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    size_t key_len;

    if (axis == 0)
        return NULL;
    id = find_proxy(s, cell, round - 1, hole);
    if (id != NULL)
        return id;
    key_len = line_key(s, cell, round, key);
    axis--;
    for (other.at[axis] = 0; other.at[axis] < s->shape.size[axis]; other.at[axis]++) {
        if (same_cell(&other, cell))
            continue;
        id = who_acts(s, &other, round - 1, hole);
        if (id != NULL && can_come(s, id, hole))
            take_smaller(s, &best, key, key_len, id);
    }
    return best.id;
}

static const struct hth_peer_id *who_acts(const struct moshpit_sweep *s,
                                          const struct hth_avg_cell *cell, uint64_t round,
                                          const struct hole *hole)
{
    const struct hth_peer_id *id = who_is_in(s, cell);

    return id != NULL ? id : find_proxy(s, cell, round, hole);
}

/* Not only perhaps. */
static bool is_due(const struct hth_match_due *due, uint32_t count, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < count; i++)
        if (hth_peer_id_eq(&due[i].id, id))
            return !due[i].maybe;
    return false;
}

/* Who should come to a place that nobody is in; NULL: nobody can. */
static const struct hth_peer_id *who_comes(const struct moshpit_sweep *s,
                                           const struct hth_avg_cell *cell, uint32_t at)
{
    const struct hole soon = {at, true}, later = {at, false};
    const struct hth_peer_id *id = find_proxy(s, cell, s->round, &soon);

    return id != NULL ? id : find_proxy(s, cell, s->round, &later);
}

/* Those who stand in come when their own line has met, which may wait for somebody as long as its
 * window is open. They come by themselves where their line misses the same peer; where that one
 * died after it had all of its values, they know nothing of it, and the leader here calls them. */
uint32_t hth_proxy_due(const struct moshpit_sweep *s, struct hth_match_due *out, uint32_t count,
                       uint32_t max)
{
    uint32_t axis = hth_avg_axis(&s->shape, s->round);
    int64_t end_us = s->look_us + hth_sweep_window_us(s);
    struct hth_avg_cell cell = s->cell;

    if (!is_standing(s) || s->is_proxy || axis == 0 || s->look == NULL ||
        end_us <= hth_now_us(s->env))
        return count;
    for (uint32_t at = 0; at < s->shape.size[axis] && count < max; at++) {
        const struct hth_roster_peer *p;
        const struct hth_peer_id *id;

        cell.at[axis] = at;
        if (at == s->cell.at[axis] || hth_look_covers(s->look, at))
            continue;
        id = who_is_in(s, &cell);
        if (id != NULL && is_due(out, count, id))
            continue;
        id = who_comes(s, &cell, at);
        p = id != NULL ? hth_roster_find(s->mp->roster, id) : NULL;
        if (p != NULL)
            out[count++] = (struct hth_match_due){
                .id = p->id, .until_us = end_us, .proxy_at = at + 1, .addr = p->note.addr};
    }
    return count;
}

/* ---- going there ----------------------------------------------------------------------------- */

/* The first round of the sweep in which this one is. */
static uint64_t base_of(const struct moshpit_sweep *s)
{
    return s->round - hth_avg_axis(&s->shape, s->round);
}

static bool same_offers(const struct moshpit_sweep *a, const struct moshpit_sweep *b)
{
    return a->kind == b->kind && a->offer.schema == b->offer.schema;
}

/* Begins in `round`, in the line of `cell`. Whether there is a sweep for it now. */
static bool go(struct moshpit_sweep *s, const struct hth_avg_cell *cell, uint64_t round, bool ready)
{
    struct moshpit *mp = s->mp;
    struct moshpit_sweep *in;
    uint64_t base = round - hth_avg_axis(&s->shape, round);
    uint32_t slot = HTH_AVG_PROXIES_MAX;

    for (uint32_t i = 0; i < HTH_AVG_PROXIES_MAX; i++) {
        in = mp->proxies[i];
        if (in == NULL)
            slot = HTH_MIN(slot, i);
        else if (in->base == base && same_offers(in, s) && same_cell(&in->cell, cell))
            return true; /* we are there */
    }
    if (slot == HTH_AVG_PROXIES_MAX)
        return false;
    in = hth_sweep_alloc(mp, &s->offer);
    if (in == NULL)
        return false;
    in->is_proxy = true;
    in->offered = true;
    in->kind = s->kind;
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
    in->heads = s->heads;
    in->origin = s->origin;
    if (hth_sweep_look(in, ready, hth_sweep_round_us(in)) !=
        HTH_OK) { /* it is our own line, or there is no room */
        hth_sweep_cancel(in);
        return false;
    }
    hth_timer_set(in->env, in->timer, hth_sweep_time_us(in) + hth_sweep_round_us(in));
    mp->proxies[slot] = in;
    mp->stats.proxied++;
    return true;
}

void hth_proxy_begin(const struct moshpit_sweep *s)
{
    for (uint32_t i = 0; i < HTH_AVG_PROXIES_MAX; i++) {
        struct moshpit_sweep *in = s->mp->proxies[i];

        if (in != NULL && in->base == s->round && same_offers(in, s))
            hth_sweep_cancel(in);
    }
    for (uint32_t i = 0; i < HTH_AVG_KEPT_MAX; i++) {
        struct moshpit_sweep *k = s->mp->kept[i];

        if (k != NULL && base_of(k) == s->round && same_offers(k, s))
            hth_sweep_cancel(k);
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

static bool is_ours(const struct moshpit_sweep *s, const struct hth_avg_group *g,
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

void hth_proxy_start(struct moshpit_sweep *s, const struct hth_avg_group *g, uint64_t round,
                     bool ready)
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

void hth_proxy_late(struct moshpit_sweep *s)
{
    if (s->ending || !is_standing(s))
        return;
    if (s->met != NULL)
        hth_proxy_start(s, s->met, s->met->line.round, true);
    if (s->group != NULL)
        hth_proxy_start(s, s->group, s->group->line.round, false);
}

void hth_proxy_values(struct moshpit_sweep *s, bool there)
{
    for (uint32_t i = 0; i < HTH_AVG_PROXIES_MAX; i++) {
        struct moshpit_sweep *in = s->mp->proxies[i];

        if (in == NULL || in->source != s)
            continue;
        in->source = NULL;
        if (!there) {
            hth_sweep_cancel(in);
            continue;
        }
        in->values = hth_blob_ref(s->values);
        in->weight = s->weight;
        in->heads = s->heads;
        in->origin = s->origin;
        in->look_us = hth_now_us(in->env);
        if (in->look != NULL)
            hth_look_ready(in->look, in->weight, in->origin, hth_sweep_others(in));
    }
}

/* ---- being called ---------------------------------------------------------------------------- */

/* Where the values of that round go: that of the same axis and cell before it, a free place, or the
 * oldest. */
static uint32_t place_to_keep(const struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;
    uint32_t slot = 0;

    for (uint32_t i = 0; i < HTH_AVG_KEPT_MAX; i++) {
        const struct moshpit_sweep *k = mp->kept[i], *oldest = mp->kept[slot];

        if (k != NULL && same_offers(k, s) && same_cell(&k->cell, &s->cell) &&
            hth_avg_axis(&k->shape, k->round) == hth_avg_axis(&s->shape, s->round))
            return i;
        if (oldest != NULL && (k == NULL || k->start_us < oldest->start_us))
            slot = i;
    }
    return slot;
}

/* Nobody else can have met in the round before without s, which met nobody there. */
static bool is_alone(const struct moshpit_sweep *s)
{
    uint32_t axis = hth_avg_axis(&s->shape, s->round - 1);
    struct hth_avg_cell cell = s->cell;
    bool alone;

    (void)hth_roster_population(s->mp->roster, &alone);
    for (uint32_t at = 0; at < s->shape.size[axis] && alone; at++) {
        cell.at[axis] = at;
        alone = same_cell(&cell, &s->cell) || who_is_in(s, &cell) == NULL;
    }
    return alone;
}

void hth_proxy_keep(const struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;
    struct moshpit_sweep *k;
    uint32_t slot;

    if (!is_standing(s) || hth_avg_axis(&s->shape, s->round) == 0)
        return;
    slot = place_to_keep(s);
    if (mp->kept[slot] != NULL)
        hth_sweep_cancel(mp->kept[slot]);
    k = hth_sweep_alloc(mp, &s->offer);
    if (k == NULL)
        return;
    hth_blob_unref(k->offer.values);
    hth_blob_unref(k->values);
    k->offer.values = NULL;
    k->values = NULL;
    if (s->info.err == HTH_OK || (s->met == NULL && is_alone(s)))
        k->values = hth_blob_ref(s->values);
    k->kept = true;
    k->kind = s->kind;
    k->generation = s->generation;
    k->shape = s->shape;
    k->cell = s->cell;
    k->round = s->round;
    k->weight = s->weight;
    k->heads = s->heads;
    k->origin = s->origin;
    hth_timer_set(k->env, k->timer, mp->opts.match.linger_us);
    mp->kept[slot] = k;
}

/* s has met in that line in the round before its present one, and what came of it, or will. */
static bool was_in(const struct moshpit_sweep *s, const struct hth_avg_line *line, uint64_t schema)
{
    struct hth_avg_line l = hth_sweep_line(s);

    l.round = line->round;
    return s->round == line->round + 1 && s->offer.schema == schema && is_standing(s) &&
           (s->kept || s->reduce != NULL) && hth_avg_line_eq(&l, line);
}

static struct moshpit_sweep *find(struct moshpit_sweep *const *in, uint32_t count,
                                  const struct hth_avg_line *line, uint64_t schema)
{
    for (uint32_t i = 0; i < count; i++)
        if (in[i] != NULL && was_in(in[i], line, schema))
            return in[i];
    return NULL;
}

/* Only one of ours that stands in that line may call us there. */
static bool is_of_line(const struct moshpit *mp, const struct hth_peer_id *id,
                       const struct hth_avg_line *line)
{
    const struct hth_roster_peer *p = hth_roster_find(mp->roster, id);
    struct hth_avg_line theirs = *line;

    if (p == NULL || p->note.generation != line->generation ||
        !hth_avg_shape_eq(&p->note.shape, &line->shape))
        return false;
    theirs.cell = p->note.cell;
    return hth_avg_line_eq(&theirs, line);
}

enum hth_avg_reason hth_proxy_called(void *arg, const struct hth_peer_id *by,
                                     const struct hth_avg_line *line, uint64_t schema, uint32_t at)
{
    struct moshpit *mp = arg;
    struct hth_avg_line from = *line; /* that of the missing one in the round before */
    uint32_t axis = hth_avg_axis(&line->shape, line->round);
    struct moshpit_sweep *s;

    if (axis == 0 || !is_of_line(mp, by, line))
        return HTH_AVG_NOT_LOOKING;
    from.round--;
    from.cell.at[axis] = at;
    s = find(mp->kept, HTH_AVG_KEPT_MAX, &from, schema);
    s = s != NULL ? s : find(mp->sweeps, HTH_AVG_OFFERS_MAX, &from, schema);
    s = s != NULL ? s : find(mp->proxies, HTH_AVG_PROXIES_MAX, &from, schema);
    if (s == NULL)
        return HTH_AVG_NOT_LOOKING;
    if (s->kept && s->values == NULL)
        return HTH_AVG_NO_VALUES;
    return go(s, &from.cell, line->round, s->kept) ? HTH_AVG_WAIT : HTH_AVG_NO_VALUES;
}
