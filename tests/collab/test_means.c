/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_means.c: what a member keeps of the last means, and a mean that is fetched from holders that
 * lie, are slow or fall silent.
 */
#include "collab/means_run.h"
#include "core/mem.h"
#include "net/crypto.h"
#include "support/suite.h"

static struct run run;

/* ---- digests --------------------------------------------------------------------------------- */

/* By Python's hashlib over struct.pack("<n>f", 0, 1, 2 ..), in parts of 16 KiB, the last of 32. */
TEST(digests_are_golden)
{
    static const struct {
        uint64_t values;
        const char *hex;
    } golden[] = {
        {1, "8cb9012517c817fead650287d61bdd9c68803b6bf9c64133dcab3e65b5a50cb9"},
        {4096, "21f64fb22bfb4d0bebd611717a8a491bbb27abd8a9401ec55f5954a159cf433f"},
        {4097, "5dac4c1094bd798693f65adbb0e3ce9676ae3100ac672a361f1fb47d2bc2bd84"},
        {10000, "e833e04cdebbbc8328d45e157aeba87b52f33944048d88a9002a6fe5758de404"},
        {1048577, "871f03615f6f4db1ac6984be08ddeae4ea25c0e49715bfc78eef34c82d75783e"},
    };
    const struct hth_crypto *crypto = hth_crypto_openssl();
    static float values[1048577];
    for (int i = 0; i < 1048577; i++)
        values[i] = (float)i;
    for (size_t i = 0; i < HTH_ARRAY_LEN(golden); i++) {
        const struct hth_blob mean = {.data = (uint8_t *)values, .size = golden[i].values * 4};
        struct hth_blob *hashes = hth_mean_hashes(crypto, &mean);
        struct hth_hash digest;
        char hex[2 * HTH_HASH_LEN + 1];
        crypto->hash(hashes->data, hashes->size, &digest);
        hth_blob_unref(hashes);
        hth_hex(digest.b, HTH_HASH_LEN, hex);
        assert_string_equal(hex, golden[i].hex);
    }
}

/* ---- keeping --------------------------------------------------------------------------------- */

/* From one step to another, each so long after the one before; then those from `first` on are
 * kept. */
struct steps {
    bool snapshot; /* one is taken first, and fetched */
    uint64_t from, to;
    int64_t after_us;
    uint64_t first;
    uint32_t kept;
};

static struct hth_state_fetch *fetch;
static uint64_t fetched; /* of that step */

static void on_fetched(void *arg, enum hth_err err, const struct hth_state_result *r)
{
    assert_ok(err);
    fetched = r->step;
    hth_state_fetch_free(fetch);
    fetch = NULL;
}

static void take_snapshot(struct donor *by, const struct donor *d)
{
    struct hth_roll_peer at = peer_of(d->node);
    const struct hth_rpc_target holder = {at.id, at.addr};
    const struct hth_state_fetch_opts o = {.schema = SCHEMA,
                                           .bytes = run.state_bytes,
                                           .holders = &holder,
                                           .holders_count = 1,
                                           .patience_us = S,
                                           .on_done = on_fetched};
    assert_ok(hth_state_fetch_new(by->env, by->rpc, &o, &fetch));
    hth_world_run_for(run.world, S);
    assert_null(fetch);
}

static void take_steps(struct donor *d, const struct steps *s)
{
    struct hth_state_donor_stats stats;
    if (s->snapshot)
        take_snapshot(&run.donor[1], d);
    for (d->said = s->from; d->said <= s->to; d->said++) {
        struct hth_hash head = {{(uint8_t)d->said, (uint8_t)(d->said >> 8), 77}};
        struct hth_blob *mean = make_mean(d->env, 100, d->said);
        struct hth_blob *hashes = hth_mean_hashes(hth_sim_crypto(), mean);
        hth_world_run_for(run.world, s->after_us);
        hth_state_donor_keep(d->donor, &head, d->said, mean, hashes);
        hth_blob_unref(hashes);
        hth_blob_unref(mean);
    }
    d->said--;
    hth_state_donor_stats(d->donor, &stats);
    assert_int_equal(stats.means, s->kept);
    assert_int_equal(stats.first, s->first);
}

