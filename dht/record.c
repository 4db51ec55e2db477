/* SPDX-License-Identifier: Apache-2.0 */
#include "dht/record.h"

#include <stdio.h>
#include <string.h>

#include "core/bytes.h"
#include "core/mem.h"
#include "core/name.h"

static const char MAGIC[4] = {'H', 'R', 'E', 'C'};
/* Signatures made for another purpose with the same key never fit a record. */
static const char DOMAIN[16] = "hearth record 1";

#define SIGNED_BYTES_MAX (sizeof(DOMAIN) + HTH_DHT_KEY_LEN + HTH_DHT_VALUE_BYTES_MAX)

uint64_t hth_network_tag(const struct hth_crypto *crypto, const char *network)
{
    uint8_t buf[16 + HTH_NAME_LEN_MAX];
    size_t len = strnlen(network, HTH_NAME_LEN_MAX);
    struct hth_hash h;
    memcpy(buf, "hearth network 1", 16);
    memcpy(buf + 16, network, len);
    crypto->hash(buf, 16 + len, &h);
    return hth_load_u64le(h.b);
}

void hth_topic_init(struct hth_topic *topic, const struct hth_crypto *crypto, const char *network,
                    enum hth_record_kind kind, const void *name, size_t name_len)
{
    struct hth_hash name_hash;
    uint8_t buf[16 + 1 + 8 + HTH_HASH_LEN];
    memset(topic, 0, sizeof(*topic));
    topic->kind = (uint8_t)kind;
    topic->network = hth_network_tag(crypto, network);
    crypto->hash(name, name_len, &name_hash);
    memcpy(buf, "hearth topic 1\0\0", 16);
    buf[16] = (uint8_t)kind;
    bool shared = kind == HTH_RECORD_BEACON && !hth_network_is_private(network);
    hth_store_u64le(buf + 17, shared ? 0 : topic->network);
    memcpy(buf + 25, name_hash.b, HTH_HASH_LEN);
    crypto->hash(buf, sizeof(buf), &topic->base);
}

int64_t hth_topic_epoch(int64_t wall_us)
{
    return wall_us > 0 ? wall_us / HTH_TOPIC_EPOCH_US : 0;
}

void hth_topic_key(const struct hth_topic *topic, const struct hth_crypto *crypto, int64_t epoch,
                   struct hth_dht_key *key)
{
    struct hth_hash h;
    uint8_t buf[HTH_HASH_LEN + 8];
    memcpy(buf, topic->base.b, HTH_HASH_LEN);
    hth_store_u64le(buf + HTH_HASH_LEN, (uint64_t)epoch);
    crypto->hash(buf, sizeof(buf), &h);
    memcpy(key->b, h.b, sizeof(key->b));
}

