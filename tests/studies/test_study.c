/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_study.c: the frame of the studies: means and intervals against published tables, equal files
 * from any number of threads, reports that need no other file and escape all text.
 */
#include "core/mem.h"
#include "studies/report.h"
#include "studies/study.h"
#include "studies/study_write.h"
#include "studies/tools.h"
#include "support/suite.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- statistics ---------------------------------------------------------------------------- */

/* Half of the interval of n values, all 0 but the last, with mean 1: the standard error is 1, too,
 * so the interval is Student's t itself. */
static double interval(size_t n)
{
    double *values = hth_new_array(double, n);
    values[n - 1] = (double)n;
    struct hth_study_mean m = hth_study_mean_of(values, n, 1);
    assert_float_equal(m.mean, 1, 1e-12);
    assert_float_equal(m.se, 1, 1e-12);
    hth_free(values);
    return m.half;
}

TEST(intervals_are_students_t)
{
    (void)state;
    assert_float_equal(interval(2), 12.706, 5e-4);
    assert_float_equal(interval(5), 2.7764, 5e-5);
    assert_float_equal(interval(31), 2.0423, 5e-5);
    /* Beyond the table: 41, 61 and 121 are rows of any printed table. */
    assert_float_equal(interval(41), 2.0211, 5e-4);
    assert_float_equal(interval(61), 2.0003, 5e-4);
    assert_float_equal(interval(121), 1.9799, 5e-4);
    assert_float_equal(interval(100001), 1.9600, 5e-4);
}

TEST(only_finite_values_count)
{
    (void)state;
    const double values[] = {1, -1, NAN, -1, 3, -1, INFINITY, -1};
    struct hth_study_mean m = hth_study_mean_of(values, 4, 2);
    assert_int_equal(m.count, 2);
    assert_float_equal(m.mean, 2, 0);
    assert_float_equal(m.se, 1, 1e-12);
    m = hth_study_mean_of(values + 4, 1, 1);
    assert_int_equal(m.count, 1);
    assert_float_equal(m.mean, 3, 0);
    assert_true(isnan(m.se) && isnan(m.half));
    m = hth_study_mean_of(values + 2, 1, 1);
    assert_int_equal(m.count, 0);
    assert_true(isnan(m.mean));
}

/* ---- a study ------------------------------------------------------------------------------- */

static const struct hth_study_column params[] = {{"x", "place (m)", 0}};
static const struct hth_study_column metrics[] = {
    {"sum", "sum of place and seed", 1}, {"never", "never measured", 1}, {"odd", "odd seeds", 1}};
static const struct hth_study_panel panels[] = {{"one", "One", 0, 0, false, false, true},
                                                {"two", "Two", 0, 0, true, true, false},
                                                {"two", "Nothing", 0, 1, false, true, false}};
static const struct hth_study_point points[] = {
    {.part = "one", .series = "a", .param = {1}},  {.part = "one", .series = "b", .param = {1}},
    {.part = "one", .series = "a", .param = {2}},  {.part = "two", .series = "a", .param = {10}},
    {.part = "two", .series = "a", .param = {20}},
};

static enum hth_err run(void *arg, const struct hth_study_point *point, uint64_t seed,
                        const struct hth_study_watch *watch, double *values)
{
    if (watch->event != NULL) {
        watch->event(watch->arg, 1500000, "n", "boot", 2);
        watch->event(watch->arg, 2000000, "n", "arrive", 9);
        watch->event(watch->arg, 2500000, "n", "crash", HTH_CRASH_SILENT);
    }
    const uint64_t *bad_seed = arg;
    if (bad_seed != NULL && seed == *bad_seed && point->param[0] > 1)
        return HTH_E_TIMEOUT;
    values[0] = point->param[0] + (double)seed;
    values[1] = NAN;
    values[2] = seed % 2 == 1 && point->param[0] > 1 ? 7 : NAN;
    return HTH_OK;
}

static struct hth_study study(void)
{
    return (struct hth_study){.name = "test",
                              .title = "A <test> & more",
                              .about = "Nothing.",
                              .params = params,
                              .metrics = metrics,
                              .param_count = 1,
                              .metric_count = 3,
                              .panels = panels,
                              .panel_count = 3,
                              .points = points,
                              .point_count = 5,
                              .run = run};
}

static char dir[] = "/tmp/hth-study-XXXXXX";

