/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduction when members fail: killed (the connection is reset), frozen (silence), cut off,
 * absent, before, amid and after their parts. The others end soon, agree where they can, and say
 * what was lost. And values that are not finite.
 *
 * 4 members, 1 ms links of 5 MB/s: a round of 256 Ki floats takes some 300 ms.
 */
#include "averaging/reduce_swarm.h"
#include "support/suite.h"

#include "core/mem.h"

#define ALL    UINT32_MAX
#define COUNT  (1u << 18)
#define VICTIM 1u
#define OTHERS (ALL & ~(1u << VICTIM))
#define MS     HTH_US_PER_MS

static void slow_swarm(struct reduce_swarm *s, uint64_t seed, uint64_t count)
{
    swarm_defaults(s);
    s->world_opts.device.up_bytes_per_s = s->world_opts.device.down_bytes_per_s = 5e6;
    swarm_new(s, seed, 4, count);
}

/* Floats of p's average that are the mean of `who`; else they are that of `or_who`, or its own. */
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

/* Each float is a mean of some of them. */
static void check_hull(const struct reduce_peer *p)
{
    for (uint64_t k = 0; k < p->swarm->count; k += 97) {
        double low = INFINITY, high = -INFINITY, y = (double)average_of(p)[k];
        for (uint32_t m = 0; m < p->swarm->n; m++) {
            low = fmin(low, (double)values_of(&p->swarm->peer[m])[k]);
            high = fmax(high, (double)values_of(&p->swarm->peer[m])[k]);
        }
        assert_true(y >= low - 1e-5 && y <= high + 1e-5);
    }
}

/* ---- one member is lost -------------------------------------------------------------------- */

enum event { CALM, KILLED, FROZEN, CUT_OFF, UNHEARD, DEAF, CANCELED, ABSENT };

static void happen(struct reduce_swarm *s, enum event event)
{
    struct reduce_peer *victim = &s->peer[VICTIM];
    if (event == KILLED || event == FROZEN)
        hth_node_crash(victim->node, event == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
    if (event == CANCELED) {
        hth_reduce_cancel(victim->round);
        victim->round = NULL;
    }
    for (uint32_t i = 0; i < 4; i++) {
        if (i == VICTIM)
            continue;
        if (event == CUT_OFF || event == UNHEARD)
            hth_world_block(s->world, victim->node, s->peer[i].node, true);
        if (event == CUT_OFF || event == DEAF)
            hth_world_block(s->world, s->peer[i].node, victim->node, true);
    }
}

/* The longest of the others, who drop nobody else, and hold means of all or of those left, or what
 * they brought. */
static int64_t run_event(enum event event, int64_t at_us)
{
    struct reduce_swarm s;
    int64_t most = 0;
    slow_swarm(&s, 100 + (uint64_t)event, COUNT);
    for (uint32_t i = 0; i < 4; i++)
        if (event != ABSENT || i != VICTIM)
            peer_start(&s.peer[i]);
    if (at_us > 0)
        hth_world_run_for(s.world, at_us);
    if (s.peer[VICTIM].round != NULL)
        happen(&s, event);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;
        if (i == VICTIM)
            continue;
        check_lost(&s.peer[i], VICTIM);
        most = HTH_MAX(most, r->took_us);
        if (event == DEAF) /* it sums what came of each */
            check_hull(&s.peer[i]);
        else
            (void)count_mean(&s.peer[i], ALL, OTHERS);
        assert_true(r->weight_fraction > 0 && r->weight_fraction <= 1 + 1e-9);
        if (event == ABSENT) { /* weights 1 3 4 of 10 in three quarters, the own in the rest */
            assert_int_equal(r->fates[VICTIM].as_sender, HTH_REDUCE_DROP_SLOW);
            assert_close(count_mean(&s.peer[i], OTHERS, ALL), 0.75 * COUNT, 0.01, 0);
            assert_close(r->weight_fraction, 0.75 * 0.8 + 0.25 * (i + 1) / 10.0, 1e-3, 0);
        }
        if (event == CANCELED)
            assert_int_equal(r->fates[VICTIM].as_reducer, HTH_REDUCE_DROP_SLOW);
        if (event == CALM)
            assert_int_equal(r->dropped, 0);
    }
    if (event >= CUT_OFF && event <= DEAF)
        assert_int_equal(s.peer[VICTIM].results, 1); /* it ends by itself, too */
    swarm_free(&s);
    return most;
}

