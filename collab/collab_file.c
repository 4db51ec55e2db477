/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/collab_file.h"

#include "collab/proof.h"
#include "core/mem.h"

#include <string.h>

#define VERSION 2

static const uint8_t magic[8] = "HTHVOTE";

enum { ACCEPTED_NONE, ACCEPTED_TIP, ACCEPTED_ANOTHER };

/* All before the links. */
static void header(struct hth_wire *io, struct hth_collab_file *file)
{
    hth_wire_bytes(io, &file->run, sizeof(file->run));
    hth_wire_u64(io, &file->life);
    hth_wire_u64(io, &file->step);
    hth_wire_u32(io, &file->promised);
    file->accepted = hth_wire_kind(io, file->accepted, ACCEPTED_ANOTHER);
    hth_wire_u32(io, &file->accepted_n);
    hth_wire_u32(io, &file->batch);
}

/* ---- writing ------------------------------------------------------------------------------ */

enum hth_err hth_collab_file_write(const struct hth_crypto *crypto,
                                   const struct hth_collab_file *file,
                                   const struct hth_chain *chain, const struct hth_vote *vote,
                                   struct hth_blob **out)
{
    uint8_t *bytes = hth_calloc(1, HTH_COLLAB_FILE_BYTES_MAX);
    struct hth_wire io = hth_wire_into(bytes, HTH_COLLAB_FILE_BYTES_MAX);
    struct hth_collab_file copy = *file;
    struct hth_links links;
    struct hth_hash hash;
    *out = NULL;
    copy.step = hth_chain_at(chain, vote->tip)->step;
    copy.promised = vote->promised;
    copy.accepted = vote->accepted == HTH_LINK_NONE ? ACCEPTED_NONE
                    : vote->accepted == vote->tip   ? ACCEPTED_TIP
                                                    : ACCEPTED_ANOTHER;
    copy.accepted_n = vote->accepted_n;
    copy.batch = vote->batch;
    hth_write_bytes(&io.w, magic, sizeof(magic));
    hth_write_u32(&io.w, VERSION);
    header(&io, &copy);
    hth_links_path(chain, hth_chain_anchor(chain, vote->tip), vote->tip, &links);
    hth_links_put(chain, &links, HTH_COLLAB_FILE_BYTES_MAX, &io);
    if (copy.accepted == ACCEPTED_ANOTHER)
        hth_chain_write(chain, vote->accepted, &io.w);
    hth_wire_places(&io, copy.peer, &copy.peers, HTH_ROLL_LINE_MAX);
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

enum hth_err hth_collab_file_read(const struct hth_crypto *crypto, const uint8_t *bytes, size_t len,
                                  struct hth_collab_file *out)
{
    *out = (struct hth_collab_file){.peers = 0};
    HTH_TRY(check(crypto, bytes, len));
    struct hth_wire io = hth_wire_of(bytes, len - sizeof(struct hth_hash));
    hth_read_view(&io.r, sizeof(magic) + sizeof(uint32_t));
    header(&io, out);
    hth_wire_check(&io, true);
    out->rest_len = hth_reader_left(&io.r);
    out->rest = hth_read_view(&io.r, out->rest_len);
    return io.err;
}

enum hth_err hth_collab_file_vote(struct hth_collab_file *file, struct hth_chain *chain,
                                  struct hth_vote *out)
{
    struct hth_wire io = hth_wire_of(file->rest, file->rest_len);
    struct hth_links links;
    HTH_TRY(hth_links_get(chain, &io, HTH_LINKS_MAX, &links));
    uint32_t tip = links.count > 0 ? links.link[links.count] : HTH_LINK_NONE;
    uint32_t accepted = file->accepted == ACCEPTED_TIP ? tip : HTH_LINK_NONE;
    if (file->accepted == ACCEPTED_ANOTHER)
        HTH_TRY(hth_chain_read(chain, &io.r, NULL, &accepted));
    hth_wire_check(&io, tip != HTH_LINK_NONE && hth_chain_at(chain, tip)->step == file->step);
    hth_wire_check(&io, accepted == HTH_LINK_NONE ||
                            (hth_chain_base(chain, accepted) == hth_chain_base(chain, tip) &&
                             hth_chain_at(chain, accepted)->step == file->step));
    hth_wire_places(&io, file->peer, &file->peers, HTH_ROLL_LINE_MAX);
    HTH_TRY(hth_wire_end(&io));
    hth_chain_trust(chain, tip);
    *out = (struct hth_vote){tip, file->promised, accepted, file->accepted_n, file->batch};
    return HTH_OK;
}
