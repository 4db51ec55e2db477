/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_conformance_net.c: the promises of core/env.h, tested on the real environment, which dials
 * itself over loopback.
 */
#include "support/env_conformance.h"
#include "support/test.h"

#include "net/net.h"

#include <stdlib.h>
#include <unistd.h>

#define POLL_US 500

struct loop {
    struct hth_env *env;
    struct hth_timer *timer;
    bool (*done)(void *arg);
    void *arg;
    int64_t until_us;
};

static void poll_done(void *arg)
{
    struct loop *l = arg;
    if (l->done(l->arg) || hth_now_us(l->env) >= l->until_us)
        hth_net_stop(l->env);
    else
        hth_timer_set(l->env, l->timer, POLL_US);
}

static bool run(struct conform *c, bool (*done)(void *arg), void *arg, int64_t max_us)
{
    struct loop *l = c->runner;
    l->done = done;
    l->arg = arg;
    l->until_us = hth_now_us(l->env) + max_us;
    hth_timer_set(l->env, l->timer, 0);
    assert_ok(hth_net_run(l->env));
    return done(arg);
}

static void in_the_real_world(void (*test)(struct conform *c))
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    struct loop l = {.env = NULL};
    char dir[] = "/tmp/hearth-conform-......", prefix[40], path[64];
    memset(strchr(dir, '.'), 'X', 6); /* mkdtemp replaces these */
    assert_non_null(mkdtemp(dir));
    snprintf(prefix, sizeof(prefix), "%s/", dir);
    opts.compute_threads = 2;
    assert_ok(hth_net_new(&opts, &l.env));
    l.env->log.level[HTH_SUB_NET] = HTH_ERROR;
    l.timer = hth_timer_new(l.env, poll_done, &l);
    struct conform c = {.a = l.env, .b = l.env, .run = run, .runner = &l, .file_prefix = prefix};
    assert_ok(hth_addr_parse("127.0.0.1:0", &c.listen));
    test(&c);
    assert_int_equal(hth_net_stream_count(l.env), 0);
    hth_timer_free(l.env, l.timer);
    hth_net_free(l.env);
    snprintf(path, sizeof(path), "%sone/two", prefix);
    (void)rmdir(path);
    snprintf(path, sizeof(path), "%sone", prefix);
    (void)rmdir(path);
    assert_int_equal(rmdir(dir), 0);
}

#define CONFORMANCE_TEST(name)                                                                     \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        in_the_real_world(conform_##name);                                                         \
    }
CONFORMANCE_MAP(CONFORMANCE_TEST)

int main(void)
{
#define CONFORMANCE_ENTRY(name) cmocka_unit_test(name),
    const struct CMUnitTest tests[] = {CONFORMANCE_MAP(CONFORMANCE_ENTRY)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
