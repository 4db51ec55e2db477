/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_match_missed.c: who is known to be dead, or can't be reached, does not hold up the others;
 * and who is known is told straight, without the board.
 */
#include <string.h>

#include "averaging/crowd.h"
#include "core/mem.h"
#include "support/test.h"

static struct mate *mate_of(struct crowd *c, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (hth_peer_id_eq(&c->mate[i].env->self, id))
            return &c->mate[i];
    return NULL;
}

static bool is_absent(void *arg, const struct hth_peer_id *id)
{
    return mate_of(((struct mate *)arg)->crowd, id)->absent;
}

static uint32_t all_others(void *arg, struct hth_match_known *out, uint32_t max)
{
    struct mate *me = arg;
    uint32_t n = 0;

    for (uint32_t i = 0; i < me->crowd->count && n < max; i++)
        if (&me->crowd->mate[i] != me)
            out[n++] = (struct hth_match_known){.id = me->crowd->mate[i].env->self,
                                                .addr = me->crowd->mate[i].addr};
    return n;
}

struct hope {
    struct mate *leader;
};

static bool is_joined(void *arg)
{
    struct hth_match_stats s;

    hth_match_stats(((struct hope *)arg)->leader->match, &s);
    return s.followers_now > 0;
}

/* The mates in the order of their line in that round. */
static void sort_by_mark(struct crowd *c, uint64_t round, struct mate **out)
{
    struct hth_avg_line line = c->look.line;
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    struct hth_hash mark[CROWD_MAX];
    size_t len;

    line.round = round;
    line.cell = c->mate[0].cell;
    len = hth_avg_line_key(&line, key);
    for (uint32_t i = 0; i < c->count; i++) {
        struct hth_hash own;
        uint32_t at = i;

        hth_avg_mark(c->mate[i].env->crypto, key, len, &c->mate[i].env->self, &own);
        for (; at > 0 && memcmp(own.b, mark[at - 1].b, sizeof(own.b)) < 0; at--) {
            mark[at] = mark[at - 1];
            out[at] = out[at - 1];
        }
        mark[at] = own;
        out[at] = &c->mate[i];
    }
}

static void drop_looks(struct crowd *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->mate[i].look != NULL && hth_node_is_up(c->mate[i].node))
            hth_look_cancel(c->mate[i].look);
        c->mate[i].look = NULL;
    }
}

static void two_are_left(const struct crowd *c, int64_t from_us, int64_t limit_us)
{
    assert_true(crowd_agrees(c));
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->mate[i].absent)
            continue;
        assert_int_equal(c->mate[i].result.err, HTH_OK);
        assert_int_equal(c->mate[i].group->count, c->count - 1);
        if (c->mate[i].ended_us - from_us > limit_us)
            fail_msg("mate %u had its group after %lld us", i,
                     (long long)(c->mate[i].ended_us - from_us));
    }
}

/* Its note would lead them, and is still on the board. */
static void notes_of_the_dead(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct crowd c;
        struct mate *order[3];
        struct hope hope;
        int64_t from_us;

        crowd_start(&c, 500 + seed, 3, NULL);
        c.due_known = true;
        sort_by_mark(&c, c.look.line.round, order);
        hope.leader = order[0];
        crowd_look_all(&c);
        assert_true(hth_world_run_until_true(c.world, is_joined, &hope, HTH_US_PER_S));
        order[0]->absent = true;
        hth_node_crash(order[0]->node, HTH_CRASH_SILENT);
        drop_looks(&c);
        c.look.missed = is_absent;
        from_us = hth_world_now_us(c.world);
        crowd_look(order[1]);
        crowd_look(order[2]);
        assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
        two_are_left(&c, from_us, 8 * CROWD_RTT_US);
        crowd_stop(&c);
    }
}

/* Who is missed by mistake says so as soon as it looks, or is told of somebody who does. */
static void missed_by_mistake(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++)
        for (uint32_t who = 0; who < 3; who++) {
            struct crowd c;
            struct mate *order[3];

            crowd_start(&c, 520 + seed, 3, NULL);
            sort_by_mark(&c, c.look.line.round, order);
            order[who]->absent = true;
            c.look.missed = is_absent;
            c.look.known = all_others;
            c.look.group_full = 3;
            crowd_look_all(&c);
            assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
            assert_true(crowd_agrees(&c));
            for (uint32_t i = 0; i < 3; i++) {
                assert_int_equal(c.mate[i].result.err, HTH_OK);
                assert_int_equal(c.mate[i].group->count, 3);
            }
            crowd_stop(&c);
        }
}

