/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases_blocks.c: the longer cases of the table in cases.c: attention, the FFN block, optimisers.
 */
#include "kernels/cases.h"

#include <stdlib.h>
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
    struct twin_attention t = {s.rows, s.a, s.b, d, rotary ? 10000 : 0, NULL, NULL};
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

/* -- masks: sequences, sizes, heads, head_dim; of every kind ------------------------------- */

/* Text, height, width, window, and the positions that are missing at the end. */
static const uint32_t mask_sizes[][5] = {
    {17, 8, 8, 5, 1}, {1, 4, 4, 5, 0}, {9, 6, 10, 3, 1},
    {3, 5, 7, 1, 9},  {5, 0, 0, 3, 2}, {5, 2, 67, 11, 1},
};

/* The rule itself. Query and key are positions. */
static bool mask_sees(const struct hth_mask *m, uint32_t q, uint32_t k)
{
    if (m->kind == HTH_MASK_NONE)
        return true;
    if (k > q || k < m->text || m->kind == HTH_MASK_FULL)
        return k <= q;
    int w = (int)m->width, half = (int)m->window / 2;
    int down = (int)(q - m->text) / w - (int)(k - m->text) / w;
    int right = (int)(q - m->text) % w - (int)(k - m->text) % w;
    if (m->kind == HTH_MASK_CONV)
        return abs(down) <= half && abs(right) <= half;
    return m->kind == HTH_MASK_ROW ? down == 0 : right == 0;
}

static struct mat mask_lengths(struct case_run *run, const struct hth_mask *m, uint32_t sequences)
{
    struct mat lengths = mat_indices(run, sequences, m->text);
    for (uint32_t b = 0; b < sequences; b++)
        mat_set_index(&lengths, b, 1 + (int32_t)lengths.twin[b]);
    mat_upload(run, &lengths);
    return lengths;
}

static void mask_run(struct case_run *run, struct case_shape s, struct hth_attention att,
                     const struct twin_attention *t)
{
    uint32_t d = s.b * s.c, rows = s.rows * att.seq;
    struct mat qkv = mat_random(run, rows, 3 * d, 1), dout = mat_random(run, rows, d, 1);
    struct mat out = mat_poison(run, rows, d), lse = mat_poison(run, rows, s.b);
    struct mat dqkv = mat_poison(run, rows, 3 * d);
    double *want = case_zeros((size_t)rows * d), *dwant = case_zeros((size_t)rows * 3 * d);
    struct hth_attention_saved saved = {qkv.v, out.v, lse.v};
    if (hth_backend_caps(run->be) & HTH_CAP_DENSE) {
        case_ok(run, hth_attention_forward(run->ex, &att, qkv.v, out.v, lse.v), "forward");
        twin_attention(t, qkv.twin, want);
        case_check(run, hth_mask_name(att.mask->kind), &out, want);
        case_ok(run, hth_attention_backward(run->ex, &att, &saved, dout.v, dqkv.v), "backward");
        twin_attention_back(t, qkv.twin, dout.twin, dwant);
        case_check(run, "dqkv", &dqkv, dwant);
    } else {
        case_refused(run, hth_attention_forward(run->ex, &att, qkv.v, out.v, lse.v),
                     HTH_E_UNSUPPORTED, "forward");
        case_refused(run, hth_attention_backward(run->ex, &att, &saved, dout.v, dqkv.v),
                     HTH_E_UNSUPPORTED, "backward");
    }
    hth_free(want);
    hth_free(dwant);
    mat_free(run, &qkv);
    mat_free(run, &dout);
    mat_free(run, &out);
    mat_free(run, &lse);
    mat_free(run, &dqkv);
}

