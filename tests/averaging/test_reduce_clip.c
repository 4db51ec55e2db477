/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that lie with finite numbers, and what clipping leaves of it: nothing is changed where
 * nobody lies, and a liar moves the mean by no more than the radius times its share of the weight.
 */
#include "averaging/reduce_swarm.h"
#include "support/suite.h"

#include <math.h>

#include "core/mem.h"
#include "core/rng.h"

#define COUNT 30000

enum lie { HUGE_VALUES, TURNED, ANOTHER_WEIGHT };

static void scale(struct reduce_peer *p, float by)
{
    for (uint64_t i = 0; i < p->swarm->count; i++)
        values_of(p)[i] *= by;
}

/* Around a common vector of norm 3 a float, N(0, 1 / weight) off, as gradients are. */
static void alike(struct reduce_swarm *s, uint64_t seed)
{
    struct hth_rng common, own;

    for (uint32_t i = 0; i < s->n; i++) {
        hth_rng_init(&common, seed);
        hth_rng_init(&own, seed + 1 + i);
        for (uint64_t k = 0; k < s->count; k++) {
            double c = 3 * hth_rng_normal(&common);
            values_of(&s->peer[i])[k] =
                (float)(c + hth_rng_normal(&own) / sqrt(s->member[i].weight));
        }
    }
}

static void begin(struct reduce_swarm *s, uint64_t seed, uint32_t n, double clip, uint64_t count)
{
    swarm_defaults(s);
    s->reducer_opts.clip = clip;
    swarm_new(s, seed, n, count);
    for (uint32_t i = 0; i < n; i++)
        s->member[i].weight = 1;
    alike(s, seed);
}

/* Root of the mean square of (average - mean of `who`). */
static double off(const struct reduce_peer *p, uint32_t who)
{
    double sum = 0;

    for (uint64_t i = 0; i < COUNT; i++) {
        double d = (double)average_of(p)[i] - mean_of(p->swarm, who, i);
        sum += d * d;
    }
    return sqrt(sum / COUNT);
}

/* Where nobody is far off the bits are those without clipping, whatever the batches' sizes. */
TEST(the_honest)
{
    float *plain = hth_new_array(float, COUNT);

    static const double weights[8] = {1, 2, 40, 3, 5, 7, 1, 2};

    for (uint32_t n = 2; n <= 8; n += 3)
        for (int clipped = 0; clipped < 2; clipped++) {
            struct reduce_swarm s;

            begin(&s, 3, n, clipped ? 2 : 0, COUNT);
            for (uint32_t i = 0; i < n; i++)
                s.member[i].weight = weights[i];
            alike(&s, 3);
            swarm_round(&s);
            check_same(&s);
            if (!clipped)
                memcpy(plain, average_of(&s.peer[0]), COUNT * sizeof(float));
            else
                assert_memory_equal(average_of(&s.peer[0]), plain, COUNT * sizeof(float));
            swarm_free(&s);
        }
    hth_free(plain);
}

/* The last `liars` of n lie; they reduce nothing, or could say whatever they like of their shares.
 * Returns how far the others' average is from the mean of the honest. */
static double lied_to(uint32_t n, uint32_t liars, enum lie lie, double clip,
                      enum hth_quant_format format)
{
    uint32_t honest = (1u << (n - liars)) - 1;
    struct reduce_swarm s;
    double worst = 0;

    begin(&s, 11, n, clip, COUNT);
    for (uint32_t i = n - liars; i < n; i++) {
        s.member[i].bandwidth = 0;
        if (lie == ANOTHER_WEIGHT)
            s.member[i].weight = 1e6;
        scale(&s.peer[i], lie == TURNED ? -1.0f : 1e6f);
    }
    swarm_roles(&s);
    s.format = format;
    swarm_round(&s);
    for (uint32_t i = 0; i < n - liars; i++) {
        check_calm(&s.peer[i]);
        worst = hth_worse(worst, off(&s.peer[i], honest));
    }
    if (format == HTH_QUANT_F32)
        check_same(&s);
    swarm_free(&s);
    return worst;
}

/* What liars with a share a of the weight may move: the honest are sqrt(2) from each other. */
static double bound(double a)
{
    return a / (1 - a) * 2 * sqrt(2) * 1.02;
}

TEST(liars)
{
    static const enum lie lies[] = {HUGE_VALUES, TURNED, ANOTHER_WEIGHT};

    for (size_t i = 0; i < HTH_ARRAY_LEN(lies); i++) {
        double share = lies[i] == ANOTHER_WEIGHT ? 2.0 / 6 : 1.0 / 5; /* counts for two of six */
        double open = lied_to(5, 1, lies[i], 0, HTH_QUANT_F32);
        double kept = lied_to(5, 1, lies[i], 2, HTH_QUANT_F32);

        print_message("lie %zu: %.3g without, %.3g with clipping\n", i, open, kept);
        assert_true(open > 1);
        assert_true(kept < bound(share));
    }
    assert_true(lied_to(3, 1, HUGE_VALUES, 2, HTH_QUANT_F32) < bound(1.0 / 3));
    assert_true(lied_to(8, 3, HUGE_VALUES, 2, HTH_QUANT_F32) < bound(3.0 / 8));
    assert_true(lied_to(5, 1, HUGE_VALUES, 2, HTH_QUANT_INT8) < bound(1.0 / 5) + 0.1);
}

