/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit_int.h: the parts of the run's averager.
 *
 *   moshpit.c         the table: offers in, statistics out
 *   moshpit_sweep.c   one offer on its way through the axes: where it looks next, how it ends
 *   moshpit_group.c   one of its rounds: the group that was found, its reduction, what came of it
 *   moshpit_proxy.c   standing in for cells that nobody is in
 *   moshpit_due.c     who is expected in a line, by the roster, and who is not any more
 *
 * A sweep holds at most one look that counts and one reduction, and while it reduces, the look for
 * the next axis, which is not ready yet:
 *
 *     round k     look ---> group ---> reduce ------------------.
 *     round k + 1             '------> look (not ready) ... ready ---> group ---> reduce --> ...
 */
#ifndef HTH_AVERAGING_MOSHPIT_INT_H
#define HTH_AVERAGING_MOSHPIT_INT_H

#include "averaging/codec.h"
#include "averaging/moshpit.h"
#include "averaging/reduce.h"
#include "averaging/refusers.h"
#include "averaging/roster.h"
#include "core/map.h"
#include "dht/record.h"

struct moshpit;

struct moshpit_sweep {
    struct hth_env *env;
    struct moshpit *mp;         /* NULL: given up, waits for its job to end */
    struct hth_avg_offer offer; /* values referenced, spans copied */
    struct hth_avg_span *spans;
    bool offered;  /* false: prepared, the values are still to come */
    uint32_t kind; /* of its lines: that of the offer, or kind_on */
    uint32_t generation;
    struct hth_avg_shape shape;
    struct hth_avg_cell cell;
    bool moves;           /* the cell changes with every round, and the roster is told */
    bool is_proxy;        /* acts for an empty cell: as a client, and nobody is told how it ended */
    bool observes;        /* brings nothing: is told the mean, in a line of the last axis */
    bool kept;            /* nothing but the values that a round left, for who stands in later */
    uint64_t base;        /* of a proxy: the first round of its sweep */
    struct moshpit_sweep
        *source;          /* of a proxy that has no values yet: the sweep whose they will be */
    uint64_t round;       /* of the look: the one being looked for, or the next */
    bool far;             /* it began in a round that only others' words speak for */
    uint32_t rounds, done_rounds;
    struct hth_look *look;
    struct hth_reduce_round *reduce;
    struct hth_avg_group *group;                /* of the reduction */
    struct hth_avg_group *met;                  /* of the round before; NULL: nobody */
    struct hth_peer_id lost[HTH_LOOK_LOST_MAX]; /* of it, known to be dead */
    uint32_t lost_count;
    struct hth_blob *values; /* as they are by now */
    double weight;
    uint32_t heads;              /* trainers whose values are in them; 0 of a helper */
    uint64_t origin, origin_met; /* of the values (match.h), and of what the group will have */
    int64_t start_us, look_us;   /* look_us: when this round's values were, or will be, ready */
    struct hth_timer *timer;     /* its deadline, or its end */
    bool ending;
    struct hth_avg_result result;
    struct hth_avg_round_info info; /* of the present round */
    /* the norm of the change */
    struct hth_job job;
    bool job_runs;
    double change;
};

/* Somebody who did not come or was dropped: not due until it has spoken again. */
struct moshpit_suspect {
    int64_t issued_us; /* of the note that it was known by then */
    int64_t at_us;
    int64_t lost_us;     /* its connection; 0: it was not */
    bool vain;           /* it let us wait in vain: a newer note is no reason to do so again, */
    uint32_t generation; /* as long as the grid is that one; 0: one line, whatever its length */
};

