/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_shard.c: any bytes as a shard, read to its end or its first error, and as a packed text. */
#include "data/shard.h"

#define UNPACKED_MAX 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_shard_reader *r;
    struct hth_shard_sample s;
    struct hth_blob *blob;
    struct hth_why why = {""};
    volatile uint8_t sink = 0;

    if (hth_shard_open("s", data, size, &r) == HTH_OK) {
        while (hth_shard_next(r, &s, &why) == HTH_OK)
            for (int i = 0; i < HTH_SHARD_FILES; i++)
                if (s.file[i].len > 0)
                    sink = (uint8_t)(sink ^ s.file[i].data[0] ^ s.file[i].data[s.file[i].len - 1]);
        hth_shard_close(r);
    }
    if (hth_unpack("t", data, size, UNPACKED_MAX, &blob, &why) == HTH_OK) {
        HTH_ASSERT(blob->size <= UNPACKED_MAX);
        hth_blob_unref(blob);
    }
    return 0;
}
