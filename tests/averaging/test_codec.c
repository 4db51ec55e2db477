/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec of parts: which format where, segments against a float by float account of the spans,
 * what comes back against the formats' own decoders, and bytes that lie.
 */
#include "averaging/codec.h"
#include "averaging/part.h"
#include "support/suite.h"

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/params.h"

static void normals(float *x, size_t count, uint32_t stream)
{
    const uint32_t key[2] = {11, stream};
    for (size_t i = 0; i < count; i += 4) {
        const uint32_t counter[4] = {(uint32_t)i, 1, 2, 3};
        float n[4];
        hth_philox_normal(counter, key, n);
        memcpy(x + i, n, HTH_MIN(count - i, (size_t)4) * sizeof(float));
    }
}

/* ---- which format where -------------------------------------------------------------------- */

TEST(choice)
{
    assert_int_equal(hth_avg_format_for(HTH_QUANT_INT8, 64, 64), HTH_QUANT_INT8);
    assert_int_equal(hth_avg_format_for(HTH_QUANT_INT8, 64, 63), HTH_QUANT_F16);
    assert_int_equal(hth_avg_format_for(HTH_QUANT_INT8, 1, 100000), HTH_QUANT_F16);
    assert_int_equal(hth_avg_format_for(HTH_QUANT_DYNAMIC8, 1, 5), HTH_QUANT_F16);
    assert_int_equal(hth_avg_format_for(HTH_QUANT_F16, 512, 512), HTH_QUANT_F16);
    assert_int_equal(hth_avg_format_for(HTH_QUANT_BF16, 1, 512), HTH_QUANT_F32);
    assert_int_equal(hth_avg_format_for(HTH_QUANT_F32, 512, 512), HTH_QUANT_F32);
}

TEST(spans_of)
{
    const struct hth_backend *be;
    struct hth_params *params;
    struct hth_weight *w;
    struct hth_avg_span *spans;
    uint32_t count;
    assert_ok(hth_backend_by_name("ref", &be));
    assert_ok(hth_params_new(be, &params));
    struct hth_param_spec specs[] = {{.name = "a", .rows = 100, .cols = 100},
                                     {.name = "b", .rows = 1, .cols = 100},
                                     {.name = "c", .rows = 1, .cols = 7},
                                     {.name = "d", .rows = 64, .cols = 65}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(specs); i++)
        assert_ok(hth_params_add(params, &specs[i], &w));
    assert_ok(hth_params_seal(params, &HTH_SEAL_OPTIONS_INIT));
    assert_ok(hth_avg_spans_of(params, HTH_QUANT_INT8, &spans, &count));
    assert_int_equal(count, 3);
    assert_int_equal(spans[0].format, HTH_QUANT_INT8);
    assert_int_equal(spans[0].count, hth_weight_offset(hth_params_at(params, 1)));
    assert_int_equal(spans[1].format, HTH_QUANT_F16);
    assert_int_equal(spans[2].format, HTH_QUANT_INT8);
    assert_ok(hth_avg_spans_check(spans, count, hth_params_flat_len(params)));
    assert_err(HTH_E_RANGE, hth_avg_spans_check(spans, count, hth_params_flat_len(params) + 1));
    assert_err(HTH_E_RANGE, hth_avg_spans_check(spans, count, hth_params_flat_len(params) - 1));
    hth_free(spans);
    assert_err(HTH_E_UNSUPPORTED, hth_avg_spans_of(params, HTH_QUANT_DYNAMIC8U, &spans, &count));
    assert_null(spans);
    hth_params_free(params);
}

TEST(span_bounds)
{
    struct hth_avg_span *spans = hth_new_array(struct hth_avg_span, HTH_AVG_SPANS_MAX + 1);
    for (uint32_t i = 0; i <= HTH_AVG_SPANS_MAX; i++)
        spans[i] = (struct hth_avg_span){2, HTH_QUANT_F32};
    assert_ok(hth_avg_spans_check(spans, HTH_AVG_SPANS_MAX, 2 * HTH_AVG_SPANS_MAX));
    assert_err(HTH_E_RANGE,
               hth_avg_spans_check(spans, HTH_AVG_SPANS_MAX + 1, 2 * (HTH_AVG_SPANS_MAX + 1)));
    assert_err(HTH_E_RANGE, hth_avg_spans_check(spans, 0, 0));
    spans[1].count = 0;
    assert_err(HTH_E_RANGE, hth_avg_spans_check(spans, 2, 2));
    spans[1].count = UINT64_MAX;
    assert_err(HTH_E_RANGE, hth_avg_spans_check(spans, 2, 1));
    hth_free(spans);
}

/* ---- segments ------------------------------------------------------------------------------ */

