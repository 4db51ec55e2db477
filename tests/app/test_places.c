/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_places.c: a host with --experts N takes the places it had, then free ones, and never one
 * that another host serves; claims count only if their host confirms them.
 */
#include "support/test.h"

#include "app/claims.h"
#include "app/places.h"
#include "core/mem.h"
#include "dht/directory.h"
#include "experts/server.h"
#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define S    HTH_US_PER_S
#define PORT 4000

static struct {
    struct hth_world *world;
    struct hth_node *node, *other;
    struct hth_directory *dir;
    struct hth_announcer *ann[2];
    struct hth_grid grid;
    char path[64];
    char *files[8];
    size_t file_count;
    struct hth_rpc *rpc[2];
    struct hth_server *server; /* of node 1 */
    struct hth_claims *claims;
    uint32_t done;
} fx;

static const struct hth_layer_shape FFN = {.kind = "ffn", .d = 8, .block_rows = 1};

static int set_up(void **state)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_directory_opts dir = HTH_DIRECTORY_OPTS_INIT;
    uint32_t layer;
    (void)state;
    memset(&fx, 0, sizeof(fx));
    fx.world = hth_world_new(3, &opts);
    fx.node = hth_world_node(fx.world, "host", NULL);
    fx.other = hth_world_node(fx.world, "other", NULL);
    assert_ok(hth_grid_parse("ffn0.4.4", 8, &fx.grid));
    dir.network = "net";
    assert_ok(hth_directory_new(hth_node_env(fx.node), hth_node_dht(fx.node), &dir, &fx.dir));
    assert_ok(hth_directory_open_layer(fx.dir, &fx.grid, NULL, &layer));
    int at = snprintf(fx.path, sizeof(fx.path), "/tmp/hearth-places-");
    memset(fx.path + at, 'X', 6); /* the part that mkdtemp chooses */
    return mkdtemp(fx.path) != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < fx.file_count; i++) {
        unlink(fx.files[i]);
        hth_free(fx.files[i]);
    }
    rmdir(fx.path);
    hth_claims_free(fx.claims);
    hth_server_free(fx.server);
    hth_rpc_free(fx.rpc[0]);
    hth_rpc_free(fx.rpc[1]);
    hth_directory_free(fx.dir);
    hth_announcer_free(fx.ann[0]);
    hth_announcer_free(fx.ann[1]);
    hth_world_free(fx.world);
    return 0;
}

