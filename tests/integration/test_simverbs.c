/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_simverbs.c: one small run of each study that test_studies.c leaves out, on the command line:
 * fields, files, the same bytes from the same seed and others from another.
 */
#include "integration/place.h"
#include "support/suite.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#define FIELDS_MAX 16

static char *said(const struct proc *proc)
{
    size_t len;
    char *text = place_read(proc->out, &len);
    assert_non_null(text);
    return text;
}

static double number(const json_t *root, const char *name)
{
    const json_t *value = json_object_get(root, name);
    if (!json_is_number(value))
        fail_msg("no number '%s'", name);
    return json_number_value(value);
}

/* Calls `look` for the object of each line; the number of lines. */
static size_t each_line(const struct proc *proc,
                        void (*look)(const json_t *root, size_t line, void *arg), void *arg)
{
    char *text = said(proc);
    size_t count = 0;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        json_t *root = json_loads(line, 0, NULL);
        if (!json_is_object(root))
            fail_msg("not an object: %s", line);
        look(root, count++, arg);
        json_decref(root);
    }
    free(text);
    return count;
}

static bool same_words(const struct proc *a, const struct proc *b)
{
    char *one = said(a), *two = said(b);
    bool same = strcmp(one, two) == 0;
    free(one);
    free(two);
    return same;
}

/* Starts `hearth sim ARGS... MORE...` and waits for a good end. */
static struct proc *run_sim(struct place *p, const char *name, const char *const *args,
                            const char *const *more)
{
    const char *all[24] = {"sim"};
    size_t count = 1;
    for (; *args != NULL; args++)
        all[count++] = *args;
    for (; *more != NULL; more++)
        all[count++] = *more;
    assert_true(count < HTH_ARRAY_LEN(all));
    struct proc *proc = place_start(p, name, all);
    assert_int_equal(proc_wait(proc), 0);
    return proc;
}

#define MORE(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- studies ------------------------------------------------------------------------------- */

struct study {
    const char *args[14];
    const char *part, *axis;        /* what is varied */
    const char *fields[FIELDS_MAX]; /* null where there was nothing to measure */
    double values[6];               /* of the axis, in turn */
    size_t series;
    const char *event; /* in events.csv */
    /* A relation between the first and the last point of the first series. */
    bool (*holds)(double first, double last);
    const char *held; /* the field of the relation */
};

static bool is_more(double first, double last)
{
    return last > 1.5 * first;
}

static bool is_less(double first, double last)
{
    return last < first;
}

struct seen {
    const struct study *study;
    size_t values;
    double first, last;
};

static void look_at_point(const json_t *root, size_t line, void *arg)
{
    struct seen *seen = arg;
    const struct study *s = seen->study;
    assert_string_equal(json_string_value(json_object_get(root, "study")), s->args[0]);
    assert_string_equal(json_string_value(json_object_get(root, "part")), s->part);
    assert_true(json_is_string(json_object_get(root, "series")));
    assert_true(number(root, "seeds") == 2);
    assert_true(number(root, s->axis) == s->values[line % seen->values]);
    for (size_t i = 0; i < FIELDS_MAX && s->fields[i] != NULL; i++) {
        char se[64];
        snprintf(se, sizeof(se), "%s_se", s->fields[i]);
        const json_t *mean = json_object_get(root, s->fields[i]);
        assert_true(json_is_number(mean) || json_is_null(mean));
        mean = json_object_get(root, se);
        assert_true(json_is_number(mean) || json_is_null(mean));
    }
    if (line == 0)
        seen->first = number(root, s->held);
    if (line + 1 == seen->values)
        seen->last = number(root, s->held);
}

/* A study writes the same bytes from one thread and from two, and others from another seed. */
static void check_study(struct place *p, const struct study *s)
{
    static const char *const files[] = {"config.json", "metrics.csv", "events.csv", "plot.gp"};
    struct seen seen = {.study = s};
    while (seen.values < HTH_ARRAY_LEN(s->values) && s->values[seen.values] >= 0)
        seen.values++;
    const char *one = place_path(p, "one"), *two = place_path(p, "two");
    struct proc *a = run_sim(p, "a", s->args, MORE("--threads", "1", "--events", "--out", one));
    struct proc *b = run_sim(p, "b", s->args, MORE("--threads", "2", "--events", "--out", two));
    struct proc *c = run_sim(p, "c", s->args, MORE("--seed", "7"));
    assert_int_equal(each_line(a, look_at_point, &seen), seen.values * s->series);
    if (!s->holds(seen.first, seen.last))
        fail_msg("%s %s: %g, then %g", s->args[0], s->held, seen.first, seen.last);
    assert_true(same_words(a, b));
    assert_false(same_words(a, c));
    for (size_t i = 0; i < HTH_ARRAY_LEN(files); i++) {
        size_t len[2];
        char *x = place_read(place_path(p, place_text(p, "one/%s", files[i])), &len[0]);
        char *y = place_read(place_path(p, place_text(p, "two/%s", files[i])), &len[1]);
        assert_non_null(x);
        assert_non_null(y);
        assert_true(len[0] == len[1] && memcmp(x, y, len[0]) == 0);
        if (i == 2 && strstr(x, s->event) == NULL)
            fail_msg("no '%s' in events.csv", s->event);
        free(x);
        free(y);
    }
    assert_true(place_exists(p, "one/report.html"));
    place_end(p);
}

