/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit_due.c: who is expected in a line.
 *
 * The roster says for each peer in which round it looks next and where it stands then. Its notes
 * come a little late, so where cells move with every round, a peer that is said to be in an earlier
 * one only *may* come: it has moved since. Who was dropped from a group or let others wait is not
 * expected again before it was heard again or a newer note of it was seen: a dead peer's last note
 * lives on for a while. And notes cost nothing: for who was not in the average of a step that it
 * says it is at, or beyond, a newer one is no reason to be expected.
 */
#include <stdlib.h>
#include <string.h>

#include "averaging/moshpit_int.h"
#include "core/mem.h"
#include "rpc/rpc.h"

#define STEPS_LATE      4 /* that a note may be behind its owner */
#define STEPS_AHEAD     1 /* that one may be who gathers for the next step during this one */

#define GONE_ON_MIN     2 /* by whose word one goes where they are; */
#define GONE_ON_ONE_IN  4 /* of those in one's own lines */

#define ROUNDS_NEAR     64                     /* that peers who meet may be apart */
#define ROUND_BELIEVED  (HTH_AVG_STEP_MAX / 2) /* nobody gets there; beyond, counting would end */
#define FAR_AGAIN_US    (2 * HTH_US_PER_S) /* after the first vain look; twice as long each time */
#define FAR_DOUBLES_MAX 8                  /* ... up to 8.5 minutes */
#define VAIN_MAX        3                  /* looks, then one goes back to the others */

void hth_moshpit_suspect(struct moshpit *mp, const struct hth_peer_id *id)
{
    const struct hth_roster_peer *p = hth_roster_find(mp->roster, id);
    struct moshpit_suspect *s = hth_map_get(mp->suspects, id->b, sizeof(id->b));

    if (p == NULL)
        return;
    if (s == NULL) {
        s = hth_new(struct moshpit_suspect);
        hth_map_put(mp->suspects, id->b, sizeof(id->b), s);
    }
    s->issued_us = p->issued_us;
    s->at_us = hth_now_us(mp->env);
    hth_roster_miss(mp->roster, id);
}

/* One of ours that brings some. */
static bool has_values(const struct moshpit *mp, const struct hth_roster_peer *p)
{
    return p->note.schema == hth_roster_self(mp->roster)->schema &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0;
}

/* Or may be soon. */
static bool is_connected(const struct moshpit *mp, const struct hth_peer_id *id)
{
    struct hth_rpc_peer_info info;

    return hth_rpc_peer_info(mp->rpc, id, &info) == HTH_OK && (info.connected || info.dialing);
}

void hth_moshpit_deaf(struct moshpit *mp, const struct hth_peer_id *id)
{
    hth_moshpit_suspect(mp, id);
    if (!is_connected(mp, id))
        hth_roster_deaf(mp->roster, id);
}

void hth_moshpit_lost(struct moshpit *mp, const struct hth_peer_id *id)
{
    struct moshpit_suspect *s;

    hth_moshpit_suspect(mp, id);
    s = hth_map_get(mp->suspects, id->b, sizeof(id->b));
    if (s != NULL)
        s->lost_us = s->at_us;
}

bool hth_moshpit_is_lost(struct moshpit *mp, const struct hth_peer_id *id, int64_t since_us)
{
    const struct moshpit_suspect *s = hth_map_get(mp->suspects, id->b, sizeof(id->b));
    const struct hth_roster_peer *p = hth_roster_find(mp->roster, id);

    return s != NULL && s->lost_us > 0 && s->lost_us >= since_us && p != NULL &&
           hth_moshpit_suspected(mp, p);
}

bool hth_moshpit_suspected(struct moshpit *mp, const struct hth_roster_peer *p)
{
    struct moshpit_suspect *s = hth_map_get(mp->suspects, p->id.b, sizeof(p->id.b));
    int64_t heard_us = INT64_MIN;
    uint32_t generation;
    bool vain;

    if (s == NULL)
        return false;
    (void)hth_roster_shape(mp->roster, &generation);
    vain = s->vain && (s->generation == 0 || s->generation == generation);
    (void)hth_match_heard(mp->match, &p->id, p->note.schema, &heard_us, NULL);
    if ((vain || s->issued_us == p->issued_us) && heard_us <= s->at_us)
        return true;
    hth_map_del(mp->suspects, p->id.b, sizeof(p->id.b));
    hth_free(s);
    return false;
}