void case_mask(struct case_run *run, struct case_shape s)
{
    const uint32_t *size = mask_sizes[s.a];
    for (uint32_t kind = 0; kind < HTH_MASK_KINDS; kind++) {
        bool padded = (kind + s.a) % 2;
        struct hth_mask m = {(enum hth_mask_kind)kind, size[0], size[1], size[2], size[3]};
        uint32_t seq = hth_mask_positions(&m) - size[4];
        struct mat lengths = mask_lengths(run, &m, s.rows);
        unsigned char *sees = hth_calloc((size_t)s.rows * seq * seq, 1), *at = sees;
        for (uint32_t q = 0; q < s.rows * seq; q++) {
            uint32_t text = padded ? (uint32_t)lengths.twin[q / seq] : m.text;
            for (uint32_t k = 0; k < seq; k++)
                *at++ = mask_sees(&m, q % seq, k) && (k < text || k >= m.text);
        }
        struct hth_rope *rope = NULL;
        case_ok(run, hth_rope_new(run->be, seq, s.c, 10000, &rope), "rope");
        struct hth_attention att = {.seq = seq, .heads = s.b, .rope = rope, .mask = &m};
        if (padded)
            att.unpadded = lengths.v;
        struct twin_attention t = {s.rows, seq, s.b, s.b * s.c, 10000, NULL, sees};
        mask_run(run, s, att, &t);
        hth_rope_free(rope);
        hth_free(sees);
        mat_free(run, &lengths);
    }
}

/* -- blocks -------------------------------------------------------------------------------- */

/* An FFN block with its batch, and the float64 twin's results. */
struct ffn_world {
    struct hth_ffn f;
    struct hth_params *p;
    struct hth_weight *w[6];
    struct mat x, dy, y, dx;
    void *saved;
    double *want_y, *want_dx, *grad[6];
};

static void ffn_make(struct case_run *run, struct case_shape s, struct ffn_world *k)
{
    struct hth_seal_options seal = {.seed = run->seed++, .state_slots = 0};
    struct hth_ffn_options options = {.dim = s.a, .hidden = s.b, .eps = 1e-5f, .prefix = "e."};
    case_ok(run, hth_params_new(run->be, &k->p), "params");
    case_ok(run, hth_ffn_declare(k->p, &options, &k->f), "declare");
    case_ok(run, hth_params_seal(k->p, &seal), "seal");
    struct hth_weight *w[6] = {k->f.w1, k->f.b1, k->f.w2, k->f.b2, k->f.gamma, k->f.beta};
    memcpy(k->w, w, sizeof(w));
    for (int i = 0; i < 6; i++)
        k->grad[i] = case_zeros((size_t)hth_weight_rows(w[i]) * hth_weight_cols(w[i]));
    k->x = mat_random(run, s.rows, s.a, 1);
    k->dy = mat_random(run, s.rows, s.a, 1);
    k->y = mat_poison(run, s.rows, s.a);
    k->dx = mat_poison(run, s.rows, s.a);
    k->saved = hth_backend_alloc(run->be, hth_ffn_saved_bytes(&k->f, s.rows));
    k->want_y = case_zeros((size_t)s.rows * s.a);
    k->want_dx = case_zeros((size_t)s.rows * s.a);
}

static void ffn_twin(struct case_run *run, struct case_shape s, struct ffn_world *k)
{
    size_t n = (size_t)s.rows * s.a, nh = (size_t)s.rows * s.b;
    struct twin_dims wide = {s.rows, s.a, s.b}, narrow = {s.rows, s.b, s.a};
    double *pre = case_zeros(nh), *act = case_zeros(nh), *dh = case_zeros(nh);
    double *sum = case_zeros(n), *dsum = case_zeros(n), *v[6];
    for (int i = 0; i < 6; i++)
        v[i] = twin_of_weight(run, k->w[i], HTH_PART_VALUE);
    twin_linear(wide, k->x.twin, v[0], v[1], pre);
    for (size_t i = 0; i < nh; i++)
        act[i] = twin_act(HTH_ACT_GELU, pre[i]);
    twin_linear(narrow, act, v[2], v[3], sum);
    for (size_t i = 0; i < n; i++)
        sum[i] += k->x.twin[i];
    struct twin_norm norm = {sum, v[4], v[5], (double)1e-5f, k->grad[4], k->grad[5]};
    twin_layernorm(s.rows, s.a, &norm, k->want_y);
    twin_layernorm_back(s.rows, s.a, &norm, k->dy.twin, dsum);
    struct twin_linear_back down = {act, v[2], dsum, dh, k->grad[2], k->grad[3]};
    twin_linear_back(narrow, &down);
    for (size_t i = 0; i < nh; i++)
        dh[i] *= twin_act_slope(HTH_ACT_GELU, pre[i]);
    struct twin_linear_back up = {k->x.twin, v[0], dh, k->want_dx, k->grad[0], k->grad[1]};
    twin_linear_back(wide, &up);
    for (size_t i = 0; i < n; i++)
        k->want_dx[i] += dsum[i];
    double *all[] = {pre, act, dh, sum, dsum, v[0], v[1], v[2], v[3], v[4], v[5]};
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        hth_free(all[i]);
}

