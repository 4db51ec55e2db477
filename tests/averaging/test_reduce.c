/* SPDX-License-Identifier: Apache-2.0 */
/* The reduction when nothing goes wrong: the mean against float64, bits, roles, formats, sizes. */
#include "averaging/reduce_swarm.h"
#include "support/suite.h"

#include "core/mem.h"

#define ALL UINT32_MAX

/* fp32: the mean to rounding, and the same bits everywhere, whoever reduces. */
TEST(fp32)
{
    static const struct {
        uint32_t n;
        uint64_t count;
        uint32_t clients, helpers; /* bits: who only sends, and who only reduces */
    } cases[] = {{1, 1, 0, 0},       {2, 63, 0, 0},          {3, 1024, 0, 0},
                 {5, 65537, 0, 0},   {16, 300001, 0, 0},     {4, 1u << 20, 0, 0},
                 {4, 70000, 0xe, 0}, {5, 100000, 0xa, 0x10}, {1, 300001, 0, 0},
                 {2, 300001, 0, 0},  {16, 1, 0, 0}};
    for (size_t c = 0; c < HTH_ARRAY_LEN(cases); c++) {
        struct reduce_swarm s;
        uint32_t n = cases[c].n;
        uint64_t bytes = 0;
        double weight = 0;
        swarm_defaults(&s);
        swarm_new(&s, 7 + n, n, cases[c].count);
        for (uint32_t i = 0; i < n; i++) {
            s.member[i].bandwidth = cases[c].clients >> i & 1 ? 0 : 1e9;
            s.member[i].weight = cases[c].helpers >> i & 1 ? 0 : i + 1;
            weight += s.member[i].weight;
        }
        swarm_roles(&s);
        swarm_round(&s);
        for (uint32_t i = 0; i < n; i++) {
            struct reduce_peer *p = &s.peer[i];
            check_calm(p);
            bytes += p->result.bytes_out;
            assert_int_equal(p->average == NULL, s.member[i].weight == 0);
            if (p->average == NULL)
                continue;
            assert_memory_equal(average_of(p), average_of(&s.peer[0]), s.count * sizeof(float));
            assert_close(p->result.weight, weight, 1e-9, 0);
        }
        assert_true(deviation(&s.peer[0], ALL, 0, s.count) <= 4e-7 * (n + 4));
        /* Everybody sent what others reduce, and got it back. */
        if (cases[c].helpers == 0)
            assert_int_equal(bytes, 2 * (n - 1) * s.count * sizeof(float));
        swarm_free(&s);
    }
}

/* ||x - mean|| / ||mean|| */
static double error_of(const struct reduce_peer *p)
{
    double lost = 0, was = 0;
    for (uint64_t i = 0; i < p->swarm->count; i++) {
        double mean = mean_of(p->swarm, ALL, i), d = (double)average_of(p)[i] - mean;
        lost += d * d;
        was += mean * mean;
    }
    return sqrt(lost / was);
}

/* The error of what comes out is relative to how far the own values were from the mean: where all
 * hold the same they hold it still, but for the last bits. One answer for all is no wider than one
 * for each. */
