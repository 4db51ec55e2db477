/* SPDX-License-Identifier: Apache-2.0 */
/* server.c: life of the server and its experts, and its counters; server_int.h has the picture. */
#include "experts/server_int.h"

#include <string.h>

static void on_forward(void *arg, struct hth_rpc_request *req)
{
    hth_srv_on_work(arg, req, false);
}

static void on_backward(void *arg, struct hth_rpc_request *req)
{
    hth_srv_on_work(arg, req, true);
}

static struct hth_server_expert status_of(const struct srv_expert *e)
{
    return (struct hth_server_expert){
        .expert = e->expert,
        .ready = e->state == SRV_READY,
        .steps = e->steps,
        .rows_forward = e->rows_forward,
        .rows_backward = e->rows_backward,
        .returned = e->returned,
        .hosted_us = e->state == SRV_READY ? hth_now_us(e->server->env) - e->ready_us : 0,
    };
}

static void on_info(void *arg, struct hth_rpc_request *req)
{
    struct hth_server *s = arg;
    struct hth_expert_info *infos;
    struct hth_rpc_body body = {0};
    uint32_t first, count = 0;
    uint8_t *bytes;
    const uint8_t *payload = hth_rpc_payload(req, &body.payload_len);

    if (hth_info_request_open(payload, body.payload_len, &first) != HTH_OK) {
        s->stats.refused_bad++;
        hth_rpc_refuse(req, HTH_E_MALFORMED, 0, NULL);
        return;
    }
    infos = hth_new_array(struct hth_expert_info, HTH_EXPERT_INFO_PAGE_MAX);
    for (uint32_t i = first; i < s->experts_count && count < HTH_EXPERT_INFO_PAGE_MAX; i++) {
        const struct srv_expert *e = s->experts[i];
        struct hth_expert_info *info = &infos[count++];
        strncpy(info->uid, hth_expert_uid_text(e->expert), sizeof(info->uid) - 1);
        strncpy(info->kind, hth_expert_kind_of(e->expert)->name, sizeof(info->kind) - 1);
        info->d = e->d;
        info->block_rows = e->block_rows;
        info->steps = e->steps;
        info->rows_forward = e->rows_forward;
        info->rows_backward = e->rows_backward;
        info->hosted_us = status_of(e).hosted_us;
        info->returned = e->returned;
    }
    hth_info_reply_pack(infos, count, s->experts_count, &bytes, &body.payload_len);
    body.payload = bytes;
    hth_rpc_reply(req, &body);
    hth_free(bytes);
    hth_free(infos);
}

static enum hth_err check_opts(const struct hth_server_opts *o)
{
    bool ok = o->batch_rows_max > 0 && o->request_rows_max > 0 && o->batch_age_us >= 0 &&
              o->job_flops_min >= 0 && o->split_flops >= 0 && o->queue_bytes_max > 0 &&
              o->queue_us_max > 0 && o->step_rows > 0 && o->step_age_us > 0 &&
              o->grad_norm_max >= 0 && o->microbatch_rows_max > 0 && o->result_bytes_max >= 0 &&
              o->result_age_us > 0 && o->keep_bytes_max >= 0 && o->pause_us >= 0 &&
              (o->checkpoint_dir == NULL || o->checkpoint_period_us > 0);

    return ok ? HTH_OK : HTH_E_CONFIG;
}

static void add_metrics(struct hth_server *s)
{
    struct hth_metrics *m = s->env->metrics;

    s->m_rows = hth_counter(m, "hearth_expert_rows_total", "Rows computed for trainers");
    s->m_steps = hth_counter(m, "hearth_expert_steps_total", "Optimiser steps of hosted experts");
    s->m_busy = hth_counter(m, "hearth_expert_busy_total", "Requests refused as busy");
    s->m_queue =
        hth_histogram(m, "hearth_expert_queue_seconds", "Wait of a part before its batch", 1e-6);
    s->m_replays =
        hth_counter(m, "hearth_expert_replays_total", "Repeated backwards answered from the cache");
    s->m_not_finite =
        hth_counter(m, "hearth_expert_parts_not_finite_total", "Parts refused: rows not finite");
    s->m_norm =
        hth_counter(m, "hearth_expert_parts_norm_total", "Parts refused: gradient beyond the norm");
    s->m_failed =
        hth_counter(m, "hearth_expert_parts_failed_total", "Parts that failed in other ways");
    s->m_written = hth_counter(m, "hearth_expert_checkpoints_total", "Checkpoints written");
    s->m_write_failed =
        hth_counter(m, "hearth_expert_checkpoints_failed_total", "Checkpoints not written");
}

/* Bounds the bytes of kept answers, or of kept rows. They draw on the budget of the process, which
 * receiving and answering requests needs, too. With all of it kept, the host would refuse requests
 * as BUSY until what it keeps ages out. */
static int64_t kept_max(int64_t bytes_max, struct hth_rpc *rpc)
{
    const struct hth_budget *budget = hth_rpc_budget(rpc);

    return budget != NULL ? HTH_MIN(bytes_max, budget->limit_bytes / 4) : bytes_max;
}

