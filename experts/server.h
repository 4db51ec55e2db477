/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h: hosts experts: takes requests from an rpc endpoint, batches them, runs them as jobs.
 *
 *   request --admit--> parts, one per expert --> pools: (expert, forward | backward), by start tag
 *                                                  |  a compute worker is free
 *   reply <-- all parts done <-- scatter <-- job: gather rows, kernels, finite checks
 *
 * A request names many experts of one layer and carries their rows in one tensor. Each part joins
 * its expert's pool. When a worker of its device is free, the first pool in order gives a batch of
 * up to batch_rows_max rows, and pools with few rows are bundled into the same job until it holds
 * enough work. The CPU's workers are the compute lane; each card has a lane of its own, so that a
 * card that does not answer blocks no other. The server replies when the last part is done; the
 * reply has a status for each part. Kernels read rows from the request's bytes and write into the
 * reply's: a batch of one part copies nothing.
 *
 * Order for one expert: forwards run side by side; backwards run one at a time, on all idle
 * workers. A due step runs before any batch that has not started, so a peer whose backward was
 * answered gets the stepped weights.
 *
 * Order of peers: they share the host equally, in work; a single peer's parts are computed in order
 * of arrival. Peers that flood the host delay another's request by little more than its own work
 * (server_fair.c).
 *
 * Refusals: BUSY with a time for the retry, when the bytes held or the estimated wait (from
 * measured us per row) exceed the limits or the request's own deadline; DRAINING; BAD_SHAPE and
 * MALFORMED for the whole request; NO_SUCH_EXPERT, NOT_FINITE, NORM for a part. Parts that were
 * canceled or expired in the queue are dropped without being computed.
 *
 * A backward is applied at most once: a repeat, found by (peer, idempotency key), gets the first
 * one's answer, or waits while the first one runs. Answers are kept for result_age_us within
 * result_bytes_max. A backward without a key is refused.
 *
 * The rows of a forward that has a key, and all of whose parts succeeded, are kept for the backward
 * that follows, within keep_bytes_max and as long as answers (experts/kept.h); the reply says so. A
 * backward may name that key instead of carrying the rows, once: GONE if they are not there, and
 * BAD_SHAPE if the two differ in experts, rows, width or type. Gradients are the same either way.
 *
 * Anybody may ask for an expert's weights (WEIGHTS). They are copied by a job beside forwards, one
 * at a time for the whole server: another request meanwhile is refused as BUSY.
 *
 * Life: new -> add, remove ... (each expert's weights are made or read by a job; requests for it
 * wait) -> drain (refuses requests, ends those it has, steps, writes checkpoints) -> free. All
 * functions are for the loop thread; the server owns its experts and serves methods 16..19 of the
 * endpoint. The endpoint must be freed after the server.
 */
#ifndef HTH_EXPERTS_SERVER_H
#define HTH_EXPERTS_SERVER_H

#include "core/base.h"
#include "core/env.h"
#include "experts/store.h"
#include "rpc/rpc.h"

/* Methods of the protocol (experts/expert.proto). */
#define HTH_METHOD_EXPERT_INFO     16
#define HTH_METHOD_EXPERT_FORWARD  17
#define HTH_METHOD_EXPERT_BACKWARD 18
#define HTH_METHOD_EXPERT_WEIGHTS  19

struct hth_server;

/* An expert is ready (err HTH_OK), or its weights could not be drawn or read and it is not hosted
 * (E_CORRUPT etc.; the file stays as it is). `restored`: the weights came from a checkpoint. */
typedef void hth_server_expert_fn(void *arg, const struct hth_uid *uid, enum hth_err err,
                                  bool restored);

/* Part `part` of the backward with this key (peer and idempotency key, `len` bytes) was computed.
 * Tests check with it that no part is applied twice. */
typedef void hth_server_applied_fn(void *arg, const uint8_t *key, size_t len, uint32_t part);

struct hth_server_opts {
    uint32_t batch_rows_max;   /* rows of one batch; a larger forward is cut, a backward is not */
    uint32_t request_rows_max; /* rows of one request */
    int64_t batch_age_us;      /* a pool waits this long for more rows while workers are idle */
    uint32_t batch_rows_min;   /* ... unless its pool has this many rows */
    double job_flops_min;      /* pools are bundled until a job holds this much work */
    int64_t job_us_min;        /* and, once the speed is measured, work for this time */
    double split_flops;        /* larger batches are split over the workers */
    int64_t queue_bytes_max;   /* of requests and replies held */
    int64_t queue_us_max;      /* longest estimated wait that is admitted */
    uint64_t step_rows;        /* pending rows that make a step due; 1: each batch */
    int64_t step_age_us;       /* age of the oldest pending row that makes a step due */
    double grad_norm_max;      /* of M dy of each row, M as in store.h; 0: no limit */
    uint32_t microbatch_rows_max; /* the largest M that a backward may declare */
    bool check_finite;            /* of the rows that arrive */
    bool bound_senders;           /* senders.h; false only to show what it is for */
    int64_t pause_us;             /* of an expert's steps after a jump (canary.h); 0: no canary */
    int64_t result_bytes_max;     /* kept answers of backwards; at most a quarter of rpc's budget */
    int64_t result_age_us;        /* and of kept rows */
    int64_t keep_bytes_max;       /* kept rows of forwards; at most a quarter of rpc's budget */
    const char *checkpoint_dir;   /* NULL: no checkpoints */
    int64_t checkpoint_period_us; /* how often a changed expert is written */
    uint64_t disk_bytes_max;      /* of all checkpoints and their copies (ring.h); 0: none */
    hth_server_expert_fn *on_expert;   /* may be NULL */
    hth_server_applied_fn *on_applied; /* may be NULL */
    void *arg;                         /* of both */
};

