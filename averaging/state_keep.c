/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/state_keep.h"

#include <string.h>

#include "core/mem.h"

/* Who is slower than this finds what it fetches gone, when others want a younger one. */
#define SLOW_RATE 1e6 /* bytes a second; and while another one is fetched: */
#define FAST_RATE 20e6
#define PAUSE_US  (2 * HTH_US_PER_S)  /* between two parts, beside the time of one */
#define HOLD_US   (10 * HTH_US_PER_S) /* of a snapshot, beside the time of all its parts */

static int64_t line_us(uint64_t bytes, double rate)
{
    return (int64_t)(1e6 * (double)bytes / rate);
}

enum hth_err hth_snapshot_new(struct hth_env *env, uint64_t schema, uint64_t step, const void *meta,
                              size_t meta_len, uint64_t bytes, struct hth_snapshot **out)
{
    struct hth_snapshot *s = hth_new(struct hth_snapshot);
    enum hth_err err = hth_state_desc_init(&s->desc, schema, step, meta, meta_len, bytes);

    *out = NULL;
    if (err == HTH_OK)
        s->parts = hth_new_array(struct hth_blob *, s->desc.parts);
    for (uint32_t i = 0; err == HTH_OK && i < s->desc.parts; i++)
        err = hth_env_blob_new(env, hth_state_part_len(&s->desc, i), NULL, &s->parts[i]);
    if (err == HTH_OK)
        *out = s;
    else
        hth_snapshot_free(s);
    return err;
}

void hth_snapshot_free(struct hth_snapshot *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; s->parts != NULL && i < s->desc.parts; i++)
        hth_blob_unref(s->parts[i]);
    hth_free(s->parts);
    hth_state_desc_clear(&s->desc);
    hth_free(s);
}

/* ---- who fetches ----------------------------------------------------------------------------- */

void hth_keep_asked(struct hth_keep *k, struct hth_snapshot *s, const struct hth_peer_id *by,
                    int64_t now_us)
{
    uint32_t at = 0;

    s->asked_us = now_us;
    for (uint32_t i = 0; i < k->fetchers; i++) {
        if (hth_peer_id_eq(&k->fetcher[i].id, by)) {
            at = i;
            break;
        }
        if (k->fetcher[i].asked_us < k->fetcher[at].asked_us)
            at = i;
    }
    if (k->fetchers < HTH_STATE_FETCHERS_MAX &&
        (k->fetchers == 0 || !hth_peer_id_eq(&k->fetcher[at].id, by)))
        at = k->fetchers++;
    k->fetcher[at].id = *by;
    k->fetcher[at].of = s;
    k->fetcher[at].asked_us = now_us;
}

static bool is_fetched(const struct hth_keep *k, const struct hth_snapshot *s, double rate,
                       int64_t now_us)
{
    int64_t pause_us = PAUSE_US + line_us(s->desc.part_bytes, SLOW_RATE);

    if (now_us - s->made_us > HOLD_US + line_us(s->desc.bytes, rate))
        return false;
    for (uint32_t i = 0; i < k->fetchers; i++)
        if (k->fetcher[i].of == s && now_us - k->fetcher[i].asked_us <= pause_us)
            return true;
    return false;
}

/* ---- the two --------------------------------------------------------------------------------- */

static void let_go(struct hth_keep *k, struct hth_snapshot *s)
{
    if (s == k->newest)
        k->newest = k->elder;
    k->elder = NULL;
    for (uint32_t i = 0; i < k->fetchers; i++)
        if (k->fetcher[i].of == s)
            k->fetcher[i].of = NULL;
    hth_snapshot_free(s);
}

void hth_keep_clear(struct hth_keep *k)
{
    while (k->newest != NULL)
        let_go(k, k->newest);
}

struct hth_snapshot *hth_keep_find(const struct hth_keep *k, const struct hth_hash *root)
{
    struct hth_snapshot *both[2] = {k->newest, k->elder};

    for (int i = 0; i < 2; i++)
        if (both[i] != NULL && memcmp(&both[i]->desc.root, root, sizeof(*root)) == 0)
            return both[i];
    return NULL;
}

bool hth_keep_make_room(struct hth_keep *k, bool must, int64_t now_us)
{
    if (k->elder == NULL)
        return true;
    if (!is_fetched(k, k->elder, SLOW_RATE, now_us))
        let_go(k, k->elder);
    else if (!is_fetched(k, k->newest, must ? FAST_RATE : SLOW_RATE, now_us))
        let_go(k, k->newest);
    else
        return false;
    return true;
}

void hth_keep_take(struct hth_keep *k, struct hth_snapshot *s, int64_t now_us)
{
    HTH_ASSERT(k->elder == NULL);
    s->made_us = s->asked_us = now_us;
    k->elder = k->newest;
    k->newest = s;
}

void hth_keep_tidy(struct hth_keep *k, int64_t linger_us, int64_t now_us)
{
    if (k->elder != NULL && now_us - k->elder->asked_us > linger_us)
        let_go(k, k->elder);
    if (k->newest != NULL && now_us - k->newest->asked_us > linger_us)
        let_go(k, k->newest);
}
