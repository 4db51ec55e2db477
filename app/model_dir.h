/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_dir.h: a folder that holds a published model: a few files, and their hashes in `sha256sums`
 * in the format of sha256sum(1).
 *
 * Writing makes the folder aside and then renames it, so that whoever reads the name sees all of
 * the old one or all of the new one. It replaces a folder of that kind, never another.
 *
 * Reading takes what is there as hostile: every file that sha256sums lists must be there, be of the
 * size that its reader expects, and have its hash. Loop or main thread; it blocks on the disk.
 */
#ifndef HTH_APP_MODEL_DIR_H
#define HTH_APP_MODEL_DIR_H

#include "core/env.h"
#include "data/why.h"

#define HTH_MODEL_DIR_FILES_MAX 16
#define HTH_MODEL_DIR_NAME_MAX  63

struct hth_model_dir {
    struct hth_model_dir_file {
        char name[HTH_MODEL_DIR_NAME_MAX + 1];
        struct hth_hash sha256; /* after a read */
        struct hth_blob *bytes;
    } file[HTH_MODEL_DIR_FILES_MAX];
    size_t count;
};

/* Keeps the reference to bytes. */
void hth_model_dir_add_take(struct hth_model_dir *dir, const char *name, struct hth_blob *bytes);
void hth_model_dir_add_text(struct hth_model_dir *dir, const char *name, const char *text);
/* NULL when there is none. */
const struct hth_blob *hth_model_dir_find(const struct hth_model_dir *dir, const char *name);
/* All zero is fine. */
void hth_model_dir_clear(struct hth_model_dir *dir);

/* Errors: E_USAGE (there is something else of that name), those of writing files. */
enum hth_err hth_model_dir_write(struct hth_env *env, const struct hth_model_dir *dir,
                                 const char *path, struct hth_why *why) HTH_MUST;
/* No file may have more than `most` bytes. Errors: those of reading files and of
 * hth_model_dir_parse, E_TOO_LARGE, E_CORRUPT (a hash). */
enum hth_err hth_model_dir_read(struct hth_env *env, const char *path, uint64_t most,
                                struct hth_model_dir *out, struct hth_why *why) HTH_MUST;
/* The names and hashes of a file sha256sums; `file` is its name in error texts. Errors: E_MALFORMED
 * (a line that is none, a name with a folder), E_DUPLICATE, E_TOO_LARGE (too many). */
enum hth_err hth_model_dir_parse(const char *file, const uint8_t *bytes, size_t len,
                                 struct hth_model_dir *out, struct hth_why *why) HTH_MUST;

#endif
