/* SPDX-License-Identifier: Apache-2.0 */
/*
 * census_int.h (internal): how the census and the joiner's scan both count an expired beacon.
 */
#ifndef HTH_DHT_CENSUS_INT_H
#define HTH_DHT_CENSUS_INT_H

#include "core/crypto.h"
#include "dht/peers.h"
#include "dht/record.h"

/* Counts an expired beacon and keeps the one issued last: its owner is the likeliest to live. */
void hth_census_count_expired(struct hth_census_stats *stats, const struct hth_crypto *crypto,
                              const struct hth_record *rec);

#endif