/* Who is gone from the roster is due nowhere, and there are no more suspects than notes. */
void hth_moshpit_forget(struct moshpit *mp)
{
    const void *key;
    struct moshpit_suspect *s;
    struct hth_peer_id id;

    for (size_t it = 0; (s = hth_map_next(mp->suspects, &it, &key, NULL)) != NULL;) {
        memcpy(id.b, key, sizeof(id.b));
        if (hth_roster_find(mp->roster, &id) != NULL)
            continue;
        hth_map_del(mp->suspects, id.b, sizeof(id.b));
        hth_free(s);
    }
}

enum where { NOT_DUE, MAY_COME, DUE };

/* Where cells stand, who looks in an earlier round of this sweep comes into ours from there. */
static bool is_before(const struct moshpit_sweep *s, const struct hth_avg_line *line,
                      const struct hth_avg_line *ours)
{
    struct hth_avg_line theirs = *ours;

    theirs.cell = line->cell;
    return !s->moves && line->round < s->round &&
           s->round - line->round <= hth_avg_axis(&s->shape, s->round) &&
           hth_avg_shape_eq(&line->shape, &s->shape) && hth_avg_line_eq(&theirs, ours);
}

bool hth_moshpit_has_passed(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    return s->offer.sweep != HTH_AVG_SWEEP_AUTO && p->step > s->offer.sweep + STEPS_AHEAD;
}

/* What a peer told us itself is newer than its note, unless that says since that it went on: by
 * that peer's clock, as what it told us comes late when the network was cut. */
static bool where_heard(const struct moshpit_sweep *s, const struct hth_roster_peer *p,
                        const struct hth_avg_line *ours, enum where *out)
{
    int64_t said_us;
    const struct hth_avg_line *line =
        hth_match_heard(s->mp->match, &p->id, s->offer.schema, NULL, &said_us);

    if (s->offer.sweep == HTH_AVG_SWEEP_AUTO && line != NULL && p->issued_us > said_us &&
        p->note.round > line->round)
        return false;
    if (line == NULL || line->run != ours->run || line->generation != s->generation)
        return false;
    *out = DUE;
    if (line->round < s->round)
        return is_before(s, line, ours);
    *out = line->round == s->round && hth_avg_line_eq(line, ours) ? DUE : NOT_DUE;
    /* Where cells stand, a peer may look in two lines at once: its own, and one to stand in. */
    return *out == DUE || s->moves || line->round > s->round;
}

/* Notes are late: who was in one of the last steps comes in a moment perhaps. Who stays behind says
 * soon that it has no state. */
static enum where where_by_step(uint64_t theirs, uint64_t ours)
{
    if (theirs == ours)
        return DUE;
    return theirs < ours && ours - theirs <= STEPS_LATE ? MAY_COME : NOT_DUE;
}

static enum where where(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    const struct hth_roster_note *n = &p->note;
    struct hth_avg_line ours = hth_sweep_line(s), theirs = ours;
    enum where heard;

    if (p->doubted || (n->flags & HTH_ROSTER_BOOTSTRAPPING) || hth_moshpit_has_passed(s, p))
        return NOT_DUE;
    if (where_heard(s, p, &ours, &heard))
        return heard;
    if (n->generation != s->generation || !hth_avg_shape_eq(&n->shape, &s->shape))
        return hth_roster_is_later(s->generation, n->generation) ? MAY_COME : NOT_DUE;
    theirs.cell = n->cell;
    if (s->moves) { /* its cell in our round is known only when it is in it */
        if (n->round != s->round)
            return n->round < s->round ? MAY_COME : NOT_DUE;
        return hth_avg_line_eq(&ours, &theirs) ? DUE : NOT_DUE;
    }
    if (!hth_avg_line_eq(&ours, &theirs))
        return NOT_DUE;
    if (s->offer.sweep != HTH_AVG_SWEEP_AUTO)
        return where_by_step(p->step, s->offer.sweep);
    if (n->round > s->round)
        return NOT_DUE;
    return n->round + 2 * s->shape.dims >= s->round ? DUE : MAY_COME;
}