static char *read_file(const char *sub, const char *name)
{
    char *path = hth_asprintf("%s/%s/%s", dir, sub, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = hth_try_calloc(1 << 20, 1);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    hth_free(path);
    return text;
}

static enum hth_err run_into(const char *sub, uint32_t threads, const char *only, uint64_t *bad)
{
    struct hth_study s = study();
    struct hth_study_flags f = HTH_STUDY_FLAGS_INIT;
    char *out = hth_asprintf("%s/%s", dir, sub);
    s.arg = bad;
    f.seeds = 4;
    f.threads = threads;
    f.out = out;
    f.only = only;
    f.quiet = true;
    f.events = strcmp(sub, "e") == 0;
    f.command = "hearth sim test --x '\"<script>'";
    enum hth_err err = hth_study_run(&s, &f);
    hth_free(out);
    return err;
}

TEST(files_do_not_depend_on_threads)
{
    (void)state;
    static const char *const files[] = {"config.json", "metrics.csv", "runs.csv", "plot.gp",
                                        "report.html"};
    assert_ok(run_into("a", 1, NULL, NULL));
    assert_ok(run_into("b", 3, NULL, NULL));
    for (size_t i = 0; i < HTH_ARRAY_LEN(files); i++) {
        char *a = read_file("a", files[i]), *b = read_file("b", files[i]);
        assert_string_equal(a, b);
        hth_free(a);
        hth_free(b);
    }
}

TEST(files_have_means_and_intervals)
{
    (void)state;
    assert_ok(run_into("c", 2, NULL, NULL));
    char *csv = read_file("c", "metrics.csv");
    /* Seeds 1 to 4 on place 2: 3, 4, 5, 6; s.e. sqrt(5/3/4); t(3) = 3.1824. */
    assert_non_null(strstr(csv, "part,series,x,sum,sum_se,sum_ci95,sum_seeds,never,"));
    assert_non_null(strstr(csv, "\none,a,2,4.5,0.645497224,2.05423037,4,,,,0,7,0,0,2\n"));
    hth_free(csv);
    csv = read_file("c", "runs.csv");
    assert_non_null(strstr(csv, "part,series,x,seed,sum,never,"));
    assert_non_null(strstr(csv, "\none,a,2,1,3,,7\none,a,2,2,4,,\n"));
    hth_free(csv);
    char *html = read_file("c", "report.html");
    assert_non_null(strstr(html, "<h1>A &lt;test&gt; &amp; more</h1>"));
    assert_null(strstr(html, "<script"));
    assert_non_null(strstr(html, "<td>3.5 &plusmn; 2.1</td><td>&ndash;</td>"));
    assert_non_null(strstr(html, "<td>4.5 &plusmn; 2.1</td><td>7.0 &plusmn; 0.0</td>"));
    assert_null(strstr(html, "Everywhere")); /* all places differ */
    /* The report fetches nothing. */
    assert_null(strstr(html, "src="));
    assert_null(strstr(html, "<link"));
    assert_null(strstr(html, "<?xml"));
    hth_free(html);
}

/* Starts and crashes of each point with the first seed, and nothing else. */
TEST(events_are_of_the_first_seed)
{
    (void)state;
    assert_ok(run_into("e", 2, "two", NULL));
    char *csv = read_file("e", "events.csv");
    assert_string_equal(csv, "run,time_s,node,event,detail\n"
                             "\"two: a, x 10\",1.500000,n,boot,life 2\n"
                             "\"two: a, x 10\",2.500000,n,crash,silent\n"
                             "\"two: a, x 20\",1.500000,n,boot,life 2\n"
                             "\"two: a, x 20\",2.500000,n,crash,silent\n");
    hth_free(csv);
}

/* Each part is a chapter, with its own picture and only the columns that it needs. */
TEST(each_part_is_a_chapter)
{
    (void)state;
    assert_ok(run_into("c", 1, NULL, NULL));
    char *html = read_file("c", "report.html");
    const char *one = strstr(html, "<h2>one</h2>"), *two = strstr(html, "<h2>two</h2>");
    assert_true(one != NULL && two > one);
    assert_null(strstr(two, "<h2>one</h2>"));
    assert_null(strstr(html, "<th>never measured</th>"));
    const char *odd = strstr(html, "<th>odd seeds</th>");
    assert_true(odd > one && odd < two && strstr(two, "<th>odd seeds</th>") != NULL);
    hth_free(html);
    char *script = read_file("c", "plot.gp");
    assert_non_null(strstr(script, "set output 'one.svg'"));
    assert_non_null(strstr(script, "set output 'two.png'"));
    /* Two series are shifted to both sides of their position, a single one is not; the data are
     * exact. */
    assert_non_null(strstr(script, "$d0_0 << EOD\n1 3.5 "));
    assert_non_null(strstr(script, "$d0_0 using ($1+-0.004):2:3:4"));
    assert_non_null(strstr(script, "$d0_1 using ($1+0.004):2:3:4"));
    assert_non_null(strstr(script, "$d1_0 using ($1*1):2:3:4"));
    assert_non_null(strstr(script, "set logscale x"));
    assert_null(strstr(script, "set logscale y")); /* from 10 to 25: one tick */
    hth_free(script);
}

static bool is_there(const char *sub, const char *name)
{
    char *path = hth_asprintf("%s/%s/%s", dir, sub, name);
    bool there = access(path, F_OK) == 0;
    hth_free(path);
    return there;
}

/* Return how far down a picture the first of these texts is, and below `from` in it; 0: absent. */
static double depth_of(const char *svg, const char *text, const char **from)
{
    static const char before[] = "translate(";
    const char *at = strstr(*from, text), *place = NULL;
    if (at == NULL)
        return 0;
    *from = at;
    for (const char *s = svg; (s = strstr(s, before)) != NULL && s < at; s++)
        place = s;
    return place != NULL ? strtod(strchr(place, ',') + 1, NULL) : 0;
}

/* The key is below the label of the lower axis, by more than a line's height. */
TEST(key_is_clear_of_the_axis_label)
{
    (void)state;
    assert_ok(run_into("c", 1, NULL, NULL));
    if (!is_there("c", "one.svg"))
        skip(); /* no gnuplot here */
    char *svg = read_file("c", "one.svg");
    const char *at = svg;
    double label = depth_of(svg, "<text>place (m)</text>", &at),
           key = depth_of(svg, "<text>a</text>", &at);
    assert_true(label > 0);
    assert_true(key - label > 20 && key - label < 50);
    hth_free(svg);
}

/* Point 9 has one seed of four. */
static enum hth_err run_fading(void *arg, const struct hth_study_point *point, uint64_t seed,
                               const struct hth_study_watch *watch, double *values)
{
    (void)arg;
    (void)watch;
    values[0] = point->param[0] == 9 && seed > 1 ? NAN : point->param[0];
    values[1] = values[2] = NAN;
    return HTH_OK;
}

/* A curve is not drawn where most of its seeds are missing, though the table has it; ticks of a
 * logarithmic axis keep a distance. */
TEST(picture_omits_means_of_few_seeds)
{
    (void)state;
    static const struct hth_study_point places[] = {
        {.part = "one", .series = "a", .param = {1}},
        {.part = "one", .series = "a", .param = {9}},
        {.part = "two", .series = "a", .param = {100}},
        {.part = "two", .series = "a", .param = {101}},
        {.part = "two", .series = "a", .param = {200}},
        {.part = "two", .series = "a", .param = {5000}}};
    struct hth_study s = study();
    struct hth_study_flags f = HTH_STUDY_FLAGS_INIT;
    char *out = hth_asprintf("%s/g", dir);
    s.points = places;
    s.point_count = HTH_ARRAY_LEN(places);
    s.run = run_fading;
    f.seeds = 4;
    f.out = out;
    f.quiet = true;
    assert_ok(hth_study_run(&s, &f));
    hth_free(out);
    char *csv = read_file("g", "metrics.csv"), *script = read_file("g", "plot.gp");
    assert_non_null(strstr(csv, "\none,a,9,9,,,1,"));
    assert_non_null(strstr(script, "$d0_0 << EOD\n1 1 1 1\nEOD\n"));
    assert_non_null(strstr(script, "set xtics  ('100' 100)\nset xtics add ('200' 200)\n"));
    assert_non_null(strstr(script, "set logscale y"));
    hth_free(csv);
    hth_free(script);
}

/* Half of the interval is t(1) = 12.706 standard errors of 4; a share of 0.06 of the range is for
 * the frame. */
static enum hth_err run_share(void *arg, const struct hth_study_point *point, uint64_t seed,
                              const struct hth_study_watch *watch, double *values)
{
    (void)arg;
    (void)watch;
    values[0] = point->param[0] + (seed == 1 ? -4 : 4);
    return HTH_OK;
}

TEST(frames_end_at_possible_values)
{
    (void)state;
    static const struct {
        const char *label, *range;
        double mean;
    } cases[] = {{"share (%)", "set yrange [37.07712:100]\n", 94},
                 {"length (m)", "set yrange [37.07712:150.92288]\n", 94},
                 {"growth (%)", "set yrange [131.07712:244.92288]\n", 188},
                 {"time (s)", "set yrange [0:64.92288]\n", 8}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        const struct hth_study_column column = {"y", cases[i].label, 1};
        const struct hth_study_point places[] = {
            {.part = "one", .series = "a", .param = {cases[i].mean}}};
        struct hth_study s = study();
        struct hth_study_flags f = HTH_STUDY_FLAGS_INIT;
        char *out = hth_asprintf("%s/i", dir);
        s.metrics = &column;
        s.metric_count = 1;
        s.points = places;
        s.point_count = s.panel_count = 1;
        s.run = run_share;
        f.seeds = 2;
        f.out = out;
        f.quiet = true;
        assert_ok(hth_study_run(&s, &f));
        hth_free(out);
        char *script = read_file("i", "plot.gp");
        if (strstr(script, cases[i].range) == NULL)
            fail_msg("%s: no '%s' in\n%s", cases[i].label, cases[i].range, script);
        hth_free(script);
    }
}

static char *say_a_sum(void *arg, const struct hth_study *shown, const struct hth_study_mean *means)
{
    (void)arg;
    return hth_asprintf("%zu <points>, the last %g", shown->point_count,
                        means[(shown->point_count - 1) * shown->metric_count].mean);
}

/* The metric with an aim has lines at 0 and at both limits; the verdict is over the points that
 * were asked for. */
TEST(picture_shows_aim_and_report_the_verdict)
{
    (void)state;
    struct hth_study s = study();
    struct hth_study_flags f = HTH_STUDY_FLAGS_INIT;
    char *out = hth_asprintf("%s/i", dir);
    s.verdict = say_a_sum;
    s.within = 50;
    f.seeds = 2;
    f.out = out;
    f.only = "one";
    f.quiet = true;
    assert_ok(hth_study_run(&s, &f));
    hth_free(out);
    char *script = read_file("i", "plot.gp"), *html = read_file("i", "report.html");
    assert_non_null(strstr(script, "set yrange [-60:60]\n"));
    assert_non_null(strstr(script, "50 with lines dt 2 lw 1.6 lc rgb '#555555' title 'aim', -50"));
    assert_non_null(strstr(html, "<p><b>3 &lt;points&gt;, the last 3.5</b></p>"));
    hth_free(script);
    hth_free(html);
}

/* A value that is the same in a whole part is printed once; a metric that is never measured is not
 * printed. */
TEST(constant_parameters_are_printed_once)
{
    (void)state;
    static const struct hth_study_column two[] = {{"x", "place (m)", 0}, {"y", "height (m)", 1}};
    static const struct hth_study_point level[] = {
        {.part = "one", .series = "a", .param = {1, 2}},
        {.part = "one", .series = "a", .param = {3, 2}},
        {.part = "two", .series = "a", .param = {4, NAN}},
        {.part = "two", .series = "b", .param = {4, NAN}}};
    struct hth_study s = study();
    struct hth_study_flags f = HTH_STUDY_FLAGS_INIT;
    char *out = hth_asprintf("%s/h", dir);
    s.params = two;
    s.param_count = 2;
    s.points = level;
    s.point_count = HTH_ARRAY_LEN(level);
    f.out = out;
    f.quiet = true;
    assert_ok(hth_study_run(&s, &f));
    hth_free(out);
    char *html = read_file("h", "report.html");
    assert_non_null(strstr(html, "<p>Everywhere: height (m): 2.0.</p>"));
    assert_non_null(strstr(html, "<p>Everywhere: place (m): 4.</p>"));
    const char *one = strstr(html, "<th>place (m)</th>");
    assert_true(one != NULL && strstr(one + 1, "<th>place (m)</th>") == NULL);
    assert_null(strstr(html, "<th>height"));
    hth_free(html);
}

TEST(only_selects_parts_and_refuses_unknown_ones)
{
    (void)state;
    uint64_t bad_seed;
    assert_ok(run_into("d", 1, "two", NULL));
    char *csv = read_file("d", "metrics.csv");
    assert_null(strstr(csv, "\none,"));
    assert_non_null(strstr(csv, "\ntwo,a,20,"));
    hth_free(csv);
    assert_err(HTH_E_USAGE, run_into("d", 1, "tw", NULL));
    assert_err(HTH_E_USAGE, run_into("d", 1, "two,", NULL));
    bad_seed = 5;
    assert_ok(run_into("d", 2, "one,two", &bad_seed));
}

/* Points above 1 fail with seed 3: they are named, and all other numbers are kept. */
TEST(failed_run_is_named)
{
    (void)state;
    uint64_t bad_seed = 3;
    assert_err(HTH_E_TRUNCATED, run_into("d", 2, NULL, &bad_seed));
    char *csv = read_file("d", "failures.csv");
    assert_string_equal(csv, "part,series,x,seed,reason\n"
                             "one,a,2,3,\"no progress within its limit of virtual time\"\n"
                             "two,a,10,3,\"no progress within its limit of virtual time\"\n"
                             "two,a,20,3,\"no progress within its limit of virtual time\"\n");
    hth_free(csv);
    csv = read_file("d", "metrics.csv");
    assert_non_null(strstr(csv, "\none,a,1,3.5,0.645497224,2.05423037,4,")); /* all four */
    assert_non_null(strstr(csv, "\none,a,2,4.33333333,"));                   /* (3 + 4 + 6) / 3 */
    hth_free(csv);
    csv = read_file("d", "runs.csv");
    assert_non_null(strstr(csv, "\none,a,1,3,4,,\n"));
    assert_null(strstr(csv, "\none,a,2,3,"));
    hth_free(csv);
    char *html = read_file("d", "report.html");
    assert_non_null(strstr(html, "<li>one: a, x 2, seed 3: no progress within its limit"));
    assert_null(strstr(html, "Partial"));
    hth_free(html);
    /* Where all runs fail there is nothing to show. */
    struct hth_study s = study();
    struct hth_study_flags flags = HTH_STUDY_FLAGS_INIT;
    flags.seed = bad_seed;
    flags.seeds = 1;
    flags.where = "x=2";
    flags.quiet = true;
    s.arg = &bad_seed;
    assert_err(HTH_E_TIMEOUT, hth_study_run(&s, &flags));
}

/* An interrupt comes while that seed is at point 2: later seeds are not begun. */
static enum hth_err run_until(void *arg, const struct hth_study_point *point, uint64_t seed,
                              const struct hth_study_watch *watch, double *values)
{
    const uint64_t *last = arg;
    if (seed == *last && point->param[0] == 2)
        raise(SIGINT);
    return run(NULL, point, seed, watch, values);
}

static enum hth_err interrupt_at(uint64_t seed)
{
    struct hth_study s = study();
    struct hth_study_flags flags = HTH_STUDY_FLAGS_INIT;
    char *out = hth_asprintf("%s/i", dir);
    s.run = run_until;
    s.arg = &seed;
    flags.out = out;
    flags.threads = 1;
    flags.quiet = true;
    signal(SIGINT, SIG_DFL); /* the caller of the tests may ignore it */
    enum hth_err err = hth_study_run(&s, &flags);
    hth_free(out);
    return err;
}

TEST(interrupt_keeps_complete_seeds)
{
    (void)state;
    assert_err(HTH_E_CANCELED, interrupt_at(3));
    char *csv = read_file("i", "metrics.csv");
    assert_non_null(strstr(csv, "\none,a,1,2.5,0.5,6.353,2,")); /* seeds 1 and 2 of five */
    assert_non_null(strstr(csv, "\ntwo,a,20,21.5,0.5,6.353,2,"));
    hth_free(csv);
    csv = read_file("i", "runs.csv");
    assert_non_null(strstr(csv, "\none,a,1,2,3,,\n"));
    assert_null(strstr(csv, "\none,a,1,3,"));
    hth_free(csv);
    char *html = read_file("i", "report.html"), *config = read_file("i", "config.json");
    assert_non_null(strstr(html, "Partial: interrupted after 13 of 25 runs; shown are 2 of 5"));
    assert_non_null(strstr(html, "<p>2 seeds from 1;"));
    assert_non_null(
        strstr(config, "\"seeds\":2,\n\"interrupted\":{\"runs\":13,\"runs_asked\":25,"));
    hth_free(html);
    hth_free(config);
    /* Before the first seed is complete, all finished points are shown. */
    assert_err(HTH_E_CANCELED, interrupt_at(1));
    csv = read_file("i", "metrics.csv");
    assert_non_null(strstr(csv, "\none,a,2,3,,,1,"));
    assert_non_null(strstr(csv, "\ntwo,a,10,,,,0,"));
    hth_free(csv);
    html = read_file("i", "report.html");
    assert_non_null(strstr(html, "not even one of 5 seeds is complete"));
    hth_free(html);
}

/* One run measures a group, in whichever parts its points are: it runs once when any of them is
 * asked for. */
static enum hth_err run_group(void *arg, const struct hth_study_point *first, uint64_t seed,
                              const struct hth_study_watch *watch, double *values)
{
    uint64_t *runs = arg;
    if (watch->event != NULL)
        watch->event(watch->arg, 1000000, "n", "boot", 1);
    size_t count = HTH_MAX(first->group, (size_t)1);
    runs[seed]++;
    assert_true(first->setup == (count == 2 ? &points[0] : NULL));
    for (size_t i = 0; i < count; i++) {
        values[3 * i] = first[i].param[0] + 100.0 * (double)count;
        values[3 * i + 1] = values[3 * i + 2] = NAN;
    }
    return HTH_OK;
}

static char *run_groups(const char *sub, const char *only, uint64_t *runs)
{
    static const struct hth_study_point grouped[] = {
        {.part = "one", .series = "a", .param = {1}},
        {.part = "one", .series = "b", .param = {2}, .group = 2, .setup = &points[0]},
        {.part = "two", .series = "b", .param = {NAN}, .setup = &points[0]},
        {.part = "one", .series = "a", .param = {3}, .group = 1},
    };
    struct hth_study s = study();
    struct hth_study_flags f = HTH_STUDY_FLAGS_INIT;
    char *out = hth_asprintf("%s/%s", dir, sub);
    s.points = grouped;
    s.point_count = HTH_ARRAY_LEN(grouped);
    s.run = run_group;
    s.arg = runs;
    f.seeds = 2;
    f.threads = 1;
    f.out = out;
    f.only = only;
    f.quiet = true;
    f.events = true;
    assert_ok(hth_study_run(&s, &f));
    hth_free(out);
    return read_file(sub, "metrics.csv");
}

TEST(one_run_measures_a_group)
{
    (void)state;
    uint64_t runs[3] = {0};
    char *csv = run_groups("g", NULL, runs);
    assert_int_equal(runs[1], 2 * 3); /* the first seed once more, for the events */
    assert_int_equal(runs[2], 3);
    assert_non_null(strstr(csv, "\none,a,1,101,"));
    assert_non_null(strstr(csv, "\none,b,2,202,"));
    assert_non_null(strstr(csv, "\ntwo,b,,")); /* no value of x: a row without numbers */
    assert_non_null(strstr(csv, "\none,a,3,103,"));
    hth_free(csv);
    csv = read_file("g", "events.csv");
    assert_non_null(strstr(csv, "\n\"one: b, x 2\",1.000000,n,boot,life 1\n"));
    assert_null(strstr(csv, "two"));
    hth_free(csv);
    csv = run_groups("h", "two", runs);
    assert_int_equal(runs[1], 2 * 4);
    assert_null(strstr(csv, "\none,"));
    assert_non_null(strstr(csv, "\ntwo,b,,"));
    hth_free(csv);
    csv = read_file("h", "events.csv"); /* named by a point that was asked for */
    assert_string_equal(csv, "run,time_s,node,event,detail\ntwo: b,1.000000,n,boot,life 1\n");
    hth_free(csv);
}

/* Points by the value of a parameter: 2 and 20 are in two parts. */
TEST(where_selects_points_by_value)
{
    static const char *const bad[] = {"x", "y=1", "x=", "x=1,", "x=1;2", "x=inf", "x=3", "=1"};
    (void)state;
    struct hth_study s = study();
    struct hth_study_flags f = HTH_STUDY_FLAGS_INIT;
    char *out = hth_asprintf("%s/d", dir);
    f.seeds = 2;
    f.out = out;
    f.quiet = true;
    f.where = "x=20,2";
    assert_ok(hth_study_run(&s, &f));
    char *csv = read_file("d", "metrics.csv");
    assert_null(strstr(csv, "\none,a,1,"));
    assert_null(strstr(csv, "\ntwo,a,10,"));
    assert_non_null(strstr(csv, "\none,a,2,3.5,"));
    assert_non_null(strstr(csv, "\ntwo,a,20,21.5,"));
    hth_free(csv);
    f.only = "two";
    assert_ok(hth_study_run(&s, &f));
    csv = read_file("d", "metrics.csv");
    assert_null(strstr(csv, "\none,"));
    hth_free(csv);
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        f.where = bad[i];
        assert_err(HTH_E_USAGE, hth_study_run(&s, &f));
    }
    hth_free(out);
}

