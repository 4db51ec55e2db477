/* SPDX-License-Identifier: Apache-2.0 */
/* scenario.c: limits, the draw, and the texts of a scenario. run.c runs it. */
#include "scenarios/scenario.h"

#include "core/limits.h"
#include "scenarios/echo.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void hth_scenario_init(struct hth_scenario *s)
{
    memset(s, 0, sizeof(*s));
    s->name = (char *)(uintptr_t) "unnamed";
    s->nodes = 50;
    s->duration_s = 60;
    s->safety = 2.0 / 3.0;
    s->load.payload_kib = 256;
    s->load.calls_per_s = 1;
    s->load.experts = 2;
    s->load.hood = 32;
    s->swarm.copies = 2;
    s->swarm.dim = s->swarm.rows = 16;
    s->swarm.layers = s->swarm.grid = s->swarm.top_k = s->swarm.flights = 2;
    s->swarm.every = 10;
    s->swarm.target = 128;
    s->swarm.held_mib = 64;
    s->links.latency_ms = (struct hth_range){20, 20};
    s->churn.shape = (struct hth_range){0.6, 0.6};
    s->churn.day_s = 86400;
    s->churn.silent = 0.5;
    s->clogs.ways = 1;
    s->stragglers.speed = (struct hth_range){0.1, 0.1};
    s->dht.refresh_s = 10;
    s->chaos.short_read = s->chaos.short_write = (struct hth_range){0.05, 0.05};
}

/* ---- limits -------------------------------------------------------------------------------- */

struct bound {
    const char *key;
    struct hth_range value;
    double low, high;
};

static struct hth_range one(double x)
{
    return (struct hth_range){x, x};
}

/* 0 is a link without a limit; a slower link than this would never finish. */
#define MBIT_MIN 1e-3

static double least_mbit(double mbit)
{
    return mbit == 0 ? 0 : MBIT_MIN;
}

static bool within(const struct bound *b, char *error, size_t max)
{
    if (b->value.low >= b->low && b->value.low <= b->value.high && b->value.high <= b->high)
        return true;
    if (b->value.low == b->value.high)
        snprintf(error, max, "%s is %g; it must be from %g to %g", b->key, b->value.low, b->low,
                 b->high);
    else
        snprintf(error, max, "%s is [%g, %g]; it must rise, from %g to %g", b->key, b->value.low,
                 b->value.high, b->low, b->high);
    return false;
}

static bool check_zones(const struct hth_scenario *s, char *error, size_t max)
{
    for (uint32_t i = 0; i < s->zone_count; i++) {
        const struct hth_scenario_zone *z = &s->zones[i];
        const struct bound share = {"zones.share", one(z->share), 1e-6, 1e6};
        if (!within(&share, error, max))
            return false;
        if (z->latency_count != i + 1) {
            snprintf(error, max,
                     "zone '%.40s' has %" PRIu32 " latencies; it must have %" PRIu32
                     ": to the zones above it and to itself",
                     z->name, z->latency_count, i + 1);
            return false;
        }
        for (uint32_t j = 0; j <= i; j++) {
            const struct bound ms = {"zones.latency_ms", one(z->latency_ms[j]), 0, 60000};
            if (!within(&ms, error, max))
                return false;
        }
    }
    return true;
}

/* Check that no rate is missing: a missing rate is not 0. */
static bool check_rates(const struct hth_scenario_device *d, char *error, size_t max)
{
    if (d->gflops != 0 && d->gbytes_per_s != 0 && d->workers != 0)
        return true;
    snprintf(error, max,
             "device '%.40s' has no %s; it needs gflops, gbytes_per_s and workers, or a profile",
             d->name,
             d->gflops == 0         ? "gflops"
             : d->gbytes_per_s == 0 ? "gbytes_per_s"
                                    : "workers");
    return false;
}

