/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer_int.h (internal): the trainer's parts.
 *
 *   trainer.c     life, which flight starts when
 *   flight.c      one micro-batch from data to gradient
 *   update.c      gradients: applied one by one, or summed for a shared batch
 *   average.c     parameters averaged in the background
 *   elastic.c     shared batches: gathering together
 *   elastic_step.c  ... averaging and stepping together
 *   lineage.c     whether its parameters are those of the others
 *   settings.c       what all must have alike, and who has it otherwise
 *   newcomer.c    the state of a run: fetched at the start and when behind
 *   hear.c        ... going along with the others' steps meanwhile
 *   run_state.c   ... as bytes: handed out and taken up
 *   eval.c        evaluations
 *   checkpoint.c  state to and from a file
 *
 *   slots:  flight flight flight ..    each in one of: free, in a job, waiting for experts
 *   trunk:  queue of jobs that touch weights, one at a time
 *   io:     queue of jobs that touch the disk, one at a time
 */
#ifndef HTH_TRAINER_TRAINER_INT_H
#define HTH_TRAINER_TRAINER_INT_H

#include "averaging/codec.h"
#include "averaging/state.h"
#include "trainer/lineage.h"
#include "trainer/pass.h"
#include "trainer/transport.h"
#include "trainer/queue.h"
#include "trainer/settings.h"
#include "trainer/trainer.h"

struct hth_state_donor;
struct hth_state_fetch;
struct hth_state_result;

/* Steps of the others that are kept while the state is on its way, 4 bytes a parameter each. */
#define HTH_HEARD_MAX 8
/* Who missed a step's group may still look there when the next one is about to meet. */
#define HTH_HEARING_LOOKS 2

/* Flights in a row that were dropped before the trainer gives up. */
#define HTH_DROPS_MAX 100

struct hth_flight {
    struct hth_trainer *trainer;
    bool busy;
    bool eval;
    struct hth_pass *pass;
    struct hth_work work;
    uint32_t layer;    /* of the segment under way */
    uint64_t position; /* of its first sample in the data */
    uint32_t valid;    /* samples of the data; the rest of the pass is padding */
    uint64_t started_at; /* updates when it started: for staleness */
    int64_t begun_us;
    double grad_norm; /* found when applied */
    float lr;
};

struct hth_eval {
    bool wanted, active;
    uint64_t next, total; /* samples */
    uint32_t in_air;
    struct hth_eval_result result;
    double loss_sum;
    uint64_t counted, correct;
};

struct hth_ckpt {
    bool wanted; /* no flight starts until it is taken */
    bool busy;   /* being taken or written */
    bool has_lineage;
    uint64_t at; /* updates when the last one was taken */
    struct hth_work take, write;
    struct hth_blob *bytes;
    enum hth_err err;
};

/* Rounds of parameters. */
struct hth_average {
    struct hth_averager averager; /* the caller's, or nobody */
    bool own;
    bool busy;    /* a snapshot is being made or a difference applied */
    bool out;     /* an offer is with the averager */
    bool discard; /* ... of parameters that are no more */
    bool whole;   /* all parts of `mean` are averages */
    uint64_t at;
    /* At the last offer, had it an average or not: an offer counts by how fast its trainer is. By
     * all that it did since it last met others, one who was alone for an hour would outweigh a
     * run, whose own samples are behind each mean. */
    uint64_t samples_at;
    uint32_t parts; /* of params: the values, and states where they are averaged too */
    struct hth_work snapshot, apply;
    struct hth_blob *values;         /* the snapshot being made */
    struct hth_blob *offered, *mean; /* of the round being applied */
    enum hth_err err;                /* of the job that made or applied */
    double distance, norm;
    struct hth_avg_span *spans; /* formats of the flat parameters on the wire; NULL: fp32 */
    uint32_t span_count;        /* of one part; the states' follows, and is fp32 */
};

