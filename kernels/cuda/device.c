/* SPDX-License-Identifier: Apache-2.0 */
/* device.c: the table of a card: each operation as launches on the context's stream. */
#include "kernels/cuda/device.h"

#include <stdio.h>
#include <string.h>

#include "core/rng.h"
#include "kernels/cuda/kernels.h"
#include "kernels/plugin.h"

#define ATTENTION_ROOM(rows, heads) hth_cu_cost((size_t)(rows) * (heads) * sizeof(float))

/* -- memory -------------------------------------------------------------------------------- */

void *hth_cu_take(struct hth_cu_device *dev, size_t bytes)
{
    void *p = hth_pool_take(&dev->pool, bytes);
    while (p == NULL && hth_resident_make_room(&dev->resident, bytes))
        p = hth_pool_take(&dev->pool, bytes);
    return p;
}

int hth_cu_quiet(struct hth_cu_device *dev)
{
    while (atomic_flag_test_and_set_explicit(&dev->whole, memory_order_acquire))
        continue;
    int err = dev->gpu->device_sync();
    atomic_flag_clear_explicit(&dev->whole, memory_order_release);
    return err;
}

static void *dev_alloc(const struct hth_backend *be, size_t bytes)
{
    struct hth_cu_device *dev = hth_cu_device_of(be);
    if (dev->gpu->use(dev->index) != 0)
        return NULL;
    return hth_cu_take(dev, bytes);
}

/* Frees memory after a wait: no stream may still use it when it is reused. */
static void dev_free(const struct hth_backend *be, void *p)
{
    struct hth_cu_device *dev = hth_cu_device_of(be);
    (void)dev->gpu->use(dev->index);
    (void)hth_cu_quiet(dev);
    (void)hth_pool_give(&dev->pool, p);
}

static enum hth_err dev_init(const struct hth_backend *be, const struct hth_init_args *args)
{
    struct hth_cu_device *dev = hth_cu_device_of(be);
    const struct hth_gpu *gpu = dev->gpu;
    /* Like cpu.c: initial values share no random numbers with dropout. */
    uint64_t seed = hth_mix64(args->seed ^ UINT64_C(0x696e697469616c73));
    struct hth_cu_init a = {.dst = args->dst,
                            .count = args->count,
                            .kind = args->init == HTH_INIT_ZEROS     ? 0
                                    : args->init == HTH_INIT_ONES    ? 1
                                    : args->init == HTH_INIT_UNIFORM ? 2
                                                                     : 3,
                            .scale = args->scale,
                            .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                            .tensor = args->tensor,
                            .stream_word = args->stream};
    /* A stream may still read the memory to be overwritten. */
    if (gpu->use(dev->index) != 0 || hth_cu_quiet(dev) != 0 || hth_cu_init(dev->queue, &a) != 0 ||
        gpu->stream_sync(dev->queue) != 0)
        return HTH_E_DEVICE;
    return HTH_OK;
}

/* -- rows ---------------------------------------------------------------------------------- */

static enum hth_err dev_act_forward(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                                    struct hth_view y)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    return hth_cu_check(s, hth_cu_act(s->queue, (int)act, hth_cu_mat_of(x), hth_cu_mat_of(y)));
}

static enum hth_err dev_act_backward(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                                     struct hth_view dy, struct hth_view dx)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    struct hth_cu_mat none = {0};
    return hth_cu_check(s, hth_cu_act_back(s->queue, (int)act, hth_cu_mat_of(x), hth_cu_mat_of(dy),
                                           none, hth_cu_mat_of(dx)));
}

static enum hth_err dev_layernorm_forward(struct hth_exec *ex, const struct hth_layernorm *ln,
                                          struct hth_view x, struct hth_view y,
                                          struct hth_view stats)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    const struct hth_cu_norm n = {ln->gamma->value, ln->beta->value, ln->eps, hth_cu_mat_of(stats)};
    return hth_cu_check(s, hth_cu_layernorm(s->queue, &n, hth_cu_mat_of(x), hth_cu_mat_of(y)));
}

/* The gradients of the weights come first: dx may be dy. */
static enum hth_err dev_layernorm_backward(struct hth_exec *ex, const struct hth_layernorm_back *ln,
                                           struct hth_view dy, struct hth_view dx)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    float *room = hth_cu_room(s, 2 * (size_t)hth_cu_slabs(dy.rows) * dy.cols * sizeof(float));
    if (room == NULL)
        return HTH_E_NO_MEMORY;
    const struct hth_cu_norm_grads g = {.x = hth_cu_mat_of(ln->x),
                                        .stats = hth_cu_mat_of(ln->stats),
                                        .dgamma = ln->gamma->grad,
                                        .dbeta = ln->beta->grad,
                                        .room = room,
                                        .add_gamma = !ln->gamma->grad_zero,
                                        .add_beta = !ln->beta->grad_zero};
    hth_cu_check(s, hth_cu_layernorm_grads(s->queue, &g, hth_cu_mat_of(dy)));
    ln->gamma->grad_zero = ln->beta->grad_zero = false;
    const struct hth_cu_norm n = {ln->gamma->value, NULL, 0, hth_cu_mat_of(ln->stats)};
    return hth_cu_check(s,
                        hth_cu_layernorm_back(s->queue, &n, hth_cu_mat_of(ln->x), hth_cu_mat_of(dy),
                                              hth_cu_mat_of(ln->residual), hth_cu_mat_of(dx)));
}

