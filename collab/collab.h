/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab.h: one trainer's part in a run whose trainers take the same steps.
 *
 * All of them gather the samples of one batch, average their gradients, and take the same step. So
 * their parameters are the same, bit for bit, and a chain of links records which steps they took
 * and who took part (chain.h). This object is the trainer's view of all that: the roll call
 * (roll.h), the averages (averaging/reduce.h), the means and states for those who are behind
 * (arrive.h), and where others are found (heads.h).
 *
 *     trainer                           collab                         the others
 *        | --- brings: samples so far ---> | --- READY ------------------> caller
 *        | <-- more: start another one --- | <-- WAIT {quota} ------------ caller
 *        | <-- take: freeze the batch ---- | <-- GO {list} --------------- caller
 *        | --- taken: values ------------> | <== the all-reduce =========> all of the list
 *        | <-- step: on this mean -------- |     a new link is the tip
 *        | --- stepped ------------------> | --- READY ------------------> next caller
 *
 * A batch that was taken stays with the trainer until `used` says that it counts; if a round comes
 * to nothing it is brought again, with what was gathered since. So each sample counts once.
 *
 * A trainer that has no state yet, or is behind, is brought to the others' head: by the means that
 * it lacks, as further steps, or by a state that it adopts. One that finds nobody begins a chain of
 * its own, and chains that meet become one: the one with more samples stays.
 *
 * The trainer is asked each of take, step, adopt and copy once at a time, perhaps while another one
 * is under way. They run in jobs of the trainer, in the order in which they were asked. No answer
 * comes inside the call that asks, but an error of adopt or copy may.
 *
 * Loop thread. Runs on the real and the simulated environment.
 */
#ifndef HTH_COLLAB_COLLAB_H
#define HTH_COLLAB_COLLAB_H

#include "averaging/averager.h"
#include "averaging/codec.h"
#include "averaging/grid.h"
#include "averaging/state.h"
#include "collab/quota.h"
#include "collab/roll.h"

struct hth_blob;
struct hth_budget;
struct hth_collab;
struct hth_dht;
struct hth_reducer;
struct hth_state_result;

#define HTH_COLLAB_LEAVE_US (3 * HTH_US_PER_S)

/* Bytes of a state's meta that are this object's; the trainer's follow. */
#define HTH_COLLAB_META_BYTES sizeof(struct hth_hash)

/* Questions to the trainer. */
struct hth_collab_ops {
    /* Freeze the batch, the one that was taken before and is not used up included. Answer with
     * hth_collab_taken. */
    void (*take)(void *arg);
    /* The taken batch counts: it is used up. */
    void (*used)(void *arg);
    /* Take the step of this link, on this mean of so many samples, to be referenced. Answer with
     * hth_collab_stepped. */
    void (*step)(void *arg, struct hth_blob *mean, uint64_t samples,
                 const struct hth_chain_link *link);
    /* Copy the state: answer with hth_collab_copied. */
    void (*copy)(void *arg);
    /* Continue with this state, whose meta is the trainer's; what was gathered is of no use. Valid
     * until the return. Answer with hth_collab_adopted. */
    void (*adopt)(void *arg, const struct hth_state_result *state, const uint8_t *meta,
                  size_t meta_len);
    /* hth_collab_may_launch may say yes now. */
    void (*more)(void *arg);
    /* Nobody else is there: whether it may begin a chain. NULL: yes. */
    bool (*may_begin)(void *arg);
    /* The trainer can't take part in the run any more, and ends: E_VERSION, the others speak a
     * protocol that this program does not. Called once; NULL is fine. */
    void (*fail)(void *arg, enum hth_err err);
};

struct hth_collab_opts {
    const char *network;
    uint64_t schema;      /* of all settings that trainers must share: others are not met */
    struct hth_addr addr; /* where others reach this trainer; family 0: nowhere */
    double bandwidth;     /* bit/s that this trainer can send; 0: not known, or a client */
    uint64_t life;        /* of this process: a random number */
    uint64_t count;       /* floats of a mean */
    uint64_t state_bytes;
    const struct hth_avg_span *spans; /* formats on the wire; NULL: fp32 */
    uint32_t span_count;
    const float *far;           /* of hth_reduce_opts, as it is when a batch is taken; NULL: none */
    uint64_t target;            /* samples of a step */
    struct hth_avg_shape shape; /* of the grid for a list (cells.h); dims 0: a line, if it fits */
    bool eventual;              /* averaging.majority: a part without a quorum goes on by itself */
    bool bootstrap;             /* begins a chain at once */
    bool strangers;             /* take part: what they say of the run's version ends nobody */
    int64_t look_us;            /* for others, before it begins a chain */
    /* Of the state that it starts with: a checkpoint's, or zero for parameters that were drawn from
     * the run's seed. */
    uint64_t step, samples;
    /* A file of this step (collab_file.h), borrowed for the call: goes on as the member whose
     * process ended, in its life. NULL, or if it does not fit: a new member, in `life`. */
    const struct hth_blob *frozen;
    struct hth_dht *dht;
    struct hth_reducer *reducer;
    struct hth_budget *budget; /* NULL: none */
};

