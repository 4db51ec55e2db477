/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fetcher's side.
 *
 *   LOOK    ask a few holders to describe what they have; settle on a name
 *             of a mean, whose name and size are known, parts are asked of the first one meanwhile
 *   FETCH   parts in flight from all donors of that name; each checked by a job
 *             no donor left -> LOOK, with the parts that came kept for the same name
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

#define LOOK_US   (50 * HTH_US_PER_MS)  /* between two looks around */
#define LATE_US   (250 * HTH_US_PER_MS) /* for an answer while another donor has given one */
#define ANSWER_US (3 * HTH_US_PER_S)    /* for a description, */
#define PART_US   (500 * HTH_US_PER_MS) /* and for a part, as slow as: */
#define PART_RATE 1e6                   /* bytes a second, with all that is in flight */
/* A donor is left out that gives no part for so long: it may be in a round for 10 s
 * (state_donor.c). */
#define BUSY_US (16 * HTH_US_PER_S)
#define FAILS   4 /* a holder is left out that is behind or silent so often */
#define DONORS  4 /* asked at first */
/* In flight of a donor: one, and one more for each that came; twice as many of a mean, which a
 * newcomer has to have before the next one. */
#define PARTS 4

enum part_state { PART_MISSING, PART_ASKED, PART_DONE };

struct holder {
    struct hth_state_fetch *fetch;
    struct hth_rpc_target at;
    struct hth_rpc_call *describing;
    int64_t asked_us;           /* to describe, the first time */
    int64_t again_us;           /* not before it is asked again; INT64_MAX: it is left out */
    struct hth_state_desc desc; /* no hashes: it has described nothing */
    uint32_t in_flight, window;
    int64_t took_us; /* its last part */
    int64_t busy_us; /* since then it has said so, and given no part; 0: it has not */
    uint32_t fails;  /* times that it was behind or silent, since it gave a part */
};

/* A part on its way, until a job has copied it to its place and compared its hash: the fetch, and
 * what it fetches, stay as long as such jobs are under way. */
struct part {
    struct hth_state_fetch *fetch;
    struct part *next;
    struct holder *holder;
    uint32_t index;
    int64_t asked_us;
    struct hth_rpc_call *call; /* NULL: it came */
    struct hth_job job;
    struct hth_blob *from;
    size_t from_offset;
    bool bad;
};

struct hth_state_fetch {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_state_fetch_opts opts;
    struct hth_timer *timer;
    struct holder holder[HTH_STATE_DONORS_MAX];
    uint32_t holders;
    struct hth_state_desc desc; /* of what is fetched; no hashes: nothing yet */
    bool fetching;              /* its donors are alive; else looking for some */
    struct hth_blob *values;
    uint8_t *state; /* enum part_state per part */
    uint32_t done;
    struct part *parts;
    uint32_t checks; /* jobs under way */
    int64_t first_answer_us, begun_us, moved_us;
    bool freed, finished;
    struct hth_state_result result;
    char news[200];
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
    HTH_LOG(f->env, HTH_INFO, HTH_SUB_AVG, "%s: %s", f->opts.mean ? "mean" : "state", text);
}

/* ---- holders --------------------------------------------------------------------------------- */

static bool is_named(const struct hth_state_desc *d, const struct hth_state_desc *like)
{
    return d->hashes != NULL && like->hashes != NULL &&
           memcmp(&d->name, &like->name, sizeof(d->name)) == 0;
}

/* Those that have described this. */
static uint32_t donors_of(const struct hth_state_fetch *f, const struct hth_state_desc *d)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->holders; i++)
        n += is_named(&f->holder[i].desc, d);
    return n;
}

/* Whether parts are asked of it: it has described this, or may be about to. */
static bool may_give(const struct holder *h)
{
    const struct hth_state_fetch *f = h->fetch;
    uint32_t first = 0;

    if (f->fetching || !f->opts.mean)
        return is_named(&h->desc, &f->desc);
    while (f->holder[first].describing == NULL && &f->holder[first] != h)
        first++;
    return h->describing != NULL && h == &f->holder[first];
}

