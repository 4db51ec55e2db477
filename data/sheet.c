/* SPDX-License-Identifier: Apache-2.0 */
/* sheet.c: pictures side by side on grey. */
#include "data/sheet.h"

#include <string.h>

#include "core/mem.h"
#include "data/picture.h"

#define GAP       4
#define GREY      192
#define COLUMNS   8  /* of a set's sheet */
#define SHOW_SIDE 96 /* pixels of a picture on it, about */

enum hth_err hth_sheet_init(struct hth_sheet *s, uint32_t columns, uint32_t rows, uint32_t side,
                            uint32_t zoom)
{
    *s = (struct hth_sheet){.columns = columns, .rows = rows, .side = side, .zoom = zoom};
    s->width = columns * (side * zoom + GAP) + GAP;
    s->height = rows * (side * zoom + GAP) + GAP;
    s->rgb = hth_try_alloc((size_t)s->width * s->height * 3);
    if (s->rgb == NULL)
        return HTH_E_NO_MEMORY;
    memset(s->rgb, GREY, (size_t)s->width * s->height * 3);
    return HTH_OK;
}

void hth_sheet_clear(struct hth_sheet *s)
{
    hth_free(s->rgb);
    s->rgb = NULL;
}

void hth_sheet_put(struct hth_sheet *s, uint32_t index, const uint8_t *rgb)
{
    uint32_t step = s->side * s->zoom + GAP;
    size_t left = GAP + (size_t)(index % s->columns) * step;
    size_t top = GAP + (size_t)(index / s->columns) * step;

    for (size_t y = 0; y < (size_t)s->side * s->zoom; y++)
        for (size_t x = 0; x < (size_t)s->side * s->zoom; x++)
            memcpy(s->rgb + 3 * ((top + y) * s->width + left + x),
                   rgb + 3 * (y / s->zoom * s->side + x / s->zoom), 3);
}

enum hth_err hth_sheet_png(const struct hth_sheet *s, struct hth_blob **out)
{
    return hth_picture_png(s->rgb, s->width, s->height, out);
}

/* ---- of a set ------------------------------------------------------------------------------ */

struct drawing {
    struct hth_set *set;
    const struct hth_codes *codes;
    hth_sheet_fn *each;
    void *arg;
    struct hth_sheet *sheet;
    struct hth_why *why;
};

static enum hth_err draw_sample(const struct drawing *d, uint32_t index,
                                const struct hth_sample *sample)
{
    uint8_t *painted;
    enum hth_err err = HTH_OK;

    if (sample->pixels != NULL)
        hth_sheet_put(d->sheet, index, sample->pixels);
    if (sample->codes == NULL || d->codes == NULL)
        return HTH_OK;
    painted = hth_calloc((size_t)d->sheet->side * d->sheet->side, 3);
    if (d->codes->decoder != NULL)
        err = hth_decoder_paint(d->codes->decoder, sample->codes, painted);
    else
        hth_book_paint(&d->codes->book, sample->codes, d->sheet->side, painted);
    if (err == HTH_OK)
        hth_sheet_put(d->sheet, index, painted);
    hth_free(painted);
    return err;
}

static enum hth_err draw_part(const struct drawing *d, enum hth_set_part part, uint32_t first,
                              uint32_t count)
{
    uint64_t samples = hth_set_manifest(d->set)->samples[part];
    struct hth_sample sample;

    for (uint32_t i = 0; i < count; i++) {
        HTH_TRY(hth_set_seek(d->set, part, samples * i / count, d->why));
        HTH_TRY(hth_set_next(d->set, &sample, d->why));
        HTH_TRY(draw_sample(d, first + i, &sample));
        d->each(d->arg, part, i + 1, &sample);
    }
    return HTH_OK;
}

enum hth_err hth_sheet_of_set(struct hth_set *set, const struct hth_codes *codes, uint32_t count,
                              hth_sheet_fn *each, void *arg, struct hth_sheet *out,
                              struct hth_why *why)
{
    const struct hth_manifest *m = hth_set_manifest(set);
    struct drawing d = {set, codes, each, arg, out, why};
    uint32_t train = (uint32_t)HTH_MIN((uint64_t)count, m->samples[HTH_SET_TRAIN]);
    uint32_t test = (uint32_t)HTH_MIN(((uint64_t)count + 2) / 3, m->samples[HTH_SET_TEST]);
    uint32_t rows = (train + COLUMNS - 1) / COLUMNS;

    *out = (struct hth_sheet){0};
    if (m->kind != HTH_SET_TEXT)
        HTH_TRY(hth_sheet_init(out, COLUMNS, rows + (test + COLUMNS - 1) / COLUMNS, m->side,
                               HTH_MAX(SHOW_SIDE / m->side, 1u)));
    HTH_TRY(draw_part(&d, HTH_SET_TRAIN, 0, train));
    return draw_part(&d, HTH_SET_TEST, rows * COLUMNS, test);
}
