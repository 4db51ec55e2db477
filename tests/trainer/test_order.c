/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of those who land together as many go on as the batch takes, in an order drawn anew for each
 * step: what it costs when those who are first in it are gone, or do not go on.
 */
#include "averaging/roster.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#include <stdio.h>

#define S       HTH_US_PER_S
#define MS      HTH_US_PER_MS
#define MEMBERS 9
#define ROWS    4
#define FIRST   2 /* steps, which are gathered before anybody knows how fast the others are */

struct run {
    uint32_t capped; /* the last so many bring no more than one micro-batch, and do not say so */
    uint32_t dies;   /* the member that does, without a word; 0: none */
    uint64_t target, steps, from; /* counted after that many; 0: FIRST */
    int64_t overhead_us;          /* of a job; ten make half a micro-batch */
    /* out */
    struct hth_world *world;
    double samples, step_s;
    int64_t last_us, slowest_us, from_us;
    uint32_t counted;
};

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct run *r = arg;
    int64_t now = hth_world_now_us(r->world);

    if (i != 0)
        return;
    if (stats->updates > HTH_MAX(r->from, FIRST)) {
        r->samples += stats->share.weight;
        r->counted++;
        r->slowest_us = HTH_MAX(r->slowest_us, now - r->last_us);
    } else {
        r->from_us = now;
    }
    r->last_us = now;
}

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    const struct run *r = arg;

    crew_own_rows(arg, i, t);
    if (i >= MEMBERS - r->capped)
        t->share.step_samples_max = ROWS;
}

struct waiting {
    struct hth_crew *crew;
    uint32_t but; /* 0: nobody */
};

static bool are_done(void *arg)
{
    const struct waiting *w = arg;

    for (uint32_t i = 0; i < MEMBERS; i++)
        if ((i == 0 || i != w->but) && !hth_crew_is_done(w->crew, i))
            return false;
    return true;
}

/* Half-way through the run and through a step. */
static void kill_one(struct run *r, struct hth_crew *crew)
{
    struct hth_train_stats stats = {0};

    while (stats.updates < r->steps / 2) {
        hth_world_run_for(r->world, 10 * MS);
        hth_trainer_stats(hth_crew_trainer(crew, 0), &stats);
    }
    hth_world_run_for(r->world, (r->last_us - r->from_us) / (r->counted * 2));
    hth_node_crash(hth_crew_node(crew, r->dies), HTH_CRASH_SILENT);
}

static void run(struct run *r, uint64_t seed)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct hth_device device = crew_slow;
    struct waiting waiting = {.but = r->dies};
    struct task_files files;

    device.job_overhead_us = r->overhead_us;
    o.trainer.micro_batch = ROWS;
    o.trainer.flights = 1;
    o.trainer.updates_max = r->steps;
    o.trainer.share.target = r->target;
    o.trainer.share.every = 0;
    o.members = MEMBERS;
    o.members_max = MEMBERS;
    o.device = &device;
    o.edit = edit;
    o.on_update = on_update;
    o.arg = r;
    r->world = crew_world(seed, &files);
    waiting.crew = hth_crew_new(r->world, &o);
    if (r->dies > 0)
        kill_one(r, waiting.crew);
    assert_true(hth_world_run_until_true(r->world, are_done, &waiting, 600 * S));
    r->samples /= r->counted;
    r->step_s = (double)(r->last_us - r->from_us) / S / r->counted;
    print_message("seed %llu: %.1f samples of %llu, %.3f s a step, the slowest %.3f s\n",
                  (unsigned long long)seed, r->samples, (unsigned long long)r->target, r->step_s,
                  (double)r->slowest_us / S);
    crew_end(r->world, waiting.crew);
}

/* Four and five each of nine are 40; with four each they have 36, and four go on. The very first
 * try fails, so that they go on all for 16 steps. */
static void short_attempts_reach_the_target_exactly(void **state)
{
    struct run r = {.target = 160, .steps = 60, .from = 20, .overhead_us = 5 * MS};

    (void)state;
    run(&r, 1);
    assert_close(r.samples, 160, 0, 0);
    assert_true(r.step_s < 0.4);
}

/* Three land once in each step, though by all they say they land again and again, and in each third
 * step one of them is before all others. */
static void trainers_that_never_land_do_not_delay_steps(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct run r = {.capped = 3, .target = 128, .steps = 20, .overhead_us = 40 * MS};

        run(&r, seed);
        assert_true(r.samples < 1.1 * 128);
        assert_true(r.step_s < 2.7);
    }
}

/* Each trainer dies in one run; at one in eight such steps the dead one would be first. */
static void death_of_the_first_trainer_does_not_stop_steps(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < MEMBERS; i++) {
        struct run r = {.dies = i, .target = 128, .steps = 12, .overhead_us = 40 * MS};

        run(&r, i);
        assert_true(r.samples < 1.03 * 128);
        assert_true(r.slowest_us < 2700 * MS); /* half a micro-batch and an average more */
    }
}

/* ---- words of those who never land ----------------------------------------------------------- */

/* They come to each average, and speak for themselves. The second one is fast and lands again at
 * any moment, by its words; the third, which makes everybody believe that steps are short and
 * nobody is carried on for long, does not. So the batch is always about to be full. */
static void lie(struct hth_crew *crew, int64_t now_us)
{
    uint64_t step = hth_roster_self(hth_crew_roster(crew, 0))->step;
    struct hth_roster *second = hth_crew_roster(crew, 1), *third = hth_crew_roster(crew, 2);

    hth_roster_set_landings(second, ROWS, now_us + 60 * MS);
    hth_roster_set_progress(second, step, ROWS, 120);
    hth_roster_set_landings(third, ROWS, INT64_MAX);
    hth_roster_set_progress(third, step, ROWS, 360);
}

static void brings_little(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    crew_own_rows(arg, i, t);
    if (i == 1 || i == 2)
        t->share.step_samples_max = ROWS;
}

static void check_never_full(uint64_t seed)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct hth_device device = crew_slow;
    struct crew_scene *f;
    uint64_t steps;

    device.job_overhead_us = 40 * MS;
    o.trainer.micro_batch = ROWS;
    o.trainer.flights = 1;
    o.trainer.updates_max = 1000;
    o.trainer.share.target = 48;
    o.trainer.share.every = 0;
    o.members = 4;
    o.device = &device;
    o.edit = brings_little;
    f = crew_scene_new(seed, &o);
    crew_scene_run(f, 0, 3, 60 * S);
    for (int i = 0; i < 15000; i++) {
        lie(f->crew, hth_world_now_us(f->world));
        hth_world_run_for(f->world, 20 * MS);
    }
    steps = f->stats[0].updates - 3;
    print_message("seed %llu, beside two who lie: %llu steps in five minutes\n",
                  (unsigned long long)seed, (unsigned long long)steps);
    assert_true(steps > 30); /* 21 and 23 where all wait for the others */
    crew_scene_free(f);
}

static void false_landings_do_not_stop_steps(void **state)
{
    (void)state;
    check_never_full(3);
    check_never_full(4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_attempts_reach_the_target_exactly),
        cmocka_unit_test(trainers_that_never_land_do_not_delay_steps),
        cmocka_unit_test(death_of_the_first_trainer_does_not_stop_steps),
        cmocka_unit_test(false_landings_do_not_stop_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
