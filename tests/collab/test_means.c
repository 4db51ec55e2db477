/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_means.c: what a member keeps of the last means, what readers may hold, and a mean that is
 * fetched from holders that lie, are slow or fall silent.
 */
#include "collab/means_run.h"
#include "core/mem.h"
#include "net/crypto.h"
#include "support/suite.h"

static struct run run;

static void put(struct donor *d, uint64_t step, struct hth_blob *mean)
{
    struct hth_hash head = {{(uint8_t)step, (uint8_t)(step >> 8), 77}};
    hth_means_put(d->means, &head, step, mean);
}

/* ---- digests --------------------------------------------------------------------------------- */

/* By Python's hashlib over struct.pack("<n>f", 0, 1, 2 ..). */
TEST(digests_are_golden)
{
    static const struct {
        uint64_t values;
        const char *hex;
    } golden[] = {
        {0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {1, "8cb9012517c817fead650287d61bdd9c68803b6bf9c64133dcab3e65b5a50cb9"},
        {4096, "21f64fb22bfb4d0bebd611717a8a491bbb27abd8a9401ec55f5954a159cf433f"},
        {4097, "5dac4c1094bd798693f65adbb0e3ce9676ae3100ac672a361f1fb47d2bc2bd84"},
        {10000, "e833e04cdebbbc8328d45e157aeba87b52f33944048d88a9002a6fe5758de404"},
    };
    static float values[10000];
    for (int i = 0; i < 10000; i++)
        values[i] = (float)i;
    for (size_t i = 0; i < HTH_ARRAY_LEN(golden); i++) {
        struct hth_hash digest;
        char hex[2 * HTH_HASH_LEN + 1];
        hth_mean_digest(hth_crypto_openssl(), values, golden[i].values, &digest);
        hth_hex(digest.b, HTH_HASH_LEN, hex);
        assert_string_equal(hex, golden[i].hex);
    }
}

/* ---- keeping --------------------------------------------------------------------------------- */

/* From one step to another, each so long after the one before; then those from `first` on are
 * kept. */
struct steps {
    uint64_t keep_from; /* 0: as before */
    uint64_t from, to;
    int64_t after_us;
    uint64_t first;
    uint32_t kept;
};

static void take_steps(struct donor *d, const struct steps *s)
{
    struct hth_means_stats stats;
    if (s->keep_from > 0)
        hth_means_keep_from(d->means, s->keep_from);
    for (uint64_t at = s->from; at <= s->to; at++) {
        struct hth_blob *mean = make_mean(d->env, 100, at);
        hth_world_run_for(d->run->world, s->after_us);
        put(d, at, mean);
        hth_blob_unref(mean);
    }
    hth_means_stats(d->means, &stats);
    assert_int_equal(stats.kept, s->kept);
    assert_int_equal(stats.first, s->first);
}

TEST(the_last_means_are_kept)
{
    static const struct steps cases[] = {
        {0, 1, 1, 2 * S, 1, 1},
        {0, 2, 5, 2 * S, 4, 2},                   /* those of two steps, */
        {0, 6, 30, 100 * MS, 5, 26},              /* or of three seconds, */
        {0, 31, 100, 5 * MS, 69, HTH_MEANS_MAX},  /* so many at most */
        {100, 101, 101, 5 * S, 101, 1},           /* since a snapshot: */
        {100, 102, 119, 2 * S, 101, 19},          /* as long as it lasts, */
        {109, 120, 119, 0, 110, 10},              /* or the next one, */
        {0, 120, 160, 2 * S, 129, HTH_MEANS_MAX}, /* so many at most */
        {UINT64_MAX, 161, 160, 0, 159, 2},
        {160, 161, 168, 2 * S, 161, 8}, /* another branch's go, */
        {0, 166, 166, 2 * S, 161, 6},
        {0, 167, 167, 2 * S, 161, 7},
        {0, 169, 169, 2 * S, 169, 1}, /* and those before a gap */
    };
    setup(&run, false, 3, S);
    struct donor *d = add_donor(&run);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++)
        take_steps(d, &cases[i]);
    tear_down(&run);
}

TEST(kept_means_draw_on_the_budget)
{
    struct hth_budget budget;
    setup(&run, false, 3, S);
    struct donor *p = add_donor(&run);
    hth_budget_init(&budget, 3 * 400 + 399, NULL);
    hth_means_free(p->means);
    p->means = hth_means_new(p->env, p->rpc, &budget);
    hth_means_keep_from(p->means, 0);
    for (uint64_t at = 1; at <= 10; at++) {
        struct steps s = {0, at, at, 2 * S, at <= 4 ? 1 : at - 3, (uint32_t)HTH_MIN(at, 4)};
        take_steps(p, &s);
        assert_int_equal(hth_budget_used(&budget), HTH_MIN(at - 1, 3) * 400);
    }
    budget.limit_bytes = 0; /* none but the last has room */
    take_steps(p, &(struct steps){0, 11, 12, 2 * S, 12, 1});
    assert_int_equal(hth_budget_used(&budget), 0);
    tear_down(&run);
}

