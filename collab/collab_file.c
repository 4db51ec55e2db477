/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/collab_file.h"

#include "collab/proof.h"
#include "core/mem.h"

#include <string.h>

#define VERSION 1

static const uint8_t magic[8] = "HTHVOTE";

static bool is_zero(const struct hth_hash *hash)
{
    static const struct hth_hash none;
    return memcmp(hash, &none, sizeof(none)) == 0;
}

/* ---- writing ------------------------------------------------------------------------------ */

static void write_head(const struct hth_chain *chain, uint32_t link, struct hth_writer *w)
{
    static const struct hth_hash none;
    const struct hth_hash *head = link == HTH_LINK_NONE ? &none : hth_chain_head(chain, link);
    hth_write_bytes(w, head, sizeof(*head));
}

/* The oldest first; returns how many. */
static uint16_t write_path(const struct hth_chain *chain, uint32_t from, uint32_t to,
                           struct hth_writer *w)
{
    uint32_t before = hth_chain_at(chain, to)->prev;
    uint16_t count = to == from || before == HTH_LINK_NONE ? 0 : write_path(chain, from, before, w);
    hth_chain_write(chain, to, w);
    return (uint16_t)(count + 1);
}

static void write_links(const struct hth_chain *chain, const struct hth_vote *vote,
                        struct hth_writer *w)
{
    uint32_t first = hth_chain_anchor(chain, vote->tip);
    bool anchored = hth_chain_at(chain, first)->kind != HTH_LINK_GENESIS;
    hth_write_u64(w, anchored ? hth_chain_samples_before(chain, first) : 0);
    hth_write_u8(w, anchored);
    struct hth_writer at = *w;
    hth_write_u16(w, 0);
    uint16_t count = write_path(chain, first, vote->tip, w);
    if (vote->accepted != HTH_LINK_NONE && vote->accepted != vote->tip) {
        hth_chain_write(chain, vote->accepted, w);
        count++;
    }
    hth_write_u16(&at, count);
}

static void write_peers(const struct hth_collab_file *file, struct hth_writer *w)
{
    hth_write_u16(w, (uint16_t)file->peers);
    for (uint32_t i = 0; i < file->peers; i++) {
        hth_write_bytes(w, &file->peer[i].id, sizeof(file->peer[i].id));
        hth_roll_addr_write(&file->peer[i].addr, w);
    }
}

static void write_sigs(const struct hth_chain *chain, uint32_t link, struct hth_writer *w)
{
    const struct hth_sig *sig[HTH_ROLL_MEMBERS_MAX];
    uint64_t *set = hth_calloc(hth_proof_words(chain), sizeof(*set));
    struct hth_writer at = *w;
    uint32_t written = 0, first = hth_chain_anchor(chain, link);
    hth_write_u16(w, 0);
    for (uint16_t back = 0;; back++, link = hth_chain_at(chain, link)->prev) {
        uint32_t got = hth_proof_pick(chain, link, set, sig, HTH_ROLL_MEMBERS_MAX - written);
        for (uint32_t i = 0; i < got; i++) {
            hth_write_u16(w, back);
            hth_sig_write(sig[i], w);
        }
        written += got;
        if (link == first)
            break;
    }
    hth_write_u16(&at, (uint16_t)written);
    hth_free(set);
}

enum hth_err hth_collab_file_write(const struct hth_crypto *crypto,
                                   const struct hth_collab_file *file,
                                   const struct hth_chain *chain, const struct hth_vote *vote,
                                   struct hth_blob **out)
{
    uint8_t *bytes = hth_calloc(1, HTH_COLLAB_FILE_BYTES_MAX);
    struct hth_writer w;
    struct hth_hash hash;
    *out = NULL;
    hth_writer_init(&w, bytes, HTH_COLLAB_FILE_BYTES_MAX);
    hth_write_bytes(&w, magic, sizeof(magic));
    hth_write_u32(&w, VERSION);
    hth_write_bytes(&w, &file->run, sizeof(file->run));
    hth_write_u64(&w, file->life);
    hth_write_u64(&w, hth_chain_at(chain, vote->tip)->step);
    write_head(chain, vote->tip, &w);
    hth_write_u32(&w, vote->promised);
    write_head(chain, vote->accepted, &w);
    hth_write_u32(&w, vote->accepted_n);
    hth_write_u32(&w, vote->batch);
    write_links(chain, vote, &w);
    write_peers(file, &w);
    write_sigs(chain, vote->tip, &w);
    crypto->hash(bytes, w.pos, &hash);
    hth_write_bytes(&w, &hash, sizeof(hash));
    if (w.err == HTH_OK)
        *out = hth_blob_copy(bytes, w.pos);
    hth_free(bytes);
    return w.err;
}

/* ---- reading ------------------------------------------------------------------------------ */

static enum hth_err check(const struct hth_crypto *crypto, const uint8_t *bytes, size_t len)
{
    struct hth_hash hash;
    if (len < sizeof(magic) + sizeof(uint32_t) + sizeof(hash))
        return HTH_E_TRUNCATED;
    if (memcmp(bytes, magic, sizeof(magic)) != 0)
        return HTH_E_BAD_MAGIC;
    if (hth_load_u32le(bytes + sizeof(magic)) != VERSION)
        return HTH_E_VERSION;
    crypto->hash(bytes, len - sizeof(hash), &hash);
    return memcmp(bytes + len - sizeof(hash), &hash, sizeof(hash)) == 0 ? HTH_OK : HTH_E_CORRUPT;
}

