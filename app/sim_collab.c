/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_collab.c: hearth sim collab: a run while trainers come and go (sim/scenario_collab.h).
 *
 * With --json one object per line:
 *   {"case": "calm" | "again" | "churn", "mode", "trainers", "died", "joined", "steps", "samples",
 *    "samples_min", "loss", "accuracy", "worst", "mean", "last", "spread", "catch_ups",
 *    "yields", "virtual_s", "hash"}
 *   {"case": "newcomer", "mode", "trainers", "donor_killed", "state_bytes", "state_s",
 *    "first_step_s", "joined_at", "first_step", "donor_gave", "donor_died_at", "spread",
 *    "virtual_s", "hash"}         the bytes of the donor that was killed, and which fraction of the
 *                                 state had come then
 * worst, mean and last are relative differences of the test loss from the calm run at equal
 * samples, over the second half and at the end. "again" is a calm run over the same samples in
 * another order: by how much two runs differ to which nothing happened.
 */
#include "app/json.h"
#include "app/cli.h"
#include "app/sim.h"
#include "sim/scenario_collab.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

struct collab {
    struct hth_collab_opts opts;
    bool json;
    const char *only; /* "churn" or "newcomer"; NULL: both */
};

enum { KEY_SEED = 0x5000, KEY_TRAINERS, KEY_STEPS, KEY_DIE, KEY_JOIN, KEY_MODE, KEY_JSON };
enum { KEY_ONLY = 0x5080 };

