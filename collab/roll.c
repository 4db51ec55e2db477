/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/roll_int.h"

#include "collab/cells.h"
#include "core/mem.h"

#include <string.h>

/* ---- answers ------------------------------------------------------------------------------ */

void roll_answer(struct hth_rpc_request *req, const struct hth_ready_reply *reply)
{
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    struct hth_rpc_body body = {.payload = bytes};
    body.payload_len = hth_ready_reply_write(reply, bytes);
    hth_rpc_reply(req, &body);
}

void roll_release(struct hth_roll_call *roll, uint16_t member, const struct hth_ready_reply *reply)
{
    struct mate *mate = &roll->mate[member];
    if (mate->held == NULL)
        return;
    roll_answer(mate->held, reply);
    mate->held = NULL;
}

void roll_release_wait(struct hth_roll_call *roll, uint16_t member)
{
    struct mate *mate = &roll->mate[member];
    const struct hth_ready_reply wait = {.kind = HTH_READY_WAIT,
                                         .quota = mate->quota,
                                         .quorum = hth_choice_pick(roll->choice, HTH_CHOICE_NOW) !=
                                                   HTH_LINK_NONE};
    roll_release(roll, member, &wait);
}

/* ---- READY, as a member ------------------------------------------------------------------- */

static void begin_round(struct hth_roll_call *roll, const struct hth_ready_reply *list);

struct hth_hash roll_head(const struct hth_roll_call *roll, uint32_t link)
{
    static const struct hth_hash none;
    return link == HTH_LINK_NONE ? none : *hth_chain_head(roll->chain, link);
}

void roll_drop_ready(struct hth_roll_call *roll)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(roll->ready); i++) {
        if (roll->ready[i].call != NULL)
            hth_rpc_cancel(roll->ready[i].call);
        roll->ready[i].call = NULL;
    }
    roll->again_us = 0;
}

/* Finds what no honest caller's GO has: another ballot than the READY's, a fork without leave, or
 * a protocol that is not the next one or not spoken here, this member with another batch. */
static enum hth_err check_go(const struct hth_roll_call *roll, const struct hth_ready_reply *go,
                             const struct hth_roll_peer *own)
{
    const struct hth_choice *c = roll->choice;
    if (go->n > c->promised)
        return HTH_E_PROTOCOL;
    if (go->fork && !hth_chain_opts(roll->chain)->eventual)
        return HTH_E_REFUSED;
    uint32_t used = hth_chain_at(roll->chain, c->tip)->protocol;
    if (go->protocol < used || go->protocol > used + 1 || go->protocol > roll->opts.last_protocol)
        return HTH_E_VERSION;
    return own != NULL && own->batch != c->batch ? HTH_E_PROTOCOL : HTH_OK;
}

static void take_go(struct hth_roll_call *roll, uint16_t by, const struct hth_ready_reply *reply)
{
    uint32_t head = hth_chain_find(roll->chain, &reply->head);
    const struct hth_roll_peer *own = NULL;
    for (uint32_t i = 0; i < reply->count; i++)
        if (hth_peer_id_eq(&reply->peer[i].id, &roll->env->self) &&
            reply->peer[i].life == roll->opts.life)
            own = &reply->peer[i];
    bool mine = head != HTH_LINK_NONE && head == roll->choice->tip;
    enum hth_err err = mine ? check_go(roll, reply, own) : HTH_OK;
    if (err != HTH_OK)
        roll_give_up(roll, by, err, "a GO that is not its to send");
    /* While a state is fetched what it holds may change. */
    if (err != HTH_OK || !mine || own == NULL || roll->fetching ||
        !hth_choice_hear_go(roll->choice, head, reply->n))
        return;
    roll_take_sigs(roll, head, reply);
    roll->go = (struct hth_choice_go){head, reply->n, reply->fork};
    begin_round(roll, reply);
}

static void take_answer(struct hth_roll_call *roll, uint16_t by,
                        const struct hth_ready_reply *reply)
{
    struct hth_ballot later = hth_choice_now(roll->choice);
    switch (reply->kind) {
    case HTH_READY_WAIT:
        roll_take_quota(roll, reply->quota);
        if (reply->quorum)
            roll->alone_us = hth_now_us(roll->env);
        break;
    case HTH_READY_GO:
        take_go(roll, by, reply);
        break;
    case HTH_READY_MOVE:
        roll->moved = reply->head;
        roll_want(roll, &reply->head, reply->peer, reply->count);
        break;
    case HTH_READY_LATER:
        if (reply->n > later.n && reply->n - later.n > HTH_CALL_JUMP)
            roll_give_up(roll, by, HTH_E_RANGE, "a LATER ballot far ahead");
        later.n = reply->n;
        if (roll_may_raise(roll, by))
            hth_choice_hear_call(roll->choice, &later);
        else
            roll->again_us += AGAIN_US;
        break;
    case HTH_READY_BEHIND: {
        struct hth_roll_peer caller = roll_peer(roll, by);
        uint32_t link = hth_chain_find(roll->chain, &reply->head);
        if (link != HTH_LINK_NONE && hth_choice_shuns(roll->choice, link) &&
            hth_choice_caller(roll->chain, &later) == by)
            hth_choice_fail(roll->choice);
        roll_want(roll, &reply->head, &caller, 1);
        break;
    }
    }
}

