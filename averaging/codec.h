/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h: a stretch of the averaged vector in the formats in which it travels.
 *
 * The vector is a list of *spans*, each in one format of kernels/quant.h: matrices in 8 or 16 bits
 * where asked for, biases and norms in more (hth_avg_format_for). A part of the vector overlaps one
 * or several spans; its pieces are *segments*, each encoded by itself and put one after the other:
 *
 *     vector   |<------ span 0: int8 ------>|<- 1: fp32 ->|<---- span 2: int8 ---->|
 *     part              |<-- segment 0 -->|<- segment 1 ->|<- 2 ->|
 *     bytes             | codes, scales   | floats        | codes, scales |
 *
 * How a segment lies in memory is quant.h's table. A segment may be *packed*: its bytes are split
 * into planes (byte 0 of every element, then byte 1, ...) and the planes are one zstd frame of
 * level 1. That costs a core about 1 ns a byte, so it pays on slow links only: 16-bit formats below
 * 1 Gbit/s, 8-bit ones below 300 Mbit/s (hth_codec_packs); the encoder tries the first 64 KiB and
 * leaves it when they shrink by less than 5 %.
 *
 * Encoding refuses NaN and infinity. Decoding takes bytes from strangers: formats, counts and
 * lengths are checked before anything is written (hth_codec_check), a zstd frame can't give more
 * bytes than its segment has, and a value that is not finite is an error.
 *
 * Pure functions, any thread; those that touch payloads belong in jobs.
 */
#ifndef HTH_AVERAGING_CODEC_H
#define HTH_AVERAGING_CODEC_H

#include "core/base.h"
#include "core/limits.h"
#include "kernels/quant.h"

struct hth_params;

/* ---- which format where -------------------------------------------------------------------- */

/* The next `count` floats of the vector. */
struct hth_avg_span {
    uint64_t count;
    enum hth_quant_format format;
};

/* Tensors of fewer elements, and all with one row (biases, norms), keep at least 16 bits. */
#define HTH_AVG_SMALL_FLOATS 4096

/* `wanted` for matrices; for small tensors fp16 instead of any 8-bit format, and fp32 instead of
 * 16 bits: they are few bytes, and rounding them moves every row. */
enum hth_quant_format hth_avg_format_for(enum hth_quant_format wanted, uint64_t rows,
                                         uint64_t cols);
/* Spans of a sealed set's flat buffer, neighbours of one format merged. *out is freed with
 * hth_free. Errors: E_UNSUPPORTED (format). */
enum hth_err hth_avg_spans_of(struct hth_params *params, enum hth_quant_format wanted,
                              struct hth_avg_span **out, uint32_t *count) HTH_MUST;
/* Errors: E_UNSUPPORTED (a format that is not averaged: dynamic8u), E_RANGE (an empty span, more
 * than HTH_AVG_SPANS_MAX, or not `total` floats together). */
enum hth_err hth_avg_spans_check(const struct hth_avg_span *spans, uint32_t count,
                                 uint64_t total) HTH_MUST;

/* ---- segments of a part -------------------------------------------------------------------- */

struct hth_segment {
    enum hth_quant_format format;
    uint32_t count; /* floats */
    uint32_t bytes; /* as they travel */
    bool packed;
};

static inline struct hth_segment hth_segment_fp32(uint32_t count)
{
    return (struct hth_segment){HTH_QUANT_F32, count, count * (uint32_t)sizeof(float), false};
}

/* The segments of the floats first .. first + count, with their sizes unpacked. A segment of a
 * format whose blocks share a scale (int8, dynamic8) ends at the first multiple of the block in the
 * vector, unless it begins at one: so blocks lie at the same places however the vector is cut, and
 * have the same bytes. (uniform8 has one book a segment.) Errors: E_RANGE (beyond the spans),
 * E_TOO_LARGE (more than HTH_AVG_SEGMENTS_MAX). */
enum hth_err hth_codec_cut(const struct hth_avg_span *spans, uint32_t span_count, uint64_t first,
                           uint32_t count, struct hth_segment *segments,
                           uint32_t *segment_count) HTH_MUST;
/* Bytes of all segments as they say; unpacked, the most that encoding can give. */
size_t hth_codec_bytes(const struct hth_segment *segments, uint32_t count);
/* Whether what a peer says about a part's bytes is possible: known formats, `floats` elements and
 * `bytes` bytes together, exact sizes of unpacked segments, packed ones smaller than that. Errors:
 * E_UNSUPPORTED, E_BAD_SHAPE, E_TOO_LARGE. */
enum hth_err hth_codec_check(const struct hth_segment *segments, uint32_t count, uint64_t floats,
                             uint64_t bytes) HTH_MUST;

/* Whether all are fp32. */
bool hth_codec_is_fp32(const struct hth_segment *segments, uint32_t count);
/* Whether packing this format pays on a link of that many bytes a second (0: unknown: no). */
bool hth_codec_packs(enum hth_quant_format format, double link_bytes_per_s);

/* ---- bytes --------------------------------------------------------------------------------- */

/* Writes at most hth_codec_bytes bytes; `bytes` and `packed` of the segments are set. pack: try it.
 * Errors: E_NOT_FINITE, E_NO_MEMORY. */
enum hth_err hth_codec_encode(struct hth_segment *segments, uint32_t count, const float *x,
                              bool pack, uint8_t *out) HTH_MUST;
/* y += alpha * what the bytes say. The segments were checked against `bytes`. After an error y is
 * partly changed. Errors: E_NOT_FINITE, E_MALFORMED (zstd), E_NO_MEMORY. */
enum hth_err hth_codec_add(const struct hth_segment *segments, uint32_t count, const uint8_t *in,
                           float alpha, float *y) HTH_MUST;
/* y = what the bytes say. With `own`, of a reducer's answer: what that makes of one's own values;
 * an fp32 segment is the mean itself, any other the mean minus what was sent. The same errors. */
enum hth_err hth_codec_decode(const struct hth_segment *segments, uint32_t count, const uint8_t *in,
                              const float *own, float *y) HTH_MUST;

#endif
