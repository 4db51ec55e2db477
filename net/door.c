/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door.c: strangers get a share of the loop, however many come.
 *
 * A stranger is an accepted stream until its owner attaches callbacks for a peer that it knows
 * (hth_stream_ops.is_stranger). It costs signatures: a handshake takes longer than most calls. So a
 * turn takes a step of one stranger, and what peers sent meanwhile waits for no more. When steps
 * took BURST_US more than their share, the door rests until that is paid for. (If it rested after
 * each, they would find cold caches, and take twice as long.)
 *
 *   a listener is readable --+                               a few more are accepted
 *   a stranger sent bytes ---+--> waits --> the door's turn: one of those that wait takes a step
 */
#define _GNU_SOURCE
#include "net/net_int.h"

#include <time.h>

#define SHARE    8
#define BURST_US 2000

static int64_t clock_us(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * HTH_US_PER_S + ts.tv_nsec / 1000;
}

void hth_net_door_wake(struct hth_net *net)
{
    struct hth_net_door *d = &net->door;
    if (event_pending(&d->event, EV_TIMEOUT, NULL))
        return;
    int64_t us = HTH_MAX(d->rests_until_us - clock_us(CLOCK_MONOTONIC), (int64_t)0);
    struct timeval tv = {.tv_sec = (time_t)(us / HTH_US_PER_S),
                         .tv_usec = (suseconds_t)(us % HTH_US_PER_S)};
    event_add(&d->event, &tv);
}

void hth_net_door_wait(struct hth_stream *s)
{
    struct hth_net_door *d = &s->net->door;
    hth_net_want_read(s, false);
    if (s->at_door)
        return;
    s->at_door = true;
    s->door_next = NULL;
    if (d->tail != NULL)
        d->tail->door_next = s;
    else
        d->head = s;
    d->tail = s;
    hth_net_door_wake(s->net);
}

static struct hth_stream *pop(struct hth_net_door *d)
{
    struct hth_stream *s = d->head;
    d->head = s->door_next;
    if (d->head == NULL)
        d->tail = NULL;
    s->at_door = false;
    return s;
}

static void door_cb(evutil_socket_t fd, short what, void *arg)
{
    struct hth_net *net = arg;
    struct hth_net_door *d = &net->door;
    int64_t before_us = clock_us(CLOCK_THREAD_CPUTIME_ID);
    (void)fd;
    (void)what;
    hth_net_enter(net);
    bool more = hth_net_listeners_take(net);
    if (d->head != NULL)
        hth_net_stream_step(pop(d));
    hth_net_leave(net);
    int64_t now_us = clock_us(CLOCK_MONOTONIC);
    d->paid_us =
        HTH_MAX(d->paid_us, now_us) + SHARE * (clock_us(CLOCK_THREAD_CPUTIME_ID) - before_us);
    if (d->paid_us - now_us >= SHARE * BURST_US)
        d->rests_until_us = d->paid_us;
    if (more || d->head != NULL)
        hth_net_door_wake(net);
}

void hth_net_door_init(struct hth_net *net)
{
    event_assign(&net->door.event, net->base, -1, 0, door_cb, net);
}

void hth_net_door_clear(struct hth_net *net)
{
    while (net->door.head != NULL)
        (void)pop(&net->door);
    if (net->base != NULL)
        event_del(&net->door.event);
}
