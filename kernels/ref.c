/* SPDX-License-Identifier: Apache-2.0 */
/* ref.c: the reference back end: the plain loops. */
#include "kernels/cpu_int.h"

static enum hth_err ref_gemm(struct hth_exec *ex, const struct hth_gemm *g)
{
    (void)ex;
    hth_rowops_ref.gemm(g);
    return HTH_OK;
}

static size_t ref_gemm_scratch(size_t n, size_t k)
{
    (void)n;
    (void)k;
    return 0;
}

const struct hth_cpu hth_cpu_ref = {
    .row = &hth_rowops_ref,
    .gemm = ref_gemm,
    .gemm_scratch = ref_gemm_scratch,
};

const struct hth_backend *hth_backend_ref(void)
{
    return &hth_cpu_ref_backend;
}
