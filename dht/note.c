/* SPDX-License-Identifier: Apache-2.0 */
/*
 * note.c: writing side of board.h. An update is a new value; the superseded one stops being
 * announced and fades in the DHT, where its lower sequence number makes readers pass over it.
 */
#include <string.h>

#include "core/bytes.h"
#include "core/mem.h"
#include "dht/board.h"
#include "dht/board_time.h"

#define RETRY_US (5 * HTH_US_PER_S)

struct hth_note {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_topic topic;
    struct hth_note_opts opts;
    hth_note_fill_fn *fill;
    void *arg;
    struct hth_timer *timer;
    int64_t due_us; /* when the timer is set for */
    struct hth_dht_put *put; /* NULL before the first */
    bool leaving;            /* hth_note_goodbye was called */
    bool left;               /* and the goodbye was put */
    hth_dht_done_fn *done;
    void *done_arg;
    struct hth_note_stats stats;
};

static void arm(struct hth_note *n, int64_t delay_us)
{
    n->due_us = hth_now_us(n->env) + delay_us;
    hth_timer_set(n->env, n->timer, delay_us);
}

static void on_put_done(void *arg, enum hth_err err)
{
    struct hth_note *n = arg;
    if (err != HTH_OK) {
        n->stats.put_errors++;
        HTH_LOG(n->env, HTH_DEBUG, HTH_SUB_DHT, "no node took a record: %s", hth_err_text(err));
        if (!n->leaving)
            hth_note_update(n, RETRY_US);
    }
    if (n->left && n->done != NULL) {
        hth_dht_done_fn *done = n->done;
        n->done = NULL;
        done(n->done_arg, err);
    }
}

/* A third of the life, shortened by up to a fifth so that a swarm started at once spreads out; and
 * in any case soon after the next epoch began. */
static int64_t renew_after_us(struct hth_note *n, int64_t wall_us)
{
    double jitter = 0.8 + 0.2 * hth_rng_unit(&n->env->rng);
    int64_t renew_us = (int64_t)((double)n->opts.life_us / 3.0 * jitter);
    if (n->topic.kind == HTH_RECORD_DECLARE)
        return renew_us;
    int64_t epoch_end_us = (hth_topic_epoch(wall_us) + 1) * HTH_TOPIC_EPOCH_US;
    int64_t repin_us =
        epoch_end_us - wall_us + (int64_t)(hth_rng_unit(&n->env->rng) * (double)HTH_NOTE_REPIN_US);
    return HTH_MIN(renew_us, repin_us);
}

static enum hth_err publish(struct hth_note *n, int64_t wall_us)
{
    uint8_t payload[HTH_RECORD_PAYLOAD_MAX], bytes[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_writer w;
    struct hth_record rec = {.kind = n->topic.kind,
                             .part = n->opts.part,
                             .flags = n->leaving ? HTH_RECORD_GOODBYE : 0,
                             .network = n->topic.network,
                             .issued_us = wall_us,
                             .life_ms = (uint32_t)(n->opts.life_us / HTH_US_PER_MS)};
    struct hth_dht_key key;
    struct hth_dht_put *put;
    size_t len;
    hth_writer_init(&w, payload, sizeof(payload));
    if (!n->leaving) {
        HTH_TRY(n->fill(n->arg, &w));
        HTH_TRY(w.err);
    }
    /* The wall clock as sequence survives a restart; two records in one microsecond still
     * differ. */
    rec.seq = HTH_MAX((uint64_t)wall_us, n->stats.seq + 1);
    rec.payload = payload;
    rec.payload_len = w.pos;
    hth_topic_key(&n->topic, n->env->crypto, hth_board_epoch(&n->topic, wall_us), &key);
    HTH_TRY(hth_record_seal(n->env, &key, &rec, bytes, sizeof(bytes), &len));
    if (hth_fault(n->env, "dht.put"))
        return HTH_E_UNREACHABLE;
    HTH_TRY(hth_dht_put(n->dht, &key, bytes, len, on_put_done, n, &put));
    if (n->put != NULL)
        hth_dht_withdraw(n->dht, n->put);
    n->put = put;
    n->stats.seq = rec.seq;
    n->stats.puts++;
    n->stats.bytes = (uint32_t)len;
    return HTH_OK;
}

static void on_timer(void *arg)
{
    struct hth_note *n = arg;
    int64_t wall_us = hth_wall_us(n->env);
    enum hth_err err = HTH_OK;
    if (n->leaving) {
        n->left = true;
        if (n->put != NULL)
            err = publish(n, wall_us);
        if (n->put == NULL || err != HTH_OK)
            on_put_done(n, err); /* nothing was ever said, or nothing can be said */
        return;
    }
    err = publish(n, wall_us);
    if (err != HTH_OK) {
        n->stats.put_errors++;
        HTH_LOG(n->env, HTH_WARN, HTH_SUB_DHT, "can't publish a record: %s", hth_err_text(err));
    }
    arm(n, err == HTH_OK ? renew_after_us(n, wall_us) : RETRY_US);
}

enum hth_err hth_note_new(struct hth_env *env, struct hth_dht *dht, const struct hth_topic *topic,
                          const struct hth_note_opts *opts, hth_note_fill_fn *fill, void *arg,
                          struct hth_note **out)
{
    static const struct hth_note_opts defaults = HTH_NOTE_OPTS_INIT;
    *out = NULL;
    if (opts == NULL)
        opts = &defaults;
    if (opts->part >= HTH_BOARD_RECORDS_PER_OWNER_MAX || opts->life_us < HTH_RECORD_LIFE_MIN_US ||
        opts->life_us > HTH_RECORD_LIFE_MAX_US)
        return HTH_E_CONFIG;
    struct hth_note *n = hth_new(struct hth_note);
    n->env = env;
    n->dht = dht;
    n->topic = *topic;
    n->opts = *opts;
    n->stats.seq = opts->after_seq;
    n->fill = fill;
    n->arg = arg;
    n->timer = hth_timer_new(env, on_timer, n);
    arm(n, 0);
    *out = n;
    return HTH_OK;
}

void hth_note_update(struct hth_note *n, int64_t delay_us)
{
    if (!n->leaving && hth_now_us(n->env) + delay_us < n->due_us)
        arm(n, delay_us);
}

void hth_note_goodbye(struct hth_note *n, hth_dht_done_fn *done, void *arg)
{
    if (n->leaving)
        return;
    n->leaving = true;
    n->done = done;
    n->done_arg = arg;
    arm(n, 0);
}

void hth_note_resume(struct hth_note *n)
{
    n->leaving = false;
    n->left = false;
    n->done = NULL;
    arm(n, 0);
}

void hth_note_free(struct hth_note *n)
{
    if (n == NULL)
        return;
    if (n->put != NULL)
        hth_dht_withdraw(n->dht, n->put);
    hth_timer_free(n->env, n->timer);
    hth_free(n);
}

void hth_note_stats(const struct hth_note *n, struct hth_note_stats *out)
{
    *out = n->stats;
}
