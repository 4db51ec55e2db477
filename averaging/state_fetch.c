/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fetcher's side.
 *
 *   LOOK    ask a few holders to describe what they have; settle on a root
 *   FETCH   parts in flight from all donors of that root; each checked by a job
 *             no donor left -> LOOK, with the parts that came kept for the same root
 *   DONE    on_done
 *
 * `pump` does whatever can be done now; answers and a timer call it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "averaging/state.h"
#include "averaging/state_msg.h"
#include "core/budget.h"
#include "core/mem.h"
#include "rpc/rpc.h"

#define BEHIND_TIMES 4                     /* that a donor may be behind before it is struck off */
#define LOOK_US      (250 * HTH_US_PER_MS) /* between two looks around */
#define GRACE_US     (20 * HTH_US_PER_MS)  /* for more answers: as long as the first took, ... */
#define GRACE_MAX_US (300 * HTH_US_PER_MS) /* ... within these */
#define STRUCK_US    (5 * HTH_US_PER_S)    /* until a donor is asked again */
#define DESCRIBE_US  (10 * HTH_US_PER_S)   /* a snapshot has to be made */
#define HEDGE_US     (1 * HTH_US_PER_S)    /* for an answer, before others are asked, too */
#define DONORS       4                     /* asked at once; silent ones do not count, ... */
#define ASKED_MAX    16                    /* ... up to so many */
#define PART_US      (2 * HTH_US_PER_S)    /* for a part, and as slow as: */
#define PART_RATE    1e6                   /* bytes a second, with all that is in flight */

enum part_state { PART_MISSING, PART_ASKED, PART_CHECKED, PART_DONE };

struct donor {
    struct hth_state_fetch *fetch;
    struct hth_rpc_target at;
    struct hth_rpc_call *describing;
    int64_t asked_us; /* to describe */
    bool described;
    struct hth_state_desc desc;
    int64_t gave_us; /* its last part of the present state that was right; 0: none */
    uint32_t in_flight;
    int64_t struck_until_us;
    uint32_t behind; /* times that it had none that is far enough */
    bool lost;       /* struck off for what it did: not asked again */
};

struct ask {
    struct hth_state_fetch *fetch;
    struct ask *next;
    struct donor *donor;
    uint32_t part;
    struct hth_rpc_call *call;
};

struct hth_state_fetch {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_state_fetch_opts opts;
    struct hth_timer *timer;
    struct donor donor[HTH_STATE_DONORS_MAX];
    uint32_t donors;
    struct hth_state_desc desc; /* of the state being fetched; 0 parts: none */
    bool fetching;              /* its donors are alive; else looking for some */
    struct hth_blob *values;
    uint8_t *state; /* enum part_state per part */
    uint32_t done;
    struct ask *asks;
    uint32_t checks; /* jobs under way */
    int64_t asked_us, first_answer_us, begun_us;
    bool freed, finished;
    struct hth_state_result result;
    struct hth_state_peers said_by;
    char news[200];
};

/* Copies a part to its place and compares its hash: the fetch, and the state that it fetches, stay
 * as long as checks are under way. */
struct check {
    struct hth_job job;
    struct hth_state_fetch *fetch;
    const struct hth_crypto *crypto;
    struct donor *donor;
    uint32_t part;
    struct hth_blob *from;
    size_t from_offset;
    bool bad;
};

static void pump(struct hth_state_fetch *f);

/* News for people, once. */
HTH_PRINTF(2, 3) static void tell(struct hth_state_fetch *f, const char *fmt, ...)
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

static bool same_root(const struct hth_hash *a, const struct hth_hash *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static bool is_struck(const struct donor *d)
{
    return d->struck_until_us > hth_now_us(d->fetch->env);
}

/* It can give parts of the state being fetched. */
static bool can_give(const struct donor *d)
{
    return d->described && d->fetch->desc.parts > 0 && !is_struck(d) &&
           same_root(&d->desc.root, &d->fetch->desc.root);
}

static uint32_t donors_alive(const struct hth_state_fetch *f)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->donors; i++)
        n += can_give(&f->donor[i]);
    return n;
}

