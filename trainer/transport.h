/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport.h (internal): how a trainer reaches its experts: over the network, or in this process.
 *
 * Both answer the same three questions: which experts are alive (a grid view for the beam search),
 * which host serves one (a target), and what the experts return for pairs of (unit, target). So the
 * code of a flight is the same for both, and the local one is the reference that the network is
 * compared to.
 *
 *   net    the directory's grid view, a breaker for each host, experts/client.h
 *   local  a full grid view, or an empty one; every call is one job in the trainer's queue
 *
 * Loop thread, except for hth_transport_unpack, which jobs call.
 */
#ifndef HTH_TRAINER_TRANSPORT_H
#define HTH_TRAINER_TRANSPORT_H

#include "dht/directory.h"
#include "experts/client.h"
#include "experts/store.h"
#include "trainer/queue.h"
#include "trainer/trainer.h"

struct hth_transport;
struct hth_transport_batch;

struct hth_transport_call {
    uint32_t layer;
    uint32_t units, block_rows, d;
    struct hth_blob *x;  /* fp32 [units * block_rows, d] */
    struct hth_blob *dy; /* backward: fp32 [pairs * block_rows, d]; NULL: forward */
    bool keep;           /* forward: a backward follows */
    /* backward: the forward's batch, borrowed until the call returns, or NULL */
    const struct hth_transport_batch *forward;
    uint32_t rows_in_microbatch;
    const struct hth_expert_target *targets;
    const uint32_t *target_expert; /* grid index of each target */
    uint32_t targets_count;
    const struct hth_expert_pair *pairs; /* each target's pairs lie together, units ascending */
    uint32_t pairs_count;
    uint32_t k_min;
    uint64_t trace_id;
};

typedef void hth_transport_done_fn(void *arg, struct hth_transport_batch *batch);

struct hth_transport_stats {
    uint64_t requests, requests_failed, retries;
    uint64_t parts_bad; /* request parts, forward and backward, whose numbers were refused here */
    uint64_t parts_refused;  /* parts that the host refused, or whose expert it lacks */
    uint64_t claims_refused; /* of hosts, that were found false */
    /* The largest gain (experts/client.h) accepted since the trainer last reset it, and its
     * host. */
    double top_gain;
    struct hth_peer_id top_host;
    uint64_t bytes_out, bytes_in;
    uint32_t live_experts, hosts, hosts_dead;
};

struct hth_transport_ops {
    struct hth_grid_view *(*view)(struct hth_transport *transport, uint32_t layer);
    bool (*find)(struct hth_transport *transport, uint32_t layer, uint32_t expert,
                 struct hth_expert_target *out);
    enum hth_err (*call)(struct hth_transport *transport, const struct hth_transport_call *call,
                         hth_transport_done_fn *done, void *arg, struct hth_transport_batch **out);
    void (*gauge)(struct hth_transport *transport);
    void (*ask)(struct hth_transport *transport, uint32_t layer);
    void (*free)(struct hth_transport *transport);
};

struct hth_transport {
    const struct hth_transport_ops *ops;
    struct hth_transport_stats stats;
    uint64_t route; /* number of the routing under way: each routing asks a breaker once */
};

struct hth_transport_batch_ops {
    const enum hth_err *(*verdicts)(const struct hth_transport_batch *batch);
    void (*host)(const struct hth_transport_batch *batch, uint32_t target,
                 struct hth_expert_target *io);
    uint32_t (*unpack)(struct hth_transport_batch *batch, float *out, size_t stride, uint8_t *ok);
    void (*judge)(struct hth_transport_batch *batch);
    void (*free)(struct hth_transport_batch *batch);
};

struct hth_transport_batch {
    const struct hth_transport_batch_ops *ops;
    struct hth_transport *transport;
    bool backward;
    uint32_t pairs;
    hth_transport_done_fn *done;
    void *arg;
};

/* ---- the two ports --------------------------------------------------------------------------- */

