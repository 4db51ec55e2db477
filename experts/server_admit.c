/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_admit.c: turns an rpc request into parts in pools, and finished parts into the reply.
 */
#include "experts/server_int.h"

#include <string.h>

#define RETRY_MIN_US (1 * HTH_US_PER_MS)

double hth_srv_part_cost(const struct srv_part *part)
{
    return part->expert == NULL ? 0 : part->expert->flops_row[part->request->backward] * part->rows;
}

static void refuse(struct hth_server *s, struct hth_rpc_request *req, enum hth_err err,
                   const char *text)
{
    s->stats.refused_bad++;
    if (err != HTH_E_REPLAYED) /* which a stall of this host may cause */
        hth_rpc_saw_work(s->rpc, hth_rpc_peer(req), false);
    hth_rpc_refuse(req, err, 0, text);
}

/* ---- the end of a request ------------------------------------------------------------------ */

static void request_free(struct srv_request *r)
{
    struct hth_server *s = r->server;

    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        s->requests = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    s->requests_count--;
    hth_srv_peer_leave(r);
    hth_blob_unref(r->x);
    hth_blob_unref(r->dy);
    hth_blob_unref(r->out);
    hth_free(r->parts);
    hth_free(r);
}

static void count_status(struct hth_server *s, const struct srv_part *part)
{
    switch (part->status) {
    case HTH_OK:
        break;
    case HTH_E_NO_SUCH_EXPERT:
        s->stats.parts_no_expert++;
        break;
    case HTH_E_NOT_FINITE:
        s->stats.parts_not_finite++;
        hth_metric_add(s->m_not_finite, 1);
        break;
    case HTH_E_NORM:
        s->stats.parts_norm++;
        hth_metric_add(s->m_norm, 1);
        break;
    default:
        s->stats.parts_failed++;
        hth_metric_add(s->m_failed, 1);
    }
}

/* Counts the parts' verdicts. Returns how many have rows to return. */
static uint32_t count_verdicts(const struct srv_request *r)
{
    uint32_t good = 0;

    for (uint32_t i = 0; i < r->parts_count; i++) {
        good += r->parts[i].status == HTH_OK ? 1 : 0;
        count_status(r->server, &r->parts[i]);
    }
    return good;
}

/* A backward that weighs is work. One whose norm is too large weighs nothing, and is no offence:
 * now and then an honest one is. */
static void tell_witness(const struct srv_request *r)
{
    bool weighs = false, refused = false;

    for (uint32_t i = 0; i < r->parts_count; i++) {
        const struct srv_part *p = &r->parts[i];
        weighs |= p->status == HTH_OK && !p->outlying;
        refused |= p->status == HTH_E_NOT_FINITE;
    }
    if (weighs || refused)
        hth_rpc_saw_work(r->server->rpc, hth_rpc_peer(r->req), !refused);
}

static uint8_t *pack_verdicts(const struct srv_request *r, bool kept, size_t *len)
{
    enum hth_err *status = hth_new_array(enum hth_err, r->parts_count);
    uint8_t *payload;

    for (uint32_t i = 0; i < r->parts_count; i++)
        status[i] = r->parts[i].status;
    hth_expert_msg_reply_pack(status, r->parts_count, kept, &payload, len);
    hth_free(status);
    return payload;
}

/* Keeps the rows of a forward for the backward that follows. */
static bool keep_rows(struct hth_server *s, const struct hth_rpc_request *req,
                      const struct hth_kept_rows *rows)
{
    return hth_kept_put(s->kept, hth_rpc_peer(req), hth_rpc_idem_key(req), rows);
}

/* Clears the rows of failed parts. They were not written, or only in part, and the memory may hold
 * another peer's rows, which must not be sent. */
static void clear_refused_rows(struct srv_request *r)
{
    size_t row_bytes = hth_rows_bytes(r->dtype, r->d);

    if (r->out == NULL || r->out->data == NULL)
        return;
    for (uint32_t row = 0, i = 0; i < r->parts_count; i++) {
        uint32_t end = i + 1 < r->parts_count ? r->parts[i + 1].row0 : r->rows;
        if (r->parts[i].status != HTH_OK)
            memset(r->out->data + row * row_bytes, 0, (end - row) * row_bytes);
        row = end;
    }
}

