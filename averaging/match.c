/* SPDX-License-Identifier: Apache-2.0 */
/* match.c: the node's side of matchmaking: JOINs that arrive, and groups that have begun. */
#include <string.h>

#include "averaging/match_int.h"
#include "core/mem.h"

#define MEMBER_BYTES   76                  /* of what is sealed of each */
#define CLOCK_AGAIN_US (60 * HTH_US_PER_S) /* between two words about clocks */

/* ---- answering ------------------------------------------------------------------------------ */

void hth_match_answer(struct hth_match *m, struct hth_rpc_request *req,
                      const struct hth_join_reply *reply)
{
    struct hth_rpc_body body = {.payload = NULL};
    uint8_t *bytes;

    hth_rpc_on_cancel(req, NULL, NULL);
    m->stats.said[reply->reason]++;
    if (hth_join_reply_pack(reply, &bytes, &body.payload_len) != HTH_OK) {
        hth_rpc_refuse(req, HTH_E_TOO_LARGE, 0, NULL);
        return;
    }
    body.payload = bytes;
    hth_rpc_reply(req, &body);
    hth_free(bytes);
}

static void refuse(struct hth_match *m, struct hth_rpc_request *req, enum hth_avg_reason reason)
{
    struct hth_join_reply reply = {.reason = reason};

    hth_match_answer(m, req, &reply);
}

/* ---- groups --------------------------------------------------------------------------------- */

