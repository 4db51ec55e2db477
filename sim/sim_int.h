/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_int.h: the parts of the world and what they share. Private to sim/.
 *
 *   event.c   the queue of future events
 *   world.c   the loop, the dispatch, the trace
 *   node.c    boot and crash of nodes, timers, posts, faults: the small half of struct hth_env
 *   link.c    delays, sides, blocks
 *   stream.c  dials, handshakes and the handles of streams
 *   pipe.c    the bytes: queues, access links, windows, retransmissions
 *   job.c     processors      disk.c   files      dht.c   the shared table
 *
 * Two invariants hold everywhere. The world calls back into a node only from the dispatch of an
 * event of that node, so never inside a call that the node made. And no function touches an object
 * after a callback that could destroy it, unless it pinned the object first (conn->pins,
 * get->canceled).
 */
#ifndef HTH_SIM_SIM_INT_H
#define HTH_SIM_SIM_INT_H

#include "core/map.h"
#include "core/mem.h"
#include "sim/world.h"

/* ---- events -------------------------------------------------------------------------------- */

/* X(NAME, name in the trace). The trace hash covers these names. */
#define SIM_EVENT_MAP(X)                                                                           \
    X(NONE, "none")                                                                                \
    X(AT, "at")                                                                                    \
    X(BOOT, "boot")                                                                                \
    X(TIMER, "timer")                                                                              \
    X(POST, "post")                                                                                \
    X(JOB, "job")                                                                                  \
    X(HANDSHAKE, "handshake")                                                                      \
    X(WAKE, "wake")                                                                                \
    X(RESET, "reset")                                                                              \
    X(UPLINK, "uplink")                                                                            \
    X(ARRIVE, "arrive")                                                                            \
    X(CREDIT, "credit")                                                                            \
    X(PUT, "dht put")                                                                              \
    X(GET, "dht get")                                                                              \
    X(WATCH, "dht watch")                                                                          \
    X(PUSH, "dht push")                                                                            \
    X(SWEEP, "dht sweep")                                                                          \
    X(CRASH, "crash")

enum sim_event_kind {
#define SIM_EVENT_ENUM(upper, text) SIM_##upper,
    SIM_EVENT_MAP(SIM_EVENT_ENUM)
#undef SIM_EVENT_ENUM
};

struct sim_event {
    uint32_t index; /* place in its bucket + 1; 0: not scheduled */
    uint8_t kind;
    uint16_t place;        /* its bucket */
    struct hth_node *node; /* NULL: an event of the world */
};

struct sim_slot {
    int64_t at_us;
    uint64_t key; /* a bijection of the sequence number: unique, and random among equals in time */
    struct sim_event *event;
};

struct sim_bucket {
    struct sim_slot *slots;
    uint32_t count, capacity;
};

#define SIM_QUEUE_LEVELS 6
#define SIM_QUEUE_AHEAD  7

struct sim_level;

/* All zeros is an empty queue. */
struct sim_queue {
    struct sim_bucket soon;                    /* a heap */
    uint64_t open;                             /* number of the stretch whose events are in it */
    struct sim_level *level[SIM_QUEUE_LEVELS]; /* allocated at its first use */
    size_t count;
    bool opened; /* set with a new stretch; the reader clears it after it read `ahead` */
    /* the next buckets; valid until the queue changes */
    const struct sim_bucket *ahead[SIM_QUEUE_AHEAD];
};

/* Schedule an event, or move it to another time. */
void hth_sim_queue_set(struct sim_queue *q, struct sim_event *event, int64_t at_us, uint64_t key);
/* Remove an event; does nothing when it is not scheduled. */
void hth_sim_queue_remove(struct sim_queue *q, struct sim_event *event);
/* Return the first event, or NULL when the queue is empty. Valid until the queue changes. */
const struct sim_slot *hth_sim_queue_first(struct sim_queue *q);
/* Forget all events. */
void hth_sim_queue_clear(struct sim_queue *q);

/* ---- lists --------------------------------------------------------------------------------- */

