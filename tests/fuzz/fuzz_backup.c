/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_backup.c: backups of a key as people paste them; the passphrase is not asked for. */
#include "net/backup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_pubkey pub;
    enum hth_err err = hth_backup_peek(data, size, &pub);
    HTH_ASSERT(err == HTH_OK || err == HTH_E_BAD_MAGIC || err == HTH_E_VERSION ||
               err == HTH_E_TRUNCATED || err == HTH_E_MALFORMED);
    return 0;
}
