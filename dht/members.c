/* SPDX-License-Identifier: Apache-2.0 */
/* members.c: a board and a publisher of passes, and likewise of the lists of revoked invites. */
#include "dht/members.h"

#include "core/map.h"
#include "core/mem.h"

#include <string.h>

#define LIFE_US         (120 * HTH_US_PER_S)
#define COPIES_US       (30 * HTH_US_PER_S)  /* from a look at the copies to the next */
#define REVOKED_LIFE_US (600 * HTH_US_PER_S) /* the longest: it must not be forgotten */

struct member {
    struct hth_pubkey key;
    struct hth_peer_id id;
    struct hth_grant grant;
};

struct hth_members {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_members_opts opts;
    struct hth_closed_run run;
    uint64_t network; /* its tag */
    struct hth_map *by_key;
    struct hth_board *board;
    struct hth_publisher *publisher;
    struct hth_timer *timer;
    struct hth_topic list_topic;
    struct hth_board *list_board;
    struct list_part {
        struct hth_members *of;
        size_t place;                    /* in the set */
        uint32_t copies;                 /* records of it, or of an older one */
        struct hth_publisher *publisher; /* NULL: others publish it */
    } list[HTH_REVOKED_LISTS];
};

/* Called for each renewal, too, so that a pass that ends is not believed for longer than a life. */
static enum hth_err on_record(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_members *m = arg;
    struct hth_grant grant;
    struct member *who = *user;
    if (rec->part != 0) /* one record of each member */
        return HTH_E_RANGE;
    HTH_TRY(m->opts.own->admit(m->opts.own->arg, &rec->owner_id, rec->payload, rec->payload_len,
                               &grant));
    if (who == NULL) {
        who = hth_new(struct member);
        who->key = rec->owner;
        who->id = rec->owner_id;
        hth_map_put(m->by_key, who->key.b, sizeof(who->key.b), who);
        hth_dht_know(m->dht, m->network, &who->key, true);
    }
    who->grant = grant;
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
    hth_dht_know(m->dht, m->network, &who->key, false);
    hth_free(who);
}

