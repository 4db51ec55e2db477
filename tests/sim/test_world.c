/* SPDX-License-Identifier: Apache-2.0 */
/* test_world.c: the clock, the order of events, boot and crash of nodes, replay from a seed. */
#include "core/bytes.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

/* ---- timers -------------------------------------------------------------------------------- */

struct tick {
    struct hth_env *env;
    struct hth_timer *timer;
    int64_t fired_us;
    int count;
    int id;
    char *order; /* string to which each firing appends its letter */
};

static void on_tick(void *arg)
{
    struct tick *t = arg;
    t->fired_us = hth_now_us(t->env);
    t->count++;
    if (t->order != NULL)
        t->order[strlen(t->order)] = (char)('a' + t->id);
}

TEST(timers_fire_when_due)
{
    (void)state;
    struct hth_world *w = hth_world_new(1, NULL);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    struct tick t = {.env = env};
    t.timer = hth_timer_new(env, on_tick, &t);
    hth_world_run_for(w, 50);
    assert_int_equal(t.count, 0); /* not armed yet */
    hth_timer_set(env, t.timer, 1000);
    hth_world_run_for(w, 999);
    assert_int_equal(t.count, 0);
    hth_world_run_for(w, 1);
    assert_int_equal(t.count, 1);
    assert_int_equal(t.fired_us, 1050);
    hth_world_run_for(w, 5000);
    assert_int_equal(t.count, 1); /* one-shot */

    hth_timer_set(env, t.timer, 100);
    hth_timer_set(env, t.timer, 300); /* moved to later and to earlier */
    hth_timer_set(env, t.timer, 200);
    hth_world_run_for(w, 1000);
    assert_int_equal(t.count, 2);
    assert_int_equal(t.fired_us, 6050 + 200);

    hth_timer_set(env, t.timer, 10);
    hth_timer_cancel(env, t.timer);
    hth_timer_set(env, t.timer, INT64_MAX); /* never, without overflow */
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(t.count, 2);
    hth_timer_set(env, t.timer, -5); /* in the next turn */
    assert_int_equal(t.count, 2);
    hth_world_run_for(w, 0);
    assert_int_equal(t.count, 3);
    hth_timer_free(env, t.timer);
    hth_timer_free(env, NULL);
    struct hth_open_counts open;
    hth_world_open(w, &open);
    assert_int_equal(hth_open_total(&open), 0);
    hth_world_free(w);
}

/* Events of a stalled process wait until it runs; other processes do not wait. */
TEST(stalled_process_runs_its_events_later)
{
    (void)state;
    struct hth_world *w = hth_world_new(1, NULL);
    struct hth_node *node[2];
    struct tick t[2] = {{.count = 0}};
    for (int i = 0; i < 2; i++) {
        node[i] = hth_world_node(w, i == 0 ? "a" : "b", NULL);
        t[i].env = hth_node_env(node[i]);
        t[i].timer = hth_timer_new(t[i].env, on_tick, &t[i]);
        hth_timer_set(t[i].env, t[i].timer, 1000);
    }
    hth_world_run_for(w, 500);
    hth_node_stall(node[0], 2000);
    hth_node_stall(node[0], 100); /* a shorter stall changes nothing */
    hth_world_run_for(w, 1900);
    assert_int_equal(t[0].count, 0);
    assert_int_equal(t[1].fired_us, 1000);
    hth_world_run_for(w, 5000);
    assert_int_equal(t[0].count, 1);
    assert_int_equal(t[0].fired_us, 2500);
    for (int i = 0; i < 2; i++)
        hth_timer_free(t[i].env, t[i].timer);
    hth_world_free(w);
}

/* Record the order in which sixteen timers of the same instant fire under this seed. */
static void tie_order(uint64_t seed, char order[32])
{
    struct hth_world *w = hth_world_new(seed, NULL);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    struct tick t[16];
    memset(order, 0, 32);
    for (int i = 0; i < 16; i++) {
        t[i] = (struct tick){.env = env, .id = i, .order = order};
        t[i].timer = hth_timer_new(env, on_tick, &t[i]);
        hth_timer_set(env, t[i].timer, 500);
    }
    hth_world_run_for(w, 500);
    for (int i = 0; i < 16; i++)
        hth_timer_free(env, t[i].timer);
    hth_world_free(w);
}

