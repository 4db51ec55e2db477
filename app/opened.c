/* SPDX-License-Identifier: Apache-2.0 */
/* opened.c: see opened.h. */
#define _GNU_SOURCE /* memmem */
#include "app/opened.h"

#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "core/mem.h"
#include "data/set.h"
#include "data/words.h"
#include "trainer/book_file.h"
#include "trainer/data.h"
#include "trainer/saved.h"

/* ---- the trunk ----------------------------------------------------------------------------- */

static enum hth_err open_trunk(struct hth_opened *o, struct hth_env *env, struct hth_why *why)
{
    struct hth_why what = {""};
    o->path = hth_asprintf("%s/trunk.safetensors", o->folder);
    enum hth_err err = hth_trained_open(env, o->path, &what, &o->trained);
    if (err == HTH_E_NO_FILE)
        return hth_blame(why, err, "%s: %s: expected the folder of a trainer that has saved",
                         o->path, hth_err_text(err));
    if (err != HTH_OK)
        return hth_blame(why, err, "%s: %s; give another folder", o->path,
                         what.text[0] != '\0' ? what.text : hth_err_text(err));
    o->about = hth_trained_about(o->trained);
    return HTH_OK;
}

static void close_trunk(struct hth_opened *o)
{
    hth_trained_free(o->trained);
    hth_free(o->path);
    hth_free(o->folder);
    o->trained = NULL;
    o->path = o->folder = NULL;
}

/* Goes from the last checkpoint to the one that was asked for. */
static enum hth_err choose(struct hth_opened *o, struct hth_env *env, struct hth_why *why)
{
    struct hth_why what = {""};
    char *folder;
    if (o->opts.checkpoint == NULL)
        return HTH_OK;
    enum hth_err err =
        hth_saved_find(env, o->opts.dir, o->opts.checkpoint, o->about->updates, &what, &folder);
    if (err != HTH_OK)
        return hth_blame(why, err == HTH_E_NOT_FOUND ? HTH_E_USAGE : err, "--checkpoint: %s: %s",
                         o->opts.dir, what.text);
    close_trunk(o);
    o->folder = folder;
    return open_trunk(o, env, why);
}

static enum hth_err parse_run(struct hth_opened *o, struct hth_why *why)
{
    const char *text = o->about->run_text;
    char error[HTH_RUNFILE_ERROR_MAX];
    if (text == NULL || o->about->run == NULL)
        return hth_blame(why, HTH_E_CONFIG,
                         "%s does not hold its run file: save it again with this version (hearth "
                         "train --resume)",
                         o->path);
    enum hth_err err =
        hth_runfile_parse(o->path, (const uint8_t *)text, strlen(text), &o->run, error);
    return err == HTH_OK ? HTH_OK : hth_blame(why, err, "%s", error);
}

static bool is_set(const char *dir)
{
    char *path = hth_asprintf("%s/" HTH_MANIFEST_FILE, dir);
    struct stat st;
    bool is = stat(path, &st) == 0;
    hth_free(path);
    return is;
}

static void take_run(struct hth_opened *o)
{
    struct hth_run_data *data = &o->run->data;
    struct hth_data_opts train, test;
    hth_config_model(o->run, &o->model);
    hth_config_data(o->run, 0, &o->data, &train, &test);
    o->mean = train.mean;
    o->std = train.std;
    if (o->opts.data == NULL)
        return;
    hth_free(data->path);
    data->path = hth_strdup(o->opts.data);
    if (is_set(data->path))
        data->kind = HTH_RUN_SET;
    else if (data->kind == HTH_RUN_SET)
        data->kind = HTH_RUN_DATA_DEFAULT;
}

enum hth_err hth_opened_read(struct hth_env *env, const struct hth_opened_opts *opts,
                             struct hth_opened *o, struct hth_why *why)
{
    *o = (struct hth_opened){.opts = *opts, .folder = hth_strdup(opts->dir)};
    HTH_TRY(open_trunk(o, env, why));
    HTH_TRY(choose(o, env, why));
    HTH_TRY(parse_run(o, why));
    take_run(o);
    return HTH_OK;
}

