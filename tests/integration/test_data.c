/* SPDX-License-Identifier: Apache-2.0 */
/* test_data.c: hearth data makes sets of a person's files, shows them, and says what is wrong. */
#define _DEFAULT_SOURCE /* strsep */
#include "integration/place.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/blob.h"
#include "data/picture.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

static void put_picture(struct place *p, const char *name, uint8_t grey)
{
    uint8_t rgb[12 * 10 * 3];
    struct hth_blob *png;
    memset(rgb, grey, sizeof(rgb));
    assert_ok(hth_picture_png(rgb, 12, 10, &png));
    place_write(p, name, png->data, png->size);
    hth_blob_unref(png);
}

static void put_text(struct place *p, const char *name, const char *text)
{
    place_write(p, name, text, strlen(text));
}

PLACE_TEST(a_folder_becomes_a_set_and_a_sheet)
{
    struct place *p = *state;
    const char *in = place_path(p, "in"), *out = place_path(p, "out");
    assert_int_equal(mkdir(in, 0700), 0);
    for (int i = 0; i < 9; i++) {
        put_picture(p, place_text(p, "in/p%d.png", i), (uint8_t)i);
        put_text(p, place_text(p, "in/p%d.txt", i), place_text(p, "grey number %d", i));
    }
    put_text(p, "in/p3.txt", "");
    put_text(p, "in/p4.png", "no picture");
    struct proc *make =
        START(p, "make", "data", "folder", in, "--out", out, "--size", "8", "--test", "0.5");
    assert_int_equal(proc_wait(make), 0);
    proc_must_say(make, "skipped 1 (caption too short), the first: p3");
    proc_must_say(make, "skipped 1 (broken picture), the first: p4: neither PNG nor JPEG");
    struct proc *show = START(p, "show", "data", "show", out, "--out", place_path(p, "sheet.png"));
    assert_int_equal(proc_wait(show), 0);
    proc_must_say(show, "skipped 1: broken picture");
    proc_must_say(show, "test    1  grey number");
    size_t len;
    char *png = place_read(place_path(p, "sheet.png"), &len);
    struct hth_picture sheet;
    assert_ok(hth_picture_decode("sheet", (uint8_t *)png, len, &sheet, NULL));
    assert_int_equal(sheet.width, 8 * (96 + 4) + 4);
    hth_picture_clear(&sheet);
    free(png);

    const char *codes = place_path(p, "codes");
    struct proc *code = START(p, "code", "data", "codes", out, "--out", codes, "--codes", "4",
                              "--steps", "3", "--copies", "2");
    assert_int_equal(proc_wait(code), 0);
    proc_must_say(code, "train: PSNR ");
    proc_must_say(code, "4 of 4 codes used");
    assert_int_equal(
        RUN(p, "showcodes", "data", "show", codes, "--out", place_path(p, "codes.png")), 0);
    assert_true(place_exists(p, "codes.png"));

    struct proc *again = START(p, "again", "data", "folder", in, "--out", out);
    assert_int_not_equal(proc_wait(again), 0);
    proc_must_say(again, "has a data set already: name another folder, or remove it");
    place_end(p);
}

PLACE_TEST(a_text_becomes_a_set)
{
    struct place *p = *state;
    put_text(p, "a.txt", "In the beginning\n\nwas the word.\n");
    put_text(p, "b.jsonl", "{\"text\":\"a row\"}\nnone\n");
    struct proc *make =
        START(p, "make", "data", "text", place_path(p, "a.txt"), place_path(p, "b.jsonl"), "--out",
              place_path(p, "out"), "--test", "0");
    assert_int_equal(proc_wait(make), 0);
    proc_must_say(make, "text, 2 samples for training, 0 held out");
    proc_must_say(make, "skipped 1 (row is no JSON object), the first: b.jsonl:2:");
    assert_int_equal(RUN(p, "show", "data", "show", place_path(p, "out")), 0);
    struct proc *sheet =
        START(p, "sheet", "data", "show", place_path(p, "out"), "--out", place_path(p, "a.png"));
    assert_int_equal(proc_wait(sheet), 2);
    proc_must_say(sheet, "a set of text has no pictures to draw: leave out --out");
    place_end(p);
}

