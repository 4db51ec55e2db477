/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_studies.c: the output of the studies of `hearth sim`: fields, files, repeats, refusals.
 */
#include "integration/toy.h"
#include "support/suite.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

static char *said(struct proc *proc)
{
    size_t len;
    char *text = place_read(proc->out, &len);
    assert_non_null(text);
    return text;
}

static json_t *object_of(struct proc *proc)
{
    char *text = said(proc);
    json_t *root = json_loads(text, 0, NULL);
    assert_true(json_is_object(root));
    free(text);
    return root;
}

static double number(const json_t *root, const char *name)
{
    const json_t *value = json_object_get(root, name);
    if (!json_is_number(value))
        fail_msg("no number '%s'", name);
    return json_number_value(value);
}

static double element(const json_t *root, const char *name, size_t index)
{
    return json_number_value(json_array_get(json_object_get(root, name), index));
}

PLACE_TEST(test_averaging)
{
    struct place *p = *state;
    assert_int_equal(RUN(p, "a", "sim", "averaging", "--model", "pure", "--method", "moshpit",
                         "--peers", "1024", "--grid", "32x32", "--p-fail", "0.005", "--seeds", "60",
                         "--rounds", "4", "--json", "--threads", "1"),
                     0);
    json_t *root = object_of(&p->proc[0]);
    assert_string_equal(json_string_value(json_object_get(root, "method")), "moshpit");
    assert_string_equal(json_string_value(json_object_get(root, "grid")), "32x32");
    assert_true(number(root, "peers") == 1024 && number(root, "p_fail") == 0.005);
    assert_true(number(root, "seeds") == 60);
    static const char *const lists[] = {"mse", "mse_se", "variance", "variance_se"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(lists); i++)
        assert_int_equal(json_array_size(json_object_get(root, lists[i])), 4);
    assert_close(element(root, "mse", 0), 3.49e-2, 0.05, 0);
    assert_close(element(root, "variance", 0), element(root, "mse", 0), 1e-6, 0);
    assert_close(number(json_object_get(root, "rounds_to"), "1e-9"), 5.14, 0, 0.2);
    assert_true(number(json_object_get(root, "rounds_to_se"), "1e-9") > 0);
    json_decref(root);
    /* The same from two threads. */
    assert_int_equal(RUN(p, "b", "sim", "averaging", "--p-fail", "0.005", "--seeds", "60",
                         "--rounds", "4", "--json", "--threads", "2"),
                     0);
    char *one = said(&p->proc[0]), *two = said(&p->proc[1]);
    assert_string_equal(one, two);
    free(one);
    free(two);
    place_end(p);
}

/* With two seeds the interval is Student's with one degree of freedom: 12.706 standard errors, in
 * the pure model, too. The picture is logarithmic: its bars end at mean * exp(+-half / mean). */
PLACE_TEST(test_two_seeds_say_little)
{
    struct place *p = *state;
    const char *out = place_path(p, "two");
    assert_int_equal(
        RUN(p, "a", "sim", "averaging", "--p-fail", "0.01", "--seeds", "2", "--json", "--out", out),
        0);
    json_t *root = object_of(&p->proc[0]);
    double mean = element(root, "mse", 0), se = element(root, "mse_se", 0), low, high;
    size_t len;
    char *script = place_read(place_path(p, "two/plot.gp"), &len);
    const char *row = strstr(script, "$c0 << EOD\n");
    assert_non_null(row);
    /* round, three other abscissae, error, ends of its bar */
    assert_int_equal(sscanf(row, "$c0 << EOD\n%*s %*s %*s %*s %*s %lf %lf", &low, &high), 2);
    assert_close(log(high / mean) * mean / se, 12.706, 1e-3, 0);
    assert_close(log(mean / low) * mean / se, 12.706, 1e-3, 0);
    free(script);
    json_decref(root);
    place_end(p);
}

/* Two seeds are too few to agree; every figure is there nevertheless, and the fields fit together.
 * (That 200 seeds agree: tests/scenarios/test_published.c.) */