/* Who stands in a in round `from` may stand in b in round `to`: all but the axes between is the
 * same. */
static bool can_reach(const struct moshpit_sweep *s, const struct hth_avg_cell *a, uint64_t from,
                      const struct hth_avg_cell *b, uint64_t to)
{
    struct hth_avg_cell c = *a;

    for (uint64_t r = from; r < to && r < from + s->shape.dims; r++)
        c.at[hth_avg_axis(&s->shape, r)] = b->at[hth_avg_axis(&s->shape, r)];
    return memcmp(&c, b, sizeof(c)) == 0;
}

/* When p last went on to another round, or said where it looks. */
static int64_t active_us(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    int64_t heard_us = 0;

    (void)hth_match_heard(s->mp->match, &p->id, s->offer.schema, &heard_us, NULL);
    return HTH_MAX(heard_us, p->moved_us);
}

/* Until when p is on its way to us. Cells change along one axis in each round: so one of the line
 * in which p still is comes into ours, into a place that nobody may have taken. It is known to be
 * another one, or none, when that line has met and its notes have come. INT64_MIN: p does not come
 * so; INT64_MAX: its line has not met yet. */
static int64_t on_its_way(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    const struct hth_roster_note *n = &p->note;
    uint32_t axis = hth_avg_axis(&s->shape, s->round);
    struct hth_avg_cell ours = s->cell;
    int64_t met_us = INT64_MAX;

    if (!s->moves || n->generation != s->generation || n->round >= s->round)
        return INT64_MIN;
    if (s->round - n->round < s->shape.dims) {
        ours.at[axis] = n->cell.at[axis];
        if (s->look != NULL && hth_look_covers(s->look, ours.at[axis]))
            return INT64_MIN;
    }
    if (!can_reach(s, &n->cell, n->round, &ours, s->round))
        return INT64_MIN;
    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++)
        if (p->note.generation == s->generation && p->note.round > n->round &&
            has_values(s->mp, p) && can_reach(s, &n->cell, n->round, &p->note.cell, p->note.round))
            met_us = HTH_MIN(met_us, p->moved_us);
    return met_us == INT64_MAX ? INT64_MAX : met_us + s->mp->opts.match.patience_us;
}

/* Until when a peer is waited for: until the values' window is over, or shortly after it expected
 * to come. INT64_MIN: it comes later than that. Who has not moved or spoken for as long as others
 * would wait for it is not on its way. */
static int64_t until(const struct moshpit_sweep *s, const struct hth_roster_peer *p,
                     enum where where)
{
    struct hth_env *env = s->mp->env;
    const struct hth_roster_note *n = &p->note;
    int64_t now_us = hth_now_us(env), patience_us = hth_match_patience_us(s->mp->match);
    int64_t end_us = s->look_us + hth_sweep_window_us(s), at_us;

    if (where == MAY_COME) {
        at_us = HTH_MIN(active_us(s, p) + hth_sweep_window_us(s), on_its_way(s, p));
        end_us = HTH_MIN(end_us, at_us);
        if (end_us <= s->look_us + patience_us)
            return s->look_us + patience_us;
    }
    if (s->shape.dims == 1 && n->addr.family == 0 && s->mp->opts.addr.family != 0 &&
        p->spoke_us == 0 && !is_connected(s->mp, &p->id))
        return HTH_MIN(end_us, s->look_us + 2 * patience_us); /* who looks would dial */
    if (n->ready_at_us == 0)
        return end_us;
    at_us = n->ready_at_us - hth_wall_us(env) + now_us;
    if (at_us > end_us)
        return INT64_MIN;
    return HTH_MIN(HTH_MAX(at_us, s->look_us) + 2 * patience_us, end_us);
}

/* Somebody else stands where it does: there are more peers than cells. */
static bool has_twin(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    const struct hth_roster_peer *q;

    for (uint32_t i = 0; (q = hth_roster_at(s->mp->roster, i)) != NULL; i++)
        if (q != p && q->note.generation == s->generation && has_values(s->mp, q) &&
            memcmp(&q->note.cell, &p->note.cell, sizeof(p->note.cell)) == 0)
            return true;
    return false;
}

