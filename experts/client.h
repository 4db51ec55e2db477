/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * client.h: a trainer's calls to experts: one request per host, whatever the number of rows and
 * experts.
 *
 * A *batch* is one layer's step for one micro-batch: a list of pairs (unit, target), where a unit
 * is a row of x (for transformer experts a sequence of block_rows rows) and a target is an expert
 * on a host. The client sorts the pairs by host, expert and unit, gathers each host's rows into one
 * tensor by a job, sends one request per host, and calls back once:
 *
 *   forward    y of pair i = expert(x[unit of i])
 *   backward   x and dy (row block i of dy belongs to pair i)  ->  dx of pair i; the experts learn
 *
 * Every pair gets exactly one verdict: HTH_OK with its rows, or the error of its host or its
 * expert. When each unit has k_min answers, or can't get more, a grace period runs; then the client
 * cancels the rest, which gets E_TIMEOUT. A host that fails costs only its own pairs.
 *
 * Retries, within timeout_us: after BUSY when the refusal allows it; after a lost connection once,
 * on the replica if the target names one (forward only: a gradient is sent to the host that
 * answered the forward). A repeated backward carries the same idempotency key, so that no host
 * applies it twice. Deadlines of single calls adapt to the host (rpc/deadline.h), up to timeout_us.
 *
 * The forward of a training step says that a backward follows (`keep`). Hosts that can then keep
 * their rows, and the backward names them instead of sending them again (`forward`): a request
 * whose pairs are those of one forward request, answered by the same host, carries dy alone. A host
 * that no longer has the rows says so and gets them. The answer is the same either way.
 *
 * After the callback the caller reads the verdicts (loop thread) and the rows, in a job, with
 * hth_expert_batch_unpack, which also refuses rows with bad numbers. Then, on the loop again,
 * hth_expert_batch_judge reports the verdict of each part. The batch holds references on the
 * replies until hth_expert_batch_free.
 *
 * Hosts are not trusted, and one number of 3e38 makes a sum infinite. So the client checks the
 * *gain* of each pair, in root mean squares over its rows:
 *
 *   forward    |y| / max(|x|, 1)    x is a LayerNorm's output: about 1 for each number
 *   backward   |dx| / |dy|          linear in dy: of any size, the expert's slope
 *
 * A pair is refused, which costs its row that expert, if it is not finite, its norm is above
 * HTH_EXPERT_NUMBER_MAX, or its gain is above `gain_max`. Honest gains lie between 0.1 and 10
 * (docs/operations.md, Safety). The default limit is a multiple of the usual gain: the lower
 * quartile over the pairs of a batch, which no single host decides, and at least 1, so that one
 * host's small numbers don't refuse another's.
 *
 * Threads: the loop thread, except for hth_expert_batch_unpack. The client must outlive its
 * batches.
 */
/* clang-format on */
#ifndef HTH_EXPERTS_CLIENT_H
#define HTH_EXPERTS_CLIENT_H

#include "core/base.h"
#include "core/env.h"
#include "core/limits.h"
#include "core/tensor.h"
#include "rpc/rpc.h"

struct hth_expert_client;
struct hth_expert_batch;

/* The verdict of one request to a host: HTH_OK, or its error. For breakers and directories; called
 * before the batch's callback. rtt_us is 0 when nothing was sent. hth_expert_batch_judge reports
 * later whether the answer could be used. */
typedef void hth_expert_host_fn(void *arg, const struct hth_peer_id *host, enum hth_err err,
                                int64_t rtt_us);
/* The verdict of one request part: HTH_OK, the host's refusal, E_NOT_FINITE, or E_RANGE where
 * numbers or gains were too large. `gain` is the largest of the part's finite rows, 0 without any.
 * E_BUSY: the host refused the whole request, retries included. */
typedef void hth_expert_part_fn(void *arg, const struct hth_peer_id *host, const uint32_t *coord,
                                enum hth_err err, double gain);

struct hth_expert_client_opts {
    int64_t timeout_us;          /* of a batch whose call has 0 */
    int64_t grace_us;            /* after k_min, when the call has 0 */
    uint32_t busy_retries_max;   /* per host and batch */
    uint32_t lost_retries_max;   /* after a lost connection, per host and batch */
    struct hth_budget *budget;   /* of gathered requests, or NULL */
    hth_expert_host_fn *on_host; /* may be NULL */
    void *arg;                   /* of on_host */
};

#define HTH_EXPERT_CLIENT_OPTS_INIT                                                                \
    {                                                                                              \
        .timeout_us = 20 * HTH_US_PER_S, .grace_us = 500 * HTH_US_PER_MS, .busy_retries_max = 30,  \
        .lost_retries_max = 1,                                                                     \
    }

/* Errors: E_CONFIG. */
enum hth_err hth_expert_client_new(struct hth_env *env, struct hth_rpc *rpc,
                                   const struct hth_expert_client_opts *opts,
                                   struct hth_expert_client **out) HTH_MUST;
/* Cancels and frees the open batches without their callbacks. NULL is fine. */
void hth_expert_client_free(struct hth_expert_client *client);

/* An expert on a host. */
struct hth_expert_target {
    uint32_t coord[HTH_GRID_DIMS_MAX]; /* beyond ndim: zero */
    struct hth_peer_id host;
    struct hth_addr addr;
    bool has_replica; /* forward only */
    struct hth_peer_id replica_host;
    struct hth_addr replica_addr;
};

struct hth_expert_pair {
    uint32_t unit;   /* row, or sequence, of x */
    uint32_t target; /* index into targets */
};

