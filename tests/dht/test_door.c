/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_door.c: which datagrams a closed run's DHT node reads. Puts are written as OpenDHT does.
 */
#include "dht/opendht_door.h"

#include "core/bytes.h"
#include "dht/record.h"
#include "support/suite.h"

#define BURST   32
#define S       HTH_US_PER_S
#define NETWORK 7
#define OTHER   8

static const struct hth_pubkey member = {{1}}, stranger = {{2}};

struct datagram {
    uint8_t bytes[512];
    size_t len;
};

static void add(struct datagram *d, const void *bytes, size_t len)
{
    assert_true(d->len + len <= sizeof(d->bytes));
    memcpy(d->bytes + d->len, bytes, len);
    d->len += len;
}
#define ADD(d, text) add(d, text, sizeof(text) - 1)

static void add_record(struct datagram *d, uint8_t kind, uint64_t network,
                       const struct hth_pubkey *owner)
{
    uint8_t rec[HTH_RECORD_OVERHEAD_BYTES] = {'H', 'R', 'E', 'C', HTH_RECORD_VERSION, kind};
    hth_store_u64le(rec + 8, network);
    hth_store_u32le(rec + 32, 1000);
    memcpy(rec + 40, owner->b, sizeof(owner->b));
    ADD(d, "\x82\xa2id\xcf"
           "12345678"
           "\xa3"
           "dat\x81\xa4"
           "body\x82\xa4type\x00\xa4"
           "data\xc4");
    const uint8_t len = sizeof(rec);
    add(d, &len, 1);
    add(d, rec, sizeof(rec));
}

/* A request of that name (with its MessagePack head) whose values are written by the caller. */
static void begin(struct datagram *d)
{
    d->len = 0;
    ADD(d, "\x85\xa1"
           "a\x84\xa2id\xc4\x02me\xa1h\xc4\x02it\xa6values");
}
#define END(d, method)                                                                             \
    ADD(d, "\xa5token\xc4\x02no\xa1q" method "\xa1t\xce"                                           \
           "1234\xa1y\xa1q\xa1v\xa4RNG1")

static struct datagram put(uint8_t kind, uint64_t network, const struct hth_pubkey *owner)
{
    struct datagram d;
    begin(&d);
    ADD(&d, "\x91");
    add_record(&d, kind, network, owner);
    END(&d, "\xa3put");
    return d;
}

/* So many of it are let in at once, at most `most`. */
static unsigned let_in(struct hth_opendht_door *door, const struct datagram *d, int64_t now_us,
                       unsigned most)
{
    unsigned n = 0;
    while (n < most && hth_opendht_door_lets(door, d->bytes, d->len, now_us))
        n++;
    return n;
}

static struct hth_opendht_door *closed(void)
{
    struct hth_opendht_door *door = hth_opendht_door_new();
    hth_opendht_door_know(door, NETWORK, &member, true);
    return door;
}

TEST(strangers_have_a_share_of_each_kind)
{
    (void)state;
    struct hth_opendht_door *door = closed();
    const struct datagram root = put(HTH_RECORD_ROOT, NETWORK, &stranger),
                          pass = put(HTH_RECORD_PASS, NETWORK, &stranger),
                          others = put(HTH_RECORD_ROOT, OTHER, &stranger),
                          known = put(HTH_RECORD_ROOT, NETWORK, &member);
    assert_int_equal(let_in(door, &root, 100 * S, 1000), BURST);
    assert_int_equal(let_in(door, &pass, 100 * S, 1000), BURST);
    assert_int_equal(let_in(door, &others, 100 * S, 1000), BURST);
    assert_int_equal(let_in(door, &known, 100 * S, 1000), 1000);
    assert_int_equal(let_in(door, &root, 101 * S, 1000), 1);
    assert_int_equal(let_in(door, &others, 101 * S, 1000), BURST);
    assert_int_equal(let_in(door, &root, 200 * S, 1000), BURST);
    assert_int_equal(hth_opendht_door_dropped(door), 6);
    hth_opendht_door_free(door);
}