static bool check_devices(const struct hth_scenario *s, char *error, size_t max)
{
    for (uint32_t i = 0; i < s->device_count; i++) {
        const struct hth_scenario_device *d = &s->devices[i];
        bool rated = d->profile == NULL; /* else these come from the profile */
        if (rated && !check_rates(d, error, max))
            return false;
        const struct bound bounds[] = {
            {"devices.share", one(d->share), 1e-6, 1e6},
            {"devices.gflops", one(d->gflops), rated ? 1e-3 : 0, 1e9},
            {"devices.gbytes_per_s", one(d->gbytes_per_s), rated ? 1e-3 : 0, 1e9},
            {"devices.workers", one(d->workers), rated ? 1 : 0, 1024},
            {"devices.up_mbit", one(d->up_mbit), least_mbit(d->up_mbit), 1e9},
            {"devices.down_mbit", one(d->down_mbit), least_mbit(d->down_mbit), 1e9},
            {"devices.disk_mb", one(d->disk_mb), 0, 1e9},
        };
        for (size_t b = 0; b < HTH_ARRAY_LEN(bounds); b++)
            if (!within(&bounds[b], error, max))
                return false;
    }
    return true;
}

uint64_t hth_scenario_malice(const struct hth_scenario *s)
{
    uint64_t sum = 0;
#define ADD(name) sum += s->malice.name;
    HTH_MALICE_MAP(ADD)
#undef ADD
    return sum;
}

/* Check limits that the parts of a run have. */
static bool check_swarm(const struct hth_scenario *s, char *error, size_t max)
{
    uint64_t bad = hth_scenario_malice(s);
    const struct bound bounds[] = {
        {"swarm.hosts", one(s->swarm.hosts), 1, HTH_FLEET_NODES_MAX},
        {"swarm.copies", one(s->swarm.copies), 1, s->swarm.hosts},
        {"swarm.trainers", one(s->swarm.trainers), 1, HTH_FLEET_TRAINERS_MAX},
        {"swarm.dim", one(s->swarm.dim), 4, 4096},
        {"swarm.layers", one(s->swarm.layers), 1, HTH_MODEL_LAYERS_MAX},
        {"swarm.grid", one(s->swarm.grid), 1, 64},
        {"swarm.top_k", one(s->swarm.top_k), 1, HTH_MIN(s->swarm.grid * s->swarm.grid, 16)},
        {"swarm.rows", one(s->swarm.rows), 1, 4096},
        {"swarm.flights", one(s->swarm.flights), 1, 512},
        {"swarm.every", one(s->swarm.every), 1, 1e6},
        {"swarm.target", one(s->swarm.target), 1, 1e6},
        {"swarm.clip", one(s->swarm.clip), s->swarm.clip > 0 ? 1 : 0, 1e6},
        {"swarm.checkpoint_s", one(s->swarm.checkpoint_s), 0, 1e6},
        {"swarm.held_mib", one(s->swarm.held_mib), 0.25, 1e6},
        {"malice", one((double)bad), 0, HTH_FLEET_NODES_MAX},
    };
    for (size_t i = 0; s->swarm.trainers > 0 && i < HTH_ARRAY_LEN(bounds); i++)
        if (!within(&bounds[i], error, max))
            return false;
    if (s->swarm.trainers > 0 && s->nodes != s->swarm.hosts + s->swarm.trainers + bad) {
        snprintf(error, max,
                 "nodes is %" PRIu32 "; with a swarm it is the sum of its nodes and of malice's: "
                 "leave it out",
                 s->nodes);
        return false;
    }
    if (s->swarm.trainers == 0 && (s->swarm.hosts > 0 || bad > 0)) {
        snprintf(error, max, "%s needs swarm.trainers", bad > 0 ? "malice" : "swarm");
        return false;
    }
    return true;
}

#define DAY_S 86400.0
/* The shortest interval of recurring events: with shorter ones the run would make no progress. */
#define EVERY_MIN_S 0.01

