/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A helper in the simulator: it is in the trainers' groups and reduces, its death costs a round,
 * and nobody counts on it.
 */
#include "trainer/helper.h"

#include "averaging/peer.h"
#include "core/mem.h"
#include "rpc/rpc.h"
#include "support/test.h"
#include "trainer/crew.h"

#define S    HTH_US_PER_S
#define PORT 7100

struct fixture {
    struct hth_world *world;
    struct hth_crew *crew;
    struct task_files files;
    struct hth_crew_opts opts;
    struct hth_train_stats stats[8];
    uint64_t goal;
    /* the helper */
    struct hth_node *node;
    struct hth_rpc *rpc;
    struct hth_avg_peer avg;
    struct hth_helper *helper;
};

/* ---- the helper ------------------------------------------------------------------------------ */

static void on_change(void *arg)
{
    struct fixture *f = arg;

    if (f->helper != NULL)
        hth_helper_nudge(f->helper);
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct fixture *f = arg;
    struct hth_addr addr = hth_node_addr(f->node, PORT);
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_avg_peer_opts avg = HTH_AVG_PEER_OPTS_INIT;
    struct hth_helper_opts o = {.model = f->opts.trainer.model,
                                .optim = f->opts.trainer.optim,
                                .share = f->opts.trainer.share};

    rpc.network = avg.network = "crew";
    rpc.listen = &addr;
    rpc.on_peer_lost = hth_avg_peer_lost;
    rpc.arg = &f->avg;
    avg.addr = addr;
    avg.mode = HTH_AVG_HELPER;
    avg.on_change = on_change;
    avg.arg = f;
    assert_ok(hth_rpc_new(env, &rpc, &f->rpc));
    assert_ok(hth_avg_peer_open(env, f->rpc, dht, &avg, &f->avg));
    o.share.roster = f->avg.roster;
    o.averager = &f->avg.averager;
    assert_ok(hth_helper_new(env, &o, &f->helper));
}

static void halt(struct hth_env *env, void *arg)
{
    struct fixture *f = arg;

    (void)env;
    hth_helper_free(f->helper);
    hth_avg_peer_close(&f->avg);
    hth_rpc_free(f->rpc);
    f->helper = NULL;
}

/* ---- the trainers ---------------------------------------------------------------------------- */

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    ((struct fixture *)arg)->stats[i] = *stats;
}

static struct fixture *fixture_new(uint64_t seed, uint32_t trainers, enum hth_share_mode mode,
                                   const char *grid)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    struct hth_crew_opts *o = &f->opts;

    f->world = crew_world(seed, &f->files);
    *o = crew_opts(mode);
    o->trainer.updates_max = 100000;
    o->trainer.share.target = 24 * trainers;
    o->trainer.share.every = 5;
    o->device = &crew_slow;
    o->members = trainers;
    o->edit = crew_own_rows;
    o->on_update = on_update;
    o->arg = f;
    if (grid != NULL)
        assert_ok(hth_avg_shape_parse(grid, &o->roster.shape));
    f->crew = hth_crew_new(f->world, o);
    node.boot = boot;
    node.halt = halt;
    node.arg = f;
    f->node = hth_world_node(f->world, "helper", &node);
    return f;
}

static void fixture_free(struct fixture *f)
{
    crew_end(f->world, f->crew);
    hth_free(f);
}

static bool has_reached(void *arg)
{
    struct fixture *f = arg;
    bool all = true;

    for (uint32_t i = 0; i < hth_crew_count(f->crew); i++)
        all &= f->stats[i].updates >= f->goal;
    return all;
}

static void run_to(struct fixture *f, uint64_t step, int64_t within_us)
{
    f->goal = step;
    if (!hth_world_run_until_true(f->world, has_reached, f, within_us))
        fail_msg("step %llu was not reached", (unsigned long long)step);
    assert_ok(hth_crew_err(f->crew));
}

