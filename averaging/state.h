/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h: handing a run's state to a newcomer, in parts, from several peers, checked.
 *
 * A *state* is what one needs to go on where a trainer stands: a blob (parameters and the
 * optimiser's states, laid out by their owner) and a few bytes of `meta` (counters). It is cut into
 * parts of equal size; each part has a SHA-256, and the *root* is the hash of everything else:
 *
 *     root = H("hearth state", version, schema, step, bytes, part_bytes, meta, part hashes)
 *
 * so that who knows the root knows the state, wherever its parts come from.
 *
 *   newcomer                                   donors
 *      | --- 67 DESCRIBE {schema, root?} -----> |  a snapshot is asked of the owner when the newest
 *      | <-- E_AGAIN, come back in x ms ------- |  is too old, hashed by a job, and announced in a
 *      | --- 67 ------------------------------> |  signed STATE record {root, step, address}
 *      | <-- step, meta, part hashes ---------- |
 *      | --- 68 PART {root, index} -----------> |  several parts in flight, from all donors that
 *      | <-- bytes ---------------------------- |  announced or described the same root
 *
 * The donor. Holds at most two snapshots: the newest, and the one before as long as somebody
 * fetches it. Nothing is copied or hashed unless somebody asks, and not for each who asks: what is
 * younger than fresh_us is handed out again, the next one is made after a pause, and never in the
 * place of one that is being fetched at the speed of a slow line or more (1 MB/s; of two that are
 * fetched, 20 MB/s for the newest). A request for a
 * root that is gone is refused with E_NOT_FOUND, one for a step that the owner has not reached with
 * E_STALE.
 *
 * A donor that can't be dialled (a client) is asked over a connection of its own making: it dials
 * newcomers that can be reached and says HERE, which means that it may be asked. Of many clients
 * HTH_STATE_REACH do so for each newcomer, chosen by hashes of both ids and of the half minute. It
 * does so whoever else has a state, for nobody knows whether those can be reached. What strangers
 * can make it dial, and a newcomer look around for, is bounded over time (HTH_STATE_DIALS_MAX,
 * HTH_STATE_DIAL_US, HTH_STATE_HERE_US).
 *
 * The fetcher. Asks the freshest peers of the roster, takes the highest step that was described
 * (ties: more donors, then the larger root), and fetches its parts from all donors of that root. A
 * step is *alone* that is far beyond the one which a quarter of those who have a state, and two of
 * them, have reached: such ones are asked when no other has answered for a second, and taken when
 * there is nothing else. A donor that answers wrongly (a hash that does not fit), slowly or not at
 * all, or again and again that it is not that far, is struck off and named; its parts are asked
 * elsewhere, the parts that came stay. Who serves no states of this schema, whatever its note says,
 * is doubted at once. When no donor of the root is left it begins anew with what is described then.
 * It never gives up by itself: its owner does; each change of its mind is told through `on_news`,
 * in words.
 *
 * An owner that knows who has the state needs neither roster nor DHT: it names the holders, and
 * judges each state that they describe by its meta.
 *
 * Trust: a root is believed from the peer that said it, over an authenticated connection or in a
 * signed record. Nobody proves that a state is good, only that all its bytes are that peer's; so
 * the result says whose they are, and who said more than it showed.
 *
 * Loop thread; hashes are computed and compared in compute jobs. In a world of ghosts jobs do not
 * run, hashes are zero and the blob that comes is a ghost. Callbacks never run inside a call of
 * this header; they may not free the object that calls, except `on_done`.
 */
#ifndef HTH_AVERAGING_STATE_H
#define HTH_AVERAGING_STATE_H

#include "core/env.h"
#include "core/limits.h"

struct hth_budget;
struct hth_dht;
struct hth_roster;
struct hth_rpc;
struct hth_rpc_target;

#define HTH_STATE_METHOD_DESCRIBE 67
#define HTH_STATE_METHOD_PART     68
#define HTH_STATE_METHOD_HERE     69

/* ---- handing out ----------------------------------------------------------------------------- */

struct hth_state_donor;

struct hth_state_donor_opts {
    const char *network;
    uint64_t schema;
    struct hth_addr addr; /* in the record; family 0: announce nothing (a client) */
    /* Somebody wants a snapshot: call hth_state_donor_give soon, once; or never, while this peer
     * has no state itself. Not called again before it was given. */
    hth_fn *want;
    uint64_t (*step)(void *arg); /* that a snapshot would have now */
    void *arg;
    int64_t fresh_us;  /* a snapshot younger than this is handed out again */
    int64_t linger_us; /* an older one that nobody asked for so long is let go */
    int64_t life_us;   /* of the record */
};
#define HTH_STATE_DONOR_OPTS_INIT                                                                  \
    {                                                                                              \
        .fresh_us = 3 * HTH_US_PER_S, .linger_us = 20 * HTH_US_PER_S, .life_us = 15 * HTH_US_PER_S \
    }

struct hth_state_donor_stats {
    uint64_t described, parts, bytes, refused;
    uint64_t snapshots;
    uint64_t step; /* of the newest snapshot */
    uint32_t held; /* snapshots that can be fetched */
    /* The least step of those, of one that is being made included; UINT64_MAX: there is none. */
    uint64_t oldest;
};

/* Serves both methods on `rpc`. Errors: E_CONFIG. */
enum hth_err hth_state_donor_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                                 const struct hth_state_donor_opts *opts,
                                 struct hth_state_donor **out) HTH_MUST;
