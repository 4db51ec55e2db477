/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_expert_msg.c: any bytes as the messages of the expert methods, or as rows in each of their
 * types; the first byte selects one.
 */
#include "core/base.h"
#include "core/mem.h"
#include "experts/message.h"
#include "experts/rows.h"

#include <math.h>

/* largest value written; a decoded one may be twice as large */
#define INT8_LARGEST 0x1.fffffep126f

static void try_work(const uint8_t *data, size_t size)
{
    struct hth_expert_msg w, again;
    uint64_t sum = 0;
    uint8_t *bytes;
    size_t len;

    if (hth_expert_msg_open(data, size, 65536, &w) != HTH_OK)
        return;
    for (uint32_t i = 0; i < w.parts; i++)
        sum += w.rows[i];
    HTH_ASSERT(sum == w.rows_total && w.ndim > 0 && w.ndim <= HTH_GRID_DIMS_MAX);
    HTH_ASSERT(w.coord[(size_t)w.parts * w.ndim - 1] < HTH_GRID_DIM_MAX);
    if (hth_expert_msg_pack(&w, &bytes, &len) == HTH_OK) {
        if (hth_expert_msg_open(bytes, len, 65536, &again) == HTH_OK) {
            HTH_ASSERT(again.parts == w.parts && again.rows_total == w.rows_total);
            HTH_ASSERT(again.forward.hi == w.forward.hi && again.forward.lo == w.forward.lo);
            HTH_ASSERT(hth_expert_msg_list_hash(&again) == hth_expert_msg_list_hash(&w));
            hth_expert_msg_close(&again);
        }
        hth_free(bytes);
    }
    hth_expert_msg_close(&w);
}

/* A shape that passes has its rows, and an int8 row is finite or NaN as a whole. */
static void try_rows(const uint8_t *data, size_t size)
{
    struct hth_blob blob = {.data = (uint8_t *)(uintptr_t)data + 3, .size = size - 3};
    struct hth_tensor t = {.dtype = data[0], .ndim = 2, .dim = {data[1], data[2]}, .blob = &blob};
    uint64_t d = hth_rows_width(&t);
    float out[255 * 4], back[255];
    uint8_t again[255 * 4];

    if (hth_rows_check(&t, t.dim[0], d) != HTH_OK)
        return;
    HTH_ASSERT(t.dim[0] * hth_rows_bytes(t.dtype, d) <= blob.size);
    for (uint64_t r = 0; r < t.dim[0]; r++) {
        size_t bad = 0;
        hth_rows_to_f32(blob.data + r * hth_rows_bytes(t.dtype, d), t.dtype, 1, d, out);
        for (uint64_t i = 0; i < d; i++)
            bad += !isfinite(out[i]);
        HTH_ASSERT(hth_rows_finite(out, d) == (bad == 0));
        HTH_ASSERT(t.dtype != HTH_I8 || bad == 0 || bad == d);
        hth_rows_from_f32(out, t.dtype, 1, d, again);
        hth_rows_to_f32(again, t.dtype, 1, d, back);
        bool narrow = t.dtype != HTH_I8 || hth_rows_below(out, d, INT8_LARGEST);
        HTH_ASSERT(hth_rows_finite(back, d) == (bad == 0 && narrow));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum hth_err status[16];
    struct hth_expert_info *infos;
    uint32_t first, count, total;
    bool kept;

    if (size == 0 || size > HTH_FRAME_META_BYTES_MAX)
        return 0;
    switch (data[0] % 5) {
    case 0:
        try_work(data + 1, size - 1);
        break;
    case 1:
        (void)!hth_expert_msg_reply_open(data + 1, size - 1, HTH_ARRAY_LEN(status), status, &kept);
        break;
    case 2:
        (void)!hth_info_request_open(data + 1, size - 1, &first);
        break;
    case 3:
        if (hth_info_reply_open(data + 1, size - 1, &infos, &count, &total) == HTH_OK)
            hth_free(infos);
        break;
    default:
        if (size > 3)
            try_rows(data + 1, size - 1);
    }
    return 0;
}
