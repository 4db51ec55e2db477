/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The donor's side: one snapshot, and one more while it is made.
 *
 *   DESCRIBE -> of a step that the owner has not reached: refused
 *            -> the snapshot is young enough, or still fetched by others: reply
 *            -> one may be made: the asker waits, `want` -> give -> hash jobs -> reply to all
 *            -> else: refused, come back
 *
 * Strangers decide when that is. What they can cause is a snapshot each PAUSE_US, or five times
 * what the last one took; and one that is fetched stays for as long as a slow line takes for all of
 * it, or a fast one where it will not do for somebody: so who fetches for ever delays the next one
 * by that much and no more.
 */
#include <string.h>

#include "averaging/roster.h"
#include "averaging/state.h"
#include "averaging/state_msg.h"
#include "core/mem.h"
#include "rpc/rpc.h"

#define FRESH_US  (3 * HTH_US_PER_S)    /* a younger snapshot is handed out again */
#define LINGER_US (20 * HTH_US_PER_S)   /* one that nobody asked for so long is let go */
#define PAUSE_US  (250 * HTH_US_PER_MS) /* between two snapshots, at least, and ... */
#define PAUSE     4                     /* ... times what the last one took */
#define RETRY_US  (500 * HTH_US_PER_MS)
#define REST_US   (2 * HTH_US_PER_S) /* between two parts to one fetcher, beside the time of one */
#define HOLD_US   (5 * HTH_US_PER_S) /* of a snapshot, beside the time of all its parts */
#define SLOW_RATE 1e6                /* bytes a second */
#define FAST_RATE 20e6
#define HERE_US   (5 * HTH_US_PER_S)
/* Of a snapshot, by one job: a few milliseconds. The averages of this peer's groups wait for the
 * same workers, and all of a group for them. */
#define SLICE_BYTES (4u << 20)

/* A part is a blob by itself: who asks for parts and does not read them holds these parts, which
 * rpc counts against it, and not the snapshot. */
struct snapshot {
    struct hth_state_desc desc;
    struct hth_blob **parts; /* desc.parts of them */
    int64_t made_us;
    int64_t asked_us; /* the last time, and for a part of it */
    int64_t part_us;
};

/* Outlives the donor when it is freed meanwhile. */
struct hashing {
    struct hth_job job;
    struct hth_state_donor *donor; /* NULL: freed */
    struct hth_env *env;
    struct snapshot *snapshot;
    struct hth_blob *values; /* the owner's */
    uint32_t first, end;     /* parts of the present slice */
};

struct hth_state_donor {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_state_donor_opts opts;
    struct snapshot *held; /* NULL: none */
    struct hashing *hashing;
    bool wanted; /* `want` was called and nothing came yet */
    int64_t wanted_us, next_us;
    struct hth_rpc_request *waiting[HTH_STATE_WAITERS_MAX]; /* of each peer one */
    uint32_t waiting_count;
    struct hth_timer *timer;
    int64_t reach_us; /* when it may dial the next newcomer */
    struct hth_rng rng;
    struct hth_state_donor_stats stats;
};

/* ---- snapshots: memory ----------------------------------------------------------------------- */

static void snapshot_free(struct snapshot *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; s->parts != NULL && i < s->desc.parts; i++)
        hth_blob_unref(s->parts[i]);
    hth_free(s->parts);
    hth_state_desc_clear(&s->desc);
    hth_free(s);
}

static enum hth_err snapshot_new(struct hth_state_donor *d, uint64_t step, const void *meta,
                                 size_t meta_len, uint64_t bytes, struct snapshot **out)
{
    struct snapshot *s = hth_new(struct snapshot);
    enum hth_err err = hth_state_desc_init(&s->desc, d->opts.schema, step, meta, meta_len, bytes);

    *out = s;
    if (err == HTH_OK)
        s->parts = hth_new_array(struct hth_blob *, s->desc.parts);
    for (uint32_t i = 0; err == HTH_OK && i < s->desc.parts; i++)
        err = hth_env_blob_new(d->env, hth_state_part_len(&s->desc, i), NULL, &s->parts[i]);
    return err;
}

