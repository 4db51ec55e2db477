/* SPDX-License-Identifier: Apache-2.0 */
/* set.c: one shard at a time, checked, then its samples. */
#include "data/set.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/bytes.h"
#include "core/mem.h"
#include "data/picture.h"
#include "data/shard.h"

struct hth_set {
    struct hth_env *env;
    char *dir;
    struct hth_manifest *manifest;
    struct hth_words *words;
    enum hth_set_part part;
    uint32_t shard; /* that is open, or would be next */
    uint64_t taken; /* samples of it */
    struct hth_blob *packed;
    struct hth_shard_reader *reader; /* NULL: the shard is not open */
    struct hth_picture picture;
    uint16_t *codes;
};

/* ---- life ---------------------------------------------------------------------------------- */

static enum hth_err read_file(struct hth_set *s, const char *file, uint64_t max,
                              struct hth_blob **out, struct hth_why *why)
{
    char *path = hth_asprintf("%s/%s", s->dir, file);
    enum hth_err err = hth_file_read(s->env, path, max, out);

    if (err == HTH_E_NO_FILE)
        err = hth_blame(why, err, "%s: no such file: a data set is a folder that hearth data made",
                        path);
    else if (err == HTH_E_TOO_LARGE)
        err = hth_blame(why, err, "%s: more than %" PRIu64 " bytes", path, max);
    else if (err != HTH_OK)
        err = hth_blame(why, err, "%s: %s", path, hth_err_text(err));
    hth_free(path);
    return err;
}

static enum hth_err check_hash(struct hth_set *s, const char *file, const struct hth_hash *want,
                               const struct hth_blob *blob, struct hth_why *why)
{
    struct hth_hash is;

    s->env->crypto->hash(blob->data, blob->size, &is);
    if (memcmp(&is, want, sizeof(is)) == 0)
        return HTH_OK;
    return hth_blame(why, HTH_E_CORRUPT,
                     "%s/%s: its SHA-256 is not the one in %s: copy the data set again", s->dir,
                     file, HTH_MANIFEST_FILE);
}

enum hth_err hth_set_side_file(struct hth_set *s, const struct hth_side_file *file, uint64_t max,
                               struct hth_blob **out, struct hth_why *why)
{
    enum hth_err err;

    *out = NULL;
    if (file->file[0] == '\0')
        return HTH_E_NOT_FOUND;
    HTH_TRY(read_file(s, file->file, max, out, why));
    err = check_hash(s, file->file, &file->sha256, *out, why);
    if (err == HTH_OK)
        return HTH_OK;
    hth_blob_unref(*out);
    *out = NULL;
    return err;
}

static enum hth_err read_words(struct hth_set *s, struct hth_why *why)
{
    struct hth_blob *blob;
    char *path;
    enum hth_err err = hth_set_side_file(s, &s->manifest->words, HTH_WORDS_BYTES_MAX, &blob, why);

    if (err == HTH_E_NOT_FOUND)
        return HTH_OK;
    if (err != HTH_OK)
        return err;
    path = hth_asprintf("%s/%s", s->dir, s->manifest->words.file);
    err = hth_words_parse(path, blob->data, blob->size, &s->words, why);
    if (err == HTH_OK && hth_words_count(s->words) != s->manifest->words.count)
        err = hth_blame(why, HTH_E_CORRUPT, "%s: %u words, but %s says %u", path,
                        hth_words_count(s->words), HTH_MANIFEST_FILE, s->manifest->words.count);
    hth_free(path);
    hth_blob_unref(blob);
    return err;
}

static enum hth_err open_set(struct hth_set *s, struct hth_why *why)
{
    struct hth_blob *blob;
    char *path;
    enum hth_err err;

    HTH_TRY(read_file(s, HTH_MANIFEST_FILE, HTH_MANIFEST_BYTES_MAX, &blob, why));
    path = hth_asprintf("%s/%s", s->dir, HTH_MANIFEST_FILE);
    err = hth_manifest_parse(path, blob->data, blob->size, &s->manifest, why);
    hth_free(path);
    hth_blob_unref(blob);
    return err == HTH_OK ? read_words(s, why) : err;
}