static void request_finish(struct srv_request *r)
{
    struct hth_server *s = r->server;
    struct hth_tensor t = hth_rows_tensor(r->dtype, r->rows, r->d);
    struct hth_rpc_body body = {0};
    uint32_t good = count_verdicts(r);
    bool any = good > 0 && r->out != NULL, kept = false;
    uint8_t *payload;

    t.blob = r->out;
    if (any)
        clear_refused_rows(r);
    if (r->keep && r->req != NULL && good == r->parts_count) {
        struct hth_kept_rows rows = {hth_rows_tensor(r->dtype, r->rows, r->d), r->list_hash};
        rows.x.blob = r->x;
        rows.x.offset = r->x_offset;
        kept = keep_rows(s, r->req, &rows);
    }
    payload = pack_verdicts(r, kept, &body.payload_len);
    if (r->req != NULL && r->backward)
        tell_witness(r);
    if (r->req != NULL) {
        body.payload = payload;
        body.tensors = any ? &t : NULL;
        body.tensor_count = any ? 1 : 0;
        s->stats.requests_ok++;
        s->stats.bytes_out += any ? r->rows * hth_rows_bytes(r->dtype, r->d) : 0;
        hth_rpc_on_cancel(r->req, NULL, NULL);
        hth_rpc_reply(r->req, &body);
    }
    if (r->entry != NULL)
        hth_cache_done_take(r->entry, payload, body.payload_len, any ? &t : NULL,
                            hth_now_us(s->env));
    else
        hth_free(payload);
    request_free(r);
}

void hth_srv_part_done(struct srv_part *part)
{
    struct srv_request *r = part->request;

    hth_srv_work_waits(r, -hth_srv_part_cost(part));
    if (--r->parts_left == 0)
        request_finish(r);
}

void hth_srv_request_drop(struct srv_request *r, enum hth_err err, const char *text)
{
    struct hth_server *s = r->server;
    struct hth_rpc_request *req = r->req;
    uint32_t dropped = 0;

    r->req = NULL;
    if (req != NULL) {
        hth_rpc_on_cancel(req, NULL, NULL);
        hth_rpc_refuse(req, err, 0, text);
    }
    /* A backward that has begun, or that a repeat waits for, runs to its end. If half of it were
     * dropped, the repeat would apply the other half twice. */
    if (r->backward && !s->dead &&
        (r->parts_started > 0 || (r->entry != NULL && r->entry->waiters_count > 0)))
        return;
    for (uint32_t i = 0; i < r->parts_count; i++) {
        struct srv_part *p = &r->parts[i];
        if (!p->queued)
            continue;
        hth_srv_pool_remove(&p->expert->pool[r->backward], p);
        p->status = err;
        hth_srv_work_waits(r, -hth_srv_part_cost(p));
        p->rows = p->rows_started;
        hth_srv_work_waits(r, hth_srv_part_cost(p));
        if (p->rows_done == p->rows)
            dropped++; /* else a job still has the part's first rows */
    }
    r->parts_left -= dropped;
    if (r->entry != NULL && (r->parts_left == 0 || s->dead)) {
        hth_cache_drop(r->entry, err);
        r->entry = NULL;
    }
    if (r->parts_left == 0)
        request_free(r);
}

/* The caller canceled, its connection closed, or its deadline passed. */
static void on_cancel(void *arg)
{
    struct srv_request *r = arg;
    struct hth_server *s = r->server;

    if (hth_now_us(s->env) >= hth_rpc_deadline_us(r->req))
        s->stats.refused_expired++;
    else
        s->stats.refused_canceled++;
    hth_srv_request_drop(r, HTH_E_CANCELED, NULL);
    hth_srv_pump(s);
    hth_srv_drain_check(s);
}

/* ---- the beginning ------------------------------------------------------------------------- */

static struct srv_expert *find_expert(struct hth_server *s, const struct hth_expert_msg *w,
                                      uint32_t i)
{
    uint8_t key[HTH_EXPERT_KEY_MAX];
    size_t len = hth_expert_key(w->layer, w->ndim, w->coord + (size_t)i * w->ndim, key);

    return hth_map_get(s->by_key, key, len);
}

