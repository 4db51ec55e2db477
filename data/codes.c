/* SPDX-License-Identifier: Apache-2.0 */
/* codes.c: pictures of a set as codes. */
#include "data/codes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/rng.h"
#include "data/picture.h"

/* ---- training ------------------------------------------------------------------------------ */

/* Reads training pictures, evenly spread if there are too many. */
static enum hth_err load(struct hth_set *set, struct hth_book_pictures *out, struct hth_why *why)
{
    const struct hth_manifest *m = hth_set_manifest(set);
    uint64_t samples = m->samples[HTH_SET_TRAIN];
    uint64_t stride = samples / HTH_CODES_PICTURES_MAX + 1;
    size_t bytes = (size_t)m->side * m->side * 3;
    uint8_t *rgb = hth_try_calloc((samples + stride - 1) / stride, bytes);
    struct hth_sample sample;
    enum hth_err err = HTH_OK;

    *out = (struct hth_book_pictures){rgb, 0, m->side};
    if (rgb == NULL)
        return HTH_E_NO_MEMORY;
    if (samples > 0)
        err = hth_set_seek(set, HTH_SET_TRAIN, 0, why);
    for (uint64_t i = 0; i < samples && err == HTH_OK; i++) {
        err = hth_set_next(set, &sample, why);
        if (err == HTH_OK && i % stride == 0)
            memcpy(rgb + bytes * out->count++, sample.pixels, bytes);
    }
    return err;
}

