/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_halves.c: of two parts of a run that do not meet at most one steps. A network is cut in two
 * for three seconds, in one line and on grids; when it is whole again the run goes on.
 *
 * The cut comes between two steps. (In the middle of a try that has begun as one it may end in two
 * ways, as when somebody dies there, and lineage.h mends that: by hand, how often.) In one world of
 * five the run is old enough to know how many its averages have (hth_roster_present).
 */
#include <stdlib.h>

#include "core/mem.h"
#include "core/rng.h"
#include "support/test.h"
#include "trainer/crew.h"

#define MS         HTH_US_PER_MS
#define S          HTH_US_PER_S
#define STEPS_MAX  1000
#define STEPS_LESS 3 /* before the cut */
#define DIFFERENT  1e-5
#define OLD_US     (18 * S)

static const uint64_t seeds = 2; /* of each kind */

struct cut {
    const char *grid;
    uint32_t members, away; /* of them so many are cut off from the others */
    bool within;            /* comes at any moment */
};

struct run {
    struct hth_crew *crew;
    bool away[CREW_MAX];
    float *after[STEPS_MAX]; /* the parameters of the first who took that step */
    uint64_t steps[CREW_MAX];
    uint32_t different; /* steps that brought others */
};

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct run *r = arg;
    struct hth_params *p = hth_model_params(hth_trainer_model(hth_crew_trainer(r->crew, i)));
    const float *x = hth_params_flat(p, HTH_PART_VALUE);
    size_t len = hth_params_flat_len(p);
    double apart = 0, norm = 0;
    float **first;

    assert_true(stats->updates < STEPS_MAX);
    r->steps[i] = stats->updates;
    first = &r->after[stats->updates];
    if (*first == NULL) {
        *first = hth_new_array(float, len);
        memcpy(*first, x, len * sizeof(*x));
    }
    for (size_t k = 0; k < len; k++) {
        double d = (double)x[k] - (double)(*first)[k];

        apart += d * d;
        norm += (double)x[k] * (double)x[k];
    }
    r->different += sqrt(apart / norm) > DIFFERENT;
}

/* All have taken the same steps, and gather for the next one. */
static bool is_at_rest(void *arg)
{
    const struct run *r = arg;

    for (uint32_t i = 0; i < hth_crew_count(r->crew); i++) {
        struct hth_train_stats stats;

        if (hth_crew_trainer(r->crew, i) == NULL)
            return false;
        hth_trainer_stats(hth_crew_trainer(r->crew, i), &stats);
        if (stats.updates != r->steps[0] || stats.share.phase != HTH_SHARE_TRAINING)
            return false;
    }
    return r->steps[0] >= STEPS_LESS && hth_crew_spread(r->crew) < DIFFERENT;
}

static uint64_t latest(const struct run *r)
{
    uint64_t step = 0;

    for (uint32_t i = 0; i < CREW_MAX; i++)
        step = HTH_MAX(step, r->steps[i]);
    return step;
}

static void set_cut(const struct run *r, bool is_cut)
{
    for (uint32_t i = 0; i < hth_crew_count(r->crew); i++)
        hth_node_set_side(hth_crew_node(r->crew, i), is_cut && r->away[i]);
}

static struct run *begin(struct hth_world *world, const struct cut *c, struct hth_rng *rng)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct run *r = hth_new(struct run);

    for (uint32_t n = 0; n < c->away;) {
        uint32_t i = (uint32_t)hth_rng_below(rng, c->members);

        n += !r->away[i];
        r->away[i] = true;
    }
    o.members = o.members_max = c->members;
    o.device = &crew_slow;
    o.edit = crew_own_rows;
    o.on_update = on_update;
    o.arg = r;
    o.trainer.share.target = 12 * c->members;
    o.trainer.share.every = 0;
    o.trainer.updates_max = STEPS_MAX - 1;
    assert_ok(hth_avg_shape_parse(c->grid, &o.roster.shape));
    r->crew = hth_crew_new(world, &o);
    return r;
}

