/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fetcher's side.
 *
 *   LOOK    ask the freshest peers to describe what they have; settle on a root
 *   FETCH   parts in flight from all donors of that root; each checked by a job
 *             no donor left -> LOOK, with the parts that came kept for the same root
 *   DONE    on_done
 *
 * `pump` does whatever can be done now; answers, records and a timer call it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/state_int.h"
#include "core/mem.h"
#include "dht/uid.h"

#define FIRST_US       (2 * HTH_US_PER_S) /* for a first part, and as slow as: */
#define FIRST_RATE     1e6                /* bytes a second */
#define TIMEOUT_FACTOR 4

/* Copies a part to its place and compares its hash. Outlives the fetch when it is freed. */
struct check {
    struct hth_job job;
    struct hth_state_fetch *fetch;
    const struct hth_crypto *crypto;
    struct donor *donor;
    uint32_t part;
    struct hth_blob *from, *into;
    size_t from_offset, into_offset, len;
    struct hth_hash want;
    bool bad;
};

HTH_PRINTF(2, 3) void hth_fetch_tell(struct hth_state_fetch *f, const char *fmt, ...)
{
    char text[sizeof(f->news)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (strcmp(text, f->news) == 0)
        return;
    memcpy(f->news, text, sizeof(text));
    HTH_LOG(f->env, HTH_INFO, HTH_SUB_AVG, "state: %s", text);
    if (f->opts.on_news != NULL)
        f->opts.on_news(f->opts.arg, f->news);
}

/* ---- donors ---------------------------------------------------------------------------------- */

struct donor *hth_fetch_donor(struct hth_state_fetch *f, const struct hth_peer_id *id,
                              const struct hth_addr *addr)
{
    struct donor *d;

    for (uint32_t i = 0; i < f->donors_count; i++)
        if (hth_peer_id_eq(&f->donors[i]->id, id))
            return f->donors[i];
    if (f->donors_count == HTH_STATE_DONORS_MAX)
        return NULL;
    d = hth_new(struct donor);
    d->fetch = f;
    d->id = *id;
    d->addr = *addr;
    f->donors[f->donors_count++] = d;
    return d;
}

bool hth_fetch_is_struck(const struct donor *d)
{
    return d->struck_until_us > hth_now_us(d->fetch->env);
}

static void ask_free(struct state_ask *a)
{
    struct state_ask **at = &a->fetch->asks;

    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    a->donor->in_flight--;
    hth_free(a);
}

/* Parts that are on their way from this donor (NULL: any) will be asked elsewhere. */
void hth_fetch_cancel_asks(struct hth_state_fetch *f, const struct donor *of)
{
    struct state_ask *next;

    for (struct state_ask *a = f->asks; a != NULL; a = next) {
        next = a->next;
        if (of != NULL && a->donor != of)
            continue;
        hth_rpc_cancel(a->call);
        f->state[a->part] = PART_MISSING;
        f->result.parts_again++;
        ask_free(a);
    }
}

/* It failed: not asked for a while. */
void hth_fetch_strike(struct donor *d, const char *why)
{
    struct hth_state_fetch *f = d->fetch;
    char id[HTH_PEER_SHORT_LEN];

    f->result.donors_lost += d->has_root;
    d->has_root = d->described = false;
    d->struck_until_us = hth_now_us(f->env) + STRUCK_US;
    d->lost = true;
    hth_state_desc_clear(&d->desc);
    hth_fetch_cancel_asks(f, d);
    hth_fetch_tell(f, "peer %s is left out: %s", hth_peer_id_short(&d->id, id), why);
}

void hth_fetch_spare(struct donor *d, int64_t after_us)
{
    d->struck_until_us = hth_now_us(d->fetch->env) + after_us;
    d->lost = false;
}

bool hth_fetch_same_root(const struct hth_hash *a, const struct hth_hash *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

uint32_t hth_fetch_donors_alive(const struct hth_state_fetch *f)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->donors_count; i++)
        n += f->donors[i]->has_root && !hth_fetch_is_struck(f->donors[i]);
    return n;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void finish(struct hth_state_fetch *f)
{
    struct hth_state_result *r = &f->result;

    f->finished = true;
    r->step = f->desc.step;
    r->meta = f->desc.meta;
    r->meta_len = f->desc.meta_len;
    r->values = f->values;
    r->root = f->desc.root;
    r->took_us = hth_now_us(f->env) - f->begun_us;
    r->said_by = &f->said_by;
    r->unshown = &f->unshown;
    for (uint32_t i = 0; i < f->donors_count; i++) {
        struct donor *d = f->donors[i];

        r->donors += d->gave;
        if (d->gave || d->has_root)
            f->said_by.id[f->said_by.count++] = d->id;
    }
    hth_fetch_list_unshown(f);
    f->opts.on_done(f->opts.arg, r); /* may free us */
}

static void check_run(struct hth_job *job)
{
    struct check *c = HTH_CONTAINER(job, struct check, job);
    uint8_t *into = c->into->data + c->into_offset;
    struct hth_hash got;

    memcpy(into, c->from->data + c->from_offset, c->len);
    c->crypto->hash(into, c->len, &got);
    c->bad = !hth_fetch_same_root(&got, &c->want);
}

static void destroy(struct hth_state_fetch *f);

static void check_done(struct hth_job *job, enum hth_err err)
{
    struct check *c = HTH_CONTAINER(job, struct check, job);
    struct hth_state_fetch *f = c->fetch;
    bool bad = c->bad || err != HTH_OK;
    bool ours = c->into == f->values;
    uint32_t part = c->part;
    struct donor *d = c->donor;

    hth_blob_unref(c->from);
    hth_blob_unref(c->into);
    f->checks--;
    if (f->freed) {
        hth_free(c);
        if (f->checks == 0)
            destroy(f);
        return;
    }
    d->in_flight--; /* as a part that is checked */
    if (!bad && ours) {
        f->state[part] = PART_DONE;
        f->done++;
        d->gave = true;
    } else if (ours) {
        f->state[part] = PART_MISSING;
        f->result.parts_again++;
        hth_fetch_strike(d, err != HTH_OK ? hth_err_text(err)
                                          : "it sent bytes that do not fit their hash");
    }
    hth_free(c);
    hth_fetch_pump(f);
}

/* Errors: E_BAD_SHAPE, those of a submit. */
static enum hth_err check_part(struct donor *d, uint32_t part, const struct hth_rpc_result *r)
{
    struct hth_state_fetch *f = d->fetch;
    uint64_t len = hth_state_part_len(&f->desc, part);
    const struct hth_tensor *t = r->tensors;
    struct check *c;
    enum hth_err err;

    if (r->tensor_count != 1 || t->dtype != HTH_U8 || t->ndim != 1 || t->dim[0] != len)
        return HTH_E_BAD_SHAPE;
    c = hth_new(struct check);
    c->fetch = f;
    c->crypto = f->env->crypto;
    c->donor = d;
    c->part = part;
    c->from = hth_blob_ref(t->blob);
    c->from_offset = t->offset;
    c->into = hth_blob_ref(f->values);
    c->into_offset = part * f->desc.part_bytes;
    c->len = len;
    c->want = f->desc.hashes[part];
    c->job.lane = HTH_LANE_COMPUTE;
    c->job.run = check_run;
    c->job.done = check_done;
    c->job.bytes_moved = 3.0 * (double)len;
    c->job.flops = 4.0 * (double)len;
    err = hth_job_submit(f->env, &c->job);
    if (err != HTH_OK) {
        hth_blob_unref(c->from);
        hth_blob_unref(c->into);
        hth_free(c);
        return err;
    }
    f->checks++;
    f->state[part] = PART_CHECKED;
    d->in_flight++; /* until it was checked */
    return HTH_OK;
}

static void on_part(void *arg, const struct hth_rpc_result *r)
{
    struct state_ask *a = arg;
    struct hth_state_fetch *f = a->fetch;
    struct donor *d = a->donor;
    uint32_t part = a->part;
    double took_us = (double)(hth_now_us(f->env) - a->sent_us);
    enum hth_err err = r->err;

    ask_free(a);
    if (err == HTH_OK) {
        f->result.bytes += hth_state_part_len(&f->desc, part);
        f->part_us = HTH_MAX(took_us, 0.8 * f->part_us + 0.2 * took_us);
        f->timed++;
        err = check_part(d, part, r);
    }
    if (err != HTH_OK) {
        f->state[part] = PART_MISSING;
        f->result.parts_again++;
        hth_fetch_strike(d, hth_err_text(err));
        if (err == HTH_E_NOT_FOUND) /* it has a younger one by now */
            hth_fetch_spare(d, 0);
    }
    hth_fetch_pump(f);
}

/* The first parts share this peer's line with all others in flight, and the last of them says what
 * a part takes. */
static int64_t part_timeout_us(const struct hth_state_fetch *f)
{
    uint32_t in_flight = 1;
    double us;

    for (uint32_t i = 0; i < f->donors_count; i++)
        in_flight += f->donors[i]->in_flight;
    us = (double)FIRST_US + 1e6 * (double)in_flight * (double)f->desc.part_bytes / FIRST_RATE;
    if (f->timed >= hth_fetch_donors_alive(f) * f->opts.parts_in_flight)
        us = TIMEOUT_FACTOR * f->part_us;
    us = HTH_MAX(us, (double)f->opts.part_timeout_min_us);
    return (int64_t)HTH_MIN(us, (double)f->opts.part_timeout_max_us);
}

static bool ask_part(struct donor *d, uint32_t part)
{
    struct hth_state_fetch *f = d->fetch;
    const struct hth_rpc_target target = {.peer = d->id, .addr = d->addr};
    uint8_t payload[HTH_STATE_REQUEST_MAX];
    struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_PART,
                                     .timeout_us = part_timeout_us(f)};
    struct state_ask *a = hth_new(struct state_ask);
    enum hth_err err;

    *a = (struct state_ask){.fetch = f, .next = f->asks, .donor = d, .part = part};
    a->sent_us = hth_now_us(f->env);
    f->asks = a;
    d->in_flight++;
    call.body.payload_len = hth_state_part_pack(&f->desc.root, part, payload);
    call.body.payload = payload;
    err = hth_rpc_call(f->rpc, &target, &call, on_part, a, &a->call);
    if (err != HTH_OK) {
        ask_free(a);
        hth_fetch_strike(d, hth_err_text(err));
        return false;
    }
    f->state[part] = PART_ASKED;
    return true;
}

