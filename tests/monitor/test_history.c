/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_history.c: rows of a day and of 90 days stay where they belong, survive a restart and a
 * kill, and a damaged file costs its own rows alone.
 */
#include "monitor/history.h"

#include "core/mem.h"
#include "sim/world.h"
#include "support/suite.h"

#include <math.h>
#include <stdio.h>

#define S   HTH_US_PER_S
#define DIR "history"

static struct {
    struct hth_world *world;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_history *h;
    uint32_t t0; /* a full day */
} fx;

static int set_up(void **state)
{
    (void)state;
    memset(&fx, 0, sizeof(fx));
    fx.world = hth_world_new(7, NULL);
    fx.node = hth_world_node(fx.world, "monitor", NULL);
    fx.env = hth_node_env(fx.node);
    fx.t0 = (uint32_t)(hth_wall_us(fx.env) / S) / 86400 * 86400;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    hth_history_free(fx.h);
    hth_world_free(fx.world);
    return 0;
}

static struct hth_history_row row_at(uint32_t t)
{
    return (struct hth_history_row){.t = t,
                                    .trainers = 3,
                                    .hosts = 4,
                                    .served = t % 97,
                                    .step = t / 10,
                                    .samples = t,
                                    .loss = (float)(t % 300),
                                    .samples_per_s = NAN,
                                    .rows_per_s = 2};
}

static void add(uint32_t t)
{
    const struct hth_history_row row = row_at(t);
    hth_history_add(fx.h, &row);
}

static void settle(void)
{
    hth_world_run_for(fx.world, 60 * S);
}

static void check(uint32_t t)
{
    const struct hth_history_row *row = hth_history_at(fx.h, t), want = row_at(t);
    assert_non_null(row);
    assert_int_equal(row->t, want.t);
    assert_int_equal(row->served, want.served);
    assert_int_equal(row->step, want.step);
    assert_int_equal(row->samples, want.samples);
    assert_true(row->loss == want.loss && isnan(row->samples_per_s));
}

static void reopen(void)
{
    settle();
    hth_history_free(fx.h);
    fx.h = hth_history_new(fx.env, DIR, "run");
}

/* ---- rows ----------------------------------------------------------------------------------- */

TEST_WITH(rows_are_found_by_time, set_up, tear_down)
{
    (void)state;
    fx.h = hth_history_new(fx.env, NULL, "run");
    assert_null(hth_history_last(fx.h, fx.t0));
    assert_int_equal(hth_history_began(fx.h), 0);
    for (uint32_t t = fx.t0; t < fx.t0 + 90000; t += 10)
        add(t);
    check(fx.t0 + 89990);
    check(fx.t0 + 89990 - 86390);
    assert_null(hth_history_at(fx.h, fx.t0 + 3590)); /* a day ago, in the same place */
    assert_int_equal(hth_history_last(fx.h, fx.t0 + 95000)->t, fx.t0 + 89990);
    assert_int_equal(hth_history_last(fx.h, fx.t0 + 50007)->t, fx.t0 + 50000);
    assert_int_equal(hth_history_began(fx.h), fx.t0);
    /* Out of order, and within a slot. */
    add(fx.t0 + 50000);
    const struct hth_history_row odd = {.t = fx.t0 + 50017, .step = 9};
    hth_history_add(fx.h, &odd);
    assert_int_equal(hth_history_at(fx.h, fx.t0 + 50012)->step, 9);
    assert_int_equal(hth_history_at(fx.h, fx.t0 + 50012)->t, fx.t0 + 50010);
}

