/* SPDX-License-Identifier: Apache-2.0 */
/* monitor.c: asks, and draws the picture of the run from the answers. */
#include "monitor/monitor_int.h"

#include "core/map.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PERIOD_US (10 * HTH_US_PER_S)
#define WAIT_US   (3 * HTH_US_PER_S)  /* for answers */
#define STILL_US  (60 * HTH_US_PER_S) /* without a step: it does not train */
#define PACE_S    600

static uint32_t now_s(struct hth_monitor *m)
{
    return (uint32_t)(hth_wall_us(m->env) / HTH_US_PER_S);
}

/* ---- figures -------------------------------------------------------------------------------- */

/* Steps a second in the last ten minutes; 0: not known. */
static double pace_of(struct hth_monitor *m)
{
    uint32_t now = now_s(m), then = now - PACE_S;
    const struct hth_history_row *old = NULL;
    if (m->history == NULL || m->view == NULL)
        return 0;
    for (uint32_t t = then; old == NULL && t + HTH_HISTORY_FINE_S <= now; t += HTH_HISTORY_FINE_S) {
        old = hth_history_at(m->history, t);
        if (old != NULL && (old->step == HTH_HISTORY_NO_STEP || old->trainers == 0))
            old = NULL;
    }
    if (old == NULL || m->view->step <= old->step || now <= old->t)
        return 0;
    return (double)(m->view->step - old->step) / (double)(now - old->t);
}

static const char *state_of(const struct hth_monitor *m)
{
    const struct hth_run_view *v = m->view;
    bool still = hth_now_us(m->env) - m->rose_us >= STILL_US;
    if (v == NULL || !m->met)
        return "looking";
    if (v->total > 0 && v->step >= v->total)
        return "done";
    if (v->trainers == 0)
        return "idle";
    return still ? "waiting" : "training";
}

static const char *trouble_of(struct hth_monitor *m)
{
    enum hth_err err = m->history != NULL ? hth_history_err(m->history) : HTH_OK;
    if (err == HTH_OK)
        return NULL;
    snprintf(m->trouble, sizeof(m->trouble), "the history can't be written: %s", hth_err_text(err));
    return m->trouble;
}

void hth_monitor_now(struct hth_monitor *m, struct hth_run_now *out)
{
    double pace = pace_of(m);
    uint32_t began = m->history != NULL ? hth_history_began(m->history) : 0;
    uint32_t told = m->view != NULL ? m->view->began_t : 0;
    *out = (struct hth_run_now){.seq = m->seq,
                                .now_us = hth_wall_us(m->env),
                                .asked_us = m->view != NULL ? m->view->asked_us : 0,
                                .period_s = (uint32_t)(PERIOD_US / HTH_US_PER_S),
                                .name = m->view != NULL && m->view->run[0] != '\0' ? m->view->run
                                                                                   : NULL,
                                .state = state_of(m),
                                .version = m->opts.version,
                                .trouble = trouble_of(m),
                                .since_t = began == 0 || (told != 0 && told < began) ? told : began,
                                .left_s = NAN,
                                .samples = m->samples,
                                .join_command = m->opts.join_command,
                                .join_ask = m->opts.join_ask,
                                .join_complete = m->opts.join_complete,
                                .test = m->test,
                                .test_count = m->test_count,
                                .view = m->view,
                                .event = m->event,
                                .event_count = hth_events_list(m->events, m->event),
                                .row = m->row};
    if (m->history != NULL)
        out->row_count = hth_history_list(m->history, now_s(m), m->row);
    if (pace > 0 && m->view->total > m->view->step)
        out->left_s = (double)(m->view->total - m->view->step) / pace;
    if (m->view != NULL && m->view->total > 0 && m->view->step >= m->view->total)
        out->left_s = 0;
}

/* ---- a collection is done ------------------------------------------------------------------- */

