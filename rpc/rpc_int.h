/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc_int.h: the structs that the files of rpc/ share. Private to rpc/.
 *
 *   rpc  --- peers (by id) --- conns (by stream) --- slots (our requests out) --- calls
 *     |                           `--- requests (theirs, with our handlers)
 *     `--- due: one heap and one timer for all deadlines and checks
 *
 * Ownership. A call belongs to the endpoint until its verdict. A request belongs to its handler
 * until it answers. A conn lives until hth_rpc_conn_kill, which takes it off every list; its memory
 * stays while a function on the stack uses it (pins). A peer has a reference count: the table,
 * conns, calls and requests hold it, because frames in its budget may outlive the endpoint.
 *
 * Callbacks into other modules come from two places only: on_readable (verdicts and handlers), and
 * on_timer (deadlines, and failures inside an API call, through the `soon` lists).
 */
#ifndef HTH_RPC_RPC_INT_H
#define HTH_RPC_RPC_INT_H

#include "core/heap.h"
#include "core/map.h"
#include "core/mem.h"
#include "rpc/deadline.h"
#include "rpc/frame.h"

/* ---- lists --------------------------------------------------------------------------------- */

struct rpc_link {
    struct rpc_link *prev, *next;
};

static inline void rpc_list_init(struct rpc_link *head)
{
    head->prev = head->next = head;
}
static inline bool rpc_list_empty(const struct rpc_link *head)
{
    return head->next == head;
}
static inline void rpc_list_push(struct rpc_link *head, struct rpc_link *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}
/* Moves a list away, so that entries added by callbacks wait for the next turn. */
static inline void rpc_list_steal(struct rpc_link *from, struct rpc_link *to)
{
    rpc_list_init(to);
    if (rpc_list_empty(from))
        return;
    *to = *from;
    to->next->prev = to;
    to->prev->next = to;
    rpc_list_init(from);
}
/* A link that is in no list points at itself; removing it again does nothing. */
static inline void rpc_list_del(struct rpc_link *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    rpc_list_init(n);
}

/* ---- structs ------------------------------------------------------------------------------- */

#define METRICS_BYTES 256 /* the metrics of each message; the others are seldom updated */

enum due_kind { DUE_CALL, DUE_REQUEST, DUE_BUSY, DUE_SWEEP, DUE_GRANTS };

/* Work that is due at a time. */
struct rpc_due {
    struct hth_heap_node heap; /* its key: the time, on our clock */
    uint64_t seq;              /* makes the order total */
    enum due_kind kind;
};

/* four cache lines: a large swarm has one for each peer that was ever called */
struct method_deadline {
    uint16_t method;
    uint32_t tries;   /* calls begun since the last answer to a stranger's call */
    int64_t since_us; /* when the first of them began */
    struct hth_deadline deadline;
};
_Static_assert(sizeof(struct method_deadline) <= 256, "begins a cache line");

#define METHOD_DEADLINES_MAX 8

struct method_deadlines {
    struct method_deadline *of; /* of the methods called so far */
    uint32_t count;             /* at most METHOD_DEADLINES_MAX */
};

struct rpc_peer {            /* three cache lines, in the order of use */
    struct rpc_link conns;   /* newest last */
    struct rpc_link waiting; /* calls to be sent */
    struct hth_addr addr;
    int refs;
    uint32_t failures; /* in a row: the back-off */
    uint32_t conn_count;
    struct hth_peer_id id; /* of an anonymous one: the id that answered last, first zero */
    struct hth_rpc *rpc;   /* NULL once the endpoint is gone */
    struct method_deadlines deadlines;
    int64_t retry_at_us; /* back-off */
    /* Bodies, while their message lives, and arenas. Blobs themselves draw on the process's budget,
     * because a handler may keep one longer than this peer is remembered. */
    struct hth_budget held;
    uint32_t waiting_count;
    enum hth_err last_err; /* of the back-off */
    char *last_text;       /* NULL: none */
    int64_t rtt_us;
    bool anonymous; /* known by its address: any peer that answers there */
};
_Static_assert(sizeof(struct rpc_peer) <= 192, "begins a cache line");

enum conn_state { CONN_DIALING, CONN_HELLO, CONN_READY, CONN_DEAD };