/* ---- serving --------------------------------------------------------------------------------- */

struct verdict {
    uint32_t count, ok;
    enum hth_err last;
};

static void on_verdict(void *arg, const struct hth_rpc_result *r)
{
    struct verdict *v = arg;
    v->count++;
    v->ok += r->err == HTH_OK;
    v->last = r->err;
}

static void ask(struct donor *by, struct donor *whom, uint64_t step, uint64_t first,
                uint32_t values, size_t len, struct verdict *v)
{
    struct hth_roll_peer to = peer_of(whom->node);
    struct hth_rpc_target target = {to.id, to.addr};
    const struct hth_mean_msg msg = {{{(uint8_t)step, 0, 77}}, first, values};
    uint8_t bytes[HTH_MEAN_MSG_BYTES + 1] = {0};
    struct hth_rpc_call_opts call = {.method = HTH_MEAN_METHOD,
                                     .timeout_us = 100 * S,
                                     .body = {.payload = bytes, .payload_len = len}};
    hth_mean_msg_write(&msg, bytes);
    assert_ok(hth_rpc_call(by->rpc, &target, &call, on_verdict, v, NULL));
}

TEST(requests_are_checked)
{
    enum { B = HTH_MEAN_BLOCK, LEN = HTH_MEAN_MSG_BYTES, MOST = HTH_MEAN_BYTES_MAX / 4 };
    static const struct {
        uint64_t step, first;
        uint32_t values;
        size_t len;
        enum hth_err want;
    } cases[] = {
        {1, 0, 1, LEN, HTH_OK},
        {1, 0, VALUES, LEN, HTH_OK},
        {1, 64 * B, 7, LEN, HTH_OK},
        {1, 64 * B, 8, LEN, HTH_E_RANGE},
        {1, 0, VALUES + 1, LEN, HTH_E_RANGE},
        {1, 65 * B, 1, LEN, HTH_E_RANGE},
        {1, UINT64_MAX - B + 1, B, LEN, HTH_E_RANGE},
        {1, 0, 0, LEN, HTH_E_RANGE},
        {2, 0, 1, LEN, HTH_E_NOT_FOUND}, /* a head that nobody made */
        {1, 1, 1, LEN, HTH_E_MALFORMED},
        {1, 0, 1, LEN + 1, HTH_E_MALFORMED},
        {1, 0, 1, LEN - 1, HTH_E_TRUNCATED},
        {1, 0, 1, 0, HTH_E_TRUNCATED},
        {1, 0, MOST + 1, LEN, HTH_E_TOO_LARGE},
        {1, 0, UINT32_MAX, LEN, HTH_E_TOO_LARGE},
    };
    setup(&run, false, 3, S);
    struct donor *by = add_donor(&run), *holder = add_donor(&run);
    struct hth_blob *mean = make_mean(holder->env, VALUES, 5);
    put(holder, 1, mean);
    hth_blob_unref(mean);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct verdict v = {0};
        ask(by, holder, cases[i].step, cases[i].first, cases[i].values, cases[i].len, &v);
        hth_world_run_for(run.world, S);
        assert_int_equal(v.count, 1);
        assert_err(cases[i].want, v.last);
    }
    uint8_t bytes[LEN];
    struct hth_mean_msg msg = {.values = 1}, got;
    hth_mean_msg_write(&msg, bytes);
    bytes[0]++;
    assert_err(HTH_E_VERSION, hth_mean_msg_read(bytes, LEN, &got));
    tear_down(&run);
}

