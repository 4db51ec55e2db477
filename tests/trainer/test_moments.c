/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_moments.c: moments of shared batches that are over soon: the first grid of a run, a copy of
 * the parameters under way when the number of the step changes, an average of parameters under way
 * when they are replaced, and a restart within a step.
 */
#include "averaging/roster.h"
#include "averaging/state.h"
#include "averaging/state_msg.h"
#include "rpc/rpc.h"
#include "support/test.h"
#include "trainer/crew.h"
#include "trainer/trainer_int.h"

#define S         HTH_US_PER_S
#define MS        HTH_US_PER_MS
#define MEMBERS   4
#define LATE      MEMBERS /* the number of who comes to them */
#define BACK      3       /* that of who goes and is back */
#define CREW_PORT 7000

static void hold_back(void *arg, uint32_t i, struct hth_trainer_opts *t);

/* On crew_slow a step of four takes a fifth of a second. */
static struct crew_scene *fixture_new(uint64_t seed, uint64_t every,
                                      const struct hth_device *device)
{
    struct hth_crew_opts o = crew_opts(HTH_SHARE_BATCH);

    o.trainer.updates_max = 200;
    o.trainer.checkpoint_path = "trunk.safetensors";
    o.trainer.checkpoint_every = device == &crew_slow ? 0 : 1;
    o.trainer.resume = true;
    o.trainer.share.target = 60;
    o.trainer.share.every = every;
    o.members = MEMBERS;
    o.device = device;
    o.edit = hold_back;
    return crew_scene_new(seed, &o);
}

/* ---- the first grid -------------------------------------------------------------------------- */

static bool have_grid(void *arg)
{
    struct crew_scene *f = arg;
    uint32_t generation;

    for (uint32_t i = 0; i < MEMBERS; i++) {
        if (hth_crew_roster(f->crew, i) == NULL)
            return false;
        (void)hth_roster_shape(hth_crew_roster(f->crew, i), &generation);
        if (generation == 0)
            return false;
    }
    return true;
}

static void first_grid_is_used_at_once(void **state)
{
    int64_t sum_us = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct crew_scene *f = fixture_new(seed, 0, &crew_slow);
        int64_t at_us;

        assert_true(hth_world_run_until_true(f->world, have_grid, f, 60 * S));
        at_us = hth_world_now_us(f->world);
        crew_scene_run(f, 0, 1, 60 * S);
        sum_us += hth_world_now_us(f->world) - at_us;
        crew_scene_free(f);
    }
    print_message("the first step came %.0f ms after the grid\n", (double)sum_us / 12 / MS);
    assert_true(sum_us / 12 < 250 * MS);
}

/* ---- how long it will take ------------------------------------------------------------------- */

/* By the run's steps, not by what this trainer brings to them. */
static void time_left_is_estimated_from_the_run(void **state)
{
    struct crew_scene *f = fixture_new(43, 0, &crew_slow);
    double left_s, took_s;
    int64_t at_us;

    (void)state;
    crew_scene_run(f, 0, 100, 120 * S);
    left_s = f->stats[0].eta_s;
    at_us = hth_world_now_us(f->world);
    crew_scene_run(f, 0, 200, 120 * S);
    took_s = (double)(hth_world_now_us(f->world) - at_us) / S;
    print_message("%.1f s left, it said; it took %.1f s\n", left_s, took_s);
    assert_close(left_s, took_s, 0.15, 0);
    crew_scene_free(f);
}

/* ---- a copy under way ------------------------------------------------------------------------ */

/* Donors that the late one asks for the state. */
static struct {
    struct hth_rpc *rpc;
    struct hth_rpc_call *call; /* NULL: none */
    uint64_t step;             /* of the last state that was described; 0: none */
} asker;

static void halt_asker(struct hth_env *env, void *arg)
{
    (void)env;
    (void)arg;
    hth_rpc_free(asker.rpc);
    asker.rpc = NULL;
}

static void on_described(void *arg, const struct hth_rpc_result *r)
{
    struct hth_state_desc desc;

    asker.call = NULL;
    if (r->err != HTH_OK)
        return;
    assert_ok(hth_state_desc_open(r->payload, r->payload_len, arg, &desc));
    asker.step = desc.step;
    hth_state_desc_clear(&desc);
}

