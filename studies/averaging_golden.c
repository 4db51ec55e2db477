/* SPDX-License-Identifier: Apache-2.0 */
/* averaging_golden.c: hearth sim averaging --table --golden: published figures beside our own. */
#include "scenarios/published.h"
#include "studies/averaging.h"

#include <math.h>
#include <string.h>

/* One figure. NaN: unknown. */
struct golden_figure {
    const struct hth_pure_opts *of;
    const char *what; /* "rounds to 1e-9" */
    double published, measured, se, expected;
    /* ours agrees with the published one; the published one with the expectation */
    bool agrees, published_agrees;
};

struct golden {
    bool json;
    size_t figures, agree, theirs, bad;
};

static void print_number(double value)
{
    if (isfinite(value))
        printf(" %10.4g", value);
    else
        printf(" %10s", "");
}

static void print_json_number(const char *name, double value)
{
    if (isfinite(value))
        printf(",\"%s\":%.9g", name, value);
    else
        printf(",\"%s\":null", name);
}

static void tell(struct golden *g, const struct golden_figure *f)
{
    char grid[HTH_AVG_SHAPE_TEXT_MAX], label[HTH_AVG_SHAPE_TEXT_MAX + 16];
    hth_avg_shape_text(&f->of->shape, grid);
    const char *method = hth_pure_method_name(f->of->method);
    g->figures++;
    g->agree += f->agrees;
    g->theirs += !f->agrees && !f->published_agrees;
    g->bad += !f->agrees && f->published_agrees;
    if (g->json) {
        printf("{\"method\":\"%s\",\"peers\":%u,\"grid\":\"%s\",\"p_fail\":%.9g,\"figure\":\"%s\"",
               method, f->of->peers, grid, f->of->p_fail, f->what);
        print_json_number("published", f->published);
        print_json_number("measured", f->measured);
        print_json_number("standard_error", f->se);
        print_json_number("expected", f->expected);
        printf(",\"agrees\":%s,\"published_agrees\":%s}\n", f->agrees ? "true" : "false",
               f->published_agrees ? "true" : "false");
        return;
    }
    snprintf(label, sizeof(label), "%u in %s", f->of->peers, grid);
    printf("%-10s %-15s %6g %-15s", method, label, f->of->p_fail, f->what);
    print_number(f->published);
    print_number(f->measured);
    print_number(f->se);
    print_number(f->expected);
    printf("  %s\n", f->agrees             ? "yes"
                     : f->published_agrees ? "NO"
                                           : "no: the published one is off the expectation");
}

/* ---- figures ------------------------------------------------------------------------------- */

static void tell_rounds(struct golden *g, const struct hth_published *p,
                        const struct hth_avg_study *s)
{
    static const char *const names[2] = {"rounds to 1e-4", "rounds to 1e-9"};
    for (int k = 1; k >= 0; k--) {
        size_t at = hth_avg_study_at(s, HTH_PURE_REACHED + k);
        double published = k == 0 ? p->to_1e4 : p->to_1e9;
        tell(g, &(struct golden_figure){.of = &s->opts.base,
                                        .what = names[k],
                                        .published = published,
                                        .measured = s->mean[at],
                                        .se = s->se[at],
                                        .expected = NAN,
                                        .agrees = fabs(s->mean[at] - published) <=
                                                  hth_published_rounds_off(p) + 1e-9,
                                        .published_agrees = true});
    }
}

static void tell_errors(struct golden *g, const struct hth_published *p,
                        const struct hth_avg_study *s)
{
    struct hth_pure_opts opts = hth_published_opts(p);
    double expected[HTH_PUBLISHED_ROUNDS];
    bool known = hth_pure_expected(&opts, expected) == HTH_OK;
    for (uint32_t t = 0; t < HTH_PUBLISHED_ROUNDS && p->mse[t] > 0; t++) {
        char what[32];
        snprintf(what, sizeof(what), "error, round %u", t + 1);
        double mse = hth_avg_study_mean(s, HTH_AVERAGE_MSE, t);
        tell(g,
             &(struct golden_figure){.of = &s->opts.base,
                                     .what = what,
                                     .published = p->mse[t],
                                     .measured = mse,
                                     .se = s->se[HTH_AVERAGE_MSE * (size_t)s->opts.base.rounds + t],
                                     .expected = known ? expected[t] : NAN,
                                     .agrees = hth_published_mse_agrees(t, p->mse[t], mse),
                                     .published_agrees = !known || hth_published_mse_agrees(
                                                                       t, p->mse[t], expected[t])});
    }
}

static void tell_allreduce(struct golden *g, const struct hth_avg_study *s)
{
    size_t at = hth_avg_study_at(s, HTH_PURE_REACHED_1E9);
    double sure = hth_pure_allreduce_rounds(&s->opts.base);
    tell(g, &(struct golden_figure){.of = &s->opts.base,
                                    .what = "rounds",
                                    .published = sure,
                                    .measured = s->mean[at],
                                    .se = s->se[at],
                                    .expected = sure,
                                    .agrees =
                                        hth_published_allreduce_agrees(&s->opts.base, s->mean[at]),
                                    .published_agrees = true});
}

static const struct hth_published *published_of(const struct hth_pure_opts *o)
{
    for (size_t i = 0; i < hth_published_count; i++) {
        const struct hth_published *p = &hth_published[i];
        if (p->method == o->method && p->peers == o->peers && p->p_fail == o->p_fail &&
            memcmp(&p->shape, &o->shape, sizeof(p->shape)) == 0)
            return p;
    }
    return NULL;
}

bool hth_avg_print_golden(const struct hth_avg_request *r)
{
    struct golden g = {.json = r->json};
    if (!g.json)
        printf("Published figures beside those of %llu seeds. Rounds may be off by 0.2 (means of "
               "10 runs, random and gossip: 0.4), the error of round 1 by 5 %%,\nlater ones by a "
               "factor 2, all-reduce by 15 %% of 1/(1-p)^N. expected: exact, where it can be "
               "computed (scenarios/pure.h)\n\n%-10s %-15s %6s %-15s %10s %10s %10s %10s  %s\n",
               (unsigned long long)r->studies[0].seeds, "method", "peers in grid", "p", "figure",
               "published", "measured", "+-", "expected", "agrees");
    for (size_t i = 0; i < r->count; i++) {
        const struct hth_avg_study *s = &r->studies[i];
        const struct hth_published *p = published_of(&s->opts.base);
        if (s->opts.base.method == HTH_PURE_ALLREDUCE)
            tell_allreduce(&g, s);
        if (p == NULL)
            continue;
        tell_rounds(&g, p, s);
        tell_errors(&g, p, s);
    }
    if (!g.json)
        printf("\n%s: %zu of %zu agree, %zu more are off the exact expectation themselves, %zu do "
               "not agree\n",
               g.bad == 0 ? "PASS" : "FAIL", g.agree, g.figures, g.theirs, g.bad);
    return g.bad == 0;
}
