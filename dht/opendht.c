/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opendht.c: one queue joins OpenDHT's threads and our loop.
 *
 *   OpenDHT's threads                          |          our loop
 *   callback(op) -> copy -> inbox (locked) ----|-post-> drain: op's callbacks, op freed
 *
 * An `op` is a put, get, watch or ping under way. Its address is given to OpenDHT as user data, so
 * it must live until OpenDHT has dropped the callback: a get, put or ping until its done callback,
 * a watch until its shutdown callback. If the caller releases it earlier, it is only marked as
 * closed. OpenDHT drops some callbacks without calling them (a put that is canceled before it was
 * sent); such ops are freed with the node. After dht_runner_delete no callback runs.
 */
#include "dht/opendht.h"

#include <netinet/in.h>
#include <opendht/opendht_c.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "core/limits.h"
#include "core/mem.h"
#include "dht/opendht_bind.h"

#define GET_TIMEOUT_US  (15 * HTH_US_PER_S)
#define PING_RETRY_US   (1 * HTH_US_PER_S)
#define PING_AGAIN_US   (30 * HTH_US_PER_S)
#define PING_GOOD_US    (100 * HTH_US_PER_S)
#define PUT_GOOD_US     (600 * HTH_US_PER_S)
#define INBOX_BYTES_MAX (8u << 20)
/* A value may cost the check of a signature, a tenth of a millisecond: a flood of them must not
 * occupy the loop. */
#define EVENTS_PER_TURN 64

enum op_kind { OP_PUT, OP_GET, OP_WATCH, OP_PING };

struct opendht_op {
    enum op_kind kind;
    struct inbox *inbox;
    struct hth_opendht *o;
    struct opendht_op *next, *prev; /* in o->ops */
    struct hth_dht_key key;
    bool closed;       /* the caller released it: no more callbacks */
    atomic_bool quiet; /* the same, for OpenDHT's threads: copy no more values */
    bool settled;      /* a put's done came */
    dht_value *value;
    dht_op_token *token;
    struct hth_timer *timer; /* a get's deadline */
    hth_dht_value_fn *on_value;
    hth_dht_done_fn *on_done;
    void *arg;
    size_t boot; /* a ping's bootstrap address */
};

enum event_kind { EVENT_VALUE, EVENT_DONE, EVENT_ENDED };

struct opendht_event {
    struct opendht_event *next;
    struct opendht_op *op;
    enum event_kind kind;
    bool ok;
    size_t len;
    uint8_t data[];
};

/* An inbox outlives its node while a posted drain is pending; its node is then NULL. Such inboxes
 * are kept in a list, so that one whose env ends first is not a leak. */
struct inbox {
    pthread_mutex_t lock;
    struct hth_env *env;
    struct hth_opendht *o;
    struct opendht_event *head, *tail;
    size_t bytes;
    bool posted;
    uint64_t dropped; /* values refused here: too long, or no room */
    struct inbox *next_orphan;
};

static pthread_mutex_t orphans_lock = PTHREAD_MUTEX_INITIALIZER;
static struct inbox *orphans;

struct boot {
    struct hth_addr addr;
    bool pinging;
    bool answered;
    int64_t answered_us;
    int64_t next_us;
};

struct hth_opendht {
    struct hth_dht dht;
    struct hth_env *env;
    dht_runner *runner;
    struct hth_addr bind;
    struct hth_opendht_door *door;
    struct inbox *inbox;
    struct opendht_op *ops;
    struct boot boot[HTH_BOOTSTRAP_MAX];
    size_t boot_count;
    struct hth_timer *ping_timer;
    bool put_accepted;
    int64_t put_accepted_us;
    struct hth_dht_stats stats;
};

/* ---- the inbox ----------------------------------------------------------------------------- */

static void drain(void *arg);

/* Any thread. Takes the event. */
static void inbox_push(struct inbox *in, struct opendht_event *e)
{
    bool wake;
    pthread_mutex_lock(&in->lock);
    e->next = NULL;
    if (in->tail != NULL)
        in->tail->next = e;
    else
        in->head = e;
    in->tail = e;
    in->bytes += sizeof(*e) + e->len;
    wake = !in->posted;
    in->posted = true;
    pthread_mutex_unlock(&in->lock);
    if (wake)
        hth_post(in->env, drain, in);
}

static void push_plain(struct opendht_op *op, enum event_kind kind, bool ok)
{
    struct opendht_event *e = hth_calloc(1, sizeof(*e));
    e->op = op;
    e->kind = kind;
    e->ok = ok;
    inbox_push(op->inbox, e);
}