static void part_free(struct part *p)
{
    struct part **at = &p->fetch->parts;

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    p->holder->in_flight--;
    hth_blob_unref(p->from);
    hth_free(p);
}

/* Parts that have not come from this holder (NULL: any) will be asked elsewhere. */
static void cancel_parts(struct hth_state_fetch *f, const struct holder *of)
{
    struct part *next;

    for (struct part *p = f->parts; p != NULL; p = next) {
        next = p->next;
        if (p->call == NULL || (of != NULL && p->holder != of))
            continue;
        hth_rpc_cancel(p->call);
        f->state[p->index] = PART_MISSING;
        part_free(p);
    }
}

static bool is_out(const struct holder *h)
{
    return h->again_us == INT64_MAX;
}

/* It has to describe what it has again, after that time; INT64_MAX: it is left out for good. */
static void put_off(struct holder *h, int64_t us, const char *why)
{
    struct hth_state_fetch *f = h->fetch;
    char id[HTH_PEER_SHORT_LEN];

    hth_state_desc_clear(&h->desc);
    cancel_parts(f, h);
    h->again_us = us == INT64_MAX ? us : hth_now_us(f->env) + us;
    tell(f, "peer %s is %s: %s", hth_peer_id_short(&h->at.peer, id),
         is_out(h) ? "left out" : "put off", why);
}

/* ---- looking --------------------------------------------------------------------------------- */

static enum hth_err judge(const struct holder *h)
{
    const struct hth_state_fetch *f = h->fetch;
    const struct hth_state_desc *d = &h->desc;
    struct hth_hash digest;

    if (d->bytes != f->opts.bytes)
        return HTH_E_BAD_SHAPE;
    if (f->opts.mean) {
        f->env->crypto->hash(d->hashes->data, d->hashes->size, &digest);
        return f->values->data == NULL || memcmp(&digest, &f->opts.digest, sizeof(digest)) == 0
                   ? HTH_OK
                   : HTH_E_PROTOCOL;
    }
    if (d->step < f->opts.step_min)
        return HTH_E_STALE;
    return f->opts.judge == NULL ? HTH_OK
                                 : f->opts.judge(f->opts.arg, &h->at, d->meta, d->meta_len);
}

static enum hth_err take_description(struct holder *h, const struct hth_rpc_result *r)
{
    struct hth_state_fetch *f = h->fetch;

    HTH_TRY(r->err);
    HTH_TRY(hth_state_desc_open(r->payload, r->payload_len, f->opts.schema, &h->desc));
    if (f->opts.mean)
        h->desc.name = f->opts.head;
    else
        hth_state_desc_seal(&h->desc, f->env->crypto);
    HTH_TRY(judge(h));
    if (f->first_answer_us == 0)
        f->first_answer_us = hth_now_us(f->env);
    return HTH_OK;
}

static void on_described(void *arg, const struct hth_rpc_result *r)
{
    struct holder *h = arg;
    enum hth_err err = take_description(h, r);
    int64_t us = INT64_MAX;

    h->describing = NULL;
    h->window = 1;
    if (err == HTH_E_AGAIN || err == HTH_E_BUSY || hth_err_class(err) == HTH_CLASS_LOCAL)
        us = LOOK_US;
    else if ((err == HTH_E_STALE || err == HTH_E_TIMEOUT) && ++h->fails < FAILS)
        us = LATE_US; /* its next one may do */
    if (err != HTH_OK)
        put_off(h, us, r->remote ? r->text : hth_err_text(err));
    pump(h->fetch);
}