/* Two classes, by captions and by folders. */
static void make_sets(struct place *p)
{
    char poem[20000] = "";
    assert_int_equal(mkdir(place_path(p, "pictures"), 0700), 0);
    assert_int_equal(mkdir(place_path(p, "pictures/dark"), 0700), 0);
    assert_int_equal(mkdir(place_path(p, "pictures/light"), 0700), 0);
    for (int i = 0; i < 40; i++)
        put_picture(p, place_text(p, "pictures/%s/%d.png", i % 2 ? "dark" : "light", i),
                    (uint8_t)(i % 2 ? i : 255 - i));
    for (int i = 0; i < 300; i++)
        snprintf(poem + strlen(poem), sizeof(poem) - strlen(poem),
                 "the %d words of line %d, and a few more of them\n%s", i % 7, i,
                 i % 20 == 0 ? "\n" : "");
    put_text(p, "poem.txt", poem);
    assert_int_equal(RUN(p, "folder", "data", "folder", place_path(p, "pictures"), "--out",
                         place_path(p, "classifier"), "--size", "8", "--test", "0.2"),
                     0);
    assert_int_equal(RUN(p, "text", "data", "text", place_path(p, "poem.txt"), "--out",
                         place_path(p, "lm"), "--test", "0.3"),
                     0);
    assert_int_equal(RUN(p, "codes", "data", "codes", place_path(p, "classifier"), "--out",
                         place_path(p, "picture"), "--codes", "4", "--steps", "0"),
                     0);
}

/* The run file that hearth new writes runs as it is, learns from the set, and goes on from a
 * checkpoint. */
PLACE_TEST(a_new_run_file_trains)
{
    struct place *p = *state;
    static const struct {
        const char *kind, *name, *flag, *say, *test, *has;
    } cases[] = {
        {"classifier", "classifier", "--minutes=10", "samples/s", "% right", "kind: classifier"},
        {"lm", "lm", "--minutes=10", "experts of", "bits per token", "kind: lm"},
        {"lm", "masked", "--masked", "experts of", "bits per token", "objective: masked"},
        {"picture", "picture", "--minutes=10", "the trunk: ", "bits per code", "kind: picture"}};
    make_sets(p);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        const char *kind = cases[i].kind, *data = place_path(p, kind), *name = cases[i].name;
        const char *run = place_path(p, place_text(p, "%s.yaml", name));
        const char *dir = place_path(p, place_text(p, "%s-run", name));
        struct proc *make = START(p, place_text(p, "new-%s", name), "new", kind, "--data", data,
                                  "--out", run, "--name", name, cases[i].flag);
        assert_int_equal(proc_wait(make), 0);
        proc_must_say(make, "samples/s on this machine");
        proc_must_say(make, place_text(p, "next: hearth train --run %s --local", run));
        proc_must_say(make, cases[i].say);
        char *text = place_read(run, NULL);
        assert_non_null(strstr(text, cases[i].has));
        free(text);
        struct proc *train = START(p, place_text(p, "train-%s", name), "train", "--run", run,
                                   "--local", "--dir", dir, "--steps", "2");
        assert_int_equal(proc_wait(train), 0);
        proc_must_say(train, cases[i].test);
        train = START(p, place_text(p, "again-%s", name), "train", "--run", run, "--local", "--dir",
                      dir, "--steps", "3", "--resume");
        assert_int_equal(proc_wait(train), 0);
        proc_must_say(train, "from update 2");
        assert_int_equal(
            RUN(p, place_text(p, "over-%s", name), "new", kind, "--data", data, "--out", run), 2);
    }
    assert_int_equal(RUN(p, "fill", "fill", "the [MASK]", "--dir", place_path(p, "masked-run")), 0);
    struct proc *odd = START(p, "oddmask", "new", "picture", "--masked", "--data",
                             place_path(p, "picture"), "--out", place_path(p, "x.yaml"));
    assert_int_equal(proc_wait(odd), 2);
    proc_must_say(odd, "--masked is for an lm");
    /* Other words than the run file's. */
    const char *other = place_path(p, "other");
    put_text(p, "other.txt", "quite another text\n\nwith other words\n");
    assert_int_equal(RUN(p, "othertext", "data", "text", place_path(p, "other.txt"), "--out", other,
                         "--words-min", "1"),
                     0);
    struct proc *train = START(p, "otherwords", "train", "--run", place_path(p, "lm.yaml"),
                               "--local", "--data", other, "--dir", place_path(p, "otherrun"));
    assert_int_equal(proc_wait(train), 3);
    proc_must_say(train, "other/words.json: its SHA-256 is ");
    struct proc *wrong = START(p, "wrongkind", "new", "picture", "--data", place_path(p, "lm"),
                               "--out", place_path(p, "x.yaml"));
    assert_int_equal(proc_wait(wrong), 2);
    proc_must_say(wrong, "hearth data codes makes one");
    assert_false(place_exists(p, "x.yaml"));
    place_end(p);
}

