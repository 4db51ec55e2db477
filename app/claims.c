/* SPDX-License-Identifier: Apache-2.0 */
/* claims.c: one INFO request to each host of a directory, at most ASKED_MAX at a time. */
#include "app/claims.h"

#include "core/log.h"
#include "core/mem.h"
#include "dht/directory.h"
#include "experts/client.h"

#define ASKED_MAX 64
#define ONE_US    (4 * HTH_US_PER_S)
#define ALL_US    (10 * HTH_US_PER_S)
/* The caller chooses in the turn in which done comes, so any time beyond that turn is enough. */
#define HIDDEN_US (60 * HTH_US_PER_S)

struct claim {
    struct hth_claims *of;
    struct hth_peer_id id;
    struct hth_addr addr;
    bool believed;
};

struct hth_claims {
    struct hth_env *env;
    struct hth_directory *directory;
    struct hth_expert_client *client;
    struct claim *list;
    uint32_t count, asked, answered;
    struct hth_timer *timer;
    hth_fn *done;
    void *arg;
};

static uint64_t claimed_by(const struct hth_directory *dir, const struct hth_peer_id *id)
{
    uint64_t n = 0;

    for (uint32_t l = 0; l < hth_directory_layer_count(dir); l++)
        n += hth_directory_host_experts(dir, id, l, NULL, 0);
    return n;
}

static bool is_believed(const struct hth_claims *c, const struct hth_peer_id *id)
{
    if (hth_peer_id_cmp(id, &c->env->self) == 0)
        return true;
    for (uint32_t i = 0; i < c->count; i++)
        if (hth_peer_id_cmp(&c->list[i].id, id) == 0)
            return c->list[i].believed;
    return false; /* it appeared after we began to ask, and was not asked */
}

/* Runs from the timer, so that done may free the claims although a client's callback ended them. */
static void on_end(void *arg)
{
    struct hth_claims *c = arg;
    struct hth_host_status host;
    char id[HTH_PEER_SHORT_LEN];

    hth_expert_client_free(c->client);
    c->client = NULL;
    for (uint32_t i = 0; hth_directory_host_at(c->directory, i, &host); i++) {
        if (is_believed(c, &host.ref.id))
            continue;
        HTH_LOG(c->env, HTH_INFO, HTH_SUB_APP,
                "host %s claims %llu experts but did not confirm them; its places count as free",
                hth_peer_id_short(&host.ref.id, id),
                (unsigned long long)claimed_by(c->directory, &host.ref.id));
        hth_directory_mark_dead(c->directory, &host.ref.id, HIDDEN_US);
    }
    c->done(c->arg); /* may free c */
}

static void ask_more(struct hth_claims *c);

static void on_info(void *arg, enum hth_err err, const struct hth_expert_info *infos,
                    uint32_t count, uint32_t total)
{
    struct claim *claim = arg;
    struct hth_claims *c = claim->of;

    (void)infos;
    (void)count;
    claim->believed = err == HTH_OK && total >= claimed_by(c->directory, &claim->id);
    c->answered++;
    ask_more(c);
}

static void ask_more(struct hth_claims *c)
{
    while (c->asked < c->count && c->asked - c->answered < ASKED_MAX) {
        struct claim *claim = &c->list[c->asked++];
        struct hth_rpc_target to = {.peer = claim->id, .addr = claim->addr};

        if (hth_expert_client_info(c->client, &to, 0, ONE_US, on_info, claim) != HTH_OK)
            c->answered++;
    }
    if (c->answered == c->count)
        hth_timer_set(c->env, c->timer, 0);
}

enum hth_err hth_claims_ask(struct hth_env *env, struct hth_rpc *rpc,
                            struct hth_directory *directory, hth_fn *done, void *arg,
                            struct hth_claims **out)
{
    const struct hth_expert_client_opts opts = HTH_EXPERT_CLIENT_OPTS_INIT;
    struct hth_expert_client *client;
    struct hth_directory_stats stats;
    struct hth_host_status host;

    *out = NULL;
    HTH_TRY(hth_expert_client_new(env, rpc, &opts, &client));
    hth_directory_stats(directory, &stats);
    struct hth_claims *c = hth_new(struct hth_claims);
    c->env = env;
    c->directory = directory;
    c->client = client;
    c->done = done;
    c->arg = arg;
    c->list = hth_new_array(struct claim, HTH_MAX(stats.hosts, 1u));
    for (uint32_t i = 0; i < stats.hosts && hth_directory_host_at(directory, i, &host); i++) {
        if (hth_peer_id_cmp(&host.ref.id, &env->self) != 0)
            c->list[c->count++] = (struct claim){.of = c, .id = host.ref.id, .addr = host.ref.addr};
    }
    c->timer = hth_timer_new(env, on_end, c);
    hth_timer_set(env, c->timer, ALL_US);
    ask_more(c);
    *out = c;
    return HTH_OK;
}

void hth_claims_free(struct hth_claims *claims)
{
    if (claims == NULL)
        return;
    hth_expert_client_free(claims->client);
    hth_timer_free(claims->env, claims->timer);
    hth_free(claims->list);
    hth_free(claims);
}
