/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/match_msg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "averaging/match.pb-c.h"
#include "core/mem.h"

/* ---- addresses and members ------------------------------------------------------------------ */

static size_t ip_len(const struct hth_addr *addr)
{
    return addr->family == 4 ? 4 : (addr->family == 6 ? 16 : 0);
}

/* A port without an address, or an address without a port, can't be dialled. */
static enum hth_err addr_set(const uint8_t *ip, size_t len, uint32_t port, struct hth_addr *out)
{
    memset(out, 0, sizeof(*out));
    if (len == 0)
        return port == 0 ? HTH_OK : HTH_E_MALFORMED;
    if (len != 4 && len != 16)
        return HTH_E_MALFORMED;
    if (port == 0 || port > UINT16_MAX)
        return HTH_E_RANGE;
    out->family = len == 4 ? 4 : 6;
    memcpy(out->ip, ip, len);
    out->port = (uint16_t)port;
    return HTH_OK;
}

static enum hth_err mode_check(uint32_t mode, const struct hth_addr *addr)
{
    if (mode > HTH_AVG_CLIENT)
        return HTH_E_RANGE;
    return hth_avg_mode_reduces(mode) && addr->family == 0 ? HTH_E_RANGE : HTH_OK;
}

/* The bandwidths that shares.h takes; who reduces nothing has none. */
static bool bandwidth_ok(double b, uint32_t mode)
{
    if (b == 0)
        return true;
    return hth_avg_mode_reduces(mode) && isfinite(b) && b >= HTH_AVG_BANDWIDTH_MIN &&
           b <= HTH_AVG_BANDWIDTH_MAX;
}

static void member_pack(const struct hth_avg_member *m, Hth__Match__Member *out, bool with_id)
{
    hth__match__member__init(out);
    if (with_id) {
        out->id.data = (uint8_t *)(uintptr_t)m->id.b;
        out->id.len = sizeof(m->id.b);
    }
    out->ip.data = (uint8_t *)(uintptr_t)m->addr.ip;
    out->ip.len = ip_len(&m->addr);
    out->port = out->ip.len > 0 ? m->addr.port : 0;
    out->mode = (uint32_t)m->mode;
    out->bandwidth = m->bandwidth;
    out->weight = m->weight;
    out->nonce = m->nonce;
}

static enum hth_err member_open(const Hth__Match__Member *m, struct hth_avg_member *out)
{
    memset(out, 0, sizeof(*out));
    HTH_TRY(addr_set(m->ip.data, m->ip.len, m->port, &out->addr));
    HTH_TRY(mode_check(m->mode, &out->addr));
    if (!bandwidth_ok(m->bandwidth, m->mode) || !(m->weight >= 0) ||
        m->weight > HTH_AVG_WEIGHT_MAX || (m->weight > 0) != hth_avg_mode_brings(m->mode))
        return HTH_E_RANGE;
    out->mode = (enum hth_avg_mode)m->mode;
    out->bandwidth = m->bandwidth;
    out->weight = m->weight;
    out->nonce = m->nonce;
    return HTH_OK;
}

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
        order[i].member = &reply->members[i];
        helpers += reply->members[i].mode == HTH_AVG_HELPER;
        hth_avg_mark(crypto, &g->id, sizeof(g->id), &reply->members[i].id, &order[i].mark);
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

/* ---- JOIN ----------------------------------------------------------------------------------- */

static void line_pack(struct hth_avg_line *l, Hth__Match__Line *out)
{
    hth__match__line__init(out);
    out->run = l->run;
    out->round = l->round;
    out->size = l->shape.size;
    out->n_size = l->shape.dims;
    out->at = l->cell.at;
    out->n_at = l->shape.dims;
}

size_t hth_join_msg_pack(const struct hth_join_msg *join, uint8_t out[HTH_JOIN_BYTES_MAX])
{
    Hth__Match__Join m = HTH__MATCH__JOIN__INIT;
    Hth__Match__Line line;
    Hth__Match__Member self;
    struct hth_avg_line l = join->line;

    line_pack(&l, &line);
    member_pack(&join->self, &self, false);
    m.line = &line;
    m.schema = join->schema;
    m.self = &self;
    m.left_ms = join->left_ms;
    m.version = join->version;
    HTH_ASSERT(hth__match__join__get_packed_size(&m) <= HTH_JOIN_BYTES_MAX);
    return hth__match__join__pack(&m, out);
}

