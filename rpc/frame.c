/* SPDX-License-Identifier: Apache-2.0 */
/* frame.c: writing frames, and the header both ways. parse.c reads the rest. */
#include "rpc/frame.h"

#include <string.h>

#include "core/bytes.h"
#include "rpc/quick.h"

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
    if (h->meta_len > HTH_FRAME_META_BYTES_MAX || h->body_len > HTH_FRAME_BODY_BYTES_MAX)
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
        /* An empty section takes no room, and so no padding that nothing would follow. */
        end = bytes > 0 ? start + bytes : end;
    }
    *len = end;
    return HTH_OK;
}

size_t hth_frame_pack_bound(const struct hth_frame_msg *msg)
{
    /* A Tensor has at most 4 dims of 10 bytes, three numbers of 10, tags and its own length. */
    return HTH_FRAME_HEADER_BYTES + 512 + msg->body.payload_len + msg->body.tensor_count * 96;
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
    /* Everything but payload and tensors: method 4, timeout 6, key 18, the payload's tag 4. */
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

enum hth_err hth_frame_pack(const struct hth_frame_msg *msg, uint8_t *out, size_t capacity,
                            size_t *len)
{
    uint64_t body_len = 0;
    size_t meta_len = 0;
    uint8_t *meta = out + HTH_FRAME_HEADER_BYTES;

    *len = 0;
    if (msg->body.payload_len > HTH_FRAME_META_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    HTH_ASSERT(capacity >= hth_frame_pack_bound(msg));
    if (type_has_body((uint8_t)msg->type))
        HTH_TRY(hth_frame_body_len(msg->body.tensors, msg->body.tensor_count, &body_len));
    switch (msg->type) {
    case HTH_FRAME_HELLO:
    case HTH_FRAME_REQUEST:
    case HTH_FRAME_REPLY:
    case HTH_FRAME_CREDIT:
        meta_len = hth_quick_write(msg, meta);
        break;
    case HTH_FRAME_REFUSE:
    case HTH_FRAME_GOODBYE:
        meta_len = pack_refuse(msg, meta);
        break;
    case HTH_FRAME_CANCEL:
    case HTH_FRAME_PING:
    case HTH_FRAME_PONG:
        break;
    }
    if (meta_len > HTH_FRAME_META_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    struct hth_frame_header h = {
        .version = HTH_RPC_VERSION_MIN, /* the only layout there is */
        .type = (uint8_t)msg->type,
        .id = msg->id,
        .trace_id = msg->trace_id,
        .meta_len = (uint32_t)meta_len,
        .body_len = (uint32_t)body_len,
    };
    hth_frame_header_write(&h, out);
    *len = HTH_FRAME_HEADER_BYTES + meta_len;
    return HTH_OK;
}