/* Asks for what is fetched, or for that part of it. */
static enum hth_err call(struct holder *h, uint16_t method, uint32_t part, int64_t timeout_us,
                         hth_rpc_done_fn *done, void *arg, struct hth_rpc_call **out)
{
    const struct hth_state_fetch *f = h->fetch;
    const struct hth_state_ask ask = {.schema = f->opts.schema,
                                      .step_min = f->opts.step_min,
                                      .named = f->opts.mean || method == HTH_STATE_METHOD_PART,
                                      .name = method == HTH_STATE_METHOD_PART ? f->desc.name
                                                                              : f->opts.head,
                                      .part = part};
    uint8_t payload[HTH_STATE_ASK_MAX];
    const struct hth_rpc_call_opts opts = {
        .method = method,
        .timeout_us = timeout_us,
        .body = {.payload = payload, .payload_len = hth_state_ask_pack(&ask, payload)}};

    return hth_rpc_call(f->rpc, &h->at, &opts, done, arg, out);
}

static void ask_to_describe(struct holder *h)
{
    struct hth_state_fetch *f = h->fetch;
    enum hth_err err;

    if (h->asked_us == 0)
        h->asked_us = hth_now_us(f->env);
    err = call(h, HTH_STATE_METHOD_DESCRIBE, 0, ANSWER_US, on_described, h, &h->describing);
    if (err != HTH_OK)
        put_off(h, INT64_MAX, hth_err_text(err));
}

/* Those that have nothing for long do not count. */
static bool are_enough_asked(const struct hth_state_fetch *f)
{
    int64_t since_us = hth_now_us(f->env) - 4 * LATE_US;
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->holders; i++) {
        const struct holder *h = &f->holder[i];

        n += h->desc.hashes != NULL || (h->asked_us > since_us && !is_out(h));
    }
    return n >= DONORS;
}

/* Also while parts come: those that have it later help. */
static void ask_around(struct hth_state_fetch *f)
{
    for (uint32_t i = 0; i < f->holders; i++) {
        struct holder *h = &f->holder[i];

        if (h->describing == NULL && h->desc.hashes == NULL && h->again_us <= hth_now_us(f->env) &&
            (h->asked_us != 0 || (!f->fetching && !are_enough_asked(f))))
            ask_to_describe(h);
    }
}

static bool is_better(const struct hth_state_fetch *f, const struct hth_state_desc *a,
                      const struct hth_state_desc *b)
{
    bool a_now = is_named(a, &f->desc), b_now = is_named(b, &f->desc);

    if (a_now != b_now) /* what was begun is finished */
        return a_now;
    if (donors_of(f, a) != donors_of(f, b))
        return donors_of(f, a) > donors_of(f, b);
    return a->step > b->step;
}

static void begin(struct hth_state_fetch *f, const struct hth_state_desc *d)
{
    hth_state_desc_clear(&f->desc);
    f->desc = hth_state_desc_ref(d);
    hth_free(f->state);
    f->state = hth_calloc(d->parts, 1);
    f->done = 0;
    f->result.said_by.count = 0;
}

/* Of a mean all but the hashes is known. */
static void begin_mean(struct hth_state_fetch *f)
{
    struct hth_state_desc d;
    enum hth_err err = hth_state_desc_init(&d, f->opts.schema, 0, NULL, 0, f->opts.bytes, NULL);

    HTH_ASSERT(err == HTH_OK);
    d.name = f->opts.head;
    begin(f, &d);
    hth_state_desc_clear(&d);
}

