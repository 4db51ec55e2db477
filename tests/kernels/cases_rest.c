/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases_rest.c: more cases of the table in cases.c: number formats, dropout, LAMB, the norm of
 * gradients, bad indices, the transformer block.
 */
#include "kernels/cases.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/blocks.h"
#include "kernels/twin64.h"

/* -- 16-bit numbers: rows, cols, 0 bf16 or 1 fp16 ------------------------------------------- */

struct half {
    enum hth_dtype type;
    int mantissa, smallest; /* bits after the point; exponent of the smallest normal number */
    double largest;
};
static const struct half halves[] = {
    {HTH_BF16, 7, -126, 0x1.fep127},
    {HTH_F16, 10, -14, 65504},
};

/* The nearest number of the format, the even one of two. */
static double rounded(const struct half *h, double x)
{
    if (x == 0 || !isfinite(x))
        return x;
    double unit = ldexp(1, HTH_MAX(ilogb(x), h->smallest) - h->mantissa);
    double r = nearbyint(x / unit) * unit;
    return fabs(r) > h->largest ? copysign(INFINITY, x) : r;
}

static double value_of(const struct half *h, uint16_t bits)
{
    int exponent = (bits & 0x7fff) >> h->mantissa, last = (1 << (15 - h->mantissa)) - 1;
    double fraction = ldexp(bits & ((1 << h->mantissa) - 1), -h->mantissa), x;
    if (exponent == last)
        x = fraction != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        x = ldexp(fraction, h->smallest);
    else
        x = ldexp(1 + fraction, h->smallest + exponent - 1);
    return bits & 0x8000 ? -x : x;
}

static bool same_number(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b);
}

/* Numbers of every size, and the special ones of both formats at the front. */
static void fill_sizes(struct case_run *run, struct mat *m)
{
    static const float odd[] = {0.0f,         -0.0f,        INFINITY,        -INFINITY,
                                NAN,          0x1p-149f,    0x1.fffffep127f, 65519.0f,
                                65520.0f,     0x1p-25f,     0x1.8p-25f,      0x1p-14f,
                                0x1.ffcp-15f, 0x1.01p0f,    0x1.03p0f,       0x1.002p0f,
                                0x1.006p0f,   -0x1.ffp127f, -0x1.0p-133f,    0x1.8p-133f};
    for (uint32_t r = 0, i = 0; r < m->v.rows; r++) {
        for (uint32_t c = 0; c < m->v.cols; c++, i++) {
            float x = (float)m->twin[(size_t)r * m->v.cols + c];
            float wide = ldexpf(x, (int)(i * 7 % 60) - 35);
            mat_set(m, r, c, i % 3 == 1 && i / 3 < HTH_ARRAY_LEN(odd) ? odd[i / 3] : wide);
        }
    }
    mat_upload(run, m);
}

static void same_matrix(struct case_run *run, const char *what, struct mat *m, const double *want)
{
    mat_download(run, m, what);
    for (uint32_t r = 0; r < m->v.rows; r++) {
        for (uint32_t c = 0; c < m->v.cols; c++) {
            double got = (double)mat_get(m, r, c), w = want[(size_t)r * m->v.cols + c];
            if (!same_number(got, w))
                case_fail(run, "%s: (%u, %u) is %.9g, not %.9g", what, r, c, got, w);
        }
    }
}