/* A ring through its head; a list node outside any list points to itself. */
struct sim_list {
    struct sim_list *prev, *next;
};

static inline void sim_list_init(struct sim_list *l)
{
    l->prev = l->next = l;
}
static inline bool sim_list_empty(const struct sim_list *l)
{
    return l->next == l;
}
static inline void sim_list_append(struct sim_list *head, struct sim_list *item)
{
    item->prev = head->prev;
    item->next = head;
    head->prev->next = item;
    head->prev = item;
}
static inline void sim_list_remove(struct sim_list *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    sim_list_init(item);
}

/* ---- timers, listeners --------------------------------------------------------------------- */

struct hth_timer {
    struct sim_event event;
    struct sim_list in_node;
    hth_fn *fn;
    void *arg;
};

struct hth_listener {
    struct sim_list in_node;
    struct hth_node *node;
    uint16_t port;
    hth_accept_fn *fn;
    void *arg;
};

/* ---- streams ------------------------------------------------------------------------------- */

struct sim_chunk { /* a span on its way */
    struct sim_chunk *next;
    struct hth_blob *blob;
    size_t offset;
    size_t len;
};

struct sim_segment {
    struct sim_segment *next;
    int64_t arrive_us;
    int64_t transmit_us; /* time that it took on the sender's uplink */
    uint32_t len;
    bool queued; /* waits for the receiver's downlink */
    bool fin;    /* the writer ended the stream */
    bool reset;  /* the writer dropped the connection */
};

/* One direction. Bytes are numbered from 0; read <= delivered <= sent <= written. The chunks hold
 * the bytes from `read` to `written`, so that moving bytes moves only these numbers. */
struct sim_pipe {            /* fields in the order of use, as in struct hth_stream */
    struct sim_event arrive; /* event of the receiver, for the first segment */
    struct sim_segment *segments;
    struct sim_chunk *chunks;
    size_t chunk_used; /* bytes of the first chunk that have been read */
    uint64_t written, sent, delivered, read;
    bool window_full;
    bool ending;   /* a fin follows the last byte */
    bool fin_sent; /* all bytes and the fin have been sent */
    bool fin_delivered;
    struct sim_segment *segments_last;
    struct sim_chunk *chunks_last;
    struct sim_list ready; /* in the sender's uplink queue while it can send */
    int64_t last_arrive_us;
    struct sim_event credit; /* event of the sender: the window opened */
    int64_t retry_us;        /* delay of the next retransmission; 0: not stalled */
    int64_t stalled_since_us;
};

enum sim_end_state { SIM_END_NONE, SIM_END_DIALING, SIM_END_OPEN, SIM_END_GONE };

/* An arrival reads the first cache line of either end first, so world.c prefetches that line. */
struct hth_stream {
    struct sim_conn *conn;
    struct hth_node *node;
    const struct hth_stream_ops *ops;
    void *arg;
    enum hth_err closed; /* error for on_closed */
    uint8_t state;       /* enum sim_end_state */
    uint8_t side;        /* 0 dialed, 1 accepted */
    bool held;           /* the application has the handle */
    bool paused;
    bool filled; /* on_drained is owed when the queue gets shorter */
    bool drained;
    bool opened; /* on_open is owed */
    bool idle;   /* the reader left bytes unread when it was called */
    bool crashed;
    bool close_due;
    struct sim_pipe out;
    struct sim_event wake;  /* deferred callbacks; after a flushing close, its deadline */
    struct sim_event reset; /* the other end learns that this one is gone */
    struct sim_list in_node;
    uint64_t life; /* the node's life count when this end was made */
};
_Static_assert(offsetof(struct hth_stream, out.segments) == 64, "the first cache line ends there");

enum sim_stage { SIM_SYN, SIM_SYN_ACK, SIM_HELLO, SIM_HELLO_REPLY, SIM_FINISH, SIM_FAIL, SIM_DONE };

