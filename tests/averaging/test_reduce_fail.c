/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduction when members fail: killed (the connection is reset), frozen (silence), slow,
 * absent, before, amid and after their parts, as senders and as reducers. The others end soon,
 * agree where they can, and say what was lost.
 *
 * 4 members, 1 ms links of 20 MB/s: a round of 1 M floats takes some 300 ms.
 */
#include "averaging/reduce_swarm.h"

#include "core/mem.h"

#define ALL    UINT32_MAX
#define COUNT  (1u << 20)
#define VICTIM 1u

static void slow_swarm(struct reduce_swarm *s, uint64_t seed, uint32_t n, uint64_t count)
{
    swarm_defaults(s);
    s->world_opts.device.up_bytes_per_s = s->world_opts.device.down_bytes_per_s = 20e6;
    swarm_new(s, seed, n, count);
}

/* Each float of a survivor's average is a mean of those who can have been in it, or its own. */
static void check_hull(const struct reduce_peer *p)
{
    const struct reduce_swarm *s = p->swarm;
    for (uint64_t i = 0; i < s->count; i += 97) {
        double low = INFINITY, high = -INFINITY;
        for (uint32_t k = 0; k < s->n; k++) {
            if (s->peer[k].values == NULL)
                continue;
            low = fmin(low, (double)values_of(&s->peer[k])[i]); /* NaN is in no mean */
            high = fmax(high, (double)values_of(&s->peer[k])[i]);
        }
        double y = (double)average_of(p)[i];
        assert_true(y >= low - 1e-5 && y <= high + 1e-5);
    }
}

/* Floats of p's average that are the mean of `who` (else: its own value), and nothing else. */
static uint64_t count_mean(const struct reduce_peer *p, uint32_t who, uint32_t or_who)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < p->swarm->count; i++) {
        double y = (double)average_of(p)[i], tolerance = 4e-6;
        if (fabs(y - mean_of(p->swarm, who, i)) <= tolerance) {
            n++;
            continue;
        }
        bool other = fabs(y - mean_of(p->swarm, or_who, i)) <= tolerance;
        if (!other && y != (double)values_of(p)[i])
            fail_msg("float %llu of member %u is %g: neither a mean nor its own",
                     (unsigned long long)i, p->index, y);
    }
    return n;
}

/* ---- a member dies at any time ------------------------------------------------------------- */

struct death {
    const char *name;
    bool frozen;      /* silence; else the connections are reset */
    int64_t extra_us; /* the others' time beyond a calm round's, at most */
};

/* The survivors end, within the calm time and `extra`, each float a mean of all or of survivors or
 * their own; and in the next round, without the victim, they agree. */
static void run_death(const struct death *d, uint64_t seed, int64_t at_us, int64_t calm_us)
{
    struct reduce_swarm s;
    uint32_t survivors = ALL & ~(1u << VICTIM);
    slow_swarm(&s, seed, 4, COUNT);
    swarm_start(&s);
    hth_world_run_for(s.world, at_us);
    hth_node_crash(s.peer[VICTIM].node, d->frozen ? HTH_CRASH_SILENT : HTH_CRASH_RESET);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        struct reduce_peer *p = &s.peer[i];
        if (i == VICTIM)
            continue;
        assert_int_equal(p->results, 1);
        assert_ok(p->result.err);
        int64_t took = p->end_us - p->start_us, limit = HTH_MAX(calm_us, at_us) + d->extra_us;
        if (took > limit)
            fail_msg("%s after %lld ms: member %u took %lld ms, more than %lld", d->name,
                     (long long)at_us / 1000, i, (long long)took / 1000, (long long)limit / 1000);
        check_hull(p);
        (void)count_mean(p, ALL, survivors);
        assert_true(p->result.weight_fraction > 0 && p->result.weight_fraction <= 1 + 1e-9);
        for (uint32_t k = 0; k < 4; k++) {
            if (k != VICTIM) {
                assert_int_equal(p->result.fates[k].as_sender, HTH_REDUCE_DROP_NONE);
                assert_int_equal(p->result.fates[k].as_reducer, HTH_REDUCE_DROP_NONE);
            }
        }
    }
    swarm_next(&s);
    /* Matchmaking would not offer the dead one again. */
    s.absent = 1u << VICTIM;
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == VICTIM)
            continue;
        assert_ok(s.peer[i].result.err);
        assert_int_equal(s.peer[i].result.dropped, 0);
        assert_true(deviation(&s.peer[i], survivors, 0, COUNT) <= 3e-6);
    }
    swarm_free(&s);
}

