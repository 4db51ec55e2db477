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

/* A peer that is busy, with its own handshakes for one, is not deaf yet. */
#define TELL_SILENCES  3 / 2

#define CLOCK_AGAIN_US (60 * HTH_US_PER_S) /* between two words about clocks */

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
    return h;
}

void hth_match_hear_join(struct hth_match *m, const struct hth_join_msg *join)
{
    struct match_heard *h = hear(m, &join->self.id, join->schema, &join->line, join->wall_us);

    h->observes = join->self.mode == HTH_AVG_OBSERVER;
}

/* Whether the speaker only observes. */
static bool hear_tell(struct hth_match *m, const struct hth_peer_id *id,
                      const struct hth_tell *tell, int64_t at_us)
{
    struct match_heard *h = hear(m, id, tell->schema, &tell->line, at_us);
    struct hth_record rec;
    struct hth_declare d;

    hth_free(h->record);
    h->record = hth_calloc(1, tell->record_len);
    memcpy(h->record, tell->record, tell->record_len);
    h->record_len = tell->record_len;
    h->observes = hth_record_peek(tell->record, tell->record_len, &rec) == HTH_OK &&
                  hth_declare_read(rec.payload, rec.payload_len, &d) == HTH_OK &&
                  d.mode == HTH_AVG_OBSERVER;
    return h->observes;
}

void hth_match_spoke(struct hth_match *m, const struct hth_peer_id *id, uint64_t step)
{
    if (m->opts.spoke != NULL)
        m->opts.spoke(m->opts.arg, id, step);
}

void hth_match_apart(struct hth_match *m, const struct hth_peer_id *id)
{
    char who[HTH_PEER_SHORT_LEN];
    int64_t now_us = hth_now_us(m->env);

    if (m->clock_said_us == 0 || now_us - m->clock_said_us >= CLOCK_AGAIN_US) {
        m->clock_said_us = HTH_MAX(now_us, 1);
        HTH_LOG(m->env, HTH_WARN, HTH_SUB_AVG,
                "%s does not meet us: its clock and this machine's differ by more than 3 s; set "
                "the one that is wrong",
                hth_peer_id_short(id, who));
    }
    if (m->opts.apart != NULL)
        m->opts.apart(m->opts.arg, id);
}

