/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members and strangers that lie: parts that do not fit, repeats, rounds that never begin, answers
 * that make no sense, and too little room. Nobody else's result suffers.
 */
#include "averaging/part.h"
#include "averaging/reduce_swarm.h"
#include "support/suite.h"

#include "core/mem.h"

#define ALL   UINT32_MAX
#define COUNT 40000u

/* ---- a hand-made request ------------------------------------------------------------------- */

struct verdict {
    uint32_t count;
    enum hth_err err;
    bool remote;
    float first; /* of the answer */
    uint64_t bytes;
};

static void on_verdict(void *arg, const struct hth_rpc_result *r)
{
    struct verdict *v = arg;
    v->count++;
    v->err = r->err;
    v->remote = r->remote;
    v->bytes = r->tensor_count > 0 ? r->tensors->dim[0] : 0;
    if (r->err != HTH_OK)
        return;
    struct hth_part_reply reply;
    assert_ok(hth_part_reply_open(r->payload, r->payload_len, v->bytes, &reply));
    if (v->bytes >= 4)
        memcpy(&v->first, r->tensors->blob->data + r->tensors->offset, 4);
}

struct request {
    struct hth_part_head head;
    struct hth_segment segment;
    uint32_t bytes; /* of its tensor */
    enum hth_dtype dtype;
    uint32_t tensors;
    const void *payload; /* instead of the head */
    size_t payload_len;
};

/* A part of `floats` floats, all `value`, as member `from` would send it. */
static struct request request_of(const struct reduce_swarm *s, uint32_t from, uint32_t part,
                                 uint32_t floats)
{
    return (struct request){
        .head = {.group = {{s->group, 1, 2, 3}}, .part = part, .segment_count = 1},
        .segment = {HTH_QUANT_F32, floats},
        .bytes = 4 * floats,
        .dtype = HTH_U8,
        .tensors = 1};
}

static void post(struct reduce_peer *from, const struct reduce_peer *to, struct request *r,
                 float value, struct verdict *v)
{
    uint8_t payload[HTH_PART_BYTES_MAX];
    size_t bytes = r->bytes;
    struct hth_blob *blob = hth_blob_try_new(HTH_MAX(bytes, (size_t)1));
    assert_non_null(blob);
    for (size_t i = 0; i + 4 <= bytes; i += 4)
        memcpy(blob->data + i, &value, 4);
    r->head.segments[0] = r->segment;
    struct hth_tensor t = {r->dtype, 1, {bytes / hth_dtype_size(r->dtype)}, blob, 0};
    struct hth_tensor two[2] = {t, t};
    struct hth_rpc_target target = {to->env->self, to->swarm->member[to->index].addr};
    struct hth_rpc_call_opts opts = {.method = HTH_REDUCE_METHOD, .timeout_us = 10000000};
    opts.body.payload = payload;
    opts.body.payload_len = hth_part_pack(&r->head, payload);
    if (r->payload != NULL) {
        opts.body.payload = r->payload;
        opts.body.payload_len = r->payload_len;
    }
    opts.body.tensors = two;
    opts.body.tensor_count = r->tensors;
    memset(v, 0, sizeof(*v));
    assert_ok(hth_rpc_call(from->rpc, &target, &opts, on_verdict, v, NULL));
    hth_blob_unref(blob);
}

static bool has_verdict(void *arg)
{
    return ((struct verdict *)arg)->count > 0;
}

static void expect(struct reduce_swarm *s, struct verdict *v, enum hth_err err)
{
    assert_true(hth_world_run_until_true(s->world, has_verdict, v, 20 * HTH_US_PER_S));
    if (v->err != err)
        fail_msg("%s, not %s", hth_err_name(v->err), hth_err_name(err));
}

/* Members 0 and 1 will take part; 2 is listed but its parts are made by hand; 3 is a stranger. The
 * others reduce nothing, so that member 0's share is everything, in three parts. */
static void hand_swarm(struct reduce_swarm *s, uint64_t seed)
{
    swarm_defaults(s);
    swarm_new(s, seed, 4, COUNT);
    s->absent = 8;
    for (uint32_t i = 1; i < 3; i++)
        s->member[i].bandwidth = 0;
}

static uint32_t part_floats(uint32_t k)
{
    return (625 * (k + 1) / 3 - 625 * k / 3) * 64;
}

/* ---- parts that do not fit ----------------------------------------------------------------- */

