/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_int.h: the structs and functions that the files of net/ share. One `struct hth_net` is one
 * environment.
 *
 *   net.c        the loop: turns, timers, posts, signals
 *   lanes.c      worker threads and the jobs they run; team.c lends out those without a job
 *   listener.c   accepting, and limits per address
 *   door.c       the share of the loop that strangers get
 *   stream.c     a stream's life: dial, handshake, deliver, pump, close
 *   tls.c        bytes <-> TLS 1.3 records; plain.c the same without TLS (struct hth_net_codec)
 *   file.c       whole small files
 *
 * Turns. Every entry from libevent is wrapped in hth_net_enter/leave. Writes that callbacks queue
 * are pumped once in leave, so that all small messages of one turn share records and system calls.
 * Callbacks that are due later go to the ready list, which a zero timer drains in the next turn of
 * the loop; so no callback runs inside the call that caused it, and one busy stream cannot starve
 * the others. Dead streams are freed in leave of the outermost turn, when no function up the stack
 * holds them.
 */
#ifndef HTH_NET_NET_INT_H
#define HTH_NET_NET_INT_H

#include "core/env.h"
#include "net/net.h"

#include <pthread.h>
#include <sys/types.h>

#include <event2/event.h>
#include <event2/event_struct.h>

/* Plaintext of one TLS record. */
#define HTH_NET_RECORD_BYTES 16384
/* Sealed bytes collected before one send(); also the size of a read from the socket. */
#define HTH_NET_SEND_BYTES 65536
#define HTH_NET_OUT_BYTES  (HTH_NET_SEND_BYTES + 3 * (HTH_NET_RECORD_BYTES + 256))
/* Fairness: bytes that one stream may move in each direction per turn, so that others get
 * theirs. */
#define HTH_NET_TURN_BYTES (1u << 20)
/* A turn longer than this is logged. */
#define HTH_NET_SLOW_TURN_US 50000

/* A thread that waits for team work spins for this time before it sleeps. */
#define HTH_NET_SPIN_US 50

struct ssl_ctx_st;
struct ssl_st;
struct bio_method_st;
struct hth_map;
struct hth_net_codec;

struct hth_net_post {
    hth_fn *fn;
    void *arg;
    struct hth_net_post *next;
};

/* In hth_job.private_ticket: whether the job was canceled before it ran. */
enum { HTH_NET_TICKET_RUN = 1, HTH_NET_TICKET_CANCELED = 2 };

struct hth_net_lane {
    struct hth_net *net;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct hth_job *head, *tail; /* waiting, oldest first */
    uint32_t waiting;
    uint32_t running, sleeping; /* workers in a job; workers that sleep */
    uint32_t events;            /* grows with each submission and each piece of team work */
    struct hth_team team;
    struct hth_net_work *work; /* team work of running jobs (team.c) */
    pthread_cond_t helped;
    bool ending;
    uint32_t thread_count;
    pthread_t *threads;
};

struct hth_net_door {
    struct event event;
    struct hth_stream *head, *tail; /* strangers that sent bytes, the first one first */
    int64_t paid_us; /* when their steps will have been the share of all time that they may be */
    int64_t rests_until_us;
};

struct hth_net {
    struct hth_env env; /* first: the environment is the net */
    struct event_base *base;
    struct hth_net_opts opts; /* with all defaults filled in */

    /* turns */
    uint32_t depth;
    int64_t turn_start_us;
    bool stopping;
    struct event ready_event; /* the zero timer */
    struct hth_stream *ready_head, *ready_tail;
    struct hth_stream *dirty_head, *dirty_tail;
    struct hth_stream *grave;

    /* from other threads; the eventfd is written when the inbox was empty */
    pthread_mutex_t inbox_lock;
    struct hth_net_post *post_head, *post_tail;
    struct hth_job *done_head, *done_tail;
    bool inbox_signaled;
    int inbox_fd;
    struct event inbox_event;

    struct hth_net_lane lane[HTH_LANES_MAX]; /* by enum hth_lane */
    uint32_t job_count;                      /* submitted, done not called yet; loop thread */
    bool jobs_ended;

