/* SPDX-License-Identifier: Apache-2.0 */
/* averaging_draw.c: pictures of `hearth sim averaging --out DIR`, as scripts for gnuplot. */
#include "core/mem.h"
#include "studies/averaging.h"

#include <math.h>

#define FLOOR 1e-18 /* lower end of an interval that reaches 0, on a logarithmic axis */

static const char *const colours[HTH_PURE_METHODS] = {"#7f8c8d", "#c0392b", "#d35400", "#2980b9",
                                                      "#16a085"};
static const char *const failure_colours[HTH_PURE_FAILURES] = {"#2980b9", "#c0392b", "#d35400",
                                                               "#16a085"};
static const char *const labels[HTH_PURE_METHODS] = {"all-reduce with restarts", "gossip on a ring",
                                                     "push-sum, exponential graph", "random groups",
                                                     "Moshpit"};

static double half(const struct hth_avg_study *s, size_t at)
{
    return isfinite(s->half[at]) ? s->half[at] : 0;
}

/* The lower end of an interval. On a logarithmic axis it is the interval of the mean's logarithm,
 * to first order: that of the mean itself may reach below 0, which cannot be drawn. */
static double low(const struct hth_avg_study *s, size_t at)
{
    double mean = HTH_MAX(s->mean[at], FLOOR);
    return HTH_MAX(mean * exp(-half(s, at) / mean), FLOOR);
}

static double high(const struct hth_avg_study *s, size_t at)
{
    double mean = HTH_MAX(s->mean[at], FLOOR);
    return mean * exp(HTH_MIN(half(s, at) / mean, 30.0));
}

/* Draw both formats with one script: the plot is in a loop over terminals. */
void hth_avg_draw_terminals(FILE *f, const char *name, int width, int height)
{
    fprintf(f,
            "do for [t = 1:2] {\n"
            "if (t == 1) { set terminal pngcairo size %d,%d font 'DejaVu Sans,11'; "
            "set output '%s.png' }\n"
            "if (t == 2) { set terminal svg size %d,%d font 'DejaVu Sans,11' background 'white'; "
            "set output '%s.svg' }\n",
            width, height, name, width, height, name);
}

void hth_avg_draw_seeds(FILE *f, const struct hth_avg_request *r)
{
    unsigned long long seeds[2] = {0, 0}; /* of the models, of the averager */
    for (size_t i = 0; i < r->count; i++)
        seeds[r->studies[i].protocol] = r->studies[i].seeds;
    unsigned long long most = HTH_MAX(seeds[0], seeds[1]);
    if (most == 1)
        fprintf(f, "seed %llu", (unsigned long long)r->studies[0].opts.base.seed);
    else if (seeds[0] > 0 && seeds[1] > 0 && seeds[0] != seeds[1])
        fprintf(f, "model %llu seeds, averager %llu", seeds[0], seeds[1]);
    else
        fprintf(f, "%llu seeds", most);
    if (most > 1)
        fputs(", 95 % intervals", f);
}

/* ---- curves -------------------------------------------------------------------------------- */

/* Columns of a curve's data. */
enum { ROUND = 1, SENT, SECONDS, BYTES, MSE, MSE_LOW, MSE_HIGH, VARIANCE, VARIANCE_LOW };

struct curves {
    const struct hth_avg_request *r;
    bool failures; /* several kinds of failure: each has a colour */
    bool protocol; /* at least one study is of the protocol */
};

static struct curves curves_of(const struct hth_avg_request *r)
{
    struct curves c = {.r = r};
    for (size_t i = 0; i < r->count; i++) {
        c.protocol |= r->studies[i].protocol;
        c.failures |= r->studies[i].opts.base.failure != r->studies[0].opts.base.failure;
    }
    return c;
}

/* Write a curve: vectors, seconds and KB so far, and the errors. The pure model's KB are those of
 * its vectors. */
