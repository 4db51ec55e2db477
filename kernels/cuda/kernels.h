/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.h: the functions of the .cu files for the host's side of the back end, one per kernel: it
 * launches the kernel on a stream and returns at once, with the runtime's error code of the launch
 * or 0. All pointers are device memory. C and C++ read this header.
 *
 * ops.c checks the shapes. Rows and columns are > 0.
 */
#ifndef HTH_KERNELS_CUDA_KERNELS_H
#define HTH_KERNELS_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Row r starts at data + r * ld. NULL data: no matrix. */
struct hth_cu_mat {
    float *data;
    uint32_t rows, cols, ld;
};

/* As enum hth_act. */
enum hth_cu_act { HTH_CU_NONE, HTH_CU_GELU, HTH_CU_RELU };

/* Faults that kernels report, read at the sync: the first word that is not 0. */
enum hth_cu_fault { HTH_CU_FINE, HTH_CU_BAD_INDEX, HTH_CU_NOT_FINITE };

/* -- rows.cu ------------------------------------------------------------------------------- */

/* y = act(y + bias) + residual; pre = y + bias. bias, pre, residual: or NULL. */
struct hth_cu_epilogue {
    const float *bias;
    int act;
    struct hth_cu_mat pre, residual;
};
int hth_cu_epilogue(void *stream, const struct hth_cu_epilogue *e, struct hth_cu_mat y);
int hth_cu_act(void *stream, int act, struct hth_cu_mat x, struct hth_cu_mat y);
/* dx = dy * act'(pre) + residual. */
int hth_cu_act_back(void *stream, int act, struct hth_cu_mat pre, struct hth_cu_mat dy,
                    struct hth_cu_mat residual, struct hth_cu_mat dx);

struct hth_cu_norm {
    const float *gamma, *beta;
    float eps;
    struct hth_cu_mat stats; /* forward: or no data */
};
int hth_cu_layernorm(void *stream, const struct hth_cu_norm *n, struct hth_cu_mat x,
                     struct hth_cu_mat y);
int hth_cu_layernorm_back(void *stream, const struct hth_cu_norm *n, struct hth_cu_mat x,
                          struct hth_cu_mat dy, struct hth_cu_mat residual, struct hth_cu_mat dx);

int hth_cu_softmax(void *stream, struct hth_cu_mat x, struct hth_cu_mat y);
int hth_cu_softmax_back(void *stream, struct hth_cu_mat y, struct hth_cu_mat dy,
                        struct hth_cu_mat dx);

/* The result of a cross-entropy, in device memory. */
struct hth_cu_xent_sum {
    double loss;
    uint32_t counted, correct;
};
struct hth_cu_xent {
    const int32_t *labels;
    uint32_t ld_labels;
    float grad_scale;
    struct hth_cu_mat dlogits;    /* or no data */
    struct hth_cu_xent_sum *rows; /* room for one per row */
    struct hth_cu_xent_sum *sum;
    int *fault;
};
int hth_cu_xent(void *stream, const struct hth_cu_xent *x, struct hth_cu_mat logits);

/* -- columns.cu: sums over the rows of a batch --------------------------------------------- */

/* The number of slabs of rows, which are summed side by side and then added in order. */
uint32_t hth_cu_slabs(uint32_t rows);
/* dst (+)= column sums of dy; room for slabs * cols floats. */
int hth_cu_column_sum(void *stream, struct hth_cu_mat dy, int accumulate, float *room, float *dst);
/* dgamma (+)= sum of dy * h, dbeta (+)= sum of dy; room for 2 * slabs * cols floats. */
struct hth_cu_norm_grads {
    struct hth_cu_mat x, stats;
    float *dgamma, *dbeta, *room;
    int add_gamma, add_beta;
};
int hth_cu_layernorm_grads(void *stream, const struct hth_cu_norm_grads *g, struct hth_cu_mat dy);

/* dst[i] = src[index[i]]. */
int hth_cu_gather(void *stream, struct hth_cu_mat src, const int32_t *index, uint32_t ld_index,
                  struct hth_cu_mat dst, int *fault);
/* dst[index[i]] += weight[i] * src[i], in order of i. */
struct hth_cu_scatter {
    const int32_t *index;
    uint32_t ld_index;
    const float *weight; /* or NULL */
    uint32_t ld_weight;
    int *fault;
};
int hth_cu_scatter_add(void *stream, const struct hth_cu_scatter *s, struct hth_cu_mat src,
                       struct hth_cu_mat dst);

/* -- flat.cu ------------------------------------------------------------------------------- */

/* Does nothing; fails where this build has no code for the card. */
int hth_cu_nothing(void *stream);

int hth_cu_combine(void *stream, float alpha, struct hth_cu_mat a, float beta, struct hth_cu_mat b,
                   struct hth_cu_mat y);
int hth_cu_fill(void *stream, struct hth_cu_mat y, float value);
struct hth_cu_dropout {
    uint32_t key[2], c123[3], threshold;
    float scale;
};
int hth_cu_dropout(void *stream, const struct hth_cu_dropout *d, struct hth_cu_mat x,
                   struct hth_cu_mat y);
enum hth_cu_type { HTH_CU_F32, HTH_CU_BF16, HTH_CU_F16, HTH_CU_BYTES, HTH_CU_WORDS };
/* Converts between types, or copies bytes or words of 4 bytes (cols and leading dimensions count
 * those). */
