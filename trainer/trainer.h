/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer.h: trains a model whose experts live elsewhere, with many micro-batches in the air.
 *
 * A *flight* is one micro-batch on its way: data, then for each layer gate, experts, mixture; loss;
 * then backward. Each flight is a state machine that advances when a job is done, when the experts
 * of a layer have answered, or when their deadline has passed; no thread ever waits. While one
 * flight's rows travel, the trunk works for the others, and so latency is hidden.
 *
 *   DATA -> FORWARD 0 -> EXPERTS 0 -> FORWARD 1 -> ... -> EXPERTS N-1 -> FORWARD N and loss
 *        -> EXPERTS' N-1 -> BACKWARD N-1 -> ... -> EXPERTS' 0 -> BACKWARD 0 -> APPLY
 *
 * Trunk updates are asynchronous: a flight uses the weights it finds at the start of each segment,
 * and its gradient is applied when it is ready, `staleness` updates later. A gradient is the mean
 * over the rows of its micro-batch; the experts receive the same mean with its row count
 * (experts/store.h says how they scale). A flight whose loss or gradient is not finite is dropped
 * and counted. Where trainers share a batch (share.h), gradients are summed instead, and an update
 * is one step of all.
 *
 * When most rows have no expert's answer for a while, training pauses until experts answer.
 *
 * With `rpc` and `directory` the experts are found in the directory and called over the network.
 * With `local` they live in this process: the same model, the reference that the network is
 * compared to. With `without_experts`, too, there are none and every row takes the residual path:
 * the control, which shows what the experts of a run add.
 *
 * With one flight everything is a function of the seed: a run that was stopped at a checkpoint and
 * resumed gives the same losses as one that wrote the same checkpoints and went on (as far as the
 * experts kept their state; local ones do, with `experts_dir`).
 *
 * Loop thread only. The trainer borrows env, rpc, directory, averager and backend, which must
 * outlive it. Callbacks never run inside a call of this header.
 */
#ifndef HTH_TRAINER_TRAINER_H
#define HTH_TRAINER_TRAINER_H

#include "averaging/averager.h"
#include "core/env.h"
#include "core/tensor.h"
#include "data/why.h"
#include "kernels/optim.h"
#include "trainer/data.h"
#include "trainer/model.h"
#include "trainer/share.h"

struct hth_directory;
struct hth_expert;
struct hth_rpc;
struct hth_trainer;

/* ---- statistics ------------------------------------------------------------------------------ */

#define HTH_STALENESS_BUCKETS 16 /* 0, 1, 2, .. 14, 15 and more */

struct hth_train_stats {
    uint64_t updates;      /* gradients applied to the trunk, since the very first start */
    uint64_t samples;      /* behind these updates */
    uint64_t own_samples;  /* trained on by this process */
    uint64_t rows;         /* samples times rows per sample */
    uint64_t epoch;        /* of the data */
    double loss, accuracy; /* of the last flight; accuracy is a fraction */
    double loss_ema, accuracy_ema;
    double grad_norm; /* of the trunk, before clipping */
    double lr;
    double samples_per_s;     /* moving average over about 10 s */
    double eta_s;             /* until the last update, by the last ten seconds; 0: unknown */
    uint64_t requests;        /* sent to hosts, retries included */
    uint64_t requests_failed; /* (batch, host) pairs that ended without an answer */
    uint64_t retries;
    uint64_t bytes_out, bytes_in; /* of tensors */
    /* Of training only; hth_eval_result counts the missing answers of an evaluation. */
    uint64_t answers, answers_missing; /* (unit, expert) pairs asked in forward, by verdict */
    uint64_t backward_missing;         /* of those asked in backward */
    /* Units without an answer, with fewer than k_min, with fewer than top_k; all units. */
    uint64_t rows_without_expert, rows_below_k_min, rows_short, rows_mixed;
    uint64_t answers_bad;        /* pairs, both ways, with numbers not finite or too large */
    uint64_t parts_bad;          /* request parts with such answers */
    uint64_t parts_refused;      /* request parts that the host refused */
    uint64_t claims_refused;     /* of hosts, that were found false (transport_prove.h) */
    uint64_t flights_not_finite; /* dropped because loss or gradient is not finite */
    uint64_t flights_failed;     /* dropped because of an error of this machine */
    uint64_t flights_landed;     /* with a gradient */
    uint32_t flights;            /* in the air */
    uint32_t live_experts;       /* in all layers */
    uint32_t hosts, hosts_dead;
    uint64_t staleness[HTH_STALENESS_BUCKETS]; /* updates of this process by their staleness */
    double staleness_mean;
    struct hth_share_stats share;
    bool waiting;       /* for experts to appear, or to answer: */
    bool starved;       /* most rows had no expert, and training pauses */
    int64_t waiting_us; /* how long, in all */
    uint64_t checkpoints, evals;
    int64_t unsaved_since_us; /* wall clock from which checkpoints fail; 0: the last is good */
    int64_t eval_us;          /* time in the air, summed over the micro-batches of evaluations */
};

