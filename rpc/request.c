/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c: the serving side. Every request gets exactly one verdict frame while its connection
 * lives: the handler's answer, or a refusal of ours. That keeps both sides' counts equal.
 */
#include "rpc/closed.h"
#include "rpc/rpc_int.h"

#include <string.h>

#define BUSY_RETRY_US (100 * HTH_US_PER_MS)

/* ---- memory -------------------------------------------------------------------------------- */

static struct hth_rpc_request *request_new(struct rpc_conn *c)
{
    struct hth_rpc *rpc = c->rpc;
    struct hth_rpc_request *req = hth_new(struct hth_rpc_request);
    rpc_list_init(&req->node);
    rpc_list_init(&req->soon);
    req->due.kind = DUE_REQUEST;
    req->rpc = rpc;
    req->conn = c;
    req->peer = hth_rpc_peer_ref(c->peer);
    req->invite = c->grant.invite;
    req->serial = c->grant.serial;
    req->class = c->grant.class;
    rpc->stats.requests_now++;
    return req;
}

/* Also gives back what the request occupied on its connection. */
void hth_rpc_request_free(struct hth_rpc_request *req)
{
    struct hth_rpc *rpc = req->rpc;
    struct rpc_conn *c = req->conn;
    if (c != NULL) {
        c->request_count--;
        c->request_in -= req->body_len;
        if (req->answered)
            c->replies_bytes -= req->answer_len;
        c->active_us = hth_now_us(rpc->env);
    }
    rpc_list_del(&req->node);
    rpc_list_del(&req->soon);
    hth_rpc_body_clear(&req->answer);
    hth_rpc_frame_free(req->frame);
    hth_budget_give(&req->peer->held, req->held);
    hth_rpc_peer_unref(req->peer);
    if (rpc != NULL) {
        hth_rpc_due_cancel(rpc, &req->due);
        if (rpc->dispatching == req)
            rpc->dispatching = NULL;
        rpc->stats.requests_now--;
    }
    hth_free(req);
}

/* ---- answering ----------------------------------------------------------------------------- */

static void send_refusal(struct hth_rpc_request *req, enum hth_err err, int64_t retry_after_us,
                         const char *text)
{
    struct rpc_conn *c = req->conn;
    struct hth_frame_msg msg = {
        .type = HTH_FRAME_REFUSE,
        .id = req->frame->header.id,
        .trace_id = req->frame->header.trace_id,
    };
    int64_t ms = (HTH_MAX(retry_after_us, (int64_t)0) + HTH_US_PER_MS - 1) / HTH_US_PER_MS;
    msg.u.refuse.err = err;
    msg.u.refuse.retry_after_ms = (uint32_t)HTH_MIN(ms, (int64_t)HTH_RPC_TIMEOUT_MS_MAX);
    msg.u.refuse.text = text != NULL ? text : "";
    enum hth_err sent = hth_rpc_tx_frame(c, &msg);
    req->rpc->stats.requests_refused++;
    hth_metric_add(req->rpc->metrics.refused, 1);
    hth_rpc_request_free(req);
    /* Without a verdict the other side would count the request as running for ever. */
    if (sent != HTH_OK)
        hth_rpc_conn_kill(c, sent, NULL, false);
    else
        hth_rpc_conn_maybe_finish(c);
}

void hth_rpc_refuse(struct hth_rpc_request *req, enum hth_err err, int64_t retry_after_us,
                    const char *text)
{
    HTH_ASSERT(err != HTH_OK && !req->answered);
    if (req->conn == NULL)
        hth_rpc_request_free(req);
    else if (req->canceled)
        send_refusal(req, req->cancel_err, 0, NULL);
    else
        send_refusal(req, err, retry_after_us, text);
}

/* Ends an ignored request, in place of its handler's cancel callback. */
static void ignored_ends(void *arg)
{
    struct hth_rpc_request *req = arg;
    if (req->conn == NULL)
        hth_rpc_request_free(req);
    else
        send_refusal(req, req->cancel_err, 0, NULL);
}

