/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_late_deaths.c: what a death costs a sweep of several rounds whose peers come one after the
 * other, at any moment of it.
 *
 * The cost is what the last of the others ends later than in the same world without the death. Who
 * dies may not have come yet, may wait for others, or may have given its column all of its values;
 * then nobody of the column knows, and the row that misses it calls one of them to stand in.
 */
#include <stdlib.h>

#include "averaging/pit.h"
#include "core/rng.h"
#include "support/test.h"

#define PEERS_MAX 17

struct scene {
    const char *shape;
    uint32_t peers;
    bool numbered; /* sweeps, as those of shared batches */
    int64_t spread_us;
    uint64_t seed;
};

struct death {
    uint32_t who; /* PEERS_MAX: nobody */
    int64_t at_us;
    enum hth_crash how;
};

/* The sweeps before: all are connected. */
static void open_scene(struct pit *p, const struct scene *s)
{
    pit_init(p, s->seed, s->peers, 2000, NULL);
    assert_ok(hth_avg_shape_parse(s->shape, &p->shape));
    p->has_cells = true;
    pit_fill(p, 6);
    pit_start(p, 3 * HTH_US_PER_S);
}

/* Everybody offers at its time; returns when the last of those who live has its average. */
static int64_t sweep(struct pit *p, const struct scene *s, uint64_t number, int64_t spread_us,
                     const struct death *d)
{
    int64_t at_us[PEERS_MAX], begin_us, last_us = 0;
    bool dead = d->who == PEERS_MAX, offered[PEERS_MAX] = {false}, all = false;
    struct hth_rng rng;

    for (uint32_t i = 0; i < s->peers && s->numbered; i++)
        if (p->peer[i].up)
            hth_roster_set_progress(p->peer[i].avg.roster, number, 0, 0);
    hth_world_run_for(p->world, 2 * HTH_US_PER_S);
    hth_rng_init(&rng, s->seed + number);
    for (uint32_t i = 0; i < s->peers; i++)
        at_us[i] = spread_us > 0 ? (int64_t)hth_rng_below(&rng, (uint32_t)spread_us) : 0;
    begin_us = hth_world_now_us(p->world);
    for (; !all || !dead; hth_world_run_for(p->world, HTH_US_PER_MS)) {
        int64_t now_us = hth_world_now_us(p->world) - begin_us;

        if (!dead && now_us >= d->at_us) {
            hth_node_crash(p->peer[d->who].node, d->how);
            p->peer[d->who].up = false;
            dead = true;
        }
        all = true;
        for (uint32_t i = 0; i < s->peers; i++) {
            if (offered[i] || !p->peer[i].up)
                continue;
            offered[i] = now_us >= at_us[i];
            all &= offered[i];
            if (offered[i])
                pit_offer(&p->peer[i], s->numbered ? number : HTH_AVG_SWEEP_AUTO, HTH_AVG_ALL_AXES);
        }
    }
    assert_true(pit_run(p, 20 * HTH_US_PER_S));
    for (uint32_t i = 0; i < s->peers; i++)
        if (p->peer[i].up)
            last_us = HTH_MAX(last_us, p->peer[i].ended_us - begin_us);
    return last_us;
}

/* How long the sweep of the death takes; after the next one all agree. */
static int64_t one_dies(const struct scene *s, const struct death *d)
{
    const struct death none = {.who = PEERS_MAX};
    struct pit p;
    int64_t took_us;

    open_scene(&p, s);
    (void)sweep(&p, s, 7, 0, &none);
    pit_fill(&p, 7);
    took_us = sweep(&p, s, 8, s->spread_us, d);
    pit_fill(&p, 8);
    (void)sweep(&p, s, 9, s->spread_us, &none);
    assert_true(pit_spread(&p) < 1e-4);
    pit_stop(&p);
    return took_us;
}

/* The largest cost of deaths at `moments` times of the sweep. */
static int64_t worst_cost(struct scene *s, enum hth_crash how, int64_t moments)
{
    struct death d = {.who = PEERS_MAX, .how = how};
    int64_t calm_us = one_dies(s, &d), worst_us = 0;

    for (int64_t m = 0; m < moments; m++) {
        d.who = (uint32_t)(s->seed * 7 + (uint64_t)m * 5) % s->peers;
        d.at_us = (calm_us + 5000) * m / moments;
        worst_us = HTH_MAX(worst_us, one_dies(s, &d) - calm_us);
    }
    return worst_us;
}

static const uint64_t seeds = 1;
static const int64_t moments = 8;

