/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.c: the cases; see cases.h. To add an operation, write its twin, a function here, its
 * shapes, and a line in the table at the end.
 */
#include "kernels/cases.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/quant.h"
#include "kernels/twin64.h"

/* -- linear: rows, in, out, variant (bit 0 bias, bits 1-2 activation, bit 3 residual, 4 pre) --- */

static void linear_forward(struct case_run *run, struct case_shape s)
{
    enum hth_act act = (enum hth_act)(s.c >> 1 & 3);
    bool bias = s.c & 1, residual = s.c & 8, keep = s.c & 16;
    struct case_pair q = case_pair_new(run, s.a, s.b, 1, s.b);
    struct mat x = mat_random(run, s.rows, s.a, 1), res = mat_random(run, s.rows, s.b, 1);
    struct mat y = mat_poison(run, s.rows, s.b), pre = mat_poison(run, s.rows, s.b);
    size_t n = (size_t)s.rows * s.b;
    double *want = case_zeros(n), *want_pre = case_zeros(n);
    struct hth_linear lin = {.w = q.w, .bias = bias ? q.b : NULL, .act = act};
    if (residual)
        lin.residual = res.v;
    if (keep)
        lin.pre = pre.v;
    case_ok(run, hth_linear_forward(run->ex, &lin, x.v, y.v), "linear_forward");
    twin_linear((struct twin_dims){s.rows, s.a, s.b}, x.twin, q.tw, bias ? q.tb : NULL, want_pre);
    for (size_t i = 0; i < n; i++)
        want[i] = twin_act(act, want_pre[i]) + (residual ? res.twin[i] : 0);
    case_check(run, "y", &y, want);
    if (keep)
        case_check(run, "pre", &pre, want_pre);
    hth_free(want);
    hth_free(want_pre);
    mat_free(run, &x);
    mat_free(run, &res);
    mat_free(run, &y);
    mat_free(run, &pre);
    case_pair_free(&q);
}

/* backward_data with a bias: `want` is dx, and the sum of its rows is the bias's gradient. Two
 * calls add up. */
static void linear_backward_sums(struct case_run *run, const struct case_pair *q,
                                 struct hth_linear_back lin, struct hth_view dy, const double *want)
{
    uint32_t in = hth_weight_rows(q->w);
    struct case_pair bias = case_pair_new(run, 1, in, 1, 1);
    struct mat dx = mat_poison(run, dy.rows, in);
    double *db = case_zeros(in);
    lin.bias = bias.w;
    for (int round = 0; round < 2; round++) {
        case_ok(run, hth_linear_backward_data(run->ex, &lin, dy, dx.v), "backward_data, bias");
        case_check(run, "dx beside sums", &dx, want);
        for (size_t i = 0; i < (size_t)dy.rows * in; i++)
            db[i % in] += want[i];
        case_check_weight(run, "sums of dx", bias.w, HTH_PART_GRAD, db);
    }
    hth_free(db);
    mat_free(run, &dx);
    case_pair_free(&bias);
}

