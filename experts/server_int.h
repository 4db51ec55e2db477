/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_int.h: declarations that the files of the server share. server.h has the contract.
 *
 *   request   one rpc request; owns its parts and references on its tensors
 *   part      the rows of one request for one expert; waits in a pool
 *   pool      the parts that wait for (expert, direction), in the order of their start tags
 *   segment   the rows of a part that one batch takes: forward parts may be cut, backward parts not
 *   batch     segments of one pool that go through the kernels together
 *   job       one or more batches, or due steps, or the drawing or reading of one expert's weights
 *
 * Everything belongs to the loop thread except what a job's run touches: the job itself, the fixed
 * fields of its requests (tensors, width, type), and the expert, under the rule of store.h, which
 * `readers`, `backward_running` and `step_running` keep.
 */
#ifndef HTH_EXPERTS_SERVER_INT_H
#define HTH_EXPERTS_SERVER_INT_H

#include "core/heap.h"
#include "core/limits.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/metrics.h"
#include "experts/cache.h"
#include "experts/canary.h"
#include "experts/kept.h"
#include "experts/message.h"
#include "experts/ring.h"
#include "experts/rows.h"
#include "experts/senders.h"
#include "experts/server.h"
#include "experts/unsaved.h"
#include "rpc/closed.h"

struct srv_request;
struct srv_expert;

/* Peers that share one turn, and a bound of bytes (server_fair.c): the keys of an invite; of a
 * network, for those on probation; in an open run, one peer. */
struct srv_payer {
    uint8_t kind;
    uint8_t b[HTH_HASH_LEN];
};

/* A payer with requests on this host. */
struct srv_peer {
    struct srv_payer id;
    bool probation;
    uint32_t requests;
    int64_t bytes_held;
    double cost_waiting;
    uint64_t finish_tag; /* where the work of its admitted parts ends */
};

/* A peer without requests whose finish tag is ahead of the virtual time. */
#define SRV_GONE_MAX 256
struct srv_gone {
    struct srv_payer id;
    uint64_t finish_tag; /* 0: the place is free */
};

/* A peer that sent work (server_callers.c). */
struct srv_caller {
    struct hth_peer_id id;
    int64_t last_us;
    bool gone; /* as logged */
};

struct srv_part {
    struct srv_part *prev, *next; /* in its pool */
    struct srv_request *request;
    struct srv_expert *expert; /* NULL: not hosted here */
    uint64_t start_tag;        /* the lowest is computed first */
    uint64_t seq;              /* order of arrival over all parts: decides between equal tags */
    uint32_t row0, rows;       /* in the request's tensors */
    uint32_t rows_started, rows_done;
    enum hth_err status;
    bool queued;
    bool outlying; /* a backward whose rows weigh nothing, for their norm */
};

struct srv_request {
    struct hth_server *server;
    struct srv_request *prev, *next; /* all that are not finished */
    struct hth_rpc_request *req;     /* NULL once answered */
    struct srv_peer *peer;
    double tag_factor; /* how much further apart its start tags are than its work */
    struct srv_part *parts;
    uint32_t parts_count, parts_left, parts_started;
    bool backward;
    bool keep; /* a forward whose rows a backward will name */
    struct hth_sender_id sender;
    uint64_t list_hash;
    uint32_t rows_in_microbatch;
    uint32_t rows, d;
    enum hth_dtype dtype;
    struct hth_blob *x, *dy, *out; /* out: y or dx, made when the first part starts */
    size_t x_offset, dy_offset;
    int64_t held_bytes;
    int64_t arrived_us;
    struct hth_cache_entry *entry; /* of a backward */
};

struct srv_pool {
    struct hth_heap_node node;
    struct hth_heap *heap; /* the one it is in: ripe, aging; or NULL */
    struct srv_expert *expert;
    bool backward;
    struct srv_part *head, *tail; /* by start tag */
    uint64_t rows;
    int64_t since_us; /* time from which it has not been empty */
};

enum srv_state { SRV_LOADING, SRV_READY, SRV_FAILED };

/* A device that computes: the CPU, or a card. Each has its own jobs on its own lane, so none waits
 * for another. Only jobs of that lane touch a card; the loop and the disk jobs don't. */
#define SRV_DEVICES_MAX 17
struct srv_device {
    const struct hth_backend *backend;
    enum hth_lane lane;
    struct hth_heap ripe;      /* pools that may run */
    struct srv_job *free_jobs; /* with their contexts */
    uint32_t jobs_running;
    uint32_t save_index; /* of the server's experts: the next to save */
    bool saving;
};

