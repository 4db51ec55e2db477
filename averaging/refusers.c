/* SPDX-License-Identifier: Apache-2.0 */
#include "averaging/refusers.h"

#include "core/base.h"

#define AGAIN_US   (60 * HTH_US_PER_S) /* refusals further apart are no habit */
#define EXCLUDE_US    (10 * HTH_US_PER_S)
#define EXCLUDE_TIMES 6 /* that it is doubled at most */

static int64_t over_us(const struct hth_refuser *e)
{
    return HTH_MAX(e->at_us, e->excluded_until_us);
}

static struct hth_refuser *entry_of(struct hth_refusers *r, const struct hth_peer_id *id)
{
    struct hth_refuser *gone = &r->at[0];

    for (uint32_t i = 0; i < HTH_AVG_REFUSERS_MAX; i++) {
        struct hth_refuser *e = &r->at[i];

        if (e->times > 0 && hth_peer_id_eq(&e->id, id))
            return e;
        if (gone->times > 0 && (e->times == 0 || over_us(e) < over_us(gone)))
            gone = e;
    }
    *gone = (struct hth_refuser){.id = *id};
    return gone;
}

void hth_refusers_add(struct hth_refusers *r, const struct hth_peer_id *id, int64_t now_us)
{
    struct hth_refuser *e = entry_of(r, id);

    if (e->times > 0 && now_us - over_us(e) > AGAIN_US)
        e->times = 0;
    e->at_us = now_us;
    if (++e->times > 1)
        e->excluded_until_us = now_us + (EXCLUDE_US << HTH_MIN(e->times - 2, EXCLUDE_TIMES));
}

bool hth_refusers_exclude(const struct hth_refusers *r, const struct hth_peer_id *id,
                          int64_t now_us)
{
    for (uint32_t i = 0; i < HTH_AVG_REFUSERS_MAX; i++)
        if (r->at[i].times > 0 && hth_peer_id_eq(&r->at[i].id, id))
            return now_us < r->at[i].excluded_until_us;
    return false;
}
