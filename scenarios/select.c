/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/select.h"

#include "core/mem.h"
#include "dht/announce.h"
#include "dht/directory.h"
#include "gating/beam.h"
#include "sim/world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NETWORK "select"
#define PORT    4000
/* hosts start within it, so that their renewals (every 20 s) spread evenly */
#define BOOTS_US    (20 * HTH_US_PER_S)
#define SETTLE_US   (60 * HTH_US_PER_S)
#define DEAD_US     (10 * HTH_US_PER_S) /* from the crashes to the first trainer */
#define NEXT_US     (HTH_US_PER_S / 2)  /* from one trainer to the next */
#define PATIENCE_US (60 * HTH_US_PER_S)
#define WARM        100 /* searches after the last trainer is exact */
#define ZONES       3
#define EPOCH_S     (HTH_TOPIC_EPOCH_US / HTH_US_PER_S)

struct select_run;

struct select_host {
    struct select_run *run;
    struct hth_node *node;
    struct hth_announcer *announcer;
    uint32_t first, count; /* experts */
};

struct searcher {
    struct select_run *run;
    struct hth_node *node;
    struct hth_env *env;
    struct hth_directory *directory;
    uint32_t layer;
    float *tables; /* the scores of its row */
    uint32_t ideal[HTH_TOP_K_MAX];
    int64_t booted_us, first_us, exact_us; /* 0: has not happened */
    bool first_exact;
    uint32_t living; /* experts of the first selection whose host is up */
    uint64_t requests;
};

struct select_run {
    const struct hth_select_opts *opts;
    struct hth_world *world;
    struct hth_grid grid;
    struct hth_layer_shape shape;
    struct hth_beam *beam;
    struct select_host *hosts;
    struct searcher *searchers;
    enum hth_err err; /* the first error of any boot */
};

static void remember(struct select_run *run, enum hth_err err)
{
    if (run->err == HTH_OK)
        run->err = err;
}

/* ---- hosts --------------------------------------------------------------------------------- */

static enum hth_err start_host(struct select_host *h, struct hth_env *env, struct hth_dht *dht)
{
    struct hth_announcer_opts o = HTH_ANNOUNCER_OPTS_INIT;
    uint32_t *index = hth_new_array(uint32_t, h->count);
    for (uint32_t i = 0; i < h->count; i++)
        index[i] = h->first + i;
    o.network = NETWORK;
    o.role = HTH_ROLE_HOST;
    o.beacon = false;
    o.info = (struct hth_host_info){.addr_count = 1, .version = "sim", .rows_per_s = 1000};
    o.info.addr[0] = hth_node_addr(h->node, PORT);
    enum hth_err err = hth_announcer_new(env, dht, &o, &h->announcer);
    if (err == HTH_OK)
        err = hth_announcer_set_layer(h->announcer, &h->run->grid, &h->run->shape,
                                      &(struct hth_expert_list){index, h->count});
    hth_free(index);
    return err;
}

static void host_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct select_host *h = arg;
    remember(h->run, start_host(h, env, dht));
}

static void host_halt(struct hth_env *env, void *arg)
{
    struct select_host *h = arg;
    (void)env;
    hth_announcer_free(h->announcer);
    h->announcer = NULL;
}

/* ---- trainers ------------------------------------------------------------------------------ */

static enum hth_err search(struct searcher *s, struct hth_grid_view *view, uint32_t *index,
                           uint32_t *found)
{
    float score[HTH_TOP_K_MAX];
    struct hth_beam_batch batch = {.view = view, .tables = s->tables, .rows = 1};
    struct hth_beam_result result = {.index = index, .score = score, .found = found};
    return hth_beam_search(s->run->beam, &batch, &result, NULL);
}

static bool is_alive(const struct select_run *run, uint32_t expert)
{
    for (uint32_t i = 0; i < run->opts->hosts; i++) {
        const struct select_host *h = &run->hosts[i];
        if (expert >= h->first && expert - h->first < h->count)
            return hth_node_is_up(h->node);
    }
    return false;
}

static void on_change(void *arg)
{
    struct searcher *s = arg;
    struct hth_directory_stats stats;
    uint32_t index[HTH_TOP_K_MAX], found = 0, k = s->run->opts->k;
    if (s->exact_us != 0)
        return;
    remember(s->run, search(s, hth_directory_view(s->directory, s->layer), index, &found));
    hth_directory_stats(s->directory, &stats);
    s->requests = stats.dht_requests;
    if (found < k)
        return;
    bool exact = memcmp(index, s->ideal, k * sizeof(*index)) == 0;
    if (s->first_us == 0) {
        s->first_us = hth_now_us(s->env);
        s->first_exact = exact;
        for (uint32_t i = 0; i < k; i++)
            s->living += is_alive(s->run, index[i]);
    }
    if (exact)
        s->exact_us = hth_now_us(s->env);
}