/* Somebody has come in the place where it stands: those who met it last know that it is gone. Of
 * two who stand there one is no word about the other, which may be a connection later. */
static bool is_replaced(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    struct hth_avg_line ours = hth_sweep_line(s), theirs = ours;
    uint32_t axis = hth_avg_axis(&s->shape, s->round);

    if (s->moves || axis == 0 || s->look == NULL)
        return false;
    theirs.cell = p->note.cell;
    return hth_avg_line_eq(&ours, &theirs) && hth_look_covers(s->look, p->note.cell.at[axis]) &&
           !has_twin(s, p);
}

uint32_t hth_moshpit_due(const struct moshpit_sweep *s, struct hth_match_due *out, uint32_t max)
{
    struct moshpit *mp = s->mp;
    const struct hth_roster_peer *p;
    uint32_t count = 0;
    bool exact;

    (void)hth_roster_population(mp->roster, &exact);
    if (!exact)
        return UINT32_MAX;
    for (uint32_t i = 0; (p = hth_roster_at(mp->roster, i)) != NULL && count < max; i++) {
        enum where w = where(s, p);
        int64_t until_us;
        if (w == NOT_DUE || p->note.schema != hth_roster_self(mp->roster)->schema)
            continue;
        until_us = until(s, p, w);
        if (until_us == INT64_MIN || hth_moshpit_suspected(mp, p) || is_replaced(s, p) ||
            hth_refusers_exclude(&mp->refusers, &p->id, hth_now_us(mp->env)))
            continue;
        if (until_us <= hth_now_us(mp->env)) {
            if ((w == DUE || !s->moves) && s->look != NULL && !hth_look_knows(s->look, &p->id) &&
                !s->is_proxy && !s->observes)
                hth_moshpit_deaf(mp, &p->id);
            continue;
        }
        out[count++] = (struct hth_match_due){
            .id = p->id, .until_us = until_us, .maybe = w == MAY_COME, .addr = p->note.addr};
    }
    return hth_proxy_due(s, out, count, max);
}

/* Who is alone gives others a moment whose notes are on their way: once in a grid, not in each of
 * its rounds. Who stood with somebody whose connection broke knows them all: a line of three begins
 * without that one at once, too. */
bool hth_moshpit_bereft(const struct moshpit_sweep *s)
{
    struct hth_avg_line ours = hth_sweep_line(s), theirs = ours;
    const struct hth_roster_peer *p;
    bool lost = false, exact;

    (void)hth_roster_population(s->mp->roster, &exact);
    if (!exact || s->moves || s->is_proxy || s->shape.dims == 1)
        return false;
    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++) {
        if (!has_values(s->mp, p))
            continue;
        if (p->note.generation != s->generation || !hth_avg_shape_eq(&p->note.shape, &s->shape))
            return false; /* it may come to stand here */
        theirs.cell = p->note.cell;
        if (!hth_avg_line_eq(&ours, &theirs))
            continue;
        if (!hth_moshpit_is_lost(s->mp, &p->id, 0) || is_connected(s->mp, &p->id))
            return false;
        lost = true;
    }
    return lost || s->mp->alone_in[hth_avg_axis(&s->shape, s->round)] == s->generation;
}

/* Those of our schema: who is due first, then who may come, then all others, because those wait for
 * us perhaps; for the last no connection is made, but where there is only one. Where peers are
 * sampled only the first: all would tell the same few. */
uint32_t hth_moshpit_known(const struct moshpit_sweep *s, struct hth_match_known *out, uint32_t max)
{
    const struct hth_roster_peer *p;
    uint32_t count = 0;
    bool exact, few;

    few = hth_roster_population(s->mp->roster, &exact) <= 2;
    for (int want = DUE; want >= (exact && !s->is_proxy ? NOT_DUE : DUE); want--)
        for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL && count < max; i++) {
            if (p->note.schema != hth_roster_self(s->mp->roster)->schema ||
                (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) || where(s, p) != (enum where)want)
                continue;
            out[count] = (struct hth_match_known){.id = p->id};
            if (want != NOT_DUE || few)
                out[count].addr = p->note.addr;
            count++;
        }
    return count;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Who observes says nothing of itself by that. */
