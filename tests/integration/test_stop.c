/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stop.c: the first Ctrl-C drains, the second ends at once, and the next start continues from
 * the saved state.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

PLACE_TEST(test_a_host_drains)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_host(&t, 1);
    json_decref(toy_status(&t, 2, 1.0)); /* the trainer finds both hosts */
    toy_start_trainer(&t, "trainer", (const char *const[]){"--steps", "1000", NULL});
    assert_int_equal(proc_wait(t.trainer), 0);
    proc_signal(t.host[1], SIGINT);
    assert_int_equal(proc_wait(t.host[1]), 0);
    proc_must_say(t.host[1], "draining: ");
    proc_must_say(t.host[1], " rows, ");
    assert_int_equal(place_count(p, "host1/experts", ".safetensors"), 4);
    /* Nothing is half written: each has one older copy, and a list of copies. */
    assert_int_equal(place_count(p, "host1/experts", ""), 2 + 4 + 2 * 4);

    /* Records live for a minute, so only the goodbye can remove the host at once. */
    json_decref(toy_status(&t, 1, 0.5));

    toy_start_host(&t, 1);
    proc_must_say(t.host[1], "serving 4 experts (4 from checkpoints)");
    json_decref(toy_status(&t, 2, 1.0));
    place_end(p);
}

PLACE_TEST(test_a_second_interrupt_ends_at_once)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    /* A stopped process gets both signals together, so the drain can't end between them. */
    proc_signal(t.host[0], SIGSTOP);
    proc_signal(t.host[0], SIGINT);
    proc_signal(t.host[0], SIGTERM);
    proc_signal(t.host[0], SIGCONT);
    assert_int_equal(proc_wait(t.host[0]), 130);
    proc_must_say(t.host[0], "draining: ");
    place_end(p);
}

/* A host whose checkpoint folder is a file loses its training, and exits with a failure. */
PLACE_TEST(test_a_host_that_can_not_save)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 1000000);
    toy_start_node(&t);
    assert_int_equal(mkdir(place_path(p, "host0"), 0700), 0);
    place_write(p, "host0/experts", "", 0);
    toy_start_host(&t, 0);
    toy_start_trainer(&t, "trainer", NULL);
    proc_wait_text(t.trainer, "test after 100 updates");
    proc_signal(t.host[0], SIGINT);
    assert_int_equal(proc_wait(t.host[0]), 1);
    proc_must_say(t.host[0], "of 4 experts could not be saved");
    proc_must_say(t.host[0], " rows, ");
    assert_int_equal(proc_stop(t.trainer), 130);
    place_end(p);
}

/* A second interrupt cancels jobs; that is not reported as an error. */
PLACE_TEST(test_a_trainer_that_must_end_at_once)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 1000000);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_trainer(&t, "trainer",
                      (const char *const[]){"--averaging", "batch", "--target", "64", NULL});
    proc_wait_text(t.trainer, "test after 100 updates");
    proc_signal(t.trainer, SIGSTOP);
    proc_signal(t.trainer, SIGINT);
    proc_signal(t.trainer, SIGTERM);
    proc_signal(t.trainer, SIGCONT);
    assert_int_equal(proc_wait(t.trainer), 130);
    assert_false(proc_said(t.trainer, " error "));
    place_end(p);
}

