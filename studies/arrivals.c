/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arrivals.c: hearth sim arrivals: newcomers come to a run by roll call (scenarios/arrivals.h), for
 * steps, states and numbers of newcomers of all sizes.
 *
 * In JSON "in_s_max" is null where a newcomer was never in; "calm_s" is a step before they came,
 * "over" the time until a newcomer was in by what is promised, "lacked" the means that one lacked
 * when it held the state.
 */
#include "scenarios/arrivals.h"

#include "studies/questions.h"
#include "studies/rows.h"

#include <math.h>

static error_t parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = state->input;
    return 0;
}

static enum hth_err run(uint32_t row, uint64_t seed, void *report, uint64_t *hash)
{
    struct hth_arrival_opts o = hth_arrivals_row(row);
    o.seed = seed;
    HTH_TRY(hth_sim_arrival(&o, report));
    *hash = ((struct hth_arrival_report *)report)->hash;
    return HTH_OK;
}

static const char *broken(uint32_t row, const void *report)
{
    (void)row;
    return hth_arrival_broken(report);
}

static const struct hth_column columns[] = {
    {"step_s", "step s", 7, 2, HTH_SAME},       {"state_steps", "state steps", 11, 1, HTH_SAME},
    {"newcomers", "newcomers", 9, 0, HTH_SAME}, {"in_s_max", "in s", 8, 2, HTH_MAX_OF},
    {"over", "over", 6, 2, HTH_MAX_OF},         {"others_slowed", "slowed", 6, 2, HTH_MAX_OF},
    {"calm_s", "calm s", 7, 2, HTH_MAX_OF},     {"lacked", NULL, 0, 0, HTH_MAX_OF},
};

static void fill(uint32_t row, const void *report, struct hth_cell *cell)
{
    const struct hth_arrival_opts o = hth_arrivals_row(row);
    const struct hth_arrival_report *r = report;
    const double is[] = {
        o.step_s, o.state_steps, o.newcomers, r->in_s_max < 0 ? INFINITY : r->in_s_max,
        r->over,  r->slowed,     r->calm_s,   r->lacked};
    for (size_t i = 0; i < HTH_ARRAY_LEN(is); i++)
        cell[i].number = is[i];
}

int hth_sim_arrivals_verb(int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_rows_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .parser = parse,
        .children = children,
        .doc = "How soon do newcomers take part in a run? 1 to 6 of them come at once to trainers "
               "that share batches, for steps of 10 ms to 30 s and states that a newcomer's line "
               "carries in 0.1 to 10 steps. Promised: in a roll within 3 steps or 1 s, and the "
               "transfer, of holding a head; the others' steps at most 1.3 times as long.",
    };
    struct hth_rows rows = {.count = hth_arrivals_rows(),
                            .report_bytes = sizeof(struct hth_arrival_report),
                            .run = run,
                            .broken = broken,
                            .columns = columns,
                            .column_count = HTH_ARRAY_LEN(columns),
                            .fill = fill};
    return hth_rows_verb(&rows, &argp, argc, argv);
}
