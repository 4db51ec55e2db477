/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holders.h: peers that are said to hold something, in the order in which they are asked.
 *
 * Means and states are asked of such a list: roll_links.c makes it of who named a head and of
 * who made it; who gave something goes first, and who gave what is of no use is taken out.
 *
 * Plain values, copied by assignment; all zeros are an empty list. Any thread.
 */
#ifndef HTH_COLLAB_HOLDERS_H
#define HTH_COLLAB_HOLDERS_H

#include "collab/roll_msg.h"

struct hth_holders {
    uint32_t count;
    struct hth_roll_peer peer[HTH_ROLL_LINE_MAX];
};

/* As the last one, unless it is among them; where there is no room it is left out. */
void hth_holders_add(struct hth_holders *holders, const struct hth_roll_peer *peer);
/* If it is among them. */
void hth_holders_drop(struct hth_holders *holders, const struct hth_peer_id *id);
void hth_holders_put_first(struct hth_holders *holders, const struct hth_peer_id *id);

#endif
