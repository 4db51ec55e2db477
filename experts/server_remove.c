/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_remove.c: ends the hosting of single experts. An expert leaves when its parts are
 * computed, its gradients stepped and its weights written; a timer looks at those that leave.
 */
#include "experts/server_int.h"

#include <string.h>

#define LOOK_US (200 * HTH_US_PER_MS)

static bool is_busy(const struct srv_expert *e)
{
    return e->state == SRV_LOADING || e->pool[0].head != NULL || e->pool[1].head != NULL ||
           e->readers > 0 || e->backward_running || e->step_running || e->step_due || e->saving;
}

static void take_out(struct hth_server *s, uint32_t at)
{
    struct srv_expert *e = s->experts[at];

    s->experts_count--;
    s->leaving--;
    memmove(&s->experts[at], &s->experts[at + 1], (s->experts_count - at) * sizeof(*s->experts));
    for (uint32_t i = 0; i < s->devices; i++)
        s->device[i].save_index -= s->device[i].save_index > at;
    hth_expert_free(e->expert);
    hth_free(e->senders);
    hth_canary_free(e->canary);
    hth_free(e);
}

void hth_srv_on_remove_timer(void *arg)
{
    struct hth_server *s = arg;

    for (uint32_t i = s->experts_count; i-- > 0;) {
        struct srv_expert *e = s->experts[i];
        if (!e->leaving || is_busy(e))
            continue;
        if (e->pending_rows > 0)
            hth_srv_step_due(e);
        else if (!e->dirty || s->checkpoint_dir == NULL)
            take_out(s, i); /* else the next round of checkpoints writes it */
    }
    hth_srv_pump(s);
    if (s->leaving > 0)
        hth_timer_set(s->env, s->remove_timer, LOOK_US);
}

static size_t key_of(const struct hth_uid *uid, uint8_t key[HTH_EXPERT_KEY_MAX])
{
    return hth_expert_key(uid->name, uid->ncoord, uid->coord, key);
}

enum hth_err hth_server_remove(struct hth_server *server, const struct hth_uid *uid)
{
    uint8_t key[HTH_EXPERT_KEY_MAX];
    size_t len = key_of(uid, key);
    struct srv_expert *e = hth_map_get(server->by_key, key, len);

    if (e == NULL)
        return HTH_E_NO_SUCH_EXPERT;
    hth_map_del(server->by_key, key, len);
    e->leaving = true;
    if (server->leaving++ == 0)
        hth_timer_set(server->env, server->remove_timer, LOOK_US);
    return HTH_OK;
}

bool hth_srv_is_leaving(const struct hth_server *s, const struct hth_uid *uid)
{
    uint8_t key[HTH_EXPERT_KEY_MAX], other[HTH_EXPERT_KEY_MAX];
    size_t len = key_of(uid, key);

    for (uint32_t i = 0; s->leaving > 0 && i < s->experts_count; i++)
        if (s->experts[i]->leaving && key_of(hth_expert_uid(s->experts[i]->expert), other) == len &&
            memcmp(key, other, len) == 0)
            return true;
    return false;
}
