/* SPDX-License-Identifier: Apache-2.0 */
/* test_match.c: groups come about in the simulated world: quickly, all alike, and whoever dies. */
#include "averaging/crowd.h"
#include "core/mem.h"
#include "support/test.h"

#include <stdlib.h>

/* The notes have to be seen, then JOIN and BEGIN are one round trip; who never spoke to the leader
 * before needs three more for TCP, TLS and HELLO. Half a one is for a leader that is seen late. */
#define ROUNDS 12

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void together(void **state)
{
    static const uint32_t counts[] = {2, 3, 5, 8, 16, 33, 64};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(counts); k++) {
        struct crowd c;
        double rtts[ROUNDS];
        crowd_start(&c, 40 + k, counts[k], NULL);
        c.due_known = true;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            rtts[round] = crowd_round(&c, round);
            assert_true(rtts[round] <= crowd_dht_rtts(counts[k]) + 4.5);
        }
        if (counts[k] <= 5) { /* the same leader came again: the median of later rounds */
            qsort(rtts + 1, ROUNDS - 1, sizeof(*rtts), by_size);
            assert_true(rtts[1 + (ROUNDS - 1) / 2] <= crowd_dht_rtts(counts[k]) + 1.5);
        }
        crowd_stop(&c);
    }
}

/* Both see each other in the same moment: one request, from the larger to the smaller. */
static void mutual(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct crowd c;
        struct hth_match_stats a, b;
        crowd_start(&c, 100 + seed, 2, NULL);
        c.due_known = true;
        assert_true(crowd_round(&c, seed) <= 6);
        hth_match_stats(c.mate[0].match, &a);
        hth_match_stats(c.mate[1].match, &b);
        assert_int_equal(a.joins_out + b.joins_out, 1);
        assert_int_equal(a.led + b.led, 1);
        assert_int_equal(c.mate[0].result.led, a.led);
        crowd_stop(&c);
    }
}

static void alone(void **state)
{
    struct crowd c;

    (void)state;
    crowd_start(&c, 1, 1, NULL);
    c.look.line.shape.size[0] = 4;
    c.look.group_full = c.look.group_max = 4;
    crowd_look(&c.mate[0]); /* who else there is, is not known: all of the window */
    assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
    assert_int_equal(c.mate[0].result.err, HTH_E_TIMEOUT);
    assert_int_equal(c.mate[0].result.reason, HTH_AVG_ALONE);
    assert_int_equal(c.mate[0].result.wait_us, c.look.window_us);
    c.due_known = true; /* nobody: a moment */
    c.look.line.round++;
    crowd_look(&c.mate[0]);
    assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
    assert_int_equal(c.mate[0].result.reason, HTH_AVG_ALONE);
    assert_int_equal(c.mate[0].result.wait_us, c.match.patience_us);
    crowd_stop(&c);
}

/* Declarations from four seconds ahead are refused: who finds nobody else says that this is why. */
static void clocks_differ(void **state)
{
    struct crowd c;
    struct hth_match_stats stats;

    (void)state;
    crowd_start(&c, 3, 2, NULL);
    hth_node_wall_set(c.mate[1].node, 4 * HTH_US_PER_S);
    crowd_look_all(&c);
    assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(c.mate[i].result.err, HTH_E_TIMEOUT);
    assert_int_equal(c.mate[0].result.reason, HTH_AVG_CLOCK_SKEW);
    hth_match_stats(c.mate[0].match, &stats);
    assert_true(stats.notes_refused > 0);
    crowd_stop(&c);
}

/* Two where three are the least: both say so at the end of the window. */
static void too_few(void **state)
{
    struct crowd c;

    (void)state;
    crowd_start(&c, 2, 2, NULL);
    c.look.group_min = c.look.group_full = c.look.group_max = 3;
    crowd_look_all(&c);
    assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
    for (uint32_t i = 0; i < 2; i++)
        assert_true(c.mate[i].result.reason == HTH_AVG_TOO_FEW ||
                    c.mate[i].result.reason == HTH_AVG_NOT_LOOKING);
    assert_true(c.mate[0].result.reason == HTH_AVG_TOO_FEW ||
                c.mate[1].result.reason == HTH_AVG_TOO_FEW);
    crowd_stop(&c);
}