TEST(formats)
{
    enum { USUAL, ALIKE, SAME, WAYS, COUNT = 200000 };
    static const struct {
        enum hth_quant_format format;
        double least, most;
    } cases[] = {{HTH_QUANT_F16, 5e-5, 1e-3},
                 {HTH_QUANT_BF16, 5e-4, 8e-3},
                 {HTH_QUANT_INT8, 1e-3, 2e-2},
                 {HTH_QUANT_DYNAMIC8, 2e-3, 3e-2},
                 {HTH_QUANT_UNIFORM8, 1e-3, 8e-2}};
    for (size_t k = 0; k < WAYS * HTH_ARRAY_LEN(cases); k++) {
        struct reduce_swarm s;
        uint64_t bytes = hth_quant_bytes(cases[k / WAYS].format, COUNT);
        double least = cases[k / WAYS].least, most = cases[k / WAYS].most;
        swarm_defaults(&s);
        s.same = k % WAYS == SAME;
        s.format = cases[k / WAYS].format;
        swarm_new(&s, 3, 4, COUNT);
        for (uint32_t i = 1; i < s.n && k % WAYS == ALIKE; i++)
            memcpy(values_of(&s.peer[i]), values_of(&s.peer[0]), s.count * sizeof(float));
        swarm_round(&s);
        for (uint32_t i = 0; i < s.n; i++) {
            const struct hth_reduce_result *r = &s.peer[i].result;
            check_calm(&s.peer[i]);
            if (k % WAYS == ALIKE)
                assert_true(error_of(&s.peer[i]) < 1e-6);
            else if (k % WAYS != SAME)
                assert_true(relative(&s.peer[i], ALL) > least && relative(&s.peer[i], ALL) < most);
            /* uniform8 has a code book in every part. */
            assert_close(r->bytes_out, 1.5 * (double)bytes, 0.1, 0);
        }
        swarm_free(&s);
    }
}

/* A vector in several formats; each member chooses its own. fp32 stretches are the mean itself. */
TEST(mixed)
{
    struct reduce_swarm s;
    struct hth_avg_span spans[] = {
        {50000, HTH_QUANT_INT8}, {100, HTH_QUANT_F32}, {60000, HTH_QUANT_F16}};
    swarm_defaults(&s);
    swarm_new(&s, 4, 3, 110100);
    s.spans = spans;
    s.span_count = 3;
    peer_start(&s.peer[0]);
    peer_start(&s.peer[1]);
    s.spans = NULL;
    peer_start(&s.peer[2]);
    swarm_run(&s);
    for (uint32_t i = 0; i < 3; i++) {
        check_calm(&s.peer[i]);
        assert_true(deviation(&s.peer[i], ALL, 0, 50000) < 0.06);
        assert_true(deviation(&s.peer[i], ALL, 50000, 50100) < 2e-6);
        assert_true(deviation(&s.peer[i], ALL, 50100, 110100) < 4e-3);
        assert_memory_equal(average_of(&s.peer[i]) + 50000, average_of(&s.peer[0]) + 50000, 400);
    }
    swarm_free(&s);
}

/* All hold the same bits: who reduces and who is a client, who sends narrow values and who (the
 * last) does not. */
TEST(same)
{
    enum { CALM, CLIPPED, WAYS };
    static const struct {
        enum hth_quant_format format;
        double most;
    } cases[] = {{HTH_QUANT_F32, 1e-6},  {HTH_QUANT_F16, 1e-3},      {HTH_QUANT_BF16, 8e-3},
                 {HTH_QUANT_INT8, 3e-2}, {HTH_QUANT_DYNAMIC8, 4e-2}, {HTH_QUANT_UNIFORM8, 1e-1}};
    for (size_t k = 0; k < WAYS * HTH_ARRAY_LEN(cases); k++) {
        struct reduce_swarm s;
        swarm_defaults(&s);
        s.same = true;
        s.reducer_opts.clip = k % WAYS == CLIPPED ? 2 : 0;
        swarm_new(&s, 3, 5, 60000);
        s.member[1].bandwidth = 0;
        swarm_roles(&s);
        for (uint32_t i = 0; i < s.n; i++) {
            s.format = i < 4 ? cases[k / WAYS].format : HTH_QUANT_F32;
            peer_start(&s.peer[i]);
        }
        swarm_run(&s);
        for (uint32_t i = 0; i < s.n; i++)
            check_calm(&s.peer[i]);
        check_same(&s);
        assert_true(k % WAYS == CLIPPED || error_of(&s.peer[0]) < cases[k / WAYS].most);
        swarm_free(&s);
    }
}

/* Bandwidths, and clients, of groups that reduce the same values; whether one more hears. */
static const double fixed_lines[][6] = {{1e9, 1e9, 1e9, 1e9, 1e9, false},
                                        {1e9, 0, 3e9, 0, 1e9, true},
                                        {2e7, 1e8, 0, 1e9, 1e9, false},
                                        {0, 0, 0, 0, 1e9, true}};