static void push_value(struct opendht_op *op, const dht_value *value)
{
    struct inbox *in = op->inbox;
    dht_data_view view = dht_value_get_data(value);
    struct opendht_event *e = NULL;
    pthread_mutex_lock(&in->lock);
    /* Empty values count as well, because the event has a size. */
    bool fits = view.size <= HTH_DHT_VALUE_BYTES_MAX &&
                in->bytes + sizeof(*e) + view.size <= INBOX_BYTES_MAX;
    in->dropped += !fits;
    pthread_mutex_unlock(&in->lock);
    if (fits)
        e = hth_try_calloc(1, sizeof(*e) + view.size);
    if (e == NULL)
        return;
    e->op = op;
    e->kind = EVENT_VALUE;
    e->len = view.size;
    if (view.size > 0)
        memcpy(e->data, view.data, view.size);
    inbox_push(in, e);
}

/* The next functions run on OpenDHT's threads. */
static bool cb_get_value(const dht_value *value, void *arg)
{
    struct opendht_op *op = arg;
    if (atomic_load(&op->quiet))
        return false;
    push_value(op, value);
    return true;
}

static bool cb_watch_value(const dht_value *value, bool expired, void *arg)
{
    struct opendht_op *op = arg;
    if (!expired && !atomic_load(&op->quiet))
        push_value(op, value);
    return true;
}

static void cb_done(bool ok, void *arg)
{
    push_plain(arg, EVENT_DONE, ok);
}

static void cb_ended(void *arg)
{
    push_plain(arg, EVENT_ENDED, true);
}

/* ---- ops ----------------------------------------------------------------------------------- */

static struct opendht_op *op_new(struct hth_opendht *o, enum op_kind kind,
                                 const struct hth_dht_key *key)
{
    struct opendht_op *op = hth_new(struct opendht_op);
    op->kind = kind;
    op->inbox = o->inbox;
    op->o = o;
    if (key != NULL)
        op->key = *key;
    op->next = o->ops;
    if (op->next != NULL)
        op->next->prev = op;
    o->ops = op;
    return op;
}

static void op_free(struct opendht_op *op)
{
    struct hth_opendht *o = op->o;
    if (op->prev != NULL)
        op->prev->next = op->next;
    else
        o->ops = op->next;
    if (op->next != NULL)
        op->next->prev = op->prev;
    hth_timer_free(o->env, op->timer);
    if (op->value != NULL)
        dht_value_unref(op->value);
    if (op->token != NULL)
        dht_op_token_delete(op->token);
    hth_free(op);
}

static void op_close(struct opendht_op *op)
{
    op->closed = true;
    atomic_store(&op->quiet, true);
    hth_timer_free(op->o->env, op->timer);
    op->timer = NULL;
}

static const dht_infohash *hash_of(const struct hth_dht_key *key)
{
    _Static_assert(sizeof(dht_infohash) == sizeof(struct hth_dht_key), "both are 20 bytes");
    return (const dht_infohash *)key;
}

static uint32_t nodes_good(const struct hth_opendht *o)
{
    uint32_t n = 0;
    for (size_t i = 0; i < o->boot_count; i++)
        n += o->boot[i].answered && hth_now_us(o->env) - o->boot[i].answered_us < PING_GOOD_US;
    bool put_good = o->put_accepted && hth_now_us(o->env) - o->put_accepted_us < PUT_GOOD_US;
    return n > 0 ? n : put_good;
}

static enum hth_err err_of(const struct hth_opendht *o, bool ok)
{
    if (ok)
        return HTH_OK;
    return nodes_good(o) > 0 ? HTH_E_TIMEOUT : HTH_E_UNREACHABLE;
}

/* OpenDHT's thread draws the value's id. A put that is withdrawn before that is canceled in its
 * done callback, when the id is known. */
static bool cancel_put(struct opendht_op *op)
{
    dht_value_id id = dht_value_get_id(op->value);
    if (id == 0)
        return false;
    dht_runner_cancel_put(op->o->runner, hash_of(&op->key), id);
    return true;
}

static void put_done(struct opendht_op *op, bool ok)
{
    struct hth_opendht *o = op->o;
    op->settled = true;
    if (ok) {
        o->put_accepted = true;
        o->put_accepted_us = hth_now_us(o->env);
    }
    if (op->closed) {
        cancel_put(op);
        op_free(op);
    } else if (op->on_done != NULL) {
        op->on_done(op->arg, err_of(o, ok));
    }
}

static void ping_done(struct opendht_op *op, bool ok)
{
    struct hth_opendht *o = op->o;
    struct boot *b = &o->boot[op->boot];
    b->pinging = false;
    b->next_us = hth_now_us(o->env) + (ok ? PING_AGAIN_US : PING_RETRY_US);
    if (ok) {
        b->answered = true;
        b->answered_us = hth_now_us(o->env);
    }
    op_free(op);
}

