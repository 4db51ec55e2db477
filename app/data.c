/* SPDX-License-Identifier: Apache-2.0 */
/* data.c: hearth data: makes data sets from people's files, and shows them. */
#include "cli/bar.h"
#include "cli/cli.h"
#include "cli/walk.h"
#include "core/mem.h"
#include "data/codes.h"
#include "data/make.h"
#include "data/set.h"
#include "data/sheet.h"
#include "net/net.h"
#include "trainer/book_file.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define ARGS_MAX   64
#define SOURCES    "emoji, fashion, folder, text, codes, show"
#define SHOW_MAX   1024
#define TEXT_SHOWN 80 /* bytes of a sample's text */

struct data {
    const char *verb;
    const char *args[ARGS_MAX];
    struct hth_make make;
    struct hth_codes_opts codes;
    uint32_t show;
    uint64_t done; /* of the work that the bar shows */
    struct hth_bar bar;
};

/* ---- making -------------------------------------------------------------------------------- */

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct data *d = arg;

    if (done < d->done) /* the next piece of work */
        hth_bar_begin(&d->bar, d->bar.what);
    d->done = done;
    hth_bar_at(&d->bar, done, total);
}

/* Prints the error's sentence. A file that is missing or unknown is no fault of a network or of a
 * device. */
static int fail(const struct data *d, enum hth_err err)
{
    int code = hth_exit_of(err);
    hth_cli_say_error("%s", d->make.why.text[0] != '\0' ? d->make.why.text : hth_err_text(err));
    return code == HTH_EXIT_NETWORK || code == HTH_EXIT_DEVICE ? HTH_EXIT_FAILURE : code;
}

static void say_set(const struct hth_manifest *m, const char *dir)
{
    char train[32], test[32], size[16];
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < m->shard_count; i++)
        bytes += m->shards[i].bytes;
    hth_say("%s: %s, %s samples for training, %s held out, %u shards, %s", dir,
            hth_set_kind_name(m->kind), hth_cli_count_text(m->samples[HTH_SET_TRAIN], train),
            hth_cli_count_text(m->samples[HTH_SET_TEST], test), m->shard_count,
            hth_cli_bytes_text((double)bytes, size));
    if (m->side > 0)
        hth_say("  pictures of %u x %u pixels", m->side, m->side);
    if (m->class_count > 0)
        hth_say("  %u classes", m->class_count);
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

static int make(struct data *d, const struct hth_make_source *source)
{
    const struct hth_manifest *m;
    struct hth_pack *pack = NULL;
    enum hth_err err;
    d->make.progress = on_progress;
    d->make.progress_arg = d;
    hth_bar_begin(&d->bar, "packing");
    err = hth_make_run(source, &d->make, &pack, &m);
    hth_bar_end(&d->bar);
    if (pack != NULL)
        say_skipped(pack);
    if (err == HTH_OK)
        say_set(m, d->make.pack.dir);
    hth_pack_free(pack);
    return err == HTH_OK ? HTH_EXIT_OK : fail(d, err);
}

static int make_of_folder(struct data *d, const struct hth_make_source *source)
{
    struct hth_walk walk;
    enum hth_err err = hth_walk_list(d->args[0], HTH_WALK_FILES_MAX, &walk);
    int code;

    if (err != HTH_OK)
        return hth_exit_of(err); /* printed */
    d->make.folder.files = (const char *const *)walk.files;
    d->make.folder.count = walk.count;
    code = make(d, source);
    hth_walk_clear(&walk);
    return code;
}

/* ---- codes --------------------------------------------------------------------------------- */

static void say_codes(const struct hth_codes *c, const struct hth_manifest *m)
{
    for (int part = 0; part < HTH_SET_PARTS; part++)
        if (m->samples[part] > 0)
            hth_say("  %s: PSNR %.2f dB by the centres, %.2f dB by the decoder",
                    hth_set_part_name((enum hth_set_part)part), c->psnr_centres[part],
                    c->decoder != NULL ? c->psnr_decoder[part] : c->psnr_centres[part]);
    hth_say("  %u of %u codes used, %.2f bits a code", c->used, c->book.codes, c->entropy);
}

