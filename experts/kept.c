/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept.c: see kept.h. An entry is in two lists, both in order of time: its peer's, to make room,
 * and that of all, for the age.
 */
#include "experts/kept.h"

#include "core/limits.h"
#include "core/map.h"
#include "core/mem.h"

#include <string.h>

/* Bytes charged for an entry besides its rows. */
#define ENTRY_BYTES ((int64_t)sizeof(struct hth_kept_entry) + 128)

struct kept_peer {
    struct hth_peer_id id;
    struct hth_kept_entry *oldest, *newest;
    int64_t bytes;
};

struct hth_kept_entry {
    struct hth_kept *kept;
    struct kept_peer *peer;
    struct hth_kept_entry *prev, *next;           /* of all */
    struct hth_kept_entry *peer_prev, *peer_next; /* of its peer */
    uint8_t key[HTH_HASH_LEN + 16];
    struct hth_kept_rows rows;
    int64_t bytes;
    int64_t put_us;
};

struct hth_kept {
    struct hth_env *env;
    struct hth_map *entries, *peers;
    struct hth_kept_entry *oldest, *newest;
    struct hth_timer *age_timer; /* set while there are entries */
    int64_t bytes, bytes_max;
    int64_t age_us;
};

static void make_key(const struct hth_peer_id *peer, struct hth_rpc_idem key,
                     uint8_t out[HTH_HASH_LEN + 16])
{
    memcpy(out, peer->b, HTH_HASH_LEN);
    memcpy(out + HTH_HASH_LEN, &key.hi, 8);
    memcpy(out + HTH_HASH_LEN + 8, &key.lo, 8);
}

static void arm(struct hth_kept *k)
{
    if (k->oldest == NULL)
        hth_timer_cancel(k->env, k->age_timer);
    else
        hth_timer_set(k->env, k->age_timer, k->oldest->put_us + k->age_us - hth_now_us(k->env));
}

static void on_age(void *arg)
{
    struct hth_kept *k = arg;

    while (k->oldest != NULL && k->oldest->put_us + k->age_us <= hth_now_us(k->env))
        hth_kept_drop(k->oldest);
    arm(k);
}

struct hth_kept *hth_kept_new(struct hth_env *env, int64_t bytes_max, int64_t age_us)
{
    struct hth_kept *k = hth_new(struct hth_kept);

    k->env = env;
    k->entries = hth_map_new();
    k->peers = hth_map_new();
    k->age_timer = hth_timer_new(env, on_age, k);
    k->bytes_max = bytes_max;
    k->age_us = age_us;
    return k;
}

void hth_kept_free(struct hth_kept *kept)
{
    if (kept == NULL)
        return;
    while (kept->oldest != NULL)
        hth_kept_drop(kept->oldest);
    hth_timer_free(kept->env, kept->age_timer);
    hth_map_free(kept->entries);
    hth_map_free(kept->peers);
    hth_free(kept);
}

static void link_entry(struct hth_kept_entry *e)
{
    struct hth_kept *k = e->kept;
    struct kept_peer *p = e->peer;

    e->prev = k->newest;
    *(e->prev != NULL ? &e->prev->next : &k->oldest) = e;
    k->newest = e;
    e->peer_prev = p->newest;
    *(e->peer_prev != NULL ? &e->peer_prev->peer_next : &p->oldest) = e;
    p->newest = e;
    p->bytes += e->bytes;
    k->bytes += e->bytes;
}

static void unlink_entry(struct hth_kept_entry *e)
{
    struct hth_kept *k = e->kept;
    struct kept_peer *p = e->peer;

    *(e->prev != NULL ? &e->prev->next : &k->oldest) = e->next;
    *(e->next != NULL ? &e->next->prev : &k->newest) = e->prev;
    *(e->peer_prev != NULL ? &e->peer_prev->peer_next : &p->oldest) = e->peer_next;
    *(e->peer_next != NULL ? &e->peer_next->peer_prev : &p->newest) = e->peer_prev;
    p->bytes -= e->bytes;
    k->bytes -= e->bytes;
}

void hth_kept_drop(struct hth_kept_entry *entry)
{
    struct hth_kept *k;
    struct kept_peer *p;

    if (entry == NULL)
        return;
    k = entry->kept;
    p = entry->peer;
    unlink_entry(entry);
    hth_map_del(k->entries, entry->key, sizeof(entry->key));
    if (p->oldest == NULL) {
        hth_map_del(k->peers, p->id.b, sizeof(p->id.b));
        hth_free(p);
    }
    hth_blob_unref(entry->rows.x.blob);
    hth_free(entry);
}

/* Frees this peer's oldest rows until there is room for so many bytes. False, and nothing is freed,
 * if there would be no room even without its rows. */
static bool make_room(struct hth_kept *k, const struct hth_peer_id *id, int64_t bytes)
{
    struct kept_peer *p = hth_map_get(k->peers, id->b, sizeof(id->b));
    int64_t others = k->bytes - (p != NULL ? p->bytes : 0);

    if (bytes > k->bytes_max - others - bytes)
        return false;
    while (p != NULL && p->bytes + bytes > k->bytes_max - k->bytes - bytes) {
        hth_kept_drop(p->oldest);
        p = hth_map_get(k->peers, id->b, sizeof(id->b));
    }
    return true;
}

static struct kept_peer *peer_of(struct hth_kept *k, const struct hth_peer_id *id)
{
    struct kept_peer *p = hth_map_get(k->peers, id->b, sizeof(id->b));

    if (p != NULL)
        return p;
    p = hth_new(struct kept_peer);
    p->id = *id;
    hth_map_put(k->peers, id->b, sizeof(id->b), p);
    return p;
}

bool hth_kept_put(struct hth_kept *kept, const struct hth_peer_id *peer, struct hth_rpc_idem key,
                  const struct hth_kept_rows *rows)
{
    int64_t bytes = ENTRY_BYTES + (int64_t)rows->x.blob->size;
    struct hth_kept_entry *e = hth_kept_find(kept, peer, key);
    bool was_empty;

    if (e != NULL)
        hth_kept_drop(e);
    if (!make_room(kept, peer, bytes))
        return false;
    was_empty = kept->oldest == NULL;
    e = hth_new(struct hth_kept_entry);
    e->kept = kept;
    e->peer = peer_of(kept, peer);
    make_key(peer, key, e->key);
    e->rows = *rows;
    hth_blob_ref(e->rows.x.blob);
    e->bytes = bytes;
    e->put_us = hth_now_us(kept->env);
    link_entry(e);
    hth_map_put(kept->entries, e->key, sizeof(e->key), e);
    if (was_empty)
        arm(kept);
    return true;
}

struct hth_kept_entry *hth_kept_find(struct hth_kept *kept, const struct hth_peer_id *peer,
                                     struct hth_rpc_idem key)
{
    uint8_t full[HTH_HASH_LEN + 16];

    make_key(peer, key, full);
    return hth_map_get(kept->entries, full, sizeof(full));
}

const struct hth_kept_rows *hth_kept_rows(const struct hth_kept_entry *entry)
{
    return &entry->rows;
}

int64_t hth_kept_bytes(const struct hth_kept *kept)
{
    return kept->bytes;
}
