/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest.h: data.json, the table of contents of a data set in a folder.
 *
 *     OUT/data.json              this file; written last, so a folder with it is whole
 *     OUT/train-00000.tar.zst    shards (data/shard.h) of the training part
 *     OUT/test-00000.tar.zst     ... and of the part that is held out
 *     OUT/words.json             words of the captions (data/words.h)
 *     OUT/codebook.safetensors   of kind "codes"
 *
 *     {"version": 1, "name": "emoji", "licence": "...", "kind": "pictures", "side": 32,
 *      "classes": [], "samples": 3655,
 *      "shards": [{"file": "train-00000.tar.zst", "part": "train", "bytes": 1, "samples": 2,
 *                  "sha256": "64 hex digits"}, ...],
 *      "words": {"file": "words.json", "sha256": "...", "count": 1718},
 *      "codebook": {"file": "codebook.safetensors", "sha256": "...", "codes": 512, "patch": 4},
 *      "skipped": {"caption too short": 12}}
 *
 * Kinds: `pictures` (PNG of side x side pixels), `codes` (a grid of side / patch codes a side),
 * `text`. Samples of pictures and codes have a caption, a class, or both. Hashes are of whole
 * files, so a manifest fixes every byte of its set. Keys that this version does not know are
 * skipped.
 *
 * The parser takes its bytes as hostile: sizes, counts and their sum, names of files (no folders,
 * no repeats) and hashes are checked before use. Pure functions, any thread.
 */
#ifndef HTH_DATA_MANIFEST_H
#define HTH_DATA_MANIFEST_H

#include "core/blob.h"
#include "core/ident.h"
#include "core/limits.h"
#include "data/why.h"

#define HTH_MANIFEST_FILE     "data.json"
#define HTH_MANIFEST_NAME_MAX 63   /* bytes of a data set's or file's name */
#define HTH_MANIFEST_TEXT_MAX 1023 /* of its licence */

enum hth_set_kind { HTH_SET_PICTURES, HTH_SET_CODES, HTH_SET_TEXT };
enum hth_set_part { HTH_SET_TRAIN, HTH_SET_TEST, HTH_SET_PARTS };

struct hth_shard_entry {
    char file[HTH_MANIFEST_NAME_MAX + 1];
    enum hth_set_part part;
    uint64_t bytes;
    uint64_t samples;
    struct hth_hash sha256;
};

/* A file beside the shards; file "": none. */
struct hth_side_file {
    char file[HTH_MANIFEST_NAME_MAX + 1];
    struct hth_hash sha256;
    uint32_t count; /* words, or codes */
};

struct hth_skip_count {
    char reason[HTH_MANIFEST_NAME_MAX + 1];
    uint64_t count;
};

struct hth_manifest {
    char name[HTH_MANIFEST_NAME_MAX + 1];
    char licence[HTH_MANIFEST_TEXT_MAX + 1];
    enum hth_set_kind kind;
    uint32_t side; /* pixels; 0 for text */
    char **classes;
    uint32_t class_count; /* 0: samples have no class */
    struct hth_shard_entry *shards;
    uint32_t shard_count;
    uint64_t samples[HTH_SET_PARTS];
    struct hth_side_file words;
    struct hth_side_file book;
    uint32_t patch; /* with a code book: pixels of a patch's side */
    struct hth_skip_count skipped[16];
    uint32_t skip_count;
};

/* Whether a text may be a name in a manifest: UTF-8 of one line, without control characters. */
bool hth_manifest_text_ok(const char *text);
const char *hth_set_kind_name(enum hth_set_kind kind);
const char *hth_set_part_name(enum hth_set_part part);

/* `file` is the name in error texts. Free *out with hth_manifest_free. Errors: E_TOO_LARGE,
 * E_MALFORMED (no JSON, a key missing or of another type), E_VERSION, E_RANGE (a number or the sum
 * of the samples), E_DUPLICATE (a file or class twice), E_NO_MEMORY. */
enum hth_err hth_manifest_parse(const char *file, const uint8_t *bytes, size_t len,
                                struct hth_manifest **out, struct hth_why *why) HTH_MUST;
/* NULL is fine. */
void hth_manifest_free(struct hth_manifest *m);
/* The file's bytes: the same for the same content. Errors: E_NO_MEMORY. */
enum hth_err hth_manifest_write(const struct hth_manifest *m, struct hth_blob **out) HTH_MUST;

#endif