static enum hth_err dev_softmax_forward(struct hth_exec *ex, struct hth_view x, struct hth_view y)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    return hth_cu_check(s, hth_cu_softmax(s->queue, hth_cu_mat_of(x), hth_cu_mat_of(y)));
}

static enum hth_err dev_softmax_backward(struct hth_exec *ex, struct hth_view y, struct hth_view dy,
                                         struct hth_view dx)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    return hth_cu_check(
        s, hth_cu_softmax_back(s->queue, hth_cu_mat_of(y), hth_cu_mat_of(dy), hth_cu_mat_of(dx)));
}

static enum hth_err dev_xent(struct hth_exec *ex, struct hth_view logits, struct hth_view labels,
                             float grad_scale, struct hth_view dlogits,
                             struct hth_xent_result *result)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    struct hth_cu_xent_sum *rows = hth_cu_room(s, (size_t)logits.rows * sizeof(*rows));
    if (rows == NULL)
        return HTH_E_NO_MEMORY;
    const struct hth_cu_xent x = {.labels = labels.data,
                                  .ld_labels = labels.ld,
                                  .grad_scale = grad_scale,
                                  .dlogits = hth_cu_mat_of(dlogits),
                                  .rows = rows,
                                  .sum = hth_cu_want_xent(ex, result),
                                  .fault = hth_cu_fault(s)};
    return hth_cu_check(s, hth_cu_xent(s->queue, &x, hth_cu_mat_of(logits)));
}

static enum hth_err dev_gather_rows(struct hth_exec *ex, struct hth_view src, struct hth_view index,
                                    struct hth_view dst)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    return hth_cu_check(s, hth_cu_gather(s->queue, hth_cu_mat_of(src), index.data, index.ld,
                                         hth_cu_mat_of(dst), hth_cu_fault(s)));
}

static enum hth_err dev_scatter_add_rows(struct hth_exec *ex, struct hth_view src,
                                         struct hth_view index, struct hth_view weight,
                                         struct hth_view dst)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    const struct hth_cu_scatter a = {index.data, index.ld, weight.data, weight.ld, hth_cu_fault(s)};
    return hth_cu_check(s,
                        hth_cu_scatter_add(s->queue, &a, hth_cu_mat_of(src), hth_cu_mat_of(dst)));
}

/* -- attention ----------------------------------------------------------------------------- */

static struct hth_cu_attention attention_of(const struct hth_attention *att, struct hth_view qkv,
                                            uint32_t dim)
{
    return (struct hth_cu_attention){
        .rows = qkv.rows,
        .seq = att->seq,
        .heads = att->heads,
        .dh = dim / att->heads,
        .cosines = att->rope != NULL ? att->rope->cosines : NULL,
        .sines = att->rope != NULL ? att->rope->sines : NULL,
        .qkv = hth_cu_mat_of(qkv),
    };
}

static enum hth_err dev_attention_forward(struct hth_exec *ex, const struct hth_attention *att,
                                          struct hth_view qkv, struct hth_view out,
                                          struct hth_view lse)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    struct hth_cu_attention a = attention_of(att, qkv, out.cols);
    if (a.dh > HTH_CU_HEAD_MAX)
        return HTH_E_UNSUPPORTED;
    a.out = hth_cu_mat_of(out);
    a.lse = hth_cu_mat_of(lse);
    return hth_cu_check(s, hth_cu_attention(s->queue, &a));
}

static enum hth_err dev_attention_backward(struct hth_exec *ex, const struct hth_attention *att,
                                           const struct hth_attention_saved *saved,
                                           struct hth_view dout, struct hth_view dqkv)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    struct hth_cu_attention a = attention_of(att, saved->qkv, dout.cols);
    if (a.dh > HTH_CU_HEAD_MAX)
        return HTH_E_UNSUPPORTED;
    a.out = hth_cu_mat_of(saved->out);
    a.lse = hth_cu_mat_of(saved->lse);
    a.dout = hth_cu_mat_of(dout);
    a.dqkv = hth_cu_mat_of(dqkv);
    a.delta = hth_cu_room(s, ATTENTION_ROOM(a.rows, a.heads));
    if (a.delta == NULL)
        return HTH_E_NO_MEMORY;
    return hth_cu_check(s, hth_cu_attention_back(s->queue, &a));
}

