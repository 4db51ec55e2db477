/* SPDX-License-Identifier: Apache-2.0 */
/*
 * malice_average.c: Byzantine peers in the averaging.
 *
 * Each is a node of the production parts, endpoint, averager and reducer. A handler replaces the
 * reducer's for parts from others:
 *
 *     others' parts -------> [ answers that are lies ]      (the reducer sees none of them)
 *
 * How it gets into rounds depends on the run:
 *
 *   LOCAL   It follows the trainers as a helper does (trainer/helper.h). A table around the
 * averager replaces the values and the weight of each offer:
 *
 *               helper.c --- offer ---> [ values that are lies ] ---> moshpit
 *
 *   BATCH   With values it is a member of the roll call that lies (malice_roll.c); without values
 *           it is a helper of the roll call.
 */
#include <string.h>

#include "averaging/part.h"
#include "averaging/reduce_int.h"
#include "averaging/shares.h"
#include "core/mem.h"
#include "core/rng.h"
#include "dht/record.h"
#include "scenarios/malice_int.h"
#include "trainer/helper.h"

#define TURNED   -8.0f /* factor on the last average */
#define NOISE    0.05f /* largest absolute value of made-up numbers */
#define NO_PAUSE (200 * HTH_US_PER_MS)
#define FOUNDED  (UINT64_C(1) << 31) /* samples that a pretender's chain claims */

struct perjurer;

/* How a kind behaves; all else is the same. */
struct manner {
    enum hth_avg_mode mode;
    double bandwidth;            /* claimed; 0: none */
    hth_rpc_handler_fn *on_part; /* NULL: reduces honestly */
    bool founds;                 /* BATCH: claims a chain of its own */
};

struct perjurer {
    struct hth_malice_place place;
    const struct manner *manner;
    struct hth_addr addr; /* family 0: a client */
    struct hth_rng rng;
    uint64_t seed; /* seed of made-up numbers */
    struct hth_rpc *rpc;
    struct hth_avg_peer avg; /* an honest averager */
    struct hth_averager outer;
    struct hth_helper *helper;        /* LOCAL, or without values; else NULL */
    struct hth_malice_member *member; /* of a roll call; else NULL */
    struct hth_blob *last;            /* the last average */
    bool out;
    hth_avg_round_fn *fn; /* the helper's */
    void *arg;
    struct hth_timer *timer; /* leaves its group */
    uint64_t lies;
};

/* ---- values ---------------------------------------------------------------------------------- */

float hth_malice_made_up(uint64_t seed, uint64_t name)
{
    uint64_t x = hth_hash64(&name, sizeof(name), seed);

    return NOISE * ((float)(x >> 40) * 0x1p-23f - 1.0f);
}

void hth_malice_fill(uint64_t seed, const struct hth_blob *last, struct hth_blob *out)
{
    bool known = last != NULL && last->size == out->size && last->data != NULL;

    for (size_t i = 0; out->data != NULL && i < out->size / sizeof(float); i++) {
        float x = hth_malice_made_up(seed, i);

        if (known)
            memcpy(&x, last->data + i * sizeof(x), sizeof(x));
        x = known ? TURNED * x : x;
        memcpy(out->data + i * sizeof(x), &x, sizeof(x));
    }
}

static enum hth_err p_offer(void *self, const struct hth_avg_offer *offer)
{
    struct perjurer *p = self;
    struct hth_avg_offer o = *offer;
    enum hth_err err;

    if (p->manner->mode != HTH_AVG_HELPER) {
        HTH_TRY(hth_env_blob_new(p->place.env, o.count * sizeof(float), NULL, &o.values));
        hth_malice_fill(p->seed, p->last, o.values);
        o.weight = HTH_MALICE_SAMPLES;
    }
    err = hth_averager_offer(&p->avg.averager, &o);
    hth_blob_unref(o.values);
    p->out = err == HTH_OK;
    return err;
}

static void on_round(void *arg, const struct hth_avg_result *r)
{
    struct perjurer *p = arg;

    p->out = false;
    if (r->average != NULL) {
        hth_blob_unref(p->last);
        p->last = hth_blob_ref(r->average);
    }
    p->fn(p->arg, r);
}

static enum hth_err p_start(void *self, hth_avg_round_fn *fn, void *arg)
{
    struct perjurer *p = self;

    p->fn = fn;
    p->arg = arg;
    return hth_averager_start(&p->avg.averager, on_round, p);
}

static enum hth_err p_ready(const void *self)
{
    return hth_averager_ready(&((const struct perjurer *)self)->avg.averager);
}

