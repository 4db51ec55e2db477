/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runfile.h: a run file says what is trained: the model, the data, the optimisers. Everybody in a
 * swarm uses the same one; what differs from machine to machine (addresses, paths, how many
 * experts) is said by flags.
 *
 *   run: fashion              # the swarm's name; peers with another name never meet
 *   seed: 1
 *   compute: auto             # fp32 | bf16 | auto: what products are rounded to, in trunk and
 *                             # experts; auto: each machine's fastest, which its record tells
 *   model:
 *     kind: classifier        # classifier | lm
 *     dim: 64                 # width of the trunk and of every expert
 *     layers: 2               # DMoE layers, named ffn0, ffn1, ...
 *     grid: [4, 4]            # 1 to 3 dimensions of experts in each layer
 *     top_k: 4
 *   data:
 *     kind: fashion-mnist     # fashion-mnist | text
 *     shift: 4                # each picture is moved by -4..4 pixels on both axes
 *   train:
 *     rows: 64                # per micro-batch
 *     flights: 8
 *     steps: 2000
 *     wire: auto              # fp32 | bf16 | fp16 | int8 | auto: rows to and from experts;
 *                             # auto: fp32 where compute is fp32, else bf16
 *   optimizer: { kind: adamw, rate: 0.001, schedule: cosine, warmup: 50 }
 *   experts:
 *     optimizer: { kind: adam, rate: 0.001 }
 *     step_rows: 64
 *
 * Strict: an unknown key, a value of the wrong kind, a missing `run` or a number out of range is
 * E_CONFIG, and the text names the file, the line, the key and (for an unknown one) the nearest key
 * that exists. A value left out takes the default; 0 means the default, too, but for the two `clip`
 * of optimisers, where it means none.
 */
#ifndef HTH_CLI_RUNFILE_H
#define HTH_CLI_RUNFILE_H

#include "core/base.h"
#include "core/limits.h"
#include "core/tensor.h"

#define HTH_RUNFILE_BYTES_MAX (64u << 10)
#define HTH_RUNFILE_ERROR_MAX 512

enum hth_run_compute { HTH_RUN_AUTO, HTH_RUN_FP32, HTH_RUN_BF16 };
enum hth_run_model_kind { HTH_RUN_CLASSIFIER, HTH_RUN_LM };
enum hth_run_expert_kind { HTH_RUN_FFN, HTH_RUN_TRANSFORMER, HTH_RUN_NOP };
enum hth_run_data_kind { HTH_RUN_FASHION_MNIST, HTH_RUN_TEXT };
enum hth_run_optim_kind { HTH_RUN_ADAM, HTH_RUN_ADAMW, HTH_RUN_SGD, HTH_RUN_LAMB };
enum hth_run_schedule { HTH_RUN_CONSTANT, HTH_RUN_LINEAR, HTH_RUN_COSINE };

struct hth_run_optimizer {
    enum hth_run_optim_kind kind;
    double rate;
    double weight_decay;
    double momentum;  /* sgd */
    double trust_max; /* lamb: bound of the trust ratio; 0: none */
    enum hth_run_schedule schedule;
    uint32_t warmup;   /* steps */
    uint32_t total;    /* steps until the schedule ends; 0 = train.steps */
    double *clip_told; /* as in the file; NULL: not there */
    double clip;       /* global norm; left out: 1; 0 = off */
};

struct hth_run_model {
    enum hth_run_model_kind kind;
    uint32_t dim;
    uint32_t layers;
    uint32_t heads;   /* lm */
    uint32_t context; /* lm: bytes of one sequence */
    uint32_t *grid;
    uint32_t grid_count;
    uint32_t top_k;
    enum hth_run_expert_kind expert;
    double balance; /* weight of the load-balancing loss */
    double noise;   /* standard deviation added to gate scores while training */
};

struct hth_run_data {
    enum hth_run_data_kind kind;
    char *path; /* folder of the idx files, or the text file; NULL = where Debian puts it */
    uint32_t shuffle_rows;
    uint32_t shift; /* fashion-mnist: pixels that each picture is moved by at most, on both axes */
};

struct hth_run_train {
    uint32_t rows;
    uint32_t flights;
    uint32_t steps;
    uint32_t eval_every; /* steps */
    uint32_t eval_rows;  /* 0 = the whole test set */
    uint32_t k_min;      /* answers a row needs before the grace time starts */
    double grace_s;      /* after k_min */
    double timeout_s;    /* ceiling of the adaptive deadline */
    uint32_t wire;       /* of rows to and from experts: enum hth_dtype; 0: auto */
    uint32_t checkpoint_every;
};

struct hth_run_experts {
    struct hth_run_optimizer optimizer;
    uint32_t step_rows;
    double step_age_s;
    uint32_t batch_rows_max;
    double norm_max; /* of each row's gradient of its own loss (M dy); 0 = off */
};

/* How trainers keep their trunks together (trainer/share.h). Wire formats are numbered as in
 * kernels/quant.h. */
enum hth_run_averaging_mode { HTH_RUN_LOCAL, HTH_RUN_BATCH, HTH_RUN_OFF };

struct hth_run_averaging {
    enum hth_run_averaging_mode mode;
    uint32_t *every_told; /* as in the file; NULL: not there */
    uint32_t every;  /* local: updates between rounds; batch: steps between averages of parameters;
                      * left out: 10, 100; 0 = never */
    uint32_t format; /* of matrices on the wire: enum hth_quant_format */
    bool states;     /* the optimiser's states are averaged as well */
    uint64_t target; /* batch: samples of a step, of all trainers together */
    double *quorum_told;
    double quorum;    /* batch: a step takes the values of more than this part of the trainers, or
                       * of all; left out: 0.5; 0 = of any */
    bool delayed;     /* batch: the next batch is gathered while this one is averaged */
    char *grid;       /* "4x4": a fixed grid; NULL: as many trainers as there are */
    uint32_t group;   /* members of a group at most */
    double clip;      /* who is further off than that many medians counts for less; 0: never */
    double share_max; /* of a vector nobody reduces more than so many times the mean share */
};

struct hth_runfile {
    char *run;
    uint64_t seed;
    enum hth_run_compute compute;
    struct hth_run_model model;
    struct hth_run_data data;
    struct hth_run_train train;
    struct hth_run_optimizer optimizer;
    struct hth_run_experts experts;
    struct hth_run_averaging averaging;
};

/* Reads and checks a run file given as bytes; `name` appears in the error text.
 * Errors: E_CONFIG, E_TOO_LARGE; `error` then holds one line for a person. Free with
 * hth_runfile_free. */
enum hth_err hth_runfile_parse(const char *name, const uint8_t *data, size_t len,
                               struct hth_runfile **out,
                               char error[HTH_RUNFILE_ERROR_MAX]) HTH_MUST;
void hth_runfile_free(struct hth_runfile *run);
/* The type that rows travel as: train.wire, or what `auto` means. */
enum hth_dtype hth_runfile_wire(const struct hth_runfile *run);

#endif