TEST(lost)
{
    static const struct {
        enum event event;
        int from, to;     /* eighths of a calm round */
        int64_t extra_ms; /* the others' time beyond, at most */
    } cases[] = {{KILLED, 0, 9, 200},   {FROZEN, 0, 9, 1000}, {CUT_OFF, 2, 3, 1000},
                 {UNHEARD, 2, 3, 1000}, {DEAF, 2, 3, 1300},   {CANCELED, 2, 3, 400},
                 {ABSENT, 0, 0, 1000}};
    int64_t calm = run_event(CALM, 0);
    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        for (int k = cases[c].from; k <= cases[c].to; k += HTH_TEST_FEW ? 3 : 1) {
            int64_t at = calm * k / 8;
            int64_t took = run_event(cases[c].event, at), limit = HTH_MAX(calm, at);
            limit += cases[c].extra_ms * MS;
            if (took > limit)
                fail_msg("event %d after %lld ms: %lld ms, more than %lld", (int)cases[c].event,
                         (long long)(at / MS), (long long)(took / MS), (long long)(limit / MS));
        }
    }
}

/* Nobody is patient with one that has done nothing yet, before its values come. */
TEST(stranger)
{
    for (int slow = 0; slow < 2; slow++) {
        struct reduce_swarm s;
        slow_swarm(&s, 5, COUNT);
        s.member[VICTIM].stranger = true;
        struct hth_device device = s.world_opts.device;
        device.up_bytes_per_s = slow ? 50e3 : 500e3;
        hth_node_set_device(s.peer[VICTIM].node, &device);
        s.member[VICTIM].bandwidth = 0;
        swarm_round(&s);
        const struct hth_reduce_result *r = &s.peer[0].result;
        assert_ok(r->err);
        assert_int_equal(r->fates[VICTIM].as_sender, slow ? HTH_REDUCE_DROP_SLOW : 0);
        assert_true(!slow || r->took_us < 800 * MS);
        swarm_free(&s);
    }
}

/* Everybody else is dead: the own values come back. */
TEST(all_dead)
{
    struct reduce_swarm s;
    for (int frozen = 0; frozen < 2; frozen++) {
        slow_swarm(&s, 5, COUNT);
        swarm_start(&s);
        hth_world_run_for(s.world, 30 * MS);
        for (uint32_t i = 1; i < 4; i++)
            hth_node_crash(s.peer[i].node, frozen ? HTH_CRASH_SILENT : HTH_CRASH_RESET);
        swarm_run(&s);
        const struct hth_reduce_result *r = &s.peer[0].result;
        assert_ok(r->err);
        assert_int_equal(r->dropped, 3);
        assert_true(r->took_us < 1100 * MS);
        assert_true(r->weight_fraction >= 0.1 - 1e-9 && r->weight_fraction < 0.5);
        (void)count_mean(&s.peer[0], ALL, 1);
        for (uint32_t i = 1; i < 4; i++) {
            assert_int_equal(r->fates[i].as_reducer,
                             frozen ? HTH_REDUCE_DROP_SILENT : HTH_REDUCE_DROP_LOST);
        }
        swarm_free(&s);
    }
}

/* ---- late ---------------------------------------------------------------------------------- */

/* One that begins 600 ms after the others is waited for; one that begins when they have ended is
 * refused, and keeps its own. */
TEST(begins_late)
{
    struct reduce_swarm s;
    const struct hth_reduce_result *late = &s.peer[VICTIM].result;
    slow_swarm(&s, 13, COUNT);
    for (int ended = 0; ended < 2; ended++) {
        swarm_next(&s);
        for (uint32_t i = 0; i < 4; i++)
            if (i != VICTIM)
                peer_start(&s.peer[i]);
        if (ended)
            swarm_run(&s);
        else
            swarm_for(&s, 600 * MS);
        peer_start(&s.peer[VICTIM]);
        swarm_run(&s);
        for (uint32_t i = 0; i < 4 && !ended; i++) {
            check_calm(&s.peer[i]);
            assert_true(deviation(&s.peer[i], ALL, 0, COUNT) < 3e-6);
        }
    }
    assert_ok(late->err);
    assert_int_equal(late->dropped, 3);
    assert_true(late->took_us < 200 * MS);
    swarm_free(&s);
}