/* ---- differences --------------------------------------------------------------------------- */

static const struct hth_study_column two_params[] = {{"x", "place (m)", 0}, {"y", "height (m)", 0}};
static const struct hth_study_point field[] = {
    {.part = "one", .series = "low", .param = {1, 5}},
    {.part = "one", .series = "low", .param = {2, 5}},
    {.part = "one", .series = "low", .param = {3, 5}},
    {.part = "one", .series = "high", .param = {1, 7}},
    {.part = "one", .series = "high", .param = {2, 7}},
    {.part = "one", .series = "other", .param = {2, 7}}, /* the same values, in another series */
    {.part = "two", .series = "low", .param = {3, 5}},
};

/* 10 x + y^2 x and the effect of a seed, which is the same for all points; the second metric has
 * some seeds only. */
static enum hth_err run_field(void *arg, const struct hth_study_point *point, uint64_t seed,
                              const struct hth_study_watch *watch, double *values)
{
    (void)arg;
    (void)watch;
    double x = point->param[0], y = point->param[1], other = point->series[0] == 'o' ? 1000 : 0;
    values[0] = 10 * x + y * y * x + 100 * (double)(seed * seed) + other;
    values[1] = x == 2 && seed > 2 ? NAN : x * (double)seed;
    values[2] = NAN;
    return HTH_OK;
}

