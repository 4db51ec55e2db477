/* SPDX-License-Identifier: Apache-2.0 */
/* toy.c: data, run file and processes of the toy run. */
#define _XOPEN_SOURCE 700
#include "integration/toy.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <zlib.h>

#define PIXELS       784
#define CLASSES      10
#define TRAIN_IMAGES 2000

/* ---- data ---------------------------------------------------------------------------------- */

/* Knuth's MMIX generator: the data must not depend on a library's. */
static uint32_t draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 40);
}

static void write_gz(const char *path, const uint8_t *data, size_t len)
{
    gzFile file = gzopen(path, "wb1");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, data, (unsigned)len), (int)len);
    assert_int_equal(gzclose(file), Z_OK);
}

static size_t put_header(uint8_t *out, const uint32_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t b = 0; b < 4; b++)
            out[4 * i + b] = (uint8_t)(words[i] >> (24 - 8 * b));
    }
    return 4 * count;
}

/* An image of a class is half its pattern and half noise. */
static void write_set(struct place *p, const char *prefix, uint32_t count, uint64_t seed)
{
    static uint8_t images[16 + TRAIN_IMAGES * PIXELS], labels[8 + TRAIN_IMAGES];
    uint8_t pattern[CLASSES][PIXELS];
    uint64_t state = 1;
    for (int c = 0; c < CLASSES; c++) {
        for (int i = 0; i < PIXELS; i++)
            pattern[c][i] = (uint8_t)(draw(&state) % 128);
    }
    assert_true(count <= TRAIN_IMAGES);
    state = seed;
    size_t at = put_header(images, (const uint32_t[]){0x803, count, 28, 28}, 4);
    size_t label_at = put_header(labels, (const uint32_t[]){0x801, count}, 2);
    for (uint32_t n = 0; n < count; n++) {
        uint32_t c = draw(&state) % CLASSES;
        labels[label_at++] = (uint8_t)c;
        for (int i = 0; i < PIXELS; i++)
            images[at++] = (uint8_t)(pattern[c][i] + draw(&state) % 128);
    }
    write_gz(place_text(p, "%s/data/%s-images-idx3-ubyte.gz", p->root, prefix), images, at);
    write_gz(place_text(p, "%s/data/%s-labels-idx1-ubyte.gz", p->root, prefix), labels, label_at);
}

static void write_run(struct toy *t, unsigned steps)
{
    char text[1024];
    int len = snprintf(
        text, sizeof(text),
        "run: toy\n"
        "seed: 1\n"
        "model: {kind: classifier, dim: 32, layers: 1, grid: [2, 4], top_k: 4}\n"
        "data: {kind: fashion-mnist, path: %s/data, shuffle_rows: 512}\n"
        "train: {rows: 32, flights: 4, steps: %u, eval_every: 100, eval_rows: 200,\n"
        "        checkpoint_every: 50, timeout_s: 5, grace_s: 0.2}\n"
        "optimizer: {kind: adamw, rate: 0.003}\n"
        "experts: {step_rows: 32, step_age_s: 0.2, optimizer: {kind: adam, rate: 0.001}}\n",
        t->place->root, steps);
    assert_in_range(len, 1, sizeof(text) - 1);
    place_write(t->place, "run.yaml", text, (size_t)len);
    snprintf(t->run, sizeof(t->run), "%s/run.yaml", t->place->root);
}

void toy_init(struct toy *t, struct place *p, unsigned steps)
{
    memset(t, 0, sizeof(*t));
    t->place = p;
    t->owner_dir = "owner";
    assert_int_equal(mkdir(place_path(p, "data"), 0700), 0);
    write_set(p, "train", TRAIN_IMAGES, 2);
    write_set(p, "t10k", TOY_TEST_IMAGES, 3);
    write_run(t, steps);
    for (unsigned i = 1; i < HTH_ARRAY_LEN(t->addr); i++) {
        snprintf(t->addr_text[i], sizeof(t->addr_text[i]), "%s", place_addr(p));
        t->addr[i] = t->addr_text[i];
    }
}

/* ---- closed runs --------------------------------------------------------------------------- */

