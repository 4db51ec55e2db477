/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/row_msg.h"

#include "collab/chain.h"

#define VERSION 1

static void write_marks(struct hth_writer *w, const struct hth_row_marks *marks)
{
    hth_write_u16(w, (uint16_t)marks->count);
    for (uint32_t i = 0; i < marks->count; i += 4) {
        unsigned byte = 0;
        for (uint32_t k = i; k < marks->count && k < i + 4; k++)
            byte |= (unsigned)marks->of[k] << 2 * (k - i);
        hth_write_u8(w, (uint8_t)byte);
    }
}

static enum hth_err read_marks(struct hth_reader *r, struct hth_row_marks *out)
{
    out->count = hth_read_u16(r);
    HTH_TRY(r->err);
    if (out->count > HTH_ROLL_MEMBERS_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < out->count; i += 4) {
        uint8_t byte = hth_read_u8(r);
        for (uint32_t k = i; k < i + 4; k++, byte >>= 2) {
            uint16_t mark = byte & 3;
            if (mark == (HTH_ROLL_IN | HTH_ROLL_PART) || (mark != 0 && k >= out->count))
                return HTH_E_MALFORMED;
            if (k < out->count)
                out->of[k] = mark;
        }
    }
    return r->err;
}

static enum hth_err read_end(const struct hth_reader *r)
{
    HTH_TRY(r->err);
    return hth_reader_left(r) == 0 ? HTH_OK : HTH_E_MALFORMED;
}

size_t hth_row_write(const struct hth_row_msg *row, uint8_t *out)
{
    struct hth_writer w;
    hth_writer_init(&w, out, HTH_ROW_BYTES_MAX);
    hth_write_u8(&w, VERSION);
    hth_write_bytes(&w, &row->group, sizeof(row->group));
    hth_write_u8(&w, (uint8_t)row->axis);
    hth_write_u32(&w, row->cell);
    hth_write_u8(&w, (uint8_t)row->state);
    if (row->state == HTH_ROW_HAS)
        write_marks(&w, &row->marks);
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

enum hth_err hth_row_read(const uint8_t *data, size_t len, struct hth_row_msg *out)
{
    struct hth_reader r;
    *out = (struct hth_row_msg){.axis = 0};
    hth_reader_init(&r, data, len);
    uint8_t version = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (version != VERSION)
        return HTH_E_VERSION;
    hth_read_bytes(&r, &out->group, sizeof(out->group));
    out->axis = hth_read_u8(&r);
    out->cell = hth_read_u32(&r);
    uint8_t state = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (state > HTH_ROW_HAS)
        return HTH_E_MALFORMED;
    out->state = (enum hth_row_state)state;
    if (state == HTH_ROW_HAS)
        HTH_TRY(read_marks(&r, &out->marks));
    return read_end(&r);
}

size_t hth_row_reply_write(const struct hth_row_reply *reply, uint8_t *out)
{
    struct hth_writer w;
    hth_writer_init(&w, out, HTH_ROW_BYTES_MAX);
    hth_write_u8(&w, (uint8_t)reply->kind);
    if (reply->kind == HTH_ROW_BEGIN) {
        hth_write_u64(&w, reply->has);
        write_marks(&w, &reply->marks);
    }
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

enum hth_err hth_row_reply_read(const uint8_t *data, size_t len, struct hth_row_reply *out)
{
    struct hth_reader r;
    *out = (struct hth_row_reply){.has = 0};
    hth_reader_init(&r, data, len);
    uint8_t kind = hth_read_u8(&r);
    HTH_TRY(r.err);
    if (kind > HTH_ROW_BEGIN)
        return HTH_E_MALFORMED;
    out->kind = (enum hth_row_answer)kind;
    if (kind == HTH_ROW_BEGIN) {
        out->has = hth_read_u64(&r);
        HTH_TRY(read_marks(&r, &out->marks));
        if (out->has == 0)
            return HTH_E_MALFORMED;
    }
    return read_end(&r);
}
