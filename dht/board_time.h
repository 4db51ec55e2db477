/* SPDX-License-Identifier: Apache-2.0 */
/*
 * board_time.h: private to dht/. When publishers are pinned and boards watched, as pure functions
 * of the wall clock; board.c has the picture.
 *
 * Declarations of averaging lie under keys that live for seconds only, so their topics have one
 * epoch for ever and never need a second watch.
 */
#ifndef HTH_DHT_BOARD_TIME_H
#define HTH_DHT_BOARD_TIME_H

#include "dht/record.h"

#define HTH_BOARD_LEAD_US    (5 * HTH_US_PER_S)  /* lead at which the next epoch is watched */
#define HTH_BOARD_OVERLAP_US (40 * HTH_US_PER_S) /* time for which the last one is watched */
/* every publisher is under the new key after it */
#define HTH_PUBLISHER_REPIN_US (30 * HTH_US_PER_S)
/* The wall clock may jump: the longest time between two reads of it. */
#define HTH_BOARD_POLL_US (30 * HTH_US_PER_S)

static inline void hth_board_epochs(int64_t wall_us, int64_t out[3])
{
    out[0] = hth_topic_epoch(wall_us);
    out[1] = hth_topic_epoch(wall_us + HTH_BOARD_LEAD_US);
    out[2] = hth_topic_epoch(wall_us - HTH_BOARD_OVERLAP_US);
}

/* Until one of the three epochs changes. */
static inline int64_t hth_board_next_change_us(int64_t wall_us)
{
    int64_t into_us = wall_us - hth_topic_epoch(wall_us) * HTH_TOPIC_EPOCH_US;
    int64_t next_us = HTH_TOPIC_EPOCH_US - HTH_BOARD_LEAD_US - into_us;
    if (into_us < HTH_BOARD_OVERLAP_US)
        next_us = HTH_BOARD_OVERLAP_US - into_us;
    else if (next_us <= 0)
        next_us = HTH_TOPIC_EPOCH_US - into_us;
    return next_us < HTH_BOARD_POLL_US ? next_us : HTH_BOARD_POLL_US;
}

#endif
