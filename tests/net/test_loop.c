/* SPDX-License-Identifier: Apache-2.0 */
/* test_loop.c: timers, jobs, posts, signals, names: the environment without streams and files. */
#define _GNU_SOURCE
#include "net/pair.h"
#include "support/suite.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

/* ---- timers --------------------------------------------------------------------------------- */

struct tick {
    struct stream_pair *p;
    struct hth_timer *t;
    int64_t due_us;
    int fired;
    bool free_inside;
};

static void tick_cb(void *arg)
{
    struct tick *k = arg;
    /* Never early, by the clock that callbacks see. */
    assert_true(hth_now_us(k->p->env) >= k->due_us);
    k->fired++;
    if (k->free_inside) {
        hth_timer_free(k->p->env, k->t);
        k->t = NULL;
    }
}

static void tick_set(struct tick *k, int64_t delay_us)
{
    k->due_us = hth_now_us(k->p->env) + delay_us;
    hth_timer_set(k->p->env, k->t, delay_us);
}

static bool last_fired(struct stream_pair *p)
{
    return ((struct tick *)p->user)[4].fired == 1;
}

TEST(timers_fire_once_and_never_early)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct tick k[5] = {0};
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    p.user = k;
    for (size_t i = 0; i < 5; i++) {
        k[i].p = &p;
        k[i].t = hth_timer_new(p.env, tick_cb, &k[i]);
    }
    tick_set(&k[0], 1000);
    tick_set(&k[1], 2000);
    hth_timer_cancel(p.env, k[1].t); /* never */
    tick_set(&k[2], 30 * HTH_US_PER_S);
    tick_set(&k[2], 3000); /* moved forward */
    k[3].free_inside = true;
    tick_set(&k[3], -5); /* fires in the next turn */
    k[3].due_us = 0;
    tick_set(&k[4], 20000);
    pair_run(&p, last_fired);
    assert_int_equal(k[0].fired, 1);
    assert_int_equal(k[1].fired, 0);
    assert_int_equal(k[2].fired, 1);
    assert_int_equal(k[3].fired, 1);
    for (size_t i = 0; i < 5; i++)
        hth_timer_free(p.env, k[i].t);
    pair_close(&p);
}

/* A timer that is armed late in a long turn waits its whole delay. */
struct late {
    struct tick tick;
    struct hth_timer *first;
};

static void busy_cb(void *arg)
{
    struct late *l = arg;
    struct timespec ts;
    int64_t start = 0, now;
    do {
        clock_gettime(CLOCK_MONOTONIC, &ts);
        now = (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
        start = start == 0 ? now : start;
    } while (now - start < 60000);
    hth_timer_set(l->tick.p->env, l->tick.t, 20000);
    l->tick.due_us = now + 20000;
}

static bool late_fired(struct stream_pair *p)
{
    return ((struct late *)p->user)->tick.fired == 1;
}

TEST(slow_turn_delays_timers_and_is_counted)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct late l = {0};
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    p.user = &l;
    l.tick.p = &p;
    l.tick.t = hth_timer_new(p.env, tick_cb, &l.tick);
    l.first = hth_timer_new(p.env, busy_cb, &l);
    hth_timer_set(p.env, l.first, 0);
    pair_run(&p, late_fired);
    /* The watchdog saw the 60 ms. */
    assert_true(hth_metrics_get(p.env->metrics, "hearth_net_slow_turns_total") >= 1);
    hth_timer_free(p.env, l.tick.t);
    hth_timer_free(p.env, l.first);
    pair_close(&p);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

#define JOBS 1000

struct work {
    struct hth_job job;
    struct board *board;
    uint64_t in, out;
    int index;
    bool ran, canceled;
};

struct board {
    struct stream_pair *p;
    struct work work[JOBS];
    int started[JOBS]; /* order in which the io lane ran them */
    int start_count;
    int done, canceled;
    pthread_t loop;
    sem_t gate;
};

static void work_run(struct hth_job *job)
{
    struct work *w = HTH_CONTAINER(job, struct work, job);
    w->ran = true;
    w->out = w->in * w->in;
    if (job->lane == HTH_LANE_IO)
        w->board->started[w->board->start_count++] = w->index;
    if (pthread_equal(pthread_self(), w->board->loop))
        w->out = 0; /* on the loop: the test fails on the result */
}

static void work_done(struct hth_job *job, enum hth_err err)
{
    struct work *w = HTH_CONTAINER(job, struct work, job);
    assert_true(pthread_equal(pthread_self(), w->board->loop));
    if (err == HTH_E_CANCELED) {
        w->canceled = true;
        w->board->canceled++;
    } else {
        assert_ok(err);
    }
    w->board->done++;
}

static void gate_run(struct hth_job *job)
{
    struct work *w = HTH_CONTAINER(job, struct work, job);
    w->ran = true;
    while (sem_wait(&w->board->gate) != 0)
        ;
}

static bool board_done(struct stream_pair *p)
{
    return ((struct board *)p->user)->done == JOBS;
}

static void board_init(struct board *b, struct stream_pair *p)
{
    memset(b, 0, sizeof(*b));
    b->p = p;
    b->loop = pthread_self();
    p->user = b;
    sem_init(&b->gate, 0, 0);
    for (int i = 0; i < JOBS; i++) {
        b->work[i] = (struct work){.board = b, .in = (uint64_t)i, .index = i};
        b->work[i].job.run = work_run;
        b->work[i].job.done = work_done;
    }
}

TEST(jobs_run_in_order)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    static struct board b;
    struct stream_pair p;
    (void)state;
    opts.compute_threads = 3;
    for (int lane = 0; lane < 2; lane++) {
        pair_open(&p, &opts);
        board_init(&b, &p);
        assert_int_equal(hth_lane_width(p.env, HTH_LANE_COMPUTE), 3);
        assert_int_equal(hth_lane_width(p.env, HTH_LANE_IO), 1);
        for (int i = 0; i < JOBS; i++) {
            b.work[i].job.lane = lane == 0 ? HTH_LANE_IO : HTH_LANE_COMPUTE;
            assert_ok(hth_job_submit(p.env, &b.work[i].job));
        }
        assert_int_equal(b.done, 0); /* never inside submit */
        pair_run(&p, board_done);
        for (int i = 0; i < JOBS; i++) {
            assert_int_equal(b.work[i].out, (uint64_t)i * (uint64_t)i);
            if (lane == 0)
                assert_int_equal(b.started[i], i);
        }
        assert_int_equal(b.canceled, 0);
        pair_close(&p);
        sem_destroy(&b.gate);
    }
}

