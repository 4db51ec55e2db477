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

#include "averaging/roster.h"
#include "averaging/state.h"
#include "averaging/state_msg.h"
#include "core/mem.h"
#include "dht/board.h"
#include "dht/uid.h"
#include "rpc/rpc.h"

#define LOOK_US        (250 * HTH_US_PER_MS) /* between two looks around */
#define DESCRIBE_US    (10 * HTH_US_PER_S)   /* a snapshot has to be made */
#define GRACE_MIN_US   (20 * HTH_US_PER_MS)  /* for more answers: as long as the first took */
#define GRACE_MAX_US   (300 * HTH_US_PER_MS)
#define STRUCK_US      (5 * HTH_US_PER_S) /* until a donor is asked again */
#define FIRST_US       (2 * HTH_US_PER_S) /* for a first part, and as slow as: */
#define FIRST_RATE     1e6                /* bytes a second */
#define TIMEOUT_FACTOR 4

enum part_state { PART_MISSING, PART_ASKED, PART_CHECKED, PART_DONE };

struct donor {
    struct hth_state_fetch *fetch;
    struct hth_peer_id id;
    struct hth_addr addr;
    struct hth_rpc_call *describing;
    bool described;
    struct hth_state_desc desc;
    bool has_root; /* of the state being fetched, by its own word or record */
    bool gave;     /* a part that was right */
    uint32_t in_flight;
    int64_t struck_until_us;
};

struct ask {
    struct hth_state_fetch *fetch;
    struct ask *next;
    struct donor *donor;
    uint32_t part;
    int64_t sent_us;
    struct hth_rpc_call *call;
};

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

struct hth_state_fetch {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_roster *roster;
    struct hth_state_fetch_opts opts;
    struct hth_board *board;
    struct hth_record_cache *cache;
    struct hth_timer *timer;
    struct donor *donors[HTH_STATE_DONORS_MAX]; /* in order of first sight */
    uint32_t donors_count;
    struct hth_state_desc desc; /* of the state being fetched; 0 parts: none */
    bool fetching;              /* its donors are alive; else looking for some */
    struct hth_blob *values;
    uint8_t *state; /* enum part_state per part */
    uint32_t done;
    struct ask *asks;
    uint32_t checks; /* jobs under way */
    double part_us;  /* what a part takes, smoothed; 0: not known */
    int64_t asked_us, first_answer_us, begun_us;
    struct hth_rng rng;
    bool freed, finished;
    struct hth_state_result result;
    char news[200];
    struct ad *ads; /* announcements believed */
};

/* An announcement of a snapshot. */
struct ad {
    struct ad *next, **back;
    struct hth_peer_id id;
    struct hth_state_ad said;
};

static void pump(struct hth_state_fetch *f);

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

static struct donor *donor_of(struct hth_state_fetch *f, const struct hth_peer_id *id,
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

static bool is_struck(const struct donor *d)
{
    return d->struck_until_us > hth_now_us(d->fetch->env);
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
        f->result.parts_again++;
        ask_free(a);
    }
}

/* It failed: not asked for a while. */
static void strike(struct donor *d, const char *why)
{
    struct hth_state_fetch *f = d->fetch;
    char id[HTH_PEER_SHORT_LEN];

    f->result.donors_lost += d->has_root;
    d->has_root = d->described = false;
    d->struck_until_us = hth_now_us(f->env) + STRUCK_US;
    hth_state_desc_clear(&d->desc);
    cancel_asks(f, d);
    tell(f, "peer %s is left out: %s", hth_peer_id_short(&d->id, id), why);
}

static bool same_root(const struct hth_hash *a, const struct hth_hash *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static uint32_t donors_alive(const struct hth_state_fetch *f)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->donors_count; i++)
        n += f->donors[i]->has_root && !is_struck(f->donors[i]);
    return n;
}

/* ---- looking --------------------------------------------------------------------------------- */

static enum hth_err judge(const struct hth_state_fetch *f, const struct hth_state_desc *d)
{
    if (d->schema != f->opts.schema || d->bytes != f->opts.bytes)
        return HTH_E_BAD_SHAPE;
    return d->step < f->opts.step_min ? HTH_E_STALE : HTH_OK;
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
        err = judge(f, &d->desc);
    if (err != HTH_OK) {
        strike(d, hth_err_text(err));
        if (r->retry_after_us > 0)
            d->struck_until_us = hth_now_us(f->env) + HTH_MIN(r->retry_after_us, STRUCK_US);
        else if (err == HTH_E_STALE) /* it will have a younger one with its next step */
            d->struck_until_us = hth_now_us(f->env) + LOOK_US;
    } else {
        d->described = true;
        if (f->first_answer_us == 0)
            f->first_answer_us = hth_now_us(f->env);
        if (f->desc.parts > 0 && same_root(&d->desc.root, &f->desc.root))
            d->has_root = true;
    }
    pump(f);
}