enum hth_batch_phase {
    HTH_BATCH_GATHER,
    HTH_BATCH_TAKE,    /* a job makes the mean gradient of the sum */
    HTH_BATCH_AVERAGE, /* it is with the averager */
    HTH_BATCH_STEP,    /* a job steps */
    HTH_BATCH_AGAIN,   /* until retry_at_us */
    HTH_BATCH_PUT_BACK /* a job adds it to the sum again */
};

/* A batch that is shared. */
struct hth_batch {
    bool on;
    enum hth_batch_phase phase;
    float *sum;       /* of gradients times samples; flat */
    uint64_t samples; /* in it */
    struct hth_work take, step, put_back;
    struct hth_blob *mean;   /* ours, of `taken` samples */
    struct hth_blob *common; /* of all; NULL: alone */
    uint64_t taken;
    uint32_t population;   /* of trainers, when it was taken */
    double weight;         /* behind `common` */
    uint64_t origin;       /* whose values are in it (lineage.h) */
    uint32_t goes;         /* averages of this step that were short of the target */
    uint32_t lines;        /* 1: others are looked for in the lines of those who go on */
    double brought;        /* samples that its group had in the last of them */
    uint64_t need;         /* of our own before the next */
    uint64_t spares_until; /* before that step batches are not cut close */
    int64_t missed_us;     /* when an average of this step had no quorum last; 0: all had */
    int64_t asked_us;      /* for how long others were asked since the first of those */
    double grad_norm;
    float lr;
    enum hth_err err; /* of a job */
    int64_t at_us;    /* since when it is at this step */
    int64_t taken_us, retry_at_us, behind_since_us;
    uint32_t tries;
    bool prepared;
    bool no_grid; /* when it was last offered */
    struct hth_timer *timer;
    /* speed while gathering: moving average of seconds per sample, bias corrected */
    double s_per_sample, s_weight;
    int64_t landed_us; /* 0: gathering was interrupted */
};

enum hth_boot {
    HTH_BOOT_READY, /* also: alone */
    HTH_BOOT_LOOK,
    HTH_BOOT_FETCH,
    HTH_BOOT_LAND, /* the state is here: until no flight is in the air */
    HTH_BOOT_APPLY
};

/* An average that the others took a step on. */
struct hth_heard {
    struct hth_blob *mean;
    double weight;
    uint64_t origin;
    double grad_norm; /* found when it is stepped on, if jobs run in this world; */
    float lr;
    bool finite; /* else true */
};

/* The others' steps while the state is on its way (hear.c). */
struct hth_hearing {
    struct hth_heard log[HTH_HEARD_MAX]; /* of `first` and so on */
    uint32_t count;
    uint64_t first;
    uint64_t step;   /* that is listened to; 0: none yet */
    uint64_t missed; /* no state of it or before is of use without what is in the log */
    int64_t again_us, heard_us, missed_us;
    bool can;  /* the averager took the last offer without values */
    bool rest; /* the others gather what their average of `step` was short of */
    struct hth_hearing_look {
        bool out;
        uint64_t step;
    } look[HTH_HEARING_LOOKS]; /* offers without values */
    enum hth_err err;          /* of the job that steps */
};

/* Where the run stands, from others and for others. */
struct hth_newcomer {
    enum hth_boot boot;
    uint64_t step_min; /* of the state that is fetched */
    bool was_ready;
    bool goes_on; /* with a checkpoint of a run on the same settings */
    int64_t since_us, alone_since_us, voted_us;
    int64_t moved_us; /* when the fetch began, or its last part came; */
    uint32_t parts_done;
    struct hth_state_fetch *fetch;
    struct hth_state_donor *donor;
    struct hth_timer *timer;
    struct hth_work apply, give;
    struct hth_blob *values; /* fetched; and by whose word, and who showed less than it says: */
    struct hth_state_peers said_by, unshown;
    enum hth_err no_use; /* of the last state that was of no use */
    uint64_t updates, samples, steps;
    struct hth_lineage lineage;
    struct hth_mark yields_to; /* step 0: to nobody, it is behind; mark 0: to all */
    uint32_t overtaken;        /* states in a row that came too late */
    uint32_t goes;             /* without one, since the last of them */
    bool approximate;          /* goes on at a step whose parameters it has not quite */
    struct hth_blob *given;    /* being handed out */
    bool giving;
    enum hth_err err;
};

