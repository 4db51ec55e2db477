/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c: the calling side. A call waits at its peer, then occupies a slot of a connection, then
 * has its verdict; a canceled or expired call leaves its slot taken, because the other side still
 * owes a verdict frame for it. So a frame for an id that is not in its slot always breaks the
 * protocol.
 *
 *   request id = count of ids given on this connection << 16 | index of the slot
 */
#include "rpc/rpc_int.h"

#include <string.h>

#define SLOT_BITS 16
/* The wait for a stranger: see hth_rpc_call_opts.timeout_us in rpc.h. */
#define STRANGER_CHECK_US  (500 * HTH_US_PER_MS)
#define STRANGER_TIMES     4
#define STRANGER_TIMES_MAX 32
#define STRANGER_SHARE     16
#define STRANGER_PROBE     8
#define SLOTS_MIN          2 /* most connections of a large swarm have at most a call or two out */

_Static_assert(HTH_RPC_REQUESTS_MAX <= 1u << SLOT_BITS, "an index of a slot fits in an id");

/* ---- memory -------------------------------------------------------------------------------- */

enum hth_err hth_rpc_body_copy(const struct hth_rpc_body *from, struct hth_rpc_body *to)
{
    size_t tensor_bytes = from->tensor_count * sizeof(struct hth_tensor);
    memset(to, 0, sizeof(*to));
    if (tensor_bytes + from->payload_len == 0)
        return HTH_OK;
    uint8_t *mem = hth_try_calloc(1, tensor_bytes + from->payload_len);
    if (mem == NULL)
        return HTH_E_NO_MEMORY;
    /* Tensors first, so that one allocation is aligned for them. */
    if (from->tensor_count > 0)
        memcpy(mem, from->tensors, tensor_bytes);
    if (from->payload_len > 0)
        memcpy(mem + tensor_bytes, from->payload, from->payload_len);
    to->tensors = (const struct hth_tensor *)(void *)mem;
    to->tensor_count = from->tensor_count;
    to->payload = mem + tensor_bytes;
    to->payload_len = from->payload_len;
    for (size_t i = 0; i < to->tensor_count; i++) {
        if (to->tensors[i].blob != NULL)
            hth_blob_ref(to->tensors[i].blob);
    }
    return HTH_OK;
}

void hth_rpc_body_clear(struct hth_rpc_body *body)
{
    for (size_t i = 0; i < body->tensor_count; i++)
        hth_blob_unref(body->tensors[i].blob);
    hth_free((void *)body->tensors);
    memset(body, 0, sizeof(*body));
}

static struct hth_rpc_call *call_new(struct hth_rpc *rpc)
{
    struct hth_rpc_call *call = hth_new(struct hth_rpc_call);
    rpc_list_init(&call->node);
    call->due.kind = DUE_CALL;
    call->rpc = rpc;
    rpc->stats.calls_now++;
    return call;
}

void hth_rpc_call_free(struct hth_rpc_call *call)
{
    struct hth_rpc *rpc = call->rpc;
    hth_rpc_due_cancel(rpc, &call->due);
    hth_rpc_body_clear(&call->body);
    hth_free(call->text);
    hth_rpc_peer_unref(call->peer);
    rpc->stats.calls_now--;
    hth_free(call);
}

/* ---- slots --------------------------------------------------------------------------------- */

static uint32_t slot_take(struct rpc_conn *c, struct hth_rpc_call *call)
{
    if (c->slots_free == 0) {
        uint32_t old = c->slots_count;
        uint32_t grown = HTH_MIN(old == 0 ? SLOTS_MIN : 2 * old, c->their_requests_max);
        c->slots = hth_realloc(c->slots, grown, sizeof(*c->slots));
        for (uint32_t i = old; i < grown; i++)
            c->slots[i] = (struct rpc_slot){.next_free = i + 1 < grown ? i + 2 : 0};
        c->slots_count = grown;
        c->slots_free = old + 1;
    }
    uint32_t index = c->slots_free - 1;
    struct rpc_slot *s = &c->slots[index];
    c->slots_free = s->next_free;
    s->id = ++c->id_count << SLOT_BITS | index;
    s->call = call;
    s->body_len = call->body_len;
    s->sent_us = hth_now_us(c->rpc->env);
    c->in_flight++;
    c->request_out += s->body_len;
    return index;
}