    struct hth_net_signal *signals;
    struct hth_listener *listeners;
    struct hth_net_door door;
    struct hth_stream *streams; /* all that are not in the grave */
    uint32_t stream_count;
    struct hth_map *per_addr; /* origin -> struct addr_count, of accepted streams */

    const struct hth_net_codec *codec;
    struct ssl_ctx_st *ctx;
    struct bio_method_st *bio_method;
    uint8_t *out; /* sealed bytes of the stream being pumped, HTH_NET_OUT_BYTES */
    size_t out_len;
    uint8_t *staging; /* small spans are gathered here into one record */
    uint8_t *rx;      /* reads of plain sockets, and of bytes to discard */

    struct hth_metric *m_streams, *m_bytes_in, *m_bytes_out, *m_refused, *m_slow_turns;
    struct hth_metric *m_handshake_failed;
};

/* ---- streams -------------------------------------------------------------------------------- */

enum hth_net_state {
    HTH_NET_CONNECTING, /* TCP */
    HTH_NET_HANDSHAKE,
    HTH_NET_OPEN,
    HTH_NET_FLUSHING, /* the owner has closed; the queue is still sent */
    HTH_NET_LINGER,   /* all is sent; waiting for the other side to have read it */
    HTH_NET_DEAD      /* in the grave */
};

enum hth_net_ready {
    HTH_NET_READY_READ = 1,
    HTH_NET_READY_PUMP = 2,
    HTH_NET_READY_DRAINED = 4,
    HTH_NET_READY_FAIL = 8
};

struct hth_stream {
    struct hth_net *net;
    enum hth_net_state state;
    int fd;
    bool dialed;
    bool paused;
    bool counted;         /* in per_addr */
    bool shaking;         /* the codec is open */
    uint8_t ready;        /* enum hth_net_ready bits; non-zero: in the ready list */
    bool dirty;           /* in the dirty list */
    bool stranger;        /* takes its steps at the door */
    bool at_door;         /* waits there */
    uint32_t first_bytes; /* of a stranger, from the socket */

    const struct hth_stream_ops *ops; /* NULL: not attached */
    void *arg;
    struct hth_listener *listener; /* until it is accepted */
    struct hth_addr addr;
    struct hth_peer_id peer, want;
    bool has_want;

    struct event read_event, write_event, timer;
    bool reading, writing; /* events that are added */

    /* codec */
    struct ssl_st *ssl;
    uint8_t *plain_in; /* plain mode: read ahead, so that small reads share a recv */
    size_t plain_off, plain_len;

    /* reading */
    bool dry;       /* the last recv emptied the socket: ask epoll before the next one */
    bool eof;       /* recv gave 0 */
    int sock_errno; /* the socket failed */
    bool ended;     /* nothing more can be read; end_err is the reason */
    enum hth_err end_err;
    size_t read_left; /* of this turn */

    /* writing: a ring of spans, then sealed bytes that the socket did not take */
    struct hth_span *ring;
    size_t ring_cap, ring_head, ring_count;
    size_t queued_bytes;
    uint8_t *left;
    size_t left_off, left_len, left_cap;
    bool want_drained;
    bool end_sealed;        /* the end mark is among them or sent */
    enum hth_err write_err; /* not HTH_OK: nothing more can be sent */
    uint64_t records;       /* sealed under the current key */

    struct hth_stream *prev, *next; /* of net->streams */
    struct hth_stream *ready_next, *dirty_next, *grave_next, *door_next;
};

enum hth_net_step {
    HTH_NET_STEP_OK,
    HTH_NET_STEP_WAIT, /* the socket has to become readable first */
    HTH_NET_STEP_END,  /* the other side ended cleanly */
    HTH_NET_STEP_FAIL  /* s->end_err is the reason */
};