PLACE_TEST(test_golden)
{
    struct place *p = *state;
    assert_int_equal(
        RUN(p, "a", "sim", "averaging", "--table", "--golden", "--json", "--seeds", "2"), 1);
    char *text = said(&p->proc[0]);
    size_t lines = 0, differ = 0;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save), lines++) {
        json_t *root = json_loads(line, 0, NULL);
        const char *figure = json_string_value(json_object_get(root, "figure"));
        double published = number(root, "published"), measured = number(root, "measured");
        bool agrees = json_is_true(json_object_get(root, "agrees"));
        (void)number(root, "standard_error");
        if (strcmp(figure, "error, round 1") == 0)
            assert_true(agrees == (fabs(measured / published - 1) <= 0.05));
        else if (strncmp(figure, "error", 5) == 0)
            assert_true(agrees == (measured >= published / 2 && measured <= 2 * published));
        differ += !agrees;
        json_decref(root);
    }
    assert_int_equal(lines, 149);
    assert_in_range(differ, 4, 100);
    free(text);
    struct proc *proc = START(p, "b", "sim", "averaging", "--golden");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "--golden: needs --table");
    proc = START(p, "c", "sim", "averaging", "--table", "--golden", "--failure", "crash");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "absent for one round");
    place_end(p);
}

PLACE_TEST(test_files)
{
    struct place *p = *state;
    static const char *const files[] = {"out/config.json", "out/metrics.csv", "out/rounds.csv",
                                        "out/plot.gp"};
    char *first[HTH_ARRAY_LEN(files)];
    size_t len;
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(RUN(p, turn == 0 ? "a" : "b", "sim", "averaging", "--method", "all",
                             "--peers", "60", "--grid", "8x8", "--p-fail", "0.01", "--seeds", "20",
                             "--rounds", "6", "--out", place_path(p, "out"), "--no-wall"),
                         0);
        for (size_t i = 0; i < HTH_ARRAY_LEN(files); i++) {
            char *text = place_read(place_path(p, files[i]), &len);
            assert_non_null(text);
            if (turn == 0) {
                first[i] = text;
                continue;
            }
            assert_string_equal(text, first[i]);
            free(text);
            free(first[i]);
        }
    }
    json_t *config = json_load_file(place_path(p, files[0]), 0, NULL);
    assert_int_equal(json_array_size(json_object_get(config, "runs")), 5);
    json_decref(config);
    place_end(p);
}

/* One seed has no interval, and no entry for it in the key. */
PLACE_TEST(test_one_seed)
{
    struct place *p = *state;
    for (int seeds = 1; seeds <= 2; seeds++) {
        size_t len;
        assert_int_equal(RUN(p, seeds == 1 ? "a" : "b", "sim", "averaging", "--model", "both",
                             "--peers", "4", "--grid", "2x2", "--p-fail", "0.1", "--rounds", "2",
                             "--cap", "2", "--seeds", seeds == 1 ? "1" : "2", "--out",
                             place_path(p, "out")),
                         0);
        char *text = place_read(place_path(p, "out/plot.gp"), &len);
        assert_non_null(
            strstr(text, seeds == 1 ? "; seed 1\"\n" : "; 2 seeds, 95 % intervals\"\n"));
        assert_true((strstr(text, "title '95 % interval'") != NULL) == (seeds == 2));
        free(text);
    }
    assert_true(place_exists(p, "out/averaging.svg"));
    place_end(p);
}

/* A folder that can't be written to is reported before the computation starts. */
PLACE_TEST(test_nowhere_to_write)
{
    struct place *p = *state;
    const char *out = place_path(p, "good.yaml/out");
    place_write(p, "good.yaml", "x", 1);
    struct proc *proc = START(p, "a", "sim", "averaging", "--table", "--out", out);
    assert_int_equal(proc_wait(proc), 1);
    proc_must_say(proc, "good.yaml/out': Not a directory; nothing was computed");
    proc = START(p, "b", "sim", "mixing", "--trials", "1000000000", "--out", out);
    assert_int_equal(proc_wait(proc), 1);
    proc_must_say(proc, "nothing was computed");
    proc = START(p, "c", "sim", "vary", "storm", "--vary", "up=1", "--out", out);
    assert_int_equal(proc_wait(proc), 3); /* the missing $up is found first */
    place_end(p);
}

