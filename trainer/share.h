/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * share.h: how the trunks of several trainers stay one model.
 *
 * Two ways, chosen by the run:
 *
 *   LOCAL  every trainer steps by itself; every `every` updates a copy of its parameters is
 *          averaged in the background, and average - copy is added when the round has ended. Nobody
 *          waits, so it suits many small steps on machines of different speed: a round that fails
 *          costs nothing but a little drift.
 *   BATCH  one batch of `target` samples is gathered by all together. Each trainer sums its
 *          gradients and says how far it is; when the sum over the roster reaches the target, the
 *          gradients are averaged, weighted by samples, and everybody takes the same step:
 *
 *            GATHER --all have enough--> TAKE --> AVERAGE --quorum--> STEP --> GATHER
 *                                                    |--no, or no answer--> WAIT, AVERAGE again
 *                                                    '--short of target--> GATHER
 *
 *          That all have enough is an estimate: notes say how many samples land at once and when
 *          the next do, and nobody begins what would land after the batch is full. What the group
 *          really brought is counted: when that is short of the target, everybody gathers its part
 *          of the rest and they average again, until they have it or nobody brings more. It is what
 *          one machine with that batch would do, whoever is there (DeDLOC, Diskin et al. 2021).
 *          With `delayed` the next batch is gathered while this one is averaged, on parameters that
 *          are one step old. The group is looked for ahead, from the estimated time. Not more than
 *          `quorum` of the trainers known: no step, again, with more samples after three times; for
 *          ten seconds, for they are known by words only: then whoever is there is the batch.
 *          Nobody else there: alone.
 *
 * A newcomer looks around first. Where others train, it fetches parameters, optimiser state and
 * position from the freshest of them (averaging/state.h) and waits as long as that takes, for a
 * second beginning would be a second run. Where all that train have other settings (settings.h), it
 * ends with E_OTHER_SETTINGS, unless it goes on with a checkpoint that was written under its own
 * settings. `bootstrap` overrides both. Where nobody trains, it begins; of those
 * who come back together the latest checkpoint is the run. Whose state is of no use is doubted and
 * does not count; if its bytes are of another version of this program, and nobody else has one, it
 * ends with E_VERSION.
 * In a BATCH run, who fell behind does the same, who comes back with a later checkpoint than two
 * and all others are at, and who has other parameters than most (lineage.h); meanwhile it hears the
 * others' averages, and takes those steps on top. To whom these, too, come too late again and
 * again, that one takes part with the last state, approximately, until an average of parameters
 * makes it what the others are; where there are none it goes on fetching, and says so. Everybody
 * else with state hands it out.
 *
 * Private to the loop thread; the trainer owns all of it.
 */
/* clang-format on */
#ifndef HTH_TRAINER_SHARE_H
#define HTH_TRAINER_SHARE_H

#include "core/env.h"
#include "kernels/quant.h"

struct hth_dht;
struct hth_roster;

enum hth_share_mode { HTH_SHARE_LOCAL, HTH_SHARE_BATCH };

/* Updates that trainers which step by themselves may differ by: a newcomer that far behind begins
 * as it is, and the next averages bring it to the others. */
#define HTH_SHARE_LAG_LOCAL 64

struct hth_share_opts {
    enum hth_share_mode mode;
    struct hth_roster *roster; /* NULL: alone, as nobody can be found */
    struct hth_dht *dht;       /* with a roster; and the trainer's rpc */
    const char *network;
    struct hth_addr addr; /* where the state is handed out; family 0: only over own connections */
    uint64_t every;       /* LOCAL: updates between rounds; BATCH: steps between averages of the
                           * parameters, against drift; 0: never */
    bool states;          /* the optimiser's states are averaged with the parameters */
    uint64_t meeting; /* a hash of what roster and averager were told of grids, groups and shares,
                       * on which all must agree (settings.h); their maker's */
    enum hth_quant_format format; /* on the wire, of matrices; 0: fp32 */
    int64_t timeout_us;           /* of an offer; 0: the averager's choice */
    /* BATCH */
    uint64_t target;           /* samples of one step, of all trainers together */
    uint64_t step_samples_max; /* that this one brings to a step; 0: no bound */
    double quorum; /* 0..1, of the trainers: the values of more, or of all, must be averaged */
    bool delayed;
    int64_t prepare_us; /* the group is looked for that long ahead; 0: not ahead */
    /* newcomers */
    bool bootstrap;
    int64_t look_us; /* for others, at the start */
};
#define HTH_SHARE_OPTS_INIT                                                                        \
    {                                                                                              \
        .every = 1, .target = 1024, .quorum = 0.5, .prepare_us = 1500 * HTH_US_PER_MS,             \
        .look_us = 2500 * HTH_US_PER_MS                                                            \
    }

enum hth_share_phase {
    HTH_SHARE_ALONE,    /* there is no roster */
    HTH_SHARE_LOOKING,  /* for others, at the start */
    HTH_SHARE_FETCHING, /* the state */
    HTH_SHARE_TRAINING, /* LOCAL; or BATCH: gathering */
    HTH_SHARE_AVERAGING,
    HTH_SHARE_STEPPING,
    HTH_SHARE_AGAIN, /* the average did not come about: waits to offer again */
};
/* "training". Never NULL. */
const char *hth_share_phase_name(enum hth_share_phase phase);

struct hth_share_stats {
    enum hth_share_phase phase;
    uint64_t gathered;     /* BATCH: samples of this trainer towards the next step */
    double known;          /* ... of all, as estimated */
    int64_t eta_us;        /* until they have enough; INT64_MAX: nobody computes */
    uint64_t steps_shared; /* BATCH: steps taken on an average */
    uint64_t steps_alone;  /* ... on our own gradients, nobody else being there */
    uint64_t below_quorum; /* averages without a quorum, not used as they were */
    uint64_t short_of;     /* ... because they were short of the target, and more was gathered */
    uint64_t tries_failed; /* offers that ended without an average */
    uint64_t catch_ups;    /* states fetched, the first one included */
    uint64_t heard;        /* BATCH: averages of the others kept while a state was fetched */
    uint64_t yields;       /* of them because most others had other parameters */
    uint64_t overtaken;    /* times it went on without the state of its step, which came too late */
    bool approximate;      /* ... and has not averaged parameters since */
    uint64_t state_bytes;  /* fetched */
    uint64_t given_bytes;  /* of states handed out */
    uint32_t parts, parts_done; /* of the state that is being fetched; 0: none, or not known yet */
    int64_t state_us;           /* that the last one took */
    int64_t first_step_us;      /* from the start to the first update; 0: not yet */
    double weight;              /* samples behind the last step */
    double distance;            /* norm of (average - ours) in the last round of parameters */
    double norm;                /* of that average */
    int64_t averaged_us;        /* how long averaging took for the last step */
    /* BATCH: the latest milestone that others show, too (lineage.h), or showed when the last step
     * was taken; 0: none. Ours there, how many others show the same, and how many of the rest agree
     * on another. */
    uint64_t milestone_step, milestone_digest;
    uint32_t alike, unlike;
    char news[200]; /* about fetching the state, for people */
};

#endif
