/* SPDX-License-Identifier: Apache-2.0 */
/* Contributions by hand, folds that others derive or are given, and those that do not add up. */
#include "collab/fold.h"
#include "collab/links.h"
#include "core/mem.h"
#include "support/suite.h"

enum { FOLD = HTH_FOLD_STEPS };

static struct hth_chain *empty(void)
{
    return peopled_chain(false, 3, 400, 9);
}

/* Steps of ABC up to that one; in each fourth C's values are in some parts only. */
static void go_on(struct hth_chain *chain, uint32_t last)
{
    for (uint32_t i = hth_chain_count(chain); i <= last; i++) {
        uint32_t prev = i == 0 ? HTH_LINK_NONE : i - 1;
        put(chain, prev, i == 0 ? HTH_LINK_GENESIS : HTH_LINK_STEP, i % 4 ? "ABC" : "AB*C",
            i == 0 ? 1000 : 10);
    }
}

/* A chain whose first link is another one's at step `first`. */
static struct hth_chain *read_from(const struct hth_chain *from, uint32_t first, uint32_t last)
{
    struct hth_chain *to = empty();
    uint32_t got;
    for (uint32_t i = first; i <= last; i++)
        assert_ok(read_copy(from, i, to, i == first && i > 0,
                            hth_chain_held(from, first)->samples_before, &got));
    return to;
}

static void same_totals(struct hth_fold *a, struct hth_fold *b)
{
    struct hth_hash x = hth_fold_hash(hth_crypto_openssl(), a);
    struct hth_hash y = hth_fold_hash(hth_crypto_openssl(), b);
    assert_memory_equal(&x, &y, sizeof(x));
    hth_free(a);
    hth_free(b);
}

/* By Python's hashlib and struct.pack over the layout of fold.h. */
TEST(bytes_are_golden)
{
    struct hth_chain *chain = empty();
    go_on(chain, FOLD);
    char hex[2 * HTH_HASH_LEN + 1];
    hth_hex(hth_chain_held(chain, FOLD)->fold.b, HTH_HASH_LEN, hex);
    assert_string_equal(hex, "d55a85b311287b0271082803d27aafde77c5fcee5064cec106329e4a105c41bb");
    hth_hex(hth_chain_head(chain, FOLD)->b, HTH_HASH_LEN, hex);
    assert_string_equal(hex, "bc5c1ee326524f88075ec8e1e4a6a838c47aad28705bb213822f628015996c15");
    struct hth_fold *fold = hth_chain_held(chain, FOLD)->table;
    uint8_t bytes[HTH_FOLD_BYTES_MAX];
    assert_int_equal(hth_fold_write(fold, bytes), 8 + 4 + 3 * 44);
    assert_true(fold->rest == 2000 && fold->count == 3); /* C is in part of the genesis */
    assert_true(fold->peer[0].samples == 480 && fold->peer[0].steps == 48);
    assert_true(fold->peer[2].samples == 630 && fold->peer[2].steps == 63);
    hth_chain_free(chain);
}

/* A step alone has no witness, and the lives of one peer are one. */
TEST(totals_are_of_peers_that_were_seen)
{
    struct hth_chain *chain = empty_chain(false, 3, 400);
    uint16_t member;
    uint32_t at = HTH_LINK_NONE;
    for (uint8_t i = 0; i < 3; i++) {
        assert_ok(hth_chain_member(chain, &(struct hth_peer_id){{i / 2}}, i, &member));
        at = i == 0 ? put(chain, at, HTH_LINK_GENESIS, "A", 5) : at;
    }
    at = put(chain, at, HTH_LINK_STEP, "A", 7);
    at = put(chain, at, HTH_LINK_STEP, "A*C", 11);
    at = put(chain, at, HTH_LINK_STEP, "AC", 13);
    at = put(chain, at, HTH_LINK_STEP, "AB", 17); /* B is A's next life */
    struct hth_fold *fold = hth_fold_upto(chain, at);
    assert_true(fold->rest == 5 + 7 + 11 && fold->count == 2);
    assert_true(fold->peer[0].samples == 13 + 17 + 17 && fold->peer[0].steps == 3);
    assert_true(fold->peer[1].samples == 13 && fold->peer[1].steps == 1);
    hth_free(fold);
    hth_chain_free(chain);
}

