/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * model.h: the trunk: every layer of a model that is not an expert, as a chain of segments.
 *
 * Two models, both pre-norm with a residual stream x [rows, d]:
 *
 *   classifier   x = W_in pixels + b_in;   N DMoE layers;   logits = W_out LayerNorm(x) + b_out
 *   lm           x = embedding[token];     N times { x += attention(LayerNorm(x)); DMoE layer };
 *                logits = W_out LayerNorm(x) + b_out
 *
 *   DMoE layer   h = LayerNorm(x);  tables = W_gate pool(h) + b_gate;
 *                experts are chosen by the beam search (gating/beam.h);
 *                x += sum over survivors of w_j expert_j(h)
 *
 * where pool takes the mean over the rows of a unit (a unit is one row, or a whole sequence for
 * transformer experts), and survivors are the chosen experts that answered. A unit without a
 * survivor keeps x: the residual path.
 *
 * Between the experts of two layers lies a *segment*, the unit of trunk work that one job does:
 *
 *   forward  0: input .. gate 0 | l: mixture l-1 .. gate l | N: mixture N-1 .. loss
 *   backward N: loss .. mixture N-1 | l: gate l .. mixture l-1 | 0: gate 0 .. input
 *
 * All parameters lie in one flat hth_params; those of a segment are contiguous in it, so that the
 * gradients of one segment are one stretch. A `struct hth_pass` holds the activations of one
 * flight.
 *
 * Threads: a model is used by one job at a time (the trainer keeps a queue); a pass belongs to its
 * flight. Nothing here allocates after _new, or waits.
 */
/* clang-format on */
#ifndef HTH_TRAINER_MODEL_H
#define HTH_TRAINER_MODEL_H

#include "core/base.h"
#include "core/limits.h"
#include "dht/uid.h"

struct hth_backend;
struct hth_params;
struct hth_model;

enum hth_model_kind { HTH_MODEL_CLASSIFIER, HTH_MODEL_LM };

struct hth_model_opts {
    enum hth_model_kind kind;
    uint32_t d;               /* width of trunk and experts */
    uint32_t layers;          /* DMoE layers, 1..HTH_MODEL_LAYERS_MAX */
    uint32_t heads;           /* LM; divides d, d / heads is even; 0: d / 32, at least 1 */
    uint32_t features;        /* CLASSIFIER: numbers of one sample */
    uint32_t classes;         /* outputs; 256 for bytes */
    uint32_t seq_len;         /* LM: rows of one sample */
    const char *layer_prefix; /* layer l's grid is named <prefix><l> */
    uint32_t grid_ndim;
    uint32_t grid_dim[HTH_GRID_DIMS_MAX];
    const char *expert_kind; /* "ffn", "transformer" (LM: a unit is a sequence), "nop" */
    uint32_t top_k;          /* experts per unit */
    uint32_t beam_width;     /* 0: the beam's default */
    float noise_std;         /* on gate scores, in training */
    float balance;           /* weight of the load-balancing loss; 0: off */
    uint32_t k_min;          /* answers of a unit below which it is counted as short */
    uint64_t seed;           /* weights and noise */
};
#define HTH_MODEL_OPTS_INIT                                                                        \
    {                                                                                              \
        .kind = HTH_MODEL_CLASSIFIER, .d = 64, .layers = 2, .features = 784, .classes = 10,        \
        .seq_len = 1, .layer_prefix = "ffn", .grid_ndim = 2, .grid_dim = {4, 4, 1},                \
        .expert_kind = "ffn", .top_k = 4, .balance = 0.01f, .k_min = 1                             \
    }

/* Errors: E_CONFIG (numbers that no model can have), E_TOO_LARGE, E_NO_MEMORY. */
enum hth_err hth_model_new(const struct hth_backend *backend, const struct hth_model_opts *opts,
                           struct hth_model **out) HTH_MUST;
void hth_model_free(struct hth_model *model);
/* Counts the parameters of such a trunk without making it. Errors: E_CONFIG, E_TOO_LARGE. */
enum hth_err hth_model_count(const struct hth_model_opts *opts, uint64_t *parameters) HTH_MUST;
const struct hth_model_opts *hth_model_opts_of(const struct hth_model *model);
/* The trunk's parameters. */
struct hth_params *hth_model_params(struct hth_model *model);
/* The grid of layer l's experts. */
const struct hth_grid *hth_model_grid(const struct hth_model *model, uint32_t layer);
/* Hash of the names and shapes of all tensors and of the model's options. Trunks that are averaged
 * or resumed must have the same. */
uint64_t hth_model_schema(const struct hth_model *model);

#endif
