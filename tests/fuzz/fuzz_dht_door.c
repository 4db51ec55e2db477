/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_dht_door.c: datagrams as anybody sends them to a node of a closed run. The same one is let
 * in always, or as a stranger's, until BURST of them came at once.
 */
#include "core/base.h"

#include "dht/opendht_door.h"

#define BURST 32 /* as in opendht_door.c */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct hth_pubkey member = {{1}};
    struct hth_opendht_door *door = hth_opendht_door_new();
    HTH_ASSERT(hth_opendht_door_lets(door, data, size, 0));
    hth_opendht_door_know(door, 0, &member, true);
    unsigned let = 0;
    while (let < 2 * BURST && hth_opendht_door_lets(door, data, size, 1000 * HTH_US_PER_S))
        let++;
    HTH_ASSERT(let == 2 * BURST || let == BURST);
    hth_opendht_door_free(door);
    return 0;
}
