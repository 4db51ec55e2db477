/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fair.c: peers share a host equally in work, and one peer's queue does not delay another. A
 * slow simulated device makes the waits long: 64 rows take 131 ms.
 */
#include "experts/swarm.h"

#include <math.h>

#include "admission/witness.h"
#include "core/mem.h"
#include "support/suite.h"

#define D        16
#define ROWS     64
#define BATCH_US (131 * HTH_US_PER_MS)
#define MINUTE   (60 * HTH_US_PER_S)

struct arena {
    struct hth_admission host, caller[3]; /* none: the run is open */
    struct hth_world *w;
    struct swarm_host h;
    struct swarm_caller c[3];
    float *x;
};

static void arena_open(struct arena *t)
{
    static const char *const names[] = {"one", "two", "three"};
    struct hth_world_opts wo = HTH_WORLD_OPTS_INIT;
    struct answer warm;
    struct ask a = {.coord = {0}, .rows = {ROWS}, .parts = 1, .d = D};
    wo.device.flops_per_s = 1e6;
    t->w = hth_world_new(5, &wo);
    t->h.layer_count = 3;
    t->h.opts.batch_rows_max = ROWS;
    t->h.opts.job_flops_min = 0; /* one batch a job */
    t->h.admission = t->host.creds_len > 0 ? &t->host : NULL;
    host_start(&t->h, t->w, "host");
    t->x = normals(1, ROWS * D);
    for (int i = 0; i < 3; i++)
        caller_start_as(&t->c[i], t->w, names[i], NULL,
                        t->host.creds_len > 0 ? &t->caller[i] : NULL);
    a.x = t->x;
    for (int i = 0; i < 3; i++) { /* connects, and lets the host measure its speed */
        ask_wait(t->w, &t->c[i], &t->h, &a, &warm);
        assert_ok(warm.err);
        answer_clear(&warm);
    }
}

static void arena_close(struct arena *t)
{
    hth_aligned_free(t->x);
    for (int i = 0; i < 3; i++)
        caller_stop(&t->c[i]);
    hth_world_free(t->w);
}

static void send(struct arena *t, int who, uint32_t expert, uint32_t rows, struct answer *out)
{
    struct ask a = {.coord = {expert}, .rows = {rows}, .parts = 1, .d = D, .x = t->x};
    a.timeout_us = MINUTE;
    ask(&t->c[who], &t->h, &a, out);
}

static uint32_t count_ok(const struct answer *out, uint32_t count)
{
    uint32_t ok = 0;
    for (uint32_t i = 0; i < count; i++)
        ok += out[i].count == 1 && out[i].err == HTH_OK ? 1 : 0;
    return ok;
}

static void finish(struct arena *t, struct answer *out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_true(hth_world_run_until_true(t->w, answered, &out[i], MINUTE));
        answer_clear(&out[i]);
    }
}

/* Two peers queue ten seconds of work. A third, with few rows for one expert or the other, waits
 * for the running batch and its own. */
TEST(flood_delays_only_itself)
{
    enum { N = 38 };
    struct arena t = {.h = host_init()};
    static struct answer flood[2][N];
    struct answer out;
    (void)state;
    arena_open(&t);
    for (uint32_t i = 0; i < N; i++) {
        send(&t, 0, 0, ROWS, &flood[0][i]);
        send(&t, 1, 0, ROWS, &flood[1][i]);
    }
    hth_world_run_for(t.w, BATCH_US / 2);
    for (uint32_t i = 0; i < 6; i++) {
        int64_t start = hth_now_us(t.c[2].env);
        send(&t, 2, i % 2, 8, &out);
        assert_true(hth_world_run_until_true(t.w, answered, &out, MINUTE));
        assert_ok(out.err);
        answer_clear(&out);
        int64_t took = hth_now_us(t.c[2].env) - start;
        if (took > 3 * BATCH_US)
            fail_msg("request %u took %lld ms", i, (long long)took / 1000);
    }
    assert_true(count_ok(flood[0], N) < N / 2); /* the flood still waits */
    assert_true(count_ok(flood[1], N) < N / 2);
    finish(&t, flood[0], N);
    finish(&t, flood[1], N);
    assert_int_equal(host_stats(&t.h).bytes_held, 0);
    arena_close(&t);
}

