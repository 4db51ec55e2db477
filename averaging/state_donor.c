/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * The donor's side: at most two snapshots (state_keep.h), and one more being made.
 *
 *   DESCRIBE -> of a step that the owner has not reached: refused
 *            -> the newest is young enough: reply
 *            -> one may be made: the asker waits, `want` -> give -> hash jobs -> newest, note,
 *               reply to all
 *            -> else: the newest if its step will do, or refused
 *
 * What a stranger can cause: a snapshot each PAUSE_US, or five times what the last one took, as
 * long as one of two is not being fetched.
 */
/* clang-format on */
#include <stdio.h>
#include <string.h>

#include "averaging/roster.h"
#include "averaging/state.h"
#include "averaging/state_keep.h"
#include "averaging/state_msg.h"
#include "core/mem.h"
#include "dht/board.h"
#include "dht/uid.h"
#include "rpc/rpc.h"

#define PAUSE_US (250 * HTH_US_PER_MS) /* between two snapshots, at least, and ... */
#define PAUSE    4                     /* ... times what the last one took */
#define RETRY_US (500 * HTH_US_PER_MS)
#define LOOK_US  (1 * HTH_US_PER_S)
#define HERE_US  (5 * HTH_US_PER_S)
#define REACH_US (100 * HTH_US_PER_MS) /* between two looks at the whole roster */
#define TURN_US  (30 * HTH_US_PER_S)
/* Of a snapshot, by one job: a few milliseconds. The averages of this peer's groups wait for the
 * same workers, and all of a group for them. */
#define SLICE_BYTES (4u << 20)

/* Outlives the donor when it is freed meanwhile. */
struct hashing {
    struct hth_job job;
    struct hth_state_donor *donor; /* NULL: freed */
    struct hth_env *env;
    struct hth_snapshot *snapshot;
    struct hth_blob *values; /* the owner's */
    uint32_t first, end;     /* parts of the present slice */
};

struct hth_state_donor {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_dht *dht;
    struct hth_state_donor_opts opts;
    struct hth_topic topic;
    struct hth_publisher *note;
    bool announced;
    struct hth_keep keep;
    struct hashing *hashing;
    bool wanted; /* `want` was called and nothing came yet */
    int64_t wanted_us, next_us;
    struct hth_rpc_request *waiting[HTH_STATE_WAITERS_MAX]; /* of each peer one */
    uint32_t waiting_count;
    struct hth_timer *timer;
    int64_t reached_us, dials_paid_us; /* each dial costs HTH_STATE_DIAL_US */
    struct hth_peer_id dialled;        /* the last one */
    struct hth_state_donor_stats stats;
};

/* ---- announcing ------------------------------------------------------------------------------ */

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    struct hth_state_donor *d = arg;
    const struct hth_state_desc *desc = &d->keep.newest->desc;
    const struct hth_state_ad ad = {.addr = d->opts.addr,
                                    .schema = desc->schema,
                                    .step = desc->step,
                                    .bytes = desc->bytes,
                                    .root = desc->root};

    return hth_state_ad_write(&ad, w);
}

static void announce(struct hth_state_donor *d)
{
    const struct hth_publisher_opts opts = {.life_us = d->opts.life_us};
    enum hth_err err = HTH_OK;

    if (d->opts.addr.family == 0)
        return;
    if (d->keep.newest == NULL) {
        if (d->announced)
            hth_publisher_goodbye(d->note, NULL, NULL);
        d->announced = false;
        return;
    }
    if (d->note == NULL)
        err = hth_publisher_new(d->env, d->dht, &d->topic, &opts, fill, d, &d->note);
    else if (!d->announced)
        hth_publisher_resume(d->note);
    else
        hth_publisher_update(d->note, 0);
    d->announced = err == HTH_OK;
    if (err != HTH_OK)
        HTH_LOG(d->env, HTH_WARN, HTH_SUB_AVG, "a state can't be announced: %s", hth_err_text(err));
}

/* What nobody asks for any more is let go. */
static void on_timer(void *arg)
{
    struct hth_state_donor *d = arg;
    const struct hth_snapshot *before = d->keep.newest;

    hth_keep_tidy(&d->keep, d->opts.linger_us, hth_now_us(d->env));
    if (d->keep.newest != before)
        announce(d);
    if (d->keep.newest != NULL)
        hth_timer_set(d->env, d->timer, LOOK_US);
}

/* ---- answering ------------------------------------------------------------------------------- */

