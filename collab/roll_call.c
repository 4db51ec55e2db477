/* SPDX-License-Identifier: Apache-2.0 */
/*
 * roll_call.c: ballots between members: their bytes, CALL, how far a peer may raise them, and the
 * protocol of the next link.
 */
#include "collab/roll_int.h"

struct hth_rpc_target roll_target(const struct hth_roll_call *roll, uint16_t member)
{
    return (struct hth_rpc_target){*hth_chain_id(roll->chain, member), roll->mate[member].addr};
}

struct hth_roll_ballot roll_to_wire(const struct hth_roll_call *roll, struct hth_ballot ballot)
{
    return (struct hth_roll_ballot){ballot.step, roll_head(roll, ballot.base), ballot.n};
}

enum hth_err roll_from_wire(const struct hth_roll_call *roll, const struct hth_roll_ballot *ballot,
                            struct hth_ballot *out)
{
    *out = (struct hth_ballot){ballot->step, hth_chain_find(roll->chain, &ballot->base), ballot->n};
    if (out->base == HTH_LINK_NONE)
        return HTH_E_NOT_FOUND;
    uint64_t step = hth_chain_at(roll->chain, out->base)->step;
    return out->step == step || out->step == step + 1 ? HTH_OK : HTH_E_MALFORMED;
}

/* ---- peers that break the rules ------------------------------------------------------------ */

void roll_blame(struct hth_roll_call *roll, const struct hth_peer_id *peer, enum hth_err err,
                const char *what)
{
    char name[HTH_PEER_SHORT_LEN];
    HTH_LOG(roll->env, HTH_WARN, HTH_SUB_AVG, "%s sent %s: %s; it is left aside",
            hth_peer_id_short(peer, name), what, hth_err_name(err));
}

void roll_give_up(struct hth_roll_call *roll, uint16_t caller, enum hth_err err, const char *what)
{
    roll_blame(roll, hth_chain_id(roll->chain, caller), err, what);
    roll_set_heard(roll, caller, false);
}

bool roll_may_raise(struct hth_roll_call *roll, uint16_t by)
{
    int64_t now = hth_now_us(roll->env);
    if (roll->mate[by].raised_us != 0 && now - roll->mate[by].raised_us < RAISE_US)
        return false;
    roll->mate[by].raised_us = now;
    return true;
}

/* ---- CALL --------------------------------------------------------------------------------- */

static void on_call_answer(void *arg, const struct hth_rpc_result *result)
{
    (void)arg;
    (void)result; /* members that heard it are READY next */
}

void roll_send_calls(struct hth_roll_call *roll)
{
    struct hth_roll_ballot ballot = roll_to_wire(roll, hth_choice_now(roll->choice));
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    struct hth_rpc_call_opts opts = {.method = HTH_ROLL_METHOD_CALL,
                                     .timeout_us = roll->opts.silence_us};
    if (!hth_choice_may_call(roll->choice, roll->hears))
        return;
    opts.body.payload = bytes;
    opts.body.payload_len = hth_call_write(&ballot, bytes);
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++) {
        struct hth_rpc_target target = roll_target(roll, i);
        if (i != roll_me(roll) && hth_choice_is_due(roll->choice, i) &&
            hth_rpc_call(roll->rpc, &target, &opts, on_call_answer, NULL, NULL) != HTH_OK)
            return; /* too many calls are out: those due are READY by themselves, later */
    }
}

/* A member that averages still is waited for. One that cannot be reached is lost; of the death of
 * one without a connection nobody else would tell. The others are READY, or fall silent. */
static void on_sought(void *arg, const struct hth_rpc_result *result)
{
    struct mate *mate = arg;
    struct hth_roll_call *roll = mate->roll;
    bool averages = result->err == HTH_OK && result->payload_len == 1 && result->payload[0] == 1;
    bool gone = result->err != HTH_OK && !result->remote && result->err != HTH_E_TIMEOUT;
    mate->sought = NULL;
    if (averages || gone)
        roll_set_heard(roll, (uint16_t)(mate - roll->mate), averages);
    roll_pump(roll);
}

/* It was dialled in vain, and waits until it is dialled again. */
static bool is_gone(const struct hth_roll_call *roll, uint16_t member)
{
    struct hth_rpc_peer_info info;
    return hth_rpc_peer_info(roll->rpc, hth_chain_id(roll->chain, member), &info) == HTH_OK &&
           !info.connected && info.retry_in_us > 0;
}

/* The caller misses members that are due: with a CALL of its ballot they say whether they average
 * still, as lines of a grid end one after the other. At a genesis members dial each other first. */
