/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/fold.h"

#include "core/wire.h"
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

static int by_samples(const void *a, const void *b)
{
    const struct hth_fold_peer *x = a, *y = b;
    if (x->samples != y->samples)
        return x->samples > y->samples ? -1 : 1;
    return by_id(a, b);
}

/* Makes one of the entries of each peer, and bounds their number. */
static void sum_up(struct hth_fold *fold)
{
    uint32_t peers = 0;
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
    fold->count = HTH_MIN(peers, HTH_FOLD_PEERS_MAX);
    if (peers == fold->count)
        return;
    qsort(fold->peer, peers, sizeof(fold->peer[0]), by_samples);
    for (uint32_t i = fold->count; i < peers; i++)
        fold->rest += fold->peer[i].samples;
    qsort(fold->peer, fold->count, sizeof(fold->peer[0]), by_id);
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

/* The link from which totals can be summed up, and the entries of all rolls since then; false:
 * there is none. */
static bool find_begin(const struct hth_chain *chain, uint32_t link, uint32_t *begin,
                       size_t *entries)
{
    *entries = 0;
    for (;; link = hth_chain_at(chain, link)->prev) {
        const struct hth_chain_link *at = hth_chain_at(chain, link);
        bool names = !hth_head_is_none(hth_chain_fold(chain, link));
        *entries += at->count;
        *begin = link;
        if (*hth_chain_table(chain, link) != NULL || at->kind == HTH_LINK_GENESIS ||
            (!names && at->step % HTH_FOLD_STEPS == 0))
            return true;
        if (names || at->prev == HTH_LINK_NONE)
            return false;
    }
}

struct hth_fold *hth_fold_upto(const struct hth_chain *chain, uint32_t link)
{
    uint32_t begin;
    size_t entries;
    if (!find_begin(chain, link, &begin, &entries))
        return NULL;
    const struct hth_fold *before = *hth_chain_table(chain, begin);
    struct hth_fold *fold = fold_new(entries + (before != NULL ? before->count : 0));
    if (before != NULL) {
        fold->rest = before->rest;
        fold->count = before->count;
        memcpy(fold->peer, before->peer, before->count * sizeof(before->peer[0]));
    } else {
        fold->rest = hth_chain_samples_before(chain, begin);
    }
    for (;; link = hth_chain_at(chain, link)->prev) {
        add_roll(chain, hth_chain_at(chain, link), fold);
        if (link == begin)
            break;
    }
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
    const struct hth_hash *named = hth_chain_fold(chain, link);
    struct hth_wire io = hth_wire_of(bytes, len);
    struct hth_hash hash;
    uint64_t rest = hth_read_u64(&io.r), samples;
    uint32_t count = 0;
    if (hth_head_is_none(named))
        return HTH_E_NOT_FOUND;
    hth_wire_count(&io, &count, HTH_FOLD_PEERS_MAX);
    HTH_TRY(io.err);
    struct hth_fold *fold = fold_new(count);
    fold->rest = rest;
    fold->count = count;
    enum hth_err err = read_peers(&io, fold, &samples);
    hth_chain_opts(chain)->crypto->hash(bytes, len, &hash);
    if (err == HTH_OK && (memcmp(&hash, named, sizeof(hash)) != 0 ||
                          samples != hth_chain_samples_before(chain, link)))
        err = HTH_E_BAD_FOLD;
    struct hth_fold **table = hth_chain_table(chain, link);
    if (err == HTH_OK && *table == NULL)
        *table = fold;
    else
        hth_free(fold);
    return err;
}
