/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/fleet_int.h"
#include "scenarios/idx.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/rng.h"

#define TRUNK     "trunk.safetensors"
#define CLASSES   4
#define REPAIR_US HTH_US_PER_S
#define LEARN     3e-3f
#define SETTLE_US (8 * HTH_US_PER_S) /* for the repair of faults' damage */
/* longer for the last flights: a batch's timeout of 20 s in all */
#define LANDING_US (12 * HTH_US_PER_S)

/* Keep the first reason only: later ones often follow from it. */
void hth_fleet_broken(struct hth_fleet *f, const char *fmt, ...)
{
    va_list args;

    if (f->why[0] != '\0')
        return;
    va_start(args, fmt);
    vsnprintf(f->why, sizeof(f->why), fmt, args);
    va_end(args);
}

const char *hth_fleet_why(const struct hth_fleet *f)
{
    return f->why;
}

static void hull_broken(void *arg, const char *text)
{
    hth_fleet_broken(arg, "%s", text);
}

/* ---- who repairs ----------------------------------------------------------------------------- */

/* Whether the plan's disks and fault sites explain the end of a node; any other end is a bug. A
 * trainer lands its flights before it reports its end, and that may happen after the faults. */
static bool is_excused(const struct fleet_node *m, enum hth_err err)
{
    const struct hth_fleet *f = m->fleet;
    int64_t landing_us = fleet_is_host(m) ? 0 : LANDING_US;

    if (hth_world_now_us(f->world) - landing_us > f->calm_from_us)
        return false;
    switch (err) {
    case HTH_E_CORRUPT:
    case HTH_E_TRUNCATED:
    case HTH_E_MALFORMED:
    case HTH_E_IO:
    case HTH_E_DISK_FULL:
        return f->opts.bad_disks || f->opts.faulty;
    case HTH_E_NO_MEMORY:
    case HTH_E_BUDGET:
        return f->opts.faulty;
    default:
        return false;
    }
}

static void repair(void *arg)
{
    struct fleet_node *m = arg;
    struct hth_node *node = fleet_node_of(m);

    m->repair_due = false;
    if (!hth_node_is_up(node))
        return; /* it restarts by itself */
    hth_node_crash(node, HTH_CRASH_RESET);
    hth_node_restart(node);
}

/* Act as the node's owner: discard a damaged file and start the program again. */
static void call_owner(struct fleet_node *m, const char *path, enum hth_err err)
{
    struct hth_fleet *f = m->fleet;
    bool damaged = err == HTH_E_CORRUPT || err == HTH_E_TRUNCATED || err == HTH_E_MALFORMED;

    if (!is_excused(m, err)) {
        hth_fleet_broken(f, "%s: %s: %s", hth_node_name(fleet_node_of(m)), path, hth_err_name(err));
        return;
    }
    if (damaged && hth_file_remove(hth_node_env(fleet_node_of(m)), path) == HTH_OK)
        f->sums.repairs++;
    if (!m->repair_due)
        hth_world_at(f->world, hth_world_now_us(f->world) + REPAIR_US, repair, m);
    m->repair_due = true;
}

static void on_expert(void *arg, const struct hth_uid *uid, enum hth_err err, bool restored)
{
    struct fleet_node *m = arg;
    char text[HTH_UID_TEXT_MAX], path[HTH_UID_TEXT_MAX + 32];

    m->fleet->sums.restored += restored;
    if (err == HTH_OK)
        return;
    snprintf(path, sizeof(path), FLEET_FOLDER "/%s.safetensors", hth_uid_text(uid, text));
    call_owner(m, path, err);
}

static void on_bad_boot(void *arg, uint32_t node, enum hth_err err)
{
    struct hth_fleet *f = arg;

    call_owner(&f->members[node], node < f->opts.hosts ? "a host" : TRUNK, err);
}

static void on_done(void *arg, enum hth_err err)
{
    call_owner(arg, "a trainer ended", err);
}

/* ---- hosts ----------------------------------------------------------------------------------- */

/* Whether the key belongs to an honest trainer. An attacker may use a forgotten key again: that
 * harms only its own gradient. */
