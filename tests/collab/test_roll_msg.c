/* SPDX-License-Identifier: Apache-2.0 */
/* Messages come back as they were written; cut, longer or out of range they are refused. */
#include "support/test.h"

#include "collab/roll_msg.h"
#include "core/limits.h"
#include "core/rng.h"

static struct hth_rng rng;

static struct hth_hash any_hash(void)
{
    struct hth_hash h;
    for (size_t i = 0; i < sizeof(h.b); i++)
        h.b[i] = (uint8_t)hth_rng_u64(&rng);
    return h;
}

static struct hth_addr any_addr(unsigned family)
{
    struct hth_addr a = {.family = (uint8_t)family};
    for (size_t i = 0; i < (family == 4 ? 4u : family == 6 ? 16u : 0u); i++)
        a.ip[i] = (uint8_t)hth_rng_u64(&rng);
    a.port = family != 0 ? 4000 : 0;
    return a;
}

static struct hth_roll_ballot any_ballot(void)
{
    return (struct hth_roll_ballot){hth_rng_u64(&rng), any_hash(), (uint32_t)hth_rng_u64(&rng)};
}

static struct hth_sig any_sig(void)
{
    struct hth_sig sig = {.life = hth_rng_u64(&rng), .made = hth_rng_u64(&rng) & 1};
    memcpy(&sig.key, any_hash().b, sizeof(sig.key));
    memcpy(sig.sig + 32, any_hash().b, 32);
    return sig;
}

static bool same_brings(const struct hth_brings *a, const struct hth_brings *b)
{
    return a->samples == b->samples && a->air == b->air && a->grain == b->grain &&
           a->lands_us == b->lands_us && a->each_us == b->each_us;
}

static void assert_ballot(const struct hth_roll_ballot *a, const struct hth_roll_ballot *b)
{
    assert_true(a->step == b->step && a->n == b->n);
    assert_memory_equal(&a->base, &b->base, sizeof(a->base));
}

static void ready_comes_back(void **state)
{
    (void)state;
    static const unsigned family[] = {0, 4, 6};
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    for (unsigned i = 0; i < 12; i++) {
        struct hth_ready_msg a = {.ballot = any_ballot(),
                                  .head = any_hash(),
                                  .accepted = any_hash(),
                                  .accepted_n = i,
                                  .life = hth_rng_u64(&rng),
                                  .batch = 7 * i,
                                  .brings = {i, 8 * i, i + 1, 1000 * i, 2000 * i},
                                  .quota = UINT32_MAX - i,
                                  .rtt_us = 3 * i,
                                  .first = 1 + i,
                                  .last = 2 + i,
                                  .leaves = i & 1,
                                  .helps = i & 2,
                                  .up_kbit = 5 * i,
                                  .addr = any_addr(family[i % 3]),
                                  .is_signed = i & 4},
                             b;
        a.sig = a.is_signed ? any_sig() : (struct hth_sig){.made = false};
        size_t len = hth_ready_write(&a, bytes);
        assert_ok(hth_ready_read(bytes, len, &b));
        assert_ballot(&a.ballot, &b.ballot);
        assert_memory_equal(&a.head, &b.head, sizeof(a.head));
        assert_memory_equal(&a.accepted, &b.accepted, sizeof(a.head));
        assert_true(a.accepted_n == b.accepted_n && a.life == b.life && a.batch == b.batch);
        assert_true(a.quota == b.quota && a.rtt_us == b.rtt_us && a.leaves == b.leaves);
        assert_true(a.helps == b.helps && a.up_kbit == b.up_kbit);
        assert_true(a.first == b.first && a.last == b.last);
        assert_true(same_brings(&a.brings, &b.brings));
        assert_true(hth_addr_eq(&a.addr, &b.addr));
        assert_true(a.is_signed == b.is_signed && a.sig.life == b.sig.life);
        assert_true(a.sig.made == b.sig.made);
        assert_memory_equal(&a.sig.key, &b.sig.key, sizeof(a.sig.key));
        assert_memory_equal(a.sig.sig, b.sig.sig, sizeof(a.sig.sig));
        for (size_t cut = 0; cut < len; cut++)
            assert_int_not_equal(hth_ready_read(bytes, cut, &b), HTH_OK);
        assert_err(HTH_E_MALFORMED, hth_ready_read(bytes, len + 1, &b));
        struct hth_ready_msg odd = a;
        odd.first = i % 2 ? 0 : odd.last + 1;
        assert_err(HTH_E_MALFORMED, hth_ready_read(bytes, hth_ready_write(&odd, bytes), &b));
        len = hth_ready_write(&a, bytes);
        bytes[1] |= 8; /* an unknown flag */
        assert_err(HTH_E_MALFORMED, hth_ready_read(bytes, len, &b));
        bytes[0]++;
        assert_err(HTH_E_VERSION, hth_ready_read(bytes, len, &b));
    }
}

