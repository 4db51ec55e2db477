/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_export.c: a model that is exported, imported and exported again is the same files, goes on
 * learning, and gives the same logits in Python; and files that lie are refused.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"

#include "core/blob.h"
#include "data/picture.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <stdlib.h>
#include <unistd.h>

static const char *const model_files[] = {"model.safetensors", "config.json", "README.md",
                                          "run.yaml", "sha256sums"};

static void assert_same_models(struct place *p, const char *a, const char *b)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(model_files); i++) {
        size_t len_a, len_b;
        char *in_a = place_read(place_text(p, "%s/%s", place_path(p, a), model_files[i]), &len_a);
        char *in_b = place_read(place_text(p, "%s/%s", place_path(p, b), model_files[i]), &len_b);
        assert_non_null(in_a);
        assert_non_null(in_b);
        assert_int_equal(len_a, len_b);
        assert_memory_equal(in_a, in_b, len_a);
        free(in_a);
        free(in_b);
    }
}

static void train(struct toy *t, const char *dir)
{
    assert_int_equal(RUN(t->place, "local", "train", "--local", "--run", t->run, "--threads", "1",
                         "--dir", place_path(t->place, dir), "--steps", "20"),
                     0);
}

static int export_to(struct place *p, const char *dir, const char *out, const char *dtype)
{
    return RUN(p, "export", "export", "--dir", place_path(p, dir), "--out", place_path(p, out),
               "--dtype", dtype);
}

PLACE_TEST(test_export_import_export_gives_the_same_files)
{
    static const char *const dtypes[] = {"fp32", "bf16"};
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    train(&t, "run");
    for (size_t i = 0; i < HTH_ARRAY_LEN(dtypes); i++) {
        const char *dir = place_text(p, "again%zu", i);
        assert_int_equal(export_to(p, "run", "model", dtypes[i]), 0); /* the second replaces it */
        assert_int_equal(
            RUN(p, "import", "import", place_path(p, "model"), "--dir", place_path(p, dir)), 0);
        assert_int_equal(place_count(p, place_text(p, "%s/experts", dir), ".safetensors"), 8);
        assert_int_equal(export_to(p, dir, "model2", dtypes[i]), 0);
        assert_same_models(p, "model", "model2");
    }
    struct proc *more =
        START(p, "more", "train", "--local", "--resume", "--run", place_path(p, "again0/run.yaml"),
              "--dir", place_path(p, "again0"), "--threads", "1", "--steps", "25");
    assert_int_equal(proc_wait(more), 0);
    proc_must_say(more, "again0/trunk.safetensors from update 20");
    proc_must_say(more, "(update 25)");
    place_end(p);
}

/* Experts that learnt on hosts come from there; those of a host that left are missing. */
PLACE_TEST(test_experts_are_fetched_from_their_hosts)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 30);
    toy_start_node(&t);
    toy_start_host(&t, 0);
    toy_start_host(&t, 1);
    toy_start_trainer(&t, "trainer", NULL);
    assert_int_equal(proc_wait(t.trainer), 0);
    const char *dir = place_path(p, "trainer");
    assert_int_equal(export_to(p, "trainer", "none", "fp32"), 1);
    struct proc *all =
        START(p, "all", "export", "--dir", dir, "--out", place_path(p, "all"), "--join", t.addr[1]);
    assert_int_equal(proc_wait(all), 0);
    proc_must_say(all, "step 30 of run 'toy'");
    proc_must_say(all, " 8 experts");
    assert_int_equal(
        RUN(p, "import", "import", place_path(p, "all"), "--dir", place_path(p, "got")), 0);
    assert_int_equal(export_to(p, "got", "again", "fp32"), 0);
    assert_same_models(p, "all", "again");
    assert_int_equal(proc_stop(t.host[1]), 0);
    struct proc *half = START(p, "half", "export", "--dir", dir, "--out", place_path(p, "half"),
                              "--join", t.addr[1], "--wait", "2s");
    assert_int_equal(proc_wait(half), 0);
    proc_must_say(half, "ffn0.1.3: no host has it");
    proc_must_say(half, "4 of 8 experts were found; the model will do without the others");
    place_end(p);
}