void case_half(struct case_run *run, struct case_shape s)
{
    const struct half *h = &halves[s.b];
    size_t n = (size_t)s.rows * s.a, ld = s.a + 3, all = (size_t)s.rows * ld * sizeof(uint16_t);
    struct mat x = mat_random(run, s.rows, s.a, 1), y = mat_poison(run, s.rows, s.a);
    uint16_t *bits = hth_calloc(s.rows * ld, sizeof(uint16_t));
    void *there = hth_backend_alloc(run->be, all);
    struct hth_view half = {there, h->type, s.rows, s.a, (uint32_t)ld};
    double *want = case_zeros(n);
    fill_sizes(run, &x);
    memset(bits, 0x5a, all);
    case_ok(run, hth_exec_upload(run->ex, there, bits, all), "upload");
    case_ok(run, hth_cast(run->ex, x.v, half), "cast");
    case_ok(run, hth_exec_download(run->ex, bits, there, all), "download");
    case_ok(run, hth_exec_sync(run->ex), "sync");
    for (size_t i = 0; i < s.rows * ld; i++) {
        size_t r = i / ld, c = i % ld;
        if (c >= s.a && bits[i] != 0x5a5a)
            case_fail(run, "cast: wrote behind row %zu", r);
        if (c >= s.a)
            continue;
        want[r * s.a + c] = rounded(h, x.twin[r * s.a + c]);
        if (!same_number(value_of(h, bits[i]), want[r * s.a + c]))
            case_fail(run, "cast: %.9g became %.9g, not %.9g", x.twin[r * s.a + c],
                      value_of(h, bits[i]), want[r * s.a + c]);
    }
    case_ok(run, hth_cast(run->ex, half, y.v), "cast back");
    same_matrix(run, "cast back", &y, want);
    case_ok(run, hth_cast(run->ex, x.v, y.v), "copy");
    same_matrix(run, "copy", &y, x.twin);
    hth_backend_free(run->be, there);
    hth_free(bits);
    hth_free(want);
    mat_free(run, &x);
    mat_free(run, &y);
}

/* -- dropout: rows, cols, p in percent ------------------------------------------------------ */

void case_dropout(struct case_run *run, struct case_shape s)
{
    size_t n = (size_t)s.rows * s.a, dropped = 0;
    struct mat x = mat_random(run, s.rows, s.a, 1), y = mat_poison(run, s.rows, s.a);
    struct hth_dropout drop = {
        .p = (float)s.b / 100, .seed = run->seed * 977, .op = 3, .step = 70000, .expert = 9};
    const uint32_t key[2] = {(uint32_t)drop.seed, (uint32_t)(drop.seed >> 32)};
    double *want = case_zeros(n), p = (double)drop.p;
    for (size_t i = 0; i < n; i++) {
        uint32_t r = (uint32_t)(i / s.a), c = (uint32_t)(i % s.a), word[4];
        const uint32_t counter[4] = {r * ((s.a + 3) / 4) + c / 4, drop.op, drop.step, drop.expert};
        hth_philox(counter, key, word);
        bool keep = (double)word[c % 4] >= floor(p * 4294967296.0);
        want[i] = keep ? x.twin[i] / (1 - p) : 0;
        dropped += !keep;
    }
    if (fabs((double)dropped - p * (double)n) > 6 * sqrt((double)n * p * (1 - p)))
        case_fail(run, "%zu of %zu are dropped at p = %g", dropped, n, p);
    case_ok(run, hth_dropout(run->ex, &drop, x.v, y.v), "dropout");
    case_check(run, "y", &y, want);
    case_ok(run, hth_dropout(run->ex, &drop, x.v, x.v), "dropout in place");
    case_check(run, "y in place", &x, want);
    drop.p = 1;
    case_refused(run, hth_dropout(run->ex, &drop, x.v, y.v), HTH_E_RANGE, "p = 1");
    hth_free(want);
    mat_free(run, &x);
    mat_free(run, &y);
}

/* -- LAMB: tensor rows, cols, bound of the ratio in tenths (0: none), weight decay in
 * thousandths */

/* A tensor and its twin. */
struct stepped {
    struct hth_weight *w;
    bool decays;
    size_t n;
    double *value, *m, *v;
};

static struct stepped stepped_new(struct case_run *run, struct hth_weight *w, bool decays)
{
    size_t n = (size_t)hth_weight_rows(w) * hth_weight_cols(w);
    return (struct stepped){
        w, decays, n, twin_of_weight(run, w, HTH_PART_VALUE), case_zeros(n), case_zeros(n)};
}

