/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ctrl-C: the first one drains, the second one ends; what was saved is where the next start goes
 * on.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

static void test_a_host_drains(void **state)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_host(&t, 1);
    json_decref(toy_status(&t, 2, 1.0)); /* so that the trainer finds both */
    toy_start_trainer(&t, "trainer", (const char *const[]){"--steps", "1000", NULL});
    assert_int_equal(proc_wait(t.trainer), 0);
    proc_signal(t.host[1], SIGINT);
    assert_int_equal(proc_wait(t.host[1]), 0);
    proc_must_say(t.host[1], "draining: ");
    proc_must_say(t.host[1], "optimiser steps");
    assert_int_equal(place_count(p, "host1/experts", ".safetensors"), 4);
    assert_int_equal(place_count(p, "host1/experts", ""), 2 + 4); /* nothing half written */

    /* Its records live for a minute: only the goodbye can have made it vanish at once. */
    json_decref(toy_status(&t, 1, 0.5));

    toy_start_host(&t, 1);
    proc_must_say(t.host[1], "serving 4 experts (4 from checkpoints)");
    json_decref(toy_status(&t, 2, 1.0));
    place_end(p);
}

static void test_a_second_interrupt_ends_at_once(void **state)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    /* Both reach it together, in the order of their numbers: the drain can't end between them. */
    proc_signal(t.host[0], SIGSTOP);
    proc_signal(t.host[0], SIGINT);
    proc_signal(t.host[0], SIGTERM);
    proc_signal(t.host[0], SIGCONT);
    assert_int_equal(proc_wait(t.host[0]), 130);
    proc_must_say(t.host[0], "draining: ");
    place_end(p);
}

/* Its folder for checkpoints is a file: what it learnt is lost, and whoever waits for its end has
 * to know. */
static void test_a_host_that_can_not_save(void **state)
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
    proc_must_say(t.host[0], "optimiser steps");
    assert_int_equal(proc_stop(t.trainer), 130);
    place_end(p);
}

/* Jobs are canceled then: that is no error, so nothing is said of one. */
static void test_a_trainer_that_must_end_at_once(void **state)
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

static void test_a_trainer_is_interrupted_and_resumed(void **state)
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

    /* toy_metrics_load sees both runs' lines: a step that went back would fail it. */
    const char *more = place_text(p, "%.0f", steps + 200);
    toy_start_trainer(&t, "trainer", (const char *const[]){"--resume", "--steps", more, NULL});
    assert_int_equal(proc_wait(t.trainer), 0);
    toy_metrics_load(&t, "trainer", &after);
    assert_int_equal(after.ends, 2);
    assert_true(toy_number(after.end, "step") == steps + 200);
    assert_true(toy_number(after.last_eval, "accuracy") > 0.9);
    assert_true(toy_number(after.last_progress, "samples") == 32 * (steps + 200));
    toy_metrics_clear(&after);
    place_end(p);
}

/* Without anything to train on: the first interrupt of a trainer that waits for experts. */
static void test_a_waiting_trainer_is_interrupted(void **state)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    toy_start_node(&t);
    toy_start_trainer(&t, "trainer", NULL);
    proc_wait_text(t.trainer, "waiting for experts of run 'toy'");
    proc_signal(t.trainer, SIGINT);
    assert_int_equal(proc_wait(t.trainer), 130);
    place_end(p);
}

/* As many in each layer as far as it divides, and the rest in the last. */
static void test_places_are_dealt_out_to_all_layers(void **state)
{
    static const char text[] = "run: deep\nmodel: {dim: 32, layers: 2, grid: [2, 4], top_k: 2}\n";
    struct place *p = *state;
    const char *addr = place_addr(p);
    place_write(p, "deep.yaml", text, strlen(text));
    struct proc *host = START(p, "host", "serve", "--run", place_path(p, "deep.yaml"), "--listen",
                              addr, "--dir", place_path(p, "host"), "--experts", "5");
    proc_wait_text(host, "serving 5 experts");
    struct proc *s = START(p, "status", "status", "--join", addr, "--network", "deep");
    assert_int_equal(proc_wait(s), 0);
    proc_must_say(s, "25%");
    proc_must_say(s, "38%"); /* 3 of 8 */
    place_end(p);
}

/* A host that stands still claims its places for a minute, as a stranger's record would: who looks
 * for places asks it, has no answer, and takes them. One that is there keeps its own. */
static void test_places_of_a_host_that_stands_still(void **state)
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
                               t.addr[4], "--dir", dir, "--experts", "4");
    assert_int_equal(proc_wait(third), 75);
    proc_must_say(third, "every place of the grid is taken");
    proc_signal(t.host[1], SIGSTOP);
    third = START(p, "third", "serve", "--run", t.run, "--join", t.addr[1], "--listen", t.addr[4],
                  "--dir", dir, "--experts", "8");
    proc_wait_text(third, "serving 4 experts");
    proc_must_say(third, "only 4 of 8 places were free");
    proc_signal(t.host[1], SIGCONT);
    place_end(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_host_drains, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(test_a_second_interrupt_ends_at_once, place_setup,
                                        place_teardown),
        cmocka_unit_test_setup_teardown(test_a_host_that_can_not_save, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(test_a_trainer_that_must_end_at_once, place_setup,
                                        place_teardown),
        cmocka_unit_test_setup_teardown(test_a_trainer_is_interrupted_and_resumed, place_setup,
                                        place_teardown),
        cmocka_unit_test_setup_teardown(test_a_waiting_trainer_is_interrupted, place_setup,
                                        place_teardown),
        cmocka_unit_test_setup_teardown(test_places_are_dealt_out_to_all_layers, place_setup,
                                        place_teardown),
        cmocka_unit_test_setup_teardown(test_places_of_a_host_that_stands_still, place_setup,
                                        place_teardown),
    };
    return PLACE_RUN_AT_ONCE(tests);
}
