/* SPDX-License-Identifier: Apache-2.0 */
/* Files and pictures of `hearth sim averaging --out DIR`. */
#include "app/sim_averaging.h"

#include "app/cli.h"
#include "app/sim.h"
#include "app/study.h"

#include <math.h>
#include <string.h>

#define Z95   1.959964 /* half a 95 % interval in standard errors */
#define FLOOR 1e-18    /* an interval that reaches 0, on a logarithmic axis */

static const char *const colours[HTH_PURE_METHODS] = {"#7f8c8d", "#c0392b", "#d35400",
                                                      "#2980b9", "#16a085", "#8e44ad"};
static const char *const labels[HTH_PURE_METHODS] = {
    "all-reduce with restarts",    "gossip on a ring",
    "push-sum, exponential graph", "random groups",
    "Moshpit, paper (fixed)",      "Moshpit, hearth (turns)"};

static double low(double mean, double se)
{
    return HTH_MAX(mean - Z95 * se, FLOOR);
}

static double high(double mean, double se)
{
    return HTH_MAX(mean + Z95 * se, FLOOR);
}

static enum hth_err finish(FILE *file, const char *name)
{
    bool bad = ferror(file) != 0;
    if (fclose(file) == 0 && !bad)
        return HTH_OK;
    hth_cli_say_error("%s: writing failed", name);
    return HTH_E_IO;
}

/* ---- data ---------------------------------------------------------------------------------- */

static enum hth_err write_config(const char *dir, bool table, const struct hth_avg_study *s,
                                 size_t count)
{
    FILE *f = hth_sim_create(dir, "config.json");
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    if (f == NULL)
        return HTH_E_IO;
    fprintf(f, "{\n\"study\":\"averaging\",\"model\":\"pure\",\"version\":\"%s\",\"table\":%s,\n",
            HTH_VERSION, table ? "true" : "false");
    fprintf(f,
            "\"seed\":%llu,\"seeds\":%llu,\"rounds\":%u,\"cap\":%u,\"columns\":%u,\n\"runs\":[\n",
            (unsigned long long)s->opts.seed, (unsigned long long)s->seeds, s->opts.rounds,
            s->opts.cap, HTH_PURE_COLUMNS);
    for (size_t i = 0; i < count; i++)
        fprintf(f, "{\"method\":\"%s\",\"peers\":%u,\"grid\":\"%s\",\"p_fail\":%.9g}%s\n",
                hth_pure_method_name(s[i].opts.method), s[i].opts.peers,
                hth_avg_shape_text(&s[i].opts.shape, grid), s[i].opts.p_fail,
                i + 1 < count ? "," : "");
    fputs("]}\n", f);
    return finish(f, "config.json");
}

/* "moshpit,1024,32x32,0.005," */
static void write_key(FILE *f, const struct hth_avg_study *s)
{
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    fprintf(f, "%s,%u,%s,%.9g,", hth_pure_method_name(s->opts.method), s->opts.peers,
            hth_avg_shape_text(&s->opts.shape, grid), s->opts.p_fail);
}

static enum hth_err write_metrics(const char *dir, const struct hth_avg_study *s, size_t count)
{
    FILE *f = hth_sim_create(dir, "metrics.csv");
    if (f == NULL)
        return HTH_E_IO;
    fputs("method,peers,grid,p_fail,round,mse,mse_se,variance,variance_se,vectors_sent\n", f);
    for (size_t i = 0; i < count; i++)
        for (uint32_t t = 0, n = s[i].opts.rounds; t < n; t++) {
            write_key(f, &s[i]);
            fprintf(f, "%u,%.9g,%.9g,%.9g,%.9g,%.9g\n", t + 1, s[i].mean[t], s[i].se[t],
                    s[i].mean[n + t], s[i].se[n + t], s[i].mean[2 * n + t]);
        }
    return finish(f, "metrics.csv");
}

static enum hth_err write_rounds(const char *dir, const struct hth_avg_study *s, size_t count)
{
    static const char *const names[2] = {"1e-4", "1e-9"};
    FILE *f = hth_sim_create(dir, "rounds.csv");
    if (f == NULL)
        return HTH_E_IO;
    fputs("method,peers,grid,p_fail,variance,rounds,rounds_se,unreached\n", f);
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < 2; k++) {
            size_t at = hth_pure_at(&s[i].opts, HTH_PURE_REACHED + k);
            write_key(f, &s[i]);
            fprintf(f, "%s,%.9g,%.9g,%.9g\n", names[k], s[i].mean[at], s[i].se[at],
                    s[i].mean[hth_pure_at(&s[i].opts, HTH_PURE_UNREACHED + k)]);
        }
    return finish(f, "rounds.csv");
}

