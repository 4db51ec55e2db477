/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/collab_file.h"

#include "collab/fold.h"
#include "collab/proof.h"
#include "core/mem.h"

#include <string.h>

#define VERSION 1

static const uint8_t magic[8] = "HTHVOTE";

/* All before the links. */
static void header(struct hth_wire *io, struct hth_collab_file *file)
{
    hth_wire_bytes(io, &file->run, sizeof(file->run));
    hth_wire_u64(io, &file->life);
    hth_wire_u64(io, &file->step);
    hth_wire_bytes(io, &file->head, sizeof(file->head));
    hth_wire_u32(io, &file->promised);
    hth_wire_bytes(io, &file->accepted, sizeof(file->accepted));
    hth_wire_u32(io, &file->accepted_n);
    hth_wire_u32(io, &file->batch);
}

/* ---- writing ------------------------------------------------------------------------------ */

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

static void write_sigs(const struct hth_chain *chain, uint32_t link, struct hth_wire *io)
{
    const struct hth_sig *sig[HTH_ROLL_MEMBERS_MAX];
    uint64_t *set = hth_calloc(hth_proof_words(chain), sizeof(*set));
    struct hth_writer at = io->w;
    uint32_t written = 0, first = hth_chain_anchor(chain, link);
    hth_write_u16(&io->w, 0);
    for (uint16_t back = 0;; back++, link = hth_chain_at(chain, link)->prev) {
        uint32_t got = hth_proof_pick(chain, link, set, sig, HTH_ROLL_MEMBERS_MAX - written);
        for (uint32_t i = 0; i < got; i++) {
            struct hth_sig copy = *sig[i];
            hth_write_u16(&io->w, back);
            hth_wire_sig(io, &copy);
        }
        written += got;
        if (link == first)
            break;
    }
    hth_write_u16(&at, (uint16_t)written);
    hth_free(set);
}

/* The last of the links from `first` to the tip that names a fold; HTH_LINK_NONE: none does. */
static uint32_t find_fold(const struct hth_chain *chain, uint32_t tip, uint32_t first)
{
    while (hth_head_is_none(hth_chain_fold(chain, tip))) {
        if (tip == first)
            return HTH_LINK_NONE;
        tip = hth_chain_at(chain, tip)->prev;
    }
    return tip;
}

static void write_fold(const struct hth_chain *chain, uint32_t tip, struct hth_writer *w)
{
    uint8_t bytes[HTH_FOLD_BYTES_MAX];
    uint32_t link = find_fold(chain, tip, hth_chain_anchor(chain, tip));
    if (link != HTH_LINK_NONE && *hth_chain_table(chain, link) != NULL)
        hth_write_bytes(w, bytes, hth_fold_write(*hth_chain_table(chain, link), bytes));
}

enum hth_err hth_collab_file_write(const struct hth_crypto *crypto,
                                   const struct hth_collab_file *file,
                                   const struct hth_chain *chain, const struct hth_vote *vote,
                                   struct hth_blob **out)
{
    uint8_t *bytes = hth_calloc(1, HTH_COLLAB_FILE_BYTES_MAX);
    struct hth_wire io = hth_wire_into(bytes, HTH_COLLAB_FILE_BYTES_MAX);
    struct hth_collab_file copy = *file;
    struct hth_hash hash;
    *out = NULL;
    copy.step = hth_chain_at(chain, vote->tip)->step;
    copy.head = *hth_chain_head(chain, vote->tip);
    copy.promised = vote->promised;
    copy.accepted = (struct hth_hash){{0}};
    if (vote->accepted != HTH_LINK_NONE)
        copy.accepted = *hth_chain_head(chain, vote->accepted);
    copy.accepted_n = vote->accepted_n;
    copy.batch = vote->batch;
    hth_write_bytes(&io.w, magic, sizeof(magic));
    hth_write_u32(&io.w, VERSION);
    header(&io, &copy);
    write_links(chain, vote, &io.w);
    hth_wire_places(&io, copy.peer, &copy.peers, HTH_ROLL_LINE_MAX);
    write_sigs(chain, vote->tip, &io);
    write_fold(chain, vote->tip, &io.w);
    crypto->hash(bytes, io.w.pos, &hash);
    hth_write_bytes(&io.w, &hash, sizeof(hash));
    if (io.w.err == HTH_OK)
        *out = hth_blob_copy(bytes, io.w.pos);
    hth_free(bytes);
    return io.w.err;
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

enum hth_err hth_collab_file_read(const struct hth_crypto *crypto, const uint8_t *bytes, size_t len,
                                  struct hth_collab_file *out)
{
    *out = (struct hth_collab_file){.peers = 0};
    HTH_TRY(check(crypto, bytes, len));
    struct hth_wire io = hth_wire_of(bytes, len - sizeof(struct hth_hash));
    hth_read_view(&io.r, sizeof(magic) + sizeof(uint32_t));
    header(&io, out);
    read_links(&io.r, out);
    hth_wire_places(&io, out->peer, &out->peers, HTH_ROLL_LINE_MAX);
    if (hth_reader_left(&io.r) > 0) {
        out->sig_len = hth_read_u16(&io.r) * (sizeof(uint16_t) + HTH_SIG_BYTES);
        out->sig_bytes = hth_read_view(&io.r, out->sig_len);
    }
    out->fold_len = hth_reader_left(&io.r);
    out->fold_bytes = hth_read_view(&io.r, out->fold_len);
    return hth_wire_end(&io);
}

static void keep_sigs(const struct hth_collab_file *file, struct hth_chain *chain, uint32_t tip)
{
    struct hth_wire io = hth_wire_of(file->sig_bytes, file->sig_len);
    struct hth_sig sig;
    while (hth_reader_left(&io.r) > 0) {
        uint32_t link = tip, twin;
        for (uint16_t back = hth_read_u16(&io.r); back > 0 && link != HTH_LINK_NONE; back--)
            link = hth_chain_at(chain, link)->prev;
        hth_wire_sig(&io, &sig);
        enum hth_err err = io.err;
        io.err = HTH_OK;
        if (err == HTH_OK && link != HTH_LINK_NONE)
            err = hth_proof_keep(chain, link, &sig, false, &twin);
        (void)err;
    }
}

static enum hth_err take_fold(const struct hth_collab_file *file, struct hth_chain *chain,
                              uint32_t tip)
{
    uint32_t first = tip;
    if (file->fold_len == 0)
        return HTH_OK;
    while (hth_chain_at(chain, first)->prev != HTH_LINK_NONE)
        first = hth_chain_at(chain, first)->prev;
    uint32_t link = find_fold(chain, tip, first);
    return link == HTH_LINK_NONE
               ? HTH_E_MALFORMED
               : hth_fold_take(chain, link, file->fold_bytes, file->fold_len);
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
    HTH_TRY(take_fold(file, chain, out->tip));
    if (hth_head_is_none(&file->accepted))
        return HTH_OK;
    out->accepted = hth_chain_find(chain, &file->accepted);
    if (out->accepted == HTH_LINK_NONE)
        return HTH_E_NOT_FOUND;
    return hth_chain_base(chain, out->accepted) == hth_chain_base(chain, out->tip) &&
                   hth_chain_at(chain, out->accepted)->step == file->step
               ? HTH_OK
               : HTH_E_MALFORMED;
}
