/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc.h: calls between peers: a request with a deadline goes out, exactly one verdict comes back.
 *
 * One `struct hth_rpc` is one node's endpoint. It listens, dials on demand, keeps one connection
 * per peer and reuses it for calls in both directions, whichever side dialled. A message is a small
 * Protocol Buffers payload and any number of tensors; tensors are references to blobs: they are
 * gathered from the caller's blobs into the socket and arrive in one blob, never copied and never
 * read in between. docs/protocol.md has the bytes.
 *
 * Threads: everything here, callbacks too, happens on the loop thread. No callback runs inside the
 * function that caused it, except that a handler may answer inside itself. hth_rpc_free must not be
 * called from a callback.
 *
 * A call's life. hth_rpc_call copies or references its arguments, so the caller may free them.
 * Unless it returned an error, the callback comes exactly once: with the reply, with the server's
 * refusal (its error, a text, when to come back), or with a local error. The caller decides whether
 * and where to retry, with the same idempotency key.
 * - E_TIMEOUT: the deadline passed; the server gets a CANCEL.
 * - E_CLOSED: the connection was lost while the request was out; it may or may not have run.
 * - E_REFUSED, E_UNREACHABLE, E_BAD_PEER_ID, E_WRONG_RUN, E_VERSION, ...: no connection was made;
 *   while the peer is in back-off later calls fail fast with the same error.
 * - E_BUDGET, E_NO_MEMORY: the reply's body did not fit in this peer's byte budget.
 *
 * A request's life. The handler owns the request until it answers, once, with hth_rpc_reply or
 * hth_rpc_refuse, at once or later; the views that the accessors give are valid until then. When
 * the caller cancels, leaves, or its deadline passes, hth_rpc_is_canceled becomes true and the
 * cancel callback comes; the handler must still answer (the answer is dropped), soon.
 *
 * Flow control. Each side states in its HELLO how many requests it takes at once and how many body
 * bytes of requests and of replies may be under way to it. Calls beyond that wait in the endpoint,
 * in order, bounded by `calls_max`. All memory that a peer makes us hold draws on its byte budget.
 * A peer that breaks the protocol, stalls or goes silent is dropped with a named error.
 */
#ifndef HTH_RPC_RPC_H
#define HTH_RPC_RPC_H

#include "admission/pass.h"
#include "core/budget.h"
#include "core/env.h"
#include "core/limits.h"
#include "core/tensor.h"

struct hth_rpc;
struct hth_rpc_call;
struct hth_rpc_request;

/* ---- endpoint ------------------------------------------------------------------------------ */

/* A connection to a peer ended: HTH_OK when it was idle or said goodbye, else why. */
typedef void hth_rpc_peer_lost_fn(void *arg, const struct hth_peer_id *peer, enum hth_err err);

struct hth_rpc_opts {
    /* core/name.h: peers must agree. "": of no run, agrees with all. A private one is not shown. */
    const char *network;
    const struct hth_addr *listen; /* NULL: only dials; serves over connections that it dialled */
    const struct hth_admission *admission; /* of a closed run; NULL: it is open. Must outlive rpc */
    uint64_t features;                     /* bits sent in HELLO; see hth_rpc_peer_info */
    uint32_t version_min, version_max;
    uint32_t requests_max;         /* requests of one peer being served at once */
    uint32_t calls_max;            /* own calls outstanding, over all peers */
    uint32_t conns_max;            /* connections, both ways */
    uint64_t body_bytes_max;       /* largest body taken; at most half of either credit */
    uint64_t request_credit_bytes; /* bodies of requests under way from one peer */
    uint64_t reply_credit_bytes;   /* bodies of replies under way from one peer */
    uint64_t queue_bytes_max;      /* answers that wait for one peer to read them; beyond: BUSY */
    uint64_t peer_bytes_max;       /* everything one peer makes us hold */
    struct hth_budget *budget;     /* the process's, or NULL; must outlive all bodies */
    int64_t idle_timeout_us;       /* a connection without calls is closed; 0: never */
    int64_t hello_timeout_us;      /* from connected to HELLO */
    int64_t stall_timeout_us;      /* a frame or a send queue must move within this time */
    int64_t ping_after_us;         /* silence after which a peer is probed; 0: never */
    int64_t ping_timeout_us;       /* silence after a probe that means dead */
    int64_t backoff_min_us, backoff_max_us;
    int64_t timeout_min_us, timeout_max_us; /* floor and ceiling of adaptive deadlines */
    hth_rpc_peer_lost_fn *on_peer_lost;
    void *arg; /* of on_peer_lost */
};

