/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hostile.c: hearth sim hostile: what one person's keys do to a run, each attack beside the same
 * run without it. rows.h says what --json adds to the columns below:
 *   {"attack", "peers", "measure", "calm", "now", "bound", "holds"}
 * "calm" is without the attack, "now" with it, "bound" the most that "now" may be. A row "free" has
 * no bounds on senders and shows the damage: it holds if there is some.
 */
#include "scenarios/fleet.h"
#include "scenarios/fleet_int.h"
#include "scenarios/spoil.h"
#include "studies/questions.h"
#include "studies/rows.h"

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
    {"largest", "expert's loss", 1, HTH_SPOIL_SHOVE, .factor = FACTOR_MAX},
    {"largest", "expert's loss", 64, HTH_SPOIL_SHOVE, .factor = FACTOR_MAX},
    {"largest, free", "expert's loss", 64, HTH_SPOIL_SHOVE, .unbounded = true, .factor = 10},
    {"turned", "expert's loss", 64, HTH_SPOIL_TURN, .factor = FACTOR_MAX},
    {"usual size", "expert's loss", 64, HTH_SPOIL_CREEP, .factor = 1.25},
    {"free, undone", "expert's loss", 64, HTH_SPOIL_SHOVE, .unbounded = true, .back = true,
     .factor = FACTOR_MAX},
    {"claims", "failed requests", CLAIMERS, .malice = &hth_malice_claimer, .factor = 1,
     .beside = 0.01},
    {"lying host", "rows left alone", 1, .malice = &hth_malice_liar, .factor = 1, .beside = 0.01},
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

static enum hth_err run(uint32_t i, uint64_t seed, void *report, uint64_t *hash)
{
    const struct hostile_row *row = &table[i];
    struct hostile_report *out = report;

    *hash = 0;
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

static const struct hth_column columns[] = {
    {"attack", "attack", 15, HTH_ROWS_TEXT, HTH_SAME},
    {"peers", "peers", 5, 0, HTH_SAME},
    {"measure", "measure", 15, HTH_ROWS_TEXT, HTH_SAME},
    {"calm", "calm", 8, 4, HTH_MAX_OF},
    {"now", "now", 8, 4, HTH_MAX_OF},
    {"bound", "bound", 8, 4, HTH_MAX_OF},
    {"holds", "holds", 5, 0, HTH_MIN_OF},
};

static void fill(uint32_t i, const void *report, struct hth_cell *cell)
{
    const struct hostile_row *row = &table[i];
    const struct hostile_report *r = report;
    snprintf(cell[0].text, sizeof(cell[0].text), "%s", row->attack);
    cell[1].number = row->peers;
    snprintf(cell[2].text, sizeof(cell[2].text), "%s", row->measure);
    cell[3].number = r->calm;
    cell[4].number = r->now;
    cell[5].number = bound(row, r->calm);
    cell[6].number = broken(i, report) == NULL;
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
                            .columns = columns,
                            .column_count = HTH_ARRAY_LEN(columns),
                            .fill = fill};
    return hth_rows_verb(&rows, &argp, argc, argv);
}
