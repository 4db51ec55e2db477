/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_team.c: idle workers as helpers: each part runs once, idle workers help, jobs have priority,
 * and the end waits for all parts.
 */
#define _GNU_SOURCE
#include "net/pair.h"
#include "support/suite.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

/* Waits for the semaphore with a timeout: a test that would hang fails instead. */
static bool wait_for(sem_t *sem)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += GUARD_US / HTH_US_PER_S / 2;
    int rc;
    do
        rc = sem_timedwait(sem, &end);
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

struct counter {
    struct hth_job job;
    int *done;
};

static void count_done(struct hth_job *job, enum hth_err err)
{
    assert_ok(err);
    (*HTH_CONTAINER(job, struct counter, job)->done)++;
}

/* ---- each part once ------------------------------------------------------------------------ */

#define CALLERS   6
#define ROUNDS    60
#define PARTS_MAX 33

struct caller {
    struct counter counter;
    /* a cell per part: no two parts write the same one */
    uint32_t runs[PARTS_MAX], inner[PARTS_MAX];
    uint32_t wrong;
    struct hth_team *team;
};

struct inner {
    uint32_t cell[3];
};

static void inner_part(void *arg, uint32_t part)
{
    struct inner *in = arg;
    in->cell[part]++;
}

static void outer_part(void *arg, uint32_t part)
{
    struct caller *c = arg;
    struct inner in = {{0, 0, 0}};
    c->runs[part]++;
    hth_team_run(c->team, 3, inner_part, &in); /* a part may cut its own work */
    c->inner[part] += in.cell[0] + in.cell[1] + in.cell[2];
}

static void caller_run(struct hth_job *job)
{
    struct caller *c = HTH_CONTAINER(job, struct caller, counter.job);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t parts = round % (PARTS_MAX + 1);
        memset(c->runs, 0, sizeof(c->runs));
        memset(c->inner, 0, sizeof(c->inner));
        hth_team_run(c->team, parts, outer_part, c);
        for (uint32_t i = 0; i < PARTS_MAX; i++) {
            c->wrong += c->runs[i] != (i < parts ? 1 : 0);
            c->wrong += c->inner[i] != (i < parts ? 3 : 0);
        }
    }
}

static bool all_callers(struct stream_pair *p)
{
    return *(int *)p->user == CALLERS;
}

TEST(each_part_runs_once)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct hth_net_opts opts = HTH_NET_OPTS_INIT;
        static struct caller callers[CALLERS];
        struct stream_pair p;
        int done = 0;
        opts.compute_threads = threads;
        pair_open(&p, &opts);
        p.user = &done;
        struct hth_team *team = hth_env_team(p.env);
        assert_int_equal(hth_team_width(team), threads);
        assert_true((team == NULL) == (threads == 1));
        for (int i = 0; i < CALLERS; i++) {
            callers[i] = (struct caller){.team = team};
            callers[i].counter = (struct counter){
                {.lane = HTH_LANE_COMPUTE, .run = caller_run, .done = count_done}, &done};
            assert_ok(hth_job_submit(p.env, &callers[i].counter.job));
        }
        pair_run(&p, all_callers);
        for (int i = 0; i < CALLERS; i++)
            assert_int_equal(callers[i].wrong, 0);
        pair_close(&p);
    }
}

/* ---- helpers ------------------------------------------------------------------------------- */

/* Two parts that wait for each other: without a helper the caller would stay in the first. (Code
 * above net/ must not do this.) */
struct meeting {
    struct counter counter;
    struct hth_team *team;
    sem_t here[2];
    bool met[2];
};

static void meet_part(void *arg, uint32_t part)
{
    struct meeting *m = arg;
    sem_post(&m->here[part]);
    m->met[part] = wait_for(&m->here[1 - part]);
}

static void meet_run(struct hth_job *job)
{
    struct meeting *m = HTH_CONTAINER(job, struct meeting, counter.job);
    hth_team_run(m->team, 2, meet_part, m);
}

static bool one_done(struct stream_pair *p)
{
    return *(int *)p->user == 1;
}

TEST(idle_workers_help)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct meeting m = {0};
    struct stream_pair p;
    int done = 0;
    (void)state;
    opts.compute_threads = 2;
    pair_open(&p, &opts);
    p.user = &done;
    m.team = hth_env_team(p.env);
    m.counter =
        (struct counter){{.lane = HTH_LANE_COMPUTE, .run = meet_run, .done = count_done}, &done};
    sem_init(&m.here[0], 0, 0);
    sem_init(&m.here[1], 0, 0);
    assert_ok(hth_job_submit(p.env, &m.counter.job));
    pair_run(&p, one_done);
    assert_true(m.met[0] && m.met[1]);
    sem_destroy(&m.here[0]);
    sem_destroy(&m.here[1]);
    pair_close(&p);
}