static void ask_to_describe(struct donor *d)
{
    struct hth_state_fetch *f = d->fetch;
    const struct hth_rpc_target target = {.peer = d->id, .addr = d->addr};
    const struct hth_state_describe ask = {.schema = f->opts.schema, .step_min = f->opts.step_min};
    uint8_t payload[HTH_STATE_REQUEST_MAX];
    struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_DESCRIBE,
                                     .timeout_us = DESCRIBE_US};
    enum hth_err err;

    call.body.payload_len = hth_state_describe_pack(&ask, payload);
    call.body.payload = payload;
    if (f->asked_us == 0)
        f->asked_us = hth_now_us(f->env);
    err = hth_rpc_call(f->rpc, &target, &call, on_described, d, &d->describing);
    if (err != HTH_OK)
        strike(d, hth_err_text(err));
}

static bool can_give(const struct hth_state_fetch *f, const struct hth_roster_peer *p)
{
    return p->note.schema == f->opts.schema && p->note.addr.family != 0 &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0 &&
           p->note.step >= f->opts.step_min;
}

static bool is_struck_off(const struct hth_state_fetch *f, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < f->donors_count; i++)
        if (hth_peer_id_eq(&f->donors[i]->id, id))
            return is_struck(f->donors[i]);
    return false;
}

/* The freshest of the roster: the highest step, or one that is nearly there; who says a step and
 * can't show it does not keep others from being asked. In random order, so that newcomers do not
 * all come to the same one. */
static uint32_t freshest(struct hth_state_fetch *f, const struct hth_roster_peer **out)
{
    const struct hth_roster_peer *p;
    uint64_t best = 0, slack;
    uint32_t n = 0, live = 0;

    for (uint32_t i = 0; (p = hth_roster_at(f->roster, i)) != NULL; i++)
        if (can_give(f, p) && !is_struck_off(f, &p->id))
            best = HTH_MAX(best, p->note.step);
    slack = HTH_MAX(best / 64, UINT64_C(1));
    for (uint32_t i = 0; (p = hth_roster_at(f->roster, i)) != NULL; i++) {
        if (!can_give(f, p))
            continue;
        live++;
        if (p->note.step + slack >= best && n < HTH_AVG_ROSTER_MAX)
            out[n++] = p;
    }
    hth_rng_shuffle(&f->rng, out, n, sizeof(*out));
    if (live == 0)
        tell(f, "no trainer that has one is seen");
    return n;
}

static uint32_t being_asked(const struct hth_state_fetch *f)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->donors_count; i++)
        n += f->donors[i]->describing != NULL || f->donors[i]->described;
    return n;
}

/* Those that are struck off and of no more use make room. */
static void forget_struck(struct hth_state_fetch *f)
{
    uint32_t kept = 0;

    if (f->donors_count < HTH_STATE_DONORS_MAX)
        return;
    for (uint32_t i = 0; i < f->donors_count; i++) {
        struct donor *d = f->donors[i];

        if (d->describing != NULL || d->in_flight > 0 || d->described || d->has_root) {
            f->donors[kept++] = d;
            continue;
        }
        hth_state_desc_clear(&d->desc);
        hth_free(d);
    }
    f->donors_count = kept;
}

static void ask_around(struct hth_state_fetch *f)
{
    const struct hth_roster_peer **peers =
        hth_new_array(const struct hth_roster_peer *, HTH_AVG_ROSTER_MAX);
    uint32_t n = freshest(f, peers);

    forget_struck(f);
    for (uint32_t i = 0; i < n && being_asked(f) < f->opts.donors; i++) {
        struct donor *d = donor_of(f, &peers[i]->id, &peers[i]->note.addr);

        if (d == NULL || d->describing != NULL || d->described || is_struck(d))
            continue;
        d->addr = peers[i]->note.addr;
        ask_to_describe(d);
    }
    hth_free(peers);
}

