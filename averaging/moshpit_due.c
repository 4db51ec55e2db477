/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit_due.c: who is expected in a line, and which round is the present one.
 *
 * The roster says for each peer in which round it looks next and where it stands then. Its notes
 * come a little late, and cells move with every round: a peer that is said to be in an earlier one
 * only *may* come. A peer that is lost (roster.h) is not expected.
 */
#include <stdlib.h>
#include <string.h>

#include "averaging/moshpit_int.h"
#include "core/mem.h"

#define ROUNDS_NEAR     64                     /* that peers who meet may be apart */
#define ROUND_BELIEVED  (HTH_AVG_STEP_MAX / 2) /* nobody gets there; beyond, counting would end */
#define FAR_AGAIN_US    (2 * HTH_US_PER_S) /* after the first vain look; twice as long each time */
#define FAR_DOUBLES_MAX 8                  /* ... up to 8.5 minutes */
#define VAIN_MAX        3                  /* looks, then one goes back to the others */

/* ---- who comes ------------------------------------------------------------------------------- */

static bool is_ours(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    return p->note.schema == hth_roster_self(s->mp->roster)->schema &&
           (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) == 0;
}

/* One of ours that brings some. */
static bool has_values(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    return is_ours(s, p) && (p->note.flags & HTH_ROSTER_HELPER) == 0;
}

enum where { NOT_DUE, MAY_COME, DUE };

/* What a peer told us itself is newer than its note, unless that says since that it went on: by
 * that peer's clock, as what it told us comes late when the network was cut. */
static const struct hth_avg_line *line_heard(const struct moshpit_sweep *s,
                                             const struct hth_roster_peer *p)
{
    int64_t said_us;
    const struct hth_avg_line *line =
        hth_match_heard(s->mp->match, &p->id, s->offer.schema, NULL, &said_us);

    if (line == NULL || line->run != s->mp->run || line->generation != s->generation)
        return NULL;
    return p->issued_us > said_us && p->note.round > line->round ? NULL : line;
}

static enum where where(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    const struct hth_roster_note *n = &p->note;
    struct hth_avg_line ours = hth_sweep_line(s), theirs = ours;
    const struct hth_avg_line *heard = line_heard(s, p);

    if (p->doubted || !is_ours(s, p))
        return NOT_DUE;
    if (heard != NULL && heard->round >= s->round)
        return hth_avg_line_eq(heard, &ours) ? DUE : NOT_DUE;
    if (n->generation != s->generation || !hth_avg_shape_eq(&n->shape, &s->shape))
        return hth_roster_is_later(s->generation, n->generation) ? MAY_COME : NOT_DUE;
    if (n->round != s->round)
        return n->round < s->round ? MAY_COME : NOT_DUE;
    theirs.cell = n->cell;
    return hth_avg_line_eq(&ours, &theirs) ? DUE : NOT_DUE;
}

/* When p last went on to another round, or said where it looks. */
static int64_t active_us(const struct moshpit_sweep *s, const struct hth_roster_peer *p)
{
    int64_t heard_us = 0;

    (void)hth_match_heard(s->mp->match, &p->id, s->offer.schema, &heard_us, NULL);
    return HTH_MAX(heard_us, p->moved_us);
}

/* Until when a peer is waited for: until the window is over. Who may come only as long as others
 * would wait for it since it moved or spoke last, and at least for a moment. */
static int64_t until(const struct moshpit_sweep *s, const struct hth_roster_peer *p, enum where w)
{
    int64_t end_us = s->look_us + hth_sweep_window_us(s);
    int64_t least_us = s->look_us + hth_match_patience_us(s->mp->match);

    if (w != MAY_COME)
        return end_us;
    return HTH_MAX(HTH_MIN(end_us, active_us(s, p) + hth_sweep_window_us(s)), least_us);
}

uint32_t hth_moshpit_due(const struct moshpit_sweep *s, struct hth_match_due *out, uint32_t max)
{
    const struct hth_roster_peer *p;
    uint32_t count = 0;
    bool exact;

    (void)hth_roster_population(s->mp->roster, &exact);
    if (!exact)
        return UINT32_MAX;
    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL && count < max; i++) {
        enum where w = where(s, p);
        int64_t until_us = w != NOT_DUE && !p->lost ? until(s, p, w) : 0;

        if (until_us > hth_now_us(s->env))
            out[count++] = (struct hth_match_due){p->id, until_us, w == MAY_COME};
    }
    return count;
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
    for (int want = DUE; want >= (exact ? NOT_DUE : DUE); want--)
        for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL && count < max; i++) {
            if (!is_ours(s, p) || where(s, p) != (enum where)want)
                continue;
            out[count] = (struct hth_match_known){.id = p->id};
            if (want != NOT_DUE || few)
                out[count].addr = p->note.addr;
            count++;
        }
    return count;
}

/* ---- the present round ----------------------------------------------------------------------- */

/* In which round that peer is; or was at that time, if it was one of ours then. */
static uint64_t round_of(const struct moshpit_sweep *s, const struct hth_roster_peer *p,
                         int64_t at_us)
{
    const struct hth_avg_line *heard =
        hth_match_heard(s->mp->match, &p->id, s->offer.schema, NULL, NULL);
    uint64_t round = HTH_MAX(p->note.round, heard != NULL ? heard->round : 0);

    return p->moved_us > at_us ? HTH_MIN(round, s->round) : round;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* The lower median, of those with values; up to `most` where there are any, else of all. */
static uint64_t middle_round(const struct moshpit_sweep *s, int64_t at_us, uint64_t most)
{
    uint64_t *rounds = hth_new_array(uint64_t, HTH_AVG_ROSTER_MAX), middle;
    const struct hth_roster_peer *p;
    size_t count = 0, near = 0;

    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++) {
        if (!has_values(s, p) || p->lost || round_of(s, p, at_us) > ROUND_BELIEVED)
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

/* Somebody who has just come into our line, or looks there, and did not miss this round with us. */
static bool is_awaited(const struct moshpit_sweep *s, int64_t since_us)
{
    const struct hth_roster_peer *p;

    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++)
        if (has_values(s, p) && !p->lost && where(s, p) == DUE && active_us(s, p) > since_us)
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

    mp->vain = met ? 0 : mp->vain + 1;
    if (!s->far)
        return;
    s->far = false;
    mp->far_vain = met ? 0 : mp->far_vain + 1;
    mp->far_at_us =
        met ? 0 : hth_now_us(s->env) + (FAR_AGAIN_US << HTH_MIN(mp->far_vain - 1, FAR_DOUBLES_MAX));
}
