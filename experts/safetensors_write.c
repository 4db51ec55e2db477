/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_write.c: the writer. It writes the JSON itself, so that the same calls give the same
 * bytes with any version of a JSON library.
 */
#include "experts/safetensors.h"

#include "core/bytes.h"
#include "core/limits.h"
#include "core/map.h"
#include "core/mem.h"
#include "experts/safetensors_int.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct item {
    char *name;
    char *text; /* metadata; NULL for a tensor */
    enum hth_dtype dtype;
    uint32_t ndim;
    uint64_t dim[HTH_TENSOR_DIMS_MAX];
    uint64_t bytes;
    const void *data;
};

struct hth_st_writer {
    struct item *items;
    size_t count, capacity;
    struct hth_map *names; /* of tensors; those of metadata begin with a blank */
    enum hth_err err;      /* the first error */
};

/* The header under construction. */
struct st_text {
    char *data;
    size_t len, capacity;
};

struct hth_st_writer *hth_st_writer_new(void)
{
    struct hth_st_writer *w = hth_new(struct hth_st_writer);

    w->names = hth_map_new();
    return w;
}

void hth_st_writer_free(struct hth_st_writer *writer)
{
    if (writer == NULL)
        return;
    for (size_t i = 0; i < writer->count; i++) {
        hth_free(writer->items[i].name);
        hth_free(writer->items[i].text);
    }
    hth_free(writer->items);
    hth_map_free(writer->names);
    hth_free(writer);
}

static void fail(struct hth_st_writer *w, enum hth_err err)
{
    if (w->err == HTH_OK)
        w->err = err;
}

static bool name_ok(const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || len > HTH_ST_NAME_MAX)
        return false;
    for (; *name != '\0'; name++) {
        bool alnum = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') ||
                     (*name >= '0' && *name <= '9');
        if (!alnum && strchr("._-/", *name) == NULL)
            return false;
    }
    return true;
}

static struct item *add_item(struct hth_st_writer *w, const char *name, const char *prefix)
{
    char key[HTH_ST_NAME_MAX + 2];
    int len;

    if (!name_ok(name)) {
        fail(w, HTH_E_MALFORMED);
        return NULL;
    }
    if (w->count == HTH_ST_TENSORS_MAX) {
        fail(w, HTH_E_TOO_LARGE);
        return NULL;
    }
    len = snprintf(key, sizeof(key), "%s%s", prefix, name);
    if (hth_map_put(w->names, key, (size_t)len, w) != NULL)
        fail(w, HTH_E_DUPLICATE);
    if (w->count == w->capacity) {
        w->capacity = w->capacity == 0 ? 16 : w->capacity * 2;
        w->items = hth_realloc(w->items, w->capacity, sizeof(*w->items));
    }
    memset(&w->items[w->count], 0, sizeof(w->items[0]));
    w->items[w->count].name = hth_strdup(name);
    return &w->items[w->count++];
}

void hth_st_add_meta(struct hth_st_writer *writer, const char *key, const char *text)
{
    struct item *item = add_item(writer, key, " ");

    if (item == NULL)
        return;
    item->text = hth_strdup(text);
    if (strlen(text) > HTH_ST_TEXT_MAX)
        fail(writer, HTH_E_TOO_LARGE);
    if (strcmp(key, HTH_ST_DIGEST_NAME) == 0 || strcmp(key, HTH_ST_DIGEST_NAME_1) == 0)
        fail(writer, HTH_E_DUPLICATE);
    json_t *utf8 = json_string(text);
    if (utf8 == NULL)
        fail(writer, HTH_E_MALFORMED);
    json_decref(utf8);
}

void hth_st_add_meta_real(struct hth_st_writer *writer, const char *key, double value)
{
    char text[32];

    snprintf(text, sizeof(text), "%.17g", value);
    hth_st_add_meta(writer, key, text);
}

void hth_st_add_meta_u64(struct hth_st_writer *writer, const char *key, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    hth_st_add_meta(writer, key, text);
}

void hth_st_add(struct hth_st_writer *writer, const char *name, enum hth_dtype dtype, uint32_t ndim,
                const uint64_t *dim, const void *data)
{
    struct item *item;

    if (hth_st_dtype_name(dtype) == NULL || ndim > HTH_TENSOR_DIMS_MAX) {
        fail(writer, HTH_E_BAD_SHAPE);
        return;
    }
    item = add_item(writer, name, "");
    if (item == NULL)
        return;
    item->dtype = dtype;
    item->ndim = ndim;
    item->bytes = hth_dtype_size(dtype);
    item->data = data;
    for (uint32_t i = 0; i < ndim; i++) {
        item->dim[i] = dim[i];
        if (__builtin_mul_overflow(item->bytes, dim[i], &item->bytes) ||
            item->bytes > INT64_MAX / 2)
            fail(writer, HTH_E_TOO_LARGE);
    }
}