/* ---- pictures ------------------------------------------------------------------------------ */

/* Both formats in one script: the plot stands in a loop over terminals. */
static void write_terminals(FILE *f, const char *name, int width, int height)
{
    fprintf(f,
            "do for [t = 1:2] {\n"
            "if (t == 1) { set terminal pngcairo size %d,%d font 'DejaVu Sans,11'; "
            "set output '%s.png' }\n"
            "if (t == 2) { set terminal svg size %d,%d font 'DejaVu Sans,11' background 'white'; "
            "set output '%s.svg' }\n",
            width, height, name, width, height, name);
}

/* By method: round, vectors sent so far, error and its interval. */
static void write_curve_data(FILE *f, const struct hth_avg_study *s, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double sent = 0;
        fprintf(f, "$%s << EOD\n", hth_pure_method_name(s[i].opts.method));
        for (uint32_t t = 0, n = s[i].opts.rounds; t < n; t++) {
            sent += s[i].mean[2 * n + t];
            fprintf(f, "%u %.9g %.9g %.9g %.9g\n", t + 1, sent, HTH_MAX(s[i].mean[t], FLOOR),
                    low(s[i].mean[t], s[i].se[t]), high(s[i].mean[t], s[i].se[t]));
        }
        fputs("EOD\n", f);
    }
}

/* All methods over column `x` of their data. */
static void write_curve_plot(FILE *f, const struct hth_avg_study *s, size_t count, int x)
{
    fputs("plot ", f);
    for (size_t i = 0; i < count; i++) {
        enum hth_pure_method m = s[i].opts.method;
        const char *name = hth_pure_method_name(m);
        fprintf(
            f,
            "$%s using %d:4:5 with filledcurves fs transparent solid 0.2 noborder lc rgb '%s' "
            "notitle, \\\n"
            "     $%s using %d:3 with linespoints pt 7 ps 0.5 lw 2 lc rgb '%s' title '%s', \\\n",
            name, x, colours[m], name, x, colours[m], labels[m]);
    }
    fputs("     NaN with filledcurves fs solid 0.3 lc rgb '#888888' title '95 % interval'\n", f);
}

static void write_curves(FILE *f, const struct hth_avg_study *s, size_t count)
{
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    const struct hth_pure_opts *o = &s->opts;
    write_curve_data(f, s, count);
    fputs("set logscale y\nset format y '10^{%L}'\nset yrange [1e-16:2]\n"
          "set grid lt 1 lw 0.5 lc rgb '#cccccc'\n",
          f);
    write_terminals(f, "averaging", 1200, 560);
    fprintf(f,
            "set multiplot layout 1,2 margins 0.08,0.98,0.27,0.90 spacing 0.06,0.1 title \"%u "
            "peers in %s, each absent from a round with "
            "probability %g %%, %llu seeds\"\n"
            "set ylabel 'mean squared distance to the true mean (start: 1)'\n"
            "set xlabel 'rounds'\nset xrange [1:%u]\nset key off\n",
            o->peers, hth_avg_shape_text(&o->shape, grid), o->p_fail * 100,
            (unsigned long long)s->seeds, HTH_MAX(o->rounds, 2));
    write_curve_plot(f, s, count, 1);
    fputs("unset ylabel\nset xlabel 'vectors sent by a peer until then'\nset xrange [0:*]\n"
          "set key at screen 0.5,0.08 center center vertical maxrows 3\n",
          f);
    write_curve_plot(f, s, count, 2);
    fputs("unset multiplot\n}\n", f);
}

/* One block of data for each panel and method: place on the axis, rounds, interval. */
static size_t write_blocks(FILE *f, const struct hth_avg_study *s, size_t count)
{
    size_t panels = 0;
    for (size_t i = 0; i < count; i++) {
        const struct hth_avg_study *before = i > 0 ? &s[i - 1] : NULL;
        if (before == NULL || before->opts.peers != s[i].opts.peers ||
            !hth_avg_shape_eq(&before->opts.shape, &s[i].opts.shape))
            panels++;
    }
    size_t each = count / panels, points = each / HTH_PURE_METHODS;
    for (size_t n = 0; n < panels; n++)
        for (size_t m = 0; m < HTH_PURE_METHODS; m++) {
            fprintf(f, "$p%zu_%zu << EOD\n", n, m);
            for (size_t p = 0; p < points; p++) {
                const struct hth_avg_study *x = &s[n * each + p * HTH_PURE_METHODS + m];
                size_t at = hth_pure_at(&x->opts, HTH_PURE_REACHED_1E9);
                fprintf(f, "%zu %.9g %.9g %.9g\n", p, x->mean[at], low(x->mean[at], x->se[at]),
                        high(x->mean[at], x->se[at]));
            }
            fputs("EOD\n", f);
        }
    return panels;
}