/* The format of float i, counted one by one. */
static enum hth_quant_format format_at(const struct hth_avg_span *spans, uint64_t i)
{
    uint32_t k = 0;
    while (i >= spans[k].count)
        i -= spans[k++].count;
    return spans[k].format;
}

TEST(cut)
{
    static const struct hth_avg_span spans[] = {
        {10, HTH_QUANT_INT8}, {1, HTH_QUANT_F32}, {100, HTH_QUANT_F16}, {5, HTH_QUANT_BF16}};
    struct hth_segment segments[HTH_AVG_SEGMENTS_MAX];
    uint32_t n, floats;
    for (uint64_t first = 0; first < 116; first++) {
        for (uint32_t count = 1; first + count <= 116; count += 3) {
            uint64_t at = first;
            assert_ok(hth_codec_cut(spans, 4, first, count, segments, &n));
            for (uint32_t i = 0; i < n; i++) {
                if (i > 0 && segments[i].format == HTH_QUANT_INT8 &&
                    segments[i - 1].format == HTH_QUANT_INT8)
                    assert_int_equal(at % HTH_QUANT_INT8_BLOCK, 0);
                for (uint32_t k = 0; k < segments[i].count; k++)
                    assert_int_equal(segments[i].format, format_at(spans, at++));
            }
            assert_int_equal(at, first + count);
            assert_ok(hth_codec_check(segments, n, hth_codec_bytes(segments, n), &floats));
        }
    }
    assert_err(HTH_E_RANGE, hth_codec_cut(spans, 4, 110, 7, segments, &n));
    assert_err(HTH_E_RANGE, hth_codec_cut(spans, 4, 116, 1, segments, &n));
}

TEST(many_segments)
{
    struct hth_avg_span spans[HTH_AVG_SEGMENTS_MAX + 1];
    struct hth_segment segments[HTH_AVG_SEGMENTS_MAX + 1];
    uint32_t n;
    for (uint32_t i = 0; i <= HTH_AVG_SEGMENTS_MAX; i++) {
        spans[i] = (struct hth_avg_span){1, i % 2 ? HTH_QUANT_F16 : HTH_QUANT_F32};
        segments[i] = (struct hth_segment){HTH_QUANT_F32, 1};
    }
    uint32_t many = HTH_AVG_SEGMENTS_MAX + 1, floats;
    assert_ok(hth_codec_cut(spans, many, 0, HTH_AVG_SEGMENTS_MAX, segments, &n));
    assert_err(HTH_E_TOO_LARGE, hth_codec_cut(spans, many, 0, many, segments, &n));
    for (uint32_t i = 0; i < many; i++)
        segments[i] = (struct hth_segment){HTH_QUANT_F32, 1};
    assert_ok(hth_codec_check(segments, many - 1, 4 * (many - 1), &floats));
    assert_err(HTH_E_TOO_LARGE, hth_codec_check(segments, many, 4 * many, &floats));
}

TEST(check)
{
    struct hth_segment s = {HTH_QUANT_F16, 100};
    uint32_t floats;
    assert_ok(hth_codec_check(&s, 1, 200, &floats));
    assert_int_equal(floats, 100);
    assert_err(HTH_E_BAD_SHAPE, hth_codec_check(&s, 1, 201, &floats));
    assert_err(HTH_E_BAD_SHAPE, hth_codec_check(&s, 1, 199, &floats));
    s.format = (enum hth_quant_format)99;
    assert_err(HTH_E_UNSUPPORTED, hth_codec_check(&s, 1, 200, &floats));
    s.format = HTH_QUANT_DYNAMIC8U;
    assert_err(HTH_E_UNSUPPORTED, hth_codec_check(&s, 1, 200, &floats));
    s = (struct hth_segment){HTH_QUANT_F32, HTH_AVG_PART_FLOATS_MAX + 1};
    assert_err(HTH_E_TOO_LARGE, hth_codec_check(&s, 1, 4 * (uint64_t)s.count, &floats));
    s.count--;
    assert_ok(hth_codec_check(&s, 1, 4 * (uint64_t)s.count, &floats));
    s.count = 0;
    assert_err(HTH_E_BAD_SHAPE, hth_codec_check(&s, 1, 0, &floats));
}

/* ---- bytes --------------------------------------------------------------------------------- */

#define FLOATS 5000u

