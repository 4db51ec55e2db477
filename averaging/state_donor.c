/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The donor's side: one snapshot, and one more while it is made; and the means of the last steps.
 *
 *   DESCRIBE -> of a mean: reply if it is kept
 *            -> of a step that the owner has not reached: refused
 *            -> the snapshot is young enough, or still fetched by others: reply
 *            -> else: refused, come back; if one may be made: `want` -> give -> hash jobs
 *   PART     -> of the snapshot, while the owner is in a round: refused, come back
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
#include "core/budget.h"
#include "core/mem.h"
#include "rpc/rpc.h"

/* A snapshot is handed out again for so long, and a mean kept; or for two steps, as a line may
 * carry one a step. */
#define KEEP_US   (3 * HTH_US_PER_S)
#define REST_US   (2 * HTH_US_PER_S)  /* between two parts to one fetcher, beside the time of one */
#define HOLD_US   (5 * HTH_US_PER_S)  /* of a snapshot, beside the time of all its parts */
#define LINGER_US (20 * HTH_US_PER_S) /* one that nobody asked for so long is let go */
#define PAUSE_US  (250 * HTH_US_PER_MS) /* between two snapshots, at least, and ... */
#define PAUSE     4                     /* ... times what the last one took */
#define SHORT_US  (30 * HTH_US_PER_MS)  /* a shorter round is not yielded to */
#define YIELD_US  (10 * HTH_US_PER_S)   /* to a round, at most: who fetches is patient for longer */
#define SLOW_RATE 1e6                   /* bytes a second */
#define FAST_RATE 20e6
/* Of a snapshot, by one job: a few milliseconds. The averages of this peer's groups wait for the
 * same workers, and all of a group for them. */
#define SLICE_BYTES (4u << 20)

/* A snapshot, or a mean that is kept. A part is a blob by itself: who asks for parts and does not
 * read them holds these parts, which rpc counts against it, and not the rest. */
struct handed {
    struct hth_state_desc desc;
    struct hth_blob **parts; /* desc.parts of them; NULL: to be copied from `values` */
    struct hth_blob *values; /* of a mean */
    bool drawn;              /* its bytes were taken from the budget */
    int64_t made_us;
    int64_t asked_us; /* the last time, and for a part of it */
    int64_t part_us;
};

/* Outlives the donor when it is freed meanwhile. */
struct hashing {
    struct hth_job job;
    struct hth_state_donor *donor; /* NULL: freed */
    struct hth_env *env;
    struct handed *snapshot;
    struct hth_blob *values; /* the owner's */
    uint32_t first, end;     /* parts of the present slice */
};

struct hth_state_donor {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_state_donor_opts opts;
    struct handed *held; /* NULL: none */
    struct hashing *hashing;
    bool wanted; /* `want` was called and nothing came yet */
    int64_t wanted_us, next_us;
    struct hth_timer *timer;
    struct handed *mean[HTH_MEANS_MAX]; /* ascending by step */
    uint32_t means;
    int64_t kept_us, step_us; /* when the last mean came, and how long after the one before */
    int64_t reach_us;         /* when it may dial the next newcomer */
    struct hth_rng rng;
    int64_t round_us; /* when its owner's began */
    struct hth_state_donor_stats stats;
};

/* ---- memory ---------------------------------------------------------------------------------- */

static void handed_free(struct handed *h)
{
    if (h == NULL)
        return;
    for (uint32_t i = 0; h->parts != NULL && i < h->desc.parts; i++)
        hth_blob_unref(h->parts[i]);
    hth_free(h->parts);
    hth_blob_unref(h->values);
    hth_state_desc_clear(&h->desc);
    hth_free(h);
}

static enum hth_err add_part(struct hth_env *env, struct handed *h, uint32_t index)
{
    struct hth_blob **part = &h->parts[index];