static uint64_t bits(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

/* The id of the members, and with it all that the list says of them: members to whom a leader told
 * different things are in different groups, and do not cut the vector in different places. */
static void seal(const struct hth_crypto *crypto, const struct hth_avg_member *members,
                 const uint32_t *order, uint32_t count, struct hth_hash *id)
{
    size_t max = sizeof(id->b) + count * MEMBER_BYTES;
    uint8_t *bytes = hth_calloc(1, max);
    struct hth_writer w;

    hth_writer_init(&w, bytes, max);
    hth_write_bytes(&w, id->b, sizeof(id->b));
    for (uint32_t i = 0; i < count; i++) {
        const struct hth_avg_member *m = &members[order[i]];
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
    crypto->hash(bytes, max, id);
    hth_free(bytes);
}

enum hth_err hth_match_group(struct hth_look *look, const struct hth_avg_member *members,
                             uint32_t count, struct hth_avg_group **out)
{
    struct hth_env *env = look->match->env;
    struct hth_peer_id ids[HTH_AVG_MEMBERS_MAX];
    uint32_t order[HTH_AVG_MEMBERS_MAX];
    uint32_t helpers = 0;
    struct hth_avg_group *g;
    struct hth_hash id;

    *out = NULL;
    if (count == 0 || count > HTH_AVG_MEMBERS_MAX)
        return HTH_E_RANGE;
    for (uint32_t i = 0; i < count; i++) {
        ids[i] = members[i].id;
        helpers += members[i].mode == HTH_AVG_HELPER;
    }
    if (2 * helpers > count)
        return HTH_E_RANGE;
    HTH_TRY(hth_avg_group_id(env->crypto, &look->opts.line, look->opts.schema, ids, count, &id));
    hth_avg_order(env->crypto, &id, ids, count, order);
    seal(env->crypto, members, order, count, &id);
    hth_avg_order(env->crypto, &id, ids, count, order);
    g = hth_calloc(1, sizeof(*g) + count * sizeof(g->member[0]));
    g->id = id;
    g->line = look->opts.line;
    g->schema = look->opts.schema;
    g->count = count;
    g->self = count;
    for (uint32_t i = 0; i < count; i++) {
        g->member[i] = members[order[i]];
        if (hth_peer_id_eq(&g->member[i].id, &env->self))
            g->self = i;
    }
    *out = g;
    return HTH_OK;
}

void hth_match_remember(struct hth_match *m, const struct hth_avg_group *group, int64_t match_us)
{
    struct match_begun *b = &m->begun[m->begun_next++ % HTH_AVG_BEGUN_MAX];
    size_t bytes = sizeof(*group) + group->count * sizeof(group->member[0]);

    hth_free(b->group);
    b->group = hth_calloc(1, bytes);
    memcpy(b->group, group, bytes);
    b->until_us = hth_now_us(m->env) + m->opts.linger_us;
    b->match_us = match_us;
}

static const struct hth_avg_member *listed(const struct hth_avg_group *g,
                                           const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < g->count; i++)
        if (hth_peer_id_eq(&g->member[i].id, id))
            return &g->member[i];
    return NULL;
}

/* A JOIN for a line whose group began here. Who was in it and has another nonce now looks again:
 * that group is of no use to it. */
static bool answer_begun(struct hth_match *m, struct hth_rpc_request *req,
                         const struct hth_join_msg *join)
{
    const struct hth_avg_member *member;
    bool known = false;

    for (uint32_t i = 0; i < HTH_AVG_BEGUN_MAX; i++) {
        const struct match_begun *b = &m->begun[i];
        if (b->group == NULL || b->until_us < hth_now_us(m->env) ||
            b->group->schema != join->schema || !hth_avg_line_eq(&b->group->line, &join->line))
            continue;
        member = listed(b->group, hth_rpc_peer(req));
        known |= member == NULL;
        if (member == NULL || member->nonce != join->self.nonce)
            continue;
        struct hth_join_reply reply = {.reason = HTH_AVG_OK,
                                       .members = b->group->member,
                                       .count = b->group->count,
                                       .match_us = b->match_us};
        hth_match_answer(m, req, &reply);
        return true;
    }
    if (known)
        refuse(m, req, HTH_AVG_BEGUN);
    return known;
}

/* ---- JOINs ---------------------------------------------------------------------------------- */

static enum hth_avg_reason mismatch(const struct hth_look *look, const struct hth_avg_line *theirs,
                                    uint64_t schema)
{
    const struct hth_avg_line *ours = &look->opts.line;

    if (ours->run != theirs->run)
        return HTH_AVG_OTHER_LINE;
    if (ours->generation != theirs->generation || !hth_avg_shape_eq(&ours->shape, &theirs->shape))
        return HTH_AVG_OTHER_SHAPE;
    if (ours->round != theirs->round)
        return HTH_AVG_OTHER_ROUND;
    if (!hth_avg_line_eq(ours, theirs))
        return HTH_AVG_OTHER_LINE;
    return look->opts.schema != schema ? HTH_AVG_OTHER_SCHEMA : HTH_AVG_WAIT;
}

struct hth_look *hth_match_look_of(const struct hth_match *m, const struct hth_avg_line *line,
                                   uint64_t schema, enum hth_avg_reason *reason)
{
    *reason = HTH_AVG_NOT_LOOKING;
    if (m->look == NULL || m->look->done)
        return NULL;
    *reason = mismatch(m->look, line, schema);
    return *reason == HTH_AVG_WAIT ? m->look : NULL;
}

/* A request takes its time, so a clock that is behind may seem a little more so. */
static bool skewed(struct hth_match *m, int64_t wall_us)
{
    int64_t ours_us = hth_wall_us(m->env);

    if (wall_us > ours_us)
        return wall_us - ours_us > HTH_CLOCK_SKEW_MAX_US;
    return ours_us - wall_us > HTH_CLOCK_SKEW_MAX_US + m->opts.silence_us;
}

void hth_match_clocks_differ(struct hth_match *m, const struct hth_peer_id *id)
{
    char who[HTH_PEER_SHORT_LEN];
    int64_t now_us = hth_now_us(m->env);

    if (m->clock_said_us != 0 && now_us - m->clock_said_us < CLOCK_AGAIN_US)
        return;
    m->clock_said_us = HTH_MAX(now_us, 1);
    HTH_LOG(m->env, HTH_WARN, HTH_SUB_AVG,
            "%s does not meet us: its clock and this machine's differ by more than 3 s; set the "
            "one that is wrong",
            hth_peer_id_short(id, who));
}

static void on_join(void *arg, struct hth_rpc_request *req)
{
    struct hth_match *m = arg;
    struct hth_join_msg join;
    struct hth_look *look;
    enum hth_avg_reason reason;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_join_msg_open(payload, len, &join);

    m->stats.joins_in++;
    if (err != HTH_OK) {
        refuse(m, req, err == HTH_E_MALFORMED ? HTH_AVG_MALFORMED : HTH_AVG_RANGE);
        return;
    }
    if (skewed(m, join.wall_us)) {
        hth_match_clocks_differ(m, hth_rpc_peer(req));
        refuse(m, req, HTH_AVG_CLOCK_SKEW);
        return;
    }
    join.self.id = *hth_rpc_peer(req);
    hth_match_hear_join(m, &join);
    look = hth_match_look_of(m, &join.line, join.schema, &reason);
    if (look != NULL)
        hth_lead_join(look, req, &join);
    else if (!answer_begun(m, req, &join))
        refuse(m, req, reason);
}

/* ---- life ----------------------------------------------------------------------------------- */

enum hth_err hth_match_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_dht *dht,
                           const struct hth_match_opts *opts, struct hth_match **out)
{
    struct hth_match *m;

    *out = NULL;
    if (opts->network == NULL || opts->network[0] == 0 ||
        strlen(opts->network) > HTH_NAME_LEN_MAX || opts->hold_us <= 0 || opts->silence_us <= 0 ||
        opts->dial_us < 0 || opts->far_us < opts->dial_us || opts->board_us < 0 ||
        opts->patience_us < 0 || opts->linger_us < 0)
        return HTH_E_CONFIG;
    m = hth_new(struct hth_match);
    m->env = env;
    m->rpc = rpc;
    m->dht = dht;
    m->opts = *opts;
    memcpy(m->network, opts->network, strlen(opts->network));
    m->opts.network = m->network;
    m->cache = hth_record_cache_new();
    hth_rpc_serve(rpc, HTH_MATCH_METHOD_JOIN, on_join, m);
    hth_match_tell_serve(m);
    *out = m;
    return HTH_OK;
}

