/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers: they reduce with trainers, change no bit, and their absence or death costs little.
 * Clients take part without reducing.
 */
#include "averaging/peer.h"
#include "collab/collab.h"
#include "core/mem.h"
#include "kernels/params.h"
#include "rpc/rpc.h"
#include "support/test.h"
#include "trainer/crew.h"
#include "trainer/helper.h"

#include <stdio.h>

#define S    HTH_US_PER_S
#define MS   HTH_US_PER_MS
#define PORT 7100

enum { HELPERS = 2 };

struct helping {
    struct fixture *f;
    struct hth_node *node;
    struct hth_rpc *rpc;
    struct hth_avg_peer avg;
    struct hth_helper *helper;
};

struct fixture {
    struct crew_scene *s;
    struct hth_world *world; /* the scene's, */
    struct hth_crew *crew;   /* both */
    struct hth_crew_opts opts;
    struct helping helping[HELPERS];
};

/* ---- the helpers ----------------------------------------------------------------------------- */

static void on_change(void *arg)
{
    struct helping *h = arg;

    if (h->helper != NULL)
        hth_helper_nudge(h->helper);
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct helping *h = arg;
    struct hth_addr addr = hth_node_addr(h->node, PORT);
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_avg_peer_opts avg = HTH_AVG_PEER_OPTS_INIT;
    struct hth_helper_opts o = {.model = h->f->opts.trainer.model,
                                .optim = h->f->opts.trainer.optim,
                                .share = h->f->opts.trainer.share};

    rpc.network = avg.network = "crew";
    rpc.listen = &addr;
    rpc.on_peer_lost = hth_avg_peer_lost;
    rpc.arg = &h->avg;
    avg.addr = addr;
    avg.mode = HTH_AVG_HELPER;
    avg.on_change = on_change;
    avg.arg = h;
    assert_ok(hth_rpc_new(env, &rpc, &h->rpc));
    assert_ok(hth_avg_peer_open(env, h->rpc, dht, &avg, &h->avg));
    o.rpc = h->rpc;
    o.averager = &h->avg.averager;
    o.share.roster = h->avg.roster;
    o.share.reducer = h->avg.reducer;
    o.share.dht = dht;
    o.share.network = "crew";
    o.share.addr = addr;
    assert_ok(hth_helper_new(env, &o, &h->helper));
}

static void halt(struct hth_env *env, void *arg)
{
    struct helping *h = arg;

    (void)env;
    hth_helper_free(h->helper);
    hth_avg_peer_close(&h->avg);
    hth_rpc_free(h->rpc);
    h->helper = NULL;
}

static void add_helper(struct fixture *f, uint32_t i)
{
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    char name[16];

    snprintf(name, sizeof(name), "helper%u", i);
    f->helping[i].f = f;
    node.boot = boot;
    node.halt = halt;
    node.arg = &f->helping[i];
    node.device = &crew_slow;
    f->helping[i].node = hth_world_node(f->world, name, &node);
}

static uint64_t helped(const struct fixture *f, uint32_t i)
{
    struct hth_averager_stats s;

    hth_helper_rounds(f->helping[i].helper, &s);
    return s.rounds;
}

/* ---- the trainers ---------------------------------------------------------------------------- */

static struct fixture *start(uint64_t seed, bool big, uint32_t trainers, uint32_t clients,
                             const char *grid, enum hth_share_mode mode)
{
    struct fixture *f = hth_new(struct fixture);
    struct hth_crew_opts *o = &f->opts;

    *o = crew_opts(mode);
    o->clients = clients;
    if (big) { /* a vector of several shares */
        o->trainer = task_lm();
        o->trainer.local_optim.schedule.lr = 0;
        o->trainer.model.balance = 0;
        o->trainer.model.d = 48;
        o->trainer.micro_batch = 2;
        o->trainer.eval_every = 0;
        o->trainer.share.mode = mode;
    }
    o->trainer.share.target = 3 * o->trainer.micro_batch * HTH_MAX(trainers, 2u);
    o->trainer.share.every = 5;
    o->trainer.flights = 1;
    o->trainer.updates_max = 1u << 30;
    o->members = trainers;
    o->edit = crew_own_rows;
    o->device = &crew_slow;
    if (grid != NULL)
        assert_ok(hth_avg_shape_parse(grid, &o->trainer.share.shape));
    f->s = crew_scene_new(seed, o);
    f->world = f->s->world;
    f->crew = f->s->crew;
    return f;
}

static void end(struct fixture *f)
{
    assert_ok(hth_crew_err(f->crew));
    crew_scene_free(f->s);
    hth_free(f);
}

static uint64_t step_of(struct fixture *f, uint32_t i)
{
    return crew_stats(f->crew, i).updates;
}

/* Lets so much time pass; returns the step at which all are. */
static uint64_t same_after(struct fixture *f, int64_t us)
{
    hth_world_run_for(f->world, us);
    return crew_same(f->world, f->crew, S);
}

