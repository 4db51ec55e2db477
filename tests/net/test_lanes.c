/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lanes.c: lanes of cards: each has workers of its own; a driver call that hangs blocks no
 * other lane; the end waits for running jobs and cancels waiting ones.
 */
#define _GNU_SOURCE
#include "net/pair.h"
#include "support/suite.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>

#define JOBS    200
#define CARDS   3 /* the first one freezes */
#define THREADS 8

/* Recorded by the jobs of one lane. */
struct seen {
    pthread_mutex_t lock;
    pthread_t thread[THREADS];
    uint32_t threads;
    int order[JOBS];
    int runs;
};

struct bench {
    struct stream_pair *p;
    struct seen seen[CARDS + 2]; /* of the cards, of the compute lane, of the io lane */
    sem_t frozen, thaw;
    int done[CARDS + 2], canceled;
};

struct work {
    struct hth_job job;
    struct bench *b;
    int seen, index;
    bool ran, canceled;
};

static enum hth_lane lane_of(int seen)
{
    if (seen >= CARDS)
        return seen == CARDS ? HTH_LANE_COMPUTE : HTH_LANE_IO;
    return hth_lane_of_card(seen == 2 ? HTH_CARDS_MAX - 1 : (uint32_t)seen);
}

static void record_thread(struct seen *s)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        if (pthread_equal(s->thread[i], pthread_self()))
            return;
    }
    HTH_ASSERT(s->threads < THREADS);
    s->thread[s->threads++] = pthread_self();
}

static void work_run(struct hth_job *job)
{
    struct work *w = HTH_CONTAINER(job, struct work, job);
    struct seen *s = &w->b->seen[w->seen];
    w->ran = true;
    pthread_mutex_lock(&s->lock);
    record_thread(s);
    if (s->runs < JOBS)
        s->order[s->runs] = w->index;
    s->runs++;
    pthread_mutex_unlock(&s->lock);
}

/* A driver call that hangs. */
static void frozen_run(struct hth_job *job)
{
    struct work *w = HTH_CONTAINER(job, struct work, job);
    work_run(job);
    sem_post(&w->b->frozen);
    while (sem_wait(&w->b->thaw) != 0)
        ;
}

static void work_done(struct hth_job *job, enum hth_err err)
{
    struct work *w = HTH_CONTAINER(job, struct work, job);
    if (err == HTH_E_CANCELED) {
        w->canceled = true;
        w->b->canceled++;
    } else {
        assert_ok(err);
        w->b->done[w->seen]++;
    }
}

static void bench_open(struct bench *b, struct stream_pair *p)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    memset(b, 0, sizeof(*b));
    opts.compute_threads = 2;
    pair_open(p, &opts);
    b->p = p;
    p->user = b;
    for (size_t i = 0; i < HTH_ARRAY_LEN(b->seen); i++)
        pthread_mutex_init(&b->seen[i].lock, NULL);
    sem_init(&b->frozen, 0, 0);
    sem_init(&b->thaw, 0, 0);
}

static void bench_close(struct bench *b, struct stream_pair *p)
{
    pair_close(p);
    for (size_t i = 0; i < HTH_ARRAY_LEN(b->seen); i++)
        pthread_mutex_destroy(&b->seen[i].lock);
    sem_destroy(&b->frozen);
    sem_destroy(&b->thaw);
}

static void submit(struct bench *b, struct work *w, int seen, int index)
{
    *w = (struct work){.b = b, .seen = seen, .index = index};
    w->job = (struct hth_job){.lane = lane_of(seen), .run = work_run, .done = work_done};
    assert_ok(hth_job_submit(b->p->env, &w->job));
}

/* Blocks that many workers of the card in the driver before it returns. */
static void freeze(struct bench *b, struct work *w, int card, int workers)
{
    for (int i = 0; i < workers; i++) {
        w[i] = (struct work){.b = b, .seen = card, .index = -1};
        w[i].job = (struct hth_job){.lane = lane_of(card), .run = frozen_run, .done = work_done};
        assert_ok(hth_job_submit(b->p->env, &w[i].job));
        while (sem_wait(&b->frozen) != 0)
            ;
    }
}

static bool others_done(struct stream_pair *p)
{
    const struct bench *b = p->user;
    for (int i = 1; i < CARDS + 2; i++) {
        if (b->done[i] < JOBS)
            return false;
    }
    return true;
}

