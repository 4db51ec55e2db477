/* SPDX-License-Identifier: Apache-2.0 */
/*
 * match_tell.c: declarations that do not wait for the DHT.
 *
 * They are the same signed records as on the board and are judged by it, so that a liar can do
 * nothing here that it could not do there. Who is told may look only later: so the last word of
 * each peer is kept for a while, unjudged (a signature costs more than a message), and given to the
 * board when a look in that line begins.
 */
#include <string.h>

#include "averaging/match_int.h"
#include "core/mem.h"

/* ---- what is heard -------------------------------------------------------------------------- */

/* The place for a peer's word: its own, a free one, or the oldest. Words differ by schema, which
 * anybody can make up: who says many takes the place of its own. */
static struct match_heard *place(struct hth_match *m, const struct hth_peer_id *id, uint64_t schema)
{
    struct match_heard *oldest = &m->heard[0], *its_oldest = NULL;
    uint32_t count = 0;

    for (uint32_t i = 0; i < HTH_AVG_HEARD_MAX; i++) {
        struct match_heard *h = &m->heard[i];
        bool is_its = h->until_us > 0 && hth_peer_id_eq(&h->id, id);

        if (is_its && h->schema == schema)
            return h;
        if (h->until_us < oldest->until_us)
            oldest = h;
        if (is_its && (its_oldest == NULL || h->until_us < its_oldest->until_us))
            its_oldest = h;
        count += is_its;
    }
    return count < HTH_AVG_HEARD_EACH_MAX ? oldest : its_oldest;
}

static struct match_heard *hear(struct hth_match *m, const struct hth_peer_id *id, uint64_t schema,
                                const struct hth_avg_line *line, int64_t said_us)
{
    struct match_heard *h = place(m, id, schema);
    bool same = h->until_us > 0 && h->schema == schema && hth_peer_id_eq(&h->id, id) &&
                hth_avg_line_eq(&h->line, line);

    if (!same) {
        hth_free(h->record);
        h->record = NULL;
    }
    h->id = *id;
    h->schema = schema;
    h->line = *line;
    h->said_us = said_us;
    h->until_us = hth_now_us(m->env) + m->opts.linger_us;
    if (m->opts.spoke != NULL)
        m->opts.spoke(m->opts.arg, id);
    return h;
}

void hth_match_hear_join(struct hth_match *m, const struct hth_join_msg *join)
{
    (void)hear(m, &join->self.id, join->schema, &join->line, join->wall_us);
}

static void hear_tell(struct hth_match *m, const struct hth_peer_id *id,
                      const struct hth_tell *tell, int64_t at_us)
{
    struct match_heard *h = hear(m, id, tell->schema, &tell->line, at_us);

    hth_free(h->record);
    h->record = hth_calloc(1, tell->record_len);
    memcpy(h->record, tell->record, tell->record_len);
    h->record_len = tell->record_len;
}

const struct hth_avg_line *hth_match_heard(const struct hth_match *m, const struct hth_peer_id *id,
                                           uint64_t schema, int64_t *at_us, int64_t *said_us)
{
    for (uint32_t i = 0; i < HTH_AVG_HEARD_MAX; i++) {
        const struct match_heard *h = &m->heard[i];
        if (h->until_us < hth_now_us(m->env) || h->schema != schema || !hth_peer_id_eq(&h->id, id))
            continue;
        if (at_us != NULL)
            *at_us = h->until_us - m->opts.linger_us;
        if (said_us != NULL)
            *said_us = h->said_us;
        return &h->line;
    }
    return NULL;
}

/* When a declaration was signed; of all that a board looks at, only clocks are judged here. */
static int64_t said_us(const struct hth_tell *tell)
{
    struct hth_record rec;

    return hth_record_peek(tell->record, tell->record_len, &rec) == HTH_OK ? rec.issued_us : 0;
}

/* The callee's declaration, if it looks there too; else why not. */
static void take_tell(struct hth_match *m, const struct hth_peer_id *from,
                      const struct hth_tell *tell, struct hth_join_reply *reply)
{
    int64_t at_us = said_us(tell);
    struct hth_look *look = hth_match_look_of(m, &tell->line, tell->schema, &reply->reason);

    if (at_us > hth_wall_us(m->env) + HTH_CLOCK_SKEW_MAX_US) {
        hth_match_clocks_differ(m, from);
        reply->reason = HTH_AVG_CLOCK_SKEW;
        return;
    }
    hear_tell(m, from, tell, at_us);
    if (look == NULL) {
        hth_match_nudge(m); /* one less who may come */
        return;
    }
    (void)!hth_board_offer(look->board, tell->record, tell->record_len);
    hth_look_spoke(look, from);
    reply->record = look->own;
    reply->record_len = look->own_len;
}

static void on_tell(void *arg, struct hth_rpc_request *req)
{
    struct hth_match *m = arg;
    struct hth_join_reply reply = {.reason = HTH_AVG_MALFORMED};
    struct hth_tell tell;
    size_t len;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_tell_open(payload, len, &tell);

    m->stats.tells_in++;
    if (err == HTH_OK)
        take_tell(m, hth_rpc_peer(req), &tell, &reply);
    else if (err != HTH_E_MALFORMED)
        reply.reason = HTH_AVG_RANGE;
    hth_match_answer(m, req, &reply);
    hth_tell_close(&tell);
}

