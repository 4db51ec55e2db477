/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant.h: number formats for tensors on the wire or on disk: 16-bit floats and four kinds of 8
 * bits.
 *
 * A *format* converts `count` floats to hth_quant_bytes(format, count) bytes and back. The bytes
 * are a pure function of the floats: the same on every instruction set and compiler, so that peers
 * which encode the same numbers send the same bytes, and peers that decode the same bytes get the
 * same floats. All multi-byte numbers are little-endian, nothing is padded, any alignment will do.
 *
 *   format    bytes for n values          layout
 *   fp32      4 n                         the floats themselves
 *   fp16      2 n                         IEEE binary16, nearest even, held to +-65504
 *   bf16      2 n                         upper half of a float, nearest even, held to +-3.39e38
 *   int8      n + 2 ceil(n / 64)          codes int8[n], then scales bf16[blocks of 64]
 *   dynamic8  n + 4 ceil(n / 4096)        codes uint8[n], then maxima fp32[blocks of 4096]
 *   dynamic8u the same                    for values >= 0 (second moments)
 *   uniform8  n + 1024, 0 for n = 0       codebook fp32[256], then codes uint8[n]
 *
 * int8 (linear, 8.25 bits a value). Over a block of 64 values, the last one shorter, with
 * m = max |x|:  scale = m / 127 rounded *up* to bf16;  code = nearest even of x * (1 / scale);
 * value = code * scale. A bf16 scale has the exponents of a float: binary16 would lose every
 * gradient below 1e-6. Because codes are made with the rounded scale, its eight bits cost 2 % of
 * the mean error and no more. m < 2^-119: scale 0 and codes 0.
 *
 * dynamic8 (the dynamic tree code of Dettmers et al. 2022, 8.01 bits a value). The code book: for
 * i = 0 ... 6 divide [0.1, 1] into 2^i equal parts and take their middles times 10^(i - 6), with
 * both signs; and 0 and 1: 256 values. Over a block with m = max |x|: the code whose value is
 * nearest to x / m, the one nearer to zero where two are; value = book[code] * m. m = 0: all codes
 * are that of 0. dynamic8u has 2^(i + 1) parts and no signs. Better than int8 only for tensors
 * with heavy tails and for what is divided by (Adam's v).
 *
 * uniform8 (hivemind's, 8 bits a value). 256 steps of 6 sigma / 256 around the mean, what lies
 * beyond 3 sigma falls into the outermost; each code stands for the mean of the values that fell
 * there. One book for the whole tensor. Mean and deviation are sums in double over 16 partial sums,
 * the bucket means over 4, so that the order is fixed.
 *
 * Errors. Encoding refuses NaN and infinity: E_NOT_FINITE, and the output is not to be used (int8
 * refuses magnitudes from 2^127 on, too). Decoding takes bytes from strangers: a wrong length is
 * E_TRUNCATED or E_MALFORMED, a scale, maximum, book entry or value that is not finite (or a scale
 * that no encoder writes) is E_NOT_FINITE, and then nothing was written. Every code is valid.
 * An unknown format is E_UNSUPPORTED in all of them, and 0 bytes.
 *
 * Error on numbers from N(0, 1), mean of |x - x'|: int8 0.0051, dynamic8 0.01005, uniform8 0.0064.
 *
 * Pure functions without state: any thread, typically jobs. Host memory only. Functions with a team
 * let it share int8 of many blocks (core/team.h); the bytes and floats are the same.
 */
#ifndef HTH_KERNELS_QUANT_H
#define HTH_KERNELS_QUANT_H

#include "core/base.h"
#include "core/team.h"

/* These values are on the wire: append only. */
enum hth_quant_format {
    HTH_QUANT_F32 = 1,
    HTH_QUANT_F16 = 2,
    HTH_QUANT_BF16 = 3,
    HTH_QUANT_INT8 = 4,
    HTH_QUANT_DYNAMIC8 = 5,
    HTH_QUANT_DYNAMIC8U = 6,
    HTH_QUANT_UNIFORM8 = 7,
};

#define HTH_QUANT_INT8_BLOCK    64
#define HTH_QUANT_DYNAMIC_BLOCK 4096

/* "fp32", "fp16", "bf16", "int8", "dynamic8", "dynamic8u", "uniform8"; "?" for an unknown one. */
const char *hth_quant_name(enum hth_quant_format format);
/* Errors: E_NOT_FOUND. */
enum hth_err hth_quant_by_name(const char *name, enum hth_quant_format *out) HTH_MUST;

/* Bytes of `count` floats; 0 for an unknown format or over HTH_PARAMS_FLOATS_MAX floats. */
size_t hth_quant_bytes(enum hth_quant_format format, size_t count);

/* Writes hth_quant_bytes(format, count) bytes. x and out do not overlap. Errors: E_NOT_FINITE,
 * E_RANGE (dynamic8u: a value below 0), E_UNSUPPORTED (format), E_TOO_LARGE (count). */
enum hth_err hth_quant_encode(enum hth_quant_format format, const float *x, size_t count,
                              void *out) HTH_MUST;

/* y[i] = value i. `bytes` is the length of `in`; it must be that of `count` floats. Errors:
 * E_TRUNCATED, E_MALFORMED (too long), E_NOT_FINITE, E_UNSUPPORTED, E_TOO_LARGE. */
enum hth_err hth_quant_decode(enum hth_quant_format format, const void *in, size_t bytes,
                              size_t count, float *y) HTH_MUST;
/* The same two with the help of a team; NULL: none. */
enum hth_err hth_quant_encode_team(struct hth_team *team, enum hth_quant_format format,
                                   const float *x, size_t count, void *out) HTH_MUST;
enum hth_err hth_quant_decode_team(struct hth_team *team, enum hth_quant_format format,
                                   const void *in, size_t bytes, size_t count, float *y) HTH_MUST;
/* y[i] += alpha * value i, rounded after the product and after the sum. The same errors. */
enum hth_err hth_quant_decode_add(enum hth_quant_format format, const void *in, size_t bytes,
                                  size_t count, float alpha, float *y) HTH_MUST;

/* Restricts all later calls to the loops of one instruction set (isa.h), for tests and comparisons;
 * NULL, the default: the best of this CPU. No bit depends on it. Errors: E_UNSUPPORTED (this CPU
 * does not run it). */
enum hth_err hth_quant_hold(const char *isa) HTH_MUST;
/* The instruction set in use: "generic", "avx2" or "avx512". */
const char *hth_quant_isa(void);

/* The books of dynamic8 and dynamic8u, in rising order. */
const float *hth_quant_dynamic_book(bool is_unsigned);

#endif
