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
 *   newcomer                                 donors
 *      | --- 67 DESCRIBE {schema, step} ------> |  a snapshot is asked of the owner when there is
 *      | <-- E_AGAIN, come back in x ms ------- |  none or it is too old, and hashed by a job
 *      | --- 67 ------------------------------> |
 *      | <-- step, meta, part hashes ---------- |
 *      | --- 68 PART {root, index} -----------> |  several parts in flight, from all donors that
 *      | <-- bytes ---------------------------- |  described the same root
 *
 * The donor holds one snapshot, and nothing is copied or hashed unless somebody asks
 * (state_donor.c). A donor that can't be dialled (a client) is asked over a connection of its own
 * making: it dials newcomers that can be reached and says HERE, at most one in HTH_STATE_DIAL_US;
 * of many clients about HTH_STATE_REACH do so at a time.
 *
 * The fetcher asks the holders that its owner names, a few at a time, and judges what they describe
 * by its meta. It takes the highest step (ties: more donors, then the larger root), and fetches its
 * parts from all donors of that root. A donor that answers wrongly (a hash that does not fit),
 * slowly or not at all is struck off and named; its parts are asked elsewhere, the parts that came
 * stay. When no donor of the root is left it begins anew with what is described then. It never
 * gives up by itself: its owner does; each change of its mind is told through `on_news`, in words.
 *
 * Trust: a root is believed from the peer that said it, over an authenticated connection. Nobody
 * proves that a state is good, only that all its bytes are that peer's; so the result says whose
 * they are.
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
struct hth_roster;
struct hth_rpc;
struct hth_rpc_target;

#define HTH_STATE_METHOD_DESCRIBE 67
#define HTH_STATE_METHOD_PART     68
#define HTH_STATE_METHOD_HERE     69

/* ---- handing out ----------------------------------------------------------------------------- */

struct hth_state_donor;

struct hth_state_donor_opts {
    uint64_t schema;
    bool client; /* it can't be dialled */
    /* Somebody wants a snapshot: call hth_state_donor_give soon, once; or never, while this peer
     * has no state itself. Not called again before it was given. */
    hth_fn *want;
    uint64_t (*step)(void *arg); /* that a snapshot would have now */
    void *arg;
};

struct hth_state_donor_stats {
    uint64_t parts, bytes; /* given */
    uint64_t snapshots;    /* made */
    /* The least step of the snapshot that can be fetched and one that is being made; UINT64_MAX:
     * there is none. */
    uint64_t oldest;
};

/* Serves both methods on `rpc`. Errors: E_CONFIG. */
enum hth_err hth_state_donor_new(struct hth_env *env, struct hth_rpc *rpc,
                                 const struct hth_state_donor_opts *opts,
                                 struct hth_state_donor **out) HTH_MUST;
/* Waits for nothing; a hash job under way keeps its memory until it has ended. NULL is fine. */
void hth_state_donor_free(struct hth_state_donor *donor);

/* The snapshot that was wanted; `values` is frozen and referenced until a job has copied it in
 * parts, meta copied. Errors: E_TOO_LARGE (HTH_STATE_BYTES_MAX, HTH_STATE_META_MAX), E_RANGE (no
 * bytes), E_AGAIN (none is wanted), E_NO_MEMORY. */
enum hth_err hth_state_donor_give(struct hth_state_donor *donor, uint64_t step, const void *meta,
                                  size_t meta_len, struct hth_blob *values) HTH_MUST;
/* It can't be given now (no memory, no state): askers are told to come back. */
void hth_state_donor_decline(struct hth_state_donor *donor);
/* When the roster has changed: a client dials a newcomer. */
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
    uint64_t bytes;  /* of parts that came, refetched and refused ones included */
    uint32_t donors; /* that gave parts of it */
    int64_t took_us;
    /* They have this state, by their own word. Who gave the last part comes first: one that died
     * meanwhile does not. */
    const struct hth_state_peers *said_by;
};

struct hth_state_fetch_opts {
    uint64_t schema;
    uint64_t bytes;                       /* of a state of this schema: any other is refused */
    uint64_t step_min;                    /* older ones are refused */
    const struct hth_rpc_target *holders; /* to be asked; copied, at most HTH_STATE_DONORS_MAX */
    uint32_t holders_count;
    /* Whether a described state would do; NULL: each. E_AGAIN and E_STALE: another one of that
     * donor may; other errors leave it out. May not free the fetch. */
    enum hth_err (*judge)(void *arg, const struct hth_rpc_target *donor, const uint8_t *meta,
                          size_t meta_len);
    uint32_t parts_in_flight;  /* of each donor */
    struct hth_budget *budget; /* of the blob; NULL: none */
    void (*on_done)(void *arg, const struct hth_state_result *result);
    /* What is being waited for, for people; also in the log. May be NULL. */
    void (*on_news)(void *arg, const char *text);
    void *arg;
};

/* Begins at once and goes on until on_done or _free. Errors: E_CONFIG. */
enum hth_err hth_state_fetch_new(struct hth_env *env, struct hth_rpc *rpc,
                                 const struct hth_state_fetch_opts *opts,
                                 struct hth_state_fetch **out) HTH_MUST;
void hth_state_fetch_free(struct hth_state_fetch *fetch);

struct hth_state_progress {
    uint64_t step; /* of the state being fetched; 0 before one was found */
    uint32_t parts, parts_done;
    uint32_t donors; /* of its root, alive */
    uint32_t left;   /* holders that were not struck off, or for a moment */
    uint64_t bytes;
    const char *news; /* the last one; never NULL */
};
void hth_state_fetch_progress(const struct hth_state_fetch *fetch, struct hth_state_progress *out);

#endif
