/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c: filters, parts, shards and the files beside them. */
#include "data/pack.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "data/picture.h"
#include "data/shard.h"

#define SHARD_BYTES (4u << 20) /* of content, after which the next shard begins */
#define DIGITS      6          /* of the hash, that decide the part */

static const char *const skip_texts[] = {
#define SKIP_TEXT(name, text) text,
    HTH_SKIP_MAP(SKIP_TEXT)};

_Static_assert(HTH_SKIP_COUNT <= HTH_ARRAY_LEN(((struct hth_manifest *)0)->skipped), "room");

const char *hth_skip_text(enum hth_skip reason)
{
    return skip_texts[reason];
}

struct hth_pack {
    struct hth_env *env;
    struct hth_pack_opts opts;
    struct hth_manifest manifest;
    uint32_t shard_room;
    struct {
        struct hth_shard_writer *writer; /* NULL: none begun */
        uint64_t samples;                /* in it */
        uint32_t shards;                 /* written */
    } part[HTH_SET_PARTS];
    struct hth_word_counter *counter;
    const struct hth_words *words;
    struct {
        uint64_t count;
        char *first;
    } skipped[HTH_SKIP_COUNT];
    uint8_t *square; /* a fitted picture */
};

/* ---- life ---------------------------------------------------------------------------------- */

static enum hth_err check(const struct hth_pack_opts *o, struct hth_why *why)
{
    if (!(o->test >= 0 && o->test <= 0.5))
        return hth_blame(why, HTH_E_CONFIG, "the held-out fraction is %g; expected 0 to 0.5",
                         o->test);
    if (o->kind != HTH_SET_TEXT && (o->side < 1 || o->side > HTH_SET_SIDE_MAX))
        return hth_blame(why, HTH_E_CONFIG, "a side of %u pixels; expected 1 to %d", o->side,
                         HTH_SET_SIDE_MAX);
    if (strlen(o->name) > HTH_MANIFEST_NAME_MAX || strlen(o->licence) > HTH_MANIFEST_TEXT_MAX)
        return hth_blame(why, HTH_E_CONFIG, "the name has at most %d bytes, the licence %d",
                         HTH_MANIFEST_NAME_MAX, HTH_MANIFEST_TEXT_MAX);
    if (!hth_manifest_text_ok(o->name) || !hth_manifest_text_ok(o->licence))
        return hth_blame(why, HTH_E_CONFIG,
                         "name and licence are one line of UTF-8 without control characters");
    return HTH_OK;
}

static enum hth_err refuse_old(struct hth_env *env, const char *dir, struct hth_why *why)
{
    char *path = hth_asprintf("%s/%s", dir, HTH_MANIFEST_FILE);
    uint64_t size;
    enum hth_err err = hth_file_size(env, path, &size);

    hth_free(path);
    if (err == HTH_E_NO_FILE)
        return HTH_OK;
    if (err != HTH_OK)
        return hth_blame(why, err, "%s: %s", dir, hth_err_text(err));
    return hth_blame(why, HTH_E_DUPLICATE,
                     "%s has a data set already: name another folder, or remove it", dir);
}

enum hth_err hth_pack_new(struct hth_env *env, const struct hth_pack_opts *opts,
                          struct hth_pack **out, struct hth_why *why)
{
    struct hth_pack *p;

    *out = NULL;
    HTH_TRY(check(opts, why));
    HTH_TRY(refuse_old(env, opts->dir, why));
    p = hth_new(struct hth_pack);
    p->env = env;
    p->opts = *opts;
    snprintf(p->manifest.name, sizeof(p->manifest.name), "%s", opts->name);
    snprintf(p->manifest.licence, sizeof(p->manifest.licence), "%s", opts->licence);
    p->manifest.kind = opts->kind;
    p->manifest.side = opts->kind == HTH_SET_TEXT ? 0 : opts->side;
    p->counter = hth_word_counter_new();
    p->square = hth_calloc((size_t)opts->side * opts->side + 1, 3);
    *out = p;
    return HTH_OK;
}

void hth_pack_free(struct hth_pack *p)
{
    if (p == NULL)
        return;
    for (int i = 0; i < HTH_SET_PARTS; i++)
        hth_shard_writer_free(p->part[i].writer);
    for (int i = 0; i < HTH_SKIP_COUNT; i++)
        hth_free(p->skipped[i].first);
    hth_word_counter_free(p->counter);
    for (uint32_t i = 0; i < p->manifest.class_count; i++)
        hth_free(p->manifest.classes[i]);
    hth_free(p->manifest.classes);
    hth_free(p->manifest.shards);
    hth_free(p->square);
    hth_free(p);
}

