/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.c: the reader. Hostile bytes give a named error; see safetensors.h for the picture.
 *
 * jansson parses the header: it bounds the depth, and the limit of the header's length bounds its
 * memory. This file checks everything that decides about offsets, with arithmetic that can't wrap.
 */
#include "experts/safetensors.h"

#include "core/bytes.h"
#include "core/limits.h"
#include "core/map.h"
#include "core/mem.h"
#include "core/rng.h"
#include "experts/safetensors_int.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct hth_st_reader {
    json_t *root;
    struct hth_st_entry *entries; /* sorted by offset */
    size_t count;
    struct hth_map *by_name;
    const uint8_t *data;
    uint64_t data_bytes;
    bool has_digest;
};

/* A tensor during parsing: entry->data is not set yet, the offsets are here. */
struct st_slot {
    struct hth_st_entry entry;
    uint64_t begin, end;
};

static const struct {
    enum hth_dtype dtype;
    const char *name;
} dtypes[] = {
    {HTH_F32, "F32"}, {HTH_BF16, "BF16"}, {HTH_F16, "F16"}, {HTH_I8, "I8"},
    {HTH_I32, "I32"}, {HTH_U8, "U8"},     {HTH_I64, "I64"},
};

const char *hth_st_dtype_name(enum hth_dtype dtype)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(dtypes); i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return NULL;
}

uint64_t hth_st_digest(const uint8_t *header, size_t header_len, const uint8_t *data,
                       uint64_t data_len)
{
    return hth_hash64(data, data_len, hth_hash64(header, header_len, 0));
}

static enum hth_err parse_dtype(const json_t *value, enum hth_dtype *out)
{
    const char *text = json_string_value(value);

    if (text == NULL)
        return HTH_E_MALFORMED;
    for (size_t i = 0; i < HTH_ARRAY_LEN(dtypes); i++) {
        if (strcmp(dtypes[i].name, text) == 0) {
            *out = dtypes[i].dtype;
            return HTH_OK;
        }
    }
    return HTH_E_UNSUPPORTED;
}

static enum hth_err parse_u64(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return HTH_E_MALFORMED;
    *out = (uint64_t)json_integer_value(value);
    return HTH_OK;
}

static enum hth_err parse_shape(const json_t *value, struct hth_st_entry *e)
{
    size_t n = json_array_size(value);

    if (!json_is_array(value))
        return HTH_E_MALFORMED;
    if (n > HTH_TENSOR_DIMS_MAX)
        return HTH_E_TOO_LARGE;
    e->ndim = (uint32_t)n;
    e->bytes = hth_dtype_size(e->dtype);
    for (size_t i = 0; i < n; i++) {
        HTH_TRY(parse_u64(json_array_get(value, i), &e->dim[i]));
        if (__builtin_mul_overflow(e->bytes, e->dim[i], &e->bytes))
            return HTH_E_BAD_SHAPE;
    }
    return HTH_OK;
}

static enum hth_err parse_entry(const char *name, const json_t *value, uint64_t data_bytes,
                                struct st_slot *slot)
{
    const json_t *offsets = json_object_get(value, "data_offsets");

    if (strlen(name) == 0 || !json_is_object(value) || json_object_size(value) != 3)
        return HTH_E_MALFORMED;
    if (strlen(name) > HTH_ST_NAME_MAX)
        return HTH_E_TOO_LARGE;
    slot->entry.name = name;
    HTH_TRY(parse_dtype(json_object_get(value, "dtype"), &slot->entry.dtype));
    HTH_TRY(parse_shape(json_object_get(value, "shape"), &slot->entry));
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return HTH_E_MALFORMED;
    HTH_TRY(parse_u64(json_array_get(offsets, 0), &slot->begin));
    HTH_TRY(parse_u64(json_array_get(offsets, 1), &slot->end));
    if (slot->begin > slot->end || slot->end - slot->begin != slot->entry.bytes)
        return HTH_E_BAD_SHAPE;
    if (slot->end > data_bytes)
        return HTH_E_TRUNCATED;
    return HTH_OK;
}

