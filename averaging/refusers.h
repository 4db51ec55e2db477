/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refusers.h: who was in a group and refused its parts, or answered what made no sense.
 *
 * It may have had a reason once. Who does it again within a minute, or within a minute after it was
 * excluded last, is excluded: for 10 s, and for twice as long each time, up to 640 s.
 *
 *   refuses   refuses again   excluded ..   refuses again   excluded .....
 *   --x-------------x=====================------x================================---
 *
 * HTH_AVG_REFUSERS_MAX are remembered. For one more the entry goes that would be over first: of
 * those not excluded now the one that refused, or was excluded, longest ago; when all are excluded,
 * the one whose time ends first. So a crowd of strangers that refuse once each lets nobody off.
 *
 * Times are the caller's, in us, and never go back. Pure.
 */
#ifndef HTH_AVERAGING_REFUSERS_H
#define HTH_AVERAGING_REFUSERS_H

#include "core/ident.h"
#include "core/limits.h"

struct hth_refuser {
    struct hth_peer_id id;
    uint32_t times; /* 0: none */
    int64_t at_us, excluded_until_us;
};

/* All zero: nobody. */
struct hth_refusers {
    struct hth_refuser at[HTH_AVG_REFUSERS_MAX];
};

void hth_refusers_add(struct hth_refusers *r, const struct hth_peer_id *id, int64_t now_us);
bool hth_refusers_exclude(const struct hth_refusers *r, const struct hth_peer_id *id,
                          int64_t now_us);

#endif
