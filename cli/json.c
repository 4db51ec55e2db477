/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/json.h"

#include <math.h>

void hth_json_take(json_t *object, const char *name, json_t *value)
{
    json_object_set_new(object, name, value != NULL ? value : json_null());
}

void hth_json_text(json_t *object, const char *name, const char *text)
{
    hth_json_take(object, name, text != NULL ? json_string(text) : NULL);
}

void hth_json_count(json_t *object, const char *name, uint64_t count)
{
    hth_json_take(object, name, json_integer(count < INT64_MAX ? (json_int_t)count : INT64_MAX));
}

json_t *hth_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

void hth_json_real(json_t *object, const char *name, double value)
{
    hth_json_take(object, name, hth_json_number(value));
}

void hth_json_flag(json_t *object, const char *name, bool flag)
{
    hth_json_take(object, name, json_boolean(flag));
}

void hth_json_print_take(FILE *to, json_t *object)
{
    json_dumpf(object, to, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(object);
}
