/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/proof.h"

#include "core/mem.h"

#include <string.h>

#define SIGNED_BYTES (8 + 32 + 32 + 8 + 8 + 1 + 4 + 4)

static const uint8_t magic[8] = "HTHLINK";

void hth_wire_sig(struct hth_wire *io, struct hth_sig *sig)
{
    hth_wire_bytes(io, &sig->key, sizeof(sig->key));
    hth_wire_u64(io, &sig->life);
    hth_wire_flag(io, &sig->made);
    hth_wire_bytes(io, sig->sig, sizeof(sig->sig));
}

/* ---- one signature ------------------------------------------------------------------------ */

static void signed_bytes(const struct hth_chain *chain, uint32_t link, uint16_t member, bool made,
                         uint8_t out[SIGNED_BYTES])
{
    const struct hth_roll *entry = made ? hth_chain_entry(chain, link, member) : NULL;
    struct hth_writer w;
    hth_writer_init(&w, out, SIGNED_BYTES);
    hth_write_bytes(&w, magic, sizeof(magic));
    hth_write_bytes(&w, &hth_chain_opts(chain)->run, sizeof(struct hth_hash));
    hth_write_bytes(&w, hth_chain_head(chain, link), sizeof(struct hth_hash));
    hth_write_u64(&w, hth_chain_samples(chain, link));
    hth_write_u64(&w, hth_chain_life(chain, member));
    hth_write_u8(&w, made);
    hth_write_u32(&w, entry != NULL ? entry->batch : 0);
    hth_write_u32(&w, entry != NULL ? entry->samples : 0);
    HTH_ASSERT(w.err == HTH_OK && w.pos == SIGNED_BYTES);
}

void hth_proof_sign(const struct hth_chain *chain, uint32_t link, uint16_t member, bool made,
                    const struct hth_secret *secret, struct hth_sig *out)
{
    const struct hth_crypto *crypto = hth_chain_opts(chain)->crypto;
    uint8_t bytes[SIGNED_BYTES];
    *out = (struct hth_sig){.life = hth_chain_life(chain, member), .made = made};
    crypto->public_of(secret, &out->key);
    signed_bytes(chain, link, member, made, bytes);
    crypto->sign(secret, bytes, sizeof(bytes), out->sig);
}

/* Checks it, unless that was done. */
static bool is_good(const struct hth_chain *chain, uint32_t link, struct hth_link_sig *held)
{
    uint8_t bytes[SIGNED_BYTES];
    if (!held->good) {
        signed_bytes(chain, link, held->member, held->sig.made, bytes);
        held->good = hth_chain_opts(chain)->crypto->verify(&held->sig.key, bytes, sizeof(bytes),
                                                           held->sig.sig) == HTH_OK;
    }
    return held->good;
}

/* ---- those of a link ---------------------------------------------------------------------- */

static struct hth_link_sig *find(const struct hth_chain *chain, uint32_t link, uint16_t member)
{
    const struct hth_held *at = hth_chain_held(chain, link);
    for (uint32_t i = 0; i < at->sigs; i++)
        if (at->sig[i].member == member)
            return &at->sig[i];
    return NULL;
}

/* Whether two links are of one ballot of one choice. */
static bool are_rivals(const struct hth_chain *chain, uint32_t a, uint32_t b)
{
    const struct hth_chain_link *x = hth_chain_at(chain, a), *y = hth_chain_at(chain, b);
    return a != b && x->step == y->step && x->ballot == y->ballot && x->prev != HTH_LINK_NONE &&
           y->prev != HTH_LINK_NONE &&
           hth_chain_base(chain, x->prev) == hth_chain_base(chain, y->prev);
}

static void find_twin(const struct hth_chain *chain, uint32_t link, struct hth_link_sig *held)
{
    if (!held->sig.made)
        return;
    for (uint32_t k = hth_chain_count(chain); k-- > 0 && hth_chain_has(chain, k);) {
        struct hth_link_sig *other =
            are_rivals(chain, link, k) ? find(chain, k, held->member) : NULL;
        if (other != NULL && other->sig.made && is_good(chain, k, other) &&
            is_good(chain, link, held)) {
            other->twin = link;
            held->twin = k;
        }
    }
}

