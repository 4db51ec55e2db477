/* SPDX-License-Identifier: Apache-2.0 */
/* averaging_print.c: tables and JSON of `hearth sim averaging`; see averaging.h. */
#include "core/mem.h"
#include "studies/averaging.h"
#include "studies/tools.h"

#include <math.h>

static double mean_at(const struct hth_avg_study *s, int what)
{
    return s->mean[hth_avg_study_at(s, what)];
}

static double se_at(const struct hth_avg_study *s, int what)
{
    return s->se[hth_avg_study_at(s, what)];
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_targets(const char *name, double to_1e4, double to_1e9)
{
    printf(",\"%s\":{", name);
    hth_sim_json_number(stdout, "1e-4", to_1e4);
    putchar(',');
    hth_sim_json_number(stdout, "1e-9", to_1e9);
    putchar('}');
}

static void json_lists(const struct hth_avg_study *s)
{
    for (int m = 0; m < (int)s->lists; m++) {
        const char *name = hth_avg_metric_name((enum hth_average_metric)m);
        size_t at = (size_t)m * s->opts.base.rounds;
        char with_se[32];
        putchar(',');
        hth_sim_json_list(stdout, name, s->mean + at, s->opts.base.rounds);
        if (m == HTH_AVERAGE_VECTORS)
            continue;
        snprintf(with_se, sizeof(with_se), "%s_se", name);
        putchar(',');
        hth_sim_json_list(stdout, with_se, s->se + at, s->opts.base.rounds);
    }
}

static void json_world(const struct hth_average_opts *o)
{
    printf(",\"dim\":%u,", o->dim);
    hth_sim_json_number(stdout, "latency_ms", (double)o->link.latency_us / HTH_US_PER_MS);
    putchar(',');
    hth_sim_json_number(stdout, "jitter_ms", (double)o->link.jitter_us / HTH_US_PER_MS);
    putchar(',');
    hth_sim_json_number(stdout, "loss", o->link.loss);
    putchar(',');
    hth_sim_json_number(stdout, "mbit", o->line_bytes_per_s * 8 / 1e6);
    putchar(',');
    hth_sim_json_number(stdout, "pause_s", (double)o->pause_us / HTH_US_PER_S);
    putchar(',');
    hth_sim_json_number(stdout, "mend_s", (double)o->heal_us / HTH_US_PER_S);
}

void hth_avg_print_json(const struct hth_avg_study *s)
{
    const struct hth_pure_opts *o = &s->opts.base;
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    printf("{\"model\":\"%s\",\"method\":\"%s\",\"peers\":%u,\"grid\":\"%s\",\"failure\":\"%s\",",
           hth_avg_study_model(s), hth_avg_study_method(s), o->peers,
           hth_avg_shape_text(&o->shape, grid), hth_pure_failure_name(o->failure));
    hth_sim_json_number(stdout, "p_fail", o->p_fail);
    printf(",\"hold\":%u,\"seeds\":%llu,\"seed\":%llu,\"cap\":%u", o->hold,
           (unsigned long long)s->seeds, (unsigned long long)o->seed, o->cap);
    if (s->protocol)
        json_world(&s->opts);
    json_lists(s);
    json_targets("rounds_to", mean_at(s, HTH_PURE_REACHED), mean_at(s, HTH_PURE_REACHED_1E9));
    json_targets("rounds_to_se", se_at(s, HTH_PURE_REACHED), se_at(s, HTH_PURE_REACHED_1E9));
    json_targets("unreached", mean_at(s, HTH_PURE_UNREACHED), mean_at(s, HTH_PURE_UNREACHED_1E9));
    if (o->method == HTH_PURE_ALLREDUCE) {
        putchar(',');
        hth_sim_json_number(stdout, "exact", hth_pure_allreduce_rounds(o));
    }
    puts("}");
}

/* ---- by round ------------------------------------------------------------------------------ */

static const char *struck_words(enum hth_pure_failure failure)
{
    static const char *const words[] = {"absent from a round", "crashing in a round",
                                        "slow in a round", "partitioned in a round"};
    return words[failure];
}

/* Return a dash where one seed gives no standard error. */
static const char *se_text(double se, char out[24])
{
    if (isfinite(se))
        snprintf(out, 24, "%.2g", se);
    else
        snprintf(out, 24, "-");
    return out;
}

static void print_rounds(const struct hth_avg_study *s)
{
    const uint32_t n = s->opts.base.rounds;
    char mse_se[24], variance_se[24];
    printf("%8s %12s %10s %12s %10s %13s", "round", "error", "s.e.", "variance", "s.e.",
           "vectors sent");
    if (s->protocol)
        printf(" %9s %12s %9s %9s", "seconds", "KB received", "success", "members");
    putchar('\n');
    for (uint32_t t = 0; t < n; t++) {
        printf("%8u %12.3g %10s %12.3g %10s %13.3f", t + 1, s->mean[t], se_text(s->se[t], mse_se),
               s->mean[n + t], se_text(s->se[n + t], variance_se), s->mean[2 * n + t]);
        if (s->protocol)
            printf(" %9.3f %12.2f %9.4f %9.2f", hth_avg_study_mean(s, HTH_AVERAGE_SECONDS, t),
                   hth_avg_study_mean(s, HTH_AVERAGE_BYTES, t) / 1000,
                   hth_avg_study_mean(s, HTH_AVERAGE_SUCCESS, t),
                   hth_avg_study_mean(s, HTH_AVERAGE_MEMBERS, t));
        putchar('\n');
    }
}

void hth_avg_print_curves(const struct hth_avg_study *s)
{
    const struct hth_pure_opts *o = &s->opts.base;
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    printf("%s%s: %u peers in %s, %g %% %s, %llu %s\n", hth_avg_study_method(s),
           s->protocol ? " as a protocol" : "", o->peers, hth_avg_shape_text(&o->shape, grid),
           o->p_fail * 100, struck_words(o->failure), (unsigned long long)s->seeds,
           s->seeds == 1 ? "seed" : "seeds");
    print_rounds(s);
    for (int k = 0; k < 2; k++) {
        double lost = mean_at(s, HTH_PURE_UNREACHED + k);
        printf("rounds to a variance of %s: %.2f", k == 0 ? "1e-4" : "1e-9",
               mean_at(s, HTH_PURE_REACHED + k));
        if (s->seeds > 1)
            printf(" +- %.2f", se_at(s, HTH_PURE_REACHED + k));
        if (lost > 0)
            printf(" (%.4g %% did not reach it in %u)", lost * 100, o->cap);
        putchar('\n');
    }
}

/* ---- tables -------------------------------------------------------------------------------- */

/* "8.31+-.04 (3.65)" */
static void print_cell(const struct hth_avg_study *s)
{
    char text[48];
    double to = mean_at(s, HTH_PURE_REACHED_1E9);
    if (to >= 1000)
        snprintf(text, sizeof(text), "%.0f", to);
    else if (s->seeds == 1)
        snprintf(text, sizeof(text), "%.2f (%.2f)", to, mean_at(s, HTH_PURE_REACHED));
    else
        snprintf(text, sizeof(text), "%.2f+-%.2f (%.2f)", to, se_at(s, HTH_PURE_REACHED_1E9),
                 mean_at(s, HTH_PURE_REACHED));
    printf(" %20s", text);
}

static void print_population(const struct hth_pure_opts *o)
{
    char grid[HTH_AVG_SHAPE_TEXT_MAX], label[HTH_AVG_SHAPE_TEXT_MAX + 16];
    snprintf(label, sizeof(label), "%u in %s", o->peers, hth_avg_shape_text(&o->shape, grid));
    printf("\n%-15s %6g", label, o->p_fail);
}

void hth_avg_print_table(const struct hth_avg_request *r)
{
    const struct hth_avg_study *first = &r->studies[0];
    printf("Rounds to a variance of 1e-9 +- standard error (and to 1e-4); %llu seeds; %u: not "
           "reached;\n1/(1-p)^N: the all-reduce by arithmetic\n\n%-15s %6s %10s",
           (unsigned long long)first->seeds, first->opts.base.cap, "peers in grid", "p",
           "1/(1-p)^N");
    for (int m = 0; m < HTH_PURE_METHODS; m++)
        printf(" %20s", hth_pure_method_name((enum hth_pure_method)m));
    for (size_t i = 0; i < r->count; i++) {
        const struct hth_pure_opts *o = &r->studies[i].opts.base;
        if (o->method == 0) {
            print_population(o);
            printf(" %10.4g", hth_pure_allreduce_rounds(o));
        }
        print_cell(&r->studies[i]);
    }
    putchar('\n');
}

/* Mean over the rounds of the list. */
static double over_rounds(const struct hth_avg_study *s, enum hth_average_metric m)
{
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t t = 0; t < s->opts.base.rounds; t++) {
        double x = hth_avg_study_mean(s, m, t);
        sum += isfinite(x) ? x : 0;
        count += isfinite(x);
    }
    return count > 0 ? sum / count : NAN;
}