/* The mean of such a group. To be freed with hth_free. */
static float *reduce_fixed(enum hth_quant_format format, double clip, const double *lines)
{
    static const uint32_t count = 60000;
    const struct hth_avg_span spans[] = {
        {1001, HTH_QUANT_F32}, {30003, format}, {7, HTH_QUANT_F16}, {28989, format}};
    struct reduce_swarm s;
    swarm_defaults(&s);
    s.same = s.fixed = true;
    s.spans = spans;
    s.span_count = 4;
    s.share_max = 2;
    s.reducer_opts.clip = clip;
    swarm_new(&s, 3, lines[5] > 0 ? 6 : 5, count);
    s.member[5].weight = s.member[5].bandwidth = 0;
    for (uint32_t i = 0; i < 5; i++) {
        for (uint32_t k = 0; k < count; k++)
            values_of(&s.peer[i])[k] *= k < 900                   ? -0.0f
                                        : i == 2 && k > count / 2 ? 50
                                                                  : 1; /* one lies */
        s.member[i].bandwidth = lines[i];
    }
    swarm_roles(&s);
    swarm_round(&s);
    for (uint32_t i = 0; i < s.n; i++)
        check_calm(&s.peer[i]);
    check_same(&s);
    if (clip > 0) /* the liar's share of the sum, clipped */
        assert_true(fabsf(average_of(&s.peer[0])[count - 1]) < 10);
    float *bits = hth_new_array(float, count);
    memcpy(bits, average_of(&s.peer[0]), count * sizeof(float));
    swarm_free(&s);
    return bits;
}

/* Groups of the same values hold the same bits, whoever reduces how much. */
TEST(fixed)
{
    static const enum hth_quant_format formats[] = {HTH_QUANT_F32,      HTH_QUANT_F16,
                                                    HTH_QUANT_BF16,     HTH_QUANT_INT8,
                                                    HTH_QUANT_DYNAMIC8, HTH_QUANT_UNIFORM8};
    for (size_t i = 0; i < 2 * HTH_ARRAY_LEN(formats); i++) {
        double clip = i % 2 ? 2 : 0;
        float *first = reduce_fixed(formats[i / 2], clip, fixed_lines[0]);
        for (size_t k = 1; k < HTH_ARRAY_LEN(fixed_lines); k++) {
            float *other = reduce_fixed(formats[i / 2], clip, fixed_lines[k]);
            assert_memory_equal(first, other, 60000 * sizeof(float));
            hth_free(other);
        }
        hth_free(first);
    }
}

/* Several rounds at the same time between the same peers do not mix. */
TEST(rounds_at_once)
{
    struct reduce_swarm s, t;
    swarm_defaults(&s);
    swarm_new(&s, 9, 3, 90000);
    t = s;
    t.group = 77;
    t.count = 40000;
    for (uint32_t i = 0; i < 3; i++) {
        t.peer[i].swarm = &t;
        t.member[i].weight = 1;
    }
    swarm_start(&s);
    swarm_start(&t);
    swarm_run(&s);
    swarm_run(&t);
    for (uint32_t i = 0; i < 3; i++) {
        check_calm(&s.peer[i]);
        check_calm(&t.peer[i]);
        assert_true(deviation(&s.peer[i], ALL, 0, 90000) < 3e-6);
        assert_true(deviation(&t.peer[i], ALL, 0, 40000) < 3e-6);
        hth_blob_unref(t.peer[i].average);
    }
    swarm_free(&s);
}

/* ---- what start refuses -------------------------------------------------------------------- */

static void never(void *arg, const struct hth_reduce_result *result)
{
    fail_msg("a round that was refused reported");
}