static bool check_numbers(const struct hth_scenario *s, char *error, size_t max)
{
    bool churns = s->churn.kind != HTH_LIFE_ALWAYS, together = s->churn.providers > 0;
    const struct bound bounds[] = {
        {"nodes", one(s->nodes), 2, HTH_SCENARIO_NODES_MAX},
        {"duration_s", one(s->duration_s), 10, 30 * DAY_S},
        {"safety", one(s->safety), 0, 0.9},
        {"load.payload_kib", one(s->load.payload_kib), 1.0 / 1024, 65536},
        {"load.calls_per_s", one(s->load.calls_per_s), 1e-4, 1000},
        {"load.experts", one(s->load.experts), 1, HTH_ECHO_EXPERTS_MAX},
        {"load.hood", one(s->load.hood), 2, 4096},
        {"links.latency_ms", s->links.latency_ms, 0, 60000},
        {"links.jitter_ms", s->links.jitter_ms, 0, 60000},
        {"links.loss", s->links.loss, 0, 0.5},
        {"churn.up_s", s->churn.up_s, churns ? EVERY_MIN_S : 0, 1e9},
        {"churn.down_s", s->churn.down_s, churns ? EVERY_MIN_S : 0, 1e9},
        {"churn.shape", s->churn.shape, 0.1, 10},
        {"churn.swing", s->churn.swing, 0, 1},
        {"churn.day_s", one(s->churn.day_s), 1, 1000 * DAY_S},
        {"churn.providers", one(s->churn.providers), 0, 10000},
        {"churn.provider_up_s", s->churn.provider_up_s, together ? EVERY_MIN_S : 0, 1e9},
        {"churn.provider_down_s", s->churn.provider_down_s, together ? EVERY_MIN_S : 0, 1e9},
        {"churn.silent", one(s->churn.silent), 0, 1},
        {"partitions.every_s", s->partitions.every_s, 0, 1e9},
        {"partitions.for_s", s->partitions.for_s, 0, 1e9},
        {"partitions.share", s->partitions.share, 0, 1},
        {"partitions.one_way", one(s->partitions.one_way), 0, 1},
        {"clogs.every_s", s->clogs.every_s, 0, 1e9},
        {"clogs.for_s", s->clogs.for_s, 0, 1e9},
        {"clogs.ways", one(s->clogs.ways), 1, 10000},
        {"clocks.skew_ms", s->clocks.skew_ms, 0, 60000},
        {"clocks.step_ms", s->clocks.step_ms, 0, 60000},
        {"clocks.every_s", s->clocks.every_s, 0, 1e9},
        {"stragglers.share", s->stragglers.share, 0, 1},
        {"stragglers.speed", s->stragglers.speed, 1e-4, 1e4},
        {"dht.lost_put", s->dht.lost_put, 0, 1},
        {"dht.lost_get", s->dht.lost_get, 0, 1},
        {"dht.partial", s->dht.partial, 0, 1},
        {"dht.repeat", s->dht.repeat, 0, 1},
        {"dht.stale", s->dht.stale, 0, 1},
        {"dht.refresh_s", one(s->dht.refresh_s), 0.1, 3600},
        {"chaos.short_read", s->chaos.short_read, 0, 1},
        {"chaos.short_write", s->chaos.short_write, 0, 1},
        {"chaos.io_error", s->chaos.io_error, 0, 1},
        {"chaos.torn_file", s->chaos.torn_file, 0, 1},
        {"chaos.sites", one(s->chaos.sites), 0, 1},
        {"chaos.fires", one(s->chaos.fires), 0, 1},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(bounds); i++)
        if (!within(&bounds[i], error, max))
            return false;
    return true;
}

/* Check that partitions separate nodes: others are a mistake of the author. */
static bool check_partitions(const struct hth_scenario *s, char *error, size_t max)
{
    if (s->partitions.every_s.high == 0)
        return true;
    if (s->partitions.share.high > 0 && s->partitions.share.low < 1 && s->partitions.for_s.high > 0)
        return true;
    snprintf(error, max,
             s->partitions.for_s.high == 0
                 ? "partitions.for_s is 0: nothing would be separated"
                 : "partitions.share must lie between 0 and 1: with none or all of the "
                   "nodes on one side nothing would be separated");
    return false;
}

/* Check that the experts of a neighbourhood fit on one axis. */
static bool check_load(const struct hth_scenario *s, char *error, size_t max)
{
    uint64_t experts = hth_hood_experts(s->nodes, s->load.hood, s->load.experts);
    if (s->swarm.trainers > 0 || experts <= HTH_GRID_DIM_MAX)
        return true;
    snprintf(error, max,
             "a neighbourhood has %" PRIu64 " experts; at most %d: make load.hood or load.experts "
             "smaller",
             experts, HTH_GRID_DIM_MAX);
    return false;
}

/* Check a name. Names appear in CSV, JSON and scripts of gnuplot, which can run programs, and files
 * may be hostile. */
static bool is_word(const char *name)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t len = strlen(name);
    return len > 0 && len <= HTH_SCENARIO_NAME_MAX && strspn(name, letters) == len;
}

