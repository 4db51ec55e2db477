/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_mean.c: any bytes as a request for a mean. One that is taken is in range, and writes the
 * same bytes again.
 */
#include "collab/means.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_mean_msg msg;
    uint8_t again[HTH_MEAN_MSG_BYTES];
    if (hth_mean_msg_read(data, size, &msg) != HTH_OK)
        return 0;
    HTH_ASSERT(msg.first % HTH_MEAN_BLOCK == 0 && msg.values > 0);
    HTH_ASSERT(msg.values <= HTH_MEAN_BYTES_MAX / sizeof(float));
    hth_mean_msg_write(&msg, again);
    HTH_ASSERT(size == sizeof(again) && memcmp(again, data, size) == 0);
    return 0;
}
