/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deaths.c: one process after the other goes, in every role that there is, and the others go
 * on.
 *
 * Averagers on a 3x3 grid: a leader is killed while it leads; the process through which all found
 * the DHT is killed; one is frozen; one is told to end in the middle of a round. After each of them
 * all that are left agree to 1e-4 within one more sweep, of two rounds.
 *
 * Trainers of one run that share batches: the bootstrap node is killed; a newcomer takes up the
 * state while one of its donors is killed; one is told to end.
 */
#define _XOPEN_SOURCE 700
#include "core/mem.h"
#include "integration/toy.h"

#include <signal.h>
#include <stdlib.h>

#define COUNT 20000
#define PEERS 9
/* A machine that is busy with other things makes processes seem dead: then once more. */
#define SWEEPS_MORE 3

struct swarm {
    struct place *place;
    struct proc *proc[PEERS];
    char out[PEERS][PLACE_TEXT_MAX];
    bool gone[PEERS];
    uint32_t sweeps;
};

static void start(struct swarm *s, struct place *p)
{
    char first[64] = "-";

    memset(s, 0, sizeof(*s));
    s->place = p;
    for (uint32_t i = 0; i < PEERS; i++) {
        const char *addr = place_addr(p), *rank = place_text(p, "%u", i);

        snprintf(s->out[i], sizeof(s->out[i]), "%s/%u.bin", p->root, i);
        s->proc[i] = place_start_program(
            p, HTH_TEST_AVERAGER, rank,
            (const char *const[]){addr, first, "3x3", rank, "9", place_text(p, "%u", COUNT), "fp32",
                                  "1", s->out[i], "leading", "kill", NULL});
        if (i > 0)
            continue;
        snprintf(first, sizeof(first), "%s", addr);
        proc_wait_text(s->proc[0], "listening");
    }
    for (uint32_t i = 0; i < PEERS; i++)
        proc_wait_text(s->proc[i], "ready");
}

static void begin_sweep(struct swarm *s)
{
    s->sweeps++;
    for (uint32_t i = 0; i < PEERS; i++)
        if (!s->gone[i])
            proc_signal(s->proc[i], SIGUSR1);
}

static void end_sweep(struct swarm *s)
{
    for (uint32_t i = 0; i < PEERS; i++)
        if (!s->gone[i])
            proc_wait_text(s->proc[i], place_text(s->place, "sweep %u ", s->sweeps));
}

/* Largest difference between any two that are there. */
static double spread(const struct swarm *s)
{
    float *low = hth_new_array(float, COUNT), *high = hth_new_array(float, COUNT);
    double worst = 0;
    bool first = true;

    for (uint32_t i = 0; i < PEERS; i++) {
        size_t len = 0;
        char *bytes = s->gone[i] ? NULL : place_read(s->out[i], &len);
        const float *x = (const float *)(const void *)bytes;

        if (s->gone[i])
            continue;
        assert_int_equal(len, COUNT * sizeof(float));
        for (size_t j = 0; j < COUNT; j++) {
            low[j] = first ? x[j] : HTH_MIN(low[j], x[j]);
            high[j] = first ? x[j] : HTH_MAX(high[j], x[j]);
        }
        first = false;
        free(bytes);
    }
    for (size_t j = 0; j < COUNT; j++)
        worst = HTH_MAX(worst, (double)high[j] - (double)low[j]);
    hth_free(low);
    hth_free(high);
    return worst;
}

static void they_agree(struct swarm *s, const char *what)
{
    double apart = 1;

    for (int i = 0; i < SWEEPS_MORE && apart >= 1e-4; i++) {
        int64_t begin_us = place_now_us();

        begin_sweep(s);
        end_sweep(s);
        apart = spread(s);
        print_message("%s: %lld ms, spread %.2g\n", what,
                      (long long)(place_now_us() - begin_us) / 1000, apart);
    }
    assert_true(apart < 1e-4);
}

/* Another one than the last that is there. */
static uint32_t one_that_is_there(const struct swarm *s)
{
    uint32_t i = PEERS - 1;

    while (s->gone[i])
        i--;
    return i;
}

