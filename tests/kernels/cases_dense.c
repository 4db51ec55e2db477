/* SPDX-License-Identifier: Apache-2.0 */
/* cases_dense.c: cases of the operations of dense layers: GEGLU, layer scale, tied outputs. */
#include "kernels/cases.h"

#include "core/mem.h"
#include "kernels/twin64.h"

/* True if the back end has these operations; else `err` must say that it has not. */
static bool has(struct case_run *run, enum hth_err err)
{
    if (hth_backend_caps(run->be) & HTH_CAP_DENSE) {
        case_ok(run, err, "an operation of dense layers");
        return true;
    }
    case_refused(run, err, HTH_E_UNSUPPORTED, "an operation of dense layers");
    return false;
}

/* -- rows, h ------------------------------------------------------------------------------- */

void case_geglu(struct case_run *run, struct case_shape s)
{
    struct mat x = mat_random(run, s.rows, 2 * s.a, 4), dy = mat_random(run, s.rows, s.a, 1);
    struct mat y = mat_poison(run, s.rows, s.a), dx = mat_poison(run, s.rows, 2 * s.a);
    double *want = case_zeros((size_t)s.rows * s.a), *dwant = case_zeros((size_t)s.rows * 2 * s.a);
    twin_geglu(s.rows, s.a, x.twin, want);
    twin_geglu_back(s.rows, s.a, x.twin, dy.twin, dwant);
    if (has(run, hth_geglu_forward(run->ex, x.v, y.v)))
        case_check(run, "y", &y, want);
    if (has(run, hth_geglu_backward(run->ex, x.v, dy.v, dx.v)))
        case_check(run, "dx", &dx, dwant);
    if (has(run, hth_geglu_backward(run->ex, x.v, dy.v, x.v)))
        case_check(run, "dx in place", &x, dwant);
    hth_free(want);
    hth_free(dwant);
    mat_free(run, &x);
    mat_free(run, &dy);
    mat_free(run, &y);
    mat_free(run, &dx);
}

/* -- rows, d, with residual ---------------------------------------------------------------- */

void case_scale(struct case_run *run, struct case_shape s)
{
    size_t n = (size_t)s.rows * s.a;
    struct case_pair q = case_pair_new(run, 1, s.a, 1, 1);
    struct mat x = mat_random(run, s.rows, s.a, 1), dy = mat_random(run, s.rows, s.a, 1);
    struct mat y = mat_poison(run, s.rows, s.a), res = mat_random(run, s.rows, s.a, 1);
    double *want = case_zeros(n), *dwant = case_zeros(n), *dscale = case_zeros(s.a);
    twin_scale(s.rows, s.a, x.twin, q.tw, want);
    for (size_t i = 0; i < n && s.b; i++)
        want[i] += res.twin[i];
    struct hth_view residual = s.b ? res.v : HTH_VIEW_NONE;
    if (has(run, hth_scale_forward(run->ex, q.w, x.v, residual, y.v)))
        case_check(run, "y", &y, want);
    const struct twin_scale_back t = {x.twin, q.tw, dy.twin, dwant, dscale};
    for (int round = 0; round < 2; round++) { /* two calls add up */
        twin_scale_back(s.rows, s.a, &t);
        if (has(run, hth_scale_backward(run->ex, q.w, x.v, dy.v, y.v))) {
            case_check(run, "dx", &y, dwant);
            case_check_weight(run, "dscale", q.w, HTH_PART_GRAD, dscale);
        }
    }
    if (has(run, hth_scale_forward(run->ex, q.w, x.v, residual, x.v)))
        case_check(run, "y in place", &x, want);
    if (has(run, hth_scale_backward(run->ex, q.w, x.v, dy.v, dy.v)))
        case_check(run, "dx in place", &dy, dwant);
    hth_free(want);
    hth_free(dwant);
    hth_free(dscale);
    mat_free(run, &x);
    mat_free(run, &dy);
    mat_free(run, &y);
    mat_free(run, &res);
    case_pair_free(&q);
}

/* -- rows, classes, d, with bias ----------------------------------------------------------- */

/* The table turned around: [d, classes]. */
static double *turned(const double *w, uint32_t classes, uint32_t d)
{
    double *out = case_zeros((size_t)classes * d);
    for (size_t i = 0; i < (size_t)classes * d; i++)
        out[i % d * classes + i / d] = w[i];
    return out;
}

