/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.h: samples from files, streamed in bounded memory and shuffled in a reproducible order.
 *
 *     kind         files                              a sample
 *     IMAGES       idx files of MNIST and Fashion-    a picture and its class
 *                  MNIST, plain or gzip
 *     TEXT         any file                           seq_len bytes; labels: those that follow each
 *     SET_IMAGES   a data set (data/set.h) of         a picture, grey or in colours, and its class
 *                  pictures
 *     SET_TEXT     a data set of text                 seq_len ids of words or bytes; labels: those
 *                                                     that follow each
 *     SET_CODES    a data set of codes                the begin, a caption (data/words.h) and the
 *                                                     codes of its picture but the last; labels:
 *                                                     those that follow each, but no padding
 *
 * The order of samples is a pure function of (seed, epoch, peer): an epoch starts at a drawn place,
 * runs round the file once and passes through a shuffle buffer. So the whole state of a reader is
 * one number, the count of samples delivered; a resumed run asks for sample `position`, and the
 * reader replays its epoch up to there. Every sample appears once in every epoch.
 *
 * With `shift` the reader moves each picture by a drawn number of pixels on both axes and fills its
 * edges: with 0 in IMAGES, in a set with the nearest pixel of the picture. The two numbers are a
 * pure function of (seed, peer, position). If the order is the file's, they are one of (seed, peer,
 * item), so that a test set holds the same pictures in every epoch; with the same seed and peer, on
 * every trainer.
 *
 * Threads: hth_data_open and _free on the loop at start and end; hth_data_read in jobs of the io
 * lane, one at a time. Files are hostile input: every header, count, length and checksum is
 * verified.
 */
#ifndef HTH_TRAINER_DATA_H
#define HTH_TRAINER_DATA_H

#include "core/base.h"
#include "core/ident.h"
#include "core/limits.h"

struct hth_env;
struct hth_data;

enum hth_data_kind {
    HTH_DATA_IMAGES,
    HTH_DATA_TEXT,
    HTH_DATA_SET_IMAGES,
    HTH_DATA_SET_TEXT,
    HTH_DATA_SET_CODES
};
#define HTH_DATA_BYTES   256 /* the vocab of plain bytes */
#define HTH_DATA_IDS_MIN 258 /* ... and the least with ids of data/words.h */

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
    const char *set;   /* SET_*: the folder */
    const char *words; /* SHA-256 of its words.json as hex digits; NULL: any */
    const char *book;  /* ... of its code book's file */
    bool held_out;     /* the set's part of tests, not that of training */
    uint32_t features; /* SET_IMAGES: side * side of a picture (grey), or 3 times that */
    uint32_t vocab;    /* SET_TEXT: HTH_DATA_BYTES, or a number of ids, as in SET_CODES */
    uint32_t text_len; /* SET_CODES: ids of a caption, the begin included */
    uint32_t codes;    /* SET_CODES: numbers of the code book */
    uint32_t code_side;    /* SET_CODES: codes a side */
    double caption_drop;   /* SET_CODES: the fraction of samples that lose their caption */
    uint32_t shuffle_rows; /* samples in the buffer; 0: the file's order in every epoch */
    uint64_t seed;
    uint64_t peer; /* number of the trainer in the run: each has its own order */
};

/* Fashion-MNIST's mean and deviation over its training images. */
#define HTH_DATA_OPTS_INIT                                                                         \
    {                                                                                              \
        .kind = HTH_DATA_IMAGES, .mean = 0.2860f, .std = 0.3530f, .classes = 10, .seq_len = 128,   \
        .begin = 0.0, .end = 1.0, .vocab = HTH_DATA_BYTES, .shuffle_rows = 4096                    \
    }

struct hth_data_info {
    uint64_t samples;  /* per epoch */
    uint32_t features; /* images: numbers of one; others: ids of a sample */
    uint32_t labels;   /* per sample: 1, or as many as features */
    uint64_t hash;     /* hth_data_hash of the word list and the code book that ids come from */
};

/* Opens the files. An error with a file is logged: its name, the fault and the remedy. Errors:
 * E_CONFIG (also a set of another kind or size, or with other words, than the options say),
 * E_NO_FILE and its like, E_BAD_MAGIC, E_TRUNCATED, E_TOO_LARGE, E_CORRUPT, E_BAD_SHAPE (images and
 * labels differ in number, or a file is empty), E_NO_MEMORY, those of hth_set_open. */
enum hth_err hth_data_open(struct hth_env *env, const struct hth_data_opts *opts,
                           struct hth_data **out) HTH_MUST;
void hth_data_free(struct hth_data *data);
void hth_data_info(const struct hth_data *data, struct hth_data_info *out);

/* Delivers samples position .. position + count - 1 of the endless sequence of epochs.
 *   images: x float [count, features], tokens NULL, labels int32 [count]
 *   others: x NULL, tokens int32 [count, features], labels int32 [count, features]; without a
 * label: HTH_LABEL_NONE (kernels/ops.h) The position that follows the last read is cheap; another
 * one replays the shuffle of its epoch. Errors: E_CORRUPT (also a label out of range), E_TRUNCATED,
 * E_IO and its like. After an error the caller may read again, and hth_data_why explains the first
 * error. */
enum hth_err hth_data_read(struct hth_data *data, uint64_t position, uint32_t count, float *x,
                           int32_t *tokens, int32_t *labels) HTH_MUST;

/* Hash of what ids mean: of the SHA-256 of a word list and of a code book; NULL: none. 0 for none
 * of both. */
uint64_t hth_data_hash(const struct hth_hash *words, const struct hth_hash *book);

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
