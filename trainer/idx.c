/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idx.c: idx files, the format of MNIST and its successors: an image and a label stream side by
 * side.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "trainer/reader.h"

static uint32_t load_u32be(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

enum hth_err hth_idx_parse(const uint8_t *bytes, size_t len, uint32_t dims, struct hth_idx *out)
{
    uint64_t item_bytes = 1;

    out->line_bytes = 1;
    if (dims < 1 || dims > 3 || len < 4 + 4 * (size_t)dims)
        return HTH_E_TRUNCATED;
    if (bytes[0] != 0 || bytes[1] != 0 || bytes[2] != 8 || bytes[3] != dims)
        return HTH_E_BAD_MAGIC;
    for (uint32_t i = 0; i < dims; i++) {
        uint32_t size = load_u32be(bytes + 4 + 4 * (size_t)i);

        if (size == 0)
            return HTH_E_BAD_SHAPE;
        if (i == 0) {
            if (size > HTH_IDX_ITEMS_MAX)
                return HTH_E_TOO_LARGE;
            out->items = size;
            continue;
        }
        if (size > HTH_IDX_ITEM_BYTES_MAX)
            return HTH_E_TOO_LARGE;
        item_bytes *= size;
        if (item_bytes > HTH_IDX_ITEM_BYTES_MAX)
            return HTH_E_TOO_LARGE;
        out->line_bytes = size;
    }
    out->item_bytes = (uint32_t)item_bytes;
    out->header_bytes = 4 + 4 * dims;
    return HTH_OK;
}

enum hth_err hth_file_blame(const struct hth_file_bytes *file, enum hth_err err, const char *fmt,
                            ...)
{
    char what[HTH_DATA_WHY_MAX / 2];
    va_list args;

    if (file->why == NULL || file->why[0] != '\0')
        return err;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    snprintf(file->why, HTH_DATA_WHY_MAX, "%s: %s", file->name, what);
    return err;
}

struct idx_reader {
    struct hth_file_bytes image_file, label_file;
    struct hth_source *images, *labels;
    struct hth_idx image_head, label_head;
    uint32_t classes;
    uint64_t index; /* the next record */
};

static enum hth_err read_blame(const struct hth_file_bytes *file, enum hth_err err, uint64_t index)
{
    return hth_file_blame(file, err, "item %" PRIu64 ": %s", index, hth_err_text(err));
}

static enum hth_err idx_seek(void *self, uint64_t index, uint32_t phase)
{
    struct idx_reader *r = self;
    enum hth_err err;

    (void)phase;
    err = hth_source_seek(r->images, r->image_head.header_bytes + index * r->image_head.item_bytes);
    if (err != HTH_OK)
        return read_blame(&r->image_file, err, index);
    err = hth_source_seek(r->labels, r->label_head.header_bytes + index);
    if (err != HTH_OK)
        return read_blame(&r->label_file, err, index);
    r->index = index;
    return HTH_OK;
}

/* Refuses bytes beyond the declared items. The read also checks gzip's sums. */
static enum hth_err expect_end(const struct hth_file_bytes *file, struct hth_source *source)
{
    uint8_t byte;
    size_t got = 0;
    enum hth_err err = hth_source_read(source, &byte, 1, &got);

    if (err == HTH_OK && got > 0)
        return hth_file_blame(file, HTH_E_CORRUPT, "it has bytes after its last item");
    return err == HTH_OK ? err : hth_file_blame(file, err, "at its end: %s", hth_err_text(err));
}

static enum hth_err idx_next(void *self, uint8_t *record)
{
    struct idx_reader *r = self;
    uint32_t pixels = r->image_head.item_bytes;
    enum hth_err err = hth_source_read_all(r->images, record, pixels);

    if (err != HTH_OK)
        return read_blame(&r->image_file, err, r->index);
    err = hth_source_read_all(r->labels, record + pixels, 1);
    if (err != HTH_OK)
        return read_blame(&r->label_file, err, r->index);
    if (record[pixels] >= r->classes)
        return hth_file_blame(&r->label_file, HTH_E_CORRUPT,
                              "item %" PRIu64 " has class %u, but there are %u classes", r->index,
                              record[pixels], r->classes);
    if (++r->index == r->image_head.items) {
        HTH_TRY(expect_end(&r->image_file, r->images));
        HTH_TRY(expect_end(&r->label_file, r->labels));
    }
    return HTH_OK;
}

static void idx_free(void *self)
{
    struct idx_reader *r = self;

    hth_source_free(r->images);
    hth_source_free(r->labels);
    hth_free(r);
}

static enum hth_err read_header(const struct hth_file_bytes *file, uint32_t dims,
                                struct hth_source **source, struct hth_idx *head)
{
    uint8_t bytes[HTH_IDX_HEADER_MAX] = {0};
    enum hth_err err = hth_source_new(file->pread, file->arg, source);

    if (err == HTH_OK)
        err = hth_source_read_all(*source, bytes, 4 + 4 * (size_t)dims);
    if (err == HTH_OK)
        err = hth_idx_parse(bytes, sizeof(bytes), dims, head);
    if (err == HTH_E_BAD_MAGIC)
        return hth_file_blame(file, err, "it is not an idx file of bytes in %u dimensions", dims);
    if (err == HTH_E_BAD_SHAPE || err == HTH_E_TOO_LARGE)
        return hth_file_blame(file, err, "its header has a size that is %s",
                              err == HTH_E_BAD_SHAPE ? "0" : "beyond all limits");
    return err == HTH_OK ? err : hth_file_blame(file, err, "its header: %s", hth_err_text(err));
}

/* Compares the header with the length of the content. A compressed file is read for that only if
 * its last bytes contradict the header, as those of a file of several members do. */
static enum hth_err check_length(const struct hth_file_bytes *file, struct hth_source *source,
                                 const struct hth_idx *head)
{
    uint64_t want = head->header_bytes + (uint64_t)head->items * head->item_bytes, is = want;
    uint32_t hint;
    enum hth_err err = hth_source_length_hint(source, file->size, &hint);

    if (err == HTH_OK && hint != (uint32_t)want)
        err = hth_source_length(source, file->size, &is);
    if (err != HTH_OK)
        return hth_file_blame(file, err, "%s", hth_err_text(err));
    if (is == want)
        return HTH_OK;
    return hth_file_blame(file, is < want ? HTH_E_TRUNCATED : HTH_E_CORRUPT,
                          "its header says %u items of %u bytes, %" PRIu64
                          " bytes in all, but it has %" PRIu64,
                          head->items, head->item_bytes, want, is);
}

enum hth_err hth_reader_idx(const struct hth_file_bytes *images,
                            const struct hth_file_bytes *labels, uint32_t classes,
                            struct hth_record_reader *out)
{
    struct idx_reader *r = hth_new(struct idx_reader);
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    r->classes = classes;
    r->image_file = *images;
    r->label_file = *labels;
    HTH_GOTO(fail, read_header(images, 3, &r->images, &r->image_head));
    HTH_GOTO(fail, read_header(labels, 1, &r->labels, &r->label_head));
    if (r->image_head.items != r->label_head.items) {
        err = hth_file_blame(labels, HTH_E_BAD_SHAPE, "it has %u labels for %u images",
                             r->label_head.items, r->image_head.items);
        goto fail;
    }
    HTH_GOTO(fail, check_length(images, r->images, &r->image_head));
    HTH_GOTO(fail, check_length(labels, r->labels, &r->label_head));
    *out = (struct hth_record_reader){
        .count = r->image_head.items,
        .record_bytes = r->image_head.item_bytes + 1,
        .features = r->image_head.item_bytes,
        .line_bytes = r->image_head.line_bytes,
        .phases = 1,
        .seek = idx_seek,
        .next = idx_next,
        .free = idx_free,
        .self = r,
    };
    return HTH_OK;
fail:
    idx_free(r);
    return err;
}