PLACE_TEST(test_a_trainer_is_interrupted_and_resumed)
{
    struct place *p = *state;
    struct toy t;
    struct toy_metrics before, after;
    toy_init(&t, p, 1000000);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_host(&t, 1);
    toy_start_trainer(&t, "trainer", NULL);
    proc_wait_text(t.trainer, "test after 100 updates");
    proc_signal(t.trainer, SIGINT);
    assert_int_equal(proc_wait(t.trainer), 130);
    proc_must_say(t.trainer, "finishing the flights");
    assert_true(place_exists(p, "trainer/trunk.safetensors"));
    toy_metrics_load(&t, "trainer", &before);
    double steps = toy_number(before.end, "step");
    assert_true(toy_number(before.end, "code") == 130);
    assert_true(steps >= 100);
    toy_metrics_clear(&before);

    /* It goes on with a swarm's experts, and with none of its own. */
    struct proc *alone = START(p, "alone", "train", "--local", "--resume", "--run", t.run, "--dir",
                               place_path(p, "trainer"));
    assert_int_equal(proc_wait(alone), 1);
    proc_must_say(alone, "if it learnt in a swarm, leave out --local");
    assert_int_equal(mkdir(place_path(p, "trainer/experts"), 0700), 0);
    place_write(p, "trainer/experts/ffn0.0.0.safetensors", "", 0);

    /* toy_metrics_load reads the lines of both runs, and fails if a step goes back. */
    const char *more = place_text(p, "%.0f", steps + 200);
    toy_start_trainer(&t, "trainer", (const char *const[]){"--resume", "--steps", more, NULL});
    assert_int_equal(proc_wait(t.trainer), 0);
    toy_metrics_load(&t, "trainer", &after);
    assert_int_equal(after.ends, 2);
    proc_must_say(t.trainer, "trainer/experts stay unused: hosts have others");
    assert_true(toy_number(after.end, "step") == steps + 200);
    assert_true(toy_number(after.last_eval, "accuracy") > 0.9);
    assert_true(toy_number(after.last_progress, "samples") == 32 * (steps + 200));
    toy_metrics_clear(&after);
    place_end(p);
}

/* The first interrupt ends a trainer that waits for experts. */
PLACE_TEST(test_a_waiting_trainer_is_interrupted)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_start_node(&t);
    toy_start_trainer(&t, "trainer", NULL);
    proc_wait_text(t.trainer, "waiting for experts of run 'toy'");
    proc_must_say(t.trainer, "loss -  experts live 0");
    proc_signal(t.trainer, SIGINT);
    assert_int_equal(proc_wait(t.trainer), 130);
    place_end(p);
}

/* Places are spread evenly over the layers; the remainder goes to any. */
PLACE_TEST(test_places_are_dealt_out_to_all_layers)
{
    static const char text[] = "run: deep\nmodel: {dim: 32, layers: 2, grid: [2, 4], top_k: 2}\n";
    struct place *p = *state;
    const char *addr = place_addr(p);
    place_write(p, "deep.yaml", text, strlen(text));
    struct proc *host = START(p, "host", "serve", "--run", place_path(p, "deep.yaml"), "--listen",
                              addr, "--dir", place_path(p, "host"), "--experts", "5");
    proc_wait_text(host, "serving 5 experts");
    struct proc *s =
        START(p, "status", "status", "--wait", "10s", "--join", addr, "--network", "deep");
    assert_int_equal(proc_wait(s), 0);
    proc_must_say(s, "25%");
    proc_must_say(s, "38%"); /* 3 of 8 */
    place_end(p);
}

/* A host that finds no place waits, and takes places that fall free; --or-quit ends it instead. The
 * records of a stopped host claim its places for a minute, like a stranger's: a starting host asks
 * it, gets no answer and takes the places. */
PLACE_TEST(test_places_of_hosts_that_leave)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_host(&t, 1);
    json_decref(toy_status(&t, 2, 1.0));
    const char *dir = place_path(p, "third");
    struct proc *third = START(p, "third", "serve", "--run", t.run, "--join", t.addr[1], "--listen",
                               t.addr[4], "--dir", dir, "--experts", "4", "--or-quit");
    assert_int_equal(proc_wait(third), 75);
    proc_must_say(third, "every place of the grid is taken");
    proc_signal(t.host[1], SIGSTOP);
    third = START(p, "third", "serve", "--run", t.run, "--join", t.addr[1], "--listen", t.addr[4],
                  "--dir", dir, "--experts", "8");
    proc_wait_text(third, "serving 4 experts (0 from checkpoints); 4 more when places fall free");
    assert_int_equal(proc_stop(t.host[0]), 0);
    proc_wait_text(third, "serving 8 experts");
    proc_signal(t.host[1], SIGCONT);
    place_end(p);
}
