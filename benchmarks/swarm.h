/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swarm.h: runs a swarm inside the benchmark's process: hosts and clients on loopback.
 *
 * Each host is a real environment (sockets, TLS, worker threads) on a thread of its own, with an
 * rpc endpoint and a server. Each client is an environment with an rpc endpoint and an expert
 * client. A client's loop runs only during a call: of hth_bench_ask on the caller's thread, of
 * hth_bench_drive on a thread per client. There is no DHT, because all targets are known.
 *
 * Each host has a run of consecutive experts: expert i of n is on host i * hosts / n.
 */
#ifndef HTH_BENCHMARKS_SWARM_H
#define HTH_BENCHMARKS_SWARM_H

#include "benchmarks/bench.h"
#include "dht/uid.h"
#include "experts/client.h"
#include "experts/server.h"

struct hth_bench_host;

struct hth_bench_client {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_expert_client *experts;
};

struct hth_bench_swarm_opts {
    const struct hth_bench *bench;
    const char *kind;
    uint32_t d;
    uint32_t experts; /* number of experts, in the first places of a two-dimensional grid */
    uint32_t hosts, clients;
    uint32_t host_threads; /* compute threads of each host */
    uint32_t batch_rows_max;
    uint64_t step_rows; /* 1: an optimiser step after each merged backward, as in hivemind */
};

struct hth_bench_swarm {
    struct hth_bench_swarm_opts opts;
    struct hth_grid grid;
    struct hth_bench_host *hosts;
    struct hth_bench_client *clients;
    struct hth_expert_target *targets; /* one per expert */
    double start_s;                    /* time until the last expert's weights are ready */
};

/* Starts the swarm; returns when all experts are ready. Errors: those of the modules. */
enum hth_err hth_bench_swarm_new(const struct hth_bench_swarm_opts *opts,
                                 struct hth_bench_swarm **out) HTH_MUST;
/* NULL is fine. */
void hth_bench_swarm_free(struct hth_bench_swarm *swarm);

/* Counters of all hosts together. Call it while they are idle. */
void hth_bench_swarm_stats(struct hth_bench_swarm *swarm, struct hth_server_stats *out);

/* Makes a copy of hosted expert `index` in this process, with the same initial weights. */
enum hth_err hth_bench_twin_expert(const struct hth_bench_swarm *swarm, uint32_t index,
                                   struct hth_expert **out) HTH_MUST;
/* Compares forward and backward of `rows` rows for each of some experts, over the network and
 * directly. Errors: E_BUG (the relative distance is too large). */
enum hth_err hth_bench_swarm_verify(struct hth_bench_swarm *swarm, uint32_t rows,
                                    bool backward) HTH_MUST;

/* Makes a call and runs the client's loop until all verdicts have come. The caller owns the batch.
 * Errors: those of the call, and the first bad verdict. */
enum hth_err hth_bench_ask(struct hth_bench_client *client, const struct hth_expert_call *call,
                           struct hth_expert_batch **out) HTH_MUST;

/* Fills a call for `rows` rows of x to one expert; pairs has `rows` entries. */
void hth_bench_call_one(const struct hth_bench_swarm *swarm, uint32_t expert, uint32_t rows,
                        struct hth_expert_pair *pairs, struct hth_expert_call *call);
/* The same for `experts` experts from `first` on, with rows / experts rows for each. */
void hth_bench_call_spread(const struct hth_bench_swarm *swarm, uint32_t first, uint32_t experts,
                           uint32_t rows, struct hth_expert_pair *pairs,
                           struct hth_expert_call *call);
/* A float tensor [rows, d] in a blob of its own; its blob is NULL if memory runs out. */
struct hth_tensor hth_bench_tensor(uint32_t rows, uint32_t d);
static inline float *hth_bench_floats(const struct hth_tensor *t)
{
    return (float *)(void *)t->blob->data;
}

/* ---- closed loops -------------------------------------------------------------------------- */

/* Callers that each keep one request in flight. A caller picks a random expert, sends a forward and
 * waits for the reply, sends the same rows and a gradient of ones in a backward and waits, and
 * repeats. */
struct hth_bench_load {
    uint32_t callers; /* spread evenly over the clients */
    uint32_t batches; /* per caller */
    uint32_t rows;    /* per batch */
    uint32_t spread;  /* each batch's rows go to this many first experts; 0: to a random one */
    bool forward, backward; /* at least one */
    uint64_t seed;
};

struct hth_bench_load_result {
    double seconds;
    double rows_per_s;     /* a row with forward and backward counts once */
    double requests_per_s; /* forwards and backwards */
    uint64_t retries;
};

/* Errors: the first bad verdict. */
enum hth_err hth_bench_drive(struct hth_bench_swarm *swarm, const struct hth_bench_load *load,
                             struct hth_bench_load_result *out) HTH_MUST;

#endif
