/* SPDX-License-Identifier: Apache-2.0 */
/* blas_cuda.h: products by cuBLASLt, loaded after a device has answered. See gpu.h. */
#ifndef HTH_KERNELS_CUDA_BLAS_CUDA_H
#define HTH_KERNELS_CUDA_BLAS_CUDA_H

#include "kernels/cuda/gpu.h"

/* Sets the only folder to search for the library; the string must stay valid. NULL: the loader's
 * folders, then the toolkit's. Call it before the first open. */
void hth_cublas_look_in(const char *folder);
int hth_cublas_open(void **blas, char *why, size_t why_size);
void hth_cublas_close(void *blas);
int hth_cublas_matmul_many(void *blas, void *stream, const struct hth_gpu_many *m);
int hth_cublas_matmul(void *blas, void *stream, const struct hth_gpu_matmul *m);

#endif