static void describe(struct hth_state_donor *d, struct hth_rpc_request *req, struct hth_snapshot *s)
{
    struct hth_rpc_body body = {0};
    uint8_t *payload;

    hth_keep_asked(&d->keep, s, hth_rpc_peer(req), hth_now_us(d->env));
    hth_state_desc_pack(&s->desc, &payload, &body.payload_len);
    body.payload = payload;
    d->stats.described++;
    hth_rpc_reply(req, &body);
    hth_free(payload);
}

static void refuse(struct hth_state_donor *d, struct hth_rpc_request *req, enum hth_err err,
                   const char *text)
{
    d->stats.refused++;
    hth_rpc_refuse(req, err, hth_err_class(err) == HTH_CLASS_RETRY ? RETRY_US : 0, text);
}

/* `s` NULL: `err` is why. */
static void answer_all(struct hth_state_donor *d, struct hth_snapshot *s, enum hth_err err)
{
    for (uint32_t i = 0; i < d->waiting_count; i++) {
        if (s != NULL)
            describe(d, d->waiting[i], s);
        else
            refuse(d, d->waiting[i], err, "no snapshot can be made now");
    }
    d->waiting_count = 0;
}

/* One may be made now: the last is some time ago, and there is room. */
static bool may_want(struct hth_state_donor *d, bool must)
{
    const struct hth_snapshot *before = d->keep.newest;
    int64_t now = hth_now_us(d->env);
    bool may;

    if (d->wanted || d->hashing != NULL)
        return true;
    may = now >= d->next_us && hth_keep_make_room(&d->keep, must, now);
    if (d->keep.newest != before)
        announce(d);
    return may;
}

/* In the place of what the same peer waited for before. */
static void wait_for_next(struct hth_state_donor *d, struct hth_rpc_request *req)
{
    uint32_t at = 0;

    while (at < d->waiting_count &&
           !hth_peer_id_eq(hth_rpc_peer(d->waiting[at]), hth_rpc_peer(req)))
        at++;
    if (at == HTH_STATE_WAITERS_MAX) {
        refuse(d, req, HTH_E_BUSY, "many wait for a snapshot");
        return;
    }
    if (at < d->waiting_count)
        refuse(d, d->waiting[at], HTH_E_DUPLICATE, "asked again");
    else
        d->waiting_count++;
    d->waiting[at] = req;
    if (d->wanted || d->hashing != NULL)
        return;
    d->wanted = true;
    d->wanted_us = hth_now_us(d->env);
    d->opts.want(d->opts.arg);
}

static void describe_newest(struct hth_state_donor *d, struct hth_rpc_request *req,
                            uint64_t step_min)
{
    struct hth_snapshot *s = d->keep.newest;
    bool will_do = s != NULL && s->desc.step >= step_min;

    if (step_min > d->opts.step(d->opts.arg))
        refuse(d, req, HTH_E_STALE, "this peer is not that far");
    else if (will_do && hth_now_us(d->env) - s->made_us <= d->opts.fresh_us)
        describe(d, req, s);
    else if (may_want(d, s != NULL && !will_do))
        wait_for_next(d, req);
    else if (will_do)
        describe(d, req, s);
    else
        refuse(d, req, HTH_E_AGAIN, "no younger snapshot can be made now");
}

static void on_describe(void *arg, struct hth_rpc_request *req)
{
    struct hth_state_donor *d = arg;
    struct hth_state_describe ask;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_state_describe_open(payload, len, &ask);

    if (err != HTH_OK) {
        refuse(d, req, err, "not a request for a state");
    } else if (ask.schema != d->opts.schema) {
        refuse(d, req, HTH_E_BAD_SHAPE, "this peer trains other tensors");
    } else if (ask.has_root) {
        struct hth_snapshot *s = hth_keep_find(&d->keep, &ask.root);

        if (s != NULL)
            describe(d, req, s);
        else
            refuse(d, req, HTH_E_NOT_FOUND, "that snapshot is gone");
    } else {
        describe_newest(d, req, ask.step_min);
    }
}

