/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c: boot, crash and restart of nodes, and the small half of struct hth_env: timers, posts,
 * payload memory, fault sites and the wall clock.
 */
#include "sim/sim_int.h"

#include "core/budget.h"

#include <string.h>

/* ---- timers -------------------------------------------------------------------------------- */

static struct hth_timer *timer_new(struct hth_env *env, hth_fn *fn, void *arg)
{
    struct hth_node *node = sim_node_of(env);
    struct hth_timer *t = hth_new(struct hth_timer);
    sim_event_init(&t->event, SIM_TIMER, node);
    t->fn = fn;
    t->arg = arg;
    sim_list_append(&node->timers, &t->in_node);
    return t;
}

static void timer_set(struct hth_timer *t, int64_t delay_us)
{
    struct hth_node *node = t->event.node;
    if (!node->live)
        return;
    /* A delay of more than a hundred years counts as never; the limit keeps the sum from
     * overflowing. */
    int64_t delay = HTH_MIN(HTH_MAX(delay_us, 0), INT64_C(3155760000) * HTH_US_PER_S);
    hth_sim_schedule(node->world, &t->event, node->world->now_us + delay);
}

static void timer_cancel(struct hth_timer *t)
{
    hth_sim_unschedule(t->event.node->world, &t->event);
}

static void timer_free(struct hth_timer *t)
{
    timer_cancel(t);
    sim_list_remove(&t->in_node);
    hth_free(t);
}

/* ---- posts --------------------------------------------------------------------------------- */

static void post(struct hth_env *env, hth_fn *fn, void *arg)
{
    struct hth_node *node = sim_node_of(env);
    if (!node->live)
        return;
    struct sim_post *p = hth_new(struct sim_post);
    p->fn = fn;
    p->arg = arg;
    if (node->posts_last != NULL)
        node->posts_last->next = p;
    else
        node->posts = p;
    node->posts_last = p;
    if (node->post_event.index == 0)
        hth_sim_schedule(node->world, &node->post_event, node->world->now_us);
}

/* Run one post per event: other events may come between two posts, but posts keep their order. */
void hth_sim_post_run(struct hth_node *node)
{
    struct sim_post *p = node->posts;
    if (p == NULL)
        return;
    hth_sim_trace(node->world, node, SIM_POST, 0);
    node->posts = p->next;
    if (node->posts == NULL)
        node->posts_last = NULL;
    else
        hth_sim_schedule(node->world, &node->post_event, node->world->now_us);
    hth_fn *fn = p->fn;
    void *arg = p->arg;
    hth_free(p);
    fn(arg);
}

static uint64_t drop_posts(struct hth_node *node)
{
    uint64_t count = 0;
    while (node->posts != NULL) {
        struct sim_post *p = node->posts;
        node->posts = p->next;
        hth_free(p);
        count++;
    }
    node->posts_last = NULL;
    hth_sim_unschedule(node->world, &node->post_event);
    return count;
}

/* ---- payloads, faults, clocks -------------------------------------------------------------- */

static enum hth_err blob_new(struct hth_env *env, size_t size, struct hth_budget *budget,
                             struct hth_blob **out)
{
    if (!sim_node_of(env)->world->opts.ghost)
        return hth_blob_new_budget(size, budget, out);
    *out = NULL;
    if (budget != NULL)
        HTH_TRY(hth_budget_take(budget, size));
    *out = hth_blob_ghost(size, 0);
    (*out)->budget = budget;
    return HTH_OK;
}

static struct sim_site *site_of(struct hth_world *w, const char *name)
{
    struct sim_site *site = hth_map_get(w->sites, name, strlen(name));
    if (site != NULL)
        return site;
    site = hth_new(struct sim_site);
    site->p = -1.0;
    /* The seed and the name decide whether a site is enabled; the order of the first calls does
     * not. */
    struct hth_rng coin = hth_rng_split(&w->root, name, UINT64_C(0x53495445));
    site->enabled = hth_rng_chance(&coin, w->opts.chaos.site_enabled);
    hth_map_put(w->sites, name, strlen(name), site);
    return site;
}

static bool fault(struct hth_env *env, const char *name)
{
    struct hth_node *node = sim_node_of(env);
    struct hth_world *w = node->world;
    if (w->opts.chaos.site_enabled <= 0.0 && hth_map_count(w->sites) == 0)
        return false;
    struct sim_near *near = &w->near[(uintptr_t)name / 8 % HTH_ARRAY_LEN(w->near)];
    if (near->name != name)
        *near = (struct sim_near){name, site_of(w, name)};
    struct sim_site *site = near->site;
    double p = site->p >= 0.0 ? site->p : site->enabled ? w->opts.chaos.site_fires : 0.0;
    if (p <= 0.0 || !hth_rng_chance(&node->fault_rng, p))
        return false;
    site->fired++;
    return true;
}

