/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/events_int.h"

#include "core/map.h"
#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Views without a peer, or without its answer, before that is an event: one answer may be lost. */
#define MISSES   2
#define BEHIND_S 60

struct known {
    struct hth_peer_id id;
    char short_id[HTH_PEER_SHORT_LEN];
    enum hth_view_role role;
    bool lives;
    uint32_t silent, missing; /* views in a row */
    int64_t behind_us;        /* since when; 0: it is not */
    bool said_behind;
    bool recalled; /* once; then its counts were */
    uint64_t forks, joined;
    struct hth_gather_expert *expert; /* that it served last */
    uint32_t expert_count;
    struct known *next;
};

/* Of each expert of a layer: whether somebody served it, and then for how many views nobody. */
enum { NEVER, SERVED, LOST = SERVED + MISSES };
struct layer {
    char name[HTH_VIEW_NAME_MAX];
    uint32_t places;
    uint8_t *was;
};

struct hth_events {
    struct hth_event event[HTH_EVENTS_MAX];
    uint32_t count, first; /* a ring */
    struct known *known;
    struct hth_map *by_id;
    struct layer *layer;
    uint32_t layer_count;
    uint64_t saved_step, seen; /* of the view before; events */
    bool begun;
};

const char *hth_event_name(enum hth_event_kind kind)
{
    static const char *const names[] = {"joined", "left", "killed", "replaced",
                                        "behind", "fork", "heal",   "checkpoint"};
    return names[kind];
}

uint32_t hth_events_list(const struct hth_events *e, struct hth_event out[HTH_EVENTS_MAX])
{
    for (uint32_t i = 0; i < e->count; i++)
        out[i] = e->event[(e->first + i) % HTH_EVENTS_MAX];
    return e->count;
}

uint64_t hth_events_seen(const struct hth_events *e)
{
    return e->seen;
}

struct hth_event *hth_events_next(struct hth_events *e)
{
    if (e->count == HTH_EVENTS_MAX) {
        e->first = (e->first + 1) % HTH_EVENTS_MAX;
        e->count--;
    }
    return &e->event[(e->first + e->count++) % HTH_EVENTS_MAX];
}

/* Checkpoints in a row are one event, else they would push all others out. */
static struct hth_event *place_of(struct hth_events *e, enum hth_event_kind kind)
{
    struct hth_event *newest =
        e->count > 0 ? &e->event[(e->first + e->count - 1) % HTH_EVENTS_MAX] : NULL;
    if (kind == HTH_EVENT_CHECKPOINT && newest != NULL && newest->kind == kind)
        return newest;
    return hth_events_next(e);
}

__attribute__((format(printf, 5, 6))) static void add(struct hth_events *e,
                                                      const struct hth_run_view *view,
                                                      enum hth_event_kind kind, const char *peer,
                                                      const char *fmt, ...)
{
    va_list args;
    if (!e->begun)
        return;
    struct hth_event *out = place_of(e, kind);
    e->seen++;
    out->t = (uint32_t)(view->asked_us / HTH_US_PER_S);
    out->kind = kind;
    snprintf(out->peer, sizeof(out->peer), "%s", peer);
    va_start(args, fmt);
    vsnprintf(out->text, sizeof(out->text), fmt, args);
    va_end(args);
}

/* ---- peers ---------------------------------------------------------------------------------- */

static void keep_experts(struct known *k, const struct hth_run_view *view,
                         const struct hth_view_peer *p)
{
    hth_free(k->expert);
    k->expert_count = p->expert_count;
    k->expert = hth_new_array(struct hth_gather_expert, p->expert_count + 1);
    if (p->expert_count > 0)
        memcpy(k->expert, &view->expert[p->first_expert], p->expert_count * sizeof(*k->expert));
}

/* Experts that it served and nobody does. */
static uint32_t lost_experts(const struct known *k, const struct hth_run_view *view)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->expert_count; i++) {
        const struct hth_gather_expert *x = &k->expert[i];
        if (x->layer >= view->layer_count || x->index >= view->layer[x->layer].places)
            continue; /* the layers are others by now */
        const uint32_t *replicas = view->layer[x->layer].replicas;
        n += replicas != NULL && replicas[x->index] == 0;
    }
    return n;
}

