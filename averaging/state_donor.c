/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The donor's side: at most two snapshots, and one more being hashed.
 *
 *   DESCRIBE -> fresh: reply
 *            -> else the asker waits, `want` -> give -> hash job -> newest, note, reply to all
 */
#include <stdio.h>
#include <string.h>

#include "averaging/roster.h"
#include "averaging/state.h"
#include "averaging/state_msg.h"
#include "core/mem.h"
#include "dht/board.h"
#include "dht/uid.h"
#include "rpc/rpc.h"

#define BUSY_US  (2 * HTH_US_PER_S) /* the elder snapshot is in use: no third one now */
#define RETRY_US (500 * HTH_US_PER_MS)
#define LOOK_US  (1 * HTH_US_PER_S)
#define HERE_US  (5 * HTH_US_PER_S)
#define REACH_US (100 * HTH_US_PER_MS) /* between two looks at the whole roster */

struct snapshot {
    struct hth_state_desc desc;
    struct hth_blob *values;
    int64_t made_us, asked_us;
};

/* Outlives the donor when it is freed meanwhile. */
struct hashing {
    struct hth_job job;
    struct hth_state_donor *donor; /* NULL: freed */
    struct hth_env *env;
    struct snapshot *snapshot;
};

struct hth_state_donor {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_dht *dht;
    struct hth_state_donor_opts opts;
    struct hth_topic topic;
    struct hth_note *note;
    bool announced;
    struct snapshot *newest, *elder;
    struct hashing *hashing;
    bool wanted; /* `want` was called and nothing came yet */
    struct hth_rpc_request *waiting[HTH_STATE_WAITERS_MAX];
    uint32_t waiting_count;
    struct hth_timer *timer;
    int64_t reached_us;
    struct hth_state_donor_stats stats;
};

static void snapshot_free(struct snapshot *s)
{
    if (s == NULL)
        return;
    hth_state_desc_clear(&s->desc);
    hth_blob_unref(s->values);
    hth_free(s);
}

/* ---- announcing ------------------------------------------------------------------------------ */

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    struct hth_state_donor *d = arg;
    const struct hth_state_desc *desc = &d->newest->desc;
    const struct hth_state_ad ad = {.addr = d->opts.addr,
                                    .schema = desc->schema,
                                    .step = desc->step,
                                    .bytes = desc->bytes,
                                    .root = desc->root};

    return hth_state_ad_write(&ad, w);
}

static void announce(struct hth_state_donor *d)
{
    const struct hth_note_opts opts = {.life_us = d->opts.life_us};
    enum hth_err err = HTH_OK;

    if (d->opts.addr.family == 0)
        return;
    if (d->newest == NULL) {
        if (d->announced)
            hth_note_goodbye(d->note, NULL, NULL);
        d->announced = false;
        return;
    }
    if (d->note == NULL)
        err = hth_note_new(d->env, d->dht, &d->topic, &opts, fill, d, &d->note);
    else if (!d->announced)
        hth_note_resume(d->note);
    else
        hth_note_update(d->note, 0);
    d->announced = err == HTH_OK;
    if (err != HTH_OK)
        HTH_LOG(d->env, HTH_WARN, HTH_SUB_AVG, "a state can't be announced: %s", hth_err_text(err));
}

/* What nobody asks for any more is let go. */
static void on_timer(void *arg)
{
    struct hth_state_donor *d = arg;
    int64_t now = hth_now_us(d->env);

    if (d->elder != NULL && now - d->elder->asked_us > d->opts.linger_us) {
        snapshot_free(d->elder);
        d->elder = NULL;
    }
    if (d->newest != NULL && now - d->newest->asked_us > d->opts.linger_us) {
        snapshot_free(d->newest);
        d->newest = d->elder;
        d->elder = NULL;
        announce(d);
    }
    if (d->newest != NULL)
        hth_timer_set(d->env, d->timer, LOOK_US);
}

/* ---- answering ------------------------------------------------------------------------------- */