/* Settles on a name, once nobody who was asked may still say something better. */
static void settle(struct hth_state_fetch *f)
{
    const struct hth_state_desc *best = NULL;
    bool waiting = false;

    for (uint32_t i = 0; i < f->holders; i++) {
        const struct holder *h = &f->holder[i];

        if (h->desc.hashes == NULL)
            waiting |= h->asked_us != 0 && !is_out(h) && !f->opts.mean;
        else if (best == NULL || is_better(f, &h->desc, best))
            best = &h->desc;
    }
    if (best == NULL || (waiting && hth_now_us(f->env) < f->first_answer_us + 3 * LOOK_US))
        return;
    if (!is_named(best, &f->desc))
        begin(f, best);
    hth_state_desc_clear(&f->desc);
    f->desc = hth_state_desc_ref(best);
    f->fetching = true;
    tell(f, "fetching step %llu, %u parts of %llu KiB, from %u peers",
         (unsigned long long)f->desc.step, f->desc.parts,
         (unsigned long long)(f->desc.part_bytes >> 10), donors_of(f, &f->desc));
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Puts the holder that gave a part in front of those before. */
static void note_giver(struct hth_state_fetch *f, const struct hth_peer_id *id)
{
    struct hth_state_peers *p = &f->result.said_by;
    uint32_t at = 0;

    while (at < p->count && !hth_peer_id_eq(&p->id[at], id))
        at++;
    p->count += at == p->count;
    memmove(&p->id[1], &p->id[0], at * sizeof(*id));
    p->id[0] = *id;
}

static void finish(struct hth_state_fetch *f, enum hth_err err)
{
    struct hth_state_result *r = &f->result;

    f->finished = true;
    if (err != HTH_OK) {
        f->opts.on_done(f->opts.arg, err, NULL); /* may free us */
        return;
    }
    r->step = f->desc.step;
    r->meta = f->desc.meta;
    r->meta_len = f->desc.meta_len;
    r->values = f->values;
    r->hashes = f->desc.hashes;
    r->took_us = hth_now_us(f->env) - f->begun_us;
    struct hth_state_peers gave = r->said_by;
    r->said_by.count = 0;
    for (uint32_t i = 0; i < f->holders; i++)
        if (is_named(&f->holder[i].desc, &f->desc))
            note_giver(f, &f->holder[i].at.peer);
    while (gave.count > 0)
        note_giver(f, &gave.id[--gave.count]);
    f->opts.on_done(f->opts.arg, HTH_OK, r); /* may free us */
}

static void check_run(struct hth_job *job)
{
    struct part *p = HTH_CONTAINER(job, struct part, job);
    const struct hth_state_fetch *f = p->fetch;
    uint8_t *into = f->values->data + p->index * f->desc.part_bytes;
    size_t len = hth_state_part_len(&f->desc, p->index);
    struct hth_hash got;

    memcpy(into, p->from->data + p->from_offset, len);
    f->env->crypto->hash(into, len, &got);
    p->bad = memcmp(&got, hth_state_part_hash(&f->desc, p->index), sizeof(got)) != 0;
}

static void destroy(struct hth_state_fetch *f);

static void check_done(struct hth_job *job, enum hth_err err)
{
    struct part *p = HTH_CONTAINER(job, struct part, job);
    struct hth_state_fetch *f = p->fetch;
    struct holder *h = p->holder;
    bool bad = p->bad || err != HTH_OK;

    f->state[p->index] = bad ? PART_MISSING : PART_DONE;
    part_free(p);
    f->checks--;
    if (f->freed) {
        if (f->checks == 0)
            destroy(f);
        return;
    }
    if (bad) {
        put_off(h, INT64_MAX,
                err != HTH_OK ? hth_err_text(err) : "it sent bytes that do not fit their hash");
    } else {
        f->done++;
        f->moved_us = hth_now_us(f->env);
        h->window++;
        h->busy_us = 0;
        h->fails = 0;
        note_giver(f, &h->at.peer);
    }
    pump(f);
}

/* Errors: E_BAD_SHAPE, those of a submit. */
static enum hth_err check_part(struct part *p, const struct hth_rpc_result *r)
{
    struct hth_state_fetch *f = p->fetch;
    uint64_t len = hth_state_part_len(&f->desc, p->index);
    const struct hth_tensor *t = r->tensors;

    if (r->tensor_count != 1 || t->dtype != HTH_U8 || t->ndim != 1 || t->dim[0] != len)
        return HTH_E_BAD_SHAPE;
    p->from = hth_blob_ref(t->blob);
    p->from_offset = t->offset;
    p->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                              .run = check_run,
                              .done = check_done,
                              .bytes_moved = 3.0 * (double)len,
                              .flops = 4.0 * (double)len};
    HTH_TRY(hth_job_submit(f->env, &p->job));
    f->checks++;
    return HTH_OK;
}

