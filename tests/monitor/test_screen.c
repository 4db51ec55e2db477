/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_screen.c: frames have the size of their terminal, show the run, and keep strangers' texts
 * inert.
 */
#include "core/mem.h"
#include "monitor/screen.h"
#include "support/suite.h"

#include <stdlib.h>

static json_t *golden(void)
{
    json_t *run = json_load_file(HTH_TEST_GOLDEN, 0, NULL);
    assert_non_null(run);
    return run;
}

/* ---- frames as a terminal reads them ------------------------------------------------------- */

/* Skips one of the frame's own codes, ESC [ digits ; m. */
static const char *skip_code(const char *c)
{
    assert_int_equal(c[1], '[');
    c += 2 + strspn(c + 2, "0123456789;");
    assert_int_equal(*c, 'm');
    return c + 1;
}

/* Checks the size, and that all characters have a shape. Returns the cells of the widest line. */
static unsigned check_frame(const char *frame, const struct hth_screen *s)
{
    unsigned lines = 1, cells = 0, widest = 0;
    for (const char *c = frame; *c != '\0';) {
        if (*c == '\n') {
            lines++;
            cells = 0;
            c++;
        } else if (*c == '\x1b') {
            assert_true(s->color);
            c = skip_code(c);
        } else if ((*c & 0x80) != 0) { /* rules and dots: three bytes each, in UTF-8 only */
            assert_true(s->utf8);
            assert_int_equal(c[0] & 0xff, 0xe2);
            assert_true((c[1] & 0xc0) == 0x80 && (c[2] & 0xc0) == 0x80);
            c += 3;
            cells++;
        } else {
            assert_in_range(*c, ' ', '~');
            c++;
            cells++;
        }
        widest = HTH_MAX(widest, cells);
    }
    if (lines != s->rows || widest > s->columns)
        fail_msg("%u lines of at most %u cells in a terminal of %u x %u:\n%s", lines, widest,
                 s->columns, s->rows, frame);
    return widest;
}

TEST(test_frames_fit_the_terminal)
{
    static const unsigned columns[] = {1, 20, 39, 40, 61, 80, 132, 999, 1000, 70000};
    static const unsigned rows[] = {1, 11, 12, 24, 61, 300};
    (void)state;
    json_t *run = golden();
    for (size_t i = 0; i < HTH_ARRAY_LEN(columns) * HTH_ARRAY_LEN(rows) * 24; i++) {
        struct hth_screen s = {.columns = columns[i / 24 % HTH_ARRAY_LEN(columns)],
                               .rows = rows[i / 24 / HTH_ARRAY_LEN(columns)],
                               .color = i % 2 != 0,
                               .utf8 = i / 2 % 2 != 0,
                               .view = (enum hth_screen_view)(i / 4 % 6),
                               .against = (unsigned)i % 3,
                               .scroll = 1000000};
        if (HTH_TEST_FEW && i % 7 != 0)
            continue;
        char *frame = hth_screen_frame(run, &s);
        check_frame(frame, &s);
        assert_true(s.scroll < 1000 || s.columns < HTH_SCREEN_COLUMNS_MIN ||
                    s.rows < HTH_SCREEN_ROWS_MIN || s.view < HTH_SCREEN_EXPERTS ||
                    s.view == HTH_SCREEN_KEYS);
        hth_free(frame);
    }
    json_decref(run);
}

static void must_show(const char *frame, const char *text)
{
    if (strstr(frame, text) == NULL)
        fail_msg("no '%s' in\n%s", text, frame);
}

TEST(test_small_terminals_are_refused)
{
    struct hth_screen s = {.columns = 20, .rows = 24};
    (void)state;
    json_t *run = golden();
    char *frame = hth_screen_frame(run, &s);
    must_show(frame, "20 columns, 24 rows:\n 40 and 12 are neede\nd");
    hth_free(frame);
    json_decref(run);
}

/* ---- what is shown ------------------------------------------------------------------------- */