static void tied_back(struct case_run *run, const struct hth_tied *tied, struct case_shape s,
                      const struct twin_linear_back *t, const struct mat *x, const struct mat *dy)
{
    struct mat dx = mat_poison(run, s.rows, s.b);
    for (int round = 0; round < 2; round++) { /* two calls add up */
        twin_linear_back((struct twin_dims){s.rows, s.b, s.a}, t);
        if (!has(run, hth_tied_backward(run->ex, tied, x->v, dy->v, dx.v)))
            continue;
        double *dw = turned(t->dw, s.b, s.a);
        case_check(run, "dx", &dx, t->dx);
        case_check_weight(run, "dw", tied->w, HTH_PART_GRAD, dw);
        if (tied->bias != NULL)
            case_check_weight(run, "db", tied->bias, HTH_PART_GRAD, t->db);
        hth_free(dw);
    }
    mat_free(run, &dx);
}

void case_tied(struct case_run *run, struct case_shape s)
{
    struct case_pair q = case_pair_new(run, s.a, s.b, 1, s.a);
    const struct hth_tied tied = {q.w, s.c ? q.b : NULL};
    struct mat x = mat_random(run, s.rows, s.b, 1), dy = mat_random(run, s.rows, s.a, 1);
    struct mat y = mat_poison(run, s.rows, s.a);
    double *w = turned(q.tw, s.a, s.b), *want = case_zeros((size_t)s.rows * s.a);
    double *dw = case_zeros((size_t)s.a * s.b), *db = case_zeros(s.a);
    double *dx = case_zeros((size_t)s.rows * s.b);
    twin_linear((struct twin_dims){s.rows, s.b, s.a}, x.twin, w, s.c ? q.tb : NULL, want);
    if (has(run, hth_tied_forward(run->ex, &tied, x.v, y.v)))
        case_check(run, "y", &y, want);
    const struct twin_linear_back t = {x.twin, w, dy.twin, dx, dw, db};
    tied_back(run, &tied, s, &t, &x, &dy);
    hth_free(w);
    hth_free(want);
    hth_free(dw);
    hth_free(db);
    hth_free(dx);
    mat_free(run, &x);
    mat_free(run, &dy);
    mat_free(run, &y);
    case_pair_free(&q);
}

/* -- rows, classes of a first and a second range ------------------------------------------- */

/* The labels of one range in the copy for the back end and for the twin: even rows have one of the
 * first range, odd rows one of the second. */
static void range_labels(struct mat *labels, uint32_t rows, uint32_t odd, uint32_t classes,
                         int *twin)
{
    for (uint32_t r = 0; r < rows; r++) {
        twin[r] = r % 2 == odd ? (int)((r * 7 + 1) % classes) : HTH_LABEL_NONE;
        mat_set_index(labels, r, twin[r]);
    }
}

void case_ranges(struct case_run *run, struct case_shape s)
{
    uint32_t all = s.a + s.b;
    struct mat x = mat_random(run, s.rows, all, 3), labels = mat_indices(run, s.rows, 1);
    struct mat dx = mat_poison(run, s.rows, all);
    double *want = case_zeros((size_t)s.rows * all), *in = case_zeros((size_t)s.rows * all);
    double *part = case_zeros((size_t)s.rows * all);
    int *twin = hth_calloc(s.rows, sizeof(int));
    for (uint32_t second = 0; second < 2; second++) {
        uint32_t first = second ? s.a : 0, cols = second ? s.b : s.a;
        struct hth_xent_result result;
        struct hth_view from = x.v, to = dx.v;
        range_labels(&labels, s.rows, second, cols, twin);
        mat_upload(run, &labels);
        for (size_t i = 0; i < (size_t)s.rows * cols; i++)
            in[i] = x.twin[i / cols * all + first + i % cols];
        double loss = twin_xent(s.rows, cols, in, twin, part);
        for (size_t i = 0; i < (size_t)s.rows * cols; i++)
            want[i / cols * all + first + i % cols] = part[i];
        from.data = (float *)from.data + first;
        to.data = (float *)to.data + first;
        from.cols = to.cols = cols;
        case_ok(run, hth_xent(run->ex, from, labels.v, 1, to, &result), "xent of a range");
        case_ok(run, hth_exec_sync(run->ex), "sync");
        float got = (float)result.loss_sum;
        case_check_floats(run, "loss", &got, &loss, 1);
    }
    case_check(run, "dx", &dx, want);
    hth_free(want);
    hth_free(in);
    hth_free(part);
    hth_free(twin);
    mat_free(run, &x);
    mat_free(run, &labels);
    mat_free(run, &dx);
}
