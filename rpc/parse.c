/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parse.c: reading frames. Bytes here come from strangers: every number is checked before it is
 * used, memory is taken from the peer's budget, and each way to fail has its error.
 */
#include "rpc/frame.h"

#include <string.h>

#include "core/mem.h"
#include "rpc/wire.pb-c.h"

/* ---- arena --------------------------------------------------------------------------------- */

#define CHUNK_BYTES_MIN 4096

struct hth_arena_chunk {
    struct hth_arena_chunk *next;
    size_t size; /* of data */
    size_t used;
    _Alignas(16) uint8_t data[];
};

static void *arena_chunk_alloc(struct hth_arena *a, size_t size)
{
    struct hth_arena_chunk *c = a->chunks;
    if (c != NULL && size <= c->size - c->used) {
        void *p = c->data + c->used;
        c->used += size;
        return p;
    }
    size_t room = HTH_MAX(size, (size_t)CHUNK_BYTES_MIN);
    if (room > HTH_RPC_ARENA_BYTES_MAX || a->total + room > HTH_RPC_ARENA_BYTES_MAX) {
        a->err = HTH_E_TOO_LARGE;
        return NULL;
    }
    if (a->budget != NULL && hth_budget_take(a->budget, room) != HTH_OK) {
        a->err = HTH_E_BUDGET;
        return NULL;
    }
    c = hth_try_alloc(sizeof(*c) + room);
    if (c == NULL) {
        if (a->budget != NULL)
            hth_budget_give(a->budget, room);
        a->err = HTH_E_NO_MEMORY;
        return NULL;
    }
    c->size = room;
    c->used = size;
    c->next = a->chunks;
    a->chunks = c;
    a->total += room;
    return c->data;
}

static void *arena_alloc(struct hth_arena *a, size_t size)
{
    if (size > HTH_RPC_ARENA_BYTES_MAX) {
        a->err = HTH_E_TOO_LARGE;
        return NULL;
    }
    size = (size + 15) & ~(size_t)15;
    if (size <= sizeof(a->first) - a->first_used) {
        void *p = a->first + a->first_used;
        a->first_used += size;
        return p;
    }
    return arena_chunk_alloc(a, size);
}

static void arena_clear(struct hth_arena *a)
{
    while (a->chunks != NULL) {
        struct hth_arena_chunk *c = a->chunks;
        a->chunks = c->next;
        if (a->budget != NULL)
            hth_budget_give(a->budget, c->size);
        hth_free(c);
    }
    a->first_used = 0;
    a->total = 0;
    a->err = HTH_OK;
    a->budget = NULL;
}

static void *pb_alloc(void *arg, size_t size)
{
    return arena_alloc(arg, size);
}

/* Does nothing: the arena frees everything at once. */
static void pb_free(void *arg, void *p)
{
    (void)arg;
    (void)p;
}

/* ---- frame --------------------------------------------------------------------------------- */

void hth_frame_init(struct hth_frame *f)
{
    /* The arena's first block is not cleared: that would cost more than the rest of a small
     * frame. */
    memset(&f->header, 0, sizeof(f->header));
    memset(&f->msg, 0, sizeof(f->msg));
    f->body = NULL;
    f->next = NULL;
    f->arena.chunks = NULL;
    f->arena.budget = NULL;
    arena_clear(&f->arena);
}

void hth_frame_clear(struct hth_frame *f)
{
    hth_blob_unref(f->body);
    f->body = NULL;
    arena_clear(&f->arena);
    memset(&f->header, 0, sizeof(f->header));
    memset(&f->msg, 0, sizeof(f->msg));
}

const char *hth_frame_clean(char *text)
{
    size_t n = 0;
    for (; text[n] != '\0' && n < HTH_RPC_TEXT_MAX; n++) {
        if (text[n] < 0x20 || text[n] > 0x7e)
            text[n] = '?';
    }
    /* protobuf-c's empty string is a constant, so an empty text is not written to. */
    if (text[n] != '\0')
        text[n] = '\0';
    return text;
}