static void on_part(void *arg, struct hth_rpc_request *req)
{
    struct hth_state_donor *d = arg;
    struct hth_hash root;
    uint32_t index;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_state_part_open(payload, len, &root, &index);
    struct hth_snapshot *s = err == HTH_OK ? hth_keep_find(&d->keep, &root) : NULL;

    if (err != HTH_OK) {
        refuse(d, req, err, "not a request for a part");
    } else if (s == NULL) {
        refuse(d, req, HTH_E_NOT_FOUND, "that snapshot is gone");
    } else if (index >= s->desc.parts) {
        refuse(d, req, HTH_E_RANGE, "the state has fewer parts");
    } else {
        const struct hth_tensor part = {.dtype = HTH_U8,
                                        .ndim = 1,
                                        .dim = {hth_state_part_len(&s->desc, index)},
                                        .blob = s->parts[index]};
        const struct hth_rpc_body body = {.tensors = &part, .tensor_count = 1};

        hth_keep_asked(&d->keep, s, hth_rpc_peer(req), hth_now_us(d->env));
        d->stats.parts++;
        d->stats.bytes += part.dim[0];
        hth_rpc_reply(req, &body);
    }
}

/* ---- snapshots ------------------------------------------------------------------------------- */

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

static void take_snapshot(struct hth_state_donor *d, struct hth_snapshot *s, enum hth_err err)
{
    int64_t now = hth_now_us(d->env);

    d->next_us = now + HTH_MAX(PAUSE_US, PAUSE * (now - d->wanted_us));
    if (err != HTH_OK) {
        hth_snapshot_free(s);
        answer_all(d, NULL, HTH_E_AGAIN);
        return;
    }
    hth_state_desc_seal(&s->desc, d->env->crypto);
    hth_keep_take(&d->keep, s, now);
    d->stats.snapshots++;
    d->stats.step = s->desc.step;
    announce(d);
    answer_all(d, s, HTH_OK);
    hth_timer_set(d->env, d->timer, LOOK_US);
}

static void hash_done(struct hth_job *job, enum hth_err err)
{
    struct hashing *h = HTH_CONTAINER(job, struct hashing, job);
    struct hth_state_donor *d = h->donor;
    struct hth_snapshot *s = h->snapshot;

    if (err == HTH_OK && d != NULL && h->end < s->desc.parts) {
        err = hash_next(h);
        if (err == HTH_OK)
            return;
    }
    hth_blob_unref(h->values);
    hth_free(h);
    if (d == NULL) {
        hth_snapshot_free(s);
        return;
    }
    d->hashing = NULL;
    take_snapshot(d, s, err);
}

static enum hth_err submit_hash(struct hth_state_donor *d, struct hth_snapshot *s,
                                struct hth_blob *values)
{
    struct hashing *h = hth_new(struct hashing);
    enum hth_err err;

    h->donor = d;
    h->env = d->env;
    h->snapshot = s;
    h->values = hth_blob_ref(values);
    err = hash_next(h);
    if (err == HTH_OK) {
        d->hashing = h;
        return HTH_OK;
    }
    hth_blob_unref(h->values);
    hth_free(h);
    return err;
}

enum hth_err hth_state_donor_give(struct hth_state_donor *d, uint64_t step, const void *meta,
                                  size_t meta_len, struct hth_blob *values)
{
    struct hth_snapshot *s;
    enum hth_err err;

    if (!d->wanted || d->hashing != NULL)
        return HTH_E_AGAIN;
    d->wanted = false;
    err = hth_snapshot_new(d->env, d->opts.schema, step, meta, meta_len, values->size, &s);
    if (err == HTH_OK)
        err = submit_hash(d, s, values);
    if (err != HTH_OK) {
        hth_snapshot_free(s);
        answer_all(d, NULL, HTH_E_AGAIN);
    }
    return err;
}

void hth_state_donor_decline(struct hth_state_donor *d, enum hth_err err)
{
    if (!d->wanted)
        return;
    d->wanted = false;
    answer_all(d, NULL, err);
}

void hth_state_donor_stats(const struct hth_state_donor *d, struct hth_state_donor_stats *out)
{
    const struct hth_snapshot *held[] = {d->keep.newest, d->keep.elder,
                                         d->hashing != NULL ? d->hashing->snapshot : NULL};

    *out = d->stats;
    out->held = (held[0] != NULL ? 1u : 0u) + (held[1] != NULL ? 1u : 0u);
    out->oldest = UINT64_MAX;
    for (size_t i = 0; i < HTH_ARRAY_LEN(held); i++)
        if (held[i] != NULL)
            out->oldest = HTH_MIN(out->oldest, held[i]->desc.step);
}

/* ---- reaching out ---------------------------------------------------------------------------- */

static bool has_state(const struct hth_state_donor *d, const struct hth_roster_peer *p)
{
    return p->note.schema == d->opts.schema && !p->doubted &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0;
}