static void brings_are_bounded(void **state)
{
    (void)state;
    const int64_t most = UINT32_MAX - INT64_C(1);
    const struct {
        struct hth_brings in, out;
        bool good;
    } cases[] = {
        {{0, 0, 1, 0, 0}, {0, 0, 1, 0, 0}, true},
        {{HTH_ROLL_SAMPLES_MAX, HTH_ROLL_SAMPLES_MAX, HTH_AVG_GRAIN_MAX, most, most},
         {HTH_ROLL_SAMPLES_MAX, HTH_ROLL_SAMPLES_MAX, HTH_AVG_GRAIN_MAX, most, most},
         true},
        {{1, 0, 1, INT64_MAX - 1, INT64_MAX - 1}, {1, 0, 1, most, most}, true},
        {{1, 0, 1, INT64_MIN, INT64_MIN}, {1, 0, 1, 0, 0}, true},
        {{1, 0, 1, 0, HTH_BRINGS_NO_MORE}, {1, 0, 1, 0, HTH_BRINGS_NO_MORE}, true},
        {.in = {HTH_ROLL_SAMPLES_MAX + 1, 0, 1, 0, 0}},
        {.in = {0, HTH_ROLL_SAMPLES_MAX + 1, 1, 0, 0}},
        {.in = {0, 0, 0, 0, 0}},
        {.in = {0, 0, HTH_AVG_GRAIN_MAX + 1, 0, 0}},
        {.in = {0, 0, 1, HTH_BRINGS_NO_MORE, 0}}, /* a landing that never comes */
    };
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        struct hth_ready_msg a = {.brings = cases[k].in, .first = 1, .last = 1}, b;
        uint8_t bytes[HTH_ROLL_BYTES_MAX];
        size_t len = hth_ready_write(&a, bytes);
        enum hth_err err = hth_ready_read(bytes, len, &b);
        assert_err(cases[k].good ? HTH_OK : HTH_E_MALFORMED, err);
        assert_true(!cases[k].good || same_brings(&b.brings, &cases[k].out));
    }
}

static struct hth_ready_reply any_reply(enum hth_ready_answer kind, uint32_t count)
{
    struct hth_ready_reply a = {.kind = kind, .head = any_hash(), .n = 5, .fork = true};
    static uint8_t sigs[HTH_ROLL_MEMBERS_MAX * HTH_SIG_BYTES];
    a.protocol = 6;
    for (size_t i = 0; i < sizeof(sigs); i++)
        sigs[i] = (uint8_t)(i % 251);
    a.sigs = kind == HTH_READY_GO ? count : 0;
    a.sig = sigs;
    a.quota = 9;
    a.quorum = true;
    a.count = count;
    for (uint32_t i = 0; i < count; i++)
        a.peer[i] = (struct hth_roll_peer){.life = i,
                                           .batch = 2 * i,
                                           .samples = 3 * i,
                                           .next = 4 * i,
                                           .leaves = i & 1,
                                           .rests = i & 2,
                                           .up_kbit = 5 * i,
                                           .addr = any_addr(i % 2 ? 4 : 6)};
    for (uint32_t i = 0; i < count; i++)
        memcpy(&a.peer[i].id, &(struct hth_hash){{(uint8_t)i, (uint8_t)(i >> 8), 1}},
               sizeof(a.peer[i].id));
    uint32_t most = kind == HTH_READY_GO ? HTH_MIN(count / 2, HTH_ROLL_HELPERS_MAX) : 0;
    for (; a.helpers < most; a.helpers++)
        a.helper[a.helpers] = (struct hth_roll_peer){.id = {{(uint8_t)a.helpers, 0, 2}},
                                                     .up_kbit = 7 * a.helpers,
                                                     .addr = any_addr(4)};
    return a;
}

