/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h: moving rows between the wire's types and the kernels' floats, and looking whether they
 * are finite. Pure loops that jobs of server and client share; besides experts/ only the benchmark
 * of the wire's types calls them.
 */
#ifndef HTH_EXPERTS_ROWS_H
#define HTH_EXPERTS_ROWS_H

#include "core/base.h"
#include "core/tensor.h"

/* Whether rows may travel as this type: F32, BF16, F16. */
bool hth_rows_dtype_ok(enum hth_dtype dtype);
/* count elements to floats; exact. */
void hth_rows_to_f32(const void *src, enum hth_dtype dtype, size_t count, float *dst);
/* count floats to elements; nearest, ties to even; NaN stays NaN, too large becomes infinite. */
void hth_rows_from_f32(const float *src, enum hth_dtype dtype, size_t count, void *dst);
/* No NaN, no infinity. */
bool hth_rows_finite(const float *src, size_t count);
/* Every magnitude at most `limit`, which is positive; NaN is not. */
bool hth_rows_below(const float *src, size_t count, float limit);
/* Sum of squares in double, in a fixed order. */
double hth_rows_sumsq(const float *src, size_t count);

/* Checks that a tensor is [rows, cols] of a type for rows, with its bytes inside its blob.
 * Errors: E_BAD_SHAPE. */
enum hth_err hth_rows_check(const struct hth_tensor *t, uint64_t rows, uint64_t cols) HTH_MUST;

#endif
