/* SPDX-License-Identifier: Apache-2.0 */
/*
 * new.c: hearth new: writes the run file of a data set, with sizes that fit the data and this
 * machine.
 *
 *   look     the set's kind, classes, words and codes; how long captions are; whether it is grey
 *   choose   width and layers by the number of samples
 *   try      train for a second (app/trial.h); too slow for the data: half the width, once more
 *   write    as many steps as the time allows
 */
#include "app/run_size.h"
#include "app/trial.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "core/bytes.h"
#include "core/mem.h"
#include "data/set.h"
#include "net/net.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOKED_MAX   2000 /* samples that are looked at */
#define CAPTION_MAX  64   /* ids, the begin included */
#define LM_CONTEXT   64
#define LM_WORDS_MAX 4096 /* more make the output layer slow */
#define PASSES_MAX   100  /* over the data: a small set needs no more */
#define PASSES_MIN   2    /* fewer: the model is too large for this machine */
#define DIM_MIN      64
#define SHUFFLE_MAX  (64u << 20) /* bytes of its buffer */

struct making {
    enum hth_run_model_kind kind;
    bool masked; /* an lm: fills in instead of going on */
    const char *data, *out, *name;
    uint32_t minutes;
    struct hth_why why;

    struct hth_set *set;
    const struct hth_manifest *m;
    bool grey;        /* pictures without colours */
    uint32_t caption; /* ids of nearly all captions, the begin included */
    double windows;   /* samples of the run in one of the set: an lm reads documents by windows */
    uint32_t dim, steps;
    double samples_per_s;
};

static const char *const kinds[] = {
    [HTH_RUN_CLASSIFIER] = "classifier", [HTH_RUN_LM] = "lm", [HTH_RUN_PICTURE] = "picture"};

/* ---- looking ------------------------------------------------------------------------------- */

static uint64_t training(const struct making *n)
{
    return n->m->samples[HTH_SET_TRAIN];
}

static uint32_t ids_of(const struct making *n)
{
    uint32_t words = n->m->words.count;
    if (n->kind == HTH_RUN_LM)
        words = HTH_MIN(words, (uint32_t)LM_WORDS_MAX);
    return HTH_DATA_IDS_MIN + words;
}

static bool is_grey(const struct hth_sample *sample, uint32_t pixels)
{
    for (uint32_t i = 0; i < pixels; i++) {
        const uint8_t *rgb = sample->pixels + 3 * (size_t)i;
        if (rgb[0] != rgb[1] || rgb[0] != rgb[2])
            return false;
    }
    return true;
}

/* Finds n->grey and n->caption from the first samples. */
static enum hth_err look(struct making *n)
{
    uint64_t count = HTH_MIN(training(n), (uint64_t)LOOKED_MAX), shorter = 0, all = 0;
    uint64_t of_length[CAPTION_MAX + 1] = {0};
    struct hth_sample sample;

    n->grey = n->m->kind == HTH_SET_PICTURES;
    HTH_TRY(hth_set_seek(n->set, HTH_SET_TRAIN, 0, &n->why));
    for (uint64_t i = 0; i < count; i++) {
        size_t ids;
        HTH_TRY(hth_set_next(n->set, &sample, &n->why));
        if (n->grey)
            n->grey = is_grey(&sample, n->m->side * n->m->side);
        if (n->kind == HTH_RUN_CLASSIFIER)
            continue;
        ids = 1 + hth_words_encode(hth_set_words(n->set), ids_of(n), sample.text, sample.text_len,
                                   NULL, 0);
        all += ids;
        of_length[HTH_MIN(ids, (size_t)CAPTION_MAX)]++;
    }
    n->windows = n->kind == HTH_RUN_LM ? (double)all / (double)count / LM_CONTEXT : 1;
    for (n->caption = 1; n->caption < CAPTION_MAX; n->caption++) {
        shorter += of_length[n->caption];
        if (100 * shorter >= 99 * count)
            break;
    }
    return HTH_OK;
}

static enum hth_err check_set(struct making *n)
{
    static const struct {
        enum hth_set_kind kind;
        const char *remedy;
    } wanted[] = {
        [HTH_RUN_CLASSIFIER] = {HTH_SET_PICTURES, "hearth data folder makes one of a folder for "
                                                  "each class"},
        [HTH_RUN_LM] = {HTH_SET_TEXT, "hearth data text makes one"},
        [HTH_RUN_PICTURE] = {HTH_SET_CODES, "hearth data codes makes one of a set of pictures with "
                                            "captions"},
    };
    enum hth_set_kind want = wanted[n->kind].kind;

