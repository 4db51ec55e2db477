/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.c: bounds are checked in one place for reading (take) and one for writing (room). */
#include "core/bytes.h"

#include <string.h>

void hth_reader_init(struct hth_reader *r, const void *data, size_t len)
{
    *r = (struct hth_reader){.data = data, .len = len, .pos = 0, .err = HTH_OK};
}

static const uint8_t *take(struct hth_reader *r, size_t len)
{
    if (r->err != HTH_OK || len > r->len - r->pos) {
        if (r->err == HTH_OK)
            r->err = HTH_E_TRUNCATED;
        return NULL;
    }
    const uint8_t *p = r->data + r->pos;
    r->pos += len;
    return p;
}

uint8_t hth_read_u8(struct hth_reader *r)
{
    const uint8_t *p = take(r, 1);
    return p != NULL ? p[0] : 0;
}

uint16_t hth_read_u16(struct hth_reader *r)
{
    const uint8_t *p = take(r, 2);
    return p != NULL ? (uint16_t)(p[0] | (unsigned)p[1] << 8) : 0;
}

uint32_t hth_read_u32(struct hth_reader *r)
{
    const uint8_t *p = take(r, 4);
    return p != NULL ? hth_load_u32le(p) : 0;
}

uint64_t hth_read_u64(struct hth_reader *r)
{
    const uint8_t *p = take(r, 8);
    return p != NULL ? hth_load_u64le(p) : 0;
}

void hth_read_bytes(struct hth_reader *r, void *out, size_t len)
{
    const uint8_t *p = take(r, len);
    if (len == 0)
        return;
    if (p != NULL)
        memcpy(out, p, len);
    else
        memset(out, 0, len);
}

const uint8_t *hth_read_view(struct hth_reader *r, size_t len)
{
    return take(r, len);
}

size_t hth_reader_left(const struct hth_reader *r)
{
    return r->len - r->pos;
}

void hth_writer_init(struct hth_writer *w, void *data, size_t capacity)
{
    *w = (struct hth_writer){.data = data, .capacity = capacity, .pos = 0, .err = HTH_OK};
}

static uint8_t *room(struct hth_writer *w, size_t len)
{
    if (w->err != HTH_OK || len > w->capacity - w->pos) {
        if (w->err == HTH_OK)
            w->err = HTH_E_TOO_LARGE;
        return NULL;
    }
    uint8_t *p = w->data + w->pos;
    w->pos += len;
    return p;
}

void hth_write_u8(struct hth_writer *w, uint8_t v)
{
    uint8_t *p = room(w, 1);
    if (p != NULL)
        p[0] = v;
}

void hth_write_u16(struct hth_writer *w, uint16_t v)
{
    uint8_t *p = room(w, 2);
    if (p != NULL) {
        p[0] = (uint8_t)v;
        p[1] = (uint8_t)(v >> 8);
    }
}

void hth_write_u32(struct hth_writer *w, uint32_t v)
{
    uint8_t *p = room(w, 4);
    if (p != NULL)
        hth_store_u32le(p, v);
}

void hth_write_u64(struct hth_writer *w, uint64_t v)
{
    uint8_t *p = room(w, 8);
    if (p != NULL)
        hth_store_u64le(p, v);
}

void hth_write_bytes(struct hth_writer *w, const void *data, size_t len)
{
    uint8_t *p = room(w, len);
    if (p != NULL && len > 0)
        memcpy(p, data, len);
}

void hth_hex(const uint8_t *data, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[data[i] >> 4];
        out[2 * i + 1] = digits[data[i] & 15];
    }
    out[2 * len] = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

enum hth_err hth_unhex(const char *text, uint8_t *out, size_t len)
{
    if (strlen(text) != 2 * len)
        return HTH_E_MALFORMED;
    for (size_t i = 0; i < len; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return HTH_E_MALFORMED;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return HTH_OK;
}
