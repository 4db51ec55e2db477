/* SPDX-License-Identifier: Apache-2.0 */
/* members.c: a board of passes, and a publisher of our own. */
#include "dht/members.h"

#include "core/map.h"
#include "core/mem.h"

#include <string.h>

#define LIFE_US (120 * HTH_US_PER_S)

struct member {
    struct hth_pubkey key;
    uint8_t roles;
};

struct hth_members {
    struct hth_env *env;
    struct hth_dht *dht;
    const struct hth_admission *own;
    struct hth_map *by_key;
    struct hth_board *board;
    struct hth_publisher *publisher;
};

/* Called for each renewal, too, so that a pass that ends is not believed for longer than a life. */
static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_members *m = arg;
    struct hth_grant grant;
    struct member *who = *user;
    if (rec->part != 0) /* one record of each member */
        return HTH_E_RANGE;
    HTH_TRY(m->own->admit(m->own->arg, &rec->owner_id, rec->payload, rec->payload_len, &grant));
    if (who == NULL) {
        who = hth_new(struct member);
        who->key = rec->owner;
        hth_map_put(m->by_key, who->key.b, sizeof(who->key.b), who);
    }
    who->roles = grant.roles;
    *user = who;
    return HTH_OK;
}

static void on_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    struct hth_members *m = arg;
    struct member *who = user;
    (void)owner;
    (void)part;
    hth_map_del(m->by_key, who->key.b, sizeof(who->key.b));
    hth_free(who);
}

/* The roles of which one is needed to publish a record of that kind; 0: none. */
static uint8_t rights(uint8_t kind)
{
    switch ((enum hth_record_kind)kind) {
    case HTH_RECORD_ROOT:
    case HTH_RECORD_PREFIX:
        return HTH_MAY_SERVE;
    case HTH_RECORD_DECLARE:
    case HTH_RECORD_PROGRESS:
    case HTH_RECORD_STATE:
    case HTH_RECORD_HEAD:
        return HTH_MAY_TRAIN | HTH_MAY_REDUCE;
    case HTH_RECORD_BEACON:
    case HTH_RECORD_PASS:
        break;
    }
    return 0;
}

static bool admits(void *arg, const struct hth_pubkey *owner, uint8_t kind)
{
    const struct hth_members *m = arg;
    uint8_t needed = rights(kind);
    if (needed == 0 || memcmp(owner->b, m->env->pubkey.b, sizeof(owner->b)) == 0)
        return true;
    const struct member *who = hth_map_get(m->by_key, owner->b, sizeof(owner->b));
    return who != NULL && (who->roles & needed) != 0;
}

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    const struct hth_members *m = arg;
    hth_write_bytes(w, m->own->creds, m->own->creds_len);
    return w->err;
}

enum hth_err hth_members_new(struct hth_env *env, struct hth_dht *dht, const char *network,
                             const struct hth_admission *own, bool publishes,
                             struct hth_members **out)
{
    static const struct hth_board_ops ops = {.on_record = on_record, .on_gone = on_gone};
    const struct hth_publisher_opts popts = {.life_us = LIFE_US};
    struct hth_members *m = hth_new(struct hth_members);
    struct hth_topic topic;
    m->env = env;
    m->dht = dht;
    m->own = own;
    m->by_key = hth_map_new();
    hth_topic_init(&topic, env->crypto, network, HTH_RECORD_PASS, "", 0);
    enum hth_err err = hth_board_new(env, dht, &topic, NULL, &ops, m, &m->board);
    if (err == HTH_OK && publishes)
        err = hth_publisher_new(env, dht, &topic, &popts, fill, m, &m->publisher);
    if (err != HTH_OK) {
        hth_members_free(m);
        return err;
    }
    dht->admits = admits;
    dht->admits_arg = m;
    *out = m;
    return HTH_OK;
}

void hth_members_free(struct hth_members *m)
{
    if (m == NULL)
        return;
    m->dht->admits = NULL;
    hth_publisher_free(m->publisher);
    hth_board_free(m->board);
    hth_map_free(m->by_key);
    hth_free(m);
}

size_t hth_members_count(const struct hth_members *m)
{
    return hth_map_count(m->by_key);
}
