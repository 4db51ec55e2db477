/* SPDX-License-Identifier: Apache-2.0 */
/*
 * aead.h: the authenticated encryption of TLS 1.3 records, for one key and one direction.
 *
 * AES-128-GCM is computed by gcm.c where the CPU has the wide instructions, everything else (and
 * that, too, when asked) by OpenSSL. Both give the same bytes. gcm.c is compared with OpenSSL when
 * it is first asked for, and not used should it ever differ.
 *
 * Any thread, one at a time per struct.
 */
#ifndef HTH_NET_AEAD_H
#define HTH_NET_AEAD_H

#include "core/base.h"
#include "core/err.h"

#define HTH_AEAD_NONCE_BYTES   12
#define HTH_AEAD_TAG_BYTES     16
#define HTH_AEAD_KEY_BYTES_MAX 32

/* As TLS numbers them (RFC 8446, B.4). */
enum hth_suite {
    HTH_SUITE_AES_128_GCM_SHA256 = 0x1301,
    HTH_SUITE_AES_256_GCM_SHA384 = 0x1302,
    HTH_SUITE_CHACHA20_POLY1305_SHA256 = 0x1303
};

struct evp_cipher_ctx_st;
struct hth_gcm;

struct hth_aead {
    struct evp_cipher_ctx_st *ctx; /* OpenSSL's, */
    struct hth_gcm *gcm;           /* or ours */
};

/* Bytes of the suite's key; 0 for a suite that is not in the list. */
size_t hth_aead_key_bytes(uint16_t suite);

/* Whether gcm.c can be used here. */
bool hth_aead_wide(void);

/* `library`: by OpenSSL in any case. Errors: E_UNSUPPORTED (suite), E_NO_MEMORY. */
enum hth_err hth_aead_init(struct hth_aead *a, uint16_t suite, const uint8_t *key, bool sealing,
                           bool library) HTH_MUST;
/* Forgets the key. Also for a struct of zeros. */
void hth_aead_clear(struct hth_aead *a);

/* out[0 .. len] = data and the byte `last`, encrypted; the tag behind them: len + 1 + TAG bytes.
 * aad has at most 16 bytes. False when OpenSSL fails (memory). */
bool hth_aead_seal(struct hth_aead *a, const uint8_t nonce[HTH_AEAD_NONCE_BYTES],
                   const uint8_t *aad, size_t aad_len, const uint8_t *data, size_t len,
                   uint8_t last, uint8_t *out);

/* `len` bytes and the tag behind them, at `in`, to `len` bytes at out, which may be `in`. False
 * when the tag is wrong; then nothing of out is to be looked at. */
bool hth_aead_open(struct hth_aead *a, const uint8_t nonce[HTH_AEAD_NONCE_BYTES],
                   const uint8_t *aad, size_t aad_len, const uint8_t *in, size_t len, uint8_t *out);

#endif
