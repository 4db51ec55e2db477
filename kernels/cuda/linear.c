/* SPDX-License-Identifier: Apache-2.0 */
/*
 * linear.c: linear layers over the GEMM library, and optimiser steps.
 *
 * With bf16 products a weight has one image: its values as bf16, row-major like the values, which
 * serves both passes (the library reads either side transposed). The optimiser updates it; a pass
 * that finds it stale rebuilds it. Activations are rounded in front of a product.
 */
#include "kernels/cuda/device.h"

#include <string.h>

enum hth_gpu_type hth_cu_type_of(const struct hth_exec *ex)
{
    switch (ex->be->compute) {
    case HTH_MATMUL_BF16:
        return HTH_GPU_BF16;
    case HTH_MATMUL_TF32:
        return HTH_GPU_TF32;
    default:
        return HTH_GPU_F32;
    }
}

/* -- operands ------------------------------------------------------------------------------ */

static size_t bf16_bytes(struct hth_view v)
{
    return hth_cu_cost((size_t)v.rows * ((v.cols + 7) / 8 * 8) * sizeof(uint16_t));
}

static int to_bf16(struct hth_cu_stream *s, const float *src, size_t ld, uint32_t rows,
                   uint32_t cols, uint16_t *dst, size_t ld_dst)
{
    const struct hth_cu_cast c = {.src = src,
                                  .dst = dst,
                                  .from = HTH_CU_F32,
                                  .to = HTH_CU_BF16,
                                  .rows = rows,
                                  .cols = cols,
                                  .ld_src = ld,
                                  .ld_dst = ld_dst};
    return hth_cu_cast(s->queue, &c);
}

/* The activation as an operand: itself, or rounded into the room at *at, which advances. */
static const void *operand(struct hth_cu_stream *s, enum hth_gpu_type type, struct hth_view v,
                           uint8_t **at, size_t *ld)
{
    *ld = v.ld;
    if (type != HTH_GPU_BF16)
        return v.data;
    uint16_t *dst = (uint16_t *)(void *)*at;
    *ld = (v.cols + 7) / 8 * 8;
    *at += bf16_bytes(v);
    hth_cu_check(s, to_bf16(s, v.data, v.ld, v.rows, v.cols, dst, *ld));
    return dst;
}

/* Another pass may be building the image. It is published when complete, so that a context with
 * another stream never reads part of it. */
static const void *image_of(struct hth_cu_stream *s, struct hth_weight *w)
{
    struct hth_image *image = &w->image[0];
    uint64_t version = w->owner->version;
    if (atomic_load_explicit(&image->version, memory_order_acquire) != version) {
        while (atomic_exchange_explicit(&image->busy, true, memory_order_acquire))
            continue;
        if (atomic_load_explicit(&image->version, memory_order_relaxed) != version) {
            hth_cu_check(s, to_bf16(s, w->value, w->cols, w->rows, w->cols, image->data, w->cols));
            hth_cu_check(s, s->dev->gpu->stream_sync(s->queue));
            atomic_store_explicit(&image->version, version, memory_order_release);
        }
        atomic_store_explicit(&image->busy, false, memory_order_release);
    }
    return image->data;
}

const void *hth_cu_weight_operand(struct hth_cu_stream *s, enum hth_gpu_type type,
                                  struct hth_weight *w)
{
    return type == HTH_GPU_BF16 ? image_of(s, w) : w->value;
}

/* True: the product with that end is launched; false: the library has none, and nothing was
 * done. */
static bool matmul(struct hth_cu_stream *s, struct hth_gpu_matmul *m, enum hth_gpu_end end)
{
    m->end = end;
    int err = s->dev->gpu->matmul(s->blas, s->queue, m);
    if (err == HTH_GPU_NO_FUSION && end != HTH_GPU_PLAIN)
        return false;
    hth_cu_check(s, err);
    return true;
}

/* -- the three products -------------------------------------------------------------------- */

enum hth_err hth_cu_bare_product(struct hth_exec *ex, struct hth_view a, struct hth_view b,
                                 struct hth_view c)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    struct hth_gpu_matmul m = {.form = HTH_GPU_NN,
                               .type = (int)hth_cu_type_of(ex),
                               .m = c.rows,
                               .n = c.cols,
                               .k = a.cols,
                               .a = a.data,
                               .b = b.data,
                               .c = c.data,
                               .lda = a.ld,
                               .ldb = b.ld,
                               .ldc = c.ld};
    (void)matmul(s, &m, HTH_GPU_PLAIN);
    return HTH_OK;
}

