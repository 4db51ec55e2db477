/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.c: processors. A lane starts its jobs in the order of submission on the first free worker and
 * charges the device's time for them. In the real world `run` happens somewhere between submission
 * and done, beside the loop; here it happens at the first or at the last instant of that interval,
 * by the seed, so code that touches memory lent to a job shows different results. A job of a card
 * costs as much as on the node's processor.
 */
#include "sim/sim_int.h"

#include "core/limits.h"
#include "sim/profile.h"

static void start_jobs(struct hth_node *node, enum hth_lane lane);

static uint32_t width_of(const struct hth_node *node, enum hth_lane lane)
{
    if (lane >= HTH_LANE_CARD0)
        return HTH_CARD_WORKERS;
    return lane == HTH_LANE_IO ? 1 : HTH_MAX(node->device.compute_workers, 1u);
}

uint32_t hth_sim_lane_width(struct hth_env *env, enum hth_lane lane)
{
    return width_of(sim_node_of(env), lane);
}

static bool is_known(const struct hth_job *job)
{
    for (int k = 0; k < HTH_WORK_KINDS; k++)
        if (job->work[k].batches > 0)
            return true;
    return false;
}

/* Seconds of a job whose kinds of work the profile has. A measured time includes the bytes that the
 * work moves; the job's other operations run at flops_per_s. */
static double known_s(const struct hth_device *d, const struct hth_job *job)
{
    double seconds = 0, flops = job->flops;
    for (int k = 0; k < HTH_WORK_KINDS; k++) {
        seconds += hth_profile_s(d->profile, (enum hth_work_kind)k, &job->work[k]);
        flops -= job->work[k].flops;
    }
    if (d->profile_slow > 0)
        seconds *= d->profile_slow;
    return seconds + (d->flops_per_s > 0 && flops > 0 ? flops / d->flops_per_s : 0);
}

static int64_t cost_us(const struct hth_node *node, const struct hth_job *job)
{
    const struct hth_device *d = &node->device;
    double seconds = 0.0;
    int64_t fixed_us;
    if (job->lane == HTH_LANE_IO) {
        fixed_us = d->disk_latency_us;
        if (d->disk_bytes_per_s > 0.0)
            seconds = job->bytes_moved / d->disk_bytes_per_s;
    } else if (d->profile != NULL && is_known(job)) {
        fixed_us = d->job_overhead_us;
        seconds = known_s(d, job);
    } else {
        fixed_us = d->job_overhead_us;
        double flops_s = d->flops_per_s > 0.0 ? job->flops / d->flops_per_s : 0.0;
        double bytes_s = d->bytes_per_s > 0.0 ? job->bytes_moved / d->bytes_per_s : 0.0;
        seconds = HTH_MAX(flops_s, bytes_s);
    }
    double us = seconds * 1e6 + 0.5;
    return fixed_us + (us < 1e15 ? (int64_t)us : INT64_C(1000000000000000));
}

/* Make the workers at the first job, and again when the device has changed and all are idle. */
static void hire_workers(struct hth_node *node, enum hth_lane which)
{
    struct sim_lane *lane = &node->lanes[which];
    uint32_t width = width_of(node, which);
    if (lane->width == width)
        return;
    for (uint32_t i = 0; i < lane->width; i++) {
        if (lane->workers[i].job != NULL)
            return;
    }
    hth_free(lane->workers);
    lane->width = width;
    lane->workers = hth_new_array(struct sim_worker, width);
    for (uint32_t i = 0; i < width; i++) {
        sim_event_init(&lane->workers[i].event, SIM_JOB, node);
        lane->workers[i].lane = which;
    }
}

enum hth_err hth_sim_job_submit(struct hth_env *env, struct hth_job *job)
{
    struct hth_node *node = sim_node_of(env);
    struct sim_lane *lane = &node->lanes[job->lane];
    if (!node->live)
        return HTH_E_CANCELED;
    if (lane->waiting >= HTH_LANE_JOBS_MAX)
        return HTH_E_QUEUE_FULL;
    hire_workers(node, job->lane);
    job->next = NULL;
    job->env = env;
    if (lane->tail != NULL)
        lane->tail->next = job;
    else
        lane->head = job;
    lane->tail = job;
    lane->waiting++;
    start_jobs(node, job->lane);
    return HTH_OK;
}

static void start_jobs(struct hth_node *node, enum hth_lane which)
{
    struct hth_world *w = node->world;
    struct sim_lane *lane = &node->lanes[which];
    for (uint32_t i = 0; i < lane->width && lane->head != NULL; i++) {
        struct sim_worker *worker = &lane->workers[i];
        if (worker->job != NULL)
            continue;
        struct hth_job *job = lane->head;
        lane->head = job->next;
        if (lane->head == NULL)
            lane->tail = NULL;
        lane->waiting--;
        worker->job = job;
        worker->started = false;
        worker->run_early = !w->opts.ghost && hth_rng_u64(&w->job_rng) >> 63 != 0;
        hth_sim_schedule(w, &worker->event,
                         worker->run_early ? w->now_us : w->now_us + cost_us(node, job));
    }
}

void hth_sim_job_event(struct sim_worker *worker)
{
    struct hth_job *job = worker->job;
    struct hth_node *node = worker->event.node;
    struct hth_world *w = node->world;
    if (worker->run_early && !worker->started) {
        worker->started = true;
        hth_sim_schedule(w, &worker->event, w->now_us + cost_us(node, job));
        job->run(job);
        return;
    }
    hth_sim_trace(w, node, SIM_JOB, (uint64_t)job->lane);
    if (!worker->run_early && !w->opts.ghost)
        job->run(job);
    w->stats.jobs_done++;
    worker->job = NULL;
    start_jobs(node, worker->lane);
    job->done(job, HTH_OK);
}

struct hth_job *hth_sim_jobs_take(struct hth_node *node)
{
    struct hth_job *first = NULL;
    struct hth_job **end = &first;
    for (uint32_t which = 0; which < HTH_LANES_MAX; which++) {
        struct sim_lane *lane = &node->lanes[which];
        for (uint32_t i = 0; i < lane->width; i++) {
            struct sim_worker *worker = &lane->workers[i];
            if (worker->job == NULL)
                continue;
            hth_sim_unschedule(node->world, &worker->event);
            *end = worker->job;
            worker->job = NULL;
            (*end)->next = NULL;
            end = &(*end)->next;
        }
        *end = lane->head;
        while (*end != NULL)
            end = &(*end)->next;
        lane->head = lane->tail = NULL;
        lane->waiting = 0;
    }
    return first;
}

uint64_t hth_sim_jobs_count(const struct hth_node *node)
{
    uint64_t count = 0;
    for (uint32_t which = 0; which < HTH_LANES_MAX; which++) {
        const struct sim_lane *lane = &node->lanes[which];
        count += lane->waiting;
        for (uint32_t i = 0; i < lane->width; i++)
            count += lane->workers[i].job != NULL;
    }
    return count;
}

void hth_node_set_device(struct hth_node *node, const struct hth_device *device)
{
    node->device = *device;
}
