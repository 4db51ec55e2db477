/* SPDX-License-Identifier: Apache-2.0 */
/*
 * averaging_sweep.c: `hearth sim averaging` over lists of peers, grids and probabilities; see
 * averaging.h.
 */
#include "core/base.h"
#include "studies/averaging.h"

#include <math.h>

#define COLUMN_WIDTH 430 /* pixels */
#define KEY_ROWS     4
#define ASIDE        0.05 /* shift between series, in positions */
#define FLOOR        1e-16

static const char *const colours[] = {"#2980b9", "#c0392b", "#d35400", "#16a085",
                                      "#8e44ad", "#7f8c8d", "#2c3e50", "#b8860b"};
static const int marks[] = {7, 5, 9, 13, 11, 6, 4, 8};

static size_t distance_at(const struct hth_avg_study *s)
{
    return HTH_AVERAGE_MSE * (size_t)s->opts.base.rounds + s->opts.base.rounds - 1;
}

/* ---- the table ----------------------------------------------------------------------------- */

/* Three digits, and the standard error if there is one. */
static const char *with_se(double mean, double se, char out[32])
{
    if (isfinite(se))
        snprintf(out, 32, "%.3g+-%.2g", mean, se);
    else
        snprintf(out, 32, "%.3g", mean);
    return out;
}

/* Print the mean seconds and KB of the listed rounds; the pure model has none. */
static void print_costs(const struct hth_avg_study *s)
{
    double seconds = 0, bytes = 0;
    uint32_t n = s->opts.base.rounds;
    for (uint32_t t = 0; t < n && s->protocol; t++) {
        seconds += hth_avg_study_mean(s, HTH_AVERAGE_SECONDS, t) / n;
        bytes += hth_avg_study_mean(s, HTH_AVERAGE_BYTES, t) / n;
    }
    if (s->protocol)
        printf(" %8.3f %8.2f", seconds, bytes / 1000);
    putchar('\n');
}

void hth_avg_print_sweep(const struct hth_avg_request *r)
{
    char grid[HTH_AVG_SHAPE_TEXT_MAX], a[32], b[32], c[32];
    printf("Rounds to a variance of 1e-4 and of 1e-9 +- standard error, squared distance to the "
           "true mean after round %u;\nof the averager the means of a round: virtual seconds, KB "
           "received by a peer\n\n%8s %-8s %8s %-10s %-9s %-10s %6s %14s %14s %16s %8s %8s\n",
           r->studies[0].opts.base.rounds, "peers", "grid", "p", "failure", "model", "method",
           "seeds", "to 1e-4", "to 1e-9", "distance", "seconds", "KB");
    for (size_t i = 0; i < r->count; i++) {
        const struct hth_avg_study *s = &r->studies[i];
        const struct hth_pure_opts *o = &s->opts.base;
        size_t to = hth_avg_study_at(s, HTH_PURE_REACHED), at = distance_at(s);
        printf("%8u %-8s %8g %-10s %-9s %-10s %6llu %14s %14s %16s", o->peers,
               hth_avg_shape_text(&o->shape, grid), o->p_fail, hth_pure_failure_name(o->failure),
               hth_avg_study_model(s), hth_avg_study_method(s), (unsigned long long)s->seeds,
               with_se(s->mean[to], s->se[to], a), with_se(s->mean[to + 1], s->se[to + 1], b),
               with_se(s->mean[at], s->se[at], c));
        print_costs(s);
    }
}

/* ---- the picture --------------------------------------------------------------------------- */

struct averaging_sweep {
    const struct hth_avg_request *r;
    size_t panels, places, series;
    bool protocol, failures;
};

static struct averaging_sweep sweep_of(const struct hth_avg_request *r)
{
    const struct hth_avg_study *last = &r->studies[r->count - 1];
    struct averaging_sweep w = {.r = r, .panels = last->panel + 1, .places = last->place + 1};
    w.series = r->count / w.panels / w.places;
    for (size_t k = 0; k < w.series; k++) {
        w.protocol |= r->studies[k].protocol;
        w.failures |= r->studies[k].opts.base.failure != r->studies[0].opts.base.failure;
    }
    return w;
}

/* Write the position, then mean and interval of the rounds, then of the distance. On a logarithmic
 * axis the interval is that of the mean's logarithm, to first order. */
