/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/lineage.h"

#include <stdlib.h>
#include <string.h>

#include "averaging/averager.h"
#include "core/mem.h"

#define SEED UINT64_C(0x6c696e65616765)

static uint64_t *place(struct hth_lineage *l, uint64_t milestone)
{
    return &l->kept[milestone / HTH_LINEAGE_EVERY % HTH_LINEAGE_KEPT];
}

void hth_lineage_init(struct hth_lineage *l, uint64_t step)
{
    memset(l, 0, sizeof(*l));
    l->digest = hth_hash64(&step, sizeof(step), SEED);
    l->last = step - step % HTH_LINEAGE_EVERY;
    l->since = l->last + HTH_LINEAGE_EVERY;
}

void hth_lineage_add(struct hth_lineage *l, uint64_t step, uint64_t origin)
{
    const uint64_t numbers[2] = {step, origin};

    if (l->digest == 0) {
        l->origin[step % HTH_LINEAGE_TAIL] = origin;
        l->last = step - step % HTH_LINEAGE_EVERY;
        l->since = l->last + HTH_LINEAGE_EVERY;
        return;
    }
    l->digest = hth_hash64(numbers, sizeof(numbers), l->digest);
    l->digest += l->digest == 0;
    if (step % HTH_LINEAGE_EVERY != 0)
        return;
    l->last = step;
    *place(l, step) = l->digest;
    if (l->last - l->since >= (uint64_t)HTH_LINEAGE_KEPT * HTH_LINEAGE_EVERY && l->since <= l->last)
        l->since = l->last - (HTH_LINEAGE_KEPT - 1) * HTH_LINEAGE_EVERY;
}

void hth_lineage_forget(struct hth_lineage *l, uint64_t step)
{
    hth_lineage_init(l, step);
    l->digest = 0;
    l->alike = UINT64_MAX;
}

void hth_lineage_is_alike(struct hth_lineage *l, uint64_t step)
{
    l->alike = step;
}

uint64_t hth_lineage_at(const struct hth_lineage *l, uint64_t milestone)
{
    if (milestone % HTH_LINEAGE_EVERY != 0 || milestone < l->since || milestone > l->last)
        return 0;
    return l->kept[milestone / HTH_LINEAGE_EVERY % HTH_LINEAGE_KEPT];
}

void hth_lineage_say(const struct hth_lineage *l, struct hth_roster_marks *out)
{
    memset(out, 0, sizeof(*out));
    if (l->digest == 0)
        return;
    out->step = l->last;
    for (uint32_t i = 0; i < HTH_ROSTER_MARKS && i * HTH_LINEAGE_EVERY <= l->last; i++)
        out->mark[i] = hth_lineage_at(l, l->last - i * HTH_LINEAGE_EVERY);
}

/* ---- the vote -------------------------------------------------------------------------------- */

/* 0: it does not say. */
static uint64_t said_at(const struct hth_roster_marks *said, uint64_t milestone)
{
    uint64_t back;

    if (milestone == 0 || milestone > said->step)
        return 0;
    back = said->step - milestone;
    if (back % HTH_LINEAGE_EVERY != 0 || back / HTH_LINEAGE_EVERY >= HTH_ROSTER_MARKS)
        return 0;
    return said->mark[back / HTH_LINEAGE_EVERY];
}