static enum hth_err start_searcher(struct searcher *s, struct hth_env *env, struct hth_dht *dht)
{
    struct hth_directory_opts o = HTH_DIRECTORY_OPTS_INIT;
    s->env = env;
    s->booted_us = hth_now_us(env);
    o.network = NETWORK;
    HTH_TRY(hth_directory_new(env, dht, &o, &s->directory));
    hth_directory_on_change(s->directory, on_change, s);
    return hth_directory_open_layer(s->directory, &s->run->grid, &s->run->shape, &s->layer);
}

static void searcher_boot(struct hth_env *env, struct hth_dht *dht, void *arg)
{
    struct searcher *s = arg;
    remember(s->run, start_searcher(s, env, dht));
}

static void searcher_halt(struct hth_env *env, void *arg)
{
    struct searcher *s = arg;
    (void)env;
    hth_directory_free(s->directory);
    s->directory = NULL;
}

/* Draw scores, and compute the selection of a search in a layer of which everything is known. */
static enum hth_err draw_row(struct searcher *s, struct hth_rng *rng)
{
    uint32_t width = hth_gate_width(&s->run->grid), size = hth_grid_size(&s->run->grid), found;
    uint32_t *all = hth_new_array(uint32_t, size);
    struct hth_grid_view *view = NULL;
    s->tables = hth_new_array(float, width);
    for (uint32_t i = 0; i < width; i++)
        s->tables[i] = (float)hth_rng_normal(rng);
    for (uint32_t i = 0; i < size; i++)
        all[i] = i;
    enum hth_err err = hth_grid_view_new(&s->run->grid, all, size, &view);
    if (err == HTH_OK)
        err = search(s, view, s->ideal, &found);
    hth_grid_view_unref(view);
    hth_free(all);
    return err;
}

/* ---- the world ----------------------------------------------------------------------------- */

/* One-way latency in ms, within and between three continents. */
static const double zone_ms[ZONES][ZONES] = {{12, 45, 90}, {45, 20, 75}, {90, 75, 30}};

static void set_links(struct select_run *run)
{
    for (uint32_t a = 0; a < ZONES; a++)
        for (uint32_t b = a; b < ZONES; b++) {
            struct hth_link link = {.jitter = HTH_JITTER_EXPONENTIAL};
            link.latency_us = (int64_t)(zone_ms[a][b] * 1000 * run->opts->far);
            link.jitter_us = link.latency_us / 5;
            hth_world_zone_link(run->world, a, b, &link);
        }
}

static void make_hosts(struct select_run *run, struct hth_rng *rng)
{
    const struct hth_select_opts *o = run->opts;
    struct hth_node_opts n = HTH_NODE_OPTS_INIT;
    uint64_t size = hth_grid_size(&run->grid);
    char name[24];
    n.boot = host_boot;
    n.halt = host_halt;
    for (uint32_t i = 0; i < o->hosts; i++) {
        struct select_host *h = &run->hosts[i];
        h->run = run;
        h->first = (uint32_t)(size * i / o->hosts);
        h->count = (uint32_t)(size * (i + 1) / o->hosts) - h->first;
        n.arg = h;
        n.zone = i % ZONES;
        n.boot_delay_us = (int64_t)hth_rng_below(rng, BOOTS_US);
        snprintf(name, sizeof(name), "host%u", i);
        h->node = hth_world_node(run->world, name, &n);
    }
    n = (struct hth_node_opts)HTH_NODE_OPTS_INIT;
    for (uint32_t i = o->hosts + o->trainers; i < o->nodes; i++) {
        n.zone = i % ZONES;
        snprintf(name, sizeof(name), "node%u", i);
        (void)hth_world_node(run->world, name, &n);
    }
}

static void kill_hosts(struct select_run *run, struct hth_rng *rng)
{
    uint32_t order[HTH_SELECT_HOSTS_MAX];
    uint32_t deaths = (uint32_t)lround(run->opts->dead * run->opts->hosts);
    for (uint32_t i = 0; i < run->opts->hosts; i++)
        order[i] = i;
    hth_rng_shuffle(rng, order, run->opts->hosts, sizeof(*order));
    for (uint32_t i = 0; i < deaths; i++)
        hth_node_crash(run->hosts[order[i]].node, HTH_CRASH_SILENT);
}

static enum hth_err run_searchers(struct select_run *run, struct hth_rng *rng)
{
    struct hth_node_opts n = HTH_NODE_OPTS_INIT;
    char name[24];
    n.boot = searcher_boot;
    n.halt = searcher_halt;
    for (uint32_t i = 0; i < run->opts->trainers; i++) {
        struct searcher *s = &run->searchers[i];
        s->run = run;
        HTH_TRY(draw_row(s, rng));
        n.arg = s;
        n.zone = i % ZONES;
        snprintf(name, sizeof(name), "trainer%u", i);
        s->node = hth_world_node(run->world, name, &n);
        hth_world_run_for(run->world, NEXT_US);
    }
    hth_world_run_for(run->world, PATIENCE_US - NEXT_US);
    return run->err;
}

/* ---- what came out ------------------------------------------------------------------------- */

