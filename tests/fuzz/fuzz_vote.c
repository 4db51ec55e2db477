/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_vote.c: any bytes as the file of a member that ended in order, with a hash that fits. A file
 * that is taken has its head and its accepted one in the chain, and its vote can be written and
 * read again.
 */
#include "collab/collab_file.h"
#include "core/mem.h"
#include "sim/world.h"

#include <string.h>

static struct hth_chain *begin(void)
{
    struct hth_chain_opts opts = {.crypto = hth_sim_crypto(),
                                  .window = 8,
                                  .eventual = true,
                                  .links_max = 128,
                                  .members_max = 64};
    return hth_chain_new(&opts);
}

static void check(struct hth_collab_file *file)
{
    struct hth_chain *chain = begin(), *other = begin();
    struct hth_vote vote, again;
    struct hth_collab_file read;
    struct hth_blob *bytes;
    if (hth_collab_file_vote(file, chain, &vote) == HTH_OK) {
        HTH_ASSERT(hth_chain_at(chain, vote.tip)->step == file->step);
        HTH_ASSERT(hth_collab_file_write(hth_sim_crypto(), file, chain, &vote, &bytes) == HTH_OK);
        HTH_ASSERT(hth_collab_file_read(hth_sim_crypto(), bytes->data, bytes->size, &read) ==
                   HTH_OK);
        HTH_ASSERT(hth_collab_file_vote(&read, other, &again) == HTH_OK);
        HTH_ASSERT(again.promised == vote.promised && again.batch == vote.batch &&
                   again.accepted_n == vote.accepted_n);
        HTH_ASSERT(memcmp(hth_chain_head(chain, vote.tip), hth_chain_head(other, again.tip),
                          sizeof(struct hth_hash)) == 0 &&
                   read.accepted == file->accepted);
        hth_blob_unref(bytes);
    }
    hth_chain_free(other);
    hth_chain_free(chain);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = hth_calloc(1, size + sizeof(struct hth_hash));
    struct hth_collab_file file;
    struct hth_hash hash;
    memcpy(bytes, data, size);
    hth_sim_crypto()->hash(bytes, size, &hash);
    memcpy(bytes + size, &hash, sizeof(hash));
    if (hth_collab_file_read(hth_sim_crypto(), bytes, size + sizeof(hash), &file) == HTH_OK)
        check(&file);
    hth_free(bytes);
    return 0;
}