static void stepped_grad(struct case_run *run, struct stepped *t, const struct hth_optim *o,
                         int step)
{
    struct mat g = mat_random(run, 1, (uint32_t)t->n, step == 2 ? 100 : 1);
    struct twin_lamb lamb = {(double)o->lr,
                             (double)o->beta1,
                             (double)o->beta2,
                             (double)o->eps,
                             t->decays ? (double)o->weight_decay : 0,
                             t->decays,
                             (double)o->trust_max};
    float *dense = hth_calloc(t->n, sizeof(float));
    for (size_t i = 0; i < t->n; i++) {
        dense[i] = (float)g.twin[i];
        g.twin[i] *= 0.125;
    }
    twin_lamb(&lamb, step, t->n, g.twin, t->value, t->m, t->v);
    case_ok(run, hth_weight_import(run->ex, t->w, HTH_PART_GRAD, dense), "import");
    hth_free(dense);
    mat_free(run, &g);
}

void case_lamb(struct case_run *run, struct case_shape s)
{
    struct hth_params *p;
    struct hth_weight *w, *b;
    const struct hth_param_spec spec = {
        .name = "w", .rows = s.rows, .cols = s.a, .init = HTH_INIT_UNIFORM};
    const struct hth_param_spec bias = {
        .name = "b", .rows = 1, .cols = s.a, .init = HTH_INIT_UNIFORM, .no_decay = true};
    const struct hth_seal_options seal = {.seed = run->seed++, .state_slots = 2};
    struct hth_optim o = HTH_OPTIM_INIT;
    o.kind = HTH_OPTIM_LAMB;
    o.lr = 0.02f;
    o.trust_max = (float)s.b / 10;
    o.weight_decay = (float)s.c / 1000;
    case_ok(run, hth_params_new(run->be, &p), "params");
    case_ok(run, hth_params_add(p, &spec, &w), "add");
    case_ok(run, hth_params_add(p, &bias, &b), "add");
    case_ok(run, hth_params_seal(p, &seal), "seal");
    struct stepped t[2] = {stepped_new(run, w, true), stepped_new(run, b, false)};
    for (int step = 1; step <= 3; step++) {
        stepped_grad(run, &t[0], &o, step);
        stepped_grad(run, &t[1], &o, step);
        case_ok(run, hth_optim_step(run->ex, p, &o, 0.125f), "step");
        case_check_weight(run, "w", w, HTH_PART_VALUE, t[0].value);
        case_check_weight(run, "b", b, HTH_PART_VALUE, t[1].value);
    }
    for (int i = 0; i < 2; i++) {
        case_check_weight(run, "m", t[i].w, HTH_PART_STATE0, t[i].m);
        case_check_weight(run, "v", t[i].w, HTH_PART_STATE1, t[i].v);
        hth_free(t[i].value);
        hth_free(t[i].m);
        hth_free(t[i].v);
    }
    hth_params_free(p);
}

/* -- the norm of gradients: rows, cols ------------------------------------------------------ */

void case_grad_norm(struct case_run *run, struct case_shape s)
{
    struct case_pair q = case_pair_new(run, s.rows, s.a, 3, 5);
    size_t n = (size_t)s.rows * s.a;
    float *g = hth_calloc(n, sizeof(float)), few[15];
    double sum = 0, norm = -1;
    bool finite = false;
    case_ok(run, hth_grad_norm(run->ex, q.p, &norm, &finite), "norm of nothing");
    if (norm != 0 || !finite)
        case_fail(run, "the norm of zero gradients is %g", norm);
    struct mat x = mat_random(run, s.rows, s.a, 3), y = mat_random(run, 3, 5, 1000);
    for (size_t i = 0; i < n; i++) {
        g[i] = (float)x.twin[i];
        sum += x.twin[i] * x.twin[i];
    }
    for (size_t i = 0; i < HTH_ARRAY_LEN(few); i++) {
        few[i] = (float)y.twin[i];
        sum += y.twin[i] * y.twin[i];
    }
    case_ok(run, hth_weight_import(run->ex, q.w, HTH_PART_GRAD, g), "import");
    case_ok(run, hth_weight_import(run->ex, q.b, HTH_PART_GRAD, few), "import");
    case_ok(run, hth_grad_norm(run->ex, q.p, &norm, &finite), "norm");
    if (!finite || fabs(norm - sqrt(sum)) > 1e-12 * sqrt(sum))
        case_fail(run, "the norm is %.17g, not %.17g", norm, sqrt(sum));
    static const float bad[] = {INFINITY, NAN, -INFINITY};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        g[n * i / 3] = bad[i];
        case_ok(run, hth_weight_import(run->ex, q.w, HTH_PART_GRAD, g), "import");
        case_ok(run, hth_grad_norm(run->ex, q.p, &norm, &finite), "norm");
        if (finite || isfinite(norm))
            case_fail(run, "with a gradient of %g the norm is %g", (double)bad[i], norm);
        g[n * i / 3] = 1;
    }
    hth_free(g);
    mat_free(run, &x);
    mat_free(run, &y);
    case_pair_free(&q);
}

