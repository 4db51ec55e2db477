/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roster_count.c: which peers count, and how many there are: by levels of sampling, without those
 * in doubt.
 */
#include "averaging/roster_int.h"

#define LOWER_US  (3 * HTH_US_PER_S) /* between two steps down */
#define SETTLE_US (3 * HTH_US_PER_S) /* until those of a lower level have spoken */
#define DOUBT_US  (60 * HTH_US_PER_S)

bool hth_roster_takes_part(const struct hth_roster *r, const struct hth_roster_note *note)
{
    return note->schema == r->opts.schema &&
           (note->flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0;
}

bool hth_roster_counts(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return !p->doubted && hth_roster_takes_part(r, &p->note);
}

bool hth_roster_self_counts(const struct hth_roster *r)
{
    return !r->opts.watch_only && !r->leaving && hth_roster_takes_part(r, &r->self);
}

uint32_t hth_roster_zeros(const struct hth_peer_id *id)
{
    uint64_t mark = hth_mix64(hth_load_u64le(id->b));

    return mark == 0 ? 64 : (uint32_t)__builtin_clzll(mark);
}

/* How many of the counts by zeros of the mark are below a level. */
static uint32_t count_from(const uint32_t *by_zeros, uint32_t level)
{
    uint32_t n = 0;

    for (uint32_t z = level; z <= 64; z++)
        n += by_zeros[z];
    return n;
}

uint32_t hth_roster_population(const struct hth_roster *r, bool *exact)
{
    bool self = hth_roster_self_counts(r);
    bool self_in = self && hth_roster_zeros(&r->env->self) >= r->counted_level;
    uint32_t n = (count_from(r->parts, r->counted_level) + self_in) << r->counted_level;

    if (exact != NULL)
        *exact = r->counted_level == 0;
    return self ? HTH_MAX(n, 1u) : n;
}

void hth_roster_count(struct hth_roster *r, const struct hth_roster_peer *p, bool in)
{
    uint32_t zeros = hth_roster_zeros(&p->id), counts = hth_roster_counts(r, p);

    r->seen[zeros] += in ? 1 : UINT32_MAX;
    r->parts[zeros] += in ? counts : -counts;
}

void hth_roster_recount(struct hth_roster *r)
{
    int64_t now = hth_now_us(r->env);

    memset(r->seen, 0, sizeof(r->seen));
    memset(r->parts, 0, sizeof(r->parts));
    r->recount_at_us = INT64_MAX;
    for (uint32_t i = 0; i < r->count; i++) {
        struct hth_roster_peer *p = r->peers[i];

        p->doubted = now < p->doubted_until_us;
        if (p->doubted)
            r->recount_at_us = HTH_MIN(r->recount_at_us, p->doubted_until_us);
        hth_roster_count(r, p, true);
    }
    if (r->recount_at_us != INT64_MAX)
        hth_roster_tick_at(r, r->recount_at_us);
    hth_roster_tell_change(r);
}

void hth_roster_doubt(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = hth_roster_get(r, id);

    if (p == NULL || p->doubted)
        return;
    p->doubted_until_us = hth_now_us(r->env) + DOUBT_US;
    hth_roster_recount(r);
}

/* ---- levels of sampling ---------------------------------------------------------------------- */

void hth_roster_adjust_level(struct hth_roster *r)
{
    int64_t now = hth_now_us(r->env);
    bool few;

    while (r->level < HTH_AVG_ROSTER_LEVEL_MAX && count_from(r->seen, r->level) > r->high) {
        r->level++;
        r->lower_at_us = 0;
    }
    r->counted_level = HTH_MAX(r->counted_level, r->level);
    few = r->level > 0 && count_from(r->seen, r->level) < r->high / HTH_AVG_ROSTER_LOW_PART;
    if (!few || r->lower_at_us == 0)
        r->lower_at_us = few ? now + LOWER_US : 0;
    if (few && now >= r->lower_at_us) {
        r->level--;
        r->lower_at_us = now + LOWER_US;
        r->counted_at_us = now + SETTLE_US;
    }
    if (r->lower_at_us != 0)
        hth_roster_tick_at(r, r->lower_at_us);
    if (r->counted_level > r->level && now >= r->counted_at_us)
        r->counted_level = r->level;
    if (r->counted_level > r->level)
        hth_roster_tick_at(r, r->counted_at_us);
    r->stats.level = r->level;
}