    if (*part != NULL)
        return HTH_OK;
    HTH_TRY(hth_env_blob_new(env, hth_state_part_len(&h->desc, index), NULL, part));
    if (h->values != NULL && h->values->data != NULL)
        memcpy((*part)->data, h->values->data + index * h->desc.part_bytes, (*part)->size);
    return HTH_OK;
}

static enum hth_err snapshot_new(struct hth_state_donor *d, uint64_t step, const void *meta,
                                 size_t meta_len, uint64_t bytes, struct handed **out)
{
    struct handed *s = hth_new(struct handed);
    enum hth_err err =
        hth_state_desc_init(&s->desc, d->opts.schema, step, meta, meta_len, bytes, NULL);

    *out = s;
    if (err == HTH_OK)
        s->parts = hth_new_array(struct hth_blob *, s->desc.parts);
    for (uint32_t i = 0; err == HTH_OK && i < s->desc.parts; i++)
        err = add_part(d->env, s, i);
    return err;
}

static void let_go(struct hth_state_donor *d)
{
    handed_free(d->held);
    d->held = NULL;
}

static int64_t line_us(uint64_t bytes, double rate)
{
    return (int64_t)(1e6 * (double)bytes / rate);
}

/* Somebody fetches it, and has not for longer than a line of that rate takes. */
static bool is_fetched(const struct handed *s, double rate, int64_t now)
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

/* ---- means ----------------------------------------------------------------------------------- */

static void forget_mean(struct hth_state_donor *d, uint32_t at)
{
    struct handed *gone = d->mean[at];

    memmove(&d->mean[at], &d->mean[at + 1], (--d->means - at) * sizeof(gone));
    if (gone->drawn)
        hth_budget_give(d->opts.budget, gone->values->size);
    handed_free(gone);
}

/* The last mean is followed by another, and has to draw on the budget from now on. The oldest make
 * room for it. */
static void draw_last(struct hth_state_donor *d)
{
    while (d->means > 0 && d->opts.budget != NULL && !d->mean[d->means - 1]->drawn &&
           !hth_blob_is_drawn(d->mean[d->means - 1]->values)) {
        struct handed *last = d->mean[d->means - 1];

        last->drawn = hth_budget_take(d->opts.budget, last->values->size) == HTH_OK;
        if (!last->drawn)
            forget_mean(d, 0);
    }
}

/* Of the snapshot that can be fetched and one that is being made. */
static uint64_t oldest_snapshot(const struct hth_state_donor *d)
{
    uint64_t step = UINT64_MAX;

    if (d->held != NULL)
        step = d->held->desc.step;
    if (d->hashing != NULL)
        step = HTH_MIN(step, d->hashing->snapshot->desc.step);
    return step;
}

void hth_state_donor_keep(struct hth_state_donor *d, const struct hth_hash *head, uint64_t step,
                          struct hth_blob *mean, struct hth_blob *hashes)
{
    struct handed *h = hth_new(struct handed);
    int64_t now = hth_now_us(d->env), hold_us;
    enum hth_err err;

    while (d->means > 0 && d->mean[d->means - 1]->desc.step >= step)
        forget_mean(d, d->means - 1);
    while (d->means > 0 && (d->mean[d->means - 1]->desc.step + 1 != step || /* they lead not here */
                            d->means == HTH_MEANS_MAX))
        forget_mean(d, 0);
    draw_last(d);
    d->step_us = d->kept_us != 0 ? now - d->kept_us : 0;
    d->kept_us = now;
    hold_us = HTH_MAX(KEEP_US, 2 * d->step_us);
    err = hth_state_desc_init(&h->desc, d->opts.schema, step, NULL, 0, mean->size, hashes);
    HTH_ASSERT(err == HTH_OK);
    h->desc.name = *head;
    h->parts = hth_new_array(struct hth_blob *, h->desc.parts);
    h->values = hth_blob_ref(mean);
    h->asked_us = now;
    d->mean[d->means++] = h;
    while (d->means > 1 && d->mean[0]->desc.step <= oldest_snapshot(d) &&
           d->mean[0]->asked_us + hold_us <= now)
        forget_mean(d, 0);
}