void hth_world_set_fault(struct hth_world *w, const char *name, double p)
{
    site_of(w, name)->p = p;
}

uint64_t hth_world_fault_count(const struct hth_world *w, const char *name)
{
    const struct sim_site *site = hth_map_get(w->sites, name, strlen(name));
    return site != NULL ? site->fired : 0;
}

static int64_t wall_us(struct hth_env *env)
{
    struct hth_node *node = sim_node_of(env);
    struct hth_world *w = node->world;
    return w->opts.wall_start_us + w->now_us + node->wall_skew_us;
}

void hth_node_wall_step(struct hth_node *node, int64_t delta_us)
{
    node->wall_skew_us += delta_us;
}

void hth_node_wall_set(struct hth_node *node, int64_t skew_us)
{
    node->wall_skew_us = skew_us;
}

/* ---- the table ----------------------------------------------------------------------------- */

const struct hth_env_ops hth_sim_env_ops = {
    .timer_new = timer_new,
    .timer_set = timer_set,
    .timer_cancel = timer_cancel,
    .timer_free = timer_free,
    .listen = hth_sim_listen,
    .listener_addr = hth_sim_listener_addr,
    .listener_free = hth_sim_listener_free,
    .dial = hth_sim_dial,
    .stream_attach = hth_sim_stream_attach,
    .stream_write = hth_sim_stream_write,
    .stream_queued = hth_sim_stream_queued,
    .stream_read = hth_sim_stream_read,
    .stream_pause = hth_sim_stream_pause,
    .stream_peer = hth_sim_stream_peer,
    .stream_close = hth_sim_stream_close,
    .job_submit = hth_sim_job_submit,
    .lane_width = hth_sim_lane_width,
    .post = post,
    .blob_new = blob_new,
    .file_size = hth_sim_file_size,
    .file_pread = hth_sim_file_pread,
    .file_write = hth_sim_file_write,
    .file_remove = hth_sim_file_remove,
    .fault = fault,
    .wall_us = wall_us,
};

/* ---- start --------------------------------------------------------------------------------- */

/* The identity is the same after a restart; the random numbers differ. */
static void init_env(struct hth_node *node)
{
    struct hth_world *w = node->world;
    struct hth_env *env = &node->env;
    *env = (struct hth_env){.ops = &hth_sim_env_ops, .crypto = w->opts.crypto};
    struct hth_rng own = hth_rng_split(&w->root, "node", node->index);
    for (size_t i = 0; i < sizeof(env->secret.b); i += 8) {
        uint64_t word = hth_rng_u64(&own);
        memcpy(env->secret.b + i, &word, 8);
    }
    env->crypto->public_of(&env->secret, &env->pubkey);
    env->self = hth_peer_id_of(env->crypto, &env->pubkey);
    env->rng = hth_rng_split(&own, "life", node->life);
    node->fault_rng = hth_rng_split(&own, "faults", node->life);
    env->metrics = hth_metrics_new();
    hth_log_init(&env->log);
    memset(env->log.level, w->opts.log_level, sizeof(env->log.level));
    memcpy(env->log.node, node->name, sizeof(env->log.node));
    if (w->opts.log_sink != NULL) {
        env->log.sink = w->opts.log_sink;
        env->log.sink_arg = w->opts.log_arg;
    }
    env->now_us = w->now_us + node->clock_offset_us;
}

static void come_up(struct hth_node *node, int64_t boot_delay_us)
{
    struct hth_world *w = node->world;
    node->life++;
    node->live = true;
    node->silent = false;
    node->next_port = 49152;
    node->up_free_ns = node->down_free_ns = 0;
    w->up_count++;
    init_env(node);
    node->booted = node->boot == NULL;
    if (node->boot != NULL)
        hth_sim_schedule(w, &node->boot_event, w->now_us + boot_delay_us);
}

struct hth_node *hth_sim_node_new(struct hth_world *w, const char *name,
                                  const struct hth_node_opts *opts)
{
    static const struct hth_node_opts none = HTH_NODE_OPTS_INIT;
    if (opts == NULL)
        opts = &none;
    HTH_ASSERT(w->node_count < (1u << 24) - 1 &&
               strlen(name) < sizeof(((struct hth_node *)0)->name));
    struct hth_node *node = hth_new(struct hth_node);
    node->world = w;
    node->index = (uint32_t)w->node_count;
    memcpy(node->name, name, strlen(name));
    node->device = opts->device != NULL ? *opts->device : w->opts.device;
    node->zone = opts->zone;
    node->wall_skew_us = opts->wall_skew_us;
    node->clock_offset_us = opts->clock_offset_us;
    node->boot = opts->boot;
    node->halt = opts->halt;
    node->arg = opts->arg;
    node->dht = (struct hth_dht){.ops = &hth_sim_dht_ops, .self = node};
    sim_event_init(&node->boot_event, SIM_BOOT, node);
    sim_event_init(&node->post_event, SIM_POST, node);
    sim_event_init(&node->uplink, SIM_UPLINK, node);
    sim_list_init(&node->timers);
    sim_list_init(&node->listeners);
    sim_list_init(&node->streams);
    sim_list_init(&node->puts);
    sim_list_init(&node->gets);
    sim_list_init(&node->watches);
    sim_list_init(&node->up_ready);
    come_up(node, opts->boot_delay_us);
    return node;
}

