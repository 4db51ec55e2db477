/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swarm.h: fixtures of the tests of server and client: hosts and a trainer in a simulated world, an
 * rpc call with its verdict, and batches of rows.
 */
#ifndef HTH_TESTS_EXPERTS_SWARM_H
#define HTH_TESTS_EXPERTS_SWARM_H

#include "core/budget.h"
#include "experts/client.h"
#include "experts/server.h"
#include "scenarios/admitted.h"
#include "sim/world.h"

#define PORT      4000
#define HOSTS_MAX 8

struct swarm_host {
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_server *server;
    struct hth_server_opts opts;
    struct hth_expert_opts expert;         /* host_add sets its uid */
    struct hth_budget *budget;             /* of its endpoint; may be NULL */
    const struct hth_admission *admission; /* NULL: the run is open */
    uint32_t layer_first, layer_count;     /* experts ffn0.first .. on every boot */
    uint32_t loaded, restored, failed;
    enum hth_err failed_err;
    bool drained;
};

/* Adds a node that starts a server at each boot, with experts ffn0.first.. of the given options. */
void host_start(struct swarm_host *h, struct hth_world *w, const char *name);
struct swarm_host host_init(void);
void host_stop(struct swarm_host *h);
struct hth_rpc_target host_target(const struct swarm_host *h);
struct hth_server_stats host_stats(const struct swarm_host *h);
/* The i-th expert's object. */
const struct hth_expert *host_expert(const struct swarm_host *h, uint32_t i);
struct hth_uid uid_of(uint32_t coord);

/* A calling peer: rpc and client on a node of its own. */
struct swarm_caller {
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_expert_client *client;
    uint32_t host_ok, host_failed;
};

void caller_start(struct swarm_caller *c, struct hth_world *w, const char *name,
                  const struct hth_expert_client_opts *opts);
/* The same in a closed run. */
void caller_start_as(struct swarm_caller *c, struct hth_world *w, const char *name,
                     const struct hth_expert_client_opts *opts,
                     const struct hth_admission *admission);
void caller_stop(struct swarm_caller *c);

/* The reply of a raw call, for requests that the client would never send. */
struct answer {
    uint32_t count, parts;
    enum hth_err err;
    bool remote;
    int64_t retry_after_us;
    enum hth_err status[16];
    bool kept;
    uint32_t tensors;
    struct hth_blob *blob;
    const float *rows; /* of the tensor, fp32 */
    struct hth_tensor tensor;
};

struct ask {
    uint32_t coord[16];
    uint32_t rows[16];
    uint32_t parts;
    uint32_t d;
    const float *x, *dy; /* dy NULL: forward; x NULL: not sent */
    uint64_t forward;    /* names the forward with this key; 0: none */
    uint32_t microbatch; /* 0: the sum of rows */
    uint64_t key;        /* of a backward, or of a forward whose rows are to be kept */
    int64_t timeout_us;
    enum hth_dtype dtype; /* 0: F32; x and dy are converted */
};

struct hth_rpc_call *ask(struct swarm_caller *c, const struct swarm_host *h, const struct ask *a,
                         struct answer *out);
/* An rpc callback whose arg is a struct answer. */
void on_answer(void *answer, const struct hth_rpc_result *result);
void answer_clear(struct answer *a);
bool answered(void *answer);
/* Sends a request and waits for the reply; fails the test after a virtual minute. */
void ask_wait(struct hth_world *w, struct swarm_caller *c, const struct swarm_host *h,
              const struct ask *a, struct answer *out);

/* count normal floats; the same for the same seed. */
float *normals(uint64_t seed, size_t count);
/* An expert of the same options without a server: y, or dx, from the kernels alone; steps on
 * request. */
struct reference {
    struct hth_expert *expert;
    struct hth_exec *ex;
};
void reference_start(struct reference *r, const struct hth_expert_opts *opts);
void reference_forward(struct reference *r, uint32_t rows, const float *x, float *y);
void reference_backward(struct reference *r, uint32_t rows, uint32_t microbatch, const float *x,
                        const float *dy, float *dx);
void reference_stop(struct reference *r);
/* True if all weights and moments have the same bits. */
bool experts_equal(const struct hth_expert *a, const struct hth_expert *b);

#endif
