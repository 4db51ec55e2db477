/* SPDX-License-Identifier: Apache-2.0 */
/* test_train_recall.c: a trainer that is done waits for those who watch, and for nobody else. */
#include "app/train_recall.h"
#include "core/bytes.h"
#include "monitor/recall.h"
#include "sim/world.h"
#include "support/suite.h"

#define S        HTH_US_PER_S
#define PORT     4000
#define WATCHERS 18 /* more than a trainer remembers */

static struct {
    struct hth_world *world;
    struct hth_peer trainer;
    struct hth_addr addr;
    struct hth_train_recall *recall;
    struct watcher {
        struct hth_env *env;
        struct hth_rpc *rpc;
        uint32_t answers;
        struct hth_recall_told told;
    } watcher[WATCHERS];
    uint32_t done;
} fx;

static struct hth_rpc *rpc_of(struct hth_env *env, const struct hth_addr *listen)
{
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    struct hth_rpc *rpc;
    opts.network = "net";
    opts.listen = listen;
    assert_ok(hth_rpc_new(env, &opts, &rpc));
    return rpc;
}

static int set_up(void **state)
{
    (void)state;
    memset(&fx, 0, sizeof(fx));
    fx.world = hth_world_new(3, NULL);
    struct hth_node *node = hth_world_node(fx.world, "trainer", NULL);
    fx.addr = hth_node_addr(node, PORT);
    fx.trainer.env = hth_node_env(node);
    fx.trainer.rpc = rpc_of(fx.trainer.env, &fx.addr);
    fx.recall = hth_train_recall_new(&fx.trainer, 1000);
    for (size_t i = 0; i < WATCHERS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "watcher%zu", i);
        fx.watcher[i].env = hth_node_env(hth_world_node(fx.world, name, NULL));
        fx.watcher[i].rpc = rpc_of(fx.watcher[i].env, NULL);
    }
    return 0;
}

static int tear_down(void **state)
{
    struct hth_open_counts open;
    (void)state;
    hth_train_recall_free(fx.recall);
    hth_rpc_free(fx.trainer.rpc);
    for (size_t i = 0; i < WATCHERS; i++)
        hth_rpc_free(fx.watcher[i].rpc);
    hth_world_open(fx.world, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(fx.world);
    return 0;
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct watcher *w = arg;
    assert_ok(result->err);
    assert_ok(hth_recall_read(result->payload, result->payload_len, &w->told));
    w->answers++;
}

static void ask(size_t i)
{
    struct watcher *w = &fx.watcher[i];
    uint8_t after[4] = {0};
    const struct hth_rpc_target to = {fx.trainer.env->self, fx.addr};
    const struct hth_rpc_call_opts call = {
        .method = HTH_METHOD_RECALL,
        .timeout_us = 5 * S,
        .body = {.payload = after, .payload_len = sizeof(after)}};
    assert_ok(hth_rpc_call(w->rpc, &to, &call, on_answer, w, NULL));
}

static void run(double seconds)
{
    hth_world_run_for(fx.world, (int64_t)(seconds * S));
}

static void on_done(void *arg)
{
    (void)arg;
    fx.done++;
}

/* The last steps and the last test of a run. */
static void finish_run(void)
{
    const struct hth_train_stats stats = {
        .updates = 1000, .samples = 64000, .own_samples = 32000, .loss_ema = 1.5};
    const struct hth_eval_result test = {.updates = 1000, .loss = 1.25, .accuracy = 0.75};
    hth_train_recall_add(fx.recall, &stats);
    hth_train_recall_test(fx.recall, &test, false);
}

TEST_WITH(nobody_watches_nobody_is_waited_for, set_up, tear_down)
{
    (void)state;
    assert_false(hth_train_recall_end(fx.recall, on_done, NULL));
    assert_int_equal(fx.done, 1);
    assert_false(hth_train_recall_end(NULL, on_done, NULL)); /* of a local run */
    assert_int_equal(fx.done, 2);
}

TEST_WITH(watcher_of_long_ago_is_not_waited_for, set_up, tear_down)
{
    (void)state;
    ask(0);
    run((double)HTH_TRAIN_RECALL_END_US / S + 1);
    assert_false(hth_train_recall_end(fx.recall, on_done, NULL));
    assert_int_equal(fx.done, 1);
}

TEST_WITH(watchers_see_the_end, set_up, tear_down)
{
    (void)state;
    ask(0);
    run(4);
    ask(1);
    run(4);
    finish_run();
    assert_true(hth_train_recall_end(fx.recall, on_done, NULL));
    run(2);
    ask(0);
    run(4);
    assert_int_equal(fx.done, 0); /* the other one is to come */
    ask(1);
    run(1);
    assert_int_equal(fx.done, 1);
    for (size_t i = 0; i < 2; i++) {
        const struct watcher *w = &fx.watcher[i];
        const struct hth_recall_point *p = &w->told.point[w->told.point_count - 1];
        assert_int_equal(w->answers, 2);
        assert_int_equal(w->told.total, 1000);
        assert_int_equal(p->step, 1000);
        assert_int_equal(p->samples, 32000);
        assert_int_equal(w->told.behind, 64000);
        assert_int_equal(w->told.test_count, 1);
        assert_true(w->told.test[0].accuracy == 0.75f);
    }
    run(60);
    assert_int_equal(fx.done, 1);
}

TEST_WITH(watcher_that_stays_away_is_waited_for_a_moment, set_up, tear_down)
{
    (void)state;
    ask(0);
    run(6);
    assert_true(hth_train_recall_end(fx.recall, on_done, NULL));
    run((double)HTH_TRAIN_RECALL_END_US / S - 7);
    assert_int_equal(fx.done, 0);
    run(2);
    assert_int_equal(fx.done, 1);
}

TEST_WITH(wait_can_be_cut, set_up, tear_down)
{
    (void)state;
    hth_train_recall_cut(NULL);
    hth_train_recall_cut(fx.recall);
    ask(0);
    run(1);
    assert_true(hth_train_recall_end(fx.recall, on_done, NULL));
    hth_train_recall_cut(fx.recall);
    assert_int_equal(fx.done, 1);
    run(60);
    assert_int_equal(fx.done, 1);
}

/* The first to ask are forgotten; the time of the wait stays what it is. */
TEST_WITH(crowd_of_watchers_is_bounded, set_up, tear_down)
{
    (void)state;
    for (size_t i = 0; i < WATCHERS; i++)
        ask(i);
    run(1);
    assert_true(hth_train_recall_end(fx.recall, on_done, NULL));
    for (size_t i = 2; i < WATCHERS; i++) {
        assert_int_equal(fx.done, 0);
        ask(i);
        run(0.5);
    }
    assert_int_equal(fx.done, 1);
}