const char *hth_opened_kind(const struct hth_opened *o)
{
    if (o->model.kind == HTH_MODEL_CLASSIFIER)
        return "a classifier";
    if (o->model.kind == HTH_MODEL_PICTURE)
        return "a picture model";
    return o->model.objective == HTH_MASKED ? "a masked lm" : "an lm";
}

const char *hth_opened_verb(const struct hth_opened *o)
{
    if (o->model.kind == HTH_MODEL_CLASSIFIER)
        return "predict";
    if (o->model.kind == HTH_MODEL_PICTURE)
        return "draw";
    return o->model.objective == HTH_MASKED ? "fill" : "write";
}

enum hth_err hth_opened_check_rows(const struct hth_opened *o, struct hth_why *why)
{
    if (o->model.dense || strcmp(o->model.expert_kind, "transformer") != 0)
        return HTH_OK;
    return hth_blame(why, HTH_E_CONFIG,
                     "%s has experts of kind transformer, which are chosen by a whole sequence: an "
                     "lm that writes or fills in needs expert ffn or none",
                     o->path);
}

/* ---- the data ------------------------------------------------------------------------------ */

bool hth_side_needed(const struct hth_runfile *run)
{
    return run->model.kind == HTH_RUN_PICTURE ||
           (run->model.kind == HTH_RUN_LM && run->model.vocab != HTH_DATA_BYTES);
}

uint64_t hth_side_hash(struct hth_env *env, const struct hth_side *side)
{
    struct hth_hash words, book;
    if (side->words != NULL)
        env->crypto->hash(side->words->data, side->words->size, &words);
    if (side->book != NULL)
        env->crypto->hash(side->book->data, side->book->size, &book);
    return hth_data_hash(side->words != NULL ? &words : NULL, side->book != NULL ? &book : NULL);
}

static bool is_empty(const struct hth_side *side)
{
    return side->words == NULL && side->book == NULL;
}

static enum hth_err read_beside(const struct hth_opened *o, struct hth_env *env, const char *name,
                                uint64_t max, struct hth_blob **out, struct hth_why *why)
{
    char *path = hth_asprintf("%s/%s", o->opts.dir, name);
    enum hth_err err = hth_file_read(env, path, max, out);
    if (err != HTH_OK && err != HTH_E_NO_FILE)
        err = hth_blame(why, err, "%s: %s", path, hth_err_text(err));
    hth_free(path);
    return err == HTH_E_NO_FILE ? HTH_OK : err;
}

static enum hth_err read_of_set(struct hth_set *set, const struct hth_side_file *file, uint64_t max,
                                struct hth_blob **out, struct hth_why *why)
{
    enum hth_err err = hth_set_side_file(set, file, max, out, why);
    return err == HTH_E_NOT_FOUND ? HTH_OK : err;
}

static enum hth_err no_set(struct hth_opened *o)
{
    return hth_blame(&o->no_set, HTH_E_CONFIG,
                     "'%s' is no data set that the model can have learnt from: give the folder of "
                     "that one with --data DIR",
                     o->run->data.path != NULL ? o->run->data.path : "");
}

static enum hth_err open_set(struct hth_opened *o, struct hth_env *env)
{
    const char *path = o->run->data.path;
    if (path == NULL || !is_set(path))
        return no_set(o);
    return hth_set_open(env, path, &o->set, &o->no_set);
}

static void drop_other_set(struct hth_opened *o)
{
    const struct hth_manifest *m = o->set != NULL ? hth_set_manifest(o->set) : NULL;
    if (m == NULL ||
        hth_data_hash(m->words.file[0] != '\0' ? &m->words.sha256 : NULL,
                      m->book.file[0] != '\0' ? &m->book.sha256 : NULL) == o->model.data_hash)
        return;
    hth_set_free(o->set);
    o->set = NULL;
    (void)no_set(o);
}

