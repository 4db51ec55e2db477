/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor.h: a tensor outside the kernels: a type, a shape, and bytes in a shared blob.
 *
 * Rows are dense and row-major; the first dimension counts rows. Kernels read the same bytes
 * through plain views (kernels/backend.h); the wire carries them as they lie in memory,
 * little-endian.
 */
#ifndef HTH_CORE_TENSOR_H
#define HTH_CORE_TENSOR_H

#include "core/base.h"

#define HTH_TENSOR_DIMS_MAX 4

/* Values travel on the wire and in records: append only. */
enum hth_dtype {
    HTH_F32 = 1,
    HTH_BF16 = 2,
    HTH_F16 = 3,
    HTH_I8 = 4,
    HTH_I32 = 5,
    HTH_U8 = 6,
    HTH_I64 = 7,
};

struct hth_blob;

/* `blob` is borrowed unless a function says that it takes a reference. */
struct hth_tensor {
    enum hth_dtype dtype;
    uint32_t ndim;
    uint64_t dim[HTH_TENSOR_DIMS_MAX];
    struct hth_blob *blob;
    size_t offset; /* bytes from the blob's start; a multiple of 64 */
};

/* Bytes of one element; 0 for an unknown type. */
size_t hth_dtype_size(enum hth_dtype dtype);
/* Product of the dims times the element size. Errors: E_BAD_SHAPE (unknown type, too many dims),
 * E_TOO_LARGE (the product does not fit in 63 bits). */
enum hth_err hth_tensor_bytes(const struct hth_tensor *t, uint64_t *bytes) HTH_MUST;

#endif
