/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/roll_int.h"

uint16_t roll_me(const struct hth_roll_call *roll)
{
    return roll->choice->me;
}

bool roll_is_doubted(const struct hth_roll_call *roll, const struct hth_peer_id *peer)
{
    int64_t now = hth_now_us(roll->env);
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (roll->mate[i].doubted_until_us > now &&
            hth_peer_id_eq(hth_chain_id(roll->chain, i), peer))
            return true;
    return false;
}

void roll_set_heard(struct hth_roll_call *roll, uint16_t member, bool heard)
{
    uint64_t bit = UINT64_C(1) << (member % 64);
    heard = heard && hth_now_us(roll->env) >= roll->mate[member].doubted_until_us;
    if (!heard && !roll->mate[member].lost)
        roll->mate[member].lost_us = hth_now_us(roll->env);
    roll->mate[member].lost = !heard;
    if (heard) {
        roll->mate[member].heard_us = hth_now_us(roll->env);
        roll->hears[member / 64] |= bit;
    } else {
        roll->hears[member / 64] &= ~bit;
        hth_choice_drop(roll->choice, member);
    }
}

/* Adopts what is known of a peer from other processes of it: a new one reduces no better. */
static void take_over(struct hth_roll_call *roll, uint16_t member)
{
    const struct hth_peer_id *id = hth_chain_id(roll->chain, member);
    struct mate *mate = &roll->mate[member];
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++) {
        const struct mate *other = &roll->mate[i];
        if (i == member || !hth_peer_id_eq(hth_chain_id(roll->chain, i), id))
            continue;
        if (mate->addr.family == 0)
            mate->addr = other->addr;
        mate->rests_until_us = HTH_MAX(mate->rests_until_us, other->rests_until_us);
        mate->doubted_until_us = HTH_MAX(mate->doubted_until_us, other->doubted_until_us);
    }
}

static void forget(struct hth_roll_call *roll, uint16_t member)
{
    struct mate *mate = &roll->mate[member];
    if (mate->held != NULL)
        hth_rpc_refuse(mate->held, HTH_E_STALE, 0, "another process of this peer is here");
    mate->held = NULL;
    roll_set_heard(roll, member, false);
    if (mate->sought != NULL)
        hth_rpc_cancel(mate->sought);
    *mate = (struct mate){.roll = roll, .lost = true};
}

/* Members are heard until they are lost, so that they are waited for. */
void roll_meet(struct hth_roll_call *roll)
{
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++) {
        struct mate *mate = &roll->mate[i];
        uint32_t born = hth_chain_born(roll->chain, i);
        if (mate->born == born)
            continue;
        if (mate->born != 0)
            forget(roll, i);
        mate->born = born;
        mate->roll = roll;
        if (born == 0)
            continue;
        take_over(roll, i);
        mate->lost = mate->doubted_until_us > hth_now_us(roll->env);
        if (!mate->lost)
            hth_members_put(roll->hears, i);
    }
}

static bool is_here(const void *ctx, uint16_t member)
{
    const struct hth_roll_call *roll = ctx;
    const struct mate *mate = &roll->mate[member];
    return mate->held != NULL || (!mate->lost && mate->heard_us > hth_now_us(roll->env) - HERE_US);
}

enum hth_err roll_number(struct hth_roll_call *roll, const struct hth_peer_id *id, uint64_t life,
                         uint16_t *out)
{
    enum hth_err err = hth_chain_member(roll->chain, id, life, out);
    if (err == HTH_E_TOO_LARGE) {
        hth_chain_sweep(roll->chain, is_here, roll);
        err = hth_chain_member(roll->chain, id, life, out);
    }
    if (err != HTH_OK || roll->mate[*out].born != hth_chain_born(roll->chain, *out))
        roll_meet(roll);
    return err;
}

void roll_meet_at(struct hth_roll_call *roll, const struct hth_roll_peer *peer)
{
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (roll->mate[i].addr.family == 0 &&
            hth_peer_id_eq(hth_chain_id(roll->chain, i), &peer->id))
            roll->mate[i].addr = peer->addr;
}

struct hth_roll_peer roll_peer(const struct hth_roll_call *roll, uint16_t member)
{
    bool self = member == roll_me(roll);
    return (struct hth_roll_peer){.id = *hth_chain_id(roll->chain, member),
                                  .life = hth_chain_life(roll->chain, member),
                                  .up_kbit = self ? roll->opts.up_kbit : roll->mate[member].up_kbit,
                                  .addr = self ? roll->opts.addr : roll->mate[member].addr};
}

/* ---- the owner's side --------------------------------------------------------------------- */

void hth_roll_meet(struct hth_roll_call *roll, const struct hth_roll_peer *peer)
{
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (hth_peer_id_eq(hth_chain_id(roll->chain, i), &peer->id))
            roll->mate[i].addr = peer->addr;
}

void hth_roll_hear(struct hth_roll_call *roll, const struct hth_hash *head,
                   const struct hth_roll_peer *holder)
{
    roll_want(roll, head, holder, 1);
}

void hth_roll_leave(struct hth_roll_call *roll)
{
    hth_choice_leave(roll->choice);
}

bool hth_roll_has_left(const struct hth_roll_call *roll)
{
    return roll->choice->leave == HTH_CHOICE_LEFT;
}

void hth_roll_peer_lost(struct hth_roll_call *roll, const struct hth_peer_id *peer)
{
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (i != roll_me(roll) && hth_peer_id_eq(hth_chain_id(roll->chain, i), peer))
            roll_set_heard(roll, i, false);
    roll_lose_helper(roll, peer);
    hth_timer_set(roll->env, roll->timer, 0);
}

void hth_roll_doubt(struct hth_roll_call *roll, const struct hth_peer_id *peer, enum hth_err err,
                    const char *what)
{
    roll_blame(roll, peer, err, what);
    for (uint16_t i = 0; i < hth_chain_members(roll->chain); i++)
        if (hth_peer_id_eq(hth_chain_id(roll->chain, i), peer))
            roll->mate[i].doubted_until_us = hth_now_us(roll->env) + HTH_ROLL_DOUBT_US;
    hth_roll_peer_lost(roll, peer);
}

struct hth_addr hth_roll_addr(const struct hth_roll_call *roll, uint16_t member)
{
    return roll_peer(roll, member).addr;
}

const struct hth_choice *hth_roll_choice(const struct hth_roll_call *roll)
{
    return roll->choice;
}
