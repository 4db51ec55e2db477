/* SPDX-License-Identifier: Apache-2.0 */
/* codec.c: spans, segments, and their bytes in quant.h's formats. */
#include "averaging/codec.h"

#include <string.h>

#include "core/mem.h"
#include "kernels/params.h"

/* ---- which format where -------------------------------------------------------------------- */

static bool is_averaged(enum hth_quant_format format)
{
    return format >= HTH_QUANT_F32 && format <= HTH_QUANT_UNIFORM8 && format != HTH_QUANT_DYNAMIC8U;
}

enum hth_quant_format hth_avg_format_for(enum hth_quant_format wanted, uint64_t rows, uint64_t cols)
{
    if (rows > 1 && rows * cols >= HTH_AVG_BLOCK_FLOATS)
        return wanted;
    bool narrow = wanted != HTH_QUANT_F16 && wanted != HTH_QUANT_BF16 && wanted != HTH_QUANT_F32;
    return narrow ? HTH_QUANT_F16 : HTH_QUANT_F32;
}

static void add_span(struct hth_avg_span *spans, uint32_t *count, uint64_t floats,
                     enum hth_quant_format format)
{
    if (floats == 0)
        return;
    if (*count > 0 && spans[*count - 1].format == format)
        spans[*count - 1].count += floats;
    else
        spans[(*count)++] = (struct hth_avg_span){floats, format};
}

enum hth_err hth_avg_spans_of(struct hth_params *params, enum hth_quant_format wanted,
                              struct hth_avg_span **out, uint32_t *count)
{
    uint32_t tensors = hth_params_count(params);
    uint64_t total = hth_params_flat_len(params);
    *out = NULL;
    *count = 0;
    if (!is_averaged(wanted))
        return HTH_E_UNSUPPORTED;
    struct hth_avg_span *spans = hth_new_array(struct hth_avg_span, (size_t)tensors + 1);
    /* The few floats between tensors go with the one before. */
    for (uint32_t i = 0; i < tensors; i++) {
        struct hth_weight *w = hth_params_at(params, i);
        uint64_t first = i == 0 ? 0 : hth_weight_offset(w);
        uint64_t end = i + 1 < tensors ? hth_weight_offset(hth_params_at(params, i + 1)) : total;
        add_span(spans, count, end - first,
                 hth_avg_format_for(wanted, hth_weight_rows(w), hth_weight_cols(w)));
    }
    *out = spans;
    return HTH_OK;
}

enum hth_err hth_avg_spans_check(const struct hth_avg_span *spans, uint32_t count, uint64_t total)
{
    uint64_t sum = 0;
    if (count == 0 || count > HTH_AVG_SPANS_MAX)
        return HTH_E_RANGE;
    for (uint32_t i = 0; i < count; i++) {
        if (!is_averaged(spans[i].format))
            return HTH_E_UNSUPPORTED;
        if (spans[i].count == 0 || spans[i].count > total - sum)
            return HTH_E_RANGE;
        sum += spans[i].count;
    }
    return sum == total ? HTH_OK : HTH_E_RANGE;
}

/* ---- segments of a part -------------------------------------------------------------------- */

/* Floats that share a scale, from a multiple of so many on. */
static uint32_t block_of(enum hth_quant_format format)
{
    return format == HTH_QUANT_INT8       ? HTH_QUANT_INT8_BLOCK
           : format == HTH_QUANT_DYNAMIC8 ? HTH_QUANT_DYNAMIC_BLOCK
                                          : 1;
}

enum hth_err hth_codec_cut(const struct hth_avg_span *spans, uint32_t span_count, uint64_t first,
                           uint32_t count, struct hth_segment *segments, uint32_t *segment_count)
{
    uint32_t n = 0, left = count;
    uint64_t begin = 0;
    *segment_count = 0;
    for (uint32_t i = 0; i < span_count && left > 0;) {
        uint64_t end = begin + spans[i].count;
        if (end <= first) {
            begin += spans[i++].count;
            continue;
        }
        uint32_t take = (uint32_t)HTH_MIN((uint64_t)left, end - first);
        uint32_t block = block_of(spans[i].format);
        if (first % block != 0)
            take = HTH_MIN(take, block - (uint32_t)(first % block));
        if (n == HTH_AVG_SEGMENTS_MAX)
            return HTH_E_TOO_LARGE;
        segments[n++] = (struct hth_segment){.format = spans[i].format, .count = take};
        first += take;
        left -= take;
    }
    *segment_count = n;
    return left == 0 ? HTH_OK : HTH_E_RANGE;
}

size_t hth_codec_bytes(const struct hth_segment *segments, uint32_t count)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += hth_quant_bytes(segments[i].format, segments[i].count);
    return bytes;
}

enum hth_err hth_codec_check(const struct hth_segment *segments, uint32_t count, uint64_t bytes,
                             uint32_t *floats)
{
    uint64_t float_sum = 0, byte_sum = 0;
    if (count > HTH_AVG_SEGMENTS_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < count; i++) {
        const struct hth_segment *s = &segments[i];
        if (!is_averaged(s->format))
            return HTH_E_UNSUPPORTED;
        if (s->count == 0)
            return HTH_E_BAD_SHAPE;
        float_sum += s->count;
        byte_sum += hth_quant_bytes(s->format, s->count);
    }
    if (float_sum > HTH_AVG_PART_FLOATS_MAX)
        return HTH_E_TOO_LARGE;
    *floats = (uint32_t)float_sum;
    return byte_sum == bytes ? HTH_OK : HTH_E_BAD_SHAPE;
}

bool hth_codec_is_fp32(const struct hth_segment *segments, uint32_t count)
{
    while (count > 0 && segments[count - 1].format == HTH_QUANT_F32)
        count--;
    return count == 0;
}

/* ---- bytes --------------------------------------------------------------------------------- */

enum hth_err hth_codec_encode(const struct hth_segment *segments, uint32_t count, const float *x,
                              uint8_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct hth_segment *s = &segments[i];
        HTH_TRY(hth_quant_encode(s->format, x, s->count, out));
        out += hth_quant_bytes(s->format, s->count);
        x += s->count;
    }
    return HTH_OK;
}

enum hth_err hth_codec_decode(const struct hth_segment *segments, uint32_t count, const uint8_t *in,
                              const float *own, float *y)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct hth_segment *s = &segments[i];
        size_t bytes = hth_quant_bytes(s->format, s->count);
        if (own != NULL && s->format != HTH_QUANT_F32) {
            memcpy(y, own, s->count * sizeof(float));
            HTH_TRY(hth_quant_decode_add(s->format, in, bytes, s->count, 1, y));
        } else {
            HTH_TRY(hth_quant_decode(s->format, in, bytes, s->count, y));
        }
        in += bytes;
        own += own != NULL ? s->count : 0;
        y += s->count;
    }
    return HTH_OK;
}
