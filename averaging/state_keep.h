/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_keep.h (internal): the snapshots of a donor, and who fetches them.
 *
 *     newest   what is announced and described          room for a new one is made of what nobody
 *     elder    the one before                           fetches: the elder, else the newest
 *
 * Two at most, and a third while it is made. Strangers decide when that is, so none of them may
 * take from another what it fetches, nor keep a younger one from being made:
 *
 *   - a snapshot that is fetched stays, for as long as a slow line (1 MB/s) takes for all of it;
 *     but of two that are fetched the newest, when it will not do for somebody, only for as long
 *     as a line of 20 MB/s takes: so who holds both delays the next one by that much and no more
 *   - a peer fetches one snapshot: the last that it asked for
 *   - a part is a blob by itself: who asks for parts and does not read them holds these parts,
 *     which rpc counts against it, and not the snapshot
 *
 * Plain data and no callbacks; loop thread.
 */
#ifndef HTH_AVERAGING_STATE_KEEP_H
#define HTH_AVERAGING_STATE_KEEP_H

#include "averaging/state_msg.h"
#include "core/env.h"

struct hth_snapshot {
    struct hth_state_desc desc;
    struct hth_blob **parts; /* desc.parts of them, uninitialised at first */
    int64_t made_us, asked_us;
};

/* Errors: those of hth_state_desc_init, E_NO_MEMORY. */
enum hth_err hth_snapshot_new(struct hth_env *env, uint64_t schema, uint64_t step, const void *meta,
                              size_t meta_len, uint64_t bytes, struct hth_snapshot **out) HTH_MUST;
/* NULL is fine. */
void hth_snapshot_free(struct hth_snapshot *s);

struct hth_keep {
    struct hth_snapshot *newest, *elder; /* no elder without a newest */
    struct {
        struct hth_peer_id id;
        const struct hth_snapshot *of;
        int64_t asked_us;
    } fetcher[HTH_STATE_FETCHERS_MAX]; /* one more takes the place of who asked least lately */
    uint32_t fetchers;
};

/* Frees what is held. */
void hth_keep_clear(struct hth_keep *k);
/* NULL: gone. */
struct hth_snapshot *hth_keep_find(const struct hth_keep *k, const struct hth_hash *root);
/* `s` was described to this peer, or a part of it was asked for. */
void hth_keep_asked(struct hth_keep *k, struct hth_snapshot *s, const struct hth_peer_id *by,
                    int64_t now_us);
/* Lets one go where two are held; false: both are being fetched. `must`: the newest will not do. */
bool hth_keep_make_room(struct hth_keep *k, bool must, int64_t now_us) HTH_MUST;
/* Takes `s`; there is room. */
void hth_keep_take(struct hth_keep *k, struct hth_snapshot *s, int64_t now_us);
/* Lets those go that nobody asked for in this time. */
void hth_keep_tidy(struct hth_keep *k, int64_t linger_us, int64_t now_us);

#endif
