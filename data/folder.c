/* SPDX-License-Identifier: Apache-2.0 */
/* folder.c: pictures of a folder, with captions or classes. */
#include "data/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/mem.h"
#include "data/jsonl.h"
#include "data/shard.h"

/* A picture and where its caption is. */
struct item {
    const char *file;    /* of the list */
    const char *caption; /* a file of the list, or NULL */
    char *text;          /* owned: of a row; or NULL */
    int32_t label;
};

struct folder {
    struct hth_env *env;
    const struct hth_folder_opts *opts;
    struct hth_pack *pack;
    struct hth_why *why;
    struct item *items;
    size_t count, room;
    char **classes;
    uint32_t class_count;
};

static void add_item(struct folder *f, struct item item)
{
    if (f->count == f->room) {
        f->room = 2 * f->room + 256;
        f->items = hth_realloc(f->items, f->room, sizeof(*f->items));
    }
    f->items[f->count++] = item;
}

static int by_text(const void *key, const void *entry)
{
    return strcmp(key, *(const char *const *)entry);
}

/* The list's own copy of a path, or NULL. */
static const char *find_file(const struct folder *f, const char *path)
{
    if (f->opts->count == 0)
        return NULL;
    const char *const *found =
        bsearch(path, f->opts->files, f->opts->count, sizeof(*f->opts->files), by_text);

    return found != NULL ? *found : NULL;
}

/* The ending of a picture's name, or NULL if it is none. */
static const char *picture_ending(const char *file)
{
    const char *dot = strrchr(file, '.');
    bool is = dot != NULL && (strcasecmp(dot, ".png") == 0 || strcasecmp(dot, ".jpg") == 0 ||
                              strcasecmp(dot, ".jpeg") == 0);
    return is ? dot : NULL;
}

static enum hth_err read_file(struct folder *f, const char *file, uint64_t max,
                              struct hth_blob **out)
{
    char *path = hth_asprintf("%s/%s", f->opts->dir, file);
    enum hth_err err = hth_file_read(f->env, path, max, out);

    hth_free(path);
    return err;
}

/* ---- captions.jsonl ------------------------------------------------------------------------ */

static bool is_dropped(const struct folder *f, const struct hth_jsonl *rows)
{
    for (size_t i = 0; i < f->opts->drop_count; i++)
        if (hth_jsonl_is(rows, f->opts->drop[i].field, f->opts->drop[i].value))
            return true;
    return false;
}

static void skip_row(struct folder *f, const struct hth_jsonl *rows, enum hth_skip reason,
                     const char *detail)
{
    char *place = hth_asprintf("%s:%llu%s%s", rows->name, (unsigned long long)rows->line,
                               detail[0] != '\0' ? ": " : "", detail);

    hth_pack_skip(f->pack, reason, place);
    hth_free(place);
}

static void take_row(struct folder *f, const struct hth_jsonl *rows)
{
    const char *file = hth_jsonl_text(rows, "file"), *text = hth_jsonl_text(rows, "text");
    const char *known = file != NULL ? find_file(f, file) : NULL;

    if (text == NULL)
        text = hth_jsonl_text(rows, "caption");
    if (is_dropped(f, rows))
        skip_row(f, rows, HTH_SKIP_DROPPED, "");
    else if (known == NULL)
        skip_row(f, rows, HTH_SKIP_NO_FILE, file != NULL ? file : "no text \"file\"");
    else if (text == NULL)
        skip_row(f, rows, HTH_SKIP_NO_CAPTION, "no \"text\" or \"caption\"");
    else
        add_item(f, (struct item){known, NULL, hth_strdup(text), -1});
}

static enum hth_err take_rows(struct folder *f)
{
    struct hth_jsonl rows;
    struct hth_blob *blob;
    enum hth_err err = read_file(f, HTH_CAPTIONS_FILE, HTH_TEXT_FILE_BYTES_MAX, &blob);

    if (err != HTH_OK)
        return hth_blame(f->why, err, "%s/%s: %s", f->opts->dir, HTH_CAPTIONS_FILE,
                         hth_err_text(err));
    hth_jsonl_init(&rows, HTH_CAPTIONS_FILE, blob->data, blob->size);
    for (;;) {
        struct hth_why fault = {""};
        err = hth_jsonl_next(&rows, &fault);
        if (err == HTH_E_NOT_FOUND)
            break;
        if (err == HTH_OK)
            take_row(f, &rows);
        else
            hth_pack_skip(f->pack, HTH_SKIP_BAD_ROW, fault.text);
    }
    hth_jsonl_clear(&rows);
    hth_blob_unref(blob);
    return HTH_OK;
}

/* ---- files beside, and classes ------------------------------------------------------------- */

/* The list is sorted, so a class's files follow each other. */
static int32_t class_of(struct folder *f, const char *file)
{
    size_t len = (size_t)(strchr(file, '/') - file);
    char *last = f->class_count > 0 ? f->classes[f->class_count - 1] : NULL;

    if (last != NULL && strlen(last) == len && memcmp(last, file, len) == 0)
        return (int32_t)f->class_count - 1;
    f->classes = hth_realloc(f->classes, f->class_count + 1, sizeof(*f->classes));
    f->classes[f->class_count] = hth_calloc(len + 1, 1);
    memcpy(f->classes[f->class_count], file, len);
    return (int32_t)f->class_count++;
}

