/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_status_trainers.c: records with extreme values from strangers give valid JSON of bounded
 * size.
 */
#include "monitor/status_trainers.h"

#include "averaging/roster.h"
#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

#include <stdio.h>
#include <unistd.h>

#define STRANGERS 20
#define GROUP     0xabcdef01u

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static struct hth_roster *add_peer(struct hth_world *world, uint32_t i, uint32_t flags)
{
    struct hth_roster_opts o = HTH_ROSTER_OPTS_INIT;
    struct hth_node_opts opts = HTH_NODE_OPTS_INIT;
    struct hth_roster *roster;
    char name[16];
    snprintf(name, sizeof(name), "n%u", i);
    struct hth_node *node = hth_world_node(world, name, &opts);
    o.network = "net";
    o.schema = 7;
    o.addr.family = 4;
    o.addr.port = 1;
    assert_ok(hth_roster_new(hth_node_env(node), hth_node_dht(node), &o, &roster));
    hth_roster_set_flags(roster, flags);
    return roster;
}

static struct hth_roster *add_stranger(struct hth_world *world, uint32_t i)
{
    static const struct hth_roster_last last = {.group = GROUP,
                                                .members = HTH_AVG_MEMBERS_MAX,
                                                .drops = HTH_AVG_MEMBERS_MAX,
                                                .reason = UINT32_MAX,
                                                .wait_ms = UINT32_MAX,
                                                .reduce_ms = UINT32_MAX,
                                                .bytes = UINT64_MAX,
                                                .change = 3,
                                                .norm = 4,
                                                .weight_fraction = 0.75};
    struct hth_roster *roster = add_peer(world, i, 0);
    hth_roster_set_last(roster, &last);
    return roster;
}

static void check_one(const json_t *trainer)
{
    static const char *const times[] = {"wait_ms", "reduce_ms"};
    const json_t *last = json_object_get(trainer, "last"), *peers = json_object_get(last, "peers");
    assert_string_equal(json_string_value(json_object_get(last, "group")), "abcdef01");
    assert_string_equal(json_string_value(json_object_get(last, "reason")), "UNKNOWN");
    assert_true(number(last, "members") == HTH_AVG_MEMBERS_MAX);
    assert_true(number(last, "drops") == HTH_AVG_MEMBERS_MAX);
    for (size_t i = 0; i < HTH_ARRAY_LEN(times); i++)
        assert_true(number(last, times[i]) == UINT32_MAX);
    assert_true(number(last, "bytes") == (double)INT64_MAX);
    assert_true(number(last, "change") == 3 && number(last, "norm") == 4);
    assert_true(number(last, "weight_fraction") == 0.75);
    assert_int_equal(json_array_size(peers), HTH_AVG_STATUS_MEMBERS);
    const char *id = json_string_value(json_object_get(trainer, "id"));
    for (size_t i = 0; i < json_array_size(peers); i++) {
        const char *mate = json_string_value(json_array_get(peers, i));
        assert_int_not_equal(strncmp(mate, id, strlen(mate)), 0);
    }
}

/* Each trainer has exactly the fields that mean the same in every mode. A record's round number is
 * not among them, because only numbered sweeps count it. */
static void check_fields(const json_t *trainer)
{
    static const char *const fields[] = {"id",      "has_state", "helper", "client",        "step",
                                         "samples", "last",      "grid",   "samples_per_s", "cell"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(fields); i++)
        assert_non_null(json_object_get(trainer, fields[i]));
    assert_int_equal(json_object_size(trainer), HTH_ARRAY_LEN(fields));
}

TEST(extreme_records_give_valid_bounded_json)
{
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_world *world = hth_world_new(1, &opts);
    struct hth_node_opts node_opts = HTH_NODE_OPTS_INIT;
    struct hth_roster *roster[STRANGERS], *watcher;
    (void)state;
    for (uint32_t i = 0; i < STRANGERS; i++)
        roster[i] = add_stranger(world, i);
    struct hth_node *node = hth_world_node(world, "watcher", &node_opts);
    assert_ok(hth_status_trainers_new(hth_node_env(node), hth_node_dht(node), "net", &watcher));
    hth_world_run_for(world, 10 * HTH_US_PER_S);
    json_t *all = hth_status_trainers_json(watcher);
    assert_int_equal(json_array_size(all), STRANGERS);
    for (size_t i = 0; i < STRANGERS; i++)
        check_one(json_array_get(all, i));
    check_fields(json_array_get(all, 0));
    json_decref(all);
    for (uint32_t i = 0; i < STRANGERS; i++)
        hth_roster_free(roster[i]);
    hth_roster_free(watcher);
    hth_world_free(world);
}

/* The printed table of a roster; heap string. */
static char *printed(const struct hth_roster *roster)
{
    FILE *file = tmpfile();
    char *text = hth_calloc(1, 16384);
    assert_non_null(file);
    fflush(stdout);
    int usual = dup(STDOUT_FILENO);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
    hth_status_trainers_print(roster);
    fflush(stdout);
    assert_true(dup2(usual, STDOUT_FILENO) >= 0);
    close(usual);
    rewind(file);
    assert_true(fread(text, 1, 16383, file) > 0);
    fclose(file);
    return text;
}

/* A helper is not counted as a trainer; a helper and a newcomer that fetches its state have
 * none. */
TEST(flags_of_a_record_give_role_and_state)
{
    static const struct {
        uint32_t flags;
        bool has_state, helper, client;
        const char *does;
    } cases[] = {
        {0, true, false, false, " training "},
        {HTH_ROSTER_CLIENT, true, false, true, " client "},
        {HTH_ROSTER_BOOTSTRAPPING, false, false, false, " fetching "},
        {HTH_ROSTER_HELPER, false, true, false, " helper "},
    };
    enum { COUNT = HTH_ARRAY_LEN(cases) };
    struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
    struct hth_world *world = hth_world_new(1, &opts);
    struct hth_roster *roster[COUNT], *watcher;
    (void)state;
    for (uint32_t i = 0; i < COUNT; i++)
        roster[i] = add_peer(world, i, cases[i].flags);
    struct hth_node *node = hth_world_node(world, "watcher", NULL);
    assert_ok(hth_status_trainers_new(hth_node_env(node), hth_node_dht(node), "net", &watcher));
    hth_world_run_for(world, 10 * HTH_US_PER_S);
    json_t *all = hth_status_trainers_json(watcher);
    char *text = printed(watcher);
    assert_int_equal(json_array_size(all), COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        const json_t *peer = json_array_get(all, i);
        bool helper = json_is_true(json_object_get(peer, "helper"));
        bool client = json_is_true(json_object_get(peer, "client"));
        bool has_state = json_is_true(json_object_get(peer, "has_state"));
        size_t c = 0;
        while (c < COUNT && (cases[c].helper != helper || cases[c].client != client ||
                             cases[c].has_state != has_state))
            c++;
        assert_true(c < COUNT);
        assert_non_null(strstr(text, cases[i].does));
    }
    assert_non_null(strstr(text, "trainers: 3, helpers: 1"));
    hth_free(text);
    json_decref(all);
    for (uint32_t i = 0; i < COUNT; i++)
        hth_roster_free(roster[i]);
    hth_roster_free(watcher);
    hth_world_free(world);
}