static uint32_t count_ready(const struct hth_roll_call *roll)
{
    uint32_t n = 0;
    for (size_t i = 0; i < READYS; i++)
        n += roll->ready[i].call != NULL;
    return n;
}

static void on_ready_answer(void *arg, const struct hth_rpc_result *result)
{
    struct ready_out *out = arg;
    struct hth_roll_call *roll = out->roll;
    struct hth_ready_reply reply;
    enum hth_err err = result->err;
    out->call = NULL;
    if (err == HTH_OK)
        err = hth_ready_reply_read(result->payload, result->payload_len, &reply);
    /* E_STALE: another process of that peer answers. */
    bool heard = err == HTH_OK || (result->remote && err != HTH_E_STALE);
    if (result->err == HTH_OK && err != HTH_OK)
        roll_blame(roll, hth_chain_id(roll->chain, out->to), err, "a bad answer to READY");
    roll_set_heard(roll, out->to, heard);
    if (roll_is_doubted(roll, hth_chain_id(roll->chain, out->to)))
        err = HTH_E_BUSY; /* it enters no round of that caller */
    roll->again_us = hth_now_us(roll->env);
    if (err == HTH_OK)
        take_answer(roll, out->to, &reply);
    if (err != HTH_OK || reply.kind == HTH_READY_BEHIND)
        roll->again_us += AGAIN_US;
    else if (count_ready(roll) > 0)
        roll->again_us = 0; /* a later one is on its way */
    roll_pump(roll);
}

/* A READY is answered by then. At a genesis members dial each other first. */
static int64_t patience_us(const struct hth_roll_call *roll)
{
    bool genesis = hth_chain_at(roll->chain, roll->choice->tip)->kind == HTH_LINK_GENESIS;
    return roll->opts.hold_us + roll->opts.silence_us + (genesis ? roll->opts.window_us : 0);
}

/* One that may be sent; NULL: there are enough. */
static struct ready_out *free_ready(struct hth_roll_call *roll)
{
    if (count_ready(roll) >= (roll_is_done(roll) ? READYS : READYS_GATHERING))
        return NULL;
    for (size_t i = 0; i < READYS; i++)
        if (roll->ready[i].call == NULL)
            return &roll->ready[i];
    return NULL;
}

static void send_ready(struct hth_roll_call *roll)
{
    struct hth_ready ready;
    struct hth_ballot before = hth_choice_now(roll->choice);
    uint16_t to = hth_choice_ready(roll->choice, &ready);
    roll->again_us = 0;
    roll->more = false;
    roll->ready_us = hth_now_us(roll->env);
    const struct hth_sig *sig = roll_sign(roll);
    if (to == roll_me(roll)) {
        enum hth_choice_answer said = hth_choice_hear_ready(roll->choice, roll_me(roll), &ready);
        if (said == HTH_CHOICE_CALLS)
            roll_send_calls(roll);
        if (said == HTH_CHOICE_LATER)
            hth_choice_hear_call(roll->choice, &roll->choice->ballot);
        return;
    }
    struct hth_ready_msg msg = {.ballot = roll_to_wire(roll, before),
                                .head = roll_head(roll, ready.head),
                                .accepted = roll_head(roll, ready.accepted),
                                .accepted_n = ready.accepted_n,
                                .life = roll->opts.life,
                                .batch = ready.batch,
                                .brings = roll_brings_now(roll),
                                .quota = hth_roll_quota(roll),
                                .rtt_us = (uint32_t)HTH_MIN(roll_rtt_us(roll, to), UINT32_MAX),
                                .first = roll->opts.first_protocol,
                                .last = roll->opts.last_protocol,
                                .leaves = ready.leaves,
                                .up_kbit = roll->opts.up_kbit,
                                .addr = roll->opts.addr,
                                .is_signed = true,
                                .sig = *sig};
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    struct hth_rpc_call_opts opts = {.method = HTH_ROLL_METHOD_READY,
                                     .timeout_us = patience_us(roll)};
    opts.body.payload = bytes;
    opts.body.payload_len = hth_ready_write(&msg, bytes);
    struct hth_rpc_target target = roll_target(roll, to);
    struct ready_out *out = free_ready(roll);
    *out = (struct ready_out){.roll = roll, .to = to};
    if (hth_rpc_call(roll->rpc, &target, &opts, on_ready_answer, out, &out->call) != HTH_OK)
        roll->again_us = hth_now_us(roll->env) + AGAIN_US;
}

/* ---- READY, as a caller ------------------------------------------------------------------- */

