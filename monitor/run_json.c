/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/run_json.h"

#include "averaging/averager.h"
#include "cli/json.h"
#include "core/mem.h"
#include "monitor/status_json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Rates and losses of a curve: nobody sees more digits, and they are most of the bytes. */
#define DIGITS 6

/* ---- values --------------------------------------------------------------------------------- */

static void put_time(json_t *o, const char *name, int64_t wall_us)
{
    if (wall_us == 0)
        hth_json_take(o, name, NULL);
    else
        hth_json_real(o, name, round((double)wall_us / 1e3) / 1e3);
}

/* 0: not known. */
static void put_known(json_t *o, const char *name, uint64_t count)
{
    if (count == 0)
        hth_json_take(o, name, NULL);
    else
        hth_json_count(o, name, count);
}

static json_t *count_or_null(uint64_t count, uint64_t unknown)
{
    if (count == unknown)
        return json_null();
    return json_integer((json_int_t)HTH_MIN(count, (uint64_t)INT64_MAX));
}

/* The number with so many digits as a curve needs. */
static double few(double x)
{
    char text[32];
    if (!isfinite(x) || x == floor(x))
        return x;
    snprintf(text, sizeof(text), "%.*g", DIGITS, x);
    return strtod(text, NULL);
}

/* ---- peers ---------------------------------------------------------------------------------- */

static json_t *average_json(const struct hth_view_peer *p)
{
    const struct hth_roster_last *l = &p->last;
    if (l->members == 0)
        return NULL;
    json_t *o = json_object();
    hth_json_count(o, "members", l->members);
    hth_json_count(o, "drops", l->drops);
    hth_json_text(o, "reason", hth_avg_reason_name((enum hth_avg_reason)l->reason));
    hth_json_count(o, "bytes", l->bytes);
    hth_json_real(o, "distance", l->norm > 0 ? few(l->change / l->norm) : NAN);
    return o;
}

static const char *does(const struct hth_view_peer *p)
{
    return (p->flags & HTH_ROSTER_BOOTSTRAPPING) != 0 ? "fetching"
           : (p->flags & HTH_ROSTER_CLIENT) != 0      ? "client"
                                                      : "training";
}

static void put_host(json_t *o, const struct hth_view_peer *p)
{
    bool host = p->role == HTH_VIEW_HOST;
    hth_json_text(o, "compute", host ? hth_compute_name((enum hth_compute)p->compute) : NULL);
    hth_json_count(o, "experts", p->experts);
    hth_json_count(o, "rows", p->rows);
    hth_json_real(o, "rows_per_s", few(p->rows_per_s));
    hth_json_take(o, "able_rows_per_s", host ? json_integer(p->able_rows_per_s) : NULL);
    hth_json_take(o, "queue_ms", host ? json_integer(p->queue_ms) : NULL);
}

static void put_trainer(json_t *o, const struct hth_view_peer *p)
{
    bool trainer = p->role == HTH_VIEW_TRAINER;
    hth_json_take(o, "step", count_or_null(p->step, p->trains ? HTH_HISTORY_NO_STEP : p->step));
    hth_json_take(o, "samples",
                  count_or_null(p->samples, p->trains ? HTH_HISTORY_NO_STEP : p->samples));
    hth_json_real(o, "samples_per_s", p->trains ? few(p->samples_per_s) : NAN);
    hth_json_real(o, "loss", few(p->loss));
    hth_json_text(o, "does", trainer ? does(p) : NULL);
    hth_json_take(o, "average", average_json(p));
}

static json_t *peer_json(const struct hth_view_peer *p)
{
    static const char *const states[] = {"answers", "silent", "unreachable", "unasked"};
    json_t *o = json_object();
    hth_json_text(o, "id", p->short_id);
    hth_json_take(o, "name", NULL);
    hth_json_text(o, "role", hth_view_role_name(p->role));
    hth_json_text(o, "state", states[p->state]);
    hth_json_real(o, "seen_s", few(p->seen_s));
    hth_json_real(o, "up_s", few(p->up_s));
    hth_json_text(o, "version", p->version);
    put_host(o, p);
    hth_json_real(o, "unsaved_s", few(p->unsaved_s));
    put_trainer(o, p);
    return o;
}

