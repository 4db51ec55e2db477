/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_witness.c: the hours of peers on probation, as a state folder has them. */
#include "admission/witness.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_witness *w = hth_witness_new();
    const struct hth_grant grant = {.class = HTH_PROBATION};
    const struct hth_addr from = {.family = 4};
    struct hth_pubkey due;
    uint8_t bytes[HTH_WITNESS_BYTES_MAX];
    size_t it = 0;
    if (hth_witness_read(w, data, size) == HTH_OK) {
        size_t len = hth_witness_write(w, bytes);
        HTH_ASSERT(len == size && memcmp(bytes, data, HTH_MIN(len, (size_t)6)) == 0);
    }
    while (hth_witness_due(w, &it, &due))
        HTH_ASSERT(it <= HTH_WITNESS_MAX);
    hth_witness_saw(w, &grant, &from, true, 0);
    HTH_ASSERT(hth_witness_write(w, bytes) <= HTH_WITNESS_BYTES_MAX);
    hth_witness_free(w);
    return 0;
}
