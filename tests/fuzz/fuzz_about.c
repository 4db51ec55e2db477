/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_about.c: any bytes as what a peer says of itself and of others: an error, or figures in
 * range that survive a round trip.
 */
#include "monitor/about.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hth_about about;
    static uint8_t bytes[HTH_ABOUT_BYTES_MAX];
    if (hth_about_read(data, size, &about) != HTH_OK)
        return 0;
    HTH_ASSERT(about.started_us >= 0 && about.unsaved_since_us >= 0);
    HTH_ASSERT((unsigned)about.reach <= HTH_REACH_NO);
    HTH_ASSERT(about.peer_count <= HTH_ABOUT_PEERS_MAX);
    size_t len = hth_about_write(&about, bytes);
    HTH_ASSERT(about.refusal_count <= HTH_ABOUT_REFUSALS_MAX);
    /* An earlier version tells no refusals. */
    HTH_ASSERT(len <= size || (len == size + 1 && about.refusal_count == 0));
    HTH_ASSERT(memcmp(bytes, data, HTH_MIN(len, size)) == 0);
    return 0;
}