/* Waits for nothing; a hash job under way keeps its memory until it has ended. NULL is fine. */
void hth_state_donor_free(struct hth_state_donor *donor);

/* The snapshot that was wanted; `values` is frozen and referenced until a job has copied it in
 * parts, meta copied. Errors: E_TOO_LARGE (HTH_STATE_BYTES_MAX, HTH_STATE_META_MAX), E_RANGE (no
 * bytes), E_AGAIN (none is wanted), E_NO_MEMORY. */
enum hth_err hth_state_donor_give(struct hth_state_donor *donor, uint64_t step, const void *meta,
                                  size_t meta_len, struct hth_blob *values) HTH_MUST;
/* It can't be given now: askers are told to come back (E_AGAIN), or that there is none
 * (E_NOT_FOUND). */
void hth_state_donor_decline(struct hth_state_donor *donor, enum hth_err err);
/* When the roster has changed: a client dials the newcomers whom it can help. */
void hth_state_donor_reach(struct hth_state_donor *donor, const struct hth_roster *roster);
void hth_state_donor_stats(const struct hth_state_donor *donor, struct hth_state_donor_stats *out);

/* ---- fetching -------------------------------------------------------------------------------- */

struct hth_state_fetch;

struct hth_state_peers {
    uint32_t count;
    struct hth_peer_id id[HTH_STATE_DONORS_MAX];
};

/* Valid during on_done: ref the blob to keep it. */
struct hth_state_result {
    uint64_t step;
    const uint8_t *meta;
    size_t meta_len;
    struct hth_blob *values;
    struct hth_hash root;
    uint64_t bytes;       /* of parts that came, refetched and refused ones included */
    uint32_t donors;      /* that gave parts of it */
    uint32_t donors_lost; /* struck off on the way */
    uint32_t parts_again; /* fetched more than once */
    int64_t took_us;
    const struct hth_state_peers *said_by; /* they have this state, by their own word */
    /* Far beyond its step by their notes: they were asked and showed nothing, or nobody else is
     * near them. */
    const struct hth_state_peers *unshown;
};

struct hth_state_fetch_opts {
    const char *network;
    uint64_t schema;
    uint64_t bytes;    /* of a state of this schema: any other is refused */
    uint64_t step_min; /* older ones are refused */
    uint64_t near;     /* steps that honest ones may be apart; a 64th of all is no distance */
    /* Without a roster: the peers to ask, copied, at most HTH_STATE_DONORS_MAX. */
    const struct hth_rpc_target *holders;
    uint32_t holders_count;
    /* Whether a described state would do; NULL: each. E_AGAIN and E_STALE: another one of that
     * donor may; other errors leave it out. May not free the fetch. */
    enum hth_err (*judge)(void *arg, const struct hth_rpc_target *donor, const uint8_t *meta,
                          size_t meta_len);
    uint32_t donors;             /* asked at once for what they have */
    uint32_t parts_in_flight;    /* of each donor */
    int64_t part_timeout_min_us; /* of one part; grows with what parts took so far */
    int64_t part_timeout_max_us;
    struct hth_budget *budget; /* of the blob; NULL: none */
    void (*on_done)(void *arg, const struct hth_state_result *result);
    /* What is being waited for, for people; also in the log. May be NULL. */
    void (*on_news)(void *arg, const char *text);
    void *arg;
};
#define HTH_STATE_FETCH_OPTS_INIT                                                                  \
    {                                                                                              \
        .near = 8, .donors = 4, .parts_in_flight = 4, .part_timeout_min_us = 500 * HTH_US_PER_MS,  \
        .part_timeout_max_us = 20 * HTH_US_PER_S                                                   \
    }

/* Begins at once and goes on until on_done or _free. Peers come from the roster (those with state
 * and of the same schema) and from STATE records; or, where `roster` and `dht` are NULL, from the
 * options. Errors: E_CONFIG, those of a watch. */
enum hth_err hth_state_fetch_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                                 struct hth_roster *roster, const struct hth_state_fetch_opts *opts,
                                 struct hth_state_fetch **out) HTH_MUST;
void hth_state_fetch_free(struct hth_state_fetch *fetch);

struct hth_state_progress {
    uint64_t step; /* of the state being fetched; 0 before one was found */
    uint32_t parts, parts_done;
    uint32_t donors; /* of its root, alive */
    uint32_t left;   /* peers that were not struck off, or for a moment */
    uint64_t bytes;
    const char *news; /* the last one; never NULL */
};
void hth_state_fetch_progress(const struct hth_state_fetch *fetch, struct hth_state_progress *out);

#endif
