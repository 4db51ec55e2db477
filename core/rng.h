/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.h: two kinds of random numbers, both from one seed.
 *
 * `hth_rng` is a stream (xoshiro256**, Blackman and Vigna 2018) for decisions: jitter, shuffles,
 * simulated failures. Streams are split by name, so that a new consumer never shifts the numbers of
 * another: hth_rng_split(&root, "links") is the same whatever else is split from the root.
 *
 * `hth_philox` is counter based (Philox4x32-10, Salmon et al., SC'11): the numbers are a pure
 * function of (key, counter), so that initialisation and dropout are the same on CPU and GPU, in
 * any order and after a resume. Key = run seed; counter = (element / 4, op, step, expert).
 *
 * Neither is fit for secrets; keys come from the crypto of the environment.
 */
#ifndef HTH_CORE_RNG_H
#define HTH_CORE_RNG_H

#include "core/base.h"

struct hth_rng {
    uint64_t s[4];
};

/* Any seed is fine, 0 too. */
void hth_rng_init(struct hth_rng *rng, uint64_t seed);
/* A stream that depends only on the parent's seed state and the name; the parent's state does not
 * change. */
struct hth_rng hth_rng_split(const struct hth_rng *parent, const char *name, uint64_t index);
static inline uint64_t hth_rng_u64(struct hth_rng *rng)
{
    uint64_t *s = rng->s;
    uint64_t x = s[1] * 5, result = (x << 7 | x >> 57) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3] << 45 | s[3] >> 19;
    return result;
}
/* Uniform in [0, bound), without bias. bound > 0. */
uint64_t hth_rng_below(struct hth_rng *rng, uint64_t bound);
/* Uniform in [0, 1) with 53 bits. */
static inline double hth_rng_unit(struct hth_rng *rng)
{
    return (double)(hth_rng_u64(rng) >> 11) * 0x1p-53;
}
/* Mean `mean`, exponential: -mean * ln(1 - u). */
double hth_rng_exponential(struct hth_rng *rng, double mean);
/* Standard normal (Box-Muller, one of the pair). */
double hth_rng_normal(struct hth_rng *rng);
static inline bool hth_rng_chance(struct hth_rng *rng, double p)
{
    return hth_rng_unit(rng) < p;
}
/* Fisher-Yates over `count` elements of `size` bytes (size <= 256). */
void hth_rng_shuffle(struct hth_rng *rng, void *base, size_t count, size_t size);

/* out = Philox4x32-10(counter, key). */
void hth_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* Standard normals from words 0..3 by Box-Muller in double, rounded once; bit-equal everywhere the
 * libm is the same. */
void hth_philox_normal(const uint32_t counter[4], const uint32_t key[2], float out[4]);

/* A 64-bit mix (splitmix64 finaliser): for hashing integers and building seeds. */
static inline uint64_t hth_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
/* 64-bit hash of bytes under a seed; deterministic on every machine; not for secrets. */
uint64_t hth_hash64(const void *data, size_t len, uint64_t seed);

#endif
