/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_early.c: parts of rounds that have not begun here: held for a while, bounded. */
#include <string.h>

#include "averaging/reduce_int.h"

/* Takes it off the list; the request is the caller's. */
static void early_remove(struct hth_reducer *red, struct reduce_early *e)
{
    struct reduce_early **at = &red->early;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    red->early_bytes -= e->bytes;
    red->stats.early_now--;
    hth_rpc_on_cancel(e->req, NULL, NULL);
}

static void early_free(struct reduce_early *e)
{
    hth_part_clear(&e->part);
    hth_blob_unref(e->blob);
    hth_free(e);
}

static void early_refuse(struct reduce_early *e, enum hth_err err, const char *text)
{
    struct hth_rpc_request *req = e->req;
    early_remove(e->reducer, e);
    early_free(e);
    hth_rpc_refuse(req, err, 0, text);
}

static void on_early_cancel(void *arg)
{
    early_refuse(arg, HTH_E_CANCELED, NULL);
}

/* Anybody may send them, so nobody may take all the room. */
static bool has_room(const struct hth_reducer *red, const struct hth_peer_id *peer, size_t bytes)
{
    uint64_t all = red->early_bytes + bytes;
    uint32_t parts = 0;
    for (const struct reduce_early *e = red->early; e != NULL; e = e->next)
        parts += hth_peer_id_eq(hth_rpc_peer(e->req), peer);
    return all <= HTH_AVG_EARLY_BYTES_MAX && red->stats.early_now < HTH_AVG_EARLY_PARTS_MAX &&
           parts < HTH_AVG_EARLY_PER_PEER_MAX;
}

void early_hold(struct hth_reducer *red, struct hth_rpc_request *req, struct hth_part_head *part,
                struct hth_blob *blob, size_t offset)
{
    size_t bytes = hth_codec_bytes(part->segments, part->segment_count);
    if (!has_room(red, hth_rpc_peer(req), bytes)) {
        hth_part_clear(part);
        hth_rpc_refuse(req, HTH_E_BUSY, 0, "this round has not begun here yet");
        return;
    }
    struct reduce_early *e = hth_new(struct reduce_early);
    struct reduce_early **end = &red->early;
    e->reducer = red;
    e->req = req;
    e->part = *part;
    e->blob = blob != NULL ? hth_blob_ref(blob) : NULL;
    e->offset = offset;
    e->bytes = bytes;
    e->until_us = hth_now_us(red->env) + EARLY_US;
    while (*end != NULL)
        end = &(*end)->next;
    *end = e;
    red->early_bytes += bytes;
    red->stats.early_now++;
    hth_rpc_on_cancel(req, on_early_cancel, e);
    early_tidy(red);
}

void early_take(struct hth_reduce_round *r)
{
    struct reduce_early *next;
    for (struct reduce_early *e = r->reducer->early; e != NULL; e = next) {
        next = e->next;
        if (memcmp(e->part.group.b, r->is.group.b, sizeof(r->is.group.b)) != 0)
            continue;
        early_remove(r->reducer, e);
        take_part(r, e->req, &e->part, e->blob, e->offset);
        early_free(e);
    }
}

void early_tidy(void *reducer)
{
    struct hth_reducer *red = reducer;
    int64_t now = hth_now_us(red->env);
    while (red->early != NULL && red->early->until_us <= now)
        early_refuse(red->early, HTH_E_EXPIRED, "this round did not begin here");
    if (red->early != NULL)
        hth_timer_set(red->env, red->timer, red->early->until_us - now);
}

void early_end(struct hth_reducer *red)
{
    while (red->early != NULL)
        early_refuse(red->early, HTH_E_CANCELED, "shutting down");
}