#define HTH_RPC_OPTS_INIT                                                                          \
    {                                                                                              \
        .version_min = HTH_RPC_VERSION_MIN, .version_max = HTH_RPC_VERSION_MAX,                    \
        .requests_max = 1024, .calls_max = 65536, .conns_max = HTH_STREAMS_MAX,                    \
        .body_bytes_max = 128u << 20, .request_credit_bytes = 256u << 20,                          \
        .reply_credit_bytes = 256u << 20, .queue_bytes_max = 256u << 20,                           \
        .peer_bytes_max = 768u << 20, .idle_timeout_us = 300 * HTH_US_PER_S,                       \
        .hello_timeout_us = 10 * HTH_US_PER_S, .stall_timeout_us = 20 * HTH_US_PER_S,              \
        .ping_after_us = 5 * HTH_US_PER_S, .ping_timeout_us = 5 * HTH_US_PER_S,                    \
        .backoff_min_us = 200 * HTH_US_PER_MS, .backoff_max_us = 30 * HTH_US_PER_S,                \
        .timeout_min_us = 200 * HTH_US_PER_MS, .timeout_max_us = 60 * HTH_US_PER_S,                \
    }

/* Errors: E_CONFIG (an option makes no sense), E_NO_MEMORY, and those of hth_listen. */
enum hth_err hth_rpc_new(struct hth_env *env, const struct hth_rpc_opts *opts,
                         struct hth_rpc **out) HTH_MUST;
/* Closes everything; no callback comes after that. Outstanding calls are freed; requests that
 * handlers still hold become canceled and stay valid until answered. NULL is fine. */
void hth_rpc_free(struct hth_rpc *rpc);
/* The budget of the options, for memory that a handler allocates for a peer; may be NULL. */
struct hth_budget *hth_rpc_budget(const struct hth_rpc *rpc);
/* The address listened on, with the real port; family 0 when not listening. */
void hth_rpc_addr(const struct hth_rpc *rpc, struct hth_addr *out);
/* Refuses new requests with E_DRAINING, says goodbye, lets calls and requests under way end; then,
 * or after timeout_us, closes all connections and calls done. Own calls work until timeout_us. */
void hth_rpc_drain(struct hth_rpc *rpc, int64_t timeout_us, hth_fn *done, void *arg);

/* ---- serving ------------------------------------------------------------------------------- */

typedef void hth_rpc_handler_fn(void *arg, struct hth_rpc_request *req);

/* Method numbers are the protocol's: 1..15 rpc itself, 16.. experts, 64.. averaging. A second
 * handler of one number replaces the first; NULL removes. An unserved method is refused with
 * E_NO_SUCH_METHOD. */
void hth_rpc_serve(struct hth_rpc *rpc, uint16_t method, hth_rpc_handler_fn *handler, void *arg);

/* Makes a repeated call recognisable: chosen once per logical operation by the caller, the same in
 * every retry, through any connection. Zero: the call needs no recognition. */
struct hth_rpc_idem {
    uint64_t hi, lo;
};

uint16_t hth_rpc_method(const struct hth_rpc_request *req);
const uint8_t *hth_rpc_payload(const struct hth_rpc_request *req, size_t *len);
/* They lie in one blob, to keep with hth_blob_ref; it is NULL when none of them has an element. */
const struct hth_tensor *hth_rpc_tensors(const struct hth_rpc_request *req, size_t *count);
const struct hth_peer_id *hth_rpc_peer(const struct hth_rpc_request *req);
struct hth_addr hth_rpc_from(const struct hth_rpc_request *req); /* family 0: it is closed */
int64_t hth_rpc_deadline_us(const struct hth_rpc_request *req);  /* on this node's clock */
int64_t hth_rpc_arrived_us(const struct hth_rpc_request *req);
struct hth_rpc_idem hth_rpc_idem_key(const struct hth_rpc_request *req);
uint64_t hth_rpc_trace_id(const struct hth_rpc_request *req);
bool hth_rpc_is_canceled(const struct hth_rpc_request *req);
/* fn NULL removes it. Not called once the request was answered. */
void hth_rpc_on_cancel(struct hth_rpc_request *req, hth_fn *fn, void *arg);

struct hth_rpc_body {
    const void *payload;
    size_t payload_len;
    const struct hth_tensor *tensors; /* references are taken */
    size_t tensor_count;
};

/* Answers and frees the request. A reply that does not fit in a frame or the peer's limits becomes
 * a refusal with E_TOO_LARGE and a log line. body NULL: empty. */
void hth_rpc_reply(struct hth_rpc_request *req, const struct hth_rpc_body *body);
/* err must not be HTH_OK; E_BUSY with retry_after_us > 0 tells the caller when to retry. text may
 * be NULL and is cut at HTH_RPC_TEXT_MAX. */
void hth_rpc_refuse(struct hth_rpc_request *req, enum hth_err err, int64_t retry_after_us,
                    const char *text);

/* Never answers: the request is freed when its caller gives up, leaves, or its deadline passes. For
 * fault injection: to the caller the request, or its answer, is lost. */
void hth_rpc_ignore(struct hth_rpc_request *req);

/* ---- calling ------------------------------------------------------------------------------- */

struct hth_rpc_target {
    struct hth_peer_id peer; /* zero: any peer that answers at addr */
    struct hth_addr addr;    /* family 0: only over a connection that exists */
};