TEST(a_newcomer_is_no_stranger_for_long)
{
    (void)state;
    struct hth_opendht_door *door = closed();
    const struct datagram pass = put(HTH_RECORD_PASS, NETWORK, &stranger);
    for (uint8_t i = 0; i < 200; i++) { /* each is known as soon as its pass was read */
        const struct hth_pubkey newcomer = {{3, i}};
        const struct datagram its = put(HTH_RECORD_PASS, NETWORK, &newcomer);
        assert_int_equal(let_in(door, &its, 100 * S, 1), 1);
        hth_opendht_door_know(door, NETWORK, &newcomer, true);
    }
    assert_int_equal(let_in(door, &pass, 100 * S, 1000), BURST);
    hth_opendht_door_know(door, NETWORK, &member, false);
    const struct datagram left = put(HTH_RECORD_ROOT, NETWORK, &member);
    assert_int_equal(let_in(door, &left, 100 * S, 1000), BURST);
    hth_opendht_door_free(door);
}

TEST(other_messages_and_open_runs_are_let_in)
{
    (void)state;
    struct hth_opendht_door *door = closed(), *open = hth_opendht_door_new();
    const struct datagram root = put(HTH_RECORD_ROOT, NETWORK, &stranger);
    struct datagram update, reply = {.len = 0};
    begin(&update);
    ADD(&update, "\x91");
    add_record(&update, HTH_RECORD_ROOT, NETWORK, &stranger);
    END(&update, "\xa6update");
    ADD(&reply, "\x83\xa1r\x81\xa2id\xc4\x02me\xa1t\xce"
                "1234\xa1y\xa1r");
    assert_int_equal(let_in(door, &update, 100 * S, 1000), 1000);
    assert_int_equal(let_in(door, &reply, 100 * S, 1000), 1000);
    assert_int_equal(let_in(open, &root, 100 * S, 1000), 1000);
    hth_opendht_door_free(door);
    hth_opendht_door_free(open);
}

/* Puts that OpenDHT might read otherwise than the door does count as a stranger's. */
TEST(odd_puts_have_a_share)
{
    (void)state;
    struct datagram odd[5];
    for (size_t i = 0; i < HTH_ARRAY_LEN(odd); i++)
        begin(&odd[i]);
    ADD(&odd[0], "\x92"); /* two values */
    add_record(&odd[0], HTH_RECORD_ROOT, NETWORK, &member);
    add_record(&odd[0], HTH_RECORD_ROOT, NETWORK, &stranger);
    END(&odd[0], "\xa3put");
    ADD(&odd[1], "\x91"); /* the values are given twice */
    add_record(&odd[1], HTH_RECORD_ROOT, NETWORK, &member);
    ADD(&odd[1], "\xa6values\x91");
    add_record(&odd[1], HTH_RECORD_ROOT, NETWORK, &stranger);
    odd[1].bytes[3]++;
    END(&odd[1], "\xa3put");
    ADD(&odd[2], "\x91\xa4text"); /* no record */
    END(&odd[2], "\xa3put");
    ADD(&odd[3], "\x91\xcd\x04\x00"); /* its parts follow */
    END(&odd[3], "\xa3put");
    ADD(&odd[4], "\x91"); /* the method in a longer form */
    add_record(&odd[4], HTH_RECORD_ROOT, NETWORK, &stranger);
    END(&odd[4], "\xd9\x03put");
    for (size_t i = 0; i < HTH_ARRAY_LEN(odd); i++) {
        struct hth_opendht_door *door = closed();
        assert_int_equal(let_in(door, &odd[i], 100 * S, 1000), BURST);
        odd[i].len -= 3; /* cut short */
        assert_int_equal(let_in(door, &odd[i], 100 * S, 1000), i < 3 ? 0 : BURST);
        hth_opendht_door_free(door);
    }
}
