/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c: joining combines three sources: the DHT (does any node answer?), TCP probes of the
 * bootstrap addresses (does anything listen?) and the census (which networks?). It gives its result
 * as soon as they suffice, or at a deadline.
 */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "dht/census_int.h"
#include "dht/peers.h"
#include "dht/record.h"

#define POLL_US (50 * HTH_US_PER_MS)
/* Wait for a UDP answer when every TCP connection is refused: a later one is unlikely. */
#define REFUSED_WAIT_US (3 * HTH_US_PER_S)

/* Beacons change their key with the wall clock (record.h). If the DHT answers and the current keys
 * are empty, our clock may be so wrong that we read the wrong keys: only then the epochs up to
 * SCAN_EPOCHS / 2 away (an hour) are looked up. */
#define SCAN_EPOCHS 60
#define SCAN_WIDTH  6

struct tcp_probe {
    struct hth_join *join;
    struct hth_stream *stream;
    bool over;
    bool listens; /* something accepted the connection */
};

/* An expired beacon is left over from a crashed node (the DHT keeps values for ten minutes), or
 * belongs to a living node whose clock differs from ours. Dialling its owner tells the two
 * apart. */
struct owner_dial {
    struct hth_stream *stream;
    bool started, over, lives;
};

/* One query of the scan. */
struct scan_query {
    struct hth_join *join;
    struct hth_dht_get *get;
    struct hth_dht_key key;
};

struct hth_join {
    struct hth_env *env;
    struct hth_dht *dht;
    struct hth_join_opts opts;
    char network[HTH_NAME_LEN_MAX + 1];
    struct hth_addr bootstrap[HTH_BOOTSTRAP_MAX];
    struct tcp_probe probe[HTH_BOOTSTRAP_MAX];
    struct hth_census *census, *own_census;
    struct hth_timer *timer;
    int64_t start_us;
    int64_t answered_us; /* when the DHT first answered; INT64_MAX: not yet */
    int64_t scan_us;     /* when the scan began; INT64_MAX: not yet */
    int scan_next;       /* 0 .. SCAN_EPOCHS */
    struct scan_query scan[SCAN_WIDTH];
    struct hth_census_stats scanned;
    struct owner_dial owner_dial;
    uint32_t census_dead; /* expired beacons of the census whose owner does not answer */
    hth_join_fn *done;
    void *arg;
};

/* ---- TCP probes ---------------------------------------------------------------------------- */

/* True once a probe that is still open must have connected: the other side accepts and is
 * silent. */
static bool dial_is_over(const struct hth_join *j)
{
    return hth_now_us(j->env) - j->start_us > HTH_DIAL_TIMEOUT_US + HTH_US_PER_S;
}

static void probe_open(struct hth_stream *s, void *arg)
{
    struct tcp_probe *p = arg;
    p->listens = true;
    p->over = true;
    p->stream = NULL;
    hth_stream_close(p->join->env, s, false);
}

static void probe_readable(struct hth_stream *s, void *arg)
{
    (void)s;
    (void)arg;
}

static void probe_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct tcp_probe *p = arg;
    (void)s;
    p->stream = NULL;
    p->over = true;
    /* A connection that was accepted and then failed has something else than hearth, or an old
     * hearth, at its other end. */
    p->listens = err != HTH_E_REFUSED && err != HTH_E_UNREACHABLE &&
                 (err != HTH_E_TIMEOUT || dial_is_over(p->join));
}

static const struct hth_stream_ops PROBE_OPS = {.on_open = probe_open,
                                                .on_readable = probe_readable,
                                                .on_drained = probe_readable,
                                                .on_closed = probe_closed};

static void probes_start(struct hth_join *j)
{
    for (size_t i = 0; i < j->opts.bootstrap_count; i++) {
        struct tcp_probe *p = &j->probe[i];
        p->join = j;
        enum hth_err err = hth_dial(j->env, &j->bootstrap[i], NULL, &PROBE_OPS, p, &p->stream);
        p->over = err != HTH_OK;
    }
}