/* Finds each part's expert, or sets the error. Returns how many parts may run. */
static uint32_t resolve(struct srv_request *r, const struct hth_expert_msg *w,
                        bool *all_pass_through)
{
    uint32_t row = 0, good = 0;

    *all_pass_through = true;
    for (uint32_t i = 0; i < w->parts; i++) {
        struct srv_part *p = &r->parts[i];
        p->request = r;
        p->row0 = row;
        p->rows = w->rows[i];
        row += p->rows;
        p->expert = find_expert(r->server, w, i);
        if (p->expert == NULL)
            p->status = HTH_E_NO_SUCH_EXPERT;
        else if (p->expert->d != r->d || p->rows % p->expert->block_rows != 0)
            p->status = HTH_E_BAD_SHAPE;
        if (p->status != HTH_OK || !p->expert->passes_through)
            *all_pass_through = false;
        good += p->status == HTH_OK ? 1 : 0;
    }
    return good;
}

/* A forward has x, a backward x and dy, or dy alone where it names the forward. */
static enum hth_err check_tensors(const struct hth_rpc_request *req, bool backward,
                                  const struct hth_expert_msg *w, const struct hth_tensor **out)
{
    size_t count, computed = backward ? 2 : 1;
    const struct hth_tensor *t = hth_rpc_tensors(req, &count);
    uint64_t d;

    if (hth_expert_msg_names(w) && !backward)
        return HTH_E_MALFORMED;
    if (count != (hth_expert_msg_names(w) ? 1 : computed) || t[0].ndim != 2)
        return HTH_E_BAD_SHAPE;
    d = hth_rows_width(&t[0]);
    if (d > HTH_EXPERT_D_MAX)
        return HTH_E_BAD_SHAPE;
    for (size_t i = 0; i < count; i++) {
        HTH_TRY(hth_rows_check(&t[i], w->rows_total, d));
        if (t[i].dtype != t[0].dtype)
            return HTH_E_BAD_SHAPE;
    }
    /* Narrow rows become floats here, so the limit counts floats: no wire type brings more rows
     * than fp32 could. */
    if (w->rows_total * d * computed > HTH_EXPERT_REQUEST_FLOATS_MAX)
        return HTH_E_TOO_LARGE;
    *out = t;
    return HTH_OK;
}

/* Finds the rows of the forward that a backward names; *out is NULL where it carries x itself.
 * False: it is refused. */
static bool find_kept(const struct srv_request *r, struct hth_rpc_request *req,
                      const struct hth_expert_msg *w, const struct hth_tensor *dy,
                      struct hth_kept_entry **out)
{
    struct hth_server *s = r->server;
    const struct hth_kept_rows *rows;

    *out = NULL;
    if (!hth_expert_msg_names(w))
        return true;
    *out = hth_kept_find(s->kept, hth_rpc_peer(req), w->forward);
    if (*out == NULL) {
        s->stats.gone++;
        hth_rpc_refuse(req, HTH_E_GONE, 0, NULL);
        return false;
    }
    rows = hth_kept_rows(*out);
    if (rows->list_hash == r->list_hash && rows->x.dtype == dy->dtype &&
        rows->x.dim[0] == dy->dim[0] && rows->x.dim[1] == dy->dim[1])
        return true;
    refuse(s, req, HTH_E_BAD_SHAPE, "the forward that it names had other experts, rows or types");
    return false;
}

/* Replies with the request's own bytes, by reference: all parts pass through. */
static void echo(const struct srv_request *r, struct hth_rpc_request *req,
                 const struct hth_tensor *t, struct hth_kept_entry *kept)
{
    struct hth_server *s = r->server;
    struct srv_expert *first = r->parts[0].expert;
    uint32_t count = r->backward && kept == NULL ? 2 : 1;
    struct hth_tensor copy = t[count - 1];
    const struct hth_kept_rows rows = {copy, r->list_hash};
    struct hth_rpc_body body = {.tensors = &copy, .tensor_count = 1};
    uint64_t bytes = r->rows * copy.dim[1] * hth_dtype_size(copy.dtype);
    uint8_t *payload = pack_verdicts(r, r->keep && keep_rows(s, req, &rows), &body.payload_len);

    s->stats.requests_ok++;
    s->stats.bytes_in += bytes * count;
    s->stats.bytes_out += bytes;
    *(r->backward ? &s->stats.rows_backward : &s->stats.rows_forward) += r->rows;
    *(r->backward ? &first->rows_backward : &first->rows_forward) += r->rows;
    hth_metric_add(s->m_rows, r->rows);
    body.payload = payload;
    hth_blob_ref(copy.blob);
    hth_rpc_reply(req, &body);
    hth_blob_unref(copy.blob);
    hth_free(payload);
}

