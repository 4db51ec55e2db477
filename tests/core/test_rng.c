/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: published vectors, moments, independence of split streams. */
#include "core/rng.h"
#include "support/suite.h"

/* The three known-answer vectors that Random123 publishes for philox4x32-10. */
TEST(test_philox_gives_published_vectors)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        uint32_t out[4];
        hth_philox(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].want, sizeof(out));
    }
}

/* xoshiro256** from the state {1, 2, 3, 4}: the first outputs follow from its definition by hand:
 * rotl(2 * 5, 7) * 9 = 11520, then the state has s1 = 0, so 0. */
TEST(test_xoshiro_follows_definition)
{
    (void)state;
    struct hth_rng rng = {{1, 2, 3, 4}};
    assert_true(hth_rng_u64(&rng) == 11520);
    assert_true(hth_rng_u64(&rng) == 0);
    assert_true(hth_rng_u64(&rng) == 1509978240);
}

TEST(test_moments_match_distributions)
{
    (void)state;
    enum { N = 200000 };
    struct hth_rng rng;
    double unit = 0, expo = 0, norm = 0, norm2 = 0, philox2 = 0;
    hth_rng_init(&rng, 3);
    for (uint32_t i = 0; i < N; i++) {
        double n = hth_rng_normal(&rng);
        float four[4];
        hth_philox_normal((uint32_t[4]){i, 0, 0, 0}, (uint32_t[2]){1, 2}, four);
        unit += hth_rng_unit(&rng);
        expo += hth_rng_exponential(&rng, 3.0);
        norm += n;
        norm2 += n * n;
        for (int j = 0; j < 4; j++)
            philox2 += four[j] * four[j] / 4;
    }
    assert_close(unit / N, 0.5, 0, 5 * 0.2887 / sqrt(N));
    assert_close(expo / N, 3.0, 0, 5 * 3.0 / sqrt(N));
    assert_close(norm / N, 0.0, 0, 5 / sqrt(N));
    assert_close(norm2 / N, 1.0, 0, 5 * sqrt(2.0 / N));
    assert_close(philox2 / N, 1.0, 0, 5 * sqrt(2.0 / N));
}

TEST(test_split_depends_on_name_and_index_alone)
{
    (void)state;
    struct hth_rng a, b;
    hth_rng_init(&a, 42);
    hth_rng_init(&b, 42);
    struct hth_rng links_a = hth_rng_split(&a, "links", 1);
    struct hth_rng other = hth_rng_split(&b, "other", 1);
    struct hth_rng links_b = hth_rng_split(&b, "links", 1);
    struct hth_rng second = hth_rng_split(&b, "links", 2);
    uint64_t x = hth_rng_u64(&links_a);
    assert_true(x == hth_rng_u64(&links_b));
    assert_true(x != hth_rng_u64(&other));
    assert_true(x != hth_rng_u64(&second));
}

TEST(test_below_and_shuffle_are_uniform)
{
    (void)state;
    struct hth_rng rng;
    int counts[3] = {0};
    hth_rng_init(&rng, 5);
    for (int i = 0; i < 30000; i++)
        counts[hth_rng_below(&rng, 3)]++;
    for (int i = 0; i < 3; i++)
        assert_close(counts[i], 10000, 0, 5 * 82);
    int orders[6] = {0};
    for (int i = 0; i < 60000; i++) {
        uint16_t v[3] = {0, 1, 2};
        hth_rng_shuffle(&rng, v, 3, sizeof(v[0]));
        orders[v[0] * 2 + (v[1] > v[2])]++;
    }
    for (int i = 0; i < 6; i++)
        assert_close(orders[i], 10000, 0, 5 * 92);
}
