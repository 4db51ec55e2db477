/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_use.c: what a trained model is for, as people run it: it writes from its folder and with
 * experts on hosts, also while one of them is killed; and what can't be used is named.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROMPT "the cat "

/* A text run that learns in a second to repeat two lines. */
static void text_init(struct place *p, const char *more)
{
    static char text[20000], run[1024];
    size_t len = 0;
    while (len + 64 < sizeof(text))
        len += (size_t)snprintf(text + len, 64, "the cat sat on the mat.\na dog ran in the sun.\n");
    place_write(p, "text.txt", text, len);
    len = (size_t)snprintf(
        run, sizeof(run),
        "run: cats\n"
        "seed: 1\n"
        "compute: fp32\n" /* the same on a busy machine */
        "model: {kind: lm, dim: 32, layers: 2, heads: 2, context: 16, grid: [2, 2], top_k: 2%s}\n"
        "data: {kind: text, path: %s, shuffle_rows: 256}\n"
        "train: {rows: 16, flights: 1, steps: 60, eval_every: 60, timeout_s: 5, grace_s: 0.2}\n"
        "optimizer: {kind: adamw, rate: 0.01}\n"
        "experts: {step_rows: 32, step_age_s: 0.2, optimizer: {kind: adam, rate: 0.003}}\n",
        more, place_path(p, "text.txt"));
    place_write(p, "run.yaml", run, len);
}

static void train_local(struct place *p)
{
    assert_int_equal(RUN(p, "train", "train", "--local", "--run", place_path(p, "run.yaml"),
                         "--threads", "1", "--dir", place_path(p, "local")),
                     0);
}

static json_t *json_of(const struct proc *proc)
{
    char *text = place_read(proc->out, NULL);
    json_t *o = json_loads(text, 0, NULL);
    free(text);
    assert_non_null(o);
    return o;
}

PLACE_TEST(test_a_model_writes_from_its_folder)
{
    struct place *p = *state;
    text_init(p, "");
    train_local(p);
    const char *dir = place_path(p, "local");
    struct proc *json = START(p, "json", "write", PROMPT, "--dir", dir, "--tokens", "40", "--json",
                              "--threads", "1", "--greedy");
    assert_int_equal(proc_wait(json), 0);
    json_t *o = json_of(json);
    const char *text = json_string_value(json_object_get(o, "text"));
    assert_int_equal(json_integer_value(json_object_get(o, "tokens")), 40);
    assert_true(json_real_value(json_object_get(o, "tokens_per_s")) > 0);
    assert_int_equal(strlen(text), strlen(PROMPT) + 40);
    assert_memory_equal(text, PROMPT "sat on the mat.", strlen(PROMPT) + 15);
    struct proc *plain =
        START(p, "plain", "write", PROMPT, "--dir", dir, "--tokens", "40", "--temperature", "0");
    assert_int_equal(proc_wait(plain), 0);
    proc_must_say(plain, text); /* the same again, and beyond the context */
    json_decref(o);
    place_end(p);
}

PLACE_TEST(test_a_masked_model_fills_in)
{
    struct place *p = *state;
    text_init(p, ", objective: masked");
    train_local(p);
    const char *dir = place_path(p, "local");
    struct proc *fill =
        START(p, "fill", "fill", "the [MASK]at s[MASK]t", "--dir", dir, "--json", "--guesses", "3");
    assert_int_equal(proc_wait(fill), 0);
    json_t *o = json_of(fill), *masks = json_object_get(o, "masks");
    const char *text = json_string_value(json_object_get(o, "text"));
    assert_int_equal(json_array_size(masks), 2);
    assert_int_equal(strlen(text), strlen("the cat sat"));
    assert_memory_equal(text, "the ", 4);
    for (size_t i = 0; i < 2; i++) {
        const json_t *guesses = json_array_get(masks, i);
        double sum = 0, last = 1;
        assert_int_equal(json_array_size(guesses), 3);
        for (size_t k = 0; k < 3; k++) {
            double prob = json_real_value(json_object_get(json_array_get(guesses, k), "p"));
            assert_true(prob > 0 && prob <= last);
            sum += last = prob;
        }
        assert_true(sum <= 1 + 1e-9);
        assert_int_equal(text[i == 0 ? 4 : 9],
                         json_string_value(json_object_get(json_array_get(guesses, 0), "word"))[0]);
    }
    json_decref(o);
    const struct {
        const char *verb, *text, *say;
        int code;
    } bad[] = {
        {"fill", "no mask", "a text with [MASK] is expected", 2},
        {"fill", "[MASK] is longer than sixteen", "the model sees 16 tokens at once", 2},
        {"write", "the", "is of a masked lm, and only an lm that learnt to go on writes", 3},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        struct proc *proc =
            START(p, place_text(p, "bad%zu", i), bad[i].verb, bad[i].text, "--dir", dir);
        assert_int_equal(proc_wait(proc), bad[i].code);
        proc_must_say(proc, bad[i].say);
    }
    place_end(p);
}

