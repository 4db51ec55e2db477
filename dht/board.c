/* SPDX-License-Identifier: Apache-2.0 */
/*
 * board.c: reading side. A board watches these keys of its topic over the wall clock's epochs:
 *
 *        epoch n-1        |            epoch n             |        epoch n+1
 *   ----------------------+--------------------------------+---------------------
 *   watch n-1 ............|.....OVERLAP                    |
 *                  LEAD...|watch n ........................|.....OVERLAP
 *
 * A publisher is pinned anew under each epoch's key at most HTH_PUBLISHER_REPIN_US after the epoch
 * began, so that a reader that joins later finds every record under the current key alone.
 */
#include "dht/board.h"

#include <string.h>

#include "core/heap.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/rng.h"
#include "dht/board_time.h"

#define WINDOWS 3
/* A pass is renewed within that time, so a record waits for it no longer. */
#define WAIT_US  (45 * HTH_US_PER_S)
#define RETRY_US (HTH_US_PER_S / 2)

/* One watched key. */
struct window {
    struct hth_board *board;
    int64_t epoch;
    struct hth_dht_key key;
    struct hth_dht_watch *watch; /* NULL: free */
};

#define ENTRY_KEY_BYTES (HTH_PUBKEY_LEN + 1 + 8)

/* The state of one (owner, part, network); most boards have one network. A husk is an entry whose
 * record has ended: its sequence still refuses older copies, until those are refused as expired. */
/* two cache lines: fields that find it and refuse copies, then those that a newer record changes */
struct board_entry {
    uint8_t key[ENTRY_KEY_BYTES]; /* owner's public key, part, network tag */
    bool live;
    uint32_t bytes;
    uint64_t seq;
    void *user;
    struct hth_heap_node heap; /* its key: deadline_us, or an earlier one (entry_due) */
    int64_t deadline_us;       /* when it turns from live to husk, or when a husk is dropped */
    int64_t husk_us;           /* how long it stays a husk after that */
    uint64_t payload_hash;     /* of the believed record */
    uint8_t none[24];          /* padding to two cache lines */
};
_Static_assert(offsetof(struct board_entry, heap) == 64 && sizeof(struct board_entry) == 128,
               "two lines");

/* A record of an owner whose pass is not known. */
struct waiting {
    struct waiting *next;
    struct hth_dht_key key;
    int64_t until_us;
    size_t len;
    uint8_t data[];
};

struct hth_board { /* fields read with each arriving value come first */
    struct window window[WINDOWS];
    struct hth_env *env;
    const struct hth_board_ops *ops;
    void *arg;
    struct hth_map *entries; /* key -> entry */
    struct hth_board_opts opts;
    struct hth_board_stats stats;
    struct hth_topic topic;
    /* signatures that may still be checked in this second */
    int64_t verify_second_us;
    uint32_t verify_left;
    int64_t timer_at_us; /* INT64_MAX: not set */
    struct hth_heap by_deadline;
    struct hth_dht *dht;
    struct hth_timer *timer;
    /* the query of hth_board_ask */
    struct hth_dht_get *get;
    struct hth_dht_key get_key;
    bool get_found;
    int64_t negative_until_us;
    struct waiting *waiting, **waiting_end; /* in the order of arrival */
    uint32_t waiting_count;
};

static bool entry_less(const struct hth_heap_node *a, const struct hth_heap_node *b)
{
    const struct board_entry *x = HTH_CONTAINER(a, const struct board_entry, heap);
    const struct board_entry *y = HTH_CONTAINER(b, const struct board_entry, heap);
    return memcmp(x->key, y->key, sizeof(x->key)) < 0;
}

/* ---- entries ------------------------------------------------------------------------------- */

static void entry_drop(struct hth_board *b, struct board_entry *e)
{
    hth_heap_remove(&b->by_deadline, &e->heap);
    hth_map_del(b->entries, e->key, sizeof(e->key));
    b->stats.bytes -= e->bytes;
    hth_free(e);
}

/* Ends the record: calls on_gone and makes the entry a husk. */
static void entry_end(struct hth_board *b, struct board_entry *e)
{
    if (!e->live)
        return;
    void *user = e->user;
    e->live = false;
    e->user = NULL;
    b->stats.live--;
    struct hth_pubkey owner;
    memcpy(owner.b, e->key, sizeof(owner.b));
    struct hth_peer_id id = hth_peer_id_of(b->env->crypto, &owner);
    b->ops->on_gone(b->arg, &id, e->key[HTH_PUBKEY_LEN], user);
}

