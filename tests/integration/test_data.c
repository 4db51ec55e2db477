/* SPDX-License-Identifier: Apache-2.0 */
/* test_data.c: hearth data makes sets of a person's files, shows them, and says what is wrong. */
#include "integration/place.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "core/blob.h"
#include "data/picture.h"

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

static void a_folder_becomes_a_set_and_a_sheet(void **state)
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

static void a_text_becomes_a_set(void **state)
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
    place_end(p);
}

static void wrong_use_is_explained(void **state)
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
    /* It is no fault of a network, which code 4 would mean. */
    assert_int_equal(mkdir(place_path(p, "empty"), 0700), 0);
    assert_int_equal(
        RUN(p, "none", "data", "folder", place_path(p, "empty"), "--out", place_path(p, "o")), 1);
    place_end(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_folder_becomes_a_set_and_a_sheet, place_setup,
                                        place_teardown),
        cmocka_unit_test_setup_teardown(a_text_becomes_a_set, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(wrong_use_is_explained, place_setup, place_teardown),
    };
    return PLACE_RUN_AT_ONCE(tests);
}
