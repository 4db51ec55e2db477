/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h: one hosted expert: a module, its optimiser, its counters, and its checkpoint.
 *
 * Gradients and the learning rate. A trainer's loss is a mean over the M rows of its micro-batch,
 * so it sends dL/dy_r = (1/M) dl_r/dy_r for a row r. The expert needs the mean gradient over all
 * rows it computed, of any senders and request sizes. For requests q with M_q declared, n_q rows
 * and weight gradient g_q = sum over its rows of (dy_r/dw)^T dL/dy_r, a step uses
 *
 *     G = (sum_q M_q g_q) / (sum_q n_q)
 *
 * so that ten requests of 1 row and one request of 10 give the same step, and the step's size
 * depends neither on the load nor on the size of the trainers' micro-batches. The accumulator holds
 * (sum_q M_q g_q) / M_acc, where M_acc is the last batch's M: no work while all trainers use the
 * same M, one pass over the gradients when M changes. Then the step clips G to the global norm,
 * decays, and uses the rate that the schedule gives for this step.
 *
 * Calls in parallel (the server keeps this rule, so there are no locks): any number of
 * hth_expert_forward and _snapshot run together with at most one hth_expert_backward, which uses
 * several workers through its context's team; hth_expert_step, _load_ and _init run alone. All of
 * these may run in jobs; _new, _free and the accessors belong to the owner's loop thread while no
 * job runs.
 */
#ifndef HTH_EXPERTS_STORE_H
#define HTH_EXPERTS_STORE_H

#include "core/base.h"
#include "core/blob.h"
#include "core/env.h"
#include "dht/uid.h"
#include "experts/kind.h"
#include "kernels/optim.h"

struct hth_expert;

struct hth_expert_opts {
    struct hth_uid uid;
    const char *kind; /* "ffn", "transformer", "nop" */
    struct hth_expert_shape shape;
    struct hth_optim optim;       /* its lr is not used: the schedule gives the rate */
    struct hth_schedule schedule; /* by the expert's own steps */
    float clip_norm;              /* of G; 0: no clipping */
    const struct hth_backend *backend;
    uint64_t run_seed; /* draws a new expert's weights, together with the uid */
    const char *run;   /* name in its checkpoints, borrowed; NULL: none, and any is loaded */
    /* The run file, for the checkpoint's metadata; NULL: none. Borrowed while the expert lives. */
    const char *run_text;
};

#define HTH_EXPERT_OPTS_INIT                                                                       \
    {                                                                                              \
        .kind = "ffn",                                                                             \
        .optim = {.kind = HTH_OPTIM_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},           \
        .schedule = {.kind = HTH_SCHEDULE_CONSTANT, .lr = 1e-3f}, .clip_norm = 1.0f,               \
    }

/* Makes the object without its weights, in little time; hth_expert_init or hth_expert_load_blob
 * makes them. Errors: E_CONFIG (kind, optimiser numbers), E_BAD_SHAPE, E_TOO_LARGE. */
enum hth_err hth_expert_new(const struct hth_expert_opts *opts, struct hth_expert **out) HTH_MUST;
/* NULL is fine. */
void hth_expert_free(struct hth_expert *expert);

/* Draws the weights from (run seed, uid), so that replicas start equal. Errors: E_NO_MEMORY. */
enum hth_err hth_expert_init(struct hth_expert *expert) HTH_MUST;

const struct hth_uid *hth_expert_uid(const struct hth_expert *expert);
const char *hth_expert_uid_text(const struct hth_expert *expert);
const struct hth_expert_kind *hth_expert_kind_of(const struct hth_expert *expert);
const struct hth_expert_shape *hth_expert_shape_of(const struct hth_expert *expert);
/* NULL before init, and always for kinds without weights. */
struct hth_params *hth_expert_params(struct hth_expert *expert);
/* Scratch that a context needs for one call on that many rows, or (rows 0) for a step; works before
 * the weights exist. */
size_t hth_expert_scratch_bytes(const struct hth_expert *expert, uint32_t rows, bool backward);

/* Errors of both: E_BAD_SHAPE (rows not whole blocks), and those of the kernels. */
enum hth_err hth_expert_forward(const struct hth_expert *expert, struct hth_exec *ex,
                                struct hth_view x, struct hth_view y) HTH_MUST;
