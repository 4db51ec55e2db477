/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.h: objects for status pages, metrics and rows, one typed field at a time.
 *
 *     json_t *o = json_object();
 *     hth_json_text(o, "phase", "training");
 *     hth_json_real(o, "distance", NAN);          {"phase":"training","distance":null}
 *
 * Every field is written and the object stays valid: a value that JSON cannot express (a number
 * that is not finite, text that is not UTF-8) becomes null in its field and spoils no other.
 * jansson's json_pack drops the whole object for one NaN, and reads beyond its arguments if one is
 * missing; so tools/check-layers lets only json.c make numbers.
 *
 * Any thread.
 */
#ifndef HTH_CLI_JSON_H
#define HTH_CLI_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Fields keep the order in which they are added; adding a name again replaces its value. */
void hth_json_text(json_t *object, const char *name, const char *text); /* NULL: null */
/* A count beyond INT64_MAX, which a peer may send, becomes INT64_MAX. */
void hth_json_count(json_t *object, const char *name, uint64_t count);
void hth_json_real(json_t *object, const char *name, double value);
json_t *hth_json_number(double value); /* the value alone, for a list or for _take */
void hth_json_flag(json_t *object, const char *name, bool flag);
/* Keeps the reference to value; NULL: null. */
void hth_json_take(json_t *object, const char *name, json_t *value);
/* Prints one line without a newline and drops the reference. Numbers have 15 digits, which Unix
 * time with microseconds needs. */
void hth_json_print_take(FILE *to, json_t *object);

#endif
