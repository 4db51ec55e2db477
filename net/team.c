/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.c: the compute lane's idle workers as a team (core/team.h).
 *
 *     caller                                    an idle worker
 *     publish work on the lane --------------->  joins it: helpers++
 *     takes parts 0, 2, 3 ...                    takes parts 1, 4 ..., until none is left or a job
 *     takes the work off the lane                waits; then helpers--
 *     waits until helpers == 0
 *
 * The work lies on the caller's stack. Workers reach it only through the lane's list and under the
 * lane's lock, so that no worker finds it after it is off the list. `helpers` counts the workers on
 * it, and its last decrement is under the lock. One atomic counter hands out parts. A waiting
 * thread spins for at most HTH_NET_SPIN_US and then sleeps: two operations of a kernel follow each
 * other much faster than a sleeping thread wakes.
 */
#define _GNU_SOURCE
#include "net/net_int.h"

#include "core/mem.h"

#include <time.h>

struct hth_net_work {
    hth_team_fn *fn;
    void *arg;
    uint32_t parts;
    uint32_t taken;   /* atomic; may exceed `parts` */
    uint32_t helpers; /* written under the lane's lock, read by the caller without it */
    struct hth_net_work *prev, *next;
};

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

static void pause_a_moment(void)
{
    for (int i = 0; i < 32; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Spins while *at equals `value`; false when it still does after HTH_NET_SPIN_US. */
static bool spin_while(const uint32_t *at, uint32_t value)
{
    int64_t end = now_ns() + HTH_NET_SPIN_US * 1000;
    while (__atomic_load_n(at, __ATOMIC_ACQUIRE) == value) {
        if (now_ns() > end)
            return false;
        pause_a_moment();
    }
    return true;
}

void hth_net_lane_rest(struct hth_net_lane *lane)
{
    uint32_t seen = lane->events;
    if (lane->running > 0) {
        pthread_mutex_unlock(&lane->lock);
        (void)spin_while(&lane->events, seen);
        pthread_mutex_lock(&lane->lock);
    }
    if (lane->events != seen || lane->ending)
        return;
    lane->sleeping++;
    pthread_cond_wait(&lane->wake, &lane->lock);
    lane->sleeping--;
}

static bool take_part(struct hth_net_work *w)
{
    uint32_t part = __atomic_fetch_add(&w->taken, 1, __ATOMIC_RELAXED);
    if (part >= w->parts)
        return false;
    w->fn(w->arg, part);
    return true;
}

bool hth_net_lane_help(struct hth_net_lane *lane)
{
    struct hth_net_work *w = lane->work;
    while (w != NULL && __atomic_load_n(&w->taken, __ATOMIC_RELAXED) >= w->parts)
        w = w->next;
    if (w == NULL)
        return false;
    __atomic_store_n(&w->helpers, w->helpers + 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lane->lock);
    while (__atomic_load_n(&lane->waiting, __ATOMIC_RELAXED) == 0 && take_part(w))
        ;
    pthread_mutex_lock(&lane->lock);
    uint32_t left = w->helpers - 1;
    __atomic_store_n(&w->helpers, left, __ATOMIC_RELEASE); /* w may be freed after this line */
    if (left == 0)
        pthread_cond_broadcast(&lane->helped);
    return true;
}

static void publish(struct hth_net_lane *lane, struct hth_net_work *w)
{
    pthread_mutex_lock(&lane->lock);
    w->next = lane->work;
    if (w->next != NULL)
        w->next->prev = w;
    lane->work = w;
    __atomic_store_n(&lane->events, lane->events + 1, __ATOMIC_RELEASE);
    uint32_t wanted = HTH_MIN(w->parts - 1, lane->sleeping);
    for (uint32_t i = 0; i < wanted; i++)
        pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&lane->lock);
}

static void unpublish(struct hth_net_lane *lane, struct hth_net_work *w)
{
    pthread_mutex_lock(&lane->lock);
    if (w->prev != NULL)
        w->prev->next = w->next;
    else
        lane->work = w->next;
    if (w->next != NULL)
        w->next->prev = w->prev;
    uint32_t helpers = w->helpers;
    pthread_mutex_unlock(&lane->lock);
    for (uint32_t left = helpers; left > 0 && spin_while(&w->helpers, left);)
        left = __atomic_load_n(&w->helpers, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&w->helpers, __ATOMIC_ACQUIRE) == 0)
        return;
    pthread_mutex_lock(&lane->lock);
    while (w->helpers > 0)
        pthread_cond_wait(&lane->helped, &lane->lock);
    pthread_mutex_unlock(&lane->lock);
}

static void team_run(struct hth_team *team, uint32_t parts, hth_team_fn *fn, void *arg)
{
    struct hth_net_lane *lane = HTH_CONTAINER(team, struct hth_net_lane, team);
    struct hth_net_work w = {.fn = fn, .arg = arg, .parts = parts};
    if (lane->thread_count < 2) {
        for (uint32_t part = 0; part < parts; part++)
            fn(arg, part);
        return;
    }
    publish(lane, &w);
    while (take_part(&w))
        ;
    unpublish(lane, &w);
}

static uint32_t team_width(const struct hth_team *team)
{
    return HTH_CONTAINER(team, const struct hth_net_lane, team)->thread_count;
}

const struct hth_team_ops hth_net_team_ops = {.run = team_run, .width = team_width};

struct hth_team *hth_net_team(struct hth_env *env)
{
    struct hth_net_lane *lane = &hth_net_of(env)->lane[HTH_LANE_COMPUTE];
    return lane->thread_count > 1 ? &lane->team : NULL;
}
