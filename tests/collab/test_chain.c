/* SPDX-License-Identifier: Apache-2.0 */
/* Links that are refused, votes and quorums by hand, and which of two chains remains. */
#include "collab/choice.h"
#include "collab/links.h"
#include "core/mem.h"
#include "support/suite.h"

static struct hth_chain *make(bool eventual)
{
    return peopled_chain(eventual, 3, 12, MEMBERS);
}

TEST(half_of_the_rolls_give_a_vote)
{
    struct hth_chain *chain = make(false);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 4);
    uint32_t one = put(chain, g, HTH_LINK_STEP, "AB*C", 4);
    uint32_t two = put(chain, one, HTH_LINK_STEP, "BAD", 4);
    uint32_t three = put(chain, two, HTH_LINK_STEP, "AbCD", 4);
    static const bool want[][MEMBERS] = {
        {true, true, true},
        {true, true},               /* in part is not in */
        {true, true},               /* D was in fewer than half as many as A */
        {true, false, false, true}, /* D in two of three, the window; B has left */
    };
    uint32_t links[] = {g, one, two, three};
    for (size_t k = 0; k < HTH_ARRAY_LEN(want); k++)
        for (uint16_t i = 0; i < MEMBERS; i++)
            assert_int_equal(hth_chain_votes(chain, links[k], i), want[k][i]);
    assert_int_equal(hth_chain_samples(chain, three), 12 + 8 + 12 + 16);
    assert_true(hth_chain_used(chain, three, 2, 1));
    assert_false(hth_chain_used(chain, three, 2, 2));
    assert_false(hth_chain_used(chain, g, 0, 1));
    hth_chain_free(chain);
}

TEST(the_last_to_leave_keeps_its_vote)
{
    struct hth_chain *chain = make(false);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "AB", 1);
    uint32_t one = put(chain, g, HTH_LINK_STEP, "ab", 1);
    assert_int_equal(hth_chain_voters(chain, one).count, 2);
    hth_chain_free(chain);
}

/* All 2^n sets: a quorum is more than half, or half with the first voter; of a set and its
 * complement exactly one is. */
TEST(of_two_halves_one_is_a_quorum)
{
    struct hth_chain *chain = make(false);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABCD", 1);
    uint32_t one = put(chain, g, HTH_LINK_STEP, "ABC", 1);
    uint32_t links[] = {g, one};
    for (size_t k = 0; k < HTH_ARRAY_LEN(links); k++) {
        struct hth_voters v = hth_chain_voters(chain, links[k]);
        for (uint64_t set = 0; set < 16; set++) {
            uint32_t sum = 0;
            for (uint16_t i = 0; i < 4; i++)
                sum += set >> i & 1 && hth_chain_votes(chain, links[k], i);
            bool first = set >> v.member[0] & 1, want = 2 * sum > v.count;
            want |= 2 * sum == v.count && first;
            uint64_t rest = ~set;
            assert_int_equal(hth_chain_quorum(chain, links[k], hth_members_has, &set), want);
            assert_int_equal(hth_chain_quorum(chain, links[k], hth_members_has, &rest), !want);
        }
    }
    hth_chain_free(chain);
}

TEST(bad_links_are_refused)
{
    struct hth_chain *chain = make(false);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 1), out;
    uint32_t one = put(chain, g, HTH_LINK_STEP, "ABC", 1);
    assert_int_equal(put(chain, g, HTH_LINK_STEP, "CAB", 1), one); /* order says nothing */
    try_put(chain, g, HTH_LINK_STEP, "*A*B", 1, HTH_E_MALFORMED);
    try_put(chain, g, HTH_LINK_STEP, "", 1, HTH_E_MALFORMED);
    try_put(chain, g, HTH_LINK_STEP, "ABA", 1, HTH_E_MALFORMED);
    try_put(chain, g, HTH_LINK_GENESIS, "ABC", 1, HTH_E_MALFORMED);
    try_put(chain, HTH_LINK_NONE, HTH_LINK_STEP, "ABC", 1, HTH_E_MALFORMED);
    try_put(chain, one, HTH_LINK_STEP, "A", 1, HTH_E_STALE);
    try_put(chain, one, HTH_LINK_STEP, "ADEF", 1, HTH_E_STALE); /* strangers do not vote */
    try_put(chain, one, HTH_LINK_FORK, "A", 1, HTH_E_REFUSED);
    struct hth_roll roll = {0, HTH_ROLL_IN | HTH_ROLL_PART, 0, 0};
    struct hth_chain_link link = {.step = 2, .prev = one, .roll = &roll, .count = 1};
    static const uint16_t bad_marks[] = {0, 3, 6, 8, 9, 16, UINT16_MAX};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad_marks); i++) {
        roll.marks = bad_marks[i];
        assert_err(HTH_E_MALFORMED, hth_chain_add(chain, &link, &out));
    }
    roll = (struct hth_roll){MEMBERS, HTH_ROLL_IN, 0, 0};
    assert_err(HTH_E_MALFORMED, hth_chain_add(chain, &link, &out));
    roll = (struct hth_roll){0, HTH_ROLL_IN, 0, 0};
    link.prev = 7;
    assert_err(HTH_E_NOT_FOUND, hth_chain_add(chain, &link, &out));
    link.prev = one;
    link.step = 3;
    assert_err(HTH_E_MALFORMED, hth_chain_add(chain, &link, &out));
    hth_chain_free(chain);
}