PLACE_TEST(throughput_study_is_consistent)
{
    static const struct study s = {
        .args = {"throughput", "--only", "trainers", "--flights", "2", "--updates", "5", "--hosts",
                 "2", "--seeds", "2", "--json"},
        .part = "trainers",
        .axis = "trainers",
        .fields = {"samples_per_s", "useful_per_s", "lost_pct", "staleness", "deaths"},
        .values = {1, 2, 4, 8, -1},
        .series = 4,
        .event = ",boot,",
        .holds = is_more,
        .held = "samples_per_s"};
    check_study(*state, &s);
}

PLACE_TEST(churn_study_is_consistent)
{
    static const struct study s = {.args = {"churn", "--only", "churn", "--peers", "8", "--hood",
                                            "4", "--duration", "30s", "--seeds", "2", "--json"},
                                   .part = "churn",
                                   .axis = "replaced_pct",
                                   .fields = {"goodput_pct", "discover_s", "discover_p95_s",
                                              "forget_s", "forget_p95_s", "dead_pct", "newcomer_s",
                                              "recovery_s", "median_ms", "deaths"},
                                   .values = {1, 3, 10, 30, 100, -1},
                                   .series = 3,
                                   .event = ",crash,",
                                   .holds = is_less,
                                   .held = "goodput_pct"};
    check_study(*state, &s);
}

PLACE_TEST(dht_study_is_consistent)
{
    static const struct study s = {.args = {"dht", "--only", "dead", "--hosts", "8", "--nodes",
                                            "16", "--trainers", "2", "--seeds", "2", "--json"},
                                   .part = "dead",
                                   .axis = "dead_pct",
                                   .fields = {"first_s", "exact_s", "exact_pct", "living_pct",
                                              "dht_requests", "warm_requests"},
                                   .values = {0, 10, 20, 30, 50, -1},
                                   .series = 2,
                                   .event = ",crash,",
                                   .holds = is_less,
                                   .held = "living_pct"};
    check_study(*state, &s);
}

/* ---- latency, smoke, collab ---------------------------------------------------------------- */

static void look_at_latency(const json_t *root, size_t line, void *arg)
{
    static const char *const fields[] = {"samples_per_s", "ratio", "staleness_mean",
                                         "answers_missing", "virtual_s"};
    double *ratio = arg;
    assert_true(number(root, "delay_ms") == (line % 2 == 0 ? 0 : 100));
    assert_true(number(root, "flights") == (line < 2 ? 8 : 1));
    for (size_t i = 0; i < HTH_ARRAY_LEN(fields); i++)
        assert_true(number(root, fields[i]) >= 0);
    assert_int_equal(strlen(json_string_value(json_object_get(root, "hash"))), 16);
    ratio[line] = number(root, "ratio");
}

/* Flights in the air hide a delay better than one does. */
static void look_at_places(const json_t *root, size_t line, void *arg)
{
    static const char *const starts[] = {"at once", "uniform", "one by one"};
    (void)arg;
    assert_in_range(number(root, "hosts"), 2, 40);
    assert_string_equal(json_string_value(json_object_get(root, "start")), starts[line % 3]);
    assert_true(number(root, "served") == 1 && number(root, "twice") == 0);
    assert_true(number(root, "s") > 0 && number(root, "s") < 30);
}

PLACE_TEST(hosts_share_the_places)
{
    struct place *p = *state;
    static const char *const args[] = {"places", "--seeds", "1", NULL};
    struct proc *proc = run_sim(p, "places", args, MORE("--json"));
    assert_int_equal(each_line(proc, look_at_places, NULL), 21);
    place_end(p);
}

