/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h: one hosted expert: a module, its optimiser, its counters, and its checkpoint.
 *
 * Gradients and the learning rate. A trainer's loss is a mean over the M rows of its micro-batch,
 * so what it sends for a row r is dL/dy_r = (1/M) dl_r/dy_r. The expert wants the mean gradient
 * over the rows it saw, whoever sent them in whatever pieces. For requests q with M_q declared, n_q
 * rows and weight gradient g_q = sum over its rows of (dy_r/dw)^T dL/dy_r, a step uses
 *
 *     G = (sum_q M_q g_q) / (sum_q n_q)
 *
 * so that ten requests of 1 row and one request of 10 give the same step, and the step's size
 * depends neither on the load nor on the size of the trainers' micro-batches. The accumulator holds
 * (sum_q M_q g_q) / M_acc, where M_acc is the last batch's M: no work at all while all trainers use
 * the same M, one pass over the gradients when M changes. Then: clip G to the global norm, decay,
 * step with the rate that the schedule gives for this step.
 *
 * Who may call what at the same time (the server keeps this rule, so there are no locks):
 *   any number of hth_expert_forward and _snapshot, together with at most one hth_expert_backward
 * (which works on several workers through its context's team); hth_expert_step, _load_ and _init
 * alone. All of these may run in jobs; _new, _free and the accessors belong to the owner's loop
 * thread while no job runs.
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
    struct hth_optim optim;       /* its lr is not used: the schedule's is */
    struct hth_schedule schedule; /* by the expert's own steps */
    float clip_norm;              /* of G; 0: no clipping */
    const struct hth_backend *backend;
    uint64_t run_seed; /* with the uid: the weights a new expert starts from */
};

#define HTH_EXPERT_OPTS_INIT                                                                       \
    {                                                                                              \
        .kind = "ffn",                                                                             \
        .optim = {.kind = HTH_OPTIM_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},           \
        .schedule = {.kind = HTH_SCHEDULE_CONSTANT, .lr = 1e-3f}, .clip_norm = 1.0f,               \
    }

/* Makes the object without its weights, which is quick; hth_expert_init or hth_expert_load_blob
 * fills them. Errors: E_CONFIG (kind, optimiser numbers), E_BAD_SHAPE, E_TOO_LARGE. */
enum hth_err hth_expert_new(const struct hth_expert_opts *opts, struct hth_expert **out) HTH_MUST;
/* NULL is fine. */
void hth_expert_free(struct hth_expert *expert);

/* Weights seeded by (run seed, uid), so that replicas start equal. Errors: E_NO_MEMORY. */
enum hth_err hth_expert_init(struct hth_expert *expert) HTH_MUST;

const struct hth_uid *hth_expert_uid(const struct hth_expert *expert);
const char *hth_expert_uid_text(const struct hth_expert *expert);
const struct hth_expert_kind *hth_expert_kind_of(const struct hth_expert *expert);
const struct hth_expert_shape *hth_expert_shape_of(const struct hth_expert *expert);
/* NULL before init, and always for kinds without weights. */
struct hth_params *hth_expert_params(struct hth_expert *expert);
/* Scratch that a context needs for one call on that many rows, or (rows 0) for a step; needs no
 * weights. */
size_t hth_expert_scratch_bytes(const struct hth_expert *expert, uint32_t rows, bool backward);

/* Errors of both: E_BAD_SHAPE (rows not whole blocks), and those of the kernels. */
enum hth_err hth_expert_forward(const struct hth_expert *expert, struct hth_exec *ex,
                                struct hth_view x, struct hth_view y) HTH_MUST;
/* rows_in_microbatch is the M of the equation above, at least 1. */
enum hth_err hth_expert_backward(struct hth_expert *expert, struct hth_exec *ex,
                                 uint32_t rows_in_microbatch, struct hth_view x, struct hth_view dy,
                                 struct hth_view dx) HTH_MUST;
/* Many experts of one kind and shape at once, each in one call: kinds that have `many` only, at
 * most HTH_MODULE_CALLS_MAX. `out` is y, or dx. An error is all calls'. */
struct hth_expert_pass {
    struct hth_expert *expert;
    uint32_t rows_in_microbatch; /* backward */
    uint32_t padding;            /* of the rows, the last ones: zeros, which count for nothing */
    struct hth_view x, dy, out;
};
/* hth_expert_backward of one that may be padded. */
enum hth_err hth_expert_backward_pass(struct hth_exec *ex,
                                      const struct hth_expert_pass *call) HTH_MUST;
enum hth_err hth_expert_many(struct hth_exec *ex, const struct hth_expert_pass *calls,
                             uint32_t count, bool backward) HTH_MUST;
/* Rows whose gradients wait for a step. */
uint64_t hth_expert_pending_rows(const struct hth_expert *expert);
/* One optimiser step from what is pending; nothing happens when nothing is. A gradient that is not
 * finite is dropped, not applied: E_NOT_FINITE. */
enum hth_err hth_expert_step(struct hth_expert *expert, struct hth_exec *ex) HTH_MUST;
/* Steps done since the weights were drawn; survives checkpoints. */
uint64_t hth_expert_steps(const struct hth_expert *expert);
float hth_expert_lr(const struct hth_expert *expert);

/* ---- checkpoints --------------------------------------------------------------------------- */

/* The whole state as the bytes of a safetensors file: weights under their names, moments as name.m
 * and name.v, and in the metadata what it takes to go on at the very same place (docs:
 * experts/store.c). What is pending is not in it: step first. Errors: E_NO_MEMORY. */
enum hth_err hth_expert_snapshot(const struct hth_expert *expert, struct hth_blob **out) HTH_MUST;
/* Takes the state from such bytes, or leaves the expert without weights. Errors: E_CORRUPT
 * (damaged, or no checkpoint of ours), E_BAD_SHAPE (another kind or shape), E_CONFIG (another
 * optimiser), E_WRONG_RUN (another expert), E_NOT_FINITE (a tensor holds NaN or infinity), E_RANGE
 * (squares below 0, more than HTH_EXPERT_STEPS_MAX steps), E_NO_MEMORY. */
enum hth_err hth_expert_load_blob(struct hth_expert *expert, const void *data, size_t len) HTH_MUST;

/* Whether the last load took the weights and not the moments. With clipping to c all gradients had
 * a norm of c at most, and Adam's moments are weighted means of them and of their squares, begun at
 * 0: so |m| <= c and sum(v) <= c^2. Moments beyond that come from steps without clipping, where one
 * stranger's gradient of 1e14 leaves 1e29 in v and the expert learns nothing for some 80,000 steps;
 * they begin anew, with m = 0 and v = c^2 / weights. Not told: SGD, and Adam with weight decay,
 * where the weights are part of what is averaged. */
bool hth_expert_moments_renewed(const struct hth_expert *expert);

/* "<dir>/<uid>.safetensors"; heap string. */
char *hth_expert_path(const char *dir, const struct hth_expert *expert);
/* From a file, which is left alone whatever it holds. Errors: those above, and those of the env's
 * files: E_NO_FILE when there is none yet. Any job. */
enum hth_err hth_expert_load_file(struct hth_expert *expert, struct hth_env *env,
                                  const char *path) HTH_MUST;

#endif