/* The oldest links make room for the last ones, which are judged as before. */
TEST(the_store_is_bounded)
{
    struct hth_chain *chain = make(false);
    uint32_t at = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 1), first = at;
    struct hth_hash head = *hth_chain_head(chain, first);
    for (uint32_t i = 1; i < 12; i++)
        at = put(chain, at, HTH_LINK_STEP, "ABC", 1);
    assert_true(hth_chain_has(chain, first));
    for (uint32_t i = 12; i < 40; i++) {
        at = put(chain, at, HTH_LINK_STEP, "ABC", 1);
        assert_int_equal(at, i);
        assert_int_equal(hth_chain_count(chain), i + 1);
        assert_false(hth_chain_has(chain, i - 12));
        assert_int_equal(hth_chain_at(chain, i - 11)->prev, HTH_LINK_NONE);
        assert_int_equal(hth_chain_find(chain, hth_chain_head(chain, i - 11)), i - 11);
        assert_int_equal(hth_chain_samples(chain, at), 3 * (i + 1));
        assert_true(hth_chain_votes(chain, at, 1));
    }
    assert_int_equal(hth_chain_find(chain, &head), HTH_LINK_NONE);
    assert_false(hth_chain_used(chain, at, 0, 20)); /* in a link that is gone */
    assert_true(hth_chain_used(chain, at, 0, 30));
    try_put(chain, at, HTH_LINK_STEP, "A", 1, HTH_E_STALE);
    static const struct hth_roll roll[HTH_ROLL_MEMBERS_MAX + 1];
    const struct hth_chain_link link = {.prev = at, .roll = roll, .count = HTH_ARRAY_LEN(roll)};
    assert_err(HTH_E_TOO_LARGE, hth_chain_add(chain, &link, &at));
    hth_chain_free(chain);
}

/* Clients vote, and never call while somebody else can. */
TEST(clients_come_last)
{
    struct hth_chain *chain = make(false);
    uint32_t at = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "A-B-C", 1);
    at = put(chain, at, HTH_LINK_STEP, "A-B-CD", 1);
    struct hth_voters v = hth_chain_voters(chain, at);
    assert_true(v.count == 4 && v.callers == 2);
    assert_int_equal(v.member[0] + v.member[1], 0 + 3);
    assert_true(v.member[0] == 0 || v.member[0] == 3);
    at = put(chain, at, HTH_LINK_STEP, "-B-CA", 1);
    at = put(chain, at, HTH_LINK_STEP, "-B-CA", 1);
    at = put(chain, at, HTH_LINK_STEP, "-B-C", 1); /* who are most of those who vote */
    v = hth_chain_voters(chain, at);
    assert_true(v.count == 2 && v.callers == 2);
    try_put(chain, at, HTH_LINK_STEP, "*-B", 1, HTH_E_MALFORMED);
    hth_chain_free(chain);
}

static bool is_fourth(const void *ctx, uint16_t member)
{
    return member == 3;
}

/* Members without a link make room: lives of one peer for each other, others if asked. */
TEST(members_are_forgotten)
{
    struct hth_chain *chain = make(false);
    struct hth_peer_id id = {{99}};
    uint16_t number;
    assert_err(HTH_E_TOO_LARGE, hth_chain_member(chain, &id, 0, &number));
    assert_int_equal(number, HTH_MEMBER_NONE);
    put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "AB", 1);
    hth_chain_keep(chain, 4);
    hth_chain_sweep(chain, is_fourth, NULL);
    for (uint16_t i = 0; i < MEMBERS; i++)
        assert_int_equal(hth_chain_born(chain, i) != 0, i != 2 && i != 5);
    assert_ok(hth_chain_member(chain, &id, 0, &number));
    assert_int_equal(number, 2);
    uint32_t born = hth_chain_born(chain, 2);
    assert_ok(hth_chain_member(chain, &id, 1, &number)); /* another life */
    assert_int_equal(number, 2);
    assert_true(hth_chain_born(chain, 2) > born);
    id = *hth_chain_id(chain, 0); /* the first one's links keep it */
    assert_ok(hth_chain_member(chain, &id, 7, &number));
    assert_int_equal(number, 5);
    hth_chain_free(chain);
}