static void on_part(void *arg, const struct hth_rpc_result *r)
{
    struct part *p = arg;
    struct hth_state_fetch *f = p->fetch;
    struct holder *h = p->holder;
    enum hth_err err = r->err;
    int64_t now = hth_now_us(f->env);
    bool described = h->desc.hashes != NULL;

    p->call = NULL;
    h->took_us = now - p->asked_us;
    if (err == HTH_OK)
        f->result.bytes += hth_state_part_len(&f->desc, p->index);
    if (err == HTH_OK && described)
        err = check_part(p, r);
    if (err != HTH_OK || !described) {
        f->state[p->index] = PART_MISSING;
        part_free(p);
    }
    if (!described)
        h->window = 0; /* it can't be checked: first the holder describes it */
    h->fails += err == HTH_E_TIMEOUT;
    if (err == HTH_E_BUSY && h->busy_us == 0)
        h->busy_us = now;
    if (err == HTH_E_BUSY && now - h->busy_us < BUSY_US) {
        h->window = 1;
        h->again_us = now + LOOK_US;
    } else if (err != HTH_OK) {
        put_off(h,
                err == HTH_E_BAD_SHAPE || err == HTH_E_BUSY ? INT64_MAX
                : err == HTH_E_NOT_FOUND                    ? 0
                                                            : LOOK_US,
                hth_err_text(err));
    }
    pump(f);
}

/* Parts share this peer's line with all others in flight. */
static int64_t part_timeout_us(const struct holder *h)
{
    const struct hth_state_fetch *f = h->fetch;
    uint32_t in_flight = 1;

    for (uint32_t i = 0; i < f->holders; i++)
        in_flight += f->holder[i].in_flight;
    return (PART_US + (int64_t)(1e6 * in_flight * (double)f->desc.part_bytes / PART_RATE))
           << HTH_MIN(h->fails, FAILS); /* so that each is longer */
}

static void ask_part(struct holder *h, uint32_t index)
{
    struct hth_state_fetch *f = h->fetch;
    struct part *p = hth_new(struct part);
    enum hth_err err;

    *p = (struct part){
        .fetch = f, .next = f->parts, .holder = h, .index = index, .asked_us = hth_now_us(f->env)};
    f->parts = p;
    h->in_flight++;
    err = call(h, HTH_STATE_METHOD_PART, index, part_timeout_us(h), on_part, p, &p->call);
    if (err == HTH_OK) {
        f->state[index] = PART_ASKED;
    } else {
        part_free(p);
        put_off(h, LOOK_US, hth_err_text(err));
    }
}

/* A donor with nothing to do takes over from one whose part is late, twice as late as its own. */
static bool relieve(const struct holder *idle)
{
    int64_t late_us = HTH_MAX(LATE_US, 2 * idle->took_us);

    for (struct part *p = idle->fetch->parts; p != NULL; p = p->next) {
        if (p->call != NULL && p->holder != idle &&
            hth_now_us(idle->fetch->env) - p->asked_us >= late_us) {
            put_off(p->holder, LOOK_US, "its part is late");
            return true;
        }
    }
    return false;
}

/* One part to each donor in turn, so that all of them work from the start. */
static void ask_parts(struct hth_state_fetch *f)
{
    uint32_t part = 0;
    bool any = true;

    while (any) {
        any = false;
        for (uint32_t i = 0; i < f->holders; i++) {
            struct holder *h = &f->holder[i];

            if (!may_give(h) || h->again_us > hth_now_us(f->env) ||
                h->in_flight >= HTH_MIN(h->window, PARTS) << f->opts.mean)
                continue;
            while (part < f->desc.parts && f->state[part] != PART_MISSING)
                part++;
            if (part == f->desc.parts && (h->in_flight > 0 || !relieve(h)))
                return;
            any = true;
            if (part < f->desc.parts)
                ask_part(h, part);
            else
                part = 0;
        }
    }
}

/* ---- the next thing to do -------------------------------------------------------------------- */