void hth_sim_node_boot(struct hth_node *node)
{
    hth_sim_trace(node->world, node, SIM_BOOT, node->life);
    node->booted = true;
    node->boot(&node->env, &node->dht, node->arg);
}

void hth_node_restart(struct hth_node *node)
{
    if (node->live)
        return;
    hth_metrics_free(node->env.metrics);
    come_up(node, 0);
}

/* ---- crash --------------------------------------------------------------------------------- */

static uint64_t sweep_timers(struct hth_node *node)
{
    uint64_t count = 0;
    for (; !sim_list_empty(&node->timers); count++)
        timer_free(HTH_CONTAINER(node->timers.next, struct hth_timer, in_node));
    return count;
}

static uint64_t sweep_listeners(struct hth_node *node)
{
    uint64_t count = 0;
    for (; !sim_list_empty(&node->listeners); count++)
        hth_sim_listener_free(HTH_CONTAINER(node->listeners.next, struct hth_listener, in_node));
    return count;
}

/* Count the objects that halt left behind, and free them. */
static void sweep(struct hth_node *node)
{
    struct hth_open_counts *leaks = &node->world->leaks;
    struct hth_open_counts dht = {.timers = 0};
    hth_sim_dht_open(node, &dht);
    leaks->puts += dht.puts;
    leaks->gets += dht.gets;
    leaks->watches += dht.watches;
    hth_sim_dht_sweep_handles(node);
    leaks->timers += sweep_timers(node);
    leaks->listeners += sweep_listeners(node);
    leaks->streams += hth_sim_streams_sweep(node);
}

void hth_sim_node_die(struct hth_node *node, enum hth_crash how)
{
    node->crash_wanted = false;
    if (!node->live)
        return;
    struct hth_world *w = node->world;
    hth_sim_trace(w, node, SIM_CRASH, (uint64_t)how);
    node->env.now_us = w->now_us + node->clock_offset_us;
    node->live = false;
    node->silent = how == HTH_CRASH_SILENT;
    w->up_count--;
    w->stats.crashes++;
    hth_sim_unschedule(w, &node->boot_event);
    for (struct sim_list *l = node->timers.next; l != &node->timers; l = l->next)
        timer_cancel(HTH_CONTAINER(l, struct hth_timer, in_node));
    drop_posts(node);
    struct hth_job *jobs = hth_sim_jobs_take(node);
    hth_sim_streams_disconnect(node, how);
    hth_sim_dht_disconnect(node);
    hth_sim_disk_crash(node);
    if (node->halt != NULL && node->booted) /* a node can crash before its application began */
        node->halt(&node->env, node->arg);
    while (jobs != NULL) {
        struct hth_job *job = jobs;
        jobs = job->next;
        job->done(job, HTH_E_CANCELED);
    }
    sweep(node);
}

void hth_node_crash(struct hth_node *node, enum hth_crash how)
{
    if (node->live && node->world->current == node) {
        node->crash_wanted = true;
        node->crash_how = how;
        return;
    }
    hth_sim_node_die(node, how);
}

void hth_sim_node_free(struct hth_node *node)
{
    hth_metrics_free(node->env.metrics);
    hth_sim_files_free(node->disk);
    for (uint32_t lane = 0; lane < HTH_LANES_MAX; lane++)
        hth_free(node->lanes[lane].workers);
    hth_free(node);
}

/* ---- facts --------------------------------------------------------------------------------- */

struct hth_env *hth_node_env(struct hth_node *node)
{
    return &node->env;
}

struct hth_dht *hth_node_dht(struct hth_node *node)
{
    return &node->dht;
}

const char *hth_node_name(const struct hth_node *node)
{
    return node->name;
}

size_t hth_node_index(const struct hth_node *node)
{
    return node->index;
}

bool hth_node_is_up(const struct hth_node *node)
{
    return node->live;
}

static uint64_t list_count(const struct sim_list *head)
{
    uint64_t count = 0;
    for (const struct sim_list *l = head->next; l != head; l = l->next)
        count++;
    return count;
}

void hth_node_open(const struct hth_node *node, struct hth_open_counts *out)
{
    *out = (struct hth_open_counts){
        .timers = list_count(&node->timers),
        .listeners = list_count(&node->listeners),
        .streams = list_count(&node->streams),
        .jobs = hth_sim_jobs_count(node),
    };
    for (const struct sim_post *p = node->posts; p != NULL; p = p->next)
        out->posts++;
    hth_sim_dht_open(node, out);
}
