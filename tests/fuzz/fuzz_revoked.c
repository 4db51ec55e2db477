/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_revoked.c: packed lists of revoked invites, as peers send and records hold them. */
#include "admission/revoke.h"

#include "core/mem.h"

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
    static uint8_t pack[HTH_REVOKED_PACK_MAX];
    struct hth_closed_run run = {0};
    struct hth_revoked list;
    size_t news, again, len;
    bool lacks;
    if (size >= 50)
        memcpy(run.id.b, data + 18, sizeof(run.id.b));
    if (size >= 2 && hth_revoked_read(&crypto, &run, data + 2, size - 2, &list) == HTH_OK)
        for (uint16_t i = 1; i < list.count; i++)
            HTH_ASSERT(list.entry[i] > list.entry[i - 1]);
    struct hth_revoked_set *a = hth_revoked_set_new(&crypto, &run);
    struct hth_revoked_set *b = hth_revoked_set_new(&crypto, &run);
    enum hth_err err = hth_revoked_set_unpack(a, data, size, &news);
    HTH_ASSERT(news == 0 || hth_revoked_set_count(a) > 0);
    err = hth_revoked_set_lacks(a, data, size, &lacks);
    HTH_ASSERT(err == HTH_OK || (err == HTH_E_MALFORMED && !lacks));
    /* Lists go on to others as they came. */
    len = hth_revoked_set_pack(a, NULL, 0, pack);
    err = hth_revoked_set_unpack(b, pack, len, &again);
    HTH_ASSERT(err == HTH_OK && again == hth_revoked_set_count(a));
    hth_revoked_set_free(a);
    hth_revoked_set_free(b);
    return 0;
}