/* A reader that begins at the anchor comes to the same voters, in the same order, on each link. */
TEST(an_anchor_is_enough)
{
    struct hth_chain *from = peopled_chain(false, 8, 300, 9), *to = NULL;
    const char *const rolls[] = {"ABCDE", "ABCD", "ABCDEF", "BCDEF", "CDEFA", "ABCF*E"};
    uint32_t at = put(from, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABCD", 3);
    for (uint32_t i = 1; i < 300; i++) {
        at = put(from, at, HTH_LINK_STEP, rolls[i * i % 6], 3);
        uint32_t begin = hth_chain_anchor(from, at), got;
        assert_in_range(at - begin, HTH_MIN(i, 9u), 64 + 9 + 1);
        to = empty_chain(false, 8, 300);
        for (uint32_t k = begin; k <= at; k++) {
            uint64_t before = begin == 0 ? 0 : hth_chain_samples(from, begin - 1);
            bool anchor = k == begin && begin > 0;
            if (anchor)
                assert_err(HTH_E_NOT_FOUND, read_copy(from, k, to, false, 0, &got));
            assert_ok(read_copy(from, k, to, anchor, before, &got));
        }
        assert_memory_equal(hth_chain_head(to, got), hth_chain_head(from, at), 32);
        assert_int_equal(hth_chain_samples(to, got), hth_chain_samples(from, at));
        for (uint32_t back = 0; back < 2 && i > back; back++) {
            struct hth_voters a = hth_chain_voters(from, at - back);
            struct hth_voters b = hth_chain_voters(to, got - back);
            assert_int_equal(a.count, b.count);
            for (uint32_t k = 0; k < a.count; k++)
                assert_memory_equal(hth_chain_id(from, a.member[k]), hth_chain_id(to, b.member[k]),
                                    32);
        }
        hth_chain_free(to);
    }
    hth_chain_free(from);
}

static void check_better(const struct hth_chain *chain, uint32_t a, uint32_t b)
{
    assert_true(hth_chain_better(chain, a, b));
    assert_false(hth_chain_better(chain, b, a));
}

/* Of two chains that parted the one whose base has more samples; nobody goes back and forth. */
TEST(one_chain_remains)
{
    struct hth_chain *chain = make(true);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 1);
    uint32_t big = put(chain, g, HTH_LINK_STEP, "ABC", 9);
    uint32_t small = put(chain, g, HTH_LINK_STEP, "AB", 9);
    assert_false(hth_chain_better(chain, big, small)); /* of one choice */
    assert_false(hth_chain_better(chain, small, big));
    uint32_t next = put(chain, small, HTH_LINK_STEP, "AB", 9);
    check_better(chain, next, big); /* `small` was chosen */
    uint32_t fork = put(chain, big, HTH_LINK_FORK, "C", 20);
    check_better(chain, fork, next);
    uint32_t more = put(chain, next, HTH_LINK_STEP, "AB", 50);
    uint32_t most = put(chain, more, HTH_LINK_STEP, "AB", 50);
    check_better(chain, most, fork); /* its base has 3 + 18 + 18 + 100 samples */
    hth_chain_free(chain);
    chain = make(false); /* strict: two geneses */
    g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "AB", 1);
    uint32_t h = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "CDE", 1);
    check_better(chain, h, g);
    hth_chain_free(chain);
}

/* Heads by Python's hashlib over the layout of chain.h, struct.pack and sorted. */
TEST(bytes_are_golden)
{
    static const char *const golden[] = {
        "8f182607a2706c504daee3435598263150a625c1e48efcf6046b4964f9c39190",
        "d95dcccc6ca71fd52b369144d37cdb46bd5e6289db13d7f40bee8aa911ee0a9d"};
    struct hth_chain *chain = make(false);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 1), one;
    static const struct hth_roll roll[] = {{3, HTH_ROLL_PART, 0, 0},
                                           {2, HTH_ROLL_PART, 3, 60},
                                           {0, HTH_ROLL_IN | HTH_ROLL_LEFT, 1, 40},
                                           {1, HTH_ROLL_IN, 2, 50}};
    struct hth_chain_link link = {
        .step = 1, .prev = g, .protocol = 9, .ballot = 3, .roll = roll, .count = 4};
    memset(link.mean.b, 7, sizeof(link.mean.b));
    assert_ok(hth_chain_add(chain, &link, &one));
    uint32_t links[] = {g, one};
    for (size_t i = 0; i < HTH_ARRAY_LEN(links); i++) {
        char hex[2 * HTH_HASH_LEN + 1];
        hth_hex(hth_chain_head(chain, links[i])->b, HTH_HASH_LEN, hex);
        assert_string_equal(hex, golden[i]);
    }
    hth_chain_free(chain);
}

