/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c: prints every kernel of one back end beside its floor (device.h) as JSON lines. It needs
 * no library, for machines with a card and little else. `hearth bench kernels --device cuda` prints
 * the same table.
 *
 *   kernels_bench [--plugins FOLDER] [BACKEND] [TYPE] [DIM,DIM] [ROWS,ROWS] [REPEATS]
 *
 * Exit code 77: there is no such device, and the reason is on standard error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "benchmarks/kernels/device.h"
#include "kernels/plugin.h"

#define LIST_MAX  16
#define NO_DEVICE 77

static int64_t clock_us(void *arg)
{
    struct timespec now;
    (void)arg;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Parses positive numbers with commas between them. Returns how many; 0: the text is no list. */
static size_t parse_list(const char *text, uint32_t out[LIST_MAX])
{
    size_t n = 0;
    for (char *end; n < LIST_MAX && *text != '\0'; text = *end == ',' ? end + 1 : end) {
        out[n] = (uint32_t)strtoul(text, &end, 10);
        if (end == text || out[n++] == 0)
            return 0;
    }
    return n;
}

static void print_head(const struct hth_backend *be)
{
    printf("{\"backend\": \"%s\", \"type\": \"%s\", ", hth_backend_name(be),
           hth_matmul_name(hth_backend_compute(be)));
}

static void print_rates(void *arg, const struct hth_bench_rates *rates)
{
    print_head(arg);
    printf("\"op\": \"rates\", \"copy_gb_per_s\": %.2f, \"product_gflops\": %.2f}\n",
           rates->bytes_per_s * 1e-9, rates->flops_per_s * 1e-9);
    fflush(stdout);
}

static void print_line(void *arg, const struct hth_bench_line *l)
{
    print_head(arg);
    printf("\"op\": \"%s\", \"d\": %u, \"rows\": %u", l->op, l->dim, l->rows);
    if (l->err != HTH_OK)
        printf(", \"error\": \"%s\"}\n", hth_err_name(l->err));
    else
        printf(", \"us\": %.2f, \"gflops\": %.2f, \"gb_per_s\": %.3f, \"floor_us\": %.3f, "
               "\"of_floor\": %.3f, \"check_error\": %.2e}\n",
               l->us, l->flops * 1e-3 / l->us, l->bytes * 1e-3 / l->us, l->floor_us,
               hth_bench_fraction(l), l->check_error);
    fflush(stdout);
}

static enum hth_matmul type_of(const char *text)
{
    for (int t = HTH_MATMUL_AUTO; t <= HTH_MATMUL_TF32; t++) {
        if (strcmp(text, hth_matmul_name((enum hth_matmul)t)) == 0)
            return (enum hth_matmul)t;
    }
    return HTH_MATMUL_F32;
}

static const struct hth_backend *open_backend(const char *name, const char *type)
{
    const struct hth_backend_choice choice = {.name = name, .compute = type_of(type)};
    const struct hth_backend *be = NULL;
    char why[200] = "";
    enum hth_err err = hth_plugin_knows(name)
                           ? hth_plugin_backend(name, choice.compute, &be, why, sizeof(why))
                           : hth_backend_choose(&choice, &be);
    if (err != HTH_OK)
        fprintf(stderr, "%s %s: %s\n", name, type, why[0] != '\0' ? why : hth_err_text(err));
    return be;
}

int main(int argc, char **argv)
{
    const char *name = "auto", *type = "fp32", *dims = "1024,2048,4096", *rows = "2048,8192";
    const char *repeats = "11", **words[] = {&name, &type, &dims, &rows, &repeats};
    uint32_t dim_list[LIST_MAX], row_list[LIST_MAX];
    int at = 1;
    if (argc > 2 && strcmp(argv[1], "--plugins") == 0) {
        const char *folder = argv[2];
        hth_plugins_search(&folder, 1);
        at = 3;
    }
    for (size_t i = 0; at < argc && i < HTH_ARRAY_LEN(words); i++)
        *words[i] = argv[at++];
    const struct hth_backend *be = open_backend(name, type);
    if (be == NULL)
        return NO_DEVICE;
    const struct hth_bench_device_options options = {
        .backend = be,
        .dims = dim_list,
        .dim_count = parse_list(dims, dim_list),
        .rows = row_list,
        .row_count = parse_list(rows, row_list),
        .repeats = (uint32_t)strtoul(repeats, NULL, 10),
        .clock_us = clock_us,
        .on_rates = print_rates,
        .on_line = print_line,
        .arg = (void *)(uintptr_t)be,
    };
    if (options.dim_count == 0 || options.row_count == 0) {
        fprintf(stderr, "usage: kernels_bench [--plugins FOLDER] [BACKEND] [TYPE] [DIM,..] "
                        "[ROWS,..] [REPEATS]\n");
        return 2;
    }
    enum hth_err err = hth_bench_device(&options);
    if (err != HTH_OK)
        fprintf(stderr, "%s: %s\n", hth_backend_name(be), hth_err_text(err));
    return err == HTH_OK ? 0 : 1;
}
