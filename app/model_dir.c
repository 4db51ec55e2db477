/* SPDX-License-Identifier: Apache-2.0 */
/* model_dir.c: folders of published models; see model_dir.h. */
#define _GNU_SOURCE /* renameat2 */
#include "app/model_dir.h"

#include "core/bytes.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUMS            "sha256sums"
#define SUMS_BYTES_MAX  4096
#define OTHER_BYTES_MAX (UINT64_C(64) << 20)
#define HEX             (2 * HTH_HASH_LEN)

void hth_model_dir_add_take(struct hth_model_dir *dir, const char *name, struct hth_blob *bytes)
{
    struct hth_model_dir_file *f = &dir->file[dir->count++];

    HTH_ASSERT(dir->count <= HTH_MODEL_DIR_FILES_MAX);
    snprintf(f->name, sizeof(f->name), "%s", name);
    f->bytes = bytes;
}

void hth_model_dir_add_text(struct hth_model_dir *dir, const char *name, const char *text)
{
    struct hth_blob *bytes = hth_blob_try_new(strlen(text));

    HTH_ASSERT(bytes != NULL); /* a few lines */
    memcpy(bytes->data, text, strlen(text));
    hth_model_dir_add_take(dir, name, bytes);
}

const struct hth_blob *hth_model_dir_find(const struct hth_model_dir *dir, const char *name)
{
    for (size_t i = 0; i < dir->count; i++)
        if (strcmp(dir->file[i].name, name) == 0)
            return dir->file[i].bytes;
    return NULL;
}

void hth_model_dir_clear(struct hth_model_dir *dir)
{
    for (size_t i = 0; i < dir->count; i++)
        hth_blob_unref(dir->file[i].bytes);
    *dir = (struct hth_model_dir){0};
}

/* ---- writing ------------------------------------------------------------------------------- */

static enum hth_err put(struct hth_env *env, const char *folder, const char *name,
                        struct hth_blob *bytes, struct hth_why *why)
{
    char *path = hth_asprintf("%s/%s", folder, name);
    enum hth_err err = hth_file_write(env, path, &(struct hth_span){bytes, 0, bytes->size}, 1);

    if (err != HTH_OK)
        err = hth_blame(why, err, "%s: %s", path, hth_err_text(err));
    hth_free(path);
    return err;
}

static enum hth_err put_all(struct hth_env *env, const struct hth_model_dir *dir,
                            const char *folder, struct hth_why *why)
{
    struct hth_model_dir sums = {0};
    char *text = hth_strdup(""), hex[HEX + 1];
    enum hth_err err = HTH_OK;

    for (size_t i = 0; i < dir->count && err == HTH_OK; i++) {
        const struct hth_model_dir_file *f = &dir->file[i];
        struct hth_hash hash;
        char *longer;
        env->crypto->hash(f->bytes->data, f->bytes->size, &hash);
        hth_hex(hash.b, sizeof(hash.b), hex);
        longer = hth_asprintf("%s%s  %s\n", text, hex, f->name);
        hth_free(text);
        text = longer;
        err = put(env, folder, f->name, f->bytes, why);
    }
    hth_model_dir_add_text(&sums, SUMS, text);
    if (err == HTH_OK)
        err = put(env, folder, SUMS, sums.file[0].bytes, why);
    hth_model_dir_clear(&sums);
    hth_free(text);
    return err;
}

/* Removes the files that such a folder has, and the folder if nothing else is in it. */
static void discard(const struct hth_model_dir *dir, const char *folder)
{
    for (size_t i = 0; i <= dir->count; i++) {
        char *path = hth_asprintf("%s/%s", folder, i < dir->count ? dir->file[i].name : SUMS);
        (void)!unlink(path);
        hth_free(path);
    }
    (void)!rmdir(folder);
}

/* Puts the folder that was made in the place of another one, and that one in its. */
static enum hth_err exchange(struct hth_env *env, const struct hth_model_dir *dir, const char *made,
                             const char *path, struct hth_why *why)
{
    struct hth_model_dir old = {0};
    struct hth_why none = {""};
    uint64_t most = OTHER_BYTES_MAX;

    for (size_t i = 0; i < dir->count; i++) /* the weights before may have been twice as wide */
        most = HTH_MAX(most, 2 * (uint64_t)dir->file[i].bytes->size);
    if (hth_model_dir_read(env, path, most, &old, &none) != HTH_OK)
        return hth_blame(why, HTH_E_USAGE,
                         "%s is there already, and it is no whole export: give another name, or "
                         "move it away",
                         path);
    if (renameat2(AT_FDCWD, made, AT_FDCWD, path, RENAME_EXCHANGE) != 0) {
        hth_model_dir_clear(&old);
        return hth_blame(why, HTH_E_IO, "%s can't be replaced at once: %s; move it away first",
                         path, strerror(errno));
    }
    discard(&old, made);
    hth_model_dir_clear(&old);
    return HTH_OK;
}

