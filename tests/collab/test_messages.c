/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_messages.c: each message of this folder is written as its header lays it out, and comes
 * back; cut, longer or out of range it is refused by name.
 */
#include "support/suite.h"

#include "collab/heads.h"
#include "collab/means.h"
#include "collab/roll_msg.h"
#include "core/limits.h"

enum { ROOM = HTH_ROLL_BYTES_MAX + 1 };

/* ---- bytes by hand ---------------------------------------------------------------------- */

/* The next message, byte by byte. */
static struct {
    uint8_t at[ROOM];
    size_t len;
} want;

/* Digits are integers of so many bytes, h: 32 bytes that are alike, s: a signature likewise, a: an
 * address 10.0.0.1:4000, c: none. */
static void put(const char *format, ...)
{
    static const uint8_t addr[] = {4, 10, 0, 0, 1, [17] = 4000 & 255, 4000 >> 8}, none[19];
    va_list args;
    va_start(args, format);
    for (const char *c = format; *c != '\0'; c++) {
        uint8_t *at = want.at + want.len;
        if (*c == 'h' || *c == 's') {
            want.len += *c == 'h' ? 32 : 64;
            memset(at, va_arg(args, int), *c == 'h' ? 32 : 64);
        } else if (*c == 'a' || *c == 'c') {
            want.len += sizeof(addr);
            memcpy(at, *c == 'a' ? addr : none, sizeof(addr));
        } else {
            uint64_t v = *c == '8' ? va_arg(args, uint64_t) : va_arg(args, unsigned);
            want.len += (size_t)(*c - '0');
            memcpy(at, &v, (size_t)(*c - '0'));
        }
    }
    va_end(args);
}

static struct hth_hash hash(int byte)
{
    struct hth_hash h;
    memset(&h, byte, sizeof(h));
    return h;
}

static struct hth_peer_id id(int byte)
{
    struct hth_peer_id h;
    memset(&h, byte, sizeof(h));
    return h;
}

static const struct hth_addr here = {.family = 4, .ip = {10, 0, 0, 1}, .port = 4000};

/* ---- kinds ------------------------------------------------------------------------------ */

#define KINDS(X)                                                                                   \
    X(hth_ready, struct hth_ready_msg)                                                             \
    X(hth_ready_reply, struct hth_ready_reply)                                                     \
    X(hth_call, struct hth_roll_ballot)                                                            \
    X(hth_links, struct hth_links_msg)                                                             \
    X(hth_row, struct hth_row_msg)                                                                 \
    X(hth_head, struct hth_head_note)                                                              \
    X(hth_mean_msg, struct hth_mean_msg)
#define FUNCTIONS(name, type)                                                                      \
    static type name##_back;                                                                       \
    static size_t write_##name(const void *msg, uint8_t *out)                                      \
    {                                                                                              \
        return name##_write(msg, out);                                                             \
    }                                                                                              \
    static enum hth_err read_##name(const uint8_t *data, size_t len)                               \
    {                                                                                              \
        return name##_read(data, len, &name##_back);                                               \
    }
KINDS(FUNCTIONS)
#define NAME(name, type) K_##name,
enum kind { KINDS(NAME) };
#define ENTRY(name, type) {write_##name, read_##name, &name##_back},
static const struct {
    size_t (*write)(const void *msg, uint8_t *out);
    enum hth_err (*read)(const uint8_t *data, size_t len);
    const void *back;
} kinds[] = {KINDS(ENTRY)};

static void check(enum kind kind, const void *msg)
{
    static uint8_t bytes[ROOM], again[ROOM];
    assert_int_equal(kinds[kind].write(msg, bytes), want.len);
    assert_memory_equal(bytes, want.at, want.len);
    for (size_t cut = 0; cut < want.len; cut++)
        assert_int_not_equal(kinds[kind].read(bytes, cut), HTH_OK);
    assert_int_not_equal(kinds[kind].read(bytes, want.len + 1), HTH_OK);
    assert_ok(kinds[kind].read(bytes, want.len));
    assert_int_equal(kinds[kind].write(kinds[kind].back, again), want.len);
    assert_memory_equal(again, want.at, want.len);
    want.len = 0;
}

