/* SPDX-License-Identifier: Apache-2.0 */
/* test_cases.c: the table of cases.h on every back end of this machine. */
#include "support/test.h"

#include "kernels/blas.h"
#include "kernels/cases.h"

static void run_all(const struct hth_backend *be, double tolerance)
{
    uint64_t seed = 1;
    for (size_t i = 0; i < kernel_case_count; i++) {
        for (size_t s = 0; s < kernel_cases[i].shape_count; s++) {
            const char *error = kernel_case_run(&kernel_cases[i], kernel_cases[i].shapes[s], be,
                                                tolerance, seed += 100);
            if (error != NULL)
                fail_msg("%s", error);
        }
    }
}

static void test_ref(void **state)
{
    (void)state;
    run_all(hth_backend_ref(), 5e-6);
}

static void test_blas(void **state)
{
    const struct hth_backend *be = NULL;
    (void)state;
    assert_ok(hth_test_blas(&be));
    run_all(be, 5e-6);
}

/* Every table that this CPU can run; the others are skipped by name. */
static void run_packed(const char *isa, enum hth_matmul compute)
{
    const struct hth_packed_options options = {.isa = isa, .compute = compute};
    const struct hth_backend *be = NULL;
    enum hth_err err = hth_backend_packed(&options, &be);
    if (err == HTH_E_UNSUPPORTED) {
        print_message("this CPU cannot run %s %s\n", isa, hth_matmul_name(compute));
        skip();
    }
    assert_ok(err);
    run_all(be, compute == HTH_MATMUL_BF16 ? 6e-3 : 5e-6);
}

static void test_packed_generic(void **state)
{
    (void)state;
    run_packed("generic", HTH_MATMUL_F32);
}

static void test_packed_generic_bf16(void **state)
{
    (void)state;
    run_packed("generic", HTH_MATMUL_BF16);
}

static void test_packed_avx2(void **state)
{
    (void)state;
    run_packed("avx2", HTH_MATMUL_F32);
}

static void test_packed_avx512(void **state)
{
    (void)state;
    run_packed("avx512", HTH_MATMUL_F32);
}

static void test_packed_avx512bf16(void **state)
{
    (void)state;
    run_packed("avx512bf16", HTH_MATMUL_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),
        cmocka_unit_test(test_blas),
        cmocka_unit_test(test_packed_generic),
        cmocka_unit_test(test_packed_generic_bf16),
        cmocka_unit_test(test_packed_avx2),
        cmocka_unit_test(test_packed_avx512),
        cmocka_unit_test(test_packed_avx512bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
