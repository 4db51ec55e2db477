/* SPDX-License-Identifier: Apache-2.0 */
/* predict.c: hearth predict: the classes that a trained classifier sees in a set's pictures. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/use.h"
#include "cli/json.h"
#include "core/mem.h"
#include "data/picture.h"
#include "data/set.h"
#include "kernels/math64.h"

#define BATCH 256
#define CELL  24 /* pixels of the drawn matrix */

struct predicting {
    struct hth_use use;
    const char *csv_path, *confusion;

    FILE *csv;
    uint32_t classes;
    uint64_t *matrix; /* [classes, classes]: true, predicted */
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_CSV = 0x5100, KEY_CONFUSION };

static const struct argp_option options[] = {
    {"csv", KEY_CSV, "OUT", 0, "Write a line for each picture: number, class, predicted, p", 0},
    {"confusion", KEY_CONFUSION, "PNG", 0,
     "Print the matrix of classes and predictions, and draw it", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct predicting *p = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = state->child_inputs[1] = &p->use.flags;
        break;
    case KEY_CSV:
        p->csv_path = arg;
        break;
    case KEY_CONFUSION:
        p->confusion = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_child children[] = {
    {&hth_use_argp, 0, NULL, 0}, {&hth_use_samples_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .children = children,
    .args_doc = "[DATA]",
    .doc = "Say which classes a trained classifier sees in pictures. DATA is a folder made by "
           "hearth data, or one of idx files (default: the run file's).",
};

/* ---- each picture -------------------------------------------------------------------------- */

/* Name of a class, for a CSV file; its number where the data has no names. */
static const char *class_name(const struct predicting *p, uint32_t i, char *out, size_t size)
{
    const struct hth_manifest *m =
        p->use.model.set != NULL ? hth_set_manifest(p->use.model.set) : NULL;
    size_t at = 0;
    if (m == NULL || i >= m->class_count) {
        snprintf(out, size, "%u", i);
        return out;
    }
    if (strpbrk(m->classes[i], ",\"\n\r") == NULL)
        return m->classes[i];
    out[at++] = '"';
    for (const char *c = m->classes[i]; *c != '\0' && at + 4 < size; c++) {
        if (*c == '"')
            out[at++] = '"';
        out[at++] = *c;
    }
    out[at++] = '"';
    out[at] = '\0';
    return out;
}

static uint32_t largest(const float *logits, uint32_t n, double *probability)
{
    uint32_t best = 0;
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    for (uint32_t i = 0; i < n; i++)
        sum += hth_exp64((double)logits[i] - (double)logits[best]);
    *probability = 1 / sum;
    return best;
}

static void on_batch(void *arg, uint64_t first, uint32_t count, const int32_t *labels)
{
    struct predicting *p = arg;
    char a[512], b[512];
    for (uint32_t i = 0; i < count; i++) {
        double probability;
        uint32_t best = largest(hth_infer_logits(p->use.infer, 0, i), p->classes, &probability);
        if (p->matrix != NULL)
            p->matrix[(size_t)labels[i] * p->classes + best]++;
        if (p->csv != NULL)
            fprintf(p->csv, "%llu,%s,%s,%.6f\n", (unsigned long long)(first + i),
                    class_name(p, (uint32_t)labels[i], a, sizeof(a)),
                    class_name(p, best, b, sizeof(b)), probability);
    }
}

/* ---- the report ---------------------------------------------------------------------------- */

static uint64_t row_sum(const struct predicting *p, uint32_t row)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->classes; i++)
        sum += p->matrix[(size_t)row * p->classes + i];
    return sum;
}

static void print_matrix(const struct predicting *p)
{
    char name[512];
    printf("rows: the class; columns: what was predicted\n%-20s", "");
    for (uint32_t i = 0; i < p->classes; i++)
        printf(" %6u", i);
    putchar('\n');
    for (uint32_t r = 0; r < p->classes; r++) {
        printf("%3u %-16.16s", r, class_name(p, r, name, sizeof(name)));
        for (uint32_t i = 0; i < p->classes; i++)
            printf(" %6llu", (unsigned long long)p->matrix[(size_t)r * p->classes + i]);
        putchar('\n');
    }
}

/* The darker a cell, the more of its row: the diagonal in blue, the rest in red. */
static void paint(const struct predicting *p, uint8_t *rgb)
{
    uint32_t width = p->classes * CELL;
    for (uint32_t y = 0; y < width; y++)
        for (uint32_t x = 0; x < width; x++) {
            uint32_t row = y / CELL, col = x / CELL;
            uint64_t of = HTH_MAX(row_sum(p, row), UINT64_C(1));
            uint8_t *to = rgb + 3 * ((size_t)y * width + x);
            uint8_t light = (uint8_t)(255 - 255 * p->matrix[(size_t)row * p->classes + col] / of);
            to[0] = row == col ? light : 255;
            to[1] = light;
            to[2] = row == col ? 255 : light;
        }
}

static enum hth_err draw_matrix(const struct predicting *p)
{
    size_t side = (size_t)p->classes * CELL;
    uint8_t *rgb = hth_try_calloc(side * side, 3);
    struct hth_blob *png = NULL;
    enum hth_err err = rgb != NULL ? HTH_OK : HTH_E_NO_MEMORY;
    if (err == HTH_OK) {
        paint(p, rgb);
        err = hth_picture_png(rgb, (uint32_t)side, (uint32_t)side, &png);
    }
    if (err == HTH_OK) {
        const struct hth_span span = {png, 0, png->size};
        err = hth_file_write(p->use.env, p->confusion, &span, 1);
    }
    if (err != HTH_OK)
        hth_cli_say_error("%s: %s", p->confusion, hth_err_text(err));
    hth_blob_unref(png);
    hth_free(rgb);
    return err;
}

static int report(struct predicting *p)
{
    struct hth_survey_result r;
    hth_survey_result(p->use.survey, &r);
    double accuracy = (double)r.of[0].correct / (double)HTH_MAX(r.of[0].counted, UINT64_C(1));
    if (p->csv != NULL && (fflush(p->csv) != 0 || ferror(p->csv))) {
        hth_cli_say_error("%s: %s", p->csv_path, strerror(errno));
        return HTH_EXIT_FAILURE;
    }
    if (p->confusion != NULL && !p->use.flags.json)
        print_matrix(p);
    if (p->confusion != NULL && draw_matrix(p) != HTH_OK)
        return HTH_EXIT_FAILURE;
    if (p->use.flags.json) {
        json_t *o = json_object();
        hth_json_count(o, "rows", r.samples);
        hth_json_real(o, "accuracy", accuracy);
        hth_use_print_json_take(o);
    } else {
        hth_say("%llu pictures, %.2f %% right", (unsigned long long)r.samples, 100 * accuracy);
    }
    return HTH_EXIT_OK;
}

/* ---- the run ------------------------------------------------------------------------------- */

static void on_done(void *arg, enum hth_err err)
{
    struct predicting *p = arg;
    if (err != HTH_OK)
        hth_use_fail(&p->use, err, hth_survey_why(p->use.survey));
    else
        hth_use_stop(&p->use, report(p));
}

static void start(void *arg)
{
    struct predicting *p = arg;
    struct hth_survey_opts o = {.on_batch = on_batch, .on_done = on_done, .arg = p};
    p->classes = p->use.model.model.classes;
    if (p->confusion != NULL) {
        p->matrix = hth_try_calloc((size_t)p->classes * p->classes, sizeof(*p->matrix));
        if (p->matrix == NULL) {
            hth_use_fail(&p->use, HTH_E_NO_MEMORY, "the model has too many classes for a matrix");
            return;
        }
    }
    hth_use_survey(&p->use, &o);
}

static enum hth_err judge(void *arg)
{
    struct predicting *p = arg;
    if (p->use.model.model.kind != HTH_MODEL_CLASSIFIER)
        return hth_use_refuse(&p->use, "only a classifier predicts classes");
    if (p->csv_path == NULL)
        return HTH_OK;
    p->csv = fopen(p->csv_path, "w");
    if (p->csv == NULL) {
        hth_cli_say_error("--csv '%s': %s", p->csv_path, strerror(errno));
        return HTH_E_USAGE;
    }
    fputs("sample,class,predicted,probability\n", p->csv);
    return HTH_OK;
}

static uint32_t rows(const void *arg)
{
    (void)arg;
    return BATCH;
}

int hth_verb_predict(int argc, char **argv)
{
    static const struct hth_use_verb verb = {"predict", judge, rows, start, NULL};
    struct predicting p = {.csv = NULL};
    if (argp_parse(&argp, argc, argv, 0, NULL, &p) != 0)
        return HTH_EXIT_USAGE;
    int code = hth_use_main(&p.use, &verb, &p);
    if (p.csv != NULL)
        fclose(p.csv);
    hth_free(p.matrix);
    return code;
}
