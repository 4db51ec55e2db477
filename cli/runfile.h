/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runfile.h: parses a run file, which describes one training: model, data, optimisers. All peers of
 * a swarm use the same run file; options set what differs between machines (addresses, paths, the
 * number of experts).
 *
 *   run: fashion              # name of the swarm; peers with another name never meet
 *   seed: 1
 *   compute: auto             # fp32 | bf16 | auto: type of products, in trunk and experts;
 *                             # auto: each machine's fastest, which its record announces
 *   model:
 *     kind: classifier        # classifier | lm | picture
 *     dim: 64                 # width of the trunk and of every expert
 *     layers: 2               # layers of experts, named ffn0, ffn1, ...
 *     grid: [4, 4]            # 1 to 3 dimensions of experts in each layer
 *     top_k: 4
 *   data:
 *     kind: fashion-mnist     # fashion-mnist | text | set, a folder that hearth data made
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
 *   admission: { owner: 2fe3... }   # closes the run: only peers with an invite take part;
 *                                   # private: true hides it
 *
 * The parser is strict: an unknown key, a value of the wrong kind, a missing `run` or a number out
 * of range is E_CONFIG, and the error text names the file, the line, the key and, for an unknown
 * key, the nearest known one, or all. A value left out takes its default, and so does 0, except
 * where a comment below gives 0 a meaning.
 *
 * Any thread.
 */
#ifndef HTH_CLI_RUNFILE_H
#define HTH_CLI_RUNFILE_H

#include "core/base.h"
#include "core/limits.h"
#include "core/tensor.h"

#define HTH_RUNFILE_BYTES_MAX (64u << 10)
#define HTH_RUNFILE_ERROR_MAX 512

enum hth_run_compute { HTH_RUN_AUTO, HTH_RUN_FP32, HTH_RUN_BF16 };
enum hth_run_model_kind { HTH_RUN_CLASSIFIER, HTH_RUN_LM, HTH_RUN_PICTURE };
enum hth_run_objective { HTH_RUN_CAUSAL, HTH_RUN_MASKED };
enum hth_run_expert_kind { HTH_RUN_FFN, HTH_RUN_TRANSFORMER, HTH_RUN_NOP, HTH_RUN_NONE };
enum hth_run_data_kind { HTH_RUN_DATA_DEFAULT, HTH_RUN_FASHION_MNIST, HTH_RUN_TEXT, HTH_RUN_SET };
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
    double *clip_told; /* as in the file; NULL: left out */
    double clip;       /* bound of the gradient's global norm; left out: 1; 0 = off */
};

struct hth_run_model {
    enum hth_run_model_kind kind;
    uint32_t dim;
    uint32_t layers;
    uint32_t inputs;                  /* classifier: numbers of one picture */
    uint32_t classes;                 /* classifier */
    uint32_t heads;                   /* lm, picture */
    uint32_t context;                 /* lm: ids of one sequence */
    uint32_t vocab;                   /* lm, picture: ids of text (data/words.h) */
    char *words;                      /* SHA-256 of the list that ids come from; NULL: any */
    char *codebook;                   /* ... of the code book's file */
    enum hth_run_objective objective; /* lm */
    /* picture; trainer/model.h explains these and the next */
    uint32_t text, height, width, codes, window;
    double *image_weight_told; /* as in the file; NULL: left out */
    double image_weight;       /* left out: 7 */
    uint32_t *masks;           /* enum hth_mask_kind, repeated over the layers */
    uint32_t masks_count;
    uint32_t *last_mask_told; /* as in the file; NULL: left out */
    uint32_t last_mask;       /* left out: as `masks` say */
    /* lm, picture */
    uint32_t share, embed_dim;
    bool share_last, tied;
    double layer_scale;
    uint32_t *grid;
    uint32_t grid_count;
    uint32_t top_k;
    enum hth_run_expert_kind expert;
    double balance; /* weight of the load-balancing loss */
    double noise;   /* standard deviation added to gate scores while training */
};

struct hth_run_data {
    enum hth_run_data_kind kind;
    char *path; /* folder of the idx files or of the set, or the text file; NULL = Debian's path */
    uint32_t shuffle_rows;
    uint32_t shift;      /* classifier: each picture moves by at most this many pixels per axis */
    double caption_drop; /* picture: fraction of the samples that lose their caption */
};