static bool first_done(struct stream_pair *p)
{
    return ((const struct bench *)p->user)->done[0] == JOBS + (int)HTH_CARD_WORKERS;
}

/* No thread ran jobs of two lanes. */
static void check_threads(const struct bench *b)
{
    for (int i = 0; i < CARDS + 2; i++) {
        assert_true(b->seen[i].threads >= 1);
        assert_true(b->seen[i].threads <= (i < CARDS + 1 ? 2 : 1));
        for (int k = 0; k < i; k++) {
            for (uint32_t a = 0; a < b->seen[i].threads; a++)
                for (uint32_t c = 0; c < b->seen[k].threads; c++)
                    assert_false(pthread_equal(b->seen[i].thread[a], b->seen[k].thread[c]));
        }
    }
}

TEST(frozen_card_blocks_no_other_lane)
{
    static struct bench b;
    static struct work w[CARDS + 2][JOBS], stuck[HTH_CARD_WORKERS];
    struct stream_pair p;
    (void)state;
    bench_open(&b, &p);
    assert_int_equal(hth_lane_width(p.env, lane_of(0)), HTH_CARD_WORKERS);
    freeze(&b, stuck, 0, HTH_CARD_WORKERS);
    for (int i = 0; i < JOBS; i++)
        for (int seen = 0; seen < CARDS + 2; seen++)
            submit(&b, &w[seen][i], seen, i);
    pair_run(&p, others_done);
    assert_int_equal(b.done[0], 0);
    for (uint32_t i = 0; i < HTH_CARD_WORKERS; i++)
        sem_post(&b.thaw);
    pair_run(&p, first_done);
    assert_int_equal(b.canceled, 0);
    check_threads(&b);
    bench_close(&b, &p);
}

/* With one free worker a card's jobs run in the order of submission. */
TEST(one_worker_keeps_submission_order)
{
    static struct bench b;
    static struct work w[CARDS + 2][JOBS], stuck[CARDS];
    struct stream_pair p;
    (void)state;
    bench_open(&b, &p);
    for (int card = 0; card < CARDS; card++)
        freeze(&b, &stuck[card], card, 1);
    for (int i = 0; i < JOBS; i++)
        for (int seen = 0; seen < CARDS + 2; seen++)
            submit(&b, &w[seen][i], seen, i);
    pair_run(&p, others_done);
    for (int card = 0; card < CARDS; card++)
        sem_post(&b.thaw);
    hth_net_jobs_end(p.env);
    for (int card = 1; card < CARDS; card++) {
        assert_int_equal(b.seen[card].order[0], -1);
        for (int i = 1; i < JOBS; i++)
            assert_int_equal(b.seen[card].order[i], i - 1);
    }
    bench_close(&b, &p);
}

static void no_signal(void *arg)
{
    (void)arg;
}

/* Thaws once signals have their default actions: before that a signal could not end the waiting
 * process. */
static void *thaw_later(void *arg)
{
    struct bench *b = arg;
    struct sigaction now;
    do
        HTH_ASSERT(sigaction(SIGUSR2, NULL, &now) == 0);
    while (now.sa_handler != SIG_DFL);
    for (uint32_t i = 0; i < HTH_CARD_WORKERS; i++)
        sem_post(&b->thaw);
    return NULL;
}

/* Ends while a card is in the driver and more jobs wait for it. */
TEST(end_waits_for_running_and_cancels_waiting)
{
    static struct bench b;
    static struct work w[JOBS], stuck[HTH_CARD_WORKERS];
    struct stream_pair p;
    pthread_t thread;
    struct sigaction now;
    (void)state;
    bench_open(&b, &p);
    assert_ok(hth_net_on_signal(p.env, SIGUSR2, no_signal, NULL));
    assert_int_equal(sigaction(SIGUSR2, NULL, &now), 0);
    assert_true(now.sa_handler != SIG_DFL);
    freeze(&b, stuck, 0, HTH_CARD_WORKERS);
    for (int i = 0; i < JOBS; i++)
        submit(&b, &w[i], 0, i);
    assert_int_equal(pthread_create(&thread, NULL, thaw_later, &b), 0);
    hth_net_jobs_end(p.env);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(b.done[0] + b.canceled, JOBS + (int)HTH_CARD_WORKERS);
    for (int i = 0; i < JOBS; i++)
        assert_true(w[i].ran != w[i].canceled);
    assert_err(HTH_E_CANCELED, hth_job_submit(p.env, &w[0].job));
    bench_close(&b, &p);
}