static void let_go(struct hth_state_donor *d)
{
    snapshot_free(d->held);
    d->held = NULL;
}

static int64_t line_us(uint64_t bytes, double rate)
{
    return (int64_t)(1e6 * (double)bytes / rate);
}

/* Somebody fetches it, and has not for longer than a line of that rate takes. */
static bool is_fetched(const struct snapshot *s, double rate, int64_t now)
{
    return now - s->part_us <= REST_US + line_us(s->desc.part_bytes, SLOW_RATE) &&
           now - s->made_us <= HOLD_US + line_us(s->desc.bytes, rate);
}

/* A snapshot that nobody asks for any more is let go. */
static void on_timer(void *arg)
{
    struct hth_state_donor *d = arg;
    int64_t left_us = d->held->asked_us + LINGER_US - hth_now_us(d->env);

    if (left_us <= 0)
        let_go(d);
    else
        hth_timer_set(d->env, d->timer, left_us);
}

/* ---- answering ------------------------------------------------------------------------------- */

static void describe(struct hth_state_donor *d, struct hth_rpc_request *req)
{
    struct hth_rpc_body body = {0};
    uint8_t *payload;

    d->held->asked_us = hth_now_us(d->env);
    hth_state_desc_pack(&d->held->desc, &payload, &body.payload_len);
    body.payload = payload;
    hth_rpc_reply(req, &body);
    hth_free(payload);
}

static void refuse(struct hth_rpc_request *req, enum hth_err err, const char *text)
{
    hth_rpc_refuse(req, err, hth_err_class(err) == HTH_CLASS_RETRY ? RETRY_US : 0, text);
}

static void answer_all(struct hth_state_donor *d, bool made)
{
    for (uint32_t i = 0; i < d->waiting_count; i++) {
        if (made)
            describe(d, d->waiting[i]);
        else
            refuse(d->waiting[i], HTH_E_AGAIN, "no snapshot can be made now");
    }
    d->waiting_count = 0;
}

/* In the place of what the same peer waited for before. */
static void wait_for_next(struct hth_state_donor *d, struct hth_rpc_request *req)
{
    uint32_t at = 0;

    while (at < d->waiting_count &&
           !hth_peer_id_eq(hth_rpc_peer(d->waiting[at]), hth_rpc_peer(req)))
        at++;
    if (at == HTH_STATE_WAITERS_MAX) {
        refuse(req, HTH_E_BUSY, "many wait for a snapshot");
        return;
    }
    if (at < d->waiting_count)
        refuse(d->waiting[at], HTH_E_DUPLICATE, "asked again");
    else
        d->waiting_count++;
    d->waiting[at] = req;
    if (d->wanted || d->hashing != NULL)
        return;
    d->wanted = true;
    d->wanted_us = hth_now_us(d->env);
    d->opts.want(d->opts.arg);
}

static void describe_fresh(struct hth_state_donor *d, struct hth_rpc_request *req,
                           uint64_t step_min)
{
    const struct snapshot *s = d->held;
    int64_t now = hth_now_us(d->env);
    bool will_do = s != NULL && s->desc.step >= step_min;
    bool may_want =
        d->wanted || d->hashing != NULL ||
        (now >= d->next_us && (s == NULL || !is_fetched(s, will_do ? SLOW_RATE : FAST_RATE, now)));

    if (step_min > d->opts.step(d->opts.arg))
        refuse(req, HTH_E_STALE, "this peer is not that far");
    else if (will_do && (now - s->made_us <= FRESH_US || !may_want))
        describe(d, req);
    else if (may_want)
        wait_for_next(d, req);
    else
        refuse(req, HTH_E_AGAIN, "no younger snapshot can be made now");
}

static void on_describe(void *arg, struct hth_rpc_request *req)
{
    struct hth_state_donor *d = arg;
    uint64_t schema, step_min;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_state_describe_open(payload, len, &schema, &step_min);

    if (err != HTH_OK)
        refuse(req, err, "not a request for a state");
    else if (schema != d->opts.schema)
        refuse(req, HTH_E_BAD_SHAPE, "this peer trains other tensors");
    else
        describe_fresh(d, req, step_min);
}

