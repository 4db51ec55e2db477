/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.h: events.csv, the events of a simulation: a line per event, in their order, with time in
 * virtual seconds, node (empty: the world), event and detail. The first column names the run or
 * seed. The same run gives the same bytes.
 */
#ifndef HTH_STUDIES_EVENTS_H
#define HTH_STUDIES_EVENTS_H

#include "core/base.h"

#include <stdio.h>

/* Open DIR/events.csv and write its header: `first`, then time_s,node,event,detail. Returns NULL
 * after an error, which is reported. */
FILE *hth_events_begin(const char *dir, const char *first);
void hth_events_row(FILE *to, const char *first, int64_t now_us, const char *node,
                    const char *event, const char *detail);
/* Close it. Errors, reported: E_IO. */
enum hth_err hth_events_end(FILE *to, const char *dir) HTH_MUST;

#endif