/* What the node's metrics show of a trainer. */
struct hth_train_metrics {
    struct hth_metric *updates, *samples, *dropped, *lost_rows, *bad, *loss, *staleness;
};

/* So many a second over about the last ten: two sums that decay alike. */
struct hth_rate {
    double count, s;
    int64_t last_us;
};

struct hth_trainer {
    struct hth_env *env;
    struct hth_trainer_opts opts;
    char *checkpoint_path;
    struct hth_model *model;
    struct hth_data *data, *eval_data;
    struct hth_data_info data_info, eval_info;
    struct hth_transport *transport;
    struct hth_queue trunk, io;
    struct hth_flight *flights;
    uint32_t in_air;   /* training and evaluation */
    uint32_t training; /* of them training */
    uint64_t launched; /* training flights ever: the position in the data */
    uint32_t drops;    /* in a row */
    struct hth_timer *pump_timer;
    struct hth_rng rng;
    bool started, stopping, finished, fatal;
    bool spoilt; /* fatal, and the parameters may be why, or are half of what they should be */
    enum hth_err fatal_err;
    hth_fn *stop_done;
    void *stop_arg;
    struct hth_eval eval;
    uint64_t evaluated_at; /* updates of the last evaluation; UINT64_MAX: none */
    struct hth_ckpt ckpt;
    struct hth_average average;
    struct hth_batch batch;
    struct hth_newcomer newcomer;
    struct hth_hearing hearing;
    struct hth_lineage lineage; /* of a trainer that shares batches */
    /* When it took its last step: who ends takes its note away, and the last one is asked, too. */
    struct hth_lineage_standing stood;
    struct hth_settings settings;
    int64_t started_us;
    int64_t told_us; /* the roster, of a step taken alone */
    struct hth_train_stats stats;
    struct hth_train_metrics metrics;
    double stale_sum, stale_count; /* the histogram ends at 15, the mean does not */
    struct hth_rate samples_rate;  /* of this trainer's flights */
    struct hth_rate updates_rate;
    int64_t waiting_since_us;
    bool freed;
    int closing; /* queues that still have a job */
};

/* trainer.c */
void hth_trainer_pump(struct hth_trainer *t);
/* Not from a callback's stack that still uses the flight. */
void hth_trainer_pump_soon(struct hth_trainer *t);
void hth_trainer_fatal(struct hth_trainer *t, enum hth_err err);
/* In the middle of a change of the parameters, which nobody shall go on from: none are saved. */
void hth_trainer_spoilt(struct hth_trainer *t, enum hth_err err);
/* A flight has ended; its pass is reset and the slot is free. */
void hth_trainer_landed(struct hth_trainer *t, struct hth_flight *f);

/* update.c */
/* The flight's gradient is complete: apply it. */
void hth_trainer_apply(struct hth_flight *f);
/* One step of the optimiser on that gradient, in a job. Errors: E_NOT_FINITE and the kernels'. */
enum hth_err hth_step_trunk(struct hth_trainer *t, const float *grad, double *norm,
                            float *lr) HTH_MUST;
/* An update was made: counters, callback. */
void hth_count_update(struct hth_trainer *t, uint64_t samples, double grad_norm, float lr);
void hth_tell_update(struct hth_trainer *t);

