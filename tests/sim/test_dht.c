/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dht.c: the simulated DHT: the time of each operation, values that linger, values that are
 * lost.
 */
#include "core/limits.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

struct seen {
    struct hth_env *env;
    int values, dones;
    uint32_t mask; /* bit i: a value with first byte i was seen */
    int64_t first_us, done_us;
    enum hth_err err;
    int want; /* return false after so many values; 0: never */
    struct hth_dht *dht;
    struct hth_dht_get *cancel; /* get to cancel inside the value callback */
    struct hth_dht_watch *unwatch;
};

static bool on_value(void *arg, const uint8_t *data, size_t len)
{
    struct seen *s = arg;
    if (s->values++ == 0)
        s->first_us = hth_now_us(s->env);
    assert_true(len > 0);
    s->mask |= 1u << (data[0] & 31);
    if (s->cancel != NULL)
        hth_dht_get_cancel(s->dht, s->cancel);
    if (s->unwatch != NULL)
        hth_dht_unwatch(s->dht, s->unwatch);
    s->unwatch = NULL;
    return s->want == 0 || s->values < s->want;
}

static void on_done(void *arg, enum hth_err err)
{
    struct seen *s = arg;
    s->dones++;
    s->err = err;
    s->done_us = hth_now_us(s->env);
}

static const struct hth_dht_key key = {{1, 2, 3}};

/* Make N nodes over links of 25 ms without jitter: a round trip is 50 ms. */
static struct hth_world *swarm(uint64_t seed, int count, const struct hth_dht_params *params)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.link.latency_us = 25000;
    if (params != NULL)
        opts.dht = *params;
    struct hth_world *w = hth_world_new(seed, &opts);
    for (int i = 0; i < count; i++)
        hth_world_node(w, "n", NULL);
    return w;
}

static struct hth_dht *dht_of(struct hth_world *w, size_t i)
{
    return hth_node_dht(hth_world_node_at(w, i));
}

static struct seen seen_on(struct hth_world *w, size_t i)
{
    return (struct seen){.env = hth_node_env(hth_world_node_at(w, i)), .dht = dht_of(w, i)};
}

static struct hth_dht_put *put_byte(struct hth_world *w, size_t i, uint8_t byte)
{
    struct hth_dht_put *put;
    assert_ok(hth_dht_put(dht_of(w, i), &key, &byte, 1, NULL, NULL, &put));
    return put;
}

static struct seen get_now(struct hth_world *w, size_t i)
{
    struct seen s = seen_on(w, i);
    struct hth_dht_get *get;
    assert_ok(hth_dht_get(dht_of(w, i), &key, on_value, on_done, &s, &get));
    assert_int_equal(s.dones, 0);
    hth_world_run_for(w, 60 * HTH_US_PER_S);
    assert_int_equal(s.dones, 1);
    return s;
}

TEST(put_and_get_take_log_n_round_trips)
{
    (void)state;
    struct hth_world *w = swarm(1, 64, NULL); /* log2 = 6 */
    struct seen p = seen_on(w, 0);
    struct hth_dht_put *put;
    uint8_t big[1300] = {5};
    assert_ok(hth_dht_put(dht_of(w, 0), &key, big, 500, on_done, &p, &put));
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(p.err, HTH_OK);
    assert_int_equal(p.done_us, 4 * 50000); /* measured on OpenDHT: 174..224 ms */
    int64_t start_us = hth_world_now_us(w);
    struct seen g = get_now(w, 5);
    assert_int_equal(g.first_us - start_us, 2 * 50000); /* 107 ms */
    assert_int_equal(g.done_us - start_us, 230000);     /* 230 ms */
    assert_int_equal(g.values, 1);
    hth_dht_withdraw(dht_of(w, 0), put);

    struct hth_dht_put *large;
    struct seen l = seen_on(w, 0);
    start_us = hth_world_now_us(w);
    assert_ok(hth_dht_put(dht_of(w, 0), &key, big, 1300, on_done, &l, &large));
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(l.done_us - start_us, 5 * 50000); /* one datagram more */
    hth_dht_withdraw(dht_of(w, 0), large);
    struct hth_dht_stats stats;
    hth_dht_stats(dht_of(w, 0), &stats);
    assert_int_equal(stats.puts, 2);
    assert_int_equal(stats.nodes_good, 63);
    hth_world_free(w);
}

