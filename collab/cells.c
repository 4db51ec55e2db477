/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/cells.h"

#include <stdlib.h>
#include <string.h>

/* Cells from one coordinate to the next. */
static uint32_t stride(const struct hth_cells *c, uint32_t axis)
{
    uint32_t cells = 1;
    for (uint32_t i = axis + 1; i < c->shape.dims; i++)
        cells *= c->shape.size[i];
    return cells;
}

static uint32_t coordinate(const struct hth_cells *c, uint32_t cell, uint32_t axis)
{
    return cell / stride(c, axis) % c->shape.size[axis];
}

uint32_t hth_cells_line(const struct hth_cells *c, uint32_t cell, uint32_t axis, uint16_t *out)
{
    uint32_t step = stride(c, axis), first = cell - coordinate(c, cell, axis) * step, n = 0;
    while (n < c->shape.size[axis]) {
        out[n] = c->member[first + n * step];
        n++;
    }
    for (uint32_t i = c->cells; i < c->count; i++) {
        uint32_t its = c->cell[c->member[i]];
        if (its - coordinate(c, its, axis) * step == first)
            out[n++] = c->member[i];
    }
    return n;
}

bool hth_cells_covers(const struct hth_cells *c, uint32_t cell, uint32_t axis, uint32_t member)
{
    uint32_t same = stride(c, axis) * c->shape.size[axis];
    return cell % same == c->cell[member] % same;
}

/* ---- the shape ---------------------------------------------------------------------------- */

static void drop_axis(struct hth_avg_shape *s, uint32_t axis)
{
    s->dims--;
    memmove(&s->size[axis], &s->size[axis + 1], (s->dims - axis) * sizeof(s->size[0]));
    s->size[s->dims] = 0;
}

/* As many layers along the first axis as the members fill. One layer is no grid. */
static struct hth_avg_shape fit(struct hth_avg_shape s, uint32_t count)
{
    for (uint32_t i = s.dims; i-- > 1;)
        if (s.size[i] == 1)
            drop_axis(&s, i);
    while (s.dims > 1 && hth_avg_cells(&s) / s.size[0] * 2 > count)
        drop_axis(&s, 0);
    s.size[0] = count / (hth_avg_cells(&s) / s.size[0]);
    return s;
}

/* With its twins each line of the shape has few enough members. */
static bool is_narrow(const struct hth_avg_shape *s, uint32_t count)
{
    uint32_t twins = count - hth_avg_cells(s), layers = s->size[0];
    bool narrow = layers + (twins > 0) <= HTH_ROLL_LINE_MAX;
    for (uint32_t i = 1; i < s->dims; i++)
        narrow &= s->size[i] + HTH_MIN(s->size[i], (twins + layers - 1) / layers) <=
                  HTH_ROLL_LINE_MAX;
    return narrow;
}

static struct hth_avg_shape shape_for(const struct hth_avg_shape *asked, uint32_t count)
{
    if (asked->dims > 0) {
        struct hth_avg_shape s = fit(*asked, count);
        if (is_narrow(&s, count))
            return s;
    }
    return fit(hth_avg_shape_for(count, HTH_ROLL_LINE_MAX), count);
}

/* ---- cells -------------------------------------------------------------------------------- */

struct place {
    bool client;
    uint16_t member;
    struct hth_hash mark;
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->client != y->client)
        return x->client - y->client;
    int order = memcmp(&x->mark, &y->mark, sizeof(x->mark));
    return order != 0 ? order : x->member - y->member;
}

static uint32_t across(const struct hth_cells *c, uint32_t i)
{
    struct hth_avg_cell at = hth_avg_cell_across(&c->shape, i);
    uint32_t rank = 0;
    for (uint32_t k = 0; k < c->shape.dims; k++)
        rank += at.at[k] * stride(c, k);
    return rank;
}

/* Each in another line of the first axis, spread over its layers. */
static uint32_t twin_cell(const struct hth_cells *c, uint32_t twin)
{
    return twin % c->shape.size[0] * stride(c, 0) + twin;
}

void hth_cells_place(const struct hth_crypto *crypto, const struct hth_hash *head,
                     const struct hth_roll_peer *peer, uint32_t count,
                     const struct hth_avg_shape *asked, struct hth_cells *out)
{
    struct place order[HTH_ROLL_MEMBERS_MAX];
    HTH_ASSERT(count > 0 && count <= HTH_ROLL_MEMBERS_MAX);
    *out = (struct hth_cells){.shape = shape_for(asked, count), .count = count};
    out->cells = hth_avg_cells(&out->shape);
    for (uint32_t i = 0; i < count; i++) {
        order[i] = (struct place){.client = peer[i].addr.family == 0, .member = (uint16_t)i};
        hth_avg_mark(crypto, head, sizeof(*head), &peer[i].id, &order[i].mark);
    }
    qsort(order, count, sizeof(order[0]), by_place);
    for (uint32_t i = 0; i < count; i++)
        out->member[i < out->cells ? across(out, i) : i] = order[i].member;
    for (uint32_t i = 0; i < count; i++)
        out->cell[out->member[i]] = i < out->cells ? i : twin_cell(out, i - out->cells);
}