void hth_rpc_ignore(struct hth_rpc_request *req)
{
    HTH_ASSERT(!req->answered);
    req->ignored = true;
    hth_rpc_on_cancel(req, ignored_ends, req);
    if (req->canceled)
        ignored_ends(req);
}

static void send_reply(struct hth_rpc_request *req, const struct hth_rpc_body *body,
                       uint64_t body_len)
{
    struct rpc_conn *c = req->conn;
    struct hth_frame_msg msg = {
        .type = HTH_FRAME_REPLY,
        .id = req->frame->header.id,
        .trace_id = req->frame->header.trace_id,
    };
    if (body != NULL)
        msg.body = *body;
    enum hth_err err = hth_rpc_tx_frame(c, &msg);
    if (err != HTH_OK) {
        HTH_LOG(req->rpc->env, HTH_WARN, HTH_SUB_RPC,
                "method %u: reply dropped, refusing the request: %s",
                req->frame->msg.u.request.method, hth_err_text(err));
        send_refusal(req, err, 0, "the reply does not fit");
        return;
    }
    c->reply_out += body_len;
    hth_rpc_request_free(req);
    hth_rpc_conn_maybe_finish(c);
}

static bool credit_left(const struct rpc_conn *c, uint64_t body_len)
{
    return c->reply_out + body_len <= c->their_reply_credit;
}

void hth_rpc_reply(struct hth_rpc_request *req, const struct hth_rpc_body *body)
{
    struct rpc_conn *c = req->conn;
    uint64_t body_len = 0;
    HTH_ASSERT(!req->answered);
    if (c == NULL) {
        hth_rpc_request_free(req);
        return;
    }
    if (req->canceled) {
        send_refusal(req, req->cancel_err, 0, NULL);
        return;
    }
    enum hth_err err = HTH_OK;
    if (body != NULL)
        err = hth_frame_body_len(body->tensors, body->tensor_count, &body_len);
    if (err == HTH_OK && body_len > c->their_body_max)
        err = HTH_E_TOO_LARGE;
    /* Bodies stay in order; answers without one overtake them. */
    if (err == HTH_OK &&
        (body_len == 0 || (rpc_list_empty(&c->replies) && credit_left(c, body_len)))) {
        send_reply(req, body, body_len);
        return;
    }
    if (err == HTH_OK)
        err = hth_rpc_body_copy(body, &req->answer);
    if (err != HTH_OK) {
        HTH_LOG(req->rpc->env, HTH_WARN, HTH_SUB_RPC,
                "method %u: reply dropped, refusing the request: %s",
                req->frame->msg.u.request.method, hth_err_text(err));
        send_refusal(req, err, 0, "the reply does not fit");
        return;
    }
    req->answered = true;
    req->answered_us = hth_now_us(req->rpc->env);
    req->answer_len = body_len;
    req->on_cancel = NULL;
    c->replies_bytes += body_len;
    if (req->rpc->dispatching == req)
        req->rpc->dispatching = NULL;
    hth_rpc_due_set(req->rpc, &req->due, req->deadline_us);
    rpc_list_del(&req->node);
    rpc_list_push(&c->replies, &req->node);
}

void hth_rpc_replies_pump(struct rpc_conn *c)
{
    c->pins++;
    while (c->state == CONN_READY && !rpc_list_empty(&c->replies)) {
        struct hth_rpc_request *req = HTH_CONTAINER(c->replies.next, struct hth_rpc_request, node);
        if (!credit_left(c, req->answer_len))
            break;
        send_reply(req, &req->answer, req->answer_len);
    }
    hth_rpc_conn_unpin(c);
}

/* ---- canceling ----------------------------------------------------------------------------- */

/* The answer is useless. An answer that waits for credit is replaced by a refusal. */
static void request_cancel(struct hth_rpc_request *req, enum hth_err err)
{
    if (req->canceled)
        return;
    req->canceled = true;
    req->cancel_err = err;
    if (req->answered)
        send_refusal(req, err, 0, NULL);
    else if (req->on_cancel != NULL)
        req->on_cancel(req->cancel_arg);
}

void hth_rpc_request_expired(struct hth_rpc_request *req)
{
    request_cancel(req, HTH_E_TIMEOUT);
}

