/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fifth comes to four trainers that share batches, at any moment of a step, and parameters are
 * never averaged: how soon it steps with them, how many states it takes, and what it costs them,
 * whatever a state takes beside a step.
 */
#include <stdlib.h>

#include "averaging/roster.h"
#include "core/mem.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S       HTH_US_PER_S
#define MS      HTH_US_PER_MS
#define MEMBERS 4 /* and the newcomer, whose number that is */
#define SEEDS   6
#define IN_US   (40 * S) /* else it does not get in */

struct row {
    double bytes_per_s; /* of each line, either way */
    uint64_t target;
};

/* Of one run, or the means of several. */
struct seen {
    double step_s, state_s, first_s, states, heard, beside_s;
    uint32_t left_out, apart; /* not in; in, and not what the others are within eight steps */
};

/* Where the foremost of the four is: it happens that one falls behind. */
static uint64_t reached(const struct crew_scene *s)
{
    uint64_t step = 0;

    for (uint32_t i = 0; i < MEMBERS; i++)
        step = HTH_MAX(step, s->stats[i].updates);
    return step;
}

struct goal {
    const struct crew_scene *scene;
    uint64_t step;
};

static bool is_reached(void *arg)
{
    const struct goal *g = arg;

    return reached(g->scene) >= g->step;
}

static void run_to(const struct crew_scene *s, uint64_t step)
{
    struct goal g = {s, step};

    assert_true(hth_world_run_until_true(s->world, is_reached, &g, 300 * S));
}

static bool is_in(void *arg)
{
    return ((const struct crew_scene *)arg)->stats[MEMBERS].updates > 0;
}

/* It goes on with them, and is what they are. */
static bool are_alike(void *arg)
{
    const struct crew_scene *s = arg;

    for (uint32_t i = 1; i <= MEMBERS; i++)
        if (s->stats[i].updates != s->stats[0].updates)
            return false;
    return s->stats[MEMBERS].share.steps_shared > 1 && hth_crew_spread(s->crew) < 1e-5;
}

static struct hth_crew_opts opts_of(const struct row *row, struct hth_device *device)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);

    *device = crew_slow;
    device->job_overhead_us = 20 * MS;
    device->up_bytes_per_s = device->down_bytes_per_s = row->bytes_per_s;
    o.device = device;
    o.members = MEMBERS;
    o.edit = crew_own_rows;
    o.trainer.model.d = 64;
    o.trainer.updates_max = 1000;
    o.trainer.share.target = row->target;
    o.trainer.share.every = 0;
    return o;
}

static double now_s(const struct crew_scene *s)
{
    return (double)hth_world_now_us(s->world) / S;
}

static double state_bytes(const struct crew_scene *s)
{
    struct hth_model *model = hth_trainer_model(hth_crew_trainer(s->crew, 0));

    return 12.0 * (double)hth_params_flat_len(hth_model_params(model));
}

/* How the newcomer comes in, and what a step takes the others meanwhile and after it. */
static void newcomer(struct crew_scene *s, struct seen *out)
{
    uint64_t steps = reached(s);
    double from_s = now_s(s);
    struct hth_train_stats stats;

    assert_int_equal(hth_crew_join(s->crew), MEMBERS);
    out->left_out = !hth_world_run_until_true(s->world, is_in, s, IN_US);
    out->first_s = now_s(s) - from_s;
    hth_trainer_stats(hth_crew_trainer(s->crew, MEMBERS), &stats);
    out->state_s = (double)stats.share.state_us / S;
    out->states = (double)stats.share.state_bytes / state_bytes(s);
    out->heard = (double)stats.share.heard;
    run_to(s, steps + 8);
    out->beside_s = (now_s(s) - from_s) / (double)(reached(s) - steps);
}

static struct seen one(const struct row *row, uint64_t seed)
{
    struct hth_device device;
    struct hth_crew_opts o = opts_of(row, &device);
    struct crew_scene *s = crew_scene_new(seed, &o);
    struct seen out = {0};
    struct hth_rng rng;
    double from_s;