enum hth_err hth_server_new(struct hth_env *env, struct hth_rpc *rpc,
                            const struct hth_server_opts *opts, struct hth_server **out)
{
    struct hth_server *s;

    *out = NULL;
    HTH_TRY(check_opts(opts));
    s = hth_new(struct hth_server);
    s->env = env;
    s->rpc = rpc;
    s->opts = *opts;
    s->refs = 1;
    s->checkpoint_dir = opts->checkpoint_dir == NULL ? NULL : hth_strdup(opts->checkpoint_dir);
    s->opts.checkpoint_dir = s->checkpoint_dir;
    s->by_key = hth_map_new();
    s->peers = hth_map_new();
    s->cache = hth_cache_new(opts->result_bytes_max, kept_max(opts->result_bytes_max, rpc),
                             opts->result_age_us);
    s->kept = hth_kept_new(env, kept_max(opts->keep_bytes_max, rpc), opts->result_age_us);
    hth_heap_init(&s->aging, hth_srv_aging_less);
    s->age_timer = hth_timer_new(env, hth_srv_on_age, s);
    s->step_timer = hth_timer_new(env, hth_srv_on_step_timer, s);
    s->save_timer = hth_timer_new(env, hth_srv_on_save_timer, s);
    s->remove_timer = hth_timer_new(env, hth_srv_on_remove_timer, s);
    s->drain_timer = hth_timer_new(env, hth_srv_on_drained, s);
    add_metrics(s);
    hth_rpc_serve(rpc, HTH_METHOD_EXPERT_INFO, on_info, s);
    hth_rpc_serve(rpc, HTH_METHOD_EXPERT_FORWARD, on_forward, s);
    hth_rpc_serve(rpc, HTH_METHOD_EXPERT_BACKWARD, on_backward, s);
    hth_rpc_serve(rpc, HTH_METHOD_EXPERT_WEIGHTS, hth_srv_on_weights, s);
    if (s->checkpoint_dir != NULL)
        hth_timer_set(env, s->save_timer, opts->checkpoint_period_us);
    *out = s;
    return HTH_OK;
}

void hth_srv_unref(struct hth_server *s)
{
    struct srv_job *job;

    if (--s->refs > 0)
        return;
    for (uint32_t i = 0; i < s->devices; i++) {
        while ((job = s->device[i].free_jobs) != NULL) {
            s->device[i].free_jobs = job->next;
            hth_exec_free(job->ex);
            hth_free(job->segs);
            hth_free(job);
        }
        hth_heap_clear(&s->device[i].ripe);
    }
    for (uint32_t i = 0; i < s->experts_count; i++) {
        hth_expert_free(s->experts[i]->expert);
        hth_free(s->experts[i]->senders);
        hth_canary_free(s->experts[i]->canary);
        hth_free(s->experts[i]);
    }
    hth_free(s->experts);
    hth_heap_clear(&s->aging);
    hth_map_free(s->by_key);
    hth_map_free(s->peers);
    hth_free(s->callers);
    hth_free(s->checkpoint_dir);
    hth_free(s);
}

void hth_server_free(struct hth_server *server)
{
    struct hth_server *s = server;
    struct srv_request *next;

    if (s == NULL)
        return;
    s->dead = true;
    hth_rpc_serve(s->rpc, HTH_METHOD_EXPERT_INFO, NULL, NULL);
    hth_rpc_serve(s->rpc, HTH_METHOD_EXPERT_FORWARD, NULL, NULL);
    hth_rpc_serve(s->rpc, HTH_METHOD_EXPERT_BACKWARD, NULL, NULL);
    hth_rpc_serve(s->rpc, HTH_METHOD_EXPERT_WEIGHTS, NULL, NULL);
    hth_srv_give_drop(s);
    for (struct srv_request *r = s->requests; r != NULL; r = next) {
        next = r->next;
        hth_srv_request_drop(r, HTH_E_DRAINING, NULL);
    }
    hth_cache_free(s->cache);
    s->cache = NULL;
    hth_kept_free(s->kept);
    s->kept = NULL;
    hth_timer_free(s->env, s->age_timer);
    hth_timer_free(s->env, s->step_timer);
    hth_timer_free(s->env, s->save_timer);
    hth_timer_free(s->env, s->remove_timer);
    hth_timer_free(s->env, s->drain_timer);
    s->age_timer = s->step_timer = s->save_timer = s->remove_timer = s->drain_timer = NULL;
    hth_srv_unref(s);
}

static void init_pools(struct srv_expert *e)
{
    for (int backward = 0; backward < 2; backward++) {
        e->pool[backward].expert = e;
        e->pool[backward].backward = backward != 0;
    }
}