static void op_done(struct opendht_op *op, bool ok)
{
    struct hth_opendht *o = op->o;
    if (op->kind == OP_PUT) {
        put_done(op, ok);
    } else if (op->kind == OP_PING) {
        ping_done(op, ok);
    } else {
        hth_dht_done_fn *done = op->closed ? NULL : op->on_done;
        void *arg = op->arg;
        op_free(op);
        if (done != NULL)
            done(arg, err_of(o, ok));
    }
}

static void handle(struct opendht_event *e)
{
    struct opendht_op *op = e->op;
    if (e->kind == EVENT_ENDED) {
        if (op->closed)
            op_free(op);
    } else if (e->kind == EVENT_DONE) {
        op_done(op, e->ok);
    } else if (!op->closed) {
        const struct inbox *in = op->inbox;
        op->o->stats.values_seen++;
        bool more = op->on_value(op->arg, e->data, e->len);
        if (in->o == NULL)
            return; /* the callback freed the node */
        if (!more && op->kind == OP_GET && !op->closed) {
            /* The reader has enough: the get ends here, although OpenDHT goes on. */
            hth_dht_done_fn *done = op->on_done;
            op_close(op);
            if (done != NULL)
                done(op->arg, HTH_OK);
        }
    }
}

static void inbox_free(struct inbox *in)
{
    pthread_mutex_destroy(&in->lock);
    hth_free(in);
}

static void orphan_done(struct inbox *in)
{
    pthread_mutex_lock(&orphans_lock);
    for (struct inbox **link = &orphans; *link != NULL; link = &(*link)->next_orphan) {
        if (*link == in) {
            *link = in->next_orphan;
            break;
        }
    }
    pthread_mutex_unlock(&orphans_lock);
    inbox_free(in);
}

/* Loop thread. One event at a time, so that a callback that frees the node stops the rest. */
static void drain(void *arg)
{
    struct inbox *in = arg;
    if (in->o == NULL) {
        orphan_done(in);
        return;
    }
    for (int i = 0; i < EVENTS_PER_TURN; i++) {
        pthread_mutex_lock(&in->lock);
        struct opendht_event *e = in->head;
        if (e != NULL) {
            in->head = e->next;
            in->tail = in->head != NULL ? in->tail : NULL;
            in->bytes -= sizeof(*e) + e->len;
        } else {
            in->posted = false;
        }
        pthread_mutex_unlock(&in->lock);
        if (e == NULL)
            return;
        handle(e);
        hth_free(e);
        if (in->o == NULL) {
            orphan_done(in);
            return;
        }
    }
    hth_post(in->env, drain, in); /* `posted` stays true */
}

/* ---- the table ----------------------------------------------------------------------------- */

static enum hth_err o_put(void *self, const struct hth_dht_key *key, const void *data, size_t len,
                          hth_dht_done_fn *done, void *arg, struct hth_dht_put **put)
{
    struct hth_opendht *o = self;
    *put = NULL;
    if (len > HTH_DHT_VALUE_BYTES_MAX)
        return HTH_E_TOO_LARGE;
    struct opendht_op *op = op_new(o, OP_PUT, key);
    op->on_done = done;
    op->arg = arg;
    op->value = dht_value_new(data, len);
    o->stats.puts++;
    dht_runner_put(o->runner, hash_of(&op->key), op->value, cb_done, op, true);
    *put = (struct hth_dht_put *)op;
    return HTH_OK;
}

static void o_withdraw(void *self, struct hth_dht_put *put)
{
    struct opendht_op *op = (struct opendht_op *)put;
    (void)self;
    op_close(op);
    if (cancel_put(op) && op->settled)
        op_free(op);
}

static void on_get_timeout(void *arg)
{
    struct opendht_op *op = arg;
    hth_dht_done_fn *done = op->on_done;
    void *done_arg = op->arg;
    enum hth_err err = err_of(op->o, false);
    op_close(op);
    if (done != NULL)
        done(done_arg, err);
}

static enum hth_err o_get(void *self, const struct hth_dht_key *key, hth_dht_value_fn *value,
                          hth_dht_done_fn *done, void *arg, struct hth_dht_get **get)
{
    struct hth_opendht *o = self;
    struct opendht_op *op = op_new(o, OP_GET, key);
    op->on_value = value;
    op->on_done = done;
    op->arg = arg;
    op->timer = hth_timer_new(o->env, on_get_timeout, op);
    hth_timer_set(o->env, op->timer, GET_TIMEOUT_US);
    o->stats.gets++;
    dht_runner_get(o->runner, hash_of(&op->key), cb_get_value, cb_done, op);
    *get = (struct hth_dht_get *)op;
    return HTH_OK;
}

