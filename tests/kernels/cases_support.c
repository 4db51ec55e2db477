/* SPDX-License-Identifier: Apache-2.0 */
/* cases_support.c: matrices with guards, comparisons, and the runner of cases.h. */
#include "kernels/cases.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"

#define GUARD      16                   /* floats before and after a matrix */
#define GUARD_BITS UINT32_C(0x7fc0dead) /* a NaN that no arithmetic makes */

static float guard_value(void)
{
    uint32_t bits = GUARD_BITS;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static bool is_guard(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits == GUARD_BITS;
}

void case_fail(struct case_run *run, const char *format, ...)
{
    if (run->error[0] != '\0')
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(run->error, sizeof(run->error), format, args);
    va_end(args);
}

void case_ok(struct case_run *run, enum hth_err err, const char *what)
{
    if (err == HTH_OK)
        err = hth_exec_sync(run->ex);
    if (err != HTH_OK)
        case_fail(run, "%s: %s", what, hth_err_name(err));
}

void case_refused(struct case_run *run, enum hth_err err, enum hth_err want, const char *what)
{
    if (err == HTH_OK)
        err = hth_exec_sync(run->ex);
    if (err != want)
        case_fail(run, "%s: %s, not %s", what, hth_err_name(err), hth_err_name(want));
    case_ok(run, HTH_OK, "after a refusal");
}

static struct mat mat_new(struct case_run *run, uint32_t rows, uint32_t cols)
{
    struct mat m;
    uint32_t ld = cols + 1 + rows % 3; /* a gap after each row, often misaligned */
    m.floats = (size_t)rows * ld + 2 * GUARD;
    m.host = hth_calloc(m.floats, sizeof(float));
    m.twin = hth_calloc((size_t)rows * cols, sizeof(double));
    m.device = hth_backend_alloc(run->be, m.floats * sizeof(float));
    HTH_ASSERT(m.device != NULL);
    for (size_t i = 0; i < m.floats; i++)
        m.host[i] = guard_value();
    m.v = hth_view_f32((float *)m.device + GUARD, rows, cols, ld);
    return m;
}

void mat_upload(struct case_run *run, struct mat *m)
{
    for (uint32_t r = 0; r < m->v.rows; r++) {
        for (uint32_t c = 0; c < m->v.cols; c++) {
            const float *from = &m->host[GUARD + (size_t)r * m->v.ld + c];
            int32_t index;
            memcpy(&index, from, sizeof(index));
            m->twin[(size_t)r * m->v.cols + c] =
                m->v.dtype == HTH_I32 ? (double)index : (double)*from;
        }
    }
    case_ok(run, hth_exec_upload(run->ex, m->device, m->host, m->floats * sizeof(float)), "upload");
}

/* x, or in a run with shaken inputs a number near x; the same for the same seed. */
static float shaken(struct case_run *run, float x)
{
    if (run->shake == 0)
        return x;
    uint64_t word = hth_mix64(run->shook++ ^ hth_mix64(run->seed));
    return (float)((double)x * (1 + run->shake * ((double)(word >> 11) * 0x1p-52 - 1)));
}

struct mat mat_random(struct case_run *run, uint32_t rows, uint32_t cols, float scale)
{
    struct mat m = mat_new(run, rows, cols);
    uint64_t key = hth_mix64(run->seed++);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++) {
            uint64_t word = hth_mix64(key + (uint64_t)r * cols + c);
            m.host[GUARD + (size_t)r * m.v.ld + c] =
                shaken(run, ((float)(int32_t)(word >> 40) * 0x1p-23f - 1.0f) * scale);
        }
    }
    mat_upload(run, &m);
    return m;
}

struct mat mat_poison(struct case_run *run, uint32_t rows, uint32_t cols)
{
    struct mat m = mat_new(run, rows, cols);
    mat_upload(run, &m);
    return m;
}

struct mat mat_indices(struct case_run *run, uint32_t rows, uint32_t bound)
{
    struct mat m = mat_new(run, rows, 1);
    uint64_t key = hth_mix64(run->seed++);
    m.v.dtype = HTH_I32;
    for (uint32_t r = 0; r < rows; r++)
        mat_set_index(&m, r, (int32_t)(hth_mix64(key + r) % bound));
    mat_upload(run, &m);
    return m;
}

void mat_set(struct mat *m, uint32_t row, uint32_t col, float value)
{
    m->host[GUARD + (size_t)row * m->v.ld + col] = value;
}

float mat_get(const struct mat *m, uint32_t row, uint32_t col)
{
    return m->host[GUARD + (size_t)row * m->v.ld + col];
}

void mat_set_index(struct mat *m, uint32_t row, int32_t index)
{
    memcpy(&m->host[GUARD + (size_t)row * m->v.ld], &index, sizeof(index));
}

