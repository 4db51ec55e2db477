/* SPDX-License-Identifier: Apache-2.0 */
/* A member that only observes: it is told the mean, and the others never notice. */
#include "averaging/part.h"
#include "averaging/reduce_swarm.h"

#include "core/mem.h"

#define ALL   UINT32_MAX
#define COUNT 300001

/* n members, of whom one in the middle observes. */
static void listening(struct reduce_swarm *s, uint64_t seed, uint32_t n, uint32_t who)
{
    swarm_new(s, seed, n, COUNT);
    s->member[who].weight = s->member[who].bandwidth = 0;
    swarm_roles(s);
}

static uint64_t bytes_out(const struct reduce_swarm *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n; i++)
        bytes += s->peer[i].result.bytes_out;
    return bytes;
}

/* The same bits with and without it; and it costs the others its vector once. */
static void hears_the_mean(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 6; n++) {
        struct reduce_swarm s;
        uint64_t alone;
        float *mean = hth_new_array(float, COUNT);
        swarm_defaults(&s);
        listening(&s, n, n, 1);
        s.absent = 1u << 1;
        swarm_start(&s);
        swarm_run(&s);
        memcpy(mean, average_of(&s.peer[0]), COUNT * sizeof(float));
        alone = bytes_out(&s);
        swarm_next(&s);
        s.absent = 0;
        swarm_start(&s);
        swarm_run(&s);
        assert_int_equal(bytes_out(&s), alone + COUNT * sizeof(float));
        for (uint32_t i = 0; i < n; i++) {
            const struct hth_reduce_result *r = &s.peer[i].result;
            assert_ok(r->err);
            assert_int_equal(r->dropped, 0);
            assert_int_equal(r->parts_kept, 0);
            assert_close(r->weight_fraction, 1, 1e-9, 0);
            assert_close(r->weight, n * (n + 1) / 2.0 - 2, 1e-9, 0);
            assert_memory_equal(average_of(&s.peer[i]), mean, COUNT * sizeof(float));
        }
        assert_int_equal(s.peer[1].result.bytes_out, 0);
        assert_int_equal(s.peer[1].result.bytes_in, COUNT * sizeof(float));
        hth_free(mean);
        swarm_free(&s);
    }
}

/* What it is told is as exact as the format, no wider, and what the others have. */
static void hears_narrow(void **state)
{
    static const struct {
        enum hth_quant_format format;
        double most;
    } cases[] = {{HTH_QUANT_F16, 1e-3},
                 {HTH_QUANT_BF16, 8e-3},
                 {HTH_QUANT_INT8, 2e-2},
                 {HTH_QUANT_DYNAMIC8, 3e-2}};
    (void)state;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct reduce_swarm s;
        struct hth_avg_span span = {COUNT, cases[k].format};
        double lost = 0, was = 0;
        swarm_defaults(&s);
        s.spans = &span;
        s.span_count = 1;
        s.same = true;
        listening(&s, 20 + k, 4, 2);
        swarm_start(&s);
        swarm_run(&s);
        for (uint64_t i = 0; i < COUNT; i++) {
            double mean = mean_of(&s, ALL, i), d = (double)average_of(&s.peer[2])[i] - mean;
            lost += d * d;
            was += mean * mean;
        }
        assert_true(sqrt(lost / was) < cases[k].most);
        assert_int_equal(s.peer[2].result.parts_kept, 0);
        assert_memory_equal(average_of(&s.peer[2]), average_of(&s.peer[0]), COUNT * sizeof(float));
        assert_close(s.peer[2].result.bytes_in, (double)hth_quant_bytes(cases[k].format, COUNT),
                     0.01, 0);
        swarm_free(&s);
    }
}

/* Who never asks takes nothing of the bytes that others may make us hold, while rounds linger. */
static void holds_no_budget(void **state)
{
    struct reduce_swarm s;
    struct hth_budget budget;
    struct hth_avg_span span = {COUNT, HTH_QUANT_F16};
    (void)state;
    hth_budget_init(&budget, 64 << 20, NULL);
    swarm_defaults(&s);
    s.rpc_opts.budget = &budget;
    s.spans = &span;
    s.span_count = 1;
    s.same = true;
    listening(&s, 36, 4, 1);
    for (uint32_t i = 0; i < 4; i++) {
        if (i != 1)
            peer_start(&s.peer[i]);
    }
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        struct hth_reducer_stats stats;
        if (i == 1)
            continue;
        hth_reducer_stats(s.peer[i].reducer, &stats);
        assert_int_equal(stats.lingering_now, 1);
    }
    assert_int_equal(hth_budget_used(&budget), 0);
    swarm_free(&s);
}

/* ---- its end ------------------------------------------------------------------------------- */

enum end { LIVES, KILLED, FROZEN, NEVER_BEGAN, ENDS };