static uint64_t nearness(const struct hth_peer_id *a, const struct hth_peer_id *b, uint64_t turn)
{
    return hth_hash64(a->b, sizeof(a->b), hth_hash64(b->b, sizeof(b->b), turn));
}

/* In each turn other few of the clients that have a state are nearest to the newcomer. Trainers
 * that say they can be dialled do not count, as nobody knows whether it is true; and who made
 * itself near, and does not dial, keeps the others away for one turn. */
static bool is_mine(const struct hth_state_donor *d, const struct hth_roster *roster,
                    const struct hth_peer_id *newcomer)
{
    uint64_t turn = (uint64_t)(hth_wall_us(d->env) / TURN_US);
    uint64_t ours = nearness(&d->env->self, newcomer, turn);
    const struct hth_roster_peer *p;
    uint32_t nearer = 0;

    for (uint32_t i = 0; nearer < HTH_STATE_REACH && (p = hth_roster_at(roster, i)) != NULL; i++)
        nearer +=
            has_state(d, p) && p->note.addr.family == 0 && nearness(&p->id, newcomer, turn) < ours;
    return nearer < HTH_STATE_REACH;
}

/* The connection is what it was for. */
static void on_here_answered(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    (void)r;
}

static bool say_here(struct hth_state_donor *d, const struct hth_roster_peer *newcomer)
{
    const struct hth_rpc_target target = {.peer = newcomer->id, .addr = newcomer->note.addr};
    const struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_HERE, .timeout_us = HERE_US};
    struct hth_rpc_peer_info info;

    if (hth_rpc_peer_info(d->rpc, &target.peer, &info) == HTH_OK &&
        (info.connected || info.waiting > 0 || info.retry_in_us > 0))
        return false;
    return hth_rpc_call(d->rpc, &target, &call, on_here_answered, NULL, NULL) == HTH_OK;
}

static bool is_in_need(const struct hth_state_donor *d, const struct hth_roster_peer *p)
{
    return p->note.schema == d->opts.schema && !p->doubted && p->note.addr.family != 0 &&
           (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) != 0;
}

/* Anybody can say that it has no state, under any name and address: what a client dials for that is
 * bounded over time, and all that say so have their turn. */
static bool may_dial(const struct hth_state_donor *d, int64_t now)
{
    return d->dials_paid_us - now <= (HTH_STATE_DIALS_MAX - 1) * HTH_STATE_DIAL_US;
}

void hth_state_donor_reach(struct hth_state_donor *d, const struct hth_roster *roster)
{
    const struct hth_roster_peer *p;
    int64_t now = hth_now_us(d->env);
    uint32_t count = 0, first = 0;

    if (d->opts.addr.family != 0 || now - d->reached_us < REACH_US)
        return;
    d->reached_us = now;
    for (; (p = hth_roster_at(roster, count)) != NULL; count++)
        first += hth_peer_id_cmp(&p->id, &d->dialled) <= 0;
    for (uint32_t i = 0; i < count && may_dial(d, now); i++) {
        p = hth_roster_at(roster, (first + i) % count);
        if (!is_in_need(d, p) || !is_mine(d, roster, &p->id) || !say_here(d, p))
            continue;
        d->dialled = p->id;
        d->dials_paid_us = HTH_MAX(d->dials_paid_us, now) + HTH_STATE_DIAL_US;
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_state_donor_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                                 const struct hth_state_donor_opts *opts,
                                 struct hth_state_donor **out)
{
    struct hth_state_donor *d;

    *out = NULL;
    if (opts->network == NULL || opts->want == NULL || opts->step == NULL ||
        hth_name_check(opts->network, strnlen(opts->network, 256)) != HTH_OK ||
        opts->life_us < HTH_RECORD_LIFE_MIN_US || opts->life_us > HTH_RECORD_LIFE_MAX_US)
        return HTH_E_CONFIG;
    d = hth_new(struct hth_state_donor);
    d->env = env;
    d->rpc = rpc;
    d->dht = dht;
    d->opts = *opts;
    hth_topic_init(&d->topic, env->crypto, opts->network, HTH_RECORD_STATE, "state", 5);
    d->opts.network = NULL;
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
    answer_all(d, NULL, HTH_E_DRAINING);
    if (d->hashing != NULL)
        d->hashing->donor = NULL;
    hth_publisher_free(d->note);
    hth_timer_free(d->env, d->timer);
    hth_keep_clear(&d->keep);
    hth_free(d);
}
