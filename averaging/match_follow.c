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

/* We are in it, with what we said of ourselves. */
static bool is_as_we_said(const struct hth_look *look, const struct hth_avg_group *group)
{
    const struct hth_avg_member *own = &group->member[group->self];

    return group->self < group->count && own->nonce == look->nonce &&
           own->weight == look->opts.weight && own->mode == look->opts.mode &&
           own->bandwidth == look->opts.bandwidth;
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
    switch (reply->reason) {
    case HTH_AVG_WAIT:
        /* A leader that does not hold what it is asked to hold is not asked all the time. */
        if (now_us - look->asked_us < look->match->opts.hold_us / 4)
            look->pause_us = now_us + PAUSE_US;
        look->last_refusal = HTH_AVG_OK; /* of who was asked before */
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

static void ask(struct hth_look *look, struct match_looker *l)
{
    struct hth_match *m = look->match;
    const struct hth_rpc_target target = {.peer = l->id, .addr = l->addr};
    struct hth_rpc_call_opts call = {.method = HTH_MATCH_METHOD_JOIN};
    struct hth_join_msg join = {.line = look->opts.line,
                                .schema = look->opts.schema,
                                .self = hth_look_self(look),
                                .wall_us = hth_wall_us(m->env)};
    uint8_t bytes[HTH_JOIN_BYTES_MAX];
    int64_t now_us = hth_now_us(m->env);

    join.left_ms = (uint32_t)(HTH_MAX(look->end_us - now_us, (int64_t)0) / HTH_US_PER_MS);
    call.timeout_us = m->opts.hold_us + hth_look_silence_us(look, &l->id);
    call.body.payload = bytes;
    call.body.payload_len = hth_join_msg_pack(&join, bytes);
    look->asked = l->id;
    look->asked_us = now_us;
    m->stats.joins_out++;
    if (hth_rpc_call(m->rpc, &target, &call, on_answer, look, &look->call) != HTH_OK) {
        look->call = NULL;
        look->last_refusal = HTH_AVG_FAILED;
        hth_look_strike(look, l, true);
        hth_look_poke(look);
    }
}

int64_t hth_look_follow(struct hth_look *look, struct match_looker *l)
{
    if (look->call != NULL && hth_peer_id_eq(&look->asked, &l->id))
        return INT64_MAX;
    hth_look_drop_call(&look->call);
    if (hth_now_us(look->match->env) < look->pause_us)
        return look->pause_us;
    ask(look, l);
    return INT64_MAX;
}