/* A shell command in the place, with hearth in reach; it must end with that code. */
static struct proc *sh(struct place *p, const char *command, int code)
{
    static unsigned number;
    static char script[2048];
    snprintf(script, sizeof(script), "cd '%s' && hearth() { '%s' \"$@\"; } && %s", p->root,
             HTH_TEST_PROGRAM, command);
    struct proc *proc = place_start_program(p, "/bin/sh", place_text(p, "sh%u", number++),
                                            (const char *const[]){"-c", script, NULL});
    if (proc_wait(proc) != code)
        fail_msg("%s: not %d", command, code);
    return proc;
}

/* A trainer leaves its lines in its folder, a resumed one adds to them, and they are drawn. */
PLACE_TEST(test_the_loss_of_runs_is_drawn)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    train(&t, "run");
    const char *dir = place_path(p, "run"), *out = place_path(p, "it's.svg");
    assert_int_equal(RUN(p, "more", "train", "--local", "--resume", "--run", t.run, "--threads",
                         "1", "--dir", dir, "--steps", "25"),
                     0);
    struct proc *plot =
        START(p, "plot", "plot", dir, place_path(p, "run/metrics.jsonl"), "--out", out);
    int code = proc_wait(plot);
    proc_must_say(plot, place_text(p, "%s: loss ", dir));
    proc_must_say(plot, " at step 25, test ");
    if (code != 0) {
        proc_must_say(plot, "gnuplot is missing");
        return;
    }
    char *svg = place_read(out, NULL);
    assert_non_null(strstr(svg, "<svg"));
    assert_non_null(strstr(svg, "samples"));
    assert_non_null(strstr(svg, place_text(p, "%s, test", dir)));
    free(svg);
    /* Nothing is left of a picture that could not be drawn. */
    const char *lost = place_path(p, "lost.svg");
    assert_int_equal(RUN(p, "noruns", "plot", p->root, "--out", lost), 1);
    sh(p, "mkdir none && PATH=$PWD/none hearth plot run --out lost.svg", 1);
    assert_int_equal(place_count(p, ".", "lost.svg"), 0);
    struct proc *none = START(p, "none", "plot", p->root);
    assert_int_equal(proc_wait(none), 1);
    proc_must_say(none, "/metrics.jsonl: no such file: expected a trainer's folder");
    place_end(p);
}

/* ---- words and code book ------------------------------------------------------------------- */

#define LM_RUN                                                                                     \
    "run: words\nseed: 1\ndata: {kind: set, path: set}\noptimizer: {kind: adamw, rate: 0.01}\n"    \
    "model: {kind: lm, expert: none, dim: 32, layers: 2, heads: 2, context: 16, vocab: 266}\n"     \
    "train: {rows: 8, flights: 1, steps: 20, eval_every: 10, eval_rows: 8, checkpoint_every: "     \
    "10}\n"
#define PICTURE_RUN                                                                                \
    "run: grey\nseed: 1\ndata: {kind: set, path: set}\n"                                           \
    "model: {kind: picture, expert: none, dim: 32, layers: 2, heads: 2, vocab: 260, text: 4, "     \
    "height: 2, width: 2, codes: 4}\n"                                                             \
    "train: {rows: 8, flights: 1, steps: 2}\n"

static void put_text(struct place *p, const char *name, const char *text)
{
    place_write(p, name, text, strlen(text));
}

