/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_job.c: pools, and the jobs that empty them.
 *
 * A pool that may run is *ripe* (old enough, or enough rows) or *aging* (waits for more rows). Both
 * are heaps: the ripe pools by the start tag of their first part (server_fair.c), the aging ones by
 * age. When a worker of a device is free the pump builds one job for it: an expert's weights first,
 * or due steps and then the ripe pools in order, until the job holds enough work.
 */
#include "experts/server_int.h"

/* Operations in the time of one weight's step: Adam moves 28 bytes a weight at about 40 GB/s. */
#define COST_PER_WEIGHT_STEP 70.0
/* Decay of the sums whose ratio is the measured speed: about ten jobs decide. */
#define EMA_KEEP 0.9
/* A backward batch may be this many times larger than a forward's: one batch also means one
 * step. */
#define BACKWARD_PAYS 4
/* Delay of a retry when the lane's queue is full of other modules' jobs. */
#define LANE_RETRY_US      (10 * HTH_US_PER_MS)
#define OUTLYING_REPEAT_US (3600 * HTH_US_PER_S)

/* ---- pools --------------------------------------------------------------------------------- */

bool hth_srv_ripe_less(const struct hth_heap_node *a, const struct hth_heap_node *b)
{
    const struct srv_pool *pa = HTH_CONTAINER(a, const struct srv_pool, node);
    const struct srv_pool *pb = HTH_CONTAINER(b, const struct srv_pool, node);

    if (pa->head->start_tag != pb->head->start_tag)
        return pa->head->start_tag < pb->head->start_tag;
    return pa->head->seq < pb->head->seq;
}

bool hth_srv_aging_less(const struct hth_heap_node *a, const struct hth_heap_node *b)
{
    const struct srv_pool *pa = HTH_CONTAINER(a, const struct srv_pool, node);
    const struct srv_pool *pb = HTH_CONTAINER(b, const struct srv_pool, node);

    if (pa->since_us != pb->since_us)
        return pa->since_us < pb->since_us;
    return pa->head->seq < pb->head->seq;
}

/* The heap where a pool belongs; NULL when it may not run. */
static struct hth_heap *heap_of(const struct srv_pool *pool)
{
    const struct srv_expert *e = pool->expert;
    struct hth_server *s = e->server;
    const struct hth_server_opts *o = &s->opts;

    if (s->dead || pool->head == NULL || e->state != SRV_READY || e->step_running || e->step_due ||
        (pool->backward && e->backward_running))
        return NULL;
    if (o->batch_age_us > 0 && pool->rows < o->batch_rows_min && !s->draining &&
        pool->since_us + o->batch_age_us > hth_now_us(s->env))
        return &s->aging;
    return &pool->expert->device->ripe;
}

static int64_t ripe_at_us(const struct srv_pool *pool)
{
    return pool->since_us + pool->expert->server->opts.batch_age_us;
}

static void arm_age_timer(struct hth_server *s)
{
    struct hth_heap_node *top = hth_heap_top(&s->aging);

    if (top == NULL)
        hth_timer_cancel(s->env, s->age_timer);
    else
        hth_timer_set(s->env, s->age_timer,
                      ripe_at_us(HTH_CONTAINER(top, struct srv_pool, node)) - hth_now_us(s->env));
}

static void pool_unheap(struct srv_pool *pool)
{
    if (pool->heap != NULL)
        hth_heap_remove(pool->heap, &pool->node);
    pool->heap = NULL;
}

void hth_srv_pool_update(struct srv_pool *pool)
{
    struct hth_server *s = pool->expert->server;

    pool_unheap(pool);
    pool->heap = heap_of(pool);
    if (pool->heap == NULL)
        return;
    hth_heap_push(pool->heap, &pool->node);
    if (pool->heap == &s->aging)
        arm_age_timer(s);
}

static void link_by_tag(struct srv_pool *pool, struct srv_part *part)
{
    struct srv_part *before = pool->tail;

    while (before != NULL && before->start_tag > part->start_tag)
        before = before->prev;
    part->prev = before;
    part->next = before != NULL ? before->next : pool->head;
    *(part->prev != NULL ? &part->prev->next : &pool->head) = part;
    *(part->next != NULL ? &part->next->prev : &pool->tail) = part;
}

