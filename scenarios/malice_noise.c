/* SPDX-License-Identifier: Apache-2.0 */
/* malice_noise.c: meaningless bytes on streams (garbage) and in the DHT (forger). */
#include "scenarios/malice.h"

#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "dht/record.h"

#define DIAL_US    (200 * HTH_US_PER_MS)
#define STREAMS    16
#define NOISE_MAX  4096
#define FORGE_US   (400 * HTH_US_PER_MS)
#define FORGED     64
#define RECORD_MAX 1024

static void draw_bytes(struct hth_rng *rng, uint8_t *out, size_t len)
{
    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)hth_rng_u64(rng);
}

/* ---- garbage --------------------------------------------------------------------------------- */

struct garbage {
    struct hth_malice_place place;
    struct hth_rng rng;
    struct hth_announcer *announcer;
    struct hth_listener *listener;
    struct hth_timer *timer;
    struct hth_stream *streams[STREAMS];
    uint32_t next;
};

static const struct hth_stream_ops garbage_ops;

/* Send noise; half of it begins as a frame does. */
static void spew(struct garbage *g, struct hth_stream *s)
{
    static const uint8_t head[8] = {'H', 'R', 'T', 'H', 1, 2, 0, 0};
    uint8_t bytes[NOISE_MAX];
    size_t len = 1 + (size_t)hth_rng_below(&g->rng, NOISE_MAX);

    draw_bytes(&g->rng, bytes, len);
    if (len > 32 && hth_rng_chance(&g->rng, 0.5)) {
        memcpy(bytes, head, sizeof(head));
        bytes[5] = (uint8_t)(1 + hth_rng_below(&g->rng, 9));
        if (hth_rng_chance(&g->rng, 0.5)) /* lengths within the limits */
            memset(bytes + 26, 0, 6);
    }
    struct hth_blob *blob = hth_blob_copy(bytes, len);
    const struct hth_span span = {blob, 0, len};
    enum hth_err err = hth_stream_write(g->place.env, s, &span, 1);
    (void)err; /* an error means a closed or full stream, which does not matter */
    hth_blob_unref(blob);
}

static void on_open(struct hth_stream *s, void *arg)
{
    spew(arg, s);
}

static void on_readable(struct hth_stream *s, void *arg)
{
    struct garbage *g = arg;
    struct hth_blob *sink = hth_blob_try_new(NOISE_MAX);

    if (sink == NULL)
        return;
    while (hth_stream_read(g->place.env, s, sink, 0, NOISE_MAX) > 0)
        continue;
    hth_blob_unref(sink);
    if (hth_rng_chance(&g->rng, 0.2))
        spew(g, s);
}

static void on_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct garbage *g = arg;

    (void)err;
    for (uint32_t i = 0; i < STREAMS; i++)
        if (g->streams[i] == s)
            g->streams[i] = NULL;
}

static const struct hth_stream_ops garbage_ops = {
    .on_open = on_open, .on_readable = on_readable, .on_closed = on_closed};

/* Keep a new stream in the place of the oldest. */
static void keep_stream(struct garbage *g, struct hth_stream *s)
{
    struct hth_stream **place = &g->streams[g->next++ % STREAMS];

    if (*place != NULL)
        hth_stream_close(g->place.env, *place, false);
    *place = s;
}

static void on_accept(void *arg, struct hth_stream *s)
{
    struct garbage *g = arg;

    hth_stream_attach(g->place.env, s, &garbage_ops, g);
    keep_stream(g, s);
    spew(g, s);
}

static void on_dial(void *arg)
{
    struct garbage *g = arg;
    struct hth_rpc_target to;
    struct hth_stream *s;

    hth_timer_set(g->place.env, g->timer, DIAL_US);
    if (g->place.victim(g->place.arg, &g->rng, &to) &&
        hth_dial(g->place.env, &to.addr, NULL, &garbage_ops, g, &s) == HTH_OK)
        keep_stream(g, s);
}

static void garbage_stop(void *self)
{
    struct garbage *g = self;
    struct hth_env *env = g->place.env;

    hth_announcer_free(g->announcer);
    hth_listener_free(env, g->listener);
    hth_timer_free(env, g->timer);
    for (uint32_t i = 0; i < STREAMS; i++)
        if (g->streams[i] != NULL)
            hth_stream_close(env, g->streams[i], false);
    hth_free(g);
}

static enum hth_err garbage_start(const struct hth_malice_place *place, void **self)
{
    struct hth_announcer_opts a = HTH_ANNOUNCER_OPTS_INIT;
    struct garbage *g = hth_new(struct garbage);
    uint32_t first = 0;
    enum hth_err err;

