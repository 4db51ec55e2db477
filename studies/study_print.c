/* SPDX-License-Identifier: Apache-2.0 */
/* study_print.c: a study's tables and JSON on standard output; see study_write.h. */
#include "core/mem.h"
#include "studies/study_write.h"
#include "studies/tools.h"

#include <math.h>
#include <string.h>

void hth_study_json_point(FILE *to, const struct hth_study *s, const struct hth_study_point *p)
{
    fprintf(to, "\"part\":\"%s\",\"series\":\"%s\"", p->part, p->series);
    for (size_t i = 0; i < s->param_count; i++) {
        fputc(',', to);
        hth_sim_json_number(to, s->params[i].name, p->param[i]);
    }
}

/* `against` NULL: the numbers themselves. */
static void print_json(const struct hth_study *s, const struct hth_study_flags *f,
                       const char *against, const struct hth_study_point *p,
                       const struct hth_study_mean *means)
{
    printf("{\"study\":\"%s\",", s->name);
    if (against != NULL) {
        fputs("\"against\":", stdout);
        hth_study_json_text(stdout, against);
        putchar(',');
    }
    hth_study_json_point(stdout, s, p);
    printf(",\"seed\":%llu,\"seeds\":%llu", (unsigned long long)f->seed,
           (unsigned long long)f->seeds);
    for (size_t m = 0; m < s->metric_count; m++) {
        char name[64];
        putchar(',');
        hth_sim_json_number(stdout, s->metrics[m].name, means[m].mean);
        putchar(',');
        snprintf(name, sizeof(name), "%s_se", s->metrics[m].name);
        hth_sim_json_number(stdout, name, means[m].se);
    }
    puts("}");
}

/* "  everywhere: delay_ms 100, experts 16" */
static void print_fixed(const struct hth_study *s, size_t first,
                        const struct hth_study_shown *shown)
{
    const char *before = "  everywhere:";
    for (size_t k = 0; k < s->param_count; k++) {
        if (!shown->fixed[k])
            continue;
        printf("%s %s %.*f", before, s->params[k].name, s->params[k].decimals,
               s->points[first].param[k]);
        before = ",";
    }
    if (before[0] == ',')
        putchar('\n');
}

static void print_head(const struct hth_study *s, const char *part,
                       const struct hth_study_shown *shown)
{
    printf("%-26s", part);
    for (size_t k = 0; k < s->param_count; k++)
        if (shown->param[k])
            printf(" %12s", s->params[k].name);
    for (size_t k = 0; k < s->metric_count; k++)
        if (shown->metric[k])
            printf(" %18s", s->metrics[k].name);
    putchar('\n');
}

static void print_row(const struct hth_study *s, const struct hth_study_point *p,
                      const struct hth_study_mean *means, const struct hth_study_shown *shown)
{
    printf("  %-24s", p->series);
    for (size_t i = 0; i < s->param_count; i++)
        if (shown->param[i] && isfinite(p->param[i]))
            printf(" %12.*f", s->params[i].decimals, p->param[i]);
        else if (shown->param[i])
            printf(" %12s", "-");
    for (size_t m = 0; m < s->metric_count; m++) {
        char text[64] = "-";
        if (!shown->metric[m])
            continue;
        int decimals = s->metrics[m].decimals;
        if (means[m].count > 1)
            snprintf(text, sizeof(text), "%.*f+-%.*f", decimals, means[m].mean, decimals,
                     means[m].half);
        else if (means[m].count == 1)
            snprintf(text, sizeof(text), "%.*f", decimals, means[m].mean);
        printf(" %18s", text);
    }
    putchar('\n');
}

static void print_tables(const struct hth_study *s, const struct hth_study_mean *means)
{
    for (size_t first = 0; first < s->point_count; first++) {
        struct hth_study_shown shown;
        if (!hth_study_begins_part(s, first) || !hth_study_has_table(s, means, first))
            continue;
        hth_study_find_shown(s, means, first, &shown);
        print_head(s, s->points[first].part, &shown);
        for (size_t i = first; i < s->point_count; i++)
            if (strcmp(s->points[i].part, s->points[first].part) == 0 &&
                hth_study_has_metric(s, means + i * s->metric_count))
                print_row(s, &s->points[i], means + i * s->metric_count, &shown);
        print_fixed(s, first, &shown);
    }
}

