/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_peercache.c: the peer cache as found on a disk.
 */
#include "dht/peers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_peer_entry peers[8];
    size_t count = 99;
    enum hth_err err = hth_peercache_read(data, size, peers, HTH_ARRAY_LEN(peers), &count);
    HTH_ASSERT(err == HTH_OK ? count <= HTH_ARRAY_LEN(peers) : count == 0);
    return 0;
}
