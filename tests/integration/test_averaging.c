/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_averaging.c: averagers as processes of their own, each with its own DHT node on loopback:
 * full grids give the true mean, and the death of any of them is a matter of a second.
 */
#define _POSIX_C_SOURCE 200809L
#include "app/avg_node.h"
#include "averaging/grid.h"
#include "core/mem.h"
#include "integration/place.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define COUNT 100000
#define PEERS 27
/* A death costs a second at most; the rest is for a machine that does much else. */
#define DEATH_MS 1000
#define BUSY_MS  2000

struct swarm {
    struct place *place;
    const char *shape, *format;
    uint32_t peers;
    struct proc *proc[PEERS];
    char out[PEERS][PLACE_TEXT_MAX];
    bool dead[PEERS];
};

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* `victim` dies in `phase`; peers: nobody does, and all are patient. */
static void start(struct swarm *s, struct place *p, const char *shape, uint32_t peers,
                  const char *format, uint32_t victim, const char *phase, const char *how)
{
    char first[64], count[16], population[16];

    memset(s, 0, sizeof(*s));
    s->place = p;
    s->shape = shape;
    s->format = format;
    s->peers = peers;
    snprintf(count, sizeof(count), "%u", COUNT);
    snprintf(population, sizeof(population), "%u", peers);
    for (uint32_t i = 0; i < peers; i++) {
        const char *args[16] = {place_addr(p), i == 0 ? "-" : first, shape};
        size_t n = 3;
        char rank[16];
        snprintf(rank, sizeof(rank), "%u", i);
        snprintf(s->out[i], sizeof(s->out[i]), "%s/%u.bin", p->root, i);
        if (i == 0)
            snprintf(first, sizeof(first), "%s", args[0]);
        args[n++] = rank;
        args[n++] = population;
        args[n++] = count;
        args[n++] = format;
        args[n++] = "1";
        args[n++] = s->out[i];
        if (i == victim) {
            args[n++] = phase;
            args[n++] = how;
        } else if (victim == peers) {
            args[n++] = "patience"; /* a busy machine must not look like a death */
            args[n++] = "20";
        }
        s->proc[i] = place_start_program(p, HTH_TEST_AVERAGER, rank, args);
        if (i == 0)
            proc_wait_text(s->proc[0], "listening");
    }
    for (uint32_t i = 0; i < peers; i++)
        proc_wait_text(s->proc[i], "ready");
}

/* All that live begin a sweep at once; returns how long the slowest took. */
static int64_t sweep(struct swarm *s, uint32_t number)
{
    int64_t begin = now_ms();
    char text[32];

    snprintf(text, sizeof(text), "sweep %u ", number);
    for (uint32_t i = 0; i < s->peers; i++)
        if (!s->dead[i])
            proc_signal(s->proc[i], SIGUSR1);
    for (uint32_t i = 0; i < s->peers; i++)
        if (!s->dead[i])
            proc_wait_text(s->proc[i], text);
    return now_ms() - begin;
}

static float *values_of(const struct swarm *s, uint32_t i)
{
    size_t len;
    char *bytes = place_read(s->out[i], &len);

    assert_non_null(bytes);
    assert_int_equal(len, COUNT * sizeof(float));
    return (float *)(void *)bytes;
}

/* Largest deviation of any process from the true mean of all. */
static double deviation(const struct swarm *s)
{
    double *mean = hth_new_array(double, COUNT), worst = 0;
    float *x = hth_new_array(float, COUNT);

    for (uint32_t i = 0; i < s->peers; i++) {
        hth_avg_node_values(1, i, x, COUNT);
        for (size_t j = 0; j < COUNT; j++)
            mean[j] += (double)x[j] / s->peers;
    }
    for (uint32_t i = 0; i < s->peers; i++) {
        float *y = values_of(s, i);
        for (size_t j = 0; j < COUNT; j++)
            worst = HTH_MAX(worst, fabs((double)y[j] - mean[j]));
        free(y);
    }
    hth_free(mean);
    hth_free(x);
    return worst;
}

