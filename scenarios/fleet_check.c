/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_check.c: the conditions of a fleet: at all times, after the faults, and at the end. */
#include "scenarios/fleet_int.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "collab/collab.h"
#include "core/rng.h"
#include "experts/safetensors.h"
#include "kernels/params.h"
#include "scenarios/leftovers.h"
#include "scenarios/trunk.h"

/* Bound for trunks that average every few updates; those without averaging are a third apart. */
#define SPREAD_MAX 0.1
/* Bound on missing answers of calm requests: those of stragglers that the grace timer abandons. */
#define MISSING_MAX 0.25
#define UPDATES_MIN 3
/* Bound on rows without an expert's answer: faults may cause some, but not most of the time. */
#define ALONE_MAX 0.25

/* ---- always ---------------------------------------------------------------------------------- */

/* Check and add up counters of objects that the next crash may destroy. */
static void read_counters(struct hth_fleet *f)
{
    for (uint32_t i = 0; i < f->opts.hosts; i++)
        if (hth_swarm_server(f->swarm, i) != NULL)
            hth_server_stats(hth_swarm_server(f->swarm, i), &f->members[i].host);
    for (uint32_t i = 0; i < f->opts.trainers; i++)
        if (fleet_trainer(f, i) != NULL)
            hth_trainer_stats(fleet_trainer(f, i), &f->members[f->opts.hosts + i].now);
}

/* The head whose state the trainer holds. False while it has none, or the state changes. */
static bool holds(const struct hth_trainer *t, struct hth_hash *head)
{
    const struct hth_collab *collab = t != NULL ? hth_trainer_collab(t) : NULL;
    struct hth_collab_stats stats;

    if (collab == NULL)
        return false;
    hth_collab_stats(collab, &stats);
    *head = stats.head;
    return stats.phase == HTH_COLLAB_GATHERS || stats.phase == HTH_COLLAB_AVERAGES;
}

static uint64_t bits_of(struct hth_trainer *t)
{
    struct hth_params *p = hth_model_params(hth_trainer_model(t));

    return hth_hash64(hth_params_flat(p, HTH_PART_VALUE), hth_params_flat_len(p) * sizeof(float),
                      0);
}

/* One head means one state, bit for bit, whoever else is in the averages. */
static void check_heads(struct hth_fleet *f)
{
    struct hth_hash head[HTH_FLEET_TRAINERS_MAX];
    uint64_t bits[HTH_FLEET_TRAINERS_MAX];
    uint32_t at[HTH_FLEET_TRAINERS_MAX], count = 0;

    for (uint32_t i = 0; i < f->opts.trainers; i++) {
        struct hth_trainer *t = fleet_trainer(f, i);
        if (!holds(t, &head[count]))
            continue;
        bits[count] = bits_of(t);
        at[count++] = i;
        for (uint32_t k = 0; k + 1 < count; k++)
            if (memcmp(&head[k], &head[count - 1], sizeof(head[k])) == 0 &&
                bits[k] != bits[count - 1])
                hth_fleet_broken(
                    f, "trainers %" PRIu32 " and %" PRIu32 " hold one head and other parameters",
                    at[k], i);
    }
}

void hth_fleet_check_now(struct hth_fleet *f)
{
    char why[HTH_LEFTOVERS_TEXT_MAX];

    read_counters(f);
    check_heads(f);
    if (!hth_world_is_tidy(f->world, why))
        hth_fleet_broken(f, "%s", why);
    for (uint32_t i = 0; i < f->honest; i++) {
        struct fleet_node *m = &f->members[i];
        int64_t held = hth_budget_used(&m->budget);
        if (held < 0 || held > m->budget.limit_bytes)
            hth_fleet_broken(f, "%s holds %" PRId64 " bytes for others",
                             hth_node_name(fleet_node_of(m)), held);
        if (m->host.bytes_held < 0)
            hth_fleet_broken(f, "%s counts %" PRId64 " bytes held", hth_node_name(fleet_node_of(m)),
                             m->host.bytes_held);
    }
}

/* ---- after the faults ------------------------------------------------------------------------ */

void hth_fleet_expect_recovery(struct hth_fleet *f)
{
    read_counters(f);
    for (uint32_t i = 0; i < f->honest; i++)
        f->members[i].baseline = f->members[i].now;
}

