/* SPDX-License-Identifier: Apache-2.0 */
/* breaker.c: the state machine of breaker.h, one small entry per host with failures. */
#include "gating/breaker.h"

#include "core/map.h"
#include "core/mem.h"

#include <string.h>

struct breaker_host {
    enum hth_breaker_state state;
    uint32_t failures; /* soft failures in a row, while CLOSED */
    uint32_t opens;    /* opened in a row without a success: the exponent of the back-off */
    int64_t retry_at;  /* OPEN: end of the back-off; HALF-OPEN: end of the probe's time */
};

struct hth_breaker {
    struct hth_breaker_opts opts;
    struct hth_rng rng;
    struct hth_map *hosts; /* peer id -> struct breaker_host */
    struct hth_breaker_stats stats;
};

enum failure_class { CALL_GOOD, CALL_ALIVE, CALL_SOFT, CALL_HARD, CALL_NO_SIGN };

/* Classifies a call's verdict by what it says about the host. */
static enum failure_class classify(enum hth_err err)
{
    switch (err) {
    case HTH_OK:
        return CALL_GOOD;
    case HTH_E_BUSY:
    case HTH_E_QUEUE_FULL:
    case HTH_E_BUDGET:
    case HTH_E_AGAIN:
        return CALL_ALIVE;
    case HTH_E_CANCELED:
        return CALL_NO_SIGN;
    case HTH_E_CLOSED:
    case HTH_E_REFUSED:
    case HTH_E_UNREACHABLE:
    case HTH_E_DRAINING:
    case HTH_E_PROTOCOL:
    case HTH_E_VERSION:
    case HTH_E_BAD_MAGIC:
    case HTH_E_BAD_PEER_ID:
    case HTH_E_WRONG_RUN:
        return CALL_HARD;
    default:
        break;
    }
    switch (hth_err_class(err)) {
    case HTH_CLASS_LOCAL:
    case HTH_CLASS_BUG:
        return CALL_NO_SIGN;
    default:
        return CALL_SOFT;
    }
}

enum hth_err hth_breaker_new(const struct hth_breaker_opts *opts, const struct hth_rng *rng,
                             struct hth_breaker **out)
{
    *out = NULL;
    bool good = opts->failures_to_open > 0 && opts->hosts_max > 0 &&
                opts->hosts_max <= HTH_BREAKER_HOSTS_MAX && opts->backoff_us > 0 &&
                opts->backoff_max_us >= opts->backoff_us && opts->backoff_max_us < INT64_MAX / 4 &&
                opts->probe_timeout_us > 0 && opts->probe_timeout_us < INT64_MAX / 4 &&
                opts->jitter >= 0.0 && opts->jitter <= 1.0;
    if (!good)
        return HTH_E_RANGE;
    struct hth_breaker *breaker = hth_new(struct hth_breaker);
    breaker->opts = *opts;
    breaker->rng = *rng;
    breaker->hosts = hth_map_new();
    *out = breaker;
    return HTH_OK;
}

void hth_breaker_free(struct hth_breaker *breaker)
{
    if (breaker == NULL)
        return;
    struct breaker_host *h;
    for (size_t it = 0; (h = hth_map_next(breaker->hosts, &it, NULL, NULL)) != NULL;)
        hth_free(h);
    hth_map_free(breaker->hosts);
    hth_free(breaker);
}

static struct breaker_host *find(const struct hth_breaker *breaker, const struct hth_peer_id *id)
{
    return hth_map_get(breaker->hosts, id->b, sizeof(id->b));
}

static void forget(struct hth_breaker *breaker, const struct hth_peer_id *id)
{
    hth_free(hth_map_del(breaker->hosts, id->b, sizeof(id->b)));
}

/* Finds or adds the entry of a host with failures; a full table drops its oldest entry first. */
static struct breaker_host *find_or_add(struct hth_breaker *breaker, const struct hth_peer_id *id)
{
    struct breaker_host *h = find(breaker, id);
    if (h != NULL)
        return h;
    if (hth_map_count(breaker->hosts) >= breaker->opts.hosts_max) {
        struct hth_peer_id oldest;
        const void *key = NULL;
        size_t it = 0;
        HTH_ASSERT(hth_map_next(breaker->hosts, &it, &key, NULL) != NULL);
        memcpy(oldest.b, key, sizeof(oldest.b));
        forget(breaker, &oldest);
    }
    h = hth_new(struct breaker_host);
    hth_map_put(breaker->hosts, id->b, sizeof(id->b), h);
    return h;
}