/* The last decimal digit of a big-endian integer; the integer becomes a tenth of it. */
static uint32_t take_digit(uint8_t *number, size_t len)
{
    uint32_t rest = 0;

    for (size_t i = 0; i < len; i++) {
        rest = rest << 8 | number[i];
        number[i] = (uint8_t)(rest / 10);
        rest %= 10;
    }
    return rest;
}

enum hth_set_part hth_pack_part_of(const struct hth_pack *p, const char *name)
{
    struct hth_hash hash;
    uint32_t digits = 0, all = 1;

    if (p->opts.test_of != NULL && strstr(name, p->opts.test_of) == NULL)
        return HTH_SET_TRAIN;
    p->env->crypto->hash(name, strlen(name), &hash);
    for (int i = 0; i < DIGITS; i++, all *= 10)
        digits = 10 * digits + take_digit(hash.b, sizeof(hash.b));
    return (double)digits < p->opts.test * all ? HTH_SET_TEST : HTH_SET_TRAIN;
}

/* ---- shards -------------------------------------------------------------------------------- */

static enum hth_err write_file(struct hth_pack *p, const char *file, struct hth_blob *blob,
                               struct hth_why *why)
{
    char *path = hth_asprintf("%s/%s", p->opts.dir, file);
    enum hth_err err = hth_file_write(p->env, path, &(struct hth_span){blob, 0, blob->size}, 1);

    if (err != HTH_OK)
        err = hth_blame(why, err, "%s: %s", path, hth_err_text(err));
    hth_free(path);
    return err;
}

static struct hth_shard_entry *add_entry(struct hth_pack *p)
{
    struct hth_manifest *m = &p->manifest;

    if (m->shard_count == p->shard_room) {
        p->shard_room = 2 * p->shard_room + 16;
        m->shards = hth_realloc(m->shards, p->shard_room, sizeof(*m->shards));
    }
    m->shards[m->shard_count] = (struct hth_shard_entry){0};
    return &m->shards[m->shard_count++];
}

static enum hth_err end_shard(struct hth_pack *p, enum hth_set_part part, struct hth_why *why)
{
    struct hth_shard_writer *writer = p->part[part].writer;
    struct hth_shard_entry *entry;
    struct hth_blob *blob;
    enum hth_err err;

    if (writer == NULL)
        return HTH_OK;
    if (p->manifest.shard_count == HTH_SHARDS_MAX)
        return hth_blame(why, HTH_E_TOO_LARGE, "more than %d shards: make several data sets",
                         HTH_SHARDS_MAX);
    HTH_TRY(hth_shard_finish(writer, &blob));
    entry = add_entry(p);
    snprintf(entry->file, sizeof(entry->file), "%s-%05u.tar.zst", hth_set_part_name(part),
             p->part[part].shards++);
    entry->part = part;
    entry->bytes = blob->size;
    entry->samples = p->part[part].samples;
    p->env->crypto->hash(blob->data, blob->size, &entry->sha256);
    err = write_file(p, entry->file, blob, why);
    hth_blob_unref(blob);
    hth_shard_writer_free(writer);
    p->part[part].writer = NULL;
    p->part[part].samples = 0;
    return err;
}

static enum hth_err add_sample(struct hth_pack *p, enum hth_set_part part,
                               struct hth_shard_sample *sample, int32_t label, struct hth_why *why)
{
    struct hth_shard_writer **writer = &p->part[part].writer;
    const struct hth_bytes *text = &sample->file[HTH_SHARD_TXT];
    char digits[16];

    if (label >= 0) {
        snprintf(digits, sizeof(digits), "%d", label);
        sample->file[HTH_SHARD_CLS] = (struct hth_bytes){(const uint8_t *)digits, strlen(digits)};
    }
    snprintf(sample->key, sizeof(sample->key), "%08" PRIu64, p->manifest.samples[part]);
    if (*writer == NULL)
        HTH_TRY(hth_shard_writer_new(writer));
    HTH_TRY(hth_shard_add(*writer, sample));
    if (text->data != NULL && part == HTH_SET_TRAIN)
        hth_word_counter_add(p->counter, (const char *)text->data, text->len);
    p->manifest.samples[part]++;
    p->part[part].samples++;
    if (hth_shard_writer_bytes(*writer) >= SHARD_BYTES ||
        p->part[part].samples == HTH_SHARD_SAMPLES_MAX)
        return end_shard(p, part, why);
    return HTH_OK;
}

