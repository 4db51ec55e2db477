/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a member that ended in order: it comes back whole, or is refused with a reason. */
#include "collab/collab_file.h"
#include "collab/fold.h"
#include "collab/links.h"
#include "core/mem.h"
#include "support/suite.h"

enum { LINKS = 150 };

static struct hth_chain *make(void)
{
    return peopled_chain(false, 8, 400, 9);
}

static struct hth_collab_file header(void)
{
    struct hth_collab_file file = {.life = 77, .peers = 2, .vote.accepted = HTH_LINK_NONE};

    file.peer[0].id.b[0] = 1;
    file.peer[0].addr = (struct hth_addr){.family = 4, .ip = {10, 0, 0, 1}, .port = 7000};
    file.peer[1].id.b[0] = 2;
    return file;
}

/* After so many steps, without a vote for another candidate, or with one. */
static struct hth_blob *written(struct hth_chain *chain, uint32_t steps, bool accepted,
                                struct hth_collab_file *file)
{
    struct hth_blob *bytes;
    uint32_t tip = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 1);

    for (uint32_t i = 0; i < steps; i++)
        tip = put(chain, tip, HTH_LINK_STEP, "ABC", 1);
    *file = header();
    file->vote = (struct hth_vote){
        .tip = tip, .promised = 5, .accepted = accepted ? tip : HTH_LINK_NONE, .batch = 99};
    file->vote.accepted_n = accepted ? 4 : 0;
    assert_ok(hth_collab_file_write(chain, file, &bytes));
    return bytes;
}

TEST(vote_comes_back)
{
    for (uint32_t k = 0; k < 4; k++) {
        struct hth_chain *chain = make(), *again = make();
        struct hth_collab_file file, got;
        uint32_t steps = k & 1 ? LINKS : 3; /* with many its anchor is not the genesis */
        struct hth_blob *bytes = written(chain, steps, k & 2, &file);
        const struct hth_vote *vote = &got.vote;

        assert_ok(hth_collab_file_read(again, bytes->data, bytes->size, steps, &got));
        assert_true(got.life == 77 && got.peers == 2 && hth_chain_count(again) < 80);
        assert_true(got.peer[0].addr.port == 7000 && got.peer[1].addr.family == 0);
        assert_true(vote->promised == 5 && vote->batch == 99);
        assert_int_equal(vote->accepted, k & 2 ? vote->tip : HTH_LINK_NONE);
        assert_int_equal(vote->accepted_n, file.vote.accepted_n);
        assert_memory_equal(hth_chain_head(again, vote->tip), hth_chain_head(chain, file.vote.tip),
                            sizeof(struct hth_hash));
        assert_int_equal(hth_chain_samples(again, vote->tip),
                         hth_chain_samples(chain, file.vote.tip));
        assert_int_equal(hth_chain_voters(again, hth_chain_base(again, vote->tip)).count,
                         hth_chain_voters(chain, hth_chain_base(chain, file.vote.tip)).count);
        struct hth_fold *fold = hth_fold_upto(again, vote->tip);
        assert_true(fold->rest == 3 && fold->count == 3 && fold->peer[0].steps == steps);
        hth_free(fold);
        hth_blob_unref(bytes);
        hth_chain_free(chain);
        hth_chain_free(again);
    }
}

TEST(a_vote_for_another_candidate_is_not_kept)
{
    struct hth_chain *chain = make();
    struct hth_collab_file file;
    struct hth_blob *bytes = written(chain, 3, false, &file), *none;

    file.vote.accepted = put(chain, file.vote.tip - 1, HTH_LINK_STEP, "AB", 1);
    assert_err(HTH_E_STALE, hth_collab_file_write(chain, &file, &none));
    assert_null(none);
    hth_blob_unref(bytes);
    hth_chain_free(chain);
}

