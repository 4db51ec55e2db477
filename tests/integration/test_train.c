/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_train.c: swarms of real processes train without faults, with a host killed, with a host that
 * hangs, over IPv6, and without a network.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#include "support/suite.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* Ten classes: chance is 0.1, and a trained toy is near 1. */
#define LEARNT 0.9

static void assert_learnt(const struct toy_metrics *m, unsigned steps)
{
    assert_int_equal(m->ends, 1);
    assert_true(toy_number(m->end, "code") == 0);
    assert_true(toy_number(m->end, "step") == steps);
    assert_true(toy_number(m->last_eval, "step") == steps);
    assert_true(toy_number(m->last_eval, "samples") == TOY_TEST_IMAGES);
    assert_true(toy_number(m->last_eval, "accuracy") > LEARNT);
    assert_true(toy_number(m->last_progress, "not_finite") == 0);
}

/* Both have the same fields. */
static void assert_same_fields(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    assert_int_equal(json_object_size(a), json_object_size(b));
    json_object_foreach((json_t *)a, key, value) assert_non_null(json_object_get(b, key));
}

PLACE_TEST(test_a_swarm_and_one_process_learn_alike)
{
    struct place *p = *state;
    struct toy t;
    struct toy_metrics swarm, local;
    toy_init(&t, p, 150);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_host(&t, 1);
    json_decref(toy_status(&t, 2, 1.0)); /* so that the trainer finds both at once */
    toy_start_trainer(&t, "trainer", NULL);
    assert_int_equal(proc_wait(t.trainer), 0);
    proc_must_say(t.trainer, "150 updates, ");
    proc_must_say(t.trainer, " % right");
    toy_metrics_load(&t, "trainer", &swarm);
    assert_learnt(&swarm, 150);
    assert_true(swarm.evals >= 2);
    assert_true(toy_number(swarm.last_progress, "experts_live") == 8);
    assert_true(toy_number(swarm.last_progress, "calls") > 300);
    assert_true(toy_number(swarm.last_progress, "bytes") > 1e6);
    assert_true(toy_number(swarm.last_progress, "rows_mixed") >= 150 * 32);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(proc_stop(t.host[i]), 0);
        proc_must_say(t.host[i], "served ");
        assert_false(proc_said(t.host[i], ": 0 rows"));
    }

    assert_int_equal(RUN(p, "local", "train", "--run", t.run, "--local", "--threads", "1", "--dir",
                         place_path(p, "local"), "--metrics", place_path(p, "local.jsonl")),
                     0);
    toy_metrics_load(&t, "local", &local);
    assert_learnt(&local, 150);
    assert_true(toy_number(local.last_progress, "bytes") == 0);
    assert_same_fields(swarm.last_progress, local.last_progress);
    assert_same_fields(swarm.last_eval, local.last_eval);
    assert_same_fields(swarm.end, local.end);
    toy_metrics_clear(&swarm);
    toy_metrics_clear(&local);

    struct proc *proc =
        START(p, "control", "train", "--run", t.run, "--local", "--without-experts", "--threads",
              "1", "--dir", place_path(p, "control"), "--metrics", place_path(p, "control.jsonl"));
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, "150 updates, ");
    proc_must_say(proc, " 0 rows without an expert");
    toy_metrics_load(&t, "control", &local);
    assert_true(toy_number(local.last_progress, "experts_live") == 0);
    assert_true(toy_number(local.last_progress, "rows_lost") == 0);
    toy_metrics_clear(&local);
    place_end(p);
}

/* Runs until the checkpoints of host 1's four experts are on disk. */
static void wait_for_checkpoints(struct toy *t)
{
    struct wait w = {0};
    while (place_count(t->place, "host1/experts", ".safetensors") < 4)
        wait_step(&w, "a checkpoint of each expert");
}

static void wait_for_step(struct toy *t, const char *name, double step)
{
    struct wait w = {0};
    while (toy_step(t, name) < step)
        wait_step(&w, "a trainer's step");
}