/* The roles of which one is needed to publish a record of that kind; 0: none. */
static uint8_t rights(uint8_t kind)
{
    switch ((enum hth_record_kind)kind) {
    case HTH_RECORD_ROOT:
    case HTH_RECORD_PREFIX:
        return HTH_MAY_SERVE;
    case HTH_RECORD_PROGRESS:
    case HTH_RECORD_HEAD:
        return HTH_MAY_TRAIN | HTH_MAY_REDUCE;
    case HTH_RECORD_BEACON:
    case HTH_RECORD_PASS:
    case HTH_RECORD_REVOKED:
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
    return who != NULL && (who->grant.roles & needed) != 0 &&
           hth_grant_check(&who->grant, &m->run, hth_wall_us(m->env)) == HTH_OK;
}

static enum hth_err fill(void *arg, struct hth_writer *w)
{
    const struct hth_members *m = arg;
    hth_write_bytes(w, m->opts.own->creds, m->opts.own->creds_len);
    return w->err;
}

/* ---- revoked invites ----------------------------------------------------------------------- */

static enum hth_err fill_list(void *arg, struct hth_writer *w)
{
    const struct list_part *part = arg;
    size_t len;
    const uint8_t *list = hth_revoked_set_at(part->of->opts.revoked, part->place, &len);
    hth_write_bytes(w, list, len);
    return w->err;
}

void hth_members_revoked(struct hth_members *m)
{
    for (size_t i = 0; i < HTH_REVOKED_LISTS; i++)
        if (m->list[i].publisher != NULL)
            hth_publisher_update(m->list[i].publisher, 0);
}

void hth_members_show_again(struct hth_members *m)
{
    if (m->publisher != NULL)
        hth_publisher_update(m->publisher, 0);
}

static void begin(struct list_part *part)
{
    struct hth_members *m = part->of;
    const struct hth_publisher_opts opts = {.life_us = REVOKED_LIFE_US,
                                            .part = (uint8_t)part->place};
    enum hth_err err =
        hth_publisher_new(m->env, m->dht, &m->list_topic, &opts, fill_list, part, &part->publisher);
    HTH_ASSERT(err == HTH_OK);
}

static void on_timer(void *arg)
{
    struct hth_members *m = arg;
    for (size_t i = 0; i < hth_revoked_set_count(m->opts.revoked); i++) {
        struct list_part *part = &m->list[i];
        if (part->publisher == NULL && part->copies < HTH_LIST_COPIES_MIN) {
            begin(part);
        } else if (part->publisher != NULL && part->copies > HTH_LIST_COPIES_MAX &&
                   hth_rng_chance(&m->env->rng, 0.5)) {
            hth_publisher_free(part->publisher);
            part->publisher = NULL;
        }
    }
    hth_timer_set(m->env, m->timer,
                  (int64_t)((0.5 + hth_rng_unit(&m->env->rng)) * (double)COPIES_US));
}

/* Accepts copies of the present lists, too: a refused record would be judged again. */
static enum hth_err on_list(void *arg, const struct hth_record *rec, void **user)
{
    struct hth_members *m = arg;
    size_t place = hth_revoked_set_find(m->opts.revoked, rec->payload, rec->payload_len);
    bool news = place == hth_revoked_set_count(m->opts.revoked);
    if (news) {
        HTH_TRY(hth_revoked_set_take(m->opts.revoked, rec->payload, rec->payload_len));
        place = hth_revoked_set_find(m->opts.revoked, rec->payload, rec->payload_len);
    }
    if (*user != NULL)
        ((struct list_part *)*user)->copies--;
    m->list[place].copies++;
    *user = &m->list[place];
    if (!news)
        return HTH_OK;
    hth_members_revoked(m);
    if (m->opts.on_revoked != NULL)
        m->opts.on_revoked(m->opts.arg);
    return HTH_OK;
}

static void on_list_gone(void *arg, const struct hth_peer_id *owner, uint8_t part, void *user)
{
    (void)arg, (void)owner, (void)part;
    ((struct list_part *)user)->copies--;
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum hth_err open_boards(struct hth_members *m)
{
    static const struct hth_board_ops ops = {.on_record = on_record, .on_gone = on_gone};
    static const struct hth_board_ops list_ops = {.on_record = on_list, .on_gone = on_list_gone};
    const struct hth_publisher_opts opts = {.life_us = LIFE_US};
    struct hth_topic topic;
    hth_topic_init(&topic, m->env->crypto, m->opts.network, HTH_RECORD_PASS, "", 0);
    hth_topic_init(&m->list_topic, m->env->crypto, m->opts.network, HTH_RECORD_REVOKED, "", 0);
    HTH_TRY(hth_board_new(m->env, m->dht, &topic, NULL, &ops, m, &m->board));
    HTH_TRY(hth_board_new(m->env, m->dht, &m->list_topic, NULL, &list_ops, m, &m->list_board));
    if (!m->opts.publishes)
        return HTH_OK;
    m->timer = hth_timer_new(m->env, on_timer, m);
    hth_timer_set(m->env, m->timer, (int64_t)(hth_rng_unit(&m->env->rng) * (double)COPIES_US));
    return hth_publisher_new(m->env, m->dht, &topic, &opts, fill, m, &m->publisher);
}

enum hth_err hth_members_new(struct hth_env *env, struct hth_dht *dht,
                             const struct hth_members_opts *opts, struct hth_members **out)
{
    struct hth_members *m = hth_new(struct hth_members);
    m->env = env;
    m->dht = dht;
    m->opts = *opts;
    m->run = *opts->run;
    m->network = hth_network_tag(env->crypto, opts->network);
    m->by_key = hth_map_new();
    hth_dht_know(dht, m->network, &env->pubkey, true);
    for (size_t i = 0; i < HTH_REVOKED_LISTS; i++)
        m->list[i] = (struct list_part){.of = m, .place = i};
    enum hth_err err = open_boards(m);
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
    if (m->timer != NULL)
        hth_timer_free(m->env, m->timer);
    for (size_t i = 0; i < HTH_REVOKED_LISTS; i++)
        hth_publisher_free(m->list[i].publisher);
    hth_publisher_free(m->publisher);
    hth_board_free(m->list_board);
    hth_board_free(m->board);
    hth_map_free(m->by_key);
    hth_free(m);
}

bool hth_members_next(const struct hth_members *m, size_t *it, struct hth_peer_id *peer,
                      struct hth_grant *out)
{
    const struct member *who = hth_map_next(m->by_key, it, NULL, NULL);
    if (who == NULL)
        return false;
    *peer = who->id;
    *out = who->grant;
    return true;
}

bool hth_members_find(const struct hth_members *m, const struct hth_peer_id *peer,
                      struct hth_grant *out)
{
    struct hth_peer_id id;
    for (size_t it = 0; hth_members_next(m, &it, &id, out);)
        if (hth_peer_id_eq(&id, peer))
            return true;
    return false;
}

size_t hth_members_count(const struct hth_members *m)
{
    return hth_map_count(m->by_key);
}
