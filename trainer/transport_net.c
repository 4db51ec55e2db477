/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_net.c: experts behind the network. Each host has a circuit breaker: when it opens, the
 * directory hides the host until the breaker lets a probe through, so that the beam search of the
 * next step does not see its experts. A host with bad answers for some experts only is judged by
 * each of these (transport_trust.c). Hosts whose address is not proved are not seen at all, where
 * the directory asks for it (transport_prove.c). If an expert has several hosts, this peer's own
 * measurements choose among them.
 */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "gating/breaker.h"
#include "rpc/closed.h"
#include "trainer/transport.h"
#include "trainer/transport_prove.h"
#include "trainer/transport_trust.h"

/* Calls in a row of one host that were canceled during their grace, after which it has timed
 * out. */
#define CUTS_MAX 8
/* A measured call time is used for so long. Calls cheaper than COST_STEP_US cost the same. */
#define MEASURED_US  (10 * HTH_US_PER_S)
#define COST_STEP_US (16 * HTH_US_PER_MS)

/* State of one host. `allowed` is its breaker's answer, asked once per routing, because asking may
 * take the probe. */
struct decision {
    struct hth_peer_id id; /* the host that has the slot */
    uint64_t route;
    bool allowed;
    bool tripped; /* its breaker opened, at opened_us */
    int64_t opened_us;
    uint32_t cuts;       /* calls canceled since its last answer */
    bool forgiven;       /* too */
    bool warned;         /* its bad answers were logged */
    bool suspect;        /* its last judged answers were bad: an answer alone is no success */
    int64_t outdated_us; /* a record issued then named an expert that it does not have */
    int64_t call_us, call_at_us; /* time of its forwards, 0: unknown; when measured */
};

struct net_transport {
    struct hth_transport base;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_directory *directory;
    struct hth_breaker *breaker;
    struct hth_trust *trust;
    struct hth_prover *prover;
    struct hth_expert_client *client;
    uint32_t layers;
    uint32_t layer_no[HTH_MODEL_LAYERS_MAX]; /* number in the directory */
    struct hth_grid grid[HTH_MODEL_LAYERS_MAX];
    struct decision *decisions; /* by the directory's host slot */
    size_t decisions_count;
    enum hth_dtype wire;
    int64_t grace_us, timeout_us;
    struct hth_metric *m_bad, *m_refused;
};

struct net_batch {
    struct hth_transport_batch base;
    struct hth_expert_batch *batch;
    uint32_t layer;
    bool judged;
};

/* The state of the host in the directory's slot; reset when another host has taken the slot. */
static struct decision *decision_of(struct net_transport *transport, uint32_t slot,
                                    const struct hth_peer_id *id)
{
    struct decision *decision;

    if (slot >= transport->decisions_count) {
        size_t count = HTH_MAX((size_t)slot + 1, 2 * transport->decisions_count);

        transport->decisions =
            hth_realloc(transport->decisions, count, sizeof(*transport->decisions));
        memset(transport->decisions + transport->decisions_count, 0,
               (count - transport->decisions_count) * sizeof(*transport->decisions));
        transport->decisions_count = count;
    }
    decision = &transport->decisions[slot];
    if (hth_peer_id_cmp(&decision->id, id) != 0)
        *decision = (struct decision){.id = *id};
    return decision;
}

/* NULL: the directory does not know the host. */
static struct decision *decision_for(struct net_transport *transport,
                                     const struct hth_peer_id *host)
{
    struct hth_host_status status;

    if (!hth_directory_host_find(transport->directory, host, &status))
        return NULL;
    return decision_of(transport, status.ref.slot, host);
}

/* A call that the client canceled, because enough other hosts had answered, says nothing about its
 * host. But a host that is always too late would cost every flight its grace: CUTS_MAX canceled
 * calls in a row count as a timeout. */
static enum hth_err judge_cut(struct decision *decision, enum hth_err err)
{
    if (decision == NULL)
        return err;
    if (err == HTH_OK) {
        decision->cuts = 0;
        decision->forgiven = false;
    }
    if (err != HTH_E_CANCELED || ++decision->cuts < CUTS_MAX)
        return err;
    return HTH_E_TIMEOUT;
}

/* Reports a verdict to the host's breaker; `why` is for the log. */
static void report_host(struct net_transport *transport, const struct hth_peer_id *host,
                        struct decision *decision, enum hth_err err, enum hth_err why)
{
    int64_t now = hth_now_us(transport->env);
    enum hth_breaker_state before = hth_breaker_state(transport->breaker, host);
    char id[HTH_PEER_SHORT_LEN];

