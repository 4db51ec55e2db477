/* SPDX-License-Identifier: Apache-2.0 */
/* aead.c: OpenSSL's ciphers, and the choice between them and gcm.c. */
#include "net/aead.h"

#include "core/mem.h"

#include <pthread.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include "net/gcm.h"

#ifdef HTH_NET_GCM
#include <cpuid.h>
#endif

size_t hth_aead_key_bytes(uint16_t suite)
{
    switch (suite) {
    case HTH_SUITE_AES_128_GCM_SHA256:
        return 16;
    case HTH_SUITE_AES_256_GCM_SHA384:
    case HTH_SUITE_CHACHA20_POLY1305_SHA256:
        return 32;
    default:
        return 0;
    }
}

/* ---- OpenSSL -------------------------------------------------------------------------------- */

static const EVP_CIPHER *cipher_of(uint16_t suite)
{
    switch (suite) {
    case HTH_SUITE_AES_128_GCM_SHA256:
        return EVP_aes_128_gcm();
    case HTH_SUITE_AES_256_GCM_SHA384:
        return EVP_aes_256_gcm();
    default:
        return EVP_chacha20_poly1305();
    }
}

static bool library_seal(EVP_CIPHER_CTX *ctx, const uint8_t *nonce, const uint8_t *aad,
                         size_t aad_len, const uint8_t *data, size_t len, uint8_t last,
                         uint8_t *out)
{
    int n = 0, more = 0, rest = 0;
    return EVP_EncryptInit_ex(ctx, NULL, NULL, NULL, nonce) == 1 &&
           EVP_EncryptUpdate(ctx, NULL, &n, aad, (int)aad_len) == 1 &&
           EVP_EncryptUpdate(ctx, out, &n, data, (int)len) == 1 &&
           EVP_EncryptUpdate(ctx, out + n, &more, &last, 1) == 1 &&
           EVP_EncryptFinal_ex(ctx, out + n + more, &rest) == 1 &&
           EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, HTH_AEAD_TAG_BYTES, out + len + 1) == 1;
}

static bool library_open(EVP_CIPHER_CTX *ctx, const uint8_t *nonce, const uint8_t *aad,
                         size_t aad_len, const uint8_t *in, size_t len, uint8_t *out)
{
    uint8_t tag[HTH_AEAD_TAG_BYTES];
    int n = 0, rest = 0;
    memcpy(tag, in + len, sizeof(tag));
    bool fine = EVP_DecryptInit_ex(ctx, NULL, NULL, NULL, nonce) == 1 &&
                EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_SET_TAG, sizeof(tag), tag) == 1 &&
                EVP_DecryptUpdate(ctx, NULL, &n, aad, (int)aad_len) == 1 &&
                EVP_DecryptUpdate(ctx, out, &n, in, (int)len) == 1 &&
                EVP_DecryptFinal_ex(ctx, out + n, &rest) == 1;
    if (!fine)
        ERR_clear_error(); /* per thread, and it poisons later calls */
    return fine;
}

/* ---- the choice ----------------------------------------------------------------------------- */

#ifdef HTH_NET_GCM
static bool cpu_is_wide(void)
{
    unsigned a, b, c = 0, d;
    /* The compilers' own test, which knows whether the system saves the registers, lacks two. */
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & bit_VAES) != 0 &&
           (c & bit_VPCLMULQDQ) != 0;
}

/* Every way through gcm.c: no, some and many whole chunks, with and without a rest. */
static bool agrees(void)
{
    static const size_t lens[] = {0, 1, 15, 16, 63, 255, 256, 300, 511, 512, 1023, 1111};
    static const uint8_t key[16] = "sixteen of them", aad[5] = {23, 3, 3, 1, 2};
    static const uint8_t nonce[HTH_AEAD_NONCE_BYTES] = "used before";
    uint8_t text[1111], ours[1111 + 17], theirs[1111 + 17];
    struct hth_gcm g;
    EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
    bool same = ctx != NULL && EVP_EncryptInit_ex(ctx, EVP_aes_128_gcm(), NULL, key, NULL) == 1;
    hth_gcm_init(&g, key);
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t i = 0; i < HTH_ARRAY_LEN(lens) && same; i++) {
        size_t len = lens[i];
        hth_gcm_seal(&g, nonce, aad, sizeof(aad), text, len, 23, ours);
        same = library_seal(ctx, nonce, aad, sizeof(aad), text, len, 23, theirs) &&
               memcmp(ours, theirs, len + 17) == 0 &&
               hth_gcm_open(&g, nonce, aad, sizeof(aad), ours, len + 1, ours) &&
               memcmp(ours, text, len) == 0 && ours[len] == 23;
    }
    EVP_CIPHER_CTX_free(ctx);
    return same;
}

static bool wide;

static void look(void)
{
    wide = cpu_is_wide() && agrees();
}

bool hth_aead_wide(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    return wide;
}
#else
bool hth_aead_wide(void)
{
    return false;
}
#endif

enum hth_err hth_aead_init(struct hth_aead *a, uint16_t suite, const uint8_t *key, bool sealing,
                           bool library)
{
    *a = (struct hth_aead){0};
    if (hth_aead_key_bytes(suite) == 0)
        return HTH_E_UNSUPPORTED;
#ifdef HTH_NET_GCM
    if (suite == HTH_SUITE_AES_128_GCM_SHA256 && !library && hth_aead_wide()) {
        a->gcm = hth_new(struct hth_gcm);
        hth_gcm_init(a->gcm, key);
        return HTH_OK;
    }
#else
    (void)library;
#endif
    a->ctx = EVP_CIPHER_CTX_new();
    if (a->ctx != NULL &&
        EVP_CipherInit_ex(a->ctx, cipher_of(suite), NULL, key, NULL, sealing ? 1 : 0) == 1)
        return HTH_OK;
    ERR_clear_error();
    hth_aead_clear(a);
    return HTH_E_NO_MEMORY;
}

void hth_aead_clear(struct hth_aead *a)
{
    EVP_CIPHER_CTX_free(a->ctx); /* forgets its key */
    if (a->gcm != NULL)
        OPENSSL_cleanse(a->gcm, sizeof(*a->gcm));
    hth_free(a->gcm);
    *a = (struct hth_aead){0};
}

bool hth_aead_seal(struct hth_aead *a, const uint8_t nonce[HTH_AEAD_NONCE_BYTES],
                   const uint8_t *aad, size_t aad_len, const uint8_t *data, size_t len,
                   uint8_t last, uint8_t *out)
{
#ifdef HTH_NET_GCM
    if (a->gcm != NULL) {
        hth_gcm_seal(a->gcm, nonce, aad, aad_len, data, len, last, out);
        return true;
    }
#endif
    return library_seal(a->ctx, nonce, aad, aad_len, data, len, last, out);
}

bool hth_aead_open(struct hth_aead *a, const uint8_t nonce[HTH_AEAD_NONCE_BYTES],
                   const uint8_t *aad, size_t aad_len, const uint8_t *in, size_t len, uint8_t *out)
{
#ifdef HTH_NET_GCM
    if (a->gcm != NULL)
        return hth_gcm_open(a->gcm, nonce, aad, aad_len, in, len, out);
#endif
    return library_open(a->ctx, nonce, aad, aad_len, in, len, out);
}