/* average.c */
/* Those of hear.c come last: one for each of its looks. */
enum { HTH_TICKET_PARAMS, HTH_TICKET_GRADIENT, HTH_TICKET_HEARD };
enum hth_err hth_average_start(struct hth_trainer *t) HTH_MUST;
void hth_average_clear(struct hth_trainer *t);
/* After an update: offers the parameters when it is time. */
void hth_average_offer(struct hth_trainer *t);
uint64_t hth_share_schema(const struct hth_trainer *t, uint32_t ticket);

/* elastic.c */
/* Steps that a few can be ahead of all others: they have no quorum. */
#define HTH_BATCH_AHEAD_ALONE 8
/* As long a quorum is asked for: half a note's life, after which who died does not count either
 * (roster.h). Then whoever is there is the batch: of two halves that are parted for a moment one
 * waits. */
#define HTH_BATCH_PATIENCE_US (10 * HTH_US_PER_S)
/* A step is believed when a quarter of those that train are there. */
#define HTH_BATCH_AHEAD_ONE_IN 4
enum hth_err hth_batch_start(struct hth_trainer *t) HTH_MUST;
void hth_batch_clear(struct hth_trainer *t);
/* The job and the end of adding a flight's gradient to the sum. */
enum hth_err hth_batch_add(struct hth_trainer *t, const float *grad, double *norm) HTH_MUST;
void hth_batch_added(struct hth_trainer *t);
void hth_batch_pump(struct hth_trainer *t);
bool hth_batch_may_launch(const struct hth_trainer *t);
/* The trainer's own sums are void: it takes up another state. */
void hth_batch_reset(struct hth_trainer *t);
/* It goes along with the others' tries for a step, and has none of its own. */
void hth_batch_follow(struct hth_trainer *t);
/* The step was taken: gathers for the next one. */
void hth_batch_next(struct hth_trainer *t);
/* The number of the step is another, the parameters are the same: what was gathered counts. */
void hth_batch_renumber(struct hth_trainer *t);
/* What was taken counts again, and more is gathered. */
void hth_batch_put_back(struct hth_trainer *t);
/* Trainers that share the batch, this one included; nobody else could. */
uint32_t hth_batch_population(const struct hth_trainer *t);
bool hth_batch_is_alone(const struct hth_trainer *t);
/* The others have taken this step and another. */
bool hth_batch_is_passed(const struct hth_trainer *t);

/* elastic_step.c */
struct hth_avg_offer hth_batch_make_offer(const struct hth_trainer *t);
/* What was taken: averaged, or stepped on where nobody else is there. */
void hth_batch_offer(struct hth_trainer *t);
bool hth_batch_has_grid(const struct hth_trainer *t);
void hth_batch_result(struct hth_trainer *t, const struct hth_avg_result *result);
/* What those who have this average make of it; counted among the tries for the step. */
enum hth_verdict { HTH_VERDICT_STEP, HTH_VERDICT_REST, HTH_VERDICT_AGAIN };
enum hth_verdict hth_batch_judge(struct hth_trainer *t, const struct hth_avg_result *result);

/* hear.c */
/* While a state is fetched, or waits to be taken up: goes on with listening. */
void hth_hear_pump(struct hth_trainer *t);
void hth_hear_result(struct hth_trainer *t, const struct hth_avg_result *result);
/* Where a state of that step leads, with what was heard, the step is about to be heard, too. */
bool hth_hear_is_about_to(const struct hth_trainer *t, uint64_t step);
/* Older states are of no use. */
uint64_t hth_hear_since(const struct hth_trainer *t);
/* A state of that step is not, either: where it leads the others are not any more. */
bool hth_hear_is_late(const struct hth_trainer *t, uint64_t step);
/* After a state of `step` was taken up: in a job, what was heard of it and later on top; counted
 * then, on the loop. Errors: the kernels'. */
enum hth_err hth_hear_step(struct hth_trainer *t, uint64_t step) HTH_MUST;
void hth_hear_count(struct hth_trainer *t);
void hth_hear_clear(struct hth_trainer *t);