/* The second knows after 0.5 s that the leader is dead, the third would wait for its handshake a
 * second longer: it asks the second. */
static void handshake_with_the_dead(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct crowd c;
        struct mate *order[3];
        struct hope hope;
        int64_t from_us;

        crowd_start(&c, 540 + seed, 3, NULL);
        c.due_known = true;
        c.look.window_us = 3 * HTH_US_PER_S;
        sort_by_mark(&c, c.look.line.round + 1, order);
        hope.leader = order[0];
        for (uint32_t with = 0; with < 3; with += 2) { /* the second is connected to both */
            order[2 - with]->absent = true;
            crowd_look(order[1]);
            crowd_look(order[with]);
            assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
            order[2 - with]->absent = false;
            hth_world_run_for(c.world, c.match.linger_us);
            c.look.line.run++;
        }
        c.look.line.run -= 2;
        c.look.line.round++;
        crowd_look_all(&c);
        assert_true(hth_world_run_until_true(c.world, is_joined, &hope, HTH_US_PER_S));
        from_us = hth_world_now_us(c.world);
        order[0]->absent = true;
        hth_node_crash(order[0]->node, HTH_CRASH_SILENT);
        order[0]->look = NULL;
        assert_true(crowd_run(&c, 5 * HTH_US_PER_S));
        two_are_left(&c, from_us, 800 * HTH_US_PER_MS);
        crowd_stop(&c);
    }
}

/* The second dials the dead leader for 1.5 s, and sends the third to it all the while, which knows
 * better, as who stands in for the dead does: it stays with the second. */
static void who_finds_out_later(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct crowd c;
        struct mate *order[3];
        int64_t from_us;

        crowd_start(&c, 580 + seed, 3, NULL);
        c.due_known = true;
        c.look.window_us = 3 * HTH_US_PER_S;
        sort_by_mark(&c, c.look.line.round, order);
        crowd_look(order[0]);
        hth_world_run_for(c.world, 300 * HTH_US_PER_MS);
        order[0]->absent = true;
        hth_node_crash(order[0]->node, HTH_CRASH_SILENT);
        order[0]->look = NULL;
        from_us = hth_world_now_us(c.world);
        crowd_look(order[1]);
        c.look.missed = is_absent;
        crowd_look(order[2]);
        assert_true(crowd_run(&c, 5 * HTH_US_PER_S));
        two_are_left(&c, from_us,
                     c.match.hold_us + c.match.silence_us + c.match.dial_us + 20 * CROWD_RTT_US);
        crowd_stop(&c);
    }
}

static const struct hth_env_ops *calm_ops;

static void set_late(struct hth_timer *t, int64_t delay_us)
{
    calm_ops->timer_set(t, delay_us + 100 * HTH_US_PER_MS);
}

/* The third did not run for 0.1 s, as it sees, and would give the dead leader 0.4 s more for that;
 * the second, which did run, tells it that the leader is lost. */
static void who_was_late_itself(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct crowd c;
        struct mate *order[3];
        struct hth_env_ops late_ops;
        struct hope hope;
        int64_t from_us;

        crowd_start(&c, 600 + seed, 3, NULL);
        c.due_known = true;
        c.look.known = all_others;
        sort_by_mark(&c, c.look.line.round + 1, order);
        crowd_look_all(&c); /* all are connected after it */
        assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
        c.look.line.round++;
        hope.leader = order[0];
        calm_ops = order[2]->env->ops;
        late_ops = *calm_ops;
        late_ops.timer_set = set_late;
        crowd_look_all(&c);
        assert_true(hth_world_run_until_true(c.world, is_joined, &hope, HTH_US_PER_S));
        from_us = hth_world_now_us(c.world);
        order[0]->absent = true;
        hth_node_crash(order[0]->node, HTH_CRASH_SILENT);
        order[0]->look = NULL;
        hth_world_run_for(c.world, 300 * HTH_US_PER_MS);
        order[2]->env->ops = &late_ops;
        hth_match_nudge(order[2]->match);
        order[2]->env->ops = calm_ops;
        assert_true(crowd_run(&c, 5 * HTH_US_PER_S));
        two_are_left(&c, from_us, c.match.hold_us + c.match.silence_us + 4 * CROWD_RTT_US);
        crowd_stop(&c);
    }
}