#define HTH_SERVER_OPTS_INIT                                                                       \
    {                                                                                              \
        .batch_rows_max = 8192, .request_rows_max = 65536, .batch_age_us = 0, .batch_rows_min = 1, \
        .job_flops_min = 2e8, .job_us_min = 2 * HTH_US_PER_MS, .split_flops = 8e9,                 \
        .queue_bytes_max = INT64_C(1) << 30, .queue_us_max = 10 * HTH_US_PER_S, .step_rows = 256,  \
        .step_age_us = 2 * HTH_US_PER_S, .microbatch_rows_max = HTH_EXPERT_MICROBATCH_ROWS_MAX,    \
        .check_finite = true, .bound_senders = true, .pause_us = 600 * HTH_US_PER_S,               \
        .result_bytes_max = INT64_C(256) << 20, .result_age_us = 60 * HTH_US_PER_S,                \
        .keep_bytes_max = INT64_C(256) << 20, .checkpoint_period_us = 30 * HTH_US_PER_S,           \
    }

/* Copies opts, the folder's name too. Errors: E_CONFIG. */
enum hth_err hth_server_new(struct hth_env *env, struct hth_rpc *rpc,
                            const struct hth_server_opts *opts, struct hth_server **out) HTH_MUST;
/* Refuses waiting requests, abandons running ones (their jobs end by themselves), writes no
 * checkpoint. NULL is fine. */
void hth_server_free(struct hth_server *server);

/* Hosts an expert, from its checkpoint if there is one. Returns at once; on_expert reports the
 * result. Errors: E_DUPLICATE, E_AGAIN (it is leaving), E_CONFIG, E_BAD_SHAPE, E_TOO_LARGE,
 * E_BUDGET (HTH_SERVER_EXPERTS_MAX), E_QUEUE_FULL. */
enum hth_err hth_server_add(struct hth_server *server, const struct hth_expert_opts *opts) HTH_MUST;
/* Stops hosting an expert: refuses further parts with E_NO_SUCH_EXPERT, computes those that wait,
 * steps, writes the checkpoint if the expert changed, and frees it. The file stays. Returns at
 * once. Errors: E_NO_SUCH_EXPERT. */
enum hth_err hth_server_remove(struct hth_server *server, const struct hth_uid *uid) HTH_MUST;
/* The list of experts says from now on that this host had this one before it started. Unknown uids
 * are ignored. */
void hth_server_returned(struct hth_server *server, const struct hth_uid *uid);
/* The number of experts whose weights are being drawn or read. */
uint32_t hth_server_loading(const struct hth_server *server);

/* Refuses new requests with E_DRAINING, finishes the others, steps all pending gradients, writes
 * every changed expert, then calls done once (not inside this call). */
void hth_server_drain(struct hth_server *server, hth_fn *done, void *arg);

/* Estimated wait of a new request, for the host's record. */
int64_t hth_server_queue_us(const struct hth_server *server);

/* A peer counts as a caller of now for this long after its last request. */
#define HTH_SERVER_CALLER_US (60 * HTH_US_PER_S)

struct hth_server_caller {
    struct hth_peer_id id;
    struct hth_addr from; /* family 0: unknown */
};

struct hth_server_stats {
    uint64_t requests, requests_ok;
    uint64_t refused_busy, refused_draining, refused_bad, refused_canceled, refused_expired;
    uint64_t parts_no_expert, parts_not_finite, parts_norm, parts_failed;
    uint64_t parts_outlying; /* good parts that weigh nothing: their norm is far beyond the usual */
    uint64_t rows_forward, rows_backward;
    uint64_t batches, jobs; /* mean batch rows = (rows_forward + rows_backward) / batches */
    uint64_t steps, steps_not_finite;
    uint64_t pauses; /* of experts whose canary saw a jump (canary.h) */
    uint64_t replays_answered,
        replays_joined;   /* repeated backwards: from the cache, while running */
    uint64_t named, gone; /* backwards that named kept rows; that named rows not kept */
    uint64_t bytes_in, bytes_out;
    uint64_t checkpoints_written, checkpoints_failed;
    double queue_ms_mean; /* from arrival to start of the batch, moving average */
    double us_per_row;    /* of work, moving average */
    int64_t bytes_held, bytes_kept;
    uint32_t experts, parts_waiting;
    uint64_t callers;     /* peers that sent work since the start */
    uint32_t callers_now; /* lately; at most HTH_SERVER_CALLERS_MAX */
    struct hth_server_caller first_caller;
    int64_t saved_us;         /* wall clock of the last good checkpoint; 0: none yet */
    uint32_t experts_unsaved; /* experts that changed since their last checkpoint */
    int64_t unsaved_since_us; /* wall clock from which saves fail; 0: the last of each is good */
};

void hth_server_stats(const struct hth_server *server, struct hth_server_stats *out);

struct hth_server_expert {
    const struct hth_expert *expert; /* readable only while nothing runs: tests, after a drain */
    bool ready;
    uint64_t steps, rows_forward, rows_backward;
    int64_t hosted_us; /* since it was ready; 0 before */
    bool returned;     /* as set by hth_server_returned */
};

/* In order of adding; false past the last. */
bool hth_server_expert_at(const struct hth_server *server, uint32_t i,
                          struct hth_server_expert *out);
/* False for an expert that is not hosted, or is leaving. */
bool hth_server_expert_find(const struct hth_server *server, const struct hth_uid *uid,
                            struct hth_server_expert *out);

#endif