/* One byte of a message is another. */
static void check_bad(enum kind kind, const void *msg, size_t at, uint8_t byte, enum hth_err err)
{
    static uint8_t bytes[ROOM];
    size_t len = kinds[kind].write(msg, bytes);
    bytes[at] = byte;
    assert_err(err, kinds[kind].read(bytes, len));
}

/* ---- READY ------------------------------------------------------------------------------ */

static struct hth_ready_msg any_ready(void)
{
    return (struct hth_ready_msg){.ballot = {.step = 7, .base = hash(1), .n = 8},
                                  .head = hash(2),
                                  .accepted = hash(3),
                                  .accepted_n = 9,
                                  .life = 10,
                                  .batch = 11,
                                  .brings = {12, 13, 14, 15, 16},
                                  .quota = 17,
                                  .rtt_us = 18,
                                  .first = 19,
                                  .last = 20,
                                  .up_kbit = 21};
}

TEST(ready_is_laid_out)
{
    for (unsigned flags = 0; flags < 8; flags++) {
        struct hth_ready_msg m = any_ready();
        m.leaves = flags & 1;
        m.helps = flags & 2;
        m.is_signed = flags & 4;
        m.addr = flags == 3 ? here : m.addr;
        put("118h4hh4844444444444", 1, flags, UINT64_C(7), 1, 8, 2, 3, 9, UINT64_C(10), 11, 12, 13,
            14, 15, 16, 17, 18, 19, 20, 21);
        put(flags == 3 ? "a" : "c");
        if (m.is_signed) {
            m.sig = (struct hth_sig){.life = 5, .made = true};
            memset(&m.sig.key, 4, sizeof(m.sig.key));
            memset(m.sig.sig, 6, sizeof(m.sig.sig));
            put("h81s", 4, UINT64_C(5), 1, 6);
        }
        check(K_hth_ready, &m);
    }
}

TEST(ready_is_bounded)
{
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
    static const uint32_t protocols[][2] = {{0, 1}, {2, 1}};
    static const struct hth_addr addrs[] = {{.family = 5, .port = 1},
                                            {.family = 4},
                                            {.port = 1},
                                            {.family = 4, .ip = {[4] = 1}, .port = 1}};
    uint8_t bytes[ROOM];
    struct hth_ready_msg m = any_ready(), got;
    for (size_t k = 0; k < HTH_ARRAY_LEN(cases); k++) {
        m.brings = cases[k].in;
        enum hth_err err = hth_ready_read(bytes, hth_ready_write(&m, bytes), &got);
        assert_err(cases[k].good ? HTH_OK : HTH_E_MALFORMED, err);
        assert_true(!cases[k].good || memcmp(&got.brings, &cases[k].out, sizeof(got.brings)) == 0);
    }
    for (size_t k = 0; k < HTH_ARRAY_LEN(protocols) + HTH_ARRAY_LEN(addrs); k++) {
        m = any_ready();
        if (k < HTH_ARRAY_LEN(protocols)) {
            m.first = protocols[k][0];
            m.last = protocols[k][1];
        } else {
            m.addr = addrs[k - HTH_ARRAY_LEN(protocols)];
        }
        assert_err(HTH_E_MALFORMED, hth_ready_read(bytes, hth_ready_write(&m, bytes), &got));
    }
    m = any_ready();
    check_bad(K_hth_ready, &m, 0, 2, HTH_E_VERSION);
    check_bad(K_hth_ready, &m, 1, 8, HTH_E_MALFORMED);
}

/* ---- its answer ------------------------------------------------------------------------- */

static struct hth_roll_peer member(uint32_t i)
{
    return (struct hth_roll_peer){.id = id((int)i + 1),
                                  .life = 100 + i,
                                  .batch = 200 + i,
                                  .samples = 300 + i,
                                  .next = 400 + i,
                                  .leaves = i & 1,
                                  .rests = i & 2,
                                  .up_kbit = 500 + i,
                                  .addr = here};
}

