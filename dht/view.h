/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.h: private to dht/: builds the directory's views.
 */
#ifndef HTH_DHT_VIEW_H
#define HTH_DHT_VIEW_H

#include "dht/directory.h"

/* Words of one bit per expert. */
size_t hth_view_words(const struct hth_grid *grid);
/* Makes *view (NULL at first) a snapshot of these bits, `live` of which are set, with the next
 * generation: in place when it has one reference, else as a new one. Errors: E_NO_MEMORY, and *view
 * is the old one. */
enum hth_err hth_view_make(struct hth_grid_view **view, const struct hth_grid *grid,
                           const uint64_t *bits, size_t live) HTH_MUST;

#endif
