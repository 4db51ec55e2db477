/* SPDX-License-Identifier: Apache-2.0 */
/* test_directory_why.c: a trainer without experts is told why. */
#include "dht/directory.h"
#include "sim/world.h"
#include "support/suite.h"

#define LIFE_US (600 * HTH_US_PER_S)

static struct hth_world *world;
static struct hth_directory *dir;

static void open_directory(void)
{
    static const char *const layers[] = {"ffn0.4.4", "ffn1.4.4"};
    const struct hth_directory_opts defaults = HTH_DIRECTORY_OPTS_INIT;
    struct hth_directory_opts opts = defaults;
    struct hth_grid grid;
    uint32_t layer;
    world = hth_world_new(3, NULL);
    struct hth_node *node = hth_world_node(world, "trainer", NULL);
    opts.network = "fashion";
    assert_ok(hth_directory_new(hth_node_env(node), hth_node_dht(node), &opts, &dir));
    for (size_t i = 0; i < HTH_ARRAY_LEN(layers); i++) {
        assert_ok(hth_grid_parse(layers[i], strlen(layers[i]), &grid));
        assert_ok(hth_directory_open_layer(dir, &grid, NULL, &layer));
    }
}

static struct hth_peer_id add_host(uint8_t number)
{
    static const uint32_t index[] = {1, 2};
    const struct hth_expert_list experts = {index, 2};
    struct hth_peer_id id = {{number}};
    struct hth_host_info info = {.addr_count = 1};
    info.addr[0] = (struct hth_addr){.family = 4, .ip = {10, 0, 0, number}, .port = 4700};
    assert_ok(hth_directory_load(dir, 0, &id, &info, &experts, LIFE_US));
    return id;
}

static void must_say(const char *text)
{
    char said[HTH_DIR_WHY_MAX];
    assert_string_equal(hth_directory_why(dir, said), text);
}

TEST(the_cause_of_waiting_is_named)
{
    struct hth_peer_id id[6];
    (void)state;
    open_directory();
    must_say("waiting for experts of run 'fashion': no host is announced yet");
    id[0] = add_host(1);
    must_say("waiting for experts of run 'fashion': no live host of 1 serves ffn1");
    hth_directory_mark_dead(dir, &id[0], LIFE_US);
    must_say("waiting for experts of run 'fashion': 1 host is announced, none can be reached: "
             "10.0.0.1:4700");
    for (uint8_t i = 1; i < 6; i++) {
        id[i] = add_host((uint8_t)(i + 1));
        hth_directory_mark_dead(dir, &id[i], LIFE_US);
    }
    must_say("waiting for experts of run 'fashion': 6 hosts are announced, none can be reached: "
             "10.0.0.1:4700, 10.0.0.2:4700, 10.0.0.3:4700, 10.0.0.4:4700 and 2 more");
    hth_directory_mark_alive(dir, &id[3]);
    must_say("waiting for experts of run 'fashion': no live host of 6 serves ffn1");
    hth_directory_free(dir);
    hth_world_free(world);
}
