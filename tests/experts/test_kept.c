/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kept.c: backwards that name a forward instead of carrying its rows: the bits are the same,
 * rows are found once and by their peer only, and what a host keeps is bounded.
 */
#include "experts/swarm.h"

#include "core/mem.h"
#include "experts/kept.h"
#include "experts/message.h"
#include "experts/rows.h"
#include "support/suite.h"

#define D 16

struct scene {
    struct hth_world *w;
    struct swarm_host h, carries; /* carries: a host that keeps nothing */
    struct swarm_caller c;
};

static void scene_start(struct scene *s, const struct swarm_host *like)
{
    memset(s, 0, sizeof(*s));
    s->w = hth_world_new(1, NULL);
    s->h = s->carries = like != NULL ? *like : host_init();
    s->carries.opts.keep_bytes_max = 0;
    s->carries.budget = NULL;
    host_start(&s->h, s->w, "host");
    host_start(&s->carries, s->w, "carries");
    caller_start(&s->c, s->w, "caller", NULL);
}

static void scene_end(struct scene *s)
{
    caller_stop(&s->c);
    hth_world_free(s->w);
}

/* The verdict of a request that has no reply to read. */
static enum hth_err verdict(struct scene *s, struct swarm_caller *c, const struct ask *a)
{
    struct answer out;
    enum hth_err err;

    ask_wait(s->w, c, &s->h, a, &out);
    err = out.err;
    answer_clear(&out);
    return err;
}

/* A forward with this key. True if its rows are kept. */
static bool forward(struct scene *s, struct swarm_host *h, const struct ask *like, uint64_t key)
{
    struct ask a = *like;
    struct answer out;
    bool kept;

    a.dy = NULL;
    a.key = key;
    ask_wait(s->w, &s->c, h, &a, &out);
    assert_ok(out.err);
    kept = out.kept;
    answer_clear(&out);
    return kept;
}

/* Sends the same backward to both hosts, once by name, once with rows; the replies are equal. */
static void both(struct scene *s, const struct ask *a, uint64_t key, uint64_t named)
{
    struct ask with = *a, by_name = *a;
    struct answer want, got;

    with.key = by_name.key = key;
    by_name.forward = named;
    by_name.x = NULL;
    ask_wait(s->w, &s->c, &s->carries, &with, &want);
    ask_wait(s->w, &s->c, &s->h, &by_name, &got);
    assert_ok(want.err);
    assert_ok(got.err);
    assert_int_equal(got.tensor.dtype, want.tensor.dtype);
    assert_int_equal(got.blob->size, want.blob->size);
    assert_memory_equal(got.rows, want.rows, want.blob->size);
    answer_clear(&want);
    answer_clear(&got);
}

/* Gradients and weights have the same bits as with rows that travel twice, for each kind and wire
 * type, at once and after other backwards have moved the weights. */
TEST(named_backwards_have_the_same_bits)
{
    static const struct {
        const char *kind;
        uint32_t block_rows;
        enum hth_dtype dtype;
    } cases[] = {
        {"ffn", 0, HTH_F32}, {"ffn", 0, HTH_BF16}, {"ffn", 0, HTH_F16},
        {"ffn", 0, HTH_I8},  {"nop", 0, HTH_F32},  {"transformer", 4, HTH_F32},
    };
    float *x = normals(1, 12 * D), *dy = normals(2, 12 * D), *other = normals(3, 12 * D);

    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct swarm_host like = host_init();
        struct ask a = {.coord = {0, 1}, .rows = {4, 8}, .parts = 2, .d = D, .x = x, .dy = dy};
        struct ask b = a;
        struct scene s;
        like.layer_count = 2;
        like.opts.step_rows = 1;
        like.expert.kind = cases[i].kind;
        like.expert.shape.block_rows = cases[i].block_rows;
        a.dtype = b.dtype = cases[i].dtype;
        b.x = other;
        scene_start(&s, &like);
        assert_true(forward(&s, &s.h, &a, 1));
        assert_true(forward(&s, &s.h, &b, 2));
        assert_true(forward(&s, &s.h, &a, 3));
        assert_false(forward(&s, &s.carries, &a, 1));
        both(&s, &a, 11, 1); /* the weights are those of the forward */
        both(&s, &b, 12, 2); /* they have stepped since */
        both(&s, &a, 13, 3);
        for (uint32_t e = 0; e < 2; e++)
            assert_true(experts_equal(host_expert(&s.h, e), host_expert(&s.carries, e)));
        assert_int_equal(host_stats(&s.h).named, 3);
        assert_int_equal(host_stats(&s.h).bytes_kept, 0);
        assert_int_equal(host_stats(&s.carries).named, 0);
        scene_end(&s);
    }
    hth_aligned_free(x);
    hth_aligned_free(dy);
    hth_aligned_free(other);
}

