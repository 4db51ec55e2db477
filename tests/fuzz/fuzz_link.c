/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_link.c: any bytes as links of a chain, one after the other, on a genesis of three members.
 * A link that is taken writes the same bytes again, its voters are of its roll, and one that is
 * refused leaves no member behind.
 */
#include "collab/chain.h"
#include "sim/world.h"

#include <string.h>

static struct hth_chain *begin(void)
{
    struct hth_chain_opts opts = {.crypto = hth_sim_crypto(),
                                  .window = 8,
                                  .eventual = true,
                                  .links_max = 16,
                                  .members_max = 16};
    struct hth_chain *chain = hth_chain_new(&opts);
    struct hth_roll roll[3];
    for (uint8_t i = 0; i < 3; i++) {
        struct hth_peer_id id = {{i}};
        roll[i] = (struct hth_roll){.marks = HTH_ROLL_IN};
        HTH_ASSERT(hth_chain_member(chain, &id, i, &roll[i].member) == HTH_OK);
    }
    struct hth_chain_link genesis = {
        .prev = HTH_LINK_NONE, .kind = HTH_LINK_GENESIS, .roll = roll, .count = 3};
    uint32_t at;
    HTH_ASSERT(hth_chain_add(chain, &genesis, &at) == HTH_OK);
    return chain;
}

/* Members that have numbers. */
static uint32_t count_members(const struct hth_chain *chain)
{
    uint32_t count = 0;
    for (uint16_t i = 0; i < hth_chain_members(chain); i++)
        count += hth_chain_born(chain, i) != 0;
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_chain *chain = begin();
    struct hth_reader r;
    uint8_t again[2048];
    hth_reader_init(&r, data, size);
    while (hth_reader_left(&r) > 0) {
        size_t from = r.pos;
        uint32_t members = count_members(chain), link;
        if (hth_chain_read(chain, &r, NULL, &link) != HTH_OK) {
            HTH_ASSERT(link == HTH_LINK_NONE && count_members(chain) == members);
            break;
        }
        struct hth_writer w;
        hth_writer_init(&w, again, sizeof(again));
        hth_chain_write(chain, link, &w);
        HTH_ASSERT(w.err == HTH_OK && w.pos == r.pos - from &&
                   memcmp(again, data + from, w.pos) == 0);
        struct hth_voters voters = hth_chain_voters(chain, link);
        for (uint32_t i = 0; i < voters.count; i++)
            HTH_ASSERT(hth_chain_entry(chain, link, voters.member[i]) != NULL);
    }
    hth_chain_free(chain);
    return 0;
}