/* One whose processor does nothing for a while: it lives, but its parts do not come. */
TEST(slow_processor)
{
    struct reduce_swarm s;
    struct hth_device stuck = HTH_DEVICE_INIT;
    swarm_defaults(&s);
    s.format = HTH_QUANT_INT8;
    s.reducer_opts.patience_us = 2 * HTH_US_PER_S;
    swarm_new(&s, 9, 4, COUNT);
    stuck.bytes_per_s = 1e3;
    hth_node_set_device(s.peer[VICTIM].node, &stuck);
    swarm_round(&s);
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
    assert_true(s.peer[VICTIM].result.took_us <= s.timeout_us + MS);
    swarm_free(&s);
}

/* The round's time is shorter than the vector's way over the line. */
TEST(deadline)
{
    struct reduce_swarm s;
    slow_swarm(&s, 11, 4 * COUNT);
    s.timeout_us = HTH_US_PER_S;
    swarm_round(&s);
    for (uint32_t i = 0; i < 4; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;
        assert_ok(r->err);
        assert_true(r->took_us <= s.timeout_us + MS);
        assert_true(r->weight_fraction < 1);
        check_hull(&s.peer[i]);
    }
    swarm_free(&s);
}

/* ---- values that are not finite ------------------------------------------------------------ */

/* In two parts of member 2's vector: one that it reduces, one that member 0 does. */
TEST(not_finite)
{
    static const struct {
        enum hth_quant_format format;
        float bad;
        double most;
    } cases[] = {{HTH_QUANT_F32, NAN, 3e-6},
                 {HTH_QUANT_F32, INFINITY, 3e-6},
                 {HTH_QUANT_F16, NAN, 4e-3},
                 {HTH_QUANT_INT8, -INFINITY, 0.1}};
    static const struct {
        uint32_t at, who;
    } looks[] = {{777, ALL & ~4u}, {120000, ALL & ~4u}, {199999, ALL}};
    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        struct reduce_swarm s;
        swarm_defaults(&s);
        s.format = cases[c].format;
        swarm_new(&s, 13, 4, 200000);
        values_of(&s.peer[2])[777] = values_of(&s.peer[2])[120000] = cases[c].bad;
        swarm_round(&s);
        for (uint32_t i = 0; i < 4; i++) {
            assert_ok(s.peer[i].result.err);
            for (uint64_t k = 0; k < 200000; k++)
                assert_true(isfinite(average_of(&s.peer[i])[k]));
            for (size_t k = 0; k < HTH_ARRAY_LEN(looks); k++)
                assert_true(deviation(&s.peer[i], looks[k].who, looks[k].at, looks[k].at + 1) <
                            cases[c].most);
        }
        assert_int_equal(s.peer[2].result.fates[2].as_sender, HTH_REDUCE_DROP_NOT_FINITE);
        swarm_free(&s);
    }
}

/* Two have finite values that are too large for any sum; or nobody's can be used, and everybody
 * keeps its own. */
TEST(nothing_to_add)
{
    struct reduce_swarm s;
    for (int nobody = 0; nobody < 2; nobody++) {
        swarm_defaults(&s);
        swarm_new(&s, 14, 3, 1000);
        for (uint32_t i = nobody ? 0 : 1; i < 3; i++) {
            values_of(&s.peer[i])[5] = nobody ? NAN : 3.4e38f;
            s.member[i].weight = nobody ? i + 1 : 1e9;
        }
        swarm_round(&s);
        for (uint32_t i = 0; i < 3; i++) {
            assert_ok(s.peer[i].result.err);
            for (uint64_t k = 0; k < 1000 && !nobody; k++)
                assert_true(isfinite(average_of(&s.peer[i])[k]));
            if (!nobody)
                continue;
            assert_memory_equal(average_of(&s.peer[i]), values_of(&s.peer[i]), 4000);
            assert_close(s.peer[i].result.weight, i + 1, 1e-9, 0);
        }
        swarm_free(&s);
    }
}
