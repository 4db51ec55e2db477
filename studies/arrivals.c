/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arrivals.c: hearth sim arrivals: newcomers come to a run by roll call (scenarios/arrivals.h), for
 * steps, states and numbers of newcomers of all sizes.
 *
 * With --json one object per row, over all seeds:
 *   {"step_s", "state_steps", "newcomers", "in_s_max", "others_slowed", "calm_s", "over", "lacked",
 *    "seeds", "broken", "seed", "hash"}
 * in_s_max is null where a newcomer was never in; "calm_s" is a step before they came, "over" the
 * time until a newcomer was in by what is promised, "lacked" the means that one lacked when it held
 * the state. "broken" says the first promise that was not kept, with the seed that shows it, and is
 * null where all were. "hash" covers the events of all seeds.
 */
#include "scenarios/arrivals.h"

#include "cli/json.h"
#include "core/rng.h"
#include "studies/questions.h"
#include "studies/rows.h"

#include <math.h>
#include <stdio.h>

static error_t parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = state->input;
    return 0;
}

static enum hth_err run(uint32_t row, uint64_t seed, void *report)
{
    struct hth_arrival_opts o = hth_arrivals_row(row);
    o.seed = seed;
    return hth_sim_arrival(&o, report);
}

static const char *broken(uint32_t row, const void *report)
{
    (void)row;
    return hth_arrival_broken(report);
}

struct sum {
    double calm_s, in_s_max, over, slowed;
    uint32_t lacked;
    uint64_t hash;
};

static struct sum sum_of(const struct hth_rows *rows, uint32_t row)
{
    struct sum s = {.hash = 0};
    for (uint32_t i = 0; i < rows->seeds; i++) {
        const struct hth_arrival_report *r = hth_rows_report(rows, row, i);
        if (r == NULL)
            continue;
        s.calm_s = fmax(s.calm_s, r->calm_s);
        s.in_s_max = r->in_s_max < 0 ? INFINITY : fmax(s.in_s_max, r->in_s_max);
        s.over = fmax(s.over, r->over);
        s.slowed = fmax(s.slowed, r->slowed);
        s.lacked = HTH_MAX(s.lacked, r->lacked);
        s.hash = hth_hash64(&r->hash, sizeof(r->hash), s.hash);
    }
    return s;
}

static void print_json(const struct hth_arrival_opts *o, const struct sum *s,
                       const struct hth_rows_sum *judged)
{
    json_t *row = json_object();
    char hash[17];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)s->hash);
    hth_json_real(row, "step_s", o->step_s);
    hth_json_real(row, "state_steps", o->state_steps);
    hth_json_count(row, "newcomers", o->newcomers);
    hth_json_real(row, "in_s_max", s->in_s_max);
    hth_json_real(row, "others_slowed", s->slowed);
    hth_json_real(row, "calm_s", s->calm_s);
    hth_json_real(row, "over", s->over);
    hth_json_count(row, "lacked", s->lacked);
    hth_json_count(row, "seeds", judged->seeds);
    hth_json_text(row, "broken", judged->broken);
    if (judged->broken != NULL)
        hth_json_count(row, "seed", judged->seed);
    hth_json_text(row, "hash", hash);
    hth_json_print_take(stdout, row);
    putchar('\n');
}

static void print_line(uint32_t row, const struct hth_arrival_opts *o, const struct sum *s,
                       const struct hth_rows_sum *judged)
{
    printf("%4u %7.2f %11.1f %9u %8.2f %6.2f %6.2f %7.2f  %s", row, o->step_s, o->state_steps,
           o->newcomers, s->in_s_max, s->over, s->slowed, s->calm_s,
           judged->broken != NULL ? judged->broken : "");
    if (judged->broken != NULL)
        printf(" (seed %llu)", (unsigned long long)judged->seed);
    putchar('\n');
}

static void print(const struct hth_rows *rows, uint32_t row, const struct hth_rows_sum *judged)
{
    if (row == UINT32_MAX) {
        printf("%4s %7s %11s %9s %8s %6s %6s %7s\n", "row", "step s", "state steps", "newcomers",
               "in s", "over", "slowed", "calm s");
        return;
    }
    const struct hth_arrival_opts o = hth_arrivals_row(row);
    const struct sum s = sum_of(rows, row);
    if (rows->json)
        print_json(&o, &s, judged);
    else
        print_line(row, &o, &s, judged);
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
                            .print = print};
    return hth_rows_verb(&rows, &argp, argc, argv);
}