/* One part to each donor in turn, so that all of them work from the start. */
static void ask_parts(struct hth_state_fetch *f)
{
    uint32_t part = 0;
    bool any = true;

    while (any) {
        any = false;
        for (uint32_t i = 0; i < f->donors_count; i++) {
            struct donor *d = f->donors[i];

            if (!d->has_root || hth_fetch_is_struck(d) || d->in_flight >= f->opts.parts_in_flight)
                continue;
            while (part < f->desc.parts && f->state[part] != PART_MISSING)
                part++;
            if (part == f->desc.parts)
                return;
            any = ask_part(d, part) || any;
        }
    }
}

void hth_fetch_pump(struct hth_state_fetch *f)
{
    if (f->finished)
        return;
    if (f->desc.parts > 0 && f->done == f->desc.parts) {
        finish(f);
        return;
    }
    if (f->fetching && hth_fetch_donors_alive(f) == 0 && f->checks == 0) {
        f->fetching = false;
        f->first_answer_us = f->asked_us = 0;
        f->part_us = 0; /* the next ones may be slower */
        f->timed = 0;
        hth_fetch_tell(f, "no donor is left after %u of %u parts: looking for another", f->done,
                       f->desc.parts);
        for (uint32_t i = 0; i < f->donors_count; i++)
            f->donors[i]->described = false;
    }
    if (!f->fetching) {
        hth_fetch_ask_around(f);
        hth_fetch_settle(f);
    }
    if (f->fetching)
        ask_parts(f);
    hth_timer_set(f->env, f->timer,
                  !f->fetching && f->first_answer_us > 0 ? GRACE_MIN_US : LOOK_US);
}

