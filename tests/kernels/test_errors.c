/* SPDX-License-Identifier: Apache-2.0 */
/* test_errors.c: wrong shapes, types, indices and settings: a named error from every operation. */
#include "core/limits.h"
#include "kernels/blas.h"
#include "kernels/blocks.h"
#include "kernels/optim.h"
#include "support/suite.h"

static const struct hth_backend *backends[2];
static struct hth_exec *execs[2];

static int setup(void **state)
{
    (void)state;
    backends[0] = hth_backend_ref();
    if (hth_test_blas(&backends[1]) != HTH_OK)
        return -1;
    for (size_t k = 0; k < 2; k++) {
        if (hth_exec_new(backends[k], 1 << 20, &execs[k]) != HTH_OK)
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    hth_exec_free(execs[0]);
    hth_exec_free(execs[1]);
    return 0;
}

/* One weight [4, 6], a bias [1, 6], and buffers to build wrong views from. */
struct rig {
    struct hth_params *p, *unsealed;
    struct hth_weight *w, *bias, *raw;
    float x[64], y[64], z[64];
    int32_t index[8];
};

static void rig_init(struct rig *r)
{
    struct hth_param_spec w = {.name = "w", .rows = 4, .cols = 6};
    struct hth_param_spec b = {.name = "b", .rows = 1, .cols = 6};
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    memset(r, 0, sizeof(*r));
    assert_ok(hth_params_new(backends[0], &r->p));
    assert_ok(hth_params_add(r->p, &w, &r->w));
    assert_ok(hth_params_add(r->p, &b, &r->bias));
    assert_ok(hth_params_seal(r->p, &seal));
    assert_ok(hth_params_new(backends[0], &r->unsealed));
    assert_ok(hth_params_add(r->unsealed, &w, &r->raw));
}

TEST(linear_refuses_bad_shapes)
{
    (void)state;
    struct rig r;
    struct hth_exec *ex = execs[0];
    rig_init(&r);
    struct hth_view x = hth_view_f32(r.x, 3, 4, 4), y = hth_view_f32(r.y, 3, 6, 6);
    struct hth_view none = HTH_VIEW_NONE, v;
    struct hth_linear lin = {.w = r.w, .bias = r.bias}, l;
    assert_ok(hth_linear_forward(ex, &lin, x, y));
    v = x;
    v.cols = 5;
    assert_err(HTH_E_BAD_SHAPE, hth_linear_forward(ex, &lin, v, y));
    v = x;
    v.ld = 3;
    assert_err(HTH_E_BAD_SHAPE, hth_linear_forward(ex, &lin, v, y));
    v = x;
    v.dtype = HTH_BF16;
    assert_err(HTH_E_BAD_SHAPE, hth_linear_forward(ex, &lin, v, y));
    v = y;
    v.rows = 2;
    assert_err(HTH_E_BAD_SHAPE, hth_linear_forward(ex, &lin, x, v));
    assert_err(HTH_E_BAD_SHAPE, hth_linear_forward(ex, &lin, x, none));
    l = lin;
    l.bias = r.w;
    assert_err(HTH_E_BAD_SHAPE, hth_linear_forward(ex, &l, x, y));
    l = lin;
    l.w = r.raw; /* not sealed */
    assert_err(HTH_E_BAD_SHAPE, hth_linear_forward(ex, &l, x, y));
    l = lin;
    l.residual = y;
    assert_err(HTH_E_BAD_SHAPE, hth_linear_forward(ex, &l, x, y));
    assert_err(HTH_E_BAD_SHAPE, hth_linear_forward(execs[1], &lin, x, y)); /* other back end */
    x.rows = 0;
    x.data = NULL;
    assert_ok(hth_linear_forward(ex, &lin, x, none));
    struct hth_linear_back back = {.w = r.w, .act = HTH_ACT_RELU};
    x = hth_view_f32(r.x, 3, 4, 4);
    assert_err(HTH_E_BAD_SHAPE, hth_linear_backward_data(ex, &back, y, x)); /* no pre */
    back.act = HTH_ACT_NONE;
    assert_ok(hth_linear_backward_data(ex, &back, y, x));
    assert_err(HTH_E_BAD_SHAPE, hth_linear_backward_data(ex, &back, x, y));
    assert_err(HTH_E_BAD_SHAPE, hth_linear_backward_weight(ex, r.w, r.bias, y, x));
    hth_params_free(r.p);
    hth_params_free(r.unsealed);
}

TEST(other_operations_refuse_bad_shapes)
{
    (void)state;
    struct rig r;
    struct hth_exec *ex = execs[0];
    rig_init(&r);
    struct hth_view a = hth_view_f32(r.x, 3, 6, 6), b = hth_view_f32(r.y, 3, 6, 6);
    struct hth_view odd = hth_view_f32(r.z, 3, 5, 5), none = HTH_VIEW_NONE;
    struct hth_view index = hth_view_i32(r.index, 3);
    struct hth_layernorm ln = {r.bias, r.bias, 1e-5f};
    struct hth_xent_result loss;
    struct hth_sumsq_result sum;
    struct hth_attention att = {.seq = 3, .heads = 2};
    struct hth_view bf16 = {r.z, HTH_BF16, 3, 6, 6}, i8 = {r.z, HTH_I8, 3, 6, 6};
    assert_err(HTH_E_BAD_SHAPE, hth_act_forward(ex, HTH_ACT_GELU, a, odd));
    assert_err(HTH_E_BAD_SHAPE, hth_act_backward(ex, HTH_ACT_GELU, a, odd, b));
    assert_err(HTH_E_BAD_SHAPE, hth_layernorm_forward(ex, &ln, odd, odd, none));
    assert_err(HTH_E_BAD_SHAPE, hth_layernorm_forward(ex, &ln, a, b, odd));
    assert_err(HTH_E_BAD_SHAPE, hth_softmax_forward(ex, a, odd));
    assert_err(HTH_E_BAD_SHAPE, hth_softmax_backward(ex, a, b, odd));
    assert_err(HTH_E_BAD_SHAPE, hth_xent(ex, a, a, 1, none, &loss));
    assert_err(HTH_E_BAD_SHAPE, hth_xent(ex, a, index, 1, odd, &loss));
    assert_err(HTH_E_BAD_SHAPE, hth_embed_forward(ex, r.w, index, odd));
    assert_err(HTH_E_BAD_SHAPE, hth_embed_forward(ex, r.raw, index, a));
    assert_err(HTH_E_BAD_SHAPE, hth_gather_rows(ex, odd, index, a));
    assert_err(HTH_E_BAD_SHAPE, hth_scatter_add_rows(ex, odd, index, none, a));
    assert_err(HTH_E_BAD_SHAPE, hth_scatter_add_rows(ex, b, index, odd, a));
    assert_err(HTH_E_BAD_SHAPE, hth_combine(ex, 1, a, 1, odd, b));
    assert_err(HTH_E_BAD_SHAPE, hth_fill(ex, none.data == NULL ? index : none, 0));
    assert_err(HTH_E_BAD_SHAPE, hth_sumsq(ex, index, &sum));
    assert_err(HTH_E_BAD_SHAPE, hth_cast(ex, odd, bf16));
    assert_err(HTH_E_BAD_SHAPE, hth_cast(ex, a, i8)); /* no room for a scale */
    assert_err(HTH_E_UNSUPPORTED, hth_cast(ex, bf16, i8));
    assert_err(HTH_E_UNSUPPORTED, hth_cast(ex, bf16, (struct hth_view){r.x, HTH_F16, 3, 6, 6}));
    struct hth_view out = hth_view_f32(r.y, 3, 2, 2);
    assert_err(HTH_E_BAD_SHAPE, hth_attention_forward(ex, &att, odd, out, none));
    att.seq = 2; /* 3 rows are no whole sequences */
    assert_err(HTH_E_BAD_SHAPE, hth_attention_forward(ex, &att, a, out, none));
    att.seq = 3;
    att.heads = 3;
    assert_err(HTH_E_BAD_SHAPE, hth_attention_forward(ex, &att, a, out, none));
    att.heads = 0;
    assert_err(HTH_E_BAD_SHAPE, hth_attention_forward(ex, &att, a, out, none));
    att.heads = 2;
    assert_err(HTH_E_BAD_SHAPE, hth_geglu_forward(ex, a, b)); /* not half as wide */
    assert_err(HTH_E_BAD_SHAPE, hth_geglu_backward(ex, a, b, a));
    assert_err(HTH_E_BAD_SHAPE, hth_scale_forward(ex, r.w, a, none, b)); /* not a row */
    assert_err(HTH_E_BAD_SHAPE, hth_scale_backward(ex, r.w, a, b, b));
    assert_err(HTH_E_BAD_SHAPE, hth_tied_forward(ex, &(struct hth_tied){r.raw, NULL}, a, b));
    assert_err(HTH_E_BAD_SHAPE, hth_tied_backward(ex, &(struct hth_tied){r.w, r.w}, a, b, a));
    struct hth_mask mask = {.kind = HTH_MASK_ROW, .text = 2};
    att.mask = &mask; /* of 2 positions, not 3 */
    assert_err(HTH_E_BAD_SHAPE, hth_attention_forward(ex, &att, a, out, none));
    mask.height = 1; /* but no width */
    assert_err(HTH_E_BAD_SHAPE, hth_attention_forward(ex, &att, a, out, none));
    mask.width = 1;
    assert_ok(hth_attention_forward(execs[0], &att, a, out, none));
    att.unpadded = index; /* 3 numbers, not 1 */
    assert_err(HTH_E_BAD_SHAPE, hth_attention_forward(ex, &att, a, out, none));
    att.unpadded.rows = 1;
    r.index[0] = 0;
    assert_err(HTH_E_RANGE, hth_attention_forward(ex, &att, a, out, none));
    r.index[0] = 3;
    assert_err(HTH_E_RANGE, hth_attention_forward(ex, &att, a, out, none));
    att.mask = NULL; /* without text there is no padding */
    assert_err(HTH_E_BAD_SHAPE, hth_attention_forward(ex, &att, a, out, none));
    hth_params_free(r.p);
    hth_params_free(r.unsealed);
}

TEST(bad_indices_are_refused)
{
    (void)state;
    struct rig r;
    struct hth_exec *ex = execs[0];
    rig_init(&r);
    struct hth_view a = hth_view_f32(r.x, 3, 6, 6), table = hth_view_f32(r.y, 4, 6, 6);
    struct hth_view index = hth_view_i32(r.index, 3);
    struct hth_xent_result loss;
    static const int32_t bad[] = {4, -1, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        r.index[2] = bad[i];
        assert_err(HTH_E_RANGE, hth_embed_forward(ex, r.w, index, a));
        assert_err(HTH_E_RANGE, hth_embed_backward(ex, r.w, index, a));
        assert_err(HTH_E_RANGE, hth_gather_rows(ex, table, index, a));
        assert_err(HTH_E_RANGE, hth_scatter_add_rows(ex, a, index, HTH_VIEW_NONE, table));
    }
    r.index[2] = 6;
    assert_err(HTH_E_RANGE, hth_xent(ex, a, index, 1, HTH_VIEW_NONE, &loss));
    r.index[2] = -2;
    assert_err(HTH_E_RANGE, hth_xent(ex, a, index, 1, HTH_VIEW_NONE, &loss));
    r.index[2] = HTH_LABEL_NONE;
    assert_ok(hth_xent(ex, a, index, 1, HTH_VIEW_NONE, &loss));
    assert_int_equal(loss.counted, 2);
    hth_params_free(r.p);
    hth_params_free(r.unsealed);
}

TEST(bad_settings_are_refused)
{
    (void)state;
    struct hth_rope *rope;
    struct hth_params *p;
    struct hth_tblock t;
    struct hth_ffn f;
    assert_err(HTH_E_CONFIG, hth_rope_new(backends[0], 0, 4, 100, &rope));
    assert_err(HTH_E_CONFIG, hth_rope_new(backends[0], 4, 5, 100, &rope));
    assert_err(HTH_E_CONFIG, hth_rope_new(backends[0], 4, 4, (double)NAN, &rope));
    assert_err(HTH_E_TOO_LARGE, hth_rope_new(backends[0], HTH_SEQ_MAX + 1, 4, 100, &rope));
    assert_err(HTH_E_TOO_LARGE, hth_rope_new(backends[0], 4, HTH_HEAD_DIM_MAX + 2, 100, &rope));
    assert_ok(hth_rope_new(backends[0], 4, 4, 100, &rope));
    assert_ok(hth_params_new(backends[0], &p));
    struct hth_tblock_options to = {.dim = 12, .heads = 5};
    assert_err(HTH_E_CONFIG, hth_tblock_declare(p, &to, &t));
    to.heads = 6;
    to.rope = rope; /* made for heads of 4 */
    assert_err(HTH_E_CONFIG, hth_tblock_declare(p, &to, &t));
    struct hth_ffn_options fo = {.dim = 0};
    assert_err(HTH_E_CONFIG, hth_ffn_declare(p, &fo, &f));
    hth_params_free(p);
    hth_rope_free(rope);
    struct hth_optim o = HTH_OPTIM_INIT;
    assert_ok(hth_optim_check(&o));
    o.lr = NAN;
    assert_err(HTH_E_CONFIG, hth_optim_check(&o));
    o = HTH_OPTIM_INIT;
    o.beta2 = 1;
    assert_err(HTH_E_CONFIG, hth_optim_check(&o));
    o = HTH_OPTIM_INIT;
    o.kind = (enum hth_optim_kind)17;
    assert_err(HTH_E_CONFIG, hth_optim_check(&o));
}

SUITE_WITH(setup, teardown)
