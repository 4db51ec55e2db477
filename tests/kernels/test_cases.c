/* SPDX-License-Identifier: Apache-2.0 */
/* test_cases.c: the table of cases.h on every back end of this machine. */
#include "support/suite.h"

#include "kernels/blas.h"
#include "kernels/cases.h"
#include "kernels/isa.h"

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

#ifndef HTH_AMX_SHIM /* with tiles in software the others ran already */
TEST(ref_passes_all_cases)
{
    (void)state;
    run_all(hth_backend_ref(), 5e-6);
}

TEST(blas_passes_all_cases)
{
    const struct hth_backend *be = NULL;
    (void)state;
    assert_ok(hth_test_blas(&be));
    run_all(be, 5e-6);
}

/* Every table that this CPU can run. */
TEST(packed_tables_pass_all_cases)
{
    const struct hth_backend *packed[HTH_PACKED_MAX];
    size_t count = hth_backend_packed_all(packed);
    (void)state;
    assert_true(count >= 2);
    for (size_t i = 0; i < count; i += HTH_TEST_FEW ? count - 1 : 1) {
        if (strcmp(hth_backend_isa(packed[i]), "amxbf16") != 0) /* below */
            run_all(packed[i], hth_backend_compute(packed[i]) == HTH_MATMUL_BF16 ? 6e-3 : 5e-6);
    }
}

#endif

/* On a processor without tiles it says that it did not run. */
TEST(tiles_of_amx_pass_all_cases)
{
    const struct hth_packed_options o = {.isa = "amxbf16", .compute = HTH_MATMUL_BF16};
    const struct hth_backend *be = NULL;
    (void)state;
    if (hth_backend_packed(&o, &be) != HTH_OK) {
        print_message("amxbf16 did not run: %s\n", hth_isa_why_not("amxbf16"));
        skip();
    }
    run_all(be, 6e-3);
}
