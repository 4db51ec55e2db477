/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuts.c: hearth sim cuts: a run whose network is cut in two (scenarios/cuts.h), for all splits of
 * some trainers, lengths, machines and modes.
 *
 * With --json one object per row, over all seeds:
 *   {"split": [1, 4], "cut_s", "mode": "strict" | "eventual", "unlike", "grid", "seeds",
 *    "both_stepped", "dropped_max", "lost_samples", "healed_s_max", "still_s_max", "broken",
 *    "seed", "hash"}
 * healed_s_max is null where a run did not heal; "broken" says the first promise that was not kept,
 * with the seed that shows it, and is null where all were. "hash" covers the events of all seeds.
 */
#include "scenarios/cuts.h"

#include "cli/json.h"
#include "core/rng.h"
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

static enum hth_err run(uint32_t row, uint64_t seed, void *report)
{
    struct hth_cut_opts o = hth_cuts_row(row);
    o.seed = seed;
    return hth_sim_cut(&o, report);
}

static const char *broken(uint32_t row, const void *report)
{
    const struct hth_cut_opts o = hth_cuts_row(row);
    return hth_cut_broken(&o, report);
}

/* ---- a row ----------------------------------------------------------------------------------- */

struct sum {
    uint32_t both_stepped, dropped_max;
    uint64_t lost_samples, hash;
    double healed_s_max, still_s_max;
};

static struct sum sum_of(const struct hth_rows *rows, uint32_t row)
{
    struct sum s = {.hash = 0};
    for (uint32_t i = 0; i < rows->seeds; i++) {
        const struct hth_cut_report *r = hth_rows_report(rows, row, i);
        if (r == NULL)
            continue;
        s.both_stepped += r->both_stepped;
        s.dropped_max = HTH_MAX(s.dropped_max, r->dropped);
        s.lost_samples += r->lost_samples;
        s.still_s_max = fmax(s.still_s_max, fmax(r->still_s[0], r->still_s[1]));
        s.healed_s_max = r->healed_s < 0 ? INFINITY : fmax(s.healed_s_max, r->healed_s);
        s.hash = hth_hash64(&r->hash, sizeof(r->hash), s.hash);
    }
    return s;
}

static void print_json(const struct hth_cut_opts *o, const struct sum *s,
                       const struct hth_rows_sum *judged)
{
    json_t *row = json_object(), *split = json_array();
    char hash[17];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)s->hash);
    json_array_append_new(split, json_integer(o->away));
    json_array_append_new(split, json_integer(o->members - o->away));
    json_object_set_new(row, "split", split);
    hth_json_count(row, "cut_s", (uint64_t)(o->cut_us / HTH_US_PER_S));
    hth_json_text(row, "mode", mode_of(o));
    json_object_set_new(row, "unlike", json_boolean(o->unlike));
    json_object_set_new(row, "grid", json_boolean(o->grid));
    hth_json_count(row, "seeds", judged->seeds);
    hth_json_count(row, "both_stepped", s->both_stepped);
    hth_json_count(row, "dropped_max", s->dropped_max);
    hth_json_count(row, "lost_samples", s->lost_samples);
    hth_json_real(row, "healed_s_max", s->healed_s_max);
    hth_json_real(row, "still_s_max", s->still_s_max);
    hth_json_text(row, "broken", judged->broken);
    if (judged->broken != NULL)
        hth_json_count(row, "seed", judged->seed);
    hth_json_text(row, "hash", hash);
    hth_json_print_take(stdout, row);
    putchar('\n');
}

static void print_line(uint32_t row, const struct hth_cut_opts *o, const struct sum *s,
                       const struct hth_rows_sum *judged)
{
    printf("%4u %3u + %-3u %5lld %-9s %-7s %-5s %6u %7u %8llu %8.1f %8.1f  %s", row, o->away,
           o->members - o->away, (long long)(o->cut_us / HTH_US_PER_S), mode_of(o),
           o->unlike ? "unlike" : "alike", o->grid ? "grid" : "line", s->both_stepped,
           s->dropped_max, (unsigned long long)s->lost_samples, s->healed_s_max, s->still_s_max,
           judged->broken != NULL ? judged->broken : "");
    if (judged->broken != NULL)
        printf(" (seed %llu)", (unsigned long long)judged->seed);
    putchar('\n');
}

static void print(const struct hth_rows *rows, uint32_t row, const struct hth_rows_sum *judged)
{
    if (row == UINT32_MAX) {
        printf("%4s %9s %5s %-9s %-7s %-5s %6s %7s %8s %8s %8s\n", "row", "split", "cut s", "mode",
               "machine", "shape", "both", "dropped", "lost", "healed s", "still s");
        return;
    }
    const struct hth_cut_opts o = hth_cuts_row(row);
    const struct sum s = sum_of(rows, row);
    if (rows->json)
        print_json(&o, &s, judged);
    else
        print_line(row, &o, &s, judged);
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
                            .print = print,
                            .is_asked = is_asked};
    return hth_rows_verb(&rows, &argp, argc, argv);
}
