/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench.c: the benchmarks count correctly and notice wrong results. Small swarms on loopback;
 * no figure is compared with a clock.
 */
#include "benchmarks/gate.h"
#include "benchmarks/layer.h"
#include "benchmarks/timing.h"
#include "core/mem.h"
#include "support/suite.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define D 32

static struct hth_bench bench_of(bool plain)
{
    struct hth_bench b = {
        .seed = 7, .budget_us = HTH_US_PER_S, .plain = plain, .log = {.spec = "error"}};
    assert_int_equal(hth_backend_by_name("auto", &b.backend), HTH_OK);
    return b;
}

static struct hth_bench_swarm *swarm_of(const struct hth_bench *b, const char *kind,
                                        uint32_t experts, uint32_t hosts)
{
    const struct hth_bench_swarm_opts opts = {.bench = b,
                                              .kind = kind,
                                              .d = D,
                                              .experts = experts,
                                              .hosts = hosts,
                                              .clients = 2,
                                              .host_threads = 2,
                                              .batch_rows_max = 8192,
                                              .step_rows = 1};
    struct hth_bench_swarm *swarm;
    assert_int_equal(hth_bench_swarm_new(&opts, &swarm), HTH_OK);
    return swarm;
}

TEST(samples_give_median_and_spread)
{
    (void)state;
    struct hth_bench_samples s;
    hth_bench_begin(&s);
    assert_true(hth_bench_median(&s) == 0);
    hth_bench_add(&s, 3);
    hth_bench_add(&s, 1);
    hth_bench_add(&s, 2);
    assert_true(hth_bench_median(&s) == 2);
    assert_true(hth_bench_spread(&s) == 1);
    hth_bench_add(&s, 10);
    assert_true(hth_bench_median(&s) == 2.5);
    assert_true(hth_bench_round(123456.0) == 123500.0);
    assert_true(fabs(hth_bench_round(0.0123456) - 0.01235) < 1e-12);
    assert_true(hth_bench_round(0) == 0);
}

TEST(distance_is_relative_and_infinite_for_nan)
{
    (void)state;
    const float a[] = {1, 2, 3}, b[] = {1, 2, 4}, bad[] = {1, NAN, 3};
    assert_true(hth_bench_distance(a, a, 3) == 0);
    assert_true(fabs(hth_bench_distance(a, b, 3) - 1 / sqrt(21.0)) < 1e-12);
    assert_true(isinf(hth_bench_distance(bad, a, 3)));
}

/* Results over the network equal those of direct kernel calls. Once an expert has learnt they
 * differ, and the comparison must say so. */
TEST(comparison_fails_after_an_expert_has_learnt)
{
    (void)state;
    struct hth_bench b = bench_of(false);
    struct hth_bench_swarm *swarm = swarm_of(&b, "ffn", 4, 2);
    assert_true(swarm->start_s > 0);
    assert_int_equal(hth_bench_swarm_verify(swarm, 5, true), HTH_OK);
    assert_int_equal(hth_bench_swarm_verify(swarm, 5, false), HTH_E_BUG);
    hth_bench_swarm_free(swarm);
}

static void drive_counts(bool plain)
{
    struct hth_bench b = bench_of(plain);
    struct hth_bench_swarm *swarm = swarm_of(&b, "ffn", 4, 2);
    struct hth_bench_load load = {
        .callers = 3, .batches = 5, .rows = 4, .forward = true, .seed = 1};
    struct hth_bench_load_result result;
    struct hth_server_stats stats;
    assert_int_equal(hth_bench_drive(swarm, &load, &result), HTH_OK);
    assert_int_equal(lround(result.requests_per_s * result.seconds), 15);
    assert_int_equal(lround(result.rows_per_s * result.seconds), 60);
    load.backward = true;
    assert_int_equal(hth_bench_drive(swarm, &load, &result), HTH_OK);
    assert_int_equal(lround(result.requests_per_s * result.seconds), 30);
    assert_int_equal(lround(result.rows_per_s * result.seconds), 60);
    assert_int_equal(result.retries, 0);
    hth_bench_swarm_stats(swarm, &stats);
    assert_int_equal(stats.rows_forward, 120);
    assert_int_equal(stats.rows_backward, 60);
    assert_int_equal(stats.requests, 45);
    load.forward = false;
    assert_int_equal(hth_bench_drive(swarm, &load, &result), HTH_OK);
    hth_bench_swarm_stats(swarm, &stats);
    assert_int_equal(stats.rows_forward, 120);
    assert_int_equal(stats.rows_backward, 120);
    load.spread = 2; /* the first two experts, both on the first host: one request */
    assert_int_equal(hth_bench_drive(swarm, &load, &result), HTH_OK);
    hth_bench_swarm_stats(swarm, &stats);
    assert_int_equal(stats.requests, 75);
    hth_bench_swarm_free(swarm);
}

TEST(load_counts_rows_and_requests)
{
    (void)state;
    drive_counts(false);
    drive_counts(true);
}

