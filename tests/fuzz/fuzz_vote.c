/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_vote.c: any bytes as the file of a member that ended in order, with a hash that fits. A file
 * that is taken has its head in the chain, and its vote can be written and read again.
 */
#include "collab/collab_file.h"
#include "core/mem.h"
#include "sim/world.h"

#include <string.h>

enum { AT_STEP = 8 + 4 + 32 + 8 };

static struct hth_chain *begin(void)
{
    struct hth_chain_opts opts = {.crypto = hth_sim_crypto(),
                                  .window = 8,
                                  .eventual = true,
                                  .links_max = 128,
                                  .members_max = 64};
    return hth_chain_new(&opts);
}

/* A file of that step, whose links are in the chain. */
static void check(const struct hth_chain *chain, const struct hth_collab_file *file, uint64_t step)
{
    struct hth_chain *other = begin();
    const struct hth_vote *vote = &file->vote;
    struct hth_collab_file again;
    struct hth_blob *bytes;
    HTH_ASSERT(hth_chain_at(chain, vote->tip)->step == step);
    HTH_ASSERT(hth_collab_file_write(chain, file, &bytes) == HTH_OK);
    HTH_ASSERT(hth_collab_file_read(other, bytes->data, bytes->size, step, &again) == HTH_OK);
    HTH_ASSERT(again.vote.promised == vote->promised && again.vote.batch == vote->batch &&
               again.vote.accepted_n == vote->accepted_n);
    HTH_ASSERT((again.vote.accepted == again.vote.tip) == (vote->accepted == vote->tip));
    HTH_ASSERT(memcmp(hth_chain_head(chain, vote->tip), hth_chain_head(other, again.vote.tip),
                      sizeof(struct hth_hash)) == 0);
    hth_blob_unref(bytes);
    hth_chain_free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = hth_calloc(1, size + sizeof(struct hth_hash));
    uint64_t step = size < AT_STEP + 8 ? 0 : hth_load_u64le(data + AT_STEP);
    struct hth_chain *chain = begin();
    struct hth_collab_file file;
    struct hth_hash hash;
    memcpy(bytes, data, size);
    hth_sim_crypto()->hash(bytes, size, &hash);
    memcpy(bytes + size, &hash, sizeof(hash));
    if (hth_collab_file_read(chain, bytes, size + sizeof(hash), step, &file) == HTH_OK)
        check(chain, &file, step);
    hth_chain_free(chain);
    hth_free(bytes);
    return 0;
}