static void ask_free(struct ask *a)
{
    struct ask **at = &a->fetch->asks;

    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    a->donor->in_flight--;
    hth_free(a);
}

/* Parts that are on their way from this donor (NULL: any) will be asked elsewhere. */
static void cancel_asks(struct hth_state_fetch *f, const struct donor *of)
{
    struct ask *next;

    for (struct ask *a = f->asks; a != NULL; a = next) {
        next = a->next;
        if (of != NULL && a->donor != of)
            continue;
        hth_rpc_cancel(a->call);
        f->state[a->part] = PART_MISSING;
        ask_free(a);
    }
}

/* It failed: not asked for a while. */
static void strike(struct donor *d, const char *why)
{
    struct hth_state_fetch *f = d->fetch;
    char id[HTH_PEER_SHORT_LEN];

    d->described = false;
    d->struck_until_us = hth_now_us(f->env) + STRUCK_US;
    d->lost = true;
    hth_state_desc_clear(&d->desc);
    cancel_asks(f, d);
    tell(f, "peer %s is left out: %s", hth_peer_id_short(&d->at.peer, id), why);
}

/* It did nothing wrong, and is asked again after this time. */
static void spare(struct donor *d, int64_t after_us)
{
    d->struck_until_us = hth_now_us(d->fetch->env) + after_us;
    d->lost = false;
}

/* ---- looking --------------------------------------------------------------------------------- */

static enum hth_err judge(const struct donor *donor)
{
    const struct hth_state_fetch *f = donor->fetch;
    const struct hth_state_desc *d = &donor->desc;

    if (d->schema != f->opts.schema || d->bytes != f->opts.bytes)
        return HTH_E_BAD_SHAPE;
    if (d->step < f->opts.step_min)
        return HTH_E_STALE;
    return f->opts.judge == NULL ? HTH_OK
                                 : f->opts.judge(f->opts.arg, &donor->at, d->meta, d->meta_len);
}

static void on_described(void *arg, const struct hth_rpc_result *r)
{
    struct donor *d = arg;
    struct hth_state_fetch *f = d->fetch;
    enum hth_err err = r->err;

    d->describing = NULL;
    hth_state_desc_clear(&d->desc);
    if (err == HTH_OK)
        err = hth_state_desc_open(r->payload, r->payload_len, f->env->crypto, &d->desc);
    if (err == HTH_OK)
        err = judge(d);
    if (err != HTH_OK) {
        strike(d, hth_err_text(err));
        if (r->retry_after_us > 0)
            spare(d, HTH_MIN(r->retry_after_us, STRUCK_US));
        else if (err == HTH_E_AGAIN || (err == HTH_E_STALE && ++d->behind < BEHIND_TIMES))
            spare(d, LOOK_US); /* its next one may do */
    } else {
        d->described = true;
        d->lost = false;
        d->behind = 0;
        if (f->first_answer_us == 0)
            f->first_answer_us = hth_now_us(f->env);
    }
    pump(f);
}

static void ask_to_describe(struct donor *d)
{
    struct hth_state_fetch *f = d->fetch;
    uint8_t payload[HTH_STATE_REQUEST_MAX];
    struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_DESCRIBE,
                                     .timeout_us = DESCRIBE_US};
    enum hth_err err;

    call.body.payload_len = hth_state_describe_pack(f->opts.schema, f->opts.step_min, payload);
    call.body.payload = payload;
    d->asked_us = hth_now_us(f->env);
    if (f->asked_us == 0)
        f->asked_us = d->asked_us;
    err = hth_rpc_call(f->rpc, &d->at, &call, on_described, d, &d->describing);
    if (err != HTH_OK)
        strike(d, hth_err_text(err));
}

/* Those that do not answer soon do not count, up to a bound. */
static bool are_enough_asked(const struct hth_state_fetch *f)
{
    int64_t since_us = hth_now_us(f->env) - HEDGE_US;
    uint32_t asked = 0, soon = 0;

    for (uint32_t i = 0; i < f->donors; i++) {
        const struct donor *d = &f->donor[i];

        asked += d->described || d->describing != NULL;
        soon += d->described || (d->describing != NULL && d->asked_us > since_us);
    }
    return soon >= DONORS || asked >= ASKED_MAX;
}