static void describe(struct hth_state_donor *d, struct hth_rpc_request *req, struct snapshot *s)
{
    struct hth_rpc_body body = {0};
    uint8_t *payload;

    s->asked_us = hth_now_us(d->env);
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

static void answer_all(struct hth_state_donor *d, struct snapshot *s)
{
    for (uint32_t i = 0; i < d->waiting_count; i++) {
        if (s != NULL)
            describe(d, d->waiting[i], s);
        else
            refuse(d, d->waiting[i], HTH_E_AGAIN, "no snapshot can be made now");
    }
    d->waiting_count = 0;
}

static struct snapshot *find(struct hth_state_donor *d, const struct hth_hash *root)
{
    struct snapshot *both[2] = {d->newest, d->elder};

    for (int i = 0; i < 2; i++)
        if (both[i] != NULL && memcmp(&both[i]->desc.root, root, sizeof(*root)) == 0)
            return both[i];
    return NULL;
}

/* The newest will do: it is young, or a younger one would take the elder from who fetches it. */
static bool will_do(const struct hth_state_donor *d, uint64_t step_min)
{
    int64_t now = hth_now_us(d->env);

    if (d->newest == NULL || d->newest->desc.step < step_min)
        return false;
    return now - d->newest->made_us <= d->opts.fresh_us ||
           (d->elder != NULL && now - d->elder->asked_us < BUSY_US);
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
        struct snapshot *s = find(d, &ask.root);

        if (s != NULL)
            describe(d, req, s);
        else
            refuse(d, req, HTH_E_NOT_FOUND, "that snapshot is gone");
    } else if (will_do(d, ask.step_min)) {
        describe(d, req, d->newest);
    } else if (d->waiting_count == HTH_STATE_WAITERS_MAX) {
        refuse(d, req, HTH_E_BUSY, "many wait for a snapshot");
    } else {
        d->waiting[d->waiting_count++] = req;
        if (!d->wanted && d->hashing == NULL) {
            d->wanted = true;
            d->opts.want(d->opts.arg);
        }
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
    struct snapshot *s = err == HTH_OK ? find(d, &root) : NULL;

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
                                        .blob = s->values,
                                        .offset = index * s->desc.part_bytes};
        const struct hth_rpc_body body = {.tensors = &part, .tensor_count = 1};

        s->asked_us = hth_now_us(d->env);
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

    for (uint32_t i = 0; i < d->parts; i++)
        h->env->crypto->hash(h->snapshot->values->data + i * d->part_bytes,
                             hth_state_part_len(d, i), &d->hashes[i]);
}

static void hash_done(struct hth_job *job, enum hth_err err)
{
    struct hashing *h = HTH_CONTAINER(job, struct hashing, job);
    struct hth_state_donor *d = h->donor;
    struct snapshot *s = h->snapshot;

    hth_free(h);
    if (d == NULL || err != HTH_OK) {
        snapshot_free(s);
        if (d != NULL) {
            d->hashing = NULL;
            answer_all(d, NULL);
        }
        return;
    }
    d->hashing = NULL;
    hth_state_desc_seal(&s->desc, d->env->crypto);
    s->made_us = s->asked_us = hth_now_us(d->env);
    snapshot_free(d->elder);
    d->elder = d->newest;
    d->newest = s;
    d->stats.snapshots++;
    d->stats.step = s->desc.step;
    announce(d);
    answer_all(d, s);
    hth_timer_set(d->env, d->timer, LOOK_US);
}

