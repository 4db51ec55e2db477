/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/json.h"
#include "support/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *text_of(const json_t *o)
{
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    assert_non_null(text);
    return text;
}

TEST(fields_keep_order_and_type)
{
    json_t *o = json_object(), *list = json_array();
    char *text;

    (void)state;
    json_array_append_new(list, json_integer(7));
    hth_json_text(o, "text", "a \"b\"");
    hth_json_count(o, "count", 9007199254740993u);
    hth_json_real(o, "real", 0.25);
    hth_json_flag(o, "flag", true);
    hth_json_take(o, "list", list);
    text = text_of(o);
    assert_string_equal(text, "{\"text\":\"a \\\"b\\\"\",\"count\":9007199254740993,\"real\":0.25,"
                              "\"flag\":true,\"list\":[7]}");
    free(text);
    json_decref(o);
}

/* A value that JSON cannot express is null in its field, and all other fields are present. */
TEST(value_without_json_form_is_null)
{
    json_t *o = json_object(), *again;
    char *text;

    (void)state;
    hth_json_real(o, "nan", NAN);
    hth_json_real(o, "inf", -INFINITY);
    hth_json_text(o, "bytes", "\xff\xfe");
    hth_json_text(o, "none", NULL);
    hth_json_take(o, "object", NULL);
    hth_json_count(o, "most", UINT64_MAX);
    hth_json_real(o, "after", 1.5);
    text = text_of(o);
    assert_string_equal(text, "{\"nan\":null,\"inf\":null,\"bytes\":null,\"none\":null,"
                              "\"object\":null,\"most\":9223372036854775807,\"after\":1.5}");
    again = json_loads(text, 0, NULL);
    assert_int_equal(json_object_size(again), 7);
    json_decref(again);
    free(text);
    json_decref(o);
}

TEST(line_has_fifteen_digits)
{
    char line[64] = "";
    FILE *to = fmemopen(line, sizeof(line), "w");
    json_t *o = json_object();

    (void)state;
    assert_non_null(to);
    hth_json_real(o, "third", 1.0 / 3);
    hth_json_print_take(to, o);
    fclose(to);
    assert_string_equal(line, "{\"third\":0.333333333333333}");
}
