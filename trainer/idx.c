/* SPDX-License-Identifier: Apache-2.0 */
/* idx files: the format of MNIST and its successors, as image and label streams side by side. */
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
    }
    out->item_bytes = (uint32_t)item_bytes;
    out->header_bytes = 4 + 4 * dims;
    return HTH_OK;
}

struct idx_reader {
    struct hth_source *images, *labels;
    struct hth_idx image_head, label_head;
    uint32_t classes;
    uint64_t index; /* the next record */
};

static enum hth_err idx_seek(void *self, uint64_t index, uint32_t phase)
{
    struct idx_reader *r = self;

    (void)phase;
    HTH_TRY(
        hth_source_seek(r->images, r->image_head.header_bytes + index * r->image_head.item_bytes));
    HTH_TRY(hth_source_seek(r->labels, r->label_head.header_bytes + index));
    r->index = index;
    return HTH_OK;
}

/* Bytes beyond the declared items mean that the header lies; reading on also checks gzip's sums. */
static enum hth_err expect_end(struct hth_source *source)
{
    uint8_t byte;
    size_t got;

    HTH_TRY(hth_source_read(source, &byte, 1, &got));
    return got == 0 ? HTH_OK : HTH_E_CORRUPT;
}

static enum hth_err idx_next(void *self, uint8_t *record)
{
    struct idx_reader *r = self;
    uint32_t pixels = r->image_head.item_bytes;

    HTH_TRY(hth_source_read_all(r->images, record, pixels));
    HTH_TRY(hth_source_read_all(r->labels, record + pixels, 1));
    if (record[pixels] >= r->classes)
        return HTH_E_CORRUPT;
    if (++r->index == r->image_head.items) {
        HTH_TRY(expect_end(r->images));
        HTH_TRY(expect_end(r->labels));
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
    uint8_t bytes[HTH_IDX_HEADER_MAX];

    HTH_TRY(hth_source_new(file->pread, file->arg, source));
    HTH_TRY(hth_source_read_all(*source, bytes, 4 + 4 * (size_t)dims));
    return hth_idx_parse(bytes, sizeof(bytes), dims, head);
}

enum hth_err hth_reader_idx(const struct hth_file_bytes *images,
                            const struct hth_file_bytes *labels, uint32_t classes,
                            struct hth_record_reader *out)
{
    struct idx_reader *r = hth_new(struct idx_reader);
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    r->classes = classes;
    HTH_GOTO(fail, read_header(images, 3, &r->images, &r->image_head));
    HTH_GOTO(fail, read_header(labels, 1, &r->labels, &r->label_head));
    if (r->image_head.items != r->label_head.items) {
        err = HTH_E_BAD_SHAPE;
        goto fail;
    }
    *out = (struct hth_record_reader){
        .count = r->image_head.items,
        .record_bytes = r->image_head.item_bytes + 1,
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
