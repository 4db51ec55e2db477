/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.h: objects for status pages, metrics and rows, one typed field at a time.
 *
 *     json_t *o = json_object();
 *     hth_json_text(o, "phase", "training");
 *     hth_json_real(o, "distance", NAN);          {"phase":"training","distance":null}
 *
 * Whatever a value is, the field is there and the object is valid: what JSON has no word for (a
 * number that is not finite, text that is not UTF-8) is null in that field and spoils nothing else.
 * A long format with a list of arguments (json_pack) drops the whole object for one NaN, and reads
 * beyond its arguments when one is missing; tools/check-layers lets only json.c make numbers.
 *
 * Pure.
 */
#ifndef HTH_CLI_JSON_H
#define HTH_CLI_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Fields keep the order in which they were added; a name that is there already gets another
 * value. */
void hth_json_text(json_t *object, const char *name, const char *text); /* NULL: null */
/* Beyond INT64_MAX, which a peer may have said: that. */
void hth_json_count(json_t *object, const char *name, uint64_t count);
void hth_json_real(json_t *object, const char *name, double value);
json_t *hth_json_number(double value); /* the value alone, for a list, or as a field by _take */
void hth_json_flag(json_t *object, const char *name, bool flag);
/* NULL: null. */
void hth_json_take(json_t *object, const char *name, json_t *value);
/* One line without its end; numbers have 15 digits, as a time in seconds needs them. */
void hth_json_print_take(FILE *to, json_t *object);

#endif