const char *toy_keep(struct place *p, struct proc *proc, const char *name)
{
    size_t len;
    char *text = place_read(proc->out, &len);
    place_write(p, place_text(p, "%s.invite", name), text, len);
    free(text);
    return place_text(p, "@%s/%s.invite", p->root, name);
}

const char *toy_invite(struct toy *t, const char *name, const char *roles)
{
    struct place *p = t->place;
    struct proc *proc =
        START(p, name, "owner", "invite", "--dir", place_path(p, t->owner_dir), "--run", t->run,
              "--name", name, "--roles", roles, "--address", t->addr[1]);
    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, "everybody who has it is let in as");
    return toy_keep(p, proc, name);
}

void toy_own(struct toy *t)
{
    struct place *p = t->place;
    struct stat st;
    size_t len, lines_len;
    struct proc *init = START(p, "init", "owner", "init", "--dir", place_path(p, t->owner_dir));
    assert_int_equal(proc_wait(init), 0);
    proc_must_say(init, "once it is lost");
    assert_int_equal(stat(place_path(p, "owner/key"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    char *run = place_read(t->run, &len), *lines = place_read(init->out, &lines_len);
    place_write(p, "open.yaml", run, len);
    run = realloc(run, len + lines_len);
    assert_non_null(run);
    memcpy(run + len, lines, lines_len);
    place_write(p, "run.yaml", run, len + lines_len);
    free(lines);
    free(run);
}

void toy_close(struct toy *t)
{
    toy_own(t);
    snprintf(t->invite, sizeof(t->invite), "%s", toy_invite(t, "ana", "train,serve"));
}

/* ---- processes ----------------------------------------------------------------------------- */

void toy_start_node(struct toy *t)
{
    bool closed = t->invite[0] != '\0';
    t->node = START(t->place, "node", "node", closed ? "--invite" : "--network",
                    closed ? t->invite : "toy", "--listen", t->addr[1], "--dir",
                    place_path(t->place, "node"));
    proc_wait_text(t->node, "you are the first of run 'toy'");
}

void toy_start_host(struct toy *t, int i)
{
    static const char *const half[] = {TOY_HALF_1, TOY_HALF_2};
    const char *name = place_text(t->place, "host%d", i);
    t->host[i] = START(t->place, name, "serve", "--run", t->run, "--join", t->addr[1], "--listen",
                       t->addr[2 + i], "--dir", place_path(t->place, name), "--threads", "1",
                       "--experts", half[i], t->invite[0] != '\0' ? "--invite" : NULL, t->invite);
    proc_wait_text(t->host[i], "serving 4 experts");
}

void toy_start_trainer(struct toy *t, const char *name, const char *const *more)
{
    const char *args[32] = {"train",
                            "--run",
                            t->run,
                            "--join",
                            t->addr[1],
                            "--listen",
                            t->addr[4],
                            "--threads",
                            "1",
                            "--dir",
                            place_path(t->place, name),
                            "--metrics"};
    size_t count = 12;
    args[count++] = place_text(t->place, "%s/%s.jsonl", t->place->root, name);
    if (t->invite[0] != '\0') {
        args[count++] = "--invite";
        args[count++] = t->invite;
    }
    for (size_t i = 0; more != NULL && more[i] != NULL; i++) {
        assert_true(count + 1 < HTH_ARRAY_LEN(args));
        args[count++] = more[i];
    }
    t->trainer = place_start_program(t->place, t->program != NULL ? t->program : HTH_TEST_PROGRAM,
                                     name, args);
}

/* ---- metrics ------------------------------------------------------------------------------- */

double toy_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("field '%s' is no number", key);
    double number = json_number_value(value);
    assert_true(isfinite(number));
    return number;
}

static void keep(json_t **slot, json_t *object)
{
    double step = toy_number(object, "step"),
           before = *slot != NULL ? toy_number(*slot, "step") : 0;
    if (step < before)
        fail_msg("a trainer's steps go back from %.0f to %.0f", before, step);
    json_decref(*slot);
    *slot = json_incref(object);
}

static void check_line(struct toy_metrics *m, json_t *object)
{
    static const char *const progress_keys[] = {
        "samples",    "loss",         "accuracy",     "samples_per_s",  "gap_ms",
        "calls",      "calls_failed", "bytes",        "calls_retried",  "rows_lost",
        "rows_mixed", "not_finite",   "experts_live", "staleness_mean", "trainers",
        "rounds",     "distance",     "weight_fraction"};
    static const char *const eval_keys[] = {"samples", "loss", "accuracy", "bits_per_byte"};
    const char *kind = json_string_value(json_object_get(object, "kind"));
    assert_non_null(kind);
    assert_true(toy_number(object, "t") > 1e9);
    if (strcmp(kind, "progress") == 0) {
        for (size_t i = 0; i < HTH_ARRAY_LEN(progress_keys); i++)
            toy_number(object, progress_keys[i]);
        m->progress++;
        keep(&m->last_progress, object);
    } else if (strcmp(kind, "eval") == 0) {
        for (size_t i = 0; i < HTH_ARRAY_LEN(eval_keys); i++)
            toy_number(object, eval_keys[i]);
        m->evals++;
        keep(&m->last_eval, object);
    } else {
        assert_string_equal(kind, "end");
        toy_number(object, "code");
        m->ends++;
        keep(&m->end, object);
    }
}

void toy_metrics_load(struct toy *t, const char *name, struct toy_metrics *m)
{
    const char *path = place_text(t->place, "%s/%s.jsonl", t->place->root, name);
    char *text = place_read(path, NULL), *rest = text, *line;
    memset(m, 0, sizeof(*m));
    assert_non_null(text);
    for (size_t number = 0; (line = strtok_r(rest, "\n", &rest)) != NULL; number++) {
        json_error_t error;
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        if (object == NULL)
            fail_msg("%s line %zu: %s in %s", path, number + 1, error.text, line);
        check_line(m, object);
        json_decref(object);
    }
    free(text);
}

void toy_metrics_clear(struct toy_metrics *m)
{
    json_decref(m->last_progress);
    json_decref(m->last_eval);
    json_decref(m->end);
    memset(m, 0, sizeof(*m));
}

double toy_step(struct toy *t, const char *name)
{
    static const char key[] = "\"step\":";
    const char *path = place_text(t->place, "%s/%s.jsonl", t->place->root, name);
    char *text = place_read(path, NULL);
    double step = 0;
    /* A line that is half written ends early: the number before it counts. */
    for (const char *at = text; at != NULL && (at = strstr(at, key)) != NULL; at += sizeof(key)) {
        if (strchr(at, '\n') != NULL)
            step = strtod(at + strlen(key), NULL);
    }
    free(text);
    return step;
}

/* ---- status -------------------------------------------------------------------------------- */

static json_t *ask_status(struct toy *t)
{
    json_error_t error;
    struct proc *proc = START(t->place, "status", "status", "--wait", "10s", "--run", t->run,
                              "--join", t->addr[1], "--json");
    assert_int_equal(proc_wait(proc), 0);
    char *text = place_read(proc->out, NULL);
    assert_non_null(text);
    json_t *status = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (status == NULL)
        fail_msg("status: %s in %s", error.text, text);
    free(text);
    proc_forget(proc);
    return status;
}

json_t *toy_status(struct toy *t, size_t hosts, double coverage)
{
    struct wait w = {0};
    for (;;) {
        json_t *status = ask_status(t);
        if (toy_status_count(status, "host") == hosts &&
            fabs(toy_status_coverage(status) - coverage) < 1e-6)
            return status;
        json_decref(status);
        wait_step(&w, "a status with the hosts and coverage expected");
    }
}

size_t toy_status_count(const json_t *status, const char *role)
{
    const json_t *nodes = json_object_get(status, "nodes");
    size_t count = 0;
    assert_true(json_is_array(nodes));
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const char *is = json_string_value(json_object_get(json_array_get(nodes, i), "role"));
        assert_non_null(is);
        count += strcmp(is, role) == 0;
    }
    return count;
}

double toy_status_coverage(const json_t *status)
{
    const json_t *layers = json_object_get(status, "layers");
    assert_int_equal(json_array_size(layers), 1);
    return toy_number(json_array_get(layers, 0), "coverage");
}