static enum hth_err run_against(const char *against, const char *only)
{
    struct hth_study s = study();
    struct hth_study_flags f = HTH_STUDY_FLAGS_INIT;
    char *out = hth_asprintf("%s/k", dir);
    s.params = two_params;
    s.param_count = 2;
    s.points = field;
    s.point_count = HTH_ARRAY_LEN(field);
    s.run = run_field;
    f.seeds = 4;
    f.out = out;
    f.quiet = true;
    f.only = only;
    f.against = against;
    enum hth_err err = hth_study_run(&s, &f);
    hth_free(out);
    return err;
}

/* Seeds change the numbers by up to 1600 and the differences by nothing. */
TEST(differences_are_taken_seed_by_seed)
{
    (void)state;
    assert_ok(run_against("x=1", NULL));
    char *csv = read_file("k", "differences.csv"), *html = read_file("k", "report.html");
    /* x from 1 to 2: 10 + y^2. The second one has seeds 1 and 2: 1 and 2, t(1) = 12.706. */
    assert_non_null(strstr(csv, "\none,low,2,5,35,0,0,4,1.5,0.5,6.353,2,,,,0\n"));
    assert_non_null(strstr(csv, "\none,high,2,7,59,0,0,4,1.5,0.5,6.353,2,,,,0\n"));
    /* no point of its series: the first one */
    assert_non_null(strstr(csv, "\none,other,2,7,1059,0,0,4,"));
    assert_null(strstr(csv, "\none,low,1,")); /* the reference itself */
    assert_null(strstr(csv, "\ntwo,"));
    assert_non_null(strstr(html, "against x=1"));
    assert_non_null(strstr(html, "<td>35.0 &plusmn; 0.0</td>"));
    hth_free(csv);
    hth_free(html);
    assert_ok(run_against("y=5", NULL));
    csv = read_file("k", "differences.csv"); /* 24 x */
    assert_non_null(strstr(csv, "\none,high,1,7,24,0,0,4,"));
    assert_non_null(strstr(csv, "\none,high,2,7,48,0,0,4,"));
    hth_free(csv);
}

