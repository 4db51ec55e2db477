/* SPDX-License-Identifier: Apache-2.0 */
/* roll_vote.c: with which head and vote a member begins, and how it ends. */
#include "collab/roll_int.h"

static void begin_at_tip(struct hth_roll_call *roll)
{
    roll_meet(roll);
    roll_begin_quota(roll, false, 0);
    roll->alone_us = hth_now_us(roll->env);
    hth_timer_set(roll->env, roll->timer, 0);
}

void hth_roll_hold(struct hth_roll_call *roll, uint32_t link)
{
    hth_choice_take(roll->choice, link);
    roll->made = link;
    begin_at_tip(roll);
}

void hth_roll_resume(struct hth_roll_call *roll, const struct hth_vote *vote)
{
    hth_choice_resume(roll->choice, vote);
    begin_at_tip(roll);
}

void hth_roll_freeze(struct hth_roll_call *roll, uint32_t held)
{
    struct hth_choice *c = roll->choice;
    roll->frozen = true;
    roll_drop_ready(roll);
    if (roll->links != NULL)
        hth_rpc_cancel(roll->links);
    roll->links = NULL;
    for (uint32_t i = 0; i < hth_chain_members(roll->chain); i++) {
        if (roll->mate[i].held != NULL)
            hth_rpc_refuse(roll->mate[i].held, HTH_E_DRAINING, 0, "this member ends");
        roll->mate[i].held = NULL;
    }
    if (c->phase == HTH_CHOICE_ROUND)
        hth_choice_fail(c);
    if (roll->fetching && held != HTH_LINK_NONE && held != c->tip)
        hth_choice_take(c, held);
    roll->fetching = false;
}

bool roll_speaks(const struct hth_roll_call *roll, uint32_t link)
{
    uint32_t protocol = hth_chain_at(roll->chain, link)->protocol;
    return protocol >= roll->opts.first_protocol && protocol <= roll->opts.last_protocol;
}

uint32_t hth_roll_unspoken(const struct hth_roll_call *roll, int64_t *since_us)
{
    *since_us = roll->unspoken_us;
    return roll->unspoken;
}

void hth_roll_lose(struct hth_roll_call *roll)
{
    roll_drop_ready(roll);
    hth_choice_lose(roll->choice);
}

bool hth_roll_hears(const struct hth_roll_call *roll, uint32_t *heard, uint32_t *voters,
                    bool *calls)
{
    uint32_t tip = roll->choice->tip;
    *heard = *voters = 0;
    *calls = false;
    if (tip == HTH_LINK_NONE)
        return true;
    uint32_t base = hth_chain_base(roll->chain, tip);
    struct hth_voters of = hth_chain_voters(roll->chain, base);
    *voters = of.count;
    for (uint32_t i = 0; i < of.count; i++) {
        bool hears = hth_members_has(roll->hears, of.member[i]);
        *heard += hears;
        *calls |= hears && i < of.callers;
    }
    return *calls && hth_chain_quorum(roll->chain, base, hth_members_has, roll->hears);
}
