/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.h: events.csv, what happened to whom in a simulation: a line per event, in the order in
 * which they happened, with time in virtual seconds, node (empty: the world), event and detail. The
 * first column says of which run or seed. Same run, same bytes.
 */
#ifndef HTH_STUDIES_EVENTS_H
#define HTH_STUDIES_EVENTS_H

#include "core/base.h"

#include <stdio.h>

/* Opens DIR/events.csv and writes its head: `first`, then time_s,node,event,detail. NULL when that
 * failed, which was said. */
FILE *hth_events_begin(const char *dir, const char *first);
void hth_events_row(FILE *to, const char *first, int64_t now_us, const char *node,
                    const char *event, const char *detail);
/* Errors: E_IO, said. */
enum hth_err hth_events_end(FILE *to, const char *dir) HTH_MUST;

#endif