enum hth_err hth_model_dir_write(struct hth_env *env, const struct hth_model_dir *dir,
                                 const char *path, struct hth_why *why)
{
    size_t len = strlen(path);
    char *name = hth_asprintf("%.*s", (int)(len > 1 && path[len - 1] == '/' ? len - 1 : len), path);
    char *made = hth_asprintf("%s.part-%ld", name, (long)getpid());
    enum hth_err err = put_all(env, dir, made, why);
    struct stat st;

    if (err == HTH_OK && lstat(name, &st) == 0)
        err = exchange(env, dir, made, name, why);
    else if (err == HTH_OK && rename(made, name) != 0)
        err = hth_blame(why, HTH_E_IO, "%s: %s", name, strerror(errno));
    if (err != HTH_OK)
        discard(dir, made);
    hth_free(made);
    hth_free(name);
    return err;
}

/* ---- reading ------------------------------------------------------------------------------- */

static bool is_plain(const char *name, size_t len)
{
    return len > 0 && len <= HTH_MODEL_DIR_NAME_MAX && name[0] != '.' &&
           memchr(name, '/', len) == NULL && memchr(name, '\0', len) == NULL;
}

/* "64 hex digits, two blanks, name" */
static enum hth_err parse_line(const char *line, size_t len, struct hth_model_dir *out)
{
    struct hth_model_dir_file f = {0};
    char hex[HEX + 1];

    if (len < HEX + 3 || line[HEX] != ' ' || (line[HEX + 1] != ' ' && line[HEX + 1] != '*') ||
        !is_plain(line + HEX + 2, len - HEX - 2))
        return HTH_E_MALFORMED;
    memcpy(hex, line, HEX);
    hex[HEX] = '\0';
    memcpy(f.name, line + HEX + 2, len - HEX - 2);
    HTH_TRY(hth_unhex(hex, f.sha256.b, sizeof(f.sha256.b)));
    for (size_t i = 0; i < out->count; i++)
        if (strcmp(out->file[i].name, f.name) == 0)
            return HTH_E_DUPLICATE;
    if (out->count == HTH_MODEL_DIR_FILES_MAX)
        return HTH_E_TOO_LARGE;
    out->file[out->count++] = f;
    return HTH_OK;
}

enum hth_err hth_model_dir_parse(const char *file, const uint8_t *bytes, size_t len,
                                 struct hth_model_dir *out, struct hth_why *why)
{
    size_t line = 1;

    *out = (struct hth_model_dir){0};
    for (size_t at = 0, next; at < len; at = next, line++) {
        const uint8_t *end = memchr(bytes + at, '\n', len - at);
        size_t stop = end != NULL ? (size_t)(end - bytes) : len;
        enum hth_err err = parse_line((const char *)bytes + at, stop - at, out);
        if (err != HTH_OK)
            return hth_blame(why, err, "%s: line %zu: %s", file, line, hth_err_text(err));
        next = stop + 1;
    }
    return HTH_OK;
}

static enum hth_err get(struct hth_env *env, const char *folder, uint64_t most,
                        struct hth_model_dir_file *f, struct hth_why *why)
{
    char *path = hth_asprintf("%s/%s", folder, f->name);
    enum hth_err err = hth_file_read(env, path, most, &f->bytes);
    struct hth_hash hash;

    if (err != HTH_OK) {
        err = hth_blame(why, err, "%s: %s: get it again", path, hth_err_text(err));
    } else {
        env->crypto->hash(f->bytes->data, f->bytes->size, &hash);
        if (memcmp(&hash, &f->sha256, sizeof(hash)) != 0)
            err = hth_blame(why, HTH_E_CORRUPT,
                            "%s is not the file that " SUMS " lists: it was cut short or changed; "
                            "get it again",
                            path);
    }
    hth_free(path);
    return err;
}

enum hth_err hth_model_dir_read(struct hth_env *env, const char *path, uint64_t most,
                                struct hth_model_dir *out, struct hth_why *why)
{
    struct hth_blob *sums = NULL;
    char *file = hth_asprintf("%s/" SUMS, path);
    enum hth_err err = hth_file_read(env, file, SUMS_BYTES_MAX, &sums);

    *out = (struct hth_model_dir){0};
    if (err == HTH_OK)
        err = hth_model_dir_parse(file, sums->data, sums->size, out, why);
    else
        err = hth_blame(why, err, "%s: %s: expected a folder that hearth export wrote", file,
                        hth_err_text(err));
    for (size_t i = 0; i < out->count && err == HTH_OK; i++)
        err = get(env, path, most, &out->file[i], why);
    if (err != HTH_OK)
        hth_model_dir_clear(out);
    hth_blob_unref(sums);
    hth_free(file);
    return err;
}