/* A total order: empty tensors share their offset with a neighbour, and then the name decides. */
static int slot_cmp(const void *pa, const void *pb)
{
    const struct st_slot *a = pa, *b = pb;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return strcmp(a->entry.name, b->entry.name);
}

static enum hth_err check_metadata(const json_t *meta)
{
    void *it;

    if (meta == NULL)
        return HTH_OK;
    if (!json_is_object(meta))
        return HTH_E_MALFORMED;
    for (it = json_object_iter((json_t *)meta); it != NULL;
         it = json_object_iter_next((json_t *)meta, it))
        if (!json_is_string(json_object_iter_value(it)))
            return HTH_E_MALFORMED;
    return HTH_OK;
}

static enum hth_err read_entries(struct hth_st_reader *r)
{
    size_t count = json_object_size(r->root), n = 0;
    struct st_slot *slots = NULL;
    uint64_t end = 0;
    enum hth_err err;

    if (count > HTH_ST_TENSORS_MAX)
        return HTH_E_TOO_LARGE;
    slots = hth_try_calloc(count + 1, sizeof(*slots));
    r->entries = hth_try_calloc(count + 1, sizeof(*r->entries));
    err = HTH_E_NO_MEMORY;
    if (slots == NULL || r->entries == NULL)
        goto out;
    for (void *it = json_object_iter(r->root); it != NULL;
         it = json_object_iter_next(r->root, it)) {
        const char *name = json_object_iter_key(it);
        const json_t *value = json_object_iter_value(it);
        if (strcmp(name, "__metadata__") == 0)
            HTH_GOTO(out, check_metadata(value));
        else
            HTH_GOTO(out, parse_entry(name, value, r->data_bytes, &slots[n++]));
    }
    qsort(slots, n, sizeof(*slots), slot_cmp);
    for (size_t i = 0; i < n; i++) {
        err = HTH_E_BAD_SHAPE;
        if (slots[i].begin != end)
            goto out;
        end = slots[i].end;
        r->entries[i] = slots[i].entry;
        r->entries[i].data = r->data + slots[i].begin;
        hth_map_put(r->by_name, r->entries[i].name, strlen(r->entries[i].name), &r->entries[i]);
    }
    r->count = n;
    err = end == r->data_bytes ? HTH_OK : HTH_E_BAD_SHAPE;
out:
    hth_free(slots);
    return err;
}

/* Checks the digest. It must be the last thing in the header, or it would not cover the bytes
 * behind it. */
static enum hth_err check_digest(struct hth_st_reader *r, const uint8_t *header, size_t len)
{
    static const char key[] = HTH_ST_DIGEST_KEY, key_1[] = HTH_ST_DIGEST_KEY_1;
    const size_t tail = sizeof(key) - 1 + 16 + 3; /* key, hex, "}} */
    char want[17];
    uint8_t be[8];
    uint64_t digest;

    if (hth_st_meta(r, HTH_ST_DIGEST_NAME) == NULL && hth_st_meta(r, HTH_ST_DIGEST_NAME_1) == NULL)
        return HTH_OK;
    while (len > 0 && header[len - 1] == ' ')
        len--;
    if (len < tail ||
        (memcmp(header + len - tail, key, sizeof(key) - 1) != 0 &&
         memcmp(header + len - tail, key_1, sizeof(key_1) - 1) != 0) ||
        memcmp(header + len - 3, "\"}}", 3) != 0)
        return HTH_E_CORRUPT;
    digest = hth_st_digest(header, len - tail, r->data, r->data_bytes);
    hth_store_u64le(be, __builtin_bswap64(digest));
    hth_hex(be, 8, want);
    if (memcmp(header + len - 3 - 16, want, 16) != 0)
        return HTH_E_CORRUPT;
    r->has_digest = true;
    return HTH_OK;
}

