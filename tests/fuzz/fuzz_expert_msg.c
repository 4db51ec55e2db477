/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_expert_msg.c: any bytes as the messages of the expert methods; the first byte picks which.
 */
#include "core/base.h"
#include "core/mem.h"
#include "experts/message.h"

static void try_work(const uint8_t *data, size_t size)
{
    struct hth_work w, again;
    uint64_t sum = 0;
    uint8_t *bytes;
    size_t len;

    if (hth_work_open(data, size, 65536, &w) != HTH_OK)
        return;
    for (uint32_t i = 0; i < w.parts; i++)
        sum += w.rows[i];
    HTH_ASSERT(sum == w.rows_total && w.ndim > 0 && w.ndim <= HTH_GRID_DIMS_MAX);
    HTH_ASSERT(w.coord[(size_t)w.parts * w.ndim - 1] < HTH_GRID_DIM_MAX);
    if (hth_work_pack(&w, &bytes, &len) == HTH_OK) {
        if (hth_work_open(bytes, len, 65536, &again) == HTH_OK) {
            HTH_ASSERT(again.parts == w.parts && again.rows_total == w.rows_total);
            hth_work_close(&again);
        }
        hth_free(bytes);
    }
    hth_work_close(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum hth_err status[16];
    struct hth_expert_info *infos;
    uint32_t first, count, total;

    if (size == 0 || size > HTH_FRAME_META_BYTES_MAX)
        return 0;
    switch (data[0] % 4) {
    case 0:
        try_work(data + 1, size - 1);
        break;
    case 1:
        (void)!hth_work_reply_open(data + 1, size - 1, HTH_ARRAY_LEN(status), status);
        break;
    case 2:
        (void)!hth_info_request_open(data + 1, size - 1, &first);
        break;
    default:
        if (hth_info_reply_open(data + 1, size - 1, &infos, &count, &total) == HTH_OK)
            hth_free(infos);
    }
    return 0;
}