struct srv_expert {
    struct hth_server *server;
    struct srv_device *device;
    struct hth_expert *expert;
    const struct hth_backend *backend;
    enum srv_state state;
    bool passes_through;
    struct srv_pool pool[2]; /* forward, backward */
    double flops_row[2];
    uint64_t weights;
    uint32_t d, block_rows;
    uint32_t readers; /* forward batches and snapshots that run */
    bool backward_running;
    bool step_running, step_due;
    struct srv_expert *due_next, *load_next;
    uint64_t pending_rows;
    int64_t pending_since_us;
    int64_t ready_us;
    bool dirty;
    bool returned;
    bool saving;  /* a checkpoint is being written */
    bool leaving; /* not in by_key; server_remove.c frees it */
    bool unsaved; /* its last save failed */
    struct hth_ring ring;
    struct hth_canary *canary;   /* NULL: none was asked for, or there are no weights */
    int64_t paused_until_us;     /* its gradients are dropped */
    struct hth_senders *senders; /* NULL: none sent a backward yet */
    uint64_t steps, rows_forward, rows_backward;
};

struct srv_segment {
    struct srv_part *part;
    uint32_t row0, rows; /* in the request's tensors */
    uint32_t taken;      /* rows of a backward that may weigh */
    double norm_max;     /* of a backward; 0: no bound */
    enum hth_err status; /* these are written by the job */
    uint32_t counted;    /* of `taken`: 0 where the norm is outlying */
    double norm;         /* of the rows of a backward, before they are scaled */
    float scale;         /* of dy */
};

enum srv_batch_kind { SRV_FORWARD, SRV_BACKWARD, SRV_STEP, SRV_LOAD };

struct srv_batch {
    enum srv_batch_kind kind;
    struct srv_expert *expert;
    uint32_t seg0, segs; /* in the job's segments */
    uint32_t rows;
    uint32_t rows_in_microbatch;
    bool drops;  /* a step that only drops the gradients */
    bool jumped; /* by the job: the canary saw a jump */
    bool direct; /* these are written by the job: one segment, computed where it lies */
    enum hth_err err;
    bool restored;
};

struct srv_job {
    struct hth_job job;
    struct hth_server *server;
    struct srv_device *device;
    struct srv_job *next; /* free list */
    struct hth_exec *ex;
    struct srv_batch batch[HTH_SERVER_JOB_BATCHES_MAX];
    uint32_t batches;
    struct srv_segment *segs;
    uint32_t segs_count, segs_capacity;
    uint64_t rows;
    double cost;
    int64_t started_us;
};

/* A checkpoint being written; one per device at a time. */
struct srv_save {
    struct hth_job job;
    struct hth_server *server;
    struct srv_expert *expert;
    struct hth_blob *blob;
    char *path;
    int64_t copy_us; /* 0: without a copy */
    uint64_t disk_bytes;
    enum hth_err err;
};

/* Weights being copied for a peer. */
struct srv_give {
    struct hth_job job;
    struct hth_server *server;
    struct srv_expert *expert;
    struct hth_rpc_request *req; /* NULL once answered */
    struct hth_blob *blob;
    enum hth_err err;
};

struct hth_server {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_server_opts opts;
    char *checkpoint_dir;
    bool dead, draining;
    uint32_t refs; /* jobs submitted and not done, and one for the owner */
    struct srv_expert **experts;
    uint32_t experts_count, experts_capacity;
    uint32_t loading, leaving;
    uint32_t unsaved_count; /* experts whose last save failed */
    struct hth_unsaved unsaved;
    struct hth_map *by_key;
    struct srv_request *requests;
    uint32_t requests_count;
    struct hth_map *peers; /* struct srv_peer by id */
    uint32_t probation;    /* of these */
    uint64_t virtual_time; /* of the batch taken last */
    struct srv_gone gone[SRV_GONE_MAX];
    uint32_t gone_next, gone_count; /* the next place to write; places in use */
    struct srv_caller *callers;
    uint32_t callers_count, callers_capacity;
    struct srv_device device[SRV_DEVICES_MAX];
    uint32_t devices, device_next; /* device_next: the next to start a job, in rotation */
    struct hth_heap aging;
    struct srv_expert *due_head, *due_tail;   /* due steps, in order */
    struct srv_expert *load_head, *load_tail; /* weights to draw or read, in order */
    struct hth_timer *age_timer;              /* of aging pools */
    struct hth_timer *step_timer;             /* of pending gradients */
    struct hth_timer *save_timer;
    struct hth_timer *remove_timer; /* of experts that are leaving */
    struct hth_timer *drain_timer;  /* calls `drained` outside of any other callback */
    bool step_timer_armed;
    uint32_t jobs_running; /* of all devices */
    bool drain_saved, drain_done;
    hth_fn *drained;
    void *drained_arg;
    struct srv_give *give; /* NULL: none is under way */
    struct hth_cache *cache;
    struct hth_kept *kept;
    uint64_t next_seq;
    int64_t outlying_said_us;
    double cost_waiting;     /* of parts that are queued or run */
    double ema_us, ema_cost; /* decayed sums: their ratio is the speed */
    double ema_work_us, ema_rows;
    struct hth_server_stats stats;
    struct hth_metric *m_rows, *m_steps, *m_busy, *m_queue;
    struct hth_metric *m_replays, *m_not_finite, *m_norm, *m_failed, *m_written, *m_write_failed;
};

