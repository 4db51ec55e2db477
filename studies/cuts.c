/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuts.c: hearth sim cuts: a run whose network is cut in two (scenarios/cuts.h), for all splits of
 * some trainers, lengths, machines and modes.
 *
 * With --json one object per row, over all seeds:
 *   {"split": [1, 4], "cut_s", "mode": "strict" | "eventual", "unlike", "seeds", "both_stepped",
 *    "dropped_max", "lost_samples", "healed_s_max", "still_s_max", "broken", "seed", "hash"}
 * healed_s_max is null where a run did not heal; "broken" says the first promise that was not kept,
 * with the seed that shows it, and is null where all were. "hash" covers the events of all seeds.
 */
#include "scenarios/cuts.h"

#include "cli/cli.h"
#include "cli/json.h"
#include "core/mem.h"
#include "studies/questions.h"
#include "studies/tools.h"

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEY_SEEDS = 0x5000, KEY_SEED, KEY_ROW, KEY_EVERY, KEY_THREADS, KEY_MODE, KEY_JSON };

struct cuts {
    uint32_t seeds, threads, every;
    uint64_t seed;
    uint32_t row; /* UINT32_MAX: all */
    const char *mode;
    bool json;
    struct cut_result {
        struct hth_cut_report report;
        enum hth_err err;
        bool done;
    } * results; /* rows * seeds */
    uint64_t done;
    struct hth_sim_progress progress;
};