/* Whether the GO of this ballot has gone out to that member; then it is sent again. */
static bool was_sent(const struct hth_roll_call *roll, const struct hth_peer_id *id,
                     const struct hth_ready *ready)
{
    const struct hth_ballot *sent = &roll->sent_ballot;
    if (sent->base != ready->ballot.base || sent->step != ready->ballot.step ||
        sent->n != ready->ballot.n || hth_chain_find(roll->chain, &roll->sent.head) != ready->head)
        return false;
    for (uint32_t i = 0; i < roll->sent.count; i++)
        if (hth_peer_id_eq(&roll->sent.peer[i].id, id))
            return true;
    return false;
}

/* Whether a head is a candidate of the ballot's choice. */
static bool is_of(const struct hth_roll_call *roll, uint32_t head, const struct hth_ballot *ballot)
{
    struct hth_ballot of = hth_choice_of(roll->chain, head, 0);
    return of.base == ballot->base && of.step == ballot->step;
}

/* The READY in numbers of the chain. E_NOT_FOUND: a head is not known here. */
static enum hth_err find_heads(const struct hth_roll_call *roll, const struct hth_ready_msg *msg,
                               struct hth_ready *out)
{
    static const struct hth_hash none;
    bool accepts = memcmp(&msg->accepted, &none, sizeof(none)) != 0;
    *out = (struct hth_ready){.head = hth_chain_find(roll->chain, &msg->head),
                              .accepted = HTH_LINK_NONE,
                              .accepted_n = msg->accepted_n,
                              .batch = msg->batch,
                              .samples = msg->brings.samples,
                              .leaves = msg->leaves};
    HTH_TRY(roll_from_wire(roll, &msg->ballot, &out->ballot));
    if (accepts)
        out->accepted = hth_chain_find(roll->chain, &msg->accepted);
    if (out->head == HTH_LINK_NONE || (accepts && out->accepted == HTH_LINK_NONE))
        return HTH_E_NOT_FOUND;
    bool good = is_of(roll, out->head, &out->ballot) &&
                (!accepts ||
                 (is_of(roll, out->accepted, &out->ballot) && out->accepted_n <= out->ballot.n));
    return good ? HTH_OK : HTH_E_MALFORMED;
}

static void hold(struct hth_roll_call *roll, uint16_t member, struct hth_rpc_request *req)
{
    struct mate *mate = &roll->mate[member];
    roll_release_wait(roll, member); /* its older one */
    mate->held = req;
    mate->held_until_us = hth_now_us(roll->env) + roll->opts.hold_us;
}

/* Whether it is the first of this member in its ballot. */
static bool is_first(const struct hth_choice *c, uint16_t from, const struct hth_ready *ready)
{
    const struct hth_ballot *a = &c->ballot, *b = &ready->ballot;
    for (uint32_t i = 0; i < c->seats; i++)
        if (c->seat[i].member == from)
            return a->base != b->base || a->step != b->step || a->n != b->n;
    return true;
}

/* Whether it has promised a later ballot: it sends no GO in this one. */
static bool has_promised(const struct hth_choice *c, const struct hth_ballot *ballot)
{
    struct hth_ballot now = hth_choice_now(c);
    return now.base == ballot->base && now.step == ballot->step && now.n > ballot->n;
}

/* Whether this ballot's caller was another process of this peer. */
static bool is_older_life(const struct hth_roll_call *roll, const struct hth_ballot *ballot)
{
    uint16_t caller = hth_choice_caller(roll->chain, ballot);
    return caller != HTH_MEMBER_NONE && caller != roll_me(roll) &&
           hth_peer_id_eq(hth_chain_id(roll->chain, caller), &roll->env->self);
}

static void take_ready(struct hth_roll_call *roll, struct hth_rpc_request *req, uint16_t from,
                       const struct hth_ready *ready, const struct hth_ready_msg *msg)
{
    struct hth_ready_reply reply = {.kind = HTH_READY_LATER};
    struct hth_choice *c = roll->choice;
    if (was_sent(roll, hth_rpc_peer(req), ready)) {
        roll_answer(req, &roll->sent);
        return;
    }
    bool first = is_first(c, from, ready);
    roll->mate[from].told = msg->quota;
    if (first)
        roll->mate[from].quota = msg->quota;
    roll->mate[from].rtt_us =
        HTH_MIN(HTH_MAX(msg->rtt_us, roll_rtt_us(roll, from)), roll->opts.silence_us);
    roll_brings(roll, from, &msg->brings, first);
    switch (hth_choice_hear_ready(c, from, ready)) {
    case HTH_CHOICE_TAKEN:
    case HTH_CHOICE_CALLS:
        if (has_promised(c, &ready->ballot)) {
            reply.n = c->promised;
            roll_answer(req, &reply);
        } else {
            hold(roll, from, req);
        }
        break;
    case HTH_CHOICE_LATER:
        reply.n = c->ballot.n;
        roll_answer(req, &reply);
        break;
    case HTH_CHOICE_BEHIND:
        if (roll_comes_soon(roll, ready->head))
            roll->mate[from].coming_us = hth_now_us(roll->env);
        reply.kind = HTH_READY_BEHIND;
        reply.head = roll_head(roll, c->tip);
        roll_answer(req, &reply);
        break;
    case HTH_CHOICE_FAR:
        hth_rpc_refuse(req, HTH_E_RANGE, AGAIN_US, "nobody has come to this ballot");
        break;
    case HTH_CHOICE_NOT_ME:
        hth_rpc_refuse(req, is_older_life(roll, &ready->ballot) ? HTH_E_STALE : HTH_E_NOT_FOUND, 0,
                       "another member calls this ballot");
        break;
    }
    if (c->phase != HTH_CHOICE_ROUND && c->tip != HTH_LINK_NONE &&
        hth_chain_better(roll->chain, ready->head, c->tip)) {
        struct hth_roll_peer holder = roll_peer(roll, from);
        struct hth_hash head = roll_head(roll, ready->head);
        roll_want(roll, &head, &holder, 1);
    }
}