TEST(forwards_are_named_once_by_their_peer)
{
    float *x = normals(1, 4 * D);
    struct ask a = {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .x = x, .dy = x};
    struct swarm_caller other;
    struct scene s;

    (void)state;
    scene_start(&s, NULL);
    caller_start(&other, s.w, "other", NULL);
    assert_true(forward(&s, &s.h, &a, 1));
    assert_false(forward(&s, &s.h, &a, 0)); /* without a key no backward follows */
    a.x = NULL;
    a.forward = 1;
    a.key = 11;
    assert_err(HTH_E_GONE, verdict(&s, &other, &a));
    a.forward = 7;
    assert_err(HTH_E_GONE, verdict(&s, &s.c, &a));
    a.forward = 1;
    assert_ok(verdict(&s, &s.c, &a));
    assert_ok(verdict(&s, &s.c, &a)); /* the same backward: its answer */
    a.key = 12;
    assert_err(HTH_E_GONE, verdict(&s, &s.c, &a)); /* another one of the same rows */
    assert_int_equal(host_stats(&s.h).rows_backward, 4);
    assert_int_equal(host_stats(&s.h).replays_answered, 1);
    assert_int_equal(host_stats(&s.h).gone, 3);
    a.x = x; /* with its rows the refused one succeeds */
    a.forward = 0;
    assert_ok(verdict(&s, &s.c, &a));
    caller_stop(&other);
    hth_aligned_free(x);
    scene_end(&s);
}

/* A backward that does not fit the forward that it names is refused, and the rows stay. */
TEST(misfits_are_refused)
{
    float *x = normals(1, 8 * D);
    const struct ask good = {
        .coord = {0, 1}, .rows = {2, 2}, .parts = 2, .d = D, .dy = x, .forward = 1, .key = 11};
    const struct {
        enum hth_err err;
        struct ask ask;
    } cases[] = {
        {HTH_E_BAD_SHAPE, {.coord = {1, 0}, .rows = {2, 2}, .parts = 2, .d = D, .dy = x}},
        {HTH_E_BAD_SHAPE, {.coord = {0, 1}, .rows = {1, 3}, .parts = 2, .d = D, .dy = x}},
        {HTH_E_BAD_SHAPE, {.coord = {0}, .rows = {4}, .parts = 1, .d = D, .dy = x}},
        {HTH_E_BAD_SHAPE, {.coord = {0, 1}, .rows = {2, 2}, .parts = 2, .d = D / 2, .dy = x}},
        {HTH_E_BAD_SHAPE, /* of another type */
         {.coord = {0, 1}, .rows = {2, 2}, .parts = 2, .d = D, .dy = x, .dtype = HTH_BF16}},
        {HTH_E_BAD_SHAPE, /* rows as well */
         {.coord = {0, 1}, .rows = {2, 2}, .parts = 2, .d = D, .dy = x, .x = x}},
        {HTH_E_MALFORMED, /* a forward that names one */
         {.coord = {0, 1}, .rows = {2, 2}, .parts = 2, .d = D, .x = x}},
    };
    struct swarm_host like = host_init();
    struct scene s;
    struct ask a = good;

    (void)state;
    like.layer_count = 2;
    scene_start(&s, &like);
    a.x = x;
    a.forward = 0;
    assert_true(forward(&s, &s.h, &a, 1));
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        a = cases[i].ask;
        a.forward = 1;
        a.key = 20 + i;
        assert_err(cases[i].err, verdict(&s, &s.c, &a));
    }
    assert_int_equal(host_stats(&s.h).rows_backward, 0);
    assert_ok(verdict(&s, &s.c, &good));
    /* Rows of a forward that failed in part are not kept. */
    a = (struct ask){.coord = {0, 5}, .rows = {2, 2}, .parts = 2, .d = D, .x = x};
    assert_false(forward(&s, &s.h, &a, 2));
    hth_aligned_free(x);
    scene_end(&s);
}

