/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/keys.h"

#include <math.h>
#include <stdio.h>

#include "averaging/reduce.h"
#include "collab/collab.h"
#include "collab/heads.h"
#include "core/mem.h"
#include "dht/board.h"
#include "rpc/rpc.h"
#include "scenarios/toy.h"
#include "trainer/trainer_int.h"

#define S            HTH_US_PER_S
#define TRAINERS_MAX 9
#define KEYS_MAX     4096
#define EACH_SAMPLES 36 /* of a step, by the number of trainers */
#define ROWS         6  /* of a micro-batch */
#define WARM_US      (12 * S)
#define COME_US      (2 * S)
#define MINUTE_US    (60 * S)
#define SAY_US       (150 * HTH_US_PER_MS) /* between two READYs; fivefold, a call's deadline */
#define EVENTS       8                     /* a silent key's last message is one of so many */
#define STEPS        7                     /* in which a key brings values at most */
#define AT_ONCE      64                    /* of keys that are trainers, for memory */

/* The promise. */
#define RATIO 0.92

struct keys_run;

struct key {
    struct keys_run *run;
    uint32_t index;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_publisher *said;
    struct hth_head_note note;
    struct hth_timer *timer;
    struct hth_rpc_call *call;
    uint32_t events, last; /* after so many it falls silent; 0: never */
    bool silent;
};

struct keys_run {
    const struct hth_keys_opts *opts;
    struct hth_keys_report *report;
    struct hth_world *world;
    struct hth_crew *crew;
    struct hth_rng rng;
    struct key *key; /* NULL: the run without keys */
    uint32_t bringing, joined;
    uint32_t *steps; /* of the crew, by member */
    uint64_t step;
};

static const char *const kinds[] = {"declare", "ready", "silent", "brings"};

const char *hth_keys_kind_name(enum hth_keys_kind kind)
{
    return kinds[kind];
}

/* ---- a key that brings nothing --------------------------------------------------------------- */

/* Each thing that happens to a key; true: it has fallen silent. */
static bool happens(struct key *k)
{
    k->silent |= k->last != 0 && ++k->events >= k->last;
    return k->silent;
}

static void on_request(void *arg, struct hth_rpc_request *req)
{
    struct key *k = arg;
    size_t tensors;

    (void)hth_rpc_tensors(req, &tensors); /* else it is asked for a sign of life */
    k->run->report->asked += hth_rpc_method(req) == HTH_REDUCE_METHOD && tensors > 0;
    happens(k);
    hth_rpc_ignore(req);
}

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct key *k = arg;

    k->call = NULL;
    if (!happens(k) && k->run->opts->kind != HTH_KEYS_DECLARE)
        hth_timer_set(k->env, k->timer, result->err == HTH_OK ? 0 : SAY_US);
}

static const struct hth_trainer *any_trainer(const struct key *k)
{
    return hth_crew_trainer(k->run->crew, k->index % k->run->opts->trainers);
}

/* The node of a member. */
static struct hth_node *find_node(const struct key *k, const struct hth_peer_id *id)
{
    for (uint32_t i = 0; i < k->run->opts->trainers; i++) {
        struct hth_node *node = hth_crew_node(k->run->crew, i);

        if (hth_peer_id_eq(&hth_node_env(node)->self, id))
            return node;
    }
    return NULL;
}

static void send_ready(struct key *k)
{
    const struct hth_collab *collab = hth_trainer_collab(any_trainer(k));
    const struct hth_chain *chain = hth_collab_choice(collab)->chain;
    const struct hth_choice *choice = hth_collab_choice(collab);
    struct hth_ballot now = hth_choice_now(choice);
    uint8_t bytes[HTH_ROLL_BYTES_MAX];
    struct hth_rpc_call_opts o = {.method = HTH_ROLL_METHOD_READY, .timeout_us = 5 * SAY_US};

    if (now.base == HTH_LINK_NONE || !hth_chain_has(chain, now.base))
        return;
    uint16_t caller = hth_choice_caller(chain, &now);
    if (caller == HTH_MEMBER_NONE)
        return;
    const struct hth_rpc_target to = {*hth_chain_id(chain, caller), {.family = 0}};
    struct hth_node *node = find_node(k, &to.peer);
    if (node == NULL)
        return;
    const struct hth_rpc_target target = {to.peer, hth_node_addr(node, HTH_CREW_PORT)};
    const struct hth_ready_msg msg = {
        .ballot = {now.step, *hth_chain_head(chain, now.base), now.n},
        .head = *hth_chain_head(chain, choice->tip),
        .life = 1 + k->index,
        .batch = (uint32_t)now.step + 1,
        /* every other one has landed samples, the others promise them */
        .brings = {.samples = k->index % 2 == 0 ? ROWS : 0,
                   .air = k->index % 2 == 0 ? 0 : ROWS,
                   .grain = ROWS,
                   .lands_us = k->index % 2 == 0 ? 0 : SAY_US,
                   .each_us = SAY_US},
        .quota = ROWS,
        .first = 1,
        .last = 1,
        .addr = hth_node_addr(k->node, HTH_CREW_PORT)};

    o.body.payload = bytes;
    o.body.payload_len = hth_ready_write(&msg, bytes);
    if (hth_rpc_call(k->rpc, &target, &o, on_answer, k, &k->call) != HTH_OK)
        k->call = NULL;
}