static int64_t calm_time(uint64_t seed)
{
    struct reduce_swarm s;
    int64_t most = 0;
    slow_swarm(&s, seed, 4, COUNT);
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(s.peer[i].result.dropped, 0);
        most = HTH_MAX(most, s.peer[i].result.took_us);
    }
    swarm_free(&s);
    return most;
}

static void run_deaths(const struct death *d)
{
    int64_t calm = calm_time(1);
    /* From before anything was sent to when all is done. */
    for (int64_t at = 0, i = 0; at <= calm + 50000; at += calm / (HTH_TEST_FEW ? 3 : 8), i++)
        run_death(d, 100 + (uint64_t)i, at, calm);
}

static void test_killed(void **state)
{
    static const struct death d = {"killed", false, 200 * HTH_US_PER_MS};
    (void)state;
    run_deaths(&d);
}

static void test_frozen(void **state)
{
    static const struct death d = {"frozen", true, 1000 * HTH_US_PER_MS};
    (void)state;
    run_deaths(&d);
}

/* Still on the list in the round after the one in which it froze: nobody waits as long again. */
static void test_frozen_again(void **state)
{
    struct reduce_swarm s;
    (void)state;
    slow_swarm(&s, 20, 4, COUNT / 4);
    hth_node_crash(s.peer[VICTIM].node, HTH_CRASH_SILENT);
    for (int round = 0; round < 3; round++) {
        int64_t least = round == 0 ? 700 : 200, most = round == 0 ? 900 : 400;
        swarm_start(&s);
        swarm_run(&s);
        for (uint32_t i = 0; i < 4; i++) {
            const struct hth_reduce_result *r = &s.peer[i].result;
            if (i == VICTIM)
                continue;
            assert_int_equal(r->fates[VICTIM].as_reducer, HTH_REDUCE_DROP_SILENT);
            assert_in_range(r->took_us, least * HTH_US_PER_MS, most * HTH_US_PER_MS);
        }
        swarm_next(&s);
    }
    swarm_free(&s);
}

/* Everybody else is dead: the own values come back. */
static void test_all_dead(void **state)
{
    struct reduce_swarm s;
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        slow_swarm(&s, 5, 4, COUNT);
        swarm_start(&s);
        hth_world_run_for(s.world, 30 * HTH_US_PER_MS);
        for (uint32_t i = 1; i < 4; i++)
            hth_node_crash(s.peer[i].node, frozen ? HTH_CRASH_SILENT : HTH_CRASH_RESET);
        swarm_run(&s);
        const struct hth_reduce_result *r = &s.peer[0].result;
        assert_ok(r->err);
        assert_int_equal(r->dropped, 3);
        assert_true(r->took_us < 1100 * HTH_US_PER_MS);
        assert_true(r->weight_fraction >= 0.1 - 1e-9 && r->weight_fraction < 0.5);
        (void)count_mean(&s.peer[0], ALL, 1);
        for (uint32_t i = 1; i < 4; i++) {
            assert_int_equal(r->fates[i].as_reducer,
                             frozen ? HTH_REDUCE_DROP_SILENT : HTH_REDUCE_DROP_LOST);
            assert_true(r->fates[i].parts_kept > 0);
        }
        swarm_free(&s);
    }
}

/* ---- black holes --------------------------------------------------------------------------- */

