/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write.c: hearth write: continues a text with a trained language model, and shows it as it is
 * made.
 */
#include "trainer/write.h"

#include <stdio.h>
#include <string.h>

#include "app/use.h"
#include "cli/json.h"
#include "core/mem.h"
#include "data/words.h"

/* Whether a blank stands between two ids depends on no more of them than this. */
#define RECENT 8

struct writing {
    struct hth_use use;
    const char *given; /* the prompt, or "-" */
    uint32_t tokens;
    struct hth_sample_opts sample;

    struct hth_write *write;
    char *text; /* the prompt and what was written */
    size_t len, room, shown;
    int32_t recent[RECENT]; /* the last ids, where tokens are words */
    uint32_t recent_count;
    int64_t begun_us;
};

/* ---- flags --------------------------------------------------------------------------------- */

enum { KEY_TOKENS = 0x5000 };

static const struct argp_option options[] = {
    {"tokens", KEY_TOKENS, "N", 0, "Bytes or words to write (default 200)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct writing *w = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = state->child_inputs[1] = &w->use.flags;
        state->child_inputs[2] = &w->sample;
        break;
    case KEY_TOKENS:
        w->tokens = (uint32_t)hth_cli_number(state, "--tokens", arg, 1, HTH_WRITE_TOKENS_MAX);
        break;
    case ARGP_KEY_ARG:
        if (w->given != NULL)
            argp_error(state, "one prompt is expected: put quotes around it");
        w->given = arg;
        break;
    case ARGP_KEY_END:
        if (w->given == NULL)
            argp_error(state, "a prompt is expected: the beginning of the text, such as "
                              "'In the beginning'; - reads it from standard input");
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
    .args_doc = "PROMPT",
    .doc = "Continue a text with a trained language model. With --join its experts are asked on "
           "their hosts.",
};

/* ---- the prompt ---------------------------------------------------------------------------- */

static void append(struct writing *w, const char *text, size_t len)
{
    if (w->len + len > w->room) {
        w->room = 2 * (w->len + len);
        w->text = hth_realloc(w->text, w->room, 1);
    }
    memcpy(w->text + w->len, text, len);
    w->len += len;
}

static enum hth_err take_prompt(struct writing *w)
{
    static char text[HTH_PROMPT_BYTES_MAX + 1];
    size_t len = strnlen(w->given, sizeof(text));
    if (strcmp(w->given, "-") == 0)
        len = fread(text, 1, sizeof(text), stdin);
    else
        memcpy(text, w->given, len);
    if (len > 0 && len <= HTH_PROMPT_BYTES_MAX) {
        append(w, text, len);
        return HTH_OK;
    }
    if (len == 0)
        hth_cli_say_error("the prompt is empty: give the beginning of a text, such as 'In the "
                          "beginning'");
    else
        hth_cli_say_error("the prompt has more than %u bytes: give its end; the model sees %u "
                          "tokens",
                          HTH_PROMPT_BYTES_MAX, w->use.model.model.seq_len);
    return HTH_E_USAGE;
}

static enum hth_err judge(void *arg)
{
    struct writing *w = arg;
    const struct hth_model_opts *m = &w->use.model.model;
    if (m->kind != HTH_MODEL_LM || m->objective == HTH_MASKED)
        return hth_use_refuse(&w->use, "only an lm that learnt to go on writes");
    HTH_TRY(hth_use_check_rows(&w->use));
    return take_prompt(w);
}

static uint32_t rows(const void *arg)
{
    const struct writing *w = arg;
    return w->use.model.model.seq_len;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Shows what is complete: a model may write half a character, or none at all. */
static void show(struct writing *w, bool end)
{
    while (!w->use.flags.json && w->shown < w->len) {
        char safe[HTH_TEXT_CHAR_MAX];
        size_t n = hth_text_char(w->text + w->shown, w->len - w->shown, !end, safe);
        if (n == 0)
            break;
        w->shown += n;
        fputs(safe, stdout);
    }
    fflush(stdout);
}

static void add_id(struct writing *w, int32_t id)
{
    if (w->recent_count == RECENT)
        memmove(w->recent, w->recent + 1, --w->recent_count * sizeof(*w->recent));
    w->recent[w->recent_count++] = id;
}

/* Appends the text that an id adds to those before it. */
static void append_word(struct writing *w, int32_t id)
{
    char before[(RECENT + 1) * (HTH_WORD_BYTES_MAX + 1)], after[sizeof(before)];
    size_t had =
        hth_words_decode(w->use.model.words, w->recent, w->recent_count, before, sizeof(before));
    size_t n = w->recent_count;
    int32_t ids[RECENT + 1];
    memcpy(ids, w->recent, n * sizeof(*ids));
    ids[n] = id;
    size_t has = hth_words_decode(w->use.model.words, ids, n + 1, after, sizeof(after));
    append(w, after + had, has - had);
    add_id(w, id);
}

static void on_token(void *arg, int32_t token)
{
    struct writing *w = arg;
    char byte = (char)token;
    if (w->use.model.words != NULL)
        append_word(w, token);
    else
        append(w, &byte, 1);
    show(w, false);
}

static void print_json(const struct writing *w, double per_s)
{
    json_t *o = json_object();
    char *safe = hth_new_array(char, (w->len + 1) * HTH_TEXT_CHAR_MAX);
    size_t at = 0, len = 0;
    while (at < w->len) {
        at += hth_text_char(w->text + at, w->len - at, false, safe + len);
        len += strlen(safe + len);
    }
    hth_json_text(o, "text", safe);
    hth_json_count(o, "tokens", w->tokens);
    hth_json_real(o, "tokens_per_s", per_s);
    hth_use_print_json_take(o);
    hth_free(safe);
}

static void on_done(void *arg, enum hth_err err)
{
    struct writing *w = arg;
    double s = (double)(hth_now_us(w->use.env) - w->begun_us) / 1e6;
    if (err != HTH_OK) {
        hth_use_fail(&w->use, err, "");
        return;
    }
    show(w, true);
    if (w->use.flags.json)
        print_json(w, w->tokens / s);
    else
        putchar('\n');
    hth_use_stop(&w->use, HTH_EXIT_OK);
}

static void start(void *arg)
{
    struct writing *w = arg;
    const struct hth_write_opts opts = {.sample = w->sample,
                                        .tokens = w->tokens,
                                        .on_token = on_token,
                                        .on_done = on_done,
                                        .arg = w};
    size_t count;
    int32_t *prompt = hth_opened_ids(&w->use.model, w->text, w->len, &count);
    for (size_t i = count > RECENT ? count - RECENT : 0; i < count; i++)
        add_id(w, prompt[i]);
    show(w, false);
    w->begun_us = hth_now_us(w->use.env);
    enum hth_err err = hth_write_new(w->use.env, w->use.infer, prompt, count, &opts, &w->write);
    hth_free(prompt);
    if (err == HTH_E_UNSUPPORTED)
        hth_cli_say_error("a card can't write yet: leave out --device");
    if (err != HTH_OK)
        hth_use_fail(&w->use, err, "");
}

static void clear(void *arg)
{
    struct writing *w = arg;
    hth_write_free(w->write);
}

int hth_verb_write(int argc, char **argv)
{
    static const struct hth_use_verb verb = {"write", judge, rows, start, clear};
    struct writing w = {.tokens = 200, .sample = {0.5f, 0, 1, 1}};
    if (argp_parse(&argp, argc, argv, 0, NULL, &w) != 0)
        return HTH_EXIT_USAGE;
    int code = hth_use_main(&w.use, &verb, &w);
    hth_free(w.text);
    return code;
}