static void ask(struct crew_scene *f)
{
    struct hth_env *late = hth_node_env(hth_crew_node(f->crew, LATE));
    struct hth_rpc_target target = {.peer = late->self,
                                    .addr = hth_node_addr(hth_crew_node(f->crew, LATE), CREW_PORT)};
    const struct hth_state_describe what = {
        .schema = hth_roster_self(hth_crew_roster(f->crew, LATE))->schema, .step_min = 1};
    struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_DESCRIBE, .timeout_us = 20 * S};
    uint8_t bytes[HTH_STATE_REQUEST_MAX];

    if (asker.call != NULL)
        return;
    call.body.payload = bytes;
    call.body.payload_len = hth_state_describe_pack(&what, bytes);
    assert_ok(
        hth_rpc_call(asker.rpc, &target, &call, on_described, (void *)late->crypto, &asker.call));
}

static void asker_comes(struct crew_scene *f)
{
    struct hth_node_opts node = HTH_NODE_OPTS_INIT;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;

    memset(&asker, 0, sizeof(asker));
    node.halt = halt_asker;
    rpc.network = "crew";
    assert_ok(
        hth_rpc_new(hth_node_env(hth_world_node(f->world, "asker", &node)), &rpc, &asker.rpc));
}

/* Each state comes a step or two too late to somebody, who then takes over the number of
 * the others' step. In that moment it copies its parameters for somebody else, who must not get
 * them under that number. */
static bool is_asked_in_the_moment(uint64_t seed)
{
    struct crew_scene *f = fixture_new(seed, 60, &crew_slow);
    struct hth_device slower = crew_slow;
    struct hth_train_stats s = {0};
    uint64_t clogged = UINT64_MAX, before = 0;
    bool copies = false;

    slower.job_overhead_us = 500 * MS;
    crew_scene_run(f, 0, 10, 60 * S);
    asker_comes(f);
    assert_int_equal(hth_crew_join(f->crew), LATE);
    for (int64_t end = hth_world_now_us(f->world) + 30 * S; hth_world_now_us(f->world) < end;) {
        hth_world_run_for(f->world, MS);
        if (hth_crew_trainer(f->crew, LATE) == NULL)
            continue;
        hth_trainer_stats(hth_crew_trainer(f->crew, LATE), &s);
        if (s.share.approximate)
            break;
        for (uint32_t i = 0; s.share.parts > 0 && clogged != s.share.catch_ups && i < LATE; i++)
            hth_world_clog(f->world, hth_crew_node(f->crew, i), hth_crew_node(f->crew, LATE),
                           hth_world_now_us(f->world) + 300 * MS);
        clogged = s.share.parts > 0 ? s.share.catch_ups : clogged;
        if (s.share.catch_ups < 1)
            continue;
        ask(f);
        if (!copies)
            hth_node_set_device(hth_crew_node(f->crew, LATE), &slower);
        copies = true;
        before = s.updates;
    }
    hth_world_run_for(f->world, 5 * S);
    print_message("took over %llu from %llu, described %llu\n", (unsigned long long)s.updates,
                  (unsigned long long)before, (unsigned long long)asker.step);
    assert_true(asker.step <= before);
    crew_scene_free(f);
    return s.share.approximate && asker.step > 0;
}

static void copied_state_keeps_its_step(void **state)
{
    uint32_t asked = 0;

    (void)state;
    for (uint64_t seed = 15; seed < 21; seed++)
        asked += is_asked_in_the_moment(seed);
    assert_true(asked >= 2);
}

/* ---- a state that is a step too late --------------------------------------------------------- */

static uint64_t states_of_late(struct crew_scene *f, struct hth_train_stats *s)
{
    memset(s, 0, sizeof(*s));
    if (hth_crew_trainer(f->crew, LATE) != NULL)
        hth_trainer_stats(hth_crew_trainer(f->crew, LATE), s);
    return s->share.catch_ups;
}