/* Refuses with BUSY when too many bytes are held or too much work waits, for this peer or for
 * all. */
static bool admit(struct hth_server *s, struct hth_rpc_request *req, int64_t bytes, double cost)
{
    int64_t left_us = hth_rpc_deadline_us(req) - hth_now_us(s->env);

    if (hth_srv_may_enter(s, req, bytes, cost, left_us))
        return true;
    s->stats.refused_busy++;
    hth_metric_add(s->m_busy, 1);
    hth_rpc_refuse(req, HTH_E_BUSY, HTH_MAX(RETRY_MIN_US, hth_server_queue_us(s) / 2), NULL);
    return false;
}

/* True if the request is new. A repeat gets its answer or a refusal here, or joins the entry of the
 * first one. */
static bool is_new_backward(struct hth_server *s, struct hth_rpc_request *req,
                            const struct hth_tensor *t, uint64_t *digest)
{
    struct hth_rpc_idem idem = hth_rpc_idem_key(req);
    struct hth_cache_entry *entry;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);

    if (idem.hi == 0 && idem.lo == 0) {
        refuse(s, req, HTH_E_MALFORMED, "a backward needs an idempotency key");
        return false;
    }
    *digest = hth_hash64(payload, len, hth_mix64(t->dim[0] << 32 | t->dim[1]) + t->dtype);
    entry = hth_cache_find(s->cache, req, hth_now_us(s->env));
    if (entry == NULL)
        return true;
    if (entry->digest != *digest) {
        refuse(s, req, HTH_E_REPLAYED, "this idempotency key belongs to another backward");
    } else if (entry->spent) {
        refuse(s, req, HTH_E_REPLAYED, "this backward was applied; its answer has been dropped");
    } else if (entry->done) {
        s->stats.replays_answered++;
        hth_metric_add(s->m_replays, 1);
        hth_cache_answer(entry, req);
    } else if (hth_cache_join(entry, req) == HTH_OK) {
        s->stats.replays_joined++;
    } else {
        s->stats.refused_busy++;
        hth_rpc_refuse(req, HTH_E_BUSY, RETRY_MIN_US, NULL);
    }
    return false;
}

/* A backward takes x from `kept` where it names a forward; t then holds dy alone. */
static void take_tensors(struct srv_request *r, const struct hth_tensor *t,
                         const struct hth_kept_entry *kept)
{
    const struct hth_tensor *x = kept != NULL ? &hth_kept_rows(kept)->x : t;
    const struct hth_tensor *dy = kept != NULL ? t : t + 1;
    uint64_t bytes = r->rows * hth_rows_bytes(t->dtype, r->d);

    r->dtype = t->dtype;
    r->x = hth_blob_ref(x->blob);
    r->x_offset = x->offset;
    if (r->backward) {
        r->dy = hth_blob_ref(dy->blob);
        r->dy_offset = dy->offset;
    }
    r->held_bytes = (int64_t)(bytes * (r->backward ? 3 : 2));
    r->server->stats.bytes_in += bytes * (r->backward && kept == NULL ? 2 : 1);
}

static void enqueue(struct srv_request *r)
{
    struct hth_server *s = r->server;

    r->next = s->requests;
    if (r->next != NULL)
        r->next->prev = r;
    s->requests = r;
    s->requests_count++;
    hth_srv_peer_enter(r);
    hth_rpc_on_cancel(r->req, on_cancel, r);
    for (uint32_t i = 0; i < r->parts_count; i++) {
        struct srv_part *p = &r->parts[i];
        if (p->status != HTH_OK)
            continue;
        p->seq = s->next_seq++;
        p->start_tag = hth_srv_start_tag(r, hth_srv_part_cost(p));
        hth_srv_work_waits(r, hth_srv_part_cost(p));
        hth_srv_pool_push(&p->expert->pool[r->backward], p);
    }
}

/* Replies with verdicts alone: no part can run. */
static void answer_verdicts(const struct srv_request *r, struct hth_rpc_request *req)
{
    struct hth_rpc_body body = {0};
    uint8_t *payload = pack_verdicts(r, false, &body.payload_len);

    (void)count_verdicts(r);
    body.payload = payload;
    r->server->stats.requests_ok++;
    hth_rpc_reply(req, &body);
    hth_free(payload);
}