/* A peer that never sends its backwards loses its own oldest rows, and by age all of them. */
TEST(kept_rows_are_bounded)
{
    enum { ROWS = 64, BYTES = ROWS * D * 4, N = 30 };
    float *x = normals(1, ROWS * D);
    struct ask a = {.coord = {0}, .rows = {ROWS}, .parts = 1, .d = D, .x = x, .dy = x};
    struct swarm_host like = host_init();
    struct hth_budget budget;
    struct scene s;

    (void)state;
    hth_budget_init(&budget, 24 * BYTES, NULL);
    like.budget = &budget;
    like.opts.result_age_us = 10 * HTH_US_PER_S;
    like.opts.result_bytes_max = 0;
    scene_start(&s, &like);
    for (uint64_t key = 1; key <= N; key++)
        assert_true(forward(&s, &s.h, &a, key));
    /* a quarter of the process's budget is for kept rows, and half of that for a single peer */
    assert_true(host_stats(&s.h).bytes_kept <= 3 * BYTES);
    assert_true(hth_budget_used(&budget) <= 3 * BYTES);
    a.x = NULL;
    a.key = 100;
    a.forward = 1;
    assert_err(HTH_E_GONE, verdict(&s, &s.c, &a));
    a.forward = N;
    assert_ok(verdict(&s, &s.c, &a));
    hth_world_run_for(s.w, 11 * HTH_US_PER_S);
    assert_int_equal(host_stats(&s.h).bytes_kept, 0);
    assert_int_equal(hth_budget_used(&budget), 0);
    a.forward = N - 1;
    a.key = 101;
    assert_err(HTH_E_GONE, verdict(&s, &s.c, &a));
    hth_aligned_free(x);
    scene_end(&s);
}

/* The bytes of both new fields, written by hand from expert.proto. */
TEST(names_have_these_bytes)
{
    static const uint8_t named[] = {0x0a, 1,    'f',  0x10, 1, 0x1a, 1, 2, 0x22, 1, 3,
                                    0x28, 4,    0x31, 0xa1, 0, 0,    0, 0, 0,    0, 0, /* hi */
                                    0x39, 0xb2, 0,    0,    0, 0,    0, 0, 1};         /* lo */
    static const uint8_t kept[] = {0x10, 1};
    const uint32_t coord = 2, rows = 3;
    const enum hth_err fine = HTH_OK;
    struct hth_expert_msg w = {.layer = "f",
                               .ndim = 1,
                               .parts = 1,
                               .coord = &coord,
                               .rows = &rows,
                               .rows_in_microbatch = 4,
                               .forward = {0xa1, UINT64_C(1) << 56 | 0xb2}};
    enum hth_err status;
    uint8_t *bytes;
    size_t len;
    bool is_kept;

    (void)state;
    assert_ok(hth_expert_msg_pack(&w, &bytes, &len));
    assert_int_equal(len, sizeof(named));
    assert_memory_equal(bytes, named, len);
    hth_free(bytes);
    assert_ok(hth_expert_msg_open(named, sizeof(named), 3, &w));
    assert_true(hth_expert_msg_names(&w));
    assert_int_equal(w.forward.hi, 0xa1);
    assert_int_equal(w.forward.lo, UINT64_C(1) << 56 | 0xb2);
    hth_expert_msg_close(&w);
    hth_expert_msg_reply_pack(&fine, 1, true, &bytes, &len);
    assert_int_equal(len, sizeof(kept));
    assert_memory_equal(bytes, kept, len);
    hth_free(bytes);
    assert_ok(hth_expert_msg_reply_open(kept, sizeof(kept), 1, &status, &is_kept));
    assert_true(is_kept);
    assert_ok(hth_expert_msg_reply_open(NULL, 0, 1, &status, &is_kept)); /* of an older host */
    assert_false(is_kept);
}