static void take_files(struct folder *f)
{
    bool any_caption = false, all_in_folders = true;

    for (size_t i = 0; i < f->opts->count; i++) {
        const char *file = f->opts->files[i], *ending = picture_ending(file);
        char *beside;
        if (ending == NULL)
            continue;
        beside = hth_asprintf("%.*s.txt", (int)(ending - file), file);
        add_item(f, (struct item){file, find_file(f, beside), NULL, -1});
        any_caption = any_caption || f->items[f->count - 1].caption != NULL;
        all_in_folders = all_in_folders && strchr(file, '/') != NULL;
        hth_free(beside);
    }
    if (any_caption || !all_in_folders)
        return;
    for (size_t i = 0; i < f->count; i++) {
        f->items[i].label = class_of(f, f->items[i].file);
        f->items[i].text = hth_strdup(f->classes[f->items[i].label]);
    }
}

/* ---- packing ------------------------------------------------------------------------------- */

static enum hth_err caption_of(struct folder *f, const struct item *item, struct hth_blob **out)
{
    if (item->text != NULL) {
        *out = hth_blob_copy(item->text, strlen(item->text));
        return HTH_OK;
    }
    /* The pack counts a caption that is too long; of a huge file it needs no more than that. */
    return read_file(f, item->caption, HTH_PICTURE_BYTES_MAX, out);
}

static enum hth_err pack_item(struct folder *f, const struct item *item)
{
    struct hth_blob *picture = NULL, *text = NULL;
    char *name;
    enum hth_err err;

    if (item->text == NULL && item->caption == NULL) {
        hth_pack_skip(f->pack, HTH_SKIP_NO_CAPTION, item->file);
        return HTH_OK;
    }
    err = read_file(f, item->file, HTH_PICTURE_BYTES_MAX, &picture);
    if (err == HTH_OK)
        err = caption_of(f, item, &text);
    if (err == HTH_E_TOO_LARGE) {
        hth_pack_skip(f->pack, picture == NULL ? HTH_SKIP_PIXELS : HTH_SKIP_LONG, item->file);
        err = HTH_OK;
    } else if (err != HTH_OK) {
        err = hth_blame(f->why, err, "%s/%s: %s", f->opts->dir, item->file, hth_err_text(err));
    } else {
        name = hth_asprintf("%.*s",
                            (int)(picture_ending(item->file) != NULL
                                      ? picture_ending(item->file) - item->file
                                      : (long)strlen(item->file)),
                            item->file);
        err = hth_pack_file(f->pack, name, picture->data, picture->size,
                            text->size > 0 ? (const char *)text->data : "", text->size, item->label,
                            f->why);
        hth_free(name);
    }
    hth_blob_unref(picture);
    hth_blob_unref(text);
    return err;
}

static enum hth_err pack_all(struct folder *f)
{
    struct hth_rng rng;

    if (f->count == 0)
        return hth_blame(
            f->why, HTH_E_NOT_FOUND,
            "%s: no picture with a caption: expected NAME.png or .jpg beside NAME.txt, "
            "%s, or CLASS/NAME.png",
            f->opts->dir, HTH_CAPTIONS_FILE);
    if (f->class_count > HTH_SET_CLASSES_MAX)
        return hth_blame(f->why, HTH_E_TOO_LARGE, "%s: %u classes; at most %d", f->opts->dir,
                         f->class_count, HTH_SET_CLASSES_MAX);
    for (uint32_t i = 0; i < f->class_count; i++)
        if (!hth_manifest_text_ok(f->classes[i]))
            return hth_blame(f->why, HTH_E_MALFORMED,
                             "%s: the name of class folder %u is not UTF-8 of one line: rename it",
                             f->opts->dir, i + 1);
    hth_pack_classes(f->pack, (const char *const *)f->classes, f->class_count);
    hth_rng_init(&rng, 1);
    hth_rng_shuffle(&rng, f->items, f->count, sizeof(*f->items));
    for (size_t i = 0; i < f->count; i++) {
        HTH_TRY(pack_item(f, &f->items[i]));
        if (f->opts->progress != NULL)
            f->opts->progress(f->opts->progress_arg, i + 1, f->count);
    }
    return HTH_OK;
}

enum hth_err hth_folder_pack(struct hth_env *env, const struct hth_folder_opts *opts,
                             struct hth_pack *pack, struct hth_why *why)
{
    struct folder f = {.env = env, .opts = opts, .pack = pack, .why = why};
    enum hth_err err = HTH_OK;

    if (find_file(&f, HTH_CAPTIONS_FILE) != NULL)
        err = take_rows(&f);
    else
        take_files(&f);
    if (err == HTH_OK)
        err = pack_all(&f);
    for (size_t i = 0; i < f.count; i++)
        hth_free(f.items[i].text);
    hth_free(f.items);
    for (uint32_t i = 0; i < f.class_count; i++)
        hth_free(f.classes[i]);
    hth_free(f.classes);
    return err;
}
