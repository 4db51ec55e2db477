/* SPDX-License-Identifier: Apache-2.0 */
#include "core/map.h"
#include "core/mem.h"
#include "monitor/agree.h"
#include "monitor/monitor_int.h"

#include <math.h>
#include <string.h>

/* A clock of a trainer may be ahead of ours by so much. */
#define AHEAD_S 60
/* Trainers recall no more. A point of earlier times would take the place of a newer row. */
#define RECALLED_S (HTH_RECALL_POINTS_MAX * HTH_RECALL_PERIOD_S)

/* Samples of a trainer, as it said last. */
struct mon_counter {
    struct hth_peer_id id;
    uint64_t samples;
    uint32_t t; /* when it said so, by our clock; 0: it did not yet */
    struct mon_counter *next;
};

/* ---- samples -------------------------------------------------------------------------------- */

static struct mon_counter *counter_of(struct hth_monitor *m, const struct hth_peer_id *id)
{
    struct mon_counter *c = hth_map_get(m->counters, id->b, sizeof(id->b));
    if (c != NULL)
        return c;
    c = hth_new(struct mon_counter);
    c->id = *id;
    c->next = m->counter_list;
    m->counter_list = c;
    hth_map_put(m->counters, c->id.b, sizeof(c->id.b), c);
    return c;
}

static void forget_counters(struct hth_monitor *m, uint32_t heard_before_t)
{
    for (struct mon_counter **at = &m->counter_list; *at != NULL;) {
        struct mon_counter *c = *at;
        if (c->t >= heard_before_t) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        hth_map_del(m->counters, c->id.b, sizeof(c->id.b));
        hth_free(c);
    }
}

/* Samples since a time, of a counter that was told in points. */
struct growth {
    uint64_t samples;
    double per_s;
};

static uint64_t newest_of(const struct hth_recall_told *told)
{
    return told->point_count > 0 ? told->point[told->point_count - 1].samples : 0;
}

/* Of a trainer that was not counted yet: since our last row, or since its oldest point; all of it
 * where it began later than that, or nothing was known of the run. */
static struct growth first_growth(const struct hth_monitor *m, const struct hth_recall_told *told,
                                  uint32_t now, uint32_t last_t)
{
    struct hth_recall_point from = {.t = told->began_t};
    uint64_t newest = newest_of(told);
    if (m->samples == 0)
        return (struct growth){newest, (double)newest};
    for (uint32_t i = 0; i < told->point_count && told->began_t < last_t; i++)
        if (i == 0 || told->point[i].t < last_t + HTH_HISTORY_FINE_S)
            from = told->point[i];
    uint64_t grown = newest > from.samples ? newest - from.samples : 0;
    uint32_t span = HTH_MAX(now > from.t ? now - from.t : 0, (uint32_t)HTH_RECALL_PERIOD_S);
    return (struct growth){grown, (double)grown / span};
}

static struct growth growth_of(struct hth_monitor *m, const struct hth_gather_peer *p, uint32_t now,
                               uint32_t last_t)
{
    const struct hth_recall_told *told = p->recall;
    struct mon_counter *c = counter_of(m, &p->id);
    uint64_t newest = newest_of(told);
    struct growth g;
    if (c->t == 0) {
        g = first_growth(m, told, now, last_t);
    } else { /* fewer than before: its process began anew */
        g.samples = newest >= c->samples ? newest - c->samples : newest;
        g.per_s = (double)g.samples / HTH_MAX(now > c->t ? now - c->t : 0, 1u);
    }
    c->samples = newest;
    c->t = now;
    return g;
}

/* Adds what counters grew by, each at most as fast as one may count for. The samples behind the
 * parameters may be more: of times and trainers that this monitor has not seen. */