static void write_curve_data(FILE *f, const struct hth_avg_study *s, size_t index)
{
    double sent = 0, seconds = 0, bytes = 0;
    fprintf(f, "$c%zu << EOD\n", index);
    for (uint32_t t = 0, n = s->opts.base.rounds; t < n; t++) {
        double vectors = hth_avg_study_mean(s, HTH_AVERAGE_VECTORS, t);
        sent += vectors;
        seconds += s->protocol ? hth_avg_study_mean(s, HTH_AVERAGE_SECONDS, t) : NAN;
        bytes += s->protocol ? hth_avg_study_mean(s, HTH_AVERAGE_BYTES, t)
                             : vectors * s->opts.dim * sizeof(float);
        fprintf(f, "%u %.9g %.9g %.9g %.9g %.9g %.9g %.9g %.9g %.9g\n", t + 1, sent, seconds,
                bytes / 1000, HTH_MAX(s->mean[t], FLOOR), low(s, t), high(s, t),
                HTH_MAX(s->mean[n + t], FLOOR), low(s, n + t), high(s, n + t));
    }
    fputs("EOD\n", f);
}

static const char *colour_of(const struct curves *c, const struct hth_avg_study *s)
{
    return c->failures ? failure_colours[s->opts.base.failure] : colours[s->opts.base.method];
}

/* Write "averager: crash", or the method's name in full. */
void hth_avg_draw_label(FILE *f, const struct hth_avg_study *s, bool protocol, bool failures)
{
    const char *failure = hth_pure_failure_name(s->opts.base.failure);
    if (failures && s->opts.base.method == HTH_PURE_MOSHPIT) {
        fprintf(f, "%s: %s", s->protocol ? "averager" : "model", failure);
        return;
    }
    if (s->protocol && s->opts.base.method == HTH_PURE_ALLREDUCE)
        fputs("one group of all, as a protocol", f);
    else if (s->protocol)
        fputs("averager of hearth", f);
    else
        fputs(labels[s->opts.base.method], f);
    if (protocol && !s->protocol)
        fputs(", model", f);
    if (failures)
        fprintf(f, ": %s", failure);
}

static void write_curve_plot(FILE *f, const struct curves *c, int x, int y)
{
    const char *separator = "plot ";
    bool intervals = false;
    for (size_t i = 0; i < c->r->count; i++) {
        const struct hth_avg_study *s = &c->r->studies[i];
        if (x == SECONDS && !s->protocol)
            continue;
        const char *colour = colour_of(c, s);
        fprintf(f,
                "%s$c%zu using %d:%d:%d with filledcurves fs transparent solid 0.2 noborder lc rgb "
                "'%s' notitle, \\\n"
                "     $c%zu using %d:%d with linespoints pt %d ps 0.5 lw 2%s lc rgb '%s' title '",
                separator, i, x, y + 1, y + 2, colour, i, x, y, s->protocol || !c->protocol ? 7 : 6,
                s->protocol || !c->protocol ? "" : " dt 2", colour);
        hth_avg_draw_label(f, s, c->protocol, c->failures);
        fputc('\'', f);
        separator = ", \\\n     ";
        intervals |= s->seeds > 1;
    }
    if (intervals)
        fprintf(f, "%sNaN with filledcurves fs solid 0.3 lc rgb '#888888' title '95 %% interval'",
                separator);
    fputc('\n', f);
}

static void write_curves_title(FILE *f, const struct curves *c)
{
    static const char *const words[HTH_PURE_FAILURES] = {
        "absent from a round", "crashing in a round", "slow in a round", "partitioned in a round"};
    const struct hth_pure_opts *o = &c->r->studies[0].opts.base;
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    fprintf(f, " title \"%u peers in %s, each %s with probability %g %%", o->peers,
            hth_avg_shape_text(&o->shape, grid),
            c->failures ? "failing in a round" : words[o->failure], o->p_fail * 100);
    if (o->hold > 1)
        fprintf(f, ", for %u rounds", o->hold);
    if (c->protocol)
        fprintf(f, "; vectors of %.4g KB, %g ms one way, %g Mbit/s",
                c->r->studies[0].opts.dim * sizeof(float) / 1000.0,
                (double)c->r->studies[0].opts.link.latency_us / HTH_US_PER_MS,
                c->r->studies[0].opts.line_bytes_per_s * 8 / 1e6);
    fputs("; ", f);
    hth_avg_draw_seeds(f, c->r);
    fputs("\"\n", f);
}

