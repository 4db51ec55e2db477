/* SPDX-License-Identifier: Apache-2.0 */
/* Places of a host that was told only how many: those it had, then free ones, never another's. */
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
    struct hth_server *server; /* of the other */
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

/* Node 0 is the host itself, 1 another one. */
static void serve_busy(int who, const uint32_t *index, size_t count, uint32_t queue_ms)
{
    struct hth_node *node = who == 0 ? fx.node : fx.other;
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    const struct hth_expert_list list = {index, count};
    opts.network = "net";
    opts.role = HTH_ROLE_HOST;
    opts.info.addr_count = 1;
    opts.info.addr[0] = hth_node_addr(node, PORT);
    opts.info.queue_ms = queue_ms;
    memcpy(opts.info.version, "0.1.0", 6);
    assert_ok(hth_announcer_new(hth_node_env(node), hth_node_dht(node), &opts, &fx.ann[who]));
    assert_ok(hth_announcer_set_layer(fx.ann[who], &fx.grid, &FFN, &list));
    hth_world_run_for(fx.world, 5 * S);
}

static void serve(int who, const uint32_t *index, size_t count)
{
    serve_busy(who, index, count, 0);
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

static void test_a_new_host_takes_one_run(void **state)
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

static void test_checkpoints_come_first(void **state)
{
    uint32_t out[16];
    (void)state;
    put_file("ffn0.2.0.safetensors");
    put_file("ffn0.1.1.safetensors");
    put_file("ffn1.0.0.safetensors");      /* another layer's */
    put_file("ffn0.9.9.safetensors");      /* beyond the grid */
    put_file("ffn0.0.3.safetensors.part"); /* not whole */
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

static void test_what_another_serves_is_left_to_it(void **state)
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

static void test_own_records_of_before_a_crash(void **state)
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

/* Its own old record does not hide another host's, whichever of the two a caller would prefer. */
static void test_a_place_of_both_is_left_to_the_other(void **state)
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
        for (int who = 0; who < 2; who++) {
            hth_announcer_free(fx.ann[who]);
            fx.ann[who] = NULL;
        }
        hth_world_run_for(fx.world, 70 * S);
    }
}

/* ---- claims -------------------------------------------------------------------------------- */

/* Node `who` can dial, and listens where its records say. */
static void open_rpc(int who)
{
    struct hth_node *node = who == 0 ? fx.node : fx.other;
    struct hth_rpc_opts opts = HTH_RPC_OPTS_INIT;
    struct hth_addr addr = hth_node_addr(node, PORT);

    opts.network = "net";
    opts.listen = &addr;
    assert_ok(hth_rpc_new(hth_node_env(node), &opts, &fx.rpc[who]));
}

/* The other really has the first `count` experts of the grid. */
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

/* Asks for `us`; what is free then is chosen in the turn of the answer by a host. */
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

static bool in_the_way(uint32_t want)
{
    return hth_places_in_the_way(hth_node_env(fx.node), fx.dir, 0, fx.path, want);
}

static void test_a_claim_is_in_the_way(void **state)
{
    const uint32_t taken[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    (void)state;
    assert_false(in_the_way(16));
    serve(1, taken, 10);
    assert_false(in_the_way(6)); /* enough is left: nobody has to be asked */
    assert_true(in_the_way(7));
    put_file("ffn0.2.0.safetensors"); /* what this host had */
    assert_true(in_the_way(1));
    assert_false(in_the_way(0));
}

/* Whoever signed it is not there: no address, or nobody at it. */
static void test_who_is_not_there_is_not_believed(void **state)
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

/* A host that answers keeps its places, and it does not take long. */
static void test_who_is_there_is_believed(void **state)
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

/* One that is there, and claims more than it has. */
static void test_who_claims_more_than_it_has_is_not_believed(void **state)
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

static void test_asking_ends_early(void **state)
{
    const uint32_t taken[] = {3};
    (void)state;
    open_rpc(0);
    ask_claimants(S); /* nobody to ask */
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
        cmocka_unit_test_setup_teardown(test_a_new_host_takes_one_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_checkpoints_come_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_another_serves_is_left_to_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_own_records_of_before_a_crash, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_place_of_both_is_left_to_the_other, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_claim_is_in_the_way, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_who_is_not_there_is_not_believed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_who_is_there_is_believed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_who_claims_more_than_it_has_is_not_believed, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_asking_ends_early, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
