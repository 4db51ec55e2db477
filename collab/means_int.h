/* SPDX-License-Identifier: Apache-2.0 */
/*
 * means_int.h: the inside of means.h: what is kept and served (means.c), and what one fetch shares
 * with the next (mean_fetch.c).
 */
#ifndef HTH_COLLAB_MEANS_INT_H
#define HTH_COLLAB_MEANS_INT_H

#include "collab/means.h"

struct kept_mean {
    struct hth_hash head;
    uint64_t step;
    struct hth_blob *mean;
    int64_t until_us; /* stays until then, if there is room */
    bool drawn;       /* its bytes were taken from the budget */
};

/* A reply that its reader has not read yet. */
struct mean_read {
    struct mean_read *next;
    struct hth_means *means; /* NULL: freed */
    struct hth_peer_id by;
    struct hth_blob *mean;
    bool stale; /* counted as one whose mean is not kept any more */
};

struct hth_means {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_budget *budget;
    struct kept_mean kept[HTH_MEANS_MAX]; /* ascending by step */
    uint32_t count;
    uint64_t from;
    int64_t put_us, step_us; /* when the last mean came, and how long after the one before */
    struct mean_read *reads, **reads_end; /* the oldest first */
    struct hth_means_stats stats;
    double chunk_us; /* that fetched chunks took; 0: not known */
    uint64_t fetched;
};

uint64_t mean_blocks(uint64_t values);
/* A hash for each block, of values that begin at one. */
void mean_hash_blocks(const struct hth_crypto *crypto, const float *values, uint64_t count,
                      struct hth_hash *out);

#endif
