/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rng.c: xoshiro256** streams (Blackman and Vigna, "Scrambled linear pseudorandom number
 * generators", 2018), seeded through splitmix64, and the 64-bit hash.
 */
#include "core/rng.h"

#include <math.h>
#include <string.h>

uint64_t hth_hash64(const void *data, size_t len, uint64_t seed)
{
    const uint8_t *p = data;
    uint64_t h = hth_mix64(seed ^ (uint64_t)len);
    for (; len >= 8; len -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8); /* hearth runs on little-endian machines only */
        h = hth_mix64(h ^ word);
    }
    if (len > 0) {
        uint64_t word = 0;
        memcpy(&word, p, len);
        h = hth_mix64(h ^ word);
    }
    return h;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors travel as they lie in memory");

void hth_rng_init(struct hth_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->s[i] = hth_mix64(seed + (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15));
}

struct hth_rng hth_rng_split(const struct hth_rng *parent, const char *name, uint64_t index)
{
    struct hth_rng child;
    uint64_t seed = hth_hash64(parent->s, sizeof(parent->s), index);
    hth_rng_init(&child, hth_hash64(name, strlen(name), seed));
    return child;
}

uint64_t hth_rng_below(struct hth_rng *rng, uint64_t bound)
{
    HTH_ASSERT(bound > 0);
    /* Draws below 2^64 mod bound are rejected, so that every residue is equally likely. */
    uint64_t threshold = (0 - bound) % bound;
    for (;;) {
        uint64_t x = hth_rng_u64(rng);
        if (x >= threshold)
            return x % bound;
    }
}

double hth_rng_exponential(struct hth_rng *rng, double mean)
{
    return -mean * log1p(-hth_rng_unit(rng));
}

double hth_rng_normal(struct hth_rng *rng)
{
    double radius = sqrt(-2.0 * log1p(-hth_rng_unit(rng)));
    return radius * cos(6.283185307179586 * hth_rng_unit(rng));
}

void hth_rng_shuffle(struct hth_rng *rng, void *base, size_t count, size_t size)
{
    uint8_t swap[256];
    uint8_t *bytes = base;
    HTH_ASSERT(size <= sizeof(swap));
    for (size_t i = count; i > 1; i--) {
        size_t j = (size_t)hth_rng_below(rng, i);
        memcpy(swap, bytes + (i - 1) * size, size);
        memmove(bytes + (i - 1) * size, bytes + j * size, size);
        memcpy(bytes + j * size, swap, size);
    }
}
