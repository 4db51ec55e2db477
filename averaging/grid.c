/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes, cells and lines of the averaging grid; see grid.h. */
#include "averaging/grid.h"
#include "core/bytes.h"
#include "core/rng.h"

#include <stdio.h>
#include <string.h>

/* ---- text ---------------------------------------------------------------------------------- */

static void print_numbers(const uint32_t *numbers, uint32_t count, char separator, char *out)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0)
            out[at++] = separator;
        at += (size_t)snprintf(out + at, 9, "%u", numbers[i] % 100000000u);
    }
}

enum hth_err hth_avg_shape_parse(const char *text, struct hth_avg_shape *out)
{
    struct hth_avg_shape shape = {0};

    memset(out, 0, sizeof(*out));
    for (const char *p = text;; p++) {
        uint64_t value = 0;
        const char *begin = p;
        for (; *p >= '0' && *p <= '9'; p++) {
            value = value * 10 + (uint64_t)(*p - '0');
            if (value > HTH_AVG_CELLS_MAX)
                return HTH_E_RANGE;
        }
        if (p == begin || (*begin == '0' && p - begin > 1) || (*p != 'x' && *p != '\0'))
            return HTH_E_MALFORMED;
        if (shape.dims == HTH_AVG_DIMS_MAX)
            return HTH_E_TOO_LARGE;
        shape.size[shape.dims++] = (uint32_t)value;
        if (*p == '\0')
            break;
    }
    HTH_TRY(hth_avg_shape_check(&shape));
    *out = shape;
    return HTH_OK;
}

const char *hth_avg_shape_text(const struct hth_avg_shape *shape, char out[HTH_AVG_SHAPE_TEXT_MAX])
{
    print_numbers(shape->size, shape->dims, 'x', out);
    return out;
}

const char *hth_avg_cell_text(const struct hth_avg_shape *shape, const struct hth_avg_cell *cell,
                              char out[HTH_AVG_SHAPE_TEXT_MAX])
{
    print_numbers(cell->at, shape->dims, '.', out);
    return out;
}

/* ---- shapes -------------------------------------------------------------------------------- */

enum hth_err hth_avg_shape_check(const struct hth_avg_shape *shape)
{
    uint64_t cells = 1;
    if (shape->dims > HTH_AVG_DIMS_MAX)
        return HTH_E_TOO_LARGE;
    if (shape->dims == 0)
        return HTH_E_RANGE;
    for (uint32_t i = 0; i < HTH_AVG_DIMS_MAX; i++) {
        if ((shape->size[i] == 0) != (i >= shape->dims))
            return HTH_E_RANGE;
        cells *= HTH_MAX(shape->size[i], 1);
        if (cells > HTH_AVG_CELLS_MAX)
            return HTH_E_RANGE;
    }
    return HTH_OK;
}

bool hth_avg_shape_eq(const struct hth_avg_shape *a, const struct hth_avg_shape *b)
{
    return a->dims == b->dims && memcmp(a->size, b->size, a->dims * sizeof(a->size[0])) == 0;
}

uint32_t hth_avg_cells(const struct hth_avg_shape *shape)
{
    uint32_t cells = 1;
    for (uint32_t i = 0; i < shape->dims; i++)
        cells *= shape->size[i];
    return cells;
}

double hth_avg_fill(const struct hth_avg_shape *shape, uint32_t population)
{
    return (double)population / hth_avg_cells(shape);
}

/* min(base^exponent, cap + 1) for a cap that fits 32 bits. */
static uint64_t power(uint64_t base, uint32_t exponent, uint64_t cap)
{
    uint64_t product = 1;
    for (uint32_t i = 0; i < exponent && product <= cap; i++)
        product *= base;
    return HTH_MIN(product, cap + 1);
}

/* `high` axes of k + 1 cells before dims - high of k; axes of one cell are no axes. */
static struct hth_avg_shape mixed(uint32_t dims, uint32_t k, uint32_t high)
{
    struct hth_avg_shape shape = {0};
    for (uint32_t i = 0; i < dims; i++) {
        uint32_t size = i < high ? k + 1 : k;
        if (size > 1)
            shape.size[shape.dims++] = size;
    }
    if (shape.dims == 0)
        shape.size[shape.dims++] = 1;
    return shape;
}

struct hth_avg_shape hth_avg_shape_for(uint32_t population, uint32_t group_max)
{
    uint64_t n = HTH_MIN(HTH_MAX(population, 1), HTH_AVG_CELLS_MAX);
    uint32_t dims = 1, k, high = 0;
    group_max = HTH_MAX(group_max, 2);
    while (dims < HTH_AVG_DIMS_MAX && power(group_max, dims, n) < n)
        dims++;
    /* k^dims <= n < (k + 1)^dims */
    for (k = dims == 1 ? (uint32_t)n : 1; power(k + 1, dims, n) <= n;)
        k++;
    /* The products k^(dims - high) (k + 1)^high grow with high; take the first that holds all. */
    while (high < dims && power(k, dims - high, n) * power(k + 1, high, n) < n)
        high++;
    struct hth_avg_shape shape = mixed(dims, k, high);
    if (hth_avg_cells(&shape) > HTH_AVG_CELLS_MAX ||
        (high > 0 && hth_avg_fill(&shape, (uint32_t)n) < HTH_AVG_FILL_MIN))
        shape = mixed(dims, k, high - 1);
    return shape;
}