static bool is_finite(struct hth_params *p)
{
    const float *x = hth_params_flat(p, HTH_PART_VALUE);

    for (size_t i = 0; i < hth_params_flat_len(p); i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static void check_trainer(struct hth_fleet *f, struct fleet_node *m, struct hth_trainer *t)
{
    const char *name = hth_node_name(fleet_node_of(m));
    struct hth_train_stats s;
    uint32_t experts = f->opts.layers * f->opts.grid * f->opts.grid;

    if (t == NULL) {
        hth_fleet_broken(f, "%s is down after the faults", name);
        return;
    }
    hth_trainer_stats(t, &s);
    uint64_t asked =
        s.answers + s.answers_missing - m->baseline.answers - m->baseline.answers_missing;
    uint64_t missing = s.answers_missing - m->baseline.answers_missing;
    if (s.live_experts != experts)
        hth_fleet_broken(f, "%s sees %" PRIu32 " experts of %" PRIu32 " after the faults", name,
                         s.live_experts, experts);
    if (s.flights_landed < m->baseline.flights_landed + UPDATES_MIN)
        hth_fleet_broken(f, "%s makes no progress after the faults: %" PRIu64 " flights landed",
                         name, s.flights_landed - m->baseline.flights_landed);
    if (hth_trainer_collab(t) != NULL && s.updates <= m->baseline.updates)
        hth_fleet_broken(f, "%s takes no step after the faults", name);
    if (s.flights_failed != m->baseline.flights_failed ||
        s.flights_not_finite != m->baseline.flights_not_finite)
        hth_fleet_broken(f, "%s dropped flights after the faults", name);
    if (!is_finite(hth_model_params(hth_trainer_model(t))))
        hth_fleet_broken(f, "%s has a trunk that is not finite", name);
    if (f->bad_count == 0 && (double)missing > MISSING_MAX * (double)asked)
        hth_fleet_broken(f, "%s misses %" PRIu64 " answers of %" PRIu64 " after the faults", name,
                         missing, asked);
}

static void check_hosts(struct hth_fleet *f)
{
    struct hth_server_expert e;

    for (uint32_t i = 0; i < f->opts.hosts; i++) {
        struct hth_server *s = hth_swarm_server(f->swarm, i);
        if (s == NULL) {
            hth_fleet_broken(f, "host%" PRIu32 " is down after the faults", i);
            continue;
        }
        for (uint32_t j = 0; hth_server_expert_at(s, j, &e); j++)
            if (!e.ready)
                hth_fleet_broken(f, "host%" PRIu32 " does not host %s after the faults", i,
                                 hth_expert_uid_text(e.expert));
    }
}

static uint64_t step_of(const struct hth_collab *c)
{
    return hth_chain_at(hth_collab_choice(c)->chain, hth_collab_choice(c)->tip)->step;
}

/* Whether the last final step of the one that is behind is in the other's chain. The tip itself is
 * not final: another one may be chosen. */
static bool are_one_chain(const struct hth_collab *a, const struct hth_collab *b)
{
    const struct hth_collab *behind = step_of(a) <= step_of(b) ? a : b;
    const struct hth_collab *ahead = behind == a ? b : a;
    const struct hth_chain *from = hth_collab_choice(behind)->chain,
                           *to = hth_collab_choice(ahead)->chain;
    uint32_t base = hth_chain_base(from, hth_collab_choice(behind)->tip);
    uint32_t wanted = hth_chain_find(to, hth_chain_head(from, base));
    uint32_t at = hth_collab_choice(ahead)->tip;

    while (at != HTH_LINK_NONE && at != wanted)
        at = hth_chain_at(to, at)->prev;
    return at != HTH_LINK_NONE;
}

static void check_chains(struct hth_fleet *f)
{
    const struct hth_collab *first = hth_trainer_collab(fleet_trainer(f, 0));

    for (uint32_t i = 0; first != NULL && i < f->opts.trainers; i++) {
        const struct hth_collab *c = hth_trainer_collab(fleet_trainer(f, i));
        if (hth_collab_choice(c)->tip == HTH_LINK_NONE)
            hth_fleet_broken(f, "trainer %" PRIu32 " holds no head after the faults", i);
        else if (hth_collab_choice(first)->tip != HTH_LINK_NONE && !are_one_chain(first, c))
            hth_fleet_broken(f, "trainers 0 and %" PRIu32 " take steps of two chains", i);
    }
}

static void check_averaging(struct hth_fleet *f)
{
    struct hth_fleet_stats now;

    for (uint32_t i = 1; i < f->opts.trainers; i++) {
        struct hth_trainer *a = fleet_trainer(f, 0), *b = fleet_trainer(f, i);
        if (a == NULL || b == NULL)
            return;
        f->spread =
            hth_worse(f->spread, hth_params_distance(hth_model_params(hth_trainer_model(a)),
                                                     hth_model_params(hth_trainer_model(b))));
    }
    if (!f->opts.average || f->opts.trainers < 2)
        return;
    check_chains(f);
    hth_fleet_stats(f, &now);
    if (now.rounds == f->rounds_then)
        hth_fleet_broken(f, "no trainer averaged after the faults");
    if (!f->split && !(f->spread <= SPREAD_MAX))
        hth_fleet_broken(f, "trunks are %.3f apart after the faults", f->spread);
}

void hth_fleet_check_recovery(struct hth_fleet *f)
{
    read_counters(f);
    for (uint32_t i = 0; i < f->opts.trainers; i++)
        check_trainer(f, &f->members[f->opts.hosts + i], fleet_trainer(f, i));
    check_hosts(f);
    check_averaging(f);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void on_drained(void *arg)
{
    struct fleet_node *m = arg;

    m->stopped = true;
    m->fleet->to_stop--;
}

static void drain_hosts(struct hth_fleet *f)
{
    for (uint32_t i = 0; i < f->opts.hosts; i++) {
        struct hth_server *s = hth_swarm_server(f->swarm, i);
        if (s == NULL)
            continue;
        f->to_stop++;
        hth_server_drain(s, on_drained, &f->members[i]);
    }
}

static void on_landed(void *arg)
{
    struct fleet_node *m = arg;
    struct hth_fleet *f = m->fleet;

    if (m->stopped)
        hth_fleet_broken(f, "%s ended twice", hth_node_name(fleet_node_of(m)));
    m->stopped = true;
    if (--f->to_stop == 0)
        drain_hosts(f);
}

void hth_fleet_stop(struct hth_fleet *f)
{
    f->stopping = true;
    for (uint32_t i = 0; i < f->opts.trainers; i++) {
        struct hth_trainer *t = fleet_trainer(f, i);
        if (t == NULL)
            continue;
        f->to_stop++;
        hth_trainer_stop(t, on_landed, &f->members[f->opts.hosts + i]);
    }
    if (f->to_stop == 0)
        drain_hosts(f);
}

bool hth_fleet_all_stopped(void *fleet)
{
    const struct hth_fleet *f = fleet;

    return f->stopping && f->to_stop == 0;
}

/* Check that the last files of hosts can be read. */
static void check_files(struct hth_fleet *f)
{
    struct hth_server_expert e;

    for (uint32_t i = 0; i < f->opts.hosts; i++) {
        struct hth_server *s = hth_swarm_server(f->swarm, i);
        for (uint32_t j = 0; s != NULL && hth_server_expert_at(s, j, &e); j++) {
            char *path = hth_expert_path(FLEET_FOLDER, e.expert);
            struct hth_st_reader *reader = NULL;
            size_t len;
            const uint8_t *data = hth_node_disk_get(hth_fleet_node(f, i), path, &len);
            enum hth_err err = data != NULL ? hth_st_open(data, len, &reader) : HTH_OK;
            if (err != HTH_OK)
                hth_fleet_broken(f, "host%" PRIu32 ": %s: %s", i, path, hth_err_name(err));
            hth_st_close(reader);
            hth_free(path);
        }
    }
}

static void check_stopped(struct hth_fleet *f)
{
    for (uint32_t i = 0; i < f->honest; i++) {
        struct fleet_node *m = &f->members[i];
        if (!m->stopped)
            hth_fleet_broken(f, "%s did not end", hth_node_name(fleet_node_of(m)));
        if (fleet_is_host(m) && (m->host.bytes_held != 0 || m->host.parts_waiting != 0))
            hth_fleet_broken(f, "%s ended with %" PRId64 " bytes and %" PRIu32 " parts of requests",
                             hth_node_name(fleet_node_of(m)), m->host.bytes_held,
                             m->host.parts_waiting);
        if (!fleet_is_host(m) && m->now.flights != 0)
            hth_fleet_broken(f, "%s ended with %" PRIu32 " flights in the air",
                             hth_node_name(fleet_node_of(m)), m->now.flights);
    }
}

void hth_fleet_check_end(struct hth_fleet *f)
{
    struct hth_fleet_stats now;

    hth_fleet_stats(f, &now);
    uint64_t rows = now.updates * f->opts.rows * f->opts.layers;
    check_stopped(f);
    check_files(f);
    for (uint32_t i = 0; i < hth_fleet_count(f); i++)
        hth_node_crash(hth_fleet_node(f, i), HTH_CRASH_RESET);
    hth_hull_free(f->hull); /* the hull holds references to offered values */
    f->hull = NULL;
    hth_fleet_check_now(f);
    for (uint32_t i = 0; i < f->honest; i++)
        if (hth_budget_used(&f->members[i].budget) != 0)
            hth_fleet_broken(f, "%s: %" PRId64 " bytes are held at the end",
                             hth_node_name(fleet_node_of(&f->members[i])),
                             hth_budget_used(&f->members[i].budget));
    if ((double)now.rows_alone > ALONE_MAX * (double)rows)
        hth_fleet_broken(f, "%" PRIu64 " of %" PRIu64 " rows had no answer of an expert",
                         now.rows_alone, rows);
    if (now.updates == 0)
        hth_fleet_broken(f, "no trainer made an update");
}

void hth_fleet_stats(struct hth_fleet *f, struct hth_fleet_stats *out)
{
    read_counters(f);
    *out = f->sums;
    for (uint32_t i = 0; i < f->opts.hosts; i++)
        hth_fleet_add_host(out, &f->members[i].host);
    for (uint32_t i = 0; i < f->opts.trainers; i++)
        hth_fleet_add_trainer(out, &f->members[f->opts.hosts + i].now);
    out->spread = f->spread;
}