/* -- elements ------------------------------------------------------------------------------ */

static enum hth_err dev_combine(struct hth_exec *ex, float alpha, struct hth_view a, float beta,
                                struct hth_view b, struct hth_view y)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    return hth_cu_check(s, hth_cu_combine(s->queue, alpha, hth_cu_mat_of(a), beta, hth_cu_mat_of(b),
                                          hth_cu_mat_of(y)));
}

static enum hth_err dev_fill(struct hth_exec *ex, struct hth_view y, float value)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    return hth_cu_check(s, hth_cu_fill(s->queue, hth_cu_mat_of(y), value));
}

static enum hth_err dev_dropout(struct hth_exec *ex, const struct hth_dropout *drop,
                                struct hth_view x, struct hth_view y)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    const struct hth_cu_dropout d = {
        .key = {(uint32_t)drop->seed, (uint32_t)(drop->seed >> 32)},
        .c123 = {drop->op, drop->step, drop->expert},
        .threshold = (uint32_t)((double)drop->p * 4294967296.0),
        .scale = 1.0f / (1.0f - drop->p),
    };
    return hth_cu_check(s, hth_cu_dropout(s->queue, &d, hth_cu_mat_of(x), hth_cu_mat_of(y)));
}

static enum hth_cu_type cast_type(enum hth_dtype t)
{
    return t == HTH_BF16 ? HTH_CU_BF16 : t == HTH_F16 ? HTH_CU_F16 : HTH_CU_F32;
}

static size_t element_bytes(enum hth_dtype t)
{
    return t == HTH_I64 ? 8 : t == HTH_F32 || t == HTH_I32 ? 4 : t == HTH_I8 || t == HTH_U8 ? 1 : 2;
}

static enum hth_err cast_int8(struct hth_cu_stream *s, struct hth_view src, struct hth_view dst)
{
    bool encode = dst.dtype == HTH_I8;
    struct hth_view bytes = encode ? dst : src;
    const struct hth_cu_int8 q = {.x = hth_cu_mat_of(encode ? src : dst),
                                  .bytes = bytes.data,
                                  .ld_bytes = bytes.ld,
                                  .fault = hth_cu_fault(s)};
    return hth_cu_check(s, encode ? hth_cu_int8_encode(s->queue, &q)
                                  : hth_cu_int8_decode(s->queue, &q));
}

static enum hth_err dev_cast(struct hth_exec *ex, struct hth_view src, struct hth_view dst)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    if (src.dtype != dst.dtype && (src.dtype == HTH_I8 || dst.dtype == HTH_I8))
        return cast_int8(s, src, dst);
    bool copy = src.dtype == dst.dtype;
    size_t bytes = element_bytes(src.dtype), unit = !copy ? 1 : bytes >= 4 ? bytes / 4 : bytes;
    enum hth_cu_type raw = bytes >= 4 ? HTH_CU_WORDS : HTH_CU_BYTES;
    const struct hth_cu_cast c = {.src = src.data,
                                  .dst = dst.data,
                                  .from = copy ? raw : cast_type(src.dtype),
                                  .to = copy ? raw : cast_type(dst.dtype),
                                  .rows = src.rows,
                                  .cols = src.cols * unit,
                                  .ld_src = src.ld * unit,
                                  .ld_dst = dst.ld * unit};
    return hth_cu_check(s, hth_cu_cast(s->queue, &c));
}

static enum hth_err dev_bare_copy(struct hth_exec *ex, void *to, const void *from, size_t bytes)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    return hth_cu_check(s, s->dev->gpu->copy(to, from, bytes, s->queue));
}

static enum hth_err dev_sumsq(struct hth_exec *ex, struct hth_view x,
                              struct hth_sumsq_result *result)
{
    struct hth_cu_stream *s = hth_cu_enter(ex);
    double *room = hth_cu_room(s, HTH_CU_SUM_BLOCKS * sizeof(double));
    if (room == NULL)
        return HTH_E_NO_MEMORY;
    return hth_cu_check(
        s, hth_cu_sumsq(s->queue, hth_cu_mat_of(x), room, hth_cu_want_sumsq(ex, result)));
}

/* -- the table ----------------------------------------------------------------------------- */

/* Operations need no scratch: they use the stream's room, whose size follows the rows. */
static size_t no_scratch(const struct hth_backend *be, uint32_t a, uint32_t b)
{
    (void)be;
    (void)a;
    (void)b;
    return 0;
}