static void on_timer(void *arg)
{
    hth_fetch_pump(arg);
}

/* A client that has a state has dialled: it may be asked now. Anybody can say so, and to look costs
 * time: more of them than that are found with the next look, which comes by itself. */
static void on_here(void *arg, struct hth_rpc_request *req)
{
    struct hth_state_fetch *f = arg;
    int64_t now = hth_now_us(f->env);

    if (now < f->here_us) {
        hth_rpc_refuse(req, HTH_E_BUSY, f->here_us - now, "others are here, too");
        return;
    }
    f->here_us = now + HTH_STATE_HERE_US;
    hth_rpc_reply(req, NULL);
    hth_timer_set(f->env, f->timer, 0);
}

/* ---- announcements --------------------------------------------------------------------------- */

static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_state_fetch *f = arg;
    struct hth_state_ad said;
    struct ad *ad = *user;

    HTH_TRY(hth_state_ad_read(rec->payload, rec->payload_len, &said));
    if (said.schema != f->opts.schema || said.bytes != f->opts.bytes)
        return HTH_E_BAD_SHAPE;
    if (ad == NULL) {
        ad = hth_new(struct ad);
        ad->id = rec->owner_id;
        ad->next = f->ads;
        ad->back = &f->ads;
        if (f->ads != NULL)
            f->ads->back = &ad->next;
        f->ads = ad;
        *user = ad;
    }
    ad->said = said;
    hth_fetch_use_ad(f, ad);
    hth_timer_set(f->env, f->timer, 0);
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    struct ad *ad = user;

    (void)arg;
    (void)owner;
    (void)part;
    if (ad == NULL)
        return;
    *ad->back = ad->next;
    if (ad->next != NULL)
        ad->next->back = ad->back;
    hth_free(ad);
}

/* ---- life ------------------------------------------------------------------------------------ */

