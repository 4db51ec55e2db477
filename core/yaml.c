/* SPDX-License-Identifier: Apache-2.0 */
#include "core/yaml.h"

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

/* ---- "did you mean" ------------------------------------------------------------------------ */

size_t hth_text_distance(const char *a, const char *b)
{
    enum { LEN_MAX = 40 };
    size_t la = strlen(a), lb = strlen(b);
    size_t row[3][LEN_MAX + 1];
    if (la > LEN_MAX || lb > LEN_MAX)
        return la > lb ? la : lb;
    for (size_t j = 0; j <= lb; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t *cur = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        cur[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t cost = up[j - 1] + (a[i - 1] != b[j - 1]);
            cost = HTH_MIN(cost, up[j] + 1);
            cost = HTH_MIN(cost, cur[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost = HTH_MIN(cost, up2[j - 2] + 1);
            cur[j] = cost;
        }
    }
    return row[la % 3][lb];
}

struct guess {
    char text[PATH_MAX_LEN]; /* "churn.up_s" */
    size_t distance;
};

static void consider(struct guess *best, const char *said, const char *prefix, const char *text)
{
    size_t distance = hth_text_distance(said, text);
    if (distance >= best->distance)
        return;
    snprintf(best->text, sizeof(best->text), "%s%s", prefix, text);
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

/* True if `where`, libcyaml's text for a place, names a field with this key. */
static bool is_at(const char *where, const char *key)
{
    char text[80];
    snprintf(text, sizeof(text), "field '%.60s'", key);
    return strstr(where, text) != NULL;
}

/* The allowed word closest to `said` for the field at `where`. */
static void nearest_word(struct guess *best, const cyaml_schema_value_t *value, const char *said,
                         const char *where)
{
    const cyaml_schema_field_t *fields = fields_of(value);
    for (const cyaml_schema_field_t *f = fields; f != NULL && f->key != NULL; f++) {
        nearest_word(best, &f->value, said, where);
        if (f->value.type != CYAML_ENUM || !is_at(where, f->key))
            continue;
        for (uint32_t w = 0; w < f->value.enumeration.count; w++)
            consider(best, said, "", f->value.enumeration.strings[w].str);
    }
}

/* True if a pair was expected: a schema cannot let one number stand for two. */
static bool is_no_pair(const char *message)
{
    return strncmp(message, "Expecting SEQUENCE_FIXED", 24) == 0 ||
           strstr(message, " of 2 min)") != NULL || strstr(message, "(2 max)") != NULL;
}

static void explain(const struct hth_yaml_kind *kind, const struct parse_log *log, cyaml_err_t code,
                    const char *name, char *error, size_t max)
{
    static const char unknown[] = "Unexpected key: ", no_word[] = "Invalid ENUM value: ";
    struct guess g = {"", SIZE_MAX};
    const char *message = log->message[0] != '\0' ? log->message : cyaml_strerror(code);
    if (strncmp(message, unknown, strlen(unknown)) == 0) {
        const char *key = message + strlen(unknown);
        nearest_key(&g, "", kind->schema, key);
        snprintf(error, max, "%s: unknown key '%.64s' %s; did you mean '%s'?", name, key,
                 log->where, g.text);
    } else if (strncmp(message, no_word, strlen(no_word)) == 0) {
        const char *value = message + strlen(no_word);
        nearest_word(&g, kind->schema, value, log->where);
        snprintf(error, max, "%s: unknown value '%.64s' %s; did you mean '%s'?", name, value,
                 log->where, g.text);
    } else if (is_no_pair(message)) {
        snprintf(error, max,
                 "%s: expected two numbers in brackets, as in [5, 50], or [50, 50] for 50 alone %s",
                 name, log->field);
    } else {
        snprintf(error, max, "%s: %s %s", name, message, log->where);
    }
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

/* The form that a scalar of this type must have, for people; NULL: any. */
static const char *kind_of(cyaml_type_e type, const char *text)
{
    if (type == CYAML_UINT || type == CYAML_INT)
        return has_zero_before(text) ? "a whole number without a 0 before it" : "a whole number";
    if (type == CYAML_FLOAT)
        return "a number";
    return type == CYAML_BOOL ? "true or false" : NULL;
}

static bool is_of_kind(cyaml_type_e type, const char *text, size_t len)
{
    static const char *const words[] = {"true", "false", "yes", "no", "on", "off"};
    char *end = NULL;
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
    struct hth_yaml_given *given; /* NULL: not wanted */
    char wrong[160];              /* "" while no error was found */
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

static void on_scalar(struct yaml_walk *w, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    struct place *p = w->depth > 0 ? &w->open[w->depth - 1] : NULL;
    if (p != NULL && p->value->type == CYAML_MAPPING && p->field == NULL) {
        p->field = field_named(p->value, text);
        if (w->given != NULL)
            record_given(w);
        return;
    }
    const cyaml_schema_value_t *value = expected(w);
    const char *kind = value != NULL ? kind_of(value->type, text) : NULL;
    if (kind != NULL && !is_of_kind(value->type, text, event->data.scalar.length))
        snprintf(w->wrong, sizeof(w->wrong), "'%.40s' is not %s in line %zu%s%.40s", text, kind,
                 event->start_mark.line + 1, p != NULL && p->field != NULL ? ", field " : "",
                 p != NULL && p->field != NULL ? p->field->key : "");
    value_ended(w);
}

/* libcyaml has accepted the document, so its keys and its shape are the schema's. */
static bool on_event(struct yaml_walk *w, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        on_scalar(w, event);
        break;
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT: {
        const cyaml_schema_value_t *value = expected(w);
        if (value == NULL || w->depth == DEPTH_MAX)
            return false;
        w->open[w->depth++] = (struct place){.value = value};
        break;
    }
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
    case YAML_STREAM_END_EVENT:
        return false;
    default:
        break;
    }
    return w->wrong[0] == '\0';
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
        *out = NULL;
        explain(kind, &log, e, name, error, error_max);
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
