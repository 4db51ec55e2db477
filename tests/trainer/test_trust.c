/* SPDX-License-Identifier: Apache-2.0 */
/* test_trust.c: replicas with bad answers, usual gains, and the order of hosts. */
#include "support/suite.h"

#include "core/limits.h"
#include "trainer/transport_trust.h"

#include <math.h>

#define S HTH_US_PER_S

static struct hth_trust *trust_new(void)
{
    struct hth_trust *trust;
    struct hth_rng rng;

    hth_rng_init(&rng, 1);
    assert_ok(hth_trust_new(&rng, &trust));
    return trust;
}

TEST(replica_is_judged_by_its_own_answers)
{
    static const struct {
        enum hth_err err;
        uint32_t times;
    } bad[] = {{HTH_E_NOT_FINITE, 1},
               {HTH_E_RANGE, 1},
               {HTH_E_NO_SUCH_EXPERT, 1},
               {HTH_E_BUSY, 2},
               {HTH_E_NO_MEMORY, 2}}; /* the host's fault, whatever the error is */
    const struct hth_peer_id host = {{1, 2, 3}}, other = {{1, 2, 4}};

    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        for (int backward = 0; backward < 2; backward++) {
            struct hth_trust *t = trust_new();

            for (uint32_t n = 0; n < bad[i].times; n++) {
                assert_true(hth_trust_peek(t, &host, 1, 5, false, 0));
                hth_trust_report(t, &host, 1, 5, backward, bad[i].err, 0);
            }
            assert_false(hth_trust_peek(t, &host, 1, 5, false, 0));
            assert_true(hth_trust_peek(t, &host, 1, 4, true, 0));
            assert_true(hth_trust_peek(t, &host, 0, 5, true, 0));
            assert_true(hth_trust_peek(t, &other, 1, 5, true, 0));
            /* One probe after the back-off; a stand-by needs closed breakers. */
            assert_true(hth_trust_peek(t, &host, 1, 5, false, 2 * S));
            assert_false(hth_trust_peek(t, &host, 1, 5, true, 2 * S));
            hth_trust_take(t, &host, 1, 5, 2 * S);
            assert_false(hth_trust_peek(t, &host, 1, 5, false, 2 * S));
            hth_trust_report(t, &host, 1, 5, backward, HTH_OK, 2 * S);
            assert_true(hth_trust_peek(t, &host, 1, 5, true, 2 * S));
            hth_trust_free(t);
        }
    }
}

/* A replica is tried again within 8 s and a quarter, however often it lied. */
TEST(replica_back_off_is_short)
{
    const struct hth_peer_id host = {{9}};
    struct hth_trust *t = trust_new();
    int64_t now = 0, from = 0;

    for (int i = 0; i < 8; i++, from = now) {
        hth_trust_report(t, &host, 0, 0, false, HTH_E_RANGE, now);
        while (!hth_trust_peek(t, &host, 0, 0, false, now))
            now += S / 100;
        assert_true(now - from <= 10 * S);
        hth_trust_take(t, &host, 0, 0, now);
    }
    assert_true(now > 20 * S);
    hth_trust_free(t);
}

TEST(usual_gain_sets_the_limit)
{
    static const double gains[] = {0.5, 7, 1e6, 3, 0, 5}; /* 0 is not counted; the median is 5 */
    struct hth_trust *t = trust_new();

    assert_true(hth_trust_gain_max(t, 0, false) == 0);
    for (size_t i = 0; i < HTH_ARRAY_LEN(gains); i++)
        hth_trust_learn(t, 0, false, gains[i]);
    assert_close(hth_trust_gain_max(t, 0, false), 5 * HTH_EXPERT_GAIN_FACTOR, 1e-6, 0);
    assert_true(hth_trust_gain_max(t, 0, true) == 0 && hth_trust_gain_max(t, 1, false) == 0);
    /* Gains below 1 do not lower the limit below that for 1. */
    for (int i = 0; i < 100; i++)
        hth_trust_learn(t, 0, false, 1e-9);
    assert_close(hth_trust_gain_max(t, 0, false), HTH_EXPERT_GAIN_FACTOR, 1e-6, 0);
    /* Seven of fifteen do not raise it, eight do. */
    for (int i = 0; i < 7; i++)
        hth_trust_learn(t, 0, false, 8);
    assert_close(hth_trust_gain_max(t, 0, false), HTH_EXPERT_GAIN_FACTOR, 1e-6, 0);
    hth_trust_learn(t, 0, false, 8);
    assert_close(hth_trust_gain_max(t, 0, false), 8 * HTH_EXPERT_GAIN_FACTOR, 1e-6, 0);
    hth_trust_free(t);
}

/* The only host to answer gives large numbers from the first batch on. The first batches count as
 * the most that an honest host may have; then the usual gain doubles with every eight refused
 * batches. */
TEST(lie_becomes_usual_slowly)
{
    struct hth_trust *t = trust_new();
    double before = HTH_EXPERT_GAIN_FIRST_MAX;

    for (int i = 0; i < 4; i++) {
        assert_true(hth_trust_gain_max(t, 2, true) == 0);
        hth_trust_learn(t, 2, true, 1e9);
    }
    for (int i = 4; i < 60; i++) {
        double most = hth_trust_gain_max(t, 2, true) / HTH_EXPERT_GAIN_FACTOR;

        assert_true(most >= before && most <= 2.001 * before);
        assert_true(most <= HTH_EXPERT_GAIN_FIRST_MAX * exp2((double)i / 7));
        before = most;
        hth_trust_learn(t, 2, true, 1e9);
    }
    assert_true(before >= 100); /* honest large numbers are accepted in the end */
    hth_trust_free(t);
}

/* Each of two hosts is the first for about half of 100 peers. */
TEST(trainers_use_different_replicas)
{
    const struct hth_peer_id a = {{0}}, b = {{0xff}};
    uint32_t first = 0;

    for (uint8_t i = 0; i < 100; i++) {
        const struct hth_peer_id self = {{i, 77}};

        first += hth_trust_spread(&self, &a) < hth_trust_spread(&self, &b);
    }
    assert_true(first > 30 && first < 70);
}
