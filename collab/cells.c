/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/cells.h"

#include "averaging/shares.h"

#include <stdlib.h>
#include <string.h>

#define ROUND_US (30 * HTH_US_PER_S)

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
        narrow &=
            s->size[i] + HTH_MIN(s->size[i], (twins + layers - 1) / layers) <= HTH_ROLL_LINE_MAX;
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

/* ---- the round of a GO -------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    return hth_peer_id_cmp(&((const struct hth_roll_peer *)a)->id,
                           &((const struct hth_roll_peer *)b)->id);
}

void hth_line_group(const struct hth_crypto *crypto, const struct hth_peer_id *self,
                    struct hth_ready_reply *go, struct hth_roll_group *out)
{
    uint8_t name[sizeof(go->head) + sizeof(go->n) + sizeof(go->protocol)];
    bool first = go->protocol < 2; /* whose rounds are named without it */
    qsort(go->peer, go->count, sizeof(go->peer[0]), by_id);
    *out = (struct hth_roll_group){.head = go->head,
                                   .count = go->count,
                                   .self = go->count + go->helpers,
                                   .peer = go->peer,
                                   .helpers = go->helpers,
                                   .helper = go->helper};
    for (uint32_t i = 0; i < go->count; i++)
        if (hth_peer_id_eq(&go->peer[i].id, self))
            out->self = i;
    for (uint32_t i = 0; i < go->helpers; i++)
        if (hth_peer_id_eq(&go->helper[i].id, self))
            out->self = go->count + i;
    memcpy(name, &go->head, sizeof(go->head));
    hth_store_u32le(name + sizeof(go->head), go->n);
    hth_store_u32le(name + sizeof(go->head) + sizeof(go->n), go->protocol);
    crypto->hash(name, sizeof(name) - (first ? sizeof(go->protocol) : 0), &out->id);
}

static uint32_t lines_of(const struct hth_cells *cells)
{
    return cells->cells / cells->shape.size[0];
}

uint32_t hth_line_of_helper(const struct hth_cells *cells, uint32_t helper)
{
    return helper % lines_of(cells);
}

/* ---- a line ------------------------------------------------------------------------------- */

static struct hth_reduce_member member_of(const struct hth_roll_peer *p, double weight, bool rests)
{
    double said = p->up_kbit > 0 ? 1e3 * p->up_kbit : HTH_REDUCE_NOT_SAID;
    return (struct hth_reduce_member){.id = p->id,
                                      .addr = p->addr,
                                      .bandwidth = rests || p->addr.family == 0 ? 0 : said,
                                      .weight = weight,
                                      .stranger = rests};
}

uint64_t hth_line_samples(const struct hth_roll_group *group, const struct hth_cells *cells,
                          uint32_t cell, uint32_t axis, const uint16_t *marks)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < group->count; i++)
        if (marks[i] != 0 && hth_cells_covers(cells, cell, axis, i))
            sum += group->peer[i].samples;
    return sum;
}

/* Along the first axis its samples, along a later one what its cell brings of all that comes. */
static void weigh(const struct hth_roll_group *group, const struct hth_cells *cells, uint32_t axis,
                  const uint16_t *marks, const uint16_t *member, uint32_t n, double *weight)
{
    double all = 0;
    for (uint32_t i = 0; i < n; i++) {
        weight[i] =
            axis == 0 ? group->peer[member[i]].samples
                      : (double)hth_line_samples(group, cells, cells->cell[member[i]], axis, marks);
        all += hth_cells_is_twin(cells, member[i]) ? 0 : weight[i];
    }
    for (uint32_t i = 0; i < n && axis > 0 && all > 0; i++)
        weight[i] /= all;
}

void hth_line_fill(const struct hth_roll_group *group, const struct hth_cells *cells, uint32_t cell,
                   uint32_t axis, const uint16_t *marks, struct hth_line *out)
{
    uint16_t member[HTH_ROLL_LINE_MAX];
    double weight[HTH_ROLL_LINE_MAX];
    uint32_t n = hth_cells_line(cells, cell, axis, member);
    bool any = false;
    *out = (struct hth_line){.self = HTH_LINE_MAX};
    weigh(group, cells, axis, marks, member, n, weight);
    for (uint32_t i = 0; i < n; i++) {
        const struct hth_roll_peer *p = &group->peer[member[i]];
        bool hears = axis > 0 && (weight[i] == 0 || hth_cells_is_twin(cells, member[i]));
        any |= !p->rests && p->addr.family != 0 && !hears;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct hth_roll_peer *p = &group->peer[member[i]];
        struct hth_reduce_member *m = &out->member[out->count];
        if (axis > 0 && weight[i] == 0)
            continue;
        if (member[i] == group->self)
            out->self = out->count;
        out->of[out->count++] = member[i];
        *m = member_of(p, weight[i], any && p->rests);
        if (axis > 0 && hth_cells_is_twin(cells, member[i]))
            m->weight = m->bandwidth = 0;
    }
    out->members = out->count;
    for (uint32_t i = 0; axis == 0 && i < group->helpers; i++) {
        if (hth_line_of_helper(cells, i) != cell % lines_of(cells))
            continue;
        if (group->count + i == group->self)
            out->self = out->count;
        out->member[out->count++] = member_of(&group->helper[i], 0, false);
    }
    hth_reduce_fill_usual(out->member, out->count);
}

struct hth_reduce_opts hth_line_opts(uint64_t count, const struct hth_avg_span *spans,
                                     uint32_t span_count)
{
    return (struct hth_reduce_opts){
        .count = count,
        .spans = spans,
        .span_count = span_count,
        .same = true,
        .share_max = HTH_AVG_SHARE_MAX,
        .timeout_us =
            HTH_MIN(HTH_MAX(ROUND_US, hth_reduce_thin_us(count)), HTH_AVG_REDUCE_TIMEOUT_MAX_US)};
}

/* ---- for people --------------------------------------------------------------------------- */

void hth_line_begins(struct hth_averager_stats *s, const struct hth_roll_group *group)
{
    s->offers++;
    s->under_way++;
    s->last = (struct hth_avg_round_info){.number = s->offers,
                                          .members = group->count + group->helpers,
                                          .group = group->id,
                                          .reduce_us = s->last.reduce_us, /* until it ends */
                                          .weight_fraction = 1};
    for (uint32_t i = 0; i < HTH_MIN(s->last.members, (uint32_t)HTH_AVG_STATUS_MEMBERS); i++)
        s->last.member[i] =
            (i < group->count ? &group->peer[i] : &group->helper[i - group->count])->id;
}

void hth_line_counts(struct hth_averager_stats *s, const struct hth_reduce_result *r)
{
    struct hth_avg_round_info *last = &s->last;
    s->bytes_out += r->bytes_out;
    s->bytes_in += r->bytes_in;
    s->drops += r->dropped;
    last->bytes_out += r->bytes_out;
    last->bytes_in += r->bytes_in;
    last->drops += r->dropped;
    last->weight_fraction = HTH_MIN(last->weight_fraction, r->weight_fraction);
}

void hth_line_ends(struct hth_averager_stats *s, enum hth_err err, int64_t took_us)
{
    s->under_way--;
    s->rounds += err == HTH_OK;
    s->failed += err != HTH_OK;
    s->last.err = err;
    s->last.reason = err == HTH_OK ? HTH_AVG_OK : HTH_AVG_NO_PARTS;
    s->last.reduce_us = took_us;
    s->reasons[s->last.reason]++;
}
