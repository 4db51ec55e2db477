/* SPDX-License-Identifier: Apache-2.0 */
/* data.c: hearth data: makes data sets from people's files, and shows them. */
#include "cli/bar.h"
#include "cli/cli.h"
#include "cli/walk.h"
#include "core/guess.h"
#include "core/mem.h"
#include "data/folder.h"
#include "data/set.h"
#include "data/sheet.h"
#include "net/net.h"

#include <stdlib.h>
#include <string.h>

#define ARGS_MAX   64
#define SHOW_MAX   1024
#define TEXT_SHOWN 80 /* bytes of a sample's text */

struct data {
    const char *verb;
    const char *args[ARGS_MAX];
    size_t arg_count;
    struct hth_pack_opts pack;
    struct hth_folder_opts folder;
    uint64_t show;

    struct hth_env *env;
    struct hth_bar bar;
    struct hth_why why;
};

struct data_verb {
    const char *name;
    int (*run)(struct data *d);
    size_t args_min, args_max;
    const char *takes;
};

/* ---- making -------------------------------------------------------------------------------- */

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct data *d = arg;

    hth_bar_at(&d->bar, done, total);
}

/* Prints the error's sentence. */
static int fail(const struct data *d, enum hth_err err)
{
    hth_cli_say_error("%s", d->why.text[0] != '\0' ? d->why.text : hth_err_text(err));
    return hth_exit_of(err);
}

static void say_set(const struct hth_manifest *m, const char *dir)
{
    char train[32], test[32];
    uint64_t bytes = 0;
    char size[16];

    for (uint32_t i = 0; i < m->shard_count; i++)
        bytes += m->shards[i].bytes;
    hth_say("%s: %s, %s samples for training, %s held out, %u shards, %s", dir,
            hth_set_kind_name(m->kind), hth_cli_count_text(m->samples[HTH_SET_TRAIN], train),
            hth_cli_count_text(m->samples[HTH_SET_TEST], test), m->shard_count,
            hth_cli_bytes_text((double)bytes, size));
    if (m->side > 0)
        hth_say("  pictures of %u x %u pixels, %u classes", m->side, m->side, m->class_count);
    if (m->words.file[0] != '\0')
        hth_say("  %u words", m->words.count);
    for (uint32_t i = 0; i < m->skip_count; i++)
        hth_say("  skipped %llu: %s", (unsigned long long)m->skipped[i].count,
                m->skipped[i].reason);
}

/* The first skipped sample of each reason. */
static void say_skipped(const struct hth_pack *pack)
{
    for (int i = 0; i < HTH_SKIP_COUNT; i++) {
        const char *first;
        uint64_t count = hth_pack_skipped(pack, (enum hth_skip)i, &first);
        if (count > 0)
            hth_say_note("skipped %llu (%s), the first: %s", (unsigned long long)count,
                         hth_skip_text((enum hth_skip)i), first);
    }
}

typedef enum hth_err fill_fn(struct data *d, struct hth_pack *pack);

static int make(struct data *d, const char *what, fill_fn *fill)
{
    const struct hth_manifest *m;
    struct hth_pack *pack;
    enum hth_err err = hth_pack_new(d->env, &d->pack, &pack, &d->why);

    if (err != HTH_OK)
        return fail(d, err);
    hth_bar_begin(&d->bar, what);
    err = fill(d, pack);
    if (err == HTH_OK)
        err = hth_pack_finish(pack, &m, &d->why);
    hth_bar_end(&d->bar);
    say_skipped(pack);
    if (err == HTH_OK)
        say_set(m, d->pack.dir);
    hth_pack_free(pack);
    return err == HTH_OK ? HTH_EXIT_OK : fail(d, err);
}

static enum hth_err fill_folder(struct data *d, struct hth_pack *pack)
{
    return hth_folder_pack(d->env, &d->folder, pack, &d->why);
}

static int run_folder(struct data *d)
{
    struct hth_walk walk;
    enum hth_err err = hth_walk_list(d->args[0], &walk);
    int code;

    if (err != HTH_OK)
        return hth_exit_of(err); /* printed */
    d->pack.kind = HTH_SET_PICTURES;
    d->folder.dir = d->args[0];
    d->folder.files = (const char *const *)walk.files;
    d->folder.count = walk.count;
    d->folder.progress = on_progress;
    d->folder.progress_arg = d;
    code = make(d, "packing pictures", fill_folder);
    hth_walk_clear(&walk);
    return code;
}