void mat_free(struct case_run *run, struct mat *m)
{
    hth_free(m->host);
    hth_free(m->twin);
    hth_backend_free(run->be, m->device);
}

/* ||a - b|| / ||b||, and the worst element for the message. */
static double distance(const float *a, const double *b, size_t n, size_t *worst)
{
    double diff = 0, norm = 0, most = -1;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= most)) { /* NaN counts as worst */
            most = d;
            *worst = i;
        }
        diff += d * d;
        norm += b[i] * b[i];
    }
    double rel = sqrt(diff / (norm > 0 ? norm : 1));
    return isnan(rel) ? INFINITY : rel;
}

static void against(struct case_run *run, const char *what, const char *whom, const float *got,
                    const double *want, size_t n)
{
    size_t worst = 0;
    double rel = distance(got, want, n, &worst);
    if (!(rel <= run->tolerance)) {
        case_fail(run, "%s: off %s by %.2e of its norm; element %zu of %zu is %.9g, not %.9g", what,
                  whom, rel, worst, n, (double)got[worst], want[worst]);
    }
}

void case_check_floats(struct case_run *run, const char *what, const float *got, const double *want,
                       size_t count)
{
    against(run, what, "float64", got, want, count);
    if (run->recording) {
        if (run->kept_count == run->kept_cap) {
            run->kept_cap = run->kept_cap > 0 ? 2 * run->kept_cap : 16;
            run->kept = hth_realloc(run->kept, run->kept_cap, sizeof(run->kept[0]));
        }
        struct case_output out = {hth_calloc(count, sizeof(float)), count};
        memcpy(out.data, got, count * sizeof(float));
        run->kept[run->kept_count++] = out;
        return;
    }
    if (run->next >= run->kept_count || run->kept[run->next].count != count) {
        case_fail(run, "%s: ref gave no such output", what);
        return;
    }
    const float *ref = run->kept[run->next++].data;
    double *wide = hth_calloc(count, sizeof(double));
    size_t worst = 0;
    for (size_t i = 0; i < count; i++)
        wide[i] = (double)ref[i];
    if (run->shake > 0)
        run->moved = fmax(run->moved, distance(got, wide, count, &worst));
    else
        against(run, what, "ref", got, wide, count);
    hth_free(wide);
}

void mat_download(struct case_run *run, struct mat *m, const char *what)
{
    case_ok(run, hth_exec_download(run->ex, m->host, m->device, m->floats * sizeof(float)), what);
    for (size_t i = 0; i < m->floats; i++) {
        size_t at = i - GUARD, row = at / m->v.ld, col = at % m->v.ld;
        bool inside = i >= GUARD && row < m->v.rows && col < m->v.cols;
        if (!inside && !is_guard(m->host[i]))
            case_fail(run, "%s: wrote outside at float %zu", what, i);
    }
}

void case_check(struct case_run *run, const char *what, struct mat *m, const double *want)
{
    size_t cols = m->v.cols, count = (size_t)m->v.rows * cols;
    float *dense = hth_calloc(count, sizeof(float));
    mat_download(run, m, what);
    for (size_t i = 0; i < count; i++)
        dense[i] = mat_get(m, (uint32_t)(i / cols), (uint32_t)(i % cols));
    case_check_floats(run, what, dense, want, count);
    hth_free(dense);
}

double *twin_of_weight(struct case_run *run, struct hth_weight *w, enum hth_part part)
{
    size_t count = (size_t)hth_weight_rows(w) * hth_weight_cols(w);
    float *values = hth_calloc(count, sizeof(float));
    double *twin = hth_calloc(count, sizeof(double));
    case_ok(run, hth_weight_export(run->ex, w, part, values), "export");
    for (size_t i = 0; i < count; i++) {
        values[i] = shaken(run, values[i]);
        twin[i] = (double)values[i];
    }
    if (run->shake > 0)
        case_ok(run, hth_weight_import(run->ex, w, part, values), "import");
    hth_free(values);
    return twin;
}

void case_check_weight(struct case_run *run, const char *what, struct hth_weight *w,
                       enum hth_part part, const double *want)
{
    size_t count = (size_t)hth_weight_rows(w) * hth_weight_cols(w);
    float *values = hth_calloc(count, sizeof(float));
    case_ok(run, hth_weight_export(run->ex, w, part, values), what);
    case_check_floats(run, what, values, want, count);
    hth_free(values);
}

double *case_zeros(size_t n)
{
    return hth_calloc(n, sizeof(double));
}

