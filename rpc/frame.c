/* SPDX-License-Identifier: Apache-2.0 */
/* frame.c: writing frames, and the header both ways. parse.c reads the rest. */
#include "rpc/frame.h"

#include <string.h>

#include "core/bytes.h"
#include "core/mem.h"
#include "rpc/wire.pb-c.h"

static const uint8_t magic[4] = {'H', 'R', 'T', 'H'};

_Static_assert(HTH_FRAME_AT_BODY_LEN + 4 == HTH_FRAME_HEADER_BYTES, "the header has no gap");

void hth_frame_header_write(const struct hth_frame_header *h, uint8_t out[HTH_FRAME_HEADER_BYTES])
{
    memcpy(out + HTH_FRAME_AT_MAGIC, magic, sizeof(magic));
    out[HTH_FRAME_AT_VERSION] = h->version;
    out[HTH_FRAME_AT_TYPE] = h->type;
    out[HTH_FRAME_AT_FLAGS] = (uint8_t)(h->flags & 0xff);
    out[HTH_FRAME_AT_FLAGS + 1] = (uint8_t)(h->flags >> 8);
    hth_store_u64le(out + HTH_FRAME_AT_ID, h->id);
    hth_store_u64le(out + HTH_FRAME_AT_TRACE, h->trace_id);
    hth_store_u32le(out + HTH_FRAME_AT_META_LEN, h->meta_len);
    hth_store_u32le(out + HTH_FRAME_AT_BODY_LEN, h->body_len);
}

static bool type_has_body(uint8_t type)
{
    return type == HTH_FRAME_REQUEST || type == HTH_FRAME_REPLY;
}

static bool type_has_meta(uint8_t type)
{
    return type != HTH_FRAME_CANCEL && type != HTH_FRAME_PING && type != HTH_FRAME_PONG;
}

