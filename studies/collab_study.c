/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collab_study.c: hearth sim collab --seeds N: how much worse are runs whose trainers crash and
 * join?
 *
 * A single point of a run's curve is the loss after one step, and the random batch changes it by
 * more than crashes do. So each seed has a calm run, one with crashes and joins that reads the same
 * samples, and a second calm run that reads them in another order. The two differences from the
 * calm run are taken at equal samples, and the result is their mean over the seeds.
 */
#include "cli/cli.h"
#include "core/mem.h"
#include "scenarios/trunk.h"
#include "studies/collab.h"
#include "studies/study_model.h"

#include <math.h>
#include <string.h>

#define PLACES 20  /* points of a curve */
#define AIM    2.0 /* per cent */

enum { CALM, AGAIN, CHURN, CASES };
static const char *const cases[CASES] = {"calm", "again", "churn"};

enum { SAMPLES, PARAMS };
enum { OFF, LOSS, RIGHT, END, MEAN, WORST, TAKEN, STATES, DEATHS, TIME_S, METRICS };

static const struct hth_study_column params[PARAMS] = {{"samples", "samples", 0}};
static const struct hth_study_column metrics[METRICS] = {
    {"off_pct", "loss off the calm run (%)", 2},
    {"loss", "test loss (nats)", 4},
    {"right_pct", "test set right (%)", 1},
    {"end_pct", "loss off the calm run at the end (%)", 2},
    {"mean_pct", "in the mean of the second half (%)", 2},
    {"worst_pct", "worst point of one run's second half (%)", 2},
    {"taken", "samples taken", 0},
    {"states", "states fetched", 1},
    {"deaths", "deaths", 1},
    {"time_s", "virtual time (s)", 1}};
static const struct hth_study_panel panels[] = {
    {"curve", "Loss off the calm run at equal samples", SAMPLES, OFF, false, false, false},
    {"curve", "Test loss", SAMPLES, LOSS, false, false, false}};

struct collab_study {
    const struct hth_sim_collab_opts *opts;
    struct hth_study_point points[CASES * (1 + PLACES)];
    size_t count;
    bool failed;
};

/* ---- points -------------------------------------------------------------------------------- */

static void add(struct collab_study *s, const char *part, int which, double samples)
{
    s->points[s->count++] =
        (struct hth_study_point){.part = part, .series = cases[which], .param = {samples}};
}

/* Add the points. The three runs of a seed measure all of them. */
static void add_points(struct collab_study *s)
{
    for (int i = 0; i < CASES; i++)
        add(s, "churn", i, NAN);
    for (int i = 0; i < CASES; i++)
        for (int k = 1; k <= PLACES; k++)
            add(s, "curve", i, hth_collab_samples(s->opts) * k / PLACES);
    s->points[0].group = s->count;
}

/* ---- running ------------------------------------------------------------------------------- */

/* Run the three cases of a seed. No two seeds share an order of samples, as their differences would
 * be correlated. */
static enum hth_err run_cases(const struct collab_study *s, uint64_t seed,
                              const struct hth_study_watch *watch, struct hth_collab_report *r)
{
    struct hth_sim_collab_opts o = *s->opts;
    o.seed = seed;
    o.order = 2 * seed;
    o.what = HTH_COLLAB_CALM;
    HTH_TRY(hth_sim_collab(&o, &r[CALM]));
    o.order++;
    HTH_TRY(hth_sim_collab(&o, &r[AGAIN]));
    o.order--;
    o.what = HTH_COLLAB_CHURN;
    o.on_event = watch->event;
    o.arg = watch->arg;
    return hth_sim_collab(&o, &r[CHURN]);
}

static double off_pct(const struct hth_collab_report *r, const struct hth_collab_report *calm,
                      double samples)
{
    return 100 * (hth_collab_loss_at(r, samples) / hth_collab_loss_at(calm, samples) - 1);
}

static void put_run(const struct hth_collab_report *r, const struct hth_collab_report *calm,
                    double *values)
{
    uint32_t last = r->points - 1;
    values[LOSS] = r->loss[last];
    values[RIGHT] = 100 * r->accuracy;
    values[TAKEN] = (double)r->samples;
    values[STATES] = r->catch_ups;
    values[DEATHS] = r->died;
    values[TIME_S] = r->virtual_s;
    if (r == calm)
        return;
    struct hth_collab_difference d;
    hth_collab_compare(r, calm, &d);
    values[END] = off_pct(r, calm, HTH_MIN(r->at[last], calm->at[calm->points - 1]));
    values[MEAN] = 100 * d.mean;
    values[WORST] = 100 * d.worst;
}