/* Lists of peers, grids and probabilities: each pair in which all have a cell, with each of the
 * probabilities and of the failures, in this order; one object, one row, one place for each. */
PLACE_TEST(test_sweep)
{
    struct place *p = *state;
    static const struct {
        double peers, p_fail;
        const char *grid, *failure;
    } want[] = {{9, 0, "3x3", "absent"},   {9, 0, "3x3", "crash"},     {9, 0.1, "3x3", "absent"},
                {9, 0.1, "3x3", "crash"},  {9, 0, "4x4", "absent"},    {9, 0, "4x4", "crash"},
                {9, 0.1, "4x4", "absent"}, {9, 0.1, "4x4", "crash"},   {12, 0, "4x4", "absent"},
                {12, 0, "4x4", "crash"},   {12, 0.1, "4x4", "absent"}, {12, 0.1, "4x4", "crash"}};
    assert_int_equal(RUN(p, "a", "sim", "averaging", "--peers", "9,12", "--grid", "3x3,4x4",
                         "--p-fail", "0,0.1", "--failure", "absent,crash", "--seeds", "3",
                         "--rounds", "2", "--cap", "4", "--json", "--out", place_path(p, "out")),
                     0);
    char *text = said(&p->proc[0]);
    size_t i = 0, len;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save), i++) {
        json_t *root = json_loads(line, 0, NULL);
        assert_true(i < HTH_ARRAY_LEN(want) && json_is_object(root));
        assert_true(number(root, "peers") == want[i].peers);
        assert_true(number(root, "p_fail") == want[i].p_fail);
        assert_string_equal(json_string_value(json_object_get(root, "grid")), want[i].grid);
        assert_string_equal(json_string_value(json_object_get(root, "failure")), want[i].failure);
        json_decref(root);
    }
    assert_int_equal(i, HTH_ARRAY_LEN(want));
    free(text);
    text = place_read(place_path(p, "out/plot.gp"), &len);
    assert_non_null(strstr(text, "set title '12 peers in 4x4'"));
    assert_non_null(strstr(text, " title \"3 seeds, 95 % intervals; a target not reached"));
    assert_non_null(strstr(text, "set xtics ('0' 0, '10' 1)"));
    assert_non_null(strstr(text, "$s2_1 << EOD\n"));
    assert_null(strstr(text, "$s3_0 "));
    free(text);
    assert_int_equal(RUN(p, "b", "sim", "averaging", "--peers", "9", "--grid", "4x4", "--p-fail",
                         "0,0.1", "--seeds", "3", "--rounds", "2", "--cap", "4"),
                     0);
    text = said(&p->proc[1]);
    assert_non_null(strstr(text, "\n       9 4x4             0 absent     pure      moshpit"));
    assert_non_null(strstr(text, "\n       9 4x4           0.1 absent     pure      moshpit"));
    free(text);
    place_end(p);
}