static void ask_around(struct hth_state_fetch *f)
{
    for (uint32_t i = 0; i < f->donors && !are_enough_asked(f); i++) {
        struct donor *d = &f->donor[i];

        if (d->describing == NULL && !d->described && !is_struck(d))
            ask_to_describe(d);
    }
}

/* How many of the described donors have this root. */
static uint32_t votes(const struct hth_state_fetch *f, const struct hth_hash *root)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->donors; i++)
        n += f->donor[i].described && same_root(&f->donor[i].desc.root, root);
    return n;
}

static bool is_better(const struct hth_state_fetch *f, const struct hth_state_desc *a,
                      const struct hth_state_desc *b)
{
    bool a_now = f->desc.parts > 0 && same_root(&a->root, &f->desc.root);
    bool b_now = f->desc.parts > 0 && same_root(&b->root, &f->desc.root);

    if (a_now != b_now) /* what was begun is finished */
        return a_now;
    if (a->step != b->step)
        return a->step > b->step;
    if (votes(f, &a->root) != votes(f, &b->root))
        return votes(f, &a->root) > votes(f, &b->root);
    return memcmp(&a->root, &b->root, sizeof(a->root)) > 0;
}

static enum hth_err begin(struct hth_state_fetch *f, const struct hth_state_desc *d)
{
    struct hth_blob *values = NULL;

    if (hth_fault(f->env, "averaging.state"))
        return HTH_E_NO_MEMORY;
    HTH_TRY(hth_env_blob_new(f->env, d->bytes, f->opts.budget, &values));
    hth_state_desc_clear(&f->desc);
    hth_blob_unref(f->values);
    hth_free(f->state);
    f->values = values;
    f->desc = *d;
    f->desc.hashes = hth_new_array(struct hth_hash, d->parts);
    memcpy(f->desc.hashes, d->hashes, d->parts * sizeof(*d->hashes));
    f->state = hth_calloc(d->parts, 1);
    f->done = 0;
    for (uint32_t i = 0; i < f->donors; i++)
        f->donor[i].gave_us = 0;
    return HTH_OK;
}

