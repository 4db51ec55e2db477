/* SPDX-License-Identifier: Apache-2.0 */
/* end_world.h: the end of a simulated world. */
#ifndef HTH_TESTS_SUPPORT_END_WORLD_H
#define HTH_TESTS_SUPPORT_END_WORLD_H

#include "sim/world.h"
#include "support/test.h"

/* Crashes all nodes, checks that halt functions and others have left nothing open, and frees it. */
static inline void end_world(struct hth_world *world)
{
    struct hth_open_counts leaks;

    for (size_t i = 0; i < hth_world_node_count(world); i++)
        if (hth_node_is_up(hth_world_node_at(world, i)))
            hth_node_crash(hth_world_node_at(world, i), HTH_CRASH_RESET);
    hth_world_leaks(world, &leaks);
    assert_int_equal(hth_open_total(&leaks), 0);
    hth_world_free(world);
}

#endif