/* Nothing gets from the victim to anybody any more, or nothing from anybody to it. */
static void run_hole(bool out, bool in)
{
    struct reduce_swarm s;
    slow_swarm(&s, 6, 4, COUNT);
    swarm_start(&s);
    hth_world_run_for(s.world, 60 * HTH_US_PER_MS);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == VICTIM)
            continue;
        if (out)
            hth_world_block(s.world, s.peer[VICTIM].node, s.peer[i].node, true);
        if (in)
            hth_world_block(s.world, s.peer[i].node, s.peer[VICTIM].node, true);
    }
    int64_t calm = calm_time(1);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == VICTIM)
            continue;
        assert_ok(s.peer[i].result.err);
        assert_true(s.peer[i].result.took_us < calm + 1000 * HTH_US_PER_MS);
        const struct hth_reduce_fate *fate = &s.peer[i].result.fates[VICTIM];
        if (out)
            assert_int_not_equal(fate->as_sender, HTH_REDUCE_DROP_NONE);
        assert_int_not_equal(fate->as_reducer, HTH_REDUCE_DROP_NONE);
        (void)count_mean(&s.peer[i], ALL, ALL & ~(1u << VICTIM));
    }
    /* The victim ends by itself, too, and never later than its time. */
    assert_ok(s.peer[VICTIM].result.err);
    assert_true(s.peer[VICTIM].result.took_us < calm + 1000 * HTH_US_PER_MS);
    swarm_free(&s);
}

static void test_black_hole(void **state)
{
    (void)state;
    run_hole(true, true);
    run_hole(true, false);
    run_hole(false, true);
}

/* ---- absent, slow, late -------------------------------------------------------------------- */

/* A member that never began: everything it should have is left out, in time. */
static void test_absent(void **state)
{
    struct reduce_swarm s;
    (void)state;
    slow_swarm(&s, 7, 4, COUNT);
    for (uint32_t i = 0; i < 4; i++) {
        if (i != VICTIM)
            peer_start(&s.peer[i]);
    }
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == VICTIM)
            continue;
        const struct hth_reduce_result *r = &s.peer[i].result;
        assert_ok(r->err);
        assert_true(r->took_us < 1000 * HTH_US_PER_MS);
        assert_int_equal(r->fates[VICTIM].as_sender, HTH_REDUCE_DROP_ABSENT);
        assert_int_equal(r->fates[VICTIM].as_reducer, HTH_REDUCE_DROP_ABSENT);
        uint64_t mean = count_mean(&s.peer[i], ALL & ~(1u << VICTIM), ALL);
        assert_close(mean, 0.75 * COUNT, 0.01, 0);
        /* Weights 1 3 4 of 10 in three quarters, the own in the rest. */
        assert_close(r->weight_fraction, 0.75 * 0.8 + 0.25 * (i + 1) / 10.0, 1e-3, 0);
    }
    swarm_free(&s);
}

/* One that begins when it has been asked for already, and said that it knows of no round: from its
 * first part on it is there, however long the rest takes. */
static void test_begins_late(void **state)
{
    struct reduce_swarm s;
    (void)state;
    slow_swarm(&s, 13, 4, 2 * COUNT);
    for (uint32_t i = 0; i < 4; i++) {
        if (i != VICTIM)
            peer_start(&s.peer[i]);
    }
    swarm_for(&s, 600 * HTH_US_PER_MS);
    peer_start(&s.peer[VICTIM]);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;
        assert_ok(r->err);
        assert_int_equal(r->dropped, 0);
        assert_true(s.peer[i].end_us - s.peer[0].start_us > 800 * HTH_US_PER_MS);
        assert_true(deviation(&s.peer[i], ALL, 0, 2 * COUNT) < 3e-6);
    }
    swarm_free(&s);
}

/* One whose line is ten times slower lives, and is waited for; nobody is dropped. */
static void test_slow_line(void **state)
{
    struct reduce_swarm s;
    struct hth_device slow = HTH_DEVICE_INIT;
    (void)state;
    slow_swarm(&s, 8, 4, COUNT / 4);
    slow.up_bytes_per_s = slow.down_bytes_per_s = 2e6;
    hth_node_set_device(s.peer[VICTIM].node, &slow);
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(s.peer[i].result.dropped, 0);
        assert_true(deviation(&s.peer[i], ALL, 0, COUNT / 4) < 3e-6);
    }
    swarm_free(&s);
}