/* A step sends one request per host and pass, counts every byte, and the layer learns. */
TEST(layer_step_counts_requests_and_learns)
{
    (void)state;
    struct hth_bench b = bench_of(false);
    struct hth_bench_swarm *swarm = swarm_of(&b, "ffn", 16, 2);
    struct hth_bench_layer *layer;
    struct hth_bench_layer_step first, step;
    assert_int_equal(hth_bench_layer_new(swarm, 24, 4, &layer), HTH_OK);
    assert_int_equal(hth_bench_layer_step(layer, &first), HTH_OK);
    assert_int_equal(first.requests_forward, 2);
    assert_int_equal(first.requests_backward, 2);
    assert_in_range(first.experts, 4, 16);
    assert_int_equal(first.bytes, 24 * 4 * D * sizeof(float) * 4); /* x, y, dy, dx */
    for (int i = 0; i < 10; i++)
        assert_int_equal(hth_bench_layer_step(layer, &step), HTH_OK);
    assert_true(step.loss < first.loss);
    hth_bench_layer_free(layer);
    hth_bench_swarm_free(swarm);
}

/* The output of a question, rewound; the question must succeed. */
static FILE *output_of(int (*question)(int, char **), int argc, char **argv)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
    int code = question(argc, argv);
    fflush(stdout);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    close(saved);
    assert_int_equal(code, HTH_EXIT_OK);
    rewind(file);
    return file;
}

/* Each row is one JSON object on a line, with the documented names. */
TEST(gate_prints_json_rows)
{
    (void)state;
    char name[] = "hearth bench gate", json[] = "--json", experts[] = "--experts", n[] = "256",
         repeats[] = "--repeats", r[] = "3";
    char *argv[] = {name, json, experts, n, repeats, r, NULL};
    char line[1024];
    FILE *file = output_of(hth_bench_gate_main, 6, argv);
    assert_non_null(fgets(line, sizeof(line), file));
    json_t *row = json_loads(line, 0, NULL);
    assert_non_null(row);
    assert_int_equal(json_integer_value(json_object_get(row, "experts")), 256);
    assert_int_equal(json_integer_value(json_object_get(row, "rows")), 256);
    assert_int_equal(json_integer_value(json_object_get(row, "k")), 4);
    assert_true(json_is_integer(json_object_get(row, "dht_requests")));
    assert_int_equal(json_integer_value(json_object_get(row, "dht_requests")), 0);
    assert_true(json_real_value(json_object_get(row, "ms_per_batch")) > 0);
    json_decref(row);
    assert_null(fgets(line, sizeof(line), file));
    fclose(file);
}

static double number(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

/* Each mask has a row beside the causal mask; its keys are checked before, in double. */
TEST(picture_prints_json_rows)
{
    (void)state;
    char name[] = "hearth bench picture", json[] = "--json", repeats[] = "--repeats=1";
    char masks[] = "--masks", *argv[] = {name, json, repeats, masks, NULL};
    static const char *const cases[] = {"mask row, ms", "mask column, ms", "mask conv, ms"};
    char line[1024];
    FILE *file = output_of(hth_bench_picture_main, 4, argv);
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        assert_non_null(fgets(line, sizeof(line), file));
        json_t *row = json_loads(line, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(row, "case")), cases[i]);
        assert_true(number(row, "value") > 0);
        assert_close(number(row, "ratio"), number(row, "value") / number(row, "peer"), 5e-3, 0);
        json_decref(row);
    }
    assert_null(fgets(line, sizeof(line), file));
    fclose(file);
}

/* An undisturbed run counts rather than a faster disturbed one. */
TEST(undisturbed_run_counts_before_faster_ones)
{
    struct hth_bench_fastest f = {0};
    struct hth_bench_watch watch;
    (void)state;
    hth_bench_fastest_add(&f, (struct hth_bench_fastest){.s = 3});
    hth_bench_fastest_add(&f, (struct hth_bench_fastest){.s = 2});
    hth_bench_fastest_add(&f, (struct hth_bench_fastest){.s = 4});
    assert_true(f.s == 2 && !f.sure);
    hth_bench_fastest_add(&f, (struct hth_bench_fastest){.s = 5, .sure = true});
    hth_bench_fastest_add(&f, (struct hth_bench_fastest){.s = 1});
    assert_true(f.s == 5 && f.sure);
    hth_bench_fastest_add(&f, (struct hth_bench_fastest){.s = 4.5, .sure = true});
    assert_true(f.s == 4.5 && f.sure);
    /* A thread that sleeps counts by its processor time, and as disturbed. */
    f = (struct hth_bench_fastest){0};
    hth_bench_watch_start(&watch);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    double s = hth_bench_watch_stop(&watch, false, 10, &f);
    assert_true(s < 0.02 && !f.sure);
    assert_close(f.s, s / 10, 1e-9, 0);
    /* Many threads are timed by the wall. */
    f = (struct hth_bench_fastest){0};
    hth_bench_watch_start(&watch);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_true(hth_bench_watch_stop(&watch, true, 1, &f) >= 0.02 && f.sure);
}

