/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blas.h: OpenBLAS in tests: on x86-64 tools/setup installs it; on an emulated machine the packed
 * kernels take its place.
 */
#ifndef HTH_TESTS_KERNELS_BLAS_H
#define HTH_TESTS_KERNELS_BLAS_H

#include "kernels/backend.h"

static inline enum hth_err hth_test_blas(const struct hth_backend **out)
{
#if defined(__x86_64__)
    return hth_backend_blas(NULL, out);
#else
    return hth_backend_blas(NULL, out) == HTH_OK ? HTH_OK : hth_backend_packed(NULL, out);
#endif
}

#endif
