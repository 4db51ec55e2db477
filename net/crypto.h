/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypto.h: SHA-256 and Ed25519 (RFC 8032) by OpenSSL, behind the table of core/crypto.h.
 *
 * Any thread. Contexts are kept per thread and freed when the thread ends; the key object of the
 * last secret that signed is kept too, because making it costs as much as a signature.
 */
#ifndef HTH_NET_CRYPTO_H
#define HTH_NET_CRYPTO_H

#include "core/crypto.h"

/* Never NULL; static. */
const struct hth_crypto *hth_crypto_openssl(void);

#endif