/* Finds or adds the device of that back end; NULL when there are too many. */
static struct srv_device *device_of(struct hth_server *s, const struct hth_backend *backend)
{
    for (uint32_t i = 0; i < s->devices; i++) {
        if (s->device[i].backend == backend)
            return &s->device[i];
    }
    if (s->devices == SRV_DEVICES_MAX)
        return NULL;
    int card = hth_backend_card(backend);
    s->device[s->devices].backend = backend;
    s->device[s->devices].lane = card < 0 ? HTH_LANE_COMPUTE : hth_lane_of_card((uint32_t)card);
    hth_heap_init(&s->device[s->devices].ripe, hth_srv_ripe_less);
    return &s->device[s->devices++];
}

enum hth_err hth_server_add(struct hth_server *server, const struct hth_expert_opts *opts)
{
    struct hth_server *s = server;
    uint8_t key[HTH_EXPERT_KEY_MAX];
    size_t len = hth_expert_key(opts->uid.name, opts->uid.ncoord, opts->uid.coord, key);
    const struct hth_expert_kind *kind;
    struct hth_expert *expert;
    struct srv_expert *e;

    if (hth_map_get(s->by_key, key, len) != NULL)
        return HTH_E_DUPLICATE;
    if (hth_srv_is_leaving(s, &opts->uid))
        return HTH_E_AGAIN;
    if (s->experts_count == HTH_SERVER_EXPERTS_MAX)
        return HTH_E_BUDGET;
    HTH_TRY(hth_expert_new(opts, &expert));
    if (device_of(s, opts->backend) == NULL) {
        hth_expert_free(expert);
        return HTH_E_BUDGET;
    }
    kind = hth_expert_kind_of(expert);
    e = hth_new(struct srv_expert);
    e->server = s;
    e->expert = expert;
    e->backend = opts->backend;
    e->device = device_of(s, opts->backend);
    e->passes_through = kind->passes_through;
    e->d = hth_expert_shape_of(expert)->d;
    e->block_rows = hth_expert_shape_of(expert)->block_rows;
    e->weights = kind->weights(hth_expert_shape_of(expert));
    e->flops_row[0] = kind->flops_per_row(hth_expert_shape_of(expert), false);
    e->flops_row[1] = kind->flops_per_row(hth_expert_shape_of(expert), true);
    if (s->opts.pause_us > 0 && e->weights > 0)
        e->canary = hth_canary_new(hth_expert_shape_of(expert));
    init_pools(e);
    if (s->experts_count == s->experts_capacity) {
        s->experts_capacity = s->experts_capacity == 0 ? 16 : s->experts_capacity * 2;
        s->experts = hth_realloc(s->experts, s->experts_capacity, sizeof(*s->experts));
    }
    s->experts[s->experts_count++] = e;
    hth_map_put(s->by_key, key, len, e);
    s->loading++;
    hth_srv_load_later(e);
    hth_srv_pump(s);
    return HTH_OK;
}

uint32_t hth_server_loading(const struct hth_server *server)
{
    return server->loading;
}

void hth_server_drain(struct hth_server *server, hth_fn *done, void *arg)
{
    server->draining = true;
    server->drained = done;
    server->drained_arg = arg;
    hth_timer_cancel(server->env, server->save_timer);
    for (uint32_t i = 0; i < server->experts_count; i++) {
        hth_srv_pool_update(&server->experts[i]->pool[0]);
        hth_srv_pool_update(&server->experts[i]->pool[1]);
    }
    hth_srv_pump(server);
    hth_srv_drain_check(server);
}

int64_t hth_server_queue_us(const struct hth_server *server)
{
    if (server->ema_cost <= 0)
        return 0;
    return (int64_t)(server->cost_waiting * server->ema_us / server->ema_cost /
                     hth_srv_width(server));
}

void hth_server_stats(const struct hth_server *server, struct hth_server_stats *out)
{
    *out = server->stats;
    out->experts = server->experts_count;
    out->bytes_kept = hth_kept_bytes(server->kept);
    out->callers_now = hth_srv_callers_now(server);
    out->unsaved_since_us = server->unsaved.since_us;
    for (uint32_t i = 0; i < server->experts_count; i++)
        out->experts_unsaved += server->experts[i]->dirty;
}

bool hth_server_expert_at(const struct hth_server *server, uint32_t i,
                          struct hth_server_expert *out)
{
    if (i >= server->experts_count)
        return false;
    *out = status_of(server->experts[i]);
    return true;
}

static struct srv_expert *find(const struct hth_server *s, const struct hth_uid *uid)
{
    uint8_t key[HTH_EXPERT_KEY_MAX];
    size_t len = hth_expert_key(uid->name, uid->ncoord, uid->coord, key);

    return hth_map_get(s->by_key, key, len);
}

void hth_server_returned(struct hth_server *server, const struct hth_uid *uid)
{
    struct srv_expert *e = find(server, uid);

    if (e != NULL)
        e->returned = true;
}

bool hth_server_expert_find(const struct hth_server *server, const struct hth_uid *uid,
                            struct hth_server_expert *out)
{
    const struct srv_expert *e = find(server, uid);

    if (e != NULL)
        *out = status_of(e);
    return e != NULL;
}