static void end(struct hth_world *world, struct run *r)
{
    for (uint32_t i = 0; i < hth_crew_count(r->crew); i++)
        hth_node_crash(hth_crew_node(r->crew, i), HTH_CRASH_RESET);
    crew_end(world, r->crew);
    for (uint32_t i = 0; i < STEPS_MAX; i++)
        hth_free(r->after[i]);
    hth_free(r);
}

/* Returns how many steps differed from the same one of somebody else during the cut; *went_on:
 * somebody stepped twice then, as one step may have been under way. */
static uint32_t check(const struct cut *c, uint64_t seed, uint32_t *went_on)
{
    struct task_files *files = hth_new(struct task_files);
    struct hth_world *world = crew_world(seed, files);
    struct hth_rng rng;
    struct run *r;
    uint32_t different;
    uint64_t step;

    hth_rng_init(&rng, seed);
    r = begin(world, c, &rng);
    if (seed % 2 == 0)
        hth_world_run_for(world, OLD_US);
    assert_true(hth_world_run_until_true(world, is_at_rest, r, 30 * S));
    if (c->within)
        hth_world_run_for(world, (int64_t)hth_rng_below(&rng, 600 * MS));
    step = latest(r);
    different = r->different;
    set_cut(r, true);
    hth_world_run_for(world, 3 * S);
    different = r->different - different;
    *went_on += latest(r) > step + 1;
    set_cut(r, false);
    step = latest(r);
    hth_world_run_for(world, 10 * S);
    assert_true(latest(r) > step);
    end(world, r);
    hth_free(files);
    return different;
}

static uint32_t check_seeds(const struct cut *c)
{
    uint32_t different = 0, went_on = 0;

    for (uint64_t seed = 1; seed <= seeds; seed++)
        different += check(c, seed, &went_on) > 0;
    print_message("%s, %u and %u, %s: %u of %llu went on, %u in two ways\n", c->grid, c->away,
                  c->members - c->away, c->within ? "at any moment" : "between steps", went_on,
                  (unsigned long long)seeds, different);
    if (!c->within)
        assert_true((went_on > 0) == (2 * c->away != c->members)); /* a half is no quorum */
    return different;
}

static const struct {
    const char *grid;
    uint32_t members, away;
} parts[] = {{"16", 9, 4},  {"16", 8, 4},  {"16", 8, 3},  {"3x3", 9, 4},
             {"3x3", 8, 4}, {"3x3", 9, 3}, {"4x4", 13, 5}};

static void partition_between_steps_heals(void **state)
{
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(parts); k++)
        assert_int_equal(
            check_seeds(&(struct cut){parts[k].grid, parts[k].members, parts[k].away, false}), 0);
}

/* Two trainers that were apart for long step each by itself. The one that yields then waits for the
 * other, whose step may be an earlier one, and does not yield ten times a second. */
static void yielding_branch_waits_for_the_other(void **state)
{
    struct task_files *files = hth_new(struct task_files);
    struct hth_world *world = crew_world(1, files);
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);
    struct run *r = hth_new(struct run);
    uint64_t yields = 0;

    (void)state;
    o.members = o.members_max = 2;
    o.device = &crew_slow;
    o.edit = crew_own_rows;
    o.trainer.share.target = 24;
    o.trainer.share.every = 0;
    o.trainer.updates_max = STEPS_MAX - 1;
    r->away[0] = true;
    r->crew = hth_crew_new(world, &o);
    hth_world_run_for(world, 10 * S);
    set_cut(r, true);
    hth_world_run_for(world, 40 * S);
    set_cut(r, false);
    hth_world_run_for(world, 30 * S);
    for (uint32_t i = 0; i < 2; i++) {
        struct hth_train_stats stats;

        hth_trainer_stats(hth_crew_trainer(r->crew, i), &stats);
        yields += stats.share.yields;
    }
    assert_int_equal(yields, 1);
    assert_true(hth_crew_spread(r->crew) < DIFFERENT);
    end(world, r);
    hth_free(files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(partition_between_steps_heals),
                                       cmocka_unit_test(yielding_branch_waits_for_the_other)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