static void linear_backward(struct case_run *run, struct case_shape s)
{
    enum hth_act act = (enum hth_act)(s.c >> 1 & 3);
    bool residual = s.c & 8;
    struct case_pair q = case_pair_new(run, s.a, s.b, 1, s.b);
    struct mat x = mat_random(run, s.rows, s.a, 1), dy = mat_random(run, s.rows, s.b, 1);
    struct mat pre = mat_random(run, s.rows, s.a, 2), res = mat_random(run, s.rows, s.a, 1);
    struct mat dx = mat_poison(run, s.rows, s.a);
    double *want = case_zeros((size_t)s.rows * s.a), *dw = case_zeros((size_t)s.a * s.b),
           *db = case_zeros(s.b);
    struct hth_linear_back lin = {.w = q.w, .act = act, .pre = pre.v};
    if (residual)
        lin.residual = res.v;
    case_ok(run, hth_linear_backward_data(run->ex, &lin, dy.v, dx.v), "backward_data");
    struct twin_linear_back t = {x.twin, q.tw, dy.twin, want, dw, db};
    twin_linear_back((struct twin_dims){s.rows, s.a, s.b}, &t);
    for (size_t i = 0; i < (size_t)s.rows * s.a; i++) {
        want[i] = want[i] * (act == HTH_ACT_NONE ? 1 : twin_act_slope(act, pre.twin[i])) +
                  (residual ? res.twin[i] : 0);
    }
    case_check(run, "dx", &dx, want);
    /* Two calls add up; a third starts from zero. */
    for (int round = 0; round < 2; round++) {
        case_ok(run, hth_linear_backward_weight(run->ex, q.w, q.b, x.v, dy.v), "backward_weight");
        if (round == 1) {
            for (size_t i = 0; i < (size_t)s.a * s.b; i++)
                dw[i] *= 2;
            for (size_t i = 0; i < s.b; i++)
                db[i] *= 2;
        }
        case_check_weight(run, "dw", q.w, HTH_PART_GRAD, dw);
        case_check_weight(run, "db", q.b, HTH_PART_GRAD, db);
    }
    hth_params_zero_grads(q.p);
    case_ok(run, hth_linear_backward_weight(run->ex, q.w, NULL, x.v, dy.v), "backward_weight");
    for (size_t i = 0; i < (size_t)s.a * s.b; i++)
        dw[i] /= 2;
    memset(db, 0, s.b * sizeof(double));
    case_check_weight(run, "dw after zero_grads", q.w, HTH_PART_GRAD, dw);
    case_check_weight(run, "db after zero_grads", q.b, HTH_PART_GRAD, db);
    linear_backward_sums(run, &q, lin, dy.v, want);
    hth_free(want);
    hth_free(dw);
    hth_free(db);
    mat_free(run, &x);
    mat_free(run, &dy);
    mat_free(run, &pre);
    mat_free(run, &res);
    mat_free(run, &dx);
    case_pair_free(&q);
}

/* -- activation: rows, cols, act ----------------------------------------------------------- */

static void activation(struct case_run *run, struct case_shape s)
{
    enum hth_act act = (enum hth_act)s.b;
    size_t n = (size_t)s.rows * s.a;
    struct mat x = mat_random(run, s.rows, s.a, 6), dy = mat_random(run, s.rows, s.a, 1);
    struct mat y = mat_poison(run, s.rows, s.a), dx = mat_poison(run, s.rows, s.a);
    double *want = case_zeros(n), *dwant = case_zeros(n);
    for (size_t i = 0; i < n; i++) {
        want[i] = twin_act(act, x.twin[i]);
        dwant[i] = dy.twin[i] * (act == HTH_ACT_NONE ? 1 : twin_act_slope(act, x.twin[i]));
    }
    case_ok(run, hth_act_forward(run->ex, act, x.v, y.v), "act_forward");
    case_check(run, "y", &y, want);
    case_ok(run, hth_act_backward(run->ex, act, x.v, dy.v, dx.v), "act_backward");
    case_check(run, "dx", &dx, dwant);
    case_ok(run, hth_act_backward(run->ex, act, x.v, dy.v, dy.v), "act_backward in place");
    case_check(run, "dx in place", &dy, dwant);
    case_ok(run, hth_act_forward(run->ex, act, x.v, x.v), "act_forward in place");
    case_check(run, "y in place", &x, want);
    hth_free(want);
    hth_free(dwant);
    mat_free(run, &x);
    mat_free(run, &dy);
    mat_free(run, &y);
    mat_free(run, &dx);
}

/* -- layer norm: rows, d, residual --------------------------------------------------------- */