/* Peers that ask for means and do not read them. */
TEST(readers_are_bounded)
{
    struct hth_means_stats stats;
    struct verdict v = {0};
    setup_values(&run, false, VALUES, 3, S, 64 << 10);
    struct donor *holder = add_donor(&run), *reader[4];
    for (int i = 0; i < 4; i++)
        reader[i] = add_donor(&run);
    struct hth_blob *mean = make_mean(holder->env, VALUES, 1);
    put(holder, 1, mean);
    hth_blob_unref(mean);
    for (int i = 0; i < 4; i++)
        ask(reader[i], holder, 1, 0, HTH_MEAN_BLOCK * 8, HTH_MEAN_MSG_BYTES, &v);
    hth_world_run_for(run.world, S);
    assert_int_equal(v.ok, 4);
    hth_means_stats(holder->means, &stats);
    assert_int_equal(stats.reads, 0); /* all were read */
    /* One more than it may have under way; some of its first are read into its window. */
    for (uint64_t i = 0; i < 3; i++) {
        for (int k = 0; k < HTH_MEAN_READS_MAX + 4; k++)
            ask(reader[i], holder, 1, 0, HTH_MEAN_BLOCK * 8, HTH_MEAN_MSG_BYTES, &v);
        hth_world_run_for(run.world, 10 * MS + 5);
        hth_node_stall(reader[i]->node, 100 * S);
        hth_world_run_for(run.world, S);
        hth_means_stats(holder->means, &stats);
        assert_in_range(stats.reads, (i + 1) * (HTH_MEAN_READS_MAX - 2),
                        (i + 1) * HTH_MEAN_READS_MAX);
        assert_int_equal(stats.stale, 0);
    }
    /* Their mean goes: the first is cut off, and the others may stay. */
    uint32_t before = stats.reads;
    take_steps(holder, &(struct steps){1, 2, HTH_MEANS_MAX + 1, MS, 2, HTH_MEANS_MAX});
    hth_means_stats(holder->means, &stats);
    assert_in_range(stats.stale, 1, HTH_MEAN_STALE_MAX);
    assert_in_range(stats.reads, stats.stale, stats.stale + 2); /* segments under way */
    assert_true(stats.reads < before);
    assert_non_null(strstr(run.log, "does not read the means"));
    struct verdict other = {0}; /* served meanwhile */
    ask(reader[3], holder, 5, 0, 100, HTH_MEAN_MSG_BYTES, &other);
    hth_world_run_for(run.world, S);
    assert_int_equal(other.ok, 1);
    hth_world_run_for(run.world, 200 * S); /* all are gone at last */
    hth_means_stats(holder->means, &stats);
    assert_int_equal(stats.reads, 0);
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

/* A holder that is no good costs its time at most, and is named; the next one's mean is taken.
 * Where all are like it a state is. */
TEST(the_next_holder_is_asked)
{
    static const struct {
        enum kind kind;
        int64_t within_us;
        const char *log;
    } cases[] = {
        {GONE, 600 * MS, "not kept here"},
        {SILENT, 4 * S, "no answer"},
        {LIES, S, "not those that the link's digest is of"},
        {SHORT, 600 * MS, "shape"},
        {LONG, 600 * MS, "shape"},
        {BYTES, 600 * MS, "shape"},
        {EMPTY, 600 * MS, "shape"},
    };
    for (size_t i = 0; i < 2 * HTH_ARRAY_LEN(cases); i++) {
        struct newcomer *n = begin(1 + i % 2);
        char id[HTH_PEER_SHORT_LEN], line[64];
        lie(&run.donor[0], cases[i / 2].kind);
        int64_t took_us = miss_one(n);
        assert_int_equal(n->steps, i % 2);
        assert_int_equal(n->states, 1 - i % 2);
        if (i % 2 == 1 && took_us > cases[i / 2].within_us)
            fail_msg("case %zu took %lld us", i / 2, (long long)took_us);
        snprintf(line, sizeof(line), "peer %s is left out",
                 hth_peer_id_short(&run.donor[0].env->self, id));
        assert_non_null(strstr(run.log, line));
        assert_non_null(strstr(run.log, cases[i / 2].log));
        assert_true(i % 2 == 0 || cases[i / 2].kind == LIES || run.donor[0].asked <= HTH_MEAN_ASKS);
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
    assert_in_range(miss_one(n), 500 * MS, 1200 * MS);
    hth_node_crash(run.donor[1].node, HTH_CRASH_RESET);
    assert_in_range(miss_one(n), 8 * S, 30 * S); /* behind replies to what was given up */
    assert_int_equal(n->steps, 3);
    tear_down(&run);
}

static void on_done(void *arg, enum hth_err err, struct hth_blob *mean,
                    const struct hth_peer_id *giver)
{
}

TEST(options_are_checked)
{
    static const struct {
        uint64_t values;
        uint32_t count;
        long fails_at; /* that allocation */
        enum hth_err want;
    } cases[] = {
        {0, 1, 0, HTH_E_CONFIG},         {HTH_PARAMS_FLOATS_MAX + 1, 1, 0, HTH_E_CONFIG},
        {VALUES, 0, 0, HTH_E_CONFIG},    {VALUES, 1, 1, HTH_E_NO_MEMORY},
        {VALUES, 1, 2, HTH_E_NO_MEMORY},
    };
    struct newcomer *n = begin(1);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        const struct hth_holders holders = {.count = cases[i].count};
        struct hth_mean_fetch_opts o = {.holders = &holders, .done = on_done};
        struct hth_mean_fetch *fetch;
        o.values = cases[i].values;
        hth_mem_fail_at(cases[i].fails_at);
        assert_err(cases[i].want, hth_mean_fetch_new(n->means, &o, &fetch));
        hth_mem_fail_at(0);
        assert_null(fetch);
    }
    tear_down(&run);
}