/* More than half have the very same values: nothing else counts. */
TEST(all_alike)
{
    struct reduce_swarm s;

    begin(&s, 13, 5, 3, COUNT);
    for (uint32_t i = 1; i < 4; i++)
        memcpy(s.peer[i].values->data, s.peer[0].values->data, COUNT * sizeof(float));
    s.member[4].bandwidth = 0;
    swarm_roles(&s);
    swarm_round(&s);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(off(&s.peer[i], 1) < 1e-6);
    swarm_free(&s);
}

/* A majority of liars decides; but what all hold stays finite, as without clipping. */
TEST(overflow)
{
    static const float says[] = {0, 3.3e38f, -2.5e38f, -2.5e38f, -2.5e38f};
    struct reduce_swarm s;

    begin(&s, 15, 5, 1.2, COUNT);
    for (uint32_t i = 1; i < 5; i++) {
        s.member[i].bandwidth = 0;
        for (uint64_t k = 0; k < COUNT; k++)
            values_of(&s.peer[i])[k] = says[i];
    }
    swarm_roles(&s);
    swarm_round(&s);
    for (uint32_t i = 0; i < 5; i++)
        for (uint64_t k = 0; k < COUNT; k++)
            assert_close(average_of(&s.peer[i])[k], -0.84e38, 1e-5, 0);
    swarm_free(&s);
}

/* ---- a reducer that lies --------------------------------------------------------------------- */

#define LIE  1e3f
#define MANY 160000 /* enough for a share of each of eight */

/* The last of n reduces, and says that its line is `claim` times as fast as those of the others.
 * Returns the part of the vector that is its lie; all else is the mean. */
static double lied_to_by_reducer(uint32_t n, double claim, double clip, double share_max,
                                 uint64_t count)
{
    struct reduce_swarm s;
    uint32_t all = (1u << n) - 1;
    uint64_t lies = 0;

    begin(&s, 12, n, clip, count);
    s.share_max = share_max;
    s.member[n - 1].bandwidth *= claim;
    swarm_roles(&s);
    peer_lies(&s.peer[n - 1], &(struct reduce_lie){.value = LIE});
    swarm_start(&s);
    hth_world_run_for(s.world, HTH_US_PER_S);
    for (uint32_t i = 0; i < n - 1; i++) {
        const struct reduce_peer *p = &s.peer[i];

        check_calm(p); /* nobody sees it */
        lies = 0;
        for (uint64_t k = 0; k < s.count; k++) {
            double x = (double)average_of(p)[k];

            if (x == (double)LIE)
                lies++;
            else
                assert_close(x, mean_of(&s, all, k), 0, 1e-5);
        }
    }
    hth_node_crash(s.peer[n - 1].node, HTH_CRASH_RESET);
    swarm_free(&s);
    return (double)lies / (double)count;
}

/* It decides its share of the vector and nothing else; clipping, which bounds what senders do, does
 * not touch it. What it claims of its line is what its share follows, as far as claims count. */
TEST(a_reducer_lies)
{
    static const double claim[3] = {1, 4, 1e5};

    for (uint32_t n = 4; n <= 8; n += 4)
        for (int i = 0; i < 3; i++) {
            double part = lied_to_by_reducer(n, claim[i], 0, 0, MANY);
            double kept = lied_to_by_reducer(n, claim[i], 0, 2, MANY);

            print_message("%u members, a line %g times as fast as the others': decides %.3f, "
                          "bounded %.3f\n",
                          n, claim[i], part, kept);
            assert_close(lied_to_by_reducer(n, claim[i], 1.5, 0, MANY), part, 0, 1e-9);
            assert_close(kept, HTH_MIN(part, 2.0 / n), 0, 5e-3);
            if (claim[i] == 1)
                assert_close(part, 1.0 / n, 0, 5e-3);
            else
                assert_true(part > 1.0 / n);
        }
}

/* A vector so small that not all have a share is no prize for the highest bid: up to 128 times 64
 * floats for each claims do not count, above nobody is left out. */
TEST(a_small_vector)
{
    for (uint64_t count = 1000; count < 140000; count += count / 8) {
        double part = lied_to_by_reducer(8, 1e5, 0, 2, count);

        /* Who comes first in the list reduces the smallest ones. */
        assert_true(part <= 2.0 / 8 + 5e-3);
        assert_true(count < 32768 ? part == 0 : part > 0.12);
    }
}