/* One of our requests that waits for its verdict. It outlives its call when that was canceled. */
struct rpc_slot {
    uint64_t id; /* 0: free */
    struct hth_rpc_call *call;
    uint64_t body_len;
    int64_t sent_us;
    uint32_t next_free; /* index + 1 */
};

/* in the order of use: most lie cold in memory, and a cache line is fetched as a whole */
struct rpc_conn {
    /* all that a sweep reads of a resting one: a cache line */
    struct rpc_link in_rpc;
    struct rpc_link busy; /* in rpc->busy while work is under way */
    int64_t rx_last_us;
    int64_t active_us;
    int64_t ping_sent_us; /* 0: none out */
    uint8_t state;        /* enum conn_state */
    bool accepted;
    bool quiet; /* no work is under way; the windows below stand still */
    bool goodbye_in, goodbye_out;
    uint8_t roles; /* of the grant */
    /* read or written with each frame */
    struct hth_rpc *rpc;
    struct rpc_peer *peer;
    struct hth_stream *stream;
    struct rpc_link in_peer;
    struct rpc_link dirty; /* has spans to flush */
    uint32_t in_flight;
    uint32_t request_count;
    struct hth_frame_parser parser;
    int pins;
    uint32_t rx_slot;        /* slot of the reply being received: index + 1 */
    struct rpc_link replies; /* answered; wait for credit */
    uint64_t rx_bytes, rx_frames;
    struct hth_rpc_request *rx_req; /* request being received */
    uint64_t rx_held;               /* of peer->held, for the body being received */
    uint64_t tx_bytes;              /* in the queue */
    uint64_t tx_written;            /* handed to the stream, ever */
    /* sending: a queue of spans */
    struct hth_span *tx;
    uint32_t tx_first, tx_count, tx_capacity;
    struct hth_blob *tx_blob; /* small frames lie in it one after the other */
    size_t tx_blob_used;
    enum hth_err rx_err; /* why the body being received is skipped */
    bool had_verdict;
    uint64_t their_body_max;
    /* calls out */
    struct rpc_slot *slots;
    uint32_t slots_count, slots_free; /* index + 1 of the first free one */
    uint64_t id_count;
    uint64_t request_out; /* body bytes of requests without a verdict */
    uint64_t their_request_credit, their_reply_credit;
    uint64_t reply_in;   /* body bytes of replies to us that no credit was given for */
    uint64_t reply_owed; /* of those: consumed, to be given back */
    /* requests in */
    uint64_t last_id;
    struct rpc_link requests; /* with handlers */
    uint64_t request_in;      /* body bytes of requests not answered */
    uint64_t replies_bytes;   /* in the list above */
    uint64_t reply_out;       /* body bytes of replies that credit has not come back for */
    uint32_t their_requests_max;
    /* seldom */
    uint32_t version;
    uint64_t features;
    struct hth_grant grant; /* by the peer's pass, once it is READY */
    int64_t opened_us;
    uint64_t ping_id;
    uint64_t nudge_bytes; /* sent, ever, at the last nudge */
    int64_t body_us;      /* when the body being received began */
    uint64_t body_from;   /* rx_bytes then */
    double line;          /* bytes a second of its bodies, moving average; 0: not known */
    int64_t rx_window_us, tx_window_us;
    uint64_t rx_window_bytes, rx_window_frames, tx_window_bytes;
    int64_t goodbye_us;
};

struct hth_rpc_call {
    struct rpc_link node; /* in peer->waiting or rpc->soon_calls */
    struct rpc_due due;
    struct hth_rpc *rpc;
    struct rpc_peer *peer;
    struct rpc_conn *conn; /* while sent */
    uint32_t slot;
    bool sent, ended;
    bool adaptive; /* the deadline is learnt (deadline.h) */
    bool stranger; /* the peer had too few answers to this method */
    bool probe;    /* may wait longer than other peers' answers give */
    bool excused;  /* its deadline was extended once, for a stall of this process */
    hth_rpc_done_fn *done;
    void *arg;
    int64_t deadline_us, started_us, sent_us;
    int64_t stalled_us; /* of the endpoint, when the call began */
    uint16_t method;
    struct hth_rpc_idem idem;
    uint64_t trace_id;
    uint64_t body_len;
    struct hth_rpc_body body; /* own copies while waiting */
    enum hth_err err;         /* on soon_calls */
    bool remote;
    char *text; /* on soon_calls */
};

