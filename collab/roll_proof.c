/* SPDX-License-Identifier: Apache-2.0 */
/* roll_proof.c: signatures on heads (proof.h): in READYs, in GOs, and behind links. */
#include "collab/roll_int.h"

#include "core/mem.h"

#include <string.h>

/* Says once what convicts a member; its links keep both signatures. */
static void note_twin(struct hth_roll_call *roll, uint16_t member, uint32_t a, uint32_t b)
{
    char name[HTH_PEER_SHORT_LEN], one[2 * HTH_HASH_LEN + 1], two[2 * HTH_HASH_LEN + 1];
    const struct hth_chain_link *link = hth_chain_at(roll->chain, a);
    if (roll->mate[member].equivocates || !hth_chain_has(roll->chain, b))
        return;
    roll->mate[member].equivocates = true;
    hth_hex(hth_chain_head(roll->chain, a)->b, HTH_HASH_LEN, one);
    hth_hex(hth_chain_head(roll->chain, b)->b, HTH_HASH_LEN, two);
    HTH_LOG(roll->env, HTH_WARN, HTH_SUB_AVG,
            "equivocation: %s signed two links of step %llu, ballot %u: %s and %s",
            hth_peer_id_short(hth_chain_id(roll->chain, member), name),
            (unsigned long long)link->step, link->ballot, one, two);
}

static enum hth_err keep(struct hth_roll_call *roll, uint32_t link, const struct hth_sig *sig,
                         bool check)
{
    uint32_t twin;
    HTH_TRY(hth_proof_keep(roll->chain, link, sig, check, &twin));
    if (twin == HTH_LINK_NONE)
        return HTH_OK;
    const struct hth_peer_id id = hth_peer_id_of(roll->env->crypto, &sig->key);
    note_twin(roll, hth_chain_known(roll->chain, &id, sig->life), link, twin);
    return HTH_E_PROTOCOL;
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
    const struct hth_sig *sig[HTH_ROLL_MEMBERS_MAX];
    uint64_t *set = hth_calloc(hth_proof_words(roll->chain), sizeof(*set));
    struct hth_writer w;
    go->sigs = hth_proof_pick(roll->chain, roll->go.head, set, sig, HTH_ARRAY_LEN(sig));
    hth_free(roll->sent_sigs);
    roll->sent_sigs = hth_calloc(go->sigs + 1, HTH_SIG_BYTES);
    hth_writer_init(&w, roll->sent_sigs, go->sigs * HTH_SIG_BYTES);
    for (uint32_t i = 0; i < go->sigs; i++)
        hth_sig_write(sig[i], &w);
    go->sig = roll->sent_sigs;
    hth_free(set);
}

/* A bad one is dropped when it is needed. The link may have made room for later ones. */
static void keep_unchecked(struct hth_roll_call *roll, uint32_t link, struct hth_reader *r)
{
    struct hth_sig sig;
    enum hth_err err = hth_sig_read(r, &sig);
    if (err == HTH_OK && hth_chain_has(roll->chain, link))
        err = keep(roll, link, &sig, false);
    (void)err;
}

void roll_take_sigs(struct hth_roll_call *roll, uint32_t head, const struct hth_ready_reply *go)
{
    struct hth_reader r;
    hth_reader_init(&r, go->sig, go->sigs * HTH_SIG_BYTES);
    for (uint32_t i = 0; i < go->sigs; i++)
        keep_unchecked(roll, head, &r);
}

/* ---- LINKS -------------------------------------------------------------------------------- */

void roll_write_sigs(const struct hth_roll_call *roll, const uint32_t *links, uint32_t count,
                     struct hth_writer *w)
{
    const struct hth_sig *sig[ROLL_SIGS_MAX];
    uint64_t *set = hth_calloc(hth_proof_words(roll->chain), sizeof(*set));
    struct hth_writer at = *w;
    uint32_t written = 0;
    hth_write_u16(w, 0);
    for (uint32_t k = count; k-- > 0;) {
        uint32_t got = links[k] == HTH_LINK_NONE ? 0
                                                 : hth_proof_pick(roll->chain, links[k], set, sig,
                                                                  ROLL_SIGS_MAX - written);
        for (uint32_t i = 0; i < got; i++) {
            hth_write_u8(w, (uint8_t)k);
            hth_sig_write(sig[i], w);
        }
        written += got;
    }
    hth_write_u16(&at, (uint16_t)written);
    hth_free(set);
}

void roll_read_sigs(struct hth_roll_call *roll, const uint32_t *links, uint32_t count,
                    struct hth_reader *r)
{
    uint16_t sigs = hth_read_u16(r);
    for (uint32_t i = 0; i < sigs && i < ROLL_SIGS_MAX && r->err == HTH_OK; i++) {
        uint8_t which = hth_read_u8(r);
        keep_unchecked(roll, which < count ? links[which] : HTH_LINK_NONE, r);
    }
    r->err = HTH_OK; /* an answer may end before: links without signatures prove nothing */
}