/* Every set of kernels has rows, alone and with helpers: rates for products, bytes for others. */
TEST(kernels_print_json_rows)
{
    (void)state;
    static char words[][32] = {
        "hearth bench kernels",        "--json",      "--d=32",      "--rows=3,5",
        "--op=ffn_train_step,softmax", "--threads=2", "--python=no", "--repeats=1"};
    char *argv[HTH_ARRAY_LEN(words) + 1] = {NULL};
    static const char *const names[] = {"op",      "type",        "isa",           "d",
                                        "rows",    "elements",    "threads",       "ms",
                                        "gflops",  "peak_gflops", "peak_fraction", "gb_per_s",
                                        "torch_ms"};
    char line[1024];
    uint32_t lines = 0, threads[3] = {0, 0, 0}, products = 0;
    for (size_t i = 0; i < HTH_ARRAY_LEN(words); i++)
        argv[i] = words[i];
    FILE *file = output_of(hth_bench_kernels_main, HTH_ARRAY_LEN(words), argv);
    while (fgets(line, sizeof(line), file) != NULL) {
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        assert_int_equal(json_object_size(row), HTH_ARRAY_LEN(names));
        for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++)
            assert_non_null(json_object_get(row, names[i]));
        bool product = strcmp(json_string_value(json_object_get(row, "op")), "softmax") != 0;
        double flops = 2.0 * 6 * number(row, "rows") * 32 * 128;
        assert_true(number(row, "ms") > 0);
        assert_true(number(row, "elements") == 32 * number(row, "rows"));
        if (product) {
            assert_close(number(row, "gflops"), flops / number(row, "ms") * 1e-6, 2e-3, 0);
            assert_close(number(row, "peak_fraction"),
                         number(row, "gflops") / number(row, "peak_gflops"), 3e-3, 0);
        } else {
            assert_close(number(row, "gb_per_s"),
                         8 * number(row, "rows") * 32 / number(row, "ms") * 1e-6, 2e-3, 0);
            assert_true(json_is_null(json_object_get(row, "gflops")));
        }
        assert_in_range(number(row, "threads"), 1, 2);
        threads[(int)number(row, "threads")]++;
        products += product ? 1 : 0;
        lines++;
        json_decref(row);
    }
    assert_true(lines >= 8); /* one set at least */
    assert_int_equal(threads[1], threads[2]);
    assert_int_equal(products * 2, lines);
    fclose(file);
}

/* A missing card is an error with a reason, and the CPU is not measured in its place. */
TEST(missing_card_is_an_error)
{
    (void)state;
    char name[] = "hearth bench kernels", card[] = "--device=cuda:99",
         other[] = "hearth bench gate";
    char *argv[] = {name, card, NULL}, *refused[] = {other, card, NULL};
    assert_int_equal(hth_bench_kernels_main(2, argv), HTH_EXIT_DEVICE);
    assert_int_equal(hth_bench_gate_main(2, refused), HTH_EXIT_USAGE);
}

TEST(unknown_question_is_an_error)
{
    (void)state;
    char name[] = "hearth bench", what[] = "nonsense";
    char *argv[] = {name, what, NULL};
    assert_int_equal(hth_verb_bench(2, argv), HTH_EXIT_USAGE);
    assert_int_equal(hth_verb_bench(1, argv), HTH_EXIT_USAGE);
}

/* A row is held against the quickest instruction for its type or a wider one. */
TEST(peak_is_the_quickest_instruction)
{
    (void)state;
    struct hth_bench_peaks p = {0};
    p.rate[HTH_PEAK_PLAIN] = 30e9;
    p.rate[HTH_PEAK_AVX2] = 120e9;
    assert_int_equal(hth_bench_peaks_best(&p, HTH_MATMUL_BF16), HTH_PEAK_AVX2);
    p.rate[HTH_PEAK_AVX512] = 242e9;
    p.rate[HTH_PEAK_BF16] = 121e9; /* slower than fp32, which can do the same */
    assert_int_equal(hth_bench_peaks_best(&p, HTH_MATMUL_F32), HTH_PEAK_AVX512);
    assert_int_equal(hth_bench_peaks_best(&p, HTH_MATMUL_BF16), HTH_PEAK_AVX512);
    p.rate[HTH_PEAK_BF16] = 480e9;
    assert_int_equal(hth_bench_peaks_best(&p, HTH_MATMUL_F32), HTH_PEAK_AVX512);
    assert_int_equal(hth_bench_peaks_best(&p, HTH_MATMUL_BF16), HTH_PEAK_BF16);
    p.rate[HTH_PEAK_AMX] = 3419e9;
    assert_int_equal(hth_bench_peaks_best(&p, HTH_MATMUL_F32), HTH_PEAK_AVX512);
    assert_int_equal(hth_bench_peaks_best(&p, HTH_MATMUL_BF16), HTH_PEAK_AMX);
}