static void put_member(uint32_t i)
{
    put("h844414a", (int)i + 1, UINT64_C(100) + i, 200 + i, 300 + i, 400 + i, i & 3, 500 + i);
}

/* With members of one byte's ids, and two helpers. */
static void fill_go(struct hth_ready_reply *go, uint32_t count)
{
    static const uint8_t sigs[3 * HTH_SIG_BYTES] = {1, 2, 3};
    *go = (struct hth_ready_reply){.kind = HTH_READY_GO,
                                   .head = hash(9),
                                   .n = 5,
                                   .fork = true,
                                   .protocol = 6,
                                   .count = count,
                                   .helpers = 2,
                                   .sigs = 3,
                                   .sig = sigs};
    for (uint32_t i = 0; i < count; i++)
        go->peer[i] = member(i);
    for (uint32_t i = 0; i < 2; i++)
        go->helper[i] = (struct hth_roll_peer){.id = id(254 + (int)i), .up_kbit = i, .addr = here};
}

TEST(answers_are_laid_out)
{
    static struct hth_ready_reply m;
    m = (struct hth_ready_reply){.kind = HTH_READY_WAIT, .quota = 9, .quorum = true};
    put("141", HTH_READY_WAIT, 9, 1);
    check(K_hth_ready_reply, &m);
    m = (struct hth_ready_reply){.kind = HTH_READY_LATER, .n = 5};
    put("14", HTH_READY_LATER, 5);
    check(K_hth_ready_reply, &m);
    m = (struct hth_ready_reply){.kind = HTH_READY_BEHIND, .head = hash(3)};
    put("1h", HTH_READY_BEHIND, 3);
    check(K_hth_ready_reply, &m);
    m = (struct hth_ready_reply){
        .kind = HTH_READY_MOVE, .head = hash(3), .count = HTH_ROLL_LINE_MAX};
    put("1h4", HTH_READY_MOVE, 3, HTH_ROLL_LINE_MAX);
    for (uint32_t i = 0; i < m.count; i++) {
        m.peer[i] = (struct hth_roll_peer){.id = id((int)i + 1), .addr = here};
        put("ha", (int)i + 1);
    }
    check(K_hth_ready_reply, &m);
    fill_go(&m, 3);
    put("1h4144", HTH_READY_GO, 9, 5, 1, 6, 3);
    for (uint32_t i = 0; i < 3; i++)
        put_member(i);
    put("4h4ah4a4", 2, 254, 0, 255, 1, 3);
    memcpy(want.at + want.len, m.sig, 3 * HTH_SIG_BYTES);
    want.len += 3 * HTH_SIG_BYTES;
    check(K_hth_ready_reply, &m);
}

TEST(bad_answers_are_refused)
{
    enum { COUNT = 42, PEER = 76, HELPER = 55 }; /* where it is in a GO; sizes */
    static uint8_t bytes[ROOM];
    static struct hth_ready_reply m, back;
    m = (struct hth_ready_reply){.kind = HTH_READY_WAIT};
    check_bad(K_hth_ready_reply, &m, 0, HTH_READY_BEHIND + 1, HTH_E_MALFORMED);
    check_bad(K_hth_ready_reply, &m, 5, 2, HTH_E_MALFORMED);
    m = (struct hth_ready_reply){.kind = HTH_READY_MOVE, .count = 1, .peer[0] = member(0)};
    check_bad(K_hth_ready_reply, &m, 33, HTH_ROLL_LINE_MAX + 1, HTH_E_TOO_LARGE);
    check_bad(K_hth_ready_reply, &m, 33, 0, HTH_E_MALFORMED); /* nobody */
    fill_go(&m, 250);
    assert_ok(hth_ready_reply_read(bytes, hth_ready_reply_write(&m, bytes), &back));
    fill_go(&m, 3);
    size_t helpers = COUNT + 4 + 3 * PEER;
    check_bad(K_hth_ready_reply, &m, COUNT + 1, 2, HTH_E_TOO_LARGE); /* more than 256 members, */
    check_bad(K_hth_ready_reply, &m, helpers, HTH_ROLL_HELPERS_MAX + 1, HTH_E_TOO_LARGE);
    check_bad(K_hth_ready_reply, &m, helpers + 4 + 2 * HELPER + 1, 2, HTH_E_TOO_LARGE); /* sigs */
    check_bad(K_hth_ready_reply, &m, COUNT + 4 + 32 + 8 + 4 + 4 + 4, 4,
              HTH_E_MALFORMED); /* flags */
    for (unsigned k = 0; k < 5; k++) {
        fill_go(&m, 3);
        if (k == 0)
            m.peer[1].id = m.peer[0].id;
        if (k == 1)
            m.peer[1].samples = HTH_ROLL_SAMPLES_MAX + 1;
        if (k == 2) /* a member, another helper, a client */
            m.helper[1].id = m.peer[2].id;
        if (k == 3)
            m.helper[1].id = m.helper[0].id;
        if (k == 4)
            m.helper[1].addr = (struct hth_addr){.family = 0};
        assert_err(HTH_E_MALFORMED,
                   hth_ready_reply_read(bytes, hth_ready_reply_write(&m, bytes), &back));
    }
}