/* Those beside the model first: a set that the run file names may be anybody's, or damaged. */
enum hth_err hth_opened_data(struct hth_env *env, struct hth_opened *o, struct hth_why *why)
{
    struct hth_side *side = &o->side;
    bool ids = hth_side_needed(o->run);
    if (o->run->data.kind != HTH_RUN_SET && !ids)
        return HTH_OK;
    if (ids && o->opts.data == NULL) {
        HTH_TRY(read_beside(o, env, HTH_WORDS_FILE, HTH_WORDS_BYTES_MAX, &side->words, why));
        HTH_TRY(read_beside(o, env, HTH_BOOK_FILE, HTH_BOOK_FILE_BYTES_MAX, &side->book, why));
    }
    enum hth_err err = open_set(o, env);
    if (err != HTH_OK && err != HTH_E_CONFIG && is_empty(side))
        return hth_blame(why, err, "%s",
                         o->no_set.text[0] != '\0' ? o->no_set.text : hth_err_text(err));
    if (!ids)
        return HTH_OK;
    if (is_empty(side) && o->set != NULL) {
        const struct hth_manifest *m = hth_set_manifest(o->set);
        HTH_TRY(read_of_set(o->set, &m->words, HTH_WORDS_BYTES_MAX, &side->words, why));
        HTH_TRY(read_of_set(o->set, &m->book, HTH_BOOK_FILE_BYTES_MAX, &side->book, why));
    }
    if (side->words != NULL)
        HTH_TRY(
            hth_words_parse(HTH_WORDS_FILE, side->words->data, side->words->size, &o->words, why));
    o->model.data_hash = hth_side_hash(env, side);
    drop_other_set(o);
    return HTH_OK;
}

void hth_opened_samples(struct hth_opened *o, bool held_out, struct hth_data_opts *out)
{
    struct hth_data_opts train, test;
    hth_config_data_clear(&o->data);
    hth_config_data(o->run, 0, &o->data, &train, &test);
    *out = held_out ? test : train;
    out->shuffle_rows = 0;
    out->caption_drop = 0;
    out->shift = 0;
    out->mean = o->mean; /* the model's, whatever kind of data it sees now */
    out->std = o->std;
}

/* ---- the model ----------------------------------------------------------------------------- */

enum hth_err hth_opened_check_words(const struct hth_opened *o, struct hth_why *why)
{
    uint64_t schema;
    if (!hth_side_needed(o->run))
        return HTH_OK;
    if (o->words == NULL)
        return hth_blame(why, HTH_E_CONFIG, "%s", o->no_set.text);
    HTH_TRY(hth_model_find_schema(&o->model, &schema));
    if (schema == o->about->schema)
        return HTH_OK;
    return hth_blame(why, HTH_E_WRONG_RUN,
                     "%s: its ids are of other words than those of %s: give the data set that it "
                     "learnt from with --data DIR",
                     o->path, o->set != NULL ? o->run->data.path : o->opts.dir);
}

static enum hth_err blame_model(const struct hth_opened *o, enum hth_err err, const char *what,
                                struct hth_why *why)
{
    if (err == HTH_E_NO_FILE)
        return hth_blame(why, err, "%s: %s; if its experts are on hosts, give --join HOST:PORT",
                         o->path, what);
    return hth_blame(why, err, "%s: %s", o->path, what[0] != '\0' ? what : hth_err_text(err));
}

enum hth_err hth_opened_infer(struct hth_env *env, const struct hth_opened *o,
                              struct hth_infer_opts *in, struct hth_infer **out,
                              struct hth_why *why)
{
    struct hth_why what = {""};
    *out = NULL;
    HTH_TRY(hth_opened_check_words(o, why));
    char *experts = hth_asprintf("%s/experts", o->folder);
    in->model = o->model;
    in->trained = o->trained;
    in->local = in->directory == NULL;
    in->experts_dir = experts;
    hth_config_optim(&o->run->experts.optimizer, &in->local_optim);
    in->run = o->run->run;
    in->grace_us = (int64_t)(o->run->train.grace_s * 1e6);
    in->timeout_us = (int64_t)(o->run->train.timeout_s * 1e6);
    in->wire = hth_runfile_wire(o->run);
    in->why = &what;
    enum hth_err err = hth_infer_new(env, in, out);
    hth_free(experts);
    return err == HTH_OK ? HTH_OK : blame_model(o, err, what.text, why);
}

