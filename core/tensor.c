/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.c: sizes of tensors, also of shapes that a peer chose. */
#include "core/tensor.h"

size_t hth_dtype_size(enum hth_dtype dtype)
{
    switch (dtype) {
    case HTH_F32:
    case HTH_I32:
        return 4;
    case HTH_BF16:
    case HTH_F16:
        return 2;
    case HTH_I8:
    case HTH_U8:
        return 1;
    case HTH_I64:
        return 8;
    }
    return 0;
}

enum hth_err hth_tensor_bytes(const struct hth_tensor *t, uint64_t *bytes)
{
    uint64_t total = hth_dtype_size(t->dtype);
    if (total == 0 || t->ndim > HTH_TENSOR_DIMS_MAX)
        return HTH_E_BAD_SHAPE;
    for (uint32_t i = 0; i < t->ndim; i++) {
        if (__builtin_mul_overflow(total, t->dim[i], &total) || total > INT64_MAX)
            return HTH_E_TOO_LARGE;
    }
    *bytes = total;
    return HTH_OK;
}
