/* SPDX-License-Identifier: Apache-2.0 */
#include "collab/holders.h"

#include <string.h>

static uint32_t find(const struct hth_holders *h, const struct hth_peer_id *id)
{
    uint32_t at = 0;
    while (at < h->count && !hth_peer_id_eq(&h->peer[at].id, id))
        at++;
    return at;
}

void hth_holders_add(struct hth_holders *h, const struct hth_roll_peer *peer)
{
    if (h->count < HTH_ROLL_LINE_MAX && find(h, &peer->id) == h->count)
        h->peer[h->count++] = *peer;
}

void hth_holders_drop(struct hth_holders *h, const struct hth_peer_id *id)
{
    uint32_t at = find(h, id);
    if (at < h->count)
        memmove(&h->peer[at], &h->peer[at + 1], (--h->count - at) * sizeof(h->peer[0]));
}

void hth_holders_put_first(struct hth_holders *h, const struct hth_peer_id *id)
{
    uint32_t at = find(h, id);
    if (at == h->count)
        return;
    struct hth_roll_peer first = h->peer[at];
    memmove(&h->peer[1], &h->peer[0], at * sizeof(first));
    h->peer[0] = first;
}
