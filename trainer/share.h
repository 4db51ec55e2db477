/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.h: how the trunks of several trainers stay one model.
 *
 * Two ways, chosen by the run:
 *
 *   LOCAL  every trainer steps by itself; every `every` updates a copy of its parameters is
 *          averaged in the background, and average - copy is added when the round has ended. No
 *          trainer waits, so it suits many small steps on machines of different speed: a round that
 *          fails costs only a little drift.
 *   BATCH  all trainers together gather one batch of `target` samples, average their gradients,
 *          weighted by samples, and take the same step (collab/collab.h). The step is the one that
 *          a single machine with that batch would take, whichever trainers take part (DeDLOC,
 *          Diskin et al. 2021). With `delayed` the trainers gather the next batch while this one is
 *          averaged, on parameters that are one step old.
 *
 * A newcomer first looks for trainers. If others train, it fetches parameters, optimiser state and
 * position from them (averaging/state.h) and waits as long as that takes, because to begin anew
 * would be a second run. If all of them have other settings (settings.h), to begin would be a
 * second run, too: it ends with E_OTHER_SETTINGS, unless it continues from a checkpoint that was
 * written under its settings. `bootstrap` overrides both. If nobody trains, it begins; of trainers
 * that return together the one with the latest checkpoint is the run. If all states that it finds
 * are of another version of this program, it ends with E_VERSION; with BATCH it leaves their givers
 * aside, who may lie, and ends when the run's links are of a protocol that it does not speak. None
 * of this ends it where strangers take part: it says so, and begins.
 *
 * Private to the loop thread; the trainer owns all of it.
 */
#ifndef HTH_TRAINER_SHARE_H
#define HTH_TRAINER_SHARE_H

#include "averaging/grid.h"
#include "collab/collab.h"
#include "core/env.h"
#include "core/ident.h"
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
    struct hth_roster *roster; /* of who takes part; LOCAL: NULL: alone, as it finds nobody */
    struct hth_dht *dht;       /* with a roster; and the trainer's rpc */
    const char *network;
    struct hth_addr addr; /* newcomers fetch the state here; family 0: over open connections */
    double bandwidth;     /* bit/s that it can send; 0: not known, or a client */
    uint64_t every;       /* LOCAL: updates between rounds; 0: never */
    bool states;          /* LOCAL: the optimiser's states are averaged with the parameters */
    uint64_t meeting;     /* hash of the options of grids, groups and shares (settings.h) */
    enum hth_quant_format format; /* on the wire, of matrices; 0: fp32 */
    /* As of the reducer; with it, means that are far from the own values are refused. */
    double clip;
    /* BATCH */
    uint64_t target;           /* samples of one step, of all trainers together */
    uint64_t step_samples_max; /* of this trainer in one step; 0: no bound */
    bool delayed;
    struct hth_reducer *reducer;
    struct hth_avg_shape shape; /* of the grid; dims 0: by the number of trainers */
    bool strict; /* a part of the trainers without a quorum waits (averaging.majority) */
    /* newcomers */
    bool bootstrap;
    bool strangers;  /* take part (--open-to-anyone): what they say of the run ends nobody */
    int64_t look_us; /* how long it looks for others at the start */
};
#define HTH_SHARE_OPTS_INIT                                                                        \
    {                                                                                              \
        .every = 1, .target = 1024, .look_us = 2500 * HTH_US_PER_MS                                \
    }

/* "training". Never NULL. */
const char *hth_share_phase_name(enum hth_collab_phase phase);

struct hth_share_stats {
    /* BATCH */
    uint64_t gathered;           /* samples of this trainer towards the next step */
    uint64_t steps_shared;       /* steps taken on an average */
    uint64_t steps_alone;        /* ... on its own gradient, without other trainers */
    double weight;               /* samples behind the last step */
    struct hth_collab_stats run; /* LOCAL: phase, averages, given_bytes and fetch alone */
    /* LOCAL */
    uint64_t means_refused;  /* being too far from the own parameters, or no numbers */
    uint64_t states_refused; /* with which the own data lose more */
    double distance;         /* norm of (average - own) in the last round of parameters */
    double norm;             /* of that average */
    /* states */
    uint64_t catch_ups;    /* fetched, the first one included */
    uint64_t state_bytes;  /* fetched */
    int64_t state_us;      /* duration of the last fetch */
    int64_t first_step_us; /* from the start to the first update; 0: not yet */
};

/* BATCH: what this peer has contributed to the run, in all of its lives (collab/fold.h). */
struct hth_contribution {
    uint64_t samples; /* in steps that it took with others */
    uint64_t of;      /* in all steps; 0: not known here */
    uint32_t rank;    /* 1: nobody has more; 0: it has none */
    uint32_t peers;   /* that have contributed */
};

#endif
