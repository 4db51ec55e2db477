/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer_int.h (internal): the trainer's parts.
 *
 *   trainer.c     life, which flight starts when, updates of the trunk, the averager
 *   flight.c      one micro-batch from data to gradient
 *   eval.c        evaluations
 *   checkpoint.c  state to and from a file
 *
 *   slots:  flight flight flight ..    each in one of: free, in a job, waiting for experts
 *   trunk:  queue of jobs that touch weights, one at a time
 *   io:     queue of jobs that touch the disk, one at a time
 */
#ifndef HTH_TRAINER_TRAINER_INT_H
#define HTH_TRAINER_TRAINER_INT_H

#include "trainer/pass.h"
#include "trainer/port.h"
#include "trainer/queue.h"
#include "trainer/trainer.h"

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
    uint64_t born;     /* updates when it started: for staleness */
    double grad_norm;  /* found when applied */
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
    uint64_t at; /* updates when the last one was taken */
    struct hth_work take, write;
    struct hth_blob *bytes;
    enum hth_err err;
};

struct hth_average {
    struct hth_averager averager; /* the caller's, or nobody */
    bool own;
    bool busy; /* a snapshot is being made or a difference applied */
    uint64_t at, samples_at;
    struct hth_work snapshot, apply;
    struct hth_blob *values;         /* the snapshot being made */
    struct hth_blob *offered, *mean; /* of the round being applied */
    double distance;
};

/* What the node's metrics show of a trainer. */
struct hth_train_metrics {
    struct hth_metric *updates, *samples, *dropped, *lost_rows, *loss, *staleness;
};

struct hth_trainer {
    struct hth_env *env;
    struct hth_trainer_opts opts;
    char *checkpoint_path;
    struct hth_model *model;
    struct hth_data *data, *eval_data;
    struct hth_data_info data_info, eval_info;
    struct hth_port *port;
    struct hth_queue trunk, io;
    struct hth_flight *flights;
    uint32_t in_air;   /* training and evaluation */
    uint32_t training; /* of them training */
    uint64_t launched; /* training flights ever: the position in the data */
    uint32_t drops;    /* in a row */
    struct hth_timer *pump_timer;
    struct hth_rng rng;
    bool started, stopping, finished, fatal;
    enum hth_err fatal_err;
    hth_fn *stop_done;
    void *stop_arg;
    struct hth_eval eval;
    uint64_t evaluated_at; /* updates of the last evaluation; UINT64_MAX: none */
    struct hth_ckpt ckpt;
    struct hth_average average;
    struct hth_train_stats stats;
    struct hth_train_metrics metrics;
    double stale_sum, stale_count; /* the histogram ends at 15, the mean does not */
    double rate_samples, rate_s;   /* decaying sums: their quotient is the rate */
    int64_t last_update_us, waiting_since_us;
    bool freed;
    int closing; /* queues that still have a job */
};

/* trainer.c */
void hth_trainer_pump(struct hth_trainer *t);
/* Not from a callback's stack that still uses the flight. */
void hth_trainer_pump_soon(struct hth_trainer *t);
void hth_trainer_fatal(struct hth_trainer *t, enum hth_err err);
/* A flight has ended; its pass is reset and the slot is free. */
void hth_trainer_landed(struct hth_trainer *t, struct hth_flight *f);

/* update.c */
/* The flight's gradient is complete: apply it. */
void hth_trainer_apply(struct hth_flight *f);
void hth_average_offer(struct hth_trainer *t);
void hth_average_round(void *arg, const struct hth_avg_result *result);

/* flight.c */
void hth_flight_start(struct hth_flight *f);

/* eval.c */
void hth_eval_begin(struct hth_trainer *t);
void hth_eval_landed(struct hth_trainer *t, struct hth_flight *f, enum hth_err err);
bool hth_eval_next(struct hth_trainer *t, struct hth_flight *f);

/* checkpoint.c */
void hth_checkpoint_take(struct hth_trainer *t);
enum hth_err hth_checkpoint_load(struct hth_trainer *t) HTH_MUST;

#endif
