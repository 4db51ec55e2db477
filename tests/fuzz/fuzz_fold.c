/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_fold.c: any bytes as the fold that a link names by their hash, where the sum of samples
 * before it is that of the bytes. A fold that is taken writes the same bytes again, its peers
 * ascend, and the totals behind the link add up.
 */
#include "collab/fold.h"
#include "core/mem.h"
#include "sim/world.h"

#include <string.h>

/* The rest, and each eight bytes that may be a peer's samples. */
static uint64_t sum_of(const uint8_t *data, size_t size)
{
    uint64_t sum = size >= 8 ? hth_load_u64le(data) : 0;
    for (size_t at = 8 + 4 + 32; at + 8 + 4 <= size; at += 32 + 8 + 4)
        sum += hth_load_u64le(data + at);
    return sum;
}

static uint32_t begin(struct hth_chain *chain, const uint8_t *data, size_t size)
{
    uint8_t bytes[8 + 32 + 4 + 4 + 1 + 32 + 4 + 50 + 2 + HTH_HASH_LEN] = {HTH_FOLD_STEPS};
    struct hth_reader r;
    uint32_t link;
    bytes[8] = 7; /* some link before it */
    bytes[8 + 32 + 4 + 4 + 1 + 32] = 1;
    bytes[8 + 32 + 4 + 4 + 1 + 32 + 4 + 32 + 8] = HTH_ROLL_IN;
    bytes[sizeof(bytes) - HTH_HASH_LEN - 2] = HTH_HASH_LEN;
    hth_sim_crypto()->hash(data, size,
                           (struct hth_hash *)(void *)(bytes + sizeof(bytes) - HTH_HASH_LEN));
    hth_reader_init(&r, bytes, sizeof(bytes));
    uint64_t before = sum_of(data, size);
    HTH_ASSERT(hth_chain_read(chain, &r, &before, &link) == HTH_OK);
    return link;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_chain_opts opts = {
        .crypto = hth_sim_crypto(), .window = 8, .links_max = 16, .members_max = 16};
    struct hth_chain *chain = hth_chain_new(&opts);
    uint32_t link = begin(chain, data, size);
    if (hth_fold_take(chain, link, data, size) == HTH_OK) {
        uint8_t *again = hth_calloc(1, HTH_FOLD_BYTES_MAX);
        const struct hth_fold *fold = hth_chain_held(chain, link)->table;
        HTH_ASSERT(hth_fold_write(fold, again) == size && memcmp(again, data, size) == 0);
        for (uint32_t i = 1; i < fold->count; i++)
            HTH_ASSERT(hth_peer_id_cmp(&fold->peer[i - 1].id, &fold->peer[i].id) < 0);
        hth_free(again);
        struct hth_fold *upto = hth_fold_upto(chain, link);
        uint64_t sum = upto->rest;
        for (uint32_t i = 0; i < upto->count; i++)
            sum += upto->peer[i].samples;
        HTH_ASSERT(sum == hth_chain_samples(chain, link));
        hth_free(upto);
    }
    hth_chain_free(chain);
    return 0;
}
