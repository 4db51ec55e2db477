/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostile.c: hearth sim hostile: what one person's keys do to a run, each attack with the bounds
 * that a run has and, where they can be switched off, without.
 *
 * With --json one object per row, the worst of its seeds:
 *   {"attack", "peers", "measure", "calm", "now", "bound", "holds", "seeds"}
 * "calm" is without the attack, "now" with it, "bound" the most that "now" may be. Rows "...
 * without bounds" show the damage: they hold if it is there.
 */
#include "cli/json.h"
#include "scenarios/fleet.h"
#include "scenarios/fleet_int.h"
#include "scenarios/spoil.h"
#include "studies/questions.h"
#include "studies/rows.h"

#include <math.h>
#include <stdio.h>

#define CLAIMERS   80
#define FLEET_US   (20 * HTH_US_PER_S)
#define FACTOR_MAX 1.05 /* of the loss of a calm run */

struct hostile_row {
    const char *attack, *measure;
    uint32_t peers;
    enum hth_spoil_kind kind;
    bool unbounded, back;
    const struct hth_malice *malice; /* NULL: a row of spoil.h */
    double factor;                   /* "now" is at most this times "calm" ... */
    double beside;                   /* ... and this more */
};

static const struct hostile_row table[] = {
    {"largest gradients", "loss of the expert", 1, HTH_SPOIL_SHOVE, .factor = FACTOR_MAX},
    {"largest gradients", "loss of the expert", 64, HTH_SPOIL_SHOVE, .factor = FACTOR_MAX},
    {"largest gradients without bounds", "loss of the expert", 64, HTH_SPOIL_SHOVE,
     .unbounded = true, .factor = 10},
    {"turned gradients", "loss of the expert", 64, HTH_SPOIL_TURN, .factor = FACTOR_MAX},
    {"turned gradients of the usual size", "loss of the expert", 64, HTH_SPOIL_CREEP,
     .factor = 1.25},
    {"largest gradients without bounds, then a roll-back", "loss of the expert after 200 updates",
     64, HTH_SPOIL_SHOVE, .unbounded = true, .back = true, .factor = FACTOR_MAX},
    {"false claims of all experts", "share of requests that failed", CLAIMERS,
     .malice = &hth_malice_claimer, .factor = 1, .beside = 0.01},
    {"a host that answers NaN, wrong shapes and 1e30", "share of rows without an expert", 1,
     .malice = &hth_malice_liar, .factor = 1, .beside = 0.01},
};

struct hostile_report {
    double calm, now;
};

static enum hth_err spoil(const struct hostile_row *row, uint64_t seed, struct hostile_report *out)
{
    struct hth_spoil_opts o = HTH_SPOIL_OPTS_INIT;
    struct hth_spoil_report r;

    o.seed = seed;
    o.attackers = 0;
    HTH_TRY(hth_sim_spoil(&o, &r));
    out->calm = r.end;
    o.kind = row->kind;
    o.attackers = row->peers;
    o.unbounded = row->unbounded;
    o.back_updates = row->back ? 200 : 0;
    HTH_TRY(hth_sim_spoil(&o, &r));
    out->now = row->back ? r.back : r.end;
    return HTH_OK;
}

/* A fleet of seven hosts and two trainers, each with a trunk of its own. */
static enum hth_err fleet(const struct hostile_row *row, uint64_t seed, bool attacked, double *out)
{
    const struct hth_fleet_malice malice = {row->malice, row->peers};
    struct hth_fleet_opts o = HTH_FLEET_OPTS_INIT;
    struct hth_world_opts w = HTH_WORLD_OPTS_INIT;
    struct hth_world *world = hth_world_new(seed, &w);
    struct hth_fleet *f;
    double bad = 0, all = 0;
    enum hth_err err;

