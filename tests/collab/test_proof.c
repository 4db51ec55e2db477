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
    struct hth_sig none = sign(chain, one, 'D', false); /* no voter, */
    assert_err(HTH_E_NOT_FOUND, hth_proof_keep(chain, one, &none, true));
    uint32_t two = put(chain, put(chain, one, HTH_LINK_STEP, "ABD", 9), HTH_LINK_STEP, "ABDE", 9);
    none = sign(chain, two, 'E', true); /* nor of the step before */
    assert_err(HTH_E_NOT_FOUND, hth_proof_keep(chain, two, &none, false));
    assert_ok(hth_proof_keep(chain, one, &good, true));
    assert_ok(hth_proof_keep(chain, one, &good, true));
    assert_int_equal(hth_chain_held(chain, one)->sigs, 1);
    hth_chain_free(chain);
}

/* On a genesis that both have, others made links, and the reader one of its own, or none. A later
 * step of its own chain is followed when a voter signed it, or one of the step before. */
static const struct {
    const char *theirs[4]; /* rolls, the first of the genesis; "!": a fork */
    const char *signs[4];  /* who signed them */
    const char *own;       /* roll; NULL: none */
    bool wins;
    bool apart;  /* its own link is another genesis */
    bool wrong;  /* D's signature on the third link is none */
    bool trusts; /* it takes part in the others' chain itself */
} chains[] = {
    /* each link has a quorum's, but the tip; */
    {{"ABCDE", "ABCD", "ABC", "ABC"}, {"", "ABCD", "ABC", ""}, .own = "!EF", .wins = true},
    /* those on a later link cover the earlier; the tip's will do; */
    {{"ABCDE", "ABCD", "ABC", "ABC"}, {"", "", "ABCD", ""}, .own = "!EF", .wins = true},
    {{"ABCDE", "ABCD", "ABC", "ABC"}, {"", "", "", "ABC"}, .own = "!EF", .wins = true},
    /* too few of the first link's voters, or a third one that is wrong */
    {{"ABCDE", "ABCD", "ABC", "ABC"}, {"", "", "AB", ""}, .own = "!EF"},
    {{"ABCDE", "ABCD", "ABC", "ABC"}, {"", "", "AB", ""}, .own = "!EF", .wrong = true},
    {{"ABCDE", "ABCD", "ABC", "ABC"}, {"", "", "", ""}, .own = "!EF", .wins = true, .trusts = true},
    /* a genesis needs its maker's; a fork those of its voters, one of whom had a vote; */
    {{"C"}, {"C"}, .own = "AB", .wins = true, .apart = true},
    {{"AB", "!EF"}, {"", "EF"}, .own = "AB"},
    /* A alone has a link, and forks: */
    {{"ABCD", "ABC", "!AE"}, {"", "A", ""}, .own = "!D"},
    {{"ABCD", "ABC", "!AE"}, {"", "A", "A"}, .own = "!D", .wins = true},
    /* of its own chain: C missed the first step, and D was not there before it */
    {{"ABC", "ABD"}, {"", "B"}, .wins = true},
    {{"ABC", "ABD", "ABCDE"}, {"", "AB", ""}, .wins = false},
    {{"ABC", "ABD", "ABCDE"}, {"", "AB", "C"}, .wins = true},
    {{"ABC", "ABD", "ABCDE"}, {"", "", "D"}, .wins = false},
    {{"ABC", "ABD", "ABCDE"}, {"", "AB", "D"}, .wins = true},
};

static uint32_t grow(struct hth_chain *chain, uint32_t prev, const char *roll, uint32_t samples)
{
    bool fork = *roll == '!';
    return put(chain, prev,
               prev == HTH_LINK_NONE ? HTH_LINK_GENESIS
               : fork                ? HTH_LINK_FORK
                                     : HTH_LINK_STEP,
               roll + fork, samples);
}

TEST(chains_win_by_what_is_proven)
{
    for (size_t k = 0; k < HTH_ARRAY_LEN(chains); k++) {
        struct hth_chain *a = make(chains[k].own != NULL), *b = make(chains[k].own != NULL);
        uint32_t own = HTH_LINK_NONE, at = HTH_LINK_NONE, there[4], n = 0;
        if (!chains[k].apart)
            own = grow(b, HTH_LINK_NONE, chains[k].theirs[0], 5);
        if (chains[k].own != NULL)
            own = grow(b, own, chains[k].own, 20);
        for (; n < 4 && chains[k].theirs[n] != NULL; n++) {
            at = grow(a, at, chains[k].theirs[n], n == 0 && !chains[k].apart ? 5 : 900);
            there[n] = copy(a, at, b);
        }
        assert_false(hth_chain_better(b, there[n - 1], own));
        if (chains[k].wrong) {
            struct hth_sig bad = sign(b, there[2], 'D', true);
            bad.sig[0] ^= 1;
            assert_ok(hth_proof_keep(b, there[2], &bad, false));
        }
        for (uint32_t i = 0; i < n; i++)
            keep(b, there[i], chains[k].signs[i], false);
        if (chains[k].trusts)
            hth_chain_trust(b, there[n - 1]);
        if (hth_chain_better(b, there[n - 1], own) != chains[k].wins)
            fail_msg("case %zu", k);
        assert_true(!chains[k].wins || !hth_chain_better(b, own, there[n - 1]));
        hth_chain_free(a);
        hth_chain_free(b);
    }
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
    uint64_t set[MEMBERS / 64 + 1] = {0};
    keep(chain, link[0], "ABCD", true);
    for (size_t i = 1; i < HTH_ARRAY_LEN(link); i++) {
        link[i] = put(chain, link[i - 1], HTH_LINK_STEP, "ABCD", 9);
        keep(chain, link[i], "ABCD", true);
    }
    for (size_t i = HTH_ARRAY_LEN(link); i-- > 0;) {
        uint32_t picked = hth_proof_pick(chain, link[i], set, false, MEMBERS, NULL, NULL);
        assert_in_range(picked, i == 8 ? 2 : 0, i == 8 ? 3 : 0);
    }
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
    uint64_t set[MEMBERS / 64 + 1] = {0};
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABCD", 5);
    uint32_t one = put(chain, g, HTH_LINK_STEP, "ABCd", 9);
    file.vote.tip = put(chain, one, HTH_LINK_STEP, "ABC", 9);
    keep(chain, one, "ABD", true);
    keep(chain, file.vote.tip, "A", true);
    assert_ok(hth_collab_file_write(chain, &file, &bytes));
    assert_ok(hth_collab_file_read(again, bytes->data, bytes->size, 2, &file));
    uint32_t tip = file.vote.tip, before = hth_chain_at(again, tip)->prev;
    assert_true(hth_chain_held(again, tip)->trusted);
    assert_int_equal(hth_proof_pick(again, tip, set, true, MEMBERS, NULL, NULL), 1);
    assert_int_equal(hth_proof_pick(again, before, set, true, MEMBERS, NULL, NULL), 1);
    hth_blob_unref(bytes);
    hth_chain_free(chain);
    hth_chain_free(again);
}