/* Ends a test in which host 1 died: only its share of the replies may be lost. */
static void finish_trainer(struct toy *t, double steps_then)
{
    struct toy_metrics m;
    char steps[16];
    assert_int_equal(proc_wait(t->trainer), 0);
    toy_metrics_load(t, "trainer", &m);
    double steps_end = toy_number(m.end, "step");
    assert_true(steps_then < steps_end);
    snprintf(steps, sizeof(steps), "%.0f", steps_end);
    assert_learnt(&m, (unsigned)steps_end);
    assert_true(toy_number(m.last_progress, "calls_failed") > 0);
    /* Four experts live and a row needs four replies: rows are lost only at the moment of death. */
    assert_true(toy_number(m.last_progress, "rows_lost") <
                0.1 * toy_number(m.last_progress, "samples"));
    proc_must_say(t->trainer, place_text(t->place, "%s updates, ", steps));
    proc_must_say(t->trainer, "rows without an expert, 0 flights not finite");
    toy_metrics_clear(&m);
}

/* Starts a run that is long enough for a fault in its middle, on a fast machine, too. */
static void start_long_run(struct toy *t)
{
    toy_start_trainer(t, "trainer",
                      (const char *const[]){"--steps", "1000", "--rows", "128", NULL});
    wait_for_step(t, "trainer", 100);
}

PLACE_TEST(test_a_killed_host_is_survived_and_comes_back)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_host(&t, 1);
    json_decref(toy_status(&t, 2, 1.0));
    toy_start_trainer(&t, "warm-up", NULL);
    assert_int_equal(proc_wait(t.trainer), 0);
    wait_for_checkpoints(&t);

    start_long_run(&t);
    proc_signal(t.host[1], SIGKILL);
    double step = toy_step(&t, "trainer");
    assert_int_equal(proc_wait(t.host[1]), 128 + SIGKILL);
    wait_for_step(&t, "trainer", step + 100);
    assert_int_equal(place_count(p, "host1/experts", ".safetensors"), 4);
    toy_start_host(&t, 1);
    proc_must_say(t.host[1], "serving 4 experts (4 from checkpoints)");
    proc_must_say(t.host[1], "known key");
    finish_trainer(&t, step);
    place_end(p);
}

/* A stopped process keeps its connections open and says nothing: only deadlines help. */
PLACE_TEST(test_a_host_that_hangs_is_survived)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_host(&t, 1);
    json_decref(toy_status(&t, 2, 1.0));
    start_long_run(&t);
    proc_signal(t.host[1], SIGSTOP);
    double step = toy_step(&t, "trainer");
    finish_trainer(&t, step);
    proc_signal(t.host[1], SIGCONT);
    place_end(p);
}

/* A port of ::1 that was free a moment ago; 0 on a machine without IPv6. */
static unsigned port_of_ip6(void)
{
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    socklen_t len = sizeof(sa);
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    bool good = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 &&
                getsockname(fd, (struct sockaddr *)&sa, &len) == 0;
    close(fd);
    return good ? ntohs(sa.sin6_port) : 0;
}

PLACE_TEST(test_ipv6)
{
    struct place *p = *state;
    struct toy t;
    struct toy_metrics m;
    toy_init(&t, p, 150);
    if (port_of_ip6() == 0) {
        /* Without IPv6 the host must fail with a named error, and not run unreachable. */
        assert_int_equal(
            RUN(p, "node", "node", "--listen", "[::1]:4700", "--dir", place_path(p, "node")), 4);
        return;
    }
    for (int i = 1; i <= 4; i++)
        snprintf(t.addr_text[i], sizeof(t.addr_text[i]), "[::1]:%u", port_of_ip6());
    toy_start_node(&t);
    proc_must_say(t.node, place_text(p, "--join %s", t.addr[1]));
    toy_start_host(&t, 0);
    toy_start_trainer(&t, "trainer", NULL);
    assert_int_equal(proc_wait(t.trainer), 0);
    toy_metrics_load(&t, "trainer", &m);
    assert_learnt(&m, 150);
    assert_true(toy_number(m.last_progress, "experts_live") == 4);
    toy_metrics_clear(&m);
    json_decref(toy_status(&t, 1, 0.5));
    place_end(p);
}