/* Room grows with what came, by doubling. */
static struct hth_link_sig *take_place(const struct hth_chain *chain, uint32_t link)
{
    struct hth_held *at = hth_chain_held(chain, link);
    uint32_t base = hth_chain_base(chain, link);
    if (at->sigs == hth_chain_voters(chain, base).count +
                        hth_chain_voters(chain, hth_chain_base(chain, base)).count)
        return NULL;
    if ((at->sigs & (at->sigs - 1)) == 0)
        at->sig = hth_realloc(at->sig, HTH_MAX(2 * at->sigs, 1u), sizeof(*at->sig));
    return &at->sig[at->sigs++];
}

bool hth_proof_counts(const struct hth_chain *chain, uint32_t link, uint16_t member)
{
    uint32_t base = hth_chain_base(chain, link);
    return hth_chain_votes(chain, base, member) ||
           hth_chain_votes(chain, hth_chain_base(chain, base), member);
}

enum hth_err hth_proof_keep(struct hth_chain *chain, uint32_t link, const struct hth_sig *sig,
                            bool check)
{
    const struct hth_peer_id id = hth_peer_id_of(hth_chain_opts(chain)->crypto, &sig->key);
    uint16_t member = hth_chain_known(chain, &id, sig->life);
    if (member == HTH_MEMBER_NONE || !hth_proof_counts(chain, link, member))
        return HTH_E_NOT_FOUND;
    struct hth_link_sig got = {*sig, member, false, HTH_LINK_NONE};
    struct hth_link_sig *held = find(chain, link, member);
    bool same = held != NULL && held->good && held->sig.made == sig->made &&
                memcmp(held->sig.sig, sig->sig, sizeof(sig->sig)) == 0;
    if (!same && check && !is_good(chain, link, &got))
        return HTH_E_BAD_SIGNATURE;
    if (held == NULL || (check && !same)) { /* the first one stays until one is checked */
        held = held != NULL ? held : take_place(chain, link);
        if (held == NULL)
            return HTH_E_NOT_FOUND;
        *held = got;
        find_twin(chain, link, held);
    }
    return held->twin != HTH_LINK_NONE ? HTH_E_PROTOCOL : HTH_OK;
}

/* ---- proofs ------------------------------------------------------------------------------- */

static bool has_voter(const struct hth_chain *chain, uint32_t base, const uint64_t *set)
{
    struct hth_voters voters = hth_chain_voters(chain, base);
    for (uint32_t i = 0; i < voters.count; i++)
        if (hth_members_has(set, voters.member[i]))
            return true;
    return false;
}

static bool is_proven(const struct hth_chain *chain, uint32_t link, const uint64_t *set)
{
    const struct hth_chain_link *at = hth_chain_at(chain, link);
    uint32_t base = hth_chain_base(chain, link);
    if (at->kind == HTH_LINK_FORK && at->prev != HTH_LINK_NONE &&
        !has_voter(chain, hth_chain_base(chain, at->prev), set))
        return false;
    return hth_chain_judges(chain, base) ? hth_chain_quorum(chain, base, hth_members_has, set)
                                         : has_voter(chain, base, set);
}

uint32_t hth_proof_pick(const struct hth_chain *chain, uint32_t link, uint64_t *set, bool all,
                        uint32_t max, const uint8_t *before, struct hth_wire *io)
{
    struct hth_held *at = hth_chain_held(chain, link);
    uint32_t count = 0;
    for (uint32_t i = 0; i < at->sigs && count < max && (all || !is_proven(chain, link, set));) {
        struct hth_link_sig *sig = &at->sig[i];
        bool more = !hth_members_has(set, sig->member);
        if (more && !is_good(chain, link, sig)) {
            *sig = at->sig[--at->sigs];
            continue;
        }
        hth_members_put(set, sig->member);
        count += more;
        if (more && before != NULL)
            hth_write_u8(&io->w, *before);
        if (more && io != NULL)
            hth_wire_sig(io, &sig->sig);
        i++;
    }
    return count;
}

