/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_prompts.c: hearth monitor --model: the page has drawings or sentences of a trained model,
 * others once its trainer has saved anew, and says what is missing. The monitors are alone: no
 * peer answers them.
 */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"

#include "core/blob.h"
#include "data/picture.h"
#define SUITE_RUN place_run_at_once
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT_RUN                                                                                   \
    "run: cats\nseed: 1\ncompute: fp32\ndata: {kind: text, path: text.txt, shuffle_rows: 256}\n"   \
    "model: {kind: lm, dim: 32, layers: 2, heads: 2, context: 16, %s}\n"                           \
    "train: {rows: 16, flights: 1, steps: 60, eval_every: 60}\n"                                   \
    "optimizer: {kind: adamw, rate: 0.01}\nexperts: {optimizer: {kind: adam, rate: 0.003}}\n"
#define PICTURE_RUN                                                                                \
    "run: grey\nseed: 1\ncompute: fp32\ndata: {kind: set, path: set}\n"                            \
    "model: {kind: picture, expert: none, dim: 32, layers: 2, heads: 2, vocab: 300, text: 4, "     \
    "height: 2, width: 2, codes: 4}\n"                                                             \
    "train: {rows: 8, flights: 1, steps: 100}\n"

struct shown {
    struct place *p;
    const char *page;
    struct proc *monitor;
};

/* A shell command in the place, with hearth in reach. */
static void sh(struct place *p, const char *command)
{
    static unsigned number;
    static char script[2048];
    snprintf(script, sizeof(script), "cd '%s' && hearth() { '%s' \"$@\"; } && %s", p->root,
             HTH_TEST_PROGRAM, command);
    struct proc *proc = place_start_program(p, "/bin/sh", place_text(p, "sh%u", number++),
                                            (const char *const[]){"-c", script, NULL});
    assert_int_equal(proc_wait(proc), 0);
}

static void put(struct place *p, const char *name, const char *text)
{
    place_write(p, name, text, strlen(text));
}