/* newcomer.c */
enum hth_err hth_newcomer_start(struct hth_trainer *t) HTH_MUST;
void hth_newcomer_stop(struct hth_trainer *t);
void hth_newcomer_clear(struct hth_trainer *t);
/* May train; else it goes on with looking or fetching. */
bool hth_newcomer_ready(struct hth_trainer *t);
/* The others are so many steps ahead: their state is fetched; where it comes too late and
 * parameters are averaged, it goes on at their step with what it has, approximately, and goes along
 * with them until it takes one. */
void hth_newcomer_catch_up(struct hth_trainer *t, uint64_t steps);
/* The roster has changed: other newcomers may need us. */
void hth_newcomer_nudge(struct hth_trainer *t);
/* Has taken a step. */
void hth_newcomer_stepped(struct hth_trainer *t);
/* An average of parameters has made it what the others are; or its parameters are the run's, for
 * there is nobody else. */
void hth_newcomer_is_whole(struct hth_trainer *t, bool alone);
/* Looks whether most others have other parameters by the same number of steps, and fetches theirs
 * then. True when that was begun. */
bool hth_newcomer_yield(struct hth_trainer *t);
/* With a roster: whose parameters these are, by the others' notes. */
void hth_newcomer_stands(const struct hth_trainer *t, struct hth_lineage_standing *out);

/* run_state.c */
size_t hth_run_state_bytes(const struct hth_trainer *t);
/* The donor asks: hth_state_donor_opts. */
void hth_run_state_want(void *trainer);
uint64_t hth_run_state_step(void *trainer);
/* Where the run stands by a state that was fetched. Errors: E_VERSION, E_BAD_SHAPE, E_RANGE, a
 * reader's; E_STALE (not of those who won the vote). */
enum hth_err hth_run_state_open(const struct hth_trainer *t, const struct hth_state_result *r,
                                struct hth_newcomer *out) HTH_MUST;
/* In a job: the fetched values into the model. Errors: E_NOT_FINITE, E_RANGE (squares below 0): the
 * model is as it was; the kernels'. */
enum hth_err hth_run_state_take_up(struct hth_trainer *t) HTH_MUST;

/* share.c */
/* What others should know of our progress. */
void hth_share_tell(struct hth_trainer *t);
/* With a roster: when our samples land. */
void hth_share_tell_landings(const struct hth_trainer *t);
/* Samples a second while gathering; 0: not known. */
double hth_share_rate(const struct hth_batch *batch);
void hth_share_stats(const struct hth_trainer *t, struct hth_share_stats *out);
/* Of an offer of parameters: their values, and the optimiser's states where those are averaged. */
uint32_t hth_share_parts(const struct hth_model *model, bool states);
/* Formats on the wire: `count` spans of one part, and one more for all other parts, the states:
 * they steer steps and stay fp32. NULL: all fp32. Free with hth_free. */
enum hth_err hth_share_spans(const struct hth_model *model, enum hth_quant_format format,
                             uint32_t parts, struct hth_avg_span **out, uint32_t *count) HTH_MUST;
/* How a round ended, for people who look at the roster (NULL: nobody). */
void hth_share_tell_last(struct hth_roster *roster, const struct hth_averager *averager,
                         const struct hth_avg_result *r, double distance, double norm);

/* flight.c */
void hth_flight_start(struct hth_flight *f);

/* eval.c */
bool hth_eval_is_due(const struct hth_trainer *t);
/* Samples of the evaluation that is under way, or begins before anything else does, that are not in
 * the air yet. */
uint64_t hth_eval_left(const struct hth_trainer *t);
void hth_eval_begin(struct hth_trainer *t);
void hth_eval_landed(struct hth_trainer *t, struct hth_flight *f, enum hth_err err);
bool hth_eval_next(struct hth_trainer *t, struct hth_flight *f);

/* checkpoint.c */
void hth_checkpoint_take(struct hth_trainer *t);
enum hth_err hth_checkpoint_load(struct hth_trainer *t) HTH_MUST;

#endif
