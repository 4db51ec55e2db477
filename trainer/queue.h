/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.h (internal): jobs that run one after the other.
 *
 * Jobs that touch the trunk's weights must not overlap, nor must two reads of one data stream. A
 * queue submits one job at a time to its lane: the one with the lowest `order`, and among equals
 * the first pushed. The order is the number of the flight, so that the oldest flight is served
 * first and flights that began together spread out over the stages. Served first come, first
 * served, they would stay in step, and trunk and experts would wait for each other in rotation.
 * When the lane is full, the queue retries after QUEUE_RETRY_US. The owner embeds struct hth_work.
 * In `done`, `ran` says whether `run` was executed: an environment with ghost payloads charges jobs
 * without running them.
 *
 * Freeing: hth_queue_close drops waiting jobs (their done is not called) and returns whether the
 * environment still has a job. If so, it calls `idle` when that job has ended, and the owner keeps
 * all memory until then. Loop thread.
 */
#ifndef HTH_TRAINER_QUEUE_H
#define HTH_TRAINER_QUEUE_H

#include "core/env.h"

struct hth_work {
    struct hth_job job; /* flops and bytes_moved are set by the owner */
    uint64_t order;
    void (*run)(struct hth_work *work); /* may leave its error in `err`, for `done` */
    void (*done)(struct hth_work *work, enum hth_err err); /* not called after a close */
    bool ran;
    enum hth_err err;
    /* private */
    struct hth_queue *queue;
    struct hth_work *next;
};

struct hth_queue {
    struct hth_env *env;
    enum hth_lane lane;
    struct hth_work *first; /* waiting, by order */
    struct hth_work *running;
    struct hth_timer *retry; /* NULL: nothing waits for a place in the lane */
    bool closed;
    hth_fn *idle;
    void *idle_arg;
};

/* Any thread. */
void hth_queue_init(struct hth_queue *queue, struct hth_env *env, enum hth_lane lane);
void hth_queue_push(struct hth_queue *queue, struct hth_work *work);
/* True: a job runs, and idle(arg) will be called. False: nothing runs, idle is not called. */
bool hth_queue_close(struct hth_queue *queue, hth_fn *idle, void *arg);

#endif