static void answers_come_back(void **state)
{
    (void)state;
    static const struct {
        enum hth_ready_answer kind;
        uint32_t count;
    } cases[] = {{HTH_READY_WAIT, 0}, {HTH_READY_LATER, 0}, {HTH_READY_BEHIND, 0},
                 {HTH_READY_MOVE, HTH_ROLL_LINE_MAX}, {HTH_READY_GO, 1},
                 {HTH_READY_GO, HTH_ROLL_MEMBERS_MAX}};
    static uint8_t bytes[HTH_ROLL_BYTES_MAX];
    static struct hth_ready_reply a, b;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        a = any_reply(cases[k].kind, cases[k].count);
        bool go = a.kind == HTH_READY_GO;
        size_t len = hth_ready_reply_write(&a, bytes);
        assert_ok(hth_ready_reply_read(bytes, len, &b));
        assert_int_equal(a.kind, b.kind);
        assert_int_equal(a.count, b.count);
        if (go || a.kind == HTH_READY_LATER)
            assert_int_equal(b.n, 5);
        assert_int_equal(b.quota, a.kind == HTH_READY_WAIT ? 9 : 0);
        assert_true(b.quorum == (a.kind == HTH_READY_WAIT));
        if (go || a.kind == HTH_READY_MOVE || a.kind == HTH_READY_BEHIND)
            assert_memory_equal(&a.head, &b.head, sizeof(a.head));
        assert_int_equal(b.fork, go);
        assert_int_equal(b.protocol, go ? 6 : 0);
        for (uint32_t i = 0; i < a.count; i++) {
            assert_true(hth_peer_id_eq(&a.peer[i].id, &b.peer[i].id));
            assert_true(hth_addr_eq(&a.peer[i].addr, &b.peer[i].addr));
            assert_true(!go || (b.peer[i].life == i && b.peer[i].batch == 2 * i &&
                                b.peer[i].samples == 3 * i && b.peer[i].next == 4 * i &&
                                b.peer[i].leaves == (i & 1) && b.peer[i].rests == !!(i & 2) &&
                                b.peer[i].up_kbit == 5 * i));
        }
        assert_int_equal(b.sigs, a.sigs);
        if (go)
            assert_memory_equal(b.sig, a.sig, a.sigs * HTH_SIG_BYTES);
        assert_int_equal(b.helpers, a.helpers);
        for (uint32_t i = 0; i < a.helpers; i++)
            assert_true(hth_peer_id_eq(&a.helper[i].id, &b.helper[i].id) &&
                        hth_addr_eq(&a.helper[i].addr, &b.helper[i].addr) &&
                        b.helper[i].up_kbit == 7 * i);
        for (size_t cut = 0; cut < len; cut++)
            assert_int_not_equal(hth_ready_reply_read(bytes, cut, &b), HTH_OK);
        assert_int_not_equal(hth_ready_reply_read(bytes, len + 1, &b), HTH_OK);
    }
}

