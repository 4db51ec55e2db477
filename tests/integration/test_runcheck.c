/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_runcheck.c: `hearth run check`, data that lies beside its run file, and the run file's text
 * in checkpoints, whose headers are read here without hearth's own reader.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const json_t *key_named(const json_t *all, const char *name)
{
    const json_t *key;
    size_t i;
    json_array_foreach(json_object_get(all, "keys"), i, key)
    {
        if (strcmp(json_string_value(json_object_get(key, "key")), name) == 0)
            return key;
    }
    fail_msg("no key %s", name);
    return NULL;
}

static const char *text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

PLACE_TEST(check_shows_keys_and_sizes)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 40);
    struct proc *proc = START(p, "table", "run", "check", t.run);
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc,
                  "train.steps                    40               1000                 updates "
                  "       1 to 4294967295");
    proc_must_say(proc, "8 experts take ");
    proc = START(p, "json", "run", "check", "--json", t.run);
    assert_int_equal(proc_wait(proc), 0);
    char *out = place_read(proc->out, NULL);
    json_t *all = json_loads(out, 0, NULL);
    assert_non_null(all);
    const json_t *steps = key_named(all, "train.steps");
    assert_int_equal(json_integer_value(json_object_get(steps, "value")), 40);
    assert_string_equal(text_of(steps, "default"), "1000");
    assert_string_equal(text_of(steps, "unit"), "updates");
    assert_string_equal(text_of(steps, "range"), "1 to 4294967295");
    json_int_t d = json_integer_value(json_object_get(key_named(all, "model.dim"), "value"));
    const json_t *expert = json_object_get(all, "expert");
    /* W1 [d, 4d], b1, W2 [4d, d], b2, and the norm's two */
    json_int_t parameters = 8 * d * d + 7 * d;
    assert_int_equal(json_integer_value(json_object_get(expert, "parameters")), parameters);
    assert_int_equal(json_integer_value(json_object_get(expert, "disk_bytes")), 12 * parameters);
    assert_int_equal(json_integer_value(json_object_get(expert, "memory_bytes")), 24 * parameters);
    assert_int_equal(json_integer_value(json_object_get(all, "experts")), 8);
    json_decref(all);
    free(out);
    assert_int_equal(RUN(p, "none", "run", "check", place_path(p, "none.yaml")), 3);
    assert_int_equal(RUN(p, "nothing", "run", "check"), 2);
    proc = START(p, "word", "run", "chek", t.run);
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "did you mean 'check'?");
    place_end(p);
}

/* A bad file gives the code and the text that training with it gives. */
PLACE_TEST(check_says_what_loading_says)
{
    struct place *p = *state;
    static const char *const texts[] = {
        "run: a\nmodel: {dmi: 3}\n",
        "run: a\nmodel: {dim: lots}\n",
        "run: a\ntrain: {k_min: 9}\n",
        "run: a/b\n",
        "",
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(texts); i++) {
        place_write(p, "bad.yaml", texts[i], strlen(texts[i]));
        p->proc_count = 0;
        struct proc *train = START(p, place_text(p, "train%zu", i), "train", "--local", "--run",
                                   place_path(p, "bad.yaml"), "--dir", place_path(p, "state"));
        struct proc *check =
            START(p, place_text(p, "check%zu", i), "run", "check", place_path(p, "bad.yaml"));
        assert_int_equal(proc_wait(train), 3);
        assert_int_equal(proc_wait(check), 3);
        char *said = place_read(train->err, NULL), *same = place_read(check->err, NULL);
        assert_non_null(strstr(said, "bad.yaml"));
        assert_string_equal(said, same);
        free(said);
        free(same);
    }
    place_write(p, "bad.yaml", "run: a\nmodel: {dim: 65536}\n", 27);
    struct proc *large = START(p, "large", "run", "check", place_path(p, "bad.yaml"));
    assert_int_equal(proc_wait(large), 3);
    proc_must_say(large, "experts of width 65536");
    assert_false(place_exists(p, "state"));
    place_end(p);
}

/* docs/run-file.md is what hearth help run-file prints, between two fences. */
PLACE_TEST(the_page_is_the_table)
{
    struct place *p = *state;
    struct proc *proc = START(p, "help", "help", "run-file");
    size_t len, page_len;
    assert_int_equal(proc_wait(proc), 0);
    char *table = place_read(proc->out, &len);
    char *page = place_read(HTH_TEST_SOURCES "/docs/run-file.md", &page_len);
    assert_non_null(table);
    assert_non_null(page);
    char *begin = strstr(page, "```\n");
    assert_non_null(begin);
    begin += 4;
    char *end = strstr(begin, "```\n");
    assert_non_null(end);
    *end = '\0';
    if (strcmp(begin, table) != 0)
        fail_msg("docs/run-file.md: put the output of hearth help run-file between its fences");
    free(table);
    free(page);
    place_end(p);
}

