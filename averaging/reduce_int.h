/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reduce_int.h: the structs that the files of the reduction share. Nobody else includes it.
 *
 *   reduce.c        the reducer and its rounds: begin, requests, end; parts that come early
 *   reduce_cut.c    shares and parts
 *   reduce_give.c   a member's own parts: encoded, sent, answers applied
 *   reduce_take.c   the parts it reduces: contributions collected, summed, answered
 *   reduce_watch.c  members that are lost, silent or slow
 *   reduce_sum.c    the arithmetic, on plain memory
 *   reduce_clip.c   the same where far values count less
 *
 * A round is counted: the reducer's list holds it, and every job that is under way. Jobs touch only
 * their own struct and stretches of blobs that nobody else touches meanwhile: each part's stretch
 * of the average is written by one job, once, before anybody refers to it.
 */
#ifndef HTH_AVERAGING_REDUCE_INT_H
#define HTH_AVERAGING_REDUCE_INT_H

#include "averaging/part.h"
#include "averaging/reduce.h"
#include "core/mem.h"

#define UNIT_FLOATS     64u        /* shares are whole multiples: tensors of 64-byte stretches */
#define PARTS_PER_SHARE 8u         /* aimed at, so that sending, adding and answering overlap */
#define LINE_BITS_FAST  1e9        /* bit/s; below, parts are small, and the group keeps pace: */
#define SLOW_PART_S     1.3e-3     /* of the slowest line */
#define WINDOW_S        0.35       /* of the pace: so far is sent ahead of what is settled */
#define START_PARTS     3.0        /* to each reducer at first, in the mean, and so far at least */
#define WINDOW_BYTES    (4u << 20) /* in flight to one reducer */
#define NUMBER_MAX      1e30f      /* in a sum that was not finite: larger ones are left out */

/* ---- parts --------------------------------------------------------------------------------- */

enum give_state {
    GIVE_NONE,
    GIVE_HERE,  /* values for the mean */
    GIVE_EMPTY, /* none, not finite, or after the sum was begun: the mean is wanted */
};

/* One member's share in a part that is reduced here. */
struct reduce_contribution {
    struct reduce_part *part;
    enum give_state state;
    struct hth_rpc_request *req;    /* NULL: answered, canceled, or this member's own */
    struct hth_blob *blob, *answer; /* answer: room for one of narrow format */
    size_t offset;                  /* in blob */
    struct hth_segment *segments;   /* of either */
    uint32_t segment_count;
};

struct reduce_part {
    struct hth_reduce_round *round;
    uint64_t first; /* float */
    uint32_t count;
    uint32_t to; /* the member that reduces it */
    /* sent to another member */
    uint32_t bytes; /* at most, as sent; 0: not begun */
    bool waiting;   /* to be begun, or again with the next look */
    struct hth_rpc_call *call;
    /* reduced here */
    bool summing, done;
    double weight;                    /* in the mean; 0: nothing could be averaged */
    struct reduce_contribution *from; /* one per member */
};

/* ---- members and rounds -------------------------------------------------------------------- */

struct reduce_member_state {
    struct hth_reduce_round *round;
    struct hth_reduce_member is;
    struct hth_reduce_fate *fate;
    /* as sender, to this member */
    uint32_t got; /* parts reduced here that it has sent */
    /* as reducer */
    uint64_t first, floats; /* its share */
    uint32_t first_part, part_count;
    uint32_t begun, settled;  /* of part_count */
    uint64_t under_way_bytes; /* of parts that are begun and not answered */
    /* life */
    int64_t heard_us, progress_us;
    int64_t here_us;      /* since when there is a connection to it */
    int64_t put_off_us;   /* since when it puts parts off and answers none; 0: it does not */
    int64_t gives_us;     /* since when its values come, or its answers; 0: none did */
    uint32_t held;        /* looks at which others waited for its parts */
    uint64_t came_bytes;  /* over its connections before the round */
    uint64_t moved_bytes; /* over them when that was last progress */
    bool knows;           /* it knows the round */
    struct hth_rpc_call *ask;
};

struct hth_reduce_round {
    struct hth_reducer *reducer; /* NULL: it is gone from the list, and nobody is answered */
    int refs;
    struct hth_reduce_opts is; /* `values`, `spans` and `far` are this round's own */
    struct reduce_member_state *members;
    struct hth_blob *average; /* from float average_first on */
    uint64_t average_first;
    struct reduce_part *parts; /* of the vector, in its order */
    uint32_t part_count;
    uint32_t sends_left, owns_left;
    uint64_t settled_floats; /* of parts of others */
    double start_floats;     /* that are sent ahead of these at first */
    double pace;             /* floats a second, by the bandwidths; infinite: no line is slow */
    double group_weight;
    struct hth_timer *timer;
    int64_t start_us, end_us;
    int64_t far_us;  /* the longest round trip */
    double best_us;  /* that all parts would take most of the members, at their best pace */
    int64_t look_us; /* when the next look is due */
    struct hth_reduce_fate *fates;   /* of all members */
    struct hth_reduce_result result; /* its weight is times floats until the end */
};

/* A request for a round that has not begun here. */
struct reduce_early {
    struct reduce_early *next;
    struct hth_reducer *reducer;
    struct hth_rpc_request *req;
    struct hth_hash group;
    size_t bytes;
    int64_t until_us;
};

