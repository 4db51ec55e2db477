/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_opendht.c: the OpenDHT back end with many nodes in one process, each on a loopback address
 * of its own (OpenDHT limits requests per address), all on one real loop.
 */
#include "dht/opendht.h"

#include "core/mem.h"
#include "dht/directory.h"
#include "dht/peers.h"
#include "net/net.h"
#include "support/suite.h"

#define S         HTH_US_PER_S
#define NODES_MAX 12

static struct {
    struct hth_env *env;
    struct hth_opendht *node[NODES_MAX];
    struct hth_addr addr[NODES_MAX];
    struct hth_timer *timer;
    bool (*until)(void);
    int64_t deadline_us;
    bool timed_out;
} fx;

/* ---- running the loop until a condition holds */

static void on_tick(void *arg)
{
    (void)arg;
    fx.timed_out = hth_now_us(fx.env) > fx.deadline_us;
    if (fx.until() || fx.timed_out)
        hth_net_stop(fx.env);
    else
        hth_timer_set(fx.env, fx.timer, 5 * HTH_US_PER_MS);
}

static void run_until(bool (*until)(void), int64_t at_most_us)
{
    fx.until = until;
    fx.deadline_us = hth_now_us(fx.env) + at_most_us;
    hth_timer_set(fx.env, fx.timer, 0);
    assert_ok(hth_net_run(fx.env));
    if (fx.timed_out)
        fail_msg("the awaited condition did not hold within %lld ms",
                 (long long)(at_most_us / HTH_US_PER_MS));
}

static int setup(void **state)
{
    struct hth_net_opts opts = HTH_NET_OPTS_INIT;
    (void)state;
    memset(&fx, 0, sizeof(fx));
    assert_ok(hth_net_new(&opts, &fx.env));
    fx.timer = hth_timer_new(fx.env, on_tick, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < NODES_MAX; i++)
        hth_opendht_free(fx.node[i]);
    hth_timer_free(fx.env, fx.timer);
    hth_net_free(fx.env);
    return 0;
}

/* Starts a node that joins through the first one. */
static void start_node(size_t i)
{
    struct hth_opendht_opts opts = HTH_OPENDHT_OPTS_INIT;
    opts.bind = (struct hth_addr){.family = 4, .ip = {127, 77, 0, 1}};
    opts.bootstrap = &fx.addr[0];
    opts.bootstrap_count = i > 0;
    assert_ok(hth_opendht_new(fx.env, &opts, &fx.node[i]));
    fx.addr[i] = opts.bind;
    fx.addr[i].port = hth_opendht_port(fx.node[i]);
    assert_int_not_equal(fx.addr[i].port, 0);
}

static bool all_connected(void)
{
    struct hth_dht_stats s;
    for (size_t i = 1; i < NODES_MAX && fx.node[i] != NULL; i++) {
        hth_dht_stats(hth_opendht_dht(fx.node[i]), &s);
        if (s.nodes_good == 0)
            return false;
    }
    return true;
}

static void start_nodes(size_t count)
{
    for (size_t i = 0; i < count; i++)
        start_node(i);
    run_until(all_connected, 20 * S);
}

/* ---- the table ----------------------------------------------------------------------------- */

static struct {
    int values, puts, gets;
    enum hth_err err;
    uint8_t last[16];
    size_t last_len;
    bool enough; /* what on_value returns */
} seen;

static bool on_value(void *arg, const uint8_t *data, size_t len)
{
    (void)arg;
    seen.values++;
    seen.last_len = len;
    if (len <= sizeof(seen.last))
        memcpy(seen.last, data, len);
    return !seen.enough;
}

static void on_put(void *arg, enum hth_err err)
{
    (void)arg;
    seen.puts++;
    seen.err = err;
}

static void on_got(void *arg, enum hth_err err)
{
    (void)arg;
    seen.gets++;
    seen.err = err;
}

static bool put_done(void)
{
    return seen.puts > 0;
}