static uint64_t bytes_of(struct fixture *f)
{
    struct hth_rpc_stats s;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < hth_crew_count(f->crew); i++) {
        hth_rpc_stats(hth_crew_rpc(f->crew, i), &s);
        bytes += s.bytes_out;
    }
    return bytes;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Bytes that the trainers send for a step. */
static double bytes_a_step(uint64_t seed, uint32_t helpers)
{
    struct fixture *f = start(seed, true, 3, 0, NULL, HTH_SHARE_BATCH);

    for (uint32_t i = 0; i < helpers; i++)
        add_helper(f, i);
    hth_world_run_for(f->world, 6 * S);
    uint64_t bytes = bytes_of(f), before = step_of(f, 0), was[HELPERS] = {0};
    for (uint32_t i = 0; i < helpers; i++)
        was[i] = helped(f, i);
    hth_world_run_for(f->world, 4 * S);
    uint64_t steps = step_of(f, 0) - before;
    double each = (double)(bytes_of(f) - bytes) / (double)steps;
    same_after(f, 0);
    print_message("%u helpers: %llu steps in 4 s, %.0f bytes a step\n", helpers,
                  (unsigned long long)steps, each);
    for (uint32_t i = 0; i < helpers; i++)
        assert_true(10 * (helped(f, i) - was[i]) >= 8 * steps);
    end(f);
    return each;
}

static void helpers_take_bytes_off_the_trainers(void **state)
{
    double none = bytes_a_step(1, 0), one = bytes_a_step(1, 1), two = bytes_a_step(1, 2);

    (void)state;
    assert_true(one < 0.95 * none);
    assert_true(two < one);
}

/* Of a helper that dies the trainers lose a round, and no step; killed in mid-round or frozen, and
 * back again. */
static void the_death_of_a_helper_costs_a_round(void **state)
{
    static const enum hth_crash how[] = {HTH_CRASH_RESET, HTH_CRASH_SILENT};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(how); k++) {
        struct fixture *f = start(5 + k, true, 3, 0, NULL, HTH_SHARE_BATCH);
        struct hth_collab_stats stats;

        add_helper(f, 0);
        hth_world_run_for(f->world, 6 * S);
        assert_true(helped(f, 0) > 5);
        do {
            hth_world_run_for(f->world, MS / 2);
            hth_collab_stats(hth_trainer_collab(hth_crew_trainer(f->crew, 0)), &stats);
        } while (stats.phase != HTH_COLLAB_AVERAGES);
        hth_node_crash(f->helping[0].node, how[k]);
        int64_t died = hth_world_now_us(f->world);
        crew_scene_run(f->s, 0, stats.step + 2, 5 * S);
        print_message("a step and one more %lld ms after the death\n",
                      (long long)(hth_world_now_us(f->world) - died) / 1000);
        assert_true(hth_world_now_us(f->world) - died < (k == 0 ? 1200 : 2000) * MS);
        same_after(f, 2 * S);
        hth_node_restart(f->helping[0].node);
        hth_world_run_for(f->world, 20 * S);
        assert_true(helped(f, 0) > 5);
        same_after(f, 0);
        end(f);
    }
}

/* It finds trainers that come later; and rests when it is told to. */
static void a_helper_is_there_first(void **state)
{
    struct fixture *f = start(7, false, 0, 0, NULL, HTH_SHARE_BATCH);

    (void)state;
    add_helper(f, 0);
    hth_world_run_for(f->world, 15 * S);
    hth_crew_join(f->crew);
    hth_crew_join(f->crew);
    hth_world_run_for(f->world, 15 * S);
    uint64_t rounds = helped(f, 0);
    assert_true(rounds > 20);
    assert_true(hth_roster_self(f->helping[0].avg.roster)->step + 100 > same_after(f, 0));
    hth_helper_quiesce(f->helping[0].helper);
    hth_world_run_for(f->world, 2 * S);
    rounds = helped(f, 0);
    uint64_t step = step_of(f, 0);
    hth_world_run_for(f->world, 5 * S);
    assert_int_equal(helped(f, 0), rounds);
    assert_true(step_of(f, 0) > step + 5);
    end(f);
}

/* On a grid each line has helpers of its own; a trainer and a helper are no company: the trainer's
 * own samples are the batch; and where trainers step by themselves it is in their rounds. */
