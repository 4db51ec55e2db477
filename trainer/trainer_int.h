/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer_int.h (internal): the trainer's parts.
 *
 *   trainer.c     life, which flight starts when
 *   flight.c      one micro-batch from data to gradient
 *   way.c         ... its way through the layers and their experts
 *   starved.c     pauses while experts do not answer
 *   update.c      gradients: applied one by one, or summed for a shared batch
 *   average.c     parameters averaged in the background
 *   shared.c      shared batches on a roll call (collab/collab.h)
 *   settings.c    settings that all must share, and trainers that differ
 *   newcomer.c    fetches the state of a run that averages parameters, at the start
 *   trial.c       tries a fetched state on own data before it is taken
 *   run_state.c   the run's state as bytes: given to newcomers, adopted from donors
 *   share.c       what a trainer publishes about itself
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
#include "experts/ring.h"
#include "experts/unsaved.h"
#include "trainer/saved.h"
#include "trainer/pass.h"
#include "trainer/transport.h"
#include "trainer/queue.h"
#include "trainer/settings.h"
#include "trainer/trainer.h"
#include "trainer/way.h"

struct hth_collab;
struct hth_state_donor;
struct hth_state_fetch;
struct hth_state_result;

/* Flights in a row that were dropped before the trainer gives up. */
#define HTH_DROPS_MAX 100

struct hth_flight {
    struct hth_trainer *trainer;
    bool busy;
    bool eval;
    bool trial; /* with `eval`: of a fetched state, on training data */
    struct hth_pass *pass;
    struct hth_way way;
    uint64_t position;   /* of its first sample in the data */
    uint32_t valid;      /* samples of the data; the rest of the pass is padding */
    uint64_t started_at; /* updates when it started: for staleness */
    int64_t begun_us;
    double grad_norm; /* computed when the gradient is applied */
    float lr;
};

struct hth_eval {
    bool wanted, active;
    uint64_t next, total; /* samples */
    uint32_t in_air;
    struct hth_eval_result result;
    struct hth_eval_sum {
        double loss;
        uint64_t counted, correct;
    } sum[HTH_IDS_MAX];
};

struct hth_ckpt {
    bool wanted;      /* no flight starts until it is taken */
    bool busy;        /* being taken or written */
    uint64_t at;      /* updates when the last one was taken */
    uint64_t on_disk; /* updates in the file, once `known` */
    bool known;       /* this process has read or written the file */
    bool last;        /* taken since the trainer stopped; */
    bool last_ok;     /* it was written */
    struct hth_work take, write;
    struct hth_blob *bytes;
    struct hth_transport_files experts; /* local ones, of the same moment */
    uint64_t set_aside;                 /* updates of a longer file that stays; 0: there is none */
    char *dir;                          /* of the file, with `keep` */
    struct hth_saved kept;              /* jobs of the io queue */
    bool judge;                         /* an evaluation waits to be compared with the best */
    struct hth_eval_result judged;      /* it */
    struct hth_unsaved unsaved;
    struct hth_ring ring; /* of all its files together, so that their copies are of one moment */
    int64_t copy_us;      /* 0: this one without a copy */
    enum hth_err err;
};

/* A mean that is further from what a trainer brought than so many times the largest of its own
 * changes is a lie. A change counts for less with each one after it. */
#define HTH_FAR_CHANGES 8.0f
#define HTH_FAR_FADES   0.97f

/* Averaging of the parameters in the background. */
struct hth_average {
    struct hth_averager averager; /* the caller's, or one that finds nobody */
    bool busy;                    /* a snapshot is being made or a difference applied */
    bool out;                     /* an offer is with the averager */
    bool discard; /* the parameters that it offers have been replaced: drop its result */
    uint64_t at;
    /* Samples at the last offer, whether or not it led to an average. The samples since then are
     * the weight of the next offer. If they were counted from the last average, a trainer that was
     * alone for an hour would outweigh a run, whose samples are behind each average already. */
    uint64_t samples_at;
    uint32_t parts; /* buffers in an offer: values, and optimiser states if averaged */
    struct hth_work snapshot, apply;
    struct hth_blob *values; /* the snapshot that is made, or whose round is applied */
    struct hth_blob *mean;   /* of that round */
    double distance, norm;
    /* From these values the own change is measured: the mean that was taken last, or the first
     * snapshot. NULL: none yet. */
    struct hth_blob *since;
    double change[3]; /* of each buffer: the largest, faded */
    uint32_t refused_in_row, refused_max;
    bool refused;               /* the mean is too far off: by the job */
    struct hth_avg_span *spans; /* wire formats of the flat parameters; NULL: fp32 */
    uint32_t span_count;
};

