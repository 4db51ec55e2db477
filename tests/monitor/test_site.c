/* SPDX-License-Identifier: Apache-2.0 */
/* test_site.c: the page's files are those of the tree, and a run's tables show it and no more. */
#include "averaging/averager.h"

#include "core/mem.h"
#include "monitor/facts.h"
#include "monitor/site.h"
#include "net/http.h"
#include "support/suite.h"

#include <stdlib.h>

static json_t *golden(void)
{
    json_t *run = json_load_file(HTH_TEST_GOLDEN, 0, NULL);
    assert_non_null(run);
    return run;
}

/* ---- files --------------------------------------------------------------------------------- */

/* Whether `whole` ends with the bytes of a file. */
static void must_end_with(const char *whole, size_t len, const char *path)
{
    static char data[1 << 20];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t got = fread(data, 1, sizeof(data), file);
    fclose(file);
    assert_true(got > 0 && got <= len);
    assert_memory_equal(whole + len - got, data, got);
}

TEST(test_files_are_those_of_the_tree)
{
    (void)state;
    const struct hth_site_file *file = hth_site_files();
    char path[256];
    for (size_t i = 0; i < HTH_SITE_FILES; i++) {
        char *plain = hth_site_plain(&file[i]);
        snprintf(path, sizeof(path), HTH_TEST_PAGE "%s", file[i].path);
        must_end_with(plain, file[i].len, path);
        assert_true(file[i].gz_len < file[i].len);
        hth_free(plain);
    }
}

TEST(test_page_is_whole_around_the_numbers)
{
    (void)state;
    json_t *run = golden();
    for (int live = 0; live < 2; live++) {
        char *html = hth_site_html(run, live);
        assert_memory_equal(html, "<!doctype html>", 15);
        assert_string_equal(html + strlen(html) - 8, "</html>\n");
        assert_non_null(
            strstr(html, "http-equiv=\"Content-Security-Policy\" content=\"" HTH_HTTP_POLICY));
        assert_true((strstr(html, "data-live=\"yes\"") != NULL) == live);
        assert_null(strstr(html, "<!--numbers"));
        hth_free(html);
    }
    json_decref(run);
}

/* ---- figures ------------------------------------------------------------------------------- */

TEST(test_facts_in_words)
{
    static const struct {
        const char *run, *text;
        int fact;
    } cases[] = {
        {"{\"state\":\"training\"}", "training", 0},
        {"{\"state\":\"idle\"}", "idle: no trainer", 0},
        {"{}", "-", 0},
        {"{\"step\":1290,\"total\":2000,\"left_s\":6720}", "1,290 of 2,000, 64.5 %, 1.9 h left", 1},
        {"{\"step\":2001,\"total\":2000}", "2,001 of 2,000, 100.0 %", 1},
        {"{\"step\":7,\"total\":0}", "7", 1},
        {"{\"step\":-1}", "-", 1},
        {"{\"step\":1e300,\"total\":1}", "- of 1, 100.0 %", 1},
        {"{\"loss\":0.48971}", "0.4897", 2},
        {"{\"loss\":\"0.4\"}", "-", 2},
        {"{\"test\":{\"loss\":1.5,\"accuracy\":0.8312,\"step\":1000}}",
         "1.5, 83.1 % right, at step 1,000", 3},
        {"{\"test\":{\"loss\":1.5,\"accuracy\":null,\"bits_per_byte\":2.125,\"step\":5}}",
         "1.5, 2.125 bits a byte, at step 5", 3},
        {"{\"test\":null}", "-", 3},
        {"{\"samples\":330496}", "330,496", 4},
        {"{\"samples_per_s\":55.13,\"rows_per_s\":1368.2}", "55.1 samples/s, 1368 rows/s", 5},
        {"{\"trainers\":3,\"hosts\":4,\"helpers\":1}", "trainers 3, hosts 4, helpers 1", 6},
        {"{\"places\":32,\"served\":28}", "28 of 32 served, 4 missing", 7},
        {"{\"places\":32,\"served\":32}", "32 of 32 served", 7},
        {"{\"checkpoint\":{\"t\":1795768200,\"step\":1200}}", "step 1,200, 2026-11-27 08:30 UTC",
         8},
        {"{\"since_at_s\":1795757000}", "2026-11-27 05:23 UTC", 9},
        {"{\"since_at_s\":-5}", "-", 9},
    };
    struct hth_fact fact[HTH_FACTS];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        json_t *run = json_loads(cases[i].run, 0, NULL);
        hth_facts(run, fact);
        if (strcmp(fact[cases[i].fact].text, cases[i].text) != 0)
            fail_msg("%s: '%s', not '%s'", cases[i].run, fact[cases[i].fact].text, cases[i].text);
        json_decref(run);
    }
}