/* More arguments for a command of the page, so that it takes a second. */
static const char *hurry(const char *command)
{
    static const char *const flags[][2] = {{"hearth train ", " --steps 2"},
                                           {"hearth write ", " --tokens 4"},
                                           {"hearth data codes ", " --codes 4 --steps 3"},
                                           {"hearth data text ", " --test 0.3"},
                                           {"hearth data folder ", " --test 0.3 --size 8"}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(flags); i++)
        if (strncmp(command, flags[i][0], strlen(flags[i][0])) == 0)
            return flags[i][1];
    return "";
}

/* Files that the page takes for granted. */
static void put_page_files(struct place *p)
{
    static const char *const folders[] = {"pictures", "animals", "animals/cat", "animals/dog"};
    char book[9000] = "";
    for (size_t i = 0; i < HTH_ARRAY_LEN(folders); i++)
        assert_int_equal(mkdir(place_path(p, folders[i]), 0700), 0);
    for (int i = 0; i < 30; i++) {
        put_picture(p, place_text(p, "animals/%s/%d.png", i % 2 ? "cat" : "dog", i), (uint8_t)i);
        put_picture(p, place_text(p, "pictures/%d.png", i), (uint8_t)(4 * i));
        put_text(p, place_text(p, "pictures/%d.txt", i), place_text(p, "grey of %d", 4 * i));
    }
    while (strlen(book) + 60 < sizeof(book))
        strcat(book, "in the beginning was the word, again and again\n\n");
    put_text(p, "book.txt", book);
}

/* Every command of docs/own-data.md that needs no second machine runs, in the page's order. */
PLACE_TEST(the_commands_of_the_page_run)
{
    struct place *p = *state;
    size_t len, ran = 0;
    char *page = place_read(HTH_TEST_SOURCES "/docs/own-data.md", &len), *rest = page, *line;
    put_page_files(p);
    while ((line = strsep(&rest, "\n")) != NULL) {
        if (strncmp(line, "    hearth ", 11) != 0 || strstr(line, "serve") || strstr(line, "--own"))
            continue;
        const char *script = place_text(p, "cd '%s' && hearth() { '%s' \"$@\"; } && %s%s", p->root,
                                        HTH_TEST_PROGRAM, line + 4, hurry(line + 4));
        const char *args[] = {"-c", script, NULL};
        if (proc_wait(place_start_program(p, "/bin/sh", place_text(p, "line%zu", ran), args)) != 0)
            fail_msg("docs/own-data.md: %s", line);
        ran++;
    }
    assert_true(ran >= 15);
    assert_true(place_exists(p, "confusion.png"));
    free(page);
    place_end(p);
}

PLACE_TEST(wrong_use_is_explained)
{
    struct place *p = *state;
    static const struct {
        const char *args[4], *say;
    } cases[] = {
        {{"songs"}, "'songs' can't be made; expected one of: emoji, fashion, folder, text"},
        {{"folder", "x"}, "--out DIR is missing"},
        {{"show"}, "show takes a folder that hearth data made"},
        {{"codes", "x", "y"}, "codes takes a folder that hearth data made"},
        {{"text", "x", "--test", "0.6"}, "--test '0.6': expected a number from 0 to 0.5"},
        {{"text", "x", "--drop", "3"}, "--drop '3': expected FIELD=VALUE"},
        {{"show", "/nowhere"}, "/nowhere/data.json: no such file"},
        {{"text", "/nowhere", "--out", "/tmp/x"}, "/nowhere: no such file"},
        {{"folder", "/nowhere", "--out", "/tmp/x"}, "/nowhere: No such file"},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        const char *const *a = cases[i].args;
        struct proc *proc =
            place_start(p, place_text(p, "case%zu", i),
                        (const char *const[]){"data", a[0], a[1], a[2], a[3], NULL});
        assert_int_not_equal(proc_wait(proc), 0);
        proc_must_say(proc, cases[i].say);
    }
    const char *big = place_path(p, "big.txt");
    put_text(p, "big.txt", "x");
    assert_int_equal(truncate(big, (1ll << 30) + 1), 0);
    struct proc *huge = START(p, "huge", "data", "text", big, "--out", place_path(p, "o"));
    assert_int_not_equal(proc_wait(huge), 0);
    proc_must_say(huge, "big.txt: more than 1073741824 bytes: split it");
    /* It is no fault of a network, which code 4 would mean. */
    assert_int_equal(mkdir(place_path(p, "empty"), 0700), 0);
    assert_int_equal(
        RUN(p, "none", "data", "folder", place_path(p, "empty"), "--out", place_path(p, "o")), 1);
    place_end(p);
}
