/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypto.h: the three cryptographic operations that protocols above net/ need, as a table.
 *
 * net/crypto.c implements it with OpenSSL (SHA-256, Ed25519). The simulator may use that one or its
 * own fast substitute. In that one, too, simulated attackers cannot sign without the secret. All
 * functions are thread safe and pure.
 */
#ifndef HTH_CORE_CRYPTO_H
#define HTH_CORE_CRYPTO_H

#include "core/ident.h"

struct hth_secret {
    uint8_t b[32];
};

struct hth_crypto {
    const char *name;
    void (*hash)(const void *data, size_t len, struct hth_hash *out);
    void (*public_of)(const struct hth_secret *secret, struct hth_pubkey *out);
    void (*sign)(const struct hth_secret *secret, const void *data, size_t len,
                 uint8_t sig[HTH_SIG_LEN]);
    /* Errors: E_BAD_SIGNATURE. */
    enum hth_err (*verify)(const struct hth_pubkey *key, const void *data, size_t len,
                           const uint8_t sig[HTH_SIG_LEN]);
};

static inline struct hth_peer_id hth_peer_id_of(const struct hth_crypto *crypto,
                                                const struct hth_pubkey *key)
{
    struct hth_hash h;
    struct hth_peer_id id;
    crypto->hash(key->b, sizeof(key->b), &h);
    __builtin_memcpy(id.b, h.b, sizeof(id.b));
    return id;
}

#endif