struct hth_eval_result {
    uint64_t updates; /* of the trunk when the evaluation began */
    uint64_t samples;
    double loss;          /* of model.h, in nats */
    double accuracy;      /* fraction of the rows with a label; of picture: of the codes */
    double bits_per_byte; /* loss / ln 2 */
    double bits_per_code; /* picture: mean cross-entropy of a code / ln 2 */
    uint64_t rows_without_expert;
};

struct hth_train_callbacks {
    /* After each applied update. */
    void (*on_update)(void *arg, const struct hth_train_stats *stats);
    void (*on_eval)(void *arg, const struct hth_eval_result *result);
    void (*on_checkpoint)(void *arg, uint64_t updates, enum hth_err err);
    /* Once: all updates are done (HTH_OK), or training can't continue (data or memory). The caller
     * then calls hth_trainer_free. */
    void (*on_done)(void *arg, enum hth_err err);
    void *arg;
};

/* ---- options --------------------------------------------------------------------------------- */

/* How the optimiser updates the weights of the trunk, or of local experts. */
struct hth_train_optim {
    struct hth_optim optim;       /* its lr is not used; the schedule gives it */
    struct hth_schedule schedule; /* counted in updates */
    float clip_norm;              /* global norm of the gradient; 0: no clipping */
};
#define HTH_TRAIN_OPTIM_INIT                                                                       \
    {                                                                                              \
        .optim = {.kind = HTH_OPTIM_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},           \
        .schedule = {.kind = HTH_SCHEDULE_CONSTANT, .lr = 1e-3f}, .clip_norm = 1.0f                \
    }