void hth_match_free(struct hth_match *m)
{
    if (m == NULL)
        return;
    hth_rpc_serve(m->rpc, HTH_MATCH_METHOD_JOIN, NULL, NULL);
    hth_rpc_serve(m->rpc, HTH_MATCH_METHOD_TELL, NULL, NULL);
    if (m->look != NULL)
        hth_look_cancel(m->look);
    for (uint32_t i = 0; i < HTH_AVG_BEGUN_MAX; i++)
        hth_free(m->begun[i].group);
    for (uint32_t i = 0; i < HTH_AVG_HEARD_MAX; i++)
        hth_free(m->heard[i].record);
    hth_record_cache_free(m->cache);
    hth_free(m);
}

void hth_match_peer_lost(struct hth_match *m, const struct hth_peer_id *peer)
{
    struct match_looker *l = m->look != NULL ? hth_look_find(m->look, peer) : NULL;

    if (l != NULL)
        l->struck = true;
    hth_match_nudge(m);
}

void hth_match_nudge(struct hth_match *m)
{
    if (m->look != NULL)
        hth_look_poke(m->look);
}

void hth_match_stats(const struct hth_match *m, struct hth_match_stats *out)
{
    *out = m->stats;
    out->looks_now = m->look != NULL;
    for (uint32_t i = 0; m->look != NULL && i < m->look->count; i++)
        out->followers_now += m->look->lookers[i]->joined;
    for (uint32_t i = 0; i < HTH_AVG_BEGUN_MAX; i++)
        out->begun_now += m->begun[i].group != NULL && m->begun[i].until_us >= hth_now_us(m->env);
}
