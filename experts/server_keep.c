/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_keep.c: the work on experts besides requests: steps by row count and by age, weights drawn
 * or read at the start, checkpoints in a period and at the end, and the drain, which needs all of
 * them.
 */
#include "experts/server_int.h"

/* ---- steps --------------------------------------------------------------------------------- */

void hth_srv_step_due(struct srv_expert *e)
{
    struct hth_server *s = e->server;

    if (e->step_due || e->step_running)
        return;
    e->step_due = true;
    e->due_next = NULL;
    if (s->due_tail != NULL)
        s->due_tail->due_next = e;
    else
        s->due_head = e;
    s->due_tail = e;
    hth_srv_pool_update(&e->pool[0]);
    hth_srv_pool_update(&e->pool[1]);
}

struct srv_expert *hth_srv_step_take(struct hth_server *s, const struct srv_device *device)
{
    struct srv_expert *prev = NULL;

    for (struct srv_expert *e = s->due_head; e != NULL; prev = e, e = e->due_next) {
        if (e->device != device || e->readers > 0 || e->backward_running)
            continue;
        if (prev != NULL)
            prev->due_next = e->due_next;
        else
            s->due_head = e->due_next;
        if (s->due_tail == e)
            s->due_tail = prev;
        e->step_due = false;
        return e;
    }
    return NULL;
}

static void arm_step_timer(struct hth_server *s, int64_t delay_us)
{
    if (s->step_timer_armed)
        return;
    s->step_timer_armed = true;
    hth_timer_set(s->env, s->step_timer, delay_us);
}

void hth_srv_backward_done(struct srv_expert *e, uint32_t rows)
{
    struct hth_server *s = e->server;

    if (e->weights == 0 || rows == 0)
        return;
    if (e->pending_rows == 0)
        e->pending_since_us = hth_now_us(s->env);
    e->pending_rows += rows;
    if (e->pending_rows >= s->opts.step_rows)
        hth_srv_step_due(e);
    else
        arm_step_timer(s, s->opts.step_age_us);
}

/* The owner has this time to look at it, and to roll back. */
static void pause_steps(struct srv_expert *e)
{
    struct hth_server *s = e->server;

    e->paused_until_us = hth_now_us(s->env) + s->opts.pause_us;
    s->stats.pauses++;
    HTH_LOG(s->env, HTH_ERROR, HTH_SUB_EXPERT,
            "%s: its steps go against what its senders ask for: it takes none for %d minutes. If "
            "it has learnt wrongly, end this host and start it with --roll-back 10m or 1h",
            hth_expert_uid_text(e->expert), (int)(s->opts.pause_us / HTH_US_PER_S / 60));
}

void hth_srv_step_done(struct srv_expert *e, const struct srv_batch *b, enum hth_err err)
{
    struct hth_server *s = e->server;

    if (err == HTH_OK && b->drops) {
        /* Nothing changed. */
    } else if (err == HTH_OK) {
        if (b->jumped && !s->dead)
            pause_steps(e);
        e->steps++;
        e->dirty = true;
        s->stats.steps++;
        hth_metric_add(s->m_steps, 1);
    } else if (err == HTH_E_NOT_FINITE) {
        s->stats.steps_not_finite++;
        HTH_LOG(s->env, HTH_WARN, HTH_SUB_EXPERT,
                "%s: dropped a gradient that is not finite; the weights stay",
                hth_expert_uid_text(e->expert));
    } else if (!s->dead) {
        arm_step_timer(s,
                       s->opts.step_age_us); /* the step did not run: its gradients stay pending */
        return;
    }
    e->pending_rows = 0;
    if (e->senders != NULL)
        hth_senders_next_pool(e->senders);
}

/* Visits all experts of the host, once per step age. */
void hth_srv_on_step_timer(void *arg)
{
    struct hth_server *s = arg;
    int64_t now = hth_now_us(s->env), next = INT64_MAX;

    s->step_timer_armed = false;
    for (uint32_t i = 0; i < s->experts_count; i++) {
        struct srv_expert *e = s->experts[i];
        int64_t at = e->pending_since_us + s->opts.step_age_us;
        if (e->pending_rows == 0 || e->step_due || e->step_running)
            continue;
        if (at <= now)
            hth_srv_step_due(e);
        else
            next = HTH_MIN(next, at);
    }
    if (next != INT64_MAX)
        arm_step_timer(s, next - now);
    hth_srv_pump(s);
}

/* ---- weights ------------------------------------------------------------------------------- */

