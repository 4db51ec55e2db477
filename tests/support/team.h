/* SPDX-License-Identifier: Apache-2.0 */
/*
 * team.h: a team of threads for tests of kernels, which must not need net/. Every run starts new
 * threads: slow, but each run has another order.
 */
#ifndef HTH_TESTS_SUPPORT_TEAM_H
#define HTH_TESTS_SUPPORT_TEAM_H

#include <pthread.h>

#include "core/team.h"

#define TEST_TEAM_MAX 8

struct test_team {
    struct hth_team team;
    uint32_t width;
    uint32_t runs; /* runs with more than one part, for tests that assert them */
};

struct test_team_run {
    hth_team_fn *fn;
    void *arg;
    uint32_t parts, taken;
};

static inline void *test_team_work(void *arg)
{
    struct test_team_run *run = arg;
    uint32_t part;
    while ((part = __atomic_fetch_add(&run->taken, 1, __ATOMIC_RELAXED)) < run->parts)
        run->fn(run->arg, part);
    return NULL;
}

static inline void test_team_run(struct hth_team *team, uint32_t parts, hth_team_fn *fn, void *arg)
{
    struct test_team *t = HTH_CONTAINER(team, struct test_team, team);
    struct test_team_run run = {.fn = fn, .arg = arg, .parts = parts};
    pthread_t threads[TEST_TEAM_MAX];
    uint32_t helpers = 0;
    __atomic_fetch_add(&t->runs, 1, __ATOMIC_RELAXED);
    while (helpers + 1 < t->width && helpers < TEST_TEAM_MAX &&
           pthread_create(&threads[helpers], NULL, test_team_work, &run) == 0)
        helpers++;
    test_team_work(&run);
    for (uint32_t i = 0; i < helpers; i++)
        pthread_join(threads[i], NULL);
}

static inline uint32_t test_team_width(const struct hth_team *team)
{
    return HTH_CONTAINER(team, const struct test_team, team)->width;
}

/* Usage: struct test_team t = TEST_TEAM(3); hth_exec_set_team(ex, &t.team). */
static const struct hth_team_ops test_team_ops = {.run = test_team_run, .width = test_team_width};
#define TEST_TEAM(n)                                                                               \
    {                                                                                              \
        .team = {&test_team_ops}, .width = (n)                                                     \
    }

#endif
