/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/collab_file.h"

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

/* From the tip's anchor to the tip. */
static enum hth_err write_links(const struct hth_chain *chain, uint32_t tip, struct hth_wire *io)
{
    uint32_t first = hth_chain_anchor(chain, tip), count = 1, link = tip;
    struct hth_links links = {.anchored = hth_chain_at(chain, first)->kind != HTH_LINK_GENESIS,
                              .link = {HTH_LINK_NONE}};
    for (; link != first; link = hth_chain_at(chain, link)->prev)
        count++;
    if (count > HTH_LINKS_MAX)
        return HTH_E_TOO_LARGE;
    links.count = count;
    for (link = tip; count > 0; link = hth_chain_at(chain, link)->prev)
        links.link[count--] = link;
    hth_links_put(chain, &links, HTH_COLLAB_FILE_BYTES_MAX, io);
    return io->w.err;
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
    enum hth_err err = write_links(chain, vote->tip, &io);
    if (vote->accepted != HTH_LINK_NONE && vote->accepted != vote->tip)
        hth_chain_write(chain, vote->accepted, &io.w);
    hth_wire_places(&io, copy.peer, &copy.peers, HTH_ROLL_LINE_MAX);
    crypto->hash(bytes, io.w.pos, &hash);
    hth_write_bytes(&io.w, &hash, sizeof(hash));
    err = err != HTH_OK ? err : io.w.err;
    if (err == HTH_OK)
        *out = hth_blob_copy(bytes, io.w.pos);
    hth_free(bytes);
    return err;
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

enum hth_err hth_collab_file_read(const struct hth_crypto *crypto, const uint8_t *bytes, size_t len,
                                  struct hth_collab_file *out)
{
    *out = (struct hth_collab_file){.peers = 0};
    HTH_TRY(check(crypto, bytes, len));
    struct hth_wire io = hth_wire_of(bytes, len - sizeof(struct hth_hash));
    hth_read_view(&io.r, sizeof(magic) + sizeof(uint32_t));
    header(&io, out);
    out->rest_len = hth_reader_left(&io.r);
    out->rest = hth_read_view(&io.r, out->rest_len);
    return io.r.err;
}

enum hth_err hth_collab_file_vote(struct hth_collab_file *file, struct hth_chain *chain,
                                  struct hth_vote *out)
{
    struct hth_wire io = hth_wire_of(file->rest, file->rest_len);
    struct hth_links links;
    *out = (struct hth_vote){.accepted = HTH_LINK_NONE,
                             .promised = file->promised,
                             .accepted_n = file->accepted_n,
                             .batch = file->batch};
    HTH_TRY(hth_links_get(chain, &io, HTH_LINKS_MAX, &links));
    out->tip = hth_chain_find(chain, &file->head);
    if (out->tip == HTH_LINK_NONE)
        return HTH_E_NOT_FOUND;
    if (hth_chain_at(chain, out->tip)->step != file->step)
        return HTH_E_MALFORMED;
    hth_chain_trust(chain, out->tip);
    if (!hth_head_is_none(&file->accepted)) {
        out->accepted = out->tip;
        if (memcmp(&file->accepted, &file->head, sizeof(file->head)) != 0)
            HTH_TRY(hth_chain_read(chain, &io.r, &out->accepted));
        if (memcmp(hth_chain_head(chain, out->accepted), &file->accepted,
                   sizeof(file->accepted)) != 0)
            return HTH_E_NOT_FOUND;
        if (hth_chain_base(chain, out->accepted) != hth_chain_base(chain, out->tip) ||
            hth_chain_at(chain, out->accepted)->step != file->step)
            return HTH_E_MALFORMED;
    }
    hth_wire_places(&io, file->peer, &file->peers, HTH_ROLL_LINE_MAX);
    return hth_wire_end(&io);
}
