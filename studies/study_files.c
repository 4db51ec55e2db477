/* SPDX-License-Identifier: Apache-2.0 */
/*
 * study_files.c: files of a study: config.json, metrics.csv, runs.csv, the picture's script,
 * report.html; see study_write.h.
 */
#include "cli/cli.h"
#include "core/mem.h"
#include "studies/report.h"
#include "studies/study_write.h"
#include "studies/tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SERIES_MAX   24
#define PANEL_WIDTH  700 /* pixels */
#define PANEL_HEIGHT 440
#define WHOLE        10    /* a whole number up to this gets a tick for each value */
#define MARK         0.08  /* least distance of two ticks, as a share of a logarithmic axis */
#define ASIDE        0.008 /* shift between series, as a share of the axis */

static const char *const colours[] = {"#c0392b", "#2980b9", "#16a085", "#8e44ad",
                                      "#d35400", "#7f8c8d", "#2c3e50", "#b8860b"};
static const int marks[] = {7, 5, 9, 13, 11, 6, 4, 8};

/* ---- data ---------------------------------------------------------------------------------- */

void hth_study_json_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (const char *c = text; *c != '\0'; c++)
        if (*c == '"' || *c == '\\')
            fprintf(to, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            fprintf(to, "\\u%04x", *c);
        else
            fputc(*c, to);
    fputc('"', to);
}

void hth_study_config_begin(FILE *to, const char *study, const char *command)
{
    fprintf(to, "{\n\"study\":\"%s\",\"version\":\"%s\",\"build\":\"%s\",\n\"command\":", study,
            HTH_VERSION, HTH_BUILD);
    hth_study_json_text(to, command);
}

static void write_sources(FILE *f, const struct hth_study *s)
{
    if (s->sources == NULL)
        return;
    for (const char *const *at = s->sources; *at != NULL; at += 2) {
        fputs(at == s->sources ? "\"sources\":[\n{\"path\":" : ",\n{\"path\":", f);
        hth_study_json_text(f, at[0]);
        fputs(",\"text\":", f);
        hth_study_json_text(f, at[1]);
        fputc('}', f);
    }
    fputs("],\n", f);
}

static void config_gaps(FILE *to, const struct hth_study *s)
{
    const struct hth_study_gaps *g = s->gaps;
    if (g != NULL && g->interrupted)
        fprintf(to, "\"interrupted\":{\"runs\":%llu,\"runs_asked\":%llu,\"seeds_asked\":%llu},\n",
                (unsigned long long)g->runs, (unsigned long long)g->runs_asked,
                (unsigned long long)g->seeds_asked);
}

static enum hth_err write_config(const struct hth_study *s, const struct hth_study_flags *flags)
{
    FILE *f = hth_sim_create(flags->out, "config.json");
    if (f == NULL)
        return HTH_E_IO;
    hth_study_config_begin(f, s->name, flags->command);
    fprintf(f, ",\n\"seed\":%llu,\"seeds\":%llu,\n", (unsigned long long)flags->seed,
            (unsigned long long)flags->seeds);
    config_gaps(f, s);
    write_sources(f, s);
    fputs("\"points\":[\n", f);
    for (size_t i = 0; i < s->point_count; i++) {
        fputc('{', f);
        hth_study_json_point(f, s, &s->points[i]);
        fprintf(f, "}%s\n", i + 1 < s->point_count ? "," : "");
    }
    fputs("]}\n", f);
    return hth_sim_finish(f, flags->out, "config.json");
}

void hth_study_csv_number(FILE *to, double value)
{
    if (isfinite(value))
        fprintf(to, ",%.9g", value);
    else
        fputc(',', to);
}

