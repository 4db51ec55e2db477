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

uint32_t hth_cells_at(const struct hth_cells *c, uint32_t cell, uint32_t axis)
{
    return cell / stride(c, axis) % c->shape.size[axis];
}

uint32_t hth_cells_on_line(const struct hth_cells *c, uint32_t cell, uint32_t axis, uint32_t k)
{
    return cell + k * stride(c, axis) - hth_cells_at(c, cell, axis) * stride(c, axis);
}

bool hth_cells_line_counts(const struct hth_cells *c, uint32_t cell, uint32_t axis)
{
    return hth_cells_on_line(c, cell, axis, 0) < c->count; /* holes have the last ranks */
}

uint32_t hth_cells_hole_of(const struct hth_cells *c, uint32_t member)
{
    for (uint32_t i = c->count; i < c->cells; i++)
        if (c->member[i] == member)
            return i;
    return HTH_CELL_NONE;
}

bool hth_cells_covers(const struct hth_cells *c, uint32_t cell, uint32_t axis, uint32_t member)
{
    for (uint32_t i = axis; i < c->shape.dims; i++)
        if (hth_cells_at(c, cell, i) != hth_cells_at(c, c->cell[member], i))
            return false;
    return true;
}

/* ---- the shape ---------------------------------------------------------------------------- */

static void drop_axis(struct hth_avg_shape *s, uint32_t axis)
{
    s->dims--;
    memmove(&s->size[axis], &s->size[axis + 1], (s->dims - axis) * sizeof(s->size[0]));
    s->size[s->dims] = 0;
}

/* As many layers along the first axis as the members fill. */
static struct hth_avg_shape fit(struct hth_avg_shape s, uint32_t count)
{
    for (uint32_t i = s.dims; i-- > 1;)
        if (s.size[i] == 1)
            drop_axis(&s, i);
    while (s.dims > 1 && hth_avg_cells(&s) / s.size[0] >= count)
        drop_axis(&s, 0);
    uint32_t layer = hth_avg_cells(&s) / s.size[0];
    s.size[0] = (count + layer - 1) / layer;
    return s;
}

static struct hth_avg_shape shape_for(const struct hth_avg_shape *asked, uint32_t count)
{
    struct hth_avg_shape usual = fit(hth_avg_shape_for(count, HTH_ROLL_LINE_MAX), count);
    if (asked->dims == 0)
        return usual;
    struct hth_avg_shape s = fit(*asked, count);
    for (uint32_t i = 0; i < s.dims; i++)
        if (s.size[i] > HTH_ROLL_LINE_MAX)
            return usual;
    return s;
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

/* The first that can be dialled, as lines of holes need one, too. */
static uint16_t proxy_of(const struct hth_cells *c, const struct hth_roll_peer *peer, uint32_t hole)
{
    for (uint32_t k = 0; k + 1 < c->shape.size[0]; k++) {
        uint16_t member = c->member[hth_cells_on_line(c, hole, 0, k)];
        if (peer[member].addr.family != 0)
            return member;
    }
    return c->member[hth_cells_on_line(c, hole, 0, 0)];
}

void hth_cells_place(const struct hth_crypto *crypto, const struct hth_hash *head,
                     const struct hth_roll_peer *peer, uint32_t count,
                     const struct hth_avg_shape *asked, struct hth_cells *out)
{
    struct place order[HTH_ROLL_MEMBERS_MAX];
    uint32_t next = 0;
    HTH_ASSERT(count > 0 && count <= HTH_ROLL_MEMBERS_MAX);
    *out = (struct hth_cells){.shape = shape_for(asked, count), .count = count};
    out->cells = hth_avg_cells(&out->shape);
    for (uint32_t i = 0; i < count; i++) {
        order[i] = (struct place){.client = peer[i].addr.family == 0, .member = (uint16_t)i};
        hth_avg_mark(crypto, head, sizeof(*head), &peer[i].id, &order[i].mark);
    }
    qsort(order, count, sizeof(order[0]), by_place);
    for (uint32_t i = 0; i < out->cells; i++) {
        struct hth_avg_cell at = hth_avg_cell_across(&out->shape, i);
        uint32_t rank = 0;
        for (uint32_t k = 0; k < out->shape.dims; k++)
            rank += at.at[k] * stride(out, k);
        if (rank >= count)
            continue;
        out->cell[order[next].member] = rank;
        out->member[rank] = order[next++].member;
    }
    for (uint32_t i = count; i < out->cells; i++)
        out->member[i] = proxy_of(out, peer, i);
}