/* A later deadline leaves the heap unchanged: each renewal moves one, and each change of a heap
 * touches half a dozen other entries. An entry that reaches the top too early is put back. */
static void entry_due(struct hth_board *b, struct board_entry *e, int64_t deadline_us)
{
    e->deadline_us = deadline_us;
    if (hth_heap_contains(&e->heap) && deadline_us >= e->heap.key)
        return;
    hth_heap_remove(&b->by_deadline, &e->heap);
    e->heap.key = deadline_us;
    hth_heap_push(&b->by_deadline, &e->heap);
}

/* The entry with the first deadline; its heap key then equals the deadline. NULL: none. */
static struct board_entry *first_due(struct hth_board *b)
{
    struct hth_heap_node *top;
    while ((top = hth_heap_top(&b->by_deadline)) != NULL) {
        struct board_entry *e = HTH_CONTAINER(top, struct board_entry, heap);
        if (top->key == e->deadline_us)
            return e;
        hth_heap_remove(&b->by_deadline, top);
        top->key = e->deadline_us;
        hth_heap_push(&b->by_deadline, top);
    }
    return NULL;
}

/* Sets the deadlines. A record is believed for its life after its arrival, but not past its end by
 * the owner's clock plus the tolerated skew. A goodbye becomes a husk of the same length: the DHT
 * still holds the record that it ends, and would deliver it with the next answer. */
static void entry_time(struct hth_board *b, struct board_entry *e, const struct hth_record *rec)
{
    int64_t life_us = (int64_t)rec->life_ms * HTH_US_PER_MS;
    int64_t left_us = rec->issued_us + life_us + HTH_CLOCK_SKEW_MAX_US - hth_wall_us(b->env);
    int64_t until_us = HTH_MAX(e->live ? HTH_MIN(life_us, left_us) : left_us, 0);
    e->husk_us = HTH_MAX(left_us - until_us, 0) + 1;
    entry_due(b, e, hth_now_us(b->env) + until_us + !e->live);
}

static struct board_entry *entry_new(struct hth_board *b, const uint8_t *key)
{
    struct board_entry *e = hth_new(struct board_entry);
    memcpy(e->key, key, sizeof(e->key));
    e->bytes = (uint32_t)sizeof(*e);
    b->stats.bytes += e->bytes;
    hth_map_put(b->entries, e->key, sizeof(e->key), e);
    return e;
}

/* The timer may be early, never late: renewals do not move it back. */
static void schedule(struct hth_board *b)
{
    int64_t delay_us = hth_board_next_change_us(hth_wall_us(b->env));
    int64_t due_us = hth_heap_top_key(&b->by_deadline);
    delay_us = HTH_MAX(HTH_MIN(delay_us, due_us - hth_now_us(b->env)), 0);
    if (b->waiting != NULL)
        delay_us = HTH_MIN(delay_us, RETRY_US);
    if (hth_now_us(b->env) + delay_us >= b->timer_at_us)
        return;
    b->timer_at_us = hth_now_us(b->env) + delay_us;
    hth_timer_set(b->env, b->timer, delay_us);
}

static void expire_due(struct hth_board *b)
{
    struct board_entry *e;
    while ((e = first_due(b)) != NULL && e->deadline_us <= hth_now_us(b->env)) {
        if (!e->live) {
            entry_drop(b, e);
            continue;
        }
        entry_end(b, e);
        entry_due(b, e, hth_now_us(b->env) + e->husk_us);
    }
}

/* ---- judging ------------------------------------------------------------------------------- */

static enum hth_err check_signature(struct hth_board *b, const struct hth_dht_key *key,
                                    const uint8_t *data, size_t len, const struct hth_record *rec)
{
    bool checked;
    if (hth_now_us(b->env) - b->verify_second_us >= HTH_US_PER_S) {
        b->verify_second_us = hth_now_us(b->env);
        b->verify_left = HTH_BOARD_VERIFY_PER_S_MAX;
    }
    if (b->verify_left == 0)
        return HTH_E_BUSY;
    enum hth_err err = hth_record_verify(b->env, b->opts.cache, key, data, len, rec, &checked);
    if (checked)
        b->verify_left--;
    return err;
}