/* The end waits for the running job and cancels the waiting ones: each gets done once, and none is
 * both run and canceled. */
TEST(end_runs_or_cancels_each_job)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    static struct board b;
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    board_init(&b, &p);
    b.work[0].job.run = gate_run;
    for (int i = 0; i < JOBS; i++) {
        b.work[i].job.lane = HTH_LANE_IO;
        assert_ok(hth_job_submit(p.env, &b.work[i].job));
    }
    sem_post(&b.gate);
    hth_net_jobs_end(p.env);
    assert_int_equal(b.done, JOBS);
    for (int i = 0; i < JOBS; i++)
        assert_true(b.work[i].ran != b.work[i].canceled);
    assert_err(HTH_E_CANCELED, hth_job_submit(p.env, &b.work[0].job));
    pair_close(&p);
    sem_destroy(&b.gate);
}

TEST(jobs_beyond_limit_are_refused)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    static struct board b;
    struct stream_pair p;
    (void)state;
    opts.compute_threads = 1;
    pair_open(&p, &opts);
    board_init(&b, &p);
    struct work *more = hth_new_array(struct work, HTH_LANE_JOBS_MAX + 2);
    size_t submitted = 0;
    enum hth_err err = HTH_OK;
    for (; submitted < HTH_LANE_JOBS_MAX + 2 && err == HTH_OK; submitted++) {
        more[submitted] = (struct work){.board = &b};
        /* The first holds the lane, so that no other leaves the queue. */
        more[submitted].job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                                               .run = submitted == 0 ? gate_run : work_run,
                                               .done = work_done};
        err = hth_job_submit(p.env, &more[submitted].job);
    }
    assert_err(HTH_E_QUEUE_FULL, err);
    submitted--;
    /* The worker may or may not have taken the first one already. */
    assert_true(submitted == HTH_LANE_JOBS_MAX || submitted == HTH_LANE_JOBS_MAX + 1);
    sem_post(&b.gate);
    hth_net_jobs_end(p.env);
    assert_int_equal(b.done, (int)submitted);
    pair_close(&p);
    hth_free(more);
    sem_destroy(&b.gate);
}

/* ---- posts ----------------------------------------------------------------------------------- */

#define POST_THREADS 4
#define POSTS        10000

struct poster {
    struct hth_env *env;
    pthread_t thread, loop;
    int sent; /* by the thread */
    int got;  /* by the loop */
};

struct parcel {
    struct poster *from;
    int number;
};

static void parcel_cb(void *arg)
{
    struct parcel *x = arg;
    assert_true(pthread_equal(pthread_self(), x->from->loop));
    assert_int_equal(x->number, x->from->got); /* in order per thread */
    x->from->got++;
    hth_free(x);
}