/* One whose processor does nothing for a while: it lives, but its parts do not come. */
static void test_slow_processor(void **state)
{
    struct reduce_swarm s;
    struct hth_device stuck = HTH_DEVICE_INIT;
    struct hth_avg_span span = {COUNT, HTH_QUANT_INT8};
    (void)state;
    swarm_defaults(&s);
    s.spans = &span;
    s.span_count = 1;
    s.reducer_opts.patience_us = 2 * HTH_US_PER_S;
    swarm_new(&s, 9, 4, COUNT);
    stuck.bytes_per_s = 1e3;
    hth_node_set_device(s.peer[VICTIM].node, &stuck);
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;
        if (i == VICTIM)
            continue;
        assert_ok(r->err);
        assert_int_equal(r->fates[VICTIM].as_sender, HTH_REDUCE_DROP_SLOW);
        assert_int_equal(r->fates[VICTIM].as_reducer, HTH_REDUCE_DROP_SLOW);
        assert_true(r->took_us > 2 * HTH_US_PER_S && r->took_us < 4 * HTH_US_PER_S);
    }
    /* Its own round ends by its time, with an error as nothing of it could be computed. */
    assert_err(HTH_E_TIMEOUT, s.peer[VICTIM].result.err);
    assert_true(s.peer[VICTIM].result.took_us <= s.timeout_us + HTH_US_PER_MS);
    swarm_free(&s);
}

/* Frozen for two seconds, then back: it was dropped, but its parts are answered with the mean. */
static void test_comes_back(void **state)
{
    struct reduce_swarm s;
    (void)state;
    slow_swarm(&s, 10, 4, COUNT / 4);
    for (uint32_t i = 0; i < 4; i++) {
        hth_world_block(s.world, s.peer[VICTIM].node, s.peer[i].node, i != VICTIM);
        hth_world_block(s.world, s.peer[i].node, s.peer[VICTIM].node, i != VICTIM);
    }
    for (uint32_t i = 0; i < 4; i++) {
        if (i != VICTIM)
            peer_start(&s.peer[i]);
    }
    swarm_run(&s);
    hth_world_heal(s.world);
    peer_start(&s.peer[VICTIM]);
    swarm_run(&s);
    /* Three quarters of the others' parts it holds now as they do; its own share is its own. */
    uint32_t others = ALL & ~(1u << VICTIM);
    assert_ok(s.peer[VICTIM].result.err);
    assert_close(count_mean(&s.peer[VICTIM], others, ALL), 0.75 * (COUNT / 4), 0.01, 0);
    swarm_free(&s);
}

/* The round's time is shorter than the vector's way over the line. */
static void test_deadline(void **state)
{
    struct reduce_swarm s;
    (void)state;
    swarm_defaults(&s);
    s.world_opts.device.up_bytes_per_s = s.world_opts.device.down_bytes_per_s = 1e6;
    s.timeout_us = 2 * HTH_US_PER_S;
    swarm_new(&s, 11, 4, COUNT);
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;
        assert_ok(r->err);
        assert_true(r->took_us <= s.timeout_us + HTH_US_PER_MS);
        assert_true(r->weight_fraction < 1);
        check_hull(&s.peer[i]);
    }
    swarm_free(&s);
}

/* A member cancels: the others are told at once. */
static void test_canceled(void **state)
{
    struct reduce_swarm s;
    (void)state;
    slow_swarm(&s, 12, 4, COUNT);
    swarm_start(&s);
    swarm_for(&s, 60 * HTH_US_PER_MS);
    hth_reduce_cancel(s.peer[VICTIM].round);
    s.peer[VICTIM].round = NULL;
    int64_t calm = calm_time(1);
    swarm_run(&s);
    assert_int_equal(s.peer[VICTIM].results, 0);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == VICTIM)
            continue;
        assert_ok(s.peer[i].result.err);
        assert_int_equal(s.peer[i].result.fates[VICTIM].as_reducer, HTH_REDUCE_DROP_REFUSED);
        assert_true(s.peer[i].result.took_us < calm + 400 * HTH_US_PER_MS);
    }
    swarm_free(&s);
}