/* ---- answering ------------------------------------------------------------------------------- */

static void describe(struct hth_state_donor *d, struct handed *h, struct hth_rpc_request *req)
{
    struct hth_rpc_body body = {0};
    uint8_t *payload;

    h->asked_us = hth_now_us(d->env);
    hth_state_desc_pack(&h->desc, &payload, &body.payload_len);
    body.payload = payload;
    hth_rpc_reply(req, &body);
    hth_free(payload);
}

/* The owner is asked for a snapshot that is younger or farther than the one that is held. */
static void want(struct hth_state_donor *d)
{
    if (d->wanted || d->hashing != NULL)
        return;
    d->wanted = true;
    d->wanted_us = hth_now_us(d->env);
    d->opts.want(d->opts.arg);
}

/* The kept means begin right after this snapshot, or none is kept. */
static bool leads_on(const struct hth_state_donor *d, const struct handed *s)
{
    return d->means == 0 || d->mean[0]->desc.step <= s->desc.step + 1;
}

static void describe_fresh(struct hth_state_donor *d, struct hth_rpc_request *req,
                           uint64_t step_min)
{
    struct handed *s = d->held;
    int64_t now = hth_now_us(d->env);
    bool will_do = s != NULL && s->desc.step >= step_min && leads_on(d, s);
    bool may_want =
        d->wanted || d->hashing != NULL ||
        (now >= d->next_us && (s == NULL || !is_fetched(s, will_do ? SLOW_RATE : FAST_RATE, now)));

    if (step_min > d->opts.step(d->opts.arg)) {
        hth_rpc_refuse(req, HTH_E_STALE, 0, "this peer is not that far");
    } else if (will_do && (now - s->made_us <= KEEP_US || !may_want)) {
        describe(d, s, req);
    } else {
        if (may_want)
            want(d);
        hth_rpc_refuse(req, HTH_E_AGAIN, 0,
                       may_want ? "its snapshot is not there yet"
                                : "no younger snapshot can be made now");
    }
}

static struct handed *find(const struct hth_state_donor *d, const struct hth_hash *name)
{
    if (d->held != NULL && memcmp(&d->held->desc.name, name, sizeof(*name)) == 0)
        return d->held;
    for (uint32_t i = d->means; i-- > 0;)
        if (memcmp(&d->mean[i]->desc.name, name, sizeof(*name)) == 0)
            return d->mean[i];
    return NULL;
}

static enum hth_err read_ask(const struct hth_rpc_request *req, struct hth_state_ask *ask)
{
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);

    return hth_state_ask_open(payload, len, ask);
}

static void on_describe(void *arg, struct hth_rpc_request *req)
{
    struct hth_state_donor *d = arg;
    struct hth_state_ask ask;
    enum hth_err err = read_ask(req, &ask);
    struct handed *mean = ask.named ? find(d, &ask.name) : NULL;

    if (err != HTH_OK)
        hth_rpc_refuse(req, err, 0, "not a request for a state or a mean");
    else if (ask.schema != d->opts.schema)
        hth_rpc_refuse(req, HTH_E_BAD_SHAPE, 0, "this peer trains other tensors");
    else if (!ask.named)
        describe_fresh(d, req, ask.step_min);
    else if (mean != NULL)
        describe(d, mean, req);
    else
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, "that mean is not kept here");
}