/* Whatever becomes of it, the others take as long as with one that lives, and get the same bits. */
static int64_t run_end(enum end end, int64_t at_us, int64_t calm_us, float *mean)
{
    struct reduce_swarm s;
    int64_t most = 0;
    swarm_defaults(&s);
    s.world_opts.device.up_bytes_per_s = s.world_opts.device.down_bytes_per_s = 20e6;
    listening(&s, 31, 4, 1);
    for (uint32_t i = 0; i < 4; i++) {
        if (end != NEVER_BEGAN || i != 1)
            peer_start(&s.peer[i]);
    }
    if (at_us > 0)
        hth_world_run_for(s.world, at_us);
    if (end == KILLED || end == FROZEN)
        hth_node_crash(s.peer[1].node, end == KILLED ? HTH_CRASH_RESET : HTH_CRASH_SILENT);
    swarm_run(&s);
    for (uint32_t i = 0; i < 4; i++) {
        const struct hth_reduce_result *r = &s.peer[i].result;
        if (i == 1)
            continue;
        assert_ok(r->err);
        assert_int_equal(r->dropped, 0);
        assert_int_equal(r->parts_kept, 0);
        assert_true(calm_us == 0 || r->took_us <= calm_us);
        most = HTH_MAX(most, r->took_us);
        if (calm_us == 0 && i == 0)
            memcpy(mean, average_of(&s.peer[i]), COUNT * sizeof(float));
        assert_memory_equal(average_of(&s.peer[i]), mean, COUNT * sizeof(float));
    }
    swarm_free(&s);
    return most;
}

static void is_not_missed(void **state)
{
    float *mean = hth_new_array(float, COUNT);
    int64_t calm = run_end(LIVES, 0, 0, mean);
    (void)state;
    for (enum end end = KILLED; end < ENDS; end++) {
        for (int64_t at = 0; at < calm; at += calm / 8) {
            int64_t took = run_end(end, at, calm + HTH_US_PER_MS, mean);
            if (at == 0)
                print_message("end %d: %lld of %lld us\n", end, (long long)took, (long long)calm);
        }
    }
    hth_free(mean);
}

/* Who is silent is held against the others' silence, and those who observe owe nothing: most stand
 * still for a while, one for longer, and it is not taken for dead. */
static void is_no_measure(void **state)
{
    struct reduce_swarm s;
    (void)state;
    swarm_defaults(&s);
    swarm_new(&s, 35, 7, COUNT);
    for (uint32_t i = 4; i < 7; i++)
        s.member[i].weight = s.member[i].bandwidth = 0;
    swarm_roles(&s);
    swarm_start(&s); /* all are connected then */
    swarm_run(&s);
    swarm_next(&s);
    for (uint32_t i = 0; i < 7; i++) {
        if (i >= 1 && i < 4)
            hth_node_stall(s.peer[i].node, (i < 3 ? 340 : 580) * HTH_US_PER_MS);
        else
            peer_start(&s.peer[i]);
    }
    swarm_for(&s, 341 * HTH_US_PER_MS);
    peer_start(&s.peer[1]);
    peer_start(&s.peer[2]);
    swarm_for(&s, 240 * HTH_US_PER_MS);
    peer_start(&s.peer[3]);
    swarm_run(&s);
    for (uint32_t i = 0; i < 7; i++) {
        assert_ok(s.peer[i].result.err);
        assert_int_equal(s.peer[i].result.dropped, 0);
        assert_int_equal(s.peer[i].result.parts_kept, 0);
    }
    swarm_free(&s);
}

/* A line of a twentieth: the others are done long before, and it is told the rest. */
static void may_be_slow(void **state)
{
    struct reduce_swarm s;
    struct hth_device slow;
    int64_t calm;
    (void)state;
    swarm_defaults(&s);
    s.world_opts.device.up_bytes_per_s = s.world_opts.device.down_bytes_per_s = 20e6;
    s.reducer_opts.linger_us = 400 * HTH_US_PER_MS;
    s.reducer_opts.window_bytes_max = 64u << 10;
    listening(&s, 32, 4, 1);
    swarm_start(&s);
    swarm_run(&s);
    calm = s.peer[0].result.took_us;
    swarm_next(&s);
    slow = s.world_opts.device;
    slow.up_bytes_per_s = slow.down_bytes_per_s = 1e6;
    hth_node_set_device(s.peer[1].node, &slow);
    swarm_start(&s);
    swarm_run(&s);
    assert_true(s.peer[0].result.took_us <= calm + HTH_US_PER_MS);
    assert_true(s.peer[1].result.took_us > 1000 * HTH_US_PER_MS);
    assert_int_equal(s.peer[1].result.parts_kept, 0);
    assert_memory_equal(average_of(&s.peer[1]), average_of(&s.peer[0]), COUNT * sizeof(float));
    swarm_free(&s);
}

/* ---- the others' ends ---------------------------------------------------------------------- */