/* The batch that all trainers gather together (shared.c). */
struct hth_batch {
    bool on;
    float *sum;       /* of gradients times samples; flat */
    uint64_t samples; /* in the sum */
    /* How far from each HTH_AVG_BLOCK_FLOATS of the gradient a mean may lie. NULL: anywhere. */
    float *far;
    struct hth_work take, step;
    struct hth_blob *taking; /* the mean that is being made */
    struct hth_blob *mean;   /* this trainer's, of `taken` samples */
    struct hth_blob *common; /* of all trainers */
    struct hth_blob *adopts; /* a state that is taken up once flights have landed */
    uint64_t taken;
    uint64_t ahead; /* samples that were taken last */
    double grad_norm;
    float lr;
    /* speed while gathering: moving average of seconds per sample, bias corrected */
    double s_per_sample, s_weight;
    int64_t landed_us; /* 0: gathering was interrupted */
};

enum hth_boot {
    HTH_BOOT_READY, /* trains; also when alone */
    HTH_BOOT_LOOK,
    HTH_BOOT_FETCH,
    HTH_BOOT_APPLY
};

typedef void hth_run_state_copied_fn(struct hth_trainer *t, enum hth_err err,
                                     struct hth_blob *copy);
typedef void hth_run_state_adopted_fn(struct hth_trainer *t, enum hth_err err);

/* State transfer: fetching the run's state from donors, and giving it to newcomers. */
struct hth_newcomer {
    enum hth_boot boot;
    bool goes_on; /* resumed a checkpoint that was written under the same settings */
    int64_t since_us, alone_since_us;
    int64_t moved_us; /* when it began to fetch, or its last state chunk arrived */
    const char *news; /* why there is no fetch */
    uint32_t parts_done;
    struct hth_state_fetch *fetch;
    struct hth_state_donor *donor;
    struct hth_timer *timer;
    struct hth_work apply, give;
    struct hth_blob *values;        /* the fetched state */
    struct hth_state_peers said_by; /* the peers whose it is */
    enum hth_err no_use;            /* why the last fetched state could not be used */
    uint64_t updates, samples, steps;
    struct hth_blob *given; /* a copy of the state that is being made */
    hth_run_state_copied_fn *copied;
    hth_run_state_adopted_fn *adopted;
};

/* A fetched state on trial: `newcomer` has it. */
struct hth_trial {
    bool on;     /* flights may start */
    bool is_own; /* they are of the own parameters */
    uint32_t next, in_air, landed;
    double sum, own_loss; /* of the landed ones; mean */
    struct hth_blob *own; /* the own state */
    uint64_t own_steps;
    void (*done)(struct hth_trainer *t, enum hth_err err); /* NULL: none is under way */
};

#define HTH_STARVED_FLIGHTS 20u

/* Rows of the last micro-batches, of all layers, and those without an expert: rings. */
struct hth_starved {
    uint64_t empty[HTH_STARVED_FLIGHTS], rows[HTH_STARVED_FLIGHTS];
    uint64_t flights;
    int64_t wait_us, try_us; /* while it pauses: between two tries, and the next one */
};

/* The trainer's part of the node's metrics. */
struct hth_train_metrics {
    struct hth_metric *updates, *samples, *dropped, *lost_rows, *bad, *loss, *staleness,
        *means_refused;
};

/* Events per second over about the last ten seconds: two sums that decay alike. */
struct hth_rate {
    double count, s;
    int64_t last_us;
};