    if (hth_breaker_report(transport->breaker, host, err, now)) {
        int64_t retry_us = hth_breaker_retry_at(transport->breaker, host) - now;

        HTH_LOG(transport->env, HTH_WARN, HTH_SUB_TRAIN,
                "host %s: %s%s; it is not chosen for %.1f s", hth_peer_id_short(host, id),
                err != why ? "most of its answers are not used: " : "", hth_err_text(why),
                (double)retry_us / 1e6);
        if (decision != NULL) {
            decision->tripped = true;
            decision->opened_us = now;
        }
        hth_directory_mark_dead(transport->directory, host, HTH_MAX(retry_us, 1));
    } else if (err == HTH_OK && before != HTH_BREAKER_CLOSED) {
        HTH_LOG(transport->env, HTH_INFO, HTH_SUB_TRAIN, "host %s answers again",
                hth_peer_id_short(host, id));
        hth_directory_mark_alive(transport->directory, host);
    } else if (before == HTH_BREAKER_HALF_OPEN &&
               hth_breaker_state(transport->breaker, host) != HTH_BREAKER_HALF_OPEN) {
        hth_directory_mark_alive(transport->directory, host); /* the probe was canceled */
    }
}

static void on_host(void *arg, const struct hth_peer_id *host, enum hth_err err, int64_t rtt_us)
{
    struct net_transport *transport = arg;
    struct decision *decision = decision_for(transport, host);

    (void)rtt_us;
    err = judge_cut(decision, err);
    if (err == HTH_OK && decision != NULL && decision->suspect)
        return;
    report_host(transport, host, decision, err, err);
}

static struct hth_grid_view *net_view(struct hth_transport *base, uint32_t layer)
{
    struct net_transport *transport = HTH_CONTAINER(base, struct net_transport, base);

    return hth_directory_view(transport->directory, transport->layer_no[layer]);
}

/* True when the host's record is newer than its breaker's opening: the host restarted, so its
 * earlier failures are forgotten and nobody waits for the end of a back-off that has doubled many
 * times. Only once: a host that renews its record and never answers is not forgiven again before it
 * answers. */
static bool announced_anew(struct net_transport *transport, const struct hth_host_ref *host,
                           const struct decision *decision)
{
    struct hth_host_status status;

    return decision->tripped && !decision->forgiven &&
           hth_directory_host_find(transport->directory, &host->id, &status) &&
           hth_now_us(transport->env) - status.age_us > decision->opened_us;
}

/* Hides the host until its breaker lets a call through. Flights that see only hosts that may not be
 * asked would continue without experts, and fast. */
static void hide(struct net_transport *transport, const struct hth_peer_id *host)
{
    int64_t left_us = hth_breaker_retry_at(transport->breaker, host) - hth_now_us(transport->env);

    hth_directory_mark_dead(transport->directory, host, HTH_MAX(left_us, 1));
}

static bool allowed(struct net_transport *transport, const struct hth_host_ref *host)
{
    struct decision *decision = decision_of(transport, host->slot, &host->id);
    int64_t now = hth_now_us(transport->env);

    if (decision->route == transport->base.route)
        return decision->allowed;
    decision->route = transport->base.route;
    decision->allowed = hth_breaker_allow(transport->breaker, &host->id, now);
    if (!decision->allowed && announced_anew(transport, host, decision)) {
        decision->tripped = false;
        decision->forgiven = true;
        hth_breaker_forget(transport->breaker, &host->id);
        decision->allowed = hth_breaker_allow(transport->breaker, &host->id, now);
    }
    if (!decision->allowed)
        hide(transport, &host->id); /* a renewed record had made it visible again */
    return decision->allowed;
}

/* The cost of a call, in steps of a factor of four. A recent measurement of this peer overrides the
 * host's own statement, for a false statement costs a host nothing. */
static uint32_t cost_of(struct net_transport *transport, const struct hth_host_ref *host)
{
    const struct decision *decision = decision_of(transport, host->slot, &host->id);
    int64_t us = (int64_t)host->queue_ms * HTH_US_PER_MS;
    uint32_t steps = 0;

    if (decision->call_us > 0 && hth_now_us(transport->env) - decision->call_at_us < MEASURED_US)
        us = decision->call_us;
    for (; us >= COST_STEP_US; us /= 4)
        steps++;
    return steps;
}