/* A model that was imported has its words with it, whatever lies at the run file's path. */
PLACE_TEST(test_words_travel_with_a_model)
{
    struct place *p = *state;
    char text[9000] = "";
    for (int i = 0; i < 150; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text),
                 "the words of line %d, and a few more\n%s", i, i % 3 == 0 ? "\n" : "");
    put_text(p, "a.txt", text);
    put_text(p, "b.txt", "quite another text\n\nof other words, quite another text\n");
    put_text(p, "run.yaml", LM_RUN);
    sh(p, "hearth data text a.txt --out set --test 0.3", 0);
    sh(p, "hearth data text b.txt --out other --test 0", 0);
    sh(p, "hearth train --local --run run.yaml --dir run --threads 1 --keep 2", 0);
    sh(p, "hearth write 'the words' --dir run --greedy --tokens 8 >a", 0);
    sh(p, "hearth export --dir run --out model && cmp set/words.json model/words.json", 0);
    proc_must_say(sh(p, "hearth export --dir run --out kept --checkpoint 10", 0), "step 10 of run");
    proc_must_say(sh(p, "hearth export --dir run --out none --checkpoint 7", 2),
                  "no checkpoint '7'; there are: last (20)");
    proc_must_say(sh(p, "hearth export --dir run --out none --data other", 1),
                  "its ids are of other words than those of other");
    sh(p, "hearth import model --dir got && mv set away && ! test -e none", 0);
    sh(p, "hearth write 'the words' --dir got --greedy --tokens 8 >b && cmp a b", 0);
    proc_must_say(sh(p, "hearth write the --dir got --data other", 1),
                  "of other words than those of other");
    sh(p, "mv other set && hearth write 'the words' --dir got --greedy --tokens 8 >b && cmp a b",
       0);
    sh(p, "hearth export --dir got --out model2 && diff -r model model2", 0);
    proc_must_say(sh(p, "hearth eval --dir got", 3), "'set' is no data set that the model can");
    /* A damaged one stops those alone that need its samples. */
    sh(p, "echo '{' >set/data.json", 0);
    sh(p, "hearth write 'the words' --dir got --greedy --tokens 8 >b && cmp a b", 0);
    proc_must_say(sh(p, "hearth eval --dir got", 3), "set/data.json:2:");
    proc_must_say(sh(p, "hearth write the --dir got --data set", 1), "set/data.json:2:");
    sh(p, "hearth eval away --dir got", 0);
    /* A new run begins with the words, too. */
    sh(p, "sed 's/run: words/run: more/; s/path: set/path: away/' run.yaml >more.yaml", 0);
    sh(p, "hearth import model --run more.yaml --dir more", 0);
    sh(p, "hearth train --local --resume --run more.yaml --dir more --threads 1 --steps 1", 0);
    place_end(p);
}

static void put_grey(struct place *p, int i)
{
    uint8_t rgb[8 * 8 * 3];
    struct hth_blob *png;
    memset(rgb, 6 * i, sizeof(rgb));
    assert_ok(hth_picture_png(rgb, 8, 8, &png));
    place_write(p, place_text(p, "in/%d.png", i), png->data, png->size);
    put_text(p, place_text(p, "in/%d.txt", i), place_text(p, "grey %d", i % 5));
    hth_blob_unref(png);
}

PLACE_TEST(test_a_code_book_travels_with_a_model)
{
    struct place *p = *state;
    sh(p, "mkdir in", 0);
    for (int i = 0; i < 40; i++)
        put_grey(p, i);
    put_text(p, "run.yaml", PICTURE_RUN);
    sh(p, "hearth data folder in --out pictures --size 8 --test 0.3", 0);
    sh(p, "hearth data codes pictures --out set --codes 4 --steps 3", 0);
    sh(p, "hearth train --local --run run.yaml --dir run --threads 1", 0);
    proc_must_say(sh(p, "hearth draw 'grey 3' --dir run -n 2 --out ./a.b/x", 0),
                  "./a.b/x-1 to ./a.b/x-2");
    sh(p, "hearth export --dir run --out model && hearth import model --dir got", 0);
    sh(p, "mv set away && hearth draw 'grey 3' --dir got -n 2 --out y.png", 0);
    sh(p, "cmp a.b/x-1 y-1.png && cmp a.b/x-2 y-2.png", 0);
    sh(p, "hearth export --dir got --out model2 && diff -r model model2", 0);
    proc_must_say(sh(p, "hearth draw --eval --dir got", 3), "'set' is no data set that the model");
    sh(p, "hearth draw --eval --dir got --data away --samples 2 --json", 0);
    /* A stranger's set of the same words and codes, but of smaller pictures. */
    sh(p, "sed -i 's/\"side\": *8/\"side\": 4/' away/data.json", 0);
    proc_must_say(sh(p, "hearth draw --eval --dir run --data away", 3),
                  "away: its samples are not 2 x 2 codes of the model's code book");
    sh(p, "hearth draw 'grey 3' --dir run --data away --out z.png && cmp a.b/x-1 z.png", 0);
    place_end(p);
}

