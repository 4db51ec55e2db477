/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * share.h: how the trunks of several trainers stay one model.
 *
 * Two ways, chosen by the run:
 *
 *   LOCAL  every trainer steps by itself; every `every` updates a copy of its parameters is
 *          averaged in the background, and average - copy is added when the round has ended. No
 *          trainer waits, so it suits many small steps on machines of different speed: a round that
 *          fails costs only a little drift.
 *   BATCH  all trainers together gather one batch of `target` samples. Each sums its gradients and
 *          publishes how many samples it has; when the sum over the roster reaches the target, the
 *          gradients are averaged, weighted by samples, and all take the same step:
 *
 *            GATHER --all have enough--> TAKE --> AVERAGE --quorum--> STEP --> GATHER
 *                                                    |--no, or no answer--> WAIT, AVERAGE again
 *                                                    '--short of target--> GATHER
 *
 *          "All have enough" is an estimate: roster records say how many samples land at once and
 *          when the next ones do, and no trainer starts a flight that would land after the batch is
 *          full. The round counts the samples that its group really has. If they are short of the
 *          target, each trainer gathers its part of the rest and they average again, until they
 *          have the target or no trainer has more. The step is the one that a single machine with
 *          that batch would take, whichever trainers take part (DeDLOC, Diskin et al. 2021). With
 *          `delayed` the trainers gather the next batch while this one is averaged, on parameters
 *          that are one step old. Matchmaking begins ahead of the estimated time. If the average
 *          has the values of no more than `quorum` of the known trainers, nobody steps: they
 *          average again, with more samples after three attempts. After ten seconds of this the
 *          trainers that answer are the batch, because the others are known by their records only.
 *          A trainer without others steps alone.
 *
 * A newcomer first looks for trainers. If others train, it fetches parameters, optimiser state and
 * position from the freshest of them (averaging/state.h) and waits as long as that takes, because
 * to begin anew would be a second run. If all of them have other settings (settings.h), to begin
 * would be a second run, too: it ends with E_OTHER_SETTINGS, unless it continues from a checkpoint
 * that was written under its settings. `bootstrap` overrides both. If nobody trains, it begins; of
 * trainers that return together the one with the latest checkpoint is the run. A donor whose state
 * can't be used becomes a suspect and is not counted; if the state is of another version of this
 * program, and no other donor has one, the newcomer ends with E_VERSION.
 *
 * In a BATCH run a trainer also fetches the state if it fell behind, if it returns with a later
 * checkpoint than two and all others are at, or if its parameters differ from those of most others
 * (lineage.h). Meanwhile it receives the others' averages, and takes those steps on top of the
 * state. If states still arrive too late several times, it takes part with the last one,
 * approximately, until an average of parameters gives it those of the others. If the run averages
 * no parameters, it continues fetching and says so. All other trainers with state are donors.
 *
 * Private to the loop thread; the trainer owns all of it.
 */
/* clang-format on */
#ifndef HTH_TRAINER_SHARE_H
#define HTH_TRAINER_SHARE_H

#include "averaging/grid.h"
#include "core/env.h"
#include "kernels/quant.h"

struct hth_dht;
struct hth_reducer;
struct hth_roster;

enum hth_share_mode { HTH_SHARE_LOCAL, HTH_SHARE_BATCH };

/* Updates that trainers in mode LOCAL may differ by: a newcomer at most that far behind begins with
 * its own state, and the next averages bring it to the others. */
#define HTH_SHARE_LAG_LOCAL 64

struct hth_share_opts {
    enum hth_share_mode mode;
    struct hth_roster *roster; /* NULL: alone, as it finds no other trainer */
    struct hth_dht *dht;       /* with a roster; and the trainer's rpc */
    const char *network;
    struct hth_addr addr; /* newcomers fetch the state here; family 0: over open connections */
    double bandwidth;     /* bit/s that it can send; 0: not known, or a client */
    uint64_t every;       /* LOCAL: updates between rounds; BATCH: steps between averages of the
                           * parameters, against drift; 0: never */
    bool states;          /* the optimiser's states are averaged with the parameters */
    uint64_t meeting;     /* hash of the options of grids, groups and shares (settings.h) */
    enum hth_quant_format format; /* on the wire, of matrices; 0: fp32 */
    double clip;                  /* as of the reducer */
    int64_t timeout_us;           /* of an offer; 0: the averager's default */
    /* BATCH */
    uint64_t target;           /* samples of one step, of all trainers together */
    uint64_t step_samples_max; /* of this trainer in one step; 0: no bound */
    double quorum;             /* 0..1: values of more than this part of the trainers, or of all */
    bool delayed;
    struct hth_reducer *reducer; /* with it trainers meet by roll call (collab/collab.h), and */
    struct hth_avg_shape shape;  /* average on this grid; dims 0: by their number */
    bool strict; /* by roll call: a part without a quorum waits (averaging.majority) */
    int64_t prepare_us; /* matchmaking begins that long ahead; 0: not ahead */
    /* newcomers */
    bool bootstrap;
    int64_t look_us; /* how long it looks for others at the start */
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
    HTH_SHARE_AGAIN, /* there was no average: waits to offer again */
};
/* "training". Never NULL. */
const char *hth_share_phase_name(enum hth_share_phase phase);

struct hth_share_stats {
    enum hth_share_phase phase;
    uint64_t gathered;     /* BATCH: samples of this trainer towards the next step */
    double known;          /* ... of all, as estimated */
    int64_t eta_us;        /* until all have enough; INT64_MAX: no trainer computes */
    uint64_t steps_shared; /* BATCH: steps taken on an average */
    uint64_t steps_alone;  /* ... on its own gradient, without other trainers */
    uint64_t below_quorum; /* averages without a quorum, not stepped on */
    uint64_t short_of;     /* ... because they were short of the target, and more was gathered */
    uint64_t tries_failed; /* offers that ended without an average */
    uint64_t catch_ups;    /* states fetched, the first one included */
    uint64_t heard;        /* BATCH: averages of the others kept while a state was fetched */
    uint64_t yields;       /* of the catch-ups: most others had other parameters */
    uint64_t overtaken;    /* times it continued without a state because that came too late */
    bool approximate;      /* ... and it has averaged no parameters since */
    uint64_t lost_samples; /* gathered in vain, as a state was adopted */
    uint64_t state_bytes;  /* fetched */
    uint64_t given_bytes;  /* of states given to newcomers */
    uint32_t parts, parts_done; /* chunks of the state that is fetched; 0: none, or not known yet */
    int64_t state_us;           /* duration of the last fetch */
    int64_t first_step_us;      /* from the start to the first update; 0: not yet */
    double weight;              /* samples behind the last step */
    struct hth_avg_shape grid;  /* by roll call: of the last round; dims 0: there was none */
    double distance;            /* norm of (average - own) in the last round of parameters */
    double norm;                /* of that average */
    int64_t averaged_us;        /* how long averaging took for the last step */
    /* BATCH: the latest milestone that others publish, too (lineage.h), or published at the last
     * step; 0: none. The digest of this trainer there, the number of others with the same digest,
     * and the number of the rest that agree on another one. */
    uint64_t milestone_step, milestone_digest;
    uint32_t alike, unlike;
    char news[200]; /* about fetching the state, for people */
};

#endif
