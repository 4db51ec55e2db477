/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gcm.h: AES-128-GCM (NIST SP 800-38D) for the records of a stream, on CPUs with the wide AES
 * instructions (VAES, VPCLMULQDQ, AVX-512): four times as fast as OpenSSL 3.0, which has only the
 * narrow ones. Where a CPU lacks them, and for all other ciphers, OpenSSL's are used (aead.c).
 *
 * The file is compiled for those instructions and exists on x86-64 alone; hth_aead_wide (aead.h)
 * says whether its functions may be called.
 *
 * Nothing here branches on, or indexes by, a secret: AES rounds and the product of GHASH are
 * instructions. A key is used with each nonce once; that is the caller's affair (record.c counts).
 */
#ifndef HTH_NET_GCM_H
#define HTH_NET_GCM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_GCM_KEY_BYTES   16
#define HTH_GCM_NONCE_BYTES 12
#define HTH_GCM_TAG_BYTES   16
/* Blocks that are hashed between two reductions. */
#define HTH_GCM_STRIDE 16

struct hth_gcm {
    uint8_t round[11][16];
    /* H^STRIDE ... H^1, then zeros, so that four at once may be loaded from any of them. */
    uint8_t power[HTH_GCM_STRIDE + 3][16];
};

void hth_gcm_init(struct hth_gcm *g, const uint8_t key[HTH_GCM_KEY_BYTES]);

/* out[0 .. len] = data and the byte `last`, encrypted; behind it the tag: len + 1 + TAG bytes. aad
 * has at most 16 bytes. Out and data don't overlap. */
void hth_gcm_seal(const struct hth_gcm *g, const uint8_t nonce[HTH_GCM_NONCE_BYTES],
                  const uint8_t *aad, size_t aad_len, const uint8_t *data, size_t len, uint8_t last,
                  uint8_t *out);

/* `len` bytes and the tag behind them are at `in`; they are decrypted to out, which may be `in`.
 * False when the tag is wrong: out is then zeros. */
bool hth_gcm_open(const struct hth_gcm *g, const uint8_t nonce[HTH_GCM_NONCE_BYTES],
                  const uint8_t *aad, size_t aad_len, const uint8_t *in, size_t len, uint8_t *out);

#endif
