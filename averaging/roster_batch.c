/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all notes together say about the batch.
 *
 * A note is old when it is read, so a peer's samples are carried on. They do not come evenly but by
 * grains, so that of N peers N / 2 grains would be counted that are still in the air, and so a note
 * says when the next one lands:
 *
 *      samples                +-------      carried on for half a note's life: by then it would
 *                 +-----------+             have been renewed, and who does not renew may be dead
 *      -----------+
 *      note   lands_ms    grain / rate
 *
 * Everybody steps at about the same time, so the step is the clock: a note says for how long its
 * owner was at it, and what we are there for longer by now is the note's age. But no more than a
 * moment longer than we have the note: who came to the step late was not there when we came. (Where
 * samples come evenly, as with trainers that go on through a step, the age is judged with the
 * difference of the clocks as far as it shows: the least delay that any note of this peer seemed to
 * have is taken for that difference.)
 *
 * The note that says the step comes later than the step; when steps are short, several of them
 * later. So a peer whose note is of an earlier step is taken to have begun on this one when we did.
 * (Who really stays behind says soon that it has no state.) At which step it is it may have told us
 * itself, later than in its note.
 *
 * Words cost nothing, so none counts for more than it can be worth. Speeds are bounded by the
 * median; samples by the target, and where only what was said counts by half of it; and nobody is
 * carried on for longer than all together need for two batches: by then it would have said that it
 * has stepped. Speeds of nobody would make that no time at all, and one wait for notes: so where
 * more are said to be there than come, it is at least until one has two even shares of the target.
 * Who can't meet us, as its clock is wrong, counts for nothing.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/roster_int.h"

#define RATE_TIMES  100 /* of the median speed: a machine room among telephones */
#define CARRY_STEPS 2
#define LATE_S      1 /* that a note may have been under way */
#define ETA_NEAR_S  0.0005
#define ETA_TURNS   64

struct batch_sums {
    uint64_t step;
    double target;
    double step_age_s; /* since this peer itself came to the step */
    double rate_max;   /* that is believed of one */
    double carry_s;    /* that samples are carried on at most, or until */
    double even;       /* one has so many more */
    uint32_t peers, ahead, behind;
    double said;
    uint64_t step_max;
};

/* What counts of a note now. */
struct word {
    uint64_t step, at; /* the note's; and the one it is at, or a later one */
    double samples, grain;
    double lands_s; /* from the note to the next landing */
    double rate;    /* 0: silent */
    double since_s; /* it was at the step when the note was issued */
    bool before;    /* its turn is before ours where both land at the same moment */
    double age_s;   /* of the note, by the clocks; */
    double here_s;  /* and since when we have it */
};

/* How many land within so many seconds from a moment, the first of them after lands_s. */
static double landing(double rate, double grain, double lands_s, double s)
{
    if (!(rate > 0) || s < 0)
        return 0;
    if (!(grain > 0))
        return rate * s;
    return s < lands_s ? 0 : grain * (1 + floor((s - lands_s) * rate / grain));
}

static double lands_s(const struct hth_roster_note *n)
{
    return n->lands_ms == HTH_ROSTER_NONE_LANDS ? INFINITY : n->lands_ms / 1e3;
}

double hth_roster_landing(const struct hth_roster_note *n, double rate, double s)
{
    return landing(rate, n->grain, lands_s(n), s);
}

/* Makes of what was said what is believed of it. */
static void judge(struct batch_sums *s, struct word *w)
{
    w->rate = HTH_MIN(w->rate, s->rate_max);
    w->grain = HTH_MIN(w->grain, s->target);
    s->step_max = HTH_MAX(s->step_max, w->at);
    s->ahead += w->at > s->step;
    s->behind += w->at < s->step;
    s->peers += w->rate > 0 || w->samples > 0;
    if (w->at > s->step || w->step != s->step)
        w->samples = 0;
    if (w->at > s->step || w->step > s->step)
        w->rate = 0;
    else if (w->step == s->step && w->grain > 0)
        w->age_s = HTH_MIN(HTH_MAX(s->step_age_s - w->since_s, w->here_s), w->here_s + LATE_S);
    else if (w->step < s->step) { /* it began when we did */
        w->lands_s = w->rate > 0 ? w->grain / w->rate : 0;
        w->age_s = s->step_age_s;
    }
    s->said += HTH_MIN(w->samples, s->target / 2);
    w->samples = HTH_MIN(w->samples, s->target);
    w->age_s = HTH_MIN(HTH_MAX(w->age_s, 0.0),
                       w->rate > 0 ? HTH_MAX(s->carry_s, s->even / w->rate) : s->carry_s);
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

    return (struct word){.step = p->note.step,
                         .at = HTH_MAX(p->step, p->note.step),
                         .samples = (double)p->note.samples,
                         .grain = p->note.grain,
                         .lands_s = lands_s(&p->note),
                         .rate = silent ? 0 : p->note.samples_per_s,
                         .since_s = p->note.since_ms / 1e3,
                         .age_s = (double)age_us / 1e6,
                         .here_s = (double)(hth_now_us(r->env) - p->heard_us) / 1e6};
}

/* Of this peer itself, exactly. */
static struct word own_word(const struct hth_roster *r)
{
    const struct hth_roster_note *n = &r->self;
    double left_s = (double)(r->lands_us - hth_now_us(r->env)) / 1e6;