static void write_data(FILE *f, const struct averaging_sweep *w, size_t panel, size_t k)
{
    fprintf(f, "$s%zu_%zu << EOD\n", panel, k);
    for (size_t p = 0; p < w->places; p++) {
        const struct hth_avg_study *s = &w->r->studies[(panel * w->places + p) * w->series + k];
        size_t at[2] = {hth_avg_study_at(s, HTH_PURE_REACHED_1E9), distance_at(s)};
        fprintf(f, "%.9g", (double)p + ((double)k - 0.5 * (double)(w->series - 1)) * ASIDE);
        for (int i = 0; i < 2; i++) {
            double mean = HTH_MAX(s->mean[at[i]], FLOOR);
            double half = isfinite(s->half[at[i]]) ? HTH_MIN(s->half[at[i]] / mean, 30.0) : 0;
            fprintf(f, " %.9g %.9g %.9g", mean, HTH_MAX(mean * exp(-half), FLOOR),
                    mean * exp(half));
        }
        fputc('\n', f);
    }
    fputs("EOD\n", f);
}

static void write_places(FILE *f, const struct averaging_sweep *w)
{
    fprintf(f, "set xrange [-0.4:%.1f]\nset xtics (", (double)w->places - 0.6);
    for (size_t p = 0; p < w->places; p++)
        fprintf(f, "%s'%g' %zu", p > 0 ? ", " : "",
                w->r->studies[p * w->series].opts.base.p_fail * 100, p);
    fputs(")\n", f);
}

static void write_lines(FILE *f, const struct averaging_sweep *w, size_t panel, int column)
{
    for (size_t k = 0; k < w->series; k++) {
        const struct hth_avg_study *s = &w->r->studies[k];
        size_t colour = w->protocol && w->failures ? s->opts.base.failure : k;
        fprintf(f,
                "%s$s%zu_%zu using 1:%d:%d:%d with yerrorlines pt %d ps 0.7 lw 1.5%s lc rgb '%s' "
                "title '",
                k == 0 ? "plot " : ", \\\n     ", panel, k, column, column + 1, column + 2,
                marks[k % HTH_ARRAY_LEN(marks)], w->protocol && !s->protocol ? " dt 2" : "",
                colours[colour % HTH_ARRAY_LEN(colours)]);
        hth_avg_draw_label(f, s, w->protocol, w->failures);
        fputc('\'', f);
    }
    fputc('\n', f);
}

static void write_panel(FILE *f, const struct averaging_sweep *w, size_t panel, bool rounds)
{
    const struct hth_pure_opts *o = &w->r->studies[panel * w->places * w->series].opts.base;
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    if (rounds)
        fprintf(f, "set title '%u peers in %s'\nset yrange [1:%g]\nset format y '%%g'\n", o->peers,
                hth_avg_shape_text(&o->shape, grid), 2.0 * o->cap);
    else
        fputs("unset title\nset yrange [1e-16:2]\nset format y '10^{%L}'\n", f);
    if (panel > 0)
        fputs("unset ylabel\n", f);
    else if (rounds)
        fputs("set ylabel 'rounds to a variance of 10^{-9}'\n", f);
    else
        fprintf(f, "set ylabel 'squared distance to the true mean after round %u'\n", o->rounds);
    if (!rounds && panel + 1 == w->panels)
        fprintf(f, "set key at screen 0.5,0.07 center center vertical maxrows %d\n", KEY_ROWS);
    write_lines(f, w, panel, rounds ? 2 : 5);
}

const char *hth_avg_draw_sweep(FILE *f, const struct hth_avg_request *r)
{
    struct averaging_sweep w = sweep_of(r);
    const struct hth_avg_study *last = &r->studies[w.series - 1];
    for (size_t n = 0; n < w.panels; n++)
        for (size_t k = 0; k < w.series; k++)
            write_data(f, &w, n, k);
    fputs("set logscale y\nset grid lt 1 lw 0.5 lc rgb '#cccccc'\n", f);
    write_places(f, &w);
    hth_avg_draw_terminals(f, "sweep", COLUMN_WIDTH * (int)HTH_MAX(w.panels, (size_t)2), 860);
    fprintf(f, "set multiplot layout 2,%zu margins %.3f,0.98,0.21,0.90 spacing 0.06,0.08 title \"",
            w.panels, 60.0 / (COLUMN_WIDTH * (double)HTH_MAX(w.panels, (size_t)2)) + 0.02);
    hth_avg_draw_seeds(f, r);
    fprintf(f, "; a target not reached after %u rounds counts as %u\"\nset key off\n",
            last->opts.base.cap, last->opts.base.cap);
    for (int rounds = 1; rounds >= 0; rounds--) {
        fputs(rounds ? "unset xlabel\n" : "set xlabel 'failures in a round (%)'\n", f);
        for (size_t n = 0; n < w.panels; n++)
            write_panel(f, &w, n, rounds != 0);
    }
    fputs("unset multiplot\n}\n", f);
    return "sweep";
}