struct moshpit {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_roster *roster;
    struct hth_reducer *reducer;
    struct hth_match *match;
    struct hth_moshpit_opts opts;
    char network[HTH_NAME_LEN_MAX + 1];
    uint64_t run;         /* tag */
    hth_avg_round_fn *fn; /* NULL: not started */
    void *arg;
    struct moshpit_sweep *sweeps[HTH_AVG_OFFERS_MAX];
    struct moshpit_sweep *proxies[HTH_AVG_PROXIES_MAX];
    struct moshpit_sweep *kept[HTH_AVG_KEPT_MAX];
    uint64_t round_met;                  /* after the last one in which somebody was met */
    uint32_t vain;                       /* looks since then */
    uint32_t far_vain;                   /* of them, in rounds far ahead of it */
    int64_t far_at_us;                   /* when one of these may be looked for again */
    uint32_t full_lines;                 /* that it observed in vain */
    uint32_t alone_in[HTH_AVG_DIMS_MAX]; /* generation in which nobody else was in that line */
    struct hth_map *suspects;
    struct hth_refusers refusers;
    struct hth_averager_stats stats;
    struct {
        struct hth_metric *rounds, *failed, *drops, *bytes, *wait, *reduce, *distance;
    } metrics;
};

/* An offer of nothing, from one who could bring something. */
static inline bool hth_moshpit_observes(const struct moshpit *mp, const struct hth_avg_offer *o)
{
    return o->values == NULL && mp->opts.mode != HTH_AVG_HELPER;
}

/* moshpit_sweep.c */
/* Begins to look. Not offered: the values come ready_in_us from now. Errors: E_NOT_FOUND (no shape
 * yet), E_NO_MEMORY, those of hth_look_new. */
enum hth_err hth_sweep_new(struct moshpit *mp, const struct hth_avg_offer *offer, bool offered,
                           int64_t ready_in_us, struct moshpit_sweep **out) HTH_MUST;
/* The values of a prepared sweep. */
void hth_sweep_values(struct moshpit_sweep *s, const struct hth_avg_offer *offer);
/* Without a result. */
void hth_sweep_cancel(struct moshpit_sweep *s);
/* The roster changed. */
void hth_sweep_nudge(struct moshpit_sweep *s);
/* That peer said where it looks. */
void hth_sweep_heard(struct moshpit_sweep *s, const struct hth_peer_id *id);
/* Its line in the present round. */
struct hth_avg_line hth_sweep_line(const struct moshpit_sweep *s);
/* The run's tag in lines of that kind. */
uint64_t hth_sweep_run(const struct moshpit *mp, uint32_t kind);

void hth_sweep_end_soon(struct moshpit_sweep *s);
/* The next look, or the end. */
void hth_sweep_round_over(struct moshpit_sweep *s);
void hth_sweep_round_failed(struct moshpit_sweep *s, enum hth_err err, enum hth_avg_reason reason);
void hth_sweep_look_on(struct moshpit_sweep *s);
/* A look for its round; not ready: its values come in ahead_us, about. Errors: of hth_look_new. */
enum hth_err hth_sweep_look(struct moshpit_sweep *s, bool ready, int64_t ahead_us) HTH_MUST;
/* A sweep of that offer without place or look. NULL: no memory. */
struct moshpit_sweep *hth_sweep_alloc(struct moshpit *mp, const struct hth_avg_offer *offer);
int64_t hth_sweep_time_us(const struct moshpit_sweep *s);
/* That a round of its vector reduces at most. */
int64_t hth_sweep_round_us(const struct moshpit_sweep *s);
/* How long it looks for a group after its values are ready. */
int64_t hth_sweep_window_us(const struct moshpit_sweep *s);

/* moshpit_group.c */
/* A look has ended. */
void hth_sweep_on_look(void *arg, const struct hth_look_result *r);
void hth_sweep_count(struct moshpit_sweep *s);
/* A peer's own values; never 0. */
uint64_t hth_sweep_origin(const struct hth_peer_id *id);
/* Trainers besides this peer whose values it brings, as far as that is believed. */
uint32_t hth_sweep_others(const struct moshpit_sweep *s);

