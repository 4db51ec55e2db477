/* SPDX-License-Identifier: Apache-2.0 */
/*
 * monitor_int.h: the parts of a monitor.
 *
 *   monitor.c         when peers are asked, and what is said of the run
 *   monitor_memory.c  what trainers recall: rows that the history lacks, tests, samples
 */
#ifndef HTH_MONITOR_MONITOR_INT_H
#define HTH_MONITOR_MONITOR_INT_H

#include "monitor/monitor.h"

struct hth_map;
struct mon_opening;

struct hth_monitor {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_monitor_opts opts;
    struct hth_gather *gather;
    struct hth_timer *timer;
    bool asks; /* a collection is under way */
    bool met;  /* a peer of the run */
    struct hth_run_view *view;
    struct hth_events *events;
    struct hth_history *history; /* NULL: the run's name is not known, or it is being opened */
    struct mon_opening *opening;
    uint64_t seq, samples;
    uint64_t kept;            /* events that are in the folder */
    struct hth_map *counters; /* of trainers: id -> struct mon_counter */
    struct mon_counter *counter_list;
    struct hth_recall_test *test;
    uint32_t test_count;
    uint64_t step;   /* of the run, when it last rose, */
    int64_t rose_us; /* and when, on the loop's clock; 0: it did not yet */
    char trouble[160];
    struct hth_event *event; /* as last listed, and so */
    struct hth_history_row *row;
};

/* Takes what trainers recalled in this collection. The view is made, its row is not added yet. */
void hth_mon_recall(struct hth_monitor *m, const struct hth_gather *g);
void hth_mon_forget(struct hth_monitor *m);

#endif
