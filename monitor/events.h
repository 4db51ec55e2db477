/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.h: what happened in a run, by comparing each view (view.h) with the ones before:
 *
 *   joined      a peer that was not there; or one that fell silent answers again
 *   left        its record was withdrawn: two views in a row do not have it
 *   killed      its record lives on, and it did not answer two views in a row
 *   replaced    a host serves experts that others served and nobody did any more
 *   behind      a trainer is further behind than the run steps in a minute, for a minute
 *   fork        trainers took a step without a quorum: parts of the run go on by themselves
 *   heal        trainers went over to the chain of steps that others have
 *   checkpoint  most of the trainers that save have a later one; of several in a row the newest
 *
 * The first view is where it begins, and has no events; those that a monitor kept before it ended
 * are taken back (hth_events_read). Peers that come and go by the thousands
 * cost no more than HTH_EVENTS_MAX lines, of which the oldest go first.
 *
 * Plain memory, loop thread.
 */
#ifndef HTH_MONITOR_EVENTS_H
#define HTH_MONITOR_EVENTS_H

#include "monitor/view.h"

#include <jansson.h>

#define HTH_EVENTS_MAX     200
#define HTH_EVENT_TEXT_MAX 96

enum hth_event_kind {
    HTH_EVENT_JOINED,
    HTH_EVENT_LEFT,
    HTH_EVENT_KILLED,
    HTH_EVENT_REPLACED,
    HTH_EVENT_BEHIND,
    HTH_EVENT_FORK,
    HTH_EVENT_HEAL,
    HTH_EVENT_CHECKPOINT
};

struct hth_event {
    uint32_t t; /* Unix s */
    enum hth_event_kind kind;
    char peer[HTH_PEER_SHORT_LEN];
    char text[HTH_EVENT_TEXT_MAX];
};

struct hth_events;

struct hth_events *hth_events_new(void);
void hth_events_free(struct hth_events *e);
/* `pace`: steps a second; 0: not known. */
void hth_events_see(struct hth_events *e, const struct hth_run_view *view, double pace);
/* Copies them, the oldest first; returns how many. */
uint32_t hth_events_list(const struct hth_events *e, struct hth_event out[HTH_EVENTS_MAX]);
const char *hth_event_name(enum hth_event_kind kind);
/* Counts the events that happened since _new. */
uint64_t hth_events_seen(const struct hth_events *e);

/* As run_json.h has them. */
json_t *hth_event_list_json(const struct hth_event *event, uint32_t count);
/* For a file: JSON of the run's name and the events; free with hth_free. */
char *hth_events_write(const struct hth_events *e, const char *run);
/* Begins with the events of such a text, which may be any bytes. Errors: E_MALFORMED, E_WRONG_RUN;
 * then it has none. */
enum hth_err hth_events_read(struct hth_events *e, const char *run, const void *text,
                             size_t len) HTH_MUST;

#endif
