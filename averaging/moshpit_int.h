/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit_int.h: the parts of the run's averager.
 *
 *   moshpit.c         the table: offers in, statistics out
 *   moshpit_sweep.c   one offer on its way through the axes: looks, reductions, its end
 *   moshpit_due.c     who is expected in a line, and which round is the present one
 *
 * A sweep has a look or a reduction under way, never both:
 *
 *     look in round k ---> group ---> reduce ---> look in round k + 1 ---> ... ---> result
 */
#ifndef HTH_AVERAGING_MOSHPIT_INT_H
#define HTH_AVERAGING_MOSHPIT_INT_H

#include "averaging/codec.h"
#include "averaging/moshpit.h"
#include "averaging/reduce.h"
#include "averaging/roster.h"

struct moshpit;

struct moshpit_sweep {
    struct hth_env *env;
    struct moshpit *mp;
    struct hth_avg_offer offer; /* values referenced, spans copied */
    struct hth_avg_span *spans;
    uint32_t generation;
    struct hth_avg_shape shape;
    struct hth_avg_cell cell;
    uint64_t round; /* of the look or reduction under way */
    bool far;       /* it began in a round that only others' notes speak for */
    uint32_t done_rounds;
    struct hth_look *look;
    struct hth_reduce_round *reduce;
    struct hth_avg_group *group; /* of the reduction */
    struct hth_blob *values;     /* as they are by now */
    double weight;
    int64_t start_us, look_us;
    struct hth_timer *timer; /* its deadline, or its end */
    bool ending;
    struct hth_avg_result result;
    struct hth_avg_round_info info; /* of the present round */
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
    struct moshpit_sweep *sweep; /* NULL: none under way */
    uint64_t round_met;          /* after the last one in which somebody was met */
    bool vain;                   /* the last look met nobody */
    int64_t far_at_us;           /* when a round far ahead may be looked for again */
    struct hth_averager_stats stats;
    struct {
        struct hth_metric *rounds, *failed, *drops, *bytes, *wait, *reduce;
    } metrics;
};

/* moshpit_sweep.c */
/* Begins to look. Errors: E_NOT_FOUND (no shape yet), E_NO_MEMORY, those of hth_look_new. */
enum hth_err hth_sweep_new(struct moshpit *mp, const struct hth_avg_offer *offer,
                           struct moshpit_sweep **out) HTH_MUST;
/* Without a result. */
void hth_sweep_cancel(struct moshpit_sweep *s);
/* The roster changed. */
void hth_sweep_nudge(struct moshpit_sweep *s);
/* Its line in the present round. */
struct hth_avg_line hth_sweep_line(const struct moshpit_sweep *s);
/* How long it looks for a group. */
int64_t hth_sweep_window_us(const struct moshpit_sweep *s);

/* moshpit_due.c */
/* As of hth_look_opts. */
uint32_t hth_moshpit_peers(const struct moshpit_sweep *s, struct hth_match_peer *out, uint32_t max,
                           bool *all);
/* The round of the median peer, and before that of s only after a vain look; that of s itself while
 * somebody may wait for us in its line. Helpers do not count. */
uint64_t hth_moshpit_round(struct moshpit_sweep *s);
/* A look of s has ended; met: with somebody. */
void hth_moshpit_looked(struct moshpit_sweep *s, bool met);

#endif
