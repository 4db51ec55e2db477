/* SPDX-License-Identifier: Apache-2.0 */
/*
 * set.c: samples of a data set (data/set.h) as records of fixed size.
 *
 *   SET_IMAGES   features bytes: RGB or grey, row by row; the class as uint16
 *   SET_TEXT     seq_len + 1 ids as uint16; the last is the first of the next record
 *   SET_CODES    text_len ids (begin, caption, padding), then side * side codes; all as uint16
 *
 * A part of text is one stream: for each document the begin and its ids, or with vocab
 * HTH_DATA_BYTES its bytes and a line's end. Records are windows of it, like those of text.c. How
 * many ids each shard has depends on vocab, so the reader counts them when it opens.
 */
#include <inttypes.h>
#include <string.h>

#include "core/bytes.h"
#include "core/env.h"
#include "core/mem.h"
#include "data/set.h"
#include "trainer/reader.h"

/* A byte gives its id, and the byte of a blank before it at most. */
#define DOCUMENT_IDS_MAX (2 * (size_t)HTH_DOCUMENT_BYTES_MAX + 2)

struct set_reader {
    struct hth_set *set;
    struct hth_data_opts opts;
    enum hth_set_part part;
    char *why; /* HTH_DATA_WHY_MAX bytes */
    /* text */
    uint64_t *ids_before; /* [shards]: ids of the part's shards before this one */
    uint64_t ids_total;
    int32_t *document; /* [DOCUMENT_IDS_MAX] */
    size_t held, used; /* ids of the document; those that were taken */
    /* codes */
    int32_t *caption; /* [text_len] */
};

_Static_assert(sizeof(((struct hth_why *)0)->text) <= HTH_DATA_WHY_MAX, "a sentence fits");

static enum hth_err keep_why(struct set_reader *r, const struct hth_why *why, enum hth_err err)
{
    if (err != HTH_OK && r->why[0] == '\0')
        memcpy(r->why, why->text, sizeof(why->text));
    return err;
}

static const struct hth_manifest *manifest_of(const struct set_reader *r)
{
    return hth_set_manifest(r->set);
}

/* ---- text ---------------------------------------------------------------------------------- */

static size_t bytes_of(const struct hth_sample *sample, int32_t *out)
{
    size_t n = sample->text_len;

    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)sample->text[i];
    out[n++] = '\n';
    return n;
}

static enum hth_err next_document(struct set_reader *r, struct hth_why *why)
{
    struct hth_sample sample;

    HTH_TRY(hth_set_next(r->set, &sample, why));
    r->used = 0;
    if (r->opts.vocab == HTH_DATA_BYTES) {
        r->held = bytes_of(&sample, r->document);
        return HTH_OK;
    }
    r->document[0] = HTH_ID_BEGIN;
    r->held = 1 + hth_words_encode(hth_set_words(r->set), r->opts.vocab, sample.text,
                                   sample.text_len, r->document + 1, DOCUMENT_IDS_MAX - 1);
    HTH_ASSERT(r->held <= DOCUMENT_IDS_MAX);
    return HTH_OK;
}

static enum hth_err take_id(struct set_reader *r, uint16_t *out, struct hth_why *why)
{
    if (r->used == r->held)
        HTH_TRY(next_document(r, why));
    *out = (uint16_t)r->document[r->used++];
    return HTH_OK;
}

/* Counts the ids of the part, shard by shard. */
static enum hth_err count_ids(struct set_reader *r, struct hth_why *why)
{
    const struct hth_manifest *m = manifest_of(r);

    r->ids_before = hth_try_calloc(m->shard_count, sizeof(*r->ids_before));
    r->document = hth_try_calloc(DOCUMENT_IDS_MAX, sizeof(*r->document));
    if (r->ids_before == NULL || r->document == NULL)
        return HTH_E_NO_MEMORY;
    HTH_TRY(hth_set_seek(r->set, r->part, 0, why));
    for (uint32_t i = 0; i < m->shard_count; i++) {
        r->ids_before[i] = r->ids_total;
        for (uint64_t k = 0; m->shards[i].part == r->part && k < m->shards[i].samples; k++) {
            HTH_TRY(next_document(r, why));
            r->ids_total += r->held;
        }
    }
    return HTH_OK;
}

