/* SPDX-License-Identifier: Apache-2.0 */
/* Places of a host that was told only how many: those it had, then free ones, never another's. */
#include "support/test.h"

#include "app/places.h"
#include "core/mem.h"
#include "dht/directory.h"
#include "sim/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define S HTH_US_PER_S

static struct {
    struct hth_world *world;
    struct hth_node *node, *other;
    struct hth_directory *dir;
    struct hth_announcer *ann[2];
    struct hth_grid grid;
    char path[64];
    char *files[8];
    size_t file_count;
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
static void serve(int who, const uint32_t *index, size_t count)
{
    struct hth_node *node = who == 0 ? fx.node : fx.other;
    struct hth_announcer_opts opts = HTH_ANNOUNCER_OPTS_INIT;
    const struct hth_expert_list list = {index, count};
    opts.network = "net";
    opts.role = HTH_ROLE_HOST;
    opts.info.addr_count = 1;
    opts.info.addr[0] = hth_node_addr(node, 4000);
    memcpy(opts.info.version, "0.1.0", 6);
    assert_ok(hth_announcer_new(hth_node_env(node), hth_node_dht(node), &opts, &fx.ann[who]));
    assert_ok(hth_announcer_set_layer(fx.ann[who], &fx.grid, &FFN, &list));
    hth_world_run_for(fx.world, 5 * S);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_new_host_takes_one_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_checkpoints_come_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_another_serves_is_left_to_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_own_records_of_before_a_crash, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