/* What it could not be told is said to be missing. */
static void a_reducer_dies(void **state)
{
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        struct reduce_swarm s;
        const struct reduce_peer *p = &s.peer[1];
        uint64_t holes = 0;
        swarm_defaults(&s);
        s.world_opts.device.up_bytes_per_s = s.world_opts.device.down_bytes_per_s = 20e6;
        listening(&s, 33, 4, 1);
        swarm_start(&s);
        hth_world_run_for(s.world, 20 * HTH_US_PER_MS);
        hth_node_crash(s.peer[2].node, frozen ? HTH_CRASH_SILENT : HTH_CRASH_RESET);
        swarm_run(&s);
        assert_ok(p->result.err);
        assert_true(p->result.parts_kept > 0);
        assert_int_equal(p->result.parts_kept, p->fates[2].parts_kept);
        assert_true(p->result.took_us < 1500 * HTH_US_PER_MS);
        for (uint64_t i = 0; i < COUNT; i++) {
            double y = (double)average_of(p)[i];
            holes += y == 0;
            assert_true(y == 0 || fabs(y - mean_of(&s, ALL, i)) < 4e-6 ||
                        fabs(y - mean_of(&s, ALL & ~4u, i)) < 4e-6);
        }
        assert_true(holes > 0 && holes <= COUNT / 3 + 64);
        swarm_free(&s);
    }
}

/* ---- lies ---------------------------------------------------------------------------------- */

struct verdict {
    uint32_t count;
    enum hth_err err;
    uint64_t bytes;
};

static void on_verdict(void *arg, const struct hth_rpc_result *r)
{
    struct verdict *v = arg;
    v->count++;
    v->err = r->err;
    v->bytes = r->tensor_count > 0 ? r->tensors->dim[0] : 0;
}

static bool has_verdict(void *arg)
{
    return ((struct verdict *)arg)->count > 0;
}

/* Part 0 of member 0, asked for by member 1; with `floats` floats. */
static struct verdict ask(struct reduce_swarm *s, uint32_t floats)
{
    uint8_t payload[HTH_PART_BYTES_MAX];
    struct hth_segment segment = {HTH_QUANT_F32, floats, 4 * floats, false};
    struct hth_part_head head = {
        .group = {{s->group, 1, 2, 3}}, .segments = &segment, .segment_count = floats > 0 ? 1 : 0};
    struct hth_blob *blob = hth_blob_try_new(4 * floats + 1);
    struct hth_tensor t = {HTH_U8, 1, {4 * floats}, blob, 0};
    struct hth_rpc_target target = {s->member[0].id, s->member[0].addr};
    struct hth_rpc_call_opts opts = {.method = HTH_REDUCE_METHOD, .timeout_us = HTH_US_PER_S};
    struct verdict v = {0};
    memset(blob->data, 0, 4 * floats + 1);
    opts.body.payload = payload;
    opts.body.payload_len = hth_part_pack(&head, payload);
    opts.body.tensors = &t;
    opts.body.tensor_count = floats > 0 ? 1 : 0;
    assert_ok(hth_rpc_call(s->peer[1].rpc, &target, &opts, on_verdict, &v, NULL));
    hth_blob_unref(blob);
    assert_true(hth_world_run_until_true(s->world, has_verdict, &v, 2 * HTH_US_PER_S));
    return v;
}

/* It brings nothing, and is not told the same for ever. */
static void asks_again_and_again(void **state)
{
    struct reduce_swarm s;
    uint64_t sent;
    (void)state;
    swarm_defaults(&s);
    listening(&s, 34, 3, 1);
    for (uint32_t i = 0; i < 3; i++) {
        if (i != 1)
            peer_start(&s.peer[i]);
    }
    swarm_run(&s);
    assert_int_equal(ask(&s, 16384).err, HTH_E_RANGE);
    sent = ask(&s, 0).bytes;
    assert_true(sent > 0);
    assert_int_equal(ask(&s, 0).bytes, sent);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ask(&s, 0).err, HTH_E_DUPLICATE);
    assert_int_equal(ask(&s, 16384).err, HTH_E_RANGE);
    swarm_free(&s);
}

/* Nor does it keep the round's values by that: they go when it has been told all it may be. */
static void holds_no_round(void **state)
{
    struct hth_reducer_stats stats;
    struct reduce_swarm s;
    (void)state;
    swarm_defaults(&s);
    listening(&s, 35, 3, 1);
    for (uint32_t i = 0; i < 3; i++) {
        if (i != 1)
            peer_start(&s.peer[i]);
    }
    swarm_run(&s);
    for (int i = 0; i < 10; i++) {
        (void)ask(&s, 0);
        hth_world_run_for(s.world, HTH_US_PER_S);
    }
    hth_reducer_stats(s.peer[0].reducer, &stats);
    assert_int_equal(stats.lingering_now, 0);
    swarm_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hears_the_mean),  cmocka_unit_test(hears_narrow),
        cmocka_unit_test(holds_no_budget), cmocka_unit_test(is_not_missed),
        cmocka_unit_test(is_no_measure),   cmocka_unit_test(may_be_slow),
        cmocka_unit_test(a_reducer_dies),  cmocka_unit_test(asks_again_and_again),
        cmocka_unit_test(holds_no_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
