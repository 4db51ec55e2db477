/* SPDX-License-Identifier: Apache-2.0 */
#include "core/yaml.h"

#include <stdio.h>
#include <string.h>

struct parse_log {
    char message[256]; /* what libcyaml says first */
    char where[128];   /* the innermost place of its backtrace */
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
    } else if (log->message[0] == '\0') {
        snprintf(log->message, sizeof(log->message), "%.255s", text);
    }
}

/* ---- what was meant ------------------------------------------------------------------------ */

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
        size_t *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t cost = up[j - 1] + (a[i - 1] != b[j - 1]);
            cost = HTH_MIN(cost, up[j] + 1);
            cost = HTH_MIN(cost, now[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost = HTH_MIN(cost, up2[j - 2] + 1);
            now[j] = cost;
        }
    }
    return row[la % 3][lb];
}

struct guess {
    const char *prefix, *text;
    size_t distance;
};

static void consider(struct guess *best, const char *said, const char *prefix, const char *text)
{
    size_t distance = hth_text_distance(said, text);
    if (distance < best->distance)
        *best = (struct guess){prefix, text, distance};
}

/* The known key that looks most like `key`. */
static struct guess nearest_key(const struct hth_yaml_kind *kind, const char *key)
{
    struct guess best = {"", "", SIZE_MAX};
    for (size_t i = 0; i < kind->part_count; i++)
        for (const cyaml_schema_field_t *f = kind->parts[i].fields; f->key != NULL; f++)
            consider(&best, key, kind->parts[i].prefix, f->key);
    return best;
}

/* Whether `where`, libcyaml's words for a place, is that of a field with this key. */
static bool is_at(const char *where, const char *key)
{
    char text[80];
    snprintf(text, sizeof(text), "field '%.60s'", key);
    return strstr(where, text) != NULL;
}

static void consider_words(struct guess *best, const cyaml_schema_field_t *f, const char *value,
                           const char *where)
{
    if (f->value.type != CYAML_ENUM || !is_at(where, f->key))
        return;
    for (uint32_t w = 0; w < f->value.enumeration.count; w++)
        consider(best, value, "", f->value.enumeration.strings[w].str);
}

/* Of the words that may stand there the one that looks most like `value`. */
static struct guess nearest_value(const struct hth_yaml_kind *kind, const char *value,
                                  const char *where)
{
    struct guess best = {"", "", SIZE_MAX};
    for (size_t i = 0; i < kind->part_count; i++)
        for (const cyaml_schema_field_t *f = kind->parts[i].fields; f->key != NULL; f++)
            consider_words(&best, f, value, where);
    return best;
}

static void explain(const struct hth_yaml_kind *kind, const struct parse_log *log, cyaml_err_t code,
                    const char *name, char *error, size_t max)
{
    static const char unknown[] = "Unexpected key: ", no_word[] = "Invalid ENUM value: ";
    const char *message = log->message[0] != '\0' ? log->message : cyaml_strerror(code);
    if (strncmp(message, unknown, strlen(unknown)) == 0) {
        const char *key = message + strlen(unknown);
        struct guess g = nearest_key(kind, key);
        snprintf(error, max, "%s: unknown key '%.64s' %s; did you mean '%s%s'?", name, key,
                 log->where, g.prefix, g.text);
    } else if (strncmp(message, no_word, strlen(no_word)) == 0) {
        const char *value = message + strlen(no_word);
        struct guess g = nearest_value(kind, value, log->where);
        snprintf(error, max, "%s: unknown value '%.64s' %s; did you mean '%s'?", name, value,
                 log->where, g.text);
    } else {
        snprintf(error, max, "%s: %s %s", name, message, log->where);
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
        *out = NULL;
        explain(kind, &log, e, name, error, error_max);
        return HTH_E_CONFIG;
    }
    if (*out == NULL) {
        snprintf(error, error_max, "%s: empty; %s", name, kind->least);
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