/* The end that the library may compute; PLAIN where our kernel is needed anyway. */
static enum hth_gpu_end forward_end(const struct hth_linear *lin)
{
    if (lin->bias == NULL || lin->residual.data != NULL)
        return HTH_GPU_PLAIN;
    if (lin->act == HTH_ACT_GELU)
        return HTH_GPU_BIAS_GELU;
    if (lin->pre.data != NULL)
        return HTH_GPU_PLAIN;
    return lin->act == HTH_ACT_RELU ? HTH_GPU_BIAS_RELU : HTH_GPU_BIAS;
}

enum hth_err hth_cu_linear_forward(struct hth_exec *ex, const struct hth_linear *lin,
                                   struct hth_view x, struct hth_view y)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    enum hth_gpu_type type = hth_cu_type_of(ex);
    uint8_t *at = type == HTH_GPU_BF16 ? hth_cu_room(s, bf16_bytes(x)) : NULL;
    if (type == HTH_GPU_BF16 && at == NULL)
        return HTH_E_NO_MEMORY;
    struct hth_gpu_matmul m = {.form = HTH_GPU_NN,
                               .type = type,
                               .m = x.rows,
                               .n = y.cols,
                               .k = x.cols,
                               .c = y.data,
                               .ldc = y.ld,
                               .ldb = lin->w->cols,
                               .bias = lin->bias != NULL ? lin->bias->value : NULL,
                               .aux = lin->pre.data,
                               .ld_aux = lin->pre.ld};
    m.b = hth_cu_weight_operand(s, type, lin->w);
    m.a = operand(s, type, x, &at, &m.lda);
    enum hth_gpu_end end = forward_end(lin);
    if (end != HTH_GPU_PLAIN && matmul(s, &m, end))
        return HTH_OK;
    (void)matmul(s, &m, HTH_GPU_PLAIN);
    const struct hth_cu_epilogue e = {m.bias, (int)lin->act, hth_cu_mat_of(lin->pre),
                                      hth_cu_mat_of(lin->residual)};
    if (e.bias == NULL && lin->act == HTH_ACT_NONE && e.pre.data == NULL && e.residual.data == NULL)
        return HTH_OK;
    return hth_cu_check(s, hth_cu_epilogue(s->queue, &e, hth_cu_mat_of(y)));
}

/* Adds the rows of dy to the gradient. It uses the stream's room, which the product in front of it
 * has left when the sums begin. */
static enum hth_err bias_grad(struct hth_cu_stream *s, struct hth_weight *bias, struct hth_view dy)
{
    float *room =
        (float *)(void *)hth_cu_room(s, (size_t)hth_cu_slabs(dy.rows) * dy.cols * sizeof(float));
    if (room == NULL)
        return HTH_E_NO_MEMORY;
    int err = hth_cu_column_sum(s->queue, hth_cu_mat_of(dy), !bias->grad_zero, room, bias->grad);
    bias->grad_zero = false;
    return hth_cu_check(s, err);
}

static enum hth_err backward_data(struct hth_cu_stream *s, struct hth_exec *ex,
                                  const struct hth_linear_back *lin, struct hth_view dy,
                                  struct hth_view dx)
{
    enum hth_gpu_type type = hth_cu_type_of(ex);
    uint8_t *at = type == HTH_GPU_BF16 ? hth_cu_room(s, bf16_bytes(dy)) : NULL;
    if (type == HTH_GPU_BF16 && at == NULL)
        return HTH_E_NO_MEMORY;
    struct hth_gpu_matmul m = {.form = HTH_GPU_NT,
                               .type = type,
                               .m = dy.rows,
                               .n = dx.cols,
                               .k = dy.cols,
                               .c = dx.data,
                               .ldc = dx.ld,
                               .ldb = lin->w->cols,
                               .aux = lin->pre.data,
                               .ld_aux = lin->pre.ld};
    m.b = hth_cu_weight_operand(s, type, lin->w);
    m.a = operand(s, type, dy, &at, &m.lda);
    bool residual = lin->residual.data != NULL;
    if (lin->act == HTH_ACT_GELU && !residual && matmul(s, &m, HTH_GPU_DGELU))
        return HTH_OK;
    (void)matmul(s, &m, HTH_GPU_PLAIN);
    if (lin->act == HTH_ACT_NONE && !residual)
        return HTH_OK;
    struct hth_cu_mat none = {0};
    return hth_cu_check(
        s, hth_cu_act_back(s->queue, (int)lin->act,
                           lin->act != HTH_ACT_NONE ? hth_cu_mat_of(lin->pre) : none,
                           hth_cu_mat_of(dx), hth_cu_mat_of(lin->residual), hth_cu_mat_of(dx)));
}