/* Takes a record whose signature is good and whose sequence is the highest of its owner and
 * part. */
static enum hth_err accept(struct hth_board *b, struct hth_record *rec, const uint8_t *key,
                           size_t len, struct board_entry *e)
{
    if (rec->flags & HTH_RECORD_GOODBYE) {
        if (e == NULL)
            e = entry_new(b, key);
        else
            entry_end(b, e);
    } else {
        void *user = e != NULL ? e->user : NULL;
        uint64_t hash = hth_hash64(rec->payload, rec->payload_len, 0);
        /* Most records repeat the last payload. (A peer that makes two payloads with one hash only
         * hides its own news from its readers.) */
        bool same = e != NULL && e->live && hash == e->payload_hash;
        if (!same || b->opts.on_renewed == NULL ||
            !b->opts.on_renewed(b->arg, rec, hth_now_us(b->env), user)) {
            rec->owner_id = hth_peer_id_of(b->env->crypto, &rec->owner);
            HTH_TRY(b->ops->on_record(b->arg, rec, &user));
        }
        if (e == NULL)
            e = entry_new(b, key);
        if (!e->live)
            b->stats.live++;
        e->live = true;
        e->user = user;
        e->payload_hash = hash;
        b->stats.bytes -= e->bytes;
        e->bytes = (uint32_t)(sizeof(*e) + len);
        b->stats.bytes += e->bytes;
    }
    e->seq = rec->seq;
    entry_time(b, e, rec);
    schedule(b);
    return HTH_OK;
}

static void entry_key(const struct hth_record *rec, uint8_t out[ENTRY_KEY_BYTES])
{
    memcpy(out, rec->owner.b, HTH_PUBKEY_LEN);
    out[HTH_PUBKEY_LEN] = rec->part;
    hth_store_u64le(out + HTH_PUBKEY_LEN + 1, rec->network);
}

static enum hth_err judge(struct hth_board *b, const struct hth_dht_key *key, const uint8_t *data,
                          size_t len, struct hth_record *rec)
{
    uint8_t who[ENTRY_KEY_BYTES];
    __builtin_prefetch(b->opts.cache); /* these load while the record is read */
    __builtin_prefetch(b->entries);
    HTH_TRY(hth_record_peek(data, len, rec));
    if (rec->kind != b->topic.kind)
        return HTH_E_MALFORMED;
    if (!b->opts.any_network && rec->network != b->topic.network)
        return HTH_E_WRONG_RUN;
    HTH_TRY(hth_record_check_time(rec, hth_wall_us(b->env)));
    entry_key(rec, who);
    struct board_entry *e = hth_map_get(b->entries, who, sizeof(who));
    if (e != NULL && rec->seq <= e->seq)
        return rec->seq == e->seq ? HTH_E_DUPLICATE : HTH_E_STALE;
    if (e != NULL) { /* they load while the signature is checked */
        __builtin_prefetch(e->user);
        __builtin_prefetch(&e->heap);
    }
    size_t need = sizeof(*e) + len;
    if (e == NULL && hth_map_count(b->entries) >= b->opts.records_max)
        return HTH_E_BUDGET;
    if (b->stats.bytes - (e != NULL ? e->bytes : 0) + need > b->opts.bytes_max)
        return HTH_E_BUDGET;
    if (b->dht->admits != NULL && !b->dht->admits(b->dht->admits_arg, &rec->owner, rec->kind))
        return HTH_E_NOT_ADMITTED;
    HTH_TRY(check_signature(b, key, data, len, rec));
    enum hth_err err = accept(b, rec, who, len, e);
    if (err != HTH_OK && b->opts.cache != NULL)
        hth_record_cache_good(b->env, b->opts.cache, key, data, len);
    return err;
}

/* Keeps a record until its owner's pass is known; the oldest one makes room. */
static void wait_for_pass(struct hth_board *b, const struct hth_dht_key *key, const uint8_t *data,
                          size_t len, int64_t until_us)
{
    if (b->waiting_count == HTH_BOARD_WAITING_MAX) {
        struct waiting *first = b->waiting;
        b->waiting = first->next;
        b->waiting_count--;
        hth_free(first);
    }
    if (b->waiting == NULL)
        b->waiting_end = &b->waiting;
    struct waiting *w = hth_try_alloc(sizeof(*w) + len);
    if (w == NULL)
        return;
    *w = (struct waiting){.key = *key, .until_us = until_us, .len = len};
    memcpy(w->data, data, len);
    *b->waiting_end = w;
    b->waiting_end = &w->next;
    b->waiting_count++;
}

