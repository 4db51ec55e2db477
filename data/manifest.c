/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.c: reads and writes data.json. */
#include "data/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "core/map.h"
#include "core/mem.h"
#include "data/words.h"

#define VERSION 1

static const char *const kind_names[] = {"pictures", "codes", "text"};
static const char *const part_names[] = {"train", "test"};

bool hth_manifest_text_ok(const char *text)
{
    return hth_text_ok(text, strlen(text)) && strpbrk(text, "\t\r\n") == NULL;
}

const char *hth_set_kind_name(enum hth_set_kind kind)
{
    return kind_names[kind];
}

const char *hth_set_part_name(enum hth_set_part part)
{
    return part_names[part];
}

/* ---- reading ------------------------------------------------------------------------------- */

/* An object of the file, and where it stands in it: "shards[3]". */
struct place {
    const char *file;
    const char *where; /* "" or "words." */
    const json_t *object;
    struct hth_why *why;
};

static enum hth_err get_text(const struct place *at, const char *key, char *out, size_t max)
{
    const json_t *value = json_object_get(at->object, key);

    if (!json_is_string(value))
        return hth_blame(at->why, HTH_E_MALFORMED, "%s: '%s%s' is missing or no text", at->file,
                         at->where, key);
    if (json_string_length(value) > max ||
        strlen(json_string_value(value)) != json_string_length(value))
        return hth_blame(at->why, HTH_E_RANGE,
                         "%s: '%s%s' has %zu bytes; at most %zu, none of them 0", at->file,
                         at->where, key, json_string_length(value), max);
    if (!hth_manifest_text_ok(json_string_value(value)))
        return hth_blame(at->why, HTH_E_MALFORMED, "%s: '%s%s' has control characters", at->file,
                         at->where, key);
    memcpy(out, json_string_value(value), json_string_length(value) + 1);
    return HTH_OK;
}

static enum hth_err get_number(const struct place *at, const char *key, uint64_t min, uint64_t max,
                               uint64_t *out)
{
    const json_t *value = json_object_get(at->object, key);
    json_int_t n = json_integer_value(value);

    if (!json_is_integer(value))
        return hth_blame(at->why, HTH_E_MALFORMED, "%s: '%s%s' is missing or no whole number",
                         at->file, at->where, key);
    if (n < 0 || (uint64_t)n < min || (uint64_t)n > max)
        return hth_blame(at->why, HTH_E_RANGE,
                         "%s: '%s%s' is %" JSON_INTEGER_FORMAT "; expected %" PRIu64 " to %" PRIu64,
                         at->file, at->where, key, n, min, max);
    *out = (uint64_t)n;
    return HTH_OK;
}

/* One of `count` words. */
static enum hth_err get_word(const struct place *at, const char *key, const char *const *words,
                             uint32_t count, uint32_t *out)
{
    char text[HTH_MANIFEST_NAME_MAX + 1];

    HTH_TRY(get_text(at, key, text, HTH_MANIFEST_NAME_MAX));
    for (*out = 0; *out < count; ++*out)
        if (strcmp(words[*out], text) == 0)
            return HTH_OK;
    return hth_blame(at->why, HTH_E_RANGE, "%s: '%s%s' is '%s', which this version does not know",
                     at->file, at->where, key, text);
}

/* A file's name leads nowhere but into the data set's folder. */
static bool name_is_plain(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    return name[0] != '\0' && name[0] != '.' && strspn(name, allowed) == strlen(name);
}

static enum hth_err get_file(const struct place *at, char *file, struct hth_hash *sha256)
{
    char hex[2 * HTH_HASH_LEN + 1];

    HTH_TRY(get_text(at, "file", file, HTH_MANIFEST_NAME_MAX));
    if (!name_is_plain(file))
        return hth_blame(at->why, HTH_E_MALFORMED,
                         "%s: '%sfile' is '%s'; expected a name of letters, digits, '.', '_', '-'",
                         at->file, at->where, file);
    HTH_TRY(get_text(at, "sha256", hex, 2 * HTH_HASH_LEN));
    if (hth_unhex(hex, sha256->b, HTH_HASH_LEN) != HTH_OK)
        return hth_blame(at->why, HTH_E_MALFORMED, "%s: '%ssha256' is not 64 hex digits", at->file,
                         at->where);
    return HTH_OK;
}