static void see_silent(struct hth_events *e, const struct hth_run_view *view, struct known *k)
{
    if (++k->silent != MISSES || !k->lives)
        return;
    uint32_t lost = lost_experts(k, view);
    const char *role = hth_view_role_name(k->role);
    k->lives = false;
    if (lost > 0)
        add(e, view, HTH_EVENT_KILLED, k->short_id,
            "%s %s fell silent without a goodbye: %u expert%s not served", role, k->short_id, lost,
            lost == 1 ? " is" : "s are");
    else
        add(e, view, HTH_EVENT_KILLED, k->short_id, "%s %s fell silent without a goodbye", role,
            k->short_id);
}

static void see_step(struct hth_events *e, const struct hth_run_view *view,
                     const struct hth_view_peer *p, struct known *k, double pace)
{
    uint64_t behind = p->trains && p->step < view->step ? view->step - p->step : 0;
    if (pace <= 0 || behind < 2 || (double)behind <= pace * BEHIND_S) {
        k->behind_us = 0;
        k->said_behind = false;
        return;
    }
    if (k->behind_us == 0)
        k->behind_us = view->asked_us;
    if (k->said_behind || view->asked_us - k->behind_us < BEHIND_S * HTH_US_PER_S)
        return;
    k->said_behind = true;
    add(e, view, HTH_EVENT_BEHIND, k->short_id, "trainer %s is %llu steps behind", k->short_id,
        (unsigned long long)behind);
}

/* Trainers whose count has grown, and the last of them. */
struct grown {
    uint32_t trainers;
    const char *who;
};

static void see_count(struct grown *all, const struct known *k, uint64_t was, uint64_t now)
{
    if (!k->recalled || now <= was)
        return;
    all->trainers++;
    all->who = k->short_id;
}

/* A part of a run forks, and comes back, as one: that is one event. */
static void see_chains(struct hth_events *e, const struct hth_run_view *view)
{
    struct grown forked = {0}, joined = {0};
    for (struct known *k = e->known; k != NULL; k = k->next) {
        const struct hth_view_peer *p = hth_run_view_find(view, &k->id);
        if (p == NULL || !p->recalls)
            continue;
        see_count(&forked, k, k->forks, p->forks);
        see_count(&joined, k, k->joined, p->joined);
        k->recalled = true;
        k->forks = p->forks;
        k->joined = p->joined;
    }
    if (forked.trainers > 0)
        add(e, view, HTH_EVENT_FORK, forked.who,
            "the run has forked: trainer %s and %u more went on without a quorum", forked.who,
            forked.trainers - 1);
    if (joined.trainers > 0)
        add(e, view, HTH_EVENT_HEAL, joined.who,
            "trainer %s and %u more went over to the others' chain", joined.who,
            joined.trainers - 1);
}

static struct known *know(struct hth_events *e, const struct hth_view_peer *p)
{
    struct known *k = hth_map_get(e->by_id, p->id.b, sizeof(p->id.b));
    if (k != NULL)
        return k;
    k = hth_new(struct known);
    k->id = p->id;
    memcpy(k->short_id, p->short_id, sizeof(k->short_id));
    k->next = e->known;
    e->known = k;
    hth_map_put(e->by_id, k->id.b, sizeof(k->id.b), k);
    return k;
}

static void see_peer(struct hth_events *e, const struct hth_run_view *view,
                     const struct hth_view_peer *p, double pace)
{
    struct known *k = know(e, p);
    k->role = p->role;
    k->missing = 0;
    if (!hth_view_lives(p)) {
        see_silent(e, view, k);
        return;
    }
    if (!k->lives)
        add(e, view, HTH_EVENT_JOINED, k->short_id, "%s %s %s", hth_view_role_name(p->role),
            k->short_id, k->silent > 0 ? "is back" : "joined");
    k->lives = true;
    k->silent = 0;
    keep_experts(k, view, p);
    if (p->role == HTH_VIEW_TRAINER)
        see_step(e, view, p, k, pace);
}

/* One of those who have saved the step that most agree on is named. */
static void see_checkpoint(struct hth_events *e, const struct hth_run_view *view)
{
    const char *who = "";
    for (uint32_t i = 0; i < view->peer_count; i++)
        if (view->peer[i].saved_step == view->saved_step && hth_view_lives(&view->peer[i]))
            who = view->peer[i].short_id;
    if (view->saved_step > e->saved_step && who[0] != '\0')
        add(e, view, HTH_EVENT_CHECKPOINT, who, "%s saved step %llu", who,
            (unsigned long long)view->saved_step);
    e->saved_step = view->saved_step;
}

