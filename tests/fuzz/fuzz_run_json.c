/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_run_json.c: any JSON as a run, and a run whose values were exchanged: the page's tables and
 * the terminal's frames stay well-formed.
 */
#include "core/base.h"
#include "core/mem.h"
#include "monitor/screen.h"
#include "monitor/site.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char whole[] =
    "{\"now_at_s\":1795770000,\"run\":\"r\",\"state\":\"idle\",\"trouble\":\"t\",\"since_at_s\":"
    "1795757000,"
    "\"step\":5,\"total\":9,\"left_s\":7,\"samples\":9,\"loss\":0.5,\"test\":{\"t\":1,\"step\":1,"
    "\"loss\":1,"
    "\"accuracy\":0.5,\"bits_per_byte\":2},\"checkpoint\":{\"t\":1795768200,\"step\":3},"
    "\"trainers\":1,"
    "\"hosts\":1,\"helpers\":1,\"samples_per_s\":5,\"rows_per_s\":6,\"places\":4,\"served\":3,"
    "\"gallery\":{\"t\":1,\"step\":2,\"picture\":\"drawings.png\",\"items\":[{\"prompt\":\"p\","
    "\"text\":\"t\"}]},"
    "\"join\":{\"command\":\"c\"},\"peers\":[{\"id\":\"a\",\"name\":\"n\",\"role\":\"trainer\","
    "\"state\":\"silent\","
    "\"seen_s\":1,\"version\":\"v\",\"step\":1,\"samples_per_s\":2,\"does\":\"client\",\"average\":"
    "{\"members\":2,"
    "\"reason\":\"ok\"}},{\"id\":\"b\",\"role\":\"host\",\"experts\":2,\"rows_per_s\":3,\"unsaved_"
    "s\":9}],"
    "\"layers\":[{\"name\":\"f\",\"grid\":[2,2],\"places\":4,\"served\":3,\"twice\":1,\"replicas\":"
    "[0,1,2,11]},"
    "{\"name\":\"g\",\"grid\":[2],\"replicas\":[1,1]}],\"events\":[{\"t\":1,\"kind\":\"killed\","
    "\"text\":\"x\"}],"
    "\"history\":{\"t\":[10,20,30],\"step\":[1,2,3],\"samples\":[1,2,3],\"loss\":[3,2,1]},"
    "\"tests\":{\"t\":[20],\"step\":[2],\"loss\":[2],\"accuracy\":[0],\"bits_per_byte\":[null]}}";

struct source {
    const uint8_t *data;
    size_t left;
};

static unsigned next(struct source *s)
{
    if (s->left == 0)
        return 255;
    s->left--;
    return *s->data++;
}

static json_t *strange(struct source *s)
{
    static const char *const texts[] = {"", "<b>&", "\u202e\x01", "\x1b[2J", "%s%n", "ok", "-"};
    unsigned kind = next(s);
    switch (kind % 6) {
    case 0:
        return json_null();
    case 1: /* the bytes themselves, as far as they are UTF-8 */
        if (s->left >= 8) {
            json_t *text = json_stringn((const char *)s->data, 8);
            if (text != NULL)
                return text;
        }
        return json_string(texts[kind / 6 % HTH_ARRAY_LEN(texts)]);
    case 2:
        return json_array();
    case 3:
        return json_loads(whole, 0, NULL);
    case 4:
        return json_integer((json_int_t)(kind % 2 != 0 ? INT64_MAX : INT64_MIN));
    default: /* reals that JSON has; cli/json.h makes no others */
        return json_loads((const char *const[]){"1e308", "-1e308", "0.5", "-0.0"}[kind / 6 % 4],
                          JSON_DECODE_ANY, NULL);
    }
}

/* Exchanges the values for which the next byte says so. */
static void exchange(struct source *s, json_t *value, int depth)
{
    const char *key;
    json_t *child;
    void *tmp;
    json_object_foreach_safe(value, tmp, key, child)
    {
        if (next(s) < 24)
            json_object_set_new(value, key, strange(s));
        else if (depth < 4)
            exchange(s, child, depth + 1);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (next(s) < 24)
            json_array_set_new(value, i, strange(s));
        else if (depth < 4)
            exchange(s, json_array_get(value, i), depth + 1);
    }
}

/* Every '<' begins a tag of the program's own, and the page has one script. */
static void check_html(const char *html)
{
    for (const char *c = strchr(html, '<'); c != NULL; c = strchr(c + 1, '<'))
        HTH_ASSERT(c[1] == '/' || c[1] == '!' || (c[1] >= 'a' && c[1] <= 'z'));
    const char *script = strstr(html, "<script");
    HTH_ASSERT(script != NULL && strstr(script + 1, "<script") == NULL);
    HTH_ASSERT(strstr(html, "<b>") == NULL);
}

static void check_frame(const char *frame)
{
    for (const char *c = frame; *c != '\0'; c++)
        HTH_ASSERT(*c == '\n' || (*c >= ' ' && *c != 0x7f) || (*c & 0x80) != 0);
}

static void show(const json_t *run, const uint8_t how[3])
{
    struct hth_screen s = {.columns = how[0],
                           .rows = how[1],
                           .utf8 = (how[2] & 1) != 0,
                           .view = (enum hth_screen_view)((how[2] >> 1) % 6),
                           .against = how[2] >> 4};
    char *html = hth_site_html(run, true), *frame = hth_screen_frame(run, &s);
    char *line = hth_screen_line(run);
    check_html(html);
    check_frame(frame);
    check_frame(line);
    hth_free(line);
    hth_free(frame);
    hth_free(html);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    json_t *run = json_loadb((const char *)data + 3, size - 3, JSON_DECODE_ANY, NULL);
    if (run == NULL) {
        struct source s = {data + 3, size - 3};
        run = json_loads(whole, 0, NULL);
        exchange(&s, run, 0);
    }
    show(run, data);
    json_decref(run);
    return 0;
}
