/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_int.h: declarations of the CPU back ends. A CPU back end is a matrix product and a table of
 * row loops; everything else (cpu.c, cpu_attention.c) is written once over these two.
 */
#ifndef HTH_KERNELS_CPU_INT_H
#define HTH_KERNELS_CPU_INT_H

#include "kernels/backend_int.h"
#include "kernels/rowops.h"

struct hth_cpu {
    const struct hth_rowops *row;
    enum hth_err (*gemm)(struct hth_exec *ex, const struct hth_gemm *g);
    /* Scratch of a product with an inner size k and n columns, for any number of rows. */
    size_t (*gemm_scratch)(size_t n, size_t k);
    size_t gemm_scratch_max; /* over all n and k: for products whose shape varies */
};

/* Loading OpenBLAS fills hth_cpu_blas before it returns the back end. */
extern const struct hth_cpu hth_cpu_ref;
extern struct hth_cpu hth_cpu_blas;
extern const struct hth_backend hth_cpu_ref_backend;
extern const struct hth_backend hth_cpu_blas_backend;

enum hth_err hth_cpu_attention_forward(struct hth_exec *ex, const struct hth_attention *att,
                                       struct hth_view qkv, struct hth_view out,
                                       struct hth_view lse);
enum hth_err hth_cpu_attention_backward(struct hth_exec *ex, const struct hth_attention *att,
                                        const struct hth_attention_saved *saved,
                                        struct hth_view dout, struct hth_view dqkv);
enum hth_err hth_cpu_attention_grow(struct hth_exec *ex, const struct hth_attention *att,
                                    const struct hth_attention_kept *kept, struct hth_view qkv,
                                    struct hth_view out);
/* Adds the rows of dy to a bias' gradient, in order. */
enum hth_err hth_cpu_bias_grad(struct hth_exec *ex, struct hth_weight *bias, struct hth_view dy);
enum hth_err hth_cpu_step(struct hth_exec *ex, struct hth_weight *w, const struct hth_step *step);
size_t hth_cpu_attention_scratch(const struct hth_backend *be, uint32_t seq, uint32_t head_dim);

static inline const struct hth_cpu *hth_cpu_of(const struct hth_exec *ex)
{
    return ex->be->impl;
}

/* Row r of a view of floats. */
static inline float *hth_row(struct hth_view v, size_t r)
{
    return (float *)v.data + r * v.ld;
}

/* The same, NULL for no view. */
static inline float *hth_row_or_null(struct hth_view v, size_t r)
{
    return v.data == NULL ? NULL : (float *)v.data + r * v.ld;
}

#endif