TEST(test_uids_count_in_row_major_order)
{
    static const struct {
        const char *layer, *uid;
        uint64_t index;
    } cases[] = {
        {"{\"name\":\"ffn0\",\"grid\":[32]}", "ffn0.31", 31},
        {"{\"name\":\"ffn0\",\"grid\":[4,8]}", "ffn0.3.7", 31},
        {"{\"name\":\"a\",\"grid\":[2,3,4]}", "a.1.2.3", 23},
        {"{\"name\":\"a\",\"grid\":[2,0,4]}", "a.0.5.3", 23},
        {"{\"name\":5,\"grid\":{}}", "", 23},
    };
    char uid[HTH_FACT_TEXT];
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        json_t *layer = json_loads(cases[i].layer, 0, NULL);
        hth_fact_uid(layer, cases[i].index, uid);
        assert_string_equal(uid, cases[i].uid);
        json_decref(layer);
    }
}

/* Every current figure of the page is the run.json's. */
TEST(test_tables_have_the_figures)
{
    static const char *const texts[] = {
        "<h1>fashion</h1>",
        "<th scope=\"row\">step</th><td>1,290 of 2,000, 64.5 %, 1.9 h left</td>",
        "<td>55.1 samples/s, 137 rows/s</td>",
        "<th scope=\"row\">ffn1</th><td>16</td><td>13</td><td>1</td>"
        "<td>ffn1.3.0, ffn1.3.1, ffn1.3.3</td>",
        "<th scope=\"row\">09d1c2aa</th><td>trainer</td><td>22.6 "
        "samples/s</td><td>1,291</td><td></td>"
        "<td>with 2 others</td><td>0.9.0</td>",
        "<th scope=\"row\">red heart</th><td><img class=\"drawing d0\" src=\"drawings.png?1200\" "
        "alt=\"drawing: red heart\"></td>",
        "<img class=\"drawing d1\" src=\"drawings.png?1200\" alt=\"drawing: blue "
        "&#60;heart&#62;\">",
        "<td>1000</td><td>0.5123</td><td>0.8312</td><td></td>",
        "<td>2026-11-27 08:58 UTC</td><td>node 0badf00d left</td>",
    };
    (void)state;
    json_t *run = golden();
    /* The word by which an average is told is that of those who average. */
    const json_t *average =
        json_object_get(json_array_get(json_object_get(run, "peers"), 0), "average");
    assert_string_equal(hth_fact_text(average, "reason"), hth_avg_reason_name(HTH_AVG_OK));
    char *html = hth_site_html(run, true);
    for (size_t i = 0; i < HTH_ARRAY_LEN(texts); i++) {
        if (strstr(html, texts[i]) == NULL)
            fail_msg("no '%s' in %s", texts[i], html);
    }
    hth_free(html);
    json_decref(run);
}

/* ---- strangers ----------------------------------------------------------------------------- */

TEST(test_texts_are_inert)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"<img src=x onerror='a(\"b\")'>&amp;",
         "&#60;img src=x onerror=&#39;a(&#34;b&#34;)&#39;&#62;&#38;amp;"},
        {"a\x01\t\x1b[31m\x7f", "a\ufffd\ufffd\ufffd[31m\ufffd"},
        {"\u202egnp.exe\u2066\u200f\ufeff", "\ufffdgnp.exe\ufffd\ufffd\ufffd"},
        {"\u2028\u061c\U000e0041", "\ufffd\ufffd\ufffd"},
        {"Zoë 李 \U0001f525", "Zoë 李 \U0001f525"},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        json_t *run = golden();
        json_object_set_new(run, "run", json_string(cases[i].text));
        json_object_set_new(run, "trouble", json_string(cases[i].text));
        json_t *gallery = json_object_get(run, "gallery"), *item = json_object();
        json_object_set_new(gallery, "picture", json_string("//evil/x.png"));
        json_object_set_new(item, "prompt", json_string(cases[i].text));
        json_object_set_new(item, "text", json_string(cases[i].text));
        json_array_append_new(json_object_get(gallery, "items"), item);
        char *html = hth_site_html(run, true);
        char *title = hth_asprintf("<h1>%s</h1>", cases[i].shown);
        char *cell = hth_asprintf("<th scope=\"row\">trouble</th><td>%s</td>", cases[i].shown);
        char *answer = hth_asprintf("<tr><th scope=\"row\">%s</th><td>%s</td></tr>", cases[i].shown,
                                    cases[i].shown);
        if (strstr(html, title) == NULL || strstr(html, cell) == NULL ||
            strstr(html, answer) == NULL)
            fail_msg("no '%s' in %s", title, html);
        assert_null(strstr(html, "evil"));
        hth_free(answer);
        hth_free(cell);
        hth_free(title);
        hth_free(html);
        json_decref(run);
    }
}

TEST(test_any_json_is_a_page)
{
    static const char *const runs[] = {
        "null", "[]", "5", "{}",
        "{\"peers\":[1,null,{}],\"layers\":[[],{}],"
        "\"events\":{},\"tests\":{\"step\":[1,2],\"loss\":3},\"test\":7}"};
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(runs); i++) {
        json_t *run = json_loads(runs[i], JSON_DECODE_ANY, NULL);
        char *html = hth_site_html(run, false);
        assert_non_null(strstr(html, "<h1>a run</h1>"));
        assert_string_equal(html + strlen(html) - 8, "</html>\n");
        hth_free(html);
        json_decref(run);
    }
}