static size_t count_lines(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

PLACE_TEST(test_a_classifier_predicts_and_is_evaluated)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 100);
    const char *dir = place_path(p, "toy"), *csv = place_path(p, "out.csv");
    assert_int_equal(
        RUN(p, "toy", "train", "--local", "--run", t.run, "--threads", "1", "--dir", dir), 0);
    struct proc *predict = START(p, "predict", "predict", "--dir", dir, "--csv", csv, "--confusion",
                                 place_path(p, "out.png"), "--json");
    struct proc *eval = START(p, "eval", "eval", place_path(p, "data"), "--dir", dir, "--json");
    assert_int_equal(proc_wait(predict), 0);
    assert_int_equal(proc_wait(eval), 0);
    json_t *o = json_of(predict), *e = json_of(eval);
    double accuracy = json_real_value(json_object_get(o, "accuracy"));
    assert_int_equal(json_integer_value(json_object_get(o, "rows")), TOY_TEST_IMAGES);
    assert_true(accuracy > 0.5);
    assert_true(accuracy == json_real_value(json_object_get(e, "accuracy")));
    json_decref(o);
    json_decref(e);
    char *text = place_read(csv, NULL);
    size_t right = 0;
    assert_int_equal(count_lines(text), 1 + TOY_TEST_IMAGES);
    for (char *at = strchr(text, '\n') + 1; *at != '\0'; at = strchr(at, '\n') + 1) {
        unsigned class, predicted;
        double probability;
        assert_int_equal(sscanf(at, "%*u,%u,%u,%lf", &class, &predicted, &probability), 3);
        assert_true(probability >= 0.1 && probability <= 1);
        right += class == predicted;
    }
    free(text);
    assert_true((double)right / TOY_TEST_IMAGES == accuracy);
    text = place_read(place_path(p, "out.png"), NULL);
    assert_memory_equal(text, "\x89PNG", 4);
    free(text);
    /* The same pictures as a set: the model scales pixels as it learnt to. */
    const char *set = place_path(p, "set");
    assert_int_equal(RUN(p, "set", "data", "fashion", place_path(p, "data"), "--out", set), 0);
    predict = START(p, "predictset", "predict", set, "--dir", dir, "--json");
    assert_int_equal(proc_wait(predict), 0);
    o = json_of(predict);
    assert_true(json_real_value(json_object_get(o, "accuracy")) == accuracy);
    json_decref(o);
    struct proc *bad = START(p, "bad", "predict", place_path(p, "none"), "--dir", dir);
    assert_int_equal(proc_wait(bad), 3);
    proc_must_say(bad, "no such file; give the data set's path");
    place_end(p);
}

static char *csv_of(struct place *p, const char *dir)
{
    const char *csv = place_path(p, place_text(p, "%s.csv", dir));
    assert_int_equal(RUN(p, place_text(p, "csv-%s", dir), "predict", "--train", "--dir",
                         place_path(p, dir), "--csv", csv),
                     0);
    char *text = place_read(csv, NULL);
    assert_non_null(text);
    return text;
}