/* -- bad indices: rows, d, table ------------------------------------------------------------ */

/* The context works after a refusal: reads rows of the table, and adds to them once. */
static void still_works(struct case_run *run, struct case_pair *q, struct mat *index,
                        struct mat *dst)
{
    size_t d = dst->v.cols;
    double *want = case_zeros(dst->v.rows * d);
    for (size_t r = 0; r < dst->v.rows; r++)
        memcpy(want + r * d, q->tw + (size_t)index->twin[r] * d, d * sizeof(double));
    case_ok(run, hth_embed_forward(run->ex, q->w, index->v, dst->v), "after a refusal");
    case_check(run, "after a refusal", dst, want);
    hth_free(want);
}

void case_bad_index(struct case_run *run, struct case_shape s)
{
    static const int32_t below[] = {-1, -2, INT32_MIN};
    struct case_pair q = case_pair_new(run, s.b, s.a, 1, 1);
    struct mat index = mat_indices(run, s.rows, s.b), table = mat_random(run, s.b, s.a, 1);
    struct mat rows = mat_random(run, s.rows, s.a, 1), dst = mat_poison(run, s.rows, s.a);
    struct mat logits = mat_random(run, s.rows, s.b, 1), labels = mat_indices(run, s.rows, s.b);
    struct mat dlogits = mat_poison(run, s.rows, s.b);
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t at = s.rows * i / 5;
        int32_t bad = i < 3 ? below[i] : i == 3 ? (int32_t)s.b : INT32_MAX;
        int32_t good = (int32_t)index.twin[at], label = bad == HTH_LABEL_NONE ? -3 : bad;
        struct hth_xent_result sums;
        mat_set_index(&index, at, bad);
        mat_set_index(&labels, at, label);
        mat_upload(run, &index);
        mat_upload(run, &labels);
        case_refused(run, hth_gather_rows(run->ex, table.v, index.v, dst.v), HTH_E_RANGE, "gather");
        case_refused(run, hth_scatter_add_rows(run->ex, rows.v, index.v, HTH_VIEW_NONE, table.v),
                     HTH_E_RANGE, "scatter");
        case_refused(run, hth_embed_forward(run->ex, q.w, index.v, dst.v), HTH_E_RANGE, "embed");
        case_refused(run, hth_embed_backward(run->ex, q.w, index.v, rows.v), HTH_E_RANGE,
                     "embed_backward");
        case_refused(run, hth_xent(run->ex, logits.v, labels.v, 1, dlogits.v, &sums), HTH_E_RANGE,
                     "xent");
        mat_set_index(&index, at, good);
        mat_set_index(&labels, at, 0);
        mat_upload(run, &index);
        mat_upload(run, &labels);
        case_ok(run, hth_xent(run->ex, logits.v, labels.v, 1, dlogits.v, &sums), "xent");
        still_works(run, &q, &index, &dst);
    }
    struct mat *all[] = {&index, &table, &rows, &dst, &logits, &labels, &dlogits};
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        mat_free(run, all[i]);
    case_pair_free(&q);
}

