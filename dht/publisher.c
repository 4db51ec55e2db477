/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publisher.c: writing side of board.h. An update is a new value; the superseded one stops being
 * announced and fades in the DHT, where its lower sequence number makes readers pass over it.
 */
#include <string.h>

#include "core/bytes.h"
#include "core/mem.h"
#include "dht/board.h"
#include "dht/board_time.h"

#define RETRY_US (5 * HTH_US_PER_S)

struct hth_publisher {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_topic topic;
    struct hth_publisher_opts opts;
    hth_publisher_fill_fn *fill;
    void *arg;
    struct hth_timer *timer;
    int64_t due_us;          /* when the timer fires */
    struct hth_dht_put *put; /* NULL before the first */
    bool leaving;            /* hth_publisher_goodbye was called */
    bool left;               /* and the goodbye was put */
    hth_dht_done_fn *done;
    void *done_arg;
    struct hth_publisher_stats stats;
};

static void arm(struct hth_publisher *p, int64_t delay_us)
{
    p->due_us = hth_now_us(p->env) + delay_us;
    hth_timer_set(p->env, p->timer, delay_us);
}

static void on_put_done(void *arg, enum hth_err err)
{
    struct hth_publisher *p = arg;
    if (err != HTH_OK) {
        p->stats.put_errors++;
        HTH_LOG(p->env, HTH_DEBUG, HTH_SUB_DHT, "no DHT node accepted a record: %s%s",
                hth_err_text(err), p->leaving ? "" : "; trying again in 5 s");
        if (!p->leaving)
            hth_publisher_update(p, RETRY_US);
    }
    if (p->left && p->done != NULL) {
        hth_dht_done_fn *done = p->done;
        p->done = NULL;
        done(p->done_arg, err);
    }
}

/* The time of the next renewal: a third of the life, shortened by up to a fifth so that peers that
 * started together spread out; and at the latest soon after the next epoch began. */
static int64_t renew_after_us(struct hth_publisher *p, int64_t wall_us)
{
    double jitter = 0.8 + 0.2 * hth_rng_unit(&p->env->rng);
    int64_t renew_us = (int64_t)((double)p->opts.life_us / 3.0 * jitter);
    int64_t epoch_end_us = (hth_topic_epoch(wall_us) + 1) * HTH_TOPIC_EPOCH_US;
    int64_t repin_us = epoch_end_us - wall_us +
                       (int64_t)(hth_rng_unit(&p->env->rng) * (double)HTH_PUBLISHER_REPIN_US);
    return HTH_MIN(renew_us, repin_us);
}

static enum hth_err publish(struct hth_publisher *p, int64_t wall_us)
{
    uint8_t payload[HTH_RECORD_PAYLOAD_MAX], bytes[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_writer w;
    struct hth_record rec = {.kind = p->topic.kind,
                             .part = p->opts.part,
                             .flags = p->leaving ? HTH_RECORD_GOODBYE : 0,
                             .network = p->topic.network,
                             .issued_us = wall_us,
                             .life_ms = (uint32_t)(p->opts.life_us / HTH_US_PER_MS)};
    struct hth_dht_key key;
    struct hth_dht_put *put;
    size_t len;
    hth_writer_init(&w, payload, sizeof(payload));
    if (!p->leaving) {
        HTH_TRY(p->fill(p->arg, &w));
        HTH_TRY(w.err);
    }
    /* The wall clock as sequence survives a restart; the maximum keeps it rising when the clock
     * steps back. */
    rec.seq = HTH_MAX((uint64_t)wall_us, p->stats.seq + 1);
    rec.payload = payload;
    rec.payload_len = w.pos;
    hth_topic_key(&p->topic, p->env->crypto, hth_topic_epoch(wall_us), &key);
    HTH_TRY(hth_record_seal(p->env, &key, &rec, bytes, sizeof(bytes), &len));
    if (hth_fault(p->env, "dht.put"))
        return HTH_E_UNREACHABLE;
    HTH_TRY(hth_dht_put(p->dht, &key, bytes, len, on_put_done, p, &put));
    if (p->put != NULL)
        hth_dht_withdraw(p->dht, p->put);
    p->put = put;
    p->stats.seq = rec.seq;
    p->stats.puts++;
    p->stats.bytes = (uint32_t)len;
    return HTH_OK;
}

static void on_timer(void *arg)
{
    struct hth_publisher *p = arg;
    int64_t wall_us = hth_wall_us(p->env);
    enum hth_err err = HTH_OK;
    if (p->leaving) {
        p->left = true;
        if (p->put != NULL)
            err = publish(p, wall_us);
        if (p->put == NULL || err != HTH_OK)
            on_put_done(p, err); /* no record was put, or the goodbye failed */
        return;
    }
    err = publish(p, wall_us);
    if (err != HTH_OK) {
        p->stats.put_errors++;
        HTH_LOG(p->env, HTH_WARN, HTH_SUB_DHT, "can't publish a record: %s; trying again in 5 s",
                hth_err_text(err));
    }
    arm(p, err == HTH_OK ? renew_after_us(p, wall_us) : RETRY_US);
}

enum hth_err hth_publisher_new(struct hth_env *env, struct hth_dht *dht,
                               const struct hth_topic *topic, const struct hth_publisher_opts *opts,
                               hth_publisher_fill_fn *fill, void *arg, struct hth_publisher **out)
{
    static const struct hth_publisher_opts defaults = HTH_PUBLISHER_OPTS_INIT;
    *out = NULL;
    if (opts == NULL)
        opts = &defaults;
    if (opts->part >= HTH_BOARD_RECORDS_PER_OWNER_MAX || opts->life_us < HTH_RECORD_LIFE_MIN_US ||
        opts->life_us > HTH_RECORD_LIFE_MAX_US)
        return HTH_E_CONFIG;
    struct hth_publisher *p = hth_new(struct hth_publisher);
    p->env = env;
    p->dht = dht;
    p->topic = *topic;
    p->opts = *opts;
    p->stats.seq = opts->after_seq;
    p->fill = fill;
    p->arg = arg;
    p->timer = hth_timer_new(env, on_timer, p);
    arm(p, 0);
    *out = p;
    return HTH_OK;
}

void hth_publisher_update(struct hth_publisher *p, int64_t delay_us)
{
    if (!p->leaving && hth_now_us(p->env) + delay_us < p->due_us)
        arm(p, delay_us);
}

void hth_publisher_goodbye(struct hth_publisher *p, hth_dht_done_fn *done, void *arg)
{
    if (p->leaving)
        return;
    p->leaving = true;
    p->done = done;
    p->done_arg = arg;
    arm(p, 0);
}

void hth_publisher_resume(struct hth_publisher *p)
{
    p->leaving = false;
    p->left = false;
    p->done = NULL;
    arm(p, 0);
}

void hth_publisher_free(struct hth_publisher *p)
{
    if (p == NULL)
        return;
    if (p->put != NULL)
        hth_dht_withdraw(p->dht, p->put);
    hth_timer_free(p->env, p->timer);
    hth_free(p);
}

void hth_publisher_stats(const struct hth_publisher *p, struct hth_publisher_stats *out)
{
    *out = p->stats;
}
