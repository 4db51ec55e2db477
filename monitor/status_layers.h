/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_layers.h: chooses the layers that hearth status shows when hosts of one run give one name
 * to different layers: another grid, or experts of another kind or width.
 *
 * Hosts with different run files can't work together, and a trainer uses only those of its own run
 * file. Without a run file nothing says which layer is meant. So each layer of a beacon is a claim,
 * equal claims are counted by host, and of each name the claim with the most hosts is shown; among
 * equals the one with more experts, then the one seen first. Hosts with another claim are listed
 * apart. This choice is for display only: a stranger with many keys can have the majority, and
 * --run decides for certain.
 *
 * Plain memory, no env: any thread.
 */
#ifndef HTH_MONITOR_STATUS_LAYERS_H
#define HTH_MONITOR_STATUS_LAYERS_H

#include "core/limits.h"
#include "dht/listing.h"

struct hth_status_claim {
    struct hth_beacon_layer layer; /* experts: of the host with the most of them */
    uint64_t experts;              /* of all its hosts */
    uint32_t hosts;
};

/* All zero: no claims. */
struct hth_status_layers {
    struct hth_status_claim claim[HTH_STATUS_CLAIMS_MAX]; /* in order of their first host */
    uint32_t count;
};

/* Whether grid, kind and width are equal; the number of experts may differ. */
bool hth_status_layer_eq(const struct hth_beacon_layer *a, const struct hth_beacon_layer *b);
/* Counts one more host that claims this layer. Ignores a new claim beyond HTH_STATUS_CLAIMS_MAX. */
void hth_status_layers_add(struct hth_status_layers *layers, const struct hth_beacon_layer *layer);
/* The layer to show under that name; NULL: no host claims one. Borrowed from `layers`. */
const struct hth_beacon_layer *hth_status_layers_best(const struct hth_status_layers *layers,
                                                      const char *name);

#endif