static void p_stop(void *self)
{
    hth_averager_stop(&((struct perjurer *)self)->avg.averager);
}

static void p_stats(const void *self, struct hth_averager_stats *out)
{
    hth_averager_stats(&((const struct perjurer *)self)->avg.averager, out);
}

static void p_free(void *self)
{
    (void)self;
}

static const struct hth_averager_ops lying_ops = {
    .start = p_start,
    .ready = p_ready,
    .offer = p_offer,
    .stop = p_stop,
    .stats = p_stats,
    .free = p_free,
};

/* ---- parts ----------------------------------------------------------------------------------- */

/* Answer a part as a reducer would, with numbers that follow from `seed`. */
static void answer(struct perjurer *p, struct hth_rpc_request *req, uint64_t seed)
{
    size_t len, count;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    const struct hth_tensor *t = hth_rpc_tensors(req, &count);
    struct hth_part_reply reply = {.floats = 0};
    struct hth_tensor out = {.dtype = HTH_U8, .ndim = 1};
    uint8_t bytes[HTH_PART_BYTES_MAX];
    struct hth_rpc_body body = {.payload = bytes, .tensors = &out};
    struct hth_part_head head;

    if (hth_part_open(payload, len, count > 0 ? t[0].dim[0] : 0, &head) != HTH_OK) {
        hth_rpc_refuse(req, HTH_E_MALFORMED, 0, NULL);
        return;
    }
    out.dim[0] = head.floats * sizeof(float);
    if (head.floats > 0 && hth_env_blob_new(p->place.env, out.dim[0], NULL, &out.blob) == HTH_OK) {
        for (uint32_t i = 0; out.blob->data != NULL && i < head.floats; i++) {
            float x = hth_malice_made_up(seed + head.part, i);
            memcpy(out.blob->data + i * sizeof(x), &x, sizeof(x));
        }
        reply.segments[0] = (struct hth_segment){HTH_QUANT_F32, head.floats};
        reply.segment_count = body.tensor_count = 1;
    }
    body.payload_len = hth_part_reply_pack(&reply, bytes);
    hth_rpc_reply(req, &body);
    hth_blob_unref(out.blob);
    p->lies++;
}

/* Answer all members with the same numbers, so that no member can detect it. */
static void usurp(void *arg, struct hth_rpc_request *req)
{
    struct perjurer *p = arg;

    answer(p, req, p->seed);
}

/* Answer each member with other numbers, and sometimes with a malformed answer. */
static void equivocate(void *arg, struct hth_rpc_request *req)
{
    struct perjurer *p = arg;
    uint8_t noise[48];

    switch (p->lies % 5) {
    case 3:
        for (size_t i = 0; i < sizeof(noise); i++)
            noise[i] = (uint8_t)hth_rng_u64(&p->rng);
        hth_rpc_reply(req, &(struct hth_rpc_body){.payload = noise, .payload_len = sizeof(noise)});
        p->lies++;
        break;
    case 4:
        hth_rpc_refuse(req, HTH_E_BUSY, HTH_US_PER_MS, "soon, soon");
        p->lies++;
        break;
    default:
        answer(p, req, hth_hash64(hth_rpc_peer(req)->b, HTH_HASH_LEN, p->seed));
    }
}

/* Leave the group: refuse its parts, and send none. */
static void desert(void *arg, struct hth_rpc_request *req)
{
    struct perjurer *p = arg;

    hth_rpc_refuse(req, HTH_E_DRAINING, 0, "not I");
    hth_timer_set(p->place.env, p->timer, 0);
    p->lies++;
}

static void on_leave(void *arg)
{
    struct perjurer *p = arg;

    if (p->member != NULL) {
        hth_malice_member_again(p->member);
        return;
    }
    hth_averager_stop(&p->avg.averager);
    if (hth_averager_start(&p->avg.averager, on_round, p) != HTH_OK)
        return;
    if (p->out)
        on_round(p, &(struct hth_avg_result){.err = HTH_E_CANCELED, .reason = HTH_AVG_FAILED});
}

/* ---- life ------------------------------------------------------------------------------------ */

static void perjurer_stop(void *self)
{
    struct perjurer *p = self;

    hth_helper_free(p->helper);
    hth_malice_member_free(p->member);
    hth_avg_peer_close(&p->avg);
    hth_rpc_free(p->rpc);
    hth_timer_free(p->place.env, p->timer);
    hth_blob_unref(p->last);
    hth_free(p);
}

static void on_lost(void *arg, const struct hth_peer_id *peer)
{
    struct perjurer *p = arg;

    if (p->member != NULL)
        hth_malice_member_peer_lost(p->member, peer);
}