static void forget(struct srv_expert *e)
{
    const struct hth_uid *uid = hth_expert_uid(e->expert);
    uint8_t key[HTH_EXPERT_KEY_MAX];
    size_t len = hth_expert_key(uid->name, uid->ncoord, uid->coord, key);

    hth_map_del(e->server->by_key, key, len);
    for (int backward = 0; backward < 2; backward++) {
        struct srv_part *part;
        while ((part = e->pool[backward].head) != NULL) {
            hth_srv_pool_remove(&e->pool[backward], part);
            part->status = HTH_E_NO_SUCH_EXPERT;
            hth_srv_part_done(part);
        }
    }
}

struct srv_expert *hth_srv_load_next(struct hth_server *s, const struct srv_device *device)
{
    struct srv_expert *e = s->load_head;

    while (e != NULL && e->device != device)
        e = e->load_next;
    return e;
}

void hth_srv_load_take(struct hth_server *s, struct srv_expert *e)
{
    struct srv_expert *prev = NULL, *at = s->load_head;

    for (; at != e; at = at->load_next)
        prev = at;
    if (prev != NULL)
        prev->load_next = e->load_next;
    else
        s->load_head = e->load_next;
    if (s->load_tail == e)
        s->load_tail = prev;
}

void hth_srv_load_later(struct srv_expert *e)
{
    struct hth_server *s = e->server;

    e->load_next = NULL;
    if (s->load_tail != NULL)
        s->load_tail->load_next = e;
    else
        s->load_head = e;
    s->load_tail = e;
}

void hth_srv_load_done(struct srv_expert *e, enum hth_err err, bool restored)
{
    struct hth_server *s = e->server;

    s->loading--;
    if (s->dead)
        return;
    e->state = err == HTH_OK ? SRV_READY : SRV_FAILED;
    if (err != HTH_OK) {
        HTH_LOG(s->env, HTH_ERROR, HTH_SUB_EXPERT,
                "%s is not hosted: %s; its checkpoint file, if any, stays as it is",
                hth_expert_uid_text(e->expert), hth_err_text(err));
        forget(e);
    } else {
        e->ready_us = hth_now_us(s->env);
        e->steps = restored ? hth_expert_steps(e->expert) : 0;
        if (hth_expert_moments_renewed(e->expert))
            HTH_LOG(s->env, HTH_WARN, HTH_SUB_EXPERT,
                    "%s: reset the optimiser's moments: those of its checkpoint are larger than "
                    "clipped gradients can make them; the weights stay",
                    hth_expert_uid_text(e->expert));
        hth_srv_pool_update(&e->pool[0]);
        hth_srv_pool_update(&e->pool[1]);
    }
    if (s->opts.on_expert != NULL)
        s->opts.on_expert(s->opts.arg, hth_expert_uid(e->expert), err, restored);
}

/* ---- checkpoints --------------------------------------------------------------------------- */

static void save_next(struct hth_server *s, struct srv_device *device);

static void save_free(struct srv_save *save)
{
    struct hth_server *s = save->server;

    hth_blob_unref(save->blob);
    hth_free(save->path);
    hth_free(save);
    hth_srv_unref(s);
}

static void count_save(const struct srv_save *save, enum hth_err err)
{
    struct hth_server *s = save->server;
    bool failed = err != HTH_OK;

    s->unsaved_count += (uint32_t)failed - (uint32_t)save->expert->unsaved;
    save->expert->unsaved = failed;
    if (failed) {
        s->stats.checkpoints_failed++;
        hth_metric_add(s->m_write_failed, 1);
        hth_unsaved_failed(&s->unsaved, s->env, HTH_SUB_EXPERT, save->path, err);
        return;
    }
    if (s->stats.checkpoints_written++ == 0)
        HTH_LOG(s->env, HTH_INFO, HTH_SUB_EXPERT, "first checkpoint written: %s", save->path);
    s->stats.saved_us = hth_wall_us(s->env);
    hth_metric_add(s->m_written, 1);
    if (s->unsaved_count == 0)
        hth_unsaved_good(&s->unsaved, s->env, HTH_SUB_EXPERT);
}

static void save_end(struct srv_save *save, enum hth_err err)
{
    struct hth_server *s = save->server;

    save->expert->saving = false;
    if (err != HTH_OK)
        save->expert->dirty = true;
    if (!s->dead) {
        count_save(save, err);
        save_next(s, save->expert->device);
    }
    save_free(save);
}

static void write_run(struct hth_job *job)
{
    struct srv_save *save = HTH_CONTAINER(job, struct srv_save, job);

    save->err =
        hth_ring_write(save->server->env, save->path, save->blob, save->copy_us, save->disk_bytes);
}

static void write_done(struct hth_job *job, enum hth_err err)
{
    struct srv_save *save = HTH_CONTAINER(job, struct srv_save, job);

    save_end(save, err != HTH_OK ? err : save->err);
}

static void snapshot_run(struct hth_job *job)
{
    struct srv_save *save = HTH_CONTAINER(job, struct srv_save, job);

    save->err = hth_expert_snapshot(save->expert->expert, &save->blob);
}