/* ---- layers --------------------------------------------------------------------------------- */

static json_t *hosts_json(const struct hth_view_layer *layer)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < layer->places; i++) {
        json_t *one = json_array();
        for (uint32_t h = 0; h < HTH_MIN(layer->replicas[i], (uint32_t)HTH_VIEW_HOSTS); h++)
            json_array_append_new(one, json_integer(layer->hosts[i][h]));
        json_array_append_new(all, one);
    }
    return all;
}

static json_t *layer_json(const struct hth_view_layer *layer)
{
    json_t *o = json_object(), *replicas = json_array();
    hth_json_text(o, "name", layer->name);
    hth_json_text(o, "kind", layer->kind);
    hth_json_count(o, "width", layer->width);
    hth_json_take(o, "grid", hth_status_grid_json(&layer->grid));
    hth_json_count(o, "places", layer->places);
    hth_json_count(o, "served", layer->served);
    hth_json_count(o, "twice", layer->twice);
    if (layer->replicas == NULL) {
        json_decref(replicas);
        hth_json_take(o, "replicas", NULL);
        hth_json_take(o, "hosts", NULL);
        return o;
    }
    for (uint32_t i = 0; i < layer->places; i++)
        json_array_append_new(replicas, json_integer(layer->replicas[i]));
    hth_json_take(o, "replicas", replicas);
    hth_json_take(o, "hosts", hosts_json(layer));
    return o;
}

/* ---- curves --------------------------------------------------------------------------------- */

static const char *const COLUMNS[] = {"t",     "step",   "samples",       "loss",      "trainers",
                                      "hosts", "served", "samples_per_s", "rows_per_s"};

static json_t *column(const struct hth_history_row *r, size_t i)
{
    switch (i) {
    case 0:
        return json_integer(r->t);
    case 1:
        return count_or_null(r->step, HTH_HISTORY_NO_STEP);
    case 2:
        return count_or_null(r->samples, HTH_HISTORY_NO_STEP);
    case 3:
        return hth_json_number(few(r->loss));
    case 4:
        return count_or_null(r->trainers, HTH_HISTORY_UNKNOWN);
    case 5:
        return count_or_null(r->hosts, HTH_HISTORY_UNKNOWN);
    case 6:
        return count_or_null(r->served, HTH_HISTORY_UNKNOWN);
    case 7:
        return hth_json_number(few(r->samples_per_s));
    default:
        return hth_json_number(few(r->rows_per_s));
    }
}

static json_t *history_json(const struct hth_run_now *run)
{
    json_t *all = json_object();
    for (size_t c = 0; c < HTH_ARRAY_LEN(COLUMNS); c++) {
        json_t *values = json_array();
        for (size_t i = 0; i < run->row_count; i++)
            json_array_append_new(values, column(&run->row[i], c));
        hth_json_take(all, COLUMNS[c], values);
    }
    return all;
}

static json_t *test_json(const struct hth_recall_test *t)
{
    json_t *o = json_object();
    hth_json_count(o, "t", t->t);
    hth_json_count(o, "step", t->step);
    hth_json_real(o, "loss", few(t->loss));
    hth_json_real(o, "accuracy", few(t->accuracy));
    hth_json_real(o, "bits_per_byte", few(t->bits_per_byte));
    return o;
}

static json_t *tests_json(const struct hth_run_now *run)
{
    static const char *const names[] = {"t", "step", "loss", "accuracy", "bits_per_byte"};
    json_t *all = json_object();
    for (size_t c = 0; c < HTH_ARRAY_LEN(names); c++)
        hth_json_take(all, names[c], json_array());
    for (uint32_t i = 0; i < run->test_count; i++) {
        json_t *one = test_json(&run->test[i]);
        for (size_t c = 0; c < HTH_ARRAY_LEN(names); c++)
            json_array_append(json_object_get(all, names[c]), json_object_get(one, names[c]));
        json_decref(one);
    }
    return all;
}

/* ---- all ------------------------------------------------------------------------------------ */