/* Far from each other, on thin lines, and one of them comes a second later: a JOIN is held all the
 * while, and its answer needs a round trip beside; nobody is taken for dead for that. */
static void far_away(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        struct hth_world_opts o = HTH_WORLD_OPTS_INIT;
        struct crowd c;

        o.link.latency_us = 200 * HTH_US_PER_MS;
        o.link.jitter = HTH_JITTER_EXPONENTIAL;
        o.link.jitter_us = 10 * HTH_US_PER_MS;
        o.device.up_bytes_per_s = o.device.down_bytes_per_s = 1.25e6;
        crowd_start(&c, 700 + seed, 8, &o);
        c.due_known = true;
        c.look.known = all_others;
        c.look.window_us = 10 * HTH_US_PER_S;
        for (uint32_t round = 0; round < 5; round++) {
            c.look.line.round++;
            for (uint32_t i = 0; i + 1 < c.count; i++)
                crowd_look(&c.mate[i]);
            hth_world_run_for(c.world, HTH_US_PER_S);
            crowd_look(&c.mate[c.count - 1]);
            assert_true(crowd_run(&c, 15 * HTH_US_PER_S));
            for (uint32_t i = 0; round > 1 && i < c.count; i++) /* all are connected */
                assert_true(c.mate[i].group != NULL && c.mate[i].group->count == c.count);
            hth_world_run_for(c.world, 12 * HTH_US_PER_S);
        }
        crowd_stop(&c);
    }
}

/* Who all know each other put nothing into the DHT and ask it for nothing, round after round. */
static void known_need_no_board(void **state)
{
    struct crowd c;

    (void)state;
    crowd_start(&c, 560, 4, NULL);
    c.due_known = true;
    c.look.known = all_others;
    for (uint64_t round = 0; round < 20; round++)
        crowd_round(&c, round);
    for (uint32_t i = 0; i < c.count; i++) {
        struct hth_match_stats s;
        struct hth_dht_stats dht;

        hth_match_stats(c.mate[i].match, &s);
        hth_dht_stats(hth_node_dht(c.mate[i].node), &dht);
        assert_int_equal(s.begun, 20);
        assert_int_equal(s.boards, 0);
        assert_int_equal(dht.puts + dht.watches + dht.gets, 0);
    }
    crowd_stop(&c);
}

static uint32_t only_the_last(void *arg, struct hth_match_known *out, uint32_t max)
{
    const struct crowd *c = ((struct mate *)arg)->crowd;
    const struct mate *last = &c->mate[c->count - 1];

    (void)max;
    out[0] = (struct hth_match_known){.id = last->env->self, .addr = last->addr};
    return 1;
}

/* They know only one who is dead, and find each other on the board a moment later. */
static void strangers_meet_on_the_board(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct crowd c;
        int64_t from_us;

        crowd_start(&c, 570 + seed, 3, NULL);
        c.due_known = true;
        c.look.known = only_the_last;
        c.mate[2].absent = true;
        hth_node_crash(c.mate[2].node, HTH_CRASH_SILENT);
        from_us = hth_world_now_us(c.world);
        crowd_look(&c.mate[0]);
        crowd_look(&c.mate[1]);
        assert_true(crowd_run(&c, 3 * HTH_US_PER_S));
        two_are_left(&c, from_us, c.match.board_us + 12 * CROWD_RTT_US);
        for (uint32_t i = 0; i < 2; i++) {
            struct hth_match_stats s;

            hth_match_stats(c.mate[i].match, &s);
            assert_int_equal(s.boards, 1);
            assert_true(c.mate[i].ended_us - from_us > c.match.board_us);
        }
        crowd_stop(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notes_of_the_dead),           cmocka_unit_test(missed_by_mistake),
        cmocka_unit_test(handshake_with_the_dead),     cmocka_unit_test(known_need_no_board),
        cmocka_unit_test(strangers_meet_on_the_board), cmocka_unit_test(who_finds_out_later),
        cmocka_unit_test(who_was_late_itself),         cmocka_unit_test(far_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
