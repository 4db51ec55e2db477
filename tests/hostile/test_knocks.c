/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_knocks.c: 10,000 strangers connect to a host of a closed run: TLS, a HELLO without a pass,
 * the refusal. Each costs the host at most a millisecond of processor time. Then four keys come as
 * fast as they can while a member trains and another calls: no call fails, 99 of 100 take at most
 * twice as long, and training loses at most a quarter.
 *
 * Calm and attacked seconds take turns, because a machine may be busy with other things for a
 * while: sums of updates, and medians of the turns' calls, are compared.
 */
#define _GNU_SOURCE
#include "integration/toy.h"
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define KNOCKERS   4
#define KNOCKS     500 /* of each, in a round */
#define ROUNDS     5
#define MS_EACH    1.0
#define TURNS      5 /* of each kind */
#define SLICE_US   (2 * INT64_C(1000000))
#define RATE_LEAST 0.75
#define TAIL_MOST  2.0
#define CALLS      "200"

static void knock(struct toy *t, unsigned count, struct proc *out[KNOCKERS])
{
    struct place *p = t->place;
    for (int i = 0; i < KNOCKERS; i++) {
        const char *const args[] = {"-n",
                                    "19",
                                    HTH_TEST_KNOCKER,
                                    t->invite + 1,
                                    place_text(p, "%d", i),
                                    place_text(p, "%u", count),
                                    "1",
                                    t->addr[2],
                                    NULL};
        out[i] = place_start_program(p, "/usr/bin/nice", "knocker", args);
    }
}

/* Updates in a slice of time. */
static double rate(struct toy *t)
{
    int64_t from = place_now_us();
    double before = toy_step(t, "trainer");
    while (place_now_us() - from < SLICE_US)
        usleep(50000);
    return (toy_step(t, "trainer") - before) * 1e6 / (double)(place_now_us() - from);
}

/* The microseconds that 99 of 100 calls of a member take at most. */
static double tail_us(struct toy *t)
{
    const char *const args[] = {t->invite + 1, t->addr[2], CALLS, NULL};
    struct proc *caller = place_start_program(t->place, HTH_TEST_CALLER, "caller", args);
    assert_int_equal(proc_wait(caller), 0);
    size_t len;
    char *said = place_read(caller->out, &len), *at = strstr(said, "within ");
    assert_non_null(at);
    double us = strtod(at + strlen("within "), NULL);
    free(said);
    return us;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

PLACE_TEST(strangers_at_the_door_cost_a_millisecond_each)
{
    struct place *p = *state;
    struct proc *knocker[KNOCKERS];
    struct wait w = {0};
    struct toy t;
    toy_init(&t, p, 1000000);
    toy_close(&t);
    toy_start_node(&t);
    t.host[0] =
        START(p, "host", "serve", "--run", t.run, "--invite", t.invite, "--listen", t.addr[2],
              "--dir", place_path(p, "host"), "--threads", "1", "--experts", "8");
    proc_wait_text(t.host[0], "serving 8 experts");
    double before = proc_cpu_ms(t.host[0]);
    for (int round = 0; round < ROUNDS; round++) {
        knock(&t, KNOCKS, knocker);
        for (int i = 0; i < KNOCKERS; i++) {
            assert_int_equal(proc_wait(knocker[i]), 0);
            proc_must_say(knocker[i], "500 connections, 0 failed");
        }
    }
    double each = (proc_cpu_ms(t.host[0]) - before) / (ROUNDS * KNOCKERS * KNOCKS);
    if (each > MS_EACH)
        fail_msg("a stranger costs %.2f ms", each);

    toy_start_trainer(&t, "trainer", NULL);
    while (toy_step(&t, "trainer") < 50)
        wait_step(&w, "the trainer's first steps");
    knock(&t, 1000000, knocker);
    double updates[2] = {0}, us[2][TURNS];
    for (int turn = 0; turn < 2 * TURNS; turn++) {
        int attacked = turn % 2;
        for (int i = 0; i < KNOCKERS; i++)
            proc_signal(knocker[i], attacked ? SIGCONT : SIGSTOP);
        updates[attacked] += rate(&t) / TURNS;
        us[attacked][turn / 2] = tail_us(&t);
    }
    for (int i = 0; i < KNOCKERS; i++)
        proc_signal(knocker[i], SIGKILL);
    for (int i = 0; i < KNOCKERS; i++)
        assert_int_equal(proc_wait(knocker[i]), 128 + SIGKILL);
    for (int attacked = 0; attacked < 2; attacked++)
        qsort(us[attacked], TURNS, sizeof(us[attacked][0]), by_value);
    double calm_us = us[0][TURNS / 2], now_us = us[1][TURNS / 2];
    print_message("%.2f ms each; %.1f updates/s, %.1f beside strangers; 99 of 100 calls within "
                  "%.0f us, %.0f beside strangers\n",
                  each, updates[0], updates[1], calm_us, now_us);
    if (updates[1] < RATE_LEAST * updates[0])
        fail_msg("%.1f updates/s, and %.1f beside strangers", updates[0], updates[1]);
    if (now_us > TAIL_MOST * calm_us)
        fail_msg("99 of 100 calls within %.0f us, and %.0f beside strangers", calm_us, now_us);
    proc_signal(t.trainer, SIGINT);
    assert_int_equal(proc_wait(t.trainer), 130);
    assert_int_equal(proc_stop(t.host[0]), 0);
    place_end(p);
}
