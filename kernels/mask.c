/* SPDX-License-Identifier: Apache-2.0 */
/* mask.c: bands of attention masks; see mask.h. */
#include "kernels/mask.h"

#include <math.h>

#include "core/limits.h"

static const char *const names[HTH_MASK_KINDS] = {
    [HTH_MASK_FULL] = "full", [HTH_MASK_ROW] = "row",   [HTH_MASK_COLUMN] = "column",
    [HTH_MASK_CONV] = "conv", [HTH_MASK_NONE] = "none",
};

const char *hth_mask_name(enum hth_mask_kind kind)
{
    return (unsigned)kind < HTH_MASK_KINDS ? names[kind] : NULL;
}

enum hth_err hth_mask_check(const struct hth_mask *m)
{
    if (hth_mask_name(m->kind) == NULL || m->text == 0 || (m->height == 0) != (m->width == 0))
        return HTH_E_CONFIG;
    if (m->kind == HTH_MASK_CONV && m->window % 2 == 0)
        return HTH_E_CONFIG;
    if (m->text > HTH_SEQ_MAX || (uint64_t)m->height * m->width > HTH_SEQ_MAX - m->text)
        return HTH_E_TOO_LARGE;
    return HTH_OK;
}

uint32_t hth_mask_positions(const struct hth_mask *m)
{
    return m->text + m->height * m->width;
}

/* -- the walk by columns ------------------------------------------------------------------- */

/* A picture that ends early: `longer` columns have `rows` + 1 codes, the others `rows`. */
struct columns {
    uint32_t rows, longer;
};

static struct columns columns_of(const struct hth_mask *m, uint32_t seq)
{
    uint32_t codes = seq - m->text;
    return (struct columns){codes / m->width, codes % m->width};
}

/* The column of the picture's i-th code of the walk. */
static uint32_t column_at(const struct columns *c, uint32_t i)
{
    uint32_t split = c->longer * (c->rows + 1);
    return i < split ? i / (c->rows + 1) : c->longer + (i - split) / c->rows;
}

/* The walk's first code of that column. */
static uint32_t column_start(const struct columns *c, uint32_t column)
{
    return column * c->rows + HTH_MIN(column, c->longer);
}

uint32_t hth_mask_place(const struct hth_mask *m, uint32_t seq, uint32_t i)
{
    if (m->kind != HTH_MASK_COLUMN || i < m->text)
        return i;
    struct columns c = columns_of(m, seq);
    uint32_t column = column_at(&c, i - m->text);
    return m->text + (i - m->text - column_start(&c, column)) * m->width + column;
}

/* -- bands --------------------------------------------------------------------------------- */

/* Queries first .. `end` at most that see the text and places from .. of a picture's line. */
static struct hth_band picture_band(const struct hth_mask *m, uint32_t first, uint32_t end,
                                    uint32_t from)
{
    return (struct hth_band){first, end, m->text, from, end};
}

static struct hth_band column_band(const struct hth_mask *m, uint32_t seq, uint32_t first,
                                   uint32_t most)
{
    struct columns c = columns_of(m, seq);
    uint32_t column = column_at(&c, first - m->text);
    uint32_t start = m->text + column_start(&c, column);
    uint32_t next = m->text + column_start(&c, column + 1);
    return picture_band(m, first, HTH_MIN(first + most, next), start);
}

struct hth_band hth_mask_band(const struct hth_mask *m, uint32_t seq, uint32_t first, uint32_t most)
{
    uint32_t end = HTH_MIN(seq, first + most);
    if (m->kind == HTH_MASK_NONE)
        return (struct hth_band){first, end, 0, 0, seq};
    if (m->kind == HTH_MASK_FULL)
        return (struct hth_band){first, end, 0, 0, end};
    if (first < m->text) {
        end = HTH_MIN(end, m->text);
        return (struct hth_band){first, end, 0, 0, end};
    }
    if (m->kind == HTH_MASK_COLUMN)
        return column_band(m, seq, first, most);
    uint32_t row = (first - m->text) / m->width, above = 0;
    end = HTH_MIN(end, m->text + (row + 1) * m->width);
    if (m->kind == HTH_MASK_CONV)
        above = HTH_MIN(row, m->window / 2);
    return picture_band(m, first, end, m->text + (row - above) * m->width);
}

struct hth_band hth_mask_last(const struct hth_mask *m, uint32_t t, uint32_t *start,
                              uint32_t *stride)
{
    uint32_t place = t;
    *stride = 1;
    if (m->kind == HTH_MASK_COLUMN && t >= m->text) {
        struct columns c = columns_of(m, t + 1);
        place = m->text + column_start(&c, (t - m->text) % m->width) + (t - m->text) / m->width;
        *stride = m->width;
    }
    struct hth_band band = hth_mask_band(m, t + 1, place, 1);
    *start = hth_mask_place(m, t + 1, band.from);
    return band;
}

static void hide(float *scores, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        scores[i] = -INFINITY;
}

/* Hides columns of a window's rows that are too far to either side. */
static void hide_beside(const struct hth_mask *m, const struct hth_band *band, uint32_t q,
                        float *scores)
{
    uint32_t reach = m->window / 2, column = (q - m->text) % m->width;
    uint32_t left = column > reach ? column - reach : 0;
    uint32_t right = column + HTH_MIN(reach, m->width - 1 - column);
    uint32_t own = q - column; /* the place of the query's row */
    for (uint32_t at = band->from; at <= own; at += m->width) {
        float *row = scores + band->text + (at - band->from);
        hide(row, 0, left);
        if (at < own)
            hide(row, right + 1, m->width);
    }
}

uint32_t hth_mask_row(const struct hth_mask *m, const struct hth_band *band, uint32_t q,
                      uint32_t unpadded, float *scores)
{
    uint32_t keys = m->kind == HTH_MASK_NONE ? band->to - band->from : q + 1 - band->from;
    uint32_t count = band->text + keys;
    hide(scores, unpadded, HTH_MIN(m->text, count));
    if (m->kind == HTH_MASK_CONV && band->text > 0)
        hide_beside(m, band, q, scores);
    return count;
}