/* ---- server_admit.c ------------------------------------------------------------------------ */

void hth_srv_on_work(struct hth_server *s, struct hth_rpc_request *req, bool backward);
/* A part has its verdict in part->status. Replies when it is the request's last. */
void hth_srv_part_done(struct srv_part *part);
/* Refuses the rpc request with `err` and takes parts that have not started out of their pools. */
void hth_srv_request_drop(struct srv_request *r, enum hth_err err, const char *text);
double hth_srv_part_cost(const struct srv_part *part);

/* ---- server_give.c ------------------------------------------------------------------------- */

void hth_srv_on_weights(void *arg, struct hth_rpc_request *req);
/* Refuses the request under way, before the server is freed. */
void hth_srv_give_drop(struct hth_server *s);

/* ---- server_fair.c ------------------------------------------------------------------------- */

/* Counts the request and its bytes for its payer; leave when the request is freed. */
void hth_srv_peer_enter(struct srv_request *r);
void hth_srv_peer_leave(struct srv_request *r);
/* Adds to the waiting work of the request's peer; `cost` may be negative. */
void hth_srv_work_waits(struct srv_request *r, double cost);
/* The start tag of the request's next part, which has this much work. */
uint64_t hth_srv_start_tag(struct srv_request *r, double cost);
/* The distance between the start tag and the end of this much work. */
uint64_t hth_srv_tag_span(const struct srv_request *r, double cost);
/* True if several peers have requests here. */
bool hth_srv_shared(const struct hth_server *s);
/* True if a request may wait: within the bytes, and done within left_us and queue_us_max. */
bool hth_srv_may_enter(const struct hth_server *s, const struct hth_rpc_request *req, int64_t bytes,
                       double cost, int64_t left_us);

/* ---- server_callers.c ---------------------------------------------------------------------- */

void hth_srv_caller_note(struct hth_server *s, const struct hth_rpc_request *req);
/* Logs those that sent nothing for HTH_SERVER_CALLER_US. */
void hth_srv_callers_look(struct hth_server *s);
/* The callers of the last HTH_SERVER_CALLER_US. */
uint32_t hth_srv_callers_now(const struct hth_server *s);

/* ---- server_job.c -------------------------------------------------------------------------- */

/* Puts a pool into its heap after a change of the pool or its expert. */
void hth_srv_pool_update(struct srv_pool *pool);
void hth_srv_pool_push(struct srv_pool *pool, struct srv_part *part);
void hth_srv_pool_remove(struct srv_pool *pool, struct srv_part *part);
/* Starts jobs while workers are free. */
void hth_srv_pump(struct hth_server *s);
/* The number of jobs that can usefully run side by side on this device; on all. At least 1. */
uint32_t hth_srv_width_of(const struct hth_server *s, const struct srv_device *device);
uint32_t hth_srv_width(const struct hth_server *s);
void hth_srv_on_age(void *arg);
/* Orders of pools: by start tag, by age. */
bool hth_srv_ripe_less(const struct hth_heap_node *a, const struct hth_heap_node *b);
bool hth_srv_aging_less(const struct hth_heap_node *a, const struct hth_heap_node *b);
/* Drops a reference; the last one of a dead server frees it. */
void hth_srv_unref(struct hth_server *s);

/* ---- server_remove.c ----------------------------------------------------------------------- */

void hth_srv_on_remove_timer(void *arg);
/* True while an expert of that uid is leaving. */
bool hth_srv_is_leaving(const struct hth_server *s, const struct hth_uid *uid);

/* ---- server_run.c: on a worker -------------------------------------------------------------- */

void hth_srv_run(struct hth_job *job);

/* ---- server_keep.c: steps, weights, checkpoints ---------------------------------------------- */

void hth_srv_step_due(struct srv_expert *e);
/* Takes the first due step of that device whose expert is idle off the list; NULL when there is
 * none. */
struct srv_expert *hth_srv_step_take(struct hth_server *s, const struct srv_device *device);
/* Finds the first weights of that device to draw or read; _take takes them off the list. */
struct srv_expert *hth_srv_load_next(struct hth_server *s, const struct srv_device *device);
void hth_srv_load_take(struct hth_server *s, struct srv_expert *e);
void hth_srv_step_done(struct srv_expert *e, const struct srv_batch *b, enum hth_err err);
void hth_srv_backward_done(struct srv_expert *e, uint32_t rows);
/* Appends the expert to the list of weights to draw or read. */
void hth_srv_load_later(struct srv_expert *e);
void hth_srv_load_done(struct srv_expert *e, enum hth_err err, bool restored);
void hth_srv_on_step_timer(void *arg);
void hth_srv_on_save_timer(void *arg);
/* The lane of jobs that copy an expert's state. */
enum hth_lane hth_srv_snapshot_lane(const struct srv_expert *e);
/* Takes the next step of a drain, if it can. */
void hth_srv_drain_check(struct hth_server *s);
void hth_srv_on_drained(void *arg);

#endif
