/* SPDX-License-Identifier: Apache-2.0 */
/*
 * folder.h: a person's own files as samples of a data set.
 *
 * Pictures (hth_folder_pack), by what lies in the folder:
 *   captions.jsonl   rows {"file": "a/1.png", "text" or "caption": "...", other fields}
 *   NAME.txt         the caption of NAME.png, NAME.jpg or NAME.jpeg beside it
 *   CLASS/...        else, if all pictures lie in folders: the first folder's name is class and
 *                    caption
 * A picture's name for the held-out part is its path without the ending. Pictures are packed in an
 * order that is drawn, the same for the same names.
 *
 * Texts (hth_text_pack): a file ending in .jsonl has a row {"text": "..."} for each sample; any
 * other is cut at line ends into documents of 1 to 4 KiB, after an empty line where there is one.
 * Both may be compressed with gzip or zstd (.gz, .zst). A document's name is FILE:LINE, with the
 * file's last component.
 *
 * Files go through the environment; listing a folder is the caller's part (cli/walk.h).
 */
#ifndef HTH_DATA_FOLDER_H
#define HTH_DATA_FOLDER_H

#include "data/pack.h"

#define HTH_CAPTIONS_FILE "captions.jsonl"
#define HTH_DROPS_MAX     8

/* Called now and then, with a total of 0 while it is not known. */
typedef void hth_pack_progress_fn(void *arg, uint64_t done, uint64_t total);

struct hth_folder_opts {
    const char *dir;
    const char *const *files; /* below dir, sorted by strcmp */
    size_t count;
    struct {
        const char *field, *value;
    } drop[HTH_DROPS_MAX]; /* rows of captions.jsonl that are left out */
    size_t drop_count;
    hth_pack_progress_fn *progress; /* or NULL */
    void *progress_arg;
};

/* Errors: E_NOT_FOUND (no picture in the folder), those of the pack. */
enum hth_err hth_folder_pack(struct hth_env *env, const struct hth_folder_opts *opts,
                             struct hth_pack *pack, struct hth_why *why) HTH_MUST;

/* Errors: E_NO_FILE and its like, E_TOO_LARGE, E_CORRUPT, those of the pack. */
enum hth_err hth_text_pack(struct hth_env *env, const char *path, struct hth_pack *pack,
                           hth_pack_progress_fn *progress, void *arg, struct hth_why *why) HTH_MUST;

#endif