struct case_pair case_pair_new(struct case_run *run, uint32_t rows, uint32_t cols, uint32_t rows2,
                               uint32_t cols2)
{
    struct case_pair q = {0};
    struct hth_param_spec w = {.name = "w", .rows = rows, .cols = cols, .init = HTH_INIT_UNIFORM};
    struct hth_param_spec b = {.name = "b", .rows = rows2, .cols = cols2, .init = HTH_INIT_UNIFORM};
    struct hth_seal_options seal = {.seed = run->seed++, .state_slots = 2};
    case_ok(run, hth_params_new(run->be, &q.p), "params");
    case_ok(run, hth_params_add(q.p, &w, &q.w), "add");
    case_ok(run, hth_params_add(q.p, &b, &q.b), "add");
    case_ok(run, hth_params_seal(q.p, &seal), "seal");
    q.tw = twin_of_weight(run, q.w, HTH_PART_VALUE);
    q.tb = twin_of_weight(run, q.b, HTH_PART_VALUE);
    return q;
}

void case_pair_free(struct case_pair *q)
{
    hth_params_free(q->p);
    hth_free(q->tw);
    hth_free(q->tb);
}

#define CASE_SCRATCH ((size_t)24 << 20)

static void run_on(struct case_run *run, const struct kernel_case *kase, struct case_shape shape,
                   const struct hth_backend *be, uint64_t seed)
{
    run->be = be;
    run->seed = seed;
    bool is_ref = be == hth_backend_ref();
    run->ex = is_ref ? run->ref : NULL;
    enum hth_err err = run->ex != NULL ? HTH_OK : hth_exec_new(be, CASE_SCRATCH, &run->ex);
    if (err != HTH_OK) {
        case_fail(run, "exec: %s", hth_err_name(err));
        return;
    }
    kase->run(run, shape);
    if (is_ref)
        run->ref = run->ex;
    else
        hth_exec_free(run->ex);
}

static void forget_kept(struct case_run *run)
{
    for (size_t i = 0; i < run->kept_count; i++)
        hth_free(run->kept[i].data);
    run->kept_count = run->next = 0;
}

/* Half the relative distance of neighbouring operands; 0: they are not rounded. */
static double rounding_of(const struct hth_backend *be)
{
    switch (hth_backend_compute(be)) {
    case HTH_MATMUL_TF32:
        return 0x1p-11;
    case HTH_MATMUL_BF16:
        return 0x1p-9;
    default:
        return 0;
    }
}

#define DRAWS      60
#define SHAKES     6
#define SMALL_CASE 600u /* operations; in larger cases cancellation weighs little */

/* The change of an output by errors of `u` in the inputs alone, relative to its norm. It stops at
 * the first draw beyond `enough`. */
static double moved_by_rounding(struct case_run *run, const struct kernel_case *kase,
                                struct case_shape shape, uint64_t seed, double u, double enough)
{
    run->recording = false;
    run->moved = 0;
    run->shake = u;
    run->shook = 0;
    for (int i = 0; i < SHAKES && run->moved <= enough; i++) {
        run->next = 0;
        run_on(run, kase, shape, hth_backend_ref(), seed);
    }
    run->shake = 0;
    return run->moved;
}

static void record(struct case_run *run, const struct kernel_case *kase, struct case_shape shape,
                   uint64_t seed)
{
    forget_kept(run);
    run->recording = true;
    run_on(run, kase, shape, hth_backend_ref(), seed);
}

/* Records ref's outputs for inputs that can test `be`; returns their seed. If rounding moves all
 * draws too much, it takes the least moved one. */
static uint64_t record_well(struct case_run *run, const struct kernel_case *kase,
                            struct case_shape shape, const struct hth_backend *be, uint64_t seed)
{
    double u = rounding_of(be), least = INFINITY, enough = fmax(run->tolerance / 4, u);
    bool small = (uint64_t)shape.rows * shape.a * HTH_MAX(shape.b, 1u) <= SMALL_CASE;
    uint64_t best = seed;
    for (int i = 0; u > 0 && kase->products && small && i < DRAWS && least > enough; i++) {
        record(run, kase, shape, seed);
        if (run->error[0] != '\0')
            return seed;
        double moved = moved_by_rounding(run, kase, shape, seed, u, least);
        if (moved < least) {
            least = moved;
            best = seed;
        }
        seed = hth_mix64(seed);
    }
    record(run, kase, shape, best);
    return best;
}

const char *kernel_case_run(const struct kernel_case *kase, struct case_shape shape,
                            const struct hth_backend *be, double tolerance, uint64_t seed)
{
    static char text[400];
    struct case_run run = {.tolerance = tolerance};
    seed = record_well(&run, kase, shape, be, seed);
    if (be != hth_backend_ref() && run.error[0] == '\0') {
        run.recording = false;
        run_on(&run, kase, shape, be, seed);
    }
    forget_kept(&run);
    hth_free(run.kept);
    hth_exec_free(run.ref);
    if (run.error[0] == '\0')
        return NULL;
    snprintf(text, sizeof(text), "%s (%u, %u, %u, %u) on %s: %s", kase->name, shape.rows, shape.a,
             shape.b, shape.c, run.recording ? "ref" : hth_backend_name(be), run.error);
    return text;
}