static void probes_stop(struct hth_join *j)
{
    for (size_t i = 0; i < j->opts.bootstrap_count; i++) {
        if (j->probe[i].stream != NULL)
            hth_stream_close(j->env, j->probe[i].stream, false);
        j->probe[i].stream = NULL;
    }
}

/* ---- the owner of an expired beacon --------------------------------------------------------- */

static void owner_open(struct hth_stream *s, void *arg)
{
    struct hth_join *j = arg;
    j->owner_dial = (struct owner_dial){.started = true, .over = true, .lives = true};
    hth_stream_close(j->env, s, false);
}

static void owner_closed(struct hth_stream *s, enum hth_err err, void *arg)
{
    struct hth_join *j = arg;
    (void)s;
    (void)err;
    j->owner_dial.stream = NULL;
    j->owner_dial.over = true;
}

static const struct hth_stream_ops OWNER_OPS = {.on_open = owner_open,
                                                .on_readable = probe_readable,
                                                .on_drained = probe_readable,
                                                .on_closed = owner_closed};

static void owner_stop(struct hth_join *j)
{
    if (j->owner_dial.stream != NULL)
        hth_stream_close(j->env, j->owner_dial.stream, false);
    j->owner_dial.stream = NULL;
}

/* Dials the owner of the newest expired beacon; true until that dial has ended. */
static bool owner_is_dialled(struct hth_join *j, const struct hth_census_stats *s)
{
    struct owner_dial *w = &j->owner_dial;
    if (s->expired == 0 || s->expired_addr.family == 0)
        return false;
    if (!w->started) {
        w->started = true;
        w->over =
            hth_dial(j->env, &s->expired_addr, &s->expired_id, &OWNER_OPS, j, &w->stream) != HTH_OK;
    }
    return !w->over;
}

/* ---- the scan of other epochs ---------------------------------------------------------------- */

static bool on_scan_value(void *arg, const uint8_t *data, size_t len)
{
    struct scan_query *query = arg;
    struct hth_join *j = query->join;
    struct hth_record rec;
    int64_t wall_us = hth_wall_us(j->env);
    if (hth_record_peek(data, len, &rec) != HTH_OK || rec.kind != HTH_RECORD_BEACON ||
        hth_record_verify(j->env, NULL, &query->key, data, len, &rec, NULL) != HTH_OK)
        return true;
    enum hth_err err = hth_record_check_time(&rec, wall_us);
    bool ours = j->opts.any_network || rec.network == hth_network_tag(j->env->crypto, j->network);
    /* Our own records from before a restart, and valid records from just before the epoch changed,
     * do not show a wrong clock. */
    if (memcmp(rec.owner.b, j->env->pubkey.b, sizeof(rec.owner.b)) == 0 || (ours && err == HTH_OK))
        return true;
    if (!ours)
        j->scanned.wrong_network++;
    else if (err == HTH_E_CLOCK_SKEW)
        j->scanned.clock_ahead++;
    else
        hth_census_count_expired(&j->scanned, j->env->crypto, &rec);
    hth_record_explain(err, &rec, wall_us, j->scanned.refusal);
    return true;
}

static void on_scan_done(void *arg, enum hth_err err)
{
    struct scan_query *query = arg;
    (void)err;
    query->get = NULL;
}

/* Keeps SCAN_WIDTH lookups under way: the epochs 1, -1, 2, -2 ... away. False when the scan has
 * ended. */
static bool scan_step(struct hth_join *j)
{
    struct hth_topic topic;
    bool busy = false;
    hth_topic_init(&topic, j->env->crypto, j->network, HTH_RECORD_BEACON, "", 0);
    for (size_t i = 0; i < SCAN_WIDTH; i++) {
        struct scan_query *query = &j->scan[i];
        if (query->get == NULL && j->scan_next < SCAN_EPOCHS) {
            int away = (j->scan_next / 2 + 1) * (j->scan_next % 2 == 0 ? 1 : -1);
            int64_t epoch = hth_topic_epoch(hth_wall_us(j->env)) + away;
            j->scan_next++;
            query->join = j;
            hth_topic_key(&topic, j->env->crypto, epoch, &query->key);
            if (hth_dht_get(j->dht, &query->key, on_scan_value, on_scan_done, query, &query->get) !=
                HTH_OK)
                query->get = NULL;
        }
        busy = busy || query->get != NULL;
    }
    return busy && hth_now_us(j->env) - j->scan_us < j->opts.scan_us;
}