static int by_number(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Counts alike ones among sorted marks: the most, of two with as many the larger mark, and the most
 * of any other. */
static void count_votes(const uint64_t *sorted, uint32_t n, uint64_t *winner, uint32_t *most,
                        uint32_t *next)
{
    *winner = 0;
    *most = *next = 0;
    for (uint32_t i = 0, votes; i < n; i += votes) {
        for (votes = 1; i + votes < n && sorted[i + votes] == sorted[i];)
            votes++;
        if (votes >= *most) {
            *next = *most;
            *most = votes;
            *winner = sorted[i];
        } else {
            *next = HTH_MAX(*next, votes);
        }
    }
}

/* What the first `known` show at that milestone, and the same of the others: nobody's mark is 0.
 * Returns how many; sorted. */
static uint32_t marks_at(const struct hth_lineage_voices *v, uint64_t milestone, uint64_t *marks)
{
    uint32_t n = 0, shown;

    for (uint32_t i = 0; i < v->known; i++) {
        marks[n] = said_at(&v->said[i], milestone);
        n += marks[n] != 0;
    }
    qsort(marks, n, sizeof(*marks), by_number);
    shown = n;
    for (uint32_t i = v->known; i < v->count; i++) {
        marks[n] = said_at(&v->said[i], milestone);
        n += bsearch(&marks[n], marks, shown, sizeof(*marks), by_number) != NULL;
    }
    qsort(marks, n, sizeof(*marks), by_number);
    return n;
}

/* True when those who may still say something of it could not turn the vote. Who is two milestones
 * behind is dead, or will take the state of others. */
static bool is_decided(const struct hth_lineage_voices *v, uint64_t milestone,
                       struct hth_mark *winner)
{
    uint64_t *marks = hth_new_array(uint64_t, v->count);
    uint32_t silent = 0, most, next;

    for (uint32_t i = 0; i < v->count; i++)
        silent += said_at(&v->said[i], milestone) == 0 &&
                  v->said[i].step + HTH_LINEAGE_EVERY >= milestone;
    winner->step = milestone;
    count_votes(marks, marks_at(v, milestone, marks), &winner->mark, &most, &next);
    hth_free(marks);
    return silent == 0 || most > next + silent;
}

bool hth_lineage_is_outvoted(const struct hth_lineage *l, const struct hth_lineage_voices *v,
                             struct hth_mark *winner)
{
    for (uint32_t i = 0; i < HTH_ROSTER_MARKS && (uint64_t)i * HTH_LINEAGE_EVERY < l->last; i++) {
        uint64_t milestone = l->last - (uint64_t)i * HTH_LINEAGE_EVERY;
        uint64_t ours = hth_lineage_at(l, milestone);

        if (ours == 0)
            return false;
        if (is_decided(v, milestone, winner))
            return winner->mark != ours;
    }
    return false;
}

/* Whether others that spoke to us have a line: where steps are short their notes are several
 * milestones late, as those of the dead are. */
static bool has_any(const struct hth_lineage_voices *v)
{
    for (uint32_t i = 1; i < v->known; i++)
        if (v->said[i].step > 0)
            return true;
    return false;
}

bool hth_lineage_adopt(struct hth_lineage *l, uint64_t step, const struct hth_lineage_voices *v)
{
    const struct hth_lineage old = *l;
    struct hth_mark winner;

    if (l->digest != 0)
        return true;
    for (uint32_t i = 0; i < HTH_ROSTER_MARKS && (uint64_t)i * HTH_LINEAGE_EVERY < old.last; i++) {
        uint64_t milestone = old.last - (uint64_t)i * HTH_LINEAGE_EVERY;

        if (milestone < old.alike)
            return false;
        if (!is_decided(v, milestone, &winner) || (winner.mark == 0 && has_any(v)))
            continue;
        hth_lineage_init(l, milestone);
        if (winner.mark != 0) {
            l->digest = *place(l, milestone) = winner.mark;
            l->since = milestone;
        }
        while (milestone++ < step)
            hth_lineage_add(l, milestone, old.origin[milestone % HTH_LINEAGE_TAIL]);
        return true;
    }
    return false;
}

bool hth_lineage_may_be(const struct hth_roster_marks *said, const struct hth_mark *of)
{
    uint64_t mark = said_at(said, of->step);

    return mark != 0 ? mark == of->mark : said->step > of->step;
}

/* Voices for each of the others' marks at that milestone, sorted. */
static void count_at(const struct hth_lineage *ours, const struct hth_roster_marks *said,
                     uint32_t count, uint64_t milestone, struct hth_lineage_standing *out)
{
    uint64_t *marks = hth_new_array(uint64_t, count);
    uint32_t n = 0;

    *out = (struct hth_lineage_standing){.mark = hth_lineage_at(ours, milestone)};
    for (uint32_t i = 1; i < count && out->mark != 0; i++) {
        uint64_t mark = said_at(&said[i], milestone);

        out->alike += mark == out->mark;
        if (mark != 0 && mark != out->mark)
            marks[n++] = mark;
    }
    if (n > 0) {
        uint64_t winner;
        uint32_t next;

        qsort(marks, n, sizeof(*marks), by_number);
        count_votes(marks, n, &winner, &out->unlike, &next);
    }
    if (out->alike + out->unlike > 0)
        out->step = milestone;
    hth_free(marks);
}

void hth_lineage_stands(const struct hth_lineage *ours, const struct hth_roster_marks *said,
                        uint32_t count, struct hth_lineage_standing *out)
{
    uint64_t last = ours->last;

    *out = (struct hth_lineage_standing){.step = 0};
    for (uint32_t i = 0; i < HTH_LINEAGE_KEPT && (uint64_t)i * HTH_LINEAGE_EVERY < last; i++) {
        count_at(ours, said, count, last - (uint64_t)i * HTH_LINEAGE_EVERY, out);
        if (out->step != 0)
            return;
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

void hth_lineage_write(const struct hth_lineage *l, struct hth_writer *w)
{
    hth_write_u64(w, l->digest);
    hth_write_u64(w, l->since);
    hth_write_u64(w, l->last);
    for (uint32_t i = 0; i < HTH_LINEAGE_KEPT; i++)
        hth_write_u64(w, l->kept[i]);
}

enum hth_err hth_lineage_read(struct hth_reader *r, uint64_t step, struct hth_lineage *out)
{
    memset(out, 0, sizeof(*out));
    out->digest = hth_read_u64(r);
    out->since = hth_read_u64(r);
    out->last = hth_read_u64(r);
    for (uint32_t i = 0; i < HTH_LINEAGE_KEPT; i++)
        out->kept[i] = hth_read_u64(r);
    HTH_TRY(r->err);
    out->alike = out->digest == 0 ? step : 0; /* its owner waits for a mark itself */
    if (out->last != step - step % HTH_LINEAGE_EVERY || out->since % HTH_LINEAGE_EVERY != 0 ||
        out->since > out->last + HTH_LINEAGE_EVERY)
        return HTH_E_RANGE;
    if (out->since <= out->last &&
        out->last - out->since >= (uint64_t)HTH_LINEAGE_KEPT * HTH_LINEAGE_EVERY)
        return HTH_E_RANGE;
    return HTH_OK;
}