/* Write the means. `all`: also points without a measurement. */
static enum hth_err write_means(const struct hth_study *s, const struct hth_study_flags *flags,
                                const char *name, const struct hth_study_mean *means, bool all)
{
    FILE *f = hth_sim_create(flags->out, name);
    if (f == NULL)
        return HTH_E_IO;
    fputs("part,series", f);
    for (size_t k = 0; k < s->param_count; k++)
        fprintf(f, ",%s", s->params[k].name);
    for (size_t k = 0; k < s->metric_count; k++)
        fprintf(f, ",%s,%s_se,%s_ci95,%s_seeds", s->metrics[k].name, s->metrics[k].name,
                s->metrics[k].name, s->metrics[k].name);
    for (size_t i = 0; i < s->point_count; i++) {
        if (!all && !hth_study_has_metric(s, means + i * s->metric_count))
            continue;
        fprintf(f, "\n%s,%s", s->points[i].part, s->points[i].series);
        for (size_t k = 0; k < s->param_count; k++)
            hth_study_csv_number(f, s->points[i].param[k]);
        for (size_t k = 0; k < s->metric_count; k++) {
            const struct hth_study_mean *m = &means[i * s->metric_count + k];
            hth_study_csv_number(f, m->mean);
            hth_study_csv_number(f, m->se);
            hth_study_csv_number(f, m->half);
            fprintf(f, ",%llu", (unsigned long long)m->count);
        }
    }
    fputc('\n', f);
    return hth_sim_finish(f, flags->out, name);
}

static bool is_measured(const double *values, size_t count)
{
    size_t k = 0;
    while (k < count && !isfinite(values[k]))
        k++;
    return k < count;
}

enum hth_err hth_study_write_runs(const struct hth_study *s, const struct hth_study_flags *flags,
                                  const double *values)
{
    FILE *f = hth_sim_create(flags->out, "runs.csv");
    if (f == NULL)
        return HTH_E_IO;
    fputs("part,series", f);
    for (size_t k = 0; k < s->param_count; k++)
        fprintf(f, ",%s", s->params[k].name);
    fputs(",seed", f);
    for (size_t k = 0; k < s->metric_count; k++)
        fprintf(f, ",%s", s->metrics[k].name);
    fputc('\n', f);
    for (size_t i = 0; i < s->point_count * flags->seeds; i++) {
        const struct hth_study_point *p = &s->points[i / flags->seeds];
        const double *v = values + i * s->metric_count;
        if (!hth_study_is_chosen(s, p, 1, flags) || !is_measured(v, s->metric_count))
            continue;
        fprintf(f, "%s,%s", p->part, p->series);
        for (size_t k = 0; k < s->param_count; k++)
            hth_study_csv_number(f, p->param[k]);
        fprintf(f, ",%llu", (unsigned long long)(flags->seed + i % flags->seeds));
        for (size_t k = 0; k < s->metric_count; k++)
            hth_study_csv_number(f, v[k]);
        fputc('\n', f);
    }
    return hth_sim_finish(f, flags->out, "runs.csv");
}

/* ---- the picture --------------------------------------------------------------------------- */

/* The series of a part in order of appearance. Each has one colour in all panels. */
struct series {
    const char *name[SERIES_MAX];
    size_t count;
};

static void find_series(const struct hth_study *s, const char *part, struct series *out)
{
    out->count = 0;
    for (size_t i = 0; i < s->point_count && out->count < SERIES_MAX; i++) {
        size_t k = 0;
        if (strcmp(s->points[i].part, part) != 0)
            continue;
        while (k < out->count && strcmp(out->name[k], s->points[i].series) != 0)
            k++;
        if (k == out->count)
            out->name[out->count++] = s->points[i].series;
    }
}

/* Whether a mean has too few seeds. A curve ends earlier with one seed than with another: where
 * less than half of the seeds of its best point are left, the mean would be of another
 * population. */
static bool lacks_seeds(const struct hth_study *s, const struct hth_study_panel *p, size_t point,
                        const struct hth_study_mean *means)
{
    uint64_t most = 0;
    for (size_t i = 0; i < s->point_count; i++)
        if (strcmp(s->points[i].part, p->part) == 0 &&
            strcmp(s->points[i].series, s->points[point].series) == 0)
            most = HTH_MAX(most, means[i * s->metric_count + p->y].count);
    return 2 * means[point * s->metric_count + p->y].count < most;
}

/* Get the mean and interval of a point; false where the panel cannot show them. */
static bool place(const struct hth_study *s, const struct hth_study_panel *p, size_t point,
                  const struct hth_study_mean *means, double at[4])
{
    const struct hth_study_mean *m = &means[point * s->metric_count + p->y];
    double half = isfinite(m->half) ? m->half : 0;
    if (strcmp(s->points[point].part, p->part) != 0 || !isfinite(m->mean) ||
        !isfinite(s->points[point].param[p->x]) || (p->log_y && m->mean <= 0) ||
        lacks_seeds(s, p, point, means))
        return false;
    at[0] = s->points[point].param[p->x];
    at[1] = m->mean;
    at[2] = p->log_y && half >= m->mean ? m->mean / 10 : m->mean - half;
    at[3] = m->mean + half;
    return true;
}