/* Orders hosts by cost. Hosts of equal cost are ordered by a hash with this peer's id, so that
 * trainers use different replicas and no host is first for all of them. */
static void order_hosts(struct net_transport *transport, struct hth_host_ref *hosts, size_t n)
{
    struct rank {
        uint32_t cost;
        uint64_t hash;
    } rank[HTH_DIR_REPLICAS_MAX];

    for (size_t i = 0; i < n; i++) {
        struct hth_host_ref host = hosts[i];
        struct rank r = {cost_of(transport, &host),
                         hth_trust_spread(&transport->env->self, &host.id)};
        size_t at = i;

        for (; at > 0 && (rank[at - 1].cost > r.cost ||
                          (rank[at - 1].cost == r.cost && rank[at - 1].hash > r.hash));
             at--) {
            hosts[at] = hosts[at - 1];
            rank[at] = rank[at - 1];
        }
        hosts[at] = host;
        rank[at] = r;
    }
}

/* The first host that may be asked. Replicas with bad answers are tried only if no other may be
 * asked: a trainer that finds no host at all would continue without experts, and fast. */
static size_t pick_host(struct net_transport *transport, uint32_t layer, uint32_t expert,
                        const struct hth_host_ref *hosts, size_t n)
{
    int64_t now = hth_now_us(transport->env);

    for (size_t i = 0; i < n; i++)
        if (hth_trust_peek(transport->trust, &hosts[i].id, layer, expert, false, now) &&
            allowed(transport, &hosts[i])) {
            hth_trust_take(transport->trust, &hosts[i].id, layer, expert, now);
            return i;
        }
    for (size_t i = 0; i < n; i++)
        if (allowed(transport, &hosts[i]))
            return i;
    return n;
}

static bool net_find(struct hth_transport *base, uint32_t layer, uint32_t expert,
                     struct hth_expert_target *out)
{
    struct net_transport *transport = HTH_CONTAINER(base, struct net_transport, base);
    struct hth_host_ref hosts[HTH_DIR_REPLICAS_MAX];
    size_t n, first;

    memset(out, 0, sizeof(*out));
    n = hth_directory_hosts_of(transport->directory, transport->layer_no[layer], expert, hosts,
                               HTH_ARRAY_LEN(hosts));
    order_hosts(transport, hosts, n);
    hth_grid_coords(&transport->grid[layer], expert, out->coord);
    for (uint32_t i = transport->grid[layer].ndim; i < HTH_GRID_DIMS_MAX; i++)
        out->coord[i] = 0;
    first = pick_host(transport, layer, expert, hosts, n);
    if (first == n)
        return false;
    out->host = hosts[first].id;
    out->addr = hosts[first].addr;
    /* A stand-by takes no probe: its breakers must be closed. */
    for (size_t i = first + 1; i < n && !out->has_replica; i++) {
        if (!hth_trust_peek(transport->trust, &hosts[i].id, layer, expert, true, 0) ||
            hth_breaker_state(transport->breaker, &hosts[i].id) != HTH_BREAKER_CLOSED)
            continue;
        out->replica_host = hosts[i].id;
        out->replica_addr = hosts[i].addr;
        out->has_replica = true;
    }
    return true;
}

static void count_batch(struct hth_transport *transport, const struct net_batch *b)
{
    struct hth_expert_batch_info info;

    hth_expert_batch_info(b->batch, &info);
    transport->stats.requests += info.requests;
    transport->stats.requests_failed += info.hosts_failed;
    transport->stats.retries += info.retries;
    transport->stats.bytes_out += info.bytes_out;
    transport->stats.bytes_in += info.bytes_in;
}

static void net_done(void *arg, struct hth_expert_batch *batch)
{
    struct net_batch *b = arg;

    b->batch = batch;
    count_batch(b->base.transport, b);
    b->base.done(b->base.arg, &b->base);
}

static const enum hth_err *net_verdicts(const struct hth_transport_batch *base)
{
    return hth_expert_batch_verdicts(HTH_CONTAINER(base, struct net_batch, base)->batch);
}

static void net_host(const struct hth_transport_batch *base, uint32_t target,
                     struct hth_expert_target *io)
{
    const struct net_batch *b = HTH_CONTAINER(base, struct net_batch, base);

    hth_expert_batch_host(b->batch, target, &io->host, &io->addr);
    io->has_replica = false;
}