/* The others take a step while its state is under way. The next one is asked for at once. */
static void late_state_is_fetched_again_at_once(void **state)
{
    struct hth_device slower = crew_slow;
    struct hth_train_stats s;
    struct crew_scene *f;
    uint64_t step;
    int64_t at_us;

    (void)state;
    slower.job_overhead_us = 100 * MS; /* a step takes some 3 s */
    f = fixture_new(51, 0, &slower);
    crew_scene_run(f, 0, 1, 600 * S);
    assert_int_equal(hth_crew_join(f->crew), LATE);
    while (states_of_late(f, &s) == 0 && s.share.parts == 0)
        hth_world_run_for(f->world, MS);
    assert_int_equal(states_of_late(f, &s), 0);
    step = f->stats[0].updates;
    for (uint32_t i = 0; i < LATE; i++)
        hth_world_clog(f->world, hth_crew_node(f->crew, i), hth_crew_node(f->crew, LATE),
                       hth_world_now_us(f->world) + 3 * S);
    while (states_of_late(f, &s) == 0)
        hth_world_run_for(f->world, MS);
    assert_int_equal(s.updates, step);
    assert_int_equal(f->stats[0].updates, step + 1);
    at_us = hth_world_now_us(f->world);
    while (states_of_late(f, &s) == 1 && hth_world_now_us(f->world) - at_us < 5 * S)
        hth_world_run_for(f->world, MS);
    print_message("the next state is there %.0f ms after the late one\n",
                  (double)(hth_world_now_us(f->world) - at_us) / MS);
    assert_true(hth_world_now_us(f->world) - at_us < 800 * MS);
    crew_scene_free(f);
}

/* ---- an average under way -------------------------------------------------------------------- */

/* The averager of one of them, which keeps an offer of parameters to itself when the test says. */
static struct {
    bool armed;
    struct hth_averager_ops ops;
    struct hth_averager averager;
    const struct hth_averager_ops *true_ops;
    hth_avg_round_fn *fn;
    void *arg;
    struct hth_blob *values; /* NULL: nothing is kept back */
    uint64_t ticket;
    uint64_t steps, rounds; /* of its trainer, before */
} held;

static enum hth_err held_start(void *self, hth_avg_round_fn *fn, void *arg)
{
    held.fn = fn;
    held.arg = arg;
    return held.true_ops->start(self, fn, arg);
}

static enum hth_err held_offer(void *self, const struct hth_avg_offer *offer)
{
    if (!held.armed || offer->kind != 0) /* others are of gradients */
        return held.true_ops->offer(self, offer);
    held.armed = false;
    held.values = hth_blob_ref(offer->values);
    held.ticket = offer->ticket;
    return HTH_OK;
}

static void hold_back(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    (void)arg;
    if (i == LATE) /* else a late state would do */
        crew_deaf(t);
    if (i != BACK)
        return;
    memset(&held, 0, sizeof(held));
    held.true_ops = t->averager->ops;
    held.ops = *t->averager->ops;
    held.ops.start = held_start;
    held.ops.offer = held_offer;
    held.averager = (struct hth_averager){&held.ops, t->averager->self};
    t->averager = &held.averager;
}

static bool is_held(void *arg)
{
    (void)arg;
    return held.values != NULL;
}

static struct hth_train_stats stats_of_back(struct crew_scene *f)
{
    struct hth_train_stats s;

    hth_trainer_stats(hth_crew_trainer(f->crew, BACK), &s);
    return s;
}

/* And taken a step since: it need not do so again. */
static bool has_caught_up(void *arg)
{
    struct hth_train_stats s = stats_of_back(arg);

    held.steps = s.share.catch_ups > 0 ? held.steps : s.share.steps_shared;
    return s.share.steps_shared > held.steps;
}

static bool has_had_four(void *arg)
{
    return stats_of_back(arg).rounds >= held.rounds + 4;
}

static void let_it_go(void)
{
    struct hth_avg_result r = {.ticket = held.ticket,
                               .values = held.values,
                               .average = hth_blob_try_new(held.values->size),
                               .weight_fraction = 1,
                               .members = MEMBERS};

    memset(r.average->data, 0, r.average->size);
    held.fn(held.arg, &r);
    hth_blob_unref(r.average);
    hth_blob_unref(held.values);
    held.values = NULL;
}

/* Cut off while an average of its parameters is under way, one takes up the others': the average of
 * those it had is for nothing, and those that come later are not. */
