/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lanes.c: worker threads.
 *
 * A lane is a bounded queue and its threads. Jobs start in the order of submission; a worker
 * without a job helps running jobs of its lane (team.c). A card's lane gets its threads with its
 * first job. A finished job goes to the environment's inbox; one write to an eventfd wakes the loop
 * for all jobs that finished meanwhile. Workers block every signal, so that handlers run on the
 * loop thread only.
 */
#define _GNU_SOURCE
#include "net/net_int.h"

#include "core/limits.h"
#include "core/mem.h"

#include <signal.h>
#include <stdio.h>

/* Atomic, because helpers read it without the lock. */
static void count_waiting(struct hth_net_lane *lane, uint32_t waiting)
{
    __atomic_store_n(&lane->waiting, waiting, __ATOMIC_RELAXED);
}

static void *worker(void *arg)
{
    struct hth_net_lane *lane = arg;
    pthread_mutex_lock(&lane->lock);
    for (;;) {
        struct hth_job *job = lane->head;
        if (job == NULL) {
            if (hth_net_lane_help(lane))
                continue;
            if (lane->ending)
                break;
            hth_net_lane_rest(lane);
            continue;
        }
        lane->head = job->next;
        if (lane->head == NULL)
            lane->tail = NULL;
        count_waiting(lane, lane->waiting - 1);
        lane->running++;
        pthread_mutex_unlock(&lane->lock);
        job->run(job);
        hth_net_job_finished(lane->net, job);
        pthread_mutex_lock(&lane->lock);
        lane->running--;
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

/* As `top` and debuggers show them. */
static void name_worker(pthread_t thread, enum hth_lane lane, uint32_t i)
{
    char name[16];
    if (lane >= HTH_LANE_CARD0)
        snprintf(name, sizeof(name), "hth-card%u-%u",
                 ((unsigned)lane - (unsigned)HTH_LANE_CARD0) % 100, (unsigned)(i % 1000));
    else
        snprintf(name, sizeof(name), "hth-%s-%u", lane == HTH_LANE_IO ? "io" : "cpu",
                 (unsigned)(i % 1000));
    pthread_setname_np(thread, name);
}

enum hth_err hth_net_lane_start(struct hth_net *net, enum hth_lane index, uint32_t threads)
{
    struct hth_net_lane *lane = &net->lane[index];
    sigset_t all, old;
    enum hth_err err = HTH_OK;

    lane->net = net;
    lane->threads = hth_new_array(pthread_t, threads);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    for (uint32_t i = 0; i < threads && err == HTH_OK; i++) {
        if (pthread_create(&lane->threads[i], NULL, worker, lane) != 0) {
            err = HTH_E_IO;
            break;
        }
        lane->thread_count++;
        name_worker(lane->threads[i], index, i);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (lane->thread_count == 0) {
        hth_free(lane->threads);
        lane->threads = NULL;
    }
    return err;
}

void hth_net_lane_end(struct hth_net_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    struct hth_job *waiting = lane->head;
    lane->head = lane->tail = NULL;
    count_waiting(lane, 0);
    lane->ending = true;
    pthread_cond_broadcast(&lane->wake);
    pthread_mutex_unlock(&lane->lock);

    while (waiting != NULL) {
        struct hth_job *job = waiting;
        waiting = job->next;
        job->private_ticket = HTH_NET_TICKET_CANCELED;
        hth_net_job_finished(lane->net, job);
    }
    for (uint32_t i = 0; i < lane->thread_count; i++)
        pthread_join(lane->threads[i], NULL);
    /* thread_count stays: jobs of other lanes may still read it, and then do all parts
     * themselves. */
    hth_free(lane->threads);
    lane->threads = NULL;
}

enum hth_err hth_net_job_submit(struct hth_env *env, struct hth_job *job)
{
    struct hth_net *net = hth_net_of(env);
    HTH_ASSERT((uint32_t)job->lane < HTH_LANES_MAX);
    HTH_ASSERT(job->run != NULL && job->done != NULL);
    struct hth_net_lane *lane = &net->lane[job->lane];
    if (net->jobs_ended)
        return HTH_E_CANCELED;
    if (lane->thread_count == 0) { /* a card's first job; one worker is enough */
        enum hth_err err = hth_net_lane_start(net, job->lane, HTH_CARD_WORKERS);
        if (lane->thread_count == 0)
            return err;
    }
    job->next = NULL;
    job->env = env;
    job->private_ticket = HTH_NET_TICKET_RUN;
    pthread_mutex_lock(&lane->lock);
    bool full = lane->waiting >= HTH_LANE_JOBS_MAX;
    if (!full) {
        if (lane->tail != NULL)
            lane->tail->next = job;
        else
            lane->head = job;
        lane->tail = job;
        count_waiting(lane, lane->waiting + 1);
        __atomic_store_n(&lane->events, lane->events + 1, __ATOMIC_RELEASE);
        if (lane->sleeping > 0)
            pthread_cond_signal(&lane->wake);
    }
    pthread_mutex_unlock(&lane->lock);
    if (full)
        return HTH_E_QUEUE_FULL;
    net->job_count++;
    return HTH_OK;
}

uint32_t hth_net_lane_width(struct hth_env *env, enum hth_lane lane)
{
    if (lane >= HTH_LANE_CARD0)
        return HTH_CARD_WORKERS;
    return lane == HTH_LANE_IO ? 1 : hth_net_of(env)->opts.compute_threads;
}
