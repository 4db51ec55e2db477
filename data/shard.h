/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard.h: one file of a data set: a tar of samples, compressed with zstd (the form of WebDataset).
 *
 *     00000017.txt     caption, or a text, UTF-8
 *     00000017.cls     number of the class, decimal
 *     00000017.png     picture
 *     00000017.codes   uint16, little-endian
 *
 * Files of one sample follow each other and share their name up to the first dot; a sample has at
 * least one of them. Shards are small (about 4 MiB as made here) and lie in memory as a whole:
 * their hash is checked before a byte is unpacked.
 *
 * The reader takes its bytes as hostile: nothing is written to a disk, names with folders, links
 * and special files are refused, and so is more than HTH_SHARD_UNPACKED_MAX of content. The writer
 * gives the same bytes for the same calls and library.
 *
 * Pure functions over memory; one thread at a time for each object.
 */
#ifndef HTH_DATA_SHARD_H
#define HTH_DATA_SHARD_H

#include "core/blob.h"
#include "core/limits.h"
#include "data/why.h"

enum hth_shard_file {
    HTH_SHARD_TXT,
    HTH_SHARD_CLS,
    HTH_SHARD_PNG,
    HTH_SHARD_CODES,
    HTH_SHARD_FILES
};

struct hth_bytes {
    const uint8_t *data; /* NULL: absent */
    size_t len;
};

struct hth_shard_sample {
    char key[HTH_SHARD_KEY_MAX + 1];
    struct hth_bytes file[HTH_SHARD_FILES];
};

/* ---- reading ------------------------------------------------------------------------------- */

struct hth_shard_reader;

/* `name` stands in error texts; it and the bytes are borrowed. Errors: E_NO_MEMORY. */
enum hth_err hth_shard_open(const char *name, const void *bytes, size_t len,
                            struct hth_shard_reader **out) HTH_MUST;
/* NULL is fine. */
void hth_shard_close(struct hth_shard_reader *reader);
/* The next sample, valid until the next call. Errors: E_NOT_FOUND (the end), E_CORRUPT (no zstd or
 * tar, or cut short), E_MALFORMED (a name, link, special file or unknown ending), E_DUPLICATE (a
 * file twice in a sample), E_TOO_LARGE, E_NO_MEMORY. */
enum hth_err hth_shard_next(struct hth_shard_reader *reader, struct hth_shard_sample *out,
                            struct hth_why *why) HTH_MUST;

/* ---- writing ------------------------------------------------------------------------------- */

struct hth_shard_writer;

/* Errors: E_NO_MEMORY, E_UNSUPPORTED (this libarchive has no zstd). */
enum hth_err hth_shard_writer_new(struct hth_shard_writer **out) HTH_MUST;
/* NULL is fine. */
void hth_shard_writer_free(struct hth_shard_writer *writer);
/* Copies the sample. Errors: E_NO_MEMORY. */
enum hth_err hth_shard_add(struct hth_shard_writer *writer,
                           const struct hth_shard_sample *sample) HTH_MUST;
/* Content so far, before compression. */
uint64_t hth_shard_writer_bytes(const struct hth_shard_writer *writer);
/* Ends the file; the writer can only be freed afterwards. Errors: E_NO_MEMORY. */
enum hth_err hth_shard_finish(struct hth_shard_writer *writer, struct hth_blob **out) HTH_MUST;

/* ---- whole files --------------------------------------------------------------------------- */

/* Unpacks a file that may be compressed with gzip or zstd, such as a text; else copies it. Errors:
 * E_TOO_LARGE (more than `max` bytes), E_CORRUPT, E_NO_MEMORY. */
enum hth_err hth_unpack(const char *name, const void *bytes, size_t len, size_t max,
                        struct hth_blob **out, struct hth_why *why) HTH_MUST;

#endif
