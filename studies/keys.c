/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.c: hearth sim keys: a run by roll call beside keys that speak and bring nothing, or not for
 * long (scenarios/keys.h).
 *
 * In JSON "steps_ratio" is the least of all minutes and seeds, "alone" the steps without keys, and
 * "asked" how often a key that brings nothing was to reduce.
 */
#include "scenarios/keys.h"

#include "studies/questions.h"
#include "studies/rows.h"

#include <stdio.h>
#include <string.h>

enum { KEY_KIND = 0x5100 };

static const struct argp_option options[] = {
    {"kind", KEY_KIND, "KIND", 0, "Only declare, ready, silent or brings", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct hth_rows *rows = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = rows;
        break;
    case KEY_KIND:
        rows->arg = NULL;
        for (int i = 0; i < HTH_KEYS_KINDS; i++)
            if (strcmp(arg, hth_keys_kind_name((enum hth_keys_kind)i)) == 0)
                rows->arg = arg;
        if (rows->arg == NULL)
            argp_error(state, "--kind '%s': expected declare, ready, silent or brings", arg);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static bool is_asked(const void *kind, uint32_t row)
{
    const struct hth_keys_opts o = hth_keys_row(row);
    return kind == NULL || strcmp(kind, hth_keys_kind_name(o.kind)) == 0;
}

static enum hth_err run(uint32_t row, uint64_t seed, void *report, uint64_t *hash)
{
    struct hth_keys_opts o = hth_keys_row(row);
    o.seed = seed;
    HTH_TRY(hth_sim_keys(&o, report));
    *hash = ((struct hth_keys_report *)report)->hash;
    return HTH_OK;
}

static const char *broken(uint32_t row, const void *report)
{
    (void)row;
    return hth_keys_broken(report);
}

static const struct hth_column columns[] = {
    {"keys", "keys", 5, 0, HTH_SAME},
    {"trainers", "trainers", 8, 0, HTH_SAME},
    {"kind", "kind", 8, HTH_ROWS_TEXT, HTH_SAME},
    {"steps_ratio", "ratio", 6, 3, HTH_MIN_OF},
    {"steps", "steps", 7, 0, HTH_SUM},
    {"alone", "alone", 7, 0, HTH_SUM},
    {"asked", "asked", 7, 0, HTH_SUM},
};

static void fill(uint32_t row, const void *report, struct hth_cell *cell)
{
    const struct hth_keys_opts o = hth_keys_row(row);
    const struct hth_keys_report *r = report;
    cell[0].number = o.keys;
    cell[1].number = o.trainers;
    snprintf(cell[2].text, sizeof(cell[2].text), "%s", hth_keys_kind_name(o.kind));
    cell[3].number = r->steps_ratio;
    cell[4].number = (double)r->steps;
    cell[5].number = (double)r->alone;
    cell[6].number = (double)r->asked;
}

int hth_sim_keys_verb(int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_rows_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = children,
        .doc =
            "What do keys cost a run that bring nothing? 1, 64 and 4,096 of them declare "
            "themselves, are READY without end, fall silent at any message, or bring values for "
            "1 to 7 steps and then fall silent, beside 1 to 9 trainers. Promised: from the first "
            "minute on at least 0.92 of the steps without them, and they reduce nothing.",
    };
    struct hth_rows rows = {.count = hth_keys_rows(),
                            .report_bytes = sizeof(struct hth_keys_report),
                            .run = run,
                            .broken = broken,
                            .columns = columns,
                            .column_count = HTH_ARRAY_LEN(columns),
                            .fill = fill,
                            .is_asked = is_asked};
    return hth_rows_verb(&rows, &argp, argc, argv);
}
