/* SPDX-License-Identifier: Apache-2.0 */
/* prompts.c: see prompts.h. */
#include "app/prompts.h"

#include "app/opened.h"
#include "cli/say.h"
#include "core/mem.h"
#include "data/picture.h"
#include "data/set.h"
#include "data/words.h"
#include "kernels/backend.h"
#include "kernels/ops.h"
#include "trainer/draw.h"
#include "trainer/write.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define COUNT        HTH_GALLERY_MAX
#define PROMPT_BYTES 200
#define FILE_BYTES   65536 /* of prompts.txt */
#define TEXT_BYTES   1024  /* read of a text for one prompt */
#define WORDS        4     /* that a sentence begins with; a masked one has twice as many */
#define TOKENS       24    /* to write; of bytes four times as many */
#define PAUSE_US     (10 * HTH_US_PER_S)

struct hth_prompts {
    struct hth_env *env;
    const char *dir;
    hth_fn *on_new;
    void *arg;
    struct stat seen; /* the trunk's file, as last asked */
    int64_t begun_us, next_us;
    bool busy, same;
    char said[sizeof(((struct hth_why *)NULL)->text)];
    struct hth_gallery *gallery;

    /* of the renewal that is under way */
    struct hth_job job;
    struct hth_opened model;
    struct hth_infer *infer;
    char prompt[COUNT][PROMPT_BYTES + 1];
    uint32_t count, at;
    struct hth_draw *draw;
    struct hth_write *write;
    int32_t *ids; /* of the prompt, and what was written */
    size_t id_count;
    struct hth_gallery *making;
    struct hth_why why;
    enum hth_err err;
};

/* ---- prompts ------------------------------------------------------------------------------- */

/* Keeps the first line of a text, cut between two characters, unless it is blank or a repeat. */
static void add_line(struct hth_prompts *p, const char *text, size_t len)
{
    char *to = p->prompt[p->count];
    size_t n = 0;
    while (n < len && text[n] != '\n' && text[n] != '\0')
        n++;
    while (n > 0 && strchr(" \t\r", text[n - 1]) != NULL)
        n--;
    if (n > PROMPT_BYTES)
        for (n = PROMPT_BYTES; n > 0 && ((uint8_t)text[n] & 0xc0) == 0x80;)
            n--;
    if (n == 0 || p->count == COUNT)
        return;
    memcpy(to, text, n);
    to[n] = '\0';
    for (uint32_t i = 0; i < p->count; i++)
        if (strcmp(p->prompt[i], to) == 0)
            return;
    p->count++;
}

static enum hth_err read_file(struct hth_prompts *p)
{
    char *path = hth_asprintf("%s/" HTH_PROMPTS_FILE, p->dir);
    struct hth_blob *bytes = NULL;
    enum hth_err err = hth_file_read(p->env, path, FILE_BYTES, &bytes);
    for (size_t at = 0; err == HTH_OK && at < bytes->size && p->count < COUNT;) {
        const uint8_t *line = bytes->data + at, *end = memchr(line, '\n', bytes->size - at);
        size_t len = end != NULL ? (size_t)(end - line) : bytes->size - at;
        add_line(p, (const char *)line, len);
        at += len + 1;
    }
    if (err != HTH_OK && err != HTH_E_NO_FILE)
        err = hth_blame(&p->why, err, "%s: %s", path, hth_err_text(err));
    hth_blob_unref(bytes);
    hth_free(path);
    return err == HTH_E_NO_FILE ? HTH_OK : err;
}

/* Shortens a line to words that a sentence begins with; a masked one gets a gap. */
static void shorten(const struct hth_prompts *p, char *line)
{
    bool masked = p->model.model.objective == HTH_MASKED;
    char *end = line, *gap = NULL, rest[PROMPT_BYTES + 1];
    for (uint32_t i = 0; i < (masked ? 2 * WORDS : WORDS) && *end != '\0'; i++) {
        end += strspn(end, " ");
        gap = i == 2 ? end : gap;
        end += strcspn(end, " ");
    }
    *end = '\0';
    if (!masked || gap == NULL || strstr(line, HTH_MASK_TEXT) != NULL)
        return;
    size_t gone = p->model.words != NULL ? strcspn(gap, " ") : 1;
    memcpy(rest, gap + gone, strlen(gap + gone) + 1);
    snprintf(gap, (size_t)(line + PROMPT_BYTES + 1 - gap), HTH_MASK_TEXT "%s", rest);
}