static void unlink_part(struct srv_pool *pool, struct srv_part *part)
{
    *(part->prev != NULL ? &part->prev->next : &pool->head) = part->next;
    *(part->next != NULL ? &part->next->prev : &pool->tail) = part->prev;
    part->prev = part->next = NULL;
}

/* The heaps order pools by their heads, so a pool leaves its heap before its head changes. */
void hth_srv_pool_push(struct srv_pool *pool, struct srv_part *part)
{
    pool_unheap(pool);
    if (pool->head == NULL)
        pool->since_us = hth_now_us(pool->expert->server->env);
    link_by_tag(pool, part);
    part->queued = true;
    pool->rows += part->rows;
    pool->expert->server->stats.parts_waiting++;
    hth_srv_pool_update(pool);
}

void hth_srv_pool_remove(struct srv_pool *pool, struct srv_part *part)
{
    pool_unheap(pool);
    unlink_part(pool, part);
    part->queued = false;
    pool->rows -= part->rows - part->rows_started;
    pool->expert->server->stats.parts_waiting--;
    hth_srv_pool_update(pool);
}

static void expert_update(struct srv_expert *e)
{
    hth_srv_pool_update(&e->pool[0]);
    hth_srv_pool_update(&e->pool[1]);
}

void hth_srv_on_age(void *arg)
{
    struct hth_server *s = arg;
    struct hth_heap_node *top;

    while ((top = hth_heap_top(&s->aging)) != NULL &&
           ripe_at_us(HTH_CONTAINER(top, struct srv_pool, node)) <= hth_now_us(s->env))
        hth_srv_pool_update(HTH_CONTAINER(top, struct srv_pool, node));
    arm_age_timer(s);
    hth_srv_pump(s);
}

/* ---- building a job ------------------------------------------------------------------------ */

static struct srv_job *job_new(struct hth_server *s, struct srv_device *device)
{
    struct srv_job *job = device->free_jobs;

    if (job != NULL)
        device->free_jobs = job->next;
    else
        job = hth_new(struct srv_job);
    job->server = s;
    job->device = device;
    job->batches = job->segs_count = 0;
    job->rows = 0;
    job->cost = 0;
    job->job = (struct hth_job){.lane = device->lane, .run = hth_srv_run};
    return job;
}

static void job_recycle(struct srv_job *job)
{
    job->next = job->device->free_jobs;
    job->device->free_jobs = job;
}

static struct srv_batch *job_batch(struct srv_job *job, enum srv_batch_kind kind,
                                   struct srv_expert *e)
{
    struct srv_batch *b = &job->batch[job->batches++];

    *b = (struct srv_batch){.kind = kind, .expert = e, .seg0 = job->segs_count};
    return b;
}

/* Decides how much of the expert's pooled gradient a backward's part may be. */
static void bound_sender(struct srv_segment *seg)
{
    struct srv_part *part = seg->part;
    struct srv_expert *e = part->expert;

    seg->taken = seg->rows;
    if (part->request->backward && e->server->opts.bound_senders && e->weights > 0) {
        if (e->senders == NULL)
            e->senders = hth_new(struct hth_senders);
        seg->taken = hth_senders_take(e->senders, part->request->sender, seg->rows, &seg->norm_max);
    }
    seg->counted = seg->taken; /* jobs of a world of ghosts do not run */
}

static void add_segment(struct srv_job *job, struct srv_part *part, uint32_t rows)
{
    if (job->segs_count == job->segs_capacity) {
        job->segs_capacity = job->segs_capacity == 0 ? 8 : job->segs_capacity * 2;
        job->segs = hth_realloc(job->segs, job->segs_capacity, sizeof(*job->segs));
    }
    job->segs[job->segs_count++] =
        (struct srv_segment){.part = part, .row0 = part->row0 + part->rows_started, .rows = rows};
    bound_sender(&job->segs[job->segs_count - 1]);
    part->rows_started += rows;
}

/* Starts work on a part. The reply's memory is allocated only here, so that a waiting request costs
 * little. */
static enum hth_err begin_part(struct srv_part *part)
{
    struct srv_request *r = part->request;
    struct hth_env *env = r->server->env;
    double queue_ms = (double)(hth_now_us(env) - r->arrived_us) / 1e3;
    double *mean = &r->server->stats.queue_ms_mean;

