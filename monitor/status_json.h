/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_json.h: what a collection (gather.h) says of each peer, and `hearth status --json` of it.
 * The monitor takes its figures from here, too, so that both show the same.
 *
 *   {"run", "nodes": [{"id", "role", "address", "own", "reachable", "silent", "seen_s", "up_s",
 *     "experts", "served", "trainers", "queue_ms", "rows_per_s", "unsaved_s", "compute",
 *     "version", "name", "class", "may", "refused": {REASON: COUNT}}],
 *    "layers": [{"name", "grid", "places", "served", "twice", "coverage"}],
 *    "others": [{"id", "layer", "grid", "kind", "d"}], "trainers": (status_trainers.h)}
 *
 * Loop thread, after the collection is done.
 */
#ifndef HTH_MONITOR_STATUS_JSON_H
#define HTH_MONITOR_STATUS_JSON_H

#include "admission/pass.h"
#include "monitor/gather.h"

#include <jansson.h>

struct hth_status_peer {
    const char *role;   /* "node", "host", "trainer", or "?" */
    const char *reach;  /* "yes", "no", "silent", "here": nobody else said, "?": not asked, "-": it
                         * only dials */
    int64_t seen_us;    /* since its last sign of life */
    int64_t up_us;      /* since its start; -1: it did not say */
    int64_t unsaved_us; /* for how long it can't save; 0: it can, or did not say */
    uint64_t rows;      /* served */
    uint32_t trainers, queue_ms, rows_per_s;
    uint8_t compute;        /* enum hth_compute; of hosts */
    struct hth_grant grant; /* name, class and roles; roles 0: its pass is not known */
    char version[HTH_VERSION_LEN_MAX + 1];
};

/* By its own answer, else by its beacon. */
void hth_status_peer(const struct hth_gather *g, const struct hth_gather_peer *p,
                     struct hth_status_peer *out);
/* {REASON: COUNT}; NULL: nothing is known. */
json_t *hth_status_refused_json(const struct hth_about *about);
/* The revoked serials and peers, as texts: a number of JSON does not hold them all. NULL: none. */
json_t *hth_status_revoked_json(const struct hth_revoked_set *set);
json_t *hth_status_json(const struct hth_gather *g);
json_t *hth_status_grid_json(const struct hth_grid *grid);

#endif