static enum hth_err fill_text(struct data *d, struct hth_pack *pack)
{
    for (size_t i = 0; i < d->arg_count; i++)
        HTH_TRY(hth_text_pack(d->env, d->args[i], pack, on_progress, d, &d->why));
    return HTH_OK;
}

static int run_text(struct data *d)
{
    d->pack.kind = HTH_SET_TEXT;
    return make(d, "packing text", fill_text);
}

/* ---- showing ------------------------------------------------------------------------------- */

static void say_sample(void *arg, enum hth_set_part part, uint32_t number,
                       const struct hth_sample *sample)
{
    const struct hth_manifest *m = arg;
    char text[TEXT_SHOWN + 1] = "";
    size_t len = HTH_MIN(sample->text_len, (size_t)TEXT_SHOWN);

    if (len > 0)
        memcpy(text, sample->text, len);
    for (size_t i = 0; i < len; i++)
        text[i] = text[i] == '\n' || text[i] == '\r' ? ' ' : text[i];
    hth_say("  %-5s %3u  %s%s%s", hth_set_part_name(part), number,
            sample->label >= 0 ? m->classes[sample->label] : "", sample->label >= 0 ? ": " : "",
            text);
}

static enum hth_err write_sheet(struct data *d, const struct hth_sheet *sheet)
{
    struct hth_blob *png;
    enum hth_err err;

    HTH_TRY(hth_sheet_png(sheet, &png));
    err = hth_file_write(d->env, d->pack.dir, &(struct hth_span){png, 0, png->size}, 1);
    hth_blob_unref(png);
    if (err != HTH_OK)
        return hth_blame(&d->why, err, "%s: %s", d->pack.dir, hth_err_text(err));
    hth_say("  %s: %u x %u pixels, the training part above, held-out samples in the last rows",
            d->pack.dir, sheet->width, sheet->height);
    return HTH_OK;
}

static enum hth_err show_set(struct data *d, struct hth_set *set)
{
    const struct hth_manifest *m = hth_set_manifest(set);
    struct hth_sheet sheet;
    enum hth_err err;

    say_set(m, d->args[0]);
    err = hth_sheet_of_set(set, (uint32_t)d->show, say_sample, (void *)m, &sheet, &d->why);
    if (err == HTH_OK && sheet.rgb != NULL && d->pack.dir != NULL)
        err = write_sheet(d, &sheet);
    hth_sheet_clear(&sheet);
    return err;
}

static int run_show(struct data *d)
{
    struct hth_set *set;
    enum hth_err err = hth_set_open(d->env, d->args[0], &set, &d->why);

    if (err != HTH_OK)
        return fail(d, err);
    err = show_set(d, set);
    hth_set_free(set);
    return err == HTH_OK ? HTH_EXIT_OK : fail(d, err);
}

/* ---- flags --------------------------------------------------------------------------------- */

static const struct data_verb data_verbs[] = {
    {"folder", run_folder, 1, 1, "DIR"},
    {"text", run_text, 1, ARGS_MAX, "FILE..."},
    {"show", run_show, 1, 1, "DATA"},
};

static const struct data_verb *find_verb(const char *name)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(data_verbs); i++)
        if (strcmp(data_verbs[i].name, name) == 0)
            return &data_verbs[i];
    return NULL;
}

static void check(struct data *d, struct argp_state *state)
{
    const struct data_verb *verb;
    char hint[160];

    if (d->verb == NULL)
        argp_error(state, "name what to make or show, such as: hearth data folder DIR --out DATA");
    verb = find_verb(d->verb);
    if (verb == NULL)
        argp_error(state, "no word '%s'%s", d->verb,
                   hth_guess_text(d->verb, data_verbs, sizeof(data_verbs[0]),
                                  HTH_ARRAY_LEN(data_verbs), hint, sizeof(hint)));
    else if (d->arg_count < verb->args_min || d->arg_count > verb->args_max)
        argp_error(state, "hearth data %s takes %s", verb->name, verb->takes);
    else if (d->pack.dir == NULL && verb->run != run_show)
        argp_error(state, "--out DIR is missing: the folder of the new data set");
}

static double fraction(struct argp_state *state, const char *flag, const char *text, double min,
                       double max)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= min && value <= max))
        argp_error(state, "%s '%s': expected a number from %g to %g", flag, text, min, max);
    return value;
}

static void add_drop(struct data *d, char *text, struct argp_state *state)
{
    char *equals = strchr(text, '=');

    if (equals == NULL || equals == text || d->folder.drop_count == HTH_DROPS_MAX) {
        argp_error(state, "--drop '%s': expected FIELD=VALUE, such as nsfw=yes, at most %d times",
                   text, HTH_DROPS_MAX);
        return;
    }
    *equals = '\0';
    d->folder.drop[d->folder.drop_count].field = text;
    d->folder.drop[d->folder.drop_count++].value = equals + 1;
}