static enum hth_err seek_text(struct set_reader *r, uint64_t at, struct hth_why *why)
{
    const struct hth_manifest *m = manifest_of(r);
    uint64_t sample = 0, skip = 0;

    for (uint32_t i = 0; i < m->shard_count; i++) {
        uint64_t end = i + 1 < m->shard_count ? r->ids_before[i + 1] : r->ids_total;
        if (m->shards[i].part != r->part)
            continue;
        skip = at - r->ids_before[i];
        if (at < end)
            break;
        sample += m->shards[i].samples;
    }
    HTH_TRY(hth_set_seek(r->set, r->part, sample, why));
    for (;;) {
        HTH_TRY(next_document(r, why));
        if (skip < r->held)
            break;
        skip -= r->held;
    }
    r->used = skip;
    return HTH_OK;
}

static enum hth_err next_text(struct set_reader *r, uint8_t *record, struct hth_why *why)
{
    uint16_t id = 0;

    for (uint32_t i = 0; i <= r->opts.seq_len; i++) {
        HTH_TRY(take_id(r, &id, why));
        memcpy(record + 2 * (size_t)i, &id, 2);
    }
    r->used--; /* the last is the first of the next record; it lies in the same document */
    return HTH_OK;
}

/* ---- pictures and codes -------------------------------------------------------------------- */

static enum hth_err next_image(struct set_reader *r, uint8_t *record, struct hth_why *why)
{
    uint32_t pixels = manifest_of(r)->side * manifest_of(r)->side;
    struct hth_sample sample;
    uint16_t label;

    HTH_TRY(hth_set_next(r->set, &sample, why));
    if (r->opts.features == 3 * pixels)
        memcpy(record, sample.pixels, r->opts.features);
    else
        for (uint32_t i = 0; i < pixels; i++) {
            const uint8_t *rgb = sample.pixels + 3 * (size_t)i;
            record[i] = (uint8_t)((77 * rgb[0] + 150 * rgb[1] + 29 * rgb[2] + 128) >> 8);
        }
    label = (uint16_t)sample.label;
    memcpy(record + r->opts.features, &label, 2);
    return HTH_OK;
}

static enum hth_err next_codes(struct set_reader *r, uint8_t *record, struct hth_why *why)
{
    uint32_t text = r->opts.text_len, codes = r->opts.code_side * r->opts.code_side;
    struct hth_sample sample;
    uint16_t id;

    HTH_TRY(hth_set_next(r->set, &sample, why));
    memset(r->caption, 0, text * sizeof(*r->caption)); /* HTH_ID_PAD */
    r->caption[0] = HTH_ID_BEGIN;
    if (sample.text_len > 0) /* a longer caption is cut */
        hth_words_encode(hth_set_words(r->set), r->opts.vocab, sample.text, sample.text_len,
                         r->caption + 1, text - 1);
    for (uint32_t i = 0; i < text + codes; i++) {
        id = i < text ? (uint16_t)r->caption[i] : sample.codes[i - text];
        memcpy(record + 2 * (size_t)i, &id, 2);
    }
    return HTH_OK;
}

/* ---- the reader ---------------------------------------------------------------------------- */

static enum hth_err set_seek(void *self, uint64_t index, uint32_t phase)
{
    struct set_reader *r = self;
    struct hth_why why = {""};
    enum hth_err err = r->opts.kind == HTH_DATA_SET_TEXT
                           ? seek_text(r, phase + index * r->opts.seq_len, &why)
                           : hth_set_seek(r->set, r->part, index, &why);

    return keep_why(r, &why, err);
}

static enum hth_err set_next(void *self, uint8_t *record)
{
    struct set_reader *r = self;
    struct hth_why why = {""};
    enum hth_err err;