/* Some due peer never comes: the others wait for it, but no longer than their window. */
static void one_is_missing(void **state)
{
    struct crowd c;

    (void)state;
    crowd_start(&c, 3, 5, NULL);
    c.due_known = true;
    for (uint32_t i = 0; i < 4; i++)
        crowd_look(&c.mate[i]);
    assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
    assert_true(crowd_agrees(&c));
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(c.mate[i].group->count, 4);
        assert_true(c.mate[i].result.wait_us <= c.look.window_us + 2 * CROWD_RTT_US);
        assert_true(c.mate[i].result.match_us > c.look.window_us / 2);
    }
    crowd_stop(&c);
}

/* ---- cutting a line -------------------------------------------------------------------------- */

static void overfull(void **state)
{
    static const struct {
        uint32_t peers, max, groups, smallest, largest;
    } cases[] = {
        {16, 4, 4, 4, 4}, {17, 4, 5, 3, 4}, {5, 4, 2, 2, 3}, {3, 2, 1, 3, 3}, {9, 2, 4, 2, 3}};

    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct crowd c;
        uint64_t led = 0;
        uint32_t smallest = UINT32_MAX, largest = 0;
        crowd_start(&c, 60 + k, cases[k].peers, NULL);
        c.due_known = true;
        c.look.group_full = c.look.group_max = cases[k].max;
        crowd_look_all(&c);
        assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
        assert_true(crowd_agrees(&c));
        for (uint32_t i = 0; i < c.count; i++) {
            struct hth_match_stats s;
            hth_match_stats(c.mate[i].match, &s);
            led += s.led;
            smallest = HTH_MIN(smallest, c.mate[i].group->count);
            largest = HTH_MAX(largest, c.mate[i].group->count);
        }
        assert_int_equal(led, cases[k].groups);
        assert_int_equal(smallest, cases[k].smallest);
        assert_int_equal(largest, cases[k].largest);
        crowd_stop(&c);
    }
}

/* Sixteen peers in one cell, groups of two: after four rounds each has the mean of all. */
static void one_key_mixes(void **state)
{
    struct crowd c;
    double x[16], mean = 0;

    (void)state;
    crowd_start(&c, 5, 16, NULL);
    c.due_known = true;
    c.look.line.shape = (struct hth_avg_shape){.dims = 4, .size = {2, 2, 2, 2}};
    c.look.group_full = c.look.group_max = 2;
    for (uint32_t i = 0; i < 16; i++) {
        x[i] = (double)(1u << i);
        mean += x[i] / 16;
    }
    for (uint32_t round = 0; round < 4; round++) {
        double next[16];
        c.look.line.round = round;
        crowd_look_all(&c);
        assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
        assert_true(crowd_agrees(&c));
        for (uint32_t i = 0; i < 16; i++) {
            const struct hth_avg_group *g = c.mate[i].group;
            assert_int_equal(g->count, 2);
            next[i] = 0;
            for (uint32_t j = 0; j < 16; j++)
                for (uint32_t k = 0; k < 2; k++)
                    if (hth_peer_id_eq(&g->member[k].id, &c.mate[j].env->self))
                        next[i] += x[j] / 2;
            hth_avg_cell_next(&c.look.line.shape, round, &g->id, g->self, &c.mate[i].cell);
        }
        memcpy(x, next, sizeof(x));
    }
    for (uint32_t i = 0; i < 16; i++)
        assert_true(x[i] == mean);
    crowd_stop(&c);
}

