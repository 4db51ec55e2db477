/* SPDX-License-Identifier: Apache-2.0 */
/* What a study lacks: runs that failed, and those that an interrupt left undone; see study_gaps.h.
 */
#include "studies/study_gaps.h"

#include "cli/cli.h"
#include "core/mem.h"
#include "studies/tools.h"

#include <math.h>

char *hth_study_point_name(const struct hth_study *s, const struct hth_study_point *p)
{
    char *text = hth_asprintf("%s: %s", p->part, p->series);
    for (size_t k = 0; k < s->param_count; k++) {
        if (!isfinite(p->param[k]))
            continue;
        char *longer = hth_asprintf("%s, %s %g", text, s->params[k].name, p->param[k]);
        hth_free(text);
        text = longer;
    }
    return text;
}

const char *hth_study_why(enum hth_err err)
{
    /* Nothing of a simulated run waits in real time. */
    return err == HTH_E_TIMEOUT ? "no progress within its limit of virtual time"
                                : hth_err_text(err);
}

/* "interrupted after 23 of 90 runs; shown are 2 of 5 seeds". Heap string. */
static char *interrupted_text(const struct hth_study_gaps *g)
{
    return g->seeds > 0
               ? hth_asprintf("interrupted after %llu of %llu runs; shown are %llu of %llu seeds",
                              (unsigned long long)g->runs, (unsigned long long)g->runs_asked,
                              (unsigned long long)g->seeds, (unsigned long long)g->seeds_asked)
               : hth_asprintf("interrupted after %llu of %llu runs; not even one of %llu seeds is "
                              "complete, and only points that were run are shown",
                              (unsigned long long)g->runs, (unsigned long long)g->runs_asked,
                              (unsigned long long)g->seeds_asked);
}

static void print_json(const struct hth_study *s)
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

void hth_study_print_gaps(const struct hth_study *s, bool json)
{
    const struct hth_study_gaps *g = s->gaps;
    if (g == NULL)
        return;
    if (json) {
        print_json(s);
        return;
    }
    for (size_t i = 0; i < g->failure_count; i++) {
        char *name = hth_study_point_name(s, g->failures[i].point);
        printf("FAILED %s, seed %llu: %s\n", name, (unsigned long long)g->failures[i].seed,
               hth_study_why(g->failures[i].err));
        hth_free(name);
    }
    if (g->interrupted) {
        char *text = interrupted_text(g);
        printf("PARTIAL: %s\n", text);
        hth_free(text);
    }
}

void hth_study_report_gaps(FILE *to, const struct hth_study *s)
{
    const struct hth_study_gaps *g = s->gaps;
    if (g == NULL)
        return;
    if (g->interrupted) {
        char *text = interrupted_text(g);
        fprintf(to, "<p><b>Partial: %s.</b></p>\n", text);
        hth_free(text);
    }
    if (g->failure_count == 0)
        return;
    fputs("<p><b>Runs that failed, and are in no number below:</b></p>\n<ul>\n", to);
    for (size_t i = 0; i < g->failure_count; i++) {
        char *name = hth_study_point_name(s, g->failures[i].point);
        fputs("<li>", to);
        hth_report_text(to, name);
        fprintf(to, ", seed %llu: ", (unsigned long long)g->failures[i].seed);
        hth_report_text(to, hth_study_why(g->failures[i].err));
        fputs("</li>\n", to);
        hth_free(name);
    }
    fputs("</ul>\n", to);
}

void hth_study_config_gaps(FILE *to, const struct hth_study *s)
{
    const struct hth_study_gaps *g = s->gaps;
    if (g != NULL && g->interrupted)
        fprintf(to, "\"interrupted\":{\"runs\":%llu,\"runs_asked\":%llu,\"seeds_asked\":%llu},\n",
                (unsigned long long)g->runs, (unsigned long long)g->runs_asked,
                (unsigned long long)g->seeds_asked);
}

enum hth_err hth_study_write_gaps(const struct hth_study *s, const struct hth_study_flags *flags)
{
    const struct hth_study_gaps *g = s->gaps;
    if (g == NULL || g->failure_count == 0)
        return HTH_OK;
    FILE *f = hth_sim_create(flags->out, "failures.csv");
    if (f == NULL)
        return HTH_E_IO;
    fputs("part,series", f);
    for (size_t k = 0; k < s->param_count; k++)
        fprintf(f, ",%s", s->params[k].name);
    fputs(",seed,reason\n", f);
    for (size_t i = 0; i < g->failure_count; i++) {
        const struct hth_study_failure *one = &g->failures[i];
        fprintf(f, "%s,%s", one->point->part, one->point->series);
        for (size_t k = 0; k < s->param_count; k++)
            hth_study_csv_number(f, one->point->param[k]);
        fprintf(f, ",%llu,\"%s\"\n", (unsigned long long)one->seed, hth_study_why(one->err));
    }
    return hth_sim_finish(f, flags->out, "failures.csv");
}