/* Three spans there and back, against each format's own decoder. */
TEST(there_and_back)
{
    static const enum hth_quant_format all[] = {HTH_QUANT_F32,      HTH_QUANT_F16,
                                                HTH_QUANT_BF16,     HTH_QUANT_INT8,
                                                HTH_QUANT_DYNAMIC8, HTH_QUANT_UNIFORM8};
    float x[FLOATS], y[FLOATS], want[FLOATS];
    static uint8_t bytes[4 * FLOATS + 4096], one[4 * FLOATS + 4096];
    normals(x, FLOATS, 1);
    for (size_t a = 0; a < HTH_ARRAY_LEN(all); a++) {
        struct hth_avg_span spans[] = {
            {1000, all[a]}, {3, HTH_QUANT_F32}, {3997, all[(a + 1) % HTH_ARRAY_LEN(all)]}};
        struct hth_segment seg[6]; /* blocks at fixed places cut a span in two at most */
        uint32_t n;
        assert_ok(hth_codec_cut(spans, 3, 0, FLOATS, seg, &n));
        assert_ok(hth_codec_encode(seg, n, x, bytes));
        size_t at = 0;
        for (uint32_t i = 0; i < n; at += seg[i++].count) {
            size_t len = hth_quant_bytes(seg[i].format, seg[i].count);
            assert_ok(hth_quant_encode(seg[i].format, x + at, seg[i].count, one));
            assert_ok(hth_quant_decode(seg[i].format, one, len, seg[i].count, want + at));
        }
        assert_ok(hth_codec_decode(seg, n, bytes, NULL, y));
        assert_memory_equal(y, want, sizeof(y));
        /* An answer: fp32 as it is, the rest added to the own values. */
        assert_ok(hth_codec_decode(seg, n, bytes, x, y));
        for (uint32_t i = 0; i < FLOATS; i++) {
            bool whole = format_at(spans, i) == HTH_QUANT_F32;
            assert_close(y[i], (double)want[i] + (whole ? 0.0 : (double)x[i]), 1e-6, 1e-6);
        }
    }
}

TEST(not_finite)
{
    float x[200], y[200];
    uint8_t bytes[800];
    for (int format = HTH_QUANT_F32; format <= HTH_QUANT_UNIFORM8; format++) {
        struct hth_segment s = {(enum hth_quant_format)format, 200};
        normals(x, 200, 2);
        x[150] = NAN;
        if (format == HTH_QUANT_DYNAMIC8U || format == HTH_QUANT_UNIFORM8)
            continue;
        assert_err(HTH_E_NOT_FINITE, hth_codec_encode(&s, 1, x, bytes));
    }
    struct hth_segment s = {HTH_QUANT_F16, 200};
    memset(bytes, 0, sizeof(bytes));
    bytes[301] = 0x7c; /* infinity */
    assert_err(HTH_E_NOT_FINITE, hth_codec_decode(&s, 1, bytes, NULL, y));
}

/* ---- messages ------------------------------------------------------------------------------ */

TEST(part_message)
{
    uint8_t bytes[HTH_PART_BYTES_MAX];
    struct hth_segment seg[] = {{HTH_QUANT_INT8, 640}, {HTH_QUANT_F16, 100}};
    struct hth_part_head part = {.group = {{1, 2, 3}}, .part = 7}, back;
    memcpy(part.segments, seg, sizeof(seg));
    part.segment_count = 2;
    size_t len = hth_part_pack(&part, bytes);
    assert_ok(hth_part_open(bytes, len, 860, &back));
    assert_memory_equal(&back.group, &part.group, sizeof(back.group));
    assert_int_equal(back.part, 7);
    assert_int_equal(back.floats, 740);
    assert_int_equal(back.segment_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(back.segments[i].format, seg[i].format);
        assert_int_equal(back.segments[i].count, seg[i].count);
    }
    assert_err(HTH_E_BAD_SHAPE, hth_part_open(bytes, len, 861, &back));
    assert_err(HTH_E_MALFORMED, hth_part_open(bytes, len - 1, 860, &back));
    /* Tag 1 (the group) with 31 bytes. */
    uint8_t brief[2 + 31] = {0x0a, 31};
    assert_err(HTH_E_MALFORMED, hth_part_open(brief, sizeof(brief), 0, &back));
    assert_err(HTH_E_MALFORMED, hth_part_open(brief, 0, 0, &back));
}

TEST(reply_message)
{
    uint8_t bytes[HTH_PART_BYTES_MAX];
    struct hth_part_reply reply = {.missing = {1, 2, 3}}, back;
    reply.missing[sizeof(reply.missing) - 1] = 0x80;
    size_t len = hth_part_reply_pack(&reply, bytes);
    assert_ok(hth_part_reply_open(bytes, len, 0, &back));
    assert_memory_equal(back.missing, reply.missing, sizeof(reply.missing));
    /* Tag 6 (missing) with a byte more than a group has. */
    uint8_t many[2 + sizeof(reply.missing) + 1] = {0x32, sizeof(reply.missing) + 1};
    assert_err(HTH_E_MALFORMED, hth_part_reply_open(many, sizeof(many), 0, &back));
    assert_err(HTH_E_MALFORMED, hth_part_reply_open(many, 0, 0, &back));
}
