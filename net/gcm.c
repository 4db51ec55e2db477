/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gcm.c: AES-128-GCM, four blocks to a register, sixteen between two reductions.
 *
 *     counter --AES--> key stream --xor--> ciphertext --x powers of H, sum, reduce--> hash
 *
 * GHASH multiplies in GF(2^128) with bits mirrored. Blocks are turned into little endian; keys hold
 * H x instead of H, as the carry-less product of two mirrored numbers is short of one factor x.
 * Sixteen blocks are multiplied by H^16 ... H^1 and summed before one reduction: the sum of
 * products is the product of sums. The reduction folds the low half upwards twice by
 * 0xc2000000_00000000, the mirrored x^128 + x^7 + x^2 + x + 1 (Gueron and Kounavis, Intel 2010).
 *
 * The next chunk's AES does not depend on this chunk's hash, so that the CPU overlaps them.
 */
#include "net/gcm.h"

#include <immintrin.h>
#include <string.h>

#include <openssl/crypto.h>

#define CHUNK_BYTES (HTH_GCM_STRIDE * 16u)
#define REGISTERS   4

/* ---- the field ------------------------------------------------------------------------------ */

/* Products that wait for their reduction: low, middle and high 128 bits, overlapping by 64. */
struct sums {
    __m512i low, middle, high;
};