TEST(test_views_show_the_run)
{
    static const struct {
        enum hth_screen_view view;
        const char *text;
    } cases[] = {
        {HTH_SCREEN_ALL, "fashion"},
        {HTH_SCREEN_ALL, "training, 2026-11-27 09:00 UTC"},
        {HTH_SCREEN_ALL, "step 1,290 of 2,000, 64.5 %, 1.9 h left"},
        {HTH_SCREEN_ALL, "loss 0.4897   test loss 0.5123, 83.1 % right, at step 1,000"},
        {HTH_SCREEN_ALL, "55.1 samples/s, 137 rows/s   trainers 3, hosts 4, helpers 1"},
        {HTH_SCREEN_ALL, "experts: 4 of 32 missing"},
        {HTH_SCREEN_ALL, "peers: 4 of 10 (p, arrows)"},
        {HTH_SCREEN_ALL, "11-27 08:58  node 0badf00d left"},
        {HTH_SCREEN_LOSS, "loss against steps --o-test -"},
        {HTH_SCREEN_EXPERTS, "ffn0 15/16  ffn1 13/16"},
        {HTH_SCREEN_EXPERTS,
         " 1111        1111\n 1121        1111\n 1111        1211\n 111X        XX1X"},
        {HTH_SCREEN_PEERS, "09d1c2aa   trainer                     22.6 samples/s      1,291"},
        {HTH_SCREEN_PEERS, "a1b2c3d4   host: silent for 41 s"},
        {HTH_SCREEN_EVENTS, "11-27 05:00  trainer 5b1f0a77 joined"},
        {HTH_SCREEN_KEYS, "q, Ctrl-C             end; the run goes on"},
    };
    (void)state;
    json_t *run = golden();
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_screen s = {.columns = 80, .rows = 24, .view = cases[i].view};
        char *frame = hth_screen_frame(run, &s);
        must_show(frame, cases[i].text);
        hth_free(frame);
    }
    char *line = hth_screen_line(run);
    assert_string_equal(
        line, "2026-11-27 09:00 UTC: training; step 1,290 of 2,000, 64.5 %, 1.9 h left; "
              "loss 0.4897; test 0.5123, 83.1 % right, at step 1,000; 55.1 samples/s, "
              "137 rows/s; trainers 3, hosts 4, helpers 1; experts 28 of 32 served, 4 missing");
    hth_free(line);
    json_decref(run);
}

/* From (0, 3) over (4, 2) to (8, 1), in 40 columns and 6 rows: column 0 in row 5, 20 in 3 (which is
 * 2.5), 39 in 0, and between them the nearest row. */
TEST(test_curve_is_drawn)
{
    static const char expected[] = "3       *****\n"
                                   "             **********\n"
                                   "                       *********\n"
                                   "                                ******\n"
                                   "                                      ******\n"
                                   "1                                           ***o\n"
                                   "        0                                      8\n";
    struct hth_screen s = {.columns = 49, .rows = 13, .view = HTH_SCREEN_LOSS};
    (void)state;
    json_t *run = json_loads("{\"history\":{\"t\":[10,20,30],\"step\":[0,4,8],\"loss\":[3,2,1]},"
                             "\"tests\":{\"t\":[30],\"step\":[8],\"loss\":[1]}}",
                             0, NULL);
    char *frame = hth_screen_frame(run, &s);
    must_show(frame, expected);
    hth_free(frame);
    /* In braille: the same ends, in the first and in the last column. */
    s.utf8 = true;
    frame = hth_screen_frame(run, &s);
    must_show(frame, "3       \u2809");
    must_show(frame, "o\n        0");
    hth_free(frame);
    json_decref(run);
}

TEST(test_wide_grids_are_condensed)
{
    struct hth_screen s = {.columns = 80, .rows = 24};
    json_t *layer = json_loads(
        "{\"name\":\"ffn0\",\"grid\":[100,100],\"places\":10000,\"served\":9999}", 0, NULL);
    json_t *replicas = json_array(), *run = json_object(), *layers = json_array();
    (void)state;
    for (int i = 0; i < 10000; i++)
        json_array_append_new(replicas, json_integer(i == 9999 ? 0 : i < 5000 ? 2 : 12));
    json_object_set_new(layer, "replicas", replicas);
    json_array_append_new(layers, layer);
    json_object_set_new(run, "layers", layers);
    char *frame = hth_screen_frame(run, &s);
    must_show(frame, "ffn0 9999/10000   22222222+++++++X");
    hth_free(frame);
    s.view = HTH_SCREEN_EXPERTS;
    s.scroll = 1000;
    frame = hth_screen_frame(run, &s);
    must_show(frame, "++++X");
    assert_true(s.scroll > 100 && s.scroll < 200);
    check_frame(frame, &s);
    hth_free(frame);
    json_decref(run);
}

