/* SPDX-License-Identifier: Apache-2.0 */
#include "app/train_recall.h"

#include "core/bytes.h"
#include "core/mem.h"
#include "monitor/recall.h"

#include <math.h>

#define WATCHERS_MAX 16
/* An answer is on its way for a moment after it was given. */
#define ANSWER_US (100 * HTH_US_PER_MS)

struct hth_train_recall {
    struct hth_peer *peer;
    struct hth_recall_told told;
    struct watcher {
        struct hth_peer_id id;
        int64_t asked_us; /* 0: this place is free */
    } watcher[WATCHERS_MAX];
    struct hth_timer *timer;
    int64_t end_us; /* when the run ended; 0: it goes on */
    hth_fn *done;
    void *arg;
};

static uint32_t unix_s(const struct hth_train_recall *r)
{
    return (uint32_t)(hth_wall_us(r->peer->env) / HTH_US_PER_S);
}

/* ---- those who watch ----------------------------------------------------------------------- */

/* Notes who asked, in the place of the one that has not for longest. */
static void note_watcher(struct hth_train_recall *r, const struct hth_peer_id *id)
{
    struct watcher *at = &r->watcher[0];
    for (size_t i = 0; i < WATCHERS_MAX; i++) {
        struct watcher *w = &r->watcher[i];
        if (w->asked_us != 0 && hth_peer_id_eq(&w->id, id)) {
            at = w;
            break;
        }
        if (w->asked_us < at->asked_us)
            at = w;
    }
    *at = (struct watcher){*id, hth_now_us(r->peer->env)};
}

/* How long those who asked lately may take to ask again; 0: all did. */
static int64_t patience_us(const struct hth_train_recall *r)
{
    int64_t now = hth_now_us(r->peer->env), longest = 0;
    for (size_t i = 0; i < WATCHERS_MAX; i++) {
        int64_t asked = r->watcher[i].asked_us;
        if (asked != 0 && asked <= r->end_us)
            longest = HTH_MAX(longest, asked + HTH_TRAIN_RECALL_END_US - now);
    }
    return longest;
}

void hth_train_recall_cut(struct hth_train_recall *r)
{
    hth_fn *done = r != NULL ? r->done : NULL;
    if (done == NULL)
        return;
    r->done = NULL;
    done(r->arg);
}

static void on_timer(void *arg)
{
    hth_train_recall_cut(arg);
}

bool hth_train_recall_end(struct hth_train_recall *r, hth_fn *done, void *arg)
{
    if (r != NULL)
        r->end_us = hth_now_us(r->peer->env);
    int64_t wait_us = r != NULL ? patience_us(r) : 0;
    if (wait_us == 0) {
        done(arg);
        return false;
    }
    r->done = done;
    r->arg = arg;
    hth_timer_set(r->peer->env, r->timer, wait_us);
    return true;
}

/* ---- answers ------------------------------------------------------------------------------- */

static void on_recall(void *arg, struct hth_rpc_request *req)
{
    struct hth_train_recall *r = arg;
    size_t len;
    const uint8_t *after = hth_rpc_payload(req, &len);
    if (len < 4) {
        hth_rpc_refuse(req, HTH_E_TRUNCATED, 0, "RECALL needs the second after which to tell");
        return;
    }
    uint8_t *bytes = hth_new_array(uint8_t, HTH_RECALL_BYTES_MAX);
    struct hth_rpc_body body = {.payload = bytes};
    body.payload_len = hth_recall_write(&r->told, hth_load_u32le(after), bytes);
    note_watcher(r, hth_rpc_peer(req));
    hth_rpc_reply(req, &body);
    hth_free(bytes);
    if (r->done != NULL && patience_us(r) == 0)
        hth_timer_set(r->peer->env, r->timer, ANSWER_US);
}

struct hth_train_recall *hth_train_recall_new(struct hth_peer *peer, uint64_t total)
{
    struct hth_train_recall *r = hth_new(struct hth_train_recall);
    r->peer = peer;
    r->told.total = total;
    r->timer = hth_timer_new(peer->env, on_timer, r);
    hth_rpc_serve(peer->rpc, HTH_METHOD_RECALL, on_recall, r);
    return r;
}

void hth_train_recall_free(struct hth_train_recall *r)
{
    if (r == NULL)
        return;
    hth_rpc_serve(r->peer->rpc, HTH_METHOD_RECALL, NULL, NULL);
    hth_timer_free(r->peer->env, r->timer);
    hth_free(r);
}

/* ---- what is remembered -------------------------------------------------------------------- */

void hth_train_recall_add(struct hth_train_recall *r, const struct hth_train_stats *stats)
{
    if (r == NULL)
        return;
    if (r->told.began_t == 0)
        r->told.began_t = unix_s(r);
    const struct hth_recall_point point = {.t = unix_s(r),
                                           .step = stats->updates,
                                           .samples = stats->own_samples,
                                           .loss =
                                               stats->loss_ema > 0 ? (float)stats->loss_ema : NAN,
                                           .samples_per_s = (float)stats->samples_per_s};
    hth_recall_add(&r->told, &point);
    r->told.behind = stats->samples;
    r->told.forks = stats->share.run.forks;
    r->told.joined = stats->share.run.joined;
}

void hth_train_recall_test(struct hth_train_recall *r, const struct hth_eval_result *result,
                           bool is_text)
{
    if (r == NULL)
        return;
    const struct hth_recall_test test = {.t = unix_s(r),
                                         .step = result->updates,
                                         .loss = (float)result->loss,
                                         .accuracy = is_text ? NAN : (float)result->accuracy,
                                         .bits_per_byte =
                                             is_text ? (float)result->bits_per_byte : NAN};
    hth_recall_add_test(&r->told, &test);
}

void hth_train_recall_saved(struct hth_train_recall *r, uint64_t step)
{
    if (r == NULL)
        return;
    r->told.saved_step = step;
    r->told.saved_t = unix_s(r);
}