static void on_part(void *arg, struct hth_rpc_request *req)
{
    struct hth_state_donor *d = arg;
    struct snapshot *s = d->held;
    struct hth_hash root;
    uint32_t index;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_state_part_open(payload, len, &root, &index);

    if (err != HTH_OK) {
        refuse(req, err, "not a request for a part");
    } else if (s == NULL || memcmp(&s->desc.root, &root, sizeof(root)) != 0) {
        refuse(req, HTH_E_NOT_FOUND, "that snapshot is gone");
    } else if (index >= s->desc.parts) {
        refuse(req, HTH_E_RANGE, "the state has fewer parts");
    } else {
        const struct hth_tensor part = {.dtype = HTH_U8,
                                        .ndim = 1,
                                        .dim = {hth_state_part_len(&s->desc, index)},
                                        .blob = s->parts[index]};
        const struct hth_rpc_body body = {.tensors = &part, .tensor_count = 1};

        s->asked_us = s->part_us = hth_now_us(d->env);
        d->stats.parts++;
        d->stats.bytes += part.dim[0];
        hth_rpc_reply(req, &body);
    }
}

/* ---- making one ------------------------------------------------------------------------------ */

static void hash_run(struct hth_job *job)
{
    struct hashing *h = HTH_CONTAINER(job, struct hashing, job);
    struct hth_state_desc *d = &h->snapshot->desc;

    for (uint32_t i = h->first; i < h->end; i++) {
        struct hth_blob *part = h->snapshot->parts[i];

        memcpy(part->data, h->values->data + i * d->part_bytes, part->size);
        h->env->crypto->hash(part->data, part->size, &d->hashes[i]);
    }
}

static void hash_done(struct hth_job *job, enum hth_err err);

/* The parts after the present slice. */
static enum hth_err hash_next(struct hashing *h)
{
    const struct hth_state_desc *d = &h->snapshot->desc;
    uint32_t parts = (uint32_t)HTH_MAX(SLICE_BYTES / d->part_bytes, UINT64_C(1));
    double bytes;

    h->first = h->end;
    h->end = HTH_MIN(d->parts, h->first + parts);
    bytes = (double)(h->end - h->first) * (double)d->part_bytes;
    h->job = (struct hth_job){.lane = HTH_LANE_COMPUTE,
                              .run = hash_run,
                              .done = hash_done,
                              .bytes_moved = 3 * bytes,
                              .flops = 4 * bytes};
    return hth_job_submit(h->env, &h->job);
}

static void hash_end(struct hashing *h, enum hth_err err)
{
    struct hth_state_donor *d = h->donor;
    struct snapshot *s = h->snapshot;

    hth_blob_unref(h->values);
    hth_free(h);
    if (d == NULL || err != HTH_OK)
        snapshot_free(s);
    if (d == NULL)
        return;
    int64_t now = hth_now_us(d->env);
    d->hashing = NULL;
    d->next_us = now + HTH_MAX(PAUSE_US, PAUSE * (now - d->wanted_us));
    if (err == HTH_OK) {
        hth_state_desc_seal(&s->desc, d->env->crypto);
        s->made_us = s->asked_us = now;
        s->part_us = INT64_MIN / 2;
        let_go(d);
        d->held = s;
        d->stats.snapshots++;
        hth_timer_set(d->env, d->timer, LINGER_US);
    }
    answer_all(d, err == HTH_OK);
}

static void hash_done(struct hth_job *job, enum hth_err err)
{
    struct hashing *h = HTH_CONTAINER(job, struct hashing, job);

    if (err == HTH_OK && h->donor != NULL && h->end < h->snapshot->desc.parts) {
        err = hash_next(h);
        if (err == HTH_OK)
            return;
    }
    hash_end(h, err);
}