/* A point's position, mean and interval, as a line for gnuplot. */
struct spot {
    double at[4];
};

static int by_place(const void *a, const void *b)
{
    const double *x = ((const struct spot *)a)->at, *y = ((const struct spot *)b)->at;
    for (int i = 0; i < 4; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* Write $d<panel>_<series>, from left to right: points that two parts share come in any order.
 * Returns whether it has any point. */
static bool write_block(FILE *f, const struct hth_study *s, const struct hth_study_mean *means,
                        size_t panel, const struct series *series, size_t k)
{
    struct spot *spots = hth_new_array(struct spot, s->point_count);
    size_t count = 0;
    for (size_t i = 0; i < s->point_count; i++)
        if (strcmp(s->points[i].series, series->name[k]) == 0 &&
            place(s, &s->panels[panel], i, means, spots[count].at))
            count++;
    qsort(spots, count, sizeof(*spots), by_place);
    if (count > 0)
        fprintf(f, "$d%zu_%zu << EOD\n", panel, k);
    for (size_t i = 0; i < count; i++)
        fprintf(f, "%.9g %.9g %.9g %.9g\n", spots[i].at[0], spots[i].at[1], spots[i].at[2],
                spots[i].at[3]);
    if (count > 0)
        fputs("EOD\n", f);
    hth_free(spots);
    return count > 0;
}

/* Write the ticks of a logarithmic x: the measured values, as many as can be read. */
static void write_marks(FILE *f, const struct hth_study *s, const struct hth_study_panel *p,
                        const struct hth_study_mean *means, const double x[2])
{
    struct spot *spots = hth_new_array(struct spot, s->point_count);
    double step = pow(x[1] / x[0], MARK), last = 0;
    size_t count = 0;
    for (size_t i = 0; i < s->point_count; i++)
        count += place(s, p, i, means, spots[count].at);
    qsort(spots, count, sizeof(*spots), by_place);
    for (size_t i = 0; i < count; i++) {
        double at = spots[i].at[0];
        if (last > 0 && at <= last * step)
            continue;
        fprintf(f, "set xtics %s ('%.5g' %.9g)\n", last > 0 ? "add" : "", at, at);
        last = at;
    }
    hth_free(spots);
}

/* The extent of a panel's y: the ends of the intervals, and the least and greatest mean. */
struct extent {
    double low, high, least, most;
};

static bool has_aim(const struct hth_study *s, const struct hth_study_panel *p)
{
    return s->within > 0 && p->y == s->aimed;
}

/* Write a range that just holds everything. A linear y begins at 0 unless a mean lies below it.
 * Shares and times are not negative, and shares not above 100 %, however wide an interval of two
 * seeds is. A logarithmic y within a factor of ten would have one tick or none, so it is linear. */
static void write_y_range(FILE *f, const struct hth_study *s, const struct hth_study_panel *p,
                          const struct extent *y)
{
    double pad = 0.06 * (y->high - y->low), low = y->low - pad, high = y->high + pad;
    if (has_aim(s, p)) {
        fprintf(f, "set yrange [%.9g:%.9g]\n", HTH_MIN(low, -1.2 * s->within),
                HTH_MAX(high, 1.2 * s->within));
        return;
    }
    if (p->log_y && y->high > 10 * y->low) {
        fprintf(f, "set logscale y\nset yrange [%.9g:%.9g]\n", y->low / 1.5, y->high * 1.5);
        return;
    }
    if (!p->zoom || y->high <= y->low) {
        low = y->least < 0 ? y->low : 0;
        high = y->high > 0 ? 1.08 * y->high : 1;
    }
    if (y->least >= 0)
        low = HTH_MAX(low, 0.0);
    if (y->most <= 100 && strstr(s->metrics[p->y].label, "(%)") != NULL)
        high = HTH_MIN(high, 100.0);
    fprintf(f, "set yrange [%.9g:%.9g]\n", low, high);
}

/* Write the axes. `x` receives the first and the last position. */
static void write_axes(FILE *f, const struct hth_study *s, const struct hth_study_panel *p,
                       const struct hth_study_mean *means, double x[2])
{
    struct extent y = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    double at[4];
    x[0] = INFINITY;
    x[1] = -INFINITY;
    fputs("unset logscale\nset xtics autofreq\nset format '%g'\n", f);
    for (size_t i = 0; i < s->point_count; i++) {
        if (!place(s, p, i, means, at))
            continue;
        x[0] = HTH_MIN(x[0], at[0]);
        x[1] = HTH_MAX(x[1], at[0]);
        y = (struct extent){HTH_MIN(y.low, at[2]), HTH_MAX(y.high, at[3]), HTH_MIN(y.least, at[1]),
                            HTH_MAX(y.most, at[1])};
    }
    if (!isfinite(x[0])) {
        fputs("set xrange [0:1]\nset yrange [0:1]\n", f);
        return;
    }
    if (!p->log_x && s->params[p->x].decimals == 0 && x[1] - x[0] <= WHOLE)
        fputs("set xtics 1\n", f);
    double pad = x[1] > x[0] ? 0.06 * (x[1] - x[0]) : 1;
    if (p->log_x) {
        write_marks(f, s, p, means, x);
        fprintf(f, "set logscale x\nset xrange [%.9g:%.9g]\n", x[0] / 1.25, x[1] * 1.25);
    } else {
        fprintf(f, "set xrange [%.9g:%.9g]\n", x[0] - pad, x[1] + pad);
    }
    write_y_range(f, s, p, &y);
}

/* Write gnuplot's expression for the position of series k. Series are shifted a little, with the
 * middle one at its value, so that intervals do not hide each other. */
static void write_place(FILE *f, const struct hth_study_panel *p, const double x[2], size_t k,
                        size_t count)
{
    double aside = ((double)k - 0.5 * (double)(count - 1)) * ASIDE;
    if (!(x[1] > x[0]))
        fputs("1", f);
    else if (p->log_x)
        fprintf(f, "($1*%.6g)", pow(x[1] / x[0], aside));
    else
        fprintf(f, "($1+%.6g)", aside * (x[1] - x[0]));
}

/* Write a panel's data and the commands that draw it. */
static void write_panel(FILE *f, const struct hth_study *s, const struct hth_study_mean *means,
                        const struct hth_study_panel *p, const struct series *series,
                        const bool *drawn)
{
    size_t panel = (size_t)(p - s->panels), count = 0, nth = 0;
    const char *separator = "plot ";
    double x[2];
    /* An empty line below the label makes gnuplot leave room before the key. */
    fprintf(f, "set title '%s'\nset xlabel '%s'.\"\\n \" offset 0,0.3\nset ylabel '%s'\n", p->title,
            s->params[p->x].label, s->metrics[p->y].label);
    write_axes(f, s, p, means, x);
    for (size_t k = 0; k < series->count; k++)
        count += drawn[k];
    for (size_t k = 0; k < series->count; k++) {
        if (!drawn[k])
            continue;
        fprintf(f, "%s$d%zu_%zu using ", separator, panel, k);
        write_place(f, p, x, nth++, count);
        fprintf(f, ":2:3:4 with yerrorlines pt %d ps 0.8 lw 1.6 lc rgb '%s' title '%s'",
                marks[k % HTH_ARRAY_LEN(marks)], colours[k % HTH_ARRAY_LEN(colours)],
                series->name[k]);
        separator = ", \\\n     ";
    }
    if (count == 0) /* no data: an empty frame */
        fputs("plot NaN notitle", f);
    if (has_aim(s, p))
        fprintf(f,
                ", 0 with lines lw 1 lc rgb '#555555' notitle, %.9g with lines dt 2 lw 1.6 lc rgb "
                "'#555555' title 'aim', -%.9g with lines dt 2 lw 1.6 lc rgb '#555555' notitle",
                s->within, s->within);
    fputc('\n', f);
}

static void write_seeds(FILE *f, const struct hth_study_flags *flags)
{
    unsigned long long first = flags->seed, last = flags->seed + flags->seeds - 1;
    if (first == last)
        fprintf(f, "seed %llu", first);
    else
        fprintf(f, "seeds %llu to %llu, 95 %% intervals", first, last);
}

/* Write the picture of a part: PART.png and PART.svg, drawn by one loop over terminals. */
static void write_picture(FILE *f, const struct hth_study *s, const struct hth_study_flags *flags,
                          const struct hth_study_mean *means, const char *part)
{
    bool *drawn = hth_new_array(bool, s->panel_count *SERIES_MAX);
    size_t panels = 0;
    struct series series;
    find_series(s, part, &series);
    for (size_t p = 0; p < s->panel_count; p++) {
        if (strcmp(s->panels[p].part, part) != 0)
            continue;
        panels++;
        for (size_t k = 0; k < series.count; k++)
            drawn[p * SERIES_MAX + k] = write_block(f, s, means, p, &series, k);
    }
    bool alone = strcmp(s->name, part) == 0;
    size_t columns = HTH_MIN(panels, 2), rows = (panels + 1) / 2;
    size_t width = columns * PANEL_WIDTH, height = rows * PANEL_HEIGHT + 30;
    fprintf(f,
            "do for [t = 1:2] {\n"
            "if (t == 1) { set terminal pngcairo noenhanced size %zu,%zu font 'DejaVu Sans,11'; "
            "set output '%s.png' }\n"
            "if (t == 2) { set terminal svg noenhanced size %zu,%zu font 'DejaVu Sans,11' "
            "background 'white'; set output '%s.svg' }\n"
            "set grid lt 1 lw 0.5 lc rgb '#cccccc'\nset key outside bottom center "
            "horizontal Left reverse samplen 1.5 width 1\n"
            "set multiplot layout %zu,%zu title \"%s%s%s; ",
            width, height, part, width, height, part, rows, columns, s->name, alone ? "" : ": ",
            alone ? "" : part);
    write_seeds(f, flags);
    fputs("\"\n", f);
    for (size_t p = 0; p < s->panel_count; p++)
        if (strcmp(s->panels[p].part, part) == 0)
            write_panel(f, s, means, &s->panels[p], &series, drawn + p * SERIES_MAX);
    fputs("unset multiplot\nunset output\n}\n", f);
    hth_free(drawn);
}

static bool has_picture(const struct hth_study *s, const char *part)
{
    for (size_t p = 0; p < s->panel_count; p++)
        if (strcmp(s->panels[p].part, part) == 0)
            return true;
    return false;
}

static enum hth_err write_script(const struct hth_study *s, const struct hth_study_flags *flags,
                                 const struct hth_study_mean *means)
{
    FILE *f = hth_sim_create(flags->out, "plot.gp");
    if (f == NULL)
        return HTH_E_IO;
    for (size_t i = 0; i < s->point_count; i++)
        if (hth_study_begins_part(s, i) && has_picture(s, s->points[i].part))
            write_picture(f, s, flags, means, s->points[i].part);
    return hth_sim_finish(f, flags->out, "plot.gp");
}

/* ---- the report ---------------------------------------------------------------------------- */

static void report_cell(FILE *f, const struct hth_study_column *c, const struct hth_study_mean *m)
{
    if (m->count == 0)
        fputs("<td>&ndash;</td>", f);
    else if (m->count == 1)
        fprintf(f, "<td>%.*f</td>", c->decimals, m->mean);
    else
        fprintf(f, "<td>%.*f &plusmn; %.*f</td>", c->decimals, m->mean, c->decimals, m->half);
}

static void report_row(FILE *f, const struct hth_study *s, const struct hth_study_point *p,
                       const struct hth_study_mean *means, const struct hth_study_shown *shown)
{
    fputs("<tr><th>", f);
    hth_report_text(f, p->series);
    fputs("</th>", f);
    for (size_t k = 0; k < s->param_count; k++)
        if (shown->param[k] && isfinite(p->param[k]))
            fprintf(f, "<td>%.*f</td>", s->params[k].decimals, p->param[k]);
        else if (shown->param[k])
            fputs("<td>&ndash;</td>", f);
    for (size_t k = 0; k < s->metric_count; k++)
        if (shown->metric[k])
            report_cell(f, &s->metrics[k], &means[k]);
    fputs("</tr>\n", f);
}

static void report_head(FILE *f, const struct hth_study_column *columns, const bool *shown,
                        size_t count)
{
    for (size_t k = 0; k < count; k++) {
        if (!shown[k])
            continue;
        fputs("<th>", f);
        hth_report_text(f, columns[k].label);
        fputs("</th>", f);
    }
}

/* Write the parameters that are the same in the whole part. */
static void report_fixed(FILE *f, const struct hth_study *s, size_t first,
                         const struct hth_study_shown *shown)
{
    const char *before = "<p>Everywhere: ";
    for (size_t k = 0; k < s->param_count; k++) {
        if (!shown->fixed[k])
            continue;
        fputs(before, f);
        hth_report_text(f, s->params[k].label);
        fprintf(f, ": %.*f", s->params[k].decimals, s->points[first].param[k]);
        before = "; ";
    }
    if (before[0] == ';')
        fputs(".</p>\n", f);
}

/* Write the table of the part that begins with that point, with the columns that it needs. */
static void report_table(FILE *f, const struct hth_study *s, const struct hth_study_mean *means,
                         size_t first)
{
    struct hth_study_shown shown;
    hth_study_find_shown(s, means, first, &shown);
    report_fixed(f, s, first, &shown);
    fputs("<table>\n<tr><th>series</th>", f);
    report_head(f, s->params, shown.param, s->param_count);
    report_head(f, s->metrics, shown.metric, s->metric_count);
    fputs("</tr>\n", f);
    for (size_t i = first; i < s->point_count; i++)
        if (strcmp(s->points[i].part, s->points[first].part) == 0 &&
            hth_study_has_metric(s, means + i * s->metric_count))
            report_row(f, s, &s->points[i], means + i * s->metric_count, &shown);
    fputs("</table>\n", f);
}

static void report_part(FILE *f, const struct hth_study *s, const struct hth_study_flags *flags,
                        const struct hth_study_mean *means,
                        const struct hth_study_mean *differences, size_t first)
{
    const char *part = s->points[first].part;
    fputs("<h2>", f);
    hth_report_text(f, part);
    fputs("</h2>\n", f);
    if (has_picture(s, part)) {
        char *svg = hth_asprintf("%s.svg", part);
        hth_report_picture(f, flags->out, svg);
        hth_free(svg);
    }
    report_table(f, s, means, first);
    if (differences == NULL || !hth_study_has_table(s, differences, first))
        return;
    fputs("<p>Differences, seed by seed, against ", f);
    hth_report_text(f, flags->against);
    fputs(":</p>\n", f);
    report_table(f, s, differences, first);
}

static void report_gaps(FILE *to, const struct hth_study *s)
{
    const struct hth_study_gaps *g = s->gaps;
    if (g == NULL)
        return;
    if (g->interrupted) {
        char *text = hth_study_interrupted_text(g);
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

static void report_verdict(FILE *f, const struct hth_study *s, const struct hth_study_mean *means)
{
    char *verdict = s->verdict != NULL ? s->verdict(s->arg, s, means) : NULL;
    if (verdict == NULL)
        return;
    fputs("<p><b>", f);
    hth_report_text(f, verdict);
    fputs("</b></p>\n", f);
    hth_free(verdict);
}

static enum hth_err write_report(const struct hth_study *s, const struct hth_study_flags *flags,
                                 const struct hth_study_mean *means,
                                 const struct hth_study_mean *differences)
{
    FILE *f = hth_report_begin(flags->out, s->title, flags->command, s->about);
    if (f == NULL)
        return HTH_E_IO;
    if (flags->seeds == 1)
        fprintf(f, "<p>Seed %llu.</p>\n", (unsigned long long)flags->seed);
    else
        fprintf(f, "<p>%llu seeds from %llu; &plusmn; is half of a 95 %% interval.</p>\n",
                (unsigned long long)flags->seeds, (unsigned long long)flags->seed);
    report_gaps(f, s);
    report_verdict(f, s, means);
    for (size_t i = 0; i < s->point_count; i++)
        if (hth_study_begins_part(s, i))
            report_part(f, s, flags, means, differences, i);
    return hth_report_end(f, flags->out);
}

static enum hth_err write_gaps(const struct hth_study *s, const struct hth_study_flags *flags)
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

enum hth_err hth_study_write(const struct hth_study *s, const struct hth_study_flags *flags,
                             const struct hth_study_mean *means,
                             const struct hth_study_mean *differences)
{
    HTH_TRY(hth_sim_forget(flags->out));
    HTH_TRY(write_config(s, flags));
    HTH_TRY(write_means(s, flags, "metrics.csv", means, true));
    if (differences != NULL)
        HTH_TRY(write_means(s, flags, "differences.csv", differences, false));
    HTH_TRY(write_gaps(s, flags));
    HTH_TRY(write_script(s, flags, means));
    hth_sim_draw(flags->out, "plot.gp"); /* the data are complete without a picture */
    return write_report(s, flags, means, differences);
}