/* The body of the answer to a GET; must be freed. NULL: it is not there. */
static char *get(const struct shown *s, const char *path, size_t *len)
{
    char request[256], *answer = calloc(1, 1 << 20);
    size_t size = 0;
    struct wait w = {0};
    int fd = place_dial(s->page, NULL);
    assert_true(fd >= 0);
    int n = snprintf(request, sizeof(request),
                     "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    while (send(fd, request, (size_t)n, MSG_NOSIGNAL) != n)
        wait_step(&w, "a connection to the page");
    for (ssize_t got; (got = recv(fd, answer + size, (1 << 20) - 1 - size, 0)) != 0;) {
        if (got > 0)
            size += (size_t)got;
        else
            wait_step(&w, "the page's answer");
    }
    close(fd);
    char *body = strstr(answer, "\r\n\r\n"), *out = NULL;
    if (body != NULL && strncmp(answer, "HTTP/1.1 200", 12) == 0) {
        *len = size - (size_t)(body + 4 - answer);
        out = calloc(1, *len + 1);
        memcpy(out, body + 4, *len);
    }
    free(answer);
    return out;
}

static void start(struct shown *s, struct place *p, const char *model)
{
    s->p = p;
    s->page = place_addr(p);
    s->monitor = START(p, "monitor", "monitor", "--join", place_addr(p), "--listen", place_addr(p),
                       "--dir", place_path(p, "monitor"), "--status", s->page, "--export",
                       place_path(p, "export"), "--model", place_path(p, model), "--threads", "1");
    proc_wait_text(s->monitor, "  page ");
}

/* The gallery of a later step than that, once the page has one. */
static json_t *gallery_after(const struct shown *s, double step)
{
    struct wait w = {0};
    for (;;) {
        size_t len;
        char *text = get(s, "/run.json", &len);
        json_t *run = text != NULL ? json_loads(text, 0, NULL) : NULL;
        json_t *gallery = json_object_get(run, "gallery");
        free(text);
        if (json_is_object(gallery) && toy_number(gallery, "step") > step) {
            json_incref(gallery);
            json_decref(run);
            return gallery;
        }
        json_decref(run);
        wait_step(&w, "answers of the model on the page");
    }
}

static const char *item(const json_t *gallery, size_t i, const char *key)
{
    return json_string_value(
        json_object_get(json_array_get(json_object_get(gallery, "items"), i), key));
}

static size_t items(const json_t *gallery)
{
    return json_array_size(json_object_get(gallery, "items"));
}

static void page_has(const struct shown *s, const char *text)
{
    size_t len;
    char *html = get(s, "/", &len);
    assert_non_null(html);
    if (strstr(html, text) == NULL)
        fail_msg("no '%s' on the page: %s", text, html);
    free(html);
}

static void put_grey(struct place *p, int i)
{
    static const char *const names[] = {"black", "dark", "light", "<b>white"};
    uint8_t rgb[8 * 8 * 3];
    struct hth_blob *png;
    memset(rgb, 85 * (i % 4), sizeof(rgb));
    assert_ok(hth_picture_png(rgb, 8, 8, &png));
    place_write(p, place_text(p, "in/%d.png", i), png->data, png->size);
    put(p, place_text(p, "in/%d.txt", i), names[i % 4]);
    hth_blob_unref(png);
}

PLACE_TEST(test_drawings_are_shown_and_renewed)
{
    struct place *p = *state;
    struct shown s;
    sh(p, "mkdir in");
    for (int i = 0; i < 60; i++)
        put_grey(p, i);
    put(p, "run.yaml", PICTURE_RUN);
    sh(p, "hearth data folder in --out pictures --size 8 --test 0.3");
    sh(p, "hearth data codes pictures --out set --codes 4 --steps 3");
    sh(p, "hearth train --local --run run.yaml --dir run --threads 1");
    sh(p, "sed -i \"s!path: set!path: $PWD/set!; s/steps: 100/steps: 120/\" run.yaml");
    sh(p, "hearth train --local --resume --run run.yaml --dir run --threads 1");
    start(&s, p, "run");
    json_t *g = gallery_after(&s, 0);
    assert_string_equal(json_string_value(json_object_get(g, "picture")), "drawings.png");
    assert_true(toy_number(g, "step") == 120);
    assert_int_equal(items(g), 4); /* each caption once */
    size_t len;
    char *png = get(&s, "/drawings.png", &len);
    assert_non_null(png);
    struct hth_picture picture;
    assert_ok(hth_picture_decode("png", (const uint8_t *)png, len, &picture, NULL));
    assert_int_equal(picture.width, 8 * 8);
    assert_int_equal(picture.height, 8);
    for (size_t i = 0; i < 4; i++) { /* it learnt to draw the tones */
        static const char *const names[] = {"black", "dark", "light", "<b>white"};
        size_t tone = 0;
        while (strcmp(names[tone], item(g, i, "prompt")) != 0)
            tone++;
        assert_true(abs((int)picture.rgb[3 * (4 * 64 + 8 * i + 4)] - 85 * (int)tone) < 40);
    }
    hth_picture_clear(&picture);
    free(png);
    page_has(&s, "alt=\"drawing: &#60;b&#62;white\"");
    page_has(&s, "src=\"drawings.png?120\"");
    json_decref(g);
    sh(p, "sed -i 's/steps: 120/steps: 130/' run.yaml");
    sh(p, "hearth train --local --resume --run run.yaml --dir run --threads 1");
    g = gallery_after(&s, 120);
    assert_true(toy_number(g, "step") == 130);
    json_decref(g);
    struct wait w = {0};
    while (!place_exists(p, "export/drawings.png"))
        wait_step(&w, "the drawings in the folder of the export");
    place_end(p);
}

static void text_model(struct place *p, const char *more)
{
    static char text[20000], run[1024];
    size_t len = 0;
    while (len + 64 < sizeof(text))
        len += (size_t)snprintf(text + len, 64, "the cat sat on the mat.\na dog ran in the sun.\n");
    place_write(p, "text.txt", text, len);
    snprintf(run, sizeof(run), TEXT_RUN, more);
    put(p, "run.yaml", run);
    sh(p, "sed -i \"s!path: text.txt!path: $PWD/text.txt!\" run.yaml");
    sh(p, "hearth train --local --run run.yaml --dir run --threads 1");
}

PLACE_TEST(test_sentences_are_of_the_held_out_text)
{
    struct place *p = *state;
    struct shown s;
    text_model(p, "grid: [2, 2], top_k: 2");
    start(&s, p, "run");
    json_t *g = gallery_after(&s, 0);
    assert_true(json_is_null(json_object_get(g, "picture")));
    assert_int_equal(items(g), 2); /* no line twice */
    for (size_t i = 0; i < 2; i++) {
        const char *prompt = item(g, i, "prompt"), *text = item(g, i, "text");
        assert_true(strcmp(prompt, "the cat sat on") == 0 || strcmp(prompt, "a dog ran in") == 0);
        assert_memory_equal(text, prompt, strlen(prompt));
        assert_int_equal(strlen(text), strlen(prompt) + 96);
        assert_non_null(strstr(text, "the sun."));
    }
    json_decref(g);
    place_end(p);
}

PLACE_TEST(test_gaps_are_filled_and_own_prompts_are_inert)
{
    struct place *p = *state;
    struct shown s;
    text_model(p, "expert: none, objective: masked");
    put(p, "run/prompts.txt",
        "the [MASK]at\n\n<script>alert(1)</script>\n\x1b[2J\xe2\x80\xae\xff\nthe [MASK]at\r\n");
    sh(p,
       "{ printf 'x'; printf 'é%.0s' $(seq 150); printf '\\n%s' a b c d e f; } >>run/prompts.txt");
    start(&s, p, "run");
    json_t *g = gallery_after(&s, 0);
    assert_int_equal(items(g), 8);
    assert_int_equal(strlen(item(g, 3, "prompt")), 199); /* not half an é */
    assert_string_equal(item(g, 7, "prompt"), "d");
    assert_string_equal(item(g, 0, "prompt"), "the [MASK]at");
    assert_int_equal(strlen(item(g, 0, "text")), strlen("the cat"));
    assert_memory_equal(item(g, 0, "text"), "the ", 4);
    assert_string_equal(item(g, 0, "text") + 5, "at");
    assert_string_equal(item(g, 2, "prompt"), "\ufffd[2J\ufffd\ufffd");
    json_decref(g);
    page_has(&s, "<th scope=\"row\">&#60;script&#62;alert(1)&#60;/script&#62;</th>");
    place_end(p);
}

/* A monitor's note that there is nothing to show, and why. */
static void must_note(struct place *p, const char *model, const char *why)
{
    struct shown s;
    start(&s, p, model);
    proc_wait_text(s.monitor, "the page shows no answers to prompts yet: ");
    proc_must_say(s.monitor, why);
    assert_int_equal(proc_stop(s.monitor), 0);
}

PLACE_TEST(test_what_is_missing_is_named)
{
    struct place *p = *state;
    struct toy t;
    toy_init(&t, p, 5);
    assert_int_equal(RUN(p, "toy", "train", "--local", "--run", t.run, "--threads", "1", "--dir",
                         place_path(p, "toy")),
                     0);
    must_note(p, "nowhere", "nowhere/trunk.safetensors: no such file: expected the folder of a");
    must_note(p, "toy", "is of a classifier, which neither writes nor draws");
    text_model(p, "grid: [2, 2], top_k: 2");
    sh(p, "rm text.txt");
    must_note(p, "run", "there are no prompts: write up to 8 lines to ");
    put(p, "run/prompts.txt", "the cat\n");
    sh(p, "yes | head -c 65537 >run/prompts.txt");
    must_note(p, "run", "run/prompts.txt: larger than the limit");
    put(p, "run/prompts.txt", "the cat\n");
    sh(p, "rm -r run/experts");
    must_note(p, "run", "its experts are on their hosts: hearth export --join fetches them");
    sh(p, "echo broken >run/trunk.safetensors");
    must_note(p, "run", "run/trunk.safetensors: ");
    place_end(p);
}
