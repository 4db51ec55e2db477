/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moshpit.h: the averager of a run: roster + grid + match + reduce, behind averager.h's table.
 *
 * An offer is one round: it looks for a group in this peer's line of the grid (match.h) and reduces
 * in it (reduce.h). Cells follow from the roster: on a full grid whose peers have equal weights as
 * many offers as it has axes give all of them the mean of all, and a peer that missed a round puts
 * nothing out of order.
 *
 * Numbers. Round r works along axis r mod d. An offer takes the round of the median peer of the
 * roster, if nobody was met in it yet; an earlier one while this peer is only late and its line
 * waits for it there, or when it met nobody. The shape and the cell are those of the roster when it
 * begins; while nobody was met yet, others begin it anew.
 *
 * An offer always ends, and failures are told by reason and counted; none of them stops anything.
 *
 * Loop thread. Everything is borrowed but the table; the endpoint, table, roster and reducer must
 * outlive it.
 */
#ifndef HTH_AVERAGING_MOSHPIT_H
#define HTH_AVERAGING_MOSHPIT_H

#include "averaging/averager.h"
#include "averaging/match.h"
#include "averaging/shares.h"

struct hth_reducer;
struct hth_roster;
struct hth_rpc;

struct hth_moshpit_opts {
    const char *network;  /* the run's name */
    struct hth_addr addr; /* where others reach this peer; family 0: only as a client */
    enum hth_avg_mode mode;
    double bandwidth;   /* bit/s that it can send; 0: not known, or a client */
    uint32_t group_min; /* members that make a round worth it, helpers not counted */
    int64_t window_us;  /* that a round looks for a group after the values are ready */
    int64_t round_us;   /* that a round reduces, at most; large vectors more (hth_reduce_thin_us) */
    double share_max;   /* of a group's vector nobody reduces more than so many times the mean of
                         * those who reduce, whatever bandwidth it claims; at least 1, and of 256 or
                         * more nothing is bound. The same in all of a run: others are not met */
};
#define HTH_MOSHPIT_OPTS_INIT                                                                      \
    {                                                                                              \
        .group_min = 2, .window_us = 3 * HTH_US_PER_S, .round_us = 30 * HTH_US_PER_S,              \
        .share_max = HTH_AVG_SHARE_MAX                                                             \
    }

/* Fills in `out`; free it with hth_averager_free. Errors: E_CONFIG. */
enum hth_err hth_moshpit_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_roster *roster,
                             struct hth_reducer *reducer,
                             const struct hth_moshpit_opts *opts,
                             struct hth_averager *out) HTH_MUST;
/* Call it from the roster's on_change. `a` must be a moshpit's. */
void hth_moshpit_nudge(struct hth_averager *a);
/* Call it from the endpoint's on_peer_lost, besides the reducer's. */
void hth_moshpit_peer_lost(struct hth_averager *a, const struct hth_peer_id *peer,
                           enum hth_err err);
void hth_moshpit_match_stats(const struct hth_averager *a, struct hth_match_stats *out);

#endif