/* Every group gets its share of those who only reduce, and of those who can't be dialled. */
static void modes(void **state)
{
    struct crowd c;
    uint32_t helpers = 0, clients = 0;

    (void)state;
    crowd_start(&c, 6, 12, NULL);
    c.due_known = true;
    c.look.group_full = c.look.group_max = 6;
    for (uint32_t i = 0; i < 12; i++) {
        c.look.mode = i < 6 ? HTH_AVG_TRAINER : (i < 8 ? HTH_AVG_HELPER : HTH_AVG_CLIENT);
        c.look.weight = c.look.mode == HTH_AVG_HELPER ? 0 : i + 1;
        crowd_look(&c.mate[i]);
    }
    assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
    assert_true(crowd_agrees(&c));
    for (uint32_t i = 0; i < 12; i++) {
        const struct hth_avg_group *g = c.mate[i].group;
        assert_int_equal(g->count, 6);
        helpers = clients = 0;
        for (uint32_t j = 0; j < 6; j++) {
            const struct hth_avg_member *m = &g->member[j];
            helpers += m->mode == HTH_AVG_HELPER;
            clients += m->mode == HTH_AVG_CLIENT;
            assert_int_equal(m->addr.family, m->mode == HTH_AVG_CLIENT ? 0 : 4);
            assert_true((m->weight > 0) == (m->mode != HTH_AVG_HELPER));
        }
        assert_int_equal(helpers, 1);
        assert_int_equal(clients, 2);
        assert_true(i < 6 || !c.mate[i].result.led); /* trainers come first */
    }
    crowd_stop(&c);
}

/* Of more clients than a group may have members, those that are last in the order are told that it
 * is full; the others are averaged. */
static void too_many_clients(void **state)
{
    struct crowd c;
    uint32_t in = 0, full = 0;

    (void)state;
    crowd_start(&c, 71, HTH_AVG_MEMBERS_MAX + 4, NULL);
    c.look.group_full = c.look.group_max = HTH_AVG_MEMBERS_MAX / 2;
    for (uint32_t i = 0; i < c.count; i++) {
        c.look.mode = i == 0 ? HTH_AVG_TRAINER : HTH_AVG_CLIENT;
        crowd_look(&c.mate[i]);
    }
    assert_true(crowd_run(&c, 4 * HTH_US_PER_S));
    assert_int_equal(c.mate[0].result.err, HTH_OK);
    assert_int_equal(c.mate[0].group->count, HTH_AVG_MEMBERS_MAX);
    assert_true(crowd_agrees(&c));
    for (uint32_t i = 0; i < c.count; i++) {
        in += c.mate[i].result.err == HTH_OK;
        full += c.mate[i].result.reason == HTH_AVG_FULL;
    }
    assert_int_equal(in, HTH_AVG_MEMBERS_MAX);
    assert_int_equal(full, 4);
    crowd_stop(&c);
}

/* Helpers push nobody out who brings values, and are no more than those: of `helpers` in a line
 * with `trainers` and `clients` so many are in; who is not hears FULL. */
static void helpers_in(uint32_t trainers, uint32_t clients, uint32_t helpers, uint32_t expected)
{
    struct crowd c;
    struct hth_match_stats s;
    uint32_t in[3] = {0}, full = 0, group = trainers + clients + expected;

    crowd_start(&c, 72, trainers + clients + helpers, NULL);
    c.due_known = true;
    c.look.group_full = c.look.group_max = HTH_AVG_MEMBERS_MAX / 2;
    for (uint32_t i = 0; i < c.count; i++) {
        c.look.mode = i < trainers             ? HTH_AVG_TRAINER
                      : i < trainers + helpers ? HTH_AVG_HELPER
                                               : HTH_AVG_CLIENT;
        c.look.weight = c.look.mode != HTH_AVG_HELPER;
        crowd_look(&c.mate[i]);
    }
    assert_true(crowd_run(&c, 8 * HTH_US_PER_S));
    assert_true(crowd_agrees(&c));
    for (uint32_t i = 0; i < c.count; i++) {
        bool got = c.mate[i].result.err == HTH_OK;

        in[i < trainers ? 0 : (i < trainers + helpers ? 1 : 2)] += got;
        hth_match_stats(c.mate[i].match, &s);
        full += (uint32_t)s.said[HTH_AVG_FULL];
        assert_true(!got || c.mate[i].group->count == group);
    }
    assert_int_equal(in[0], trainers);
    assert_int_equal(in[1], expected);
    assert_int_equal(in[2], clients);
    assert_int_equal(full, helpers - expected);
    crowd_stop(&c);
}

static void too_many_helpers(void **state)
{
    (void)state;
    helpers_in(2, 0, 2, 2);
    helpers_in(2, 1, 9, 3);
    /* as many as average, and then as there is room for */
    if (!HTH_TEST_FEW)
        helpers_in(1, 127, 132, 128);
    helpers_in(1, 255, 4, 0);
}

