/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypto.c: the crypto table over OpenSSL's EVP.
 *
 * OpenSSL fails here only when memory is gone or the library is broken, and no caller can handle
 * that; so every call but the check of a signature is asserted. No argument can make one fail:
 * lengths are fixed, and any 32 bytes are a valid secret or parse as a public key until verified.
 */
#include "net/crypto.h"

#include "core/mem.h"

#include <string.h>
#include <pthread.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

/* Kept between calls of one thread. */
struct thread_state {
    EVP_MD_CTX *digest;
    EVP_MD_CTX *sign;
    EVP_PKEY *key; /* of `secret` */
    struct hth_secret secret;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t state_key;
static EVP_MD *sha256;

static void state_free(void *arg)
{
    struct thread_state *st = arg;
    EVP_MD_CTX_free(st->digest);
    EVP_MD_CTX_free(st->sign);
    EVP_PKEY_free(st->key);
    OPENSSL_cleanse(&st->secret, sizeof(st->secret));
    hth_free(st);
}

/* sha256 is fetched once and kept for the life of the process: fetching per call costs more than
 * hashing a small record. */
static void set_up(void)
{
    int failed = pthread_key_create(&state_key, state_free);
    HTH_ASSERT(failed == 0);
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    HTH_ASSERT(sha256 != NULL);
}

static struct thread_state *state_get(void)
{
    pthread_once(&once, set_up);
    struct thread_state *st = pthread_getspecific(state_key);
    if (st == NULL) {
        st = hth_new(struct thread_state);
        st->digest = EVP_MD_CTX_new();
        st->sign = EVP_MD_CTX_new();
        HTH_ASSERT(st->digest != NULL && st->sign != NULL);
        int failed = pthread_setspecific(state_key, st);
        HTH_ASSERT(failed == 0);
    }
    return st;
}

static void ssl_hash(const void *data, size_t len, struct hth_hash *out)
{
    struct thread_state *st = state_get();
    unsigned int got = 0;
    bool fine = EVP_DigestInit_ex(st->digest, sha256, NULL) == 1 &&
                EVP_DigestUpdate(st->digest, data, len) == 1 &&
                EVP_DigestFinal_ex(st->digest, out->b, &got) == 1;
    HTH_ASSERT(fine && got == sizeof(out->b));
}

static EVP_PKEY *private_key(struct thread_state *st, const struct hth_secret *secret)
{
    if (st->key != NULL && CRYPTO_memcmp(&st->secret, secret, sizeof(*secret)) == 0)
        return st->key;
    EVP_PKEY_free(st->key);
    st->key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, secret->b, sizeof(secret->b));
    HTH_ASSERT(st->key != NULL);
    st->secret = *secret;
    return st->key;
}

static void ssl_public_of(const struct hth_secret *secret, struct hth_pubkey *out)
{
    size_t len = sizeof(out->b);
    int fine = EVP_PKEY_get_raw_public_key(private_key(state_get(), secret), out->b, &len);
    HTH_ASSERT(fine == 1 && len == sizeof(out->b));
}

static void ssl_sign(const struct hth_secret *secret, const void *data, size_t len,
                     uint8_t sig[HTH_SIG_LEN])
{
    struct thread_state *st = state_get();
    size_t sig_len = HTH_SIG_LEN;
    EVP_MD_CTX_reset(st->sign);
    bool fine = EVP_DigestSignInit(st->sign, NULL, NULL, NULL, private_key(st, secret)) == 1 &&
                EVP_DigestSign(st->sign, sig, &sig_len, data, len) == 1;
    HTH_ASSERT(fine && sig_len == HTH_SIG_LEN);
}

static enum hth_err ssl_verify(const struct hth_pubkey *key, const void *data, size_t len,
                               const uint8_t sig[HTH_SIG_LEN])
{
    struct thread_state *st = state_get();
    enum hth_err err = HTH_E_BAD_SIGNATURE;
    EVP_PKEY *pkey = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, key->b, sizeof(key->b));
    EVP_MD_CTX_reset(st->sign);
    if (pkey != NULL && EVP_DigestVerifyInit(st->sign, NULL, NULL, NULL, pkey) == 1 &&
        EVP_DigestVerify(st->sign, sig, HTH_SIG_LEN, data, len) == 1)
        err = HTH_OK;
    EVP_MD_CTX_reset(st->sign); /* drops its reference on the key */
    EVP_PKEY_free(pkey);
    /* A bad signature leaves an entry in this thread's error queue, which later TLS calls would
     * read. */
    if (err != HTH_OK)
        ERR_clear_error();
    return err;
}

const struct hth_crypto *hth_crypto_openssl(void)
{
    static const struct hth_crypto table = {
        .name = "openssl",
        .hash = ssl_hash,
        .public_of = ssl_public_of,
        .sign = ssl_sign,
        .verify = ssl_verify,
    };
    return &table;
}