void hth_rpc_request_run_soon(struct hth_rpc_request *req)
{
    if (req->on_cancel != NULL)
        req->on_cancel(req->cancel_arg);
}

/* A linear search: each list is bounded by requests_max. */
static struct hth_rpc_request *find(struct rpc_link *list, uint64_t id)
{
    for (struct rpc_link *n = list->next; n != list; n = n->next) {
        struct hth_rpc_request *req = HTH_CONTAINER(n, struct hth_rpc_request, node);
        if (req->frame->header.id == id)
            return req;
    }
    return NULL;
}

void hth_rpc_request_on_cancel(struct rpc_conn *c, uint64_t id)
{
    struct hth_rpc_request *req = find(&c->requests, id);
    if (req == NULL)
        req = find(&c->replies, id);
    /* Not found: it was answered while the CANCEL was under way. */
    if (req != NULL)
        request_cancel(req, HTH_E_CANCELED);
}

static void orphan(struct hth_rpc_request *req, enum hth_err err)
{
    struct hth_rpc *rpc = req->rpc;
    rpc_list_del(&req->node);
    req->conn = NULL;
    if (req->ignored) {
        hth_rpc_request_free(req);
        return;
    }
    hth_rpc_due_cancel(rpc, &req->due);
    rpc_list_push(&rpc->orphans, &req->node);
    if (req->canceled)
        return;
    req->canceled = true;
    req->cancel_err = err;
    rpc_list_push(&rpc->soon_requests, &req->soon);
    hth_rpc_soon(rpc);
}

void hth_rpc_requests_orphan_all(struct rpc_conn *c, enum hth_err err)
{
    while (!rpc_list_empty(&c->requests))
        orphan(HTH_CONTAINER(c->requests.next, struct hth_rpc_request, node), err);
    while (!rpc_list_empty(&c->replies)) {
        struct hth_rpc_request *req = HTH_CONTAINER(c->replies.next, struct hth_rpc_request, node);
        req->conn = NULL;
        hth_rpc_request_free(req);
    }
    if (c->rx_req != NULL) {
        c->rx_req->conn = NULL;
        hth_rpc_request_free(c->rx_req);
        c->rx_req = NULL;
    }
    c->request_count = 0;
}

/* ---- arriving ------------------------------------------------------------------------------ */

enum hth_err hth_rpc_request_on_head(struct rpc_conn *c, struct hth_frame *f)
{
    struct hth_rpc *rpc = c->rpc;
    const struct hth_rpc_opts *o = &rpc->opts;
    uint32_t body_len = f->header.body_len;
    if (f->header.id <= c->last_id)
        return HTH_E_REPLAYED;
    if (body_len > o->body_bytes_max)
        return HTH_E_TOO_LARGE;
    if (c->request_count >= o->requests_max || c->request_in + body_len > o->request_credit_bytes)
        return HTH_E_PROTOCOL;
    c->last_id = f->header.id;
    struct hth_rpc_request *req = request_new(c);
    req->body_len = body_len;
    req->arrived_us = hth_now_us(rpc->env);
    req->deadline_us = req->arrived_us + f->msg.u.request.timeout_ms * HTH_US_PER_MS;
    c->request_count++;
    c->request_in += body_len;
    c->rx_req = req;
    c->rx_err = HTH_OK;
    rpc->stats.requests++;
    hth_metric_add(rpc->metrics.requests, 1);
    if (body_len == 0)
        return HTH_OK;
    return hth_rpc_conn_take_body(c, true);
}

/* The reason to refuse the request without its handler; HTH_OK: none. */
static enum hth_err admit(const struct rpc_conn *c, const struct hth_rpc_request *req,
                          const struct rpc_handler *h)
{
    const struct hth_rpc *rpc = c->rpc;
    if (c->rx_err != HTH_OK || hth_fault(rpc->env, "rpc.busy"))
        return HTH_E_BUSY;
    if (rpc->draining)
        return HTH_E_DRAINING;
    if (h == NULL)
        return HTH_E_NO_SUCH_METHOD;
    uint8_t needed = hth_rpc_rights(h->method);
    if (needed != 0 && (c->roles & needed) == 0)
        return HTH_E_PASS_ROLE;
    if (hth_now_us(rpc->env) >= req->deadline_us)
        return HTH_E_TIMEOUT;
    if (hth_rpc_tx_backlog(c) + c->replies_bytes > rpc->opts.queue_bytes_max)
        return HTH_E_BUSY;
    return HTH_OK;
}

