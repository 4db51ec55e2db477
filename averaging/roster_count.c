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
#define MET_STEPS  3                   /* of a count of averages, at least */
#define MET_MORE   4                   /* one in so many more than were in them, but one */

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

/* In a run's first averages are few of those who come. The most in this count and the one before is
 * of half a note's life at least: for so long somebody who is silent is taken for alive. */
void hth_roster_met(struct hth_roster *r, uint32_t heads)
{
    int64_t now = hth_now_us(r->env);

    if (r->met.since_us == 0)
        r->met.since_us = HTH_MAX(now, 1);
    if (r->met.steps >= MET_STEPS && now - r->met.since_us >= r->opts.life_us / 2) {
        r->met.heads_before = r->met.heads;
        r->met.since_us = now;
        r->met.steps = r->met.heads = 0;
        hth_roster_tick_at(r, now); /* what they are for may be another one */
    }
    r->met.steps++;
    r->met.heads = HTH_MAX(r->met.heads, heads);
}

uint32_t hth_roster_present(const struct hth_roster *r)
{
    uint32_t heads = HTH_MAX(r->met.heads, r->met.heads_before);
    uint32_t all = hth_roster_population(r, NULL);

    if (r->met.heads_before == 0)
        return all;
    return HTH_MIN(all, heads + HTH_MAX(heads / MET_MORE, 1u));
}

bool hth_roster_all_come(const struct hth_roster *r)
{
    uint32_t all = hth_roster_self_counts(r);

    for (uint32_t i = 0; i < r->count; i++)
        all += hth_roster_counts(r, r->peers[i]) && !r->peers[i]->apart;
    return r->met.heads_before == 0 || all <= HTH_MAX(r->met.heads, r->met.heads_before);
}

/* ---- doubts ---------------------------------------------------------------------------------- */

bool hth_roster_counts(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return !p->doubted && hth_roster_takes_part(r, &p->note);
}

/* From when on who is missed does not count, unless its note is renewed. */
static int64_t missed_until_us(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return p->missed ? p->heard_us + r->opts.life_us / 2 : INT64_MAX;
}

static void look_again_at(struct hth_roster *r, int64_t at_us)
{
    if (r->doubts_at_us == 0 || at_us < r->doubts_at_us)
        r->doubts_at_us = at_us;
    hth_roster_tick_at(r, at_us);
}

void hth_roster_judge(struct hth_roster *r, struct hth_roster_peer *p)
{
    int64_t now = hth_now_us(r->env), missed_us = missed_until_us(r, p);
    bool doubted = now < p->doubted_until_us || now >= missed_us;

    if (now < p->doubted_until_us)
        look_again_at(r, p->doubted_until_us);
    if (now < missed_us && missed_us != INT64_MAX)
        look_again_at(r, missed_us);
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
        hth_roster_judge(r, r->peers[i]);
}

void hth_roster_doubt(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = hth_roster_get(r, id);

    if (p == NULL || (p->doubted && !p->mute))
        return;
    p->mute = false;
    p->doubted_until_us = hth_now_us(r->env) + (DOUBT_US << HTH_MIN(p->doubts, DOUBTS_MAX));
    p->doubts++;
    hth_roster_judge(r, p);
}

void hth_roster_miss(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = hth_roster_get(r, id);

    if (p == NULL || p->missed)
        return;
    p->missed = true;
    hth_roster_judge(r, p);
}

/* In one line everybody tells all others that it looks. On a grid only those of its own lines; and
 * of two clients neither can dial the other. */
static bool could_speak(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return r->self.shape.dims <= 1 && (p->note.addr.family != 0 || r->opts.addr.family != 0);
}

static void doubt_mute(struct hth_roster *r, struct hth_roster_peer *p)
{
    char text[HTH_PEER_SHORT_LEN];

    HTH_LOG(r->env, HTH_INFO, HTH_SUB_AVG,
            "%s says that it takes part, never spoke and did not come: goes on without it for now",
            hth_peer_id_short(&p->id, text));
    hth_roster_doubt(r, &p->id);
    p->mute = true;
}

void hth_roster_deaf(struct hth_roster *r, const struct hth_peer_id *id)
{
    struct hth_roster_peer *p = hth_roster_get(r, id);

    if (p != NULL && p->spoke_us == 0 && !p->doubted && could_speak(r, p))
        doubt_mute(r, p);
}

static bool is_mute(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    return p->spoke_us == 0 && hth_roster_counts(r, p);
}

void hth_roster_doubt_mute(struct hth_roster *r, bool again)
{
    for (uint32_t i = 0; i < r->count && again; i++)
        if (hth_roster_counts(r, r->peers[i]) && !is_mute(r, r->peers[i]))
            return;
    for (uint32_t i = 0; i < r->count && r->self.shape.dims <= 1; i++)
        if (is_mute(r, r->peers[i]) && (r->peers[i]->doubts > 0 || !again))
            doubt_mute(r, r->peers[i]);
}

void hth_roster_excuse_mute(struct hth_roster *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        struct hth_roster_peer *p = r->peers[i];

        p->apart = false;
        if (p->mute)
            p->doubted_until_us = 0;
        p->mute = false;
    }
    if (r->doubts_at_us != 0)
        look_again_at(r, hth_now_us(r->env));
}

/* ---- who is ahead ---------------------------------------------------------------------------- */

static int later_first(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x < *y) - (*x > *y);
}

/* Who can't be asked has to speak first. */
static bool is_ahead(const struct hth_roster *r, const struct hth_roster_peer *p, uint64_t above)
{
    return hth_roster_counts(r, p) && p->step > above &&
           (p->note.addr.family != 0 || p->spoke_us > 0 || !could_speak(r, p));
}

uint64_t hth_roster_reached(const struct hth_roster *r, uint64_t above, uint32_t one_in,
                            uint32_t least)
{
    uint32_t all = hth_roster_self_counts(r), ahead = 0, needed, n = 0;
    uint64_t *steps, reached;

    for (uint32_t i = 0; i < r->count; i++) {
        all += hth_roster_counts(r, r->peers[i]);
        ahead += is_ahead(r, r->peers[i], above);
    }
    needed = HTH_MAX(HTH_MAX((all + one_in - 1) / one_in, least), 1u);
    if (ahead < needed)
        return above;
    steps = hth_new_array(uint64_t, ahead);
    for (uint32_t i = 0; i < r->count; i++)
        if (is_ahead(r, r->peers[i], above))
            steps[n++] = r->peers[i]->step;
    qsort(steps, n, sizeof(*steps), later_first);
    reached = steps[needed - 1];
    hth_free(steps);
    return reached;
}

/* ---- levels of sampling ---------------------------------------------------------------------- */

void hth_roster_adjust_level(struct hth_roster *r)
{
    int64_t now = hth_now_us(r->env);

    while (r->level < HTH_AVG_ROSTER_LEVEL_MAX && count_from(r->seen, r->level) > r->high) {
        if (r->level == 0 && r->high > HTH_AVG_ROSTER_HIGH)
            HTH_LOG(
                r->env, HTH_WARN, HTH_SUB_AVG,
                "more than %u trainers share a batch: from here on some are not seen, steps take "
                "longer and may fail; average parameters instead (local mode)",
                r->high);
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
