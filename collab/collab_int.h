/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab_int.h: the inside of a collaboration: life, other heads and what is asked of the trainer
 * (collab.c); rounds (collab_round.c).
 */
#ifndef HTH_COLLAB_COLLAB_INT_H
#define HTH_COLLAB_COLLAB_INT_H

#include "collab/arrive.h"
#include "collab/collab.h"
#include "collab/collab_file.h"
#include "collab/heads.h"

typedef void collab_hashed_fn(struct hth_collab *c, enum hth_err err, struct hth_blob *hashes,
                              const struct hth_hash *digest);

/* A digest that is computed in a job, which outlives the collaboration if need be. */
struct collab_digest {
    struct hth_job job;
    struct hth_collab *collab; /* NULL: freed meanwhile */
    const struct hth_crypto *crypto;
    struct hth_blob *values, *hashes;
    collab_hashed_fn *done;
};

struct hth_collab {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_collab_opts opts;
    struct hth_collab_ops ops;
    void *arg;
    struct hth_chain *chain;
    struct hth_roll_call *roll;
    struct hth_heads *heads;
    struct hth_arrive *arrive;
    struct hth_state_donor *donor;
    struct hth_timer *timer;
    struct hth_collab_stats stats;

    /* The trainer. */
    bool steps, adopts;            /* it was asked to, and has not answered */
    bool wants_own, wants_copy;    /* a copy, for the digest of a genesis, and for others */
    uint32_t held;                 /* the link whose state the trainer has, or HTH_LINK_NONE */
    uint32_t to;                   /* the link that its step or its adopted state leads to */
    struct hth_state_peers donors; /* said that they have the state that it adopts */

    /* Another head that the roll call wants, until the way there begins. */
    uint32_t goal; /* HTH_LINK_NONE: none waits */
    struct hth_holders holders;

    struct collab_round *round;   /* NULL: it is in none */
    struct hth_hash round_ended;  /* the last one's group */
    struct hth_blob *made;        /* its mean, while its link is made, */
    struct hth_blob *made_hashes; /* ... and the hashes of that */
    struct collab_digest *digest; /* NULL: none is computed */

    /* The start. */
    struct hth_vote vote; /* of a frozen member; its tip is HTH_LINK_NONE for a new one */
    bool started;         /* looks for others */
    bool calls;           /* as last said in the DHT */
    uint32_t own;         /* a genesis of the state that it started with, or HTH_LINK_NONE */
    bool founds;          /* holds that genesis as soon as it is there */
    int64_t yields_us;    /* until then another one that looks may begin */

    bool unread; /* another's links are another program's */
    bool failed; /* the trainer was told to end */

    int64_t alone_us; /* since then it looks, or hears no quorum */
    int64_t told_us;  /* why it does not get on, for people */

    int64_t leave_us; /* when it asked to leave */
    bool frozen;
    hth_fn *left;
    void *left_arg;
};

/* collab.c */
/* The trainer steps on this mean to that link. */
void collab_step(struct hth_collab *c, uint32_t link, struct hth_blob *mean);
/* The trainer holds the state of a link. */
void collab_holds(struct hth_collab *c, uint32_t link);
/* Keeps the mean that made a link, for others. */
void collab_keep(struct hth_collab *c, uint32_t link, struct hth_blob *mean,
                 struct hth_blob *hashes);
/* Hashes values in a job (hth_mean_hashes). */
void collab_hash(struct hth_collab *c, struct hth_blob *values, collab_hashed_fn *done);

/* Whether it leaves with all others of this link: then this one is the last. */
bool collab_all_leave(const struct hth_collab *c, uint32_t link);

/* collab_round.c */
void collab_on_average(void *arg, const struct hth_roll_group *group);
void collab_on_tip(void *arg, uint32_t link, bool used);
/* Ends a round that is under way without telling the roll call. */
void collab_drop_round(struct hth_collab *c);
void collab_round_peer_lost(struct hth_collab *c, const struct hth_peer_id *peer);
void collab_on_row(void *arg, struct hth_rpc_request *req);

#endif
