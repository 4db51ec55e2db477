/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.h: how many samples each member of a roll brings to a batch, so that it is full soonest.
 *
 * Samples come in micro-batches, which are never cut and never thrown away: those that have landed
 * and those in the air belong to the batch, whatever the plan. The rest goes to the machines whose
 * next landings are the earliest:
 *
 *     time      now             closes
 *     fast      |--8--|--8--|--8--|            3 more: quota = landed + in the air + 24
 *     slow      |~~~~~8~~~~~|--------8----      in the air, and no more
 *     later     |---------------------8-        none: it brings its vote alone
 *
 * Pure functions without memory, any thread.
 */
#ifndef HTH_COLLAB_QUOTA_H
#define HTH_COLLAB_QUOTA_H

#include "core/base.h"

/* As each_us: its sender starts no more micro-batches. */
#define HTH_BRINGS_NO_MORE INT64_MAX

/* How a member gathers. */
struct hth_brings {
    uint32_t samples; /* landed, in this batch */
    uint32_t air;     /* in the air */
    uint32_t grain;   /* of one micro-batch; 0 counts as 1 */
    int64_t lands_us; /* from now until all that is in the air has landed; the next one starts then.
                       * Below 0: so long ago */
    int64_t each_us;  /* from one landing to the next; 0 or less: not known */
};

/* The plan whose last landing is the earliest: quota[i] is at least samples + air of member i, and
 * more by whole micro-batches. Their sum reaches the target; what is added goes beyond it by less
 * than the micro-batch that lands last. (A batch may go farther beyond: a caller adds one for a
 * vote, and what has started before a lower quota is heard of counts.) Of those that land in the
 * same moment the first in the array bring theirs. A member of unknown speed counts with the lower
 * median of those that are known, and with a second where none is. Times are taken as at most 18
 * minutes (2^30 us), quotas are at most UINT32_MAX. Returns false, with quota = samples + air, if
 * the target is out of reach. About 100 n divisions. */
bool hth_quota(const struct hth_brings *in, uint32_t n, uint64_t target, uint32_t *quota) HTH_MUST;
/* When the last of them has reached its quota, from now; 0: all have. INT64_MAX: one brings no
 * more, and less. */
int64_t hth_quota_closes_us(const struct hth_brings *in, uint32_t n, const uint32_t *quota);

#endif
