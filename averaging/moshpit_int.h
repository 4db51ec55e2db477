/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit_int.h: the parts of the run's averager.
 *
 *   moshpit.c         the table: offers in, statistics out
 *   moshpit_round.c   one offer on its way: where and when, a look, a reduction, its end
 */
#ifndef HTH_AVERAGING_MOSHPIT_INT_H
#define HTH_AVERAGING_MOSHPIT_INT_H

#include "averaging/codec.h"
#include "averaging/moshpit.h"
#include "averaging/reduce.h"
#include "averaging/roster.h"

struct moshpit;

struct moshpit_round {
    struct moshpit *mp;
    struct hth_avg_offer offer; /* values referenced, spans copied */
    struct hth_avg_span *spans;
    struct hth_avg_line line;
    struct hth_roster *lookers; /* of the line, where the run's roster is but a sample; else NULL */
    struct hth_look *look;
    struct hth_reduce_round *reduce;
    struct hth_avg_group *group; /* of the reduction */
    struct hth_avg_round_info info;
};

struct moshpit {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_roster *roster;
    struct hth_reducer *reducer;
    struct hth_match *match;
    struct hth_moshpit_opts opts;
    char network[HTH_NAME_LEN_MAX + 1];
    uint64_t run;         /* tag */
    hth_avg_round_fn *fn; /* NULL: not started */
    void *arg;
    struct moshpit_round *round; /* NULL: none under way */
    uint32_t next;               /* round: nobody was met in it yet */
    bool vain;                   /* the last look met nobody */
    struct hth_averager_stats stats;
    struct {
        struct hth_metric *rounds, *failed, *drops, *bytes, *wait, *reduce;
    } metrics;
};

/* moshpit_round.c */
/* Begins to look. Errors: E_NOT_FOUND (no shape yet), E_NO_MEMORY, those of hth_look_new. */
enum hth_err hth_round_new(struct moshpit *mp, const struct hth_avg_offer *offer,
                           struct moshpit_round **out) HTH_MUST;
/* Without a result. */
void hth_round_free(struct moshpit_round *s);
/* The roster changed. */
void hth_round_nudge(struct moshpit_round *s);

#endif