static void scan_stop(struct hth_join *j)
{
    for (size_t i = 0; i < SCAN_WIDTH; i++) {
        if (j->scan[i].get != NULL)
            hth_dht_get_cancel(j->dht, j->scan[i].get);
        j->scan[i].get = NULL;
    }
}

/* ---- the verdict --------------------------------------------------------------------------- */

static void finish(struct hth_join *j, enum hth_err err, const struct hth_census_stats *s,
                   const char *advice)
{
    struct hth_join_result result = {.err = err, .nodes = s->nodes};
    hth_join_fn *done = j->done;
    result.took_us = hth_now_us(j->env) - j->start_us;
    snprintf(result.text, sizeof(result.text), "%s%s%s", err == HTH_OK ? "" : hth_err_text(err),
             err == HTH_OK ? "" : ": ", advice);
    probes_stop(j);
    owner_stop(j);
    scan_stop(j);
    hth_timer_free(j->env, j->timer);
    j->timer = NULL;
    j->done = NULL;
    if (done != NULL)
        done(j->arg, &result);
}

static void finish_unanswered(struct hth_join *j, const struct hth_census_stats *s)
{
    char addr[HTH_ADDR_TEXT_MAX], advice[240];
    bool listens = false;
    for (size_t i = 0; i < j->opts.bootstrap_count; i++)
        listens = listens || j->probe[i].listens || (!j->probe[i].over && dial_is_over(j));
    hth_addr_text(&j->bootstrap[0], addr);
    if (listens) {
        snprintf(
            advice, sizeof(advice),
            "a program accepts TCP connections at %s, but nothing answers on UDP port %u there; "
            "open that port for UDP in the firewalls on the way, or correct the address",
            addr, (unsigned)j->bootstrap[0].port);
        finish(j, HTH_E_JOIN_UDP_CLOSED, s, advice);
        return;
    }
    snprintf(
        advice, sizeof(advice),
        "neither UDP nor TCP is answered at %s%s; is the node running, and is that the address "
        "and port it printed?",
        addr, j->opts.typed_count > 1 ? " and the other bootstrap addresses" : "");
    finish(j, HTH_E_JOIN_NOTHING_LISTENS, s, advice);
}

/* Ends the join: the DHT answers, but no beacon of this network came in time. */
static void finish_strangers(struct hth_join *j, const struct hth_census_stats *s)
{
    char advice[280];
    if (s->clock_ahead > 0 || s->expired > 0) {
        snprintf(advice, sizeof(advice), "a node's record was %s", s->refusal);
        finish(j, HTH_E_JOIN_CLOCK, s, advice);
    } else if (s->version > 0) {
        finish(j, HTH_E_JOIN_VERSION, s, "update this program");
    } else if (s->namesake[0] != '\0') {
        snprintf(advice, sizeof(advice),
                 "nodes answer, but in network \"%s\": their run file is not ours, \"%s\"; compare "
                 "the files, and the invite",
                 s->namesake, j->network);
        finish(j, HTH_E_JOIN_WRONG_NETWORK, s, advice);
    } else if (s->wrong_network > 0) {
        snprintf(advice, sizeof(advice),
                 "nodes answer, but none is in network \"%s\"; check its name", j->network);
        finish(j, HTH_E_JOIN_WRONG_NETWORK, s, advice);
    } else {
        finish(j, HTH_OK, s, "the DHT answers; no other node of this network was seen yet");
    }
}

static uint32_t strangers(const struct hth_census_stats *s)
{
    return s->wrong_network + s->clock_ahead + s->expired + s->version + s->damaged;
}

/* The DHT answers and no beacon of this network came: judges the beacons that came, or starts the
 * next lookup. */
