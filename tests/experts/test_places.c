/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_places.c: hosts that keep places of a grid of 2 x 4, in a simulated world: they return, fall
 * out, claim what they do not serve, and wait as spares.
 */
#include "experts/places.h"

#include "core/mem.h"
#include "experts/swarm.h"
#include "support/suite.h"

#include <math.h>
#include <stdio.h>

#define S      HTH_US_PER_S
#define HOSTS  3
#define PLACES 8
#define FOLDER "ckpt"

struct keeper {
    struct hth_node *node;
    uint32_t want;
    const uint32_t *pins; /* indices; pin_count 0: by number */
    uint32_t pin_count;
    bool recent; /* its files are young */

    struct hth_rpc *rpc;
    struct hth_server *server;
    struct hth_announcer *announcer;
    struct hth_places *places;
};

static struct {
    struct hth_world *world;
    struct hth_grid grid;
    struct hth_layer_shape shape;
    struct keeper host[HOSTS];
} fx;

static struct hth_uid uid_at(uint32_t index)
{
    struct hth_uid uid = {.name = "ffn0", .ncoord = 2};

    hth_grid_coords(&fx.grid, index, uid.coord);
    return uid;
}

static const char *file_of(uint32_t index)
{
    static char text[64];
    char uid[HTH_UID_TEXT_MAX];

    snprintf(text, sizeof(text), FOLDER "/%s.safetensors", hth_grid_uid_text(&fx.grid, index, uid));
    return text;
}

/* ---- hosts --------------------------------------------------------------------------------- */

static void expert(void *arg, const struct hth_uid *uid, struct hth_expert_opts *out)
{
    (void)arg;
    (void)uid;
    *out = host_init().expert;
}

static void on_expert(void *arg, const struct hth_uid *uid, enum hth_err err, bool restored)
{
    hth_places_loaded(((struct keeper *)arg)->places, uid, err, restored);
}

static void make_announcer(struct keeper *k, struct hth_env *env, struct hth_dht *dht)
{
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;

    opts.network = "net";
    opts.role = HTH_ROLE_HOST;
    opts.info.addr[0] = hth_node_addr(k->node, PORT);
    opts.info.addr_count = 1;
    assert_ok(hth_announcer_new(env, dht, &opts, &k->announcer));
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct keeper *k = arg;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_server_opts server = HTH_SERVER_OPTS_INIT;
    struct hth_addr addr = hth_node_addr(k->node, PORT);
    struct hth_places_opts opts = {.network = "net",
                                   .grids = &fx.grid,
                                   .layers = 1,
                                   .shape = fx.shape,
                                   .want = k->want,
                                   .expert = expert};
    size_t len;

    rpc.network = "net";
    rpc.listen = &addr;
    server.checkpoint_dir = FOLDER;
    server.on_expert = on_expert;
    server.arg = k;
    assert_ok(hth_rpc_new(env, &rpc, &k->rpc));
    assert_ok(hth_server_new(env, k->rpc, &server, &k->server));
    make_announcer(k, env, dht);
    opts.rpc = k->rpc;
    opts.server = k->server;
    opts.announcer = k->announcer;
    assert_ok(hth_places_new(env, dht, &opts, &k->places));
    for (uint32_t i = 0; i < PLACES; i++) {
        struct hth_uid uid = uid_at(i);
        if (hth_node_disk_get(k->node, file_of(i), &len) != NULL)
            hth_places_had(k->places, &uid, k->recent);
    }
    for (uint32_t i = 0; i < k->pin_count; i++) {
        struct hth_uid uid = uid_at(k->pins[i]);
        assert_ok(hth_places_pin(k->places, &uid));
    }
    hth_places_start(k->places);
}

static void halt(struct hth_env *env, void *arg)
{
    struct keeper *k = arg;

    (void)env;
    hth_places_free(k->places);
    hth_announcer_free(k->announcer);
    hth_server_free(k->server);
    hth_rpc_free(k->rpc);
    k->places = NULL;
    k->announcer = NULL;
    k->server = NULL;
    k->rpc = NULL;
}

/* Starts host i with `want` places, or with pinned ones. */
static void start_host(int i, uint32_t want, const uint32_t *pins, uint32_t pin_count)
{
    struct keeper *k = &fx.host[i];
    struct hth_node_opts opts = HTH_NODE_OPTS_INIT;

    k->want = want;
    k->pins = pins;
    k->pin_count = pin_count;
    if (k->node != NULL) { /* made before, for its disk */
        hth_node_restart(k->node);
        return;
    }
    opts.boot = boot;
    opts.halt = halt;
    opts.arg = k;
    opts.boot_delay_us = 1;
    k->node = hth_world_node(fx.world, "host", &opts);
}