struct sim_conn { /* fields in the order in which a handshake uses them */
    struct sim_event handshake;
    int64_t finish_us; /* time of the handshake's next message */
    int64_t dialed_us;
    uint8_t stage;   /* enum sim_stage */
    uint8_t retries; /* of this stage's message */
    uint16_t pins;
    enum hth_err fail;
    uint16_t dial_port;
    bool has_want;
    struct hth_addr to;
    struct hth_peer_id want;
    struct sim_list in_world;
    uint8_t none[16]; /* each end begins at a cache line */
    struct hth_stream end[2];
};
_Static_assert(offsetof(struct sim_conn, end) % 64 == 0, "ends begin with a cache line");

/* ---- jobs ---------------------------------------------------------------------------------- */

struct sim_worker {
    struct sim_event event;
    struct hth_job *job;
    enum hth_lane lane;
    bool run_early; /* run() happens at the start of the job, not at its end */
    bool started;
};

struct sim_lane {
    struct hth_job *head, *tail;
    size_t waiting;
    struct sim_worker *workers; /* allocated with the first job */
    uint32_t width;
};

struct sim_post {
    struct sim_post *next;
    hth_fn *fn;
    void *arg;
};

/* ---- files --------------------------------------------------------------------------------- */

struct sim_file {
    uint8_t *data;
    size_t size;
    int64_t written_us;
    bool borrowed;
};

/* ---- nodes --------------------------------------------------------------------------------- */

/* fields in the order of use: each event touches the first cache line and the fourth */
struct hth_node {
    /* first, so that an env is its node; the fourth cache line begins with its last field */
    struct hth_env env;
    struct hth_world *world;
    int64_t clock_offset_us;
    int64_t wall_skew_us;
    uint32_t index;
    uint32_t side;
    bool live;   /* the fifth cache line begins here */
    bool silent; /* when down: the power failed, peers hear nothing */
    bool crash_wanted;
    bool booted; /* boot was called: halt has something to free */
    enum hth_crash crash_how;
    int64_t stalled_until_us;
    uint64_t life; /* number of boots */
    int64_t up_free_ns, down_free_ns;
    struct sim_event uplink;
    struct sim_list up_ready; /* pipes that can send, served in rotation */
    struct hth_device device;
    struct hth_rng fault_rng;
    struct sim_lane lanes[HTH_LANES_MAX];
    struct sim_list timers, listeners, streams, puts, gets, watches;
    uint32_t stream_count;
    uint32_t zone;
    uint16_t next_port;
    struct hth_dht dht;
    struct hth_dht_stats dht_stats;

    char name[24];
    void (*boot)(struct hth_env *env, struct hth_dht *dht, void *arg);
    void (*halt)(struct hth_env *env, void *arg);
    void *arg;
    struct sim_event boot_event;
    struct sim_event post_event;
    struct sim_post *posts, *posts_last;

    struct hth_map *disk; /* path -> struct sim_file */
    uint64_t disk_bytes;
};
_Static_assert(offsetof(struct hth_node, live) % 64 == 0, "live begins a cache line");

/* ---- the world ----------------------------------------------------------------------------- */

struct sim_site {
    double p; /* < 0: the chaos decides */
    bool enabled;
    uint64_t fired;
};

/* A cache of the most asked sites by the address of their name: each use of a connection asks
 * one. */
struct sim_near {
    const char *name; /* NULL: none */
    struct sim_site *site;
};

struct hth_world {
    struct hth_world_opts opts;
    uint64_t seed;
    int64_t now_us;
    struct sim_queue queue;
    uint64_t sequence;
    uint64_t trace_hash;
    uint64_t same_instant;
    struct hth_node *current; /* the node whose event is handled */
    hth_fn *ahead_of;         /* the timer callback that has a prefetch function */
    void (*timer_ahead)(const void *arg, uint32_t step);
    hth_dht_value_fn *value_ahead_of; /* the watch callback that has a prefetch function */
    hth_value_ahead_fn *value_ahead;