/* A part waits for more rows for batch_age_us at most, in any order of the start tags. */
TEST(parts_age_once_in_any_order)
{
    struct arena t = {.h = host_init()};
    struct answer first, second, other;
    (void)state;
    t.h.opts.batch_age_us = HTH_US_PER_S;
    t.h.opts.batch_rows_min = 10 * ROWS;
    arena_open(&t);
    int64_t start = hth_now_us(t.c[0].env);
    send(&t, 0, 0, ROWS, &first);
    send(&t, 0, 1, ROWS, &second); /* its start tag is behind the first's work */
    hth_world_run_for(t.w, HTH_US_PER_S * 8 / 10);
    send(&t, 1, 2, ROWS, &other); /* its start tag is the virtual time */
    assert_true(hth_world_run_until_true(t.w, answered, &second, MINUTE));
    assert_ok(second.err);
    int64_t took = hth_now_us(t.c[0].env) - start;
    if (took > HTH_US_PER_S + 3 * BATCH_US)
        fail_msg("the second part took %lld ms", (long long)took / 1000);
    answer_clear(&second);
    finish(&t, &first, 1);
    finish(&t, &other, 1);
    arena_close(&t);
}

/* Many small requests get the share of few large ones, in any order of arrival. */
TEST(shares_are_equal_in_work)
{
    enum { LARGE = 20, SMALL = 80, DONE_OF_EACH = 8 };
    struct arena t = {.h = host_init()};
    static struct answer large[LARGE], small[SMALL];
    (void)state;
    arena_open(&t);
    for (uint32_t i = 0; i < LARGE; i++)
        send(&t, 0, 0, ROWS, &large[i]);
    hth_world_run_for(t.w, BATCH_US / 2);
    for (uint32_t i = 0; i < SMALL; i++)
        send(&t, 1, 1, ROWS / 4, &small[i]);
    hth_world_run_for(t.w, 2 * DONE_OF_EACH * BATCH_US);
    uint32_t rows_large = count_ok(large, LARGE) * ROWS;
    uint32_t rows_small = count_ok(small, SMALL) * ROWS / 4;
    if (rows_large < (DONE_OF_EACH - 2) * ROWS || rows_small < (DONE_OF_EACH - 2) * ROWS ||
        rows_large > (DONE_OF_EACH + 2) * ROWS || rows_small > (DONE_OF_EACH + 2) * ROWS)
        fail_msg("%u rows of the large, %u of the small", rows_large, rows_small);
    finish(&t, large, LARGE);
    finish(&t, small, SMALL);
    arena_close(&t);
}

/* A single peer may use all of the time and most of the bytes for requests, so that a second can be
 * admitted; with others it leaves them their share. */
TEST(peer_leaves_bytes_for_others)
{
    enum { N = 60 };
    struct arena t = {.h = host_init()};
    static struct answer out[N];
    struct answer first, late;
    (void)state;
    t.h.opts.queue_bytes_max = 30 * 2 * ROWS * D * (int64_t)sizeof(float);
    t.h.opts.queue_us_max = MINUTE;
    arena_open(&t);
    for (uint32_t i = 0; i < N; i++)
        send(&t, 0, 0, ROWS, &out[i]);
    hth_world_run_for(t.w, BATCH_US / 8);
    assert_int_equal(host_stats(&t.h).refused_busy, N - 26); /* a single peer leaves 30 / 8 free */
    send(&t, 2, 1, ROWS, &late);
    assert_true(hth_world_run_until_true(t.w, answered, &late, MINUTE));
    assert_ok(late.err);
    answer_clear(&late);
    finish(&t, out, N);

    send(&t, 1, 0, ROWS, &first);
    hth_world_run_for(t.w, BATCH_US / 8);
    for (uint32_t i = 0; i < N; i++)
        send(&t, 0, 0, ROWS, &out[i]);
    hth_world_run_for(t.w, BATCH_US / 8);
    /* One of the second peer, and of the first as many as it leaves free in front of the last. */
    assert_int_equal(host_stats(&t.h).bytes_held, (1 + 15) * 2 * ROWS * D * (int64_t)sizeof(float));
    send(&t, 2, 1, ROWS, &late);
    assert_true(hth_world_run_until_true(t.w, answered, &late, MINUTE));
    assert_ok(late.err);
    answer_clear(&late);
    finish(&t, &first, 1);
    finish(&t, out, N);
    assert_int_equal(host_stats(&t.h).bytes_held, 0);
    arena_close(&t);
}

