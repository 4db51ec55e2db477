/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_layers.h: which layers hearth status shows, when hosts of one run name the same layer and
 * mean different ones: another grid, or experts of another kind or width.
 *
 * Hosts with different run files can't work together, and a trainer takes only those of its own run
 * file. Who watches without one can't know which is meant. So each beacon's layer is a claim,
 * claims that are alike are counted by host, and of a name the one with the most hosts is shown;
 * with as many hosts, the one with more experts; then the one that was seen first. Whoever claims
 * another one is named beside it, never mixed in. That is for display: a stranger with many keys
 * can have the majority, and --run says for certain what to show.
 *
 * Plain memory, no env: any thread.
 */
#ifndef HTH_APP_STATUS_LAYERS_H
#define HTH_APP_STATUS_LAYERS_H

#include "core/limits.h"
#include "dht/listing.h"

struct hth_status_claim {
    struct hth_beacon_layer layer; /* experts: of the host with the most of them */
    uint64_t experts;              /* of all its hosts */
    uint32_t hosts;
};

/* Zeroed: nothing was claimed yet. */
struct hth_status_layers {
    struct hth_status_claim claim[HTH_STATUS_CLAIMS_MAX]; /* in order of their first host */
    uint32_t count;
};

/* Grid and experts are the same, of however many. */
bool hth_status_layer_eq(const struct hth_beacon_layer *a, const struct hth_beacon_layer *b);
/* One more host says that it serves this. Beyond HTH_STATUS_CLAIMS_MAX different ones it is not
 * counted. */
void hth_status_layers_add(struct hth_status_layers *layers, const struct hth_beacon_layer *layer);
/* The layer to show of that name; NULL: nobody claims one. Borrowed from `layers`. */
const struct hth_beacon_layer *hth_status_layers_best(const struct hth_status_layers *layers,
                                                      const char *name);

#endif
