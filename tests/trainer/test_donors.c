/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trainers of a run in local mode that hand out a state which is none: numbers of +-5, 8 steps
 * ahead of the others. A newcomer takes that of an honest one, or says that it found none.
 */
#include "kernels/params.h"
#include "support/suite.h"
#include "trainer/crew.h"
#include "trainer/trainer_int.h"

#define BEGUN (2 * HTH_SHARE_LAG_LOCAL)

static void spoil(struct hth_trainer *t)
{
    struct hth_params *params = hth_model_params(hth_trainer_model(t));
    float *x = hth_params_flat(params, HTH_PART_VALUE);

    for (size_t i = 0; i < hth_params_flat_len(params); i++)
        x[i] = i % 2 ? 5 : -5;
    hth_params_touched(params);
    t->stats.updates += 8;
}

struct arrival {
    struct crew_scene *scene;
    uint32_t i;
};

static bool trains(void *arg)
{
    const struct arrival *a = arg;
    struct hth_train_stats s = crew_stats(a->scene, a->i);

    return s.share.run.phase == HTH_COLLAB_GATHERS && s.flights_landed > 0;
}

/* The first losses of a newcomer beside so many trainers, of which the last `liars` lie; *fetched:
 * states that it took. */
static double first_loss(uint32_t members, uint32_t liars, uint64_t *fetched)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_LOCAL, members);
    struct crew_scene *s;
    struct arrival late;
    double loss;

    o.trainer.share.every = 0; /* states, and no means */
    o.reducer.clip = HTH_AVG_CLIP;
    s = crew_scene_new(members, &o);
    for (uint32_t i = 0; i < members; i++)
        crew_scene_run(s, i, BEGUN, 100 * S);
    for (uint32_t i = members - liars; i < members; i++)
        spoil(hth_crew_trainer(s->crew, i));
    hth_world_run_for(s->world, 5 * S); /* they have said where they are */
    late = (struct arrival){s, hth_crew_join(s->crew)};
    assert_true(hth_world_run_until_true(s->world, trains, &late, 200 * S));
    loss = crew_stats(s, late.i).loss;
    *fetched = crew_stats(s, late.i).share.catch_ups;
    assert_int_equal(crew_stats(s, late.i).share.states_refused > 0, liars > 0);
    crew_scene_free(s);
    return loss;
}

TEST(lying_donors_are_found_out)
{
    uint64_t fetched;

    assert_true(first_loss(3, 0, &fetched) < 0.3 && fetched == 1);
    assert_true(first_loss(3, 1, &fetched) < 0.3 && fetched == 1);
    assert_true(first_loss(5, 2, &fetched) < 0.3 && fetched == 1);
    /* Nobody else is there: it begins with what it has. */
    assert_true(first_loss(1, 1, &fetched) < 2 && fetched == 0);
}

/* As one that slept: the others are far on, and it has not moved. It refuses their means, and then
 * takes their state. */
TEST(trainer_that_refuses_many_means_looks_where_the_run_is)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_LOCAL, 2);
    struct crew_scene *s;
    struct hth_trainer *t;

    o.trainer.share.every = 8;
    o.reducer.clip = HTH_AVG_CLIP;
    s = crew_scene_new(9, &o);
    crew_scene_run(s, 0, BEGUN, 100 * S);
    crew_scene_run(s, 1, BEGUN, 100 * S);
    t = hth_crew_trainer(s->crew, 1);
    assert_int_equal(t->stats.share.means_refused, 0);
    t->stats.updates -= HTH_SHARE_LAG_LOCAL + 16;
    for (uint32_t i = 0; i < 30000 && t->stats.share.catch_ups == 0; i++) {
        memset(t->average.change, 0, sizeof(t->average.change));
        hth_world_run_for(s->world, 10 * HTH_US_PER_MS);
    }
    assert_int_equal(t->stats.share.catch_ups, 1);
    assert_int_equal(t->stats.share.means_refused, 8);
    hth_world_run_for(s->world, 30 * S);
    assert_int_equal(t->stats.share.means_refused, 8);
    crew_scene_free(s);
}