struct hth_cu_cast {
    const void *src;
    void *dst;
    int from, to;
    uint32_t rows;
    size_t cols, ld_src, ld_dst; /* of elements */
};
int hth_cu_cast(void *stream, const struct hth_cu_cast *c);
#define HTH_CU_SUM_BLOCKS 512u /* doubles of room that sumsq needs */
int hth_cu_sumsq(void *stream, struct hth_cu_mat x, double *room, double *sum);
struct hth_cu_init {
    float *dst;
    size_t count;
    int kind; /* 0 zeros, 1 ones, 2 uniform, 3 normal */
    float scale;
    uint32_t key[2], tensor, stream_word;
};
int hth_cu_init(void *stream, const struct hth_cu_init *args);

/* -- optim.cu: one launch for all tensors of a set ----------------------------------------- */

#define HTH_CU_TENSORS 64u   /* of one launch */
#define HTH_CU_CHUNK   2048u /* elements of a block */
enum hth_cu_optim { HTH_CU_SGD, HTH_CU_ADAM, HTH_CU_LAMB };
struct hth_cu_tensor {
    size_t offset, count; /* floats */
    uint16_t *image;      /* bf16 copy to update, or NULL */
    float decay;
    uint32_t first_block;
    int adapt; /* LAMB */
};
struct hth_cu_step {
    int kind, decoupled;
    float *w, *m, *v; /* flat buffers; m, v NULL where the kind has none */
    const float *g;
    float grad_scale, lr, momentum, beta1, beta2, eps, bias1, bias2_sqrt, trust_max;
    uint32_t count, blocks;
    double *room; /* LAMB: 2 doubles per block, then one float (the rate) per tensor */
    struct hth_cu_tensor tensor[HTH_CU_TENSORS];
};
/* Numbers the blocks of the tensors. */
void hth_cu_step_layout(struct hth_cu_step *s);
size_t hth_cu_step_room(const struct hth_cu_step *s);
int hth_cu_step(void *stream, const struct hth_cu_step *s);

/* -- attention.cu -------------------------------------------------------------------------- */

#define HTH_CU_HEAD_MAX 512u
struct hth_cu_attention {
    uint32_t rows, seq, heads, dh;
    const float *cosines, *sines;    /* [positions, dh / 2] or NULL */
    struct hth_cu_mat qkv, out, lse; /* lse: or no data (forward) */
    struct hth_cu_mat dout, dqkv;    /* backward */
    float *delta;                    /* backward: room for rows * heads floats */
};
int hth_cu_attention(void *stream, const struct hth_cu_attention *a);
int hth_cu_attention_back(void *stream, const struct hth_cu_attention *a);

/* -- group.cu: many FFN blocks of one shape ------------------------------------------------- */

#define HTH_CU_GROUP 64u /* blocks of one launch */
struct hth_cu_member {
    uint32_t rows;
    uint32_t ld_x, ld_y, ld_dy, ld_dx, ld_hidden, ld_dim, ld_stats;
    const float *x, *dy;
    float *y, *dx;
    float *pre, *act, *sum, *stats; /* forward: or NULL */
    const float *b1, *b2, *gamma, *beta;
    float *db1, *db2, *dgamma, *dbeta;
};
/* Matrices of count * rows rows. */
struct hth_cu_group {
    const struct hth_cu_member *members;
    uint32_t count, rows; /* rows: of each block, padded */
    uint32_t dim, hidden, ld_dim, ld_hidden;
    int bf16, accumulate;
    float eps;
    void *operand_x, *operand_d, *operand_h; /* bf16 or fp32, [dim], [dim], [hidden] wide */
    float *product_h, *product_d, *dsum;
};
int hth_cu_group_stage_x(void *stream, const struct hth_cu_group *g);
int hth_cu_group_stage_act(void *stream, const struct hth_cu_group *g);
int hth_cu_group_up_end(void *stream, const struct hth_cu_group *g);
int hth_cu_group_down_end(void *stream, const struct hth_cu_group *g);
int hth_cu_group_norm_back(void *stream, const struct hth_cu_group *g);
int hth_cu_group_down_back_end(void *stream, const struct hth_cu_group *g);
int hth_cu_group_dx_end(void *stream, const struct hth_cu_group *g);
/* Gradients of gamma, beta and biases. */
enum hth_cu_sum { HTH_CU_SUM_GAMMA, HTH_CU_SUM_BETA, HTH_CU_SUM_B1, HTH_CU_SUM_B2 };
int hth_cu_group_columns(void *stream, const struct hth_cu_group *g, int what);

/* -- quant.cu: the int8 format of quant.h -------------------------------------------------- */

/* x [rows, cols]; each row's bytes: codes, then scales (bf16), as in host memory. fault:
 * E_NOT_FINITE. */
struct hth_cu_int8 {
    struct hth_cu_mat x;
    uint8_t *bytes;
    size_t ld_bytes;
    int *fault;
};
int hth_cu_int8_encode(void *stream, const struct hth_cu_int8 *q);
int hth_cu_int8_decode(void *stream, const struct hth_cu_int8 *q);

#ifdef __cplusplus
}
#endif

#endif