static enum hth_err be_member(struct perjurer *p)
{
    const struct hth_malice_member_opts member = {.place = &p->place,
                                                  .rpc = p->rpc,
                                                  .avg = &p->avg,
                                                  .seed = p->seed,
                                                  .addr = p->addr,
                                                  .bootstrap = p->manner->founds,
                                                  .samples = p->manner->founds ? FOUNDED : 0};

    return hth_malice_member_new(p->place.env, &member, &p->member);
}

static enum hth_err be_helper(struct perjurer *p)
{
    struct hth_helper_opts helper = {.model = p->place.trainer->model,
                                     .optim = p->place.trainer->optim,
                                     .share = p->place.trainer->share,
                                     .averager = &p->outer,
                                     .rpc = p->rpc};

    p->outer = (struct hth_averager){.ops = &lying_ops, .self = p};
    helper.share.network = p->place.network;
    helper.share.addr = p->addr;
    helper.share.bandwidth = p->manner->bandwidth;
    helper.share.roster = p->avg.roster;
    helper.share.dht = p->place.dht;
    helper.share.reducer = p->avg.reducer;
    return hth_helper_new(p->place.env, &helper, &p->helper);
}

static enum hth_err join(struct perjurer *p)
{
    const struct hth_malice_place *place = &p->place;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_avg_peer_opts avg = HTH_AVG_PEER_OPTS_INIT;
    bool batch = place->trainer->share.mode == HTH_SHARE_BATCH;

    rpc.network = avg.network = place->network;
    if (p->manner->mode != HTH_AVG_CLIENT) {
        rpc.listen = &place->addr;
        avg.addr = p->addr = place->addr;
    }
    rpc.on_peer_lost = hth_avg_peer_lost;
    rpc.arg = &p->avg;
    avg.bandwidth = p->manner->bandwidth;
    avg.mode = p->manner->mode;
    avg.on_lost = on_lost;
    avg.arg = p;
    if (p->manner->on_part != NULL)
        avg.reducer.patience_us = NO_PAUSE; /* no parts come to it */
    HTH_TRY(hth_rpc_new(place->env, &rpc, &p->rpc));
    HTH_TRY(hth_avg_peer_open(place->env, p->rpc, place->dht, &avg, &p->avg));
    if (p->manner->on_part != NULL)
        hth_rpc_serve(p->rpc, HTH_REDUCE_METHOD, p->manner->on_part, p);
    return batch && p->manner->mode != HTH_AVG_HELPER ? be_member(p) : be_helper(p);
}

static enum hth_err perjurer_start(const struct hth_malice_place *place,
                                   const struct manner *manner, void **self)
{
    struct perjurer *p;
    enum hth_err err;

    if (place->trainer == NULL)
        return HTH_E_NOT_FOUND; /* no averaging in this run */
    p = hth_new(struct perjurer);
    p->place = *place;
    p->manner = manner;
    p->rng = hth_rng_split(&place->env->rng, "malice", 0);
    p->seed = hth_rng_u64(&p->rng);
    p->timer = hth_timer_new(place->env, on_leave, p);
    err = join(p);
    if (err == HTH_OK)
        *self = p;
    else
        perjurer_stop(p);
    return err;
}

static enum hth_err turncoat_start(const struct hth_malice_place *place, void **self)
{
    /* In client mode, so that it reduces nothing: as a reducer it would control a share without a
     * lie in its values. */
    static const struct manner turncoat = {.mode = HTH_AVG_CLIENT};

    return perjurer_start(place, &turncoat, self);
}

static enum hth_err usurper_start(const struct hth_malice_place *place, void **self)
{
    static const struct manner usurper = {
        .mode = HTH_AVG_HELPER, .bandwidth = HTH_AVG_BANDWIDTH_MAX, .on_part = usurp};

    return perjurer_start(place, &usurper, self);
}

static enum hth_err equivocator_start(const struct hth_malice_place *place, void **self)
{
    static const struct manner equivocator = {.mode = HTH_AVG_TRAINER, .on_part = equivocate};

    return perjurer_start(place, &equivocator, self);
}

static enum hth_err deserter_start(const struct hth_malice_place *place, void **self)
{
    static const struct manner deserter = {.mode = HTH_AVG_TRAINER, .on_part = desert};

    return perjurer_start(place, &deserter, self);
}

static enum hth_err pretender_start(const struct hth_malice_place *place, void **self)
{
    static const struct manner pretender = {.mode = HTH_AVG_TRAINER, .founds = true};

