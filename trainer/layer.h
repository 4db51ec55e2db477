/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer.h (internal): the parts of an lm or picture model as functions of views, for passes over
 * whole sequences and for inference that keeps keys and values.
 *
 *   tokens -- embed --> x -- qkv --> attend --> out --> y -- ffn --> z .. next layer .. logits
 *
 *   embed    x = E[token]
 *   qkv      qkv = W_qkv LayerNorm(x) + b_qkv
 *   attend   att = attention(qkv): the only part that reads other rows
 *   out      y = x + s1 (W_o att + b_o)
 *   ffn      z = y + s2 (W_2 geglu(W_1 LayerNorm(y) + b_1) + b_2)       dense models
 *   logits   of one vocabulary: E LayerNorm(x) + b, or W_out^T LayerNorm(x) + b
 *
 * Row r of a result depends on row r of its inputs alone, but in attend; so whoever has a cache
 * calls the same functions with the new rows of its sequences, and does attend itself. With a back
 * end of HTH_CAP_ROW_INVARIANT the bits are those of a whole pass.
 *
 * The caller gives the rooms: memory that a part fills and its backward reads. M is the number of
 * rows, e the width of a factorised embedding. A room that backward will not read may be shared by
 * all layers; `stats` and `lse` may then be HTH_VIEW_NONE. The context's scratch must be as large
 * as the model's own (hth_layer_scratch).
 *
 * Backward adds to the gradients of weights. Errors: those of kernels/ops.h.
 */
#ifndef HTH_TRAINER_LAYER_H
#define HTH_TRAINER_LAYER_H

#include "kernels/ops.h"
#include "trainer/pass.h"

#define HTH_NORM_EPS 1e-5f

size_t hth_layer_scratch(const struct hth_model *m);

/* ---- attention ------------------------------------------------------------------------------- */

struct hth_attn_room {
    uint32_t seq;             /* rows of each sequence; of the model's seq_len the first ones */
    struct hth_view x;        /* [M, d] the caller's */
    struct hth_view normed;   /* [M, d] */
    struct hth_view stats;    /* [M, 2] */
    struct hth_view qkv;      /* [M, 3 d] */
    struct hth_view att;      /* [M, d] */
    struct hth_view lse;      /* [M, heads] */
    struct hth_view proj;     /* [M, d] before s1; unused without layer scales */
    struct hth_view unpadded; /* [sequences, 1], of picture; else HTH_VIEW_NONE */
};
enum hth_err hth_layer_qkv(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                           const struct hth_attn_room *room) HTH_MUST;
enum hth_err hth_layer_attend(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                              const struct hth_attn_room *room) HTH_MUST;
/* The same of sequences that grow: rows of qkv are their new ones. */
enum hth_err hth_layer_grow(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                            const struct hth_attn_room *room,
                            const struct hth_attention_kept *kept) HTH_MUST;
enum hth_err hth_layer_out(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                           const struct hth_attn_room *room, struct hth_view y) HTH_MUST;

/* Memory that backward overwrites. */
struct hth_back_room {
    struct hth_view row;  /* [M, d] */
    struct hth_view wide; /* [M, 3 d] or more columns; dense: 4 d */
};
/* dy = dL/dy of the stream behind `out` -> dx = dL/dx; dx is not dy. */
enum hth_err hth_layer_attn_back(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                                 const struct hth_attn_room *room, const struct hth_back_room *back,
                                 struct hth_view dy, struct hth_view dx) HTH_MUST;

/* ---- feed-forward ---------------------------------------------------------------------------- */

struct hth_ffn_room {
    struct hth_view x;      /* [M, d] the caller's */
    struct hth_view normed; /* [M, d] */
    struct hth_view stats;  /* [M, 2] */
    struct hth_view wide;   /* [M, 8 d]; backward overwrites it */
    struct hth_view gated;  /* [M, 4 d] */
    struct hth_view proj;   /* [M, d] before s2; unused without layer scales */
};
enum hth_err hth_layer_ffn(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                           const struct hth_ffn_room *room, struct hth_view y) HTH_MUST;
enum hth_err hth_layer_ffn_back(struct hth_exec *ex, const struct hth_model *m, uint32_t l,
                                const struct hth_ffn_room *room, const struct hth_back_room *back,
                                struct hth_view dy, struct hth_view dx) HTH_MUST;

/* ---- ids ------------------------------------------------------------------------------------- */

/* tokens [M, 1] of vocabulary i -> x [M, d]; factored [M, e], unused where E is not factorised. */
enum hth_err hth_layer_embed(struct hth_exec *ex, const struct hth_model *m, uint32_t i,
                             struct hth_view tokens, struct hth_view factored,
                             struct hth_view x) HTH_MUST;
/* dfactored [M, e] is overwritten. */
struct hth_embed_back {
    struct hth_view tokens, factored, dfactored;
};
enum hth_err hth_layer_embed_back(struct hth_exec *ex, const struct hth_model *m, uint32_t i,
                                  const struct hth_embed_back *back, struct hth_view dx) HTH_MUST;

/* h [M, d] = LayerNorm(x) of the last layer's x. */
enum hth_err hth_layer_last_norm(struct hth_exec *ex, const struct hth_model *m, struct hth_view x,
                                 struct hth_view h, struct hth_view stats) HTH_MUST;
/* h -> logits [M, ids] of vocabulary i; factored as in embed. */
enum hth_err hth_layer_logits(struct hth_exec *ex, const struct hth_model *m, uint32_t i,
                              struct hth_view h, struct hth_view factored,
                              struct hth_view logits) HTH_MUST;
struct hth_logits_back {
    struct hth_view h, factored, dfactored;
};
enum hth_err hth_layer_logits_back(struct hth_exec *ex, const struct hth_model *m, uint32_t i,
                                   const struct hth_logits_back *back, struct hth_view dlogits,
                                   struct hth_view dh) HTH_MUST;

#endif