struct hth_trainer {
    struct hth_env *env;
    struct hth_trainer_opts opts;
    char *checkpoint_path, *experts_dir, *run;
    struct hth_model *model;
    struct hth_data *data, *eval_data;
    struct hth_data_info data_info, eval_info;
    struct hth_transport *transport;
    struct hth_queue trunk, io;
    struct hth_flight *flights;
    uint32_t in_air;   /* training and evaluation */
    uint32_t training; /* of them training */
    uint64_t launched; /* training flights ever: the position in the data */
    uint32_t drops;    /* dropped in a row */
    struct hth_timer *pump_timer;
    struct hth_rng rng;
    bool started, stopping, finished, fatal;
    bool spoilt; /* fatal, and the parameters may be the cause or be changed in part */
    enum hth_err fatal_err;
    hth_fn *stop_done;
    void *stop_arg;
    struct hth_eval eval;
    uint64_t evaluated_at; /* updates of the last evaluation; UINT64_MAX: none */
    struct hth_ckpt ckpt;
    struct hth_average average;
    struct hth_batch batch;
    struct hth_collab *collab; /* NULL: averages parameters, or nothing */
    struct hth_newcomer newcomer;
    struct hth_trial trial;
    struct hth_starved starved;
    struct hth_settings settings;
    int64_t started_us;
    struct hth_train_stats stats;
    struct hth_train_metrics metrics;
    double stale_sum, stale_count; /* of all updates; the histogram's last bucket is open */
    struct hth_rate samples_rate;  /* of this trainer's flights */
    struct hth_rate updates_rate;
    int64_t waiting_since_us;
    bool freed;
    int closing; /* queues that still have a job */
};

/* trainer.c */
void hth_trainer_pump(struct hth_trainer *t);
/* Pumps from a timer, for callers that still use a flight. */
void hth_trainer_pump_soon(struct hth_trainer *t);
void hth_trainer_fatal(struct hth_trainer *t, enum hth_err err);
/* Ends training after an error in the middle of a change of the parameters. They are not saved, as
 * no run should continue from them. */
void hth_trainer_spoilt(struct hth_trainer *t, enum hth_err err);
/* Ends a flight: resets its pass and frees its slot. */
void hth_trainer_landed(struct hth_trainer *t, struct hth_flight *f);

/* update.c */
/* Applies a flight's complete gradient. */
void hth_trainer_apply(struct hth_flight *f);
/* One step of the optimiser on that gradient, in a job. Errors: E_NOT_FINITE and the kernels'. */
enum hth_err hth_step_trunk(struct hth_trainer *t, const float *grad, double *norm,
                            float *lr) HTH_MUST;
/* After an update: counters. */
void hth_count_update(struct hth_trainer *t, uint64_t samples, double grad_norm, float lr);
void hth_tell_update(struct hth_trainer *t);

/* average.c */
enum hth_err hth_average_start(struct hth_trainer *t) HTH_MUST;
void hth_average_clear(struct hth_trainer *t);
/* The parameters were replaced: what is under way does not count. */
void hth_average_renew(struct hth_trainer *t);
/* After an update: offers the parameters when it is time. */
void hth_average_offer(struct hth_trainer *t);

/* shared.c: in mode BATCH. */
/* Adds a flight's gradient to the sum, in a job; and the loop's part after that job. */
enum hth_err hth_batch_add(struct hth_trainer *t, const float *grad, double *norm) HTH_MUST;
void hth_batch_added(struct hth_trainer *t);
void hth_batch_clear(struct hth_trainer *t);
enum hth_err hth_shared_start(struct hth_trainer *t) HTH_MUST;
void hth_shared_begin(struct hth_trainer *t);
/* Whether it holds a head of the run. */
bool hth_shared_is_ready(const struct hth_trainer *t);
bool hth_shared_may_launch(const struct hth_trainer *t);
/* A flight started or landed: says what this trainer brings. */
void hth_shared_tell(struct hth_trainer *t);
void hth_shared_pump(struct hth_trainer *t);
/* At the end, after the last checkpoint: keeps the vote for the next process. */
void hth_shared_save(struct hth_trainer *t);

/* newcomer.c */
enum hth_err hth_newcomer_start(struct hth_trainer *t) HTH_MUST;
void hth_newcomer_stop(struct hth_trainer *t);
void hth_newcomer_clear(struct hth_trainer *t);
/* Whether it may train; if not, continues looking for trainers or fetching. */
bool hth_newcomer_ready(struct hth_trainer *t);
/* Looks again where the run is, and fetches its state if it is far ahead. */
void hth_newcomer_again(struct hth_trainer *t);
/* Whether all others that train under this name have other settings, and to begin would be a second
 * run beside theirs. */
bool hth_newcomer_is_another_run(const struct hth_trainer *t);
/* After a change of the roster: other newcomers may need this trainer's state. */
void hth_newcomer_nudge(struct hth_trainer *t);
/* trial.c */
/* Tries the state that `newcomer` has (values, updates, steps), which is used up. Calls done once:
 * HTH_OK, it is taken up; E_RANGE or E_NOT_FINITE, it is of no use, and the parameters are as they
 * were. Not while a flight is in the air. */