static enum hth_err read_set(struct hth_prompts *p, struct hth_why *why)
{
    const struct hth_manifest *m = hth_set_manifest(p->model.set);
    enum hth_set_part part = m->samples[HTH_SET_TEST] > 0 ? HTH_SET_TEST : HTH_SET_TRAIN;
    struct hth_sample s;
    for (uint64_t i = 0; i < 2 * COUNT && p->count < COUNT; i++) {
        HTH_TRY(hth_set_seek(p->model.set, part, i * m->samples[part] / (2 * COUNT), why));
        HTH_TRY(hth_set_next(p->model.set, &s, why));
        if (s.text != NULL)
            add_line(p, s.text, s.text_len);
    }
    return HTH_OK;
}

/* Lines of the held-out part of a text file. */
static enum hth_err read_text(struct hth_prompts *p, const struct hth_data_opts *data,
                              struct hth_why *why)
{
    char bytes[TEXT_BYTES];
    uint64_t size;
    enum hth_err err = hth_file_size(p->env, data->text, &size);
    for (uint64_t i = 0; i < COUNT && err == HTH_OK; i++) {
        double part = data->begin + (data->end - data->begin) * (double)i / COUNT;
        size_t got = 0;
        err = hth_file_pread(p->env, data->text, (uint64_t)(part * (double)size), bytes,
                             sizeof(bytes), &got);
        const char *line = err == HTH_OK ? memchr(bytes, '\n', got) : NULL;
        while (line != NULL && line < bytes + got && *line == '\n')
            line++;
        if (line != NULL)
            add_line(p, line, (size_t)(bytes + got - line));
    }
    return err == HTH_OK ? HTH_OK : hth_blame(why, err, "%s: %s", data->text, hth_err_text(err));
}

static enum hth_err choose_prompts(struct hth_prompts *p)
{
    struct hth_data_opts data;
    struct hth_why why = {""};
    enum hth_err err = HTH_E_NOT_FOUND;
    HTH_TRY(read_file(p));
    if (p->count > 0)
        return HTH_OK;
    hth_opened_samples(&p->model, true, &data);
    if (p->model.set != NULL)
        err = read_set(p, &why);
    else if (data.kind == HTH_DATA_TEXT)
        err = read_text(p, &data, &why);
    for (uint32_t i = 0; i < p->count && p->model.model.kind == HTH_MODEL_LM; i++)
        shorten(p, p->prompt[i]);
    if (p->count > 0)
        return HTH_OK;
    return hth_blame(&p->why, err != HTH_OK ? err : HTH_E_NOT_FOUND,
                     "%s%sthere are no prompts: write up to %d lines to %s/" HTH_PROMPTS_FILE,
                     why.text, why.text[0] != '\0' ? "; " : "", COUNT, p->dir);
}

/* ---- opening: a job of the io lane ---------------------------------------------------------- */

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static enum hth_err judge(struct hth_prompts *p)
{
    const struct hth_model_opts *m = &p->model.model;
    if (m->kind == HTH_MODEL_CLASSIFIER)
        return hth_blame(&p->why, HTH_E_CONFIG,
                         "%s is of a classifier, which neither writes nor draws", p->model.path);
    return m->kind == HTH_MODEL_LM ? hth_opened_check_rows(&p->model, &p->why) : HTH_OK;
}

static enum hth_err open_model(struct hth_prompts *p)
{
    const struct hth_opened_opts opts = {.dir = p->dir};
    const struct hth_model_opts *m = &p->model.model;
    struct hth_infer_opts in = HTH_INFER_OPTS_INIT;
    HTH_TRY(hth_opened_read(p->env, &opts, &p->model, &p->why));
    HTH_TRY(judge(p));
    HTH_TRY(hth_opened_data(p->env, &p->model, &p->why));
    if (m->kind == HTH_MODEL_PICTURE)
        HTH_TRY(hth_opened_book(&p->model, &p->why));
    HTH_TRY(choose_prompts(p));
    HTH_TRY(hth_backend_packed(&HTH_PACKED_OPTIONS_INIT, &in.backend));
    in.rows = m->kind == HTH_MODEL_PICTURE ? hth_draw_rows(m, p->count, false) : m->seq_len;
    enum hth_err err = hth_opened_infer(p->env, &p->model, &in, &p->infer, &p->why);
    if (err == HTH_E_NO_FILE)
        snprintf(p->why.text, sizeof(p->why.text),
                 "%s: its experts are on their hosts: hearth export --join fetches them, and "
                 "hearth import makes a folder of all",
                 p->model.path);
    return err;
}

static void open_run(struct hth_job *job)
{
    struct hth_prompts *p = HTH_CONTAINER(job, struct hth_prompts, job);
    char *path = hth_asprintf("%s/trunk.safetensors", p->dir);
    struct stat now = {.st_size = 0};
    p->same = stat(path, &now) == 0 && is_same(&now, &p->seen);
    p->seen = now;
    hth_free(path);
    p->err = p->same ? HTH_OK : open_model(p);
}