/* moshpit_proxy.c */
/* s begins in rounds in which an earlier try at the same may have been: who still stands in for
 * that one would bring its values among those of s. */
void hth_proxy_begin(const struct moshpit_sweep *s);
/* Stands in for whoever is missing in the lines that come after that group (NULL: this peer alone),
 * which met in the round. Not ready: the values are still being reduced. */
void hth_proxy_start(struct moshpit_sweep *s, const struct hth_avg_group *g, uint64_t round,
                     bool ready);
/* Somebody was lost: what `s` already holds may be missing elsewhere by now. */
void hth_proxy_late(struct moshpit_sweep *s);
/* s has its values now, or will have none. */
void hth_proxy_values(struct moshpit_sweep *s, bool there);
/* Somebody in its line can lead. Where all stand in, for lines of the axes that follow, one of them
 * must; along the last axis nobody would have anything of it. */
bool hth_proxy_follows(const struct moshpit_sweep *s);
/* s stands in where that one is missing. */
bool hth_proxy_replaces(const struct moshpit_sweep *s, const struct hth_roster_peer *p);
/* A round of s is over: what it left is kept a while for a line of the next one that finds a hole
 * when s has gone on. */
void hth_proxy_keep(const struct moshpit_sweep *s);
/* As of hth_match_opts; arg is the moshpit. */
enum hth_avg_reason hth_proxy_called(void *arg, const struct hth_peer_id *by,
                                     const struct hth_avg_line *line, uint64_t schema, uint32_t at);
/* Who stands in for whom in this line, as far as the roster tells: those to wait for. */
uint32_t hth_proxy_due(const struct moshpit_sweep *s, struct hth_match_due *out, uint32_t count,
                       uint32_t max);

/* moshpit_due.c */
bool hth_moshpit_suspected(struct moshpit *mp, const struct hth_roster_peer *p);
/* It has taken the step of this sweep, and another: it comes to none of its lines any more,
 * whatever was heard of it before, nor does it stand in there. Who waited for it would be late to
 * the others' next steps as well. */
bool hth_moshpit_has_passed(const struct moshpit_sweep *s, const struct hth_roster_peer *p);
uint32_t hth_moshpit_due(const struct moshpit_sweep *s, struct hth_match_due *out, uint32_t max);
uint32_t hth_moshpit_known(const struct moshpit_sweep *s, struct hth_match_known *out,
                           uint32_t max);
/* The round in which the middle one of those seen is, and not before that of s; that of s itself
 * while somebody may wait for us in its line. Helpers are not looked at. Going with the highest
 * number would leave behind those who end the same round a moment later. */
uint64_t hth_moshpit_round(struct moshpit_sweep *s);
/* Of what kind its lines are: kind_on where most of those heard in this sweep are there. */
uint32_t hth_moshpit_kind(const struct moshpit_sweep *s);
/* A look of s has ended; met: with somebody. */
void hth_moshpit_looked(struct moshpit_sweep *s, bool met);
void hth_moshpit_suspect(struct moshpit *mp, const struct hth_peer_id *id);
/* The same of somebody who did not answer, or did not come and may not be there at all. */
void hth_moshpit_deaf(struct moshpit *mp, const struct hth_peer_id *id);
/* A look of s has ended: who should have come and did not is not counted on any more, and who never
 * spoke may be a word of nobody. */
void hth_moshpit_look_over(const struct moshpit_sweep *s, const struct hth_look_result *r);
/* The same of somebody whose connection was lost; and whether one was since then, and it has not
 * spoken again. */
void hth_moshpit_lost(struct moshpit *mp, const struct hth_peer_id *id);
bool hth_moshpit_is_lost(struct moshpit *mp, const struct hth_peer_id *id, int64_t since_us);
/* Nobody else is in this line: those who stood there are lost. */
bool hth_moshpit_bereft(const struct moshpit_sweep *s);
void hth_moshpit_forget(struct moshpit *mp);

#endif
