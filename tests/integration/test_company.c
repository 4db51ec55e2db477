/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_company.c: a trainer prints whether it trains alone or with others, and why it
 * does not average with some.
 */
#include "integration/toy.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>

#define ALONE "found no other trainer of run 'toy': training alone"
#define TWO   "averaging with the other trainers of run 'toy': 2 with this one"

static unsigned times_said(struct proc *proc, const char *text)
{
    char *said = place_read(proc->err, NULL);
    unsigned n = 0;

    for (const char *at = said; at != NULL && (at = strstr(at, text)) != NULL; at += strlen(text))
        n++;
    free(said);
    return n;
}

static void wait_for_steps(struct toy *t, const char *name, double more)
{
    struct wait w = {0};
    double goal = toy_step(t, name) + more;

    while (toy_step(t, name) < goal)
        wait_step(&w, place_text(t->place, "step %.0f of trainer %s", goal, name));
}

PLACE_TEST(trainer_prints_company)
{
    struct place *p = *state;
    struct wait w = {0};
    struct toy t;

    toy_init(&t, p, 1000000);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_trainer(&t, "one", NULL);
    struct proc *one = t.trainer;
    proc_wait_text(one, ALONE);
    wait_for_steps(&t, "one", 5);
    toy_start_trainer(&t, "two", (const char *const[]){"--listen", t.addr[3], NULL});
    proc_wait_text(one, TWO);
    proc_wait_text(t.trainer, TWO);
    wait_for_steps(&t, "two", 5);
    assert_int_equal(times_said(t.trainer, ALONE), 0);
    proc_signal(t.trainer, SIGTERM);
    assert_int_equal(proc_wait(t.trainer), 130);
    while (times_said(one, ALONE) < 2)
        wait_step(&w, "a message about the other's leaving");
    wait_for_steps(&t, "one", 5);
    assert_int_equal(times_said(one, ALONE), 2);
    assert_int_equal(times_said(one, TWO), 1);
    proc_signal(one, SIGINT);
    assert_int_equal(proc_wait(one), 130);
    place_end(p);
}

/* One who trains the same experts on other settings is refused, and told why; begun all the same,
 * each of the two is told, and so is a helper. */
PLACE_TEST(trainer_with_other_settings_is_refused)
{
    static const char differs[] = "trainers of run 'toy' with another averaging.mode or states: 1";
    struct place *p = *state;
    struct toy t;

    toy_init(&t, p, 1000000);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_trainer(&t, "one", NULL);
    struct proc *one = t.trainer;
    proc_wait_text(one, ALONE);
    toy_start_trainer(&t, "two",
                      (const char *const[]){"--listen", t.addr[3], "--averaging", "batch", NULL});
    assert_int_equal(proc_wait(t.trainer), 3);
    proc_must_say(t.trainer, "run 'toy' has trainers with another averaging.mode or states (1): "
                             "this trainer would start a second run");
    proc_must_say(t.trainer, "0 updates, 0 samples");
    assert_int_equal(times_said(one, differs), 0);
    toy_start_trainer(&t, "three",
                      (const char *const[]){"--listen", t.addr[3], "--averaging", "batch",
                                            "--target", "128", "--bootstrap", NULL});
    proc_wait_text(one, differs);
    proc_wait_text(t.trainer, differs);
    struct proc *helper =
        START(p, "helper", "node", "--reduce", "--run", t.run, "--join", t.addr[1], "--listen",
              place_addr(p), "--dir", place_path(p, "helper"));
    proc_wait_text(helper, "1 trainer of run 'toy': there is nothing to average");
    proc_wait_text(helper, differs);
    wait_for_steps(&t, "one", 5);
    wait_for_steps(&t, "three", 5);
    assert_int_equal(times_said(one, differs), 1);
    assert_int_equal(times_said(one, TWO), 0);
    assert_int_equal(proc_stop(one), 130);
    assert_int_equal(proc_stop(t.trainer), 130);
    place_end(p);
}

/* The run shares batches, and its rate falls over the run file's steps. */
static void fall_together(struct toy *t)
{
    static const char from[] = "rate: 0.003}\n", to[] = "rate: 0.003, schedule: cosine}\n"
                                                        "averaging: {mode: batch, target: 256}\n";
    char *text = place_read(t->run, NULL), *at = strstr(text, from);
    char *all = calloc(1, strlen(text) + sizeof(to));

    assert_non_null(at);
    memcpy(all, text, (size_t)(at - text));
    strcat(strcat(all, to), at + strlen(from));
    place_write(t->place, "run.yaml", all, strlen(all));
    free(all);
    free(text);
}

/* One trainer's number of steps does not change any trainer's rate. */
PLACE_TEST(steps_of_one_trainer_change_no_rate)
{
    struct place *p = *state;
    struct toy t;

    toy_init(&t, p, 1000000);
    fall_together(&t);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_trainer(&t, "one", NULL);
    struct proc *one = t.trainer;
    toy_start_trainer(&t, "two",
                      (const char *const[]){"--listen", t.addr[3], "--steps", "900000", NULL});
    proc_wait_text(t.trainer,
                   "--steps 900000 ends this trainer; its rate falls over the run's 1000000 ");
    proc_wait_text(t.trainer, TWO);
    proc_wait_text(one, TWO);
    wait_for_steps(&t, "two", 5);
    assert_int_equal(times_said(one, "--steps"), 0);
    assert_int_equal(proc_stop(one), 130);
    assert_int_equal(proc_stop(t.trainer), 130);
    place_end(p);
}