static void o_get_cancel(void *self, struct hth_dht_get *get)
{
    (void)self;
    op_close((struct opendht_op *)get);
}

static enum hth_err o_watch(void *self, const struct hth_dht_key *key, hth_dht_value_fn *value,
                            void *arg, struct hth_dht_watch **watch)
{
    struct hth_opendht *o = self;
    struct opendht_op *op = op_new(o, OP_WATCH, key);
    op->on_value = value;
    op->arg = arg;
    o->stats.watches++;
    op->token = dht_runner_listen(o->runner, hash_of(&op->key), cb_watch_value, cb_ended, op);
    *watch = (struct hth_dht_watch *)op;
    return HTH_OK;
}

static void o_unwatch(void *self, struct hth_dht_watch *watch)
{
    struct hth_opendht *o = self;
    struct opendht_op *op = (struct opendht_op *)watch;
    op_close(op);
    dht_runner_cancel_listen(o->runner, hash_of(&op->key), op->token);
}

static void o_stats(void *self, struct hth_dht_stats *out)
{
    struct hth_opendht *o = self;
    *out = o->stats;
    pthread_mutex_lock(&o->inbox->lock);
    out->values_refused = o->inbox->dropped;
    pthread_mutex_unlock(&o->inbox->lock);
    out->values_refused += hth_opendht_door_dropped(o->door);
    out->nodes_good = nodes_good(o);
}

static void o_know(void *self, uint64_t network, const struct hth_pubkey *owner, bool known)
{
    struct hth_opendht *o = self;
    hth_opendht_door_know(o->door, network, owner, known);
}

static const struct hth_dht_ops OPS = {o_put,   o_withdraw, o_get,   o_get_cancel,
                                       o_watch, o_unwatch,  o_stats, o_know};

/* ---- bootstrap ----------------------------------------------------------------------------- */

static socklen_t sockaddr_of(const struct hth_addr *addr, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    if (addr->family == 4) {
        struct sockaddr_in *in4 = (struct sockaddr_in *)out;
        in4->sin_family = AF_INET;
        in4->sin_port = htons(addr->port);
        memcpy(&in4->sin_addr, addr->ip, 4);
        return sizeof(*in4);
    }
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(addr->port);
    memcpy(&in6->sin6_addr, addr->ip, 16);
    return sizeof(*in6);
}

static void on_ping_timer(void *arg)
{
    struct hth_opendht *o = arg;
    for (size_t i = 0; i < o->boot_count; i++) {
        struct boot *b = &o->boot[i];
        if (b->pinging || b->next_us > hth_now_us(o->env))
            continue;
        struct sockaddr_storage sa;
        socklen_t len = sockaddr_of(&b->addr, &sa);
        struct opendht_op *op = op_new(o, OP_PING, NULL);
        op->boot = i;
        b->pinging = true;
        dht_runner_ping(o->runner, (struct sockaddr *)&sa, len, cb_done, op);
    }
    hth_timer_set(o->env, o->ping_timer, PING_RETRY_US);
}

/* The numeric host and port, as OpenDHT's resolver wants them. */
static void bootstrap_one(struct hth_opendht *o, const struct hth_addr *addr)
{
    char text[HTH_ADDR_TEXT_MAX];
    hth_addr_text(addr, text);
    char *host = text[0] == '[' ? text + 1 : text;
    char *colon = strrchr(text, ':');
    *colon = '\0';
    if (text[0] == '[')
        colon[-1] = '\0';
    dht_runner_bootstrap(o->runner, host, colon + 1);
}

static bool is_loopback4(const struct hth_addr *addr)
{
    return addr->family == 4 && addr->ip[0] == 127;
}

/* OpenDHT replaces a loopback address in a reply by the address of the replying node. */
static void warn_of_other_loopback(struct hth_opendht *o, const struct hth_addr *addr)
{
    if (!is_loopback4(&o->bind) || !is_loopback4(addr) || memcmp(o->bind.ip, addr->ip, 4) == 0)
        return;
    HTH_LOG(o->env, HTH_WARN, HTH_SUB_DHT,
            "listening on another loopback address than the node to join: OpenDHT nodes find one "
            "another on one machine only if all listen on one address, with a port for each");
}

