/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer that finds nobody goes on training and says so; and so it does when others come and
 * when they have gone. */
#include "integration/toy.h"

#include <signal.h>
#include <stdlib.h>

#define ALONE "no other trainer of run 'toy' is found: goes on training alone"
#define TWO   "2 trainers of run 'toy' average now, this one included"

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

static void test_company(void **state)
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
        wait_step(&w, "a word about the other's leaving");
    wait_for_steps(&t, "one", 5);
    assert_int_equal(times_said(one, ALONE), 2);
    assert_int_equal(times_said(one, TWO), 1);
    proc_signal(one, SIGINT);
    assert_int_equal(proc_wait(one), 130);
    place_end(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_company, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