/* Goes on with the samples before. */
static void take_history(struct hth_monitor *m)
{
    const struct hth_history_row *last = hth_history_last(m->history, now_s(m));
    if (last != NULL && last->samples != HTH_HISTORY_NO_STEP)
        m->samples = last->samples;
    for (uint32_t i = 0; last != NULL && m->samples == 0 && i < HTH_HISTORY_FINE_MAX; i++) {
        const struct hth_history_row *row =
            hth_history_at(m->history, last->t - i * HTH_HISTORY_FINE_S);
        if (row != NULL && row->samples != HTH_HISTORY_NO_STEP)
            m->samples = row->samples;
    }
}

/* Goes on with the events before. */
static void take_events(struct hth_monitor *m)
{
    const struct hth_blob *kept = hth_history_kept(m->history);
    if (kept == NULL)
        return;
    char run[HTH_NAME_LEN_MAX + 1];
    enum hth_err err =
        hth_events_read(m->events, hth_gather_name(m->gather, run), kept->data, kept->size);
    if (err != HTH_OK)
        HTH_LOG(m->env, HTH_WARN, HTH_SUB_APP, "history %s/events: %s; it is begun anew",
                m->opts.dir, hth_err_text(err));
}

static void keep_events(struct hth_monitor *m)
{
    if (m->opts.dir == NULL || m->history == NULL || hth_events_seen(m->events) == m->kept)
        return;
    m->kept = hth_events_seen(m->events);
    char run[HTH_NAME_LEN_MAX + 1];
    char *text = hth_events_write(m->events, hth_gather_name(m->gather, run));
    struct hth_blob *blob = hth_blob_copy(text, strlen(text));
    hth_history_keep(m->history, blob);
    hth_blob_unref(blob);
    hth_free(text);
}

static void add_row(struct hth_monitor *m)
{
    const struct hth_run_view *v = m->view;
    bool trains = v->trainers > 0;
    const struct hth_history_row row = {.t = (uint32_t)(v->asked_us / HTH_US_PER_S),
                                        .trainers = v->trainers,
                                        .hosts = v->hosts,
                                        .served = (uint32_t)HTH_MIN(v->served, UINT32_MAX - 1),
                                        .step = trains ? v->step : HTH_HISTORY_NO_STEP,
                                        .samples = m->samples,
                                        .loss = trains ? (float)v->loss : NAN,
                                        .samples_per_s = (float)v->samples_per_s,
                                        .rows_per_s = (float)v->rows_per_s};
    hth_history_add(m->history, &row);
}

static void note_step(struct hth_monitor *m)
{
    if (m->view->step > m->step || (m->view->step < m->step && m->seq == 1))
        m->rose_us = hth_now_us(m->env);
    m->step = m->view->step;
}

static void see(struct hth_monitor *m)
{
    struct hth_run_view *view = hth_run_view_new(m->gather, m->view);
    hth_run_view_free(m->view);
    m->view = view;
    m->seq++;
    m->met = m->met || view->peer_count > 0;
    if (m->history != NULL) {
        hth_mon_recall(m, m->gather);
        add_row(m);
    }
    note_step(m);
    hth_events_see(m->events, view, pace_of(m));
    keep_events(m);
    m->asks = false;
    m->opts.on_new(m->opts.arg);
}

/* ---- opening the history -------------------------------------------------------------------- */

/* A hundred files, which a disk that is busy with others' work may take a second to read. */
struct mon_opening {
    struct hth_job job;
    struct hth_monitor *of; /* NULL: it is gone */
    struct hth_env *env;
    const char *dir;
    char run[HTH_NAME_LEN_MAX + 1];
    struct hth_history *history;
};

static void run_opening(struct hth_job *job)
{
    struct mon_opening *o = HTH_CONTAINER(job, struct mon_opening, job);
    o->history = hth_history_new(o->env, o->dir, o->run);
}

static void opened(struct hth_job *job, enum hth_err err)
{
    struct mon_opening *o = HTH_CONTAINER(job, struct mon_opening, job);
    struct hth_monitor *m = o->of;
    if (m == NULL || err != HTH_OK) {
        hth_history_free(o->history);
    } else {
        m->history = o->history;
        take_history(m);
        take_events(m);
    }
    hth_free(o);
    if (m == NULL)
        return;
    m->opening = NULL;
    see(m);
}

