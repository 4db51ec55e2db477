/* SPDX-License-Identifier: Apache-2.0 */
/* Between state.proto's bytes and checked structs. */
#include "averaging/state_msg.h"

#include <string.h>

#include "averaging/state.h"
#include "averaging/state.pb-c.h"
#include "core/mem.h"

#define PARTS_AIM 256

static const char root_tag[16] = "hearth state 1";

/* ---- parts ----------------------------------------------------------------------------------- */

uint64_t hth_state_part_bytes(uint64_t bytes)
{
    uint64_t part = HTH_STATE_PART_BYTES_MIN;

    while (part < HTH_STATE_PART_BYTES_MAX && part * PARTS_AIM < bytes)
        part *= 2;
    return part;
}

uint64_t hth_state_part_len(const struct hth_state_desc *d, uint32_t index)
{
    return HTH_MIN(d->part_bytes, d->bytes - index * d->part_bytes);
}

struct hth_hash *hth_state_part_hash(const struct hth_state_desc *d, uint32_t index)
{
    return (struct hth_hash *)(void *)d->hashes->data + index;
}

static struct hth_blob *zero_hashes(uint64_t parts)
{
    struct hth_blob *out = hth_blob_try_new(parts * sizeof(struct hth_hash));

    HTH_ASSERT(out != NULL);
    memset(out->data, 0, out->size);
    return out;
}

struct hth_blob *hth_mean_hashes(const struct hth_crypto *crypto, const struct hth_blob *mean)
{
    uint64_t part = hth_state_part_bytes(mean->size);
    struct hth_blob *out = zero_hashes((mean->size + part - 1) / part);
    struct hth_hash *hash = (struct hth_hash *)(void *)out->data;

    for (uint64_t at = 0; mean->data != NULL && at < mean->size; at += part)
        crypto->hash(mean->data + at, HTH_MIN(part, mean->size - at), hash++);
    return out;
}

/* ---- descriptions ---------------------------------------------------------------------------- */

enum hth_err hth_state_desc_init(struct hth_state_desc *d, uint64_t schema, uint64_t step,
                                 const void *meta, size_t meta_len, uint64_t bytes,
                                 struct hth_blob *hashes)
{
    memset(d, 0, sizeof(*d));
    if (bytes == 0)
        return HTH_E_RANGE;
    if (bytes > HTH_STATE_BYTES_MAX || meta_len > sizeof(d->meta))
        return HTH_E_TOO_LARGE;
    d->schema = schema;
    d->step = step;
    d->bytes = bytes;
    d->part_bytes = hth_state_part_bytes(bytes);
    d->parts = (uint32_t)((bytes + d->part_bytes - 1) / d->part_bytes);
    d->meta_len = (uint32_t)meta_len;
    if (meta_len > 0) /* else it may be NULL */
        memcpy(d->meta, meta, meta_len);
    if (hashes != NULL && hashes->size != d->parts * sizeof(struct hth_hash))
        return HTH_E_MALFORMED;
    d->hashes = hashes != NULL ? hth_blob_ref(hashes) : zero_hashes(d->parts);
    return HTH_OK;
}

struct hth_state_desc hth_state_desc_ref(const struct hth_state_desc *d)
{
    hth_blob_ref(d->hashes);
    return *d;
}

void hth_state_desc_clear(struct hth_state_desc *d)
{
    hth_blob_unref(d->hashes);
    d->hashes = NULL;
}

void hth_state_desc_seal(struct hth_state_desc *d, const struct hth_crypto *crypto)
{
    size_t capacity = sizeof(root_tag) + 5 * 8 + d->meta_len + d->hashes->size;
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
    hth_write_bytes(&w, d->hashes->data, d->hashes->size);
    crypto->hash(bytes, w.pos, &d->name);
    hth_free(bytes);
}

void hth_state_desc_pack(const struct hth_state_desc *d, uint8_t **out, size_t *len)
{
    Hth__State__Description m = HTH__STATE__DESCRIPTION__INIT;

    m.step = d->step;
    m.bytes = d->bytes;
    m.meta = (ProtobufCBinaryData){d->meta_len, (uint8_t *)d->meta};
    m.hashes = (ProtobufCBinaryData){d->hashes->size, d->hashes->data};
    *len = hth__state__description__get_packed_size(&m);
    *out = hth_calloc(1, *len);
    hth__state__description__pack(&m, *out);
}

enum hth_err hth_state_desc_open(const uint8_t *data, size_t len, uint64_t schema,
                                 struct hth_state_desc *out)
{
    Hth__State__Description *m = hth__state__description__unpack(NULL, len, data);
    enum hth_err err = HTH_E_RANGE;
    struct hth_blob *hashes;

    memset(out, 0, sizeof(*out));
    if (m == NULL)
        return HTH_E_MALFORMED;
    hashes = hth_blob_copy(m->hashes.data, m->hashes.len);
    if (m->step <= HTH_AVG_STEP_MAX)
        err =
            hth_state_desc_init(out, schema, m->step, m->meta.data, m->meta.len, m->bytes, hashes);
    hth_blob_unref(hashes);
    hth__state__description__free_unpacked(m, NULL);
    return err;
}

/* ---- requests -------------------------------------------------------------------------------- */

size_t hth_state_ask_pack(const struct hth_state_ask *ask, uint8_t out[HTH_STATE_ASK_MAX])
{
    Hth__State__Ask m = HTH__STATE__ASK__INIT;

    m.schema = ask->schema;
    m.step_min = ask->step_min;
    m.part = ask->part;
    if (ask->named)
        m.name = (ProtobufCBinaryData){sizeof(ask->name), (uint8_t *)ask->name.b};
    return hth__state__ask__pack(&m, out);
}

enum hth_err hth_state_ask_open(const uint8_t *data, size_t len, struct hth_state_ask *out)
{
    Hth__State__Ask *m = hth__state__ask__unpack(NULL, len, data);
    bool fits = m != NULL && (m->name.len == 0 || m->name.len == sizeof(out->name));

    memset(out, 0, sizeof(*out));
    if (fits) {
        out->schema = m->schema;
        out->step_min = m->step_min;
        out->part = m->part;
        out->named = m->name.len > 0;
    }
    if (fits && out->named)
        memcpy(&out->name, m->name.data, sizeof(out->name));
    hth__state__ask__free_unpacked(m, NULL); /* NULL is fine */
    return fits ? HTH_OK : HTH_E_MALFORMED;
}