static bool get_done(void)
{
    return seen.gets > 0;
}

static bool one_value(void)
{
    return seen.values >= 1;
}

static bool two_values(void)
{
    return seen.values >= 2;
}

static bool nothing_watched(void)
{
    return hth_opendht_watching(fx.node[7]) == 0;
}

TEST_WITH(values_are_put_read_watched_and_withdrawn, setup, teardown)
{
    struct hth_dht_key key = {{1, 2, 3}}, none = {{9, 9}};
    struct hth_dht_put *put, *other, *hasty;
    struct hth_dht_get *get;
    struct hth_dht_watch *watch;
    uint8_t large[HTH_DHT_VALUE_BYTES_MAX + 1];
    (void)state;
    memset(&seen, 0, sizeof(seen));
    memset(large, 7, sizeof(large));
    start_nodes(8);
    struct hth_dht *a = hth_opendht_dht(fx.node[1]), *b = hth_opendht_dht(fx.node[7]);
    assert_ok(hth_dht_watch(b, &key, on_value, NULL, &watch));
    assert_ok(hth_dht_put(a, &key, "hello", 5, on_put, NULL, &put));
    assert_int_equal(seen.puts, 0); /* never inside the call */
    run_until(put_done, 15 * S);
    assert_ok(seen.err);
    run_until(one_value, 15 * S);
    assert_int_equal(seen.last_len, 5);
    assert_memory_equal(seen.last, "hello", 5);
    /* A second value under the key, from another node: pushed to the watcher. */
    assert_ok(hth_dht_put(hth_opendht_dht(fx.node[3]), &key, "world!", 6, NULL, NULL, &other));
    run_until(two_values, 15 * S);
    assert_memory_equal(seen.last, "world!", 6);
    assert_int_equal(hth_opendht_watching(fx.node[7]), 1);
    hth_dht_unwatch(b, watch);
    run_until(nothing_watched, 20 * S);
    /* A get delivers both and ends; one whose reader has enough ends at the first. */
    seen.values = 0;
    assert_ok(hth_dht_get(b, &key, on_value, on_got, NULL, &get));
    run_until(get_done, 15 * S);
    assert_ok(seen.err);
    assert_int_equal(seen.values, 2);
    seen.values = seen.gets = 0;
    seen.enough = true;
    assert_ok(hth_dht_get(b, &key, on_value, on_got, NULL, &get));
    run_until(get_done, 15 * S);
    assert_int_equal(seen.values, 1);
    seen.gets = 0;
    seen.enough = false;
    assert_ok(hth_dht_get(b, &none, on_value, on_got, NULL, &get));
    run_until(get_done, 15 * S);
    assert_int_equal(seen.values, 1);
    /* A put withdrawn before OpenDHT sees it, a get canceled before its answer, a value too
     * large. */
    assert_ok(hth_dht_put(a, &key, "gone", 4, on_put, NULL, &hasty));
    hth_dht_withdraw(a, hasty);
    assert_ok(hth_dht_get(b, &none, on_value, on_got, NULL, &get));
    hth_dht_get_cancel(b, get);
    assert_err(HTH_E_TOO_LARGE, hth_dht_put(a, &key, large, sizeof(large), on_put, NULL, &hasty));
    seen.puts = 0;
    assert_ok(hth_dht_put(a, &key, large, HTH_DHT_VALUE_BYTES_MAX, on_put, NULL, &hasty));
    run_until(put_done, 15 * S);
    hth_dht_withdraw(a, hasty);
    hth_dht_withdraw(hth_opendht_dht(fx.node[3]), other);
    hth_dht_withdraw(a, put);
}

static bool some_refused(void)
{
    struct hth_dht_stats s;
    hth_dht_stats(hth_opendht_dht(fx.node[0]), &s);
    return s.values_refused > 0;
}

static bool all_put(void)
{
    return seen.puts == 40;
}

/* A node of a closed run refuses what strangers put, beyond a share (test_door.c); others take
 * all. */