static uint32_t net_unpack(struct hth_transport_batch *base, float *out, size_t stride, uint8_t *ok)
{
    const struct net_batch *b = HTH_CONTAINER(base, struct net_batch, base);

    return hth_expert_batch_unpack(b->batch, out, stride, ok);
}

/* ---- judging ------------------------------------------------------------------------------- */

/* Logs a host's first bad answer with its numbers; later ones are only counted. */
static void warn_of(const struct net_batch *b, const struct hth_peer_id *host, uint32_t expert,
                    enum hth_err err, double gain)
{
    struct net_transport *transport = HTH_CONTAINER(b->base.transport, struct net_transport, base);
    const struct hth_grid *grid = &transport->grid[b->layer];
    struct decision *decision = decision_for(transport, host);
    char id[HTH_PEER_SHORT_LEN], uid[HTH_UID_TEXT_MAX], much[96] = "";
    const char *what = b->base.backward ? "gradients" : "answers";

    if (decision == NULL || decision->warned)
        return;
    decision->warned = true;
    if (gain > 0)
        snprintf(much, sizeof(much), "; they are %.3g times as large as their inputs", gain);
    HTH_LOG(transport->env, HTH_WARN, HTH_SUB_TRAIN,
            "host %s: its %s for expert %s are not used: %s%s; other replicas are asked first",
            hth_peer_id_short(host, id), what, hth_grid_uid_text(grid, expert, uid),
            hth_err_text(err), much);
}

/* The host's record is older than its experts. Drops its claim to this expert until its next
 * record, looks for that, and logs it once for each record. */
static void drop_claim(struct net_transport *transport, const struct hth_peer_id *host,
                       uint32_t layer, uint32_t expert)
{
    struct hth_host_status status;
    struct decision *decision;
    char id[HTH_PEER_SHORT_LEN], uid[HTH_UID_TEXT_MAX];
    enum hth_err err;

    if (!hth_directory_host_find(transport->directory, host, &status) ||
        !hth_directory_refute(transport->directory, host, transport->layer_no[layer], expert))
        return;
    err = hth_directory_ask(transport->directory, transport->layer_no[layer]);
    (void)err; /* a refusal: a lookup is under way, or was made a moment ago */
    decision = decision_of(transport, status.ref.slot, host);
    int64_t issued_us = hth_now_us(transport->env) - status.age_us;
    if (decision->outdated_us != 0 && issued_us - decision->outdated_us < HTH_US_PER_S)
        return; /* the same record: two clocks were read at different moments */
    decision->outdated_us = issued_us;
    HTH_LOG(transport->env, HTH_INFO, HTH_SUB_TRAIN,
            "host %s refused rows for expert %s: %s; its record of %.0f s ago is outdated, a newer "
            "one is sought",
            hth_peer_id_short(host, id), hth_grid_uid_text(&transport->grid[layer], expert, uid),
            hth_err_text(HTH_E_NO_SUCH_EXPERT), (double)status.age_us / 1e6);
}

static void judge_part(void *arg, const struct hth_peer_id *host, const uint32_t *coord,
                       enum hth_err err, double gain)
{
    struct net_batch *b = arg;
    struct net_transport *transport = HTH_CONTAINER(b->base.transport, struct net_transport, base);
    struct hth_transport_stats *stats = &b->base.transport->stats;
    uint32_t full[HTH_GRID_DIMS_MAX] = {0}, expert;

    memcpy(full, coord, transport->grid[b->layer].ndim * sizeof(full[0]));
    expert = hth_grid_index(&transport->grid[b->layer], full);
    hth_trust_report(transport->trust, host, b->layer, expert, b->base.backward, err,
                     hth_now_us(transport->env));
    if (err == HTH_OK) {
        hth_rpc_saw_work(transport->rpc, host, true);
        if (gain > stats->top_gain) {
            stats->top_gain = gain;
            stats->top_host = *host;
        }
        return;
    }
    if (err == HTH_E_BUSY || (err == HTH_E_NORM && b->base.backward))
        return; /* no fault of the host */
    if (gain > 0 || err == HTH_E_NOT_FINITE) {
        hth_rpc_saw_work(transport->rpc, host, false);
        stats->parts_bad++;
        hth_metric_add(transport->m_bad, 1);
    } else {
        stats->parts_refused++;
        hth_metric_add(transport->m_refused, 1);
    }
    if (err == HTH_E_NO_SUCH_EXPERT)
        drop_claim(transport, host, b->layer, expert);
    else
        warn_of(b, host, expert, err, gain);
}

