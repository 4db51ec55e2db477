/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_record.c: records as the DHT delivers them, and their payloads, as any peer with a key can
 * sign any payload.
 */
#include "core/base.h"

#include <string.h>

#include "dht/listing.h"
#include "dht/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_record rec;
    struct hth_listing listing;
    struct hth_beacon beacon;
    char text[200];
    if (hth_record_peek(data, size, &rec) == HTH_OK) {
        HTH_ASSERT(rec.payload_len + HTH_RECORD_OVERHEAD_BYTES == size);
        enum hth_err err = hth_record_check_time(&rec, INT64_C(1700000000) * HTH_US_PER_S);
        hth_record_explain(err, &rec, INT64_C(1700000000) * HTH_US_PER_S, text);
        HTH_ASSERT(strlen(text) < sizeof(text));
    }
    if (size > HTH_RECORD_PAYLOAD_MAX)
        return 0;
    if (hth_listing_read(data, size, &listing) == HTH_OK) {
        uint64_t end = 0, count = 0;
        for (size_t i = 0; i < listing.run_count; i++) {
            HTH_ASSERT(i == 0 || listing.runs[i].first > end);
            HTH_ASSERT(listing.runs[i].count > 0);
            end = (uint64_t)listing.runs[i].first + listing.runs[i].count;
            count += listing.runs[i].count;
        }
        HTH_ASSERT(end <= hth_listing_universe(&listing) && count == listing.count);
        HTH_ASSERT(count <= HTH_ANNOUNCE_EXPERTS_MAX);
        hth_listing_clear(&listing);
    }
    if (hth_beacon_read(data, size, &beacon) == HTH_OK) {
        HTH_ASSERT(beacon.network[0] == '\0' ||
                   hth_name_check(beacon.network, strlen(beacon.network)) == HTH_OK);
        hth_beacon_clear(&beacon);
    }
    return 0;
}