/* ---- values that are not finite ------------------------------------------------------------ */

static void run_not_finite(enum hth_quant_format format, float bad)
{
    struct reduce_swarm s;
    struct hth_avg_span span = {200000, format};
    swarm_defaults(&s);
    s.spans = &span;
    s.span_count = 1;
    swarm_new(&s, 13, 4, 200000);
    /* In two parts of member 2's vector: one that it reduces, one that member 0 does. */
    float *x = (float *)(void *)s.peer[2].values->data;
    x[777] = bad;
    x[120000] = bad;
    swarm_start(&s);
    swarm_run(&s);
    uint32_t others = ALL & ~4u;
    double tolerance = format == HTH_QUANT_F32 ? 3e-6 : format == HTH_QUANT_INT8 ? 0.1 : 4e-3;
    uint32_t damaged = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const struct reduce_peer *p = &s.peer[i];
        assert_ok(p->result.err);
        damaged += p->result.parts_damaged;
        for (uint64_t k = 0; k < 200000; k++)
            assert_true(isfinite(average_of(p)[k]));
        assert_true(fabs((double)average_of(p)[777] - mean_of(&s, others, 777)) < tolerance);
        assert_true(fabs((double)average_of(p)[120000] - mean_of(&s, others, 120000)) < tolerance);
        assert_true(fabs((double)average_of(p)[199999] - mean_of(&s, ALL, 199999)) < tolerance);
    }
    assert_true(damaged >= 1 && damaged <= 2);
    assert_int_equal(s.peer[2].result.fates[2].as_sender, HTH_REDUCE_DROP_NOT_FINITE);
    swarm_free(&s);
}

static void test_not_finite(void **state)
{
    (void)state;
    run_not_finite(HTH_QUANT_F32, NAN);
    run_not_finite(HTH_QUANT_F32, INFINITY);
    run_not_finite(HTH_QUANT_F16, NAN);
    run_not_finite(HTH_QUANT_INT8, -INFINITY);
}

/* Finite, and too large for any sum. */
static void test_too_large(void **state)
{
    struct reduce_swarm s;
    (void)state;
    swarm_defaults(&s);
    swarm_new(&s, 14, 3, 1000);
    for (uint32_t i = 1; i < 3; i++)
        ((float *)(void *)s.peer[i].values->data)[5] = 3.4e38f;
    for (uint32_t i = 0; i < 3; i++)
        s.member[i].weight = 1e9;
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(s.peer[i].result.err);
        for (uint64_t k = 0; k < 1000; k++)
            assert_true(isfinite(average_of(&s.peer[i])[k]));
    }
    swarm_free(&s);
}

/* Nobody's values can be used: everybody keeps its own. */
static void test_nothing_finite(void **state)
{
    struct reduce_swarm s;
    (void)state;
    swarm_defaults(&s);
    swarm_new(&s, 15, 3, 1000);
    for (uint32_t i = 0; i < 3; i++)
        ((float *)(void *)s.peer[i].values->data)[i] = NAN;
    swarm_start(&s);
    swarm_run(&s);
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(s.peer[i].result.err);
        assert_memory_equal(average_of(&s.peer[i]), values_of(&s.peer[i]), 4000);
        assert_close(s.peer[i].result.weight, i + 1, 1e-9, 0);
    }
    swarm_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),         cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_frozen_again),   cmocka_unit_test(test_all_dead),
        cmocka_unit_test(test_black_hole),     cmocka_unit_test(test_absent),
        cmocka_unit_test(test_begins_late),    cmocka_unit_test(test_slow_line),
        cmocka_unit_test(test_slow_processor), cmocka_unit_test(test_comes_back),
        cmocka_unit_test(test_deadline),       cmocka_unit_test(test_canceled),
        cmocka_unit_test(test_not_finite),     cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_nothing_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