/* Largest difference between any two that live. */
static double spread(const struct swarm *s)
{
    float *low = hth_new_array(float, COUNT), *high = hth_new_array(float, COUNT);
    double worst = 0;
    bool first = true;

    for (uint32_t i = 0; i < s->peers; i++) {
        float *y = s->dead[i] ? NULL : values_of(s, i);
        for (size_t j = 0; y != NULL && j < COUNT; j++) {
            low[j] = first ? y[j] : HTH_MIN(low[j], y[j]);
            high[j] = first ? y[j] : HTH_MAX(high[j], y[j]);
        }
        first = first && y == NULL;
        free(y);
    }
    for (size_t j = 0; j < COUNT; j++)
        worst = HTH_MAX(worst, (double)high[j] - (double)low[j]);
    hth_free(low);
    hth_free(high);
    return worst;
}

/* The first sweep makes all the connections. A machine that is busy with other things may make a
 * process seem dead, which costs that sweep its exactness: then it is done again, at most twice. */
static void full_grid(struct place *p, const char *shape, uint32_t peers, const char *format,
                      double bound)
{
    struct swarm s;
    uint32_t number = 1;
    int64_t ms;
    double off;

    start(&s, p, shape, peers, format, peers, NULL, NULL);
    ms = sweep(&s, number++);
    print_message("%s %s: connecting took %lld ms\n", shape, format, (long long)ms);
    do {
        ms = sweep(&s, number++);
        off = deviation(&s);
        print_message("%s %s: %lld ms, deviation %.3g\n", shape, format, (long long)ms, off);
    } while (number <= 4 && !(off < bound && ms < 20000));
    assert_true(off < bound);
    assert_true(ms < 20000);
    place_end(p);
}

static void sixteen_fp32(void **state)
{
    full_grid(*state, "4x4", 16, "fp32", 1e-5);
}

/* The largest of the values is above 4. */
static void sixteen_fp16(void **state)
{
    full_grid(*state, "4x4", 16, "fp16", 2e-3 * 4);
}

static void twentyseven(void **state)
{
    full_grid(*state, "3x3x3", 27, "fp32", 1e-5);
}

/* ---- deaths ---------------------------------------------------------------------------------- */

/* Six in one group; one kills or stops itself in a phase of the second sweep. The others end soon,
 * and agree after one more. Number 0 is also the one through which all others found the DHT. */
static void one_dies(struct place *p, const char *phase, const char *how, uint32_t victim)
{
    struct swarm s;
    int64_t ms, again;

    start(&s, p, "6", 6, "fp32", victim, phase, how);
    (void)sweep(&s, 1); /* a calm one */
    proc_signal(s.proc[victim], SIGUSR1);
    s.dead[victim] = true;
    ms = sweep(&s, 2);
    again = sweep(&s, 3);
    print_message("%s %u in phase %s: %lld ms, then %lld ms, spread %.3g\n", how, victim, phase,
                  (long long)ms, (long long)again, spread(&s));
    proc_must_say(s.proc[victim], "dies now");
    assert_true(spread(&s) < 1e-4);
    assert_true(ms < DEATH_MS + BUSY_MS && again < DEATH_MS + BUSY_MS);
    if (proc_runs(s.proc[victim])) {
        proc_signal(s.proc[victim], SIGKILL);
        (void)proc_wait(s.proc[victim]);
    }
    place_end(p);
}

static void killed_joined(void **state)
{
    one_dies(*state, "joined", "kill", 3);
}

static void killed_declared(void **state)
{
    one_dies(*state, "declared", "kill", 3);
}

static void killed_reducing(void **state)
{
    one_dies(*state, "reducing", "kill", 0);
}

static void frozen_joined(void **state)
{
    one_dies(*state, "joined", "stop", 0);
}

static void frozen_begun(void **state)
{
    one_dies(*state, "begun", "stop", 3);
}

static void frozen_returning(void **state)
{
    one_dies(*state, "returning", "stop", 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sixteen_fp32, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(sixteen_fp16, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(twentyseven, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(killed_joined, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(killed_declared, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(killed_reducing, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(frozen_joined, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(frozen_begun, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(frozen_returning, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
