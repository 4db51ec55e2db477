/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.c: the kernels of one back end as CSV, each beside its floor, without any library: for
 * machines that have a card and little else.
 *
 *   kernels_bench [--plugins FOLDER] [BACKEND] [TYPE] [DIM,DIM] [ROWS,ROWS]
 *
 * Each case is verified before it is timed (kernels/bench.h). Its floor is a rate that the same
 * program measured on the same device: bytes over that of a copy of 256 MiB, operations over that
 * of the best product of the list. Medians of eleven runs, each with its wait for the device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/bench.h"
#include "kernels/ops.h"
#include "kernels/plugin.h"

#define REPEATS    11
#define LIST_MAX   16
#define COPY_BYTES ((size_t)256 << 20)

static int64_t clock_us(void *arg)
{
    struct timespec now;
    (void)arg;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static size_t parse_list(const char *text, uint32_t out[LIST_MAX])
{
    size_t n = 0;
    for (char *end; n < LIST_MAX && *text != '\0'; text = *end == ',' ? end + 1 : end) {
        out[n++] = (uint32_t)strtoul(text, &end, 10);
        if (end == text)
            return 0;
    }
    return n;
}

/* Bytes read and written per second by the largest plain copy; 0 when it could not be measured. */
static double copy_rate(const struct hth_backend *be)
{
    struct hth_exec *ex;
    float *a = hth_backend_alloc(be, COPY_BYTES), *b = hth_backend_alloc(be, COPY_BYTES);
    uint32_t cols = (uint32_t)(COPY_BYTES / sizeof(float));
    double best = 0;
    if (a == NULL || b == NULL || hth_exec_new(be, 0, &ex) != HTH_OK)
        return 0;
    struct hth_view from = hth_view_f32(a, 1, cols, cols), to = hth_view_f32(b, 1, cols, cols);
    if (hth_fill(ex, from, 1) != HTH_OK)
        return 0;
    for (int i = 0; i < REPEATS; i++) {
        int64_t start = clock_us(NULL);
        if (hth_cast(ex, from, to) != HTH_OK || hth_exec_sync(ex) != HTH_OK)
            return 0;
        double rate = 2.0 * (double)COPY_BYTES * 1e6 / (double)(clock_us(NULL) - start + 1);
        best = rate > best ? rate : best;
    }
    hth_backend_free(be, a);
    hth_backend_free(be, b);
    hth_exec_free(ex);
    return best;
}

struct line {
    enum hth_bench_kind kind;
    uint32_t dim, rows;
    enum hth_err err;
    struct hth_bench_result result;
};

static void measure(const struct hth_backend *be, struct line *l)
{
    const struct hth_bench_options options = {.backend = be,
                                              .kind = l->kind,
                                              .dim = l->dim,
                                              .rows = l->rows,
                                              .repeats = REPEATS,
                                              .clock_us = clock_us};
    l->err = hth_bench_run(&options, &l->result);
    fprintf(stderr, "%s %u %u: %s\n", hth_bench_kind_name(l->kind), l->dim, l->rows,
            hth_err_text(l->err));
}

static void print(const struct hth_backend *be, const struct line *l, double copy, double product)
{
    const struct hth_bench_result *r = &l->result;
    double floor = r->gflops > 0 ? r->gflops * 1e9 / product : r->gb_per_s * 1e9 / copy;
    printf("%s,%s,%s,%u,%u,", hth_backend_name(be), hth_matmul_name(hth_backend_compute(be)),
           hth_bench_kind_name(l->kind), l->dim, l->rows);
    if (l->err != HTH_OK)
        printf(",,,,,%s\n", hth_err_name(l->err));
    else
        printf("%.1f,%.1f,%.1f,%.3f,%.2e,\n", r->us_median, r->gflops, r->gb_per_s, floor,
               r->check_error);
}

static void run_all(const struct hth_backend *be, const uint32_t *dims, size_t dim_count,
                    const uint32_t *rows, size_t row_count)
{
    static struct line lines[LIST_MAX * LIST_MAX * HTH_BENCH_KINDS];
    size_t count = 0;
    double product = 1, copy = copy_rate(be);
    for (size_t d = 0; d < dim_count; d++) {
        for (int kind = 0; kind < HTH_BENCH_KINDS; kind++) {
            bool flat = hth_bench_kind_is_flat((enum hth_bench_kind)kind);
            for (size_t r = 0; r < (flat ? 1 : row_count); r++) {
                struct line *l = &lines[count++];
                *l = (struct line){
                    .kind = (enum hth_bench_kind)kind, .dim = dims[d], .rows = flat ? 1 : rows[r]};
                measure(be, l);
                bool linear = kind <= HTH_BENCH_LINEAR_BACKWARD_WEIGHT && l->err == HTH_OK;
                if (linear && l->result.gflops * 1e9 > product)
                    product = l->result.gflops * 1e9;
            }
        }
    }
    printf("# copy %.1f GB/s, best product %.1f GFLOP/s\n", copy * 1e-9, product * 1e-9);
    puts("backend,type,op,d,rows,us_median,gflops,gb_per_s,of_floor,check_error,error");
    for (size_t i = 0; i < count; i++)
        print(be, &lines[i], copy > 0 ? copy : 1, product);
}

int main(int argc, char **argv)
{
    const char *name = "auto", *type = "fp32", *dims = "1024,4096", *rows = "32,512,2048,8192";
    const char **words[] = {&name, &type, &dims, &rows};
    const struct hth_backend *be;
    uint32_t dim_list[LIST_MAX], row_list[LIST_MAX];
    char why[200] = "";
    int at = 1;
    if (argc > 2 && strcmp(argv[1], "--plugins") == 0) {
        const char *folder = argv[2];
        hth_plugins_search(&folder, 1);
        at = 3;
    }
    for (size_t i = 0; at < argc && i < 4; i++)
        *words[i] = argv[at++];
    struct hth_backend_choice choice = {.name = name, .compute = HTH_MATMUL_F32};
    for (int t = HTH_MATMUL_AUTO; t <= HTH_MATMUL_TF32; t++)
        choice.compute = strcmp(type, hth_matmul_name((enum hth_matmul)t)) == 0 ? (enum hth_matmul)t
                                                                                : choice.compute;
    enum hth_err err = hth_plugin_knows(name)
                           ? hth_plugin_backend(name, choice.compute, &be, why, sizeof(why))
                           : hth_backend_choose(&choice, &be);
    if (err != HTH_OK) {
        fprintf(stderr, "%s %s: %s\n", name, type, why[0] != '\0' ? why : hth_err_text(err));
        return 77;
    }
    size_t d = parse_list(dims, dim_list), r = parse_list(rows, row_list);
    if (d == 0 || r == 0) {
        fprintf(stderr,
                "usage: kernels_bench [--plugins FOLDER] [BACKEND] [TYPE] [D,..] [ROWS,..]\n");
        return 2;
    }
    run_all(be, dim_list, d, row_list, r);
    return 0;
}
