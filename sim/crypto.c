/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypto.c: the simulator's stand-in for SHA-256 and Ed25519. It has the shapes and the failures of
 * the real thing (a wrong key, a changed byte, a foreign signature are refused) at a hundredth of
 * the cost, and none of its security: anybody who calls these functions with another node's public
 * key could sign for it. Simulated attackers go through `sign`, which takes a secret.
 */
#include "sim/sim_int.h"

#include <string.h>

/* Run four chains side by side: each reader hashes every record of a swarm, and a single chain
 * would wait for its multiplications. */
static uint64_t hash_wide(const void *data, size_t len, uint64_t seed)
{
    const uint8_t *p = data;
    uint64_t lane[4], word[4];
    size_t left = len;
    for (uint64_t i = 0; i < 4; i++)
        lane[i] = seed + i;
    for (; left >= sizeof(word); left -= sizeof(word), p += sizeof(word)) {
        memcpy(word, p, sizeof(word));
        for (int i = 0; i < 4; i++)
            lane[i] = hth_mix64(lane[i] ^ word[i]);
    }
    return hth_hash64(lane, sizeof(lane), hth_hash64(p, left, (uint64_t)len));
}

__extension__ typedef unsigned __int128 u128;

static uint64_t fold(uint64_t a, uint64_t b)
{
    u128 product = (u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Hash the data of a signature, one product for each 16 bytes (the step of wyhash): every reader
 * verifies every record, so this must be cheap. */
static uint64_t hash_signed(const void *data, size_t len, uint64_t seed)
{
    const uint64_t odd[2] = {UINT64_C(0xa0761d6478bd642f), UINT64_C(0xe7037ed1a0b428db)};
    const uint8_t *p = data;
    uint64_t lane[2] = {seed, ~seed}, word[4];
    size_t left = len;
    for (; left >= sizeof(word); left -= sizeof(word), p += sizeof(word)) {
        memcpy(word, p, sizeof(word));
        lane[0] = fold(word[0] ^ lane[0], word[1] ^ odd[0]);
        lane[1] = fold(word[2] ^ lane[1], word[3] ^ odd[1]);
    }
    memset(word, 0, sizeof(word));
    memcpy(word, p, left);
    lane[0] = fold(word[0] ^ lane[0], word[1] ^ odd[0]);
    lane[1] = fold(word[2] ^ lane[1], word[3] ^ odd[1]);
    return hth_mix64(lane[0] ^ hth_mix64(lane[1] ^ (uint64_t)len));
}

static void spread(uint64_t h, uint8_t *out, size_t words)
{
    for (size_t i = 0; i < words; i++) {
        uint64_t word = hth_mix64(h + i);
        memcpy(out + 8 * i, &word, 8);
    }
}

static void hash_seeded(const void *data, size_t len, uint64_t seed, struct hth_hash *out)
{
    spread(hash_wide(data, len, seed), out->b, sizeof(out->b) / 8);
}

static void stand_in_hash(const void *data, size_t len, struct hth_hash *out)
{
    hash_seeded(data, len, UINT64_C(0x48415348), out);
}

static void stand_in_public_of(const struct hth_secret *secret, struct hth_pubkey *out)
{
    struct hth_hash h;
    hash_seeded(secret->b, sizeof(secret->b), UINT64_C(0x5055424b), &h);
    memcpy(out->b, h.b, sizeof(out->b));
}

static void signature_of(const struct hth_pubkey *key, const void *data, size_t len,
                         uint8_t sig[HTH_SIG_LEN])
{
    uint64_t of_key = hash_signed(key->b, sizeof(key->b), UINT64_C(0x5349474e));
    uint64_t word = hash_signed(data, len, of_key);
    for (size_t i = 0; i < HTH_SIG_LEN / 8; i++, word += of_key | 1)
        memcpy(sig + 8 * i, &word, 8);
}

static void stand_in_sign(const struct hth_secret *secret, const void *data, size_t len,
                          uint8_t sig[HTH_SIG_LEN])
{
    struct hth_pubkey key;
    stand_in_public_of(secret, &key);
    signature_of(&key, data, len, sig);
}

static enum hth_err stand_in_verify(const struct hth_pubkey *key, const void *data, size_t len,
                                    const uint8_t sig[HTH_SIG_LEN])
{
    uint8_t expected[HTH_SIG_LEN];
    signature_of(key, data, len, expected);
    return memcmp(sig, expected, HTH_SIG_LEN) == 0 ? HTH_OK : HTH_E_BAD_SIGNATURE;
}

const struct hth_crypto *hth_sim_crypto(void)
{
    static const struct hth_crypto table = {
        .name = "sim",
        .hash = stand_in_hash,
        .public_of = stand_in_public_of,
        .sign = stand_in_sign,
        .verify = stand_in_verify,
    };
    return &table;
}