struct hth_rpc_request {
    struct rpc_link node; /* in conn->requests, conn->replies, or rpc->orphans */
    struct rpc_link soon; /* in rpc->soon_requests */
    struct rpc_due due;
    struct hth_rpc *rpc; /* NULL once the endpoint is gone */
    struct rpc_peer *peer;
    struct rpc_conn *conn; /* NULL once the connection is gone */
    struct hth_frame *frame;
    uint64_t invite, serial; /* of the caller's grant when it arrived */
    uint8_t class;
    uint64_t body_len;
    uint64_t held;         /* of peer->held */
    enum hth_err body_err; /* why the body was thrown away */
    int64_t arrived_us, deadline_us;
    bool canceled;
    bool ignored;
    bool answered; /* waits in conn->replies, since */
    int64_t answered_us;
    enum hth_err cancel_err;
    hth_fn *on_cancel;
    void *cancel_arg;
    /* an answer that waits for credit */
    struct hth_rpc_body answer;
    uint64_t answer_len;
};

struct rpc_handler {
    uint16_t method;
    hth_rpc_handler_fn *fn;
    void *arg;
};

struct lost_peer {
    struct lost_peer *next;
    struct hth_peer_id peer;
    enum hth_err err;
};

/* The most that one stall of this process counts. */
#define RPC_LATE_MAX_US (5 * HTH_US_PER_S)

struct rpc_metrics { /* registered in a row so that they lie side by side: from bytes_in on */
    struct hth_metric *calls, *calls_failed, *requests, *refused, *bytes_in, *bytes_out, *conns,
        *rtt, *dropped;
};

struct hth_rpc { /* in the order of use: in a large swarm it is cold at each turn */
    struct hth_env *env;
    struct hth_timer *timer;
    int64_t timer_at_us; /* INT64_MAX: not armed */
    int64_t late_us, late_at_us;
    int64_t stalled_us, stalled_until_us; /* how long this process stalled in all, and until when */
    bool checks_late;                     /* ... when a check of connections was due */
    int cork;                             /* > 0: flush at the end */
    uint32_t conn_count;
    struct hth_heap due;
    uint64_t due_seq;
    struct rpc_link dirty;
    struct rpc_link busy; /* the connections to check at the next period */
    struct rpc_link soon_calls, soon_requests;
    struct lost_peer *lost_first, *lost_last;
    struct rpc_due busy_check, sweep, grants;
    bool draining;
    uint32_t handler_count;
    struct rpc_handler *handlers;        /* few: searched linearly */
    struct hth_rpc_request *dispatching; /* the request whose handler runs, until it answers */
    struct hth_map *peers;               /* by id */
    struct rpc_metrics metrics;
    struct hth_rpc_stats stats;
    struct method_deadlines usual; /* over all peers: for strangers */
    struct hth_blob *pad;          /* zeros between tensors */
    struct hth_rpc_opts opts;
    /* when a connection or a peer begins or ends */
    struct hth_map *anonymous; /* peers by address */
    struct rpc_link conns;
    struct hth_blob *hello; /* first frame of every connection */
    size_t hello_len;       /* its length */
    struct rpc_link orphans;
    struct hth_listener *listener;
    struct hth_addr addr;
    char network[HTH_NAME_LEN_MAX + 1]; /* as in HELLO */
    bool is_private;
    int64_t drain_until_us;
    hth_fn *drain_fn;
    void *drain_arg;
};

/* ---- rpc.c --------------------------------------------------------------------------------- */

/* Prefetches the counters that every message adds to. */
static inline void metrics_fetch(const struct hth_rpc *rpc)
{
    for (size_t at = 0; at < METRICS_BYTES; at += 64)
        __builtin_prefetch((const char *)rpc->metrics.bytes_in + at);
}
/* Wrap every callback from the env: frames queued in between are flushed at the end. */
void hth_rpc_enter(struct hth_rpc *rpc);
void hth_rpc_leave(struct hth_rpc *rpc);
/* Sets or moves a due time; at_us on our clock. */
void hth_rpc_due_set(struct hth_rpc *rpc, struct rpc_due *due, int64_t at_us);
void hth_rpc_due_cancel(struct hth_rpc *rpc, struct rpc_due *due);
/* How late work that was due at due_us runs; 0 when below 20 ms, which other work of the loop
 * explains. */