static bool is_ours(struct hth_fleet *f, const uint8_t *key)
{
    for (uint32_t i = f->opts.hosts; i < f->honest; i++)
        if (memcmp(hth_node_env(hth_fleet_node(f, i))->self.b, key, HTH_HASH_LEN) == 0)
            return true;
    return false;
}

static void on_applied(void *arg, const uint8_t *key, size_t len, uint32_t part)
{
    struct fleet_node *m = arg;
    uint64_t hash = hth_hash64(key, len, part);

    if (!is_ours(m->fleet, key))
        return;
    m->fleet->sums.applied++;
    if (hth_map_put(m->applied, &hash, sizeof(hash), m) != NULL)
        hth_fleet_broken(m->fleet, "%s computed a backward twice", hth_node_name(fleet_node_of(m)));
}

void hth_fleet_add_host(struct hth_fleet_stats *sums, const struct hth_server_stats *s)
{
    sums->replays += s->replays_answered + s->replays_joined;
    sums->files += s->checkpoints_written;
    sums->files_failed += s->checkpoints_failed;
    sums->refused_bad += s->refused_bad + s->parts_not_finite + s->parts_norm;
}

static void edit_host(void *arg, uint32_t i, struct hth_server_opts *server)
{
    struct hth_fleet *f = arg;
    struct fleet_node *m = &f->members[i];

    hth_fleet_add_host(&f->sums, &m->host);
    memset(&m->host, 0, sizeof(m->host));
    hth_map_free(m->applied);
    m->applied = hth_map_new();
    server->checkpoint_dir = f->opts.checkpoint_us > 0 ? FLEET_FOLDER : NULL;
    server->checkpoint_period_us = HTH_MAX(f->opts.checkpoint_us, HTH_US_PER_MS);
    server->on_expert = on_expert;
    server->on_applied = on_applied;
    server->arg = m;
}

/* ---- trainers -------------------------------------------------------------------------------- */

static void on_update(void *arg, const struct hth_train_stats *stats)
{
    struct fleet_node *m = arg;

    m->now = *stats;
}

void hth_fleet_add_trainer(struct hth_fleet_stats *sums, const struct hth_train_stats *s)
{
    sums->flights_failed += s->flights_failed;
    sums->requests += s->requests;
    sums->answers += s->answers;
    sums->answers_missing += s->answers_missing;
    sums->rounds += s->share.run.averages.rounds;
    sums->rounds_failed += s->share.run.averages.failed;
    sums->catch_ups += s->share.catch_ups;
    sums->not_finite += s->answers_bad;
    sums->updates += s->flights_landed;
    sums->rows_alone += s->rows_without_expert;
}

static void edit_trainer(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    struct hth_fleet *f = arg;
    struct fleet_node *m = &f->members[f->opts.hosts + i];

    hth_fleet_add_trainer(&f->sums, &m->now);
    memset(&m->now, 0, sizeof(m->now));
    memset(&m->baseline, 0, sizeof(m->baseline));
    if (t->averager != NULL && f->opts.mode == HTH_SHARE_LOCAL && !f->lied_to) {
        struct hth_averager inner = *t->averager;
        hth_hull_watch(f->hull, i, &inner, &m->watched);
        t->averager = &m->watched;
    }
    t->data.peer = i + 1;
    t->on = (struct hth_train_callbacks){.on_update = on_update, .on_done = on_done, .arg = m};
}

/* ---- the bad --------------------------------------------------------------------------------- */

static bool find_victim(void *arg, struct hth_rng *rng, struct hth_rpc_target *out)
{
    struct hth_fleet *f = ((struct fleet_attacker *)arg)->fleet;
    struct hth_node *node = hth_fleet_node(f, (uint32_t)hth_rng_below(rng, f->honest));

    *out = (struct hth_rpc_target){.peer = hth_node_env(node)->self,
                                   .addr = hth_node_addr(node, HTH_SWARM_PORT)};
    return hth_node_is_up(node);
}

