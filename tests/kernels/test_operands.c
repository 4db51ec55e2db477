/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_operands.c: matrices in the type of the products' operands (hth_backend_operand), and
 * gradients of biases summed at the end of tiles: the bits are those of separate operations.
 *
 * Every matrix ends where its memory ends, with an unreadable page behind it.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <sys/mman.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/rng.h"
#include "kernels/ops.h"
#include "kernels/tables.h"
#include "support/suite.h"

static const struct hth_backend *backends[1 + HTH_PACKED_MAX];
static size_t backend_count;

static int setup(void **state)
{
    (void)state;
    backends[backend_count++] = hth_backend_ref();
    backend_count += test_tables(backends + 1);
    return 0;
}

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(int32_t)(hth_mix64(seed * 1000003 + i) >> 40) * 0x1p-22f - 2.0f;
}

/* -- matrices before a wall ---------------------------------------------------------------- */

struct mat {
    uint8_t *pages;
    size_t bytes;
    struct hth_view v;
};

static struct mat mat_new(enum hth_dtype dtype, uint32_t rows, uint32_t cols, uint32_t gap)
{
    struct mat m;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), ld = cols + gap;
    size_t data = ((rows - 1) * ld + cols) * hth_dtype_size(dtype);
    size_t inside = (data + page - 1) / page * page;
    m.bytes = inside + page;
    m.pages = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(m.pages != MAP_FAILED);
    assert_int_equal(mprotect(m.pages + inside, page, PROT_NONE), 0);
    m.v = (struct hth_view){m.pages + inside - data, dtype, rows, cols, (uint32_t)ld};
    return m;
}

static struct mat mat_random(uint32_t rows, uint32_t cols, uint64_t seed)
{
    struct mat m = mat_new(HTH_F32, rows, cols, 0);
    fill(m.v.data, (size_t)rows * cols, seed);
    return m;
}

/* The same numbers rounded, with a gap after each row. */
static struct mat mat_rounded(struct hth_exec *ex, const struct mat *from)
{
    struct mat m = mat_new(HTH_BF16, from->v.rows, from->v.cols, 3);
    assert_ok(hth_cast(ex, from->v, m.v));
    return m;
}

static void mat_free(struct mat *m)
{
    munmap(m->pages, m->bytes);
}

/* Compares row by row, without the gaps. */
static void assert_same(const char *what, const struct mat *a, const struct mat *b)
{
    size_t size = hth_dtype_size(a->v.dtype);
    assert_int_equal(a->v.dtype, b->v.dtype);
    for (size_t r = 0; r < a->v.rows; r++) {
        if (memcmp((uint8_t *)a->v.data + r * a->v.ld * size,
                   (uint8_t *)b->v.data + r * b->v.ld * size, a->v.cols * size) != 0)
            fail_msg("%s: row %zu of [%u, %u] differs", what, r, a->v.rows, a->v.cols);
    }
}

/* -- a layer ------------------------------------------------------------------------------- */

struct layer {
    struct hth_params *p;
    struct hth_weight *w, *b, *before; /* `before`: bias of the layer that makes the input */
    struct hth_exec *ex;
};

static struct layer layer_new(const struct hth_backend *be, uint32_t in, uint32_t out)
{
    struct layer l;
    struct hth_param_spec w = {.name = "w", .rows = in, .cols = out, .init = HTH_INIT_UNIFORM};
    struct hth_param_spec b = {.name = "b", .rows = 1, .cols = out, .init = HTH_INIT_UNIFORM};
    struct hth_param_spec before = {.name = "before", .rows = 1, .cols = in};
    struct hth_seal_options seal = {.seed = 5};
    assert_ok(hth_params_new(be, &l.p));
    assert_ok(hth_params_add(l.p, &w, &l.w));
    assert_ok(hth_params_add(l.p, &b, &l.b));
    assert_ok(hth_params_add(l.p, &before, &l.before));
    assert_ok(hth_params_seal(l.p, &seal));
    assert_ok(hth_exec_new(be, hth_linear_scratch(be, in, out), &l.ex));
    return l;
}

