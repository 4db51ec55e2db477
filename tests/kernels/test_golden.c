/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_golden.c: every back end of this machine against PyTorch's results (golden/make_golden.py).
 */
#include "core/mem.h"
#include "kernels/blas.h"
#include "kernels/blocks.h"
#include "kernels/golden/golden_block.h"
#include "kernels/golden/golden.h"
#include "kernels/optim.h"
#include "support/suite.h"

#define TOLERANCE 3e-6

static const struct hth_backend *be;
static struct hth_exec *ex;

static void close_to(const char *what, const float *got, const float *want, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += pow((double)got[i] - (double)want[i], 2);
        norm += pow((double)want[i], 2);
    }
    if (!(sqrt(diff) <= TOLERANCE * sqrt(norm)))
        fail_msg("%s on %s: off PyTorch by %.2e", what, hth_backend_name(be), sqrt(diff / norm));
}

/* A dense view over numbers that operations only read. */
static struct hth_view in(const float *data, uint32_t rows, uint32_t cols)
{
    return hth_view_f32((float *)(uintptr_t)data, rows, cols, cols);
}

static struct hth_view out(float *data, uint32_t rows, uint32_t cols)
{
    return hth_view_f32(data, rows, cols, cols);
}

static void set(struct hth_weight *w, const float *values)
{
    assert_ok(hth_weight_import(ex, w, HTH_PART_VALUE, values));
}

static void grad_close(const char *what, struct hth_weight *w, const float *want)
{
    size_t n = (size_t)hth_weight_rows(w) * hth_weight_cols(w);
    float *got = hth_calloc(n, sizeof(float));
    assert_ok(hth_weight_export(ex, w, HTH_PART_GRAD, got));
    close_to(what, got, want, n);
    hth_free(got);
}

static struct hth_params *sealed(struct hth_params *p)
{
    struct hth_seal_options seal = HTH_SEAL_OPTIONS_INIT;
    assert_ok(hth_params_seal(p, &seal));
    return p;
}

static void check_gelu(void)
{
    float y[65], dx[65];
    assert_ok(hth_act_forward(ex, HTH_ACT_GELU, in(gelu_x, 1, 65), out(y, 1, 65)));
    close_to("gelu", y, gelu_out, 65);
    assert_ok(hth_act_backward(ex, HTH_ACT_GELU, in(gelu_x, 1, 65), in(gelu_dout, 1, 65),
                               out(dx, 1, 65)));
    close_to("gelu dx", dx, gelu_dx, 65);
}

static void check_layernorm(void)
{
    float y[95], dx[95], stats[10];
    struct hth_params *p;
    struct hth_layernorm ln = {.eps = 1e-5f};
    struct hth_param_spec g = {.name = "g", .rows = 1, .cols = 19};
    struct hth_param_spec b = {.name = "b", .rows = 1, .cols = 19};
    assert_ok(hth_params_new(be, &p));
    assert_ok(hth_params_add(p, &g, &ln.gamma));
    assert_ok(hth_params_add(p, &b, &ln.beta));
    sealed(p);
    set(ln.gamma, norm_gamma);
    set(ln.beta, norm_beta);
    assert_ok(hth_layernorm_forward(ex, &ln, in(norm_x, 5, 19), out(y, 5, 19), out(stats, 5, 2)));
    close_to("layernorm", y, norm_out, 95);
    struct hth_layernorm_back back = {
        .gamma = ln.gamma, .beta = ln.beta, .x = in(norm_x, 5, 19), .stats = out(stats, 5, 2)};
    assert_ok(hth_layernorm_backward(ex, &back, in(norm_dout, 5, 19), out(dx, 5, 19)));
    close_to("layernorm dx", dx, norm_dx, 95);
    grad_close("layernorm dgamma", ln.gamma, norm_dgamma);
    grad_close("layernorm dbeta", ln.beta, norm_dbeta);
    hth_params_free(p);
}

