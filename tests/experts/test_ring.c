/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ring.c: older copies of checkpoints: which stay, what a roll-back restores, and what full
 * disks and damaged files do to them.
 */
#include "experts/swarm.h"

#include "core/mem.h"
#include "experts/ring.h"
#include "experts/safetensors.h"
#include "support/suite.h"

#include <string.h>

#define PATH   "dir/ffn0.0.safetensors"
#define BEGIN  (INT64_C(1800000000) * HTH_US_PER_S)
#define MINUTE (60 * HTH_US_PER_S)
#define HOUR   (60 * MINUTE)
#define DAY    (24 * HOUR)
#define MAX    65536

static struct hth_world *world;
static struct hth_env *env;
static struct hth_node *node;

static void open_world(void)
{
    const struct hth_node_opts opts = HTH_NODE_OPTS_INIT;

    world = hth_world_new(1, NULL);
    node = hth_world_node(world, "host", &opts);
    hth_world_run_for(world, HTH_US_PER_S);
    env = hth_node_env(node);
}

/* A checkpoint that says when it was made. */
static struct hth_blob *made_at(int64_t us)
{
    struct hth_st_writer *w = hth_st_writer_new();
    struct hth_blob *blob;

    hth_st_add_meta_u64(w, "at", (uint64_t)us);
    assert_ok(hth_st_writer_finish(w, &blob));
    hth_st_writer_free(w);
    return blob;
}

static int64_t at(const char *path)
{
    struct hth_blob *blob;
    struct hth_st_reader *r;
    uint64_t us;

    if (hth_file_read(env, path, MAX, &blob) != HTH_OK)
        return 0;
    assert_ok(hth_st_open(blob->data, blob->size, &r));
    assert_ok(hth_st_meta_u64(r, "at", &us));
    hth_st_close(r);
    hth_blob_unref(blob);
    return (int64_t)us;
}

static enum hth_err save(struct hth_ring *ring, int64_t us, uint64_t disk_bytes)
{
    struct hth_blob *blob = made_at(us);
    enum hth_err err = hth_ring_write(env, PATH, blob, hth_ring_due(ring, us), disk_bytes);

    hth_blob_unref(blob);
    return err;
}

/* Saves every 3 minutes. */
static void save_for(int64_t span_us, uint64_t disk_bytes)
{
    struct hth_ring ring = {0};

    for (int64_t us = 0; us <= span_us; us += 3 * MINUTE)
        assert_ok(save(&ring, BEGIN + us, disk_bytes));
}

static uint32_t copies(void)
{
    uint32_t count = 0;

    for (unsigned i = 0; i < HTH_RING_COPIES + 1; i++) {
        char name[64];
        size_t len;
        snprintf(name, sizeof(name), PATH ".ring%u", i);
        count += hth_node_disk_get(node, name, &len) != NULL;
    }
    return count;
}

TEST(a_copy_of_each_age_is_there)
{
    static const int64_t spans[] = {12 * MINUTE, 27 * MINUTE, 75 * MINUTE, 5 * HOUR,
                                    25 * HOUR,   49 * HOUR,   80 * HOUR};

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(spans); i++) {
        int64_t now = BEGIN + spans[i];
        for (unsigned a = 0; a < HTH_RING_AGES; a++) {
            int64_t age = hth_ring_age_s[a] * HTH_US_PER_S, taken;
            open_world();
            save_for(spans[i], 0);
            int64_t newest = at(PATH);
            assert_true(newest > now - 3 * MINUTE && copies() <= HTH_RING_COPIES);
            if (spans[i] < age) {
                assert_err(HTH_E_NOT_FOUND, hth_ring_back(env, PATH, age, now, MAX, &taken));
                assert_true(taken == BEGIN && at(PATH) == newest);
            } else {
                assert_ok(hth_ring_back(env, PATH, age, now, MAX, &taken));
                assert_true(at(PATH) == taken && at(PATH ".undone") == newest);
                assert_true(now - taken >= age && now - taken <= 2 * age + 10 * MINUTE);
                /* The younger copies are of the damaged time. */
                assert_err(HTH_E_NOT_FOUND, hth_ring_back(env, PATH, DAY * 30, now, MAX, &taken));
                assert_ok(hth_ring_back(env, PATH, 0, now, MAX, &taken));
                assert_true(now - taken >= age);
            }
            hth_world_free(world);
        }
    }
}

/* The clock is set back by a day: copies go on, and the old ones stay in use. */
TEST(clock_that_is_set_back_ends_no_copies)
{
    struct hth_ring ring = {0};
    int64_t taken;

    (void)state;
    open_world();
    save_for(5 * HOUR, 0);
    for (int64_t us = 0; us <= 2 * HOUR; us += 3 * MINUTE)
        assert_ok(save(&ring, BEGIN - DAY + us, 0));
    assert_ok(hth_ring_back(env, PATH, HOUR, BEGIN - DAY + 2 * HOUR, MAX, &taken));
    assert_true(taken >= BEGIN - DAY && taken <= BEGIN - DAY + HOUR);
    assert_true(copies() <= HTH_RING_COPIES);
    hth_world_free(world);
}