static void write_panels(FILE *f, const struct hth_avg_study *s, size_t count)
{
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    size_t panels = write_blocks(f, s, count), each = count / panels;
    fprintf(
        f,
        "set logscale y\nset yrange [1:100]\nset xrange [-0.3:3.3]\n"
        "set xtics ('0' 0, '0.1' 1, '0.5' 2, '1' 3)\nset grid lt 1 lw 0.5 lc rgb '#cccccc'\n"
        "set xlabel 'absent from a round (%%)'\n"
        "set ylabel 'rounds to a variance of 10^{-9}'\n"
        "set arrow 1 from graph 0, first %u to graph 1, first %u nohead dt 3 lc rgb '#444444'\n",
        s->opts.cap, s->opts.cap);
    write_terminals(f, "rounds", 1200, 760);
    fprintf(f,
            "set multiplot layout 2,3 title \"%llu seeds, 95 %% intervals; dotted: stopped "
            "there; all-reduce leaves the picture at the top\"\nset key off\n",
            (unsigned long long)s->seeds);
    for (size_t n = 0; n < panels; n++) {
        const struct hth_pure_opts *o = &s[n * each].opts;
        fprintf(f, "set title '%u peers in %s'\nplot ", o->peers,
                hth_avg_shape_text(&o->shape, grid));
        for (int m = 0; m < HTH_PURE_METHODS; m++)
            fprintf(f, "$p%zu_%d using 1:2:3:4 with yerrorlines pt 7 ps 0.6 lw 1.5 lc rgb '%s'%s\n",
                    n, m, colours[m], m + 1 < HTH_PURE_METHODS ? ", \\" : "");
    }
    fputs("unset title\nunset arrow 1\nunset border\nunset tics\nunset xlabel\nunset ylabel\n"
          "set key center center\nplot ",
          f);
    for (int m = 0; m < HTH_PURE_METHODS; m++)
        fprintf(f, "NaN with linespoints pt 7 lw 1.5 lc rgb '%s' title '%s'%s\n", colours[m],
                labels[m], m + 1 < HTH_PURE_METHODS ? ", \\" : "");
    fprintf(f,
            "unset multiplot\nset border\nset xtics ('0' 0, '0.1' 1, '0.5' 2, '1' 3)\nset ytics\n"
            "set grid lt 1 lw 0.5 lc rgb '#cccccc'\nset xlabel 'absent from a round (%%)'\n"
            "set ylabel 'rounds to a variance of 10^{-9}'\n"
            "set arrow 1 from graph 0, first %u to graph 1, first %u nohead dt 3 lc rgb '#444444'\n"
            "}\n",
            s->opts.cap, s->opts.cap);
}

static enum hth_err write_script(const char *dir, bool table, const struct hth_avg_study *s,
                                 size_t count)
{
    FILE *f = hth_sim_create(dir, "plot.gp");
    if (f == NULL)
        return HTH_E_IO;
    if (table)
        write_panels(f, s, count);
    else
        write_curves(f, s, count);
    return finish(f, "plot.gp");
}

/* ---- the report ---------------------------------------------------------------------------- */

static enum hth_err write_report(const char *dir, const char *command, bool table)
{
    FILE *f = hth_report_begin(
        dir, "How fast peers agree", command,
        "Peers average their vectors in rounds from which some are absent at random. Vectors and "
        "failures only, without a network. mse: mean squared distance to the true mean; variance: "
        "among the peers; rounds: until the variance is below the value in front; unreached: the "
        "share of the seeds that were not there when counting stopped. Columns that end in _se "
        "are standard errors.");
    if (f == NULL)
        return HTH_E_IO;
    hth_report_picture(f, dir, table ? "rounds.svg" : "averaging.svg");
    hth_report_csv(f, dir, "rounds.csv");
    if (!table)
        hth_report_csv(f, dir, "metrics.csv");
    return hth_report_end(f);
}

enum hth_err hth_avg_study_write(const char *dir, const char *command, bool table,
                                 const struct hth_avg_study *s, size_t count)
{
    HTH_TRY(write_config(dir, table, s, count));
    HTH_TRY(write_metrics(dir, s, count));
    HTH_TRY(write_rounds(dir, s, count));
    HTH_TRY(write_script(dir, table, s, count));
    hth_sim_draw(dir, "plot.gp"); /* the data are there without it */
    return write_report(dir, command, table);
}
