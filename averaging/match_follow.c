/* SPDX-License-Identifier: Apache-2.0 */
/* match_follow.c: what a look does while a smaller one is known: it asks to be in its group. */
#include "averaging/match_int.h"
#include "core/mem.h"

#define PAUSE_US (50 * HTH_US_PER_MS) /* before the same peer is asked again */
/* By one peer, to somebody that is of no use: 2 s. It may be the next to lead, and find out later
 * than we that the one it names is dead: after hold, silence and dial, and later where it is busy.
 * Who struck it off before would be missed by its group. */
#define REDIRECTS_MAX 40
/* By one peer that spoke again after each: who says that it looks, and takes nobody in. */
#define REFUSALS_MAX 8

static void take_redirect(struct hth_look *look, struct match_looker *from,
                          const struct hth_join_reply *reply)
{
    if (++from->redirects > REDIRECTS_MAX)
        hth_look_strike(look, from, true);
    /* It may name somebody who did not answer us, and find that out itself in a moment. (Who is new
     * may take the place of `from`.) */
    if (hth_board_offer(look->board, reply->record, reply->record_len) != HTH_OK)
        look->pause_us = hth_now_us(look->match->env) + PAUSE_US;
}

/* We are in it, ready and with what we said of ourselves. */
static bool is_as_we_said(const struct hth_look *look, const struct hth_avg_group *group)
{
    const struct hth_avg_member *own = &group->member[group->self];

    if (group->self == group->count || !look->opts.ready)
        return false;
    return own->nonce == look->nonce && own->weight == look->opts.weight &&
           own->origin == look->opts.origin && own->mode == look->opts.mode &&
           own->bandwidth == look->opts.bandwidth && own->step == look->opts.step &&
           own->at == hth_look_at(look) && own->others == look->opts.others;
}

static bool take_begin(struct hth_look *look, const struct hth_join_reply *reply)
{
    struct hth_avg_group *group;

    if (hth_match_group(look, reply->members, reply->count, &group) != HTH_OK)
        return false;
    if (!is_as_we_said(look, group)) {
        hth_free(group);
        return false;
    }
    hth_match_remember(look->match, group, reply->match_us);
    look->result.match_us = reply->match_us;
    hth_look_end(look, HTH_OK, HTH_AVG_OK, group);
    return true;
}

static void take_reply(struct hth_look *look, struct match_looker *from,
                       const struct hth_join_reply *reply)
{
    int64_t now_us = hth_now_us(look->match->env);

    look->match->stats.heard[reply->reason]++;
    from->doubted = false;
    switch (reply->reason) {
    case HTH_AVG_WAIT:
        /* A leader that does not hold what it is asked to hold is not asked all the time. */
        if (now_us - look->asked_us < look->match->opts.hold_us / 4)
            look->pause_us = now_us + PAUSE_US;
        look->last_refusal = HTH_AVG_OK; /* of who was asked before */
        from->keeps = true;
        break;
    case HTH_AVG_OK:
        if (take_begin(look, reply))
            break;
        look->last_refusal = HTH_AVG_LEFT_OUT;
        hth_look_strike(look, from, true);
        break;
    case HTH_AVG_NOT_LEADER:
        take_redirect(look, from, reply);
        break;
    default:
        look->last_refusal = reply->reason;
        from->keeps = false;
        from->early = reply->reason == HTH_AVG_NOT_LOOKING;
        hth_look_strike(look, from, ++from->refusals > REFUSALS_MAX);
    }
}

static void on_answer(void *arg, const struct hth_rpc_result *r)
{
    struct hth_look *look = arg;
    struct match_looker *from = hth_look_find(look, &look->asked);
    struct hth_join_reply reply;

    look->call = NULL;
    hth_look_poke(look);
    if (from == NULL || look->done)
        return;
    if (r->err != HTH_OK) {
        look->last_refusal = r->err == HTH_E_DRAINING ? HTH_AVG_DRAINING : HTH_AVG_NO_LEADER;
        hth_look_strike(look, from, true);
        return;
    }
    if (hth_join_reply_open(r->payload, r->payload_len, &reply) == HTH_OK) {
        take_reply(look, from, &reply);
    } else {
        look->last_refusal = HTH_AVG_MALFORMED;
        hth_look_strike(look, from, true);
    }
    hth_join_reply_close(&reply);
}

void hth_look_drop_call(struct hth_rpc_call **call)
{
    if (*call != NULL)
        hth_rpc_cancel(*call);
    *call = NULL;
}

static enum hth_err send_join(struct hth_look *look, const struct match_looker *l,
                              int64_t timeout_us, hth_rpc_done_fn *done, void *arg,
                              struct hth_rpc_call **out)
{
    struct hth_match *m = look->match;
    struct hth_rpc_target target = {.peer = l->id, .addr = l->addr};
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_JOIN, .timeout_us = timeout_us};
    struct hth_join_msg join = {.line = look->opts.line,
                                .schema = look->opts.schema,
                                .ready = look->opts.ready,
                                .wall_us = hth_wall_us(m->env)};
    uint8_t bytes[HTH_JOIN_BYTES_MAX];
    int64_t left_us = look->end_us - hth_now_us(m->env);

    join.self.mode = look->opts.mode;
    if (hth_avg_mode_reduces(look->opts.mode))
        join.self.addr = m->opts.addr;
    join.self.bandwidth = look->opts.bandwidth;
    join.self.weight = look->opts.weight;
    join.self.step = look->opts.step;
    join.self.origin = look->opts.origin;
    join.self.at = hth_look_at(look);
    join.self.others = look->opts.others;
    join.self.nonce = look->nonce;
    join.left_ms = (uint32_t)(HTH_MAX(left_us, (int64_t)0) / HTH_US_PER_MS);
    call.body.payload = bytes;
    call.body.payload_len = hth_join_msg_pack(&join, bytes);
    m->stats.joins_out++;
    return hth_rpc_call(m->rpc, &target, &call, done, arg, out);
}

