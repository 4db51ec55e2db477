/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes.h: cursors over bytes, little-endian, that cannot run past the end.
 *
 * A reader remembers its first error: read every field, then check `err` once. A failed read
 * returns zeros. A writer has a fixed capacity and behaves alike (E_TOO_LARGE).
 */
#ifndef HTH_CORE_BYTES_H
#define HTH_CORE_BYTES_H

#include "core/base.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "loads and stores are plain copies");

static inline uint32_t hth_load_u32le(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}
static inline uint64_t hth_load_u64le(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}
static inline void hth_store_u32le(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, sizeof(v));
}
static inline void hth_store_u64le(uint8_t *p, uint64_t v)
{
    memcpy(p, &v, sizeof(v));
}

struct hth_reader {
    const uint8_t *data;
    size_t len;
    size_t pos;
    enum hth_err err;
};

void hth_reader_init(struct hth_reader *r, const void *data, size_t len);
uint8_t hth_read_u8(struct hth_reader *r);
uint16_t hth_read_u16(struct hth_reader *r);
uint32_t hth_read_u32(struct hth_reader *r);
uint64_t hth_read_u64(struct hth_reader *r);
/* Copies len bytes, or zeros on error. */
void hth_read_bytes(struct hth_reader *r, void *out, size_t len);
/* A pointer into the data, or NULL on error. */
const uint8_t *hth_read_view(struct hth_reader *r, size_t len);
size_t hth_reader_left(const struct hth_reader *r);

struct hth_writer {
    uint8_t *data;
    size_t capacity;
    size_t pos;
    enum hth_err err;
};

void hth_writer_init(struct hth_writer *w, void *data, size_t capacity);
void hth_write_u8(struct hth_writer *w, uint8_t v);
void hth_write_u16(struct hth_writer *w, uint16_t v);
void hth_write_u32(struct hth_writer *w, uint32_t v);
void hth_write_u64(struct hth_writer *w, uint64_t v);
void hth_write_bytes(struct hth_writer *w, const void *data, size_t len);

/* Lower-case hex; out has 2 * len + 1 bytes. */
void hth_hex(const uint8_t *data, size_t len, char *out);
/* Errors: E_MALFORMED when text is not exactly 2 * len hex digits. */
enum hth_err hth_unhex(const char *text, uint8_t *out, size_t len) HTH_MUST;

#endif
