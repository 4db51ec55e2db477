/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who of those seen counts, and how many there are: by levels of sampling, without those in doubt.
 *
 * Notes are counted by the zeros of their marks, so that no record costs a walk. Doubts are few,
 * and looked through when the next of them begins or ends.
 */
#include <stdlib.h>

#include "averaging/roster_int.h"
#include "core/mem.h"

#define LOWER_US   (3 * HTH_US_PER_S)  /* between two steps down */
#define SETTLE_US  (3 * HTH_US_PER_S)  /* until those of a lower level have spoken */
#define DOUBT_US   (60 * HTH_US_PER_S) /* the first time; twice as long each time */
#define DOUBTS_MAX 6                   /* ... up to an hour */

/* ---- who counts ------------------------------------------------------------------------------ */

bool hth_roster_takes_part(const struct hth_roster *r, const struct hth_roster_note *note)
{
    return note->schema == r->opts.schema &&
           (note->flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0;
}

bool hth_roster_self_counts(const struct hth_roster *r)
{
    return !r->opts.watch_only && !r->leaving && hth_roster_takes_part(r, &r->self);
}

static uint64_t mark_of(const struct hth_peer_id *id)
{
    return hth_mix64(hth_load_u64le(id->b));
}

uint32_t hth_roster_zeros(const struct hth_peer_id *id)
{
    uint64_t mark = mark_of(id);

    return mark == 0 ? 64 : (uint32_t)__builtin_clzll(mark);
}

bool hth_roster_in(uint32_t level, const struct hth_peer_id *id)
{
    return hth_roster_zeros(id) >= level;
}

/* Counts of notes by the leading zeros of their marks, so that no record costs a walk. */
static uint32_t count_from(const uint32_t *by_zeros, uint32_t level)
{
    uint32_t n = 0;

    for (uint32_t z = level; z <= 64; z++)
        n += by_zeros[z];
    return n;
}

uint32_t hth_roster_population(const struct hth_roster *r, bool *exact)
{
    bool self_in = hth_roster_in(r->counted_level, &r->env->self);
    uint32_t n = count_from(r->parts, r->counted_level);

    if (hth_roster_self_counts(r) && self_in)
        n++;
    n <<= r->counted_level;
    if (hth_roster_self_counts(r) && !self_in)
        n = HTH_MAX(n, 1u);
    if (exact != NULL)
        *exact = r->counted_level == 0;
    return n;
}

/* ---- doubts ---------------------------------------------------------------------------------- */

bool hth_roster_counts(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return !p->doubted && hth_roster_takes_part(r, &p->note);
}

static void look_again_at(struct hth_roster *r, int64_t at_us)
{
    if (r->doubts_at_us == 0 || at_us < r->doubts_at_us)
        r->doubts_at_us = at_us;
    hth_roster_tick_at(r, at_us);
}

static void judge(struct hth_roster *r, struct hth_roster_peer *p)
{
    bool doubted = hth_now_us(r->env) < p->doubted_until_us;

    if (doubted)
        look_again_at(r, p->doubted_until_us);
    if (doubted == p->doubted)
        return;
    r->parts[hth_roster_zeros(&p->id)] -= hth_roster_counts(r, p);
    p->doubted = doubted;
    r->parts[hth_roster_zeros(&p->id)] += hth_roster_counts(r, p);
    hth_roster_tell_change(r);
}

void hth_roster_adjust_doubts(struct hth_roster *r)
{
    if (r->doubts_at_us == 0)
        return;
    if (hth_now_us(r->env) < r->doubts_at_us) {
        hth_roster_tick_at(r, r->doubts_at_us);
        return;
    }
    r->doubts_at_us = 0;
    for (uint32_t i = 0; i < r->count; i++)
        judge(r, r->peers[i]);
}

void hth_roster_doubt(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = hth_roster_get(r, id);

    if (p == NULL || p->doubted)
        return;
    p->doubted_until_us = hth_now_us(r->env) + (DOUBT_US << HTH_MIN(p->doubts, DOUBTS_MAX));
    p->doubts++;
    judge(r, p);
}

/* ---- levels of sampling ---------------------------------------------------------------------- */

void hth_roster_adjust_level(struct hth_roster *r)
{
    int64_t now = hth_now_us(r->env);

    while (r->level < HTH_AVG_ROSTER_LEVEL_MAX && count_from(r->seen, r->level) > r->high) {
        r->level++;
        r->lower_at_us = 0;
    }
    r->counted_level = HTH_MAX(r->counted_level, r->level);
    if (r->level > 0 && count_from(r->seen, r->level) < r->high / HTH_AVG_ROSTER_LOW_PART) {
        if (r->lower_at_us == 0)
            r->lower_at_us = now + LOWER_US;
        if (now >= r->lower_at_us) {
            r->level--;
            r->lower_at_us = 0;
            r->counted_at_us = now + SETTLE_US;
            hth_roster_tick_at(r, now + LOWER_US);
        } else {
            hth_roster_tick_at(r, r->lower_at_us);
        }
    } else {
        r->lower_at_us = 0;
    }
    if (r->counted_level > r->level) {
        if (now >= r->counted_at_us)
            r->counted_level = r->level;
        else
            hth_roster_tick_at(r, r->counted_at_us);
    }
    r->stats.level = r->level;
}
