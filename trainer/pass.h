/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pass.h (internal): one flight's activations, and the arithmetic of the segments (model.h).
 *
 * Shapes: R rows of one micro-batch, U = R / B units, k choices per unit, D = B * d floats per
 * unit, W entries of the score tables, P pairs that were asked.
 *
 *   layer l    xa [R, d]  residual stream as it enters (not of classifiers: before attention)
 *              x [R, d]   the same before the experts           h [R, d] = LayerNorm(x), a blob
 *              tables [U, W] -> index, score [U, k] -> pairs    y [P, D] answers, ok [P]
 *              weight [U, k] of the mixture
 *   dense      normed, wide, gated, proj as in layer.h, and no experts
 *   backward   dx [R, d] = dL/dx of the stream, carried from segment to segment
 *              dy [P', D] = dL/dy of the P' pairs that answered, a blob
 *
 * If the trunk computes on a card, the matrices that its kernels see have a twin there: the first
 * bytes of a pass' memory and a block on the card have the same layout. Data that this process made
 * (input, mixtures, sums of answers, gradients of scores) is uploaded before its use; data that it
 * reads (rows for experts, score tables, gradients for mixtures) is downloaded. The gate's search,
 * mixtures and balance losses are always computed in this process.
 *
 * Functions marked (job) read the numbers and are called from jobs only; the others belong to the
 * loop. In an environment of ghosts jobs do not run: the loop then makes the choices that a job
 * would have made (hth_pass_choose, hth_pass_pick_back).
 */
#ifndef HTH_TRAINER_PASS_H
#define HTH_TRAINER_PASS_H

#include "core/env.h"
#include "gating/balance.h"
#include "gating/beam.h"
#include "gating/mixture.h"
#include "kernels/ops.h"
#include "trainer/model.h"
#include "trainer/transport.h"

/* Vocabularies; that of an lm, and the classes of a classifier, are the first. */
enum { HTH_IDS_TEXT, HTH_IDS_CODES, HTH_IDS_MAX };

struct hth_pass_layer {
    /* trunk activations that backward needs */
    float *xa, *attn_in, *attn_stats, *qkv, *att, *lse, *attn_proj; /* not of classifiers */
    float *x, *stats;
    float *normed, *wide, *gated, *proj; /* dense */
    struct hth_blob *h;
    float *h_there; /* [R, d], only with a card: the twin of h */
    float *pool;    /* [U, d]; only where B > 1 */
    float *tables;
    uint8_t *live; /* [W]: coordinates that had an expert, for the balance loss */
    /* the gate's choice */
    struct hth_grid_view *view;
    uint32_t *index;
    float *score, *weight;
    /* the forward's pairs, ordered by (expert, unit) */
    struct hth_expert_target *targets;
    uint32_t *target_expert;
    uint32_t targets_count;
    struct hth_expert_pair *pairs;
    uint32_t *slot; /* unit * k + choice of each pair */
    uint32_t pairs_count;
    struct hth_transport_batch *batch;
    float *y;
    uint8_t *ok;
    const float **yptr; /* [U, k] into y, or NULL */
    struct hth_mixture_stats mixed;
    uint32_t bad, bad_back; /* answers refused for their numbers */
    /* the backward's pairs: those that answered */
    struct hth_expert_pair *back_pairs;
    uint32_t *back_slot;
    uint32_t back_count;
    struct hth_blob *dy;
    float *dscore;
    struct hth_transport_batch *back_batch;
};

/* Sequences that grow: the pass has only their new rows, at .. at + rows / samples - 1 of each, and
 * here lies what its layers keep of the earlier ones (kernels/ops.h). Of a picture the first call
 * has the whole text, later ones have codes. The head reads the last row of each sequence, and
 * gives logits of the last vocabulary. Never on a card. */
struct hth_pass_grown {
    uint32_t positions, at;
    float *kept[HTH_MODEL_LAYERS_MAX]; /* [samples * positions, 2 d] */
};

struct hth_pass {
    struct hth_model *model;
    uint32_t samples, rows, units;
    const struct hth_pass_grown *grown; /* NULL: whole sequences */
    uint64_t step;                      /* number of the flight, the key of the gate's noise */
    bool train;
    /* input */
    float *input;                 /* classifier: [R, features] */
    int32_t *tokens, *labels;     /* not of classifiers: [R]; all: [R] */
    int32_t *unpadded;            /* picture: [samples], ids before the padding of a text */
    float *factored;              /* [R, e] rows of a factorised embedding */
    struct hth_pass_layer *layer; /* [layers] */
    /* head */
    float *x, *stats, *h;
    /* picture: row i of the heads is row order[i] of the sequences, the text's rows first, and
     * place[order[i]] = i. `ordered` is h in that order. */
    int32_t *order, *place, *head_labels;
    float *ordered, *head_factored;
    float *logits[HTH_IDS_MAX]; /* [rows of a head, ids] */
    /* backward */
    float *dx, *dh, *spare; /* they swap roles */
    float *dtables, *work, *dfactored;
    float **dyptr;
    float *grads; /* a flat buffer like the trunk's */
    float *part;  /* a stretch of it, before it is added */
    struct hth_xent_result xent[HTH_IDS_MAX];
    double balance_loss;
    enum hth_err err; /* the first of any job */
    uint8_t *memory;
    uint8_t *card; /* twin of the beginning of `memory`; NULL: kernels use `memory` */
};

/* Errors: E_NO_MEMORY, E_TOO_LARGE. */
enum hth_err hth_pass_new(struct hth_model *model, uint32_t samples,
                          struct hth_pass **out) HTH_MUST;
/* For use alone: a pass of up to that many rows, without gradients. Errors: as above. */
enum hth_err hth_pass_new_rows(struct hth_model *model, uint32_t rows,
                               struct hth_pass **out) HTH_MUST;
/* The samples and rows of its next flight, at most what it was made for. */
void hth_pass_resize(struct hth_pass *pass, uint32_t samples, uint32_t rows);
void hth_pass_free(struct hth_pass *pass);
/* Rows that the head of vocabulary i reads. */
uint32_t hth_pass_head_rows(const struct hth_pass *pass, uint32_t i);
/* Drops the last flight's blobs, views and batches. */
void hth_pass_reset(struct hth_pass *pass);

/* ---- jobs ------------------------------------------------------------------------------------ */

/* (job) Of a dense model: runs all layers. Else: runs segment l < layers, up to the choice of layer
 * l's experts. Precondition: h is
 * allocated, view is referenced, and the batch of layer l - 1 has its verdicts (or is NULL: no
 * expert was asked). */
enum hth_err hth_pass_forward(struct hth_pass *pass, uint32_t l) HTH_MUST;
/* (job) Runs the last segment: loss; in training also its backward and that of the last layer's
 * mixture. */
enum hth_err hth_pass_head(struct hth_pass *pass) HTH_MUST;
/* (job) Runs a dense model: forward and head, and so in training backward. */
enum hth_err hth_pass_dense(struct hth_pass *pass) HTH_MUST;
/* (job) Runs backward through the trunk part of layer l and the mixture of layer l - 1, or the
 * input. Precondition: dy of layer l - 1 is allocated. */
enum hth_err hth_pass_backward(struct hth_pass *pass, uint32_t l) HTH_MUST;

/* The loss of model.h, after the head. */
double hth_pass_loss(const struct hth_pass *pass);
/* The fraction of labels that were the largest logit; of picture: of the codes. */
double hth_pass_accuracy(const struct hth_pass *pass);
/* The loss from the mean cross-entropy of each vocabulary. */
double hth_model_loss(const struct hth_model *m, const double mean[HTH_IDS_MAX]);

/* For the simulator's clock. */
double hth_pass_forward_flops(const struct hth_pass *pass, uint32_t l);
double hth_pass_dense_flops(const struct hth_pass *pass);
double hth_pass_head_flops(const struct hth_pass *pass);

/* ---- choices --------------------------------------------------------------------------------- */

/* Without numbers: draws k live experts for each unit from rng. */
void hth_pass_choose(struct hth_pass *pass, uint32_t l, struct hth_rng *rng);
/* Turns index into targets and pairs; leaves out choices whose expert has no host that may be
 * asked. */
void hth_pass_route(struct hth_pass *pass, uint32_t l, struct hth_transport *transport);
/* Picks the pairs that answered (ok), in the same order, for the backward. Loop or job. */
void hth_pass_pick_back(struct hth_pass *pass, uint32_t l);
/* Without numbers: sets ok and the counts from the verdicts alone. */
void hth_pass_ok_from_verdicts(struct hth_pass *pass, uint32_t l);

/* ---- the model, as passes see it ------------------------------------------------------------- */

/* Weights that layers may share. */
struct hth_model_set {
    struct hth_weight *wqkv, *bqkv, *wo, *bo; /* lm, picture; bqkv may be NULL */
    struct hth_weight *w1, *b1, *w2, *b2;     /* dense */
    struct hth_grid grid;                     /* with experts */
};

/* A layer's own weights. */
struct hth_model_layer {
    struct hth_weight *attn_gamma, *attn_beta; /* lm, picture */
    struct hth_weight *attn_scale, *ffn_scale; /* NULL: none */
    struct hth_weight *gamma, *beta;
    struct hth_weight *wgate, *bgate; /* with experts */
    struct hth_mask mask;             /* lm, picture */
    struct hth_model_set *set;
};

/* A vocabulary: ids or codes. */
struct hth_model_ids {
    uint32_t count;
    struct hth_weight *embedding; /* [count, d], or [count, e] where it is factorised */
    struct hth_weight *bias;      /* of the logits */
};

/* A stretch of the flat buffer. */
struct hth_stretch {
    size_t first, count;
};

struct hth_model {
    struct hth_model_opts opts;
    char *prefix, *expert_kind; /* the strings that opts point to */
    const struct hth_backend *backend;
    struct hth_exec *exec;
    struct hth_params *params;
    struct hth_rope *rope;
    uint32_t block_rows;  /* B */
    uint32_t table_width; /* W */
    uint32_t ids_count; /* vocabularies: 1, picture: 2; the classes of a classifier count as one */
    struct hth_model_ids ids[HTH_IDS_MAX];
    struct hth_weight *factor;    /* P [e, d]; NULL: the embedding is not factorised */
    struct hth_weight *win, *bin; /* classifier */
    struct hth_model_set set[HTH_MODEL_LAYERS_MAX];
    struct hth_model_layer layer[HTH_MODEL_LAYERS_MAX];
    struct hth_weight *gamma, *beta;
    struct hth_weight *wout; /* NULL: tied */
    /* Gradients of each segment: its own; with `share` of its set; of the input's tensors. */
    struct hth_stretch own[HTH_MODEL_LAYERS_MAX + 1], shared[HTH_MODEL_LAYERS_MAX], input;
    struct hth_beam *beam, *beam_plain; /* with the noise of training; without */
};

/* A flat buffer of the trunk as plain memory: the buffer itself, or a copy from a card, which _give
 * copies back if `wrote`. (job) Errors: E_NO_MEMORY, E_UNSUPPORTED (no such part), the card's. */
enum hth_err hth_model_flat_take(struct hth_model *model, enum hth_part part, float **out) HTH_MUST;
enum hth_err hth_model_flat_give(struct hth_model *model, enum hth_part part, float *flat,
                                 bool wrote) HTH_MUST;

#endif