static void helpers_are_where_trainers_average(void **state)
{
    static const struct {
        uint32_t trainers, helpers;
        const char *grid;
        enum hth_share_mode mode;
        uint64_t updates, least, most; /* rounds of each helper */
    } cases[] = {{4, HELPERS, "2x2", HTH_SHARE_BATCH, 40, 10, UINT64_MAX},
                 {1, 1, NULL, HTH_SHARE_BATCH, 20, 0, 0},
                 {2, 1, NULL, HTH_SHARE_LOCAL, 200, 10, UINT64_MAX}};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct fixture *f = start(8 + k, false, cases[k].trainers, 0, cases[k].grid, cases[k].mode);

        for (uint32_t i = 0; i < cases[k].helpers; i++)
            add_helper(f, i);
        crew_scene_run(f->s, 0, cases[k].updates, 120 * S);
        for (uint32_t i = 0; i < cases[k].helpers; i++)
            assert_in_range(helped(f, i), cases[k].least, cases[k].most);
        struct hth_train_stats stats = crew_stats(f->crew, 0);
        assert_true(stats.rounds_failed <= 2 && stats.share.run.averages.failed == 0);
        assert_true(cases[k].trainers > 1 || stats.share.steps_shared == 0);
        if (cases[k].mode == HTH_SHARE_BATCH)
            same_after(f, 0);
        end(f);
    }
}

static void bad_options_are_refused(void **state)
{
    struct fixture *f = start(34, false, 1, 0, NULL, HTH_SHARE_BATCH);
    struct hth_helper_opts o = {.model = f->opts.trainer.model,
                                .optim = f->opts.trainer.optim,
                                .share = f->opts.trainer.share};
    struct hth_helper *h;

    (void)state;
    hth_world_run_for(f->world, S);
    assert_err(HTH_E_CONFIG, hth_helper_new(hth_node_env(hth_crew_node(f->crew, 0)), &o, &h));
    assert_null(h);
    hth_helper_free(h);
    end(f);
}

/* ---- clients --------------------------------------------------------------------------------- */

/* All that are up are in the last roll, and it knows the clients. */
static void check_roll(struct fixture *f, uint32_t members, uint32_t clients)
{
    const struct hth_collab *c = NULL;
    uint32_t known = 0;

    for (uint32_t i = 0; i < hth_crew_count(f->crew) && c == NULL; i++)
        if (hth_crew_trainer(f->crew, i) != NULL)
            c = hth_trainer_collab(hth_crew_trainer(f->crew, i));
    const struct hth_chain_link *link =
        hth_chain_at(hth_collab_chain(c), hth_collab_choice(c)->tip);
    for (uint32_t i = 0; i < link->count; i++) {
        assert_true(link->roll[i].marks & HTH_ROLL_IN);
        known += (link->roll[i].marks & HTH_ROLL_CLIENT) != 0;
    }
    assert_int_equal(link->count, members);
    assert_int_equal(known, clients);
}

static void clients_are_members(void **state)
{
    static const struct {
        uint32_t trainers, clients;
    } cases[] = {{4, 2}, {4, 3}};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct fixture *f =
            start(20 + k, false, cases[k].trainers, cases[k].clients, NULL, HTH_SHARE_BATCH);

        uint64_t step = same_after(f, 15 * S);
        print_message("%u clients of %u: step %llu\n", cases[k].clients, cases[k].trainers,
                      (unsigned long long)step);
        assert_true(step > 20);
        check_roll(f, cases[k].trainers, cases[k].clients);
        /* A client that comes again is a newcomer. */
        hth_node_crash(hth_crew_node(f->crew, 0), k == 0 ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
        assert_true(same_after(f, 5 * S) > step + 5);
        hth_node_restart(hth_crew_node(f->crew, 0));
        assert_true(same_after(f, 5 * S) > step + 10);
        check_roll(f, cases[k].trainers, cases[k].clients);
        end(f);
    }
}

/* Clients can't meet alone: without the only one that is dialled they wait. They go on with it when
 * a cut ends; if it died, and is another one now, it takes them on. */
static void clients_wait_for_one_that_is_dialled(void **state)
{
    enum { CUT, KILLED, SILENT };

    (void)state;
    for (int k = CUT; k <= SILENT; k++) {
        struct fixture *f = start(30 + (uint64_t)k, false, 4, 3, NULL, HTH_SHARE_BATCH);
        struct hth_node *node = hth_crew_node(f->crew, 3);
        uint64_t step = same_after(f, 12 * S);

        if (k == CUT)
            hth_node_set_side(node, 1);
        else
            hth_node_crash(node, k == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
        hth_world_run_for(f->world, 20 * S);
        for (uint32_t i = 0; i < 3; i++)
            assert_in_range(step_of(f, i), step, step + 1);
        if (k == CUT)
            hth_world_heal(f->world);
        else
            hth_node_restart(node);
        assert_true(same_after(f, (k == CUT ? 15 : 25) * S) > step + 10);
        check_roll(f, 4, 3);
        end(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(helpers_take_bytes_off_the_trainers),
        cmocka_unit_test(the_death_of_a_helper_costs_a_round),
        cmocka_unit_test(a_helper_is_there_first),
        cmocka_unit_test(helpers_are_where_trainers_average),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(clients_are_members),
        cmocka_unit_test(clients_wait_for_one_that_is_dialled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
