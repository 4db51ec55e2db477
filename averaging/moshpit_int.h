/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit_int.h: the parts of the run's averager.
 *
 *   moshpit.c         the table: offers in, statistics out
 *   moshpit_round.c   one offer on its way: a look, then a reduction, never both
 *   moshpit_due.c     who is expected in a line, and which round is the present one
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
    struct hth_avg_shape shape;
    struct hth_avg_cell cell;
    uint64_t round;
    bool far; /* only others' notes speak for it */
    struct hth_look *look;
    int64_t look_us; /* when it began */
    struct hth_reduce_round *reduce;
    struct hth_avg_group *group; /* of the reduction */
    struct hth_avg_round_info info;
};

struct moshpit {
    struct hth_env *env;
    struct hth_roster *roster;
    struct hth_reducer *reducer;
    struct hth_match *match;
    struct hth_moshpit_opts opts;
    uint64_t run;         /* tag */
    hth_avg_round_fn *fn; /* NULL: not started */
    void *arg;
    struct moshpit_round *round; /* NULL: none under way */
    uint64_t round_met;          /* after the last one in which somebody was met */
    bool vain;                   /* the last look met nobody */
    int64_t far_at_us;           /* when a round far ahead may be looked for again */
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
/* Its line. */
struct hth_avg_line hth_round_line(const struct moshpit_round *s);
/* How long it looks for a group. */
int64_t hth_round_window_us(const struct moshpit_round *s);

/* moshpit_due.c */
/* As of hth_look_opts. */
uint32_t hth_moshpit_peers(const struct moshpit_round *s, struct hth_match_peer *out, uint32_t max,
                           bool *all);
/* The round of the median peer, and before that of s only after a vain look; that of s itself while
 * somebody may wait for us in its line. Helpers do not count. */
uint64_t hth_moshpit_round(struct moshpit_round *s);
/* A look of s has ended; met: with somebody. */
void hth_moshpit_looked(struct moshpit_round *s, bool met);

#endif
