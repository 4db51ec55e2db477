/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.h (internal): the file formats behind data.h as records of fixed size.
 *
 * A reader delivers `count` records of `record_bytes`; `phase` shifts the windows of a text (below
 * seq_len; 0 for images). hth_reader_idx: pixels, then the label byte. hth_reader_text: a window of
 * seq_len + 1 bytes, of which the last is the first of the next. hth_reader_set: see set.c.
 */
#ifndef HTH_TRAINER_READER_H
#define HTH_TRAINER_READER_H

#include "trainer/data.h"
#include "trainer/source.h"

struct hth_record_reader {
    uint64_t count;
    uint32_t record_bytes;
    uint32_t features;   /* numbers of a sample */
    uint32_t line_bytes; /* of images: a row of pixels; 0 for text */
    uint64_t hash;       /* as in hth_data_info */
    uint32_t phases;     /* allowed values of phase: 1 for images, seq_len for text */
    enum hth_err (*seek)(void *self, uint64_t index, uint32_t phase);
    enum hth_err (*next)(void *self, uint8_t *record);
    void (*free)(void *self);
    void *self;
};

/* The source of a file's bytes. */
struct hth_file_bytes {
    hth_pread_fn *pread;
    void *arg;
    uint64_t size; /* of the file as stored */
    const char *name;
    char *why; /* HTH_DATA_WHY_MAX bytes for the first error, or NULL */
};

/* Writes the file's name and the message to `why`, unless it has one; returns err. */
enum hth_err hth_file_blame(const struct hth_file_bytes *file, enum hth_err err, const char *fmt,
                            ...) HTH_PRINTF(3, 4);

enum hth_err hth_reader_idx(const struct hth_file_bytes *images,
                            const struct hth_file_bytes *labels, uint32_t classes,
                            struct hth_record_reader *out) HTH_MUST;
enum hth_err hth_reader_text(const struct hth_file_bytes *text, uint32_t seq_len, double begin,
                             double end, struct hth_record_reader *out) HTH_MUST;
/* `why` is as in hth_file_bytes. */
enum hth_err hth_reader_set(struct hth_env *env, const struct hth_data_opts *opts, char *why,
                            struct hth_record_reader *out) HTH_MUST;

#endif