TEST(size_of_values_is_bounded)
{
    (void)state;
    struct hth_world *w = swarm(1, 2, NULL);
    static const uint8_t huge[HTH_DHT_VALUE_BYTES_MAX + 1] = {1};
    struct hth_dht_put *put;
    assert_err(HTH_E_TOO_LARGE,
               hth_dht_put(dht_of(w, 0), &key, huge, sizeof(huge), NULL, NULL, &put));
    assert_null(put);
    assert_ok(hth_dht_put(dht_of(w, 0), &key, huge, sizeof(huge) - 1, NULL, NULL, &put));
    hth_dht_withdraw(dht_of(w, 0), put);
    hth_world_free(w);
}

TEST(values_expire_after_the_last_announcement)
{
    (void)state;
    struct hth_dht_params params = HTH_DHT_PARAMS_INIT;
    struct hth_world *w = swarm(2, 16, &params);
    struct hth_dht_put *a = put_byte(w, 0, 1), *b = put_byte(w, 1, 2);
    put_byte(w, 2, 3); /* then this node crashes */
    hth_world_run_for(w, 100 * HTH_US_PER_S);
    hth_dht_withdraw(dht_of(w, 1), b);
    hth_node_crash(hth_world_node_at(w, 2), HTH_CRASH_SILENT);
    /* values of a crashed node linger */
    assert_int_equal(get_now(w, 5).mask, 1u << 1 | 1u << 2 | 1u << 3);
    hth_world_run_until(w, 590 * HTH_US_PER_S);
    assert_int_equal(get_now(w, 5).mask, 1u << 1 | 1u << 2 | 1u << 3);
    hth_world_run_until(w, 610 * HTH_US_PER_S);
    assert_int_equal(get_now(w, 5).mask, 1u << 1);
    hth_world_run_until(w, 5000 * HTH_US_PER_S); /* announced repeatedly */
    assert_int_equal(get_now(w, 5).mask, 1u << 1);
    struct hth_world_stats stats;
    hth_world_stats(w, &stats);
    assert_int_equal(stats.dht_values, 1);
    /* Announced every 540 s and withdrawn at 5460 s: the last announcement is at 5400 s, the end at
     * 6000 s. */
    hth_world_run_until(w, 5460 * HTH_US_PER_S);
    hth_dht_withdraw(dht_of(w, 0), a);
    hth_world_run_until(w, 5999 * HTH_US_PER_S);
    struct seen s = seen_on(w, 3);
    struct hth_dht_get *get;
    assert_ok(hth_dht_get(dht_of(w, 3), &key, on_value, on_done, &s, &get));
    hth_world_run_until(w, 6010 * HTH_US_PER_S);
    assert_int_equal(s.values, 1);
    assert_int_equal(get_now(w, 3).values, 0);
    hth_world_run_for(w, 120 * HTH_US_PER_S);
    hth_world_stats(w, &stats);
    assert_int_equal(stats.dht_values, 0);
    hth_world_free(w);
}