void roll_seek(struct hth_roll_call *roll)
{
    int64_t now = hth_now_us(roll->env);
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    struct hth_rpc_call_opts opts = {.method = HTH_ROLL_METHOD_CALL,
                                     .timeout_us = roll->opts.window_us};
    if (!roll->missing || now - roll->since_us < SAY_US ||
        hth_chain_at(roll->chain, roll->choice->tip)->kind == HTH_LINK_GENESIS)
        return;
    struct hth_roll_ballot ballot = roll_to_wire(roll, hth_choice_now(roll->choice));
    opts.body.payload = bytes;
    opts.body.payload_len = hth_call_write(&ballot, bytes);
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++) {
        struct mate *mate = &roll->mate[i];
        struct hth_rpc_target target = roll_target(roll, i);
        if (i == roll_me(roll) || mate->lost || mate->held != NULL || mate->sought != NULL ||
            now - mate->sought_us < SAY_US || mate->addr.family == 0 ||
            !hth_choice_is_due(roll->choice, i))
            continue;
        mate->sought_us = now;
        if (is_gone(roll, i))
            roll_set_heard(roll, i, false);
        else if (hth_rpc_call(roll->rpc, &target, &opts, on_sought, mate, &mate->sought) != HTH_OK)
            return; /* too many calls are out */
    }
}

void roll_on_call(void *arg, struct hth_rpc_request *req)
{
    struct hth_roll_call *roll = arg;
    struct hth_roll_ballot msg;
    struct hth_ballot ballot;
    size_t len;
    const uint8_t *bytes = hth_rpc_payload(req, &len);
    enum hth_err err = hth_call_read(bytes, len, &msg);
    if (err == HTH_OK)
        err = roll_from_wire(roll, &msg, &ballot);
    if (err != HTH_OK) {
        hth_rpc_refuse(req, err, 0, "CALL");
        return;
    }
    uint16_t caller = hth_choice_caller(roll->chain, &ballot);
    if (caller == HTH_MEMBER_NONE ||
        !hth_peer_id_eq(hth_chain_id(roll->chain, caller), hth_rpc_peer(req))) {
        hth_rpc_refuse(req, HTH_E_PROTOCOL, 0, "another member calls this ballot");
        return;
    }
    struct hth_ballot now = hth_choice_now(roll->choice);
    if (now.base == ballot.base && now.step == ballot.step && ballot.n > now.n &&
        ballot.n - now.n > HTH_CALL_JUMP) {
        roll_give_up(roll, caller, HTH_E_RANGE, "a CALL of a ballot far ahead");
        hth_rpc_refuse(req, HTH_E_RANGE, 0, "nobody has come to this ballot");
        return;
    }
    roll_set_heard(roll, caller, true);
    /* One that has called in vain comes after others: else two of that kind call for ever. */
    bool waits =
        roll->mate[caller].vain == ballot.step + 1 && roll_waited(roll) < HTH_CHOICE_SILENT;
    if (!roll->frozen && !waits && ballot.n > now.n && roll_may_raise(roll, caller) &&
        hth_choice_hear_call(roll->choice, &ballot))
        roll_drop_ready(roll);
    const uint8_t averages = roll->choice->phase == HTH_CHOICE_ROUND;
    const struct hth_rpc_body body = {.payload = &averages, .payload_len = 1};
    hth_rpc_reply(req, &body);
    roll_pump(roll);
}

/* ---- protocols ---------------------------------------------------------------------------- */

static bool may_speak(const struct hth_roll_call *roll, uint16_t member, uint32_t protocol)
{
    return member == roll_me(roll) ? roll->opts.last_protocol >= protocol
                                   : roll->mate[member].speaks >= protocol;
}

uint32_t roll_next_protocol(const struct hth_roll_call *roll, const struct hth_roll *list,
                            uint32_t count)
{
    uint32_t tip = roll->go.head, used = hth_chain_at(roll->chain, tip)->protocol;
    const uint32_t of[] = {hth_chain_base(roll->chain, tip), tip};
    bool all = true;
    for (uint32_t i = 0; i < count; i++)
        all &= may_speak(roll, list[i].member, used + 1);
    for (size_t k = 0; k < HTH_ARRAY_LEN(of); k++) {
        struct hth_voters voters = hth_chain_voters(roll->chain, of[k]);
        for (uint32_t i = 0; i < voters.count; i++)
            all &= may_speak(roll, voters.member[i], used + 1);
    }
    return used + all;
}
