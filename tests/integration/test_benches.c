/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Benchmarks as a script sees them, in sizes that take a moment: the fields, and how they hang
 * together. What the figures are is not this test's business; that the work behind them is right
 * is checked by the benchmarks themselves, which then exit with 0.
 */
#include "integration/place.h"

#include <jansson.h>
#include <stdlib.h>

/* The n-th row that it printed; NULL past the last. */
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
static void test_allreduce(void **state)
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
        assert_int_equal(number(row, "zstd_bytes"), 0); /* not worth it in one machine */
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

static void test_expert(void **state)
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
    text_is(row, "wire", "bf16"); /* as `hearth train` sends rows */
    assert_null(row_of(proc, 1));
    json_decref(row);
    place_end(p);
}

static json_t *twin_row(struct proc *proc, size_t n, const char *name, const char *unit)
{
    json_t *row = row_of(proc, n);

    assert_non_null(row);
    text_is(row, "case", name);
    text_is(row, "unit", unit);
    assert_true(number(row, "value") > 0);
    assert_true(number(row, "repeats") == 1);
    (void)number(row, "spread");
    return row;
}

static void test_twin(void **state)
{
    struct place *p = *state;
    struct proc *proc = BENCH(p, "twin", "--case", "E-nop");
    json_t *row = twin_row(proc, 0, "E-nop", "steps/s");

    assert_true(number(row, "hivemind") == 1.63 && number(row, "aim") == 50);
    is_ratio(row, "ratio", number(row, "value"), 1.63);
    text_is(row, "wire", "fp32");
    json_decref(row);
    proc = BENCH(p, "twin", "--case", "beam");
    row = twin_row(proc, 0, "beam", "ms"); /* less is better */
    is_ratio(row, "ratio", number(row, "hivemind"), number(row, "value"));
    json_decref(row);
    place_end(p);
}

/* The whole of case C, 16 averagers and their DHT, with small vectors. */
static void test_twin_averagers(void **state)
{
    struct place *p = *state;
    struct proc *proc = BENCH(p, "twin", "--case", "C", "--floats", "5000");
    json_t *row = twin_row(proc, 0, "C", "s");

    assert_true(json_is_null(json_object_get(row, "hivemind")));
    assert_true(json_is_null(json_object_get(row, "ratio")));
    assert_true(json_is_null(json_object_get(row, "wire"))); /* no rows travel */
    json_decref(row);
    json_decref(twin_row(proc, 1, "C-waiting", "s/step"));
    json_decref(twin_row(proc, 2, "C-begin", "s/step"));
    json_decref(twin_row(proc, 3, "C-reduce", "s/step"));
    row = twin_row(proc, 4, "C-steps", "of 80");
    print_message("%g of 80 steps\n", number(row, "value"));
    json_decref(row);
    json_decref(twin_row(proc, 5, "C-processor", "s"));
    assert_null(row_of(proc, 6));
    place_end(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_allreduce, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(test_expert, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(test_twin, place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(test_twin_averagers, place_setup, place_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