    if (r->opts.kind == HTH_DATA_SET_TEXT)
        err = next_text(r, record, &why);
    else if (r->opts.kind == HTH_DATA_SET_CODES)
        err = next_codes(r, record, &why);
    else
        err = next_image(r, record, &why);
    return keep_why(r, &why, err);
}

static void set_free(void *self)
{
    struct set_reader *r = self;

    hth_set_free(r->set);
    hth_free(r->ids_before);
    hth_free(r->document);
    hth_free(r->caption);
    hth_free(r);
}

/* ---- the set and the run file -------------------------------------------------------------- */

static enum hth_err misfit(const struct set_reader *r, struct hth_why *why, const char *text)
{
    return hth_blame(why, HTH_E_CONFIG, "%s/" HTH_MANIFEST_FILE ": %s", r->opts.set, text);
}

/* Refuses a file beside the shards that gives ids another meaning than the run file's. */
static enum hth_err check_hash(const struct set_reader *r, const struct hth_side_file *file,
                               const char *key, const char *want, struct hth_why *why)
{
    char is[2 * HTH_HASH_LEN + 1];

    hth_hex(file->sha256.b, HTH_HASH_LEN, is);
    if (want == NULL || strcmp(want, is) == 0)
        return HTH_OK;
    return hth_blame(why, HTH_E_CONFIG,
                     "%s/%s: its SHA-256 is %s, but %s of the run file is %s: its ids mean "
                     "something else; use the data set that the run was made with",
                     r->opts.set, file->file, is, key, want);
}

static enum hth_err check_kind(const struct set_reader *r, struct hth_why *why)
{
    static const struct {
        enum hth_set_kind kind;
        const char *model, *remedy;
    } wanted[] = {
        [HTH_DATA_SET_IMAGES] = {HTH_SET_PICTURES, "classifier", "hearth data folder or fashion"},
        [HTH_DATA_SET_TEXT] = {HTH_SET_TEXT, "lm", "hearth data text"},
        [HTH_DATA_SET_CODES] = {HTH_SET_CODES, "picture", "hearth data codes"},
    };
    enum hth_set_kind is = manifest_of(r)->kind, want = wanted[r->opts.kind].kind;

    if (is == want)
        return HTH_OK;
    return hth_blame(why, HTH_E_CONFIG,
                     "%s/" HTH_MANIFEST_FILE ": a set of %s; model.kind %s learns from one of %s, "
                     "made with %s",
                     r->opts.set, hth_set_kind_name(is), wanted[r->opts.kind].model,
                     hth_set_kind_name(want), wanted[r->opts.kind].remedy);
}

static enum hth_err check_images(const struct set_reader *r, struct hth_why *why)
{
    const struct hth_manifest *m = manifest_of(r);
    uint32_t pixels = m->side * m->side;

    if (m->class_count == 0)
        return misfit(r, why,
                      "its pictures have no classes; a classifier needs a folder for each "
                      "class (hearth data folder --help)");
    if (r->opts.features != pixels && r->opts.features != 3 * pixels)
        return hth_blame(why, HTH_E_CONFIG,
                         "%s/" HTH_MANIFEST_FILE
                         ": pictures of %u x %u pixels: model.inputs must be "
                         "%u (grey) or %u (colours), not %u",
                         r->opts.set, m->side, m->side, pixels, 3 * pixels, r->opts.features);
    if (m->class_count > r->opts.classes)
        return hth_blame(why, HTH_E_CONFIG,
                         "%s/" HTH_MANIFEST_FILE ": %u classes, but model.classes is %u",
                         r->opts.set, m->class_count, r->opts.classes);
    return HTH_OK;
}

static enum hth_err check_codes(const struct set_reader *r, struct hth_why *why)
{
    const struct hth_manifest *m = manifest_of(r);
    uint32_t side = m->side / m->patch;

    if (side != r->opts.code_side || m->book.count != r->opts.codes)
        return hth_blame(why, HTH_E_CONFIG,
                         "%s/" HTH_MANIFEST_FILE ": %u x %u codes of %u; in the run file "
                         "model.height and width are %u and model.codes is %u",
                         r->opts.set, side, side, m->book.count, r->opts.code_side, r->opts.codes);
    return HTH_OK;
}