static int codes(struct data *d)
{
    const struct hth_manifest *m;
    struct hth_codes c = {0};
    struct hth_pack *pack = NULL;
    struct hth_set *set;
    enum hth_err err = hth_set_open(d->make.env, d->args[0], &set, &d->make.why);

    if (err != HTH_OK)
        return fail(d, err);
    d->codes.team = hth_env_team(d->make.env);
    d->codes.progress = on_progress;
    d->codes.arg = d;
    hth_bar_begin(&d->bar, "codes");
    err = hth_backend_by_name("auto", &d->codes.backend);
    if (err == HTH_OK)
        err = hth_book_file_set(d->make.env, set, &d->codes, &d->make.pack, &c, &pack, &m,
                                &d->make.why);
    hth_bar_end(&d->bar);
    if (err == HTH_OK) {
        say_set(m, d->make.pack.dir);
        say_codes(&c, m);
    }
    hth_codes_clear(&c);
    hth_pack_free(pack);
    hth_set_free(set);
    return err == HTH_OK ? HTH_EXIT_OK : fail(d, err);
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
    err = hth_file_write(d->make.env, d->make.pack.dir, &(struct hth_span){png, 0, png->size}, 1);
    hth_blob_unref(png);
    if (err != HTH_OK)
        return hth_blame(&d->make.why, err, "%s: %s", d->make.pack.dir, hth_err_text(err));
    hth_say("  %s: %u x %u pixels, the training part above, held-out samples in the last rows",
            d->make.pack.dir, sheet->width, sheet->height);
    return HTH_OK;
}

static enum hth_err show_set(struct data *d, struct hth_set *set)
{
    const struct hth_manifest *m = hth_set_manifest(set);
    struct hth_sheet sheet;
    enum hth_err err;

    if (m->kind == HTH_SET_TEXT && d->make.pack.dir != NULL)
        return hth_blame(&d->make.why, HTH_E_USAGE,
                         "%s: a set of text has no pictures to draw: leave out --out", d->args[0]);
    say_set(m, d->args[0]);
    err = hth_book_file_sheet(set, d->show, say_sample, (void *)m, &sheet, &d->make.why);
    if (err == HTH_OK && sheet.rgb != NULL && d->make.pack.dir != NULL)
        err = write_sheet(d, &sheet);
    hth_sheet_clear(&sheet);
    return err;
}

static int show(struct data *d)
{
    struct hth_set *set;
    enum hth_err err = hth_set_open(d->make.env, d->args[0], &set, &d->make.why);

    if (err != HTH_OK)
        return fail(d, err);
    err = show_set(d, set);
    hth_set_free(set);
    return err == HTH_OK ? HTH_EXIT_OK : fail(d, err);
}

/* ---- flags --------------------------------------------------------------------------------- */

