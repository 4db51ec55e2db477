/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_recall.c: any bytes as what a trainer remembers: an error, or points in order and counts in
 * range that survive a round trip.
 */
#include "monitor/recall.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hth_recall_told told;
    static uint8_t bytes[HTH_RECALL_BYTES_MAX];
    if (hth_recall_read(data, size, &told) != HTH_OK)
        return 0;
    HTH_ASSERT(told.point_count <= HTH_RECALL_POINTS_MAX);
    HTH_ASSERT(told.test_count <= HTH_RECALL_TESTS_MAX);
    HTH_ASSERT(told.total <= HTH_RECALL_COUNT_MAX && told.saved_step <= HTH_RECALL_COUNT_MAX);
    HTH_ASSERT(told.behind <= HTH_RECALL_COUNT_MAX);
    if (told.point_count > 0 && told.point[0].t == 0)
        return 0; /* not after second 0 */
    size_t len = hth_recall_write(&told, 0, bytes);
    if (told.forks == 0 && told.joined == 0) /* an earlier version may not tell them, */
        len -= 16;
    if (told.behind == 0 && told.forks == 0 && told.joined == 0) /* nor this */
        len -= 8;
    HTH_ASSERT(len <= size && memcmp(bytes, data, len) == 0);
    return 0;
}