enum hth_err hth_frame_header_read(const uint8_t in[HTH_FRAME_HEADER_BYTES],
                                   struct hth_frame_header *h)
{
    if (memcmp(in + HTH_FRAME_AT_MAGIC, magic, sizeof(magic)) != 0)
        return HTH_E_BAD_MAGIC;
    h->version = in[HTH_FRAME_AT_VERSION];
    h->type = in[HTH_FRAME_AT_TYPE];
    h->flags = (uint16_t)(in[HTH_FRAME_AT_FLAGS] | in[HTH_FRAME_AT_FLAGS + 1] << 8);
    h->id = hth_load_u64le(in + HTH_FRAME_AT_ID);
    h->trace_id = hth_load_u64le(in + HTH_FRAME_AT_TRACE);
    h->meta_len = hth_load_u32le(in + HTH_FRAME_AT_META_LEN);
    h->body_len = hth_load_u32le(in + HTH_FRAME_AT_BODY_LEN);
    if (h->version < HTH_RPC_VERSION_MIN || h->version > HTH_RPC_VERSION_MAX)
        return HTH_E_VERSION;
    if (h->type < HTH_FRAME_HELLO || h->type > HTH_FRAME_GOODBYE || h->flags != 0)
        return HTH_E_PROTOCOL;
    /* A stranger's HELLO is read before anything is known of it. */
    if ((h->type == HTH_FRAME_HELLO && h->meta_len > HTH_RPC_HELLO_BYTES_MAX) ||
        h->meta_len > HTH_FRAME_META_BYTES_MAX || h->body_len > HTH_FRAME_BODY_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    if ((h->body_len > 0 && !type_has_body(h->type)) ||
        (h->meta_len > 0 && !type_has_meta(h->type)))
        return HTH_E_PROTOCOL;
    return HTH_OK;
}

enum hth_err hth_frame_body_len(const struct hth_tensor *tensors, size_t count, uint64_t *len)
{
    uint64_t end = 0;
    if (count > HTH_FRAME_TENSORS_MAX)
        return HTH_E_TOO_LARGE;
    for (size_t i = 0; i < count; i++) {
        const struct hth_tensor *t = &tensors[i];
        uint64_t bytes;
        HTH_TRY(hth_tensor_bytes(t, &bytes));
        uint64_t start = (end + HTH_FRAME_ALIGN - 1) / HTH_FRAME_ALIGN * HTH_FRAME_ALIGN;
        if (bytes > HTH_FRAME_BODY_BYTES_MAX || start + bytes > HTH_FRAME_BODY_BYTES_MAX)
            return HTH_E_TOO_LARGE;
        if (bytes > 0 &&
            (t->blob == NULL || t->offset > t->blob->size || bytes > t->blob->size - t->offset))
            return HTH_E_BAD_SHAPE;
        /* An empty section takes no room and no padding. */
        end = bytes > 0 ? start + bytes : end;
    }
    *len = end;
    return HTH_OK;
}

size_t hth_frame_pack_bound(const struct hth_frame_msg *msg)
{
    /* A Tensor has at most 4 dims of 10 bytes, three numbers of 10, tags and its own length. */
    size_t pass_len = msg->type == HTH_FRAME_HELLO ? msg->u.hello.pass_len : 0;
    return HTH_FRAME_HEADER_BYTES + 512 + pass_len + msg->body.payload_len +
           msg->body.tensor_count * 96;
}

static size_t varint_len(uint64_t v)
{
    size_t n = 1;
    for (; v >= 0x80; v >>= 7)
        n++;
    return n;
}

size_t hth_frame_meta_bound(const struct hth_frame_msg *msg)
{
    /* All but payload and tensors: method 4, timeout 6, key 18, the payload's tag 4. */
    size_t n = 32 + msg->body.payload_len;
    for (size_t i = 0; i < msg->body.tensor_count; i++) {
        const struct hth_tensor *t = &msg->body.tensors[i];
        /* Tag and length of the message and of its dims; dtype 2; offset 6 and bytes 6, as bodies
         * are below 2^31. */
        n += 2 + 2 + 2 + 6 + 6;
        for (uint32_t d = 0; d < t->ndim && d < HTH_TENSOR_DIMS_MAX; d++)
            n += varint_len(t->dim[d]);
    }
    return n;
}

/* ---- messages ------------------------------------------------------------------------------ */

#define TENSORS_INLINE 8

/* The generated structs of a frame's tensors; on the stack when there are few. */
struct pb_tensors {
    Hth__Rpc__Tensor few[TENSORS_INLINE];
    Hth__Rpc__Tensor *few_ptr[TENSORS_INLINE];
    void *many;
    Hth__Rpc__Tensor **ptr;
};

static enum hth_err pb_tensors_fill(struct pb_tensors *pb, const struct hth_rpc_body *body,
                                    uint64_t *body_len)
{
    size_t n = body->tensor_count;
    Hth__Rpc__Tensor *item = pb->few;
    HTH_TRY(hth_frame_body_len(body->tensors, n, body_len));
    if (n > TENSORS_INLINE) {
        pb->many = hth_try_calloc(n, sizeof(*pb->ptr) + sizeof(*item));
        if (pb->many == NULL)
            return HTH_E_NO_MEMORY;
        item = pb->many;
        pb->ptr = (Hth__Rpc__Tensor **)(void *)(item + n);
    }
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        const struct hth_tensor *t = &body->tensors[i];
        hth__rpc__tensor__init(&item[i]);
        HTH_TRY(hth_tensor_bytes(t, &item[i].bytes));
        uint64_t start = (end + HTH_FRAME_ALIGN - 1) / HTH_FRAME_ALIGN * HTH_FRAME_ALIGN;
        item[i].dtype = t->dtype;
        item[i].n_dim = t->ndim;
        item[i].dim = (uint64_t *)t->dim;
        if (item[i].bytes > 0) {
            item[i].offset = start;
            end = start + item[i].bytes;
        }
        pb->ptr[i] = &item[i];
    }
    return HTH_OK;
}

static size_t pack_request(const struct hth_frame_msg *msg, struct pb_tensors *pb, uint8_t *out)
{
    Hth__Rpc__Request m = HTH__RPC__REQUEST__INIT;
    m.method = msg->u.request.method;
    m.timeout_ms = msg->u.request.timeout_ms;
    m.idem_hi = msg->u.request.idem.hi;
    m.idem_lo = msg->u.request.idem.lo;
    m.payload.data = (uint8_t *)msg->body.payload;
    m.payload.len = msg->body.payload_len;
    m.n_tensors = msg->body.tensor_count;
    m.tensors = pb->ptr;
    return hth__rpc__request__pack(&m, out);
}

static size_t pack_reply(const struct hth_frame_msg *msg, struct pb_tensors *pb, uint8_t *out)
{
    Hth__Rpc__Reply m = HTH__RPC__REPLY__INIT;
    m.payload.data = (uint8_t *)msg->body.payload;
    m.payload.len = msg->body.payload_len;
    m.n_tensors = msg->body.tensor_count;
    m.tensors = pb->ptr;
    return hth__rpc__reply__pack(&m, out);
}