/* A node whose disk can be filled before its host starts. */
static void make_node(int i)
{
    start_host(i, 0, NULL, 0);
    hth_world_run_for(fx.world, S / 10);
    hth_node_crash(fx.host[i].node, HTH_CRASH_RESET);
    hth_world_run_for(fx.world, S / 10);
}

static void say_goodbye(int i)
{
    hth_places_stop(fx.host[i].places);
    hth_announcer_withdraw(fx.host[i].announcer, NULL, NULL);
    hth_world_run_for(fx.world, S);
}

static uint32_t served(int i)
{
    struct hth_places_stats stats;

    if (fx.host[i].places == NULL)
        return 0;
    hth_places_stats(fx.host[i].places, &stats);
    return stats.served;
}

static bool serves(int i, uint32_t index)
{
    struct hth_uid uid = uid_at(index);
    struct hth_server_expert e;

    return fx.host[i].server != NULL && hth_server_expert_find(fx.host[i].server, &uid, &e);
}

/* Waits until host i serves so many, at most `us`. */
static void wait_served(int i, uint32_t count, int64_t us)
{
    for (int64_t at = 0; served(i) != count && at < us; at += S / 10)
        hth_world_run_for(fx.world, S / 10);
    assert_int_equal(served(i), count);
}

/* Puts a checkpoint with so many steps of each place on the disk of host i. */
static void put_files(int i, int steps)
{
    for (uint32_t index = 0; index < PLACES; index++) {
        struct hth_expert_opts opts = host_init().expert;
        struct hth_blob *blob;
        struct reference r;
        float *x = normals(1, 16), dx[16];

        opts.uid = uid_at(index);
        reference_start(&r, &opts);
        for (int s = 0; s < steps; s++) {
            reference_backward(&r, 1, 1, x, x, dx);
            assert_ok(hth_expert_step(r.expert, r.ex));
        }
        assert_ok(hth_expert_snapshot(r.expert, &blob));
        hth_node_disk_put(fx.host[i].node, file_of(index), blob->data, blob->size);
        hth_blob_unref(blob);
        reference_stop(&r);
        hth_aligned_free(x);
    }
}

static int set_up(void **state)
{
    static const char grid[] = "ffn0.2.4";

    (void)state;
    memset(&fx, 0, sizeof(fx));
    assert_ok(hth_grid_parse(grid, strlen(grid), &fx.grid));
    fx.shape = (struct hth_layer_shape){.kind = "ffn", .d = 16, .block_rows = 1};
    fx.world = hth_world_new(5, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    hth_world_free(fx.world);
    return 0;
}

/* ---- tests --------------------------------------------------------------------------------- */

TEST_WITH(shortfall_is_said_and_filled_when_places_fall_free, set_up, tear_down)
{
    struct hth_places_stats stats;

    (void)state;
    start_host(0, 5, NULL, 0);
    wait_served(0, 5, 5 * S);
    start_host(1, 5, NULL, 0);
    wait_served(1, 3, 10 * S);
    start_host(2, 2, NULL, 0);
    hth_world_run_for(fx.world, 10 * S);
    hth_places_stats(fx.host[2].places, &stats);
    assert_true(stats.looked && stats.served == 0 && stats.want == 2);
    say_goodbye(0);
    hth_world_run_for(fx.world, 10 * S);
    assert_int_equal(served(1), 5);
    assert_int_equal(served(2), 2);
}

/* Host 0 crashes without a goodbye and returns at once: host 1, which waits, has taken nothing. */
TEST_WITH(restarted_host_has_its_places, set_up, tear_down)
{
    bool had[PLACES];

    (void)state;
    start_host(0, 4, NULL, 0);
    wait_served(0, 4, 5 * S);
    start_host(1, 4, NULL, 0);
    wait_served(1, 4, 5 * S);
    start_host(2, 4, NULL, 0);
    hth_world_run_for(fx.world, 10 * S);
    for (uint32_t i = 0; i < PLACES; i++)
        had[i] = serves(0, i);
    hth_node_crash(fx.host[0].node, HTH_CRASH_RESET);
    hth_world_run_for(fx.world, 2 * S);
    hth_node_restart(fx.host[0].node);
    hth_world_run_for(fx.world, 300 * S);
    for (uint32_t i = 0; i < PLACES; i++)
        assert_int_equal(serves(0, i), had[i]);
    assert_int_equal(served(1), 4);
    assert_int_equal(served(2), 0);
}

/* Host 0 is down for less than a minute, with a goodbye or without, and host 1 takes over. Host 0
 * gets its places back unless host 1 has clearly more steps. */
TEST_WITH(returned_host_gets_its_experts_back_unless_others_are_newer, set_up, tear_down)
{
    static const struct {
        int steps, others;
        bool goodbye, gets_back;
    } cases[] = {
        {100, 0, false, true}, {100, 60, false, true}, {60, 100, false, false},
        {0, 0, false, true},   {5, 9, false, true},    {100, 0, true, true},
        {5, 9, true, true},    {60, 100, true, false},
    };

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        for (int h = 0; h < 2; h++) {
            make_node(h);
            if ((h == 0 ? cases[i].steps : cases[i].others) > 0)
                put_files(h, h == 0 ? cases[i].steps : cases[i].others);
        }
        start_host(0, PLACES, NULL, 0);
        wait_served(0, PLACES, 5 * S);
        if (cases[i].goodbye)
            say_goodbye(0);
        hth_node_crash(fx.host[0].node, HTH_CRASH_RESET);
        fx.host[0].recent = true;
        start_host(1, PLACES, NULL, 0); /* it asks host 0, which does not answer */
        wait_served(1, PLACES, 20 * S);
        hth_node_restart(fx.host[0].node);
        hth_world_run_for(fx.world, 20 * S);
        assert_int_equal(served(0), cases[i].gets_back ? PLACES : 0);
        assert_int_equal(served(1), cases[i].gets_back ? 0 : PLACES);
        tear_down(state);
        set_up(state);
    }
}