/* Skips one link; those that take it up look at it. */
static void skip_link(struct hth_reader *r)
{
    hth_read_view(r, 8 + 32 + 4 + 4 + 1 + 32);
    uint32_t count = hth_read_u32(r);
    hth_read_view(r, (size_t)count * (32 + 8 + 2 + 4 + 4));
    hth_read_view(r, hth_read_u16(r));
}

static void read_links(struct hth_reader *r, struct hth_collab_file *out)
{
    out->samples = hth_read_u64(r);
    out->anchored = hth_read_u8(r);
    out->links = hth_read_u16(r);
    out->link_bytes = r->data + r->pos;
    size_t from = r->pos;
    for (uint32_t i = 0; i < out->links && r->err == HTH_OK; i++)
        skip_link(r);
    out->link_len = r->pos - from;
}

static enum hth_err read_peers(struct hth_reader *r, struct hth_collab_file *out)
{
    out->peers = hth_read_u16(r);
    if (out->peers > HTH_ROLL_LINE_MAX)
        return HTH_E_TOO_LARGE;
    for (uint32_t i = 0; i < out->peers; i++) {
        hth_read_bytes(r, &out->peer[i].id, sizeof(out->peer[i].id));
        HTH_TRY(hth_roll_addr_read(r, &out->peer[i].addr));
    }
    return r->err;
}

enum hth_err hth_collab_file_read(const struct hth_crypto *crypto, const uint8_t *bytes, size_t len,
                                  struct hth_collab_file *out)
{
    struct hth_reader r;
    *out = (struct hth_collab_file){.peers = 0};
    HTH_TRY(check(crypto, bytes, len));
    hth_reader_init(&r, bytes, len - sizeof(struct hth_hash));
    hth_read_view(&r, sizeof(magic) + sizeof(uint32_t));
    hth_read_bytes(&r, &out->run, sizeof(out->run));
    out->life = hth_read_u64(&r);
    out->step = hth_read_u64(&r);
    hth_read_bytes(&r, &out->head, sizeof(out->head));
    out->promised = hth_read_u32(&r);
    hth_read_bytes(&r, &out->accepted, sizeof(out->accepted));
    out->accepted_n = hth_read_u32(&r);
    out->batch = hth_read_u32(&r);
    read_links(&r, out);
    HTH_TRY(read_peers(&r, out));
    if (hth_reader_left(&r) > 0) {
        out->sig_len = hth_read_u16(&r) * (sizeof(uint16_t) + HTH_SIG_BYTES);
        out->sig_bytes = hth_read_view(&r, out->sig_len);
    }
    HTH_TRY(r.err);
    return hth_reader_left(&r) == 0 ? HTH_OK : HTH_E_MALFORMED;
}

static void keep_sigs(const struct hth_collab_file *file, struct hth_chain *chain, uint32_t tip)
{
    struct hth_reader r;
    struct hth_sig sig;
    hth_reader_init(&r, file->sig_bytes, file->sig_len);
    while (hth_reader_left(&r) > 0) {
        uint32_t link = tip, twin;
        for (uint16_t back = hth_read_u16(&r); back > 0 && link != HTH_LINK_NONE; back--)
            link = hth_chain_at(chain, link)->prev;
        enum hth_err err = hth_sig_read(&r, &sig);
        if (err == HTH_OK && link != HTH_LINK_NONE)
            err = hth_proof_keep(chain, link, &sig, false, &twin);
        (void)err;
    }
}

enum hth_err hth_collab_file_vote(const struct hth_collab_file *file, struct hth_chain *chain,
                                  struct hth_vote *out)
{
    struct hth_reader r;
    uint32_t link;
    *out = (struct hth_vote){.accepted = HTH_LINK_NONE,
                             .promised = file->promised,
                             .accepted_n = file->accepted_n,
                             .batch = file->batch};
    hth_reader_init(&r, file->link_bytes, file->link_len);
    for (uint32_t i = 0; i < file->links; i++)
        HTH_TRY(i == 0 && file->anchored ? hth_chain_read_anchor(chain, &r, file->samples, &link)
                                         : hth_chain_read(chain, &r, &link));
    out->tip = hth_chain_find(chain, &file->head);
    if (out->tip == HTH_LINK_NONE)
        return HTH_E_NOT_FOUND;
    if (hth_chain_at(chain, out->tip)->step != file->step)
        return HTH_E_MALFORMED;
    hth_chain_trust(chain, out->tip);
    keep_sigs(file, chain, out->tip);
    if (is_zero(&file->accepted))
        return HTH_OK;
    out->accepted = hth_chain_find(chain, &file->accepted);
    if (out->accepted == HTH_LINK_NONE)
        return HTH_E_NOT_FOUND;
    return hth_chain_base(chain, out->accepted) == hth_chain_base(chain, out->tip) &&
                   hth_chain_at(chain, out->accepted)->step == file->step
               ? HTH_OK
               : HTH_E_MALFORMED;
}
