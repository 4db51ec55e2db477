/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.h: a whole swarm on one thread under a virtual clock, replayable from one seed.
 *
 *     struct hth_world_opts opts = HTH_WORLD_OPTS_INIT;
 *     struct hth_world *w = hth_world_new(seed, &opts);
 *     struct hth_node *a = hth_world_node(w, "a", NULL);
 *     struct hth_env *env = hth_node_env(a);      give it to rpc, experts, trainer, ...
 *     struct hth_dht *dht = hth_node_dht(a);
 *     hth_world_run_for(w, 10 * HTH_US_PER_S);
 *     ... free what was made on env ...
 *     hth_world_free(w);
 *
 * A node is a struct hth_env and a struct hth_dht (core/env.h, core/dht.h) with its own identity,
 * random numbers, metrics, disk, processors and access link. Its address is 10.x.y.z made of its
 * number; ports are its own. There is one queue of events ordered by (time, a random key of the
 * seed), so code cannot rely on the order of events of the same instant. Virtual time only moves in
 * hth_world_run_*; nothing here looks at a real clock.
 *
 * Life of a node. With `boot` in its options a node starts by itself and hth_node_restart starts it
 * again: boot(env, dht, arg) builds the application, as main does in a real process. When the node
 * ends (crash, stop, or the end of the world), the world disconnects the environment and then calls
 * `halt(env, arg)`, in which the application frees everything it made. From then on all functions
 * of the env and the dht are harmless: handles can be freed, nothing can be started (errors:
 * E_CLOSED, E_CANCELED), no callback comes. Only jobs that were still with the environment get
 * their done(E_CANCELED) right after halt, as at the end of a real program. The disk and the
 * identity survive; the random numbers continue with another stream. env and dht keep their
 * addresses.
 *
 * Streams model TCP and TLS between two nodes: a dial takes a round trip for each; segments of at
 * most segment_bytes, and of at most 10 ms of the sender's uplink, share the access links in
 * rotation; unread bytes fill a window and then the sender's queue; a partition stalls a stream
 * until a retransmission finds it healed (200 ms, doubling). Not modelled: slow start, congestion
 * between nodes, TLS's bytes.
 *
 * Threads: one. A world has no globals, so several worlds may run in several threads.
 */
#ifndef HTH_SIM_WORLD_H
#define HTH_SIM_WORLD_H

#include "core/dht.h"
#include "core/env.h"
#include "sim/params.h"

struct hth_world;
struct hth_node;

/* One line of the trace: an event and its node. `node` is "" for events of the world. */
typedef void hth_trace_fn(void *arg, int64_t now_us, const char *node, const char *event,
                          uint64_t detail);

struct hth_world_opts {
    /* Payloads (hth_env_blob_new) are ghosts; jobs are charged but not run. */
    bool ghost;
    /* NULL: hth_sim_crypto(). */
    const struct hth_crypto *crypto;
    int64_t wall_start_us; /* Unix time when the world begins */
    struct hth_link link;  /* between nodes without a link of their own */
    struct hth_device device;
    struct hth_dht_params dht;
    struct hth_chaos chaos;
    uint32_t segment_bytes;
    uint32_t window_bytes;   /* bytes sent or arrived that the other side has not read */
    int64_t crash_notice_us; /* from a crash (not a silent one) until the peers see the reset */
    enum hth_log_level log_level;
    void (*log_sink)(void *arg, const char *line, size_t len); /* NULL: stderr */
    void *log_arg;
    hth_trace_fn *trace; /* NULL: only the hash is kept */
    void *trace_arg;
};
#define HTH_WORLD_OPTS_INIT                                                                        \
    {                                                                                              \
        .wall_start_us = INT64_C(1700000000) * HTH_US_PER_S, .link = HTH_LINK_INIT,                \
        .device = HTH_DEVICE_INIT, .dht = HTH_DHT_PARAMS_INIT, .chaos = HTH_CHAOS_INIT,            \
        .segment_bytes = 64u << 10, .window_bytes = 4u << 20, .crash_notice_us = 1000,             \
        .log_level = HTH_ERROR                                                                     \
    }