static const struct hth_board_ops board_ops = {on_record, on_gone, NULL};

static enum hth_err check_opts(const struct hth_state_fetch_opts *o, bool has_roster)
{
    if (o->on_done == NULL || o->bytes == 0 || o->bytes > HTH_STATE_BYTES_MAX || o->donors == 0 ||
        o->donors > HTH_STATE_DONORS_MAX || o->parts_in_flight == 0 ||
        o->part_timeout_min_us <= 0 || o->part_timeout_max_us < o->part_timeout_min_us)
        return HTH_E_CONFIG;
    if (!has_roster)
        return o->holders_count > 0 && o->holders_count <= HTH_STATE_DONORS_MAX ? HTH_OK
                                                                                : HTH_E_CONFIG;
    return o->network != NULL && hth_name_check(o->network, strnlen(o->network, 256)) == HTH_OK
               ? HTH_OK
               : HTH_E_CONFIG;
}

/* The peers of the roster and those that announce a state. */
static enum hth_err look_around(struct hth_state_fetch *f, struct hth_dht *dht)
{
    struct hth_board_opts board = HTH_BOARD_OPTS_INIT;
    struct hth_topic topic;

    f->cache = hth_record_cache_new();
    hth_topic_init(&topic, f->env->crypto, f->opts.network, HTH_RECORD_STATE, "state", 5);
    board.records_max = HTH_STATE_RECORDS_MAX;
    board.cache = f->cache;
    HTH_TRY(hth_board_new(f->env, dht, &topic, &board, &board_ops, f, &f->board));
    hth_rpc_serve(f->rpc, HTH_STATE_METHOD_HERE, on_here, f);
    return HTH_OK;
}

/* In random order, so that newcomers do not all come to the same one. */
static void take_holders(struct hth_state_fetch *f)
{
    for (uint32_t i = 0; i < f->opts.holders_count; i++)
        hth_fetch_donor(f, &f->opts.holders[i].peer, &f->opts.holders[i].addr);
    hth_rng_shuffle(&f->rng, f->donors, f->donors_count, sizeof(f->donors[0]));
    f->opts.holders = NULL;
    f->reached = UINT64_MAX;
}

enum hth_err hth_state_fetch_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                                 struct hth_roster *roster, const struct hth_state_fetch_opts *opts,
                                 struct hth_state_fetch **out)
{
    struct hth_state_fetch *f;
    enum hth_err err = HTH_OK;

    *out = NULL;
    HTH_TRY(check_opts(opts, roster != NULL));
    f = hth_new(struct hth_state_fetch);
    f->env = env;
    f->rpc = rpc;
    f->roster = roster;
    f->opts = *opts;
    f->begun_us = hth_now_us(env);
    f->rng = hth_rng_split(&env->rng, "state", (uint64_t)f->begun_us);
    f->timer = hth_timer_new(env, on_timer, f);
    if (roster != NULL)
        err = look_around(f, dht);
    else
        take_holders(f);
    f->opts.network = NULL;
    if (err != HTH_OK) {
        hth_state_fetch_free(f);
        return err;
    }
    hth_timer_set(env, f->timer, 0);
    *out = f;
    return HTH_OK;
}

static void destroy(struct hth_state_fetch *f)
{
    for (uint32_t i = 0; i < f->donors_count; i++) {
        hth_state_desc_clear(&f->donors[i]->desc);
        hth_free(f->donors[i]);
    }
    hth_state_desc_clear(&f->desc);
    hth_blob_unref(f->values);
    hth_free(f->state);
    hth_free(f);
}

void hth_state_fetch_free(struct hth_state_fetch *f)
{
    if (f == NULL || f->freed)
        return;
    f->freed = f->finished = true;
    if (f->board != NULL)
        hth_rpc_serve(f->rpc, HTH_STATE_METHOD_HERE, NULL, NULL);
    hth_board_free(f->board);
    hth_record_cache_free(f->cache);
    hth_timer_free(f->env, f->timer);
    hth_fetch_cancel_asks(f, NULL);
    for (uint32_t i = 0; i < f->donors_count; i++)
        if (f->donors[i]->describing != NULL)
            hth_rpc_cancel(f->donors[i]->describing);
    if (f->checks == 0)
        destroy(f);
}

void hth_state_fetch_progress(const struct hth_state_fetch *f, struct hth_state_progress *out)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < f->donors_count; i++)
        left += !f->donors[i]->lost;
    *out = (struct hth_state_progress){.step = f->desc.step,
                                       .left = left,
                                       .parts = f->desc.parts,
                                       .parts_done = f->done,
                                       .donors = hth_fetch_donors_alive(f),
                                       .bytes = f->result.bytes,
                                       .news = f->news};
}
