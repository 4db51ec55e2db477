/* SPDX-License-Identifier: Apache-2.0 */
/* ref.c: the reference back end: the plain loops and nothing else. */
#include <pthread.h>

#include "kernels/cpu-internal.h"

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

static const struct hth_cpu ref_cpu = {
    .row = &hth_rowops_ref,
    .gemm = ref_gemm,
    .gemm_scratch = ref_gemm_scratch,
};

static struct hth_backend ref_backend;
static pthread_once_t ref_once = PTHREAD_ONCE_INIT;

static void ref_init(void)
{
    hth_cpu_fill(&ref_backend, "ref", &ref_cpu);
    ref_backend.caps |= HTH_CAP_REPRODUCIBLE;
}

const struct hth_backend *hth_backend_ref(void)
{
    pthread_once(&ref_once, ref_init);
    return &ref_backend;
}