/* Against the rows that the header promises, chosen one by one. */
TEST_WITH(a_list_is_thinned_by_age, set_up, tear_down)
{
    static struct hth_history_row list[HTH_HISTORY_LIST_MAX];
    uint32_t days = HTH_TEST_FEW ? 12 : 91, end = fx.t0 + days * 86400 + 40;
    (void)state;
    fx.h = hth_history_new(fx.env, NULL, "run");
    for (uint32_t t = fx.t0; t < end; t += 10)
        if (t < end - 9000 || t > end - 8000) /* a gap */
            add(t);
    size_t n = hth_history_list(fx.h, end - 1, list), at = 0;
    uint32_t old = 0, every = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(i == 0 || list[i].t > list[i - 1].t);
        old += list[i].t < end - 86400 - 300;
        if (old == 2 && every == 0)
            every = list[i].t - list[i - 1].t;
    }
    assert_in_range(old, HTH_HISTORY_OLD_MAX / 2, HTH_HISTORY_OLD_MAX);
    assert_int_equal(every % 300, 0);
    /* A coarse row has the mean of losses and the last of counts. */
    assert_true(list[0].loss == 145);
    assert_int_equal(list[0].samples, list[0].t + 290);
    assert_true(isnan(list[0].samples_per_s) && list[0].rows_per_s == 2);
    while (list[at].t < end - 86400)
        at++;
    for (uint32_t t = list[at].t; t < end; t += 10) {
        if ((t < end - 7200 && t % 60 != 0) || (t >= end - 9000 && t <= end - 8000))
            continue;
        assert_int_equal(list[at].t, t);
        check(list[at++].t);
    }
    assert_int_equal(at, n);
}

/* The rows of a monitor that runs for a moment each half hour: all of them lie in every sixth slot,
 * so that leaving out every other slot leaves out none. */
TEST_WITH(rows_in_few_slots_are_thinned_too, set_up, tear_down)
{
    static struct hth_history_row list[HTH_HISTORY_LIST_MAX + 1];
    uint32_t end = fx.t0 + 89 * 86400, old = 0;
    (void)state;
    fx.h = hth_history_new(fx.env, NULL, "run");
    for (uint32_t t = fx.t0; t < end; t += 1800)
        add(t);
    size_t n = hth_history_list(fx.h, end, list);
    for (size_t i = 0; i < n; i++)
        old += list[i].t < end - 86400;
    assert_in_range(old, HTH_HISTORY_OLD_MAX / 4, HTH_HISTORY_OLD_MAX);
    assert_int_equal(list[HTH_HISTORY_LIST_MAX].t, 0);
}

/* ---- files ---------------------------------------------------------------------------------- */

TEST_WITH(rows_survive_a_restart, set_up, tear_down)
{
    (void)state;
    fx.h = hth_history_new(fx.env, DIR, "run");
    for (uint32_t t = fx.t0; t < fx.t0 + 100000; t += 10)
        add(t);
    reopen();
    for (uint32_t t = fx.t0 + 100000 - 86400; t < fx.t0 + 100000; t += 10)
        check(t);
    assert_ok(hth_history_err(fx.h));
    assert_int_equal(hth_history_began(fx.h), fx.t0); /* only the coarse ring has it */
}

/* The process ends between any two turns: nothing is freed, so nothing waits to be written. */
TEST_WITH(a_kill_loses_ten_seconds, set_up, tear_down)
{
    (void)state;
    fx.h = hth_history_new(fx.env, DIR, "run");
    for (uint32_t t = fx.t0; t <= fx.t0 + 3690; t += 10) {
        add(t);
        hth_world_run_for(fx.world, S);
    }
    struct hth_history *dead = fx.h;
    fx.h = hth_history_new(fx.env, DIR, "run");
    for (uint32_t t = fx.t0; t <= fx.t0 + 3690; t += 10)
        check(t);
    static struct hth_history_row list[HTH_HISTORY_LIST_MAX];
    assert_int_equal(hth_history_list(fx.h, fx.t0 + 3690 + 86700, list), 13); /* each 5 minutes */
    assert_int_equal(list[12].samples, fx.t0 + 3690);
    hth_history_free(dead);
}

