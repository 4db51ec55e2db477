/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h: named tensors in one file, in a format that Python programs read.
 *
 *   +--------+----------------------------+---------------------------------------------+
 *   | u64 LE | JSON header, blank padded  | tensor bytes, in header order, without gaps |
 *   | length | to a multiple of 64        | (offsets in the header count from here)     |
 *   +--------+----------------------------+---------------------------------------------+
 *
 * The header maps names to {"dtype", "shape", "data_offsets"}; "__metadata__" maps text to text.
 * Our writer puts that entry last and in it, last, "hearth.digest": a 64-bit hash of all header
 * bytes in front of it and of the data, so that the reader finds a flipped bit. Files of other
 * programs have no digest, and the reader accepts them.
 *
 * The reader treats its bytes as hostile: it checks every size before use, its memory stays within
 * a small multiple of the header's length, names may not repeat, offsets may neither overlap nor
 * leave gaps nor leave bytes over. The writer is deterministic: the same calls give the same bytes.
 *
 * Pure functions over memory, no files and no environment: any thread, so also from jobs. Reader
 * and writer borrow the bytes and names that they are given.
 */
#ifndef HTH_EXPERTS_SAFETENSORS_H
#define HTH_EXPERTS_SAFETENSORS_H

#include "core/base.h"
#include "core/blob.h"
#include "core/tensor.h"

/* ---- reading ------------------------------------------------------------------------------- */

struct hth_st_reader;

struct hth_st_entry {
    const char *name;
    enum hth_dtype dtype;
    uint32_t ndim; /* 0: a scalar */
    uint64_t dim[HTH_TENSOR_DIMS_MAX];
    const void *data; /* in the bytes given to hth_st_open, with the file's alignment */
    uint64_t bytes;
};

/* `data` must stay until hth_st_close. Errors: E_TRUNCATED (shorter than the header says),
 * E_TOO_LARGE (header, number of tensors or of dims beyond limits.h), E_MALFORMED (not the format),
 * E_DUPLICATE (a name twice), E_BAD_SHAPE (shape, type and bytes disagree, gaps, overlaps),
 * E_CORRUPT (digest), E_UNSUPPORTED (a dtype that core/tensor.h lacks), E_NO_MEMORY. */
enum hth_err hth_st_open(const void *data, size_t len, struct hth_st_reader **out) HTH_MUST;
/* NULL is fine. */
void hth_st_close(struct hth_st_reader *reader);
size_t hth_st_count(const struct hth_st_reader *reader);
/* The i-th tensor in order of its bytes. */
const struct hth_st_entry *hth_st_at(const struct hth_st_reader *reader, size_t i);
/* NULL when there is none. */
const struct hth_st_entry *hth_st_find(const struct hth_st_reader *reader, const char *name);
/* Text of a metadata key, or NULL. */
const char *hth_st_meta(const struct hth_st_reader *reader, const char *key);
/* Errors of these: E_NOT_FOUND, E_MALFORMED (not a decimal number). A real may be NaN. */
enum hth_err hth_st_meta_u64(const struct hth_st_reader *reader, const char *key,
                             uint64_t *out) HTH_MUST;
enum hth_err hth_st_meta_real(const struct hth_st_reader *reader, const char *key,
                              double *out) HTH_MUST;
/* Copies exactly `count` elements of that type. Errors: E_NOT_FOUND, E_BAD_SHAPE. */
enum hth_err hth_st_copy(const struct hth_st_reader *reader, const char *name, enum hth_dtype dtype,
                         uint64_t count, void *out) HTH_MUST;
/* True if the file has our digest; hth_st_open has then verified it. */
bool hth_st_has_digest(const struct hth_st_reader *reader);

/* ---- writing ------------------------------------------------------------------------------- */

struct hth_st_writer;

struct hth_st_writer *hth_st_writer_new(void);
void hth_st_writer_free(struct hth_st_writer *writer);
/* Keep the first error for hth_st_writer_finish, so that callers check only there. Names and keys
 * are 1..HTH_ST_NAME_MAX of A-Z a-z 0-9 . _ - /, texts any UTF-8 of at most HTH_ST_TEXT_MAX bytes.
 * `data` is borrowed until finish. */
void hth_st_add_meta(struct hth_st_writer *writer, const char *key, const char *text);
void hth_st_add_meta_u64(struct hth_st_writer *writer, const char *key, uint64_t value);
/* With the 17 digits that give the same double back. */
void hth_st_add_meta_real(struct hth_st_writer *writer, const char *key, double value);
void hth_st_add(struct hth_st_writer *writer, const char *name, enum hth_dtype dtype, uint32_t ndim,
                const uint64_t *dim, const void *data);
/* Copies everything into one blob: a snapshot. Errors: E_MALFORMED (a name or text), E_DUPLICATE,
 * E_BAD_SHAPE, E_TOO_LARGE, E_NO_MEMORY. */
enum hth_err hth_st_writer_finish(struct hth_st_writer *writer, struct hth_blob **out) HTH_MUST;

#endif
