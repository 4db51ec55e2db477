/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a member that ended in order: it comes back whole, or is refused with a reason. */
#include "collab/collab_file.h"
#include "collab/fold.h"
#include "collab/links.h"
#include "core/mem.h"
#include "support/suite.h"

enum { LINKS = 150 };

static struct hth_chain *make(bool eventual)
{
    return peopled_chain(eventual, 8, 400, 9);
}

static struct hth_collab_file header(void)
{
    struct hth_collab_file file = {.run = {{9}}, .life = 77, .peers = 2};

    file.peer[0].id.b[0] = 1;
    file.peer[0].addr = (struct hth_addr){.family = 4, .ip = {10, 0, 0, 1}, .port = 7000};
    file.peer[1].id.b[0] = 2;
    return file;
}

/* `long_one`: its anchor is not the genesis. `other`: another candidate was accepted. */
static struct hth_blob *written(struct hth_chain *chain, bool long_one, bool other,
                                struct hth_vote *vote)
{
    const struct hth_collab_file file = header();
    struct hth_blob *bytes;
    uint32_t tip = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 1), before = tip;

    for (uint32_t i = 0; i < (long_one ? LINKS : 3); i++) {
        before = tip;
        tip = put(chain, tip, HTH_LINK_STEP, "ABC", 1);
    }
    *vote = (struct hth_vote){.tip = tip, .promised = 5, .accepted = HTH_LINK_NONE, .batch = 99};
    if (other) {
        vote->accepted = put(chain, before, HTH_LINK_STEP, "AB", 1);
        vote->accepted_n = 4;
    }
    assert_ok(hth_collab_file_write(hth_crypto_openssl(), &file, chain, vote, &bytes));
    return bytes;
}

TEST(vote_comes_back)
{
    for (uint32_t k = 0; k < 4; k++) {
        struct hth_chain *chain = make(false), *again = make(false);
        struct hth_vote vote, got;
        struct hth_blob *bytes = written(chain, k & 1, k & 2, &vote);
        struct hth_collab_file file;

        assert_ok(hth_collab_file_read(hth_crypto_openssl(), bytes->data, bytes->size, &file));
        assert_true(file.run.b[0] == 9 && file.life == 77);
        assert_int_equal(file.step, k & 1 ? LINKS : 3);
        assert_ok(hth_collab_file_vote(&file, again, &got));
        assert_true(file.peers == 2 && hth_chain_count(again) < 80);
        assert_true(file.peer[0].addr.port == 7000 && file.peer[1].addr.family == 0);
        assert_true(got.promised == 5 && got.batch == 99 && got.accepted_n == vote.accepted_n);
        assert_memory_equal(hth_chain_head(again, got.tip), hth_chain_head(chain, vote.tip),
                            sizeof(struct hth_hash));
        assert_true((got.accepted != HTH_LINK_NONE) == (k > 1));
        assert_int_equal(hth_chain_samples(again, got.tip), hth_chain_samples(chain, vote.tip));
        assert_int_equal(hth_chain_voters(again, hth_chain_base(again, got.tip)).count,
                         hth_chain_voters(chain, hth_chain_base(chain, vote.tip)).count);
        struct hth_fold *fold = hth_fold_upto(again, got.tip);
        assert_true(fold->rest == 3 && fold->count == 3 && fold->peer[0].steps == file.step);
        hth_free(fold);
        hth_blob_unref(bytes);
        hth_chain_free(chain);
        hth_chain_free(again);
    }
}

TEST(full_lines_fit)
{
    struct hth_chain_opts opts = {
        .crypto = hth_crypto_openssl(), .window = 16, .links_max = 400, .members_max = 128};
    struct hth_chain *chain = hth_chain_new(&opts);
    struct hth_roll roll[HTH_ROLL_LINE_MAX];
    struct hth_chain_link link = {
        .prev = HTH_LINK_NONE, .kind = HTH_LINK_GENESIS, .roll = roll, .count = HTH_ROLL_LINE_MAX};
    struct hth_collab_file file = {.peers = HTH_ROLL_LINE_MAX};
    struct hth_vote vote = {.accepted = HTH_LINK_NONE};
    struct hth_blob *bytes;

    for (uint8_t i = 0; i < HTH_ROLL_LINE_MAX; i++) {
        struct hth_peer_id id = {{i}};

        roll[i] = (struct hth_roll){.marks = HTH_ROLL_IN, .samples = 1};
        assert_ok(hth_chain_member(chain, &id, i, &roll[i].member));
    }
    for (uint32_t i = 0; i < 192 + 64; i++) { /* its base is the last before an epoch */
        assert_ok(hth_chain_add(chain, &link, &vote.tip));
        link.prev = vote.tip;
        link.kind = HTH_LINK_STEP;
        link.step++;
    }
    assert_ok(hth_collab_file_write(hth_crypto_openssl(), &file, chain, &vote, &bytes));
    assert_in_range(bytes->size, 200u << 10, HTH_COLLAB_FILE_BYTES_MAX);
    hth_blob_unref(bytes);
    hth_chain_free(chain);
}

