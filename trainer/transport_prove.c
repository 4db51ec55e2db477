/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/transport_prove.h"

#include <string.h>

#include "core/map.h"
#include "core/mem.h"
#include "dht/directory.h"
#include "experts/message.h"
#include "experts/server.h"
#include "rpc/rpc.h"

#define DIALS_MAX   32
#define FAILED_MAX  4096 /* addresses that are remembered */
#define EACH_US     (20 * HTH_US_PER_S)
#define PROVED_US   (3600 * HTH_US_PER_S)
#define PATIENT     12u
#define DOUBLED_MAX 5u
#define FORGOTTEN_X 2 /* so many times the last wait after it has ended */

/* An address that is being dialled, failed, or proved a key: a host whose records are gone for a
 * while is not asked again. */
struct dialled {
    struct hth_prover *prover;
    struct hth_addr addr;
    struct hth_peer_id id;     /* whose claim is asked, or was proved */
    struct hth_rpc_call *call; /* NULL: none is under way */
    bool proved;
    bool is_shared; /* another key claimed it, too, and did not prove itself there */
    uint32_t failed;
    int64_t next_us, forget_us;
    struct dialled *next;
};

struct hth_prover {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_directory *directory;
    struct hth_map *by_addr;
    struct dialled *all;
    uint32_t count, open;
    uint64_t refused;
    struct hth_timer *timer;
};

struct addr_key {
    uint8_t b[19];
};

static struct addr_key key_of(const struct hth_addr *addr)
{
    struct addr_key key = {{addr->family, (uint8_t)(addr->port >> 8), (uint8_t)addr->port}};

    memcpy(key.b + 3, addr->ip, sizeof(addr->ip));
    return key;
}

/* 2, 10, 50 s, then 20 s for a while, then ever twice as long: three in a minute at most. */
static int64_t wait_us(uint32_t failed)
{
    static const int64_t first[] = {2 * HTH_US_PER_S, 10 * HTH_US_PER_S, 50 * HTH_US_PER_S};

    if (failed <= HTH_ARRAY_LEN(first))
        return first[failed - 1];
    return EACH_US << (failed < PATIENT ? 0 : HTH_MIN(failed - PATIENT, DOUBLED_MAX));
}

static void forget(struct hth_prover *p, struct dialled **link)
{
    struct dialled *d = *link;
    struct addr_key key = key_of(&d->addr);

    *link = d->next;
    p->count--;
    hth_map_del(p->by_addr, key.b, sizeof(key.b));
    hth_free(d);
}

static bool is_up(const struct hth_prover *p, const struct dialled *d)
{
    struct hth_host_status host;

    return hth_directory_host_find(p->directory, &d->id, &host) && !host.dead &&
           hth_addr_eq(&host.ref.addr, &d->addr);
}

static void sweep(struct hth_prover *p)
{
    int64_t now = hth_now_us(p->env);

    for (struct dialled **link = &p->all; *link != NULL;) {
        struct dialled *d = *link;

        if (d->call != NULL || d->forget_us > now || (d->proved && is_up(p, d)))
            link = &d->next;
        else
            forget(p, link);
    }
}

/* Of a host that fails to answer nobody knows why. But another key is at that address, or none of
 * several that claim it. */
static void count_refused(struct hth_prover *p, const struct dialled *d, enum hth_err err)
{
    char id[HTH_PEER_SHORT_LEN], addr[HTH_ADDR_TEXT_MAX];
    uint64_t n;

    if (err != HTH_E_BAD_PEER_ID && !d->is_shared)
        return;
    n = ++p->refused;
    if ((n & (n - 1)) == 0)
        HTH_LOG(p->env, HTH_WARN, HTH_SUB_TRAIN,
                "host %s claims experts at %s, and %s (%llu such claims so far): it lies, or has "
                "begun anew with another key",
                hth_peer_id_short(&d->id, id), hth_addr_text(&d->addr, addr),
                err == HTH_E_BAD_PEER_ID ? "another peer is there" : "so did others, in vain",
                (unsigned long long)n);
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct dialled *d = arg;
    struct hth_prover *p = d->prover;
    struct hth_rpc_peer_info info;
    bool connected = hth_rpc_peer_info(p->rpc, &d->id, &info) == HTH_OK && info.connected;
    int64_t now = hth_now_us(p->env);

    d->call = NULL;
    p->open--;
    /* A refusal proves a key as an answer does, and so does a silent connection. */
    if (result->err == HTH_OK || result->remote || connected) {
        hth_directory_prove(p->directory, &d->id, &d->addr);
        d->proved = true;
        d->is_shared = false;
        d->failed = 0;
        d->forget_us = now + PROVED_US;
    } else {
        count_refused(p, d, result->err);
        d->failed++;
        d->next_us = now + wait_us(d->failed);
        d->forget_us = d->next_us + FORGOTTEN_X * wait_us(d->failed);
    }
    hth_timer_set(p->env, p->timer, 0);
}