void hth_match_tell_serve(struct hth_match *m)
{
    hth_rpc_serve(m->rpc, HTH_MATCH_METHOD_TELL, on_tell, m);
}

/* ---- telling -------------------------------------------------------------------------------- */

static enum hth_err sign(struct hth_look *look)
{
    struct hth_env *env = look->match->env;
    uint8_t payload[HTH_RECORD_PAYLOAD_MAX], bytes[HTH_DHT_VALUE_BYTES_MAX];
    struct hth_writer w;
    struct hth_dht_key key;
    struct hth_record rec = {.kind = HTH_RECORD_DECLARE,
                             .network = look->topic.network,
                             .issued_us = hth_wall_us(env),
                             .payload = payload};

    hth_writer_init(&w, payload, sizeof(payload));
    HTH_TRY(hth_look_declaration(look, &w));
    rec.seq = (uint64_t)rec.issued_us;
    rec.life_ms = (uint32_t)(hth_look_life_us(look) / HTH_US_PER_MS);
    rec.payload_len = w.pos;
    hth_topic_key(&look->topic, env->crypto, 0, &key);
    HTH_TRY(hth_record_seal(env, &key, &rec, bytes, sizeof(bytes), &look->own_len));
    look->own = hth_calloc(1, look->own_len);
    memcpy(look->own, bytes, look->own_len);
    return HTH_OK;
}

/* It should be there, and does not answer. */
static void note_deaf(const struct match_telling *t)
{
    struct hth_look *look = t->look;
    struct match_looker *l = hth_look_find(look, &t->to.id);

    if (l != NULL && !l->joined)
        l->struck = true;
    if (look->opts.deaf != NULL)
        look->opts.deaf(look->opts.arg, &t->to.id);
}

static void on_told(void *arg, const struct hth_rpc_result *r)
{
    struct match_telling *t = arg;
    struct hth_look *look = t->look;
    struct hth_join_reply reply;

    t->call = NULL;
    hth_look_poke(look);
    if (r->err != HTH_OK) {
        if (!r->remote && t->to.addr.family != 0)
            note_deaf(t);
        return;
    }
    if (hth_join_reply_open(r->payload, r->payload_len, &reply) == HTH_OK &&
        reply.reason == HTH_AVG_WAIT && reply.record_len > 0) {
        (void)!hth_board_offer(look->board, reply.record, reply.record_len);
        hth_look_spoke(look, &t->to.id);
    } else if (reply.reason == HTH_AVG_CLOCK_SKEW) {
        hth_match_clocks_differ(look->match, &t->to.id);
    }
    hth_join_reply_close(&reply);
}

/* Smoothed as TCP does it; the first counts whole. */
static void note_rtt(struct hth_match *m, const struct hth_peer_id *id)
{
    struct hth_rpc_peer_info info;

    if (hth_rpc_peer_info(m->rpc, id, &info) == HTH_OK && info.rtt_us > 0)
        m->usual_rtt_us += (info.rtt_us - m->usual_rtt_us) / (m->usual_rtt_us > 0 ? 8 : 1);
}

static void tell_one(struct match_telling *t)
{
    struct hth_look *look = t->look;
    struct hth_match *m = look->match;
    uint8_t bytes[HTH_TELL_BYTES_MAX];
    const struct hth_tell tell = {.line = look->opts.line,
                                  .schema = look->opts.schema,
                                  .record = look->own,
                                  .record_len = look->own_len};
    const struct hth_rpc_target target = {.peer = t->to.id, .addr = t->to.addr};
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_TELL};

    note_rtt(m, &t->to.id);
    call.timeout_us = m->opts.hold_us + hth_look_silence_us(look, &t->to.id);
    call.body.payload = bytes;
    call.body.payload_len = hth_tell_pack(&tell, bytes);
    m->stats.tells_out++;
    if (hth_rpc_call(m->rpc, &target, &call, on_told, t, &t->call) != HTH_OK)
        t->call = NULL;
}

enum hth_err hth_look_tell(struct hth_look *look, bool *all)
{
    struct hth_match *m = look->match;
    struct hth_match_known known[HTH_AVG_TELL_MAX];
    uint32_t count = 0;

    HTH_TRY(sign(look));
    for (uint32_t i = 0; i < HTH_AVG_HEARD_MAX; i++) {
        const struct match_heard *h = &m->heard[i];

        if (h->record != NULL && h->until_us >= hth_now_us(m->env) &&
            h->schema == look->opts.schema && hth_avg_line_eq(&h->line, &look->opts.line))
            (void)!hth_board_offer(look->board, h->record, h->record_len);
    }
    if (look->opts.known != NULL)
        count = look->opts.known(look->opts.arg, known, HTH_AVG_TELL_MAX);
    count = HTH_MIN(count, (uint32_t)HTH_AVG_TELL_MAX);
    for (uint32_t i = 0; i < count; i++) {
        look->telling[i] = (struct match_telling){.look = look, .to = known[i]};
        tell_one(&look->telling[i]);
    }
    *all = count > 0 && count < HTH_AVG_TELL_MAX;
    return HTH_OK;
}