    struct hth_rng root, link_rng, chaos_rng, dht_rng, job_rng;
    struct hth_node **nodes;
    size_t node_count, node_capacity, up_count;
    struct sim_list conns;
    struct sim_list ats;

    struct hth_map *pair_links; /* (low index, high index) -> struct hth_link */
    struct hth_map *zone_links; /* (low zone, high zone) -> struct hth_link */
    struct hth_map *blocked;    /* (from, to) -> present when blocked */
    struct hth_map *clogs;      /* (from, to) -> int64_t, end of the clog */
    bool sided;                 /* some node is on another side than 0 */
    struct hth_map *mounts;     /* path -> struct sim_file */
    struct hth_map *sites;      /* name -> struct sim_site */
    struct sim_near near[16];
    struct hth_map *table; /* dht key -> struct sim_key */
    struct sim_event sweep;

    struct hth_world_stats stats;
    struct hth_open_counts leaks;
};

static inline struct hth_node *sim_node_of(struct hth_env *env)
{
    return (struct hth_node *)(void *)env;
}

/* world.c */
void hth_sim_schedule(struct hth_world *w, struct sim_event *event, int64_t at_us);
void hth_sim_unschedule(struct hth_world *w, struct sim_event *event);
void hth_sim_trace(struct hth_world *w, const struct hth_node *node, enum sim_event_kind kind,
                   uint64_t detail);
static inline void sim_event_init(struct sim_event *event, enum sim_event_kind kind,
                                  struct hth_node *node)
{
    *event = (struct sim_event){.kind = (uint8_t)kind, .node = node};
}

/* node.c */
extern const struct hth_env_ops hth_sim_env_ops;
struct hth_node *hth_sim_node_new(struct hth_world *w, const char *name,
                                  const struct hth_node_opts *opts);
void hth_sim_node_free(struct hth_node *node);
void hth_sim_node_die(struct hth_node *node, enum hth_crash how);
void hth_sim_node_boot(struct hth_node *node);
void hth_sim_post_run(struct hth_node *node);

/* link.c */
const struct hth_link *hth_sim_link_between(struct hth_world *w, const struct hth_node *a,
                                            const struct hth_node *b);
/* Draw the delay of one packet from a to b. */
int64_t hth_sim_delay(struct hth_world *w, const struct hth_node *a, const struct hth_node *b);
bool hth_sim_reachable(const struct hth_world *w, const struct hth_node *from,
                       const struct hth_node *to);
struct hth_node *hth_sim_node_by_addr(struct hth_world *w, const struct hth_addr *addr);
void hth_sim_links_free(struct hth_world *w);

/* stream.c */
enum hth_err hth_sim_listen(struct hth_env *env, const struct hth_addr *addr, hth_accept_fn *fn,
                            void *arg, struct hth_listener **out);
void hth_sim_listener_addr(struct hth_listener *l, struct hth_addr *out);
void hth_sim_listener_free(struct hth_listener *l);
enum hth_err hth_sim_dial(struct hth_env *env, const struct hth_addr *addr,
                          const struct hth_peer_id *want, const struct hth_stream_ops *ops,
                          void *arg, struct hth_stream **out);
void hth_sim_stream_attach(struct hth_stream *s, const struct hth_stream_ops *ops, void *arg);
void hth_sim_stream_pause(struct hth_stream *s, bool paused);
void hth_sim_stream_peer(const struct hth_stream *s, struct hth_peer_id *id, struct hth_addr *addr);
void hth_sim_stream_close(struct hth_stream *s, bool flush);
static inline struct hth_stream *sim_stream_other(const struct hth_stream *s)
{
    return &s->conn->end[1 - s->side];
}
void hth_sim_handshake(struct sim_conn *conn);
void hth_sim_stream_wake(struct hth_stream *s);
void hth_sim_stream_reset_event(struct hth_stream *s);
/* Schedule the callbacks that are owed. */
void hth_sim_stream_rearm(struct hth_stream *s);
/* Make one owed callback, if any, then rearm. The connection may be freed after it. */
void hth_sim_stream_call(struct hth_stream *s);
/* Schedule on_closed(err), and no other callback. */
void hth_sim_stream_fail(struct hth_stream *s, enum hth_err err);
/* Tell the other end after delay_us that this one is gone. */
void hth_sim_stream_tell_reset(struct hth_stream *to, int64_t delay_us);
void hth_sim_conn_maybe_free(struct sim_conn *conn);
void hth_sim_conn_free(struct sim_conn *conn);
void hth_sim_streams_disconnect(struct hth_node *node, enum hth_crash how);
uint64_t hth_sim_streams_sweep(struct hth_node *node);

