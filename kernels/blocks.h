/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.h: the FFN block and the transformer block, of which experts and trunks are made.
 *
 * A block is a handful of weights of a parameter set: declare it before the set is sealed, run it
 * afterwards. Forward without `saved` is inference; with `saved` it stores there what backward
 * needs. The caller asks for both sizes ahead (bytes of saved for M rows, bytes of scratch of the
 * context for M rows), so that a step allocates nothing. `saved` is memory of the back end, 64-byte
 * aligned, and belongs to the caller: one per batch in flight.
 *
 * backward writes dx and adds to the gradients of the weights. x must be the forward's. dx may be
 * dy. Contexts and threads: as in ops.h; a block itself is read-only.
 *
 *   FFN (the expert of Learning@home and hivemind; `hidden` defaults to 4 d):
 *     y = LayerNorm(x + W2 gelu(W1 x + b1) + b2)                       x, y [M, d]
 *
 *   Transformer (pre-norm, causal; rows are positions of whole sequences, M = sequences * seq):
 *     u = x + Wo attention(Wqkv LN1(x) + bqkv) + bo
 *     y = u + W2 gelu(W1 LN2(u) + b1) + b2
 */
#ifndef HTH_KERNELS_BLOCKS_H
#define HTH_KERNELS_BLOCKS_H

#include "core/base.h"
#include "kernels/ops.h"
#include "kernels/params.h"

struct hth_ffn {
    uint32_t dim, hidden;
    float eps;
    struct hth_weight *w1, *b1, *w2, *b2, *gamma, *beta;
};

struct hth_ffn_options {
    uint32_t dim;
    uint32_t hidden;    /* 0: 4 * dim */
    float eps;          /* 0: 1e-12, as hivemind */
    const char *prefix; /* put before the tensors' names; NULL: none */
};

/* Tensors: layers.0.weight [d, h], layers.0.bias, layers.2.weight [h, d], layers.2.bias,
 * norm.weight, norm.bias. Errors: those of hth_params_add; E_CONFIG (no dim). */
enum hth_err hth_ffn_declare(struct hth_params *p, const struct hth_ffn_options *options,
                             struct hth_ffn *out) HTH_MUST;
size_t hth_ffn_saved_bytes(const struct hth_ffn *f, uint32_t rows);
size_t hth_ffn_scratch_bytes(const struct hth_backend *be, const struct hth_ffn *f, uint32_t rows);
/* y may not be x. Errors: as ops.h. */
enum hth_err hth_ffn_forward(struct hth_exec *ex, const struct hth_ffn *f, struct hth_view x,
                             struct hth_view y, void *saved) HTH_MUST;
enum hth_err hth_ffn_backward(struct hth_exec *ex, const struct hth_ffn *f, struct hth_view x,
                              void *saved, struct hth_view dy, struct hth_view dx) HTH_MUST;

/* Many FFN blocks in one call: a host's experts of one shape, each with a few rows. The context's
 * team shares them without waiting in between. Each entry has its own `saved`, or NULL. No two
 * entries of a backward share a block (its gradients are written); entries of a forward may. Each
 * entry's result is that of a call for it alone, bit for bit where the back end has
 * HTH_CAP_ROW_INVARIANT; a card computes small batches in one product, to its usual precision. */
struct hth_ffn_entry {
    const struct hth_ffn *ffn;
    struct hth_view x;
    struct hth_view y;      /* forward */
    void *saved;            /* forward: or NULL */
    struct hth_view dy, dx; /* backward */
};
/* Scratch of the context for `count` entries of at most `rows` rows, of blocks shaped like f. */
size_t hth_ffn_many_scratch_bytes(const struct hth_exec *ex, const struct hth_ffn *f, uint32_t rows,
                                  uint32_t count);
/* Errors: E_BAD_SHAPE (blocks of different shapes), and those of a single call, for the lowest
 * entry that failed; all other entries are computed. */
enum hth_err hth_ffn_forward_many(struct hth_exec *ex, const struct hth_ffn_entry *entries,
                                  uint32_t count) HTH_MUST;
enum hth_err hth_ffn_backward_many(struct hth_exec *ex, const struct hth_ffn_entry *entries,
                                   uint32_t count) HTH_MUST;

struct hth_tblock {
    uint32_t dim, hidden, heads;
    float eps;
    const struct hth_rope *rope;
    struct hth_weight *ln1_gamma, *ln1_beta, *wqkv, *bqkv, *wo, *bo;
    struct hth_weight *ln2_gamma, *ln2_beta, *w1, *b1, *w2, *b2;
};

struct hth_tblock_options {
    uint32_t dim;    /* a multiple of heads; dim / heads even when there is a rope */
    uint32_t hidden; /* 0: 4 * dim */
    uint32_t heads;
    float eps;                   /* 0: 1e-5 */
    const struct hth_rope *rope; /* borrowed, outlives the block; NULL: no positions */
    const char *prefix;
};

/* Tensors: norm1.weight, norm1.bias, attn.qkv.weight [d, 3 d], attn.qkv.bias, attn.out.weight,
 * attn.out.bias, norm2.weight, norm2.bias, ffn.0.weight, ffn.0.bias, ffn.2.weight, ffn.2.bias. */
enum hth_err hth_tblock_declare(struct hth_params *p, const struct hth_tblock_options *options,
                                struct hth_tblock *out) HTH_MUST;
size_t hth_tblock_saved_bytes(const struct hth_tblock *t, uint32_t rows);
size_t hth_tblock_scratch_bytes(const struct hth_backend *be, const struct hth_tblock *t,
                                uint32_t rows, uint32_t seq);
enum hth_err hth_tblock_forward(struct hth_exec *ex, const struct hth_tblock *t, uint32_t seq,
                                struct hth_view x, struct hth_view y, void *saved) HTH_MUST;
/* x, dy and dx are as in hth_ffn_backward. */
struct hth_tblock_back {
    uint32_t seq;
    struct hth_view x;
    void *saved;
};
enum hth_err hth_tblock_backward(struct hth_exec *ex, const struct hth_tblock *t,
                                 const struct hth_tblock_back *back, struct hth_view dy,
                                 struct hth_view dx) HTH_MUST;

#endif
