/* SPDX-License-Identifier: Apache-2.0 */
/*
 * directory.h: a trainer's picture, in memory, of which experts live where.
 *
 * The directory watches the records of its open layers (announce.h describes them) and answers
 * three questions from memory:
 *
 *   - which coordinates exist below a prefix     hth_directory_view, for the beam search
 *   - which hosts serve an expert                hth_directory_hosts_of
 *   - which hosts exist                          hth_directory_host_at, for `hearth status`
 *
 * An expert is live while at least one host that is not marked dead has an unexpired record for it.
 * hth_directory_mark_dead marks a host that failed: its experts leave this directory's view at
 * once, until the retry time passes or the host publishes a record newer than the mark. A host that
 * says goodbye leaves at once; a silent one leaves when its record expires.
 *
 * The view is a snapshot with a reference count: it never changes after it was handed out, so a job
 * may search it on another thread while the directory changes. Take and drop references on the loop
 * thread. A view of one million experts is rebuilt, when something changed, in about 1 ms.
 *
 *   grid 2 x 3, live experts (0,0) (0,2) (1,1):       level 0   coord[0] = 0  1
 *                                                               start[0] = 0  2  3
 *                                                     level 1   coord[1] = 0  2  1
 *
 * All functions are for the loop thread; the directory owns everything it hands out except views,
 * which are counted. The change callback never runs inside a call of this header.
 */
#ifndef HTH_DHT_DIRECTORY_H
#define HTH_DHT_DIRECTORY_H

#include "core/base.h"
#include "core/dht.h"
#include "core/env.h"
#include "dht/announce.h"
#include "dht/uid.h"

/* ---- the view ------------------------------------------------------------------------------ */

/* The live coordinates of one layer as a compressed tree. Level l has count[l] nodes in ascending
 * order of their prefixes; coord[l][i] is node i's last coordinate, and its children are the nodes
 * start[l][i] .. start[l][i + 1] - 1 of level l + 1, their coordinates ascending. The nodes of the
 * last level are experts. Levels at and beyond ndim are empty. */
struct hth_grid_view {
    uint64_t generation; /* grows by one with each different view of the layer */
    uint32_t ndim;
    uint32_t dim[HTH_GRID_DIMS_MAX]; /* sizes of the axes; unused ones are 1 */
    uint32_t count[HTH_GRID_DIMS_MAX];
    const uint32_t *coord[HTH_GRID_DIMS_MAX]; /* count[l] entries */
    const uint32_t *start[HTH_GRID_DIMS_MAX]; /* count[l] + 1 entries, for l < ndim - 1 */
    const uint32_t *expert;                   /* grid index of each node of the last level */
    const uint64_t *live;                     /* one bit per grid index */
    uint32_t live_count;                      /* == count[ndim - 1] */
    int refs;                                 /* private */
};

static inline bool hth_grid_view_is_live(const struct hth_grid_view *view, uint32_t expert)
{
    return (view->live[expert >> 6] >> (expert & 63) & 1) != 0;
}
struct hth_grid_view *hth_grid_view_ref(struct hth_grid_view *view);
/* NULL is fine. */
void hth_grid_view_unref(struct hth_grid_view *view);
/* A view made from expert indices (any order, repeats allowed), for tests and benchmarks. Errors:
 * E_RANGE (an index outside the grid), E_NO_MEMORY. */
enum hth_err hth_grid_view_new(const struct hth_grid *grid, const uint32_t *experts, size_t count,
                               struct hth_grid_view **out) HTH_MUST;

/* ---- the directory ------------------------------------------------------------------------- */

struct hth_directory;

/* The data to call a host. */
struct hth_host_ref {
    uint32_t slot; /* small number, stable while the host is known: for grouping rows by host */
    struct hth_peer_id id;
    struct hth_addr addr;
    enum hth_compute compute;
    uint32_t queue_ms; /* its own estimate of the wait */
    float rows_per_s;
};

/* A host as `hearth status` shows it. */
struct hth_host_status {
    struct hth_host_ref ref;
    struct hth_host_info info; /* as in its newest record */
    bool dead;                 /* marked by this directory's caller, or not proved */
    int64_t age_us;            /* since the newest record was issued */
    int64_t left_us;           /* until its first record expires */
    uint32_t layers;           /* open layers it serves */
    uint32_t experts;          /* in all open layers */
};

#define HTH_DIR_DIFFER_MAX 160
#define HTH_DIR_WHY_MAX    512

struct hth_directory_stats {
    uint64_t dht_requests;     /* gets and watches ever started: constant while views are read */
    uint64_t records_accepted; /* new or newer ones */
    uint64_t records_ignored;  /* known, older, foreign or damaged */
    uint64_t records_bad_shape;
    uint64_t negative_hits; /* asks answered from a recent empty answer */
    uint32_t hosts, hosts_dead;
    uint32_t boards; /* keys watched */
};

struct hth_directory_opts {
    const char *network;   /* the swarm's name: required, at most HTH_NAME_LEN_MAX bytes */
    int64_t negative_us;   /* how long an empty answer is believed */
    int64_t dead_retry_us; /* time after which a dead mark is lifted */
    bool prove; /* a host is hidden, as if it were dead, until hth_directory_prove, and again when
                 * it says another address: anybody can sign that experts live anywhere */
};
#define HTH_DIRECTORY_OPTS_INIT                                                                    \
    {                                                                                              \
        .negative_us = 5 * 1000000, .dead_retry_us = 30 * 1000000                                  \
    }