/* pipe.c */
enum hth_err hth_sim_stream_write(struct hth_stream *s, const struct hth_span *spans, size_t count);
size_t hth_sim_stream_queued(const struct hth_stream *s);
size_t hth_sim_stream_read(struct hth_stream *s, struct hth_blob *into, size_t offset, size_t max);
void hth_sim_pipe_init(struct hth_stream *s);
void hth_sim_pipe_clear(struct hth_stream *s);
/* Drop the bytes that have not been sent. */
void hth_sim_pipe_cut(struct hth_stream *s);
/* Queue the pipe on the uplink if it can send, and start the uplink. */
void hth_sim_pipe_kick(struct hth_stream *s);
void hth_sim_pipe_send_reset(struct hth_stream *s);
void hth_sim_pipe_discard_unread(struct hth_stream *s);
void hth_sim_pipe_arrive(struct hth_stream *s);
void hth_sim_pipe_credit(struct hth_stream *s);
void hth_sim_uplink(struct hth_node *node);

/* job.c */
enum hth_err hth_sim_job_submit(struct hth_env *env, struct hth_job *job);
uint32_t hth_sim_lane_width(struct hth_env *env, enum hth_lane lane);
void hth_sim_job_event(struct sim_worker *worker);
/* Take all jobs out of the node, as a list. */
struct hth_job *hth_sim_jobs_take(struct hth_node *node);
uint64_t hth_sim_jobs_count(const struct hth_node *node);

/* disk.c */
enum hth_err hth_sim_file_size(struct hth_env *env, const char *path, uint64_t *size);
enum hth_err hth_sim_file_pread(struct hth_env *env, const char *path, uint64_t offset, void *buf,
                                size_t len, size_t *got);
enum hth_err hth_sim_file_write(struct hth_env *env, const char *path, const struct hth_span *spans,
                                size_t count);
enum hth_err hth_sim_file_remove(struct hth_env *env, const char *path);
void hth_sim_disk_crash(struct hth_node *node);
void hth_sim_files_free(struct hth_map *files);

/* dht.c */
extern const struct hth_dht_ops hth_sim_dht_ops;
void hth_sim_dht_put_event(struct hth_dht_put *put);
void hth_sim_dht_get_event(struct hth_dht_get *get);
void hth_sim_dht_watch_event(struct hth_dht_watch *watch);
void hth_sim_dht_push_event(struct sim_event *event);
/* Prefetch the memory that an event will touch while other events are handled. A second function
 * goes on step by step from 0, and each step fetches what the last one pointed to. */
void hth_sim_dht_push_ahead(const struct sim_event *event);
void hth_sim_dht_push_next(const struct hth_world *w, const struct sim_event *event, uint32_t step);
void hth_sim_dht_sweep(struct hth_world *w);
/* Withdraw and cancel all of a node without callbacks; the handles stay until the sweep. */
void hth_sim_dht_disconnect(struct hth_node *node);
void hth_sim_dht_open(const struct hth_node *node, struct hth_open_counts *out);
void hth_sim_dht_sweep_handles(struct hth_node *node);
void hth_sim_dht_free(struct hth_world *w);
struct hth_dht_put *hth_sim_put_of(struct sim_event *event);
struct hth_dht_get *hth_sim_get_of(struct sim_event *event);
struct hth_dht_watch *hth_sim_watch_of(struct sim_event *event);

#endif