/* Two clients can't reach each other. */
static void only_clients(void **state)
{
    struct crowd c;

    (void)state;
    crowd_start(&c, 7, 2, NULL);
    c.look.mode = HTH_AVG_CLIENT;
    crowd_look_all(&c);
    assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
    assert_int_equal(c.mate[0].result.reason, HTH_AVG_ALONE);
    assert_int_equal(c.mate[1].result.reason, HTH_AVG_ALONE);
    crowd_stop(&c);
}

/* Who looks again where it has met the same peers just now gets another group, not the old one. */
static void again(void **state)
{
    struct hth_hash ids[3];
    struct crowd c;

    (void)state;
    crowd_start(&c, 9, 3, NULL);
    c.due_known = true;
    for (int time = 0; time < 3; time++) {
        for (uint32_t i = 0; i < 3; i++) { /* each time another one comes first */
            crowd_look(&c.mate[(i + (uint32_t)time) % 3]);
            hth_world_run_for(c.world, 40 * HTH_US_PER_MS);
        }
        assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
        assert_true(crowd_agrees(&c));
        assert_int_equal(c.mate[0].group->count, 3);
        ids[time] = c.mate[0].group->id;
        for (int before = 0; before < time; before++)
            assert_memory_not_equal(&ids[before], &ids[time], sizeof(ids[0]));
    }
    crowd_stop(&c);
}

/* ---- deaths ---------------------------------------------------------------------------------- */

enum death { KILLED, POWERED_OFF, CUT_OFF };

static void die(struct crowd *c, struct mate *m, enum death how)
{
    m->absent = true;
    if (how == KILLED || how == POWERED_OFF)
        hth_node_crash(m->node, how == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
    else
        hth_node_set_side(m->node, 1);
    (void)c;
}

struct phase {
    struct crowd *c;
    struct mate *victim;
    uint32_t followers; /* as many joined somebody */
};

static bool joined(void *arg)
{
    struct phase *p = arg;
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->c->count; i++) {
        struct hth_match_stats s;
        if (!hth_node_is_up(p->c->mate[i].node))
            continue;
        hth_match_stats(p->c->mate[i].match, &s);
        n += s.followers_now;
        if (s.followers_now > 0)
            p->victim = &p->c->mate[i];
    }
    return n >= p->followers;
}

static bool one_begun(void *arg)
{
    struct phase *p = arg;

    for (uint32_t i = 0; i < p->c->count; i++)
        if (p->c->mate[i].ended > 0 && p->c->mate[i].result.led)
            p->victim = &p->c->mate[i];
    return p->victim != NULL;
}

/* The survivors have one group of all survivors (or what the dead one began), soon. */
static void survivors(struct crowd *c, int64_t at, enum death how)
{
    struct mate *one = NULL;

    assert_true(crowd_run(c, 5 * HTH_US_PER_S));
    for (uint32_t i = 0; i < c->count; i++) {
        struct mate *m = &c->mate[i];
        if (m->absent)
            continue;
        if (m->result.err != HTH_OK)
            fail_msg("mate %u: %s", i, hth_avg_reason_name(m->result.reason));
        /* silence is noticed within hold + silence, and dial more while there is no connection */
        assert_true(m->ended_us - at <= (how == KILLED ? 600 : 1800) * HTH_US_PER_MS);
        one = one != NULL ? one : m;
        assert_memory_equal(&m->group->id, &one->group->id, sizeof(one->group->id));
    }
    assert_true(one->group->count >= c->count - 1);
}

/* A leader dies after some have joined it, and when only its note was seen. */
static void leader_dies(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++)
        for (enum death how = KILLED; how <= CUT_OFF; how++)
            for (uint32_t followers = 1; followers < 6; followers += 2) {
                struct crowd c;
                struct phase p = {.c = &c, .followers = followers};
                int64_t at;
                crowd_start(&c, 200 + seed, 6, NULL);
                c.due_known = true;
                c.look.window_us = 4 * HTH_US_PER_S;
                crowd_look_all(&c);
                if (!hth_world_run_until_true(c.world, joined, &p, 2 * HTH_US_PER_S) ||
                    p.victim == NULL)
                    fail_msg("nobody joined");
                at = hth_world_now_us(c.world);
                die(&c, p.victim, how);
                survivors(&c, at, how);
                crowd_stop(&c);
            }
}

