/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h: the operations, in pairs of forward and backward. Each is a pure function of its views.
 *
 * Shapes are written [rows, cols]; M counts the rows of a batch. Activations are fp32 unless said.
 * Output views are overwritten unless the text says "added to"; gradients of weights are always
 * added to. An output may be the very same view as an input where the text says "in place"; views
 * never overlap otherwise. Zero rows are fine and do nothing.
 *
 * Every function checks shapes and types first: E_BAD_SHAPE, and nothing is written. Operations
 * that need scratch take it from the context: E_NO_MEMORY when it was sized too small. NaN and
 * infinity are valid numbers: they spread within their own row and never beyond it.
 */
#ifndef HTH_KERNELS_OPS_H
#define HTH_KERNELS_OPS_H

#include "core/base.h"
#include "kernels/backend.h"
#include "kernels/mask.h"
#include "kernels/params.h"

/* GELU is the tanh form: 0.5 x (1 + tanh(0.7978845608 (x + 0.044715 x^3))). */
enum hth_act { HTH_ACT_NONE, HTH_ACT_GELU, HTH_ACT_RELU };

/* -- linear -------------------------------------------------------------------------------- */

/* In the linear operations alone, x, y, pre, dy and dx may also have the type of
 * hth_backend_operand: rounded once when written, instead of at each read by a product. */

/* y = act(x W + bias) + residual. x [M, in], W [in, out], y [M, out]. */
struct hth_linear {
    struct hth_weight *w;
    struct hth_weight *bias; /* [1, out] or NULL */
    enum hth_act act;
    struct hth_view pre;      /* receives x W + bias, for the backward pass; or HTH_VIEW_NONE */
    struct hth_view residual; /* [M, out], not y; or HTH_VIEW_NONE */
};
enum hth_err hth_linear_forward(struct hth_exec *ex, const struct hth_linear *lin,
                                struct hth_view x, struct hth_view y) HTH_MUST;

/* dx = (dy W^T) * act'(pre) + residual: the gradient of the input, and of the activation that made
 * the input (act NONE: just dy W^T). dy [M, out], dx [M, in], pre [M, in]. `bias` belongs to the
 * layer that made pre: its gradient gets the rows of dx added, in order, as that layer's
 * backward_weight would (the caller then passes NULL there). */
struct hth_linear_back {
    struct hth_weight *w;
    struct hth_weight *bias; /* [1, in] or NULL */
    enum hth_act act;
    struct hth_view pre;
    struct hth_view residual; /* [M, in], not dx; or HTH_VIEW_NONE */
};
enum hth_err hth_linear_backward_data(struct hth_exec *ex, const struct hth_linear_back *lin,
                                      struct hth_view dy, struct hth_view dx) HTH_MUST;

/* dW += x^T dy; dbias += column sums of dy (bias NULL: none; else dy is fp32). x [M, in], dy
 * [M, out]. */
enum hth_err hth_linear_backward_weight(struct hth_exec *ex, struct hth_weight *w,
                                        struct hth_weight *bias, struct hth_view x,
                                        struct hth_view dy) HTH_MUST;

/* The output layer of a model whose embedding W [classes, d] is its weight, too:
 * y = x W^T + bias. x [M, d], y [M, classes]. With HTH_CAP_DENSE, else E_UNSUPPORTED. */
struct hth_tied {
    struct hth_weight *w;
    struct hth_weight *bias; /* [1, classes] or NULL */
};
enum hth_err hth_tied_forward(struct hth_exec *ex, const struct hth_tied *tied, struct hth_view x,
                              struct hth_view y) HTH_MUST;
/* dx = dy W; dW += dy^T x; dbias += column sums of dy, in order of rows. */
enum hth_err hth_tied_backward(struct hth_exec *ex, const struct hth_tied *tied, struct hth_view x,
                               struct hth_view dy, struct hth_view dx) HTH_MUST;

/* Scratch that the three and the tied layer (in = classes, out = d) need for a weight of that
 * shape, for any number of rows. */
size_t hth_linear_scratch(const struct hth_backend *be, uint32_t in, uint32_t out);

/* -- activations, normalisation, softmax --------------------------------------------------- */

/* y = act(x), in place allowed. */
enum hth_err hth_act_forward(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                             struct hth_view y) HTH_MUST;
/* dx = dy * act'(x), dx may be dy. */
enum hth_err hth_act_backward(struct hth_exec *ex, enum hth_act act, struct hth_view x,
                              struct hth_view dy, struct hth_view dx) HTH_MUST;

/* y = gelu(a) * b with x = [a b]: x [M, 2 h], y [M, h]. This and the layer scale below need
 * HTH_CAP_DENSE, else E_UNSUPPORTED. */
enum hth_err hth_geglu_forward(struct hth_exec *ex, struct hth_view x, struct hth_view y) HTH_MUST;
/* dx [M, 2 h] from x and dy [M, h]; dx may be x. */
enum hth_err hth_geglu_backward(struct hth_exec *ex, struct hth_view x, struct hth_view dy,
                                struct hth_view dx) HTH_MUST;

