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

#define MASK        "[MASK]"
#define GUESSES_MAX 20

struct guess {
    uint32_t token;
    double p;
};

struct filling {
    struct hth_use use;
    const char *text;
    bool json;
    uint32_t guesses;
    int32_t *ids;
    uint32_t count;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_GUESSES = 0x5400, KEY_JSON };

static const struct argp_option options[] = {
    {"guesses", KEY_GUESSES, "N", 0, "Likeliest ones to show for each mask (default 5)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object: text, masks", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct filling *f = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &f->use.flags;
        break;
    case KEY_GUESSES:
        f->guesses = (uint32_t)hth_cli_number(state, "--guesses", arg, 1, GUESSES_MAX);
        break;
    case KEY_JSON:
        f->json = true;
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

static const struct argp_child children[] = {{&hth_use_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .children = children,
    .args_doc = "TEXT",
    .doc = "Fill in the " MASK " of a text with a trained language model of objective masked.",
};

/* ---- the text ------------------------------------------------------------------------------ */

static void add_part(struct filling *f, const char *text, size_t len)
{
    if (f->use.words != NULL) {
        f->count += (uint32_t)hth_words_encode(f->use.words, f->use.model.classes, text, len,
                                               f->ids + f->count, 2 * len + 1);
        return;
    }
    for (size_t i = 0; i < len; i++)
        f->ids[f->count++] = (uint8_t)text[i];
}

/* The ids between the masks, whose own is the one behind all others. */
static enum hth_err take_text(struct filling *f)
{
    size_t len = strlen(f->text);
    if (len <= HTH_PROMPT_BYTES_MAX) {
        f->ids = hth_new_array(int32_t, 2 * len + 2);
        if (f->use.words != NULL)
            f->ids[f->count++] = HTH_ID_BEGIN;
        for (const char *at = f->text, *mask;; at = mask + strlen(MASK)) {
            mask = strstr(at, MASK);
            add_part(f, at, mask != NULL ? (size_t)(mask - at) : strlen(at));
            if (mask == NULL)
                break;
            f->ids[f->count++] = (int32_t)f->use.model.classes;
        }
        if (f->count <= f->use.model.seq_len)
            return HTH_OK;
    }
    hth_cli_say_error("the text is too long: the model sees %u tokens at once; give fewer words "
                      "around " MASK,
                      f->use.model.seq_len);
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
    uint32_t n = f->use.model.classes;
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

/* Text of ids, as a terminal can show it; heap. */
static char *text_of(const struct filling *f, const int32_t *ids, uint32_t count)
{
    size_t room = (size_t)count * (HTH_WORD_BYTES_MAX + 1) + 1, len = 0, at = 0, n = count;
    char *raw = hth_new_array(char, room), *out = hth_new_array(char, room *HTH_TEXT_CHAR_MAX);
    for (uint32_t i = 0; i < count; i++)
        raw[i] = (char)ids[i];
    if (f->use.words != NULL)
        n = hth_words_decode(f->use.words, ids, count, raw, room);
    while (at < n) {
        at += hth_text_char(raw + at, n - at, false, out + len);
        len += strlen(out + len);
    }
    hth_free(raw);
    return out;
}

static json_t *guesses_json(const struct filling *f, const struct guess *g)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < f->guesses; i++) {
        int32_t id = (int32_t)g[i].token;
        char *word = text_of(f, &id, 1);
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
        char *word = text_of(f, &id, 1);
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
    for (uint32_t i = 0; i < f->count; i++) {
        if ((uint32_t)f->ids[i] != f->use.model.classes)
            continue;
        guess(f, i, g);
        f->ids[i] = (int32_t)g[0].token;
        number++;
        if (f->json)
            json_array_append_new(masks, guesses_json(f, g));
        else
            print_guesses(f, g, number);
    }
    char *text = text_of(f, f->ids, f->count);
    json_t *o = json_object();
    hth_json_text(o, "text", text);
    hth_json_take(o, "masks", masks);
    if (f->json)
        hth_json_print_take(stdout, o);
    else
        json_decref(o);
    printf("%s\n", f->json ? "" : text);
    hth_free(text);
    hth_use_say_lost(&f->use);
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

static void on_ready(void *arg)
{
    struct filling *f = arg;
    enum hth_err err = take_text(f);
    if (err != HTH_OK) {
        hth_use_stop(&f->use, HTH_EXIT_USAGE);
        return;
    }
    struct hth_infer_batch b = hth_infer_batch(f->use.infer);
    for (uint32_t i = 0; i < f->count; i++) {
        b.tokens[i] = f->ids[i];
        b.labels[i] = HTH_LABEL_NONE;
    }
    err = hth_infer_part(f->use.infer, f->count, on_done, f);
    if (err != HTH_OK)
        hth_use_fail(&f->use, err, "");
}

static enum hth_err judge(const struct hth_use *u)
{
    if (u->model.kind == HTH_MODEL_LM && u->model.objective == HTH_MASKED)
        return hth_use_check_rows(u);
    hth_cli_say_error("%s is of %s, and only an lm of objective masked fills in: try hearth %s",
                      u->path, hth_use_kind(u), hth_use_verb(u));
    return HTH_E_CONFIG;
}

int hth_verb_fill(int argc, char **argv)
{
    struct filling f = {.guesses = 5};
    f.use.arg = &f;
    if (argp_parse(&argp, argc, argv, 0, NULL, &f) != 0)
        return HTH_EXIT_USAGE;
    int code = hth_use_load(&f.use, NULL);
    if (code == HTH_EXIT_OK)
        code = hth_exit_of(judge(&f.use));
    if (code == HTH_EXIT_OK)
        code = hth_use_open(&f.use, "fill", f.use.model.seq_len);
    if (code == HTH_EXIT_OK)
        code = hth_use_run(&f.use, on_ready);
    hth_use_close(&f.use);
    hth_free(f.ids);
    return code;
}
