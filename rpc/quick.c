/* SPDX-License-Identifier: Apache-2.0 */
/* quick.c: plain proto3 by hand: a field is a tag (number << 3 | wire type) and a value; zeros and
 * empty things are left out. */
#include "rpc/quick.h"

#include <string.h>

#include "core/bytes.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2 };

#define TAG(number, wire) ((uint8_t)((number) << 3 | (wire)))

/* ---- writing ------------------------------------------------------------------------------- */

static uint8_t *put_varint(uint8_t *out, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        *out++ = (uint8_t)(v | 0x80);
    *out++ = (uint8_t)v;
    return out;
}

static uint8_t *put_number(uint8_t *out, uint8_t tag, uint64_t v)
{
    if (v == 0)
        return out;
    *out++ = tag;
    return put_varint(out, v);
}

static uint8_t *put_fixed(uint8_t *out, uint8_t tag, uint64_t v)
{
    if (v == 0)
        return out;
    *out++ = tag;
    hth_store_u64le(out, v);
    return out + 8;
}

static uint8_t *put_bytes(uint8_t *out, uint8_t tag, const void *data, size_t len)
{
    if (len == 0)
        return out;
    *out++ = tag;
    out = put_varint(out, len);
    memcpy(out, data, len);
    return out + len;
}

/* The length of what is written behind it fits in one byte: at most 4 dims of 10 bytes, two numbers
 * of 11 and one of 6. */
static uint8_t *put_tensor(uint8_t *out, uint8_t tag, const struct hth_tensor *t, uint64_t offset,
                           uint64_t bytes)
{
    uint8_t *len = out + 1;
    *out = tag;
    out = put_number(out + 2, TAG(1, VARINT), t->dtype);
    if (t->ndim > 0) {
        uint8_t *dims_len = out + 1;
        *out = TAG(2, BYTES);
        out += 2;
        for (uint32_t d = 0; d < t->ndim; d++)
            out = put_varint(out, t->dim[d]);
        *dims_len = (uint8_t)(out - dims_len - 1);
    }
    out = put_number(out, TAG(3, VARINT), offset);
    out = put_number(out, TAG(4, VARINT), bytes);
    *len = (uint8_t)(out - len - 1);
    return out;
}

static uint8_t *put_tensors(uint8_t *out, uint8_t tag, const struct hth_rpc_body *body)
{
    uint64_t end = 0;
    for (size_t i = 0; i < body->tensor_count; i++) {
        const struct hth_tensor *t = &body->tensors[i];
        uint64_t bytes = 0, start = (end + HTH_FRAME_ALIGN - 1) / HTH_FRAME_ALIGN * HTH_FRAME_ALIGN;
        enum hth_err err = hth_tensor_bytes(t, &bytes);
        HTH_ASSERT(err == HTH_OK && t->ndim <= HTH_TENSOR_DIMS_MAX);
        out = put_tensor(out, tag, t, bytes > 0 ? start : 0, bytes);
        end = bytes > 0 ? start + bytes : end;
    }
    return out;
}

static uint8_t *put_hello(uint8_t *out, const struct hth_frame_msg *msg)
{
    const char *network = msg->u.hello.network;
    out = put_number(out, TAG(1, VARINT), msg->u.hello.version_min);
    out = put_number(out, TAG(2, VARINT), msg->u.hello.version_max);
    out = put_bytes(out, TAG(3, BYTES), network, network != NULL ? strlen(network) : 0);
    out = put_fixed(out, TAG(4, FIXED64), msg->u.hello.features);
    out = put_number(out, TAG(5, VARINT), msg->u.hello.requests_max);
    out = put_number(out, TAG(6, VARINT), msg->u.hello.body_bytes_max);
    out = put_number(out, TAG(7, VARINT), msg->u.hello.request_credit_bytes);
    return put_number(out, TAG(8, VARINT), msg->u.hello.reply_credit_bytes);
}

