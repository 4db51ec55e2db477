/* SPDX-License-Identifier: Apache-2.0 */
/* owner_publish.c: joins for a moment, reads the lists that are there, and puts one record. */
#include "app/owner_int.h"

#include "app/local.h"
#include "app/peer.h"
#include "dht/record.h"

/* A list may lie under the key of this epoch or of the last one. */
#define GETS 2

struct publishing {
    struct hth_peer peer;
    struct hth_owner_news *news;
    struct hth_topic topic;
    struct hth_dht_put *put;
    struct hth_dht_get *get[GETS];
    size_t done;
};

static void end(struct publishing *p, enum hth_err err)
{
    if (err != HTH_OK && p->news->err == HTH_OK) /* else it was printed */
        hth_cli_say_error("no peer took the list: %s", hth_err_text(err));
    hth_peer_stop(&p->peer, hth_exit_of(err));
}

static void on_put(void *arg, enum hth_err err)
{
    end(arg, err);
}

static enum hth_err put(struct publishing *p)
{
    struct hth_env *env = p->peer.env;
    struct hth_dht_key key;
    uint8_t bytes[HTH_DHT_VALUE_BYTES_MAX];
    size_t len;
    int64_t wall_us = hth_wall_us(env);
    p->news->err = p->news->sign(p->news->arg, p->news);
    HTH_TRY(p->news->err);
    hth_topic_key(&p->topic, env->crypto, hth_topic_epoch(wall_us), &key);
    const struct hth_record rec = {.kind = HTH_RECORD_REVOKED,
                                   .network = p->topic.network,
                                   .seq = (uint64_t)wall_us,
                                   .issued_us = wall_us,
                                   .life_ms = 600 * 1000,
                                   .payload = p->news->bytes,
                                   .payload_len = p->news->len};
    HTH_TRY(hth_record_seal(env, &key, &rec, bytes, sizeof(bytes), &len));
    return hth_dht_put(p->peer.dht, &key, bytes, len, on_put, p, &p->put);
}

/* Takes over what the signer's own list lacks: its folder may be new, or an old copy. The list's
 * signature is looked at, the record's tells nothing: anybody may pass a list on. */
static bool on_value(void *arg, const uint8_t *data, size_t len)
{
    struct publishing *p = arg;
    struct hth_revoked *own = p->news->list;
    struct hth_record rec;
    struct hth_revoked got;
    enum hth_err err = hth_record_peek(data, len, &rec);
    if (err == HTH_OK)
        err =
            hth_revoked_read(p->peer.env->crypto, p->news->run, rec.payload, rec.payload_len, &got);
    if (err != HTH_OK || !hth_revoked_same(&got.by, &own->by))
        return true;
    own->seq = HTH_MAX(own->seq, got.seq);
    for (uint16_t i = 0; i < got.count && err != HTH_E_TOO_LARGE; i++)
        err = hth_revoked_add(own, got.entry[i]);
    return true;
}

static void on_got(struct publishing *p)
{
    if (++p->done < GETS)
        return;
    enum hth_err err = put(p);
    if (err != HTH_OK)
        end(p, err);
}

static void on_got_now(void *arg, enum hth_err err)
{
    struct publishing *p = arg;
    (void)err;
    p->get[0] = NULL;
    on_got(p);
}

static void on_got_before(void *arg, enum hth_err err)
{
    struct publishing *p = arg;
    (void)err;
    p->get[1] = NULL;
    on_got(p);
}

static void on_joined(void *arg)
{
    static hth_dht_done_fn *const done[GETS] = {on_got_now, on_got_before};
    struct publishing *p = arg;
    struct hth_env *env = p->peer.env;
    struct hth_dht_key key;
    enum hth_err err = HTH_OK;
    hth_topic_init(&p->topic, env->crypto, p->peer.network, HTH_RECORD_REVOKED, "", 0);
    for (int i = 0; i < GETS && err == HTH_OK; i++) {
        hth_topic_key(&p->topic, env->crypto, hth_topic_epoch(hth_wall_us(env)) - i, &key);
        err = hth_dht_get(p->peer.dht, &key, on_value, done[i], p, &p->get[i]);
    }
    if (err != HTH_OK)
        end(p, err);
}

int hth_owner_publish(const struct hth_cli_net *net, const char *network,
                      struct hth_owner_news *news)
{
    const struct hth_cli_log log = {0};
    struct publishing p = {.news = news};
    struct hth_gather_own own[HTH_LOCAL_MAX];
    struct hth_addr also[HTH_LOCAL_MAX + HTH_INVITE_ADDRS_MAX];
    size_t count = net->join_count == 0 ? hth_local_find(NULL, own) : 0;
    for (size_t i = 0; i < count; i++)
        also[i] = own[i].addr;
    for (size_t i = 0; i < news->through_count; i++)
        also[count++] = news->through[i];
    const struct hth_peer_opts opts = {.verb = "owner",
                                       .net = net,
                                       .log = &log,
                                       .network = network,
                                       .quiet = true,
                                       .ephemeral = true,
                                       .also = also,
                                       .also_count = count};
    int code = hth_peer_open(&opts, &p.peer);
    if (code != HTH_EXIT_OK)
        return code;
    p.peer.on_joined = on_joined;
    p.peer.arg = &p;
    code = hth_peer_run(&p.peer);
    for (size_t i = 0; i < GETS; i++)
        if (p.get[i] != NULL)
            hth_dht_get_cancel(p.peer.dht, p.get[i]);
    if (p.put != NULL)
        hth_dht_withdraw(p.peer.dht, p.put);
    hth_peer_jobs_end(&p.peer);
    hth_peer_close(&p.peer);
    return code;
}