    if (n->m->kind != want)
        return hth_blame(&n->why, HTH_E_USAGE, "%s: a set of %s; hearth new %s needs one of %s: %s",
                         n->data, hth_set_kind_name(n->m->kind), kinds[n->kind],
                         hth_set_kind_name(want), wanted[n->kind].remedy);
    if (n->kind == HTH_RUN_CLASSIFIER && n->m->class_count == 0)
        return hth_blame(&n->why, HTH_E_USAGE, "%s: its pictures have no classes: %s", n->data,
                         wanted[n->kind].remedy);
    if (n->kind != HTH_RUN_CLASSIFIER && hth_set_words(n->set) == NULL)
        return hth_blame(&n->why, HTH_E_USAGE, "%s: it has no words: %s", n->data,
                         wanted[n->kind].remedy);
    if (training(n) == 0 || n->m->samples[HTH_SET_TEST] == 0)
        return hth_blame(&n->why, HTH_E_USAGE,
                         "%s: %llu samples for training and %llu held out, but a run needs both: "
                         "make the set with another --test, such as 0.2",
                         n->data, (unsigned long long)training(n),
                         (unsigned long long)n->m->samples[HTH_SET_TEST]);
    return HTH_OK;
}

/* ---- the file ------------------------------------------------------------------------------ */

/* The name of the run: the set's, whose signs and blanks become '-'. */
static char *run_name(const struct making *n)
{
    char *name = hth_strdup(n->name != NULL ? n->name : n->m->name);
    for (char *p = name; n->name == NULL && *p != '\0'; p++)
        if (!isalnum((unsigned char)*p) && strchr("_+-", *p) == NULL)
            *p = '-';
    return name;
}

