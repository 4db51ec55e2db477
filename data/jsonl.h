/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jsonl.h: rows of a file with one JSON object a line, such as captions.jsonl:
 *
 *     {"file": "cats/1.png", "text": "a black cat", "nsfw": "no"}
 *
 * A line that is no object is reported with its number, and the reader goes on behind it, so that
 * one bad line does not lose a file. Lines are bounded (HTH_JSONL_LINE_BYTES_MAX).
 *
 * Pure functions over memory, which is borrowed; one thread at a time.
 */
#ifndef HTH_DATA_JSONL_H
#define HTH_DATA_JSONL_H

#include "core/limits.h"
#include "data/why.h"

struct hth_jsonl {
    const char *name;
    const char *data;
    size_t len, at;
    uint64_t line; /* of the last row, from 1 */
    void *row;     /* private */
};

void hth_jsonl_init(struct hth_jsonl *j, const char *name, const void *data, size_t len);
void hth_jsonl_clear(struct hth_jsonl *j);
/* The next row; blank lines are skipped. Errors: E_NOT_FOUND (the end); E_MALFORMED and E_TOO_LARGE
 * leave the reader behind that line. */
enum hth_err hth_jsonl_next(struct hth_jsonl *j, struct hth_why *why) HTH_MUST;
/* A text of the row, valid until the next one; NULL: the row has no such text. It is UTF-8 without
 * a 0 byte. */
const char *hth_jsonl_text(const struct hth_jsonl *j, const char *key);
/* Whether the row's value is written like that: a text, a number, true, false or null. */
bool hth_jsonl_is(const struct hth_jsonl *j, const char *key, const char *value);

#endif
