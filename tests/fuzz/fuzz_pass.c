/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_pass.c: credentials as a stranger's HELLO brings them. */
#include "admission/pass.h"

#include "core/name.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hash(const void *data, size_t len, struct hth_hash *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->b, data, HTH_MIN(len, sizeof(out->b)));
}

/* Every signature is good: so the bytes behind it are read, too. */
static enum hth_err verify(const struct hth_pubkey *key, const void *data, size_t len,
                           const uint8_t sig[HTH_SIG_LEN])
{
    (void)key, (void)data, (void)len, (void)sig;
    return HTH_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hth_crypto crypto = {.hash = hash, .verify = verify};
    struct hth_closed_run run = {0};
    struct hth_peer_id peer = {{0}};
    struct hth_grant grant;
    struct hth_cert cert;
    size_t used;
    if (size >= HTH_PASS_BYTES) /* the key that it names */
        memcpy(peer.b, data + 1, sizeof(peer.b));
    if (hth_creds_check(&crypto, &run, &peer, data, size, INT64_C(1700000000) * HTH_US_PER_S,
                        &grant) == HTH_OK) {
        HTH_ASSERT(size <= HTH_CREDS_BYTES_MAX && grant.roles != 0);
        HTH_ASSERT(hth_name_check(grant.name, strlen(grant.name)) == HTH_OK);
    }
    if (hth_cert_read(data, size, &cert, &used) == HTH_OK)
        HTH_ASSERT(used <= size && used <= HTH_CERT_BYTES_MAX);
    return 0;
}