static void snapshot_done(struct hth_job *job, enum hth_err err)
{
    struct srv_save *save = HTH_CONTAINER(job, struct srv_save, job);
    struct hth_server *s = save->server;

    save->expert->readers--;
    if (!s->dead)
        hth_srv_pump(s); /* a step may have waited for the snapshot */
    err = err != HTH_OK ? err : save->err;
    if (err == HTH_OK && hth_fault(s->env, "experts.checkpoint"))
        err = HTH_E_IO;
    if (err == HTH_OK && save->blob != NULL && !s->dead) {
        save->job = (struct hth_job){.lane = HTH_LANE_IO,
                                     .run = write_run,
                                     .done = write_done,
                                     .bytes_moved = (double)save->blob->size};
        err = hth_job_submit(s->env, &save->job);
        if (err == HTH_OK)
            return;
    }
    save_end(save, err);
}

/* A card's snapshot runs on the card's lane: a card that does not answer must not block the disk
 * lane. */
enum hth_lane hth_srv_snapshot_lane(const struct srv_expert *e)
{
    return e->device->lane == HTH_LANE_COMPUTE ? HTH_LANE_IO : e->device->lane;
}

static bool save_start(struct hth_server *s, struct srv_expert *e)
{
    struct srv_save *save;

    if (e->state != SRV_READY || !e->dirty || e->step_running)
        return false;
    save = hth_new(struct srv_save);
    save->server = s;
    save->expert = e;
    save->path = hth_expert_path(s->checkpoint_dir, e->expert);
    save->copy_us = hth_ring_due(&e->ring, hth_wall_us(s->env));
    save->disk_bytes =
        s->opts.disk_bytes_max > 0 ? HTH_MAX(s->opts.disk_bytes_max / s->experts_count, 1u) : 0;
    save->job = (struct hth_job){.lane = hth_srv_snapshot_lane(e),
                                 .run = snapshot_run,
                                 .done = snapshot_done,
                                 .bytes_moved = 24.0 * (double)e->weights};
    s->refs++;
    if (hth_job_submit(s->env, &save->job) != HTH_OK) {
        save_free(save);
        return false;
    }
    e->dirty = false;
    e->saving = true;
    e->readers++;
    return true;
}

static bool is_saving(const struct hth_server *s)
{
    bool any = false;

    for (uint32_t i = 0; i < s->devices; i++)
        any = any || s->device[i].saving;
    return any;
}

/* Saves the device's next changed expert. Devices save independently, so that a card that does not
 * answer blocks no other. Experts that fail or are busy are saved in the next round. */
static void save_next(struct hth_server *s, struct srv_device *device)
{
    while (device->save_index < s->experts_count) {
        struct srv_expert *e = s->experts[device->save_index++];
        if (e->device == device && save_start(s, e))
            return;
    }
    device->saving = false;
    if (s->draining)
        hth_srv_drain_check(s);
    else
        hth_timer_set(s->env, s->save_timer, s->opts.checkpoint_period_us);
}

/* Starts a round on each device that is not saving already. */
static void save_round(struct hth_server *s)
{
    bool begins[SRV_DEVICES_MAX];

    for (uint32_t i = 0; i < s->devices; i++) {
        begins[i] = !s->device[i].saving;
        s->device[i].saving = true; /* set before the first device can finish */
    }
    for (uint32_t i = 0; i < s->devices; i++) {
        if (!begins[i])
            continue;
        s->device[i].save_index = 0;
        save_next(s, &s->device[i]);
    }
}

void hth_srv_on_save_timer(void *arg)
{
    struct hth_server *s = arg;

    hth_srv_callers_look(s);
    if (s->devices > 0)
        save_round(s);
    else
        hth_timer_set(s->env, s->save_timer, s->opts.checkpoint_period_us);
}

/* ---- the end ------------------------------------------------------------------------------- */

void hth_srv_drain_check(struct hth_server *s)
{
    if (!s->draining || s->drain_done || s->requests_count > 0 || s->loading > 0 ||
        s->jobs_running > 0 || is_saving(s))
        return;
    for (uint32_t i = 0; i < s->experts_count; i++)
        if (s->experts[i]->pending_rows > 0)
            hth_srv_step_due(s->experts[i]);
    if (s->due_head != NULL) {
        hth_srv_pump(s);
        return;
    }
    if (!s->drain_saved && s->checkpoint_dir != NULL) {
        s->drain_saved = true;
        save_round(s);
        if (is_saving(s))
            return;
    }
    s->drain_done = true;
    hth_timer_set(s->env, s->drain_timer, 0);
}

void hth_srv_on_drained(void *arg)
{
    struct hth_server *s = arg;

    if (s->drained != NULL)
        s->drained(s->drained_arg);
}