/* Those with the fewest samples are in the rest. A larger table is not taken. */
TEST(a_fold_is_bounded)
{
    enum { LIST = HTH_ROLL_MEMBERS_MAX, ALL = LIST + 6 };
    const struct hth_chain_opts opts = {
        .crypto = hth_crypto_openssl(), .window = 3, .links_max = 8, .members_max = ALL};
    struct hth_chain *chain = hth_chain_new(&opts);
    static struct hth_roll roll[ALL];
    static uint8_t bytes[HTH_FOLD_BYTES_MAX + 44];
    uint32_t at = HTH_LINK_NONE;
    for (uint32_t i = 0; i < ALL; i++) {
        struct hth_peer_id id = {{(uint8_t)(i >> 8), (uint8_t)i}};
        assert_ok(hth_chain_member(chain, &id, 1, &roll[i].member));
        roll[i].marks = HTH_ROLL_IN;
    }
    for (uint32_t step = FOLD - 3; step <= FOLD; step++) {
        uint32_t first = step < FOLD - 1 ? 0 : ALL - LIST;
        struct hth_chain_link link = {.step = step, .prev = at, .roll = roll + first};
        for (uint32_t i = 0; i < ALL; i++) /* each brings some once */
            roll[i].samples = step == (i < LIST ? FOLD - 2 : FOLD - 1) ? (i * 7 + 3) % ALL : 0;
        link.count = LIST;
        link.kind = at == HTH_LINK_NONE ? HTH_LINK_GENESIS : HTH_LINK_STEP;
        assert_ok(hth_chain_add(chain, &link, &at));
    }
    struct hth_fold *fold = hth_chain_held(chain, at)->table;
    assert_int_equal(fold->count, LIST);
    assert_int_equal(fold->rest, 0 + 1 + 2 + 3 + 4 + 5);
    for (uint32_t i = 0; i < fold->count; i++)
        assert_true(fold->peer[i].samples >= 6);
    size_t len = hth_fold_write(fold, bytes);
    assert_int_equal(len, HTH_FOLD_BYTES_MAX);
    assert_ok(hth_fold_take(chain, at, bytes, len));
    hth_store_u32le(bytes + 8, LIST + 1);
    assert_err(HTH_E_TOO_LARGE, hth_fold_take(chain, at, bytes, sizeof(bytes)));
    hth_chain_free(chain);
}

/* A reader that begins at an anchor has the totals with the fold, and the next one is the same. */
TEST(a_reader_goes_on_with_a_fold)
{
    struct hth_chain *from = empty(), *to;
    uint8_t bytes[HTH_FOLD_BYTES_MAX];
    go_on(from, 2 * FOLD + 3);
    to = read_from(from, FOLD - 4, FOLD + 9);
    assert_null(hth_fold_upto(to, 13));
    size_t len = hth_fold_write(hth_chain_held(from, FOLD)->table, bytes);
    assert_err(HTH_E_NOT_FOUND, hth_fold_take(to, 3, bytes, len));
    assert_ok(hth_fold_take(to, 4, bytes, len));
    assert_ok(hth_fold_take(to, 4, bytes, len));
    same_totals(hth_fold_upto(from, FOLD + 9), hth_fold_upto(to, 13));
    for (uint32_t i = FOLD + 10; i <= 2 * FOLD + 3; i++)
        copy(from, i, to);
    same_totals(hth_fold_upto(from, 2 * FOLD + 3), hth_fold_upto(to, hth_chain_count(to) - 1));
    hth_chain_free(to);
    to = read_from(from, FOLD + 1, 2 * FOLD - 1); /* without one: what it makes names none, */
    uint32_t at = put(to, FOLD - 2, HTH_LINK_STEP, "ABC", 10), anew = at;
    assert_true(hth_head_is_none(&hth_chain_held(to, at)->fold));
    for (uint32_t i = 1; i <= FOLD; i++)
        at = put(to, at, HTH_LINK_STEP, "ABC", 10);
    struct hth_fold *fold = hth_chain_held(to, at)->table; /* and then it begins anew */
    assert_int_equal(fold->rest, hth_chain_held(to, anew)->samples_before);
    assert_int_equal(fold->peer[0].steps, FOLD);
    hth_chain_free(to);
    hth_chain_free(from);
}