TEST(misfits)
{
    struct reduce_swarm s;
    struct verdict v;
    struct request r;
    hand_swarm(&s, 1);
    peer_start(&s.peer[0]);
    peer_start(&s.peer[1]);
    struct reduce_peer *liar = &s.peer[2], *to = &s.peer[0];
    const struct request good = request_of(&s, 2, 0, part_floats(0));
#define REFUSED(who, want, change)                                                                 \
    do {                                                                                           \
        r = good;                                                                                  \
        change;                                                                                    \
        post(who, to, &r, 1, &v);                                                                  \
        expect(&s, &v, want);                                                                      \
        assert_true(v.remote);                                                                     \
    } while (0)
    REFUSED(&s.peer[3], HTH_E_BAD_PEER_ID, (void)0);
    REFUSED(liar, HTH_E_RANGE, r.head.part = 3);
    REFUSED(liar, HTH_E_RANGE, r.head.part = UINT32_MAX);
    REFUSED(liar, HTH_E_BAD_SHAPE, (r.segment.count -= 64, r.bytes -= 256));
    REFUSED(liar, HTH_E_BAD_SHAPE, (r.segment.count += 64, r.bytes += 256));
    REFUSED(liar, HTH_E_BAD_SHAPE, r.segment.format = HTH_QUANT_F16);
    REFUSED(liar, HTH_E_UNSUPPORTED, r.segment.format = (enum hth_quant_format)77);
    REFUSED(liar, HTH_E_BAD_SHAPE, r.tensors = 2);
    REFUSED(liar, HTH_E_BAD_SHAPE, r.tensors = 0);
    REFUSED(liar, HTH_E_BAD_SHAPE, r.dtype = HTH_F32);
    REFUSED(liar, HTH_E_MALFORMED, (r.payload = "\xff\xff\xff", r.payload_len = 3));
    REFUSED(liar, HTH_E_MALFORMED, r.payload = "");
#undef REFUSED
    /* The honest ones still wait for member 2, which then does as it should. */
    assert_false(swarm_is_done(&s));
    struct verdict all[3];
    for (uint32_t k = 0; k < 3; k++) {
        r = request_of(&s, 2, k, part_floats(k));
        post(liar, to, &r, 5, &all[k]);
    }
    swarm_run(&s);
    for (uint32_t k = 0; k < 3; k++)
        expect(&s, &all[k], HTH_OK);
    for (uint32_t i = 0; i < 2; i++) {
        assert_ok(s.peer[i].result.err);
        assert_int_equal(s.peer[i].result.dropped, 0);
        for (uint32_t k = 0; k < COUNT; k += 17) {
            double mean = (mean_of(&s, 3, k) * 3 + 5 * 3) / 6;
            assert_close(average_of(&s.peer[i])[k], mean, 0, 1e-6);
        }
    }
    swarm_free(&s);
}

/* ---- repeats ------------------------------------------------------------------------------- */

/* The first values of a part count, and the first request is answered: others are refused. */
TEST(repeats)
{
    struct reduce_swarm s;
    struct verdict first, again, rest[2];
    struct request r;
    hand_swarm(&s, 2);
    struct reduce_peer *sender = &s.peer[2], *to = &s.peer[0];
    peer_start(to);
    r = request_of(&s, 2, 0, part_floats(0));
    post(sender, to, &r, 5, &first);
    hth_world_run_for(s.world, 20 * HTH_US_PER_MS);
    post(sender, to, &r, 6, &again);
    expect(&s, &again, HTH_E_DUPLICATE);
    peer_start(&s.peer[1]);
    expect(&s, &first, HTH_OK);
    assert_close(first.first, (mean_of(&s, 3, 0) * 3 + 5 * 3) / 6, 0, 1e-6);
    post(sender, to, &r, 1000, &again);
    expect(&s, &again, HTH_E_DUPLICATE);
    for (uint32_t k = 1; k < 3; k++) {
        struct request other = request_of(&s, 2, k, part_floats(k));
        post(sender, to, &other, 5, &rest[k - 1]);
    }
    swarm_run(&s);
    expect(&s, &rest[0], HTH_OK);
    expect(&s, &rest[1], HTH_OK);
    for (uint32_t k = 0; k < COUNT; k += 11)
        assert_close(average_of(&s.peer[1])[k], (mean_of(&s, 3, k) * 3 + 5 * 3) / 6, 0, 1e-6);
    post(sender, to, &r, 5, &first);
    expect(&s, &first, HTH_E_EXPIRED);
    swarm_free(&s);
}

/* A narrow part with NaN in it is in no mean. Its answer is the mean in fp32, not the room for an
 * answer in its own format, which nobody wrote. */
TEST(damaged_narrow)
{
    struct reduce_swarm s;
    struct verdict answer;
    hand_swarm(&s, 5);
    peer_start(&s.peer[0]);
    peer_start(&s.peer[1]);
    for (uint32_t k = 0; k < 3; k++) {
        struct request r = request_of(&s, 2, k, part_floats(k));
        r.segment.format = HTH_QUANT_F16;
        r.bytes = 2 * r.segment.count;
        post(&s.peer[2], &s.peer[0], &r, NAN, &answer); /* its upper half is NaN in fp16, too */
        expect(&s, &answer, HTH_OK);
        assert_int_equal(answer.bytes, 4 * (uint64_t)part_floats(k));
        if (k == 0)
            assert_close(answer.first, mean_of(&s, 3, 0), 0, 1e-6);
    }
    swarm_run(&s);
    for (uint32_t i = 0; i < COUNT; i += 11)
        assert_close(average_of(&s.peer[1])[i], mean_of(&s, 3, i), 0, 1e-6);
    swarm_free(&s);
}