/* All is borrowed. Errors: E_CONFIG, those of its parts. */
enum hth_err hth_collab_new(struct hth_env *env, struct hth_rpc *rpc,
                            const struct hth_collab_opts *opts, const struct hth_collab_ops *ops,
                            void *arg, struct hth_collab **out) HTH_MUST;
/* Nothing is asked of the trainer any more, and nothing needs an answer. NULL is fine. */
void hth_collab_free(struct hth_collab *collab);

/* Begins to look for others. */
void hth_collab_start(struct hth_collab *collab);

/* Whether another micro-batch may start: it holds a head, is in no round, and its caller wants
 * more. */
bool hth_collab_may_launch(const struct hth_collab *collab, const struct hth_brings *brings);
/* Samples of the present batch: at each launch and landing. A batch that was taken and is not used
 * up counts, too. */
void hth_collab_brings(struct hth_collab *collab, const struct hth_brings *brings);

/* The trainer's answers. An error of `taken` fails the round, one of `copied` the copy; after one
 * of `adopted` another state is fetched. A step that fails has no answer: the trainer ends. */
void hth_collab_taken(struct hth_collab *collab, enum hth_err err, struct hth_blob *values,
                      uint64_t samples);
void hth_collab_stepped(struct hth_collab *collab);
void hth_collab_copied(struct hth_collab *collab, enum hth_err err, struct hth_blob *values,
                       const void *meta, size_t meta_len);
void hth_collab_adopted(struct hth_collab *collab, enum hth_err err);

/* Asks to leave: done is called once nobody waits for this trainer's values, after a few steps at
 * most, or after HTH_COLLAB_LEAVE_US and what is asked of the trainer then. The trainer gathers as
 * before meanwhile. From then on the member is frozen: it takes part in nothing, and only answers
 * those that fetch. Where all that are there leave together, all stop at one step. Called once. */
void hth_collab_leave(struct hth_collab *collab, hth_fn *done, void *arg);
/* The frozen member's file, for a checkpoint of this step. Errors: E_NOT_FOUND (it was not frozen,
 * or holds no head of this step), those of hth_collab_file_write. */
enum hth_err hth_collab_save(const struct hth_collab *collab, uint64_t step,
                             struct hth_blob **out) HTH_MUST;
/* For the endpoint's on_peer_lost. */
void hth_collab_peer_lost(struct hth_collab *collab, const struct hth_peer_id *peer);

enum hth_collab_phase {
    HTH_COLLAB_LOOKS,    /* for others */
    HTH_COLLAB_FETCHES,  /* the others' state */
    HTH_COLLAB_GATHERS,  /* holds a head */
    HTH_COLLAB_AVERAGES, /* is in a round */
    HTH_COLLAB_STEPS,    /* the trainer takes a step, or adopts a state */
    HTH_COLLAB_ALONE,    /* there is no collaboration */
};

struct hth_collab_stats {
    enum hth_collab_phase phase;
    uint64_t step;                      /* of the head that it holds */
    struct hth_hash head;               /* zero: none */
    uint32_t members;                   /* of the last step's roll */
    struct hth_averager_stats averages; /* of rounds: that gave a link, and that gave none */
    struct hth_avg_shape shape;         /* of the last round; dims 0: there was none */
    uint64_t means, states;             /* fetched */
    uint64_t forks;                     /* links without a quorum that it made */
    uint64_t joined;                    /* times it went over to another chain */
    uint64_t given_bytes;               /* of states, to others */
    struct hth_state_progress fetch;    /* of a state; hth_arrive_progress */
};
void hth_collab_stats(const struct hth_collab *collab, struct hth_collab_stats *out);
/* To look at, with its chain. */
const struct hth_choice *hth_collab_choice(const struct hth_collab *collab);

#endif