/* ---- samples ------------------------------------------------------------------------------- */

void hth_pack_skip(struct hth_pack *p, enum hth_skip reason, const char *first)
{
    if (p->skipped[reason].count++ == 0)
        p->skipped[reason].first = hth_strdup(first);
}

uint64_t hth_pack_skipped(const struct hth_pack *p, enum hth_skip reason, const char **first)
{
    *first = p->skipped[reason].first != NULL ? p->skipped[reason].first : "";
    return p->skipped[reason].count;
}

/* Without blanks at both ends. */
static void trim(const char **text, size_t *len)
{
    static const char blanks[] = " \t\r\n\f";

    while (*len > 0 && memchr(blanks, **text, sizeof(blanks) - 1) != NULL) {
        ++*text;
        --*len;
    }
    while (*len > 0 && memchr(blanks, (*text)[*len - 1], sizeof(blanks) - 1) != NULL)
        --*len;
}

/* Whether the caption may be used; else it counts why not. */
static bool caption_fits(struct hth_pack *p, const char *name, const char *text, size_t len,
                         int32_t label)
{
    uint32_t min = label < 0 ? p->opts.caption_min : 1; /* a class's name may be short */
    enum hth_skip reason;

    if (!hth_text_ok(text, HTH_MIN(len, (size_t)HTH_CAPTION_BYTES_MAX)) &&
        len <= HTH_CAPTION_BYTES_MAX)
        reason = HTH_SKIP_NOT_UTF8;
    else if (len > HTH_CAPTION_BYTES_MAX)
        reason = HTH_SKIP_LONG;
    else if (len == 0 || hth_text_chars(text, len) < min)
        reason = HTH_SKIP_SHORT;
    else
        return true;
    hth_pack_skip(p, reason, name);
    return false;
}

static bool shape_fits(struct hth_pack *p, const char *name, const struct hth_picture *picture)
{
    double longest = HTH_MAX(picture->width, picture->height);

    if (longest <= p->opts.aspect_max * HTH_MIN(picture->width, picture->height))
        return true;
    hth_pack_skip(p, HTH_SKIP_ASPECT, name);
    return false;
}

static void skip_picture(struct hth_pack *p, enum hth_err err, const struct hth_why *fault)
{
    hth_pack_skip(p, err == HTH_E_TOO_LARGE ? HTH_SKIP_PIXELS : HTH_SKIP_BROKEN, fault->text);
}

static struct hth_bytes bytes_of(const char *text, size_t len)
{
    return (struct hth_bytes){(const uint8_t *)text, len};
}

enum hth_err hth_pack_pixels(struct hth_pack *p, enum hth_set_part part, const char *name,
                             const uint8_t *rgb, const char *text, size_t text_len, int32_t label,
                             struct hth_why *why)
{
    struct hth_shard_sample sample = {0};
    struct hth_blob *png;
    enum hth_err err;

    if (text != NULL) {
        trim(&text, &text_len);
        if (!caption_fits(p, name, text, text_len, label))
            return HTH_OK;
        sample.file[HTH_SHARD_TXT] = bytes_of(text, text_len);
    }
    HTH_TRY(hth_picture_png(rgb, p->opts.side, p->opts.side, &png));
    sample.file[HTH_SHARD_PNG] = (struct hth_bytes){png->data, png->size};
    err = add_sample(p, part, &sample, label, why);
    hth_blob_unref(png);
    return err;
}

enum hth_err hth_pack_file(struct hth_pack *p, const char *name, const uint8_t *bytes, size_t len,
                           const char *text, size_t text_len, int32_t label, struct hth_why *why)
{
    struct hth_picture picture;
    struct hth_why fault = {""};
    enum hth_err err = hth_picture_decode(name, bytes, len, &picture, &fault);

    if (err == HTH_E_NO_MEMORY)
        return err;
    if (err != HTH_OK) {
        skip_picture(p, err, &fault);
        return HTH_OK;
    }
    if (shape_fits(p, name, &picture)) {
        hth_picture_fit(&picture, p->opts.side, p->square);
        err = hth_pack_pixels(p, hth_pack_part_of(p, name), name, p->square, text, text_len, label,
                              why);
    }
    hth_picture_clear(&picture);
    return err;
}