/* The production averager, side by side with the model: fields and files, the same twice. */
PLACE_TEST(test_protocol)
{
    struct place *p = *state;
    static const char *const files[] = {"out/config.json", "out/metrics.csv", "out/rounds.csv",
                                        "out/events.csv", "out/plot.gp"};
    static const char *const lists[] = {"mse",     "mse_se",  "variance",     "variance_se",
                                        "seconds", "bytes",   "vectors_sent", "success",
                                        "members", "fraction"};
    char *first[HTH_ARRAY_LEN(files)];
    size_t len;
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(RUN(p, turn == 0 ? "a" : "b", "sim", "averaging", "--model", "both",
                             "--peers", "9", "--grid", "3x3", "--p-fail", "0.1", "--failure",
                             "crash", "--seeds", "2", "--rounds", "3", "--cap", "4", "--dim", "16",
                             "--json", "--events", "--out", place_path(p, "out"), "--threads",
                             turn == 0 ? "1" : "2"),
                         0);
        for (size_t i = 0; i < HTH_ARRAY_LEN(files); i++) {
            char *text = place_read(place_path(p, files[i]), &len);
            assert_non_null(text);
            if (turn == 0) {
                first[i] = text;
                continue;
            }
            assert_string_equal(text, first[i]);
            free(text);
            free(first[i]);
        }
    }
    char *text = said(&p->proc[0]), *second = strchr(text, '\n');
    json_t *root = json_loads(second, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "model")), "protocol");
    assert_string_equal(json_string_value(json_object_get(root, "method")), "moshpit");
    assert_string_equal(json_string_value(json_object_get(root, "failure")), "crash");
    assert_true(number(root, "peers") == 9 && number(root, "p_fail") == 0.1);
    assert_true(number(root, "seeds") == 2 && number(root, "dim") == 16);
    for (size_t i = 0; i < HTH_ARRAY_LEN(lists); i++)
        assert_int_equal(json_array_size(json_object_get(root, lists[i])), 3);
    assert_true(element(root, "seconds", 0) > 0 && element(root, "bytes", 0) > 0);
    assert_true(number(json_object_get(root, "rounds_to"), "1e-4") <= 4);
    json_decref(root);
    free(text);
    text = place_read(place_path(p, "out/events.csv"), &len);
    assert_non_null(strstr(text, "run,time_s,node,event,detail\n"));
    assert_non_null(strstr(text, "1,5.000000,,round begins,\n"));
    assert_non_null(strstr(text, ",averaged,3 members\n"));
    free(text);
    place_end(p);
}

PLACE_TEST(test_mixing)
{
    struct place *p = *state;
    assert_int_equal(RUN(p, "a", "sim", "mixing", "--peers", "8", "--groups", "2", "--trials",
                         "50000", "--json", "--out", place_path(p, "out")),
                     0);
    assert_true(place_exists(p, "out/report.html"));
    size_t len;
    char *csv = place_read(place_path(p, "out/metrics.csv"), &len);
    assert_non_null(strstr(csv, "\nmixing,exact,1,0.142857143,,,1\n"));
    assert_non_null(strstr(csv, "\nmixing,printed bound,1,0.15625,,,1\n"));
    free(csv);
    json_t *root = object_of(&p->proc[0]);
    double measured = number(root, "measured"), error = number(root, "standard_error");
    assert_close(number(root, "exact"), 1.0 / 7, 0, 1e-8);
    assert_close(number(root, "printed"), 0.15625, 0, 1e-8);
    assert_true(error > 0 && error < 1e-3);
    assert_close(measured, 1.0 / 7, 0, 4 * error);
    assert_true(measured < 0.15625);
    json_decref(root);
    place_end(p);
}

PLACE_TEST(test_shares)
{
    struct place *p = *state;
    assert_int_equal(
        RUN(p, "a", "sim", "shares", "--bandwidth", "1000,200x7", "--elements", "1001", "--json"),
        0);
    json_t *root = object_of(&p->proc[0]);
    double sum = 0;
    assert_int_equal(json_array_size(json_object_get(root, "bandwidth")), 8);
    assert_close(element(root, "shares", 0), 0.805556, 0, 1e-6);
    assert_close(element(root, "shares", 7), 0.027778, 0, 1e-6);
    assert_close(number(root, "xi"), 0.005833, 0, 1e-6);
    for (size_t i = 0; i < 8; i++)
        sum += element(root, "counts", i);
    assert_true(sum == 1001);
    json_decref(root);
    /* With a minimum that only the first one reaches it reduces for all: it moves 1 + 6 vectors. */
    assert_int_equal(RUN(p, "b", "sim", "shares", "--bandwidth", "1000,200x7", "--elements", "1001",
                         "--minimum", "100", "--json"),
                     0);
    root = object_of(&p->proc[1]);
    assert_true(element(root, "counts", 0) == 1001 && element(root, "shares", 0) == 1);
    assert_true(element(root, "shares", 7) == 0);
    assert_close(number(root, "xi"), 0.007, 0, 1e-9);
    assert_close(number(root, "adaptive_s"), 0.007 * 1001 * 32e-6, 1e-6, 0);
    json_decref(root);
    place_end(p);
}

