/* SPDX-License-Identifier: Apache-2.0 */
/*
 * monitor.h: watches a run as an onlooker: it asks the peers every 10 s (gather.h), keeps what they
 * said (view.h), what happened (events.h) and the history (history.h), and tells its owner.
 *
 *     timer -> gather -> view -> events, history -> on_new: the owner serves, prints, writes
 *       ^--- 10 s after the last asking began, when it is done ---'
 *
 * It announces nothing, holds no expert and computes nothing, so that a run loses nothing when it
 * ends, and nobody depends on it. A peer is asked once in a period, over a connection that is kept.
 *
 * Started late, it fills the last hour from what trainers recall; with a folder it goes on from its
 * own history and events, filling the gap likewise. Of samples it counts what trainers' counters
 * grew by; of those who were there before it, without a history, the whole counter. Nobody proves
 * what a trainer tells, so each figure is what most agree on (agree.h).
 *
 * Loop thread only. Runs on any env: its tests are simulated.
 */
#ifndef HTH_MONITOR_MONITOR_H
#define HTH_MONITOR_MONITOR_H

#include "monitor/run_json.h"

struct hth_monitor;

struct hth_monitor_opts {
    struct hth_census *census;
    const char *network;                   /* NULL: the only one that beacons name */
    const struct hth_beacon_layer *layers; /* of a run file; none: the beacons' */
    size_t layer_count;
    const struct hth_admission *admission; /* as in hth_rpc_opts */
    const char *dir;                       /* of the history; NULL: it is kept in memory */
    const char *version;                   /* of this program */
    const char *name;                      /* as in hth_gather_opts */
    const struct hth_members *members;     /* likewise */
    const char *join_command;              /* see run_json.h; borrowed, as all strings */
    const char *join_ask;
    bool join_complete;
    hth_fn *on_new; /* each period: a new view, or none came; may not free the monitor */
    void *arg;
};

/* Begins to ask at once. Errors: those of hth_gather_new. */
enum hth_err hth_monitor_new(struct hth_env *env, struct hth_dht *dht,
                             const struct hth_monitor_opts *opts,
                             struct hth_monitor **out) HTH_MUST;
/* Writes the history that waits. NULL is fine. */
void hth_monitor_free(struct hth_monitor *m);
/* The picture now; view is NULL before the first on_new. Valid until the loop's next turn. */
void hth_monitor_now(struct hth_monitor *m, struct hth_run_now *out);
/* The collection behind the newest view, for tests: valid in on_new. */
const struct hth_gather *hth_monitor_gather(const struct hth_monitor *m);

#endif