static void test_averagers(void **state)
{
    struct place *p = *state;
    struct swarm s;
    struct wait w = {0};
    uint32_t dead = PEERS, i;

    start(&s, p);
    they_agree(&s, "all nine");
    begin_sweep(&s); /* a leader of a line dies while it leads */
    while (dead == PEERS) {
        for (i = 0; i < PEERS; i++)
            dead = proc_runs(s.proc[i]) ? dead : i;
        wait_step(&w, "the death of a leader");
    }
    s.gone[dead] = true;
    proc_must_say(s.proc[dead], "dies now: leading");
    end_sweep(&s);
    they_agree(&s, "a leader was killed");
    if (!s.gone[0]) {
        proc_signal(s.proc[0], SIGKILL);
        (void)proc_wait(s.proc[0]);
        s.gone[0] = true;
    }
    they_agree(&s, "the bootstrap node was killed");
    i = one_that_is_there(&s);
    begin_sweep(&s);
    assert_int_equal(proc_stop(s.proc[i]), 0); /* SIGTERM in the middle of it */
    s.gone[i] = true;
    end_sweep(&s);
    they_agree(&s, "one was told to end in a round");
    i = one_that_is_there(&s);
    begin_sweep(&s);
    proc_signal(s.proc[i], SIGSTOP);
    s.gone[i] = true;
    end_sweep(&s);
    they_agree(&s, "one is frozen");
    proc_signal(s.proc[i], SIGKILL);
    (void)proc_wait(s.proc[i]);
    place_end(p);
}

/* ---- trainers -------------------------------------------------------------------------------- */

static void wait_for_steps(struct toy *t, const char *name, double more)
{
    struct wait w = {0};
    double goal = toy_step(t, name) + more;
    char what[64];

    snprintf(what, sizeof(what), "step %.0f of trainer %s", goal, name);
    while (toy_step(t, name) < goal)
        wait_step(&w, what);
}

static struct proc *start_trainer(struct toy *t, const char *name, const char *listen,
                                  const char *join)
{
    toy_start_trainer(t, name,
                      (const char *const[]){"--listen", listen, "--join", join, "--averaging",
                                            "batch", "--target", "256", "--steps", "1000000",
                                            NULL});
    return t->trainer;
}

static void test_trainers(void **state)
{
    struct place *p = *state;
    struct toy t;
    static const char *const name[] = {"t0", "t1", "t2"};
    struct proc *trainer[3], *late;
    char addr[4][64];

    toy_init(&t, p, 100);
    for (unsigned i = 0; i < 4; i++)
        snprintf(addr[i], sizeof(addr[i]), "%s", place_addr(p));
    toy_start_node(&t);
    toy_start_host(&t, 0);
    for (unsigned i = 0; i < 3; i++)
        trainer[i] = start_trainer(&t, name[i], addr[i], t.addr[2]);
    for (unsigned i = 0; i < 3; i++)
        wait_for_steps(&t, name[i], 5);
    proc_signal(t.node, SIGKILL); /* the one through which all came */
    (void)proc_wait(t.node);
    wait_for_steps(&t, "t0", 5);
    late = start_trainer(&t, "late", addr[3], addr[0]);
    proc_wait_text(late, "state: ");
    proc_signal(trainer[1], SIGKILL); /* one who could give the state */
    (void)proc_wait(trainer[1]);
    wait_for_steps(&t, "late", 5);
    proc_must_say(late, "goes on from step");
    proc_signal(trainer[2], SIGTERM); /* in the middle of whatever it does */
    (void)proc_wait(trainer[2]);
    proc_must_say(trainer[2], "updates, ");
    wait_for_steps(&t, "late", 5);
    wait_for_steps(&t, "t0", 5);
    proc_signal(late, SIGINT);
    proc_signal(trainer[0], SIGINT);
    assert_int_equal(proc_wait(late), 130);
    assert_int_equal(proc_wait(trainer[0]), 130);
    place_end(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_averagers, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(test_trainers, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