TEST(watches_get_present_and_new_values)
{
    (void)state;
    struct hth_world *w = swarm(3, 64, NULL);
    struct hth_dht_put *a = put_byte(w, 0, 1);
    hth_world_run_for(w, HTH_US_PER_S);
    struct seen s = seen_on(w, 9);
    struct hth_dht_watch *watch;
    assert_ok(hth_dht_watch(dht_of(w, 9), &key, on_value, &s, &watch));
    assert_int_equal(s.values, 0);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(s.mask, 1u << 1); /* the value that was there */
    int64_t start_us = hth_world_now_us(w);
    struct hth_dht_put *b = put_byte(w, 4, 2);
    s.values = 0;
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(s.mask, 1u << 1 | 1u << 2); /* and the value that appears */
    assert_int_equal(s.first_us - start_us, 4 * 50000 + 12500);
    hth_dht_unwatch(dht_of(w, 9), watch);
    s.mask = 0;
    struct hth_dht_put *c = put_byte(w, 4, 3);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(s.mask, 0);
    hth_dht_withdraw(dht_of(w, 0), a);
    hth_dht_withdraw(dht_of(w, 4), b);
    hth_dht_withdraw(dht_of(w, 4), c);
    struct hth_open_counts open;
    hth_world_open(w, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(w);
}

/* A value that is put while a watch is being set up is told exactly once. */
TEST(value_put_during_watch_setup_is_told_once)
{
    (void)state;
    for (int64_t shift_us = 0; shift_us <= 300000; shift_us += 10000) {
        struct hth_world *w = swarm(3, 16, NULL);
        struct seen s = seen_on(w, 9);
        put_byte(w, 0, 1);
        hth_world_run_for(w, shift_us);
        struct hth_dht_watch *watch;
        assert_ok(hth_dht_watch(dht_of(w, 9), &key, on_value, &s, &watch));
        hth_world_run_for(w, 10 * HTH_US_PER_S);
        assert_int_equal(s.values, 1);
        hth_world_free(w);
    }
}

TEST(handles_may_be_freed_inside_callbacks)
{
    (void)state;
    struct hth_world *w = swarm(4, 16, NULL);
    for (uint8_t i = 0; i < 8; i++)
        put_byte(w, i, i);
    hth_world_run_for(w, HTH_US_PER_S);
    struct seen all = get_now(w, 9);
    assert_int_equal(all.values, 8);
    assert_int_equal(all.mask, 0xff);

    struct seen few = seen_on(w, 9);
    few.want = 3;
    struct hth_dht_get *get;
    assert_ok(hth_dht_get(dht_of(w, 9), &key, on_value, on_done, &few, &get));
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(few.values, 3);
    assert_int_equal(few.dones, 1);
    assert_int_equal(few.err, HTH_OK);

    struct seen none = seen_on(w, 9);
    assert_ok(hth_dht_get(dht_of(w, 9), &key, on_value, on_done, &none, &none.cancel));
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(none.values, 1);
    assert_int_equal(none.dones, 0);

    struct seen once = seen_on(w, 9);
    assert_ok(hth_dht_watch(dht_of(w, 9), &key, on_value, &once, &once.unwatch));
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(once.values, 1);

    struct seen early = seen_on(w, 9);
    assert_ok(hth_dht_get(dht_of(w, 9), &key, on_value, on_done, &early, &get));
    hth_dht_get_cancel(dht_of(w, 9), get);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(early.values + early.dones, 0);
    struct hth_open_counts open;
    hth_node_open(hth_world_node_at(w, 9), &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(w);
}

TEST(lost_partial_and_repeated_answers_have_their_rates)
{
    (void)state;
    struct hth_dht_params params = HTH_DHT_PARAMS_INIT;
    params.lost_get = 0.3;
    params.partial = 0.2;
    params.repeat = 0.1;
    struct hth_world *w = swarm(5, 16, &params);
    for (uint8_t i = 0; i < 10; i++)
        put_byte(w, i, i);
    hth_world_run_for(w, HTH_US_PER_S);
    int lost = 0, values = 0, answers = 0;
    for (int i = 0; i < 200; i++) {
        struct seen s = get_now(w, (size_t)i % 16);
        lost += s.err == HTH_E_TIMEOUT;
        answers += s.err == HTH_OK;
        values += s.values;
    }
    assert_int_equal(lost + answers, 200);
    assert_in_range(lost, 60 - 30, 60 + 30);
    /* 10 values, each given 1.1 times, and a fifth of the copies missing. */
    assert_close((double)values / answers, 10 * 1.1 * 0.8, 0.06, 0);

    params = (struct hth_dht_params)HTH_DHT_PARAMS_INIT;
    params.lost_put = 1.0;
    hth_world_set_dht(w, &params);
    struct seen p = seen_on(w, 1);
    struct hth_dht_put *put;
    uint8_t byte = 20;
    assert_ok(hth_dht_put(dht_of(w, 1), &key, &byte, 1, on_done, &p, &put));
    hth_world_run_for(w, 100 * HTH_US_PER_S);
    assert_int_equal(p.err, HTH_E_TIMEOUT);
    assert_false(get_now(w, 3).mask >> 20 & 1);
    hth_world_run_for(w, 540 * HTH_US_PER_S); /* announced again */
    assert_true(get_now(w, 3).mask >> 20 & 1);
    assert_int_equal(p.dones, 1);
    hth_world_free(w);
}

/* When pushes are lost, a watcher learns every value within a refresh. */
/* A node that lags answers without the newest values; watches are not affected. */
TEST(stale_gets_miss_the_newest_values)
{
    (void)state;
    struct hth_dht_params params = HTH_DHT_PARAMS_INIT;
    params.stale = 1.0;
    params.stale_us = 20 * HTH_US_PER_S;
    struct hth_world *w = swarm(1, 8, &params);
    struct hth_dht_put *old = put_byte(w, 0, 1);
    hth_world_run_for(w, 30 * HTH_US_PER_S);
    struct hth_dht_put *fresh = put_byte(w, 1, 2);
    struct seen told = seen_on(w, 3);
    struct hth_dht_watch *watch;
    hth_world_run_for(w, 5 * HTH_US_PER_S);
    assert_int_equal(get_now(w, 2).mask, 1u << 1);
    assert_ok(hth_dht_watch(dht_of(w, 3), &key, on_value, &told, &watch));
    hth_world_run_for(w, 16 * HTH_US_PER_S);
    assert_int_equal(told.mask, 1u << 1 | 1u << 2);
    assert_int_equal(get_now(w, 2).mask, 1u << 1 | 1u << 2);
    hth_dht_unwatch(dht_of(w, 3), watch);
    hth_dht_withdraw(dht_of(w, 0), old);
    hth_dht_withdraw(dht_of(w, 1), fresh);
    hth_world_free(w);
}

TEST(lost_pushes_arrive_with_the_next_refresh)
{
    (void)state;
    struct hth_dht_params params = HTH_DHT_PARAMS_INIT;
    params.partial = 1.0;
    struct hth_world *w = swarm(6, 16, &params);
    struct seen s = seen_on(w, 9);
    struct hth_dht_watch *watch;
    put_byte(w, 0, 1);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_ok(hth_dht_watch(dht_of(w, 9), &key, on_value, &s, &watch));
    hth_world_run_for(w, 32 * HTH_US_PER_S);
    assert_int_equal(s.mask, 2);
    /* No value comes at once: they spread over one refresh interval, 30 s. */
    for (uint8_t i = 2; i < 32; i++)
        put_byte(w, 1, i);
    hth_world_run_for(w, 15 * HTH_US_PER_S);
    assert_in_range(s.values, 1 + 5, 1 + 25);
    hth_world_run_for(w, 17 * HTH_US_PER_S);
    assert_true(s.mask == 0xfffffffe);
    assert_int_equal(s.values, 31);
    hth_world_free(w);
}

TEST(partition_hides_values_until_it_heals)
{
    (void)state;
    struct hth_world *w = swarm(7, 8, NULL);
    for (size_t i = 4; i < 7; i++)
        hth_node_set_side(hth_world_node_at(w, i), 1);
    hth_node_set_side(hth_world_node_at(w, 7), 2);
    struct seen watcher = seen_on(w, 4);
    struct hth_dht_watch *watch;
    assert_ok(hth_dht_watch(dht_of(w, 4), &key, on_value, &watcher, &watch));
    put_byte(w, 0, 1);
    put_byte(w, 5, 2);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(get_now(w, 1).mask, 2);
    assert_int_equal(get_now(w, 6).mask, 4);
    assert_int_equal(get_now(w, 7).err, HTH_E_UNREACHABLE);
    assert_int_equal(watcher.mask, 4);
    hth_world_heal(w);
    assert_int_equal(get_now(w, 7).mask, 6);
    assert_int_equal(watcher.mask, 6);
    hth_world_free(w);
}