PLACE_TEST(test_links)
{
    struct place *p = *state;
    assert_int_equal(RUN(p, "a", "sim", "links", "--bandwidth", "1000x2,200x4", "--json"), 0);
    json_t *root = object_of(&p->proc[0]);
    const json_t *adaptive = json_object_get(root, "adaptive");
    assert_close(number(adaptive, "steady_s"), number(adaptive, "predicted_s"), 0.02, 0);
    assert_true(number(root, "ratio") > 1.5);
    json_decref(root);
    place_end(p);
}

PLACE_TEST(test_scenarios)
{
    struct place *p = *state;
    assert_int_equal(RUN(p, "a", "sim", "run", "calm", "--seed", "3", "--no-wall"), 0);
    assert_int_equal(RUN(p, "b", "sim", "run", "calm", "--seed", "3", "--no-wall"), 0);
    char *one = said(&p->proc[0]), *two = said(&p->proc[1]);
    assert_string_equal(one, two);
    assert_non_null(strstr(one, "scenario calm, seed 3: 50 nodes"));
    assert_non_null(strstr(one, "PASS scenario=calm seed=3 hash="));
    free(one);
    free(two);
    assert_int_equal(RUN(p, "c", "sim", "hunt", "faults", "--seeds", "7", "--jobs", "3"), 0);
    one = said(&p->proc[2]);
    assert_non_null(strstr(one, "PASS hunt scenario=faults seeds=7 failed=0"));
    free(one);
    assert_int_equal(RUN(p, "f", "sim", "run", "calm", "--seed", "3", "--no-wall", "--events",
                         "--out", place_path(p, "calm")),
                     0);
    two = said(&p->proc[3]);
    size_t len;
    char *events = place_read(place_path(p, "calm/events.csv"), &len);
    assert_non_null(strstr(two, "PASS scenario=calm seed=3 hash="));
    assert_non_null(strstr(events, "seed,time_s,node,event,detail\n3,"));
    free(two);
    free(events);
    assert_int_equal(RUN(p, "d", "sim", "run", "./missing.yaml"), 3);
    assert_int_equal(RUN(p, "e", "sim", "hunt"), 2);
    place_end(p);
}

/* A number of a scenario takes two values: calls take two round trips of what it says, and more
 * with a worker each; the same from one thread and from two. */