static void layernorm(struct case_run *run, struct case_shape s)
{
    struct case_pair q = case_pair_new(run, 1, s.a, s.a, 1);
    size_t n = (size_t)s.rows * s.a;
    struct mat x = mat_random(run, s.rows, s.a, 3), dy = mat_random(run, s.rows, s.a, 1);
    struct mat y = mat_poison(run, s.rows, s.a), dx = mat_poison(run, s.rows, s.a);
    struct mat stats = mat_poison(run, s.rows, 2), res = mat_random(run, s.rows, s.a, 1);
    double *want = case_zeros(n), *dg = case_zeros(s.a), *db = case_zeros(s.a),
           *want_stats = case_zeros(2 * s.rows);
    struct twin_norm t = {x.twin, q.tw, q.tb, (double)1e-5f, dg, db};
    struct hth_layernorm ln = {q.w, q.b, 1e-5f};
    case_ok(run, hth_layernorm_forward(run->ex, &ln, x.v, y.v, stats.v), "layernorm_forward");
    twin_layernorm(s.rows, s.a, &t, want);
    case_check(run, "y", &y, want);
    for (uint32_t r = 0; r < s.rows; r++) {
        double mean = 0, square = 0;
        for (uint32_t c = 0; c < s.a; c++)
            mean += x.twin[r * s.a + c] / s.a;
        for (uint32_t c = 0; c < s.a; c++)
            square += pow(x.twin[r * s.a + c] - mean, 2) / s.a;
        want_stats[2 * r] = mean;
        want_stats[2 * r + 1] = 1 / sqrt(square + (double)1e-5f);
    }
    case_check(run, "stats", &stats, want_stats);
    struct hth_layernorm_back back = {.gamma = q.w, .beta = q.b, .x = x.v, .stats = stats.v};
    if (s.b)
        back.residual = res.v;
    case_ok(run, hth_layernorm_backward(run->ex, &back, dy.v, dx.v), "layernorm_backward");
    twin_layernorm_back(s.rows, s.a, &t, dy.twin, want);
    for (size_t i = 0; i < n && s.b; i++)
        want[i] += res.twin[i];
    case_check(run, "dx", &dx, want);
    case_check_weight(run, "dgamma", q.w, HTH_PART_GRAD, dg);
    case_check_weight(run, "dbeta", q.b, HTH_PART_GRAD, db);
    twin_layernorm(s.rows, s.a, &t, want);
    case_ok(run, hth_layernorm_forward(run->ex, &ln, x.v, x.v, HTH_VIEW_NONE), "in place");
    case_check(run, "y in place", &x, want);
    hth_free(want);
    hth_free(dg);
    hth_free(db);
    hth_free(want_stats);
    mat_free(run, &x);
    mat_free(run, &dy);
    mat_free(run, &y);
    mat_free(run, &dx);
    mat_free(run, &stats);
    mat_free(run, &res);
    case_pair_free(&q);
}

/* -- softmax, cross-entropy: rows, cols ---------------------------------------------------- */

static void softmax(struct case_run *run, struct case_shape s)
{
    size_t n = (size_t)s.rows * s.a;
    struct mat x = mat_random(run, s.rows, s.a, 20), dy = mat_random(run, s.rows, s.a, 1);
    struct mat y = mat_poison(run, s.rows, s.a), dx = mat_poison(run, s.rows, s.a);
    double *want = case_zeros(n), *dwant = case_zeros(n);
    twin_softmax(s.rows, s.a, x.twin, want);
    twin_softmax_back(s.rows, s.a, want, dy.twin, dwant);
    case_ok(run, hth_softmax_forward(run->ex, x.v, y.v), "softmax_forward");
    case_check(run, "y", &y, want);
    case_ok(run, hth_softmax_backward(run->ex, y.v, dy.v, dx.v), "softmax_backward");
    if (s.a > 1) /* with one class the gradient is 0 but for rounding */
        case_check(run, "dx", &dx, dwant);
    hth_free(want);
    hth_free(dwant);
    mat_free(run, &x);
    mat_free(run, &dy);
    mat_free(run, &y);
    mat_free(run, &dx);
}