/* Errors: E_CONFIG (network name). env and dht must outlive it. */
enum hth_err hth_directory_new(struct hth_env *env, struct hth_dht *dht,
                               const struct hth_directory_opts *opts,
                               struct hth_directory **out) HTH_MUST;
/* NULL is fine. Views that are still referenced stay valid. */
void hth_directory_free(struct hth_directory *dir);

/* Called soon after anything changed, at most once a loop turn. NULL switches it off. */
void hth_directory_on_change(struct hth_directory *dir, hth_fn *fn, void *arg);

/* Starts to watch a layer; *layer is its number, counted from 0 in the order of opening. Opening
 * the same grid again gives the same number. Hosts whose grid differs, or whose shape differs from
 * `want` (NULL: any), stay out of the view; one log line names them all. Errors: E_CONFIG
 * (same name with another grid or shape), E_BUDGET (HTH_DIR_LAYERS_MAX), E_NO_MEMORY, and those of
 * a watch. */
enum hth_err hth_directory_open_layer(struct hth_directory *dir, const struct hth_grid *grid,
                                      const struct hth_layer_shape *want, uint32_t *layer) HTH_MUST;
uint32_t hth_directory_layer_count(const struct hth_directory *dir);
const struct hth_grid *hth_directory_grid(const struct hth_directory *dir, uint32_t layer);

/* The current snapshot. Borrowed: valid until the next call for this layer; take a reference to
 * keep it. Never NULL; without any expert it is empty. */
struct hth_grid_view *hth_directory_view(struct hth_directory *dir, uint32_t layer);
/* Changes whenever the next view would differ. */
uint64_t hth_directory_generation(const struct hth_directory *dir, uint32_t layer);

/* The live hosts of one expert, at most HTH_DIR_REPLICAS_MAX, whatever the number of those that are
 * down: the least loaded first, then by id. Returns their number in out. */
size_t hth_directory_hosts_of(const struct hth_directory *dir, uint32_t layer, uint32_t expert,
                              struct hth_host_ref *out, size_t max);

/* The host did not answer: hide it. Unknown ids are ignored. retry_us <= 0 takes the option's. */
void hth_directory_mark_dead(struct hth_directory *dir, const struct hth_peer_id *id,
                             int64_t retry_us);
/* Lifts the mark: the host answered. */
void hth_directory_mark_alive(struct hth_directory *dir, const struct hth_peer_id *id);

/* A connection to this address proved the host's key. Unknown ids and other addresses than that of
 * its newest record are ignored. */
void hth_directory_prove(struct hth_directory *dir, const struct hth_peer_id *id,
                         const struct hth_addr *addr);
/* Whether a proof of this host would be of use: it has none, and claims an expert of which fewer
 * than HTH_DIR_PROVED_MAX hosts are up. */
bool hth_directory_needs(const struct hth_directory *dir, const struct hth_peer_id *id);

/* The host answered that it does not have this expert: drops its claim to it until the host's next
 * record. Returns false when the directory knows no such claim. */
bool hth_directory_refute(struct hth_directory *dir, const struct hth_peer_id *id, uint32_t layer,
                          uint32_t expert);

/* Prefetches memory read to choose a host of the layer, one pointer further with each step from 0
 * to 2. */
void hth_directory_fetch(const struct hth_directory *dir, uint32_t layer, uint32_t step);
/* Starts a lookup of a layer's records, for the case that the watch missed some and no expert is
 * live. Within negative_us after an empty answer it does nothing and returns E_NOT_FOUND; E_AGAIN
 * while a lookup is under way. The change callback reports what it finds. */
enum hth_err hth_directory_ask(struct hth_directory *dir, uint32_t layer) HTH_MUST;

/* Hosts in order of arrival, for tables: false past the last. */
bool hth_directory_host_at(const struct hth_directory *dir, uint32_t i,
                           struct hth_host_status *out);
bool hth_directory_host_find(const struct hth_directory *dir, const struct hth_peer_id *id,
                             struct hth_host_status *out);
/* Expert indices of a host in a layer, ascending; returns how many it has (may exceed max). */
size_t hth_directory_host_experts(const struct hth_directory *dir, const struct hth_peer_id *id,
                                  uint32_t layer, uint32_t *out, size_t max);
/* Picks `want` experts that are not live, as one run after a random start where possible, so that
 * the record stays small. Returns how many it found, ascending in out. Uses the env's rng. */
size_t hth_directory_pick_free(struct hth_directory *dir, uint32_t layer, uint32_t want,
                               uint32_t *out);
/* The hosts with another run file: records of theirs that live have another grid or shape. Writes
 * in what the latest differs: "grid 4x4, yours 8x8"; "" when there is none. */
uint32_t hth_directory_others(struct hth_directory *dir, char differ[HTH_DIR_DIFFER_MAX]);
/* Why experts are waited for, as a line for people: no host is announced, all have another run
 * file, none can be reached (with their addresses), or a layer has no live host. Returns out. */
const char *hth_directory_why(struct hth_directory *dir, char out[HTH_DIR_WHY_MAX]);
void hth_directory_stats(const struct hth_directory *dir, struct hth_directory_stats *out);

/* Adds a host with these experts (ascending) as if its record had been read, for benchmarks and
 * tests; it expires after life_us. Errors: E_RANGE, E_BUDGET, E_NO_MEMORY. */
enum hth_err hth_directory_load(struct hth_directory *dir, uint32_t layer,
                                const struct hth_peer_id *id, const struct hth_host_info *info,
                                const struct hth_expert_list *experts, int64_t life_us) HTH_MUST;

#endif