static enum hth_err get_side_file(const struct place *top, const char *key, const char *count_key,
                                  uint64_t count_max, struct hth_side_file *out, uint32_t *patch)
{
    char where[HTH_MANIFEST_NAME_MAX + 2];
    struct place at = *top;
    uint64_t n;

    at.object = json_object_get(top->object, key);
    if (at.object == NULL)
        return HTH_OK;
    snprintf(where, sizeof(where), "%s.", key);
    at.where = where;
    HTH_TRY(get_file(&at, out->file, &out->sha256));
    HTH_TRY(get_number(&at, count_key, 1, count_max, &n));
    out->count = (uint32_t)n;
    if (patch == NULL)
        return HTH_OK;
    HTH_TRY(get_number(&at, "patch", 1, HTH_SET_SIDE_MAX, &n));
    *patch = (uint32_t)n;
    return HTH_OK;
}

static enum hth_err get_shard(const struct place *at, struct hth_map *seen,
                              struct hth_shard_entry *out)
{
    uint32_t part;

    HTH_TRY(get_file(at, out->file, &out->sha256));
    HTH_TRY(get_word(at, "part", part_names, HTH_ARRAY_LEN(part_names), &part));
    HTH_TRY(get_number(at, "bytes", 1, HTH_SHARD_BYTES_MAX, &out->bytes));
    HTH_TRY(get_number(at, "samples", 1, HTH_SHARD_SAMPLES_MAX, &out->samples));
    out->part = (enum hth_set_part)part;
    if (hth_map_put(seen, out->file, strlen(out->file), out) != NULL)
        return hth_blame(at->why, HTH_E_DUPLICATE, "%s: '%sfile' is '%s', like an earlier one",
                         at->file, at->where, out->file);
    return HTH_OK;
}

static enum hth_err get_shards(const struct place *top, struct hth_map *seen,
                               struct hth_manifest *m)
{
    const json_t *list = json_object_get(top->object, "shards");
    struct place at = *top;
    char where[32];
    uint64_t all;

    if (!json_is_array(list))
        return hth_blame(top->why, HTH_E_MALFORMED, "%s: 'shards' is missing or no list",
                         top->file);
    if (json_array_size(list) < 1 || json_array_size(list) > HTH_SHARDS_MAX)
        return hth_blame(top->why, HTH_E_RANGE, "%s: 'shards' has %zu entries; expected 1 to %d",
                         top->file, json_array_size(list), HTH_SHARDS_MAX);
    m->shards = hth_try_calloc(json_array_size(list), sizeof(*m->shards));
    if (m->shards == NULL)
        return HTH_E_NO_MEMORY;
    for (size_t i = 0; i < json_array_size(list); i++) {
        at.object = json_array_get(list, i);
        snprintf(where, sizeof(where), "shards[%zu].", i);
        at.where = where;
        HTH_TRY(get_shard(&at, seen, &m->shards[i]));
        m->samples[m->shards[i].part] += m->shards[i].samples;
        m->shard_count++;
    }
    HTH_TRY(get_number(top, "samples", 1, HTH_SET_SAMPLES_MAX, &all));
    if (all != m->samples[HTH_SET_TRAIN] + m->samples[HTH_SET_TEST])
        return hth_blame(top->why, HTH_E_RANGE,
                         "%s: 'samples' is %" PRIu64 ", but the shards have %" PRIu64, top->file,
                         all, m->samples[HTH_SET_TRAIN] + m->samples[HTH_SET_TEST]);
    return HTH_OK;
}

static enum hth_err get_classes(const struct place *top, struct hth_manifest *m)
{
    const json_t *list = json_object_get(top->object, "classes");
    size_t count = json_array_size(list); /* 0 where there is none */
    struct hth_map *seen;
    enum hth_err err = HTH_OK;