static void tally(struct hth_board *b, enum hth_err err, const struct hth_record *rec)
{
    if (err == HTH_OK)
        b->stats.accepted++;
    else if (err == HTH_E_DUPLICATE)
        b->stats.known++;
    else if (err == HTH_E_STALE)
        b->stats.stale++;
    else
        b->stats.refused++;
    if (err != HTH_OK && err != HTH_E_DUPLICATE && err != HTH_E_STALE && b->ops->on_refused != NULL)
        b->ops->on_refused(b->arg, err, rec);
}

static enum hth_err ingest(struct hth_board *b, const struct hth_dht_key *key, const uint8_t *data,
                           size_t len)
{
    struct hth_record rec;
    enum hth_err err = judge(b, key, data, len, &rec);
    if (err == HTH_E_NOT_ADMITTED) {
        wait_for_pass(b, key, data, len, hth_now_us(b->env) + WAIT_US);
        schedule(b);
    } else {
        tally(b, err, &rec);
    }
    return err;
}

/* Judges the records that wait again; those that waited too long are refused. */
static void retry_waiting(struct hth_board *b)
{
    struct waiting *next, *w = b->waiting;
    b->waiting = NULL;
    b->waiting_count = 0;
    for (; w != NULL; w = next) {
        struct hth_record rec;
        next = w->next;
        enum hth_err err = judge(b, &w->key, w->data, w->len, &rec);
        if (err == HTH_E_NOT_ADMITTED && hth_now_us(b->env) < w->until_us)
            wait_for_pass(b, &w->key, w->data, w->len, w->until_us);
        else
            tally(b, err, &rec);
        hth_free(w);
    }
}

bool hth_board_value(void *arg, const uint8_t *data, size_t len)
{
    struct window *w = arg;
    (void)!ingest(w->board, &w->key, data, len);
    return true;
}

void hth_board_ahead(const void *arg, const uint8_t *data, size_t len, uint32_t step)
{
    const struct window *w = arg;
    const struct hth_board *b = w->board;
    struct hth_record rec;
    uint8_t key[ENTRY_KEY_BYTES];
    if (step == 0) {
        __builtin_prefetch(b->entries);
        return;
    }
    if (hth_record_peek(data, len, &rec) != HTH_OK)
        return;
    entry_key(&rec, key);
    if (step == 1) {
        hth_map_fetch(b->entries, key, sizeof(key));
        return;
    }
    const struct board_entry *e = hth_map_guess(b->entries, key, sizeof(key));
    if (e != NULL) {
        __builtin_prefetch(e);
        __builtin_prefetch(&e->heap);
    }
}

/* ---- windows ------------------------------------------------------------------------------- */

static enum hth_err window_open(struct hth_board *b, int64_t epoch)
{
    struct window *w = NULL;
    for (size_t i = 0; i < WINDOWS; i++) {
        if (b->window[i].watch == NULL)
            w = &b->window[i];
        else if (b->window[i].epoch == epoch)
            return HTH_OK;
    }
    HTH_ASSERT(w != NULL);
    w->board = b;
    w->epoch = epoch;
    hth_topic_key(&b->topic, b->env->crypto, epoch, &w->key);
    b->stats.watches++;
    return hth_dht_watch(b->dht, &w->key, hth_board_value, w, &w->watch);
}

/* Watches the keys of the current epochs and unwatches the others. */
static enum hth_err windows_update(struct hth_board *b)
{
    int64_t epoch[WINDOWS];
    enum hth_err err = HTH_OK;
    if (b->opts.unwatched)
        return HTH_OK;
    hth_board_epochs(hth_wall_us(b->env), epoch);
    for (size_t i = 0; i < WINDOWS; i++) {
        struct window *w = &b->window[i];
        if (w->watch != NULL && w->epoch != epoch[0] && w->epoch != epoch[1] &&
            w->epoch != epoch[2]) {
            hth_dht_unwatch(b->dht, w->watch);
            w->watch = NULL;
        }
    }
    for (size_t i = 0; i < WINDOWS; i++) {
        enum hth_err e = window_open(b, epoch[i]);
        err = err != HTH_OK ? err : e;
    }
    return err;
}

