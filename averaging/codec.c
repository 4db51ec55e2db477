/* SPDX-License-Identifier: Apache-2.0 */
/* codec.c: spans, segments, and their bytes: quant.h's formats, zstd on byte planes where asked. */
#include "averaging/codec.h"

#include <string.h>
#include <zstd.h>

#include "core/mem.h"
#include "kernels/params.h"

/* Links below these rates gain by packing; measured on one core, level 1 (docs/averaging.md). */
#define PACK_BELOW_16BIT 125e6 /* bytes a second: 1 Gbit/s */
#define PACK_BELOW_8BIT  37.5e6
#define PACK_LEVEL       1
#define PROBE_BYTES      (64u << 10)
#define RATIO_MIN        1.05

/* ---- which format where -------------------------------------------------------------------- */

static bool is_averaged(enum hth_quant_format format)
{
    return format >= HTH_QUANT_F32 && format <= HTH_QUANT_UNIFORM8 && format != HTH_QUANT_DYNAMIC8U;
}

/* Bytes of an element that planes are made of. */
static uint32_t width_of(enum hth_quant_format format)
{
    if (format == HTH_QUANT_F32)
        return 4;
    return format == HTH_QUANT_F16 || format == HTH_QUANT_BF16 ? 2 : 1;
}

enum hth_quant_format hth_avg_format_for(enum hth_quant_format wanted, uint64_t rows, uint64_t cols)
{
    if (rows > 1 && rows * cols >= HTH_AVG_SMALL_FLOATS)
        return wanted;
    return width_of(wanted) == 1 ? HTH_QUANT_F16 : HTH_QUANT_F32;
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
        segments[n++] = (struct hth_segment){
            .format = spans[i].format,
            .count = take,
            .bytes = (uint32_t)hth_quant_bytes(spans[i].format, take),
        };
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
        bytes += segments[i].bytes;
    return bytes;
}

enum hth_err hth_codec_check(const struct hth_segment *segments, uint32_t count, uint64_t floats,
                             uint64_t bytes)
{
    uint64_t float_sum = 0, byte_sum = 0;
    if (count > HTH_AVG_SEGMENTS_MAX || floats > HTH_AVG_PART_FLOATS_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < count; i++) {
        const struct hth_segment *s = &segments[i];
        if (!is_averaged(s->format))
            return HTH_E_UNSUPPORTED;
        if (s->count == 0 || s->count > floats)
            return HTH_E_BAD_SHAPE;
        size_t plain = hth_quant_bytes(s->format, s->count);
        if (s->packed ? s->bytes == 0 || s->bytes >= plain : s->bytes != plain)
            return HTH_E_BAD_SHAPE;
        float_sum += s->count;
        byte_sum += s->bytes;
    }
    return float_sum == floats && byte_sum == bytes ? HTH_OK : HTH_E_BAD_SHAPE;
}

bool hth_codec_is_fp32(const struct hth_segment *segments, uint32_t count)
{
    while (count > 0 && segments[count - 1].format == HTH_QUANT_F32)
        count--;
    return count == 0;
}

bool hth_codec_packs(enum hth_quant_format format, double link_bytes_per_s)
{
    double below = width_of(format) == 1 ? PACK_BELOW_8BIT : PACK_BELOW_16BIT;
    return link_bytes_per_s > 0 && link_bytes_per_s < below;
}

/* ---- packing ------------------------------------------------------------------------------- */

/* Elements in planes, and what is no element (nothing today) behind them. */
static void split(enum hth_quant_format format, const uint8_t *in, size_t bytes, uint8_t *planes)
{
    uint32_t width = width_of(format);
    if (width == 1)
        memcpy(planes, in, bytes);
    else
        hth_planes_split(width, bytes / width, in, planes);
}

static bool shrinks(size_t to, size_t from)
{
    return !ZSTD_isError(to) && (double)to * RATIO_MIN < (double)from;
}