/* ---- painting: likewise -------------------------------------------------------------------- */

/* All drawings side by side; white where there are fewer. */
static enum hth_err paint(struct hth_prompts *p)
{
    uint32_t side = hth_opened_side(&p->model), width = HTH_GALLERY_MAX * side;
    uint8_t *rgb = hth_new_array(uint8_t, (size_t)width * side * 3);
    uint8_t *one = hth_new_array(uint8_t, (size_t)side * side * 3);
    enum hth_err err = HTH_OK;
    memset(rgb, 255, (size_t)width * side * 3);
    for (uint32_t i = 0; i < p->count && err == HTH_OK; i++) {
        err = hth_opened_paint(&p->model, hth_draw_codes(p->draw, i), one);
        for (uint32_t y = 0; y < side && err == HTH_OK; y++)
            memcpy(rgb + 3 * ((size_t)y * width + i * side), one + 3 * (size_t)y * side, 3 * side);
        hth_gallery_add(p->making, p->prompt[i], NULL);
    }
    if (err == HTH_OK)
        err = hth_picture_png(rgb, width, side, &p->making->png);
    hth_free(rgb);
    hth_free(one);
    return err;
}

static void close_run(struct hth_job *job)
{
    struct hth_prompts *p = HTH_CONTAINER(job, struct hth_prompts, job);
    if (p->err == HTH_OK && p->draw != NULL)
        p->err = paint(p);
    hth_infer_free(p->infer); /* here, as giving much memory back takes its time */
    p->infer = NULL;
    hth_opened_clear(&p->model);
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void clear(struct hth_prompts *p)
{
    hth_infer_free(p->infer);
    hth_draw_free(p->draw);
    hth_write_free(p->write);
    hth_free(p->ids);
    hth_opened_clear(&p->model);
    hth_gallery_unref(p->making);
    p->infer = NULL;
    p->draw = NULL;
    p->write = NULL;
    p->ids = NULL;
    p->making = NULL;
    p->count = p->at = 0;
}

static void say(struct hth_prompts *p)
{
    const char *why = p->why.text[0] != '\0' ? p->why.text : hth_err_text(p->err);
    if (strcmp(p->said, why) != 0)
        hth_say_note("the page shows no answers to prompts yet: %s", why);
    snprintf(p->said, sizeof(p->said), "%s", why);
}

static void ended(struct hth_job *job, enum hth_err err)
{
    struct hth_prompts *p = HTH_CONTAINER(job, struct hth_prompts, job);
    int64_t now = hth_now_us(p->env);
    p->err = err != HTH_OK ? err : p->err;
    if (p->err == HTH_OK) {
        hth_gallery_unref(p->gallery);
        p->gallery = p->making;
        p->making = NULL;
        p->said[0] = '\0';
    } else {
        p->seen = (struct stat){.st_size = 0};
        if (p->err != HTH_E_CANCELED)
            say(p);
    }
    clear(p);
    p->next_us = now + HTH_MAX(PAUSE_US, 9 * (now - p->begun_us));
    p->busy = false;
    if (p->err == HTH_OK)
        p->on_new(p->arg);
}

/* The lane is full: another time. */
static void give_up(void *arg)
{
    struct hth_prompts *p = arg;
    ended(&p->job, HTH_E_CANCELED);
}

static void submit(struct hth_prompts *p, void (*run)(struct hth_job *),
                   void (*done)(struct hth_job *, enum hth_err))
{
    p->job = (struct hth_job){.lane = HTH_LANE_IO, .run = run, .done = done};
    if (hth_job_submit(p->env, &p->job) != HTH_OK)
        hth_post(p->env, give_up, p);
}

static void close_model(void *arg)
{
    submit(arg, close_run, ended);
}

/* Also from a callback of the model, which must have returned before the model goes. */
static void finish(struct hth_prompts *p, enum hth_err err)
{
    p->err = err;
    hth_post(p->env, close_model, p);
}

static void on_drawn(void *arg, enum hth_err err)
{
    finish(arg, err);
}

static enum hth_err draw(struct hth_prompts *p)
{
    struct hth_draw_opts opts = {.guide = 1, .on_done = on_drawn, .arg = p};
    uint32_t text = p->model.model.text;
    opts.sample = (struct hth_sample_opts){.top_p = 1};
    p->ids = hth_new_array(int32_t, (size_t)p->count * text);
    for (uint32_t i = 0; i < p->count; i++)
        (void)hth_opened_caption(&p->model, p->prompt[i], p->ids + (size_t)i * text);
    return hth_draw_new(p->env, p->infer, p->ids, p->count, &opts, &p->draw);
}

static void next_text(struct hth_prompts *p);

static void add_text(struct hth_prompts *p)
{
    char *text = hth_opened_text(&p->model, p->ids, p->id_count);
    for (char *end = text; (end = strpbrk(end, "\n\t")) != NULL;)
        *end = ' ';
    hth_gallery_add(p->making, p->prompt[p->at], text);
    hth_free(text);
    p->at++;
    next_text(p);
}

static void on_token(void *arg, int32_t token)
{
    struct hth_prompts *p = arg;
    p->ids[p->id_count++] = token;
}

static void on_written(void *arg, enum hth_err err)
{
    struct hth_prompts *p = arg;
    hth_write_free(p->write);
    p->write = NULL;
    if (err == HTH_OK)
        add_text(p);
    else
        finish(p, err);
}

static enum hth_err write_on(struct hth_prompts *p)
{
    const struct hth_write_opts opts = {.sample = {.temperature = 0.5f, .top_p = 1, .seed = 1},
                                        .tokens = p->model.words != NULL ? TOKENS : 4 * TOKENS,
                                        .on_token = on_token,
                                        .on_done = on_written,
                                        .arg = p};
    p->ids = hth_realloc(p->ids, p->id_count + opts.tokens, sizeof(*p->ids));
    return hth_write_new(p->env, p->infer, p->ids, p->id_count, &opts, &p->write);
}

static void on_filled(void *arg, enum hth_err err)
{
    struct hth_prompts *p = arg;
    int32_t classes = (int32_t)p->model.model.classes;
    if (err != HTH_OK) {
        finish(p, err);
        return;
    }
    for (size_t i = 0; i < p->id_count; i++) {
        const float *logits = hth_infer_logits(p->infer, 0, (uint32_t)i);
        if (p->ids[i] != classes)
            continue;
        p->ids[i] = 0;
        for (int32_t k = 1; k < classes; k++)
            if (logits[k] > logits[p->ids[i]])
                p->ids[i] = k;
    }
    add_text(p);
}

static enum hth_err fill(struct hth_prompts *p)
{
    struct hth_infer_batch b = hth_infer_batch(p->infer);
    p->id_count = HTH_MIN(p->id_count, (size_t)p->model.model.seq_len);
    for (size_t i = 0; i < p->id_count; i++) {
        b.tokens[i] = p->ids[i];
        b.labels[i] = HTH_LABEL_NONE;
    }
    return hth_infer_part(p->infer, (uint32_t)p->id_count, on_filled, p);
}

static void next_text(struct hth_prompts *p)
{
    if (p->at == p->count) {
        finish(p, HTH_OK);
        return;
    }
    hth_free(p->ids);
    p->ids = hth_opened_ids(&p->model, p->prompt[p->at], strlen(p->prompt[p->at]), &p->id_count);
    enum hth_err err = p->model.model.objective == HTH_MASKED ? fill(p) : write_on(p);
    if (err != HTH_OK)
        finish(p, err);
}

static void opened(struct hth_job *job, enum hth_err err)
{
    struct hth_prompts *p = HTH_CONTAINER(job, struct hth_prompts, job);
    if (err == HTH_OK && p->same) {
        p->busy = false;
        return;
    }
    if (err != HTH_OK || p->err != HTH_OK) {
        ended(job, err);
        return;
    }
    p->making = hth_gallery_new();
    p->making->step = p->model.about->updates;
    p->making->t = (uint32_t)(hth_wall_us(p->env) / HTH_US_PER_S);
    if (p->model.model.kind == HTH_MODEL_LM) {
        next_text(p);
        return;
    }
    err = draw(p);
    if (err != HTH_OK)
        finish(p, err);
}

void hth_prompts_look(struct hth_prompts *p)
{
    if (p == NULL || p->busy || hth_now_us(p->env) < p->next_us)
        return;
    p->busy = true;
    p->begun_us = hth_now_us(p->env);
    p->why.text[0] = '\0';
    submit(p, open_run, opened);
}

struct hth_prompts *hth_prompts_new(struct hth_env *env, const char *dir, hth_fn *on_new, void *arg)
{
    struct hth_prompts *p = hth_new(struct hth_prompts);
    p->env = env;
    p->dir = dir;
    p->on_new = on_new;
    p->arg = arg;
    hth_prompts_look(p);
    return p;
}

void hth_prompts_free(struct hth_prompts *p)
{
    if (p == NULL)
        return;
    clear(p);
    hth_gallery_unref(p->gallery);
    hth_free(p);
}

struct hth_gallery *hth_prompts_gallery(const struct hth_prompts *p)
{
    return p != NULL ? p->gallery : NULL;
}
