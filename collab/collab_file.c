/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/collab_file.h"

#include "collab/proof.h"
#include "core/mem.h"

#include <string.h>

#define VERSION 2

static const uint8_t magic[8] = "HTHVOTE";

/* All before the links. */
static void header(struct hth_wire *io, struct hth_hash *run, uint64_t *step, bool *accepted,
                   struct hth_collab_file *file)
{
    hth_wire_bytes(io, run, sizeof(*run));
    hth_wire_u64(io, &file->life);
    hth_wire_u64(io, step);
    hth_wire_u32(io, &file->vote.promised);
    hth_wire_flag(io, accepted);
    hth_wire_u32(io, &file->vote.accepted_n);
    hth_wire_u32(io, &file->vote.batch);
}

enum hth_err hth_collab_file_write(const struct hth_chain *chain,
                                   const struct hth_collab_file *file, struct hth_blob **out)
{
    uint8_t *bytes = hth_calloc(1, HTH_COLLAB_FILE_BYTES_MAX);
    struct hth_wire io = hth_wire_into(bytes, HTH_COLLAB_FILE_BYTES_MAX);
    struct hth_collab_file copy = *file;
    const struct hth_vote *vote = &file->vote;
    struct hth_hash run = hth_chain_opts(chain)->run, hash;
    uint64_t step = hth_chain_at(chain, vote->tip)->step;
    bool accepted = vote->accepted == vote->tip;
    struct hth_links links;
    *out = NULL;
    hth_write_bytes(&io.w, magic, sizeof(magic));
    hth_write_u32(&io.w, VERSION);
    header(&io, &run, &step, &accepted, &copy);
    hth_links_path(chain, hth_chain_anchor(chain, vote->tip), vote->tip, &links);
    hth_links_put(chain, &links, HTH_COLLAB_FILE_BYTES_MAX, &io);
    hth_wire_places(&io, copy.peer, &copy.peers, HTH_ROLL_LINE_MAX);
    hth_chain_opts(chain)->crypto->hash(bytes, io.w.pos, &hash);
    hth_write_bytes(&io.w, &hash, sizeof(hash));
    enum hth_err err = accepted || vote->accepted == HTH_LINK_NONE ? io.w.err : HTH_E_STALE;
    if (err == HTH_OK)
        *out = hth_blob_copy(bytes, io.w.pos);
    hth_free(bytes);
    return err;
}

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

enum hth_err hth_collab_file_read(struct hth_chain *chain, const uint8_t *bytes, size_t len,
                                  uint64_t step, struct hth_collab_file *out)
{
    const struct hth_chain_opts *opts = hth_chain_opts(chain);
    struct hth_hash run;
    struct hth_links links;
    uint64_t its_step;
    bool accepted;
    *out = (struct hth_collab_file){.peers = 0};
    HTH_TRY(check(opts->crypto, bytes, len));
    struct hth_wire io = hth_wire_of(bytes, len - sizeof(struct hth_hash));
    hth_read_view(&io.r, sizeof(magic) + sizeof(uint32_t));
    header(&io, &run, &its_step, &accepted, out);
    hth_wire_expect(&io, memcmp(&run, &opts->run, sizeof(run)) == 0, HTH_E_WRONG_RUN);
    hth_wire_expect(&io, its_step == step, HTH_E_STALE);
    HTH_TRY(io.err);
    HTH_TRY(hth_links_get(chain, &io, HTH_LINKS_MAX, &links));
    out->vote.tip = links.count > 0 ? links.link[links.count] : HTH_LINK_NONE;
    out->vote.accepted = accepted ? out->vote.tip : HTH_LINK_NONE;
    hth_wire_check(&io, links.count > 0 && hth_chain_at(chain, out->vote.tip)->step == step);
    hth_wire_places(&io, out->peer, &out->peers, HTH_ROLL_LINE_MAX);
    HTH_TRY(hth_wire_end(&io));
    hth_chain_trust(chain, out->vote.tip);
    return HTH_OK;
}