struct hth_reducer {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_reducer_opts opts;
    struct hth_reduce_round *rounds[HTH_AVG_ROUNDS_MAX];
    uint32_t round_count;
    struct reduce_early *early;                /* oldest first */
    struct hth_hash ended[HTH_AVG_ROUNDS_MAX]; /* a ring */
    uint32_t ended_count;
    struct hth_timer *timer; /* for early parts */
    struct hth_reducer_stats stats;
};

/* It sends parts, with values if it has a weight, and is told the mean. Others only reduce. */
static inline bool reduce_hears(const struct hth_reduce_member *m)
{
    return m->weight > 0 || m->bandwidth == 0;
}

static inline struct reduce_member_state *reduce_self(const struct hth_reduce_round *r)
{
    return &r->members[r->is.self];
}

/* ---- reduce.c ------------------------------------------------------------------------------ */

struct hth_reduce_round *round_ref(struct hth_reduce_round *r);
void round_unref(struct hth_reduce_round *r);
/* Ends it when nothing is left to do, or it failed. Only from a callback of the environment or the
 * endpoint. */
void round_check(struct hth_reduce_round *r);
/* It ends with the error in the next turn. */
void round_fail(struct hth_reduce_round *r, enum hth_err err);

/* ---- reduce_cut.c -------------------------------------------------------------------------- */

/* Lays out shares and parts from the members and the count. Errors: E_RANGE. */
enum hth_err round_cut(struct hth_reduce_round *r) HTH_MUST;
/* Of a part of this member's vector, in its formats, or in fp32 where these would be too many.
 * Returns their number. */
uint32_t round_segments(const struct reduce_part *part,
                        struct hth_segment segments[HTH_AVG_SEGMENTS_MAX]);

/* ---- reduce_give.c ------------------------------------------------------------------------- */

/* Begins what the windows of all reducers allow. */
void give_pump_all(struct hth_reduce_round *r);
/* Tries parts again that found no room. */
void give_again(struct hth_reduce_round *r);
/* Its parts keep the local values. */
void give_fail(struct hth_reduce_round *r, uint32_t to, enum hth_reduce_drop why);
/* Calls that are out are canceled; nothing is applied any more. */
void give_end(struct hth_reduce_round *r);

/* ---- reduce_take.c ------------------------------------------------------------------------- */

/* The request is taken. */
void take_part(struct hth_reduce_round *r, struct hth_rpc_request *req,
               const struct hth_part_head *head, struct hth_blob *blob, size_t offset);
/* Sums whatever is complete without waiting for members that were dropped. */
void take_review(struct hth_reduce_round *r);
/* Requests that are still held are refused. */
void take_end(struct hth_reduce_round *r, enum hth_err err, const char *text);

/* ---- reduce_watch.c ------------------------------------------------------------------------ */

void watch_begin(struct hth_reduce_round *r);
void watch_tick(struct hth_reduce_round *r);
/* A part or an answer came from it. */
void watch_progress(struct hth_reduce_round *r, uint32_t member);
/* Given up in both roles: its connection was lost, or the round is over there. */
void watch_drop(struct hth_reduce_round *r, uint32_t member, enum hth_reduce_drop why);
/* In the log. */
void watch_say(const struct hth_reduce_round *r, uint32_t member, const char *role,
               enum hth_reduce_drop why);
/* For its values: it has some, and was not dropped. */
bool watch_waits_for(const struct reduce_member_state *m);
bool watch_due_as_reducer(const struct hth_reduce_round *r, uint32_t member);

/* ---- reduce_sum.c -------------------------------------------------------------------------- */

/* Loops over floats are compiled for two instruction sets. */
#ifdef HTH_AVERAGING_CLONES
#define CLONES __attribute__((target_clones("default", "avx2")))
#else
#define CLONES
#endif

/* A contribution as plain memory. */
struct sum_input {
    const float *values;
    double weight;
    bool out;      /* there is none; out: or it is not finite, and left out */
    bool answered; /* of reduce_take.c: its answer is written */
};

/* mean = sum w_i x_i / sum w_i over the inputs that are finite, in their order; returns the weight
 * of those, 0 with none. */
double hth_reduce_sum(struct sum_input *in, uint32_t n, float *mean, uint32_t count) HTH_MUST;
bool hth_reduce_is_finite(const float *x, size_t n);

/* Sorts, the least first, and returns x[rank]. */
double hth_reduce_rank(double *x, uint32_t n, uint32_t rank);

/* ---- reduce_clip.c ------------------------------------------------------------------------- */

#define HTH_REDUCE_CLIP_MEMBERS 3 /* fewer are averaged as they are: nobody knows who is far */

/* After hth_reduce_sum over the same inputs, whose `mean` is replaced where somebody is further off
 * than `clip` times the median, for its weight; it stays where differences overflow. `fixed`: each
 * HTH_AVG_BLOCK_FLOATS by themselves. A function of the inputs alone. Errors: E_NO_MEMORY. */
enum hth_err hth_reduce_clip(const struct sum_input *in, uint32_t n, double clip, bool fixed,
                             float *mean, uint32_t count) HTH_MUST;

#endif