/* ---- jobs have priority -------------------------------------------------------------------- */

#define MANY_PARTS 1000

/* The caller stays in its first part until the second job has run. The helper's first part submits
 * that job; the helper must then skip the other 998 parts and run it. */
struct rush {
    struct counter first, second;
    struct stream_pair *p;
    struct hth_team *team;
    pthread_t caller;
    sem_t submitted, second_ran;
    bool caller_waited, in_time;
    uint32_t helper_parts;           /* written by the helper alone until the second job ran */
    uint32_t helper_parts_at_second; /* the helper's parts when it took the job */
    enum hth_err submit_err;
};

static void submit_second(void *arg)
{
    struct rush *r = arg;
    r->submit_err = hth_job_submit(r->p->env, &r->second.job);
    sem_post(&r->submitted);
}

static void second_run(struct hth_job *job)
{
    struct rush *r = HTH_CONTAINER(job, struct rush, second.job);
    r->helper_parts_at_second = r->helper_parts;
    sem_post(&r->second_ran);
}

static void rush_part(void *arg, uint32_t part)
{
    struct rush *r = arg;
    (void)part;
    if (pthread_equal(pthread_self(), r->caller)) {
        if (!r->caller_waited)
            r->in_time = wait_for(&r->second_ran);
        r->caller_waited = true;
        return;
    }
    if (r->helper_parts++ == 0) {
        hth_post(r->p->env, submit_second, r);
        wait_for(&r->submitted);
    }
}

static void rush_run(struct hth_job *job)
{
    struct rush *r = HTH_CONTAINER(job, struct rush, first.job);
    r->caller = pthread_self();
    hth_team_run(r->team, MANY_PARTS, rush_part, r);
}

static bool two_done(struct stream_pair *p)
{
    return *(int *)p->user == 2;
}

TEST(helper_leaves_for_waiting_job)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct rush r = {0};
    struct stream_pair p;
    int done = 0;
    (void)state;
    opts.compute_threads = 2;
    pair_open(&p, &opts);
    p.user = &done;
    r.p = &p;
    r.team = hth_env_team(p.env);
    r.first =
        (struct counter){{.lane = HTH_LANE_COMPUTE, .run = rush_run, .done = count_done}, &done};
    r.second =
        (struct counter){{.lane = HTH_LANE_COMPUTE, .run = second_run, .done = count_done}, &done};
    sem_init(&r.submitted, 0, 0);
    sem_init(&r.second_ran, 0, 0);
    assert_ok(hth_job_submit(p.env, &r.first.job));
    pair_run(&p, two_done);
    assert_ok(r.submit_err);
    assert_true(r.in_time);
    assert_int_equal(r.helper_parts_at_second, 1);
    sem_destroy(&r.submitted);
    sem_destroy(&r.second_ran);
    pair_close(&p);
}

/* ---- the end ------------------------------------------------------------------------------- */

/* A caller and whether it has run: the loop gets no more callbacks once the environment is
 * freed. */
struct last {
    struct caller caller;
    sem_t *begun;
    bool ran;
};

static void last_run(struct hth_job *job)
{
    struct last *last = HTH_CONTAINER(job, struct last, caller.counter.job);
    sem_post(last->begun);
    caller_run(job);
    last->ran = true;
}

static void last_done(struct hth_job *job, enum hth_err err)
{
    struct last *last = HTH_CONTAINER(job, struct last, caller.counter.job);
    assert_int_equal(err, last->ran ? HTH_OK : HTH_E_CANCELED);
    (*last->caller.counter.done)++;
}

/* The environment ends while some jobs' parts run, other jobs wait, and a job of the other lane
 * uses the team, too: each job that began finishes all its parts. */
TEST(end_waits_for_all_parts)
{
    (void)state;
    for (uint32_t round = 0; round < 24; round++) {
        struct hth_net_opts opts = HTH_NET_OPTS_INIT;
        static struct last last[CALLERS];
        struct stream_pair p;
        sem_t begun;
        int done = 0;
        opts.compute_threads = 2 + round % 3;
        pair_open(&p, &opts);
        assert_int_equal(sem_init(&begun, 0, 0), 0);
        for (int i = 0; i < CALLERS; i++) {
            last[i] = (struct last){.caller = {.team = hth_env_team(p.env)}, .begun = &begun};
            last[i].caller.counter =
                (struct counter){{.lane = i == 0 ? HTH_LANE_IO : HTH_LANE_COMPUTE,
                                  .run = last_run,
                                  .done = last_done},
                                 &done};
            assert_ok(hth_job_submit(p.env, &last[i].caller.counter.job));
        }
        assert_true(wait_for(&begun));
        pair_close(&p);
        assert_int_equal(done, CALLERS);
        for (int i = 0; i < CALLERS; i++)
            assert_int_equal(last[i].caller.wrong, 0);
        sem_destroy(&begun);
    }
}