enum hth_err hth_opendht_bootstrap(struct hth_opendht *o, const struct hth_addr *addr)
{
    if (addr->family != 4 && addr->family != 6)
        return HTH_E_UNSUPPORTED;
    for (size_t i = 0; i < o->boot_count; i++)
        if (hth_addr_eq(&o->boot[i].addr, addr))
            return HTH_OK;
    if (o->boot_count == HTH_BOOTSTRAP_MAX)
        return HTH_E_BUDGET;
    warn_of_other_loopback(o, addr);
    o->boot[o->boot_count++] = (struct boot){.addr = *addr, .next_us = INT64_MIN};
    bootstrap_one(o, addr);
    hth_timer_set(o->env, o->ping_timer, 0);
    return HTH_OK;
}

/* ---- life ---------------------------------------------------------------------------------- */

/* The port in the wanted family; 0: the socket could not be bound. */
static uint16_t bound_port(const struct hth_opendht *o)
{
    return dht_runner_get_bound_port(o->runner, o->bind.family == 6 ? AF_INET6 : AF_INET);
}

static enum hth_err start(struct hth_opendht *o, const struct hth_opendht_opts *opts)
{
    dht_runner_config config;
    dht_runner_config_default(&config);
    config.threaded = true;
    config.peer_discovery = false;
    config.peer_publish = false;
    config.log = false;
    config.dht_config.node_config.network = opts->network;
    config.dht_config.node_config.persist_path = opts->persist_path;
    o->runner = dht_runner_new();
    hth_opendht_bind_to(opts->bind.family != 0 ? &opts->bind : NULL, o->door);
    int rc = dht_runner_run_config(o->runner, opts->bind.port, &config);
    hth_opendht_bind_to(NULL, NULL);
    if (rc != 0 || (opts->bind.family != 0 && bound_port(o) == 0)) {
        HTH_LOG(
            o->env, HTH_ERROR, HTH_SUB_DHT,
            "the DHT can't listen on UDP port %u (OpenDHT error %d); is another program using it?",
            (unsigned)opts->bind.port, rc);
        return HTH_E_ADDR_IN_USE;
    }
    for (size_t i = 0; i < opts->bootstrap_count; i++)
        HTH_TRY(hth_opendht_bootstrap(o, &opts->bootstrap[i]));
    return HTH_OK;
}

enum hth_err hth_opendht_new(struct hth_env *env, const struct hth_opendht_opts *opts,
                             struct hth_opendht **out)
{
    *out = NULL;
    if (opts->bootstrap_count > HTH_BOOTSTRAP_MAX)
        return HTH_E_BUDGET;
    struct hth_opendht *o = hth_new(struct hth_opendht);
    o->env = env;
    o->bind = opts->bind;
    o->dht.ops = &OPS;
    o->dht.self = o;
    o->door = hth_opendht_door_new();
    o->inbox = hth_new(struct inbox);
    pthread_mutex_init(&o->inbox->lock, NULL);
    o->inbox->env = env;
    o->inbox->o = o;
    o->ping_timer = hth_timer_new(env, on_ping_timer, o);
    enum hth_err err = start(o, opts);
    if (err != HTH_OK) {
        hth_opendht_free(o);
        return err;
    }
    *out = o;
    return HTH_OK;
}

void hth_opendht_free(struct hth_opendht *o)
{
    if (o == NULL)
        return;
    struct inbox *in = o->inbox;
    for (struct opendht_op *op = o->ops; op != NULL; op = op->next)
        atomic_store(&op->quiet, true);
    if (o->runner != NULL)
        dht_runner_delete(o->runner); /* joins its threads */
    hth_opendht_unbind(o->door);
    hth_opendht_door_free(o->door);
    while (o->ops != NULL)
        op_free(o->ops);
    for (struct opendht_event *e = in->head, *next; e != NULL; e = next) {
        next = e->next;
        hth_free(e);
    }
    in->head = in->tail = NULL;
    in->o = NULL;
    hth_timer_free(o->env, o->ping_timer);
    hth_free(o);
    if (!in->posted) {
        inbox_free(in);
        return;
    }
    pthread_mutex_lock(&orphans_lock);
    in->next_orphan = orphans;
    orphans = in;
    pthread_mutex_unlock(&orphans_lock);
}

struct hth_dht *hth_opendht_dht(struct hth_opendht *o)
{
    return &o->dht;
}

uint16_t hth_opendht_port(const struct hth_opendht *o)
{
    uint16_t port = bound_port(o);
    return port != 0 ? port : dht_runner_get_bound_port(o->runner, AF_INET6);
}

size_t hth_opendht_watching(const struct hth_opendht *o)
{
    size_t n = 0;
    for (const struct opendht_op *op = o->ops; op != NULL; op = op->next)
        n += op->kind == OP_WATCH;
    return n;
}