enum hth_err hth_scenario_check(const struct hth_scenario *s, char *error, size_t error_max)
{
    error[0] = '\0';
    if (s->name == NULL || !is_word(s->name)) {
        snprintf(error, error_max, "name must be a word of 1 to %d letters, digits, - _ or .",
                 HTH_SCENARIO_NAME_MAX);
        return HTH_E_RANGE;
    }
    if (s->zone_count > HTH_SCENARIO_ZONES_MAX || s->device_count > HTH_SCENARIO_DEVICES_MAX) {
        snprintf(error, error_max, "at most %d zones and %d devices", HTH_SCENARIO_ZONES_MAX,
                 HTH_SCENARIO_DEVICES_MAX);
        return HTH_E_RANGE;
    }
    bool good = check_swarm(s, error, error_max) && check_numbers(s, error, error_max) &&
                check_partitions(s, error, error_max) && check_load(s, error, error_max) &&
                check_zones(s, error, error_max) && check_devices(s, error, error_max);
    return good ? HTH_OK : HTH_E_RANGE;
}

/* ---- the draw ------------------------------------------------------------------------------ */

static double draw(struct hth_rng *rng, const struct hth_range *r)
{
    return r->low + (r->high - r->low) * hth_rng_unit(rng);
}

static int64_t draw_us(struct hth_rng *rng, const struct hth_range *r, double unit_us)
{
    return (int64_t)(draw(rng, r) * unit_us + 0.5);
}

static void draw_churn(const struct hth_scenario *s, struct hth_rng *rng,
                       struct hth_churn_opts *out)
{
    *out = (struct hth_churn_opts)HTH_CHURN_OPTS_INIT;
    out->peer.kind = s->churn.kind;
    out->peer.up_us = draw_us(rng, &s->churn.up_s, 1e6);
    out->peer.down_us = draw_us(rng, &s->churn.down_s, 1e6);
    out->peer.shape = draw(rng, &s->churn.shape);
    out->peer.swing = draw(rng, &s->churn.swing);
    out->peer.day_us = (int64_t)(s->churn.day_s * 1e6);
    out->provider.kind = s->churn.providers > 0 ? HTH_LIFE_POISSON : HTH_LIFE_ALWAYS;
    out->provider.up_us = draw_us(rng, &s->churn.provider_up_s, 1e6);
    out->provider.down_us = draw_us(rng, &s->churn.provider_down_s, 1e6);
    out->providers = HTH_MAX(s->churn.providers, 1u);
    out->silent = s->churn.silent;
}

static void draw_dht(const struct hth_scenario *s, struct hth_rng *rng, struct hth_dht_params *out)
{
    *out = (struct hth_dht_params)HTH_DHT_PARAMS_INIT;
    out->watch_refresh_us = (int64_t)(s->dht.refresh_s * 1e6);
    out->lost_put = draw(rng, &s->dht.lost_put);
    out->lost_get = draw(rng, &s->dht.lost_get);
    out->partial = draw(rng, &s->dht.partial);
    out->repeat = draw(rng, &s->dht.repeat);
    out->stale = draw(rng, &s->dht.stale);
}

void hth_scenario_draw(const struct hth_scenario *s, uint64_t seed, struct hth_plan *p)
{
    struct hth_rng rng;
    memset(p, 0, sizeof(*p));
    hth_rng_init(&rng, seed ^ UINT64_C(0x504c414e));
    p->scenario = s;
    p->seed = seed;
    p->duration_us = (int64_t)(s->duration_s * 1e6);
    p->safety_us = (int64_t)(s->duration_s * s->safety * 1e6);
    p->link.jitter = HTH_JITTER_EXPONENTIAL;
    p->link.latency_us = draw_us(&rng, &s->links.latency_ms, 1e3);
    p->link.jitter_us = draw_us(&rng, &s->links.jitter_ms, 1e3);
    p->link.loss = draw(&rng, &s->links.loss);
    draw_churn(s, &rng, &p->churn);
    p->churns = s->churn.kind != HTH_LIFE_ALWAYS || s->churn.providers > 0;
    p->partition_every_us = draw_us(&rng, &s->partitions.every_s, 1e6);
    p->partition_for_us = draw_us(&rng, &s->partitions.for_s, 1e6);
    p->partition_share = draw(&rng, &s->partitions.share);
    p->clog_every_us = draw_us(&rng, &s->clogs.every_s, 1e6);
    p->clog_for_us = draw_us(&rng, &s->clogs.for_s, 1e6);
    p->skew_us = draw_us(&rng, &s->clocks.skew_ms, 1e3);
    p->step_us = draw_us(&rng, &s->clocks.step_ms, 1e3);
    p->step_every_us = draw_us(&rng, &s->clocks.every_s, 1e6);
    p->straggler_share = draw(&rng, &s->stragglers.share);
    p->straggler_speed = draw(&rng, &s->stragglers.speed);
    draw_dht(s, &rng, &p->dht);
    p->chaos.short_read = draw(&rng, &s->chaos.short_read);
    p->chaos.short_write = draw(&rng, &s->chaos.short_write);
    p->chaos.io_error = draw(&rng, &s->chaos.io_error);
    p->chaos.torn_file = draw(&rng, &s->chaos.torn_file);
    p->chaos.site_enabled = s->chaos.sites;
    p->chaos.site_fires = s->chaos.fires;
}

