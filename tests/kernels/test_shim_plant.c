/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shim_plant.c: the same kernels with one barrier left out of the block's sum (launch.h,
 * HTH_SHIM_PLANT): the table of cases must notice, or it would notice no other missing barrier.
 */
#include "support/test.h"

#include "kernels/cases.h"
#include "kernels/cuda/device.h"
#include "kernels/shim-control.h"

/* Rows of that many columns have more than one warp: only then is there something to miss. */
static void expect_failure(const char *name)
{
    struct hth_cu_device device;
    char why[200];
    uint32_t failed = 0, tried = 0;
    assert_ok(hth_cu_device_open(&device, &hth_gpu_shim, 0, 512u << 20, why, sizeof(why)));
    for (size_t i = 0; i < kernel_case_count; i++) {
        if (strcmp(kernel_cases[i].name, name) != 0)
            continue;
        for (size_t s = 0; s < kernel_cases[i].shape_count; s++) {
            struct case_shape shape = kernel_cases[i].shapes[s];
            if (shape.a <= 64)
                continue;
            hth_shim_seed(s);
            tried++;
            failed += kernel_case_run(&kernel_cases[i], shape, &device.tables[HTH_GPU_F32], 5e-6,
                                      s) != NULL;
        }
    }
    assert_true(tried > 0);
    assert_int_equal(failed, tried);
    hth_cu_device_close(&device);
}

static void test_layernorm(void **state)
{
    (void)state;
    expect_failure("layernorm");
}

static void test_softmax(void **state)
{
    (void)state;
    expect_failure("softmax");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layernorm),
        cmocka_unit_test(test_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
