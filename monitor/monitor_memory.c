/* SPDX-License-Identifier: Apache-2.0 */
#include "core/map.h"
#include "core/mem.h"
#include "core/order.h"
#include "monitor/monitor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A clock of a trainer may be ahead of ours by so much. */
#define AHEAD_S 60

/* Samples of a trainer, as it said last. */
struct mon_counter {
    struct hth_peer_id id;
    uint64_t samples;
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
    c->samples = UINT64_MAX; /* not known */
    c->next = m->counter_list;
    m->counter_list = c;
    hth_map_put(m->counters, c->id.b, sizeof(c->id.b), c);
    return c;
}

/* By how much the counter of a trainer that was not counted yet grew since our last row, or since
 * its oldest point; all of it where nothing was known of the run. */
static uint64_t first_growth(const struct hth_monitor *m, const struct hth_recall_told *told,
                             uint32_t last_t)
{
    uint64_t newest = told->point[told->point_count - 1].samples, before = told->point[0].samples;
    if (m->samples == 0)
        return newest;
    for (uint32_t i = 0; i < told->point_count; i++)
        if (told->point[i].t < last_t + HTH_HISTORY_FINE_S)
            before = told->point[i].samples;
    return newest > before ? newest - before : 0;
}

static uint64_t growth_of(struct hth_monitor *m, const struct hth_peer_id *id,
                          const struct hth_recall_told *told, uint32_t last_t)
{
    struct mon_counter *c = counter_of(m, id);
    uint64_t newest = told->point[told->point_count - 1].samples, grown;
    if (c->samples == UINT64_MAX)
        grown = first_growth(m, told, last_t);
    else
        grown = newest > c->samples ? newest - c->samples : 0; /* less: it began anew */
    c->samples = newest;
    return HTH_MIN(grown, HTH_RECALL_COUNT_MAX);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    const struct hth_recall_test *x = a, *y = b;
    if (x->t != y->t)
        return x->t < y->t ? -1 : 1;
    return (x->step > y->step) - (x->step < y->step);
}

static bool is_known_test(const struct hth_monitor *m, const struct hth_recall_test *t)
{
    for (uint32_t i = 0; i < m->test_count; i++)
        if (by_time(&m->test[i], t) == 0)
            return true;
    return false;
}

static void take_tests(struct hth_monitor *m, const struct hth_recall_told *told, uint32_t now)
{
    for (uint32_t i = 0; i < told->test_count; i++) {
        const struct hth_recall_test *t = &told->test[i];
        if (t->t > now + AHEAD_S || !isfinite(t->loss) || is_known_test(m, t))
            continue;
        if (m->test_count == HTH_RUN_TESTS_MAX)
            memmove(&m->test[0], &m->test[1], --m->test_count * sizeof(*t));
        m->test[m->test_count++] = *t;
        qsort(m->test, m->test_count, sizeof(*t), by_time);
    }
}

/* ---- rows ----------------------------------------------------------------------------------- */

static int by_slot(const void *a, const void *b)
{
    const struct hth_recall_point *x = a, *y = b;
    uint32_t i = x->t / HTH_HISTORY_FINE_S, j = y->t / HTH_HISTORY_FINE_S;
    return (i > j) - (i < j);
}

static double median(double *values, size_t n)
{
    return n > 0 ? hth_kth(values, n, (n - 1) / 2) : NAN;
}

/* One row of the points of `n` trainers in the same 10 s; `work` has room for 2 n numbers. */
static struct hth_history_row row_of(const struct hth_recall_point *p, size_t n, double *work)
{
    double *step = work, *loss = work + n, rate = 0;
    size_t losses = 0;
    uint64_t samples = 0;
    for (size_t i = 0; i < n; i++) {
        step[i] = (double)p[i].step;
        if (isfinite(p[i].loss) && p[i].loss > 0)
            loss[losses++] = (double)p[i].loss;
        rate += isfinite(p[i].samples_per_s) ? (double)p[i].samples_per_s : 0;
        samples += p[i].samples;
    }
    return (struct hth_history_row){.t = p[0].t,
                                    .trainers = (uint32_t)n,
                                    .hosts = HTH_HISTORY_UNKNOWN,
                                    .served = HTH_HISTORY_UNKNOWN,
                                    .step = (uint64_t)median(step, n),
                                    .samples = samples,
                                    .loss = (float)median(loss, losses),
                                    .samples_per_s = (float)rate,
                                    .rows_per_s = NAN};
}

/* Trainers recall no more. A point of earlier times would take the place of a newer row. */
#define RECALLED_S (HTH_RECALL_POINTS_MAX * HTH_RECALL_PERIOD_S)

/* Adds rows for times of the last hour that the history lacks. The counters' sum of a time is the
 * run's samples only where the history has none before. */
static void fill(struct hth_monitor *m, struct hth_recall_point *point, size_t n, uint32_t now)
{
    double *work = hth_new_array(double, 2 * n + 1);
    bool anew = hth_history_last(m->history, now) == NULL;
    qsort(point, n, sizeof(*point), by_slot);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && by_slot(&point[i], &point[end]) == 0; end++) {
        }
        if (by_slot(&point[i], &(struct hth_recall_point){.t = now}) >= 0 ||
            point[i].t + RECALLED_S < now || hth_history_at(m->history, point[i].t) != NULL)
            continue;
        struct hth_history_row row = row_of(&point[i], end - i, work);
        if (!anew)
            row.samples = HTH_HISTORY_NO_STEP;
        hth_history_add(m->history, &row);
    }
    hth_free(work);
}

/* ---- all ------------------------------------------------------------------------------------ */

static void take_marks(struct hth_monitor *m, const struct hth_recall_told *told, uint32_t now)
{
    if (told->saved_step > m->saved_step && told->saved_t != 0 && told->saved_t <= now + AHEAD_S) {
        m->saved_step = told->saved_step;
        m->saved_t = told->saved_t;
    }
    if (told->began_t != 0 && told->began_t <= now &&
        (m->began_t == 0 || told->began_t < m->began_t))
        m->began_t = told->began_t;
}

void hth_mon_recall(struct hth_monitor *m, const struct hth_gather *g)
{
    uint32_t now = (uint32_t)(m->view->asked_us / HTH_US_PER_S);
    const struct hth_history_row *last = hth_history_last(m->history, now);
    size_t n = 0;
    uint64_t grown = 0;
    for (size_t i = 0; i < g->peer_count; i++)
        n += g->peer[i]->recall != NULL ? g->peer[i]->recall->point_count : 0;
    struct hth_recall_point *point = hth_new_array(struct hth_recall_point, n + 1);
    n = 0;
    for (size_t i = 0; i < g->peer_count; i++) {
        const struct hth_recall_told *told = g->peer[i]->recall;
        if (told == NULL)
            continue;
        take_tests(m, told, now);
        take_marks(m, told, now);
        if (told->point_count == 0)
            continue;
        memcpy(&point[n], told->point, told->point_count * sizeof(*point));
        n += told->point_count;
        grown += growth_of(m, &g->peer[i]->id, told, last != NULL ? last->t : 0);
    }
    m->samples += HTH_MIN(grown, HTH_RECALL_COUNT_MAX);
    fill(m, point, n, now);
    hth_free(point);
}

void hth_mon_forget(struct hth_monitor *m)
{
    while (m->counter_list != NULL) {
        struct mon_counter *c = m->counter_list;
        m->counter_list = c->next;
        hth_free(c);
    }
    hth_map_free(m->counters);
    hth_free(m->test);
}