static const struct argp_option options[] = {
    {"seed", KEY_SEED, "N", 0, "Everything random follows from it (default 1)", 0},
    {"trainers", KEY_TRAINERS, "N", 0, "At the start (default 8)", 0},
    {"steps", KEY_STEPS, "N", 0, "Of the run (default 500)", 0},
    {"die", KEY_DIE, "N", 0, "Trainers that die (default 2)", 0},
    {"join", KEY_JOIN, "N", 0, "Trainers that join (default 3)", 0},
    {"mode", KEY_MODE, "MODE", 0, "batch (default) or local", 0},
    {"only", KEY_ONLY, "PART", 0, "churn (beside a calm run) or newcomer", 0},
    {"json", KEY_JSON, NULL, 0, "One JSON object per case", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct collab *c = state->input;
    switch (key) {
    case KEY_SEED:
        c->opts.seed = hth_cli_number(state, "--seed", arg, 0, UINT64_MAX);
        break;
    case KEY_TRAINERS:
        c->opts.trainers = (uint32_t)hth_cli_number(state, "--trainers", arg, 2, 32);
        break;
    case KEY_STEPS:
        c->opts.steps = (uint32_t)hth_cli_number(state, "--steps", arg, 20, 100000);
        break;
    case KEY_DIE:
        c->opts.die = (uint32_t)hth_cli_number(state, "--die", arg, 0, 16);
        break;
    case KEY_JOIN:
        c->opts.join = (uint32_t)hth_cli_number(state, "--join", arg, 0, 16);
        break;
    case KEY_MODE:
        if (strcmp(arg, "batch") != 0 && strcmp(arg, "local") != 0)
            argp_error(state, "--mode '%s': it is batch or local", arg);
        c->opts.mode = arg[0] == 'b' ? HTH_SHARE_BATCH : HTH_SHARE_LOCAL;
        break;
    case KEY_ONLY:
        if (strcmp(arg, "churn") != 0 && strcmp(arg, "newcomer") != 0)
            argp_error(state, "--only '%s': it is churn or newcomer", arg);
        c->only = arg;
        break;
    case KEY_JSON:
        c->json = true;
        break;
    case ARGP_KEY_END:
        if (c->opts.die >= c->opts.trainers)
            argp_error(state, "--die %u of --trainers %u: one at least has to stay", c->opts.die,
                       c->opts.trainers);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const char *mode_name(const struct collab *c)
{
    return c->opts.mode == HTH_SHARE_BATCH ? "batch" : "local";
}

static json_t *row_of(const struct collab *c, const char *name)
{
    json_t *o = json_object();
    hth_json_text(o, "case", name);
    hth_json_text(o, "mode", mode_name(c));
    hth_json_count(o, "trainers", c->opts.trainers);
    return o;
}

static void print_row_take(json_t *o, const struct hth_collab_report *r)
{
    char hash[17];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)r->hash);
    hth_json_real(o, "virtual_s", r->virtual_s);
    hth_json_text(o, "hash", hash);
    hth_json_print_take(stdout, o);
    putchar('\n');
}

static void print_run(const struct collab *c, const char *name, const struct hth_collab_report *r,
                      const struct hth_collab_report *calm)
{
    double loss = r->points > 0 ? r->loss[r->points - 1] : 0;
    struct hth_collab_difference d;
    hth_collab_compare(r, calm, &d);
    if (c->json) {
        json_t *o = row_of(c, name);
        hth_json_count(o, "died", r->died);
        hth_json_count(o, "joined", r->joined);
        hth_json_count(o, "steps", r->steps);
        hth_json_count(o, "samples", r->samples);
        hth_json_real(o, "samples_min", r->samples_min);
        hth_json_real(o, "loss", loss);
        hth_json_real(o, "accuracy", r->accuracy);
        hth_json_real(o, "worst", d.worst);
        hth_json_real(o, "mean", d.mean);
        hth_json_real(o, "last", d.last);
        hth_json_real(o, "spread", r->spread);
        hth_json_count(o, "catch_ups", r->catch_ups);
        hth_json_count(o, "yields", r->yields);
        print_row_take(o, r);
    } else
        printf("%-9s %4u %6u %9llu %9.4f %8.1f %% %8.2f %% %7.2f %% %10.1e %9u %9.1f s\n", name,
               r->died, r->joined, (unsigned long long)r->samples, loss, 100 * r->accuracy,
               100 * d.last, 100 * d.worst, r->spread, r->catch_ups, r->virtual_s);
    fflush(stdout);
}

static void print_newcomer(const struct collab *c, const struct hth_collab_report *r, bool killed)
{
    if (c->json) {
        json_t *o = row_of(c, "newcomer");
        hth_json_flag(o, "donor_killed", killed);
        hth_json_count(o, "state_bytes", r->state_bytes);
        hth_json_real(o, "state_s", r->state_s);
        hth_json_real(o, "first_step_s", r->first_step_s);
        hth_json_count(o, "joined_at", r->joined_at);
        hth_json_count(o, "first_step", r->first_step);
        hth_json_count(o, "donor_gave", r->donor_gave);
        hth_json_real(o, "donor_died_at", r->donor_died_at);
        hth_json_real(o, "spread", r->spread);
        print_row_take(o, r);
    } else
        printf("newcomer%s: %.2f MB of state in %.2f s; its first step %.2f s after its start "
               "(step %llu; the run was at %llu when it came)\n",
               killed ? ", a donor killed half-way" : "", (double)r->state_bytes / 1e6, r->state_s,
               r->first_step_s, (unsigned long long)r->first_step,
               (unsigned long long)r->joined_at);
    fflush(stdout);
}

static enum hth_err run_churn(struct collab *c)
{
    struct hth_collab_report calm, other;
    struct hth_collab_opts o = c->opts;
    o.what = HTH_COLLAB_CALM;
    HTH_TRY(hth_sim_collab(&o, &calm));
    if (!c->json)
        printf("%-9s %4s %6s %9s %9s %10s %10s %9s %10s %9s %11s\n", "case", "died", "joined",
               "samples", "test loss", "right", "off calm", "worst", "spread", "catch-ups", "time");
    print_run(c, "calm", &calm, &calm);
    o.order++;
    HTH_TRY(hth_sim_collab(&o, &other));
    print_run(c, "again", &other, &calm);
    o.order--;
    o.what = HTH_COLLAB_CHURN;
    HTH_TRY(hth_sim_collab(&o, &other));
    print_run(c, "churn", &other, &calm);
    return HTH_OK;
}

static enum hth_err run_newcomers(struct collab *c)
{
    struct hth_collab_report r;
    struct hth_collab_opts o = c->opts;
    o.what = HTH_COLLAB_NEWCOMER;
    /* It takes up the state of a trunk of a real size, and comes when there is one to be taken. */
    o.steps = o.mode == HTH_SHARE_LOCAL ? 4 * HTH_SHARE_LAG_LOCAL : 60;
    o.dim = 128;
    o.side = 28;
    for (int killed = 0; killed < 2; killed++) {
        o.kill_donor = killed == 1;
        HTH_TRY(hth_sim_collab(&o, &r));
        print_newcomer(c, &r, killed == 1);
    }
    return HTH_OK;
}

int hth_sim_collab_verb(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Trainers of one model come and go: the loss beside that of a calm run, and what a "
               "newcomer takes to join in.",
    };
    struct collab c = {.opts = HTH_COLLAB_OPTS_INIT};
    c.opts.mode = HTH_SHARE_BATCH;
    if (argp_parse(&argp, argc, argv, 0, NULL, &c) != 0)
        return HTH_EXIT_USAGE;
    enum hth_err err = HTH_OK;
    if (c.only == NULL || strcmp(c.only, "churn") == 0)
        err = run_churn(&c);
    if (err == HTH_OK && (c.only == NULL || strcmp(c.only, "newcomer") == 0))
        err = run_newcomers(&c);
    if (err != HTH_OK)
        hth_cli_say_error("sim collab: %s", hth_err_text(err));
    return err == HTH_OK ? HTH_EXIT_OK : hth_exit_of(err);
}
