/* SPDX-License-Identifier: Apache-2.0 */
/* test_blas_missing.c: a machine without OpenBLAS: a reason, and our own kernels in its place. */
#include "kernels/backend.h"
#include "support/suite.h"

TEST(missing_library_falls_back)
{
    (void)state;
    struct hth_blas_options options = HTH_BLAS_OPTIONS_INIT;
    struct hth_backend_info info[4];
    const struct hth_backend *be = NULL;
    options.library = "libhearth-no-such-library.so";
    assert_err(HTH_E_UNSUPPORTED, hth_backend_blas(&options, &be));
    assert_null(be);
    /* The result stays for the life of the process. */
    assert_err(HTH_E_UNSUPPORTED, hth_backend_blas(NULL, &be));
    assert_err(HTH_E_UNSUPPORTED, hth_backend_by_name("blas", &be));
    assert_ok(hth_backend_by_name("auto", &be));
    assert_string_equal(hth_backend_name(be), "packed");
    assert_int_equal(hth_backend_list(info, 4), 4);
    assert_false(info[3].usable);
    assert_non_null(strstr(info[3].detail, "libhearth-no-such-library.so"));
}
