/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab.c: hearth sim collab: a run whose trainers crash and join (scenarios/collab.h).
 *
 * With --json one object per line:
 *   {"case": "calm" | "again" | "churn", "mode", "trainers", "died", "joined", "steps", "samples",
 *    "samples_min", "loss", "accuracy", "worst", "mean", "last", "spread", "catch_ups",
 *    "yields", "virtual_s", "hash"}
 *   {"case": "newcomer", "mode", "trainers", "donor_killed", "state_bytes", "state_s",
 *    "first_step_s", "joined_at", "first_step", "donor_gave", "donor_died_at", "spread",
 *    "virtual_s", "hash"}         the bytes that the crashed donor gave, and the fraction of
 *                                 the state that had arrived
 * worst, mean and last are relative differences of the test loss from the calm run at equal
 * samples, over the second half and at the end. "again" is a calm run over the same samples in
 * another order: it shows the difference between two runs without faults.
 *
 * With --seeds it is a study: collab_study.c.
 */
#include "studies/collab.h"

#include "cli/cli.h"
#include "cli/json.h"
#include "core/mem.h"
#include "studies/questions.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

struct collab_flags {
    struct hth_sim_collab_opts opts;
    struct hth_study_flags flags; /* seeds 0: no study; then `only` is "churn" or "newcomer" */
};

enum { KEY_TRAINERS = 0x5000, KEY_STEPS, KEY_DIE, KEY_JOIN, KEY_MODE };

static const struct argp_option options[] = {
    {"trainers", KEY_TRAINERS, "N", 0, "Trainers at the start (default 8)", 0},
    {"steps", KEY_STEPS, "N", 0, "Steps of the run (default 500)", 0},
    {"die", KEY_DIE, "N", 0, "Trainers that crash (default 2)", 0},
    {"join", KEY_JOIN, "N", 0, "Trainers that join (default 3)", 0},
    {"mode", KEY_MODE, "MODE", 0, "Averaging: batch (default) or local", 0},
    {0},
};

static bool is_part(const char *only, const char *part)
{
    return only == NULL || strcmp(only, part) == 0;
}

/* Refuse flags that need many seeds. */
static void check_one_seed(struct argp_state *state, const struct hth_study_flags *f)
{
    if (f->seeds > 0)
        return;
    if (f->out != NULL || f->where != NULL || f->against != NULL || f->threads != 0)
        argp_error(state, "--out, --where, --against, --threads: need --seeds N");
    if (!is_part(f->only, "churn") && !is_part(f->only, "newcomer"))
        argp_error(state, "--only '%s': expected churn or newcomer", f->only);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct collab_flags *c = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &c->flags;
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
            argp_error(state, "--mode '%s': expected batch or local", arg);
        c->opts.mode = arg[0] == 'b' ? HTH_SHARE_BATCH : HTH_SHARE_LOCAL;
        break;
    case ARGP_KEY_END:
        check_one_seed(state, &c->flags);
        if (c->opts.die >= c->opts.trainers)
            argp_error(state, "--die %u of --trainers %u: at least one must stay", c->opts.die,
                       c->opts.trainers);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const char *mode_name(const struct collab_flags *c)
{
    return c->opts.mode == HTH_SHARE_BATCH ? "batch" : "local";
}

static json_t *row_of(const struct collab_flags *c, const char *name)
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

static void print_run(const struct collab_flags *c, const char *name,
                      const struct hth_collab_report *r, const struct hth_collab_report *calm)
{
    double loss = r->points > 0 ? r->loss[r->points - 1] : 0;
    struct hth_collab_difference d;
    hth_collab_compare(r, calm, &d);
    if (c->flags.json) {
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

static void print_newcomer(const struct collab_flags *c, const struct hth_collab_report *r,
                           bool killed)
{
    if (c->flags.json) {
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
               "(step %llu; the run was at %llu at its start)\n",
               killed ? ", with a donor crashed half-way" : "", (double)r->state_bytes / 1e6,
               r->state_s, r->first_step_s, (unsigned long long)r->first_step,
               (unsigned long long)r->joined_at);
    fflush(stdout);
}

static enum hth_err run_churn(struct collab_flags *c)
{
    struct hth_collab_report calm, other;
    struct hth_sim_collab_opts o = c->opts;
    o.what = HTH_COLLAB_CALM;
    HTH_TRY(hth_sim_collab(&o, &calm));
    if (!c->flags.json)
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

static enum hth_err run_newcomers(struct collab_flags *c)
{
    struct hth_collab_report r;
    struct hth_sim_collab_opts o = c->opts;
    o.what = HTH_COLLAB_NEWCOMER;
    /* The newcomer adopts the state of a trunk of a real size, so it joins once there is a state to
     * adopt. */
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

static int run_one_seed(struct collab_flags *c)
{
    enum hth_err err = HTH_OK;
    c->opts.seed = c->flags.seed;
    if (is_part(c->flags.only, "churn"))
        err = run_churn(c);
    if (err == HTH_OK && is_part(c->flags.only, "newcomer"))
        err = run_newcomers(c);
    if (err != HTH_OK)
        hth_cli_say_error("sim collab: %s", hth_err_text(err));
    return hth_exit_of(err);
}

int hth_sim_collab_verb(int argc, char **argv)
{
    static const struct argp_child children[] = {{&hth_study_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = children,
        .doc =
            "Trainers of one model crash and join: the loss beside that of a calm run, and the "
            "time "
            "that a newcomer takes to join. Parts: churn, newcomer. With --seeds the first of them "
            "as a study, each seed with a calm run, one with crashes and joins, and a calm one "
            "with the samples in another order: are the differences within 2 %? Exit code 1 if "
            "that is not shown. Its parts: churn, curve.",
    };
    struct collab_flags c = {.opts = HTH_COLLAB_OPTS_INIT, .flags = HTH_STUDY_FLAGS_INIT};
    c.opts.mode = HTH_SHARE_BATCH;
    c.flags.seeds = 0;
    char *command = hth_study_command(argc, argv);
    c.flags.command = command;
    int code = HTH_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &c) == 0)
        code = c.flags.seeds > 0 ? hth_sim_collab_study(&c.opts, &c.flags) : run_one_seed(&c);
    hth_free(command);
    return code;
}