/* A key of two columns' indent, and its comment; "": none. */
static void put(FILE *to, const char *comment, const char *fmt, ...) HTH_PRINTF(3, 4);
static void put(FILE *to, const char *comment, const char *fmt, ...)
{
    char line[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (comment[0] == '\0')
        fprintf(to, "  %s\n", line);
    else
        fprintf(to, "  %-22s # %s\n", line, comment);
}

static void put_hash(FILE *to, const char *key, const struct hth_side_file *file)
{
    char hex[2 * HTH_HASH_LEN + 1];
    hth_hex(file->sha256.b, HTH_HASH_LEN, hex);
    fprintf(to, "  # SHA-256 of %s: who has another never averages with this run\n  %s: %s\n",
            file->file, key, hex);
}

static void put_picture(const struct making *n, FILE *to)
{
    uint32_t side = n->m->side / n->m->patch;
    put(to, "ffn: mixture layers, whose experts hosts serve", "expert: none");
    put(to, "width", "dim: %u", n->dim);
    put(to, "", "layers: 8");
    put(to, "", "heads: %u", n->dim / 32);
    put(to, "which codes a layer sees: its row, ...", "masks: [row, column, row, row]");
    put(to, "... and in the last one its neighbours", "last_mask: conv");
    put(to, "... in a square of this side", "window: 5");
    put(to, "weight sets that layers use in turns", "share: 4");
    put(to, "", "layer_scale: 0.1");
    put(to, "ids of a caption; longer ones are cut", "text: %u", HTH_MAX(n->caption, 4u));
    put(to, "padding, begin, 256 bytes, and the words", "vocab: %u", ids_of(n));
    put(to, "", "height: %u", side);
    put(to, "", "width: %u", side);
    put(to, "", "codes: %u", n->m->book.count);
    put_hash(to, "words", &n->m->words);
    put_hash(to, "codebook", &n->m->book);
}

static void put_experts(const struct making *n, FILE *to, uint32_t top_k)
{
    put(to, "a feed-forward network that a host serves", "expert: ffn");
    put(to, "16 of them in each layer ...", "grid: [4, 4]");
    put(to, "... of which a row uses the best", "top_k: %u", top_k);
    put(to, "weight of the loss that keeps all in use", "balance: 0.01");
    put(to, "width of the trunk and of each expert", "dim: %u", n->dim);
    put(to, "", "layers: 2");
}

static void put_lm(const struct making *n, FILE *to)
{
    put_experts(n, to, 2);
    put(to, "", "heads: %u", n->dim / 32);
    if (n->masked)
        put(to, "causal: it goes on with a text", "objective: masked");
    put(to, "ids of a sample", "context: %u", LM_CONTEXT);
    put(to, "padding, begin, 256 bytes, and the commonest words; 256: bytes alone", "vocab: %u",
        ids_of(n));
    put_hash(to, "words", &n->m->words);
}

static uint32_t inputs_of(const struct making *n)
{
    return n->m->side * n->m->side * (n->grey ? 1 : 3);
}

static void put_classifier(const struct making *n, FILE *to)
{
    put_experts(n, to, 4);
    put(to, n->grey ? "grey pixels of a picture" : "pixels of a picture, 3 colours each",
        "inputs: %u", inputs_of(n));
    put(to, "", "classes: %u", n->m->class_count);
}

static uint32_t sample_bytes(const struct making *n)
{
    return n->kind == HTH_RUN_CLASSIFIER ? inputs_of(n) + 2 : 1024;
}

/* In quotes, because a name may be a word or a sign of YAML. */
static void put_text(FILE *to, const char *key, const char *text)
{
    fprintf(to, "%s: \"", key);
    for (const char *p = text; *p != '\0'; p++)
        fprintf(to, "%s%c", *p == '"' || *p == '\\' ? "\\" : "", *p);
    fputs("\"\n", to);
}

static void put_data(const struct making *n, FILE *to)
{
    fputs("data:\n  kind: set\n", to);
    put_text(to, "  path", n->data);
    put(to, "samples that are shuffled at a time", "shuffle_rows: %u",
        HTH_MIN(SHUFFLE_MAX / sample_bytes(n), 8192u));
    if (n->kind == HTH_RUN_CLASSIFIER)
        put(to, "each picture moves by up to so many pixels", "shift: %u",
            HTH_MIN(n->m->side / 10, 4u));
    if (n->kind == HTH_RUN_PICTURE)
        put(to, "of the samples lose their caption", "caption_drop: 0.1");
}

static uint32_t rows_of(const struct making *n)
{
    return n->kind == HTH_RUN_LM ? 16 : 64;
}

static void put_train(const struct making *n, FILE *to)
{
    uint32_t often = HTH_MAX(n->steps / 8, 1u);
    double tests = HTH_MAX(1, HTH_MIN(n->windows * (double)n->m->samples[HTH_SET_TEST], 1024));
    fputs("train:\n", to);
    put(to, "samples of a micro-batch", "rows: %u", rows_of(n));
    put(to, "micro-batches in the air", "flights: %u", n->kind == HTH_RUN_CLASSIFIER ? 4 : 1);
    put(to, "updates", "steps: %u", n->steps);
    put(to, "... between two tests", "eval_every: %u", often);
    put(to, "samples of a test", "eval_rows: %.0f", floor(tests));
    put(to, "", "checkpoint_every: %u", often);
    fputs("optimizer:\n", to);
    put(to, "", "kind: adamw");
    put(to, "", "rate: %g", n->kind == HTH_RUN_CLASSIFIER ? 0.001 : 0.002);
    put(to, "", "weight_decay: 0.01");
    put(to, "", "schedule: cosine");
    put(to, "", "warmup: %u", HTH_MIN(n->steps / 10, 50u));
    if (n->kind == HTH_RUN_PICTURE)
        return;
    fputs("experts:\n", to);
    put(to, "rows between two steps of an expert", "step_rows: %u",
        n->kind == HTH_RUN_LM ? 256 : 64);
    put(to, "", "optimizer: {kind: adam, rate: 0.001, warmup: 20}");
}

/* The file's text; free it with free(). */
static char *write_text(const struct making *n)
{
    static void (*const models[])(const struct making *,
                                  FILE *) = {[HTH_RUN_CLASSIFIER] = put_classifier,
                                             [HTH_RUN_LM] = put_lm,
                                             [HTH_RUN_PICTURE] = put_picture};
    const char *const titles[] = {[HTH_RUN_CLASSIFIER] = "Classes of pictures",
                                  [HTH_RUN_LM] = n->masked ? "A text's missing words"
                                                           : "A text, word after word",
                                  [HTH_RUN_PICTURE] = "Pictures from captions"};
    char *text = NULL, *name = run_name(n);
    size_t len;
    FILE *to = open_memstream(&text, &len);

    HTH_ASSERT(to != NULL);
    fprintf(to,
            "# %s, learnt from the data set '%s':\n"
            "# %llu samples, and %llu more to test with.\n"
            "# hearth help run-file explains every key, hearth run check FILE shows what holds.\n",
            titles[n->kind], n->m->name, (unsigned long long)training(n),
            (unsigned long long)n->m->samples[HTH_SET_TEST]);
    put_text(to, "run", name);
    fprintf(to, "seed: 1\nmodel:\n  kind: %s\n", kinds[n->kind]);
    models[n->kind](n, to);
    put_data(n, to);
    put_train(n, to);
    fclose(to);
    hth_free(name);
    return text;
}

/* ---- making -------------------------------------------------------------------------------- */

static uint32_t width_for(const struct making *n)
{
    uint64_t samples = training(n) * (n->kind == HTH_RUN_LM ? 10 : 1); /* documents are long */
    return samples < 1000 ? 64 : samples < 100000 ? 128 : 256;
}

/* Two digits, so that the file reads well. */
static uint32_t rounded(double steps)
{
    double unit = pow(10, floor(log10(HTH_MAX(steps, 10.0))) - 1);
    return (uint32_t)(floor(steps / unit) * unit);
}

static double passes(const struct making *n, double steps)
{
    return steps * rows_of(n) / ((double)training(n) * n->windows);
}

static enum hth_err parse(struct making *n, const char *text, struct hth_runfile **run)
{
    char error[HTH_RUNFILE_ERROR_MAX];
    enum hth_err err = hth_runfile_parse(n->out, (const uint8_t *)text, strlen(text), run, error);
    return err == HTH_OK ? err : hth_blame(&n->why, err, "%s", error);
}

/* Tries n->dim, and finds the steps for it. */
static enum hth_err try_width(struct making *n)
{
    struct hth_runfile *run;
    double steps;
    char *text;
    enum hth_err err;

    n->steps = 1000;
    text = write_text(n);
    err = parse(n, text, &run);
    free(text);
    if (err != HTH_OK)
        return err;
    err = hth_trial(run, &n->samples_per_s);
    hth_runfile_free(run);
    if (err != HTH_OK)
        return hth_blame(&n->why, err, "the trial of a second failed: %s", hth_err_text(err));
    steps = n->minutes * 60 * n->samples_per_s / rows_of(n);
    steps = HTH_MIN(steps, PASSES_MAX / passes(n, 1));
    n->steps = HTH_MAX(rounded(steps), 100u);
    return HTH_OK;
}

static void say(const struct making *n, const struct hth_runfile *run)
{
    struct hth_run_sizes size;
    char memory[16], disk[16], span[16];
    double seconds = n->steps * rows_of(n) / n->samples_per_s;
    uint64_t experts;

    if (hth_run_sizes(n->out, run, &size) != HTH_OK)
        return;
    experts = size.experts;
    hth_say("%s: run '%s', model kind %s of width %u", n->out, run->run, kinds[n->kind], n->dim);
    hth_say("  the trunk: %llu parameters, %s of memory while it learns, %s on the disk",
            (unsigned long long)size.trunk.parameters,
            hth_cli_bytes_text((double)size.trunk.memory, memory),
            hth_cli_bytes_text((double)size.trunk.disk, disk));
    if (experts > 0)
        hth_say("  %llu experts of %llu parameters: %s of memory, %s on the disk",
                (unsigned long long)experts, (unsigned long long)size.expert.parameters,
                hth_cli_bytes_text((double)(experts * size.expert.memory), memory),
                hth_cli_bytes_text((double)(experts * size.expert.disk), disk));
    hth_say("  about %.0f samples/s on this machine (a trial of 1 s): %u steps take %s, %.0f "
            "passes over "
            "the data",
            n->samples_per_s, n->steps, hth_cli_span_text((int64_t)(1e6 * seconds), span),
            passes(n, n->steps));
    hth_say("next: hearth train --run %s --local --dir %s", n->out, run->run);
}

static enum hth_err write_file(struct making *n, struct hth_env *env, const char *text)
{
    struct hth_blob *blob = hth_blob_copy(text, strlen(text));
    enum hth_err err = hth_file_write(env, n->out, &(struct hth_span){blob, 0, blob->size}, 1);
    hth_blob_unref(blob);
    return err == HTH_OK ? err : hth_blame(&n->why, err, "%s: %s", n->out, hth_err_text(err));
}

static enum hth_err make(struct making *n, struct hth_env *env)
{
    struct hth_runfile *run;
    enum hth_err err;
    char *text;

    HTH_TRY(hth_set_open(env, n->data, &n->set, &n->why));
    n->m = hth_set_manifest(n->set);
    HTH_TRY(check_set(n));
    HTH_TRY(look(n));
    n->dim = width_for(n);
    HTH_TRY(try_width(n));
    if (passes(n, n->steps) < PASSES_MIN && n->dim > DIM_MIN) {
        n->dim /= 2;
        HTH_TRY(try_width(n));
    }
    text = write_text(n);
    err = parse(n, text, &run);
    if (err == HTH_OK)
        err = write_file(n, env, text);
    if (err == HTH_OK)
        say(n, run);
    hth_runfile_free(run);
    free(text);
    return err;
}

/* ---- flags --------------------------------------------------------------------------------- */

static void check(const struct making *n, struct argp_state *state)
{
    if (n->masked && n->kind != HTH_RUN_LM)
        argp_error(state, "--masked is for an lm, such as hearth new lm --masked");
    if (n->data == NULL)
        argp_error(state, "--data DIR is missing: a folder that hearth data made");
    else if (n->out == NULL)
        argp_error(state, "--out FILE is missing: the run file, such as run.yaml");
    else if (access(n->out, F_OK) == 0)
        argp_error(state, "--out '%s' is there already: name another file, or remove it", n->out);
}

static error_t parse_flag(int key, char *arg, struct argp_state *state)
{
    struct making *n = state->input;
    switch (key) {
    case 'd':
        n->data = arg;
        return 0;
    case 'o':
        n->out = arg;
        return 0;
    case 'N':
        n->name = arg;
        return 0;
    case 'M':
        n->masked = true;
        return 0;
    case 'm':
        n->minutes = (uint32_t)hth_cli_number(state, "--minutes", arg, 1, 1000000);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            return ARGP_ERR_UNKNOWN;
        for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++)
            if (strcmp(arg, kinds[i]) == 0) {
                n->kind = (enum hth_run_model_kind)i;
                return 0;
            }
        argp_error(state, "'%s' is no kind of model; expected picture, lm or classifier", arg);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which kind of model? picture, lm or classifier");
        return 0;
    case ARGP_KEY_END:
        check(n, state);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp_option options[] = {
    {"data", 'd', "DIR", 0, "The data set: a folder that hearth data made", 0},
    {"out", 'o', "FILE", 0, "The run file that is written", 0},
    {"masked", 'M', NULL, 0, "lm: learn to fill in missing words, not to go on with a text", 0},
    {"minutes", 'm', "N", 0, "How long this machine should train (default 10)", 0},
    {"name", 'N', "TEXT", 0, "Name of the run (default: that of the data set)", 0},
    {0}};

static const char doc[] =
    "Write the run file of a data set, with sizes that fit the data and this machine.\v"
    "  hearth new picture --data CODES --out run.yaml      pictures from captions\n"
    "  hearth new lm --data TEXT --out run.yaml            text, for hearth write\n"
    "  hearth new lm --masked --data TEXT --out run.yaml   text, for hearth fill\n"
    "  hearth new classifier --data PICTURES --out run.yaml\n\n"
    "It trains for a second to see how fast this machine is. The file has comments;\n"
    "change what you like, and see hearth help run-file.\n";

int hth_verb_new(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options, .parser = parse_flag, .args_doc = "picture|lm|classifier", .doc = doc};
    struct making n = {.minutes = 10};
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    struct hth_env *env;
    enum hth_err err;

    if (argp_parse(&argp, argc, argv, 0, NULL, &n) != 0)
        return HTH_EXIT_USAGE;
    err = hth_net_new(&net, &env);
    if (err != HTH_OK)
        return hth_exit_of(err);
    err = make(&n, env);
    hth_set_free(n.set);
    hth_net_free(env);
    if (err == HTH_OK)
        return HTH_EXIT_OK;
    hth_cli_say_error("%s", n.why.text[0] != '\0' ? n.why.text : hth_err_text(err));
    return err == HTH_E_NO_FILE ? HTH_EXIT_FAILURE : hth_exit_of(err);
}