TEST_WITH(a_closed_runs_node_refuses_a_crowds_puts, setup, teardown)
{
    const struct hth_dht_key key = {{4}}, other = {{5}};
    const struct hth_pubkey member = {{1}};
    struct hth_dht_put *put;
    (void)state;
    memset(&seen, 0, sizeof(seen));
    start_nodes(2);
    struct hth_dht *closed = hth_opendht_dht(fx.node[0]), *b = hth_opendht_dht(fx.node[1]);
    for (uint8_t i = 0; i < 40; i++)
        assert_ok(hth_dht_put(b, &other, &i, 1, on_put, NULL, &put));
    run_until(all_put, 15 * S);
    assert_false(some_refused());
    hth_dht_know(closed, 7, &member, true);
    for (uint8_t i = 0; i < 40; i++)
        assert_ok(hth_dht_put(b, &key, &i, 1, NULL, NULL, &put));
    run_until(some_refused, 15 * S);
}

/* Freeing nodes with operations under way causes no callback, no leak and no hang. */
TEST_WITH(free_with_open_operations, setup, teardown)
{
    (void)state;
    memset(&seen, 0, sizeof(seen));
    start_nodes(4);
    for (uint8_t i = 0; i < 50; i++) {
        struct hth_dht *d = hth_opendht_dht(fx.node[i % 4]);
        struct hth_dht_key key = {{i, 1}};
        struct hth_dht_put *put;
        struct hth_dht_get *get;
        struct hth_dht_watch *watch;
        assert_ok(hth_dht_put(d, &key, &i, 1, on_put, NULL, &put));
        assert_ok(hth_dht_get(d, &key, on_value, on_got, NULL, &get));
        assert_ok(hth_dht_watch(d, &key, on_value, NULL, &watch));
    }
    hth_opendht_free(fx.node[2]);
    fx.node[2] = NULL;
    run_until(one_value, 15 * S);
}

TEST_WITH(port_in_use_is_an_error, setup, teardown)
{
    struct hth_opendht_opts opts = HTH_OPENDHT_OPTS_INIT;
    struct hth_opendht *o;
    (void)state;
    start_node(0);
    opts.bind = fx.addr[0];
    assert_err(HTH_E_ADDR_IN_USE, hth_opendht_new(fx.env, &opts, &o));
    assert_null(o);
    opts.bind.port = 0;
    opts.bootstrap_count = HTH_BOOTSTRAP_MAX + 1;
    assert_err(HTH_E_BUDGET, hth_opendht_new(fx.env, &opts, &o));
}

/* ---- announcer, directory and joining over it ---------------------------------------------- */

static struct hth_directory *dir;
static uint32_t live_wanted;
static struct hth_join_result join_result;
static bool joined;

static bool live_reached(void)
{
    return hth_directory_view(dir, 0)->live_count == live_wanted;
}

static bool is_joined(void)
{
    return joined;
}

static void on_joined(void *arg, const struct hth_join_result *result)
{
    (void)arg;
    join_result = *result;
    joined = true;
}

static bool withdrawn;

static void on_withdrawn(void *arg)
{
    (void)arg;
    withdrawn = true;
}

static bool is_withdrawn(void)
{
    return withdrawn;
}

static enum hth_err join(struct hth_opendht *o, const char *network, const struct hth_addr *at)
{
    struct hth_join_opts opts = HTH_JOIN_OPTS_INIT;
    struct hth_join *j;
    opts.network = network;
    opts.bootstrap = at;
    opts.bootstrap_count = 1;
    opts.timeout_us = 3 * S / 2;
    opts.beacon_us = S / 2;
    joined = false;
    assert_ok(hth_join_new(fx.env, hth_opendht_dht(o), &opts, on_joined, NULL, &j));
    run_until(is_joined, 20 * S);
    hth_join_free(j);
    return join_result.err;
}