static void ask(struct hth_prover *p, const struct hth_host_ref *host)
{
    const struct hth_rpc_target to = {host->id, host->addr};
    struct hth_rpc_call_opts call = {.method = HTH_METHOD_EXPERT_INFO};
    struct addr_key key = key_of(&host->addr);
    struct dialled *d = hth_map_get(p->by_addr, key.b, sizeof(key.b));
    uint8_t payload[8];

    if (d == NULL && p->count == FAILED_MAX)
        return;
    if (d != NULL && d->proved && hth_peer_id_eq(&d->id, &host->id)) {
        hth_directory_prove(p->directory, &d->id, &d->addr);
        return;
    }
    if (d != NULL && d->proved && is_up(p, d)) /* nobody else is there */
        return;
    if (d != NULL && (d->call != NULL || d->next_us > hth_now_us(p->env)))
        return;
    if (d == NULL) {
        d = hth_new(struct dialled);
        d->prover = p;
        d->addr = host->addr;
        d->next = p->all;
        p->all = d;
        p->count++;
        hth_map_put(p->by_addr, key.b, sizeof(key.b), d);
    }
    d->is_shared = d->is_shared || (d->failed > 0 && !hth_peer_id_eq(&d->id, &host->id));
    d->id = host->id;
    d->proved = false;
    hth_info_request_pack(0, payload, &call.body.payload_len);
    call.body.payload = payload;
    if (hth_rpc_call(p->rpc, &to, &call, on_answer, d, &d->call) == HTH_OK)
        p->open++;
    else
        d->next_us = hth_now_us(p->env) + wait_us(1);
}

/* An address that is due and was left out is dialled when the directory changes or a dial ends. */
static void arm(struct hth_prover *p)
{
    int64_t first_us = INT64_MAX, now = hth_now_us(p->env);

    for (const struct dialled *d = p->all; d != NULL; d = d->next)
        if (d->call == NULL && d->next_us > now)
            first_us = HTH_MIN(first_us, d->next_us);
    if (first_us != INT64_MAX)
        hth_timer_set(p->env, p->timer, first_us - now);
}

/* From a random one on, so that those who came first have no advantage. */
void hth_prover_look(struct hth_prover *p)
{
    struct hth_host_status host;
    struct hth_directory_stats stats;
    uint32_t first;

    sweep(p);
    hth_directory_stats(p->directory, &stats);
    if (stats.hosts_dead == 0)
        return;
    first = (uint32_t)hth_rng_below(&p->env->rng, stats.hosts);
    for (uint32_t i = 0; i < stats.hosts && p->open < DIALS_MAX; i++)
        if (hth_directory_host_at(p->directory, (first + i) % stats.hosts, &host) &&
            host.ref.addr.family != 0 && hth_directory_needs(p->directory, &host.ref.id))
            ask(p, &host.ref);
    arm(p);
}

static void on_timer(void *arg)
{
    hth_prover_look(arg);
}

uint64_t hth_prover_refused(const struct hth_prover *p)
{
    return p->refused;
}

struct hth_prover *hth_prover_new(struct hth_env *env, struct hth_rpc *rpc,
                                  struct hth_directory *directory)
{
    struct hth_prover *p = hth_new(struct hth_prover);

    p->env = env;
    p->rpc = rpc;
    p->directory = directory;
    p->by_addr = hth_map_new();
    p->timer = hth_timer_new(env, on_timer, p);
    hth_timer_set(env, p->timer, 0);
    return p;
}

void hth_prover_free(struct hth_prover *p)
{
    if (p == NULL)
        return;
    while (p->all != NULL) {
        if (p->all->call != NULL)
            hth_rpc_cancel(p->all->call);
        forget(p, &p->all);
    }
    hth_map_free(p->by_addr);
    hth_timer_free(p->env, p->timer);
    hth_free(p);
}
