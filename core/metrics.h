/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.h: counters, gauges and histograms with names, and their two exports.
 *
 * A module registers its metrics once in its _new and keeps the pointers. Updates are relaxed
 * atomic adds (any thread). Export as Prometheus text 0.0.4 or as one JSON object, in registration
 * order. Names follow Prometheus: hearth_rpc_calls_total, _seconds, _bytes.
 *
 * hth_info tells a text: in Prometheus a gauge of 1 with the text as its label, in JSON a string.
 */
#ifndef HTH_CORE_METRICS_H
#define HTH_CORE_METRICS_H

#include "core/base.h"

struct hth_metrics;
struct hth_metric;

struct hth_metrics *hth_metrics_new(void);
void hth_metrics_free(struct hth_metrics *m);

/* Registering a name again returns the same metric. `help` and `name` must be static strings. */
struct hth_metric *hth_counter(struct hth_metrics *m, const char *name, const char *help);
struct hth_metric *hth_gauge(struct hth_metrics *m, const char *name, const char *help);
/* Buckets at powers of two times `lowest`, 24 of them: 1 us .. 8 s for lowest = 1e-6. */
struct hth_metric *hth_histogram(struct hth_metrics *m, const char *name, const char *help,
                                 double lowest);

/* All four are static strings without quotes and backslashes. */
void hth_info(struct hth_metrics *m, const char *name, const char *help, const char *label,
              const char *text);

void hth_metric_add(struct hth_metric *metric, int64_t n);
void hth_metric_set(struct hth_metric *metric, double value);
void hth_metric_observe(struct hth_metric *metric, double value);
/* Counter or gauge value; of a histogram the number of observations. */
double hth_metric_value(const struct hth_metric *metric);
/* Upper bound of the bucket that holds quantile q of a histogram; 0 when empty. */
double hth_metric_quantile(const struct hth_metric *metric, double q);
/* The value of a metric by name; 0 when it does not exist. For tests and status. */
double hth_metrics_get(const struct hth_metrics *m, const char *name);

/* Heap strings; free with hth_free. */
char *hth_metrics_prometheus(const struct hth_metrics *m);
char *hth_metrics_json(const struct hth_metrics *m);

#endif