static void cross_entropy(struct case_run *run, struct case_shape s)
{
    size_t n = (size_t)s.rows * s.a;
    struct mat x = mat_random(run, s.rows, s.a, 9), labels = mat_indices(run, s.rows, s.a);
    struct mat dx = mat_poison(run, s.rows, s.a);
    double *want = case_zeros(n);
    int *ints = hth_calloc(s.rows, sizeof(int));
    for (uint32_t r = 0; r < s.rows; r++) {
        ints[r] = r % 5 == 4 ? HTH_LABEL_NONE : (int)labels.twin[r];
        mat_set_index(&labels, r, ints[r]);
    }
    mat_upload(run, &labels);
    uint32_t counted = 0, correct = 0;
    for (uint32_t r = 0; r < s.rows; r++) {
        uint32_t best = 0;
        for (uint32_t c = 1; c < s.a; c++)
            best = x.twin[r * s.a + c] > x.twin[r * s.a + best] ? c : best;
        counted += ints[r] >= 0;
        correct += ints[r] == (int)best;
    }
    double loss = twin_xent(s.rows, s.a, x.twin, ints, want);
    struct hth_xent_result result;
    float scale = 1.0f / 8;
    for (size_t i = 0; i < n; i++)
        want[i] *= (double)scale;
    case_ok(run, hth_xent(run->ex, x.v, labels.v, scale, dx.v, &result), "xent");
    if (s.a > 1)
        case_check(run, "dx", &dx, want);
    float got = (float)result.loss_sum;
    if (s.a > 1)
        case_check_floats(run, "loss", &got, &loss, 1);
    if (result.counted != counted || result.correct != correct)
        case_fail(run, "counted %u correct %u, not %u and %u", result.counted, result.correct,
                  counted, correct);
    case_ok(run, hth_xent(run->ex, x.v, labels.v, scale, HTH_VIEW_NONE, &result), "loss alone");
    case_ok(run, hth_xent(run->ex, x.v, labels.v, scale, x.v, &result), "xent in place");
    if (s.a > 1)
        case_check(run, "dx in place", &x, want);
    hth_free(want);
    hth_free(ints);
    mat_free(run, &x);
    mat_free(run, &labels);
    mat_free(run, &dx);
}

/* -- rows: rows, d, table ------------------------------------------------------------------ */

static void embedding(struct case_run *run, struct case_shape s)
{
    struct case_pair q = case_pair_new(run, s.b, s.a, 1, 1);
    struct mat tokens = mat_indices(run, s.rows, s.b), dy = mat_random(run, s.rows, s.a, 1);
    struct mat y = mat_poison(run, s.rows, s.a);
    double *want = case_zeros((size_t)s.rows * s.a), *dw = case_zeros((size_t)s.b * s.a);
    for (uint32_t r = 0; r < s.rows; r++) {
        for (uint32_t c = 0; c < s.a; c++) {
            size_t at = (size_t)tokens.twin[r] * s.a + c;
            want[r * s.a + c] = q.tw[at];
            dw[at] += dy.twin[r * s.a + c];
        }
    }
    case_ok(run, hth_embed_forward(run->ex, q.w, tokens.v, y.v), "embed_forward");
    case_check(run, "y", &y, want);
    case_ok(run, hth_embed_backward(run->ex, q.w, tokens.v, dy.v), "embed_backward");
    case_check_weight(run, "dw", q.w, HTH_PART_GRAD, dw);
    hth_free(want);
    hth_free(dw);
    mat_free(run, &tokens);
    mat_free(run, &dy);
    mat_free(run, &y);
    case_pair_free(&q);
}

static void gather_scatter(struct case_run *run, struct case_shape s)
{
    struct mat index = mat_indices(run, s.rows, s.b), table = mat_random(run, s.b, s.a, 1);
    struct mat dst = mat_poison(run, s.rows, s.a), weight = mat_random(run, s.rows, 1, 1);
    struct mat src = mat_random(run, s.rows, s.a, 1);
    double *want = case_zeros((size_t)s.rows * s.a), *sum = case_zeros((size_t)s.b * s.a);
    memcpy(sum, table.twin, (size_t)s.b * s.a * sizeof(double));
    for (uint32_t r = 0; r < s.rows; r++) {
        for (uint32_t c = 0; c < s.a; c++) {
            size_t at = (size_t)index.twin[r] * s.a + c;
            want[r * s.a + c] = table.twin[at];
            sum[at] += src.twin[r * s.a + c] * (weight.twin[r] + 1);
        }
    }
    case_ok(run, hth_gather_rows(run->ex, table.v, index.v, dst.v), "gather");
    case_check(run, "gathered", &dst, want);
    case_ok(run, hth_scatter_add_rows(run->ex, src.v, index.v, weight.v, table.v), "scatter");
    case_ok(run, hth_scatter_add_rows(run->ex, src.v, index.v, HTH_VIEW_NONE, table.v), "scatter");
    case_check(run, "scattered", &table, sum);
    hth_free(want);
    hth_free(sum);
    mat_free(run, &index);
    mat_free(run, &table);
    mat_free(run, &dst);
    mat_free(run, &weight);
    mat_free(run, &src);
}

