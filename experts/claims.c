/* SPDX-License-Identifier: Apache-2.0 */
/* claims.c: INFO requests to hosts of a directory, at most ASKED_MAX at a time. */
#include "experts/claims.h"

#include "core/log.h"
#include "core/map.h"
#include "core/mem.h"
#include "dht/directory.h"
#include "experts/client.h"

#include <stdlib.h>
#include <string.h>

#define ASKED_MAX 64
#define ONE_US    (4 * HTH_US_PER_S)
#define ALL_US    (10 * HTH_US_PER_S)
/* A mark on a host ends with its next record, and so it is made anew by the next look. */
#define HIDDEN_US (60 * HTH_US_PER_S)
/* Refuting costs time in proportion to the claims of a record: more are not worth it. */
#define WRONG_MAX 64

struct claimed {
    uint32_t layer, index;
    bool confirmed;
    struct hth_claim_info info;
};

struct asked_host {
    struct hth_claims *of;
    struct hth_peer_id id;
    struct hth_addr addr;
    struct claimed *list; /* ascending */
    uint32_t count, listed;
    bool answered; /* to the end of its list */
};

struct hth_claims {
    struct hth_env *env;
    struct hth_directory *directory;
    struct hth_expert_client *client;
    struct hth_map *by_id;
    struct asked_host **hosts;
    uint32_t count, asked, ended;
    struct hth_timer *timer;
    hth_claims_asks_fn *asks;
    hth_fn *done;
    void *arg;
    bool over;
};