/* Checks the sections against each other and the body, and converts them to tensors. */
static enum hth_err take_tensors(struct hth_frame *f, Hth__Rpc__Tensor **in, size_t count)
{
    uint64_t end = 0;
    struct hth_tensor *out = NULL;
    if (count > HTH_FRAME_TENSORS_MAX)
        return HTH_E_TOO_LARGE;
    if (count > 0) {
        out = arena_alloc(&f->arena, count * sizeof(*out));
        if (out == NULL)
            return f->arena.err;
        memset(out, 0, count * sizeof(*out));
    }
    for (size_t i = 0; i < count; i++) {
        struct hth_tensor *t = &out[i];
        uint64_t bytes;
        if (in[i]->n_dim > HTH_TENSOR_DIMS_MAX || in[i]->dtype == 0 || in[i]->dtype > HTH_I64)
            return HTH_E_BAD_SHAPE;
        t->dtype = (enum hth_dtype)in[i]->dtype;
        t->ndim = (uint32_t)in[i]->n_dim;
        for (uint32_t d = 0; d < t->ndim; d++)
            t->dim[d] = in[i]->dim[d];
        HTH_TRY(hth_tensor_bytes(t, &bytes));
        if (bytes != in[i]->bytes)
            return HTH_E_BAD_SHAPE;
        uint64_t start = (end + HTH_FRAME_ALIGN - 1) / HTH_FRAME_ALIGN * HTH_FRAME_ALIGN;
        if (in[i]->offset != (bytes > 0 ? start : 0))
            return HTH_E_BAD_SHAPE;
        /* An empty section has no place, so its offset is not compared with the end. */
        if (bytes > 0 && (bytes > f->header.body_len || start > f->header.body_len - bytes))
            return HTH_E_BAD_SHAPE;
        t->offset = (size_t)in[i]->offset;
        end = bytes > 0 ? start + bytes : end;
    }
    if (end != f->header.body_len)
        return HTH_E_BAD_SHAPE;
    f->msg.body.tensors = out;
    f->msg.body.tensor_count = count;
    return HTH_OK;
}

static enum hth_err take_hello(struct hth_frame *f, const Hth__Rpc__Hello *m)
{
    if (strlen(m->network) > HTH_NAME_LEN_MAX || m->version_min > m->version_max ||
        m->pass.len > HTH_CREDS_BYTES_MAX)
        return HTH_E_RANGE;
    f->msg.u.hello.version_min = m->version_min;
    f->msg.u.hello.version_max = m->version_max;
    f->msg.u.hello.network = m->network;
    f->msg.u.hello.features = m->features;
    f->msg.u.hello.requests_max = m->requests_max;
    f->msg.u.hello.body_bytes_max = m->body_bytes_max;
    f->msg.u.hello.request_credit_bytes = m->request_credit_bytes;
    f->msg.u.hello.reply_credit_bytes = m->reply_credit_bytes;
    f->msg.u.hello.pass = m->pass.data;
    f->msg.u.hello.pass_len = m->pass.len;
    return HTH_OK;
}

/* All endpoints of an open run send the same HELLO, so a HELLO mostly equals the one before it: a
 * thread remembers the last valid meta and its parsed message. (A third of the frames that a swarm
 * under churn reads are HELLOs.) */
#define LAST_HELLO_BYTES_MAX 256

static _Thread_local struct {
    uint32_t len; /* 0: none */
    uint8_t meta[LAST_HELLO_BYTES_MAX];
    struct hth_frame_msg msg;
    char network[HTH_NAME_LEN_MAX + 1];
} last_hello;

static enum hth_err keep_network(struct hth_frame *f)
{
    size_t size = strlen(last_hello.network) + 1;
    char *text = arena_alloc(&f->arena, size);
    if (text == NULL)
        return f->arena.err;
    f->msg.u.hello.network = memcpy(text, last_hello.network, size);
    return HTH_OK;
}

/* True if the meta equals the last HELLO's; then *err is the result of reading it. */
static bool is_last_hello(struct hth_frame *f, const uint8_t *meta, enum hth_err *err)
{
    if (last_hello.len == 0 || f->header.meta_len != last_hello.len ||
        memcmp(meta, last_hello.meta, last_hello.len) != 0)
        return false;
    f->msg.u.hello = last_hello.msg.u.hello;
    *err = keep_network(f);
    return true;
}

/* Only one that fits in the arena's first block: it reads alike under any budget. None with a pass,
 * which lies in the frame, and which no other peer sends. */
static void keep_hello(const struct hth_frame *f, const uint8_t *meta)
{
    if (f->header.meta_len == 0 || f->header.meta_len > LAST_HELLO_BYTES_MAX ||
        f->arena.chunks != NULL || f->msg.u.hello.pass_len > 0)
        return;
    last_hello.len = f->header.meta_len;
    memcpy(last_hello.meta, meta, last_hello.len);
    last_hello.msg.u.hello = f->msg.u.hello;
    memcpy(last_hello.network, f->msg.u.hello.network, strlen(f->msg.u.hello.network) + 1);
}

static enum hth_err take_request(struct hth_frame *f, const Hth__Rpc__Request *m)
{
    if (m->method > UINT16_MAX)
        return HTH_E_RANGE;
    f->msg.u.request.method = (uint16_t)m->method;
    f->msg.u.request.timeout_ms = HTH_MIN(m->timeout_ms, (uint32_t)HTH_RPC_TIMEOUT_MS_MAX);
    f->msg.u.request.idem.hi = m->idem_hi;
    f->msg.u.request.idem.lo = m->idem_lo;
    f->msg.body.payload = m->payload.data;
    f->msg.body.payload_len = m->payload.len;
    return take_tensors(f, m->tensors, m->n_tensors);
}

