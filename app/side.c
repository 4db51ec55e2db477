/* SPDX-License-Identifier: Apache-2.0 */
/* side.c: see side.h. */
#include "app/side.h"

#include "core/mem.h"
#include "data/set.h"
#include "trainer/book_file.h"
#include "trainer/data.h"

#include <sys/stat.h>

bool hth_side_needed(const struct hth_runfile *run)
{
    return run->model.kind == HTH_RUN_PICTURE ||
           (run->model.kind == HTH_RUN_LM && run->model.vocab != HTH_DATA_BYTES);
}

bool hth_is_set(const char *dir)
{
    char *path = hth_asprintf("%s/" HTH_MANIFEST_FILE, dir);
    struct stat st;
    bool is = stat(path, &st) == 0;

    hth_free(path);
    return is;
}

static enum hth_err of_set(struct hth_set *set, const struct hth_side_file *file, uint64_t max,
                           struct hth_blob **out, struct hth_why *why)
{
    enum hth_err err = hth_set_side_file(set, file, max, out, why);
    return err == HTH_E_NOT_FOUND ? HTH_OK : err;
}

enum hth_err hth_side_of_set(struct hth_set *set, struct hth_side *out, struct hth_why *why)
{
    const struct hth_manifest *m = hth_set_manifest(set);
    enum hth_err err;

    *out = (struct hth_side){0};
    err = of_set(set, &m->words, HTH_WORDS_BYTES_MAX, &out->words, why);
    if (err == HTH_OK)
        err = of_set(set, &m->book, HTH_BOOK_FILE_BYTES_MAX, &out->book, why);
    if (err != HTH_OK)
        hth_side_clear(out);
    return err;
}

static enum hth_err of_folder(struct hth_env *env, const char *dir, const char *name, uint64_t max,
                              struct hth_blob **out, struct hth_why *why)
{
    char *path = hth_asprintf("%s/%s", dir, name);
    enum hth_err err = hth_file_read(env, path, max, out);

    if (err == HTH_E_NO_FILE)
        err = HTH_OK;
    else if (err != HTH_OK)
        err = hth_blame(why, err, "%s: %s", path, hth_err_text(err));
    hth_free(path);
    return err;
}

enum hth_err hth_side_of_folder(struct hth_env *env, const char *dir, struct hth_side *out,
                                struct hth_why *why)
{
    enum hth_err err;

    *out = (struct hth_side){0};
    err = of_folder(env, dir, HTH_WORDS_FILE, HTH_WORDS_BYTES_MAX, &out->words, why);
    if (err == HTH_OK)
        err = of_folder(env, dir, HTH_BOOK_FILE, HTH_BOOK_FILE_BYTES_MAX, &out->book, why);
    if (err != HTH_OK)
        hth_side_clear(out);
    return err;
}

bool hth_side_is_empty(const struct hth_side *side)
{
    return side->words == NULL && side->book == NULL;
}

uint64_t hth_side_hash(struct hth_env *env, const struct hth_side *side)
{
    struct hth_hash words, book;

    if (side->words != NULL)
        env->crypto->hash(side->words->data, side->words->size, &words);
    if (side->book != NULL)
        env->crypto->hash(side->book->data, side->book->size, &book);
    return hth_data_hash(side->words != NULL ? &words : NULL, side->book != NULL ? &book : NULL);
}

void hth_side_clear(struct hth_side *side)
{
    hth_blob_unref(side->words);
    hth_blob_unref(side->book);
    *side = (struct hth_side){0};
}
