/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/leftovers.h"

#include <inttypes.h>
#include <stdio.h>

bool hth_world_is_tidy(struct hth_world *world, char why[HTH_LEFTOVERS_TEXT_MAX])
{
    struct hth_open_counts open;

    hth_world_leaks(world, &open);
    if (hth_open_total(&open) > 0) {
        snprintf(why, HTH_LEFTOVERS_TEXT_MAX,
                 "left behind by a crash: %" PRIu64 " timers, %" PRIu64 " streams, %" PRIu64
                 " dht handles",
                 open.timers, open.streams, open.puts + open.gets + open.watches);
        return false;
    }
    for (size_t i = 0; i < hth_world_node_count(world); i++) {
        struct hth_node *node = hth_world_node_at(world, i);
        if (hth_node_is_up(node))
            continue;
        hth_node_open(node, &open);
        if (hth_open_total(&open) > 0) {
            snprintf(why, HTH_LEFTOVERS_TEXT_MAX, "%s is down and holds %" PRIu64 " objects",
                     hth_node_name(node), hth_open_total(&open));
            return false;
        }
    }
    return true;
}
