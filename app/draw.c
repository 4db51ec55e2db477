/* SPDX-License-Identifier: Apache-2.0 */
/* draw.c: hearth draw: pictures from a caption, with a trained picture model. */
#include "app/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json.h"
#include "core/mem.h"
#include "data/sheet.h"

#define ZOOM 4 /* pixels of the file for one of the picture */

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_SHEET = 0x5500, KEY_BEST, KEY_GUIDE, KEY_EVAL, KEY_SAMPLES };

static const struct argp_option options[] = {
    {"count", 'n', "N", 0, "Pictures to draw (default 1)", 0},
    {"out", 'o', "PNG", 0, "The file; several become NAME-1.png, NAME-2.png .. (default out.png)",
     0},
    {"sheet", KEY_SHEET, NULL, 0, "Put all on one sheet, in lines", 0},
    {"best", KEY_BEST, "K", 0,
     "Keep the K of them that the caption makes likelier, best first (default: all)", 0},
    {"guide", KEY_GUIDE, "S", 0,
     "Above 1 the caption counts for more, if the model learnt without captions, too "
     "(data.caption_drop; default 1)",
     0},
    {"eval", KEY_EVAL, NULL, 0,
     "Measure the model on its data set instead: bits per code, and how often the nearest real "
     "picture has the caption",
     0},
    {"samples", KEY_SAMPLES, "N", 0, "With --eval: captions of each part (default 200)", 0},
    {0},
};

