/* SPDX-License-Identifier: Apache-2.0 */
/* view.c: one collection as a picture that stays when the next one is under way. */
#include "monitor/view.h"

#include "averaging/roster.h"
#include "core/map.h"
#include "core/mem.h"
#include "monitor/agree.h"
#include "monitor/inert.h"
#include "monitor/status_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *hth_view_role_name(enum hth_view_role role)
{
    static const char *const names[] = {"trainer", "host", "helper", "node"};
    return names[role];
}

bool hth_view_lives(const struct hth_view_peer *p)
{
    return p->state != HTH_VIEW_SILENT;
}

static int by_role(const void *a, const void *b)
{
    const struct hth_view_peer *x = a, *y = b;
    if (x->role != y->role)
        return x->role < y->role ? -1 : 1;
    return memcmp(x->id.b, y->id.b, sizeof(x->id.b));
}

const struct hth_view_peer *hth_run_view_find(const struct hth_run_view *view,
                                              const struct hth_peer_id *id)
{
    struct hth_view_peer key = {.id = *id};
    const struct hth_view_peer *found = NULL;
    for (int role = HTH_VIEW_TRAINER; view != NULL && found == NULL && role <= HTH_VIEW_NODE;
         role++) {
        key.role = (enum hth_view_role)role;
        found = bsearch(&key, view->peer, view->peer_count, sizeof(key), by_role);
    }
    return found;
}

/* ---- peers ---------------------------------------------------------------------------------- */

static enum hth_view_state state_of(const struct hth_gather_peer *p)
{
    if (p->state == HTH_SILENT)
        return HTH_VIEW_SILENT;
    if (p->state != HTH_ANSWERED)
        return HTH_VIEW_UNASKED;
    return hth_gather_serves(p) ? HTH_VIEW_ANSWERS : HTH_VIEW_UNREACHABLE;
}

static void take_note(struct hth_view_peer *out, const struct hth_roster_note *note)
{
    out->flags = note->flags;
    out->last = note->last;
    if ((note->flags & HTH_ROSTER_HELPER) != 0) {
        out->role = HTH_VIEW_HELPER;
        return;
    }
    out->trains = true;
    out->step = note->step;
    out->samples = note->samples;
    out->samples_per_s = note->samples_per_s;
}

/* A trainer that averages with nobody has no note. */
static void take_recall(struct hth_view_peer *out, const struct hth_recall_told *told)
{
    out->saved_step = told->saved_step;
    out->recalls = true;
    out->forks = told->forks;
    out->joined = told->joined;
    if (told->point_count == 0)
        return;
    const struct hth_recall_point *p = &told->point[told->point_count - 1];
    out->loss = p->loss > 0 && isfinite(p->loss) ? (double)p->loss : NAN;
    out->samples = p->samples;
    if (out->trains)
        return;
    out->trains = true;
    out->step = p->step;
    out->samples_per_s = isfinite(p->samples_per_s) ? (double)p->samples_per_s : 0;
}

/* Rows served a second since the view before; NAN: it was not there, or began anew. */
static double rate_of(const struct hth_run_view *view, const struct hth_view_peer *p,
                      const struct hth_run_view *before)
{
    const struct hth_view_peer *old = hth_run_view_find(before, &p->id);
    if (old == NULL || p->rows < old->rows || view->asked_us <= before->asked_us)
        return NAN;
    return (double)(p->rows - old->rows) * 1e6 / (double)(view->asked_us - before->asked_us);
}

static void take_peer(const struct hth_gather *g, const struct hth_gather_peer *p,
                      struct hth_view_peer *out)
{
    struct hth_status_peer s;
    const struct hth_roster_peer *note =
        g->roster != NULL ? hth_roster_find(g->roster, &p->id) : NULL;
    hth_status_peer(g, p, &s);
    out->id = p->id;
    out->role = p->role == HTH_ROLE_TRAINER ? HTH_VIEW_TRAINER
                : p->role == HTH_ROLE_HOST  ? HTH_VIEW_HOST
                                            : HTH_VIEW_NODE;
    out->state = state_of(p);
    out->seen_s = (double)s.seen_us / 1e6;
    out->up_s = s.up_us >= 0 ? (double)s.up_us / 1e6 : NAN;
    memcpy(out->version, s.version, sizeof(out->version));
    out->compute = s.compute;
    out->experts = p->experts;
    out->rows = s.rows;
    out->able_rows_per_s = s.rows_per_s;
    out->queue_ms = s.queue_ms;
    out->unsaved_s = (double)s.unsaved_us / 1e6;
    out->loss = out->rows_per_s = NAN;
    if (note != NULL)
        take_note(out, &note->note);
    if (p->recall != NULL)
        take_recall(out, p->recall);
}

