/* SPDX-License-Identifier: Apache-2.0 */
/* Signed bytes, the links that signatures prove, and the chains that win by them. */
#include "collab/collab_file.h"
#include "collab/links.h"
#include "collab/proof.h"
#include "core/mem.h"
#include "support/suite.h"

static struct hth_secret secret_of(uint16_t member)
{
    struct hth_secret secret;
    memset(secret.b, member + 1, sizeof(secret.b));
    return secret;
}

static struct hth_chain *make(bool eventual)
{
    struct hth_chain_opts opts = {.crypto = hth_crypto_openssl(),
                                  .window = 3,
                                  .eventual = eventual,
                                  .links_max = 64,
                                  .members_max = MEMBERS};
    memset(opts.run.b, 7, sizeof(opts.run.b));
    struct hth_chain *chain = hth_chain_new(&opts);
    for (uint16_t i = 0; i < MEMBERS; i++) {
        struct hth_secret secret = secret_of(i);
        struct hth_pubkey key;
        uint16_t number;
        opts.crypto->public_of(&secret, &key);
        struct hth_peer_id id = hth_peer_id_of(opts.crypto, &key);
        assert_ok(hth_chain_member(chain, &id, i, &number));
        assert_int_equal(number, i);
    }
    return chain;
}

static struct hth_sig sign(const struct hth_chain *chain, uint32_t link, char name, bool made)
{
    struct hth_sig sig;
    struct hth_secret secret = secret_of((uint16_t)(name - 'A'));
    hth_proof_sign(chain, link, (uint16_t)(name - 'A'), made, &secret, &sig);
    return sig;
}

static void keep(struct hth_chain *chain, uint32_t link, const char *names, bool check)
{
    for (; *names != '\0'; names++) {
        struct hth_sig sig = sign(chain, link, *names, true);
        assert_ok(hth_proof_keep(chain, link, &sig, check));
    }
}

/* By Python's struct.pack, and Ed25519 of its module cryptography. */
TEST(bytes_are_golden)
{
    struct hth_chain *chain = make(false);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "AB", 5);
    uint32_t one = put(chain, g, HTH_LINK_STEP, "AB", 9);
    char hex[2 * HTH_SIG_LEN + 1];
    static const char *const golden[] = {
        "74189db7b1acaac13cc979e60d0d2d59f77f0f085f4a0f4e9128e9ee2fadf465fc8de820e6efcc529a7946c036"
        "3a6b027eb198b8f859ffaea19ca00036734503",
        "f05221160cf7767c00090c187ee6c08b09576784ed1453df11ccef5a5ea780ee6a2eb23cef404b6950a54e9229"
        "f9883378c19d342d6679b2ac258365a006e202"};
    for (int made = 0; made < 2; made++) {
        struct hth_sig sig = sign(chain, one, 'B', made);
        hth_hex(sig.sig, sizeof(sig.sig), hex);
        assert_string_equal(hex, golden[made]);
    }
    hth_chain_free(chain);
}

TEST(wrong_signatures_are_refused)
{
    struct hth_chain *chain = make(false);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 5);
    uint32_t one = put(chain, g, HTH_LINK_STEP, "AB", 9);
    struct hth_sig good = sign(chain, one, 'A', true);
    for (unsigned i = 0; i < 4; i++) {
        struct hth_sig bad = i == 3 ? sign(chain, g, 'A', true) : good;
        bad.made = i == 0 ? false : bad.made;
        bad.sig[40] ^= i == 1;
        bad.key.b[3] ^= i == 2;
        assert_err(i == 2 ? HTH_E_NOT_FOUND : HTH_E_BAD_SIGNATURE,
                   hth_proof_keep(chain, one, &bad, true));
    }
    assert_int_equal(hth_chain_held(chain, one)->sigs, 0);
    struct hth_sig none = sign(chain, one, 'D', false); /* no voter */
    assert_err(HTH_E_NOT_FOUND, hth_proof_keep(chain, one, &none, true));
    assert_ok(hth_proof_keep(chain, one, &good, true));
    assert_ok(hth_proof_keep(chain, one, &good, true));
    assert_int_equal(hth_chain_held(chain, one)->sigs, 1);
    hth_chain_free(chain);
}