/* ---- the store alone ------------------------------------------------------------------------- */

static struct hth_peer_id peer_id(uint8_t number)
{
    return (struct hth_peer_id){.b = {number}};
}

static bool put(struct hth_kept *k, uint8_t peer, uint64_t key, size_t bytes)
{
    struct hth_peer_id id = peer_id(peer);
    struct hth_kept_rows rows = {.x = {.blob = hth_blob_try_new(bytes)}, .list_hash = key};
    bool kept = hth_kept_put(k, &id, (struct hth_rpc_idem){.lo = key}, &rows);

    hth_blob_unref(rows.x.blob);
    return kept;
}

static struct hth_kept_entry *find(struct hth_kept *k, uint8_t peer, uint64_t key)
{
    struct hth_peer_id id = peer_id(peer);

    return hth_kept_find(k, &id, (struct hth_rpc_idem){.lo = key});
}

/* k peers that fill the store in turns hold bytes_max / (k + 1) each, the newest of their own, and
 * a newcomer finds as much room as is free. */
TEST(peers_share_the_room)
{
    enum { BYTES = 100000, PER_PEER = 60 };
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_caller c;

    (void)state;
    caller_start(&c, w, "owner", NULL);
    for (uint8_t peers = 1; peers <= 5; peers++) {
        struct hth_kept *k = hth_kept_new(c.env, INT64_C(60) * BYTES, 60 * HTH_US_PER_S);
        for (uint64_t key = 1; key <= PER_PEER; key++)
            for (uint8_t p = 0; p < peers; p++)
                assert_true(put(k, p, key, BYTES));
        for (uint8_t p = 0; p < peers; p++) {
            uint32_t held = 0;
            for (uint64_t key = 1; key <= PER_PEER; key++) {
                bool there = find(k, p, key) != NULL;
                held += there;
                assert_true(there || held == 0); /* the newest are there */
            }
            assert_in_range(held, 60 / (peers + 1) - 2, 60 / (peers + 1));
        }
        assert_true(hth_kept_bytes(k) <= INT64_C(60) * BYTES);
        assert_true(put(k, peers, 1, BYTES));
        assert_false(put(k, peers + 1, 1, 60 * BYTES)); /* larger than any share */
        assert_null(find(k, peers + 1, 1));
        assert_false(put(k, 0, PER_PEER + 1, 60 * BYTES));
        assert_non_null(find(k, 0, PER_PEER)); /* and its rows stay */
        hth_kept_free(k);
    }
    caller_stop(&c);
    hth_world_free(w);
}

/* A key that comes again replaces its rows; age counts from then. */
TEST(keys_come_again)
{
    struct hth_world *w = hth_world_new(1, NULL);
    struct swarm_caller c;
    struct hth_kept *k;
    int64_t one;

    (void)state;
    caller_start(&c, w, "owner", NULL);
    k = hth_kept_new(c.env, 1 << 20, 10 * HTH_US_PER_S);
    assert_true(put(k, 1, 5, 1000));
    one = hth_kept_bytes(k);
    hth_world_run_for(w, 6 * HTH_US_PER_S);
    assert_true(put(k, 1, 5, 1000));
    assert_true(put(k, 2, 6, 1000));
    assert_int_equal(hth_kept_bytes(k), 2 * one);
    hth_world_run_for(w, 6 * HTH_US_PER_S);
    assert_int_equal(hth_kept_rows(find(k, 1, 5))->list_hash, 5);
    hth_kept_drop(find(k, 2, 6));
    assert_null(find(k, 2, 6));
    hth_world_run_for(w, 5 * HTH_US_PER_S);
    assert_null(find(k, 1, 5));
    assert_int_equal(hth_kept_bytes(k), 0);
    hth_kept_free(k);
    caller_stop(&c);
    hth_world_free(w);
}