TEST(full_lines_fit)
{
    struct hth_chain_opts opts = {
        .crypto = hth_crypto_openssl(), .window = 16, .links_max = 400, .members_max = 128};
    struct hth_chain *chain = hth_chain_new(&opts);
    struct hth_roll roll[HTH_ROLL_LINE_MAX];
    struct hth_chain_link link = {
        .prev = HTH_LINK_NONE, .kind = HTH_LINK_GENESIS, .roll = roll, .count = HTH_ROLL_LINE_MAX};
    struct hth_collab_file file = {.peers = HTH_ROLL_LINE_MAX, .vote.accepted = HTH_LINK_NONE};
    struct hth_blob *bytes;

    for (uint8_t i = 0; i < HTH_ROLL_LINE_MAX; i++) {
        struct hth_peer_id id = {{i}};

        roll[i] = (struct hth_roll){.marks = HTH_ROLL_IN, .samples = 1};
        assert_ok(hth_chain_member(chain, &id, i, &roll[i].member));
    }
    for (uint32_t i = 0; i < 192 + 64; i++) { /* its base is the last before an epoch */
        assert_ok(hth_chain_add(chain, &link, &file.vote.tip));
        link.prev = file.vote.tip;
        link.kind = HTH_LINK_STEP;
        link.step++;
    }
    assert_ok(hth_collab_file_write(chain, &file, &bytes));
    assert_in_range(bytes->size, 200u << 10, HTH_COLLAB_FILE_BYTES_MAX);
    hth_blob_unref(bytes);
    hth_chain_free(chain);
}

/* Every length but the right one, and every byte. */
TEST(damage_is_found)
{
    struct hth_chain *chain = make(), *again = make();
    struct hth_collab_file file;
    struct hth_blob *bytes = written(chain, 3, true, &file);

    for (size_t len = 0; len < bytes->size; len++)
        assert_true(hth_collab_file_read(again, bytes->data, len, 3, &file) != HTH_OK);
    for (size_t i = 0; i < bytes->size; i++) {
        bytes->data[i] ^= 0x10;
        assert_err(i < 8    ? HTH_E_BAD_MAGIC
                   : i < 12 ? HTH_E_VERSION
                            : HTH_E_CORRUPT,
                   hth_collab_file_read(again, bytes->data, bytes->size, 3, &file));
        bytes->data[i] ^= 0x10;
    }
    assert_int_equal(hth_chain_count(again), 0);
    hth_blob_unref(bytes);
    hth_chain_free(chain);
    hth_chain_free(again);
}

enum {
    AT_RUN = 8 + 4,
    AT_STEP = AT_RUN + 32 + 8,
    AT_ACCEPTED = AT_STEP + 8 + 4,
    AT_LINKS = AT_ACCEPTED + 1 + 4 + 4 + 1 + 8,
    PEERS = 2 + 2 * (32 + 19), /* the last bytes before the hash */
    END = 1 << 20
};

/* With a hash that fits. */
TEST(lies_are_found)
{
    static const struct {
        size_t at;
        uint8_t value;
        uint64_t step; /* of the checkpoint */
        enum hth_err err;
    } cases[] = {
        {AT_RUN, 1, 3, HTH_E_WRONG_RUN},           {AT_STEP, 3, 4, HTH_E_STALE},
        {AT_STEP, 4, 4, HTH_E_MALFORMED},          {AT_ACCEPTED, 2, 3, HTH_E_MALFORMED},
        {AT_LINKS, 3, 3, HTH_E_MALFORMED},         {AT_LINKS, 5, 3, HTH_E_NOT_FOUND},
        {AT_LINKS + 2 + 8, 1, 3, HTH_E_NOT_FOUND}, {END - PEERS + 1, 1, 3, HTH_E_TOO_LARGE},
        {END - 1, 1, 3, HTH_E_MALFORMED},
    };
    struct hth_chain *chain = make();
    struct hth_collab_file file;
    struct hth_blob *bytes = written(chain, 3, true, &file);
    size_t len = bytes->size - sizeof(struct hth_hash);
    uint8_t *copy = hth_calloc(1, bytes->size);

    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_chain *again = make();
        struct hth_hash hash;

        memcpy(copy, bytes->data, len);
        copy[cases[i].at < END / 2 ? cases[i].at : cases[i].at + len - END] = cases[i].value;
        hth_crypto_openssl()->hash(copy, len, &hash);
        memcpy(copy + len, &hash, sizeof(hash));
        assert_err(cases[i].err,
                   hth_collab_file_read(again, copy, bytes->size, cases[i].step, &file));
        hth_chain_free(again);
    }
    hth_free(copy);
    hth_blob_unref(bytes);
    hth_chain_free(chain);
}