static json_t *join_json(const struct hth_run_now *run)
{
    json_t *o = json_object();
    hth_json_text(o, "command", run->join_command);
    hth_json_flag(o, "complete", run->join_complete);
    hth_json_text(o, "ask", run->join_ask);
    return o;
}

static json_t *checkpoint_json(const struct hth_run_now *run)
{
    if (run->view == NULL || run->view->saved_t == 0)
        return NULL;
    json_t *o = json_object();
    hth_json_count(o, "t", run->view->saved_t);
    hth_json_count(o, "step", run->view->saved_step);
    return o;
}

static void put_sums(json_t *o, const struct hth_run_now *run)
{
    static const struct hth_run_view none = {.loss = NAN};
    const struct hth_run_view *v = run->view != NULL ? run->view : &none;
    hth_json_count(o, "step", v->step);
    put_known(o, "total", v->total);
    hth_json_real(o, "left_s", few(run->left_s));
    hth_json_count(o, "samples", run->samples);
    hth_json_real(o, "loss", few(v->loss));
    hth_json_take(o, "test",
                  run->test_count > 0 ? test_json(&run->test[run->test_count - 1]) : NULL);
    hth_json_take(o, "checkpoint", checkpoint_json(run));
    hth_json_count(o, "trainers", v->trainers);
    hth_json_count(o, "hosts", v->hosts);
    hth_json_count(o, "helpers", v->helpers);
    hth_json_count(o, "nodes", v->nodes);
    hth_json_count(o, "silent", v->silent);
    hth_json_real(o, "samples_per_s", few(v->samples_per_s));
    hth_json_real(o, "rows_per_s", few(v->rows_per_s));
    hth_json_count(o, "places", v->places);
    hth_json_count(o, "served", v->served);
}

static void put_lists(json_t *o, const struct hth_run_now *run)
{
    json_t *peers = json_array(), *layers = json_array();
    for (uint32_t i = 0; run->view != NULL && i < run->view->peer_count; i++)
        json_array_append_new(peers, peer_json(&run->view->peer[i]));
    for (uint32_t l = 0; run->view != NULL && l < run->view->layer_count; l++)
        json_array_append_new(layers, layer_json(&run->view->layer[l]));
    hth_json_take(o, "peers", peers);
    hth_json_take(o, "layers", layers);
    hth_json_take(o, "events", hth_event_list_json(run->event, run->event_count));
}

json_t *hth_run_json(const struct hth_run_now *run, bool whole)
{
    json_t *o = json_object();
    hth_json_count(o, "schema", HTH_RUN_JSON_SCHEMA);
    hth_json_count(o, "seq", run->seq);
    put_time(o, "now_at_s", run->now_us);
    put_time(o, "asked_at_s", run->asked_us);
    hth_json_count(o, "period_s", run->period_s);
    hth_json_text(o, "run", run->name);
    hth_json_text(o, "state", run->state);
    hth_json_text(o, "version", run->version);
    hth_json_text(o, "trouble", run->trouble);
    put_known(o, "since_at_s", run->since_t);
    put_sums(o, run);
    hth_json_take(o, "join", join_json(run));
    hth_json_take(o, "gallery", hth_gallery_json(run->gallery));
    put_lists(o, run);
    if (whole) {
        hth_json_take(o, "tests", tests_json(run));
        hth_json_take(o, "history", history_json(run));
    }
    return o;
}

json_t *hth_run_json_event(const struct hth_run_now *run)
{
    const struct hth_history_row *row = run->row_count > 0 ? &run->row[run->row_count - 1] : NULL;
    json_t *o = json_object(), *point = NULL;
    hth_json_count(o, "seq", run->seq);
    if (row != NULL) {
        point = json_object();
        for (size_t c = 0; c < HTH_ARRAY_LEN(COLUMNS); c++)
            hth_json_take(point, COLUMNS[c], column(row, c));
    }
    hth_json_take(o, "point", point);
    return o;
}

char *hth_run_json_text_take(json_t *object)
{
    char *dumped = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(15));
    char *text = hth_strdup(dumped != NULL ? dumped : "{}");
    free(dumped);
    json_decref(object);
    return text;
}