/* -- elementwise: rows, cols --------------------------------------------------------------- */

static void elementwise(struct case_run *run, struct case_shape s)
{
    size_t n = (size_t)s.rows * s.a;
    struct mat a = mat_random(run, s.rows, s.a, 1), b = mat_random(run, s.rows, s.a, 1);
    struct mat y = mat_poison(run, s.rows, s.a);
    double *want = case_zeros(n), sum = 0;
    for (size_t i = 0; i < n; i++) {
        want[i] = 0.5 * a.twin[i] - 3 * b.twin[i];
        sum += b.twin[i] * b.twin[i];
    }
    case_ok(run, hth_combine(run->ex, 0.5f, a.v, -3, b.v, y.v), "combine");
    case_check(run, "0.5 a - 3 b", &y, want);
    struct hth_sumsq_result result;
    case_ok(run, hth_sumsq(run->ex, b.v, &result), "sumsq");
    if (!result.finite || fabs(result.sum - sum) > 1e-12 * sum)
        case_fail(run, "sum of squares %.17g, not %.17g", result.sum, sum);
    for (size_t i = 0; i < n; i++)
        want[i] = a.twin[i] * 0.25;
    case_ok(run, hth_combine(run->ex, 0.25f, a.v, 0, HTH_VIEW_NONE, a.v), "scale in place");
    case_check(run, "scaled", &a, want);
    for (size_t i = 0; i < n; i++)
        want[i] += b.twin[i];
    case_ok(run, hth_combine(run->ex, 1, a.v, 1, b.v, b.v), "add in place");
    case_check(run, "added", &b, want);
    for (size_t i = 0; i < n; i++)
        want[i] = -2.5;
    case_ok(run, hth_fill(run->ex, y.v, -2.5f), "fill");
    case_check(run, "filled", &y, want);
    hth_free(want);
    mat_free(run, &a);
    mat_free(run, &b);
    mat_free(run, &y);
}

/* -- int8 rows: rows, cols. test_quant.c tests the format; this compares its bytes by rows ---- */

static void int8_rows(struct case_run *run, struct case_shape s)
{
    uint32_t bytes = (uint32_t)hth_quant_bytes(HTH_QUANT_INT8, s.a), ld = bytes + 3;
    size_t all = (size_t)s.rows * ld;
    struct mat x = mat_random(run, s.rows, s.a, 3), y = mat_poison(run, s.rows, s.a);
    uint8_t *want = hth_calloc(all, 1), *got = hth_calloc(all, 1);
    uint8_t *there = hth_backend_alloc(run->be, all);
    struct hth_view q = {there, HTH_I8, s.rows, bytes, ld};
    double *back = case_zeros((size_t)s.rows * s.a);
    float *row = hth_calloc(s.a, sizeof(float));
    case_ok(run, hth_exec_upload(run->ex, there, want, all), "upload");
    case_ok(run, hth_cast(run->ex, x.v, q), "to int8");
    case_ok(run, hth_exec_download(run->ex, got, there, all), "download");
    case_ok(run, hth_cast(run->ex, q, y.v), "from int8");
    case_ok(run, hth_exec_sync(run->ex), "sync");
    for (uint32_t r = 0; r < s.rows; r++) {
        for (uint32_t c = 0; c < s.a; c++)
            row[c] = (float)x.twin[(size_t)r * s.a + c];
        case_ok(run, hth_quant_encode(HTH_QUANT_INT8, row, s.a, want + (size_t)r * ld), "encode");
        case_ok(run, hth_quant_decode(HTH_QUANT_INT8, want + (size_t)r * ld, bytes, s.a, row),
                "decode");
        for (uint32_t c = 0; c < s.a; c++)
            back[(size_t)r * s.a + c] = row[c];
    }
    if (memcmp(got, want, all) != 0)
        case_fail(run, "int8: wrong bytes in rows or between them");
    case_check(run, "from int8", &y, back);
    hth_backend_free(run->be, there);
    hth_free(want);
    hth_free(got);
    hth_free(back);
    hth_free(row);
    mat_free(run, &x);
    mat_free(run, &y);
}