static void slot_give(struct rpc_conn *c, uint32_t index)
{
    struct rpc_slot *s = &c->slots[index];
    c->in_flight--;
    c->request_out -= s->body_len;
    *s = (struct rpc_slot){.next_free = c->slots_free};
    c->slots_free = index + 1;
}

void hth_rpc_slots_fail_all(struct rpc_conn *c, enum hth_err err, const char *text, bool remote)
{
    for (uint32_t i = 0; c->in_flight > 0 && i < c->slots_count; i++) {
        struct hth_rpc_call *call = c->slots[i].call;
        c->slots[i].call = NULL;
        if (call == NULL)
            continue;
        call->conn = NULL;
        hth_rpc_call_fail_soon(call, err, text, remote);
    }
    c->in_flight = 0;
}

/* ---- sending ------------------------------------------------------------------------------- */

static bool fits_now(const struct rpc_conn *c, const struct hth_rpc_call *call)
{
    /* A body that is too large for this peer passes, and send_call fails it. */
    return c->in_flight < c->their_requests_max &&
           (c->request_out + call->body_len <= c->their_request_credit ||
            call->body_len > c->their_body_max);
}

static void send_call(struct rpc_conn *c, struct hth_rpc_call *call,
                      const struct hth_rpc_body *body)
{
    int64_t now = hth_now_us(c->rpc->env);
    int64_t left_ms = (call->deadline_us - now + HTH_US_PER_MS - 1) / HTH_US_PER_MS;
    enum hth_err err = HTH_E_TOO_LARGE;
    if (call->body_len <= c->their_body_max) {
        uint32_t index = slot_take(c, call);
        struct hth_frame_msg msg = {
            .type = HTH_FRAME_REQUEST,
            .id = c->slots[index].id,
            .trace_id = call->trace_id,
            .body = *body,
        };
        msg.u.request.method = call->method;
        msg.u.request.timeout_ms = (uint32_t)HTH_MAX(left_ms, (int64_t)1);
        msg.u.request.idem = call->idem;
        err = hth_rpc_tx_frame(c, &msg);
        if (err == HTH_OK) {
            call->conn = c;
            call->slot = index;
            call->sent = true;
            call->sent_us = now;
            c->active_us = now;
            return;
        }
        slot_give(c, index);
    }
    hth_rpc_call_fail_soon(call, err, "the request can't be sent to this peer", false);
}

bool hth_rpc_call_send_next(struct rpc_conn *c)
{
    struct rpc_peer *p = c->peer;
    struct hth_rpc_call *call = HTH_CONTAINER(p->waiting.next, struct hth_rpc_call, node);
    if (c->state != CONN_READY || !fits_now(c, call))
        return false;
    rpc_list_del(&call->node);
    p->waiting_count--;
    send_call(c, call, &call->body);
    hth_rpc_body_clear(&call->body);
    return true;
}