static bool is_member(const struct hth_avg_group *g, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < g->count; i++)
        if (hth_peer_id_eq(&g->member[i].id, id))
            return g->member[i].mode != HTH_AVG_OBSERVER;
    return false;
}

/* It says that it is at this step, or beyond, and was not in its average: what it says counts for
 * nothing until it speaks. Who looks in a line tells all others of it. */
static void note_absent(const struct moshpit_sweep *s, const struct hth_peer_id *id)
{
    struct moshpit *mp = s->mp;
    struct moshpit_suspect *absent;

    hth_moshpit_suspect(mp, id);
    absent = hth_map_get(mp->suspects, id->b, sizeof(id->b));
    if (absent != NULL) {
        absent->vain = true;
        absent->generation = s->shape.dims > 1 ? s->generation : 0;
    }
    hth_roster_apart(mp->roster, id);
}

/* On a grid it is by its note, and who has spoken may only be late: it tells others than us
 * first. */
static bool should_come(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    struct hth_avg_line ours = hth_sweep_line(s), theirs = ours;

    if (s->shape.dims == 1)
        return true;
    if (p->spoke_us > 0 || p->note.generation != s->generation ||
        !hth_avg_shape_eq(&p->note.shape, &s->shape))
        return false;
    theirs.cell = p->note.cell;
    return hth_avg_line_eq(&ours, &theirs);
}

/* Who looks tells those whom it knows, and a client dials for that. Of two, besides, the other is
 * all that keeps this one from going on alone, and it may be a word of nobody, due in some line or
 * in none. */
void hth_moshpit_look_over(const struct moshpit_sweep *s, const struct hth_look_result *r)
{
    struct moshpit *mp = s->mp;
    const struct hth_roster_peer *p;
    bool all = r->reason == HTH_AVG_ALONE && hth_roster_population(mp->roster, NULL) <= 2;
    bool met = s->offer.sweep != HTH_AVG_SWEEP_AUTO && r->group != NULL;

    for (uint32_t i = 0; (p = hth_roster_at(mp->roster, i)) != NULL; i++) {
        if (!has_values(mp, p))
            continue;
        if (!is_connected(mp, &p->id) && (all || p->note.addr.family == 0))
            hth_roster_deaf(mp->roster, &p->id);
        if (met && p->step >= s->offer.sweep && !is_member(r->group, &p->id) && should_come(s, p))
            note_absent(s, &p->id);
    }
}

/* In which round that peer is; or was at that time, if it was one of ours then. */
static uint64_t round_of(const struct moshpit_sweep *s, const struct hth_roster_peer *p,
                         int64_t at_us)
{
    const struct hth_avg_line *heard =
        hth_match_heard(s->mp->match, &p->id, s->offer.schema, NULL, NULL);
    uint64_t round = HTH_MAX(p->note.round, heard != NULL ? heard->round : 0);

    return p->moved_us > at_us ? HTH_MIN(round, s->round) : round;
}

/* The lower median, of those with values; up to `most` where there are any, else of all. */
static uint64_t middle_round(const struct moshpit_sweep *s, int64_t at_us, uint64_t most)
{
    struct moshpit *mp = s->mp;
    uint64_t *rounds = hth_new_array(uint64_t, HTH_AVG_ROSTER_MAX), middle;
    const struct hth_roster_peer *p;
    size_t count = 0, near = 0;

    for (uint32_t i = 0; (p = hth_roster_at(mp->roster, i)) != NULL; i++) {
        if (!has_values(mp, p) || hth_moshpit_suspected(mp, p) ||
            round_of(s, p, at_us) > ROUND_BELIEVED)
            continue;
        HTH_ASSERT(count < HTH_AVG_ROSTER_MAX);
        rounds[count++] = round_of(s, p, at_us);
    }
    qsort(rounds, count, sizeof(*rounds), by_number);
    while (near < count && rounds[near] <= most)
        near++;
    count = near > 0 ? near : count;
    middle = count > 0 ? rounds[(count - 1) / 2] : s->round;
    hth_free(rounds);
    return middle;
}

