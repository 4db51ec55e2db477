/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_liars.c: one trainer of a run in local mode lies (liar.c). One of three that average offers
 * wrong values: the others end within two points of a run without it. One of those that hand out
 * their state hands out another: a newcomer ends with a true state, or says that it found none.
 */
#define _GNU_SOURCE
#include "integration/toy.h"
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>

#define STEPS     1500
#define TRAINERS  3
#define POINTS    0.02
#define BEGUN     500 /* steps of a donor: what it says in the DHT is seconds old */
#define LOSS_MOST 0.5 /* of a true state; the patterns' logarithm is 2.3 */

static const char *const names[] = {"one", "two", "three", "four", "five"};

struct lot {
    struct toy toy;
    char addr[HTH_ARRAY_LEN(names)][64];
    struct proc *trainer[HTH_ARRAY_LEN(names)];
};

static void begin(struct lot *l, struct place *p)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++)
        snprintf(l->addr[i], sizeof(l->addr[i]), "%s", place_addr(p));
    toy_start_node(&l->toy);
    for (int i = 0; i < 2; i++)
        toy_start_host(&l->toy, i);
}

/* Steps so large that a newcomer sees others ahead of it before it has made them by itself. */
static void enlarge_steps(struct toy *t)
{
    static const char small[] = "rows: 32, flights: 4,", large[] = "rows: 512,flights: 1,";
    size_t len;
    char *run = place_read(t->run, &len), *at = strstr(run, small);
    assert_non_null(at);
    memcpy(at, large, strlen(large));
    place_write(t->place, "run.yaml", run, len);
    free(run);
}

/* hostile: its lies, or NULL. */
static void start(struct lot *l, size_t i, const char *hostile)
{
    const char *const more[] = {"--listen", l->addr[i], "--log", "train:info", NULL};
    l->toy.program = hostile != NULL ? HTH_TEST_LIAR : NULL;
    if (hostile != NULL)
        assert_int_equal(setenv("HOSTILE", hostile, 1), 0);
    toy_start_trainer(&l->toy, names[i], more);
    l->trainer[i] = l->toy.trainer;
}

/* ---- means --------------------------------------------------------------------------------- */

/* The worst accuracy of the two others; *refused: means that they refused. */
static double accuracy(struct place *p, const char *hostile, double *refused)
{
    struct lot l = {.trainer = {NULL}};
    double worst = 1;
    toy_init(&l.toy, p, STEPS);
    begin(&l, p);
    for (size_t i = 0; i < TRAINERS; i++)
        start(&l, i, i == 0 ? hostile : NULL);
    *refused = 0;
    for (size_t i = 0; i < TRAINERS; i++) {
        struct toy_metrics m;
        assert_int_equal(proc_wait(l.trainer[i]), 0);
        toy_metrics_load(&l.toy, names[i], &m);
        double is = toy_number(m.last_eval, "accuracy");
        double rounds = toy_number(m.last_progress, "rounds");
        print_message("%s: accuracy %.3f, %.0f rounds, %.0f means refused\n", names[i], is, rounds,
                      toy_number(m.last_progress, "means_refused"));
        assert_true(rounds > 0);
        if (i > 0) {
            worst = HTH_MIN(worst, is);
            *refused += toy_number(m.last_progress, "means_refused");
        }
        toy_metrics_clear(&m);
    }
    place_end(p);
    return worst;
}

PLACE_TEST(a_liar_among_three_costs_the_others_nothing)
{
    double none, refused;
    double calm = accuracy(*state, NULL, &none);
    assert_int_equal(place_teardown(state), 0);
    assert_int_equal(place_setup(state), 0);
    double beside = accuracy(*state, "means", &refused);
    print_message("accuracy %.3f, and %.3f beside a liar, of whose means %.0f are refused\n", calm,
                  beside, refused);
    if (beside < calm - POINTS)
        fail_msg("accuracy %.3f, and %.3f beside a liar", calm, beside);
}

/* ---- states -------------------------------------------------------------------------------- */

static void wait_for(struct lot *l, size_t i, double steps)
{
    struct wait w = {0};
    while (toy_step(&l->toy, names[i]) < steps) {
        assert_true(proc_runs(l->trainer[i]));
        wait_step(&w, "a donor's steps");
    }
}

/* The loss of the first steps with a state that was fetched. */
static double first_loss(struct lot *l, size_t i)
{
    struct wait w = {0};
    double loss = NAN;
    while (isnan(loss)) {
        struct toy_metrics m;
        assert_true(proc_runs(l->trainer[i]));
        wait_step(&w, "a newcomer's first steps");
        toy_metrics_load(&l->toy, names[i], &m);
        if (json_is_number(json_object_get(m.last_progress, "loss")))
            loss = toy_number(m.last_progress, "loss");
        toy_metrics_clear(&m);
    }
    return loss;
}

static void leave(struct lot *l, size_t i)
{
    proc_signal(l->trainer[i], SIGINT);
    assert_int_equal(proc_wait(l->trainer[i]), 130);
}

/* The second of them lies. The others come one by one, and find one donor of two, and of three,
 * that does; the last finds it alone. */
PLACE_TEST(a_poisoned_donor_is_found_out)
{
    static const char refuses[] = " is not taken: with it the loss";
    struct lot l = {.trainer = {NULL}};
    toy_init(&l.toy, *state, 10000000);
    enlarge_steps(&l.toy);
    begin(&l, *state);
    start(&l, 0, NULL);
    wait_for(&l, 0, BEGUN);
    start(&l, 1, "states");
    for (size_t i = 1; i < 4; i++) {
        if (i > 1)
            start(&l, i, NULL);
        proc_wait_text(l.trainer[i], "goes on from step ");
        double loss = first_loss(&l, i);
        print_message("newcomer %s: loss %.3f at first, the liar's state %s\n", names[i], loss,
                      proc_said(l.trainer[i], refuses) ? "refused" : "not tried");
        if (loss > LOSS_MOST)
            fail_msg("loss %.3f", loss);
        wait_for(&l, i, toy_step(&l.toy, names[i]) + 100);
    }
    leave(&l, 0);
    leave(&l, 2);
    leave(&l, 3);
    start(&l, 4, NULL);
    proc_wait_text(l.trainer[4], refuses);
    proc_wait_text(l.trainer[4], "nobody who was ahead is left: goes on from step 0");
    leave(&l, 1);
    leave(&l, 4);
    place_end(*state);
}