static int64_t timeout_of(const struct hth_look *look, const struct match_looker *l)
{
    const struct hth_match *m = look->match;
    int64_t us = m->opts.hold_us + hth_look_silence_us(look, &l->id);

    if (!hth_look_connected(look, &l->id))
        us += hth_match_dial_us(m);
    return us;
}

static void ask(struct hth_look *look, struct match_looker *l)
{
    int64_t now_us = hth_now_us(look->match->env), wait_us = timeout_of(look, l);

    look->answer_us = now_us + wait_us;
    look->asked = l->id;
    look->asked_ready = look->opts.ready;
    look->asked_us = now_us;
    wait_us += hth_rpc_late_us(look->match->rpc);
    if (send_join(look, l, wait_us, on_answer, look, &look->call) != HTH_OK) {
        look->call = NULL;
        look->last_refusal = HTH_AVG_FAILED;
        hth_look_strike(look, l, true);
        hth_look_poke(look);
    }
}

static void on_probe(void *arg, const struct hth_rpc_result *r)
{
    struct match_probe *p = arg;
    struct hth_join_reply reply;

    p->call = NULL;
    if (r->err != HTH_OK || p->look->done)
        return;
    if (hth_join_reply_open(r->payload, r->payload_len, &reply) == HTH_OK &&
        reply.reason == HTH_AVG_OK)
        (void)take_begin(p->look, &reply);
    hth_join_reply_close(&reply);
}

/* The leader that was lost may have begun a group, and others may have heard of it. They come later
 * in the order than we, so who still looks says so at once. */
void hth_look_probe(struct hth_look *look)
{
    uint32_t n = 0;

    if (!look->lost || !look->opts.ready)
        return;
    look->lost = false;
    for (uint32_t i = 0; i < look->count && n < HTH_LOOK_PROBES; i++) {
        const struct match_looker *l = look->lookers[i];
        struct match_probe *p = &look->probe[n];
        if (!l->declared || l->struck || l->joined || !hth_avg_mode_reduces(l->mode))
            continue;
        n++;
        p->look = look;
        if (p->call == NULL &&
            send_join(look, l, timeout_of(look, l), on_probe, p, &p->call) != HTH_OK)
            p->call = NULL;
    }
}

/* To whom a connection takes longer than an answer may, others are asked meanwhile: it may be dead,
 * and they may know. Returns when that is. */
static int64_t slow_at(const struct hth_look *look, const struct match_looker *l)
{
    const struct hth_match_opts *o = &look->match->opts;

    if (l->slow || hth_look_connected(look, &l->id))
        return INT64_MAX;
    return look->asked_us + o->hold_us + o->silence_us + hth_rpc_late_us(look->match->rpc);
}

void hth_look_doubt(struct hth_look *look, const struct hth_peer_id *by)
{
    if (look->call == NULL || hth_peer_id_eq(&look->asked, by))
        return;
    for (uint32_t i = 0; i < look->count; i++) {
        struct match_looker *l = look->lookers[i];

        if (hth_peer_id_eq(&l->id, by))
            return; /* it would not follow the one that we ask */
        if (!hth_peer_id_eq(&l->id, &look->asked))
            continue;
        l->doubted = true;
        hth_look_poke(look);
        return;
    }
}

/* When it should have answered, and has more time only because we were late ourselves or dial it;
 * others were not, and do not. */
static int64_t given_up_at(const struct hth_look *look, const struct match_looker *l)
{
    int64_t end_us = look->asked_us + look->match->opts.hold_us + hth_look_silence_us(look, &l->id);

    return l->doubted ? HTH_MIN(look->answer_us, end_us) : INT64_MAX;
}

/* Returns when to look again. */
int64_t hth_look_follow(struct hth_look *look, struct match_looker *l)
{
    if (look->call != NULL && hth_peer_id_eq(&look->asked, &l->id) &&
        look->asked_ready == look->opts.ready) {
        int64_t now_us = hth_now_us(look->match->env);
        int64_t at_us = slow_at(look, l), end_us = given_up_at(look, l);

        if (end_us <= now_us) {
            hth_look_drop_call(&look->call);
            look->last_refusal = HTH_AVG_NO_LEADER;
            hth_look_strike(look, l, true);
            return now_us;
        }
        l->slow |= at_us <= now_us;
        return HTH_MIN(at_us, end_us);
    }
    hth_look_drop_call(&look->call);
    if (hth_now_us(look->match->env) < look->pause_us)
        return look->pause_us;
    ask(look, l);
    return slow_at(look, l);
}