/* How many of the described donors have this root. */
static uint32_t votes(const struct hth_state_fetch *f, const struct hth_hash *root)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->donors_count; i++)
        n += f->donors[i]->described && same_root(&f->donors[i]->desc.root, root);
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
    cancel_asks(f, NULL);
    hth_state_desc_clear(&f->desc);
    hth_blob_unref(f->values);
    hth_free(f->state);
    f->values = values;
    f->desc = *d;
    f->desc.hashes = hth_new_array(struct hth_hash, d->parts);
    memcpy(f->desc.hashes, d->hashes, d->parts * sizeof(*d->hashes));
    f->state = hth_calloc(d->parts, 1);
    f->done = 0;
    f->result.donors = 0;
    for (uint32_t i = 0; i < f->donors_count; i++)
        f->donors[i]->gave = f->donors[i]->has_root = false;
    return HTH_OK;
}

/* Who announces the root that is being fetched gives parts of it, too. */
static void use_ad(struct hth_state_fetch *f, const struct ad *ad)
{
    struct donor *d;

    if (!f->fetching || !same_root(&ad->said.root, &f->desc.root))
        return;
    d = donor_of(f, &ad->id, &ad->said.addr);
    if (d != NULL && !is_struck(d))
        d->has_root = true;
}

/* Settles on a root, once nobody who was asked may still say something better. */
static void settle(struct hth_state_fetch *f)
{
    struct donor *best = NULL;
    int64_t grace_us = HTH_MAX(f->first_answer_us - f->asked_us, GRACE_MIN_US);
    bool waiting = false;
    enum hth_err err = HTH_OK;

    for (uint32_t i = 0; i < f->donors_count; i++) {
        struct donor *d = f->donors[i];

        waiting = waiting || d->describing != NULL;
        if (d->described && (best == NULL || is_better(f, &d->desc, &best->desc)))
            best = d;
    }
    if (best == NULL ||
        (waiting && hth_now_us(f->env) < f->first_answer_us + HTH_MIN(grace_us, GRACE_MAX_US)))
        return;
    if (f->desc.parts == 0 || !same_root(&f->desc.root, &best->desc.root))
        err = f->checks > 0 ? HTH_E_AGAIN : begin(f, &best->desc);
    if (err != HTH_OK) {
        if (err != HTH_E_AGAIN)
            tell(f, "no room for %llu bytes: %s", (unsigned long long)best->desc.bytes,
                 hth_err_text(err));
        return;
    }
    for (uint32_t i = 0; i < f->donors_count; i++)
        f->donors[i]->has_root =
            f->donors[i]->described && same_root(&f->donors[i]->desc.root, &f->desc.root);
    f->fetching = true;
    for (const struct ad *ad = f->ads; ad != NULL; ad = ad->next)
        use_ad(f, ad);
    tell(f, "fetching step %llu, %u parts of %llu KiB, from %u peers",
         (unsigned long long)f->desc.step, f->desc.parts,
         (unsigned long long)(f->desc.part_bytes >> 10), donors_alive(f));
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
    for (uint32_t i = 0; i < f->donors_count; i++)
        r->donors += f->donors[i]->gave;
    f->opts.on_done(f->opts.arg, r); /* may free us */
}

static void check_run(struct hth_job *job)
{
    struct check *c = HTH_CONTAINER(job, struct check, job);
    uint8_t *into = c->into->data + c->into_offset;
    struct hth_hash got;

    memcpy(into, c->from->data + c->from_offset, c->len);
    c->crypto->hash(into, c->len, &got);
    c->bad = !same_root(&got, &c->want);
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
        strike(d, err != HTH_OK ? hth_err_text(err) : "it sent bytes that do not fit their hash");
    }
    hth_free(c);
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
    struct ask *a = arg;
    struct hth_state_fetch *f = a->fetch;
    struct donor *d = a->donor;
    uint32_t part = a->part;
    double took_us = (double)(hth_now_us(f->env) - a->sent_us);
    enum hth_err err = r->err;

    ask_free(a);
    if (err == HTH_OK) {
        f->result.bytes += hth_state_part_len(&f->desc, part);
        f->part_us = f->part_us == 0 ? took_us : 0.8 * f->part_us + 0.2 * took_us;
        err = check_part(d, part, r);
    }
    if (err != HTH_OK) {
        f->state[part] = PART_MISSING;
        f->result.parts_again++;
        strike(d, hth_err_text(err));
        if (err == HTH_E_NOT_FOUND) /* it has a younger one by now, and did nothing wrong */
            d->struck_until_us = 0;
    }
    pump(f);
}