    o.hosts = 7;
    o.trainers = 2;
    o.average = false;
    o.checkpoint_us = 0;
    o.malice = &malice;
    o.malice_count = attacked;
    err = hth_fleet_new(world, &o, &f);
    if (err == HTH_OK) {
        hth_fleet_end_faults(f);
        hth_world_run_for(world, FLEET_US);
    }
    for (uint32_t i = 0; err == HTH_OK && i < o.trainers; i++) {
        bool claims = row->malice == &hth_malice_claimer;
        struct hth_train_stats s;
        hth_trainer_stats(hth_swarm_trainer_at(f->swarm, i), &s);
        bad += (double)(claims ? s.requests_failed : s.rows_without_expert);
        all += (double)(claims ? s.requests : s.rows_mixed);
    }
    *out = all > 0 ? bad / all : 1;
    hth_world_free(world);
    hth_fleet_free(err == HTH_OK ? f : NULL);
    return err;
}

static enum hth_err run(uint32_t i, uint64_t seed, void *report)
{
    const struct hostile_row *row = &table[i];
    struct hostile_report *out = report;

    if (row->malice == NULL)
        return spoil(row, seed, out);
    HTH_TRY(fleet(row, seed, false, &out->calm));
    return fleet(row, seed, true, &out->now);
}

static double bound(const struct hostile_row *row, double calm)
{
    return row->factor * calm + row->beside;
}

static const char *broken(uint32_t i, const void *report)
{
    const struct hostile_report *r = report;
    const struct hostile_row *row = &table[i];
    bool within = r->now <= bound(row, r->calm);

    if (row->unbounded && !row->back)
        return within ? "no damage without bounds: this attack proves nothing" : NULL;
    return within ? NULL : "beyond the bound";
}

static void print_json(const struct hostile_row *row, const struct hostile_report *worst,
                       const struct hth_rows_sum *judged)
{
    json_t *out = json_object();
    hth_json_text(out, "attack", row->attack);
    hth_json_count(out, "peers", row->peers);
    hth_json_text(out, "measure", row->measure);
    hth_json_real(out, "calm", worst->calm);
    hth_json_real(out, "now", worst->now);
    hth_json_real(out, "bound", bound(row, worst->calm));
    json_object_set_new(out, "holds", json_boolean(judged->broken == NULL));
    hth_json_count(out, "seeds", judged->seeds);
    hth_json_print_take(stdout, out);
    putchar('\n');
}

static void print(const struct hth_rows *rows, uint32_t i, const struct hth_rows_sum *judged)
{
    struct hostile_report worst = {0, -INFINITY};
    if (i == UINT32_MAX) {
        printf("%3s %-50s %5s %9s %9s %9s  %s\n", "row", "attack", "peers", "calm", "now", "bound",
               "measure");
        return;
    }
    const struct hostile_row *row = &table[i];
    for (uint32_t k = 0; k < rows->seeds; k++) {
        const struct hostile_report *r = hth_rows_report(rows, i, k);
        if (r != NULL && r->now - bound(row, r->calm) > worst.now - bound(row, worst.calm))
            worst = *r;
    }
    if (rows->json) {
        print_json(row, &worst, judged);
        return;
    }
    printf("%3u %-50s %5u %9.4g %9.4g %9.4g  %s%s%s\n", i, row->attack, row->peers, worst.calm,
           worst.now, bound(row, worst.calm), row->measure, judged->broken != NULL ? ": " : "",
           judged->broken != NULL ? judged->broken : "");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = state->input;
    return 0;
}

int hth_sim_hostile_verb(int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_rows_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .parser = parse,
        .children = children,
        .doc = "What can one hostile person do to a run? Keys of one invite send the worst "
               "gradients for ten minutes, turn them round, or creep; keys claim all experts; a "
               "host lies. Each row compares with the same run without the attack.",
    };
    struct hth_rows rows = {.count = HTH_ARRAY_LEN(table),
                            .report_bytes = sizeof(struct hostile_report),
                            .run = run,
                            .broken = broken,
                            .print = print};
    return hth_rows_verb(&rows, &argp, argc, argv);
}