/* ---- the others ------------------------------------------------------------------------- */

TEST(others_are_laid_out)
{
    const struct hth_roll_ballot call = {.step = 7, .base = hash(1), .n = 8};
    put("18h4", 1, UINT64_C(7), 1, 8);
    check(K_hth_call, &call);
    struct hth_links_msg links = {.head = hash(4), .count = HTH_ROLL_HELD_MAX};
    put("1h4", 1, 4, HTH_ROLL_HELD_MAX);
    for (int i = 0; i < HTH_ROLL_HELD_MAX; i++) {
        links.held[i] = hash(i);
        put("h", i);
    }
    check(K_hth_links, &links);
    check_bad(K_hth_links, &links, 33, HTH_ROLL_HELD_MAX + 1, HTH_E_TOO_LARGE);
    struct hth_head_note note = {.head = hash(6), .step = 7, .samples = 448, .addr = here};
    put("1h88a", 1, 6, UINT64_C(7), UINT64_C(448));
    check(K_hth_head, &note);
    check_bad(K_hth_head, &note, 49, 5, HTH_E_MALFORMED); /* no family of addresses */
    check_bad(K_hth_head, &note, 0, 2, HTH_E_VERSION);
    const struct hth_mean_msg mean = {
        .head = hash(7), .first = 7 * HTH_MEAN_BLOCK, .values = HTH_MEAN_BYTES_MAX / 4};
    put("1h84", 1, 7, UINT64_C(7) * HTH_MEAN_BLOCK, HTH_MEAN_BYTES_MAX / 4);
    check(K_hth_mean_msg, &mean);
}

/* Two bits a mark: 1 0 2 1 0. */
TEST(rows_are_laid_out)
{
    enum { COUNT = 34, MARKS = 36 };
    struct hth_row_msg row = {.group = hash(9), .axis = 2};
    const struct hth_row_marks marks = {.count = 5,
                                        .of = {HTH_ROLL_IN, 0, HTH_ROLL_PART, HTH_ROLL_IN, 0}};
    put("1h12", 1, 9, 2, 0);
    check(K_hth_row, &row);
    row.marks = marks;
    put("1h1211", 1, 9, 2, 5, 1 | 2 << 4 | 1 << 6, 0);
    check(K_hth_row, &row);
    check_bad(K_hth_row, &row, 0, 2, HTH_E_VERSION);
    check_bad(K_hth_row, &row, COUNT + 1, 2, HTH_E_TOO_LARGE);
    check_bad(K_hth_row, &row, MARKS, 3, HTH_E_MALFORMED);     /* in and in part */
    check_bad(K_hth_row, &row, MARKS + 1, 4, HTH_E_MALFORMED); /* of a sixth */
    row.marks.count = HTH_ROLL_MEMBERS_MAX;
    uint8_t bytes[HTH_ROW_BYTES_MAX];
    assert_ok(hth_row_read(bytes, hth_row_write(&row, bytes), &row));
}
