/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_amx.c: the tiles in software compute as the manual says, and the table that uses them leaves
 * none configured. The other tests named amx run their cases on that table.
 */
#include "core/mem.h"
#include "kernels/amx_shim.h"
#include "kernels/backend.h"
#include "kernels/isa.h"
#include "kernels/ops.h"
#include "kernels/params.h"
#include "support/suite.h"

/* Configures tiles 0 to 2 as sums, A and B of one row, one column and `pairs` units of K. */
static void configure(uint8_t pairs)
{
    uint8_t config[64] = {1};
    config[16] = 4;
    config[18] = (uint8_t)(4 * pairs);
    config[20] = 4;
    config[48] = config[49] = 1;
    config[50] = pairs;
    amx_shim_load_config(config);
}

static float dot(float c, const uint16_t *a, const uint16_t *b, uint8_t pairs)
{
    configure(pairs);
    amx_shim_load(0, &c, 4);
    amx_shim_load(1, a, 64);
    amx_shim_load(2, b, 4);
    amx_shim_dot(0, 1, 2);
    amx_shim_store(0, &c, 4);
    amx_shim_release();
    return c;
}

#define ONE  0x3f80 /* 1 */
#define BIG  0x4b80 /* 2^24: 1 is lost beside it */
#define LESS 0xcb80 /* -2^24 */
#define TINY 0x0040 /* a denormal */
#define VAST 0x7f00 /* 2^127 */

TEST(tiles_sum_as_the_manual_says)
{
    (void)state;
    static const uint16_t ones[8] = {ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE};
    /* Lower halves in rising order: 2^24 + 1 - 2^24 = 0; upper halves apart from them. */
    static const uint16_t lower[8] = {BIG, 0, ONE, ONE, LESS, 0, 0, 0};
    assert_true(dot(0, lower, ones, 3) == 1);
    /* C comes last: from zero, 1 + 1 = 2 is not lost. */
    static const uint16_t two[2] = {ONE, ONE};
    assert_true(dot(0x1p24f, two, ones, 1) == 0x1p24f + 2);
    /* Denormals: of the operands, of the sum and of C. */
    static const uint16_t tiny[2] = {TINY, 0}, vast[2] = {VAST, 0}, small[2] = {0x0080, 0};
    static const uint16_t half[2] = {0x3f00, 0};
    assert_true(dot(0, tiny, vast, 1) == 0);
    assert_true(dot(0, small, half, 1) == 0);
    assert_true(dot(0x1p-127f, small, half, 1) == 0);
    assert_true(dot(0, small, two, 1) == 0x1p-126f);
}

static const struct hth_backend *table(void)
{
    const struct hth_packed_options o = {.isa = "amxbf16", .compute = HTH_MATMUL_BF16};
    const struct hth_backend *be = NULL;
    assert_null(hth_isa_why_not("amxbf16"));
    assert_ok(hth_backend_packed(&o, &be));
    assert_string_equal(hth_backend_isa(be), "amxbf16");
    return be;
}

TEST(tiles_are_released_after_each_operation)
{
    enum { ROWS = 40, IN = 70, OUT = 90 };
    (void)state;
    const struct hth_backend *be = table();
    struct hth_param_spec spec = {.name = "w", .rows = IN, .cols = OUT, .init = HTH_INIT_ONES};
    struct hth_seal_options seal = {.seed = 5};
    struct hth_params *p;
    struct hth_weight *w;
    struct hth_exec *ex;
    assert_ok(hth_params_new(be, &p));
    assert_ok(hth_params_add(p, &spec, &w));
    assert_ok(hth_params_seal(p, &seal));
    assert_ok(hth_exec_new(be, hth_linear_scratch(be, IN, OUT), &ex));
    float *x = hth_calloc(ROWS * (IN + OUT), sizeof(float)), *y = x + ROWS * IN;
    struct hth_view xs = hth_view_f32(x, ROWS, IN, IN), ys = hth_view_f32(y, ROWS, OUT, OUT);
    const struct hth_linear forward = {.w = w};
    const struct hth_linear_back back = {.w = w};
    for (int op = 0; op < 3; op++) {
        size_t before = amx_shim_dots();
        if (op == 0)
            assert_ok(hth_linear_forward(ex, &forward, xs, ys));
        else if (op == 1)
            assert_ok(hth_linear_backward_data(ex, &back, ys, xs));
        else
            assert_ok(hth_linear_backward_weight(ex, w, NULL, xs, ys));
        assert_true(amx_shim_dots() > before);
        assert_false(amx_shim_is_configured());
    }
    hth_free(x);
    hth_exec_free(ex);
    hth_params_free(p);
}

/* For bf16 they are the best table, and for fp32 none. */
TEST(tiles_are_the_best_table_of_bf16)
{
    struct hth_packed_options o = {.compute = HTH_MATMUL_BF16};
    const struct hth_backend *be = NULL;
    (void)state;
    assert_ok(hth_backend_packed(&o, &be));
    assert_string_equal(hth_backend_isa(be), "amxbf16");
    o.compute = HTH_MATMUL_F32;
    assert_ok(hth_backend_packed(&o, &be));
    assert_string_not_equal(hth_backend_isa(be), "amxbf16");
}

/* Without the processor or without the kernel's leave there is no table, and the reason says which
 * of them is missing. */
TEST(missing_tiles_are_explained)
{
    const struct hth_packed_options o = {.isa = "amxbf16", .compute = HTH_MATMUL_BF16};
    const struct hth_backend *be = NULL;
    (void)state;
    amx_shim_answer(HTH_AMX_NO_HARDWARE);
    assert_err(HTH_E_UNSUPPORTED, hth_backend_packed(&o, &be));
    assert_non_null(strstr(hth_isa_why_not("amxbf16"), "processor lacks"));
    amx_shim_answer(HTH_AMX_NO_PERMISSION);
    assert_err(HTH_E_UNSUPPORTED, hth_backend_packed(&o, &be));
    assert_non_null(strstr(hth_isa_why_not("amxbf16"), "kernel does not let"));
    amx_shim_answer(HTH_AMX_RUNS);
    assert_ok(hth_backend_packed(&o, &be));
}