struct hth_run_train {
    uint32_t rows;
    uint32_t flights;
    uint32_t steps;
    uint32_t eval_every; /* steps */
    uint32_t eval_rows;  /* 0 = the whole test set */
    uint32_t k_min;      /* replies a row needs before the grace time starts */
    double grace_s;      /* after k_min */
    double timeout_s;    /* upper bound of the adaptive deadline */
    uint32_t wire;       /* type of rows to and from experts: enum hth_dtype; 0: auto */
    uint32_t checkpoint_every;
};

struct hth_run_experts {
    struct hth_run_optimizer optimizer;
    uint32_t step_rows;
    double step_age_s;
    uint32_t batch_rows_max;
    double norm_max; /* bound of each row's gradient of its own loss (M dy); 0 = off */
};

/* Modes of averaging between trainers (trainer/share.h). */
enum hth_run_averaging_mode { HTH_RUN_LOCAL, HTH_RUN_BATCH, HTH_RUN_OFF };

enum hth_run_majority { HTH_RUN_EVENTUAL, HTH_RUN_STRICT };

struct hth_run_averaging {
    enum hth_run_averaging_mode mode;
    uint32_t *every_told; /* as in the file; NULL: left out */
    uint32_t every;       /* local: updates between rounds; left out: 10; 0: never */
    uint32_t format;      /* of matrices on the wire: enum hth_quant_format (kernels/quant.h) */
    bool states;          /* local: average the optimiser's states, too */
    uint64_t target;      /* batch: samples of a step, of all trainers together */
    bool delayed;         /* batch: gather the next batch while this one is averaged */
    enum hth_run_majority majority; /* batch: what a part without a quorum does */
    char *grid;                     /* "4x4": a fixed grid; NULL: by the number of trainers */
    uint32_t group;                 /* most members of a group */
    double clip;      /* a member further off than this many medians weighs less; 0: no clip */
    double share_max; /* no member reduces more than this many times the mean share */
};

struct hth_run_admission {
    char *owner;     /* public key in hex; NULL: anybody may take part */
    bool is_private; /* hidden from all who have no invite */
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
    struct hth_run_admission admission;
    char *text; /* the file as it was read; NULL: it is not UTF-8 */
};

/* Parses and checks a run file given as bytes; `name` appears in the error text. Free *out with
 * hth_runfile_free. Errors: E_CONFIG, E_TOO_LARGE; `error` then holds a line for a person. */
enum hth_err hth_runfile_parse(const char *name, const uint8_t *data, size_t len,
                               struct hth_runfile **out,
                               char error[HTH_RUNFILE_ERROR_MAX]) HTH_MUST;
void hth_runfile_free(struct hth_runfile *run);

/* One key of a run file, for people. */
enum hth_run_value {
    HTH_RUN_NUMBER,
    HTH_RUN_WORD,
    HTH_RUN_SWITCH,
    HTH_RUN_NAME,
    HTH_RUN_SIZES,
    HTH_RUN_WORDS
};
struct hth_run_key {
    const char *path;     /* "model.dim" */
    const char *unit;     /* of a number: "steps"; "": none */
    const char *fallback; /* the default: "64", "64, lm: 16"; "": the key is required, or none */
    enum hth_run_value kind;
    char value[256]; /* that holds, as in a file; "": none */
    char range[96];  /* "1 to 65536", "classifier, lm" */
};
/* Writes the keys in the order of a file, at most `max`; returns how many there are. */
size_t hth_runfile_keys(const struct hth_runfile *run, struct hth_run_key *out, size_t max);
/* The purpose of a key, without a newline at its end; "": no such key, or one of an expert's
 * optimiser, whose purpose is that of the trunk's. */
const char *hth_runfile_about(const char *path);

/* The canonical form: a line `key = value` for each value that is not the default of its
 * model.kind, without data.path, which differs between machines, and without admission.owner. So
 * neither comments nor the keys of a later version change it, nor options that were written over
 * values since the file was read. Heap string. */
char *hth_runfile_canonical(const struct hth_runfile *run);

/* The type of rows on the wire: train.wire, or the meaning of `auto`. */
enum hth_dtype hth_runfile_wire(const struct hth_runfile *run);

#endif