    hth_rng_init(&rng, seed);
    run_to(s, 8);
    from_s = now_s(s);
    run_to(s, 16);
    out.step_s = (now_s(s) - from_s) / 8;
    hth_world_run_for(s->world, (int64_t)hth_rng_below(&rng, 3000 * MS));
    newcomer(s, &out);
    out.apart = out.left_out == 0 &&
                !hth_world_run_until_true(s->world, are_alike, s, 8 * (int64_t)(S * out.step_s));
    crew_scene_free(s);
    return out;
}

static struct seen means(const struct row *row, uint64_t seeds, uint64_t after)
{
    struct seen sum = {0};
    double n = (double)seeds;

    for (uint64_t k = 1; k <= seeds; k++) {
        struct seen s = one(row, after + k);

        sum.step_s += s.step_s / n;
        sum.state_s += s.state_s / n;
        sum.first_s += s.first_s / n;
        sum.states += s.states / n;
        sum.heard += s.heard / n;
        sum.beside_s += s.beside_s / n;
        sum.left_out += s.left_out;
        sum.apart += s.apart;
    }
    return sum;
}

/* A state takes longer than samples are gathered for: without what it hears it never gets in. */
static void state_slower_than_a_step_gets_in(void **state)
{
    const struct row row = {5e4, 24};
    struct seen seen;

    (void)state;
    seen = means(&row, 2, 20);
    assert_int_equal(seen.left_out + seen.apart, 0);
    assert_true(seen.heard >= 1);
}

/* They go on gathering after an average that was short, and its state comes meanwhile. */
static void state_arrives_while_others_gather_the_rest(void **state)
{
    const struct row row = {5e4, 192};
    struct seen seen;

    (void)state;
    seen = means(&row, 1, 1);
    assert_int_equal(seen.left_out + seen.apart, 0);
}

/* A state is there at once. */
static void fast_state_gets_in_at_once(void **state)
{
    const struct row row = {1e6, 48};
    struct seen seen;

    (void)state;
    seen = means(&row, 2, 20);
    assert_int_equal(seen.left_out + seen.apart, 0);
    assert_true(seen.first_s < 5 * seen.step_s);
}

/* Two whose steps are long know how many their averages have: two. A third that comes counts before
 * it has been in one of them, or it and they would leave each other's grids until then. */
static void third_trainer_counts_before_its_first_step(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const struct row row = {1e7, 1200}; /* 20 s of two */
        struct hth_device device;
        struct hth_crew_opts o = opts_of(&row, &device);
        struct crew_scene *s;
        uint32_t before, after;

        o.members = 2;
        o.trainer.model.d = 16;
        s = crew_scene_new(seed, &o);
        crew_scene_run(s, 0, 5, 200 * S);
        (void)hth_roster_shape(hth_crew_roster(s->crew, 0), &before);
        hth_world_run_for(s->world, (int64_t)(5 * S * seed));
        assert_int_equal(hth_crew_join(s->crew), 2);
        crew_scene_run(s, 2, 7, 45 * S);
        assert_int_equal(s->stats[2].share.tries_failed, 0);
        assert_true(s->stats[2].share.steps_shared > 0);
        /* Those of the state are others'. */
        assert_true(s->stats[2].own_samples < s->stats[2].samples / 2);
        /* Its mean of losses begins with its first loss: it is that of the others. */
        assert_true(s->stats[2].loss_ema > 0.8 * s->stats[0].loss_ema);
        (void)hth_roster_shape(hth_crew_roster(s->crew, 0), &after);
        assert_true(after - before <= 1);
        crew_scene_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest some[] = {cmocka_unit_test(state_slower_than_a_step_gets_in),
                                      cmocka_unit_test(state_arrives_while_others_gather_the_rest),
                                      cmocka_unit_test(fast_state_gets_in_at_once),
                                      cmocka_unit_test(third_trainer_counts_before_its_first_step)};

    return cmocka_run_group_tests(some, NULL, NULL);
}