/* -- the transformer block: sequences, seq, heads, columns of a head (odd: no positions) ----- */

enum { G1, B1, WQKV, BQKV, WO, BO, G2, B2, W1, C1, W2, C2, TENSORS };

struct block_world {
    struct hth_tblock t;
    struct hth_params *p;
    struct hth_rope *rope;
    struct hth_weight *w[TENSORS];
    double *v[TENSORS], *g[TENSORS];
    size_t rows, d, hidden;
    struct twin_attention att;
};

static void block_make(struct case_run *run, struct case_shape s, struct block_world *k)
{
    const struct hth_seal_options seal = {.seed = run->seed++, .state_slots = 0};
    struct hth_tblock_options options = {.dim = s.b * s.c, .hidden = 3 * s.b * s.c, .heads = s.b};
    *k = (struct block_world){.rows = (size_t)s.rows * s.a, .d = s.b * s.c};
    k->hidden = 3 * k->d;
    k->att = (struct twin_attention){s.rows, s.a, s.b, k->d, s.c % 2 == 0 ? 10000 : 0, NULL, NULL};
    if (s.c % 2 == 0)
        case_ok(run, hth_rope_new(run->be, s.a, s.c, 10000, &k->rope), "rope");
    options.rope = k->rope;
    case_ok(run, hth_params_new(run->be, &k->p), "params");
    case_ok(run, hth_tblock_declare(k->p, &options, &k->t), "declare");
    case_ok(run, hth_params_seal(k->p, &seal), "seal");
    struct hth_weight *w[TENSORS] = {k->t.ln1_gamma, k->t.ln1_beta, k->t.wqkv,      k->t.bqkv,
                                     k->t.wo,        k->t.bo,       k->t.ln2_gamma, k->t.ln2_beta,
                                     k->t.w1,        k->t.b1,       k->t.w2,        k->t.b2};
    for (int i = 0; i < TENSORS; i++) {
        size_t n = (size_t)hth_weight_rows(w[i]) * hth_weight_cols(w[i]);
        struct mat values = mat_random(run, 1, (uint32_t)n, 0.2f);
        float *dense = hth_calloc(n, sizeof(float));
        for (size_t e = 0; e < n; e++)
            dense[e] = (float)(values.twin[e] + (i == G1 || i == G2 ? 1 : 0));
        case_ok(run, hth_weight_import(run->ex, w[i], HTH_PART_VALUE, dense), "import");
        hth_free(dense);
        mat_free(run, &values);
        k->w[i] = w[i];
        k->v[i] = twin_of_weight(run, w[i], HTH_PART_VALUE);
        k->g[i] = case_zeros(n);
    }
}