static uint32_t add_signers(const struct hth_chain *chain, uint32_t link, uint64_t *set)
{
    return hth_proof_pick(chain, link, set, true, UINT32_MAX, NULL, NULL);
}

bool hth_proof_samples(const struct hth_chain *chain, uint32_t tip, uint32_t from, uint64_t *out)
{
    uint64_t sum = 0, begin = from == HTH_LINK_NONE ? 0 : hth_chain_samples(chain, from);
    uint64_t set[HTH_MEMBERS_WORDS] = {0};
    bool forked = false; /* the link on top is a fork that is proven */
    bool all = true;
    uint32_t link = hth_chain_base(chain, tip);
    add_signers(chain, tip, set);
    while (link != from) {
        const struct hth_chain_link *at = hth_chain_at(chain, link);
        uint64_t before = at->prev == HTH_LINK_NONE ? begin : hth_chain_samples(chain, at->prev);
        if (hth_chain_held(chain, link)->trusted) {
            sum += hth_chain_samples(chain, link) - begin;
            break;
        }
        add_signers(chain, link, set);
        bool good = forked || is_proven(chain, link, set);
        /* Links on top of one that is not proven count for nothing. */
        sum = good ? sum + hth_chain_samples(chain, link) - before : 0;
        all &= good;
        forked = good && at->kind == HTH_LINK_FORK;
        link = at->prev;
    }
    *out = sum;
    return all;
}

bool hth_proof_proves(const struct hth_chain *chain, uint32_t link, uint32_t top)
{
    uint64_t set[HTH_MEMBERS_WORDS] = {0};
    add_signers(chain, top, set);
    add_signers(chain, link, set);
    return hth_chain_held(chain, link)->trusted || is_proven(chain, link, set);
}

bool hth_proof_stands(const struct hth_chain *chain, uint32_t link)
{
    const struct hth_chain_link *at = hth_chain_at(chain, link);
    return at->kind == HTH_LINK_GENESIS ||
           hth_proof_proves(chain, at->prev != HTH_LINK_NONE ? at->prev : link, link);
}

bool hth_proof_backs(const struct hth_chain *chain, uint32_t link, uint32_t from)
{
    uint64_t set[HTH_MEMBERS_WORDS] = {0}, samples;
    return hth_chain_held(chain, link)->trusted ||
           (hth_proof_samples(chain, link, from, &samples) && add_signers(chain, link, set) > 0);
}

/* ---- links for others --------------------------------------------------------------------- */

/* As many as prove each link; but all where those of a link on top, which that one can do without,
 * have to prove an earlier one. */
static void put_sigs(const struct hth_chain *chain, const struct hth_links *links,
                     struct hth_wire *io)
{
    uint64_t set[HTH_MEMBERS_WORDS] = {0};
    struct hth_writer at = io->w;
    uint32_t written = 0;
    bool lacks = false;
    hth_write_u16(&io->w, 0);
    for (unsigned all = 0; all <= lacks; all++)
        for (uint8_t k = (uint8_t)(links->count + 1); k-- > 0;) {
            uint32_t link = links->link[k];
            if (link == HTH_LINK_NONE)
                continue;
            written += hth_proof_pick(chain, link, set, all, HTH_LINKS_SIGS_MAX - written, &k, io);
            lacks |= k < links->count && !is_proven(chain, link, set);
        }
    hth_write_u16(&at, (uint16_t)written);
}

/* The last one that names a fold, or HTH_LINK_NONE. */
static uint32_t find_fold(const struct hth_chain *chain, const struct hth_links *links)
{
    for (uint32_t k = links->count; k > 0; k--)
        if (hth_chain_has(chain, links->link[k]) &&
            !hth_head_is_none(&hth_chain_held(chain, links->link[k])->fold))
            return links->link[k];
    return HTH_LINK_NONE;
}

