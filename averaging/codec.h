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
 * How a segment lies in memory is quant.h's table.
 *
 * Encoding refuses NaN and infinity. Decoding takes bytes from strangers: formats, counts and
 * lengths are checked before anything is written (hth_codec_check), and a value that is not finite
 * is an error.
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

/* A multiple of the blocks of all formats. Tensors of fewer elements, and all with one row (biases,
 * norms), keep at least 16 bits. */
#define HTH_AVG_BLOCK_FLOATS 4096u

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
};

/* The segments of the floats first .. first + count, in their order. A segment of a
 * format whose blocks share a scale (int8, dynamic8) ends at the first multiple of the block in the
 * vector, unless it begins at one: so blocks lie at the same places however the vector is cut, and
 * have the same bytes. (uniform8 has one book a segment.) Errors: E_RANGE (beyond the spans),
 * E_TOO_LARGE (more than HTH_AVG_SEGMENTS_MAX). */
enum hth_err hth_codec_cut(const struct hth_avg_span *spans, uint32_t span_count, uint64_t first,
                           uint32_t count, struct hth_segment *segments,
                           uint32_t *segment_count) HTH_MUST;
/* Bytes of all segments. */
size_t hth_codec_bytes(const struct hth_segment *segments, uint32_t count);
/* Whether what a peer says about a part's bytes is possible: known formats, `bytes` bytes together;
 * and of how many floats. Errors: E_UNSUPPORTED, E_BAD_SHAPE, E_TOO_LARGE. */
enum hth_err hth_codec_check(const struct hth_segment *segments, uint32_t count, uint64_t bytes,
                             uint32_t *floats) HTH_MUST;

/* Whether all are fp32. */
bool hth_codec_is_fp32(const struct hth_segment *segments, uint32_t count);

/* ---- bytes --------------------------------------------------------------------------------- */

/* Writes hth_codec_bytes bytes. Errors: E_NOT_FINITE. */
enum hth_err hth_codec_encode(const struct hth_segment *segments, uint32_t count, const float *x,
                              uint8_t *out) HTH_MUST;
/* y = what the bytes say. With `own`, of a reducer's answer: what that makes of one's own values;
 * an fp32 segment is the mean itself, any other the mean minus what was sent. The
 * segments were checked against `bytes`. After an error y is partly changed. Errors:
 * E_NOT_FINITE. */
enum hth_err hth_codec_decode(const struct hth_segment *segments, uint32_t count, const uint8_t *in,
                              const float *own, float *y) HTH_MUST;

#endif