static enum hth_err check_call(const struct hth_rpc *rpc, const struct hth_rpc_call_opts *opts,
                               uint64_t *body_len)
{
    struct hth_frame_msg msg = {.type = HTH_FRAME_REQUEST, .body = opts->body};
    HTH_TRY(hth_frame_body_len(opts->body.tensors, opts->body.tensor_count, body_len));
    if (opts->body.payload_len > HTH_FRAME_META_BYTES_MAX ||
        hth_frame_meta_bound(&msg) > HTH_FRAME_META_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    if (rpc->stats.calls_now >= rpc->opts.calls_max)
        return HTH_E_QUEUE_FULL;
    return HTH_OK;
}

static struct hth_deadline *peer_deadline(struct rpc_peer *p, uint16_t method)
{
    return &hth_rpc_deadline_of(p->rpc, &p->deadlines, method)->deadline;
}

static int64_t timeout_of(struct rpc_peer *p, const struct hth_rpc_call_opts *opts)
{
    int64_t us = opts->timeout_us;
    if (us <= 0)
        us = hth_deadline_begin(peer_deadline(p, opts->method));
    if (opts->timeout_us <= 0 && opts->timeout_max_us > 0)
        us = HTH_MIN(us, opts->timeout_max_us);
    return HTH_MIN(us, (int64_t)HTH_RPC_TIMEOUT_MS_MAX * HTH_US_PER_MS);
}

/* The expected duration of the next answer, with a margin; 0: no answers yet. */
static int64_t expected(const struct hth_rpc *rpc, struct hth_deadline *d)
{
    if (d->count == 0 || d->count >= HTH_DEADLINE_SAMPLES_MIN)
        return d->count == 0 ? 0 : hth_deadline_get(d);
    return HTH_MAX(2 * hth_deadline_median(d), rpc->opts.timeout_min_us);
}

/* Until when to wait for a stranger (fewer than HTH_DEADLINE_SAMPLES_MIN answers to this method),
 * by present knowledge. The durations of other peers' and its own few answers predict more than the
 * initial deadline, once the call is sent and some other peer has answered; until then the call is
 * checked periodically. */
static int64_t stranger_until(struct hth_rpc_call *call, int64_t now)
{
    struct hth_rpc *rpc = call->rpc;
    struct hth_deadline *all = &hth_rpc_deadline_of(rpc, &rpc->usual, call->method)->deadline;
    struct method_deadline *d = hth_rpc_deadline_of(rpc, &call->peer->deadlines, call->method);

    if (d->deadline.count >= HTH_DEADLINE_SAMPLES_MIN && call->sent)
        return call->sent_us + hth_deadline_get(&d->deadline);
    if (all->count <= d->deadline.count || !call->sent)
        return now + STRANGER_CHECK_US;
    int64_t usual_us = HTH_MAX(expected(rpc, all), expected(rpc, &d->deadline));
    int64_t least = STRANGER_TIMES * usual_us, most = STRANGER_TIMES_MAX * usual_us;
    int64_t wait_us = HTH_MAX((now - d->since_us) / STRANGER_SHARE, least);
    return call->sent_us + (call->probe ? wait_us : HTH_MIN(wait_us, most));
}

/* Sets when to check a new call: at its deadline, or earlier for a stranger. */
static void call_watch(struct hth_rpc_call *call)
{
    int64_t at = call->deadline_us;
    struct method_deadline *d =
        call->adaptive ? hth_rpc_deadline_of(call->rpc, &call->peer->deadlines, call->method)
                       : NULL;
    if (d != NULL && d->deadline.count < HTH_DEADLINE_SAMPLES_MIN) {
        call->stranger = true;
        if (d->tries == 0)
            d->since_us = call->started_us;
        call->probe = ++d->tries % STRANGER_PROBE == 0;
        at = HTH_MIN(at, stranger_until(call, call->started_us));
    }
    hth_rpc_due_set(call->rpc, &call->due, at);
}

/* Moves a stranger's check while its time lasts; false: the call has expired. */
static bool call_extend(struct hth_rpc_call *call, int64_t now)
{
    if (!call->stranger || now >= call->deadline_us)
        return false;
    int64_t until = HTH_MIN(stranger_until(call, now), call->deadline_us);
    if (until <= now)
        return false;
    hth_rpc_due_set(call->rpc, &call->due, until);
    return true;
}

enum hth_err hth_rpc_call(struct hth_rpc *rpc, const struct hth_rpc_target *target,
                          const struct hth_rpc_call_opts *opts, hth_rpc_done_fn *done, void *arg,
                          struct hth_rpc_call **out)
{
    struct rpc_peer *p;
    uint64_t body_len;
    if (out != NULL)
        *out = NULL;
    metrics_fetch(rpc);
    HTH_TRY(check_call(rpc, opts, &body_len));
    HTH_TRY(hth_rpc_peer_get(rpc, &target->peer, &target->addr, &p));
    struct rpc_conn *c = hth_rpc_peer_conn(p);
    if (c != NULL)
        hth_rpc_conn_fetch(c);
    struct hth_rpc_call *call = call_new(rpc);
    call->peer = hth_rpc_peer_ref(p);
    call->done = done;
    call->arg = arg;
    call->method = opts->method;
    call->idem = opts->idem;
    call->trace_id = opts->trace_id;
    call->body_len = body_len;
    call->started_us = hth_now_us(rpc->env);
    call->stalled_us = rpc->stalled_us;
    call->deadline_us = call->started_us + timeout_of(p, opts);
    call->adaptive = opts->timeout_us <= 0;
    call_watch(call);
    if (c != NULL && rpc_list_empty(&p->waiting) && fits_now(c, call)) {
        send_call(c, call, &opts->body);
    } else {
        enum hth_err err = hth_rpc_body_copy(&opts->body, &call->body);
        if (err != HTH_OK) {
            hth_rpc_call_free(call);
            return err;
        }
        rpc_list_push(&p->waiting, &call->node);
        p->waiting_count++;
        hth_rpc_peer_pump(p);
    }
    rpc->stats.calls++;
    hth_metric_add(rpc->metrics.calls, 1);
    if (out != NULL)
        *out = call;
    return HTH_OK;
}

/* ---- verdicts ------------------------------------------------------------------------------ */

/* Takes the call out of its list or slot; cancels a sent one, whose slot stays taken until the
 * verdict frame. */
static void call_withdraw(struct hth_rpc_call *call)
{
    struct rpc_conn *c = call->conn;
    if (c != NULL) {
        struct rpc_slot *s = &c->slots[call->slot];
        s->call = NULL;
        call->conn = NULL;
        hth_rpc_tx_control(c, HTH_FRAME_CANCEL, s->id);
    } else if (!rpc_list_empty(&call->node) && !call->ended) {
        call->peer->waiting_count--;
    }
    rpc_list_del(&call->node);
}

void hth_rpc_call_finish(struct hth_rpc_call *call, const struct hth_rpc_result *result)
{
    struct hth_rpc *rpc = call->rpc;
    hth_rpc_due_cancel(rpc, &call->due);
    if (result->err == HTH_OK) {
        rpc->stats.calls_ok++;
    } else {
        rpc->stats.calls_failed++;
        rpc->stats.calls_refused += result->remote ? 1 : 0;
        hth_metric_add(rpc->metrics.calls_failed, 1);
    }
    call->done(call->arg, result);
    hth_rpc_call_free(call);
}

void hth_rpc_call_fail_soon(struct hth_rpc_call *call, enum hth_err err, const char *text,
                            bool remote)
{
    struct hth_rpc *rpc = call->rpc;
    hth_rpc_due_cancel(rpc, &call->due);
    hth_rpc_body_clear(&call->body);
    call->ended = true;
    call->err = err;
    call->remote = remote;
    call->text = text != NULL ? hth_strdup(text) : NULL;
    rpc_list_push(&rpc->soon_calls, &call->node);
    hth_rpc_soon(rpc);
}

void hth_rpc_call_run_soon(struct hth_rpc_call *call)
{
    struct hth_rpc_result result = {
        .err = call->err,
        .text = call->text != NULL ? call->text : hth_err_text(call->err),
        .rtt_us = call->sent ? hth_now_us(call->rpc->env) - call->sent_us : 0,
        .remote = call->remote,
    };
    hth_rpc_call_finish(call, &result);
}

/* Bytes that arrived while this process did not run are read after its timers: the answer may be
 * among them, and a peer on the same machine did not run either. So the deadline moves once, by the
 * length of the stall. */
static bool call_is_excused(struct hth_rpc_call *call, int64_t now)
{
    int64_t stalled_us = HTH_MIN(call->rpc->stalled_us - call->stalled_us, now - call->started_us);
    if (stalled_us == 0 || call->excused || !call->sent)
        return false;
    call->excused = true;
    hth_rpc_due_set(call->rpc, &call->due, now + HTH_MIN(stalled_us, RPC_LATE_MAX_US));
    return true;
}

void hth_rpc_call_expired(struct hth_rpc_call *call)
{
    int64_t now = hth_now_us(call->rpc->env);
    if (call_extend(call, now) || call_is_excused(call, now))
        return;
    struct hth_rpc_result result = {
        .err = HTH_E_TIMEOUT,
        .text = hth_err_text(HTH_E_TIMEOUT),
        .rtt_us = call->sent ? now - call->sent_us : 0,
    };
    if (call->sent)
        hth_deadline_miss(peer_deadline(call->peer, call->method), now, now - call->started_us,
                          call->sent_us, call->conn->rx_last_us);
    call_withdraw(call);
    hth_rpc_call_finish(call, &result);
}

void hth_rpc_cancel(struct hth_rpc_call *call)
{
    struct hth_rpc *rpc = call->rpc;
    rpc->stats.calls_canceled++;
    call_withdraw(call);
    hth_rpc_call_free(call);
}

/* ---- REPLY and REFUSE ---------------------------------------------------------------------- */

enum hth_err hth_rpc_call_on_head(struct rpc_conn *c, struct hth_frame *f)
{
    uint64_t index = f->header.id & ((1u << SLOT_BITS) - 1);
    uint32_t body_len = f->header.body_len;
    if (index >= c->slots_count || c->slots[index].id != f->header.id || f->header.id == 0)
        return HTH_E_PROTOCOL;
    c->rx_slot = (uint32_t)index + 1;
    c->rx_err = HTH_OK;
    if (body_len == 0)
        return HTH_OK;
    if (body_len > c->rpc->opts.body_bytes_max)
        return HTH_E_TOO_LARGE;
    if (c->reply_in + body_len > c->rpc->opts.reply_credit_bytes)
        return HTH_E_PROTOCOL;
    c->reply_in += body_len;
    return hth_rpc_conn_take_body(c, c->slots[index].call != NULL);
}

/* The caller has seen the body: the other side may send as much again. Returned in quarters, which
 * leaves three quarters of the window, and a body is at most half of it. */
static void give_credit(struct rpc_conn *c, uint32_t body_len)
{
    c->reply_owed += body_len;
    if (c->reply_owed < c->rpc->opts.reply_credit_bytes / 4 || c->reply_owed == 0)
        return;
    struct hth_frame_msg msg = {.type = HTH_FRAME_CREDIT};
    msg.u.credit.reply_bytes = c->reply_owed;
    if (hth_rpc_tx_frame(c, &msg) != HTH_OK)
        return;
    c->reply_in -= c->reply_owed;
    c->reply_owed = 0;
}

static void deliver(struct hth_rpc_call *call, const struct hth_frame *f, enum hth_err body_err)
{
    struct hth_rpc_result result = {
        .rtt_us = hth_now_us(call->rpc->env) - call->sent_us,
        .text = "",
    };
    call->conn = NULL;
    if (f->msg.type == HTH_FRAME_REFUSE) {
        result.err = f->msg.u.refuse.err;
        result.text = f->msg.u.refuse.text;
        result.retry_after_us = f->msg.u.refuse.retry_after_ms * HTH_US_PER_MS;
        result.remote = true;
    } else if (body_err != HTH_OK) {
        result.err = body_err;
        result.text = hth_err_text(body_err);
    } else {
        result.payload = f->msg.body.payload;
        result.payload_len = f->msg.body.payload_len;
        result.tensors = f->msg.body.tensors;
        result.tensor_count = f->msg.body.tensor_count;
        int64_t now = hth_now_us(call->rpc->env);
        struct method_deadline *d =
            hth_rpc_deadline_of(call->rpc, &call->peer->deadlines, call->method);
        hth_deadline_observe(&d->deadline, now, result.rtt_us);
        d->tries = 0;
        if (call->adaptive)
            hth_deadline_observe(
                &hth_rpc_deadline_of(call->rpc, &call->rpc->usual, call->method)->deadline, now,
                result.rtt_us);
    }
    hth_metric_observe(call->rpc->metrics.rtt, (double)result.rtt_us * 1e-6);
    hth_rpc_call_finish(call, &result);
}

void hth_rpc_call_on_complete(struct rpc_conn *c, struct hth_frame *f)
{
    struct hth_rpc *rpc = c->rpc;
    struct hth_rpc_call *call = c->slots[c->rx_slot - 1].call;
    enum hth_err body_err = c->rx_err;
    uint64_t held = hth_rpc_conn_body_done(c);
    /* A reply that is too late for its call still measures the peer's round trip. */
    hth_rpc_peer_observe_rtt(c->peer, hth_now_us(rpc->env) - c->slots[c->rx_slot - 1].sent_us);
    slot_give(c, c->rx_slot - 1);
    c->rx_slot = 0;
    c->had_verdict = true;
    c->peer->failures = 0;
    c->active_us = hth_now_us(rpc->env);
    /* The callback may end this connection: keep the frame out of its reach. */
    c->parser.frame = NULL;
    if (call != NULL)
        deliver(call, f, body_err);
    else
        rpc->stats.late_replies++;
    uint32_t body_len = f->header.body_len;
    hth_rpc_frame_free(f);
    hth_budget_give(&c->peer->held, held);
    if (c->state == CONN_DEAD)
        return;
    give_credit(c, body_len);
    hth_rpc_peer_pump(c->peer);
    hth_rpc_conn_maybe_finish(c);
}