static void check_attention(void)
{
    float y[14 * 12], lse[14 * 2], dqkv[14 * 36];
    struct hth_rope *rope;
    assert_ok(hth_rope_new(be, 7, 6, 10000, &rope));
    struct hth_attention att = {.seq = 7, .heads = 2, .rope = rope};
    struct hth_attention_saved s = {in(attn_qkv, 14, 36), out(y, 14, 12), out(lse, 14, 2)};
    assert_ok(hth_attention_forward(ex, &att, s.qkv, s.out, s.lse));
    close_to("attention", y, attn_out, 14 * 12);
    assert_ok(hth_attention_backward(ex, &att, &s, in(attn_dout, 14, 12), out(dqkv, 14, 36)));
    close_to("attention dqkv", dqkv, attn_dqkv, 14 * 36);
    hth_rope_free(rope);
}

static void check_ffn(void)
{
    float y[30], dx[30];
    struct hth_params *p;
    struct hth_ffn f;
    struct hth_ffn_options options = {.dim = 6};
    assert_ok(hth_params_new(be, &p));
    assert_ok(hth_ffn_declare(p, &options, &f));
    sealed(p);
    set(f.w1, ffn_w1);
    set(f.b1, ffn_b1);
    set(f.w2, ffn_w2);
    set(f.b2, ffn_b2);
    set(f.gamma, ffn_gamma);
    set(f.beta, ffn_beta);
    void *saved = hth_backend_alloc(be, hth_ffn_saved_bytes(&f, 5));
    assert_ok(hth_ffn_forward(ex, &f, in(ffn_x, 5, 6), out(y, 5, 6), saved));
    close_to("ffn", y, ffn_out, 30);
    assert_ok(hth_ffn_backward(ex, &f, in(ffn_x, 5, 6), saved, in(ffn_dout, 5, 6), out(dx, 5, 6)));
    close_to("ffn dx", dx, ffn_dx, 30);
    grad_close("ffn dw1", f.w1, ffn_dw1);
    grad_close("ffn db1", f.b1, ffn_db1);
    grad_close("ffn dw2", f.w2, ffn_dw2);
    grad_close("ffn db2", f.b2, ffn_db2);
    grad_close("ffn dgamma", f.gamma, ffn_dgamma);
    grad_close("ffn dbeta", f.beta, ffn_dbeta);
    hth_backend_free(be, saved);
    hth_params_free(p);
}

static void check_tblock(void)
{
    float y[80], dx[80];
    struct hth_params *p;
    struct hth_rope *rope;
    struct hth_tblock t;
    assert_ok(hth_rope_new(be, 5, 4, 10000, &rope));
    struct hth_tblock_options options = {.dim = 8, .heads = 2, .rope = rope, .prefix = "t."};
    assert_ok(hth_params_new(be, &p));
    assert_ok(hth_tblock_declare(p, &options, &t));
    sealed(p);
    const struct {
        struct hth_weight *w;
        const float *value, *grad;
    } w[] = {
        {t.ln1_gamma, block_g1, block_dg1}, {t.ln1_beta, block_c1, block_dc1},
        {t.wqkv, block_wqkv, block_dwqkv},  {t.bqkv, block_bqkv, block_dbqkv},
        {t.wo, block_wo, block_dwo},        {t.bo, block_bo, block_dbo},
        {t.ln2_gamma, block_g2, block_dg2}, {t.ln2_beta, block_c2, block_dc2},
        {t.w1, block_w1, block_dw1},        {t.b1, block_b1, block_db1},
        {t.w2, block_w2, block_dw2},        {t.b2, block_b2, block_db2},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(w); i++)
        set(w[i].w, w[i].value);
    struct hth_tblock_back back = {.seq = 5, .x = in(block_x, 10, 8)};
    back.saved = hth_backend_alloc(be, hth_tblock_saved_bytes(&t, 10));
    assert_ok(hth_tblock_forward(ex, &t, 5, back.x, out(y, 10, 8), NULL));
    close_to("block inference", y, block_out, 80);
    assert_ok(hth_tblock_forward(ex, &t, 5, back.x, out(y, 10, 8), back.saved));
    close_to("block", y, block_out, 80);
    assert_ok(hth_tblock_backward(ex, &t, &back, in(block_dout, 10, 8), out(dx, 10, 8)));
    close_to("block dx", dx, block_dx, 80);
    for (size_t i = 0; i < HTH_ARRAY_LEN(w); i++)
        grad_close(hth_weight_name(w[i].w), w[i].w, w[i].grad);
    hth_backend_free(be, back.saved);
    hth_params_free(p);
    hth_rope_free(rope);
}