PLACE_TEST(test_a_model_starts_another_run)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    train(&t, "run");
    assert_int_equal(export_to(p, "run", "model", "fp32"), 0);
    char *text = place_read(t.run, NULL), *name = strstr(text, "run: toy");
    memcpy(name, "run: new", 8);
    place_write(p, "new.yaml", text, strlen(text));
    free(text);
    struct proc *import = START(p, "import", "import", place_path(p, "model"), "--run",
                                place_path(p, "new.yaml"), "--dir", place_path(p, "new"));
    assert_int_equal(proc_wait(import), 0);
    proc_must_say(import, "run 'new' at step 0, 8 experts");
    struct proc *run =
        START(p, "new", "train", "--local", "--resume", "--run", place_path(p, "new.yaml"), "--dir",
              place_path(p, "new"), "--threads", "1", "--steps", "10");
    assert_int_equal(proc_wait(run), 0);
    proc_must_say(run, "(update 10)");
    place_end(p);
}

/* Files whose hashes are right, as a stranger's would be, and whose content is not. */
static void put_lie(struct place *p, const void *bytes, size_t len)
{
    static const char sums[] = "sha256sum model.safetensors >sha256sums";
    place_write(p, "lie/model.safetensors", bytes, len);
    struct proc *sum = place_start_program(
        p, "/bin/sh", "sum",
        (const char *const[]){"-c", place_text(p, "cd %s && %s", place_path(p, "lie"), sums),
                              NULL});
    assert_int_equal(proc_wait(sum), 0);
}

static void must_refuse(struct place *p, const char *what)
{
    struct proc *import =
        START(p, "import", "import", place_path(p, "lie"), "--dir", place_path(p, "got"));
    int code = proc_wait(import);
    assert_true(code == 1 || code == 3);
    proc_must_say(import, what);
    assert_false(place_exists(p, "got"));
    proc_forget(import);
}

PLACE_TEST(test_lies_are_refused)
{
    struct place *p = *state;
    struct toy t;
    size_t len;
    toy_init(&t, p, 100);
    train(&t, "run");
    assert_int_equal(export_to(p, "run", "lie", "fp32"), 0);
    char *good = place_read(place_path(p, "lie/model.safetensors"), &len);

    place_write(p, "lie/model.safetensors", good, len - 7);
    must_refuse(p, "model.safetensors is not the file that sha256sums lists: it was cut short");
    put_lie(p, good, len - 7);
    must_refuse(p, "model.safetensors: the data ends too early");
    put_lie(p, "\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
    must_refuse(p, "model.safetensors: larger than the limit");
    put_lie(p, "\x02\0\0\0\0\0\0\0{}", 10);
    must_refuse(p, "model.safetensors: it is not a model that hearth export wrote");
    char *shape = strstr(good + 8, "\"shape\":[784,32]");
    assert_non_null(shape);
    memcpy(shape, "\"shape\":[783,32]", 16);
    put_lie(p, good, len);
    must_refuse(p, "a tensor's shape or type is not the one declared");
    memcpy(shape, "\"shape\":[784,32]", 16);

    put_lie(p, good, len); /* and the model itself is accepted, but for another run file */
    char *text = place_read(t.run, NULL), *dim = strstr(text, "dim: 32");
    memcpy(dim, "dim: 16", 7);
    place_write(p, "other.yaml", text, strlen(text));
    struct proc *other = START(p, "other", "import", place_path(p, "lie"), "--run",
                               place_path(p, "other.yaml"), "--dir", place_path(p, "got"));
    assert_int_equal(proc_wait(other), 1);
    proc_must_say(other, "'input.weight' is not F32 or BF16 of shape [784, 16]: it is of another "
                         "model");
    assert_false(place_exists(p, "got"));
    free(text);
    free(good);

    struct proc *none = START(p, "none", "export", "--dir", place_path(p, "nothing"), "--out",
                              place_path(p, "out"));
    assert_int_equal(proc_wait(none), 1);
    proc_must_say(none, "/nothing/trunk.safetensors: no such file: expected the folder of a ");
    struct proc *taken =
        START(p, "taken", "export", "--dir", place_path(p, "run"), "--out", place_path(p, "data"));
    assert_int_equal(proc_wait(taken), 2);
    proc_must_say(taken, "/data is there already, and it is no whole export");
    struct proc *again =
        START(p, "again", "import", place_path(p, "lie"), "--dir", place_path(p, "run"));
    assert_int_equal(proc_wait(again), 2);
    proc_must_say(again, "/run/trunk.safetensors is of an earlier run: give another --dir");
    place_end(p);
}