static const struct rpc_handler *handler_of(const struct hth_rpc *rpc, uint16_t method)
{
    for (uint32_t i = 0; i < rpc->handler_count; i++) {
        if (rpc->handlers[i].method == method)
            return &rpc->handlers[i];
    }
    return NULL;
}

void hth_rpc_request_on_complete(struct rpc_conn *c)
{
    struct hth_rpc *rpc = c->rpc;
    struct hth_rpc_request *req = c->rx_req;
    req->frame = c->parser.frame;
    req->held = hth_rpc_conn_body_done(c);
    c->parser.frame = NULL;
    c->rx_req = NULL;
    c->active_us = hth_now_us(rpc->env);
    rpc_list_push(&c->requests, &req->node);
    const struct rpc_handler *h = handler_of(rpc, req->frame->msg.u.request.method);
    enum hth_err err = admit(c, req, h);
    if (err == HTH_E_PASS_ROLE)
        hth_rpc_count_refusal(rpc, err);
    if (err != HTH_OK) {
        send_refusal(req, err, err == HTH_E_BUSY ? BUSY_RETRY_US : 0, NULL);
        return;
    }
    /* Most handlers of small requests answer at once: only the others need a timer. */
    rpc->dispatching = req;
    h->fn(h->arg, req);
    if (rpc->dispatching == req && !req->canceled)
        hth_rpc_due_set(rpc, &req->due, req->deadline_us);
    rpc->dispatching = NULL;
}

/* ---- accessors ----------------------------------------------------------------------------- */

uint16_t hth_rpc_method(const struct hth_rpc_request *req)
{
    return req->frame->msg.u.request.method;
}

const uint8_t *hth_rpc_payload(const struct hth_rpc_request *req, size_t *len)
{
    *len = req->frame->msg.body.payload_len;
    return req->frame->msg.body.payload;
}

const struct hth_tensor *hth_rpc_tensors(const struct hth_rpc_request *req, size_t *count)
{
    *count = req->frame->msg.body.tensor_count;
    return req->frame->msg.body.tensors;
}

const struct hth_peer_id *hth_rpc_peer(const struct hth_rpc_request *req)
{
    return &req->peer->id;
}

struct hth_addr hth_rpc_from(const struct hth_rpc_request *req)
{
    struct hth_addr addr = {0};
    struct hth_peer_id id;
    if (req->conn != NULL && req->conn->stream != NULL)
        hth_stream_peer(req->rpc->env, req->conn->stream, &id, &addr);
    return addr;
}

uint64_t hth_rpc_invite(const struct hth_rpc_request *req)
{
    return req->invite;
}

uint64_t hth_rpc_serial(const struct hth_rpc_request *req)
{
    return req->serial;
}

uint8_t hth_rpc_class(const struct hth_rpc_request *req)
{
    return req->class;
}

int64_t hth_rpc_deadline_us(const struct hth_rpc_request *req)
{
    return req->deadline_us;
}

int64_t hth_rpc_arrived_us(const struct hth_rpc_request *req)
{
    return req->arrived_us;
}

struct hth_rpc_idem hth_rpc_idem_key(const struct hth_rpc_request *req)
{
    return req->frame->msg.u.request.idem;
}

uint64_t hth_rpc_trace_id(const struct hth_rpc_request *req)
{
    return req->frame->header.trace_id;
}

bool hth_rpc_is_canceled(const struct hth_rpc_request *req)
{
    return req->canceled;
}

void hth_rpc_on_cancel(struct hth_rpc_request *req, hth_fn *fn, void *arg)
{
    req->on_cancel = fn;
    req->cancel_arg = arg;
}
