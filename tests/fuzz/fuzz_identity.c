/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_identity.c: any key file is a key that belongs to itself, or E_BAD_KEY. */
#include "core/base.h"
#include "net/identity.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hth_secret zero;
    struct hth_secret secret;
    enum hth_err err = hth_identity_parse(data, size, &secret);
    HTH_ASSERT(err == HTH_OK || err == HTH_E_BAD_KEY);
    HTH_ASSERT(err == HTH_OK || memcmp(&secret, &zero, sizeof(zero)) == 0);
    return 0;
}