enum hth_err hth_cu_linear_backward_data(struct hth_exec *ex, const struct hth_linear_back *lin,
                                         struct hth_view dy, struct hth_view dx)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    HTH_TRY(backward_data(s, ex, lin, dy, dx));
    return lin->bias != NULL ? bias_grad(s, lin->bias, dx) : HTH_OK;
}

enum hth_err hth_cu_linear_backward_weight(struct hth_exec *ex, struct hth_weight *w,
                                           struct hth_weight *bias, struct hth_view x,
                                           struct hth_view dy)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    enum hth_gpu_type type = hth_cu_type_of(ex);
    size_t sums = hth_cu_cost((size_t)hth_cu_slabs(dy.rows) * dy.cols * sizeof(float));
    size_t rounded = type == HTH_GPU_BF16 ? bf16_bytes(x) + bf16_bytes(dy) : 0;
    uint8_t *at = hth_cu_room(s, HTH_MAX(sums, rounded));
    if (at == NULL)
        return HTH_E_NO_MEMORY;
    struct hth_gpu_matmul m = {.form = HTH_GPU_TN,
                               .type = type,
                               .m = x.cols,
                               .n = dy.cols,
                               .k = x.rows,
                               .c = w->grad,
                               .ldc = w->cols,
                               .accumulate = !w->grad_zero};
    m.a = operand(s, type, x, &at, &m.lda);
    m.b = operand(s, type, dy, &at, &m.ldb);
    (void)matmul(s, &m, HTH_GPU_PLAIN);
    w->grad_zero = false;
    return bias != NULL ? bias_grad(s, bias, dy) : HTH_OK;
}

/* -- optimiser steps ----------------------------------------------------------------------- */

static struct hth_cu_step step_base(const struct hth_params *p, const struct hth_step *b)
{
    return (struct hth_cu_step){
        .kind = b->kind == HTH_OPTIM_SGD    ? HTH_CU_SGD
                : b->kind == HTH_OPTIM_LAMB ? HTH_CU_LAMB
                                            : HTH_CU_ADAM,
        .decoupled = b->kind == HTH_OPTIM_ADAMW,
        .w = p->value,
        .m = p->slots > 0 ? p->state[0] : NULL,
        .v = p->slots > 1 ? p->state[1] : NULL,
        .g = p->grad,
        .grad_scale = b->grad_scale,
        .lr = b->lr,
        .momentum = b->momentum,
        .beta1 = b->beta1,
        .beta2 = b->beta2,
        .eps = b->eps,
        .bias1 = b->bias1,
        .bias2_sqrt = b->bias2_sqrt,
        .trust_max = b->trust_max,
    };
}

static void step_add(struct hth_cu_step *s, struct hth_weight *w, float decay, bool adapt)
{
    s->tensor[s->count++] = (struct hth_cu_tensor){
        .offset = w->offset,
        .count = (size_t)w->rows * w->cols,
        .image = w->image[0].data,
        .decay = decay,
        .adapt = adapt,
    };
}

static enum hth_err step_launch(struct hth_cu_stream *s, struct hth_cu_step *step)
{
    hth_cu_step_layout(step);
    size_t room = hth_cu_step_room(step);
    if (room > 0) {
        step->room = hth_cu_room(s, room);
        if (step->room == NULL)
            return HTH_E_NO_MEMORY;
    }
    return hth_cu_check(s, hth_cu_step(s->queue, step));
}

/* The values have their new version; updated images belong to it. */
static void image_emitted(struct hth_weight *w)
{
    if (w->image[0].data != NULL)
        atomic_store_explicit(&w->image[0].version, w->owner->version, memory_order_release);
}

enum hth_err hth_cu_step_all(struct hth_exec *ex, struct hth_params *p, const struct hth_step *base,
                             float weight_decay)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    for (uint32_t first = 0; first < p->count; first += HTH_CU_TENSORS) {
        struct hth_cu_step step = step_base(p, base);
        uint32_t end = HTH_MIN(p->count, first + HTH_CU_TENSORS);
        for (uint32_t i = first; i < end; i++) {
            struct hth_weight *w = p->weights[i];
            step_add(&step, w, w->no_decay ? 0 : weight_decay, !w->no_decay);
        }
        HTH_TRY(step_launch(s, &step));
        for (uint32_t i = first; i < end; i++)
            image_emitted(p->weights[i]);
    }
    return HTH_OK;
}

enum hth_err hth_cu_step_one(struct hth_exec *ex, struct hth_weight *w, const struct hth_step *one)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    struct hth_cu_step step = step_base(w->owner, one);
    step_add(&step, w, one->decay, one->adapt);
    HTH_TRY(step_launch(s, &step));
    image_emitted(w);
    return HTH_OK;
}