struct hth_transport_opts {
    struct hth_env *env;
    uint32_t layers;
    const struct hth_grid *grids; /* copied */
    const char *expert_kind;
    uint32_t d, block_rows;
    uint32_t heads; /* of transformer experts, else 0 */
    /* net */
    struct hth_rpc *rpc;
    struct hth_directory *directory;
    int64_t grace_us, timeout_us;
    enum hth_dtype wire;
    struct hth_budget *budget;
    /* local */
    bool without_experts; /* none is alive and none is ever called */
    struct hth_queue *queue;
    const struct hth_backend *backend;
    const struct hth_train_optim *optim;
    uint64_t step_rows;
    uint64_t run_seed;
    const char *run;         /* its name, borrowed */
    const char *run_text;    /* for the experts' checkpoints; borrowed; NULL: none */
    const char *experts_dir; /* experts are loaded from it; NULL: they are drawn from the seed */
    bool experts_needed;     /* with experts_dir: a missing file is an error */
    struct hth_why *why;     /* of an expert that can't be loaded; or NULL */
};

enum hth_err hth_transport_net_new(const struct hth_transport_opts *opts,
                                   struct hth_transport **out) HTH_MUST;
enum hth_err hth_transport_local_new(const struct hth_transport_opts *opts,
                                     struct hth_transport **out) HTH_MUST;
struct hth_expert *hth_transport_local_expert(struct hth_transport *transport, uint32_t layer,
                                              uint32_t index);

/* Files that are to be written. */
struct hth_transport_files {
    struct hth_transport_file {
        char *path;
        struct hth_blob *bytes;
    } * file;
    uint32_t count;
};
/* Local experts as their host would save them (experts/store.h): steps on the gradients that wait,
 * then adds each expert that has weights. In a job of the queue. After an error `out` may have some
 * of them. Nothing for a transport over the network. Errors: E_NO_MEMORY, the kernels'. */
enum hth_err hth_transport_local_save(struct hth_transport *transport, const char *dir,
                                      struct hth_transport_files *out) HTH_MUST;
void hth_transport_files_clear(struct hth_transport_files *files);

/* ---- calls ----------------------------------------------------------------------------------- */

/* The live experts of a layer; borrowed until the next call for that layer. */
static inline struct hth_grid_view *hth_transport_view(struct hth_transport *transport,
                                                       uint32_t layer)
{
    return transport->ops->view(transport, layer);
}
/* Begins a routing; call it before its finds. */
static inline void hth_transport_begin_route(struct hth_transport *transport)
{
    transport->route++;
}
/* Finds a host of this expert; false when none may be asked at this time. */
static inline bool hth_transport_find(struct hth_transport *transport, uint32_t layer,
                                      uint32_t expert, struct hth_expert_target *out)
{
    return transport->ops->find(transport, layer, expert, out);
}
/* Calls the experts. done is called once, not inside this call; the caller then owns the batch. */
static inline HTH_MUST enum hth_err hth_transport_call(struct hth_transport *transport,
                                                       const struct hth_transport_call *call,
                                                       hth_transport_done_fn *done, void *arg,
                                                       struct hth_transport_batch **out)
{
    return transport->ops->call(transport, call, done, arg, out);
}
/* Updates the gauges in stats. */
static inline void hth_transport_gauge(struct hth_transport *transport)
{
    transport->ops->gauge(transport);
}
/* Asks for a new lookup of a layer in which no expert is alive. */
static inline void hth_transport_ask(struct hth_transport *transport, uint32_t layer)
{
    transport->ops->ask(transport, layer);
}
static inline void hth_transport_free(struct hth_transport *transport)
{
    if (transport != NULL)
        transport->ops->free(transport);
}

static inline const enum hth_err *hth_transport_verdicts(const struct hth_transport_batch *batch)
{
    return batch->ops->verdicts(batch);
}
/* Overwrites the target's host with the one that answered. */
static inline void hth_transport_host(const struct hth_transport_batch *batch, uint32_t target,
                                      struct hth_expert_target *io)
{
    batch->ops->host(batch, target, io);
}
/* As hth_expert_batch_unpack. */
static inline uint32_t hth_transport_unpack(struct hth_transport_batch *batch, float *out,
                                            size_t stride, uint8_t *ok)
{
    return batch->ops->unpack(batch, out, stride, ok);
}
/* Reports the verdicts of the batch, so that hosts with bad answers are chosen less. Call it once,
 * after the job that unpacked the batch. NULL is allowed. */
static inline void hth_transport_judge(struct hth_transport_batch *batch)
{
    if (batch != NULL)
        batch->ops->judge(batch);
}
/* Frees the batch; before done, cancels it. NULL is allowed. */
static inline void hth_transport_batch_free(struct hth_transport_batch *batch)
{
    if (batch != NULL)
        batch->ops->free(batch);
}

#endif
