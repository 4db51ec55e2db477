/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_queue.c: the order of events that are scheduled, moved and removed at random, from
 * microseconds to centuries, against a list that is searched from end to end.
 */
#include "core/rng.h"
#include "sim/world.h"
#include "support/suite.h"

#define TIMERS 400
#define ROUNDS 6000

struct bell {
    struct crowd *crowd;
    struct hth_timer *timer;
    int64_t due_us; /* INT64_MAX: not set */
};

struct crowd {
    struct hth_world *world;
    struct hth_env *env;
    struct hth_rng rng;
    struct bell bell[TIMERS];
    int64_t last_us;
    uint64_t rung;
};

/* Draw the number of bits first, so that every distance is as likely as its double. */
static int64_t some_delay(struct crowd *c)
{
    uint64_t bits = hth_rng_below(&c->rng, 44);
    return (int64_t)(hth_rng_u64(&c->rng) & ((UINT64_C(1) << bits) - 1));
}

static void set(struct bell *b)
{
    struct crowd *c = b->crowd;
    int64_t delay_us = some_delay(c);
    b->due_us = hth_world_now_us(c->world) + delay_us;
    hth_timer_set(c->env, b->timer, delay_us);
}

static int64_t first_due(const struct crowd *c)
{
    int64_t first_us = INT64_MAX;
    for (int i = 0; i < TIMERS; i++)
        first_us = HTH_MIN(first_us, c->bell[i].due_us);
    return first_us;
}

static void on_bell(void *arg)
{
    struct bell *b = arg;
    struct crowd *c = b->crowd;
    int64_t now_us = hth_world_now_us(c->world);
    assert_int_equal(now_us, b->due_us);
    assert_int_equal(now_us, first_due(c));
    assert_true(now_us >= c->last_us);
    c->last_us = now_us;
    c->rung++;
    b->due_us = INT64_MAX;
    for (uint64_t n = hth_rng_below(&c->rng, 3); n > 0; n--)
        set(&c->bell[hth_rng_below(&c->rng, TIMERS)]);
    struct bell *gone = &c->bell[hth_rng_below(&c->rng, TIMERS)];
    hth_timer_cancel(c->env, gone->timer);
    gone->due_us = INT64_MAX;
}

static void crowd_run(uint64_t seed)
{
    struct crowd c = {.world = hth_world_new(seed, NULL)};
    c.env = hth_node_env(hth_world_node(c.world, "n", NULL));
    hth_rng_init(&c.rng, seed);
    for (int i = 0; i < TIMERS; i++) {
        c.bell[i] = (struct bell){.crowd = &c, .due_us = INT64_MAX};
        c.bell[i].timer = hth_timer_new(c.env, on_bell, &c.bell[i]);
        set(&c.bell[i]);
    }
    for (int i = 0; i < ROUNDS; i++) {
        /* Run to a point between two events, after the queue has seen the next one: events that are
         * set there are earlier than that one. */
        int64_t until_us = hth_world_now_us(c.world) + some_delay(&c) / 16;
        hth_world_run_until(c.world, until_us);
        assert_int_equal(hth_world_now_us(c.world), until_us);
        assert_true(first_due(&c) > until_us);
        set(&c.bell[hth_rng_below(&c.rng, TIMERS)]);
    }
    assert_true(c.rung > ROUNDS / 4);
    for (int i = 0; i < TIMERS; i++)
        hth_timer_free(c.env, c.bell[i].timer);
    assert_true(hth_world_run_until_idle(c.world, 1));
    hth_world_free(c.world);
}

TEST(events_fire_in_order_of_time)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++)
        crowd_run(seed);
}

static void count_one(void *arg)
{
    (*(uint32_t *)arg)++;
}

/* Many events of one instant share a bucket: the cost must not be the square of their number, which
 * would be minutes here. */
TEST(many_events_of_one_instant_cost_no_square)
{
    (void)state;
    enum { MANY = 200000 };
    struct hth_world *w = hth_world_new(1, NULL);
    uint32_t count = 0;
    for (int i = 0; i < MANY; i++)
        hth_world_at(w, HTH_US_PER_S, count_one, &count);
    hth_world_run_until(w, HTH_US_PER_S - 1);
    assert_int_equal(count, 0);
    hth_world_run_until(w, HTH_US_PER_S);
    assert_int_equal(count, MANY);
    hth_world_free(w);
}