    return (struct word){.step = n->step,
                         .at = n->step,
                         .samples = (double)n->samples,
                         .grain = n->grain,
                         .lands_s = r->lands_us == INT64_MAX ? INFINITY : left_s,
                         .rate = n->samples_per_s};
}

/* At each step in another order. */
static uint64_t turn_of(const struct hth_peer_id *id, uint64_t step)
{
    return hth_hash64(id->b, sizeof(id->b), step);
}

/* All that count; this peer itself, which is known exactly, is not among them. */
static uint32_t all_words(const struct hth_roster *r, uint64_t step, struct word *out)
{
    uint64_t turn = turn_of(&r->env->self, step);
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->count && n < HTH_AVG_ROSTER_MAX; i++) {
        const struct hth_roster_peer *p = r->peers[i];

        if (hth_roster_counts(r, p) && !p->apart && hth_roster_in(r->counted_level, &p->id))
            out[n] = word_of(r, p), out[n++].before = turn_of(&p->id, step) < turn;
    }
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

/* What all have together in so many seconds from now. Of our own, which are known exactly, nothing
 * lands at this moment. */
static double samples_in(const struct word *words, uint32_t count, double scale,
                         const struct word *self, double s)
{
    double sum = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct word *w = &words[i];

        sum += w->samples + landing(w->rate, w->grain, w->lands_s, w->age_s + s);
    }
    sum *= scale;
    if (self != NULL)
        sum += self->samples;
    if (self != NULL && s > 0)
        sum += landing(self->rate, self->grain, self->lands_s, s);
    return sum;
}

/* They come in steps: the time is closed in on from both sides. */
static int64_t eta_us(const struct word *words, uint32_t count, double scale,
                      const struct word *self, double rate, double target)
{
    double lo = 0, hi = (target - samples_in(words, count, scale, self, 0)) / rate;

    for (int i = 0; samples_in(words, count, scale, self, hi) < target; i++) {
        if (i == ETA_TURNS || hi > 1e9)
            return INT64_MAX;
        lo = hi;
        hi *= 2;
    }
    for (int i = 0; hi - lo > ETA_NEAR_S && i < ETA_TURNS; i++) {
        double mid = lo + (hi - lo) / 2;

        if (samples_in(words, count, scale, self, mid) < target)
            lo = mid;
        else
            hi = mid;
    }
    return HTH_MAX((int64_t)(1e6 * hi), 1);
}

/* What is known of all, and believed of it. */
struct known {
    struct batch_sums sums;
    struct word self, words[HTH_AVG_ROSTER_MAX];
    uint32_t count;
    bool counts; /* this peer */
    double scale, rate;
};

static void know(const struct hth_roster *r, uint64_t step, uint64_t target, struct known *k)
{
    struct batch_sums *s = &k->sums;
    double own;

    *s = (struct batch_sums){.step = step, .target = (double)target};
    k->scale = (double)(UINT64_C(1) << r->counted_level);
    k->self = own_word(r);
    k->counts = hth_roster_self_counts(r);
    k->count = all_words(r, step, k->words);
    own = k->counts ? k->self.rate : 0;
    s->rate_max = believed_rate(k->words, k->count, own);
    k->rate = speed_of_all(k->words, k->count, k->scale, own, s->rate_max);
    if (hth_roster_present(r) < hth_roster_population(r, NULL))
        s->even = CARRY_STEPS * s->target / hth_roster_present(r);
    s->carry_s = k->rate > 0 ? CARRY_STEPS * s->target / k->rate : 0;
    if (r->self.step == step)
        s->step_age_s = (double)(hth_now_us(r->env) - r->step_us) / 1e6;
    for (uint32_t i = 0; i < k->count; i++)
        judge(s, &k->words[i]);
    s->said *= k->scale;
    s->peers = (uint32_t)(s->peers * k->scale);
    if (k->counts)
        judge(s, &k->self);
}

void hth_roster_batch(const struct hth_roster *r, uint64_t step, uint64_t target,
                      struct hth_roster_batch *out)
{
    const struct word *self;
    struct known k;

    memset(out, 0, sizeof(*out));
    know(r, step, target, &k);
    self = k.counts ? &k.self : NULL;
    out->peers = k.sums.peers;
    out->samples = samples_in(k.words, k.count, k.scale, self, 0);
    out->samples_said = k.sums.said;
    out->samples_per_s = k.rate;
    out->step_max = k.sums.step_max;
    out->ahead = k.sums.ahead;
    out->behind = k.sums.behind;
    if (out->samples < k.sums.target)
        out->eta_us =
            k.rate > 0 ? eta_us(k.words, k.count, k.scale, self, k.rate, k.sums.target) : INT64_MAX;
}

double hth_roster_batch_before(const struct hth_roster *r, uint64_t step, uint64_t target,
                               int64_t lands_us, int64_t apart_us)
{
    double lands = (double)lands_us / 1e6, half = (double)apart_us / 2e6, sum = 0;
    struct known k;

    know(r, step, target, &k);
    for (uint32_t i = 0; i < k.count; i++) {
        const struct word *w = &k.words[i];

        sum += w->samples + landing(w->rate, w->grain, w->lands_s,
                                    w->age_s + lands + (w->before ? half / 4 : -half));
    }
    return k.scale * sum;
}