/* A forward of many rows is cut into batches with a start tag each: the next peer waits for the
 * running batch, not for the whole part. */
TEST(long_part_is_cut_for_other_peers)
{
    enum { LONG = 24 };
    struct arena t = {.h = host_init()};
    struct answer flood, out;
    (void)state;
    arena_open(&t);
    float *x = normals(2, (size_t)LONG * ROWS * D);
    struct ask a = {.coord = {0}, .rows = {LONG * ROWS}, .parts = 1, .d = D, .x = x};
    a.timeout_us = MINUTE;
    ask(&t.c[0], &t.h, &a, &flood);
    hth_world_run_for(t.w, BATCH_US / 2);
    for (uint32_t i = 0; i < 4; i++) {
        int64_t start = hth_now_us(t.c[2].env);
        send(&t, 2, i % 2, 8, &out);
        assert_true(hth_world_run_until_true(t.w, answered, &out, MINUTE));
        assert_ok(out.err);
        answer_clear(&out);
        int64_t took = hth_now_us(t.c[2].env) - start;
        if (took > 3 * BATCH_US)
            fail_msg("request %u took %lld ms", i, (long long)took / 1000);
        assert_int_equal(flood.count, 0); /* the flood still waits */
    }
    finish(&t, &flood, 1);
    hth_aligned_free(x);
    arena_close(&t);
}

/* A peer that waits for each reply before its next request gets the share of one whose work always
 * waits: its finish tag outlives its last request. */
TEST(finish_tag_outlives_last_request)
{
    enum { MUCH = 4, SMALL = 30, ROUNDS = 3 };
    struct arena t = {.h = host_init()};
    static struct answer small[SMALL];
    struct answer out;
    (void)state;
    arena_open(&t);
    float *x = normals(2, (size_t)MUCH * ROWS * D);
    struct ask a = {.coord = {0}, .rows = {MUCH * ROWS}, .parts = 1, .d = D, .x = x};
    a.timeout_us = MINUTE;
    for (uint32_t i = 0; i < SMALL; i++)
        send(&t, 1, 1, ROWS, &small[i]);
    for (uint32_t i = 0; i < ROUNDS; i++)
        ask_wait(t.w, &t.c[0], &t.h, &a, &out), answer_clear(&out);
    uint32_t batches = count_ok(small, SMALL);
    if (batches < (ROUNDS - 1) * MUCH)
        fail_msg("%u batches beside %u", batches, ROUNDS * MUCH);
    finish(&t, small, SMALL);
    hth_aligned_free(x);
    arena_close(&t);
}

/* Twice, more peers come and go beside a busy one than the server remembers. */
TEST(more_peers_than_remembered_are_served)
{
    enum { CROWD = 300, N = 20 };
    struct arena t = {.h = host_init()};
    static struct swarm_caller crowd[CROWD];
    static struct answer flood[N], out[CROWD];
    struct ask a = {.coord = {1}, .rows = {1}, .parts = 1, .d = D, .timeout_us = MINUTE};
    (void)state;
    arena_open(&t);
    a.x = t.x;
    for (uint32_t i = 0; i < CROWD; i++) {
        char name[16];
        snprintf(name, sizeof(name), "crowd%u", (unsigned)i);
        caller_start(&crowd[i], t.w, name, NULL);
    }
    for (uint32_t i = 0; i < N; i++)
        send(&t, 0, 0, ROWS, &flood[i]);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < CROWD; i++)
            ask(&crowd[i], &t.h, &a, &out[i]);
        hth_world_run_for(t.w, 8 * BATCH_US);
        assert_int_equal(count_ok(out, CROWD), CROWD);
        finish(&t, out, CROWD);
    }
    assert_true(count_ok(flood, N) < N);
    finish(&t, flood, N);
    assert_int_equal(host_stats(&t.h).bytes_held, 0);
    for (uint32_t i = 0; i < CROWD; i++)
        caller_stop(&crowd[i]);
    arena_close(&t);
}