/* A trainer whose beacon was not seen yet, by its note alone. */
static void take_only_note(const struct hth_roster_peer *note, int64_t wall_us,
                           struct hth_view_peer *out)
{
    out->id = note->id;
    out->role = HTH_VIEW_TRAINER;
    out->state = HTH_VIEW_UNASKED;
    out->seen_s = (double)HTH_MAX(wall_us - note->issued_us, INT64_C(0)) / 1e6;
    out->up_s = out->loss = out->rows_per_s = NAN;
    take_note(out, &note->note);
}

static const struct hth_gather_peer *asked(const struct hth_gather *g, const struct hth_peer_id *id)
{
    return hth_map_get(g->by_id, id->b, sizeof(id->b));
}

static void take_peers(struct hth_run_view *view, const struct hth_gather *g,
                       const struct hth_run_view *before)
{
    const struct hth_roster_peer *note;
    view->peer = hth_new_array(struct hth_view_peer, HTH_GATHER_PEERS_MAX + 1);
    for (size_t i = 0; i < g->peer_count; i++)
        take_peer(g, g->peer[i], &view->peer[view->peer_count++]);
    for (uint32_t i = 0; g->roster != NULL && (note = hth_roster_at(g->roster, i)) != NULL; i++)
        if (view->peer_count < HTH_GATHER_PEERS_MAX && asked(g, &note->id) == NULL)
            take_only_note(note, view->asked_us, &view->peer[view->peer_count++]);
    for (uint32_t i = 0; i < view->peer_count; i++) {
        struct hth_view_peer *p = &view->peer[i];
        hth_peer_id_short(&p->id, p->short_id);
        if (p->role == HTH_VIEW_HOST && hth_view_lives(p))
            p->rows_per_s = rate_of(view, p, before);
    }
    qsort(view->peer, view->peer_count, sizeof(*view->peer), by_role);
}

/* ---- layers --------------------------------------------------------------------------------- */

/* By length, then by letters: ffn2 comes before ffn10. */
static bool is_before(const char *a, const char *b)
{
    size_t x = strlen(a), y = strlen(b);
    return x != y ? x < y : strcmp(a, b) < 0;
}

/* Layers are met in any order; place[l] is that of layer l by its name. */
static void place_layers(const struct hth_gather *g, uint32_t place[HTH_DIR_LAYERS_MAX])
{
    for (size_t l = 0; l < g->layer_count; l++) {
        place[l] = 0;
        for (size_t i = 0; i < g->layer_count; i++)
            place[l] += is_before(g->layer[i].grid.name, g->layer[l].grid.name);
    }
}

static void take_layers(struct hth_run_view *view, const struct hth_gather *g,
                        const uint32_t place[HTH_DIR_LAYERS_MAX])
{
    uint64_t listed = 0;
    view->layer = hth_new_array(struct hth_view_layer, g->layer_count + 1);
    view->layer_count = (uint32_t)g->layer_count;
    for (uint32_t l = 0; l < view->layer_count; l++) {
        struct hth_view_layer *out = &view->layer[place[l]];
        const struct hth_beacon_layer *layer = &g->layer[l];
        hth_inert(layer->grid.name, out->name, sizeof(out->name));
        hth_inert(layer->shape.kind, out->kind, sizeof(out->kind));
        out->width = layer->shape.d;
        out->grid = layer->grid;
        out->places = hth_grid_size(&layer->grid);
        hth_gather_count(g, l, &out->served, &out->twice);
        view->places += out->places;
        view->served += out->served;
        listed += out->places;
        if (listed > HTH_VIEW_PLACES_MAX)
            continue;
        out->replicas = hth_new_array(uint32_t, out->places);
        out->hosts = hth_calloc(out->places, sizeof(*out->hosts));
    }
}

/* Adds an expert that this peer serves. */
static void take_expert(struct hth_run_view *view, uint32_t peer, uint32_t layer, uint32_t index)
{
    struct hth_view_layer *of = &view->layer[layer];
    view->expert[view->expert_count++] = (struct hth_gather_expert){layer, index};
    if (of->replicas == NULL)
        return;
    uint32_t n = of->replicas[index]++;
    if (n < HTH_VIEW_HOSTS)
        of->hosts[index][n] = (uint16_t)peer;
}