static void layer_free(struct layer *l)
{
    hth_exec_free(l->ex);
    hth_params_free(l->p);
}

static uint64_t grad_hash(struct layer *l)
{
    return hth_hash64(hth_params_flat(l->p, HTH_PART_GRAD),
                      hth_params_flat_len(l->p) * sizeof(float), 0);
}

static void check_forward(struct layer *l, enum hth_act act, const struct mat *x, uint32_t out)
{
    uint32_t rows = x->v.rows;
    struct mat y = mat_new(HTH_F32, rows, out, 0), pre = mat_new(HTH_F32, rows, out, 0);
    struct mat half = mat_new(HTH_BF16, rows, out, 1), half_pre = mat_new(HTH_BF16, rows, out, 2);
    struct mat res = mat_random(rows, out, 7), x2 = mat_rounded(l->ex, x);
    struct hth_linear lin = {.w = l->w, .bias = l->b, .act = act, .residual = res.v};
    lin.pre = pre.v;
    assert_ok(hth_linear_forward(l->ex, &lin, x->v, y.v));
    lin.pre = half_pre.v;
    assert_ok(hth_linear_forward(l->ex, &lin, x2.v, half.v));
    struct mat want = mat_rounded(l->ex, &y), want_pre = mat_rounded(l->ex, &pre);
    assert_same("y", &half, &want);
    assert_same("pre", &half_pre, &want_pre);
    struct mat *all[] = {&y, &pre, &half, &half_pre, &res, &x2, &want, &want_pre};
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        mat_free(all[i]);
}

/* Both methods take the slope from the same rounded pre; x and dx are of one shape. */
static void check_backward(struct layer *l, enum hth_act act, const struct mat *x,
                           const struct mat *dy)
{
    uint32_t rows = x->v.rows, in = x->v.cols;
    struct mat dx = mat_new(HTH_F32, rows, in, 0), half = mat_new(HTH_BF16, rows, in, 1);
    struct mat pre2 = mat_rounded(l->ex, x), dy2 = mat_rounded(l->ex, dy);
    struct mat pre = mat_new(HTH_F32, rows, in, 0);
    assert_ok(hth_cast(l->ex, pre2.v, pre.v));
    struct hth_linear_back back = {.w = l->w, .bias = l->before, .act = act, .pre = pre.v};
    hth_params_zero_grads(l->p);
    assert_ok(hth_linear_backward_data(l->ex, &back, dy->v, dx.v));
    assert_ok(hth_linear_backward_weight(l->ex, l->w, NULL, x->v, dy->v));
    uint64_t grads = grad_hash(l);
    back.pre = pre2.v;
    hth_params_zero_grads(l->p);
    assert_ok(hth_linear_backward_data(l->ex, &back, dy2.v, half.v));
    assert_ok(hth_linear_backward_weight(l->ex, l->w, NULL, pre2.v, dy2.v));
    assert_true(grad_hash(l) == grads);
    struct mat want = mat_rounded(l->ex, &dx);
    assert_same("dx", &half, &want);
    struct mat *all[] = {&dx, &half, &pre2, &dy2, &pre, &want};
    for (size_t i = 0; i < HTH_ARRAY_LEN(all); i++)
        mat_free(all[i]);
}

static const uint32_t shapes[][3] = {{1, 1, 1},     {3, 5, 33},    {7, 64, 31},
                                     {12, 131, 64}, {50, 96, 128}, {101, 1030, 70}};

TEST(operands_rounded_once_give_the_same_bits)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        if (hth_backend_operand(backends[k]) != HTH_BF16)
            continue;
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            uint32_t rows = shapes[s][0], in = shapes[s][1], out = shapes[s][2];
            struct layer l = layer_new(backends[k], in, out);
            struct mat x = mat_random(rows, in, 1), dy = mat_random(rows, out, 2);
            for (int act = HTH_ACT_NONE; act <= HTH_ACT_RELU; act++) {
                check_forward(&l, (enum hth_act)act, &x, out);
                check_backward(&l, (enum hth_act)act, &x, &dy);
            }
            mat_free(&x);
            mat_free(&dy);
            layer_free(&l);
        }
    }
}