/* y = x * scale + residual, with scale [1, d] for each column; residual may be HTH_VIEW_NONE; y may
 * be x or residual. */
enum hth_err hth_scale_forward(struct hth_exec *ex, struct hth_weight *scale, struct hth_view x,
                               struct hth_view residual, struct hth_view y) HTH_MUST;
/* dx = dy * scale; dscale += column sums of dy * x, in order of rows; dx may be dy or x. */
enum hth_err hth_scale_backward(struct hth_exec *ex, struct hth_weight *scale, struct hth_view x,
                                struct hth_view dy, struct hth_view dx) HTH_MUST;

/* y = gamma * (x - mean) / sqrt(var + eps) + beta over each row; in place allowed. gamma, beta [1,
 * d]. stats [M, 2] gets mean and 1 / sqrt(var + eps), or HTH_VIEW_NONE. */
struct hth_layernorm {
    struct hth_weight *gamma, *beta;
    float eps;
};
enum hth_err hth_layernorm_forward(struct hth_exec *ex, const struct hth_layernorm *ln,
                                   struct hth_view x, struct hth_view y,
                                   struct hth_view stats) HTH_MUST;
/* dx from dy, x and stats, + residual if given (not dx); dgamma, dbeta are added to. dx may be
 * dy. */
struct hth_layernorm_back {
    struct hth_weight *gamma, *beta;
    struct hth_view x, stats;
    struct hth_view residual; /* or HTH_VIEW_NONE */
};
enum hth_err hth_layernorm_backward(struct hth_exec *ex, const struct hth_layernorm_back *ln,
                                    struct hth_view dy, struct hth_view dx) HTH_MUST;

/* Over each row, in place allowed. */
enum hth_err hth_softmax_forward(struct hth_exec *ex, struct hth_view x,
                                 struct hth_view y) HTH_MUST;
/* dx = y * (dy - sum(y * dy)), dx may be dy. */
enum hth_err hth_softmax_backward(struct hth_exec *ex, struct hth_view y, struct hth_view dy,
                                  struct hth_view dx) HTH_MUST;

/* -- cross-entropy ------------------------------------------------------------------------- */

#define HTH_LABEL_NONE (-1) /* a row without a label: no loss, no gradient, not counted */

struct hth_xent_result {
    double loss_sum;  /* over the counted rows */
    uint32_t counted; /* rows with a label */
    uint32_t correct; /* counted rows whose first largest logit is the label */
};
/* Softmax cross-entropy of logits [M, classes] against labels [M, 1] int32. dlogits (may be logits;
 * or HTH_VIEW_NONE) gets grad_scale * (softmax - onehot): pass 1 for the gradient of the sum,
 * 1 / counted rows for that of the mean. A view of some columns is a softmax over that range of
 * classes, whose labels count from its first. `result` is host memory, valid after hth_exec_sync.
 * Errors: E_RANGE (a label beyond the classes). */
enum hth_err hth_xent(struct hth_exec *ex, struct hth_view logits, struct hth_view labels,
                      float grad_scale, struct hth_view dlogits,
                      struct hth_xent_result *result) HTH_MUST;

/* -- rows ---------------------------------------------------------------------------------- */

/* y[i] = W[token[i]]: tokens [M, 1] int32, W [vocabulary, d], y [M, d]. Errors: E_RANGE. */
enum hth_err hth_embed_forward(struct hth_exec *ex, struct hth_weight *w, struct hth_view tokens,
                               struct hth_view y) HTH_MUST;
/* dW[token[i]] += dy[i], in order of i. Errors: E_RANGE. */
enum hth_err hth_embed_backward(struct hth_exec *ex, struct hth_weight *w, struct hth_view tokens,
                                struct hth_view dy) HTH_MUST;

/* dst[i] = src[index[i]]: index [M, 1] int32, dst [M, d]. Errors: E_RANGE. */
enum hth_err hth_gather_rows(struct hth_exec *ex, struct hth_view src, struct hth_view index,
                             struct hth_view dst) HTH_MUST;
/* dst[index[i]] += weight[i] * src[i], in order of i: the same index may come twice. weight [M, 1]
 * or HTH_VIEW_NONE for ones. Errors: E_RANGE. */
enum hth_err hth_scatter_add_rows(struct hth_exec *ex, struct hth_view src, struct hth_view index,
                                  struct hth_view weight, struct hth_view dst) HTH_MUST;

/* -- attention ----------------------------------------------------------------------------- */

/* Cosines and sines of rotary positions, made ahead. head_dim is even; element i of the first half
 * of a head is rotated with element i of the second by the angle position * base^(-2 i / head_dim).
 * Errors: E_CONFIG, E_TOO_LARGE (over HTH_SEQ_MAX positions), E_NO_MEMORY. */
struct hth_rope;
enum hth_err hth_rope_new(const struct hth_backend *be, uint32_t seq_max, uint32_t head_dim,
                          double base, struct hth_rope **out) HTH_MUST;