/* In place: `bytes` bytes at data become fewer. The size, or 0 when it does not pay. */
static size_t pack(enum hth_quant_format format, uint8_t *data, size_t bytes)
{
    size_t probe = HTH_MIN(bytes, (size_t)PROBE_BYTES);
    uint8_t *planes = hth_try_block(2 * bytes);
    if (planes == NULL)
        return 0;
    uint8_t *packed = planes + bytes;
    split(format, data, probe, planes);
    size_t size = ZSTD_compress(packed, probe, planes, probe, PACK_LEVEL);
    bool pays = shrinks(size, probe);
    if (pays && bytes > probe) {
        split(format, data, bytes, planes);
        size = ZSTD_compress(packed, bytes, planes, bytes, PACK_LEVEL);
        pays = shrinks(size, bytes);
    }
    if (pays)
        memcpy(data, packed, size);
    hth_block_free(planes, 2 * bytes);
    return pays ? size : 0;
}

/* `plain` has room for what the segment is unpacked. Errors: E_MALFORMED, E_NO_MEMORY. */
static enum hth_err unpack(const struct hth_segment *s, const uint8_t *in, uint8_t *plain,
                           size_t bytes)
{
    uint32_t width = width_of(s->format);
    uint8_t *planes = width > 1 ? hth_try_block(bytes) : plain;
    if (planes == NULL)
        return HTH_E_NO_MEMORY;
    size_t got = ZSTD_decompress(planes, bytes, in, s->bytes);
    enum hth_err err = !ZSTD_isError(got) && got == bytes ? HTH_OK : HTH_E_MALFORMED;
    if (err == HTH_OK && width > 1)
        hth_planes_join(width, bytes / width, planes, plain);
    if (width > 1)
        hth_block_free(planes, bytes);
    return err;
}

/* ---- bytes --------------------------------------------------------------------------------- */

enum hth_err hth_codec_encode(struct hth_segment *segments, uint32_t count, const float *x,
                              bool pack_it, uint8_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        struct hth_segment *s = &segments[i];
        size_t plain = hth_quant_bytes(s->format, s->count);
        HTH_TRY(hth_quant_encode(s->format, x, s->count, out));
        size_t packed = pack_it ? pack(s->format, out, plain) : 0;
        s->packed = packed > 0;
        s->bytes = (uint32_t)(s->packed ? packed : plain);
        out += s->bytes;
        x += s->count;
    }
    return HTH_OK;
}

/* One segment; y += alpha * values, or y = values. */
static enum hth_err take_segment(const struct hth_segment *s, const uint8_t *in, bool add,
                                 float alpha, float *y)
{
    size_t plain = hth_quant_bytes(s->format, s->count);
    uint8_t *block = NULL;
    enum hth_err err = HTH_OK;
    if (s->packed) {
        block = hth_try_block(plain);
        if (block == NULL)
            return HTH_E_NO_MEMORY;
        HTH_GOTO(out, unpack(s, in, block, plain));
        in = block;
    }
    if (add)
        err = hth_quant_decode_add(s->format, in, plain, s->count, alpha, y);
    else
        err = hth_quant_decode(s->format, in, plain, s->count, y);
out:
    if (block != NULL)
        hth_block_free(block, plain);
    return err;
}

enum hth_err hth_codec_add(const struct hth_segment *segments, uint32_t count, const uint8_t *in,
                           float alpha, float *y)
{
    for (uint32_t i = 0; i < count; i++) {
        HTH_TRY(take_segment(&segments[i], in, true, alpha, y));
        in += segments[i].bytes;
        y += segments[i].count;
    }
    return HTH_OK;
}

enum hth_err hth_codec_decode(const struct hth_segment *segments, uint32_t count, const uint8_t *in,
                              const float *own, float *y)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct hth_segment *s = &segments[i];
        bool add = own != NULL && s->format != HTH_QUANT_F32;
        if (add)
            memcpy(y, own, s->count * sizeof(float));
        HTH_TRY(take_segment(s, in, add, 1, y));
        in += s->bytes;
        own += own != NULL ? s->count : 0;
        y += s->count;
    }
    return HTH_OK;
}