static void put_file(const char *name)
{
    char *path = hth_asprintf("%s/%s", fx.path, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    fx.files[fx.file_count++] = path;
}

/* Announces experts: of node 0, the host under test, or of node 1, another host. */
static void serve_busy(int which, const uint32_t *index, size_t count, uint32_t queue_ms)
{
    struct hth_node *node = which == 0 ? fx.node : fx.other;
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    const struct hth_expert_list list = {index, count};
    opts.network = "net";
    opts.role = HTH_ROLE_HOST;
    opts.info.addr_count = 1;
    opts.info.addr[0] = hth_node_addr(node, PORT);
    opts.info.queue_ms = queue_ms;
    memcpy(opts.info.version, "0.1.0", 6);
    assert_ok(hth_announcer_new(hth_node_env(node), hth_node_dht(node), &opts, &fx.ann[which]));
    assert_ok(hth_announcer_set_layer(fx.ann[which], &fx.grid, &FFN, &list));
    hth_world_run_for(fx.world, 5 * S);
}

static void serve(int which, const uint32_t *index, size_t count)
{
    serve_busy(which, index, count, 0);
}

static size_t choose(uint32_t want, uint32_t *out)
{
    return hth_places_choose(hth_node_env(fx.node), fx.dir, 0, fx.path, want, out);
}

static bool has(const uint32_t *out, size_t count, uint32_t index)
{
    for (size_t i = 0; i < count; i++) {
        if (out[i] == index)
            return true;
    }
    return false;
}

static void new_host_takes_adjacent_free_places(void **state)
{
    uint32_t out[16];
    (void)state;
    assert_int_equal(choose(4, out), 4);
    for (uint32_t i = 1; i < 4; i++)
        assert_int_equal(out[i], out[0] + i);
    assert_int_equal(choose(16, out), 16);
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(out[i], i);
}

static void host_takes_places_of_its_checkpoints_first(void **state)
{
    uint32_t out[16];
    (void)state;
    put_file("ffn0.2.0.safetensors");
    put_file("ffn0.1.1.safetensors");
    put_file("ffn1.0.0.safetensors");      /* another layer's */
    put_file("ffn0.9.9.safetensors");      /* beyond the grid */
    put_file("ffn0.0.3.safetensors.part"); /* a write that was cut short */
    put_file(".safetensors");
    assert_int_equal(choose(2, out), 2);
    assert_int_equal(out[0], 5);
    assert_int_equal(out[1], 8);
    assert_int_equal(choose(1, out), 1);
    assert_int_equal(out[0], 5);
    for (uint32_t want = 3; want <= 16; want++) {
        assert_int_equal(choose(want, out), want);
        assert_true(has(out, want, 5) && has(out, want, 8));
        for (uint32_t i = 1; i < want; i++)
            assert_true(out[i] > out[i - 1]);
    }
}

static void host_leaves_places_that_others_serve(void **state)
{
    uint32_t out[16];
    const uint32_t taken[] = {8, 9};
    (void)state;
    put_file("ffn0.2.0.safetensors");
    put_file("ffn0.1.1.safetensors");
    serve(1, taken, 2);
    assert_int_equal(choose(16, out), 14);
    assert_true(has(out, 14, 5));
    assert_false(has(out, 14, 8) || has(out, 14, 9));
}

static void host_takes_places_of_its_own_records(void **state)
{
    uint32_t out[16], all[16];
    const uint32_t mine[] = {3, 7, 11};
    (void)state;
    serve(0, mine, 3);
    assert_int_equal(choose(3, out), 3);
    assert_memory_equal(out, mine, sizeof(mine));
    for (uint32_t i = 0; i < 16; i++)
        all[i] = i;
    serve(1, all, 16);
    assert_int_equal(choose(3, out), 0);
}

/* A host's own old record does not hide another host's, whichever has the shorter queue. */
static void host_leaves_places_that_both_claim(void **state)
{
    uint32_t out[16];
    const uint32_t mine[] = {3, 7}, theirs[] = {7, 8};
    (void)state;
    for (uint32_t busy = 0; busy < 2; busy++) {
        serve_busy(0, mine, 2, 100 * busy);
        serve_busy(1, theirs, 2, 100 * (1 - busy));
        assert_int_equal(choose(1, out), 1);
        assert_int_equal(out[0], 3);
        assert_int_equal(choose(16, out), 14);
        assert_false(has(out, 14, 7) || has(out, 14, 8));
        for (int i = 0; i < 2; i++) {
            hth_announcer_free(fx.ann[i]);
            fx.ann[i] = NULL;
        }
        hth_world_run_for(fx.world, 70 * S);
    }
}

/* ---- claims -------------------------------------------------------------------------------- */

/* Opens an endpoint on a node, listening at the address of its records. */
static void open_rpc(int which)
{
    struct hth_node *node = which == 0 ? fx.node : fx.other;
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    struct hth_addr addr = hth_node_addr(node, PORT);

    opts.network = "net";
    opts.listen = &addr;
    assert_ok(hth_rpc_new(hth_node_env(node), &opts, &fx.rpc[which]));
}

/* Makes node 1 serve the first `count` experts of the grid. */
static void host_experts(uint32_t count)
{
    struct hth_server_opts opts = HTH_SERVER_OPTS_INIT;

    assert_ok(hth_server_new(hth_node_env(fx.other), fx.rpc[1], &opts, &fx.server));
    for (uint32_t i = 0; i < count; i++) {
        struct hth_expert_opts expert = HTH_EXPERT_OPTS_INIT;

        expert.kind = "nop";
        expert.shape.d = 8;
        expert.backend = hth_backend_ref();
        expert.uid = (struct hth_uid){.name = "ffn0", .ncoord = 2, .coord = {i / 4, i % 4}};
        assert_ok(hth_server_add(fx.server, &expert));
    }
    hth_world_run_for(fx.world, S);
}

static void on_claims(void *arg)
{
    (void)arg;
    fx.done++;
}

/* Asks the claimants, and waits at most `us` for the end. */
static void ask_claimants(int64_t us)
{
    hth_claims_free(fx.claims);
    fx.done = 0;
    assert_ok(
        hth_claims_ask(hth_node_env(fx.node), fx.rpc[0], fx.dir, on_claims, NULL, &fx.claims));
    assert_int_equal(fx.done, 0);
    for (int64_t at = 0; fx.done == 0 && at < us; at += 10 * HTH_US_PER_MS)
        hth_world_run_for(fx.world, 10 * HTH_US_PER_MS);
    assert_int_equal(fx.done, 1);
}

static bool contested(uint32_t want)
{
    return hth_places_contested(hth_node_env(fx.node), fx.dir, 0, fx.path, want);
}

static void claim_on_a_wanted_place_is_contested(void **state)
{
    const uint32_t taken[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    (void)state;
    assert_false(contested(16));
    serve(1, taken, 10);
    assert_false(contested(6)); /* enough free places are left */
    assert_true(contested(7));
    put_file("ffn0.2.0.safetensors"); /* a place that this host had */
    assert_true(contested(1));
    assert_false(contested(0));
}

/* No endpoint listens at the address in the record. */
static void claim_without_answer_is_dropped(void **state)
{
    uint32_t all[16], out[16];
    (void)state;
    for (uint32_t i = 0; i < 16; i++)
        all[i] = i;
    open_rpc(0);
    put_file("ffn0.1.1.safetensors");
    serve(1, all, 16);
    assert_int_equal(choose(4, out), 0);
    ask_claimants(11 * S);
    assert_int_equal(choose(4, out), 4);
    assert_true(has(out, 4, 5));
    assert_int_equal(choose(16, out), 16);
}

/* A host that confirms keeps its places, and the answer ends the wait. */
static void confirmed_claim_keeps_its_places(void **state)
{
    uint32_t taken[10], out[16];
    (void)state;
    for (uint32_t i = 0; i < 10; i++)
        taken[i] = i;
    open_rpc(0);
    open_rpc(1);
    host_experts(10);
    serve(1, taken, 10);
    ask_claimants(2 * S);
    assert_int_equal(choose(16, out), 6);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(out[i], 10 + i);
}

static void claim_of_more_experts_than_hosted_is_dropped(void **state)
{
    uint32_t all[16], out[16];
    (void)state;
    for (uint32_t i = 0; i < 16; i++)
        all[i] = i;
    open_rpc(0);
    open_rpc(1);
    host_experts(10);
    serve(1, all, 16);
    ask_claimants(2 * S);
    assert_int_equal(choose(16, out), 16);
}

static void asking_ends_at_once_without_claimants_and_when_freed(void **state)
{
    const uint32_t taken[] = {3};
    (void)state;
    open_rpc(0);
    ask_claimants(S); /* the directory is empty */
    serve(1, taken, 1);
    hth_claims_free(fx.claims);
    assert_ok(
        hth_claims_ask(hth_node_env(fx.node), fx.rpc[0], fx.dir, on_claims, NULL, &fx.claims));
    hth_claims_free(fx.claims);
    fx.claims = NULL;
    hth_world_run_for(fx.world, 20 * S);
    assert_int_equal(fx.done, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(new_host_takes_adjacent_free_places, set_up, tear_down),
        cmocka_unit_test_setup_teardown(host_takes_places_of_its_checkpoints_first, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(host_leaves_places_that_others_serve, set_up, tear_down),
        cmocka_unit_test_setup_teardown(host_takes_places_of_its_own_records, set_up, tear_down),
        cmocka_unit_test_setup_teardown(host_leaves_places_that_both_claim, set_up, tear_down),
        cmocka_unit_test_setup_teardown(claim_on_a_wanted_place_is_contested, set_up, tear_down),
        cmocka_unit_test_setup_teardown(claim_without_answer_is_dropped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(confirmed_claim_keeps_its_places, set_up, tear_down),
        cmocka_unit_test_setup_teardown(claim_of_more_experts_than_hosted_is_dropped, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(asking_ends_at_once_without_claimants_and_when_freed,
                                        set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