static void *poster_main(void *arg)
{
    struct poster *po = arg;
    for (; po->sent < POSTS; po->sent++) {
        struct parcel *x = hth_new(struct parcel);
        x->from = po;
        x->number = po->sent;
        hth_post(po->env, parcel_cb, x);
    }
    return NULL;
}

static bool posts_done(struct stream_pair *p)
{
    struct poster *po = p->user;
    for (int i = 0; i < POST_THREADS; i++) {
        if (po[i].got < POSTS)
            return false;
    }
    return true;
}

TEST(posts_arrive_in_order_per_thread)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct poster po[POST_THREADS] = {0};
    struct stream_pair p;
    (void)state;
    pair_open(&p, &opts);
    p.user = po;
    for (int i = 0; i < POST_THREADS; i++) {
        po[i].env = p.env;
        po[i].loop = pthread_self();
        assert_int_equal(pthread_create(&po[i].thread, NULL, poster_main, &po[i]), 0);
    }
    pair_run(&p, posts_done);
    for (int i = 0; i < POST_THREADS; i++)
        pthread_join(po[i].thread, NULL);
    pair_close(&p);
}

static void count_call(void *arg)
{
    ++*(int *)arg;
}

/* A post before the loop runs is not lost, and one that never runs is not leaked. */
TEST(posts_outside_of_run_are_kept_or_freed)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    int called = 0;
    (void)state;
    pair_open(&p, &opts);
    hth_post(p.env, count_call, &called);
    hth_net_stop(p.env);
    assert_ok(hth_net_run(p.env)); /* stopped before it ran: returns */
    assert_int_equal(called, 1);
    hth_post(p.env, count_call, &called);
    pair_close(&p);
    assert_int_equal(called, 1);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static bool signaled(struct stream_pair *p)
{
    return *(int *)p->user == 1;
}

TEST(signals_reach_the_loop)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct stream_pair p;
    int seen = 0;
    (void)state;
    pair_open(&p, &opts);
    p.user = &seen;
    assert_ok(hth_net_on_signal(p.env, SIGUSR1, count_call, &seen));
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    pair_run(&p, signaled);
    pair_close(&p);
}

TEST(seed_gives_numbers_and_no_seed_differs)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    uint64_t seed = 5;
    struct hth_env *a, *b, *c;
    struct hth_rng want;
    (void)state;
    opts.seed = &seed;
    assert_ok(hth_net_new(&opts, &a));
    opts.seed = NULL;
    assert_ok(hth_net_new(&opts, &b));
    assert_ok(hth_net_new(&opts, &c));
    hth_rng_init(&want, 5);
    uint64_t first = hth_rng_u64(&want);
    assert_true(hth_rng_u64(&a->rng) == first);
    assert_true(hth_rng_u64(&b->rng) != hth_rng_u64(&c->rng));
    assert_false(hth_peer_id_eq(&b->self, &c->self));
    hth_net_free(a);
    hth_net_free(b);
    hth_net_free(c);
}

TEST(resolve_parses_and_refuses)
{
    static const char *const bad[] = {
        "",      "localhost",       ":80",          "localhost:",  "::1:80",     "[::1]",
        "a b:1", "localhost:66000", "localhost:-1", "localhost:x", "http://a:80"};
    struct hth_addr addr[8];
    char text[HTH_ADDR_TEXT_MAX];
    size_t count;
    (void)state;
    assert_ok(hth_net_resolve("127.0.0.1:80", addr, 8, &count));
    assert_int_equal(count, 1);
    assert_string_equal(hth_addr_text(&addr[0], text), "127.0.0.1:80");
    assert_ok(hth_net_resolve("[::1]:81", addr, 8, &count));
    assert_string_equal(hth_addr_text(&addr[0], text), "[::1]:81");
    assert_ok(hth_net_resolve("localhost:82", addr, 8, &count));
    assert_int_equal(count, 2);
    assert_string_equal(hth_addr_text(&addr[0], text), "127.0.0.1:82");
    assert_string_equal(hth_addr_text(&addr[1], text), "[::1]:82");
    assert_ok(hth_net_resolve("localhost:82", addr, 0, &count));
    assert_int_equal(count, 0);
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        assert_err(HTH_E_MALFORMED, hth_net_resolve(bad[i], addr, 8, &count));
    char longer[400];
    memset(longer, 'a', sizeof(longer));
    memcpy(longer + 390, ":80", 4);
    assert_err(HTH_E_MALFORMED, hth_net_resolve(longer, addr, 8, &count));
}
