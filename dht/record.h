/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h: signed statements in a table that anyone may write to.
 *
 * The DHT promises nothing about its values, so each carries all that its reader needs to judge it:
 * the owner's key, a sequence number, its time of issue and its life, and a signature over all of
 * that and over the DHT key it was put under. That key is not sent: a record copied to another key
 * has a wrong signature there. Of several records with the same owner and part the one with the
 * highest sequence is valid; sequences are wall-clock microseconds, so they survive a restart.
 *
 *    0  magic "HREC"        8  network tag (8)   32  life in ms (4)     72  payload (n)
 *    4  version             16 sequence (8)      36  n (4)           72+n  Ed25519 signature (64)
 *    5  kind, 6 part,       24 issued, wall      40  owner's public
 *    7  flags                  clock in us (8)       key (32)
 *
 * A *topic* is the subject of records: (network, kind, name). Its DHT key changes every
 * HTH_TOPIC_EPOCH_US of wall time, because OpenDHT keeps every value for 10 minutes, superseded or
 * not: without the change, a newcomer would read 30 dead copies of each record.
 *
 * Time: a record is believed until issued + life. Clocks may differ by HTH_CLOCK_SKEW_MAX_US: a
 * record issued further in the future is refused with E_CLOCK_SKEW, and an old one is refused with
 * E_EXPIRED only when it is past its life by more than that.
 *
 * board.h publishes records and collects them; use this header alone only for other media.
 * Pure functions, any thread; a hth_record_cache belongs to one thread.
 */
#ifndef HTH_DHT_RECORD_H
#define HTH_DHT_RECORD_H

#include "core/base.h"
#include "core/dht.h"
#include "core/env.h"
#include "core/limits.h"

#define HTH_RECORD_VERSION        1
#define HTH_RECORD_HEAD_BYTES     72
#define HTH_RECORD_OVERHEAD_BYTES (HTH_RECORD_HEAD_BYTES + HTH_SIG_LEN)
#define HTH_RECORD_PAYLOAD_MAX    (HTH_DHT_VALUE_BYTES_MAX - HTH_RECORD_OVERHEAD_BYTES)

/* On the wire: append, never renumber; 4 and 6 are not used. */
enum hth_record_kind {
    HTH_RECORD_BEACON = 1,   /* a node is here (peers.h) */
    HTH_RECORD_ROOT = 2,     /* a host's experts of a layer, or their first coordinates */
    HTH_RECORD_PREFIX = 3,   /* a host's experts below layer.c0. */
    HTH_RECORD_PROGRESS = 5, /* samples done towards the next step */
    HTH_RECORD_HEAD = 7,     /* "I hold this head of the run's steps" */
    HTH_RECORD_PASS = 8,     /* "I am a member of this closed run" (members.h) */
    HTH_RECORD_REVOKED = 9   /* a list of its revoked invites, which its owner signed */
};

/* flags */
#define HTH_RECORD_GOODBYE 1u /* the owner withdraws its record of this part */

struct hth_topic {
    uint8_t kind;
    uint64_t network; /* tag, see hth_network_tag */
    struct hth_hash base;
};

struct hth_record {
    uint8_t kind;
    uint8_t part; /* 0 .. HTH_BOARD_RECORDS_PER_OWNER_MAX - 1 */
    uint8_t flags;
    uint64_t network;
    uint64_t seq;
    int64_t issued_us; /* the owner's wall clock */
    uint32_t life_ms;
    struct hth_pubkey owner;
    struct hth_peer_id owner_id;
    const uint8_t *payload; /* points into the bytes it was read from */
    size_t payload_len;
};

/* The first 8 bytes of the hash of a network (core/name.h). */
uint64_t hth_network_tag(const struct hth_crypto *crypto, const char *network);
/* All networks but private ones share the beacons' topic, so that a peer can detect that it joined
 * the wrong one: pass the kind HTH_RECORD_BEACON and an empty name. */
void hth_topic_init(struct hth_topic *topic, const struct hth_crypto *crypto, const char *network,
                    enum hth_record_kind kind, const void *name, size_t name_len);
/* The epoch of a wall-clock time, and a topic's key in an epoch. */
int64_t hth_topic_epoch(int64_t wall_us);
void hth_topic_key(const struct hth_topic *topic, const struct hth_crypto *crypto, int64_t epoch,
                   struct hth_dht_key *key);

/* Signs rec (kind, part, flags, network, seq, issued_us, life_ms, payload; the owner is the env's
 * identity) for `key` into out. Errors: E_TOO_LARGE (payload or capacity), E_RANGE (part, life). */
enum hth_err hth_record_seal(struct hth_env *env, const struct hth_dht_key *key,
                             const struct hth_record *rec, uint8_t *out, size_t capacity,
                             size_t *len) HTH_MUST;

/* Reads the fields without judging time, network or signature; owner_id stays zero.
 * Errors: E_TRUNCATED, E_TOO_LARGE, E_BAD_MAGIC, E_VERSION, E_MALFORMED (bytes left over, unknown
 * flags), E_RANGE (part, life). */
enum hth_err hth_record_peek(const uint8_t *data, size_t len, struct hth_record *out) HTH_MUST;

/* Judges times by this wall clock. Errors: E_CLOCK_SKEW, E_EXPIRED. */
enum hth_err hth_record_check_time(const struct hth_record *rec, int64_t wall_us) HTH_MUST;

/* Remembers results for refused records, so that a bad value that arrives repeatedly costs a hash
 * and not a signature check. Believed records need no entry: their reader recognises a repeat by
 * its sequence. */
struct hth_record_cache;
struct hth_record_cache *hth_record_cache_new(void);
void hth_record_cache_free(struct hth_record_cache *cache);
/* Signatures checked, without those answered from the cache. */
uint64_t hth_record_cache_verified(const struct hth_record_cache *cache);
/* Remembers that the signature of these bytes is good; their content was refused. */
void hth_record_cache_good(struct hth_env *env, struct hth_record_cache *cache,
                           const struct hth_dht_key *key, const uint8_t *data, size_t len);

/* The signature only; owner_id stays zero. `rec` came from hth_record_peek on the same bytes;
 * cache may be NULL. *checked (may be NULL) is true if a signature was checked. Errors:
 * E_BAD_SIGNATURE. */
enum hth_err hth_record_verify(struct hth_env *env, struct hth_record_cache *cache,
                               const struct hth_dht_key *key, const uint8_t *data, size_t len,
                               const struct hth_record *rec, bool *checked) HTH_MUST;

/* All checks in order of their cost: format, kind and network (E_WRONG_RUN), time, signature. */
enum hth_err hth_record_open(struct hth_env *env, struct hth_record_cache *cache,
                             const struct hth_topic *topic, const struct hth_dht_key *key,
                             const uint8_t *data, size_t len, struct hth_record *out) HTH_MUST;

/* A sentence for people about a record that was refused; for E_CLOCK_SKEW and E_EXPIRED it names
 * both clocks. */
const char *hth_record_explain(enum hth_err err, const struct hth_record *rec, int64_t wall_us,
                               char out[200]);

#endif
