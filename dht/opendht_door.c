/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opendht_door.c: reads as much of OpenDHT's messages as tells whose records they put.
 *
 *   {a: {.., values: [{id, dat: {body: {type, data: RECORD}}}, ..], ..}, q: "put", ..}
 *
 * They are MessagePack. A put in other forms than OpenDHT's own counts as a stranger's.
 */
#include "dht/opendht_door.h"

#include "core/bytes.h"
#include "core/dht.h"
#include "core/map.h"
#include "core/mem.h"
#include "dht/record.h"

#include <pthread.h>
#include <string.h>

/* Strangers may put BURST at once of each kind of records, and then so many in a second. Other runs
 * store theirs with us, too; values that OpenDHT sends in parts do not show whose they are. */
#define BURST   32
#define KINDS   16
#define FOREIGN KINDS /* of another run */
#define PARTS   (KINDS + 1)
#define ODD     (KINDS + 2) /* in another form than hearth's */
#define COUNTED (KINDS + 3)
#define FREE    COUNTED

static const int64_t per_s[COUNTED] = {[FOREIGN] = 32, [PARTS] = 32};

struct hth_opendht_door {
    pthread_mutex_t lock;
    struct hth_map *known; /* owner -> this; NULL: all is let in */
    uint64_t network;
    int64_t paid_us[COUNTED]; /* when what strangers put of it is paid for */
    uint64_t dropped;
};

/* ---- MessagePack --------------------------------------------------------------------------- */

enum type { NUMBER, TEXT, BYTES, LIST, MAP };

struct item {
    enum type type;
    const uint8_t *at; /* of texts and bytes */
    uint32_t len;      /* of these; of lists and maps: the objects that follow */
};

struct pack {
    const uint8_t *p, *end;
};

static bool take(struct pack *s, size_t n, const uint8_t **at)
{
    if ((size_t)(s->end - s->p) < n)
        return false;
    *at = s->p;
    s->p += n;
    return true;
}

/* A big-endian length. */
static bool take_len(struct pack *s, size_t bytes, uint32_t *len)
{
    const uint8_t *at;
    if (!take(s, bytes, &at))
        return false;
    for (*len = 0; bytes > 0; bytes--)
        *len = *len << 8 | *at++;
    return true;
}

static bool next(struct pack *s, struct item *out)
{
    const uint8_t *at;
    *out = (struct item){.type = NUMBER};
    if (!take(s, 1, &at))
        return false;
    const uint8_t t = *at;
    if (t < 0x80 || t >= 0xe0 || t == 0xc0 || t == 0xc2 || t == 0xc3)
        return true;
    if (t < 0xa0) {
        out->type = t < 0x90 ? MAP : LIST;
        out->len = (t & 0xfu) * (t < 0x90 ? 2 : 1);
        return true;
    }
    if (t >= 0xdc) { /* lists, maps; a longer one ends before it does */
        out->type = t >= 0xde ? MAP : LIST;
        if (!take_len(s, t % 2 == 0 ? 2 : 4, &out->len) || out->len > (size_t)(s->end - s->p))
            return false;
        out->len *= out->type == MAP ? 2 : 1;
        return true;
    }
    if (t < 0xc0) {
        out->type = TEXT;
        out->len = t & 0x1f;
    } else if (t >= 0xd9) {
        out->type = TEXT;
        if (!take_len(s, (size_t)1 << (t - 0xd9), &out->len))
            return false;
    } else if (t >= 0xc4 && t <= 0xc6) {
        out->type = BYTES;
        if (!take_len(s, (size_t)1 << (t - 0xc4), &out->len))
            return false;
    } else if (t >= 0xca && t <= 0xd3) {
        out->len = 1u << (t & 3);
    } else {
        return false; /* OpenDHT has no extensions */
    }
    return take(s, out->len, &out->at);
}

static bool skip(struct pack *s)
{
    struct item item;
    for (uint64_t left = 1; left > 0; left--) {
        if (!next(s, &item))
            return false;
        left += item.type >= LIST ? item.len : 0;
    }
    return true;
}

static bool is(const struct item *item, const char *text)
{
    return item->type == TEXT && item->len == strlen(text) &&
           memcmp(item->at, text, item->len) == 0;
}

static bool map_of(struct pack *s, uint32_t pairs)
{
    struct item item;
    return next(s, &item) && item.type == MAP && item.len == 2 * pairs;
}

static bool key(struct pack *s, const char *text)
{
    struct item item;
    return next(s, &item) && is(&item, text);
}

