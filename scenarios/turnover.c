/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/turnover.h"

#include "core/mem.h"
#include "scenarios/echo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALM_US (20 * HTH_US_PER_S)
#define STEP_US (50 * HTH_US_PER_MS)
#define NODES   (2 * HTH_CHURN_HOOD_MAX) /* of a neighbourhood, the reserve included */

enum wait { WAIT_NOTHING, WAIT_SEEN, WAIT_GONE };

struct times {
    double *s;
    size_t count, room;
};

/* The state of one watched neighbourhood. */
struct hood {
    uint8_t wait[NODES][NODES]; /* [viewer][host]: enum wait */
    bool newcomer[NODES];       /* shows less than nine tenths so far */
};

struct churn_run {
    const struct hth_sim_churn_opts *opts;
    struct hth_world *world;
    struct hth_echo *peers;
    struct hth_rng rng;
    uint32_t nodes, span; /* of all neighbourhoods, and of one; both with the reserve */
    int64_t *changed_us;  /* last crash or start of each node */
    struct hood *hoods;   /* the first `watched` neighbourhoods */
    uint32_t watched;
    bool ended; /* no more crashes */
    uint64_t deaths, shown, shown_dead;
    struct times discover, forget, newcomer;
};

static void keep(struct times *t, int64_t us)
{
    if (t->count == t->room) {
        t->room = t->room > 0 ? 2 * t->room : 256;
        t->s = hth_realloc(t->s, t->room, sizeof(double));
    }
    t->s[t->count++] = (double)us / HTH_US_PER_S;
}

static bool is_up(const struct churn_run *r, uint32_t node)
{
    return hth_node_is_up(hth_echo_node(r->peers, node));
}

/* Number of nodes of neighbourhood k; the last may be smaller. */
static uint32_t hood_size(const struct churn_run *r, uint32_t k)
{
    return HTH_MIN(r->span, r->nodes - k * r->span);
}

/* ---- crashes and starts -------------------------------------------------------------------- */

/* Start the waits of all viewers for the news about h, and void h's own waits. */
static void expect(struct churn_run *r, uint32_t h, bool born)
{
    uint32_t k = h / r->span, first = k * r->span;
    if (k >= r->watched)
        return;
    struct hood *hood = &r->hoods[k];
    for (uint32_t v = 0; v < hood_size(r, k); v++) {
        hood->wait[h - first][v] = WAIT_NOTHING;
        bool sees = first + v != h && hth_echo_sees(r->peers, first + v, h);
        bool news = first + v != h && is_up(r, first + v) && sees != born;
        hood->wait[v][h - first] = !news ? WAIT_NOTHING : born ? WAIT_SEEN : WAIT_GONE;
    }
    hood->newcomer[h - first] = born;
}

static void give_birth(struct churn_run *r, uint32_t node)
{
    expect(r, node, true);
    r->changed_us[node] = hth_world_now_us(r->world);
    hth_node_restart(hth_echo_node(r->peers, node));
}

static void kill_one(struct churn_run *r, uint32_t node)
{
    bool silent = hth_rng_chance(&r->rng, r->opts->silent);
    hth_node_crash(hth_echo_node(r->peers, node), silent ? HTH_CRASH_SILENT : HTH_CRASH_RESET);
    r->changed_us[node] = hth_world_now_us(r->world);
    r->deaths++;
    expect(r, node, false);
}

/* The node of the same neighbourhood that has been down for longest, before `dead` crashed. */
static uint32_t longest_down(const struct churn_run *r, uint32_t dead)
{
    uint32_t k = dead / r->span, best = UINT32_MAX;
    for (uint32_t i = k * r->span; i < k * r->span + hood_size(r, k); i++)
        if (i != dead && !is_up(r, i) &&
            (best == UINT32_MAX || r->changed_us[i] < r->changed_us[best]))
            best = i;
    return best;
}

static int64_t next_death_us(struct churn_run *r)
{
    double mean_us = 60e6 / (r->opts->replaced * r->opts->peers);
    return hth_world_now_us(r->world) + 1 + (int64_t)hth_rng_exponential(&r->rng, mean_us);
}

