/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.h: samples from a file, streamed in bounded memory and shuffled in a reproducible order.
 *
 * Two kinds of data: images with labels (the idx files of MNIST and Fashion-MNIST, plain or gzip)
 * and byte text (a sample is a window of seq_len bytes; its labels are the bytes that follow each).
 *
 * The order of samples is a pure function of (seed, epoch, peer): an epoch starts at a drawn place,
 * runs round the file once and passes through a shuffle buffer. So the whole state of a reader is
 * one number, the count of samples delivered; a resumed run asks for sample `position`, and the
 * reader replays its epoch up to there. Every sample appears once in every epoch.
 *
 * With `shift` the reader moves each picture by a drawn number of pixels on both axes and fills its
 * edges with 0. The two numbers are a pure function of (seed, peer, position). If the order is the
 * file's, they are one of (seed, peer, item), so that a test set holds the same pictures in every
 * epoch; with the same seed and peer, on every trainer.
 *
 * Threads: hth_data_open and _free on the loop at start and end; hth_data_read in jobs of the io
 * lane, one at a time. Files are hostile input: every header, count, length and checksum is
 * verified.
 */
#ifndef HTH_TRAINER_DATA_H
#define HTH_TRAINER_DATA_H

#include "core/base.h"
#include "core/limits.h"

struct hth_env;
struct hth_data;

enum hth_data_kind { HTH_DATA_IMAGES, HTH_DATA_TEXT };

struct hth_data_opts {
    enum hth_data_kind kind;
    const char *images; /* IMAGES: the two idx files */
    const char *labels;
    float mean, std;   /* pixels in 0..1 become (p - mean) / std */
    uint32_t classes;  /* labels must be below */
    uint32_t shift;    /* each picture is moved by -shift..shift pixels; up to HTH_DATA_SHIFT_MAX */
    const char *text;  /* TEXT: the file */
    uint32_t seq_len;  /* 1..HTH_SEQ_LEN_MAX */
    double begin, end; /* the part of the file that is used, as fractions */
    uint32_t shuffle_rows; /* samples in the buffer; 0: the file's order in every epoch */
    uint64_t seed;
    uint64_t peer; /* number of the trainer in the run: each has its own order */
};

/* Fashion-MNIST's mean and deviation over its training images. */
#define HTH_DATA_OPTS_INIT                                                                         \
    {                                                                                              \
        .kind = HTH_DATA_IMAGES, .mean = 0.2860f, .std = 0.3530f, .classes = 10, .seq_len = 128,   \
        .begin = 0.0, .end = 1.0, .shuffle_rows = 4096                                             \
    }

struct hth_data_info {
    uint64_t samples;  /* per epoch */
    uint32_t features; /* IMAGES: pixels of an image; TEXT: seq_len */
    uint32_t labels;   /* per sample: 1 or seq_len */
};

/* Opens the files. An error with a file is logged: its name, the fault and the remedy. Errors:
 * E_CONFIG, E_NO_FILE and its like, E_BAD_MAGIC, E_TRUNCATED, E_TOO_LARGE, E_CORRUPT, E_BAD_SHAPE
 * (images and labels differ in number, or a file is empty), E_NO_MEMORY. */
enum hth_err hth_data_open(struct hth_env *env, const struct hth_data_opts *opts,
                           struct hth_data **out) HTH_MUST;
void hth_data_free(struct hth_data *data);
void hth_data_info(const struct hth_data *data, struct hth_data_info *out);

/* Delivers samples position .. position + count - 1 of the endless sequence of epochs.
 *   IMAGES: x float [count, features], tokens NULL, labels int32 [count]
 *   TEXT:   x NULL, tokens int32 [count, seq_len], labels int32 [count, seq_len]
 * The position that follows the last read is cheap; another one replays the shuffle of its epoch.
 * Errors: E_CORRUPT (also a label out of range), E_TRUNCATED, E_IO and its like. After an error the
 * caller may read again, and hth_data_why explains the first error. */
enum hth_err hth_data_read(struct hth_data *data, uint64_t position, uint32_t count, float *x,
                           int32_t *tokens, int32_t *labels) HTH_MUST;

/* The file at fault and what is wrong with it; "" before any error. On the loop, after the end of
 * the job that got the error. */
const char *hth_data_why(const struct hth_data *data);
#define HTH_DATA_WHY_MAX 512

/* ---- idx files ------------------------------------------------------------------------------ */

/* The header of an idx file: big-endian magic 00 00 type dims, then the sizes. */
struct hth_idx {
    uint32_t items;
    uint32_t item_bytes;
    uint32_t line_bytes; /* the last size: the width of pictures */
    uint32_t header_bytes;
};

/* Errors: E_TRUNCATED, E_BAD_MAGIC (not idx, or not unsigned bytes, or another number of dimensions
 * than `dims`), E_TOO_LARGE, E_BAD_SHAPE (a size is 0). */
enum hth_err hth_idx_parse(const uint8_t *bytes, size_t len, uint32_t dims,
                           struct hth_idx *out) HTH_MUST;
#define HTH_IDX_HEADER_MAX 16

#endif