/* Whether it stands in one of our lines. */
static bool is_mate(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    uint32_t apart = 0;

    for (uint32_t axis = 0; axis < s->shape.dims; axis++)
        apart += p->note.cell.at[axis] != s->cell.at[axis];
    return apart <= 1 && p->note.generation == s->generation;
}

uint32_t hth_moshpit_kind(const struct moshpit_sweep *s)
{
    uint64_t first = s->offer.sweep * s->shape.dims, here = hth_sweep_run(s->mp, s->offer.kind);
    uint64_t on = hth_sweep_run(s->mp, s->offer.kind_on);
    const struct hth_roster_peer *p;
    uint32_t mates = 0, gone_on = 0, are_here = 0;

    for (uint32_t i = 0; s->offer.kind_on != 0 && (p = hth_roster_at(s->mp->roster, i)); i++) {
        const struct hth_avg_line *line =
            hth_match_heard(s->mp->match, &p->id, s->offer.schema, NULL, NULL);

        if (p->doubted || !has_values(s->mp, p) || hth_moshpit_suspected(s->mp, p))
            continue;
        mates += is_mate(s, p);
        if (line == NULL || line->generation != s->generation || line->round < first ||
            line->round - first >= s->shape.dims)
            continue;
        gone_on += line->run == on;
        are_here += line->run == here;
    }
    if (gone_on <= are_here || gone_on < GONE_ON_MIN || GONE_ON_ONE_IN * gone_on < mates)
        return s->offer.kind;
    return s->offer.kind_on;
}

/* Somebody who has just come into our line, or looks there, and did not miss this round with us. */
static bool is_awaited(const struct moshpit_sweep *s, int64_t since_us)
{
    const struct hth_roster_peer *p;

    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++)
        if (has_values(s->mp, p) && where(s, p) == DUE && active_us(s, p) > since_us &&
            !hth_moshpit_suspected(s->mp, p) &&
            !hth_refusers_exclude(&s->mp->refusers, &p->id, hth_now_us(s->env)))
            return true;
    return false;
}

/* Going with the lowest round would do as long as nobody is absent; but whoever missed a round
 * would go on looking for it with the others who did, a round behind all the rest for good. So one
 * goes with the middle. Who is only late has not missed its round yet: its line waits for it while
 * the other lines, which are complete, go on. That lasts as long as a look does, less what it takes
 * to be found.
 *
 * Keys cost nothing, so the middle may be a lie. A round far ahead is looked for; when nobody comes
 * there, one goes with those who are near for a while, longer each time. And who is ahead of the
 * others and meets nobody there goes back to them. */
uint64_t hth_moshpit_round(struct moshpit_sweep *s)
{
    struct moshpit *mp = s->mp;
    int64_t now_us = hth_now_us(s->env), late_us = mp->opts.window_us - mp->opts.match.patience_us;
    uint64_t most = now_us >= mp->far_at_us ? ROUND_BELIEVED : s->round + ROUNDS_NEAR;
    uint64_t middle = middle_round(s, INT64_MAX, most);
    int64_t since_us = HTH_MAX(now_us - late_us, (int64_t)0);

    s->far = middle > s->round + ROUNDS_NEAR;
    if (middle < s->round && s->round == mp->round_met && mp->vain >= VAIN_MAX)
        return mp->round_met = middle;
    if (middle > s->round && middle_round(s, since_us, most) <= s->round && is_awaited(s, since_us))
        return s->round;
    return HTH_MAX(middle, s->round);
}

void hth_moshpit_looked(struct moshpit_sweep *s, bool met)
{
    struct moshpit *mp = s->mp;

    if (s->offer.sweep != HTH_AVG_SWEEP_AUTO || s->is_proxy || (!met && !s->offered))
        return;
    mp->vain = met ? 0 : mp->vain + 1;
    if (!s->far)
        return;
    s->far = false;
    mp->far_vain = met ? 0 : mp->far_vain + 1;
    mp->far_at_us =
        met ? 0 : hth_now_us(s->env) + (FAR_AGAIN_US << HTH_MIN(mp->far_vain - 1, FAR_DOUBLES_MAX));
}