/* The signed bytes: the domain, the DHT key of the record, and the record up to its signature. */
static size_t signed_bytes(const struct hth_dht_key *key, const uint8_t *data, size_t len,
                           uint8_t out[SIGNED_BYTES_MAX])
{
    struct hth_writer w;
    hth_writer_init(&w, out, SIGNED_BYTES_MAX);
    hth_write_bytes(&w, DOMAIN, sizeof(DOMAIN));
    hth_write_bytes(&w, key->b, sizeof(key->b));
    hth_write_bytes(&w, data, len);
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

static bool life_ok(uint32_t life_ms)
{
    int64_t us = (int64_t)life_ms * HTH_US_PER_MS;
    return us >= HTH_RECORD_LIFE_MIN_US && us <= HTH_RECORD_LIFE_MAX_US;
}

enum hth_err hth_record_seal(struct hth_env *env, const struct hth_dht_key *key,
                             const struct hth_record *rec, uint8_t *out, size_t capacity,
                             size_t *len)
{
    uint8_t buf[SIGNED_BYTES_MAX], sig[HTH_SIG_LEN];
    struct hth_writer w;
    *len = 0;
    if (rec->payload_len > HTH_RECORD_PAYLOAD_MAX)
        return HTH_E_TOO_LARGE;
    if (rec->part >= HTH_BOARD_RECORDS_PER_OWNER_MAX || !life_ok(rec->life_ms))
        return HTH_E_RANGE;
    hth_writer_init(&w, out, capacity);
    hth_write_bytes(&w, MAGIC, sizeof(MAGIC));
    hth_write_u8(&w, HTH_RECORD_VERSION);
    hth_write_u8(&w, rec->kind);
    hth_write_u8(&w, rec->part);
    hth_write_u8(&w, rec->flags);
    hth_write_u64(&w, rec->network);
    hth_write_u64(&w, rec->seq);
    hth_write_u64(&w, (uint64_t)rec->issued_us);
    hth_write_u32(&w, rec->life_ms);
    hth_write_u32(&w, (uint32_t)rec->payload_len);
    hth_write_bytes(&w, env->pubkey.b, HTH_PUBKEY_LEN);
    hth_write_bytes(&w, rec->payload, rec->payload_len);
    HTH_TRY(w.err);
    size_t n = signed_bytes(key, out, w.pos, buf);
    env->crypto->sign(&env->secret, buf, n, sig);
    hth_write_bytes(&w, sig, sizeof(sig));
    HTH_TRY(w.err);
    *len = w.pos;
    return HTH_OK;
}

/* magic 4, version 1, kind 1, part 1, flags 1, network 8, seq 8, issued 8, life 4, length 4, owner
 * 32. Fixed offsets without a cursor, because every reader of a key reads every record under it. */
enum hth_err hth_record_peek(const uint8_t *data, size_t len, struct hth_record *out)
{
    memset(out, 0, sizeof(*out));
    if (len > HTH_DHT_VALUE_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    if (len < 5)
        return HTH_E_TRUNCATED;
    if (memcmp(data, MAGIC, sizeof(MAGIC)) != 0)
        return HTH_E_BAD_MAGIC;
    if (data[4] != HTH_RECORD_VERSION)
        return HTH_E_VERSION;
    if (len < HTH_RECORD_OVERHEAD_BYTES)
        return HTH_E_TRUNCATED;
    out->kind = data[5];
    out->part = data[6];
    out->flags = data[7];
    out->network = hth_load_u64le(data + 8);
    out->seq = hth_load_u64le(data + 16);
    uint64_t issued = hth_load_u64le(data + 24);
    out->life_ms = hth_load_u32le(data + 32);
    uint32_t payload_len = hth_load_u32le(data + 36);
    _Static_assert(40 + HTH_PUBKEY_LEN == HTH_RECORD_HEAD_BYTES, "the head ends with the owner");
    memcpy(out->owner.b, data + 40, HTH_PUBKEY_LEN);
    size_t room = len - HTH_RECORD_OVERHEAD_BYTES;
    if (payload_len > room)
        return HTH_E_TRUNCATED;
    if (payload_len < room || (out->flags & ~HTH_RECORD_GOODBYE) != 0)
        return HTH_E_MALFORMED;
    /* The top of the range is cut so that adding lives and skews can't overflow. */
    if (issued > (uint64_t)INT64_MAX / 2 || !life_ok(out->life_ms) ||
        out->part >= HTH_BOARD_RECORDS_PER_OWNER_MAX)
        return HTH_E_RANGE;
    out->issued_us = (int64_t)issued;
    out->payload = data + HTH_RECORD_HEAD_BYTES;
    out->payload_len = payload_len;
    return HTH_OK;
}

enum hth_err hth_record_check_time(const struct hth_record *rec, int64_t wall_us)
{
    int64_t end_us = rec->issued_us + (int64_t)rec->life_ms * HTH_US_PER_MS;
    if (rec->issued_us > wall_us + HTH_CLOCK_SKEW_MAX_US)
        return HTH_E_CLOCK_SKEW;
    if (wall_us > end_us + HTH_CLOCK_SKEW_MAX_US)
        return HTH_E_EXPIRED;
    return HTH_OK;
}

/* ---- the cache ----------------------------------------------------------------------------- */

/* A new entry replaces the oldest. Entries lie in a ring in order of age; chains of ring places,
 * chosen by the digest's first bits, find them. An attacker cannot fill one chain cheaply: every
 * digest costs a signature. */
struct cached_check {
    struct hth_hash digest;
    uint32_t next; /* in its chain: place + 1 */
    bool good;
};

struct hth_record_cache {
    struct cached_check *ring;
    uint32_t *chains; /* `capacity` of them: place + 1 of the first; 0: empty */
    size_t capacity;  /* a power of two */
    size_t count, next;
    uint64_t verified;
};

struct hth_record_cache *hth_record_cache_new(void)
{
    return hth_new(struct hth_record_cache);
}

void hth_record_cache_free(struct hth_record_cache *cache)
{
    if (cache == NULL)
        return;
    hth_free(cache->ring);
    hth_free(cache->chains);
    hth_free(cache);
}

uint64_t hth_record_cache_verified(const struct hth_record_cache *cache)
{
    return cache->verified;
}

static uint32_t *chain_of(const struct hth_record_cache *cache, const struct hth_hash *digest)
{
    return &cache->chains[hth_load_u64le(digest->b) & (cache->capacity - 1)];
}

static const struct cached_check *cache_find(const struct hth_record_cache *cache,
                                             const struct hth_hash *digest)
{
    if (cache->capacity == 0)
        return NULL;
    for (uint32_t n = *chain_of(cache, digest); n > 0; n = cache->ring[n - 1].next) {
        const struct cached_check *v = &cache->ring[n - 1];
        if (memcmp(v->digest.b, digest->b, HTH_HASH_LEN) == 0)
            return v;
    }
    return NULL;
}

static void chain_add(struct hth_record_cache *cache, uint32_t place)
{
    struct cached_check *v = &cache->ring[place];
    uint32_t *chain = chain_of(cache, &v->digest);
    v->next = *chain;
    *chain = place + 1;
}

static void chain_remove(struct hth_record_cache *cache, uint32_t place)
{
    uint32_t *link = chain_of(cache, &cache->ring[place].digest);
    while (*link != place + 1)
        link = &cache->ring[*link - 1].next;
    *link = cache->ring[place].next;
}

static void cache_grow(struct hth_record_cache *cache)
{
    cache->capacity = cache->capacity > 0 ? 2 * cache->capacity : 16;
    cache->ring = hth_realloc(cache->ring, cache->capacity, sizeof(*cache->ring));
    cache->chains = hth_realloc(cache->chains, cache->capacity, sizeof(*cache->chains));
    memset(cache->chains, 0, cache->capacity * sizeof(*cache->chains));
    for (size_t i = 0; i < cache->count; i++)
        chain_add(cache, (uint32_t)i);
}

static void cache_add(struct hth_record_cache *cache, const struct hth_hash *digest, bool good)
{
    size_t place = cache->count;
    if (cache->count < HTH_RECORD_CACHE_MAX) {
        if (cache->count == cache->capacity)
            cache_grow(cache);
        cache->count++;
    } else {
        place = cache->next;
        cache->next = (cache->next + 1) % HTH_RECORD_CACHE_MAX;
        chain_remove(cache, (uint32_t)place);
    }
    cache->ring[place] = (struct cached_check){.digest = *digest, .good = good};
    chain_add(cache, (uint32_t)place);
}

_Static_assert((HTH_RECORD_CACHE_MAX & (HTH_RECORD_CACHE_MAX - 1)) == 0, "chains are doubled");

void hth_record_cache_good(struct hth_env *env, struct hth_record_cache *cache,
                           const struct hth_dht_key *key, const uint8_t *data, size_t len)
{
    uint8_t buf[SIGNED_BYTES_MAX];
    struct hth_hash digest;
    env->crypto->hash(buf, signed_bytes(key, data, len, buf), &digest);
    if (cache_find(cache, &digest) == NULL)
        cache_add(cache, &digest, true);
}

enum hth_err hth_record_verify(struct hth_env *env, struct hth_record_cache *cache,
                               const struct hth_dht_key *key, const uint8_t *data, size_t len,
                               const struct hth_record *rec, bool *checked)
{
    uint8_t buf[SIGNED_BYTES_MAX];
    struct hth_hash digest;
    size_t body = len - HTH_SIG_LEN;
    /* The signature's bytes are part of the digest: a bad signature must not match the entry of a
     * good one. */
    size_t n = signed_bytes(key, data, len, buf);
    const struct cached_check *v = NULL;
    if (cache != NULL && cache->count > 0) {
        env->crypto->hash(buf, n, &digest);
        v = cache_find(cache, &digest);
    }
    if (checked != NULL)
        *checked = v == NULL;
    bool good = v != NULL
                    ? v->good
                    : env->crypto->verify(&rec->owner, buf, n - HTH_SIG_LEN, data + body) == HTH_OK;
    if (v == NULL && cache != NULL) {
        cache->verified++;
        if (!good) {
            env->crypto->hash(buf, n, &digest);
            cache_add(cache, &digest, false);
        }
    }
    return good ? HTH_OK : HTH_E_BAD_SIGNATURE;
}

enum hth_err hth_record_open(struct hth_env *env, struct hth_record_cache *cache,
                             const struct hth_topic *topic, const struct hth_dht_key *key,
                             const uint8_t *data, size_t len, struct hth_record *out)
{
    HTH_TRY(hth_record_peek(data, len, out));
    if (out->kind != topic->kind)
        return HTH_E_MALFORMED;
    if (out->network != topic->network)
        return HTH_E_WRONG_RUN;
    HTH_TRY(hth_record_check_time(out, hth_wall_us(env)));
    HTH_TRY(hth_record_verify(env, cache, key, data, len, out, NULL));
    out->owner_id = hth_peer_id_of(env->crypto, &out->owner);
    return HTH_OK;
}

static const char *clock_text(int64_t wall_us, char out[32])
{
    int64_t day_us = 86400 * HTH_US_PER_S;
    int64_t t = wall_us % day_us;
    snprintf(out, 32, "%02d:%02d:%06.3f", (int)(t / (3600 * HTH_US_PER_S)),
             (int)(t / (60 * HTH_US_PER_S) % 60),
             (double)(t % (60 * HTH_US_PER_S)) / (double)HTH_US_PER_S);
    return out;
}

const char *hth_record_explain(enum hth_err err, const struct hth_record *rec, int64_t wall_us,
                               char out[200])
{
    char theirs[32], ours[32];
    double apart = (double)(rec->issued_us - wall_us) / (double)HTH_US_PER_S;
    if (err == HTH_E_CLOCK_SKEW)
        snprintf(out, 200,
                 "issued at %s UTC by its owner's clock, but it is %s UTC by ours: %.1f s in the "
                 "future, tolerated are 3 s; set the clock that is wrong",
                 clock_text(rec->issued_us, theirs), clock_text(wall_us, ours), apart);
    else if (err == HTH_E_EXPIRED)
        snprintf(out, 200, "issued at %s UTC for %.0f s, and it is %s UTC by our clock",
                 clock_text(rec->issued_us, theirs), (double)rec->life_ms / 1000.0,
                 clock_text(wall_us, ours));
    else
        snprintf(out, 200, "%s", hth_err_text(err));
    return out;
}
