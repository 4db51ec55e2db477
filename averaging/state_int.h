/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_int.h (internal): the parts of the fetcher of a state.
 *
 *   state_fetch.c   its life, donors, parts in flight, announcements; `pump`
 *   state_look.c    who is asked to describe what it has, and which root is settled on
 */
#ifndef HTH_AVERAGING_STATE_INT_H
#define HTH_AVERAGING_STATE_INT_H

#include "averaging/roster.h"
#include "averaging/state.h"
#include "averaging/state_msg.h"
#include "dht/board.h"
#include "rpc/rpc.h"

#define LOOK_US      (250 * HTH_US_PER_MS) /* between two looks around */
#define GRACE_MIN_US (20 * HTH_US_PER_MS)  /* for more answers: as long as the first took */
#define STRUCK_US    (5 * HTH_US_PER_S)    /* until a donor is asked again */
#define HEDGE_US     (1 * HTH_US_PER_S)    /* for an answer, before others are asked, too */

enum part_state { PART_MISSING, PART_ASKED, PART_CHECKED, PART_DONE };

struct donor {
    struct hth_state_fetch *fetch;
    struct hth_peer_id id;
    struct hth_addr addr;
    struct hth_rpc_call *describing;
    int64_t asked_us; /* to describe, the last time; 0: never */
    uint64_t claimed; /* the step that it said then */
    bool described;
    struct hth_state_desc desc;
    bool has_root; /* of the state being fetched, by its own word or record */
    bool gave;     /* a part that was right */
    uint32_t in_flight;
    int64_t struck_until_us;
    uint32_t behind; /* times that it had none that is far enough */
    bool lost; /* struck off for what it did, not only for now */
};

struct state_ask {
    struct hth_state_fetch *fetch;
    struct state_ask *next;
    struct donor *donor;
    uint32_t part;
    int64_t sent_us;
    struct hth_rpc_call *call;
};

struct hth_state_fetch {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_roster *roster; /* NULL: the donors are the owner's */
    struct hth_state_fetch_opts opts;
    struct hth_board *board; /* NULL without a roster */
    struct hth_record_cache *cache;
    struct hth_timer *timer;
    struct donor *donors[HTH_STATE_DONORS_MAX]; /* in order of first sight */
    uint32_t donors_count;
    struct hth_state_desc desc; /* of the state being fetched; 0 parts: none */
    bool fetching;              /* its donors are alive; else looking for some */
    struct hth_blob *values;
    uint8_t *state; /* enum part_state per part */
    uint32_t done;
    struct state_ask *asks;
    uint32_t checks; /* jobs under way */
    double part_us;  /* what a part takes, smoothed downwards; 0: not known */
    uint32_t timed;  /* parts that it is known from */
    int64_t asked_us, first_answer_us, begun_us;
    int64_t here_us; /* from then on one that says HERE is heeded again */
    struct hth_rng rng;
    bool freed, finished;
    struct hth_state_result result;
    struct hth_state_peers said_by, unshown;
    uint64_t reached; /* the step that enough of those who have a state have reached, by what they
                       * say or have described; UINT64_MAX without a roster */
    char news[200];
    struct ad *ads; /* announcements believed */
};

/* An announcement of a snapshot. */
struct ad {
    struct ad *next, **back;
    struct hth_peer_id id;
    struct hth_state_ad said;
};

/* state_fetch.c */
/* Does whatever can be done now. */
void hth_fetch_pump(struct hth_state_fetch *f);
/* News for people, once. */
HTH_PRINTF(2, 3) void hth_fetch_tell(struct hth_state_fetch *f, const char *fmt, ...);
/* NULL: HTH_STATE_DONORS_MAX are known. */
struct donor *hth_fetch_donor(struct hth_state_fetch *f, const struct hth_peer_id *id,
                              const struct hth_addr *addr);
bool hth_fetch_is_struck(const struct donor *d);
/* It failed: not asked for a while. */
void hth_fetch_strike(struct donor *d, const char *why);
/* It did nothing wrong, and is asked again after this time. */
void hth_fetch_spare(struct donor *d, int64_t after_us);
/* Parts that are on their way from this donor (NULL: any) will be asked elsewhere. */
void hth_fetch_cancel_asks(struct hth_state_fetch *f, const struct donor *of);
bool hth_fetch_same_root(const struct hth_hash *a, const struct hth_hash *b);
uint32_t hth_fetch_donors_alive(const struct hth_state_fetch *f);

/* state_look.c */
void hth_fetch_ask_around(struct hth_state_fetch *f);
/* Settles on a root, once nobody who was asked may still say something better. */
void hth_fetch_settle(struct hth_state_fetch *f);
/* Who announces the root that is being fetched gives parts of it, too. */
void hth_fetch_use_ad(struct hth_state_fetch *f, const struct ad *ad);
/* Fills `unshown`: all of the state has come. */
void hth_fetch_list_unshown(struct hth_state_fetch *f);

#endif
