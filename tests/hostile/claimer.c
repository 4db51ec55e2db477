/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claimer.c: many keys that say in the DHT that all experts of the toy run live at one address. A
 * `member` has a pass of the invite; `stranger`s have none, and write beacons and noise into other
 * topics besides. Says when all records are out; then renews them until a signal ends it.
 *
 *     claimer stranger|member INVITE-FILE JOIN-ADDR LISTEN-ADDR CLAIMED-ADDR KEYS
 */
#include "hostile/attack.h"

#include "admission/gate.h"
#include "core/mem.h"
#include "dht/listing.h"
#include "dht/members.h"
#include "dht/opendht.h"
#include "net/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUT_US   (4 * HTH_US_PER_MS) /* 300 keys are out in five seconds */
#define RENEW_US (20 * HTH_US_PER_S)
#define LIFE_MS  120000
#define NOISE    64

static const struct {
    enum hth_record_kind kind;
    const char *name;
} topics[] = {{HTH_RECORD_ROOT, "ffn0."},
              {HTH_RECORD_BEACON, ""},
              {HTH_RECORD_PROGRESS, "roster"}};

struct claimer {
    struct hth_env *env;
    struct hth_opendht *opendht;
    struct hth_dht *dht;
    char network[HTH_NAME_LEN_MAX + 1];
    struct hth_host_info info;
    struct hth_timer *timer;
    uint32_t keys, topics, next; /* topics of each key; next: of the records of all */
    int64_t began_us;
    bool said;
    struct hth_dht_put **put;
    /* of a member */
    struct hth_closed_run run;
    struct hth_admission own;
    struct hth_members *members;
};

static void be(struct hth_env *env, const struct hth_secret *secret)
{
    env->secret = *secret;
    env->crypto->public_of(secret, &env->pubkey);
}

static enum hth_err fill(const struct claimer *c, enum hth_record_kind kind, struct hth_writer *w)
{
    static const uint32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const uint8_t noise[NOISE];
    struct hth_beacon_layer layer = {.shape = {"ffn", 32, 1}, .experts = HTH_ARRAY_LEN(all)};
    HTH_TRY(hth_grid_init(&layer.grid, "ffn0", 2, (const uint32_t[]){2, 4}));
    struct hth_listing listing = {.info = c->info, .grid = layer.grid, .shape = layer.shape};
    struct hth_beacon beacon = {.protocol_min = HTH_PROTOCOL_MIN,
                                .protocol_max = HTH_PROTOCOL_MAX,
                                .role = HTH_ROLE_HOST,
                                .info = c->info,
                                .layers = &layer,
                                .layer_count = 1};
    size_t taken;
    memcpy(beacon.network, c->network, sizeof(beacon.network));
    if (kind == HTH_RECORD_ROOT) {
        HTH_TRY(hth_listing_write_head(w, &listing));
        return hth_listing_write_set(w, all, HTH_ARRAY_LEN(all), w->capacity - w->pos, &taken);
    }
    if (kind == HTH_RECORD_BEACON)
        return hth_beacon_write(w, &beacon, w->capacity);
    hth_write_bytes(w, noise, sizeof(noise));
    return w->err;
}

/* Seals the next record with its key, and puts it in the place of the older one. */
static enum hth_err put_next(struct claimer *c)
{
    uint8_t payload[512], bytes[HTH_DHT_VALUE_BYTES_MAX];
    const char *name = topics[c->next % c->topics].name;
    enum hth_record_kind kind = topics[c->next % c->topics].kind;
    struct hth_secret own = c->env->secret, secret;
    int64_t wall = hth_wall_us(c->env);
    struct hth_topic topic;
    struct hth_dht_key key;
    struct hth_writer w;
    size_t len;
    hth_topic_init(&topic, c->env->crypto, c->network, kind, name, strlen(name));
    hth_topic_key(&topic, c->env->crypto, hth_topic_epoch(wall), &key);
    hth_writer_init(&w, payload, sizeof(payload));
    HTH_TRY(fill(c, kind, &w));
    struct hth_record rec = {.kind = (uint8_t)kind,
                             .network = hth_network_tag(c->env->crypto, c->network),
                             .seq = (uint64_t)wall,
                             .issued_us = wall,
                             .life_ms = LIFE_MS,
                             .payload = payload,
                             .payload_len = w.pos};
    if (c->members == NULL) {
        attack_key(c->next / c->topics, &secret);
        be(c->env, &secret);
    }
    enum hth_err err = hth_record_seal(c->env, &key, &rec, bytes, sizeof(bytes), &len);
    be(c->env, &own);
    HTH_TRY(err);
    if (c->put[c->next] != NULL)
        hth_dht_withdraw(c->dht, c->put[c->next]);
    return hth_dht_put(c->dht, &key, bytes, len, NULL, NULL, &c->put[c->next++]);
}