/* Settles on a root, once nobody who was asked may still say something better. */
static void settle(struct hth_state_fetch *f)
{
    const struct donor *best = NULL;
    int64_t grace_us = HTH_MAX(f->first_answer_us - f->asked_us, GRACE_US);
    bool waiting = false;
    enum hth_err err = HTH_OK;

    for (uint32_t i = 0; i < f->donors; i++) {
        const struct donor *d = &f->donor[i];

        waiting = waiting || d->describing != NULL;
        if (d->described && (best == NULL || is_better(f, &d->desc, &best->desc)))
            best = d;
    }
    if (best == NULL ||
        (waiting && hth_now_us(f->env) < f->first_answer_us + HTH_MIN(grace_us, GRACE_MAX_US)))
        return;
    if (f->desc.parts == 0 || !same_root(&f->desc.root, &best->desc.root))
        err = begin(f, &best->desc);
    if (err != HTH_OK) {
        tell(f, "no room for %llu bytes: %s", (unsigned long long)best->desc.bytes,
             hth_err_text(err));
        return;
    }
    f->fetching = true;
    tell(f, "fetching step %llu, %u parts of %llu KiB, from %u peers",
         (unsigned long long)f->desc.step, f->desc.parts,
         (unsigned long long)(f->desc.part_bytes >> 10), donors_alive(f));
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void finish(struct hth_state_fetch *f)
{
    struct hth_state_result *r = &f->result;
    int64_t gave_us[HTH_STATE_DONORS_MAX];

    f->finished = true;
    r->step = f->desc.step;
    r->meta = f->desc.meta;
    r->meta_len = f->desc.meta_len;
    r->values = f->values;
    r->took_us = hth_now_us(f->env) - f->begun_us;
    r->said_by = &f->said_by;
    for (uint32_t i = 0; i < f->donors; i++) {
        const struct donor *d = &f->donor[i];

        r->donors += d->gave_us > 0;
        if (d->gave_us == 0 && !can_give(d))
            continue;
        uint32_t at = f->said_by.count++;
        for (; at > 0 && gave_us[at - 1] < d->gave_us; at--) {
            gave_us[at] = gave_us[at - 1];
            f->said_by.id[at] = f->said_by.id[at - 1];
        }
        gave_us[at] = d->gave_us;
        f->said_by.id[at] = d->at.peer;
    }
    f->opts.on_done(f->opts.arg, r); /* may free us */
}

static void check_run(struct hth_job *job)
{
    struct check *c = HTH_CONTAINER(job, struct check, job);
    const struct hth_state_desc *d = &c->fetch->desc;
    uint8_t *into = c->fetch->values->data + c->part * d->part_bytes;
    size_t len = hth_state_part_len(d, c->part);
    struct hth_hash got;

    memcpy(into, c->from->data + c->from_offset, len);
    c->crypto->hash(into, len, &got);
    c->bad = !same_root(&got, &d->hashes[c->part]);
}

static void destroy(struct hth_state_fetch *f);

static void check_done(struct hth_job *job, enum hth_err err)
{
    struct check *c = HTH_CONTAINER(job, struct check, job);
    struct hth_state_fetch *f = c->fetch;
    bool bad = c->bad || err != HTH_OK;
    uint32_t part = c->part;
    struct donor *d = c->donor;

    hth_blob_unref(c->from);
    hth_free(c);
    f->checks--;
    if (f->freed) {
        if (f->checks == 0)
            destroy(f);
        return;
    }
    d->in_flight--; /* as a part that is checked */
    f->state[part] = bad ? PART_MISSING : PART_DONE;
    f->done += !bad;
    if (!bad)
        d->gave_us = hth_now_us(f->env);
    if (bad)
        strike(d, err != HTH_OK ? hth_err_text(err) : "it sent bytes that do not fit their hash");
    pump(f);
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
    c->job.lane = HTH_LANE_COMPUTE;
    c->job.run = check_run;
    c->job.done = check_done;
    c->job.bytes_moved = 3.0 * (double)len;
    c->job.flops = 4.0 * (double)len;
    err = hth_job_submit(f->env, &c->job);
    if (err != HTH_OK) {
        hth_blob_unref(c->from);
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
    struct ask *a = arg;
    struct hth_state_fetch *f = a->fetch;
    struct donor *d = a->donor;
    uint32_t part = a->part;
    enum hth_err err = r->err;

    ask_free(a);
    if (err == HTH_OK) {
        f->result.bytes += hth_state_part_len(&f->desc, part);
        err = check_part(d, part, r);
    }
    if (err != HTH_OK) {
        f->state[part] = PART_MISSING;
        strike(d, hth_err_text(err));
        if (err == HTH_E_NOT_FOUND) /* it has a younger one by now */
            spare(d, 0);
        else if (err == HTH_E_BUSY || hth_err_class(err) == HTH_CLASS_LOCAL)
            spare(d, LOOK_US);
    }
    pump(f);
}

/* Parts share this peer's line with all others in flight. */
static int64_t part_timeout_us(const struct hth_state_fetch *f)
{
    uint32_t in_flight = 1;

    for (uint32_t i = 0; i < f->donors; i++)
        in_flight += f->donor[i].in_flight;
    return PART_US + (int64_t)(1e6 * in_flight * (double)f->desc.part_bytes / PART_RATE);
}

static bool ask_part(struct donor *d, uint32_t part)
{
    struct hth_state_fetch *f = d->fetch;
    uint8_t payload[HTH_STATE_REQUEST_MAX];
    struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_PART,
                                     .timeout_us = part_timeout_us(f)};
    struct ask *a = hth_new(struct ask);
    enum hth_err err;

    *a = (struct ask){.fetch = f, .next = f->asks, .donor = d, .part = part};
    f->asks = a;
    d->in_flight++;
    call.body.payload_len = hth_state_part_pack(&f->desc.root, part, payload);
    call.body.payload = payload;
    err = hth_rpc_call(f->rpc, &d->at, &call, on_part, a, &a->call);
    if (err != HTH_OK) {
        ask_free(a);
        strike(d, hth_err_text(err));
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
        for (uint32_t i = 0; i < f->donors; i++) {
            struct donor *d = &f->donor[i];

            if (!can_give(d) || d->in_flight >= f->opts.parts_in_flight)
                continue;
            while (part < f->desc.parts && f->state[part] != PART_MISSING)
                part++;
            if (part == f->desc.parts)
                return;
            any = ask_part(d, part) || any;
        }
    }
}

static void pump(struct hth_state_fetch *f)
{
    if (f->finished)
        return;
    if (f->desc.parts > 0 && f->done == f->desc.parts) {
        finish(f);
        return;
    }
    if (f->fetching && donors_alive(f) == 0 && f->checks == 0) {
        f->fetching = false;
        f->first_answer_us = f->asked_us = 0;
        tell(f, "no donor is left after %u of %u parts: looking for another", f->done,
             f->desc.parts);
        for (uint32_t i = 0; i < f->donors; i++)
            f->donor[i].described = false;
    }
    if (!f->fetching) {
        ask_around(f);
        settle(f);
    }
    if (f->fetching)
        ask_parts(f);
    hth_timer_set(f->env, f->timer, !f->fetching && f->first_answer_us > 0 ? GRACE_US : LOOK_US);
}

static void on_timer(void *arg)
{
    pump(arg);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* In random order, so that newcomers do not all come to the same one. */
static void take_holders(struct hth_state_fetch *f, const struct hth_state_fetch_opts *o)
{
    struct hth_rpc_target at[HTH_STATE_DONORS_MAX];
    struct hth_rng rng = hth_rng_split(&f->env->rng, "state", (uint64_t)f->begun_us);

    memcpy(at, o->holders, o->holders_count * sizeof(at[0]));
    hth_rng_shuffle(&rng, at, o->holders_count, sizeof(at[0]));
    for (uint32_t i = 0; i < o->holders_count; i++)
        f->donor[f->donors++] = (struct donor){.fetch = f, .at = at[i]};
    f->opts.holders = NULL;
}

enum hth_err hth_state_fetch_new(struct hth_env *env, struct hth_rpc *rpc,
                                 const struct hth_state_fetch_opts *o, struct hth_state_fetch **out)
{
    struct hth_state_fetch *f;

    *out = NULL;
    if (o->on_done == NULL || o->bytes == 0 || o->bytes > HTH_STATE_BYTES_MAX ||
        o->parts_in_flight == 0 || o->holders_count == 0 || o->holders_count > HTH_STATE_DONORS_MAX)
        return HTH_E_CONFIG;
    f = hth_new(struct hth_state_fetch);
    f->env = env;
    f->rpc = rpc;
    f->opts = *o;
    f->begun_us = hth_now_us(env);
    f->timer = hth_timer_new(env, on_timer, f);
    take_holders(f, o);
    hth_timer_set(env, f->timer, 0);
    *out = f;
    return HTH_OK;
}

static void destroy(struct hth_state_fetch *f)
{
    for (uint32_t i = 0; i < f->donors; i++)
        hth_state_desc_clear(&f->donor[i].desc);
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
    hth_timer_free(f->env, f->timer);
    cancel_asks(f, NULL);
    for (uint32_t i = 0; i < f->donors; i++)
        if (f->donor[i].describing != NULL)
            hth_rpc_cancel(f->donor[i].describing);
    if (f->checks == 0)
        destroy(f);
}

void hth_state_fetch_progress(const struct hth_state_fetch *f, struct hth_state_progress *out)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < f->donors; i++)
        left += !f->donor[i].lost;
    *out = (struct hth_state_progress){.step = f->desc.step,
                                       .left = left,
                                       .parts = f->desc.parts,
                                       .parts_done = f->done,
                                       .donors = donors_alive(f),
                                       .bytes = f->result.bytes,
                                       .news = f->news};
}
