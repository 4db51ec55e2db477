/* SPDX-License-Identifier: Apache-2.0 */
#include "core/yaml.h"

#include "core/guess.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#define PATH_MAX_LEN 128 /* of a key's full path */
#define DEPTH_MAX    8   /* of a schema */

struct parse_log {
    char message[256]; /* libcyaml's first message */
    char where[128];   /* the innermost place of its backtrace */
    char field[128];   /* the innermost place that is a named field */
};

HTH_PRINTF(3, 0)
static void keep_log(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
{
    static const char noise[] = "Load: ";
    struct parse_log *log = ctx;
    char line[256];
    (void)level;
    vsnprintf(line, sizeof(line), fmt, args);
    line[strcspn(line, "\n")] = '\0';
    const char *text = strncmp(line, noise, strlen(noise)) == 0 ? line + strlen(noise) : line;
    if (strncmp(text, "Backtrace", 9) == 0)
        return;
    if (strncmp(text, "  in ", 5) == 0) {
        if (log->where[0] == '\0')
            snprintf(log->where, sizeof(log->where), "%.127s", text + 2);
        if (log->field[0] == '\0' && strstr(text, "field '") != NULL)
            snprintf(log->field, sizeof(log->field), "%.127s", text + 2);
    } else if (log->message[0] == '\0') {
        snprintf(log->message, sizeof(log->message), "%.255s", text);
    }
}

/* ---- nearest keys --------------------------------------------------------------------------- */

struct guess {
    char text[PATH_MAX_LEN]; /* "churn.up_s" */
    const char *key;         /* "up_s" */
    size_t distance;
};

static void consider(struct guess *best, const char *said, const char *prefix, const char *text)
{
    size_t distance = hth_text_distance(said, text);
    if (distance >= best->distance)
        return;
    snprintf(best->text, sizeof(best->text), "%s%s", prefix, text);
    best->key = text;
    best->distance = distance;
}

/* The fields of a mapping, or of the mappings in a list; NULL: none. */
static const cyaml_schema_field_t *fields_of(const cyaml_schema_value_t *value)
{
    if (value->type == CYAML_SEQUENCE || value->type == CYAML_SEQUENCE_FIXED)
        return fields_of(value->sequence.entry);
    return value->type == CYAML_MAPPING ? value->mapping.fields : NULL;
}

/* The known key closest to `key`; of equally close ones the outermost. */
static void nearest_key(struct guess *best, const char *prefix, const cyaml_schema_value_t *value,
                        const char *key)
{
    const cyaml_schema_field_t *fields = fields_of(value);
    for (const cyaml_schema_field_t *f = fields; f != NULL && f->key != NULL; f++)
        consider(best, key, prefix, f->key);
    for (const cyaml_schema_field_t *f = fields; f != NULL && f->key != NULL; f++) {
        char inner[PATH_MAX_LEN];
        snprintf(inner, sizeof(inner), "%.48s%.48s.", prefix, f->key);
        nearest_key(best, inner, &f->value, key);
    }
}

/* True if a pair was expected: a schema cannot let one number stand for two. */
static bool is_no_pair(const char *message)
{
    return strncmp(message, "Expecting SEQUENCE_FIXED", 24) == 0 ||
           strstr(message, " of 2 min)") != NULL || strstr(message, "(2 max)") != NULL;
}

/* ---- numbers, yes and no ------------------------------------------------------------------- */

/* libcyaml reads the number that a text begins with: as whole numbers, 1e4 and 20.5 would be 1 and
 * 20. It reads a number far below 0 as a large positive one, 010 as 8, and any word that does not
 * mean no as yes. So every scalar for which the schema has a number or a bool is checked a second
 * time. */
static bool has_zero_before(const char *text)
{
    text += text[0] == '-' || text[0] == '+';
    return text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

/* The form that a value of this type must have, for people; NULL: any. `text`: what was written. */
static const char *kind_of(cyaml_type_e type, const char *text)
{
    switch (type) {
    case CYAML_UINT:
    case CYAML_INT:
        if (type == CYAML_UINT && text[0] == '-')
            return "a whole number, 0 or larger,";
        return has_zero_before(text) ? "a whole number without a 0 before it" : "a whole number";
    case CYAML_FLOAT:
        return "a number";
    case CYAML_BOOL:
        return "true or false";
    case CYAML_STRING:
        return "a text";
    case CYAML_ENUM:
        return "a word";
    case CYAML_SEQUENCE:
        return "a list in brackets";
    case CYAML_MAPPING:
        return "a group of 'key: value'";
    default:
        return NULL;
    }
}

static bool is_of_kind(cyaml_type_e type, const char *text, size_t len)
{
    static const char *const words[] = {"true", "false", "yes", "no", "on", "off"};
    char *end = NULL;
    if (type == CYAML_STRING || type == CYAML_ENUM)
        return true;
    if (type == CYAML_MAPPING || type == CYAML_SEQUENCE)
        return false;
    for (size_t i = 0; type == CYAML_BOOL && i < HTH_ARRAY_LEN(words); i++)
        if (strcasecmp(text, words[i]) == 0)
            return strlen(text) == len;
    if (type == CYAML_BOOL || (type == CYAML_UINT && strchr(text, '-') != NULL))
        return false;
    if (type == CYAML_FLOAT)
        (void)strtod(text, &end);
    else if (has_zero_before(text))
        return false;
    else
        (void)strtoull(text, &end, 0);
    return end != text && end == text + len;
}

struct place {                         /* an open mapping or list */
    const cyaml_schema_value_t *value; /* NULL: not in the schema */
    const cyaml_schema_field_t *field; /* of the next value; NULL: a key is next */
};

struct yaml_walk {
    struct place open[DEPTH_MAX];
    size_t depth, documents;
    const cyaml_schema_value_t *root;
    const cyaml_schema_value_t *stray; /* the mapping with a key that it does not know */
    size_t stray_line;                 /* of that key, from 1 */
    const cyaml_schema_value_t *words; /* of the first value that is none of them */
    struct hth_yaml_given *given;      /* NULL: not wanted */
    char wrong[200];                   /* "" while no error was found */
};

static bool is_list(const cyaml_schema_value_t *value)
{
    return value->type == CYAML_SEQUENCE || value->type == CYAML_SEQUENCE_FIXED;
}

static const cyaml_schema_field_t *field_named(const cyaml_schema_value_t *mapping, const char *key)
{
    for (const cyaml_schema_field_t *f = mapping->mapping.fields; f->key != NULL; f++)
        if (strcmp(f->key, key) == 0)
            return f;
    return NULL;
}

/* The schema of the value that begins here. */
static const cyaml_schema_value_t *expected(const struct yaml_walk *w)
{
    if (w->depth == 0)
        return w->root;
    const struct place *p = &w->open[w->depth - 1];
    if (is_list(p->value))
        return p->value->sequence.entry;
    return p->field != NULL ? &p->field->value : NULL;
}

static void value_ended(struct yaml_walk *w)
{
    if (w->depth > 0)
        w->open[w->depth - 1].field = NULL;
}

/* Records the current key's offset. A mapping is left out: it may have the offset of its first
 * member. */
static void record_given(const struct yaml_walk *w)
{
    const cyaml_schema_field_t *field = w->open[w->depth - 1].field;
    size_t offset = 0;
    if (field == NULL || field->value.type == CYAML_MAPPING)
        return;
    for (size_t i = 0; i < w->depth; i++) {
        if (w->open[i].field == NULL)
            return; /* in a list */
        offset += w->open[i].field->data_offset;
    }
    if (w->given->count < HTH_YAML_GIVEN_MAX && !hth_yaml_is_given(w->given, offset))
        w->given->offset[w->given->count++] = offset;
}

/* The key of the innermost open field; "": there is none. */
static const char *field_key(const struct yaml_walk *w)
{
    for (size_t i = w->depth; i > 0; i--)
        if (w->open[i - 1].field != NULL)
            return w->open[i - 1].field->key;
    return "";
}

static void say_wrong(struct yaml_walk *w, const char *written, const char *kind,
                      const yaml_event_t *event)
{
    const char *key = field_key(w);
    snprintf(w->wrong, sizeof(w->wrong), "%.44s in line %zu%s%.40s: %s is needed", written,
             event->start_mark.line + 1, key[0] != '\0' ? ", field " : "", key, kind);
}

static bool has_word(const cyaml_schema_value_t *value, const char *text)
{
    for (uint32_t i = 0; i < value->enumeration.count; i++)
        if (strcmp(value->enumeration.strings[i].str, text) == 0)
            return true;
    return false;
}

static void on_scalar(struct yaml_walk *w, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    struct place *p = w->depth > 0 ? &w->open[w->depth - 1] : NULL;
    if (p != NULL && p->value->type == CYAML_MAPPING && p->field == NULL) {
        p->field = field_named(p->value, text);
        if (p->field == NULL) {
            w->stray = p->value;
            w->stray_line = event->start_mark.line + 1;
        } else if (w->given != NULL) {
            record_given(w);
        }
        return;
    }
    const cyaml_schema_value_t *value = expected(w);
    const char *kind = value != NULL ? kind_of(value->type, text) : NULL;
    if (kind != NULL && !is_of_kind(value->type, text, event->data.scalar.length)) {
        char written[48];
        snprintf(written, sizeof(written), "'%.40s'", text);
        say_wrong(w, written, kind, event);
    }
    if (value != NULL && value->type == CYAML_ENUM && w->words == NULL && !has_word(value, text))
        w->words = value;
    value_ended(w);
}

/* A mapping or a list begins. False ends the walk. */
static bool on_begin(struct yaml_walk *w, const yaml_event_t *event, cyaml_type_e type)
{
    const cyaml_schema_value_t *value = expected(w);
    if (value == NULL || w->depth == DEPTH_MAX)
        return false;
    const char *kind = kind_of(value->type, "");
    if (kind != NULL && value->type != type) {
        say_wrong(w, type == CYAML_MAPPING ? "a group of keys" : "a list", kind, event);
        return false;
    }
    w->open[w->depth++] = (struct place){.value = value};
    return true;
}

/* False ends the walk. In a document that libcyaml refused keys and shapes may be any. */
static bool on_event(struct yaml_walk *w, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        on_scalar(w, event);
        break;
    case YAML_MAPPING_START_EVENT:
        return on_begin(w, event, CYAML_MAPPING);
    case YAML_SEQUENCE_START_EVENT:
        return on_begin(w, event, CYAML_SEQUENCE);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        w->depth--;
        value_ended(w);
        break;
    case YAML_DOCUMENT_START_EVENT: /* libcyaml reads the first and ignores others */
        if (w->documents++ > 0)
            snprintf(w->wrong, sizeof(w->wrong), "a second document begins in line %zu",
                     event->start_mark.line + 1);
        break;
    case YAML_ALIAS_EVENT:
    case YAML_STREAM_END_EVENT:
        return false;
    default:
        break;
    }
    return w->wrong[0] == '\0' && w->stray == NULL;
}

static void check_again(struct yaml_walk *w, const uint8_t *data, size_t len)
{
    yaml_parser_t parser;
    yaml_event_t event;
    bool more = yaml_parser_initialize(&parser) != 0;
    if (!more)
        return;
    yaml_parser_set_input_string(&parser, data, len);
    while (more && yaml_parser_parse(&parser, &event) != 0) {
        more = on_event(w, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
}

void hth_yaml_find_given(const struct hth_yaml_kind *kind, const uint8_t *data, size_t len,
                         struct hth_yaml_given *out)
{
    struct yaml_walk walk = {.root = kind->schema, .given = out};
    out->count = 0;
    check_again(&walk, data, len);
}

bool hth_yaml_is_given(const struct hth_yaml_given *given, size_t offset)
{
    size_t i = 0;
    while (i < given->count && given->offset[i] != offset)
        i++;
    return i < given->count;
}

/* ---- errors, in words ----------------------------------------------------------------------- */

/* "; did you mean 'train.flights'?", else the keys of the mapping in which the key stands. */
static void hint_key(const struct hth_yaml_kind *kind, const struct yaml_walk *walk,
                     const char *key, char *out, size_t size)
{
    struct guess g = {"", "", SIZE_MAX};
    const cyaml_schema_field_t *fields = walk->stray != NULL ? fields_of(walk->stray) : NULL;
    size_t count = 0;
    nearest_key(&g, "", kind->schema, key);
    if (hth_guess_is_near(key, g.key)) {
        snprintf(out, size, "; did you mean '%s'?", g.text);
        return;
    }
    while (fields != NULL && fields[count].key != NULL)
        count++;
    hth_guess_text(key, fields, sizeof(*fields), count, out, size);
}

/* Puts a message of libcyaml into plain words; false: it is none of these. */
static bool reword(const char *message, char *out, size_t size)
{
    static const struct {
        const char *starts, *before, *after;
    } words[] = {{"Missing required mapping field: ", "the key '", "' is missing"},
                 {"Mapping field already seen: ", "the key '", "' is given twice"},
                 {"Value too big for bits: ", "", " is too large"},
                 {"FLOAT overflow: ", "", " is too large"},
                 {"FLOAT overflow/overflow: ", "", " is too large"},
                 {"FLOAT underflow: ", "", " is too close to 0"},
                 {"Invalid UINT value: ", "", " is too large"},
                 {"Invalid INT value: ", "", " is too large"},
                 {"Invalid uint64_t value: ", "", " is too large"}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(words); i++) {
        size_t len = strlen(words[i].starts);
        if (strncmp(message, words[i].starts, len) != 0)
            continue;
        snprintf(out, size, "%s%.100s%s", words[i].before, message + len, words[i].after);
        return true;
    }
    return false;
}

static void explain(const struct hth_yaml_kind *kind, const struct parse_log *log,
                    const struct yaml_walk *walk, const char *name, char *error, size_t max)
{
    static const char unknown[] = "Unexpected key: ", no_word[] = "Invalid ENUM value: ";
    char hint[256], said[160];
    if (strncmp(log->message, unknown, strlen(unknown)) == 0) {
        const char *key = log->message + strlen(unknown);
        hint_key(kind, walk, key, hint, sizeof(hint));
        /* libcyaml names the place where it stood before the key. */
        if (walk->stray != NULL)
            snprintf(error, max, "%s: unknown key '%.64s' in line %zu%s", name, key,
                     walk->stray_line, hint);
        else
            snprintf(error, max, "%s: unknown key '%.64s' %s%s", name, key, log->where, hint);
    } else if (strncmp(log->message, no_word, strlen(no_word)) == 0) {
        const char *value = log->message + strlen(no_word);
        const cyaml_schema_value_t *w = walk->words;
        hint[0] = '\0';
        if (w != NULL)
            hth_guess_text(value, w->enumeration.strings, sizeof(*w->enumeration.strings),
                           w->enumeration.count, hint, sizeof(hint));
        snprintf(error, max, "%s: unknown value '%.64s' %s%s", name, value, log->where, hint);
    } else if (is_no_pair(log->message)) {
        snprintf(error, max,
                 "%s: expected two numbers in brackets, as in [5, 50], or [50, 50] for 50 alone %s",
                 name, log->field);
    } else if (walk->wrong[0] != '\0') {
        snprintf(error, max, "%s: %s", name, walk->wrong);
    } else if (reword(log->message, said, sizeof(said))) {
        snprintf(error, max, "%s: %s %s", name, said, log->where);
    } else {
        snprintf(error, max, "%s: %s %s", name, log->message, log->where);
    }
}

/* ---- files --------------------------------------------------------------------------------- */

enum hth_err hth_yaml_load(const struct hth_yaml_kind *kind, const char *name, const uint8_t *data,
                           size_t len, void **out, char *error, size_t error_max)
{
    struct parse_log log = {.message = ""};
    const cyaml_config_t config = {
        .log_fn = keep_log,
        .log_ctx = &log,
        .log_level = CYAML_LOG_WARNING,
        .mem_fn = cyaml_mem,
        .flags = CYAML_CFG_NO_ALIAS,
    };
    *out = NULL;
    error[0] = '\0';
    if (len > kind->bytes_max) {
        snprintf(error, error_max, "%s: %zu bytes; %s has at most %zu", name, len, kind->what,
                 kind->bytes_max);
        return HTH_E_TOO_LARGE;
    }
    cyaml_err_t e = cyaml_load_data(data, len, &config, kind->schema, (cyaml_data_t **)out, NULL);
    if (e != CYAML_OK) {
        struct yaml_walk walk = {.root = kind->schema};
        *out = NULL;
        check_again(&walk, data, len);
        if (log.message[0] == '\0')
            snprintf(log.message, sizeof(log.message), "%s", cyaml_strerror(e));
        explain(kind, &log, &walk, name, error, error_max);
        return HTH_E_CONFIG;
    }
    if (*out == NULL) {
        snprintf(error, error_max, "%s: empty; %s", name, kind->least);
        return HTH_E_CONFIG;
    }
    struct yaml_walk walk = {.root = kind->schema};
    check_again(&walk, data, len);
    if (walk.wrong[0] != '\0') {
        snprintf(error, error_max, "%s: %s", name, walk.wrong);
        hth_yaml_free(kind, *out);
        *out = NULL;
        return HTH_E_CONFIG;
    }
    return HTH_OK;
}

void hth_yaml_free(const struct hth_yaml_kind *kind, void *value)
{
    const cyaml_config_t config = {.mem_fn = cyaml_mem, .log_level = CYAML_LOG_ERROR};
    if (value != NULL)
        cyaml_free(&config, kind->schema, value, 0);
}