/* Two hosts pinned to the same experts are wanted replicas, and a host by number goes elsewhere. */
TEST_WITH(pinned_experts_never_move, set_up, tear_down)
{
    static const uint32_t pins[] = {1, 2, 5};

    (void)state;
    start_host(0, 0, pins, 3);
    start_host(1, 0, pins, 3);
    start_host(2, 5, NULL, 0);
    hth_world_run_for(fx.world, 300 * S);
    for (uint32_t i = 0; i < PLACES; i++) {
        bool is_pin = i == 1 || i == 2 || i == 5;
        assert_int_equal(serves(0, i), is_pin);
        assert_int_equal(serves(1, i), is_pin);
        assert_int_equal(serves(2, i), !is_pin);
    }
}

/* Settled hosts stay where a newcomer claims their places as well. */
TEST_WITH(settled_host_stays, set_up, tear_down)
{
    static const uint32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7};

    (void)state;
    start_host(0, PLACES, NULL, 0);
    wait_served(0, PLACES, 5 * S);
    hth_world_run_for(fx.world, 100 * S);
    start_host(1, 0, all, PLACES); /* as by pattern; only new for host 0 */
    hth_world_run_for(fx.world, 60 * S);
    assert_int_equal(served(0), PLACES);
}

TEST_WITH(damaged_file_costs_one_place_and_another_is_taken, set_up, tear_down)
{
    struct hth_places_stats stats;
    size_t len;

    (void)state;
    make_node(0);
    put_files(0, 1);
    hth_node_disk_put(fx.host[0].node, file_of(0), "torn", 4);
    start_host(0, 4, NULL, 0);
    wait_served(0, 4, 10 * S);
    hth_places_stats(fx.host[0].places, &stats);
    assert_int_equal(stats.failed, 1);
    assert_false(serves(0, 0));
    assert_non_null(hth_node_disk_get(fx.host[0].node, file_of(0), &len));
    assert_int_equal(len, 4);
}

/* ---- claims -------------------------------------------------------------------------------- */

static void claim(int i, uint32_t count)
{
    static const uint32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const struct hth_expert_list list = {all, count};

    assert_ok(hth_announcer_set_layer(fx.host[i].announcer, &fx.grid, &fx.shape, &list));
    hth_world_run_for(fx.world, S);
}

/* No endpoint listens at the address in the record. */
TEST_WITH(claim_without_answer_blocks_no_place, set_up, tear_down)
{
    (void)state;
    fx.host[1].node = hth_world_node(fx.world, "liar", NULL);
    make_announcer(&fx.host[1], hth_node_env(fx.host[1].node), hth_node_dht(fx.host[1].node));
    claim(1, PLACES);
    start_host(0, PLACES, NULL, 0);
    wait_served(0, PLACES, 20 * S);
    hth_world_run_for(fx.world, 200 * S);
    assert_int_equal(served(0), PLACES);
    hth_announcer_free(fx.host[1].announcer);
}

/* A host that confirms three of the eight that it claims keeps these three. */
TEST_WITH(claims_beyond_the_confirmed_ones_are_refuted, set_up, tear_down)
{
    static const uint32_t pins[] = {0, 1, 2};

    (void)state;
    start_host(1, 0, pins, 3);
    hth_world_run_for(fx.world, 2 * S);
    claim(1, PLACES);
    start_host(0, PLACES, NULL, 0);
    wait_served(0, 5, 20 * S);
    for (uint32_t i = 0; i < PLACES; i++)
        assert_int_equal(serves(0, i), i > 2);
}