static void bad_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct fleet_attacker *b = arg;
    const struct hth_fleet_opts *o = &b->fleet->opts;

    b->place = (struct hth_malice_place){.env = env,
                                         .dht = dht,
                                         .addr = hth_node_addr(b->node, HTH_SWARM_PORT),
                                         .network = HTH_SWARM_NETWORK,
                                         .grids = b->fleet->grids,
                                         .layers = o->layers,
                                         .shape = {.kind = "ffn", .d = o->dim, .block_rows = 1},
                                         .trainer = o->average ? &b->fleet->trainer : NULL,
                                         .victim = find_victim,
                                         .arg = b};
    if (b->kind->start(&b->place, &b->self) != HTH_OK)
        b->self = NULL;
}

static void bad_halt(struct hth_env *env, void *arg)
{
    struct fleet_attacker *b = arg;

    (void)env;
    if (b->self != NULL)
        b->kind->stop(b->self);
    b->self = NULL;
}

static void make_bad(struct hth_fleet *f)
{
    struct hth_node_opts o = HTH_NODE_OPTS_INIT;
    char name[24];

    for (uint32_t i = 0; i < f->opts.malice_count; i++) {
        const struct hth_fleet_malice *m = &f->opts.malice[i];
        f->bad_count += m->nodes;
        f->lied_to |= m->nodes > 0 && m->kind->in_averages;
        f->split |= m->nodes > 0 && m->kind->splits;
    }
    f->bad = hth_new_array(struct fleet_attacker, f->bad_count + 1);
    for (uint32_t i = 0, at = 0; i < f->opts.malice_count; i++) {
        for (uint32_t j = 0; j < f->opts.malice[i].nodes; j++, at++) {
            struct fleet_attacker *b = &f->bad[at];
            b->fleet = f;
            b->kind = f->opts.malice[i].kind;
            if (f->opts.node != NULL)
                f->opts.node(f->opts.arg, f->honest + at, &o);
            o.boot = bad_boot;
            o.halt = bad_halt;
            o.arg = b;
            snprintf(name, sizeof(name), "%.12s%u", b->kind->name, j);
            b->node = hth_world_node(f->world, name, &o);
        }
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Each class is bright in another quarter, under noise. */
static void mount(struct hth_fleet *f, uint64_t seed)
{
    struct hth_rng rng;

    hth_rng_init(&rng, seed);
    hth_sim_idx_heads(f->images, f->labels, FLEET_ITEMS, FLEET_SIDE);
    for (uint32_t i = 0; i < FLEET_ITEMS; i++) {
        uint32_t class = (uint32_t)hth_rng_below(&rng, CLASSES);
        f->labels[8 + i] = (uint8_t) class;
        for (uint32_t j = 0; j < FLEET_PIXELS; j++)
            f->images[16 + i * FLEET_PIXELS + j] =
                (uint8_t)((j / CLASSES == class ? 90 : 0) + hth_rng_below(&rng, 120));
    }
    hth_world_mount(f->world, "images", f->images, sizeof(f->images));
    hth_world_mount(f->world, "labels", f->labels, sizeof(f->labels));
}

static void trainer_opts(const struct hth_fleet_opts *o, struct hth_trainer_opts *t)
{
    t->model.d = o->dim;
    t->model.layers = o->layers;
    t->model.features = FLEET_PIXELS;
    t->model.classes = CLASSES;
    t->model.grid_dim[0] = t->model.grid_dim[1] = o->grid;
    t->model.top_k = o->top_k;
    t->model.seed = 5;
    t->optim.schedule.lr = LEARN;
    t->data.images = "images";
    t->data.labels = "labels";
    t->data.classes = CLASSES;
    t->data.shuffle_rows = 64;
    t->micro_batch = o->rows;
    t->flights = o->flights;
    t->updates_max = UINT32_MAX;
    t->timeout_us = 10 * HTH_US_PER_S; /* the default of a run file */
    t->share.mode = o->mode;
    t->share.every = o->every;
    t->share.target = o->target;
    if (o->checkpoint_us > 0) {
        t->checkpoint_path = TRUNK;
        t->checkpoint_every = 40;
        t->resume = true;
    }
}

static void edit_node(void *arg, uint32_t node, struct hth_node_opts *opts)
{
    struct hth_fleet *f = arg;

    if (f->opts.node != NULL)
        f->opts.node(f->opts.arg, node, opts);
}

static struct hth_budget *budget_of(void *arg, uint32_t node)
{
    return &((struct hth_fleet *)arg)->members[node].budget;
}

static struct hth_swarm *make_swarm(struct hth_fleet *f)
{
    const struct hth_fleet_opts *o = &f->opts;
    struct hth_swarm_opts s = HTH_SWARM_OPTS_INIT;

    trainer_opts(o, &s.trainer);
    f->trainer = s.trainer;
    s.hosts = o->hosts;
    s.copies = o->copies;
    s.shift = 1;
    s.trainers = o->trainers;
    s.server.step_rows = 64;
    s.share = o->average;
    s.reducer.clip = o->clip;
    if (o->group > 0)
        s.roster.group_max = o->group;
    s.edit = edit_trainer;
    s.edit_host = edit_host;
    s.edit_node = edit_node;
    s.budget = budget_of;
    s.on_bad_boot = on_bad_boot;
    s.arg = f;
    return hth_swarm_new(f->world, &s);
}

static bool makes_sense(const struct hth_fleet_opts *o)
{
    uint64_t bad = 0;

    for (uint32_t i = 0; i < o->malice_count; i++)
        bad += o->malice[i].nodes;
    return o->hosts >= 1 && o->hosts <= HTH_FLEET_NODES_MAX && o->copies >= 1 &&
           o->copies <= o->hosts && o->trainers >= 1 && o->trainers <= HTH_FLEET_TRAINERS_MAX &&
           o->layers >= 1 && o->layers <= HTH_MODEL_LAYERS_MAX && o->held_max >= 1 &&
           bad <= HTH_FLEET_NODES_MAX;
}

enum hth_err hth_fleet_new(struct hth_world *world, const struct hth_fleet_opts *o,
                           struct hth_fleet **out)
{
    enum hth_err err;
    char name[HTH_NAME_LEN_MAX + 1];

    *out = NULL;
    if (!makes_sense(o))
        return HTH_E_RANGE;
    struct hth_fleet *f = hth_new(struct hth_fleet);
    f->world = world;
    f->opts = *o;
    f->honest = o->hosts + o->trainers;
    f->calm_from_us = INT64_MAX;
    f->members = hth_new_array(struct fleet_node, f->honest);
    for (uint32_t i = 0; i < f->honest; i++) {
        f->members[i].fleet = f;
        f->members[i].index = i;
        hth_budget_init(&f->members[i].budget, (int64_t)o->held_max, NULL);
    }
    for (uint32_t l = 0; l < o->layers; l++) {
        snprintf(name, sizeof(name), "ffn%u", l);
        HTH_GOTO(fail, hth_grid_init(&f->grids[l], name, 2, (uint32_t[]){o->grid, o->grid}));
    }
    f->hull = hth_hull_new(world, hull_broken, f);
    mount(f, hth_world_trace_hash(world));
    f->swarm = make_swarm(f);
    HTH_GOTO(fail, hth_swarm_err(f->swarm));
    make_bad(f);
    *out = f;
    return HTH_OK;
fail:
    hth_fleet_free(f);
    return err;
}

void hth_fleet_free(struct hth_fleet *f)
{
    if (f == NULL)
        return;
    hth_swarm_free(f->swarm);
    hth_hull_free(f->hull);
    for (uint32_t i = 0; i < f->honest; i++)
        hth_map_free(f->members[i].applied);
    hth_free(f->members);
    hth_free(f->bad);
    hth_free(f);
}

uint32_t hth_fleet_count(const struct hth_fleet *f)
{
    return f->honest + f->bad_count;
}

struct hth_node *hth_fleet_node(struct hth_fleet *f, uint32_t i)
{
    return hth_world_node_at(f->world, i);
}

bool hth_fleet_is_honest(const struct hth_fleet *f, uint32_t i)
{
    return i < f->honest;
}

void hth_fleet_end_faults(struct hth_fleet *f)
{
    struct hth_fleet_stats now;

    hth_fleet_stats(f, &now);
    f->rounds_then = now.rounds;
    f->calm_from_us = hth_world_now_us(f->world) + SETTLE_US;
}