enum hth_err hth_state_donor_give(struct hth_state_donor *d, uint64_t step, const void *meta,
                                  size_t meta_len, struct hth_blob *values)
{
    struct snapshot *s;
    struct hashing *h;
    enum hth_err err;

    if (!d->wanted || d->hashing != NULL)
        return HTH_E_AGAIN;
    d->wanted = false;
    s = hth_new(struct snapshot);
    err = hth_state_desc_init(&s->desc, d->opts.schema, step, meta, meta_len, values->size);
    if (err != HTH_OK) {
        snapshot_free(s);
        answer_all(d, NULL);
        return err;
    }
    s->values = hth_blob_ref(values);
    h = hth_new(struct hashing);
    h->donor = d;
    h->env = d->env;
    h->snapshot = s;
    h->job.lane = HTH_LANE_COMPUTE;
    h->job.run = hash_run;
    h->job.done = hash_done;
    h->job.bytes_moved = (double)values->size;
    h->job.flops = 4.0 * (double)values->size;
    err = hth_job_submit(d->env, &h->job);
    if (err != HTH_OK) {
        hth_free(h);
        snapshot_free(s);
        answer_all(d, NULL);
        return err;
    }
    d->hashing = h;
    return HTH_OK;
}

void hth_state_donor_decline(struct hth_state_donor *d)
{
    if (!d->wanted)
        return;
    d->wanted = false;
    answer_all(d, NULL);
}

void hth_state_donor_stats(const struct hth_state_donor *d, struct hth_state_donor_stats *out)
{
    *out = d->stats;
    out->held = (d->newest != NULL ? 1u : 0u) + (d->elder != NULL ? 1u : 0u);
}

/* ---- reaching out ---------------------------------------------------------------------------- */

static bool has_state(const struct hth_state_donor *d, const struct hth_roster_peer *p)
{
    return p->note.schema == d->opts.schema && !p->doubted &&
           (p->note.flags & (HTH_ROSTER_BOOTSTRAPPING | HTH_ROSTER_HELPER)) == 0;
}

static uint64_t nearness(const struct hth_peer_id *a, const struct hth_peer_id *b)
{
    return hth_hash64(a->b, sizeof(a->b), hth_hash64(b->b, sizeof(b->b), 0));
}

static bool others_can_be_dialled(const struct hth_state_donor *d, const struct hth_roster *roster)
{
    const struct hth_roster_peer *p;

    for (uint32_t i = 0; (p = hth_roster_at(roster, i)) != NULL; i++)
        if (has_state(d, p) && p->note.addr.family != 0)
            return true;
    return false;
}

/* Few of the clients that have a state are nearer to the newcomer. */
static bool is_mine(const struct hth_state_donor *d, const struct hth_roster *roster,
                    const struct hth_peer_id *newcomer)
{
    uint64_t ours = nearness(&d->env->self, newcomer);
    const struct hth_roster_peer *p;
    uint32_t nearer = 0;

    for (uint32_t i = 0; nearer < HTH_STATE_REACH && (p = hth_roster_at(roster, i)) != NULL; i++)
        nearer += has_state(d, p) && nearness(&p->id, newcomer) < ours;
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

void hth_state_donor_reach(struct hth_state_donor *d, const struct hth_roster *roster)
{
    const struct hth_roster_peer *p;
    int64_t now = hth_now_us(d->env);
    uint32_t dials = 0;

    if (d->opts.addr.family != 0 || now - d->reached_us < REACH_US ||
        others_can_be_dialled(d, roster))
        return;
    d->reached_us = now;
    for (uint32_t i = 0; dials < HTH_STATE_DIALS_MAX && (p = hth_roster_at(roster, i)) != NULL; i++)
        if (p->note.schema == d->opts.schema && !p->doubted && p->note.addr.family != 0 &&
            (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) != 0 && is_mine(d, roster, &p->id))
            dials += say_here(d, p);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum hth_err hth_state_donor_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                                 const struct hth_state_donor_opts *opts,
                                 struct hth_state_donor **out)
{
    struct hth_state_donor *d;

    *out = NULL;
    if (opts->network == NULL || opts->want == NULL ||
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
    answer_all(d, NULL);
    if (d->hashing != NULL)
        d->hashing->donor = NULL;
    hth_note_free(d->note);
    hth_timer_free(d->env, d->timer);
    snapshot_free(d->newest);
    snapshot_free(d->elder);
    hth_free(d);
}