static void print_all(const struct hth_study *s, const struct hth_study_flags *f,
                      const struct hth_study_mean *means, const struct hth_study_mean *differences)
{
    if (f->seeds == 1)
        printf("%s; seed %llu\n", s->title, (unsigned long long)f->seed);
    else
        printf("%s; %llu seeds from %llu; +- half of a 95 %% interval\n", s->title,
               (unsigned long long)f->seeds, (unsigned long long)f->seed);
    print_tables(s, means);
    if (differences == NULL)
        return;
    printf("\nDifferences, seed by seed, against %s\n", f->against);
    print_tables(s, differences);
}

static void print_objects(const struct hth_study *s, const struct hth_study_flags *f,
                          const struct hth_study_mean *means,
                          const struct hth_study_mean *differences)
{
    for (size_t i = 0; i < s->point_count; i++)
        print_json(s, f, NULL, &s->points[i], means + i * s->metric_count);
    for (size_t i = 0; differences != NULL && i < s->point_count; i++)
        if (hth_study_has_metric(s, differences + i * s->metric_count))
            print_json(s, f, f->against, &s->points[i], differences + i * s->metric_count);
}

static void print_gaps_json(const struct hth_study *s)
{
    const struct hth_study_gaps *g = s->gaps;
    for (size_t i = 0; i < g->failure_count; i++) {
        const struct hth_study_failure *f = &g->failures[i];
        printf("{\"study\":\"%s\",", s->name);
        hth_study_json_point(stdout, s, f->point);
        printf(",\"seed\":%llu,\"error\":", (unsigned long long)f->seed);
        hth_study_json_text(stdout, hth_study_why(f->err));
        puts("}");
    }
    if (g->interrupted)
        printf("{\"study\":\"%s\",\"interrupted\":true,\"runs\":%llu,\"runs_asked\":%llu,"
               "\"seeds\":%llu,\"seeds_asked\":%llu}\n",
               s->name, (unsigned long long)g->runs, (unsigned long long)g->runs_asked,
               (unsigned long long)g->seeds, (unsigned long long)g->seeds_asked);
}

static void print_gaps(const struct hth_study *s, bool json)
{
    const struct hth_study_gaps *g = s->gaps;
    if (g == NULL)
        return;
    if (json) {
        print_gaps_json(s);
        return;
    }
    for (size_t i = 0; i < g->failure_count; i++) {
        char *name = hth_study_point_name(s, g->failures[i].point);
        printf("FAILED %s, seed %llu: %s\n", name, (unsigned long long)g->failures[i].seed,
               hth_study_why(g->failures[i].err));
        hth_free(name);
    }
    if (g->interrupted) {
        char *text = hth_study_interrupted_text(g);
        printf("PARTIAL: %s\n", text);
        hth_free(text);
    }
}

static void print_verdict(const struct hth_study *s, const struct hth_study_flags *f,
                          const char *verdict)
{
    if (!f->json) {
        printf("\n%s\n", verdict);
        return;
    }
    printf("{\"study\":\"%s\",\"verdict\":", s->name);
    hth_study_json_text(stdout, verdict);
    puts("}");
}

void hth_study_print(const struct hth_study *s, const struct hth_study_flags *f,
                     const struct hth_study_mean *means, const struct hth_study_mean *differences)
{
    char *verdict = s->verdict != NULL ? s->verdict(s->arg, s, means) : NULL;
    if (f->json)
        print_objects(s, f, means, differences);
    else
        print_all(s, f, means, differences);
    print_gaps(s, f->json);
    if (verdict != NULL)
        print_verdict(s, f, verdict);
    hth_free(verdict);
}
