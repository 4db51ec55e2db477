/* SPDX-License-Identifier: Apache-2.0 */
/*
 * env.h: everything that code above net/ may use of the world, and nothing else.
 *
 * One `struct hth_env` is one node. net/ makes it of libevent, TLS and threads; sim/ makes
 * thousands of them on one thread under a virtual clock. The same object files run on both.
 *
 *   time      a monotonic clock cached per loop turn, and a wall clock for expiries
 *   timers    one-shot; timers due at the same instant fire in no particular order
 *   streams   ordered bytes between two peers, authenticated: dial, listen, gather-write, pull-read
 *   jobs      work off the loop: lanes for arithmetic, for each card, and for disks
 *   post      the one entry from another thread
 *   files     whole small files and ranged reads, from jobs
 *   rng       a seeded stream for decisions
 *   faults    named sites that the simulator can make fail
 *
 * Threads: all functions are for the loop thread except hth_post, the hth_file_ functions (any
 * job), hash/sign/verify and metrics updates. Callbacks run on the loop thread, one at a time, and
 * never inside the call that caused them; so no function frees the object under its caller's feet.
 */
#ifndef HTH_CORE_ENV_H
#define HTH_CORE_ENV_H

#include "core/base.h"
#include "core/blob.h"
#include "core/crypto.h"
#include "core/ident.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/metrics.h"
#include "core/rng.h"
#include "core/team.h"

struct hth_env;
struct hth_timer;
struct hth_listener;
struct hth_stream;

/* ---- streams ------------------------------------------------------------------------------- */

/* A stream's life:  dial -> on_open -> (on_readable | on_drained)* -> on_closed
 *                   accept (already open) -> (on_readable | on_drained)* -> on_closed
 * After on_closed, or after the owner called hth_stream_close, no callback comes and the handle is
 * gone. on_closed is called once unless the owner closed: err is HTH_OK when the other side ended
 * cleanly, else E_REFUSED, E_UNREACHABLE, E_TIMEOUT, E_CLOSED, E_BAD_PEER_ID, E_PROTOCOL (TLS). */
struct hth_stream_ops {
    void (*on_open)(struct hth_stream *s, void *arg);
    /* Bytes can be read; called again until they were read (level triggered). */
    void (*on_readable)(struct hth_stream *s, void *arg);
    /* The send queue fell below HTH_STREAM_LOW_BYTES after a write filled it beyond that. */
    void (*on_drained)(struct hth_stream *s, void *arg);
    void (*on_closed)(struct hth_stream *s, enum hth_err err, void *arg);
    /* NULL, or a hint that bytes will arrive soon. It changes no state and only prefetches memory
     * that on_readable will touch. An environment may never call it: only the simulated one knows
     * what will arrive. */
    void (*ahead)(const void *arg);
    /* The owner does not know yet whether it wants this accepted stream: at most
     * HTH_STRANGER_BYTES_MAX are read of it, a handshake's among them, and more end it with
     * E_PROTOCOL; all strangers together get a share of the loop. Until other callbacks are
     * attached. Of a dialed stream it means nothing. */
    bool is_stranger;
};

/* A peer connected and proved its key. Set the stream's callbacks inside with hth_stream_attach; an
 * unattached stream is closed when the callback returns. */
typedef void hth_accept_fn(void *arg, struct hth_stream *s);

/* ---- jobs ---------------------------------------------------------------------------------- */

enum hth_lane { HTH_LANE_COMPUTE, HTH_LANE_IO, HTH_LANE_CARD0 };

/* A card has a lane of its own. Its workers serve no other lane and start with its first job: its
 * context stays current on them, and a driver call that hangs blocks that card alone. A job waits
 * for its card before it ends, so there are two workers: one copies while the other's kernels
 * compute. */
#define HTH_CARD_WORKERS 2u
#define HTH_LANES_MAX    ((uint32_t)HTH_LANE_CARD0 + HTH_CARDS_MAX)

/* card < HTH_CARDS_MAX */
static inline enum hth_lane hth_lane_of_card(uint32_t card)
{
    return (enum hth_lane)((uint32_t)HTH_LANE_CARD0 + card);
}