void hth_opened_clear(struct hth_opened *o)
{
    hth_codes_clear(&o->paint);
    hth_set_free(o->set);
    hth_words_free(o->words);
    hth_blob_unref(o->side.words);
    hth_blob_unref(o->side.book);
    hth_runfile_free(o->run);
    hth_config_data_clear(&o->data);
    close_trunk(o);
    *o = (struct hth_opened){.trained = NULL};
}

/* ---- texts --------------------------------------------------------------------------------- */

static size_t add_ids(const struct hth_opened *o, const char *text, size_t len, int32_t *ids)
{
    if (o->words != NULL)
        return hth_words_encode(o->words, o->model.classes, text, len, ids, 2 * len + 1);
    for (size_t i = 0; i < len; i++)
        ids[i] = (uint8_t)text[i];
    return len;
}

int32_t *hth_opened_ids(const struct hth_opened *o, const char *text, size_t len, size_t *count)
{
    /* A word that is not in the list is a blank and its bytes. */
    int32_t *ids = hth_new_array(int32_t, 2 * len + 2);
    const char *end = text + len, *mask;
    size_t n = 0;
    if (o->words != NULL)
        ids[n++] = HTH_ID_BEGIN;
    while (o->model.objective == HTH_MASKED &&
           (mask = memmem(text, (size_t)(end - text), HTH_MASK_TEXT, strlen(HTH_MASK_TEXT)))) {
        n += add_ids(o, text, (size_t)(mask - text), ids + n);
        ids[n++] = (int32_t)o->model.classes;
        text = mask + strlen(HTH_MASK_TEXT);
    }
    *count = n + add_ids(o, text, (size_t)(end - text), ids + n);
    return ids;
}

char *hth_opened_text(const struct hth_opened *o, const int32_t *ids, size_t count)
{
    size_t room = count * (HTH_WORD_BYTES_MAX + 1) + 1, len = 0, at = 0, n = count;
    char *raw = hth_new_array(char, room), *out = hth_new_array(char, room *HTH_TEXT_CHAR_MAX);
    for (size_t i = 0; i < count; i++)
        raw[i] = (char)ids[i];
    if (o->words != NULL)
        n = hth_words_decode(o->words, ids, count, raw, room);
    while (at < n) {
        at += hth_text_char(raw + at, n - at, false, out + len);
        len += strlen(out + len);
    }
    hth_free(raw);
    return out;
}

size_t hth_opened_caption(const struct hth_opened *o, const char *caption, int32_t *ids)
{
    for (uint32_t i = 0; i < o->model.text; i++)
        ids[i] = HTH_ID_PAD;
    ids[0] = HTH_ID_BEGIN;
    return 1 + hth_words_encode(o->words, o->model.classes, caption, strlen(caption), ids + 1,
                                o->model.text - 1);
}

/* ---- pictures ------------------------------------------------------------------------------ */

enum hth_err hth_opened_book(struct hth_opened *o, struct hth_why *why)
{
    const struct hth_model_opts *m = &o->model;
    if (o->side.book == NULL)
        return hth_blame(why, HTH_E_NOT_FOUND,
                         "there is no code book beside the words: give the data set that the model "
                         "learnt from with --data DIR");
    HTH_TRY(hth_book_file_load(HTH_BOOK_FILE, o->side.book, m->height, &o->paint, why));
    if (o->paint.book.codes >= m->codes)
        return HTH_OK;
    return hth_blame(why, HTH_E_CONFIG, HTH_BOOK_FILE ": %u codes, and the model draws with %u",
                     o->paint.book.codes, m->codes);
}

uint32_t hth_opened_side(const struct hth_opened *o)
{
    return o->model.height * o->paint.book.patch;
}

enum hth_err hth_opened_paint(struct hth_opened *o, const int32_t *codes, uint8_t *rgb)
{
    uint32_t n = o->model.height * o->model.width;
    uint16_t *grid = hth_new_array(uint16_t, n);
    enum hth_err err = HTH_OK;
    for (uint32_t i = 0; i < n; i++)
        grid[i] = (uint16_t)codes[i];
    if (o->paint.decoder != NULL)
        err = hth_decoder_paint(o->paint.decoder, grid, rgb);
    else
        hth_book_paint(&o->paint.book, grid, hth_opened_side(o), rgb);
    hth_free(grid);
    return err;
}