enum hth_err hth_state_donor_give(struct hth_state_donor *d, uint64_t step, const void *meta,
                                  size_t meta_len, struct hth_blob *values)
{
    struct hashing *h;
    enum hth_err err;

    if (!d->wanted || d->hashing != NULL)
        return HTH_E_AGAIN;
    d->wanted = false;
    h = d->hashing = hth_new(struct hashing);
    h->donor = d;
    h->env = d->env;
    h->values = hth_blob_ref(values);
    err = snapshot_new(d, step, meta, meta_len, values->size, &h->snapshot);
    if (err == HTH_OK)
        err = hash_next(h);
    if (err != HTH_OK)
        hash_end(h, err);
    return err;
}

void hth_state_donor_decline(struct hth_state_donor *d)
{
    if (!d->wanted)
        return;
    d->wanted = false;
    answer_all(d, false);
}

void hth_state_donor_stats(const struct hth_state_donor *d, struct hth_state_donor_stats *out)
{
    *out = d->stats;
    out->oldest = UINT64_MAX;
    if (d->held != NULL)
        out->oldest = d->held->desc.step;
    if (d->hashing != NULL)
        out->oldest = HTH_MIN(out->oldest, d->hashing->snapshot->desc.step);
}

/* ---- reaching out ---------------------------------------------------------------------------- */

/* The connection is what it was for. */
static void on_here_answered(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    (void)r;
}

static bool is_in_need(const struct hth_state_donor *d, const struct hth_roster_peer *p)
{
    struct hth_rpc_peer_info info;

    return p->note.schema == d->opts.schema && !p->doubted && p->note.addr.family != 0 &&
           (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) != 0 &&
           (hth_rpc_peer_info(d->rpc, &p->id, &info) != HTH_OK ||
            (!info.connected && info.waiting == 0 && info.retry_in_us == 0));
}

/* Anybody can say that it has no state, under any name and address. So a client dials one after the
 * other in random order, and of many clients few do at a time. */
void hth_state_donor_reach(struct hth_state_donor *d, const struct hth_roster *roster)
{
    const struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_HERE, .timeout_us = HERE_US};
    const struct hth_roster_peer *p, *to = NULL;
    uint32_t clients = 0, in_need = 0;
    int64_t now = hth_now_us(d->env);

    if (!d->opts.client || now < d->reach_us)
        return;
    d->reach_us = now + HTH_STATE_DIAL_US;
    for (uint32_t i = 0; (p = hth_roster_at(roster, i)) != NULL; i++) {
        clients += (p->note.flags & HTH_ROSTER_CLIENT) != 0;
        if (is_in_need(d, p) && hth_rng_below(&d->rng, ++in_need) == 0)
            to = p;
    }
    if (to == NULL || hth_rng_below(&d->rng, clients + 1) >= HTH_STATE_REACH)
        return;
    const struct hth_rpc_target target = {.peer = to->id, .addr = to->note.addr};
    (void)!hth_rpc_call(d->rpc, &target, &call, on_here_answered, NULL, NULL);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_state_donor_new(struct hth_env *env, struct hth_rpc *rpc,
                                 const struct hth_state_donor_opts *opts,
                                 struct hth_state_donor **out)
{
    struct hth_state_donor *d;

    *out = NULL;
    if (opts->want == NULL || opts->step == NULL)
        return HTH_E_CONFIG;
    d = hth_new(struct hth_state_donor);
    d->env = env;
    d->rpc = rpc;
    d->opts = *opts;
    d->rng = hth_rng_split(&env->rng, "donor", 0);
    d->timer = hth_timer_new(env, on_timer, d);
    hth_rpc_serve(rpc, HTH_STATE_METHOD_DESCRIBE, on_describe, d);
    hth_rpc_serve(rpc, HTH_STATE_METHOD_PART, on_part, d);
    *out = d;
    return HTH_OK;
}

void hth_state_donor_free(struct hth_state_donor *d)
{
    if (d == NULL)
        return;
    hth_rpc_serve(d->rpc, HTH_STATE_METHOD_DESCRIBE, NULL, NULL);
    hth_rpc_serve(d->rpc, HTH_STATE_METHOD_PART, NULL, NULL);
    answer_all(d, false);
    if (d->hashing != NULL)
        d->hashing->donor = NULL;
    hth_timer_free(d->env, d->timer);
    let_go(d);
    hth_free(d);
}
