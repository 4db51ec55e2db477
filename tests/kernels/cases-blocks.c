/* SPDX-License-Identifier: Apache-2.0 */
/* cases-blocks.c: the longer cases of the table in cases.c: attention, the FFN block, optimisers.
 */
#include "kernels/cases.h"

#include <string.h>

#include "core/mem.h"
#include "kernels/blocks.h"
#include "kernels/twin64.h"

/* -- attention: sequences, seq, heads, head_dim (negative sense: odd `rows` has no rope) ---- */

void case_attention(struct case_run *run, struct case_shape s)
{
    uint32_t d = s.b * s.c, rows = s.rows * s.a;
    bool rotary = s.rows % 2 == 0;
    struct mat qkv = mat_random(run, rows, 3 * d, 2), dout = mat_random(run, rows, d, 1);
    struct mat out = mat_poison(run, rows, d), lse = mat_poison(run, rows, s.b);
    struct mat dqkv = mat_poison(run, rows, 3 * d);
    double *want = case_zeros((size_t)rows * d), *dwant = case_zeros((size_t)rows * 3 * d);
    struct hth_rope *rope = NULL;
    if (rotary)
        case_ok(run, hth_rope_new(run->be, s.a + 3, s.c, 10000, &rope), "rope");
    struct hth_attention att = {.seq = s.a, .heads = s.b, .rope = rope};
    struct twin_attention t = {s.rows, s.a, s.b, d, rotary ? 10000 : 0};
    case_ok(run, hth_attention_forward(run->ex, &att, qkv.v, out.v, lse.v), "attention_forward");
    twin_attention(&t, qkv.twin, want);
    case_check(run, "out", &out, want);
    struct hth_attention_saved saved = {qkv.v, out.v, lse.v};
    case_ok(run, hth_attention_backward(run->ex, &att, &saved, dout.v, dqkv.v), "backward");
    twin_attention_back(&t, qkv.twin, dout.twin, dwant);
    case_check(run, "dqkv", &dqkv, dwant);
    hth_rope_free(rope);
    hth_free(want);
    hth_free(dwant);
    mat_free(run, &qkv);
    mat_free(run, &dout);
    mat_free(run, &out);
    mat_free(run, &lse);
    mat_free(run, &dqkv);
}

/* -- blocks -------------------------------------------------------------------------------- */

