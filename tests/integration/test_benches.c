/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_benches.c: the output of benchmarks with small sizes: the fields, and the relations between
 * them. The figures themselves are not tested; each benchmark checks its own results and exits with
 * 0 if they are right.
 */
#include "integration/place.h"
#include "support/suite.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>

/* The n-th printed row; NULL: there are fewer. */
static json_t *row_of(struct proc *proc, size_t n)
{
    char *text = place_read(proc->out, NULL), *rest = text, *line;
    json_t *row = NULL;

    assert_non_null(text);
    for (size_t i = 0; (line = strtok_r(rest, "\n", &rest)) != NULL; i++)
        if (i == n) {
            row = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
            assert_true(json_is_object(row));
            break;
        }
    free(text);
    return row;
}

static double number(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);

    if (!json_is_number(value))
        fail_msg("no number '%s'", name);
    assert_true(isfinite(json_number_value(value)));
    return json_number_value(value);
}

static void text_is(const json_t *row, const char *name, const char *want)
{
    const char *text = json_string_value(json_object_get(row, name));

    assert_non_null(text);
    assert_string_equal(text, want);
}

/* Figures are printed with four digits. */
static void is_ratio(const json_t *row, const char *ratio, double a, double b)
{
    assert_close(number(row, ratio), a / b, 2e-3, 0);
}

static struct proc *bench(struct place *p, const char *name, const char *const *more)
{
    const char *args[32] = {"bench",    name,   "--json",    "--repeats", "1",
                            "--budget", "50ms", "--threads", "1"};
    size_t n = 9;

    for (; *more != NULL; more++)
        args[n++] = *more;
    struct proc *proc = place_start(p, place_text(p, "%s%zu", name, p->proc_count), args);
    if (proc_wait(proc) != 0)
        proc_must_say(proc, "an end with exit code 0");
    return proc;
}
#define BENCH(p, name, ...) bench(p, name, (const char *const[]){__VA_ARGS__, NULL})

/* Two members: each sends one half of its vector and returns the mean of the other. */
PLACE_TEST(allreduce_rows_are_consistent)
{
    static const struct {
        const char *format;
        int bytes, of;
    } cases[] = {{"fp32", 8192, 1}, {"fp16", 8192, 2}, {"int8", 8192, 4}};
    struct place *p = *state;

    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct proc *proc = BENCH(p, "allreduce", "--n", "2", "--bytes", "4KiB", "--format",
                                  cases[i].format, i == 0 ? "--mpi=/nonexistent" : NULL);
        json_t *row = row_of(proc, 0);
        double seconds = number(row, "seconds"), wire = number(row, "wire_bytes");
        text_is(row, "format", cases[i].format);
        assert_true(number(row, "n") == 2 && number(row, "bytes") == 4096);
        assert_true(wire >= (double)cases[i].bytes / cases[i].of);
        assert_true(wire <= 1.25 * cases[i].bytes / cases[i].of);
        assert_true(seconds > 0 && number(row, "cpu_seconds") > 0);
        is_ratio(row, "gb_per_s", 4096e-9, seconds);
        is_ratio(row, "floor_ratio", seconds, number(row, "floor_seconds"));
        if (json_object_get(row, "openmpi_seconds") != NULL)
            is_ratio(row, "openmpi_ratio", seconds, number(row, "openmpi_seconds"));
        assert_true(json_is_true(json_object_get(row, "tls")));
        assert_null(row_of(proc, 1));
        if (i == 0)
            proc_must_say(proc, "OpenMPI is not measured: there is no /nonexistent");
        json_decref(row);
    }
    place_end(p);
}

PLACE_TEST(expert_rows_are_consistent)
{
    struct place *p = *state;
    struct proc *proc = BENCH(p, "expert", "--kind", "ffn", "--dim", "32", "--rows", "4",
                              "--callers", "2", "--forward");
    json_t *row = row_of(proc, 0);
    double rows = number(row, "rows_per_s");

    text_is(row, "kind", "ffn");
    text_is(row, "direction", "forward");
    assert_true(number(row, "d") == 32 && number(row, "rows") == 4);
    assert_true(number(row, "callers") == 2 && number(row, "threads") == 1);
    is_ratio(row, "requests_per_s", rows, 4);
    is_ratio(row, "of_bare", rows, number(row, "bare_rows_per_s"));
    assert_true(number(row, "bare_1_thread") > 0);
    text_is(row, "wire", "bf16"); /* the default type of `hearth train` */
    assert_null(row_of(proc, 1));
    json_decref(row);
    place_end(p);
}

/* ---- peers ---------------------------------------------------------------------------------- */

/* A fake python3: it makes environments by copying itself, its pip does nothing, and its peer
 * answers 10, 20, 30 ... FAKE says where it fails. It records each call. */
