/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spoil.h: peers that spoil an expert with its own gradients, against the bounds on senders
 * (experts/senders.h).
 *
 * One host serves one expert, which learns to be another network: the teacher, which only honest
 * peers know. Every honest peer has an invite of its own; every 2 s it sends 16 rows, compares the
 * answer with the teacher's, adds noise, and sends the gradient. The attackers share one invite.
 * They know the teacher and the expert's weights, and send 64 rows each, every 4 s:
 *
 *   shove   the largest numbers that a host takes, in one direction, as of the largest micro-batch
 *   turn    the honest gradient, turned round and a million times as large
 *   creep   the honest gradient, turned round, as large as is let through: no norm shows it
 *
 * `unbounded` switches the bounds off, to show the damage that they prevent. After the attack of
 * `minutes`, `back_updates` > 0 plays what its owner does: the host ends, goes back to a copy of
 * its checkpoint from before the attack (experts/ring.h), and the attackers are gone.
 *
 * One thread, that of the world. A report is a pure function of the options.
 */
#ifndef HTH_SCENARIOS_SPOIL_H
#define HTH_SCENARIOS_SPOIL_H

#include "core/base.h"

enum hth_spoil_kind { HTH_SPOIL_NONE, HTH_SPOIL_SHOVE, HTH_SPOIL_TURN, HTH_SPOIL_CREEP };

struct hth_spoil_opts {
    uint64_t seed;
    enum hth_spoil_kind kind;
    const char *expert; /* its kind, one with weights */
    uint32_t honest, attackers;
    bool probation; /* the attackers' invite is of class 1 */
    bool unbounded;
    bool canary;                  /* experts/canary.h; for runs without bounds, too */
    double calm_minutes, minutes; /* of learning before the attack, and under it */
    double noise;                 /* its share of the squared norm of the teacher's answers */
    uint32_t back_updates;
};
#define HTH_SPOIL_OPTS_INIT                                                                        \
    {                                                                                              \
        .seed = 1, .expert = "ffn", .honest = 8, .attackers = 64, .calm_minutes = 12,              \
        .minutes = 10, .noise = 0.1,                                                               \
    }

struct hth_spoil_report {
    double begin, calm, end; /* loss at the start, before the attack, after it */
    double back;             /* after the roll-back and back_updates steps; 0: none was asked for */
    double forwards;         /* mean time of an honest forward under attack, ms */
    uint64_t steps, pauses;
};

/* Errors: those of its parts. */
enum hth_err hth_sim_spoil(const struct hth_spoil_opts *opts,
                           struct hth_spoil_report *out) HTH_MUST;

#endif
