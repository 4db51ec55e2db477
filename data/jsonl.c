/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl.c: one JSON object a line. */
#include "data/jsonl.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void hth_jsonl_init(struct hth_jsonl *j, const char *name, const void *data, size_t len)
{
    *j = (struct hth_jsonl){.name = name, .data = data, .len = len};
}

void hth_jsonl_clear(struct hth_jsonl *j)
{
    json_decref(j->row);
    j->row = NULL;
}

static bool is_blank(const char *p, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r')
            return false;
    return true;
}

static enum hth_err parse_line(struct hth_jsonl *j, const char *p, size_t len, struct hth_why *why)
{
    json_error_t error;

    if (len > HTH_JSONL_LINE_BYTES_MAX)
        return hth_blame(why, HTH_E_TOO_LARGE, "%s:%" PRIu64 ": a line of %zu bytes; at most %u",
                         j->name, j->line, len, HTH_JSONL_LINE_BYTES_MAX);
    j->row = json_loadb(p, len, JSON_REJECT_DUPLICATES, &error);
    if (j->row == NULL)
        return hth_blame(why, HTH_E_MALFORMED, "%s:%" PRIu64 ":%d: %s", j->name, j->line,
                         error.column, error.text);
    if (!json_is_object((json_t *)j->row))
        return hth_blame(why, HTH_E_MALFORMED, "%s:%" PRIu64 ": expected an object {...}", j->name,
                         j->line);
    return HTH_OK;
}

enum hth_err hth_jsonl_next(struct hth_jsonl *j, struct hth_why *why)
{
    hth_jsonl_clear(j);
    while (j->at < j->len) {
        const char *p = j->data + j->at;
        const char *end = memchr(p, '\n', j->len - j->at);
        size_t len = end != NULL ? (size_t)(end - p) : j->len - j->at;
        j->at += len + (end != NULL);
        j->line++;
        if (!is_blank(p, len))
            return parse_line(j, p, len, why);
    }
    return HTH_E_NOT_FOUND;
}

const char *hth_jsonl_text(const struct hth_jsonl *j, const char *key)
{
    return json_string_value(json_object_get(j->row, key)); /* jansson refuses \u0000 */
}

bool hth_jsonl_is(const struct hth_jsonl *j, const char *key, const char *value)
{
    const json_t *v = json_object_get(j->row, key);
    char *text;
    bool same;

    if (v == NULL)
        return false;
    if (json_is_string(v))
        return strcmp(json_string_value(v), value) == 0;
    text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    same = text != NULL && strcmp(text, value) == 0;
    free(text);
    return same;
}