static void check(const struct hth_drawing *d, const struct argp_state *state)
{
    if ((d->caption == NULL) != d->eval)
        argp_error(state, d->eval ? "--eval takes its captions from the data set: give none"
                                  : "a caption is expected, such as 'red heart'");
    if (d->best > d->count)
        argp_error(state, "--best %u of %u pictures: draw more with -n", d->best, d->count);
    if (d->eval && d->best > 0 && d->count > HTH_DRAW_EVAL_BATCH)
        argp_error(state, "-n %u: with --eval --best at most %d", d->count, HTH_DRAW_EVAL_BATCH);
    if (!isfinite(d->opts.guide))
        argp_error(state, "--guide must be a finite number, such as 1.5");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_drawing *d = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = state->child_inputs[1] = &d->use.flags;
        state->child_inputs[2] = &d->opts.sample;
        break;
    case 'n':
        d->count = (uint32_t)hth_cli_number(state, "-n", arg, 1, HTH_PICTURES_MAX);
        break;
    case 'o':
        d->out = arg;
        break;
    case KEY_SHEET:
        d->sheet = true;
        break;
    case KEY_BEST:
        d->best = (uint32_t)hth_cli_number(state, "--best", arg, 1, HTH_PICTURES_MAX);
        break;
    case KEY_GUIDE:
        d->opts.guide = hth_use_real(state, "--guide", arg);
        break;
    case KEY_EVAL:
        d->eval = true;
        break;
    case KEY_SAMPLES:
        d->samples = (uint32_t)hth_cli_number(state, "--samples", arg, 1, 1000000);
        break;
    case ARGP_KEY_ARG:
        if (d->caption != NULL)
            argp_error(state, "one caption is expected: put quotes around it");
        d->caption = arg;
        break;
    case ARGP_KEY_END:
        check(d, state);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_child children[] = {{&hth_use_argp, 0, NULL, 0},
                                             {&hth_use_data_argp, 0, NULL, 0},
                                             {&hth_use_sample_argp, 0, NULL, 0},
                                             {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .children = children,
    .args_doc = "CAPTION",
    .doc = "Draw pictures from a caption with a trained picture model.",
};

/* ---- the result ---------------------------------------------------------------------------- */

struct drawn {
    uint32_t picture;
    double score;
};

static int cmp_drawn(const void *a, const void *b)
{
    const struct drawn *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->picture < y->picture ? -1 : x->picture > y->picture;
}

/* "heart.png" -> "heart-3.png"; heap. */
static char *numbered(const struct hth_drawing *d, uint32_t number, uint32_t files)
{
    const char *slash = strrchr(d->out, '/'), *dot = strrchr(slash != NULL ? slash : d->out, '.');
    int stem = dot != NULL ? (int)(dot - d->out) : (int)strlen(d->out);
    if (files == 1)
        return hth_strdup(d->out);
    return hth_asprintf("%.*s-%u%s", stem, d->out, number, dot != NULL ? dot : "");
}

/* Writes `count` pictures to one file. */
static enum hth_err write_file(struct hth_drawing *d, const char *path, const struct drawn *from,
                               uint32_t count)
{
    uint32_t side = hth_opened_side(&d->use.model), columns = 1;
    struct hth_sheet sheet;
    struct hth_blob *png = NULL;
    uint8_t *rgb = hth_new_array(uint8_t, (size_t)side * side * 3);
    while (columns * columns < count)
        columns++;
    enum hth_err err = hth_sheet_init(&sheet, columns, (count + columns - 1) / columns, side, ZOOM);
    for (uint32_t i = 0; err == HTH_OK && i < count; i++) {
        err = hth_opened_paint(&d->use.model, hth_draw_codes(d->draw, from[i].picture), rgb);
        if (err == HTH_OK)
            hth_sheet_put(&sheet, i, rgb);
    }
    if (err == HTH_OK)
        err = hth_sheet_png(&sheet, &png);
    if (err == HTH_OK) {
        const struct hth_span span = {png, 0, png->size};
        err = hth_file_write(d->use.env, path, &span, 1);
    }
    if (err != HTH_OK)
        hth_cli_say_error("%s: %s", path, hth_err_text(err));
    hth_blob_unref(png);
    hth_sheet_clear(&sheet);
    hth_free(rgb);
    return err;
}

static void tell(const struct hth_drawing *d, const struct drawn *drawn, uint32_t keep,
                 uint32_t files, json_t *list)
{
    double codes = d->use.model.model.height * d->use.model.model.width * 0.6931471805599453;
    for (uint32_t i = 0; i < keep; i++) {
        char *path = numbered(d, i + 1, files);
        double likelihood = hth_draw_likelihood(d->draw, drawn[i].picture);
        json_t *o = json_object();
        hth_json_text(o, "file", path);
        hth_json_real(o, "bits_per_code", -likelihood / codes);
        if (d->opts.score)
            hth_json_real(o, "score", drawn[i].score);
        json_array_append_new(list, o);
        if (!d->use.flags.json && d->opts.score)
            hth_say("%u: %.2f bits per code, score %.1f", i + 1, -likelihood / codes,
                    drawn[i].score);
        hth_free(path);
    }
}

static enum hth_err write_all(struct hth_drawing *d)
{
    struct drawn *drawn = hth_new_array(struct drawn, d->count);
    uint32_t keep = d->best > 0 ? d->best : d->count, files = d->sheet ? 1 : keep;
    enum hth_err err = HTH_OK;
    for (uint32_t i = 0; i < d->count; i++)
        drawn[i] = (struct drawn){i, d->opts.score ? hth_draw_score(d->draw, i) : 0};
    if (d->opts.score)
        qsort(drawn, d->count, sizeof(*drawn), cmp_drawn);
    for (uint32_t i = 0; err == HTH_OK && i < files; i++) {
        char *path = numbered(d, i + 1, files);
        err = write_file(d, path, drawn + i, d->sheet ? keep : 1);
        hth_free(path);
    }
    if (err == HTH_OK) {
        json_t *o = json_object(), *list = json_array();
        double s = (double)(hth_now_us(d->use.env) - d->begun_us) / 1e6;
        tell(d, drawn, keep, files, list);
        hth_json_text(o, "caption", d->caption);
        hth_json_real(o, "seconds", s);
        hth_json_take(o, "pictures", list);
        if (d->use.flags.json) {
            hth_use_print_json_take(o);
        } else {
            char *first = numbered(d, 1, files), *last = numbered(d, files, files);
            json_decref(o);
            hth_say("%u picture%s in %.2f s: %s%s%s", keep, keep == 1 ? "" : "s", s, first,
                    files > 1 ? " to " : "", files > 1 ? last : "");
            hth_free(first);
            hth_free(last);
        }
    }
    hth_free(drawn);
    return err;
}

static void on_done(void *arg, enum hth_err err)
{
    struct hth_drawing *d = arg;
    if (err != HTH_OK) {
        hth_use_fail(&d->use, err, "");
        return;
    }
    err = write_all(d);
    hth_use_stop(&d->use, hth_exit_of(err));
}

/* ---- the start ----------------------------------------------------------------------------- */

/* The caption for every picture. */
static int32_t *captions(const struct hth_drawing *d)
{
    uint32_t text = d->use.model.model.text;
    int32_t *ids = hth_new_array(int32_t, (size_t)d->count * text);
    size_t n = hth_opened_caption(&d->use.model, d->caption, ids);
    if (n > text)
        hth_say_note("the caption has %zu words and bytes of unknown words, and the model reads "
                     "%u: the rest is cut",
                     n - 1, text - 1);
    for (uint32_t i = 1; i < d->count; i++)
        memcpy(ids + (size_t)i * text, ids, text * sizeof(*ids));
    return ids;
}

static void start(void *arg)
{
    struct hth_drawing *d = arg;
    struct hth_why why = {""};
    enum hth_err err = hth_opened_book(&d->use.model, &why);
    if (err != HTH_OK) {
        hth_use_fail(&d->use, err, why.text);
        return;
    }
    d->begun_us = hth_now_us(d->use.env);
    if (d->eval) {
        if (hth_use_has_samples(&d->use))
            hth_draw_eval_start(d);
        return;
    }
    int32_t *ids = captions(d);
    d->opts.on_done = on_done;
    d->opts.arg = d;
    err = hth_draw_new(d->use.env, d->use.infer, ids, d->count, &d->opts, &d->draw);
    hth_free(ids);
    if (err != HTH_OK)
        hth_use_fail(&d->use, err, "");
}

static void clear(void *arg)
{
    struct hth_drawing *d = arg;
    hth_draw_free(d->draw);
    hth_draw_eval_free(d->evaluation);
}

static enum hth_err judge(void *arg)
{
    struct hth_drawing *d = arg;
    return d->use.model.model.kind == HTH_MODEL_PICTURE
               ? HTH_OK
               : hth_use_refuse(&d->use, "only a picture model draws");
}

static uint32_t rows(const void *arg)
{
    const struct hth_drawing *d = arg;
    const struct hth_model_opts *m = &d->use.model.model;
    uint32_t pictures = d->eval ? HTH_DRAW_EVAL_BATCH : d->count;
    return HTH_MAX(hth_draw_rows(m, pictures, d->opts.score || d->opts.guide != 1),
                   d->eval ? HTH_DRAW_EVAL_BATCH * m->seq_len : 0);
}

int hth_verb_draw(int argc, char **argv)
{
    static const struct hth_use_verb verb = {"draw", judge, rows, start, clear};
    struct hth_drawing d = {.out = "out.png", .count = 1, .samples = 200};
    d.opts.guide = 1;
    d.opts.sample = (struct hth_sample_opts){1, 256, 0.75f, 1};
    if (argp_parse(&argp, argc, argv, 0, NULL, &d) != 0)
        return HTH_EXIT_USAGE;
    d.opts.score = d.best > 0;
    return hth_use_main(&d.use, &verb, &d);
}
