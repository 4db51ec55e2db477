/* SPDX-License-Identifier: Apache-2.0 */
/* events_int.h: between events.c, which sees what happens, and events_file.c, which keeps it. */
#ifndef HTH_MONITOR_EVENTS_INT_H
#define HTH_MONITOR_EVENTS_INT_H

#include "monitor/events.h"

/* The place of one more event, to be filled in: the oldest goes. */
struct hth_event *hth_events_next(struct hth_events *e);

#endif