TEST(ties_are_shuffled_by_the_seed)
{
    (void)state;
    char a[32], again[32], b[32];
    tie_order(7, a);
    tie_order(7, again);
    tie_order(8, b);
    assert_int_equal(strlen(a), 16);
    assert_string_equal(a, again);
    assert_string_not_equal(a, b);
    assert_string_not_equal(a, "abcdefghijklmnop");
}

static void on_tick_free(void *arg)
{
    struct tick *t = arg;
    t->count++;
    hth_timer_free(t->env, t->timer);
    t->timer = NULL;
}

static bool ticked(void *arg)
{
    return ((struct tick *)arg)->count > 0;
}

TEST(timers_may_free_themselves)
{
    (void)state;
    struct hth_world *w = hth_world_new(1, NULL);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    struct tick t = {.env = env};
    t.timer = hth_timer_new(env, on_tick_free, &t);
    hth_timer_set(env, t.timer, 250);
    assert_true(hth_world_run_until_true(w, ticked, &t, 1000));
    assert_int_equal(hth_world_now_us(w), 250);
    assert_null(t.timer);
    assert_true(hth_world_run_until_idle(w, 1000));
    hth_world_free(w);
}

/* ---- posts and scenario events ------------------------------------------------------------- */

TEST(posts_keep_their_order)
{
    (void)state;
    struct hth_world *w = hth_world_new(3, NULL);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    char order[32] = {0};
    struct tick t[8];
    for (int i = 0; i < 8; i++) {
        t[i] = (struct tick){.env = env, .id = i, .order = order};
        hth_post(env, on_tick, &t[i]);
        assert_int_equal(t[i].count, 0); /* never inside the call */
    }
    hth_world_run_for(w, 0);
    assert_string_equal(order, "abcdefgh");
    hth_world_free(w);
}

static void count_up(void *arg)
{
    ++*(int *)arg;
}

TEST(world_events_run_at_their_time)
{
    (void)state;
    struct hth_world *w = hth_world_new(3, NULL);
    int n = 0;
    hth_world_at(w, 100, count_up, &n);
    hth_world_at(w, 200, count_up, &n);
    assert_int_equal(hth_world_run_until(w, 150), 1);
    assert_int_equal(n, 1);
    hth_world_free(w); /* the second timer is freed with the world */
    assert_int_equal(n, 1);
}

/* ---- clocks and identities ----------------------------------------------------------------- */

TEST(nodes_have_own_clocks_and_identities)
{
    (void)state;
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    opts.wall_start_us = 1000 * HTH_US_PER_S;
    struct hth_world *w = hth_world_new(5, &opts);
    struct hth_node_opts skewed = HTH_NODE_OPTS_INIT;
    skewed.wall_skew_us = 2 * HTH_US_PER_S;
    skewed.clock_offset_us = 77;
    struct hth_node *a = hth_world_node(w, "a", NULL);
    struct hth_node *b = hth_world_node(w, "b", &skewed);
    hth_world_run_for(w, 10);
    assert_int_equal(hth_now_us(hth_node_env(a)), 10);
    assert_int_equal(hth_now_us(hth_node_env(b)), 87);
    assert_int_equal(hth_wall_us(hth_node_env(a)), 1000 * HTH_US_PER_S + 10);
    assert_int_equal(hth_wall_us(hth_node_env(b)), 1002 * HTH_US_PER_S + 10);
    hth_node_wall_step(b, -3 * HTH_US_PER_S);
    assert_int_equal(hth_wall_us(hth_node_env(b)), 999 * HTH_US_PER_S + 10);

    assert_false(hth_peer_id_eq(&hth_node_env(a)->self, &hth_node_env(b)->self));
    struct hth_peer_id id = hth_node_env(a)->self;
    uint64_t before = hth_rng_u64(&hth_node_env(a)->rng);
    hth_node_crash(a, HTH_CRASH_RESET);
    assert_false(hth_node_is_up(a));
    hth_node_restart(a);
    assert_true(hth_node_is_up(a));
    assert_true(hth_peer_id_eq(&hth_node_env(a)->self, &id));
    assert_true(hth_rng_u64(&hth_node_env(a)->rng) != before);
    hth_world_free(w);
}