static void on_death(void *arg)
{
    struct churn_run *r = arg;
    uint32_t node;
    if (r->ended)
        return;
    do {
        node = (uint32_t)hth_rng_below(&r->rng, r->nodes);
    } while (!is_up(r, node));
    kill_one(r, node);
    give_birth(r, longest_down(r, node));
    hth_world_at(r->world, next_death_us(r), on_death, r);
}

/* ---- looking ------------------------------------------------------------------------------- */

struct sight {
    uint32_t living, living_shown, dead_shown;
};

static struct sight look(struct churn_run *r, uint32_t k, uint32_t v)
{
    uint32_t first = k * r->span;
    int64_t now_us = hth_world_now_us(r->world);
    struct hood *hood = &r->hoods[k];
    struct sight sight = {0, 0, 0};
    for (uint32_t h = 0; h < hood_size(r, k); h++) {
        if (h == v)
            continue;
        bool up = is_up(r, first + h), sees = hth_echo_sees(r->peers, first + v, first + h);
        uint8_t *wait = &hood->wait[v][h];
        sight.living += up;
        sight.living_shown += up && sees;
        sight.dead_shown += !up && sees;
        if (*wait == (sees ? WAIT_SEEN : WAIT_GONE)) {
            keep(sees ? &r->discover : &r->forget, now_us - r->changed_us[first + h]);
            *wait = WAIT_NOTHING;
        }
    }
    return sight;
}

/* Update all waits. Returns whether all viewers show exactly the live nodes. */
static bool read_directories(struct churn_run *r)
{
    bool all_right = true;
    for (uint32_t k = 0; k < r->watched; k++)
        for (uint32_t v = 0; v < hood_size(r, k); v++) {
            uint32_t node = k * r->span + v;
            if (!is_up(r, node))
                continue;
            struct sight sight = look(r, k, v);
            r->shown += sight.living_shown + sight.dead_shown;
            r->shown_dead += sight.dead_shown;
            all_right &= sight.living_shown == sight.living && sight.dead_shown == 0;
            if (r->hoods[k].newcomer[v] && 10 * sight.living_shown >= 9 * sight.living) {
                keep(&r->newcomer, hth_world_now_us(r->world) - r->changed_us[node]);
                r->hoods[k].newcomer[v] = false;
            }
        }
    return all_right;
}

/* ---- the whole ----------------------------------------------------------------------------- */

static bool makes_sense(const struct hth_sim_churn_opts *o)
{
    return o->peers >= 2 && o->hood >= 2 && o->hood <= HTH_CHURN_HOOD_MAX && o->experts >= 1 &&
           o->replaced >= 0 && o->replaced <= 10 && o->silent >= 0 && o->silent <= 1 &&
           o->latency_ms > 0 && o->latency_ms <= 10000 && o->duration_us > 0;
}

