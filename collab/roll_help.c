/* SPDX-License-Identifier: Apache-2.0 */
/* roll_help.c: who reduces in a caller's lists: helpers (helper.h), and the members that may. */
#include "collab/roll_int.h"

#define REST_US      (5 * 60 * HTH_US_PER_S) /* of a member that was no good reducer */
#define HELPLESS_ONE 20 /* a round that failed costs helpers so many times as long */
#define BUSY_US      HTH_US_PER_S

static uint16_t caller_of(const struct hth_roll_call *roll)
{
    struct hth_ballot now = hth_choice_now(roll->choice);
    bool none = roll->frozen || roll->choice->tip == HTH_LINK_NONE;
    return none ? HTH_MEMBER_NONE : hth_choice_caller(roll->chain, &now);
}

static void remove_at(struct hth_roll_call *roll, uint32_t i)
{
    roll->helper[i] = roll->helper[--roll->helpers];
}

static void answer_wait(struct held_helper *h)
{
    const struct hth_ready_reply wait = {.kind = HTH_READY_WAIT};
    roll_answer(h->req, &wait);
}

void roll_take_helper(struct hth_roll_call *roll, struct hth_rpc_request *req,
                      const struct hth_ready_msg *msg)
{
    const struct hth_peer_id *id = hth_rpc_peer(req);
    uint32_t i = 0;
    while (i < roll->helpers && !hth_peer_id_eq(&roll->helper[i].peer.id, id))
        i++;
    if (msg->addr.family == 0) {
        hth_rpc_refuse(req, HTH_E_MALFORMED, 0, "a helper has to be dialled");
        return;
    }
    if (caller_of(roll) == HTH_MEMBER_NONE || i == HTH_ROLL_HELPERS_MAX) {
        hth_rpc_refuse(req, HTH_E_BUSY, BUSY_US, "no more helpers here");
        return;
    }
    if (i < roll->helpers)
        answer_wait(&roll->helper[i]); /* its older one */
    roll->helpers = HTH_MAX(roll->helpers, i + 1);
    roll->helper[i] =
        (struct held_helper){.req = req,
                             .peer = {.id = *id, .up_kbit = msg->up_kbit, .addr = msg->addr},
                             .until_us = hth_now_us(roll->env) + roll->opts.hold_us};
}

/* "Still here"; or who calls, if that is another one. */
void roll_answer_helpers(struct hth_roll_call *roll)
{
    uint16_t caller = caller_of(roll);
    bool moves = caller != HTH_MEMBER_NONE && caller != roll_me(roll) &&
                 roll_peer(roll, caller).addr.family != 0;
    for (uint32_t i = 0; i < roll->helpers;) {
        struct held_helper *h = &roll->helper[i];
        if (!moves && h->until_us > hth_now_us(roll->env)) {
            i++;
            continue;
        }
        if (moves) {
            static struct hth_ready_reply move;
            move = (struct hth_ready_reply){.kind = HTH_READY_MOVE, .count = 1};
            move.head = roll_head(roll, roll->choice->tip);
            move.peer[0] = roll_peer(roll, caller);
            roll_answer(h->req, &move);
        } else {
            answer_wait(h);
        }
        remove_at(roll, i);
    }
}

int64_t roll_helpers_at(const struct hth_roll_call *roll)
{
    int64_t at = INT64_MAX;
    for (uint32_t i = 0; i < roll->helpers; i++)
        at = HTH_MIN(at, roll->helper[i].until_us);
    return at;
}

void roll_lose_helper(struct hth_roll_call *roll, const struct hth_peer_id *peer)
{
    for (uint32_t i = 0; i < roll->helpers; i++) {
        if (peer != NULL && !hth_peer_id_eq(&roll->helper[i].peer.id, peer))
            continue;
        hth_rpc_refuse(roll->helper[i].req, HTH_E_DRAINING, 0, "this member ends");
        remove_at(roll, i--);
    }
}

void roll_list_helpers(const struct hth_roll_call *roll, struct hth_ready_reply *go)
{
    if (go->count == 1 || hth_now_us(roll->env) < roll->helpless_until_us)
        return; /* a member alone has nothing to reduce */
    for (uint32_t i = 0; i < roll->helpers; i++)
        if (!hth_roll_is_among(go->peer, go->count, &roll->helper[i].peer.id))
            go->helper[go->helpers++] = roll->helper[i].peer;
}

void roll_release_helpers(struct hth_roll_call *roll, const struct hth_ready_reply *go)
{
    const struct hth_ready_reply wait = {.kind = HTH_READY_WAIT};
    for (uint32_t i = 0; i < roll->helpers; i++)
        roll_answer(roll->helper[i].req, go->helpers > 0 ? go : &wait);
    roll->helpers = 0;
}

/* Words are not deeds: a member with fewer than half as many deeds as another reduces nothing, and
 * for a while one whose parts failed. The caller does: somebody has to. */
void roll_tell_rests(const struct hth_roll_call *roll, struct hth_ready_reply *go,
                     const struct hth_roll *list)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < go->count; i++)
        most = HTH_MAX(most, roll->mate[list[i].member].deeds);
    for (uint32_t i = 0; i < go->count; i++) {
        const struct mate *mate = &roll->mate[list[i].member];
        go->peer[i].rests =
            list[i].member != roll_me(roll) &&
            (2 * mate->deeds < most || hth_now_us(roll->env) < mate->rests_until_us);
    }
}

void roll_note_failed(struct hth_roll_call *roll)
{
    int64_t now = hth_now_us(roll->env);
    if (roll->list.helpers > 0)
        roll->helpless_until_us = now + HELPLESS_ONE * (now - roll->round_us);
}

void hth_roll_slow(struct hth_roll_call *roll, const struct hth_peer_id *peer)
{
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (hth_peer_id_eq(hth_chain_id(roll->chain, i), peer))
            roll->mate[i].rests_until_us = hth_now_us(roll->env) + REST_US;
}
