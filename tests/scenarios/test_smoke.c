/* SPDX-License-Identifier: Apache-2.0 */
/* test_smoke.c: small swarms under faults recover, replay from their seed, and move real bytes. */
#include "scenarios/echo.h"
#include "scenarios/smoke.h"
#include "support/suite.h"

TEST(swarm_recovers_after_faults)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct hth_smoke_opts opts = HTH_SMOKE_OPTS_INIT;
        struct hth_smoke_report r;
        char line[HTH_SMOKE_LINE_MAX];
        opts.peers = 48; /* one whole neighbourhood and half a one */
        opts.seed = seed;
        assert_ok(hth_smoke_run(&opts, &r));
        if (!r.pass)
            fail_msg("%s", hth_smoke_line(&r, 0, 0, line));
        assert_true(r.crashes > 10);
        assert_true(r.partitions > 1);
        assert_true(r.calls_ok > 1500);
    }
}

TEST(same_seed_gives_the_same_line)
{
    (void)state;
    struct hth_smoke_opts opts = HTH_SMOKE_OPTS_INIT;
    struct hth_smoke_report a, b, c;
    char line_a[HTH_SMOKE_LINE_MAX], line_b[HTH_SMOKE_LINE_MAX];
    opts.peers = 20;
    opts.seed = 77;
    assert_ok(hth_smoke_run(&opts, &a));
    assert_ok(hth_smoke_run(&opts, &b));
    opts.seed = 78;
    assert_ok(hth_smoke_run(&opts, &c));
    assert_string_equal(hth_smoke_line(&a, 0, 0, line_a), hth_smoke_line(&b, 0, 0, line_b));
    assert_true(a.hash != c.hash);
    assert_memory_equal(line_a, "PASS seed=77 hash=", 18);
    assert_non_null(strstr(hth_smoke_line(&a, 2000000, 1048576, line_a), " memory_mib=1"));
}

/* A peer that would be alone joins the neighbourhood before; two peers of a pair find each other
 * under every seed. */
TEST(neighbourhoods_have_two_peers_or_more)
{
    static const struct {
        uint32_t index, count, hood, number, first, size;
    } rows[] = {
        {31, 33, 32, 0, 0, 33},  {32, 33, 32, 0, 0, 33},  {32, 65, 32, 1, 32, 33},
        {64, 65, 32, 1, 32, 33}, {32, 34, 32, 1, 32, 2},  {0, 34, 32, 0, 0, 32},
        {63, 64, 32, 1, 32, 32}, {1, 2, 32, 0, 0, 2},     {2, 3, 2, 0, 0, 3},
        {4, 5, 2, 1, 2, 3},      {9, 30, 4096, 0, 0, 30},
    };
    static const uint32_t sizes[] = {33, 2, 2, 2, 2};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(rows); i++) {
        struct hth_hood hood = hth_hood_of(rows[i].index, rows[i].count, rows[i].hood);
        assert_int_equal(hood.number, rows[i].number);
        assert_int_equal(hood.first, rows[i].first);
        assert_int_equal(hood.size, rows[i].size);
    }
    for (uint64_t i = 0; i < HTH_ARRAY_LEN(sizes); i++) {
        struct hth_smoke_opts opts = HTH_SMOKE_OPTS_INIT;
        struct hth_smoke_report r;
        char line[HTH_SMOKE_LINE_MAX];
        opts.peers = sizes[i];
        opts.seed = i == 1 ? 1 : 8 + i;
        opts.calm = i > 0;
        assert_ok(hth_smoke_run(&opts, &r));
        if (!r.pass)
            fail_msg("%s", hth_smoke_line(&r, 0, 0, line));
    }
}

/* Without faults nothing fails; and real bytes give the same run as ghosts. */
TEST(calm_swarms_lose_nothing)
{
    (void)state;
    struct hth_smoke_opts opts = HTH_SMOKE_OPTS_INIT;
    struct hth_smoke_report ghost, real;
    opts.peers = 8;
    opts.calm = true;
    opts.payload_bytes = 3000;
    assert_ok(hth_smoke_run(&opts, &ghost));
    opts.real_payloads = true;
    assert_ok(hth_smoke_run(&opts, &real));
    assert_true(ghost.pass && real.pass);
    assert_int_equal(ghost.calls_failed + real.calls_failed, 0);
    assert_int_equal(ghost.calls, ghost.calls_ok);
    assert_true(ghost.calls > 300);
    assert_int_equal(real.calls, ghost.calls);
}

TEST(invalid_options_are_refused)
{
    (void)state;
    struct hth_smoke_opts opts = HTH_SMOKE_OPTS_INIT;
    struct hth_smoke_report r;
    opts.peers = 1;
    assert_err(HTH_E_RANGE, hth_smoke_run(&opts, &r));
    opts.peers = 2;
    opts.duration_us = 1;
    assert_err(HTH_E_RANGE, hth_smoke_run(&opts, &r));
    opts.duration_us = 60 * HTH_US_PER_S;
    opts.payload_bytes = 0;
    assert_err(HTH_E_RANGE, hth_smoke_run(&opts, &r));
}

/* A violated invariant gives FAIL and the command that repeats the run. */
TEST(failure_line_names_its_seed)
{
    (void)state;
    struct hth_smoke_report r = {.seed = 5, .peers = 9, .why = "a thing broke"};
    r.asked = (struct hth_smoke_opts)HTH_SMOKE_OPTS_INIT;
    r.asked.calm = true;
    char line[HTH_SMOKE_LINE_MAX];
    hth_smoke_line(&r, 0, 0, line);
    assert_memory_equal(line, "FAIL seed=5 ", 12);
    assert_non_null(strstr(line, "why=\"a thing broke\""));
    assert_non_null(strstr(line, "again=\"hearth sim smoke --peers 9 --seed 5 "
                                 "--duration 60000000us --payload 262144 --experts 2 "
                                 "--calm\""));
}
