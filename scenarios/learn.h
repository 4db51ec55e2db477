/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn.h: what delays, lost calls, crashing hosts and slow hosts do to learning.
 *
 * A swarm (swarm.h) learns, with real arithmetic, on data that the caller brings; every message is
 * delayed by an exponential time, half of the given mean each way. The faults:
 *
 *   lost      a request is never answered ("experts.lost"); the trainer's deadline ends it
 *   refused   a request is refused and retried ("rpc.busy")
 *   down      hosts are up and down for exponential times, so that this share of them is down
 *   replaced  hosts crash so often a minute, and are back a second later, with the experts of their
 *             last checkpoint, or (`blank`) with new ones
 *   slow      a share of the hosts computes and sends at a tenth of the speed
 *
 * Half of the crashes are silent. Deadlines, retries, breakers and the grace timer are those of
 * production, and so is everything else that decides. During the run the trainer evaluates its
 * model on the swarm with its faults. When the last micro-batch is in the air all faults end (slow
 * hosts stay slow, which costs the last evaluation time and no answers), and the last evaluation
 * measures what the model has learned.
 *
 * `experts` is the number in each layer, a square; each row asks the best `k` of them. With 1 it is
 * the dense model of equal work, with as many weights as k experts: one expert of twice the width
 * in both directions for k = 4. The caller then sets `d`.
 *
 * With one trainer its `flights` micro-batches in the air are what Learning@home's emulator calls
 * trainers: threads that share one trunk and apply stale gradients to it. With several, each has a
 * trunk of its own that is averaged with the others' in the background (trainer/share.h, LOCAL).
 *
 * A report is a pure function of the options and of the back end's arithmetic: `ref` gives the same
 * everywhere, `packed` on every machine with the same instructions.
 */
#ifndef HTH_SCENARIOS_LEARN_H
#define HTH_SCENARIOS_LEARN_H

#include "core/base.h"
#include "sim/world.h"

struct hth_backend;

#define HTH_LEARN_EVALS_MAX    32
#define HTH_LEARN_STALE_MAX    20 /* buckets, each of HTH_LEARN_STALE_WIDTH updates */
#define HTH_LEARN_STALE_WIDTH  8
#define HTH_LEARN_TRAINERS_MAX 64

struct hth_learn_file {
    const void *data;
    size_t len;
};
/* idx files without compression, or a text whose last tenth is for evaluation. Borrowed. */
struct hth_learn_data {
    struct hth_learn_file images, labels, test_images, test_labels;
    uint32_t features, classes;
    struct hth_learn_file text;
};

struct hth_learn_opts {
    uint64_t seed;
    const struct hth_backend *backend; /* NULL: ref */
    const struct hth_learn_data *data;
    bool lm; /* true: learn the text, in windows of `seq` bytes */
    uint32_t seq;
    uint32_t d, layers, experts, k, hosts;
    uint32_t trainers, flights; /* flights of each */
    uint32_t micro_batch;
    uint32_t updates; /* of all trainers together */
    uint32_t average_every;
    float lr, expert_lr;
    uint64_t step_rows;
    uint32_t evals; /* number of evaluations, the last included */
    uint32_t eval_samples, eval_samples_last;
    double delay_ms;
    double lost, refused, down, replaced, slow;
    bool blank;
    int64_t down_us;        /* mean downtime */
    int64_t grace_us;       /* 0: the client's own */
    int64_t limit_us;       /* of virtual time */
    hth_trace_fn *on_event; /* NULL: none */
    void *arg;              /* of on_event */
};
#define HTH_LEARN_OPTS_INIT                                                                        \
    {                                                                                              \
        .seed = 1, .seq = 32, .d = 32, .layers = 4, .experts = 16, .k = 4, .hosts = 8,             \
        .trainers = 1, .flights = 16, .micro_batch = 16, .updates = 2500, .average_every = 5,      \
        .lr = 3e-4f, .expert_lr = 1e-3f, .step_rows = 16, .evals = 8, .eval_samples = 1024,        \
        .eval_samples_last = 1024, .down_us = 10 * HTH_US_PER_S,                                   \
        .limit_us = INT64_C(1000000) * HTH_US_PER_S                                                \
    }

struct hth_learn_eval {
    double updates, samples; /* of all trainers */
    double at_s;
    double loss, accuracy;
};

struct hth_learn_report {
    uint32_t evals;
    struct hth_learn_eval eval[HTH_LEARN_EVALS_MAX]; /* the last one without faults */
    /* Of training alone, without the requests of evaluations and the time of the flights they
     * took: */
    double samples_per_s; /* in virtual time, until the faults end */
    double answered;      /* share of the (row, expert) pairs asked in forward that were answered */
    double learned;       /* ... and whose gradient the expert applied */
    double short_rows;    /* share of the (row, layer) pairs with fewer than k answers */
    double empty_rows;    /* ... without any answer */
    double dropped;       /* share of the samples whose micro-batch made no update */
    double staleness;     /* mean, in updates of the same trunk */
    double stale[HTH_LEARN_STALE_MAX]; /* shares; the last bucket has no end */
    double used;    /* entropy of the experts' rows / ln(experts), mean over layers */
    double busiest; /* rows of the busiest expert / mean, mean over layers */
    double virtual_s;
    uint64_t deaths;
    uint64_t hash;
};

/* Run one seed. Errors: E_CONFIG (numbers that make no run), E_TIMEOUT (not done within limit_us),
 * those of the parts. */
enum hth_err hth_sim_learn(const struct hth_learn_opts *opts,
                           struct hth_learn_report *out) HTH_MUST;

#endif