/* A store reads links that another wrote, with the same heads. A link that is cut short is refused,
 * and leaves nothing behind. */
TEST(links_are_read_as_written)
{
    struct hth_chain *chain = make(true), *other;
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 1), got;
    uint32_t one = put(chain, g, HTH_LINK_STEP, "Ab*CF", 7);
    uint8_t bytes[2][1024];
    struct hth_writer w[2];
    for (int i = 0; i < 2; i++) {
        hth_writer_init(&w[i], bytes[i], sizeof(bytes[i]));
        hth_chain_write(chain, i == 0 ? g : one, &w[i]);
        assert_ok(w[i].err);
    }
    other = empty_chain(true, 3, 4);
    struct hth_reader r;
    hth_reader_init(&r, bytes[1], w[1].pos);
    assert_err(HTH_E_NOT_FOUND, hth_chain_read(other, &r, NULL, &got));
    for (int i = 0; i < 2; i++) {
        for (size_t len = 0; len < w[i].pos; len++) {
            hth_reader_init(&r, bytes[i], len);
            assert_int_not_equal(hth_chain_read(other, &r, NULL, &got), HTH_OK);
        }
        assert_int_equal(hth_chain_members(other), i == 0 ? 0 : 3);
        hth_reader_init(&r, bytes[i], w[i].pos);
        assert_ok(hth_chain_read(other, &r, NULL, &got));
        assert_int_equal(hth_reader_left(&r), 0);
        assert_memory_equal(hth_chain_head(other, got), hth_chain_head(chain, i == 0 ? g : one),
                            32);
    }
    assert_int_equal(hth_chain_members(other), 4);
    bytes[1][w[1].pos - 1] = 1; /* an extension */
    hth_reader_init(&r, bytes[1], w[1].pos);
    assert_err(HTH_E_VERSION, hth_chain_read(other, &r, NULL, &got));
    hth_chain_free(other);
    hth_chain_free(chain);
}

/* A caller goes on alone when no voter is left to wait for, though others of its tip's roll live:
 * they may hold another link, which it can't follow. */
TEST(a_fork_waits_for_voters_alone)
{
    struct hth_chain *chain = make(true);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "AB", 4);
    struct hth_choice *c = hth_calloc(1, hth_choice_size(3));
    struct hth_ready ready;
    hth_choice_init(c, chain, 0, 3);
    hth_choice_take(c, put(chain, g, HTH_LINK_STEP, "ABC", 4));
    c->samples = 1;
    struct hth_ballot ballot = hth_choice_now(c);
    if (hth_choice_caller(chain, &ballot) != c->me)
        hth_choice_fail(c);
    assert_int_equal(hth_choice_ready(c, &ready), c->me);
    hth_choice_hear_ready(c, c->me, &ready);
    const uint64_t all = 7, without_b = 5;
    assert_false(hth_choice_open(c, &all, HTH_CHOICE_ALONE) & HTH_CHOICE_FORK);
    assert_false(hth_choice_open(c, &without_b, HTH_CHOICE_SILENT) & HTH_CHOICE_FORK);
    assert_true(hth_choice_open(c, &without_b, HTH_CHOICE_ALONE) & HTH_CHOICE_FORK);
    hth_free(c);
    hth_chain_free(chain);
}

/* A caller's table is full of members without a vote: a voter takes the place of one. */
TEST(a_full_table_has_room_for_voters)
{
    struct hth_chain *chain = make(false);
    uint32_t g = put(chain, HTH_LINK_NONE, HTH_LINK_GENESIS, "ABC", 4);
    struct hth_ballot ballot = hth_choice_of(chain, g, 0);
    uint16_t me = hth_choice_caller(chain, &ballot);
    struct hth_ready ready = {.ballot = ballot, .head = g, .accepted = HTH_LINK_NONE, .batch = 1};
    struct hth_choice *c = hth_calloc(1, hth_choice_size(3));
    hth_choice_init(c, chain, me, 3);
    hth_choice_take(c, g);
    for (uint16_t i = 3; i < 6; i++)
        assert_int_equal(hth_choice_hear_ready(c, i, &ready), HTH_CHOICE_TAKEN);
    for (uint16_t i = 0; i < 3; i++)
        assert_int_equal(hth_choice_hear_ready(c, i, &ready), HTH_CHOICE_TAKEN);
    assert_int_equal(c->seats, 3);
    for (uint16_t i = 0; i < 3; i++)
        assert_int_equal(c->seat[i].member, i);
    assert_int_equal(hth_choice_hear_ready(c, 3, &ready), HTH_CHOICE_NOT_ME);
    hth_free(c);
    hth_chain_free(chain);
}