static void add_to(double *sum, const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

/* y and dx from x and dy: u is the value between the halves; the prefix d marks a gradient. */
static void block_twin(struct block_world *k, const double *x, const double *dy, double *y,
                       double *dx)
{
    size_t m = k->rows, d = k->d, h = k->hidden, n = m * d;
    double *n1 = case_zeros(n), *qkv = case_zeros(3 * n), *att = case_zeros(n), *u = case_zeros(n);
    double *n2 = case_zeros(n), *pre = case_zeros(m * h), *act = case_zeros(m * h);
    double *dact = case_zeros(m * h), *du = case_zeros(n), *part = case_zeros(n);
    double *dqkv = case_zeros(3 * n), eps = (double)1e-5f;
    struct twin_norm norm1 = {x, k->v[G1], k->v[B1], eps, k->g[G1], k->g[B1]};
    struct twin_norm norm2 = {u, k->v[G2], k->v[B2], eps, k->g[G2], k->g[B2]};
    twin_layernorm(m, d, &norm1, n1);
    twin_linear((struct twin_dims){m, d, 3 * d}, n1, k->v[WQKV], k->v[BQKV], qkv);
    twin_attention(&k->att, qkv, att);
    twin_linear((struct twin_dims){m, d, d}, att, k->v[WO], k->v[BO], u);
    add_to(u, x, n);
    twin_layernorm(m, d, &norm2, n2);
    twin_linear((struct twin_dims){m, d, h}, n2, k->v[W1], k->v[C1], pre);
    for (size_t i = 0; i < m * h; i++)
        act[i] = twin_act(HTH_ACT_GELU, pre[i]);
    twin_linear((struct twin_dims){m, h, d}, act, k->v[W2], k->v[C2], y);
    add_to(y, u, n);
    struct twin_linear_back down = {act, k->v[W2], dy, dact, k->g[W2], k->g[C2]};
    twin_linear_back((struct twin_dims){m, h, d}, &down);
    for (size_t i = 0; i < m * h; i++)
        dact[i] *= twin_act_slope(HTH_ACT_GELU, pre[i]);
    struct twin_linear_back up = {n2, k->v[W1], dact, part, k->g[W1], k->g[C1]};
    twin_linear_back((struct twin_dims){m, d, h}, &up);
    twin_layernorm_back(m, d, &norm2, part, du);
    add_to(du, dy, n);
    struct twin_linear_back out = {att, k->v[WO], du, part, k->g[WO], k->g[BO]};
    twin_linear_back((struct twin_dims){m, d, d}, &out);
    twin_attention_back(&k->att, qkv, part, dqkv);
    struct twin_linear_back in = {n1, k->v[WQKV], dqkv, part, k->g[WQKV], k->g[BQKV]};
    twin_linear_back((struct twin_dims){m, d, 3 * d}, &in);
    twin_layernorm_back(m, d, &norm1, part, dx);
    add_to(dx, du, n);
    double *all[] = {n1, qkv, att, u, n2, pre, act, dact, du, part, dqkv};
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        hth_free(all[i]);
}

void case_tblock(struct case_run *run, struct case_shape s)
{
    struct block_world k;
    if (hth_backend_compute(run->be) != HTH_MATMUL_F32)
        run->tolerance *= 2; /* a dozen roundings in a row, where one product has two */
    block_make(run, s, &k);
    uint32_t rows = (uint32_t)k.rows, d = (uint32_t)k.d;
    struct mat x = mat_random(run, rows, d, 1), dy = mat_random(run, rows, d, 1);
    struct mat y = mat_poison(run, rows, d), dx = mat_poison(run, rows, d);
    double *want = case_zeros(k.rows * k.d), *dwant = case_zeros(k.rows * k.d);
    void *saved = hth_backend_alloc(run->be, hth_tblock_saved_bytes(&k.t, rows));
    size_t scratch = hth_tblock_scratch_bytes(run->be, &k.t, rows, s.a);
    case_ok(run, hth_exec_reserve(run->ex, scratch), "reserve");
    block_twin(&k, x.twin, dy.twin, want, dwant);
    case_ok(run, hth_tblock_forward(run->ex, &k.t, s.a, x.v, y.v, NULL), "inference");
    case_check(run, "y", &y, want);
    case_ok(run, hth_tblock_forward(run->ex, &k.t, s.a, x.v, y.v, saved), "forward");
    case_check(run, "y saved", &y, want);
    const struct hth_tblock_back back = {s.a, x.v, saved};
    case_ok(run, hth_tblock_backward(run->ex, &k.t, &back, dy.v, dx.v), "backward");
    case_check(run, "dx", &dx, dwant);
    for (int i = 0; i < TENSORS; i++) {
        case_check_weight(run, hth_weight_name(k.w[i]), k.w[i], HTH_PART_GRAD, k.g[i]);
        hth_free(k.v[i]);
        hth_free(k.g[i]);
    }
    hth_free(want);
    hth_free(dwant);
    hth_backend_free(run->be, saved);
    mat_free(run, &x);
    mat_free(run, &dy);
    mat_free(run, &y);
    mat_free(run, &dx);
    hth_params_free(k.p);
    hth_rope_free(k.rope);
}