void hth_trial_begin(struct hth_trainer *t, void (*done)(struct hth_trainer *t, enum hth_err err));
bool hth_trial_next(struct hth_trainer *t, struct hth_flight *f);
void hth_trial_landed(struct hth_trainer *t, struct hth_flight *f, enum hth_err err);

/* run_state.c */
static inline size_t hth_trunk_floats(const struct hth_trainer *t)
{
    return hth_params_flat_len(t->model->params);
}
/* The parameters' values and the optimiser's states, in the order of states and averages. */
extern const enum hth_part hth_run_part[3];
/* Copies the first so many of them, in a job. */
enum hth_err hth_run_state_export(const struct hth_trainer *t, uint32_t parts,
                                  struct hth_blob *out) HTH_MUST;
size_t hth_run_state_bytes(const struct hth_trainer *t);
/* Copies the state in a job, one at a time: `copied` borrows it. Where there is no memory it is
 * called at once, with the error. */
void hth_run_state_copy(struct hth_trainer *t, hth_run_state_copied_fn *copied);
/* The position of the run that a copy of the present state has. */
#define HTH_RUN_STATE_META 40
void hth_run_state_meta(const struct hth_trainer *t, uint8_t out[HTH_RUN_STATE_META]);
/* Callbacks of the donor (hth_state_donor_opts). */
void hth_run_state_want(void *trainer);
uint64_t hth_run_state_step(void *trainer);
/* Reads the position of the run from a state's meta. Errors: E_VERSION, E_BAD_SHAPE, E_RANGE, a
 * reader's. */
enum hth_err hth_run_state_open(const struct hth_trainer *t, const uint8_t *meta, size_t len,
                                struct hth_newcomer *out) HTH_MUST;
/* Puts `newcomer.values` into the model, in a job. E_NOT_FINITE and E_RANGE (squares below 0) leave
 * the model as it was; after another error the trainer ends. */
void hth_run_state_adopt(struct hth_trainer *t, hth_run_state_adopted_fn *adopted);
/* It stays: the trainer goes on from its position. */
void hth_run_state_taken(struct hth_trainer *t);

/* share.c */
/* Publishes the progress of a trainer that steps by itself in the roster. */
void hth_share_tell(struct hth_trainer *t);
void hth_share_stats(const struct hth_trainer *t, struct hth_share_stats *out);
/* Number of buffers in an offer of parameters: the values, and the optimiser's states if
 * `states`. */
uint32_t hth_share_parts(const struct hth_model *model, bool states);
/* Wire formats of the values, and of the states, which steer steps and stay fp32. NULL, and a count
 * of 0: all fp32. Free with hth_free. */
enum hth_err hth_share_spans(const struct hth_model *model, enum hth_quant_format format,
                             uint32_t parts, struct hth_avg_span **out, uint32_t *count) HTH_MUST;
/* Options of a collaboration, or of its helper, on such averages; all but those of one process. */
struct hth_collab_opts hth_share_collab(const struct hth_model *model,
                                        const struct hth_settings *settings,
                                        const struct hth_share_opts *share,
                                        const struct hth_avg_span *spans, uint32_t span_count);
/* Publishes in the roster, for people, how a round ended, how far this peer was from its average,
 * and the norm of that. The roster may be NULL. */
void hth_share_tell_round(struct hth_roster *roster, const struct hth_avg_round_info *round,
                          double distance, double norm);

/* starved.c */
/* A training flight's rows have come through all layers. False: it may not be used. */
bool hth_starved_note(struct hth_trainer *t, uint64_t empty, uint64_t rows);
/* Whether no training flight may start now; else, in a pause, one may. */
bool hth_starved_waits(struct hth_trainer *t);

/* flight.c */
void hth_flight_start(struct hth_flight *f);

/* eval.c */
bool hth_eval_is_due(const struct hth_trainer *t);
/* Samples not yet in the air of an evaluation that is under way or starts next. */
uint64_t hth_eval_left(const struct hth_trainer *t);
void hth_eval_begin(struct hth_trainer *t);
void hth_eval_landed(struct hth_trainer *t, struct hth_flight *f, enum hth_err err);
bool hth_eval_next(struct hth_trainer *t, struct hth_flight *f);

/* checkpoint.c */
void hth_checkpoint_take(struct hth_trainer *t);
/* Tells which kept checkpoint was evaluated. */
void hth_checkpoint_judge(struct hth_trainer *t, const struct hth_eval_result *result);
enum hth_err hth_checkpoint_load(struct hth_trainer *t) HTH_MUST;

#endif