const struct hth_avg_line *hth_match_heard(const struct hth_match *m, const struct hth_peer_id *id,
                                           uint64_t schema, int64_t *at_us, int64_t *said_us)
{
    for (uint32_t i = 0; i < HTH_AVG_HEARD_MAX; i++) {
        const struct match_heard *h = &m->heard[i];
        if (h->until_us < hth_now_us(m->env) || h->schema != schema || h->observes ||
            !hth_peer_id_eq(&h->id, id))
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

static void on_tell(void *arg, struct hth_rpc_request *req)
{
    struct hth_match *m = arg;
    struct hth_join_reply reply = {.reason = HTH_AVG_WAIT};
    struct hth_tell tell;
    struct hth_look *look;
    int64_t at_us;
    size_t len;
    bool observes;
    const uint8_t *payload = hth_rpc_payload(req, &len);
    enum hth_err err = hth_tell_open(payload, len, &tell);

    m->stats.tells_in++;
    if (err != HTH_OK) {
        reply.reason = err == HTH_E_MALFORMED ? HTH_AVG_MALFORMED : HTH_AVG_RANGE;
        goto out;
    }
    at_us = said_us(&tell);
    if (at_us > hth_wall_us(m->env) + HTH_CLOCK_SKEW_MAX_US) {
        hth_match_apart(m, hth_rpc_peer(req));
        reply.reason = HTH_AVG_CLOCK_SKEW;
        goto out;
    }
    observes = hear_tell(m, hth_rpc_peer(req), &tell, at_us);
    if (tell.missing > 0 && m->opts.called != NULL)
        reply.reason = m->opts.called(m->opts.arg, hth_rpc_peer(req), &tell.line, tell.schema,
                                      tell.missing - 1);
    if (!observes)
        hth_match_spoke(m, hth_rpc_peer(req), tell.step);
    look = hth_match_look_of(m, &tell.line, tell.schema);
    if (look == NULL) {
        if (reply.reason == HTH_AVG_WAIT)
            reply.reason = hth_match_mismatch(m, &tell.line);
        hth_match_nudge(m); /* one less who may come */
        goto out;
    }
    reply.reason = HTH_AVG_WAIT;
    (void)!hth_board_offer(look->board, tell.record, tell.record_len);
    hth_look_spoke(look, hth_rpc_peer(req));
    reply.record = look->own;
    reply.record_len = look->own_len;
out:
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
                             .part = look->part,
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

/* Who comes is seen looking; who does not yet is asked again as long as it is waited for. */
static void note_answer(struct match_telling *t, enum hth_avg_reason reason)
{
    const struct hth_match *m = t->look->match;

    t->reason = reason;
    t->again_us = hth_now_us(m->env) + m->opts.hold_us;
    hth_look_poke(t->look);
}

/* It declared, and was gone before it joined. */
static void lose(const struct hth_look *look, const struct hth_peer_id *id)
{
    struct match_looker *l = hth_look_find(look, id);

    if (l == NULL || l->joined)
        return;
    l->struck = true;
    l->early = false;
}

static void note_deaf(const struct match_telling *t, enum hth_err err)
{
    const struct hth_match *m = t->look->match;
    char text[HTH_PEER_SHORT_LEN];

    HTH_LOG(m->env, HTH_DEBUG, HTH_SUB_AVG,
            "look in round %llu: %s does not answer after %lld ms (we were %lld ms late): %s",
            (unsigned long long)t->look->opts.line.round, hth_peer_id_short(&t->to.id, text),
            (long long)((hth_now_us(m->env) - t->told_us) / HTH_US_PER_MS),
            (long long)(hth_rpc_late_us(m->rpc) / HTH_US_PER_MS), hth_err_text(err));
}

static void on_told(void *arg, const struct hth_rpc_result *r)
{
    struct match_telling *t = arg;
    struct hth_match *m = t->look->match;
    struct hth_join_reply reply;

    t->call = NULL;
    if (r->err != HTH_OK) {
        if (!r->remote && (t->to.addr.family != 0 || t->missing > 0)) {
            note_deaf(t, r->err);
            if (t->missing == 0)
                lose(t->look, &t->to.id);
            t->look->lost_us = hth_now_us(m->env);
            if (t->look->opts.deaf != NULL)
                t->look->opts.deaf(t->look->opts.arg, &t->to.id);
        }
        note_answer(t, HTH_AVG_NOT_LOOKING);
        return;
    }
    if (hth_join_reply_open(r->payload, r->payload_len, &reply) == HTH_OK &&
        reply.reason == HTH_AVG_WAIT && reply.record_len > 0) {
        (void)!hth_board_offer(t->look->board, reply.record, reply.record_len);
        hth_look_spoke(t->look, &t->to.id);
    } else if (reply.reason == HTH_AVG_CLOCK_SKEW) {
        hth_match_apart(m, &t->to.id);
    }
    note_answer(t, reply.reason);
    hth_join_reply_close(&reply);
}

/* For the first time, or again: then with a JOIN's patience. */
static void tell_one(struct match_telling *t)
{
    struct hth_look *look = t->look;
    struct hth_match *m = look->match;
    uint8_t bytes[HTH_TELL_BYTES_MAX];
    const struct hth_tell tell = {.line = look->opts.line,
                                  .schema = look->opts.schema,
                                  .record = look->own,
                                  .record_len = look->own_len,
                                  .missing = t->missing,
                                  .step = look->opts.says_step ? look->opts.step : 0};
    const struct hth_rpc_target target = {.peer = t->to.id, .addr = t->to.addr};
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_TELL};
    int64_t now_us = hth_now_us(m->env);

    hth_match_note_rtt(m, &t->to.id);
    call.timeout_us = hth_look_silence_us(look, &t->to.id);
    if (t->again_us == 0)
        call.timeout_us = call.timeout_us * TELL_SILENCES;
    call.timeout_us += hth_rpc_late_us(m->rpc);
    t->slow_us = INT64_MAX;
    if (!hth_look_connected(look, &t->to.id)) {
        t->slow_us = now_us + m->opts.silence_us;
        call.timeout_us += hth_match_dial_us(m);
    }
    t->told_us = now_us;
    t->due_us = now_us + call.timeout_us;
    call.body.payload = bytes;
    call.body.payload_len = hth_tell_pack(&tell, bytes);
    m->stats.tells_out++;
    if (hth_rpc_call(m->rpc, &target, &call, on_told, t, &t->call) != HTH_OK) {
        t->call = NULL;
        t->again_us = now_us + m->opts.hold_us;
    }
}

static bool is_heard_here(const struct hth_look *look, const struct match_heard *h)
{
    return h->until_us >= hth_now_us(look->match->env) && h->schema == look->opts.schema &&
           hth_avg_line_eq(&h->line, &look->opts.line);
}

/* The caller knows nothing of those who observe. One that looked here before us would hear of us
 * only when it asks again, and nobody waits for that. */
static uint32_t add_observers(const struct hth_look *look, struct hth_match_known *known,
                              uint32_t count)
{
    for (uint32_t i = 0; i < HTH_AVG_HEARD_MAX && count < HTH_AVG_TELL_MAX; i++) {
        const struct match_heard *h = &look->match->heard[i];

        if (h->observes && hth_avg_mode_reduces(look->opts.mode) && is_heard_here(look, h))
            known[count++] = (struct hth_match_known){.id = h->id};
    }
    return count;
}

static bool tell_all(struct hth_look *look)
{
    struct hth_match_known known[HTH_AVG_TELL_MAX];
    uint32_t count = 0, all;

    if (look->opts.known != NULL)
        count = look->opts.known(look->opts.arg, known, HTH_AVG_TELL_MAX);
    count = HTH_MIN(count, (uint32_t)HTH_AVG_TELL_MAX);
    all = add_observers(look, known, count);
    for (uint32_t i = 0; i < all; i++) {
        look->telling[i] = (struct match_telling){.look = look, .to = known[i]};
        tell_one(&look->telling[i]);
    }
    return count > 0 && count < HTH_AVG_TELL_MAX;
}

enum hth_err hth_look_tell(struct hth_look *look, bool *all)
{
    struct hth_match *m = look->match;

    HTH_TRY(sign(look));
    for (uint32_t i = 0; i < HTH_AVG_HEARD_MAX; i++) {
        const struct match_heard *h = &m->heard[i];
        if (h->record != NULL && is_heard_here(look, h))
            (void)!hth_board_offer(look->board, h->record, h->record_len);
    }
    *all = tell_all(look);
    return HTH_OK;
}

void hth_look_tell_end(struct hth_look *look)
{
    for (uint32_t i = 0; i < HTH_AVG_TELL_MAX; i++)
        hth_look_drop_call(&look->telling[i].call);
    hth_free(look->own);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static uint32_t find_telling(const struct hth_look *look, const struct hth_peer_id *id,
                             uint32_t missing)
{
    uint32_t i = 0;

    while (i < HTH_AVG_TELL_MAX &&
           (look->telling[i].look == NULL || look->telling[i].missing != missing ||
            !hth_peer_id_eq(&look->telling[i].to.id, id)))
        i++;
    return i;
}

/* It may be dead, and to wait for a connection to it takes longer than for an answer. */
static bool is_slow(const struct match_telling *t)
{
    const struct hth_look *look = t->look;

    return t->call != NULL && hth_now_us(look->match->env) >= t->slow_us &&
           !hth_look_connected(look, &t->to.id);
}

enum hth_avg_reason hth_look_proxy_answer(const struct hth_look *look, const struct hth_peer_id *id,
                                          uint32_t at)
{
    uint32_t i = find_telling(look, id, at + 1);

    if (i == HTH_AVG_TELL_MAX)
        return HTH_AVG_OK;
    return is_slow(&look->telling[i]) ? HTH_AVG_NOT_LOOKING : look->telling[i].reason;
}

/* A free place, or that of who was asked longest ago; NULL: all are being asked. */
static struct match_telling *place_to_ask(struct hth_look *look)
{
    struct match_telling *oldest = NULL;

    for (uint32_t i = 0; i < HTH_AVG_TELL_MAX; i++) {
        struct match_telling *t = &look->telling[i];
        if (t->look == NULL)
            return t;
        if (t->call == NULL && (oldest == NULL || t->again_us < oldest->again_us))
            oldest = t;
    }
    return oldest;
}

int64_t hth_look_asked_until(const struct hth_look *look, const struct hth_peer_id *id)
{
    int64_t soon_us = hth_now_us(look->match->env) + HTH_US_PER_MS, until_us = INT64_MIN;

    for (uint32_t i = 0; i < HTH_AVG_TELL_MAX && hth_look_connected(look, id); i++) {
        const struct match_telling *t = &look->telling[i];

        /* That it does not answer is known when the call ends, of which this may be the moment. */
        if (t->call != NULL && hth_peer_id_eq(&t->to.id, id))
            until_us = HTH_MAX(until_us, HTH_MAX(t->due_us, soon_us));
    }
    return until_us;
}

int64_t hth_look_ask(struct hth_look *look, const struct hth_match_due *due)
{
    int64_t now_us = hth_now_us(look->match->env);
    int64_t at_us = look->made_us + look->match->opts.hold_us;
    uint32_t i = find_telling(look, &due->id, due->proxy_at);
    struct match_telling *t = i < HTH_AVG_TELL_MAX ? &look->telling[i] : NULL;

    if (now_us < at_us) /* who comes by itself has spoken by then */
        return at_us;
    if (t == NULL) {
        t = place_to_ask(look);
        if (t == NULL)
            return INT64_MAX;
        if (now_us < t->again_us) /* no more of them at once than there are places */
            return t->again_us;
        *t = (struct match_telling){
            .look = look, .to = {.id = due->id, .addr = due->addr}, .missing = due->proxy_at};
    }
    if (t->call != NULL)
        return now_us < t->slow_us ? t->slow_us : INT64_MAX;
    if (now_us < t->again_us)
        return t->again_us;
    tell_one(t);
    return t->call != NULL ? t->slow_us : t->again_us;
}