/* The name of the run may only be known now, and with it its history. */
static void on_gathered(void *arg)
{
    struct hth_monitor *m = arg;
    if (m->history != NULL || m->gather->network[0] == '\0') {
        see(m);
        return;
    }
    struct mon_opening *o = hth_new(struct mon_opening);
    o->job = (struct hth_job){.lane = HTH_LANE_IO, .run = run_opening, .done = opened};
    o->of = m;
    o->env = m->env;
    o->dir = m->opts.dir;
    snprintf(o->run, sizeof(o->run), "%s", m->gather->network);
    m->opening = o;
    enum hth_err err = hth_job_submit(m->env, &o->job);
    if (err != HTH_OK)
        opened(&o->job, err);
}

/* ---- asking --------------------------------------------------------------------------------- */

/* A trainer's clock may be behind ours by so much. */
#define LATE_S 60

/* The next points that the history needs from trainers: those after its last row. */
static uint32_t recall_after(struct hth_monitor *m)
{
    const struct hth_history_row *last =
        m->history != NULL ? hth_history_last(m->history, now_s(m)) : NULL;
    return last != NULL ? last->t - LATE_S : 0;
}

/* A swarm that does not answer is waited for: meanwhile the clock of what is shown goes on. */
static void on_timer(void *arg)
{
    struct hth_monitor *m = arg;
    hth_timer_set(m->env, m->timer, PERIOD_US);
    if (m->asks) {
        m->opts.on_new(m->opts.arg);
        return;
    }
    enum hth_err err = hth_gather_again(m->gather, recall_after(m));
    m->asks = err == HTH_OK;
    if (err != HTH_OK)
        HTH_LOG(m->env, HTH_WARN, HTH_SUB_APP, "can't ask the run: %s; trying again",
                hth_err_text(err));
}

/* ---- life ----------------------------------------------------------------------------------- */

enum hth_err hth_monitor_new(struct hth_env *env, struct hth_dht *dht,
                             const struct hth_monitor_opts *opts, struct hth_monitor **out)
{
    struct hth_monitor *m = hth_new(struct hth_monitor);
    const struct hth_gather_opts gather = {.census = opts->census,
                                           .network = opts->network,
                                           .name = opts->name,
                                           .members = opts->members,
                                           .layers = opts->layers,
                                           .layer_count = opts->layer_count,
                                           .admission = opts->admission,
                                           .wait_us = WAIT_US,
                                           .recall = true,
                                           .done = on_gathered,
                                           .arg = m};
    *out = m;
    m->env = env;
    m->dht = dht;
    m->opts = *opts;
    m->timer = hth_timer_new(env, on_timer, m);
    m->events = hth_events_new();
    m->counters = hth_map_new_held(0, sizeof(struct hth_peer_id));
    m->test = hth_new_array(struct hth_recall_test, HTH_RUN_TESTS_MAX);
    m->event = hth_new_array(struct hth_event, HTH_EVENTS_MAX);
    m->row = hth_new_array(struct hth_history_row, HTH_HISTORY_LIST_MAX);
    m->asks = true;
    hth_timer_set(env, m->timer, PERIOD_US);
    enum hth_err err = hth_gather_new(env, dht, &gather, &m->gather);
    if (err != HTH_OK) {
        hth_monitor_free(m);
        *out = NULL;
    }
    return err;
}

void hth_monitor_free(struct hth_monitor *m)
{
    if (m == NULL)
        return;
    if (m->opening != NULL)
        m->opening->of = NULL;
    hth_gather_free(m->gather);
    hth_timer_free(m->env, m->timer);
    hth_history_free(m->history);
    hth_events_free(m->events);
    hth_run_view_free(m->view);
    hth_mon_forget(m);
    hth_free(m->event);
    hth_free(m->row);
    hth_free(m);
}

const struct hth_gather *hth_monitor_gather(const struct hth_monitor *m)
{
    return m->gather;
}