/* A frozen member calls no ballot, and still tells those that lack its head. */
static void answer_frozen(struct hth_roll_call *roll, struct hth_rpc_request *req, uint32_t head)
{
    uint32_t tip = roll->choice->tip;
    const struct hth_ready_reply behind = {.kind = HTH_READY_BEHIND, .head = roll_head(roll, tip)};
    if (head != HTH_LINK_NONE && tip != HTH_LINK_NONE && hth_chain_better(roll->chain, tip, head))
        roll_answer(req, &behind);
    else
        hth_rpc_refuse(req, HTH_E_DRAINING, 0, "this member ends");
}

/* Any number of keys may be READY: a pump looks at all members. */
static void pump_soon(struct hth_roll_call *roll)
{
    int64_t at = hth_now_us(roll->env) + SOON_US;
    if (roll->pump_us <= at)
        return;
    roll->pump_us = at;
    hth_timer_set(roll->env, roll->timer, SOON_US);
}

static void on_ready(void *arg, struct hth_rpc_request *req)
{
    struct hth_roll_call *roll = arg;
    struct hth_ready_msg msg;
    struct hth_ready ready;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    enum hth_err err = hth_ready_read(bytes, len, &msg);
    uint16_t from = HTH_MEMBER_NONE;
    if (err == HTH_OK && msg.helps) {
        roll_take_helper(roll, req, &msg);
        roll_pump(roll);
        return;
    }
    if (err == HTH_OK)
        err = roll_number(roll, hth_rpc_peer(req), msg.life, &from);
    if (err != HTH_OK) {
        if (from == HTH_MEMBER_NONE && err != HTH_E_TOO_LARGE)
            roll_blame(roll, hth_rpc_peer(req), err, "a bad READY");
        hth_rpc_refuse(req, err, 0, "READY");
        return;
    }
    if (roll->mate[from].doubted_until_us > hth_now_us(roll->env)) {
        hth_rpc_refuse(req, HTH_E_BUSY, AGAIN_US, "a state or values of this peer were of no use");
        return;
    }
    roll_set_heard(roll, from, true);
    roll->mate[from].addr = msg.addr;
    roll->mate[from].up_kbit = msg.up_kbit;
    roll->mate[from].speaks = msg.last;
    err = find_heads(roll, &msg, &ready);
    if (err == HTH_OK)
        err = roll_check_sig(roll, from, ready.head, &msg);
    struct hth_roll_peer holder = roll_peer(roll, from);
    if (roll->choice->tip == HTH_LINK_NONE) { /* a newcomer: the member that is meant is gone */
        hth_rpc_refuse(req, HTH_E_STALE, 0, "this member holds no head");
        roll_want(roll, &msg.head, &holder, 1);
    } else if (roll->frozen) {
        answer_frozen(roll, req, err == HTH_OK ? ready.head : HTH_LINK_NONE);
    } else if (err == HTH_OK) {
        take_ready(roll, req, from, &ready, &msg);
    } else {
        bool unknown = err == HTH_E_NOT_FOUND;
        hth_rpc_refuse(req, unknown ? HTH_E_AGAIN : err, AGAIN_US,
                       unknown ? "this head is not known here yet" : "READY");
        if (unknown)
            roll_want(roll, &msg.head, &holder, 1);
        else
            roll_blame(roll, &holder.id, err, "a bad READY");
    }
    if (hth_chain_members(roll->chain) <= HTH_ROLL_MEMBERS_MAX ||
        roll->choice->tip == HTH_LINK_NONE || hth_choice_is_due(roll->choice, from))
        roll_pump(roll);
    else
        pump_soon(roll);
}

/* Tells those in the table that hold another head than the one picked to fetch that one. */
static void send_moves(struct hth_roll_call *roll)
{
    struct hth_ready_reply move;
    struct hth_choice *c = roll->choice;
    uint32_t pick = hth_choice_pick(c, roll_waited(roll));
    if (pick == HTH_LINK_NONE || c->gone_out)
        return;
    move = (struct hth_ready_reply){.kind = HTH_READY_MOVE, .head = roll_head(roll, pick)};
    for (uint32_t i = 0; i < c->seats && move.count < HTH_ROLL_LINE_MAX; i++)
        if (c->seat[i].head == pick)
            move.peer[move.count++] = roll_peer(roll, c->seat[i].member);
    if (move.count == 0)
        return;
    for (uint32_t i = 0; i < c->seats; i++)
        if (c->seat[i].head != pick)
            roll_release(roll, c->seat[i].member, &move);
    if (c->tip != pick && c->phase == HTH_CHOICE_WAIT)
        roll_want(roll, &move.head, move.peer, move.count);
}