/* All three have work waiting for 16 batches. Returns in `done` how many batches each got. */
static void share(struct arena *t, uint32_t done[3])
{
    enum { N = 24, BATCHES = 16 };
    static struct answer out[3][N];
    t->host = hth_admitted(99, HTH_MEMBER);
    t->h = host_init();
    t->h.opts.queue_us_max = MINUTE;
    arena_open(t);
    for (int who = 0; who < 3; who++) { /* the first is there before the others */
        for (uint32_t i = 0; i < N; i++)
            send(t, who, (uint32_t)who, ROWS, &out[who][i]);
        hth_world_run_for(t->w, BATCH_US / 8);
    }
    hth_world_run_for(t->w, BATCHES * BATCH_US);
    for (int who = 0; who < 3; who++)
        done[who] = count_ok(out[who], N);
    for (int who = 0; who < 3; who++)
        finish(t, out[who], N);
    arena_close(t);
}

TEST(keys_of_an_invite_share_its_turn)
{
    struct arena t = {.caller = {hth_admitted(5, HTH_MEMBER), hth_admitted(6, HTH_MEMBER),
                                 hth_admitted(6, HTH_MEMBER)}};
    uint32_t done[3];
    (void)state;
    share(&t, done);
    assert_in_range(done[0], 7, 9);
    assert_in_range(done[1] + done[2], 7, 9);
}

TEST(probation_gets_an_eighth_beside_members)
{
    struct arena t = {.caller = {hth_admitted(5, HTH_MEMBER), hth_admitted(6, HTH_PROBATION),
                                 hth_admitted(6, HTH_PROBATION)}};
    uint32_t done[3];
    (void)state;
    share(&t, done);
    assert_in_range(done[1] + done[2], 1, 3);
    assert_in_range(done[0], 12, 15);
}

/* Four hours of backwards, each 50 s; `bad` of them, at the end, have numbers that are refused. */
static bool is_due_after(enum hth_member_class class, uint32_t bad)
{
    enum { CALLS = 4 * 3600 / 50 + 2 };
    static const float x[D];
    struct hth_world *w = hth_world_new(8, NULL);
    const struct hth_admission own = hth_admitted(6, class);
    struct hth_admission host = hth_admitted(99, HTH_MEMBER);
    struct swarm_host h = host_init();
    struct swarm_caller c;
    struct hth_pubkey due;
    size_t it = 0;
    h.expert.shape.d = D;
    h.admission = &host;
    host.witness = hth_witness_new();
    host_start(&h, w, "host");
    caller_start_as(&c, w, "caller", NULL, &own);
    for (uint32_t i = 0; i < CALLS; i++) {
        const float dy[D] = {i + bad < CALLS ? 1e-3f : NAN};
        const struct ask a = {
            .rows = {1}, .parts = 1, .d = D, .x = x, .dy = dy, .microbatch = 1, .key = i + 1};
        struct answer out;
        ask_wait(w, &c, &h, &a, &out);
        assert_ok(out.err);
        assert_int_equal(out.status[0], i + bad < CALLS ? HTH_OK : HTH_E_NOT_FINITE);
        answer_clear(&out);
        hth_world_run_for(w, 50 * HTH_US_PER_S - hth_now_us(c.env) % (50 * HTH_US_PER_S));
    }
    bool is_due = hth_witness_due(host.witness, &it, &due);
    caller_stop(&c);
    host_stop(&h);
    hth_witness_free(host.witness);
    hth_world_free(w);
    return is_due;
}

TEST(host_witnesses_good_backwards)
{
    (void)state;
    assert_true(is_due_after(HTH_PROBATION, 0));
    assert_false(is_due_after(HTH_PROBATION, 1));
    assert_false(is_due_after(HTH_MEMBER, 0));
}
