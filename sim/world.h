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
 * random numbers, metrics, disk, processors and access line. Its address is 10.x.y.z made of its
 * number; ports are its own. There is one queue of events ordered by (time, a random key of the
 * seed), so events of the same instant come in an order that nobody can rely on. Virtual time only
 * moves in hth_world_run_*; nothing here looks at a real clock.
 *
 * Life of a node. With `boot` in its options a node starts by itself and hth_node_restart starts it
 * again: boot(env, dht, arg) builds the application, as main does in a real process. When the node
 * dies (crash, stop, or the end of the world) the environment is disconnected first and then
 * `halt(env, arg)` is called, in which the application frees everything it made. From then on all
 * functions of the env and the dht are harmless: handles can be freed, nothing can be started
 * (errors: E_CLOSED, E_CANCELED), no callback comes; only jobs that were still with the environment
 * get their done(E_CANCELED) right after halt, as at the end of a real program. The disk survives,
 * and the identity; random numbers go on with another stream. env and dht keep their addresses.
 *
 * Streams model TCP and TLS between two nodes: a dial takes a round trip for each; segments of at
 * most segment_bytes, and of at most 10 ms of the sender's line, share the access lines in turns;
 * unread bytes fill a window and then the sender's queue; a partition stalls a stream until a
 * retransmission finds it healed (200 ms, doubling). Not modelled: slow start, congestion between
 * nodes, TLS's bytes.
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

/* One line of the trace: what happened to whom. `node` is "" for events of the world itself. */
typedef void hth_trace_fn(void *arg, int64_t now_us, const char *node, const char *event,
                          uint64_t detail);