/* ---- texts --------------------------------------------------------------------------------- */

struct plan_text {
    char *out;
    size_t at, max;
};

HTH_PRINTF(2, 3) static void put(struct plan_text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(t->out + t->at, t->max - t->at, fmt, args);
    va_end(args);
    t->at = HTH_MIN(t->at + (size_t)HTH_MAX(n, 0), t->max - 1);
}

static void put_churn(struct plan_text *t, const struct hth_plan *p)
{
    static const char *const kinds[] = {"always up", "poisson", "weibull", "diurnal"};
    const struct hth_life *peer = &p->churn.peer, *provider = &p->churn.provider;
    if (!p->churns)
        return;
    put(t, "  churn        %s", kinds[peer->kind]);
    if (peer->kind != HTH_LIFE_ALWAYS)
        put(t, ", up %.1f s, down %.1f s", (double)peer->up_us / 1e6, (double)peer->down_us / 1e6);
    if (peer->kind == HTH_LIFE_WEIBULL)
        put(t, ", shape %.2f", peer->shape);
    if (peer->kind == HTH_LIFE_DIURNAL)
        put(t, ", day %.0f s, swing %.2f", (double)peer->day_us / 1e6, peer->swing);
    if (provider->kind != HTH_LIFE_ALWAYS)
        put(t, "; %" PRIu32 " providers, up %.1f s, down %.1f s", p->churn.providers,
            (double)provider->up_us / 1e6, (double)provider->down_us / 1e6);
    put(t, "; %.0f %% silent\n", 100 * p->churn.silent);
}