static void take_experts(struct hth_run_view *view, const struct hth_gather *g,
                         const uint32_t place[HTH_DIR_LAYERS_MAX])
{
    view->expert = hth_new_array(struct hth_gather_expert, g->expert_count + 1);
    for (uint32_t i = 0; i < view->peer_count; i++) {
        struct hth_view_peer *p = &view->peer[i];
        const struct hth_gather_peer *from = asked(g, &p->id);
        if (from == NULL || from->expert_count == 0 || !hth_gather_serves(from))
            continue;
        p->first_expert = view->expert_count;
        p->expert_count = from->expert_count;
        for (uint32_t e = 0; e < from->expert_count; e++)
            take_expert(view, i, place[from->expert[e].layer], from->expert[e].index);
    }
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* A trainer tells these of the run. */
enum word { STEP, TOTAL, LOSS, RATE, SAVED_STEP, SAVED_T, BEGAN_T, BEHIND, WORDS };

struct words {
    double *told[WORDS]; /* each has room for all peers */
    uint32_t count[WORDS];
};

/* A clock may be ahead of ours by so much. */
#define AHEAD_S 60

static void tell(struct words *w, enum word word, double value, bool known)
{
    if (known && isfinite(value))
        w->told[word][w->count[word]++] = value;
}

static void take_words(struct words *w, const struct hth_view_peer *p,
                       const struct hth_gather_peer *from, double now_s)
{
    const struct hth_recall_told *r = from != NULL ? from->recall : NULL;
    tell(w, STEP, (double)p->step, p->trains);
    tell(w, RATE, p->samples_per_s, p->trains);
    tell(w, LOSS, p->loss, true);
    if (r == NULL)
        return;
    bool saved = r->saved_step > 0 && r->saved_t > 0 && r->saved_t <= now_s + AHEAD_S;
    tell(w, TOTAL, (double)r->total, r->total > 0);
    tell(w, SAVED_STEP, (double)r->saved_step, saved);
    tell(w, SAVED_T, r->saved_t, saved);
    tell(w, BEGAN_T, r->began_t, r->began_t > 0 && r->began_t <= now_s + AHEAD_S);
    tell(w, BEHIND, (double)r->behind, r->behind > 0);
}

static uint64_t agreed(struct words *w, enum word word, uint64_t otherwise)
{
    return w->count[word] > 0 ? (uint64_t)hth_agreed(w->told[word], w->count[word]) : otherwise;
}

static double agreed_rate(struct words *w)
{
    double sum = 0, most = hth_agreed_most(w->told[RATE], w->count[RATE]);
    for (uint32_t i = 0; i < w->count[RATE]; i++)
        sum += fmin(w->told[RATE][i], most);
    return sum;
}

static void sum_trainers(struct hth_run_view *view, const struct hth_gather *g,
                         const struct hth_run_view *before)
{
    static const struct hth_run_view none = {.loss = NAN};
    const struct hth_run_view *last = before != NULL ? before : &none;
    struct words w = {.count = {0}};
    double *room = hth_new_array(double, WORDS *((size_t)view->peer_count + 1));
    for (size_t i = 0; i < WORDS; i++)
        w.told[i] = room + i * view->peer_count;
    for (uint32_t i = 0; i < view->peer_count; i++) {
        const struct hth_view_peer *p = &view->peer[i];
        if (p->role == HTH_VIEW_TRAINER && hth_view_lives(p))
            take_words(&w, p, asked(g, &p->id), (double)view->asked_us / 1e6);
    }
    view->samples_per_s = agreed_rate(&w);
    view->step = agreed(&w, STEP, last->step);
    view->total = agreed(&w, TOTAL, last->total);
    view->loss = w.count[LOSS] > 0 ? hth_agreed(w.told[LOSS], w.count[LOSS]) : last->loss;
    view->saved_step = agreed(&w, SAVED_STEP, last->saved_step);
    view->saved_t = (uint32_t)agreed(&w, SAVED_T, last->saved_t);
    view->began_t = (uint32_t)agreed(&w, BEGAN_T, last->began_t);
    view->behind = agreed(&w, BEHIND, last->behind);
    hth_free(room);
}

static void sum_peers(struct hth_run_view *view)
{
    uint32_t *counts[] = {&view->trainers, &view->hosts, &view->helpers, &view->nodes};
    for (uint32_t i = 0; i < view->peer_count; i++) {
        const struct hth_view_peer *p = &view->peer[i];
        if (hth_view_lives(p))
            ++*counts[p->role];
        else
            view->silent++;
        if (isfinite(p->rows_per_s))
            view->rows_per_s += p->rows_per_s;
    }
}

struct hth_run_view *hth_run_view_new(const struct hth_gather *g, const struct hth_run_view *before)
{
    uint32_t place[HTH_DIR_LAYERS_MAX];
    struct hth_run_view *view = hth_new(struct hth_run_view);
    view->refs = 1;
    view->asked_us = hth_wall_us(g->env);
    char name[HTH_NAME_LEN_MAX + 1];
    hth_inert(hth_gather_name(g, name), view->run, sizeof(view->run));
    take_peers(view, g, before);
    place_layers(g, place);
    take_layers(view, g, place);
    take_experts(view, g, place);
    sum_peers(view);
    sum_trainers(view, g, before);
    return view;
}

struct hth_run_view *hth_run_view_ref(struct hth_run_view *view)
{
    view->refs++;
    return view;
}

void hth_run_view_free(struct hth_run_view *view)
{
    if (view == NULL || --view->refs > 0)
        return;
    for (uint32_t l = 0; l < view->layer_count; l++) {
        hth_free(view->layer[l].replicas);
        hth_free(view->layer[l].hosts);
    }
    hth_free(view->layer);
    hth_free(view->expert);
    hth_free(view->peer);
    hth_free(view);
}
