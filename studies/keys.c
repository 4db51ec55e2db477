/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.c: hearth sim keys: a run by roll call beside keys that speak and bring nothing, or not for
 * long (scenarios/keys.h).
 *
 * With --json one object per row, over all seeds:
 *   {"keys", "trainers", "kind": "declare" | "ready" | "silent" | "brings", "steps_ratio", "steps",
 *    "alone", "asked", "seeds", "broken", "seed", "hash"}
 * steps_ratio is the least of all minutes and seeds, "alone" the steps without keys, "asked" how
 * often a key that brings nothing was to reduce. "broken" says the first promise that was not kept,
 * with the seed that shows it, and is null where all were. "hash" covers the events of all seeds.
 */
#include "scenarios/keys.h"

#include "cli/json.h"
#include "core/rng.h"
#include "studies/questions.h"
#include "studies/rows.h"

#include <math.h>
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

static enum hth_err run(uint32_t row, uint64_t seed, void *report)
{
    struct hth_keys_opts o = hth_keys_row(row);
    o.seed = seed;
    return hth_sim_keys(&o, report);
}

static const char *broken(uint32_t row, const void *report)
{
    (void)row;
    return hth_keys_broken(report);
}

struct sum {
    double steps_ratio;
    uint64_t steps, alone, asked, hash;
};

static struct sum sum_of(const struct hth_rows *rows, uint32_t row)
{
    struct sum s = {.steps_ratio = INFINITY};
    for (uint32_t i = 0; i < rows->seeds; i++) {
        const struct hth_keys_report *r = hth_rows_report(rows, row, i);
        if (r == NULL)
            continue;
        s.steps_ratio = fmin(s.steps_ratio, r->steps_ratio);
        s.steps += r->steps;
        s.alone += r->alone;
        s.asked += r->asked;
        s.hash = hth_hash64(&r->hash, sizeof(r->hash), s.hash);
    }
    return s;
}

static void print_json(const struct hth_keys_opts *o, const struct sum *s,
                       const struct hth_rows_sum *judged)
{
    json_t *row = json_object();
    char hash[17];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)s->hash);
    hth_json_count(row, "keys", o->keys);
    hth_json_count(row, "trainers", o->trainers);
    hth_json_text(row, "kind", hth_keys_kind_name(o->kind));
    hth_json_real(row, "steps_ratio", s->steps_ratio);
    hth_json_count(row, "steps", s->steps);
    hth_json_count(row, "alone", s->alone);
    hth_json_count(row, "asked", s->asked);
    hth_json_count(row, "seeds", judged->seeds);
    hth_json_text(row, "broken", judged->broken);
    if (judged->broken != NULL)
        hth_json_count(row, "seed", judged->seed);
    hth_json_text(row, "hash", hash);
    hth_json_print_take(stdout, row);
    putchar('\n');
}

static void print_line(uint32_t row, const struct hth_keys_opts *o, const struct sum *s,
                       const struct hth_rows_sum *judged)
{
    printf("%4u %5u %8u %-8s %6.3f %7llu %7llu %7llu  %s", row, o->keys, o->trainers,
           hth_keys_kind_name(o->kind), s->steps_ratio, (unsigned long long)s->steps,
           (unsigned long long)s->alone, (unsigned long long)s->asked,
           judged->broken != NULL ? judged->broken : "");
    if (judged->broken != NULL)
        printf(" (seed %llu)", (unsigned long long)judged->seed);
    putchar('\n');
}

static void print(const struct hth_rows *rows, uint32_t row, const struct hth_rows_sum *judged)
{
    if (row == UINT32_MAX) {
        printf("%4s %5s %8s %-8s %6s %7s %7s %7s\n", "row", "keys", "trainers", "kind", "ratio",
               "steps", "alone", "asked");
        return;
    }
    const struct hth_keys_opts o = hth_keys_row(row);
    const struct sum s = sum_of(rows, row);
    if (rows->json)
        print_json(&o, &s, judged);
    else
        print_line(row, &o, &s, judged);
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
                            .print = print,
                            .is_asked = is_asked};
    return hth_rows_verb(&rows, &argp, argc, argv);
}
