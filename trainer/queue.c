/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "trainer/queue.h"

#define QUEUE_RETRY_US (10 * HTH_US_PER_MS)

static void queue_next(void *arg);

void hth_queue_init(struct hth_queue *queue, struct hth_env *env, enum hth_lane lane)
{
    memset(queue, 0, sizeof(*queue));
    queue->env = env;
    queue->lane = lane;
}

static void work_run(struct hth_job *job)
{
    struct hth_work *work = HTH_CONTAINER(job, struct hth_work, job);

    work->ran = true;
    work->run(work);
}

static void work_done(struct hth_job *job, enum hth_err err)
{
    struct hth_work *work = HTH_CONTAINER(job, struct hth_work, job);
    struct hth_queue *queue = work->queue;

    queue->running = NULL;
    if (queue->closed) {
        queue->idle(queue->idle_arg);
        return;
    }
    work->done(work, err == HTH_OK ? work->err : err);
    /* The owner may have closed the queue in that callback. */
    if (!queue->closed)
        queue_next(queue);
}

static void queue_next(void *arg)
{
    struct hth_queue *queue = arg;
    struct hth_work *work = queue->first;

    if (queue->running != NULL || work == NULL)
        return;
    work->ran = false;
    work->err = HTH_OK;
    work->job.lane = queue->lane;
    work->job.run = work_run;
    work->job.done = work_done;
    if (hth_job_submit(queue->env, &work->job) != HTH_OK) {
        if (queue->retry == NULL)
            queue->retry = hth_timer_new(queue->env, queue_next, queue);
        hth_timer_set(queue->env, queue->retry, QUEUE_RETRY_US);
        return;
    }
    queue->running = work;
    queue->first = work->next;
    hth_timer_free(queue->env, queue->retry);
    queue->retry = NULL;
}

void hth_queue_push(struct hth_queue *queue, struct hth_work *work)
{
    struct hth_work **at = &queue->first;

    /* At most one job per flight waits, so that a walk is cheaper than a heap. */
    while (*at != NULL && (*at)->order <= work->order)
        at = &(*at)->next;
    work->queue = queue;
    work->next = *at;
    *at = work;
    queue_next(queue);
}

bool hth_queue_close(struct hth_queue *queue, hth_fn *idle, void *arg)
{
    queue->closed = true;
    queue->idle = idle;
    queue->idle_arg = arg;
    queue->first = NULL;
    hth_timer_free(queue->env, queue->retry);
    queue->retry = NULL;
    return queue->running != NULL;
}
