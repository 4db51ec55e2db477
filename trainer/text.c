/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c: byte text, as windows of seq_len + 1 bytes, seq_len apart. The windows' phase changes
 * from epoch to epoch, so that a byte is not always at the same place of its window. The number of
 * windows leaves room for the largest phase, so that every epoch has as many.
 */
#include <inttypes.h>
#include <string.h>

#include "core/mem.h"
#include "trainer/reader.h"

struct text_reader {
    struct hth_file_bytes file;
    struct hth_source *source;
    uint32_t seq_len;
    uint64_t begin; /* the first byte of the part that is used */
    uint8_t carry;  /* last byte of a window = first of the next */
};

static enum hth_err read_blame(const struct text_reader *r, enum hth_err err)
{
    return hth_file_blame(&r->file, err, "%s", hth_err_text(err));
}

static enum hth_err text_seek(void *self, uint64_t index, uint32_t phase)
{
    struct text_reader *r = self;

    uint64_t at = r->begin + phase + index * r->seq_len;
    enum hth_err err = hth_source_seek(r->source, at);

    if (err == HTH_OK)
        err = hth_source_read_all(r->source, &r->carry, 1);
    return err == HTH_OK ? err : read_blame(r, err);
}

static enum hth_err text_next(void *self, uint8_t *record)
{
    struct text_reader *r = self;

    enum hth_err err;

    record[0] = r->carry;
    err = hth_source_read_all(r->source, record + 1, r->seq_len);
    if (err != HTH_OK)
        return read_blame(r, err);
    r->carry = record[r->seq_len];
    return HTH_OK;
}

static void text_free(void *self)
{
    struct text_reader *r = self;

    hth_source_free(r->source);
    hth_free(r);
}

enum hth_err hth_reader_text(const struct hth_file_bytes *text, uint32_t seq_len, double begin,
                             double end, struct hth_record_reader *out)
{
    struct text_reader *r = hth_new(struct text_reader);
    uint64_t bytes, last;
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    r->file = *text;
    err = hth_source_new(text->pread, text->arg, &r->source);
    if (err == HTH_OK)
        err = hth_source_length(r->source, text->size, &bytes);
    if (err != HTH_OK) {
        hth_file_blame(text, err, "%s", hth_err_text(err));
        goto fail;
    }
    r->seq_len = seq_len;
    r->begin = (uint64_t)((double)bytes * begin);
    last = HTH_MIN(bytes, (uint64_t)((double)bytes * end));
    if (last < r->begin || last - r->begin < 2 * (uint64_t)seq_len) {
        err = hth_file_blame(text, HTH_E_BAD_SHAPE,
                             "it has %" PRIu64 " bytes; the part from %g to %g is shorter than two "
                             "samples of %u bytes",
                             bytes, begin, end, seq_len);
        goto fail;
    }
    *out = (struct hth_record_reader){
        .count = (last - r->begin - seq_len) / seq_len,
        .record_bytes = seq_len + 1,
        .features = seq_len,
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