/* opts NULL: HTH_WORLD_OPTS_INIT. */
struct hth_world *hth_world_new(uint64_t seed, const struct hth_world_opts *opts);
/* Halt the nodes that still run and free everything. NULL is fine. */
void hth_world_free(struct hth_world *world);

/* ---- time ---------------------------------------------------------------------------------- */

int64_t hth_world_now_us(const struct hth_world *world);
/* Handle all events up to and including that time; the clock then shows it. Returns their
 * number. */
uint64_t hth_world_run_until(struct hth_world *world, int64_t until_us);
uint64_t hth_world_run_for(struct hth_world *world, int64_t duration_us);
/* Run until done(arg) holds (asked before each event) or duration_us has passed; the clock stops
 * where it became true. Returns whether it holds. */
bool hth_world_run_until_true(struct hth_world *world, bool (*done)(void *arg), void *arg,
                              int64_t duration_us);
/* Run until no event is left. Returns false when some are left after duration_us. A node with a
 * repeating timer is never idle. */
bool hth_world_run_until_idle(struct hth_world *world, int64_t duration_us);
/* Call fn(arg) once at that time (at once when it is past), outside any node: for scenarios. */
void hth_world_at(struct hth_world *world, int64_t at_us, hth_fn *fn, void *arg);

/* Prefetch for the timers with this fn (one fn per world). Some events before such a timer runs
 * out, the world calls ahead with the timer's arg and step 0, later with steps 1 to 3. Each call
 * fetches from memory one link of the chain that fn will follow. Only speed depends on it. */
void hth_world_timer_ahead(struct hth_world *world, hth_fn *fn,
                           void (*ahead)(const void *arg, uint32_t step));
/* The same for watches with this fn and the values that they will get, with steps 0 to 2. */
typedef void hth_value_ahead_fn(const void *arg, const uint8_t *data, size_t len, uint32_t step);
void hth_world_value_ahead(struct hth_world *world, hth_dht_value_fn *fn,
                           hth_value_ahead_fn *ahead);

/* ---- nodes --------------------------------------------------------------------------------- */

struct hth_node_opts {
    /* Build and free the application (see the top of this file). Both may be NULL. */
    void (*boot)(struct hth_env *env, struct hth_dht *dht, void *arg);
    void (*halt)(struct hth_env *env, void *arg);
    void *arg;
    int64_t boot_delay_us;
    const struct hth_device *device; /* copied; NULL: the world's */
    int64_t wall_skew_us;            /* by how much this node's wall clock is ahead */
    int64_t clock_offset_us;         /* value of its monotonic clock at the world's beginning */
    uint32_t zone;                   /* for hth_world_zone_link */
};
#define HTH_NODE_OPTS_INIT                                                                         \
    {                                                                                              \
        .boot = NULL                                                                               \
    }

/* Add a node; it is up. The name (at most 23 bytes) is for logs and traces; opts may be NULL. The
 * node lives until the world ends. */
struct hth_node *hth_world_node(struct hth_world *world, const char *name,
                                const struct hth_node_opts *opts);
size_t hth_world_node_count(const struct hth_world *world);
/* In order of creation. */
struct hth_node *hth_world_node_at(struct hth_world *world, size_t index);

struct hth_env *hth_node_env(struct hth_node *node);
struct hth_dht *hth_node_dht(struct hth_node *node);
const char *hth_node_name(const struct hth_node *node);
size_t hth_node_index(const struct hth_node *node);
/* The node's IP address with this port. */
struct hth_addr hth_node_addr(const struct hth_node *node, uint16_t port);
bool hth_node_is_up(const struct hth_node *node);

enum hth_crash {
    HTH_CRASH_RESET, /* the process ends; its kernel resets the connections */
    HTH_CRASH_SILENT /* the power fails: peers hear nothing, dials time out */
};
/* Crash a node. Callable from anywhere; a node inside one of its own callbacks goes down right
 * after it. A node that is down stays down. */
void hth_node_crash(struct hth_node *node, enum hth_crash how);
/* Start a node again with its disk and identity; calls boot. Does nothing when it is up. */
void hth_node_restart(struct hth_node *node);
/* Stop the node's process for a time, as on a machine short of cores, or after SIGSTOP and SIGCONT.
 * Its events wait until then; bytes on their way still arrive, up to a window. A later call may
 * make the time longer, not shorter. */
