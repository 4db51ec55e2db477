/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/fold.h"

#include "collab/wire.h"
#include "core/mem.h"

#include <stdlib.h>

static struct hth_fold *fold_new(size_t peers)
{
    return hth_calloc(1, sizeof(struct hth_fold) + peers * sizeof(struct hth_fold_peer));
}

/* ---- totals ------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    const struct hth_fold_peer *x = a, *y = b;
    return hth_peer_id_cmp(&x->id, &y->id);
}

/* Makes one of the entries of each peer, and bounds their number. */
static void sum_up(struct hth_fold *fold)
{
    uint32_t peers = 0, least;
    qsort(fold->peer, fold->count, sizeof(fold->peer[0]), by_id);
    for (uint32_t i = 0; i < fold->count; i++) {
        struct hth_fold_peer *last = &fold->peer[peers - 1], *peer = &fold->peer[i];
        if (peers > 0 && hth_peer_id_eq(&last->id, &peer->id)) {
            last->samples += peer->samples;
            last->steps += peer->steps;
        } else {
            fold->peer[peers++] = *peer;
        }
    }
    for (fold->count = peers; fold->count > HTH_ROLL_MEMBERS_MAX; fold->count--) {
        least = 0;
        for (uint32_t i = 1; i < fold->count; i++)
            least = fold->peer[i].samples <= fold->peer[least].samples ? i : least;
        fold->rest += fold->peer[least].samples;
        memmove(&fold->peer[least], &fold->peer[least + 1],
                (fold->count - 1 - least) * sizeof(fold->peer[0]));
    }
}

static void add_roll(const struct hth_chain *chain, const struct hth_chain_link *link,
                     struct hth_fold *fold)
{
    uint32_t in = 0;
    for (uint32_t i = 0; i < link->count; i++)
        in += link->roll[i].marks & HTH_ROLL_IN;
    for (uint32_t i = 0; i < link->count; i++) {
        const struct hth_roll *entry = &link->roll[i];
        if (!(entry->marks & HTH_ROLL_IN))
            continue;
        if (in > 1 && link->kind != HTH_LINK_GENESIS)
            fold->peer[fold->count++] =
                (struct hth_fold_peer){*hth_chain_id(chain, entry->member), entry->samples, 1};
        else
            fold->rest += entry->samples;
    }
}

struct hth_fold *hth_fold_upto(const struct hth_chain *chain, uint32_t link)
{
    /* From the last link whose table is known, or that names none where it should. */
    const struct hth_held *begin = hth_chain_held(chain, link);
    size_t entries = begin->link.count;
    while (begin->table == NULL && begin->link.kind != HTH_LINK_GENESIS &&
           (begin->link.step % HTH_FOLD_STEPS != 0 || !hth_head_is_none(&begin->fold))) {
        if (!hth_head_is_none(&begin->fold) || begin->link.prev == HTH_LINK_NONE)
            return NULL;
        begin = hth_chain_held(chain, begin->link.prev);
        entries += begin->link.count;
    }
    const struct hth_fold *before = begin->table;
    struct hth_fold *fold = fold_new(entries + (before != NULL ? before->count : 0));
    fold->rest = begin->samples_before;
    if (before != NULL) {
        fold->rest = before->rest;
        fold->count = before->count;
        memcpy(fold->peer, before->peer, before->count * sizeof(before->peer[0]));
    }
    const struct hth_held *at = hth_chain_held(chain, link);
    for (; at != begin; at = hth_chain_held(chain, at->link.prev))
        add_roll(chain, &at->link, fold);
    add_roll(chain, &begin->link, fold);
    sum_up(fold);
    return fold;
}

/* ---- bytes -------------------------------------------------------------------------------- */

static void describe(struct hth_wire *io, struct hth_fold_peer *peer)
{
    hth_wire_bytes(io, &peer->id, sizeof(peer->id));
    hth_wire_u64(io, &peer->samples);
    hth_wire_u32(io, &peer->steps);
}

size_t hth_fold_write(const struct hth_fold *fold, uint8_t *out)
{
    struct hth_wire io = hth_wire_into(out, HTH_FOLD_BYTES_MAX);
    hth_write_u64(&io.w, fold->rest);
    hth_write_u32(&io.w, fold->count);
    for (uint32_t i = 0; i < fold->count; i++) {
        struct hth_fold_peer peer = fold->peer[i];
        describe(&io, &peer);
    }
    HTH_ASSERT(io.w.err == HTH_OK);
    return io.w.pos;
}

struct hth_hash hth_fold_hash(const struct hth_crypto *crypto, const struct hth_fold *fold)
{
    uint8_t *bytes = hth_calloc(1, HTH_FOLD_BYTES_MAX);
    struct hth_hash hash;
    crypto->hash(bytes, hth_fold_write(fold, bytes), &hash);
    hth_free(bytes);
    return hash;
}

static enum hth_err read_peers(struct hth_wire *io, struct hth_fold *fold, uint64_t *samples)
{
    *samples = fold->rest;
    for (uint32_t i = 0; i < fold->count && io->err == HTH_OK; i++) {
        struct hth_fold_peer *peer = &fold->peer[i];
        describe(io, peer);
        hth_wire_check(io, peer->steps > 0 && (i == 0 || by_id(peer - 1, peer) < 0));
        *samples += peer->samples;
    }
    return hth_wire_end(io);
}

enum hth_err hth_fold_take(struct hth_chain *chain, uint32_t link, const uint8_t *bytes, size_t len)
{
    struct hth_held *held = hth_chain_held(chain, link);
    struct hth_wire io = hth_wire_of(bytes, len);
    struct hth_hash hash;
    uint64_t rest = hth_read_u64(&io.r), samples;
    uint32_t count = 0;
    if (hth_head_is_none(&held->fold))
        return HTH_E_NOT_FOUND;
    hth_wire_count(&io, &count, HTH_ROLL_MEMBERS_MAX);
    HTH_TRY(io.err);
    struct hth_fold *fold = fold_new(count);
    fold->rest = rest;
    fold->count = count;
    enum hth_err err = read_peers(&io, fold, &samples);
    hth_chain_opts(chain)->crypto->hash(bytes, len, &hash);
    if (err == HTH_OK &&
        (memcmp(&hash, &held->fold, sizeof(hash)) != 0 || samples != held->samples_before))
        err = HTH_E_BAD_FOLD;
    if (err == HTH_OK && held->table == NULL)
        held->table = fold;
    else
        hth_free(fold);
    return err;
}