/* Work off the loop. Embed it in a struct of your own. `run` is called on a worker of the lane and
 * may touch only what the struct holds; `done` follows on the loop thread. Jobs of a lane start in
 * the order of submission; a compute lane has several workers, so jobs that share weights must be
 * submitted one after the other's done.
 *
 * The simulator charges the job's cost against the node's device, and in ghost mode skips `run`:
 * only jobs read payloads. flops and bytes_moved count the work that is done. Work whose speed
 * depends on its size is counted by kind as well (hth_job_add), for the profiles of measured
 * devices. */
enum hth_work_kind { HTH_WORK_FORWARD, HTH_WORK_BACKWARD, HTH_WORK_STEP, HTH_WORK_KINDS };

struct hth_job_work {
    double flops;
    uint64_t rows;    /* of all batches together */
    uint32_t batches; /* each passes through an expert by itself */
};

struct hth_job {
    enum hth_lane lane;
    void (*run)(struct hth_job *job);
    void (*done)(struct hth_job *job, enum hth_err err); /* HTH_OK or E_CANCELED at shutdown */
    double flops;
    double bytes_moved;
    struct hth_job_work work[HTH_WORK_KINDS]; /* the part of flops that is counted by kind */
    struct hth_job *next;                     /* private to the environment */
    struct hth_env *env;                      /* private */
    uint64_t private_ticket;                  /* private */
};

/* Adds a batch of rows to a job that was not submitted yet. The caller counts bytes_moved. */
static inline void hth_job_add(struct hth_job *job, enum hth_work_kind kind, double flops,
                               uint64_t rows)
{
    job->flops += flops;
    job->work[kind].flops += flops;
    job->work[kind].rows += rows;
    job->work[kind].batches++;
}

/* ---- the table ----------------------------------------------------------------------------- */

typedef void hth_fn(void *arg);

struct hth_env_ops {
    /* timers */
    struct hth_timer *(*timer_new)(struct hth_env *env, hth_fn *fn, void *arg);
    void (*timer_set)(struct hth_timer *t, int64_t delay_us);
    void (*timer_cancel)(struct hth_timer *t);
    void (*timer_free)(struct hth_timer *t);
    /* streams */
    enum hth_err (*listen)(struct hth_env *env, const struct hth_addr *addr, hth_accept_fn *fn,
                           void *arg, struct hth_listener **out);
    void (*listener_addr)(struct hth_listener *l, struct hth_addr *out);
    void (*listener_free)(struct hth_listener *l);
    enum hth_err (*dial)(struct hth_env *env, const struct hth_addr *addr,
                         const struct hth_peer_id *want, const struct hth_stream_ops *ops,
                         void *arg, struct hth_stream **out);
    void (*stream_attach)(struct hth_stream *s, const struct hth_stream_ops *ops, void *arg);
    enum hth_err (*stream_write)(struct hth_stream *s, const struct hth_span *spans, size_t count);
    size_t (*stream_queued)(const struct hth_stream *s);
    size_t (*stream_read)(struct hth_stream *s, struct hth_blob *into, size_t offset, size_t max);
    void (*stream_pause)(struct hth_stream *s, bool paused);
    void (*stream_peer)(const struct hth_stream *s, struct hth_peer_id *id, struct hth_addr *addr);
    void (*stream_close)(struct hth_stream *s, bool flush);
    /* jobs and other threads */
    enum hth_err (*job_submit)(struct hth_env *env, struct hth_job *job);
    uint32_t (*lane_width)(struct hth_env *env, enum hth_lane lane);
    struct hth_team *(*team)(struct hth_env *env); /* NULL: no team */
    void (*post)(struct hth_env *env, hth_fn *fn, void *arg);
    /* memory for payloads */
    enum hth_err (*blob_new)(struct hth_env *env, size_t size, struct hth_budget *budget,
                             struct hth_blob **out);
    /* files */
    enum hth_err (*file_size)(struct hth_env *env, const char *path, uint64_t *size);
    enum hth_err (*file_pread)(struct hth_env *env, const char *path, uint64_t offset, void *buf,
                               size_t len, size_t *got);
    enum hth_err (*file_write)(struct hth_env *env, const char *path, const struct hth_span *spans,
                               size_t count);
    enum hth_err (*file_remove)(struct hth_env *env, const char *path);
    /* faults */
    bool (*fault)(struct hth_env *env, const char *site);
    /* wall clock in Unix microseconds (skewed in the simulator) */
    int64_t (*wall_us)(struct hth_env *env);
};