static const struct argp_option options[] = {
    {"seeds", KEY_SEEDS, "N", 0, "Runs of each row (default 1)", 0},
    {"seed", KEY_SEED, "N", 0, "The first one's seed (default 1)", 0},
    {"row", KEY_ROW, "N", 0, "Only this row of the table", 0},
    {"every", KEY_EVERY, "N", 0, "Only every Nth row (default 1)", 0},
    {"mode", KEY_MODE, "MODE", 0, "Only strict or eventual", 0},
    {"threads", KEY_THREADS, "N", 0, "Runs at the same time (default: the cores)", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object per row", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct cuts *c = state->input;
    switch (key) {
    case KEY_SEEDS:
        c->seeds = (uint32_t)hth_cli_number(state, "--seeds", arg, 1, 1000);
        break;
    case KEY_SEED:
        c->seed = hth_cli_number(state, "--seed", arg, 1, UINT32_MAX);
        break;
    case KEY_ROW:
        c->row = (uint32_t)hth_cli_number(state, "--row", arg, 0, hth_cuts_rows() - 1);
        break;
    case KEY_EVERY:
        c->every = (uint32_t)hth_cli_number(state, "--every", arg, 1, hth_cuts_rows());
        break;
    case KEY_THREADS:
        c->threads = (uint32_t)hth_cli_number(state, "--threads", arg, 1, 256);
        break;
    case KEY_MODE:
        if (strcmp(arg, "strict") != 0 && strcmp(arg, "eventual") != 0)
            argp_error(state, "--mode '%s': expected strict or eventual", arg);
        c->mode = arg;
        break;
    case KEY_JSON:
        c->json = true;
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

static bool is_asked(const struct cuts *c, uint32_t row)
{
    const struct hth_cut_opts o = hth_cuts_row(row);
    return (c->row == UINT32_MAX || c->row == row) && row % c->every == 0 &&
           (c->mode == NULL || strcmp(c->mode, mode_of(&o)) == 0);
}

static enum hth_err open_local(void *arg, void **local)
{
    *local = arg;
    return HTH_OK;
}

static void close_local(void *local)
{
    (void)local;
}

static void run(void *arg, void *local, uint64_t index)
{
    struct cuts *c = arg;
    struct cut_result *result = &c->results[index];
    uint32_t row = (uint32_t)(index / c->seeds);
    struct hth_cut_opts o = hth_cuts_row(row);
    (void)local;
    if (!is_asked(c, row))
        return;
    o.seed = c->seed + index % c->seeds;
    result->err = hth_sim_cut(&o, &result->report);
    result->done = true;
    hth_sim_progress_say(&c->progress, "row %u of %u", row, hth_cuts_rows());
}

/* ---- a row ----------------------------------------------------------------------------------- */

struct sum {
    uint32_t seeds, both_stepped, dropped_max;
    uint64_t lost_samples, seed, hash;
    double healed_s_max, still_s_max;
    const char *broken;
};

static struct sum sum_of(const struct cuts *c, uint32_t row)
{
    struct sum s = {.seeds = 0};
    for (uint32_t i = 0; i < c->seeds; i++) {
        const struct cut_result *result = &c->results[(uint64_t)row * c->seeds + i];
        const struct hth_cut_report *r = &result->report;
        const struct hth_cut_opts o = hth_cuts_row(row);
        const char *broken =
            result->err != HTH_OK ? hth_err_text(result->err) : hth_cut_broken(&o, r);
        if (!result->done)
            continue;
        s.seeds++;
        s.both_stepped += r->both_stepped;
        s.dropped_max = HTH_MAX(s.dropped_max, r->dropped);
        s.lost_samples += r->lost_samples;
        s.still_s_max = fmax(s.still_s_max, fmax(r->still_s[0], r->still_s[1]));
        s.healed_s_max = r->healed_s < 0 ? INFINITY : fmax(s.healed_s_max, r->healed_s);
        s.hash = hth_hash64(&r->hash, sizeof(r->hash), s.hash);
        if (broken != NULL && s.broken == NULL) {
            s.broken = broken;
            s.seed = c->seed + i;
        }
    }
    return s;
}

static void print_json(const struct hth_cut_opts *o, const struct sum *s)
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
    hth_json_count(row, "seeds", s->seeds);
    hth_json_count(row, "both_stepped", s->both_stepped);
    hth_json_count(row, "dropped_max", s->dropped_max);
    hth_json_count(row, "lost_samples", s->lost_samples);
    hth_json_real(row, "healed_s_max", s->healed_s_max);
    hth_json_real(row, "still_s_max", s->still_s_max);
    hth_json_text(row, "broken", s->broken);
    if (s->broken != NULL)
        hth_json_count(row, "seed", s->seed);
    hth_json_text(row, "hash", hash);
    hth_json_print_take(stdout, row);
    putchar('\n');
}

static void print_line(uint32_t row, const struct hth_cut_opts *o, const struct sum *s)
{
    printf("%4u %3u + %-3u %5lld %-9s %-7s %6u %7u %8llu %8.1f %8.1f  %s", row, o->away,
           o->members - o->away, (long long)(o->cut_us / HTH_US_PER_S), mode_of(o),
           o->unlike ? "unlike" : "alike", s->both_stepped, s->dropped_max,
           (unsigned long long)s->lost_samples, s->healed_s_max, s->still_s_max,
           s->broken != NULL ? s->broken : "");
    if (s->broken != NULL)
        printf(" (seed %llu)", (unsigned long long)s->seed);
    putchar('\n');
}

/* Returns how many rows broke a promise. */
static uint32_t print(const struct cuts *c)
{
    uint32_t broken = 0;
    if (!c->json)
        printf("%4s %9s %5s %-9s %-7s %6s %7s %8s %8s %8s\n", "row", "split", "cut s", "mode",
               "machine", "both", "dropped", "lost", "healed s", "still s");
    for (uint32_t row = 0; row < hth_cuts_rows(); row++) {
        const struct hth_cut_opts o = hth_cuts_row(row);
        const struct sum s = sum_of(c, row);
        if (s.seeds == 0)
            continue;
        broken += s.broken != NULL;
        if (c->json)
            print_json(&o, &s);
        else
            print_line(row, &o, &s);
    }
    return broken;
}

int hth_sim_cuts_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Does a run survive a network that is cut in two? Trainers that share batches are "
               "cut into parts of all sizes, for 1 to 300 s, with like and unlike machines, in "
               "both modes of averaging.majority; then the network is whole again.",
    };
    struct cuts c = {.seeds = 1, .seed = 1, .every = 1, .row = UINT32_MAX};
    if (argp_parse(&argp, argc, argv, 0, NULL, &c) != 0)
        return HTH_EXIT_USAGE;
    const struct hth_sim_work work = {open_local, run, close_local, &c};
    uint64_t runs = (uint64_t)hth_cuts_rows() * c.seeds;
    c.results = hth_new_array(struct cut_result, runs);
    hth_sim_heed_interrupts();
    hth_sim_progress_begin(&c.progress);
    enum hth_err err = hth_sim_spread(&work, runs, hth_sim_threads(c.threads));
    hth_sim_progress_wipe(&c.progress);
    uint32_t broken = err == HTH_OK ? print(&c) : 0;
    hth_free(c.results);
    return err != HTH_OK ? hth_exit_of(err) : broken > 0 ? HTH_EXIT_FAILURE : HTH_EXIT_OK;
}