/* Bring half of each neighbourhood up: the reserve is down from the beginning. */
static enum hth_err settle(struct churn_run *r)
{
    const struct hth_sim_churn_opts *o = r->opts;
    struct hth_echo_opts p = HTH_ECHO_OPTS_INIT;
    p.count = r->nodes;
    p.hood = r->span;
    p.experts = o->experts;
    p.payload_bytes = o->payload_bytes;
    p.call_every_us = o->call_every_us;
    p.record_life_us = o->record_life_us;
    p.dead_retry_us = 30 * HTH_US_PER_S;
    HTH_TRY(hth_echo_new(r->world, &p, &r->peers));
    for (uint32_t i = 0; i < r->nodes; i++)
        if (i % 2 == 1)
            hth_node_crash(hth_echo_node(r->peers, i), HTH_CRASH_RESET);
    hth_world_run_for(r->world, CALM_US);
    return HTH_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summary(struct times *t, double *mean, double *p95)
{
    double sum = 0;
    *mean = *p95 = NAN;
    if (t->count == 0)
        return;
    qsort(t->s, t->count, sizeof(double), by_value);
    for (size_t i = 0; i < t->count; i++)
        sum += t->s[i];
    *mean = sum / (double)t->count;
    *p95 = t->s[(95 * t->count + 99) / 100 - 1]; /* nearest rank */
}

static void live_through(struct churn_run *r, struct hth_sim_churn_row *row)
{
    const struct hth_sim_churn_opts *o = r->opts;
    struct hth_echo_stats before, after;
    double unused;
    hth_echo_stats(r->peers, &before);
    if (o->replaced > 0)
        hth_world_at(r->world, next_death_us(r), on_death, r);
    for (int64_t left_us = o->duration_us; left_us > 0; left_us -= STEP_US) {
        hth_world_run_for(r->world, HTH_MIN(left_us, STEP_US));
        (void)read_directories(r);
    }
    r->ended = true;
    hth_echo_stats(r->peers, &after);
    row->dead = r->shown > 0 ? (double)r->shown_dead / (double)r->shown : NAN;
    row->goodput = (double)(after.ok - before.ok) * (double)o->call_every_us /
                   ((double)o->peers * (double)o->duration_us);
    row->median_ms = after.latency_median_us / 1000;
    row->deaths = r->deaths;
    summary(&r->discover, &row->discover_s, &row->discover_p95_s);
    summary(&r->forget, &row->forget_s, &row->forget_p95_s);
    summary(&r->newcomer, &row->newcomer_s, &unused);
}

static double recover(struct churn_run *r)
{
    int64_t begun_us = hth_world_now_us(r->world);
    int64_t limit_us = begun_us + 2 * r->opts->record_life_us + 60 * HTH_US_PER_S;
    while (hth_world_now_us(r->world) < limit_us) {
        if (read_directories(r))
            return (double)(hth_world_now_us(r->world) - begun_us) / HTH_US_PER_S;
        hth_world_run_for(r->world, STEP_US);
    }
    return NAN;
}

static enum hth_err judge(struct churn_run *r, char *why)
{
    hth_echo_stop(r->peers);
    hth_echo_check_now(r->peers);
    hth_echo_check_end(r->peers);
    if (why != NULL)
        snprintf(why, HTH_ECHO_WHY_MAX, "%s", hth_echo_why(r->peers));
    return hth_echo_why(r->peers)[0] == '\0' ? HTH_OK : HTH_E_BUG;
}

enum hth_err hth_sim_churn(const struct hth_sim_churn_opts *o, struct hth_sim_churn_row *row,
                           char *why)
{
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct churn_run r = {.opts = o};
    memset(row, 0, sizeof(*row));
    if (!makes_sense(o))
        return HTH_E_CONFIG;
    w.ghost = true;
    w.chaos = (struct hth_chaos)HTH_CHAOS_NONE;
    w.link.latency_us = (int64_t)(o->latency_ms * 1000);
    w.link.jitter_us = w.link.latency_us / 10;
    w.link.jitter = HTH_JITTER_EXPONENTIAL;
    r.nodes = 2 * o->peers;
    r.span = 2 * o->hood;
    r.watched =
        HTH_MIN(HTH_MAX(HTH_CHURN_VIEWERS_MAX / o->hood, 1u), (o->peers + o->hood - 1) / o->hood);
    r.changed_us = hth_new_array(int64_t, r.nodes);
    r.hoods = hth_new_array(struct hood, r.watched);
    w.trace = o->on_event;
    w.trace_arg = o->arg;
    r.world = hth_world_new(o->seed, &w);
    hth_rng_init(&r.rng, hth_mix64(o->seed) ^ UINT64_C(0x434855524e));
    enum hth_err err = settle(&r);
    if (err == HTH_OK) {
        live_through(&r, row);
        row->recovery_s = recover(&r);
        row->trace = hth_world_trace_hash(r.world);
        err = judge(&r, why);
    }
    hth_world_free(r.world);
    hth_echo_free(r.peers);
    hth_free(r.changed_us);
    hth_free(r.hoods);
    hth_free(r.discover.s);
    hth_free(r.forget.s);
    hth_free(r.newcomer.s);
    return err;
}
