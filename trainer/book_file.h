/* SPDX-License-Identifier: Apache-2.0 */
/*
 * book_file.h: a code book and its decoder as a safetensors file, codebook.safetensors of a data
 * set (data/manifest.h).
 *
 *     centres          fp32 [codes, 3 f f]   pixels row by row, RGB, 0..255, in eighths
 *     decoder.embed    fp32 [codes + 1, 16]  and decoder.w1, b1, w2, b2 (data/decoder.h), if any
 *     metadata         patch: f
 *
 * The reader takes its bytes as hostile. Any thread.
 */
#ifndef HTH_TRAINER_BOOK_FILE_H
#define HTH_TRAINER_BOOK_FILE_H

#include "core/blob.h"
#include "data/sheet.h"

#define HTH_BOOK_FILE           "codebook.safetensors"
#define HTH_BOOK_FILE_BYTES_MAX (256u << 20)

/* decoder NULL: none. Errors: E_NO_MEMORY. */
enum hth_err hth_book_file_write(const struct hth_book *book, struct hth_decoder *decoder,
                                 struct hth_blob **out) HTH_MUST;
/* Makes the data set of codes pack->dir from one of pictures, book included. *codes and *made are
 * the caller's to clear and free, also after an error. Errors: those of data/codes.h. */
enum hth_err hth_book_file_set(struct hth_env *env, struct hth_set *from,
                               const struct hth_codes_opts *opts, struct hth_pack_opts *pack,
                               struct hth_codes *codes, struct hth_pack **made,
                               const struct hth_manifest **out, struct hth_why *why) HTH_MUST;
/* Reads the centres. `name` stands in error texts. Clear *out with hth_book_clear. Errors: those of
 * hth_st_open, E_MALFORMED (no centres, a patch or number out of range), E_NO_MEMORY. */
enum hth_err hth_book_file_read(const char *name, const void *bytes, size_t len,
                                struct hth_book *out, struct hth_why *why) HTH_MUST;
/* Fills a decoder that was made for this book. Errors: also E_NOT_FOUND (the file has none),
 * E_BAD_SHAPE, E_NOT_FINITE. */
enum hth_err hth_book_file_decoder(const char *name, const void *bytes, size_t len,
                                   struct hth_decoder *decoder, struct hth_why *why) HTH_MUST;

/* Loads book and decoder, for painting grids of `grid` x `grid` codes: *out has them and nothing
 * else. Clear it with hth_codes_clear, also after an error. */
enum hth_err hth_book_file_load(const char *name, const struct hth_blob *file, uint32_t grid,
                                struct hth_codes *out, struct hth_why *why) HTH_MUST;
/* hth_sheet_of_set, with the set's own book. */
enum hth_err hth_book_file_sheet(struct hth_set *set, uint32_t count, hth_sheet_fn *each, void *arg,
                                 struct hth_sheet *out, struct hth_why *why) HTH_MUST;

#endif
