/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuts.c: hearth sim cuts: a run whose network is cut in two (scenarios/cuts.h), for all splits of
 * some trainers, lengths, machines and modes.
 *
 * In JSON "healed_s_max" is null where a run did not heal.
 */
#include "scenarios/cuts.h"

#include "studies/questions.h"
#include "studies/rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEY_MODE = 0x5100 };

static const struct argp_option options[] = {
    {"mode", KEY_MODE, "MODE", 0, "Only strict or eventual", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_rows *rows = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = rows;
        break;
    case KEY_MODE:
        if (strcmp(arg, "strict") != 0 && strcmp(arg, "eventual") != 0)
            argp_error(state, "--mode '%s': expected strict or eventual", arg);
        rows->arg = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const char *mode_of(const struct hth_cut_opts *o)
{
    return o->strict ? "strict" : "eventual";
}

static bool is_asked(const void *mode, uint32_t row)
{
    const struct hth_cut_opts o = hth_cuts_row(row);
    return mode == NULL || strcmp(mode, mode_of(&o)) == 0;
}

static enum hth_err run(uint32_t row, uint64_t seed, void *report, uint64_t *hash)
{
    struct hth_cut_opts o = hth_cuts_row(row);
    o.seed = seed;
    HTH_TRY(hth_sim_cut(&o, report));
    *hash = ((struct hth_cut_report *)report)->hash;
    return HTH_OK;
}

static const char *broken(uint32_t row, const void *report)
{
    const struct hth_cut_opts o = hth_cuts_row(row);
    return hth_cut_broken(&o, report);
}

static const struct hth_column columns[] = {
    {"split", "split", 8, HTH_ROWS_TEXT, HTH_SAME},
    {"cut_s", "cut s", 5, 0, HTH_SAME},
    {"mode", "mode", 9, HTH_ROWS_TEXT, HTH_SAME},
    {"machines", "machines", 8, HTH_ROWS_TEXT, HTH_SAME},
    {"shape", "shape", 5, HTH_ROWS_TEXT, HTH_SAME},
    {"both_stepped", "both", 6, 0, HTH_SUM},
    {"dropped_max", "dropped", 7, 0, HTH_MAX_OF},
    {"lost_samples", "lost", 8, 0, HTH_SUM},
    {"healed_s_max", "healed s", 8, 1, HTH_MAX_OF},
    {"still_s_max", "still s", 8, 1, HTH_MAX_OF},
};

static void fill(uint32_t row, const void *report, struct hth_cell *cell)
{
    const struct hth_cut_opts o = hth_cuts_row(row);
    const struct hth_cut_report *r = report;
    snprintf(cell[0].text, sizeof(cell[0].text), "%u + %u", o.away, o.members - o.away);
    cell[1].number = (double)(o.cut_us / HTH_US_PER_S);
    snprintf(cell[2].text, sizeof(cell[2].text), "%s", mode_of(&o));
    snprintf(cell[3].text, sizeof(cell[3].text), "%s", o.unlike ? "unlike" : "alike");
    snprintf(cell[4].text, sizeof(cell[4].text), "%s", o.grid ? "grid" : "line");
    cell[5].number = r->both_stepped;
    cell[6].number = r->dropped;
    cell[7].number = (double)r->lost_samples;
    cell[8].number = r->healed_s < 0 ? INFINITY : r->healed_s;
    cell[9].number = fmax(r->still_s[0], r->still_s[1]);
}

int hth_sim_cuts_verb(int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_rows_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = children,
        .doc = "Does a run survive a network that is cut in two? Trainers that share batches are "
               "cut into parts of all sizes, for 1 to 300 s, with like and unlike machines, in "
               "both modes of averaging.majority, in a line and on a grid; then the network is "
               "whole again.",
    };
    struct hth_rows rows = {.count = hth_cuts_rows(),
                            .report_bytes = sizeof(struct hth_cut_report),
                            .run = run,
                            .broken = broken,
                            .columns = columns,
                            .column_count = HTH_ARRAY_LEN(columns),
                            .fill = fill,
                            .is_asked = is_asked};
    return hth_rows_verb(&rows, &argp, argc, argv);
}