    return perjurer_start(place, &pretender, self);
}

const struct hth_malice hth_malice_turncoat = {
    .name = "turncoat", .in_averages = true, .start = turncoat_start, .stop = perjurer_stop};
const struct hth_malice hth_malice_usurper = {.name = "usurper",
                                              .in_averages = true,
                                              .splits = true,
                                              .start = usurper_start,
                                              .stop = perjurer_stop};
const struct hth_malice hth_malice_equivocator = {.name = "equivocator",
                                                  .in_averages = true,
                                                  .splits = true,
                                                  .start = equivocator_start,
                                                  .stop = perjurer_stop};
const struct hth_malice hth_malice_deserter = {.name = "deserter",
                                               .in_averages = true,
                                               .splits = true,
                                               .start = deserter_start,
                                               .stop = perjurer_stop};
const struct hth_malice hth_malice_pretender = {
    .name = "pretender", .in_averages = true, .start = pretender_start, .stop = perjurer_stop};

/* ---- the replayer ---------------------------------------------------------------------------- */

#define KEPT      32
#define REPLAYS   16
#define REPLAY_US (700 * HTH_US_PER_MS)

/* Keeps others' records on the board of the roster, and publishes them again when they are old. */
struct replayer {
    struct hth_malice_place place;
    struct hth_rng rng;
    struct hth_timer *timer;
    struct hth_topic topic;
    struct hth_dht_watch *watch;
    int64_t epoch;
    struct {
        uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
        size_t len;
    } kept[KEPT];
    uint32_t kept_count;
    struct hth_dht_put *put[REPLAYS];
    uint32_t puts;
};

static bool on_value(void *arg, const uint8_t *data, size_t len)
{
    struct replayer *r = arg;
    uint32_t at = r->kept_count % KEPT;

    /* Keep the first records: these get old. */
    if (r->kept_count < KEPT && len <= sizeof(r->kept[at].bytes)) {
        memcpy(r->kept[at].bytes, data, len);
        r->kept[at].len = len;
        r->kept_count++;
    }
    return true;
}

static void watch_board(struct replayer *r)
{
    const struct hth_malice_place *p = &r->place;
    struct hth_dht_key key;

    r->epoch = hth_topic_epoch(hth_wall_us(p->env));
    if (r->watch != NULL)
        hth_dht_unwatch(p->dht, r->watch);
    hth_topic_key(&r->topic, p->env->crypto, r->epoch, &key);
    if (hth_dht_watch(p->dht, &key, on_value, r, &r->watch) != HTH_OK)
        r->watch = NULL;
}

static void on_replay(void *arg)
{
    struct replayer *r = arg;
    const struct hth_malice_place *p = &r->place;
    struct hth_dht_put **place = &r->put[r->puts++ % REPLAYS];
    struct hth_dht_key key;

    hth_timer_set(p->env, r->timer, REPLAY_US);
    if (hth_topic_epoch(hth_wall_us(p->env)) != r->epoch)
        watch_board(r);
    if (r->kept_count == 0)
        return;
    uint64_t which = hth_rng_below(&r->rng, r->kept_count);
    if (*place != NULL)
        hth_dht_withdraw(p->dht, *place);
    hth_topic_key(&r->topic, p->env->crypto, r->epoch, &key);
    if (hth_dht_put(p->dht, &key, r->kept[which].bytes, r->kept[which].len, NULL, NULL, place) !=
        HTH_OK)
        *place = NULL;
}

static enum hth_err replayer_start(const struct hth_malice_place *place, void **self)
{
    struct replayer *r = hth_new(struct replayer);
    const struct hth_crypto *crypto = place->env->crypto;

    r->place = *place;
    r->rng = hth_rng_split(&place->env->rng, "malice", 0);
    hth_topic_init(&r->topic, crypto, place->network, HTH_RECORD_PROGRESS, "roster", 6);
    watch_board(r);
    r->timer = hth_timer_new(place->env, on_replay, r);
    hth_timer_set(place->env, r->timer, REPLAY_US);
    *self = r;
    return HTH_OK;
}

static void replayer_stop(void *self)
{
    struct replayer *r = self;

    hth_timer_free(r->place.env, r->timer);
    if (r->watch != NULL)
        hth_dht_unwatch(r->place.dht, r->watch);
    for (uint32_t i = 0; i < REPLAYS; i++)
        if (r->put[i] != NULL)
            hth_dht_withdraw(r->place.dht, r->put[i]);
    hth_free(r);
}

const struct hth_malice hth_malice_replayer = {
    .name = "replayer", .start = replayer_start, .stop = replayer_stop};