static enum hth_err take_reply(struct hth_frame *f, const Hth__Rpc__Reply *m)
{
    f->msg.body.payload = m->payload.data;
    f->msg.body.payload_len = m->payload.len;
    return take_tensors(f, m->tensors, m->n_tensors);
}

static enum hth_err take_refuse(struct hth_frame *f, const Hth__Rpc__Refuse *m)
{
    if (m->error == HTH_OK)
        return HTH_E_RANGE;
    f->msg.u.refuse.err = hth_err_from_wire(m->error);
    f->msg.u.refuse.retry_after_ms = HTH_MIN(m->retry_after_ms, (uint32_t)HTH_RPC_TIMEOUT_MS_MAX);
    f->msg.u.refuse.text = hth_frame_clean(m->text);
    return HTH_OK;
}

static enum hth_err take_goodbye(struct hth_frame *f, const Hth__Rpc__Goodbye *m)
{
    f->msg.u.refuse.err = hth_err_from_wire(m->error);
    f->msg.u.refuse.text = hth_frame_clean(m->text);
    return HTH_OK;
}

static const ProtobufCMessageDescriptor *descriptor_of(enum hth_frame_type type)
{
    switch (type) {
    case HTH_FRAME_HELLO:
        return &hth__rpc__hello__descriptor;
    case HTH_FRAME_REQUEST:
        return &hth__rpc__request__descriptor;
    case HTH_FRAME_REPLY:
        return &hth__rpc__reply__descriptor;
    case HTH_FRAME_REFUSE:
        return &hth__rpc__refuse__descriptor;
    case HTH_FRAME_CREDIT:
        return &hth__rpc__credit__descriptor;
    case HTH_FRAME_GOODBYE:
        return &hth__rpc__goodbye__descriptor;
    case HTH_FRAME_CANCEL:
    case HTH_FRAME_PING:
    case HTH_FRAME_PONG:
        break;
    }
    return NULL;
}

enum hth_err hth_frame_unpack(struct hth_frame *f, const uint8_t *meta, struct hth_budget *budget)
{
    const ProtobufCMessageDescriptor *desc = descriptor_of((enum hth_frame_type)f->header.type);
    f->msg.type = (enum hth_frame_type)f->header.type;
    f->msg.id = f->header.id;
    f->msg.trace_id = f->header.trace_id;
    if (desc == NULL)
        return HTH_OK;
    f->arena.budget = budget;
    enum hth_err err;
    if (f->msg.type == HTH_FRAME_HELLO && is_last_hello(f, meta, &err))
        return err;
    ProtobufCAllocator allocator = {pb_alloc, pb_free, &f->arena};
    const void *m = protobuf_c_message_unpack(desc, &allocator, f->header.meta_len, meta);
    if (m == NULL)
        return f->arena.err != HTH_OK ? f->arena.err : HTH_E_MALFORMED;
    switch (f->msg.type) {
    case HTH_FRAME_HELLO:
        err = take_hello(f, m);
        if (err == HTH_OK)
            keep_hello(f, meta);
        return err;
    case HTH_FRAME_REQUEST:
        return take_request(f, m);
    case HTH_FRAME_REPLY:
        return take_reply(f, m);
    case HTH_FRAME_REFUSE:
        return take_refuse(f, m);
    case HTH_FRAME_GOODBYE:
        return take_goodbye(f, m);
    case HTH_FRAME_CREDIT:
        f->msg.u.credit.reply_bytes = ((const Hth__Rpc__Credit *)m)->reply_bytes;
        return HTH_OK;
    case HTH_FRAME_CANCEL:
    case HTH_FRAME_PING:
    case HTH_FRAME_PONG:
        break;
    }
    return HTH_E_BUG;
}

/* ---- parser -------------------------------------------------------------------------------- */

/* Enough for the header and nearly every meta; a larger meta gets a temporary blob. */
#define RX_BYTES 768

void hth_frame_parser_init(struct hth_frame_parser *p, struct hth_budget *budget)
{
    memset(p, 0, sizeof(*p));
    p->budget = budget;
    p->need = HTH_FRAME_HEADER_BYTES;
}

void hth_frame_parser_clear(struct hth_frame_parser *p)
{
    hth_blob_unref(p->rx);
    hth_blob_unref(p->scratch);
    p->rx = NULL;
    p->scratch = NULL;
}