enum hth_err hth_set_open(struct hth_env *env, const char *dir, struct hth_set **out,
                          struct hth_why *why)
{
    struct hth_set *s = hth_new(struct hth_set);
    enum hth_err err;

    *out = NULL;
    s->env = env;
    s->dir = hth_strdup(dir);
    err = open_set(s, why);
    if (err != HTH_OK) {
        hth_set_free(s);
        return err;
    }
    *out = s;
    return HTH_OK;
}

static void close_shard(struct hth_set *s)
{
    hth_shard_close(s->reader);
    hth_blob_unref(s->packed);
    s->reader = NULL;
    s->packed = NULL;
    s->taken = 0;
}

void hth_set_free(struct hth_set *s)
{
    if (s == NULL)
        return;
    close_shard(s);
    hth_picture_clear(&s->picture);
    hth_words_free(s->words);
    hth_manifest_free(s->manifest);
    hth_free(s->codes);
    hth_free(s->dir);
    hth_free(s);
}

const struct hth_manifest *hth_set_manifest(const struct hth_set *s)
{
    return s->manifest;
}

const struct hth_words *hth_set_words(const struct hth_set *s)
{
    return s->words;
}

/* ---- shards -------------------------------------------------------------------------------- */

static const struct hth_shard_entry *entry_of(const struct hth_set *s)
{
    return &s->manifest->shards[s->shard];
}

static enum hth_err open_shard(struct hth_set *s, struct hth_why *why)
{
    const struct hth_shard_entry *entry = entry_of(s);

    close_shard(s);
    HTH_TRY(read_file(s, entry->file, HTH_SHARD_BYTES_MAX, &s->packed, why));
    if (s->packed->size != entry->bytes)
        return hth_blame(why, HTH_E_CORRUPT,
                         "%s/%s: %zu bytes, but %s says %" PRIu64 ": copy the data set again",
                         s->dir, entry->file, s->packed->size, HTH_MANIFEST_FILE, entry->bytes);
    HTH_TRY(check_hash(s, entry->file, &entry->sha256, s->packed, why));
    return hth_shard_open(entry->file, s->packed->data, s->packed->size, &s->reader);
}

/* The next shard of the part behind the current one, round the list. */
static void next_shard(struct hth_set *s)
{
    do
        s->shard = (s->shard + 1) % s->manifest->shard_count;
    while (entry_of(s)->part != s->part);
    close_shard(s);
}

/* The next sample of the open shard, as files. */
static enum hth_err next_raw(struct hth_set *s, struct hth_shard_sample *raw, struct hth_why *why)
{
    enum hth_err err;

    if (s->reader != NULL && s->taken == entry_of(s)->samples)
        next_shard(s);
    if (s->reader == NULL)
        HTH_TRY(open_shard(s, why));
    err = hth_shard_next(s->reader, raw, why);
    if (err == HTH_E_NOT_FOUND)
        return hth_blame(why, HTH_E_CORRUPT, "%s/%s: %" PRIu64 " samples, but %s says %" PRIu64,
                         s->dir, entry_of(s)->file, s->taken, HTH_MANIFEST_FILE,
                         entry_of(s)->samples);
    s->taken++;
    return err;
}

enum hth_err hth_set_seek(struct hth_set *s, enum hth_set_part part, uint64_t index,
                          struct hth_why *why)
{
    struct hth_shard_sample raw;

    if (index >= s->manifest->samples[part])
        return hth_blame(why, HTH_E_RANGE, "%s: no sample %" PRIu64 ": its part '%s' has %" PRIu64,
                         s->dir, index, hth_set_part_name(part), s->manifest->samples[part]);
    close_shard(s);
    s->part = part;
    s->shard = s->manifest->shard_count - 1;
    next_shard(s);
    while (s->shard < s->manifest->shard_count && index >= entry_of(s)->samples) {
        index -= entry_of(s)->samples;
        next_shard(s);
    }
    for (; index > 0; index--)
        HTH_TRY(next_raw(s, &raw, why));
    return HTH_OK;
}