static void judge_strangers(struct hth_join *j, struct hth_census_stats *s)
{
    s->expired -= HTH_MIN(s->expired, j->census_dead);
    struct hth_census_stats *seen = strangers(s) > 0 ? s : &j->scanned;
    if (owner_is_dialled(j, seen)) {
        hth_timer_set(j->env, j->timer, POLL_US);
        return;
    }
    if (seen->expired > 0 && !j->owner_dial.lives) {
        if (seen == s)
            j->census_dead += s->expired;
        seen->expired = 0;
        j->owner_dial = (struct owner_dial){.started = false};
    }
    if (strangers(seen) > 0) {
        finish_strangers(j, seen);
        return;
    }
    if (j->scan_us == INT64_MAX)
        j->scan_us = hth_now_us(j->env);
    if (scan_step(j))
        hth_timer_set(j->env, j->timer, POLL_US);
    else
        finish_strangers(j, &j->scanned);
}

static bool all_refused(const struct hth_join *j)
{
    for (size_t i = 0; i < j->opts.bootstrap_count; i++)
        if (!j->probe[i].over || j->probe[i].listens)
            return false;
    return true;
}

static void on_timer(void *arg)
{
    struct hth_join *j = arg;
    struct hth_census_stats s;
    struct hth_dht_stats dht;
    int64_t waited_us = hth_now_us(j->env) - j->start_us;
    hth_census_stats(j->census, &s);
    hth_dht_stats(j->dht, &dht);
    bool any_beacon = s.nodes + strangers(&s) > 0;
    if ((any_beacon || dht.nodes_good > 0) && j->answered_us == INT64_MAX)
        j->answered_us = hth_now_us(j->env);
    if (j->opts.bootstrap_count == 0)
        finish(j, HTH_OK, &s, "no bootstrap address was given: this is the first node");
    else if (s.nodes > 0)
        finish(j, HTH_OK, &s, "the swarm was found");
    else if (j->answered_us != INT64_MAX &&
             hth_now_us(j->env) - j->answered_us >= j->opts.beacon_us)
        judge_strangers(j, &s);
    else if (j->answered_us == INT64_MAX &&
             (waited_us >= j->opts.timeout_us || (waited_us >= REFUSED_WAIT_US && all_refused(j))))
        finish_unanswered(j, &s);
    else
        hth_timer_set(j->env, j->timer, POLL_US);
}

enum hth_err hth_join_new(struct hth_env *env, struct hth_dht *dht,
                          const struct hth_join_opts *opts, hth_join_fn *done, void *arg,
                          struct hth_join **out)
{
    *out = NULL;
    if (opts->bootstrap_count > HTH_BOOTSTRAP_MAX)
        return HTH_E_BUDGET;
    struct hth_join *j = hth_new(struct hth_join);
    j->env = env;
    j->dht = dht;
    j->opts = *opts;
    j->done = done;
    j->arg = arg;
    j->start_us = hth_now_us(env);
    j->answered_us = INT64_MAX;
    j->scan_us = INT64_MAX;
    for (size_t i = 0; i < opts->bootstrap_count; i++)
        j->bootstrap[i] = opts->bootstrap[i];
    const char *network = opts->any_network ? NULL : opts->network;
    enum hth_err err = opts->any_network || network != NULL ? HTH_OK : HTH_E_CONFIG;
    if (err == HTH_OK && opts->census == NULL)
        err = hth_census_new(env, dht, network, &j->own_census);
    j->census = opts->census != NULL ? opts->census : j->own_census;
    if (err != HTH_OK) {
        hth_free(j);
        return err;
    }
    if (network != NULL)
        memcpy(j->network, network, strlen(network) + 1);
    j->timer = hth_timer_new(env, on_timer, j);
    hth_timer_set(env, j->timer, 0);
    probes_start(j);
    *out = j;
    return HTH_OK;
}

void hth_join_free(struct hth_join *j)
{
    if (j == NULL)
        return;
    probes_stop(j);
    owner_stop(j);
    scan_stop(j);
    hth_timer_free(j->env, j->timer);
    hth_census_free(j->own_census);
    hth_free(j);
}