static double squared_error(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    int64_t sum = 0;

    for (size_t i = 0; i < bytes; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return (double)sum;
}

static double psnr(double squares, double count)
{
    return count > 0 ? 10 * log10(255.0 * 255.0 * count / squares) : NAN;
}

/* Measures the loss of a part, and counts its codes. */
static enum hth_err measure(struct hth_set *set, struct hth_codes *c, enum hth_set_part part,
                            uint64_t *counts, struct hth_why *why)
{
    const struct hth_manifest *m = hth_set_manifest(set);
    size_t bytes = (size_t)m->side * m->side * 3;
    uint32_t each = m->side / c->book.patch * (m->side / c->book.patch);
    uint8_t *painted = hth_calloc(bytes, 1);
    uint16_t *codes = hth_new_array(uint16_t, each);
    double centres = 0, decoder = 0, count = (double)m->samples[part] * (double)bytes;
    struct hth_sample sample;
    enum hth_err err = m->samples[part] > 0 ? hth_set_seek(set, part, 0, why) : HTH_OK;

    for (uint64_t i = 0; i < m->samples[part] && err == HTH_OK; i++) {
        HTH_GOTO(out, hth_set_next(set, &sample, why));
        hth_book_encode(&c->book, sample.pixels, m->side, codes);
        for (uint32_t k = 0; k < each; k++)
            counts[codes[k]]++;
        hth_book_paint(&c->book, codes, m->side, painted);
        centres += squared_error(painted, sample.pixels, bytes);
        if (c->decoder == NULL)
            continue;
        HTH_GOTO(out, hth_decoder_paint(c->decoder, codes, painted));
        decoder += squared_error(painted, sample.pixels, bytes);
    }
    c->psnr_centres[part] = psnr(centres, count);
    c->psnr_decoder[part] = c->decoder != NULL ? psnr(decoder, count) : NAN;
out:
    hth_free(painted);
    hth_free(codes);
    return err;
}

static void count_codes(struct hth_codes *c, const uint64_t *counts)
{
    double all = 0;

    for (uint32_t k = 0; k < c->book.codes; k++)
        all += (double)counts[k];
    for (uint32_t k = 0; k < c->book.codes; k++) {
        if (counts[k] == 0)
            continue;
        c->used++;
        c->entropy -= (double)counts[k] / all * log2((double)counts[k] / all);
    }
}

static enum hth_err train_decoder(const struct hth_codes_opts *o,
                                  const struct hth_book_pictures *pictures, struct hth_codes *out)
{
    struct hth_decoder_opts opts = {o->backend, o->team, &out->book, pictures->side, o->seed};

    if (o->steps == 0)
        return HTH_OK;
    HTH_TRY(hth_decoder_new(&opts, &out->decoder));
    return hth_decoder_train(out->decoder, pictures, o->steps, o->progress, o->arg);
}

enum hth_err hth_codes_train(struct hth_set *set, const struct hth_codes_opts *opts,
                             struct hth_codes *out, struct hth_why *why)
{
    struct hth_book_opts book = {opts->codes, opts->patch,    opts->seed,
                                 opts->team,  opts->progress, opts->arg};
    struct hth_book_pictures pictures = {0};
    uint64_t *counts = hth_new_array(uint64_t, (size_t)opts->codes + 1);
    enum hth_err err;

    *out = (struct hth_codes){0};
    if (hth_set_manifest(set)->kind != HTH_SET_PICTURES)
        err = hth_blame(why, HTH_E_CONFIG, "codes are made of a data set of pictures, not of %s",
                        hth_set_kind_name(hth_set_manifest(set)->kind));
    else
        err = load(set, &pictures, why);
    if (err == HTH_OK)
        err = hth_book_train(&book, &pictures, &out->book, why);
    if (err == HTH_OK)
        err = train_decoder(opts, &pictures, out);
    hth_free((void *)pictures.rgb);
    if (err == HTH_OK)
        err = measure(set, out, HTH_SET_TRAIN, counts, why);
    if (err == HTH_OK)
        count_codes(out, counts);
    if (err == HTH_OK)
        err = measure(set, out, HTH_SET_TEST, counts, why);
    hth_free(counts);
    return err;
}

void hth_codes_clear(struct hth_codes *c)
{
    hth_decoder_free(c->decoder);
    hth_book_clear(&c->book);
    c->decoder = NULL;
}

/* ---- packing ------------------------------------------------------------------------------- */

/* A number from -shift to shift: a pure function of its arguments. */
static int draw_shift(const struct hth_codes_opts *o, uint64_t index, uint32_t copy, uint32_t axis)
{
    uint64_t drawn = hth_mix64(hth_mix64(hth_mix64(o->seed) + index) + 2 * (uint64_t)copy + axis);

    return (int)(drawn % (2 * o->shift + 1)) - (int)o->shift;
}

struct coding {
    const struct hth_codes_opts *opts;
    const struct hth_codes *codes;
    struct hth_pack *pack;
    uint32_t side, each;
    uint8_t *moved;
    uint16_t *grid;
    struct hth_why *why;
};

static enum hth_err pack_sample(struct coding *c, enum hth_set_part part, uint64_t index,
                                const struct hth_sample *sample)
{
    uint32_t copies = part == HTH_SET_TRAIN ? c->opts->copies : 1;

    for (uint32_t copy = 0; copy < copies; copy++) {
        int dx = copy > 0 ? draw_shift(c->opts, index, copy, 0) : 0;
        int dy = copy > 0 ? draw_shift(c->opts, index, copy, 1) : 0;
        hth_picture_shift(sample->pixels, c->side, dx, dy, c->moved);
        hth_book_encode(&c->codes->book, c->moved, c->side, c->grid);
        HTH_TRY(hth_pack_codes(c->pack, part, c->grid, c->each, sample->text, sample->text_len,
                               sample->label, c->why));
    }
    return HTH_OK;
}

static enum hth_err pack_part(struct coding *c, struct hth_set *set, enum hth_set_part part)
{
    uint64_t samples = hth_set_manifest(set)->samples[part];
    struct hth_sample sample;

    if (samples > 0)
        HTH_TRY(hth_set_seek(set, part, 0, c->why));
    for (uint64_t i = 0; i < samples; i++) {
        HTH_TRY(hth_set_next(set, &sample, c->why));
        HTH_TRY(pack_sample(c, part, i, &sample));
        if (c->opts->progress != NULL)
            c->opts->progress(c->opts->arg, i + 1, samples);
    }
    return HTH_OK;
}

enum hth_err hth_codes_pack(struct hth_set *set, const struct hth_codes_opts *opts,
                            const struct hth_codes *codes, struct hth_pack *pack,
                            struct hth_why *why)
{
    const struct hth_manifest *m = hth_set_manifest(set);
    uint32_t grid = m->side / codes->book.patch;
    struct coding c = {opts, codes, pack, m->side, grid * grid, NULL, NULL, why};
    enum hth_err err;

    c.moved = hth_calloc((size_t)m->side * m->side, 3);
    c.grid = hth_new_array(uint16_t, c.each);
    hth_pack_classes(pack, (const char *const *)m->classes, m->class_count);
    if (hth_set_words(set) != NULL)
        hth_pack_words(pack, hth_set_words(set));
    err = pack_part(&c, set, HTH_SET_TRAIN);
    if (err == HTH_OK)
        err = pack_part(&c, set, HTH_SET_TEST);
    hth_free(c.moved);
    hth_free(c.grid);
    return err;
}