static int compare_claimed(const void *a, const void *b)
{
    const struct claimed *x = a, *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static struct claimed *find_claimed(const struct asked_host *h, uint32_t layer, uint32_t index)
{
    const struct claimed key = {.layer = layer, .index = index};

    return h->count > 0
               ? bsearch(&key, h->list, h->count, sizeof(*h->list), compare_claimed)
               : NULL;
}

/* ---- hosts --------------------------------------------------------------------------------- */

/* Copies the host's claims of that moment. */
static void read_claims(struct asked_host *h)
{
    const struct hth_directory *dir = h->of->directory;

    for (uint32_t l = 0; l < hth_directory_layer_count(dir); l++) {
        size_t n = hth_directory_host_experts(dir, &h->id, l, NULL, 0);
        uint32_t *index = hth_new_array(uint32_t, n + 1);

        n = HTH_MIN(n, hth_directory_host_experts(dir, &h->id, l, index, n));
        h->list = hth_realloc(h->list, h->count + n + 1, sizeof(*h->list));
        for (size_t i = 0; i < n; i++)
            h->list[h->count++] = (struct claimed){.layer = l, .index = index[i]};
        hth_free(index);
    }
}

/* Adds hosts of the directory that are to be asked and are not on the list. */
static void add_hosts(struct hth_claims *c)
{
    struct hth_host_status host;

    for (uint32_t i = 0; hth_directory_host_at(c->directory, i, &host); i++) {
        const struct hth_peer_id *id = &host.ref.id;
        if (host.dead || hth_peer_id_cmp(id, &c->env->self) == 0 ||
            hth_map_get(c->by_id, id->b, sizeof(id->b)) != NULL || !c->asks(c->arg, id))
            continue;
        struct asked_host *h = hth_new(struct asked_host);
        h->of = c;
        h->id = *id;
        h->addr = host.ref.addr;
        read_claims(h);
        c->hosts = hth_realloc(c->hosts, c->count + 1, sizeof(struct asked_host *));
        c->hosts[c->count++] = h;
        hth_map_put(c->by_id, h->id.b, sizeof(h->id.b), h);
    }
}

/* ---- verdicts ------------------------------------------------------------------------------ */

static void disbelieve(struct hth_claims *c, const struct hth_peer_id *id)
{
    char text[HTH_PEER_SHORT_LEN];

    HTH_LOG(c->env, HTH_INFO, HTH_SUB_EXPERT,
            "host %s did not confirm the experts that it claims; its places count as free",
            hth_peer_id_short(id, text));
    hth_directory_mark_dead(c->directory, id, HIDDEN_US);
}

static void judge(struct hth_claims *c, const struct asked_host *h)
{
    uint32_t wrong = 0;

    for (uint32_t i = 0; i < h->count; i++)
        wrong += !h->list[i].confirmed;
    if (!h->answered || wrong > WRONG_MAX) {
        disbelieve(c, &h->id);
        return;
    }
    for (uint32_t i = 0; i < h->count && wrong > 0; i++)
        if (!h->list[i].confirmed)
            hth_directory_refute(c->directory, &h->id, h->list[i].layer, h->list[i].index);
}

/* Runs from the timer, so that done may free the claims although a client's callback ended them. */
static void on_end(void *arg)
{
    struct hth_claims *c = arg;
    struct hth_host_status host;

    c->over = true;
    hth_expert_client_free(c->client);
    c->client = NULL;
    for (uint32_t i = 0; i < c->count; i++)
        judge(c, c->hosts[i]);
    /* Hosts that appeared too late to be asked, in a flood of them. */
    for (uint32_t i = 0; hth_directory_host_at(c->directory, i, &host); i++) {
        const struct hth_peer_id *id = &host.ref.id;
        if (!host.dead && hth_peer_id_cmp(id, &c->env->self) != 0 &&
            hth_map_get(c->by_id, id->b, sizeof(id->b)) == NULL && c->asks(c->arg, id))
            disbelieve(c, id);
    }
    c->done(c->arg); /* may free c */
}

/* ---- asking -------------------------------------------------------------------------------- */

static void ask_more(struct hth_claims *c);
static enum hth_err ask_page(struct asked_host *h);

static void take(struct asked_host *h, const struct hth_expert_info *info)
{
    const struct hth_directory *dir = h->of->directory;
    struct hth_uid uid;
    uint32_t index;

    if (hth_uid_parse(info->uid, strlen(info->uid), &uid) != HTH_OK)
        return;
    for (uint32_t l = 0; l < hth_directory_layer_count(dir); l++) {
        if (hth_grid_find(hth_directory_grid(dir, l), &uid, &index) != HTH_OK)
            continue;
        struct claimed *claimed = find_claimed(h, l, index);
        if (claimed != NULL) {
            claimed->confirmed = true;
            claimed->info =
                (struct hth_claim_info){info->steps, info->hosted_us, info->returned};
        }
    }
}

static void on_info(void *arg, enum hth_err err, const struct hth_expert_info *infos,
                    uint32_t count, uint32_t total)
{
    struct asked_host *h = arg;
    struct hth_claims *c = h->of;

    for (uint32_t i = 0; err == HTH_OK && i < count; i++)
        take(h, &infos[i]);
    h->listed += count;
    h->answered = err == HTH_OK && h->listed >= total;
    if (err == HTH_OK && !h->answered && count > 0 && ask_page(h) == HTH_OK)
        return;
    c->ended++;
    ask_more(c);
}

static enum hth_err ask_page(struct asked_host *h)
{
    const struct hth_rpc_target to = {.peer = h->id, .addr = h->addr};

    return hth_expert_client_info(h->of->client, &to, h->listed, ONE_US, on_info, h);
}

static void ask_more(struct hth_claims *c)
{
    if (c->over)
        return;
    if (c->ended == c->count)
        add_hosts(c);
    while (c->asked < c->count && c->asked - c->ended < ASKED_MAX)
        if (ask_page(c->hosts[c->asked++]) != HTH_OK)
            c->ended++;
    if (c->ended == c->count)
        hth_timer_set(c->env, c->timer, 0);
}

/* ---- calls --------------------------------------------------------------------------------- */

enum hth_err hth_claims_ask(struct hth_env *env, struct hth_rpc *rpc,
                            struct hth_directory *directory, hth_claims_asks_fn *asks, hth_fn *done,
                            void *arg, struct hth_claims **out)
{
    const struct hth_expert_client_opts opts = HTH_EXPERT_CLIENT_OPTS_INIT;
    struct hth_expert_client *client;

    *out = NULL;
    HTH_TRY(hth_expert_client_new(env, rpc, &opts, &client));
    struct hth_claims *c = hth_new(struct hth_claims);
    c->env = env;
    c->directory = directory;
    c->client = client;
    c->asks = asks;
    c->done = done;
    c->arg = arg;
    c->by_id = hth_map_new();
    c->timer = hth_timer_new(env, on_end, c);
    hth_timer_set(env, c->timer, ALL_US);
    ask_more(c);
    *out = c;
    return HTH_OK;
}

bool hth_claims_find(const struct hth_claims *claims, const struct hth_peer_id *host,
                     uint32_t layer, uint32_t index, struct hth_claim_info *out)
{
    const struct asked_host *h = hth_map_get(claims->by_id, host->b, sizeof(host->b));
    const struct claimed *claimed = h != NULL ? find_claimed(h, layer, index) : NULL;

    if (claimed == NULL || !claimed->confirmed)
        return false;
    *out = claimed->info;
    return true;
}

void hth_claims_free(struct hth_claims *claims)
{
    if (claims == NULL)
        return;
    hth_expert_client_free(claims->client);
    hth_timer_free(claims->env, claims->timer);
    for (uint32_t i = 0; i < claims->count; i++) {
        hth_free(claims->hosts[i]->list);
        hth_free(claims->hosts[i]);
    }
    hth_free(claims->hosts);
    hth_map_free(claims->by_id);
    hth_free(claims);
}
