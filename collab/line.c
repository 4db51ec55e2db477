/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/line.h"

#include "averaging/shares.h"

#include <stdlib.h>
#include <string.h>

#define ROUND_US (30 * HTH_US_PER_S)
#define KBIT     1e3

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
                                   .self = HTH_ROLL_MEMBERS_MAX,
                                   .peer = go->peer,
                                   .helpers = go->helpers,
                                   .helper = go->helper};
    for (uint32_t i = 0; i < go->count; i++)
        if (hth_peer_id_eq(&go->peer[i].id, self))
            out->self = i;
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

/* ---- bandwidths --------------------------------------------------------------------------- */

static double said(const struct hth_roll_peer *p)
{
    return p->up_kbit > 0 ? KBIT * p->up_kbit : HTH_REDUCE_NOT_SAID;
}

/* ---- a line ------------------------------------------------------------------------------- */

static struct hth_reduce_member member_of(const struct hth_roll_peer *p, bool rests)
{
    return (struct hth_reduce_member){.id = p->id,
                                      .addr = p->addr,
                                      .bandwidth = rests || p->addr.family == 0 ? 0 : said(p),
                                      .weight = p->samples,
                                      .stranger = rests};
}

bool hth_line_reduces(const struct hth_roll_peer *p)
{
    return !p->rests && p->addr.family != 0;
}

uint32_t hth_line_fill(const struct hth_roll_group *group, const struct hth_cells *cells,
                       uint32_t line, struct hth_reduce_member out[HTH_LINE_MAX], uint32_t *members)
{
    const struct hth_roll_peer *peer[HTH_ROLL_LINE_MAX];
    uint32_t n = 0;
    bool any = false;
    for (uint32_t k = 0; k < cells->shape.size[0]; k++) {
        uint32_t cell = hth_cells_on_line(cells, line, 0, k);
        if (cell >= cells->count)
            continue; /* a hole */
        peer[n] = &group->peer[cells->member[cell]];
        any |= hth_line_reduces(peer[n++]);
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] = member_of(peer[i], any && peer[i]->rests);
    *members = n;
    for (uint32_t i = line; i < group->helpers; i += lines_of(cells)) {
        out[n] = member_of(&group->helper[i], false);
        out[n++].weight = 0;
    }
    hth_reduce_fill_usual(out, n);
    return n;
}

struct hth_hash hth_line_name(const struct hth_crypto *crypto, const struct hth_roll_group *group,
                              const struct hth_cells *cells, uint32_t line)
{
    uint8_t name[sizeof(group->id) + sizeof(line)];
    struct hth_hash out;
    if (cells->shape.dims == 1)
        return group->id;
    memcpy(name, &group->id, sizeof(group->id));
    hth_store_u32le(name + sizeof(group->id), line);
    crypto->hash(name, sizeof(name), &out);
    return out;
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
    s->population = group->count;
    s->last = (struct hth_avg_round_info){.number = s->offers,
                                          .members = group->count + group->helpers,
                                          .group = group->id,
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
    last->codec_error = HTH_MAX(last->codec_error, r->encode_error);
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
