/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h: handing a run's state, and the means of its last steps, to members that lack them: in
 * parts, from several peers, checked.
 *
 * A *state* is what one needs to go on where a trainer stands: a blob (parameters and the
 * optimiser's states, laid out by their owner) and a few bytes of `meta` (counters). A *mean* is
 * that of a step: a member that holds the link before it and takes the step with it holds the
 * link's state, bit for bit. Both are cut into parts of equal size with a SHA-256 each:
 *
 *     a state's name: its root,  H("hearth state", schema, step, bytes, part_bytes, meta, hashes)
 *     a mean's name:  the head of its link, which has the mean's digest, H(hashes)
 *
 *   newcomer                                 donors
 *      | --- 67 DESCRIBE {schema, step} ------> |  a snapshot is asked of the owner when there is
 *      | <-- E_AGAIN, come back in x ms ------- |  none, it is too old, or means since it are gone;
 *      |                                        |  a job hashes it
 *      | --- 67 ------------------------------> |
 *      | <-- step, meta, part hashes ---------- |
 *      | --- 68 PART {name, index} -----------> |  several parts in flight, from all donors that
 *      | <-- bytes ---------------------------- |  described the same
 *      |                                        |
 *      | --- 67 DESCRIBE {name} --------------> |  a mean that it keeps, or E_NOT_FOUND
 *      | <-- part hashes ---------------------- |
 *
 * The donor holds one snapshot, and nothing is copied or hashed unless somebody asks
 * (state_donor.c). A donor that can't be dialled (a client) is asked over a connection of its own
 * making: it dials newcomers that can be reached, with a PART of no name, at most one in
 * HTH_STATE_DIAL_US; of many clients about HTH_STATE_REACH do so at a time.
 *
 * It keeps the last mean, always, and those before it as far back as one was kept or asked for
 * lately (3 s, or two steps), or is newer than its oldest snapshot: a newcomer that fetched a state
 * finds the means since at the same peer. At most HTH_MEANS_MAX, and all but the last draw on a
 * budget; the oldest go first, so that those that are kept lead to the last without a gap.
 *
 * The fetcher asks the holders that its owner names, a few at a time. Of the states that they
 * describe, and which the owner says will do, it takes the one that most have (ties: the highest
 * step), and fetches its parts from all donors of that root; a mean's from all that keep it. A
 * holder that lies (a hash that does not fit), or is lost or silent when asked what it has, is left
 * out and named, and so is one that says for 16 s that it is in a round and gives no part; one that
 * is late with a part is put off, and describes what it has again. Their parts are asked elsewhere,
 * the parts that came stay. Each change of its mind is told, in words.
 *
 * Trust: a root is believed from the peer that said it, over an authenticated connection. Nobody
 * proves that a state is good, only that all its bytes are that peer's; so the result says whose
 * they are. A mean is the link's, whoever gives it: its digest covers bits, NaN as any other.
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

#define HTH_MEANS_MAX             32 /* that a donor keeps */

/* ---- handing out ----------------------------------------------------------------------------- */

struct hth_state_donor;

struct hth_state_donor_opts {
    uint64_t schema;
    struct hth_budget *budget; /* of all kept means but the last, and their parts; NULL: none */
    /* Somebody wants a snapshot: call hth_state_donor_give soon, once; or never, while this peer
     * has no state itself. Not called again before it was given. */
    hth_fn *want;
    uint64_t (*step)(void *arg); /* that a snapshot would have now */
    void *arg;
};

struct hth_state_donor_stats {
    uint64_t parts, bytes; /* given */
    uint64_t snapshots;    /* made */
    uint32_t means;        /* kept */
    uint64_t first;        /* the oldest of them: its step */
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
/* Keeps the mean that made this link, which this member holds now, and its hashes; frozen,
 * referenced. Means of this step and of later ones were another branch's, and are let go. */
void hth_state_donor_keep(struct hth_state_donor *donor, const struct hth_hash *head, uint64_t step,
                          struct hth_blob *mean, struct hth_blob *hashes);
/* A round of the owner begins, or is over. In it, at most for some seconds, no part of a snapshot
 * is sent, as all of the round would wait for this line; parts of means are: the next members need
 * them. */
void hth_state_donor_yield(struct hth_state_donor *donor, bool yields);
/* When the roster has changed: a client, which the roster has no address of, dials a newcomer. */
void hth_state_donor_reach(struct hth_state_donor *donor, const struct hth_roster *roster);
void hth_state_donor_stats(const struct hth_state_donor *donor, struct hth_state_donor_stats *out);

/* A SHA-256 for each part of a mean, one behind the other; a link's digest of the mean is the hash
 * over them. For jobs. */
struct hth_blob *hth_mean_hashes(const struct hth_crypto *crypto, const struct hth_blob *mean);

/* ---- fetching -------------------------------------------------------------------------------- */

struct hth_state_fetch;

struct hth_state_peers {
    uint32_t count;
    struct hth_peer_id id[HTH_STATE_DONORS_MAX];
};

/* Valid during on_done: ref the blobs to keep them. */
struct hth_state_result {
    uint64_t step;
    const uint8_t *meta;
    size_t meta_len;
    struct hth_blob *values, *hashes;
    uint64_t bytes; /* of parts that came, refetched and refused ones included */
    int64_t took_us;
    /* They have it, by their own word. Who gave the last part comes first: one that died meanwhile
     * does not. */
    struct hth_state_peers said_by;
};

struct hth_state_fetch_opts {
    uint64_t schema;
    uint64_t bytes; /* of a state of this schema, or of a mean: any other is refused */
    bool mean;      /* of the link with this head and digest; else a state */
    struct hth_hash head, digest;
    uint64_t step_min;                    /* older states are refused */
    const struct hth_rpc_target *holders; /* to be asked; copied, at most HTH_STATE_DONORS_MAX */
    uint32_t holders_count;
    /* Whether a described state would do; NULL: each. E_STALE: another one of that donor may, soon;
     * E_BUSY: the owner can't tell yet, and that donor is asked again. Other errors leave the donor
     * out. May not free the fetch. */
    enum hth_err (*judge)(void *arg, const struct hth_rpc_target *donor, const uint8_t *meta,
                          size_t meta_len);
    struct hth_budget *budget; /* of the blob; NULL: none */
    int64_t patience_us;       /* it looks for donors so long, since it began or a part came */
    /* HTH_OK; without a result E_NOT_FOUND (no holder is left), E_TIMEOUT (out of patience). */
    void (*on_done)(void *arg, enum hth_err err, const struct hth_state_result *result);
    void *arg;
};

/* Begins at once. Errors: E_CONFIG, E_BUDGET, E_NO_MEMORY. */
enum hth_err hth_state_fetch_new(struct hth_env *env, struct hth_rpc *rpc,
                                 const struct hth_state_fetch_opts *opts,
                                 struct hth_state_fetch **out) HTH_MUST;
/* NULL is fine. */
void hth_state_fetch_free(struct hth_state_fetch *fetch);

struct hth_state_progress {
    uint64_t step; /* of the state being fetched; 0 before one was found */
    uint32_t parts, parts_done;
    const char *news; /* what is being waited for, for people; also in the log; never NULL */
};
void hth_state_fetch_progress(const struct hth_state_fetch *fetch, struct hth_state_progress *out);

#endif