static void send_go(struct hth_roll_call *roll, enum hth_choice_move move)
{
    struct hth_choice *c = roll->choice;
    struct hth_roll *list = hth_calloc(c->capacity, sizeof(*list));
    struct hth_ready_reply *go = &roll->sent;
    roll->sent_ballot = c->ballot;
    roll_leave_out(roll);
    hth_choice_make(c, move, roll->hears, &roll->go);
    *go = (struct hth_ready_reply){.kind = HTH_READY_GO,
                                   .head = roll_head(roll, roll->go.head),
                                   .n = roll->go.n,
                                   .fork = roll->go.fork};
    go->count = hth_choice_list(c, roll->go.head, list);
    go->protocol = roll_next_protocol(roll, list, go->count);
    for (uint32_t i = 0; i < go->count; i++) {
        go->peer[i] = roll_peer(roll, list[i].member);
        go->peer[i].batch = list[i].batch;
        go->peer[i].samples = list[i].samples;
        go->peer[i].leaves = list[i].marks & HTH_ROLL_LEFT;
    }
    roll_plan_next(roll, go, list);
    roll_tell_rests(roll, go, list);
    roll_list_helpers(roll, go);
    roll_list_sigs(roll, go);
    roll_settle(roll);
    for (uint32_t i = 0; i < go->count; i++)
        roll_release(roll, list[i].member, go);
    roll_release_helpers(roll, go);
    hth_free(list);
    begin_round(roll, go);
}

/* ---- rounds ------------------------------------------------------------------------------- */