static struct hth_announcer *announce(struct hth_opendht *o, uint32_t first)
{
    static const struct hth_layer_shape shape = {.kind = "ffn", .d = 64, .block_rows = 1};
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    struct hth_announcer *ann;
    struct hth_grid grid;
    uint32_t experts[64];
    struct hth_expert_list list = {experts, 64};
    opts.network = "net";
    opts.role = HTH_ROLE_HOST;
    for (uint32_t i = 0; i < 64; i++)
        experts[i] = first + i;
    assert_ok(hth_grid_parse("ffn0.16.16", 10, &grid));
    assert_ok(hth_announcer_new(fx.env, hth_opendht_dht(o), &opts, &ann));
    assert_ok(hth_announcer_set_layer(ann, &grid, &shape, &list));
    return ann;
}

TEST_WITH(directory_follows_announcer, setup, teardown)
{
    struct hth_directory_opts opts = HTH_DIRECTORY_OPTS_INIT;
    struct hth_announcer *ann;
    struct hth_grid grid;
    uint32_t layer;
    (void)state;
    start_nodes(6);
    ann = announce(fx.node[2], 0);
    opts.network = "net";
    assert_ok(hth_grid_parse("ffn0.16.16", 10, &grid));
    assert_ok(hth_directory_new(fx.env, hth_opendht_dht(fx.node[4]), &opts, &dir));
    assert_ok(hth_directory_open_layer(dir, &grid, NULL, &layer));
    live_wanted = 64;
    run_until(live_reached, 15 * S);
    withdrawn = false;
    hth_announcer_withdraw(ann, on_withdrawn, NULL);
    run_until(is_withdrawn, 10 * S);
    live_wanted = 0;
    run_until(live_reached, 10 * S);
    hth_announcer_free(ann);
    hth_directory_free(dir);
}

static struct hth_census *census;

static bool node_is_seen(void)
{
    struct hth_census_stats s;
    hth_census_stats(census, &s);
    return s.nodes > 0;
}

TEST_WITH(join_names_wrong_network, setup, teardown)
{
    struct hth_announcer *ann;
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    (void)state;
    start_nodes(3);
    opts.network = "other";
    assert_ok(hth_announcer_new(fx.env, hth_opendht_dht(fx.node[0]), &opts, &ann));
    /* The nodes of this process share its key, and a census ignores its own records: change
     * ours. */
    fx.env->self.b[0] ^= 1;
    /* The join reads for half a second: its node must have the beacon by then. */
    assert_ok(hth_census_new(fx.env, hth_opendht_dht(fx.node[2]), NULL, &census));
    run_until(node_is_seen, 20 * S);
    assert_err(HTH_E_JOIN_WRONG_NETWORK, join(fx.node[2], "net", &fx.addr[0]));
    hth_census_free(census);
    hth_announcer_free(ann);
}

static void accept_nobody(void *arg, struct hth_stream *s)
{
    (void)arg;
    (void)s;
}

TEST_WITH(join_tells_closed_udp_from_no_listener, setup, teardown)
{
    struct hth_opendht_opts opts = HTH_OPENDHT_OPTS_INIT;
    struct hth_addr tcp = {.family = 4, .ip = {127, 77, 0, 99}};
    struct hth_listener *listener;
    (void)state;
    /* TCP only, on a port the kernel picks. */
    assert_ok(hth_listen(fx.env, &tcp, accept_nobody, NULL, &listener));
    hth_listener_addr(fx.env, listener, &tcp);
    opts.bind = (struct hth_addr){.family = 4, .ip = {127, 77, 0, 1}};
    opts.bootstrap = &tcp;
    opts.bootstrap_count = 1;
    assert_ok(hth_opendht_new(fx.env, &opts, &fx.node[0]));
    assert_err(HTH_E_JOIN_UDP_CLOSED, join(fx.node[0], "net", &tcp));
    hth_listener_free(fx.env, listener);
    /* The same port without a listener. */
    assert_err(HTH_E_JOIN_NOTHING_LISTENS, join(fx.node[0], "net", &tcp));
}