/* The leader dies right after it began the group: a member that got the list hands it on to those
 * that ask it, and the others make a group of their own. */
static void leader_dies_beginning(void **state)
{
    uint32_t whole = 0, all = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++)
        for (enum death how = KILLED; how <= CUT_OFF; how++) {
            struct crowd c;
            struct phase p = {.c = &c};
            struct hth_link slow = HTH_LINK_INIT;
            int64_t at;
            crowd_start(&c, 300 + seed, 6, NULL);
            c.due_known = true;
            c.look.window_us = 4 * HTH_US_PER_S;
            /* two hear of it later than the others, and so perhaps never */
            slow.latency_us = 40 * HTH_US_PER_MS;
            for (uint32_t i = 0; i < 6; i++)
                for (uint32_t j = 4; j < 6; j++)
                    if (i < j)
                        hth_world_link(c.world, c.mate[i].node, c.mate[j].node, &slow);
            crowd_look_all(&c);
            assert_true(hth_world_run_until_true(c.world, one_begun, &p, 2 * HTH_US_PER_S));
            hth_world_run_for(c.world, 11 * HTH_US_PER_MS); /* its answers are under way */
            at = hth_world_now_us(c.world);
            die(&c, p.victim, how);
            assert_true(crowd_run(&c, 5 * HTH_US_PER_S));
            for (uint32_t i = 0; i < 6; i++) {
                const struct mate *m = &c.mate[i];

                if (m == p.victim)
                    continue;
                assert_int_equal(m->result.err, HTH_OK);
                assert_in_range(m->group->count, 2, 6);
                assert_true(m->ended_us - at <= c.look.window_us);
                whole += m->group->count >= 5;
            }
            all += 5;
            crowd_stop(&c);
        }
    print_message("%u of %u in a group of all\n", whole, all);
}

/* A follower that dies while it is held: gone at once when its connection shows it. */
static void follower_dies(void **state)
{
    (void)state;
    for (enum death how = KILLED; how <= CUT_OFF; how++) {
        struct crowd c;
        struct phase p = {.c = &c, .followers = 3};
        struct mate *leader;
        int64_t at;
        crowd_start(&c, 9, 5, NULL);
        c.due_known = true;
        c.look.window_us = 4 * HTH_US_PER_S;
        for (uint32_t i = 0; i < 4; i++)
            crowd_look(&c.mate[i]);
        assert_true(hth_world_run_until_true(c.world, joined, &p, 2 * HTH_US_PER_S));
        leader = p.victim;
        p.victim = leader == &c.mate[0] ? &c.mate[1] : &c.mate[0];
        at = hth_world_now_us(c.world);
        die(&c, p.victim, how);
        hth_world_run_for(c.world, 100 * HTH_US_PER_MS);
        crowd_look(&c.mate[4]); /* the last one due */
        assert_true(crowd_run(&c, 8 * HTH_US_PER_S));
        for (uint32_t i = 0; i < 5; i++) {
            if (c.mate[i].absent)
                continue;
            assert_int_equal(c.mate[i].result.err, HTH_OK);
            assert_true(c.mate[i].ended_us - at <= 1500 * HTH_US_PER_MS);
            /* who fell silent may be in it still: the reduction drops it */
            assert_in_range(c.mate[i].group->count, 4, how == KILLED ? 4 : 5);
        }
        crowd_stop(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(together),
        cmocka_unit_test(mutual),
        cmocka_unit_test(alone),
        cmocka_unit_test(too_few),
        cmocka_unit_test(clocks_differ),
        cmocka_unit_test(one_is_missing),
        cmocka_unit_test(overfull),
        cmocka_unit_test(one_key_mixes),
        cmocka_unit_test(modes),
        cmocka_unit_test(too_many_clients),
        cmocka_unit_test(too_many_helpers),
        cmocka_unit_test(only_clients),
        cmocka_unit_test(again),
        cmocka_unit_test(leader_dies),
        cmocka_unit_test(leader_dies_beginning),
        cmocka_unit_test(follower_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