void hth_node_stall(struct hth_node *node, int64_t for_us);
/* Step the node's wall clock by delta_us, or set it ahead by skew_us. */
void hth_node_wall_step(struct hth_node *node, int64_t delta_us);
void hth_node_wall_set(struct hth_node *node, int64_t skew_us);
/* Replace the node's processors and links from this moment on: for stragglers and clogs. */
void hth_node_set_device(struct hth_node *node, const struct hth_device *device);

/* ---- links --------------------------------------------------------------------------------- */

/* Links are the same in both directions. The most specific counts: between two nodes, between two
 * zones, the world's. */
void hth_world_set_link(struct hth_world *world, const struct hth_link *link);
void hth_world_link(struct hth_world *world, struct hth_node *a, struct hth_node *b,
                    const struct hth_link *link);
void hth_world_zone_link(struct hth_world *world, uint32_t zone_a, uint32_t zone_b,
                         const struct hth_link *link);
/* Nodes on different sides cannot reach each other; all begin on side 0. */
void hth_node_set_side(struct hth_node *node, uint32_t side);
/* Block one direction until it is undone. */
void hth_world_block(struct hth_world *world, struct hth_node *from, struct hth_node *to,
                     bool blocked);
/* Delay all that would arrive before until_us (one direction) to that time, like a queue on the way
 * that does not move. A later call replaces the time. */
void hth_world_clog(struct hth_world *world, struct hth_node *from, struct hth_node *to,
                    int64_t until_us);
/* Undo all sides, blocks and clogs. Segments that are already clogged keep their time of
 * arrival. */
void hth_world_heal(struct hth_world *world);
void hth_world_set_chaos(struct hth_world *world, const struct hth_chaos *chaos);
void hth_world_set_dht(struct hth_world *world, const struct hth_dht_params *params);

/* ---- disks and faults ---------------------------------------------------------------------- */

/* Mount a read-only file that all nodes see. The bytes are borrowed until the world ends. */
void hth_world_mount(struct hth_world *world, const char *path, const void *data, size_t len);
/* Put a file on a node's disk, or replace it, whatever the disk's limits. */
void hth_node_disk_put(struct hth_node *node, const char *path, const void *data, size_t len);
/* The file's present content, valid until the next write; NULL when there is none. */
const uint8_t *hth_node_disk_get(const struct hth_node *node, const char *path, size_t *len);

/* Let this site fire with probability p whatever the chaos says; 0 switches it off. */
void hth_world_set_fault(struct hth_world *world, const char *site, double p);
/* Number of times that the site fired, on all nodes. */
uint64_t hth_world_fault_count(const struct hth_world *world, const char *site);

/* ---- what happened ------------------------------------------------------------------------- */

/* A hash of every event so far: its time, its node, its small facts. */
uint64_t hth_world_trace_hash(const struct hth_world *world);

struct hth_world_stats {
    uint64_t events;
    uint64_t streams_opened;
    uint64_t bytes_delivered;
    uint64_t jobs_done;
    uint64_t dht_values; /* in the table now */
    uint64_t crashes;
};
void hth_world_stats(const struct hth_world *world, struct hth_world_stats *out);

/* Objects that the application holds on an env. All are zero after a clean shutdown. */
struct hth_open_counts {
    uint64_t timers, listeners, streams, jobs, posts, puts, gets, watches;
};
uint64_t hth_open_total(const struct hth_open_counts *counts);
void hth_node_open(const struct hth_node *node, struct hth_open_counts *out);
/* Sum over all nodes. */
void hth_world_open(const struct hth_world *world, struct hth_open_counts *out);
/* Objects that halt functions left behind so far; the world has freed them. */
void hth_world_leaks(const struct hth_world *world, struct hth_open_counts *out);

/* A fast stand-in without security: a signature is a hash of key and data. Only nodes that use
 * these functions as intended cannot forge. */
const struct hth_crypto *hth_sim_crypto(void);

#endif
