/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all notes together say about the batch.
 *
 * A note is old when it is read, so a peer's samples are carried on with its speed; but not beyond
 * half a note's life: by then it would have been renewed, and who does not renew may be dead. The
 * age of a note is judged with the difference of the clocks as far as it shows: the least delay
 * that any note of this peer seemed to have is taken for that difference.
 *
 * Everybody steps at about the same time, and the note that says so comes later; when steps are
 * short, several of them later. So a peer whose note is of an earlier step is taken to have begun
 * on this one when we did. (Who really stays behind says soon that it has no state.) At which step
 * it is it may have told us itself, later than in its note.
 *
 * Words cost nothing, so none counts for more than it can be worth. Speeds are bounded by the
 * median; samples by the target, and those that ask for a quorum by half of it; and nobody is
 * carried on for longer than all together need for two batches: by then it would have said that it
 * has stepped.
 */
#include <stdlib.h>
#include <string.h>

#include "averaging/roster_int.h"

#define RATE_TIMES  100 /* of the median speed: a machine room among telephones */
#define CARRY_STEPS 2

struct sums {
    uint64_t step;
    double target;
    double step_age_s; /* since this peer itself came to the step */
    double rate_max;   /* that is believed of one */
    double carry_s;    /* that samples are carried on at most */
    uint32_t peers, ahead, behind;
    double samples, said;
    uint64_t step_max;
};

/* A note that counts now. */
struct word {
    const struct hth_roster_note *note;
    uint64_t at; /* the step it is at, the note's or a later one */
    double rate; /* 0: silent */
    double age_s;
};

static void add(struct sums *s, const struct word *w)
{
    double rate = HTH_MIN(w->rate, s->rate_max), samples = (double)w->note->samples;

    s->step_max = HTH_MAX(s->step_max, w->at);
    s->ahead += w->at > s->step;
    s->behind += w->at < s->step;
    s->peers += rate > 0 || samples > 0;
    if (w->at > s->step)
        return;
    if (w->note->step < s->step)
        s->samples += rate * HTH_MIN(s->step_age_s, s->carry_s);
    if (w->note->step != s->step)
        return;
    s->said += HTH_MIN(samples, s->target / 2);
    s->samples += HTH_MIN(samples, s->target) + rate * HTH_MIN(HTH_MAX(w->age_s, 0.0), s->carry_s);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* What is known of one that counts, at this moment. */
static struct word word_of(const struct hth_roster *r, const struct hth_roster_peer *p)
{
    int64_t age_us = hth_wall_us(r->env) - p->issued_us + p->skew_us;
    int64_t still_us = p->spoke_us > 0 ? hth_now_us(r->env) - p->spoke_us : INT64_MAX;
    bool silent = HTH_MIN(age_us, still_us) > r->opts.life_us / 2;

    return (struct word){.note = &p->note,
                         .at = p->step,
                         .rate = silent ? 0 : p->note.samples_per_s,
                         .age_s = (double)age_us / 1e6};
}

/* All that count; this peer itself, which is known exactly, is not among them. */
static uint32_t all_words(const struct hth_roster *r, struct word *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->count && n < HTH_AVG_ROSTER_MAX; i++)
        if (hth_roster_counts(r, r->peers[i]) && hth_roster_in(r->counted_level, &r->peers[i]->id))
            out[n++] = word_of(r, r->peers[i]);
    return n;
}

/* Of those who compute the lower median, so many times; who does not says nothing of the others. */
static double believed_rate(const struct word *words, uint32_t count, double own)
{
    double rates[HTH_AVG_ROSTER_MAX + 1];
    uint32_t n = 0;

    if (own > 0)
        rates[n++] = own;
    for (uint32_t i = 0; i < count; i++)
        if (words[i].rate > 0)
            rates[n++] = words[i].rate;
    if (n == 0)
        return 0;
    qsort(rates, n, sizeof(rates[0]), by_size);
    return RATE_TIMES * rates[(n - 1) / 2];
}

/* Samples a second of all. */
static double speed_of_all(const struct word *words, uint32_t count, double scale, double own,
                           double rate_max)
{
    double sum = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += HTH_MIN(words[i].rate, rate_max);
    return scale * sum + HTH_MIN(own, rate_max);
}

void hth_roster_batch(const struct hth_roster *r, uint64_t step, uint64_t target,
                      struct hth_roster_batch *out)
{
    double scale = (double)(UINT64_C(1) << r->counted_level);
    struct word words[HTH_AVG_ROSTER_MAX];
    struct word self = {.note = &r->self, .at = r->self.step, .rate = r->self.samples_per_s};
    double own = hth_roster_self_counts(r) ? self.rate : 0, rate, left;
    uint32_t count = all_words(r, words);
    struct sums s = {.step = step, .target = (double)target};

    memset(out, 0, sizeof(*out));
    s.rate_max = believed_rate(words, count, own);
    rate = speed_of_all(words, count, scale, own, s.rate_max);
    s.carry_s = rate > 0 ? CARRY_STEPS * s.target / rate : 0;
    if (r->self.step == step)
        s.step_age_s = (double)(hth_now_us(r->env) - r->step_us) / 1e6;
    for (uint32_t i = 0; i < count; i++)
        add(&s, &words[i]);
    s.said *= scale;
    s.samples *= scale;
    s.peers = (uint32_t)(s.peers * scale);
    if (hth_roster_self_counts(r)) /* exactly, and once */
        add(&s, &self);
    out->peers = s.peers;
    out->samples = s.samples;
    out->samples_said = s.said;
    out->samples_per_s = rate;
    out->step_max = s.step_max;
    out->ahead = s.ahead;
    out->behind = s.behind;
    left = s.target - s.samples;
    if (left <= 0)
        out->eta_us = 0;
    else if (rate <= 0 || left / rate > 1e9)
        out->eta_us = INT64_MAX;
    else
        out->eta_us = (int64_t)(1e6 * left / rate);
}