/* -- the table ----------------------------------------------------------------------------- */

static const struct case_shape linear_shapes[] = {
    {1, 1, 1, 0},
    {1, 5, 3, 1},
    {3, 7, 16, 3},
    {7, 33, 65, 17},
    {17, 130, 257, 27},
    {17, 16, 8, 5},
    {64, 64, 512, 19},
    {3, 64, 512, 11},
    {1, 100, 330, 13},
    {7, 333, 101, 31},
    {33, 300, 300, 1},
    {2, 512, 70, 9},
    {5, 15, 4000, 1},
    {61, 4000, 15, 2},
    {5, 600, 20, 4},
    /* every small batch, odd sides; more than a chunk of K; more than a block of rows */
    {2, 31, 33, 1},
    {3, 45, 47, 8},
    {4, 17, 63, 3},
    {5, 129, 31, 24},
    {6, 77, 95, 2},
    {8, 47, 129, 27},
    {12, 33, 31, 3},
    {13, 1100, 37, 11},
    {25, 37, 1100, 8},
    {211, 65, 97, 27},
    {600, 39, 41, 1},
    {530, 26, 700, 3}, /* several column blocks that reuse the packed columns of x */
};
static const struct case_shape act_shapes[] = {
    {1, 1, HTH_ACT_GELU, 0},  {3, 7, HTH_ACT_GELU, 0},  {17, 130, HTH_ACT_GELU, 0},
    {7, 33, HTH_ACT_RELU, 0}, {2, 64, HTH_ACT_RELU, 0}, {3, 17, HTH_ACT_NONE, 0},
};
static const struct case_shape norm_shapes[] = {
    {3, 7, 0, 0}, {1, 33, 1, 0}, {17, 130, 1, 0}, {7, 64, 0, 0}, {2, 1024, 1, 0}, {5, 9, 0, 0},
};
static const struct case_shape class_shapes[] = {
    {1, 1, 0, 0}, {3, 7, 0, 0}, {17, 10, 0, 0}, {7, 33, 0, 0}, {5, 256, 0, 0}, {9, 1001, 0, 0},
};
static const struct case_shape tied_shapes[] = {
    {1, 3, 2, 0}, {5, 33, 16, 1}, {17, 130, 47, 1}, {70, 257, 64, 0}, {101, 40, 300, 1},
};
static const struct case_shape range_shapes[] = {{3, 4, 3, 0}, {17, 33, 65, 0}};
static const struct case_shape row_shapes[] = {
    {1, 1, 1, 0},
    {3, 7, 5, 0},
    {17, 33, 4, 0},
    {64, 130, 300, 0},
    /* more rows than a block has threads */
    {700, 33, 5, 0},
    {600, 70, 400, 0},
};
static const struct case_shape attention_shapes[] = {
    {1, 1, 1, 1},    {2, 3, 1, 2},    {1, 7, 3, 5},    {2, 17, 2, 8},
    {2, 65, 2, 6},   {3, 64, 1, 16},  {2, 130, 2, 32}, {2, 550, 1, 64},
    {1, 37, 1, 128}, {1, 19, 1, 200}, {2, 9, 1, 300},  {1, 9, 1, 512},
};
static const struct case_shape mask_shapes[] = {
    {2, 0, 2, 6}, {1, 1, 1, 8}, {2, 2, 1, 32}, {3, 3, 2, 12}, {1, 4, 3, 10}, {1, 5, 1, 14},
};
static const struct case_shape plain_shapes[] = {
    {1, 1, 0, 0},
    {3, 7, 0, 0},
    {17, 33, 0, 0},
    {2, 1000, 0, 0},
};
static const struct case_shape ffn_shapes[] = {
    {1, 9, 35, 0},   {3, 7, 28, 0},    {17, 33, 65, 0},
    {7, 64, 256, 0}, {5, 128, 512, 0}, {33, 96, 384, 0},
};
static const struct case_shape optim_shapes[] = {
    {1, 1, HTH_OPTIM_ADAM, 0},  {7, 13, HTH_OPTIM_ADAM, 1}, {33, 65, HTH_OPTIM_ADAMW, 1},
    {3, 5, HTH_OPTIM_ADAMW, 0}, {7, 13, HTH_OPTIM_SGD, 1},  {3, 17, HTH_OPTIM_SGD, 0},
    {3, 17, HTH_OPTIM_SGD, 2},  {16, 16, HTH_OPTIM_SGD, 3},
};

