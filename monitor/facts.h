/* SPDX-License-Identifier: Apache-2.0 */
/*
 * facts.h: the figures of a run.json (run_json.h) in words, for those who read them as text: the
 * page's tables (site.h) and the terminal (screen.h).
 *
 * Each reads one value of an untrusted document: a field that is missing or of another type is
 * "-", a text is cut at its buffer's end. Texts may still hold any character of UTF-8: the caller
 * makes them fit for HTML or a terminal.
 *
 * Any thread.
 */
#ifndef HTH_MONITOR_FACTS_H
#define HTH_MONITOR_FACTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_FACT_TEXT 96

struct hth_fact {
    const char *name; /* "test loss" */
    char text[HTH_FACT_TEXT];
    bool alarm; /* somebody should look at it */
};
#define HTH_FACTS 10
/* The run now: state, step, loss, test loss, samples, speed, participants, experts,
 * checkpoint, since. Those that a run does not have yet are "-". */
void hth_facts(const json_t *run, struct hth_fact out[HTH_FACTS]);

/* The cells of a peer's row in the table of peers. */
#define HTH_PEER_CELLS 7
extern const char *const hth_peer_heads[HTH_PEER_CELLS]; /* "peer", "role", ... */
void hth_peer_cells(const json_t *peer, char out[HTH_PEER_CELLS][HTH_FACT_TEXT]);

/* The finite number of a field, or `otherwise`. `object` may be NULL. */
double hth_fact_or(const json_t *object, const char *name, double otherwise);
/* The text of a field; "": there is none. Borrowed. */
const char *hth_fact_text(const json_t *object, const char *name);

/* A Unix time in seconds as "2026-11-27 02:05 UTC"; "-" for 0. */
void hth_fact_time(double t, char out[HTH_FACT_TEXT]);
/* The name of expert `index` of a layer, such as "ffn0.3.7", from its name and grid. */
void hth_fact_uid(const json_t *layer, uint64_t index, char out[HTH_FACT_TEXT]);

#endif