static void judge_host(void *arg, const struct hth_peer_id *host, enum hth_err err, int64_t rtt_us)
{
    struct net_batch *b = arg;
    struct net_transport *transport = HTH_CONTAINER(b->base.transport, struct net_transport, base);
    struct decision *decision = decision_for(transport, host);

    if (decision != NULL && rtt_us > 0 && !b->base.backward) {
        decision->call_us += (rtt_us - decision->call_us) / (decision->call_us > 0 ? 8 : 1);
        decision->call_at_us = hth_now_us(transport->env);
    }
    if (decision == NULL || (err == HTH_OK && !decision->suspect))
        return; /* on_host has seen the answer */
    decision->suspect = err != HTH_OK;
    /* To refuse most parts is the host's fault, whatever error it gave for them. */
    report_host(transport, host, decision, err == HTH_OK ? HTH_OK : HTH_E_NOT_FINITE, err);
}

static void net_judge(struct hth_transport_batch *base)
{
    struct net_batch *b = HTH_CONTAINER(base, struct net_batch, base);
    struct net_transport *transport = HTH_CONTAINER(base->transport, struct net_transport, base);

    if (b->batch == NULL || b->judged)
        return;
    b->judged = true;
    hth_trust_learn(transport->trust, b->layer, base->backward, hth_expert_batch_gain(b->batch));
    hth_expert_batch_judge(b->batch, judge_host, judge_part, b);
}

static void net_batch_free(struct hth_transport_batch *base)
{
    struct net_batch *b = HTH_CONTAINER(base, struct net_batch, base);

    hth_expert_batch_free(b->batch);
    hth_free(b);
}

static const struct hth_transport_batch_ops net_batch_ops = {
    .verdicts = net_verdicts,
    .host = net_host,
    .unpack = net_unpack,
    .judge = net_judge,
    .free = net_batch_free,
};

/* Hides hosts that this call probes, so that no other call asks them meanwhile. */
static void hide_probed(struct net_transport *transport, const struct hth_transport_call *call)
{
    for (uint32_t i = 0; i < call->targets_count; i++)
        if (hth_breaker_state(transport->breaker, &call->targets[i].host) == HTH_BREAKER_HALF_OPEN)
            hide(transport, &call->targets[i].host);
}

static enum hth_err net_call(struct hth_transport *base, const struct hth_transport_call *call,
                             hth_transport_done_fn *done, void *arg,
                             struct hth_transport_batch **out)
{
    struct net_transport *transport = HTH_CONTAINER(base, struct net_transport, base);
    struct net_batch *b = hth_new(struct net_batch);
    struct hth_expert_call c = {
        .layer = transport->grid[call->layer].name,
        .ndim = transport->grid[call->layer].ndim,
        .block_rows = call->block_rows,
        .x = {.dtype = HTH_F32,
              .ndim = 2,
              .dim = {(uint64_t)call->units * call->block_rows, call->d},
              .blob = call->x},
        .keep = call->keep,
        .rows_in_microbatch = call->rows_in_microbatch,
        .targets = call->targets,
        .targets_count = call->targets_count,
        .pairs = call->pairs,
        .pairs_count = call->pairs_count,
        .k_min = call->k_min,
        .grace_us = transport->grace_us,
        .timeout_us = transport->timeout_us,
        .wire = transport->wire,
        .gain_max = hth_trust_gain_max(transport->trust, call->layer, call->dy != NULL),
        .trace_id = call->trace_id,
    };
    enum hth_err err;

    if (call->forward != NULL)
        c.forward = HTH_CONTAINER(call->forward, struct net_batch, base)->batch;
    if (call->dy != NULL)
        c.dy = (struct hth_tensor){
            .dtype = HTH_F32,
            .ndim = 2,
            .dim = {(uint64_t)call->pairs_count * call->block_rows, call->d},
            .blob = call->dy,
        };
    b->base = (struct hth_transport_batch){
        .ops = &net_batch_ops,
        .transport = base,
        .backward = call->dy != NULL,
        .pairs = call->pairs_count,
        .done = done,
        .arg = arg,
    };
    b->layer = call->layer;
    err = hth_experts_call(transport->client, &c, net_done, b, &b->batch);
    if (err != HTH_OK) {
        hth_free(b);
        return err;
    }
    hide_probed(transport, call);
    *out = &b->base;
    return HTH_OK;
}

