/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit_due.c: which peers are expected in a line, and which round is the present one.
 *
 * The roster says for each peer in which round it looks next and where it stands then. Its notes
 * come a little late, and cells move with every round: a peer that is said to be in an earlier one
 * only *may* come. A peer that is lost (roster.h) is not expected.
 */
#include <stdlib.h>

#include "averaging/moshpit_int.h"
#include "core/mem.h"

#define ROUNDS_NEAR    64                     /* that peers who meet may be apart */
#define ROUND_BELIEVED (HTH_AVG_STEP_MAX / 2) /* nobody gets there; beyond, counting would end */
#define FAR_AGAIN_US   (60 * HTH_US_PER_S)    /* after a vain look in a round far ahead */

/* ---- peers of a line ------------------------------------------------------------------------- */

static bool is_ours(const struct moshpit_round *s, const struct hth_roster_peer *p)
{
    return p->note.schema == s->offer.schema && (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) == 0;
}

/* One of ours that brings some. */
static bool has_values(const struct moshpit_round *s, const struct hth_roster_peer *p)
{
    return is_ours(s, p) && (p->note.flags & HTH_ROSTER_HELPER) == 0 && !p->lost;
}

enum where { NOT_DUE, MAY_COME, DUE };

static enum where where(const struct moshpit_round *s, const struct hth_roster_peer *p)
{
    const struct hth_roster_note *n = &p->note;
    struct hth_avg_line ours = hth_round_line(s), theirs = ours;

    if (p->doubted || p->lost)
        return NOT_DUE;
    if (!hth_avg_shape_eq(&n->shape, &s->shape))
        return NOT_DUE;
    if (n->round != s->round)
        return n->round < s->round ? MAY_COME : NOT_DUE;
    theirs.cell = n->cell;
    return hth_avg_line_eq(&ours, &theirs) ? DUE : NOT_DUE;
}

/* A peer is waited for until the window is over. Who may come only as long as others would wait for
 * it since it moved or spoke last, and at least for a moment. */
static int64_t until(const struct moshpit_round *s, const struct hth_roster_peer *p, enum where w)
{
    int64_t window_us = hth_round_window_us(s), end_us = s->look_us + window_us;
    int64_t least_us = s->look_us + hth_match_patience_us(s->mp->match);

    if (w == NOT_DUE)
        return 0;
    return w == DUE ? end_us : HTH_MAX(HTH_MIN(end_us, p->moved_us + window_us), least_us);
}

/* First those that are due, then those that may come, then all others, because these wait for us
 * perhaps; for the last no connection is made, but where there is only one. Where peers are sampled
 * only the first: all would tell the same few. */
uint32_t hth_moshpit_peers(const struct moshpit_round *s, struct hth_match_peer *out, uint32_t max,
                           bool *all)
{
    bool few = hth_roster_population(s->mp->roster, all) <= 2;
    const struct hth_roster_peer *p;
    uint32_t count = 0;

    for (int want = DUE; want >= (*all ? NOT_DUE : DUE); want--)
        for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL && count < max; i++) {
            if (!is_ours(s, p) || where(s, p) != (enum where)want)
                continue;
            out[count] = (struct hth_match_peer){
                .id = p->id, .until_us = until(s, p, (enum where)want), .maybe = want == MAY_COME};
            if (want != NOT_DUE || few)
                out[count].addr = p->note.addr;
            count++;
        }
    return count;
}

/* ---- the present round ----------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* The lower median of those with values, up to `most` where there are any, else of all. Those that
 * moved after at_us count as in our round still. */
static uint64_t middle_round(const struct moshpit_round *s, int64_t at_us, uint64_t most)
{
    uint64_t *rounds = hth_new_array(uint64_t, HTH_AVG_ROSTER_MAX), middle;
    const struct hth_roster_peer *p;
    size_t count = 0, near = 0;

    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++) {
        if (!has_values(s, p) || p->note.round > ROUND_BELIEVED)
            continue;
        HTH_ASSERT(count < HTH_AVG_ROSTER_MAX);
        rounds[count++] = p->moved_us > at_us ? HTH_MIN(p->note.round, s->round) : p->note.round;
    }
    qsort(rounds, count, sizeof(*rounds), by_number);
    while (near < count && rounds[near] <= most)
        near++;
    count = near > 0 ? near : count;
    middle = count > 0 ? rounds[(count - 1) / 2] : s->round;
    hth_free(rounds);
    return middle;
}

/* A peer that has just come into our line, and did not miss this round with us. */
static bool is_awaited(const struct moshpit_round *s, int64_t since_us)
{
    const struct hth_roster_peer *p;

    for (uint32_t i = 0; (p = hth_roster_at(s->mp->roster, i)) != NULL; i++)
        if (has_values(s, p) && where(s, p) == DUE && p->moved_us > since_us)
            return true;
    return false;
}

/* Going with the lowest round would do as long as nobody is absent; but whoever missed a round
 * would go on looking for it with the others who did, a round behind all the rest for good. So one
 * goes with the middle; back to it only after a vain look. Who is only late has not missed its
 * round yet: its line waits for it while the other lines, which are complete, go on. That lasts as
 * long as a look does, less what it takes to be found.
 *
 * Keys cost nothing, so the middle may be a lie. When nobody comes in a round far ahead, one goes
 * with those who are near for a minute. */
uint64_t hth_moshpit_round(struct moshpit_round *s)
{
    const struct moshpit *mp = s->mp;
    int64_t now_us = hth_now_us(s->mp->env),
            late_us = mp->opts.window_us - mp->opts.match.patience_us;
    uint64_t most = now_us >= mp->far_at_us ? ROUND_BELIEVED : s->round + ROUNDS_NEAR;
    uint64_t middle = middle_round(s, INT64_MAX, most);
    int64_t since_us = HTH_MAX(now_us - late_us, (int64_t)0);

    s->far = middle > s->round + ROUNDS_NEAR;
    if (middle < s->round)
        return mp->vain ? middle : s->round;
    if (middle_round(s, since_us, most) <= s->round && is_awaited(s, since_us))
        return s->round;
    return middle;
}

void hth_moshpit_looked(struct moshpit_round *s, bool met)
{
    s->mp->vain = !met;
    if (s->far && !met)
        s->mp->far_at_us = hth_now_us(s->mp->env) + FAR_AGAIN_US;
    s->far = false;
}