TEST(a_false_fold_is_refused)
{
    enum { REST = 0, COUNT = 8, FIRST = 12, SAMPLES = FIRST + 32, STEPS = SAMPLES + 8 };
    static const struct {
        size_t at;
        int by;
        int longer;
        enum hth_err err;
    } bad[] = {
        {REST, 0, -1, HTH_E_TRUNCATED},  {REST, 0, 1, HTH_E_MALFORMED},
        {COUNT, 1, 0, HTH_E_TRUNCATED},  {COUNT, -1, 0, HTH_E_MALFORMED},
        {FIRST, 5, 0, HTH_E_MALFORMED},  {STEPS, -48, 0, HTH_E_MALFORMED},
        {SAMPLES, 1, 0, HTH_E_BAD_FOLD}, {STEPS, 1, 0, HTH_E_BAD_FOLD},
        {FIRST, -1, 0, HTH_E_BAD_FOLD},
    };
    struct hth_chain *from = empty(), *to;
    uint8_t good[FIRST + 3 * 44], bytes[sizeof(good) + 1], link[400];
    uint32_t got;
    struct hth_writer w;
    struct hth_reader r;
    go_on(from, FOLD);
    assert_int_equal(hth_fold_write(hth_chain_held(from, FOLD)->table, good), sizeof(good));
    hth_writer_init(&w, link, sizeof(link));
    hth_chain_write(from, FOLD, &w);
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        memset(bytes, 0, sizeof(bytes));
        memcpy(bytes, good, sizeof(good));
        bytes[bad[i].at] = (uint8_t)(bytes[bad[i].at] + bad[i].by);
        size_t len = sizeof(good) + (size_t)bad[i].longer;
        to = read_from(from, FOLD - 4, FOLD);
        assert_err(bad[i].err, hth_fold_take(to, 4, bytes, len));
        assert_null(hth_chain_held(to, 4)->table);
        hth_chain_free(to);
        /* A link that names it: who can't tell takes the link, and not the fold. */
        struct hth_hash hash;
        hth_crypto_openssl()->hash(bytes, len, &hash);
        memcpy(link + w.pos - HTH_HASH_LEN, &hash, sizeof(hash));
        hth_reader_init(&r, link, w.pos);
        to = read_from(from, FOLD - 4, FOLD - 1);
        assert_ok(hth_chain_read(to, &r, NULL, &got));
        bool adds_up = bad[i].err == HTH_E_BAD_FOLD && bad[i].at != SAMPLES;
        assert_err(adds_up ? HTH_OK : bad[i].err, hth_fold_take(to, got, bytes, len));
        hth_chain_free(to);
        to = read_from(from, 0, FOLD - 1);
        hth_reader_init(&r, link, w.pos);
        assert_err(HTH_E_BAD_FOLD, hth_chain_read(to, &r, NULL, &got));
        hth_chain_free(to);
    }
    to = read_from(from, FOLD - 4, FOLD - 1);
    memset(link + w.pos - HTH_HASH_LEN, 0, HTH_HASH_LEN); /* of no fold */
    hth_reader_init(&r, link, w.pos);
    assert_err(HTH_E_MALFORMED, hth_chain_read(to, &r, NULL, &got));
    hth_writer_init(&w, link, sizeof(link)); /* of a step that has none */
    hth_chain_write(from, FOLD - 1, &w);
    link[w.pos - 2] = HTH_HASH_LEN;
    memset(link + w.pos, 1, HTH_HASH_LEN);
    hth_reader_init(&r, link, w.pos + HTH_HASH_LEN);
    hth_chain_drop(to, 3);
    assert_err(HTH_E_MALFORMED, hth_chain_read(to, &r, NULL, &got));
    hth_chain_free(to);
    hth_chain_free(from);
}