static void take_samples(struct hth_monitor *m, const struct hth_gather *g, uint32_t now,
                         uint32_t last_t)
{
    struct growth *growth = hth_new_array(struct growth, g->peer_count + 1);
    double *per_s = hth_new_array(double, g->peer_count + 1), sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < g->peer_count; i++) {
        const struct hth_gather_peer *p = g->peer[i];
        /* A trainer that stands still has nothing new to tell. */
        if (p->recall == NULL || (p->recall->point_count == 0 && p->recall->began_t != 0))
            continue;
        growth[n] = growth_of(m, p, now, last_t);
        per_s[n] = growth[n].per_s;
        n++;
    }
    double most = hth_agreed_most(per_s, n);
    for (size_t i = 0; i < n; i++)
        sum += (double)growth[i].samples * fmin(1, most / fmax(growth[i].per_s, 1e-9));
    m->samples = HTH_MAX(m->samples + (uint64_t)sum, m->view->behind);
    m->samples = HTH_MIN(m->samples, HTH_RECALL_COUNT_MAX);
    forget_counters(m, now > RECALLED_S ? now - RECALLED_S : 0);
    hth_free(growth);
    hth_free(per_s);
}

/* ---- tests ---------------------------------------------------------------------------------- */

enum { T, STEP, LOSS, ACCURACY, BITS, FIGURES };

struct votes {
    double told[FIGURES][HTH_GATHER_PEERS_MAX];
    size_t count[FIGURES];
};

static void vote(struct votes *v, const struct hth_recall_test *t, uint32_t now)
{
    const double told[FIGURES] = {t->t, (double)t->step, (double)t->loss, (double)t->accuracy,
                                  (double)t->bits_per_byte};
    if (t->t > now + AHEAD_S || !isfinite(t->loss))
        return;
    for (size_t i = 0; i < FIGURES; i++)
        if (isfinite(told[i]))
            v->told[i][v->count[i]++] = told[i];
}

static double agreed(struct votes *v, size_t figure)
{
    return hth_agreed(v->told[figure], v->count[figure]);
}

/* The tests that at least half of those who test have made: medians of the newest test of each, of
 * the newest but one, and so on. So nobody adds a test alone, and who tests at other steps than the
 * others is no liar. Returns their number, the oldest first. */
static uint32_t agree_on_tests(const struct hth_gather *g, uint32_t now,
                               struct hth_recall_test out[HTH_RECALL_TESTS_MAX])
{
    struct votes *v = hth_new(struct votes);
    uint32_t n = 0, testers = 0;
    for (size_t i = 0; i < g->peer_count; i++)
        testers += g->peer[i]->recall != NULL && g->peer[i]->recall->test_count > 0;
    for (uint32_t back = HTH_RECALL_TESTS_MAX; back-- > 0;) {
        memset(v->count, 0, sizeof(v->count));
        for (size_t i = 0; i < g->peer_count; i++) {
            const struct hth_recall_told *told = g->peer[i]->recall;
            if (told != NULL && told->test_count > back)
                vote(v, &told->test[told->test_count - 1 - back], now);
        }
        if (v->count[T] == 0 || 2 * v->count[T] < testers ||
            (n > 0 && agreed(v, T) <= (double)out[n - 1].t))
            continue;
        out[n++] = (struct hth_recall_test){(uint32_t)agreed(v, T), (uint64_t)agreed(v, STEP),
                                            (float)agreed(v, LOSS), (float)agreed(v, ACCURACY),
                                            (float)agreed(v, BITS)};
    }
    hth_free(v);
    return n;
}

