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
 */
#include <string.h>

#include "averaging/roster_int.h"

struct sums {
    uint64_t step;
    double step_age_s; /* since this peer itself came to the step */
    uint32_t peers, ahead, behind;
    double samples, said, rate;
    uint64_t step_max;
};

/* at: the step it is at, the note's or a later one. */
static void add(struct sums *s, const struct hth_roster_note *n, uint64_t at, bool silent,
                double age_s)
{
    double rate = silent ? 0 : n->samples_per_s;

    s->step_max = HTH_MAX(s->step_max, at);
    s->ahead += at > s->step;
    s->behind += at < s->step;
    s->rate += rate;
    s->peers += rate > 0 || n->samples > 0;
    if (at > s->step)
        return;
    if (n->step < s->step)
        s->samples += rate * s->step_age_s;
    if (n->step != s->step)
        return;
    s->said += (double)n->samples;
    s->samples += (double)n->samples + rate * HTH_MAX(age_s, 0.0);
}

void hth_roster_batch(const struct hth_roster *r, uint64_t step, uint64_t target,
                      struct hth_roster_batch *out)
{
    double scale = (double)(UINT64_C(1) << r->counted_level);
    int64_t wall = hth_wall_us(r->env), now = hth_now_us(r->env);
    struct sums s = {.step = step};
    double left;

    memset(out, 0, sizeof(*out));
    if (r->self.step == step)
        s.step_age_s = (double)(hth_now_us(r->env) - r->step_us) / 1e6;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct hth_roster_peer *p = r->peers[i];

        if (hth_roster_counts(r, p) && hth_roster_in(r->counted_level, &p->id)) {
            int64_t age_us = wall - p->issued_us + p->skew_us;
            int64_t still_us = p->spoke_us > 0 ? now - p->spoke_us : INT64_MAX;

            add(&s, &p->note, p->step, HTH_MIN(age_us, still_us) > r->opts.life_us / 2,
                (double)age_us / 1e6);
        }
    }
    s.said *= scale;
    s.samples *= scale;
    s.rate *= scale;
    s.peers = (uint32_t)(s.peers * scale);
    if (hth_roster_self_counts(r)) /* exactly, and once */
        add(&s, &r->self, r->self.step, false, 0);
    out->peers = s.peers;
    out->samples = s.samples;
    out->samples_said = s.said;
    out->samples_per_s = s.rate;
    out->step_max = s.step_max;
    out->ahead = s.ahead;
    out->behind = s.behind;
    left = (double)target - s.samples;
    if (left <= 0)
        out->eta_us = 0;
    else if (s.rate <= 0 || left / s.rate > 1e9)
        out->eta_us = INT64_MAX;
    else
        out->eta_us = (int64_t)(1e6 * left / s.rate);
}
