/* SPDX-License-Identifier: Apache-2.0 */
/* fill.c: hearth fill: what a masked language model puts in the place of [MASK]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/use.h"
#include "cli/json.h"
#include "core/mem.h"
#include "data/words.h"
#include "kernels/math64.h"
#include "kernels/ops.h"

#define MASK        HTH_MASK_TEXT
#define GUESSES_MAX 20

struct guess {
    uint32_t token;
    double p;
};

struct filling {
    struct hth_use use;
    const char *text;
    uint32_t guesses;
    int32_t *ids;
    size_t count;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_GUESSES = 0x5400 };

static const struct argp_option options[] = {
    {"guesses", KEY_GUESSES, "N", 0, "Likeliest ones to show for each mask (default 5)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct filling *f = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = state->child_inputs[1] = &f->use.flags;
        break;
    case KEY_GUESSES:
        f->guesses = (uint32_t)hth_cli_number(state, "--guesses", arg, 1, GUESSES_MAX);
        break;
    case ARGP_KEY_ARG:
        if (f->text != NULL)
            argp_error(state, "one text is expected: put quotes around it");
        f->text = arg;
        break;
    case ARGP_KEY_END:
        if (f->text == NULL || strstr(f->text, MASK) == NULL)
            argp_error(state,
                       "a text with " MASK " is expected, such as 'the " MASK " of the sea'");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_child children[] = {
    {&hth_use_argp, 0, NULL, 0}, {&hth_use_data_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .children = children,
    .args_doc = "TEXT",
    .doc = "Fill in the " MASK " of a text with a trained language model of objective masked.",
};

/* ---- the text ------------------------------------------------------------------------------ */

static enum hth_err take_text(struct filling *f)
{
    size_t len = strlen(f->text);
    if (len <= HTH_PROMPT_BYTES_MAX) {
        f->ids = hth_opened_ids(&f->use.model, f->text, len, &f->count);
        if (f->count <= f->use.model.model.seq_len)
            return HTH_OK;
    }
    hth_cli_say_error("the text is too long: the model sees %u tokens at once; give fewer words "
                      "around " MASK,
                      f->use.model.model.seq_len);
    return HTH_E_USAGE;
}

/* ---- the answer ---------------------------------------------------------------------------- */

static int cmp_guess(const void *a, const void *b)
{
    const struct guess *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* The likeliest tokens of a row, the first of f->guesses. */
static void guess(const struct filling *f, uint32_t row, struct guess out[GUESSES_MAX])
{
    const float *logits = hth_infer_logits(f->use.infer, 0, row);
    uint32_t n = f->use.model.model.classes;
    struct guess *all = hth_new_array(struct guess, n);
    double sum = 0, top = (double)logits[0];
    for (uint32_t i = 1; i < n; i++)
        top = HTH_MAX(top, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++) {
        all[i] = (struct guess){i, hth_exp64((double)logits[i] - top)};
        sum += all[i].p;
    }
    qsort(all, n, sizeof(*all), cmp_guess);
    for (uint32_t i = 0; i < f->guesses; i++)
        out[i] = i < n ? (struct guess){all[i].token, all[i].p / sum} : (struct guess){0, 0};
    hth_free(all);
}

static json_t *guesses_json(const struct filling *f, const struct guess *g)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < f->guesses; i++) {
        int32_t id = (int32_t)g[i].token;
        char *word = hth_opened_text(&f->use.model, &id, 1);
        json_t *o = json_object();
        hth_json_text(o, "word", word);
        hth_json_real(o, "p", g[i].p);
        json_array_append_new(list, o);
        hth_free(word);
    }
    return list;
}

static void print_guesses(const struct filling *f, const struct guess *g, uint32_t number)
{
    printf("mask %u:", number);
    for (uint32_t i = 0; i < f->guesses; i++) {
        int32_t id = (int32_t)g[i].token;
        char *word = hth_opened_text(&f->use.model, &id, 1);
        printf("%s '%s' %.1f %%", i > 0 ? "," : "", word, 100 * g[i].p);
        hth_free(word);
    }
    putchar('\n');
}

static void report(struct filling *f)
{
    json_t *masks = json_array();
    struct guess g[GUESSES_MAX];
    uint32_t number = 0;
    for (size_t i = 0; i < f->count; i++) {
        if ((uint32_t)f->ids[i] != f->use.model.model.classes)
            continue;
        guess(f, (uint32_t)i, g);
        f->ids[i] = (int32_t)g[0].token;
        number++;
        if (f->use.flags.json)
            json_array_append_new(masks, guesses_json(f, g));
        else
            print_guesses(f, g, number);
    }
    char *text = hth_opened_text(&f->use.model, f->ids, f->count);
    json_t *o = json_object();
    hth_json_text(o, "text", text);
    hth_json_take(o, "masks", masks);
    if (f->use.flags.json) {
        hth_use_print_json_take(o);
    } else {
        json_decref(o);
        printf("%s\n", text);
    }
    hth_free(text);
}

static void on_done(void *arg, enum hth_err err)
{
    struct filling *f = arg;
    if (err != HTH_OK) {
        hth_use_fail(&f->use, err, "");
        return;
    }
    report(f);
    hth_use_stop(&f->use, HTH_EXIT_OK);
}

static void start(void *arg)
{
    struct filling *f = arg;
    enum hth_err err = take_text(f);
    if (err != HTH_OK) {
        hth_use_stop(&f->use, HTH_EXIT_USAGE);
        return;
    }
    struct hth_infer_batch b = hth_infer_batch(f->use.infer);
    for (size_t i = 0; i < f->count; i++) {
        b.tokens[i] = f->ids[i];
        b.labels[i] = HTH_LABEL_NONE;
    }
    err = hth_infer_part(f->use.infer, (uint32_t)f->count, on_done, f);
    if (err != HTH_OK)
        hth_use_fail(&f->use, err, "");
}

static enum hth_err judge(void *arg)
{
    struct filling *f = arg;
    const struct hth_model_opts *m = &f->use.model.model;
    if (m->kind == HTH_MODEL_LM && m->objective == HTH_MASKED)
        return hth_use_check_rows(&f->use);
    return hth_use_refuse(&f->use, "only an lm of objective masked fills in");
}

static uint32_t rows(const void *arg)
{
    const struct filling *f = arg;
    return f->use.model.model.seq_len;
}

int hth_verb_fill(int argc, char **argv)
{
    static const struct hth_use_verb verb = {"fill", judge, rows, start, NULL};
    struct filling f = {.guesses = 5};
    if (argp_parse(&argp, argc, argv, 0, NULL, &f) != 0)
        return HTH_EXIT_USAGE;
    int code = hth_use_main(&f.use, &verb, &f);
    hth_free(f.ids);
    return code;
}