static uint64_t requests_of_all(const struct select_run *run)
{
    struct hth_directory_stats stats;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < run->opts->trainers; i++) {
        hth_directory_stats(run->searchers[i].directory, &stats);
        sum += stats.dht_requests;
    }
    return sum;
}

static enum hth_err search_warm(struct select_run *run, double *requests)
{
    uint32_t index[HTH_TOP_K_MAX], found;
    uint64_t before = requests_of_all(run);
    for (uint32_t i = 0; i < WARM; i++) {
        struct searcher *s = &run->searchers[i % run->opts->trainers];
        HTH_TRY(search(s, hth_directory_view(s->directory, s->layer), index, &found));
    }
    *requests = (double)(requests_of_all(run) - before);
    return HTH_OK;
}

static void sum_up(const struct select_run *run, struct hth_select_row *row)
{
    double first = 0, exact = 0, living = 0, requests = 0, at_once = 0;
    uint32_t firsts = 0, exacts = 0;
    for (uint32_t i = 0; i < run->opts->trainers; i++) {
        const struct searcher *s = &run->searchers[i];
        requests += (double)s->requests;
        if (s->first_us != 0) {
            firsts++;
            first += (double)(s->first_us - s->booted_us) / HTH_US_PER_S;
            living += s->living;
            at_once += s->first_exact;
        }
        if (s->exact_us != 0) {
            exacts++;
            exact += (double)(s->exact_us - s->booted_us) / HTH_US_PER_S;
        }
    }
    row->first_s = firsts > 0 ? first / firsts : NAN;
    row->exact_s = exacts > 0 ? exact / exacts : NAN;
    row->living = firsts > 0 ? living / ((double)firsts * run->opts->k) : NAN;
    row->exact = at_once / run->opts->trainers;
    row->dht_requests = requests / run->opts->trainers;
}

static bool makes_sense(const struct hth_select_opts *o)
{
    return o->hosts >= 1 && o->hosts <= HTH_SELECT_HOSTS_MAX && o->trainers >= 1 &&
           o->trainers <= HTH_SELECT_TRAINERS_MAX && o->nodes >= o->hosts + o->trainers &&
           o->side >= 1 && o->side <= 1024 && o->side * o->side >= o->hosts && o->k >= 1 &&
           o->k <= HTH_TOP_K_MAX && o->k <= o->side * o->side && o->dead >= 0 && o->dead <= 0.9 &&
           o->far > 0 && o->far <= 100 && o->epoch_s >= 0 && o->epoch_s < EPOCH_S;
}

static enum hth_err prepare(struct select_run *run, struct hth_rng *rng)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_beam_opts beam = HTH_BEAM_OPTS_INIT;
    uint32_t dim[2] = {run->opts->side, run->opts->side};
    if (run->opts->poor)
        w.dht.partial = 0.3;
    w.ghost = true;
    /* Go back from the first trainer to the world's beginning, on whole epochs. */
    w.wall_start_us = w.wall_start_us / HTH_TOPIC_EPOCH_US * HTH_TOPIC_EPOCH_US +
                      (int64_t)(run->opts->epoch_s * 1e6) - SETTLE_US - DEAD_US;
    beam.k = run->opts->k;
    w.trace = run->opts->on_event;
    w.trace_arg = run->opts->arg;
    run->world = hth_world_new(run->opts->seed, &w);
    run->shape = (struct hth_layer_shape){.kind = "ffn", .d = 64, .block_rows = 1};
    HTH_TRY(hth_grid_init(&run->grid, "layer", 2, dim));
    HTH_TRY(hth_beam_new(&run->grid, &beam, &run->beam));
    run->hosts = hth_new_array(struct select_host, run->opts->hosts);
    run->searchers = hth_new_array(struct searcher, run->opts->trainers);
    set_links(run);
    make_hosts(run, rng);
    return HTH_OK;
}

enum hth_err hth_sim_select(const struct hth_select_opts *opts, struct hth_select_row *row)
{
    struct select_run run = {.opts = opts};
    struct hth_rng rng;
    enum hth_err err = HTH_OK;
    memset(row, 0, sizeof(*row));
    if (!makes_sense(opts))
        return HTH_E_CONFIG;
    hth_rng_init(&rng, hth_mix64(opts->seed) ^ UINT64_C(0x53454c454354));
    HTH_GOTO(out, prepare(&run, &rng));
    hth_world_run_for(run.world, SETTLE_US);
    kill_hosts(&run, &rng);
    hth_world_run_for(run.world, DEAD_US);
    HTH_GOTO(out, run_searchers(&run, &rng));
    sum_up(&run, row);
    HTH_GOTO(out, search_warm(&run, &row->warm_requests));
    row->trace = hth_world_trace_hash(run.world);
out:
    hth_world_free(run.world);
    hth_beam_free(run.beam);
    for (uint32_t i = 0; run.searchers != NULL && i < opts->trainers; i++)
        hth_free(run.searchers[i].tables);
    hth_free(run.hosts);
    hth_free(run.searchers);
    return err;
}
