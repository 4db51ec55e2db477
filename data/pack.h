/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.h: makes a data set: filters, fits and sorts samples into the shards of its two parts.
 *
 *     hth_pack_new; for each sample hth_pack_file, _pixels, _codes or _text; hth_pack_finish
 *
 * A sample's *name* decides the part that it belongs to, the same on every machine: the decimal
 * digits of SHA-256(name), as a big-endian integer, are read backwards behind a decimal point, and
 * names below the fraction are held out. So a smaller fraction holds out a subset of a larger one,
 * and 0.1 holds out the names whose integer ends in 0.
 *
 * Samples that can't be used are skipped and counted by reason, and the first of each is named; all
 * others are kept. The shards are written as they fill up and the manifest last, so a folder
 * without data.json is no data set; a folder that has one is refused.
 *
 * Files go through the environment (core/env.h). One thread at a time; it blocks on files.
 */
#ifndef HTH_DATA_PACK_H
#define HTH_DATA_PACK_H

#include "core/env.h"
#include "data/manifest.h"
#include "data/words.h"

/* X(NAME, text in data.json and reports) */
#define HTH_SKIP_MAP(X)                                                                            \
    X(BROKEN, "broken picture")                                                                    \
    X(PIXELS, "picture too large")                                                                 \
    X(ASPECT, "picture too long")                                                                  \
    X(NO_CAPTION, "no caption")                                                                    \
    X(SHORT, "caption too short")                                                                  \
    X(LONG, "caption too long")                                                                    \
    X(NOT_UTF8, "text not UTF-8")                                                                  \
    X(BAD_ROW, "row is no JSON object")                                                            \
    X(NO_FILE, "picture file missing")                                                             \
    X(DROPPED, "dropped by --drop")

enum hth_skip {
#define HTH_SKIP_ENUM(name, text) HTH_SKIP_##name,
    HTH_SKIP_MAP(HTH_SKIP_ENUM)
#undef HTH_SKIP_ENUM
        HTH_SKIP_COUNT
};
const char *hth_skip_text(enum hth_skip reason);

struct hth_pack_opts {
    const char *dir; /* of the new data set; borrowed, like all texts here */
    const char *name;
    const char *licence;
    enum hth_set_kind kind;
    uint32_t side;        /* pixels; not for text */
    double test;          /* the fraction that is held out: 0 to 0.5 */
    const char *test_of;  /* holds out only names that contain this; NULL: any */
    uint32_t caption_min; /* characters */
    double aspect_max;    /* longest by shortest side of a picture */
    uint32_t words_min;   /* the word list has words seen as often; 0: no list */
};

struct hth_pack;

/* Errors: E_DUPLICATE (the folder has a data set), E_CONFIG (an option out of range), E_IO and its
 * like, E_UNSUPPORTED, E_NO_MEMORY. */
enum hth_err hth_pack_new(struct hth_env *env, const struct hth_pack_opts *opts,
                          struct hth_pack **out, struct hth_why *why) HTH_MUST;
/* NULL is fine. */
void hth_pack_free(struct hth_pack *pack);
/* Whether a sample of that name is held out. */
enum hth_set_part hth_pack_part_of(const struct hth_pack *pack, const char *name);

/* A picture file. text NULL: no caption; label -1: no class. Errors of the three: E_IO and its
 * like, E_NO_MEMORY; bad samples are no errors but skipped. */
enum hth_err hth_pack_file(struct hth_pack *pack, const char *name, const uint8_t *bytes,
                           size_t len, const char *text, size_t text_len, int32_t label,
                           struct hth_why *why) HTH_MUST;
/* Pixels that have the set's side, or codes, as `payload` says; into a chosen part. */
enum hth_err hth_pack_pixels(struct hth_pack *pack, enum hth_set_part part, const char *name,
                             const uint8_t *rgb, const char *text, size_t text_len, int32_t label,
                             struct hth_why *why) HTH_MUST;
enum hth_err hth_pack_codes(struct hth_pack *pack, enum hth_set_part part, const uint16_t *codes,
                            size_t count, const char *text, size_t text_len, int32_t label,
                            struct hth_why *why) HTH_MUST;
enum hth_err hth_pack_text(struct hth_pack *pack, const char *name, const char *text, size_t len,
                           struct hth_why *why) HTH_MUST;
/* Counts a sample that the caller leaves out; `first` says which, with its place. */
void hth_pack_skip(struct hth_pack *pack, enum hth_skip reason, const char *first);

/* The first skipped sample of a reason and the count; "" and 0 if there is none. */
uint64_t hth_pack_skipped(const struct hth_pack *pack, enum hth_skip reason, const char **first);

/* Class names, in order of their numbers; a code book's file, written by the caller. Both are
 * copied. */
void hth_pack_classes(struct hth_pack *pack, const char *const *classes, uint32_t count);
void hth_pack_book(struct hth_pack *pack, const struct hth_side_file *book, uint32_t patch);
/* Takes the word list of another set instead of counting; borrowed until hth_pack_finish. */
void hth_pack_words(struct hth_pack *pack, const struct hth_words *words);

/* Writes the last shards, words.json and data.json; *out is the manifest as written, valid until
 * hth_pack_free. Errors: E_BAD_SHAPE (no sample is left), E_IO and its like, E_NO_MEMORY. */
enum hth_err hth_pack_finish(struct hth_pack *pack, const struct hth_manifest **out,
                             struct hth_why *why) HTH_MUST;

#endif
