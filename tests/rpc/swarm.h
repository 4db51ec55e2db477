/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swarm.h: shared by the endpoint's tests: nodes of a simulated world with an rpc endpoint each,
 * stored verdicts, and a raw stream for peers that break the protocol.
 */
#ifndef HTH_TESTS_RPC_SWARM_H
#define HTH_TESTS_RPC_SWARM_H

#include "rpc/frame.h"
#include "rpc/rpc.h"
#include "sim/world.h"

#define METHOD_ECHO 16 /* payload and tensors come back */
#define METHOD_HOLD 17 /* kept until the test answers */
#define METHOD_BLOB 18 /* replies with a body of that many bytes: the payload's u32 */
#define METHOD_BUSY 19 /* refused with E_BUSY, 300 ms */
#define HELD_MAX    4096

struct swarm_member {
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_addr addr;
    struct hth_rpc_request *held[HELD_MAX];
    uint32_t held_count, seen, cancels;
    int64_t cancel_us;
    uint32_t lost_count;
    enum hth_err lost_err;
    struct hth_rpc_opts opts;
};

/* Starts an endpoint on a new node; opts' network, listen and on_peer_lost are filled in. */
void member_start(struct swarm_member *m, struct hth_world *w, const char *name,
                  struct hth_rpc_opts opts);
/* Starts the endpoint alone, on an existing node: after a restart. */
void member_serve(struct swarm_member *m);
void member_stop(struct swarm_member *m);
struct hth_rpc_opts member_opts(void);
struct hth_rpc_target member_target(const struct swarm_member *m);

/* The outcome of a call. */
struct swarm_verdict {
    uint32_t count;
    enum hth_err err;
    char text[HTH_RPC_TEXT_MAX + 1];
    char payload[256];
    size_t payload_len;
    size_t tensor_count;
    struct hth_tensor tensors[4];
    struct hth_blob *body;
    int64_t at_us, rtt_us, retry_after_us;
    bool remote;
    struct hth_env *env;
};

void verdict_clear(struct swarm_verdict *v);
void on_verdict(void *arg, const struct hth_rpc_result *result);
/* A call with a text as payload; v stores the verdict. */
struct hth_rpc_call *call_text(struct swarm_member *from, const struct swarm_member *to,
                               uint16_t method, const char *text, int64_t timeout_us,
                               struct swarm_verdict *v);
bool has_verdict(void *verdict);
/* Runs until the verdict comes; fails the test after a virtual minute. */
void await(struct hth_world *w, struct swarm_verdict *v);

/* A peer that may break the protocol: it sends any bytes, and parses received frames. */
struct swarm_raw {
    struct hth_env *env;
    struct hth_stream *stream;
    struct hth_frame_parser parser;
    struct hth_frame frame;
    bool open, closed, deaf;
    enum hth_err closed_err;
    int64_t closed_us;
    uint32_t heads;
    uint32_t seen[16]; /* frames by type */
    enum hth_err goodbye_err, refuse_err;
    uint64_t reply_bytes;
    char text[HTH_RPC_TEXT_MAX + 1];
    struct hth_listener *listener;
};

void raw_dial(struct swarm_raw *r, struct hth_env *env, const struct hth_addr *addr);
/* Accepts one stream. */
void raw_listen(struct swarm_raw *r, struct hth_env *env, uint16_t port);
void raw_bytes(struct swarm_raw *r, const void *data, size_t len);
void raw_frame(struct swarm_raw *r, const struct hth_frame_msg *msg);
/* Sends header and meta as given, valid or not. */
void raw_request(struct swarm_raw *r, uint64_t id, uint16_t method, const void *payload, size_t len,
                 uint32_t body_len);
void raw_hello(struct swarm_raw *r);
void raw_clear(struct swarm_raw *r);

#endif