PLACE_TEST(test_vary)
{
    struct place *p = *state;
    static const char text[] = "name: %s\nnodes: 4\nduration_s: 20\nsafety: 0\n"
                               "load: { hood: 4, payload_kib: 1 }\n"
                               "links: { latency_ms: [$far, %s] }\n";
    const char *good = place_text(p, text, "good", "$far");
    const char *bad = place_text(p, text, "bad", "$farther");
    place_write(p, "good.yaml", good, strlen(good));
    place_write(p, "bad.yaml", bad, strlen(bad));
    const char *path = place_path(p, "good.yaml");
    assert_int_equal(RUN(p, "a", "sim", "vary", path, "--vary", "far=20,200", "--seeds", "2",
                         "--json", "--threads", "1", "--out", place_path(p, "out")),
                     0);
    assert_int_equal(RUN(p, "b", "sim", "vary", path, "--vary", "far=20,200", "--seeds", "2",
                         "--json", "--threads", "2"),
                     0);
    char *one = said(&p->proc[0]), *two = said(&p->proc[1]);
    assert_string_equal(one, two);
    free(two);
    double ms[2] = {0};
    size_t lines = 0;
    for (char *save = NULL, *line = strtok_r(one, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        json_t *root = json_loads(line, 0, NULL);
        assert_true(json_is_object(root) && lines < 2);
        assert_string_equal(json_string_value(json_object_get(root, "series")), "good");
        assert_true(number(root, "far") == (lines == 0 ? 20 : 200));
        assert_true(number(root, "passed_pct") == 100 && number(root, "deaths") == 0);
        ms[lines++] = number(root, "median_ms");
        json_decref(root);
    }
    assert_int_equal(lines, 2);
    assert_close(ms[1] - ms[0], 2 * 180, 0.1, 0);
    free(one);
    assert_true(place_exists(p, "out/report.html"));
    json_t *config = json_load_file(place_path(p, "out/config.json"), 0, NULL);
    json_t *source = json_array_get(json_object_get(config, "sources"), 0);
    assert_string_equal(json_string_value(json_object_get(source, "path")), path);
    assert_string_equal(json_string_value(json_object_get(source, "text")), good);
    assert_non_null(json_object_get(config, "build"));
    json_decref(config);
    size_t len;
    char *script = place_read(place_path(p, "out/plot.gp"), &len);
    assert_non_null(strstr(script, "\nset xlabel 'latency_ms (ms)'"));
    free(script);
    struct proc *proc = START(p, "c", "sim", "vary", place_path(p, "bad.yaml"), "--vary", "far=20");
    assert_int_equal(proc_wait(proc), 3);
    proc_must_say(proc, "$farther");
    proc = START(p, "d", "sim", "vary", path, "--vary", "near=20");
    assert_int_equal(proc_wait(proc), 3);
    proc_must_say(proc, "the file has no $near to vary");
    proc = START(p, "e", "sim", "vary", path, path, "--vary", "far=20");
    assert_int_equal(proc_wait(proc), 3);
    proc_must_say(proc, "are both named 'good'");
    assert_int_equal(RUN(p, "f", "sim", "vary", path, "--vary", "far=0.25,20", "--seeds", "1"), 0);
    one = said(&p->proc[5]);
    assert_non_null(strstr(one, " 0.25 "));
    assert_non_null(strstr(one, " 20.00 "));
    free(one);
    place_end(p);
}

/* ---- a hunt that is interrupted: no seed of its scenario ends while the test runs
 * ------------- */

#define HUNTERS 2

static struct proc *start_endless_hunt(struct place *p)
{
    static const char text[] = "name: endless\nnodes: 20\nduration_s: 86400\n"
                               "load: { calls_per_s: 100 }\n";
    place_write(p, "endless.yaml", text, strlen(text));
    return START(p, "a", "sim", "hunt", place_path(p, "endless.yaml"), "--minutes", "60", "--jobs",
                 "2");
}

/* The number behind `key` in a file of /proc/PID; 0 while it is not there. */
static unsigned long proc_number(int pid, const char *file, const char *key)
{
    char path[96], line[128];
    unsigned long value = 0;
    snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            value = strtoul(line + strlen(key), NULL, 10);
    if (f != NULL)
        fclose(f);
    return value;
}

/* Waits until each child has written that it begins with its seed. */
static void await_hunters(const struct proc *proc, int child[HUNTERS])
{
    const struct timespec moment = {.tv_nsec = 5000000};
    char path[96];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)proc->pid, (int)proc->pid);
    for (int begun = 0; begun < HUNTERS; nanosleep(&moment, NULL)) {
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        int known = fscanf(f, "%d %d", &child[0], &child[1]);
        fclose(f);
        begun = 0;
        for (int c = 0; c < known; c++)
            begun += proc_number(child[c], "io", "wchar:") > 0;
    }
}

/* An interrupted hunt prints its findings and leaves no process behind. */
PLACE_TEST(test_an_interrupted_hunt)
{
    struct place *p = *state;
    struct proc *proc = start_endless_hunt(p);
    int child[HUNTERS];
    await_hunters(proc, child);
    proc_signal(proc, SIGINT);
    assert_int_equal(proc_wait(proc), 130);
    char *text = said(proc);
    assert_non_null(strstr(text, " hunt scenario=endless seeds=0 failed=0 "));
    assert_non_null(strstr(text, " interrupted=1\n"));
    free(text);
    for (int c = 0; c < HUNTERS; c++)
        assert_true(kill(child[c], 0) != 0 && errno == ESRCH);
}

/* A child's crash is found, though the hunt is interrupted before its round is over. */
PLACE_TEST(test_hunt_interrupted_after_a_crash)
{
    struct place *p = *state;
    struct proc *proc = start_endless_hunt(p);
    int child[HUNTERS];
    await_hunters(proc, child);
    assert_int_equal(kill(child[0], SIGKILL), 0);
    proc_signal(proc, SIGINT);
    assert_int_equal(proc_wait(proc), 1);
    char *text = said(proc);
    assert_non_null(strstr(text, "why=\"ended by signal 9\""));
    assert_non_null(strstr(text, "FAIL hunt scenario=endless seeds=1 failed=1 "));
    assert_non_null(strstr(text, " interrupted=1\n"));
    free(text);
}