static void put_malice(struct plan_text *t, const struct hth_scenario *s)
{
    const char *before = "  malice       ";
#define PUT(name)                                                                                  \
    if (s->malice.name > 0) {                                                                      \
        put(t, "%s%" PRIu32 " " #name, before, s->malice.name);                                    \
        before = ", ";                                                                             \
    }
    HTH_MALICE_MAP(PUT)
#undef PUT
    if (hth_scenario_malice(s) > 0)
        put(t, "\n");
}

static void put_swarm(struct plan_text *t, const struct hth_scenario *s)
{
    static const char *const averaging[] = {"local", "batch", "off"};
    if (s->swarm.trainers == 0)
        return;
    put(t,
        "  swarm        %" PRIu32 " hosts, %" PRIu32 " trainers, %" PRIu32 " layers of %" PRIu32
        " experts, %" PRIu32 " replicas each; %" PRIu32 " flights of %" PRIu32
        "; averaging %s; %s\n",
        s->swarm.hosts, s->swarm.trainers, s->swarm.layers, s->swarm.grid * s->swarm.grid,
        s->swarm.copies, s->swarm.flights, s->swarm.rows, averaging[s->swarm.averaging],
        s->load.real ? "real payloads" : "ghosts");
    put_malice(t, s);
}

static void put_events(struct plan_text *t, const struct hth_plan *p)
{
    if (p->partition_every_us > 0)
        put(t, "  partitions   every %.1f s for %.1f s, %.0f %% of the nodes\n",
            (double)p->partition_every_us / 1e6, (double)p->partition_for_us / 1e6,
            100 * p->partition_share);
    if (p->clog_every_us > 0)
        put(t, "  clogs        every %.1f s for %.1f s, %" PRIu32 " links\n",
            (double)p->clog_every_us / 1e6, (double)p->clog_for_us / 1e6, p->scenario->clogs.ways);
    if (p->skew_us > 0 || p->step_every_us > 0)
        put(t, "  clocks       up to %.0f ms off, steps up to %.0f ms every %.1f s\n",
            (double)p->skew_us / 1e3, (double)p->step_us / 1e3, (double)p->step_every_us / 1e6);
    if (p->straggler_share > 0)
        put(t, "  stragglers   %.0f %% of the nodes at %.3g times the speed\n",
            100 * p->straggler_share, p->straggler_speed);
}

const char *hth_plan_text(const struct hth_plan *p, char out[HTH_SCENARIO_TEXT_MAX])
{
    struct plan_text t = {out, 0, HTH_SCENARIO_TEXT_MAX};
    const struct hth_scenario *s = p->scenario;
    out[0] = '\0';
    put(&t, "scenario %s, seed %" PRIu64 ": %" PRIu32 " nodes, %.0f s, faults until %.0f s\n",
        s->name, p->seed, s->nodes, (double)p->duration_us / 1e6, (double)p->safety_us / 1e6);
    put(&t,
        "  links        %.1f ms, jitter %.1f ms, loss %.4f; %" PRIu32 " zones, %" PRIu32
        " kinds of device\n",
        (double)p->link.latency_us / 1e3, (double)p->link.jitter_us / 1e3, p->link.loss,
        s->zone_count, s->device_count);
    put_swarm(&t, s);
    put_churn(&t, p);
    put_events(&t, p);
    put(&t, "  dht          lost put %.3f, lost get %.3f, partial %.3f, repeat %.3f, stale %.3f\n",
        p->dht.lost_put, p->dht.lost_get, p->dht.partial, p->dht.repeat, p->dht.stale);
    put(&t,
        "  chaos        short reads %.3f, short writes %.3f, io errors %.3f, torn files %.3f, "
        "sites %.2f x %.2f\n",
        p->chaos.short_read, p->chaos.short_write, p->chaos.io_error, p->chaos.torn_file,
        p->chaos.site_enabled, p->chaos.site_fires);
    return out;
}

static void put_fleet(struct plan_text *t, const struct hth_fleet_stats *f)
{
    put(t,
        " updates=%" PRIu64 " dropped=%" PRIu64 " rounds=%" PRIu64 " rounds_failed=%" PRIu64
        " alone=%" PRIu64 " applied=%" PRIu64 " replays=%" PRIu64 " files=%" PRIu64
        " files_failed=%" PRIu64 " restored=%" PRIu64 " repairs=%" PRIu64 " catch_ups=%" PRIu64
        " refused=%" PRIu64 " spread=%.4f",
        f->updates, f->flights_failed, f->rounds, f->rounds_failed, f->rows_alone, f->applied,
        f->replays, f->files, f->files_failed, f->restored, f->repairs, f->catch_ups,
        f->not_finite + f->refused_bad, f->spread);
}

const char *hth_scenario_line(const struct hth_scenario_report *r, const char *again,
                              int64_t wall_us, char out[HTH_SCENARIO_LINE_MAX])
{
    struct plan_text t = {out, 0, HTH_SCENARIO_LINE_MAX};
    put(&t, "%s scenario=%s seed=%" PRIu64 " hash=%016" PRIx64 " nodes=%" PRIu32,
        r->pass ? "PASS" : "FAIL", r->name, r->seed, r->hash, r->nodes);
    if (!r->pass)
        put(&t, " why=\"%s\" again=\"%s\"", r->why, again);
    put(&t,
        " virtual_s=%.1f events=%" PRIu64 " calls=%" PRIu64 " ok=%" PRIu64 " failed=%" PRIu64
        " again=%" PRIu64 " vanished=%" PRIu64 " deaths=%" PRIu64 " outages=%" PRIu64
        " partitions=%" PRIu64 " clogs=%" PRIu64 " steps=%" PRIu64,
        (double)r->virtual_us / 1e6, r->events, r->calls, r->calls_ok, r->calls_failed,
        r->calls_again, r->calls_vanished, r->deaths, r->outages, r->partitions, r->clogs,
        r->steps);
    if (r->is_swarm)
        put_fleet(&t, &r->fleet);
    else
        put(&t, " median_ms=%.1f p99_ms=%.1f", r->latency_median_us / 1e3, r->latency_p99_us / 1e3);
    put(&t, " mib=%.0f", (double)r->bytes_delivered / 1048576.0);
    if (wall_us > 0)
        put(&t, " wall_s=%.2f virtual_per_wall=%.1f", (double)wall_us / 1e6,
            (double)r->virtual_us / (double)wall_us);
    return out;
}