TEST(stand_in_crypto_refuses_what_the_real_one_would)
{
    (void)state;
    const struct hth_crypto *c = hth_sim_crypto();
    struct hth_secret s1 = {{1}}, s2 = {{2}};
    struct hth_pubkey k1, k2;
    uint8_t sig[HTH_SIG_LEN];
    c->public_of(&s1, &k1);
    c->public_of(&s2, &k2);
    c->sign(&s1, "hello", 5, sig);
    assert_ok(c->verify(&k1, "hello", 5, sig));
    assert_err(HTH_E_BAD_SIGNATURE, c->verify(&k2, "hello", 5, sig));
    assert_err(HTH_E_BAD_SIGNATURE, c->verify(&k1, "hellO", 5, sig));
    assert_err(HTH_E_BAD_SIGNATURE, c->verify(&k1, "hello", 4, sig));
    for (int i = 0; i < HTH_SIG_LEN; i++) {
        sig[i] ^= 1;
        assert_err(HTH_E_BAD_SIGNATURE, c->verify(&k1, "hello", 5, sig));
        sig[i] ^= 1;
    }
}

/* A signature covers every bit, in whole blocks of 32 bytes and behind them, and the length. */
TEST(stand_in_signatures_cover_all_of_a_message)
{
    static const size_t lens[] = {1, 31, 32, 33, 64, 100, 136, 200};
    (void)state;
    const struct hth_crypto *c = hth_sim_crypto();
    struct hth_secret secret = {{1}};
    struct hth_pubkey key;
    uint8_t text[200] = {0}, sig[HTH_SIG_LEN];
    c->public_of(&secret, &key);
    for (size_t i = 0; i < HTH_ARRAY_LEN(lens); i++) {
        size_t len = lens[i];
        c->sign(&secret, text, len, sig);
        assert_ok(c->verify(&key, text, len, sig));
        for (size_t bit = 0; bit < 8 * len; bit++) {
            text[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_err(HTH_E_BAD_SIGNATURE, c->verify(&key, text, len, sig));
            text[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        for (size_t other = 0; other <= sizeof(text); other++)
            if (other != len)
                assert_err(HTH_E_BAD_SIGNATURE, c->verify(&key, text, other, sig));
    }
}

/* ---- boot, crash, halt --------------------------------------------------------------------- */

struct app {
    struct hth_env *env;
    struct hth_timer *timer;
    int boots, halts, ticks;
    bool crash_self, forget;
    struct hth_node *node;
};

static void app_tick(void *arg)
{
    struct app *app = arg;
    app->ticks++;
    hth_timer_set(app->env, app->timer, 1000);
    if (app->crash_self) {
        hth_node_crash(app->node, HTH_CRASH_RESET);
        assert_int_equal(app->halts, 0); /* the node goes down after the callback, not inside it */
    }
}

static void app_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct app *app = arg;
    (void)dht;
    app->boots++;
    app->env = env;
    app->timer = hth_timer_new(env, app_tick, app);
    hth_timer_set(env, app->timer, 1000);
}

static void app_halt(struct hth_env *env, void *arg)
{
    struct app *app = arg;
    app->halts++;
    /* The environment is disconnected: calls are harmless and start nothing. */
    hth_timer_set(env, app->timer, 10);
    hth_post(env, app_tick, app);
    struct hth_listener *l;
    struct hth_stream *s;
    struct hth_addr addr = {.family = 4, .ip = {10, 0, 0, 1}, .port = 1};
    assert_err(HTH_E_CANCELED, hth_listen(env, &addr, NULL, NULL, &l));
    assert_err(HTH_E_CANCELED, hth_dial(env, &addr, NULL, NULL, NULL, &s));
    if (!app->forget)
        hth_timer_free(env, app->timer);
}

TEST(crashed_node_restarts_with_disk_and_identity)
{
    (void)state;
    struct hth_world *w = hth_world_new(5, NULL);
    struct app app = {.boots = 0};
    struct hth_node_opts o = HTH_NODE_OPTS_INIT;
    o.boot = app_boot;
    o.halt = app_halt;
    o.arg = &app;
    o.boot_delay_us = 500;
    struct hth_node *n = hth_world_node(w, "n", &o);
    app.node = n;
    hth_world_run_for(w, 499);
    assert_int_equal(app.boots, 0);
    hth_world_run_for(w, 5001);
    assert_int_equal(app.boots, 1);
    assert_int_equal(app.ticks, 5);
    hth_node_disk_put(n, "state", "abc", 3);

    hth_node_crash(n, HTH_CRASH_SILENT);
    assert_int_equal(app.halts, 1);
    hth_node_crash(n, HTH_CRASH_SILENT); /* it is down already */
    assert_int_equal(app.halts, 1);
    hth_world_run_for(w, 10000);
    assert_int_equal(app.ticks, 5);
    hth_node_restart(n);
    hth_world_run_for(w, 2000);
    assert_int_equal(app.boots, 2);
    assert_int_equal(app.ticks, 7);
    struct hth_blob *blob;
    assert_ok(hth_file_read(hth_node_env(n), "state", 100, &blob));
    assert_int_equal(blob->size, 3);
    assert_memory_equal(blob->data, "abc", 3);
    hth_blob_unref(blob);

    app.halts = 0;
    app.crash_self = true;
    hth_world_run_for(w, 3000);
    assert_int_equal(app.ticks, 8);
    assert_int_equal(app.halts, 1);

    struct hth_open_counts leaks;
    hth_world_leaks(w, &leaks);
    assert_int_equal(hth_open_total(&leaks), 0);
    app.crash_self = false;
    app.forget = true; /* the world counts and frees the objects that halt leaves behind */
    hth_node_restart(n);
    hth_world_run_for(w, 1);
    hth_node_crash(n, HTH_CRASH_RESET);
    hth_world_leaks(w, &leaks);
    assert_int_equal(leaks.timers, 1);
    assert_int_equal(hth_open_total(&leaks), 1);
    hth_world_free(w);
}

TEST(freeing_the_world_halts_all_nodes)
{
    (void)state;
    struct hth_world *w = hth_world_new(5, NULL);
    struct app app[3] = {{.boots = 0}};
    for (int i = 0; i < 3; i++) {
        struct hth_node_opts o = HTH_NODE_OPTS_INIT;
        o.boot = app_boot;
        o.halt = app_halt;
        o.arg = &app[i];
        app[i].node = hth_world_node(w, "n", &o);
    }
    hth_world_run_for(w, 10);
    hth_world_free(w);
    for (int i = 0; i < 3; i++)
        assert_int_equal(app[i].halts, 1);
}

/* ---- fault sites --------------------------------------------------------------------------- */

TEST(fault_sites_have_their_rates)
{
    (void)state;
    int enabled = 0, fired = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
        opts.chaos.site_enabled = 0.25;
        opts.chaos.site_fires = 0.25;
        struct hth_world *w = hth_world_new(seed, &opts);
        struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
        int here = 0;
        for (int i = 0; i < 100; i++)
            here += hth_fault(env, "test.site");
        assert_int_equal(hth_world_fault_count(w, "test.site"), here);
        enabled += here > 0;
        fired += here;
        hth_world_free(w);
    }
    /* Binomial(200, 1/4): six standard deviations are 37. */
    assert_in_range(enabled, 50 - 37, 50 + 37);
    assert_in_range(fired / enabled, 20, 30);

    struct hth_world *w = hth_world_new(1, NULL);
    struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
    for (int i = 0; i < 100; i++)
        assert_false(hth_fault(env, "other.site"));
    hth_world_set_fault(w, "other.site", 1.0);
    assert_true(hth_fault(env, "other.site"));
    hth_world_set_fault(w, "other.site", 0.0);
    assert_false(hth_fault(env, "other.site"));
    hth_world_free(w);
}

/* The seed and the name decide whether a site is enabled, not the order of first use: a new site
 * must not change the others under a seed. */
TEST(fault_site_depends_on_seed_and_name_only)
{
    enum { SITES = 32 };
    static char name[SITES][16];
    bool enabled[2][SITES];
    uint32_t count = 0;
    (void)state;
    for (int backwards = 0; backwards < 2; backwards++) {
        struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
        opts.chaos.site_enabled = 0.5;
        opts.chaos.site_fires = 1;
        struct hth_world *w = hth_world_new(9, &opts);
        struct hth_env *env = hth_node_env(hth_world_node(w, "n", NULL));
        for (int i = 0; i < SITES; i++) {
            int site = backwards ? SITES - 1 - i : i;
            snprintf(name[site], sizeof(name[site]), "site.%d", site);
            enabled[backwards][site] = hth_fault(env, name[site]);
            count += enabled[backwards][site];
        }
        hth_world_free(w);
    }
    assert_memory_equal(enabled[0], enabled[1], sizeof(enabled[0]));
    assert_in_range(count, 16, 48);
}