PLACE_TEST(more_flights_hide_latency)
{
    static const char *const args[] = {"latency",  "--delays", "0,100",   "--updates", "20",
                                       "--layers", "1",        "--hosts", "2",         "--flights",
                                       "8",        "--json",   NULL};
    struct place *p = *state;
    double ratio[4] = {0};
    struct proc *a = run_sim(p, "a", args, MORE("--seed", "1"));
    struct proc *b = run_sim(p, "b", args, MORE("--seed", "1"));
    struct proc *c = run_sim(p, "c", args, MORE("--seed", "2"));
    assert_int_equal(each_line(a, look_at_latency, ratio), 4);
    assert_true(ratio[0] == 1 && ratio[2] == 1);
    assert_true(ratio[1] > 2 * ratio[3]);
    assert_true(same_words(a, b));
    assert_false(same_words(a, c));
    struct proc *proc = START(p, "d", "sim", "latency", "--delays", "5,x");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "--delays '5,x'");
    place_end(p);
}

/* Every call has one end, and without faults all of them the good one. */
PLACE_TEST(smoke_calls_all_end)
{
    static const char *const args[] = {"smoke", "--peers",   "8", "--payload",
                                       "1KiB",  "--no-wall", NULL};
    static const char *const ends[] = {" calls=", " ok=", " failed=", " again=", " vanished="};
    struct place *p = *state;
    struct proc *a = run_sim(p, "a", args, MORE("--seed", "3"));
    struct proc *b = run_sim(p, "b", args, MORE("--seed", "3"));
    struct proc *c = run_sim(p, "c", args, MORE("--seed", "3", "--calm"));
    assert_true(same_words(a, b));
    for (int calm = 0; calm < 2; calm++) {
        char *text = said(calm ? c : a);
        double count[HTH_ARRAY_LEN(ends)];
        assert_non_null(strstr(text, "PASS seed=3 hash="));
        assert_null(strstr(text, "wall"));
        for (size_t i = 0; i < HTH_ARRAY_LEN(ends); i++) {
            const char *at = strstr(text, ends[i]);
            assert_non_null(at);
            count[i] = strtod(at + strlen(ends[i]), NULL);
        }
        assert_true(count[0] == count[1] + count[2] + count[3] + count[4]);
        assert_true(count[1] > 100);
        assert_true(calm ? count[0] == count[1] : count[0] > count[1]);
        free(text);
    }
    place_end(p);
}

static void look_at_collab(const json_t *root, size_t line, void *arg)
{
    static const char *const fields[] = {"steps",    "samples",   "samples_min", "loss",
                                         "accuracy", "worst",     "mean",        "last",
                                         "spread",   "catch_ups", "yields",      "virtual_s"};
    static const char *const cases[] = {"calm", "again", "churn"};
    (void)arg;
    assert_true(line < HTH_ARRAY_LEN(cases));
    assert_string_equal(json_string_value(json_object_get(root, "case")), cases[line]);
    assert_string_equal(json_string_value(json_object_get(root, "mode")), "batch");
    for (size_t i = 0; i < HTH_ARRAY_LEN(fields); i++)
        assert_true(isfinite(number(root, fields[i])));
    assert_true(number(root, "trainers") == 2 && number(root, "died") == 0);
    assert_true(number(root, "joined") == (line == 2) && number(root, "steps") == 20);
    assert_true(number(root, "samples_min") >= 256); /* the batch */
    assert_true(number(root, "catch_ups") == (line == 2));
    assert_true(number(root, "spread") == 0); /* one trunk */
    assert_true((number(root, "worst") == 0) == (line == 0));
}

PLACE_TEST(collab_trainers_end_equal)
{
    static const char *const args[] = {"collab",     "--only", "churn", "--steps", "20",
                                       "--trainers", "2",      "--die", "0",       "--join",
                                       "1",          "--json", NULL};
    struct place *p = *state;
    struct proc *a = run_sim(p, "a", args, MORE("--seed", "1"));
    struct proc *b = run_sim(p, "b", args, MORE("--seed", "1"));
    assert_int_equal(each_line(a, look_at_collab, NULL), 3);
    assert_true(same_words(a, b));
    struct proc *proc = START(p, "c", "sim", "collab", "--die", "2", "--trainers", "2");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "at least one must stay");
    proc = START(p, "d", "sim", "collab", "--only", "both");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "--only 'both'");
    place_end(p);
}

/* Rows of runs.csv: the loss of each case, seed and place, and how far off it is said to be. */
struct run_row {
    char series[16];
    double samples, seed, off_pct, loss;
};