static const struct case_shape many_shapes[] = {
    {3, 7, 28, 4},
    {1, 9, 35, 2},
    {12, 40, 96, 7},
};
static const struct case_shape half_shapes[] = {
    {1, 700, 0, 0},
    {1, 701, 1, 0},
    {17, 33, 0, 0},
    {9, 64, 1, 0},
};
static const struct case_shape dropout_shapes[] = {
    {3, 7, 30, 0},
    {17, 33, 50, 0},
    {2, 1030, 10, 0},
    {5, 64, 0, 0},
};
static const struct case_shape lamb_shapes[] = {
    {1, 1, 0, 10},
    {33, 65, 0, 100},
    {7, 13, 5, 100},
    {129, 130, 100, 0}, /* several blocks of a tensor */
};
static const struct case_shape norm_of_shapes[] = {{3, 7, 0, 0}, {130, 257, 0, 0}};
static const struct case_shape bad_shapes[] = {{5, 3, 7, 0}, {70, 33, 40, 0}};
static const struct case_shape tblock_shapes[] = {
    {2, 5, 3, 4},
    {7, 1, 4, 5},
    {2, 33, 2, 16},
    {3, 19, 4, 5},
};

#define CASE(fn, shapes, products)                                                                 \
    {                                                                                              \
#fn, fn, shapes, HTH_ARRAY_LEN(shapes), products                                           \
    }

const struct kernel_case kernel_cases[] = {
    CASE(linear_forward, linear_shapes, true),
    CASE(linear_backward, linear_shapes, true),
    CASE(activation, act_shapes, false),
    CASE(case_geglu, class_shapes, false),
    CASE(case_scale, norm_shapes, false),
    CASE(case_tied, tied_shapes, true),
    CASE(case_ranges, range_shapes, false),
    CASE(layernorm, norm_shapes, false),
    CASE(softmax, class_shapes, false),
    CASE(cross_entropy, class_shapes, false),
    CASE(embedding, row_shapes, false),
    CASE(gather_scatter, row_shapes, false),
    CASE(case_attention, attention_shapes, false),
    CASE(case_mask, mask_shapes, false),
    CASE(elementwise, plain_shapes, false),
    CASE(case_ffn, ffn_shapes, true),
    CASE(case_optimiser, optim_shapes, false),
    CASE(int8_rows, plain_shapes, false),
    CASE(case_half, half_shapes, false),
    CASE(case_dropout, dropout_shapes, false),
    CASE(case_lamb, lamb_shapes, false),
    CASE(case_grad_norm, norm_of_shapes, false),
    CASE(case_bad_index, bad_shapes, false),
    CASE(case_tblock, tblock_shapes, false),
    CASE(case_ffn_many, many_shapes, false),
};
const size_t kernel_case_count = HTH_ARRAY_LEN(kernel_cases);