static enum hth_err run(void *arg, const struct hth_study_point *first, uint64_t seed,
                        const struct hth_study_watch *watch, double *values)
{
    const struct collab_study *s = arg;
    struct hth_collab_report *r = hth_new_array(struct hth_collab_report, CASES);
    enum hth_err err = run_cases(s, seed, watch, r);
    for (size_t i = 0; i < first->group * METRICS; i++)
        values[i] = NAN;
    for (int c = 0; err == HTH_OK && c < CASES; c++)
        if (r[c].points == 0)
            err = HTH_E_CONFIG;
    for (size_t i = 0; err == HTH_OK && i < first->group; i++) {
        const struct hth_study_point *p = &first[i];
        double samples = p->param[SAMPLES], *v = values + i * METRICS;
        size_t c = 0;
        while (strcmp(p->series, cases[c]) != 0)
            c++;
        if (isnan(samples)) {
            put_run(&r[c], &r[CALM], v);
            continue;
        }
        v[LOSS] = hth_collab_loss_at(&r[c], samples);
        v[OFF] = c != CALM ? off_pct(&r[c], &r[CALM], samples) : NAN;
    }
    hth_free(r);
    return err;
}

/* ---- what it says -------------------------------------------------------------------------- */

struct finding {
    /* worst: the point of the mean curve that is farthest off */
    const struct hth_study_mean *end, *mean, *worst;
    double worst_at;
    /* all intervals lie within it; NaN where a mean has no interval, as with one seed */
    double reach;
};

static void reach_for(struct finding *f, const struct hth_study_mean *m)
{
    f->reach = hth_worse(f->reach, fabs(m->mean) + m->half);
}

/* Find the means. Returns false when some were not asked for, or have one seed only. */
static bool find(const struct hth_study *s, const struct hth_study_mean *means, int which,
                 struct finding *out)
{
    *out = (struct finding){.reach = 0};
    for (size_t i = 0; i < s->point_count; i++) {
        const struct hth_study_mean *m = means + i * METRICS;
        if (strcmp(s->points[i].series, cases[which]) != 0)
            continue;
        if (strcmp(s->points[i].part, "churn") == 0) {
            out->end = &m[END];
            out->mean = &m[MEAN];
            reach_for(out, &m[END]);
            reach_for(out, &m[MEAN]);
        } else if (m[OFF].count > 0) {
            reach_for(out, &m[OFF]);
            if (out->worst != NULL && fabs(m[OFF].mean) <= fabs(out->worst->mean))
                continue;
            out->worst = &m[OFF];
            out->worst_at = s->points[i].param[SAMPLES];
        }
    }
    return out->end != NULL && out->end->count > 1 && out->worst != NULL;
}

static char *say(const struct finding *f)
{
    return hth_asprintf("end %+.2f +- %.2f %%, mean %+.2f +- %.2f %%, worst point of the mean "
                        "curve %+.2f +- %.2f %% at %.0f samples, all intervals within %.2f %%",
                        f->end->mean, f->end->half, f->mean->mean, f->mean->half, f->worst->mean,
                        f->worst->half, f->worst_at, f->reach);
}

static char *verdict(void *arg, const struct hth_study *shown, const struct hth_study_mean *means)
{
    struct collab_study *s = arg;
    struct finding churn, again;
    if (!find(shown, means, CHURN, &churn) || !find(shown, means, AGAIN, &again))
        return NULL;
    /* A run that failed is not in these means. */
    bool passed = churn.reach <= AIM && shown->gaps->failure_count == 0;
    char *there = say(&churn), *beside = say(&again);
    char *text = hth_asprintf("%s: with crashes and joins the loss is %swithin %.0f %% of the calm "
                              "run's at equal samples: %s. Another order of the samples: %s.",
                              passed ? "PASS" : "FAIL", passed ? "" : "not shown to be ", AIM,
                              there, beside);
    s->failed = !passed;
    hth_free(there);
    hth_free(beside);
    return text;
}

static const char about[] =
    "Whole trainers with the production averager and real arithmetic learn to tell noisy pictures "
    "apart in a simulated world; links of 10 ms and 100 Mbit/s. For each seed there are three "
    "runs: calm; churn, in which some of the trainers crash (half of them silently) and others "
    "join, at random steps between a tenth and eight tenths of the run, and all trainers that are "
    "there "
    "from the start read the same samples; and again, a second calm run that reads them in "
    "another order. Differences are relative, in the loss on the test set, taken seed by seed "
    "at equal samples, between the two nearest evaluations of a run; at the end: where the run "
    "that took fewer samples ended. A single run's point is the loss after one step, which its "
    "batch leaves to chance: that is what again shows. Data, weights at the start and test set "
    "are the same for all seeds.";

int hth_sim_collab_study(const struct hth_sim_collab_opts *opts,
                         const struct hth_study_flags *flags)
{
    struct collab_study *s = hth_new(struct collab_study);
    s->opts = opts;
    add_points(s);
    struct hth_study study = {.name = "collab",
                              .title = "Trainers of one model crash and join",
                              .about = about,
                              .params = params,
                              .metrics = metrics,
                              .panels = panels,
                              .points = s->points,
                              .param_count = PARAMS,
                              .metric_count = METRICS,
                              .panel_count = HTH_ARRAY_LEN(panels),
                              .aimed = OFF,
                              .within = AIM,
                              .point_count = s->count,
                              .run = run,
                              .verdict = verdict,
                              .arg = s};
    int code = hth_exit_of(hth_study_run(&study, flags));
    if (code == HTH_EXIT_OK && s->failed)
        code = HTH_EXIT_FAILURE;
    hth_free(s);
    return code;
}