static int64_t part_timeout_us(const struct hth_state_fetch *f, const struct donor *d)
{
    double first_us = (double)FIRST_US +
                      1e6 * (double)(d->in_flight + 1) * (double)f->desc.part_bytes / FIRST_RATE;
    double us = f->part_us > 0 ? TIMEOUT_FACTOR * f->part_us : first_us;

    us = HTH_MAX(us, (double)f->opts.part_timeout_min_us);
    return (int64_t)HTH_MIN(us, (double)f->opts.part_timeout_max_us);
}

static bool ask_part(struct donor *d, uint32_t part)
{
    struct hth_state_fetch *f = d->fetch;
    const struct hth_rpc_target target = {.peer = d->id, .addr = d->addr};
    uint8_t payload[HTH_STATE_REQUEST_MAX];
    struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_PART,
                                     .timeout_us = part_timeout_us(f, d)};
    struct ask *a = hth_new(struct ask);
    enum hth_err err;

    *a = (struct ask){.fetch = f, .next = f->asks, .donor = d, .part = part};
    a->sent_us = hth_now_us(f->env);
    f->asks = a;
    d->in_flight++;
    call.body.payload_len = hth_state_part_pack(&f->desc.root, part, payload);
    call.body.payload = payload;
    err = hth_rpc_call(f->rpc, &target, &call, on_part, a, &a->call);
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
        for (uint32_t i = 0; i < f->donors_count; i++) {
            struct donor *d = f->donors[i];

            if (!d->has_root || is_struck(d) || d->in_flight >= f->opts.parts_in_flight)
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
        f->part_us = 0; /* who comes next may be slower */
        tell(f, "no donor is left after %u of %u parts: looking for another", f->done,
             f->desc.parts);
        for (uint32_t i = 0; i < f->donors_count; i++)
            f->donors[i]->described = false;
    }
    if (!f->fetching) {
        ask_around(f);
        settle(f);
    }
    if (f->fetching)
        ask_parts(f);
    hth_timer_set(f->env, f->timer,
                  !f->fetching && f->first_answer_us > 0 ? GRACE_MIN_US : LOOK_US);
}

static void on_timer(void *arg)
{
    pump(arg);
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
    use_ad(f, ad);
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

static enum hth_err check_opts(const struct hth_state_fetch_opts *o)
{
    if (o->network == NULL || o->on_done == NULL || o->bytes == 0 ||
        o->bytes > HTH_STATE_BYTES_MAX || o->donors == 0 || o->donors > HTH_STATE_DONORS_MAX ||
        o->parts_in_flight == 0 || o->part_timeout_min_us <= 0 ||
        o->part_timeout_max_us < o->part_timeout_min_us ||
        hth_name_check(o->network, strnlen(o->network, 256)) != HTH_OK)
        return HTH_E_CONFIG;
    return HTH_OK;
}

enum hth_err hth_state_fetch_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                                 struct hth_roster *roster, const struct hth_state_fetch_opts *opts,
                                 struct hth_state_fetch **out)
{
    struct hth_board_opts board = HTH_BOARD_OPTS_INIT;
    struct hth_state_fetch *f;
    struct hth_topic topic;
    enum hth_err err;

    *out = NULL;
    HTH_TRY(check_opts(opts));
    f = hth_new(struct hth_state_fetch);
    f->env = env;
    f->rpc = rpc;
    f->roster = roster;
    f->opts = *opts;
    f->begun_us = hth_now_us(env);
    f->rng = hth_rng_split(&env->rng, "state", (uint64_t)f->begun_us);
    f->timer = hth_timer_new(env, on_timer, f);
    f->cache = hth_record_cache_new();
    hth_topic_init(&topic, env->crypto, opts->network, HTH_RECORD_STATE, "state", 5);
    f->opts.network = NULL;
    board.records_max = HTH_STATE_RECORDS_MAX;
    board.cache = f->cache;
    err = hth_board_new(env, dht, &topic, &board, &board_ops, f, &f->board);
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
    hth_board_free(f->board);
    hth_record_cache_free(f->cache);
    hth_timer_free(f->env, f->timer);
    cancel_asks(f, NULL);
    for (uint32_t i = 0; i < f->donors_count; i++)
        if (f->donors[i]->describing != NULL)
            hth_rpc_cancel(f->donors[i]->describing);
    if (f->checks == 0)
        destroy(f);
}

void hth_state_fetch_progress(const struct hth_state_fetch *f, struct hth_state_progress *out)
{
    *out = (struct hth_state_progress){.step = f->desc.step,
                                       .parts = f->desc.parts,
                                       .parts_done = f->done,
                                       .donors = donors_alive(f),
                                       .bytes = f->result.bytes,
                                       .news = f->news};
}