struct hth_expert_call {
    const char *layer; /* name of the grid, at most HTH_NAME_LEN_MAX */
    uint32_t ndim;
    uint32_t block_rows;         /* rows per unit; 0 means 1 */
    struct hth_tensor x;         /* fp32 [units * block_rows, d]; referenced until the callback */
    bool keep;                   /* forward: a backward follows */
    struct hth_tensor dy;        /* backward: fp32 [pairs * block_rows, d]; blob NULL: forward */
    /* Backward: the finished forward of these units and targets, borrowed until hth_experts_call
     * returns, or NULL. The batch must be of the same layer and x. */
    const struct hth_expert_batch *forward;
    uint32_t rows_in_microbatch; /* backward: M of store.h's equation; 0: rows of x */
    const struct hth_expert_target *targets; /* copied */
    uint32_t targets_count;
    const struct hth_expert_pair *pairs; /* copied; a (unit, target) appears once */
    uint32_t pairs_count;
    uint32_t k_min;      /* answers per unit before the grace period; 0: wait for all */
    int64_t grace_us;    /* 0: the client's */
    int64_t timeout_us;  /* 0: the client's */
    enum hth_dtype wire; /* type of rows on the wire (experts/rows.h); 0: F32 */
    double gain_max;     /* 0: HTH_EXPERT_GAIN_FACTOR times the batch's usual gain */
    uint64_t trace_id;
};

typedef void hth_expert_batch_fn(void *arg, struct hth_expert_batch *batch);

/* Starts a forward (dy.blob NULL) or a backward. Calls `done` once, not inside this call; the
 * caller then owns the batch. Errors: E_BAD_SHAPE, E_RANGE (an index), E_DUPLICATE, E_TOO_LARGE
 * (more than HTH_EXPERT_PAIRS_MAX), E_BUDGET, E_NO_MEMORY, E_QUEUE_FULL. */
enum hth_err hth_experts_call(struct hth_expert_client *client, const struct hth_expert_call *call,
                              hth_expert_batch_fn *done, void *arg,
                              struct hth_expert_batch **out) HTH_MUST;
/* Frees a batch. Before the callback it cancels the requests, and `done` is not called. NULL is
 * fine. */
void hth_expert_batch_free(struct hth_expert_batch *batch);

/* ---- a finished batch ---------------------------------------------------------------------- */

uint32_t hth_expert_batch_pairs(const struct hth_expert_batch *batch);
/* One verdict per pair, in the order of the call's pairs. */
const enum hth_err *hth_expert_batch_verdicts(const struct hth_expert_batch *batch);
uint32_t hth_expert_batch_ok_count(const struct hth_expert_batch *batch);
/* The host that answered this target (the replica, perhaps): send the backward there. */
void hth_expert_batch_host(const struct hth_expert_batch *batch, uint32_t target,
                           struct hth_peer_id *host, struct hth_addr *addr);

struct hth_expert_batch_info {
    uint32_t hosts, hosts_failed;
    uint32_t requests; /* sent, retries included */
    uint32_t retries;
    uint64_t bytes_out, bytes_in; /* of tensors */
    int64_t elapsed_us;
};

void hth_expert_batch_info(const struct hth_expert_batch *batch, struct hth_expert_batch_info *out);

/* For a job, once: writes the rows of pair i to out + i * stride (stride in floats, at least
 * block_rows * d) as fp32 and sets ok[i] to 1. Pairs without an answer, and pairs refused for their
 * numbers, become zeros and ok[i] = 0. Returns how many pairs were refused. */
uint32_t hth_expert_batch_unpack(struct hth_expert_batch *batch, float *out, size_t stride,
                                 uint8_t *ok);
/* On the loop, after the callback and after unpacking, if the caller unpacks. Calls on_part for
 * each part of the requests that were answered or refused, and then on_host for each request that
 * was answered: HTH_OK, or the error of its last bad part if most parts were bad. Either may be
 * NULL. It skips errors that this client's own rows caused. Two refusals do not make a part bad:
 * E_NORM of a backward, the host's rule for gradients, and E_NO_SUCH_EXPERT, which follows from an
 * old record. Later calls do nothing. */
void hth_expert_batch_judge(struct hth_expert_batch *batch, hth_expert_host_fn *on_host,
                            hth_expert_part_fn *on_part, void *arg);
/* The usual gain of this batch, after unpacking: the lower quartile of its finite gains; 0 without
 * any. */
double hth_expert_batch_gain(const struct hth_expert_batch *batch);

/* ---- list of a host's experts -------------------------------------------------------------- */

struct hth_expert_info {
    char uid[HTH_NAME_LEN_MAX + 3 * 11 + 2];
    char kind[16];
    uint32_t d, block_rows;
    uint64_t steps, rows_forward, rows_backward;
    int64_t hosted_us; /* since its weights were ready there; whole seconds */
    bool returned;     /* the host had it less than a minute before it started */
};

/* Called once: err, or the experts first .. first + count - 1 of `total`. */
typedef void hth_expert_info_fn(void *arg, enum hth_err err, const struct hth_expert_info *infos,
                                uint32_t count, uint32_t total);

/* Errors: those of hth_rpc_call. */
enum hth_err hth_expert_client_info(struct hth_expert_client *client,
                                    const struct hth_rpc_target *host, uint32_t first,
                                    int64_t timeout_us, hth_expert_info_fn *done,
                                    void *arg) HTH_MUST;

#endif
