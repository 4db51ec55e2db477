/* SPDX-License-Identifier: Apache-2.0 */
/* Between state.proto's bytes and checked structs. */
#include "averaging/state_msg.h"

#include <string.h>

#include "averaging/state.pb-c.h"
#include "core/mem.h"

#define PARTS_AIM 256

static const char root_tag[16] = "hearth state 1";

/* ---- descriptions ---------------------------------------------------------------------------- */

uint64_t hth_state_part_bytes(uint64_t bytes)
{
    uint64_t part = HTH_STATE_PART_BYTES_MIN;

    while (part < HTH_STATE_PART_BYTES_MAX && part * PARTS_AIM < bytes)
        part *= 2;
    return part;
}

uint64_t hth_state_part_len(const struct hth_state_desc *d, uint32_t index)
{
    uint64_t first = (uint64_t)index * d->part_bytes;

    return HTH_MIN(d->part_bytes, d->bytes - first);
}

static enum hth_err set_sizes(struct hth_state_desc *d, uint64_t bytes, uint64_t part_bytes)
{
    uint64_t parts;

    if (bytes == 0 || part_bytes < HTH_STATE_PART_BYTES_MIN || (part_bytes & (part_bytes - 1)) != 0)
        return HTH_E_RANGE;
    if (bytes > HTH_STATE_BYTES_MAX || part_bytes > HTH_STATE_PART_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    parts = (bytes + part_bytes - 1) / part_bytes;
    if (parts > HTH_STATE_PARTS_MAX)
        return HTH_E_TOO_LARGE;
    d->bytes = bytes;
    d->part_bytes = part_bytes;
    d->parts = (uint32_t)parts;
    return HTH_OK;
}

static enum hth_err set_meta(struct hth_state_desc *d, const void *meta, size_t len)
{
    if (len > sizeof(d->meta))
        return HTH_E_TOO_LARGE;
    if (len > 0) /* else it may be NULL */
        memcpy(d->meta, meta, len);
    d->meta_len = (uint32_t)len;
    return HTH_OK;
}

enum hth_err hth_state_desc_init(struct hth_state_desc *d, uint64_t schema, uint64_t step,
                                 const void *meta, size_t meta_len, uint64_t bytes)
{
    memset(d, 0, sizeof(*d));
    HTH_TRY(set_sizes(d, bytes, hth_state_part_bytes(bytes)));
    HTH_TRY(set_meta(d, meta, meta_len));
    d->schema = schema;
    d->step = step;
    d->hashes = hth_new_array(struct hth_hash, d->parts);
    return HTH_OK;
}

void hth_state_desc_clear(struct hth_state_desc *d)
{
    hth_free(d->hashes);
    memset(d, 0, sizeof(*d));
}

void hth_state_desc_seal(struct hth_state_desc *d, const struct hth_crypto *crypto)
{
    size_t capacity = sizeof(root_tag) + 5 * 8 + d->meta_len + d->parts * sizeof(struct hth_hash);
    uint8_t *bytes = hth_calloc(1, capacity);
    struct hth_writer w;

    hth_writer_init(&w, bytes, capacity);
    hth_write_bytes(&w, root_tag, sizeof(root_tag));
    hth_write_u64(&w, d->schema);
    hth_write_u64(&w, d->step);
    hth_write_u64(&w, d->bytes);
    hth_write_u64(&w, d->part_bytes);
    hth_write_u64(&w, d->meta_len);
    hth_write_bytes(&w, d->meta, d->meta_len);
    hth_write_bytes(&w, d->hashes, d->parts * sizeof(struct hth_hash));
    crypto->hash(bytes, w.pos, &d->root);
    hth_free(bytes);
}

void hth_state_desc_pack(const struct hth_state_desc *d, uint8_t **out, size_t *len)
{
    Hth__State__Description m = HTH__STATE__DESCRIPTION__INIT;

    m.schema = d->schema;
    m.step = d->step;
    m.bytes = d->bytes;
    m.part_bytes = d->part_bytes;
    m.meta = (ProtobufCBinaryData){d->meta_len, (uint8_t *)d->meta};
    m.hashes = (ProtobufCBinaryData){d->parts * sizeof(struct hth_hash), d->hashes->b};
    *len = hth__state__description__get_packed_size(&m);
    *out = hth_calloc(1, *len);
    hth__state__description__pack(&m, *out);
}

static enum hth_err take_description(const Hth__State__Description *m, struct hth_state_desc *d)
{
    if (m->step > HTH_AVG_STEP_MAX)
        return HTH_E_RANGE;
    HTH_TRY(set_sizes(d, m->bytes, m->part_bytes));
    HTH_TRY(set_meta(d, m->meta.data, m->meta.len));
    if (m->hashes.len != d->parts * sizeof(struct hth_hash))
        return HTH_E_MALFORMED;
    d->schema = m->schema;
    d->step = m->step;
    d->hashes = hth_new_array(struct hth_hash, d->parts);
    memcpy(d->hashes, m->hashes.data, m->hashes.len);
    return HTH_OK;
}

enum hth_err hth_state_desc_open(const uint8_t *data, size_t len, const struct hth_crypto *crypto,
                                 struct hth_state_desc *out)
{
    Hth__State__Description *m = hth__state__description__unpack(NULL, len, data);
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    if (m == NULL)
        return HTH_E_MALFORMED;
    err = take_description(m, out);
    hth__state__description__free_unpacked(m, NULL);
    if (err == HTH_OK)
        hth_state_desc_seal(out, crypto);
    else
        hth_state_desc_clear(out);
    return err;
}

/* ---- requests -------------------------------------------------------------------------------- */

size_t hth_state_describe_pack(uint64_t schema, uint64_t step_min,
                               uint8_t out[HTH_STATE_REQUEST_MAX])
{
    Hth__State__Describe m = HTH__STATE__DESCRIBE__INIT;

    m.schema = schema;
    m.step_min = step_min;
    return hth__state__describe__pack(&m, out);
}

enum hth_err hth_state_describe_open(const uint8_t *data, size_t len, uint64_t *schema,
                                     uint64_t *step_min)
{
    Hth__State__Describe *m = hth__state__describe__unpack(NULL, len, data);

    if (m == NULL)
        return HTH_E_MALFORMED;
    *schema = m->schema;
    *step_min = m->step_min;
    hth__state__describe__free_unpacked(m, NULL);
    return HTH_OK;
}

size_t hth_state_part_pack(const struct hth_hash *root, uint32_t index,
                           uint8_t out[HTH_STATE_REQUEST_MAX])
{
    Hth__State__Part m = HTH__STATE__PART__INIT;

    m.root = (ProtobufCBinaryData){sizeof(root->b), (uint8_t *)root->b};
    m.index = index;
    return hth__state__part__pack(&m, out);
}

enum hth_err hth_state_part_open(const uint8_t *data, size_t len, struct hth_hash *root,
                                 uint32_t *index)
{
    Hth__State__Part *m = hth__state__part__unpack(NULL, len, data);
    bool fits = m != NULL && m->root.len == sizeof(root->b);

    if (fits) {
        memcpy(root->b, m->root.data, sizeof(root->b));
        *index = m->index;
    }
    hth__state__part__free_unpacked(m, NULL); /* NULL is fine */
    return fits ? HTH_OK : HTH_E_MALFORMED;
}