bool hth_avg_shape_suits(const struct hth_avg_shape *shape, uint32_t population, uint32_t group_max)
{
    struct hth_avg_shape own = hth_avg_shape_for(population, group_max);
    double fill = hth_avg_fill(shape, population);
    uint32_t longest = HTH_MAX(group_max, own.size[0]);
    if (shape->dims > own.dims + 1)
        return false;
    for (uint32_t i = 0; i < shape->dims; i++)
        if (shape->size[i] > longest)
            return false;
    return (fill >= HTH_AVG_FILL_MIN && fill <= HTH_AVG_FILL_MAX) || hth_avg_shape_eq(shape, &own);
}

/* ---- cells --------------------------------------------------------------------------------- */

struct hth_avg_cell hth_avg_cell_of_rank(const struct hth_avg_shape *shape, uint64_t rank)
{
    struct hth_avg_cell cell = {0};
    for (uint32_t i = shape->dims; i-- > 0;) {
        cell.at[i] = (uint32_t)(rank % shape->size[i]);
        rank /= shape->size[i];
    }
    return cell;
}

/* So many as there are cells without the smallest axis have the same sum of coordinates modulo its
 * size, and along an axis that is at least as long each sum comes. */
struct hth_avg_cell hth_avg_cell_across(const struct hth_avg_shape *shape, uint64_t rank)
{
    struct hth_avg_cell cell = {0};
    uint64_t each, sum = 0;
    uint32_t least = 0, size;

    for (uint32_t i = 1; i < shape->dims; i++)
        least = shape->size[i] < shape->size[least] ? i : least;
    size = shape->size[least];
    each = hth_avg_cells(shape) / size;
    sum = rank / each % size;
    for (uint32_t i = shape->dims; i-- > 0;) {
        if (i == least)
            continue;
        cell.at[i] = (uint32_t)(rank % shape->size[i]);
        rank /= shape->size[i];
        sum += size - cell.at[i] % size;
    }
    cell.at[least] = (uint32_t)(sum % size);
    return cell;
}

struct hth_avg_cell hth_avg_cell_drawn(const struct hth_avg_shape *shape,
                                       const struct hth_peer_id *id)
{
    uint64_t hash = hth_hash64(id->b, sizeof(id->b), 0);
    /* The high half times the cells, so that no cell is preferred by more than 2^-8. */
    return hth_avg_cell_of_rank(shape, ((hash >> 32) * hth_avg_cells(shape)) >> 32);
}

enum hth_err hth_avg_cell_check(const struct hth_avg_shape *shape, const struct hth_avg_cell *cell)
{
    for (uint32_t i = 0; i < HTH_AVG_DIMS_MAX; i++)
        if (cell->at[i] >= (i < shape->dims ? shape->size[i] : 1))
            return HTH_E_RANGE;
    return HTH_OK;
}

/* ---- rounds -------------------------------------------------------------------------------- */

uint32_t hth_avg_axis(const struct hth_avg_shape *shape, uint64_t round)
{
    return (uint32_t)(round % shape->dims);
}

/* ---- names --------------------------------------------------------------------------------- */

size_t hth_avg_line_key(const struct hth_avg_line *line, uint8_t out[HTH_AVG_LINE_KEY_MAX])
{
    struct hth_writer w;
    uint32_t axis = hth_avg_axis(&line->shape, line->round);
    hth_writer_init(&w, out, HTH_AVG_LINE_KEY_MAX);
    hth_write_u8(&w, (uint8_t)axis);
    hth_write_u8(&w, (uint8_t)line->shape.dims);
    for (uint32_t i = 0; i < line->shape.dims; i++)
        hth_write_u32(&w, line->shape.size[i]);
    for (uint32_t i = 0; i < line->shape.dims; i++)
        if (i != axis)
            hth_write_u32(&w, line->cell.at[i]);
    HTH_ASSERT(w.err == HTH_OK);
    return w.pos;
}

bool hth_avg_line_eq(const struct hth_avg_line *a, const struct hth_avg_line *b)
{
    uint8_t x[HTH_AVG_LINE_KEY_MAX], y[HTH_AVG_LINE_KEY_MAX];
    size_t x_len = hth_avg_line_key(a, x), y_len = hth_avg_line_key(b, y);
    return x_len == y_len && memcmp(x, y, x_len) == 0;
}

void hth_avg_mark(const struct hth_crypto *crypto, const void *salt, size_t salt_len,
                  const struct hth_peer_id *id, struct hth_hash *mark)
{
    uint8_t bytes[HTH_AVG_LINE_KEY_MAX + sizeof(id->b)];
    HTH_ASSERT(salt_len <= HTH_AVG_LINE_KEY_MAX);
    memcpy(bytes, salt, salt_len);
    memcpy(bytes + salt_len, id->b, sizeof(id->b));
    crypto->hash(bytes, salt_len + sizeof(id->b), mark);
}