static void write_wide(FILE *f, const struct curves *c)
{
    uint32_t rounds = c->r->studies[0].opts.base.rounds;
    hth_avg_draw_terminals(f, "averaging", 1200, 560);
    fputs("set multiplot layout 1,2 margins 0.08,0.98,0.27,0.90 spacing 0.06,0.1", f);
    write_curves_title(f, c);
    fprintf(f,
            "set ylabel 'mean squared distance to the true mean (start: 1)'\n"
            "set xlabel 'rounds'\nset xrange [1:%u]\nset key off\n",
            HTH_MAX(rounds, 2u));
    write_curve_plot(f, c, ROUND, MSE);
    fputs("unset ylabel\nset xlabel 'vectors sent by a peer so far'\nset xrange [0:*]\n"
          "set key at screen 0.5,0.08 center center vertical maxrows 3\n",
          f);
    write_curve_plot(f, c, SENT, MSE);
    fputs("unset multiplot\n}\n", f);
}

/* Draw four panels: above, the errors by round; below, the distance by its cost. */
static void write_square(FILE *f, const struct curves *c)
{
    static const struct {
        int x, y;
        const char *x_label, *y_label;
    } panels[] = {
        {ROUND, MSE, "rounds", "mean squared distance to the true mean"},
        {ROUND, VARIANCE, "rounds", "variance among the peers"},
        {SECONDS, MSE, "virtual seconds spent in rounds", "mean squared distance to the true mean"},
        {BYTES, MSE, "KB received by a peer so far", "mean squared distance to the true mean"},
    };
    uint32_t rounds = c->r->studies[0].opts.base.rounds;
    hth_avg_draw_terminals(f, "averaging", 1200, 980);
    fputs("set multiplot layout 2,2 margins 0.08,0.98,0.17,0.94 spacing 0.08,0.09", f);
    write_curves_title(f, c);
    for (size_t i = 0; i < HTH_ARRAY_LEN(panels); i++) {
        fprintf(f, "set xlabel '%s'\nset ylabel '%s'\n", panels[i].x_label, panels[i].y_label);
        if (panels[i].x == ROUND)
            fprintf(f, "set xrange [1:%u]\n", HTH_MAX(rounds, 2u));
        else
            fputs("set xrange [0:*]\n", f);
        if (i + 1 == HTH_ARRAY_LEN(panels))
            fputs("set key at screen 0.5,0.055 center center vertical maxrows 4\n", f);
        else
            fputs("set key off\n", f);
        write_curve_plot(f, c, panels[i].x, panels[i].y);
    }
    fputs("unset multiplot\n}\n", f);
}

static void write_curves(FILE *f, const struct hth_avg_request *r)
{
    struct curves c = curves_of(r);
    for (size_t i = 0; i < r->count; i++)
        write_curve_data(f, &r->studies[i], i);
    fputs("set logscale y\nset format y '10^{%L}'\nset yrange [1e-16:2]\n"
          "set grid lt 1 lw 0.5 lc rgb '#cccccc'\n",
          f);
    if (c.protocol)
        write_square(f, &c);
    else
        write_wide(f, &c);
}

/* ---- panels by population ------------------------------------------------------------------ */

/* Write one block of data for each panel and series: position on the axis, rounds to 1e-9 with
 * interval, seconds of the first rounds with theirs. */
static void write_blocks(FILE *f, const struct hth_avg_request *r, size_t panels, size_t series)
{
    size_t each = r->count / panels, points = each / series;
    for (size_t n = 0; n < panels; n++)
        for (size_t m = 0; m < series; m++) {
            fprintf(f, "$p%zu_%zu << EOD\n", n, m);
            for (size_t p = 0; p < points; p++) {
                const struct hth_avg_study *x = &r->studies[n * each + p * series + m];
                size_t at = hth_avg_study_at(x, HTH_PURE_REACHED_1E9);
                size_t rounds = x->opts.base.rounds,
                       last = HTH_AVERAGE_SECONDS * rounds + rounds - 1;
                fprintf(f, "%zu %.9g %.9g %.9g", p, x->mean[at], x->mean[at] - half(x, at),
                        x->mean[at] + half(x, at));
                if (x->protocol)
                    fprintf(f, " %.9g %.9g %.9g", x->mean[last], x->mean[last] - half(x, last),
                            x->mean[last] + half(x, last));
                fputc('\n', f);
            }
            fputs("EOD\n", f);
        }
}