static enum hth_err write_note(void *arg, struct hth_writer *w)
{
    uint8_t bytes[HTH_HEAD_BYTES_MAX];

    hth_write_bytes(w, bytes, hth_head_write(&((const struct key *)arg)->note, bytes));
    return w->err;
}

/* Every other one holds a head that nobody knows, with many samples; the others look for one. None
 * reads what the others say. */
static void declare(struct key *k)
{
    static const struct hth_publisher_opts opts = {.life_us = HTH_HEAD_LIFE_US};
    struct hth_topic topic;

    k->note =
        (struct hth_head_note){.samples = 1u << 30, .addr = hth_node_addr(k->node, HTH_CREW_PORT)};
    if (k->index % 2 == 0) {
        k->note.step = 1u << 20;
        memcpy(k->note.head.b, &k->env->self, sizeof(k->note.head.b));
    }
    hth_heads_topic(k->env->crypto, HTH_CREW_NETWORK,
                    hth_settings_schema(&any_trainer(k)->settings, HTH_TICKET_GRADIENT), &topic);
    if (hth_publisher_new(k->env, hth_node_dht(k->node), &topic, &opts, write_note, k, &k->said) !=
        HTH_OK)
        k->said = NULL;
}

static void on_timer(void *arg)
{
    struct key *k = arg;
    bool declares = k->run->opts->kind == HTH_KEYS_DECLARE;

    if (k->silent)
        return;
    if (declares && k->said == NULL)
        declare(k);
    if (k->call == NULL && !happens(k))
        send_ready(k);
    if (!declares)
        hth_timer_set(k->env, k->timer, SAY_US);
}

static void boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    static const uint16_t methods[] = {HTH_ROLL_METHOD_READY, HTH_ROLL_METHOD_CALL,
                                       HTH_ROLL_METHOD_LINKS, HTH_REDUCE_METHOD};
    struct key *k = arg;
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_addr addr = hth_node_addr(k->node, HTH_CREW_PORT);

    (void)dht;
    k->env = env;
    rpc.network = HTH_CREW_NETWORK;
    rpc.listen = &addr;
    if (hth_rpc_new(env, &rpc, &k->rpc) != HTH_OK)
        return;
    for (size_t i = 0; i < HTH_ARRAY_LEN(methods); i++)
        hth_rpc_serve(k->rpc, methods[i], on_request, k);
    k->timer = hth_timer_new(env, on_timer, k);
    hth_timer_set(env, k->timer, 0);
}

static void halt(struct hth_env *env, void *arg)
{
    struct key *k = arg;

    hth_publisher_free(k->said);
    hth_timer_free(env, k->timer);
    hth_rpc_free(k->rpc);
}

static void come(void *arg)
{
    struct key *k = arg;
    struct hth_node_opts o = {.boot = boot, .halt = halt, .arg = k};
    char name[24];

    snprintf(name, sizeof(name), "key%u", k->index);
    k->node = hth_world_node(k->run->world, name, &o);
}

/* ---- a key that brings values ---------------------------------------------------------------- */

static void join(void *arg)
{
    struct keys_run *r = arg;

    if (r->bringing >= AT_ONCE || r->joined == r->opts->keys)
        return;
    r->bringing++;
    r->joined++;
    hth_crew_join(r->crew);
}