HTH_PRINTF(2, 3) static void put(struct st_text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(t->data == NULL ? NULL : t->data + t->len, t->capacity - t->len, fmt, ap);
    va_end(ap);
    if ((size_t)n >= t->capacity - t->len) {
        t->capacity = t->capacity * 2 + (size_t)n + 256;
        t->data = hth_realloc(t->data, t->capacity, 1);
        va_start(ap, fmt);
        n = vsnprintf(t->data + t->len, t->capacity - t->len, fmt, ap);
        va_end(ap);
    }
    t->len += (size_t)n;
}

static void put_quoted(struct st_text *t, const char *s)
{
    /* what JSON does not let stand in a text: quote, backslash, control characters */
    static const char escaped[] =
        "\"\\\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10"
        "\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f";

    put(t, "\"");
    while (*s != '\0') {
        size_t plain = strcspn(s, escaped);
        put(t, "%.*s", (int)plain, s);
        s += plain;
        if (*s == '\n')
            put(t, "\\n");
        else if (*s == '"' || *s == '\\')
            put(t, "\\%c", *s);
        else if (*s != '\0')
            put(t, "\\u%04x", (unsigned)(unsigned char)*s);
        s += *s != '\0';
    }
    put(t, "\"");
}

/* Writes the header up to the digest's key. *data_bytes: size of all tensors. */
static enum hth_err write_header(const struct hth_st_writer *w, struct st_text *t,
                                 uint64_t *data_bytes)
{
    uint64_t offset = 0;

    put(t, "{");
    for (size_t i = 0; i < w->count; i++) {
        const struct item *item = &w->items[i];
        if (item->text != NULL)
            continue;
        put_quoted(t, item->name);
        put(t, ":{\"dtype\":\"%s\",\"shape\":[", hth_st_dtype_name(item->dtype));
        for (uint32_t d = 0; d < item->ndim; d++)
            put(t, d == 0 ? "%" PRIu64 : ",%" PRIu64, item->dim[d]);
        put(t, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]},", offset, offset + item->bytes);
        if (__builtin_add_overflow(offset, item->bytes, &offset) || offset > INT64_MAX / 2)
            return HTH_E_TOO_LARGE;
    }
    put(t, "\"__metadata__\":{");
    for (size_t i = 0; i < w->count; i++) {
        if (w->items[i].text == NULL)
            continue;
        put_quoted(t, w->items[i].name);
        put(t, ":");
        put_quoted(t, w->items[i].text);
        put(t, ",");
    }
    *data_bytes = offset;
    return HTH_OK;
}

enum hth_err hth_st_writer_finish(struct hth_st_writer *writer, struct hth_blob **out)
{
    static const char key[] = HTH_ST_DIGEST_KEY;
    struct st_text t = {0};
    struct hth_blob *blob = NULL;
    uint64_t data_bytes, digest;
    size_t covered, header_len;
    uint8_t *p;
    enum hth_err err = writer->err;

    *out = NULL;
    if (err != HTH_OK)
        return err;
    HTH_GOTO(out, write_header(writer, &t, &data_bytes));
    covered = t.len;
    /* 8 bytes of length precede the header: the data starts at a multiple of 64 when 8 + header is
     * one. */
    header_len = (8 + covered + sizeof(key) - 1 + 16 + 3 + 63) / 64 * 64 - 8;
    err = HTH_E_TOO_LARGE;
    if (header_len > HTH_ST_HEADER_BYTES_MAX)
        goto out;
    err = HTH_E_NO_MEMORY;
    blob = hth_blob_try_new(8 + header_len + data_bytes);
    if (blob == NULL)
        goto out;
    p = blob->data + 8 + header_len;
    for (size_t i = 0; i < writer->count; i++) {
        if (writer->items[i].text == NULL && writer->items[i].bytes > 0) {
            memcpy(p, writer->items[i].data, writer->items[i].bytes);
            p += writer->items[i].bytes;
        }
    }
    digest =
        hth_st_digest((const uint8_t *)t.data, covered, blob->data + 8 + header_len, data_bytes);
    put(&t, "%s%016" PRIx64 "\"}}", key, digest);
    hth_store_u64le(blob->data, header_len);
    memcpy(blob->data + 8, t.data, t.len);
    memset(blob->data + 8 + t.len, ' ', header_len - t.len);
    *out = blob;
    err = HTH_OK;
out:
    hth_free(t.data);
    return err;
}