static const char fake_python[] =
    "#!/bin/sh\n"
    "echo \"$FAKE: $*\" >>\"$FAKE_CALLS\"\n"
    "case \"$1 $2\" in\n"
    "'-m venv') [ \"$FAKE\" != no-venv ] && mkdir -p \"$3/bin\" && cp \"$0\" \"$3/bin/python3\"; "
    "exit;;\n"
    "'-m pip') [ \"$FAKE\" != no-pip ]; exit;;\n"
    "esac\n"
    "[ \"$FAKE\" != crash ] || exit 3\n"
    "[ \"$FAKE\" != error ] || echo '{\"error\": \"RuntimeError: no port\"}'\n"
    "echo '{\"peer\": \"fake 1.0\", \"with\": \"no PyTorch\", \"malloc\": \"none\"}'\n"
    "n=0\n"
    "while read -r go; do\n"
    "    [ \"$FAKE\" != hang ] || sleep 600\n"
    "    [ \"$FAKE\" != garbage ] || echo 12 of them\n"
    "    n=$((n + 10)); echo \"{\\\"value\\\": $n}\"\n"
    "done\n";

/* Makes the fake the python3 of PATH; it records its calls in the file "calls". */
static const char *fake_setup(struct place *p)
{
    const char *program = place_path(p, "python3");

    place_write(p, "python3", fake_python, sizeof(fake_python) - 1);
    assert_int_equal(chmod(program, 0700), 0);
    setenv("PATH", place_text(p, "%s:/usr/bin:/bin", p->root), 1);
    setenv("TMPDIR", p->root, 1); /* for logs of what failed */
    setenv("FAKE_CALLS", place_path(p, "calls"), 1);
    setenv("FAKE", "good", 1);
    return program;
}

static struct proc *peers(struct place *p, const char *fake, const char *flag, const char *value)
{
    setenv("FAKE", fake, 1);
    return START(p, fake, "bench", "peers", "--json", "--case", "beam", "--runs", "3", "--timeout",
                 "30s", flag, value);
}

static size_t calls(struct place *p, const char *of)
{
    char *text = place_read(place_path(p, "calls"), NULL);
    size_t count = 0;

    for (const char *at = text; at != NULL && (at = strstr(at, of)) != NULL; at++)
        count++;
    free(text);
    return count;
}

/* The environment is made once, and made again if it has other versions. */
PLACE_TEST(peers_row_has_ratio_and_versions)
{
    struct place *p = *state;
    (void)fake_setup(p);
    const char *folder = place_path(p, "venv");
    struct proc *proc = peers(p, "good", "--venv", folder);

    assert_int_equal(proc_wait(proc), 0);
    proc_must_say(proc, "3.1 GB to download");
    proc_must_say(proc, "peer: fake 1.0, no PyTorch, none");
    json_t *row = row_of(proc, 0);
    text_is(row, "case", "beam");
    text_is(row, "unit", "ms");
    text_is(row, "peer_version", "fake 1.0, no PyTorch, none");
    assert_non_null(json_string_value(json_object_get(row, "cpu")));
    assert_true(number(row, "peer") == 20 && number(row, "runs") == 3);
    is_ratio(row, "ratio", 20, number(row, "ours")); /* less is better */
    assert_true(number(row, "spread") > 0);
    json_decref(row);
    assert_null(row_of(proc, 1));

    assert_int_equal(proc_wait(peers(p, "good", "--venv", folder)), 0);
    assert_int_equal(calls(p, "-m venv"), 1);
    assert_int_equal(calls(p, "-m pip"), 1);
    place_write(p, "venv/made-of.txt", "others\n", 7);
    assert_int_equal(proc_wait(peers(p, "good", "--venv", folder)), 0);
    assert_int_equal(calls(p, "-m pip"), 2);
    place_end(p);
}

/* A case where more is better has the ratio of ours over the peer's. */
PLACE_TEST(peers_row_of_a_layer_has_its_ratio)
{
    struct place *p = *state;
    struct proc *proc = BENCH(p, "peers", "--case", "e-nop", "--python", fake_setup(p));
    json_t *row = row_of(proc, 0);

    text_is(row, "case", "E-nop");
    text_is(row, "unit", "steps/s");
    assert_true(number(row, "peer") == 10 && number(row, "spread") == 0);
    is_ratio(row, "ratio", number(row, "ours"), 10);
    json_decref(row);
    place_end(p);
}

/* Each failure of hivemind's side is an error that names it, and leaves no process behind. */
PLACE_TEST(peers_failures_are_named)
{
    static const struct {
        const char *fake, *flag, *says;
    } cases[] = {
        {"no-venv", "--venv", "no virtual environment could be made"},
        {"no-pip", "--venv", "pip could not install"},
        {"crash", "--python", "hivemind's process ended without an answer"},
        {"error", "--python", "hivemind says: RuntimeError: no port"},
        {"garbage", "--python", "hivemind says: 12 of them"},
        {"hang", "--python", "hivemind did not answer for 1 s"},
    };
    struct place *p = *state;
    const char *program = fake_setup(p);

    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        bool venv = strcmp(cases[i].flag, "--venv") == 0;
        setenv("FAKE", cases[i].fake, 1);
        bool hangs = strcmp(cases[i].fake, "hang") == 0;
        struct proc *proc = START(p, cases[i].fake, "bench", "peers", "--case", "beam", "--timeout",
                                  hangs ? "1s" : "30s", cases[i].flag,
                                  venv ? place_path(p, cases[i].fake) : program);
        assert_int_not_equal(proc_wait(proc), 0);
        proc_must_say(proc, cases[i].says);
        assert_null(row_of(proc, 0));
    }
    place_end(p);
}
