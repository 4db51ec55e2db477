/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_part.c: any bytes as the messages of method 66 and the values behind them. The first byte
 * selects the message, the second and third give the length of its tensor in the rest.
 */
#include "averaging/part.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"

#define FLOATS_MAX 65536u

/* Accepted segments decode into exactly their number of floats, or fail. */
static void try_values(const struct hth_segment *segments, uint32_t count, uint32_t floats,
                       const uint8_t *bytes)
{
    if (count == 0 || floats > FLOATS_MAX)
        return;
    float *own = hth_calloc(floats, sizeof(float)), *y = hth_calloc(floats, sizeof(float));
    if (hth_codec_decode(segments, count, bytes, NULL, y) == HTH_OK) {
        for (uint32_t i = 0; i < floats; i++)
            HTH_ASSERT(isfinite(y[i]));
    }
    (void)!hth_codec_decode(segments, count, bytes, own, y);
    hth_free(own);
    hth_free(y);
}

static void try_part(const uint8_t *data, size_t size, const uint8_t *tensor, size_t bytes)
{
    struct hth_part_head part, again;
    uint8_t packed[HTH_PART_BYTES_MAX];
    if (hth_part_open(data, size, bytes, &part) != HTH_OK)
        return;
    HTH_ASSERT(hth_codec_bytes(part.segments, part.segment_count) == bytes);
    try_values(part.segments, part.segment_count, part.floats, tensor);
    size_t len = hth_part_pack(&part, packed);
    HTH_ASSERT(hth_part_open(packed, len, bytes, &again) == HTH_OK);
    HTH_ASSERT(again.part == part.part && again.segment_count == part.segment_count);
}

static void try_reply(const uint8_t *data, size_t size, const uint8_t *tensor, size_t bytes)
{
    struct hth_part_reply reply, again;
    uint8_t packed[HTH_PART_BYTES_MAX];
    if (hth_part_reply_open(data, size, bytes, &reply) != HTH_OK)
        return;
    try_values(reply.segments, reply.segment_count, reply.floats, tensor);
    size_t len = hth_part_reply_pack(&reply, packed);
    HTH_ASSERT(hth_part_reply_open(packed, len, bytes, &again) == HTH_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3 || size > HTH_FRAME_META_BYTES_MAX)
        return 0;
    size_t bytes = (size_t)data[1] | (size_t)data[2] << 8;
    const uint8_t *message = data + 3;
    size_t rest = size - 3;
    bytes = HTH_MIN(bytes, rest);
    /* A copy of exactly its size, so that a sanitizer sees reads beyond it. */
    uint8_t *tensor = hth_calloc(HTH_MAX(bytes, (size_t)1), 1);
    memcpy(tensor, message + (rest - bytes), bytes);
    if (data[0] % 2 == 0)
        try_part(message, rest - bytes, tensor, bytes);
    else
        try_reply(message, rest - bytes, tensor, bytes);
    hth_free(tensor);
    return 0;
}