/* A relative data.path is sought in the current folder, then beside the run file. */
PLACE_TEST(data_beside_the_run_file_is_found)
{
    struct place *p = *state;
    static const char run[] = "run: a\n"
                              "model: {kind: lm, dim: 8, heads: 2, layers: 1, context: 8,"
                              " grid: [2, 2], top_k: 1}\n"
                              "data: {kind: text, path: words.txt, shuffle_rows: 16}\n"
                              "train: {rows: 2, flights: 1, steps: 2}\n";
    static char text[20000];
    memset(text, 'a', sizeof(text));
    assert_int_equal(mkdir(place_path(p, "runs"), 0700), 0);
    place_write(p, "runs/lm.yaml", run, strlen(run));
    struct proc *proc = START(p, "lost", "train", "--local", "--run", place_path(p, "runs/lm.yaml"),
                              "--dir", place_path(p, "lost"));
    assert_int_equal(proc_wait(proc), 3);
    proc_must_say(proc, "no text at 'words.txt', nor one of that name beside the run file");
    place_write(p, "runs/words.txt", text, sizeof(text));
    proc = START(p, "found", "train", "--local", "--run", place_path(p, "runs/lm.yaml"), "--dir",
                 place_path(p, "found"));
    assert_int_equal(proc_wait(proc), 0);
    proc = START(p, "shown", "run", "check", place_path(p, "runs/lm.yaml"));
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, place_path(p, "runs/words.txt"));
    place_end(p);
}

/* The header of a safetensors file: 8 bytes of length, then JSON. *data_bytes: what follows. */
static json_t *header_of(const char *path, size_t *data_bytes)
{
    size_t len;
    char *bytes = place_read(path, &len);
    uint64_t header = 0;
    assert_non_null(bytes);
    assert_true(len > 8);
    for (int i = 7; i >= 0; i--)
        header = header << 8 | (uint8_t)bytes[i];
    assert_true(header < len - 8);
    json_t *all = json_loadb(bytes + 8, header, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(all);
    *data_bytes = len - 8 - header;
    free(bytes);
    return all;
}

/* The tensors are float32 [rows, columns], one behind the other; moments have the shape of their
 * weight. Returns the number of weights. */
static json_int_t count_weights(json_t *all, size_t data_bytes)
{
    const char *name;
    json_t *tensor;
    json_int_t weights = 0, bytes = 0;
    json_object_foreach(all, name, tensor)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        const json_t *shape = json_object_get(tensor, "shape");
        const json_t *at = json_object_get(tensor, "data_offsets");
        assert_string_equal(text_of(tensor, "dtype"), "F32");
        assert_int_equal(json_array_size(shape), 2);
        json_int_t size = json_integer_value(json_array_get(shape, 0)) *
                          json_integer_value(json_array_get(shape, 1));
        assert_int_equal(json_integer_value(json_array_get(at, 0)), bytes);
        bytes += 4 * size;
        assert_int_equal(json_integer_value(json_array_get(at, 1)), bytes);
        size_t len = strlen(name);
        if (len > 2 && name[len - 2] == '.' && strchr("mv", name[len - 1]) != NULL) {
            char weight[96];
            snprintf(weight, sizeof(weight), "%.*s", (int)len - 2, name);
            assert_true(json_equal(shape, json_object_get(json_object_get(all, weight), "shape")));
        } else {
            weights += size;
        }
    }
    assert_int_equal(bytes, data_bytes);
    return weights;
}

/* All keys have one prefix, and the run file is there to the byte. */
static void check_metadata(const json_t *all, const char *run_text)
{
    const char *key;
    json_t *value;
    json_t *meta = json_object_get(all, "__metadata__");
    json_object_foreach(meta, key, value)
    {
        assert_int_equal(strncmp(key, "hearth.", 7), 0);
        assert_true(json_is_string(value));
    }
    assert_string_equal(text_of(meta, "hearth.run_file"), run_text);
}

PLACE_TEST(checkpoints_hold_the_run_file)
{
    struct place *p = *state;
    struct toy t;
    size_t bytes;
    char *end, *text;
    toy_init(&t, p, 20);
    FILE *file = fopen(t.run, "a"); /* a text that needs escapes */
    assert_non_null(file);
    fputs("# \"quoted\" \\ caf\xc3\xa9\n", file);
    fclose(file);
    assert_int_equal(
        RUN(p, "train", "train", "--local", "--run", t.run, "--dir", place_path(p, "state")), 0);
    text = place_read(t.run, NULL);
    struct proc *proc = START(p, "json", "run", "check", "--json", t.run);
    assert_int_equal(proc_wait(proc), 0);
    char *out = place_read(proc->out, NULL);
    json_t *sizes = json_loads(out, 0, NULL);
    const char *const files[][2] = {{"trunk", "state/trunk.safetensors"},
                                    {"expert", "state/experts/ffn0.0.1.safetensors"}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(files); i++) {
        json_t *all = header_of(place_path(p, files[i][1]), &bytes);
        const json_t *size = json_object_get(sizes, files[i][0]);
        check_metadata(all, text);
        assert_int_equal(count_weights(all, bytes),
                         json_integer_value(json_object_get(size, "parameters")));
        assert_int_equal(bytes, json_integer_value(json_object_get(size, "disk_bytes")));
        if (i == 0) {
            const char *loss = text_of(json_object_get(all, "__metadata__"), "hearth.loss_ema");
            double value = strtod(loss, &end);
            assert_true(*end == '\0' && value > 0 && value < 100);
        }
        json_decref(all);
    }
    json_decref(sizes);
    free(out);
    free(text);
    place_end(p);
}