static size_t read_curves(struct place *p, struct run_row *rows, size_t max)
{
    size_t len, count = 0;
    char *text = place_read(place_path(p, "out/runs.csv"), &len);
    assert_non_null(text);
    assert_non_null(strstr(text, "part,series,samples,seed,off_pct,loss,"));
    for (char *line = text; line != NULL; line = strchr(line + 1, '\n')) {
        struct run_row *r = &rows[count];
        r->off_pct = NAN; /* not said */
        if (sscanf(line, "\ncurve,%15[a-z],%lf,%lf,%lf,%lf,", r->series, &r->samples, &r->seed,
                   &r->off_pct, &r->loss) != 5 &&
            sscanf(line, "\ncurve,%15[a-z],%lf,%lf,,%lf,", r->series, &r->samples, &r->seed,
                   &r->loss) != 4)
            continue;
        assert_true(++count < max);
    }
    free(text);
    return count;
}

/* The calm run's row of the same seed at the same samples; NULL: it has none. */
static const struct run_row *calm_row(const struct run_row *rows, size_t count,
                                      const struct run_row *of)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].series, "calm") == 0 && rows[i].seed == of->seed &&
            rows[i].samples == of->samples)
            return &rows[i];
    return NULL;
}

/* Each difference is taken from the calm run of the same seed at the same samples. Runs may lack
 * some places, as their steps end at other samples. */
static void check_curves(struct place *p)
{
    static const char *const series[] = {"calm", "again", "churn"};
    struct run_row rows[200];
    size_t count = read_curves(p, rows, HTH_ARRAY_LEN(rows)), of[3] = {0};
    double most[3] = {0};
    for (size_t i = 0; i < count; i++) {
        const struct run_row *r = &rows[i], *beside = calm_row(rows, count, r);
        size_t k = 0;
        while (k < 3 && strcmp(r->series, series[k]) != 0)
            k++;
        assert_true(k < 3);
        of[k]++;
        assert_true((beside == NULL || k == 0) == isnan(r->off_pct));
        if (isnan(r->off_pct))
            continue;
        assert_close(r->off_pct, 100 * (r->loss / beside->loss - 1), 0, 1e-5);
        most[k] = fmax(most[k], fabs(r->off_pct));
    }
    assert_true(of[0] > 10 * 2 && of[1] > 10 * 2 && of[2] > 10 * 2);
    assert_true(most[0] == 0 && most[1] > 0 && most[2] > 0);
    /* Two seeds have no order of samples in common. */
    assert_true(rows[0].seed != rows[1].seed && rows[0].samples == rows[1].samples);
    assert_true(rows[0].loss != rows[1].loss && rows[0].loss != rows[of[0] + 1].loss);
}

struct verdict {
    char text[512];
    double end[3]; /* calm, again, churn */
    size_t ends;
};

static void look_for_verdict(const json_t *root, size_t line, void *arg)
{
    struct verdict *v = arg;
    const char *text = json_string_value(json_object_get(root, "verdict"));
    const char *part = json_string_value(json_object_get(root, "part"));
    (void)line;
    assert_string_equal(json_string_value(json_object_get(root, "study")), "collab");
    if (text != NULL)
        snprintf(v->text, sizeof(v->text), "%s", text);
    if (part == NULL || strcmp(part, "churn") != 0)
        return;
    if (v->ends > 0) /* the calm run has no difference from itself */
        v->end[v->ends] = number(root, "end_pct");
    v->ends++;
}

/* Without deaths and joins there is no difference, which is within any aim, and the exit code is 0.
 * If seven of eight die, two seeds show nothing, and the verdict says so. */
PLACE_TEST(collab_verdict_needs_enough_seeds)
{
    static const char *const calm[] = {"collab",     "--seeds", "2",     "--steps", "20",
                                       "--trainers", "2",       "--die", "0",       "--join",
                                       "0",          "--json",  NULL};
    struct place *p = *state;
    struct verdict v = {.ends = 0};
    struct proc *proc = run_sim(p, "a", calm, MORE("--threads", "2"));
    each_line(proc, look_for_verdict, &v);
    assert_int_equal(v.ends, 3);
    assert_true(v.end[1] != 0 && v.end[2] == 0);
    assert_non_null(strstr(v.text, "PASS: "));
    assert_non_null(strstr(v.text, ": end +0.00 +- 0.00 %, mean +0.00 +- 0.00 %,"));
    proc = START(p, "b", "sim", "collab", "--seed", "3", "--seeds", "2", "--steps", "20",
                 "--trainers", "8", "--die", "7", "--join", "7", "--out", place_path(p, "out"));
    assert_int_equal(proc_wait(proc), 1);
    char *text = said(proc);
    assert_non_null(strstr(text, "\nFAIL: with crashes and joins the loss is not shown to be"));
    free(text);
    check_curves(p);
    proc = START(p, "c", "sim", "collab", "--out", place_path(p, "x"));
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "need --seeds N");
    proc = START(p, "d", "sim", "collab", "--seeds", "2", "--only", "newcomer");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "expected one of: churn, curve");
    place_end(p);
}
