/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_cut.c: the vector cut into shares and parts: the same at every member, from its list. */
#include <math.h>
#include <string.h>

#include "averaging/reduce_int.h"
#include "averaging/shares.h"

/* By what line the group keeps pace, bit/s; infinite when that is a fast one, or somebody's is not
 * known, or nobody's. The few slowest are left out, as many as may be given up for being slow: else
 * one claim would slow all the others down. */
static double slowest_line(const struct hth_reduce_round *r)
{
    double line[HTH_AVG_MEMBERS_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->is.member_count; i++)
        if (r->members[i].is.bandwidth > 0)
            line[n++] = r->members[i].is.bandwidth;
    if (n == 0 || hth_reduce_rank(line, n, 0) <= HTH_REDUCE_NOT_SAID)
        return INFINITY;
    double slowest = line[HTH_MIN(HTH_MAX(n / 4, 1u), (n - 1) / 2)];
    return slowest < LINE_BITS_FAST ? slowest : INFINITY;
}

/* No answer can begin before the first part has come over the slowest line to every reducer, and
 * at the other end that line waits as long: on slow lines parts are cut by time. */
static uint64_t aim_of_part(uint64_t share, double slowest)
{
    uint64_t aim = HTH_MAX(share / PARTS_PER_SHARE, (uint64_t)4 * HTH_AVG_BLOCK_FLOATS);
    if (!isinf(slowest)) {
        uint64_t small = (uint64_t)(slowest / 8 / sizeof(float) * SLOW_PART_S);
        aim = HTH_MIN(aim, HTH_MAX(small, (uint64_t)HTH_AVG_BLOCK_FLOATS));
    }
    return HTH_MIN(aim, (uint64_t)HTH_AVG_PART_FLOATS_MAX);
}

/* Floats of which shares and parts are whole multiples. */
static uint32_t unit_of(const struct hth_reduce_round *r)
{
    return r->is.fixed ? HTH_AVG_BLOCK_FLOATS : UNIT_FLOATS;
}

/* Bounds the claims. For a vector so small that slow members would leave their shares to the others
 * no claim counts: else it would be the prize of whoever claims most. */
static enum hth_err bound_claims(const struct hth_reduce_round *r, double *bandwidth, uint32_t n,
                                 uint64_t total)
{
    uint64_t reducers = 0;
    for (uint32_t i = 0; i < n; i++)
        reducers += bandwidth[i] > 0;
    if (r->is.share_max == 0 || total * unit_of(r) >= 2 * HTH_AVG_BLOCK_FLOATS * reducers)
        return r->is.share_max > 0 ? hth_avg_bound_claims(bandwidth, n, r->is.share_max) : HTH_OK;
    for (uint32_t i = 0; i < n; i++)
        bandwidth[i] = bandwidth[i] > 0 ? LINE_BITS_FAST : 0;
    return HTH_OK;
}

/* Whole units of each member's share: one below a block goes to the others, as a request would cost
 * more. *level: how long the fastest takes for a vector, in s/bit, as all that reduce do; infinite:
 * nobody said how fast it is. */
static enum hth_err share_out(const struct hth_reduce_round *r, uint64_t total, uint64_t *units,
                              double *level)
{
    double bandwidth[HTH_AVG_MEMBERS_MAX], weights[HTH_AVG_MEMBERS_MAX];
    uint32_t n = r->is.member_count, fastest = 0;
    for (uint32_t i = 0; i < n; i++)
        bandwidth[i] = r->members[i].is.bandwidth;
    HTH_TRY(bound_claims(r, bandwidth, n, total));
    HTH_TRY(hth_avg_shares(bandwidth, n, weights));
    HTH_TRY(hth_avg_split(weights, n, total, HTH_AVG_BLOCK_FLOATS / unit_of(r), units));
    for (uint32_t i = 0; i < n; i++)
        if (bandwidth[i] > bandwidth[fastest])
            fastest = i;
    *level = (1 + ((double)n - 2) * weights[fastest]) / bandwidth[fastest];
    return HTH_OK;
}

/* Shares by bandwidth in whole units; parts so that a share has several. The same everywhere. */
static enum hth_err cut(struct hth_reduce_round *r)
{
    double level;
    uint64_t units[HTH_AVG_MEMBERS_MAX], unit = unit_of(r);
    uint64_t first = 0, reducers = 0, total = (r->is.count + unit - 1) / unit;
    HTH_TRY(share_out(r, total, units, &level));
    double slowest = slowest_line(r);
    r->pace = isinf(slowest) ? INFINITY : HTH_MIN(1 / level, slowest) / (8 * sizeof(float));
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        struct reduce_member_state *m = &r->members[i];
        m->first = first;
        m->floats = HTH_MIN(units[i] * unit, r->is.count - first);
        m->first_part = r->part_count;
        first += m->floats;
        if (m->floats == 0)
            continue;
        uint64_t aim = aim_of_part(m->floats, slowest);
        m->part_count = (uint32_t)((m->floats + aim - 1) / aim);
        r->part_count += m->part_count;
        reducers++;
    }
    r->start_floats = START_PARTS * (double)(reducers * r->is.count) / r->part_count;
    return HTH_OK;
}

/* Part `k` of a share: near-equal runs of units. */
static void part_at(const struct reduce_member_state *m, uint32_t k, uint64_t *first,
                    uint32_t *count)
{
    uint64_t unit = unit_of(m->round), units = (m->floats + unit - 1) / unit;
    uint64_t begin = units * k / m->part_count * unit;
    uint64_t end = HTH_MIN(units * (k + 1) / m->part_count * unit, m->floats);
    *first = m->first + begin;
    *count = (uint32_t)(end - begin);
}

static void lay_out(struct hth_reduce_round *r)
{
    const struct reduce_member_state *self = reduce_self(r);
    r->parts = hth_new_array(struct reduce_part, r->part_count);
    for (uint32_t i = 0; i < r->is.member_count; i++) {
        const struct reduce_member_state *m = &r->members[i];
        for (uint32_t k = 0; k < m->part_count; k++) {
            struct reduce_part *p = &r->parts[m->first_part + k];
            *p = (struct reduce_part){.round = r, .to = i, .waiting = m != self};
            part_at(m, k, &p->first, &p->count);
            if (m != self)
                continue;
            p->from = hth_new_array(struct reduce_contribution, r->is.member_count);
            for (uint32_t from = 0; from < r->is.member_count; from++)
                p->from[from] = (struct reduce_contribution){.part = p};
            p->from[i].state = m->is.weight > 0 ? GIVE_HERE : GIVE_NONE;
        }
    }
    r->owns_left = self->part_count;
    r->sends_left = r->is.values != NULL ? r->part_count - self->part_count : 0;
}

uint32_t round_segments(const struct reduce_part *part,
                        struct hth_segment segments[HTH_AVG_SEGMENTS_MAX])
{
    const struct hth_reduce_opts *o = &part->round->is;
    uint32_t n;
    if (hth_codec_cut(o->spans, o->span_count, part->first, part->count, segments, &n) == HTH_OK)
        return n;
    segments[0] = (struct hth_segment){HTH_QUANT_F32, part->count};
    return 1;
}

enum hth_err round_cut(struct hth_reduce_round *r)
{
    HTH_TRY(cut(r));
    lay_out(r);
    return HTH_OK;
}