static void on_update(void *arg, uint32_t i, const struct hth_train_stats *stats)
{
    struct keys_run *r = arg;
    uint32_t n = r->opts->trainers;

    if (i < n) {
        r->step = HTH_MAX(r->step, stats->updates);
        return;
    }
    if (++r->steps[i] < 1 + i % STEPS)
        return;
    hth_node_crash(hth_crew_node(r->crew, i), HTH_CRASH_SILENT);
    r->bringing--;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* A micro-batch takes about 50 ms. */
static const struct hth_device device = {.flops_per_s = 50e9,
                                         .bytes_per_s = 10e9,
                                         .job_overhead_us = 5000,
                                         .compute_workers = 1,
                                         .disk_bytes_per_s = 500e6,
                                         .disk_latency_us = 100,
                                         .up_bytes_per_s = 12.5e6,
                                         .down_bytes_per_s = 12.5e6};

static struct hth_crew_opts crew_opts(struct keys_run *r)
{
    struct hth_crew_opts crew;

    hth_toy_crew(HTH_TOY_SIDE, &crew);
    crew.trainer.share.target = (uint64_t)EACH_SAMPLES * r->opts->trainers;
    crew.members = r->opts->trainers;
    crew.members_max = r->opts->trainers + r->opts->keys;
    crew.device = &device;
    crew.on_update = on_update;
    crew.arg = r;
    return crew;
}

static void plan_keys(struct keys_run *r)
{
    int64_t now = hth_world_now_us(r->world), all = MINUTE_US * r->opts->minutes;
    bool brings = r->opts->kind == HTH_KEYS_BRINGS, silent = r->opts->kind == HTH_KEYS_SILENT;

    for (uint32_t i = 0; i < r->opts->keys; i++) {
        struct key *k = &r->key[i];
        int64_t within = silent || brings ? all : COME_US;
        int64_t at = now + (int64_t)hth_rng_below(&r->rng, (uint64_t)within);

        *k = (struct key){.run = r, .index = i};
        if (silent)
            k->last = 1 + (uint32_t)hth_rng_below(&r->rng, EVENTS);
        hth_world_at(r->world, i == 0 ? now : at, brings ? join : come, brings ? (void *)r : k);
    }
}

/* The steps of each minute. */
static enum hth_err run(struct keys_run *r, uint64_t *minute)
{
    struct hth_world_opts world = HTH_WORLD_OPTS_INIT;
    enum hth_err err;

    world.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    hth_rng_init(&r->rng, r->opts->seed);
    r->world = hth_world_new(r->opts->seed, &world);
    struct hth_toy *toy = hth_toy_new(r->world, HTH_TOY_SIDE);
    const struct hth_crew_opts crew = crew_opts(r);
    r->crew = hth_crew_new(r->world, &crew);
    hth_world_run_for(r->world, WARM_US);
    if (r->key != NULL)
        plan_keys(r);
    for (uint32_t i = 0; i < r->opts->minutes; i++) {
        uint64_t before = r->step;

        hth_world_run_for(r->world, MINUTE_US);
        minute[i] = r->step - before;
    }
    r->report->hash = hth_world_trace_hash(r->world);
    err = hth_crew_err(r->crew);
    hth_world_free(r->world);
    hth_crew_free(r->crew);
    hth_toy_free(toy);
    return err;
}

enum hth_err hth_sim_keys(const struct hth_keys_opts *opts, struct hth_keys_report *out)
{
    enum { MINUTES_MAX = 60 };
    uint64_t alone[MINUTES_MAX], with[MINUTES_MAX];
    struct keys_run r = {.opts = opts, .report = out};
    enum hth_err err;

    *out = (struct hth_keys_report){.steps_ratio = INFINITY};
    if (opts->keys == 0 || opts->keys > KEYS_MAX || opts->trainers == 0 ||
        opts->trainers > TRAINERS_MAX || opts->kind >= HTH_KEYS_KINDS || opts->minutes == 0 ||
        opts->minutes > MINUTES_MAX)
        return HTH_E_CONFIG;
    r.steps = hth_new_array(uint32_t, opts->trainers + opts->keys);
    err = run(&r, alone);
    r.step = 0;
    r.key = hth_new_array(struct key, opts->keys);
    if (err == HTH_OK)
        err = run(&r, with);
    hth_free(r.key);
    hth_free(r.steps);
    HTH_TRY(err);
    for (uint32_t i = 0; i < opts->minutes; i++) {
        out->steps_ratio = fmin(out->steps_ratio, (double)with[i] / (double)alone[i]);
        out->steps += with[i];
        out->alone += alone[i];
    }
    return HTH_OK;
}

/* ---- promises -------------------------------------------------------------------------------- */

const char *hth_keys_broken(const struct hth_keys_report *r)
{
    if (!(r->steps_ratio >= RATIO))
        return "fewer than 0.92 of the steps of a minute without keys";
    if (r->asked > 0)
        return "a key that brought nothing was to reduce";
    return NULL;
}

static const uint32_t counts[] = {1, 64, 4096};
static const uint32_t trainers[] = {1, 2, 3, 5, 9};

uint32_t hth_keys_rows(void)
{
    return HTH_KEYS_KINDS * HTH_ARRAY_LEN(counts) * HTH_ARRAY_LEN(trainers);
}

struct hth_keys_opts hth_keys_row(uint32_t row)
{
    uint32_t n = HTH_ARRAY_LEN(trainers), k = HTH_ARRAY_LEN(counts);

    return (struct hth_keys_opts){.keys = counts[row / n % k],
                                  .trainers = trainers[row % n],
                                  .kind = (enum hth_keys_kind)(row / n / k),
                                  .minutes = 2};
}