static void on_timer(void *arg)
{
    struct claimer *c = arg;
    struct hth_dht_stats stats;
    hth_dht_stats(c->dht, &stats);
    if (stats.nodes_good == 0) {
        hth_timer_set(c->env, c->timer, PUT_US);
        return;
    }
    if (c->next == 0)
        c->began_us = hth_now_us(c->env);
    if (put_next(c) != HTH_OK) {
        fputs("a record can't be put\n", stderr);
        hth_net_stop(c->env);
        return;
    }
    if (c->next < c->keys * c->topics) {
        hth_timer_set(c->env, c->timer, PUT_US);
        return;
    }
    if (!c->said)
        printf("%u keys claim all experts\n", c->keys);
    fflush(stdout);
    c->said = true;
    c->next = 0;
    hth_timer_set(c->env, c->timer, c->began_us + RENEW_US - hth_now_us(c->env));
}

/* Publishes the pass of the invite for our own key. */
static enum hth_err join(struct claimer *c, const struct hth_invite *invite)
{
    hth_invite_run(c->env->crypto, invite, &c->run);
    struct hth_revoked_set *revoked = hth_revoked_set_new(c->env->crypto, &c->run);
    c->run.revoked = revoked;
    c->own.creds_len = hth_invite_creds(c->env->crypto, invite, &c->env->secret,
                                        hth_wall_us(c->env), c->own.creds);
    c->own.admit = hth_gate_check;
    c->own.holds = hth_gate_holds;
    c->own.arg = hth_gate_new(c->env, &c->run);
    const struct hth_members_opts opts = {.network = c->network,
                                          .run = &c->run,
                                          .revoked = revoked,
                                          .own = &c->own,
                                          .publishes = true};
    return hth_members_new(c->env, c->dht, &opts, &c->members);
}

/* A signal ends it, so nothing is freed. */
int main(int argc, char **argv)
{
    static struct claimer c;
    struct hth_net_opts net = {.compute_threads = 1};
    struct hth_opendht_opts dht = HTH_OPENDHT_OPTS_INIT;
    struct hth_invite invite;
    struct hth_addr join_addr;
    bool member = argc > 1 && strcmp(argv[1], "member") == 0;
    c.info = (struct hth_host_info){.addr_count = 1, .rows_per_s = 1e6f, .version = "1"};
    c.topics = member ? 1 : HTH_ARRAY_LEN(topics);
    if (argc == 7)
        c.keys = (uint32_t)strtoul(argv[6], NULL, 10);
    if (c.keys == 0 || (member && c.keys > 1) || !attack_invite(argv[2], &invite, c.network) ||
        !attack_addr(argv[3], &join_addr) || !attack_addr(argv[4], &dht.bind) ||
        !attack_addr(argv[5], &c.info.addr[0])) {
        fputs("usage: claimer stranger|member INVITE-FILE JOIN LISTEN CLAIMED KEYS, of loopback; "
              "a member has one key\n",
              stderr);
        return 2;
    }
    dht.bootstrap = &join_addr;
    dht.bootstrap_count = 1;
    if (hth_net_new(&net, &c.env) != HTH_OK || hth_opendht_new(c.env, &dht, &c.opendht) != HTH_OK)
        return 1;
    c.dht = hth_opendht_dht(c.opendht);
    if (member && join(&c, &invite) != HTH_OK)
        return 1;
    c.put = hth_new_array(struct hth_dht_put *, c.keys * c.topics);
    c.timer = hth_timer_new(c.env, on_timer, &c);
    hth_timer_set(c.env, c.timer, 0);
    return hth_net_run(c.env) == HTH_OK ? 0 : 1;
}