static void average_of_replaced_parameters_is_dropped(void **state)
{
    struct crew_scene *f = fixture_new(41, 4, &crew_slow);
    struct hth_train_stats before, after;

    (void)state;
    crew_scene_run(f, 0, 10, 60 * S);
    held.armed = true;
    assert_true(hth_world_run_until_true(f->world, is_held, f, 60 * S));
    hth_node_set_side(hth_crew_node(f->crew, BACK), 1);
    hth_world_run_for(f->world, 8 * S);
    hth_world_heal(f->world);
    assert_true(hth_world_run_until_true(f->world, has_caught_up, f, 60 * S));
    before = stats_of_back(f);
    held.rounds = before.rounds;
    let_it_go();
    after = stats_of_back(f);
    assert_int_equal(after.rounds + after.rounds_failed, before.rounds + before.rounds_failed);
    assert_true(hth_world_run_until_true(f->world, has_had_four, f, 60 * S));
    assert_int_equal(stats_of_back(f).share.catch_ups, before.share.catch_ups);
    crew_scene_free(f);
}

static bool is_taking_up(void *arg)
{
    struct crew_scene *f = arg;

    return hth_crew_trainer(f->crew, BACK)->newcomer.boot == HTH_BOOT_APPLY;
}

/* The same, but the state is here and about to take their place: what was added to it then would be
 * in no lineage. */
static void average_is_dropped_while_a_state_is_applied(void **state)
{
    struct crew_scene *f = fixture_new(41, 60, &crew_slow);
    struct hth_train_stats before, after;

    (void)state;
    crew_scene_run(f, 0, 58, 60 * S);
    held.armed = true;
    assert_true(hth_world_run_until_true(f->world, is_held, f, 60 * S));
    held.steps = stats_of_back(f).share.steps_shared;
    hth_node_set_side(hth_crew_node(f->crew, BACK), 1);
    hth_world_run_for(f->world, 8 * S);
    hth_world_heal(f->world);
    assert_true(hth_world_run_until_true(f->world, is_taking_up, f, 60 * S));
    before = stats_of_back(f);
    let_it_go();
    after = stats_of_back(f);
    assert_int_equal(after.rounds + after.rounds_failed, before.rounds + before.rounds_failed);
    assert_true(hth_world_run_until_true(f->world, has_caught_up, f, 60 * S));
    assert_true(after.updates < 100); /* none of the next averages has brought them together */
    assert_true(hth_crew_spread(f->crew) < 1e-2);
    crew_scene_free(f);
}

/* ---- a restart within a step ----------------------------------------------------------------- */

static bool has_saved_six(void *arg)
{
    struct crew_scene *f = arg;
    struct hth_train_stats s;

    if (hth_crew_trainer(f->crew, BACK) == NULL)
        return false;
    hth_trainer_stats(hth_crew_trainer(f->crew, BACK), &s);
    return s.updates == 6 && s.checkpoints == 6;
}

static bool have_sixteen(void *arg)
{
    struct crew_scene *f = arg;

    for (uint32_t i = 0; i < MEMBERS; i++)
        if (f->stats[i].updates < 16)
            return false;
    return true;
}

/* Nobody has taken a step meanwhile: it has the others' parameters, and shows that it has. */
static void resume_within_a_step_keeps_the_history(void **state)
{
    struct hth_device slower = crew_slow;
    struct crew_scene *f;

    (void)state;
    slower.job_overhead_us = 250 * MS; /* a step takes some 8 s */
    f = fixture_new(31, 0, &slower);
    assert_true(hth_world_run_until_true(f->world, has_saved_six, f, 600 * S));
    hth_node_crash(hth_crew_node(f->crew, BACK), HTH_CRASH_RESET);
    hth_node_restart(hth_crew_node(f->crew, BACK));
    assert_true(hth_world_run_until_true(f->world, have_sixteen, f, 600 * S));
    assert_ok(hth_crew_err(f->crew));
    for (uint32_t i = 0; i < MEMBERS; i++) {
        assert_int_equal(f->stats[i].share.catch_ups, 0);
        assert_int_equal(f->stats[i].share.yields, 0);
    }
    assert_int_equal(f->stats[BACK].share.steps_shared, 10);
    assert_true(hth_crew_spread(f->crew) < 1e-6);
    crew_scene_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_grid_is_used_at_once),
        cmocka_unit_test(time_left_is_estimated_from_the_run),
        cmocka_unit_test(copied_state_keeps_its_step),
        cmocka_unit_test(late_state_is_fetched_again_at_once),
        cmocka_unit_test(average_of_replaced_parameters_is_dropped),
        cmocka_unit_test(average_is_dropped_while_a_state_is_applied),
        cmocka_unit_test(resume_within_a_step_keeps_the_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