/* Between the stream and its socket. A step appends bytes to send with hth_net_out. */
struct hth_net_codec {
    /* Before the first step of the handshake. */
    enum hth_err (*open)(struct hth_stream *s);
    /* Gives HTH_NET_STEP_OK once: s->peer is then proven (TLS) or claimed (plain). */
    enum hth_net_step (*handshake)(struct hth_stream *s);
    /* OK when at least one byte can be read. */
    enum hth_net_step (*peek)(struct hth_stream *s);
    enum hth_net_step (*read)(struct hth_stream *s, uint8_t *to, size_t max, size_t *got);
    /* At most HTH_NET_RECORD_BYTES. */
    enum hth_err (*seal)(struct hth_stream *s, const uint8_t *data, size_t len);
    void (*seal_end)(struct hth_stream *s);
    /* True when bytes wait above the socket. */
    bool (*buffered)(const struct hth_stream *s);
    void (*clear)(struct hth_stream *s);
};

extern const struct hth_net_codec hth_net_tls;
extern const struct hth_net_codec hth_net_plain;

enum hth_err hth_net_tls_setup(struct hth_net *net) HTH_MUST;
void hth_net_tls_teardown(struct hth_net *net);

/* One recv into buf. Returns bytes, or 0 with the reason in s->dry, s->eof or s->sock_errno
 * (EMSGSIZE: more than a stranger may send). */
size_t hth_net_sock_recv(struct hth_stream *s, void *buf, size_t len);
/* Appends to net->out; false when it is full. */
bool hth_net_out(struct hth_net *net, const void *data, size_t len);
/* Why the stream ended, from s->eof and s->sock_errno; `otherwise` when the socket is fine. */
enum hth_err hth_net_sock_err(const struct hth_stream *s, enum hth_err otherwise);
enum hth_err hth_net_errno_err(int e);
void hth_net_peer_from_key(struct hth_stream *s, const uint8_t key[HTH_PUBKEY_LEN]);

/* Sends net->out, and keeps the bytes that the socket does not take. Failures go to
 * s->write_err. */
void hth_net_out_flush(struct hth_stream *s);
/* Seals and sends queued bytes, as far as the socket and this turn's share allow. */
void hth_net_pump(struct hth_stream *s);
/* Drops all queued bytes. */
void hth_net_drop_queue(struct hth_stream *s);
/* libevent's interest in the socket. */
void hth_net_want_read(struct hth_stream *s, bool on);
void hth_net_want_write(struct hth_stream *s, bool on);
/* Remembers that the stream has `what` (enum hth_net_ready) to do in the next turn of the loop. */
void hth_net_ready_later(struct hth_stream *s, unsigned what);
void hth_net_dirty(struct hth_stream *s);

/* Makes the stream of an accepted socket that was counted for its address; takes fd. */
void hth_net_stream_accepted(struct hth_listener *l, int fd, const struct hth_addr *addr);
/* A stranger's part of the door's turn: a step of its handshake, or what it sent. */
void hth_net_stream_step(struct hth_stream *s);
/* Cuts it without a callback. */
void hth_net_stream_cut(struct hth_stream *s);
void hth_net_streams_pump(struct hth_net *net);  /* the dirty list */
void hth_net_streams_ready(struct hth_net *net); /* the ready list */
void hth_net_streams_bury(struct hth_net *net);  /* the grave */

/* ---- listeners ------------------------------------------------------------------------------ */

struct hth_listener {
    struct hth_net *net;
    int fd;
    struct event event, retry; /* at most one is pending; none while it waits */
    bool waits;                /* at the door: there are connections to accept */
    hth_accept_fn *fn;
    void *arg;
    struct hth_addr addr;
    struct hth_listener *prev, *next;
};

/* A socket that listens. Errors: those of hth_listen. */
enum hth_err hth_net_listen_socket(const struct hth_addr *addr, int *out) HTH_MUST;
enum hth_err hth_net_listen(struct hth_env *env, const struct hth_addr *addr, hth_accept_fn *fn,
                            void *arg, struct hth_listener **out);
void hth_net_listener_addr(struct hth_listener *l, struct hth_addr *out);
void hth_net_listener_free(struct hth_listener *l);
/* Accepts a few connections of the listeners that wait; true when some wait for more. */
bool hth_net_listeners_take(struct hth_net *net);
/* Counts one accepted stream of that address more or less; take gives false beyond the limit. */
bool hth_net_addr_take(struct hth_net *net, const struct hth_addr *addr);
void hth_net_addr_give(struct hth_net *net, const struct hth_addr *addr);

/* ---- the door (door.c) ---------------------------------------------------------------------- */

