/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dht.h: the second half of the seam: a shared table of small values under 20-byte keys.
 *
 * Two implementations: OpenDHT (dht/opendht.c, hidden threads, bytes posted to our loop) and the
 * simulated one (sim/dht.c: latency by hops, stale, partial and lost answers). Both promise little:
 * anyone may add any bytes under any key, values vanish late, answers can be incomplete or twice.
 * So everything that matters (owner, sequence, expiry, signature) lies inside the value and the
 * reader checks it: see dht/record.h. Code that makes decisions uses that header, not this one.
 *
 * All calls and all callbacks are on the loop thread; no callback runs inside the call that
 * registered it. Callback `data` is only valid during the callback.
 */
#ifndef HTH_CORE_DHT_H
#define HTH_CORE_DHT_H

#include "core/ident.h"

#define HTH_DHT_KEY_LEN 20

struct hth_dht_key {
    uint8_t b[HTH_DHT_KEY_LEN];
};

struct hth_dht_put;   /* a value kept alive in the table until withdrawn */
struct hth_dht_get;   /* a query under way */
struct hth_dht_watch; /* a subscription */

/* A value was found. Returning false from a get ends it early. */
typedef bool hth_dht_value_fn(void *arg, const uint8_t *data, size_t len);
/* The operation ended: HTH_OK, E_TIMEOUT, E_UNREACHABLE (no DHT node answered), E_CANCELED. */
typedef void hth_dht_done_fn(void *arg, enum hth_err err);

struct hth_dht_stats {
    uint64_t puts, gets, watches, values_seen, values_refused;
    uint32_t nodes_good; /* live nodes in the routing table */
};

struct hth_dht_ops {
    /* Stores a copy of data (at most HTH_DHT_VALUE_BYTES_MAX) and keeps it announced until
     * withdrawn; done (may be NULL) is called when the first replicas accepted. *put stays valid
     * until withdraw, also after an error in done. Errors: E_TOO_LARGE. */
    enum hth_err (*put)(void *self, const struct hth_dht_key *key, const void *data, size_t len,
                        hth_dht_done_fn *done, void *arg, struct hth_dht_put **put);
    /* Stops announcing and frees; done is not called after that. Copies on other nodes expire. */
    void (*withdraw)(void *self, struct hth_dht_put *put);
    enum hth_err (*get)(void *self, const struct hth_dht_key *key, hth_dht_value_fn *value,
                        hth_dht_done_fn *done, void *arg, struct hth_dht_get **get);
    /* Ends a get without its done callback. Only before done was called. */
    void (*get_cancel)(void *self, struct hth_dht_get *get);
    /* Calls value for each stored value and for each one that appears, until unwatch. */
    enum hth_err (*watch)(void *self, const struct hth_dht_key *key, hth_dht_value_fn *value,
                          void *arg, struct hth_dht_watch **watch);
    void (*unwatch)(void *self, struct hth_dht_watch *watch);
    void (*stats)(void *self, struct hth_dht_stats *out);
    /* Of a closed run, by its network's tag (dht/record.h): this owner is a member, or no longer.
     * From the first call on a table may turn others' records away where they are too many. NULL:
     * it takes all of them. */
    void (*know)(void *self, uint64_t network, const struct hth_pubkey *owner, bool known);
};

struct hth_dht {
    const struct hth_dht_ops *ops;
    void *self;
    /* Of a closed run: whether records of this kind (dht/record.h) by this owner may be believed
     * now. NULL: all. Both worlds leave it to dht/members.h. */
    bool (*admits)(void *arg, const struct hth_pubkey *owner, uint8_t kind);
    void *admits_arg;
};

static inline HTH_MUST enum hth_err hth_dht_put(struct hth_dht *d, const struct hth_dht_key *key,
                                                const void *data, size_t len, hth_dht_done_fn *done,
                                                void *arg, struct hth_dht_put **put)
{
    return d->ops->put(d->self, key, data, len, done, arg, put);
}
static inline void hth_dht_withdraw(struct hth_dht *d, struct hth_dht_put *put)
{
    d->ops->withdraw(d->self, put);
}
static inline HTH_MUST enum hth_err hth_dht_get(struct hth_dht *d, const struct hth_dht_key *key,
                                                hth_dht_value_fn *value, hth_dht_done_fn *done,
                                                void *arg, struct hth_dht_get **get)
{
    return d->ops->get(d->self, key, value, done, arg, get);
}
static inline void hth_dht_get_cancel(struct hth_dht *d, struct hth_dht_get *get)
{
    d->ops->get_cancel(d->self, get);
}
static inline HTH_MUST enum hth_err hth_dht_watch(struct hth_dht *d, const struct hth_dht_key *key,
                                                  hth_dht_value_fn *value, void *arg,
                                                  struct hth_dht_watch **watch)
{
    return d->ops->watch(d->self, key, value, arg, watch);
}
static inline void hth_dht_unwatch(struct hth_dht *d, struct hth_dht_watch *watch)
{
    d->ops->unwatch(d->self, watch);
}
static inline void hth_dht_stats(struct hth_dht *d, struct hth_dht_stats *out)
{
    d->ops->stats(d->self, out);
}
static inline void hth_dht_know(struct hth_dht *d, uint64_t network, const struct hth_pubkey *owner,
                                bool known)
{
    if (d->ops->know != NULL)
        d->ops->know(d->self, network, owner, known);
}

#endif