struct hth_trainer_opts {
    const struct hth_backend *backend; /* NULL: the reference back end */
    struct hth_rpc *rpc;               /* unused when local */
    struct hth_directory *directory;   /* unused when local */
    struct hth_averager *averager;     /* NULL: parameters are not averaged */
    struct hth_model_opts model;
    struct hth_data_opts data;
    struct hth_data_opts eval_data; /* used when eval_every > 0 or hth_trainer_eval is called */
    bool has_eval_data;
    struct hth_train_optim optim; /* of the trunk */
    uint32_t micro_batch;         /* samples of one flight */
    uint32_t flights;             /* in the air at once */
    uint64_t updates_max;         /* total, a resumed run's earlier ones included */
    uint64_t eval_every;          /* in updates; 0: only by hth_trainer_eval */
    uint64_t eval_samples;        /* 0: all */
    uint64_t eval_samples_last;   /* for the evaluation after the last update; 0: eval_samples */
    const char *checkpoint_path;  /* NULL: none */
    const char *run_text;         /* the run file, for checkpoints; borrowed; NULL: none */
    uint64_t checkpoint_every;    /* in updates; 0: only in hth_trainer_stop */
    uint64_t disk_bytes_max;      /* of the checkpoint and its copies (experts/ring.h); 0: none */
    /* Checkpoints that stay (saved.h), besides the best; 0: none. Then each evaluation begins with
     * one, so that the best is there. */
    uint32_t keep;
    bool resume;         /* from checkpoint_path, if that file exists */
    const char *run;     /* its name, for checkpoints: another run's is refused; NULL: any */
    struct hth_why *why; /* what is wrong with that file; may be NULL */
    struct hth_share_opts share;  /* with other trainers */
    uint32_t experts_min;         /* live experts in each layer before flights start */
    int64_t grace_us, timeout_us; /* 0: the client's */
    enum hth_dtype wire;          /* of rows on the wire (experts/rows.h); 0: fp32 */
    struct hth_budget *budget;    /* for requests, or NULL */
    bool local;                   /* experts in this process */
    bool without_experts;         /* local: no experts; such rows are not counted as lost */
    struct hth_train_optim local_optim;
    uint64_t local_step_rows; /* rows before a local expert steps; 1: each request */
    /* Local experts are saved here before each checkpoint of the trunk, in the files of a host
     * (experts/store.h), and loaded on `resume`; NULL: they live as long as the trainer. */
    const char *experts_dir;
    struct hth_train_callbacks on;
};
#define HTH_TRAINER_OPTS_INIT                                                                      \
    {                                                                                              \
        .model = HTH_MODEL_OPTS_INIT, .data = HTH_DATA_OPTS_INIT, .eval_data = HTH_DATA_OPTS_INIT, \
        .optim = HTH_TRAIN_OPTIM_INIT, .micro_batch = 64, .flights = 4, .updates_max = 1000,       \
        .share = HTH_SHARE_OPTS_INIT, .experts_min = 1, .local_optim = HTH_TRAIN_OPTIM_INIT,       \
        .local_step_rows = 1                                                                       \
    }

/* Opens the data and creates the trunk, or resumes it; call it at the start of a program. Flights
 * start with hth_trainer_start. Errors: E_CONFIG, those of hth_data_open and hth_model_new; for a
 * checkpoint E_CORRUPT, E_WRONG_RUN (of another model or seed), E_NO_MEMORY, those of reading a
 * file, and those of loading a local expert, of which none may be missing beside a trunk. A missing
 * checkpoint is no error. `why` explains an error of the checkpoint, and is "" after any other
 * error. */
enum hth_err hth_trainer_new(struct hth_env *env, const struct hth_trainer_opts *opts,
                             struct hth_trainer **out) HTH_MUST;
/* Abandons all flights at once. NULL is allowed. Not from a callback. */
void hth_trainer_free(struct hth_trainer *trainer);

void hth_trainer_start(struct hth_trainer *trainer);
/* Lets the flights land, writes a checkpoint when there is a path, then calls done once. */
void hth_trainer_stop(struct hth_trainer *trainer, hth_fn *done, void *arg);
/* Tells the trainer that the roster has changed, so that it reads it again. Call it from the
 * roster's on_change. */
void hth_trainer_nudge(struct hth_trainer *trainer);
/* For the endpoint's on_peer_lost. */
void hth_trainer_peer_lost(struct hth_trainer *trainer, const struct hth_peer_id *peer);
/* Starts an evaluation beside the training, as soon as possible. Errors: E_CONFIG (no eval_data),
 * E_BUSY (one is under way). */
enum hth_err hth_trainer_eval(struct hth_trainer *trainer) HTH_MUST;

void hth_trainer_stats(const struct hth_trainer *trainer, struct hth_train_stats *out);
/* Sums up the last steps: for people, not for each step. */
void hth_trainer_contribution(const struct hth_trainer *trainer, struct hth_contribution *out);
struct hth_collab;
/* Its part in a roll call, to look at; NULL: none. */
const struct hth_collab *hth_trainer_collab(const struct hth_trainer *trainer);
/* The model, for tests and tools; read it only while no flight is in the air. */
struct hth_model *hth_trainer_model(struct hth_trainer *trainer);
/* A local trainer's experts, in order of layer and index; NULL past the last or when
 * not local or without experts. */
struct hth_expert *hth_trainer_local_expert(struct hth_trainer *trainer, uint32_t layer,
                                            uint32_t index);

#endif