static void begin_round(struct hth_roll_call *roll, const struct hth_ready_reply *list)
{
    struct hth_roll_group group;
    roll_drop_ready(roll);
    roll->round_us = hth_now_us(roll->env);
    if (list != &roll->list)
        roll->list = *list;
    hth_line_group(roll->env->crypto, &roll->env->self, &roll->list, &group);
    for (uint32_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (roll->choice->gone_out)
            roll_release_wait(roll, (uint16_t)i); /* those that the list is without */
    group.step = hth_chain_at(roll->chain, roll->go.head)->step + 1;
    roll->ops.average(roll->arg, &group);
}

/* Members in the roll of a new tip live, whom nothing else may tell: a caller that was lost is
 * asked no more. Nor does it hold a head of its own any more, for which it was doubted. */
static void hear_roll(struct hth_roll_call *roll, uint32_t link, int64_t at_us)
{
    const struct hth_chain_link *tip = hth_chain_at(roll->chain, link);
    for (uint32_t i = 0; i < tip->count; i++) {
        struct mate *mate = &roll->mate[tip->roll[i].member];
        if (!(tip->roll[i].marks & HTH_ROLL_IN))
            continue;
        mate->known = true;
        if (!mate->lost || mate->lost_us >= at_us)
            continue;
        mate->doubted_until_us = 0;
        roll_set_heard(roll, tip->roll[i].member, true);
    }
}

/* It is READY in this member's table, with a head of the choice that the tip is in. */
static bool is_candidate(const struct hth_roll_call *roll, uint16_t member)
{
    const struct hth_choice *c = roll->choice;
    struct hth_ballot now = hth_choice_now(c);
    for (uint32_t i = 0; i < c->seats; i++)
        if (c->seat[i].member == member)
            return c->ballot.base == now.base && c->ballot.step == now.step;
    return false;
}

/* Another tip, of a round (this member's entry in its list), or fetched. */
static void take_tip(struct hth_roll_call *roll, uint32_t link, const struct hth_roll_peer *entry)
{
    struct hth_ready_reply behind = {.kind = HTH_READY_BEHIND, .head = roll_head(roll, link)};
    roll->unspoken = 0;
    roll->made = entry != NULL ? link : HTH_LINK_NONE;
    roll->guests = entry == NULL || roll->guests < 2 ? 0 : roll->guests - 2;
    roll_drop_ready(roll);
    hear_roll(roll, link, entry != NULL ? roll->round_us : hth_now_us(roll->env));
    bool used = hth_choice_take(roll->choice, link);
    if (used) {
        struct hth_brings *brings = &roll->mate[roll_me(roll)].brings;
        *brings = (struct hth_brings){.grain = brings->grain, .each_us = brings->each_us};
        roll->choice->samples = 0;
    }
    roll_begin_quota(roll, entry != NULL, entry != NULL ? entry->next : 0);
    for (uint32_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (!is_candidate(roll, (uint16_t)i))
            roll_release(roll, (uint16_t)i, &behind);
    roll->ops.tip(roll->arg, link, used);
}

static const struct hth_roll_peer *own_entry(const struct hth_roll_call *roll)
{
    for (uint32_t i = 0; i < roll->list.count; i++)
        if (hth_peer_id_eq(&roll->list.peer[i].id, &roll->env->self))
            return &roll->list.peer[i];
    return NULL;
}

/* Makes the round's link; false: it does not count. */
static bool make_link(struct hth_roll_call *roll, const uint16_t *marks,
                      const struct hth_hash *mean, uint32_t *out)
{
    struct hth_roll roll_of[HTH_ROLL_MEMBERS_MAX];
    struct hth_chain_link link;
    for (uint32_t i = 0; i < roll->list.count; i++) {
        const struct hth_roll_peer *p = &roll->list.peer[i];
        roll_of[i] =
            (struct hth_roll){.marks = (uint16_t)(marks[i] | (p->leaves ? HTH_ROLL_LEFT : 0) |
                                                  (p->addr.family == 0 ? HTH_ROLL_CLIENT : 0)),
                              .batch = p->batch,
                              .samples = p->samples};
        if (roll_number(roll, &p->id, p->life, &roll_of[i].member) != HTH_OK)
            return false;
        roll->mate[roll_of[i].member].addr = p->addr;
    }
    if (!hth_choice_link(roll->chain, &roll->go, roll_of, roll->list.count, &link))
        return false;
    link.mean = *mean;
    link.protocol = roll->list.protocol;
    return hth_chain_add(roll->chain, &link, out) == HTH_OK;
}

static void fail_round(struct hth_roll_call *roll, bool refuses)
{
    roll->failed_on = roll->choice->tip;
    roll->failed_us = hth_now_us(roll->env);
    roll_note_failed(roll);
    if (refuses)
        hth_choice_refuse(roll->choice);
    else
        hth_choice_fail(roll->choice);
}

void hth_roll_averaged(struct hth_roll_call *roll, enum hth_err err, const uint16_t *marks,
                       const struct hth_hash *mean)
{
    uint32_t link;
    HTH_ASSERT(roll->choice->phase == HTH_CHOICE_ROUND);
    const struct hth_roll_peer *own = own_entry(roll);
    if (own != NULL && !own->rests) /* else it may be to blame itself */
        roll_settle_round(roll, err == HTH_OK ? marks : NULL);
    if (err == HTH_OK && make_link(roll, marks, mean, &link))
        take_tip(roll, link, own);
    else
        fail_round(roll, err == HTH_E_NORM);
    roll->alone_us = hth_now_us(roll->env);
    roll_meet(roll);
    roll_pump(roll);
}

void hth_roll_fetched(struct hth_roll_call *roll, uint32_t held)
{
    HTH_ASSERT(roll->fetching && roll->choice->phase != HTH_CHOICE_ROUND);
    struct hth_ballot before = hth_choice_now(roll->choice);
    roll->fetching = false;
    if (held != HTH_LINK_NONE && held != roll->choice->tip)
        take_tip(roll, held, NULL);
    struct hth_ballot now = hth_choice_now(roll->choice);
    if (now.base != before.base || now.step != before.step) /* else its caller moved it */
        roll->alone_us = hth_now_us(roll->env);
    roll_pump(roll);
}

/* ---- the next thing to do
 * ------------------------------------------------------------------------- */

/* Without a reason that it knows: its caller may hear nobody. */
static bool waits_in_vain(const struct hth_roll_call *roll)
{
    int64_t idle_us = hth_now_us(roll->env) - roll->idle_us;
    return idle_us >= 2 * roll->opts.window_us + roll->mate[roll_me(roll)].each_us;
}

/* Of two the other is gone, or this one is: no third one can tell. */
static int64_t fork_us(const struct hth_roll_call *roll)
{
    struct hth_ballot now = hth_choice_now(roll->choice);
    bool two = hth_chain_voters(roll->chain, now.base).count <= 2;
    return two ? HTH_MIN(roll->opts.fork_us, roll->opts.window_us) : roll->opts.fork_us;
}

enum hth_choice_time roll_waited(const struct hth_roll_call *roll)
{
    int64_t now = hth_now_us(roll->env);
    if (roll->choice->tip == HTH_LINK_NONE)
        return HTH_CHOICE_NOW;
    bool here = now - roll->since_us >= roll->opts.hold_us + roll->opts.silence_us;
    if (here && now - roll->alone_us >= fork_us(roll))
        return HTH_CHOICE_ALONE;
    return waits_in_vain(roll) ? HTH_CHOICE_SILENT : HTH_CHOICE_NOW;
}

/* Makes the first move that is open; false: there is none. */
static bool move_on(struct hth_roll_call *roll)
{
    struct hth_choice *c = roll->choice;
    unsigned open = hth_choice_open(c, roll->hears, roll_waited(roll));
    if (roll->fetching || !roll_is_full(roll))
        open &= ~(unsigned)(HTH_CHOICE_GO | HTH_CHOICE_FORK);
    if (!waits_in_vain(roll))
        open &= ~(unsigned)HTH_CHOICE_CALL;
    static const enum hth_choice_move order[] = {HTH_CHOICE_PASS,  HTH_CHOICE_OVER,
                                                 HTH_CHOICE_GO,    HTH_CHOICE_FORK,
                                                 HTH_CHOICE_YIELD, HTH_CHOICE_CALL};
    for (size_t i = 0; i < HTH_ARRAY_LEN(order); i++) {
        if (!(open & order[i]))
            continue;
        if (order[i] == HTH_CHOICE_GO || order[i] == HTH_CHOICE_FORK) {
            send_go(roll, order[i]);
        } else {
            roll_drop_ready(roll);
            if (order[i] == HTH_CHOICE_YIELD)
                roll->read = HTH_LINK_NONE; /* its link may have come, and is asked for again */
            hth_choice_make(c, order[i], roll->hears, NULL);
        }
        return true;
    }
    return false;
}

/* A caller with nothing to bring can't enter the round: it leaves it to the next one that can. */
static bool resign(struct hth_roll_call *roll)
{
    struct hth_choice *c = roll->choice;
    struct hth_ballot next = hth_choice_now(c);
    if (c->phase != HTH_CHOICE_WAIT || !roll_is_idle(roll))
        return false;
    uint32_t left = hth_chain_voters(roll->chain, next.base).callers;
    do
        next.n++;
    while (--left > 0 && !roll_has_samples(roll, hth_choice_caller(roll->chain, &next)));
    if (left == 0)
        return false;
    const struct hth_ready_reply later = {.kind = HTH_READY_LATER, .n = next.n};
    while (c->promised < next.n)
        hth_choice_fail(c);
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        roll_release(roll, i, &later);
    return true;
}

static void answer_held(struct hth_roll_call *roll)
{
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (roll->mate[i].held != NULL && roll->mate[i].held_until_us <= hth_now_us(roll->env))
            roll_release_wait(roll, i);
}

/* A member that is due says so again and again, also while it computes: without a word for so long,
 * and without a READY that is held here, it is lost. */
static void lose_silent(struct hth_roll_call *roll)
{
    struct hth_choice *c = roll->choice;
    struct hth_ballot now = hth_choice_now(c);
    if (c->phase != HTH_CHOICE_WAIT || hth_choice_caller(roll->chain, &now) != roll_me(roll))
        return;
    int64_t limit = hth_now_us(roll->env) - patience_us(roll);
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++) {
        const struct mate *mate = &roll->mate[i];
        if (i != roll_me(roll) && !mate->lost && mate->held == NULL &&
            HTH_MAX(mate->heard_us, roll->since_us) <= limit)
            roll_set_heard(roll, i, false);
    }
}

/* When this member is READY again because the owner said more. */
static int64_t more_at(const struct hth_roll_call *roll)
{
    struct hth_ballot now = hth_choice_now(roll->choice);
    bool calls = hth_choice_caller(roll->chain, &now) == roll_me(roll);
    return calls || roll_is_done(roll) ? roll->ready_us : roll->ready_us + SAY_US;
}

static bool may_say_more(struct hth_roll_call *roll)
{
    return roll->choice->phase == HTH_CHOICE_WAIT && free_ready(roll) != NULL;
}

static void set_timer(struct hth_roll_call *roll)
{
    int64_t now = hth_now_us(roll->env), at = now + roll->opts.hold_us;
    if (may_say_more(roll)) { /* else an answer or the end of a round comes first */
        if (roll->again_us != 0)
            at = HTH_MIN(at, roll->again_us);
        if (roll->more)
            at = HTH_MIN(at, more_at(roll));
    }
    if (roll->strangers_since_us != 0 && roll_strangers_until_us(roll) > now)
        at = HTH_MIN(at, roll_strangers_until_us(roll));
    if (roll->links == NULL && roll_ask_at(roll) > now)
        at = HTH_MIN(at, roll_ask_at(roll));
    if (roll->missing)
        at = HTH_MIN(at, now + SAY_US);
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (roll->mate[i].held != NULL)
            at = HTH_MIN(at, roll->mate[i].held_until_us);
    at = HTH_MIN(at, roll_helpers_at(roll));
    roll->pump_us = HTH_MAX(at, now);
    hth_timer_set(roll->env, roll->timer, roll->pump_us - now);
}

/* Whether it has to be READY again: with more samples, or because an answer said so. */
static bool says_more(struct hth_roll_call *roll)
{
    int64_t now = hth_now_us(roll->env);
    bool again = roll->again_us != 0 && roll->again_us <= now;
    return may_say_more(roll) && (again || (roll->more && more_at(roll) <= now));
}

/* In another ballot than before, what was said in that one is no more worth an answer. */
static void note_ballot(struct hth_roll_call *roll)
{
    struct hth_ballot now = hth_choice_now(roll->choice), *was = &roll->ready_in;
    bool same = now.base == was->base && now.step == was->step;
    if (same && now.n == was->n)
        return;
    uint16_t caller = same ? hth_choice_caller(roll->chain, was) : HTH_MEMBER_NONE;
    if (caller != HTH_MEMBER_NONE)
        roll->mate[caller].vain = was->step + 1;
    *was = now;
    roll_drop_ready(roll);
    roll->strangers_since_us = 0;
    roll->since_us = roll->idle_us = hth_now_us(roll->env);
}

/* Notes whether it hears a quorum, and whether it knows why no GO comes: it gathers, or others do
 * for which it is the caller. */
static void note_reasons(struct hth_roll_call *roll, bool calls)
{
    struct hth_choice *c = roll->choice;
    int64_t now = hth_now_us(roll->env);
    if (c->tip == HTH_LINK_NONE)
        return;
    bool quorum = calls && hth_choice_pick(c, HTH_CHOICE_NOW) != HTH_LINK_NONE;
    if (quorum)
        roll->alone_us = now; /* members are told so by WAIT */
    if (!roll_is_done(roll) || quorum)
        roll->idle_us = now;
}

/* All that this member does by itself. */
void roll_pump(struct hth_roll_call *roll)
{
    struct hth_choice *c = roll->choice;
    if (roll->pumping || roll->frozen)
        return;
    roll->pumping = true;
    lose_silent(roll);
    roll_seek(roll);
    for (bool more = true; more;) {
        more = false;
        if (says_more(roll))
            hth_choice_again(c);
        if (c->phase == HTH_CHOICE_READY) {
            note_ballot(roll);
            send_ready(roll);
            more = c->phase == HTH_CHOICE_READY;
        }
        send_moves(roll);
        note_reasons(roll, roll_plan(roll));
        if (c->phase == HTH_CHOICE_WAIT && (move_on(roll) || resign(roll)))
            more = true;
    }
    answer_held(roll);
    roll_answer_helpers(roll);
    roll_ask(roll);
    set_timer(roll);
    roll->pumping = false;
}

static void on_timer(void *arg)
{
    roll_pump(arg);
}

/* ---- the owner's side
 * ------------------------------------------------------------------------------ */

enum hth_err hth_roll_new(struct hth_env *env, struct hth_rpc *rpc, struct hth_chain *chain,
                          const struct hth_roll_opts *opts, const struct hth_roll_ops *ops,
                          void *arg, struct hth_roll_call **out)
{
    uint16_t self;
    *out = NULL;
    if (opts->hold_us <= 0 || opts->silence_us <= 0 || opts->window_us <= 0 ||
        opts->fork_us < opts->window_us || opts->first_protocol == 0 ||
        opts->first_protocol > opts->last_protocol)
        return HTH_E_CONFIG;
    HTH_TRY(hth_chain_member(chain, &env->self, opts->life, &self));
    struct hth_roll_call *roll = hth_new(struct hth_roll_call);
    roll->env = env;
    roll->rpc = rpc;
    roll->chain = chain;
    roll->opts = *opts;
    roll->ops = *ops;
    roll->arg = arg;
    roll->mates_max = hth_chain_opts(chain)->members_max;
    roll->mate = hth_new_array(struct mate, roll->mates_max);
    roll->hears = hth_new_array(uint64_t, (roll->mates_max + 63) / 64);
    roll->here = hth_new_array(uint64_t, (roll->mates_max + 63) / 64);
    roll->due = hth_new_array(uint64_t, (roll->mates_max + 63) / 64);
    hth_chain_keep(chain, self);
    roll->choice = hth_calloc(1, hth_choice_size(HTH_ROLL_MEMBERS_MAX));
    roll->mate[self].brings.grain = 1; /* until the owner says more */
    roll->read = roll->failed_on = roll->made = roll->signs = HTH_LINK_NONE;
    roll->sent_ballot.base = roll->ready_in.base = HTH_LINK_NONE;
    hth_choice_init(roll->choice, chain, self, HTH_ROLL_MEMBERS_MAX);
    roll->timer = hth_timer_new(env, on_timer, roll);
    roll_meet(roll);
    hth_rpc_serve(rpc, HTH_ROLL_METHOD_READY, on_ready, roll);
    hth_rpc_serve(rpc, HTH_ROLL_METHOD_CALL, roll_on_call, roll);
    hth_rpc_serve(rpc, HTH_ROLL_METHOD_LINKS, roll_on_links, roll);
    *out = roll;
    return HTH_OK;
}

void hth_roll_free(struct hth_roll_call *roll)
{
    if (roll == NULL)
        return;
    for (uint16_t m = HTH_ROLL_METHOD_READY; m <= HTH_ROLL_METHOD_LINKS; m++)
        hth_rpc_serve(roll->rpc, m, NULL, NULL);
    for (uint32_t i = 0; i < roll->mates_max; i++)
        if (roll->mate[i].held != NULL)
            hth_rpc_refuse(roll->mate[i].held, HTH_E_DRAINING, 0, "this member ends");
    for (uint32_t i = 0; i < roll->mates_max; i++)
        if (roll->mate[i].sought != NULL)
            hth_rpc_cancel(roll->mate[i].sought);
    roll_lose_helper(roll, NULL);
    roll_drop_ready(roll);
    if (roll->links != NULL)
        hth_rpc_cancel(roll->links);
    hth_timer_free(roll->env, roll->timer);
    hth_free(roll->choice);
    hth_free(roll->sent_sigs);
    hth_free(roll->hears);
    hth_free(roll->here);
    hth_free(roll->due);
    hth_free(roll->mate);
    hth_free(roll);
}