/* Puts them in place of all that are not older. */
static void take_tests(struct hth_monitor *m, const struct hth_gather *g, uint32_t now)
{
    struct hth_recall_test told[HTH_RECALL_TESTS_MAX];
    uint32_t n = agree_on_tests(g, now, told), kept = 0;
    if (n == 0)
        return;
    while (kept < m->test_count && m->test[kept].t < told[0].t)
        kept++;
    uint32_t over = kept + n > HTH_RUN_TESTS_MAX ? kept + n - HTH_RUN_TESTS_MAX : 0;
    memmove(&m->test[0], &m->test[over], (kept - over) * sizeof(*told));
    memcpy(&m->test[kept - over], told, n * sizeof(*told));
    m->test_count = kept - over + n;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* One row of the points of `n` trainers in the same 10 s; `work` has room for 3 n numbers. */
static struct hth_history_row row_of(const struct hth_recall_point *p, size_t n, double *work)
{
    double *step = work, *loss = work + n, *rate = work + 2 * n, sum = 0;
    size_t losses = 0;
    for (size_t i = 0; i < n; i++) {
        step[i] = (double)p[i].step;
        rate[i] = isfinite(p[i].samples_per_s) ? fmax((double)p[i].samples_per_s, 0) : 0;
        if (isfinite(p[i].loss) && p[i].loss > 0)
            loss[losses++] = (double)p[i].loss;
    }
    double most = hth_agreed_most(rate, n);
    for (size_t i = 0; i < n; i++)
        sum += fmin(rate[i], most);
    return (struct hth_history_row){.t = p[0].t,
                                    .trainers = (uint32_t)n,
                                    .hosts = HTH_HISTORY_UNKNOWN,
                                    .served = HTH_HISTORY_UNKNOWN,
                                    .step = (uint64_t)hth_agreed(step, n),
                                    .samples = HTH_HISTORY_NO_STEP,
                                    .loss = (float)hth_agreed(loss, losses),
                                    .samples_per_s = (float)sum,
                                    .rows_per_s = NAN};
}

/* Copies the points of a time. `left` has for each peer how many of its points are not newer than
 * the time before, so that times are looked at from the newest to the oldest. */
static size_t points_at(const struct hth_gather *g, uint32_t t, uint32_t *left,
                        struct hth_recall_point *out)
{
    size_t n = 0;
    for (size_t i = 0; i < g->peer_count; i++) {
        const struct hth_recall_told *told = g->peer[i]->recall;
        while (left[i] > 0 && told->point[left[i] - 1].t >= t + HTH_HISTORY_FINE_S)
            left[i]--;
        if (left[i] > 0 && told->point[left[i] - 1].t >= t)
            out[n++] = told->point[left[i] - 1];
    }
    return n;
}

/* Adds rows, the newest first, for times of the last hour that the history lacks and that at least
 * half of the trainers remember. Where it has none at all their samples follow from the run's,
 * back by the speed of each. */
static void fill(struct hth_monitor *m, const struct hth_gather *g, uint32_t now)
{
    struct hth_recall_point *point = hth_new_array(struct hth_recall_point, g->peer_count + 1);
    uint32_t *left = hth_new_array(uint32_t, g->peer_count + 1), later = now;
    double *work = hth_new_array(double, 3 * g->peer_count + 1), samples = (double)m->samples;
    bool anew = hth_history_last(m->history, now) == NULL;
    size_t trainers = 0;
    for (size_t i = 0; i < g->peer_count; i++) {
        left[i] = g->peer[i]->recall != NULL ? g->peer[i]->recall->point_count : 0;
        trainers += left[i] > 0;
    }
    for (uint32_t t = now / HTH_HISTORY_FINE_S * HTH_HISTORY_FINE_S - HTH_HISTORY_FINE_S;
         trainers > 0 && t + RECALLED_S >= now; t -= HTH_HISTORY_FINE_S) {
        size_t n = points_at(g, t, left, point);
        if (n == 0 || 2 * n < trainers || hth_history_at(m->history, t) != NULL)
            continue;
        struct hth_history_row row = row_of(point, n, work);
        samples = fmax(samples - (double)(later - row.t) * (double)row.samples_per_s, 0);
        later = row.t;
        if (anew)
            row.samples = (uint64_t)samples;
        hth_history_add(m->history, &row);
    }
    hth_free(point);
    hth_free(left);
    hth_free(work);
}

/* ---- all ------------------------------------------------------------------------------------ */

void hth_mon_recall(struct hth_monitor *m, const struct hth_gather *g)
{
    uint32_t now = (uint32_t)(m->view->asked_us / HTH_US_PER_S);
    const struct hth_history_row *last = hth_history_last(m->history, now);
    take_tests(m, g, now);
    take_samples(m, g, now, last != NULL ? last->t : 0);
    fill(m, g, now);
}

void hth_mon_forget(struct hth_monitor *m)
{
    forget_counters(m, UINT32_MAX);
    hth_map_free(m->counters);
    hth_free(m->test);
}