int64_t hth_rpc_lateness(const struct hth_rpc *rpc, int64_t due_us);
/* Makes on_timer run in the next turn. */
void hth_rpc_soon(struct hth_rpc *rpc);
/* NULL when memory is gone. */
struct hth_frame *hth_rpc_frame_new(void);
/* NULL is fine. */
void hth_rpc_frame_free(struct hth_frame *f);
/* Ends the drain once nothing is left. */
void hth_rpc_drain_check(struct hth_rpc *rpc);
void hth_rpc_queue_lost(struct hth_rpc *rpc, const struct hth_peer_id *peer, enum hth_err err);

/* ---- peer.c -------------------------------------------------------------------------------- */

uint32_t hth_rpc_peers_count(const struct hth_rpc *rpc);
/* Finds or makes. Errors: E_BUDGET (HTH_RPC_PEERS_MAX are in use). */
enum hth_err hth_rpc_peer_get(struct hth_rpc *rpc, const struct hth_peer_id *id,
                              const struct hth_addr *addr, struct rpc_peer **out) HTH_MUST;
struct rpc_peer *hth_rpc_peer_find(const struct hth_rpc *rpc, const struct hth_peer_id *id,
                                   const struct hth_addr *addr);
struct rpc_peer *hth_rpc_peer_ref(struct rpc_peer *p);
void hth_rpc_peer_unref(struct rpc_peer *p);
/* The connection that calls go over, or NULL. */
struct rpc_conn *hth_rpc_peer_conn(const struct rpc_peer *p);
bool hth_rpc_peer_connecting(const struct rpc_peer *p);
/* Sends waiting calls; dials when there is no connection; fails the calls while in back-off. */
void hth_rpc_peer_pump(struct rpc_peer *p);
/* A connection (attempt) ended. */
void hth_rpc_peer_conn_lost(struct rpc_peer *p, enum hth_err err, const char *text, bool was_ready,
                            bool had_verdict);
/* The peer answered a frame after took_us. */
void hth_rpc_peer_observe_rtt(struct rpc_peer *p, int64_t took_us);
/* Removes it from the table if it has neither connections nor calls; who holds it keeps it. */
void hth_rpc_peer_forget(struct rpc_peer *p);
void hth_rpc_peer_fail_waiting(struct rpc_peer *p, enum hth_err err, const char *text, bool remote);
/* The learnt deadline of a method, of one peer or of all; made at the first call. */
struct method_deadline *hth_rpc_deadline_of(struct hth_rpc *rpc, struct method_deadlines *all,
                                            uint16_t method);

/* ---- conn.c -------------------------------------------------------------------------------- */

enum hth_err hth_rpc_conn_dial(struct rpc_peer *p) HTH_MUST;
void hth_rpc_conn_accept(void *arg, struct hth_stream *s);
/* Prefetches the cache lines that a frame touches, so that they load in parallel. */
void hth_rpc_conn_fetch(const struct rpc_conn *c);
/* Ends it now: the stream is closed, its calls fail with `err`, its requests are canceled. `text`
 * is sent to the other side in a GOODBYE when notify is set. */
void hth_rpc_conn_kill(struct rpc_conn *c, enum hth_err err, const char *text, bool notify);
void hth_rpc_conn_unpin(struct rpc_conn *c);
/* Allocates the body of the frame being received, or skips it: rx_err is the reason. Errors break
 * the connection. */
enum hth_err hth_rpc_conn_take_body(struct rpc_conn *c, bool wanted) HTH_MUST;
/* The body being received is complete, or dropped. Returns its bytes of peer->held, which the
 * caller has from now on. */
uint64_t hth_rpc_conn_body_done(struct rpc_conn *c);
/* Updates whether work is under way. Busy connections are checked every period; quiet ones, of
 * which there may be thousands, only by a slow sweep over all. */
