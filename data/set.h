/* SPDX-License-Identifier: Apache-2.0 */
/*
 * set.h: reads the data set of a folder, sample by sample.
 *
 *     hth_set_open     data.json and words.json, with its hash
 *     hth_set_seek     begins at sample i of a part, in order of the shards
 *     hth_set_next     the next one; at the end of the part it goes on with the first
 *
 * One shard is in memory at a time. Its size and SHA-256 are compared with the manifest before it
 * is unpacked, and each sample with the manifest's kind, side and classes: a set that was changed
 * is an error that names file and sample, and no sample is skipped.
 *
 * It matches struct hth_record_reader of trainer/reader.h: count, seek and next.
 *
 * Threads: open and free on the loop at start and end or in a job, seek and next in jobs of the io
 * lane, one at a time for each set; open a set per part that is read side by side.
 */
#ifndef HTH_DATA_SET_H
#define HTH_DATA_SET_H

#include "core/env.h"
#include "data/manifest.h"
#include "data/words.h"

struct hth_set;

struct hth_sample {
    const char *text; /* UTF-8, without a 0; NULL: none */
    size_t text_len;
    int32_t label;         /* -1: none */
    const uint8_t *pixels; /* pictures: side * side * 3 */
    const uint16_t *codes; /* codes: (side / patch)^2, below the book's count */
};

/* Errors: E_NO_FILE and its like, those of hth_manifest_parse and hth_words_parse, E_CORRUPT (a
 * hash), E_NO_MEMORY. */
enum hth_err hth_set_open(struct hth_env *env, const char *dir, struct hth_set **out,
                          struct hth_why *why) HTH_MUST;
/* NULL is fine. */
void hth_set_free(struct hth_set *set);
const struct hth_manifest *hth_set_manifest(const struct hth_set *set);
const struct hth_words *hth_set_words(const struct hth_set *set); /* NULL: none */
/* A file beside the manifest, checked against its hash; E_NOT_FOUND if the manifest names none. */
enum hth_err hth_set_side_file(struct hth_set *set, const struct hth_side_file *file, uint64_t max,
                               struct hth_blob **out, struct hth_why *why) HTH_MUST;

/* Errors: E_RANGE (no such sample), and those of next. */
enum hth_err hth_set_seek(struct hth_set *set, enum hth_set_part part, uint64_t index,
                          struct hth_why *why) HTH_MUST;
/* Valid until the next call. Errors: E_NO_FILE and its like, E_CORRUPT (hash, size, or number of
 * samples of a shard), those of hth_shard_next and hth_picture_decode, E_BAD_SHAPE (a sample that
 * does not fit the manifest). After an error: seek. */
enum hth_err hth_set_next(struct hth_set *set, struct hth_sample *out,
                          struct hth_why *why) HTH_MUST;

#endif