/* Why it will not get on; HTH_OK: it may. */
static enum hth_err look(struct hth_state_fetch *f)
{
    bool out = true;

    for (uint32_t i = 0; i < f->holders; i++)
        out &= is_out(&f->holder[i]);
    if (out)
        return HTH_E_NOT_FOUND;
    if (hth_now_us(f->env) - f->moved_us >= f->opts.patience_us)
        return HTH_E_TIMEOUT;
    settle(f);
    return HTH_OK;
}

static void pump(struct hth_state_fetch *f)
{
    enum hth_err err = HTH_OK;

    if (f->finished)
        return;
    if (f->desc.hashes != NULL && f->done == f->desc.parts) {
        finish(f, HTH_OK);
        return;
    }
    if (f->fetching && donors_of(f, &f->desc) == 0 && f->checks == 0) {
        f->fetching = false;
        f->first_answer_us = 0;
        tell(f, "no donor is left after %u of %u parts: looking for another", f->done,
             f->desc.parts);
        for (uint32_t i = 0; i < f->holders; i++)
            hth_state_desc_clear(&f->holder[i].desc);
    }
    ask_around(f);
    if (!f->fetching)
        err = look(f);
    if (err != HTH_OK) {
        finish(f, err);
        return;
    }
    if (f->fetching || f->opts.mean)
        ask_parts(f);
    hth_timer_set(f->env, f->timer, LOOK_US);
}

static void on_timer(void *arg)
{
    pump(arg);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Of a state in random order, so that newcomers do not all come to the same one. */
static void take_holders(struct hth_state_fetch *f, const struct hth_state_fetch_opts *o)
{
    struct hth_rpc_target at[HTH_STATE_DONORS_MAX];
    struct hth_rng rng = hth_rng_split(&f->env->rng, "state", (uint64_t)f->begun_us);

    memcpy(at, o->holders, o->holders_count * sizeof(at[0]));
    if (!o->mean)
        hth_rng_shuffle(&rng, at, o->holders_count, sizeof(at[0]));
    for (uint32_t i = 0; i < o->holders_count; i++)
        f->holder[f->holders++] = (struct holder){.fetch = f, .at = at[i], .window = 1};
    f->opts.holders = NULL;
}

enum hth_err hth_state_fetch_new(struct hth_env *env, struct hth_rpc *rpc,
                                 const struct hth_state_fetch_opts *o, struct hth_state_fetch **out)
{
    struct hth_state_fetch *f;
    struct hth_blob *values;

    *out = NULL;
    if (o->on_done == NULL || o->bytes == 0 || o->bytes > HTH_STATE_BYTES_MAX ||
        o->holders_count == 0 || o->holders_count > HTH_STATE_DONORS_MAX)
        return HTH_E_CONFIG;
    HTH_TRY(hth_env_blob_new(env, o->bytes, o->budget, &values));
    f = hth_new(struct hth_state_fetch);
    f->env = env;
    f->rpc = rpc;
    f->opts = *o;
    f->values = values;
    f->begun_us = f->moved_us = hth_now_us(env);
    f->timer = hth_timer_new(env, on_timer, f);
    take_holders(f, o);
    if (o->mean)
        begin_mean(f);
    hth_timer_set(env, f->timer, 0);
    *out = f;
    return HTH_OK;
}

static void destroy(struct hth_state_fetch *f)
{
    for (uint32_t i = 0; i < f->holders; i++)
        hth_state_desc_clear(&f->holder[i].desc);
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
    cancel_parts(f, NULL);
    for (uint32_t i = 0; i < f->holders; i++)
        if (f->holder[i].describing != NULL)
            hth_rpc_cancel(f->holder[i].describing);
    if (f->checks == 0)
        destroy(f);
}

void hth_state_fetch_progress(const struct hth_state_fetch *f, struct hth_state_progress *out)
{
    *out = (struct hth_state_progress){
        .step = f->desc.step, .parts = f->desc.parts, .parts_done = f->done, .news = f->news};
}