static void check_xent(void)
{
    int32_t labels[] = {0, 10, 3, HTH_LABEL_NONE, 7, 3};
    float dx[66];
    struct hth_xent_result r;
    assert_ok(
        hth_xent(ex, in(xent_x, 6, 11), hth_view_i32(labels, 6), 1.0f / 5, out(dx, 6, 11), &r));
    close_to("xent dx", dx, xent_dx, 66);
    assert_int_equal(r.counted, 5);
    assert_close(r.loss_sum / r.counted, xent_loss[0], 1e-6, 0);
}

static void check_optimiser(const struct hth_optim *o, const char *name, const float *w,
                            const float *const g[3], const float *const after[3])
{
    struct hth_params *p;
    struct hth_weight *weight;
    struct hth_param_spec spec = {.name = "w", .rows = 1, .cols = 21};
    float got[21];
    assert_ok(hth_params_new(be, &p));
    assert_ok(hth_params_add(p, &spec, &weight));
    sealed(p);
    set(weight, w);
    for (int step = 0; step < 3; step++) {
        assert_ok(hth_weight_import(ex, weight, HTH_PART_GRAD, g[step]));
        assert_ok(hth_optim_step(ex, p, o, 1));
        assert_ok(hth_weight_export(ex, weight, HTH_PART_VALUE, got));
        close_to(name, got, after[step], 21);
    }
    hth_params_free(p);
}

static void check_optimisers(void)
{
    struct hth_optim adam = HTH_OPTIM_INIT, adamw = HTH_OPTIM_INIT, sgd = HTH_OPTIM_INIT;
    adam.lr = 0.01f;
    adam.weight_decay = 0.1f;
    adamw = adam;
    adamw.kind = HTH_OPTIM_ADAMW;
    adamw.beta1 = 0.8f;
    adamw.beta2 = 0.95f;
    sgd.kind = HTH_OPTIM_SGD;
    sgd.lr = 0.05f;
    sgd.weight_decay = 0.01f;
    check_optimiser(&adam, "adam", adam_w, (const float *const[]){adam_g0, adam_g1, adam_g2},
                    (const float *const[]){adam_w0, adam_w1, adam_w2});
    check_optimiser(&adamw, "adamw", adamw_w, (const float *const[]){adamw_g0, adamw_g1, adamw_g2},
                    (const float *const[]){adamw_w0, adamw_w1, adamw_w2});
    check_optimiser(&sgd, "sgd", sgd_w, (const float *const[]){sgd_g0, sgd_g1, sgd_g2},
                    (const float *const[]){sgd_w0, sgd_w1, sgd_w2});
}

static void check_all(const struct hth_backend *backend)
{
    be = backend;
    assert_ok(hth_exec_new(be, 4 << 20, &ex));
    check_gelu();
    check_layernorm();
    check_attention();
    check_ffn();
    check_tblock();
    check_xent();
    check_optimisers();
    hth_exec_free(ex);
}

TEST(ref_matches_pytorch)
{
    (void)state;
    check_all(hth_backend_ref());
}

TEST(blas_matches_pytorch)
{
    const struct hth_backend *backend = NULL;
    (void)state;
    assert_ok(hth_test_blas(&backend));
    check_all(backend);
}
