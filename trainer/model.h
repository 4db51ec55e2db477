/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * model.h: the trunk: every layer of a model that is not an expert, as a chain of segments.
 *
 * Three models, all pre-norm with a residual stream x [rows, d]:
 *
 *   classifier   x = W_in pixels + b_in;   N expert layers;   logits = W_out LayerNorm(x) + b_out
 *   lm           x = E[token];   N times { attention; expert layer or feed-forward };
 *                logits = W_out LayerNorm(x) + b_out
 *   picture      a sequence is T ids of a text and the H * W codes of its picture but the last:
 *                x = words[id] or codes[code];   N layers as of lm;   two heads:
 *                logits = LayerNorm(x) words^T + b  at positions 0 .. T - 2     of the next id
 *                logits = LayerNorm(x) codes^T + b  at positions T - 1 .. S - 1 of the next code
 *
 *   attention      x += s1 * (W_o attention(W_qkv LayerNorm(x) + b_qkv) + b_o)
 *   feed-forward   x += s2 * (W_2 geglu(W_1 LayerNorm(x) + b_1) + b_2),   W_1 [d, 8 d]
 *   expert layer   h = LayerNorm(x);  tables = W_gate pool(h) + b_gate;
 *                  experts are chosen by the beam search (gating/beam.h);
 *                  x += sum over survivors of w_j expert_j(h)
 *
 * where pool takes the mean over the rows of a unit (a unit is one row, or a whole sequence for
 * transformer experts), and survivors are the chosen experts that answered. A unit without a
 * survivor keeps x: the residual path. The layer scales s1, s2 [1, d] are parameters, or absent;
 * b_qkv exists only in an lm with experts.
 *
 * A `dense` model has feed-forwards and no experts. Options of lm and picture: `share` weight sets
 * that layers use in turns, with norms, layer scales and gates of their own (layers of one set ask
 * the same grid of experts); `tied`: W_out is E^T; `embed_dim` e: E = A P, A [ids, e], P [e, d].
 * Of lm: the objective `masked`. Some tokens are replaced, every row sees every row, and only these
 * tokens have a loss (BERT: of 15 %, 80 % become the mask, 10 % a drawn id, 10 % stay).
 *
 * The loss of picture is (mean over ids + w mean over codes) / (1 + w), each over the rows of the
 * micro-batch that have such a label. Masks, sharing and the form of layers are those of "Training
 * Transformers Together" (Borzunov et al., 2022); one set for all is ALBERT (Lan et al., 2019).
 *
 * Between the experts of two layers lies a *segment*, the unit of trunk work that one job does:
 *
 *   forward  0: input .. gate 0 | l: mixture l-1 .. gate l | N: mixture N-1 .. loss
 *   backward N: loss .. mixture N-1 | l: gate l .. mixture l-1 | 0: gate 0 .. input
 *
 * A dense model is one segment: nothing travels.
 *
 * All parameters lie in one flat hth_params. A segment's gradients are a few stretches of it: its
 * own, its shared set's, and the embedding's. Segments of a flight add to shared stretches in the
 * order of backward, so the bits of a gradient do not depend on other flights. A `struct hth_pass`
 * holds the activations of one flight.
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
#include "kernels/mask.h"

struct hth_backend;
struct hth_data_info;
struct hth_data_opts;
struct hth_params;
struct hth_model;

enum hth_model_kind { HTH_MODEL_CLASSIFIER, HTH_MODEL_LM, HTH_MODEL_PICTURE };
enum hth_objective { HTH_CAUSAL, HTH_MASKED };

#define HTH_MODEL_WHY_MAX 256

struct hth_model_opts {
    enum hth_model_kind kind;
    uint32_t d;             /* width of trunk and experts */
    uint32_t layers;        /* 1..HTH_MODEL_LAYERS_MAX */
    uint32_t heads;         /* divides d, d / heads is even; 0: d / 32, at least 1 */
    uint32_t features;      /* CLASSIFIER: numbers of one sample */
    uint32_t classes;       /* outputs; of LM and PICTURE: ids of text, 256 for bytes */
    uint32_t seq_len;       /* rows of one sample; PICTURE: text + height * width - 1 */
    bool dense;             /* feed-forwards in the trunk, no experts; not CLASSIFIER */
    uint32_t text;          /* PICTURE: ids of a text with its begin */
    uint32_t height, width; /* PICTURE: codes */
    uint32_t codes;         /* PICTURE: kinds of codes */
    float image_weight;     /* PICTURE: w */
    enum hth_mask_kind mask[HTH_MODEL_LAYERS_MAX]; /* PICTURE: of each layer's attention */
    uint32_t window;                               /* of CONV, odd */
    uint32_t share;     /* weight sets: layer l uses set l mod share; 0: each its own */
    bool share_last;    /* false: the last layer has a set of its own */
    bool tied;          /* PICTURE always is */
    uint32_t embed_dim; /* e, only with tied; 0: E is not factorised */
    float layer_scale;  /* initial value of s1, s2; 0: there are none */
    enum hth_objective objective;
    uint64_t data_hash;       /* of words and code book; goes into the schema */
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
        .expert_kind = "ffn", .top_k = 4, .balance = 0.01f, .k_min = 1, .image_weight = 7,         \
        .window = 5                                                                                \
    }

/* Whether such a model can be made on such a back end (NULL: any). Writes what is wrong, where in
 * the run file, and the remedy, to `why`. Errors: E_CONFIG, E_TOO_LARGE, E_UNSUPPORTED (the back
 * end lacks HTH_CAP_DENSE, which masks, feed-forwards, layer scales and tied outputs need). */
enum hth_err hth_model_check(const struct hth_model_opts *opts, const struct hth_backend *backend,
                             char why[HTH_MODEL_WHY_MAX]) HTH_MUST;
/* Errors: those of the check, E_NO_MEMORY. */
enum hth_err hth_model_new(const struct hth_backend *backend, const struct hth_model_opts *opts,
                           struct hth_model **out) HTH_MUST;
void hth_model_free(struct hth_model *model);
/* Counts the parameters of such a trunk without making it. Errors: those of the check. */
enum hth_err hth_model_count(const struct hth_model_opts *opts, uint64_t *parameters) HTH_MUST;
/* hth_model_schema, likewise. */
enum hth_err hth_model_find_schema(const struct hth_model_opts *opts, uint64_t *schema) HTH_MUST;
const struct hth_model_opts *hth_model_opts_of(const struct hth_model *model);
/* The trunk's parameters. */
struct hth_params *hth_model_params(struct hth_model *model);
/* The weight set, and with experts the grid, that layer l uses; and how many there are. */
uint32_t hth_model_set(const struct hth_model_opts *opts, uint32_t layer);
uint32_t hth_model_sets(const struct hth_model_opts *opts);
/* The grid of a set's experts. */
const struct hth_grid *hth_model_grid(const struct hth_model *model, uint32_t set);
/* Whether samples of that data have the model's shapes. */
bool hth_model_takes(const struct hth_model_opts *opts, const struct hth_data_opts *data,
                     const struct hth_data_info *info);
/* Hash of the names and shapes of all tensors and of the options that change what they mean. Trunks
 * that are averaged or resumed must have the same. */
uint64_t hth_model_schema(const struct hth_model *model);

#endif