    *mean += 0.05 * (queue_ms - *mean);
    hth_metric_observe(r->server->m_queue, queue_ms / 1e3);
    if (part->rows_started == 0)
        r->parts_started++;
    if (r->out != NULL)
        return HTH_OK;
    if (hth_fault(env, "experts.memory"))
        return HTH_E_NO_MEMORY;
    return hth_env_blob_new(env, r->rows * hth_rows_bytes(r->dtype, r->d),
                            hth_rpc_budget(r->server->rpc), &r->out);
}

/* The rows that one batch of this pool may take. A forward is cut, so that other workers get a
 * share even if they become free a moment later; a backward is divided among workers inside its
 * job. */
static uint64_t rows_wanted(const struct srv_pool *pool)
{
    const struct srv_expert *e = pool->expert;
    struct hth_server *s = e->server;
    uint64_t rows = HTH_MIN(pool->rows, s->opts.batch_rows_max);
    uint32_t width = hth_srv_width_of(s, e->device);
    double rows_enough = s->opts.split_flops / HTH_MAX(e->flops_row[0], 1.0);
    uint64_t enough = (uint64_t)HTH_MIN(rows_enough, 1e9) + 1;

    if (width > 1 && rows > enough && !pool->backward)
        rows = HTH_MAX((rows + width - 1) / width, enough);
    /* Each part of a batch waits for all of it: with several peers no batch is larger than pays
     * off. */
    if (hth_srv_shared(s))
        rows = HTH_MIN(rows, pool->backward ? BACKWARD_PAYS * enough : enough);
    return (rows + e->block_rows - 1) / e->block_rows * e->block_rows;
}

/* Moves the rest of the pool's first part behind the rows that were taken: its start tag grows by
 * their work. */
static void put_back(struct srv_pool *pool, struct srv_part *part, uint32_t rows)
{
    pool_unheap(pool);
    unlink_part(pool, part);
    part->start_tag +=
        hth_srv_tag_span(part->request, part->expert->flops_row[pool->backward] * rows);
    link_by_tag(pool, part);
    pool->rows -= rows;
}

static void take_batch(struct srv_job *job, struct srv_pool *pool)
{
    struct srv_expert *e = pool->expert;
    struct srv_batch *b = job_batch(job, pool->backward ? SRV_BACKWARD : SRV_FORWARD, e);
    uint64_t left = rows_wanted(pool);

    b->rows_in_microbatch = pool->head->request->rows_in_microbatch;
    pool_unheap(pool);
    e->server->virtual_time = HTH_MAX(e->server->virtual_time, pool->head->start_tag);
    while (pool->head != NULL && left > 0 && b->segs < HTH_SERVER_BATCH_PARTS_MAX) {
        struct srv_part *part = pool->head;
        uint32_t rows = part->rows - part->rows_started;
        enum hth_err err;
        if (pool->backward && b->segs > 0 &&
            (rows > left || part->request->rows_in_microbatch != b->rows_in_microbatch))
            break;
        err = begin_part(part);
        if (!pool->backward && rows > left)
            rows = (uint32_t)left;
        left -= HTH_MIN(left, rows);
        if (err != HTH_OK) {
            hth_srv_pool_remove(pool, part);
            part->status = err;
            hth_srv_part_done(part);
            continue;
        }
        if (rows == part->rows - part->rows_started)
            hth_srv_pool_remove(pool, part);
        else
            put_back(pool, part, rows);
        add_segment(job, part, rows);
        b->segs++;
        b->rows += rows;
    }
    if (b->segs == 0) {
        job->batches--;
        hth_srv_pool_update(pool);
        return;
    }
    if (!pool->backward)
        e->readers++;
    else
        e->backward_running = true;
    job->rows += b->rows;
    job->cost += e->flops_row[pool->backward] * b->rows;
    hth_job_add(&job->job, pool->backward ? HTH_WORK_BACKWARD : HTH_WORK_FORWARD,
                e->flops_row[pool->backward] * b->rows, b->rows);
    job->job.bytes_moved +=
        4.0 * ((double)e->weights * (pool->backward ? 3 : 1) + 3.0 * (double)b->rows * e->d);
    e->server->stats.batches++;
    expert_update(e);
}

static void take_step(struct srv_job *job, struct srv_expert *e)
{
    struct srv_batch *b = job_batch(job, SRV_STEP, e);

    b->drops = e->paused_until_us > hth_now_us(e->server->env);
    e->step_running = true;
    job->cost += COST_PER_WEIGHT_STEP * (double)e->weights;
    hth_job_add(&job->job, HTH_WORK_STEP, 12.0 * (double)e->weights, 1);
    job->job.bytes_moved += 28.0 * (double)e->weights;
}