static uint8_t *put_request(uint8_t *out, const struct hth_frame_msg *msg)
{
    out = put_number(out, TAG(1, VARINT), msg->u.request.method);
    out = put_number(out, TAG(2, VARINT), msg->u.request.timeout_ms);
    out = put_fixed(out, TAG(3, FIXED64), msg->u.request.idem.hi);
    out = put_fixed(out, TAG(4, FIXED64), msg->u.request.idem.lo);
    out = put_bytes(out, TAG(5, BYTES), msg->body.payload, msg->body.payload_len);
    return put_tensors(out, TAG(6, BYTES), &msg->body);
}

size_t hth_quick_write(const struct hth_frame_msg *msg, uint8_t *out)
{
    uint8_t *end = out;
    switch (msg->type) {
    case HTH_FRAME_HELLO:
        end = put_hello(out, msg);
        break;
    case HTH_FRAME_REQUEST:
        end = put_request(out, msg);
        break;
    case HTH_FRAME_REPLY:
        end = put_bytes(out, TAG(1, BYTES), msg->body.payload, msg->body.payload_len);
        end = put_tensors(end, TAG(2, BYTES), &msg->body);
        break;
    default:
        HTH_ASSERT(msg->type == HTH_FRAME_CREDIT);
        end = put_number(out, TAG(1, VARINT), msg->u.credit.reply_bytes);
        break;
    }
    return (size_t)(end - out);
}

/* ---- reading ------------------------------------------------------------------------------- */

struct cursor {
    const uint8_t *at, *end;
};

static bool get_varint(struct cursor *c, uint64_t *v)
{
    uint64_t sum = 0;
    for (unsigned shift = 0; shift < 63 && c->at < c->end; shift += 7) {
        uint8_t byte = *c->at++;
        sum |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *v = sum;
            return true;
        }
    }
    return false;
}

static bool get_u32(struct cursor *c, uint32_t *v)
{
    uint64_t wide;
    if (!get_varint(c, &wide) || wide > UINT32_MAX)
        return false;
    *v = (uint32_t)wide;
    return true;
}

static bool get_fixed(struct cursor *c, uint64_t *v)
{
    if (c->end - c->at < 8)
        return false;
    *v = hth_load_u64le(c->at);
    c->at += 8;
    return true;
}

static bool get_part(struct cursor *c, struct cursor *part)
{
    uint64_t len;
    if (!get_varint(c, &len) || len > (uint64_t)(c->end - c->at))
        return false;
    *part = (struct cursor){c->at, c->at + len};
    c->at += len;
    return true;
}

/* Copies bytes to q->text. */
static bool get_text(struct cursor *c, struct hth_quick *q, size_t *len)
{
    struct cursor part;
    if (!get_part(c, &part) || part.end - part.at > HTH_QUICK_BYTES_MAX)
        return false;
    *len = (size_t)(part.end - part.at);
    memcpy(q->text, part.at, *len);
    q->text[*len] = '\0';
    return true;
}

/* The next tag: false when it is not behind the last one. */
static bool get_tag(struct cursor *c, uint8_t *tag, uint8_t repeated)
{
    uint8_t next = *c->at++;
    bool ok = next > *tag || (next == *tag && next == repeated);
    *tag = next;
    return ok;
}

static bool get_dims(struct cursor *c, Hth__Rpc__Tensor *t, uint64_t dim[HTH_TENSOR_DIMS_MAX])
{
    struct cursor part;
    if (!get_part(c, &part))
        return false;
    t->dim = dim;
    while (part.at < part.end) {
        if (t->n_dim == HTH_TENSOR_DIMS_MAX || !get_varint(&part, &dim[t->n_dim]))
            return false;
        t->n_dim++;
    }
    return true;
}

