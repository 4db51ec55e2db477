/* SPDX-License-Identifier: Apache-2.0 */
/* dialback.c: judges whether an address may be dialled, dials it, and answers. */
#include "rpc/dialback.h"

#include "core/mem.h"
#include "rpc/dialback.pb-c.h"

#include <string.h>

/* The unit of the limit: an IPv4 address, or an IPv6 /64, because a home has a whole one. */
struct dial_origin {
    uint8_t family, net[8];
};

/* A dial of the last HTH_DIALBACK_EACH_US; `req` is NULL once it was answered. */
struct dial_slot {
    struct hth_dialback *of;
    struct dial_origin origin, target;
    int64_t begun_us; /* 0: never used */
    struct hth_rpc_request *req;
    struct hth_stream *stream;
};

struct hth_dialback {
    struct hth_env *env;
    struct hth_rpc *rpc;
    hth_dialback_announced_fn *announced;
    void *arg;
    struct dial_slot slot[HTH_DIALBACK_DIALS_MAX];
};

/* ---- messages ------------------------------------------------------------------------------ */

static enum hth_err addr_set(const ProtobufCBinaryData *ip, uint32_t port, struct hth_addr *out)
{
    memset(out, 0, sizeof(*out));
    if (ip->len != 4 && ip->len != 16)
        return HTH_E_MALFORMED;
    if (port > UINT16_MAX)
        return HTH_E_RANGE;
    out->family = ip->len == 4 ? 4 : 6;
    memcpy(out->ip, ip->data, ip->len);
    out->port = (uint16_t)port;
    return HTH_OK;
}

static ProtobufCBinaryData ip_of(const struct hth_addr *addr)
{
    size_t len = addr->family == 0 ? 0 : addr->family == 4 ? 4 : 16;
    return (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)addr->ip};
}

enum hth_err hth_dialback_ask_open(const uint8_t *payload, size_t len, struct hth_addr *out)
{
    memset(out, 0, sizeof(*out));
    if (len > HTH_DIALBACK_MESSAGE_MAX)
        return HTH_E_TOO_LARGE;
    Hth__Dialback__Ask *m = hth__dialback__ask__unpack(NULL, len, payload);
    if (m == NULL)
        return HTH_E_MALFORMED;
    enum hth_err err = addr_set(&m->ip, m->port, out);
    hth__dialback__ask__free_unpacked(m, NULL);
    if (err == HTH_OK && (out->port == 0 || hth_addr_scope(out) == HTH_SCOPE_NONE))
        err = HTH_E_RANGE;
    return err;
}

enum hth_err hth_dialback_reply_open(const uint8_t *payload, size_t len,
                                     struct hth_dialback_reply *out)
{
    enum hth_err err = HTH_OK;
    memset(out, 0, sizeof(*out));
    if (len > HTH_DIALBACK_MESSAGE_MAX)
        return HTH_E_TOO_LARGE;
    Hth__Dialback__Reply *m = hth__dialback__reply__unpack(NULL, len, payload);
    if (m == NULL)
        return HTH_E_MALFORMED;
    out->reached = m->reached != 0;
    if (m->ip.len > 0)
        err = addr_set(&m->ip, 0, &out->from);
    hth__dialback__reply__free_unpacked(m, NULL);
    return err;
}

size_t hth_dialback_ask_pack(const struct hth_addr *addr, uint8_t out[HTH_DIALBACK_MESSAGE_MAX])
{
    Hth__Dialback__Ask m = HTH__DIALBACK__ASK__INIT;
    m.ip = ip_of(addr);
    m.port = addr->port;
    HTH_ASSERT(hth__dialback__ask__get_packed_size(&m) <= HTH_DIALBACK_MESSAGE_MAX);
    return hth__dialback__ask__pack(&m, out);
}

size_t hth_dialback_reply_pack(const struct hth_dialback_reply *reply,
                               uint8_t out[HTH_DIALBACK_MESSAGE_MAX])
{
    Hth__Dialback__Reply m = HTH__DIALBACK__REPLY__INIT;
    m.reached = reply->reached;
    m.ip = ip_of(&reply->from);
    HTH_ASSERT(hth__dialback__reply__get_packed_size(&m) <= HTH_DIALBACK_MESSAGE_MAX);
    return hth__dialback__reply__pack(&m, out);
}

/* ---- answering ----------------------------------------------------------------------------- */

static void answer(struct hth_rpc_request *req, bool reached)
{
    struct hth_dialback_reply reply = {.reached = reached, .from = hth_rpc_from(req)};
    uint8_t bytes[HTH_DIALBACK_MESSAGE_MAX];
    struct hth_rpc_body body = {.payload = bytes};
    body.payload_len = hth_dialback_reply_pack(&reply, bytes);
    hth_rpc_reply(req, &body);
}

static void slot_end(struct dial_slot *slot, bool reached)
{
    struct hth_rpc_request *req = slot->req;
    slot->req = NULL;
    slot->stream = NULL;
    if (req != NULL)
        answer(req, reached);
}

