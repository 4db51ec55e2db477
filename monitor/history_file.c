/* SPDX-License-Identifier: Apache-2.0 */
/* history_file.c: one hour or day of rows as bytes; see history.h. */
#include "core/bytes.h"
#include "core/rng.h"
#include "monitor/history.h"

#include <string.h>

#define MAGIC   UINT32_C(0x53494848) /* "HHIS" */
#define VERSION 1

size_t hth_history_write(const struct hth_history_file *file, uint8_t out[HTH_HISTORY_BYTES_MAX])
{
    struct hth_writer w;
    hth_writer_init(&w, out, HTH_HISTORY_BYTES_MAX);
    hth_write_u32(&w, MAGIC);
    hth_write_u16(&w, VERSION);
    hth_write_u16(&w, file->coarse);
    hth_write_u64(&w, file->run);
    hth_write_u32(&w, file->number);
    hth_write_u16(&w, (uint16_t)file->count);
    for (uint32_t i = 0; i < file->count; i++) {
        const struct hth_history_row *row = &file->row[i];
        hth_write_u32(&w, row->t);
        hth_write_u32(&w, row->trainers);
        hth_write_u32(&w, row->hosts);
        hth_write_u32(&w, row->served);
        hth_write_u64(&w, row->step);
        hth_write_u64(&w, row->samples);
        hth_write_bytes(&w, &row->loss, sizeof(row->loss));
        hth_write_bytes(&w, &row->samples_per_s, sizeof(row->samples_per_s));
        hth_write_bytes(&w, &row->rows_per_s, sizeof(row->rows_per_s));
    }
    hth_write_u64(&w, hth_hash64(out, w.pos, 0));
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

static void read_row(struct hth_reader *r, struct hth_history_row *row)
{
    row->t = hth_read_u32(r);
    row->trainers = hth_read_u32(r);
    row->hosts = hth_read_u32(r);
    row->served = hth_read_u32(r);
    row->step = hth_read_u64(r);
    row->samples = hth_read_u64(r);
    hth_read_bytes(r, &row->loss, sizeof(row->loss));
    hth_read_bytes(r, &row->samples_per_s, sizeof(row->samples_per_s));
    hth_read_bytes(r, &row->rows_per_s, sizeof(row->rows_per_s));
}

/* A row in its slot, within the file's hour or day, and after the one before it. */
static bool row_ok(const struct hth_history_file *file, uint32_t i)
{
    uint32_t file_s = file->coarse ? 86400 : 3600;
    uint32_t period_s = file->coarse ? HTH_HISTORY_COARSE_S : HTH_HISTORY_FINE_S;
    uint32_t t = file->row[i].t;
    return t != 0 && t % period_s == 0 && t / file_s == file->number &&
           (i == 0 || t > file->row[i - 1].t);
}

enum hth_err hth_history_read(const uint8_t *data, size_t len, struct hth_history_file *out)
{
    struct hth_reader r;
    hth_reader_init(&r, data, len);
    memset(out, 0, sizeof(*out));
    uint32_t magic = hth_read_u32(&r), version = hth_read_u16(&r), kind = hth_read_u16(&r);
    HTH_TRY(r.err);
    if (magic != MAGIC)
        return HTH_E_BAD_MAGIC;
    if (version != VERSION)
        return HTH_E_VERSION;
    out->coarse = kind != 0;
    out->run = hth_read_u64(&r);
    out->number = hth_read_u32(&r);
    out->count = hth_read_u16(&r);
    HTH_TRY(r.err);
    size_t bytes = r.pos + (size_t)out->count * HTH_HISTORY_ROW_BYTES;
    if (kind > 1 || out->count > HTH_HISTORY_FILE_ROWS)
        return HTH_E_RANGE;
    if (len < bytes + 8)
        return HTH_E_TRUNCATED;
    if (len > bytes + 8)
        return HTH_E_MALFORMED;
    if (hth_load_u64le(data + bytes) != hth_hash64(data, bytes, 0))
        return HTH_E_CORRUPT;
    for (uint32_t i = 0; i < out->count; i++) {
        read_row(&r, &out->row[i]);
        if (!row_ok(out, i))
            return HTH_E_RANGE;
    }
    return HTH_OK;
}
