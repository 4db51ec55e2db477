/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heads.h: where a run's trainers are found: who calls a ballot says in the DHT which head it holds
 * and where it is reached.
 *
 * A record of kind HEAD lives for HTH_HEAD_LIFE_US, and is renewed while its owner calls. Newcomers
 * ask the owner for its links (roll.h); the parts of a run that was cut find each other by it.
 *
 * A trainer that looks for others and holds no head says so, too, with a head of zeros: of several
 * the one with the most samples begins.
 *
 *     payload: u8 version, head 32, u64 step, u64 samples, u8 family (0, 4, 6), ip 16, u16 port
 *
 * A record proves nothing but who wrote it: links are judged when they come. The topic has the
 * run's name and schema, so that trainers with other settings never read each other's.
 *
 * Loop thread. The callback never runs inside a call of this header.
 */
#ifndef HTH_COLLAB_HEADS_H
#define HTH_COLLAB_HEADS_H

#include "collab/roll_msg.h"
#include "core/env.h"

struct hth_dht;
struct hth_heads;
struct hth_topic;

#define HTH_HEAD_LIFE_US   (20 * HTH_US_PER_S)
#define HTH_HEAD_BYTES_MAX 80

struct hth_head_note {
    struct hth_hash head;
    uint64_t step;
    uint64_t samples; /* in the means of its chain */
    struct hth_addr addr;
};

size_t hth_head_write(const struct hth_head_note *note, uint8_t *out);
/* Errors: E_TRUNCATED, E_VERSION, E_MALFORMED. */
enum hth_err hth_head_read(const uint8_t *data, size_t len, struct hth_head_note *out) HTH_MUST;

/* Where the records of a run's heads are. */
void hth_heads_topic(const struct hth_crypto *crypto, const char *network, uint64_t schema,
                     struct hth_topic *out);

typedef void hth_head_fn(void *arg, const struct hth_head_note *note, const struct hth_peer_id *by);

/* `heard` is told of each head of others that is new or renewed. Errors: those of a board. */
enum hth_err hth_heads_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                           uint64_t schema, hth_head_fn *heard, void *arg,
                           struct hth_heads **out) HTH_MUST;
/* NULL is fine. */
void hth_heads_free(struct hth_heads *heads);
/* Says it from now on, the latest of what was said within a few seconds; NULL: nothing more. */
void hth_heads_say(struct hth_heads *heads, const struct hth_head_note *note);
/* Others whose records live, and who hold a head, or (`looks`) look for one as this one does. */
uint32_t hth_heads_others(const struct hth_heads *heads, bool looks);
/* One of those that say they hold a head after the other, and round again. False: there is none. */
bool hth_heads_next(struct hth_heads *heads, struct hth_roll_peer *holder);
/* This one holds no head, whatever it says: it is not counted for so long, and 3 s at least. */
void hth_heads_doubt(struct hth_heads *heads, const struct hth_peer_id *by, int64_t least_us);

#endif