static void on_part(void *arg, struct hth_rpc_request *req)
{
    struct hth_state_donor *d = arg;
    struct hth_state_ask ask;
    enum hth_err err = read_ask(req, &ask);
    struct handed *h = ask.named ? find(d, &ask.name) : NULL;
    int64_t now = hth_now_us(d->env);

    if (err != HTH_OK) {
        hth_rpc_refuse(req, err, 0, "not a request for a part");
    } else if (h == NULL) {
        hth_rpc_refuse(req, HTH_E_NOT_FOUND, 0, "that snapshot or mean is gone");
    } else if (ask.part >= h->desc.parts) {
        hth_rpc_refuse(req, HTH_E_RANGE, 0, "it has fewer parts");
    } else if (h == d->held && now - d->round_us >= SHORT_US && now - d->round_us < YIELD_US) {
        h->part_us = now;
        hth_rpc_refuse(req, HTH_E_BUSY, 0, "its owner is in a round");
    } else if (add_part(d->env, h, ask.part) != HTH_OK) {
        hth_rpc_refuse(req, HTH_E_BUSY, 0, "no memory for a part");
    } else {
        const struct hth_tensor part = {.dtype = HTH_U8,
                                        .ndim = 1,
                                        .dim = {h->parts[ask.part]->size},
                                        .blob = h->parts[ask.part]};
        const struct hth_rpc_body body = {.tensors = &part, .tensor_count = 1};

        h->asked_us = h->part_us = now;
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
        h->env->crypto->hash(part->data, part->size, hth_state_part_hash(d, i));
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
    struct handed *s = h->snapshot;

    hth_blob_unref(h->values);
    hth_free(h);
    if (d == NULL || err != HTH_OK)
        handed_free(s);
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
    d->wanted = false;
}

void hth_state_donor_yield(struct hth_state_donor *d, bool yields)
{
    d->round_us = yields ? hth_now_us(d->env) : INT64_MIN / 2;
}

void hth_state_donor_stats(const struct hth_state_donor *d, struct hth_state_donor_stats *out)
{
    *out = d->stats;
    out->means = d->means;
    out->first = d->means > 0 ? d->mean[0]->desc.step : 0;
}

/* ---- reaching out ---------------------------------------------------------------------------- */

/* The connection is what it was for. */
static void on_dialled(void *arg, const struct hth_rpc_result *r)
{
    (void)arg;
    (void)r;
}

static bool is_in_need(const struct hth_state_donor *d, const struct hth_roster *roster,
                       const struct hth_roster_peer *p)
{
    struct hth_rpc_peer_info info;

    return p->note.schema == d->opts.schema && !hth_roster_doubts(roster, p) &&
           p->note.addr.family != 0 && (p->note.flags & HTH_ROSTER_BOOTSTRAPPING) != 0 &&
           (hth_rpc_peer_info(d->rpc, &p->id, &info) != HTH_OK ||
            (!info.connected && info.waiting == 0 && info.retry_in_us == 0));
}

/* Anybody can say that it has no state, under any name and address. So a client dials one after the
 * other in random order, and of many clients few do at a time. */
void hth_state_donor_reach(struct hth_state_donor *d, const struct hth_roster *roster)
{
    const struct hth_rpc_call_opts call = {.method = HTH_STATE_METHOD_PART,
                                           .timeout_us = HTH_DIAL_TIMEOUT_US};
    const struct hth_roster_peer *p, *to = NULL;
    uint32_t clients = 0, in_need = 0;
    int64_t now = hth_now_us(d->env);

    if (hth_roster_self(roster)->addr.family != 0 || now < d->reach_us)
        return;
    d->reach_us = now + HTH_STATE_DIAL_US;
    for (uint32_t i = 0; (p = hth_roster_at(roster, i)) != NULL; i++) {
        clients += (p->note.flags & HTH_ROSTER_CLIENT) != 0;
        if (is_in_need(d, roster, p) && hth_rng_below(&d->rng, ++in_need) == 0)
            to = p;
    }
    if (to == NULL || hth_rng_below(&d->rng, clients + 1) >= HTH_STATE_REACH)
        return;
    const struct hth_rpc_target target = {.peer = to->id, .addr = to->note.addr};
    (void)!hth_rpc_call(d->rpc, &target, &call, on_dialled, NULL, NULL);
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
    d->round_us = INT64_MIN / 2;
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
    if (d->hashing != NULL)
        d->hashing->donor = NULL;
    hth_timer_free(d->env, d->timer);
    let_go(d);
    while (d->means > 0)
        forget_mean(d, 0);
    hth_free(d);
}