/* A run without differences or events removes those of an earlier run from its folder. */
TEST(tables_of_an_earlier_run_are_removed)
{
    (void)state;
    assert_ok(run_against("x=1", NULL));
    assert_true(is_there("k", "differences.csv"));
    assert_ok(run_against(NULL, NULL));
    assert_false(is_there("k", "differences.csv"));
    assert_true(is_there("k", "runs.csv"));
    assert_ok(run_into("e", 1, "two", NULL));
    assert_true(is_there("e", "events.csv"));
    char *with = hth_asprintf("%s/e", dir);
    assert_ok(hth_sim_forget(with));
    assert_false(is_there("e", "events.csv"));
    assert_false(is_there("e", "runs.csv"));
    assert_true(is_there("e", "metrics.csv"));
    hth_free(with);
}

static void touch(const char *sub, const char *name, const char *text)
{
    char *path = hth_asprintf("%s/%s/%s", dir, sub, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    hth_free(path);
}

/* It also removes pictures of parts that it did not run, but no other files. */
TEST(pictures_of_an_earlier_run_are_removed)
{
    (void)state;
    static const char *const pictures[] = {"one.png", "one.svg", "two.png", "two.svg"};
    assert_ok(run_into("d", 1, NULL, NULL));
    for (size_t i = 0; i < HTH_ARRAY_LEN(pictures); i++)
        touch("d", pictures[i], "old"); /* also without gnuplot */
    touch("d", "t.csv", "one.svg");
    touch("b", "one.svg", "beside it");
    assert_ok(run_into("d", 1, "two", NULL));
    assert_false(is_there("d", "one.png"));
    assert_false(is_there("d", "one.svg"));
    assert_true(is_there("d", "t.csv"));
    touch("d", "one.svg", "somebody's own");
    assert_ok(run_into("d", 1, "two", NULL));
    assert_true(is_there("d", "one.svg"));
    /* The script of another program: only pictures are removed, and only in this folder. */
    touch("d", "plot.gp",
          "set output '../b/one.svg'\nset output 't.csv'\nset output 'x\n"
          "if (t == 1) { set terminal png; set output 'one.svg' }\n");
    char *with = hth_asprintf("%s/d", dir);
    assert_ok(hth_sim_forget(with));
    hth_free(with);
    assert_true(is_there("b", "one.svg") && is_there("d", "t.csv"));
    assert_false(is_there("d", "one.svg"));
}

TEST(differences_of_differences)
{
    (void)state;
    assert_ok(run_against("x=1,y=5", "one"));
    char *csv = read_file("k", "differences.csv");
    assert_non_null(strstr(csv, "\none,high,2,7,24,0,0,4,"));
    assert_null(strstr(csv, "\none,low,"));
    assert_null(strstr(csv, ",7,24,0,0,4,0,0,0,4,")); /* 1.5 - 1.5, with two seeds */
    assert_non_null(strstr(csv, ",7,24,0,0,4,0,0,0,2,"));
    hth_free(csv);
}

TEST(against_without_a_reference_is_refused)
{
    (void)state;
    static const char *const bad[] = {
        "",        "x",  "z=1",    "x=", "x=1x", "x=nan", "x=9", "x=1,,", "x=1,y=5,x=1,y=5",
        "x=1,y=6", "=1", "x=1,x=2"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++)
        if (run_against(bad[i], NULL) != HTH_E_USAGE)
            fail_msg("--against '%s' passes", bad[i]);
    assert_err(HTH_E_USAGE, run_against("x=1", "two"));
}

/* With the texts of argp: conditions on two parameters must both hold, one parameter may not have
 * two. */
static enum hth_err run_where(const char *first, const char *second, char **csv)
{
    char *words[] = {hth_strdup("x"), hth_asprintf("--where=%s", first),
                     hth_asprintf("--where=%s", second)};
    char *out = hth_asprintf("%s/k", dir);
    struct hth_study s = study();
    struct hth_study_flags flags = HTH_STUDY_FLAGS_INIT;
    s.params = two_params;
    s.param_count = 2;
    s.points = field;
    s.point_count = HTH_ARRAY_LEN(field);
    s.panel_count = 0;
    s.run = run_field;
    assert_int_equal(argp_parse(&hth_study_argp, 3, words, 0, NULL, &flags), 0);
    flags.quiet = true;
    flags.out = out;
    enum hth_err err = hth_study_run(&s, &flags);
    if (err == HTH_OK)
        *csv = read_file("k", "metrics.csv");
    for (size_t i = 0; i < HTH_ARRAY_LEN(words); i++)
        hth_free(words[i]);
    hth_free(out);
    return err;
}

TEST(where_conditions_must_all_hold)
{
    (void)state;
    char *csv;
    assert_ok(run_where("x=2,7", "y=7", &csv));
    assert_non_null(strstr(csv, "\none,high,2,7,"));
    assert_null(strstr(csv, ",2,5,"));
    assert_null(strstr(csv, ",1,7,"));
    hth_free(csv);
    assert_err(HTH_E_USAGE, run_where("x=2", "x=1", &csv));
    assert_err(HTH_E_USAGE, run_where("x=2", "z=1", &csv));
    assert_err(HTH_E_USAGE, run_where("x=2", "y=99", &csv));
}

/* Where nothing can be written nothing is computed. */
TEST(unwritable_folder_is_refused_before_any_run)
{
    (void)state;
    uint64_t runs[3] = {0};
    struct hth_study s = study();
    struct hth_study_flags f = HTH_STUDY_FLAGS_INIT;
    char *file = hth_asprintf("%s/file", dir), *below = hth_asprintf("%s/file/x", dir);
    char *far = hth_asprintf("%s/no/such", dir);
    const char *const places[] = {file, below, far};
    FILE *made = fopen(file, "w");
    assert_non_null(made);
    fclose(made);
    s.run = run_group;
    s.arg = runs;
    f.seeds = 1;
    f.quiet = true;
    for (size_t i = 0; i < HTH_ARRAY_LEN(places); i++) {
        f.out = places[i];
        assert_err(HTH_E_IO, hth_study_run(&s, &f));
        assert_int_equal(runs[1], 0);
    }
    assert_int_equal(unlink(file), 0);
    hth_free(file);
    hth_free(below);
    hth_free(far);
}

TEST(command_omits_options_that_change_no_number)
{
    (void)state;
    static const char *const words[] = {"hearth sim x", "--out",  "/tmp/a",    "--seeds", "3",
                                        "--threads=2",  "--json", "--hosts=4", "--out=b", "--outer",
                                        "--threads"};
    char *argv[HTH_ARRAY_LEN(words)];
    for (size_t i = 0; i < HTH_ARRAY_LEN(words); i++)
        argv[i] = hth_strdup(words[i]);
    char *text = hth_study_command(HTH_ARRAY_LEN(words), argv);
    assert_string_equal(text, "hearth sim x --seeds 3 --hosts=4 --outer");
    for (size_t i = 0; i < HTH_ARRAY_LEN(words); i++)
        hth_free(argv[i]);
    hth_free(text);
}

TEST(json_text_is_escaped)
{
    char got[64] = "";
    FILE *f = tmpfile();
    (void)state;
    assert_non_null(f);
    hth_study_json_text(f, "a \"b\" \\ \t\x1b \xc3\xa4");
    rewind(f);
    assert_non_null(fgets(got, sizeof(got), f));
    fclose(f);
    assert_string_equal(got, "\"a \\\"b\\\" \\\\ \\u0009\\u001b \xc3\xa4\"");
}

TEST(report_shows_a_table)
{
    (void)state;
    char *sub = hth_asprintf("%s/e", dir), *path = hth_asprintf("%s/t.csv", sub);
    mkdir(sub, 0777);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("name,value\n<b>,0.123456789\n,1024\n", f);
    fclose(f);
    f = hth_report_begin(sub, "T", "c", "a");
    assert_non_null(f);
    hth_report_csv(f, sub, "t.csv");
    hth_report_csv(f, sub, "none.csv");
    hth_report_picture(f, sub, "none.svg");
    assert_ok(hth_report_end(f, sub));
    char *html = read_file("e", "report.html");
    assert_non_null(strstr(html, "<tr><th>name</th><th>value</th></tr>\n"
                                 "<tr><td>&lt;b&gt;</td><td>0.12346</td></tr>\n"
                                 "<tr><td></td><td>1024</td></tr>\n</table>\n<p>There is no"));
    hth_free(html);
    hth_free(path);
    hth_free(sub);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json",  "metrics.csv",
                                        "plot.gp",      "report.html",
                                        "one.png",      "one.svg",
                                        "two.png",      "two.svg",
                                        "t.csv",        "events.csv",
                                        "runs.csv",     "differences.csv",
                                        "failures.csv", ""};
    for (char sub = 'a'; sub <= 'k'; sub++)
        for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
            char *path = hth_asprintf("%s/%c/%s", dir, sub, names[i]);
            (void)(names[i][0] != '\0' ? unlink(path) : rmdir(path));
            hth_free(path);
        }
    return rmdir(dir);
}

SUITE_WITH(make_dir, remove_dir)