/* The same on three axes, for `text` positions and a picture of height x width behind them. With
 * half = head_dim / 2 and p = half / 3, pair i < p is rotated by t * 10000^(-i / p), pair p + j by
 * y * 100^(-j / p), pair 2 p + j by x * 100^(-j / p), the others by 0. Text is at (t, y 0, x 0),
 * the code at row r and column c at (t = text, y = r + 1, x = c + 1). */
struct hth_rope_picture {
    uint32_t text, height, width, head_dim; /* head_dim >= 6 */
};
enum hth_err hth_rope_new_picture(const struct hth_backend *be, const struct hth_rope_picture *size,
                                  struct hth_rope **out) HTH_MUST;
void hth_rope_free(struct hth_rope *rope);

/* Attention of `heads` heads over sequences of `seq` rows: the rows of a view are whole sequences,
 * one after the other (M = sequences * seq). qkv [M, 3 d] holds queries, keys, values; head h owns
 * columns h * d / heads of each. Queries and keys are rotated inside (rope NULL: not), scores are
 * scaled by 1 / sqrt(d / heads). Here a NaN spoils its sequence, never another one. */
struct hth_attention {
    uint32_t seq, heads;
    const struct hth_rope *rope;
    const struct hth_mask *mask; /* of at least seq positions; NULL: causal */
    /* With a mask: [sequences, 1] int32, text rows before the padding, 1 .. mask->text; or
     * HTH_VIEW_NONE. The padding's rows of out are valid, and no other row depends on them. */
    struct hth_view unpadded;
};
/* out [M, d]; lse [M, heads] gets the log-sum-exp of each score row, or HTH_VIEW_NONE. Errors:
 * E_UNSUPPORTED (a mask without HTH_CAP_DENSE), E_RANGE (a number of unpadded rows). */
enum hth_err hth_attention_forward(struct hth_exec *ex, const struct hth_attention *att,
                                   struct hth_view qkv, struct hth_view out,
                                   struct hth_view lse) HTH_MUST;
struct hth_attention_saved {
    struct hth_view qkv, out, lse; /* the forward's */
};
enum hth_err hth_attention_backward(struct hth_exec *ex, const struct hth_attention *att,
                                    const struct hth_attention_saved *saved, struct hth_view dout,
                                    struct hth_view dqkv) HTH_MUST;
size_t hth_attention_scratch(const struct hth_backend *be, uint32_t seq, uint32_t head_dim);

/* The same of sequences that grow: of rows at .. at + seq - 1, over `kept` [sequences * positions,
 * 2 d], where earlier rows left rotated keys and values. Bits are the whole sequence's where
 * HTH_CAP_REPRODUCIBLE. Scratch: that of `positions`. E_UNSUPPORTED: also a card, a mask NONE. */
struct hth_attention_kept {
    struct hth_view kept;
    uint32_t positions, at;
};
enum hth_err hth_attention_grow(struct hth_exec *ex, const struct hth_attention *att,
                                const struct hth_attention_kept *kept, struct hth_view qkv,
                                struct hth_view out) HTH_MUST;

/* -- elementwise and reductions ------------------------------------------------------------ */

/* y = alpha * a + beta * b; b may be HTH_VIEW_NONE (y = alpha * a); y may be a or b. */
enum hth_err hth_combine(struct hth_exec *ex, float alpha, struct hth_view a, float beta,
                         struct hth_view b, struct hth_view y) HTH_MUST;
enum hth_err hth_fill(struct hth_exec *ex, struct hth_view y, float value) HTH_MUST;

/* y = keep ? x / (1 - p) : 0, in place allowed. Element (r, c) is kept as a pure function of the
 * seed, the stream words and (r, c): backward is the same call on the gradient. 0 <= p < 1.
 * Errors: E_RANGE. */
struct hth_dropout {
    float p;
    uint64_t seed;
    uint32_t op, step, expert;
};
enum hth_err hth_dropout(struct hth_exec *ex, const struct hth_dropout *drop, struct hth_view x,
                         struct hth_view y) HTH_MUST;

/* fp32 to bf16 or fp16 (nearest, ties to even; NaN stays NaN; too large becomes infinity) and back
 * (exact), or a copy between equal types. fp32 to I8 and back: each row is encoded alone in the
 * int8 of quant.h, as on the wire, and a view of I8 has one column per byte. Errors: E_UNSUPPORTED
 * (other pairs), E_NOT_FINITE (to I8: a number that the format refuses; from I8: a scale that no
 * encoder writes; on a card at the sync). After E_NOT_FINITE the output is not valid. */
enum hth_err hth_cast(struct hth_exec *ex, struct hth_view src, struct hth_view dst) HTH_MUST;

struct hth_sumsq_result {
    double sum;  /* of the squares; NaN or infinite if an element is */
    bool finite; /* every element is */
};
/* `result` is host memory, valid after hth_exec_sync. */
enum hth_err hth_sumsq(struct hth_exec *ex, struct hth_view x,
                       struct hth_sumsq_result *result) HTH_MUST;

#endif
