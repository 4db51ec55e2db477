/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_revoked.c: lists of revoked serials as strangers publish them. */
#include "admission/revoke.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum hth_err verify(const struct hth_pubkey *key, const void *data, size_t len,
                           const uint8_t sig[HTH_SIG_LEN])
{
    (void)key, (void)data, (void)len, (void)sig;
    return HTH_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hth_crypto crypto = {.verify = verify};
    struct hth_closed_run run = {0};
    struct hth_revoked list;
    if (size >= 48)
        memcpy(run.id.b, data + 16, sizeof(run.id.b));
    if (hth_revoked_read(&crypto, &run, data, size, &list) == HTH_OK)
        for (uint16_t i = 1; i < list.count; i++)
            HTH_ASSERT(list.serial[i] > list.serial[i - 1]);
    return 0;
}
