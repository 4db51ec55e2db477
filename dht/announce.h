/* SPDX-License-Identifier: Apache-2.0 */
/*
 * announce.h: the records of a host, and the object that keeps them published.
 *
 * Per layer a host publishes a signed record under the layer's root key, listing all its experts of
 * the layer as runs or a bitmap. A list too long for HTH_ANNOUNCE_ROOT_PARTS_MAX records of about
 * HTH_RECORD_AIM_BYTES is cut: the root then names only the first coordinates, and one record (or
 * several parts) under each prefix `layer.c0.` lists the experts below it. So small hosts cost one
 * record a layer, and readers get the first axis without lookups of prefixes. In addition each node
 * publishes a *beacon*, "a node of this network is here", under one key for all networks, with its
 * clock, its version and the names of its layers: joining (peers.h) and `hearth status` start
 * there.
 *
 * Records are renewed at a third of their life with jitter, at once when the experts change, and
 * early when the load changed much. hth_announcer_withdraw publishes goodbyes, so that every
 * directory drops the host before its records expire.
 *
 * One announcer per identity and network: two would overwrite each other's records. After a crash
 * and a restart with fewer experts, surplus parts of the earlier process stay until they expire;
 * until then the host refuses their experts with E_NO_SUCH_EXPERT.
 *
 * Loop thread only. The announcer copies its arguments.
 */
#ifndef HTH_DHT_ANNOUNCE_H
#define HTH_DHT_ANNOUNCE_H

#include "core/base.h"
#include "core/dht.h"
#include "core/env.h"
#include "dht/uid.h"

#define HTH_HOST_ADDRS_MAX  4
#define HTH_KIND_LEN_MAX    15
#define HTH_VERSION_LEN_MAX 31

/* Wire protocols this program speaks; beacons carry both. */
#define HTH_PROTOCOL_MIN 1
#define HTH_PROTOCOL_MAX 1

enum hth_compute {
    HTH_COMPUTE_FP32 = 0,
    HTH_COMPUTE_BF16 = 1,
    HTH_COMPUTE_FP16 = 2,
    HTH_COMPUTE_TF32 = 3,
};
/* "fp32", "bf16", "fp16", "tf32"; "?" for a type of a newer peer. */
const char *hth_compute_name(enum hth_compute compute);

/* In every record of a host. */
struct hth_host_info { /* the fields read most come first, in one cache line */
    uint32_t addr_count;
    enum hth_compute compute;
    float rows_per_s;                         /* measured at start, then from requests served */
    uint32_t queue_ms;                        /* its own estimate of the wait */
    struct hth_addr addr[HTH_HOST_ADDRS_MAX]; /* where its rpc listens; best first */
    char version[HTH_VERSION_LEN_MAX + 1];    /* of the program, for people */
};

/* The shape of a layer's rows; a trainer compares it before it calls. */
struct hth_layer_shape {
    char kind[HTH_KIND_LEN_MAX + 1]; /* "ffn", "transformer", "nop" */
    uint32_t d;                      /* elements of a row */
    uint32_t block_rows;             /* rows that belong together: 1, or T of a transformer */
};

/* Expert indices in a grid, strictly ascending. */
struct hth_expert_list {
    const uint32_t *index;
    size_t count;
};

enum hth_role { HTH_ROLE_NODE = 0, HTH_ROLE_HOST = 1, HTH_ROLE_TRAINER = 2 };

struct hth_announcer;

struct hth_announcer_opts {
    const char *network; /* the swarm's name: required */
    struct hth_host_info info;
    enum hth_role role;
    int64_t life_us; /* of each record; HTH_RECORD_LIFE_MIN_US..MAX_US */
    bool beacon;     /* also publish a beacon */
};
#define HTH_ANNOUNCER_OPTS_INIT                                                                    \
    {                                                                                              \
        .life_us = 60 * 1000000, .beacon = true                                                    \
    }

/* Nothing is put before the first turn of the loop. Errors: E_CONFIG (network, life, addresses). */
enum hth_err hth_announcer_new(struct hth_env *env, struct hth_dht *dht,
                               const struct hth_announcer_opts *opts,
                               struct hth_announcer **out) HTH_MUST;
/* Stops without a goodbye (the records expire). NULL is fine. */
void hth_announcer_free(struct hth_announcer *ann);

/* Replaces the experts hosted in a layer; an empty list says goodbye for the layer.
 * Errors: E_CONFIG (not ascending, outside the grid, same name with another grid), E_BUDGET
 * (HTH_ANNOUNCE_LAYERS_MAX, HTH_ANNOUNCE_EXPERTS_MAX). */
enum hth_err hth_announcer_set_layer(struct hth_announcer *ann, const struct hth_grid *grid,
                                     const struct hth_layer_shape *shape,
                                     const struct hth_expert_list *experts) HTH_MUST;
/* Sets new figures; they are published with the next renewal, or within a second when the wait
 * doubled or halved, by more than HTH_ANNOUNCE_LOAD_STEP_MS. */
void hth_announcer_set_load(struct hth_announcer *ann, uint32_t queue_ms, float rows_per_s);
/* Sets new addresses (peers dial the first) and publishes them at once. Errors: E_CONFIG. */
enum hth_err hth_announcer_set_addrs(struct hth_announcer *ann, const struct hth_addr *addr,
                                     uint32_t count) HTH_MUST;

/* Puts goodbyes in place of all records. done (may be NULL) comes once, when the DHT accepted them
 * or after HTH_ANNOUNCE_GOODBYE_US; the caller then frees the announcer. */
void hth_announcer_withdraw(struct hth_announcer *ann, hth_fn *done, void *arg);

struct hth_announcer_stats {
    uint32_t records;    /* published at present */
    uint32_t bytes_max;  /* of the largest */
    uint64_t puts;       /* since the announcer was made */
    uint64_t put_errors; /* puts that no node accepted */
};
void hth_announcer_stats(const struct hth_announcer *ann, struct hth_announcer_stats *out);

#endif