struct hth_rpc_call_opts {
    uint16_t method;
    struct hth_rpc_body body;
    /* 0: adaptive, learnt from this peer's answers to this method (deadline.h). A peer with fewer
     * than HTH_DEADLINE_SAMPLES_MIN answers is a stranger, and other peers' answers give its wait:
     * 4 to 32 times the deadline over all peers that answered, or over its own few answers when
     * those took longer. The wait grows with a sixteenth of the time since its last answer during
     * which it was called. Each eighth call may wait beyond the 32, so that quick peers never shut
     * out a slow one. It is never longer than deadline.h gives, and exactly that while no other
     * peer answered. Any call may end later, once, by the time that this process did not run, at
     * most 5 s. */
    int64_t timeout_us;
    int64_t timeout_max_us; /* of an adaptive one; 0: the endpoint's */
    struct hth_rpc_idem idem;
    uint64_t trace_id;
};

struct hth_rpc_result {
    enum hth_err err;
    const uint8_t *payload; /* all pointers here are valid during the callback */
    size_t payload_len;
    const struct hth_tensor *tensors; /* in one blob, as of a request */
    size_t tensor_count;
    int64_t retry_after_us; /* of a refusal; 0: not given */
    const char *text;       /* of a refusal, never NULL; printable, from the peer */
    int64_t rtt_us;         /* from sent to verdict; 0 when it was never sent */
    bool remote;            /* err came from the peer, not from this side */
};

typedef void hth_rpc_done_fn(void *arg, const struct hth_rpc_result *result);

/* Errors, and then no callback comes: E_TOO_LARGE (does not fit in a frame), E_BAD_SHAPE,
 * E_QUEUE_FULL (calls_max are outstanding). *call may be NULL when no cancel is wanted. */
enum hth_err hth_rpc_call(struct hth_rpc *rpc, const struct hth_rpc_target *target,
                          const struct hth_rpc_call_opts *opts, hth_rpc_done_fn *done, void *arg,
                          struct hth_rpc_call **call) HTH_MUST;
/* No callback comes after this; the peer gets a CANCEL. Only before the callback came. */
void hth_rpc_cancel(struct hth_rpc_call *call);

/* ---- peers --------------------------------------------------------------------------------- */

struct hth_rpc_peer_info {
    bool connected;      /* HELLO was exchanged */
    uint32_t version;    /* agreed; 0 when not connected */
    uint64_t features;   /* of the other side */
    uint32_t in_flight;  /* our calls that wait for its verdict */
    uint32_t waiting;    /* our calls that wait to be sent */
    uint32_t serving;    /* its requests that our handlers hold */
    int64_t retry_in_us; /* > 0: in back-off */
    enum hth_err last_err;
    int64_t rtt_us;      /* smoothed over PING, or its fastest answer or HELLO; 0: none yet */
    int64_t received_us; /* when bytes last arrived or the handshake ended; 0: no stream is open */
    bool dialing;        /* a stream is being opened, and none is open */
    uint64_t moved_bytes, came_bytes; /* over the present connections; and received alone */
    uint64_t bytes_held;
    uint8_t class, roles; /* HTH_MAY_...; what its pass gives; 0: not connected */
};

/* Errors: E_NOT_FOUND. */
enum hth_err hth_rpc_peer_info(const struct hth_rpc *rpc, const struct hth_peer_id *peer,
                               struct hth_rpc_peer_info *out) HTH_MUST;
/* Prefetches memory that every call reads. */
void hth_rpc_fetch(const struct hth_rpc *rpc);
/* Shows a connected peer that we live: a PING, unless bytes were sent since the last nudge. */
void hth_rpc_nudge(struct hth_rpc *rpc, const struct hth_peer_id *peer);
/* The adaptive deadline of such a call if it is no probe; for a stranger the longest one. */
int64_t hth_rpc_timeout_us(const struct hth_rpc *rpc, const struct hth_rpc_target *target,
                           uint16_t method);
/* How late this process ran at most in the last 10 s, by its endpoint's timer and
 * hth_rpc_observe_late: 0 below 20 ms, and at most 5 s. */
int64_t hth_rpc_late_us(const struct hth_rpc *rpc);
/* Counts the lateness of work that was due at due_us and runs only when this is called. */
void hth_rpc_observe_late(struct hth_rpc *rpc, int64_t due_us);
/* Ends a peer's back-off: there is a sign that it lives, such as a new record of it. */
void hth_rpc_lives(struct hth_rpc *rpc, const struct hth_peer_id *peer);
/* Closes its connections: its calls fail with E_CLOSED. */
void hth_rpc_disconnect(struct hth_rpc *rpc, const struct hth_peer_id *peer);
struct hth_rpc_stats {
    uint64_t calls, calls_ok, calls_failed, calls_canceled, calls_refused;
    uint64_t requests, requests_refused, late_replies;
    uint64_t bytes_in, bytes_out; /* of frames, before TLS */
    uint64_t dials, accepts, peers_dropped;
    uint32_t conns, peers, calls_now, requests_now;
    /* Peers at HELLO, and requests without the right, by the error: E_NOT_ADMITTED + i. */
    uint64_t turned_away[HTH_E_PASS_FORGED - HTH_E_NOT_ADMITTED + 1];
};
void hth_rpc_stats(const struct hth_rpc *rpc, struct hth_rpc_stats *out);

#endif