static bool get_tensor(struct cursor *c, struct hth_quick *q, size_t *count)
{
    struct cursor part;
    if (*count == HTH_QUICK_TENSORS_MAX || !get_part(c, &part))
        return false;
    Hth__Rpc__Tensor *t = &q->tensor[*count];
    uint8_t tag = 0;
    hth__rpc__tensor__init(t);
    while (part.at < part.end) {
        bool ok = get_tag(&part, &tag, 0);
        if (tag == TAG(1, VARINT))
            ok = ok && get_u32(&part, &t->dtype);
        else if (tag == TAG(2, BYTES))
            ok = ok && get_dims(&part, t, q->dim[*count]);
        else if (tag == TAG(3, VARINT))
            ok = ok && get_varint(&part, &t->offset);
        else if (tag == TAG(4, VARINT))
            ok = ok && get_varint(&part, &t->bytes);
        else
            return false;
        if (!ok)
            return false;
    }
    q->tensor_ptr[*count] = t;
    ++*count;
    return true;
}

static bool get_hello(struct cursor *c, struct hth_quick *q, uint8_t tag)
{
    Hth__Rpc__Hello *m = &q->m.hello;
    size_t len;
    switch (tag) {
    case TAG(1, VARINT):
        return get_u32(c, &m->version_min);
    case TAG(2, VARINT):
        return get_u32(c, &m->version_max);
    case TAG(3, BYTES):
        m->network = q->text;
        return get_text(c, q, &len);
    case TAG(4, FIXED64):
        return get_fixed(c, &m->features);
    case TAG(5, VARINT):
        return get_u32(c, &m->requests_max);
    case TAG(6, VARINT):
        return get_varint(c, &m->body_bytes_max);
    case TAG(7, VARINT):
        return get_varint(c, &m->request_credit_bytes);
    case TAG(8, VARINT):
        return get_varint(c, &m->reply_credit_bytes);
    }
    return false;
}

static bool get_request(struct cursor *c, struct hth_quick *q, uint8_t tag)
{
    Hth__Rpc__Request *m = &q->m.request;
    switch (tag) {
    case TAG(1, VARINT):
        return get_u32(c, &m->method);
    case TAG(2, VARINT):
        return get_u32(c, &m->timeout_ms);
    case TAG(3, FIXED64):
        return get_fixed(c, &m->idem_hi);
    case TAG(4, FIXED64):
        return get_fixed(c, &m->idem_lo);
    case TAG(5, BYTES):
        m->payload.data = (uint8_t *)q->text;
        return get_text(c, q, &m->payload.len);
    case TAG(6, BYTES):
        m->tensors = q->tensor_ptr;
        return get_tensor(c, q, &m->n_tensors);
    }
    return false;
}

static bool get_reply(struct cursor *c, struct hth_quick *q, uint8_t tag)
{
    Hth__Rpc__Reply *m = &q->m.reply;
    switch (tag) {
    case TAG(1, BYTES):
        m->payload.data = (uint8_t *)q->text;
        return get_text(c, q, &m->payload.len);
    case TAG(2, BYTES):
        m->tensors = q->tensor_ptr;
        return get_tensor(c, q, &m->n_tensors);
    }
    return false;
}

static bool get_credit(struct cursor *c, struct hth_quick *q, uint8_t tag)
{
    return tag == TAG(1, VARINT) && get_varint(c, &q->m.credit.reply_bytes);
}

bool hth_quick_read(enum hth_frame_type type, const uint8_t *in, size_t len, struct hth_quick *q)
{
    bool (*field)(struct cursor * c, struct hth_quick * q, uint8_t tag) = NULL;
    uint8_t tag = 0, repeated = 0;
    if (type == HTH_FRAME_REQUEST) {
        hth__rpc__request__init(&q->m.request);
        field = get_request;
        repeated = TAG(6, BYTES);
    } else if (type == HTH_FRAME_REPLY) {
        hth__rpc__reply__init(&q->m.reply);
        field = get_reply;
        repeated = TAG(2, BYTES);
    } else if (type == HTH_FRAME_HELLO) {
        hth__rpc__hello__init(&q->m.hello);
        field = get_hello;
    } else if (type == HTH_FRAME_CREDIT) {
        hth__rpc__credit__init(&q->m.credit);
        field = get_credit;
    }
    struct cursor c = {in, in + len};
    while (field != NULL && c.at < c.end) {
        if (!get_tag(&c, &tag, repeated) || !field(&c, q, tag))
            return false;
    }
    return field != NULL;
}
