/* SPDX-License-Identifier: Apache-2.0 */
/*
 * means.h: the means of the last steps, kept for members that missed one, and fetched by them.
 *
 * A link (chain.h) has a digest of the mean that made it. A member that holds the link before it,
 * gets this mean from anybody, checks the digest and takes the step, holds the link's state bit for
 * bit. So a missed step costs one mean, and a newcomer needs one state and the means since.
 *
 *     member                                   holder: keeps the mean of each step that it took
 *        | --- 75 MEAN {head, first, values} --->|
 *        | <-- fp32 values ----------------------|   as they lie in the mean's blob
 *        |        ...  HTH_MEAN_ASKS in flight   |
 *        | --- 75 MEAN ------------------------->|
 *        | <-- E_NOT_FOUND ----------------------|   gone: the next holder is asked
 *
 * The digest is the hash over the hashes of blocks of HTH_MEAN_BLOCK values, whoever reduced them.
 * It covers bits: a mean with a NaN is fetched as any other, for the members that made the link
 * stepped on it, too. The step's rule for values that are not finite is the same for all.
 *
 * A holder keeps the last mean, always. It keeps those before it as far back as one was made or
 * asked for lately (3 s, or two steps), or is newer than the oldest snapshot that it hands out
 * (hth_means_keep_from): a newcomer that fetched a state finds the means since at the same peer. At
 * most HTH_MEANS_MAX, and all but the last draw on a budget; the oldest go first, so that those
 * that are kept lead to the last without a gap.
 *
 * Readers. A reply refers to the mean's bytes, and a reader that stops reading keeps them in memory
 * after the mean has been let go. So a peer has at most HTH_MEAN_READS_MAX replies under way, and
 * of those whose mean is gone at most HTH_MEAN_STALE_MAX are left; the peers of the oldest are
 * disconnected.
 *
 * Fetching. One holder at a time gives all of a mean, so that a liar has a name. A holder that
 * refuses, is lost, answers with another length or later than others did (and than 0.5 s), or whose
 * values have another digest, is left for the next one. The silent ones get a second turn with
 * more patience, as a slow line may have nobody else; but not where another one answered that the
 * mean is gone, for then a state is the quicker way.
 *
 * Loop thread; copies and hashes are jobs'. In a world of ghosts jobs do not run, and any digest
 * fits. Callbacks never run inside a call of this header.
 */
#ifndef HTH_COLLAB_MEANS_H
#define HTH_COLLAB_MEANS_H

#include "collab/holders.h"
#include "core/budget.h"
#include "core/env.h"
#include "rpc/rpc.h"

#define HTH_MEAN_METHOD    75

#define HTH_MEAN_BLOCK     4096       /* values of one hash; the last block is short */
#define HTH_MEANS_MAX      32         /* that a member keeps */
#define HTH_MEAN_BYTES_MAX (4u << 20) /* of one reply */
#define HTH_MEAN_ASKS      4          /* requests in flight of one fetch */
#define HTH_MEAN_READS_MAX 16         /* replies to one peer that it has not read */
#define HTH_MEAN_STALE_MAX 32         /* replies to all whose mean is not kept any more */

/* For jobs. */
void hth_mean_digest(const struct hth_crypto *crypto, const float *values, uint64_t count,
                     struct hth_hash *out);

/* ---- the request ----------------------------------------------------------------------------- */

/*     MEAN   u8 version, head 32, u64 first, u32 values */
struct hth_mean_msg {
    struct hth_hash head; /* of the link that the mean made */
    uint64_t first;       /* value; a multiple of HTH_MEAN_BLOCK */
    uint32_t values;      /* 1 .. HTH_MEAN_BYTES_MAX / 4 */
};
#define HTH_MEAN_MSG_BYTES (1 + 32 + 8 + 4)

/* HTH_MEAN_MSG_BYTES. */
size_t hth_mean_msg_write(const struct hth_mean_msg *msg, uint8_t *out);
/* Errors: E_TRUNCATED, E_VERSION, E_MALFORMED (bytes left over, `first`), E_RANGE (no values),
 * E_TOO_LARGE (too many). */
enum hth_err hth_mean_msg_read(const uint8_t *data, size_t len, struct hth_mean_msg *out) HTH_MUST;

/* ---- keeping --------------------------------------------------------------------------------- */

struct hth_means;

/* Serves MEAN. `budget` is that of all kept means but the last; NULL: none. */
struct hth_means *hth_means_new(struct hth_env *env, struct hth_rpc *rpc,
                                struct hth_budget *budget);
/* After its fetches; jobs may still be under way. NULL is fine. */
void hth_means_free(struct hth_means *means);

/* Keeps the mean that made this link, which this member holds now: fp32 values, frozen, referenced.
 * Means of this step and of later ones were another branch's, and are let go. */
void hth_means_put(struct hth_means *means, const struct hth_hash *head, uint64_t step,
                   struct hth_blob *mean);
/* Somebody may be given the state of this step: the means of all later ones are kept. UINT64_MAX:
 * nobody. The owner says so before it puts the next mean. */
void hth_means_keep_from(struct hth_means *means, uint64_t step);

struct hth_means_stats {
    uint32_t kept;
    uint64_t first; /* the oldest kept step */
    uint64_t fetched; /* bytes, those in vain included */
    uint32_t reads; /* replies that were not read yet */
    uint32_t stale; /* of them, of means that are gone */
};
void hth_means_stats(const struct hth_means *means, struct hth_means_stats *out);

/* ---- fetching -------------------------------------------------------------------------------- */

struct hth_mean_fetch;

struct hth_mean_fetch_opts {
    struct hth_hash head;              /* of the link that the mean makes */
    struct hth_hash digest;            /* as that link has it */
    uint64_t values;                   /* of this run's means */
    const struct hth_holders *holders; /* copied */
    /* The mean, to be referenced, and who gave it. Or NULL once all were asked: E_NOT_FOUND where
     * one said so, else the last one's error. May free the fetch. */
    void (*done)(void *arg, enum hth_err err, struct hth_blob *mean,
                 const struct hth_peer_id *giver);
    void *arg;
};

/* Errors: E_CONFIG (values, holders), E_NO_MEMORY. Its owner draws on a budget for it. */
enum hth_err hth_mean_fetch_new(struct hth_means *means, const struct hth_mean_fetch_opts *opts,
                                struct hth_mean_fetch **out) HTH_MUST;
/* Without a callback. NULL is fine. */
void hth_mean_fetch_free(struct hth_mean_fetch *fetch);

#endif