static size_t pack_hello(const struct hth_frame_msg *msg, uint8_t *out)
{
    Hth__Rpc__Hello m = HTH__RPC__HELLO__INIT;
    m.version_min = msg->u.hello.version_min;
    m.version_max = msg->u.hello.version_max;
    m.network = (char *)msg->u.hello.network;
    m.features = msg->u.hello.features;
    m.requests_max = msg->u.hello.requests_max;
    m.body_bytes_max = msg->u.hello.body_bytes_max;
    m.request_credit_bytes = msg->u.hello.request_credit_bytes;
    m.reply_credit_bytes = msg->u.hello.reply_credit_bytes;
    m.pass.data = (uint8_t *)msg->u.hello.pass;
    m.pass.len = msg->u.hello.pass_len;
    return hth__rpc__hello__pack(&m, out);
}

/* Cuts the text so that the bound of the frame holds. */
static size_t pack_refuse(const struct hth_frame_msg *msg, uint8_t *out)
{
    char text[HTH_RPC_TEXT_MAX + 1] = "";
    if (msg->u.refuse.text != NULL)
        strncpy(text, msg->u.refuse.text, sizeof(text) - 1);
    if (msg->type == HTH_FRAME_REFUSE) {
        Hth__Rpc__Refuse m = HTH__RPC__REFUSE__INIT;
        m.error = msg->u.refuse.err;
        m.retry_after_ms = msg->u.refuse.retry_after_ms;
        m.text = text;
        return hth__rpc__refuse__pack(&m, out);
    }
    Hth__Rpc__Goodbye m = HTH__RPC__GOODBYE__INIT;
    m.error = msg->u.refuse.err;
    m.text = text;
    return hth__rpc__goodbye__pack(&m, out);
}

static size_t pack_credit(const struct hth_frame_msg *msg, uint8_t *out)
{
    Hth__Rpc__Credit m = HTH__RPC__CREDIT__INIT;
    m.reply_bytes = msg->u.credit.reply_bytes;
    return hth__rpc__credit__pack(&m, out);
}

enum hth_err hth_frame_pack(const struct hth_frame_msg *msg, uint8_t *out, size_t capacity,
                            size_t *len)
{
    enum hth_err err = HTH_OK;
    struct pb_tensors pb; /* not zeroed, because it is large */
    uint64_t body_len = 0;
    size_t meta_len = 0;
    uint8_t *meta = out + HTH_FRAME_HEADER_BYTES;

    pb.ptr = pb.few_ptr;
    pb.many = NULL;
    *len = 0;
    if (msg->body.payload_len > HTH_FRAME_META_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    HTH_ASSERT(capacity >= hth_frame_pack_bound(msg));
    if (type_has_body((uint8_t)msg->type))
        HTH_GOTO(out, pb_tensors_fill(&pb, &msg->body, &body_len));
    switch (msg->type) {
    case HTH_FRAME_HELLO:
        meta_len = pack_hello(msg, meta);
        break;
    case HTH_FRAME_REQUEST:
        meta_len = pack_request(msg, &pb, meta);
        break;
    case HTH_FRAME_REPLY:
        meta_len = pack_reply(msg, &pb, meta);
        break;
    case HTH_FRAME_REFUSE:
    case HTH_FRAME_GOODBYE:
        meta_len = pack_refuse(msg, meta);
        break;
    case HTH_FRAME_CREDIT:
        meta_len = pack_credit(msg, meta);
        break;
    case HTH_FRAME_CANCEL:
    case HTH_FRAME_PING:
    case HTH_FRAME_PONG:
        break;
    }
    if (meta_len > HTH_FRAME_META_BYTES_MAX) {
        err = HTH_E_TOO_LARGE;
        goto out;
    }
    struct hth_frame_header h = {
        .version = HTH_RPC_VERSION_MIN, /* the only layout */
        .type = (uint8_t)msg->type,
        .id = msg->id,
        .trace_id = msg->trace_id,
        .meta_len = (uint32_t)meta_len,
        .body_len = (uint32_t)body_len,
    };
    hth_frame_header_write(&h, out);
    *len = HTH_FRAME_HEADER_BYTES + meta_len;
out:
    hth_free(pb.many);
    return err;
}
