/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte text: windows of seq_len + 1 bytes, seq_len apart. The windows' phase changes from epoch to
 * epoch, so that a byte is not always at the same place of its window; the number of windows leaves
 * room for the largest phase, so that every epoch has as many.
 */
#include <string.h>

#include "core/mem.h"
#include "trainer/reader.h"

struct text_reader {
    struct hth_source *source;
    uint32_t seq_len;
    uint64_t begin; /* the first byte of the part that is used */
    uint8_t carry;  /* last byte of the window before = first of the next */
};

static enum hth_err text_seek(void *self, uint64_t index, uint32_t phase)
{
    struct text_reader *r = self;

    HTH_TRY(hth_source_seek(r->source, r->begin + phase + index * r->seq_len));
    return hth_source_read_all(r->source, &r->carry, 1);
}

static enum hth_err text_next(void *self, uint8_t *record)
{
    struct text_reader *r = self;

    record[0] = r->carry;
    HTH_TRY(hth_source_read_all(r->source, record + 1, r->seq_len));
    r->carry = record[r->seq_len];
    return HTH_OK;
}

static void text_free(void *self)
{
    struct text_reader *r = self;

    hth_source_free(r->source);
    hth_free(r);
}

/* Reads a compressed text once to learn its length; the walk is in bounded memory. */
static enum hth_err content_bytes(struct hth_source *source, uint64_t *bytes)
{
    uint8_t *piece = hth_calloc(1, 64u << 10);
    enum hth_err err = HTH_OK;
    size_t got;

    *bytes = 0;
    do {
        HTH_GOTO(out, hth_source_read(source, piece, 64u << 10, &got));
        *bytes += got;
    } while (got == 64u << 10);
out:
    hth_free(piece);
    return err;
}

enum hth_err hth_reader_text(const struct hth_file_bytes *text, uint32_t seq_len, double begin,
                             double end, struct hth_record_reader *out)
{
    struct text_reader *r = hth_new(struct text_reader);
    uint64_t bytes, last;
    uint8_t magic[2];
    size_t got;
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    HTH_GOTO(fail, hth_source_new(text->pread, text->arg, &r->source));
    HTH_GOTO(fail, text->pread(text->arg, 0, magic, sizeof(magic), &got));
    if (got == 2 && magic[0] == 0x1f && magic[1] == 0x8b)
        HTH_GOTO(fail, content_bytes(r->source, &bytes));
    else
        bytes = text->size;
    r->seq_len = seq_len;
    r->begin = (uint64_t)((double)bytes * begin);
    last = HTH_MIN(bytes, (uint64_t)((double)bytes * end));
    if (last < r->begin || last - r->begin < 2 * (uint64_t)seq_len) {
        err = HTH_E_BAD_SHAPE;
        goto fail;
    }
    *out = (struct hth_record_reader){
        .count = (last - r->begin - seq_len) / seq_len,
        .record_bytes = seq_len + 1,
        .phases = seq_len,
        .seek = text_seek,
        .next = text_next,
        .free = text_free,
        .self = r,
    };
    return HTH_OK;
fail:
    text_free(r);
    return err;
}