static enum hth_err line_open(const Hth__Match__Line *m, struct hth_avg_line *out)
{
    memset(out, 0, sizeof(*out));
    if (m->n_size > HTH_AVG_DIMS_MAX)
        return HTH_E_TOO_LARGE;
    if (m->n_at != m->n_size)
        return HTH_E_MALFORMED;
    out->run = m->run;
    out->round = m->round;
    out->shape.dims = (uint32_t)m->n_size;
    for (size_t i = 0; i < m->n_size; i++) {
        out->shape.size[i] = m->size[i];
        out->cell.at[i] = m->at[i];
    }
    HTH_TRY(hth_avg_shape_check(&out->shape));
    return hth_avg_cell_check(&out->shape, &out->cell);
}

static enum hth_err join_fill(const Hth__Match__Join *m, struct hth_join_msg *out)
{
    if (m->line == NULL || m->self == NULL || m->self->id.len != 0)
        return HTH_E_MALFORMED;
    HTH_TRY(line_open(m->line, &out->line));
    HTH_TRY(member_open(m->self, &out->self));
    if (m->left_ms > HTH_AVG_WINDOW_MAX_US / HTH_US_PER_MS)
        return HTH_E_RANGE;
    out->schema = m->schema;
    out->left_ms = m->left_ms;
    out->version = m->version;
    return HTH_OK;
}

enum hth_err hth_join_msg_open(const uint8_t *data, size_t len, struct hth_join_msg *out)
{
    Hth__Match__Join *m;
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    if (len > HTH_JOIN_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    m = hth__match__join__unpack(NULL, len, data);
    if (m == NULL)
        return HTH_E_MALFORMED;
    err = join_fill(m, out);
    hth__match__join__free_unpacked(m, NULL);
    return err;
}

/* ---- its answer ------------------------------------------------------------------------------ */

uint8_t *hth_join_reply_pack(const struct hth_join_reply *reply, size_t *len)
{
    Hth__Match__JoinReply m = HTH__MATCH__JOIN_REPLY__INIT;
    Hth__Match__Member *member = hth_new_array(Hth__Match__Member, reply->count + 1);
    Hth__Match__Member **list = hth_new_array(Hth__Match__Member *, reply->count + 1);
    uint8_t *bytes;

    for (uint32_t i = 0; i < reply->count; i++) {
        member_pack(&reply->members[i], &member[i], true);
        list[i] = &member[i];
    }
    m.reason = (uint32_t)reply->reason;
    m.members = list;
    m.n_members = reply->count;
    m.match_us = (uint64_t)HTH_MAX(reply->match_us, (int64_t)0);
    *len = hth__match__join_reply__get_packed_size(&m);
    HTH_ASSERT(*len <= HTH_FRAME_META_BYTES_MAX / 2);
    bytes = hth_calloc(1, *len + 1);
    hth__match__join_reply__pack(&m, bytes);
    hth_free(list);
    hth_free(member);
    return bytes;
}

static enum hth_err reply_fill(const Hth__Match__JoinReply *m, struct hth_join_reply *out)
{
    if (m->n_members > HTH_AVG_MEMBERS_MAX)
        return HTH_E_TOO_LARGE;
    if (m->reason >= HTH_AVG_REASONS_MAX || m->match_us > HTH_AVG_WINDOW_MAX_US)
        return HTH_E_RANGE;
    if ((m->reason == HTH_AVG_OK) != (m->n_members > 0))
        return HTH_E_MALFORMED;
    out->reason = (enum hth_avg_reason)m->reason;
    out->match_us = (int64_t)m->match_us;
    out->members = hth_new_array(struct hth_avg_member, m->n_members + 1);
    for (size_t i = 0; i < m->n_members; i++) {
        struct hth_avg_member *member = &out->members[i];

        if (m->members[i]->id.len != sizeof(member->id.b))
            return HTH_E_MALFORMED;
        HTH_TRY(member_open(m->members[i], member));
        memcpy(member->id.b, m->members[i]->id.data, sizeof(member->id.b));
        out->count++;
    }
    return HTH_OK;
}

enum hth_err hth_join_reply_open(const uint8_t *data, size_t len, struct hth_join_reply *out)
{
    Hth__Match__JoinReply *m = hth__match__join_reply__unpack(NULL, len, data);
    enum hth_err err;

    memset(out, 0, sizeof(*out));
    if (m == NULL)
        return HTH_E_MALFORMED;
    err = reply_fill(m, out);
    hth__match__join_reply__free_unpacked(m, NULL);
    return err;
}