/* Every length but the right one, and every byte. */
TEST(damage_is_found)
{
    struct hth_chain *chain = make(false);
    struct hth_vote vote;
    struct hth_blob *bytes = written(chain, false, true, &vote);
    struct hth_collab_file file;

    for (size_t len = 0; len < bytes->size; len++)
        assert_true(hth_collab_file_read(hth_crypto_openssl(), bytes->data, len, &file) != HTH_OK);
    for (size_t i = 0; i < bytes->size; i++) {
        bytes->data[i] ^= 0x10;
        assert_err(i < 8    ? HTH_E_BAD_MAGIC
                   : i < 12 ? HTH_E_VERSION
                            : HTH_E_CORRUPT,
                   hth_collab_file_read(hth_crypto_openssl(), bytes->data, bytes->size, &file));
        bytes->data[i] ^= 0x10;
    }
    hth_blob_unref(bytes);
    hth_chain_free(chain);
}

enum {
    AT_STEP = 8 + 4 + 32 + 8,
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
        enum hth_err err;
    } cases[] = {
        {AT_STEP, 200, HTH_E_MALFORMED},       {AT_ACCEPTED, 0, HTH_E_MALFORMED},
        {AT_ACCEPTED, 3, HTH_E_MALFORMED},     {AT_LINKS, 3, HTH_E_MALFORMED},
        {AT_LINKS, 5, HTH_E_VERSION},          {AT_LINKS + 2 + 8, 1, HTH_E_NOT_FOUND},
        {END - PEERS + 1, 1, HTH_E_TOO_LARGE}, {END - 1, 1, HTH_E_MALFORMED},
    };
    struct hth_chain *chain = make(false);
    struct hth_vote vote, got;
    struct hth_blob *bytes = written(chain, false, true, &vote);
    size_t len = bytes->size - sizeof(struct hth_hash);
    uint8_t *copy = hth_calloc(1, bytes->size);

    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_chain *again = make(false);
        struct hth_collab_file file;
        struct hth_hash hash;

        memcpy(copy, bytes->data, len);
        copy[cases[i].at < END / 2 ? cases[i].at : cases[i].at + len - END] = cases[i].value;
        hth_crypto_openssl()->hash(copy, len, &hash);
        memcpy(copy + len, &hash, sizeof(hash));
        enum hth_err err = hth_collab_file_read(hth_crypto_openssl(), copy, bytes->size, &file);
        assert_err(cases[i].err, err != HTH_OK ? err : hth_collab_file_vote(&file, again, &got));
        hth_chain_free(again);
    }
    hth_free(copy);
    hth_blob_unref(bytes);
    hth_chain_free(chain);
}

/* The accepted head of another choice; and forks, where the run has none. */
TEST(other_choices_are_refused)
{
    const struct hth_collab_file header_of = header();
    struct hth_chain *chain = make(true), *again = make(true), *strict = make(false);
    uint32_t first = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 1);
    uint32_t second = put(chain, first, HTH_LINK_STEP, "ABC", 1);
    struct hth_vote vote = {.tip = put(chain, second, HTH_LINK_FORK, "A", 1),
                            .accepted = second,
                            .batch = 1},
                    got;
    struct hth_collab_file file;
    struct hth_blob *bytes;

    assert_ok(hth_collab_file_write(hth_crypto_openssl(), &header_of, chain, &vote, &bytes));
    assert_ok(hth_collab_file_read(hth_crypto_openssl(), bytes->data, bytes->size, &file));
    assert_err(HTH_E_MALFORMED, hth_collab_file_vote(&file, again, &got));
    assert_err(HTH_E_REFUSED, hth_collab_file_vote(&file, strict, &got));
    hth_blob_unref(bytes);
    hth_chain_free(chain);
    hth_chain_free(again);
    hth_chain_free(strict);
}