static void deaths(enum hth_crash how, int64_t bound_us)
{
    static const int64_t spreads_ms[] = {0, 100, 300};

    for (uint32_t k = 0; k < 2 * HTH_ARRAY_LEN(spreads_ms); k++) {
        struct scene s = {.shape = "3x3", .peers = 9, .numbered = k % 2 == 1};
        int64_t worst_us = 0;

        s.spread_us = spreads_ms[k / 2] * HTH_US_PER_MS;
        for (s.seed = 40; s.seed < 40 + seeds; s.seed++)
            worst_us = HTH_MAX(worst_us, worst_cost(&s, how, moments));
        print_message("%s, %s, offers within %lld ms: costs %lld ms at most\n",
                      how == HTH_CRASH_RESET ? "killed" : "silent",
                      s.numbered ? "numbered" : "free", (long long)s.spread_us / 1000,
                      (long long)worst_us / 1000);
        assert_true(worst_us <= bound_us);
    }
}

static void silent(void **state)
{
    (void)state;
    deaths(HTH_CRASH_SILENT, 800 * HTH_US_PER_MS);
}

static void killed(void **state)
{
    (void)state;
    deaths(HTH_CRASH_RESET, 200 * HTH_US_PER_MS);
}

/* Rows in which nobody stands: who is called there is no neighbour of the caller, and may be the
 * one that died, to which there is no connection. */
static void far_rows(void **state)
{
    struct scene s = {.shape = "5x4", .peers = 17};

    (void)state;
    for (s.seed = 49; s.seed < 49 + seeds; s.seed++)
        assert_true(worst_cost(&s, HTH_CRASH_SILENT, 8) <= 850 * HTH_US_PER_MS);
    s.numbered = true;
    for (s.seed = 52; s.seed < 52 + seeds; s.seed++)
        assert_true(worst_cost(&s, HTH_CRASH_SILENT, 8) <= 850 * HTH_US_PER_MS);
}

/* Who declared itself to a row and died before it joined had given its column all of its values:
 * somebody stands in for it, and the row has everybody's. That row is its own, or one in which it
 * was to stand in. What ends the wait for it, and what tells of its death, falls into one moment in
 * some of the worlds. */
static void declared_and_died(void **state)
{
    static const struct {
        uint64_t seed;
        struct death d;
    } cases[] = {
        {49, {13, 36318, HTH_CRASH_SILENT}}, {51, {9, 36318, HTH_CRASH_SILENT}},
        {53, {13, 36318, HTH_CRASH_SILENT}}, {54, {13, 36318, HTH_CRASH_SILENT}},
        {56, {12, 36318, HTH_CRASH_SILENT}}, {49, {13, 95000, HTH_CRASH_SILENT}},
    };
    const struct death none = {.who = PEERS_MAX};
    struct pit p;

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        const struct scene s = {.shape = "5x4", .peers = 17, .seed = cases[k].seed};

        open_scene(&p, &s);
        (void)sweep(&p, &s, 7, 0, &none);
        pit_fill(&p, 7);
        (void)sweep(&p, &s, 8, 0, &cases[k].d);
        for (uint32_t i = 0; i < p.peers; i++)
            assert_true(!p.peer[i].up || p.peer[i].result.weight > 16.5);
        assert_true(pit_spread(&p) < 1e-4);
        pit_stop(&p);
    }
}

/* What rounds left is kept for HTH_AVG_KEPT_MAX of them; the newest is there for who is called. */
static void many_kinds(void **state)
{
    struct scene s = {.shape = "3x3", .peers = 9, .numbered = true, .seed = 60};
    const struct death none = {.who = PEERS_MAX};
    const struct death d = {.who = 4, .at_us = 50 * HTH_US_PER_MS, .how = HTH_CRASH_SILENT};
    struct pit p;
    int64_t calm_us;

    (void)state;
    open_scene(&p, &s);
    calm_us = sweep(&p, &s, 7, 0, &none);
    for (uint32_t kind = 1; kind <= HTH_AVG_KEPT_MAX + 2; kind++) {
        for (uint32_t i = 0; i < p.peers; i++) {
            p.peer[i].kind = kind;
            pit_offer(&p.peer[i], 7, HTH_AVG_ALL_AXES);
        }
        assert_true(pit_run(&p, 20 * HTH_US_PER_S));
    }
    pit_fill(&p, 9);
    assert_true(sweep(&p, &s, 8, 0, &d) - calm_us <= 800 * HTH_US_PER_MS);
    for (uint32_t i = 0; i < p.peers; i++) /* what the dead one brought counts in all rows */
        assert_true(!p.peer[i].up || p.peer[i].result.weight > 8.5);
    assert_true(pit_spread(&p) < 1e-4);
    pit_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent),     cmocka_unit_test(killed),
        cmocka_unit_test(far_rows),   cmocka_unit_test(declared_and_died),
        cmocka_unit_test(many_kinds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