static void forget(struct hth_events *e, struct known **at)
{
    struct known *k = *at;
    *at = k->next;
    hth_map_del(e->by_id, k->id.b, sizeof(k->id.b));
    hth_free(k->expert);
    hth_free(k);
}

static void see_missing(struct hth_events *e, const struct hth_run_view *view)
{
    for (struct known **at = &e->known; *at != NULL;) {
        struct known *k = *at;
        if (hth_run_view_find(view, &k->id) != NULL || ++k->missing < MISSES) {
            at = &k->next;
            continue;
        }
        if (k->lives)
            add(e, view, HTH_EVENT_LEFT, k->short_id, "%s %s left", hth_view_role_name(k->role),
                k->short_id);
        forget(e, at);
    }
}

/* ---- experts -------------------------------------------------------------------------------- */

static bool same_layers(const struct hth_events *e, const struct hth_run_view *view)
{
    bool same = e->layer_count == view->layer_count;
    for (uint32_t l = 0; same && l < e->layer_count; l++)
        same = strcmp(e->layer[l].name, view->layer[l].name) == 0 &&
               e->layer[l].places == view->layer[l].places;
    return same;
}

static void drop_layers(struct hth_events *e)
{
    for (uint32_t l = 0; l < e->layer_count; l++)
        hth_free(e->layer[l].was);
    hth_free(e->layer);
    e->layer = NULL;
    e->layer_count = 0;
}

static void begin_layers(struct hth_events *e, const struct hth_run_view *view)
{
    drop_layers(e);
    e->layer = hth_new_array(struct layer, view->layer_count + 1);
    e->layer_count = view->layer_count;
    for (uint32_t l = 0; l < e->layer_count; l++) {
        memcpy(e->layer[l].name, view->layer[l].name, sizeof(e->layer[l].name));
        e->layer[l].places = view->layer[l].places;
        if (view->layer[l].replicas != NULL)
            e->layer[l].was = hth_new_array(uint8_t, view->layer[l].places);
    }
}

/* Counts for each peer the experts that it serves again; `count` has a place for each. */
static void see_layer(struct layer *layer, const struct hth_view_layer *now, uint32_t *count)
{
    for (uint32_t i = 0; layer->was != NULL && now->replicas != NULL && i < layer->places; i++) {
        if (now->replicas[i] > 0) {
            if (layer->was[i] == LOST)
                count[now->hosts[i][0]]++;
            layer->was[i] = SERVED;
        } else if (layer->was[i] != NEVER && layer->was[i] != LOST) {
            layer->was[i]++;
        }
    }
}

static void see_layers(struct hth_events *e, const struct hth_run_view *view)
{
    uint32_t *count = hth_new_array(uint32_t, view->peer_count + 1);
    if (!same_layers(e, view))
        begin_layers(e, view);
    for (uint32_t l = 0; l < e->layer_count; l++)
        see_layer(&e->layer[l], &view->layer[l], count);
    for (uint32_t i = 0; i < view->peer_count; i++)
        if (count[i] > 0)
            add(e, view, HTH_EVENT_REPLACED, view->peer[i].short_id,
                "host %s serves %u expert%s that nobody served", view->peer[i].short_id, count[i],
                count[i] == 1 ? "" : "s");
    hth_free(count);
}

/* ---- all ------------------------------------------------------------------------------------ */

void hth_events_see(struct hth_events *e, const struct hth_run_view *view, double pace)
{
    for (uint32_t i = 0; i < view->peer_count; i++)
        see_peer(e, view, &view->peer[i], pace);
    see_chains(e, view);
    see_missing(e, view);
    see_checkpoint(e, view);
    see_layers(e, view);
    e->begun = e->begun || view->peer_count > 0;
}

struct hth_events *hth_events_new(void)
{
    struct hth_events *e = hth_new(struct hth_events);
    e->by_id = hth_map_new_held(offsetof(struct known, id), sizeof(struct hth_peer_id));
    return e;
}

void hth_events_free(struct hth_events *e)
{
    if (e == NULL)
        return;
    while (e->known != NULL)
        forget(e, &e->known);
    drop_layers(e);
    hth_map_free(e->by_id);
    hth_free(e);
}