static enum hth_err check_words(const struct set_reader *r, struct hth_why *why)
{
    if (hth_set_words(r->set) == NULL)
        return misfit(r, why, "it has no words; model.vocab: 256 reads the bytes of a text");
    return check_hash(r, &manifest_of(r)->words, "model.words", r->opts.words, why);
}

static enum hth_err check_set(const struct set_reader *r, struct hth_why *why)
{
    HTH_TRY(check_kind(r, why));
    if (manifest_of(r)->samples[r->part] == 0)
        return misfit(r, why,
                      r->part == HTH_SET_TEST
                          ? "nothing is held out to test with: make the set with a larger "
                            "--test, such as 0.2"
                          : "no sample is for training");
    if (r->opts.kind == HTH_DATA_SET_IMAGES)
        return check_images(r, why);
    if (r->opts.vocab != HTH_DATA_BYTES)
        HTH_TRY(check_words(r, why));
    if (r->opts.kind == HTH_DATA_SET_TEXT)
        return HTH_OK;
    HTH_TRY(check_codes(r, why));
    return check_hash(r, &manifest_of(r)->book, "model.codebook", r->opts.book, why);
}

static enum hth_err fill_text(struct set_reader *r, struct hth_record_reader *out,
                              struct hth_why *why)
{
    uint64_t seq_len = r->opts.seq_len;

    HTH_TRY(count_ids(r, why));
    if (r->ids_total < 2 * seq_len + 1)
        return hth_blame(why, HTH_E_CONFIG,
                         "%s: its part '%s' has %" PRIu64 " tokens, fewer than two samples of "
                         "model.context %u: take more text, or a smaller context",
                         r->opts.set, hth_set_part_name(r->part), r->ids_total, r->opts.seq_len);
    out->count = (r->ids_total - seq_len) / seq_len;
    out->phases = r->opts.seq_len;
    out->features = r->opts.seq_len;
    out->record_bytes = 2 * (r->opts.seq_len + 1);
    return HTH_OK;
}

static enum hth_err fill(struct set_reader *r, struct hth_record_reader *out, struct hth_why *why)
{
    const struct hth_manifest *m = manifest_of(r);
    uint32_t row;

    if (r->opts.vocab != HTH_DATA_BYTES)
        out->hash = hth_data_hash(&m->words.sha256,
                                  r->opts.kind == HTH_DATA_SET_CODES ? &m->book.sha256 : NULL);
    if (r->opts.kind == HTH_DATA_SET_TEXT)
        return fill_text(r, out, why);
    out->count = m->samples[r->part];
    out->phases = 1;
    if (r->opts.kind == HTH_DATA_SET_IMAGES) {
        out->features = r->opts.features;
        out->record_bytes = r->opts.features + 2;
        out->line_bytes = r->opts.features / m->side;
        return HTH_OK;
    }
    row = r->opts.text_len + r->opts.code_side * r->opts.code_side;
    out->features = row - 1;
    out->record_bytes = 2 * row;
    r->caption = hth_try_calloc(r->opts.text_len, sizeof(*r->caption));
    return r->caption != NULL ? HTH_OK : HTH_E_NO_MEMORY;
}

enum hth_err hth_reader_set(struct hth_env *env, const struct hth_data_opts *opts, char *why_text,
                            struct hth_record_reader *out)
{
    struct set_reader *r = hth_new(struct set_reader);
    struct hth_why why = {""};
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    r->opts = *opts;
    r->why = why_text;
    r->part = opts->held_out ? HTH_SET_TEST : HTH_SET_TRAIN;
    err = hth_set_open(env, opts->set, &r->set, &why);
    if (err == HTH_OK)
        err = check_set(r, &why);
    if (err == HTH_OK)
        err = fill(r, out, &why);
    if (err != HTH_OK) {
        keep_why(r, &why, err);
        set_free(r);
        return err;
    }
    out->seek = set_seek;
    out->next = set_next;
    out->free = set_free;
    out->self = r;
    return HTH_OK;
}