static void net_gauge(struct hth_transport *base)
{
    struct net_transport *transport = HTH_CONTAINER(base, struct net_transport, base);
    struct hth_directory_stats stats;

    base->stats.live_experts = 0;
    for (uint32_t l = 0; l < transport->layers; l++)
        base->stats.live_experts += net_view(base, l)->live_count;
    hth_directory_stats(transport->directory, &stats);
    base->stats.hosts = stats.hosts;
    base->stats.hosts_dead = stats.hosts_dead;
    base->stats.claims_refused = hth_prover_refused(transport->prover);
}

static void net_ask(struct hth_transport *base, uint32_t layer)
{
    struct net_transport *transport = HTH_CONTAINER(base, struct net_transport, base);
    /* A refusal means that a lookup is under way or was made a moment ago, which does as well. */
    enum hth_err err = hth_directory_ask(transport->directory, transport->layer_no[layer]);

    (void)err;
}

static void net_free(struct hth_transport *base)
{
    struct net_transport *transport = HTH_CONTAINER(base, struct net_transport, base);

    hth_directory_on_change(transport->directory, NULL, NULL);
    hth_prover_free(transport->prover);
    hth_expert_client_free(transport->client);
    hth_breaker_free(transport->breaker);
    hth_trust_free(transport->trust);
    hth_free(transport->decisions);
    hth_free(transport);
}

static const struct hth_transport_ops net_ops = {
    .view = net_view,
    .find = net_find,
    .call = net_call,
    .gauge = net_gauge,
    .ask = net_ask,
    .free = net_free,
};

static void on_directory(void *arg)
{
    hth_prover_look(((struct net_transport *)arg)->prover);
}

static enum hth_err open_layers(struct net_transport *transport,
                                const struct hth_transport_opts *opts)
{
    struct hth_layer_shape shape = {.d = opts->d, .block_rows = opts->block_rows};

    strncpy(shape.kind, opts->expert_kind, HTH_KIND_LEN_MAX);
    for (uint32_t l = 0; l < opts->layers; l++) {
        transport->grid[l] = opts->grids[l];
        HTH_TRY(hth_directory_open_layer(transport->directory, &transport->grid[l], &shape,
                                         &transport->layer_no[l]));
    }
    return HTH_OK;
}

enum hth_err hth_transport_net_new(const struct hth_transport_opts *opts,
                                   struct hth_transport **out)
{
    struct net_transport *transport;
    struct hth_breaker_opts breaker = HTH_BREAKER_OPTS_INIT;
    struct hth_expert_client_opts client = HTH_EXPERT_CLIENT_OPTS_INIT;
    struct hth_rng rng;
    enum hth_err err;

    *out = NULL;
    if (opts->rpc == NULL || opts->directory == NULL || opts->layers > HTH_MODEL_LAYERS_MAX)
        return HTH_E_CONFIG;
    transport = hth_new(struct net_transport);
    transport->base.ops = &net_ops;
    transport->env = opts->env;
    transport->rpc = opts->rpc;
    transport->directory = opts->directory;
    transport->layers = opts->layers;
    transport->wire = opts->wire;
    transport->grace_us = opts->grace_us;
    transport->timeout_us = opts->timeout_us;
    transport->m_bad = hth_counter(opts->env->metrics, "hearth_train_parts_bad_total",
                                   "Request parts with answers that were not used");
    transport->m_refused = hth_counter(opts->env->metrics, "hearth_train_parts_refused_total",
                                       "Request parts that the host refused");
    client.budget = opts->budget;
    client.on_host = on_host;
    client.arg = transport;
    rng = hth_rng_split(&opts->env->rng, "breaker", 0);
    HTH_GOTO(fail, open_layers(transport, opts));
    HTH_GOTO(fail, hth_breaker_new(&breaker, &rng, &transport->breaker));
    rng = hth_rng_split(&opts->env->rng, "trust", 0);
    HTH_GOTO(fail, hth_trust_new(&rng, &transport->trust));
    HTH_GOTO(fail, hth_expert_client_new(opts->env, opts->rpc, &client, &transport->client));
    transport->prover = hth_prover_new(opts->env, opts->rpc, opts->directory);
    hth_directory_on_change(opts->directory, on_directory, transport);
    *out = &transport->base;
    return HTH_OK;
fail:
    net_free(&transport->base);
    return err;
}