static struct hth_sender_id sender_of(const struct hth_rpc_request *req)
{
    const struct hth_peer_id *id = hth_rpc_peer(req);
    uint64_t invite = hth_rpc_invite(req);

    return (struct hth_sender_id){.number =
                                      invite != 0 ? invite : hth_hash64(id->b, sizeof(id->b), 0),
                                  .probation = hth_rpc_class(req) == HTH_PROBATION};
}

static struct srv_request *request_new(struct hth_server *s, const struct hth_rpc_request *req,
                                       const struct hth_expert_msg *w, const struct hth_tensor *t,
                                       bool backward)
{
    struct srv_request *r = hth_new(struct srv_request);
    struct hth_rpc_idem key = hth_rpc_idem_key(req);

    r->server = s;
    r->sender = sender_of(req);
    r->backward = backward;
    r->keep = !backward && (key.hi != 0 || key.lo != 0);
    r->list_hash = hth_expert_msg_list_hash(w);
    r->rows = w->rows_total;
    r->rows_in_microbatch = w->rows_in_microbatch;
    r->d = (uint32_t)hth_rows_width(t);
    r->parts_count = w->parts;
    r->parts = hth_new_array(struct srv_part, w->parts);
    r->arrived_us = hth_now_us(s->env);
    return r;
}

static void on_checked_work(struct hth_server *s, struct hth_rpc_request *req,
                            const struct hth_expert_msg *w, const struct hth_tensor *t,
                            bool backward)
{
    struct srv_request *r = request_new(s, req, w, t, backward);
    uint64_t bytes = w->rows_total * t->dim[1] * hth_dtype_size(t->dtype);
    struct hth_kept_entry *kept;
    uint64_t digest = 0;
    bool pass_through;
    double cost = 0;

    hth_srv_caller_note(s, req);
    r->parts_left = resolve(r, w, &pass_through);
    for (uint32_t i = 0; i < r->parts_count; i++)
        cost += hth_srv_part_cost(&r->parts[i]);
    if (backward && !pass_through && !is_new_backward(s, req, t, &digest)) {
        /* is_new_backward has answered it, refused it or made it wait. */
    } else if (!find_kept(r, req, w, t, &kept)) {
        /* find_kept has refused it. */
    } else if (pass_through) {
        echo(r, req, t, kept);
        s->stats.named += kept != NULL ? 1 : 0;
        hth_kept_drop(kept);
    } else if (r->parts_left == 0) {
        answer_verdicts(r, req);
    } else if (admit(s, req, (int64_t)(bytes * (backward ? 3 : 2)), cost)) {
        r->req = req;
        if (backward)
            r->entry = hth_cache_add(s->cache, req, digest);
        take_tensors(r, t, kept);
        s->stats.named += kept != NULL ? 1 : 0;
        hth_kept_drop(kept);
        enqueue(r);
        hth_srv_pump(s);
        return;
    }
    hth_free(r->parts);
    hth_free(r);
}

void hth_srv_on_work(struct hth_server *s, struct hth_rpc_request *req, bool backward)
{
    const struct hth_tensor *t;
    struct hth_expert_msg w;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err;

    s->stats.requests++;
    if (hth_fault(s->env, "experts.lost")) {
        hth_rpc_ignore(req);
        return;
    }
    if (s->draining) {
        s->stats.refused_draining++;
        hth_rpc_refuse(req, HTH_E_DRAINING, 0, NULL);
        return;
    }
    err = hth_expert_msg_open(payload, len, s->opts.request_rows_max, &w);
    if (err != HTH_OK) {
        refuse(s, req, err, "the list of experts is malformed or beyond this host's limits");
        return;
    }
    err = check_tensors(req, backward, &w, &t);
    if (err != HTH_OK)
        refuse(s, req, err, "the tensors do not match the list of experts");
    else if (backward &&
             (w.rows_in_microbatch == 0 || w.rows_in_microbatch > s->opts.microbatch_rows_max))
        refuse(s, req, w.rows_in_microbatch == 0 ? HTH_E_RANGE : HTH_E_TOO_LARGE,
               "rows_in_microbatch is 0 or above this host's limit");
    else
        on_checked_work(s, req, &w, t, backward);
    hth_expert_msg_close(&w);
}