void hth_avg_print_compare(const struct hth_avg_request *r)
{
    const struct hth_avg_study *pure = &r->studies[0], *real = &r->studies[1];
    printf("Rounds to a variance of 1e-9 +- standard error (and to 1e-4): the model (%llu "
           "seeds) and the production averager (%llu seeds);\nfailure: %s. Of the averager the "
           "means of a round: virtual seconds, KB received by a peer, success, members of a group"
           "\n\n%-15s %6s %20s %20s %8s %8s %8s %8s",
           (unsigned long long)pure->seeds, (unsigned long long)real->seeds,
           hth_pure_failure_name(pure->opts.base.failure), "peers in grid", "p", "pure", "protocol",
           "seconds", "KB", "success", "members");
    for (size_t i = 0; i + 1 < r->count; i += 2) {
        real = &r->studies[i + 1];
        print_population(&real->opts.base);
        print_cell(&r->studies[i]);
        print_cell(real);
        printf(" %8.3f %8.2f %8.4f %8.2f", over_rounds(real, HTH_AVERAGE_SECONDS),
               over_rounds(real, HTH_AVERAGE_BYTES) / 1000, over_rounds(real, HTH_AVERAGE_SUCCESS),
               over_rounds(real, HTH_AVERAGE_MEMBERS));
    }
    putchar('\n');
}