/* ---- rounds that never begin --------------------------------------------------------------- */

/* Parts of a round that has not begun: few of one peer, so many bytes and so many parts of all, and
 * for a while. */
TEST(never_begins)
{
    static const struct {
        uint32_t peers, floats, held; /* each sends one more than it may */
    } cases[] = {
        {1, 64, HTH_AVG_EARLY_PER_PEER_MAX},
        {5, HTH_AVG_PART_FLOATS_MAX, HTH_AVG_EARLY_BYTES_MAX / 4 / HTH_AVG_PART_FLOATS_MAX},
        {17, 64, HTH_AVG_EARLY_PARTS_MAX}};
    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        struct reduce_swarm s;
        static struct verdict v[17 * (HTH_AVG_EARLY_PER_PEER_MAX + 1)];
        uint32_t n = 0, busy = 0, late = 0;
        swarm_defaults(&s);
        s.world_opts.ghost = true;
        swarm_new(&s, 4, cases[c].peers + 1, COUNT);
        for (uint32_t p = 1; p <= cases[c].peers; p++) {
            for (uint32_t i = 0; i <= HTH_AVG_EARLY_PER_PEER_MAX; i++) {
                struct request r = request_of(&s, p, i, cases[c].floats);
                post(&s.peer[p], &s.peer[0], &r, 1, &v[n++]);
            }
        }
        hth_world_run_for(s.world, 4 * HTH_US_PER_S);
        for (uint32_t i = 0; i < n; i++) {
            busy += v[i].err == HTH_E_BUSY;
            late += v[i].err == HTH_E_EXPIRED;
        }
        assert_int_equal(busy, n - cases[c].held);
        assert_int_equal(late, cases[c].held);
        swarm_free(&s);
    }
}

/* ---- reducers that lie --------------------------------------------------------------------- */

/* What a lying reducer answers is not used, nor what is no number: its parts keep the local values,
 * and all others are right. */
TEST(lying_reducer)
{
    static const struct reduce_lie lies[] = {
        {.garbage = true}, {.brief = true},
        {.missing = 7}, /* and a mean, of nobody */
        {.refuses = true}, {.value = -INFINITY},
        {.value = NAN},    {.value = NAN, .format = HTH_QUANT_BF16},
    };
    for (size_t k = 0; k < HTH_ARRAY_LEN(lies); k++) {
        struct reduce_swarm s;
        uint32_t third = COUNT * 4 / 3 + 64; /* the last share is member 2's */
        double most = lies[k].format == HTH_QUANT_BF16 ? 0.03 : 3e-6;
        swarm_defaults(&s);
        if (lies[k].format != 0)
            s.format = lies[k].format;
        swarm_new(&s, 6, 3, 2 * COUNT);
        peer_lies(&s.peer[2], &lies[k]);
        peer_start(&s.peer[0]);
        peer_start(&s.peer[1]);
        swarm_run(&s);
        for (uint32_t i = 0; i < 2; i++) {
            const struct reduce_peer *p = &s.peer[i];
            assert_ok(p->result.err);
            assert_true(p->result.parts_kept > 0 && p->result.weight_fraction < 1);
            assert_int_equal(p->fates[2].as_reducer, HTH_REDUCE_DROP_REFUSED);
            assert_memory_equal(average_of(p) + third, values_of(p) + third,
                                (2 * COUNT - third) * sizeof(float));
            assert_true(deviation(p, 3, 0, COUNT / 2) < most);
        }
        swarm_free(&s);
    }
}

/* ---- too little room ----------------------------------------------------------------------- */

/* The reducers' endpoints take few bytes at a time from each, or in all: parts come again until all
 * are through, or keep the local values, and nothing leaks. */
TEST(little_room)
{
    for (int all = 0; all < 2; all++) {
        struct reduce_swarm s;
        struct hth_budget budget;
        swarm_defaults(&s);
        hth_budget_init(&budget, 3 << 20, NULL);
        if (all)
            s.rpc_opts.budget = &budget;
        else
            s.rpc_opts.peer_bytes_max = 600u << 10;
        s.reducer_opts.patience_us = 20 * HTH_US_PER_S;
        swarm_new(&s, 7, 3, 1u << 20);
        swarm_round(&s);
        for (uint32_t i = 0; i < 3; i++) {
            const struct hth_reduce_result *r = &s.peer[i].result;
            assert_ok(r->err);
            assert_true(r->weight_fraction > 0.3);
            for (uint32_t k = 0; k < 1u << 20 && !all; k += 31) {
                double y = (double)average_of(&s.peer[i])[k];
                bool kept = y == (double)values_of(&s.peer[i])[k];
                assert_true(kept || fabs(y - mean_of(&s, ALL, k)) < 4e-6);
            }
        }
        swarm_free(&s);
        assert_int_equal(hth_budget_used(&budget), 0);
    }
}