/* True if the job is so long that the loop's overhead for it does not matter. */
static bool is_enough(const struct hth_server *s, double cost)
{
    return cost > s->opts.job_flops_min &&
           (s->ema_cost <= 0 || cost * s->ema_us >= (double)s->opts.job_us_min * s->ema_cost);
}

static bool fill_job(struct hth_server *s, struct srv_job *job)
{
    struct srv_expert *e = hth_srv_load_next(s, job->device);
    struct hth_heap_node *top;

    if (e != NULL) {
        hth_srv_load_take(s, e);
        job_batch(job, SRV_LOAD, e);
        job->job.bytes_moved += 16.0 * (double)e->weights;
        return true;
    }
    while (job->batches < HTH_SERVER_JOB_BATCHES_MAX && !is_enough(s, job->cost)) {
        e = hth_srv_step_take(s, job->device);
        if (e != NULL) {
            take_step(job, e);
            continue;
        }
        top = hth_heap_top(&job->device->ripe);
        if (top == NULL)
            break;
        take_batch(job, HTH_CONTAINER(top, struct srv_pool, node));
    }
    return job->batches > 0;
}

uint32_t hth_srv_width_of(const struct hth_server *s, const struct srv_device *device)
{
    uint32_t width = hth_lane_width(s->env, device->lane);

    return HTH_MAX(1u, HTH_MIN(width, hth_backend_jobs(device->backend)));
}

/* Several back ends may share a lane; its workers count once. */
uint32_t hth_srv_width(const struct hth_server *s)
{
    uint32_t width = 0;

    for (uint32_t i = 0; i < s->devices; i++) {
        uint32_t first = 0;
        while (s->device[first].lane != s->device[i].lane)
            first++;
        width += first == i ? hth_srv_width_of(s, &s->device[i]) : 0;
    }
    return HTH_MAX(1u, width);
}

static bool is_busy(const struct hth_server *s, const struct srv_device *device)
{
    uint32_t running = 0;

    for (uint32_t i = 0; i < s->devices; i++)
        running += s->device[i].lane == device->lane ? s->device[i].jobs_running : 0;
    return running >= hth_srv_width_of(s, device);
}

/* Builds a job for the next device, in rotation, that has work and an idle worker; NULL when there
 * is none. */
static struct srv_job *next_job(struct hth_server *s)
{
    for (uint32_t i = 0; i < s->devices; i++) {
        struct srv_device *device = &s->device[s->device_next];
        struct srv_job *job;
        s->device_next = (s->device_next + 1) % s->devices;
        if (is_busy(s, device))
            continue;
        job = job_new(s, device);
        if (fill_job(s, job))
            return job;
        job_recycle(job);
    }
    return NULL;
}

static void job_done(struct hth_job *base, enum hth_err err);

void hth_srv_pump(struct hth_server *s)
{
    enum hth_err err;

    while (!s->dead) {
        struct srv_job *job = next_job(s);
        if (job == NULL)
            return;
        job->device->jobs_running++;
        job->job.done = job_done;
        job->started_us = hth_now_us(s->env);
        s->jobs_running++;
        s->refs++;
        s->stats.jobs++;
        err =
            hth_fault(s->env, "experts.job") ? HTH_E_QUEUE_FULL : hth_job_submit(s->env, &job->job);
        if (err != HTH_OK) {
            hth_timer_set(s->env, s->age_timer, LANE_RETRY_US);
            job_done(&job->job, err);
            return;
        }
    }
}

/* ---- the end of a job ---------------------------------------------------------------------- */

/* Reports a backward's part as applied. A backward that was dropped after it began has no entry. */
static void tell_applied(const struct srv_part *part)
{
    const struct srv_request *r = part->request;
    const struct hth_server_opts *o = &r->server->opts;

    if (o->on_applied != NULL && r->entry != NULL)
        o->on_applied(o->arg, r->entry->key, sizeof(r->entry->key), (uint32_t)(part - r->parts));
}