/* The two errors of jansson that have a code of their own; all others are E_MALFORMED. */
static enum hth_err json_error(const json_error_t *e)
{
    if (json_error_code(e) == json_error_duplicate_key)
        return HTH_E_DUPLICATE;
    if (json_error_code(e) == json_error_out_of_memory)
        return HTH_E_NO_MEMORY;
    return HTH_E_MALFORMED;
}

enum hth_err hth_st_open(const void *data, size_t len, struct hth_st_reader **out)
{
    const uint8_t *bytes = data;
    struct hth_st_reader *r;
    json_error_t jerr;
    uint64_t header_len;
    enum hth_err err;

    *out = NULL;
    if (len < 8)
        return HTH_E_TRUNCATED;
    header_len = hth_load_u64le(bytes);
    if (header_len > HTH_ST_HEADER_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    if (header_len > len - 8)
        return HTH_E_TRUNCATED;
    if (header_len < 2 || bytes[8] != '{')
        return HTH_E_MALFORMED;
    r = hth_new(struct hth_st_reader);
    r->by_name = hth_map_new();
    r->data = bytes + 8 + header_len;
    r->data_bytes = len - 8 - header_len;
    r->root = json_loadb((const char *)bytes + 8, header_len, JSON_REJECT_DUPLICATES, &jerr);
    err = r->root == NULL ? json_error(&jerr) : HTH_E_MALFORMED;
    if (!json_is_object(r->root))
        goto out;
    HTH_GOTO(out, read_entries(r));
    HTH_GOTO(out, check_digest(r, bytes + 8, header_len));
    *out = r;
    return HTH_OK;
out:
    hth_st_close(r);
    return err;
}

void hth_st_close(struct hth_st_reader *reader)
{
    if (reader == NULL)
        return;
    hth_map_free(reader->by_name);
    hth_free(reader->entries);
    json_decref(reader->root);
    hth_free(reader);
}

size_t hth_st_count(const struct hth_st_reader *reader)
{
    return reader->count;
}

const struct hth_st_entry *hth_st_at(const struct hth_st_reader *reader, size_t i)
{
    return i < reader->count ? &reader->entries[i] : NULL;
}

const struct hth_st_entry *hth_st_find(const struct hth_st_reader *reader, const char *name)
{
    return hth_map_get(reader->by_name, name, strlen(name));
}

const char *hth_st_meta(const struct hth_st_reader *reader, const char *key)
{
    return json_string_value(json_object_get(json_object_get(reader->root, "__metadata__"), key));
}

enum hth_err hth_st_meta_u64(const struct hth_st_reader *reader, const char *key, uint64_t *out)
{
    const char *text = hth_st_meta(reader, key);
    uint64_t value = 0;

    *out = 0;
    if (text == NULL)
        return HTH_E_NOT_FOUND;
    if (*text == '\0')
        return HTH_E_MALFORMED;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(value, UINT64_C(10), &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
            return HTH_E_MALFORMED;
    }
    *out = value;
    return HTH_OK;
}

enum hth_err hth_st_meta_real(const struct hth_st_reader *reader, const char *key, double *out)
{
    const char *text = hth_st_meta(reader, key);
    char *end;

    *out = 0;
    if (text == NULL)
        return HTH_E_NOT_FOUND;
    *out = strtod(text, &end);
    return end != text && *end == '\0' ? HTH_OK : HTH_E_MALFORMED;
}

enum hth_err hth_st_copy(const struct hth_st_reader *reader, const char *name, enum hth_dtype dtype,
                         uint64_t count, void *out)
{
    const struct hth_st_entry *e = hth_st_find(reader, name);

    if (e == NULL)
        return HTH_E_NOT_FOUND;
    if (e->dtype != dtype || e->bytes / hth_dtype_size(dtype) != count)
        return HTH_E_BAD_SHAPE;
    if (e->bytes > 0)
        memcpy(out, e->data, e->bytes);
    return HTH_OK;
}

bool hth_st_has_digest(const struct hth_st_reader *reader)
{
    return reader->has_digest;
}