static uint64_t helped(const struct fixture *f)
{
    struct hth_helper_stats s;

    hth_helper_stats(f->helper, &s);
    return s.rounds;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* In nearly every step of shared batches; and when it dies, the trainers go on, and agree. */
static void check_batches(uint32_t trainers, const char *grid)
{
    struct fixture *f = fixture_new(31, trainers, HTH_SHARE_BATCH, grid);
    struct hth_helper_stats s;
    struct hth_averager_stats a;

    run_to(f, 10, 120 * S);
    uint64_t before = helped(f);
    run_to(f, 30, 120 * S);
    assert_in_range(helped(f) - before, 15, 60);
    hth_helper_stats(f->helper, &s);
    assert_true(s.step + 2 >= 30);
    hth_averager_stats(&f->avg.averager, &a);
    assert_int_equal(a.population, trainers);
    assert_true(a.bytes_in > 0 && a.bytes_out > 0);
    assert_true(hth_crew_spread(f->crew) < 1e-6);
    for (uint32_t i = 0; i < trainers; i++)
        assert_true(f->stats[i].share.steps_shared >= 25);
    hth_node_crash(f->node, HTH_CRASH_SILENT);
    run_to(f, 50, 60 * S);
    assert_true(hth_crew_spread(f->crew) < 1e-4);
    fixture_free(f);
}

static void helper_joins_shared_batches_and_its_death_does_no_harm(void **state)
{
    (void)state;
    check_batches(3, NULL);
}

/* On a grid it stands in one of the lines. */
static void helper_joins_a_line_of_a_grid(void **state)
{
    (void)state;
    check_batches(4, "2x2");
}

static void helper_joins_rounds_of_local_trainers(void **state)
{
    struct fixture *f = fixture_new(32, 2, HTH_SHARE_LOCAL, NULL);

    (void)state;
    run_to(f, 200, 120 * S);
    assert_true(helped(f) >= 10);
    assert_true(f->stats[0].rounds >= 10);
    assert_true(f->stats[0].rounds_failed <= 2);
    fixture_free(f);
}

/* Before it goes it lets its last round end, so that its end costs nobody one. */
static void quiescing_helper_ends_its_last_round(void **state)
{
    struct fixture *f = fixture_new(35, 3, HTH_SHARE_BATCH, NULL);
    struct hth_averager_stats a;
    uint64_t rounds, step;

    (void)state;
    run_to(f, 10, 120 * S);
    hth_helper_quiesce(f->helper);
    hth_world_run_for(f->world, 3 * S);
    rounds = helped(f);
    step = f->stats[0].updates;
    hth_averager_stats(&f->avg.averager, &a);
    assert_int_equal(a.under_way, 0);
    run_to(f, step + 10, 60 * S);
    assert_int_equal(helped(f), rounds);
    fixture_free(f);
}

/* A trainer and a helper are no company: the trainer's own samples are the batch. */
static void helper_does_not_count_as_a_trainer(void **state)
{
    struct fixture *f = fixture_new(33, 1, HTH_SHARE_BATCH, NULL);

    (void)state;
    run_to(f, 20, 30 * S);
    assert_int_equal(f->stats[0].share.steps_shared, 0);
    assert_int_equal(f->stats[0].share.tries_failed, 0);
    assert_int_equal(helped(f), 0);
    fixture_free(f);
}

static void bad_options_are_refused(void **state)
{
    struct fixture *f = fixture_new(34, 1, HTH_SHARE_LOCAL, NULL);
    struct hth_helper_opts o = {.model = f->opts.trainer.model,
                                .optim = f->opts.trainer.optim,
                                .share = f->opts.trainer.share};
    struct hth_helper *h;

    (void)state;
    hth_world_run_for(f->world, S);
    assert_err(HTH_E_CONFIG, hth_helper_new(hth_node_env(f->node), &o, &h));
    assert_null(h);
    hth_helper_free(h);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(helper_joins_shared_batches_and_its_death_does_no_harm),
        cmocka_unit_test(helper_joins_a_line_of_a_grid),
        cmocka_unit_test(helper_joins_rounds_of_local_trainers),
        cmocka_unit_test(helper_does_not_count_as_a_trainer),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(quiescing_helper_ends_its_last_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