TEST(the_last_means_are_kept)
{
    static const struct steps cases[] = {
        {false, 1, 1, 2 * S, 1, 1},
        {false, 2, 5, 2 * S, 4, 2},                  /* those of two steps, */
        {false, 6, 30, 100 * MS, 5, 26},             /* or of three seconds, */
        {false, 31, 100, 5 * MS, 69, HTH_MEANS_MAX}, /* so many at most */
        {false, 101, 110, 4 * S, 109, 2},
        {true, 111, 125, S, 111, 15},                   /* since a snapshot, */
        {false, 126, 160, S, 158, 3},                   /* as long as it lasts, */
        {true, 161, 204, 100 * MS, 173, HTH_MEANS_MAX}, /* so many at most */
        {false, 203, 203, 0, 173, 31},                  /* another branch's go, */
        {false, 205, 205, 0, 205, 1},                   /* and those before a gap */
    };
    setup(&run, false, 3, S);
    struct donor *d = add_donor(&run);
    add_donor(&run);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        take_steps(d, &cases[i]);
    tear_down(&run);
}

/* A snapshot is handed out only if all means since it are kept. */
TEST(means_lead_on_from_a_state)
{
    static const struct {
        struct steps steps; /* since the snapshot */
        uint64_t fetched_step;
    } cases[] = {{{true, 2, 33, MS, 2, 32}, 1}, {{true, 2, 34, MS, 3, 32}, 34}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        setup(&run, false, 3, S);
        struct donor *d = add_donor(&run);
        add_donor(&run);
        take_steps(d, &(struct steps){false, 1, 1, MS, 1, 1});
        take_steps(d, &cases[i].steps);
        hth_world_run_for(run.world, 6 * S / 5); /* nobody fetches that one any more */
        take_snapshot(&run.donor[1], d);
        assert_int_equal(fetched, cases[i].fetched_step);
        tear_down(&run);
    }
}

TEST(kept_means_draw_on_the_budget)
{
    struct hth_budget budget;
    setup(&run, false, 3, S);
    hth_budget_init(&budget, 3 * 400 + 399, NULL);
    run.budget = &budget;
    struct donor *p = add_donor(&run);
    for (uint64_t at = 1; at <= 10; at++) {
        struct steps s = {false, at, at, MS, at <= 4 ? 1 : at - 3, (uint32_t)HTH_MIN(at, 4)};
        take_steps(p, &s);
        assert_int_equal(hth_budget_used(&budget), HTH_MIN(at - 1, 3) * 400);
    }
    budget.limit_bytes = 0; /* none but the last has room */
    take_steps(p, &(struct steps){false, 11, 12, MS, 12, 1});
    assert_int_equal(hth_budget_used(&budget), 0);
    tear_down(&run);
}

/* ---- fetching -------------------------------------------------------------------------------- */

/* A newcomer that missed the last step of a run that waits for it; returns how long it took. */
static int64_t miss_one(struct newcomer *n)
{
    take_step(&run);
    int64_t begin = hth_world_now_us(run.world);
    n->ends = 0;
    n->came = false;
    on_links(n);
    assert_true(run_until_over(&run, 100 * S));
    assert_ok(n->err);
    return n->came_us - begin;
}

static struct newcomer *begin(uint32_t donors)
{
    setup(&run, false, 3, 1000 * S);
    for (uint32_t i = 0; i < donors; i++)
        add_donor(&run);
    take_step(&run);
    struct newcomer *n = add_newcomer(&run, 125e6);
    hold(n, 1);
    return n;
}

/* A holder that is no good costs next to nothing: the next one's mean is taken. Where no mean is
 * kept a state is. */
TEST(the_next_holder_is_asked)
{
    static const struct {
        enum kind kind;
        uint32_t donors;
    } cases[] = {{GONE, 1}, {GONE, 2}, {SILENT, 2}, {LIES, 2}, {HASHES, 2}, {SHORT, 2}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct newcomer *n = begin(cases[i].donors);
        lie(&run.donor[0], cases[i].kind);
        int64_t took_us = miss_one(n);
        assert_int_equal(n->steps, cases[i].donors - 1);
        assert_int_equal(n->states, 2 - cases[i].donors);
        if (took_us > 600 * MS)
            fail_msg("case %zu took %lld us", i, (long long)took_us);
        tear_down(&run);
    }
}

/* After quick means a slow holder is left for another one; where there is no other it has a second
 * turn. */
TEST(slow_holders_go_last)
{
    struct hth_device slow = HTH_DEVICE_INIT;
    struct newcomer *n = begin(2);
    slow.up_bytes_per_s = 0.125e6; /* 1 Mbit/s: the mean takes 8.4 s */
    assert_true(miss_one(n) < 500 * MS);
    hth_node_set_device(run.donor[0].node, &slow);
    assert_true(miss_one(n) < 1200 * MS);
    hth_node_crash(run.donor[1].node, HTH_CRASH_RESET);
    assert_in_range(miss_one(n), 8 * S, 30 * S); /* behind replies to what was given up */
    assert_int_equal(n->steps, 3);
    tear_down(&run);
}