static void on_timer(void *arg)
{
    struct hth_board *b = arg;
    enum hth_err err = windows_update(b);
    if (err != HTH_OK)
        HTH_LOG(b->env, HTH_WARN, HTH_SUB_DHT,
                "can't watch a key of the DHT: %s; trying again within 30 s", hth_err_text(err));
    expire_due(b);
    retry_waiting(b);
    b->timer_at_us = INT64_MAX;
    schedule(b);
}

/* ---- life ---------------------------------------------------------------------------------- */

enum hth_err hth_board_new(struct hth_env *env, struct hth_dht *dht, const struct hth_topic *topic,
                           const struct hth_board_opts *opts, const struct hth_board_ops *ops,
                           void *arg, struct hth_board **out)
{
    static const struct hth_board_opts defaults = HTH_BOARD_OPTS_INIT;
    struct hth_board *b = hth_new(struct hth_board);
    *out = NULL;
    b->env = env;
    b->dht = dht;
    b->topic = *topic;
    b->opts = opts != NULL ? *opts : defaults;
    b->ops = ops;
    b->arg = arg;
    b->entries = hth_map_new_held(offsetof(struct board_entry, key), ENTRY_KEY_BYTES);
    b->verify_left = HTH_BOARD_VERIFY_PER_S_MAX;
    b->verify_second_us = hth_now_us(env);
    b->negative_until_us = INT64_MIN;
    hth_heap_init(&b->by_deadline, entry_less);
    b->timer = hth_timer_new(env, on_timer, b);
    b->timer_at_us = INT64_MAX;
    enum hth_err err = windows_update(b);
    if (err != HTH_OK) {
        hth_board_free(b);
        return err;
    }
    schedule(b);
    *out = b;
    return HTH_OK;
}

enum hth_err hth_board_watch(struct hth_board *b)
{
    b->opts.unwatched = false;
    return windows_update(b);
}

void hth_board_free(struct hth_board *b)
{
    if (b == NULL)
        return;
    for (size_t i = 0; i < WINDOWS; i++)
        if (b->window[i].watch != NULL)
            hth_dht_unwatch(b->dht, b->window[i].watch);
    if (b->get != NULL)
        hth_dht_get_cancel(b->dht, b->get);
    hth_timer_free(b->env, b->timer);
    struct board_entry *e;
    for (size_t it = 0; (e = hth_map_next(b->entries, &it, NULL, NULL)) != NULL;)
        entry_end(b, e);
    hth_heap_clear(&b->by_deadline);
    for (size_t it = 0; (e = hth_map_next(b->entries, &it, NULL, NULL)) != NULL;)
        hth_free(e);
    hth_map_free(b->entries);
    for (struct waiting *next, *w = b->waiting; w != NULL; w = next) {
        next = w->next;
        hth_free(w);
    }
    hth_free(b);
}

static bool on_get_value(void *arg, const uint8_t *data, size_t len)
{
    struct hth_board *b = arg;
    enum hth_err err = ingest(b, &b->get_key, data, len);
    if (err == HTH_OK || err == HTH_E_DUPLICATE)
        b->get_found = true;
    return true;
}

static void on_get_done(void *arg, enum hth_err err)
{
    struct hth_board *b = arg;
    b->get = NULL;
    if (err == HTH_OK && !b->get_found)
        b->negative_until_us = hth_now_us(b->env) + b->opts.negative_us;
}

enum hth_err hth_board_ask(struct hth_board *b)
{
    if (b->get != NULL)
        return HTH_E_AGAIN;
    if (hth_now_us(b->env) < b->negative_until_us) {
        b->stats.negative_hits++;
        return HTH_E_NOT_FOUND;
    }
    b->get_found = false;
    b->stats.gets++;
    hth_topic_key(&b->topic, b->env->crypto, hth_topic_epoch(hth_wall_us(b->env)), &b->get_key);
    return hth_dht_get(b->dht, &b->get_key, on_get_value, on_get_done, b, &b->get);
}

enum hth_err hth_board_offer(struct hth_board *b, const uint8_t *data, size_t len)
{
    struct hth_dht_key key;
    hth_topic_key(&b->topic, b->env->crypto, hth_topic_epoch(hth_wall_us(b->env)), &key);
    return ingest(b, &key, data, len);
}

void hth_board_stats(const struct hth_board *b, struct hth_board_stats *out)
{
    *out = b->stats;
}