/* Finds the value of a key of the map that begins here: E_NOT_FOUND, E_MALFORMED; two are
 * malformed, because readers differ in which they believe. */
static enum hth_err find(struct pack s, const char *text, struct pack *out)
{
    enum hth_err err = HTH_E_NOT_FOUND;
    struct item map, name;
    if (!next(&s, &map) || map.type != MAP)
        return HTH_E_MALFORMED;
    for (uint32_t i = 0; i < map.len; i += 2) {
        if (!next(&s, &name))
            return HTH_E_MALFORMED;
        if (is(&name, text)) {
            if (err == HTH_OK)
                return HTH_E_MALFORMED;
            err = HTH_OK;
            *out = s;
        }
        if (!skip(&s))
            return HTH_E_MALFORMED;
    }
    return err;
}

/* ---- whose record -------------------------------------------------------------------------- */

/* The kind that a datagram counts as. */
static size_t kind_of(const struct hth_opendht_door *d, const uint8_t *bytes, size_t len)
{
    struct pack message = {bytes, bytes + len}, s;
    struct item method, list, data;
    struct hth_record rec;
    enum hth_err err = find(message, "q", &s);
    if (err == HTH_E_NOT_FOUND)
        return FREE; /* a reply */
    if (err != HTH_OK || !next(&s, &method))
        return ODD;
    if (!is(&method, "put"))
        return FREE;
    if (find(message, "a", &s) != HTH_OK || find(s, "values", &s) != HTH_OK || !next(&s, &list) ||
        list.type != LIST || list.len != 1)
        return ODD;
    const struct pack value = s;
    if (next(&s, &data) && data.type == NUMBER)
        return PARTS;
    s = value;
    if (!map_of(&s, 2) || !key(&s, "id") || !skip(&s) || !key(&s, "dat") || !map_of(&s, 1) ||
        !key(&s, "body") || !map_of(&s, 2) || !key(&s, "type") || !skip(&s) || !key(&s, "data") ||
        !next(&s, &data) || data.type != BYTES ||
        hth_record_peek(data.at, data.len, &rec) != HTH_OK)
        return ODD;
    if (hth_map_get(d->known, rec.owner.b, sizeof(rec.owner.b)) != NULL)
        return FREE;
    return rec.network == d->network ? rec.kind % KINDS : FOREIGN;
}

static int64_t each_us(size_t kind)
{
    return HTH_US_PER_S / HTH_MAX(per_s[kind], INT64_C(1));
}

bool hth_opendht_door_lets(struct hth_opendht_door *d, const uint8_t *data, size_t len,
                           int64_t now_us)
{
    bool lets = true;
    pthread_mutex_lock(&d->lock);
    size_t kind = d->known != NULL ? kind_of(d, data, len) : FREE;
    if (kind != FREE) {
        int64_t paid_us = HTH_MAX(d->paid_us[kind], now_us - BURST * each_us(kind)) + each_us(kind);
        lets = paid_us <= now_us;
        if (lets)
            d->paid_us[kind] = paid_us;
        d->dropped += !lets;
    }
    pthread_mutex_unlock(&d->lock);
    return lets;
}

uint64_t hth_opendht_door_dropped(struct hth_opendht_door *d)
{
    pthread_mutex_lock(&d->lock);
    uint64_t dropped = d->dropped;
    pthread_mutex_unlock(&d->lock);
    return dropped;
}

/* ---- life ---------------------------------------------------------------------------------- */

struct hth_opendht_door *hth_opendht_door_new(void)
{
    struct hth_opendht_door *d = hth_new(struct hth_opendht_door);
    pthread_mutex_init(&d->lock, NULL);
    return d;
}

void hth_opendht_door_free(struct hth_opendht_door *d)
{
    if (d == NULL)
        return;
    hth_map_free(d->known);
    pthread_mutex_destroy(&d->lock);
    hth_free(d);
}

void hth_opendht_door_know(struct hth_opendht_door *d, uint64_t network,
                           const struct hth_pubkey *owner, bool known)
{
    pthread_mutex_lock(&d->lock);
    if (d->known == NULL)
        d->known = hth_map_new();
    d->network = network;
    if (!known)
        (void)hth_map_del(d->known, owner->b, sizeof(owner->b));
    else if (hth_map_put(d->known, owner->b, sizeof(owner->b), d) == NULL)
        d->paid_us[HTH_RECORD_PASS] -= each_us(HTH_RECORD_PASS); /* it was no stranger's */
    pthread_mutex_unlock(&d->lock);
}