TEST(bad_options)
{
    struct reduce_swarm s;
    struct hth_reducer *red;
    swarm_defaults(&s);
    swarm_new(&s, 11, 3, 1000);
    const struct hth_reduce_opts good = {.members = s.member,
                                         .member_count = 3,
                                         .values = s.peer[0].values,
                                         .count = 1000,
                                         .timeout_us = 1000000,
                                         .done = never};
    struct hth_reduce_opts o;
    struct hth_reduce_round *round;
#define REFUSED(want, change)                                                                      \
    do {                                                                                           \
        o = good;                                                                                  \
        change;                                                                                    \
        assert_err(want, hth_reduce_start(s.peer[0].reducer, &o, &round));                         \
        assert_null(round);                                                                        \
    } while (0)
    REFUSED(HTH_E_RANGE, o.member_count = 0);
    REFUSED(HTH_E_RANGE, o.member_count = HTH_AVG_MEMBERS_MAX + 1);
    REFUSED(HTH_E_RANGE, o.self = 3);
    REFUSED(HTH_E_RANGE, o.count = 0);
    REFUSED(HTH_E_RANGE, o.count = 1001);
    REFUSED(HTH_E_RANGE, o.count = HTH_PARAMS_FLOATS_MAX + 1);
    REFUSED(HTH_E_RANGE, o.values = NULL);
    REFUSED(HTH_E_RANGE, o.timeout_us = 0);
    REFUSED(HTH_E_RANGE, o.timeout_us = HTH_AVG_REDUCE_TIMEOUT_MAX_US + 1);
    struct hth_avg_span span = {1000, HTH_QUANT_DYNAMIC8U};
    REFUSED(HTH_E_UNSUPPORTED, (o.spans = &span, o.span_count = 1));
    static const double weights[] = {-1, NAN, INFINITY, HTH_AVG_WEIGHT_MAX * 1.001};
    for (size_t i = 0; i < HTH_ARRAY_LEN(weights); i++) {
        double was = s.member[1].weight;
        s.member[1].weight = weights[i];
        REFUSED(HTH_E_RANGE, (void)0);
        s.member[1].weight = was;
    }
    s.member[2].bandwidth = -1;
    REFUSED(HTH_E_RANGE, (void)0);
    s.member[2] = s.member[1];
    REFUSED(HTH_E_DUPLICATE, (void)0);
#undef REFUSED
    static const struct hth_reducer_opts bad[] = {{.patience_us = 1}, {1, 1, 0.5}, {1, 1, NAN}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        assert_err(HTH_E_CONFIG, hth_reducer_new(s.peer[0].env, s.peer[0].rpc, &bad[i], &red));
        assert_null(red);
    }
    swarm_free(&s);
}

/* A group is reduced once, and only so many at a time. */
TEST(bounds)
{
    struct reduce_swarm s;
    struct hth_reducer_stats stats;
    swarm_defaults(&s);
    swarm_new(&s, 12, 2, 1000);
    struct hth_reduce_opts o = {.members = s.member,
                                .member_count = 2,
                                .values = s.peer[0].values,
                                .count = 1000,
                                .timeout_us = 1000000,
                                .done = never};
    struct hth_reduce_round *round[HTH_AVG_ROUNDS_MAX], *more;
    for (uint32_t i = 0; i < HTH_AVG_ROUNDS_MAX; i++) {
        o.group.b[0] = (uint8_t)i;
        assert_ok(hth_reduce_start(s.peer[0].reducer, &o, &round[i]));
    }
    assert_err(HTH_E_DUPLICATE, hth_reduce_start(s.peer[0].reducer, &o, &more));
    o.group.b[0] = 200;
    assert_err(HTH_E_BUDGET, hth_reduce_start(s.peer[0].reducer, &o, &more));
    hth_reducer_stats(s.peer[0].reducer, &stats);
    assert_int_equal(stats.rounds_now, HTH_AVG_ROUNDS_MAX);
    for (uint32_t i = 0; i < HTH_AVG_ROUNDS_MAX; i++)
        hth_reduce_cancel(round[i]);
    o.group.b[0] = 5;
    assert_err(HTH_E_DUPLICATE, hth_reduce_start(s.peer[0].reducer, &o, &more));
    hth_reducer_stats(s.peer[0].reducer, &stats);
    assert_int_equal(stats.rounds_now, 0);
    hth_world_run_for(s.world, 3 * HTH_US_PER_S);
    swarm_free(&s);
}