static const struct hth_backend table = {
    .abi = HTH_BACKEND_ABI,
    .size = sizeof(struct hth_backend),
    .alloc = dev_alloc,
    .free = dev_free,
    .exec_open = hth_cu_stream_open,
    .exec_close = hth_cu_stream_close,
    .exec_sync = hth_cu_stream_sync,
    .stamp = hth_cu_stamp,
    .stamped_us = hth_cu_stamped_us,
    .upload = hth_cu_upload,
    .download = hth_cu_download,
    .bare_copy = dev_bare_copy,
    .bare_product = hth_cu_bare_product,
    .params_open = hth_cu_params_open,
    .params_opened = hth_cu_params_opened,
    .params_close = hth_cu_params_close,
    .params_hold = hth_cu_params_hold,
    .params_ahead = hth_cu_params_ahead,
    .init = dev_init,
    .linear_scratch = no_scratch,
    .linear_forward = hth_cu_linear_forward,
    .linear_backward_data = hth_cu_linear_backward_data,
    .linear_backward_weight = hth_cu_linear_backward_weight,
    .act_forward = dev_act_forward,
    .act_backward = dev_act_backward,
    .layernorm_forward = dev_layernorm_forward,
    .layernorm_backward = dev_layernorm_backward,
    .softmax_forward = dev_softmax_forward,
    .softmax_backward = dev_softmax_backward,
    .xent = dev_xent,
    .gather_rows = dev_gather_rows,
    .scatter_add_rows = dev_scatter_add_rows,
    .attention_scratch = no_scratch,
    .attention_forward = dev_attention_forward,
    .attention_backward = dev_attention_backward,
    .combine = dev_combine,
    .fill = dev_fill,
    .dropout = dev_dropout,
    .cast = dev_cast,
    .sumsq = dev_sumsq,
    .step = hth_cu_step_one,
    .step_all = hth_cu_step_all,
    .replay = hth_cu_replay,
    .ffn_many = hth_cu_ffn_many,
};

static void fill_tables(struct hth_cu_device *dev)
{
    static const enum hth_matmul compute[] = {HTH_MATMUL_F32, HTH_MATMUL_TF32, HTH_MATMUL_BF16};
    static const char *const suffix[] = {"", "-tf32", "-bf16"};
    for (int i = 0; i < HTH_CU_TABLES; i++) {
        snprintf(dev->names[i], sizeof(dev->names[i]), "cuda:%d%s", dev->index, suffix[i]);
        dev->tables[i] = table;
        dev->tables[i].name = dev->names[i];
        dev->tables[i].compute = compute[i];
        dev->tables[i].card = (uint32_t)dev->index + 1;
        dev->tables[i].impl = dev;
    }
}

/* The memory for weights: the rest is for the driver, GEMM workspaces, copies and batches. */
static size_t weights_budget(size_t left)
{
    return left - HTH_MIN((size_t)HTH_DEVICE_RESERVE, left / 2);
}

enum hth_err hth_cu_device_open(struct hth_cu_device *dev, const struct hth_gpu *gpu, int index,
                                size_t limit, char *why, size_t why_size)
{
    void *blas = NULL;
    memset(dev, 0, sizeof(*dev));
    atomic_flag_clear(&dev->whole);
    dev->gpu = gpu;
    dev->index = index;
    hth_pool_init(&dev->pool, gpu, limit);
    fill_tables(dev);
    int err = gpu->use(index);
    if (err == 0)
        err = gpu->info(index, &dev->info);
    if (err == 0)
        err = gpu->stream_new(&dev->queue);
    if (err == 0)
        err = hth_cu_nothing(dev->queue);
    size_t left = 0;
    if (err == 0)
        err = gpu->mem_left(&left);
    if (err != 0) {
        snprintf(why, why_size, "device %d: %s", index, gpu->text(err));
        hth_cu_device_close(dev);
        return HTH_E_DEVICE;
    }
    if (limit > 0)
        left = HTH_MIN(left, limit);
    if (hth_resident_init(&dev->resident, gpu, &dev->pool, weights_budget(left)) != HTH_OK) {
        snprintf(why, why_size, "device %d: no stream", index);
        hth_cu_device_close(dev);
        return HTH_E_DEVICE;
    }
    dev->resident.matters = hth_cu_home_matters;
    dev->resident.moved = hth_cu_home_moved;
    /* The GEMM library is loaded only after a device has answered. */
    if (gpu->blas_open(&blas, why, why_size) != 0) {
        hth_cu_device_close(dev);
        return HTH_E_UNSUPPORTED;
    }
    gpu->blas_close(blas);
    return HTH_OK;
}

void hth_cu_device_close(struct hth_cu_device *dev)
{
    (void)dev->gpu->use(dev->index);
    if (dev->queue != NULL)
        dev->gpu->stream_free(dev->queue);
    dev->queue = NULL;
    if (dev->resident.gpu != NULL)
        hth_resident_clear(&dev->resident);
    hth_pool_clear(&dev->pool);
}