static inline __m512i xor3(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

static inline void add_product(struct sums *s, __m512i x, __m512i h)
{
    s->low = _mm512_xor_si512(s->low, _mm512_clmulepi64_epi128(x, h, 0x00));
    s->high = _mm512_xor_si512(s->high, _mm512_clmulepi64_epi128(x, h, 0x11));
    s->middle =
        xor3(s->middle, _mm512_clmulepi64_epi128(x, h, 0x01), _mm512_clmulepi64_epi128(x, h, 0x10));
}

/* All four lanes into one block. */
static inline __m128i reduce(const struct sums *s)
{
    const __m512i fold = _mm512_set1_epi64((long long)0xc200000000000000ULL);
    __m512i middle = xor3(s->middle, _mm512_shuffle_epi32(s->low, _MM_PERM_BADC),
                          _mm512_clmulepi64_epi128(s->low, fold, 0x00));
    __m512i high = xor3(s->high, _mm512_shuffle_epi32(middle, _MM_PERM_BADC),
                        _mm512_clmulepi64_epi128(middle, fold, 0x00));
    __m256i half =
        _mm256_xor_si256(_mm512_castsi512_si256(high), _mm512_extracti64x4_epi64(high, 1));
    return _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

static inline __m128i multiply(__m128i a, __m128i b)
{
    struct sums s = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    add_product(&s, _mm512_zextsi128_si512(a), _mm512_zextsi128_si512(b));
    return reduce(&s);
}

static inline __m128i mirrored(__m128i block)
{
    return _mm_shuffle_epi8(block,
                            _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

static inline __m512i mirrored4(__m512i blocks)
{
    return _mm512_shuffle_epi8(blocks, _mm512_broadcast_i32x4(_mm_set_epi8(
                                           0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
}

/* h x: one bit up, and what falls out comes back as the polynomial. */
static __m128i times_x(__m128i h)
{
    uint64_t half[2];
    _mm_storeu_si128((__m128i *)(void *)half, h);
    uint64_t out = 0 - (half[1] >> 63); /* all ones when a bit falls out */
    uint64_t high = (half[1] << 1 | half[0] >> 63) ^ (out & 0xc200000000000000ULL);
    uint64_t low = half[0] << 1 ^ (out & 1);
    return _mm_set_epi64x((long long)high, (long long)low);
}

/* ---- keys ----------------------------------------------------------------------------------- */

static inline __m128i next_round_key(__m128i key, __m128i assist)
{
    assist = _mm_shuffle_epi32(assist, _MM_SHUFFLE(3, 3, 3, 3));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, assist);
}

static inline __m128i round_key(const struct hth_gcm *g, int i)
{
    return _mm_loadu_si128((const __m128i *)(const void *)g->round[i]);
}

static __m128i encrypt_block(const struct hth_gcm *g, __m128i block)
{
    block = _mm_xor_si128(block, round_key(g, 0));
    for (int i = 1; i < 10; i++)
        block = _mm_aesenc_si128(block, round_key(g, i));
    return _mm_aesenclast_si128(block, round_key(g, 10));
}

void hth_gcm_init(struct hth_gcm *g, const uint8_t key[HTH_GCM_KEY_BYTES])
{
    __m128i k = _mm_loadu_si128((const __m128i *)(const void *)key);
    memset(g, 0, sizeof(*g));
#define ROUND(i, constant)                                                                         \
    _mm_storeu_si128((__m128i *)(void *)g->round[i], k);                                           \
    k = next_round_key(k, _mm_aeskeygenassist_si128(k, constant))
    ROUND(0, 0x01);
    ROUND(1, 0x02);
    ROUND(2, 0x04);
    ROUND(3, 0x08);
    ROUND(4, 0x10);
    ROUND(5, 0x20);
    ROUND(6, 0x40);
    ROUND(7, 0x80);
    ROUND(8, 0x1b);
    ROUND(9, 0x36);
#undef ROUND
    _mm_storeu_si128((__m128i *)(void *)g->round[10], k);

    __m128i h = times_x(mirrored(encrypt_block(g, _mm_setzero_si128())));
    __m128i power = h;
    for (int i = HTH_GCM_STRIDE - 1; i >= 0; i--) {
        _mm_storeu_si128((__m128i *)(void *)g->power[i], power);
        power = multiply(power, h);
    }
}

/* ---- one message ---------------------------------------------------------------------------- */

struct message {
    const struct hth_gcm *g;
    __m512i key[11];
    __m512i counter; /* of the next four blocks, mirrored */
    __m128i hash;
};

static inline __mmask64 first_bytes(size_t n)
{
    return n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1;
}

/* Key stream for four blocks each. */
static inline void key_stream(struct message *m, __m512i stream[REGISTERS])
{
    const __m512i four = _mm512_broadcast_i32x4(_mm_set_epi32(0, 0, 0, 4));
    for (int i = 0; i < REGISTERS; i++) {
        stream[i] = _mm512_xor_si512(mirrored4(m->counter), m->key[0]);
        m->counter = _mm512_add_epi32(m->counter, four);
    }
    for (int k = 1; k < 10; k++) {
        for (int i = 0; i < REGISTERS; i++)
            stream[i] = _mm512_aesenc_epi128(stream[i], m->key[k]);
    }
    for (int i = 0; i < REGISTERS; i++)
        stream[i] = _mm512_aesenclast_epi128(stream[i], m->key[10]);
}

/* hash = (hash + first block) H^n + ... + last block H, where `power` begins with H^n. */
static inline void hash_blocks(struct message *m, const __m512i text[REGISTERS],
                               const uint8_t *power)
{
    struct sums s = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int i = 0; i < REGISTERS; i++) {
        __m512i x = mirrored4(text[i]);
        if (i == 0)
            x = _mm512_xor_si512(x, _mm512_zextsi128_si512(m->hash));
        add_product(&s, x, _mm512_loadu_si512(power + 64 * i));
    }
    m->hash = reduce(&s);
}

/* 1 .. CHUNK_BYTES bytes, the last block of which may be a part. */
static void end_chunk(struct message *m, const uint8_t *in, size_t len, uint8_t *out, bool sealing)
{
    __m512i stream[REGISTERS], text[REGISTERS];
    uint8_t powers[REGISTERS * 64] = {0};
    size_t blocks = (len + 15) / 16;
    memcpy(powers, m->g->power[HTH_GCM_STRIDE - blocks], blocks * 16);
    key_stream(m, stream);
    for (int i = 0; i < REGISTERS; i++) {
        size_t at = 64u * (size_t)i;
        __mmask64 mask = first_bytes(len > at ? len - at : 0);
        __m512i from = _mm512_maskz_loadu_epi8(mask, in + at);
        __m512i to = _mm512_xor_si512(from, stream[i]);
        _mm512_mask_storeu_epi8(out + at, mask, to);
        text[i] = _mm512_maskz_mov_epi8(mask, sealing ? to : from);
    }
    hash_blocks(m, text, powers);
}

static inline void hash_one(struct message *m, __m128i block)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)m->g->power[HTH_GCM_STRIDE - 1]);
    m->hash = multiply(_mm_xor_si128(m->hash, block), h);
}

/* The first counter block has the number 1 and is for the tag; data begins with 2. */
static __m128i first_counter(const uint8_t nonce[HTH_GCM_NONCE_BYTES])
{
    uint8_t block[16] = {0};
    memcpy(block, nonce, HTH_GCM_NONCE_BYTES);
    block[15] = 1;
    return _mm_loadu_si128((const __m128i *)(const void *)block);
}

static void begin(struct message *m, const struct hth_gcm *g,
                  const uint8_t nonce[HTH_GCM_NONCE_BYTES], const uint8_t *aad, size_t aad_len)
{
    uint8_t block[16] = {0};
    m->g = g;
    m->hash = _mm_setzero_si128();
    for (int i = 0; i < 11; i++)
        m->key[i] = _mm512_broadcast_i32x4(round_key(g, i));
    m->counter = _mm512_add_epi32(_mm512_broadcast_i32x4(mirrored(first_counter(nonce))),
                                  _mm512_set_epi32(0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1));
    if (aad_len == 0)
        return;
    memcpy(block, aad, aad_len);
    hash_one(m, mirrored(_mm_loadu_si128((const __m128i *)(const void *)block)));
}

static void end(struct message *m, const uint8_t nonce[HTH_GCM_NONCE_BYTES], size_t aad_len,
                size_t len, uint8_t tag[HTH_GCM_TAG_BYTES])
{
    hash_one(m, _mm_set_epi64x((long long)(aad_len * 8), (long long)(len * 8)));
    __m128i mask = encrypt_block(m->g, first_counter(nonce));
    _mm_storeu_si128((__m128i *)(void *)tag, _mm_xor_si128(mirrored(m->hash), mask));
}

/* Whole chunks; each is hashed while the next one is encrypted. */
static size_t seal_chunks(struct message *m, const uint8_t *data, size_t len, uint8_t *out)
{
    __m512i stream[REGISTERS], text[REGISTERS];
    size_t done = 0;
    for (; len - done >= CHUNK_BYTES; done += CHUNK_BYTES) {
        key_stream(m, stream);
        if (done > 0)
            hash_blocks(m, text, m->g->power[0]);
        for (int i = 0; i < REGISTERS; i++) {
            text[i] = _mm512_xor_si512(_mm512_loadu_si512(data + done + 64 * i), stream[i]);
            _mm512_storeu_si512(out + done + 64 * i, text[i]);
        }
    }
    if (done > 0)
        hash_blocks(m, text, m->g->power[0]);
    return done;
}

static inline void open_chunk(struct message *m, const uint8_t *in, uint8_t *out)
{
    __m512i stream[REGISTERS], text[REGISTERS];
    key_stream(m, stream);
    for (int i = 0; i < REGISTERS; i++) {
        text[i] = _mm512_loadu_si512(in + 64 * i);
        _mm512_storeu_si512(out + 64 * i, _mm512_xor_si512(text[i], stream[i]));
    }
    hash_blocks(m, text, m->g->power[0]);
}

void hth_gcm_seal(const struct hth_gcm *g, const uint8_t nonce[HTH_GCM_NONCE_BYTES],
                  const uint8_t *aad, size_t aad_len, const uint8_t *data, size_t len, uint8_t last,
                  uint8_t *out)
{
    struct message m;
    uint8_t rest[CHUNK_BYTES];
    begin(&m, g, nonce, aad, aad_len);
    size_t done = seal_chunks(&m, data, len, out);
    memcpy(rest, data + done, len - done);
    rest[len - done] = last;
    end_chunk(&m, rest, len - done + 1, out + done, true);
    end(&m, nonce, aad_len, len + 1, out + len + 1);
}

bool hth_gcm_open(const struct hth_gcm *g, const uint8_t nonce[HTH_GCM_NONCE_BYTES],
                  const uint8_t *aad, size_t aad_len, const uint8_t *in, size_t len, uint8_t *out)
{
    struct message m;
    uint8_t sent[HTH_GCM_TAG_BYTES], tag[HTH_GCM_TAG_BYTES];
    size_t done = 0;
    memcpy(sent, in + len, sizeof(sent));
    begin(&m, g, nonce, aad, aad_len);
    for (; len - done >= CHUNK_BYTES; done += CHUNK_BYTES)
        open_chunk(&m, in + done, out + done);
    if (len > done)
        end_chunk(&m, in + done, len - done, out + done, false);
    end(&m, nonce, aad_len, len, tag);
    if (CRYPTO_memcmp(tag, sent, sizeof(tag)) == 0)
        return true;
    memset(out, 0, len);
    return false;
}