static const struct hth_make_source *find_source(const char *name)
{
    for (const struct hth_make_source *s = hth_make_sources; s->name != NULL; s++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

static void check(struct data *d, struct argp_state *state)
{
    bool shows = strcmp(d->verb, "show") == 0, reads = shows || strcmp(d->verb, "codes") == 0;
    const struct hth_make_source *source = find_source(d->verb);
    size_t args = d->make.arg_count;

    if (!reads && source == NULL)
        argp_error(state, "'%s' can't be made; expected one of: " SOURCES, d->verb);
    else if (reads && args != 1)
        argp_error(state, "hearth data %s takes a folder that hearth data made", d->verb);
    else if (!reads && (args < source->args_min || args > source->args_max))
        argp_error(state, "hearth data %s takes %s", d->verb, source->takes);
    else if (!shows && d->make.pack.dir == NULL)
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

    if (equals == NULL || equals == text || d->make.folder.drop_count == HTH_DROPS_MAX) {
        argp_error(state, "--drop '%s': expected FIELD=VALUE, such as nsfw=yes, at most %d times",
                   text, HTH_DROPS_MAX);
        return;
    }
    *equals = '\0';
    d->make.folder.drop[d->make.folder.drop_count].field = text;
    d->make.folder.drop[d->make.folder.drop_count++].value = equals + 1;
}

#define FIELD(f) offsetof(struct data, f)
static const struct {
    int key;
    const char *flag;
    uint32_t min, max;
    size_t offset; /* of a uint32_t */
} numbers[] = {
    {'n', "-n", 1, SHOW_MAX, FIELD(show)},
    {'s', "--size", 8, HTH_SET_SIDE_MAX, FIELD(make.pack.side)},
    {'m', "--min-caption", 1, HTH_CAPTION_BYTES_MAX, FIELD(make.pack.caption_min)},
    {'w', "--words-min", 1, 1u << 30, FIELD(make.pack.words_min)},
    {'K', "--codes", 2, HTH_BOOK_CODES_MAX, FIELD(codes.codes)},
    {'p', "--patch", 1, HTH_BOOK_PATCH_MAX, FIELD(codes.patch)},
    {'c', "--copies", 1, 64, FIELD(codes.copies)},
    {'S', "--shift", 1, 7, FIELD(codes.shift)},
    {'T', "--steps", 0, 1u << 20, FIELD(codes.steps)},
    {'r', "--seed", 0, UINT32_MAX, FIELD(codes.seed)},
};

/* Whether the option is one of the table. */
static bool parse_number(struct data *d, int key, const char *arg, struct argp_state *state)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(numbers); i++) {
        if (numbers[i].key != key)
            continue;
        *(uint32_t *)((char *)d + numbers[i].offset) =
            (uint32_t)hth_cli_number(state, numbers[i].flag, arg, numbers[i].min, numbers[i].max);
        return true;
    }
    return false;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct data *d = state->input;

    if (parse_number(d, key, arg, state))
        return 0;
    switch (key) {
    case 'o':
        d->make.pack.dir = arg;
        return 0;
    case 'N':
        d->make.pack.name = arg;
        return 0;
    case 'L':
        d->make.pack.licence = arg;
        return 0;
    case 't':
        d->make.pack.test = fraction(state, "--test", arg, 0, 0.5);
        return 0;
    case 'a':
        d->make.pack.aspect_max = fraction(state, "--max-aspect", arg, 1, 1e4);
        return 0;
    case 'd':
        add_drop(d, arg, state);
        return 0;
    case ARGP_KEY_ARG:
        if (d->verb[0] == '\0')
            d->verb = arg;
        else if (d->make.arg_count == ARGS_MAX)
            argp_error(state, "at most %d files at once", ARGS_MAX);
        else
            d->args[d->make.arg_count++] = arg;
        return 0;
    case ARGP_KEY_END:
        check(d, state);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct argp_option options[] = {
    {"out", 'o', "PATH", 0, "The folder of the new data set; of show: the sheet, a PNG file", 0},
    {"size", 's', "PIXELS", 0, "Side of the pictures (default 32; fashion: 28)", 1},
    {"test", 't', "FRACTION", 0,
     "Hold out that part, by a hash of each sample's name (default 0.1)", 1},
    {"name", 'N', "TEXT", 0, "Name of the data set (default: my-data)", 1},
    {"licence", 'L', "TEXT", 0, "Licence of the samples, for those who get the set", 1},
    {"min-caption", 'm', "N", 0, "Skip captions of fewer characters (default 3)", 2},
    {"max-aspect", 'a', "X", 0, "Skip pictures longer than X times their width (default 2)", 2},
    {"drop", 'd', "FIELD=VALUE", 0, "Skip such rows of captions.jsonl", 2},
    {"words-min", 'w', "N", 0, "A word is a token if seen N times (default 2; emoji: 1)", 2},
    {"codes", 'K', "N", 0, "codes: numbers in the code book (default 512)", 3},
    {"patch", 'p', "PIXELS", 0, "codes: side of a patch (default 4)", 3},
    {"copies", 'c', "N", 0, "codes: code each training picture N times (default 1)", 3},
    {"shift", 'S', "PIXELS", 0, "codes: move copies by up to so much (default 2)", 3},
    {"steps", 'T', "N", 0, "codes: training steps of the decoder (default 2000)", 3},
    {"seed", 'r', "N", 0, "codes: of book and decoder (default 1)", 3},
    {NULL, 'n', "N", 0, "show: samples of the training part (default 24)", 3},
    {0}};

static const char doc[] =
    "Make a data set from your own files, and show one.\v"
    "  hearth data folder DIR --out DATA    pictures and captions: NAME.png or .jpg\n"
    "      beside NAME.txt; captions.jsonl of {\"file\": ..., \"text\": ...}; or a\n"
    "      folder for each class\n"
    "  hearth data text FILE... --out DATA  plain text or .jsonl, or .gz, .zst of them\n"
    "  hearth data emoji --out DATA         3,655 emoji of Debian's font, with names\n"
    "  hearth data fashion --out DATA       Fashion-MNIST: 70,000 pictures, 10 classes\n"
    "  hearth data codes DATA --out CODES   its pictures as codes of a code book\n"
    "  hearth data show DATA --out A.png    counts, captions, a sheet of samples\n\n"
    "A data set is a folder: data.json, shards (tar, zstd), words.json. Samples\n"
    "that can't be used are skipped, counted by reason, and the first is named.\n";

int hth_verb_data(int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse,
                                     .args_doc = "emoji|fashion|folder|text|codes|show [FILE...]",
                                     .doc = doc};
    struct data d = {.verb = "", .show = 24, .make.pack.test = 0.1, .codes = HTH_CODES_OPTS_INIT};
    struct hth_net_opts net = HTH_NET_OPTS_INIT;
    enum hth_err err;
    int code;

    d.make.args = d.args;
    if (argp_parse(&argp, argc, argv, 0, NULL, &d) != 0)
        return HTH_EXIT_USAGE;
    err = hth_net_new(&net, &d.make.env);
    if (err != HTH_OK)
        return fail(&d, err);
    if (strcmp(d.verb, "show") == 0)
        code = show(&d);
    else if (strcmp(d.verb, "codes") == 0)
        code = codes(&d);
    else if (strcmp(d.verb, "folder") == 0)
        code = make_of_folder(&d, find_source(d.verb));
    else
        code = make(&d, find_source(d.verb));
    hth_net_free(d.make.env);
    return code;
}