struct hth_world_opts {
    /* Payloads (hth_env_blob_new) are ghosts and jobs are charged but not run. */
    bool ghost;
    /* NULL: hth_sim_crypto(). */
    const struct hth_crypto *crypto;
    int64_t wall_start_us; /* Unix time when the world begins */
    struct hth_link link;  /* between nodes for which nothing else was said */
    struct hth_device device;
    struct hth_dht_params dht;
    struct hth_chaos chaos;
    uint32_t segment_bytes;
    uint32_t window_bytes;   /* sent or arrived, and not yet read by the other side */
    int64_t crash_notice_us; /* from a crash (not a silent one) until the peers are told */
    enum hth_log_level log_level;
    void (*log_sink)(void *arg, const char *line, size_t len); /* NULL: stderr */
    void *log_arg;
    hth_trace_fn *trace; /* NULL: only the hash */
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
/* Halts the nodes that still run and frees everything. NULL is fine. */
void hth_world_free(struct hth_world *world);

/* ---- time ---------------------------------------------------------------------------------- */

int64_t hth_world_now_us(const struct hth_world *world);
/* Handles all events up to and including that time; the clock then shows it. Returns how many. */
uint64_t hth_world_run_until(struct hth_world *world, int64_t until_us);
uint64_t hth_world_run_for(struct hth_world *world, int64_t duration_us);
/* Runs until done(arg) holds (asked before each event) or duration_us passed; the clock stops where
 * it became true. Returns whether it holds. */
bool hth_world_run_until_true(struct hth_world *world, bool (*done)(void *arg), void *arg,
                              int64_t duration_us);
/* Runs until no event is left; false when some are left after duration_us. A node with a repeating
 * timer is never idle. */
bool hth_world_run_until_idle(struct hth_world *world, int64_t duration_us);
/* Calls fn(arg) once at that time (or at once when it is past), outside any node: for scenarios. */
void hth_world_at(struct hth_world *world, int64_t at_us, hth_fn *fn, void *arg);

/* Some events before a timer with this fn goes off, ahead is called with the timer's arg and step
 * 0, some later with step 1, and so on to 3, to have fetched from memory what fn will touch, a link
 * of the chain after the other. Of one fn; nothing depends on it but time. */
void hth_world_timer_ahead(struct hth_world *world, hth_fn *fn,
                           void (*ahead)(const void *arg, uint32_t step));
/* The same for the values that watches with this fn are about to be told, with steps 0 to 2. */
typedef void hth_value_ahead_fn(const void *arg, const uint8_t *data, size_t len, uint32_t step);
void hth_world_value_ahead(struct hth_world *world, hth_dht_value_fn *fn,
                           hth_value_ahead_fn *ahead);

/* ---- nodes --------------------------------------------------------------------------------- */

struct hth_node_opts {
    /* Build and free the application; see above. Both may be NULL. */
    void (*boot)(struct hth_env *env, struct hth_dht *dht, void *arg);
    void (*halt)(struct hth_env *env, void *arg);
    void *arg;
    int64_t boot_delay_us;
    const struct hth_device *device; /* copied; NULL: the world's */
    int64_t wall_skew_us;            /* how far this node's wall clock is ahead */
    int64_t clock_offset_us;         /* what its monotonic clock shows at the world's beginning */
    uint32_t zone;                   /* for hth_world_zone_link */
};
#define HTH_NODE_OPTS_INIT                                                                         \
    {                                                                                              \
        .boot = NULL                                                                               \
    }

/* A new node that is up. The name (at most 23 bytes) is for logs and traces; opts may be NULL. It
 * lives until the world ends. */
struct hth_node *hth_world_node(struct hth_world *world, const char *name,
                                const struct hth_node_opts *opts);
size_t hth_world_node_count(const struct hth_world *world);
/* In order of creation. */
struct hth_node *hth_world_node_at(struct hth_world *world, size_t index);

struct hth_env *hth_node_env(struct hth_node *node);
struct hth_dht *hth_node_dht(struct hth_node *node);
const char *hth_node_name(const struct hth_node *node);
size_t hth_node_index(const struct hth_node *node);
/* Its IP address with this port. */
struct hth_addr hth_node_addr(const struct hth_node *node, uint16_t port);
bool hth_node_is_up(const struct hth_node *node);

enum hth_crash {
    HTH_CRASH_RESET, /* the process is gone and its kernel resets the connections */
    HTH_CRASH_SILENT /* the power is gone: peers hear nothing, dials time out */
};
/* From anywhere; when the node is inside one of its own callbacks it dies right after it. A node
 * that is down stays down. */
void hth_node_crash(struct hth_node *node, enum hth_crash how);
/* Up again with its disk and identity; calls boot. Does nothing when it is up. */
void hth_node_restart(struct hth_node *node);
/* Its process does not get to run for so long, as on a machine short of cores, or stopped and woken
 * again: whatever happens to it waits until then (bytes on their way still come, up to a window). A
 * later call may make it longer, not shorter. */
void hth_node_stall(struct hth_node *node, int64_t for_us);
/* A step of its wall clock; or to so much ahead. */
void hth_node_wall_step(struct hth_node *node, int64_t delta_us);
void hth_node_wall_set(struct hth_node *node, int64_t skew_us);
/* Its processors and lines from now on: for stragglers and clogs. */
void hth_node_set_device(struct hth_node *node, const struct hth_device *device);

/* ---- links --------------------------------------------------------------------------------- */

/* The most specific wins: between two nodes, between two zones, the world's. Both directions. */
void hth_world_set_link(struct hth_world *world, const struct hth_link *link);
void hth_world_link(struct hth_world *world, struct hth_node *a, struct hth_node *b,
                    const struct hth_link *link);
void hth_world_zone_link(struct hth_world *world, uint32_t zone_a, uint32_t zone_b,
                         const struct hth_link *link);
/* Nodes on different sides can't hear each other; all begin on side 0. */
void hth_node_set_side(struct hth_node *node, uint32_t side);
/* Nothing gets from one node to the other (that direction only) until undone. */
void hth_world_block(struct hth_world *world, struct hth_node *from, struct hth_node *to,
                     bool blocked);
/* What would get from one node to the other before until_us (that direction only) gets there then:
 * a queue somewhere on the way that does not move. A later call replaces the time. */
void hth_world_clog(struct hth_world *world, struct hth_node *from, struct hth_node *to,
                    int64_t until_us);
/* Undoes all sides, blocks and clogs (what was clogged already still comes when it was to). */
void hth_world_heal(struct hth_world *world);
void hth_world_set_chaos(struct hth_world *world, const struct hth_chaos *chaos);
void hth_world_set_dht(struct hth_world *world, const struct hth_dht_params *params);

/* ---- disks and faults ---------------------------------------------------------------------- */

/* A read-only file that all nodes see. The bytes are borrowed until the world ends. */
void hth_world_mount(struct hth_world *world, const char *path, const void *data, size_t len);
/* Puts a file on a node's disk, or replaces it, whatever its limits. */
void hth_node_disk_put(struct hth_node *node, const char *path, const void *data, size_t len);
/* The content as it is now, valid until the next write; NULL when there is none. */
const uint8_t *hth_node_disk_get(const struct hth_node *node, const char *path, size_t *len);

/* This site fires with probability p whatever the chaos says (0 switches it off). */
void hth_world_set_fault(struct hth_world *world, const char *site, double p);
/* How often it fired, on all nodes. */
uint64_t hth_world_fault_count(const struct hth_world *world, const char *site);

/* ---- what happened ------------------------------------------------------------------------- */

/* Depends on every event so far: when it happened, to whom, and its small facts. */
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

/* Objects that the application holds on an env. After a clean shutdown all are zero. */
struct hth_open_counts {
    uint64_t timers, listeners, streams, jobs, posts, puts, gets, watches;
};
uint64_t hth_open_total(const struct hth_open_counts *counts);
void hth_node_open(const struct hth_node *node, struct hth_open_counts *out);
/* Summed over all nodes. */
void hth_world_open(const struct hth_world *world, struct hth_open_counts *out);
/* Objects that were left behind by halt functions so far (and then freed by the world). */
void hth_world_leaks(const struct hth_world *world, struct hth_open_counts *out);

/* Fast, and honest only among those who use it: a signature is a hash of key and data. */
const struct hth_crypto *hth_sim_crypto(void);

#endif