static void write_panels(FILE *f, const struct hth_avg_request *r)
{
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    size_t panels = r->studies[r->count - 1].panel + 1, each = r->count / panels;
    uint32_t cap = r->studies[0].opts.base.cap;
    write_blocks(f, r, panels, HTH_PURE_METHODS);
    fprintf(
        f,
        "set logscale y\nset yrange [1:100]\nset xrange [-0.3:3.3]\n"
        "set xtics ('0' 0, '0.1' 1, '0.5' 2, '1' 3)\nset grid lt 1 lw 0.5 lc rgb '#cccccc'\n"
        "set xlabel 'absent from a round (%%)'\n"
        "set ylabel 'rounds to a variance of 10^{-9}'\n"
        "set arrow 1 from graph 0, first %u to graph 1, first %u nohead dt 3 lc rgb '#444444'\n",
        cap, cap);
    hth_avg_draw_terminals(f, "rounds", 1200, 760);
    fputs("set multiplot layout 2,3 title \"", f);
    hth_avg_draw_seeds(f, r);
    fputs("; dotted: stopped there; all-reduce leaves the picture at the top\"\nset key off\n", f);
    for (size_t n = 0; n < panels; n++) {
        const struct hth_pure_opts *o = &r->studies[n * each].opts.base;
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
            cap, cap);
}

static void write_compare(FILE *f, const struct hth_avg_request *r)
{
    char grid[HTH_AVG_SHAPE_TEXT_MAX];
    size_t panels = r->studies[r->count - 1].panel + 1, each = r->count / panels;
    const struct hth_pure_opts *o = &r->studies[0].opts.base;
    write_blocks(f, r, panels, 2);
    fputs("set xrange [-0.3:3.3]\nset xtics ('0' 0, '0.5' 1, '1' 2, '5' 3)\n"
          "set grid lt 1 lw 0.5 lc rgb '#cccccc'\n",
          f);
    hth_avg_draw_terminals(f, "compare", 1200, 760);
    fprintf(f, "set multiplot layout 2,3 title \"failure: %s; ", hth_pure_failure_name(o->failure));
    hth_avg_draw_seeds(f, r);
    fputs("\"\nset ylabel 'rounds to a variance of 10^{-9}'\nset yrange [0:*]\n"
          "unset xlabel\nset key bottom right\n",
          f);
    for (size_t n = 0; n < panels; n++) {
        o = &r->studies[n * each].opts.base;
        fprintf(f,
                "set title '%u peers in %s'\n"
                "plot $p%zu_0 using 1:2:3:4 with yerrorlines pt 6 lw 1.5 dt 2 lc rgb '%s' title "
                "'model', \\\n"
                "     $p%zu_1 using 1:2:3:4 with yerrorlines pt 7 ps 0.8 lw 1.5 lc rgb '%s' title "
                "'averager'\n",
                o->peers, hth_avg_shape_text(&o->shape, grid), n, colours[HTH_PURE_RANDOM], n,
                colours[HTH_PURE_GOSSIP]);
    }
    fprintf(f,
            "unset title\nset ylabel 'averager: virtual seconds of round %u'\nset key off\n"
            "set xlabel 'failures in a round (%%)'\n",
            o->rounds);
    for (size_t n = 0; n < panels; n++)
        fprintf(f,
                "plot $p%zu_1 using 1:5:6:7 with yerrorlines pt 7 ps 0.8 lw 1.5 lc rgb '%s' title "
                "'averager'\n",
                n, colours[HTH_PURE_GOSSIP]);
    fputs("unset multiplot\n}\n", f);
}

const char *hth_avg_draw(FILE *f, const struct hth_avg_request *r)
{
    switch (r->picture) {
    case HTH_AVG_TABLE:
        write_panels(f, r);
        return "rounds";
    case HTH_AVG_COMPARE:
        write_compare(f, r);
        return "compare";
    default:
        write_curves(f, r);
        return "averaging";
    }
}
