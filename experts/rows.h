/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h: converts rows between the wire's types and the kernels' floats, and checks that they are
 * finite. Pure loops that jobs of server and client share; outside experts/ only the benchmark of
 * the wire's types calls them.
 *
 *   type   a row of d numbers                                   worst error
 *   F32    4 d bytes                                            none
 *   BF16   2 d                                                  2^-8 of the number
 *   F16    2 d                                                  2^-11 of it, 3e-8; at most 65504
 *   I8     d codes, then a bf16 scale for each block of 64      1/252 of its largest; below 2^127
 *
 * I8 is the int8 of kernels/quant.h with each row encoded alone, because rows of one tensor are
 * cut, gathered and answered one by one. Its tensor is [rows, bytes of a row]. A row that is not
 * finite stays so in every type; in I8 all of it becomes NaN, since a block has one scale. A row
 * with scales that no encoder writes becomes NaN, too: receivers check that rows are finite and
 * need no other check.
 */
#ifndef HTH_EXPERTS_ROWS_H
#define HTH_EXPERTS_ROWS_H

#include "core/base.h"
#include "core/tensor.h"

/* True for the types of rows on the wire: F32, BF16, F16, I8. */
bool hth_rows_dtype_ok(enum hth_dtype dtype);
/* Bytes of one row of d numbers. */
size_t hth_rows_bytes(enum hth_dtype dtype, size_t d);
/* Type and shape of that many rows; the caller adds the blob. */
struct hth_tensor hth_rows_tensor(enum hth_dtype dtype, uint32_t rows, uint32_t d);
/* Numbers in each row of a tensor; 0: no number of them gives its size. */
uint64_t hth_rows_width(const struct hth_tensor *t);
/* rows x d numbers to floats; exact. */
void hth_rows_to_f32(const void *src, enum hth_dtype dtype, size_t rows, size_t d, float *dst);
/* rows x d floats to rows of a wire type. BF16 and F16 round to nearest, ties to even; a number
 * that is too large becomes infinite. */
void hth_rows_from_f32(const float *src, enum hth_dtype dtype, size_t rows, size_t d, void *dst);
/* True without NaN and infinity. */
bool hth_rows_finite(const float *src, size_t count);
/* True if every magnitude is at most `limit`, which is positive; false for NaN. */
bool hth_rows_below(const float *src, size_t count, float limit);
/* Sum of squares in double, in a fixed order. */
double hth_rows_sumsq(const float *src, size_t count);

/* Checks that a tensor is rows x d numbers of a type for rows, with its bytes inside its blob.
 * Errors: E_BAD_SHAPE. */
enum hth_err hth_rows_check(const struct hth_tensor *t, uint64_t rows, uint64_t d) HTH_MUST;

#endif