/* The same weights under a run file that moves its pictures, and one that does not. */
PLACE_TEST(test_pictures_are_not_moved_for_predictions)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 50);
    char *run = place_read(t.run, NULL), *data = strstr(run, "data: {");
    assert_non_null(data);
    const char *moves = place_path(p, "moves.yaml");
    FILE *file = fopen(moves, "w");
    fprintf(file, "%.*sdata: {shift: 3, %s", (int)(data - run), run, data + strlen("data: {"));
    fclose(file);
    free(run);
    assert_int_equal(RUN(p, "toy", "train", "--local", "--run", moves, "--threads", "1", "--dir",
                         place_path(p, "moved")),
                     0);
    assert_int_equal(RUN(p, "export", "export", "--dir", place_path(p, "moved"), "--out",
                         place_path(p, "model")),
                     0);
    assert_int_equal(RUN(p, "import", "import", place_path(p, "model"), "--run", t.run, "--dir",
                         place_path(p, "still")),
                     0);
    char *moved = csv_of(p, "moved"), *still = csv_of(p, "still");
    assert_string_equal(moved, still);
    free(moved);
    free(still);
    place_end(p);
}

PLACE_TEST(test_help_lists_flags_that_do_something)
{
    static const char *const verbs[] = {"write", "fill", "draw", "predict", "eval"};
    static const char *const others[] = {"--listen", "--announce", "--status"};
    struct place *p = *state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(verbs); i++) {
        struct proc *help = START(p, place_text(p, "help%zu", i), verbs[i], "--help");
        assert_int_equal(proc_wait(help), 0);
        proc_must_say(help, "--checkpoint");
        proc_must_say(help, "--join");
        assert_true(proc_said(help, "--data") == (i < 3)); /* the others take it as argument */
        for (size_t k = 0; k < HTH_ARRAY_LEN(others); k++)
            assert_false(proc_said(help, others[k]));
        struct proc *no = START(p, place_text(p, "no%zu", i), verbs[i], "--listen", "1.2.3.4:5");
        assert_int_equal(proc_wait(no), 2);
        proc_must_say(no, "unrecognized option '--listen'");
    }
    place_end(p);
}

PLACE_TEST(test_what_can_not_write_is_named)
{
    struct place *p = *state;
    struct toy t;
    text_init(p, "");
    train_local(p);
    toy_init(&t, p, 50);
    assert_int_equal(RUN(p, "toy", "train", "--local", "--run", t.run, "--threads", "1", "--dir",
                         place_path(p, "toy")),
                     0);
    static char long_prompt[65537 + 1];
    memset(long_prompt, 'a', 65537);
    const struct {
        const char *prompt, *dir, *say;
        int code;
    } cases[] = {
        {"", "local", "the prompt is empty: give the beginning of a text", 2},
        {long_prompt, "local", "more than 65536 bytes: give its end; the model sees 16 tokens", 2},
        {PROMPT, "nowhere", "/trunk.safetensors: no such file: expected the folder of a trainer",
         2},
        {PROMPT, "toy",
         "is of a classifier, and only an lm that learnt to go on writes: try hearth predict", 3},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct proc *bad = START(p, place_text(p, "bad%zu", i), "write", cases[i].prompt, "--dir",
                                 place_path(p, cases[i].dir));
        assert_int_equal(proc_wait(bad), cases[i].code);
        proc_must_say(bad, cases[i].say);
    }
    place_end(p);
}

static size_t length(const struct proc *proc)
{
    size_t len = 0;
    free(place_read(proc->out, &len));
    return len;
}

/* A node and two hosts, which have half of each layer, and a trunk that learnt with them. */
struct half {
    const char *node, *status; /* status: of host 1 */
    struct proc *host[2];
};

static void half_start(struct half *h, struct place *p)
{
    const char *run = place_path(p, "run.yaml");
    h->node = place_addr(p);
    h->status = place_addr(p);
    proc_wait_text(START(p, "node", "node", "--listen", h->node, "--dir", place_path(p, "node")),
                   "listening");
    for (int i = 0; i < 2; i++) {
        h->host[i] = START(
            p, place_text(p, "host%d", i), "serve", "--run", run, "--join", h->node, "--listen",
            place_addr(p), "--dir", place_path(p, place_text(p, "h%d", i)), "--threads", "1",
            "--experts", place_text(p, "ffn0.%d.[0:2]", i), "--experts",
            place_text(p, "ffn1.%d.[0:2]", i), "--status", i == 1 ? h->status : place_addr(p));
        proc_wait_text(h->host[i], "serving");
    }
    assert_int_equal(RUN(p, "train", "train", "--run", run, "--join", h->node, "--listen",
                         place_addr(p), "--threads", "1", "--dir", place_path(p, "trunk")),
                     0);
}

