/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_safetensors.c: any bytes as a safetensors file. A file that opens must be readable to its
 * last byte.
 */
#include "core/base.h"
#include "experts/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_st_reader *r;
    volatile uint8_t sink = 0;
    uint64_t n;

    if (hth_st_open(data, size, &r) != HTH_OK)
        return 0;
    for (size_t i = 0; i < hth_st_count(r); i++) {
        const struct hth_st_entry *e = hth_st_at(r, i);
        const uint8_t *bytes = e->data;
        HTH_ASSERT(hth_st_find(r, e->name) == e);
        for (uint64_t b = 0; b < e->bytes; b++)
            sink = (uint8_t)(sink ^ bytes[b]);
    }
    if (hth_st_meta_u64(r, "steps", &n) == HTH_OK)
        sink = (uint8_t)(sink ^ (uint8_t)n);
    hth_st_close(r);
    return 0;
}