/* The handshake has proved the key. */
static void on_open(struct hth_stream *s, void *arg)
{
    struct dial_slot *slot = arg;
    hth_stream_close(slot->of->env, s, false);
    slot_end(slot, true);
}

static void on_nothing(struct hth_stream *s, void *arg)
{
    (void)s;
    (void)arg;
}

static void on_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    (void)s;
    (void)err;
    slot_end(arg, false);
}

static const struct hth_stream_ops DIAL_OPS = {.on_open = on_open,
                                               .on_readable = on_nothing,
                                               .on_drained = on_nothing,
                                               .on_closed = on_closed};

static struct dial_origin origin_of(const struct hth_addr *addr)
{
    struct dial_origin origin = {.family = addr->family};
    memcpy(origin.net, addr->ip, sizeof(origin.net)); /* for IPv4 the rest is zero */
    return origin;
}

static bool same(const struct dial_origin *a, const struct dial_origin *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* NULL: this origin asked too often, this target was dialled too often, or all together. */
static struct dial_slot *slot_take(struct hth_dialback *d, const struct hth_addr *from,
                                   const struct hth_addr *to)
{
    const struct dial_origin origin = origin_of(from), target = origin_of(to);
    struct dial_slot *free_slot = NULL;
    int64_t now = hth_now_us(d->env);
    for (size_t i = 0; i < HTH_DIALBACK_DIALS_MAX; i++) {
        struct dial_slot *slot = &d->slot[i];
        bool recent = slot->begun_us != 0 && now - slot->begun_us < HTH_DIALBACK_EACH_US;
        if (recent && (same(&slot->origin, &origin) || same(&slot->target, &target)))
            return NULL;
        if (!recent && slot->req == NULL)
            free_slot = slot;
    }
    if (free_slot != NULL)
        *free_slot = (struct dial_slot){
            .of = d, .origin = origin, .target = target, .begun_us = HTH_MAX(now, 1)};
    return free_slot;
}

static void on_ask(void *arg, struct hth_rpc_request *req)
{
    struct hth_dialback *d = arg;
    const struct hth_peer_id *peer = hth_rpc_peer(req);
    const struct hth_addr from = hth_rpc_from(req);
    struct hth_addr addr;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_dialback_ask_open(payload, len, &addr);
    if (err != HTH_OK) {
        hth_rpc_refuse(req, err, 0, NULL);
        return;
    }
    if (hth_addr_scope(&addr) < hth_addr_scope(&from)) {
        answer(req, false);
        return;
    }
    if (!hth_addr_same_ip(&addr, &from) &&
        (d->announced == NULL || !d->announced(d->arg, peer, &addr))) {
        hth_rpc_refuse(req, HTH_E_AGAIN, HTH_US_PER_S, "not the address you come from or announce");
        return;
    }
    struct dial_slot *slot = slot_take(d, &from, &addr);
    if (slot == NULL) {
        hth_rpc_refuse(req, HTH_E_BUSY, HTH_DIALBACK_EACH_US, NULL);
        return;
    }
    slot->req = req;
    if (hth_dial(d->env, &addr, peer, &DIAL_OPS, slot, &slot->stream) != HTH_OK) {
        slot->req = NULL;
        hth_rpc_refuse(req, HTH_E_BUSY, HTH_DIALBACK_EACH_US, NULL);
    }
}

struct hth_dialback *hth_dialback_new(struct hth_env *env, struct hth_rpc *rpc,
                                      hth_dialback_announced_fn *announced, void *arg)
{
    struct hth_dialback *d = hth_new(struct hth_dialback);
    d->env = env;
    d->rpc = rpc;
    d->announced = announced;
    d->arg = arg;
    hth_rpc_serve(rpc, HTH_RPC_DIALBACK, on_ask, d);
    return d;
}

void hth_dialback_free(struct hth_dialback *d)
{
    if (d == NULL)
        return;
    hth_rpc_serve(d->rpc, HTH_RPC_DIALBACK, NULL, NULL);
    for (size_t i = 0; i < HTH_DIALBACK_DIALS_MAX; i++) {
        struct dial_slot *slot = &d->slot[i];
        if (slot->stream != NULL)
            hth_stream_close(d->env, slot->stream, false);
        if (slot->req != NULL)
            hth_rpc_refuse(slot->req, HTH_E_DRAINING, 0, NULL);
    }
    hth_free(d);
}

/* ---- asking -------------------------------------------------------------------------------- */

enum hth_err hth_dialback_ask(struct hth_rpc *rpc, const struct hth_rpc_target *target,
                              const struct hth_addr *addr, hth_rpc_done_fn *done, void *arg,
                              struct hth_rpc_call **call)
{
    uint8_t bytes[HTH_DIALBACK_MESSAGE_MAX];
    struct hth_rpc_call_opts opts = {.method = HTH_RPC_DIALBACK,
                                     .timeout_us = HTH_DIALBACK_ASK_TIMEOUT_US};
    opts.body.payload = bytes;
    opts.body.payload_len = hth_dialback_ask_pack(addr, bytes);
    return hth_rpc_call(rpc, target, &opts, done, arg, call);
}