bool hth_frame_parser_busy(const struct hth_frame_parser *p)
{
    return p->have > 0 || p->phase != HTH_FRAME_IN_HEADER;
}

enum hth_err hth_frame_parser_want(struct hth_frame_parser *p, struct hth_blob **into,
                                   size_t *offset, size_t *max)
{
    size_t room = p->phase == HTH_FRAME_IN_META ? p->need : HTH_FRAME_HEADER_BYTES;
    HTH_ASSERT(p->phase != HTH_FRAME_AT_BODY && p->phase != HTH_FRAME_BROKEN);
    if (p->phase == HTH_FRAME_IN_BODY) {
        *into = p->frame->body;
        *offset = p->have;
        *max = p->need - p->have;
        return HTH_OK;
    }
    if (p->phase == HTH_FRAME_IN_SKIP) {
        *into = p->scratch;
        *offset = 0;
        *max = HTH_MIN(p->need - p->have, p->scratch->size);
        return HTH_OK;
    }
    if (p->rx == NULL || room > p->rx->size ||
        (p->rx->size > RX_BYTES && p->phase == HTH_FRAME_IN_HEADER && p->have == 0)) {
        hth_blob_unref(p->rx);
        p->rx = NULL;
        HTH_TRY(hth_blob_new_budget(HTH_MAX(room, (size_t)RX_BYTES), p->budget, &p->rx));
    }
    *into = p->rx;
    *offset = p->have;
    *max = p->need - p->have;
    return HTH_OK;
}

static enum hth_frame_event broken(struct hth_frame_parser *p, enum hth_err err)
{
    p->phase = HTH_FRAME_BROKEN;
    p->err = err;
    return HTH_FRAME_BAD;
}

static void next_phase(struct hth_frame_parser *p, enum hth_frame_phase phase, size_t need)
{
    p->phase = phase;
    p->have = 0;
    p->need = need;
}

static enum hth_frame_event meta_done(struct hth_frame_parser *p)
{
    const uint8_t *meta = p->frame->header.meta_len > 0 ? p->rx->data : NULL;
    enum hth_err err = hth_frame_unpack(p->frame, meta, p->budget);
    if (err != HTH_OK)
        return broken(p, err);
    if (p->frame->header.body_len > 0)
        next_phase(p, HTH_FRAME_AT_BODY, p->frame->header.body_len);
    else
        next_phase(p, HTH_FRAME_IN_HEADER, HTH_FRAME_HEADER_BYTES);
    return HTH_FRAME_HEAD;
}

enum hth_frame_event hth_frame_parser_got(struct hth_frame_parser *p, size_t n)
{
    HTH_ASSERT(n <= p->need - p->have && p->frame != NULL);
    p->have += n;
    if (p->have < p->need)
        return HTH_FRAME_MORE;
    switch (p->phase) {
    case HTH_FRAME_IN_HEADER: {
        enum hth_err err = hth_frame_header_read(p->rx->data, &p->frame->header);
        if (err != HTH_OK)
            return broken(p, err);
        if (p->frame->header.meta_len == 0)
            return meta_done(p);
        next_phase(p, HTH_FRAME_IN_META, p->frame->header.meta_len);
        return HTH_FRAME_MORE;
    }
    case HTH_FRAME_IN_META:
        return meta_done(p);
    case HTH_FRAME_IN_SKIP:
        hth_blob_unref(p->scratch);
        p->scratch = NULL;
        next_phase(p, HTH_FRAME_IN_HEADER, HTH_FRAME_HEADER_BYTES);
        return HTH_FRAME_BODY;
    case HTH_FRAME_IN_BODY:
        next_phase(p, HTH_FRAME_IN_HEADER, HTH_FRAME_HEADER_BYTES);
        return HTH_FRAME_BODY;
    case HTH_FRAME_AT_BODY:
    case HTH_FRAME_BROKEN:
        break;
    }
    return broken(p, HTH_E_BUG);
}

void hth_frame_parser_body_take(struct hth_frame_parser *p, struct hth_blob *body)
{
    struct hth_tensor *t = (struct hth_tensor *)p->frame->msg.body.tensors;
    HTH_ASSERT(p->phase == HTH_FRAME_AT_BODY && body->size >= p->need);
    p->frame->body = body;
    for (size_t i = 0; i < p->frame->msg.body.tensor_count; i++)
        t[i].blob = body;
    next_phase(p, HTH_FRAME_IN_BODY, p->need);
}

void hth_frame_parser_skip_take(struct hth_frame_parser *p, struct hth_blob *scratch)
{
    HTH_ASSERT(p->phase == HTH_FRAME_AT_BODY && scratch->size > 0);
    p->scratch = scratch;
    next_phase(p, HTH_FRAME_IN_SKIP, p->need);
}
