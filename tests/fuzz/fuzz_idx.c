/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_idx.c: a pair of idx files, plain or gzip, and a text. The first byte selects where the
 * input is split into images and labels. For all bytes reading ends, stays in bounds and holds
 * bounded memory.
 */
#include <string.h>

#include "core/mem.h"
#include "trainer/reader.h"

#define RECORDS_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bytes {
    const uint8_t *data;
    size_t size;
};

static enum hth_err bytes_pread(void *arg, uint64_t offset, void *buf, size_t len, size_t *got)
{
    const struct bytes *b = arg;

    *got = offset >= b->size ? 0 : HTH_MIN(len, b->size - (size_t)offset);
    if (*got > 0)
        memcpy(buf, b->data + offset, *got);
    return HTH_OK;
}

static void read_some(struct hth_record_reader *reader)
{
    uint8_t *record = hth_calloc(1, reader->record_bytes);

    if (reader->seek(reader->self, 0, 0) == HTH_OK) {
        for (uint64_t i = 0; i < HTH_MIN(reader->count, (uint64_t)RECORDS_MAX); i++)
            if (reader->next(reader->self, record) != HTH_OK)
                break;
    }
    reader->free(reader->self);
    hth_free(record);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hth_record_reader reader;
    struct hth_idx idx;
    size_t split;

    if (size < 1)
        return 0;
    split = (size_t)data[0] * (size - 1) / 255;
    struct bytes a = {data + 1, split};
    struct bytes b = {data + 1 + split, size - 1 - split};
    char why[HTH_DATA_WHY_MAX] = "";
    struct hth_file_bytes images = {bytes_pread, &a, a.size, "images", why};
    struct hth_file_bytes labels = {bytes_pread, &b, b.size, "labels", why};

    if (hth_idx_parse(data, size, 1 + data[0] % 3u, &idx) == HTH_OK && idx.item_bytes == 0)
        __builtin_trap();
    if (hth_reader_idx(&images, &labels, 10, &reader) == HTH_OK)
        read_some(&reader);
    if (hth_reader_text(&images, 1 + data[0] % 16u, 0.0, 1.0, &reader) == HTH_OK)
        read_some(&reader);
    return 0;
}