    if (count > HTH_SET_CLASSES_MAX)
        return hth_blame(top->why, HTH_E_RANGE, "%s: 'classes' has %zu entries; at most %d",
                         top->file, count, HTH_SET_CLASSES_MAX);
    m->classes = hth_try_calloc(count > 0 ? count : 1, sizeof(*m->classes));
    if (m->classes == NULL)
        return HTH_E_NO_MEMORY;
    seen = hth_map_new();
    for (size_t i = 0; i < count && err == HTH_OK; i++) {
        const json_t *value = json_array_get(list, i);
        const char *text = json_string_value(value);
        if (text == NULL || text[0] == '\0' || json_string_length(value) > HTH_CAPTION_BYTES_MAX ||
            strlen(text) != json_string_length(value) || !hth_manifest_text_ok(text)) {
            err = hth_blame(top->why, HTH_E_MALFORMED, "%s: 'classes[%zu]' is no name of a class",
                            top->file, i);
            continue;
        }
        m->classes[m->class_count++] = hth_strdup(text);
        if (hth_map_put(seen, text, strlen(text), m) != NULL)
            err = hth_blame(top->why, HTH_E_DUPLICATE,
                            "%s: 'classes[%zu]' is '%s', like an earlier one", top->file, i, text);
    }
    hth_map_free(seen);
    return err;
}

static enum hth_err get_skipped(const struct place *top, struct hth_manifest *m)
{
    json_t *all = json_object_get(top->object, "skipped");
    const char *reason;
    json_t *value;

    json_object_foreach(all, reason, value)
    {
        struct place at = {top->file, "skipped.", all, top->why};
        struct hth_skip_count *row = &m->skipped[m->skip_count];
        if (m->skip_count == HTH_ARRAY_LEN(m->skipped) || strlen(reason) > HTH_MANIFEST_NAME_MAX ||
            !hth_manifest_text_ok(reason))
            return hth_blame(top->why, HTH_E_RANGE,
                             "%s: 'skipped' has too many or too long reasons, or control "
                             "characters",
                             top->file);
        HTH_TRY(get_number(&at, reason, 0, HTH_SET_SAMPLES_MAX, &row->count));
        snprintf(row->reason, sizeof(row->reason), "%s", reason);
        m->skip_count++;
    }
    return HTH_OK;
}

static enum hth_err check_sizes(const struct place *top, const struct hth_manifest *m)
{
    if (m->kind == HTH_SET_CODES &&
        (m->book.file[0] == '\0' || m->patch > m->side || m->side % m->patch != 0))
        return hth_blame(top->why, HTH_E_RANGE,
                         "%s: codes need a 'codebook' whose patch divides the side %u", top->file,
                         m->side);
    return HTH_OK;
}

static enum hth_err read_all(const struct place *top, struct hth_map *seen, struct hth_manifest *m)
{
    uint64_t n;
    uint32_t kind;

    if (!json_is_object(top->object))
        return hth_blame(top->why, HTH_E_MALFORMED, "%s: not a data set's manifest", top->file);
    HTH_TRY(get_number(top, "version", 0, INT64_MAX, &n));
    if (n != VERSION)
        return hth_blame(top->why, HTH_E_VERSION,
                         "%s: it has version %" PRIu64
                         ", and this program reads version %d: make it "
                         "anew with hearth data",
                         top->file, n, VERSION);
    HTH_TRY(get_text(top, "name", m->name, HTH_MANIFEST_NAME_MAX));
    HTH_TRY(get_text(top, "licence", m->licence, HTH_MANIFEST_TEXT_MAX));
    HTH_TRY(get_word(top, "kind", kind_names, HTH_ARRAY_LEN(kind_names), &kind));
    m->kind = (enum hth_set_kind)kind;
    if (m->kind != HTH_SET_TEXT) {
        HTH_TRY(get_number(top, "side", 1, HTH_SET_SIDE_MAX, &n));
        m->side = (uint32_t)n;
    }
    HTH_TRY(get_classes(top, m));
    HTH_TRY(get_shards(top, seen, m));
    HTH_TRY(get_side_file(top, "words", "count", HTH_WORDS_MAX, &m->words, NULL));
    HTH_TRY(get_side_file(top, "codebook", "codes", 65536, &m->book, &m->patch));
    HTH_TRY(get_skipped(top, m));
    return check_sizes(top, m);
}

enum hth_err hth_manifest_parse(const char *file, const uint8_t *bytes, size_t len,
                                struct hth_manifest **out, struct hth_why *why)
{
    json_error_t error;
    struct hth_manifest *m;
    struct hth_map *seen;
    json_t *json;
    enum hth_err err;