void hth_rpc_conn_settle(struct rpc_conn *c);
void hth_rpc_conns_check_busy(struct hth_rpc *rpc, bool late);
void hth_rpc_conns_sweep(struct hth_rpc *rpc);
void hth_rpc_conns_grants(struct hth_rpc *rpc);
/* Closes after a goodbye once no work is under way. */
void hth_rpc_conn_maybe_finish(struct rpc_conn *c);
void hth_rpc_conn_goodbye(struct rpc_conn *c, enum hth_err err, const char *text);

/* ---- tx.c ---------------------------------------------------------------------------------- */

/* Queues a frame and its tensors. Errors: those of hth_frame_pack; E_QUEUE_FULL. */
enum hth_err hth_rpc_tx_frame(struct rpc_conn *c, const struct hth_frame_msg *msg) HTH_MUST;
/* Packs the HELLO that hth_rpc_tx_hello sends, once. Errors: those of hth_frame_pack. */
enum hth_err hth_rpc_tx_hello_pack(struct hth_rpc *rpc) HTH_MUST;
void hth_rpc_tx_hello(struct rpc_conn *c);
/* Queues a frame without payload, which always fits. */
void hth_rpc_tx_control(struct rpc_conn *c, enum hth_frame_type type, uint64_t id);
void hth_rpc_tx_flush(struct rpc_conn *c);
void hth_rpc_tx_clear(struct rpc_conn *c);
/* Bytes not yet sent, here and in the stream. */
uint64_t hth_rpc_tx_backlog(const struct rpc_conn *c);

/* ---- call.c -------------------------------------------------------------------------------- */

/* Sends the peer's first waiting call over c if it fits; returns whether it did. */
bool hth_rpc_call_send_next(struct rpc_conn *c);
void hth_rpc_call_expired(struct hth_rpc_call *call);
/* Verdict in the next turn. The call must be in no slot. */
void hth_rpc_call_fail_soon(struct hth_rpc_call *call, enum hth_err err, const char *text,
                            bool remote);
/* Runs the callback and frees. */
void hth_rpc_call_finish(struct hth_rpc_call *call, const struct hth_rpc_result *result);
void hth_rpc_call_run_soon(struct hth_rpc_call *call);
void hth_rpc_call_free(struct hth_rpc_call *call);
/* A REPLY or REFUSE arrived. Errors break the connection. */
enum hth_err hth_rpc_call_on_head(struct rpc_conn *c, struct hth_frame *f) HTH_MUST;
void hth_rpc_call_on_complete(struct rpc_conn *c, struct hth_frame *f);
void hth_rpc_slots_fail_all(struct rpc_conn *c, enum hth_err err, const char *text, bool remote);
/* A copy of payload and tensors with references. Errors: E_NO_MEMORY. */
enum hth_err hth_rpc_body_copy(const struct hth_rpc_body *from, struct hth_rpc_body *to) HTH_MUST;
void hth_rpc_body_clear(struct hth_rpc_body *body);

/* ---- rights.c ------------------------------------------------------------------------------ */

/* The roles of which one is needed to call this method; 0: none. */
uint8_t hth_rpc_rights(uint16_t method);
/* For hth_rpc_stats.turned_away. */
void hth_rpc_count_refusal(struct hth_rpc *rpc, enum hth_err err);

/* ---- request.c ----------------------------------------------------------------------------- */

enum hth_err hth_rpc_request_on_head(struct rpc_conn *c, struct hth_frame *f) HTH_MUST;
void hth_rpc_request_on_complete(struct rpc_conn *c);
void hth_rpc_request_free(struct hth_rpc_request *req);
void hth_rpc_request_on_cancel(struct rpc_conn *c, uint64_t id);
void hth_rpc_request_expired(struct hth_rpc_request *req);
void hth_rpc_request_run_soon(struct hth_rpc_request *req);
/* For a connection that ends: its requests become orphans, its waiting answers are dropped. */
void hth_rpc_requests_orphan_all(struct rpc_conn *c, enum hth_err err);
/* Sends answers that waited for credit. */
void hth_rpc_replies_pump(struct rpc_conn *c);

#endif