enum {
    KEY_NAME = 256,
    KEY_LICENCE,
    KEY_SIZE,
    KEY_TEST,
    KEY_CAPTION,
    KEY_ASPECT,
    KEY_DROP,
    KEY_WORDS
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct data *d = state->input;

    switch (key) {
    case 'o':
        d->pack.dir = arg;
        return 0;
    case 'n':
        d->show = hth_cli_number(state, "-n", arg, 1, SHOW_MAX);
        return 0;
    case KEY_NAME:
        d->pack.name = arg;
        return 0;
    case KEY_LICENCE:
        d->pack.licence = arg;
        return 0;
    case KEY_SIZE:
        d->pack.side = (uint32_t)hth_cli_number(state, "--size", arg, 8, HTH_SET_SIDE_MAX);
        return 0;
    case KEY_TEST:
        d->pack.test = fraction(state, "--test", arg, 0, 0.5);
        return 0;
    case KEY_CAPTION:
        d->pack.caption_min =
            (uint32_t)hth_cli_number(state, "--min-caption", arg, 1, HTH_CAPTION_BYTES_MAX);
        return 0;
    case KEY_ASPECT:
        d->pack.aspect_max = fraction(state, "--max-aspect", arg, 1, 1e4);
        return 0;
    case KEY_DROP:
        add_drop(d, arg, state);
        return 0;
    case KEY_WORDS:
        d->pack.words_min = (uint32_t)hth_cli_number(state, "--words-min", arg, 1, 1u << 30);
        return 0;
    case ARGP_KEY_ARG:
        if (d->verb == NULL)
            d->verb = arg;
        else if (d->arg_count == ARGS_MAX)
            argp_error(state, "at most %d files at once", ARGS_MAX);
        else
            d->args[d->arg_count++] = arg;
        return 0;
    case ARGP_KEY_END:
        check(d, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"out", 'o', "PATH", 0, "The folder of the new data set; of show: the sheet, a PNG file", 0},
    {"size", KEY_SIZE, "PIXELS", 0, "Side of the pictures (default 32)", 1},
    {"test", KEY_TEST, "FRACTION", 0,
     "Hold out that part, by a hash of each sample's name (default 0.1)", 1},
    {"name", KEY_NAME, "TEXT", 0, "Name of the data set (default: my-data)", 1},
    {"licence", KEY_LICENCE, "TEXT", 0, "Licence of the samples, for those who get the set", 1},
    {"min-caption", KEY_CAPTION, "N", 0, "Skip captions of fewer characters (default 3)", 2},
    {"max-aspect", KEY_ASPECT, "X", 0, "Skip pictures longer than X times their width (default 2)",
     2},
    {"drop", KEY_DROP, "FIELD=VALUE", 0, "Skip such rows of captions.jsonl", 2},
    {"words-min", KEY_WORDS, "N", 0, "A word is a token if seen N times (default 2)", 2},
    {NULL, 'n', "N", 0, "show: samples of the training part (default 24)", 3},
    {0}};

static const char doc[] =
    "Make a data set from your own files, and show one.\v"
    "  hearth data folder DIR --out DATA    pictures and captions: NAME.png or .jpg\n"
    "      beside NAME.txt; captions.jsonl of {\"file\": ..., \"text\": ...}; or a\n"
    "      folder for each class\n"
    "  hearth data text FILE... --out DATA  plain text, or .jsonl of {\"text\": ...};\n"
    "      .gz and .zst, too\n"
    "  hearth data show DATA --out A.png    counts, captions, a sheet of samples\n\n"
    "A data set is a folder: data.json, shards (tar, zstd), words.json. Samples that\n"
    "can't be used are skipped and counted by reason, and the first of each is named.\n";

int hth_verb_data(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options, .parser = parse, .args_doc = "folder|text|show [FILE...]", .doc = doc};
    struct data d = {.show = 24,
                     .pack = {.name = "my-data",
                              .licence = "",
                              .side = 32,
                              .test = 0.1,
                              .caption_min = 3,
                              .aspect_max = 2,
                              .words_min = 2}};
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    enum hth_err err;
    int code;

    if (argp_parse(&argp, argc, argv, 0, NULL, &d) != 0)
        return HTH_EXIT_USAGE;
    err = hth_net_new(&net, &d.env);
    if (err != HTH_OK)
        return fail(&d, err);
    code = find_verb(d.verb)->run(&d);
    hth_net_free(d.env);
    return code;
}