TEST(bound_keeps_fewer_ages)
{
    struct hth_blob *one = made_at(BEGIN);
    int64_t taken, now = BEGIN + 80 * HOUR;

    (void)state;
    open_world();
    save_for(80 * HOUR, one->size * 6);
    assert_int_equal(copies(), 4);
    assert_err(HTH_E_NOT_FOUND, hth_ring_back(env, PATH, DAY, now, MAX, &taken));
    assert_ok(hth_ring_back(env, PATH, HOUR, now, MAX, &taken));
    hth_world_free(world);
    open_world();
    save_for(5 * HOUR, 1);
    assert_int_equal(copies(), 0);
    assert_true(at(PATH) > BEGIN + 5 * HOUR - 3 * MINUTE);
    hth_world_free(world);
    hth_blob_unref(one);
}

TEST(full_disk_takes_copies_first)
{
    struct hth_device d = HTH_DEVICE_INIT;
    struct hth_blob *one = made_at(BEGIN);
    struct hth_ring ring = {0};

    (void)state;
    open_world();
    save_for(80 * HOUR, 0);
    assert_true(copies() >= 5);
    hth_node_disk_put(node, PATH, "", 0);
    d.disk_bytes_max = one->size * 4; /* less than the list and the copies */
    hth_node_set_device(node, &d);
    assert_ok(save(&ring, BEGIN + 81 * HOUR, 0));
    assert_true(at(PATH) == BEGIN + 81 * HOUR);
    assert_true(copies() <= 3);
    hth_world_free(world);
    hth_blob_unref(one);
}

TEST(damaged_files_are_refused)
{
    int64_t taken, now = BEGIN + 2 * HOUR, newest;
    struct hth_ring ring = {0};
    size_t len;

    (void)state;
    open_world();
    save_for(2 * HOUR, 0);
    newest = at(PATH);
    for (unsigned i = 0; i < HTH_RING_COPIES + 1; i++) {
        char name[64];
        snprintf(name, sizeof(name), PATH ".ring%u", i);
        if (hth_node_disk_get(node, name, &len) != NULL)
            hth_node_disk_put(node, name, "\x09\0\0\0\0\0\0\0torn", 12);
    }
    assert_err(HTH_E_CORRUPT, hth_ring_back(env, PATH, HOUR, now, MAX, &taken));
    hth_node_disk_put(node, PATH ".ring", "torn", 4);
    assert_err(HTH_E_CORRUPT, hth_ring_back(env, PATH, HOUR, now, MAX, &taken));
    assert_true(at(PATH) == newest);
    assert_null(hth_node_disk_get(node, PATH ".undone", &len));
    assert_ok(save(&ring, now, 0)); /* begins the list anew */
    assert_ok(hth_ring_back(env, PATH, HOUR, now + HOUR, MAX, &taken));
    assert_true(taken == now);
    hth_world_free(world);
}

#define D 16

/* After a roll-back the expert has, bit for bit, the state of that time. */
TEST(host_restarts_with_the_bits_of_an_hour_ago)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_host h = host_init();
    float *x = normals(1, 4 * D), *dy = normals(2, 4 * D);
    struct ask a = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x, .dy = dy};
    struct hth_blob *was[24], *is;
    int64_t asked_us[24], taken;
    struct swarm_caller c;
    struct answer out;
    size_t i;

    (void)state;
    h.opts.step_rows = 1;
    h.opts.checkpoint_dir = "ckpt";
    host_start(&h, w, "host");
    caller_start(&c, w, "caller", NULL);
    for (i = 0; i < HTH_ARRAY_LEN(was); i++) {
        a.key = i + 1;
        asked_us[i] = hth_wall_us(h.env);
        ask_wait(w, &c, &h, &a, &out);
        answer_clear(&out);
        hth_world_run_for(w, 5 * MINUTE);
        assert_ok(hth_expert_snapshot(host_expert(&h, 0), &was[i]));
    }
    hth_node_crash(h.node, HTH_CRASH_RESET);
    hth_node_restart(h.node);
    /* A program does this before it hosts anything. */
    assert_ok(
        hth_ring_back(h.env, "ckpt/ffn0.0.safetensors", HOUR, hth_wall_us(h.env), MAX, &taken));
    hth_node_crash(h.node, HTH_CRASH_RESET);
    hth_node_restart(h.node);
    hth_world_run_for(w, HTH_US_PER_S);
    assert_int_equal(h.restored, 1);
    assert_ok(hth_expert_snapshot(host_expert(&h, 0), &is));
    while (asked_us[i - 1] > taken)
        i--;
    assert_in_range(i, 4, 12);
    assert_int_equal(is->size, was[i - 1]->size);
    assert_memory_equal(is->data, was[i - 1]->data, is->size);
    hth_blob_unref(is);
    for (i = 0; i < HTH_ARRAY_LEN(was); i++)
        hth_blob_unref(was[i]);
    hth_aligned_free(x);
    hth_aligned_free(dy);
    caller_stop(&c);
    hth_world_free(w);
}