/* FFN: rows, d, hidden. */
void case_ffn(struct case_run *run, struct case_shape s)
{
    size_t n = (size_t)s.rows * s.a, nh = (size_t)s.rows * s.b;
    struct hth_ffn f;
    struct hth_params *p;
    struct hth_seal_options seal = {.seed = run->seed++, .state_slots = 0};
    struct hth_ffn_options options = {.dim = s.a, .hidden = s.b, .eps = 1e-5f, .prefix = "e."};
    case_ok(run, hth_params_new(run->be, &p), "params");
    case_ok(run, hth_ffn_declare(p, &options, &f), "declare");
    case_ok(run, hth_params_seal(p, &seal), "seal");
    struct hth_weight *w[6] = {f.w1, f.b1, f.w2, f.b2, f.gamma, f.beta};
    double *v[6], *g[6];
    for (int i = 0; i < 6; i++) {
        v[i] = twin_of_weight(run, w[i], HTH_PART_VALUE);
        g[i] = case_zeros((size_t)hth_weight_rows(w[i]) * hth_weight_cols(w[i]));
    }
    struct mat x = mat_random(run, s.rows, s.a, 1), dy = mat_random(run, s.rows, s.a, 1);
    struct mat y = mat_poison(run, s.rows, s.a), dx = mat_poison(run, s.rows, s.a);
    double *pre = case_zeros(nh), *act = case_zeros(nh), *sum = case_zeros(n),
           *want = case_zeros(n), *dh = case_zeros(nh);
    twin_linear((struct twin_dims){s.rows, s.a, s.b}, x.twin, v[0], v[1], pre);
    for (size_t i = 0; i < nh; i++)
        act[i] = twin_act(HTH_ACT_GELU, pre[i]);
    twin_linear((struct twin_dims){s.rows, s.b, s.a}, act, v[2], v[3], sum);
    for (size_t i = 0; i < n; i++)
        sum[i] += x.twin[i];
    struct twin_norm norm = {sum, v[4], v[5], (double)1e-5f, g[4], g[5]};
    twin_layernorm(s.rows, s.a, &norm, want);
    void *saved = hth_backend_alloc(run->be, hth_ffn_saved_bytes(&f, s.rows));
    case_ok(run, hth_ffn_forward(run->ex, &f, x.v, y.v, NULL), "inference");
    case_check(run, "y", &y, want);
    case_ok(run, hth_ffn_forward(run->ex, &f, x.v, y.v, saved), "forward");
    case_check(run, "y saved", &y, want);
    double *dsum = case_zeros(n);
    twin_layernorm_back(s.rows, s.a, &norm, dy.twin, dsum);
    struct twin_linear_back down = {act, v[2], dsum, dh, g[2], g[3]};
    twin_linear_back((struct twin_dims){s.rows, s.b, s.a}, &down);
    for (size_t i = 0; i < nh; i++)
        dh[i] *= twin_act_slope(HTH_ACT_GELU, pre[i]);
    struct twin_linear_back up = {x.twin, v[0], dh, want, g[0], g[1]};
    twin_linear_back((struct twin_dims){s.rows, s.a, s.b}, &up);
    for (size_t i = 0; i < n; i++)
        want[i] += dsum[i];
    case_ok(run, hth_ffn_backward(run->ex, &f, x.v, saved, dy.v, dx.v), "backward");
    case_check(run, "dx", &dx, want);
    for (int i = 0; i < 6; i++) {
        case_check_weight(run, hth_weight_name(w[i]), w[i], HTH_PART_GRAD, g[i]);
        hth_free(v[i]);
        hth_free(g[i]);
    }
    double *all[] = {pre, act, sum, want, dh, dsum};
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        hth_free(all[i]);
    hth_backend_free(run->be, saved);
    mat_free(run, &x);
    mat_free(run, &dy);
    mat_free(run, &y);
    mat_free(run, &dx);
    hth_params_free(p);
}

/* -- optimisers: tensor rows, cols, kind, variant ------------------------------------------ */

void case_optimiser(struct case_run *run, struct case_shape s)
{
    struct case_pair q = case_pair_new(run, s.rows, s.a, 1, 5);
    size_t n = (size_t)s.rows * s.a;
    double *m = case_zeros(n), *v = case_zeros(n);
    struct hth_optim o = HTH_OPTIM_INIT;
    o.kind = (enum hth_optim_kind)s.b;
    o.lr = 0.01f;
    o.weight_decay = s.c & 1 ? 0.1f : 0;
    o.momentum = s.c & 2 ? 0 : 0.9f;
    struct twin_optim t = {(int)o.kind,     (double)o.lr,  (double)o.momentum,    (double)o.beta1,
                           (double)o.beta2, (double)o.eps, (double)o.weight_decay};
    for (int step = 1; step <= 3; step++) {
        struct mat g = mat_random(run, s.rows, s.a, step == 2 ? 100 : 1);
        float *dense = hth_calloc(n, sizeof(float));
        for (size_t i = 0; i < n; i++) {
            dense[i] = (float)g.twin[i];
            twin_optim(&t, step, g.twin[i] * 0.125, &q.tw[i], &m[i], &v[i]);
        }
        case_ok(run, hth_weight_import(run->ex, q.w, HTH_PART_GRAD, dense), "import");
        case_ok(run, hth_optim_step(run->ex, q.p, &o, 0.125f), "step");
        case_check_weight(run, "w", q.w, HTH_PART_VALUE, q.tw);
        hth_free(dense);
        mat_free(run, &g);
    }
    if (hth_optim_slots(&o) > 0)
        case_check_weight(run, "m", q.w, HTH_PART_STATE0, m);
    if (hth_optim_slots(&o) > 1)
        case_check_weight(run, "v", q.w, HTH_PART_STATE1, v);
    if (hth_params_steps(q.p) != 3)
        case_fail(run, "%llu steps", (unsigned long long)hth_params_steps(q.p));
    hth_free(m);
    hth_free(v);
    case_pair_free(&q);
}
