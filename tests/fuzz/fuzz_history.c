/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_history.c: any bytes as a file of a monitor's history: an error, or rows in order that
 * survive a round trip. Once as they are, once with the hash that they would need.
 */
#include "core/bytes.h"
#include "core/rng.h"
#include "monitor/history.h"

#include <string.h>

static void read_one(const uint8_t *data, size_t size)
{
    static struct hth_history_file file;
    static uint8_t bytes[HTH_HISTORY_BYTES_MAX];
    if (hth_history_read(data, size, &file) != HTH_OK)
        return;
    HTH_ASSERT(file.count <= HTH_HISTORY_FILE_ROWS);
    for (uint32_t i = 1; i < file.count; i++)
        HTH_ASSERT(file.row[i].t > file.row[i - 1].t);
    HTH_ASSERT(hth_history_write(&file, bytes) == size && memcmp(bytes, data, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t copy[HTH_HISTORY_BYTES_MAX];
    read_one(data, size);
    if (size < 8 || size > sizeof(copy))
        return 0;
    memcpy(copy, data, size);
    hth_store_u64le(copy + size - 8, hth_hash64(copy, size - 8, 0));
    read_one(copy, size);
    return 0;
}