/* The gradient of a bias summed at the end of tiles is the sum row by row, for any division of the
 * batch. */
TEST(bias_sums_are_in_row_order)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        for (size_t s = 0; s < HTH_ARRAY_LEN(shapes); s++) {
            uint32_t rows = shapes[s][0], in = shapes[s][1], out = shapes[s][2];
            struct layer l = layer_new(backends[k], in, out);
            struct mat pre = mat_random(rows, in, 1), dy = mat_random(rows, out, 2);
            struct mat dx = mat_new(HTH_F32, rows, in, 0);
            struct hth_linear_back back = {.w = l.w, .act = HTH_ACT_GELU, .pre = pre.v};
            float *want = hth_calloc(in, sizeof(float)), *got = hth_calloc(in, sizeof(float));
            assert_ok(hth_linear_backward_data(l.ex, &back, dy.v, dx.v));
            for (size_t i = 0; i < (size_t)rows * in; i++)
                want[i % in] += ((float *)dx.v.data)[i];
            back.bias = l.before;
            assert_ok(hth_linear_backward_data(l.ex, &back, dy.v, dx.v));
            assert_ok(hth_weight_export(l.ex, l.before, HTH_PART_GRAD, got));
            assert_memory_equal(got, want, in * sizeof(float));
            hth_params_zero_grads(l.p);
            for (uint32_t r = 0; r < rows; r++) {
                back.pre = hth_view_f32((float *)pre.v.data + (size_t)r * in, 1, in, in);
                assert_ok(hth_linear_backward_data(
                    l.ex, &back, hth_view_f32((float *)dy.v.data + (size_t)r * out, 1, out, out),
                    hth_view_f32(dx.v.data, 1, in, in)));
            }
            assert_ok(hth_weight_export(l.ex, l.before, HTH_PART_GRAD, got));
            assert_memory_equal(got, want, in * sizeof(float));
            hth_free(want);
            hth_free(got);
            mat_free(&pre);
            mat_free(&dy);
            mat_free(&dx);
            layer_free(&l);
        }
    }
}

/* A back end that does not round operands to bf16 refuses them, and none sums a bias from them. */
TEST(other_types_are_refused)
{
    (void)state;
    for (size_t k = 0; k < backend_count; k++) {
        struct layer l = layer_new(backends[k], 8, 16);
        bool takes = hth_backend_operand(backends[k]) == HTH_BF16;
        struct mat x = mat_random(4, 8, 1), dy = mat_random(4, 16, 2);
        struct mat x2 = mat_rounded(l.ex, &x), dy2 = mat_rounded(l.ex, &dy);
        struct hth_linear lin = {.w = l.w};
        struct hth_linear_back back = {.w = l.w};
        enum hth_err want = takes ? HTH_OK : HTH_E_BAD_SHAPE;
        assert_int_equal(hth_linear_forward(l.ex, &lin, x2.v, dy.v), want);
        assert_int_equal(hth_linear_forward(l.ex, &lin, x.v, dy2.v), want);
        assert_int_equal(hth_linear_backward_data(l.ex, &back, dy2.v, x.v), want);
        assert_int_equal(hth_linear_backward_data(l.ex, &back, dy.v, x2.v), want);
        assert_int_equal(hth_linear_backward_weight(l.ex, l.w, NULL, x.v, dy2.v), want);
        assert_int_equal(hth_linear_backward_weight(l.ex, l.w, NULL, x2.v, dy.v), want);
        assert_err(HTH_E_BAD_SHAPE, hth_linear_backward_weight(l.ex, l.w, l.b, x.v, dy2.v));
        back.bias = l.b; /* of the output's side */
        assert_err(HTH_E_BAD_SHAPE, hth_linear_backward_data(l.ex, &back, dy.v, x.v));
        dy2.v.dtype = HTH_F16;
        assert_err(HTH_E_BAD_SHAPE, hth_linear_backward_data(l.ex, &back, dy2.v, x.v));
        mat_free(&x);
        mat_free(&dy);
        mat_free(&x2);
        mat_free(&dy2);
        layer_free(&l);
    }
}

SUITE_WITH(setup, NULL)