/* base * 2^opens, capped, times 1 +- jitter. */
static int64_t next_backoff(struct hth_breaker *breaker, uint32_t opens)
{
    int64_t backoff = breaker->opts.backoff_us;
    for (uint32_t i = 0; i < opens && backoff < breaker->opts.backoff_max_us; i++)
        backoff *= 2;
    backoff = HTH_MIN(backoff, breaker->opts.backoff_max_us);
    double swing = breaker->opts.jitter * (2.0 * hth_rng_unit(&breaker->rng) - 1.0);
    return HTH_MAX((int64_t)((double)backoff * (1.0 + swing)), (int64_t)1);
}

static void open_host(struct hth_breaker *breaker, struct breaker_host *h, int64_t now_us)
{
    h->state = HTH_BREAKER_OPEN;
    h->retry_at = now_us + next_backoff(breaker, h->opens);
    h->opens = HTH_MIN(h->opens + 1, 64u);
    h->failures = 0;
    breaker->stats.opened++;
}

bool hth_breaker_allow(struct hth_breaker *breaker, const struct hth_peer_id *host, int64_t now_us)
{
    struct breaker_host *h = find(breaker, host);
    if (h == NULL || h->state == HTH_BREAKER_CLOSED)
        return true;
    if (now_us < h->retry_at) {
        breaker->stats.refused++;
        return false;
    }
    h->state = HTH_BREAKER_HALF_OPEN;
    h->retry_at = now_us + breaker->opts.probe_timeout_us;
    breaker->stats.probes++;
    return true;
}

bool hth_breaker_peek(const struct hth_breaker *breaker, const struct hth_peer_id *host,
                      int64_t now_us)
{
    const struct breaker_host *h = find(breaker, host);
    return h == NULL || h->state == HTH_BREAKER_CLOSED || now_us >= h->retry_at;
}

enum hth_breaker_state hth_breaker_state(const struct hth_breaker *breaker,
                                         const struct hth_peer_id *host)
{
    const struct breaker_host *h = find(breaker, host);
    return h != NULL ? h->state : HTH_BREAKER_CLOSED;
}

int64_t hth_breaker_retry_at(const struct hth_breaker *breaker, const struct hth_peer_id *host)
{
    const struct breaker_host *h = find(breaker, host);
    return h == NULL || h->state == HTH_BREAKER_CLOSED ? INT64_MIN : h->retry_at;
}

static void close_host(struct hth_breaker *breaker, const struct hth_peer_id *id,
                       const struct breaker_host *h)
{
    if (h == NULL)
        return;
    breaker->stats.closed += h->state != HTH_BREAKER_CLOSED;
    forget(breaker, id);
}

bool hth_breaker_report(struct hth_breaker *breaker, const struct hth_peer_id *host,
                        enum hth_err err, int64_t now_us)
{
    enum failure_class class = classify(err);
    struct breaker_host *h = find(breaker, host);
    if (class == CALL_GOOD) {
        close_host(breaker, host, h);
        return false;
    }
    if (h != NULL && h->state == HTH_BREAKER_HALF_OPEN) {
        if (class == CALL_ALIVE) {
            close_host(breaker, host, h);
            return false;
        }
        if (class == CALL_NO_SIGN) {
            /* The caller canceled the probe: the next call may probe at once. */
            h->state = HTH_BREAKER_OPEN;
            h->retry_at = now_us;
            return false;
        }
        open_host(breaker, h, now_us);
        return true;
    }
    if (class == CALL_ALIVE || class == CALL_NO_SIGN)
        return false;
    h = find_or_add(breaker, host);
    if (h->state == HTH_BREAKER_OPEN)
        return false; /* the call was sent before it opened: the back-off already runs */
    h->failures++;
    if (class == CALL_SOFT && h->failures < breaker->opts.failures_to_open)
        return false;
    open_host(breaker, h, now_us);
    return true;
}

void hth_breaker_forget(struct hth_breaker *breaker, const struct hth_peer_id *host)
{
    forget(breaker, host);
}

void hth_breaker_get_stats(const struct hth_breaker *breaker, struct hth_breaker_stats *out)
{
    *out = breaker->stats;
    out->remembered = (uint32_t)hth_map_count(breaker->hosts);
}
