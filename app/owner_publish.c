/* SPDX-License-Identifier: Apache-2.0 */
/* owner_publish.c: joins for a moment, and puts one record. */
#include "app/owner_publish.h"

#include "app/peer.h"
#include "dht/record.h"

/* A list on its way into the DHT. */
struct publishing {
    struct hth_peer peer;
    const uint8_t *list;
    size_t len;
    struct hth_dht_put *put;
};

static void on_put(void *arg, enum hth_err err)
{
    struct publishing *p = arg;
    if (err != HTH_OK)
        hth_cli_say_error("no peer took the list: %s; repeat the command", hth_err_text(err));
    hth_peer_stop(&p->peer, hth_exit_of(err));
}

static void on_joined(void *arg)
{
    struct publishing *p = arg;
    struct hth_env *env = p->peer.env;
    struct hth_topic topic;
    struct hth_dht_key key;
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    size_t len;
    int64_t wall_us = hth_wall_us(env);
    hth_topic_init(&topic, env->crypto, p->peer.network, HTH_RECORD_REVOKED, "", 0);
    hth_topic_key(&topic, env->crypto, hth_topic_epoch(wall_us), &key);
    const struct hth_record rec = {.kind = HTH_RECORD_REVOKED,
                                   .network = topic.network,
                                   .seq = (uint64_t)wall_us,
                                   .issued_us = wall_us,
                                   .life_ms = 600 * 1000,
                                   .payload = p->list,
                                   .payload_len = p->len};
    enum hth_err err = hth_record_seal(env, &key, &rec, bytes, sizeof(bytes), &len);
    if (err == HTH_OK)
        err = hth_dht_put(p->peer.dht, &key, bytes, len, on_put, p, &p->put);
    if (err != HTH_OK)
        on_put(p, err);
}

int hth_owner_publish(const struct hth_cli_net *net, const char *network, const uint8_t *list,
                      size_t len)
{
    const struct hth_cli_log log = {0};
    struct publishing p = {.list = list, .len = len};
    const struct hth_peer_opts opts = {.verb = "owner",
                                       .net = net,
                                       .log = &log,
                                       .network = network,
                                       .quiet = true,
                                       .ephemeral = true};
    int code = hth_peer_open(&opts, &p.peer);
    if (code != HTH_EXIT_OK)
        return code;
    p.peer.on_joined = on_joined;
    p.peer.arg = &p;
    code = hth_peer_run(&p.peer);
    if (p.put != NULL)
        hth_dht_withdraw(p.peer.dht, p.put);
    hth_peer_jobs_end(&p.peer);
    hth_peer_close(&p.peer);
    return code;
}