static void ffn_check_back(struct case_run *run, struct ffn_world *k)
{
    case_check(run, "dx", &k->dx, k->want_dx);
    for (int i = 0; i < 6; i++)
        case_check_weight(run, hth_weight_name(k->w[i]), k->w[i], HTH_PART_GRAD, k->grad[i]);
}

static void ffn_drop(struct case_run *run, struct ffn_world *k)
{
    for (int i = 0; i < 6; i++)
        hth_free(k->grad[i]);
    hth_free(k->want_y);
    hth_free(k->want_dx);
    hth_backend_free(run->be, k->saved);
    mat_free(run, &k->x);
    mat_free(run, &k->dy);
    mat_free(run, &k->y);
    mat_free(run, &k->dx);
    hth_params_free(k->p);
}

/* FFN: rows, d, hidden. */
void case_ffn(struct case_run *run, struct case_shape s)
{
    struct ffn_world k;
    ffn_make(run, s, &k);
    ffn_twin(run, s, &k);
    case_ok(run, hth_ffn_forward(run->ex, &k.f, k.x.v, k.y.v, NULL), "inference");
    case_check(run, "y", &k.y, k.want_y);
    case_ok(run, hth_ffn_forward(run->ex, &k.f, k.x.v, k.y.v, k.saved), "forward");
    case_check(run, "y saved", &k.y, k.want_y);
    case_ok(run, hth_ffn_backward(run->ex, &k.f, k.x.v, k.saved, k.dy.v, k.dx.v), "backward");
    ffn_check_back(run, &k);
    ffn_drop(run, &k);
}

/* Several blocks in one call: the most rows of one, d, hidden, blocks. */
void case_ffn_many(struct case_run *run, struct case_shape s)
{
    enum { MOST = 8 };
    struct ffn_world k[MOST] = {0};
    struct hth_ffn_entry entry[MOST];
    HTH_ASSERT(s.c <= MOST);
    for (uint32_t i = 0; i < s.c; i++) {
        struct case_shape one = {s.rows - i % s.rows % 3, s.a, s.b, 0};
        ffn_make(run, one, &k[i]);
        ffn_twin(run, one, &k[i]);
        entry[i] =
            (struct hth_ffn_entry){&k[i].f, k[i].x.v, k[i].y.v, k[i].saved, k[i].dy.v, k[i].dx.v};
    }
    size_t scratch = hth_ffn_many_scratch_bytes(run->ex, &k[0].f, s.rows, s.c);
    case_ok(run, hth_exec_reserve(run->ex, scratch), "reserve");
    case_ok(run, hth_ffn_forward_many(run->ex, entry, s.c), "forward_many");
    case_ok(run, hth_ffn_backward_many(run->ex, entry, s.c), "backward_many");
    for (uint32_t i = 0; i < s.c; i++) {
        case_check(run, "y", &k[i].y, k[i].want_y);
        ffn_check_back(run, &k[i]);
        ffn_drop(run, &k[i]);
    }
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