PLACE_TEST(test_writing_goes_on_when_a_host_is_killed)
{
    struct place *p = *state;
    struct half h;
    text_init(p, "");
    half_start(&h, p);
    struct proc *alone = START(p, "alone", "write", PROMPT, "--dir", place_path(p, "trunk"));
    assert_int_equal(proc_wait(alone), 2);
    proc_must_say(alone, "if its experts are on hosts, give --join HOST:PORT");
    struct proc *write = START(p, "write", "write", PROMPT, "--dir", place_path(p, "trunk"),
                               "--join", h.node, "--tokens", "5000", "--threads", "1");
    struct wait w = {0};
    while (length(write) < 500)
        wait_step(&w, "some text");
    proc_signal(h.host[1], SIGKILL);
    proc_wait(h.host[1]);
    assert_true(proc_runs(write));
    assert_int_equal(proc_wait(write), 0);
    assert_true(length(write) >= strlen(PROMPT) + 5000);
    place_end(p);
}

/* A counter of host 1. */
static double metric(const struct half *h, const char *name)
{
    static const char get[] =
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    static char answer[1 << 18];
    struct wait w = {0};
    size_t size = 0;
    int fd = place_dial(h->status, NULL);
    assert_true(fd >= 0);
    while (send(fd, get, sizeof(get) - 1, MSG_NOSIGNAL) != sizeof(get) - 1)
        wait_step(&w, "a connection to the host");
    for (ssize_t got; (got = recv(fd, answer + size, sizeof(answer) - 1 - size, 0)) != 0;)
        if (got > 0)
            size += (size_t)got;
    close(fd);
    answer[size] = '\0';
    char line[64];
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(answer, line);
    assert_non_null(at);
    return strtod(at + strlen(line), NULL);
}

PLACE_TEST(test_drawing_goes_on_when_a_host_is_killed)
{
    static const char run[] =
        "run: drawn\nseed: 1\ndata: {kind: set, path: '%s'}\n"
        "model: {kind: picture, expert: ffn, grid: [2, 2], top_k: 2, dim: 32, layers: 2, heads: 2, "
        "vocab: 300, text: 4, height: 7, width: 7, codes: 8}\n"
        "train: {rows: 8, flights: 1, steps: 5, timeout_s: 5, grace_s: 0.2}\n";
    static char text[1024];
    struct place *p = *state;
    struct half h;
    struct toy t;
    toy_init(&t, p, 5);
    const char *set = place_path(p, "set"), *codes = place_path(p, "codes");
    assert_int_equal(RUN(p, "set", "data", "fashion", place_path(p, "data"), "--out", set), 0);
    assert_int_equal(
        RUN(p, "codes", "data", "codes", set, "--out", codes, "--codes", "8", "--steps", "0"), 0);
    place_write(p, "run.yaml", text, (size_t)snprintf(text, sizeof(text), run, codes));
    half_start(&h, p);
    double before = metric(&h, "hearth_expert_rows_total");
    struct proc *draw =
        START(p, "draw", "draw", "shirt", "--dir", place_path(p, "trunk"), "--join", h.node,
              "--threads", "1", "-n", "256", "--sheet", "--out", place_path(p, "sheet.png"));
    struct wait w = {0};
    while (metric(&h, "hearth_expert_rows_total") == before)
        wait_step(&w, "rows at the host");
    assert_true(proc_runs(draw));
    proc_signal(h.host[1], SIGKILL);
    proc_wait(h.host[1]);
    assert_true(proc_runs(draw));
    assert_int_equal(proc_wait(draw), 0);
    assert_true(place_exists(p, "sheet.png"));
    place_end(p);
}
