/* SPDX-License-Identifier: Apache-2.0 */
/* status_layers.c: counts the hosts that claim each layer. */
#include "monitor/status_layers.h"

#include "core/base.h"

#include <string.h>

bool hth_status_layer_eq(const struct hth_beacon_layer *a, const struct hth_beacon_layer *b)
{
    return hth_grid_eq(&a->grid, &b->grid) && hth_layer_shape_eq(&a->shape, &b->shape);
}

void hth_status_layers_add(struct hth_status_layers *layers, const struct hth_beacon_layer *layer)
{
    uint32_t i = 0;
    while (i < layers->count && !hth_status_layer_eq(&layers->claim[i].layer, layer))
        i++;
    if (i == HTH_STATUS_CLAIMS_MAX)
        return;
    struct hth_status_claim *claim = &layers->claim[i];
    if (i == layers->count) {
        *claim = (struct hth_status_claim){.layer = *layer};
        layers->count++;
    }
    claim->layer.experts = HTH_MAX(claim->layer.experts, layer->experts);
    claim->experts += layer->experts;
    claim->hosts++;
}

static bool is_better(const struct hth_status_claim *a, const struct hth_status_claim *b)
{
    return a->hosts != b->hosts ? a->hosts > b->hosts : a->experts > b->experts;
}

const struct hth_beacon_layer *hth_status_layers_best(const struct hth_status_layers *layers,
                                                      const char *name)
{
    const struct hth_status_claim *best = NULL;
    for (uint32_t i = 0; i < layers->count; i++) {
        const struct hth_status_claim *claim = &layers->claim[i];
        if (strcmp(claim->layer.grid.name, name) == 0 && (best == NULL || is_better(claim, best)))
            best = claim;
    }
    return best != NULL ? &best->layer : NULL;
}