/* One object for each point, the same from one thread and from two. */
PLACE_TEST(test_convergence)
{
    struct place *p = *state;
    static const char *const numbers[] = {"delay_ms",  "fail_pct",     "experts",    "flights",
                                          "grace_s",   "loss",         "right_pct",  "answered_pct",
                                          "short_pct", "useful_per_s", "wasted_pct", "busiest",
                                          "staleness", "used",         "seeds"};
    struct toy toy;
    toy_init(&toy, p, 1);
    const char *data = place_path(p, "data");
    for (int threads = 1; threads <= 2; threads++)
        assert_int_equal(RUN(p, threads == 1 ? "a" : "b", "sim", "convergence", "--quick",
                             "--updates", "64", "--seeds", "1", "--only", "grace", "--data", data,
                             "--backend", "ref", "--json", "--threads", threads == 1 ? "1" : "2"),
                         0);
    char *one = said(&p->proc[0]), *two = said(&p->proc[1]);
    assert_string_equal(one, two);
    size_t lines = 0;
    for (char *save = NULL, *line = strtok_r(one, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        json_t *root = json_loads(line, 0, NULL);
        assert_true(json_is_object(root));
        assert_string_equal(json_string_value(json_object_get(root, "study")), "convergence");
        for (size_t i = 0; i < HTH_ARRAY_LEN(numbers); i++)
            (void)number(root, numbers[i]);
        assert_true(number(root, "fail_pct") == 10 && number(root, "experts") == 16);
        lines++;
        json_decref(root);
    }
    assert_int_equal(lines, 6);
    free(one);
    free(two);
    struct proc *proc = START(p, "c", "sim", "storm", "--quick", "--data", "/nowhere");
    assert_int_equal(proc_wait(proc), 1);
    proc_must_say(proc, "install dataset-fashion-mnist, or give --data DIR");
    place_end(p);
}

/* A machine is measured, and a scenario's device is that machine; and those of other files. */
PLACE_TEST(test_profile)
{
    struct place *p = *state;
    static const char head[] = "name: t\nnodes: 4\nduration_s: 20\nsafety: 0\nload: { hood: 4 }\n"
                               "devices:\n  - { name: d, share: 1, profile: ";
    static const char rest[] = "workers: 1\ngbytes_per_s: 1\n";
    static const char *const names[] = {"own", "fast", "slow", "none"};
    const char *fast = place_text(p, "name: fast\ngflops: 1000\n%s", rest);
    const char *slow = place_text(p, "name: slow\ngflops: 0.5\n%s", rest);
    place_write(p, "fast.yaml", fast, strlen(fast));
    place_write(p, "slow.yaml", slow, strlen(slow));
    assert_int_equal(RUN(p, "bench", "bench", "--profile", "--dims", "16,32", "--rows", "1,8",
                         "--threads", "2", "--budget", "1ms", "--out", place_path(p, "own.yaml")),
                     0);
    double median_ms[4] = {0};
    for (size_t i = 0; i < 4; i++) {
        const char *file = place_text(p, "%s%s.yaml }\n", head, names[i]);
        const char *path = place_text(p, "%s.scenario", names[i]);
        place_write(p, path, file, strlen(file));
        struct proc *proc = START(p, names[i], "sim", "run", place_path(p, path), "--no-wall");
        assert_int_equal(proc_wait(proc), i < 3 ? 0 : 3);
        char *text = said(proc);
        const char *at = strstr(text, "median_ms=");
        assert_true((at != NULL) == (i < 3));
        median_ms[i] = at != NULL ? strtod(at + strlen("median_ms="), NULL) : 0;
        free(text);
        if (i == 3)
            proc_must_say(proc, "none.yaml");
    }
    /* 5e7 operations at 0.5e9 a second against next to nothing. */
    assert_true(median_ms[0] > 0);
    assert_close(median_ms[2] - median_ms[1], 100, 0.02, 0);
}

/* The simulated half of the comparison: a trainer's line of 20 Mbit/s carries 2 rows of 512 bytes
 * up for each of 4 experts, 2 layers and 64 samples of an update. */
PLACE_TEST(test_fidelity)
{
    struct place *p = *state;
    assert_int_equal(RUN(p, "a", "sim", "fidelity", "--simulated", "--only", "lines", "--json",
                         "--out", place_path(p, "fidelity")),
                     0);
    char *text = said(&p->proc[0]);
    char *end = strchr(text, '\n');
    assert_non_null(end);
    *end = '\0';
    json_t *root = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "figure")), "samples_per_s");
    double most = 20e6 / 8 / (2 * 512 * 4 * 2);
    /* One update of 64 samples may be on its way as the measurement begins, and lands within it. */
    assert_in_range(number(root, "simulated"), 0.9 * most, most + 64 / 8.0);
    assert_true(json_is_null(json_object_get(root, "real")));
    json_decref(root);
    free(text);
    assert_true(place_exists(p, "fidelity/lines5/simulated.csv"));
    assert_int_equal(RUN(p, "b", "sim", "fidelity", "--only", "all"), 2);
}