enum hth_err hth_pack_codes(struct hth_pack *p, enum hth_set_part part, const uint16_t *codes,
                            size_t count, const char *text, size_t text_len, int32_t label,
                            struct hth_why *why)
{
    struct hth_shard_sample sample = {0};

    if (text != NULL)
        sample.file[HTH_SHARD_TXT] = bytes_of(text, text_len);
    sample.file[HTH_SHARD_CODES] = (struct hth_bytes){(const uint8_t *)codes, 2 * count};
    return add_sample(p, part, &sample, label, why);
}

enum hth_err hth_pack_text(struct hth_pack *p, const char *name, const char *text, size_t len,
                           struct hth_why *why)
{
    struct hth_shard_sample sample = {0};

    trim(&text, &len);
    if (len == 0)
        return HTH_OK;
    if (len > HTH_DOCUMENT_BYTES_MAX || !hth_text_ok(text, len)) {
        hth_pack_skip(p, len > HTH_DOCUMENT_BYTES_MAX ? HTH_SKIP_LONG : HTH_SKIP_NOT_UTF8, name);
        return HTH_OK;
    }
    sample.file[HTH_SHARD_TXT] = bytes_of(text, len);
    return add_sample(p, hth_pack_part_of(p, name), &sample, -1, why);
}

/* ---- the end ------------------------------------------------------------------------------- */

void hth_pack_classes(struct hth_pack *p, const char *const *classes, uint32_t count)
{
    p->manifest.classes = hth_new_array(char *, count + 1);
    p->manifest.class_count = count;
    for (uint32_t i = 0; i < count; i++)
        p->manifest.classes[i] = hth_strdup(classes[i]);
}

void hth_pack_book(struct hth_pack *p, const struct hth_side_file *book, uint32_t patch)
{
    p->manifest.book = *book;
    p->manifest.patch = patch;
}

void hth_pack_words(struct hth_pack *p, const struct hth_words *words)
{
    p->words = words;
}

static enum hth_err write_words(struct hth_pack *p, const struct hth_words *words,
                                struct hth_why *why)
{
    struct hth_side_file *side = &p->manifest.words;
    struct hth_blob *blob;
    enum hth_err err;

    if (hth_words_count(words) == 0)
        return HTH_OK;
    HTH_TRY(hth_words_write(words, &blob));
    snprintf(side->file, sizeof(side->file), "%s", HTH_WORDS_FILE);
    side->count = hth_words_count(words);
    p->env->crypto->hash(blob->data, blob->size, &side->sha256);
    err = write_file(p, side->file, blob, why);
    hth_blob_unref(blob);
    return err;
}

static enum hth_err finish_words(struct hth_pack *p, struct hth_why *why)
{
    struct hth_words *own;
    enum hth_err err;

    if (p->words != NULL)
        return write_words(p, p->words, why);
    if (p->opts.words_min == 0)
        return HTH_OK;
    own = hth_word_counter_list(p->counter, p->opts.words_min);
    err = write_words(p, own, why);
    hth_words_free(own);
    return err;
}

static void list_skipped(struct hth_pack *p)
{
    struct hth_manifest *m = &p->manifest;

    for (int i = 0; i < HTH_SKIP_COUNT; i++) {
        if (p->skipped[i].count == 0)
            continue;
        snprintf(m->skipped[m->skip_count].reason, sizeof(m->skipped[0].reason), "%s",
                 skip_texts[i]);
        m->skipped[m->skip_count++].count = p->skipped[i].count;
    }
}

enum hth_err hth_pack_finish(struct hth_pack *p, const struct hth_manifest **out,
                             struct hth_why *why)
{
    struct hth_blob *blob;
    enum hth_err err;

    for (int part = 0; part < HTH_SET_PARTS; part++)
        HTH_TRY(end_shard(p, (enum hth_set_part)part, why));
    list_skipped(p);
    if (p->manifest.shard_count == 0)
        return hth_blame(why, HTH_E_BAD_SHAPE, "no sample is left, so no data set was made");
    HTH_TRY(finish_words(p, why));
    HTH_TRY(hth_manifest_write(&p->manifest, &blob));
    err = write_file(p, HTH_MANIFEST_FILE, blob, why);
    hth_blob_unref(blob);
    *out = &p->manifest;
    return err;
}
