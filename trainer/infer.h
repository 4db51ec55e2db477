/* SPDX-License-Identifier: Apache-2.0 */
/*
 * infer.h: computes with a trained model: logits of rows, with its experts in this process or on
 * their hosts. Writing, filling in, predicting, drawing and evaluating stand on it.
 *
 * Two kinds of call, one at a time:
 *
 *   whole   complete samples, as in training but without gradients: classifiers, masked models,
 *           the loss of a data set
 *   grow    sequences that grow by a few rows per call. Each layer keeps the keys and values of
 *           their rows (kernels/ops.h), so that no row is computed twice. A row's logits are those
 *           of a whole call; on the reference back end bit for bit. A sequence has at most
 *           `positions` rows (model.context): its user then forgets it and grows it anew from
 *           fewer.
 *
 * Memory of the model: its trunk, without gradients and states; for growth 8 d bytes a position,
 * layer and sequence. Experts are found and asked as in training (trainer.h): a unit whose hosts
 * are gone keeps its residual path and is counted, and the call goes on.
 *
 * Loop thread only. With local experts, hth_infer_new, which reads files and makes a model, may be
 * a job, and so may hth_infer_free while no call is under way. It borrows env, rpc, directory and
 * backend, which must outlive it. `done` is called once for each call that began, not inside it,
 * and may make the next call.
 */
#ifndef HTH_TRAINER_INFER_H
#define HTH_TRAINER_INFER_H

#include "trainer/trained.h"
#include "trainer/trainer.h"

struct hth_infer;

struct hth_infer_opts {
    const struct hth_backend *backend; /* NULL: the reference back end */
    struct hth_model_opts model;
    const struct hth_trained *trained;  /* its values; borrowed during _new */
    uint32_t rows;                      /* the most of one call, over all samples */
    bool local;                         /* experts in this process */
    const char *experts_dir;            /* local: their files; borrowed during _new, as is `run` */
    struct hth_train_optim local_optim; /* local: that they were trained with */
    const char *run;                    /* local: its name; another run's files are refused */
    struct hth_rpc *rpc;                /* experts elsewhere */
    struct hth_directory *directory;
    int64_t grace_us, timeout_us; /* 0: the client's */
    enum hth_dtype wire;          /* of rows on the wire; 0: fp32 */
    struct hth_budget *budget;    /* for requests, or NULL */
    struct hth_why *why;          /* what a file lacks; or NULL */
};
#define HTH_INFER_OPTS_INIT                                                                        \
    {                                                                                              \
        .model = HTH_MODEL_OPTS_INIT, .local_optim = HTH_TRAIN_OPTIM_INIT, .rows = 64              \
    }

/* Errors: E_CONFIG, those of hth_model_new, of hth_trained_fill and of loading an expert, of which
 * none may be missing. `why` says more about a file. */
enum hth_err hth_infer_new(struct hth_env *env, const struct hth_infer_opts *opts,
                           struct hth_infer **out) HTH_MUST;
/* Abandons a call under way. Not from a `done`. NULL is fine. */
void hth_infer_free(struct hth_infer *infer);
const struct hth_model_opts *hth_infer_model(const struct hth_infer *infer);
/* The most rows of one call. */
uint32_t hth_infer_rows(const struct hth_infer *infer);
/* The layer with the fewest live experts: how many; asks for them when there are none. */
uint32_t hth_infer_live(struct hth_infer *infer);

typedef void hth_infer_done_fn(void *arg, enum hth_err err);

/* Where the caller writes the samples of a whole call: x [samples, features] of a classifier, else
 * tokens [samples * seq_len]; labels [samples * seq_len], all HTH_LABEL_NONE when not wanted. */
struct hth_infer_batch {
    float *x;
    int32_t *tokens, *labels;
};
struct hth_infer_batch hth_infer_batch(struct hth_infer *infer);
/* Errors: E_TOO_LARGE (over `rows`), E_BUSY. */
enum hth_err hth_infer_whole(struct hth_infer *infer, uint32_t samples, hth_infer_done_fn *done,
                             void *arg) HTH_MUST;
/* The same of one sample that has only its first `rows` rows, 1 .. seq_len: of an lm. */
enum hth_err hth_infer_part(struct hth_infer *infer, uint32_t rows, hth_infer_done_fn *done,
                            void *arg) HTH_MUST;

/* Begins that many empty sequences; those before are forgotten. Errors: E_UNSUPPORTED (a model
 * whose rows see later rows: a classifier, a masked one, one whose experts take whole sequences; a
 * card), E_NO_MEMORY, E_TOO_LARGE, E_BUSY. */
enum hth_err hth_infer_begin(struct hth_infer *infer, uint32_t sequences) HTH_MUST;
/* Adds `count` tokens to each sequence: tokens [sequences, count]. Of a picture the first call adds
 * the whole text (model.text ids), later ones add codes. Errors: E_TOO_LARGE (over `rows` in all,
 * or over the positions), E_BAD_SHAPE (another first call of a picture), E_RANGE (no such token),
 * E_BUSY. */
enum hth_err hth_infer_grow(struct hth_infer *infer, const int32_t *tokens, uint32_t count,
                            hth_infer_done_fn *done, void *arg) HTH_MUST;
/* Rows of each sequence so far, and at most. */
uint32_t hth_infer_grown(const struct hth_infer *infer);
uint32_t hth_infer_positions(const struct hth_infer *infer);

/* ---- results of the last call ---------------------------------------------------------------- */

/* After growth: logits of the last row of a sequence, of the next id, or of a picture's next code;
 * and how many there are. */
const float *hth_infer_next(const struct hth_infer *infer, uint32_t sequence);
uint32_t hth_infer_choices(const struct hth_infer *infer);
/* After a whole call, of vocabulary i (picture: 0 ids, 1 codes; else only 0): logits of its row,
 * counted over all samples; and the sums over its labels, which _mean turns into the loss of
 * model.h. */
#define HTH_INFER_VOCABULARIES_MAX 2
struct hth_infer_loss {
    double sum; /* of the cross-entropies, in nats */
    uint64_t counted, correct;
};
uint32_t hth_infer_vocabularies(const struct hth_infer *infer);
const float *hth_infer_logits(const struct hth_infer *infer, uint32_t i, uint32_t row);
struct hth_infer_loss hth_infer_loss(const struct hth_infer *infer, uint32_t i);
double hth_infer_mean(const struct hth_infer *infer,
                      const struct hth_infer_loss loss[HTH_INFER_VOCABULARIES_MAX]);

struct hth_infer_stats {
    uint64_t calls, rows;
    uint64_t units, units_without_expert; /* over layers: of the rows, or of their blocks */
};
void hth_infer_stats(const struct hth_infer *infer, struct hth_infer_stats *out);

#endif