    *out = NULL;
    if (len > HTH_MANIFEST_BYTES_MAX)
        return hth_blame(why, HTH_E_TOO_LARGE, "%s: %zu bytes; a manifest has at most %u", file,
                         len, HTH_MANIFEST_BYTES_MAX);
    json = json_loadb((const char *)bytes, len, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL)
        return hth_blame(why, HTH_E_MALFORMED, "%s:%d:%d: %s", file, error.line, error.column,
                         error.text);
    m = hth_new(struct hth_manifest);
    seen = hth_map_new();
    err = read_all(&(struct place){file, "", json, why}, seen, m);
    hth_map_free(seen);
    json_decref(json);
    if (err != HTH_OK) {
        hth_manifest_free(m);
        return err;
    }
    *out = m;
    return HTH_OK;
}

void hth_manifest_free(struct hth_manifest *m)
{
    if (m == NULL)
        return;
    for (uint32_t i = 0; i < m->class_count; i++)
        hth_free(m->classes[i]);
    hth_free(m->classes);
    hth_free(m->shards);
    hth_free(m);
}

/* ---- writing ------------------------------------------------------------------------------- */

static json_t *hash_json(const struct hth_hash *hash)
{
    char hex[2 * HTH_HASH_LEN + 1];

    hth_hex(hash->b, HTH_HASH_LEN, hex);
    return json_string(hex);
}

static json_t *shard_json(const struct hth_shard_entry *shard)
{
    json_t *o = json_object();

    json_object_set_new(o, "file", json_string(shard->file));
    json_object_set_new(o, "part", json_string(part_names[shard->part]));
    json_object_set_new(o, "bytes", json_integer((json_int_t)shard->bytes));
    json_object_set_new(o, "samples", json_integer((json_int_t)shard->samples));
    json_object_set_new(o, "sha256", hash_json(&shard->sha256));
    return o;
}

static void set_side_file(json_t *top, const char *key, const char *count_key,
                          const struct hth_side_file *side, uint32_t patch)
{
    json_t *o;

    if (side->file[0] == '\0')
        return;
    o = json_object();
    json_object_set_new(o, "file", json_string(side->file));
    json_object_set_new(o, "sha256", hash_json(&side->sha256));
    json_object_set_new(o, count_key, json_integer(side->count));
    if (patch > 0)
        json_object_set_new(o, "patch", json_integer(patch));
    json_object_set_new(top, key, o);
}

static json_t *lists_json(const struct hth_manifest *m, json_t *top)
{
    json_t *classes = json_array(), *shards = json_array(), *skipped = json_object();

    for (uint32_t i = 0; i < m->class_count; i++)
        json_array_append_new(classes, json_string(m->classes[i]));
    for (uint32_t i = 0; i < m->shard_count; i++)
        json_array_append_new(shards, shard_json(&m->shards[i]));
    for (uint32_t i = 0; i < m->skip_count; i++)
        json_object_set_new(skipped, m->skipped[i].reason,
                            json_integer((json_int_t)m->skipped[i].count));
    json_object_set_new(top, "classes", classes);
    json_object_set_new(top, "shards", shards);
    json_object_set_new(top, "skipped", skipped);
    return top;
}

enum hth_err hth_manifest_write(const struct hth_manifest *m, struct hth_blob **out)
{
    json_t *top = json_object();
    uint64_t all = m->samples[HTH_SET_TRAIN] + m->samples[HTH_SET_TEST];
    size_t len;

    json_object_set_new(top, "version", json_integer(VERSION));
    json_object_set_new(top, "name", json_string(m->name));
    json_object_set_new(top, "licence", json_string(m->licence));
    json_object_set_new(top, "kind", json_string(kind_names[m->kind]));
    if (m->kind != HTH_SET_TEXT)
        json_object_set_new(top, "side", json_integer(m->side));
    json_object_set_new(top, "samples", json_integer((json_int_t)all));
    set_side_file(top, "words", "count", &m->words, 0);
    set_side_file(top, "codebook", "codes", &m->book, m->patch);
    lists_json(m, top);
    len = json_dumpb(top, NULL, 0, JSON_INDENT(1));
    *out = len > 0 ? hth_blob_try_new(len + 1) : NULL;
    if (*out != NULL) {
        json_dumpb(top, (char *)(*out)->data, len, JSON_INDENT(1));
        (*out)->data[len] = '\n';
    }
    json_decref(top);
    return *out != NULL ? HTH_OK : HTH_E_NO_MEMORY;
}