struct hth_env {
    const struct hth_env_ops *ops;
    int64_t now_us; /* monotonic, constant within one callback */
    struct hth_rng rng;
    struct hth_log log;
    struct hth_metrics *metrics;
    const struct hth_crypto *crypto;
    struct hth_secret secret; /* this node's identity */
    struct hth_pubkey pubkey;
    struct hth_peer_id self;
};

/* ---- time ---------------------------------------------------------------------------------- */

/* Jobs may call this too (their log lines do), while the loop moves the clock: hence atomic. */
static inline int64_t hth_now_us(const struct hth_env *env)
{
    return __atomic_load_n(&env->now_us, __ATOMIC_RELAXED);
}
static inline int64_t hth_wall_us(struct hth_env *env)
{
    return env->ops->wall_us(env);
}

/* ---- timers -------------------------------------------------------------------------------- */

/* Not armed yet. */
static inline struct hth_timer *hth_timer_new(struct hth_env *env, hth_fn *fn, void *arg)
{
    return env->ops->timer_new(env, fn, arg);
}
/* Arms it, or moves it when armed. delay_us <= 0 means the next turn. */
static inline void hth_timer_set(struct hth_env *env, struct hth_timer *t, int64_t delay_us)
{
    env->ops->timer_set(t, delay_us);
}
static inline void hth_timer_cancel(struct hth_env *env, struct hth_timer *t)
{
    env->ops->timer_cancel(t);
}
/* Also from its own callback. NULL is fine. */
static inline void hth_timer_free(struct hth_env *env, struct hth_timer *t)
{
    if (t != NULL)
        env->ops->timer_free(t);
}

/* ---- streams ------------------------------------------------------------------------------- */

/* Port 0 picks one: hth_listener_addr returns it. Errors: E_ADDR_IN_USE, E_PERMISSION,
 * E_UNREACHABLE. */
static inline HTH_MUST enum hth_err hth_listen(struct hth_env *env, const struct hth_addr *addr,
                                               hth_accept_fn *fn, void *arg,
                                               struct hth_listener **out)
{
    return env->ops->listen(env, addr, fn, arg, out);
}
static inline void hth_listener_addr(struct hth_env *env, struct hth_listener *l,
                                     struct hth_addr *out)
{
    env->ops->listener_addr(l, out);
}
static inline void hth_listener_free(struct hth_env *env, struct hth_listener *l)
{
    if (l != NULL)
        env->ops->listener_free(l);
}
/* `want` NULL accepts any key. Failures come later through on_closed; errors at once: E_BUDGET (too
 * many streams), E_UNSUPPORTED (address family). */
static inline HTH_MUST enum hth_err hth_dial(struct hth_env *env, const struct hth_addr *addr,
                                             const struct hth_peer_id *want,
                                             const struct hth_stream_ops *ops, void *arg,
                                             struct hth_stream **out)
{
    return env->ops->dial(env, addr, want, ops, arg, out);
}
static inline void hth_stream_attach(struct hth_env *env, struct hth_stream *s,
                                     const struct hth_stream_ops *ops, void *arg)
{
    env->ops->stream_attach(s, ops, arg);
}
/* Queues the spans in order, taking a reference on each blob; all or nothing.
 * Errors: E_QUEUE_FULL (more than HTH_STREAM_QUEUE_BYTES_MAX would wait; come back in on_drained),
 * E_CLOSED. */
static inline HTH_MUST enum hth_err hth_stream_write(struct hth_env *env, struct hth_stream *s,
                                                     const struct hth_span *spans, size_t count)
{
    return env->ops->stream_write(s, spans, count);
}
/* Bytes that wait to be sent. */
static inline size_t hth_stream_queued(struct hth_env *env, const struct hth_stream *s)
{
    return env->ops->stream_queued(s);
}
/* Moves at most max bytes that have arrived to into->data + offset, straight from the decrypting
 * layer; returns how many, 0 when none wait. Into a ghost blob only the count and digest move. */