/* ---- samples ------------------------------------------------------------------------------- */

/* A sample that is being read: its shard's files, and what they become. */
struct taking {
    struct hth_set *set;
    const struct hth_shard_sample *raw;
    struct hth_sample *out;
    struct hth_why *why;
};

static enum hth_err misfit(const struct taking *t, const char *what)
{
    return hth_blame(t->why, HTH_E_BAD_SHAPE, "%s/%s: sample '%s': %s", t->set->dir,
                     entry_of(t->set)->file, t->raw->key, what);
}

static enum hth_err take_text(const struct taking *t)
{
    const struct hth_bytes *text = &t->raw->file[HTH_SHARD_TXT];
    bool is_text = t->set->manifest->kind == HTH_SET_TEXT;

    t->out->text = (const char *)text->data;
    t->out->text_len = text->len;
    if (text->data == NULL)
        return is_text ? misfit(t, "its text is missing") : HTH_OK;
    if (text->len > (is_text ? HTH_DOCUMENT_BYTES_MAX : HTH_CAPTION_BYTES_MAX))
        return misfit(t, "its text is too long");
    return hth_text_ok(t->out->text, text->len) ? HTH_OK : misfit(t, "its text is not UTF-8");
}

static enum hth_err take_label(const struct taking *t)
{
    const struct hth_bytes *digits = &t->raw->file[HTH_SHARD_CLS];
    uint32_t label = 0;

    t->out->label = -1;
    if (digits->data == NULL)
        return t->set->manifest->class_count > 0 ? misfit(t, "its class is missing") : HTH_OK;
    for (size_t i = 0; i < digits->len; i++) {
        uint32_t digit = (uint32_t)digits->data[i] - '0';
        if (digit > 9 || label > HTH_SET_CLASSES_MAX)
            return misfit(t, "its class is no number");
        label = 10 * label + digit;
    }
    if (digits->len == 0 || label >= t->set->manifest->class_count)
        return misfit(t, "its class is not one of data.json");
    t->out->label = (int32_t)label;
    return HTH_OK;
}

static enum hth_err take_picture(const struct taking *t)
{
    const struct hth_bytes *png = &t->raw->file[HTH_SHARD_PNG];
    struct hth_picture *p = &t->set->picture;
    uint32_t side = t->set->manifest->side;

    if (png->data == NULL)
        return misfit(t, "its picture is missing");
    hth_picture_clear(p);
    HTH_TRY(hth_picture_decode(t->raw->key, png->data, png->len, p, t->why));
    if (p->width != side || p->height != side)
        return misfit(t, "its picture has another side than data.json says");
    t->out->pixels = p->rgb;
    return HTH_OK;
}

static enum hth_err take_codes(const struct taking *t)
{
    const struct hth_bytes *codes = &t->raw->file[HTH_SHARD_CODES];
    const struct hth_manifest *m = t->set->manifest;
    size_t count = (size_t)(m->side / m->patch) * (m->side / m->patch);

    if (codes->data == NULL || codes->len != 2 * count)
        return misfit(t, "its codes are missing or not as many as data.json says");
    if (t->set->codes == NULL)
        t->set->codes = hth_new_array(uint16_t, count);
    memcpy(t->set->codes, codes->data, codes->len);
    for (size_t i = 0; i < count; i++)
        if (t->set->codes[i] >= m->book.count)
            return misfit(t, "a code is not in the code book");
    t->out->codes = t->set->codes;
    return HTH_OK;
}

enum hth_err hth_set_next(struct hth_set *s, struct hth_sample *out, struct hth_why *why)
{
    struct hth_shard_sample raw;
    struct taking t = {s, &raw, out, why};

    *out = (struct hth_sample){0};
    HTH_TRY(next_raw(s, &raw, why));
    HTH_TRY(take_text(&t));
    HTH_TRY(take_label(&t));
    if (s->manifest->kind == HTH_SET_PICTURES)
        return take_picture(&t);
    return s->manifest->kind == HTH_SET_CODES ? take_codes(&t) : HTH_OK;
}