void hth_links_path(const struct hth_chain *chain, uint32_t first, uint32_t last,
                    struct hth_links *out)
{
    const struct hth_chain_link *at = hth_chain_at(chain, first);
    uint32_t count = 1;
    *out = (struct hth_links){.anchored = at->kind != HTH_LINK_GENESIS, .link = {at->prev}};
    for (uint32_t link = last; link != first; link = hth_chain_at(chain, link)->prev)
        count++;
    out->count = HTH_MIN(count, HTH_LINKS_MAX);
    for (; count > 0; last = hth_chain_at(chain, last)->prev, count--)
        if (count <= HTH_LINKS_MAX)
            out->link[count] = last;
}

void hth_links_put(const struct hth_chain *chain, struct hth_links *links, size_t end,
                   struct hth_wire *io)
{
    uint8_t fold[HTH_FOLD_BYTES_MAX];
    uint32_t written = 0;
    bool any = links->count > 0;
    hth_write_u8(&io->w, links->anchored);
    hth_write_u64(&io->w, any ? hth_chain_held(chain, links->link[1])->samples_before : 0);
    struct hth_writer at = io->w;
    hth_write_u16(&io->w, 0);
    for (; written < links->count; written++) {
        struct hth_writer before = io->w;
        hth_chain_write(chain, links->link[written + 1], &io->w);
        if (io->w.pos > end || io->w.err != HTH_OK) {
            io->w = before;
            break;
        }
    }
    links->count = written;
    hth_write_u16(&at, (uint16_t)written);
    put_sigs(chain, links, io);
    uint32_t names = find_fold(chain, links);
    struct hth_fold *table = names == HTH_LINK_NONE ? NULL : hth_chain_held(chain, names)->table;
    size_t len = table != NULL ? hth_fold_write(table, fold) : 0;
    hth_write_u16(&io->w, (uint16_t)len);
    hth_write_bytes(&io->w, fold, len);
}

/* A signature that is of no use is dropped: the link may have made room for later ones. */
static enum hth_err get_sigs(struct hth_chain *chain, const struct hth_links *links,
                             struct hth_wire *io)
{
    uint32_t count = 0;
    hth_wire_count16(io, &count, HTH_LINKS_SIGS_MAX);
    for (uint32_t i = 0; i < count && io->r.err == HTH_OK; i++) {
        struct hth_sig sig;
        uint8_t which = hth_read_u8(&io->r);
        hth_wire_sig(io, &sig);
        enum hth_err err = io->r.err;
        if (err == HTH_OK && which <= links->count && hth_chain_has(chain, links->link[which]))
            err = hth_proof_keep(chain, links->link[which], &sig, false);
        (void)err;
    }
    hth_wire_check(io, true);
    return io->err;
}

enum hth_err hth_links_get(struct hth_chain *chain, struct hth_wire *io, uint32_t max,
                           struct hth_links *out)
{
    struct hth_reader *r = &io->r;
    uint32_t link;
    out->count = 0;
    out->anchored = hth_read_u8(r);
    uint64_t samples = hth_read_u64(r);
    for (uint16_t count = hth_read_u16(r); out->count < count;) {
        if (out->count == max)
            return HTH_E_TOO_LARGE;
        bool anchor = out->anchored && out->count == 0;
        HTH_TRY(hth_chain_read(chain, r, anchor ? &samples : NULL, &link));
        out->link[++out->count] = link;
    }
    if (out->count > 0)
        out->link[0] = hth_chain_has(chain, out->link[1]) ? hth_chain_at(chain, out->link[1])->prev
                                                          : HTH_LINK_NONE;
    HTH_TRY(get_sigs(chain, out, io));
    size_t len = hth_read_u16(r);
    const uint8_t *fold = hth_read_view(r, len);
    uint32_t names = find_fold(chain, out);
    HTH_TRY(r->err);
    return len == 0 || names == HTH_LINK_NONE ? HTH_OK : hth_fold_take(chain, names, fold, len);
}