/* ---- strangers ----------------------------------------------------------------------------- */

TEST(test_texts_are_inert)
{
    static const char evil[] = "a\x1b]0;title\x07\x1b[2J\u202eb\r\n\x9b"
                               "31m\xc2\x9b";
    char *huge = hth_calloc(65537, 1);
    (void)state;
    memset(huge, 'W', 65536);
    for (int i = 0; i < 12; i++) {
        json_t *run = golden(), *text = i % 2 != 0 ? json_string(huge) : json_string_nocheck(evil);
        json_object_set(run, "run", text);
        json_object_set(run, "trouble", text);
        json_object_set(json_array_get(json_object_get(run, "peers"), 0), "version", text);
        json_object_set(json_array_get(json_object_get(run, "peers"), 0), "name", text);
        json_object_set(json_array_get(json_object_get(run, "layers"), 0), "name", text);
        json_object_set_new(json_array_get(json_object_get(run, "events"), 7), "text", text);
        struct hth_screen s = {.columns = 80, .rows = 24, .view = (enum hth_screen_view)(i / 2)};
        char *frame = hth_screen_frame(run, &s), *line = hth_screen_line(run);
        check_frame(frame, &s);
        assert_null(strpbrk(line, "\x1b\n\r"));
        hth_free(line);
        hth_free(frame);
        json_decref(run);
    }
    hth_free(huge);
}

/* ---- keys ---------------------------------------------------------------------------------- */

TEST(test_keys)
{
    static const struct {
        const char *keys; /* ESC stands before a letter that ends a sequence */
        enum hth_screen_view view;
        unsigned against, scroll;
    } cases[] = {
        {"", HTH_SCREEN_ALL, 0, 0},
        {"p", HTH_SCREEN_PEERS, 0, 0},
        {"pjjk", HTH_SCREEN_PEERS, 0, 1},
        {"p\x1b"
         "B\x1b"
         "B\x1b"
         "A",
         HTH_SCREEN_PEERS, 0, 1},
        {"p kkk", HTH_SCREEN_PEERS, 0, 13},
        {"p  b", HTH_SCREEN_PEERS, 0, 16},
        {"pk", HTH_SCREEN_PEERS, 0, 0},
        {"pjv", HTH_SCREEN_EVENTS, 0, 0},
        {"xx", HTH_SCREEN_ALL, 2, 0},
        {"xxx", HTH_SCREEN_ALL, 0, 0},
        {"?", HTH_SCREEN_KEYS, 0, 0},
        {"?a", HTH_SCREEN_ALL, 0, 0},
        {"e", HTH_SCREEN_EXPERTS, 0, 0},
        {"l", HTH_SCREEN_LOSS, 0, 0},
        {"p\x1b"
         "5\x1b"
         "6",
         HTH_SCREEN_PEERS, 0, 16},
        {"pz!", HTH_SCREEN_PEERS, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_screen s = {.columns = 80, .rows = 24};
        for (const char *k = cases[i].keys; *k != '\0'; k++) {
            bool escape = *k == '\x1b';
            k += escape;
            assert_true(hth_screen_key(&s, *k, escape));
        }
        if (s.view != cases[i].view || s.against != cases[i].against || s.scroll != cases[i].scroll)
            fail_msg("case %zu: view %d, against %u, scroll %u", i, s.view, s.against, s.scroll);
    }
    struct hth_screen s = {.view = HTH_SCREEN_PEERS};
    assert_true(hth_screen_key(&s, '\x1b', false));
    assert_int_equal(s.view, HTH_SCREEN_ALL);
    assert_true(hth_screen_key(&s, 'q', true));
    assert_false(hth_screen_key(&s, 'q', false));
}