    g->place = *place;
    g->rng = hth_rng_split(&place->env->rng, "malice", 0);
    a.network = place->network;
    a.role = HTH_ROLE_HOST;
    a.info.addr[0] = place->addr;
    a.info.addr_count = 1;
    a.info.rows_per_s = 1e6f;
    HTH_GOTO(fail, hth_listen(place->env, &place->addr, on_accept, g, &g->listener));
    HTH_GOTO(fail, hth_announcer_new(place->env, place->dht, &a, &g->announcer));
    HTH_GOTO(fail, hth_announcer_set_layer(g->announcer, &place->grids[0], &place->shape,
                                           &(struct hth_expert_list){&first, 1}));
    g->timer = hth_timer_new(place->env, on_dial, g);
    hth_timer_set(place->env, g->timer, DIAL_US);
    *self = g;
    return HTH_OK;
fail:
    garbage_stop(g);
    return err;
}

const struct hth_malice hth_malice_garbage = {
    .name = "garbage", .start = garbage_start, .stop = garbage_stop};

/* ---- forger ---------------------------------------------------------------------------------- */

struct forger {
    struct hth_malice_place place;
    struct hth_rng rng;
    struct hth_timer *timer;
    struct hth_dht_put *puts[FORGED];
    uint32_t next;
};

/* Forge a record: its own, validly signed with a payload of noise or a wrong time or sequence; or
 * one that is damaged after signing, or carries another peer's name. */
static size_t forge(struct forger *f, const struct hth_dht_key *key, uint64_t network,
                    uint8_t out[RECORD_MAX])
{
    struct hth_env *env = f->place.env;
    uint8_t payload[256];
    struct hth_record rec = {.kind = HTH_RECORD_ROOT,
                             .network = network,
                             .issued_us = hth_wall_us(env),
                             .life_ms = 60000,
                             .payload = payload};
    struct hth_rpc_target who;
    size_t len = 0;
    uint64_t what = hth_rng_below(&f->rng, 6);

    rec.payload_len = (size_t)hth_rng_below(&f->rng, sizeof(payload));
    draw_bytes(&f->rng, payload, sizeof(payload));
    rec.seq = what == 0 ? UINT64_MAX : (uint64_t)rec.issued_us;
    rec.issued_us += what == 1 ? 3600 * HTH_US_PER_S : what == 2 ? -3600 * HTH_US_PER_S : 0;
    if (what == 3 || hth_record_seal(env, key, &rec, out, RECORD_MAX, &len) != HTH_OK) {
        len = 1 + (size_t)hth_rng_below(&f->rng, RECORD_MAX);
        draw_bytes(&f->rng, out, len);
    }
    if (what == 4)
        out[hth_rng_below(&f->rng, len)] ^= 0x20;
    if (what == 5 && len > HTH_RECORD_HEAD_BYTES && f->place.victim(f->place.arg, &f->rng, &who))
        memcpy(out + 40, who.peer.b, HTH_PUBKEY_LEN);
    return len;
}

static void on_forge(void *arg)
{
    struct forger *f = arg;
    const struct hth_malice_place *p = &f->place;
    const struct hth_grid *grid = &p->grids[hth_rng_below(&f->rng, p->layers)];
    struct hth_dht_put **place = &f->puts[f->next++ % FORGED];
    struct hth_uid prefix = {.ncoord = 0};
    char text[HTH_UID_TEXT_MAX];
    uint8_t bytes[RECORD_MAX];
    struct hth_topic topic;
    struct hth_dht_key key;

    hth_timer_set(p->env, f->timer, FORGE_US);
    memcpy(prefix.name, grid->name, sizeof(prefix.name));
    hth_prefix_text(&prefix, text);
    hth_topic_init(&topic, p->env->crypto, p->network, HTH_RECORD_ROOT, text, strlen(text));
    hth_topic_key(&topic, p->env->crypto, hth_topic_epoch(hth_wall_us(p->env)), &key);
    size_t len = forge(f, &key, topic.network, bytes);
    if (*place != NULL)
        hth_dht_withdraw(p->dht, *place);
    if (hth_dht_put(p->dht, &key, bytes, len, NULL, NULL, place) != HTH_OK)
        *place = NULL;
}

static enum hth_err forger_start(const struct hth_malice_place *place, void **self)
{
    struct forger *f = hth_new(struct forger);

    f->place = *place;
    f->rng = hth_rng_split(&place->env->rng, "malice", 0);
    f->timer = hth_timer_new(place->env, on_forge, f);
    hth_timer_set(place->env, f->timer, FORGE_US);
    *self = f;
    return HTH_OK;
}

static void forger_stop(void *self)
{
    struct forger *f = self;

    hth_timer_free(f->place.env, f->timer);
    for (uint32_t i = 0; i < FORGED; i++)
        if (f->puts[i] != NULL)
            hth_dht_withdraw(f->place.dht, f->puts[i]);
    hth_free(f);
}

const struct hth_malice hth_malice_forger = {
    .name = "forger", .start = forger_start, .stop = forger_stop};
