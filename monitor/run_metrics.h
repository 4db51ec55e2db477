/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_metrics.h: the run in Prometheus series: hearth_run_*, as a trainer sees it from inside, or a
 * monitor from outside. A number that is not known leaves its series as it was.
 *
 * Loop thread.
 */
#ifndef HTH_MONITOR_RUN_METRICS_H
#define HTH_MONITOR_RUN_METRICS_H

#include "core/metrics.h"

struct hth_run_metrics {
    struct hth_metric *step, *steps, *loss, *samples, *samples_per_s;
    struct hth_metric *trainers, *hosts, *places, *served, *silent;
};

/* Of a monitor: all. Of a trainer: only what it knows, the first four and trainers. */
void hth_run_metrics_init(struct hth_run_metrics *m, struct hth_metrics *of, bool monitor);
void hth_run_metrics_train(struct hth_run_metrics *m, uint64_t step, uint64_t steps, double loss,
                           uint64_t samples, uint32_t trainers);
struct hth_run_now;
void hth_run_metrics_watch(struct hth_run_metrics *m, const struct hth_run_now *now);

#endif
