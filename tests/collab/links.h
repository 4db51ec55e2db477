/* SPDX-License-Identifier: Apache-2.0 */
/* links.h: chains of links whose members are named by letters, for tests without a world. */
#ifndef HTH_TESTS_COLLAB_LINKS_H
#define HTH_TESTS_COLLAB_LINKS_H

#include "support/test.h"

#include "collab/chain.h"
#include "net/crypto.h"

enum { MEMBERS = 6 };

static inline struct hth_chain *empty_chain(bool eventual, uint32_t window, uint32_t links_max)
{
    const struct hth_chain_opts opts = {.crypto = hth_crypto_openssl(),
                                        .window = window,
                                        .eventual = eventual,
                                        .links_max = links_max,
                                        .members_max = MEMBERS};
    return hth_chain_new(&opts);
}

/* Its members are lives 0, 1, ... of the peers `first`, first - 1, ... */
static inline struct hth_chain *peopled_chain(bool eventual, uint32_t window, uint32_t links_max,
                                              uint8_t first)
{
    struct hth_chain *chain = empty_chain(eventual, window, links_max);
    for (uint8_t i = 0; i < MEMBERS; i++) {
        struct hth_peer_id id = {{(uint8_t)(first - i)}};
        uint16_t number;
        assert_ok(hth_chain_member(chain, &id, i, &number));
        assert_int_equal(number, i);
    }
    return chain;
}

/* A link whose roll has the members named "ABC"; small letters leave; "*" before one: in part, "-":
 * a client. Each brings the batch of its step. */
static inline uint32_t try_put(struct hth_chain *chain, uint32_t prev, enum hth_link_kind kind,
                               const char *names, uint32_t samples, enum hth_err want)
{
    struct hth_roll roll[MEMBERS];
    struct hth_chain_link link = {.prev = prev, .kind = kind, .roll = roll};
    link.step = prev == HTH_LINK_NONE ? 0 : hth_chain_at(chain, prev)->step + 1;
    for (const char *c = names; *c != '\0'; c++) {
        bool client = *c == '-';
        c += client;
        uint16_t marks = *c == '*'   ? HTH_ROLL_PART
                         : *c >= 'a' ? HTH_ROLL_IN | HTH_ROLL_LEFT
                                     : HTH_ROLL_IN;
        c += *c == '*';
        roll[link.count++] = (struct hth_roll){(uint16_t)((*c | 32) - 'a'),
                                               (uint16_t)(marks | (client ? HTH_ROLL_CLIENT : 0)),
                                               (uint32_t)link.step, samples};
    }
    uint32_t out;
    assert_err(want, hth_chain_add(chain, &link, &out));
    assert_true((want == HTH_OK) == (out != HTH_LINK_NONE));
    return out;
}

static inline uint32_t put(struct hth_chain *chain, uint32_t prev, enum hth_link_kind kind,
                           const char *names, uint32_t samples)
{
    return try_put(chain, prev, kind, names, samples, HTH_OK);
}

/* The link of another chain, as a peer that made no part of it reads it; `anchor`: it may be its
 * first, with so many samples before it. */
static inline enum hth_err read_copy(const struct hth_chain *from, uint32_t link,
                                     struct hth_chain *to, bool anchor, uint64_t before,
                                     uint32_t *out)
{
    uint8_t bytes[1000];
    struct hth_writer w;
    struct hth_reader r;
    hth_writer_init(&w, bytes, sizeof(bytes));
    hth_chain_write(from, link, &w);
    hth_reader_init(&r, bytes, w.pos);
    return hth_chain_read(to, &r, anchor ? &before : NULL, out);
}

static inline uint32_t copy(const struct hth_chain *from, uint32_t link, struct hth_chain *to)
{
    uint32_t out;
    assert_ok(read_copy(from, link, to, false, 0, &out));
    return out;
}

#endif