static inline size_t hth_stream_read(struct hth_env *env, struct hth_stream *s,
                                     struct hth_blob *into, size_t offset, size_t max)
{
    return env->ops->stream_read(s, into, offset, max);
}
/* Stops reading from the other side, which then feels back-pressure. */
static inline void hth_stream_pause(struct hth_env *env, struct hth_stream *s, bool paused)
{
    env->ops->stream_pause(s, paused);
}
/* The authenticated key's id (zero before on_open) and the address of the other end. */
static inline void hth_stream_peer(struct hth_env *env, const struct hth_stream *s,
                                   struct hth_peer_id *id, struct hth_addr *addr)
{
    env->ops->stream_peer(s, id, addr);
}
/* The handle is gone after this call. flush: queued bytes are still sent, for at most
 * HTH_FLUSH_TIMEOUT_US. */
static inline void hth_stream_close(struct hth_env *env, struct hth_stream *s, bool flush)
{
    env->ops->stream_close(s, flush);
}

/* ---- jobs ---------------------------------------------------------------------------------- */

/* Errors: E_QUEUE_FULL (HTH_LANE_JOBS_MAX wait), E_IO (a card's first job, and the kernel gives no
 * thread). The job belongs to the environment until done. */
static inline HTH_MUST enum hth_err hth_job_submit(struct hth_env *env, struct hth_job *job)
{
    return env->ops->job_submit(env, job);
}
/* Jobs of this lane that run at the same time. */
static inline uint32_t hth_lane_width(struct hth_env *env, enum hth_lane lane)
{
    return env->ops->lane_width(env, lane);
}
/* The compute lane's idle workers, for a job of that lane to cut its work over: NULL when the
 * environment has none; hth_team_run takes that. A worker helps only while no job waits. */
static inline struct hth_team *hth_env_team(struct hth_env *env)
{
    return env->ops->team != NULL ? env->ops->team(env) : NULL;
}
/* Runs fn(arg) on the loop thread soon. Any thread. */
static inline void hth_post(struct hth_env *env, hth_fn *fn, void *arg)
{
    env->ops->post(env, fn, arg);
}
/* A payload: real bytes, or a ghost in an environment with ghosts. budget may be NULL. Errors:
 * E_BUDGET, E_NO_MEMORY. */
static inline HTH_MUST enum hth_err
hth_env_blob_new(struct hth_env *env, size_t size, struct hth_budget *budget, struct hth_blob **out)
{
    return env->ops->blob_new(env, size, budget, out);
}

/* ---- files (any job; on the loop only at start and end of a program) ------------------------ */

/* Errors of all four: E_NO_FILE, E_PERMISSION, E_IO, E_DISK_FULL. */
static inline HTH_MUST enum hth_err hth_file_size(struct hth_env *env, const char *path,
                                                  uint64_t *size)
{
    return env->ops->file_size(env, path, size);
}
/* *got < len only at the end of the file. */
static inline HTH_MUST enum hth_err hth_file_pread(struct hth_env *env, const char *path,
                                                   uint64_t offset, void *buf, size_t len,
                                                   size_t *got)
{
    return env->ops->file_pread(env, path, offset, buf, len, got);
}
/* Writes a temporary file, syncs it, renames it and syncs the folder: after a crash the old or the
 * new content is there, whole. An error leaves the old content, unless only the folder's sync
 * failed. Makes missing folders of the path. */
static inline HTH_MUST enum hth_err hth_file_write(struct hth_env *env, const char *path,
                                                   const struct hth_span *spans, size_t count)
{
    return env->ops->file_write(env, path, spans, count);
}
/* A file, or an empty folder. Syncs the folder that it was in: it does not come back after a
 * crash. */
static inline HTH_MUST enum hth_err hth_file_remove(struct hth_env *env, const char *path)
{
    return env->ops->file_remove(env, path);
}
/* Reads a whole file of at most `max` bytes. Errors: also E_TOO_LARGE, E_NO_MEMORY. */
enum hth_err hth_file_read(struct hth_env *env, const char *path, uint64_t max,
                           struct hth_blob **out) HTH_MUST;

/* ---- faults -------------------------------------------------------------------------------- */

/* True when the simulator wants this named site to fail; always false in the real world. The name
 * is a string literal: the simulator recognises a frequent site by the literal's address. */
static inline bool hth_fault(struct hth_env *env, const char *site)
{
    return env->ops->fault != NULL && env->ops->fault(env, site);
}

#endif
