/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/match.h"

#include <math.h>
#include <stdlib.h>

#include "core/mem.h"
#include "core/wire.h"

/* ---- messages -------------------------------------------------------------------------------- */

static void line(struct hth_wire *io, struct hth_avg_line *l)
{
    hth_wire_u32(io, &l->round);
    hth_wire_count(io, &l->shape.dims, HTH_AVG_DIMS_MAX);
    for (uint32_t i = 0; i < l->shape.dims; i++) {
        hth_wire_u32(io, &l->shape.size[i]);
        hth_wire_u32(io, &l->cell.at[i]);
    }
    hth_wire_expect(io,
                    hth_avg_shape_check(&l->shape) == HTH_OK &&
                        hth_avg_cell_check(&l->shape, &l->cell) == HTH_OK,
                    HTH_E_RANGE);
}

/* A member that reduces nothing has no bandwidth; others have one that shares.h takes. */
static bool is_sound(const struct hth_avg_member *m)
{
    bool reduces = hth_avg_mode_reduces(m->mode), brings = hth_avg_mode_brings(m->mode);

    if (m->bandwidth != 0 && !(reduces && m->bandwidth >= HTH_AVG_BANDWIDTH_MIN &&
                               m->bandwidth <= HTH_AVG_BANDWIDTH_MAX))
        return false;
    return m->mode <= HTH_AVG_CLIENT && (!reduces || m->addr.family != 0) && m->weight >= 0 &&
           m->weight <= HTH_AVG_WEIGHT_MAX && (m->weight > 0) == brings;
}

static void member(struct hth_wire *io, struct hth_avg_member *m)
{
    uint8_t mode = (uint8_t)m->mode;

    hth_wire_u8(io, &mode);
    m->mode = mode;
    hth_wire_addr(io, &m->addr);
    hth_wire_f64(io, &m->bandwidth);
    hth_wire_f64(io, &m->weight);
    hth_wire_u64(io, &m->nonce);
    hth_wire_expect(io, is_sound(m), HTH_E_RANGE);
}

static void join(struct hth_wire *io, struct hth_join_msg *m)
{
    hth_wire_version(io, HTH_MATCH_VERSION);
    line(io, &m->line);
    hth_wire_u64(io, &m->schema);
    member(io, &m->self);
}

HTH_WIRE_PAIR(hth_join, struct hth_join_msg, join, HTH_JOIN_BYTES_MAX)

static void reply(struct hth_wire *io, struct hth_join_reply *m)
{
    m->reason = hth_wire_kind(io, (uint8_t)m->reason, HTH_AVG_REASONS_MAX - 1);
    hth_wire_count(io, &m->count, HTH_AVG_MEMBERS_MAX);
    hth_wire_check(io, (m->count > 0) == (m->reason == HTH_AVG_OK));
    for (uint32_t i = 0; i < m->count && io->err == HTH_OK; i++) {
        hth_wire_bytes(io, &m->member[i].id, sizeof(m->member[i].id));
        member(io, &m->member[i]);
    }
}

HTH_WIRE_PAIR(hth_join_reply, struct hth_join_reply, reply, HTH_JOIN_REPLY_BYTES_MAX)

/* ---- groups --------------------------------------------------------------------------------- */

struct marked {
    struct hth_hash mark;
    const struct hth_avg_member *member;
};

static int by_mark(const void *a, const void *b)
{
    const struct marked *x = a, *y = b;

    return memcmp(&x->mark, &y->mark, sizeof(x->mark));
}

/* A hash of schema, line, and the bytes of the list. */
static void hash_group(const struct hth_crypto *crypto, const struct hth_avg_line *line,
                       uint64_t schema, const uint8_t *data, size_t len, struct hth_hash *id)
{
    uint8_t *bytes = hth_calloc(1, 8 + HTH_AVG_LINE_KEY_MAX + len);
    size_t key_len = hth_avg_line_key(line, bytes + 8);

    hth_store_u64le(bytes, schema);
    memcpy(bytes + 8 + key_len, data, len);
    crypto->hash(bytes, 8 + key_len + len, id);
    hth_free(bytes);
}

enum hth_err hth_avg_group_new(const struct hth_crypto *crypto, const struct hth_peer_id *self,
                               const struct hth_avg_line *line, uint64_t schema,
                               const uint8_t *data, size_t len, const struct hth_join_reply *reply,
                               struct hth_avg_group **out)
{
    struct marked order[HTH_AVG_MEMBERS_MAX];
    struct hth_avg_group *g = hth_calloc(1, sizeof(*g) + reply->count * sizeof(g->member[0]));
    uint32_t helpers = 0;
    bool twice = false;

    hash_group(crypto, line, schema, data, len, &g->id);
    g->count = g->self = reply->count;
    for (uint32_t i = 0; i < g->count; i++) {
        order[i].member = &reply->member[i];
        helpers += reply->member[i].mode == HTH_AVG_HELPER;
        hth_avg_mark(crypto, &g->id, sizeof(g->id), &reply->member[i].id, &order[i].mark);
    }
    qsort(order, g->count, sizeof(*order), by_mark);
    for (uint32_t i = 0; i < g->count; i++) {
        g->member[i] = *order[i].member;
        twice |= i > 0 && hth_peer_id_eq(&g->member[i].id, &g->member[i - 1].id);
        if (hth_peer_id_eq(&g->member[i].id, self))
            g->self = i;
    }
    *out = g;
    if (!twice && 2 * helpers <= g->count)
        return HTH_OK;
    hth_free(g);
    *out = NULL;
    return twice ? HTH_E_DUPLICATE : HTH_E_RANGE;
}
