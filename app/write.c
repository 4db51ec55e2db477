/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write.c: hearth write: continues a text with a trained language model, and shows it as it is
 * made.
 */
#include "trainer/write.h"

#include <stdio.h>
#include <stdlib.h>
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
    bool json;
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

enum { KEY_TOKENS = 0x5000, KEY_TEMPERATURE, KEY_TOP_K, KEY_TOP_P, KEY_SEED, KEY_GREEDY, KEY_JSON };

static const struct argp_option options[] = {
    {"tokens", KEY_TOKENS, "N", 0, "Bytes or words to write (default 200)", 0},
    {"greedy", KEY_GREEDY, NULL, 0, "Take the likeliest each time, as with --temperature 0", 0},
    {"temperature", KEY_TEMPERATURE, "X", 0,
     "Below 1 likely ones become likelier (default 0.5; 0: the likeliest alone)", 0},
    {"top-k", KEY_TOP_K, "N", 0, "Choose among the N likeliest (default: all)", 0},
    {"top-p", KEY_TOP_P, "P", 0, "Choose among the likeliest that have together P (default 1: all)",
     0},
    {"seed", KEY_SEED, "N", 0, "Another seed, another text (default 1)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object: text, tokens, tokens_per_s", 0},
    {0},
};

static float real(const struct argp_state *state, const char *flag, const char *arg)
{
    char *end;
    float x = strtof(arg, &end);
    if (end == arg || *end != '\0')
        argp_error(state, "%s '%s': expected a number such as 0.8", flag, arg);
    return x;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct writing *w = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &w->use.flags;
        break;
    case KEY_TOKENS:
        w->tokens = (uint32_t)hth_cli_number(state, "--tokens", arg, 1, HTH_WRITE_TOKENS_MAX);
        break;
    case KEY_GREEDY:
        w->sample.temperature = 0;
        break;
    case KEY_TEMPERATURE:
        w->sample.temperature = real(state, "--temperature", arg);
        break;
    case KEY_TOP_K:
        w->sample.top_k = (uint32_t)hth_cli_number(state, "--top-k", arg, 1, UINT32_MAX);
        break;
    case KEY_TOP_P:
        w->sample.top_p = real(state, "--top-p", arg);
        break;
    case KEY_SEED:
        w->sample.seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case KEY_JSON:
        w->json = true;
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
        if (hth_sample_check(&w->sample) != HTH_OK)
            argp_error(state, "--temperature must be 0 or more, and --top-p above 0 and at most 1");
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
                          HTH_PROMPT_BYTES_MAX, w->use.model.seq_len);
    return HTH_E_USAGE;
}

static enum hth_err judge(const struct hth_use *u)
{
    const struct hth_model_opts *m = &u->model;
    if (m->kind != HTH_MODEL_LM || m->objective == HTH_MASKED) {
        hth_cli_say_error("%s is of %s, and only an lm that learnt to go on writes: try hearth %s",
                          u->path, hth_use_kind(u), hth_use_verb(u));
        return HTH_E_CONFIG;
    }
    return hth_use_check_rows(u);
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Shows what is complete: a model may write half a character, or none at all. */
static void show(struct writing *w, bool end)
{
    while (!w->json && w->shown < w->len) {
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
    size_t had = hth_words_decode(w->use.words, w->recent, w->recent_count, before, sizeof(before));
    size_t n = w->recent_count;
    int32_t ids[RECENT + 1];
    memcpy(ids, w->recent, n * sizeof(*ids));
    ids[n] = id;
    size_t has = hth_words_decode(w->use.words, ids, n + 1, after, sizeof(after));
    append(w, after + had, has - had);
    add_id(w, id);
}

static void on_token(void *arg, int32_t token)
{
    struct writing *w = arg;
    char byte = (char)token;
    if (w->use.words != NULL)
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
    hth_json_print_take(stdout, o);
    putchar('\n');
    hth_free(safe);
}

static void on_done(void *arg, enum hth_err err)
{
    struct writing *w = arg;
    double s = (double)(hth_now_us(w->use.peer.env) - w->begun_us) / 1e6;
    if (err != HTH_OK) {
        hth_use_fail(&w->use, err, "");
        return;
    }
    show(w, true);
    if (w->json)
        print_json(w, w->tokens / s);
    else
        putchar('\n');
    hth_use_say_lost(&w->use);
    hth_use_stop(&w->use, HTH_EXIT_OK);
}

/* The tokens of the prompt; a text of words has its begin first. */
static int32_t *prompt_ids(struct writing *w, size_t *count)
{
    size_t most = 2 * w->len + 1; /* a word that is not in the list: a blank and its bytes */
    int32_t *ids = hth_new_array(int32_t, most);
    *count = w->len;
    for (size_t i = 0; i < w->len; i++)
        ids[i] = (uint8_t)w->text[i];
    if (w->use.words == NULL)
        return ids;
    ids[0] = HTH_ID_BEGIN;
    *count = 1 + hth_words_encode(w->use.words, w->use.model.classes, w->text, w->len, ids + 1,
                                  most - 1);
    for (size_t i = *count > RECENT ? *count - RECENT : 0; i < *count; i++)
        add_id(w, ids[i]);
    return ids;
}

static void on_ready(void *arg)
{
    struct writing *w = arg;
    const struct hth_write_opts opts = {.sample = w->sample,
                                        .tokens = w->tokens,
                                        .on_token = on_token,
                                        .on_done = on_done,
                                        .arg = w};
    size_t count;
    int32_t *prompt = prompt_ids(w, &count);
    show(w, false);
    w->begun_us = hth_now_us(w->use.peer.env);
    enum hth_err err =
        hth_write_new(w->use.peer.env, w->use.infer, prompt, count, &opts, &w->write);
    hth_free(prompt);
    if (err == HTH_E_UNSUPPORTED)
        hth_cli_say_error("a card can't write yet: leave out --device");
    if (err != HTH_OK)
        hth_use_fail(&w->use, err, "");
}

static void on_close(void *arg)
{
    struct writing *w = arg;
    hth_write_free(w->write);
}

int hth_verb_write(int argc, char **argv)
{
    struct writing w = {.tokens = 200, .sample = {0.5f, 0, 1, 1}};
    w.use.on_close = on_close;
    w.use.arg = &w;
    if (argp_parse(&argp, argc, argv, 0, NULL, &w) != 0)
        return HTH_EXIT_USAGE;
    int code = hth_use_load(&w.use, NULL);
    if (code == HTH_EXIT_OK)
        code = hth_exit_of(judge(&w.use));
    if (code == HTH_EXIT_OK)
        code = hth_exit_of(take_prompt(&w));
    if (code == HTH_EXIT_OK)
        code = hth_use_open(&w.use, "write", w.use.model.seq_len);
    if (code == HTH_EXIT_OK)
        code = hth_use_run(&w.use, on_ready);
    hth_use_close(&w.use);
    hth_free(w.text);
    return code;
}
