/* SPDX-License-Identifier: Apache-2.0 */
/* match.c: the node's side of matchmaking: messages that arrive, and groups out of lists. */
#include <stdlib.h>
#include <string.h>

#include "averaging/match_int.h"
#include "core/mem.h"

#define GROUP_MAGIC  UINT64_C(0x3270756f72676874) /* "thgroup2" */
#define MEMBER_BYTES 76                           /* of what is hashed of each */

/* ---- groups --------------------------------------------------------------------------------- */

static uint64_t bits(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static int by_id(const void *a, const void *b)
{
    const struct hth_avg_member *x = a, *y = b;

    return hth_peer_id_cmp(&x->id, &y->id);
}

/* A hash of line, schema, and all that is said of the members, by id. */
static void hash_group(const struct hth_look *look, const struct hth_avg_member *members,
                       uint32_t count, struct hth_hash *id)
{
    uint8_t key[HTH_AVG_LINE_KEY_MAX];
    size_t key_len = hth_avg_line_key(&look->opts.line, key);
    size_t max = 20 + key_len + count * MEMBER_BYTES;
    uint8_t *bytes = hth_calloc(1, max);
    struct hth_writer w;

    hth_writer_init(&w, bytes, max);
    hth_write_u64(&w, GROUP_MAGIC);
    hth_write_u64(&w, look->opts.schema);
    hth_write_u32(&w, count);
    hth_write_bytes(&w, key, key_len);
    for (uint32_t i = 0; i < count; i++) {
        const struct hth_avg_member *m = &members[i];
        uint8_t ip[16] = {0};

        hth_write_bytes(&w, m->id.b, sizeof(m->id.b));
        hth_write_u8(&w, (uint8_t)m->mode);
        hth_write_u8(&w, m->addr.family);
        hth_write_u16(&w, m->addr.port);
        memcpy(ip, m->addr.ip, m->addr.family == 4 ? 4 : (m->addr.family == 6 ? 16 : 0));
        hth_write_bytes(&w, ip, sizeof(ip));
        hth_write_u64(&w, bits(m->bandwidth));
        hth_write_u64(&w, bits(m->weight));
        hth_write_u64(&w, m->nonce);
    }
    HTH_ASSERT(w.err == HTH_OK && w.pos == max);
    look->match->env->crypto->hash(bytes, max, id);
    hth_free(bytes);
}

struct marked {
    struct hth_hash mark;
    const struct hth_avg_member *member;
};

static int by_mark(const void *a, const void *b)
{
    const struct marked *x = a, *y = b;
    int order = memcmp(&x->mark, &y->mark, sizeof(x->mark));

    return order != 0 ? order : by_id(x->member, y->member);
}

enum hth_err hth_match_group(const struct hth_look *look, const struct hth_avg_member *members,
                             uint32_t count, struct hth_avg_group **out)
{
    const struct hth_env *env = look->match->env;
    struct hth_avg_member sorted[HTH_AVG_MEMBERS_MAX];
    struct marked order[HTH_AVG_MEMBERS_MAX];
    uint32_t helpers = 0;
    struct hth_avg_group *g;

    *out = NULL;
    if (count == 0 || count > HTH_AVG_MEMBERS_MAX)
        return HTH_E_RANGE;
    memcpy(sorted, members, count * sizeof(*members));
    qsort(sorted, count, sizeof(*sorted), by_id);
    for (uint32_t i = 0; i < count; i++) {
        helpers += sorted[i].mode == HTH_AVG_HELPER;
        if (i > 0 && hth_peer_id_eq(&sorted[i].id, &sorted[i - 1].id))
            return HTH_E_DUPLICATE;
    }
    if (2 * helpers > count)
        return HTH_E_RANGE;
    g = hth_calloc(1, sizeof(*g) + count * sizeof(g->member[0]));
    hash_group(look, sorted, count, &g->id);
    g->line = look->opts.line;
    g->schema = look->opts.schema;
    g->count = g->self = count;
    for (uint32_t i = 0; i < count; i++) {
        order[i].member = &sorted[i];
        hth_avg_mark(env->crypto, &g->id, sizeof(g->id), &sorted[i].id, &order[i].mark);
    }
    qsort(order, count, sizeof(*order), by_mark);
    for (uint32_t i = 0; i < count; i++) {
        g->member[i] = *order[i].member;
        if (hth_peer_id_eq(&g->member[i].id, &env->self))
            g->self = i;
    }
    *out = g;
    return HTH_OK;
}

/* ---- JOIN and BEGIN -------------------------------------------------------------------------- */

static enum hth_avg_reason mismatch(const struct hth_look *look, const struct hth_avg_line *theirs,
                                    uint64_t schema)
{
    const struct hth_avg_line *ours = &look->opts.line;

    if (ours->run != theirs->run)
        return HTH_AVG_OTHER_LINE;
    if (!hth_avg_shape_eq(&ours->shape, &theirs->shape))
        return HTH_AVG_OTHER_SHAPE;
    if (hth_avg_axis(&ours->shape, ours->round) != hth_avg_axis(&ours->shape, theirs->round))
        return HTH_AVG_OTHER_ROUND;
    if (!hth_avg_line_eq(ours, theirs))
        return HTH_AVG_OTHER_LINE;
    return look->opts.schema != schema ? HTH_AVG_OTHER_SCHEMA : HTH_AVG_WAIT;
}

/* Once is enough: it would be said in each of its lines. */
static void versions_differ(struct hth_match *m, const struct hth_peer_id *id)
{
    char text[HTH_PEER_SHORT_LEN];

    if (!m->version_said)
        HTH_LOG(m->env, HTH_WARN, HTH_SUB_AVG,
                "%s has a program that averages otherwise: it and this one never average; update "
                "all trainers and helpers of the run",
                hth_peer_id_short(id, text));
    m->version_said = true;
}

/* Judges the caller as a looker in our line, and as our follower. `other` is whom it hears of. */
static enum hth_avg_reason judge(struct hth_look *look, const struct hth_join_msg *join,
                                 const struct hth_avg_member **other)
{
    struct match_looker *l = hth_look_hear(look, &join->self), *leader;

    if (l == NULL)
        return HTH_AVG_FULL;
    *other = &look->self;
    if (!join->follows) {
        if (l->state == MATCH_FOLLOWS)
            hth_look_set(l, MATCH_LOOKS);
        return HTH_AVG_WAIT;
    }
    if (!hth_avg_mode_reduces(look->opts.mode) || hth_look_precedes_us(look, l))
        return HTH_AVG_NOT_SMALLER;
    if (l->state == MATCH_GONE)
        return HTH_AVG_STRUCK_OFF;
    leader = hth_look_leader(look);
    if (leader != NULL) {
        *other = &leader->self;
        return HTH_AVG_NOT_LEADER;
    }
    hth_look_set(l, MATCH_FOLLOWS);
    l->left_us = l->heard_us + (int64_t)join->left_ms * HTH_US_PER_MS;
    return HTH_AVG_WAIT;
}

/* It asks in the look out of which our last group came, and is in that. */
static bool is_in_begun(const struct hth_match *m, const struct hth_join_msg *join)
{
    const struct hth_avg_group *g = m->begun;

    for (uint32_t i = 0; g != NULL && i < g->count; i++)
        if (g->member[i].nonce == join->self.nonce &&
            hth_peer_id_eq(&g->member[i].id, &join->self.id))
            return hth_avg_line_eq(&g->line, &join->line) && g->schema == join->schema;
    return false;
}

static enum hth_avg_reason take_join(struct hth_match *m, struct hth_join_msg *join,
                                     const struct hth_avg_member **other)
{
    enum hth_avg_reason reason = HTH_AVG_NOT_LOOKING;

    if (join->version != HTH_MATCH_VERSION) {
        versions_differ(m, &join->self.id);
        return HTH_AVG_OTHER_VERSION;
    }
    if (hth_peer_id_eq(&join->self.id, &m->env->self))
        return HTH_AVG_MALFORMED;
    if (m->opts.spoke != NULL)
        m->opts.spoke(m->opts.arg, &join->self.id, &join->line, join->schema, join->wall_us);
    if (is_in_begun(m, join))
        return HTH_AVG_OK;
    if (m->look != NULL && !m->look->done)
        reason = mismatch(m->look, &join->line, join->schema);
    if (reason == HTH_AVG_WAIT)
        return judge(m->look, join, other);
    hth_match_nudge(m); /* one less that may come */
    return reason;
}

static void on_join(void *arg, struct hth_rpc_request *req)
{
    struct hth_match *m = arg;
    struct hth_join_reply reply = {.reason = HTH_AVG_MALFORMED};
    const struct hth_avg_member *other = NULL;
    struct hth_join_msg join;
    struct hth_rpc_body body = {.payload = NULL};
    uint8_t *bytes;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_join_msg_open(payload, len, &join);

    join.self.id = *hth_rpc_peer(req);
    if (err == HTH_OK)
        reply.reason = take_join(m, &join, &other);
    else if (err != HTH_E_MALFORMED)
        reply.reason = HTH_AVG_RANGE;
    if (reply.reason == HTH_AVG_WAIT || reply.reason == HTH_AVG_NOT_LEADER) {
        reply.members = other;
        reply.count = 1;
    } else if (reply.reason == HTH_AVG_OK) {
        reply.members = m->begun->member;
        reply.count = m->begun->count;
    }
    body.payload = bytes = hth_join_reply_pack(&reply, &body.payload_len);
    hth_rpc_reply(req, &body);
    hth_free(bytes);
}

/* Only of a peer that this one may follow. */
static void on_begin(void *arg, struct hth_rpc_request *req)
{
    const struct hth_match *m = arg;
    struct hth_join_reply reply;
    struct match_looker *from = NULL;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_join_reply_open(payload, len, &reply);

    if (m->look != NULL && !m->look->done)
        from = hth_look_find(m->look, hth_rpc_peer(req));
    if (err == HTH_OK && (from == NULL || !hth_avg_mode_reduces(from->self.mode) ||
                          !hth_look_precedes_us(m->look, from)))
        err = HTH_E_NOT_FOUND;
    else if (err == HTH_OK && !hth_look_take(from, &reply))
        err = HTH_E_MALFORMED;
    hth_join_reply_close(&reply);
    if (err == HTH_OK)
        hth_rpc_reply(req, NULL);
    else
        hth_rpc_refuse(req, err, 0, NULL);
}

/* ---- life ----------------------------------------------------------------------------------- */

struct hth_match *hth_match_new(struct hth_env *env, struct hth_rpc *rpc,
                                const struct hth_match_opts *opts)
{
    struct hth_match *m = hth_new(struct hth_match);

    m->env = env;
    m->rpc = rpc;
    m->opts = *opts;
    hth_rpc_serve(rpc, HTH_MATCH_METHOD_JOIN, on_join, m);
    hth_rpc_serve(rpc, HTH_MATCH_METHOD_BEGIN, on_begin, m);
    return m;
}

void hth_match_free(struct hth_match *m)
{
    if (m == NULL)
        return;
    hth_rpc_serve(m->rpc, HTH_MATCH_METHOD_JOIN, NULL, NULL);
    hth_rpc_serve(m->rpc, HTH_MATCH_METHOD_BEGIN, NULL, NULL);
    if (m->look != NULL)
        hth_look_cancel(m->look);
    hth_free(m->begun);
    hth_free(m);
}

void hth_match_peer_lost(struct hth_match *m, const struct hth_peer_id *peer)
{
    struct match_looker *l = m->look != NULL ? hth_look_find(m->look, peer) : NULL;

    if (l != NULL)
        hth_look_set(l, MATCH_GONE);
    hth_match_nudge(m);
}

void hth_match_nudge(struct hth_match *m)
{
    if (m->look != NULL)
        hth_look_poke(m->look);
}

int64_t hth_match_far_us(const struct hth_match *m)
{
    int64_t far_us = HTH_MIN(2 * m->usual_rtt_us, HTH_MATCH_FAR_US);

    return HTH_MAX(far_us - HTH_MATCH_BEAT_US - HTH_MATCH_SILENCE_US, 0);
}

void hth_match_stats(const struct hth_match *m, struct hth_match_stats *out)
{
    *out = m->stats;
    out->looks_now = m->look != NULL;
    for (uint32_t i = 0; m->look != NULL && i < m->look->count; i++)
        out->followers_now += m->look->lookers[i]->state == MATCH_FOLLOWS;
}