TEST_WITH(a_damaged_file_costs_its_own_rows, set_up, tear_down)
{
    size_t len;
    char path[40];
    (void)state;
    fx.h = hth_history_new(fx.env, DIR, "run");
    for (uint32_t t = fx.t0; t < fx.t0 + 3 * 3600; t += 10)
        add(t);
    settle();
    hth_history_free(fx.h);
    uint32_t hour = fx.t0 / 3600;
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), DIR "/10s-%02u", (hour + i) % 25);
        const uint8_t *data = hth_node_disk_get(fx.node, path, &len);
        assert_non_null(data);
        uint8_t *copy = hth_try_alloc(len);
        assert_non_null(copy);
        memcpy(copy, data, len);
        if (i == 0)
            copy[len / 2] ^= 1;
        hth_node_disk_put(fx.node, path, copy, i == 1 ? len - 100 : len);
        hth_free(copy);
    }
    fx.h = hth_history_new(fx.env, DIR, "run");
    assert_null(hth_history_at(fx.h, fx.t0 + 1800));
    assert_null(hth_history_at(fx.h, fx.t0 + 3600 + 1800));
    check(fx.t0 + 7200 + 1800);
    /* Begun anew: what is added goes to the same files. */
    add(fx.t0 + 1800);
    reopen();
    check(fx.t0 + 1800);
}

TEST_WITH(another_runs_files_are_not_taken, set_up, tear_down)
{
    (void)state;
    fx.h = hth_history_new(fx.env, DIR, "run");
    add(fx.t0);
    settle();
    hth_history_free(fx.h);
    fx.h = hth_history_new(fx.env, DIR, "other");
    assert_null(hth_history_at(fx.h, fx.t0));
    add(fx.t0 + 10);
    settle();
    hth_history_free(fx.h);
    fx.h = hth_history_new(fx.env, DIR, "other");
    assert_null(hth_history_at(fx.h, fx.t0));
    check(fx.t0 + 10);
}

TEST_WITH(a_full_disk_is_named_and_costs_no_rows, set_up, tear_down)
{
    struct hth_device device = HTH_DEVICE_INIT;
    const struct hth_node_opts opts = {.device = &device};
    (void)state;
    device.disk_bytes_max = 100;
    struct hth_node *small = hth_world_node(fx.world, "small", &opts);
    fx.h = hth_history_new(hth_node_env(small), DIR, "run");
    for (uint32_t i = 0; i < 3; i++)
        add(fx.t0 + 10 * i);
    settle();
    assert_err(HTH_E_DISK_FULL, hth_history_err(fx.h));
    check(fx.t0);
}

TEST_WITH(files_are_judged, set_up, tear_down)
{
    static struct hth_history_file file, back;
    static uint8_t bytes[HTH_HISTORY_BYTES_MAX + 1];
    (void)state;
    file = (struct hth_history_file){.run = 5, .number = fx.t0 / 3600, .count = 2};
    file.row[0] = row_at(fx.t0);
    file.row[1] = row_at(fx.t0 + 10);
    size_t len = hth_history_write(&file, bytes);
    assert_ok(hth_history_read(bytes, len, &back));
    assert_int_equal(back.row[1].samples, fx.t0 + 10);
    for (size_t cut = 0; cut < len; cut++)
        assert_err(HTH_E_TRUNCATED, hth_history_read(bytes, cut, &back));
    assert_err(HTH_E_MALFORMED, hth_history_read(bytes, len + 1, &back));
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= 0x10;
        assert_true(hth_history_read(bytes, len, &back) != HTH_OK);
        bytes[i] ^= 0x10;
    }
    static const uint32_t bad[] = {10, 5, 3600, 0}; /* repeated, off the grid, next hour, none */
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        file.row[0].t = bad[i] == 0 ? 0 : fx.t0 + bad[i];
        len = hth_history_write(&file, bytes);
        assert_err(HTH_E_RANGE, hth_history_read(bytes, len, &back));
    }
}