/* Others made three links; E and F went on by themselves. */
TEST(only_proven_samples_win)
{
    static const struct {
        const char *signs[3]; /* the links */
        bool wrong, trusts, wins;
    } cases[] = {
        {{"ABCD", "ABC", ""}, .wins = true},          /* each link has a quorum's, but the tip */
        {{"", "ABCD", ""}, .wins = true},             /* those on a later link cover the earlier */
        {{"", "", "ABC"}, .wins = true},              /* the tip's will do */
        {{"", "AB", ""}, .wins = false},              /* too few of the first link's voters */
        {{"", "AB", ""}, .wrong = true},              /* and a third one is wrong */
        {{"", "", ""}, .trusts = true, .wins = true}, /* it takes part in that chain itself */
    };
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct hth_chain *a = make(true), *b = make(true);
        uint32_t g = put(a, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABCDE", 5);
        assert_int_equal(put(b, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABCDE", 5), g);
        uint32_t one = put(a, g, HTH_LINK_STEP, "ABCD", 900);
        uint32_t two = put(a, one, HTH_LINK_STEP, "ABC", 900);
        uint32_t tip = put(a, two, HTH_LINK_STEP, "ABC", 900);
        uint32_t own = put(b, g, HTH_LINK_FORK, "EF", 20);
        uint32_t there[] = {copy(a, one, b), copy(a, two, b), copy(a, tip, b)};
        assert_false(hth_chain_better(b, there[2], own));
        if (cases[k].wrong) {
            struct hth_sig bad = sign(b, there[1], 'D', true);
            bad.sig[0] ^= 1;
            assert_ok(hth_proof_keep(b, there[1], &bad, false));
        }
        for (size_t i = 0; i < HTH_ARRAY_LEN(there); i++)
            keep(b, there[i], cases[k].signs[i], false);
        if (cases[k].trusts)
            hth_chain_trust(b, there[2]);
        assert_int_equal(hth_chain_better(b, there[2], own), cases[k].wins);
        assert_true(!cases[k].wins || !hth_chain_better(b, own, there[2]));
        hth_chain_free(a);
        hth_chain_free(b);
    }
}

/* A genesis needs its maker's signature; a fork those of its voters, one of whom had a vote. */
TEST(geneses_and_forks_are_proven)
{
    struct hth_chain *a = make(true), *b = make(true);
    uint32_t own = put(b, HTH_LINK_NONE, HTH_LINK_GENESIS, "AB", 5);
    uint32_t other = copy(a, put(a, HTH_LINK_NONE, HTH_LINK_GENESIS, "C", 999), b);
    assert_false(hth_chain_better(b, other, own));
    keep(b, other, "C", false);
    assert_true(hth_chain_better(b, other, own));
    uint32_t g = put(a, HTH_LINK_NONE, HTH_LINK_GENESIS, "AB", 5);
    uint32_t ef = copy(a, put(a, g, HTH_LINK_FORK, "EF", 999), b);
    keep(b, ef, "EF", false);
    assert_false(hth_chain_better(b, ef, put(b, own, HTH_LINK_STEP, "AB", 1)));
    hth_chain_free(a);
    hth_chain_free(b);
    for (unsigned k = 0; k < 3; k++) {
        a = make(true), b = make(true);
        g = put(a, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABCD", 5);
        assert_int_equal(put(b, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABCD", 5), g);
        own = put(b, g, HTH_LINK_FORK, "D", 1);
        uint32_t one = put(a, g, HTH_LINK_STEP, "ABC", 50); /* A alone has it, and forks */
        uint32_t forked = put(a, one, HTH_LINK_FORK, "AE", 50), cut = copy(a, one, b);
        uint32_t fork = copy(a, forked, b);
        if (k > 0)
            keep(b, cut, "A", false);
        if (k > 1)
            keep(b, fork, "A", false);
        assert_int_equal(hth_chain_better(b, fork, own), k > 1);
        hth_chain_free(a);
        hth_chain_free(b);
    }
}

/* A later step of one's own chain is followed when a voter signed it, or one of the step before. */
TEST(tips_are_backed)
{
    struct hth_chain *a = make(false), *b = make(false);
    uint32_t g = put(a, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 5);
    assert_int_equal(put(b, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 5), g);
    uint32_t one = put(a, g, HTH_LINK_STEP, "ABD", 9), two = put(a, one, HTH_LINK_STEP, "ABCDE", 9);
    uint32_t first = copy(a, one, b), second = copy(a, two, b);
    struct hth_sig stranger = sign(b, first, 'D', true);
    assert_err(HTH_E_NOT_FOUND, hth_proof_keep(b, first, &stranger, false));
    assert_false(hth_chain_better(b, first, g));
    keep(b, first, "B", false);
    assert_true(hth_chain_better(b, first, g));
    stranger = sign(b, second, 'E', true);
    assert_err(HTH_E_NOT_FOUND, hth_proof_keep(b, second, &stranger, false));
    keep(b, first, "A", false);
    assert_false(hth_chain_better(b, second, g));
    keep(b, second, "C", false); /* it missed the first */
    assert_true(hth_chain_better(b, second, g));
    hth_chain_free(b);
    b = make(false);
    g = put(b, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 5);
    first = copy(a, one, b);
    second = copy(a, two, b);
    keep(b, second, "D", false);
    assert_false(hth_chain_better(b, second, g)); /* the first is not proven */
    keep(b, first, "AB", false);
    assert_true(hth_chain_better(b, second, g));
    hth_chain_free(a);
    hth_chain_free(b);
}

/* Two links of one ballot, each signed as made by one life. One of them was fetched: no twin. */
TEST(equivocation_is_found)
{
    for (unsigned k = 0; k < 8; k++) {
        bool first = k & 1, second = k & 2, check = k & 4;
        struct hth_chain *chain = make(false);
        uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 5);
        uint32_t one = put(chain, g, HTH_LINK_STEP, "AB", 9);
        uint32_t two = put(chain, g, HTH_LINK_STEP, "ABC", 9);
        uint32_t next = put(chain, two, HTH_LINK_STEP, "ABC", 9);
        struct hth_sig sig = sign(chain, one, 'A', first);
        assert_ok(hth_proof_keep(chain, one, &sig, check));
        sig = sign(chain, next, 'A', true);
        assert_ok(hth_proof_keep(chain, next, &sig, true));
        sig = sign(chain, two, 'A', second);
        if (!check && first && second) { /* a bad one convicts nobody */
            struct hth_sig bad = sig;
            bad.sig[0] ^= 1;
            assert_ok(hth_proof_keep(chain, two, &bad, false));
        }
        assert_err(first && second ? HTH_E_PROTOCOL : HTH_OK,
                   hth_proof_keep(chain, two, &sig, true));
        hth_chain_free(chain);
    }
}

/* One signature of each member goes with a whole run of links. */
TEST(few_signatures_are_picked)
{
    struct hth_chain *chain = make(false);
    uint32_t link[9] = {put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABCD", 5)};
    const struct hth_sig *out[MEMBERS];
    uint64_t set[MEMBERS / 64 + 1] = {0};
    keep(chain, link[0], "ABCD", true);
    for (size_t i = 1; i < HTH_ARRAY_LEN(link); i++) {
        link[i] = put(chain, link[i - 1], HTH_LINK_STEP, "ABCD", 9);
        keep(chain, link[i], "ABCD", true);
    }
    for (size_t i = HTH_ARRAY_LEN(link); i-- > 0;)
        if (i == 8)
            assert_in_range(hth_proof_pick(chain, link[i], set, false, out, MEMBERS), 2, 3);
        else
            assert_int_equal(hth_proof_pick(chain, link[i], set, false, out, MEMBERS), 0);
    hth_chain_free(chain);
}

/* The founder's signature on a later link than its own, which that one does not need, proves what
 * it alone could choose. */
TEST(links_carry_what_proves_the_first_ones)
{
    struct hth_chain *a = make(false), *b = make(false);
    uint8_t bytes[4096 + HTH_LINKS_MORE_MAX];
    struct hth_wire out = hth_wire_into(bytes, sizeof(bytes));
    struct hth_links links;
    uint32_t g = put(a, HTH_LINK_NONE, HTH_LINK_GENESIS, "A", 5);
    uint32_t one = put(a, g, HTH_LINK_STEP, "ABC", 9), two = put(a, one, HTH_LINK_STEP, "ABC", 9);
    uint32_t three = put(a, two, HTH_LINK_STEP, "BC", 9);
    uint32_t four = put(a, three, HTH_LINK_STEP, "BC", 9);
    keep(a, two, "A", true);
    keep(a, four, "BC", true);
    hth_links_path(a, g, four, &links);
    hth_links_put(a, &links, 4096, &out);
    struct hth_wire in = hth_wire_of(bytes, out.w.pos);
    assert_ok(hth_links_get(b, &in, HTH_LINKS_MAX, &links));
    assert_true(hth_chain_better(b, links.link[5], links.link[1]));
    hth_chain_free(a);
    hth_chain_free(b);
}

/* A reader that begins at an anchor is told the sum before it: a voter's signature covers it. */
TEST(sums_are_signed)
{
    struct hth_chain *a = make(false);
    uint32_t g = put(a, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 5);
    uint32_t one = put(a, g, HTH_LINK_STEP, "ABC", 9), two = put(a, one, HTH_LINK_STEP, "AB", 9);
    for (unsigned k = 0; k < 3; k++) {
        struct hth_chain *b = make(false);
        uint32_t got;
        assert_ok(read_copy(a, one, b, true, k == 2 ? 15 + 1000 : 15, &got));
        got = copy(a, two, b);
        assert_false(hth_proof_stands(b, got));
        struct hth_sig sig = sign(a, two, 'B', true);
        if (k > 0)
            assert_ok(hth_proof_keep(b, got, &sig, false));
        assert_int_equal(hth_proof_stands(b, got), k == 1);
        hth_chain_free(b);
    }
    hth_chain_free(a);
}

/* A newcomer takes a link where a quorum signed the one before it, or this one. */
TEST(a_newest_link_stands_on_a_proven_one)
{
    static const struct {
        const char *before, *newest;
        bool stands;
    } cases[] = {{"", "", false},  {"A", "", false},  {"AB", "", true},
                 {"A", "B", true}, {"", "ABC", true}, {"", "C", false}};
    struct hth_chain *a = make(false);
    uint32_t g = put(a, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 5);
    uint32_t one = put(a, g, HTH_LINK_STEP, "ABC", 9), two = put(a, one, HTH_LINK_STEP, "ABC", 9);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_chain *b = make(false);
        uint32_t first = copy(a, g, b), before = copy(a, one, b), newest = copy(a, two, b);
        keep(b, before, cases[i].before, false);
        keep(b, newest, cases[i].newest, false);
        assert_int_equal(hth_proof_stands(b, newest), cases[i].stands);
        assert_true(hth_proof_stands(b, first));
        hth_chain_free(b);
    }
    hth_chain_free(a);
}

/* A member that goes on with its file can still show others what its chain says. */
TEST(files_keep_the_proof)
{
    struct hth_chain *chain = make(false), *again = make(false);
    struct hth_collab_file file = {.life = 1, .vote.accepted = HTH_LINK_NONE};
    struct hth_blob *bytes;
    const struct hth_sig *out[MEMBERS];
    uint64_t set[MEMBERS / 64 + 1] = {0};
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABCD", 5);
    uint32_t one = put(chain, g, HTH_LINK_STEP, "ABCd", 9);
    file.vote.tip = put(chain, one, HTH_LINK_STEP, "ABC", 9);
    keep(chain, one, "ABD", true);
    keep(chain, file.vote.tip, "A", true);
    assert_ok(hth_collab_file_write(chain, &file, &bytes));
    assert_ok(hth_collab_file_read(again, bytes->data, bytes->size, 2, &file));
    uint32_t tip = file.vote.tip;
    assert_true(hth_chain_held(again, tip)->trusted);
    assert_int_equal(hth_proof_pick(again, tip, set, true, out, MEMBERS), 1);
    assert_int_equal(
        hth_proof_pick(again, hth_chain_at(again, tip)->prev, set, true, out, MEMBERS), 1);
    hth_blob_unref(bytes);
    hth_chain_free(chain);
    hth_chain_free(again);
}