PLACE_TEST(test_refusals)
{
    static const char *const bad[][4] = {
        {"averaging", "--p-fail", "1", "--p-fail '1'"},
        {"averaging", "--grid", "32y32", "--grid '32y32'"},
        {"averaging", "--grid", "4x4,5x5", "no --grid has a cell"},
        {"averaging", "--p-fail", "0,2", "--p-fail '2'"},
        {"averaging", "--p-fail", "0.1,0.10", "--p-fail '0.10': given twice"},
        {"averaging", "--p-fail", ".1,.2,.3,.4,.5,.6,.7,.8,.9", "--p-fail: at most 8"},
        {"averaging", "--peers", ",", "--peers ',': a value is expected"},
        {"averaging", "--peers", "1", "--peers '1': it must be a whole number from 2 to 65536"},
        {"averaging", "--p-fail", "0.1,", "--p-fail '0.1,': a value beside a comma is missing"},
        {"averaging", "--failure", ",absent",
         "--failure ',absent': a value beside a comma is missing"},
        {"averaging", "--peers", "2,,4", "--peers '2,,4': a value beside a comma is missing"},
        {"averaging", "--method", "shout", "--method 'shout'"},
        {"averaging", "--model", "real", "--model 'real'"},
        {"averaging", "--failure", "flood", "--failure 'flood'"},
        {"averaging", "--events", "--json", "needs --out DIR"},
        {"mixing", "--groups", "9", "--groups 9"},
        {"vary", "--vary", "up=x", "--vary 'up=x'"},
        {"vary", "--vary", "up=1", "which scenario"},
        {"shares", "--bandwidth", "1000,-1", "--bandwidth"},
        {"shares", "--bandwidth", "1000,nan", "--bandwidth"},
        {"shares", "--bandwidth", "1x257", "at most 256 peers"},
        {"shares", "--elements", "5", "which bandwidths?"},
        {"links", "--bandwidth", "0,1", "each peer needs a rate above 0"},
        {"links", "--bandwidth", "1", "at least two peers"},
    };
    struct place *p = *state;
    for (size_t i = 0; i < HTH_ARRAY_LEN(bad); i++) {
        struct proc *proc =
            START(p, place_text(p, "p%zu", i), "sim", bad[i][0], bad[i][1], bad[i][2]);
        assert_int_equal(proc_wait(proc), 2);
        proc_must_say(proc, bad[i][3]);
    }
    struct proc *proc = START(p, "cells", "sim", "averaging", "--peers", "1025");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "choose a larger --grid");
    proc = START(p, "many", "sim", "averaging", "--model", "protocol", "--grid", "65x65", "--peers",
                 "4097");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "--peers '4097': with --model protocol at most 4096");
    proc = START(p, "gossip", "sim", "averaging", "--model", "protocol", "--method", "gossip");
    assert_int_equal(proc_wait(proc), 2);
    proc_must_say(proc, "exists only with --model pure");
    place_end(p);
}
