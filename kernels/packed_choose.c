/* SPDX-License-Identifier: Apache-2.0 */
/* packed_choose.c: the packed back ends of this build and which of them this CPU can run. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kernels/isa.h"
#include "kernels/packed_int.h"

/* The best set is last. */
static const struct hth_packed_isa *const sets[] = {
    &hth_packed_generic_bf16, &hth_packed_generic,
#if defined(__x86_64__)
    &hth_packed_avx2,         &hth_packed_avx512,  &hth_packed_avx512bf16, &hth_packed_amxbf16,
#endif
};

/* Filled by the first caller, read by all once `stage` is FILLED. */
enum { EMPTY, FILLING, FILLED };
static struct {
    atomic_int stage;
    struct hth_packed_cpu cpu[HTH_ARRAY_LEN(sets)];
    struct hth_backend backend[HTH_ARRAY_LEN(sets)];
} packed;

/* True for the names of sets, those of other architectures included. */
static bool is_known(const char *isa)
{
    size_t i = 0;
    while (hth_isa_name(i) != NULL && strcmp(isa, hth_isa_name(i)) != 0)
        i++;
    return hth_isa_name(i) != NULL;
}

/* bf16 in plain C is slow: nobody gets it unasked. */
static bool only_named(const struct hth_packed_isa *isa)
{
    return isa == &hth_packed_generic_bf16;
}

static void fill(void)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(sets); i++) {
        struct hth_packed_cpu *cpu = &packed.cpu[i];
        struct hth_backend *be = &packed.backend[i];
        cpu->cpu = (struct hth_cpu){
            .row = hth_rowops_find(sets[i]->name),
            .gemm = hth_packed_gemm,
            .gemm_scratch = hth_packed_gemm_scratch,
        };
        cpu->isa = sets[i];
        *be = hth_cpu_ref_backend;
        be->name = sets[i]->compute == HTH_MATMUL_BF16 ? "packed-bf16" : "packed";
        be->caps = HTH_CAP_HOST_MEMORY | HTH_CAP_ROW_INVARIANT | HTH_CAP_DENSE;
        be->compute = sets[i]->compute;
        be->isa = sets[i]->name;
        be->impl = cpu;
        be->image_free = hth_packed_image_free;
        be->linear_scratch = hth_packed_linear_scratch;
        be->linear_forward = hth_packed_linear_forward;
        be->linear_backward_data = hth_packed_linear_backward_data;
        be->linear_backward_weight = hth_packed_linear_backward_weight;
        be->factors_add = hth_packed_factors_add;
        be->factors_sumsq = hth_packed_factors_sumsq;
        be->bf16_views = sets[i]->compute == HTH_MATMUL_BF16;
    }
}

static void fill_once(void)
{
    int stage = EMPTY;
    if (atomic_compare_exchange_strong(&packed.stage, &stage, FILLING)) {
        fill();
        atomic_store(&packed.stage, FILLED);
    }
    while (atomic_load(&packed.stage) != FILLED) /* a few hundred stores, once in a process */
        continue;
}

enum hth_err hth_backend_packed(const struct hth_packed_options *options,
                                const struct hth_backend **out)
{
    const struct hth_packed_options defaults = HTH_PACKED_OPTIONS_INIT;
    const struct hth_packed_options *o = options != NULL ? options : &defaults;
    fill_once();
    for (size_t i = HTH_ARRAY_LEN(sets); i > 0; i--) {
        const struct hth_packed_isa *isa = sets[i - 1];
        bool named = o->isa != NULL && strcmp(o->isa, isa->name) == 0;
        if ((o->isa != NULL || only_named(isa)) && !named)
            continue;
        if ((o->compute != HTH_MATMUL_AUTO && o->compute != isa->compute) ||
            !hth_isa_runs(isa->name))
            continue;
        *out = &packed.backend[i - 1];
        return HTH_OK;
    }
    return o->isa != NULL && !is_known(o->isa) ? HTH_E_NO_DEVICE : HTH_E_UNSUPPORTED;
}

size_t hth_backend_packed_all(const struct hth_backend *out[HTH_PACKED_MAX])
{
    size_t count = 0;
    _Static_assert(HTH_ARRAY_LEN(sets) <= HTH_PACKED_MAX, "callers have room for all");
    fill_once();
    for (size_t i = 0; i < HTH_ARRAY_LEN(sets); i++) {
        if (hth_isa_runs(sets[i]->name))
            out[count++] = &packed.backend[i];
    }
    return count;
}

void hth_packed_describe(enum hth_matmul compute, char *buf, size_t size)
{
    const struct hth_packed_options options = {.compute = compute};
    const struct hth_backend *be;
    if (hth_backend_packed(&options, &be) == HTH_OK)
        snprintf(buf, size, "packed weights, %s kernels for %s", hth_matmul_name(compute), be->isa);
    else
        snprintf(buf, size, "this CPU has no instructions for %s", hth_matmul_name(compute));
}
