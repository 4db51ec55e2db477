/* SPDX-License-Identifier: Apache-2.0 */
/* roll_proof.c: signatures on heads (proof.h): in READYs, in GOs, and behind links. */
#include "collab/roll_int.h"

#include "core/mem.h"

#include <string.h>

void roll_note_twins(struct hth_roll_call *roll, uint32_t link)
{
    char name[HTH_PEER_SHORT_LEN], one[2 * HTH_HASH_LEN + 1], two[2 * HTH_HASH_LEN + 1];
    const struct hth_held *held =
        hth_chain_has(roll->chain, link) ? hth_chain_held(roll->chain, link) : NULL;
    for (uint32_t i = 0; held != NULL && i < held->sigs; i++) {
        uint32_t twin = held->sig[i].twin;
        struct mate *mate = &roll->mate[held->sig[i].member];
        if (mate->equivocates || !hth_chain_has(roll->chain, twin))
            continue;
        mate->equivocates = true;
        hth_hex(held->head.b, HTH_HASH_LEN, one);
        hth_hex(hth_chain_head(roll->chain, twin)->b, HTH_HASH_LEN, two);
        HTH_LOG(roll->env, HTH_WARN, HTH_SUB_AVG,
                "equivocation: %s signed two links of step %llu, ballot %u: %s and %s",
                hth_peer_id_short(hth_chain_id(roll->chain, held->sig[i].member), name),
                (unsigned long long)held->link.step, held->link.ballot, one, two);
    }
}

static enum hth_err keep(struct hth_roll_call *roll, uint32_t link, const struct hth_sig *sig,
                         bool check)
{
    enum hth_err err = hth_proof_keep(roll->chain, link, sig, check);
    if (err == HTH_E_PROTOCOL)
        roll_note_twins(roll, link);
    return err;
}

const struct hth_sig *roll_sign(struct hth_roll_call *roll)
{
    uint32_t tip = roll->choice->tip;
    if (roll->signs == tip)
        return &roll->sig;
    roll->signs = tip;
    hth_proof_sign(roll->chain, tip, roll_me(roll), tip == roll->made, &roll->env->secret,
                   &roll->sig);
    /* A member without a vote proves nothing. */
    enum hth_err err = keep(roll, tip, &roll->sig, false);
    (void)err;
    return &roll->sig;
}

/* ---- READY and GO ------------------------------------------------------------------------- */

enum hth_err roll_check_sig(struct hth_roll_call *roll, uint16_t from, uint32_t head,
                            const struct hth_ready_msg *msg)
{
    if (!hth_proof_counts(roll->chain, head, from))
        return HTH_OK;
    const struct hth_peer_id id = hth_peer_id_of(roll->env->crypto, &msg->sig.key);
    if (!msg->is_signed || msg->sig.life != msg->life ||
        !hth_peer_id_eq(&id, hth_chain_id(roll->chain, from)))
        return HTH_E_BAD_SIGNATURE;
    return keep(roll, head, &msg->sig, true);
}

void roll_list_sigs(struct hth_roll_call *roll, struct hth_ready_reply *go)
{
    uint64_t set[HTH_MEMBERS_WORDS] = {0};
    if (roll->sent_sigs == NULL)
        roll->sent_sigs = hth_calloc(HTH_ROLL_MEMBERS_MAX, HTH_SIG_BYTES);
    struct hth_wire io = hth_wire_into(roll->sent_sigs, HTH_ROLL_MEMBERS_MAX * HTH_SIG_BYTES);
    go->sigs =
        hth_proof_pick(roll->chain, roll->go.head, set, false, HTH_ROLL_MEMBERS_MAX, NULL, &io);
    go->sig = roll->sent_sigs;
}

/* Bad ones are dropped when they are needed. */
void roll_take_sigs(struct hth_roll_call *roll, uint32_t head, const struct hth_ready_reply *go)
{
    struct hth_wire io = hth_wire_of(go->sig, go->sigs * HTH_SIG_BYTES);
    for (uint32_t i = 0; i < go->sigs; i++) {
        struct hth_sig sig;
        hth_wire_sig(&io, &sig);
        enum hth_err err = io.err;
        if (err == HTH_OK)
            err = keep(roll, head, &sig, false);
        (void)err;
    }
}