/* rows_in_microbatch is the M of the equation above, at least 1. */
enum hth_err hth_expert_backward(struct hth_expert *expert, struct hth_exec *ex,
                                 uint32_t rows_in_microbatch, struct hth_view x, struct hth_view dy,
                                 struct hth_view dx) HTH_MUST;
/* One call of hth_expert_many, which computes up to HTH_MODULE_CALLS_MAX different experts of one
 * kind and shape at once. The kind must have `many`. `out` is y, or dx. An error holds for all
 * calls. */
struct hth_expert_pass {
    struct hth_expert *expert;
    uint32_t rows_in_microbatch; /* backward */
    uint32_t padding;            /* the last rows that are zeros and do not count */
    uint32_t uncounted;          /* other rows that do not count: the caller has made dy tiny */
    struct hth_view x, dy, out;
};
/* hth_expert_backward of rows that may be padded. */
enum hth_err hth_expert_backward_pass(struct hth_exec *ex,
                                      const struct hth_expert_pass *call) HTH_MUST;
enum hth_err hth_expert_many(struct hth_exec *ex, const struct hth_expert_pass *calls,
                             uint32_t count, bool backward) HTH_MUST;
/* Rows whose gradients wait for a step. */
uint64_t hth_expert_pending_rows(const struct hth_expert *expert);
/* One optimiser step from the pending gradients; does nothing when none are pending. A gradient
 * that is not finite is dropped: E_NOT_FINITE. */
enum hth_err hth_expert_step(struct hth_expert *expert, struct hth_exec *ex) HTH_MUST;
/* Forgets the pending gradients, without a step. Runs alone, as a step does. */
void hth_expert_drop(struct hth_expert *expert);
/* Steps done since the weights were drawn; survives checkpoints. */
uint64_t hth_expert_steps(const struct hth_expert *expert);
float hth_expert_lr(const struct hth_expert *expert);

/* ---- checkpoints --------------------------------------------------------------------------- */

/* The whole state as the bytes of a safetensors file: weights under their names, moments as name.m
 * and name.v, and the metadata that continues training at the same place (experts/store.c lists
 * it). Pending gradients are not in it: step first. Errors: E_NO_MEMORY. */
enum hth_err hth_expert_snapshot(const struct hth_expert *expert, struct hth_blob **out) HTH_MUST;
/* The same without the moments: for others, who do not train it on. */
enum hth_err hth_expert_weights(const struct hth_expert *expert, struct hth_blob **out) HTH_MUST;
/* Loads the state from such bytes; after an error the expert has no weights. Errors: E_CORRUPT
 * (damaged, or not our checkpoint), E_BAD_SHAPE (another kind or shape), E_CONFIG (another
 * optimiser), E_WRONG_RUN (another expert, or another run's), E_NOT_FINITE (a tensor holds NaN or
 * infinity), E_RANGE (squares below 0, more than HTH_EXPERT_STEPS_MAX steps), E_NO_MEMORY. */
enum hth_err hth_expert_load_blob(struct hth_expert *expert, const void *data, size_t len) HTH_MUST;

/* True if the last load took the weights and reset the moments. With clipping to c all gradients
 * have a norm of at most c, and Adam's moments are weighted means of them and of their squares,
 * begun at 0: so |m| <= c and sum(v) <= c^2. Larger moments come from steps without clipping, where
 * one peer's gradient of 1e14 leaves 1e29 in v and the expert learns nothing for some 80,000 steps.
 * The load then sets m = 0 and v = c^2 / weights. It does not check SGD, and Adam with weight
 * decay, where the weights are part of the averages. */
bool hth_expert_moments_renewed(const struct hth_expert *expert);

/* "<dir>/<uid>.safetensors"; heap string. */
char *hth_expert_path(const char *dir, const struct hth_expert *expert);
/* Loads the state from a file, which it never changes. Errors: those of hth_expert_load_blob, and
 * those of the env's files: E_NO_FILE when there is none. Any job. */
enum hth_err hth_expert_load_file(struct hth_expert *expert, struct hth_env *env,
                                  const char *path) HTH_MUST;

#endif
