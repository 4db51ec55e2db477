/* SPDX-License-Identifier: Apache-2.0 */
/* test_shim.c: the table of cases on the CUDA back end, its kernels run by the shim (shim.h). */
#include "support/test.h"

#include "kernels/cases.h"
#include "kernels/cuda/device.h"
#include "kernels/shim_control.h"

#define MEMORY ((size_t)512 << 20)

static struct hth_cu_device device;
static char why[200];

static int setup(void **state)
{
    (void)state;
    if (hth_cu_device_open(&device, &hth_gpu_shim, 0, MEMORY, why, sizeof(why)) != HTH_OK)
        return -1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(device.pool.used, 0); /* every case gave its memory back */
    hth_cu_device_close(&device);
    return 0;
}

/* True if a case multiplies matrices. Types and fused ends change nothing else. */
static bool has_products(const struct kernel_case *kase)
{
    return kase->products || strcmp(kase->name, "case_tblock") == 0 ||
           strcmp(kase->name, "case_ffn_many") == 0;
}

/* Runs cases with the inputs of test_cases.c; `order` is that of the warps. */
static void run_cases(enum hth_gpu_type type, double tolerance, uint64_t order, bool all)
{
    uint64_t seed = 1;
    hth_shim_seed(order);
    for (size_t i = 0; i < kernel_case_count; i++) {
        const struct kernel_case *kase = &kernel_cases[i];
        for (size_t s = 0; s < kase->shape_count; s++) {
            seed += 100;
            if (!all && !has_products(kase))
                continue;
            const char *error =
                kernel_case_run(kase, kase->shapes[s], &device.tables[type], tolerance, seed);
            if (error != NULL)
                fail_msg("%s %s", error, hth_shim_failure());
        }
    }
}

/* Each case once, with the card's memory closed to all but kernels and copies: a case that reads it
 * directly would crash, as on a card. */
static void cases_access_card_memory_by_copies_only(void **state)
{
    (void)state;
    hth_shim_guard(true);
    for (size_t i = 0; i < kernel_case_count; i++) {
        const char *error = kernel_case_run(&kernel_cases[i], kernel_cases[i].shapes[1],
                                            &device.tables[HTH_GPU_F32], 5e-6, 1000 * (i + 1));
        if (error != NULL)
            fail_msg("%s %s", error, hth_shim_failure());
    }
    hth_shim_guard(false);
}

static void f32_passes_all_cases(void **state)
{
    (void)state;
    hth_shim_fuse(false);
    run_cases(HTH_GPU_F32, 5e-6, 1, true);
}

static void fused_ends_pass_all_cases(void **state)
{
    (void)state;
    hth_shim_fuse(true);
    run_cases(HTH_GPU_F32, 5e-6, 2, false);
}

static void tf32_passes_all_cases(void **state)
{
    (void)state;
    run_cases(HTH_GPU_TF32, 1e-3, 3, false);
}

/* The number of small products and blocks beyond TF32's tolerance. */
static uint32_t small_failures(uint64_t seeds)
{
    uint32_t failed = 0;
    for (size_t i = 0; i < kernel_case_count; i++) {
        const struct kernel_case *c = &kernel_cases[i];
        for (size_t s = 0; s < c->shape_count; s++) {
            struct case_shape shape = c->shapes[s];
            bool product = strncmp(c->name, "linear", 6) == 0 || strcmp(c->name, "case_ffn") == 0;
            if (!product || shape.rows * shape.a * shape.b > 600)
                continue;
            for (uint64_t seed = 1; seed <= seeds; seed++)
                failed += kernel_case_run(c, shape, &device.tables[HTH_GPU_TF32], 1e-3,
                                          1000 * seed) != NULL;
        }
    }
    return failed;
}

/* For all drawn inputs, operands rounded to nearest pass and truncated ones don't. */
static void truncated_tf32_operands_fail(void **state)
{
    (void)state;
    assert_int_equal(small_failures(8), 0);
    hth_shim_cut(true);
    uint32_t failed = small_failures(4);
    hth_shim_cut(false);
    assert_true(failed >= 4);
}

static void bf16_passes_all_cases(void **state)
{
    (void)state;
    run_cases(HTH_GPU_BF16, 1e-2, 4, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_access_card_memory_by_copies_only), /* first: the less memory is in
                                                                      use, the faster */
        cmocka_unit_test(f32_passes_all_cases),
        cmocka_unit_test(fused_ends_pass_all_cases),
        cmocka_unit_test(tf32_passes_all_cases),
        cmocka_unit_test(truncated_tf32_operands_fail),
        cmocka_unit_test(bf16_passes_all_cases),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