static void bad_answers_are_refused(void **state)
{
    (void)state;
    static uint8_t bytes[HTH_ROLL_BYTES_MAX];
    static struct hth_ready_reply a, b;
    bytes[0] = HTH_READY_BEHIND + 1;
    assert_err(HTH_E_MALFORMED, hth_ready_reply_read(bytes, 1, &b));
    a = any_reply(HTH_READY_MOVE, 2);
    a.peer[1].id = a.peer[0].id;
    size_t len = hth_ready_reply_write(&a, bytes);
    assert_err(HTH_E_MALFORMED, hth_ready_reply_read(bytes, len, &b));
    a = any_reply(HTH_READY_GO, 2);
    a.peer[1].samples = HTH_ROLL_SAMPLES_MAX + 1;
    len = hth_ready_reply_write(&a, bytes);
    assert_err(HTH_E_MALFORMED, hth_ready_reply_read(bytes, len, &b));
    static const struct hth_roll_peer odd[] = {
        {.id = {{0, 1}}, .addr = {.family = 4, .port = 1}},
        {.id = {{1, 0, 2}}, .addr = {.family = 4, .port = 1}},
        {.id = {{9}}},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(odd); i++) { /* a member, another helper, a client */
        a = any_reply(HTH_READY_GO, 6);
        memcpy(&a.peer[0].id, &odd[0].id, sizeof(a.peer[0].id));
        a.helper[2] = odd[i];
        len = hth_ready_reply_write(&a, bytes);
        assert_err(HTH_E_MALFORMED, hth_ready_reply_read(bytes, len, &b));
    }
    a = any_reply(HTH_READY_GO, 2);
    len = hth_ready_reply_write(&a, bytes);
    size_t sigs = 4 + 2 * HTH_SIG_BYTES;
    bytes[len - sigs - 55 - 4] = HTH_ROLL_HELPERS_MAX + 1;
    assert_err(HTH_E_TOO_LARGE, hth_ready_reply_read(bytes, len, &b));
    len = hth_ready_reply_write(&a, bytes);
    bytes[len - sigs + 1] = 2; /* more than 256 signatures */
    assert_err(HTH_E_TOO_LARGE, hth_ready_reply_read(bytes, len, &b));
    a = any_reply(HTH_READY_MOVE, 1);
    len = hth_ready_reply_write(&a, bytes);
    bytes[33] = HTH_ROLL_LINE_MAX + 1; /* the count */
    assert_err(HTH_E_TOO_LARGE, hth_ready_reply_read(bytes, len, &b));
    a = any_reply(HTH_READY_GO, 1);
    len = hth_ready_reply_write(&a, bytes);
    bytes[42] = 1; /* 257 */
    bytes[43] = 1;
    assert_err(HTH_E_TOO_LARGE, hth_ready_reply_read(bytes, len, &b));
    a = any_reply(HTH_READY_MOVE, 1);
    len = hth_ready_reply_write(&a, bytes);
    bytes[33] = 0; /* nobody */
    assert_err(HTH_E_MALFORMED, hth_ready_reply_read(bytes, 37, &b));
    static const struct hth_addr bad[] = {{.family = 5, .port = 1},
                                          {.family = 4},
                                          {.port = 1},
                                          {.family = 4, .ip = {[4] = 1}, .port = 1}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        a.peer[0].addr = bad[i];
        len = hth_ready_reply_write(&a, bytes);
        assert_err(HTH_E_MALFORMED, hth_ready_reply_read(bytes, len, &b));
    }
}

static void calls_and_links_come_back(void **state)
{
    (void)state;
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    struct hth_roll_ballot a = any_ballot(), b;
    size_t len = hth_call_write(&a, bytes);
    assert_ok(hth_call_read(bytes, len, &b));
    assert_ballot(&a, &b);
    for (size_t cut = 0; cut < len; cut++)
        assert_int_not_equal(hth_call_read(bytes, cut, &b), HTH_OK);
    struct hth_links_msg x = {.head = any_hash(), .count = HTH_ROLL_HELD_MAX}, y;
    for (uint32_t i = 0; i < x.count; i++)
        x.held[i] = any_hash();
    len = hth_links_write(&x, bytes);
    assert_ok(hth_links_read(bytes, len, &y));
    assert_int_equal(y.count, x.count);
    assert_memory_equal(&y.head, &x.head, sizeof(x.head));
    assert_memory_equal(y.held, x.held, sizeof(x.held));
    for (size_t cut = 0; cut < len; cut++)
        assert_int_not_equal(hth_links_read(bytes, cut, &y), HTH_OK);
    bytes[33] = HTH_ROLL_HELD_MAX + 1; /* the count */
    assert_err(HTH_E_TOO_LARGE, hth_links_read(bytes, len, &y));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ready_comes_back),          cmocka_unit_test(brings_are_bounded),
        cmocka_unit_test(answers_come_back),         cmocka_unit_test(bad_answers_are_refused),
        cmocka_unit_test(calls_and_links_come_back),
    };
    hth_rng_init(&rng, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