/* Says so once an hour: an owner may want to revoke that peer's invite. */
static void say_outlying(struct srv_expert *e, const struct srv_segment *seg)
{
    struct hth_server *s = e->server;
    int64_t now = hth_now_us(s->env);
    char text[HTH_PEER_SHORT_LEN];

    const struct hth_rpc_request *req = seg->part->request->req;

    if ((s->stats.parts_outlying++ > 0 && now - s->outlying_said_us < OUTLYING_REPEAT_US) ||
        req == NULL)
        return;
    s->outlying_said_us = now;
    HTH_LOG(s->env, HTH_WARN, HTH_SUB_EXPERT,
            "%s: gradients of trainer %s (invite %llu) are %.3g times the most that is usual here: "
            "they are answered, and weigh nothing",
            hth_expert_uid_text(e->expert), hth_peer_id_short(hth_rpc_peer(req), text),
            (unsigned long long)hth_rpc_serial(req), seg->norm / seg->norm_max);
}

static void tell_senders(struct srv_expert *e, const struct srv_segment *seg, enum hth_err status)
{
    struct hth_sender_id id = seg->part->request->sender;

    if (status != HTH_OK) {
        hth_senders_give_back(e->senders, id, seg->taken);
        return;
    }
    hth_senders_saw(e->senders, id, seg->norm, seg->norm_max);
    if (seg->norm_max <= 0 || seg->norm <= HTH_SENDERS_OUTLYING * seg->norm_max)
        return;
    hth_senders_give_back(e->senders, id, seg->taken);
    seg->part->outlying = true;
    say_outlying(e, seg);
}

static void segment_done(struct srv_batch *b, struct srv_segment *seg, enum hth_err err)
{
    struct hth_server *s = b->expert->server;
    struct srv_part *part = seg->part;
    enum hth_err status = err != HTH_OK ? err : seg->status;

    if (b->kind == SRV_BACKWARD && b->expert->senders != NULL)
        tell_senders(b->expert, seg, status);
    if (status != HTH_OK) {
        part->status = status;
    } else if (b->kind == SRV_FORWARD) {
        s->stats.rows_forward += seg->rows;
        b->expert->rows_forward += seg->rows;
    } else {
        s->stats.rows_backward += seg->rows;
        b->expert->rows_backward += seg->rows;
        tell_applied(part);
        if (!s->dead)
            hth_srv_backward_done(b->expert, seg->counted);
    }
    part->rows_done += seg->rows;
    if (part->rows_done == part->rows)
        hth_srv_part_done(part);
}

static void batch_done(struct srv_job *job, struct srv_batch *b, enum hth_err err)
{
    struct srv_expert *e = b->expert;

    switch (b->kind) {
    case SRV_LOAD:
        if (err == HTH_E_QUEUE_FULL && !e->server->dead) {
            hth_srv_load_later(e); /* the lane was full: the pump retries */
            return;
        }
        hth_srv_load_done(e, err != HTH_OK ? err : b->err, b->restored);
        return;
    case SRV_STEP:
        e->step_running = false;
        hth_srv_step_done(e, b, err != HTH_OK ? err : b->err);
        break;
    case SRV_FORWARD:
        e->readers--;
        break;
    case SRV_BACKWARD:
        e->backward_running = false;
        break;
    }
    for (uint32_t i = 0; i < b->segs; i++)
        segment_done(b, &job->segs[b->seg0 + i], err);
    expert_update(e);
}

static void measure(struct hth_server *s, const struct srv_job *job)
{
    double us = (double)(hth_now_us(s->env) - job->started_us);

    if (job->rows == 0)
        return;
    s->ema_us = s->ema_us * EMA_KEEP + us;
    s->ema_cost = s->ema_cost * EMA_KEEP + job->cost;
    s->ema_work_us = s->ema_work_us * EMA_KEEP + us;
    s->ema_rows = s->ema_rows * EMA_KEEP + (double)job->rows;
    s->stats.us_per_row = s->ema_work_us / s->ema_rows;
    hth_metric_add(s->m_rows, (int64_t)job->rows);
}

static void job_done(struct hth_job *base, enum hth_err err)
{
    struct srv_job *job = HTH_CONTAINER(base, struct srv_job, job);
    struct hth_server *s = job->server;

    s->jobs_running--;
    job->device->jobs_running--;
    if (err == HTH_OK)
        measure(s, job);
    for (uint32_t i = 0; i < job->batches; i++)
        batch_done(job, &job->batch[i], err);
    job_recycle(job);
    if (!s->dead && err == HTH_OK) {
        hth_srv_pump(s);
        hth_srv_drain_check(s);
    }
    hth_srv_unref(s);
}