void hth_net_door_init(struct hth_net *net);
/* Empties it, for hth_net_free. */
void hth_net_door_clear(struct hth_net *net);
/* The door has a turn soon: a listener waits. */
void hth_net_door_wake(struct hth_net *net);
/* Stops reading until the stream's turn. */
void hth_net_door_wait(struct hth_stream *s);

struct sockaddr_storage;
socklen_t hth_net_sockaddr(const struct hth_addr *addr, struct sockaddr_storage *out);
bool hth_net_addr_of(const struct sockaddr_storage *ss, struct hth_addr *out);

/* ---- the table's stream entries (stream.c) -------------------------------------------------- */

enum hth_err hth_net_dial(struct hth_env *env, const struct hth_addr *addr,
                          const struct hth_peer_id *want, const struct hth_stream_ops *ops,
                          void *arg, struct hth_stream **out);
void hth_net_stream_attach(struct hth_stream *s, const struct hth_stream_ops *ops, void *arg);
enum hth_err hth_net_stream_write(struct hth_stream *s, const struct hth_span *spans, size_t count);
size_t hth_net_stream_queued(const struct hth_stream *s);
size_t hth_net_stream_read(struct hth_stream *s, struct hth_blob *into, size_t offset, size_t max);
void hth_net_stream_pause(struct hth_stream *s, bool paused);
void hth_net_stream_peer(const struct hth_stream *s, struct hth_peer_id *id, struct hth_addr *addr);
void hth_net_stream_close(struct hth_stream *s, bool flush);

/* ---- files (file.c): any thread ------------------------------------------------------------- */

enum hth_err hth_net_file_size(struct hth_env *env, const char *path, uint64_t *size);
enum hth_err hth_net_file_pread(struct hth_env *env, const char *path, uint64_t offset, void *buf,
                                size_t len, size_t *got);
enum hth_err hth_net_file_write(struct hth_env *env, const char *path, const struct hth_span *spans,
                                size_t count);
enum hth_err hth_net_file_remove(struct hth_env *env, const char *path);
enum hth_err hth_net_file_errno(int e);
/* Makes a renamed or linked file last: syncs the folder that holds path. */
enum hth_err hth_net_sync_dir(const char *path) HTH_MUST;
/* A new file beside path with a unique name; *tmp is freed with hth_free. */
enum hth_err hth_net_temp_open(const char *path, mode_t mode, char **tmp, int *fd) HTH_MUST;
enum hth_err hth_net_write_all(int fd, const void *data, size_t len) HTH_MUST;

/* ---- lanes (lanes.c) ------------------------------------------------------------------------ */

enum hth_err hth_net_lane_start(struct hth_net *net, enum hth_lane lane, uint32_t threads) HTH_MUST;
/* Lets the running jobs end and joins the threads; waiting jobs go to the inbox as canceled. */
void hth_net_lane_end(struct hth_net_lane *lane);
enum hth_err hth_net_job_submit(struct hth_env *env, struct hth_job *job);
uint32_t hth_net_lane_width(struct hth_env *env, enum hth_lane lane);

/* ---- teams (team.c) ------------------------------------------------------------------------- */

extern const struct hth_team_ops hth_net_team_ops;
struct hth_team *hth_net_team(struct hth_env *env);
/* Both are for a worker without a job, which holds the lane's lock. Help works on a caller's parts
 * and gives true, or finds none. Rest returns when there may be new work. */
bool hth_net_lane_help(struct hth_net_lane *lane);
void hth_net_lane_rest(struct hth_net_lane *lane);

/* ---- turns (net.c) -------------------------------------------------------------------------- */

static inline struct hth_net *hth_net_of(struct hth_env *env)
{
    return HTH_CONTAINER(env, struct hth_net, env);
}
/* Brings env->now_us up to date: before every callback of a module. */
void hth_net_tick(struct hth_net *net);
void hth_net_enter(struct hth_net *net);
void hth_net_leave(struct hth_net *net);
/* Arms the zero timer. */
void hth_net_wake_ready(struct hth_net *net);
/* Called by workers: hands a finished job to the loop. */
void hth_net_job_finished(struct hth_net *net, struct hth_job *job);

#endif
